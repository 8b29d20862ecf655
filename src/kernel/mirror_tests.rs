use super::super::event::{Hop, PortId, RouteAction};
use super::super::message::{Hops, Link, RawHop, Route, RouteEntry};
use super::super::resolve::Ports;
use super::super::rules::Step;
use super::*;
use proptest::prelude::*;

fn link(ifindex: u32) -> Link {
    Link {
        ifindex,
        name: format!("em{ifindex}"),
        mac: Some([2, 0, 0, 0, 0, ifindex as u8]),
        mtu: 1500,
        flags: (libc::IFF_UP | libc::IFF_LOWER_UP) as u32,
        kind: None,
        master: None,
        queues: (1, 1),
        ignore_linkdown: false,
    }
}

fn hop(ifindex: u32, gateway: &str) -> RawHop {
    RawHop { ifindex, gateway: Some(gateway.parse().unwrap()), weight: 1, encapsulated: false }
}

fn route(table: u32, prefix: &str, metric: u32, hops: Vec<RawHop>) -> Route {
    let entry =
        RouteEntry { metric, kind: libc::RTN_UNICAST, protocol: 4, tos: 0, preference: 0, hops: Hops::Own(hops) };
    Route { table, prefix: prefix.parse().unwrap(), entry, source_specific: false }
}

fn mirror(tables: &[u32]) -> Mirror {
    let mut mirror = Mirror::default();
    let steps: Vec<Step> = tables.iter().map(|table| Step::Table { table: *table, suppress: None }).collect();
    for is_v6 in [false, true] {
        mirror.chain_set(is_v6, Chain { steps: steps.clone(), unsupported: Vec::new() });
    }
    mirror
}

fn ports() -> Ports {
    Ports::from([(1, PortId(0)), (2, PortId(1))])
}

fn forward(hops: &[(u32, &str)]) -> RouteAction {
    let hop = |(ifindex, gateway): &(u32, &str)| Hop {
        ifindex: *ifindex,
        port: ports().get(ifindex).copied(),
        gateway: Some(gateway.parse().unwrap()),
        weight: 1,
    };
    RouteAction::Forward(hops.iter().map(hop).collect())
}

fn in_force(mirror: &Mirror, prefix: &str) -> Option<RouteAction> {
    mirror.resolve(prefix.parse().unwrap(), &ports()).map(|(_, action)| action)
}

const REPLACE: u16 = libc::NLM_F_REPLACE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

#[test]
fn a_route_that_comes_before_its_link_waits_for_it() {
    let mut mirror = mirror(&[254]);
    mirror.route_set(route(254, "10.0.0.0/8", 0, vec![hop(1, "10.0.0.1")]), 0);
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), None);
    mirror.dirty = Dirty::default();
    mirror.link_set(link(1));
    assert!(mirror.dirty.hop_links.contains(&1), "its routes are looked at again");
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "10.0.0.1")])));
}

#[test]
fn the_flags_say_where_an_ipv4_route_goes_in_the_list() {
    let mut mirror = mirror(&[254]);
    mirror.link_set(link(1));
    let with = |gateway: &str| route(254, "10.0.0.0/8", 5, vec![hop(1, gateway)]);
    mirror.route_set(with("1.1.1.1"), 0);
    mirror.route_set(with("1.1.1.2"), APPEND);
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.1")])));
    mirror.route_set(with("1.1.1.3"), 0); // prepended
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.3")])));
    mirror.route_set(with("1.1.1.4"), REPLACE); // replaces the first alone
    mirror.route_remove(&with("1.1.1.4"));
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.1")])));
    mirror.route_remove(&with("1.1.1.1"));
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.2")])));
}

#[test]
fn an_old_replacement_after_a_dump_replaces_nothing_more() {
    let mut mirror = mirror(&[254]);
    mirror.link_set(link(1));
    let with = |gateway: &str| route(254, "10.0.0.0/8", 5, vec![hop(1, gateway)]);
    // The dump saw the replaced first route and a second one behind it.
    mirror.route_set(with("1.1.1.1"), APPEND);
    mirror.route_set(with("1.1.1.2"), APPEND);
    mirror.route_set(with("1.1.1.1"), REPLACE);
    mirror.route_remove(&with("1.1.1.1"));
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.2")])));
}

