#![forbid(unsafe_code)]
//! QFQ (Checconi, Rizzo, Valente, "QFQ: Efficient Packet Scheduling with Tight Guarantees", IEEE/ACM ToN 2013): WF2Q+ with rounded time
//! stamps, in constant time. Queues whose longest packet takes about the same virtual time form a group; within a group they are sorted
//! by buckets; groups are chosen by bit operations.

use crate::dummynet::queue::Queues;
use crate::dummynet::rank::NONE;

/// Binary places behind the point of virtual time: bytes / weight.
const FRACTION: u32 = 30;
/// Binary logarithm of the bucket width of group 0; that of group i is i more. Group 19 holds 2,048 bytes at weight 1.
const FIRST_WIDTH: u32 = FRACTION + 11 - 19;
const GROUPS: usize = 20;
/// Buckets of a group: one word. The paper needs longest / shortest + 5; whatever would be beyond goes in the last.
const BUCKETS: u32 = 64;
const WEIGHT_MAX: u32 = 1 << 16;
/// Longest packet that a queue may be set for, and the one assumed otherwise (FreeBSD's).
const LONGEST_MAX: u32 = 2000;
const LONGEST: u32 = 1500;

#[derive(Debug)]
struct Group {
    start: u128,
    finish: u128,
    /// Bucket of `start`.
    front: u32,
    /// Buckets in use, the front one at bit 0.
    full: u64,
    buckets: [u32; BUCKETS as usize],
}

/// Groups by two questions: has it started (eligible), and does a group above end sooner (blocked)?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    EligibleReady,
    WaitingReady,
    EligibleBlocked,
    WaitingBlocked,
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Qfq {
    time: u128,
    weights: u64,
    sets: [u32; 4],
    groups: [Group; GROUPS],
}

fn weight(id: u32, queues: &Queues) -> u64 {
    u64::from(queues[id].share.weight.clamp(1, WEIGHT_MAX))
}

fn longest(id: u32, queues: &Queues) -> u32 {
    match queues[id].share.longest {
        0 => LONGEST,
        l => l.min(LONGEST_MAX),
    }
}

/// Virtual time that `length` bytes take.
fn span(length: u32, weight: u64) -> u128 {
    (u128::from(length) << FRACTION) / u128::from(weight)
}

fn width(group: usize) -> u32 {
    FIRST_WIDTH + group as u32
}

/// Rounds down to a bucket's start.
fn floor(time: u128, width: u32) -> u128 {
    time >> width << width
}

/// The group with the narrowest buckets that hold the queue's longest packet.
fn group_of(id: u32, queues: &Queues) -> usize {
    let span = span(longest(id, queues), weight(id, queues));
    (0..GROUPS - 1).find(|&g| span <= 1 << width(g)).unwrap_or(GROUPS - 1)
}

impl Qfq {
    pub(crate) fn new() -> Qfq {
        let group = || Group { start: 0, finish: 0, front: 0, full: 0, buckets: [NONE; BUCKETS as usize] };
        Qfq { time: 0, weights: 0, sets: [0; 4], groups: std::array::from_fn(|_| group()) }
    }

