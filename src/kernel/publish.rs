//! Turns what changed in the mirror into events, in an order that is safe to apply, and remembers what was given out.
#![forbid(unsafe_code)]

use super::event::{Event, LinkState, NeighborState, RouteAction};
use super::message::{Address, Neighbor};
use super::mirror::Mirror;
use super::resolve::Ports;
use super::rules::{Step, Unsupported};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// At most this many routes through foreign links are named one by one.
const NAMED_ROUTES: usize = 100;

type AddressKey = (u32, IpNetwork);

/// What the packet path has been told.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    links: BTreeMap<u32, LinkState>,
    addresses: BTreeMap<AddressKey, (Option<super::PortId>, bool)>,
    neighbors: HashMap<(u32, IpAddr), super::PortId>,
    routes: HashMap<IpNetwork, (u32, Arc<RouteAction>)>,
    actions: HashSet<Arc<RouteAction>>,
    host_via: BTreeSet<IpNetwork>,
}

impl Mirror {
    /// Nothing waits to be given out.
    pub(crate) fn dirty_is_empty(&self) -> bool {
        let dirty = &self.dirty;
        dirty.links.is_empty()
            && !dirty.addresses
            && dirty.neighbors.is_empty()
            && dirty.prefixes.is_empty()
            && !dirty.all_prefixes
            && dirty.hop_links.is_empty()
            && dirty.objects.is_empty()
    }
}

impl Publisher {
    /// Appends the events for all that is marked in the mirror, and clears the marks.
    pub(crate) fn flush(&mut self, mirror: &mut Mirror, ports: &Ports, events: &mut Vec<Event>) {
        let mut late = Vec::new();
        self.flush_links(mirror, ports, events, &mut late);
        if std::mem::take(&mut mirror.dirty.addresses) {
            self.flush_addresses(mirror, ports, events, &mut late);
        }
        self.flush_neighbors(mirror, ports, events);
        self.flush_routes(mirror, ports, events);
        events.append(&mut late);
    }

    fn flush_links(&mut self, mirror: &mut Mirror, ports: &Ports, events: &mut Vec<Event>, late: &mut Vec<Event>) {
        for ifindex in std::mem::take(&mut mirror.dirty.links) {
            let port = ports.get(&ifindex).copied();
            match mirror.links.get(&ifindex) {
                Some(link) => {
                    let state = LinkState {
                        ifindex,
                        port,
                        name: link.name.clone(),
                        mac: link.mac,
                        mtu: link.mtu,
                        up: link.is_up(),
                        carrier: link.has_carrier(),
                        kind: link.kind.clone(),
                    };
                    if self.links.get(&ifindex) != Some(&state) {
                        self.links.insert(ifindex, state.clone());
                        events.push(Event::LinkChange(state));
                    }
                }
                None => {
                    if let Some(old) = self.links.remove(&ifindex) {
                        late.push(Event::LinkGone { ifindex, port: port.or(old.port) });
                    }
                }
            }
        }
    }

    fn flush_addresses(&mut self, mirror: &Mirror, ports: &Ports, events: &mut Vec<Event>, late: &mut Vec<Event>) {
        let mut now = BTreeMap::new();
        for Address { ifindex, network, flags } in mirror.addresses.values().flatten() {
            let address = Address { ifindex: *ifindex, network: *network, flags: *flags };
            now.insert((*ifindex, *network), (ports.get(ifindex).copied(), address.is_primary()));
        }
        for ((ifindex, address), (port, primary)) in &now {
            if self.addresses.get(&(*ifindex, *address)) != Some(&(*port, *primary)) {
                let (ifindex, address, port, primary) = (*ifindex, *address, *port, *primary);
                events.push(Event::AddressAdd { ifindex, port, address, primary });
            }
        }
        for ((ifindex, address), (port, _)) in &self.addresses {
            if !now.contains_key(&(*ifindex, *address)) {
                late.insert(0, Event::AddressDelete { ifindex: *ifindex, port: *port, address: *address });
            }
        }
        self.addresses = now;
    }

