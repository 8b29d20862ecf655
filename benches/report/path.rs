//! fastforward end to end between memory ports beside the floor, IPv4 and IPv6, and what batches, tables and workers do to it.

#![forbid(unsafe_code)]

use std::net::IpAddr;

use ferrule::compare::flows::{Family, write_frame};
use ferrule::compare::rig::{ROUNDS_PER_FILL, Random, Rig, RigPlan};
use ferrule::failure::Failure;
use ferrule::ministat;
use ferrule_dataplane::arena::DEFAULT_STRIDE;
use ferrule_dataplane::batch::BATCH_MAX;
use ferrule_dataplane::fib::MacAddress;

use crate::bench::Bench;
use crate::floor::{Floor, HONEST, Reference, Table};
use crate::internet::Internet;
use crate::rows::{Row, Samples, Section, Target};

/// Where the packets of a case go.
#[derive(Clone, Copy, PartialEq)]
enum Destinations {
    /// One address, one route.
    One,
    /// So many addresses under a full table.
    Some(usize),
    /// Any address under a full table.
    Random,
}

/// One case, in the words and the order of shared/floor.rs.
pub struct Case {
    name: &'static str,
    frames: usize,
    /// Stride of the floor's buffers; the gateway's are always coloured.
    stride: usize,
    shuffled: bool,
    destinations: Destinations,
    /// Fills and rounds after each that make one sample.
    fills: usize,
    rounds: usize,
    /// Most that fastforward may take, in multiples of the floor.
    limit: Option<f64>,
}

/// All cases.
pub const CASES: [Case; 5] = [
    Case {
        name: "hot: 512 buffers, one destination",
        frames: 512,
        stride: 2048,
        shuffled: false,
        destinations: Destinations::One,
        fills: 8,
        rounds: ROUNDS_PER_FILL,
        limit: Some(2.7),
    },
    Case {
        name: "2048 buffers coloured, one destination",
        frames: 2048,
        stride: DEFAULT_STRIDE,
        shuffled: false,
        destinations: Destinations::One,
        fills: 4,
        rounds: ROUNDS_PER_FILL,
        limit: None,
    },
    Case {
        name: "2048 buffers coloured, 10,000 destinations",
        frames: 2048,
        stride: DEFAULT_STRIDE,
        shuffled: false,
        destinations: Destinations::Some(10_000),
        fills: 4,
        rounds: ROUNDS_PER_FILL,
        limit: None,
    },
    Case {
        name: "64 MiB shuffled, full table, random destinations",
        frames: 32_768,
        stride: 2048,
        shuffled: true,
        destinations: Destinations::Random,
        fills: 1,
        rounds: 14,
        limit: Some(1.6),
    },
    Case {
        name: "1 GiB shuffled, full table, random destinations",
        frames: 524_288,
        stride: 2048,
        shuffled: true,
        destinations: Destinations::Random,
        fills: 1,
        rounds: 6,
        limit: Some(1.3),
    },
];

/// IPv6 may take so much of IPv4's cycles.
const IPV6_LIMIT: f64 = 1.25;
/// Rounds after a fill that do not count, as in shared/floor.rs.
const SETTLING: usize = 2;

/// Source of every packet of the cases.
fn source(family: Family) -> IpAddr {
    family.classic_flow(0).0
}

/// The median of a sample's rounds, cycles per packet.
fn middle(rounds: &[f64]) -> Result<f64, Failure> {
    ministat::median(rounds).ok_or_else(|| Failure::runtime("a sample without rounds"))
}

/// Writes destinations into the rig's frames, one of `among` each at random, and takes `rounds` rounds.
fn drive(
    rig: &mut Rig,
    family: Family,
    among: &[IpAddr],
    (fills, rounds): (usize, usize),
    random: &mut Random,
) -> Result<f64, Failure> {
    let mut took = Vec::new();
    let (to, from) = rig.macs();
    for _ in 0..fills {
        rig.fill(|frame| write_frame(frame, to, from, (source(family), among[random.below(among.len())])))?;
        for round in 0..rounds {
            let cycles = rig.round()?.cycles_per_packet();
            if round >= SETTLING || rounds <= SETTLING {
                took.push(cycles);
            }
        }
    }
    middle(&took)
}

