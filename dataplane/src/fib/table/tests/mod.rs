mod random;

use super::*;
use crate::fib::adjacency::AdjacencyKind;
use crate::fib::prefix::{MacAddress, VlanTag};
use std::collections::BTreeMap;

const LIMITS: TableLimits = TableLimits { adjacencies: 1024, multipath_groups: 64 };
const A: PortId = PortId(1);
const B: PortId = PortId(2);
const UP: PortSettings = PortSettings { mac: MacAddress([2, 0, 0, 0, 0, 1]), mtu: 1500, vlan: None, up: true };
const DOWN: PortSettings = PortSettings { up: false, ..UP };

/// A table with ports A (10.0.0.0/24, 2001:db8:a::/64) and B (10.0.1.0/24, 2001:db8:b::/64), both up.
fn table() -> RoutingTable {
    let mut table = RoutingTable::new(&Domain::new(2), LIMITS);
    for (port, v4, v6) in [(A, "10.0.0.0/24", "2001:db8:a::/64"), (B, "10.0.1.0/24", "2001:db8:b::/64")] {
        table.port_set(port, UP).unwrap();
        table.route_replace(prefix(v4), 0, RouteKind::Connected { port }).unwrap();
        table.route_replace(prefix(v6), 256, RouteKind::Connected { port }).unwrap();
    }
    table
}

fn prefix(text: &str) -> Prefix {
    text.parse::<ipnetwork::IpNetwork>().unwrap().into()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 1, last])
}

fn id_of(fib: &Fib, address: &str) -> AdjacencyId {
    match ip(address) {
        IpAddr::V4(address) => fib.v4.lookup(address.to_bits()),
        IpAddr::V6(address) => fib.v6.lookup(address.to_bits()),
    }
}

fn kind_of(fib: &Fib, address: &str) -> AdjacencyKind {
    fib.adjacencies.kind(id_of(fib, address))
}

fn via(hops: &[(PortId, &str, u16)]) -> RouteKind {
    let hop = |&(port, gateway, weight): &(PortId, &str, u16)| NextHop {
        port,
        gateway: Some(ip(gateway)),
        weight,
        on_link: false,
    };
    RouteKind::Via(hops.iter().map(hop).collect())
}

#[test]
fn lengths_are_those_of_the_prefixes_that_answer() {
    let mut table = table();
    let routes = [("0.0.0.0/0", "10.0.0.9"), ("10.1.0.0/16", "10.0.0.9"), ("10.1.2.128/25", "10.0.0.9")];
    for (text, hop) in routes.into_iter().chain([("::/0", "2001:db8:a::9"), ("2001:db8:5::/48", "2001:db8:a::9")]) {
        table.route_replace(prefix(text), 0, via(&[(A, hop, 1)])).unwrap();
    }
    let fib = table.fib();
    for (address, length) in [("9.9.9.9", 0), ("10.1.9.9", 16), ("10.1.2.127", 16), ("10.1.2.129", 25)] {
        let IpAddr::V4(v4) = ip(address) else { panic!("{address}") };
        assert_eq!(fib.v4.length(v4.to_bits()), length, "{address}");
    }
    for (address, length) in [("2a00::1", 0), ("2001:db8:5:9::1", 48), ("2001:db8:6::1", 0)] {
        let IpAddr::V6(v6) = ip(address) else { panic!("{address}") };
        assert_eq!(fib.v6.length(v6.to_bits()), length, "{address}");
    }
}

