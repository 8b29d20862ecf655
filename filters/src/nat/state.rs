#![forbid(unsafe_code)]
//! States of translated flows: a preallocated slab, one hash index for each direction, and one queue for each life time.
//!
//! A state is one cache line. Nothing is allocated after the table is made; a full table refuses. Time is in seconds, as libalias keeps it.

use ferrule_dataplane::packet::hash::{self, HashSeed};

use super::life::{self, Life, TcpState};

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// One end of a flow against the other, as one side of the translation sees it. Addresses and ports are host-order numbers. ICMP echoes have
/// their identifier as both ports, protocols without ports have 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Our end: the inside host before translation, the alias address after it.
    pub near: u32,
    /// The other end.
    pub far: u32,
    /// Port of our end.
    pub near_port: u16,
    /// Port of the other end.
    pub far_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

impl Key {
    /// The same flow with the ends exchanged.
    pub fn reversed(self) -> Key {
        let Key { near, far, near_port, far_port, protocol } = self;
        Key { near: far, far: near, near_port: far_port, far_port: near_port, protocol }
    }

    /// The flow hash of packets of this flow, as `packet::hash` computes it for whole packets.
    pub fn hash(&self, seed: HashSeed) -> u32 {
        hash::v4(seed, self.near, self.far, self.protocol, self.near_port, self.far_port)
    }
}

/// One translated flow.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct State {
    pub packets: u64,
    pub bytes: u64,
    pub inside: u32,
    pub alias: u32,
    pub remote: u32,
    pub inside_port: u16,
    pub alias_port: u16,
    pub remote_port: u16,
    pub protocol: u8,
    pub tcp: TcpState,
    pub life: Life,
    pub flags: u8,
    /// Second of the last packet.
    pub used: u32,
    /// Second since which it waits in its queue.
    queued: u32,
    next: u32,
    previous: u32,
    next_out: u32,
    next_in: u32,
}

const _: () = assert!(size_of::<State>() == 64);

/// The slot is in use.
const IN_USE: u8 = 1;
/// The state is found by its alias side; not so once a newer one took over the same tuple.
pub(super) const INCOMING: u8 = 2;
/// Made by a packet from outside that nobody asked for.
pub(super) const UNSOLICITED: u8 = 4;

impl State {
    const EMPTY: State = State {
        packets: 0,
        bytes: 0,
        inside: 0,
        alias: 0,
        remote: 0,
        inside_port: 0,
        alias_port: 0,
        remote_port: 0,
        protocol: 0,
        tcp: TcpState::NEW,
        life: Life::Minute,
        flags: 0,
        used: 0,
        queued: 0,
        next: NONE,
        previous: NONE,
        next_out: NONE,
        next_in: NONE,
    };

    /// A state that is yet to be inserted: `inside` as the inside host sees the flow, `alias` as the outside does.
    pub fn new(inside: Key, alias: u32, alias_port: u16, now: u32) -> State {
        State {
            inside: inside.near,
            alias,
            remote: inside.far,
            inside_port: inside.near_port,
            alias_port,
            remote_port: inside.far_port,
            protocol: inside.protocol,
            used: now,
            queued: now,
            life: life::initial(inside.protocol),
            ..State::EMPTY
        }
    }

    /// The same, made by a packet that nobody asked for.
    pub fn unsolicited(self) -> State {
        State { flags: self.flags | UNSOLICITED, ..self }
    }

    /// The flow as the inside host sees it.
    pub fn inside_key(&self) -> Key {
        let far_port = if self.protocol == 1 { self.inside_port } else { self.remote_port };
        Key { near: self.inside, far: self.remote, near_port: self.inside_port, far_port, protocol: self.protocol }
    }

    /// The flow as the outside sees it.
    pub fn wire_key(&self) -> Key {
        let far_port = if self.protocol == 1 { self.alias_port } else { self.remote_port };
        Key { near: self.alias, far: self.remote, near_port: self.alias_port, far_port, protocol: self.protocol }
    }

