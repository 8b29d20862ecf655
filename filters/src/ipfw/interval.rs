#![forbid(unsafe_code)]
//! Sets of numbers as sorted, disjoint, non-adjacent ranges: what a rule accepts of one header field.

/// A set of numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct IntervalSet {
    /// First and last of each range, both included; ascending, with a gap between any two.
    ranges: Vec<(u128, u128)>,
}

impl IntervalSet {
    /// None.
    pub const fn empty() -> IntervalSet {
        IntervalSet { ranges: Vec::new() }
    }

    /// `low` to `high`, both included.
    pub fn range(low: u128, high: u128) -> IntervalSet {
        IntervalSet { ranges: if low <= high { vec![(low, high)] } else { Vec::new() } }
    }

    /// The union of ranges in any order.
    pub fn of(ranges: impl IntoIterator<Item = (u128, u128)>) -> IntervalSet {
        let mut all: Vec<(u128, u128)> = ranges.into_iter().filter(|(low, high)| low <= high).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (low, high) in all {
            match ranges.last_mut() {
                Some(last) if last.1 == u128::MAX || low <= last.1 + 1 => last.1 = last.1.max(high),
                _ => ranges.push((low, high)),
            }
        }
        IntervalSet { ranges }
    }

    /// Numbers of 0 to `last` for which `holds` is true; for small domains.
    pub fn filter(last: u32, holds: impl Fn(u32) -> bool) -> IntervalSet {
        IntervalSet::of((0..=last).filter(|n| holds(*n)).map(|n| (u128::from(n), u128::from(n))))
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[(u128, u128)] {
        &self.ranges
    }

    /// Whether `value` is in it.
    pub fn contains(&self, value: u128) -> bool {
        let at = self.ranges.partition_point(|(_, high)| *high < value);
        self.ranges.get(at).is_some_and(|(low, _)| *low <= value)
    }

    /// Both together.
    pub fn union(&self, other: &IntervalSet) -> IntervalSet {
        IntervalSet::of(self.ranges.iter().chain(&other.ranges).copied())
    }

    /// What is in both.
    pub fn intersection(&self, other: &IntervalSet) -> IntervalSet {
        let (mut i, mut j, mut ranges) = (0, 0, Vec::new());
        while let (Some(a), Some(b)) = (self.ranges.get(i), other.ranges.get(j)) {
            let (low, high) = (a.0.max(b.0), a.1.min(b.1));
            if low <= high {
                ranges.push((low, high));
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        IntervalSet { ranges }
    }

    /// What of 0 to `last` is not in it.
    pub fn complement(&self, last: u128) -> IntervalSet {
        let (mut next, mut ranges) = (Some(0u128), Vec::with_capacity(self.ranges.len() + 1));
        for &(low, high) in &self.ranges {
            if let Some(start) = next
                && start < low
            {
                ranges.push((start, low - 1));
            }
            next = high.checked_add(1);
        }
        if let Some(start) = next
            && start <= last
        {
            ranges.push((start, last));
        }
        IntervalSet { ranges }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set() -> impl Strategy<Value = IntervalSet> {
        proptest::collection::vec((0u128..60, 0u128..9), 0..6)
            .prop_map(|v| IntervalSet::of(v.into_iter().map(|(low, len)| (low, (low + len).min(63)))))
    }

    proptest! {
        #[test]
        fn they_are_sets(a in set(), b in set()) {
            let (union, both, not) = (a.union(&b), a.intersection(&b), a.complement(63));
            for n in 0..64u128 {
                prop_assert_eq!(union.contains(n), a.contains(n) || b.contains(n));
                prop_assert_eq!(both.contains(n), a.contains(n) && b.contains(n));
                prop_assert_eq!(not.contains(n), !a.contains(n));
            }
            prop_assert!(union.ranges().windows(2).all(|w| w[0].1 + 1 < w[1].0));
            prop_assert_eq!(not.complement(63), a);
        }
    }

    #[test]
    fn the_whole_domain_has_no_complement() {
        let all = IntervalSet::range(0, u128::MAX);
        assert_eq!(all.complement(u128::MAX), IntervalSet::empty());
        assert_eq!(IntervalSet::empty().complement(u128::MAX), all);
    }
}
