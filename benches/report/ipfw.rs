//! What the ipfw stage adds to plain forwarding, what its states take, and how long rules need to be put in force.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use ferrule::compare::case::{Case, Traffic};
use ferrule::compare::flows::{Family, Flow, write_flow};
use ferrule::compare::ipfw::loaded::{Loaded, gather};
use ferrule::compare::ipfw::mixed::{self, Profile};
use ferrule::compare::ipfw::{STATELESS, case, even, one_shape, rig, stateful, table};
use ferrule::compare::rig::{PIECE, Random, Rig, RigPlan};
use ferrule::failure::Failure;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_filters::ipfw::dynamic::{FlowKey, NameId, NewState, PacketFacts, RuleRef, Settings, Shared, States};

use crate::bench::Bench;
use crate::rows::{Row, Section, Target};

/// What is beside plain forwarding: its name, and what it may add.
struct Line {
    name: String,
    limit: Option<f64>,
    case: Case,
}

impl Line {
    fn new(name: &str, limit: f64, family: Family, (firewall, traffic): (Loaded, Traffic)) -> Result<Line, Failure> {
        let case = case(name, family, &firewall, traffic, 0)?;
        Ok(Line { name: format!("{name}, {family}"), limit: Some(limit), case })
    }

    fn untargeted(self) -> Line {
        Line { limit: None, ..self }
    }
}

/// All rows of the stage.
pub fn section(bench: &Bench) -> Section {
    let seed = u64::from(RandomState::new().hash_one(1_u8) as u32);
    let mut section = Section::new(
        "ipfw",
        &format!(
            "As above, 2048 coloured buffers, new packets in every round. Cycles are those that the stage adds to plain forwarding of the \
             same packets, both passes together; samples of plain forwarding and of all rows of a group alternate in one run. Mixed rules, \
             tables and their keys are drawn at run time, this time with seed {seed} (`ferrule compare --seed {seed}` has the same \
             ones)."
        ),
    );
    section.add("ipfw, classic sets", |rows| classic(bench, rows));
    section.add("ipfw, states", |rows| states(bench, rows));
    section.add("ipfw, tables", |rows| tables(bench, seed, rows));
    for rules in [1000, 10_000] {
        section.add("ipfw, mixed rules", |rows| mixed_rules(bench, rules, seed, rows));
    }
    section.add("ipfw, memory of states", |rows| memory(bench, rows));
    section.add("ipfw, new connections", |rows| new_connections(bench, rows));
    section.add("ipfw, changes of rules", |rows| changes(bench, seed, rows));
    section
}

/// Samples of plain forwarding of `traffic` and of every line in turn: cycles that each line added, by line.
fn beside_plain(
    bench: &Bench,
    what: &str,
    (family, traffic): (Family, Traffic),
    mut lines: Vec<Line>,
    rows: &mut Vec<Row>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let rounds = bench.size(150, 2);
    let mut plain = Case::new("forwarding", family, rig(&RigPlan::default(), None)?, traffic, 0);
    let samples = bench.take(what, bench.samples, || {
        let plain = plain.sample(rounds)?;
        let mut sample = vec![plain];
        for line in &mut lines {
            sample.push(line.case.sample(rounds)?);
        }
        Ok(sample)
    })?;
    let forwarding = Row::new(format!("{what}: plain forwarding, {family}"), "cycles", &samples.each(|s| s[0]));
    rows.push(forwarding.samples(&samples));
    let mut all = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let added = samples.each(|s| s[number + 1] - s[0]);
        let mut row = Row::new(format!("added by {}", line.name), "cycles", &added).samples(&samples);
        row.target = line.limit.map(Target::AtMost);
        rows.push(row);
        all.push(added);
    }
    if !lines.into_iter().map(|line| line.case).chain([plain]).all(|case| case.rig.close()) {
        return Err(Failure::runtime("not every packet is accounted for"));
    }
    Ok(all)
}

fn classic(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    for family in Family::ALL {
        let line = |name: &str, limit, firewall| Line::new(name, limit, family, (firewall, Traffic::Classic));
        let thousands = bench.size(10_000, 200);
        let lines = vec![
            line("`allow ip from any to any`", 5.0, Loaded::new(STATELESS)?)?,
            line("`keep-state`, 5,000 flows", 25.0, Loaded::new(stateful(5000))?)?,
            line("10 rules of one shape", 0.0, Loaded::new(one_shape(10, family))?)?.untargeted(),
            line("100 rules of one shape", 0.0, Loaded::new(one_shape(100, family))?)?.untargeted(),
            line("1,000 rules of one shape", 20.0, Loaded::new(one_shape(1000, family))?)?,
            line("10,000 rules of one shape", 35.0, Loaded::new(one_shape(thousands, family))?)?,
        ];
        beside_plain(bench, "classic flows", (family, Traffic::Classic), lines, rows)?;
    }
    Ok(())
}

