#![forbid(unsafe_code)]
//! IPv4 longest-prefix match for any number of prefixes: ranges below a direct table of /16s.
//!
//! A small table is one sorted block of ranges. A larger one has 65,536 words, one for each /16: an answer, or a block of lines. A
//! block has 2, 4, .. 8192 lines, so many that a line has about four ranges; which line an address needs follows from the
//! address. So a look-up reads one word, and one line for addresses near prefixes longer than /16, whether there are a thousand prefixes
//! or a million. A line has room for ten ranges; one that needs more has the place of a sorted block instead.
//!
//! Prefixes of /8 and shorter have 256 words of their own that count where the rest has no answer: a default route in a
//! full table changes 256 words.
//!
//! An update writes the blocks that it changes anew and publishes each by one store, so an address meets the old or the
//! new answer.
//!
//! Line, 8 words: starts of ten ranges, 15 bits in lanes of 16 (words 0, 1 and the low half of 2), relative to the line; bit 48
//! of word 2 says "more"; ten answers of 32 bits (words 3-7). A line with more has in word 3 what [`chunk`] makes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::{Allocator, Arena, Block, LINE, NoRoom};
use super::ranges::{Range, Span, ranges};

/// A table of more prefixes has the direct table.
const SMALL: usize = 128;
/// Words of the direct table.
const DIRECT: usize = 1 << 16;
/// Words for prefixes of /8 and shorter, in a block of their own.
const SHORT: usize = 256;
/// Ranges of a line.
const WAYS: usize = 10;
/// Ranges of a line that are aimed at.
const LOAD: usize = 4;

/// In the root: the direct table is there. In a direct word: a block of lines.
const POINTER: u64 = 1 << 63;
/// In word 2 of a line: more ranges than fit.
const MORE: u64 = 1 << 48;
const LANES: u64 = 0x0001_0001_0001_0001;
const TOPS: u64 = 0x8000_8000_8000_8000;

/// The place of a sorted block of ranges: one word for each, start in the high half and answer in the low.
const fn chunk(line: u32, ranges: usize) -> u64 {
    (ranges as u64) << 32 | line as u64
}

/// The place of a block of lines: an address needs line `(address & 0xffff) >> shift`.
const fn lines(line: u32, shift: u32) -> u64 {
    POINTER | (shift as u64) << 32 | line as u64
}

fn mask(length: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)
}

/// The root of a table with the direct words and the short ones at these lines.
const fn direct_root(direct: u32, short: u32) -> u64 {
    POINTER | (short as u64) << 32 | direct as u64
}

/// The first of the words for short prefixes.
#[inline(always)]
const fn short_base(root: u64) -> usize {
    ((root & !POINTER) >> 32) as usize * LINE
}

/// What a look-up of `address` in the table at `root` gives; 0 for none.
#[inline(always)]
pub(super) fn lookup(arena: &Arena, root: &AtomicU64, address: u32) -> u32 {
    let root = root.load(Ordering::Acquire);
    if root & POINTER == 0 {
        return if root == 0 { 0 } else { search(arena, root, address) };
    }
    let base = root as u32 as usize * LINE;
    let word = arena.word(base + (address >> 16) as usize);
    let answer = if word & POINTER == 0 { word as u32 } else { in_lines(arena, word, address) };
    if answer != 0 { answer } else { arena.word(short_base(root) + (address >> 24) as usize) as u32 }
}

/// Asks for the word that a look-up of `address` reads first.
#[inline(always)]
pub(super) fn prefetch_word(arena: &Arena, root: &AtomicU64, address: u32) {
    let root = root.load(Ordering::Acquire);
    if root & POINTER != 0 {
        arena.prefetch(root as u32 as usize * LINE + (address >> 16) as usize);
    }
}

/// Reads that word and asks for the line.
#[inline(always)]
pub(super) fn prefetch_line(arena: &Arena, root: &AtomicU64, address: u32) {
    let root = root.load(Ordering::Acquire);
    if root & POINTER != 0 {
        let word = arena.word(root as u32 as usize * LINE + (address >> 16) as usize);
        if word & POINTER != 0 {
            arena.prefetch(line_of(word, address) * LINE);
        }
    }
}

#[inline(always)]
fn line_of(word: u64, address: u32) -> usize {
    let shift = (word >> 32) as u32 & 31;
    word as u32 as usize + ((address & 0xffff) >> shift) as usize
}

