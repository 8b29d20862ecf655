#![forbid(unsafe_code)]
//! Where the states of a hash are: a table of buckets that grows by one bucket at a time (linear hashing; Litwin, 1980).
//!
//! A bucket is a cache line with eight 16-bit tags and the numbers of eight states; a ninth goes to an overflow bucket. With 3.5
//! states a bucket on average that is rare. The table has `len` buckets, not a power of two: a hash is taken modulo the next power of two,
//! and modulo half of that where this bucket is not there yet. Adding states adds a bucket now and then, which
//! takes its states out of the one bucket that had them; nothing is ever copied as a whole. The array is reserved for the most
//! states there may be and never moves.

use ferrule_dataplane::arena::{advise_huge_pages, prefetch};

/// States of a bucket.
const WAYS: usize = 8;
/// Twice the average number of states of a bucket.
const TWICE_LOAD: usize = 7;
/// Buckets of an empty table.
const FIRST: usize = 256;
/// A 1 in each lane of four tags.
const LANES: u64 = 0x0001_0001_0001_0001;
/// The top bit of each lane.
const TOPS: u64 = 0x8000_8000_8000_8000;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    /// Tags of four states in each word, 0 where there is none.
    tags: [u64; 2],
    states: [u32; WAYS],
    /// Number of the overflow bucket plus one; 0 for none. Of a free overflow bucket the next free one.
    next: u32,
}

const _: () = assert!(size_of::<Bucket>() == 64);

const EMPTY: Bucket = Bucket { tags: [0; 2], states: [0; WAYS], next: 0 };

/// The lanes of `tags` that may hold `tag`, as their top bits. The lowest is sure, those above it may be false: borrows pass on.
#[inline(always)]
fn lanes_with(tags: u64, tag: u16) -> u64 {
    let difference = tags ^ (u64::from(tag) * LANES);
    difference.wrapping_sub(LANES) & !difference & TOPS
}

/// A hash with its bits mixed once more. The flow hash ends in one multiplication, whose low bits are poor under some seeds (five
/// times as many states in a bucket as there should be were seen), and its top bits are those that chose the worker.
#[inline(always)]
fn mixed(hash: u32) -> u32 {
    let product = hash.wrapping_mul(0x9e37_79b1);
    product ^ product >> 15
}

/// The tag of a mixed hash: the half that the number of the bucket takes last, and never 0.
#[inline(always)]
fn tag_of(mixed: u32) -> u16 {
    ((mixed >> 16) as u16).max(1)
}

impl Bucket {
    fn tag(&self, way: usize) -> u16 {
        (self.tags[way / 4] >> (way % 4 * 16)) as u16
    }

    fn set(&mut self, way: usize, tag: u16, state: u32) {
        let shift = way % 4 * 16;
        let word = &mut self.tags[way / 4];
        *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
        self.states[way] = state;
    }

    fn free_way(&self) -> Option<usize> {
        (0..WAYS).find(|&way| self.tag(way) == 0)
    }

    fn is_empty(&self) -> bool {
        self.tags == [0; 2]
    }

    /// The ways that may hold `tag`, as the top bits of their lanes. In one word of 128 bits, so that it does not depend on a branch
    /// in which half the tag is found.
    #[inline(always)]
    fn ways_with(&self, tag: u16) -> u128 {
        u128::from(lanes_with(self.tags[0], tag)) | u128::from(lanes_with(self.tags[1], tag)) << 64
    }

    /// The first of its states that has `tag`.
    #[inline(always)]
    fn first(&self, tag: u16) -> Option<u32> {
        let ways = self.ways_with(tag);
        (ways != 0).then(|| self.states[(ways.trailing_zeros() >> 4) as usize & (WAYS - 1)])
    }

    /// The first of its states that `check` takes.
    #[inline(always)]
    fn find<R>(&self, tag: u16, check: &mut impl FnMut(u32) -> Option<R>) -> Option<R> {
        let mut ways = self.ways_with(tag);
        while ways != 0 {
            let found = check(self.states[(ways.trailing_zeros() >> 4) as usize & (WAYS - 1)]);
            if found.is_some() {
                return found;
            }
            ways &= ways - 1;
        }
        None
    }
}

/// There is no room for another overflow bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoBucketLeft;

/// The table.
pub(super) struct Buckets {
    buckets: Vec<Bucket>,
    overflow: Vec<Bucket>,
    /// First free overflow bucket plus one.
    free: u32,
    /// Number of free overflow buckets, those never used included.
    spare: usize,
    /// The next power of two above the number of buckets, less one.
    mask: u32,
    /// States in it.
    states: usize,
    most: usize,
}

