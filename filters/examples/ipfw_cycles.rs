//! What a line-up costs: cycles per packet of a gateway in memory, without filters and with them, in one run.
//!
//! `cargo run --release -p ferrule-filters --example ipfw_cycles`

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ferrule_config::ipfw::ast::{
    Action, Addresses, Argument, Bits, Block, InterfaceMatch, InterfaceRole, Masked4, Range, Rule, Side, StateName,
    StateOption, Term, Test,
};
use ferrule_config::ipfw::table::{TableKey, TableKind, TableOptions, TableValue};
use ferrule_dataplane::arena::{DEFAULT_STRIDE, Frame, HugePages};
use ferrule_dataplane::clock;
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind};
use ferrule_dataplane::packet::{Offload, PortId};
use ferrule_dataplane::port::TxFrame;
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Stage;
use ferrule_dataplane::world::{Lane, PortPlan, World};
use ferrule_filters::LineUp;
use ferrule_filters::ipfw::around::Holdings;
use ferrule_filters::ipfw::compile::compile;
use ferrule_filters::ipfw::dynamic::{Names, Settings, Shared, States};
use ferrule_filters::ipfw::live::Live;
use ferrule_filters::ipfw::program::Options;
use ferrule_filters::ipfw::stage::Ipfw;
use ferrule_filters::ipfw::table::{AddMode, TableSet};

const PIECE: usize = 2048;

struct Rig {
    world: World,
    frames: Vec<Frame>,
}

impl Rig {
    fn new(stages: Vec<Box<dyn Stage>>) -> Rig {
        let mut stages = Some(stages);
        let mut world = World::builder()
            .port(PortPlan::new("in"))
            .port(PortPlan::new("out"))
            .buffers(512, PIECE)
            .memory(DEFAULT_STRIDE, HugePages::Prefer)
            .ring(PIECE)
            .real_time()
            .stages(move |_| stages.take().unwrap_or_default())
            .build()
            .unwrap();
        let back = world.mac(PortId(0));
        let to = Prefix::V4 { address: 0, length: 0 };
        let net = Prefix::V4 { address: 0x0a00_0000, length: 16 };
        world.table.route_replace(net, 0, RouteKind::Connected { port: PortId(1) }).unwrap();
        let gateway = std::net::IpAddr::from([10, 0, 0, 9]);
        world.table.neighbor_set(PortId(1), gateway, Some(back)).unwrap();
        world.table.route_replace(to, 0, RouteKind::via(PortId(1), gateway)).unwrap();
        let frames = std::iter::from_fn(|| world.pool().alloc()).take(PIECE).collect();
        Rig { world, frames }
    }

    fn fill(&mut self, mut flow: impl FnMut(u32) -> (u32, u32, u16, u16)) {
        let mac = self.world.mac(PortId(0));
        for (i, frame) in self.frames.iter_mut().enumerate() {
            let (source, destination, source_port, destination_port) = flow(i as u32);
            write_udp(frame.header_mut(), mac, source, destination, source_port, destination_port);
            assert!(frame.set_len(60));
        }
    }

    /// Cycles per packet of one round.
    fn round(&mut self) -> f64 {
        let mut lanes = self.world.lanes();
        let Lane { worker, peers } = &mut lanes[0];
        let [Some(input), Some(output)] = &mut peers[..] else { panic!() };
        for frame in self.frames.drain(..) {
            input.to_port.push(TxFrame { frame, offload: Offload::NONE }).ok().unwrap();
        }
        let start = clock::cycles();
        let mut found = 0;
        while found < PIECE {
            match worker.turn() {
                0 => break,
                some => found += some,
            }
        }
        let cycles = clock::cycles() - start;
        while let Ok(done) = output.from_port.pop() {
            self.frames.push(done.frame);
        }
        assert_eq!(self.frames.len(), PIECE, "a packet was lost");
        cycles as f64 / PIECE as f64
    }

