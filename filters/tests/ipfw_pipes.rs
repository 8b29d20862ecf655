//! `pipe` and `queue` in a gateway: delay, rate, both hooks, `one_pass`, workers, and configuration while packets are held.

mod gateway;

use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::verdict::DropReason;
use ferrule_filters::ipfw::testing::frame::{between, udp};
use gateway::*;

fn packet(port: u16, data: usize) -> Vec<u8> {
    between(HOST.into(), PEER.into(), 17, &udp((port, 53), data))
}

fn packet6(port: u16, data: usize) -> Vec<u8> {
    between(v6(7).into(), peer6().into(), 17, &udp((port, 53), data))
}

#[test]
fn a_pipe_delays_packets_of_both_families_at_both_hooks() {
    for (hook, frame) in
        [("in", packet(1, 20)), ("out", packet(1, 20)), ("in", packet6(1, 20)), ("out", packet6(1, 20))]
    {
        let pipe = format!("add 100 pipe 1 ip from any to any {hook} via {}", if hook == "in" { "lan" } else { "wan" });
        let mut gateway = Gateway::new(1, &["pipe 1 config delay 50", &pipe, "add 200 allow ip from any to any"]);
        assert!(gateway.send(LAN, frame.clone()).is_empty());
        assert_eq!(gateway.held(), 1);
        gateway.advance(50 * MS - 1);
        assert!(gateway.world.collect(WAN).is_empty());
        gateway.advance(1);
        let sent = gateway.world.collect(WAN);
        assert_eq!((sent.len(), gateway.held()), (1, 0), "{hook}");
        // One pass: the rule behind counts the other hook only.
        assert_eq!((gateway.count(100), gateway.count(200)), (1, 1), "{hook}");
        let ttl = if frame[12] == 8 { 22 } else { 21 };
        assert_eq!(sent[0][ttl], frame[ttl] - 1, "decremented once");
        gateway.close();
    }
}

#[test]
fn a_pipe_keeps_its_rate_and_counts_what_its_queue_has_no_room_for() {
    // 800 bytes of IP at 8 Mbit/s: a packet each 0.8 ms.
    let mut gateway = Gateway::new(
        1,
        &[
            "pipe 1 config bw 8Mbit/s queue 10",
            "add 100 pipe 1 ip from any to any in",
            "add 200 allow ip from any to any",
        ],
    );
    for port in 0..20 {
        assert!(gateway.send(LAN, packet(port, 800 - 28)).is_empty());
    }
    // One is on the link and ten wait.
    assert_eq!(gateway.dropped(DropReason::PipeFull), 9);
    for port in 0..11u16 {
        gateway.advance(MS * 8 / 10);
        let sent = gateway.world.collect(WAN);
        assert_eq!(sent.len(), 1, "packet {port}");
        assert_eq!(sent[0][34..36], port.to_be_bytes(), "in order");
    }
    let status = gateway.status(false);
    let pipe = &status.pipes[0];
    assert_eq!((pipe.number, pipe.flows[0].counters.packets, pipe.flows[0].counters.drops), (1, 20, 9));
    assert_eq!((status.totals.offered, status.totals.passed, status.held), (20, 11, 0));
    gateway.close();
}

#[test]
fn without_one_pass_the_search_goes_on_behind_the_rule() {
    for (hook, port) in [("in", "recv lan"), ("out", "xmit wan")] {
        let mut gateway = Gateway::new(
            1,
            &[
                "sysctl net.inet.ip.fw.one_pass=0",
                "pipe 1 config delay 10",
                "pipe 2 config delay 5",
                &format!("add 100 pipe 1 tag 7 ip from any to any {hook} {port}"),
                &format!("add 150 pipe 2 ip from any to any {hook} {port} tagged 7"),
                "add 160 count ip from any to any tagged 7",
                "add 170 deny ip from any to any dst-port 99",
                "add 200 allow ip from any to any",
            ],
        );
        assert!(gateway.send(LAN, packet(1, 20)).is_empty());
        gateway.advance(10 * MS);
        assert!(gateway.world.collect(WAN).is_empty());
        assert_eq!((gateway.count(150), gateway.held()), (1, 1), "from one pipe into the next");
        gateway.advance(5 * MS);
        assert_eq!(gateway.world.collect(WAN).len(), 1, "{hook}");
        let passes = if hook == "in" { 2 } else { 1 };
        assert_eq!((gateway.count(100), gateway.count(160), gateway.count(200)), (1, passes, 2), "{hook}");
        // What is refused behind the pipe ends there.
        let refused = between(HOST.into(), PEER.into(), 17, &udp((1, 99), 20));
        if hook == "in" {
            assert!(gateway.send(LAN, refused).is_empty());
            gateway.advance(10 * MS);
            gateway.advance(5 * MS);
            assert_eq!((gateway.dropped(DropReason::Filter), gateway.held()), (1, 0));
        }
        gateway.close();
    }
}

#[test]
fn a_pipe_that_is_not_there_drops_and_says_so() {
    let mut gateway = Gateway::new(1, &["add 100 pipe 5 ip from any to any"]);
    assert!(gateway.send(LAN, packet(1, 20)).is_empty());
    gateway.run(&["pipe 6 config delay 1"]);
    assert!(gateway.send(LAN, packet(1, 20)).is_empty());
    assert_eq!(gateway.dropped(DropReason::PipeMissing), 2);
    gateway.close();
}

