#![forbid(unsafe_code)]
//! The states of one worker: what packets do with them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ferrule_dataplane::arena::{advise_huge_pages, prefetch};
use ferrule_dataplane::clock::Nanos;

use super::bucket::Buckets;
use super::key::{FlowKey, NameFilter, NameId, PacketFacts, TCP, UDP, UDP_LITE};
use super::parent::{ParentError, Request};
use super::settings::{KEEPALIVE_PERIOD, Shared};
use super::state::{Direction, Expiries, LIMIT, LIVE, NONE, ORPHANED, RuleRef, State, V6};
use super::view::StateView;
use super::wheel::Wheel;

/// Number of a state in its worker's table. Good until the next [`States::sweep`], [`States::purge`] or [`States::remove`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StateIndex(pub u32);

/// The state that a hash most likely leads to; good as long as a [`StateIndex`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate(u32);

impl Candidate {
    /// None: the bucket is searched.
    pub const NONE: Candidate = Candidate(NONE);
}

/// The state that a packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Which it is.
    pub index: StateIndex,
    /// The rule whose action is carried out. Where this rule is gone the engine calls [`States::remove`] and goes on as if nothing had
    /// been found, as FreeBSD does, unless the state is orphaned.
    pub rule: RuleRef,
    /// Whether the packet goes the way of the first one.
    pub direction: Direction,
    /// Whether its rule was deleted while `dyn_keep_states` was set.
    pub orphaned: bool,
}

/// Fields whose combinations are limited, and the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitTo {
    /// `src-addr`
    pub source_address: bool,
    /// `src-port`
    pub source_port: bool,
    /// `dst-addr`
    pub destination_address: bool,
    /// `dst-port`
    pub destination_port: bool,
    /// Most states of one combination.
    pub count: u32,
}

impl LimitTo {
    /// The flow with the fields that do not count set to 0.
    pub fn mask(&self, key: &FlowKey) -> FlowKey {
        let ports = (u32::from(self.source_port) * 0xffff_0000) | (u32::from(self.destination_port) * 0xffff);
        match *key {
            FlowKey::V4 { addresses, ports: all, protocol } => {
                let source = u64::from(self.source_address) * 0xffff_ffff_0000_0000;
                let destination = u64::from(self.destination_address) * 0xffff_ffff;
                FlowKey::V4 { addresses: addresses & (source | destination), ports: all & ports, protocol }
            }
            FlowKey::V6 { source, destination, ports: all, protocol, zone } => FlowKey::V6 {
                source: if self.source_address { source } else { 0 },
                destination: if self.destination_address { destination } else { 0 },
                ports: all & ports,
                protocol,
                zone,
            },
        }
    }
}

/// A state to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewState {
    /// The packet's flow.
    pub key: FlowKey,
    /// Its hash, from [`super::state_hash`].
    pub hash: u32,
    /// Group.
    pub name: NameId,
    /// The rule that makes it.
    pub rule: RuleRef,
    /// `limit`, `set-limit`.
    pub limit: Option<LimitTo>,
}

/// Why a state was not made. The packet is dropped then: ipfw(8) ends the search with deny.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstallError {
    /// There are `dyn_max` states in the box (or no room is left in this worker's table).
    TooManyStates,
    /// There are `dyn_parent_max` parents in the box.
    TooManyParents,
    /// The combination has as many states as the rule allows.
    LimitReached,
}

/// IPv6 source and destination; the first is the number of the next free pair while this one is free.
type Pair = [u128; 2];

/// Whether the pair is these two: in one go, where `==` of arrays may become a call.
#[inline(always)]
fn is_pair(pair: &Pair, first: u128, second: u128) -> bool {
    (pair[0] ^ first) | (pair[1] ^ second) == 0
}

/// The states of one worker.
pub struct States {
    pub(super) shared: Arc<Shared>,
    pub(super) buckets: Buckets,
    pub(super) states: Vec<State>,
    /// First free state, or [`NONE`].
    pub(super) free: u32,
    pub(super) pairs: Vec<Pair>,
    pub(super) free_pair: u32,
    pub(super) wheel: Wheel,
    pub(super) live: u32,
    /// Second of this turn.
    pub(super) now: u32,
    pub(super) expiries: Expiries,
    pub(super) keepalive: bool,
    pub(super) most: u32,
    pub(super) parent_cursor: usize,
    /// Second of the latest sweep.
    pub(super) swept: u32,
}

