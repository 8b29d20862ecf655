//! Two workers on two cores, beside two floors on the same two cores.

#![forbid(unsafe_code)]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ferrule::compare::flows::{Family, write_frame};
use ferrule::compare::machine;
use ferrule::compare::rig::{Driven, PIECE, ROUNDS_PER_FILL, Random, Rig, RigPlan};
use ferrule::failure::Failure;
use ferrule::ministat;
use ferrule_dataplane::arena::DEFAULT_STRIDE;
use ferrule_dataplane::fib::MacAddress;

use crate::bench::Bench;
use crate::floor::{Floor, Table};
use crate::rows::{Row, Target};

const FAMILY: Family = Family::Inet;

/// Packets per TSC cycle of one worker and of two, of one floor and of two.
struct Rates {
    worker: f64,
    workers: f64,
    floor: f64,
    floors: f64,
}

impl Rates {
    fn gain(&self) -> f64 {
        self.workers / self.worker
    }

    fn floor_gain(&self) -> f64 {
        self.floors / self.floor
    }
}

/// Adds the rows.
///
/// # Errors
/// When something cannot be measured.
pub fn two_workers(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let Some(other) = bench.other else {
        rows.push(Row::skipped("two workers", "this process may run on one core only"));
        return Ok(());
    };
    let cores = [bench.core, other];
    let mut random = Random::new(17);
    let mut rig = Rig::new(&RigPlan { workers: 2, ..RigPlan::default() })?;
    rig.classic_route(FAMILY)?;
    let macs = rig.macs();
    let table = Table::new(&mut random);
    let mut floors = Vec::new();
    for _ in cores {
        floors.push(Floor::new(PIECE, DEFAULT_STRIDE, false, &mut random)?);
    }
    let time = Duration::from_millis(bench.size(60, 2) as u64);
    let samples = bench.take("two workers", bench.samples, || {
        let floor = floor_for(&mut floors[0], &table, time)?;
        let both = Barrier::new(2);
        let floors = std::thread::scope(|scope| {
            let start = |(floor, core)| {
                let (table, both) = (&table, &both);
                scope.spawn(move || {
                    let pinned = machine::pin_to(core);
                    both.wait();
                    pinned.and_then(|()| floor_for(floor, table, time))
                })
            };
            let threads: Vec<_> = floors.iter_mut().zip(cores).map(start).collect();
            let panicked = |_| Failure::runtime("a floor panicked");
            threads.into_iter().map(|thread| thread.join().map_err(panicked)?).sum::<Result<f64, Failure>>()
        })?;
        // The second worker is there and idle while the first is measured alone: its core rests, as that of the second floor did.
        let alone = rig.at_once(|worker, driven| {
            if worker > 0 {
                return Ok(0.0);
            }
            machine::pin_to(cores[worker])?;
            worker_for(driven, macs, time)
        })?;
        let together = rig.at_once(|worker, driven| {
            // Waits in any case: who does not come would be waited for for ever.
            let pinned = machine::pin_to(cores[worker]);
            both.wait();
            pinned.and_then(|()| worker_for(driven, macs, time))
        })?;
        Ok(Rates { worker: alone.iter().sum(), workers: together.iter().sum(), floor, floors })
    })?;
    let row = |name: &str, figure: fn(&Rates) -> f64| Row::new(name, "x", &samples.each(figure)).samples(&samples);
    rows.push(row("two floors together / one floor", Rates::floor_gain));
    rows.push(row("two workers together / one worker", Rates::gain));
    let note =
        "what a second core brings to Ferrule, in proportion to what it brings to the floor on the same two cores";
    let ratio = row("gain of two workers / gain of two floors", |r| r.gain() / r.floor_gain());
    rows.push(ratio.target(Target::AtLeast(0.95)).note(note));
    Ok(())
}

/// Packets per cycle of a floor that runs for `time`.
fn floor_for(floor: &mut Floor, table: &Table, time: Duration) -> Result<f64, Failure> {
    let flow = FAMILY.classic_flow(0);
    measured(time, || {
        floor.fill(|frame| write_frame(frame, MacAddress::default(), MacAddress::default(), flow));
        (0..ROUNDS_PER_FILL).map(|_| floor.round(table)).collect()
    })
}

/// As [`floor_for`], for a worker.
fn worker_for(driven: &mut Driven<'_>, (to, from): (MacAddress, MacAddress), time: Duration) -> Result<f64, Failure> {
    let flow = FAMILY.classic_flow(0);
    measured(time, || {
        driven.fill(|frame| write_frame(frame, to, from, flow))?;
        (0..ROUNDS_PER_FILL).map(|_| driven.round().map(|round| round.cycles_per_packet())).collect()
    })
}

/// Packets per cycle: the median of the rounds within `time`.
fn measured(time: Duration, mut rounds: impl FnMut() -> Result<Vec<f64>, Failure>) -> Result<f64, Failure> {
    let (start, mut took) = (Instant::now(), Vec::new());
    while took.is_empty() || start.elapsed() < time {
        took.extend(rounds()?);
    }
    ministat::median(&took).map(|cycles| 1.0 / cycles).ok_or_else(|| Failure::runtime("no round was finished"))
}