#[test]
fn addresses_that_are_never_forwarded_stay_so_under_a_default_route() {
    let mut table = table();
    let fib = table.fib();
    table.route_replace(prefix("0.0.0.0/0"), 0, via(&[(A, "10.0.0.1", 1)])).unwrap();
    table.route_replace(prefix("::/0"), 0, via(&[(A, "2001:db8:a::1", 1)])).unwrap();
    for (address, kind) in [
        ("8.8.8.8", AdjacencyKind::Unresolved),
        ("0.1.2.3", AdjacencyKind::Martian),
        ("127.0.0.1", AdjacencyKind::Martian),
        ("224.0.0.5", AdjacencyKind::Multicast),
        ("239.255.255.255", AdjacencyKind::Multicast),
        ("240.0.0.1", AdjacencyKind::Martian),
        ("255.255.255.254", AdjacencyKind::Martian),
        ("255.255.255.255", AdjacencyKind::Broadcast),
        ("2001:4860::1", AdjacencyKind::Unresolved),
        ("::", AdjacencyKind::Martian),
        ("::1", AdjacencyKind::Martian),
        ("::2", AdjacencyKind::Unresolved),
        ("::ffff:10.0.0.1", AdjacencyKind::Martian),
        ("fe80::1", AdjacencyKind::LinkLocal),
        ("febf::1", AdjacencyKind::LinkLocal),
        ("fec0::1", AdjacencyKind::Unresolved),
        ("ff02::1", AdjacencyKind::Multicast),
    ] {
        assert_eq!(kind_of(&fib, address), kind, "{address}");
    }
    for refused in ["127.0.0.1/32", "0.0.0.0/8", "224.0.0.0/24", "255.255.255.255/32", "fe80::/64", "::1/128"] {
        let refusal = table.route_replace(prefix(refused), 0, RouteKind::Local { port: A });
        assert!(matches!(refusal, Err(RouteError::Reserved { .. })), "{refused}: {refusal:?}");
    }
    table.route_replace(prefix("240.0.0.0/4"), 0, RouteKind::Connected { port: B }).unwrap();
    assert_eq!(kind_of(&fib, "240.0.0.1"), AdjacencyKind::Glean);
    assert_eq!(kind_of(&fib, "255.255.255.255"), AdjacencyKind::Broadcast);
    table.route_delete(prefix("240.0.0.0/4"), 0).unwrap();
    assert_eq!(kind_of(&fib, "240.0.0.1"), AdjacencyKind::Martian);
}

#[test]
fn the_lowest_metric_wins_and_deletion_falls_back() {
    let mut table = table();
    let fib = table.fib();
    let net = prefix("192.0.2.0/24");
    let change = table.route_replace(net, 20, RouteKind::Blackhole).unwrap();
    assert_eq!(change, RouteChange::Added);
    table.route_replace(net, 10, RouteKind::Prohibit).unwrap();
    assert_eq!(kind_of(&fib, "192.0.2.1"), AdjacencyKind::Prohibit);
    assert_eq!(table.route_replace(net, 10, RouteKind::Prohibit).unwrap(), RouteChange::Unchanged);
    assert_eq!(table.route_replace(net, 10, RouteKind::Unreachable).unwrap(), RouteChange::Replaced);
    assert_eq!(kind_of(&fib, "192.0.2.1"), AdjacencyKind::Unreachable);
    let shown = table.routes_of(net);
    assert_eq!(shown.iter().map(|route| (route.metric, route.in_force)).collect::<Vec<_>>(), [(10, true), (20, false)]);
    table.route_delete(net, 10).unwrap();
    assert_eq!(kind_of(&fib, "192.0.2.1"), AdjacencyKind::Blackhole);
    assert_eq!(table.route_delete(net, 10), Err(RouteError::NoSuchRoute { prefix: net, metric: 10 }));
    table.route_delete(net, 20).unwrap();
    assert_eq!(kind_of(&fib, "192.0.2.1"), AdjacencyKind::NoRoute);
}

#[test]
fn senseless_routes_are_refused_and_change_nothing() {
    let mut table = table();
    let before = (table.counts(), table.memory());
    let net = prefix("192.0.2.0/24");
    let unknown = PortId(9);
    table.route_replace(prefix("10.0.0.254/32"), 0, RouteKind::Local { port: A }).unwrap();
    for (kind, error) in [
        (via(&[]), RouteError::NoNextHop),
        (via(&[(A, "10.0.0.1", 0)]), RouteError::ZeroWeight),
        (via(&[(unknown, "10.0.0.1", 1)]), RouteError::UnknownPort { port: unknown }),
        (RouteKind::Connected { port: unknown }, RouteError::UnknownPort { port: unknown }),
        (via(&[(A, "10.0.1.1", 1)]), RouteError::GatewayNotConnected { gateway: ip("10.0.1.1"), port: A }),
        (via(&[(A, "172.16.0.1", 1)]), RouteError::GatewayNotConnected { gateway: ip("172.16.0.1"), port: A }),
        (via(&[(A, "10.0.0.254", 1)]), RouteError::GatewayIsLocal { gateway: ip("10.0.0.254") }),
        (
            RouteKind::Via(
                (0..65)
                    .map(|host| NextHop {
                        port: A,
                        gateway: Some(IpAddr::from([10, 0, 0, host])),
                        weight: 1,
                        on_link: true,
                    })
                    .collect(),
            ),
            RouteError::TooManyNextHops { count: 65 },
        ),
    ] {
        assert_eq!(table.route_replace(net, 0, kind), Err(error));
        assert!(!error.to_string().is_empty());
    }
    let too_long = Prefix::V4 { address: 0, length: 33 };
    let refusal = table.route_replace(too_long, 0, RouteKind::Blackhole);
    assert_eq!(refusal, Err(RouteError::BadLength { length: 33, bits: 32 }));
    table.route_delete(prefix("10.0.0.254/32"), 0).unwrap();
    assert_eq!(table.counts(), before.0);
    // What the kernel has checked is believed, and a link-local gateway needs no subnet.
    let on_link = NextHop { port: A, gateway: Some(ip("172.16.0.1")), weight: 1, on_link: true };
    table.route_replace(net, 0, RouteKind::Via(smallvec::smallvec![on_link])).unwrap();
    table.route_replace(net, 1, via(&[(A, "fe80::1", 1)])).unwrap();
}

