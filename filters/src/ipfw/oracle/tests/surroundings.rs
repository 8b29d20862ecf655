#![forbid(unsafe_code)]
//! Tests of where a packet is and what it carries, and of tables.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::{
    Addresses, Argument, InterfaceMatch, InterfaceRole, LookupKey, MaskedMac, Numbers, OwnerKind, Side, TableValueTest,
    Test, ValueKind,
};

use super::{check, incoming, matches_in, outgoing};
use crate::ipfw::oracle::{Annotations, Oracle, Pass, Resume, Verdict};
use crate::ipfw::testing::build::{range, rule, rule_if};
use crate::ipfw::testing::frame::{Tcp, V4, between, ethernet, frame, icmp, udp};
use crate::ipfw::testing::pool;
use ferrule_config::ipfw::ast::Action;

fn from(source: impl Into<IpAddr>) -> Vec<u8> {
    let source = source.into();
    let destination: IpAddr = if source.is_ipv4() { pool::V4[4].into() } else { pool::V6[4].into() };
    between(source, destination, 17, &udp((22, 80), 4))
}

#[test]
fn directions_and_interfaces() {
    let packet = from(pool::V4[2]);
    let is = |role, wanted: InterfaceMatch| Test::Interface(role, wanted);
    let name = |name: &str| InterfaceMatch::Name(name.into());
    let (recv, xmit, via) = (InterfaceRole::Recv, InterfaceRole::Xmit, InterfaceRole::Via);
    let cases = [
        (Test::In, true, false),
        (Test::Out, false, true),
        (is(recv, name("em0")), true, true),
        (is(recv, name("em1")), false, false),
        (is(xmit, name("em1")), false, true),
        (is(xmit, name("em0")), false, false),
        (is(via, name("em0")), true, false),
        (is(via, name("em1")), false, true),
        (is(xmit, InterfaceMatch::Any), false, true),
        (is(via, InterfaceMatch::Pattern("em*".into())), true, true),
        (is(via, InterfaceMatch::Pattern("?m0".into())), true, false),
        (is(recv, InterfaceMatch::Address4(pool::V4[0])), true, true),
        (is(via, InterfaceMatch::Address4(pool::V4[1])), false, true),
        (is(recv, InterfaceMatch::Address6(pool::V6[0])), true, true),
        (is(via, InterfaceMatch::Address6(pool::V6[2])), false, false),
        (is(via, InterfaceMatch::Table("interfaces".into(), None)), true, false),
        (Test::Layer2, false, false),
        (Test::Owner(OwnerKind::Group, "wheel".into()), false, false),
        (Test::Ipsec, false, false),
        (Test::Diverted { loopback: true, output: true }, false, false),
        (Test::SocketArgument, false, false),
    ];
    for (test, inside, outside) in cases {
        assert_eq!(matches_in(&test, &packet, &incoming()), inside, "{test:?} in");
        assert_eq!(matches_in(&test, &packet, &outgoing()), outside, "{test:?} out");
    }
    let local = Pass { recv: None, ..outgoing() };
    assert!(!matches_in(&is(recv, InterfaceMatch::Any), &packet, &local), "a packet of the box came in nowhere");
}

#[test]
fn the_link_layer() {
    let packet = from(pool::V4[2]);
    let arp = ethernet([0xff; 6], pool::MACS[1], 0x0806, &[0; 28]);
    let mac = |address: [u8; 6], mask: [u8; 6]| MaskedMac { address, mask };
    let any = mac([0; 6], [0; 6]);
    let to = Test::Mac { destination: mac([2, 0, 0, 0, 0, 0], [0xff, 0xff, 0xff, 0xff, 0xff, 0]), source: any };
    let by = Test::Mac { destination: any, source: mac(pool::MACS[1], [0xff; 6]) };
    let kind = Test::MacType(vec![range(0x0806, 0x0806)]);
    let table = Test::MacTable(Side::Destination, "macs".into(), None);
    let lookup = Test::Lookup(LookupKey::Mac(Side::Destination, [0xff; 6]), "macs".into());
    let layer2 = incoming().at_layer2();
    for (test, ip, arp_too) in [
        (Test::Layer2, true, true),
        (to, true, false),
        (by, true, true),
        (kind, false, true),
        (table, true, false),
        (lookup, true, false),
    ] {
        assert_eq!(matches_in(&test, &packet, &layer2), ip, "{test:?} IP");
        assert_eq!(matches_in(&test, &arp, &layer2), arp_too, "{test:?} ARP");
        assert!(!matches_in(&test, &packet, &incoming()), "{test:?} above the link layer");
    }
    let mut setup = super::setup(vec![rule_if(100, Action::Deny, [Test::Layer2])]);
    setup.settings.layer2 = false;
    let outcome = super::judge(&mut Oracle::new(setup), &packet, &layer2);
    assert_eq!((outcome.verdict, outcome.rule), (Verdict::Allow, None), "net.link.ether.ipfw = 0");
}

#[test]
fn routes() {
    let two = |test: &Test, source: IpAddr| {
        (matches_in(test, &from(source), &incoming()), matches_in(test, &from(source), &outgoing()))
    };
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    // em0 leads to 10.0.0/24, the default route to igb0, 203.0.113/24 nowhere.
    for (text, reverse, reach, spoof) in [
        ("10.0.0.2", true, true, true),
        ("10.1.0.9", false, true, false),
        ("10.2.0.9", false, false, true),
        ("203.0.113.1", false, false, true),
        ("2001:db8::2", true, true, true),
        ("2001:db8:1::2", false, true, true),
        ("2001:db9::1", false, false, true),
        ("fe80::99", true, true, true),
    ] {
        assert_eq!(two(&Test::VerifyReversePath, address(text)), (reverse, true), "verrevpath {text}");
        assert_eq!(two(&Test::VerifySourceReach, address(text)), (reach, true), "versrcreach {text}");
        assert_eq!(two(&Test::AntiSpoof, address(text)), (spoof, true), "antispoof {text}");
    }
}