#[test]
fn link_local_networks_of_several_links_stand_side_by_side() {
    let mut mirror = mirror(&[254]);
    let network = |ifindex: u32| {
        let mut found = route(254, "fe80::/64", 256, vec![RawHop { gateway: None, ..hop(ifindex, "::") }]);
        found.entry.protocol = 2;
        found
    };
    for ifindex in [1, 2] {
        mirror.link_set(link(ifindex));
        mirror.route_set(network(ifindex), 0);
    }
    let on = |mirror: &Mirror| match in_force(mirror, "fe80::/64") {
        Some(RouteAction::Forward(hops)) => hops.iter().map(|hop| hop.ifindex).collect(),
        _ => Vec::new(),
    };
    assert_eq!(on(&mirror), [1]);
    mirror.route_remove(&network(1));
    assert_eq!(on(&mirror), [2]);
}

#[test]
fn an_uncertain_ipv6_replacement_asks_for_a_dump() {
    let mut mirror = mirror(&[254]);
    mirror.link_set(link(1));
    let connected = |ifindex| route(254, "2001:db8::/32", 9, vec![RawHop { gateway: None, ..hop(ifindex, "::") }]);
    assert!(mirror.route_set(connected(1), 0));
    assert!(mirror.route_set(connected(2), 0));
    assert!(!mirror.route_set(route(254, "2001:db8::/32", 9, vec![hop(1, "fe80::1")]), REPLACE));
}

#[test]
fn a_better_router_advertisement_wins() {
    let mut mirror = mirror(&[254]);
    for (ifindex, preference) in [(1, 3), (2, 1)] {
        mirror.link_set(link(ifindex));
        let mut found = route(254, "::/0", 1024, vec![hop(ifindex, "fe80::1")]);
        found.entry.protocol = 9;
        found.entry.preference = preference;
        mirror.route_set(found, 0);
    }
    assert_eq!(in_force(&mirror, "::/0"), Some(forward(&[(2, "fe80::1")])));
}

#[test]
fn a_higher_metric_takes_over_when_the_link_goes_down() {
    let mut mirror = mirror(&[254]);
    mirror.link_set(link(1));
    mirror.link_set(link(2));
    mirror.route_set(route(254, "0.0.0.0/0", 10, vec![hop(1, "1.1.1.1")]), 0);
    mirror.route_set(route(254, "0.0.0.0/0", 20, vec![hop(2, "2.2.2.2")]), 0);
    assert_eq!(in_force(&mirror, "0.0.0.0/0"), Some(forward(&[(1, "1.1.1.1")])));
    mirror.link_set(Link { flags: 0, ..link(1) });
    assert_eq!(in_force(&mirror, "0.0.0.0/0"), Some(forward(&[(2, "2.2.2.2")])));
    assert!(mirror.dirty.silent_loss, "the kernel drops IPv4 routes without a word now");
}

#[test]
fn suppressed_defaults_pass_the_look_up_on() {
    let mut mirror = mirror(&[]);
    let steps = vec![Step::Table { table: 254, suppress: Some(0) }, Step::Table { table: 7, suppress: None }];
    mirror.chain_set(false, Chain { steps, unsupported: Vec::new() });
    mirror.link_set(link(1));
    mirror.link_set(link(2));
    mirror.route_set(route(254, "0.0.0.0/0", 0, vec![hop(1, "1.1.1.1")]), 0);
    mirror.route_set(route(254, "10.0.0.0/8", 0, vec![hop(1, "1.1.1.2")]), 0);
    mirror.route_set(route(7, "0.0.0.0/0", 0, vec![hop(2, "2.2.2.2")]), 0);
    assert_eq!(in_force(&mirror, "0.0.0.0/0"), Some(forward(&[(2, "2.2.2.2")])));
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(forward(&[(1, "1.1.1.2")])));
}

