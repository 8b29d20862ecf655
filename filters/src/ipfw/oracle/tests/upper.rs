#![forbid(unsafe_code)]
//! Tests of what stands behind the IP header.

use ferrule_config::ipfw::ast::{Bits, Numbers, Side, Test};

use super::check;
use crate::ipfw::testing::build::range;
use crate::ipfw::testing::frame::{Tcp, V4, V6, frame, icmp, sctp, udp};
use crate::ipfw::testing::pool;

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(&V4::new(pool::V4[2], pool::V4[4]).packet(protocol, payload))
}

fn v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(&V6::new(pool::V6[2], pool::V6[4]).packet(protocol, payload))
}

fn fragment(field: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(&V4 { fragment: field, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(protocol, payload))
}

fn tcp(flags: u8) -> Vec<u8> {
    v4(6, &Tcp::new((1024, 80), flags).bytes())
}

fn one(number: u16) -> Numbers {
    Numbers::List(vec![range(number, number)])
}

#[test]
fn ports_and_their_protocols() {
    let to = |low, high| Test::Ports(Side::Destination, vec![range(22, 22), range(low, high)]);
    let udp_to = |port| v4(17, &udp((9, port), 0));
    check(vec![
        (to(80, 82), udp_to(82), udp_to(83)),
        (to(80, 82), udp_to(80), udp_to(79)),
        (to(80, 82), udp_to(22), udp_to(23)),
        (Test::Ports(Side::Source, vec![range(9, 9)]), udp_to(1), v4(17, &udp((1, 9), 0))),
        (to(80, 80), tcp(2), v4(1, &icmp(8, 0))),
        (to(80, 80), v4(132, &sctp((1, 80), 0, 0)), v4(132, &sctp((80, 1), 0, 0))),
        (to(80, 80), v6(136, &udp((1, 80), 0)), v6(136, &udp((1, 81), 0))),
        // The first fragment has ports, later ones have none, whatever stands there.
        (to(80, 80), fragment(0x2000, 17, &udp((1, 80), 8)), fragment(0x2010, 17, &udp((1, 80), 8))),
        (to(0, 65535), fragment(0x2000, 17, &udp((1, 80), 8)), fragment(0x0010, 17, &udp((1, 80), 8))),
    ]);
}

#[test]
fn flags() {
    let flags = |set, clear| Test::TcpFlags(Bits { set, clear });
    check(vec![
        (flags(2, 16), tcp(2), tcp(18)),
        (flags(2, 16), tcp(2 | 64), tcp(16)),
        (flags(18, 0), tcp(18), tcp(2)),
        (flags(0, 4), tcp(16), tcp(20)),
        (Test::Established, tcp(16), tcp(2)),
        (Test::Established, tcp(4 | 2), tcp(2)),
        // The kernel only excludes the opening SYN.
        (Test::Established, tcp(1), tcp(2 | 1)),
        (
            flags(2, 16),
            fragment(0x2000, 6, &Tcp::new((1, 2), 2).bytes()),
            fragment(0x0010, 6, &Tcp::new((1, 2), 2).bytes()),
        ),
        (Test::Established, tcp(16), v4(17, &udp((1, 2), 20))),
    ]);
}

#[test]
fn fields_of_tcp() {
    let with = |change: &dyn Fn(&mut Tcp)| {
        let mut segment = Tcp::new((1024, 80), 2);
        change(&mut segment);
        v4(6, &segment.bytes())
    };
    let options = |bytes: &[u8]| with(&|segment| segment.options = bytes.to_vec());
    let bits = |set, clear| Test::TcpOptions(Bits { set, clear });
    check(vec![
        (Test::TcpSequence(1000), tcp(2), with(&|segment| segment.sequence = 1001)),
        (Test::TcpAcknowledgement(2000), tcp(2), with(&|segment| segment.acknowledgement = 2001)),
        (Test::TcpWindow(one(8192)), tcp(2), with(&|segment| segment.window = 8193)),
        (Test::TcpDataLength(Numbers::List(vec![range(1, 5)])), with(&|segment| segment.data = 5), tcp(2)),
        (
            Test::TcpDataLength(one(5)),
            v6(6, &Tcp { data: 5, ..Tcp::new((1, 2), 16) }.bytes()),
            v6(6, &Tcp::new((1, 2), 16).bytes()),
        ),
        (Test::TcpMss(Numbers::List(vec![range(1400, 1460)])), options(&[2, 4, 5, 0xb4]), options(&[2, 4, 5, 0xb5])),
        (Test::TcpMss(one(1460)), options(&[1, 1, 2, 4, 5, 0xb4]), options(&[3, 3, 7])),
        (bits(1, 0), options(&[2, 4, 5, 0xb4]), options(&[3, 3, 7])),
        (bits(2, 4), options(&[3, 3, 7]), options(&[3, 3, 7, 4, 2])),
        (bits(4, 0), options(&[5, 10, 0, 0, 0, 1, 0, 0, 0, 2]), options(&[5, 9, 0, 0, 0, 1, 0, 0, 0])),
        (bits(8, 0), options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]), options(&[1, 1, 8, 9, 0, 0, 0, 1, 0, 0, 0])),
        // What stands behind the end mark is no option.
        (bits(1, 0), options(&[2, 4, 5, 0xb4, 0]), options(&[0, 2, 4, 5, 0xb4])),
    ]);
    let mss = Test::TcpMss(one(1460));
    let ack = v4(6, &Tcp { options: vec![2, 4, 5, 0xb4], ..Tcp::new((1, 2), 16) }.bytes());
    assert!(!super::matches_in(&mss, &ack, &super::incoming()), "only a SYN has an MSS");
}

#[test]
fn icmp_types() {
    let six = |kind: usize| {
        let mut bits = [0u64; 4];
        bits[kind / 64] |= 1 << (kind % 64);
        Test::Icmp6Types(bits)
    };
    check(vec![
        (Test::IcmpTypes(1 << 8), v4(1, &icmp(8, 0)), v4(1, &icmp(0, 0))),
        (Test::IcmpTypes(1 << 31), v4(1, &icmp(31, 0)), v4(1, &icmp(63, 0))),
        (Test::IcmpTypes(1 << 8), v4(1, &icmp(8, 3)), fragment(0x0010, 1, &icmp(8, 0))),
        (six(128), v6(58, &icmp(128, 0)), v6(58, &icmp(129, 0))),
        (six(1), v6(58, &icmp(1, 4)), v4(1, &icmp(1, 4))),
    ]);
    assert!(!super::matches_in(&six(255), &v6(58, &icmp(255, 0)), &super::incoming()), "FreeBSD's types end at 201");
}
