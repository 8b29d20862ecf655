//! The host path: what goes up and within which limits, and what the host sends.

use ferrule_dataplane::fib::RouteKind;
use ferrule_dataplane::packet::{Flags, L3, Packet};
use ferrule_dataplane::verdict::{DropReason, Verdict};
use ferrule_dataplane::world::World;

use crate::common::*;
use crate::stages::Each;

const RATES: [u32; 4] = [1000; 4];

fn with_host() -> World {
    world(ports().host(RATES, 256))
}

fn arp(to: [u8; 6]) -> Vec<u8> {
    let mut frame = [&to[..], &MAC_A9.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &MAC_A9.0].concat();
    frame.extend([198, 18, 0, 9, 0, 0, 0, 0, 0, 0, 198, 18, 0, 1]);
    frame.resize(60, 0);
    frame
}

#[test]
pub fn what_is_for_the_box_goes_up_as_it_came() {
    let mut world = with_host();
    let mac = world.mac(A);
    let all = ferrule_dataplane::fib::MacAddress([0xff; 6]);
    let group = ferrule_dataplane::fib::MacAddress([0x33, 0x33, 0, 0, 0, 1]);
    let frames = [
        packet("198.18.0.9", "198.18.0.1").tcp(5000, 22, 2).at_a(&world),
        packet("2001:db8:a::9", "2001:db8:a::1").tcp(5000, 22, 2).at_a(&world),
        // An address of the other port is ours too; TTL does not matter on the way up.
        packet("198.18.0.9", "198.19.0.1").ttl(1).at_a(&world),
        arp([0xff; 6]),
        arp(mac.0),
        packet("198.18.0.9", "198.18.0.255").frame(all, MAC_A9),
        packet("198.18.0.9", "255.255.255.255").frame(all, MAC_A9),
        packet("0.0.0.0", "255.255.255.255").udp(68, 67, 240).frame(all, MAC_A9),
        packet("198.18.0.9", "224.0.0.5").transport(89, vec![2; 44], 12).frame(group, MAC_A9),
        packet("fe80::9", "ff02::1").frame(group, MAC_A9),
        packet("fe80::9", "fe80::a").at_a(&world),
        packet("::", "ff02::1:ff00:9").frame(group, MAC_A9),
        packet("198.18.0.1", "198.18.0.7").udp(67, 68, 240).at_a(&world),
        // Not IP at all: LLDP, and an 802.3 length.
        [&[1, 0x80, 0xc2, 0, 0, 0xe][..], &MAC_A9.0, &[0x88, 0xcc], &[7; 46]].concat(),
        [&mac.0[..], &MAC_A9.0, &[0, 46, 0xfe, 0xfe, 3], &[0; 43]].concat(),
    ];
    for frame in &frames {
        send(&mut world, A, frame);
        let up = world.collect_host(A);
        assert_eq!(up, std::slice::from_ref(frame));
    }
    assert!(world.collect(A).is_empty() && world.collect(B).is_empty());
    let totals = check(world);
    assert_eq!(totals.ports[0][2].0, frames.len() as u64);
    assert_eq!((totals.punted["neighbor"], totals.punted["dhcp"], totals.punted["routing"]), (2, 2, 2));
}

#[test]
pub fn a_next_hop_that_is_no_port_goes_up() {
    let mut world = with_host();
    route(&mut world, "192.0.2.0/24", RouteKind::HostVia);
    let frame = packet("198.18.0.9", "192.0.2.1").at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect_host(A), [frame]);
    check(world);
}

#[test]
pub fn group_addresses_in_unicast_frames_are_dropped() {
    let mut world = with_host();
    for (to, label) in [
        ("198.18.0.255", "broadcast_not_forwarded"),
        ("198.19.0.255", "broadcast_not_forwarded"),
        ("255.255.255.255", "broadcast_not_forwarded"),
        ("224.0.0.5", "multicast_unwanted"),
        ("239.1.2.3", "multicast_unwanted"),
    ] {
        let frame = packet("198.18.0.9", to).at_a(&world);
        dropped(&mut world, A, &frame, label);
    }
    let frame = packet("2001:db8:a::9", "ff0e::1").at_a(&world);
    dropped(&mut world, A, &frame, "multicast_unwanted");
    check(world);
}

