#![forbid(unsafe_code)]
//! The routing table: owner and only writer of the forwarding tables. It belongs to the control thread.
//!
//! Every change is in force when the call returns, and until then each look-up of a worker gives the answer from before
//! or from after. Of the routes of a prefix the one of the lowest metric that gets anywhere is in force; if none does
//! (all ports down), packets are answered as unreachable.

mod neighbors;
mod show;
#[cfg(test)]
mod tests;

pub use show::{Counts, MemoryUse, NeighborView, PortView, RouteView};

use super::Fib;
use super::adjacency::{Adjacencies, AdjacencyId, AdjacencyWriter};
use super::hops::{Hops, PortSettings};
use super::path::Paths;
use super::prefix::{PortId, Prefix};
use super::reserved::RESERVED;
use super::rib::{Rib, Route, RouteOrigin, Routes};
use super::route::{NextHop, RouteError, RouteKind};
use super::v4::{Fib4, Fib4Writer};
use super::v6::{Fib6, Fib6Writer};
use crate::quiesce::Domain;
use std::net::IpAddr;
use std::sync::Arc;

/// Sizes that are fixed at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableLimits {
    /// Adjacencies: distinct next hops, connected ports and sets of next hops (64 bytes each).
    pub adjacencies: usize,
    /// Distinct sets of several next hops (256 bytes each), at most 65,536.
    pub multipath_groups: usize,
}

impl Default for TableLimits {
    fn default() -> TableLimits {
        TableLimits { adjacencies: Adjacencies::DEFAULT_CAPACITY, multipath_groups: Adjacencies::DEFAULT_GROUPS }
    }
}

/// What [`RoutingTable::route_replace`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RouteChange {
    /// There was no route of this prefix and metric.
    Added,
    /// The route has a new target.
    Replaced,
    /// The route was there already.
    Unchanged,
}

/// Routes, ports and neighbours, and what workers see of them.
pub struct RoutingTable {
    fib: Arc<Fib>,
    fib4: Fib4Writer,
    fib6: Fib6Writer,
    rib4: Rib<u32>,
    rib6: Rib<u128>,
    paths: Paths,
    /// Most explicit routes, IPv4 and IPv6.
    most: [usize; 2],
}

impl RoutingTable {
    /// A table that forwards nothing yet: no routes but the built-in ones for addresses that are never forwarded. Workers
    /// that read it are those of `domain`.
    pub fn new(domain: &Arc<Domain>, limits: TableLimits) -> RoutingTable {
        let (v4, fib4) = Fib4::new(domain);
        let (v6, fib6) = Fib6::new(domain);
        let adjacencies = AdjacencyWriter::new(limits.adjacencies, limits.multipath_groups, domain);
        let fib = Arc::new(Fib { v4, v6, adjacencies: Arc::clone(adjacencies.table()) });
        let paths = Paths::new(Hops::new(adjacencies));
        let mut table =
            RoutingTable { fib, fib4, fib6, rib4: Rib::new(), rib6: Rib::new(), paths, most: [usize::MAX; 2] };
        for reserved in &RESERVED {
            let path = table.paths.built_in(reserved.kind);
            table.put(reserved.prefix, Route { origin: RouteOrigin::BuiltIn, metric: 0, path });
            table.program(reserved.prefix, None).expect("an empty table has room for the built-in entries");
        }
        table
    }

    /// What workers read.
    pub fn fib(&self) -> Arc<Fib> {
        Arc::clone(&self.fib)
    }

    /// Refuses explicit routes beyond so many of each family; those that are there stay. There is no limit until this is called.
    pub fn limit_routes(&mut self, ipv4: usize, ipv6: usize) {
        self.most = [ipv4, ipv6];
    }

