//! Memory of a full table, the time of one route's change, and what the parts of the path cost by themselves.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::net::IpAddr;
use std::time::Instant;

use ferrule::compare::flows::{Family, write_frame};
use ferrule::compare::rig::{GATEWAYS, Random};
use ferrule::failure::Failure;
use ferrule::ministat;
use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HEADER_WINDOW, HugePages, Pool};
use ferrule_dataplane::clock;
use ferrule_dataplane::fib::{MacAddress, NextHop, PortSettings, RouteKind, RoutingTable, TableLimits};
use ferrule_dataplane::packet::parse::{self, Ingress};
use ferrule_dataplane::packet::{Offload, Packet, PortId, checksum};
use ferrule_dataplane::ports::{Port, PortTable};
use ferrule_dataplane::quiesce::Domain;

use crate::bench::Bench;
use crate::internet::Internet;
use crate::rows::{Row, Section, Target};

const MEGABYTE: f64 = 1_048_576.0;
/// What a full table may take, MB.
const MEMORY_LIMIT: f64 = 200.0;

fn gateway(number: u64) -> RouteKind {
    let address = IpAddr::from([10, 0, 0, 1 + (number % u64::from(GATEWAYS)) as u8]);
    RouteKind::Via(
        [NextHop { port: PortId(1), gateway: Some(address), weight: 1, on_link: true }].into_iter().collect(),
    )
}

/// Resident memory of this process, bytes (proc_pid_status(5), in kB there).
fn resident() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

