#![forbid(unsafe_code)]
//! IPv4 longest-prefix match: DIR-24-8 (Gupta, Lin, McKeown, "Routing Lookups in Hardware at Memory Access Speeds", 1998).
//!
//! A table of 2^24 entries is indexed by the top 24 bits of the destination. An entry holds the answer, or the number of
//! a group of 256 entries for the last 8 bits: one load for nearly all of the Internet, two at most.
//!
//! Entry, 32 bits: bit 31 "group", bits 25-30 the length of the prefix the answer comes from, bits 0-24 the
//! [`AdjacencyId`] or group number. The length is what makes updates local: a new prefix overwrites the entries of its
//! range that came from a prefix of its own length or shorter, a withdrawn one those that came from its own length.
//!
//! [`Fib4Writer`], of which there is one, stores entry after entry with Release. An address is answered by one entry, so
//! each look-up gives the old or the new answer, and no look-up waits. A group that is no longer pointed to is
//! left as it is until every worker was quiescent. Both tables are reserved in full and never move (64 MiB of address
//! space each); pages that were never written are not backed by memory.

use super::adjacency::AdjacencyId;
use super::memory::{TouchedPages, zeroed_u32};
use super::prefix::mask4;
use crate::quiesce::{Deferred, Domain};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of the first table: one for each /24.
const TOP_ENTRIES: usize = 1 << 24;
/// Entries of a group: one for each address of a /24.
const GROUP_ENTRIES: usize = 256;
/// Groups: /24s that may hold prefixes longer than /24 at one time.
pub const GROUPS: usize = 1 << 16;

const GROUP_BIT: u32 = 1 << 31;
const LENGTH_SHIFT: u32 = 25;
const VALUE_MASK: u32 = (1 << LENGTH_SHIFT) - 1;

/// The entry for an answer that comes from a prefix of `length` bits.
const fn answer(length: u8, id: AdjacencyId) -> u32 {
    (length as u32) << LENGTH_SHIFT | (id.0 & VALUE_MASK)
}

/// The length of the prefix that an answer comes from.
const fn length_of(entry: u32) -> u8 {
    ((entry & !GROUP_BIT) >> LENGTH_SHIFT) as u8
}

/// The table that workers read.
pub struct Fib4 {
    top: Box<[AtomicU32; TOP_ENTRIES]>,
    groups: Box<[AtomicU32; GROUPS * GROUP_ENTRIES]>,
}

impl Fib4 {
    /// An empty table and its only writer. Workers that read it are those of `domain`.
    pub fn new(domain: &Arc<Domain>) -> (Arc<Fib4>, Fib4Writer) {
        let fib = Arc::new(Fib4 { top: zeroed_u32(), groups: zeroed_u32() });
        let writer = Fib4Writer {
            fib: Arc::clone(&fib),
            free: Vec::new(),
            high_water: 0,
            retired: Deferred::new(Arc::clone(domain)),
            touched: TouchedPages::new(TOP_ENTRIES, 4),
        };
        (fib, writer)
    }

    /// Plain references, for a batch of look-ups.
    #[inline(always)]
    pub fn reader(&self) -> Fib4Reader<'_> {
        Fib4Reader { top: &self.top, groups: &self.groups }
    }

    /// The adjacency of the longest prefix that holds `dst` (host byte order); id 0 if none does.
    #[inline(always)]
    pub fn lookup(&self, dst: u32) -> AdjacencyId {
        self.reader().lookup(dst)
    }

    /// The length of the longest prefix that holds `dst` (host byte order); 0 for a default route, and where none does.
    pub fn length(&self, dst: u32) -> u8 {
        let top = self.top(dst);
        let in_group = || self.group(top & (GROUPS as u32 - 1))[(dst & 0xff) as usize].load(Ordering::Acquire);
        length_of(if top & GROUP_BIT != 0 { in_group() } else { top })
    }

    /// The first load of a look-up. Done for a whole batch ahead of [`Fib4::finish`], it brings the entries into the
    /// cache while the processor works on other packets. The value is good until the worker is quiescent.
    #[inline(always)]
    pub fn top(&self, dst: u32) -> u32 {
        self.top[(dst >> 8) as usize].load(Ordering::Acquire)
    }

    /// The rest of a look-up: at most one more load, and none for prefixes up to /24.
    #[inline(always)]
    pub fn finish(&self, top: u32, dst: u32) -> AdjacencyId {
        self.reader().finish(top, dst)
    }

    fn group(&self, number: u32) -> &[AtomicU32] {
        let first = number as usize * GROUP_ENTRIES;
        &self.groups[first..first + GROUP_ENTRIES]
    }
}

