#![forbid(unsafe_code)]
//! Ports, neighbours, and the adjacency of each next hop that a route leads to. Control thread only.

use super::adjacency::{AdjacencyContent, AdjacencyId, AdjacencyKind, AdjacencyWriter};
use super::prefix::{MacAddress, PortId, Prefix, VlanTag};
use super::route::RouteError;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// What the table must know of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSettings {
    /// Source MAC of what the port sends.
    pub mac: MacAddress,
    /// Largest IP packet that the port sends, in bytes.
    pub mtu: u16,
    /// The tag that a VLAN sub-interface pushes.
    pub vlan: Option<VlanTag>,
    /// Whether the port can send: administratively up and with carrier.
    pub up: bool,
}

/// A next hop that has an adjacency of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum HopKey {
    /// Addresses of the box that belong to a port.
    Local(PortId),
    /// The destination itself, on a port.
    Glean(PortId),
    /// A neighbour on a port.
    Neighbor(PortId, IpAddr),
}

impl HopKey {
    fn port(self) -> PortId {
        match self {
            HopKey::Local(port) | HopKey::Glean(port) | HopKey::Neighbor(port, _) => port,
        }
    }
}

struct Hop {
    id: AdjacencyId,
    references: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Neighbor {
    /// Its MAC, once resolved.
    pub(super) mac: Option<MacAddress>,
    /// Whether it has a host route of its own in a connected subnet.
    pub(super) host_route: bool,
}

pub(super) struct Hops {
    pub(super) adjacencies: AdjacencyWriter,
    ports: BTreeMap<PortId, PortSettings>,
    neighbors: BTreeMap<(IpAddr, PortId), Neighbor>,
    hops: HashMap<HopKey, Hop>,
}

impl Hops {
    pub(super) fn new(adjacencies: AdjacencyWriter) -> Hops {
        Hops { adjacencies, ports: BTreeMap::new(), neighbors: BTreeMap::new(), hops: HashMap::new() }
    }

    pub(super) fn port(&self, port: PortId) -> Option<&PortSettings> {
        self.ports.get(&port)
    }

    pub(super) fn is_up(&self, port: PortId) -> bool {
        self.ports.get(&port).is_some_and(|settings| settings.up)
    }

    pub(super) fn ports(&self) -> impl Iterator<Item = (PortId, &PortSettings)> {
        self.ports.iter().map(|(port, settings)| (*port, settings))
    }

    /// Notes the settings; the adjacencies follow with [`Hops::refresh_port`].
    pub(super) fn set_port(&mut self, port: PortId, settings: PortSettings) -> Option<PortSettings> {
        self.ports.insert(port, settings)
    }

    pub(super) fn neighbor(&self, port: PortId, address: IpAddr) -> Option<&Neighbor> {
        self.neighbors.get(&(address, port))
    }

    pub(super) fn neighbor_mut(&mut self, port: PortId, address: IpAddr) -> Option<&mut Neighbor> {
        self.neighbors.get_mut(&(address, port))
    }

    /// Notes the neighbour's MAC and writes it into its adjacency, if a route leads there: one store of the destination
    /// MAC if it was resolved before.
    pub(super) fn set_neighbor(&mut self, port: PortId, address: IpAddr, mac: Option<MacAddress>) {
        self.neighbors.entry((address, port)).or_insert(Neighbor { mac, host_route: false }).mac = mac;
        self.refresh(HopKey::Neighbor(port, address));
    }

    pub(super) fn forget_neighbor(&mut self, port: PortId, address: IpAddr) -> bool {
        let known = self.neighbors.remove(&(address, port)).is_some();
        self.refresh(HopKey::Neighbor(port, address));
        known
    }

    pub(super) fn neighbors(&self) -> impl Iterator<Item = (PortId, IpAddr, &Neighbor)> {
        self.neighbors.iter().map(|((address, port), neighbor)| (*port, *address, neighbor))
    }

    /// The neighbours whose address lies in `prefix`.
    pub(super) fn neighbors_in(&self, prefix: Prefix) -> impl Iterator<Item = (PortId, IpAddr)> {
        let range = (prefix.first(), PortId(0))..=(prefix.last(), PortId(u16::MAX));
        self.neighbors.range(range).map(|((address, port), _)| (*port, *address))
    }

    /// The adjacency of a next hop, made if there was none, with one more reference to it.
    pub(super) fn acquire(&mut self, key: HopKey) -> Result<AdjacencyId, RouteError> {
        if !self.ports.contains_key(&key.port()) {
            return Err(RouteError::UnknownPort { port: key.port() });
        }
        if let Some(hop) = self.hops.get_mut(&key) {
            hop.references += 1;
            return Ok(hop.id);
        }
        let content = self.content(key);
        let id = self.adjacencies.allocate(&content).ok_or(RouteError::AdjacenciesFull)?;
        self.hops.insert(key, Hop { id, references: 1 });
        Ok(id)
    }

    /// Gives up one reference; nothing that workers see may lead to the adjacency through it any more.
    pub(super) fn release(&mut self, key: HopKey) {
        if let Some(hop) = self.hops.get_mut(&key) {
            hop.references -= 1;
            if hop.references == 0 {
                let id = hop.id;
                self.hops.remove(&key);
                self.adjacencies.retire(id);
            }
        }
    }

    pub(super) fn id(&self, key: HopKey) -> Option<AdjacencyId> {
        self.hops.get(&key).map(|hop| hop.id)
    }

    /// What the adjacency of a next hop must hold now.
    fn content(&self, key: HopKey) -> AdjacencyContent {
        let port = key.port();
        let Some(settings) = self.ports.get(&port) else { return AdjacencyContent::new(AdjacencyKind::Unreachable) };
        let plain = AdjacencyContent {
            port,
            mtu: settings.mtu,
            source: settings.mac,
            vlan: settings.vlan,
            ..AdjacencyContent::new(AdjacencyKind::Unreachable)
        };
        match key {
            // The box answers for its addresses on whatever port the packet came (RFC 1122 3.3.4.2, weak model).
            HopKey::Local(_) => AdjacencyContent { kind: AdjacencyKind::Local, ..plain },
            HopKey::Glean(_) if settings.up => AdjacencyContent { kind: AdjacencyKind::Glean, ..plain },
            HopKey::Glean(_) => plain,
            HopKey::Neighbor(_, address) => {
                let mac = self.neighbors.get(&(address, port)).and_then(|neighbor| neighbor.mac);
                let kind = match mac {
                    _ if !settings.up => AdjacencyKind::Unreachable,
                    Some(_) => AdjacencyKind::Forward,
                    None => AdjacencyKind::Unresolved,
                };
                AdjacencyContent { kind, destination: mac.unwrap_or_default(), next_hop: Some(address), ..plain }
            }
        }
    }

    fn refresh(&self, key: HopKey) {
        if let Some(hop) = self.hops.get(&key) {
            self.adjacencies.table().write(hop.id, &self.content(key));
        }
    }

    /// Writes the port's settings into all its adjacencies.
    pub(super) fn refresh_port(&self, port: PortId) {
        for key in self.hops.keys().filter(|key| key.port() == port) {
            self.refresh(*key);
        }
    }

    /// Bytes of memory of these records and the adjacency table, roughly.
    pub(super) fn memory(&self) -> usize {
        self.adjacencies.memory()
            + self.hops.capacity() * (size_of::<(HopKey, Hop)>() + 1)
            + self.neighbors.len() * size_of::<((IpAddr, PortId), Neighbor)>() * 3 / 2
    }
}
