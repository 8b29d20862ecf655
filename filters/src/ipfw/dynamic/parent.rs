#![forbid(unsafe_code)]
//! Parents of `limit` rules: how many states there are for one combination of the rule's fields, exact over all workers.
//!
//! A parent is a slot in one table for the box, found by a keyed 62-bit fingerprint of rule, name and masked flow within a window behind its
//! hash. (Two combinations with one fingerprint would share a count; with a secret key and 65,536 parents that is less likely than a
//! failing memory cell.) Nobody locks or waits:
//!
//! - *Counting* is a compare-and-swap on the word that holds the count and the slot's generation, so that a slot that changes hands
//!   in between is noticed.
//! - *A new parent* is put in a free slot tentatively; then the window is read again. Of two tentative slots with one
//!   fingerprint the first in the window takes the other's away, and a confirmed one makes the tentative one give up. So a combination
//!   has one slot that counts.
//! - *Ending*: a parent without states, not asked for in the last `dyn_short_lifetime` seconds, has its count closed, and only who closed
//!   it frees the slot.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::FromZeros;

use super::key::{FlowKey, NameId};
use super::settings::MOST_PARENTS;
use super::state::RuleRef;

/// Slots: twice the most parents, so that windows do not fill up.
const SLOTS: usize = 2 * MOST_PARENTS as usize;
/// Slots in which a parent may be.
const WINDOW: usize = 32;
/// Tries of one request before it is refused; each failure means that another worker has got on.
const TRIES: usize = 64;

const TENTATIVE: u64 = 1;
const CONFIRMED: u64 = 2;
/// The count of a slot that is being freed.
const CLOSED: u32 = u32::MAX;

/// A slot in words; the description is written by who confirmed it and only read to be shown.
type Slot = [AtomicU64; 10];
/// Fingerprint and state; 0 when free.
const IDENTITY: usize = 0;
/// Generation (high half) and count (low half).
const COUNT: usize = 1;
/// Second at which it ends if it has no states.
const EXPIRE: usize = 2;
/// 1 when the words below are written.
const DESCRIBED: usize = 3;
/// Rule: generation in the high half.
const RULE: usize = 4;
/// Family (bit 63), zone (32-47), name (16-31), protocol (0-7).
const META: usize = 5;
/// Ports in the low half; for IPv4 the source in the high half.
const PORTS: usize = 6;
/// Source and destination: for IPv6 [`SOURCE`] to 9 hold the addresses' halves, the last of them in the next word.
const SOURCE: usize = 7;

/// Why a state has no parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentError {
    /// The combination has as many states as the rule allows.
    Limit,
    /// There are `dyn_parent_max` parents.
    TooMany,
}

/// A parent as `ipfw -d list` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentView {
    /// The rule's combination; fields that do not count are 0.
    pub key: FlowKey,
    /// Group.
    pub name: NameId,
    /// Its rule.
    pub rule: RuleRef,
    /// States.
    pub count: u32,
    /// Seconds until it ends, if it has no states then.
    pub expires_in: u32,
}

/// What a state asks its parent for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) rule: RuleRef,
    pub(super) name: NameId,
    /// Masked.
    pub(super) key: &'a FlowKey,
    /// Most states.
    pub(super) limit: u32,
    /// Most parents.
    pub(super) most: u32,
    /// Second at which a parent without states ends.
    pub(super) expire: u32,
}

/// The parents of all workers.
pub struct Parents {
    slots: Box<[Slot]>,
    count: AtomicU32,
    key: RandomState,
}

impl std::fmt::Debug for Parents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parents").field("count", &self.len()).finish_non_exhaustive()
    }
}

impl Default for Parents {
    fn default() -> Parents {
        Parents::new()
    }
}

impl Parents {
    /// No parents.
    ///
    /// # Panics
    /// If there is no address space for 10 MiB.
    pub fn new() -> Parents {
        // Asked for zeroed: pages that no parent ever used are not backed by memory.
        let slots = <[Slot]>::new_box_zeroed_with_elems(SLOTS);
        let slots = slots.unwrap_or_else(|_| panic!("no memory for the parents of limit rules: raise ulimit -v"));
        Parents { slots, count: AtomicU32::new(0), key: RandomState::new() }
    }