/// A [`Fib4`] as plain references: the compiler keeps them in registers over a batch.
#[derive(Clone, Copy)]
pub struct Fib4Reader<'a> {
    top: &'a [AtomicU32; TOP_ENTRIES],
    groups: &'a [AtomicU32; GROUPS * GROUP_ENTRIES],
}

impl Fib4Reader<'_> {
    /// As [`Fib4::lookup`]: one load for prefixes up to /24, two at most.
    #[inline(always)]
    pub fn lookup(&self, dst: u32) -> AdjacencyId {
        self.finish(self.top[(dst >> 8) as usize].load(Ordering::Acquire), dst)
    }

    #[inline(always)]
    fn finish(&self, mut entry: u32, dst: u32) -> AdjacencyId {
        if entry & GROUP_BIT != 0 {
            let group = entry as usize & (GROUPS - 1);
            entry = self.groups[group * GROUP_ENTRIES + (dst & 0xff) as usize].load(Ordering::Acquire);
        }
        AdjacencyId(entry & VALUE_MASK)
    }

    /// Asks the processor for the entry that a look-up of `dst` will load first.
    #[inline(always)]
    pub fn prefetch(&self, dst: u32) {
        crate::arena::prefetch(&self.top[(dst >> 8) as usize]);
    }
}

/// Replaces the answers of `entries` that `replaced` names.
fn rewrite(entries: &[AtomicU32], new: u32, replaced: impl Fn(u8) -> bool) {
    for entry in entries {
        let old = entry.load(Ordering::Relaxed);
        if old != new && replaced(length_of(old)) {
            entry.store(new, Ordering::Release);
        }
    }
}

/// The one writer of a [`Fib4`]; owned by the control thread.
pub struct Fib4Writer {
    fib: Arc<Fib4>,
    /// Groups that were used before and may be used again.
    free: Vec<u32>,
    /// Groups ever used: those from here on are still zero.
    high_water: u32,
    /// Groups that workers may still be reading.
    retired: Deferred<u32>,
    touched: TouchedPages,
}

impl Fib4Writer {
    /// Groups that the table points to.
    pub fn groups_in_use(&self) -> usize {
        self.high_water as usize - self.free.len() - self.retired.len()
    }

    /// Bytes of memory behind the table and this writer.
    pub fn memory(&self) -> usize {
        self.touched.bytes()
            + self.high_water as usize * GROUP_ENTRIES * 4
            + self.free.capacity() * 4
            + self.retired.memory()
    }

    /// Whether a prefix longer than /24 can be added that holds `address`.
    pub fn has_room(&mut self, address: u32) -> bool {
        self.reclaim();
        !self.free.is_empty()
            || (self.high_water as usize) < GROUPS
            || self.fib.top[(address >> 8) as usize].load(Ordering::Relaxed) & GROUP_BIT != 0
    }

    fn reclaim(&mut self) {
        let Fib4Writer { retired, free, .. } = self;
        retired.reclaim(|group| free.push(group));
    }

