#![forbid(unsafe_code)]
//! Paths: the distinct targets of routes. Control thread only.
//!
//! Routes with the same target share one path, and so one adjacency: what happens to a next hop is written once, however
//! many routes lead there. A path with several next hops owns a multipath group of 64 buckets, shared out by weight.
//! Each bucket has a *home* member; while a member's port is down its buckets, and only those, go to the others, and they
//! come home when it returns. When a route gets another set of next hops, the new path starts from the old one's buckets.

use super::adjacency::{AdjacencyContent, AdjacencyId, AdjacencyKind, MULTIPATH_BUCKETS};
use super::hops::{HopKey, Hops};
use super::prefix::PortId;
use super::rib::PathId;
use super::route::{NextHop, RouteError, RouteKind};
use std::collections::HashMap;

/// For each bucket the number of its member, if it has one.
type Buckets = [Option<u8>; MULTIPATH_BUCKETS];

struct Multipath {
    group: u16,
    home: Buckets,
}

struct Path {
    kind: RouteKind,
    references: u32,
    adjacency: AdjacencyId,
    /// Whether packets get anywhere: a port is up, or none is needed.
    active: bool,
    multipath: Option<Multipath>,
}

pub(super) struct Paths {
    pub(super) hops: Hops,
    paths: Vec<Option<Path>>,
    free: Vec<u32>,
    by_kind: HashMap<RouteKind, PathId>,
}

/// The adjacency of a next hop.
fn hop_key(hop: &NextHop) -> HopKey {
    match hop.gateway {
        Some(gateway) => HopKey::Neighbor(hop.port, gateway),
        None => HopKey::Glean(hop.port),
    }
}

/// The adjacencies that a path holds a reference to.
fn hop_keys(kind: &RouteKind) -> Vec<HopKey> {
    match kind {
        RouteKind::Via(hops) => hops.iter().map(hop_key).collect(),
        RouteKind::Connected { port } => vec![HopKey::Glean(*port)],
        RouteKind::Local { port } => vec![HopKey::Local(*port)],
        _ => Vec::new(),
    }
}

fn fixed_kind(kind: &RouteKind) -> Option<AdjacencyKind> {
    match kind {
        RouteKind::Broadcast => Some(AdjacencyKind::Broadcast),
        RouteKind::Blackhole => Some(AdjacencyKind::Blackhole),
        RouteKind::Unreachable => Some(AdjacencyKind::Unreachable),
        RouteKind::Prohibit => Some(AdjacencyKind::Prohibit),
        RouteKind::HostVia => Some(AdjacencyKind::HostVia),
        RouteKind::Via(_) | RouteKind::Connected { .. } | RouteKind::Local { .. } => None,
    }
}

/// How many of the 64 buckets each weight gets: in proportion, but at least one, and weight 0 none. At most 64 weights.
fn quotas(weights: &[u64]) -> Vec<usize> {
    let total = weights.iter().sum::<u64>().max(1);
    let buckets = MULTIPATH_BUCKETS as u64;
    let mut quotas: Vec<u64> = weights.iter().map(|weight| (weight * buckets / total).max(1.min(*weight))).collect();
    // What a member has too much (positive) or too little, in parts of `total`.
    let excess =
        |quotas: &[u64], member: usize| quotas[member] as i128 * total as i128 - i128::from(weights[member] * buckets);
    while quotas.iter().sum::<u64>() < buckets {
        let Some(poorest) = (0..quotas.len()).min_by_key(|&member| excess(&quotas, member)) else { break };
        quotas[poorest] += 1;
    }
    while quotas.iter().sum::<u64>() > buckets {
        let richest =
            (0..quotas.len()).filter(|&member| quotas[member] > 1).max_by_key(|&member| excess(&quotas, member));
        let Some(richest) = richest else { break };
        quotas[richest] -= 1;
    }
    quotas.into_iter().map(|quota| quota as usize).collect()
}

/// Gives each bucket without a member to the one that lacks most of its quota. The quotas sum up to the buckets, so as
/// long as a bucket is empty someone lacks one, and a member of quota 0 is never chosen.
fn fill(buckets: &mut Buckets, quotas: &[usize]) {
    let mut lack: Vec<isize> = quotas.iter().map(|quota| *quota as isize).collect();
    for member in buckets.iter().flatten() {
        lack[usize::from(*member)] -= 1;
    }
    for bucket in buckets.iter_mut().filter(|bucket| bucket.is_none()) {
        let Some(neediest) = (0..lack.len()).rev().max_by_key(|&member| lack[member]) else { return };
        *bucket = Some(neediest as u8);
        lack[neediest] -= 1;
    }
}