#[inline(always)]
fn in_lines(arena: &Arena, word: u64, address: u32) -> u32 {
    let shift = (word >> 32) as u32 & 31;
    let line = arena.line(line_of(word, address));
    let load = |word: usize| line[word & (LINE - 1)].load(Ordering::Relaxed);
    let last = load(2);
    if last & MORE != 0 {
        return search(arena, load(3), address);
    }
    // In each lane the top bit stays where the start is not above the address: all starts have 15 bits.
    let offset = u64::from(address & ((1 << shift) - 1));
    let key = (offset * LANES) | TOPS;
    let reached = (((key - load(0)) & TOPS) >> 15)
        + (((key - load(1)) & TOPS) >> 15)
        + ((key.wrapping_sub(last) & 0x8000_8000) >> 15);
    // The first start is 0, so at least one is reached.
    let range = (reached.wrapping_mul(LANES) >> 48) as usize - 1;
    (load(3 + range / 2) >> (range % 2 * 32)) as u32
}

/// The answer in a sorted block of ranges, the first of which starts at or before `address`.
#[inline]
fn search(arena: &Arena, chunk: u64, address: u32) -> u32 {
    let base = chunk as u32 as usize * LINE;
    let (mut low, mut count) = (0, (chunk >> 32) as usize);
    while count > 1 {
        let half = count / 2;
        let reached = (arena.word(base + low + half) >> 32) as u32 <= address;
        low = std::hint::select_unpredictable(reached, low + half, low);
        count -= half;
    }
    arena.word(base + low) as u32
}

/// The one writer of a table. It keeps the prefixes too: sorted, 12 bytes each and what the tree needs.
pub(super) struct Writer4 {
    prefixes: BTreeMap<(u32, u8), u32>,
    /// Prefixes of each length.
    lengths: [u32; 33],
    /// Scratch, kept for its capacity.
    ranges: Vec<Range>,
}

impl Default for Writer4 {
    fn default() -> Writer4 {
        Writer4 { prefixes: BTreeMap::new(), lengths: [0; 33], ranges: Vec::new() }
    }
}

impl Writer4 {
    pub(super) fn len(&self) -> usize {
        self.prefixes.len()
    }

    pub(super) fn get(&self, address: u32, length: u8) -> Option<u32> {
        self.prefixes.get(&(address, length)).copied()
    }

