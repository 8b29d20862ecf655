//! VLANs and several next hops.

use std::collections::BTreeMap;

use ferrule_dataplane::fib::{MacAddress, NextHop, PortId, RouteKind, VlanTag};
use ferrule_dataplane::world::{PortPlan, World};
use smallvec::smallvec;

use crate::common::*;

const A10: PortId = PortId(2);
const B20: PortId = PortId(3);
const B20_30: PortId = PortId(4);

/// Port a carries VLAN 10 (802.1Q), port b VLAN 20 (802.1ad) and in it VLAN 30.
fn vlans() -> World {
    let tag = |tpid, tci| VlanTag { tpid, tci };
    let address = |plan: PortPlan, address: &str| plan.address(address.parse().unwrap());
    let builder = ports()
        .port(address(PortPlan::vlan("a.10", A, tag(0x8100, 10)), "10.10.0.1/24"))
        .port(address(PortPlan::vlan("b.20", B, tag(0x88a8, 20)), "10.20.0.1/24"))
        .port(address(PortPlan::vlan("b.20.30", B20, tag(0x8100, 30)), "10.30.0.1/24"));
    let mut world = world(builder);
    for (port, to) in [(A10, "10.10.0.9"), (B20, "10.20.0.9"), (B20_30, "10.30.0.9")] {
        world.table.neighbor_set(port, ip(to), Some(MAC_B9)).unwrap();
    }
    world
}

#[test]
pub fn tags_come_off_and_go_on() {
    let mut world = vlans();
    let plain = packet("198.18.0.9", "10.20.0.9").at_a(&world);
    // Untagged in, tagged out.
    send(&mut world, A, &plain);
    let out = forwarded(&plain, MAC_B9, world.mac(B));
    assert_eq!(world.collect(B), [tagged(&out, &[(0x88a8, 20)])]);
    // Tagged in, untagged out; priority and drop bits are the sender's and end here.
    let inner = packet("10.10.0.9", "203.0.113.5").at_a(&world);
    send(&mut world, A, &tagged(&inner, &[(0x8100, 0xf00a)]));
    assert_eq!(world.collect(B), [forwarded(&inner, MAC_B9, world.mac(B))]);
    // Tagged both ways.
    let inner = packet("10.10.0.9", "10.20.0.9").at_a(&world);
    send(&mut world, A, &tagged(&inner, &[(0x8100, 10)]));
    assert_eq!(world.collect(B), [tagged(&forwarded(&inner, MAC_B9, world.mac(B)), &[(0x88a8, 20)])]);
    // Two tags in.
    let inner = packet("10.30.0.9", "198.18.0.9").frame(world.mac(B), MAC_B9);
    send(&mut world, B, &tagged(&inner, &[(0x88a8, 20), (0x8100, 30)]));
    assert_eq!(world.collect(A), [forwarded(&inner, MAC_A9, world.mac(A))]);
    // Two tags out.
    let plain = packet("198.18.0.9", "10.30.0.9").at_a(&world);
    send(&mut world, A, &plain);
    let out = forwarded(&plain, MAC_B9, world.mac(B));
    assert_eq!(world.collect(B), [tagged(&out, &[(0x88a8, 20), (0x8100, 30)])]);
    let totals = check(world);
    assert_eq!(totals.vlans[2], [(2, 120), (0, 0)], "in with tag 10, without it, and out");
    assert_eq!(totals.vlans[3], [(1, 64), (3, 184)]);
    assert_eq!(totals.vlans[4], [(1, 60), (1, 60)]);
}

#[test]
pub fn a_priority_tag_belongs_to_the_port_itself() {
    let mut world = vlans();
    let inner = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    for tpid in [0x8100, 0x88a8] {
        send(&mut world, A, &tagged(&inner, &[(tpid, 0xe000)]));
        assert_eq!(world.collect(B), [forwarded(&inner, MAC_B9, world.mac(B))]);
    }
    send(&mut world, A, &tagged(&inner, &[(0x8100, 0xe000), (0x8100, 0)]));
    assert_eq!(world.collect(B).len(), 1);
    check(world);
}

#[test]
pub fn unknown_and_deep_tags_are_dropped() {
    let mut world = vlans();
    let inner = packet("10.10.0.9", "203.0.113.5").at_a(&world);
    for tags in [&[(0x8100, 11)][..], &[(0x88a8, 10)], &[(0x8100, 10), (0x8100, 10)], &[(0x8100, 4095)]] {
        dropped(&mut world, A, &tagged(&inner, tags), "vlan_unknown");
    }
    dropped(&mut world, A, &tagged(&inner, &[(0x8100, 0); 3]), "vlan_too_deep");
    dropped(&mut world, A, &tagged(&inner, &[(0x8100, 0); 40]), "vlan_too_deep");
    dropped(&mut world, A, &tagged(&inner, &[(0x8100, 10)])[..17], "ethernet_truncated");
    check(world);
}

