//! However packets are processed, the result is the same: one at a time, in batches of any size, with the short cuts or without, with an
//! idle stage in the line-up or none. Random frames and routes; outputs and counters are compared.

use std::collections::BTreeMap;

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::{MacAddress, NextHop, PortId, RouteKind};
use ferrule_dataplane::packet::Packet;
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::worker::Dispatch;
use ferrule_dataplane::world::{PortPlan, Totals, World};
use proptest::prelude::*;

use crate::common::*;

/// A small generator (splitmix64), so that a frame is a function of one number and proptest can leave frames out one by one.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

const SOURCES_V4: [&str; 9] = [
    "198.18.0.9",
    "198.18.0.9",
    "198.18.0.7",
    "198.18.0.9",
    "198.18.0.1",
    "0.0.0.0",
    "127.0.0.1",
    "169.254.3.4",
    "224.0.0.1",
];
const TARGETS_V4: [&str; 17] = [
    "203.0.113.5",
    "203.0.113.77",
    "198.19.0.9",
    "198.51.100.9",
    "198.19.0.40",
    "198.18.0.1",
    "192.0.2.1",
    "192.0.2.65",
    "192.0.2.129",
    "192.0.2.200",
    "10.9.0.9",
    "203.0.113.5",
    "224.0.0.5",
    "255.255.255.255",
    "198.19.0.255",
    "169.254.9.9",
    "127.0.0.1",
];
const SOURCES_V6: [&str; 6] = ["2001:db8:a::9", "2001:db8:a::9", "2001:db8:a::7", "fe80::9", "::", "ff02::1"];
const TARGETS_V6: [&str; 10] = [
    "2001:db8:f::5",
    "2001:db8:b::9",
    "2001:db8:f::7",
    "2001:db8:c::9",
    "2001:db8:b::40",
    "2001:db8:a::1",
    "2001:db8:77::1",
    "fe80::a",
    "ff02::1",
    "::1",
];

