//! Packets that wait for a neighbour: order, limits, success and failure.

use ferrule_dataplane::fib::{MacAddress, PortId, RouteKind};
use ferrule_dataplane::neighbor::NextHopKey;
use ferrule_dataplane::worker::{Command, WaitingReport};
use ferrule_dataplane::world::World;

use crate::common::*;

const RATES: [u32; 4] = [1000; 4];

/// The last byte of each frame's payload, which numbers them.
fn numbers(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|f| f[f.len() - 1]).collect()
}

fn numbered(world: &World, to: &str, n: u8) -> Vec<u8> {
    let source = if ip(to).is_ipv4() { "198.18.0.9" } else { "2001:db8:a::9" };
    let mut p = packet(source, to);
    let len = p.payload.len();
    p.payload[len - 1] = n;
    // UDP without a checksum would do for IPv4; the path does not look at it.
    p.at_a(world)
}

fn key(address: &str) -> NextHopKey {
    NextHopKey { port: B, address: ip(address) }
}

#[test]
pub fn packets_wait_in_order_and_go_when_the_neighbour_is_known() {
    for to in ["198.19.0.50", "2001:db8:b::50", "192.0.2.50", "2001:db8:e::50"] {
        let mut world = world(ports().host(RATES, 64));
        let v4 = ip(to).is_ipv4();
        let gateway = if v4 { "198.19.0.50" } else { "2001:db8:b::50" };
        route(&mut world, if v4 { "192.0.2.0/24" } else { "2001:db8:e::/48" }, RouteKind::via(B, ip(gateway)));
        for n in 0..4 {
            let frame = numbered(&world, to, n);
            send(&mut world, A, &frame);
        }
        assert_eq!((world.requests(), world.collect(B).len()), (vec![key(gateway)], 0));
        assert_eq!(world.balance().held, 4);
        let frame = numbered(&world, to, 9);
        dropped(&mut world, A, &frame, "neighbor_queue_full");
        world.advance(SECOND);
        assert_eq!(world.requests(), [key(gateway)], "asked again after a second");
        world.table.neighbor_set(B, ip(gateway), Some(MAC_B9)).unwrap();
        // The next one must not overtake those that waited.
        let last = numbered(&world, to, 4);
        assert!(world.inject(A, &last));
        world.settle();
        world.advance(2 * MILLISECOND);
        let out = world.collect(B);
        assert_eq!(numbers(&out), [0, 1, 2, 3, 4], "{to}");
        assert_eq!(out[4], forwarded(&last, MAC_B9, world.mac(B)));
        assert_eq!(world.balance().held, 0);
        check(world);
    }
}

#[test]
pub fn when_the_kernel_gives_up_the_sender_is_told_at_once() {
    let mut world = world(ports().host(RATES, 64));
    for (to, kind) in [("198.19.0.51", (3, 1)), ("2001:db8:b::51", (1, 3))] {
        for n in 0..2 {
            let frame = numbered(&world, to, n);
            send(&mut world, A, &frame);
        }
        let report = std::sync::Arc::new(WaitingReport::new(8));
        world.command(0, Command::Waiting(report.clone()));
        assert_eq!((report.answered(), report.next(), report.next()), (1, Some((key(to), 2)), None));
        // Not for another neighbour, and not for one that was found meanwhile.
        world.command(0, Command::NeighborFailed(key("198.19.0.52")));
        assert_eq!(world.balance().held, 2);
        world.command(0, Command::NeighborFailed(key(to)));
        world.settle();
        let told: Vec<_> = world.collect(A).iter().map(|f| error(f).kind).collect();
        assert_eq!((told, world.balance().held), (vec![kind; 2], 0), "{to}");
    }
    let frame = numbered(&world, "198.19.0.53", 0);
    send(&mut world, A, &frame);
    world.table.neighbor_set(B, ip("198.19.0.53"), Some(MAC_B9)).unwrap();
    world.command(0, Command::NeighborFailed(key("198.19.0.53")));
    world.settle();
    assert_eq!((world.collect(A).len(), world.collect(B).len()), (0, 1));
    let totals = check(world);
    assert_eq!(totals.dropped["neighbor_failed"], 4);
}

