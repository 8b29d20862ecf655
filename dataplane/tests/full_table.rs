//! A full Internet table fits in 200 MB in all, answers as its routes say, and is given back.
//!
//! `cargo test --release -p ferrule-dataplane --test full_table -- --nocapture` prints where the memory goes.

mod internet;

use ferrule_dataplane::fib::{MacAddress, NextHop, PortId, PortSettings, Prefix, RouteKind, RoutingTable, TableLimits};
use ferrule_dataplane::quiesce::Domain;
use internet::{FULL_V4, FULL_V6, Random, prefixes_v4, prefixes_v6};
use std::net::IpAddr;

const LIMIT_BYTES: usize = 200 << 20;
const GATEWAYS: u64 = 48;

/// Resident memory of this process, in bytes (proc_pid_statm(5)).
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells a process its own memory");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("the second field is a number") * 4096
}

fn gateway(number: u64) -> RouteKind {
    let gateway = Some(IpAddr::from([10, 0, 0, number as u8 + 1]));
    RouteKind::Via([NextHop { port: PortId(1), gateway, weight: 1, on_link: true }].into_iter().collect())
}

#[test]
fn a_full_table_fits_in_200_megabytes() {
    let mut random = Random::new(1);
    let mut routes = prefixes_v4(FULL_V4, &mut random);
    routes.extend(prefixes_v6(FULL_V6, &mut random));
    let choices: Vec<u8> = routes.iter().map(|_| random.below(GATEWAYS) as u8).collect();
    let before = resident();

    let mut table = RoutingTable::new(&Domain::new(1), TableLimits::default());
    let settings = PortSettings { mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu: 1500, vlan: None, up: true };
    table.port_set(PortId(1), settings).unwrap();
    let empty = table.counts();
    for (prefix, choice) in routes.iter().zip(&choices) {
        table.route_replace(*prefix, 0, gateway(u64::from(*choice))).unwrap();
    }
    let (memory, counts) = (table.memory(), table.counts());
    let grown = resident().saturating_sub(before);
    println!("{counts:?}");
    println!("{memory:?}, together {} MB, resident {} MB", memory.total() >> 20, grown >> 20);
    assert_eq!((counts.routes_v4, counts.routes_v6), (FULL_V4, FULL_V6));
    assert!(memory.total() < LIMIT_BYTES, "{memory:?}");
    assert!(grown < LIMIT_BYTES, "{grown} bytes became resident");
    assert!(memory.fib6 < 70 << 20, "{memory:?}");

    // The table that workers read and the routes by prefix agree on a sample.
    let fib = table.fib();
    for prefix in routes.iter().step_by(97) {
        let last = prefix.last();
        let found = match last {
            IpAddr::V4(address) => fib.v4.lookup(address.to_bits()),
            IpAddr::V6(address) => fib.v6.lookup(address.to_bits()),
        };
        assert_eq!(Some(found), table.route_to(last).map(|route| route.adjacency), "{last}");
        assert_ne!(found.0, 0, "{last} is in {prefix}");
    }

    // A default route on top, and everything withdrawn in another order.
    table.route_replace(Prefix::V4 { address: 0, length: 0 }, 0, gateway(0)).unwrap();
    table.route_replace(Prefix::V6 { address: 0, length: 0 }, 0, gateway(0)).unwrap();
    assert!(table.memory().total() < LIMIT_BYTES, "{:?}", table.memory());
    routes.sort_by_key(|prefix| prefix.last());
    for prefix in &routes {
        table.route_delete(*prefix, 0).unwrap();
    }
    table.flush().unwrap();
    assert_eq!(table.counts(), empty);
}
