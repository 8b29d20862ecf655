//! Routes of every kind, TTL, and what exactly changes in a packet that passes.

use ferrule_dataplane::fib::{MacAddress, RouteKind};

use crate::common::*;

/// The same in both families: (source, destination behind b, a's own address).
const FAMILIES: [(&str, &str, &str); 2] =
    [("198.18.0.9", "203.0.113.5", "198.18.0.1"), ("2001:db8:a::9", "2001:db8:f::5", "2001:db8:a::1")];

#[test]
pub fn forwarding_changes_what_it_must_and_nothing_else() {
    let mut world = two();
    for (source, destination, _) in FAMILIES {
        for (len, ttl) in [(0, 64), (18, 255), (18, 2), (1000, 64), (1452, 64), (1400, 100)] {
            for shape in 0..4 {
                let p = packet(source, destination).ttl(ttl);
                let p = match shape {
                    0 => p.udp(1, 2, len),
                    1 => p.tcp(80, 5000, 0x12),
                    2 => p.echo(99, len),
                    _ => p.transport(132, vec![9; 12 + len / 2], 8),
                };
                let frame = p.at_a(&world);
                send(&mut world, A, &frame);
                assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))], "{source} {len} {shape}");
            }
        }
    }
    let totals = check(world);
    assert!(totals.dropped.is_empty() && totals.generated.is_empty(), "{totals:?}");
    assert_eq!((totals.ports[0][0].0, totals.ports[1][1].0), (48, 48));
    assert_eq!(totals.ports[0][0].1, totals.ports[1][1].1, "bytes in and out");
}

#[test]
pub fn padding_ends_at_the_gateway_and_every_id_keeps_its_checksum() {
    let mut world = two();
    let mut frame = packet("198.18.0.9", "203.0.113.5").udp(1, 2, 1).at_a(&world);
    let whole = frame.len();
    frame.resize(60, 0xee);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B), [forwarded(&frame[..whole], MAC_B9, world.mac(B))]);
    // Header checksums run through all values, the corner words of the incremental update among them.
    for id in (0..=u16::MAX).step_by(97).chain([0xfffe, 0xffff]) {
        let mut p = packet("198.18.0.9", "203.0.113.5");
        p.id = id;
        let frame = p.at_a(&world);
        assert!(world.inject(A, &frame));
        if id % 50 == 0 {
            world.settle();
        }
        world.settle();
        assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))], "id {id}");
    }
    check(world);
}

#[test]
pub fn a_longer_prefix_wins_and_changes_are_in_force_at_once() {
    let mut world = two();
    let other = MacAddress([2, 0, 0, 0, 0xb, 8]);
    world.table.neighbor_set(B, ip("198.19.0.8"), Some(other)).unwrap();
    let frame = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    for _ in 0..3 {
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B)[0][..6], MAC_B9.0);
        route(&mut world, "203.0.113.4/30", RouteKind::via(B, ip("198.19.0.8")));
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B)[0][..6], other.0);
        world.table.route_delete(prefix("203.0.113.4/30"), 0).unwrap();
    }
    // A neighbour with a new MAC, a connected destination, and back through the port that it came from.
    world.table.neighbor_set(B, ip("198.19.0.9"), Some(other)).unwrap();
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B)[0][..6], other.0);
    let frame = packet("203.0.113.5", "198.18.0.9").frame(world.mac(B), MAC_B9);
    send(&mut world, B, &frame);
    assert_eq!(world.collect(A), [forwarded(&frame, MAC_A9, world.mac(A))]);
    let frame = packet("198.18.0.7", "198.18.0.9").at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(A), [forwarded(&frame, MAC_A9, world.mac(A))]);
    check(world);
}

#[test]
pub fn ttl_runs_out_and_the_sender_is_told_what_it_sent() {
    let mut world = two();
    for (source, destination, own) in FAMILIES {
        for ttl in [0, 1] {
            let p = packet(source, destination).ttl(ttl).udp(1, 2, 100);
            let frame = p.at_a(&world);
            dropped(&mut world, A, &frame, "ttl_expired");
            let back = world.collect(A);
            let kind = if ip(source).is_ipv4() { (11, 0) } else { (3, 0) };
            let expected = Error { from: ip(own), to: ip(source), kind, word: 0, quote: p.bytes() };
            assert_eq!((back.len(), error(&back[0])), (1, expected));
            assert_eq!(back[0][..12], [MAC_A9.0, world.mac(A).0].concat()[..]);
        }
    }
    assert!(world.collect(B).is_empty());
    check(world);
}

#[test]
pub fn every_kind_of_route_does_what_it_says() {
    let mut world = two();
    route(&mut world, "192.0.2.0/26", RouteKind::Blackhole);
    route(&mut world, "192.0.2.64/26", RouteKind::Unreachable);
    route(&mut world, "192.0.2.128/26", RouteKind::Prohibit);
    route(&mut world, "2001:db8:e1::/48", RouteKind::Blackhole);
    route(&mut world, "2001:db8:e2::/48", RouteKind::Unreachable);
    route(&mut world, "2001:db8:e3::/48", RouteKind::Prohibit);
    let cases = [
        ("192.0.2.1", "blackhole", None),
        ("192.0.2.65", "unreachable", Some((3, 1))),
        ("192.0.2.129", "prohibit", Some((3, 13))),
        ("192.0.2.200", "no_route", Some((3, 0))),
        ("2001:db8:e1::1", "blackhole", None),
        ("2001:db8:e2::1", "unreachable", Some((1, 3))),
        ("2001:db8:e3::1", "prohibit", Some((1, 1))),
        ("2001:db8:e4::1", "no_route", Some((1, 0))),
    ];
    for (destination, label, told) in cases {
        let v4 = ip(destination).is_ipv4();
        let p = packet(if v4 { "198.18.0.9" } else { "2001:db8:a::9" }, destination);
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, label);
        let back: Vec<_> = world.collect(A).iter().map(|f| error(f)).collect();
        assert_eq!(back.iter().map(|e| e.kind).collect::<Vec<_>>(), told.into_iter().collect::<Vec<_>>(), "{label}");
        // The quote shows the packet as it arrived, its TTL too.
        assert!(back.iter().all(|e| e.quote == p.bytes()), "{label}");
    }
    check(world);
}

#[test]
pub fn icmp_errors_are_limited_and_never_answer_errors() {
    let mut world = world(ports().options(|o| o.icmp_rate = (10, 5)));
    let frame = packet("198.18.0.9", "192.0.2.1").at_a(&world);
    for _ in 0..20 {
        send(&mut world, A, &frame);
    }
    assert_eq!(world.collect(A).len(), 5);
    world.advance(SECOND);
    for _ in 0..20 {
        send(&mut world, A, &frame);
    }
    assert_eq!(world.collect(A).len(), 5);
    world.advance(SECOND);
    // An ICMP error, a later fragment, a source that is nobody's: silence (RFC 1812, 4.3.2.7).
    let quote = [&[3, 1, 0, 0, 0, 0, 0, 0], &packet("192.0.2.1", "198.18.0.9").bytes()[..]].concat();
    let unreachable = packet("198.18.0.9", "192.0.2.1").transport(1, quote, 2);
    let frame = unreachable.at_a(&world);
    dropped(&mut world, A, &frame, "no_route");
    let mut later = packet("198.18.0.9", "192.0.2.1");
    later.fragment = 2;
    let frame = later.at_a(&world);
    dropped(&mut world, A, &frame, "no_route");
    assert!(world.collect(A).is_empty());
    let totals = check(world);
    assert_eq!((totals.icmp_suppressed, totals.generated["icmp_error"]), (30, 10));
}
