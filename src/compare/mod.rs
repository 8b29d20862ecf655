//! `ferrule compare`: what forwarding, and each filter stage, costs on this machine, without root and without a NIC.
//!
//! Generator, gateway and sink take turns on one core over memory ports; only the worker's turns are timed. A run is many rounds of a
//! flow set, and gives the median of its rounds; a row gives median, smallest and largest of its runs. Runs of the rows
//! alternate, so that what the machine does meanwhile meets all of them. A row of a filter is held against plain forwarding of the
//! same packets: for the classic flow set that is the row `forwarding`, for other traffic a run that is not shown.

#![forbid(unsafe_code)]

pub mod case;
pub mod control;
pub mod flows;
pub mod ipfw;
pub mod machine;
pub mod rig;
mod table;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

use ferrule_dataplane::arena::Pages;
use ferrule_dataplane::clock;
use serde::Serialize;

use crate::cli::commands::{emit, emit_json};
use crate::cli::{Common, CompareArgs};
use crate::failure::Failure;
use crate::log;
use crate::ministat::Series;
use case::{Case, Run, Traffic};
use control::Control;
use flows::Family;
use ipfw::Wanted;
use rig::RigPlan;

/// Packets of a run unless asked otherwise; without optimisation less, since it takes ten times as long.
const PACKETS: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
/// Nodes of the path that the table shows on their own.
const SHOWN: [(usize, &str); 4] = [(0, "rx"), (1, "parse"), (2, "forward"), (3, "tx")];

/// A row of the comparison, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// `forwarding`, or a filter and its rules, as `ipfw stateless`.
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
    /// This row's packets a second in proportion to plain forwarding of the same packets.
    pub ratio_to_forwarding: f64,
    /// TSC cycles per packet that this row takes more than plain forwarding of the same packets.
    pub added_cycles: f64,
    /// TSC cycles per packet: `fastforward` is all of the path but filter stages, `fastforward.rx` and so on its nodes, `ipfw` the stage
    /// by its own stamps, both passes together. A set that is decided for whole batches runs inside `fastforward`.
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
    /// What there is to say about rule sets.
    pub notes: Vec<String>,
}

/// Does what `ferrule compare` does.
///
/// # Errors
/// [`Failure::Input`] for a core that is not there; [`Failure::Runtime`] when memory cannot be had or packets were lost.
pub fn run(args: &CompareArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let core = machine::pin(args.core)?;
    let seed = args.seed.unwrap_or_else(|| u64::from(rand_seed()));
    let wanted = Wanted { all: args.all, only: args.only.clone(), seed };
    if common.json {
        // The answer itself has the rows alone.
        log::info(format!("mixed rules and tables are drawn with --seed {seed}"));
    }
    let report = measure(args.runs as usize, args.packets.unwrap_or(PACKETS), core, &wanted)?;
    if common.json { emit_json(out, &report) } else { emit(out, &table::text(&report)) }
}

/// A number that differs from run to run, short enough to be typed.
fn rand_seed() -> u32 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(1_u8) as u32
}

/// Measures on the calling thread, which the caller has pinned to `core`.
///
/// # Errors
/// When memory cannot be had, or packets were lost.
pub fn measure(runs: usize, packets: u64, core: Option<usize>, wanted: &Wanted) -> Result<Report, Failure> {
    let control = Control::new();
    let mut cases = Vec::new();
    for family in Family::ALL {
        let rig = ipfw::rig(&RigPlan::default(), None)?;
        cases.push(Case::new("forwarding", family, rig, Traffic::Classic, family as usize));
    }
    let mut notes = vec![format!("Mixed rules and tables are drawn with --seed {}.", wanted.seed)];
    ipfw::cases(wanted, &mut cases, &mut notes, progress)?;
    // A disturbed run is repeated; as often again as there are runs, then what there is must do.
    let mut done: Vec<Vec<Run>> = cases.iter().map(|_| Vec::new()).collect();
    let mut attempts = 0;
    let enough = |done: &[Vec<Run>]| {
        let kept = kept(done);
        kept.iter().all(|kept| kept.len() >= runs)
    };
    while attempts < 2 * runs && !(attempts >= runs && enough(&done)) {
        attempts += 1;
        for (case, runs_done) in cases.iter_mut().zip(&mut done) {
            progress(&format!("run {attempts} of {}: {} {}", runs.max(attempts), case.set, case.family));
            runs_done.push(case.run(packets, &control)?);
        }
    }
    progress("");
    let pages = cases[0].rig.pages();
    let (mut dropped, mut disturbed) = (0, 0);
    let mut counted = Vec::new();
    for (all, kept) in done.iter().zip(kept(&done)) {
        // Undisturbed ones first; where they are too few the others fill up.
        let mut these: Vec<&Run> = kept.iter().map(|i| &all[*i]).take(runs).collect();
        let good = these.len();
        these.extend(all.iter().enumerate().filter(|(i, _)| !kept.contains(i)).map(|(_, run)| run).take(runs - good));
        disturbed += these.len() - good;
        dropped += (0..all.len()).filter(|i| !kept.contains(i)).count() - (these.len() - good);
        counted.push(these);
    }
    let (mut rows, mut loop_pps) = (Vec::new(), Vec::new());
    for (case, these) in cases.iter().zip(&counted).filter(|(case, _)| case.is_shown) {
        rows.push(row(&case.set, case.family, these, &counted[case.plain])?);
        loop_pps.push(middle(these, |run| run.loop_pps)?.median);
    }
    if !cases.into_iter().all(|case| case.rig.close()) {
        return Err(Failure::runtime("not every packet is accounted for: this is a fault of Ferrule"));
    }
    let circumstances = Circumstances { core, pages, runs, dropped, disturbed, packets, notes };
    Ok(Report { rows, loop_pps, circumstances })
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

fn middle(runs: &[&Run], of: impl Fn(&Run) -> f64) -> Result<Series, Failure> {
    let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
    Series::of(&values).ok_or_else(|| Failure::runtime("a run without a result"))
}

/// A row of these runs; `plain` are those of plain forwarding of the same packets.
fn row(set: &str, family: Family, runs: &[&Run], plain: &[&Run]) -> Result<Row, Failure> {
    let rate = clock::cycles_per_second();
    let (pps, cycles) = (middle(runs, |run| rate / run.cycles)?, middle(runs, |run| run.cycles)?);
    let forwarding = middle(plain, |run| run.cycles)?.median;
    let stage = middle(runs, |run| run.stages)?.median;
    let mut stages = BTreeMap::from([("fastforward".to_owned(), cycles.median - stage)]);
    if let Some(name) = set.split(' ').next().filter(|name| *name != "forwarding") {
        stages.insert(name.to_owned(), stage);
    }
    for (node, name) in SHOWN {
        let cycles = middle(runs, |run| run.nodes[node])?.median;
        // The stamps of a filter lie within those of forwarding.
        let cycles = if name == "forward" { cycles - stage } else { cycles };
        // The fast way parses and forwards in one pass and stamps it as one node.
        if cycles > 0.0 {
            stages.insert(format!("fastforward.{name}"), cycles);
        }
    }
    Ok(Row {
        set: set.to_owned(),
        family: family.label().to_owned(),
        median_pps: pps.median.round(),
        min_pps: pps.min.round(),
        max_pps: pps.max.round(),
        cycles_per_packet: cycles.median,
        ratio_to_forwarding: forwarding / cycles.median,
        added_cycles: cycles.median - forwarding,
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
