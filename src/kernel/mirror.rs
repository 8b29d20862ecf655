//! The mirror of the kernel's routing state, and the keys that changed since it was last looked at.
//!
//! Owned by the control thread. Every change lands here first and only marks what it may have influenced; the events
//! are made afterwards by comparing what is in force now with what was given out. So a burst of changes to one prefix is
//! one event, an old notification that is overtaken by a newer one in the same burst is none, and a full resync is
//! the same work as a normal batch.
#![forbid(unsafe_code)]

use super::message::{Address, Hops, Link, Neighbor, NextHopObject, Route, RouteEntry};
use super::rules::{Step, Unsupported};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Routes of one prefix in one table, in the kernel's order of preference within equal metrics. Shared between all
/// prefixes that have the same: a full Internet table has few different ones.
pub(crate) type Entries = Arc<[RouteEntry]>;

/// One routing table of one family.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) routes: BTreeMap<IpNetwork, Entries>,
    /// How many prefixes there are of each length, so that a look-up tries only lengths in use.
    lengths: Vec<u32>,
}

impl Table {
    fn set(&mut self, prefix: IpNetwork, entries: Option<Entries>) {
        let length = usize::from(prefix.prefix());
        self.lengths.resize(129, 0);
        match entries {
            Some(entries) => {
                if self.routes.insert(prefix, entries).is_none() {
                    self.lengths[length] += 1;
                }
            }
            None => {
                if self.routes.remove(&prefix).is_some() {
                    self.lengths[length] -= 1;
                }
            }
        }
    }

    /// The routes whose prefix holds all of `prefix`, longest first.
    pub(crate) fn covering(&self, prefix: IpNetwork) -> impl Iterator<Item = (IpNetwork, &Entries)> {
        let longest = usize::from(prefix.prefix());
        let lengths = self.lengths.get(..=longest).unwrap_or(&[]);
        lengths.iter().enumerate().rev().filter(|(_, count)| **count > 0).filter_map(move |(length, _)| {
            let candidate = shorten(prefix, length as u8);
            self.routes.get(&candidate).map(|entries| (candidate, entries))
        })
    }

    /// The prefixes inside `prefix`, itself included.
    pub(crate) fn inside(&self, prefix: IpNetwork) -> impl Iterator<Item = &IpNetwork> {
        self.routes.range(inside(prefix)).map(|(found, _)| found).filter(move |found| found.prefix() >= prefix.prefix())
    }
}

/// The range of keys that holds all prefixes inside `prefix`: they sort by address, then by length.
pub(crate) fn inside(prefix: IpNetwork) -> std::ops::RangeInclusive<IpNetwork> {
    match prefix {
        IpNetwork::V4(network) => {
            let last = network.broadcast();
            prefix..=IpNetwork::V4(Ipv4Network::new(last, 32).unwrap_or(network))
        }
        IpNetwork::V6(network) => {
            let last = network.broadcast();
            prefix..=IpNetwork::V6(Ipv6Network::new(last, 128).unwrap_or(network))
        }
    }
}

/// The network of `length` bits that `prefix` lies in. `length` must not exceed that of `prefix`.
pub(crate) fn shorten(prefix: IpNetwork, length: u8) -> IpNetwork {
    match prefix {
        IpNetwork::V4(network) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let address = Ipv4Addr::from(u32::from(network.ip()) & mask);
            Ipv4Network::new(address, length).map_or(prefix, IpNetwork::V4)
        }
        IpNetwork::V6(network) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let address = Ipv6Addr::from(u128::from(network.ip()) & mask);
            Ipv6Network::new(address, length).map_or(prefix, IpNetwork::V6)
        }
    }
}

/// The rules of one family, read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
    pub(crate) unsupported: Vec<Unsupported>,
}