#[test]
fn a_full_adjacency_table_refuses_and_keeps_going() {
    let limits = TableLimits { adjacencies: AdjacencyKind::FIXED + 2, multipath_groups: 1 };
    let mut table = RoutingTable::new(&Domain::new(1), limits);
    let fib = table.fib();
    table.port_set(A, UP).unwrap();
    table.route_replace(prefix("10.0.0.0/24"), 0, RouteKind::Connected { port: A }).unwrap();
    table.route_replace(prefix("192.0.2.0/25"), 0, via(&[(A, "10.0.0.1", 1)])).unwrap();
    let refused = table.route_replace(prefix("192.0.2.128/25"), 0, via(&[(A, "10.0.0.2", 1)]));
    assert_eq!(refused, Err(RouteError::AdjacenciesFull));
    let refused = table.route_replace(prefix("192.0.2.0/25"), 0, via(&[(A, "10.0.0.1", 1), (A, "10.0.0.2", 1)]));
    assert_eq!(refused, Err(RouteError::AdjacenciesFull));
    assert_eq!(kind_of(&fib, "192.0.2.1"), AdjacencyKind::Unresolved);
    assert_eq!(kind_of(&fib, "192.0.2.129"), AdjacencyKind::NoRoute);
    assert_eq!(table.neighbor_set(A, ip("10.0.0.3"), Some(mac(3))), Err(RouteError::AdjacenciesFull));
    assert_eq!(kind_of(&fib, "10.0.0.3"), AdjacencyKind::Glean);
    table.route_delete(prefix("192.0.2.0/25"), 0).unwrap();
    table.neighbor_set(A, ip("10.0.0.3"), Some(mac(3))).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.3"), AdjacencyKind::Forward);
}

#[test]
fn a_limit_on_routes_holds_for_new_ones_of_its_family() {
    let mut table = table();
    let there = table.counts().routes_v4;
    table.limit_routes(there + 1, usize::MAX);
    table.route_replace(prefix("192.0.2.0/24"), 0, RouteKind::Blackhole).unwrap();
    let over = table.route_replace(prefix("198.51.100.0/24"), 0, RouteKind::Blackhole);
    assert_eq!(over, Err(RouteError::LimitReached { most: there + 1 }));
    assert_eq!(kind_of(&table.fib(), "198.51.100.1"), AdjacencyKind::NoRoute);
    // Another target for one that is there, and the other family, are no more routes of this one.
    table.route_replace(prefix("192.0.2.0/24"), 0, RouteKind::Prohibit).unwrap();
    table.route_replace(prefix("2001:db8:1::/48"), 0, RouteKind::Blackhole).unwrap();
    table.route_delete(prefix("192.0.2.0/24"), 0).unwrap();
    table.route_replace(prefix("198.51.100.0/24"), 0, RouteKind::Blackhole).unwrap();
}