/// As [`drive`], for the floor, whose table has a route for every address.
fn drive_floor(floor: &mut Floor, table: &Table, case: &Case, random: &mut Random) -> Result<f64, Failure> {
    let mut any = || random.draw() as u32;
    let several: Vec<u32> = match case.destinations {
        Destinations::One => vec![any()],
        Destinations::Some(count) => (0..count).map(|_| any()).collect(),
        Destinations::Random => Vec::new(),
    };
    let mut took = Vec::new();
    for _ in 0..case.fills {
        floor.fill(|frame| {
            let destination = if several.is_empty() { any() } else { several[any() as usize % several.len()] };
            let (macs, to) = (MacAddress::default(), IpAddr::from(destination.to_be_bytes()));
            write_frame(frame, macs, macs, (source(Family::Inet), to))
        });
        for round in 0..case.rounds {
            let cycles = floor.round(table)?;
            if round >= SETTLING || case.rounds <= SETTLING {
                took.push(cycles);
            }
        }
    }
    middle(&took)
}

/// The cases: floor, IPv4, IPv6, floor, IPv4, IPv6 and so on, ratios taken pair by pair.
pub fn cases(bench: &Bench, internet: &Internet, reference: &Result<Reference, String>) -> Section {
    let mut section = Section::new(
        "fastforward between memory ports",
        "Memory receive to memory transmit, everything a gateway does on the way, smallest UDP frames, one pinned core, one worker; only \
         the worker's turns are timed. Samples of the floor, of IPv4 and of IPv6 alternate; a ratio is that of two neighbouring samples. \
         `floor` is our own hand-written loop (benches/report/floor.rs) over the same packet memory, `shared/floor.rs` the independent \
         program, run before, between and after the cases. The full table has 1.1 M IPv4 and 250 k IPv6 routes and 64 next hops.",
    );
    let mut theirs: Vec<Vec<f64>> = CASES.iter().map(|_| Vec::new()).collect();
    let mut ask = |rows: &mut Vec<Row>| {
        let Ok(reference) = reference else { return };
        match reference.run() {
            Ok(medians) => theirs.iter_mut().zip(medians).for_each(|(all, median)| all.push(median)),
            Err(failure) => rows.push(Row::skipped("shared/floor.rs", failure.to_string())),
        }
    };
    let mut ours = Vec::new();
    ask(&mut section.rows);
    for case in &CASES {
        section.add(case.name, |rows| {
            let samples = one_case(bench, case, internet)?;
            rows.extend(rows_of(case, &samples));
            ours.push((case.name, ministat::median(&samples.each(|s| s[1])).unwrap_or_default()));
            Ok(())
        });
        if !bench.quick {
            ask(&mut section.rows);
        }
    }
    match reference {
        Err(why) => section.rows.push(Row::skipped("IPv4 / shared/floor.rs", why.clone())),
        Ok(_) => CASES.iter().zip(&theirs).for_each(|(case, readings)| {
            let cycles = ours.iter().find(|(name, _)| *name == case.name).map(|(_, cycles)| *cycles);
            beside_reference(case, readings, cycles, &mut section.rows);
        }),
    }
    section
}

/// What the independent floor read for a case, and ours in proportion to it.
fn beside_reference(case: &Case, readings: &[f64], ours: Option<f64>, rows: &mut Vec<Row>) {
    let mut row = Row::new(format!("shared/floor.rs, {}", case.name), "cycles", readings);
    let Some(floor) = row.series.map(|series| series.median) else { return };
    if case.name == CASES[0].name {
        let (low, high) = (HONEST.start(), HONEST.end());
        row = row.note(if HONEST.contains(&floor) {
            format!("within {low} to {high}: the comparison counts")
        } else {
            format!(
                "NOT within {low} to {high}: the machine was disturbed, or is of another kind; the ratios are no proof"
            )
        });
    }
    rows.push(row);
    if let (Some(limit), Some(cycles)) = (case.limit, ours) {
        let name = format!("IPv4 / shared/floor.rs, {}", case.name);
        let note = "of the medians: the two do not run in turn";
        rows.push(Row::new(name, "x", &[cycles / floor]).target(Target::AtMost(limit)).note(note));
    }
}

fn rows_of(case: &Case, samples: &Samples<[f64; 3]>) -> Vec<Row> {
    let name = |what: &str| format!("{what}, {}", case.name);
    let row = |what: &str, unit, figure: fn(&[f64; 3]) -> f64| {
        Row::new(name(what), unit, &samples.each(figure)).samples(samples)
    };
    let mut floor = row("IPv4 / floor", "x", |s| s[1] / s[0]);
    floor.target = case.limit.map(Target::AtMost);
    vec![
        row("floor", "cycles", |s| s[0]),
        row("IPv4", "cycles", |s| s[1]),
        row("IPv6", "cycles", |s| s[2]),
        floor,
        row("IPv6 / IPv4", "x", |s| s[2] / s[1]).target(Target::AtMost(IPV6_LIMIT)),
    ]
}