    /// Adds a route, or gives the route of this prefix and metric another target.
    ///
    /// # Errors
    /// If the route makes no sense or there is no room for it; nothing was changed then.
    pub fn route_replace(&mut self, prefix: Prefix, metric: u32, kind: RouteKind) -> Result<RouteChange, RouteError> {
        let prefix = Self::canonical(prefix)?;
        if let Some(reserved) = RESERVED.iter().find(|entry| !entry.may_be_routed && entry.prefix.contains(prefix)) {
            return Err(RouteError::Reserved { prefix, reserved: reserved.prefix });
        }
        let kind = self.check_kind(kind)?;
        let old = self.routes_at(prefix);
        let before = self.adjacency_of(&old);
        self.check_room(prefix, before.is_some())?;
        let same = old.iter().find(|route| (route.origin, route.metric) == (RouteOrigin::Explicit, metric)).copied();
        let (count, most) = match prefix {
            Prefix::V4 { .. } => (self.rib4.explicit(), self.most[0]),
            Prefix::V6 { .. } => (self.rib6.explicit(), self.most[1]),
        };
        if same.is_none() && count >= most {
            return Err(RouteError::LimitReached { most });
        }
        let path = self.paths.acquire(kind, same.map(|route| route.path))?;
        self.put(prefix, Route { origin: RouteOrigin::Explicit, metric, path });
        self.program(prefix, before)?;
        if let Some(replaced) = same {
            self.paths.release(replaced.path);
        }
        self.reconsider_neighbors(prefix);
        Ok(match same {
            None => RouteChange::Added,
            Some(replaced) if replaced.path == path => RouteChange::Unchanged,
            Some(_) => RouteChange::Replaced,
        })
    }

    /// Removes the route of this prefix and metric; the one of the next metric, or a shorter prefix, takes over.
    ///
    /// # Errors
    /// [`RouteError::NoSuchRoute`]; [`RouteError::TableFull`] if workers have not been quiescent for many updates.
    pub fn route_delete(&mut self, prefix: Prefix, metric: u32) -> Result<(), RouteError> {
        let prefix = Self::canonical(prefix)?;
        self.withdraw(prefix, RouteOrigin::Explicit, metric)?;
        self.reconsider_neighbors(prefix);
        Ok(())
    }

    /// Removes every explicit route that `keep` does not want: what is left to do after a dump was read again.
    ///
    /// # Errors
    /// As [`RoutingTable::route_delete`]; the routes before the failing one are gone.
    pub fn routes_retain(&mut self, mut keep: impl FnMut(&RouteView) -> bool) -> Result<usize, RouteError> {
        let doomed: Vec<(Prefix, u32)> = self
            .routes()
            .filter(|route| route.origin == RouteOrigin::Explicit && !keep(route))
            .map(|route| (route.prefix, route.metric))
            .collect();
        for (prefix, metric) in &doomed {
            self.route_delete(*prefix, *metric)?;
        }
        Ok(doomed.len())
    }

    /// Removes all explicit routes and all neighbours; ports and built-in entries stay.
    ///
    /// # Errors
    /// As [`RoutingTable::route_delete`].
    pub fn flush(&mut self) -> Result<(), RouteError> {
        self.routes_retain(|_| false)?;
        let neighbors: Vec<(PortId, IpAddr)> =
            self.paths.hops.neighbors().map(|(port, address, _)| (port, address)).collect();
        for (port, address) in neighbors {
            self.neighbor_delete(port, address)?;
        }
        Ok(())
    }

    /// Makes a port known, or changes its settings. While it is down, routes through it fall back to other members or the
    /// next metric, or answer unreachable; they return with it.
    ///
    /// # Errors
    /// [`RouteError::TableFull`] if workers have not been quiescent for many updates; some prefixes then keep the answer
    /// from before.
    pub fn port_set(&mut self, port: PortId, settings: PortSettings) -> Result<(), RouteError> {
        let was_up = self.paths.hops.is_up(port);
        self.paths.hops.set_port(port, settings);
        if settings.up {
            // First the next hops work again, then routes lead there.
            self.paths.hops.refresh_port(port);
        }
        let mut result = Ok(());
        if was_up != settings.up {
            let contested: Vec<(Prefix, Option<AdjacencyId>)> = self
                .rib4
                .contested()
                .chain(self.rib6.contested())
                .map(|(prefix, routes)| (prefix, self.adjacency_of(routes)))
                .collect();
            self.paths.refresh_port(port);
            for (prefix, before) in contested {
                result = result.and(self.program(prefix, before));
                self.reconsider_neighbors(prefix);
            }
        }
        if !settings.up {
            self.paths.hops.refresh_port(port);
        }
        result
    }