#[test]
pub fn every_class_has_a_limit_of_its_own_and_the_rest_is_not_held_up() {
    // Neighbours 40 a second, routing 1000, DHCP 1000, rest 20; bursts of 16 at least.
    let mut world = world(ports().host([40, 1000, 1000, 20], 256));
    let ssh = packet("198.18.0.9", "198.18.0.1").tcp(5000, 22, 2).at_a(&world);
    let through = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    for _ in 0..100 {
        assert!(world.inject(A, &ssh) && world.inject(A, &arp([0xff; 6])) && world.inject(A, &through));
        world.settle();
    }
    assert_eq!((world.collect_host(A).len(), world.collect(B).len()), (32, 100));
    assert_eq!(world.dropped(DropReason::PuntLimited), 168);
    // A second brings 40 and 20 more, of which the burst that may be kept is 16.
    world.advance(SECOND);
    for _ in 0..100 {
        assert!(world.inject(A, &ssh) && world.inject(A, &arp([0xff; 6])));
        world.settle();
    }
    assert_eq!(world.collect_host(A).len(), 32);
    check(world);
}

#[test]
pub fn a_host_that_does_not_read_costs_only_its_own() {
    let mut world = world(ports().host([1_000_000; 4], 8));
    let ssh = packet("198.18.0.9", "198.18.0.1").tcp(5000, 22, 2).at_a(&world);
    for _ in 0..20 {
        send(&mut world, A, &ssh);
    }
    assert_eq!((world.dropped(DropReason::HostRingFull), world.collect_host(A).len()), (12, 8));
    check(world);
}

#[test]
pub fn what_the_host_sends_leaves_as_it_is() {
    let mut world = with_host();
    let frames = [
        packet("198.19.0.1", "198.19.0.9").ttl(1).frame(MAC_B9, world.mac(B)),
        packet("2001:db8:b::1", "2001:db8:b::9").ttl(255).frame(MAC_B9, world.mac(B)),
        packet("0.0.0.0", "255.255.255.255").frame(ferrule_dataplane::fib::MacAddress([0xff; 6]), world.mac(B)),
        arp([0xff; 6]),
        // Whatever it is: the box's own stack is not judged by a router's rules.
        packet("127.0.0.1", "203.0.113.5").frame(MAC_B9, world.mac(B)),
        vec![9; 14],
    ];
    for frame in &frames {
        assert!(world.inject_host(B, frame));
        world.settle();
        assert_eq!(world.collect(B), std::slice::from_ref(frame));
    }
    let totals = check(world);
    assert_eq!(totals.ports[1][3].0, frames.len() as u64);
}

#[test]
pub fn what_the_host_sends_passes_the_out_hook_only() {
    let stage = |_| {
        Each::line_up(|hook, packet: &mut Packet| {
            let telnet = packet.destination_port == 23;
            assert!(!packet.flags.has(Flags::FROM_HOST) || hook == ferrule_dataplane::stage::Hook::Out);
            if telnet && packet.frame.header()[L3] == 0x45 {
                packet.judge(Verdict::Drop(DropReason::Filter));
            }
        })
    };
    let mut world = world(ports().host(RATES, 64).stages(stage));
    let telnet = packet("198.19.0.1", "198.19.0.9").tcp(40000, 23, 2).frame(MAC_B9, world.mac(B));
    let ssh = packet("198.19.0.1", "198.19.0.9").tcp(40000, 22, 2).frame(MAC_B9, world.mac(B));
    assert!(world.inject_host(B, &telnet) && world.inject_host(B, &ssh));
    world.settle();
    assert_eq!(world.collect(B), [ssh]);
    assert_eq!(check(world).dropped["filter"], 1);
}

#[test]
pub fn host_frames_take_a_vlan_tag() {
    use ferrule_dataplane::fib::{PortId, VlanTag};
    let plan = ferrule_dataplane::world::PortPlan::vlan("b.5", B, VlanTag { tpid: 0x8100, tci: 5 });
    let mut world = world(ports().host(RATES, 64).port(plan.address("10.5.0.1/24".parse().unwrap())));
    let frame = packet("10.5.0.1", "10.5.0.9").frame(MAC_B9, world.mac(B));
    assert!(world.inject_host(PortId(2), &frame));
    world.settle();
    assert_eq!(world.collect(B), [tagged(&frame, &[(0x8100, 5)])]);
    let up = packet("10.5.0.9", "10.5.0.1").frame(world.mac(B), MAC_B9);
    send(&mut world, B, &tagged(&up, &[(0x8100, 5)]));
    assert_eq!(world.collect_host(PortId(2)), [up], "without its tag, on the VLAN's own interface");
    check(world);
}
