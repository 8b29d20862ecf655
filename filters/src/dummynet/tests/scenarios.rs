//! The dummynet lines of the conformance data, in virtual time.

use super::*;
use std::path::Path;

/// Whether the conformance data has this line; says so when there is none, and fails then with CI=true.
fn has(file: &str, line: &str) -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance");
    if !folder.exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no conformance data at {}", folder.display());
        println!("skipped: no conformance data");
        return false;
    }
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.contains(line), "{file} lacks {line}");
    true
}

/// How long ping waits for its answer.
const PING_WAIT: Nanos = 10 * SECOND;

#[test]
fn one_ping_passes_a_slow_pipe_and_one_behind_a_burst_does_not() {
    if !has("ipfw/expectations.jsonl", "pipe 1 config bw 30Byte/s") {
        return;
    }
    let mut sim = Sim::with(Limits::default(), Settings::default());
    sim.config(link(pipe(1, 240, 0, slots(50))));
    // Question and answer pass the pipe, 84 bytes each.
    for _ in 0..2 {
        sim.send(Target::Pipe(1), 84, 0).unwrap();
        sim.drain();
    }
    assert!(sim.now - SECOND < PING_WAIT, "{}", sim.now - SECOND);
    for _ in 0..5 {
        sim.send(Target::Pipe(1), 1228, 1).unwrap();
        sim.run_to(sim.now + 100 * MS);
    }
    let at = sim.now;
    let _ = sim.send(Target::Pipe(1), 1228, 2);
    sim.run_to(at + PING_WAIT);
    assert!(!sim.order().contains(&2), "not through in time");
    sim.drain();
    sim.check_balance();
}

/// TCP of 2 MB in one queue against a ping flood in the other; when the last byte is through, if within 3 s.
fn tcp_against_flood(tcp: u32, ping: u32) -> Option<Nanos> {
    let mut sim = Sim::with(Limits::default(), Settings::default());
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(sched(1, SchedulerKind::Wf2qPlus));
    let all = FlowMask {
        protocol: 0xff,
        source_port: 0xffff,
        destination_port: 0xffff,
        source4: u32::MAX,
        destination4: u32::MAX,
        source6: std::net::Ipv6Addr::from_bits(u128::MAX),
        destination6: std::net::Ipv6Addr::from_bits(u128::MAX),
        flow_id: 0,
        extra: 0,
    };
    sim.config(queue(100, 1, 99, QueueSettings { mask: all, ..slots(50) }));
    sim.config(queue(200, 1, 1, QueueSettings { mask: all, ..slots(50) }));
    let mut senders = [Sender::new(6, Target::Queue(tcp), 1448)];
    for ms in 1..=3000 {
        // The flood keeps its queue full.
        while sim.send(Target::Queue(ping), 1328, 1).is_ok() {}
        sim.drive(&mut senders, SECOND + ms * MS);
        if senders[0].acked * 1448 >= 2_000_000 {
            return Some(ms * MS);
        }
    }
    None
}

#[test]
fn weights_keep_tcp_alive_under_a_ping_flood_and_swapped_they_do_not() {
    if !has("scenarios.md", "**queue weights** two queues of weight 99 and 1") {
        return;
    }
    let took = tcp_against_flood(100, 200);
    assert!(took.is_some_and(|t| t < 2200 * MS), "{took:?}");
    assert_eq!(tcp_against_flood(200, 100), None);
}

#[test]
fn masks_see_the_flow_that_they_are_given() {
    // Scenario 61: which addresses those are (before NAT) is the caller's to say; flows of one /24 share a pipe.
    if !has("scenarios.md", "**dummynet before NAT**") {
        return;
    }
    let mut sim = Sim::new();
    let mask = FlowMask { source4: 0xffff_ff00, ..FlowMask::NONE };
    sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { mask, ..slots(50) })));
    for source in [0x0a00_0001, 0x0a00_0002, 0x0a00_0101] {
        sim.send(Target::Pipe(1), 1000, source).unwrap();
    }
    sim.drain();
    assert_eq!(sim.times(), [MS, MS, 2 * MS]);
    let mut flows: Vec<_> =
        sim.shaper.pipes()[0].flows.iter().map(|f| (f.flow.addresses, f.counters.packets)).collect();
    flows.sort_by_key(|f| f.1);
    let network = |source| Addresses::V4 { source, destination: 0 };
    assert_eq!(flows, [(network(0x0a00_0100), 1), (network(0x0a00_0000), 2)]);
}
