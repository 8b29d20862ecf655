#![forbid(unsafe_code)]
//! A fixed hash table in shared memory from flows to their translation and the worker that owns it: many readers, a writer for each
//! new or ended flow, no locks.
//!
//! Each entry is a sequence lock in four words. A key may lie in two buckets of eight entries; an entry never moves. To keep a tuple
//! exclusive without a lock, a writer first shows its entry and then looks for another of the same key: of two writers at the same time at
//! least one sees the other and withdraws (perhaps both, and both try another port).

use std::sync::atomic::{AtomicU64, Ordering::*, fence};

use ferrule_dataplane::packet::hash::{self, HashSeed};

use super::state::Key;

/// Entries of a bucket.
const WIDTH: usize = 8;

/// Meaning of the low bits of `meta`; the rest is the version.
const EMPTY: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const KIND: u64 = 3;
const VERSION: u64 = 4;

#[derive(Default)]
struct Slot {
    meta: AtomicU64,
    addresses: AtomicU64,
    ports: AtomicU64,
    value: AtomicU64,
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
    slots: Box<[Slot]>,
    seed: HashSeed,
}

fn words(key: &Key, face: Face) -> (u64, u64) {
    let addresses = u64::from(key.near) << 32 | u64::from(key.far);
    let ports = u64::from(key.near_port) << 48 | u64::from(key.far_port) << 32;
    (addresses, ports | u64::from(key.protocol) << 8 | u64::from(face == Face::Wire))
}

impl Directory {
    /// Room for so many entries.
    pub fn new(entries: usize, seed: HashSeed) -> Directory {
        let count = entries.next_power_of_two().max(2 * WIDTH);
        Directory { slots: (0..count).map(|_| Slot::default()).collect(), seed }
    }

    /// Bytes of memory it has taken.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.slots)
    }

    /// The two buckets of a key.
    fn slots(&self, words: (u64, u64)) -> impl Iterator<Item = &Slot> + Clone {
        let (a, p) = words;
        let bucket = |seed, other: u32| {
            let h = hash::v4(seed, (a >> 32) as u32, a as u32 ^ other, p as u8, (p >> 48) as u16, (p >> 32) as u16);
            (h ^ (p >> 8) as u32) as usize & (self.slots.len() / WIDTH - 1)
        };
        let second = HashSeed(self.seed.0.rotate_left(31), self.seed.1.rotate_left(13) | 1);
        let (x, y) = (bucket(self.seed, 0), bucket(second, 0x9e37_79b9));
        self.slots[x * WIDTH..(x + 1) * WIDTH].iter().chain(&self.slots[y * WIDTH..(y + 1) * WIDTH])
    }

    /// The value of an entry that is whole and has this key.
    fn read(slot: &Slot, words: (u64, u64)) -> Option<(u64, u64)> {
        let meta = slot.meta.load(SeqCst);
        if meta & KIND != FULL {
            return None;
        }
        // Acquire on each: a word of a later writer brings that writer's change of `meta` with it.
        let found = (slot.addresses.load(Acquire), slot.ports.load(Acquire));
        let value = slot.value.load(Acquire);
        (found == words && slot.meta.load(Acquire) == meta).then_some((value, meta))
    }

    /// The translation of a flow, if any worker has one.
    pub fn get(&self, key: &Key, face: Face) -> Option<Entry> {
        let words = words(key, face);
        self.slots(words).find_map(|slot| Directory::read(slot, words)).map(|(value, _)| Entry::unpack(value))
    }

    /// Enters a flow whose tuple nobody has.
    pub fn claim(&self, key: &Key, face: Face, entry: Entry) -> Claim {
        let words = words(key, face);
        let mine = self.slots(words).find_map(|slot| {
            let meta = slot.meta.load(Relaxed);
            let open =
                meta & KIND == EMPTY && slot.meta.compare_exchange(meta, meta | WRITING, SeqCst, Relaxed).is_ok();
            open.then_some((slot, meta))
        });
        let Some((slot, meta)) = mine else {
            return if self.get(key, face).is_some() { Claim::Taken } else { Claim::Full };
        };
        slot.addresses.store(words.0, Release);
        slot.ports.store(words.1, Release);
        slot.value.store(entry.pack(), Release);
        slot.meta.store((meta + VERSION) | FULL, SeqCst);
        fence(SeqCst);
        // One that is being written counts, so that a tuple changing hands is never taken for free.
        let same = |other: &Slot| {
            let kind = other.meta.load(SeqCst) & KIND;
            kind != EMPTY && (other.addresses.load(Acquire), other.ports.load(Acquire)) == words
        };
        let other = self.slots(words).any(|other| !std::ptr::eq(slot, other) && same(other));
        if other {
            slot.meta.store(meta + 2 * VERSION, SeqCst);
            return Claim::Taken;
        }
        Claim::Done
    }

    /// Enters a flow, in the place of one that has the tuple: for tuples that nobody can choose, the newest flow gets the replies.
    pub fn put(&self, key: &Key, face: Face, entry: Entry) -> Claim {
        let words = words(key, face);
        for slot in self.slots(words) {
            let Some((_, meta)) = Directory::read(slot, words) else { continue };
            let writing = (meta & !KIND) | WRITING;
            if slot.meta.compare_exchange(meta, writing, SeqCst, Relaxed).is_ok() {
                slot.value.store(entry.pack(), Release);
                slot.meta.store((meta & !KIND) + VERSION + FULL, SeqCst);
                return Claim::Done;
            }
        }
        self.claim(key, face, entry)
    }

    /// Takes a flow out where `owner` still has it.
    pub fn release(&self, key: &Key, face: Face, owner: u16) {
        let words = words(key, face);
        for slot in self.slots(words) {
            if let Some((value, meta)) = Directory::read(slot, words)
                && Entry::unpack(value).owner == owner
            {
                // Where this fails, another has just put its flow there.
                let _ = slot.meta.compare_exchange(meta, (meta & !KIND) + VERSION, SeqCst, Relaxed);
            }
        }
    }

    /// Entries in use; for display.
    pub fn len(&self) -> usize {
        self.slots.iter().filter(|slot| slot.meta.load(Relaxed) & KIND == FULL).count()
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
