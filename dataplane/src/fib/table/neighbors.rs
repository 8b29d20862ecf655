#![forbid(unsafe_code)]
//! Neighbours, and the host routes that resolved ones get in connected subnets.
//!
//! A connected subnet leads to a glean adjacency, whose next hop is the destination itself. So that a worker finds the
//! MAC of a known neighbour by the look-up alone, the neighbour gets a host route (/32, /128), for as long as it is
//! resolved and explicit routes send its address to the connected subnet of its own port.

use super::RoutingTable;
use crate::fib::prefix::{MacAddress, PortId, Prefix};
use crate::fib::rib::{Route, RouteOrigin};
use crate::fib::route::{NextHop, RouteError, RouteKind};
use std::net::IpAddr;

impl RoutingTable {
    /// Notes a neighbour's MAC; `None` while it is not known (incomplete or failed).
    ///
    /// # Errors
    /// [`RouteError::UnknownPort`]; or no room for a host route or its adjacency: the neighbour is noted all the same, and
    /// its packets take the glean adjacency.
    pub fn neighbor_set(&mut self, port: PortId, address: IpAddr, mac: Option<MacAddress>) -> Result<(), RouteError> {
        if self.paths.hops.port(port).is_none() {
            return Err(RouteError::UnknownPort { port });
        }
        self.paths.hops.set_neighbor(port, address, mac);
        self.reconsider(port, address)
    }

    /// Forgets a neighbour. Routes through it stay, unresolved.
    ///
    /// # Errors
    /// [`RouteError::TableFull`] if workers have not been quiescent for many updates; the neighbour is then kept,
    /// unresolved.
    pub fn neighbor_delete(&mut self, port: PortId, address: IpAddr) -> Result<bool, RouteError> {
        if self.paths.hops.neighbor(port, address).is_none() {
            return Ok(false);
        }
        self.neighbor_set(port, address, None)?;
        Ok(self.paths.hops.forget_neighbor(port, address))
    }

    /// Follows a change of explicit routes of `prefix`: which neighbours in it have a host route.
    ///
    /// A host route that finds no room now is tried again at the next change; until then its packets take the glean
    /// adjacency, which is slower and not wrong.
    pub(super) fn reconsider_neighbors(&mut self, prefix: Prefix) {
        let mut neighbors: Vec<(PortId, IpAddr)> = self.paths.hops.neighbors_in(prefix).collect();
        // Those that lose theirs first, so that an address never has two.
        neighbors.sort_by_key(|&(port, address)| self.wants_host_route(port, address));
        for (port, address) in neighbors {
            let _retried_at_the_next_change = self.reconsider(port, address);
        }
    }

    fn wants_host_route(&self, port: PortId, address: IpAddr) -> bool {
        self.paths.hops.neighbor(port, address).is_some_and(|neighbor| neighbor.mac.is_some())
            && matches!(self.explicit_kind(address), Some(RouteKind::Connected { port: connected }) if *connected == port)
    }

    /// Gives the neighbour its host route, or takes it away.
    fn reconsider(&mut self, port: PortId, address: IpAddr) -> Result<(), RouteError> {
        let wanted = self.wants_host_route(port, address);
        let present = self.paths.hops.neighbor(port, address).is_some_and(|neighbor| neighbor.host_route);
        if wanted == present {
            return Ok(());
        }
        let prefix = Prefix::host(address);
        let metric = u32::from(port.0);
        if present {
            self.withdraw(prefix, RouteOrigin::Neighbor, metric)?;
        } else {
            let before = self.adjacency_of(&self.routes_at(prefix));
            self.check_room(prefix, before.is_some())?;
            let hop = NextHop { port, gateway: Some(address), weight: 1, on_link: false };
            let path = self.paths.acquire(RouteKind::Via(smallvec::smallvec![hop]), None)?;
            self.put(prefix, Route { origin: RouteOrigin::Neighbor, metric, path });
            self.program(prefix, before)?;
        }
        if let Some(neighbor) = self.paths.hops.neighbor_mut(port, address) {
            neighbor.host_route = wanted;
        }
        Ok(())
    }
}
