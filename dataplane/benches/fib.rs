//! Look-ups of a small and of a full table, in nanoseconds and in proportion to a hot IPv4 look-up of the same run, and
//! single-route updates per second. `cargo bench -p ferrule-dataplane --bench fib`

#[path = "../tests/internet/mod.rs"]
mod internet;

use ferrule_dataplane::fib::{
    Fib, Fib4, Fib6, MacAddress, NextHop, PortId, PortSettings, Prefix, RouteKind, RoutingTable, TableLimits,
};
use ferrule_dataplane::quiesce::Domain;
use internet::{FULL_V4, FULL_V6, Random, prefixes_v4, prefixes_v6};
use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

const BATCH: usize = 64;
const ADDRESSES: usize = 1 << 20;
/// Batches of one run, and number of runs: together more than [`ADDRESSES`].
const RUN_BATCHES: usize = 256;
const RUNS: usize = 101;

/// One batch in two passes, as a worker does it.
#[inline(never)]
fn batch_v4(fib: &Fib4, batch: &[u32; BATCH]) -> u32 {
    let mut tops = [0; BATCH];
    for (top, address) in tops.iter_mut().zip(batch) {
        *top = fib.top(*address);
    }
    tops.iter().zip(batch).fold(0, |sum, (top, address)| sum ^ fib.finish(*top, *address).0)
}

/// One batch in two passes, as a worker does it.
#[inline(never)]
fn batch_v6(fib: &Fib6, batch: &[u128; BATCH]) -> u32 {
    let mut entries = [0; BATCH];
    for (entry, address) in entries.iter_mut().zip(batch) {
        *entry = fib.top(*address);
    }
    fib.finish_batch(&mut entries, |index| batch[index]);
    entries.iter().fold(0, |sum, entry| sum ^ Fib6::answer(*entry).0)
}

/// The same addresses, each followed to its end before the next.
#[inline(never)]
fn singly_v6(fib: &Fib6, batch: &[u128; BATCH]) -> u32 {
    let mut tops = [0; BATCH];
    for (top, address) in tops.iter_mut().zip(batch) {
        *top = fib.top(*address);
    }
    tops.iter().zip(batch).fold(0, |sum, (top, address)| sum ^ fib.finish(*top, *address).0)
}

/// Nanoseconds per look-up: the median of the quietest half of many short runs, each shorter than a time slice, so that
/// what else the machine does counts little.
fn measure<A: Copy, const N: usize>(addresses: &[A], look_up: impl Fn(&[A; N]) -> u32) -> f64 {
    let (batches, _) = addresses.as_chunks::<N>();
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|run| {
            let first = run * RUN_BATCHES;
            let start = Instant::now();
            for batch in first..first + RUN_BATCHES {
                black_box(look_up(black_box(&batches[batch % batches.len()])));
            }
            start.elapsed().as_nanos() as f64 / (RUN_BATCHES * N) as f64
        })
        .collect();
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 4]
}

fn gateway(number: u64) -> RouteKind {
    let gateway = Some(IpAddr::from([10, 0, 0, number as u8 + 1]));
    RouteKind::Via([NextHop { port: PortId(1), gateway, weight: 1, on_link: true }].into_iter().collect())
}

fn empty_table() -> RoutingTable {
    let mut table = RoutingTable::new(&Domain::new(1), TableLimits::default());
    let settings = PortSettings { mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu: 1500, vlan: None, up: true };
    table.port_set(PortId(1), settings).expect("an empty table takes a port");
    table
}

fn hot(fib: &Fib, v4: u32, v6: &[(&str, u128)]) {
    let unit = measure(&[v4; BATCH], |batch| batch_v4(&fib.v4, batch));
    println!("hot IPv4 /24                     {unit:7.2} ns");
    for (name, address) in v6 {
        let time = measure(&[*address; BATCH], |batch| batch_v6(&fib.v6, batch));
        println!("hot IPv6 {name:<23} {time:7.2} ns  {:5.2} x  {:+.2} ns", time / unit, time - unit);
        let time = measure(&[*address; BATCH], |batch| singly_v6(&fib.v6, batch));
        println!("    one after the other          {time:7.2} ns  {:5.2} x  {:+.2} ns", time / unit, time - unit);
    }
}

fn main() {
    let mut table = empty_table();
    let fib = table.fib();
    let base = 0x2001_0db8_u128 << 96;
    for (address, length) in [(base | 2 << 80, 48), (base | 3 << 80, 64), (base | 4 << 80 | 9, 128)] {
        table.route_replace(Prefix::V6 { address, length }, 0, gateway(1)).expect("there is room");
    }
    table.route_replace(Prefix::V4 { address: 0xc000_0200, length: 24 }, 0, gateway(1)).expect("there is room");
    println!("few routes");
    hot(&fib, 0xc000_0207, &[("/48", base | 2 << 80 | 7), ("/64", base | 3 << 80 | 7), ("/128", base | 4 << 80 | 9)]);

    let mut table = empty_table();
    let fib = table.fib();
    let mut random = Random::new(1);
    let mut routes = prefixes_v4(FULL_V4, &mut random);
    routes.extend(prefixes_v6(FULL_V6, &mut random));
    let start = Instant::now();
    for prefix in &routes {
        table.route_replace(*prefix, 0, gateway(random.below(48))).expect("a full table fits");
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("full table: {} routes in {seconds:.2} s, {:.0} a second", routes.len(), routes.len() as f64 / seconds);
    println!("{:?}, together {} MB", table.memory(), table.memory().total() >> 20);
    let of_length = |wanted| {
        let holds = |prefix: &&Prefix| matches!(prefix, Prefix::V6 { length, .. } if *length == wanted);
        routes.iter().find(holds).map_or(0, |prefix| match *prefix {
            Prefix::V6 { address, .. } => address | 1,
            Prefix::V4 { .. } => 0,
        })
    };
    hot(&fib, 0xc000_0207, &[("/32", of_length(32)), ("/48", of_length(48)), ("/64", of_length(64))]);

    let v4: Vec<u32> = (0..ADDRESSES).map(|_| random.next() as u32).collect();
    let (v4_routes, v6_routes) = routes.split_at(FULL_V4);
    let v6: Vec<u128> = (0..ADDRESSES)
        .map(|_| match v6_routes[random.below(v6_routes.len() as u64) as usize] {
            Prefix::V6 { address, length } => random.inside_v6(address, length),
            Prefix::V4 { .. } => 0,
        })
        .collect();
    println!("random IPv4 destinations         {:7.2} ns", measure(&v4, |batch| batch_v4(&fib.v4, batch)));
    println!("random IPv6 destinations         {:7.2} ns", measure(&v6, |batch| batch_v6(&fib.v6, batch)));
    println!("    one after the other          {:7.2} ns", measure(&v6, |batch| singly_v6(&fib.v6, batch)));

    for (name, some) in [("IPv4", &v4_routes[..100_000]), ("IPv6", &v6_routes[..100_000])] {
        let start = Instant::now();
        for prefix in some {
            table.route_delete(*prefix, 0).expect("it was added");
        }
        for prefix in some {
            table.route_replace(*prefix, 0, gateway(1)).expect("there is room");
        }
        println!("{name}: {:.0} updates a second", 2.0 * some.len() as f64 / start.elapsed().as_secs_f64());
    }
}