#[test]
fn two_workers_share_one_pipe_and_packets_come_home() {
    // Pipe 2 is worker 0's, pipe 3 worker 1's.
    for pipe in [2, 3] {
        for one_pass in [0, 1] {
            let mut gateway = Gateway::new(
                2,
                &[
                    &format!("sysctl net.inet.ip.fw.one_pass={one_pass}"),
                    &format!("pipe {pipe} config bw 8Mbit/s queue 100"),
                    &format!("add 100 pipe {pipe} ip from any to any in recv lan"),
                    "add 150 allow ip from any to any out keep-state",
                    "add 200 allow ip from any to any",
                ],
            );
            for port in 0..40 {
                assert!(gateway.send_at(LAN, usize::from(port % 2), packet(port, 800 - 28)).is_empty());
            }
            assert_eq!(gateway.held(), 40);
            let mut passed = 0;
            for _ in 0..40 {
                gateway.advance(MS * 8 / 10);
                let sent = gateway.world.collect(WAN).len();
                assert!(sent <= 2, "the rate is that of the one pipe: {sent}");
                passed += sent;
            }
            gateway.advance(MS);
            passed += gateway.world.collect(WAN).len();
            assert_eq!((passed, gateway.held()), (40, 0), "pipe {pipe}");
            let status = gateway.status(false);
            assert_eq!(
                status.pipes.iter().map(|pipe| pipe.number).collect::<Vec<_>>(),
                [pipe],
                "told by its owner alone"
            );
            assert_eq!((status.totals.offered, status.totals.passed), (40, 40));
            gateway.close();
        }
    }
}

#[test]
fn configuration_loses_no_held_packet_and_deletion_counts_them() {
    for workers in [1, 2] {
        let mut gateway = Gateway::new(
            workers,
            &[
                "pipe 1 config bw 8Mbit/s queue 50",
                "add 100 pipe 1 ip from any to any in",
                "add 200 allow ip from any to any",
            ],
        );
        for port in 0..20 {
            assert!(gateway.send(LAN, packet(port, 800 - 28)).is_empty());
        }
        gateway.run(&["pipe 1 config bw 80Mbit/s queue 50", "pipe 7 config delay 1"]);
        gateway.rest();
        assert_eq!(gateway.held(), 20);
        gateway.advance(3 * MS);
        assert_eq!(gateway.world.collect(WAN).len(), 20);
        // New rules while packets are held: they go on behind the place of their rule.
        gateway.run(&["sysctl net.inet.ip.fw.one_pass=0", "pipe 1 config delay 10"]);
        assert!(gateway.send(LAN, packet(1, 20)).is_empty());
        gateway.run(&["add 90 count ip from any to any", "add 110 count ip from any to any"]);
        gateway.advance(10 * MS);
        assert_eq!(gateway.world.collect(WAN).len(), 1);
        // The Out hook counts both, and In the one behind.
        assert_eq!((gateway.count(90), gateway.count(110)), (1, 2));
        assert!(gateway.send(LAN, packet(1, 20)).is_empty());
        gateway.run(&["pipe 1 delete"]);
        gateway.rest();
        assert_eq!((gateway.dropped(DropReason::PipeDeleted), gateway.held()), (1, 0));
        gateway.close();
    }
}

#[test]
fn what_is_held_at_the_end_is_given_up() {
    for workers in [1, 2] {
        let mut gateway = Gateway::new(workers, &["pipe 1 config delay 1000", "add 100 pipe 1 ip from any to any"]);
        for port in 0..10 {
            assert!(gateway.send_at(LAN, 0, packet(port, 20)).is_empty());
        }
        assert_eq!(gateway.held(), 10);
        let closed = gateway.world.close();
        assert!(closed.is_exact(), "{closed:?}");
        assert_eq!(gateway.dropped(DropReason::Shutdown), 10);
    }
}

#[test]
fn queues_share_a_pipe_by_weight() {
    let mut gateway = Gateway::new(
        1,
        &[
            "pipe 1 config bw 8Mbit/s",
            "queue 1 config pipe 1 weight 3 queue 100",
            "queue 2 config pipe 1 weight 1 queue 100",
            "add 100 queue 1 ip from any to any src-port 1 in",
            "add 110 queue 2 ip from any to any src-port 2 in",
            "add 200 allow ip from any to any",
        ],
    );
    for _ in 0..60 {
        for port in [1, 2] {
            let mut frame = packet(port, 800 - 28);
            frame[..6].copy_from_slice(&gateway.world.mac(PortId(0)).0);
            assert!(gateway.world.inject(LAN, &frame));
        }
    }
    gateway.rest();
    gateway.advance(40 * MS * 8 / 10);
    let sent = gateway.world.collect(WAN);
    let heavy = sent.iter().filter(|frame| frame[35] == 1).count();
    assert!(sent.len() >= 39 && (28..=32).contains(&heavy), "{heavy} of {}", sent.len());
    gateway.close();
}
