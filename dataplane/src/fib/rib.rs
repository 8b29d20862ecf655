#![forbid(unsafe_code)]
//! Routes by prefix: every metric of every prefix, of one address family. Control thread only.
//!
//! A full Internet table has more than a million prefixes with one route each, so the common case is 16 bytes for IPv4
//! and 28 for IPv6, in a hash table. (A trie of the same content takes three to five times that: the crate prefix-trie
//! was weighed and left to others for this reason.) The next shorter prefix is found by probing the shorter lengths
//! that occur.

use super::prefix::{Prefix, mask4, mask6};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::Hash;

/// Where a route comes from; the order is the order of preference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RouteOrigin {
    /// [`super::RoutingTable::route_replace`].
    Explicit,
    /// A resolved neighbour in a connected subnet.
    Neighbor,
    /// Built in: addresses that are never forwarded.
    BuiltIn,
}

/// Number of a path (see [`super::path::Paths`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PathId(pub(super) u32);

/// One route of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Route {
    pub(super) origin: RouteOrigin,
    /// Lower is better among explicit routes; of a neighbour's route the number of its port.
    pub(super) metric: u32,
    pub(super) path: PathId,
}

/// The routes of one prefix, best origin and metric first.
pub(super) type Routes = SmallVec<[Route; 2]>;

/// An address family's addresses.
pub(super) trait Address: Copy + Eq + 'static {
    /// How the address lies in a key: without padding.
    type Packed: Copy + Eq + Hash;
    fn pack(self) -> Self::Packed;
    fn unpack(packed: Self::Packed) -> Self;
    fn masked(self, length: u8) -> Self;
    fn prefix(self, length: u8) -> Prefix;
}

impl Address for u32 {
    type Packed = u32;
    fn pack(self) -> u32 {
        self
    }
    fn unpack(packed: u32) -> u32 {
        packed
    }
    fn masked(self, length: u8) -> u32 {
        self & mask4(length)
    }
    fn prefix(self, length: u8) -> Prefix {
        Prefix::V4 { address: self, length }
    }
}

