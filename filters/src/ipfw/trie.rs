#![forbid(unsafe_code)]
//! IPv4 address to class in one to three loads: 16, 8 and 8 bits. Entries are 16 bits wide as long as that does, so that the first level
//! stays in the second-level cache.

use super::partition::Partition;

/// An entry: a class, or with the top bit a node of the next level.
trait Entry: Copy {
    /// The top bit.
    const NODE: u32;
    fn new(word: u32) -> Self;
    fn word(self) -> u32;
}

impl Entry for u16 {
    const NODE: u32 = 1 << 15;
    fn new(word: u32) -> u16 {
        word as u16
    }
    #[inline(always)]
    fn word(self) -> u32 {
        u32::from(self)
    }
}

impl Entry for u32 {
    const NODE: u32 = 1 << 31;
    fn new(word: u32) -> u32 {
        word
    }
    #[inline(always)]
    fn word(self) -> u32 {
        self
    }
}

#[derive(Clone, Debug)]
struct Levels<E> {
    first: Box<[E]>,
    /// Nodes of 256 entries.
    nodes: Vec<[E; 256]>,
}

impl<E: Entry> Levels<E> {
    /// None where there are more nodes or classes than an entry can name.
    fn new(partition: &Partition) -> Option<Levels<E>> {
        if partition.classes() >= E::NODE as usize {
            return None;
        }
        let mut levels = Levels { first: vec![E::new(0); 1 << 16].into(), nodes: Vec::new() };
        let intervals = &partition.intervals;
        for (at, &(low, class)) in intervals.iter().enumerate() {
            if low > u128::from(u32::MAX) {
                break;
            }
            let high =
                intervals.get(at + 1).map_or(u128::from(u32::MAX), |next| (next.0 - 1).min(u128::from(u32::MAX)));
            levels.fill(low as u32, high as u32, class)?;
        }
        Some(levels)
    }

    fn fill(&mut self, low: u32, high: u32, class: u32) -> Option<()> {
        let (mut at, last) = (u64::from(low), u64::from(high));
        while at <= last {
            let (top, middle, bottom) = ((at >> 16) as usize, (at >> 8 & 255) as usize, (at & 255) as usize);
            if at & 0xffff == 0 && at + 0xffff <= last {
                *self.first.get_mut(top)? = E::new(class);
                at += 1 << 16;
                continue;
            }
            let node = self.split(None, top)?;
            if at & 0xff == 0 && at + 0xff <= last {
                *self.nodes.get_mut(node)?.get_mut(middle)? = E::new(class);
                at += 1 << 8;
                continue;
            }
            let leaf = self.split(Some(node), middle)?;
            let end = bottom + (last - at).min(255 - bottom as u64) as usize;
            self.nodes.get_mut(leaf)?.get_mut(bottom..=end)?.fill(E::new(class));
            at += (end - bottom) as u64 + 1;
        }
        Some(())
    }

    /// The node below an entry, made where there is none yet.
    fn split(&mut self, node: Option<usize>, slot: usize) -> Option<usize> {
        let next = self.nodes.len() as u32;
        let entry = match node {
            None => self.first.get_mut(slot)?,
            Some(node) => self.nodes.get_mut(node)?.get_mut(slot)?,
        };
        let word = entry.word();
        if word & E::NODE != 0 {
            return Some((word & !E::NODE) as usize);
        }
        if next >= E::NODE {
            return None;
        }
        *entry = E::new(next | E::NODE);
        self.nodes.push([E::new(word); 256]);
        Some(next as usize)
    }

    #[inline(always)]
    fn class(&self, address: u32) -> u32 {
        let mut word = self.first.get((address >> 16) as usize).map_or(0, |e| e.word());
        if word & E::NODE != 0 {
            word = self.below(word, address >> 8 & 255);
            if word & E::NODE != 0 {
                word = self.below(word, address & 255);
            }
        }
        word
    }

    #[inline(always)]
    fn below(&self, word: u32, byte: u32) -> u32 {
        let node = self.nodes.get((word & !E::NODE) as usize);
        node.and_then(|node| node.get(byte as usize)).map_or(0, |e| e.word())
    }
}

/// IPv4 addresses to classes.
#[derive(Clone, Debug)]
pub struct Trie(Width);

#[derive(Clone, Debug)]
enum Width {
    Narrow(Levels<u16>),
    Wide(Levels<u32>),
}

impl Trie {
    /// The classes of a partition of 0 to 2^32 - 1; None beyond 2^31 nodes.
    pub fn new(partition: &Partition) -> Option<Trie> {
        let narrow = Levels::new(partition).map(Width::Narrow);
        narrow.or_else(|| Levels::new(partition).map(Width::Wide)).map(Trie)
    }

    /// The address's class.
    #[inline(always)]
    pub fn class(&self, address: u32) -> u32 {
        match &self.0 {
            Width::Narrow(levels) => levels.class(address),
            Width::Wide(levels) => levels.class(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::interval::IntervalSet;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_answers_as_its_partition(
            sets in proptest::collection::vec((any::<u32>(), 0u32..33), 1..40), probes in proptest::collection::vec(any::<u32>(), 50)
        ) {
            let masks: Vec<(u32, u32)> = sets.iter().map(|(a, n)| (*a, (!0u32).checked_shl(32 - n).unwrap_or(0))).collect();
            let sets: Vec<IntervalSet> = masks.iter().map(|(a, m)| IntervalSet::range((a & m).into(), (a | !m).into())).collect();
            let partition = Partition::new(&sets, u32::MAX.into());
            let trie = Trie::new(&partition).unwrap();
            let wide = Levels::<u32>::new(&partition).unwrap();
            let edges = masks.iter().flat_map(|(a, m)| [a & m, a | !m, (a & m).wrapping_sub(1), (a | !m).wrapping_add(1)]);
            for address in probes.into_iter().chain(edges).chain([0, u32::MAX]) {
                prop_assert_eq!(trie.class(address), partition.class(address.into()));
                prop_assert_eq!(wide.class(address), partition.class(address.into()));
            }
        }
    }
}