#[test]
fn a_neighbor_is_resolved_changes_its_mac_and_goes() {
    let mut table = table();
    let fib = table.fib();
    for (gateway, net, inside) in
        [("10.0.0.7", "192.0.2.0/24", "192.0.2.1"), ("2001:db8:a::7", "2001:db8:ffff::/48", "2001:db8:ffff::1")]
    {
        table.route_replace(prefix(net), 0, via(&[(A, gateway, 1)])).unwrap();
        let id = id_of(&fib, inside);
        assert_eq!(fib.adjacencies.kind(id), AdjacencyKind::Unresolved);
        assert_eq!(fib.adjacencies.next_hop(id), Some(ip(gateway)));
        assert_eq!(kind_of(&fib, gateway), AdjacencyKind::Glean);
        table.neighbor_set(A, ip(gateway), Some(mac(7))).unwrap();
        let view = fib.adjacencies.get(id);
        assert!(view.is_forward());
        assert_eq!((view.port(), view.mtu()), (A, 1500));
        assert_eq!(fib.adjacencies.rewrite(id).macs(), [2, 0, 0, 0, 1, 7, 2, 0, 0, 0, 0, 1]);
        assert_eq!(id_of(&fib, gateway), id, "the host route of the neighbour shares its adjacency");
        table.neighbor_set(A, ip(gateway), Some(mac(8))).unwrap();
        assert_eq!(fib.adjacencies.rewrite(id).macs()[..6], mac(8).0);
        table.neighbor_set(A, ip(gateway), None).unwrap();
        assert_eq!((id_of(&fib, inside), fib.adjacencies.kind(id)), (id, AdjacencyKind::Unresolved));
        assert_eq!(kind_of(&fib, gateway), AdjacencyKind::Glean);
        assert!(table.neighbor_delete(A, ip(gateway)).unwrap());
        assert!(!table.neighbor_delete(A, ip(gateway)).unwrap());
    }
    assert_eq!(table.neighbor_set(PortId(9), ip("10.0.0.7"), None), Err(RouteError::UnknownPort { port: PortId(9) }));
}

#[test]
fn a_neighbor_never_shadows_an_explicit_route() {
    let mut table = table();
    let fib = table.fib();
    table.neighbor_set(A, ip("10.0.0.130"), Some(mac(1))).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.130"), AdjacencyKind::Forward);
    table.route_replace(prefix("10.0.0.130/32"), 0, RouteKind::Prohibit).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.130"), AdjacencyKind::Prohibit);
    table.route_delete(prefix("10.0.0.130/32"), 0).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.130"), AdjacencyKind::Forward);
    table.route_replace(prefix("10.0.0.128/25"), 0, via(&[(B, "10.0.1.1", 1)])).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.130"), AdjacencyKind::Unresolved, "the /25 leads to B");
    table.route_delete(prefix("10.0.0.128/25"), 0).unwrap();
    assert_eq!(kind_of(&fib, "10.0.0.130"), AdjacencyKind::Forward);
    // The same address on the wrong port, and the subnet moving there.
    table.neighbor_set(B, ip("10.0.0.130"), Some(mac(2))).unwrap();
    assert_eq!(fib.adjacencies.get(id_of(&fib, "10.0.0.130")).port(), A);
    table.route_replace(prefix("10.0.0.0/24"), 0, RouteKind::Connected { port: B }).unwrap();
    assert_eq!(fib.adjacencies.get(id_of(&fib, "10.0.0.130")).port(), B);
    // A point-to-point peer's own /32 is connected: the neighbour stands for it.
    table.route_replace(prefix("10.9.9.9/32"), 0, RouteKind::Connected { port: A }).unwrap();
    assert_eq!(kind_of(&fib, "10.9.9.9"), AdjacencyKind::Glean);
    table.neighbor_set(A, ip("10.9.9.9"), Some(mac(3))).unwrap();
    assert_eq!(kind_of(&fib, "10.9.9.9"), AdjacencyKind::Forward);
    table.route_delete(prefix("10.9.9.9/32"), 0).unwrap();
    assert_eq!(kind_of(&fib, "10.9.9.9"), AdjacencyKind::NoRoute);
    // A link-local neighbour is never a destination.
    table.neighbor_set(A, ip("fe80::1"), Some(mac(4))).unwrap();
    assert_eq!(kind_of(&fib, "fe80::1"), AdjacencyKind::LinkLocal);
}

