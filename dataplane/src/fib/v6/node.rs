#![forbid(unsafe_code)]
//! An update, and a node in the open: what the writer works with before it is words in the arena.

use super::{LOW_HALF_BIT, NODE_BITMAP_WORDS, SHIFT_SHIFT, SLOTS, WIDE_BIT, is_pointer, length_of};
use std::ops::Range;

/// Bits of an address that one word holds.
pub(super) const HALF: u8 = 64;

/// What happens to the answers in the range of a prefix.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// The prefix gets this answer.
    Insert(u64),
    /// The prefix goes; the answer is that of the next shorter one.
    Remove(u64),
}

/// One update.
#[derive(Clone, Copy)]
pub(super) struct Update {
    pub(super) address: u128,
    pub(super) length: u8,
    pub(super) change: Change,
}

impl Update {
    /// The new answer in the place of `old`, inside the prefix.
    pub(super) fn apply(&self, old: u64) -> u64 {
        match self.change {
            Change::Insert(new) if length_of(old) <= self.length => new,
            Change::Remove(cover) if length_of(old) == self.length => cover,
            _ => old,
        }
    }

    pub(super) fn removes(&self) -> bool {
        matches!(self.change, Change::Remove(_))
    }

    /// The slots at `level` that the prefix covers, if it ends at one of the eight bits after the level.
    pub(super) fn slots(&self, level: u8) -> Range<usize> {
        let first = slot_of(self.address, level);
        first..first + (1 << (level + 8 - self.length))
    }

    /// The deepest level at which the prefix still needs a decision.
    pub(super) fn last_level(&self) -> u8 {
        (self.length - 1) / 8 * 8
    }
}

/// The byte of `address` after `level` bits.
pub(super) fn slot_of(address: u128, level: u8) -> usize {
    (address >> (120 - level)) as usize & 0xff
}

/// The marks of a node, 32 slots in each word.
pub(super) type Bitmap = [u32; NODE_BITMAP_WORDS];

/// A node in the open: what [`Fib6Writer::write`] makes a block of.
pub(super) struct Node {
    pub(super) level: u8,
    pub(super) key: u64,
    pub(super) outside: u64,
    pub(super) slots: [u64; SLOTS],
}

impl Node {
    /// A node on the way to `address` whose slots all hold `outside`.
    pub(super) fn new(address: u128, level: u8, outside: u64) -> Node {
        let key = if level < HALF {
            (address >> 64) as u64 >> (HALF - level)
        } else {
            (address as u64).checked_shr(u32::from(2 * HALF - level)).unwrap_or(0)
        };
        Node { level, key, outside, slots: [outside; SLOTS] }
    }

    /// A mark for each slot that starts a run.
    pub(super) fn bitmap(&self) -> Bitmap {
        let mut bitmap = [0; NODE_BITMAP_WORDS];
        for (slot, entry) in self.slots.iter().enumerate() {
            if slot == 0 || *entry != self.slots[slot - 1] {
                bitmap[slot / 32] |= 1 << (slot % 32);
            }
        }
        bitmap
    }

    /// The entry that every slot holds, if it is one answer and no prefix ends inside the node.
    pub(super) fn uniform(&self) -> Option<u64> {
        let first = self.slots[0];
        let whole = !is_pointer(first) && length_of(first) <= self.level;
        (whole && self.slots.iter().all(|entry| *entry == first)).then_some(first)
    }

    /// The only pointer and the one answer around it, if that is all and no prefix ends inside the node.
    pub(super) fn single_pointer(&self) -> Option<(u64, u64)> {
        let (mut pointer, mut around) = (None, None);
        for &entry in &self.slots {
            if is_pointer(entry) {
                if pointer.replace(entry).is_some() {
                    return None;
                }
            } else if *around.get_or_insert(entry) != entry {
                return None;
            }
        }
        Some((pointer?, around?)).filter(|(_, around)| length_of(*around) <= self.level)
    }
}

/// The level of the node that `pointer` leads to.
pub(super) fn level_of(pointer: u64) -> u8 {
    let half = if pointer & LOW_HALF_BIT != 0 { HALF } else { 0 };
    half + 56 - (pointer >> SHIFT_SHIFT & 63) as u8
}

pub(super) fn is_wide(pointer: u64) -> bool {
    pointer & WIDE_BIT != 0
}

pub(super) fn offset_of(pointer: u64) -> usize {
    pointer as u32 as usize
}

/// The entries of a node: the value at each mark of its bitmap.
pub(super) fn runs(node: &Node, bitmap: &Bitmap) -> impl Iterator<Item = u64> {
    node.slots.iter().enumerate().filter(|(slot, _)| bitmap[slot / 32] >> (slot % 32) & 1 != 0).map(|(_, entry)| *entry)
}
