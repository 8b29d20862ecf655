#![forbid(unsafe_code)]
//! A fixed hash table in shared memory from flows to their translation and the worker that owns it: many readers, a writer for each
//! new or ended flow, no locks.
//!
//! Each entry is a sequence lock in four words. A key may lie in two buckets of eight entries; an entry never moves. The words that tell
//! which entries are in use, and by what keys (14 bits of each), make up one cache line of a bucket, so that looking for what is not there costs two
//! lines. To keep a tuple exclusive without a lock, a writer first shows its entry and then looks for another of the same key: of two
//! writers at the same time at least one sees the other and withdraws (perhaps both, and both try another port).

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use ferrule_dataplane::packet::hash::{self, HashSeed};

use super::state::Key;

/// Entries of a bucket.
const WIDTH: usize = 8;

/// `meta` holds the kind, the tag of the key, and a version that each change of hands raises.
const EMPTY: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const KIND: u64 = 3;
const TAG: u64 = 0xfffc;
const VERSION: u64 = 0x1_0000;

#[derive(Default)]
#[repr(C, align(64))]
struct Bucket {
    meta: [AtomicU64; WIDTH],
    data: [Data; WIDTH],
}

#[derive(Default)]
struct Data {
    addresses: AtomicU64,
    ports: AtomicU64,
    value: AtomicU64,
}

/// An entry in its place.
#[derive(Clone, Copy)]
struct Slot<'a> {
    meta: &'a AtomicU64,
    data: &'a Data,
}

/// A key as it is stored, and where.
#[derive(Clone, Copy)]
struct Needle {
    addresses: u64,
    ports: u64,
    tag: u64,
    buckets: [usize; 2],
}

/// Which face of a flow a key describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    /// As the inside host sees it; the value is the alias side.
    Inside,
    /// As the outside sees it; the value is the inside host.
    Wire,
}

/// What our end is translated to, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub address: u32,
    pub port: u16,
    pub owner: u16,
}

impl Entry {
    fn pack(self) -> u64 {
        u64::from(self.address) << 32 | u64::from(self.port) << 16 | u64::from(self.owner)
    }

    fn unpack(word: u64) -> Entry {
        Entry { address: (word >> 32) as u32, port: (word >> 16) as u16, owner: word as u16 }
    }
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The entry stands.
    Done,
    /// Another has the tuple.
    Taken,
    /// No room in either bucket.
    Full,
}

/// The table.
pub(super) struct Directory {
    buckets: Box<[Bucket]>,
    seed: HashSeed,
}

impl Directory {
    /// Room for so many entries.
    pub fn new(entries: usize, seed: HashSeed) -> Directory {
        let count = entries.div_ceil(WIDTH).next_power_of_two().max(2);
        Directory { buckets: (0..count).map(|_| Bucket::default()).collect(), seed }
    }