#[test]
fn a_port_that_goes_down_takes_its_routes_out_and_brings_them_back() {
    let mut table = table();
    let fib = table.fib();
    table.route_replace(prefix("10.0.0.254/32"), 0, RouteKind::Local { port: A }).unwrap();
    table.route_replace(prefix("192.0.2.0/24"), 0, via(&[(A, "10.0.0.1", 1)])).unwrap();
    table.route_replace(prefix("198.51.100.0/24"), 10, via(&[(A, "10.0.0.1", 1)])).unwrap();
    table.route_replace(prefix("198.51.100.0/24"), 20, via(&[(B, "10.0.1.1", 1)])).unwrap();
    table.route_replace(prefix("2001:db8:1::/48"), 10, via(&[(A, "2001:db8:a::1", 1)])).unwrap();
    table.route_replace(prefix("2001:db8:1::/48"), 20, via(&[(B, "2001:db8:b::1", 1)])).unwrap();
    let expect = |up: bool| {
        let (gone, port) = if up { (AdjacencyKind::Unresolved, A) } else { (AdjacencyKind::Unreachable, B) };
        assert_eq!(kind_of(&fib, "192.0.2.1"), gone);
        assert_eq!(kind_of(&fib, "10.0.0.77"), if up { AdjacencyKind::Glean } else { AdjacencyKind::Unreachable });
        assert_eq!(kind_of(&fib, "10.0.0.254"), AdjacencyKind::Local);
        for address in ["198.51.100.1", "2001:db8:1::1"] {
            let view = fib.adjacencies.get(id_of(&fib, address));
            assert_eq!((view.kind(), view.port()), (AdjacencyKind::Unresolved, port), "{address}");
        }
    };
    expect(true);
    table.port_set(A, DOWN).unwrap();
    expect(false);
    table.port_set(A, UP).unwrap();
    expect(true);
    // Both down: the best one is kept, and says unreachable.
    table.port_set(A, DOWN).unwrap();
    table.port_set(B, DOWN).unwrap();
    assert_eq!(kind_of(&fib, "198.51.100.1"), AdjacencyKind::Unreachable);
    table.port_set(B, UP).unwrap();
    expect(false);
}

#[test]
fn port_settings_reach_every_adjacency() {
    let mut table = table();
    let fib = table.fib();
    table.neighbor_set(A, ip("10.0.0.7"), Some(mac(7))).unwrap();
    let tag = VlanTag { tpid: 0x88a8, tci: 100 };
    let settings = PortSettings { mac: MacAddress([6, 5, 4, 3, 2, 0]), mtu: 9000, vlan: Some(tag), up: true };
    table.port_set(A, settings).unwrap();
    let id = id_of(&fib, "10.0.0.7");
    assert_eq!(fib.adjacencies.get(id).mtu(), 9000);
    assert_eq!(fib.adjacencies.rewrite(id).tagged(), [2, 0, 0, 0, 1, 7, 6, 5, 4, 3, 2, 0, 0x88, 0xa8, 0, 100]);
    assert_eq!(fib.adjacencies.rewrite(id).vlan(), Some(tag));
}

/// How many of 64,000 flows each port gets.
fn spread(fib: &Fib, id: AdjacencyId) -> BTreeMap<Option<IpAddr>, usize> {
    let mut spread = BTreeMap::new();
    let mut hash = 0x1234_5678_u32;
    for _ in 0..64_000 {
        hash = hash.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (member, view) = fib.adjacencies.resolve(id, hash.rotate_left(13));
        assert_ne!(view.kind(), AdjacencyKind::Multipath);
        *spread.entry(fib.adjacencies.next_hop(member)).or_insert(0) += 1;
    }
    spread
}

#[test]
fn flows_spread_by_weight_and_only_those_of_a_lost_member_move() {
    let mut table = table();
    let fib = table.fib();
    let hops = [(A, "10.0.0.1", 1), (A, "10.0.0.2", 1), (B, "10.0.1.1", 2)];
    let net = prefix("192.0.2.0/24");
    table.route_replace(net, 0, via(&hops)).unwrap();
    let id = id_of(&fib, "192.0.2.1");
    for (share, expected) in [("10.0.0.1", 16_000_usize), ("10.0.0.2", 16_000), ("10.0.1.1", 32_000)] {
        let got = spread(&fib, id)[&Some(ip(share))];
        assert!(got.abs_diff(expected) < 1500, "{share}: {got} of 64,000 flows");
    }
    let choices = || -> Vec<Option<IpAddr>> {
        let choose = |hash: u32| fib.adjacencies.resolve(id, hash.wrapping_mul(0x0101_4677)).0;
        (0..5000).map(|hash| fib.adjacencies.next_hop(choose(hash))).collect()
    };
    let before = choices();
    table.port_set(B, DOWN).unwrap();
    for (old, new) in before.iter().zip(choices()) {
        assert_ne!(new, Some(ip("10.0.1.1")));
        assert!(*old == new || *old == Some(ip("10.0.1.1")), "a flow of {old:?} moved to {new:?}");
    }
    table.port_set(B, UP).unwrap();
    assert_eq!(choices(), before, "the flows come home");
    table.port_set(A, DOWN).unwrap();
    table.port_set(B, DOWN).unwrap();
    assert_eq!(fib.adjacencies.resolve(id, 5).1.kind(), AdjacencyKind::Unreachable);
}