impl Buckets {
    /// An empty table for at most `states` states.
    pub(super) fn new(states: usize) -> Buckets {
        let most = (states * 2 / TWICE_LOAD + 1).max(FIRST);
        let mut buckets: Vec<Bucket> = Vec::with_capacity(most);
        advise_huge_pages(buckets.spare_capacity_mut());
        buckets.resize(FIRST, EMPTY);
        let overflow = Vec::with_capacity(most / 4 + 64);
        let spare = overflow.capacity();
        Buckets { buckets, overflow, free: 0, spare, mask: 2 * FIRST as u32 - 1, states: 0, most }
    }

    /// Number of buckets, without overflow buckets.
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Bytes in use.
    pub(super) fn memory(&self) -> usize {
        (self.buckets.len() + self.overflow.len()) * size_of::<Bucket>()
    }

    /// The place of a mixed hash.
    #[inline(always)]
    fn place(&self, mixed: u32) -> usize {
        let wide = (mixed & self.mask) as usize;
        if wide < self.buckets.len() { wide } else { wide & (self.mask >> 1) as usize }
    }

    /// Asks the processor for the bucket of a hash.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u32) {
        if let Some(bucket) = self.buckets.get(self.place(mixed(hash))) {
            prefetch(bucket);
        }
    }

    /// The state that a look-up of this hash will most likely read first.
    #[inline(always)]
    pub(super) fn candidate(&self, hash: u32) -> Option<u32> {
        let mixed = mixed(hash);
        self.buckets.get(self.place(mixed))?.first(tag_of(mixed))
    }

    /// The first state of this hash's bucket and tag that `check` takes.
    #[inline(always)]
    pub(super) fn find<R>(&self, hash: u32, mut check: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let mixed = mixed(hash);
        let tag = tag_of(mixed);
        let mut bucket = self.buckets.get(self.place(mixed))?;
        loop {
            let found = bucket.find(tag, &mut check);
            if found.is_some() || bucket.next == 0 {
                return found;
            }
            bucket = self.overflow.get(bucket.next as usize - 1)?;
        }
    }

    /// Puts a state in; `hash_of` tells the hash of those that are in. May add a bucket or two.
    ///
    /// # Errors
    /// [`NoBucketLeft`], with the state not in it, when overflow buckets have run out.
    pub(super) fn insert(&mut self, hash: u32, state: u32, hash_of: impl Fn(u32) -> u32) -> Result<(), NoBucketLeft> {
        for _ in 0..2 {
            if (self.states + 1) * 2 > self.buckets.len() * TWICE_LOAD && self.buckets.len() < self.most {
                self.split(&hash_of);
            }
        }
        let mixed = mixed(hash);
        self.put(self.place(mixed), tag_of(mixed), state)?;
        self.states += 1;
        Ok(())
    }

    fn put(&mut self, place: usize, tag: u16, state: u32) -> Result<(), NoBucketLeft> {
        let mut number = 0;
        loop {
            let bucket = self.bucket_mut(place, number);
            if let Some(way) = bucket.free_way() {
                bucket.set(way, tag, state);
                return Ok(());
            }
            number = bucket.next;
            if number == 0 {
                break;
            }
        }
        let next = self.buckets[place].next;
        let number = if self.free != 0 {
            let number = self.free;
            self.free = self.overflow[number as usize - 1].next;
            number
        } else if self.overflow.len() < self.overflow.capacity() {
            self.overflow.push(EMPTY);
            self.overflow.len() as u32
        } else {
            return Err(NoBucketLeft);
        };
        self.spare -= 1;
        let fresh = &mut self.overflow[number as usize - 1];
        *fresh = Bucket { next, ..EMPTY };
        fresh.set(0, tag, state);
        self.buckets[place].next = number;
        Ok(())
    }

    /// Takes a state out; whether it was in.
    pub(super) fn remove(&mut self, hash: u32, state: u32) -> bool {
        let place = self.place(mixed(hash));
        let mut number = 0;
        loop {
            let bucket = self.bucket_mut(place, number);
            if let Some(way) = (0..WAYS).find(|&way| bucket.tag(way) != 0 && bucket.states[way] == state) {
                bucket.set(way, 0, 0);
                if number != 0 && bucket.is_empty() {
                    self.unlink(place, number);
                }
                self.states -= 1;
                return true;
            }
            number = bucket.next;
            if number == 0 {
                return false;
            }
        }
    }

    /// The bucket at `place`, or the overflow bucket `number` where this is not 0.
    fn bucket_mut(&mut self, place: usize, number: u32) -> &mut Bucket {
        match number {
            0 => &mut self.buckets[place],
            number => &mut self.overflow[number as usize - 1],
        }
    }

    /// Takes the empty overflow bucket `number` out of the chain of `place`.
    fn unlink(&mut self, place: usize, number: u32) {
        let after = self.overflow[number as usize - 1].next;
        let mut before = 0;
        loop {
            let bucket = self.bucket_mut(place, before);
            if bucket.next == number {
                bucket.next = after;
                break;
            }
            before = bucket.next;
            if before == 0 {
                break;
            }
        }
        self.overflow[number as usize - 1].next = self.free;
        self.free = number;
        self.spare += 1;
    }

    /// Overflow buckets of the chain of `place`.
    fn chain(&self, place: usize) -> usize {
        let (mut count, mut number) = (0, self.buckets[place].next);
        while number != 0 {
            count += 1;
            number = self.overflow[number as usize - 1].next;
        }
        count
    }

    /// Adds a bucket, and moves to it the states that belong there. Does nothing where overflow buckets might run out on the way.
    fn split(&mut self, hash_of: &impl Fn(u32) -> u32) {
        let new = self.buckets.len();
        let old = new & (self.mask >> 1) as usize;
        if self.chain(old) > self.spare {
            return;
        }
        self.buckets.push(EMPTY);
        let mut number = 0;
        loop {
            let bucket = *self.bucket_mut(old, number);
            for way in 0..WAYS {
                let tag = bucket.tag(way);
                if tag != 0 && (mixed(hash_of(bucket.states[way])) & self.mask) as usize == new {
                    let moved = self.put(new, tag, bucket.states[way]);
                    debug_assert!(moved.is_ok(), "as many overflow buckets as the old chain has are spare");
                    self.bucket_mut(old, number).set(way, 0, 0);
                }
            }
            let emptied = number;
            number = bucket.next;
            if emptied != 0 && self.overflow[emptied as usize - 1].is_empty() {
                self.unlink(old, emptied);
            }
            if number == 0 {
                break;
            }
        }
        if self.buckets.len() > self.mask as usize {
            self.mask = self.mask << 1 | 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn scramble(n: u32) -> u32 {
        let wide = u64::from(n ^ 0x9e37_79b9).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (wide ^ wide >> 32) as u32
    }

    #[test]
    fn the_table_grows_and_loses_nothing() {
        let mut buckets = Buckets::new(100_000);
        for state in 0..100_000 {
            buckets.insert(scramble(state), state, scramble).unwrap();
        }
        assert!(buckets.len() > 100_000 * 2 / 8, "{}", buckets.len());
        assert!(buckets.memory() < 100_000 * 24, "{}", buckets.memory());
        for state in 0..100_000 {
            assert_eq!(buckets.find(scramble(state), |s| (s == state).then_some(s)), Some(state));
        }
        for state in (0..100_000).step_by(2) {
            assert!(buckets.remove(scramble(state), state));
            assert!(!buckets.remove(scramble(state), state));
        }
        for state in 0..100_000 {
            let found = buckets.find(scramble(state), |s| (s == state).then_some(s));
            assert_eq!(found, (state % 2 == 1).then_some(state));
        }
    }

    #[test]
    fn equal_hashes_go_to_overflow_buckets_and_come_back() {
        let mut buckets = Buckets::new(1000);
        let hashes: HashMap<u32, u32> = (0..300).map(|state| (state, 7 + (state % 3) * 1024)).collect();
        let hash_of = |state: u32| hashes[&state];
        for state in 0..300 {
            buckets.insert(hash_of(state), state, hash_of).unwrap();
        }
        for state in 0..300 {
            assert_eq!(buckets.find(hash_of(state), |s| (s == state).then_some(s)), Some(state));
        }
        for state in 0..300 {
            assert!(buckets.remove(hash_of(state), state));
        }
        let (mut free, mut next) = (0, buckets.free);
        while next != 0 {
            free += 1;
            next = buckets.overflow[next as usize - 1].next;
        }
        assert_eq!(free, buckets.overflow.len(), "every overflow bucket is free again");
    }

    #[test]
    fn running_out_of_overflow_buckets_is_an_error() {
        let mut buckets = Buckets::new(1);
        let room = buckets.overflow.capacity();
        let fits = (0..u32::MAX).take_while(|&state| buckets.insert(5, state, |_| 5).is_ok()).count();
        assert_eq!(fits, WAYS * (room + 1));
    }
}