/// A frame for port a: one half good, the other with anything that can be wrong.
fn frame(seed: u64) -> Vec<u8> {
    let mut r = Random(seed);
    let good = r.below(2) == 0;
    let v4 = r.below(5) < 3;
    // The first ones of each list are good.
    let pick = |r: &mut Random, from: &[&'static str], first| from[r.below(if good { first } else { from.len() })];
    let mut p = if v4 {
        packet(pick(&mut r, &SOURCES_V4, 3), pick(&mut r, &TARGETS_V4, 4))
    } else {
        packet(pick(&mut r, &SOURCES_V6, 3), pick(&mut r, &TARGETS_V6, 4))
    };
    let len = [0, 18, 18, 100, 700, 1400, 1450][r.below(7)];
    let flow = r.below(64) as u16;
    p = match r.below(6) {
        0 => p.tcp(1000 + flow, 80, 0x10),
        1 => p.echo(flow, len),
        2 => p.transport(132, vec![flow as u8; 12 + len / 2], 8),
        3 => p.udp(67, 68, len),
        _ => p.udp(1000 + flow, 53, len),
    };
    p.id = r.next() as u16;
    if v4 && r.below(3) == 0 {
        p.fragment = 0x4000;
    }
    if good {
        return p.frame(MacAddress([2, 0, 0, 0, 0, 1]), MAC_A9);
    }
    p.ttl = [64, 64, 64, 255, 2, 1, 0][r.below(7)];
    if v4 {
        p.fragment = [0, 0, 0x4000, 0x4000, 0x2000, 0x2003, 6][r.below(7)];
        let options: [&[u8]; 8] = [&[], &[], &[], &[], &[1, 1, 1, 0], &[148, 4, 0, 0], &[131, 4, 4, 0], &[7, 0, 0, 0]];
        p.extra = options[r.below(8)].to_vec();
    } else if r.below(4) == 0 {
        let next = p.protocol;
        (p.protocol, p.extra) = match r.below(3) {
            0 => (0, vec![next, 0, 1, 4, 0, 0, 0, 0]),
            1 => (44, vec![next, 0, 0, [0, 1, 8, 9][r.below(4)], 0, 0, 0, 5]),
            _ => (43, vec![next, 0, 0, r.below(2) as u8, 0, 0, 0, 0]),
        };
    }
    let mac = match r.below(16) {
        0 => [0xff; 6],
        1 => [2, 9, 9, 9, 9, 9],
        _ => [2, 0, 0, 0, 0, 1],
    };
    let mut frame = p.frame(MacAddress(mac), MAC_A9);
    match r.below(12) {
        0 => frame.truncate(1 + r.below(frame.len())),
        1 => frame.resize(frame.len() + r.below(40), 0xee),
        2 => frame = tagged(&frame, &[(0x8100, 10)]),
        3 => frame = tagged(&frame, &[(0x8100, r.next() as u16 & 0xe001)]),
        4 | 5 => {
            for _ in 0..1 + r.below(3) {
                let at = r.below(frame.len().min(80));
                frame[at] = r.next() as u8;
            }
        }
        _ => {}
    }
    frame
}

/// A stage that does nothing: the packets go through the hooks.
struct Idle;

impl Stage for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn process(&mut self, _: Hook, batch: &mut Batch, _: &mut Context<'_>) {
        for packet in batch.packets() {
            let _: &Packet = packet;
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    batch: usize,
    fastforward: bool,
    stage: bool,
    queued: bool,
}

const fn way(batch: usize, fastforward: bool, stage: bool, queued: bool) -> Way {
    Way { batch, fastforward, stage, queued }
}

const WAYS: [Way; 9] = [
    way(256, true, false, false),
    way(7, true, false, false),
    way(1, true, false, false),
    way(256, false, false, false),
    way(256, true, false, true),
    way(256, true, true, false),
    way(7, false, true, false),
    way(1, false, true, false),
    way(7, true, true, true),
];

fn make(way: Way, host: bool, routes: &[(u32, u8, u8)]) -> World {
    let mut builder = ports()
        .port(
            PortPlan::new("c")
                .mtu(600)
                .address("198.51.100.1/24".parse().unwrap())
                .address("2001:db8:c::1/64".parse().unwrap()),
        )
        .port(
            PortPlan::vlan("a.10", A, ferrule_dataplane::fib::VlanTag { tpid: 0x8100, tci: 10 })
                .address("10.9.0.1/24".parse().unwrap()),
        )
        .ring(2048)
        .buffers(4096, 4096)
        .options(|o| {
            (o.batch, o.fastforward) = (way.batch, way.fastforward);
            o.dispatch = if way.queued { Dispatch::Queued } else { Dispatch::Direct };
            o.icmp_rate = (1_000_000, 1_000_000);
        })
        .stages(move |_| if way.stage { vec![Box::new(Idle) as Box<dyn Stage>] } else { vec![] });
    if host {
        builder = builder.host([1_000_000; 4], 2048);
    }
    let mut world = world(builder);
    for (port, to) in [(2, "198.51.100.9"), (2, "2001:db8:c::9"), (3, "10.9.0.9")] {
        world.table.neighbor_set(PortId(port), ip(to), Some(MAC_B9)).unwrap();
    }
    route(&mut world, "192.0.2.0/26", RouteKind::Blackhole);
    route(&mut world, "192.0.2.64/26", RouteKind::Unreachable);
    route(&mut world, "192.0.2.128/26", RouteKind::Prohibit);
    let hop = |to: &str, port| NextHop { port, gateway: Some(ip(to)), weight: 1, on_link: false };
    let both = [hop("198.19.0.9", B), hop("198.51.100.9", PortId(2))];
    route(&mut world, "203.0.113.64/26", RouteKind::Via(both.into_iter().collect()));
    for (address, length, kind) in routes {
        let prefix = format!("{}/{}", std::net::Ipv4Addr::from_bits(0xcb00_7100 | address & 0xff), 24 + length % 9);
        let kind = match kind % 4 {
            0 => RouteKind::Blackhole,
            1 => RouteKind::HostVia,
            2 => RouteKind::via(PortId(2), ip("198.51.100.9")),
            _ => RouteKind::via(B, ip("198.19.0.41")),
        };
        route(&mut world, &prefix, kind);
    }
    world
}

/// What came out. Of what the gateway made itself the order against what it forwarded depends on the batches, and the identification of
/// ICMP errors on their order; everything else must be the same.
#[derive(Debug, PartialEq, Eq)]
struct Result {
    forwarded: Vec<Vec<Vec<u8>>>,
    made: BTreeMap<Vec<u8>, usize>,
    up: Vec<Vec<Vec<u8>>>,
    totals: Totals,
}

fn run(way: Way, host: bool, routes: &[(u32, u8, u8)], frames: &[u64]) -> Result {
    let mut world = make(way, host, routes);
    let (mut forwarded, mut made) = (vec![Vec::new(); 3], BTreeMap::new());
    let mut up = vec![Vec::new(); 4];
    for part in frames.chunks(100) {
        for seed in part {
            assert!(world.inject(A, &frame(*seed)));
        }
        world.settle();
        world.advance(4 * SECOND);
        for port in 0..3u16 {
            for mut bytes in world.collect(PortId(port)) {
                let own = bytes[6..12] == world.mac(PortId(port)).0 && is_own(&bytes);
                if own {
                    let at = if bytes[12..14] == [0x81, 0] { 4 } else { 0 };
                    if bytes[12 + at..14 + at] == [8, 0] {
                        bytes[18 + at..20 + at].fill(0);
                        bytes[24 + at..26 + at].fill(0);
                    }
                    *made.entry(bytes).or_insert(0) += 1;
                } else {
                    forwarded[usize::from(port)].push(bytes);
                }
            }
        }
        for (port, up) in up.iter_mut().enumerate() {
            up.extend(world.collect_host(PortId(port as u16)));
        }
    }
    let mut totals = check(world);
    totals.handed_over = (0, 0);
    Result { forwarded, made, up, totals }
}

/// Whether the frame has a source of the gateway's own.
fn is_own(frame: &[u8]) -> bool {
    let at = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
    match frame[12 + at..14 + at] {
        [8, 6] => true,
        [8, 0] => [[198, 18, 0, 1], [198, 19, 0, 1], [198, 51, 100, 1], [10, 9, 0, 1]]
            .iter()
            .any(|a| frame[26 + at..30 + at] == *a),
        _ => ["2001:db8:a::1", "2001:db8:b::1", "2001:db8:c::1", "fe80::a", "fe80::b"]
            .iter()
            .any(|a| frame[22 + at..38 + at] == v6(a).octets()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 20,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_way_gives_the_same_result(
        host: bool,
        routes in proptest::collection::vec(any::<(u32, u8, u8)>(), 0..4),
        frames in proptest::collection::vec(any::<u64>(), 200..500),
    ) {
        let first = run(WAYS[0], host, &routes, &frames);
        prop_assert!(first.totals.ports[0][0].0 == frames.len() as u64);
        for way in &WAYS[1..] {
            let other = run(*way, host, &routes, &frames);
            prop_assert_eq!(&first.totals, &other.totals, "{:?}", way);
            prop_assert!(first == other, "{:?} sends other frames", way);
        }
    }
}

#[test]
fn the_generator_reaches_most_of_the_path() {
    let frames: Vec<u64> = (0..4000).collect();
    let result = run(WAYS[0], false, &[], &frames);
    let forwarded: usize = result.forwarded.iter().map(Vec::len).sum();
    assert!(forwarded > 1500, "{forwarded}");
    assert!(result.totals.dropped.len() > 20, "{:?}", result.totals.dropped);
}