fn one_case(bench: &Bench, case: &Case, internet: &Internet) -> Result<Samples<[f64; 3]>, Failure> {
    let mut random = Random::new(7);
    let frames = if bench.quick { case.frames.min(4096) } else { case.frames };
    let table = Table::new(&mut random);
    let mut floor = Floor::new(frames, case.stride, case.shuffled, &mut random)?;
    let plan = RigPlan { frames, shuffled: case.shuffled, ..RigPlan::default() };
    let mut rig = Rig::new(&plan)?;
    let mut among = Vec::new();
    if case.destinations == Destinations::One {
        for family in Family::ALL {
            rig.classic_route(family)?;
            among.push(vec![family.classic_flow(0).1]);
        }
    } else {
        internet.load(&mut rig)?;
        let count = match case.destinations {
            Destinations::Some(count) => count,
            _ => bench.size(1 << 20, 1 << 12),
        };
        for family in Family::ALL {
            among.push(internet.destinations(family, count, rig.table(), &mut random));
        }
    }
    let times = if bench.quick { (1, 4) } else { (case.fills, case.rounds) };
    let samples = bench.take(case.name, bench.samples, || {
        let floor = drive_floor(&mut floor, &table, case, &mut random)?;
        let inet = drive(&mut rig, Family::Inet, &among[0], times, &mut random)?;
        let inet6 = drive(&mut rig, Family::Inet6, &among[1], times, &mut random)?;
        Ok([floor, inet, inet6])
    })?;
    if !rig.close() {
        return Err(Failure::runtime("not every packet is accounted for"));
    }
    Ok(samples)
}

/// A full table with destinations that change every round, beside one route.
pub fn full_table(bench: &Bench, internet: &Internet, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let mut random = Random::new(11);
    let (mut one, mut full) = (Rig::new(&RigPlan::default())?, Rig::new(&RigPlan::default())?);
    internet.load(&mut full)?;
    let times = (bench.size(100, 2), 1);
    for family in Family::ALL {
        one.classic_route(family)?;
        let here: Vec<IpAddr> = (0..70).map(|flow| family.classic_flow(flow).1).collect();
        let everywhere = internet.destinations(family, bench.size(1 << 20, 1 << 12), full.table(), &mut random);
        let samples = bench.take(&format!("full table, {family}"), bench.samples, || {
            let one = drive(&mut one, family, &here, times, &mut random)?;
            Ok([one, drive(&mut full, family, &everywhere, times, &mut random)?])
        })?;
        let (routes, name) = (internet.of(family).len(), family.label());
        let row = |what: String, figure: fn(&[f64; 2]) -> f64| Row::new(what, "cycles", &samples.each(figure));
        rows.push(row(format!("{name}, one route"), |s| s[0]).samples(&samples));
        rows.push(row(format!("{name}, {routes} routes, random destinations"), |s| s[1]).samples(&samples));
        let ratio = samples.each(|s| s[1] / s[0]);
        let row = Row::new(format!("{name}, full table / one route"), "x", &ratio).samples(&samples);
        rows.push(row.target(Target::AtMost(2.0)).note("2048 buffers, every packet of every round to a new address"));
    }
    Ok(())
}

/// Batches of 1, 8, 64 and 256.
pub fn batches(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    const SIZES: [usize; 4] = [1, 8, 64, BATCH_MAX];
    let (family, mut random) = (Family::Inet, Random::new(13));
    let mut rigs = Vec::new();
    for batch in SIZES {
        let mut rig = Rig::new(&RigPlan { batch, ..RigPlan::default() })?;
        rig.classic_route(family)?;
        rigs.push(rig);
    }
    let among = [family.classic_flow(0).1];
    let times = if bench.quick { (1, 4) } else { (2, ROUNDS_PER_FILL) };
    let samples = bench.take("batches", bench.samples, || {
        rigs.iter_mut().map(|rig| drive(rig, family, &among, times, &mut random)).collect::<Result<Vec<f64>, Failure>>()
    })?;
    for (i, batch) in SIZES.iter().enumerate() {
        rows.push(Row::new(format!("batches of {batch}"), "cycles", &samples.each(|s| s[i])).samples(&samples));
    }
    let row = Row::new("batches of 1 / batches of 64", "x", &samples.each(|s| s[0] / s[2])).samples(&samples);
    rows.push(row.target(Target::AtMost(4.0)));
    Ok(())
}