    /// Number of parents (`dyn_parent_count`).
    pub fn len(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counts one more state of the combination, and makes its parent if there is none yet; the slot's number.
    pub(super) fn acquire(&self, request: &Request<'_>) -> Result<u32, ParentError> {
        let hash = self.key.hash_one((request.rule, request.name, request.key));
        let fingerprint = (hash << 2).max(4);
        let start = hash as usize >> 47;
        for _ in 0..TRIES {
            for number in Self::window(start) {
                let slot = &self.slots[number];
                if slot[IDENTITY].load(Acquire) != fingerprint | CONFIRMED {
                    continue;
                }
                match Self::count_one(slot, fingerprint, request.limit) {
                    Counted::Yes => {
                        slot[EXPIRE].store(u64::from(request.expire), Relaxed);
                        return Ok(number as u32);
                    }
                    Counted::Limit => {
                        slot[EXPIRE].store(u64::from(request.expire), Relaxed);
                        return Err(ParentError::Limit);
                    }
                    Counted::Gone => {}
                }
            }
            if self.count.fetch_add(1, SeqCst) >= request.most {
                self.count.fetch_sub(1, SeqCst);
                return Err(ParentError::TooMany);
            }
            match self.claim(start, fingerprint, request.expire) {
                Claim::Confirmed(number) => self.describe(number, request),
                Claim::Lost => {
                    self.count.fetch_sub(1, SeqCst);
                }
                Claim::NoSlot => {
                    self.count.fetch_sub(1, SeqCst);
                    return Err(ParentError::TooMany);
                }
            }
        }
        Err(ParentError::TooMany)
    }

    fn window(start: usize) -> impl Iterator<Item = usize> {
        (0..WINDOW).map(move |step| (start + step) % SLOTS)
    }

    fn count_one(slot: &Slot, fingerprint: u64, limit: u32) -> Counted {
        loop {
            let word = slot[COUNT].load(SeqCst);
            // Read after the word: a slot that changed hands before has another generation, and the exchange below fails.
            if slot[IDENTITY].load(SeqCst) != fingerprint | CONFIRMED || word as u32 == CLOSED {
                return Counted::Gone;
            }
            if word as u32 >= limit {
                return Counted::Limit;
            }
            if slot[COUNT].compare_exchange(word, word + 1, SeqCst, SeqCst).is_ok() {
                return Counted::Yes;
            }
        }
    }

    fn claim(&self, start: usize, fingerprint: u64, expire: u32) -> Claim {
        let (tentative, confirmed) = (fingerprint | TENTATIVE, fingerprint | CONFIRMED);
        let take =
            |number: &usize| self.slots[*number][IDENTITY].compare_exchange(0, tentative, SeqCst, SeqCst).is_ok();
        let Some(own) = Self::window(start).find(take) else { return Claim::NoSlot };
        let slot = &self.slots[own];
        let give_up = || {
            // Fails where another worker has taken the claim away already.
            let _ = slot[IDENTITY].compare_exchange(tentative, 0, SeqCst, SeqCst);
            Claim::Lost
        };
        let mut behind_own = false;
        for other in Self::window(start) {
            if other == own {
                behind_own = true;
                continue;
            }
            let identity = &self.slots[other][IDENTITY];
            let mut seen = identity.load(SeqCst);
            if seen == tentative && behind_own {
                match identity.compare_exchange(tentative, 0, SeqCst, SeqCst) {
                    Ok(_) => continue,
                    Err(now) => seen = now,
                }
            }
            let open = self.slots[other][COUNT].load(SeqCst) as u32 != CLOSED;
            if seen == tentative || (seen == confirmed && open) {
                return give_up();
            }
        }
        let word = slot[COUNT].load(SeqCst);
        if word as u32 != 0 && word as u32 != CLOSED {
            return give_up();
        }
        let opened = ((word >> 32) + 1) << 32;
        // Before it can be seen: or a sweep might end it at once.
        slot[EXPIRE].store(u64::from(expire), SeqCst);
        if slot[COUNT].compare_exchange(word, opened, SeqCst, SeqCst).is_err()
            || slot[IDENTITY].compare_exchange(tentative, confirmed, SeqCst, SeqCst).is_err()
        {
            return give_up();
        }
        Claim::Confirmed(own)
    }

    fn describe(&self, number: usize, request: &Request<'_>) {
        let slot = &self.slots[number];
        slot[RULE].store(u64::from(request.rule.generation) << 32 | u64::from(request.rule.index), Relaxed);
        let (family, zone, ports, words) = match *request.key {
            FlowKey::V4 { addresses, ports, .. } => (0, 0, ports, [addresses, 0, 0, 0]),
            FlowKey::V6 { source, destination, ports, zone, .. } => {
                let halves = [(source >> 64) as u64, source as u64, (destination >> 64) as u64, destination as u64];
                (1_u64, zone, ports, halves)
            }
        };
        // Four halves of addresses and the ports in four words: META has room for the ports.
        let meta = family << 63 | u64::from(request.name.0) << 16 | u64::from(request.key.protocol());
        slot[META].store(meta | u64::from(zone) << 32, Relaxed);
        slot[PORTS].store(words[0], Relaxed);
        for (word, half) in slot[SOURCE..].iter().zip(&words[1..]) {
            word.store(*half, Relaxed);
        }
        slot[DESCRIBED].store(u64::from(ports) << 1 | 1, Release);
    }

    /// One state fewer.
    pub(super) fn release(&self, number: u32) {
        if let Some(slot) = self.slots.get(number as usize) {
            slot[COUNT].fetch_sub(1, SeqCst);
        }
    }

    /// Frees the parents that have ended among `budget` slots from `cursor` on, which it moves; any worker may call it.
    pub(super) fn sweep(&self, now: u32, cursor: &mut usize, budget: usize) {
        if self.is_empty() {
            return;
        }
        for _ in 0..budget {
            *cursor = (*cursor + 1) % SLOTS;
            let slot = &self.slots[*cursor];
            let identity = slot[IDENTITY].load(Relaxed);
            if identity & CONFIRMED == 0 || slot[EXPIRE].load(Relaxed) as u32 > now {
                continue;
            }
            let word = slot[COUNT].load(SeqCst);
            let closed = word | u64::from(CLOSED);
            if word as u32 == 0 && slot[COUNT].compare_exchange(word, closed, SeqCst, SeqCst).is_ok() {
                slot[DESCRIBED].store(0, Relaxed);
                slot[IDENTITY].store(0, SeqCst);
                self.count.fetch_sub(1, SeqCst);
            }
        }
    }

    /// Lets the parents of rules for which `gone` is true end as soon as they have no states, as when their rules are deleted.
    pub fn end(&self, gone: impl Fn(RuleRef) -> bool) {
        for slot in &self.slots {
            if slot[DESCRIBED].load(Acquire) != 0 && gone(rule_of(slot)) {
                slot[EXPIRE].store(0, Relaxed);
            }
        }
    }

    /// Shows every parent; `now` is in seconds as [`super::States::seconds`] has them. Control side.
    pub fn list(&self, now: u32, mut each: impl FnMut(&ParentView)) {
        for slot in &self.slots {
            let described = slot[DESCRIBED].load(Acquire);
            let count = slot[COUNT].load(Relaxed) as u32;
            if described == 0 || count == CLOSED {
                continue;
            }
            let meta = slot[META].load(Relaxed);
            let (ports, protocol) = ((described >> 1) as u32, meta as u8);
            let words: [u64; 4] = std::array::from_fn(|word| slot[PORTS + word].load(Relaxed));
            let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
            let key = if meta >> 63 == 0 {
                FlowKey::V4 { addresses: words[0], ports, protocol }
            } else {
                let (source, destination) = (wide(words[0], words[1]), wide(words[2], words[3]));
                FlowKey::V6 { source, destination, ports, protocol, zone: (meta >> 32) as u16 }
            };
            each(&ParentView {
                key,
                name: NameId((meta >> 16) as u16),
                rule: rule_of(slot),
                count,
                expires_in: (slot[EXPIRE].load(Relaxed) as u32).saturating_sub(now),
            });
        }
    }
}

fn rule_of(slot: &Slot) -> RuleRef {
    let word = slot[RULE].load(Relaxed);
    RuleRef { index: word as u32, generation: (word >> 32) as u32 }
}

enum Counted {
    Yes,
    Limit,
    Gone,
}

enum Claim {
    Confirmed(usize),
    Lost,
    NoSlot,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn request(key: &FlowKey, limit: u32, most: u32) -> Request<'_> {
        Request { rule: RuleRef { index: 7, generation: 1 }, name: NameId::DEFAULT, key, limit, most, expire: 10 }
    }