    fn flush_neighbors(&mut self, mirror: &mut Mirror, ports: &Ports, events: &mut Vec<Event>) {
        for (ifindex, address) in mirror.dirty.neighbors.drain() {
            let key = (ifindex, address);
            let known = self.neighbors.get(&key).copied();
            let port = ports.get(&ifindex).copied();
            match (mirror.neighbors.get(&key), port) {
                (Some(Neighbor { state, lladdr, .. }), Some(port)) => {
                    self.neighbors.insert(key, port);
                    events.push(Event::Neighbor { ifindex, port, address, state: *state, lladdr: *lladdr });
                }
                _ => {
                    if let Some(port) = known {
                        self.neighbors.remove(&key);
                        let state = NeighborState::Gone;
                        events.push(Event::Neighbor { ifindex, port, address, state, lladdr: None });
                    }
                }
            }
        }
    }

    fn flush_routes(&mut self, mirror: &mut Mirror, ports: &Ports, events: &mut Vec<Event>) {
        let links = std::mem::take(&mut mirror.dirty.hop_links);
        let objects = std::mem::take(&mut mirror.dirty.objects);
        let mut prefixes = std::mem::take(&mut mirror.dirty.prefixes);
        if std::mem::take(&mut mirror.dirty.all_prefixes) {
            prefixes.extend(mirror.tables.values().flat_map(|table| table.routes.keys()));
            prefixes.extend(self.routes.keys());
            prefixes.extend(defaults());
        } else if !links.is_empty() || !objects.is_empty() {
            self.extend_by_hops(mirror, &links, &objects, &mut prefixes);
        }
        let mut withdrawn = Vec::new();
        for prefix in prefixes {
            match mirror.resolve(prefix, ports) {
                Some((metric, action)) => {
                    let known = self.routes.get(&prefix);
                    if known.is_some_and(|(old, known)| *old == metric && **known == action) {
                        continue;
                    }
                    if matches!(action, RouteAction::HostVia(_)) {
                        self.host_via.insert(prefix);
                    } else {
                        self.host_via.remove(&prefix);
                    }
                    let action = self.share(action);
                    self.routes.insert(prefix, (metric, action.clone()));
                    events.push(Event::RouteReplace { prefix, metric, action });
                }
                None => {
                    self.host_via.remove(&prefix);
                    if self.routes.remove(&prefix).is_some() {
                        withdrawn.push(Event::RouteDelete { prefix });
                    }
                }
            }
        }
        events.append(&mut withdrawn);
    }

    /// Adds the prefixes whose answer may change because a link or a nexthop object did. One walk over all routes for a
    /// batch of such changes: an index would cost more memory than the mirror itself, for a rare thing.
    fn extend_by_hops(
        &self,
        mirror: &Mirror,
        links: &HashSet<u32>,
        objects: &HashSet<u32>,
        prefixes: &mut HashSet<IpNetwork>,
    ) {
        let mut touched: HashSet<*const super::message::RouteEntry> = HashSet::new();
        let mut checked: HashSet<*const super::message::RouteEntry> = HashSet::new();
        for (key, table) in &mirror.tables {
            for (prefix, entries) in &table.routes {
                // Entry sets are shared: each is looked at once.
                if checked.insert(entries.as_ptr()) && mirror.touches(entries, links, objects) {
                    touched.insert(entries.as_ptr());
                }
                if touched.contains(&entries.as_ptr()) {
                    prefixes.insert(*prefix);
                    // A route that comes or goes uncovers or shadows those of later tables.
                    prefixes.extend(mirror.influenced(*key, *prefix));
                }
            }
        }
    }