impl Address for u128 {
    type Packed = [u32; 4];
    fn pack(self) -> [u32; 4] {
        [(self >> 96) as u32, (self >> 64) as u32, (self >> 32) as u32, self as u32]
    }
    fn unpack([a, b, c, d]: [u32; 4]) -> u128 {
        u128::from(a) << 96 | u128::from(b) << 64 | u128::from(c) << 32 | u128::from(d)
    }
    fn masked(self, length: u8) -> u128 {
        self & mask6(length)
    }
    fn prefix(self, length: u8) -> Prefix {
        Prefix::V6 { address: self, length }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key<P> {
    address: P,
    length: u8,
}

/// What a prefix has: one route, or the number of a list of several.
#[derive(Clone, Copy)]
struct Slot {
    metric: u32,
    /// Bit 31: number of a list. Else bits 29-30 origin, bits 0-28 path.
    word: u32,
}

const LIST_BIT: u32 = 1 << 31;
const ORIGIN_SHIFT: u32 = 29;
const PATH_MASK: u32 = (1 << ORIGIN_SHIFT) - 1;

impl Slot {
    fn one(route: Route) -> Slot {
        Slot { metric: route.metric, word: (route.origin as u32) << ORIGIN_SHIFT | route.path.0 & PATH_MASK }
    }

    fn list(number: usize) -> Slot {
        Slot { metric: 0, word: LIST_BIT | number as u32 }
    }

    /// The one route, or the number of the list.
    fn open(self) -> Result<Route, usize> {
        if self.word & LIST_BIT != 0 {
            return Err((self.word & !LIST_BIT) as usize);
        }
        let origin = match self.word >> ORIGIN_SHIFT {
            0 => RouteOrigin::Explicit,
            1 => RouteOrigin::Neighbor,
            _ => RouteOrigin::BuiltIn,
        };
        Ok(Route { origin, metric: self.metric, path: PathId(self.word & PATH_MASK) })
    }
}

/// The routes of one address family.
pub(super) struct Rib<A: Address> {
    slots: HashMap<Key<A::Packed>, Slot>,
    /// Lists of the prefixes that have several routes; an unused one is `None`.
    lists: Vec<Option<(Key<A::Packed>, Routes)>>,
    free_lists: Vec<usize>,
    /// Number of prefixes of each length.
    lengths: [u32; 129],
    /// Number of explicit routes.
    explicit: usize,
}

impl<A: Address> Rib<A> {
    pub(super) fn new() -> Rib<A> {
        Rib { slots: HashMap::new(), lists: Vec::new(), free_lists: Vec::new(), lengths: [0; 129], explicit: 0 }
    }

    /// The routes of exactly this prefix.
    pub(super) fn get(&self, address: A, length: u8) -> Routes {
        let Some(slot) = self.slots.get(&Key { address: address.pack(), length }) else { return Routes::new() };
        self.routes_of(*slot)
    }

    fn routes_of(&self, slot: Slot) -> Routes {
        match slot.open() {
            Ok(route) => Routes::from_slice(&[route]),
            Err(list) => self.lists[list].as_ref().map(|(_, routes)| routes.clone()).unwrap_or_default(),
        }
    }

    /// Adds a route, or replaces that of the same origin and metric, which is returned.
    pub(super) fn put(&mut self, address: A, length: u8, route: Route) -> Option<Route> {
        let key = Key { address: address.pack(), length };
        let replaced = match self.slots.get(&key).map(|slot| slot.open()) {
            None => {
                self.slots.insert(key, Slot::one(route));
                self.lengths[usize::from(length)] += 1;
                None
            }
            Some(Ok(old)) if (old.origin, old.metric) == (route.origin, route.metric) => {
                self.slots.insert(key, Slot::one(route));
                Some(old)
            }
            Some(Ok(old)) => {
                let mut routes = Routes::from_slice(&[old, route]);
                routes.sort_by_key(|route| (route.origin, route.metric));
                let list = self.free_lists.pop().unwrap_or_else(|| {
                    self.lists.push(None);
                    self.lists.len() - 1
                });
                self.lists[list] = Some((key, routes));
                self.slots.insert(key, Slot::list(list));
                None
            }
            Some(Err(list)) => self.lists[list].as_mut().and_then(|(_, routes)| {
                match routes.binary_search_by_key(&(route.origin, route.metric), |route| (route.origin, route.metric)) {
                    Ok(place) => Some(std::mem::replace(&mut routes[place], route)),
                    Err(place) => {
                        routes.insert(place, route);
                        None
                    }
                }
            }),
        };
        if route.origin == RouteOrigin::Explicit && replaced.is_none() {
            self.explicit += 1;
        }
        replaced
    }

    /// Takes out the route of this origin and metric.
    pub(super) fn take(&mut self, address: A, length: u8, origin: RouteOrigin, metric: u32) -> Option<Route> {
        let key = Key { address: address.pack(), length };
        let wanted = |route: &Route| (route.origin, route.metric) == (origin, metric);
        let taken = match self.slots.get(&key)?.open() {
            Ok(route) => {
                if !wanted(&route) {
                    return None;
                }
                self.slots.remove(&key);
                self.lengths[usize::from(length)] -= 1;
                if self.slots.capacity() > 4096 && self.slots.len() < self.slots.capacity() / 8 {
                    self.slots.shrink_to(self.slots.len() * 2);
                }
                route
            }
            Err(list) => {
                let (_, routes) = self.lists[list].as_mut()?;
                let place = routes.iter().position(wanted)?;
                let route = routes.remove(place);
                if let [last] = routes[..] {
                    self.lists[list] = None;
                    self.free_lists.push(list);
                    self.slots.insert(key, Slot::one(last));
                }
                route
            }
        };
        if origin == RouteOrigin::Explicit {
            self.explicit -= 1;
        }
        Some(taken)
    }

    /// The prefixes that hold `address`, shorter than `below` bits, longest first, with their routes.
    pub(super) fn covers(&self, address: A, below: u8) -> impl Iterator<Item = (u8, Routes)> + '_ {
        (0..below).rev().filter(|&length| self.lengths[usize::from(length)] > 0).filter_map(move |length| {
            let routes = self.get(address.masked(length), length);
            (!routes.is_empty()).then_some((length, routes))
        })
    }

    /// The prefixes that have several routes.
    pub(super) fn contested(&self) -> impl Iterator<Item = (Prefix, &Routes)> {
        self.lists.iter().flatten().map(|(key, routes)| (A::unpack(key.address).prefix(key.length), routes))
    }

    /// All prefixes with their routes, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Prefix, Routes)> + '_ {
        self.slots.iter().map(|(key, slot)| (A::unpack(key.address).prefix(key.length), self.routes_of(*slot)))
    }

