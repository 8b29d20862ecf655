#![forbid(unsafe_code)]
//! Priority queues of queues without memory of their own: pairing heaps (Fredman, Sedgewick, Sleator, Tarjan 1986) whose links live in an
//! array beside the queues. A queue stands in one heap at most. Insertion is constant, removal amortised logarithmic, in any order.

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: u128,
    /// Order of insertion: among equal keys the oldest comes first.
    sequence: u64,
    child: u32,
    sibling: u32,
    /// The left sibling, or the parent of a first child.
    previous: u32,
}

/// A heap: its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heap(u32);

impl Heap {
    pub(crate) const EMPTY: Heap = Heap(NONE);

    pub(crate) fn is_empty(self) -> bool {
        self.0 == NONE
    }

    /// The element with the least key.
    pub(crate) fn first(self) -> Option<u32> {
        (self.0 != NONE).then_some(self.0)
    }
}

/// The links of all heaps.
#[derive(Clone, Debug)]
pub(crate) struct Ranks {
    nodes: Vec<Node>,
    sequence: u64,
}

impl Ranks {
    pub(crate) fn new(capacity: usize) -> Ranks {
        let node = Node { key: 0, sequence: 0, child: NONE, sibling: NONE, previous: NONE };
        Ranks { nodes: vec![node; capacity], sequence: 0 }
    }

    /// Key under which `id` was inserted last.
    pub(crate) fn key(&self, id: u32) -> u128 {
        self.nodes[id as usize].key
    }

    /// Puts in an element that stands in no heap.
    pub(crate) fn insert(&mut self, heap: &mut Heap, id: u32, key: u128) {
        self.sequence += 1;
        self.nodes[id as usize] = Node { key, sequence: self.sequence, child: NONE, sibling: NONE, previous: NONE };
        heap.0 = self.meld(heap.0, id);
    }

    /// Takes out an element that stands in this heap.
    pub(crate) fn remove(&mut self, heap: &mut Heap, id: u32) {
        let Node { child, sibling, previous, .. } = self.nodes[id as usize];
        let below = self.combine(child);
        if heap.0 == id {
            heap.0 = below;
            return;
        }
        let left = &mut self.nodes[previous as usize];
        if left.child == id {
            left.child = sibling;
        } else {
            left.sibling = sibling;
        }
        if sibling != NONE {
            self.nodes[sibling as usize].previous = previous;
        }
        heap.0 = self.meld(heap.0, below);
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.nodes[a as usize], &self.nodes[b as usize]);
        (a.key, a.sequence) < (b.key, b.sequence)
    }

    /// One heap of two roots.
    fn meld(&mut self, a: u32, b: u32) -> u32 {
        if a == NONE {
            return b;
        }
        if b == NONE {
            return a;
        }
        let (top, under) = if self.before(a, b) { (a, b) } else { (b, a) };
        let first = self.nodes[top as usize].child;
        if first != NONE {
            self.nodes[first as usize].previous = under;
        }
        let node = &mut self.nodes[under as usize];
        node.sibling = first;
        node.previous = top;
        self.nodes[top as usize].child = under;
        top
    }

    /// One heap of a row of siblings: pairs from left to right, then all pairs from right to left.
    fn combine(&mut self, first: u32) -> u32 {
        let (mut pairs, mut next) = (NONE, first);
        while next != NONE {
            let a = next;
            let b = self.nodes[a as usize].sibling;
            next = if b == NONE { NONE } else { self.nodes[b as usize].sibling };
            for id in [a, b] {
                if id != NONE {
                    let node = &mut self.nodes[id as usize];
                    node.sibling = NONE;
                    node.previous = NONE;
                }
            }
            let pair = self.meld(a, b);
            self.nodes[pair as usize].sibling = pairs;
            pairs = pair;
        }
        let mut root = NONE;
        while pairs != NONE {
            let pair = pairs;
            pairs = self.nodes[pair as usize].sibling;
            self.nodes[pair as usize].sibling = NONE;
            root = self.meld(root, pair);
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// Against a sorted list: insertions, removals from the top and from the middle.
        #[test]
        fn a_heap_is_a_sorted_list(steps in prop::collection::vec((0u32..32, 0u128..20, any::<bool>()), 0..200)) {
            let (mut ranks, mut heap) = (Ranks::new(32), Heap::EMPTY);
            let mut model: Vec<(u128, usize, u32)> = Vec::new();
            for (step, (id, key, top)) in steps.into_iter().enumerate() {
                if let Some(at) = model.iter().position(|e| e.2 == id) {
                    let at = if top { 0 } else { at };
                    ranks.remove(&mut heap, model[at].2);
                    model.remove(at);
                } else {
                    ranks.insert(&mut heap, id, key);
                    model.push((key, step, id));
                    model.sort();
                }
                prop_assert_eq!(heap.first(), model.first().map(|e| e.2));
            }
            for (key, _, id) in model {
                prop_assert_eq!(heap.first(), Some(id));
                prop_assert_eq!(ranks.key(id), key);
                ranks.remove(&mut heap, id);
            }
            prop_assert!(heap.is_empty());
        }
    }
}