    #[test]
    fn a_combination_has_so_many_states_and_no_more() {
        let parents = Parents::new();
        let (one, other) = (FlowKey::v4(1, 0, 6, 0, 0), FlowKey::v6(1 << 90, 5, 6, 0, 80));
        let first = parents.acquire(&request(&one, 2, 2)).unwrap();
        assert_eq!(parents.acquire(&request(&one, 2, 2)), Ok(first));
        assert_eq!(parents.acquire(&request(&one, 2, 2)), Err(ParentError::Limit));
        assert!(parents.acquire(&request(&other, 2, 2)).is_ok());
        assert_eq!(parents.acquire(&request(&FlowKey::v4(2, 0, 6, 0, 0), 2, 2)), Err(ParentError::TooMany));
        let mut shown = Vec::new();
        parents.list(4, |view| shown.push((view.key, view.count, view.expires_in)));
        shown.sort_by_key(|view| view.1);
        assert_eq!(shown, [(other, 1, 6), (one, 2, 6)]);
        parents.release(first);
        assert_eq!(parents.acquire(&request(&one, 2, 2)), Ok(first));
    }

    #[test]
    fn a_parent_ends_when_it_has_no_states_and_was_not_asked_for() {
        let parents = Parents::new();
        let key = FlowKey::v4(1, 0, 6, 0, 0);
        let slot = parents.acquire(&request(&key, 2, 2)).unwrap();
        let sweep = |now| parents.sweep(now, &mut 0, SLOTS);
        sweep(20);
        assert_eq!(parents.len(), 1, "it has a state");
        parents.release(slot);
        sweep(9);
        assert_eq!(parents.len(), 1, "not yet");
        sweep(10);
        assert!(parents.is_empty());
        let again = parents.acquire(&request(&key, 1, 2)).unwrap();
        parents.release(again);
        parents.end(|rule| rule.index == 7);
        sweep(0);
        assert!(parents.is_empty(), "its rule is gone");
    }

