//! `nat` in a gateway: both ways, `deny_in`, `one_pass`, `nat global`, table values, workers, and configuration while states are there.

mod gateway;

use std::net::{IpAddr, Ipv4Addr};

use ferrule_dataplane::verdict::DropReason;
use ferrule_filters::ipfw::testing::frame::{Tcp, between, checksum, udp};
use gateway::*;

const ALIAS: [u8; 4] = [192, 0, 2, 1];

const RULES: [&str; 3] =
    ["nat 1 config if wan deny_in", "add 100 nat 1 ip4 from any to any via wan", "add 200 allow ip from any to any"];

fn addresses(frame: &[u8]) -> ([u8; 4], [u8; 4]) {
    (frame[26..30].try_into().unwrap(), frame[30..34].try_into().unwrap())
}

fn ports(frame: &[u8]) -> (u16, u16) {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (word(34), word(36))
}

/// Both checksums of an IPv4 packet of TCP or UDP.
fn assert_sums(frame: &[u8]) {
    assert_eq!(checksum(&[&frame[14..34]]), 0);
    let length = (frame.len() - 34) as u16;
    let pseudo = [&frame[26..34], &[0, frame[23]], &length.to_be_bytes()].concat();
    assert_eq!(checksum(&[&pseudo, &frame[34..]]), 0);
}

fn out(port: u16) -> Vec<u8> {
    between(HOST.into(), PEER.into(), 17, &udp((port, 53), 20))
}

fn answer(to: (u16, [u8; 4])) -> Vec<u8> {
    between(PEER.into(), IpAddr::from(to.1), 17, &udp((53, to.0), 20))
}

#[test]
fn a_flow_goes_out_and_its_answer_comes_in() {
    for one_pass in [0, 1] {
        let mut gateway = Gateway::new(1, &RULES);
        gateway.run(&[&format!("sysctl net.inet.ip.fw.one_pass={one_pass}")]);
        let sent = gateway.send(LAN, out(1000));
        assert_eq!(addresses(&sent[0]), (ALIAS, PEER));
        assert_sums(&sent[0]);
        let back = gateway.send(WAN, answer((ports(&sent[0]).0, ALIAS)));
        assert_eq!((addresses(&back[0]), ports(&back[0])), ((PEER, HOST), (53, 1000)));
        assert_sums(&back[0]);
        // The In hook of the LAN and the Out hook of the LAN; without one_pass those of NAT go on to the rule, too.
        assert_eq!((gateway.count(100), gateway.count(200)), (2, if one_pass == 1 { 2 } else { 4 }));
        // Nobody asked for this one.
        assert!(gateway.send(WAN, answer((1, ALIAS))).is_empty());
        assert_eq!(gateway.dropped(DropReason::NatDenied), 1);
        let status = gateway.status(true);
        assert_eq!((status.nats[0].number, status.nats[0].address), (1, Some(Ipv4Addr::from(ALIAS))));
        assert_eq!((status.nats[0].links.udp, status.nats[0].states.len()), (1, 1));
        assert_eq!((status.nats[0].counters.translated_out, status.nats[0].counters.translated_in), (1, 1));
        gateway.close();
    }
}

#[test]
fn ipv6_and_an_instance_that_is_not_there_are_denied() {
    let mut gateway = Gateway::new(1, &["add 100 nat 7 ip from any to any", "add 200 allow ip from any to any"]);
    assert!(gateway.send(LAN, out(1)).is_empty());
    assert_eq!(gateway.dropped(DropReason::Filter), 1);
    gateway.run(&["nat 7 config ip 192.0.2.1"]);
    assert_eq!(gateway.send(LAN, out(1)).len(), 1);
    assert!(gateway.send(LAN, between(v6(7).into(), peer6().into(), 17, &udp((1, 53), 20))).is_empty());
    assert_eq!(gateway.dropped(DropReason::Filter), 2, "as FreeBSD's ipfw_nat has it");
    gateway.run(&["nat 7 delete"]);
    assert!(gateway.send(LAN, out(1)).is_empty());
    gateway.close();
}

