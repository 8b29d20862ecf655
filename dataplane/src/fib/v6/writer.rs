#![forbid(unsafe_code)]
//! Updates of the IPv6 table. Control thread only.
//!
//! The rules that keep the table small, and that every update restores on its way back up:
//! - no node whose slots are all one answer of a prefix that reaches beyond the node (it becomes an answer above it);
//! - no node with one pointer and otherwise one such answer, if the answer could be the pointed-to node's outside (then
//!   that node is pointed to directly and skips this level).

use super::arena::{Arena, NoNodeLeft};
use super::node::{Change, HALF, Node, Update, is_wide, level_of, offset_of, runs, slot_of};
use super::{
    Fib6, LOW_HALF_BIT, NODE_BITMAP, NODE_BITMAP_WORDS, NODE_ENTRIES, NODE_KEY, NODE_OUTSIDE, NODE_WIDE_ENTRIES,
    POINTER_BIT, SHIFT_SHIFT, SLOTS, WIDE_BIT, answer, is_pointer, length_of,
};
use crate::fib::adjacency::AdjacencyId;
use crate::fib::prefix::mask6;
use crate::quiesce::Domain;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Level of the nodes that groups point to.
const GROUP_END: u8 = 24;
/// Nodes that may be wide whatever they hold: 8 MB of them.
pub(super) const WIDE_NODES: usize = 4096;
/// Cache lines from which on a table is large ([`Fib6::is_large`]): 256 KB, what its packets leave of a usual L2 cache.
const LARGE_LINES: usize = 4096;
/// A node of at least so many runs is wide: it then takes at most six times the memory.
const WIDE_RUNS: usize = 32;

/// The one writer of a [`Fib6`]; owned by the control thread.
pub struct Fib6Writer {
    fib: Arc<Fib6>,
    arena: Arena,
    /// Wide nodes that the table points to.
    wide_nodes: usize,
}

impl Fib6Writer {
    pub(super) fn new(fib: Arc<Fib6>, domain: &Arc<Domain>) -> Fib6Writer {
        let arena = Arena::new(Arc::clone(&fib), domain);
        Fib6Writer { fib, arena, wide_nodes: 0 }
    }

    /// Bytes of the groups and nodes that the table points to.
    pub fn bytes_in_use(&self) -> usize {
        self.arena.lines_in_use() * 64
    }