    /// Takes a route out of the table and of the workers' sight.
    fn withdraw(&mut self, prefix: Prefix, origin: RouteOrigin, metric: u32) -> Result<(), RouteError> {
        let before = self.adjacency_of(&self.routes_at(prefix));
        self.check_room(prefix, true)?;
        let taken = match prefix {
            Prefix::V4 { address, length } => self.rib4.take(address, length, origin, metric),
            Prefix::V6 { address, length } => self.rib6.take(address, length, origin, metric),
        };
        let taken = taken.ok_or(RouteError::NoSuchRoute { prefix, metric })?;
        self.program(prefix, before)?;
        self.paths.release(taken.path);
        Ok(())
    }

    fn canonical(prefix: Prefix) -> Result<Prefix, RouteError> {
        let bits = if matches!(prefix, Prefix::V4 { .. }) { 32 } else { 128 };
        prefix.canonical().ok_or(RouteError::BadLength { length: prefix.length(), bits })
    }

    /// The kind in the form in which equal ones are the same, if its next hops make sense.
    fn check_kind(&self, kind: RouteKind) -> Result<RouteKind, RouteError> {
        let RouteKind::Via(mut hops) = kind else { return Ok(kind) };
        for hop in &hops {
            if hop.weight == 0 {
                return Err(RouteError::ZeroWeight);
            }
            if self.paths.hops.port(hop.port).is_none() {
                return Err(RouteError::UnknownPort { port: hop.port });
            }
            self.check_gateway(hop)?;
        }
        hops.sort_unstable();
        hops.dedup_by(|next, kept| {
            let same = (next.port, next.gateway) == (kept.port, kept.gateway);
            if same {
                kept.weight = kept.weight.saturating_add(next.weight);
            }
            same
        });
        match &hops[..] {
            [] => Err(RouteError::NoNextHop),
            [NextHop { port, gateway: None, .. }] => Ok(RouteKind::Connected { port: *port }),
            [one] => Ok(RouteKind::Via(smallvec::smallvec![NextHop { weight: 1, ..*one }])),
            several if several.len() > 64 => Err(RouteError::TooManyNextHops { count: several.len() }),
            _ => Ok(RouteKind::Via(hops)),
        }
    }

    fn check_gateway(&self, hop: &NextHop) -> Result<(), RouteError> {
        let Some(gateway) = hop.gateway.filter(|_| !hop.on_link) else { return Ok(()) };
        if matches!(gateway, IpAddr::V6(address) if address.is_unicast_link_local()) {
            return Ok(());
        }
        match self.explicit_kind(gateway) {
            Some(RouteKind::Connected { port }) if *port == hop.port => Ok(()),
            Some(RouteKind::Local { .. }) => Err(RouteError::GatewayIsLocal { gateway }),
            _ => Err(RouteError::GatewayNotConnected { gateway, port: hop.port }),
        }
    }

    /// Fails unless the forwarding table can take a change of this prefix.
    fn check_room(&mut self, prefix: Prefix, present: bool) -> Result<(), RouteError> {
        let room = match prefix {
            Prefix::V4 { address, length } => present || length <= 24 || self.fib4.has_room(address),
            Prefix::V6 { .. } => self.fib6.has_room(present),
        };
        if room { Ok(()) } else { Err(RouteError::TableFull { prefix }) }
    }