/// What changed since the last flush.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) links: BTreeSet<u32>,
    pub(crate) addresses: bool,
    pub(crate) neighbors: HashSet<(u32, IpAddr)>,
    pub(crate) prefixes: HashSet<IpNetwork>,
    /// Every prefix must be looked at: rules changed, or nothing was given out yet.
    pub(crate) all_prefixes: bool,
    /// Prefixes with a next hop on one of these links, or through one of these objects, must be looked at.
    pub(crate) hop_links: HashSet<u32>,
    pub(crate) objects: HashSet<u32>,
    /// The kernel may have dropped IPv4 routes without telling.
    pub(crate) silent_loss: bool,
}

/// The kernel's state as we know it.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    pub(crate) links: BTreeMap<u32, Link>,
    pub(crate) addresses: BTreeMap<(u32, bool), Vec<Address>>,
    pub(crate) neighbors: HashMap<(u32, IpAddr), Neighbor>,
    pub(crate) objects: HashMap<u32, NextHopObject>,
    /// By (is IPv6, table id).
    pub(crate) tables: BTreeMap<(bool, u32), Table>,
    /// Prefixes that have a throw route in some table.
    pub(crate) throws: BTreeSet<IpNetwork>,
    pub(crate) chains: [Chain; 2],
    pub(crate) source_specific: BTreeSet<IpNetwork>,
    pub(crate) dirty: Dirty,
    /// A dump in the making: what changes in it need not be marked.
    pub(crate) in_dump: bool,
    pool: HashSet<Entries>,
}

impl Mirror {
    /// An empty mirror that a dump is read into.
    pub(crate) fn for_dump() -> Self {
        Mirror { in_dump: true, ..Mirror::default() }
    }

    pub(crate) fn link_set(&mut self, link: Link) {
        let before = self.links.get(&link.ifindex);
        if before == Some(&link) {
            return;
        }
        let usable_changed = before.is_none_or(|before| {
            before.is_up() != link.is_up() || before.has_carrier() != link.has_carrier() || before.name != link.name
        });
        if usable_changed {
            self.dirty.hop_links.insert(link.ifindex);
            self.dirty.silent_loss |= before.is_some_and(Link::is_up) && !link.is_up();
        }
        self.dirty.links.insert(link.ifindex);
        self.links.insert(link.ifindex, link);
    }

    pub(crate) fn link_remove(&mut self, ifindex: u32) {
        if self.links.remove(&ifindex).is_some() {
            self.dirty.links.insert(ifindex);
            self.dirty.hop_links.insert(ifindex);
            self.dirty.silent_loss = true;
            self.addresses.retain(|(owner, _), _| *owner != ifindex);
            self.dirty.addresses = true;
            let gone: Vec<_> = self.neighbors.keys().filter(|key| key.0 == ifindex).copied().collect();
            for key in gone {
                self.neighbors.remove(&key);
                self.dirty.neighbors.insert(key);
            }
        }
    }

    pub(crate) fn address_set(&mut self, address: Address) {
        let list = self.addresses.entry((address.ifindex, address.network.is_ipv6())).or_default();
        match list.iter_mut().find(|found| found.network == address.network) {
            Some(found) if *found == address => return,
            Some(found) => *found = address,
            None => list.push(address),
        }
        self.dirty.addresses = true;
    }

    pub(crate) fn address_remove(&mut self, address: &Address) {
        if let Some(list) = self.addresses.get_mut(&(address.ifindex, address.network.is_ipv6())) {
            list.retain(|found| found.network != address.network);
            self.dirty.addresses = true;
            // Routes with this preferred source go with it, IPv4 ones silently.
            self.dirty.silent_loss |= address.network.is_ipv4();
        }
    }

    pub(crate) fn neighbor_set(&mut self, neighbor: Neighbor) {
        let key = (neighbor.ifindex, neighbor.address);
        if self.neighbors.get(&key) != Some(&neighbor) {
            self.neighbors.insert(key, neighbor);
            self.dirty.neighbors.insert(key);
        }
    }

    pub(crate) fn neighbor_remove(&mut self, ifindex: u32, address: IpAddr) {
        if self.neighbors.remove(&(ifindex, address)).is_some() {
            self.dirty.neighbors.insert((ifindex, address));
        }
    }