/// A ratio of what two lines added, sample by sample.
fn ratio(name: &str, many: &[f64], few: &[f64], limit: f64) -> Row {
    let ratios: Vec<f64> = many.iter().zip(few).map(|(many, few)| many / few).collect();
    Row::new(name, "x", &ratios).target(Target::AtMost(limit)).note("of the cycles added")
}

fn states(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    for family in Family::ALL {
        let line = |name: &str, limit, flows: usize| {
            let flows = flows as u32;
            Line::new(name, limit, family, (Loaded::new(stateful(flows))?, Traffic::Wide(flows)))
        };
        let (hundred_thousand, million) = (bench.size(100_000, 6000), bench.size(1_000_000, 8000));
        let lines = vec![
            line("5,000 states, random access", 0.0, 5000)?.untargeted(),
            line("100,000 states, random access", 45.0, hundred_thousand)?,
            line("1,000,000 states, random access", 0.0, million)?.untargeted(),
        ];
        let added = beside_plain(bench, "random flows", (family, Traffic::Wide(5000)), lines, rows)?;
        let name = format!("1,000,000 states / 5,000 states, random access, {family}");
        rows.push(ratio(&name, &added[2], &added[0], 1.8));
    }
    Ok(())
}

fn tables(bench: &Bench, seed: u64, rows: &mut Vec<Row>) -> Result<(), Failure> {
    for family in Family::ALL {
        let million = bench.size(1_000_000, 5000);
        let mut random = Random::new(seed);
        let mut line = |name: &str, prefixes: usize| {
            let (firewall, traffic) = table(prefixes, family, &mut random)?;
            Ok::<Line, Failure>(Line::new(name, 0.0, family, (firewall, traffic))?.untargeted())
        };
        let lines = vec![
            line("a table of 1,000 prefixes, random keys", 1000)?,
            line("a table of 1,000,000 prefixes, random keys", million)?,
        ];
        let added = beside_plain(bench, "table keys", (family, Traffic::Classic), lines, rows)?;
        rows.push(ratio(&format!("table of 1,000,000 / table of 1,000, {family}"), &added[1], &added[0], 1.6));
    }
    Ok(())
}

/// The row that decides.
fn mixed_rules(bench: &Bench, rules: usize, seed: u64, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let (limit, name) = if rules == 1000 { (60.0, "1,000") } else { (150.0, "10,000") };
    let rules = bench.size(rules, 100);
    for family in Family::ALL {
        let drawn = mixed::draw(rules, family, &Profile::ALL, seed);
        for (what, flows) in [("every rule hit", even(&drawn, seed)), ("all missed", drawn.misses.clone())] {
            let traffic = Traffic::Flows(flows);
            let firewall = Loaded::new(drawn.commands())?;
            let line = Line::new(&format!("{name} mixed rules, {what}"), limit, family, (firewall, traffic.clone()))?;
            beside_plain(bench, &format!("{name} mixed, {what}"), (family, traffic), vec![line], rows)?;
        }
    }
    Ok(())
}