    fn ready(&self) -> u32 {
        self.sets[State::EligibleReady as usize]
    }

    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        let weight = weight(id, queues);
        if !std::mem::replace(&mut queues[id].share.known, true) {
            self.weights += weight;
            queues[id].share.group = group_of(id, queues) as u8;
            queues[id].share.finish = 0;
        }
        let group = usize::from(queues[id].share.group);
        let mut start = self.fair_start(group, queues[id].share.finish);
        let width = width(group);
        let g = &mut self.groups[group];
        if g.full != 0 {
            if start < g.start {
                let steps = (g.start - floor(start, width)) >> width;
                if steps < u128::from(g.full.leading_zeros()) {
                    // The group starts earlier now; it was waiting.
                    let steps = steps as u32;
                    g.full <<= steps;
                    g.front = (g.front + BUCKETS - steps) % BUCKETS;
                    self.leave_sets(group);
                    self.enter(group, floor(start, width));
                } else {
                    start = g.start;
                }
            }
        } else {
            let rounded = floor(start, width);
            if self.ready() == 0 && rounded > self.time {
                self.time = rounded;
            }
            self.enter(group, rounded);
        }
        let head = queues[id].head;
        queues[id].share.start = start;
        queues[id].share.finish = start + span(head, weight);
        self.insert(group, id, queues);
    }

    /// When a queue that was idle starts: where it ended, unless that is long ago or nonsense; then now, but not so that it would
    /// upset the order of the groups that are ready.
    fn fair_start(&self, group: usize, finish: u128) -> u128 {
        let width = width(group);
        let rounded = floor(finish, width);
        let limit = floor(self.time, width) + (1 << width);
        if finish > self.time && rounded <= limit {
            return finish;
        }
        if let Some(next) = lowest(self.ready() & !((1 << group) - 1)) {
            let other = self.groups[next].finish;
            if rounded > other {
                return limit.min(other);
            }
        }
        self.time
    }

    /// Sets a group's time stamps, and its state after them.
    fn enter(&mut self, group: usize, start: u128) {
        self.groups[group].start = start;
        self.groups[group].finish = start + (2 << width(group));
        let state = self.state(group);
        self.sets[state as usize] |= 1 << group;
    }

    fn leave_sets(&mut self, group: usize) {
        self.sets.iter_mut().for_each(|set| *set &= !(1 << group));
    }

    fn state(&self, group: usize) -> State {
        let waiting = self.groups[group].start > self.time;
        let above = lowest(self.ready() & !((1 << group) - 1) & !(1 << group));
        let blocked = above.is_some_and(|next| self.groups[group].finish > self.groups[next].finish);
        match (waiting, blocked) {
            (false, false) => State::EligibleReady,
            (true, false) => State::WaitingReady,
            (false, true) => State::EligibleBlocked,
            (true, true) => State::WaitingBlocked,
        }
    }

    /// Puts a queue in the bucket of its start.
    fn insert(&mut self, group: usize, id: u32, queues: &mut Queues) {
        let g = &mut self.groups[group];
        let width = width(group);
        let mut bucket = (queues[id].share.start.max(g.start) - g.start) >> width;
        if bucket >= u128::from(BUCKETS) {
            // A packet much longer than the queue was set for: as late as can be told.
            bucket = u128::from(BUCKETS - 1);
            let share = &mut queues[id].share;
            let early = share.start - (g.start + (bucket << width));
            share.start -= early;
            share.finish -= early;
        }
        let at = ((g.front + bucket as u32) % BUCKETS) as usize;
        queues[id].share.next = g.buckets[at];
        g.buckets[at] = id;
        g.full |= 1 << bucket;
    }

    pub(crate) fn select(&mut self, _queues: &mut Queues) -> Option<u32> {
        let g = &self.groups[lowest(self.ready())?];
        Some(g.buckets[g.front as usize])
    }

    pub(crate) fn served(&mut self, id: u32, length: Option<u32>, queues: &mut Queues) {
        let group = usize::from(queues[id].share.group);
        let length = length.unwrap_or(0);
        self.time += span(length, self.weights.max(1));
        let weight = weight(id, queues);
        let (left, head) = (queues[id].length, queues[id].head);
        let share = &mut queues[id].share;
        share.start += span(length, weight);
        share.finish = share.start + if left > 0 { span(head, weight) } else { 0 };
        let moved = left == 0 || floor(share.start, width(group)) != self.groups[group].start;
        if moved {
            self.pop_front(group, queues);
            if left > 0 {
                self.insert(group, id, queues);
            }
            self.refresh(group, queues);
        }
        self.make_eligible();
    }

    /// Takes out the queue that was just served.
    fn pop_front(&mut self, group: usize, queues: &Queues) {
        let g = &mut self.groups[group];
        let at = g.front as usize;
        g.buckets[at] = queues[g.buckets[at]].share.next;
        if g.buckets[at] == NONE {
            g.full &= !1;
        }
    }

    /// The group's first bucket may be another one now: sets its time stamps, and lets go whom it blocked.
    fn refresh(&mut self, group: usize, queues: &Queues) {
        let before = self.groups[group].finish;
        match self.first_start(group, queues) {
            None => self.leave_sets(group),
            Some(start) if start == self.groups[group].start => return,
            Some(start) => {
                self.leave_sets(group);
                self.enter(group, start);
            }
        }
        // Groups below were blocked by this one if it was the first ready one above them.
        let above = lowest(self.ready() & !((2 << group) - 1));
        if above.is_none_or(|next| self.groups[next].finish > before) {
            let below = (1 << group) - 1;
            self.shift(below, State::EligibleBlocked, State::EligibleReady);
            self.shift(below, State::WaitingBlocked, State::WaitingReady);
        }
    }

    /// Turns the buckets so that the first one in use is the front; its start.
    fn first_start(&mut self, group: usize, queues: &Queues) -> Option<u128> {
        let g = &mut self.groups[group];
        if g.full == 0 {
            return None;
        }
        let skip = g.full.trailing_zeros();
        g.front = (g.front + skip) % BUCKETS;
        g.full >>= skip;
        Some(floor(queues[g.buckets[g.front as usize]].share.start, width(group)))
    }

    fn shift(&mut self, mask: u32, from: State, to: State) {
        let moved = self.sets[from as usize] & mask;
        self.sets[from as usize] &= !moved;
        self.sets[to as usize] |= moved;
    }

    /// Time has moved on: groups that have started by now are eligible, at least one.
    fn make_eligible(&mut self) {
        let waiting = self.sets[State::WaitingReady as usize] | self.sets[State::WaitingBlocked as usize];
        if waiting == 0 {
            return;
        }
        if self.ready() == 0
            && let Some(first) = lowest(waiting)
        {
            self.time = self.time.max(self.groups[first].start);
        }
        let mut rest = waiting;
        while let Some(group) = lowest(rest) {
            rest &= rest - 1;
            if self.groups[group].start <= self.time {
                self.shift(1 << group, State::WaitingReady, State::EligibleReady);
                self.shift(1 << group, State::WaitingBlocked, State::EligibleBlocked);
            }
        }
        // Packets longer than a queue was set for can leave groups blocked by nobody.
        if self.ready() == 0 {
            self.sort_groups();
        }
    }

    /// Whether an idle queue may go without having been ahead of its share.
    pub(crate) fn is_settled(&self, id: u32, queues: &Queues) -> bool {
        let share = &queues[id].share;
        !share.known || share.finish <= self.time || self.sets == [0; 4]
    }

    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        if !std::mem::take(&mut queues[id].share.known) {
            return;
        }
        self.weights -= weight(id, queues);
        if queues[id].length > 0 {
            self.extract(id, queues);
        }
    }

    /// Takes a backlogged queue out: searches its group, so not for the packet path.
    fn extract(&mut self, id: u32, queues: &mut Queues) {
        let group = usize::from(queues[id].share.group);
        let g = &mut self.groups[group];
        for bucket in 0..BUCKETS {
            let at = ((g.front + bucket) % BUCKETS) as usize;
            let (mut before, mut here) = (NONE, g.buckets[at]);
            while here != NONE && here != id {
                (before, here) = (here, queues[here].share.next);
            }
            if here == NONE {
                continue;
            }
            let next = queues[id].share.next;
            match before {
                NONE => g.buckets[at] = next,
                before => queues[before].share.next = next,
            }
            if g.buckets[at] == NONE {
                g.full &= !(1 << bucket);
            }
        }
        for group in 0..GROUPS {
            if let Some(start) = self.first_start(group, queues) {
                self.groups[group].start = start;
            }
        }
        self.sort_groups();
        self.make_eligible();
    }

    /// Finds every group's state anew, from the top: a state depends on those above.
    fn sort_groups(&mut self) {
        self.sets = [0; 4];
        for group in (0..GROUPS).rev() {
            if self.groups[group].full != 0 {
                self.enter(group, self.groups[group].start);
            }
        }
    }
}

/// Number of the lowest bit set.
fn lowest(set: u32) -> Option<usize> {
    (set != 0).then(|| set.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_blocked_by_a_ready_one_above_that_ends_sooner() {
        let mut q = Qfq::new();
        q.enter(10, 0);
        assert_eq!(q.state(10), State::EligibleReady);
        let end = q.groups[10].finish;
        for (finish, state) in [(end - 1, State::EligibleReady), (end + 1, State::EligibleBlocked)] {
            q.groups[3].finish = finish;
            assert_eq!(q.state(3), state);
        }
        q.groups[3].start = 1;
        assert_eq!(q.state(3), State::WaitingBlocked);
        q.groups[3].finish = end;
        assert_eq!(q.state(3), State::WaitingReady);
    }
}
