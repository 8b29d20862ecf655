#![forbid(unsafe_code)]
//! IPv6 longest-prefix match: a direct table, groups below it, then compressed nodes.
//!
//! - The top 16 bits index a table of 65,536 entries. An entry is an answer, or points to a *group* of 256 entries for
//!   bits 16-23: up to here everything is as in the IPv4 table.
//! - Below /24 an entry may point to a *node*. A node stands at a level (24, 32, .. 120), that is a whole number of bytes
//!   of the address, and decides by the next byte. Levels where nothing forks are skipped: the node holds the bits of
//!   its path as a key, and an address that differs gets the node's *outside* answer. So a table of a few routes takes
//!   three loads for any length, and a full one takes one node for each byte at which routes of the real Internet fork.
//! - The 256 slots of a node are mostly equal to their neighbour. A *narrow* node stores runs: a bitmap marks where a run
//!   starts, and the number of marks up to a slot is the number of its entry. A *wide* node has an entry for each slot,
//!   which is faster and takes up to sixteen times the memory: nodes with many runs are wide, and all are while there
//!   are few (`WIDE_NODES`), so that a small table answers fastest and a full one stays small.
//!
//! Layout of a node, in words of 64 bits, from the start of a cache line:
//!
//! | narrow | wide | holds |
//! |---|---|---|
//! | 0 | 0 | key: the bits of the address's half above the node's level |
//! | 1 | 1 | outside answer |
//! | 2-9 | | bitmap, 32 slots in the low half of each word; high half: offset of the entry before that of its first mark |
//! | 10- | 2-257 | entries |
//!
//! So that the key fits a word, a skip never crosses bit 64: nodes above it look at the high half, those below at the low.
//!
//! Entry, 64 bits. Answer: [`AdjacencyId`] (bits 0-23), length of the prefix that it comes from (24-31). Pointer: bit 63,
//! "low half" (62), shift that brings the node's byte down (56-61), "wide" (55), offset of the first word (0-31).
//!
//! [`Fib6Writer`], of which there is one, changes answers in place where the runs stay as they are; otherwise it writes a
//! new node and publishes it by one store into the entry above it. Either way an address meets the old or the new answer.
//! Replaced nodes are reused once every worker was quiescent.

mod arena;
mod node;
#[cfg(test)]
mod tests;
mod writer;

pub use arena::NoNodeLeft;
pub use writer::Fib6Writer;

use super::adjacency::AdjacencyId;
use super::memory::zeroed_u64;
use crate::quiesce::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Entries of the direct table: one for each /16.
const ROOT_ENTRIES: usize = 1 << 16;
/// Entries of a group, and slots of a node.
const SLOTS: usize = 256;
/// Words of the arena in which groups and nodes lie: 128 MiB of address space, backed by memory as far as it is used.
const ARENA_WORDS: usize = 1 << 24;
/// Words of a cache line.
const LINE_WORDS: usize = 8;
const ARENA_MASK: usize = ARENA_WORDS - 1;

const POINTER_BIT: u64 = 1 << 63;
const LOW_HALF_BIT: u64 = 1 << 62;
const SHIFT_SHIFT: u32 = 56;
const WIDE_BIT: u64 = 1 << 55;
const LENGTH_SHIFT: u32 = 24;
const VALUE_MASK: u64 = (1 << LENGTH_SHIFT) - 1;

const NODE_KEY: usize = 0;
const NODE_OUTSIDE: usize = 1;
const NODE_WIDE_ENTRIES: usize = 2;
const NODE_BITMAP: usize = 2;
const NODE_BITMAP_WORDS: usize = 8;
const NODE_ENTRIES: usize = NODE_BITMAP + NODE_BITMAP_WORDS;

/// The entry for an answer that comes from a prefix of `length` bits.
const fn answer(length: u8, id: AdjacencyId) -> u64 {
    (length as u64) << LENGTH_SHIFT | (id.0 as u64 & VALUE_MASK)
}

/// The length of the prefix that an answer comes from.
const fn length_of(answer: u64) -> u8 {
    (answer >> LENGTH_SHIFT) as u8
}

const fn is_pointer(entry: u64) -> bool {
    entry & POINTER_BIT != 0
}

/// The table that workers read.
pub struct Fib6 {
    root: Box<[AtomicU64; ROOT_ENTRIES]>,
    words: Box<[AtomicU64; ARENA_WORDS]>,
    /// Whether nodes are too many for the caches that a worker has to itself; the writer says so.
    large: AtomicBool,
}

impl Fib6 {
    /// An empty table and its only writer. Workers that read it are those of `domain`.
    pub fn new(domain: &Arc<Domain>) -> (Arc<Fib6>, Fib6Writer) {
        let fib = Arc::new(Fib6 { root: zeroed_u64(), words: zeroed_u64(), large: AtomicBool::new(false) });
        let writer = Fib6Writer::new(Arc::clone(&fib), domain);
        (fib, writer)
    }