impl Paths {
    pub(super) fn new(hops: Hops) -> Paths {
        Paths { hops, paths: Vec::new(), free: Vec::new(), by_kind: HashMap::new() }
    }

    fn get(&self, id: PathId) -> &Path {
        self.paths[id.0 as usize].as_ref().expect("a route holds a reference to its path")
    }

    pub(super) fn kind(&self, id: PathId) -> &RouteKind {
        &self.get(id).kind
    }

    pub(super) fn adjacency(&self, id: PathId) -> AdjacencyId {
        self.get(id).adjacency
    }

    pub(super) fn is_active(&self, id: PathId) -> bool {
        self.get(id).active
    }

    /// A path to an adjacency of a fixed kind that no route of the user's can have: the built-in entries.
    pub(super) fn built_in(&mut self, kind: AdjacencyKind) -> PathId {
        self.store(Path {
            kind: RouteKind::Blackhole,
            references: 1,
            adjacency: kind.fixed_id(),
            active: true,
            multipath: None,
        })
    }

    /// The path to this target, made if there was none, with one more reference to it. A new path with several next
    /// hops takes over the buckets of `predecessor` as far as they share members.
    pub(super) fn acquire(&mut self, kind: RouteKind, predecessor: Option<PathId>) -> Result<PathId, RouteError> {
        if let Some(&id) = self.by_kind.get(&kind) {
            if let Some(path) = &mut self.paths[id.0 as usize] {
                path.references += 1;
            }
            return Ok(id);
        }
        let keys = hop_keys(&kind);
        let mut members = Vec::with_capacity(keys.len());
        for key in &keys {
            match self.hops.acquire(*key) {
                Ok(member) => members.push(member),
                Err(error) => {
                    keys[..members.len()].iter().for_each(|key| self.hops.release(*key));
                    return Err(error);
                }
            }
        }
        let mut multipath = None;
        let adjacency = match (fixed_kind(&kind), &members[..]) {
            (Some(fixed), _) => fixed.fixed_id(),
            (None, [member]) => *member,
            (None, _) => match self.acquire_group(&kind, predecessor) {
                Ok((adjacency, group)) => {
                    multipath = Some(group);
                    adjacency
                }
                Err(error) => {
                    keys.iter().for_each(|key| self.hops.release(*key));
                    return Err(error);
                }
            },
        };
        let active = self.reaches_a_port(&kind);
        let id = self.store(Path { kind: kind.clone(), references: 1, adjacency, active, multipath });
        self.by_kind.insert(kind, id);
        Ok(id)
    }

    fn store(&mut self, path: Path) -> PathId {
        match self.free.pop() {
            Some(id) => {
                self.paths[id as usize] = Some(path);
                PathId(id)
            }
            None => {
                self.paths.push(Some(path));
                PathId(self.paths.len() as u32 - 1)
            }
        }
    }

    /// A filled group for the next hops of `kind`, and the adjacency that leads to it.
    fn acquire_group(
        &mut self,
        kind: &RouteKind,
        predecessor: Option<PathId>,
    ) -> Result<(AdjacencyId, Multipath), RouteError> {
        let RouteKind::Via(hops) = kind else { return Err(RouteError::NoNextHop) };
        let mut home = self.inherited(hops, predecessor);
        fill(&mut home, &quotas(&weights(hops)));
        let group = self.hops.adjacencies.allocate_group().ok_or(RouteError::MultipathFull)?;
        let multipath = Multipath { group, home };
        self.fill_group(hops, &multipath);
        let content = AdjacencyContent { group, ..AdjacencyContent::new(AdjacencyKind::Multipath) };
        match self.hops.adjacencies.allocate(&content) {
            Some(adjacency) => Ok((adjacency, multipath)),
            None => {
                self.hops.adjacencies.retire_group(group);
                Err(RouteError::AdjacenciesFull)
            }
        }
    }

