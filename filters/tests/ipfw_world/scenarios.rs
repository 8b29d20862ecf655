//! The scenarios of the conformance data that are about ipfw; the number of each is in the name of its test.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrule_config::ipfw::table::{TableKey, TableValue};
use ferrule_filters::ipfw::table::AddMode;
use ferrule_filters::ipfw::testing::frame::{Tcp, V4, checksum, frame};
use ferrule_filters::ipfw::testing::gateway::{Gateway, Plan};

use super::common::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// How long ping waits for its answer.
const PING_WAIT: u64 = 10 * SECOND;

/// Lines of expectations.jsonl about pipes; None for others.
pub fn of_line(script: &str, packet: &str, commands: &[String], workers: usize) -> Option<&'static str> {
    match (script, packet) {
        ("dummynet.sh", "flood ping of 1300 bytes + 2 MB TCP echo") => Some(weights(commands, workers)),
        ("dummynet.sh", _) => Some(slow_pipe(commands, workers)),
        ("fragments.sh", _) => {
            assert!(large_ping(commands, workers, 1000), "a few fragments are put together");
            let told = large_ping(commands, workers, 20_000);
            Some(if told { "a reply" } else { "no reply: too many fragments" })
        }
        _ => None,
    }
}

/// Whether an echo request of so many bytes, in fragments of an MTU of 200, comes up to the host whole.
fn large_ping(commands: &[String], workers: usize, data: usize) -> bool {
    let mut gateway = Gateway::new(&cable(workers), &accepting(commands));
    let whole = request(data);
    let payload = &whole[34..];
    let fragments: Vec<Vec<u8>> = payload
        .chunks(176)
        .enumerate()
        .map(|(at, chunk)| {
            let more = if (at + 1) * 176 < payload.len() { 0x2000 } else { 0 };
            let header =
                V4 { fragment: more | (at * 22) as u16, ..V4::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into()) };
            // Behind the checksum of the whole, which no fragment may change.
            let mut packet = header.packet(253, chunk);
            packet[9] = 1;
            packet[10..12].fill(0);
            let sum = checksum(&[&packet[..20]]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            frame(&packet)
        })
        .collect();
    assert!(data < 12_000 || fragments.len() > 64);
    let seen = gateway.send_all(0, &fragments);
    let up: Vec<&Vec<u8>> = seen.up.iter().flatten().collect();
    let is_whole = up.len() == 1 && up[0].len() >= 34 + payload.len() && up[0][34..34 + payload.len()] == *payload;
    assert!(up.is_empty() || is_whole, "{} frames came up", up.len());
    gateway.advance(60 * SECOND);
    gateway.close();
    is_whole
}

/// Rules whose packets go to pipes that are not there: FreeBSD drops them as well.
pub fn is_shaped(commands: &[String]) -> bool {
    commands.iter().any(|command| command.starts_with("add pipe"))
}

/// One cable, as in FreeBSD's tests of dummynet.
fn cable(workers: usize) -> Plan {
    Plan::new(&[("epair0", "192.0.2.2/24")], &["192.0.2.1"]).on(workers)
}

fn request(data: usize) -> Vec<u8> {
    let header = V4::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    frame(&header.packet(1, &[&[8, 0, 0, 0, 0, 7, 0, 1][..], &vec![0x5a; data]].concat()))
}

/// Whether an echo request of so many bytes comes up, and when within the wait, in steps of 100 ms.
fn comes_up(gateway: &mut Gateway, data: usize) -> Option<u64> {
    let start = gateway.world.now();
    let mut up = gateway.send(0, &request(data)).came_up();
    while up == 0 && gateway.world.now() - start < PING_WAIT {
        up += gateway.advance(100 * MS).came_up();
    }
    (up > 0).then(|| gateway.world.now() - start)
}

