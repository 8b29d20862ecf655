#![forbid(unsafe_code)]
//! Tests of the IP header.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{Addresses, Bits, FragmentBits, Masked4, Masked6, Numbers, Side, Test};

use super::check;
use crate::ipfw::testing::build::range;
use crate::ipfw::testing::frame::{V4, V6, frame, icmp, udp};
use crate::ipfw::testing::pool;

fn v4(source: [u8; 4], destination: [u8; 4]) -> Vec<u8> {
    frame(&V4::new(source.into(), destination.into()).packet(17, &udp((1, 2), 4)))
}

fn v6(source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    frame(&V6::new(source, destination).packet(17, &udp((1, 2), 4)))
}

fn plain4() -> V4 {
    V4::new(pool::V4[2], pool::V4[4])
}

fn with4(header: V4) -> Vec<u8> {
    frame(&header.packet(17, &udp((1, 2), 4)))
}

fn with6(header: V6) -> Vec<u8> {
    frame(&header.packet(17, &udp((1, 2), 4)))
}

fn plain6() -> V6 {
    V6::new(pool::V6[2], pool::V6[4])
}

fn one(number: u16) -> Numbers {
    Numbers::List(vec![range(number, number)])
}

#[test]
fn families_and_protocols() {
    let (four, six) = (v4([10, 0, 0, 2], [10, 1, 0, 2]), v6(pool::V6[2], pool::V6[4]));
    check(vec![
        (Test::Ipv4, four.clone(), six.clone()),
        (Test::Ipv6, six.clone(), four.clone()),
        (Test::Protocol(17), four.clone(), frame(&plain4().packet(1, &icmp(8, 0)))),
        (Test::Protocol(58), frame(&plain6().packet(58, &icmp(128, 0))), six.clone()),
        (Test::IpVersion(4), four.clone(), six.clone()),
        (Test::IpVersion(6), six, four),
    ]);
}

#[test]
fn addresses() {
    let from = |source: [u8; 4]| v4(source, [10, 1, 0, 2]);
    let list =
        |address: [u8; 4], mask: [u8; 4]| Addresses::V4(vec![Masked4 { address: address.into(), mask: mask.into() }]);
    let source = |addresses| Test::Address(Side::Source, addresses);
    let mut members = [0u64; 4];
    members[0] = 1 << 2 | 1 << 35;
    check(vec![
        (source(list([10, 0, 0, 2], [255; 4])), from([10, 0, 0, 2]), from([10, 0, 0, 3])),
        (source(list([10, 0, 0, 0], [255, 255, 255, 128])), from([10, 0, 0, 127]), from([10, 0, 0, 128])),
        // A mask with a hole: the third byte does not matter.
        (source(list([10, 0, 0, 2], [255, 255, 0, 255])), from([10, 0, 77, 2]), from([10, 0, 77, 3])),
        (
            source(Addresses::Set4 { base: [10, 0, 0, 0].into(), length: 24, members }),
            from([10, 0, 0, 35]),
            from([10, 0, 0, 36]),
        ),
        (
            source(Addresses::Set4 { base: [10, 0, 0, 0].into(), length: 24, members }),
            from([10, 0, 0, 2]),
            from([10, 0, 1, 2]),
        ),
        (source(Addresses::Me), from(pool::V4[0].octets()), from([10, 0, 0, 2])),
        (source(Addresses::Me), v6(pool::V6[0], pool::V6[2]), v6(pool::V6[2], pool::V6[0])),
        (source(Addresses::Me6), v6(pool::V6[0], pool::V6[2]), from(pool::V4[0].octets())),
        (
            Test::Address(Side::Destination, list([10, 1, 0, 0], [255, 255, 0, 0])),
            v4([10, 0, 0, 2], [10, 1, 3, 4]),
            v4([10, 1, 3, 4], [10, 0, 0, 2]),
        ),
        (
            Test::Address(
                Side::Destination,
                Addresses::V6(vec![Masked6 {
                    address: "2001:db8::".parse().unwrap(),
                    mask: "ffff:ffff:ffff::".parse().unwrap(),
                }]),
            ),
            v6(pool::V6[4], "2001:db8:0:ffff::1".parse().unwrap()),
            v6(pool::V6[4], "2001:db8:1::1".parse().unwrap()),
        ),
    ]);
    assert!(!super::matches_in(&source(Addresses::None), &from([10, 0, 0, 2]), &super::incoming()));
    // 0.0.0.0/0 written as a mask still asks for IPv4.
    let all = source(list([0; 4], [0; 4]));
    assert!(super::matches_in(&all, &from(Ipv4Addr::BROADCAST.octets()), &super::incoming()));
    assert!(!super::matches_in(&all, &v6(pool::V6[2], pool::V6[4]), &super::incoming()));
}

