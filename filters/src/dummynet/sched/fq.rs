#![forbid(unsafe_code)]
//! Flow queueing of FQ-CoDel (RFC 8290) and FQ-PIE: deficit round robin over flows, where a flow that just became active goes before those
//! that stand in line already.

use super::list::List;
use crate::dummynet::queue::{Place, Queues};
use crate::dummynet::rank::Heap;

/// The active flows.
#[derive(Debug)]
pub(crate) struct Fq {
    new: List,
    old: List,
    quantum: i64,
    /// Flows with packets by an upper bound of their length, the longest first: who loses when all together have too many.
    fat: Heap,
}

/// Key of a queue with this many packets in `fat`.
fn rank(length: u32) -> u128 {
    u128::from(u32::MAX - length)
}

impl Fq {
    pub(crate) fn new(quantum: u32) -> Fq {
        Fq { new: List::EMPTY, old: List::EMPTY, quantum: i64::from(quantum.clamp(1, 9000)), fat: Heap::EMPTY }
    }

    pub(crate) fn set_quantum(&mut self, quantum: u32) {
        self.quantum = i64::from(quantum.clamp(1, 9000));
    }

    /// Whether this flow is in no list: its next packet makes it new.
    pub(crate) fn is_inactive(id: u32, queues: &Queues) -> bool {
        queues[id].share.place == Place::Nowhere
    }

    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        if Fq::is_inactive(id, queues) {
            queues[id].share.credit = self.quantum;
            queues[id].share.place = Place::First;
            self.new.push(id, queues);
        }
    }

    /// A packet was added.
    pub(crate) fn grown(&mut self, id: u32, queues: &mut Queues) {
        let key = rank(queues[id].length);
        if queues[id].share.known {
            if queues.ranks.key(id) <= key {
                return;
            }
            queues.ranks.remove(&mut self.fat, id);
        }
        queues[id].share.known = true;
        queues.ranks.insert(&mut self.fat, id, key);
    }

    /// The flow with most packets. Bounds that packets sent have made too high are put right on the way, each once.
    pub(crate) fn fattest(&mut self, queues: &mut Queues) -> Option<u32> {
        loop {
            let id = self.fat.first()?;
            let key = rank(queues[id].length);
            if queues.ranks.key(id) == key {
                return Some(id);
            }
            queues.ranks.remove(&mut self.fat, id);
            queues.ranks.insert(&mut self.fat, id, key);
        }
    }

    pub(crate) fn select(&mut self, queues: &mut Queues) -> Option<u32> {
        let mut passed = 0;
        loop {
            let is_new = self.new.length() > 0;
            let list = if is_new { &mut self.new } else { &mut self.old };
            let id = list.first()?;
            if queues[id].share.credit >= 0 {
                return Some(id);
            }
            list.pop(queues);
            queues[id].share.credit += self.quantum;
            self.make_old(id, queues);
            passed = if is_new { 0 } else { passed + 1 };
            if passed == self.old.length() {
                passed = 0;
                self.skip_rounds(queues);
            }
        }
    }

    /// As in RR: rounds in which nobody may send are given at once.
    fn skip_rounds(&self, queues: &mut Queues) {
        let missing = |id: u32| (-queues[id].share.credit).max(0) as u64;
        let rounds = self.old.iter(queues).map(|id| missing(id).div_ceil(self.quantum as u64)).min().unwrap_or(0);
        let bytes = rounds as i64 * self.quantum;
        self.old.give(|_, _| bytes, queues);
    }

    fn make_old(&mut self, id: u32, queues: &mut Queues) {
        queues[id].share.place = Place::Second;
        self.old.push(id, queues);
    }

    pub(crate) fn served(&mut self, id: u32, length: Option<u32>, queues: &mut Queues) {
        if let Some(length) = length {
            queues[id].share.credit -= i64::from(length);
            return;
        }
        // Found empty: a new flow stands in line once more, so that it cannot stay new by sending one packet at a time.
        if queues[id].share.place == Place::First {
            self.new.pop(queues);
            self.make_old(id, queues);
        } else {
            self.old.pop(queues);
            queues[id].share.place = Place::Nowhere;
            self.slim(id, queues);
        }
    }

    fn slim(&mut self, id: u32, queues: &mut Queues) {
        if std::mem::take(&mut queues[id].share.known) {
            queues.ranks.remove(&mut self.fat, id);
        }
    }

    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        self.slim(id, queues);
        match std::mem::replace(&mut queues[id].share.place, Place::Nowhere) {
            Place::First => self.new.remove(id, queues),
            Place::Second => self.old.remove(id, queues),
            Place::Nowhere | Place::Idle => (),
        }
    }
}