/// One ping passes; after a burst another one is not through in time.
fn slow_pipe(commands: &[String], workers: usize) -> &'static str {
    let mut gateway = Gateway::new(&cable(workers), &accepting(commands));
    let took = comes_up(&mut gateway, 56).expect("one ping passes");
    assert!((2700 * MS..=2900 * MS).contains(&took), "84 bytes at 30 byte/s took {took} ns");
    for _ in 0..5 {
        gateway.send(0, &request(1200));
        gateway.advance(100 * MS);
    }
    let told = if comes_up(&mut gateway, 1200).is_none() { "dropped (queue full)" } else { "a reply" };
    assert_eq!(gateway.packets(1000), 7);
    gateway.close();
    told
}

/// Milliseconds until 2 MB of TCP are through against a ping flood; None where 3 s are not enough.
fn tcp_against_flood(commands: &[String], workers: usize) -> Option<u64> {
    const SEGMENTS: usize = 2_000_000 / 1448 + 1;
    let mut gateway = Gateway::new(&cable(workers), &accepting(commands));
    let (own, client) = ([192, 0, 2, 2].into(), [192, 0, 2, 1].into());
    let mut segment = Tcp::new((7, 4000), 16);
    segment.data = 1448;
    let segment = frame(&V4::new(own, client).packet(6, &segment.bytes()));
    let reply = frame(&V4::new(own, client).packet(1, &[&[0u8; 8][..], &[0x5a; 1300]].concat()));
    let (mut flying, mut through) = (0, 0);
    let mut took = None;
    for ms in 1..=3000 {
        for _ in 0..2 {
            gateway.send_host(0, &reply);
        }
        while flying < 20 {
            gateway.send_host(0, &segment);
            flying += 1;
        }
        let seen = gateway.advance(MS);
        let left = seen.left().filter(|frame| frame[23] == 6).count();
        (flying, through) = (flying - left, through + left);
        if through >= SEGMENTS {
            took = Some(ms);
            break;
        }
    }
    assert!(gateway.packets(1000) > 0 && gateway.packets(1001) > 0, "{}", gateway.list());
    gateway.close();
    took
}

fn weights(commands: &[String], workers: usize) -> &'static str {
    let took = tcp_against_flood(commands, workers);
    let swapped: Vec<String> = commands
        .iter()
        .map(|command| match command {
            command if command.contains("queue 100 tcp") => command.replace("queue 100 tcp", "queue 200 tcp"),
            command if command.contains("queue 200 icmp") => command.replace("queue 200 icmp", "queue 100 icmp"),
            command => command.clone(),
        })
        .collect();
    let other = tcp_against_flood(&swapped, workers);
    match (took, other) {
        (Some(_), None) => "TCP gets its 2 MB within 3 s; with the two queue numbers swapped it does not",
        other => panic!("{other:?}"),
    }
}

#[test]
fn scenario_59_queue_weights() {
    let commands = [
        "pipe 1 config bw 1MByte/s",
        "sched 1 config pipe 1 type wf2q+",
        "queue 100 config sched 1 weight 99 mask all",
        "queue 200 config sched 1 weight 1 mask all",
        "add 1000 queue 100 tcp from 192.0.2.2 to any out",
        "add 1001 queue 200 icmp from 192.0.2.2 to any out",
        "add 1002 allow ip from any to any",
    ];
    let commands: Vec<String> = commands.iter().map(|text| (*text).to_owned()).collect();
    weights(&commands, 1);
}

#[test]
fn scenario_11_source_nat() {
    let plan = Plan::new(&[("in0", "192.0.2.1/24"), ("in1", "192.0.3.1/24"), ("ext", "198.51.100.2/24")], &[]);
    let server = [198, 51, 100, 3];
    let echo = |source: [u8; 4], to: [u8; 4], kind, id: [u8; 2]| {
        frame(
            &V4::new(source.into(), to.into())
                .packet(1, &[&[kind, 0, 0, 0, id[0], id[1], 0, 1][..], &[7; 16]].concat()),
        )
    };
    for workers in [1, 2] {
        let commands = ["nat 123 config if ext", "add 1000 nat 123 all from any to any"];
        let mut gateway = Gateway::with(&plan.clone().on(workers), &commands);
        for (port, client) in [(0, [192, 0, 2, 2]), (1, [192, 0, 3, 2])] {
            // Both with the same id, which is no reason to confuse them.
            let seen = gateway.send(port, &echo(client, server, 8, [0, 42]));
            assert_eq!(seen.by(2), 1, "{}", gateway.list());
            let out = &seen.out[2][0];
            assert_eq!(out[26..30], [198, 51, 100, 2], "the source is the interface's");
            let seen = gateway.send(2, &echo(server, [198, 51, 100, 2], 0, [out[38], out[39]]));
            assert_eq!(seen.by(port), 1, "{}", gateway.list());
            let back = &seen.out[port][0];
            assert_eq!((&back[30..34], &back[38..40]), (&client[..], &[0, 42][..]));
        }
        assert_eq!(gateway.packets(1000), 8, "in and out of four packets");
        gateway.close();
    }
}