    /// The prefixes in order, shorter ones first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u8, u32)> + '_ {
        self.prefixes.iter().map(|(&(address, length), &answer)| (address, length, answer))
    }

    /// The prefix that an address meets.
    pub(super) fn matching(&self, address: u32) -> Option<(u32, u8, u32)> {
        let (length, answer) = self.cover(address, 32)?;
        Some((address & mask(length), length, answer))
    }

    /// Sets the answers of prefixes, or takes those with answer 0 out, and publishes all of it.
    ///
    /// # Errors
    /// [`NoRoom`]; all is as before then.
    pub(super) fn change(
        &mut self,
        allocator: &mut Allocator,
        root: &AtomicU64,
        changes: &[(u32, u8, u32)],
    ) -> Result<(), NoRoom> {
        let before: Vec<(u32, u8, u32)> = changes
            .iter()
            .map(|&(address, length, answer)| (address, length, self.set(address, length, answer)))
            .collect();
        let done = self.publish(allocator, root, changes);
        if done.is_err() {
            for &(address, length, answer) in before.iter().rev() {
                self.set(address, length, answer);
            }
            // Blocks that were written already are written once more, as they were. Should there be no room for that either, those
            // /16s keep the new answers until the next change that concerns them.
            let _ = self.publish(allocator, root, &before);
        }
        done
    }

    fn set(&mut self, address: u32, length: u8, answer: u32) -> u32 {
        let count = &mut self.lengths[usize::from(length)];
        if answer == 0 {
            let old = self.prefixes.remove(&(address, length));
            *count -= u32::from(old.is_some());
            old.unwrap_or(0)
        } else {
            let old = self.prefixes.insert((address, length), answer);
            *count += u32::from(old.is_none());
            old.unwrap_or(0)
        }
    }

    /// The longest prefix of at most `longest` bits that holds `address`, as length and answer.
    fn cover(&self, address: u32, longest: u8) -> Option<(u8, u32)> {
        (0..=longest)
            .rev()
            .filter(|&length| self.lengths[usize::from(length)] > 0)
            .find_map(|length| self.prefixes.get(&(address & mask(length), length)).map(|answer| (length, *answer)))
    }

    fn publish(
        &mut self,
        allocator: &mut Allocator,
        root: &AtomicU64,
        changes: &[(u32, u8, u32)],
    ) -> Result<(), NoRoom> {
        let old = root.load(Ordering::Relaxed);
        let direct = old & POINTER != 0;
        // Half as many as make it large before it is small again, so that it does not go to and fro.
        let small = self.len() <= if direct { SMALL / 2 } else { SMALL };
        if small || !direct {
            let new = if small { self.write_small(allocator)? } else { self.write_direct(allocator)? };
            root.store(new, Ordering::Release);
            self.retire(allocator, old);
            return Ok(());
        }
        let base = old as u32 as usize * LINE;
        let mut last = None;
        let mut sorted: Vec<(u32, u8)> = changes.iter().map(|&(address, length, _)| (address, length)).collect();
        sorted.sort_unstable();
        for (address, length) in sorted {
            if length <= 8 {
                let first = address >> 24;
                for top in first..=(address | !mask(length)) >> 24 {
                    let answer = self.cover(top << 24, 8).map_or(0, |(_, answer)| answer);
                    allocator.store(short_base(old) + top as usize, u64::from(answer));
                }
                continue;
            }
            for top in address >> 16..=(address | !mask(length)) >> 16 {
                if last == Some(top) && length >= 16 {
                    continue;
                }
                last = Some(top);
                let place = base + top as usize;
                let new = self.write_block(allocator, top)?;
                let old = allocator.load(place);
                if new != old {
                    allocator.store(place, new);
                    Self::retire_block(allocator, old);
                }
            }
        }
        Ok(())
    }

    /// All prefixes as one sorted block.
    fn write_small(&mut self, allocator: &mut Allocator) -> Result<u64, NoRoom> {
        let mut found = std::mem::take(&mut self.ranges);
        let spans = self.prefixes.iter().map(|(&(first, length), &answer)| span(first, length, answer));
        ranges(0, u32::MAX, 0, spans, &mut found);
        let written = if self.prefixes.is_empty() { Ok(0) } else { write_chunk(allocator, &found) };
        self.ranges = found;
        written
    }

    fn write_direct(&mut self, allocator: &mut Allocator) -> Result<u64, NoRoom> {
        let short = allocator.allocate(SHORT / LINE)?;
        let direct = match allocator.allocate(DIRECT / LINE) {
            Ok(block) => block,
            Err(error) => {
                allocator.retire(short);
                return Err(error);
            }
        };
        let root = direct_root(direct.line, short.line);
        let base = direct.line as usize * LINE;
        for top in 0..SHORT as u32 {
            let answer = self.cover(top << 24, 8).map_or(0, |(_, answer)| answer);
            allocator.store(short_base(root) + top as usize, u64::from(answer));
        }
        for top in 0..DIRECT {
            allocator.store(base + top, 0);
        }
        // Prefixes up to /15 fill whole words, longer ones over shorter ones; then come the /16s that have something inside.
        for wanted in 9..16 {
            for (&(address, _), &answer) in self.prefixes.iter().filter(|((_, length), _)| *length == wanted) {
                let first = (address >> 16) as usize;
                for top in first..first + (1 << (16 - wanted)) {
                    allocator.store(base + top, u64::from(answer));
                }
            }
        }
        let mut tops: Vec<u32> =
            self.prefixes.keys().filter(|(_, length)| *length >= 16).map(|(address, _)| address >> 16).collect();
        tops.dedup();
        for top in tops {
            match self.write_block(allocator, top) {
                Ok(word) => allocator.store(base + top as usize, word),
                Err(error) => {
                    self.retire(allocator, root);
                    return Err(error);
                }
            }
        }
        Ok(root)
    }

    /// The direct word for a /16, its block written.
    fn write_block(&mut self, allocator: &mut Allocator, top: u32) -> Result<u64, NoRoom> {
        let (first, last) = (top << 16, top << 16 | 0xffff);
        // Those of /8 and shorter have their own words.
        let around = self.cover(first, 15).filter(|(length, _)| *length > 8).map_or(0, |(_, answer)| answer);
        let mut found = std::mem::take(&mut self.ranges);
        let inside = self.prefixes.range((first, 16)..=(last, 32)).filter(|((_, length), _)| *length >= 16);
        ranges(
            first,
            last,
            around,
            inside.map(|(&(address, length), &answer)| span(address, length, answer)),
            &mut found,
        );
        let written = write_lines(allocator, first, &found);
        self.ranges = found;
        written
    }

    /// Takes back all blocks of the table at `root`, which was unlinked.
    pub(super) fn retire(&self, allocator: &mut Allocator, root: u64) {
        if root == 0 {
            return;
        }
        if root & POINTER == 0 {
            retire_chunk(allocator, root);
            return;
        }
        let line = root as u32;
        for top in 0..DIRECT {
            let word = allocator.load(line as usize * LINE + top);
            Self::retire_block(allocator, word);
        }
        allocator.retire(Block { line, lines: (DIRECT / LINE) as u32 });
        allocator.retire(Block { line: (short_base(root) / LINE) as u32, lines: (SHORT / LINE) as u32 });
    }

    fn retire_block(allocator: &mut Allocator, word: u64) {
        if word & POINTER == 0 {
            return;
        }
        let (line, shift) = (word as u32, (word >> 32) as u32 & 31);
        let count = 1_u32 << (16 - shift);
        for number in line..line + count {
            if allocator.load(number as usize * LINE + 2) & MORE != 0 {
                retire_chunk(allocator, allocator.load(number as usize * LINE + 3));
            }
        }
        allocator.retire(Block { line, lines: count });
    }
}