    /// Adds the prefix, or changes its answer. `address` has no bits beyond `length`.
    ///
    /// # Errors
    /// [`NoGroupLeft`] if the prefix is longer than /24 and all groups are in use; nothing was changed.
    pub fn insert(&mut self, address: u32, length: u8, id: AdjacencyId) -> Result<(), NoGroupLeft> {
        let new = answer(length, id);
        if length <= 24 {
            self.rewrite_top(address, length, new, |old| old <= length);
            return Ok(());
        }
        let slot = (address >> 8) as usize;
        let old = self.fib.top[slot].load(Ordering::Relaxed);
        if old & GROUP_BIT != 0 {
            rewrite(Self::range(self.fib.group(old & VALUE_MASK), address, length), new, |old| old <= length);
            return Ok(());
        }
        let number = self.take_group()?;
        let group = self.fib.group(number);
        for entry in group {
            entry.store(old, Ordering::Relaxed);
        }
        for entry in Self::range(group, address, length) {
            entry.store(new, Ordering::Relaxed);
        }
        // Publishes the group, and the new answer with it, by one store.
        self.fib.top[slot].store(GROUP_BIT | number, Ordering::Release);
        self.touched.touch(slot);
        Ok(())
    }

    /// Withdraws the prefix; `cover` is the next shorter prefix that holds it, as length and answer.
    pub fn remove(&mut self, address: u32, length: u8, cover: (u8, AdjacencyId)) {
        let new = answer(cover.0, cover.1);
        if length <= 24 {
            self.rewrite_top(address, length, new, |old| old == length);
            return;
        }
        let slot = &self.fib.top[(address >> 8) as usize];
        let old = slot.load(Ordering::Relaxed);
        if old & GROUP_BIT == 0 {
            return;
        }
        let number = old & VALUE_MASK;
        let group = self.fib.group(number);
        rewrite(Self::range(group, address, length), new, |old| old == length);
        let first = group[0].load(Ordering::Relaxed);
        if length_of(first) <= 24 && group.iter().all(|entry| entry.load(Ordering::Relaxed) == first) {
            slot.store(first, Ordering::Release);
            self.retired.retire([number]);
        }
    }

    /// Replaces answers in the range of a prefix of at most 24 bits, in the groups below it too.
    fn rewrite_top(&mut self, address: u32, length: u8, new: u32, replaced: impl Fn(u8) -> bool) {
        let first = (address >> 8) as usize;
        for slot in first..=((address | !mask4(length)) >> 8) as usize {
            let old = self.fib.top[slot].load(Ordering::Relaxed);
            if old & GROUP_BIT != 0 {
                rewrite(self.fib.group(old & VALUE_MASK), new, &replaced);
            } else if old != new && replaced(length_of(old)) {
                self.fib.top[slot].store(new, Ordering::Release);
                self.touched.touch(slot);
            }
        }
    }

    /// The entries of a group that a prefix longer than /24 covers.
    fn range(group: &[AtomicU32], address: u32, length: u8) -> &[AtomicU32] {
        let first = (address & 0xff) as usize;
        &group[first..first + (1 << (32 - length))]
    }

    fn take_group(&mut self) -> Result<u32, NoGroupLeft> {
        self.reclaim();
        if let Some(group) = self.free.pop() {
            return Ok(group);
        }
        if self.high_water as usize == GROUPS {
            return Err(NoGroupLeft);
        }
        self.high_water += 1;
        Ok(self.high_water - 1)
    }
}

