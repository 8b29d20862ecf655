#![forbid(unsafe_code)]
//! Exact match: a hash table of cells that is changed in place while workers read it.
//!
//! A cell is an answer and `K` words of key. A new key goes into a cell that was never used, its answer last; a changed answer is one store;
//! a deleted key keeps its cell, with an answer that says so. Cells are used again only in a new array, which is made when half of this one
//! has been used. So a reader that has found its key reads the old or the new answer, never that of another key.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::{Allocator, Arena, Block, LINE, NoRoom};

/// A cell that was never used.
const EMPTY: u64 = 0;
/// The answer of a deleted key.
const DELETED: u64 = u64::MAX;
/// Cells of the smallest array.
const FEWEST: usize = 16;

/// Words from one cell to the next: a power of two, so that a cell lies within a line.
const fn stride(key_words: usize) -> usize {
    (key_words + 1).next_power_of_two()
}

#[inline(always)]
fn hash<const K: usize>(seed: u64, key: &[u64; K]) -> u64 {
    key.iter().fold(seed, |sum, word| {
        let wide = u128::from(sum ^ word) * 0x9e37_79b9_7f4a_7c15;
        (wide >> 64) as u64 ^ wide as u64
    })
}

/// The answer for `key` in the table at `root`; 0 for none.
#[inline]
pub(super) fn lookup<const K: usize>(arena: &Arena, root: &AtomicU64, seed: u64, key: &[u64; K]) -> u32 {
    let root = root.load(Ordering::Acquire);
    if root == 0 {
        return 0;
    }
    let (base, cells) = (root as u32 as usize * LINE, 1_usize << (root >> 32));
    let mut cell = hash(seed, key) as usize & (cells - 1);
    // Ends: half of the cells at least were never used.
    for _ in 0..cells {
        let at = base + cell * stride(K);
        let answer = arena.word(at);
        if answer == EMPTY {
            return 0;
        }
        if (0..K).all(|word| arena.word(at + 1 + word) == key[word]) {
            return if answer == DELETED { 0 } else { answer as u32 };
        }
        cell = (cell + 1) & (cells - 1);
    }
    0
}

/// The one writer of a table.
pub(super) struct Exact<const K: usize> {
    keys: BTreeMap<[u64; K], u32>,
    /// Cells used, deleted ones included.
    used: usize,
    seed: u64,
}

impl<const K: usize> Exact<K> {
    pub(super) fn new(seed: u64) -> Exact<K> {
        Exact { keys: BTreeMap::new(), used: 0, seed }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn get(&self, key: &[u64; K]) -> Option<u32> {
        self.keys.get(key).copied()
    }

    /// Keys and answers in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = ([u64; K], u32)> + '_ {
        self.keys.iter().map(|(key, answer)| (*key, *answer))
    }

    /// Sets the answer of a key, or takes it out where the answer is 0.
    ///
    /// # Errors
    /// [`NoRoom`]; nothing was changed then.
    pub(super) fn change(
        &mut self,
        allocator: &mut Allocator,
        root: &AtomicU64,
        key: [u64; K],
        answer: u32,
    ) -> Result<(), NoRoom> {
        let place = root.load(Ordering::Relaxed);
        let (base, cells) = (place as u32 as usize * LINE, if place == 0 { 0 } else { 1_usize << (place >> 32) });
        let word = if answer == 0 { DELETED } else { u64::from(answer) };
        if let Some(at) = self.cell(allocator, base, cells, &key) {
            allocator.store(at, word);
            self.note(key, answer);
            return Ok(());
        }
        if answer == 0 {
            return Ok(());
        }
        if (self.used + 1) * 2 <= cells {
            self.put(allocator, base, cells, &key, answer);
            self.used += 1;
            self.note(key, answer);
            return Ok(());
        }
        let before = self.keys.get(&key).copied().unwrap_or(0);
        self.note(key, answer);
        match self.rebuild(allocator) {
            Ok(new) => {
                root.store(new, Ordering::Release);
                self.retire(allocator, place);
                Ok(())
            }
            Err(error) => {
                self.note(key, before);
                Err(error)
            }
        }
    }

    fn note(&mut self, key: [u64; K], answer: u32) {
        if answer == 0 {
            self.keys.remove(&key);
        } else {
            self.keys.insert(key, answer);
        }
    }

    /// The cell that has this key, deleted or not.
    fn cell(&self, allocator: &Allocator, base: usize, cells: usize, key: &[u64; K]) -> Option<usize> {
        let start = hash(self.seed, key) as usize;
        (0..cells)
            .map(|step| base + ((start + step) & (cells - 1)) * stride(K))
            .take_while(|&at| allocator.load(at) != EMPTY)
            .find(|&at| (0..K).all(|word| allocator.load(at + 1 + word) == key[word]))
    }

    fn put(&self, allocator: &Allocator, base: usize, cells: usize, key: &[u64; K], answer: u32) {
        let start = hash(self.seed, key) as usize;
        let free = (0..cells)
            .map(|step| base + ((start + step) & (cells - 1)) * stride(K))
            .find(|&at| allocator.load(at) == EMPTY);
        if let Some(at) = free {
            for (word, value) in key.iter().enumerate() {
                allocator.store(at + 1 + word, *value);
            }
            allocator.store(at, u64::from(answer));
        }
    }

    fn rebuild(&mut self, allocator: &mut Allocator) -> Result<u64, NoRoom> {
        let cells = (self.keys.len() * 4).next_power_of_two().max(FEWEST);
        let block = allocator.allocate(cells * stride(K) / LINE)?;
        let base = block.line as usize * LINE;
        for cell in 0..cells {
            allocator.store(base + cell * stride(K), EMPTY);
        }
        for (key, answer) in &self.keys {
            self.put(allocator, base, cells, key, *answer);
        }
        self.used = self.keys.len();
        Ok(u64::from(cells.trailing_zeros()) << 32 | u64::from(block.line))
    }

    /// Takes back the array of the table at `root`, which was unlinked.
    pub(super) fn retire(&self, allocator: &mut Allocator, root: u64) {
        if root != 0 {
            let lines = (1_usize << (root >> 32)) * stride(K) / LINE;
            allocator.retire(Block { line: root as u32, lines: lines as u32 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_dataplane::quiesce::Domain;

    #[test]
    fn keys_come_and_go_and_the_array_follows() {
        let mut allocator = Allocator::new(&Domain::new(1));
        let root = AtomicU64::new(0);
        let mut table = Exact::<5>::new(7);
        let key = |n: u64| [n, n << 60, 0, n * 3, 1];
        for n in 0..1000 {
            table.change(&mut allocator, &root, key(n), n as u32 + 1).unwrap();
        }
        for n in (0..1000).step_by(2) {
            table.change(&mut allocator, &root, key(n), 0).unwrap();
        }
        table.change(&mut allocator, &root, key(1), 5000).unwrap();
        let arena = std::sync::Arc::clone(allocator.arena());
        for n in 0..1100 {
            let expected = if n >= 1000 || n % 2 == 0 {
                0
            } else if n == 1 {
                5000
            } else {
                n as u32 + 1
            };
            assert_eq!(lookup(&arena, &root, 7, &key(n)), expected, "{n}");
        }
        assert_eq!(table.len(), 500);
        for round in 0..20_000 {
            table.change(&mut allocator, &root, key(5000 + round), 1).unwrap();
            table.change(&mut allocator, &root, key(5000 + round), 0).unwrap();
        }
        assert!(allocator.in_use() < 3000, "cells of deleted keys come back: {}", allocator.in_use());
        assert_eq!(lookup(&arena, &root, 7, &key(3)), 4);
    }
}