#[test]
fn a_throw_that_nobody_catches_is_a_hole() {
    let mut mirror = mirror(&[254]);
    mirror.link_set(link(1));
    mirror.route_set(route(254, "0.0.0.0/0", 0, vec![hop(1, "1.1.1.1")]), 0);
    mirror.put((false, 254), "10.0.0.0/8".parse().unwrap(), vec![entry(0)]);
    assert_eq!(in_force(&mirror, "10.0.0.0/8"), Some(RouteAction::Unreachable));
}

/// A change of one of three tables.
#[derive(Debug, Clone)]
struct Change {
    table: u32,
    address: u32,
    length: u8,
    /// None withdraws, 0 is throw, others are gateways.
    what: Option<u8>,
}

fn change() -> impl Strategy<Value = Change> {
    // Few addresses and lengths, so that prefixes meet and cover each other.
    (1u32..4, 0u32..8, 0u8..4, proptest::option::weighted(0.7, 0u8..4))
        .prop_map(|(table, address, length, what)| Change { table, address: address << 29, length, what })
}

fn entry(what: u8) -> RouteEntry {
    let (kind, hops) = match what {
        0 => (libc::RTN_THROW, Vec::new()),
        _ => (libc::RTN_UNICAST, vec![hop(1, &format!("1.1.1.{what}"))]),
    };
    RouteEntry { metric: 0, kind, protocol: 4, tos: 0, preference: 0, hops: Hops::Own(hops) }
}

/// The kernel's way: each table's longest match in turn, throw goes on.
fn kernel_answer(state: &BTreeMap<(u32, IpNetwork), u8>, address: Ipv4Addr) -> Option<u8> {
    (1..4).find_map(|table| {
        let matches = state.iter().filter(|((of, prefix), _)| *of == table && prefix.contains(address.into()));
        matches.max_by_key(|((_, prefix), _)| prefix.prefix()).map(|(_, what)| *what).filter(|what| *what != 0)
    })
}

proptest! {
    /// One longest-prefix match over what was given out equals the kernel's walk over its tables, after each change, when
    /// only the prefixes marked as changed are looked at.
    #[test]
    fn the_flat_table_answers_as_the_kernel_does(changes in proptest::collection::vec(change(), 1..40)) {
        let mut mirror = mirror(&[1, 2, 3]);
        mirror.link_set(link(1));
        let mut state = BTreeMap::new();
        let mut flat: BTreeMap<IpNetwork, RouteAction> = BTreeMap::new();
        for Change { table, address, length, what } in changes {
            let whole = IpNetwork::new(Ipv4Addr::from(address).into(), 32).unwrap();
            let prefix = shorten(whole, length);
            match what {
                Some(what) => state.insert((table, prefix), what),
                None => state.remove(&(table, prefix)),
            };
            mirror.put((false, table), prefix, what.map(entry).into_iter().collect());
            for prefix in std::mem::take(&mut mirror.dirty.prefixes) {
                match mirror.resolve(prefix, &ports()) {
                    Some((_, action)) => flat.insert(prefix, action),
                    None => flat.remove(&prefix),
                };
            }
            for address in (0..8u32).map(|high| Ipv4Addr::from(high << 29 | 5)) {
                let matches = flat.iter().filter(|(prefix, _)| prefix.contains(address.into()));
                let found = matches.max_by_key(|(prefix, _)| prefix.prefix()).map(|(_, action)| action.clone());
                let found = found.filter(|action| *action != RouteAction::Unreachable);
                let wanted = kernel_answer(&state, address).map(|what| forward(&[(1, &format!("1.1.1.{what}"))]));
                prop_assert_eq!(found, wanted, "{}", address);
            }
        }
    }

    #[test]
    fn shortening_keeps_the_network(address in any::<u32>(), length in 0u8..=32) {
        let whole = IpNetwork::new(Ipv4Addr::from(address).into(), 32).unwrap();
        let short = shorten(whole, length);
        prop_assert_eq!(short.prefix(), length);
        prop_assert!(short.contains(whole.ip()));
        prop_assert_eq!(short.network(), short.ip());
    }
}
