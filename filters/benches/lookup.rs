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
use ferrule_filters::ipfw::dynamic::{FlowKey, NameFilter, NameId, NewState, PacketFacts, RuleRef, Shared, States};
use ferrule_filters::ipfw::table::{AddMode, TableId, TableSet, Tables};

const BATCH: usize = 256;
/// How many packets ahead the first and the second stage of prefetching are.
const FAR: usize = 16;
const NEAR: usize = 8;
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

/// One pass over `packets` random packets of the flows, whose keys lie in order as descriptors do.
fn probe_all(states: &mut States, packets: &[(FlowKey, u32)], v6: bool) {
    let facts = PacketFacts { length: 60, ..PacketFacts::default() };
    for batch in packets.chunks(BATCH) {
        for (place, (key, hash)) in batch.iter().enumerate() {
            if let Some((_, far)) = batch.get(place + FAR) {
                states.prefetch_bucket(*far);
            }
            if let Some((_, near)) = batch.get(place + NEAR) {
                states.prefetch_state(*near);
            }
            if v6 && let Some((_, near)) = batch.get(place + NEAR / 2) {
                states.prefetch_addresses(*near);
            }
            let hit = states.probe(key, NameFilter::Name(NameId::DEFAULT), *hash, &facts);
            assert!(black_box(hit).is_some());
        }
    }
}

fn dynamic() {
    for v6 in [false, true] {
        for flows in [1_000, 5_000, 100_000, 1_000_000] {
            let (mut states, keys) = states(flows, v6);
            let mut random = Random(99);
            let packets: Vec<_> = (0..1 << 20).map(|_| keys[random.next() as usize % keys.len()]).collect();
            let found = best(8, packets.len(), || probe_all(&mut states, &packets, v6));
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

/// What a pass costs with keys from `keys` in order.
fn look_up_all(tables: &Tables, id: TableId, keys: &[u32]) {
    for batch in keys.chunks(BATCH) {
        for (place, key) in batch.iter().enumerate() {
            if let Some(far) = batch.get(place + FAR) {
                tables.prefetch4(id, *far);
            }
            if let Some(near) = batch.get(place + NEAR) {
                tables.prefetch4_line(id, *near);
            }
            black_box(tables.lookup4(id, *key));
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
