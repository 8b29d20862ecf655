//! Random updates against a naive table, and updates under a reader's eyes.

use super::{LIMITS, UP, prefix};
use crate::fib::adjacency::AdjacencyKind;
use crate::fib::prefix::{PortId, Prefix, mask4, mask6};
use crate::fib::reserved::RESERVED;
use crate::fib::route::{RouteError, RouteKind};
use crate::fib::{Fib, RoutingTable, TableLimits};
use crate::quiesce::{Domain, Worker};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The naive table for one family: every prefix and metric is looked at.
type Oracle = BTreeMap<(Prefix, u32), u8>;

/// The port that the oracle sends `address` to: longest prefix, then lowest metric.
fn naive(oracle: &Oracle, address: IpAddr) -> Option<u8> {
    let host = Prefix::host(address);
    let holds = oracle.iter().filter(|((prefix, _), _)| prefix.contains(host));
    holds.max_by_key(|((prefix, metric), _)| (prefix.length(), u32::MAX - metric)).map(|(_, port)| *port)
}

/// A port for each answer, so that answers are told apart by the port.
fn answering(fib: &Fib, address: IpAddr) -> Option<u8> {
    let id = match address {
        IpAddr::V4(address) => fib.v4.lookup(address.to_bits()),
        IpAddr::V6(address) => fib.v6.lookup(address.to_bits()),
    };
    let view = fib.adjacencies.get(id);
    (view.kind() == AdjacencyKind::Glean).then(|| view.port().0 as u8)
}

fn v4_prefix() -> impl Strategy<Value = Prefix> {
    let address =
        prop_oneof![Just(0x0a00_0000_u32), Just(0x0a00_00ff), Just(0x0a00_0100), 0x0a00_0000..0x0a00_0400_u32];
    let length = prop_oneof![12 => Just(32_u8), 12 => Just(24), 1 => Just(0), 16 => 20_u8..=32, 4 => 12_u8..=32];
    // Few short ones: they are slow to write in a test build, and the same code as the others.
    (address, length).prop_map(|(address, length)| Prefix::V4 { address: address & mask4(length), length })
}