    pub(crate) fn object_set(&mut self, id: u32, object: NextHopObject) {
        if self.objects.get(&id) != Some(&object) {
            self.objects.insert(id, object);
            self.object_changed(id);
        }
    }

    /// The kernel removes the routes of a deleted object itself, IPv4 ones silently.
    pub(crate) fn object_remove(&mut self, id: u32) {
        if self.objects.remove(&id).is_some() {
            self.object_changed(id);
            self.dirty.silent_loss = true;
        }
    }

    fn object_changed(&mut self, id: u32) {
        self.dirty.objects.insert(id);
        for (group, object) in &self.objects {
            if matches!(object, NextHopObject::Group(members) if members.iter().any(|(member, _)| *member == id)) {
                self.dirty.objects.insert(*group);
            }
        }
    }

    pub(crate) fn chain_set(&mut self, is_v6: bool, chain: Chain) {
        let slot = &mut self.chains[usize::from(is_v6)];
        if *slot != chain {
            *slot = chain;
            self.dirty.all_prefixes = true;
        }
    }

    /// Takes in RTM_NEWROUTE with its `nlmsg_flags`. Returns false when the mirror cannot tell what the kernel now has,
    /// and the routes of that family must be read again.
    pub(crate) fn route_set(&mut self, route: Route, flags: u16) -> bool {
        if route.source_specific {
            self.source_specific.insert(route.prefix);
            return true;
        }
        let key = (route.prefix.is_ipv6(), route.table);
        let mut entries = self.entries(key, route.prefix);
        let certain = insert(&mut entries, route.entry, route.prefix.is_ipv6(), flags);
        self.put(key, route.prefix, entries);
        certain
    }

    /// Takes in RTM_DELROUTE.
    pub(crate) fn route_remove(&mut self, route: &Route) {
        if route.source_specific {
            self.source_specific.remove(&route.prefix);
            return;
        }
        let key = (route.prefix.is_ipv6(), route.table);
        let mut entries = self.entries(key, route.prefix);
        withdraw(&mut entries, &route.entry, route.prefix.is_ipv6());
        self.put(key, route.prefix, entries);
    }

    fn entries(&self, key: (bool, u32), prefix: IpNetwork) -> Vec<RouteEntry> {
        self.tables.get(&key).and_then(|table| table.routes.get(&prefix)).map_or(Vec::new(), |found| found.to_vec())
    }

    /// Sets the routes of a prefix in a table and marks what that may change.
    pub(crate) fn put(&mut self, key: (bool, u32), prefix: IpNetwork, entries: Vec<RouteEntry>) {
        let shared = if entries.is_empty() { None } else { Some(self.share(entries)) };
        let table = self.tables.entry(key).or_default();
        if table.routes.get(&prefix) == shared.as_ref() {
            return;
        }
        let had_throw = table.routes.get(&prefix).is_some_and(|old| has_throw(old));
        let throws = shared.as_ref().is_some_and(|new| has_throw(new));
        table.set(prefix, shared);
        if throws {
            self.throws.insert(prefix);
        } else if had_throw && !self.tables.values().any(|t| t.routes.get(&prefix).is_some_and(|e| has_throw(e))) {
            self.throws.remove(&prefix);
        }
        self.mark(key, prefix);
    }

    /// Marks the prefix and those that it influences.
    fn mark(&mut self, key: (bool, u32), prefix: IpNetwork) {
        if self.in_dump {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty.prefixes);
        dirty.insert(prefix);
        self.influence(key, prefix, &mut |other| {
            dirty.insert(other);
        });
        self.dirty.prefixes = dirty;
    }

