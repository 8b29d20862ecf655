#![forbid(unsafe_code)]
//! What is due when: a binary heap of instances by time, at most one entry each, so its memory is fixed beforehand.

use super::rank::NONE;
use ferrule_dataplane::clock::Nanos;

#[derive(Clone, Copy, Debug)]
struct Entry {
    time: Nanos,
    /// Order of insertion: what was planned first happens first.
    sequence: u64,
    id: u32,
}

/// Times of instances.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    heap: Vec<Entry>,
    /// Place of each instance in the heap, or NONE.
    places: Vec<u32>,
    sequence: u64,
}

impl Events {
    pub(crate) fn new(capacity: usize) -> Events {
        Events { heap: Vec::with_capacity(capacity), places: vec![NONE; capacity], sequence: 0 }
    }

    /// The earliest.
    pub(crate) fn first(&self) -> Option<(Nanos, u32)> {
        self.heap.first().map(|e| (e.time, e.id))
    }

    /// Takes the earliest out if it is due.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<(Nanos, u32)> {
        let first = self.first().filter(|&(time, _)| time <= now)?;
        self.cancel(first.1);
        Some(first)
    }

    /// Plans `id` for `time`, instead of what was planned for it before.
    pub(crate) fn plan(&mut self, id: u32, time: Nanos) {
        self.cancel(id);
        self.sequence += 1;
        let place = self.heap.len();
        self.heap.push(Entry { time, sequence: self.sequence, id });
        self.places[id as usize] = place as u32;
        self.up(place);
    }

    /// Takes `id` out, if it is in.
    pub(crate) fn cancel(&mut self, id: u32) {
        let place = std::mem::replace(&mut self.places[id as usize], NONE) as usize;
        if place == NONE as usize {
            return;
        }
        self.heap.swap_remove(place);
        if let Some(moved) = self.heap.get(place) {
            self.places[moved.id as usize] = place as u32;
            self.up(place);
            self.down(place);
        }
    }

    fn before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.heap[a], &self.heap[b]);
        (a.time, a.sequence) < (b.time, b.sequence)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].id as usize] = a as u32;
        self.places[self.heap[b].id as usize] = b as u32;
    }

    fn up(&mut self, mut at: usize) {
        while at > 0 && self.before(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            let Some(least) = [left, left + 1]
                .into_iter()
                .filter(|&c| c < self.heap.len())
                .reduce(|a, b| if self.before(b, a) { b } else { a })
            else {
                return;
            };
            if !self.before(least, at) {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn events_come_in_order_of_time(steps in prop::collection::vec((0u32..16, 0u64..50, 0u8..4), 0..200)) {
            let mut events = Events::new(16);
            let mut model: Vec<(u64, usize, u32)> = Vec::new();
            for (step, (id, time, kind)) in steps.into_iter().enumerate() {
                match kind {
                    0 => {
                        events.cancel(id);
                        model.retain(|e| e.2 != id);
                    }
                    1 => {
                        let due = events.due(time);
                        let expected = model.first().copied().filter(|e| e.0 <= time);
                        prop_assert_eq!(due, expected.map(|e| (e.0, e.2)));
                        if due.is_some() {
                            model.remove(0);
                        }
                    }
                    _ => {
                        events.plan(id, time);
                        model.retain(|e| e.2 != id);
                        model.push((time, step, id));
                        model.sort();
                    }
                }
                prop_assert_eq!(events.first(), model.first().map(|e| (e.0, e.2)));
            }
        }
    }
}