/// Bytes of a state at a million of them.
fn memory(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let count = bench.size(1_000_000, 10_000) as u32;
    for family in Family::ALL {
        let shared = Shared::new(Settings::default());
        shared.set("dyn_max", count).map_err(|e| Failure::runtime(format!("dyn_max: {e:?}")))?;
        let mut states = States::new(Arc::new(shared), count);
        states.turn(1);
        let seed = HashSeed::random();
        for number in 0..count {
            let flow = family.wide_flow(number);
            let key = match flow {
                (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => {
                    FlowKey::v4(s.to_bits(), d.to_bits(), 17, 2001, 2001)
                }
                (std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => {
                    FlowKey::v6(s.to_bits(), d.to_bits(), 17, 2001, 2001)
                }
                _ => return Err(Failure::runtime("a flow of two families")),
            };
            let rule = RuleRef { index: 1, generation: 0 };
            let new = NewState { key, hash: key.hash(seed), name: NameId::DEFAULT, rule, limit: None };
            let facts = PacketFacts { length: 46, tcp_flags: 0, acknowledgement: None };
            states.install(&new, &facts).map_err(|e| Failure::runtime(format!("state {number}: {e:?}")))?;
        }
        let each = states.memory() as f64 / f64::from(count);
        let row = Row::new(format!("memory of a state, {count} states, {family}"), "bytes", &[each]);
        rows.push(row.target(Target::AtMost(128.0)).note("states, addresses, buckets and timers"));
    }
    Ok(())
}

/// New flows only, at a rate and with a life time that keep about a million states: making them in the in pass, finding them in the
/// out pass, ending them.
fn new_connections(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    // A million a second in virtual time, each living for one: 2048 packets come in 2.048 ms. In turns between them, as a worker
    // has them, as many states end as are made.
    const APART: u64 = PIECE as u64 * 1000;
    const TURNS: usize = 40;
    let commands = [
        format!("sysctl net.inet.ip.fw.dyn_max={}", 1 << 22),
        "sysctl net.inet.ip.fw.dyn_udp_lifetime=1".to_owned(),
        "add 3000 allow ip from any to any keep-state".to_owned(),
    ];
    let rounds = bench.size(500, 2);
    for family in Family::ALL {
        let firewall = Loaded::new(&commands)?;
        let plan = RigPlan { virtual_time: true, ..RigPlan::default() };
        let (mut plain, mut new) = (rig(&plan, None)?, rig(&plan, Some(&firewall))?);
        let mut number = 0;
        let mut drive = |rig: &mut Rig, rounds: usize| {
            let (to, from) = rig.macs();
            let mut cycles = 0;
            for _ in 0..rounds {
                rig.fill(|frame| {
                    number = (number + 1) % 14_000_000;
                    let (source, destination) = family.wide_flow(number);
                    write_flow(frame, to, from, &Flow::udp(source, destination))
                })?;
                cycles += rig.round()?.cycles + rig.advance(APART, TURNS)?;
            }
            Ok::<f64, Failure>(cycles as f64 / (rounds * PIECE) as f64)
        };
        // Four seconds until as many end as begin.
        drive(&mut new, bench.size(2000, 2))?;
        let mut there = Vec::new();
        let samples = bench.take(&format!("new connections, {family}"), bench.samples, || {
            let plain = drive(&mut plain, rounds)?;
            let new = drive(&mut new, rounds)?;
            there.push(f64::from(firewall.states()?));
            Ok(new - plain)
        })?;
        let usual = ferrule::ministat::median(&there).unwrap_or_default();
        let row = Row::new(format!("a new connection, {family}"), "cycles", &samples.each(|s| *s)).samples(&samples);
        let note = format!("{usual:.0} states there; means, end of states included");
        rows.push(row.target(Target::AtMost(500.0)).note(note));
        if !plain.close() || !new.close() {
            return Err(Failure::runtime("not every packet is accounted for"));
        }
    }
    Ok(())
}

/// A whole set put in force, and one rule more, while packets flow.
fn changes(bench: &Bench, seed: u64, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let rules = bench.size(10_000, 100);
    let drawn = mixed::draw(rules, Family::Inet, &Profile::ALL, seed);
    let mixed: Vec<String> = drawn.commands().map(str::to_owned).collect();
    let flows = Traffic::Flows(even(&drawn, seed));
    let sets = [("one shape", one_shape(rules, Family::Inet), Traffic::Classic), ("mixed shapes", mixed, flows)];
    for (name, commands, traffic) in sets {
        let firewall = Loaded::new(&commands)?;
        let mut case = case(name, Family::Inet, &firewall, traffic, 0)?;
        let samples = bench.take(&format!("a set put in force, {name}"), bench.samples, || {
            let set = gather(&commands)?;
            let start = Instant::now();
            firewall.load(set)?;
            let took = start.elapsed().as_secs_f64() * 1e3;
            case.sample(2)?;
            Ok(took)
        })?;
        let row = Row::new(format!("compiling 10,000 rules of {name}"), "ms", &samples.each(|s| *s)).samples(&samples);
        rows.push(row.target(Target::AtMost(300.0)).note("from rules that were read to rules in force"));
        let samples = bench.take(&format!("one rule more, {name}"), bench.samples, || {
            let start = Instant::now();
            firewall.ipfw("add 64000 count udp from 192.0.2.0/24 to any 4000-4100")?;
            let took = start.elapsed().as_secs_f64() * 1e3;
            // A packet lost would be an error.
            case.sample(2)?;
            firewall.ipfw("delete 64000")?;
            case.sample(2)?;
            Ok(took)
        })?;
        let row = Row::new(format!("one rule more with 10,000 of {name} in force"), "ms", &samples.each(|s| *s));
        let note = "from the command's text to rules in force; packets flow before and after, none is lost";
        rows.push(row.samples(&samples).target(Target::AtMost(50.0)).note(note));
        if !case.rig.close() {
            return Err(Failure::runtime("not every packet is accounted for"));
        }
    }
    Ok(())
}
