//! `fwd` in a gateway: both hooks, both families, next hops that are to be found first, table values.

mod gateway;

use std::net::IpAddr;

use ferrule_dataplane::fib::MacAddress;
use ferrule_dataplane::verdict::DropReason;
use ferrule_filters::ipfw::testing::frame::{between, udp};
use gateway::*;

const OTHER: MacAddress = MacAddress([2, 0, 0, 0, 5, 5]);

struct Case {
    host: IpAddr,
    peer: IpAddr,
    next_hop: IpAddr,
    text: &'static str,
}

fn cases() -> [Case; 2] {
    [
        Case { host: HOST.into(), peer: PEER.into(), next_hop: [192, 0, 2, 77].into(), text: "192.0.2.77" },
        Case {
            host: v6(7).into(),
            peer: peer6().into(),
            next_hop: "2001:db8:b::77".parse().unwrap(),
            text: "2001:db8:b::77",
        },
    ]
}

#[test]
fn a_rule_names_the_next_hop_at_either_hook() {
    for case in cases() {
        for hook in ["in recv lan", "out xmit wan"] {
            for workers in [1, 2] {
                let rule = format!("add 100 fwd {} ip from any to any {hook}", case.text);
                let mut gateway = Gateway::new(workers, &[&rule, "add 200 allow ip from any to any"]);
                gateway.world.table.neighbor_set(WAN, case.next_hop, Some(OTHER)).unwrap();
                let frame = between(case.host, case.peer, 17, &udp((1, 53), 20));
                let sent = gateway.send(LAN, frame.clone());
                assert_eq!(sent.len(), 1, "{hook}");
                assert_eq!(sent[0][..6], OTHER.0, "{hook}");
                let ttl = if sent[0][12] == 8 { 22 } else { 21 };
                assert_eq!(sent[0][ttl], frame[ttl] - 1, "decremented once");
                assert_eq!((gateway.count(100), gateway.count(200)), (1, 1));
                gateway.close();
            }
        }
    }
}

#[test]
fn a_next_hop_that_is_not_known_is_asked_for_and_packets_wait_in_order() {
    for case in cases() {
        for hook in ["in recv lan", "out xmit wan"] {
            let rule = format!("add 100 fwd {} ip from any to any {hook}", case.text);
            let mut gateway =
                Gateway::with(1, &[&rule, "add 200 allow ip from any to any"], |builder| builder.host([1000; 4], 64));
            for port in 1..=3 {
                assert!(gateway.send(LAN, between(case.host, case.peer, 17, &udp((port, 53), 20))).is_empty());
            }
            let asked = gateway.world.requests();
            assert!(asked.iter().all(|key| key.port == WAN && key.address == case.next_hop) && !asked.is_empty());
            assert_eq!(gateway.held(), 3);
            gateway.world.table.neighbor_set(WAN, case.next_hop, Some(OTHER)).unwrap();
            gateway.advance(MS);
            let sent = gateway.world.collect(WAN);
            let at = if sent[0][12] == 8 { 35 } else { 55 };
            assert_eq!(sent.iter().map(|frame| frame[at]).collect::<Vec<_>>(), [1, 2, 3]);
            assert!(sent.iter().all(|frame| frame[..6] == OTHER.0));
            gateway.close();
        }
    }
}

#[test]
fn a_next_hop_behind_a_gateway_goes_to_that_gateway_and_packets_for_the_box_go_on() {
    let mut gateway = Gateway::new(
        1,
        &["add 100 fwd 203.0.113.9 ip from any to any in recv lan", "add 200 allow ip from any to any"],
    );
    let sent = gateway.send(LAN, between(HOST.into(), PEER.into(), 17, &udp((1, 53), 20)));
    assert_eq!(sent[0][..6], [2, 0, 0, 0, 9, 9], "by the default route");
    let sent = gateway.send(LAN, between(HOST.into(), [10, 0, 0, 1].into(), 17, &udp((1, 53), 20)));
    assert_eq!(sent.len(), 1, "as FreeBSD's ip_input has it");
    gateway.close();
}

#[test]
fn the_next_hop_is_a_table_value_and_a_pipe_at_the_out_hook_keeps_it() {
    let mut gateway = Gateway::new(
        1,
        &[
            "pipe 1 config delay 10",
            "table hops create type addr valtype ipv4",
            "table hops add 10.0.0.7/32 192.0.2.77",
            "table hops add 10.0.0.9/32 10.0.0.1",
            "add 100 fwd tablearg ip4 from table(hops) to any in recv lan",
            "add 150 pipe 1 ip from any to any out xmit wan",
            "add 200 allow ip from any to any",
        ],
    );
    gateway.world.table.neighbor_set(WAN, [192, 0, 2, 77].into(), Some(OTHER)).unwrap();
    assert!(gateway.send(LAN, between(HOST.into(), PEER.into(), 17, &udp((1, 53), 20))).is_empty());
    gateway.advance(10 * MS);
    let sent = gateway.world.collect(WAN);
    assert_eq!((sent.len(), &sent[0][..6]), (1, &OTHER.0[..]));
    // The box itself is no next hop.
    assert!(gateway.send(LAN, between([10, 0, 0, 9].into(), PEER.into(), 17, &udp((1, 53), 20))).is_empty());
    assert_eq!(gateway.dropped(DropReason::NextHopLocal), 1);
    gateway.close();
}