    /// Whether it has gone unused for longer than it may.
    fn is_over(&self, now: u32) -> bool {
        now.wrapping_sub(self.used) > self.life.seconds()
    }
}

#[derive(Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

/// Which index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Out,
    In,
}

/// All states of one instance on one worker.
pub(super) struct StateTable {
    states: Box<[State]>,
    out: Box<[u32]>,
    inward: Box<[u32]>,
    queues: [Queue; Life::COUNT],
    free: u32,
    len: usize,
    unsolicited: usize,
    turn: usize,
    seed: HashSeed,
}

impl StateTable {
    /// A table for `max` states (at least 1); all its memory is taken now.
    pub fn new(max: usize, seed: HashSeed) -> StateTable {
        let max = max.clamp(1, NONE as usize - 1);
        let mut states = vec![State::EMPTY; max].into_boxed_slice();
        for (i, state) in states.iter_mut().enumerate().take(max - 1) {
            state.next = i as u32 + 1;
        }
        let buckets = vec![NONE; max.next_power_of_two()].into_boxed_slice();
        StateTable {
            states,
            out: buckets.clone(),
            inward: buckets,
            queues: [Queue { head: NONE, tail: NONE }; Life::COUNT],
            free: 0,
            len: 0,
            unsolicited: 0,
            turn: 0,
            seed,
        }
    }

    /// States in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// States made by packets that nobody asked for.
    pub fn unsolicited(&self) -> usize {
        self.unsolicited
    }

    /// Most states.
    pub fn capacity(&self) -> usize {
        self.states.len()
    }

