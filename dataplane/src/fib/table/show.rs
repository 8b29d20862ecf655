#![forbid(unsafe_code)]
//! What the routing table tells about itself: plain data for `show` and metrics.

use super::RoutingTable;
use crate::fib::adjacency::{AdjacencyId, AdjacencyKind};
use crate::fib::hops::{HopKey, PortSettings};
use crate::fib::prefix::{MacAddress, PortId, Prefix};
use crate::fib::rib::{RouteOrigin, Routes};
use crate::fib::route::RouteKind;
use std::net::IpAddr;

/// One route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteView {
    /// Its prefix.
    pub prefix: Prefix,
    /// Its metric; of a neighbour's host route the number of the port.
    pub metric: u32,
    /// Where it comes from.
    pub origin: RouteOrigin,
    /// What it does; `None` for built-in entries, which `adjacency_kind` explains.
    pub kind: Option<RouteKind>,
    /// Whether it is the one of its prefix that is in force.
    pub in_force: bool,
    /// Whether it gets anywhere: a port is up, or none is needed.
    pub active: bool,
    /// The adjacency that it leads to.
    pub adjacency: AdjacencyId,
    /// What packets meet there now.
    pub adjacency_kind: AdjacencyKind,
}

/// One neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborView {
    /// Its port.
    pub port: PortId,
    /// Its address.
    pub address: IpAddr,
    /// Its MAC, if resolved.
    pub mac: Option<MacAddress>,
    /// Whether it has a host route of its own in a connected subnet.
    pub host_route: bool,
    /// Its adjacency, if a route leads there.
    pub adjacency: Option<AdjacencyId>,
}

/// One port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortView {
    /// Its number.
    pub port: PortId,
    /// Its settings.
    pub settings: PortSettings,
}

/// How full the tables are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Explicit IPv4 routes.
    pub routes_v4: usize,
    /// Explicit IPv6 routes.
    pub routes_v6: usize,
    /// IPv4 prefixes, with those of neighbours and built-in ones.
    pub prefixes_v4: usize,
    /// IPv6 prefixes, with those of neighbours and built-in ones.
    pub prefixes_v6: usize,
    /// Known neighbours, resolved or not.
    pub neighbors: usize,
    /// Distinct route targets, with the built-in ones.
    pub paths: usize,
    /// Adjacencies in use beside the fixed ones.
    pub adjacencies: usize,
    /// Multipath groups in use.
    pub multipath_groups: usize,
    /// /24s of the IPv4 table that hold longer prefixes.
    pub fib4_groups: usize,
    /// Bytes of the groups and nodes of the IPv6 table.
    pub fib6_bytes: usize,
}

/// Memory of the tables, in bytes that are backed by pages (as far as allocators let one tell).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// The IPv4 table that workers read.
    pub fib4: usize,
    /// The IPv6 table that workers read.
    pub fib6: usize,
    /// Adjacencies, neighbours and paths.
    pub adjacencies: usize,
    /// Routes by prefix, both families.
    pub rib: usize,
}

impl MemoryUse {
    /// All together.
    pub fn total(&self) -> usize {
        self.fib4 + self.fib6 + self.adjacencies + self.rib
    }
}

impl RoutingTable {
    /// All routes, in no order, made one at a time: a full table is not copied.
    pub fn routes(&self) -> impl Iterator<Item = RouteView> + '_ {
        self.rib4.iter().chain(self.rib6.iter()).flat_map(|(prefix, routes)| self.views(prefix, routes))
    }

    /// The routes of exactly this prefix, best first.
    pub fn routes_of(&self, prefix: Prefix) -> Vec<RouteView> {
        prefix.canonical().map_or_else(Vec::new, |prefix| self.views(prefix, self.routes_at(prefix)))
    }

    /// The route that packets to `address` take.
    pub fn route_to(&self, address: IpAddr) -> Option<RouteView> {
        let (prefix, routes) = self.prefixes_around(address).next()?;
        self.views(prefix, routes).into_iter().find(|view| view.in_force)
    }

    fn views(&self, prefix: Prefix, routes: Routes) -> Vec<RouteView> {
        let chosen = self.choose(&routes);
        let view = |route: &super::Route| {
            let adjacency = self.paths.adjacency(route.path);
            RouteView {
                prefix,
                metric: route.metric,
                origin: route.origin,
                kind: (route.origin != RouteOrigin::BuiltIn).then(|| self.paths.kind(route.path).clone()),
                in_force: chosen == Some(*route),
                active: self.paths.is_active(route.path),
                adjacency,
                adjacency_kind: self.fib.adjacencies.kind(adjacency),
            }
        };
        routes.iter().map(view).collect()
    }

    /// All neighbours, by address.
    pub fn neighbors(&self) -> impl Iterator<Item = NeighborView> + '_ {
        self.paths.hops.neighbors().map(|(port, address, neighbor)| NeighborView {
            port,
            address,
            mac: neighbor.mac,
            host_route: neighbor.host_route,
            adjacency: self.paths.hops.id(HopKey::Neighbor(port, address)),
        })
    }

    /// All ports, by number.
    pub fn ports(&self) -> impl Iterator<Item = PortView> + '_ {
        self.paths.hops.ports().map(|(port, settings)| PortView { port, settings: *settings })
    }

    /// How full the tables are.
    pub fn counts(&self) -> Counts {
        let (adjacencies, multipath_groups) = self.paths.hops.adjacencies.in_use();
        Counts {
            routes_v4: self.rib4.explicit(),
            routes_v6: self.rib6.explicit(),
            prefixes_v4: self.rib4.prefixes(),
            prefixes_v6: self.rib6.prefixes(),
            neighbors: self.paths.hops.neighbors().count(),
            paths: self.paths.len(),
            adjacencies,
            multipath_groups,
            fib4_groups: self.fib4.groups_in_use(),
            fib6_bytes: self.fib6.bytes_in_use(),
        }
    }

    /// Memory of the tables.
    pub fn memory(&self) -> MemoryUse {
        MemoryUse {
            fib4: self.fib4.memory(),
            fib6: self.fib6.memory(),
            adjacencies: self.paths.memory(),
            rib: self.rib4.memory() + self.rib6.memory(),
        }
    }
}
