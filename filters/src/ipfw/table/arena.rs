#![forbid(unsafe_code)]
//! The memory of all tables: one array of words that never moves, given out in cache lines.
//!
//! Workers read it without locks; the control side writes a block while nobody points to it, publishes it by one store, and after
//! another store has unlinked it uses it again once every worker was quiescent ([`ferrule_dataplane::quiesce`]). Pages that no table
//! ever used are not backed by memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrule_dataplane::arena::{advise_huge_pages, prefetch};
use ferrule_dataplane::quiesce::{Deferred, Domain};
use zerocopy::FromZeros;

/// Words of a cache line.
pub(super) const LINE: usize = 8;
/// Lines of the arena: 512 MiB of address space, enough for some ten million prefixes.
const LINES: usize = 1 << 23;
/// Blocks of up to so many lines have a free list of their own length, longer ones are rounded up to a power of two.
const EXACT: usize = 32;

/// The words, as workers read them.
pub(super) struct Arena {
    words: Box<[AtomicU64]>,
    /// The first word of the first cache line: the allocator does not align such arrays.
    first: usize,
}

impl Arena {
    /// # Panics
    /// If there is no address space for it.
    fn new() -> Arena {
        let words = <[AtomicU64]>::new_box_zeroed_with_elems((LINES + 1) * LINE)
            .unwrap_or_else(|_| panic!("no address space for look-up tables: raise ulimit -v"));
        advise_huge_pages(&words);
        let first = (64 - words.as_ptr().addr() % 64) / 8 % LINE;
        Arena { words, first }
    }

    /// A word by its number: line times [`LINE`] plus the place in the line.
    #[inline(always)]
    pub(super) fn word(&self, number: usize) -> u64 {
        self.words[self.first + number].load(Ordering::Acquire)
    }

    /// The words of a line.
    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> &[AtomicU64; LINE] {
        let start = self.first + line * LINE;
        match self.words[start..].first_chunk() {
            Some(line) => line,
            None => unreachable!("a line lies within the arena"),
        }
    }

    /// Asks the processor for a word.
    #[inline(always)]
    pub(super) fn prefetch(&self, number: usize) {
        if let Some(word) = self.words.get(self.first + number) {
            prefetch(word);
        }
    }
}

/// The arena is used up, or all that is free is still being waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoRoom;

/// A block: its first line and its length in lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) line: u32,
    pub(super) lines: u32,
}

/// Gives out blocks. Control side.
pub(super) struct Allocator {
    arena: Arc<Arena>,
    /// The first line never used.
    next: usize,
    free: Vec<Vec<u32>>,
    retired: Deferred<Block>,
    in_use: usize,
}

impl Allocator {
    /// Line 0 is never given out: it stands for "none".
    pub(super) fn new(domain: &Arc<Domain>) -> Allocator {
        Allocator {
            arena: Arc::new(Arena::new()),
            next: 1,
            free: vec![Vec::new(); EXACT + 32],
            retired: Deferred::new(Arc::clone(domain)),
            in_use: 0,
        }
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Lines in use.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// The number of the free list for a length, and the length of its blocks.
    fn class(lines: usize) -> (usize, usize) {
        if lines <= EXACT {
            (lines, lines)
        } else {
            let rounded = lines.next_power_of_two();
            (EXACT + rounded.trailing_zeros() as usize - 5, rounded)
        }
    }

    /// A block of at least `lines` lines with anything in it, which nobody points to.
    pub(super) fn allocate(&mut self, lines: usize) -> Result<Block, NoRoom> {
        let lines = lines.max(1);
        let (class, length) = Self::class(lines);
        if self.free[class].is_empty() {
            let Allocator { retired, free, .. } = self;
            retired.reclaim(|block| free[Self::class(block.lines as usize).0].push(block.line));
        }
        let line = match self.free[class].pop() {
            Some(line) => line,
            None if self.next + length <= LINES => {
                self.next += length;
                (self.next - length) as u32
            }
            None => return Err(NoRoom),
        };
        self.in_use += length;
        Ok(Block { line, lines: lines as u32 })
    }

    /// Takes back a block that was unlinked just now.
    pub(super) fn retire(&mut self, block: Block) {
        self.in_use -= Self::class(block.lines as usize).1;
        self.retired.retire([block]);
    }

    /// Writes a word of a block that nobody reads yet, or publishes an answer in one that is read.
    pub(super) fn store(&self, number: usize, word: u64) {
        self.arena.words[self.arena.first + number].store(word, Ordering::Release);
    }

    pub(super) fn load(&self, number: usize) -> u64 {
        self.arena.words[self.arena.first + number].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again_when_workers_were_quiescent() {
        let domain = Domain::new(1);
        let mut worker = domain.register().unwrap();
        let mut allocator = Allocator::new(&domain);
        let first = allocator.allocate(3).unwrap();
        assert_eq!(allocator.arena().line(first.line as usize).as_ptr().addr() % 64, 0);
        let large = allocator.allocate(100).unwrap();
        assert!(large.line >= first.line + 3);
        assert_eq!(allocator.in_use(), 3 + 128);
        allocator.retire(first);
        assert_ne!(allocator.allocate(3).unwrap().line, first.line);
        worker.quiescent();
        assert_eq!(allocator.allocate(3).unwrap().line, first.line);
        allocator.retire(large);
        worker.quiescent();
        assert_eq!(allocator.allocate(128).unwrap().line, large.line);
    }
}
