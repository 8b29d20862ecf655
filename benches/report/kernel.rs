//! What depends on the kernel: packets per second over veth beside other forwarders, a flood to the box itself, TCP.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use ferrule::control::Client;
use ferrule::failure::Failure;
use ferrule::lab::probe::iperf::Iperf;
use ferrule::lab::probe::live::Offer;
use ferrule::lab::{GatewayRouter, Lab, Offloads, Router, Topology, tools};

use crate::bench::Bench;
use crate::routers::{self, Contender, failure};
use crate::rows::{Row, Samples, Section, Target};
use crate::traffic;

/// Rounds over all routers.
const ROUNDS: usize = 5;

/// Packets a second over veth.
pub fn packets(bench: &Bench) -> Vec<Section> {
    let mut section = Section::new(
        "Packets per second over veth",
        "A - B - C over veth pairs, smallest UDP frames, one flow. A's kernel makes the frames (BPF_PROG_RUN, live frames) on one core and \
         does B's receive softirq there; the router has the other core, where its transmit and C's reception (XDP_DROP) run too. Each \
         router is started anew in every round and counts by the best of five offered loads (0.8, 1.2, 1.6, 2.4 Mpps, unlimited), at C's device.",
    );
    let mut flood = Section::new(
        "A flood to the box itself",
        "The same lab: A sends frames for C at half of what the router can forward, alone and with a flood to an address of B beside them.",
    );
    if bench.other.is_none() {
        section.rows.push(Row::skipped("packets per second", "needs two cores"));
        return vec![section];
    }
    let examples = routers::build_examples();
    section.add("AF_XDP, AF_PACKET", |rows| contest(bench, &examples, rows));
    for driver in ["xdp", "packet"] {
        flood.add(&format!("flood, driver {driver}"), |rows| flooded(bench, driver, &examples, rows));
    }
    vec![section, flood]
}

const CONTENDERS: [Contender; 7] = [
    Contender::Ferrule("xdp"),
    Contender::Example("xdp_min"),
    Contender::Testpmd("net_af_xdp"),
    Contender::Ferrule("packet"),
    Contender::Example("packet_min"),
    Contender::Testpmd("net_af_packet"),
    Contender::Kernel,
];

/// A round: what each contender reached, packets a second, or why it did not; and Ferrule's cycles per packet by node over AF_XDP.
struct Contest {
    reached: Vec<Result<f64, String>>,
    nodes: Vec<(String, f64)>,
}

fn contest(bench: &Bench, examples: &Result<PathBuf, String>, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let mut out: Vec<Option<String>> = CONTENDERS.iter().map(|c| c.obstacle(examples)).collect();
    let samples = bench.take("packets per second", bench.size(ROUNDS, 1), || {
        let mut round = Contest { reached: Vec::new(), nodes: Vec::new() };
        for (contender, out) in CONTENDERS.iter().zip(&mut out) {
            let reached = match out {
                Some(why) => Err(why.clone()),
                None => one(bench, *contender, examples, &mut round.nodes).map_err(|e| e.to_string()),
            };
            // What failed once is not tried again: it takes its time to fail.
            *out = reached.as_ref().err().cloned();
            round.reached.push(reached);
        }
        Ok(round)
    })?;
    for (i, contender) in CONTENDERS.iter().enumerate() {
        let figures: Vec<f64> =
            samples.kept.iter().filter_map(|round| round.reached[i].as_ref().ok()).copied().collect();
        let why = samples.kept.iter().find_map(|round| round.reached[i].as_ref().err());
        rows.push(match (figures.is_empty(), why) {
            (true, why) => Row::skipped(contender.name(), why.map_or("no round", String::as_str)),
            (false, why) => {
                let thousands: Vec<f64> = figures.iter().map(|pps| pps / 1e3).collect();
                let row = Row::new(contender.name(), "kpps", &thousands).samples(&samples);
                if let Some(why) = why { row.note(format!("failed in a round: {why}")) } else { row }
            }
        });
    }
    ratio(&samples, (0, 1), Some(Target::AtLeast(0.95)), rows);
    ratio(&samples, (0, 2), Some(Target::AtLeast(0.95)), rows);
    ratio(&samples, (3, 5), Some(Target::AtLeast(1.0)), rows);
    ratio(&samples, (3, 4), None, rows);
    ratio(&samples, (0, 6), None, rows);
    shares(&samples, rows);
    Ok(())
}

