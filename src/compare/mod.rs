//! `ferrule compare`: what forwarding, and each filter stage, costs on this machine, without root and without a NIC.
//!
//! Generator, gateway and sink take turns on one core over memory ports; only the worker's turns are timed. A run is many rounds of the
//! classic flow set, and gives the median of its rounds; a row gives median, smallest and largest of its runs. Runs of the rows
//! alternate, so that what the machine does meanwhile meets all of them.

#![forbid(unsafe_code)]

pub mod control;
pub mod flows;
pub mod machine;
pub mod rig;
mod table;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use ferrule_dataplane::arena::Pages;
use ferrule_dataplane::clock;
use ferrule_dataplane::counters::NODES;
use serde::Serialize;

use crate::cli::commands::{emit, emit_json};
use crate::cli::{Common, CompareArgs};
use crate::failure::Failure;
use crate::ministat::Series;
use control::Control;
use flows::{Family, write_frame};
use rig::{Rig, RigPlan};

/// Packets of a run unless asked otherwise; without optimisation less, since it takes ten times as long.
const PACKETS: u64 = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };
/// The control loop runs once every so many rounds.
const CONTROL_EVERY: u64 = 32;
/// Rounds before the first that counts: caches, branch predictors and the clock's frequency settle.
const WARM_UP: u64 = 50;
/// Nodes of the path that the table shows on their own.
const SHOWN: [(usize, &str); 4] = [(0, "rx"), (1, "parse"), (2, "forward"), (3, "tx")];

/// A row of the comparison, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `forwarding`, and the filter sets once they are built.
    pub set: String,
    /// `inet` or `inet6`.
    pub family: String,
    /// Packets a second of the worker's own time, median of the runs.
    pub median_pps: f64,
    /// Of the slowest run.
    pub min_pps: f64,
    /// Of the fastest run.
    pub max_pps: f64,
    /// TSC cycles of the worker per packet, median of the runs.
    pub cycles_per_packet: f64,
    /// This row's packets a second in proportion to plain forwarding of the same family.
    pub ratio_to_forwarding: f64,
    /// TSC cycles per packet: `fastforward` is all of the path but filter stages, `fastforward.rx` and so on its nodes.
    pub stages: BTreeMap<String, f64>,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The rows that were measured.
    pub rows: Vec<Row>,
    /// Packets a second of the whole loop, generator and sink included, by row.
    #[serde(skip)]
    pub loop_pps: Vec<f64>,
    /// How it was measured.
    #[serde(skip)]
    pub circumstances: Circumstances,
}

/// How the comparison was measured.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// Core that it ran on; None where it could not be pinned.
    pub core: Option<usize>,
    /// Pages behind the packet memory.
    pub pages: Pages,
    /// Runs that count, by row.
    pub runs: usize,
    /// Runs that were dropped because the control loop moved.
    pub dropped: usize,
    /// Runs that count although the control loop moved, for want of better ones.
    pub disturbed: usize,
    /// Packets of a run.
    pub packets: u64,
}

/// One run of one row.
#[derive(Clone, Debug)]
struct Run {
    cycles: f64,
    nodes: [f64; NODES.len()],
    loop_pps: f64,
    control: f64,
}

/// Does what `ferrule compare` does.
///
/// # Errors
/// [`Failure::Input`] for a core that is not there; [`Failure::Runtime`] when memory cannot be had or packets were lost.
pub fn run(args: &CompareArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let core = machine::pin(args.core)?;
    let report = measure(args.runs as usize, args.packets.unwrap_or(PACKETS), core)?;
    if common.json { emit_json(out, &report) } else { emit(out, &table::text(&report)) }
}

