#![forbid(unsafe_code)]
//! Queues: one for each flow set and combination of masked bits, one for each instance of a FIFO, one for each active flow of FQ-CoDel and
//! FQ-PIE. They live in a slab of fixed size; an empty dynamic queue stands in the row of idle ones, oldest first, until it expires or
//! its slot is needed.

use super::aqm;
use super::mask::FlowId;
use super::packets::Row;
use super::rank::{NONE, Ranks};
use ferrule_dataplane::clock::Nanos;

/// What a queue has seen, as `pipe show` and `queue show` print it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets offered, dropped ones included.
    pub packets: u64,
    /// Bytes offered.
    pub bytes: u64,
    /// Packets dropped.
    pub drops: u64,
}

impl Counters {
    pub(crate) fn offered(&mut self, length: u32) {
        self.packets += 1;
        self.bytes += u64::from(length);
    }
}

/// What the scheduler of an instance keeps about a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    /// Weight, or priority.
    pub weight: u32,
    /// Longest packet (QFQ), step of the quantum (RR).
    pub longest: u32,
    /// WF2Q+, QFQ: virtual start and finish.
    pub start: u128,
    pub finish: u128,
    /// Whether it is known to its scheduler: its weight counts (WF2Q+, QFQ), it stands in a list (RR, FQ).
    pub known: bool,
    /// WF2Q+, FQ: which heap or list it stands in.
    pub place: Place,
    /// RR, FQ: bytes it may still send in this round.
    pub credit: i64,
    /// QFQ: group.
    pub group: u8,
    /// WF2Q+: busy period of the scheduler in which `known` was set.
    pub period: u64,
    /// Next in a list.
    pub next: u32,
}

/// Which of a scheduler's sets a queue is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Nowhere,
    /// WF2Q+: eligible. FQ: new flows.
    First,
    /// WF2Q+: not eligible yet. FQ: old flows.
    Second,
    /// WF2Q+: idle.
    Idle,
}

impl Share {
    pub(crate) fn new(weight: u32, longest: u32) -> Share {
        Share {
            weight,
            longest,
            start: 0,
            finish: 0,
            known: false,
            place: Place::Nowhere,
            credit: 0,
            group: 0,
            period: 0,
            next: NONE,
        }
    }
}

/// Whose queue it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A slot without a queue.
    Nobody,
    /// A flow set (its place), or an instance's own queue (FIFO).
    FlowSet(u32),
    /// A flow of FQ-CoDel or FQ-PIE in this instance.
    Flow(u32),
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub owner: Owner,
    /// Flow set whose bound and dropping it obeys.
    pub flow_set: u32,
    pub instance: u32,
    /// Masked flow; for FQ its bucket in `extra`.
    pub key: FlowId,
    /// Flow to show: the key, or the first packet's for FQ.
    pub flow: FlowId,
    pub row: Row,
    pub length: u32,
    pub bytes: u64,
    /// Length of the first packet, where schedulers read it.
    pub head: u32,
    pub counters: Counters,
    pub aqm: aqm::State,
    pub share: Share,
    /// Whether it goes away when idle.
    pub dynamic: bool,
    /// When it ran empty, while it is in the row of idle queues.
    pub idle_since: Nanos,
    idle: bool,
    idle_before: u32,
    idle_after: u32,
    hash: u64,
    chain: u32,
}

/// All queues.
#[derive(Debug)]
pub(crate) struct Queues {
    slots: Vec<Queue>,
    free: Vec<u32>,
    heads: Vec<u32>,
    /// Links of the heaps that schedulers keep.
    pub ranks: Ranks,
    idle_first: u32,
    idle_last: u32,
    seed: u64,
}