    /// Whether look-ups of changing destinations go to distant memory, so that they are best done for a batch at a time.
    #[inline(always)]
    pub fn is_large(&self) -> bool {
        self.large.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn word(&self, offset: usize) -> u64 {
        self.words[offset & ARENA_MASK].load(Ordering::Acquire)
    }

    /// The adjacency of the longest prefix that holds `dst` (host byte order); id 0 if none does.
    #[inline(always)]
    pub fn lookup(&self, dst: u128) -> AdjacencyId {
        self.finish(self.top(dst), dst)
    }

    /// The length of the longest prefix that holds `dst` (host byte order); 0 for a default route, and where none does.
    pub fn length(&self, dst: u128) -> u8 {
        let mut entry = self.top(dst);
        while is_pointer(entry) {
            entry = self.step(entry, dst);
        }
        length_of(entry)
    }

    /// The first two loads of a look-up. Done for a whole batch ahead of [`Fib6::finish`], it brings the entries into
    /// the cache while the processor works on other packets. The value is good until the worker is quiescent.
    #[inline(always)]
    pub fn top(&self, dst: u128) -> u64 {
        let entry = self.root[(dst >> 112) as usize].load(Ordering::Acquire);
        if is_pointer(entry) { self.word(entry as u32 as usize + ((dst >> 104) & 0xff) as usize) } else { entry }
    }

    /// Asks the processor for the entry that a look-up of `dst` will load second: the root is small and stays in the cache.
    #[inline(always)]
    pub fn prefetch(&self, dst: u128) {
        let entry = self.root[(dst >> 112) as usize].load(Ordering::Acquire);
        if is_pointer(entry) {
            let at = (entry as u32 as usize + ((dst >> 104) & 0xff) as usize) & ARENA_MASK;
            crate::arena::prefetch(&self.words[at]);
        }
    }

    /// Asks for the node that an entry points to, and for its first entries; for an answer, for lines of no use.
    #[inline(always)]
    pub fn prefetch_node(&self, entry: u64) {
        crate::arena::prefetch(&self.words[entry as usize & ARENA_MASK]);
        crate::arena::prefetch(&self.words[(entry as usize + LINE_WORDS) & ARENA_MASK]);
    }

    /// The rest of a look-up: none for prefixes up to /24, else one node for each byte at which routes fork; at most 13.
    #[inline(always)]
    pub fn finish(&self, top: u64, dst: u128) -> AdjacencyId {
        let mut entry = top;
        // Ends: each node stands at a deeper level than the one before.
        while is_pointer(entry) {
            entry = self.step(entry, dst);
        }
        Self::answer(entry)
    }

    /// [`Fib6::finish`] for a batch: each of `entries`, which come from [`Fib6::top`], becomes one that [`Fib6::answer`]
    /// understands. `dst` gives the destination of each. All addresses go down one node at a time, so that the loads of
    /// different packets overlap and no branch depends on the address: with a full table and changing destinations this
    /// takes a fraction of the time of [`Fib6::finish`] for one after the other.
    #[inline(always)]
    pub fn finish_batch(&self, entries: &mut [u64], dst: impl Fn(usize) -> u128) {
        for (number, chunk) in entries.chunks_mut(SLOTS).enumerate() {
            let mut pending = [0_u8; SLOTS];
            let mut left = 0;
            for (index, entry) in chunk.iter_mut().enumerate() {
                // Small tables are finished here, so the list that follows costs them nothing.
                if is_pointer(*entry) {
                    *entry = self.step(*entry, dst(number * SLOTS + index));
                    self.prefetch_node(*entry);
                    pending[left & (SLOTS - 1)] = index as u8;
                    left += usize::from(is_pointer(*entry));
                }
            }
            // Ends: each node stands at a deeper level than the one before.
            while left > 0 {
                let mut kept = 0;
                for place in 0..left {
                    let index = pending[place & (SLOTS - 1)];
                    if let Some(entry) = chunk.get_mut(usize::from(index)) {
                        *entry = self.step(*entry, dst(number * SLOTS + usize::from(index)));
                        self.prefetch_node(*entry);
                        pending[kept & (SLOTS - 1)] = index;
                        kept += usize::from(is_pointer(*entry));
                    }
                }
                left = kept;
            }
        }
    }

    /// The adjacency that a finished entry leads to.
    #[inline(always)]
    pub fn answer(entry: u64) -> AdjacencyId {
        AdjacencyId((entry & VALUE_MASK) as u32)
    }

    /// The entry that the node at `pointer` has for `dst`.
    #[inline(always)]
    fn step(&self, pointer: u64, dst: u128) -> u64 {
        let node = pointer as u32 as usize;
        let half = if pointer & LOW_HALF_BIT != 0 { dst as u64 } else { (dst >> 64) as u64 };
        let path = half >> ((pointer >> SHIFT_SHIFT) & 63);
        let slot = (path & 0xff) as usize;
        let inside = if pointer & WIDE_BIT != 0 {
            self.word(node + NODE_WIDE_ENTRIES + slot)
        } else {
            let word = self.word(node + NODE_BITMAP + (slot >> 5));
            // The marks up to and with the slot's own, shifted so that the later ones fall off the top.
            let marks = (word as u32) << (!slot & 31);
            self.word((word >> 32) as usize + marks.count_ones() as usize)
        };
        let outside = self.word(node + NODE_OUTSIDE);
        std::hint::select_unpredictable(self.word(node + NODE_KEY) == path >> 8, inside, outside)
    }
}