/// All [`GROUPS`] groups of a [`Fib4`] are in use or waiting for a worker to become quiescent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoGroupLeft;

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: (u8, AdjacencyId) = (0, AdjacencyId(0));

    fn ip(a: u8, b: u8, c: u8, d: u8) -> u32 {
        u32::from_be_bytes([a, b, c, d])
    }

    #[test]
    fn nested_prefixes_come_and_go_in_any_order() {
        let (fib, mut writer) = Fib4::new(&Domain::new(1));
        writer.insert(ip(10, 1, 2, 3), 32, AdjacencyId(4)).unwrap();
        writer.insert(ip(10, 1, 2, 0), 24, AdjacencyId(3)).unwrap();
        writer.insert(ip(10, 0, 0, 0), 8, AdjacencyId(2)).unwrap();
        assert_eq!(fib.lookup(ip(10, 1, 2, 3)), AdjacencyId(4));
        assert_eq!(fib.lookup(ip(10, 1, 2, 4)), AdjacencyId(3));
        assert_eq!(fib.lookup(ip(10, 1, 3, 3)), AdjacencyId(2));
        assert_eq!(fib.lookup(ip(11, 1, 3, 3)), AdjacencyId(0));
        writer.remove(ip(10, 1, 2, 0), 24, (8, AdjacencyId(2)));
        assert_eq!(fib.lookup(ip(10, 1, 2, 4)), AdjacencyId(2));
        assert_eq!(fib.lookup(ip(10, 1, 2, 3)), AdjacencyId(4));
        writer.remove(ip(10, 0, 0, 0), 8, NONE);
        assert_eq!(fib.lookup(ip(10, 1, 2, 4)), AdjacencyId(0));
        writer.remove(ip(10, 1, 2, 3), 32, NONE);
        assert_eq!(fib.lookup(ip(10, 1, 2, 3)), AdjacencyId(0));
        assert_eq!(writer.groups_in_use(), 0);
    }

    #[test]
    fn a_group_is_reused_only_after_every_worker_was_quiescent() {
        let domain = Domain::new(1);
        let mut worker = domain.register().unwrap();
        let (fib, mut writer) = Fib4::new(&domain);
        writer.insert(ip(10, 0, 0, 1), 32, AdjacencyId(1)).unwrap();
        let held = fib.top(ip(10, 0, 0, 1));
        writer.remove(ip(10, 0, 0, 1), 32, NONE);
        writer.insert(ip(10, 0, 1, 1), 32, AdjacencyId(2)).unwrap();
        assert_eq!(writer.high_water, 2, "the worker may still read the first group");
        assert_eq!(
            fib.finish(held, ip(10, 0, 0, 1)),
            AdjacencyId(0),
            "and finds the answer of the time it was unlinked"
        );
        worker.quiescent();
        writer.insert(ip(10, 0, 2, 1), 32, AdjacencyId(3)).unwrap();
        assert_eq!((writer.high_water, writer.groups_in_use()), (2, 2), "now it is reused");
    }

    #[test]
    fn a_group_full_of_equal_hosts_is_still_many_routes() {
        let (fib, mut writer) = Fib4::new(&Domain::new(1));
        for host in 0..=255 {
            writer.insert(ip(10, 0, 0, host), 32, AdjacencyId(1)).unwrap();
        }
        writer.insert(ip(10, 0, 0, 128), 25, AdjacencyId(2)).unwrap();
        writer.remove(ip(10, 0, 0, 128), 25, NONE);
        writer.remove(ip(10, 0, 0, 200), 32, NONE);
        assert_eq!(fib.lookup(ip(10, 0, 0, 200)), AdjacencyId(0));
        assert_eq!(fib.lookup(ip(10, 0, 0, 201)), AdjacencyId(1));
    }

    #[test]
    fn a_full_table_is_refused_and_left_alone() {
        let (fib, mut writer) = Fib4::new(&Domain::new(1));
        writer.high_water = GROUPS as u32;
        assert!(!writer.has_room(ip(10, 0, 0, 1)));
        assert_eq!(writer.insert(ip(10, 0, 0, 1), 32, AdjacencyId(1)), Err(NoGroupLeft));
        assert_eq!(fib.lookup(ip(10, 0, 0, 1)), AdjacencyId(0));
        assert_eq!(writer.insert(ip(10, 0, 0, 0), 24, AdjacencyId(1)), Ok(()));
    }
}