#[test]
fn the_instance_is_a_table_value_and_nat_global_finds_the_flow() {
    let mut gateway = Gateway::new(
        1,
        &[
            "nat 5 config ip 192.0.2.55",
            "nat 6 config ip 192.0.2.66",
            "table lans create type addr valtype nat",
            "table lans add 10.0.0.7/32 5",
            "table lans add 10.0.0.8/32 6",
            "add 50 nat global ip4 from any to any out xmit wan dst-port 53",
            "add 100 nat tablearg ip4 from table(lans) to any out xmit wan",
            "add 200 allow ip from any to any",
            "sysctl net.inet.ip.fw.one_pass=1",
        ],
    );
    let to = |host: [u8; 4], port| between(host.into(), PEER.into(), 17, &udp((2000, port), 20));
    // Another port than 53: by the table.
    let sent = gateway.send(LAN, to(HOST, 99));
    assert_eq!(addresses(&sent[0]).0, [192, 0, 2, 55]);
    let sent = gateway.send(LAN, to([10, 0, 0, 8], 99));
    assert_eq!(addresses(&sent[0]).0, [192, 0, 2, 66]);
    // `nat global` knows no such flow, and with one_pass that is the end of it.
    let sent = gateway.send(LAN, to(HOST, 53));
    assert_eq!(addresses(&sent[0]).0, HOST);
    gateway.run(&["sysctl net.inet.ip.fw.one_pass=0"]);
    let sent = gateway.send(LAN, to(HOST, 53));
    assert_eq!(addresses(&sent[0]).0, [192, 0, 2, 55]);
    gateway.run(&["sysctl net.inet.ip.fw.one_pass=1"]);
    let sent = gateway.send(LAN, to(HOST, 53));
    assert_eq!(addresses(&sent[0]).0, [192, 0, 2, 55], "now it is known");
    gateway.close();
}

#[test]
fn answers_find_the_worker_that_has_the_state() {
    for redirect in [false, true] {
        let mut gateway = Gateway::new(
            2,
            &[
                "nat 1 config ip 192.0.2.1 deny_in same_ports redirect_port tcp 10.0.0.7:80 8080",
                "add 100 nat 1 ip4 from any to any via wan",
                "add 150 check-state",
                "add 160 allow ip from any to any keep-state",
                "sysctl net.inet.ip.fw.one_pass=0",
            ],
        );
        for port in 3000..3040u16 {
            let worker = usize::from(port % 2);
            if redirect {
                let syn = between(PEER.into(), ALIAS.into(), 6, &Tcp::new((port, 8080), 2).bytes());
                let inward = gateway.send_at(WAN, worker, syn);
                assert_eq!((addresses(&inward[0]).1, ports(&inward[0]).1), (HOST, 80));
                let ack = between(HOST.into(), PEER.into(), 6, &Tcp::new((80, port), 18).bytes());
                let outward = gateway.send_at(LAN, 1 - worker, ack);
                assert_eq!((addresses(&outward[0]).0, ports(&outward[0]).0), (ALIAS, 8080));
                assert_sums(&outward[0]);
            } else {
                let sent = gateway.send_at(LAN, worker, out(port));
                assert_eq!((addresses(&sent[0]).0, ports(&sent[0]).0), (ALIAS, port), "same_ports");
                let back = gateway.send_at(WAN, 1 - worker, answer((port, ALIAS)));
                assert_eq!((addresses(&back[0]).1, ports(&back[0]).1), (HOST, port));
            }
        }
        let status = gateway.status(false);
        assert_eq!(status.nats[0].links.total(), 40);
        assert_eq!(gateway.dropped(DropReason::NatDenied), 0);
        gateway.close();
    }
}

#[test]
fn another_configuration_keeps_the_states() {
    let mut gateway = Gateway::new(1, &RULES);
    let sent = gateway.send(LAN, out(1000));
    gateway.run(&["nat 1 config if wan same_ports"]);
    let back = gateway.send(WAN, answer((ports(&sent[0]).0, ALIAS)));
    assert_eq!(ports(&back[0]), (53, 1000));
    let sent = gateway.send(LAN, out(1001));
    assert_eq!(ports(&sent[0]).0, 1001, "the new configuration holds");
    gateway.close();
}

#[test]
fn a_pipe_in_front_of_nat_sees_the_inside_address() {
    // dummynet before NAT: flows are keyed by the source as it was.
    let mut gateway = Gateway::new(
        1,
        &[
            "sysctl net.inet.ip.fw.one_pass=0",
            "pipe 1 config bw 8Mbit/s mask src-ip 0xffffffff",
            "nat 1 config ip 192.0.2.1",
            "add 90 pipe 1 ip4 from any to any out xmit wan",
            "add 100 nat 1 ip4 from any to any via wan",
            "add 200 allow ip from any to any",
        ],
    );
    for host in [[10, 0, 0, 7], [10, 0, 0, 8]] {
        assert!(gateway.send(LAN, between(host.into(), PEER.into(), 17, &udp((9, 53), 772))).is_empty());
    }
    gateway.advance(MS * 8 / 10);
    let sent = gateway.world.collect(WAN);
    assert_eq!(sent.len(), 2, "a link for each inside host");
    assert!(sent.iter().all(|frame| addresses(frame).0 == ALIAS));
    assert_eq!(gateway.status(false).pipes[0].flows.len(), 2);
    gateway.close();
}