impl States {
    /// An empty table for at most `capacity` states, which reserves address space for them and touches none of it.
    /// [`super::settings::MOST_STATES`] is enough whatever `dyn_max` is set to later.
    pub fn new(shared: Arc<Shared>, capacity: u32) -> States {
        let capacity = capacity as usize;
        let mut states: Vec<State> = Vec::with_capacity(capacity);
        let mut pairs: Vec<Pair> = Vec::with_capacity(capacity);
        advise_huge_pages(states.spare_capacity_mut());
        advise_huge_pages(pairs.spare_capacity_mut());
        let mut new = States {
            shared,
            buckets: Buckets::new(capacity),
            states,
            free: NONE,
            pairs,
            free_pair: NONE,
            wheel: Wheel::new(capacity),
            live: 0,
            now: 0,
            expiries: Expiries::default(),
            keepalive: false,
            most: 0,
            parent_cursor: 0,
            swept: 0,
        };
        new.turn(0);
        new
    }

    /// Takes over the time and the settings. To be called once per turn before anything else, with a time that never goes back.
    pub fn turn(&mut self, now: Nanos) {
        let now = Self::seconds(now);
        self.now = now;
        let settings = &self.shared.settings;
        self.keepalive = settings.keepalive.load(Relaxed) != 0;
        self.most = settings.max.load(Relaxed);
        // FreeBSD holds these two below the period of keep-alives, so that a closed connection gets none.
        let rst = settings.rst_lifetime.load(Relaxed);
        let rst = if self.keepalive { rst.min(KEEPALIVE_PERIOD - 1) } else { rst };
        let fin = settings.fin_lifetime.load(Relaxed).min(KEEPALIVE_PERIOD - 1);
        self.expiries = Expiries {
            ack: now.saturating_add(settings.ack_lifetime.load(Relaxed)),
            syn: now.saturating_add(settings.syn_lifetime.load(Relaxed)),
            fin: now + fin,
            rst: now.saturating_add(rst),
            udp: now.saturating_add(settings.udp_lifetime.load(Relaxed)),
            short: now.saturating_add(settings.short_lifetime.load(Relaxed)),
        };
    }

    /// What it shares with other workers.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Seconds as states and parents have them.
    pub fn seconds(now: Nanos) -> u32 {
        (now / 1_000_000_000) as u32 + 1
    }

    /// States of this worker.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Bytes in use: states, addresses, buckets and timers.
    pub fn memory(&self) -> usize {
        self.states.len() * size_of::<State>()
            + self.pairs.len() * size_of::<Pair>()
            + self.buckets.memory()
            + self.wheel.memory()
    }

    /// First stage of a batch: asks for the bucket of a hash.
    #[inline(always)]
    pub fn prefetch_bucket(&self, hash: u32) {
        self.buckets.prefetch(hash);
    }

    /// Second stage: asks for the state that a probe of this hash will most likely want, and tells which it is.
    #[inline(always)]
    pub fn prefetch_state(&self, hash: u32) -> Candidate {
        let candidate = self.buckets.candidate(hash).unwrap_or(NONE);
        if let Some(state) = self.states.get(candidate as usize) {
            prefetch(state);
        }
        Candidate(candidate)
    }

    /// Third stage, for IPv6 packets only: asks for the state's addresses.
    #[inline(always)]
    pub fn prefetch_addresses(&self, candidate: Candidate) {
        let state = self.states.get(candidate.0 as usize);
        if let Some(pair) = state.filter(|s| s.flags & V6 != 0).and_then(|s| self.pairs.get(s.addresses as usize)) {
            prefetch(pair);
        }
    }

    /// Finds the state of a packet, counts the packet and sets the expiry; what check-state does. `hash` is [`super::state_hash`].
    #[inline]
    pub fn probe(&mut self, key: &FlowKey, name: NameFilter, hash: u32, facts: &PacketFacts) -> Option<Hit> {
        let (index, direction) = self.find(key, name.number(), hash)?;
        Some(self.refresh(index, direction, facts))
    }