    /// Bytes of memory it has taken.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.states) + size_of_val(&*self.out) + size_of_val(&*self.inward)
    }

    /// Every state.
    pub fn iter(&self) -> impl Iterator<Item = &State> {
        self.states.iter().filter(|s| s.flags & IN_USE != 0)
    }

    /// The state in a slot that [`StateTable::find_out`], [`StateTable::find_in`] or [`StateTable::insert`] gave.
    pub fn get(&mut self, slot: u32) -> Option<&mut State> {
        self.states.get_mut(slot as usize)
    }

    /// The state of a flow as the inside host sees it.
    pub fn find_out(&self, key: &Key) -> Option<u32> {
        self.find(Side::Out, key)
    }

    /// The state of a flow as the outside sees it.
    pub fn find_in(&self, key: &Key) -> Option<u32> {
        self.find(Side::In, key)
    }

    /// Whether the state in the slot is past its time.
    pub fn is_over(&self, slot: u32, now: u32) -> bool {
        self.states.get(slot as usize).is_none_or(|s| s.is_over(now))
    }

    fn bucket(&self, key: &Key) -> usize {
        key.hash(self.seed) as usize & (self.out.len() - 1)
    }

    fn key(state: &State, side: Side) -> Key {
        if side == Side::Out { state.inside_key() } else { state.wire_key() }
    }

    fn find(&self, side: Side, key: &Key) -> Option<u32> {
        let heads = if side == Side::Out { &self.out } else { &self.inward };
        let mut at = heads[self.bucket(key)];
        while let Some(state) = self.states.get(at as usize) {
            if StateTable::key(state, side) == *key {
                return Some(at);
            }
            at = if side == Side::Out { state.next_out } else { state.next_in };
        }
        None
    }

    /// Puts a state in. One that had the same tuple outside gives it up: the newest is found. None where the table is full.
    pub fn insert(&mut self, state: State) -> Option<u32> {
        let slot = self.free;
        let next_free = self.states.get(slot as usize)?.next;
        if let Some(older) = self.find_in(&state.wire_key()) {
            self.unlink(Side::In, older);
            self.states[older as usize].flags &= !INCOMING;
        }
        self.free = next_free;
        self.len += 1;
        self.unsolicited += usize::from(state.flags & UNSOLICITED != 0);
        self.states[slot as usize] = State { flags: state.flags | IN_USE | INCOMING, ..state };
        self.link(Side::Out, slot);
        self.link(Side::In, slot);
        self.enqueue(slot);
        Some(slot)
    }

    /// Takes a state out and gives it back.
    pub fn remove(&mut self, slot: u32) -> Option<State> {
        let state = *self.states.get(slot as usize).filter(|s| s.flags & IN_USE != 0)?;
        self.unlink(Side::Out, slot);
        if state.flags & INCOMING != 0 {
            self.unlink(Side::In, slot);
        }
        self.dequeue(slot);
        self.states[slot as usize] = State { next: self.free, ..State::EMPTY };
        self.free = slot;
        self.len -= 1;
        self.unsolicited -= usize::from(state.flags & UNSOLICITED != 0);
        Some(state)
    }

    /// Gives a state another life time.
    pub fn set_life(&mut self, slot: u32, life: Life) {
        let Some(state) = self.states.get(slot as usize) else { return };
        if state.life == life {
            return;
        }
        self.dequeue(slot);
        let state = &mut self.states[slot as usize];
        (state.life, state.queued) = (life, state.used);
        self.enqueue(slot);
    }

    /// Looks at the oldest state of one queue, the next at each call: takes it out where it is past its time, puts it to the end where it
    /// was used since.
    pub fn sweep(&mut self, now: u32) -> Option<State> {
        let queue = self.queues[self.turn];
        self.turn = (self.turn + 1) % Life::COUNT;
        let state = self.states.get(queue.head as usize)?;
        if now.wrapping_sub(state.queued) <= state.life.seconds() {
            return None;
        }
        if state.is_over(now) {
            return self.remove(queue.head);
        }
        self.dequeue(queue.head);
        let state = &mut self.states[queue.head as usize];
        state.queued = state.used;
        self.enqueue(queue.head);
        None
    }

    fn link(&mut self, side: Side, slot: u32) {
        let bucket = self.bucket(&StateTable::key(&self.states[slot as usize], side));
        let state = &mut self.states[slot as usize];
        if side == Side::Out {
            state.next_out = std::mem::replace(&mut self.out[bucket], slot);
        } else {
            state.next_in = std::mem::replace(&mut self.inward[bucket], slot);
        }
    }

    fn unlink(&mut self, side: Side, slot: u32) {
        let bucket = self.bucket(&StateTable::key(&self.states[slot as usize], side));
        let out = side == Side::Out;
        let next = |state: &State| if out { state.next_out } else { state.next_in };
        let behind = next(&self.states[slot as usize]);
        let head = if out { &mut self.out[bucket] } else { &mut self.inward[bucket] };
        if *head == slot {
            *head = behind;
            return;
        }
        let mut at = *head;
        while let Some(state) = self.states.get_mut(at as usize) {
            if next(state) == slot {
                *(if out { &mut state.next_out } else { &mut state.next_in }) = behind;
                return;
            }
            at = next(state);
        }
    }

    fn enqueue(&mut self, slot: u32) {
        let queue = &mut self.queues[self.states[slot as usize].life as usize];
        let last = std::mem::replace(&mut queue.tail, slot);
        match self.states.get_mut(last as usize) {
            Some(state) => state.next = slot,
            None => queue.head = slot,
        }
        let state = &mut self.states[slot as usize];
        (state.previous, state.next) = (last, NONE);
    }

    fn dequeue(&mut self, slot: u32) {
        let State { previous, next, life, .. } = self.states[slot as usize];
        let queue = &mut self.queues[life as usize];
        match self.states.get_mut(previous as usize) {
            Some(state) => state.next = next,
            None => queue.head = next,
        }
        match self.states.get_mut(next as usize) {
            Some(state) => state.previous = previous,
            None => queue.tail = previous,
        }
    }
}