#[test]
fn what_a_packet_carries() {
    let packet = from(pool::V4[2]);
    let carries = |test: Test, annotations: &Annotations| {
        // Resumed behind a first rule, since the mark is 0 when a pass begins.
        let mut oracle = Oracle::new(super::setup(vec![rule(1, Action::Count), rule_if(100, Action::Allow, [test])]));
        let resume = Resume { after: 0, done: false };
        let mut annotations = annotations.clone();
        let now = std::time::Duration::ZERO;
        oracle.resume(&mut packet.clone(), &incoming(), &mut annotations, now, resume).verdict == Verdict::Allow
    };
    let some = Annotations { tags: [3, 70_000].into(), mark: 0x1234, fib: 2, callers: vec![] };
    let none = Annotations::default();
    for test in [
        Test::Tagged(Numbers::List(vec![range(1, 1), range(2, 3)])),
        Test::Mark(Argument::Number(0x1234), u32::MAX),
        Test::Mark(Argument::Number(0xff34), 0xff),
        Test::Fib(Argument::Number(2)),
    ] {
        assert!(carries(test.clone(), &some), "{test:?}");
        assert!(!carries(test.clone(), &none), "{test:?}");
    }
    assert!(!carries(Test::Tagged(Numbers::List(vec![range(4, 65535)])), &some));
    assert!(!carries(Test::Mark(Argument::Number(0xff34), 0xffff), &some));
}

#[test]
fn tables_of_every_kind() {
    let table = |name: &str, kind, value| Addresses::Table(name.into(), Some(TableValueTest { kind, value }));
    let source = |addresses| Test::Address(Side::Source, addresses);
    let value = pool::value(2);
    let key = |key, name: &str| Test::Lookup(key, name.into());
    let tos = |tos| frame(&V4 { tos, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(17, &udp((1, 2), 0)));
    let flow = |port| between(pool::V4[2].into(), pool::V4[4].into(), 6, &Tcp::new((77, port), 2).bytes());
    check(vec![
        (source(Addresses::Table("addresses".into(), None)), from(pool::V4[2]), from([192, 0, 2, 1])),
        (
            source(Addresses::Table("addresses".into(), None)),
            from(pool::V6[3]),
            from("2001:db9::1".parse::<IpAddr>().unwrap()),
        ),
        // The longest prefix decides: 10.0.0.2/32 has another value than 10.0/16 around it.
        (source(table("addresses", None, value.tag)), from([10, 0, 0, 3]), from([10, 0, 0, 2])),
        (source(table("addresses", Some(ValueKind::SkipTo), value.skipto)), from([10, 0, 9, 9]), from([10, 3, 0, 0])),
        (
            source(table("addresses", Some(ValueKind::Ipv4), value.ipv4.to_bits())),
            from([10, 0, 9, 9]),
            from([10, 3, 0, 0]),
        ),
        (key(LookupKey::Address(Side::Source), "addresses"), from(pool::V6[2]), from([192, 0, 2, 1])),
        (key(LookupKey::Address4(Side::Source, [255; 4].into()), "addresses"), from(pool::V4[2]), from(pool::V6[2])),
        (
            key(LookupKey::Address4(Side::Source, [10, 0xff, 0xff, 0xff].into()), "addresses"),
            from([11, 0, 0, 2]),
            from([5, 0, 0, 2]),
        ),
        (
            key(LookupKey::Address6(Side::Source, "ffff:ffff::".parse().unwrap()), "addresses"),
            from(pool::V6[4]),
            from(pool::V4[2]),
        ),
        (
            key(LookupKey::Port(Side::Destination, 0xffff), "numbers"),
            from(pool::V4[2]),
            between(pool::V4[2].into(), pool::V4[4].into(), 17, &udp((22, 81), 0)),
        ),
        (
            key(LookupKey::Port(Side::Source, 0xff), "numbers"),
            between(pool::V4[2].into(), pool::V4[4].into(), 17, &udp((0x116, 81), 0)),
            between(pool::V4[2].into(), pool::V4[4].into(), 1, &icmp(8, 0)),
        ),
        (key(LookupKey::Dscp(63), "numbers"), tos(9 << 2), tos(8 << 2)),
        (Test::FlowTable("flows".into(), None), flow(80), flow(81)),
        (
            Test::FlowTable("flows".into(), Some(TableValueTest { kind: None, value: value.tag })),
            flow(80),
            from(pool::V4[2]),
        ),
    ]);
    // The rule is number 100; the table has 22, 80 and 0.
    let packet = from(pool::V4[2]);
    for (test, hit) in [
        (key(LookupKey::RuleNumber(u32::MAX), "numbers"), false),
        (key(LookupKey::RuleNumber(0x0), "numbers"), true),
        (key(LookupKey::Mark(u32::MAX), "numbers"), true),
        (key(LookupKey::Owner(OwnerKind::Jail), "numbers"), false),
        (key(LookupKey::Address(Side::Source), "numbers"), false),
        (key(LookupKey::Address(Side::Source), "missing"), false),
    ] {
        assert_eq!(matches_in(&test, &packet, &incoming()), hit, "{test:?}");
    }
}
