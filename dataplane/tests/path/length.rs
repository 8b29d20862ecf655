//! MTU: cutting, telling, and what came in too long.

use ferrule_dataplane::fib::{PortId, RouteKind};
use ferrule_dataplane::world::{PortPlan, World};

use crate::common::*;

const SMALL: PortId = PortId(2);

/// The standard world with a third port of a smaller MTU: 198.51.100.0/24 and 2001:db8:c::/64 are on it.
fn with_small(mtu: u16) -> World {
    let plan = PortPlan::new("c").mtu(mtu).address("198.51.100.1/24".parse().unwrap());
    let mut world = world(ports().port(plan.address("2001:db8:c::1/64".parse().unwrap())));
    for to in ["198.51.100.9", "2001:db8:c::9"] {
        world.table.neighbor_set(SMALL, ip(to), Some(MAC_B9)).unwrap();
    }
    world
}

/// Puts the pieces of one IPv4 packet together, and checks each.
fn reassemble(frames: &[Vec<u8>], mtu: usize) -> Vec<u8> {
    let mut whole: Vec<u8> = Vec::new();
    for (i, frame) in frames.iter().enumerate() {
        let header = usize::from(frame[14] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let word = u16::from_be_bytes([frame[20], frame[21]]);
        assert_eq!((frame.len(), checksum(&frame[14..14 + header])), (total + 14, 0));
        assert!(total <= mtu && usize::from(word & 0x1fff) * 8 == whole.len());
        assert_eq!(word & 0x2000 != 0, i + 1 < frames.len(), "more fragments");
        whole.extend(&frame[14 + header..]);
    }
    whole
}

#[test]
pub fn a_long_packet_is_cut_into_pieces_that_make_it_whole_again() {
    for mtu in [68, 296, 576, 1280, 1499] {
        let mut world = with_small(mtu);
        for len in [mtu as usize - 27, 700, 1472] {
            if len + 28 > 1500 || len + 28 <= mtu as usize {
                continue;
            }
            let p = packet("198.18.0.9", "198.51.100.9").udp(5, 6, len);
            let frame = p.at_a(&world);
            send(&mut world, A, &frame);
            let pieces = world.collect(SMALL);
            assert!(pieces.len() > 1);
            assert_eq!(reassemble(&pieces, mtu.into()), p.payload, "mtu {mtu} len {len}");
            assert!(pieces.iter().all(|f| f[..12] == [MAC_B9.0, world.mac(SMALL).0].concat()[..] && f[22] == 63));
        }
        let totals = check(world);
        assert!(totals.consumed["fragmented"] > 0 && totals.generated["fragment"] > totals.consumed["fragmented"]);
    }
}

#[test]
pub fn an_exact_fit_passes_whole() {
    let mut world = with_small(600);
    let frame = packet("198.18.0.9", "198.51.100.9").dont_fragment().udp(5, 6, 572).at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(SMALL), [forwarded(&frame, MAC_B9, world.mac(SMALL))]);
    check(world);
}

#[test]
pub fn what_may_not_be_cut_is_told_the_mtu() {
    let mut world = with_small(1300);
    let cases = [
        (packet("198.18.0.9", "198.51.100.9").dont_fragment().udp(5, 6, 1273), (3, 4), 548),
        (packet("2001:db8:a::9", "2001:db8:c::9").udp(5, 6, 1253), (2, 0), 1232),
    ];
    for (p, kind, quoted) in cases {
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, "fragmentation_needed");
        let back = world.collect(A);
        let told = error(&back[0]);
        assert_eq!((back.len(), told.kind, told.word), (1, kind, 1300));
        assert_eq!(told.quote, p.bytes()[..quoted], "as it arrived, as much as fits");
    }
    assert!(world.collect(SMALL).is_empty());
    check(world);
}

#[test]
pub fn what_came_in_longer_than_the_port_takes_is_dropped() {
    let mut world = with_small(600);
    let frame = packet("198.18.0.9", "203.0.113.5").udp(5, 6, 1473).at_a(&world);
    dropped(&mut world, A, &frame, "over_mtu_received");
    let frame = packet("2001:db8:a::9", "2001:db8:f::5").udp(5, 6, 1453).at_a(&world);
    dropped(&mut world, A, &frame, "over_mtu_received");
    check(world);
}

#[test]
pub fn jumbo_frames_pass_as_chains_and_are_cut_from_chains() {
    let plan = |name: &str, address: &str| PortPlan::new(name).mtu(9000).address(address.parse().unwrap());
    let mut world = World::builder()
        .port(plan("a", "198.18.0.1/24"))
        .port(plan("b", "198.19.0.1/24"))
        .port(PortPlan::new("c").address("198.51.100.1/24".parse().unwrap()))
        .build()
        .unwrap();
    world.table.neighbor_set(B, ip("198.19.0.9"), Some(MAC_B9)).unwrap();
    world.table.neighbor_set(SMALL, ip("198.51.100.9"), Some(MAC_B9)).unwrap();
    route(&mut world, "203.0.113.0/24", RouteKind::via(B, ip("198.19.0.9")));
    for len in [1772, 2000, 4000, 8972] {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(1, 2, len).at_a(&world);
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))], "{len}");
        let p = packet("198.18.0.9", "198.51.100.9").udp(1, 2, len);
        let frame = p.at_a(&world);
        send(&mut world, A, &frame);
        assert_eq!(reassemble(&world.collect(SMALL), 1500), p.payload, "{len}");
    }
    check(world);
}

