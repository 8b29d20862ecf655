#![forbid(unsafe_code)]
//! Packets that cannot be read.

use ferrule_config::ipfw::ast::{Action, Bits, Test};

use super::{incoming, judge, setup};
use crate::ipfw::oracle::{Counter, Oracle, Outcome, Verdict};
use crate::ipfw::testing::build::{rule, rule_if};
use crate::ipfw::testing::frame::{Tcp, V4, V6, ethernet, frame, udp};
use crate::ipfw::testing::pool;

fn v4(fragment: u16, protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(&V4 { fragment, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(protocol, payload))
}

fn v6(extensions: Vec<(u8, Vec<u8>)>, protocol: u8, payload: &[u8]) -> Vec<u8> {
    frame(&V6 { extensions, ..V6::new(pool::V6[2], pool::V6[4]) }.packet(protocol, payload))
}

/// Whether the packet is dropped before any rule; else it must have been let through.
fn unread(frame: &[u8]) -> bool {
    let mut oracle = Oracle::new(setup(vec![rule(100, Action::Allow)]));
    let outcome = judge(&mut oracle, frame, &incoming());
    let dropped = outcome == Outcome::ruleless(Verdict::Deny);
    assert_eq!(oracle.counters()[0].packets, u64::from(!dropped), "no counter moves");
    assert!(dropped || outcome.verdict == Verdict::Allow);
    dropped
}

#[test]
fn headers_that_end_early() {
    let segment = Tcp::new((1, 2), 2).bytes();
    assert!(!unread(&v4(0, 6, &segment)));
    assert!(unread(&v4(0, 6, &segment[..19])));
    assert!(unread(&v4(0x2000, 6, &segment[..8])), "also of a first fragment");
    assert!(!unread(&v4(0x0010, 6, &segment[..8])), "a later one has no header");
    assert!(unread(&v4(0x0001, 6, &segment)), "RFC 3128");
    assert!(!unread(&v4(0x0001, 17, &segment)));
    assert!(unread(&v4(0, 17, &[0; 7])));
    assert!(unread(&v4(0, 132, &[0; 11])));
    assert!(unread(&v4(0, 1, &[8, 0, 0])));
    assert!(!unread(&v4(0, 47, &[])), "nothing is read of other protocols");
    assert!(unread(&v6(vec![], 6, &segment[..19])));
    assert!(unread(&v6(vec![], 58, &[128, 0, 0, 0])));
}

#[test]
fn headers_of_ipv6() {
    let data = udp((1, 2), 4);
    assert!(unread(&v6(vec![], 99, &data)), "an unknown header");
    assert!(!unread(&v6(vec![], 59, &[])));
    assert!(unread(&v6(vec![(43, vec![0, 0, 4, 0, 0, 0, 0, 0])], 17, &data)), "an unknown routing header");
    assert!(!unread(&v6(vec![(43, vec![0, 0, 2, 0, 0, 0, 0, 0])], 17, &data)));
    assert!(unread(&v6(vec![(0, vec![0, 9, 1, 4, 0, 0, 0, 0])], 17, &data)), "a header longer than the packet");
    assert!(!unread(&v6(vec![(44, vec![0, 0, 0, 8, 0, 0, 0, 1])], 99, &[])), "nothing is read of a later fragment");
    let mut setup = setup(vec![rule(100, Action::Allow)]);
    setup.settings.deny_unknown_extension_headers = false;
    assert_eq!(judge(&mut Oracle::new(setup), &v6(vec![], 99, &data), &incoming()).verdict, Verdict::Allow);
}

#[test]
fn tcp_options_that_end_early_drop_the_packet_when_a_rule_asks() {
    let mut segment = Tcp::new((1, 2), 2).bytes();
    segment[12] = 6 << 4;
    let ask = rule_if(100, Action::Count, [Test::TcpOptions(Bits { set: 1, clear: 0 })]);
    let packet = v4(0, 6, &segment);
    let mut oracle = Oracle::new(setup(vec![rule(50, Action::Count), ask, rule(200, Action::Allow)]));
    assert_eq!(judge(&mut oracle, &packet, &incoming()), Outcome::ruleless(Verdict::Deny));
    assert_eq!(oracle.counters()[0].packets, 1, "what counted before has counted");
    assert_eq!(oracle.counters()[2], Counter::default());
}

#[test]
fn lengths() {
    // Ethernet pads short frames; counters do not see it. In the link layer nothing has been checked: the header's length may be false.
    let mut oracle = Oracle::new(setup(vec![rule(100, Action::Allow)]));
    let packet = V4::new(pool::V4[2], pool::V4[4]).packet(17, &udp((1, 2), 0));
    let mut long = ethernet(pool::MACS[0], pool::MACS[1], 0x0800, &packet);
    assert_eq!(long.len(), 60);
    judge(&mut oracle, &long, &incoming());
    assert_eq!(oracle.counters()[0].bytes, 28);
    judge(&mut oracle, &long, &incoming().at_layer2());
    assert_eq!(oracle.counters()[0].bytes, 56);
    long[16..18].copy_from_slice(&9000u16.to_be_bytes());
    judge(&mut oracle, &long, &incoming().at_layer2());
    assert_eq!(oracle.counters()[0].bytes, 56 + 60);
}
