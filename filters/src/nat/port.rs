#![forbid(unsafe_code)]
//! Choosing an alias port or ICMP identifier.
//!
//! libalias tries the packet's own port first (`same_ports`), then ports of its range at random, and gives up after twenty. With several
//! workers a port must also bring the *reply* to the worker that holds the state, so more are tried, and a small range is
//! searched through; every search is bounded.

use ferrule_config::ipfw::ast::Range;
use ferrule_dataplane::packet::hash::{self, HashSeed};

/// Ports drawn at random before the range is searched in order.
const RANDOM_TRIES: u32 = 64;
/// Most ports looked at in order: ranges up to this size are searched through.
const IN_ORDER: u32 = 128;

/// The ports to choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    low: u16,
    length: u32,
}

impl Default for PortRange {
    /// 32768-65535, libalias's own range.
    fn default() -> Self {
        PortRange { low: 0x8000, length: 0x8000 }
    }
}

impl From<Option<Range<u16>>> for PortRange {
    /// `port_range LOW-HIGH`; a low port of 0 is the default range, as in libalias.
    fn from(range: Option<Range<u16>>) -> Self {
        match range {
            Some(Range { low, high }) if low != 0 && low <= high => {
                PortRange { low, length: u32::from(high - low) + 1 }
            }
            _ => PortRange::default(),
        }
    }
}

impl PortRange {
    /// The port so many places in, counted round.
    fn at(&self, place: u32) -> u16 {
        self.low + (place % self.length) as u16
    }
}

/// Ports that nobody outside can guess: the keyed flow hash over a counter.
pub struct PortDice {
    seed: HashSeed,
    thrown: u64,
}

impl PortDice {
    /// Dice of one worker.
    pub fn new(seed: HashSeed, worker: usize) -> PortDice {
        PortDice { seed: HashSeed(seed.0.rotate_left(17), seed.1.rotate_left(29) | 1), thrown: (worker as u64) << 48 }
    }

    fn throw(&mut self) -> u32 {
        self.thrown += 1;
        hash::v4(self.seed, self.thrown as u32, (self.thrown >> 32) as u32, 0, 0, 0)
    }
}

/// A port that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The port.
    pub port: u16,
    /// Whether replies to it come to this worker by their own hash; otherwise the shared table must name the owner.
    pub owned: bool,
}

/// Looks for a port that is `free` and whose reply this worker owns; one that is only free where there is none. `same` is tried before
/// all others and taken where it is free. None after at most 193 ports looked at.
pub fn choose_port(
    same: Option<u16>,
    range: PortRange,
    dice: &mut PortDice,
    mut free: impl FnMut(u16) -> bool,
    owner: impl Fn(u16) -> bool,
) -> Option<Choice> {
    if let Some(port) = same.filter(|port| free(*port)) {
        return Some(Choice { port, owned: owner(port) });
    }
    for _ in 0..RANDOM_TRIES {
        // Multiplied, not divided: the high bits of the dice are as good as the low ones.
        let place = (u64::from(dice.throw()) * u64::from(range.length)) >> 32;
        let port = range.at(place as u32);
        if owner(port) && free(port) {
            return Some(Choice { port, owned: true });
        }
    }
    let start = dice.throw() % range.length;
    let mut other = None;
    for step in 0..range.length.min(IN_ORDER) {
        let port = range.at(start + step);
        match owner(port) {
            true if free(port) => return Some(Choice { port, owned: true }),
            false if other.is_none() && free(port) => other = Some(Choice { port, owned: false }),
            _ => {}
        }
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SEED: HashSeed = HashSeed(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345);

    #[test]
    fn the_range_is_as_libalias_has_it() {
        assert_eq!(PortRange::from(None), PortRange { low: 0x8000, length: 0x8000 });
        let range = PortRange::from(Some(Range { low: 4000, high: 4001 }));
        let mut dice = PortDice::new(SEED, 0);
        let mut taken = HashSet::new();
        for _ in 0..2 {
            let choice = choose_port(None, range, &mut dice, |p| !taken.contains(&p), |_| true).unwrap();
            assert!((4000..=4001).contains(&choice.port) && choice.owned);
            assert!(taken.insert(choice.port));
        }
        assert_eq!(choose_port(None, range, &mut dice, |p| !taken.contains(&p), |_| true), None);
        // The whole range of ports, and its last one.
        let all = PortRange::from(Some(Range { low: 1, high: u16::MAX }));
        assert_eq!(all.at(65_534), u16::MAX);
        assert_eq!(PortRange::from(Some(Range { low: 0, high: 9 })), PortRange::default());
    }

    #[test]
    fn a_search_ends_after_193_ports() {
        let mut looked = 0;
        let mut free = |_| {
            looked += 1;
            false
        };
        let mut dice = PortDice::new(SEED, 3);
        assert_eq!(choose_port(Some(7), PortRange::default(), &mut dice, &mut free, |_| true), None);
        assert_eq!(looked, 193);
    }

    #[test]
    fn the_same_port_is_kept_where_it_is_free() {
        let mut dice = PortDice::new(SEED, 0);
        let keep = choose_port(Some(0x1234), PortRange::default(), &mut dice, |_| true, |p| p != 0x1234);
        assert_eq!(keep, Some(Choice { port: 0x1234, owned: false }));
        let other = choose_port(Some(0x1234), PortRange::default(), &mut dice, |p| p != 0x1234, |_| true).unwrap();
        assert!(other.port >= 0x8000 && other.owned);
    }

    #[test]
    fn replies_come_back_to_the_owner_with_1_2_and_4_workers() {
        for workers in [1, 2, 4] {
            for worker in 0..workers {
                let mut dice = PortDice::new(SEED, worker);
                let owner = |p| hash::owner(hash::v4(SEED, 0xc633_6402, 0xcb00_7105, 6, p, 80), workers) == worker;
                let mut seen = HashSet::new();
                for _ in 0..500 {
                    let choice =
                        choose_port(None, PortRange::default(), &mut dice, |p| !seen.contains(&p), owner).unwrap();
                    assert!(choice.owned && owner(choice.port) && choice.port >= 0x8000);
                    assert!(seen.insert(choice.port));
                }
                // Where no port of the range is the owner's, a free one is named all the same.
                let few = PortRange { low: 30_000, length: 2 };
                assert!(!choose_port(None, few, &mut dice, |_| true, |_| false).unwrap().owned);
            }
        }
    }
}
