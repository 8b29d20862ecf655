//! Dynamic rules and look-up tables alone, in TSC cycles an operation: `cargo bench -p ferrule-filters --bench lookup`.
//!
//! Each figure is the best of several runs over batches of 256 packets, with the prefetch stages that a batch allows.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use ferrule_config::ipfw::table::{TableKey, TableKind, TableOptions, TableValue};
use ferrule_dataplane::clock::cycles;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::quiesce::Domain;
use ferrule_filters::ipfw::dynamic::{
    Candidate, FlowKey, NameFilter, NameId, NewState, PacketFacts, RuleRef, Shared, States,
};
use ferrule_filters::ipfw::table::{AddMode, TableId, TableSet, Tables};

const BATCH: usize = 256;
/// Packets of one step of prefetching.
const STEP: usize = 16;
const RULE: RuleRef = RuleRef { index: 1, generation: 0 };

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// The fewest cycles an operation over `runs` runs of `operations`.
fn best(runs: usize, operations: usize, mut run: impl FnMut()) -> f64 {
    let measure = |run: &mut dyn FnMut()| {
        let start = cycles();
        run();
        (cycles() - start) as f64 / operations as f64
    };
    (0..runs).map(|_| measure(&mut run)).fold(f64::MAX, f64::min)
}

fn states(flows: u32, v6: bool) -> (States, Vec<(FlowKey, u32)>) {
    let seed = HashSeed::random();
    let shared = Arc::new(Shared::default());
    shared.set("dyn_max", 1 << 21).expect("below the most");
    shared.set("dyn_udp_lifetime", 1000).expect("a setting");
    let mut states = States::new(shared, 1 << 21);
    states.turn(0);
    let mut random = Random(7);
    let keys: Vec<(FlowKey, u32)> = (0..flows)
        .map(|n| {
            let (ports, address) = (random.next(), random.next() as u32);
            let key = if v6 {
                FlowKey::v6(u128::from(address) << 64 | u128::from(n), 5 << 100, 17, ports as u16, 53)
            } else {
                FlowKey::v4(address, 0xc633_0000 | n & 0xff, 17, ports as u16, 53)
            };
            (key, key.hash(seed))
        })
        .collect();
    let facts = PacketFacts { length: 60, ..PacketFacts::default() };
    for (key, hash) in &keys {
        let new = NewState { key: *key, hash: *hash, name: NameId::DEFAULT, rule: RULE, limit: None };
        states.install(&new, &facts).expect("there is room");
    }
    (states, keys)
}