/// Memory and changes of a full table, and look-ups in it.
///
/// # Errors
/// When a route is refused.
pub fn table(bench: &Bench, internet: &Internet, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let refused = |e| Failure::runtime(format!("a route of the full table: {e}"));
    let before = resident();
    let mut table = RoutingTable::new(&Domain::new(1), TableLimits::default());
    let settings = PortSettings { mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu: 1500, vlan: None, up: true };
    table.port_set(PortId(1), settings).map_err(refused)?;
    let all = || internet.v4.iter().chain(&internet.v6);
    let start = Instant::now();
    for (number, prefix) in all().enumerate() {
        table.route_replace(*prefix, 0, gateway(number as u64)).map_err(refused)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let routes = all().count();
    let limit = Target::AtMost(MEMORY_LIMIT);
    let own = table.memory().total() as f64 / MEGABYTE;
    rows.push(Row::new(format!("memory of {routes} routes, as the table counts it"), "MB", &[own]).target(limit));
    if let (Some(before), Some(after)) = (before, resident()) {
        let grown = (after - before) / MEGABYTE;
        let row = Row::new(format!("memory of {routes} routes, growth of the process"), "MB", &[grown]);
        rows.push(row.target(limit));
    }
    rows.push(Row::new("loading the table, one route at a time", "kroutes/s", &[routes as f64 / seconds / 1e3]));
    changes(bench, internet, &mut table, rows)?;
    look_ups(bench, internet, &table, rows);
    Ok(())
}

/// Single routes taken out of the full table and put back, each timed.
fn changes(bench: &Bench, internet: &Internet, table: &mut RoutingTable, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let mut random = Random::new(19);
    for family in Family::ALL {
        let prefixes = internet.of(family);
        let mut took = Vec::new();
        for _ in 0..bench.size(20_000, 200) {
            let prefix = prefixes[random.below(prefixes.len())];
            let mut timed = |change: &mut dyn FnMut(&mut RoutingTable) -> Result<(), String>| {
                let start = Instant::now();
                change(table).map_err(|e| Failure::runtime(format!("{prefix}: {e}")))?;
                took.push(start.elapsed().as_secs_f64() * 1e6);
                Ok::<(), Failure>(())
            };
            timed(&mut |t| t.route_delete(prefix, 0).map_err(|e| e.to_string()))?;
            timed(&mut |t| t.route_replace(prefix, 0, gateway(1)).map(drop).map_err(|e| e.to_string()))?;
        }
        let share = |share| ministat::quantile(&took, share).unwrap_or_default();
        let note = format!("99 % within {:.1} us; {} changes", share(0.99), took.len());
        rows.push(
            Row::new(format!("one route added or withdrawn in the full table, {family}"), "us", &took).note(note),
        );
    }
    Ok(())
}

/// Cycles per address, look-ups one after the other: nothing overlaps them but the processor itself.
fn look_ups(bench: &Bench, internet: &Internet, table: &RoutingTable, rows: &mut Vec<Row>) {
    let (fib, mut random) = (table.fib(), Random::new(23));
    let count = bench.size(1 << 19, 1 << 10);
    for family in Family::ALL {
        let everywhere = internet.destinations(family, count, table, &mut random);
        let here = vec![everywhere[0]; everywhere.len()];
        for (name, addresses) in [("one destination", &here), ("random destinations", &everywhere)] {
            let figures = match family {
                Family::Inet => {
                    let list: Vec<u32> = addresses.iter().filter_map(v4).collect();
                    timed(bench, list.len(), || list.iter().fold(0, |sum, a| sum ^ fib.v4.lookup(*a).0))
                }
                Family::Inet6 => {
                    let list: Vec<u128> = addresses.iter().filter_map(v6).collect();
                    timed(bench, list.len(), || list.iter().fold(0, |sum, a| sum ^ fib.v6.lookup(*a).0))
                }
            };
            rows.push(Row::new(format!("look-up in the full table, {family}, {name}"), "cycles", &figures));
        }
    }
}

fn v4(address: &IpAddr) -> Option<u32> {
    if let IpAddr::V4(v4) = address { Some(v4.to_bits()) } else { None }
}

fn v6(address: &IpAddr) -> Option<u128> {
    if let IpAddr::V6(v6) = address { Some(v6.to_bits()) } else { None }
}

/// Cycles for each of `count` pieces of the work, several times.
fn timed<T>(bench: &Bench, count: usize, mut work: impl FnMut() -> T) -> Vec<f64> {
    (0..bench.samples.max(2))
        .map(|_| {
            let start = clock::cycles();
            black_box(work());
            clock::cycles().wrapping_sub(start) as f64 / count as f64
        })
        .collect()
}

/// Checksums and the parser by themselves.
pub fn parts(bench: &Bench) -> Section {
    let mut section = Section::new(
        "Parts by themselves",
        "Hot, in a loop, TSC cycles. Parts overlap in the path, so that these do not add up to it.",
    );
    section.add("checksums", |rows| {
        sums(bench, rows);
        Ok(())
    });
    section.add("parser", |rows| parser(bench, rows));
    section
}

fn sums(bench: &Bench, rows: &mut Vec<Row>) {
    let times = bench.size(100_000, 1000);
    let mut bytes: Vec<u8> = (0..1500_u32).map(|i| (i * 7) as u8).collect();
    let mut repeat = |name: &str, work: &mut dyn FnMut(&mut [u8]) -> u16| {
        let figures = timed(bench, times, || (0..times).fold(0_u16, |sum, _| sum ^ work(black_box(&mut bytes))));
        rows.push(Row::new(name, "cycles", &figures));
    };
    repeat("IPv4 header checksum verified, 20 bytes", &mut |b| match b.first_chunk::<20>() {
        Some(header) => u16::from(checksum::ipv4_header_is_valid(header)),
        None => 0,
    });
    repeat("checksum in full, 1,460 bytes", &mut |b| checksum::checksum(&b[..1460]));
    repeat("checksum updated for one changed word", &mut |b| {
        checksum::update16(u16::from_ne_bytes([b[10], b[11]]), u16::from_ne_bytes([b[8], b[9]]), 7)
    });
    repeat("checksum updated for a changed IPv6 address", &mut |b| checksum::update(7, &b[..16], &b[16..32]));
}

fn parser(bench: &Bench, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::runtime(format!("memory for the parser's frames: {e}"));
    let to = MacAddress([2, 0, 0, 0, 0, 1]);
    let ports = PortTable::new(vec![Port::new("in", PortId(0), to, 1500)]);
    let ingress = Ingress::new(&ports, PortId(0), true).ok_or_else(|| Failure::runtime("no port to parse for"))?;
    for family in Family::ALL {
        let arena = Arena::new(256, DEFAULT_STRIDE, HugePages::Prefer).map_err(failed)?;
        let mut pool = Pool::split(&arena, 1).remove(0);
        let mut packets = Vec::new();
        while let Some(mut frame) = pool.alloc() {
            let header: &mut [u8; HEADER_WINDOW] = frame.header_mut();
            let len = write_frame(header, to, MacAddress([2; 6]), family.classic_flow(packets.len() as u32));
            if !frame.set_len(len) {
                return Err(Failure::runtime("the smallest frame does not fit in a buffer"));
            }
            packets.push(Packet::new(frame, Offload::NONE, PortId(0)));
        }
        let times = bench.size(200, 4);
        let figures = timed(bench, times * packets.len(), || {
            for _ in 0..times {
                packets.iter_mut().for_each(|packet| parse::parse(packet, &ingress));
            }
            packets.iter().filter(|packet| packet.goes_on()).count()
        });
        if !packets.iter().all(|packet| packet.goes_on() && packet.protocol == 17) {
            return Err(Failure::runtime("the parser refused a good frame"));
        }
        rows.push(Row::new(format!("parser, smallest UDP frame, {family}"), "cycles", &figures));
    }
    Ok(())
}
