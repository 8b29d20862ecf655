#![forbid(unsafe_code)]
//! WF2Q+ (Bennett and Zhang, "Hierarchical Packet Fair Queueing Algorithms", 1997): among the queues whose next packet would have started
//! in the ideal fluid system, the one whose packet would end first there. No queue gets ahead of its share by more than a packet.

use crate::dummynet::queue::{Place, Queues};
use crate::dummynet::rank::Heap;

/// Binary places behind the point of virtual time: bytes / weight. 128 bits never wrap.
const FRACTION: u32 = 40;

/// Largest weight.
const WEIGHT_MAX: u32 = 100;

/// Virtual time, and the queues by what they wait for.
#[derive(Debug)]
pub(crate) struct Wf2q {
    /// Started by now; by finish.
    eligible: Heap,
    /// Backlogged, not started yet; by start.
    waiting: Heap,
    /// Empty, but ahead of virtual time, so their weight counts still; by finish.
    idle: Heap,
    time: u128,
    weights: u64,
    /// Number of the busy period: what queues remember from another one is void.
    period: u64,
}

fn weight(id: u32, queues: &Queues) -> u64 {
    u64::from(queues[id].share.weight.clamp(1, WEIGHT_MAX))
}

/// How much virtual time `length` bytes take at this weight.
fn span(length: u32, weight: u64) -> u128 {
    u128::from((u64::from(length) << FRACTION) / weight)
}

impl Wf2q {
    pub(crate) fn new() -> Wf2q {
        Wf2q { eligible: Heap::EMPTY, waiting: Heap::EMPTY, idle: Heap::EMPTY, time: 0, weights: 0, period: 1 }
    }

    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        let weight = weight(id, queues);
        if queues[id].share.known && queues[id].share.period == self.period {
            queues.ranks.remove(&mut self.idle, id);
            queues[id].share.start = queues[id].share.finish.max(self.time);
        } else {
            self.weights += weight;
            let share = &mut queues[id].share;
            share.known = true;
            share.period = self.period;
            share.start = self.time;
        }
        let head = queues[id].head;
        let share = &mut queues[id].share;
        share.finish = share.start + span(head, weight);
        if self.eligible.is_empty() && self.waiting.is_empty() {
            self.time = self.time.max(share.start);
        }
        self.place(id, queues);
    }

    /// Puts a backlogged queue where it belongs.
    fn place(&mut self, id: u32, queues: &mut Queues) {
        let share = queues[id].share;
        if share.start <= self.time {
            queues[id].share.place = Place::First;
            queues.ranks.insert(&mut self.eligible, id, share.finish);
        } else {
            queues[id].share.place = Place::Second;
            queues.ranks.insert(&mut self.waiting, id, share.start);
        }
    }

    /// Virtual time is at least the earliest start; whoever may start by then is eligible.
    fn advance(&mut self, queues: &mut Queues) {
        while let Some(id) = self.waiting.first() {
            let start = queues.ranks.key(id);
            if self.eligible.is_empty() {
                self.time = self.time.max(start);
            }
            if start > self.time {
                return;
            }
            queues.ranks.remove(&mut self.waiting, id);
            self.place(id, queues);
        }
    }

    pub(crate) fn select(&mut self, queues: &mut Queues) -> Option<u32> {
        if self.eligible.is_empty() && self.waiting.is_empty() {
            // The busy period ends: nobody is ahead of anybody.
            self.idle = Heap::EMPTY;
            self.time = 0;
            self.weights = 0;
            self.period += 1;
            return None;
        }
        // One idle queue that time has caught up with a packet: enough to keep pace.
        if let Some(id) = self.idle.first()
            && queues.ranks.key(id) < self.time
        {
            self.forget(id, queues);
        }
        self.advance(queues);
        self.eligible.first()
    }

    pub(crate) fn served(&mut self, id: u32, length: Option<u32>, queues: &mut Queues) {
        queues.ranks.remove(&mut self.eligible, id);
        let length = length.unwrap_or(0);
        self.time += span(length, self.weights.max(1));
        let weight = weight(id, queues);
        let (left, head) = (queues[id].length, queues[id].head);
        let share = &mut queues[id].share;
        // From the packet that left: its AQM may have dropped the one that the finish was reckoned with.
        share.start += span(length, weight);
        if left == 0 {
            share.finish = share.start;
            share.place = Place::Idle;
            let finish = share.finish;
            queues.ranks.insert(&mut self.idle, id, finish);
        } else {
            share.finish = share.start + span(head, weight);
            self.place(id, queues);
        }
        self.advance(queues);
    }

    /// Whether an idle queue may go without having been ahead of its share.
    pub(crate) fn is_settled(&self, id: u32, queues: &Queues) -> bool {
        let share = &queues[id].share;
        !share.known || share.period != self.period || share.finish <= self.time
    }

    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        let known = std::mem::take(&mut queues[id].share.known);
        if !known || queues[id].share.period != self.period {
            return;
        }
        self.weights -= weight(id, queues);
        let heap = match queues[id].share.place {
            Place::First => &mut self.eligible,
            Place::Second => &mut self.waiting,
            Place::Idle => &mut self.idle,
            Place::Nowhere => return,
        };
        queues.ranks.remove(heap, id);
        queues[id].share.place = Place::Nowhere;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dummynet::mask::FlowId;
    use crate::dummynet::queue::{Owner, Share};

    #[test]
    fn a_queue_that_ran_empty_ahead_of_its_share_starts_where_it_ended() {
        let (mut queues, mut wf2q) = (Queues::new(2, 1), Wf2q::new());
        for id in 0..2 {
            queues.create(Owner::FlowSet(id), id, 0, &FlowId::NONE, Share::new(1, 0)).unwrap();
        }
        for id in 0..2 {
            (queues[id].length, queues[id].head) = (1, 1000);
            wf2q.activated(id, &mut queues);
        }
        let first = wf2q.select(&mut queues).unwrap();
        (queues[first].length, queues[first].head) = (0, 0);
        wf2q.served(first, Some(1000), &mut queues);
        // Half of its packet was its share: virtual time is 500.
        assert_eq!(wf2q.time, 500 << FRACTION);
        assert!(!wf2q.is_settled(first, &queues));
        (queues[first].length, queues[first].head) = (1, 1000);
        wf2q.activated(first, &mut queues);
        assert_eq!(queues[first].share.start, 1000 << FRACTION);
        assert_eq!(wf2q.select(&mut queues), Some(1 - first));
    }
}