    /// Number of explicit routes.
    pub(super) fn explicit(&self) -> usize {
        self.explicit
    }

    /// Number of prefixes.
    pub(super) fn prefixes(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of memory, by the layout of the standard hash table: a power of two of buckets, a control byte for each.
    pub(super) fn memory(&self) -> usize {
        let buckets = match self.slots.capacity() {
            0 => 0,
            capacity => (capacity * 8 / 7).next_power_of_two(),
        };
        buckets * (size_of::<(Key<A::Packed>, Slot)>() + 1)
            + self.lists.capacity() * size_of::<Option<(Key<A::Packed>, Routes)>>()
            + self.free_lists.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_case_is_as_small_as_promised() {
        assert_eq!(size_of::<(Key<u32>, Slot)>(), 16);
        assert_eq!(size_of::<(Key<[u32; 4]>, Slot)>(), 28);
    }

    #[test]
    fn several_routes_of_a_prefix_are_kept_in_order() {
        let mut rib = Rib::<u32>::new();
        let route = |origin, metric, path| Route { origin, metric, path: PathId(path) };
        let (low, high) = (route(RouteOrigin::Explicit, 10, 1), route(RouteOrigin::Explicit, 20, 2));
        let built_in = route(RouteOrigin::BuiltIn, 0, 3);
        assert_eq!(rib.put(0, 4, built_in), None);
        assert_eq!(rib.put(0, 4, high), None);
        assert_eq!(rib.put(0, 4, low), None);
        assert_eq!(rib.get(0, 4)[..], [low, high, built_in]);
        assert_eq!(rib.put(0, 4, route(RouteOrigin::Explicit, 20, 9)), Some(high));
        assert_eq!((rib.explicit(), rib.prefixes(), rib.contested().count()), (2, 1, 1));
        assert_eq!(rib.take(0, 4, RouteOrigin::Explicit, 11), None);
        assert_eq!(rib.take(0, 4, RouteOrigin::Explicit, 10), Some(low));
        assert_eq!(rib.take(0, 4, RouteOrigin::BuiltIn, 0), Some(built_in));
        assert_eq!((rib.explicit(), rib.contested().count()), (1, 0));
        assert_eq!(rib.take(0, 4, RouteOrigin::Explicit, 20).map(|route| route.path), Some(PathId(9)));
        assert_eq!((rib.explicit(), rib.prefixes()), (0, 0));
    }

    #[test]
    fn covers_come_longest_first() {
        let mut rib = Rib::<u128>::new();
        let route = Route { origin: RouteOrigin::Explicit, metric: 0, path: PathId(1) };
        for length in [0, 16, 48] {
            rib.put((0x2001_u128 << 112).masked(length), length, route);
        }
        rib.put(0x2002 << 112, 32, route);
        let lengths: Vec<u8> = rib.covers(0x2001 << 112 | 1, 48).map(|(length, _)| length).collect();
        assert_eq!(lengths, [16, 0]);
    }
}