    /// The buckets of the predecessor whose members are among `hops`, up to the quota of each.
    fn inherited(&self, hops: &[NextHop], predecessor: Option<PathId>) -> Buckets {
        let mut home = [None; MULTIPATH_BUCKETS];
        let Some(Path { kind: RouteKind::Via(old), multipath, .. }) = predecessor.map(|id| self.get(id)) else {
            return home;
        };
        let mut left = quotas(&weights(hops));
        for (bucket, new) in home.iter_mut().enumerate() {
            // A predecessor with one next hop had all flows there.
            let old_member = multipath.as_ref().map_or(Some(0), |multipath| multipath.home[bucket]);
            let Some(old_hop) = old_member.and_then(|member| old.get(usize::from(member))) else { continue };
            let same = |hop: &NextHop| (hop.port, hop.gateway) == (old_hop.port, old_hop.gateway);
            if let Some(member) = hops.iter().position(same)
                && left[member] > 0
            {
                left[member] -= 1;
                *new = Some(member as u8);
            }
        }
        home
    }

    /// Writes the buckets: home members whose port is up keep theirs, those of the others are shared out.
    fn fill_group(&self, hops: &[NextHop], multipath: &Multipath) {
        let up: Vec<bool> = hops.iter().map(|hop| self.hops.is_up(hop.port)).collect();
        let mut buckets = multipath.home;
        if up.iter().any(|up| *up) {
            for bucket in &mut buckets {
                *bucket = bucket.filter(|member| up[usize::from(*member)]);
            }
            let weights: Vec<u64> = weights(hops).iter().zip(&up).map(|(weight, up)| weight * u64::from(*up)).collect();
            fill(&mut buckets, &quotas(&weights));
        }
        let members = buckets.map(|bucket| {
            let hop = bucket.and_then(|member| hops.get(usize::from(member)));
            hop.and_then(|hop| self.hops.id(hop_key(hop))).unwrap_or(AdjacencyKind::Unreachable.fixed_id())
        });
        self.hops.adjacencies.fill_group(multipath.group, &members);
    }

    /// Gives up one reference; nothing that workers see may lead to the path through it any more.
    pub(super) fn release(&mut self, id: PathId) {
        let place = &mut self.paths[id.0 as usize];
        let Some(path) = place else { return };
        path.references -= 1;
        if path.references > 0 {
            return;
        }
        if let Some(path) = place.take() {
            self.free.push(id.0);
            self.by_kind.remove(&path.kind);
            if let Some(multipath) = path.multipath {
                self.hops.adjacencies.retire(path.adjacency);
                self.hops.adjacencies.retire_group(multipath.group);
            }
            for key in hop_keys(&path.kind) {
                self.hops.release(key);
            }
        }
    }

    fn reaches_a_port(&self, kind: &RouteKind) -> bool {
        match kind {
            RouteKind::Via(hops) => hops.iter().any(|hop| self.hops.is_up(hop.port)),
            RouteKind::Connected { port } => self.hops.is_up(*port),
            _ => true,
        }
    }

    /// Follows a change of whether `port` is up: which paths get anywhere, and the buckets of its multipath groups.
    pub(super) fn refresh_port(&mut self, port: PortId) {
        for index in 0..self.paths.len() {
            let Some(path) = &self.paths[index] else { continue };
            let active = self.reaches_a_port(&path.kind);
            if let (RouteKind::Via(hops), Some(multipath)) = (&path.kind, &path.multipath)
                && hops.iter().any(|hop| hop.port == port)
            {
                self.fill_group(hops, multipath);
            }
            if let Some(path) = &mut self.paths[index] {
                path.active = active;
            }
        }
    }

    /// Number of paths.
    pub(super) fn len(&self) -> usize {
        self.paths.len() - self.free.len()
    }

    /// Bytes of memory of these records and what they own, roughly.
    pub(super) fn memory(&self) -> usize {
        self.hops.memory()
            + self.paths.capacity() * size_of::<Option<Path>>()
            + self.by_kind.capacity() * (size_of::<(RouteKind, PathId)>() + 1)
    }
}

fn weights(hops: &[NextHop]) -> Vec<u64> {
    hops.iter().map(|hop| u64::from(hop.weight)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_follow_weights_and_leave_nobody_out() {
        assert_eq!(quotas(&[1, 1]), [32, 32]);
        assert_eq!(quotas(&[3, 1]), [48, 16]);
        assert_eq!(quotas(&[1, 1, 1]).iter().sum::<usize>(), 64);
        let extreme = quotas(&[65_535, 1, 1]);
        assert_eq!(extreme, [62, 1, 1]);
        assert_eq!(quotas(&[0, 5, 0]), [0, 64, 0]);
        assert_eq!(quotas(&[7; 64]), [1; 64]);
        let mut mixed = vec![1; 63];
        mixed.push(60_000);
        assert_eq!(quotas(&mixed), [1; 64]);
    }
}
