#![forbid(unsafe_code)]
//! Equivalence classes of one header field: values that no condition of the rules tells apart have one class number.
//!
//! For each class the partition knows which conditions hold. Most hold for few values and a few for nearly all (`not 10/8`), so a class
//! lists only the conditions that hold there otherwise than at the domain's *reference value* (its first).

use std::collections::HashMap;

use super::interval::IntervalSet;

/// A domain of values cut into classes.
#[derive(Clone, Debug)]
pub struct Partition {
    /// First value of each interval, ascending from 0, and its class.
    pub intervals: Vec<(u128, u32)>,
    /// By class: the conditions that hold there and not at the reference value, or the other way round. Class 0 is that of the reference.
    pub toggles: Vec<Vec<u32>>,
    /// Conditions that hold at the reference value.
    pub base: Vec<u32>,
}

/// Spreads a condition's number over 128 bits; the sums tell sets apart, and equal ones are compared.
fn spread(n: u32) -> u128 {
    let mix = |x: u64| {
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let n = u64::from(n) + 1;
    u128::from(mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))) << 64 | u128::from(mix(n ^ 0x5851_f42d_4c95_7f2d))
}

impl Partition {
    /// Cuts 0 to `last` so that every condition is constant on each class.
    pub fn new<'a>(conditions: impl IntoIterator<Item = &'a IntervalSet>, last: u128) -> Partition {
        let mut events: Vec<(u128, u32)> = Vec::new();
        let mut base = Vec::new();
        for (number, set) in conditions.into_iter().enumerate() {
            let number = number as u32;
            for &(low, high) in set.ranges() {
                match low {
                    0 => base.push(number),
                    _ => events.push((low, number)),
                }
                if high < last {
                    events.push((high + 1, number));
                }
            }
        }
        events.sort_unstable();
        let mut classes: HashMap<u128, Vec<u32>> = HashMap::from([(0, vec![0])]);
        let mut toggles: Vec<Vec<u32>> = vec![Vec::new()];
        let mut intervals = vec![(0, 0)];
        // Conditions that are now otherwise than at the reference: a dense set that is cheap to change and to list.
        let mut active: Vec<u32> = Vec::new();
        let mut place: HashMap<u32, usize> = HashMap::new();
        let mut sum = 0u128;
        let mut at = 0;
        while let Some(&(point, _)) = events.get(at) {
            while let Some(&(_, number)) = events.get(at).filter(|e| e.0 == point) {
                at += 1;
                match place.remove(&number) {
                    Some(position) => {
                        active.swap_remove(position);
                        if let Some(moved) = active.get(position) {
                            place.insert(*moved, position);
                        }
                        sum = sum.wrapping_sub(spread(number));
                    }
                    None => {
                        place.insert(number, active.len());
                        active.push(number);
                        sum = sum.wrapping_add(spread(number));
                    }
                }
            }
            let alike = classes.entry(sum).or_default();
            let same = |class: &u32| {
                let known = &toggles[*class as usize];
                known.len() == active.len() && known.iter().all(|n| place.contains_key(n))
            };
            let class = match alike.iter().copied().find(same) {
                Some(class) => class,
                None => {
                    let class = toggles.len() as u32;
                    toggles.push(active.clone());
                    alike.push(class);
                    class
                }
            };
            if intervals.last().is_none_or(|(_, last)| *last != class) {
                intervals.push((point, class));
            }
        }
        Partition { intervals, toggles, base }
    }

    /// How many classes.
    pub fn classes(&self) -> usize {
        self.toggles.len()
    }

    /// The class of a value.
    #[inline]
    pub fn class(&self, value: u128) -> u32 {
        let at = self.intervals.partition_point(|(start, _)| *start <= value);
        self.intervals.get(at.wrapping_sub(1)).map_or(0, |(_, class)| *class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn classes_tell_what_conditions_tell(
            sets in proptest::collection::vec(proptest::collection::vec((0u128..250, 0u128..40), 0..4), 0..9)
        ) {
            let sets: Vec<IntervalSet> =
                sets.into_iter().map(|v| IntervalSet::of(v.into_iter().map(|(l, n)| (l, (l + n).min(255))))).collect();
            let partition = Partition::new(&sets, 255);
            for value in 0..=255u128 {
                let class = partition.class(value);
                for (number, set) in sets.iter().enumerate() {
                    let number = number as u32;
                    let toggled = partition.toggles[class as usize].contains(&number);
                    prop_assert_eq!(set.contains(value), partition.base.contains(&number) != toggled);
                }
                for other in 0..value {
                    let alike = sets.iter().all(|s| s.contains(value) == s.contains(other));
                    prop_assert_eq!(alike, partition.class(other) == class);
                }
            }
        }
    }
}