    /// Gives the prefixes inside `prefix` whose answer may change with its routes in table `key`: those that the table
    /// shadows (in tables consulted later), and those that pass the look-up on (throw, suppressed).
    pub(crate) fn influence(&self, key: (bool, u32), prefix: IpNetwork, each: &mut impl FnMut(IpNetwork)) {
        let mut after = false;
        for step in &self.chains[usize::from(key.0)].steps {
            let Step::Table { table, suppress } = *step else { continue };
            let passes_on = suppress.is_some_and(|length| length >= prefix.prefix());
            if ((after && table != key.1) || passes_on)
                && let Some(other) = self.tables.get(&(key.0, table))
            {
                other.inside(prefix).copied().for_each(&mut *each);
            }
            after |= table == key.1;
        }
        self.throws.range(inside(prefix)).copied().for_each(each);
    }

    fn share(&mut self, entries: Vec<RouteEntry>) -> Entries {
        if let Some(found) = self.pool.get(&entries[..]) {
            return found.clone();
        }
        // Forget sets that no prefix uses any more, now and then: the pool doubles at most.
        if self.pool.len() >= 1024 && self.pool.len().is_power_of_two() {
            self.pool.retain(|set| Arc::strong_count(set) > 1);
        }
        let shared: Entries = entries.into();
        self.pool.insert(shared.clone());
        shared
    }

    /// Number of prefixes over all tables.
    pub(crate) fn route_count(&self) -> usize {
        self.tables.values().map(|table| table.routes.len()).sum()
    }

    /// Takes over a freshly dumped state and marks every difference.
    pub(crate) fn replace(&mut self, fresh: Mirror) {
        for ifindex in self.links.keys().copied().collect::<Vec<_>>() {
            if !fresh.links.contains_key(&ifindex) {
                self.link_remove(ifindex);
            }
        }
        for link in fresh.links.into_values() {
            self.link_set(link);
        }
        if self.addresses != fresh.addresses {
            self.addresses = fresh.addresses;
            self.dirty.addresses = true;
        }
        for (ifindex, address) in self.neighbors.keys().copied().collect::<Vec<_>>() {
            if !fresh.neighbors.contains_key(&(ifindex, address)) {
                self.neighbor_remove(ifindex, address);
            }
        }
        for neighbor in fresh.neighbors.into_values() {
            self.neighbor_set(neighbor);
        }
        for (is_v6, chain) in fresh.chains.into_iter().enumerate() {
            self.chain_set(is_v6 == 1, chain);
        }
        self.replace_routes(fresh.objects, fresh.tables, fresh.source_specific, None);
    }

    /// Takes over freshly dumped nexthop objects and routes, of one family or of both.
    pub(crate) fn replace_routes(
        &mut self,
        objects: HashMap<u32, NextHopObject>,
        tables: BTreeMap<(bool, u32), Table>,
        source_specific: BTreeSet<IpNetwork>,
        only_v6: Option<bool>,
    ) {
        for id in self.objects.keys().copied().collect::<Vec<_>>() {
            if !objects.contains_key(&id) {
                self.objects.remove(&id);
                self.object_changed(id);
            }
        }
        for (id, object) in objects {
            self.object_set(id, object);
        }
        let in_scope = |is_v6: bool| only_v6.is_none_or(|only| only == is_v6);
        self.source_specific.retain(|prefix| !in_scope(prefix.is_ipv6()));
        self.source_specific.extend(source_specific);
        let mut lost = Vec::new();
        for (key, table) in self.tables.iter().filter(|(key, _)| in_scope(key.0)) {
            let fresh = tables.get(key);
            let missing = |prefix: &&IpNetwork| fresh.is_none_or(|fresh| !fresh.routes.contains_key(prefix));
            lost.extend(table.routes.keys().filter(missing).map(|prefix| (*key, *prefix)));
        }
        for (key, prefix) in lost {
            self.put(key, prefix, Vec::new());
        }
        for (key, table) in tables {
            for (prefix, entries) in table.routes {
                if self.tables.get(&key).and_then(|known| known.routes.get(&prefix)) == Some(&entries) {
                    continue;
                }
                self.put(key, prefix, entries.to_vec());
            }
        }
    }
}

fn has_throw(entries: &[RouteEntry]) -> bool {
    entries.iter().any(|entry| entry.kind == libc::RTN_THROW)
}

