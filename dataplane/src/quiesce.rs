#![forbid(unsafe_code)]
//! Quiescent states: when may something that workers could still be looking at be used again?
//!
//! The control thread changes shared tables in place while workers read them without locks. What it unlinks (a group of
//! the IPv4 table, a node of the IPv6 table, an adjacency) may still be in a register of a worker. Each worker therefore
//! says once per turn of its loop, between two batches, that it holds nothing from the turn before
//! ([`Worker::quiescent`]). The control thread takes a [`Stamp`] after the unlinking store and reuses the thing once
//! every worker has said so after the stamp ([`Domain::passed`]). Nobody ever waits: [`Deferred`] keeps the things in
//! line, and they are taken back when something new is needed.
//!
//! A worker that is about to sleep says [`Worker::offline`]; it must not touch shared tables until [`Worker::online`].
//!
//! *Why this is enough* (quiescent-state-based reclamation; Desnoyers and others, "User-Level Implementations of
//! Read-Copy Update", 2012). `quiescent` reads the epoch with Acquire and stores it in the worker's own counter with
//! Release. If the counter shows a value of at least the stamp, the worker read an epoch written after the unlinking
//! store, so its later reads see that store, and its earlier reads came before the counter's store. No fence is needed.
//! Coming online is different: nothing earlier orders the worker's next reads, so `online` and `stamp` each carry a
//! sequentially consistent fence, and one of them must see the other's store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// The value in a worker's counter while it is asleep or its place is free: later than any stamp.
const IDLE: u64 = u64::MAX;

/// A counter alone on its pair of cache lines (adjacent lines are fetched together on x86-64).
#[repr(align(128))]
struct Counter(AtomicU64);

/// A point in time; see [`Domain::stamp`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(u64);

/// The set of workers whose quiescent states are watched together.
pub struct Domain {
    /// Number of the latest stamp.
    epoch: Counter,
    /// For each place: the epoch that its worker last saw between two batches, or [`IDLE`].
    seen: Box<[Counter]>,
    /// For each place: 1 if a worker holds it.
    taken: Box<[AtomicU64]>,
}