#[test]
fn scenario_61_pipes_before_nat_see_the_source_before_nat() {
    let commands = [
        "disable one_pass",
        "pipe 1 config bw 1000Byte/s mask src-ip 0xffffff00",
        "nat 1 config if em1",
        "add 100 pipe 1 ip from any to any out via em1",
        "add 200 nat 1 ip from any to any via em1",
        "add 300 allow ip from any to any",
    ];
    let mut gateway = open(&commands, 1);
    for (port, source) in [(EM0, [10, 0, 0, 2]), (EM0, [10, 0, 0, 3]), (IGB0, [192, 168, 5, 9])] {
        gateway.send(port, &with4(V4 { source: source.into(), ..v4() }));
    }
    gateway.control.ask(false).unwrap();
    gateway.world.settle();
    let status = gateway.control.answers(std::time::Duration::from_secs(5)).unwrap();
    let mut flows: Vec<u64> = status.pipes[0].flows.iter().map(|flow| flow.counters.packets).collect();
    flows.sort();
    assert_eq!(flows, [1, 2], "one flow for each /24 inside");
    let seen = gateway.advance(SECOND);
    assert_eq!(seen.by(EM1), 3);
    assert!(seen.left().all(|frame| frame[26..30] == [198, 51, 100, 2]), "all leave with the outside's address");
    assert_eq!((gateway.packets(100), gateway.packets(200)), (3, 3));
    gateway.close();
}

/// `fwd`, `nat`, `nat global`, `pipe` and `queue` (`reass` is with the expectations), each with a packet that it takes and one that it leaves.
#[test]
fn next_hops_translation_and_pipes() {
    for workers in [1, 2] {
        for pass in ["in", "out"] {
            let mut gateway = open(&[format!("add 100 fwd 192.168.5.9 udp from any to any 53 {pass}")], workers);
            gateway.answer("192.168.5.9".parse().unwrap());
            assert_eq!(gateway.send(EM0, &udp4((1, 53))).by(IGB0), 1, "{pass}: {}", gateway.list());
            assert_eq!(gateway.send(EM0, &udp4((1, 54))).by(EM1), 1);
            assert_eq!(gateway.packets(100), 1);
            gateway.close();
        }
        for nat in ["nat 7", "nat global"] {
            let rule = format!("add 100 {nat} udp from any to any 53 out");
            let mut gateway = open(&["nat 7 config if em1", &rule], workers);
            let source = |seen: ferrule_filters::ipfw::testing::Seen| seen.out[EM1][0][26..30].to_vec();
            // `nat global` asks for a state, and nobody made one.
            let expected = if nat == "nat 7" { [198, 51, 100, 2] } else { [10, 0, 0, 2] };
            assert_eq!(source(gateway.send(EM0, &udp4((1, 53)))), expected, "{nat}");
            assert_eq!(source(gateway.send(EM0, &udp4((1, 54)))), [10, 0, 0, 2]);
            assert_eq!(gateway.packets(100), 1);
            gateway.close();
        }
        for (config, action) in [("pipe 3 config delay 20", "pipe 3"), ("queue 4 config pipe 3", "queue 4")] {
            let rule = format!("add 100 {action} udp from any to any 53 out");
            let mut gateway = open(&["pipe 3 config delay 20", config, &rule], workers);
            assert_eq!(gateway.send(EM0, &udp4((1, 53))).by(EM1), 0, "{action}");
            assert_eq!(gateway.send(EM0, &udp4((1, 54))).by(EM1), 1);
            assert_eq!(gateway.advance(19 * MS).by(EM1), 0, "{action}");
            assert_eq!(gateway.advance(MS).by(EM1), 1, "{action}");
            assert_eq!(gateway.packets(100), 1);
            gateway.close();
        }
    }
}

