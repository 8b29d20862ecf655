#![forbid(unsafe_code)]
//! Where groups and nodes lie: blocks of whole cache lines in one array that never moves. Control thread only.

use super::{ARENA_WORDS, Fib6};
use crate::quiesce::{Deferred, Domain};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a cache line.
const LINE_WORDS: usize = 8;
/// Lines of the largest block: a node of 256 entries.
const MOST_LINES: usize = (super::NODE_ENTRIES + super::SLOTS).div_ceil(LINE_WORDS);
/// Words that one update may take at most: a group, and a node at each level for the copied path and the new one.
const UPDATE_WORDS: usize = 32 * MOST_LINES * LINE_WORDS;
/// Words kept back from insertions so that withdrawals, which copy nodes too, never find the arena full while workers
/// become quiescent now and then.
const RESERVE_WORDS: usize = 64 * UPDATE_WORDS;

/// The arena of a [`super::Fib6`] is used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoNodeLeft;

/// A block: its first word and its length in cache lines.
#[derive(Clone, Copy)]
struct Block {
    offset: u32,
    lines: u8,
}

pub(super) struct Arena {
    fib: Arc<Fib6>,
    /// The first word of the first cache line: the allocator does not align such arrays.
    first: usize,
    /// The first word never used so far.
    next: usize,
    /// Blocks of each length that may be used again.
    free: Vec<Vec<u32>>,
    /// Blocks that this update replaced but has not unlinked yet.
    replaced: Vec<Block>,
    /// Blocks that workers may still be reading.
    retired: Deferred<Block>,
    /// Cache lines in blocks that the table points to.
    lines_in_use: usize,
}

impl Arena {
    pub(super) fn new(fib: Arc<Fib6>, domain: &Arc<Domain>) -> Arena {
        let first = (64 - fib.words.as_ptr().addr() % 64) / 8 % LINE_WORDS;
        Arena {
            fib,
            first,
            next: first,
            free: vec![Vec::new(); MOST_LINES + 1],
            replaced: Vec::new(),
            retired: Deferred::new(Arc::clone(domain)),
            lines_in_use: 0,
        }
    }

    /// Fails unless one more update surely finds the blocks that it may need. Updates of prefixes that are present may use
    /// the reserve.
    pub(super) fn check_room(&mut self, present: bool) -> Result<(), NoNodeLeft> {
        let Arena { retired, free, .. } = self;
        retired.reclaim(|block| free[usize::from(block.lines)].push(block.offset));
        let wanted = if present { UPDATE_WORDS } else { RESERVE_WORDS };
        if ARENA_WORDS - self.next >= wanted { Ok(()) } else { Err(NoNodeLeft) }
    }

    /// A block of at least `words` words; their contents are those of their last use.
    pub(super) fn allocate(&mut self, words: usize) -> u32 {
        let lines = words.div_ceil(LINE_WORDS);
        self.lines_in_use += lines;
        if let Some(offset) = self.free[lines].pop() {
            return offset;
        }
        let offset = self.next;
        self.next += lines * LINE_WORDS;
        assert!(self.next <= ARENA_WORDS, "check_room keeps enough for one update");
        offset as u32
    }

    /// Notes that the block is replaced by this update; see [`Arena::retire`].
    pub(super) fn replace(&mut self, offset: u32, words: usize) {
        self.replaced.push(Block { offset, lines: words.div_ceil(LINE_WORDS) as u8 });
    }

    /// Puts the replaced blocks in line for reuse: to be called when the update is published.
    pub(super) fn retire(&mut self) {
        self.lines_in_use -= self.replaced.iter().map(|block| usize::from(block.lines)).sum::<usize>();
        self.retired.retire(self.replaced.drain(..));
    }

    /// The word at `offset`.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        &self.fib.words[offset]
    }

    /// Reads a word; the control thread is the only writer.
    pub(super) fn load(&self, offset: usize) -> u64 {
        self.fib.words[offset].load(Ordering::Relaxed)
    }

    /// Cache lines in blocks that the table points to.
    pub(super) fn lines_in_use(&self) -> usize {
        self.lines_in_use
    }

    /// Bytes of memory behind the arena and its records.
    pub(super) fn memory(&self) -> usize {
        (self.next - self.first) * 8
            + self.free.iter().map(|blocks| blocks.capacity() * 4).sum::<usize>()
            + self.retired.memory()
    }

    /// Words that were ever part of a block.
    #[cfg(test)]
    pub(super) fn words_ever_used(&self) -> usize {
        self.next - self.first
    }
}