fn span(first: u32, length: u8, answer: u32) -> Span {
    Span { first, last: first | !mask(length), answer }
}

fn retire_chunk(allocator: &mut Allocator, chunk: u64) {
    let lines = ((chunk >> 32) as usize).div_ceil(LINE);
    allocator.retire(Block { line: chunk as u32, lines: lines as u32 });
}

fn write_chunk(allocator: &mut Allocator, found: &[Range]) -> Result<u64, NoRoom> {
    let block = allocator.allocate(found.len().div_ceil(LINE))?;
    for (number, range) in found.iter().enumerate() {
        allocator.store(block.line as usize * LINE + number, u64::from(range.start) << 32 | u64::from(range.answer));
    }
    Ok(chunk(block.line, found.len()))
}

/// The direct word for the ranges of a /16.
fn write_lines(allocator: &mut Allocator, first: u32, found: &[Range]) -> Result<u64, NoRoom> {
    if let [only] = found {
        return Ok(u64::from(only.answer));
    }
    let count = found.len().div_ceil(LOAD).next_power_of_two().clamp(2, 8192);
    let shift = 16 - count.trailing_zeros();
    let block = allocator.allocate(count)?;
    let mut next = 0;
    for number in 0..count {
        let start = first + ((number as u32) << shift);
        // Inclusive: the last line may end at the last address there is.
        let end = start + ((1_u32 << shift) - 1);
        // The range that reaches into the line, then those that start in it.
        let from = if found.get(next).is_some_and(|range| range.start == start) { next } else { next - 1 };
        next += found[next..].iter().take_while(|range| range.start <= end).count();
        let base = (block.line as usize + number) * LINE;
        let inside = &found[from..next];
        if inside.len() > WAYS {
            match write_chunk(allocator, inside) {
                Ok(place) => {
                    allocator.store(base + 2, MORE);
                    allocator.store(base + 3, place);
                    continue;
                }
                Err(error) => {
                    for written in 0..number {
                        let at = (block.line as usize + written) * LINE;
                        if allocator.load(at + 2) & MORE != 0 {
                            retire_chunk(allocator, allocator.load(at + 3));
                        }
                    }
                    allocator.retire(block);
                    return Err(error);
                }
            }
        }
        let mut words = [0_u64; LINE];
        for way in 0..WAYS {
            // Ways that are not used repeat the last range: the highest start, reached or not, leads to its answer.
            let range = inside[way.min(inside.len() - 1)];
            let offset = u64::from(range.start.saturating_sub(start));
            let offset = if way < inside.len() { offset } else { 0x7fff };
            words[way / 4] |= offset << (way % 4 * 16);
            words[3 + way / 2] |= u64::from(range.answer) << (way % 2 * 32);
        }
        for (word, value) in words.into_iter().enumerate() {
            allocator.store(base + word, value);
        }
    }
    Ok(lines(block.line, shift))
}