#[test]
fn scenario_03_deny_in_and_deny_out_when_forwarding() {
    let mut gateway = open::<&str>(&[], 1);
    assert_eq!(gateway.send(EM0, &echo4()).by(EM1), 1);
    assert_eq!(gateway.send(EM0, &echo6()).by(EM1), 1);
    gateway.close();
    for (rule, counts) in
        [("add 100 deny all from any to any in", (1, 0)), ("add 100 deny all from any to any out", (1, 1))]
    {
        for workers in [1, 2] {
            let mut gateway = open(&[rule, "add 200 count ip from any to any"], workers);
            assert_eq!(gateway.send(EM0, &echo4()).left().count(), 0, "{rule}");
            assert_eq!((gateway.packets(100), gateway.packets(200)), counts, "{rule}");
            assert_eq!(gateway.send(EM0, &echo6()).left().count(), 0, "{rule}");
            gateway.close();
        }
    }
}

/// Adds, deletes and swaps while two workers look up both tables on threads of their own: no packet finds neither.
#[test]
fn scenario_63_table_swap_under_load() {
    let commands = [
        "table tb0 create type addr",
        "table tb1 create type addr",
        "table tb0 add 10.0.0.0/24 1",
        "add 100 deny ip from table(tb0) to any",
        "add 200 deny ip from table(tb1) to any",
    ];
    let mut gateway = open(&commands, 2);
    // Something that answers, so that a packet which is not denied would get out.
    assert_eq!(gateway.send(EM0, &udp4((1, 2))).by(EM1), 0);
    let frames: Vec<Vec<u8>> = (0..64).map(|port| udp4((port, 53))).collect();
    let done = AtomicBool::new(false);
    let key = |last: u8| TableKey::V4([10, 7, last, 0].into(), 24);
    let mac = gateway.world.mac(ferrule_dataplane::packet::PortId(0)).0;
    let (mut injected, mut rounds) = (0u64, 0);
    while rounds < 50 {
        let ferrule_filters::ipfw::testing::Gateway { world, tables, .. } = &mut gateway;
        for frame in &frames {
            let mut frame = frame.clone();
            frame[..6].copy_from_slice(&mac);
            for worker in 0..2 {
                let port = ferrule_dataplane::packet::PortId(0);
                assert!(world.inject_at(port, worker, &frame, ferrule_dataplane::packet::Offload::NONE));
                injected += 1;
            }
        }
        done.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for lane in world.lanes() {
                let done = &done;
                scope.spawn(move || {
                    // On once more after the last change, so that what one handed to the other is judged.
                    while !done.load(Ordering::Relaxed) {
                        lane.worker.turn();
                        std::thread::yield_now();
                    }
                });
            }
            for turn in 0..20u8 {
                let (a, b) = if turn % 2 == 0 { ("tb0", "tb1") } else { ("tb1", "tb0") };
                let entries = [(key(turn), TableValue::default()), (key(turn + 100), TableValue::default())];
                assert_eq!(tables.add(a, &entries, AddMode { update: true, ..AddMode::default() }).1, Ok(()));
                tables.swap(a, b).unwrap();
                let _ = tables.delete(b, &[key(turn)]);
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        world.settle();
        rounds += 1;
    }
    let seen = gateway.advance(1);
    assert_eq!(seen.left().count(), 0, "{}", gateway.list());
    assert_eq!(gateway.packets(100) + gateway.packets(200), injected + 1, "{}", gateway.list());
    let mut all: Vec<_> = gateway.tables.names().map(str::to_owned).collect();
    all.sort();
    assert_eq!(all, ["tb0", "tb1"]);
    gateway.close();
}