#[test]
pub fn a_neighbour_that_does_not_answer_is_told_to_the_sender() {
    let mut world = world(ports().host(RATES, 64));
    for (to, kind) in [("198.19.0.51", (3, 1)), ("2001:db8:b::51", (1, 3))] {
        for n in 0..3 {
            let frame = numbered(&world, to, n);
            send(&mut world, A, &frame);
        }
        world.advance(2 * SECOND);
        assert_eq!((world.collect(A).len(), world.balance().held), (0, 3));
        world.advance(SECOND + 2 * MILLISECOND);
        let told: Vec<_> = world.collect(A).iter().map(|f| error(f)).collect();
        assert_eq!(told.iter().map(|e| e.kind).collect::<Vec<_>>(), [kind; 3]);
        let ttl = if kind.0 == 3 { 8 } else { 7 };
        assert!(told.iter().all(|e| e.quote[ttl] == 64), "as it arrived");
        assert_eq!(told.iter().map(|e| *e.quote.last().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    }
    let totals = check(world);
    assert_eq!(totals.dropped["neighbor_failed"], 6);
}

#[test]
pub fn a_route_that_goes_while_packets_wait_fails_them_and_a_new_one_takes_them() {
    let mut world = world(ports().host(RATES, 64));
    route(&mut world, "192.0.2.0/25", RouteKind::via(B, ip("198.19.0.52")));
    route(&mut world, "192.0.2.128/25", RouteKind::via(B, ip("198.19.0.53")));
    let (gone, moved) = (numbered(&world, "192.0.2.1", 1), numbered(&world, "192.0.2.129", 2));
    send(&mut world, A, &gone);
    send(&mut world, A, &moved);
    assert_eq!(world.balance().held, 2);
    world.table.route_delete(prefix("192.0.2.0/25"), 0).unwrap();
    route(&mut world, "192.0.2.128/25", RouteKind::via(B, ip("198.19.0.9")));
    world.advance(2 * MILLISECOND);
    assert_eq!(world.collect(B), [forwarded(&moved, MAC_B9, world.mac(B))]);
    assert_eq!(error(&world.collect(A)[0]).kind, (3, 1));
    check(world);
}

#[test]
pub fn unresolved_neighbours_are_limited() {
    let mut world = world(ports().host(RATES, 64).options(|o| (o.neighbor_limit, o.neighbor_queue) = (8, 2)));
    for n in 100..120u8 {
        let frame = numbered(&world, &format!("198.19.0.{n}"), n);
        send(&mut world, A, &frame);
    }
    assert_eq!((world.dropped(ferrule_dataplane::verdict::DropReason::NeighborLimit), world.requests().len()), (12, 8));
    for n in 100..108u8 {
        world.table.neighbor_set(B, ip(&format!("198.19.0.{n}")), Some(MacAddress([2, 0, 0, 0, 1, n]))).unwrap();
    }
    world.advance(2 * MILLISECOND);
    let mut out = numbers(&world.collect(B));
    out.sort_unstable();
    assert_eq!(out, (100..108).collect::<Vec<_>>());
    check(world);
}

#[test]
pub fn waiting_packets_are_cut_and_tagged_like_any_other() {
    let plan =
        ferrule_dataplane::world::PortPlan::vlan("b.5", B, ferrule_dataplane::fib::VlanTag { tpid: 0x8100, tci: 5 });
    let mut world = world(ports().host(RATES, 64).port(plan.mtu(600).address("10.5.0.1/24".parse().unwrap())));
    let p = packet("198.18.0.9", "10.5.0.9").udp(1, 2, 1000);
    let frame = p.at_a(&world);
    send(&mut world, A, &frame);
    world.table.neighbor_set(PortId(2), ip("10.5.0.9"), Some(MAC_B9)).unwrap();
    world.advance(2 * MILLISECOND);
    let out = world.collect(B);
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|f| f[12..16] == [0x81, 0, 0, 5] && f[26] == 63));
    check(world);
}
