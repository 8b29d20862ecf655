//! Every packet is accounted for: 5,000 flows from `ferrule pkt-gen` through the gateway, and what it counted against what the
//! devices and sockets of the end hosts counted, to the packet, in every way a worker can be set to work.
#![forbid(unsafe_code)]

mod gateway_common;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Sub;
use std::time::Duration;

use ferrule::lab::probe::ping::Ping;
use ferrule::lab::probe::{counters, generator};
use ferrule::lab::{GatewayRouter, Host, LabError, Topology, mac_text};
use ferrule::snapshot::Snapshot;
use gateway_common::receiver::Receiver;
use gateway_common::{Gateway, LinkCount, assert_balanced, drops, ferrule, grown, link_counts};

with_both_drivers! {
    one_worker
    two_workers
    queued_dispatch
    queued_dispatch_to_another_worker
    the_full_path_one_packet_at_a_time
    small_batches_of_a_busy_worker
    adaptive_polling_sleeps_and_wakes_at_once
    interrupts_wake_at_once
    a_clock_wakes_in_time
}

fn one_worker(driver: &str) {
    exact(driver, 1, "");
}

fn two_workers(driver: &str) {
    exact(driver, 2, "workers = 2");
}

fn queued_dispatch(driver: &str) {
    exact(driver, 1, "dispatch = \"queued\"");
}

fn queued_dispatch_to_another_worker(driver: &str) {
    exact(driver, 2, "workers = 2\ndispatch = \"queued\"");
}

fn the_full_path_one_packet_at_a_time(driver: &str) {
    exact(driver, 1, "fastforward = false");
}

fn small_batches_of_a_busy_worker(driver: &str) {
    exact(driver, 1, "poll = \"busy\"\nbatch = 3");
}

/// Flows of a run: one source port each.
const FLOWS: u16 = 5000;
/// The first source port.
const FIRST: u16 = 2000;
/// Packets of each flow.
const EACH: u32 = 2;
/// The discard port at C.
const PORT: u16 = 9;

/// What one run adds to the counts of both links.
#[derive(Debug)]
struct Links {
    a: LinkCount,
    c: LinkCount,
    snapshot: Snapshot,
}

impl Links {
    fn read(lab: &Gateway) -> Links {
        let (snapshot, [a, c]) = link_counts(lab, [("ba0", "a", "ab0"), ("bc0", "c", "cb0")]);
        Links { a, c, snapshot }
    }

    /// The counts of a link grow as one: what one end sent the other got, or it is counted as lost.
    fn assert_agree(&self, before: &Links) {
        for (name, now, then) in [("A", self.a, before.a), ("C", self.c, before.c)] {
            let grown = |count: fn(&LinkCount) -> u64| count(&now).sub(count(&then));
            let (sent, got, lost) = (grown(|l| l.peer_sent), grown(|l| l.received), grown(|l| l.lost_before));
            assert_eq!(
                sent,
                got + lost,
                "{name} sent {sent}, the gateway got {got} and its device lost {lost}; {now:?} {then:?}"
            );
            let (sent, got, lost) = (grown(|l| l.transmitted), grown(|l| l.peer_received), grown(|l| l.lost_after));
            assert_eq!(sent, got + lost, "the gateway sent {sent}, {name} got {got} and the link lost {lost}");
        }
    }

    fn drops_since(&self, before: &Links) -> BTreeMap<String, u64> {
        grown(&drops(&self.snapshot), &drops(&before.snapshot))
    }
}

/// Sends the flows once slowly, when all must arrive, and once as fast as it goes, when the losses must be told to the packet.
fn exact(driver: &str, queues: u16, engine: &str) {
    let router = GatewayRouter { engine: engine.to_string(), ..ferrule(driver) };
    let Some(lab) = Gateway::up(&["ping"], &Topology::new().queues(queues), &router) else { return };
    let [a, _, c] = lab.hosts();
    let mut before = Links::read(&lab);
    for (from, to) in lab.both("a").into_iter().zip(lab.both("c")) {
        let receiver = Receiver::start(&c, to, PORT);
        let total = u64::from(FLOWS) * u64::from(EACH);
        assert_eq!(pkt_gen(&lab, &a, (from, to), queues, total, 20_000).unwrap(), total);
        let flows = receiver.stop();
        let missing: Vec<_> = (FIRST..FIRST + FLOWS).filter(|p| flows.get(p) != Some(&EACH)).collect();
        assert!(missing.is_empty() && flows.len() == usize::from(FLOWS), "flows {missing:?} did not arrive whole");
        let after = Links::read(&lab);
        after.assert_agree(&before);
        let received = after.a.received - before.a.received;
        let transmitted = after.c.transmitted - before.c.transmitted;
        assert!(received >= total && received < total + 200, "{received} of {total} from A's side");
        assert!(transmitted >= total && transmitted < total + 200, "{transmitted} of {total} to C's side");
        let unexpected: Vec<_> =
            after.drops_since(&before).into_iter().filter(|(r, _)| r != "multicast_unwanted").collect();
        assert!(unexpected.is_empty(), "{to}: dropped {unexpected:?}");
        for (worker, then) in after.snapshot.workers.iter().zip(&before.snapshot.workers) {
            let packets = worker.packets - then.packets;
            assert!(packets > total / 10, "worker {} had {packets} of {total} packets", worker.worker);
        }
        before = after;
    }
    // As fast as it goes: now the sender, the gateway and the receiver lose packets, each where it counts them.
    generator::sink(&c, "cb0").unwrap();
    let mut before = Links::read(&lab);
    for (from, to) in lab.both("a").into_iter().zip(lab.both("c")) {
        let lost_at_sender = || counters::device(&a, "ab0").unwrap().tx_dropped;
        let lost_before = lost_at_sender();
        let total = 200_000;
        let sent = pkt_gen(&lab, &a, (from, to), queues, total, 0).unwrap();
        let after = Links::read(&lab);
        after.assert_agree(&before);
        let lost = lost_at_sender() - lost_before;
        let offered = after.a.peer_sent - before.a.peer_sent;
        assert!(
            (total..total + 200).contains(&(offered + lost)),
            "pkt-gen {sent}, A's device {offered}, lost there {lost}"
        );
        let arrived = after.c.peer_received - before.c.peer_received;
        assert!(arrived > total / 100, "only {arrived} of {total} came through");
        let drops = after.drops_since(&before);
        println!(
            "{driver}, {engine:?}, to {to}: of {total} {lost} lost at A, {arrived} at C, gateway dropped {drops:?}"
        );
        // A full ring is the only reason there is.
        let known = ["tx_full", "handover_full", "multicast_unwanted", "no_buffer"];
        assert!(drops.keys().all(|reason| known.contains(&reason.as_str())), "{drops:?}");
        before = after;
    }
}