    /// Bytes of memory it has taken.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn needle(&self, key: &Key, face: Face) -> Needle {
        let addresses = u64::from(key.near) << 32 | u64::from(key.far);
        let ports = u64::from(key.near_port) << 48 | u64::from(key.far_port) << 32;
        let ports = ports | u64::from(key.protocol) << 8 | u64::from(face == Face::Wire);
        // The flow hash is symmetric; the ends' order and the face make part of the key all the same.
        let hash = |seed| {
            hash::v4(seed, key.near, key.far ^ u32::from(face == Face::Wire), key.protocol, key.near_port, key.far_port)
        };
        let second = HashSeed(self.seed.0.rotate_left(31), self.seed.1.rotate_left(13) | 1);
        let (first, second) = (hash(self.seed), hash(second));
        let mask = self.buckets.len() - 1;
        let tag = u64::from((first ^ second) >> 16) & TAG;
        Needle { addresses, ports, tag, buckets: [first as usize & mask, second as usize & mask] }
    }

    /// The entries where a key may lie.
    fn slots(&self, needle: Needle) -> impl Iterator<Item = Slot<'_>> {
        let buckets = needle.buckets.into_iter().filter_map(|at| self.buckets.get(at));
        buckets.flat_map(|bucket| bucket.meta.iter().zip(&bucket.data).map(|(meta, data)| Slot { meta, data }))
    }

    /// Whether an entry, in whatever condition, has the key.
    fn has(slot: Slot<'_>, needle: Needle) -> bool {
        // Acquire on each: a word of a later writer brings that writer's change of `meta` with it.
        (slot.data.addresses.load(Acquire), slot.data.ports.load(Acquire)) == (needle.addresses, needle.ports)
    }

    /// The value of an entry that is whole and has this key.
    fn read(slot: Slot<'_>, needle: Needle) -> Option<(u64, u64)> {
        let meta = slot.meta.load(SeqCst);
        if meta & (KIND | TAG) != FULL | needle.tag {
            return None;
        }
        let found = Directory::has(slot, needle);
        let value = slot.data.value.load(Acquire);
        (found && slot.meta.load(Acquire) == meta).then_some((value, meta))
    }

    /// The translation of a flow, if any worker has one.
    pub fn get(&self, key: &Key, face: Face) -> Option<Entry> {
        let needle = self.needle(key, face);
        self.slots(needle).find_map(|slot| Directory::read(slot, needle)).map(|(value, _)| Entry::unpack(value))
    }

    /// Enters a flow whose tuple nobody has.
    pub fn claim(&self, key: &Key, face: Face, entry: Entry) -> Claim {
        let needle = self.needle(key, face);
        let mine = self.slots(needle).find_map(|slot| {
            let meta = slot.meta.load(Relaxed);
            let writing = meta | needle.tag | WRITING;
            let open = meta & KIND == EMPTY && slot.meta.compare_exchange(meta, writing, SeqCst, Relaxed).is_ok();
            open.then_some((slot, meta))
        });
        let Some((slot, meta)) = mine else {
            return if self.get(key, face).is_some() { Claim::Taken } else { Claim::Full };
        };
        slot.data.addresses.store(needle.addresses, Release);
        slot.data.ports.store(needle.ports, Release);
        slot.data.value.store(entry.pack(), Release);
        slot.meta.store((meta + VERSION) | needle.tag | FULL, SeqCst);
        fence(SeqCst);
        // One that is being written counts, so that a tuple changing hands is never taken for free.
        let same = |other: Slot<'_>| {
            let meta = other.meta.load(SeqCst);
            meta & KIND != EMPTY && meta & TAG == needle.tag && Directory::has(other, needle)
        };
        if self.slots(needle).any(|other| !std::ptr::eq(slot.meta, other.meta) && same(other)) {
            slot.meta.store(meta + 2 * VERSION, SeqCst);
            return Claim::Taken;
        }
        Claim::Done
    }

    /// Enters a flow, in the place of one that has the tuple: for tuples that nobody can choose, the newest flow gets the replies.
    pub fn put(&self, key: &Key, face: Face, entry: Entry) -> Claim {
        let needle = self.needle(key, face);
        for slot in self.slots(needle) {
            let Some((_, meta)) = Directory::read(slot, needle) else { continue };
            let writing = (meta & !KIND) | WRITING;
            if slot.meta.compare_exchange(meta, writing, SeqCst, Relaxed).is_ok() {
                slot.data.value.store(entry.pack(), Release);
                slot.meta.store(meta + VERSION, SeqCst);
                return Claim::Done;
            }
        }
        self.claim(key, face, entry)
    }

    /// Takes a flow out where `owner` still has it.
    pub fn release(&self, key: &Key, face: Face, owner: u16) {
        let needle = self.needle(key, face);
        for slot in self.slots(needle) {
            if let Some((value, meta)) = Directory::read(slot, needle)
                && Entry::unpack(value).owner == owner
            {
                // Where this fails, another has just put its flow there.
                let free = (meta & !(KIND | TAG)) + VERSION;
                let _ = slot.meta.compare_exchange(meta, free, SeqCst, Relaxed);
            }
        }
    }

    /// Entries in use; for display.
    pub fn len(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| &bucket.meta).filter(|meta| meta.load(Relaxed) & KIND == FULL).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const SEED: HashSeed = HashSeed(7, 9);

    fn key(n: u32) -> Key {
        Key { near: n, far: 99, near_port: n as u16, far_port: 80, protocol: 6 }
    }

    #[test]
    fn entries_come_and_go() {
        let directory = Directory::new(64, SEED);
        let entry = Entry { address: 0xc0a8_0001, port: 4000, owner: 3 };
        assert_eq!(directory.claim(&key(1), Face::Inside, entry), Claim::Done);
        assert_eq!(directory.get(&key(1), Face::Inside), Some(entry));
        assert_eq!(directory.get(&key(1), Face::Wire), None, "the faces are told apart");
        assert_eq!(directory.claim(&key(1), Face::Inside, Entry { owner: 2, ..entry }), Claim::Taken);
        directory.release(&key(1), Face::Inside, 2);
        assert_eq!(directory.get(&key(1), Face::Inside), Some(entry), "only the owner ends it");
        assert_eq!(directory.put(&key(1), Face::Inside, Entry { owner: 2, ..entry }), Claim::Done);
        assert_eq!(directory.len(), 1);
        directory.release(&key(1), Face::Inside, 2);
        assert_eq!((directory.get(&key(1), Face::Inside), directory.len()), (None, 0));
    }

    #[test]
    fn a_full_table_refuses_and_forgets_nothing() {
        let directory = Directory::new(64, SEED);
        let entry = |n| Entry { address: n, port: 1, owner: 0 };
        let done: Vec<u32> =
            (0..200).filter(|n| directory.claim(&key(*n), Face::Wire, entry(*n)) == Claim::Done).collect();
        assert!(done.len() > 50 && done.len() <= 64, "{}", done.len());
        assert!(done.iter().all(|n| directory.get(&key(*n), Face::Wire) == Some(entry(*n))));
        done.iter().for_each(|n| directory.release(&key(*n), Face::Wire, 0));
        assert_eq!(directory.len(), 0);
        assert_eq!(directory.claim(&key(500), Face::Wire, entry(5)), Claim::Done);
    }

    #[test]
    fn of_workers_at_the_same_time_never_two_get_one_tuple() {
        for workers in [2u16, 4] {
            let directory = Directory::new(256, SEED);
            let (won, torn) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let rounds = 20_000u32;
            let holders: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
            std::thread::scope(|scope| {
                for owner in 0..workers {
                    let (directory, won, torn, holders) = (&directory, &won, &torn, &holders);
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let n = round % 4;
                            let entry = Entry { address: n * 0x0101, port: n as u16, owner };
                            if directory.claim(&key(n), Face::Wire, entry) == Claim::Done {
                                won.fetch_add(1, Relaxed);
                                // Nobody else may hold the tuple now.
                                assert_eq!(holders[n as usize].fetch_add(1, SeqCst), 0, "two owners of one tuple");
                                holders[n as usize].fetch_sub(1, SeqCst);
                                directory.release(&key(n), Face::Wire, owner);
                            }
                            if let Some(seen) = directory.get(&key(n), Face::Wire)
                                && (seen.address != n * 0x0101 || seen.port != n as u16)
                            {
                                torn.fetch_add(1, Relaxed);
                            }
                        }
                    });
                }
            });
            assert!(won.into_inner() > 0);
            assert_eq!(torn.into_inner(), 0);
            assert_eq!(directory.len(), 0);
        }
    }
}