/// Ratio of two contenders, round by round.
fn ratio(samples: &Samples<Contest>, (ours, theirs): (usize, usize), target: Option<Target>, rows: &mut Vec<Row>) {
    let name = format!("{} / {}", CONTENDERS[ours].name(), CONTENDERS[theirs].name());
    let pair = |round: &Contest| Some(round.reached[ours].as_ref().ok()? / round.reached[theirs].as_ref().ok()?);
    let figures: Vec<f64> = samples.kept.iter().filter_map(pair).collect();
    let mut row = if figures.is_empty() {
        Row::skipped(name, "one of the two did not run")
    } else {
        Row::new(name, "x", &figures).samples(samples)
    };
    row.target = target;
    rows.push(row);
}

/// Ferrule's own share of the cycles over AF_XDP: the kernel's copy-mode transmit is in the node tx.
fn shares(samples: &Samples<Contest>, rows: &mut Vec<Row>) {
    const TRANSMIT: &str = "tx";
    let known = |round: &&Contest| !round.nodes.is_empty();
    let rounds: Vec<&Contest> = samples.kept.iter().filter(known).collect();
    let cycles = |round: &Contest, wanted: &dyn Fn(&str) -> bool| -> f64 {
        round.nodes.iter().filter(|(name, _)| wanted(name)).map(|(_, cycles)| cycles).sum()
    };
    let mut row = |name: &str, unit, figure: &dyn Fn(&Contest) -> f64| {
        let figures: Vec<f64> = rounds.iter().map(|round| figure(round)).collect();
        rows.push(if figures.is_empty() {
            Row::skipped(name, "ferrule over AF_XDP did not run")
        } else {
            Row::new(name, unit, &figures).samples(samples)
        });
    };
    row("ferrule over AF_XDP, its own cycles: all nodes but tx", "cycles", &|r| cycles(r, &|name| name != TRANSMIT));
    row("ferrule over AF_XDP, tx: with the kernel's copy-mode transmit", "cycles", &|r| cycles(r, &|n| n == TRANSMIT));
    row("ferrule over AF_XDP, its own share of the cycles", "%", &|r| {
        100.0 * cycles(r, &|name| name != TRANSMIT) / cycles(r, &|_| true)
    });
}

fn one(
    bench: &Bench,
    contender: Contender,
    examples: &Result<PathBuf, String>,
    nodes: &mut Vec<(String, f64)>,
) -> Result<f64, Failure> {
    ferrule::compare::progress(&format!("packets per second: {}", contender.name()));
    let lab = contender.up(bench, examples).map_err(failure)?;
    let best = traffic::best(bench, &lab).map_err(failure)?;
    if contender == Contender::Ferrule("xdp") {
        let snapshot = Client::connect(GatewayRouter::socket(&lab))?.snapshot()?;
        let rows = snapshot.workers.iter().flat_map(|worker| &worker.nodes).filter(|node| node.packets > 0);
        nodes.extend(rows.map(|node| (node.name.clone(), node.cycles as f64 / node.packets as f64)));
    }
    if best < 1.0 { Err(Failure::runtime("nothing came through")) } else { Ok(best) }
}

/// The flood's rate: what a sender of ours reaches over veth (pkt-gen over AF_XDP, ../shared/LAB.md), packets a second.
const FLOOD: u64 = 1_600_000;