/// A packet as a descriptor and its header have it: addresses, ports and hash, not the 64 bytes of a whole key.
#[derive(Clone, Copy)]
enum Packets<'a> {
    V4(&'a [(u64, u32, u32)]),
    V6(&'a [(FlowKey, u32)]),
}

/// One pass over all packets, as a batch goes: first stage, second stage, probe.
fn probe_all(states: &mut States, packets: Packets<'_>) {
    match packets {
        Packets::V4(packets) => {
            let key =
                |&(addresses, ports, hash): &(u64, u32, u32)| (FlowKey::V4 { addresses, ports, protocol: 17 }, hash);
            packets.chunks(BATCH).for_each(|batch| probe_batch(states, batch, key, |packet| packet.2, false));
        }
        Packets::V6(packets) => {
            packets
                .chunks(BATCH)
                .for_each(|batch| probe_batch(states, batch, |packet| *packet, |packet| packet.1, true));
        }
    }
}

#[inline(always)]
fn probe_batch<P>(
    states: &mut States,
    batch: &[P],
    key: impl Fn(&P) -> (FlowKey, u32),
    hash: impl Fn(&P) -> u32,
    v6: bool,
) {
    let facts = PacketFacts { length: 60, ..PacketFacts::default() };
    let mut candidates = [Candidate::NONE; BATCH];
    // In steps of a few packets, so that no more loads are under way than the processor can keep.
    let steps = batch.len().div_ceil(STEP);
    let part = |step: usize| step * STEP..((step + 1) * STEP).min(batch.len());
    for step in 0..steps + 3 {
        if step < steps {
            batch[part(step)].iter().for_each(|packet| states.prefetch_bucket(hash(packet)));
        }
        if step >= 1 && step < steps + 1 {
            for place in part(step - 1) {
                candidates[place] = states.prefetch_state(hash(&batch[place]));
            }
        }
        if v6 && step >= 2 && step < steps + 2 {
            candidates[part(step - 2)].iter().for_each(|candidate| states.prefetch_addresses(*candidate));
        }
        if step >= 3 {
            for place in part(step - 3) {
                let (key, hash) = key(&batch[place]);
                let name = NameFilter::Name(NameId::DEFAULT);
                let hit = states.probe_candidate(candidates[place], &key, name, hash, &facts);
                assert!(black_box(hit.map(|hit| hit.rule.index)) == Some(RULE.index));
            }
        }
    }
}

fn dynamic() {
    for v6 in [false, true] {
        for flows in [1_000, 5_000, 100_000, 1_000_000] {
            let (mut states, keys) = states(flows, v6);
            let mut random = Random(99);
            let packets: Vec<_> = (0..1 << 19).map(|_| keys[random.next() as usize % keys.len()]).collect();
            let short: Vec<(u64, u32, u32)> = packets
                .iter()
                .filter_map(|(key, hash)| match *key {
                    FlowKey::V4 { addresses, ports, .. } => Some((addresses, ports, *hash)),
                    FlowKey::V6 { .. } => None,
                })
                .collect();
            let all = if v6 { Packets::V6(&packets) } else { Packets::V4(&short) };
            let found = best(8, packets.len(), || probe_all(&mut states, all));
            let bytes = states.memory() as f64 / f64::from(flows);
            let family = if v6 { "IPv6" } else { "IPv4" };
            println!("{family} {flows:>9} states: probe and refresh {found:6.1} cycles, {bytes:5.1} bytes a state");
        }
    }
    // New connections at steady state: a million live for ten seconds, so a hundred thousand come and go each second.
    let seed = HashSeed::random();
    let shared = Arc::new(Shared::default());
    shared.set("dyn_max", 1 << 21).expect("below the most");
    let mut states = States::new(shared, 1 << 21);
    let facts = PacketFacts { length: 60, ..PacketFacts::default() };
    let (mut time, mut flow, mut random) = (0_u64, 0_u32, Random(5));
    let mut connect = |count: u32| {
        for _ in 0..count / BATCH as u32 {
            time += BATCH as u64 * 10_000;
            states.turn(time);
            let keys: [(FlowKey, u32); BATCH] = std::array::from_fn(|_| {
                flow += 1;
                let key = FlowKey::v4(random.next() as u32, flow, 17, 7, 53);
                (key, key.hash(seed))
            });
            for (_, hash) in &keys {
                states.prefetch_bucket(*hash);
            }
            for (key, hash) in &keys {
                assert!(states.probe(key, NameFilter::Any, *hash, &facts).is_none());
                let new = NewState { key: *key, hash: *hash, name: NameId::DEFAULT, rule: RULE, limit: None };
                states.install(&new, &facts).expect("there is room");
            }
            for (key, hash) in &keys {
                assert!(states.probe(&key.reverse(), NameFilter::Any, *hash, &facts).is_some());
            }
            states.sweep(
                2 * BATCH,
                |view| {
                    black_box(view);
                },
                |_| {},
            );
        }
        states.len()
    };
    let live = connect(3_000_000);
    let each = best(5, 500_000, || {
        connect(500_000);
    });
    println!("new connection with {live} states, two passes and expiry: {each:.0} cycles");
}

/// What a pass costs with keys from `keys` in order, as a batch goes.
fn look_up_all(tables: &Tables, id: TableId, keys: &[u32]) {
    for batch in keys.chunks(BATCH) {
        for step in 0..BATCH / STEP + 2 {
            let part = |step: usize| batch.get(step * STEP..(step + 1) * STEP).unwrap_or_default();
            part(step).iter().for_each(|key| tables.prefetch4(id, *key));
            part(step.wrapping_sub(1) & 0xffff).iter().for_each(|key| tables.prefetch4_line(id, *key));
            for key in part(step.wrapping_sub(2) & 0xffff) {
                black_box(tables.lookup4(id, *key));
            }
        }
    }
}

fn table() {
    for (what, length) in [("/32", Some(32)), ("/24", Some(24)), ("/8 to /32", None)] {
        for entries in [100, 1_000, 10_000, 100_000, 1_000_000] {
            let mut set = TableSet::new(&Domain::new(1));
            let options = TableOptions {
                kind: TableKind::Address,
                values: Vec::new(),
                algorithm: None,
                limit: 0,
                locked: false,
                missing: false,
                or_flush: false,
            };
            let id = set.create("t", &options).expect("a new table");
            let mut random = Random(entries as u64);
            let mut prefix = || {
                let address = random.next() as u32;
                let length = length.unwrap_or(8 + (random.next() % 25) as u8);
                TableKey::V4(Ipv4Addr::from_bits(address & u32::MAX << (32 - u32::from(length))), length)
            };
            let list: Vec<_> =
                (0..entries).map(|n| (prefix(), TableValue { skipto: n % 100, ..TableValue::default() })).collect();
            let start = Instant::now();
            let update = AddMode { atomic: false, update: true };
            set.add("t", &list, update).1.expect("there is room");
            let loaded = start.elapsed();
            let mut slowest = std::time::Duration::ZERO;
            for _ in 0..1000 {
                let entry = (prefix(), TableValue { skipto: 1, ..TableValue::default() });
                let start = Instant::now();
                set.add("t", &[entry], update).1.expect("there is room");
                slowest = slowest.max(start.elapsed());
            }
            let mut tables = set.reader();
            tables.turn();
            let mut random = Random(1);
            let keys: Vec<u32> = (0..1 << 20).map(|_| random.next() as u32).collect();
            let each = best(8, keys.len(), || look_up_all(&tables, id, &keys));
            let bytes = set.memory() as f64 / f64::from(entries);
            println!(
                "{entries:>9} prefixes {what:>9}: look-up {each:5.1} cycles, loaded in {loaded:.1?}, slowest of 1000 updates \
                 {slowest:.0?}, {bytes:.0} bytes a prefix"
            );
        }
    }
}

fn main() {
    let which = std::env::args().nth(1).unwrap_or_default();
    if which != "table" {
        dynamic();
    }
    if which != "dynamic" {
        table();
    }
}