/// `ferrule pkt-gen` in A, a thread on each core: `count` packets of all flows, `rate` a second (0: no limit). What it says it sent.
fn pkt_gen(
    lab: &Gateway,
    host: &Host,
    (from, to): (IpAddr, IpAddr),
    threads: u16,
    count: u64,
    rate: u64,
) -> Result<u64, LabError> {
    let (source, destination) = (
        format!("{}-{}", SocketAddr::new(from, FIRST), SocketAddr::new(from, FIRST + FLOWS - 1)),
        SocketAddr::new(to, PORT).to_string(),
    );
    let mac = mac_text(lab.mac("b", "ba0"));
    let family = if to.is_ipv4() { "-4" } else { "-6" };
    let (count, rate, threads) = (count.to_string(), rate.to_string(), threads.to_string());
    let words = [
        env!("CARGO_BIN_EXE_ferrule"),
        "--json",
        "pkt-gen",
        "-i",
        "packet:ab0",
        "-f",
        "tx",
        family,
        "-w",
        "0",
        "-s",
        &source,
        "-d",
        &destination,
        "-D",
        &mac,
        "-n",
        &count,
        "-R",
        &rate,
        "-p",
        &threads,
        "-a",
        "0",
        "-c",
        &threads,
    ];
    let done = host.run(&words, Duration::from_secs(60))?.success()?;
    let last = done.stdout.lines().last().unwrap_or_default();
    let report: serde_json::Value =
        serde_json::from_str(last).map_err(|e| LabError::output("ferrule pkt-gen", e, &done.stdout))?;
    let packets = report["summary"]["packets"].as_u64();
    packets.ok_or_else(|| LabError::output("ferrule pkt-gen", "no summary", &done.stdout))
}

/// User and system time of the gateway so far, in seconds.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    // proc(5): utime and stime are fields 14 and 15, in ticks of 1/100 s.
    [11, 12].iter().map(|at| fields[*at].parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Share of a core that an idle gateway takes, and the median round trip of packets that come to it asleep, in milliseconds.
fn idle_and_wake(driver: &str, poll: &str) -> Option<(f64, f64)> {
    let router = GatewayRouter { engine: poll.to_string(), ..ferrule(driver) };
    let lab = Gateway::up(&["ping"], &Topology::new(), &router)?;
    let [a, ..] = lab.hosts();
    let pid = lab.pid();
    // Until what the start left to do is done.
    std::thread::sleep(Duration::from_millis(500));
    let (start, before) = (std::time::Instant::now(), cpu_seconds(pid));
    std::thread::sleep(Duration::from_secs(2));
    let share = (cpu_seconds(pid) - before) / start.elapsed().as_secs_f64();
    let mut medians = Vec::new();
    for to in lab.both("c") {
        let report = Ping::new(to).count(9).interval_ms(130).run(&a).unwrap();
        assert!(report.is_clean(), "{report:?}");
        medians.push(report.median_ms().unwrap());
    }
    assert_balanced(&lab);
    println!("{driver}, {poll}: {:.1} % of a core when idle, round trip {medians:?} ms", share * 100.0);
    Some((share, medians.into_iter().fold(0.0, f64::max)))
}

fn adaptive_polling_sleeps_and_wakes_at_once(driver: &str) {
    let Some((adaptive, wake)) = idle_and_wake(driver, "poll = \"adaptive\"") else { return };
    assert!(adaptive < 0.03, "an idle gateway takes {:.1} % of a core", adaptive * 100.0);
    assert!(wake < 5.0, "a round trip through a sleeping gateway takes {wake} ms");
    let Some((busy, _)) = idle_and_wake(driver, "poll = \"busy\"") else { return };
    assert!(busy > 0.1, "a busy worker takes {:.1} % of a core: it sleeps", busy * 100.0);
}

fn interrupts_wake_at_once(driver: &str) {
    let Some((idle, wake)) = idle_and_wake(driver, "poll = \"interrupt\"") else { return };
    assert!(idle < 0.03, "an idle gateway takes {:.1} % of a core", idle * 100.0);
    assert!(wake < 5.0, "a round trip through a sleeping gateway takes {wake} ms");
}

fn a_clock_wakes_in_time(driver: &str) {
    let Some((idle, wake)) = idle_and_wake(driver, "poll = \"interrupt\"\nhz = 500") else { return };
    assert!(idle < 0.2, "500 looks a second take {:.1} % of a core", idle * 100.0);
    // Two looks, at most 2 ms each, and the time to get a core.
    assert!(wake < 8.0, "a round trip takes {wake} ms");
}