    /// As [`States::probe`], with what [`States::prefetch_state`] told: the bucket is not searched again where the candidate is the one.
    #[inline(always)]
    pub fn probe_candidate(
        &mut self,
        candidate: Candidate,
        key: &FlowKey,
        name: NameFilter,
        hash: u32,
        facts: &PacketFacts,
    ) -> Option<Hit> {
        let (index, direction, _) = self.look(candidate, key, name, hash)?;
        Some(self.refresh(index.0, direction, facts))
    }

    /// The state of a packet, with the way that the packet goes in it and its rule; nothing is done to it.
    #[inline(always)]
    pub fn look(
        &self,
        candidate: Candidate,
        key: &FlowKey,
        name: NameFilter,
        hash: u32,
    ) -> Option<(StateIndex, Direction, RuleRef)> {
        if let Some(state) = self.states.get(candidate.0 as usize) {
            let wanted = name.number();
            let (same, ports) = match *key {
                FlowKey::V4 { addresses, ports, protocol } => {
                    // Without branches: which of them is false is as random as the traffic.
                    let same = (state.protocol == protocol) & (state.flags & (LIVE | V6) == LIVE);
                    let forward = same & (state.addresses == addresses);
                    let reverse = same & (state.addresses == addresses.rotate_left(32));
                    ((forward, reverse), ports)
                }
                FlowKey::V6 { source, destination, ports, protocol, zone } => {
                    let same =
                        (state.protocol == protocol) & (state.flags & (LIVE | V6) == LIVE | V6) & (state.zone == zone);
                    // Of an IPv4 state this is some pair or none; it is not used then.
                    let pair = self.pairs.get(state.addresses as usize).unwrap_or(&[0; 2]);
                    let forward = same & is_pair(pair, source, destination);
                    let reverse = same & is_pair(pair, destination, source);
                    ((forward, reverse), ports)
                }
            };
            let forward = same.0 & (state.ports == ports);
            let reverse = same.1 & (state.ports == ports.rotate_left(16));
            if (forward | reverse) & ((wanted == 0) | (state.name == wanted)) {
                let direction = if forward { Direction::Forward } else { Direction::Reverse };
                return Some((StateIndex(candidate.0), direction, state.rule));
            }
        }
        let (index, direction) = self.find(key, name.number(), hash)?;
        Some((StateIndex(index), direction, self.states.get(index as usize)?.rule))
    }

    /// As [`States::probe`], but where `good` says no of the state's rule nothing is done and nothing found.
    #[inline(always)]
    pub fn probe_if(
        &mut self,
        key: &FlowKey,
        name: NameFilter,
        hash: u32,
        facts: &PacketFacts,
        good: impl FnOnce(RuleRef) -> bool,
    ) -> Option<Hit> {
        let (index, direction) = self.find(key, name.number(), hash)?;
        good(self.states.get(index as usize)?.rule).then(|| self.refresh(index, direction, facts))
    }

    /// Counts a packet whose state is known from another pass of the same turn.
    #[inline]
    pub fn touch(&mut self, index: StateIndex, direction: Direction, facts: &PacketFacts) -> Option<Hit> {
        let live = self.states.get(index.0 as usize).is_some_and(|state| state.flags & LIVE != 0);
        live.then(|| self.refresh(index.0, direction, facts))
    }

    /// As [`States::touch`], for a packet of `length` bytes, not TCP, that meets its state in so many passes.
    #[inline(always)]
    pub fn touch_times(&mut self, index: StateIndex, length: u32, times: u32) {
        let Some(state) = self.states.get_mut(index.0 as usize).filter(|state| state.flags & LIVE != 0) else { return };
        debug_assert!(state.protocol != TCP);
        let before = state.expire;
        state.expire = if matches!(state.protocol, UDP | UDP_LITE) { self.expiries.udp } else { self.expiries.short };
        state.packets += u64::from(times);
        state.bytes += u64::from(times) * u64::from(length);
        if state.expire < before {
            self.put_forward(index.0);
        }
    }

