#![forbid(unsafe_code)]
//! What rules hang on a packet: tags, mark, routing table, and who called whom.
//!
//! A packet has no room for them and hardly any packet has them: they lie in a ring of the worker, and the packet's `mark` names the place.
//! A place is used again after [`NOTES`] others; a packet that was held for so long has lost what hung on it.

use ferrule_dataplane::packet::Packet;

/// Places of a worker.
pub const NOTES: usize = 4096;
/// Most tags of a packet.
pub const TAGS_MAX: usize = 16;
/// Most calls that wait for their return (`IPFW_CALLSTACK_SIZE`).
pub const CALLS_MAX: usize = 16;

/// A row of at most `N` values, in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<const N: usize> {
    values: [u32; N],
    len: u8,
}

impl<const N: usize> Default for Row<N> {
    fn default() -> Self {
        Row { values: [0; N], len: 0 }
    }
}

impl<const N: usize> Row<N> {
    /// The values, oldest first.
    pub fn as_slice(&self) -> &[u32] {
        self.values.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Appends; false where it is full.
    pub fn push(&mut self, value: u32) -> bool {
        let Some(place) = self.values.get_mut(usize::from(self.len)) else { return false };
        *place = value;
        self.len += 1;
        true
    }

    /// Takes the newest.
    pub fn pop(&mut self) -> Option<u32> {
        let last = self.as_slice().last().copied()?;
        self.len -= 1;
        Some(last)
    }

    /// Takes a value out, wherever it is.
    pub fn remove(&mut self, value: u32) {
        if let Some(at) = self.as_slice().iter().position(|v| *v == value)
            && let Some(last) = self.pop()
            && let Some(place) = self.values.get_mut(at)
            && at < usize::from(self.len)
        {
            *place = last;
        }
    }
}

/// What hangs on one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// `tag`.
    pub tags: Row<TAGS_MAX>,
    /// Indices of rules that called and wait for a return.
    pub callers: Row<CALLS_MAX>,
    /// `setmark`: 0 again when a pass begins.
    pub mark: u32,
    /// `setfib`.
    pub fib: u32,
    /// `fwd`: the next hop, of the packet's family; 0 for none.
    pub next_hop: u128,
}

impl Notes {
    /// Whether nothing hangs on it that outlives a pass.
    pub fn is_empty(&self) -> bool {
        self.tags.as_slice().is_empty() && self.callers.as_slice().is_empty() && self.fib == 0 && self.next_hop == 0
    }
}

/// The places of a worker.
pub struct Ring {
    places: Box<[(u32, Notes)]>,
    next: usize,
}

impl Default for Ring {
    fn default() -> Self {
        Ring { places: vec![(u32::MAX, Notes::default()); NOTES].into(), next: 0 }
    }
}

impl Ring {
    /// What hangs on the packet.
    pub fn of(&self, packet: &Packet) -> Notes {
        if packet.mark == 0 {
            return Notes::default();
        }
        let place = self.places.get(usize::from(packet.mark) - 1);
        place.filter(|(buffer, _)| *buffer == packet.frame.buffer()).map_or_else(Notes::default, |(_, notes)| *notes)
    }

    /// Keeps what hangs on the packet from now on.
    pub fn keep(&mut self, packet: &mut Packet, notes: &Notes) {
        if packet.mark == 0 {
            if notes.is_empty() {
                return;
            }
            self.next = (self.next + 1) % NOTES;
            packet.mark = self.next as u16 + 1;
        }
        if let Some(place) = self.places.get_mut(usize::from(packet.mark) - 1) {
            *place = (packet.frame.buffer(), *notes);
        }
    }
}