    /// Which of a prefix's routes is in force. A resolved neighbour stands for the connected route that it came from.
    fn choose(&self, routes: &[Route]) -> Option<Route> {
        let of = |origin| routes.iter().filter(move |route| route.origin == origin);
        let neighbor = of(RouteOrigin::Neighbor).next();
        let explicit = of(RouteOrigin::Explicit).find(|route| self.paths.is_active(route.path));
        let explicit = explicit.or_else(|| of(RouteOrigin::Explicit).next());
        let chosen = match (explicit, neighbor) {
            (Some(route), Some(neighbor)) => match self.paths.kind(route.path) {
                RouteKind::Connected { .. } => Some(neighbor),
                _ => Some(route),
            },
            (explicit, neighbor) => explicit.or(neighbor).or_else(|| of(RouteOrigin::BuiltIn).next()),
        };
        chosen.copied()
    }

    fn adjacency_of(&self, routes: &[Route]) -> Option<AdjacencyId> {
        self.choose(routes).map(|route| self.paths.adjacency(route.path))
    }

    /// Makes workers see the prefix as the table has it; `before` is what they see.
    fn program(&mut self, prefix: Prefix, before: Option<AdjacencyId>) -> Result<(), RouteError> {
        let after = self.adjacency_of(&self.routes_at(prefix));
        let full = RouteError::TableFull { prefix };
        match (prefix, after) {
            _ if before == after => Ok(()),
            (Prefix::V4 { address, length }, Some(id)) => self.fib4.insert(address, length, id).map_err(|_| full),
            (Prefix::V6 { address, length }, Some(id)) => self.fib6.insert(address, length, id).map_err(|_| full),
            (Prefix::V4 { address, length }, None) => {
                let cover = self.cover(self.rib4.covers(address, length).next());
                self.fib4.remove(address, length, cover);
                Ok(())
            }
            (Prefix::V6 { address, length }, None) => {
                let cover = self.cover(self.rib6.covers(address, length).next());
                self.fib6.remove(address, length, cover).map_err(|_| full)
            }
        }
    }

    fn cover(&self, cover: Option<(u8, Routes)>) -> (u8, AdjacencyId) {
        cover
            .and_then(|(length, routes)| Some((length, self.adjacency_of(&routes)?)))
            .unwrap_or((0, AdjacencyId::default()))
    }

    fn routes_at(&self, prefix: Prefix) -> Routes {
        match prefix {
            Prefix::V4 { address, length } => self.rib4.get(address, length),
            Prefix::V6 { address, length } => self.rib6.get(address, length),
        }
    }

    fn put(&mut self, prefix: Prefix, route: Route) -> Option<Route> {
        match prefix {
            Prefix::V4 { address, length } => self.rib4.put(address, length, route),
            Prefix::V6 { address, length } => self.rib6.put(address, length, route),
        }
    }

    /// The prefixes that hold `address`, longest first.
    fn prefixes_around(&self, address: IpAddr) -> Box<dyn Iterator<Item = (Prefix, Routes)> + '_> {
        let prefix = move |length| match address {
            IpAddr::V4(address) => Prefix::v4(address, length),
            IpAddr::V6(address) => Prefix::v6(address, length),
        };
        let covers: Box<dyn Iterator<Item = (u8, Routes)>> = match address {
            IpAddr::V4(address) => Box::new(self.rib4.covers(address.to_bits(), 33)),
            IpAddr::V6(address) => Box::new(self.rib6.covers(address.to_bits(), 129)),
        };
        Box::new(covers.filter_map(move |(length, routes)| Some((prefix(length)?, routes))))
    }

    /// Where explicit routes alone would send `address`.
    fn explicit_kind(&self, address: IpAddr) -> Option<&RouteKind> {
        self.prefixes_around(address).find_map(|(_, mut routes)| {
            routes.retain(|route| route.origin == RouteOrigin::Explicit);
            self.choose(&routes).map(|route| self.paths.kind(route.path))
        })
    }
}