    #[inline(always)]
    fn find(&self, key: &FlowKey, name: u16, hash: u32) -> Option<(u32, Direction)> {
        let states = &self.states[..];
        match *key {
            FlowKey::V4 { addresses, ports, protocol } => self.buckets.find(hash, |index| {
                let state = states.get(index as usize)?;
                let forward = state.addresses == addresses && state.ports == ports;
                let turned = (addresses.rotate_left(32), ports.rotate_left(16));
                let reverse = state.addresses == turned.0 && state.ports == turned.1;
                let other = state.protocol != protocol || state.flags & V6 != 0;
                if !(forward | reverse) || other || (name != 0 && state.name != name) {
                    return None;
                }
                Some((index, if forward { Direction::Forward } else { Direction::Reverse }))
            }),
            FlowKey::V6 { source, destination, ports, protocol, zone } => self.buckets.find(hash, |index| {
                let state = states.get(index as usize)?;
                if state.hash != hash || state.protocol != protocol || state.flags & V6 == 0 || state.zone != zone {
                    return None;
                }
                let pair = self.pairs.get(state.addresses as usize)?;
                let forward = is_pair(pair, source, destination) && state.ports == ports;
                let reverse = is_pair(pair, destination, source) && state.ports == ports.rotate_left(16);
                if !(forward | reverse) || (name != 0 && state.name != name) {
                    return None;
                }
                Some((index, if forward { Direction::Forward } else { Direction::Reverse }))
            }),
        }
    }

    #[inline(always)]
    fn refresh(&mut self, index: u32, direction: Direction, facts: &PacketFacts) -> Hit {
        let state = &mut self.states[index as usize];
        let before = state.expire;
        state.update(direction, facts, &self.expiries);
        let hit = Hit { index: StateIndex(index), rule: state.rule, direction, orphaned: state.flags & ORPHANED != 0 };
        if state.expire < before {
            self.put_forward(index);
        }
        hit
    }

    /// Gives a state whose life got shorter an earlier entry, unless its present one comes early enough. Without room for
    /// it the state lives on until that one comes, which is some seconds.
    #[cold]
    fn put_forward(&mut self, index: u32) {
        let time = self.wheel.time();
        let state = &self.states[index as usize];
        let scheduled = time + u32::from(state.timer.wrapping_sub(time as u8));
        let second = self.wheel.clamp(state.expire, self.now);
        if second < scheduled && self.wheel.add(second, index).is_ok() {
            self.states[index as usize].timer = second as u8;
        }
    }

    /// Makes a state. Where the flow has one of this name already, that one counts the packet and is returned.
    ///
    /// # Errors
    /// [`InstallError`]; nothing was made then. The first two kinds are counted in [`Shared::refused`].
    pub fn install(&mut self, new: &NewState, facts: &PacketFacts) -> Result<StateIndex, InstallError> {
        let parent = match &new.limit {
            Some(limit) => self.acquire_parent(new, limit)?,
            None => NONE,
        };
        if let Some((index, direction)) = self.find(&new.key, new.name.0, new.hash) {
            self.shared.parents.release(parent);
            return Ok(self.refresh(index, direction, facts).index);
        }
        if self.shared.count.fetch_add(1, Relaxed) >= self.most {
            self.shared.count.fetch_sub(1, Relaxed);
            return Err(self.refuse(parent));
        }
        let Some(index) = self.allocate(new, parent) else {
            self.shared.count.fetch_sub(1, Relaxed);
            return Err(self.refuse(parent));
        };
        let state = &mut self.states[index as usize];
        state.update(Direction::Forward, facts, &self.expiries);
        let second = self.wheel.clamp(state.expire, self.now);
        state.timer = second as u8;
        let states = &self.states;
        let placed = self.wheel.add(second, index).is_ok()
            && self.buckets.insert(new.hash, index, |other| states[other as usize].hash).is_ok();
        if !placed {
            self.free(index);
            self.shared.count.fetch_sub(1, Relaxed);
            return Err(self.refuse(parent));
        }
        self.live += 1;
        Ok(StateIndex(index))
    }

    fn acquire_parent(&self, new: &NewState, limit: &LimitTo) -> Result<u32, InstallError> {
        let key = limit.mask(&new.key);
        let most = self.shared.settings.parent_max.load(Relaxed);
        let request = Request {
            rule: new.rule,
            name: new.name,
            key: &key,
            limit: limit.count,
            most,
            expire: self.expiries.short,
        };
        self.shared.parents.acquire(&request).map_err(|error| match error {
            ParentError::Limit => InstallError::LimitReached,
            ParentError::TooMany => {
                self.shared.refused_parents.fetch_add(1, Relaxed);
                InstallError::TooManyParents
            }
        })
    }