fn flooded(
    bench: &Bench,
    driver: &'static str,
    examples: &Result<PathBuf, String>,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    let contender = Contender::Ferrule(driver);
    if let Some(why) = contender.obstacle(examples) {
        return Err(Failure::runtime(why));
    }
    let lab = contender.up(bench, examples).map_err(failure)?;
    let own = lab.ports()[0].networks[0].ip();
    let (forwarded, to_box) = (traffic::frame(&lab, lab.v4("c").into()), traffic::frame(&lab, own));
    let half = (traffic::best(bench, &lab).map_err(failure)? / 2.0) as u64;
    let traffic = Offer { frame: &forwarded, rate: Some(half.max(1)) };
    let flood = Offer { frame: &to_box, rate: Some(FLOOD) };
    let samples = bench.take(&format!("flood, driver {driver}"), bench.size(ROUNDS, 1), || {
        let alone = traffic::offer(bench, &lab, &[traffic]).map_err(failure)?.received_pps();
        Ok([alone, traffic::offer(bench, &lab, &[traffic, flood]).map_err(failure)?.received_pps()])
    })?;
    let row = |name: &str, unit, figure: fn(&[f64; 2]) -> f64| {
        Row::new(format!("{name}, driver {driver}"), unit, &samples.each(figure)).samples(&samples)
    };
    rows.push(row("forwarded alone", "kpps", |s| s[0] / 1e3));
    rows.push(row("forwarded beside a flood to the box", "kpps", |s| s[1] / 1e3).note("flood: 1.6 Mpps offered"));
    rows.push(row("beside a flood / alone", "x", |s| s[1] / s[0]).target(Target::AtLeast(0.9)));
    Ok(())
}

/// TCP through the gateway over AF_PACKET beside the kernel's router.
pub fn tcp(bench: &Bench) -> Section {
    let mut section = Section::new(
        "TCP through the gateway",
        "iperf3, one stream from A to C, MTU 1500, IPv4, a lab of its own for each transfer. With offloads the end hosts send super-packets \
         and leave checksums to the device; `offload = true` carries both through whole.",
    );
    section.add("TCP", |rows| transfers(bench, rows));
    section
}

fn transfers(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    if let Some(obstacle) = tools::obstacle(&["iperf3"]) {
        return Err(failure(obstacle));
    }
    let routers: [(&str, Offloads, Box<dyn Router>); 4] = [
        ("the kernel's router, offloads on", Offloads::On, routers::kernel()),
        ("ferrule, driver packet, offload = true", Offloads::On, routers::over_packet(true)),
        ("the kernel's router, offloads off", Offloads::Off, routers::kernel()),
        ("ferrule, driver packet", Offloads::Off, routers::over_packet(false)),
    ];
    let seconds = bench.size(2, 1) as u32;
    let samples = bench.take("TCP", bench.size(ROUNDS, 1), || {
        let transfer = |(name, offloads, router): &(&str, Offloads, Box<dyn Router>)| {
            ferrule::compare::progress(&format!("TCP: {name}"));
            let lab = Lab::up(&Topology::new().without_ipv6().offloads(*offloads), &**router).map_err(failure)?;
            let (a, c) = (lab.host("a").map_err(failure)?, lab.host("c").map_err(failure)?);
            let report = Iperf::tcp(lab.v4("c")).seconds(seconds).run(&a, &c).map_err(failure)?;
            Ok(report.bits_per_second / 1e9)
        };
        routers.iter().map(transfer).collect::<Result<Vec<f64>, Failure>>()
    })?;
    for (i, (name, ..)) in routers.iter().enumerate() {
        rows.push(Row::new(*name, "Gbit/s", &samples.each(|s| s[i])).samples(&samples));
    }
    let row = |name: &str, ours: usize, theirs: usize, limit: f64| {
        let figures = samples.each(|s| s[ours] / s[theirs]);
        Row::new(name, "x", &figures).samples(&samples).target(Target::AtLeast(limit))
    };
    rows.push(row("with offloads, ferrule / kernel", 1, 0, 0.4));
    rows.push(row("without offloads, ferrule / kernel", 3, 2, 0.9));
    Ok(())
}