#[test]
pub fn a_port_that_is_set_down_takes_nothing_in() {
    let mut world = vlans();
    let plain = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    let inside = tagged(&packet("10.10.0.9", "203.0.113.5").at_a(&world), &[(0x8100, 10)]);
    let set = |world: &World, port, enabled| world.shared().ports.get(port).unwrap().set_enabled(enabled);
    set(&world, A10, false);
    dropped(&mut world, A, &inside, "port_down");
    send(&mut world, A, &plain);
    assert_eq!(world.collect(B).len(), 1, "the port itself goes on");
    set(&world, A10, true);
    set(&world, A, false);
    dropped(&mut world, A, &plain, "port_down");
    set(&world, A, true);
    send(&mut world, A, &plain);
    send(&mut world, A, &inside);
    assert_eq!(world.collect(B).len(), 2);
    check(world);
    // Without VLANs packets have a shorter way.
    let mut world = two();
    set(&world, A, false);
    let plain = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    dropped(&mut world, A, &plain, "port_down");
    set(&world, A, true);
    send(&mut world, A, &plain);
    assert_eq!(world.collect(B).len(), 1);
    check(world);
}

#[test]
pub fn errors_about_a_vlan_packet_go_back_with_its_tag() {
    let mut world = vlans();
    let p = packet("10.10.0.9", "192.0.2.1");
    world.table.neighbor_set(A10, ip("10.10.0.9"), Some(MAC_A9)).unwrap();
    let frame = tagged(&p.at_a(&world), &[(0x8100, 10)]);
    dropped(&mut world, A, &frame, "no_route");
    let back = world.collect(A);
    assert_eq!(back[0][12..16], [0x81, 0, 0, 10]);
    let untagged = [&back[0][..12], &back[0][16..]].concat();
    let told = error(&untagged);
    assert_eq!((told.from, told.quote), (ip("10.10.0.1"), p.bytes()));
    check(world);
}

#[test]
pub fn flows_spread_over_next_hops_and_stay() {
    let mut world = two();
    let mac = |n| MacAddress([2, 0, 0, 0, 0xee, n]);
    for n in 20..24 {
        world.table.neighbor_set(B, ip(&format!("198.19.0.{n}")), Some(mac(n))).unwrap();
        world.table.neighbor_set(B, ip(&format!("2001:db8:b::{n}")), Some(mac(n))).unwrap();
    }
    let hop = |to: String, weight| NextHop { port: B, gateway: Some(ip(&to)), weight, on_link: false };
    // The last one takes half of the flows.
    let weights = [(20, 1), (21, 1), (22, 1), (23, 3)];
    let hops = weights.iter().map(|(n, w)| hop(format!("198.19.0.{n}"), *w)).collect();
    route(&mut world, "192.0.2.0/24", RouteKind::Via(hops));
    let hops = weights.iter().map(|(n, w)| hop(format!("2001:db8:b::{n}"), *w)).collect();
    route(&mut world, "2001:db8:e::/48", RouteKind::Via(hops));
    for (source, to) in [("198.18.0.9", "192.0.2.7"), ("2001:db8:a::9", "2001:db8:e::7")] {
        let mut taken: BTreeMap<u8, u32> = BTreeMap::new();
        let mut first = Vec::new();
        for round in 0..2 {
            for flow in 0..1200u16 {
                let frame = packet(source, to).udp(10_000 + flow, 53, 10).at_a(&world);
                send(&mut world, A, &frame);
                let out = world.collect(B);
                assert_eq!(out.len(), 1);
                let by = out[0][5];
                assert_eq!(out[0], forwarded(&frame, mac(by), world.mac(B)));
                if round == 0 {
                    first.push(by);
                    *taken.entry(by).or_default() += 1;
                } else {
                    assert_eq!(first[usize::from(flow)], by, "flow {flow} changed its way");
                }
            }
        }
        for (n, weight) in weights {
            let share = f64::from(taken[&(n as u8)]) / 1200.0;
            assert!((share - f64::from(weight) / 6.0).abs() < 0.06, "{source}: {taken:?}");
        }
    }
    // Fragments of a datagram keep together.
    let mut ways = Vec::new();
    for fragment in [0x2000, 0x2002, 4] {
        let mut p = packet("198.18.0.9", "192.0.2.7");
        p.fragment = fragment;
        p.payload.truncate(16);
        let frame = p.at_a(&world);
        send(&mut world, A, &frame);
        ways.push(world.collect(B)[0][5]);
    }
    assert!(ways.windows(2).all(|w| w[0] == w[1]), "{ways:?}");
    // A member without MAC holds its flows; the others go on.
    world.table.neighbor_set(B, ip("198.19.0.23"), None).unwrap();
    let flows = smallvec![hop("198.19.0.23".into(), 1)];
    route(&mut world, "192.0.2.128/25", RouteKind::Via(flows));
    let frame = packet("198.18.0.9", "192.0.2.200").at_a(&world);
    send(&mut world, A, &frame);
    assert!(world.collect(B).iter().all(|f| f[12..14] == [8, 6]), "only the question who has it");
    world.table.neighbor_set(B, ip("198.19.0.23"), Some(mac(23))).unwrap();
    world.advance(2 * MILLISECOND);
    assert_eq!(world.collect(B), [forwarded(&frame, mac(23), world.mac(B))]);
    check(world);
}