    fn refuse(&self, parent: u32) -> InstallError {
        self.shared.parents.release(parent);
        self.shared.refused_states.fetch_add(1, Relaxed);
        InstallError::TooManyStates
    }

    /// A state with everything but its expiry, counters and timer set.
    fn allocate(&mut self, new: &NewState, parent: u32) -> Option<u32> {
        let limit = if new.limit.is_some() { LIMIT } else { 0 };
        let (addresses, ports, zone, family) = match new.key {
            FlowKey::V4 { addresses, ports, .. } => (addresses, ports, 0, 0),
            FlowKey::V6 { source, destination, ports, zone, .. } => {
                (u64::from(self.allocate_pair([source, destination])?), ports, zone, V6)
            }
        };
        let state = State {
            addresses,
            packets: 0,
            bytes: 0,
            ports,
            expire: self.expiries.syn,
            ack_forward: 0,
            ack_reverse: 0,
            rule: new.rule,
            parent,
            hash: new.hash,
            name: new.name.0,
            zone,
            protocol: new.key.protocol(),
            flags: LIVE | limit | family,
            tcp: 0,
            timer: 0,
        };
        if let Some(slot) = self.states.get_mut(self.free as usize) {
            let index = self.free;
            self.free = slot.hash;
            *slot = state;
            return Some(index);
        }
        if self.states.len() == self.states.capacity() {
            if family != 0 {
                self.free_pair(addresses as u32);
            }
            return None;
        }
        self.states.push(state);
        Some(self.states.len() as u32 - 1)
    }

    fn allocate_pair(&mut self, pair: Pair) -> Option<u32> {
        if let Some(slot) = self.pairs.get_mut(self.free_pair as usize) {
            let number = self.free_pair;
            self.free_pair = slot[0] as u32;
            *slot = pair;
            return Some(number);
        }
        if self.pairs.len() == self.pairs.capacity() {
            return None;
        }
        self.pairs.push(pair);
        Some(self.pairs.len() as u32 - 1)
    }

    fn free_pair(&mut self, number: u32) {
        self.pairs[number as usize] = [u128::from(self.free_pair), 0];
        self.free_pair = number;
    }

    fn free(&mut self, index: u32) {
        let state = &mut self.states[index as usize];
        let (flags, addresses) = (state.flags, state.addresses);
        state.flags = 0;
        state.hash = self.free;
        self.free = index;
        if flags & V6 != 0 {
            self.free_pair(addresses as u32);
        }
    }

    /// Ends a state now.
    pub fn remove(&mut self, index: StateIndex) {
        let Some(state) = self.states.get(index.0 as usize).filter(|state| state.flags & LIVE != 0) else { return };
        let (hash, parent) = (state.hash, state.parent);
        let was_in = self.buckets.remove(hash, index.0);
        debug_assert!(was_in);
        self.shared.parents.release(parent);
        self.free(index.0);
        self.live -= 1;
        self.shared.count.fetch_sub(1, Relaxed);
    }

    /// A state as others see it; None where the number is not in use.
    pub fn view(&self, index: StateIndex) -> Option<StateView> {
        let state = self.states.get(index.0 as usize).filter(|state| state.flags & LIVE != 0)?;
        let (ports, protocol) = (state.ports, state.protocol);
        let key = if state.flags & V6 != 0 {
            let [source, destination] = self.pairs[state.addresses as usize];
            FlowKey::V6 { source, destination, ports, protocol, zone: state.zone }
        } else {
            FlowKey::V4 { addresses: state.addresses, ports, protocol }
        };
        Some(StateView {
            key,
            name: NameId(state.name),
            rule: state.rule,
            limit: state.flags & LIMIT != 0,
            expires_in: state.expire.saturating_sub(self.now),
            packets: state.packets,
            bytes: state.bytes,
            tcp: state.shown_tcp(),
            acknowledgements: (state.ack_forward, state.ack_reverse),
            orphaned: state.flags & ORPHANED != 0,
        })
    }
}

impl Drop for States {
    /// What it had no longer counts for the box.
    fn drop(&mut self) {
        self.shared.count.fetch_sub(self.live, Relaxed);
        for state in self.states.iter().filter(|state| state.flags & LIVE != 0) {
            self.shared.parents.release(state.parent);
        }
    }
}