    /// Median over rounds of the same packets.
    fn measure(&mut self, flow: impl Fn(u32) -> Flow) -> f64 {
        let rounds = 400;
        let mut all: Vec<f64> = (0..rounds)
            .map(|_| {
                self.fill(&flow);
                self.round()
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[rounds / 2]
    }

    /// Median over rounds of packets of random flows, all of which were met before.
    fn measure_flows(&mut self, flows: u32, random: &mut Random) -> f64 {
        for first in (0..flows).step_by(PIECE) {
            self.fill(|i| flow_of((first + i).min(flows - 1)));
            self.round();
        }
        let rounds = 300;
        let mut all: Vec<f64> = (0..rounds)
            .map(|_| {
                self.fill(|_| flow_of(random.below(flows)));
                self.round()
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[rounds / 2]
    }

    /// Mean over the last rounds of packets of new flows, at a pace at which `per_second` states end as they are made.
    fn measure_new(&mut self, first: u32, per_second: u32) -> f64 {
        let (start, mut next, mut all) = (std::time::Instant::now(), first, Vec::new());
        while start.elapsed().as_millis() < 4500 {
            self.fill(|i| flow_of(next + i));
            next += PIECE as u32;
            let cycles = self.round();
            if start.elapsed().as_millis() > 3000 {
                all.push(cycles);
            }
            while f64::from(next - first) > start.elapsed().as_secs_f64() * f64::from(per_second) {
                self.idle();
            }
        }
        all.iter().sum::<f64>() / all.len() as f64
    }

    /// A turn without packets.
    fn idle(&mut self) {
        std::thread::sleep(std::time::Duration::from_millis(1));
        self.world.lanes()[0].worker.turn();
    }
}

fn write_udp(h: &mut [u8; 128], mac: MacAddress, source: u32, destination: u32, sp: u16, dp: u16) {
    h[..60].fill(0);
    h[..6].copy_from_slice(&mac.0);
    h[6..12].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
    h[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    h[26..30].copy_from_slice(&source.to_be_bytes());
    h[30..34].copy_from_slice(&destination.to_be_bytes());
    h[34..36].copy_from_slice(&sp.to_be_bytes());
    h[36..38].copy_from_slice(&dp.to_be_bytes());
    h[38..40].copy_from_slice(&[0, 26]);
    let sum: u32 = h[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    h[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn classic(i: u32) -> (u32, u32, u16, u16) {
    (0xc612_0a01 + i / 70, 0xc613_0a01 + i % 70, 2000, 2000)
}

/// A flow of its own for each number.
fn flow_of(i: u32) -> Flow {
    (0x0b00_0001 + (i >> 8), 0xc613_0001 + (i & 255), 2000, 2000)
}

/// xorshift64*, Marsaglia and Vigna.
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.draw()) * u64::from(end)) >> 32) as u32
    }
}

fn rule(number: u32, action: Action, tests: Vec<Test>) -> Rule {
    let block = |test| Block { terms: vec![Term { not: false, test, span: Default::default() }] };
    Rule {
        number: number.min(65534) as u16,
        set: 0,
        probability: None,
        action,
        log: None,
        tag: None,
        blocks: tests.into_iter().map(block).collect(),
        state: None,
        options_only: false,
        comment: None,
        span: Default::default(),
    }
}

fn keep_state(number: u32) -> Rule {
    let state = StateOption { probes: true, limit: None, name: StateName::Default, deferred: false };
    Rule { state: Some(state), ..rule(number, Action::Allow, vec![]) }
}

fn prefix(side: Side, address: u32, length: u32) -> Test {
    let mask = (!0u32).checked_shl(32 - length).unwrap_or(0);
    Test::Address(side, Addresses::V4(vec![Masked4 { address: (address & mask).into(), mask: mask.into() }]))
}

/// One shape: deny from 1.j.i.0/24, then allow.
fn one_shape(count: u32) -> Vec<Rule> {
    let deny = |i: u32| rule(1 + i, Action::Deny, vec![prefix(Side::Source, 0x0100_0000 | i << 8, 24)]);
    (0..count - 1).map(deny).chain([rule(count, Action::Allow, vec![])]).collect()
}

type Flow = (u32, u32, u16, u16);

const TABLES: [&str; 4] = ["all", "one", "two", "three"];

fn table(side: Side, number: usize) -> Test {
    Test::Address(side, Addresses::Table(TABLES[number].into(), None))
}

/// Mixed shapes, and flows that hit every rule that UDP can hit.
fn mixed(count: u32, with_tables: bool, random: &mut Random) -> (Vec<Rule>, Vec<Flow>) {
    let (mut rules, mut flows) = (Vec::new(), Vec::new());
    let lengths = [8, 16, 20, 24, 24, 24, 28, 32, 32, 32];
    for i in 0..count - 1 {
        let mut tests = Vec::new();
        let (source, destination) = (0x0a00_0000 | random.below(1 << 24), 0xac10_0000 | random.below(1 << 20));
        let (from, to) = (1024 + random.below(60000) as u16, 1 + random.below(1024) as u16);
        let udp = random.below(10) < 6;
        match random.below(10) {
            0 => {}
            1..=5 => tests.push(Test::Protocol(if udp { 17 } else { 6 })),
            _ => tests.push(Test::Protocol(17)),
        }
        let hits = !matches!(tests.first(), Some(Test::Protocol(6)));
        if random.below(10) < 8 {
            tests.push(prefix(Side::Source, source, lengths[random.below(10) as usize].max(12)));
        }
        if random.below(10) < 9 {
            tests.push(prefix(Side::Destination, destination, lengths[random.below(10) as usize].max(16)));
        }
        if !tests.is_empty() && matches!(tests[0], Test::Protocol(_)) {
            match random.below(6) {
                0 => tests
                    .push(Test::Ports(Side::Destination, vec![Range { low: to, high: to + random.below(400) as u16 }])),
                1..=3 => tests.push(Test::Ports(Side::Destination, vec![Range { low: to, high: to }])),
                4 => tests.push(Test::Ports(Side::Source, vec![Range { low: from, high: from }])),
                _ => {}
            }
        }
        match (&tests.first(), random.below(8)) {
            (Some(Test::Protocol(6)), 0 | 1) => tests.push(Test::Established),
            (Some(Test::Protocol(6)), 2) => tests.push(Test::TcpFlags(Bits { set: 2, clear: 16 })),
            (_, 3) => tests.push(Test::Interface(InterfaceRole::Via, InterfaceMatch::Name("in".into()))),
            (_, 4) => tests.push(Test::In),
            _ => {}
        }
        if with_tables && random.below(10) == 0 {
            let at = tests.iter().position(|test| matches!(test, Test::Address(Side::Source, _)));
            let test = table(Side::Source, 1 + random.below(3) as usize);
            at.map(|at| tests[at] = test.clone()).unwrap_or_else(|| tests.push(test));
        }
        let action = match random.below(12) {
            0 => Action::Count,
            1 => Action::SkipTo(Argument::Number(i + 2 + random.below(30))),
            _ => Action::Allow,
        };
        if hits && tests.len() > 2 {
            flows.push((source, destination, from, to));
        }
        let mut made = rule(1 + i, action, tests);
        if random.below(10) == 0 {
            let other = prefix(Side::Source, 0x0a00_0000 | random.below(1 << 24), 24);
            let block = made
                .blocks
                .iter_mut()
                .find(|b| matches!(b.terms[0].test, Test::Address(Side::Source, Addresses::V4(_))));
            block
                .into_iter()
                .for_each(|b| b.terms.push(Term { not: false, test: other.clone(), span: Default::default() }));
        }
        rules.push(made);
    }
    rules.push(rule(count, Action::Allow, vec![]));
    (rules, flows)
}

fn stage(rules: &[Rule]) -> Vec<Box<dyn Stage>> {
    stage_with(rules, no_states(), 0, &mut Random(1))
}

fn no_states() -> Arc<Shared> {
    Arc::new(Shared::new(Settings::default()))
}

/// With tables of so many prefixes: number 0 of all addresses, the others of those that mixed rules have.
fn stage_with(rules: &[Rule], states: Arc<Shared>, prefixes: u32, random: &mut Random) -> Vec<Box<dyn Stage>> {
    let mut set = TableSet::new(&Domain::new(1));
    let kind = TableOptions {
        kind: TableKind::Address,
        values: vec![],
        algorithm: None,
        limit: 0,
        locked: false,
        missing: false,
        or_flush: false,
    };
    let mut tables = HashMap::new();
    for (number, name) in TABLES.into_iter().enumerate().filter(|_| prefixes > 0) {
        let id = set.create(name, &kind).unwrap();
        tables.insert(name.to_owned(), (id, TableKind::Address));
        let all: Vec<_> = (0..if number == 0 { prefixes } else { 100 })
            .map(|_| {
                let (base, size) = if number == 0 { (1 << 24, 100 << 24) } else { (10 << 24, 1 << 24) };
                let length = 20 + random.below(9);
                let address = (base + random.below(size)) & !0 << (32 - length);
                (TableKey::V4(address.into(), length as u8), TableValue::default())
            })
            .collect();
        let _ = set.add(name, &all, AddMode::default());
    }
    let options = Options { ports: vec!["in".into(), "out".into()], tables, ..Options::default() };
    let start = std::time::Instant::now();
    let program = compile(rules, &options, &mut Names::default());
    let took = start.elapsed().as_secs_f64() * 1e3;
    if rules.len() > 100 {
        println!("  {} rules compiled in {took:.0} ms, {} keys", rules.len(), program.classifier.keys());
    }
    let live = Arc::new(Live::new(program, 1));
    states.settings.max.store(1 << 20, Relaxed);
    states.settings.udp_lifetime.store(3600, Relaxed);
    let states = States::new(states, 1 << 20);
    vec![Box::new(Ipfw::new(&live, 0, 77, Holdings::new(states, set.reader(), 5)))]
}

fn main() {
    let mut random = Random(std::process::id().into());
    // What to measure: all whose name holds this word.
    let only = std::env::args().nth(1).unwrap_or_default();
    let plain = Rig::new(vec![]).measure(classic);
    println!("plain {plain:.1}");
    let mut show = |name: &str, measure: &mut dyn FnMut(&mut Random) -> f64| {
        if name.contains(&only) {
            let cycles = measure(&mut random);
            println!("{name}: {cycles:.1} (+{:.1})", cycles - plain);
        }
    };
    show("pass-through", &mut |_| Rig::new(LineUp { pass_through: 1 }.stages()).measure(classic));
    show("allow all", &mut |_| Rig::new(stage(&[rule(1, Action::Allow, vec![])])).measure(classic));
    for flows in [5000, 100_000, 1 << 20] {
        show(&format!("keep-state, {flows} flows"), &mut |random| {
            Rig::new(stage(&[keep_state(1)])).measure_flows(flows, random)
        });
    }
    show("new connections among 1 M", &mut |random| {
        let states = no_states();
        let lifetime = &states.settings.udp_lifetime;
        let mut rig = Rig::new(stage_with(&[keep_state(1)], states.clone(), 0, random));
        lifetime.store(3600, Relaxed);
        rig.measure_flows(700_000, random);
        lifetime.store(1, Relaxed);
        rig.idle();
        rig.measure_new(1 << 24, 60_000)
    });
    for prefixes in [1000, 1_000_000] {
        show(&format!("table of {prefixes} prefixes"), &mut |random| {
            let rules = [rule(1, Action::Count, vec![table(Side::Source, 0)]), rule(2, Action::Allow, vec![])];
            let mut rig = Rig::new(stage_with(&rules, no_states(), prefixes, random));
            let flows: Vec<Flow> =
                (0..PIECE).map(|_| (random.below(100 << 24) + (1 << 24), 0xc613_0001, 2000, 2000)).collect();
            rig.measure(|i| flows[i as usize])
        });
    }
    for count in [10u32, 100, 1000, 10_000] {
        show(&format!("{count} of one shape"), &mut |_| Rig::new(stage(&one_shape(count))).measure(classic));
    }
    for (kind, with_tables) in [("mixed", false), ("mixed with tables", true)] {
        for count in [1000, 10_000] {
            let draw = |random: &mut Random| {
                let (rules, flows) = mixed(count, with_tables, random);
                let hits: Vec<Flow> = (0..PIECE).map(|_| flows[random.below(flows.len() as u32) as usize]).collect();
                (Rig::new(stage_with(&rules, no_states(), 100, random)), hits)
            };
            show(&format!("{count} {kind}, hit"), &mut |random| {
                let (mut rig, hits) = draw(random);
                rig.measure(|i| hits[i as usize])
            });
            show(&format!("{count} {kind}, missed"), &mut |random| draw(random).0.measure(classic));
        }
    }
}