    fn share(&mut self, action: RouteAction) -> Arc<RouteAction> {
        if let Some(found) = self.actions.get(&action) {
            return found.clone();
        }
        if self.actions.len() >= 1024 && self.actions.len().is_power_of_two() {
            self.actions.retain(|known| Arc::strong_count(known) > 1);
        }
        let shared = Arc::new(action);
        self.actions.insert(shared.clone());
        shared
    }

    /// What is not honoured, and the routes that only the host can follow.
    pub(crate) fn unsupported(&self, mirror: &Mirror) -> Vec<Unsupported> {
        let mut list: Vec<Unsupported> = mirror.chains.iter().flat_map(|chain| chain.unsupported.clone()).collect();
        for prefix in &mirror.source_specific {
            list.push(Unsupported {
                what: format!("route {prefix} from a source prefix"),
                why: "forwarded packets are looked up by destination alone; the route is skipped".to_owned(),
            });
        }
        for link in mirror.links.values().filter(|link| link.kind.as_deref() == Some("vrf")) {
            list.push(Unsupported {
                what: format!("VRF {}", link.name),
                why: "ports share one table; put no port into a VRF".to_owned(),
            });
        }
        let consulted = |is_v6: bool, id: u32| {
            let steps = &mirror.chains[usize::from(is_v6)].steps;
            steps.iter().any(|step| matches!(step, Step::Table { table, .. } if *table == id))
        };
        for ((is_v6, id), table) in mirror.tables.iter().filter(|((is_v6, id), _)| consulted(*is_v6, *id)) {
            let with_tos = |entries: &&super::mirror::Entries| entries.iter().any(|entry| entry.tos != 0);
            if let Some((prefix, _)) = table.routes.iter().find(|(_, entries)| with_tos(entries)) {
                list.push(Unsupported {
                    what: format!("route {prefix} tos in table {id}{}", if *is_v6 { " (IPv6)" } else { "" }),
                    why: "routes by type of service are skipped".to_owned(),
                });
            }
        }
        // Every link has these, and nothing is ever forwarded by them.
        let forwarded = |prefix: &&IpNetwork| match prefix.ip() {
            IpAddr::V4(address) => !address.is_link_local() && !address.is_multicast(),
            IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_multicast(),
        };
        let named: Vec<&IpNetwork> = self.host_via.iter().filter(forwarded).collect();
        for prefix in named.iter().copied().take(NAMED_ROUTES) {
            let names = self.routes.get(prefix).map_or(String::new(), |(_, action)| link_names(mirror, action));
            list.push(Unsupported {
                what: format!("route {prefix} dev {names}"),
                why: "leads through a link that is no port; the host forwards these packets".to_owned(),
            });
        }
        if named.len() > NAMED_ROUTES {
            list.push(Unsupported {
                what: format!("{} more routes", named.len() - NAMED_ROUTES),
                why: "lead through links that are no port; the host forwards these packets".to_owned(),
            });
        }
        list
    }
}

impl Mirror {
    /// Prefixes longer than `prefix` whose answer may depend on its routes in table `key`.
    fn influenced(&self, key: (bool, u32), prefix: IpNetwork) -> Vec<IpNetwork> {
        let mut found = Vec::new();
        self.influence(key, prefix, &mut |other| found.push(other));
        found
    }
}

fn link_names(mirror: &Mirror, action: &RouteAction) -> String {
    let RouteAction::HostVia(hops) = action else { return String::new() };
    let name =
        |ifindex: u32| mirror.links.get(&ifindex).map_or_else(|| format!("if{ifindex}"), |link| link.name.clone());
    hops.iter().map(|hop| name(hop.ifindex)).collect::<Vec<_>>().join(", ")
}

fn defaults() -> [IpNetwork; 2] {
    let v4 = Ipv4Network::new(Ipv4Addr::UNSPECIFIED, 0).map(IpNetwork::V4);
    let v6 = Ipv6Network::new(Ipv6Addr::UNSPECIFIED, 0).map(IpNetwork::V6);
    [v4, v6].map(|found| found.unwrap_or_else(|_| IpNetwork::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED))))
}