#[test]
fn a_changed_set_of_next_hops_moves_few_flows() {
    let mut table = table();
    let fib = table.fib();
    let net = prefix("192.0.2.0/24");
    let hop = |host: u8| NextHop { port: A, gateway: Some(IpAddr::from([10, 0, 0, host])), weight: 1, on_link: false };
    table.route_replace(net, 0, RouteKind::Via((1..=4).map(hop).collect())).unwrap();
    let choices = |fib: &Fib| -> Vec<Option<IpAddr>> {
        let id = id_of(fib, "192.0.2.1");
        (0..6400_u32)
            .map(|flow| fib.adjacencies.next_hop(fib.adjacencies.resolve(id, flow.wrapping_mul(0x2545_f491)).0))
            .collect()
    };
    let four = choices(&fib);
    table.route_replace(net, 0, RouteKind::Via((1..=3).map(hop).collect())).unwrap();
    let three = choices(&fib);
    let lost = Some(ip("10.0.0.4"));
    assert!(four.iter().zip(&three).all(|(old, new)| old == new || *old == lost), "only the lost member's flows move");
    table.route_replace(net, 0, RouteKind::Via((1..=5).map(hop).collect())).unwrap();
    let five = choices(&fib);
    let moved = three.iter().zip(&five).filter(|(old, new)| old != new).count();
    assert!(moved < 6400 / 2, "{moved} of 6400 flows moved to two new members of five");
    assert_eq!(table.counts().multipath_groups, 1);
}

#[test]
fn the_fallback_metric_may_be_multipath_and_everything_is_given_back() {
    let mut table = table();
    let start = table.counts();
    let net = prefix("2001:db8:1::/48");
    table.route_replace(net, 1, via(&[(A, "2001:db8:a::1", 1)])).unwrap();
    table.route_replace(net, 2, via(&[(A, "2001:db8:a::2", 1), (B, "2001:db8:b::2", 3)])).unwrap();
    table.neighbor_set(A, ip("2001:db8:a::1"), Some(mac(1))).unwrap();
    assert_ne!(table.counts(), start);
    let removed = table.routes_retain(|route| route.prefix != net).unwrap();
    assert_eq!(removed, 2);
    table.neighbor_delete(A, ip("2001:db8:a::1")).unwrap();
    assert_eq!(table.counts(), start);
    table.flush().unwrap();
    let empty = RoutingTable::new(&Domain::new(1), LIMITS);
    assert_eq!(table.counts(), empty.counts());
}

#[test]
fn show_tells_what_is_there() {
    let mut table = table();
    table.neighbor_set(B, ip("10.0.1.9"), Some(mac(9))).unwrap();
    table.neighbor_set(B, ip("10.0.1.10"), None).unwrap();
    let neighbors: Vec<_> = table.neighbors().map(|view| (view.address, view.mac, view.host_route)).collect();
    assert_eq!(neighbors, [(ip("10.0.1.9"), Some(mac(9)), true), (ip("10.0.1.10"), None, false)]);
    let route = table.route_to(ip("10.0.1.9")).unwrap();
    assert_eq!((route.prefix, route.origin), (prefix("10.0.1.9/32"), RouteOrigin::Neighbor));
    assert_eq!(route.adjacency_kind, AdjacencyKind::Forward);
    let route = table.route_to(ip("10.0.1.10")).unwrap();
    assert_eq!((route.prefix, route.kind), (prefix("10.0.1.0/24"), Some(RouteKind::Connected { port: B })));
    let martian = table.route_to(ip("127.0.0.1")).unwrap();
    assert_eq!((martian.kind, martian.origin), (None, RouteOrigin::BuiltIn));
    assert_eq!(table.route_to(ip("8.8.8.8")), None);
    assert_eq!(table.routes().count(), 4 + RESERVED.len() + 1);
    assert_eq!(table.ports().map(|view| view.port).collect::<Vec<_>>(), [A, B]);
    let counts = table.counts();
    assert_eq!((counts.routes_v4, counts.routes_v6, counts.neighbors), (2, 2, 2));
}