#[test]
pub fn super_packets_pass_whole_where_both_ports_take_them() {
    use ferrule_dataplane::packet::{GsoKind, Offload};
    let plan = |name: &str, v4: &str, v6: &str| {
        PortPlan::new(name).offload().address(v4.parse().unwrap()).address(v6.parse().unwrap())
    };
    let mut world = world(
        World::builder()
            .port(plan("a", "198.18.0.1/24", "2001:db8:a::1/64"))
            .port(plan("b", "198.19.0.1/24", "2001:db8:b::1/64"))
            .port(plan("c", "198.51.100.1/24", "2001:db8:c::1/64").mtu(600)),
    );
    for to in ["198.51.100.9", "2001:db8:c::9"] {
        world.table.neighbor_set(SMALL, ip(to), Some(MAC_B9)).unwrap();
    }
    for (from, to, small, l4, gso_kind, kind) in [
        ("198.18.0.9", "203.0.113.5", "198.51.100.9", 34, GsoKind::TcpV4, (3, 4)),
        ("2001:db8:a::9", "2001:db8:f::5", "2001:db8:c::9", 54, GsoKind::TcpV6, (2, 0)),
    ] {
        let offload = Offload { csum_start: l4, csum_offset: 16, gso_size: 1400, gso_kind, gso_ecn: false };
        let mut p = packet(from, to).tcp(5000, 80, 0x10);
        p.payload.resize(20 + 20_000, 7);
        let frame = p.at_a(&world);
        assert!(world.inject_at(A, 0, &frame, offload));
        world.settle();
        assert_eq!(world.collect_at(B, 0), [(forwarded(&frame, MAC_B9, world.mac(B)), offload)]);
        // Its segments are longer than the small port's MTU: its sender is told, as for one packet.
        p.destination = ip(small);
        let frame = p.at_a(&world);
        assert!(world.inject_at(A, 0, &frame, offload));
        world.settle();
        let told = error(&world.collect(A)[0]);
        assert_eq!((told.kind, told.word), (kind, if l4 == 34 { 600 } else { 1280 }));
    }
    assert!(world.collect(SMALL).is_empty());
    assert_eq!(check(world).dropped["fragmentation_needed"], 2);
}

#[test]
pub fn a_checksum_left_to_the_device_is_made_where_the_next_port_has_none() {
    use ferrule_dataplane::packet::Offload;
    let mut world = two();
    for (from, to, l4) in [("198.18.0.9", "203.0.113.5", 34), ("2001:db8:a::9", "2001:db8:f::5", 54)] {
        for (p, at) in [(packet(from, to).udp(1, 2, 101), 6), (packet(from, to).tcp(1, 2, 0x10), 16)] {
            let whole = p.at_a(&world);
            // What a local stack leaves there: the pseudo-header's sum. Summed over the rest it must give the right value.
            let mut partial = whole.clone();
            let field = l4 + at;
            let mut rest = whole[l4..].to_vec();
            rest[at..at + 2].fill(0);
            let right = u16::from_be_bytes([whole[field], whole[field + 1]]);
            let sum = u32::from(!right) + u32::from(checksum(&rest));
            let pseudo = (sum & 0xffff) + (sum >> 16);
            partial[field..field + 2].copy_from_slice(&(pseudo as u16).to_be_bytes());
            let offload = Offload { csum_start: l4 as u16, csum_offset: at as u16, ..Offload::NONE };
            assert!(world.inject_at(A, 0, &partial, offload));
            world.settle();
            let out = forwarded(&whole, MAC_B9, world.mac(B));
            assert_eq!(world.collect_at(B, 0), [(out, Offload::NONE)]);
        }
    }
    check(world);
}

#[test]
pub fn fragments_pass_and_are_cut_again() {
    let mut world = with_small(300);
    let mut p = packet("198.18.0.9", "198.51.100.9").udp(1, 2, 800);
    p.fragment = 0x2000;
    p.payload.truncate(800);
    let frame = p.at_a(&world);
    send(&mut world, A, &frame);
    let pieces = world.collect(SMALL);
    assert!(
        pieces.len() > 2 && pieces.iter().all(|f| f[20] & 0x20 != 0),
        "every piece has more to come, as the original had"
    );
    let mut p = packet("198.18.0.9", "203.0.113.5");
    (p.fragment, p.payload) = (100, vec![1; 333]);
    let frame = p.at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))]);
    check(world);
}