fn v6_prefix() -> impl Strategy<Value = Prefix> {
    let byte = || prop_oneof![3 => Just(0_u8), 1 => Just(1), 1 => Just(0xff), 1 => any::<u8>()];
    let length =
        prop_oneof![2 => Just(128_u8), 2 => Just(64), 2 => Just(48), 1 => Just(32), 1 => Just(0), 4 => 0_u8..=128];
    (proptest::collection::vec(byte(), 13), length).prop_map(|(bytes, length)| {
        let mut all = [0x20_u8, 1, 0xd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        all[3..].copy_from_slice(&bytes);
        Prefix::V6 { address: u128::from_be_bytes(all) & mask6(length), length }
    })
}

fn around(prefix: Prefix) -> Vec<IpAddr> {
    match prefix {
        Prefix::V4 { address, length } => {
            let last = address | !mask4(length);
            [address, last, address.wrapping_sub(1), last.wrapping_add(1)].map(|bits| IpAddr::V4(bits.into())).to_vec()
        }
        Prefix::V6 { address, length } => {
            let last = address | !mask6(length);
            [address, last, address.wrapping_sub(1), last.wrapping_add(1)].map(|bits| IpAddr::V6(bits.into())).to_vec()
        }
    }
}

fn is_reserved(address: IpAddr) -> bool {
    RESERVED.iter().any(|entry| entry.prefix.contains(Prefix::host(address)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn agrees_with_the_naive_table(
        updates in proptest::collection::vec(
            (prop_oneof![v4_prefix(), v6_prefix()], 0_u32..3, 0_u8..5, any::<u16>()), 1..50),
    ) {
        let mut table = RoutingTable::new(&Domain::new(1), LIMITS);
        let fib = table.fib();
        for port in 1..5 {
            table.port_set(PortId(port), UP).unwrap();
        }
        let start = table.counts();
        let mut oracle = Oracle::new();
        let mut probes: Vec<IpAddr> = Vec::new();
        for (prefix, metric, port, pick) in updates {
            if port == 0 {
                let Some(&(prefix, metric)) = oracle.keys().nth(usize::from(pick) % oracle.len().max(1)) else { continue };
                oracle.remove(&(prefix, metric));
                table.route_delete(prefix, metric).unwrap();
            } else {
                let kind = RouteKind::Connected { port: PortId(port.into()) };
                match table.route_replace(prefix, metric, kind) {
                    Ok(_) => {
 oracle.insert((prefix, metric), port);
 }
                    Err(error) => {
                        let reserved = matches!(error, RouteError::Reserved { .. });
                        prop_assert!(reserved, "{}", error);
                    }
                }
                probes.extend(around(prefix));
            }
            for address in probes.iter().filter(|address| !is_reserved(**address)) {
                prop_assert_eq!(answering(&fib, *address), naive(&oracle, *address), "{}", address);
            }
        }
        for (prefix, metric) in oracle.keys().copied().rev().collect::<Vec<_>>() {
            oracle.remove(&(prefix, metric));
            table.route_delete(prefix, metric).unwrap();
            for address in probes.iter().filter(|address| !is_reserved(**address)) {
                prop_assert_eq!(answering(&fib, *address), naive(&oracle, *address), "{}", address);
            }
        }
        prop_assert_eq!(table.counts(), start);
    }
}

/// A reader that checks, during updates, that each address gets one of the answers that are right for it at some moment:
/// 192.0.x.4 and 2001:db8:f::x alternate between covers (ports 1 and 2) and their own routes (ports 3 and 4).
fn watch(fib: &Fib, worker: &mut Worker, stop: &AtomicBool) -> u64 {
    let mut looked = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for host in 0..64_u32 {
            let v4 = 0xc000_0004 | host << 8;
            let v6 = 0x2001_0db8_000f_u128 << 80 | u128::from(host) << 60;
            let (top4, top6) = (fib.v4.top(v4), fib.v6.top(v6));
            for (view, family) in [(fib.v4.finish(top4, v4), 4), (fib.v6.finish(top6, v6), 6)] {
                let view = fib.adjacencies.get(view);
                assert_eq!(view.kind(), AdjacencyKind::Glean, "IPv{family} host {host} lost its route");
                let right: [u16; 4] = if host % 2 == 0 { [1, 2, 3, 3] } else { [1, 2, 4, 4] };
                assert!(right.contains(&view.port().0), "IPv{family} host {host} went to {:?}", view.port());
            }
            looked += 2;
        }
        worker.quiescent();
    }
    looked
}

/// 100,000 updates of single routes and of their covers, while a reader checks every answer. Nodes, groups and
/// adjacencies come and go all the time, so an early reuse shows as a wrong port.
#[test]
fn readers_meet_the_old_or_the_new_answer() {
    let domain = Domain::new(2);
    let mut table = RoutingTable::new(&domain, TableLimits { adjacencies: 24, multipath_groups: 1 });
    for port in 1..5 {
        table.port_set(PortId(port), UP).unwrap();
    }
    let connected = |port: u32| RouteKind::Connected { port: PortId(port as u16) };
    let covers = [prefix("192.0.0.0/16"), prefix("2001:db8::/32")];
    for cover in covers {
        table.route_replace(cover, 0, connected(1)).unwrap();
    }
    let start = table.counts();
    let stop = AtomicBool::new(false);
    let looked = std::thread::scope(|scope| {
        let (fib, mut worker) = (table.fib(), domain.register().unwrap());
        let reader = scope.spawn({
            let stop = &stop;
            move || watch(&fib, &mut worker, stop)
        });
        let mut random = 1_u32;
        let mut updates = 0_u32;
        let mut present = BTreeSet::new();
        while updates < 100_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let host = random >> 8 & 63;
            let (v4, v6) = (0xc000_0004 | host << 8, 0x2001_0db8_000f_u128 << 80 | u128::from(host) << 60);
            let own = if random >> 20 & 1 == 0 {
                Prefix::V4 { address: v4, length: 30 + (random >> 14) as u8 % 3 }
            } else {
                Prefix::V6 { address: v6, length: 68 + (random >> 14) as u8 % 61 }
            };
            // A reader that was put to sleep by the system holds adjacencies and nodes back: wait for it.
            let outcome = if random >> 28 == 0 {
                let cover = covers[random as usize >> 21 & 1];
                table.route_replace(cover, 0, connected(1 + (random >> 22 & 1))).map(|_| ())
            } else if present.contains(&own) {
                table.route_delete(own, 0).inspect(|()| assert!(present.remove(&own)))
            } else {
                let port = 3 + host % 2;
                table.route_replace(own, 0, connected(port)).map(|_| assert!(present.insert(own)))
            };
            match outcome {
                Ok(()) => updates += 1,
                Err(RouteError::AdjacenciesFull | RouteError::TableFull { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        for own in present {
            while table.route_delete(own, 0).is_err() {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(looked > 1000, "the reader took part: {looked} look-ups");
    for cover in covers {
        table.route_replace(cover, 0, connected(1)).unwrap();
    }
    assert_eq!(table.counts(), start);
}