#[test]
fn fields_of_the_header() {
    let set = |set, clear| Bits { set, clear };
    let options = |options: &[u8]| with4(V4 { options: options.to_vec(), ..plain4() });
    let length = frame(&plain4().packet(17, &udp((1, 2), 12)));
    check(vec![
        (Test::IpId(one(77)), with4(plain4()), with4(V4 { id: 78, ..plain4() })),
        (
            Test::IpId(Numbers::List(vec![range(70, 79), range(90, 90)])),
            with4(V4 { id: 90, ..plain4() }),
            with4(V4 { id: 80, ..plain4() }),
        ),
        (Test::IpLength(one(32)), with4(plain4()), length.clone()),
        (Test::IpLength(one(52)), with6(plain6()), length),
        (Test::IpTtl(Numbers::List(vec![range(1, 64)])), with4(plain4()), with4(V4 { ttl: 65, ..plain4() })),
        (Test::IpTtl(one(64)), with4(plain4()), with6(plain6())),
        (Test::IpPrecedence(5), with4(V4 { tos: 0xa4, ..plain4() }), with4(V4 { tos: 0x84, ..plain4() })),
        (Test::IpTos(set(0x10, 0x08)), with4(V4 { tos: 0x10, ..plain4() }), with4(V4 { tos: 0x18, ..plain4() })),
        (Test::Dscp(1 << 46), with4(V4 { tos: 46 << 2 | 3, ..plain4() }), with4(V4 { tos: 45 << 2, ..plain4() })),
        (
            Test::Dscp(1 << 9 | 1 << 63),
            with6(V6 { class: 63 << 2 | 1, ..plain6() }),
            with6(V6 { class: 62 << 2, ..plain6() }),
        ),
        (Test::IpOptions(set(4, 0)), options(&[7, 7, 4, 0, 0, 0, 0]), options(&[68, 8, 5, 0, 0, 0, 0, 0])),
        (Test::IpOptions(set(0, 1)), options(&[1, 131, 7, 4, 0, 0, 0, 0]), options(&[137, 7, 4, 0, 0, 0, 0])),
        // Broken options match nothing, not even "none of these".
        (Test::IpOptions(set(0, 15)), with4(plain4()), options(&[68, 0])),
        (Test::FlowId(vec![1, 5]), with6(V6 { label: 5, class: 0xff, ..plain6() }), with6(V6 { label: 6, ..plain6() })),
    ]);
}

#[test]
fn fragments_of_ipv4() {
    let fragment = |fragment| with4(V4 { fragment, ..plain4() });
    let test = |set, clear| Test::Fragment(FragmentBits { set, clear });
    check(vec![
        (test(FragmentBits::OFFSET, 0), fragment(0x0010), fragment(0x2000)),
        (test(FragmentBits::MORE, 0), fragment(0x2000), fragment(0x0010)),
        (test(FragmentBits::DONT, 0), fragment(0x4000), fragment(0)),
        (test(FragmentBits::RESERVED, 0), fragment(0x8000), fragment(0x4000)),
        (test(FragmentBits::MORE, FragmentBits::OFFSET), fragment(0x2000), fragment(0x2010)),
        (test(0, FragmentBits::DONT), fragment(0), fragment(0x4000)),
    ]);
}

#[test]
fn fragments_and_extensions_of_ipv6() {
    let with = |extensions: Vec<(u8, Vec<u8>)>| with6(V6 { extensions, ..plain6() });
    let fragment = |field: u16| (44u8, [&[0, 0], &field.to_be_bytes()[..], &[0, 0, 0, 9]].concat());
    let hop = (0u8, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    let destination = (60u8, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    let authentication = (51u8, vec![0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
    let routing = |kind| (43u8, vec![0, 0, kind, 0, 0, 0, 0, 0]);
    let esp = frame(&plain6().packet(50, &[0; 16]));
    check(vec![
        (
            Test::Fragment(FragmentBits { set: FragmentBits::OFFSET, clear: 0 }),
            with(vec![fragment(8)]),
            with(vec![fragment(1)]),
        ),
        (Test::ExtensionHeaders(1), with(vec![fragment(1)]), with(vec![])),
        (Test::ExtensionHeaders(2), with(vec![hop.clone()]), with(vec![destination.clone()])),
        (Test::ExtensionHeaders(4), with(vec![routing(2)]), with(vec![hop.clone()])),
        (Test::ExtensionHeaders(8), with(vec![hop.clone(), destination]), with(vec![hop])),
        (Test::ExtensionHeaders(16), with(vec![authentication]), with(vec![])),
        (Test::ExtensionHeaders(32), esp, with(vec![])),
        (Test::ExtensionHeaders(64), with(vec![routing(0)]), with(vec![routing(2)])),
        (Test::ExtensionHeaders(128), with(vec![routing(2)]), with(vec![routing(0)])),
    ]);
    // Only plain `frag` knows IPv6.
    let more = Test::Fragment(FragmentBits { set: FragmentBits::MORE, clear: 0 });
    assert!(!super::matches_in(&more, &with(vec![fragment(9)]), &super::incoming()));
}