    /// Bytes of memory behind the table and this writer.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.fib.root) + self.arena.memory()
    }

    /// Whether a prefix can be added wherever it lies or, if it is `present` already, changed or withdrawn. The latter is
    /// true unless no worker was quiescent for thousands of updates: some room is kept back for it.
    pub fn has_room(&mut self, present: bool) -> bool {
        self.arena.check_room(present).is_ok()
    }

    /// Adds the prefix, or changes its answer. `address` has no bits beyond `length`.
    ///
    /// # Errors
    /// [`NoNodeLeft`] if the table is full; nothing was changed. Whoever adds prefixes asks [`Fib6Writer::has_room`] first.
    pub fn insert(&mut self, address: u128, length: u8, id: AdjacencyId) -> Result<(), NoNodeLeft> {
        self.arena.check_room(true)?;
        self.update(Update { address, length, change: Change::Insert(answer(length, id)) });
        Ok(())
    }

    /// Withdraws the prefix; `cover` is the next shorter prefix that holds it, as length and answer.
    ///
    /// # Errors
    /// [`NoNodeLeft`] if the table is full; nothing was changed.
    pub fn remove(&mut self, address: u128, length: u8, cover: (u8, AdjacencyId)) -> Result<(), NoNodeLeft> {
        self.arena.check_room(true)?;
        self.update(Update { address, length, change: Change::Remove(answer(cover.0, cover.1)) });
        Ok(())
    }

    fn update(&mut self, update: Update) {
        let first = (update.address >> 112) as usize;
        if update.length <= 16 {
            for slot in first..=((update.address | !mask6(update.length)) >> 112) as usize {
                let entry = self.fib.root[slot].load(Ordering::Relaxed);
                if is_pointer(entry) {
                    self.rewrite_entries(offset_of(entry), SLOTS, &update);
                } else {
                    let new = update.apply(entry);
                    if new != entry {
                        self.fib.root[slot].store(new, Ordering::Release);
                    }
                }
            }
        } else {
            self.update_group(first, &update);
        }
        self.arena.retire();
        self.fib.large.store(self.arena.lines_in_use() > LARGE_LINES, Ordering::Relaxed);
    }

    /// An update of a prefix longer than /16.
    fn update_group(&mut self, root_slot: usize, update: &Update) {
        let entry = self.fib.root[root_slot].load(Ordering::Relaxed);
        let group = if is_pointer(entry) {
            offset_of(entry)
        } else if update.removes() {
            return;
        } else {
            let group = self.arena.allocate(SLOTS) as usize;
            for word in group..group + SLOTS {
                self.arena.word(word).store(entry, Ordering::Relaxed);
            }
            group
        };
        if update.length <= GROUP_END {
            let slots = update.slots(16);
            self.rewrite_entries(group + slots.start, slots.len(), update);
        } else {
            let word = group + slot_of(update.address, 16);
            let old = self.arena.load(word);
            let new = self.update_slot(old, GROUP_END, update);
            if new != old {
                self.arena.word(word).store(new, Ordering::Release);
            }
        }
        if !is_pointer(entry) {
            self.fib.root[root_slot].store(POINTER_BIT | group as u64, Ordering::Release);
        } else if update.removes() {
            let first = self.arena.load(group);
            let whole = !is_pointer(first) && length_of(first) <= 16;
            if whole && (group..group + SLOTS).all(|word| self.arena.load(word) == first) {
                self.fib.root[root_slot].store(first, Ordering::Release);
                self.arena.replace(group as u32, SLOTS);
            }
        }
    }

    /// The entry that replaces `entry`, whose addresses share `from` bits with the prefix, which is longer than that.
    fn update_slot(&mut self, entry: u64, from: u8, update: &Update) -> u64 {
        if !is_pointer(entry) {
            return if update.removes() { entry } else { self.grow(entry, from, update) };
        }
        let level = level_of(entry);
        let path = self.path(entry, update.address);
        let fork = ((path ^ update.address).leading_zeros() as u8).min(level);
        if fork < update.length.min(level) {
            return if update.removes() { entry } else { self.branch(entry, fork, path, update) };
        }
        if update.length < level {
            // A prefix that ends inside a skip is not in the table: it would have a node there.
            return if update.removes() { entry } else { self.split(entry, path, update) };
        }
        let mut node = self.read(entry);
        if update.length > level + 8 {
            let slot = slot_of(update.address, level);
            node.slots[slot] = self.update_slot(node.slots[slot], level + 8, update);
        } else {
            let slots = if update.length == level { 0..SLOTS } else { update.slots(level) };
            for slot in slots {
                let old = node.slots[slot];
                if is_pointer(old) {
                    self.rewrite_node(old, update);
                } else {
                    node.slots[slot] = update.apply(old);
                }
            }
        }
        self.settle(entry, from, path, node)
    }

    /// A new path to the prefix from an entry that was the answer `old`.
    fn grow(&mut self, old: u64, from: u8, update: &Update) -> u64 {
        let level = update.last_level();
        let mut node = Node::new(update.address, level, old);
        for slot in update.slots(level) {
            node.slots[slot] = update.apply(old);
        }
        let pointer = self.write(&node);
        if from >= HALF || level < HALF {
            return pointer;
        }
        // The skip would cross from the high half into the low one: a node at the border ends it.
        let mut border = Node::new(update.address, HALF - 8, old);
        border.slots[slot_of(update.address, HALF - 8)] = pointer;
        self.write(&border)
    }

    /// A node where the prefix leaves the path that the node at `entry` skips; `fork` is the first bit that differs.
    fn branch(&mut self, entry: u64, fork: u8, path: u128, update: &Update) -> u64 {
        let level = fork / 8 * 8;
        let outside = self.outside(entry);
        let mut node = Node::new(path, level, outside);
        node.slots[slot_of(path, level)] = entry;
        if update.length <= level + 8 {
            for slot in update.slots(level) {
                node.slots[slot] = update.apply(outside);
            }
        } else {
            node.slots[slot_of(update.address, level)] = self.grow(outside, level + 8, update);
        }
        self.write(&node)
    }

    /// A node where the prefix ends on the path that the node at `entry` skips.
    fn split(&mut self, entry: u64, path: u128, update: &Update) -> u64 {
        let level = update.last_level();
        let outside = self.outside(entry);
        let mut node = Node::new(path, level, outside);
        for slot in update.slots(level) {
            node.slots[slot] = update.apply(outside);
        }
        // The rest of the skip lies inside the prefix: its outside answer changes, and as the present one still serves
        // addresses outside the prefix, the node is copied.
        let mut below = self.read(entry);
        below.outside = update.apply(outside);
        for slot in 0..SLOTS {
            let old = below.slots[slot];
            if is_pointer(old) {
                self.rewrite_node(old, update);
            } else {
                below.slots[slot] = update.apply(old);
            }
        }
        self.release(entry);
        node.slots[slot_of(path, level)] = self.write(&below);
        self.write(&node)
    }

    /// Puts the changed `node` in the place of `entry`, in the smallest form: an answer, its only child, or a node.
    fn settle(&mut self, entry: u64, from: u8, path: u128, node: Node) -> u64 {
        let level = node.level;
        let skips = level > from;
        if let Some(whole) = node.uniform() {
            self.release(entry);
            if !skips || whole == node.outside {
                return whole;
            }
            // The prefix that ends exactly where this node stood needs a decision one level higher.
            let mut above = Node::new(path, level - 8, node.outside);
            above.slots[slot_of(path, level - 8)] = whole;
            return self.write(&above);
        }
        if let Some((child, around)) = node.single_pointer()
            && (!skips || around == node.outside)
            && (level < HALF) == (level_of(child) < HALF)
            && (level_of(child) == level + 8 || self.outside(child) == around)
        {
            // Nobody reads the outside answer of a node that skips nothing, so it can be set before it is needed.
            self.set_outside(child, around);
            self.release(entry);
            return child;
        }
        let bitmap = node.bitmap();
        let offset = offset_of(entry);
        if !is_wide(entry) && (0..NODE_BITMAP_WORDS).any(|word| self.marks(offset, word) != bitmap[word]) {
            self.release(entry);
            return self.write(&node);
        }
        let (first, _) = self.entries(entry);
        if is_wide(entry) {
            self.store_changed(first, node.slots.iter().copied());
        } else {
            self.store_changed(first, runs(&node, &bitmap));
        }
        entry
    }

    /// Stores the entries from the word `first` on, those that change.
    fn store_changed(&mut self, first: usize, entries: impl Iterator<Item = u64>) {
        for (index, new) in entries.enumerate() {
            let word = self.arena.word(first + index);
            if word.load(Ordering::Relaxed) != new {
                word.store(new, Ordering::Release);
            }
        }
    }

    /// Changes all answers below `pointer`, all of whose addresses, with those of its skip, lie inside the prefix. Runs
    /// stay as they are: all answers that change were one and the same.
    fn rewrite_node(&mut self, pointer: u64, update: &Update) {
        let outside = self.outside(pointer);
        self.set_outside(pointer, update.apply(outside));
        let (first, count) = self.entries(pointer);
        self.rewrite_entries(first, count, update);
    }

    /// Changes the answers in `count` entries from `first` on, and all below them.
    fn rewrite_entries(&mut self, first: usize, count: usize, update: &Update) {
        for word in first..first + count {
            let old = self.arena.load(word);
            if is_pointer(old) {
                self.rewrite_node(old, update);
            } else {
                let new = update.apply(old);
                if new != old {
                    self.arena.word(word).store(new, Ordering::Release);
                }
            }
        }
    }

    /// The first entry of the node at `pointer`, and the number of its entries.
    fn entries(&self, pointer: u64) -> (usize, usize) {
        let offset = offset_of(pointer);
        if is_wide(pointer) {
            return (offset + NODE_WIDE_ENTRIES, SLOTS);
        }
        let count = (0..NODE_BITMAP_WORDS).map(|word| self.marks(offset, word).count_ones() as usize).sum();
        (offset + NODE_ENTRIES, count)
    }

    /// The marks in one word of the node at `offset`.
    fn marks(&self, offset: usize, word: usize) -> u32 {
        self.arena.load(offset + NODE_BITMAP + word) as u32
    }

    fn outside(&self, pointer: u64) -> u64 {
        self.arena.load(offset_of(pointer) + NODE_OUTSIDE)
    }

    fn set_outside(&mut self, pointer: u64, outside: u64) {
        let word = self.arena.word(offset_of(pointer) + NODE_OUTSIDE);
        if word.load(Ordering::Relaxed) != outside {
            word.store(outside, Ordering::Release);
        }
    }

    /// The address bits above the node at `pointer`, which is on the way to `address` at least down to its own half.
    fn path(&self, pointer: u64, address: u128) -> u128 {
        let key = self.arena.load(offset_of(pointer) + NODE_KEY);
        let level = level_of(pointer);
        if level < HALF {
            u128::from(key) << (2 * HALF - level)
        } else {
            address & mask6(HALF) | u128::from(key).checked_shl(u32::from(2 * HALF - level)).unwrap_or(0)
        }
    }

    fn read(&self, pointer: u64) -> Node {
        let offset = offset_of(pointer);
        let mut node = Node {
            level: level_of(pointer),
            key: self.arena.load(offset + NODE_KEY),
            outside: self.outside(pointer),
            slots: [0; SLOTS],
        };
        let (mut next, _) = self.entries(pointer);
        let mut entry = 0;
        for (slot, value) in node.slots.iter_mut().enumerate() {
            if is_wide(pointer) || self.marks(offset, slot / 32) >> (slot % 32) & 1 != 0 {
                entry = self.arena.load(next);
                next += 1;
            }
            *value = entry;
        }
        node
    }

    /// Writes the node into a block of its own and returns the pointer to it, which is still to be published.
    fn write(&mut self, node: &Node) -> u64 {
        let bitmap = node.bitmap();
        let count: u32 = bitmap.iter().map(|marks| marks.count_ones()).sum();
        let (half, level) = if node.level < HALF { (0, node.level) } else { (LOW_HALF_BIT, node.level - HALF) };
        let pointer = POINTER_BIT | half | u64::from(56 - level) << SHIFT_SHIFT;
        let head = [node.key, node.outside].into_iter();
        if count as usize >= WIDE_RUNS || self.wide_nodes < WIDE_NODES {
            self.wide_nodes += 1;
            let offset = self.arena.allocate(NODE_WIDE_ENTRIES + SLOTS);
            self.fill(offset, head.chain(node.slots));
            return pointer | WIDE_BIT | u64::from(offset);
        }
        let offset = self.arena.allocate(NODE_ENTRIES + count as usize);
        let mut before = offset + NODE_ENTRIES as u32 - 1;
        let counted = bitmap.map(|marks| {
            let word = u64::from(before) << 32 | u64::from(marks);
            before += marks.count_ones();
            word
        });
        self.fill(offset, head.chain(counted).chain(runs(node, &bitmap)));
        pointer | u64::from(offset)
    }

    /// Writes a block that nobody reads yet.
    fn fill(&mut self, offset: u32, words: impl Iterator<Item = u64>) {
        for (index, word) in words.enumerate() {
            self.arena.word(offset as usize + index).store(word, Ordering::Relaxed);
        }
    }

    /// Notes that this update unlinks the node at `pointer`.
    fn release(&mut self, pointer: u64) {
        let offset = offset_of(pointer);
        let (first, count) = self.entries(pointer);
        self.wide_nodes -= usize::from(is_wide(pointer));
        self.arena.replace(offset as u32, first - offset + count);
    }

    /// Makes all new nodes narrow unless they have many runs, as they are in a large table.
    #[cfg(test)]
    pub(super) fn behave_as_large(&mut self) {
        self.wide_nodes += WIDE_NODES;
    }

    /// Words that were ever part of a block.
    #[cfg(test)]
    pub(super) fn words_ever_used(&self) -> usize {
        self.arena.words_ever_used()
    }
}