    /// Threads take and give back states of few combinations while another frees what it can: the limit is never passed, and in the end
    /// all counts are zero.
    #[test]
    fn the_limit_is_exact_across_workers() {
        const LIMIT: u32 = 3;
        let parents = Arc::new(Parents::new());
        let held: Arc<Vec<AtomicU32>> = Arc::new((0..4).map(|_| AtomicU32::new(0)).collect());
        let stop = Arc::new(AtomicBool::new(false));
        let sweeper = {
            let (parents, stop) = (Arc::clone(&parents), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Relaxed) {
                    parents.sweep(100, &mut 0, SLOTS);
                }
            })
        };
        let workers: Vec<_> = (0..3_u32)
            .map(|worker| {
                let (parents, held) = (Arc::clone(&parents), Arc::clone(&held));
                std::thread::spawn(move || {
                    let mut taken = 0;
                    for turn in 0..20_000_u32 {
                        let which = (turn.wrapping_mul(2_654_435_761) >> 8 ^ worker) % 4;
                        let key = FlowKey::v4(which, 0, 6, 0, 0);
                        if let Ok(slot) = parents.acquire(&request(&key, LIMIT, 100)) {
                            let holders = held[which as usize].fetch_add(1, SeqCst) + 1;
                            assert!(holders <= LIMIT, "{holders}");
                            taken += 1;
                            held[which as usize].fetch_sub(1, SeqCst);
                            parents.release(slot);
                        }
                    }
                    taken
                })
            })
            .collect();
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
        stop.store(true, Relaxed);
        sweeper.join().unwrap();
        parents.sweep(100, &mut 0, SLOTS);
        assert!(parents.is_empty());
        assert!(parents.slots.iter().all(|slot| slot[IDENTITY].load(Relaxed) == 0));
    }
}