/// Can be one of several equal routes: has a gateway or an object, and comes neither from a router advertisement
/// nor from an address (`rt6_qualify_for_ecmp`).
fn is_multipath_v6(entry: &RouteEntry) -> bool {
    const RTPROT_KERNEL: u8 = 2;
    const RTPROT_RA: u8 = 9;
    let with_gateway = match &entry.hops {
        Hops::Own(hops) => hops.iter().any(|hop| hop.gateway.is_some()),
        Hops::Object(_) => true,
    };
    with_gateway && entry.protocol != RTPROT_KERNEL && entry.protocol != RTPROT_RA
}

/// Puts a route among those of its prefix as the kernel did. IPv4 keeps a list for each (tos, metric) in which the flags
/// say where the new one goes. IPv6 merges routes of one metric that have gateways, always reporting the whole set, and
/// keeps others (say, fe80::/64 on each link) side by side.
fn insert(entries: &mut Vec<RouteEntry>, new: RouteEntry, is_v6: bool, flags: u16) -> bool {
    let replace = flags & libc::NLM_F_REPLACE as u16 != 0;
    let append = flags & libc::NLM_F_APPEND as u16 != 0;
    let key = |entry: &RouteEntry| (entry.metric, entry.tos);
    let mut certain = true;
    if is_v6 {
        let multipath = is_multipath_v6(&new);
        let same_key = entries.iter().filter(|entry| key(entry) == key(&new)).count();
        if multipath {
            entries.retain(|entry| key(entry) != key(&new) || !is_multipath_v6(entry));
        } else {
            entries.retain(|entry| key(entry) != key(&new) || entry.hops != new.hops || entry.kind != new.kind);
        }
        if replace {
            // Which of several the kernel replaced is not in the message.
            certain = same_key <= 1;
            if certain {
                entries.retain(|entry| key(entry) != key(&new));
            }
        }
    } else {
        let length = entries.len();
        entries.retain(|entry| *entry != new);
        // One that was here already is an old notification after a dump: what it replaced is gone already.
        let known = entries.len() != length;
        if replace
            && !known
            && let Some(first) = entries.iter().position(|entry| key(entry) == key(&new))
        {
            entries.remove(first);
        }
    }
    let behind = |entry: &RouteEntry| match key(entry).cmp(&key(&new)) {
        std::cmp::Ordering::Less => true,
        std::cmp::Ordering::Equal => append || is_v6,
        std::cmp::Ordering::Greater => false,
    };
    let place = entries.iter().take_while(|entry| behind(entry)).count();
    entries.insert(place, new);
    certain
}

/// Takes a route out of those of its prefix. IPv6 reports a single lost hop of a set as a route with that hop alone.
fn withdraw(entries: &mut Vec<RouteEntry>, gone: &RouteEntry, is_v6: bool) {
    let same_key = |entry: &RouteEntry| entry.metric == gone.metric && entry.tos == gone.tos && entry.kind == gone.kind;
    if let Some(exact) = entries.iter().position(|entry| same_key(entry) && entry.hops == gone.hops) {
        entries.remove(exact);
        return;
    }
    let Hops::Own(gone_hops) = &gone.hops else { return };
    if is_v6 {
        for entry in entries.iter_mut().filter(|entry| same_key(entry)) {
            if let Hops::Own(hops) = &mut entry.hops {
                let is_gone = |hop: &super::message::RawHop| {
                    gone_hops.iter().any(|gone| gone.ifindex == hop.ifindex && gone.gateway == hop.gateway)
                };
                hops.retain(|hop| !is_gone(hop));
            }
        }
        let emptied = |entry: &RouteEntry| same_key(entry) && matches!(&entry.hops, Hops::Own(hops) if hops.is_empty());
        if !gone_hops.is_empty() {
            entries.retain(|entry| !emptied(entry));
        }
    } else if let Some(position) = entries.iter().position(same_key) {
        // The hops differ only in what the kernel has changed silently, such as a dead link.
        entries.remove(position);
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
