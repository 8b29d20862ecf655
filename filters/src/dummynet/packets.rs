#![forbid(unsafe_code)]
//! The packets that the shaper holds: a slab of fixed size, and rows of its slots. Its size is the shaper's reserve of packets.

use super::rank::NONE;
use ferrule_dataplane::clock::Nanos;

#[derive(Debug)]
struct Slot<T> {
    payload: Option<T>,
    tag: u64,
    time: Nanos,
    length: u32,
    next: u32,
    lost: bool,
}

/// First in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    head: u32,
    tail: u32,
}

impl Row {
    pub(crate) const EMPTY: Row = Row { head: NONE, tail: NONE };

    pub(crate) fn is_empty(self) -> bool {
        self.head == NONE
    }

    pub(crate) fn first(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

/// The slab.
#[derive(Debug)]
pub(crate) struct Packets<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    held: usize,
}

impl<T> Packets<T> {
    pub(crate) fn new(capacity: usize) -> Packets<T> {
        let next = |i: usize| if i + 1 < capacity { i as u32 + 1 } else { NONE };
        let slots = (0..capacity)
            .map(|i| Slot { payload: None, tag: 0, time: 0, length: 0, next: next(i), lost: false })
            .collect();
        Packets { slots, free: if capacity == 0 { NONE } else { 0 }, held: 0 }
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Keeps a packet that came at `time`; gives it back when the slab is full.
    pub(crate) fn keep(&mut self, payload: T, length: u32, tag: u64, time: Nanos) -> Result<u32, T> {
        let id = self.free;
        let Some(slot) = self.slots.get_mut(id as usize) else { return Err(payload) };
        self.free = slot.next;
        *slot = Slot { payload: Some(payload), tag, time, length, next: NONE, lost: false };
        self.held += 1;
        Ok(id)
    }

    /// Gives a packet up; its slot is free again.
    pub(crate) fn release(&mut self, id: u32) -> Option<(T, u64)> {
        let slot = &mut self.slots[id as usize];
        let payload = slot.payload.take()?;
        slot.next = self.free;
        self.free = id;
        self.held -= 1;
        Some((payload, slot.tag))
    }

    /// Bytes.
    pub(crate) fn length(&self, id: u32) -> u32 {
        self.slots[id as usize].length
    }

    /// When it came, or when it is due once it is in a delay line.
    pub(crate) fn time(&self, id: u32) -> Nanos {
        self.slots[id as usize].time
    }

    pub(crate) fn set_due(&mut self, id: u32, due: Nanos, lost: bool) {
        let slot = &mut self.slots[id as usize];
        slot.time = due;
        slot.lost = lost;
    }

    /// Whether the link's profile loses it.
    pub(crate) fn is_lost(&self, id: u32) -> bool {
        self.slots[id as usize].lost
    }

    pub(crate) fn payload(&mut self, id: u32) -> Option<&mut T> {
        self.slots[id as usize].payload.as_mut()
    }

    pub(crate) fn append(&mut self, row: &mut Row, id: u32) {
        match row.tail {
            NONE => row.head = id,
            tail => self.slots[tail as usize].next = id,
        }
        row.tail = id;
    }

    pub(crate) fn take_first(&mut self, row: &mut Row) -> Option<u32> {
        let id = row.first()?;
        row.head = std::mem::replace(&mut self.slots[id as usize].next, NONE);
        if row.head == NONE {
            row.tail = NONE;
        }
        Some(id)
    }
}