impl Domain {
    /// A domain with places for `workers` workers.
    pub fn new(workers: usize) -> Arc<Domain> {
        Arc::new(Domain {
            epoch: Counter(AtomicU64::new(1)),
            seen: (0..workers).map(|_| Counter(AtomicU64::new(IDLE))).collect(),
            taken: (0..workers).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Takes a free place, online from now on; `None` if all places are taken. Dropping the [`Worker`] frees it.
    pub fn register(self: &Arc<Self>) -> Option<Worker> {
        let place = self
            .taken
            .iter()
            .position(|taken| taken.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok())?;
        let mut worker = Worker { domain: Arc::clone(self), place };
        worker.online();
        Some(worker)
    }

    /// Marks the present moment. Call it *after* the store that unlinks the thing to be reused.
    pub fn stamp(&self) -> Stamp {
        let stamp = self.epoch.0.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        Stamp(stamp)
    }

    /// Whether every worker has been quiescent, asleep or absent since `stamp`.
    pub fn passed(&self, stamp: Stamp) -> bool {
        self.seen.iter().all(|seen| seen.0.load(Ordering::SeqCst) >= stamp.0)
    }

    /// The places whose worker has not passed `stamp` yet: what a watchdog shows.
    pub fn behind(&self, stamp: Stamp) -> impl Iterator<Item = usize> + '_ {
        (0..self.seen.len()).filter(move |&place| self.seen[place].0.load(Ordering::SeqCst) < stamp.0)
    }
}

/// A worker's own place in a [`Domain`].
pub struct Worker {
    domain: Arc<Domain>,
    place: usize,
}

impl Worker {
    /// The number of this place, from 0.
    pub fn place(&self) -> usize {
        self.place
    }

    /// To be called once per turn, between two batches, when nothing that was read from shared tables is kept.
    #[inline(always)]
    pub fn quiescent(&mut self) {
        let now = self.domain.epoch.0.load(Ordering::Acquire);
        if let Some(seen) = self.domain.seen.get(self.place) {
            seen.0.store(now, Ordering::Release);
        }
    }

    /// To be called before sleeping: shared tables are not touched until [`Worker::online`].
    pub fn offline(&mut self) {
        self.domain.seen[self.place].0.store(IDLE, Ordering::Release);
    }

    /// To be called on waking, before shared tables are read again.
    pub fn online(&mut self) {
        let now = self.domain.epoch.0.load(Ordering::Acquire);
        self.domain.seen[self.place].0.store(now, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.offline();
        self.domain.taken[self.place].store(0, Ordering::Release);
    }
}

/// Unlinked things in the order of their unlinking, each waiting for its stamp to pass. Owned by the control thread.
pub struct Deferred<T> {
    domain: Arc<Domain>,
    waiting: VecDeque<(Stamp, T)>,
}

impl<T> Deferred<T> {
    /// An empty line for things that the workers of `domain` may be reading.
    pub fn new(domain: Arc<Domain>) -> Deferred<T> {
        Deferred { domain, waiting: VecDeque::new() }
    }

    /// Puts `things`, which were unlinked before this call, in line under one stamp.
    pub fn retire(&mut self, things: impl IntoIterator<Item = T>) {
        let mut things = things.into_iter().peekable();
        if things.peek().is_some() {
            let stamp = self.domain.stamp();
            self.waiting.extend(things.map(|thing| (stamp, thing)));
        }
    }

    /// Hands every thing whose stamp has passed to `reuse`.
    pub fn reclaim(&mut self, mut reuse: impl FnMut(T)) {
        let mut passed = None;
        while let Some(&(stamp, _)) = self.waiting.front() {
            if passed != Some(stamp) {
                if !self.domain.passed(stamp) {
                    break;
                }
                passed = Some(stamp);
            }
            if let Some((_, thing)) = self.waiting.pop_front() {
                reuse(thing);
            }
        }
    }

    /// The number of things in line.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is in line.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that the line itself occupies.
    pub fn memory(&self) -> usize {
        self.waiting.capacity() * size_of::<(Stamp, T)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_stamp_passes_when_every_worker_was_quiescent_after_it() {
        let domain = Domain::new(3);
        let (mut first, mut second) = (domain.register().unwrap(), domain.register().unwrap());
        let stamp = domain.stamp();
        assert!(!domain.passed(stamp));
        first.quiescent();
        assert!(!domain.passed(stamp));
        assert_eq!(domain.behind(stamp).collect::<Vec<_>>(), [second.place()]);
        second.quiescent();
        assert!(domain.passed(stamp));
        assert!(!domain.passed(domain.stamp()), "a later stamp needs a later quiescent state");
    }

    #[test]
    fn sleeping_and_departed_workers_hold_nothing_back() {
        let domain = Domain::new(2);
        let (mut sleeper, leaver) = (domain.register().unwrap(), domain.register().unwrap());
        assert!(domain.register().is_none(), "only two places");
        let stamp = domain.stamp();
        sleeper.offline();
        assert!(!domain.passed(stamp));
        drop(leaver);
        assert!(domain.passed(stamp));
        sleeper.online();
        assert!(domain.passed(stamp), "it woke after the stamp");
        assert!(!domain.passed(domain.stamp()));
        assert_eq!(domain.register().unwrap().place(), 1, "the place is free again");
    }

    #[test]
    fn deferred_things_come_back_in_order_and_not_early() {
        let domain = Domain::new(1);
        let mut worker = domain.register().unwrap();
        let mut deferred = Deferred::new(Arc::clone(&domain));
        deferred.retire([1, 2]);
        let mut back = Vec::new();
        deferred.reclaim(|thing| back.push(thing));
        assert!(back.is_empty());
        worker.quiescent();
        deferred.retire([3]);
        deferred.reclaim(|thing| back.push(thing));
        assert_eq!(back, [1, 2]);
        worker.offline();
        deferred.reclaim(|thing| back.push(thing));
        assert_eq!(back, [1, 2, 3]);
        assert!(deferred.is_empty());
    }

    /// The writer moves a published index between slots and poisons a slot only when its stamp has passed; readers that
    /// sleep and wake now and then must never meet the poison.
    #[test]
    fn readers_never_see_a_reused_slot() {
        const SLOTS: usize = 8;
        const POISON: u64 = u64::MAX;
        let domain = Domain::new(2);
        let slots: Arc<Vec<AtomicU64>> = Arc::new((0..SLOTS).map(|_| AtomicU64::new(POISON)).collect());
        let published = Arc::new(AtomicU64::new(0));
        slots[0].store(0, Ordering::Relaxed);
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut worker = domain.register().unwrap();
                let (slots, published, stop) = (Arc::clone(&slots), Arc::clone(&published), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut turns = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let slot = published.load(Ordering::Acquire) as usize;
                        for _ in 0..4 {
                            assert_ne!(slots[slot].load(Ordering::Relaxed), POISON);
                        }
                        turns += 1;
                        if turns.is_multiple_of(16) {
                            worker.offline();
                            std::thread::yield_now();
                            worker.online();
                        } else {
                            worker.quiescent();
                        }
                    }
                    turns
                })
            })
            .collect();
        let mut free: Vec<usize> = (1..SLOTS).collect();
        let mut deferred = Deferred::new(Arc::clone(&domain));
        let (mut moves, mut current) = (0_u64, 0);
        while moves < 5000 {
            deferred.reclaim(|slot: usize| {
                slots[slot].store(POISON, Ordering::Relaxed);
                free.push(slot);
            });
            let Some(slot) = free.pop() else {
                std::thread::yield_now();
                continue;
            };
            slots[slot].store(moves, Ordering::Relaxed);
            published.store(slot as u64, Ordering::Release);
            deferred.retire([std::mem::replace(&mut current, slot)]);
            moves += 1;
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    }
}