impl std::ops::Index<u32> for Queues {
    type Output = Queue;
    fn index(&self, id: u32) -> &Queue {
        &self.slots[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Queues {
    fn index_mut(&mut self, id: u32) -> &mut Queue {
        &mut self.slots[id as usize]
    }
}

impl Queues {
    pub(crate) fn new(capacity: usize, seed: u64) -> Queues {
        let vacant = || Queue {
            owner: Owner::Nobody,
            flow_set: 0,
            instance: 0,
            key: FlowId::NONE,
            flow: FlowId::NONE,
            row: Row::EMPTY,
            length: 0,
            bytes: 0,
            head: 0,
            counters: Counters::default(),
            aqm: aqm::State::None,
            share: Share::new(1, 0),
            dynamic: false,
            idle_since: 0,
            idle: false,
            idle_before: NONE,
            idle_after: NONE,
            hash: 0,
            chain: NONE,
        };
        Queues {
            slots: (0..capacity).map(|_| vacant()).collect(),
            free: (0..capacity as u32).rev().collect(),
            heads: vec![NONE; (capacity * 2).next_power_of_two()],
            ranks: Ranks::new(capacity),
            idle_first: NONE,
            idle_last: NONE,
            seed,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Numbers of all queues there are.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots.len() as u32).filter(|&id| self[id].owner != Owner::Nobody)
    }

    fn hash(&self, owner: Owner, instance: u32, key: &FlowId) -> u64 {
        let salt = match owner {
            Owner::Nobody => 0,
            Owner::FlowSet(id) => u64::from(id) << 1,
            Owner::Flow(id) => u64::from(id) << 1 | 1,
        };
        key.hash(self.seed ^ salt ^ u64::from(instance) << 33)
    }

    pub(crate) fn find(&self, owner: Owner, instance: u32, key: &FlowId) -> Option<u32> {
        let hash = self.hash(owner, instance, key);
        let mut at = self.heads[hash as usize & (self.heads.len() - 1)];
        while at != NONE {
            let queue = &self[at];
            if queue.hash == hash && queue.owner == owner && queue.instance == instance && queue.key == *key {
                return Some(at);
            }
            at = queue.chain;
        }
        None
    }

    /// A new, empty queue; None when the slab is full.
    pub(crate) fn create(
        &mut self,
        owner: Owner,
        flow_set: u32,
        instance: u32,
        key: &FlowId,
        share: Share,
    ) -> Option<u32> {
        let id = self.free.pop()?;
        let hash = self.hash(owner, instance, key);
        let head = hash as usize & (self.heads.len() - 1);
        let chain = std::mem::replace(&mut self.heads[head], id);
        let queue = &mut self[id];
        queue.owner = owner;
        queue.flow_set = flow_set;
        queue.instance = instance;
        queue.key = *key;
        queue.flow = *key;
        queue.row = Row::EMPTY;
        queue.length = 0;
        queue.bytes = 0;
        queue.head = 0;
        queue.counters = Counters::default();
        queue.aqm = aqm::State::None;
        queue.share = share;
        queue.dynamic = false;
        queue.hash = hash;
        queue.chain = chain;
        Some(id)
    }

    /// Ends a queue that has no packets and that its scheduler has forgotten.
    pub(crate) fn destroy(&mut self, id: u32) {
        debug_assert!(self[id].row.is_empty() && !self[id].share.known);
        self.wake(id);
        let (hash, chain) = (self[id].hash, self[id].chain);
        let head = hash as usize & (self.heads.len() - 1);
        if self.heads[head] == id {
            self.heads[head] = chain;
        } else {
            let mut at = self.heads[head];
            while self[at].chain != id {
                at = self[at].chain;
            }
            self[at].chain = chain;
        }
        self[id].owner = Owner::Nobody;
        self.free.push(id);
    }

    /// The oldest of the idle queues.
    pub(crate) fn idle_first(&self) -> Option<u32> {
        (self.idle_first != NONE).then_some(self.idle_first)
    }

    /// Puts an empty dynamic queue at the end of the idle ones.
    pub(crate) fn rest(&mut self, id: u32, now: Nanos) {
        self.wake(id);
        if !self[id].dynamic {
            return;
        }
        let last = std::mem::replace(&mut self.idle_last, id);
        match last {
            NONE => self.idle_first = id,
            last => self[last].idle_after = id,
        }
        let queue = &mut self[id];
        queue.idle = true;
        queue.idle_since = now;
        queue.idle_before = last;
        queue.idle_after = NONE;
    }

    /// Takes a queue out of the idle ones, if it is there.
    pub(crate) fn wake(&mut self, id: u32) {
        let queue = &mut self[id];
        if !std::mem::replace(&mut queue.idle, false) {
            return;
        }
        let (before, after) = (queue.idle_before, queue.idle_after);
        match before {
            NONE => self.idle_first = after,
            before => self[before].idle_after = after,
        }
        match after {
            NONE => self.idle_last = before,
            after => self[after].idle_before = before,
        }
    }
}
