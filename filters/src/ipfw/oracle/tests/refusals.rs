#![forbid(unsafe_code)]
//! What the sender of a refused packet is told.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::Action;

use super::verdict;
use crate::ipfw::oracle::Verdict;
use crate::ipfw::testing::build::rule;
use crate::ipfw::testing::frame::{Tcp, V4, between, ethernet, frame, icmp, sctp, udp};
use crate::ipfw::testing::pool;

fn v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    between(pool::V4[2].into(), pool::V4[4].into(), protocol, payload)
}

fn v6(protocol: u8, payload: &[u8]) -> Vec<u8> {
    between(pool::V6[2].into(), pool::V6[4].into(), protocol, payload)
}

fn refused(action: Action, frame: &[u8]) -> Verdict {
    verdict(vec![rule(100, action)], frame)
}

#[test]
fn unreachable() {
    let data = udp((1, 2), 4);
    let host = Action::Unreach(1, None);
    assert_eq!(refused(host.clone(), &v4(17, &data)), Verdict::Unreach { code: 1, mtu: None });
    assert_eq!(refused(Action::Unreach(4, Some(1420)), &v4(17, &data)), Verdict::Unreach { code: 4, mtu: Some(1420) });
    for (code, code6) in
        [(0, 0), (1, 0), (2, 1), (3, 4), (4, 1), (5, 0), (6, 0), (7, 0), (9, 1), (11, 0), (12, 0), (13, 1)]
    {
        assert_eq!(refused(Action::Unreach(code, None), &v6(17, &data)), Verdict::Unreach6 { code: code6 });
    }
    assert_eq!(refused(Action::Unreach6(3), &v6(17, &data)), Verdict::Unreach6 { code: 3 });
    assert_eq!(refused(Action::Unreach6(3), &v4(17, &data)), Verdict::Deny, "unreach6 says nothing to IPv4");
}

#[test]
fn nothing_is_said_to_errors_multicasts_and_later_fragments() {
    let host = Action::Unreach(1, None);
    let told = Verdict::Unreach { code: 1, mtu: None };
    assert_eq!(refused(host.clone(), &v4(1, &icmp(8, 0))), told, "an echo request");
    assert_eq!(refused(host.clone(), &v4(1, &icmp(3, 1))), Verdict::Deny, "an error");
    assert_eq!(refused(host.clone(), &v6(58, &icmp(128, 0))), Verdict::Unreach6 { code: 0 });
    assert_eq!(refused(host.clone(), &v6(58, &icmp(1, 0))), Verdict::Deny);
    let group: IpAddr = pool::V4[7].into();
    assert_eq!(refused(host.clone(), &between(pool::V4[2].into(), group, 17, &udp((1, 2), 0))), Verdict::Deny);
    let packet = V4::new(pool::V4[2], pool::V4[4]);
    let broadcast = ethernet([0xff; 6], pool::MACS[1], 0x0800, &packet.packet(17, &udp((1, 2), 0)));
    assert_eq!(refused(host.clone(), &broadcast), Verdict::Deny);
    let fragment = |fragment| frame(&V4 { fragment, ..packet.clone() }.packet(17, &udp((1, 2), 16)));
    assert_eq!(refused(host.clone(), &fragment(0x2000)), told);
    assert_eq!(refused(host, &fragment(0x0010)), Verdict::Deny);
}

#[test]
fn reset() {
    let segment = |flags| Tcp::new((1, 2), flags).bytes();
    assert_eq!(refused(Action::Reset, &v4(6, &segment(2))), Verdict::Reset);
    assert_eq!(refused(Action::Reset, &v4(6, &segment(4))), Verdict::Deny, "no RST for a RST");
    assert_eq!(refused(Action::Reset, &v4(17, &udp((1, 2), 0))), Verdict::Deny);
    assert_eq!(refused(Action::Reset6, &v6(6, &segment(2))), Verdict::Reset);
    assert_eq!(refused(Action::Reset6, &v4(6, &segment(2))), Verdict::Deny);
    assert_eq!(refused(Action::Reset, &v6(6, &segment(2))), Verdict::Unreach6 { code: 1 });
}

#[test]
fn abort() {
    assert_eq!(refused(Action::Abort, &v4(132, &sctp((1, 2), 9, 0))), Verdict::Abort);
    assert_eq!(refused(Action::Abort, &v4(132, &sctp((1, 2), 0, 0))), Verdict::Deny, "no tag to answer with");
    assert_eq!(refused(Action::Abort, &v4(132, &sctp((1, 2), 0, 1))), Verdict::Abort, "INIT names its tag");
    assert_eq!(refused(Action::Abort, &v4(132, &sctp((1, 2), 9, 1))), Verdict::Deny, "INIT has no tag of its own");
    assert_eq!(refused(Action::Abort, &v4(132, &sctp((1, 2), 9, 6))), Verdict::Deny, "no ABORT for an ABORT");
    assert_eq!(refused(Action::Abort, &v4(6, &Tcp::new((1, 2), 2).bytes())), Verdict::Deny);
    assert_eq!(refused(Action::Abort6, &v6(132, &sctp((1, 2), 9, 0))), Verdict::Abort);
    assert_eq!(refused(Action::Abort, &v6(132, &sctp((1, 2), 9, 0))), Verdict::Unreach6 { code: 1 });
}