/// Measures on the calling thread, which the caller has pinned to `core`.
///
/// # Errors
/// When memory cannot be had, or packets were lost.
pub fn measure(runs: usize, packets: u64, core: Option<usize>) -> Result<Report, Failure> {
    let control = Control::new();
    let mut rigs = Vec::new();
    for family in Family::ALL {
        let mut rig = Rig::new(&RigPlan::default())?;
        rig.classic_route(family)?;
        rigs.push((family, rig));
    }
    // A disturbed run is repeated; as often again as there are runs, then what there is must do.
    let mut done: Vec<Vec<Run>> = rigs.iter().map(|_| Vec::new()).collect();
    let mut attempts = 0;
    let enough = |done: &[Vec<Run>]| {
        let kept = kept(done);
        kept.iter().all(|kept| kept.len() >= runs)
    };
    while attempts < 2 * runs && !(attempts >= runs && enough(&done)) {
        attempts += 1;
        for ((family, rig), runs_done) in rigs.iter_mut().zip(&mut done) {
            progress(&format!("run {attempts} of {}: forwarding {family}", runs.max(attempts)));
            runs_done.push(one_run(rig, *family, packets, &control)?);
        }
    }
    progress("");
    let pages = rigs[0].1.pages();
    let mut rows = Vec::new();
    let mut loop_pps = Vec::new();
    let (mut dropped, mut disturbed) = (0, 0);
    for (((family, rig), all), kept) in rigs.into_iter().zip(&done).zip(kept(&done)) {
        // Undisturbed ones first; where they are too few the others fill up.
        let good: Vec<&Run> = kept.iter().map(|i| &all[*i]).take(runs).collect();
        let mut counted = good.clone();
        counted.extend(
            all.iter().enumerate().filter(|(i, _)| !kept.contains(i)).map(|(_, run)| run).take(runs - good.len()),
        );
        disturbed += counted.len() - good.len();
        dropped += (0..all.len()).filter(|i| !kept.contains(i)).count() - (counted.len() - good.len());
        rows.push(row(family, &counted)?);
        loop_pps.push(middle(&counted, |run| run.loop_pps)?.median);
        if !rig.close() {
            return Err(Failure::runtime("not every packet is accounted for: this is a fault of Ferrule"));
        }
    }
    Ok(Report { rows, loop_pps, circumstances: Circumstances { core, pages, runs, dropped, disturbed, packets } })
}

/// By row, the runs beside which the control loop stood still.
fn kept(done: &[Vec<Run>]) -> Vec<Vec<usize>> {
    let readings: Vec<f64> = done.iter().flatten().map(|run| run.control).collect();
    let mut disturbed = control::disturbed(&readings).into_iter();
    let mut undisturbed = |runs: &Vec<Run>| {
        let judged: Vec<bool> = disturbed.by_ref().take(runs.len()).collect();
        (0..runs.len()).filter(|i| !judged[*i]).collect()
    };
    done.iter().map(&mut undisturbed).collect()
}

fn one_run(rig: &mut Rig, family: Family, packets: u64, control: &Control) -> Result<Run, Failure> {
    let (to, from) = rig.macs();
    let rounds = packets.div_ceil(rig::PIECE as u64).max(1);
    let (mut cycles, mut controls, mut whole) = (Vec::new(), Vec::new(), Vec::new());
    let mut nodes: [Vec<f64>; NODES.len()] = Default::default();
    let mut flow = 0;
    for number in 0..rounds + WARM_UP {
        let start = clock::cycles();
        rig.fill(|frame| {
            flow += 1;
            write_frame(frame, to, from, family.classic_flow(flow))
        })?;
        let round = rig.round()?;
        let took = clock::cycles().wrapping_sub(start);
        if number < WARM_UP {
            continue;
        }
        cycles.push(round.cycles_per_packet());
        whole.push(took as f64 / round.packets as f64);
        nodes.iter_mut().enumerate().for_each(|(node, all)| all.push(round.node(node)));
        if number % CONTROL_EVERY == 0 || controls.is_empty() {
            controls.push(control.once());
        }
    }
    let middle = |values: &[f64]| crate::ministat::median(values).unwrap_or_default();
    Ok(Run {
        cycles: middle(&cycles),
        nodes: nodes.map(|all| middle(&all)),
        loop_pps: clock::cycles_per_second() / middle(&whole),
        control: middle(&controls),
    })
}

fn middle(runs: &[&Run], of: impl Fn(&Run) -> f64) -> Result<Series, Failure> {
    let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
    Series::of(&values).ok_or_else(|| Failure::runtime("a run without a result"))
}

fn row(family: Family, runs: &[&Run]) -> Result<Row, Failure> {
    let rate = clock::cycles_per_second();
    let (pps, cycles) = (middle(runs, |run| rate / run.cycles)?, middle(runs, |run| run.cycles)?);
    let mut stages = BTreeMap::from([("fastforward".to_owned(), cycles.median)]);
    for (node, name) in SHOWN {
        let cycles = middle(runs, |run| run.nodes[node])?.median;
        // The fast way parses and forwards in one pass and stamps it as one node.
        if cycles > 0.0 {
            stages.insert(format!("fastforward.{name}"), cycles);
        }
    }
    Ok(Row {
        set: "forwarding".to_owned(),
        family: family.label().to_owned(),
        median_pps: pps.median.round(),
        min_pps: pps.min.round(),
        max_pps: pps.max.round(),
        cycles_per_packet: cycles.median,
        ratio_to_forwarding: 1.0,
        stages,
    })
}

/// Says on a terminal what is being done, in place of what was said before; nothing elsewhere.
pub fn progress(text: &str) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // A terminal that went away is no reason to stop measuring.
        let _ = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
    }
}

#[cfg(test)]
mod tests;
