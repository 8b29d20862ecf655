//! A routing table shaped like the Internet's: made up, the same in every run.
//!
//! Sizes and shares of the prefix lengths follow the default-free zone as the public reports (CIDR report, RIPE RIS,
//! APNIC's yearly "BGP in ...") describe it: nearly two thirds of IPv4 are /24; nearly half of IPv6 is /48, and its
//! more-specifics crowd in the /29 to /32 that registries gave out, often numbered from the bottom.

use ferrule_dataplane::fib::Prefix;
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};

/// IPv4 prefixes of a full table.
pub const FULL_V4: usize = 1_100_000;
/// IPv6 prefixes of a full table.
pub const FULL_V6: usize = 250_000;

/// Length and share in parts of ten thousand.
const LENGTHS_V4: [(u8, u32); 20] = [
    (24, 6060),
    (23, 1000),
    (22, 1120),
    (21, 520),
    (20, 440),
    (19, 255),
    (18, 140),
    (17, 85),
    (16, 135),
    (15, 20),
    (14, 12),
    (13, 6),
    (12, 3),
    (11, 1),
    (10, 1),
    (25, 40),
    (26, 40),
    (27, 40),
    (29, 40),
    (32, 42),
];
const LENGTHS_V6: [(u8, u32); 22] = [
    (48, 4650),
    (32, 950),
    (44, 1020),
    (40, 860),
    (36, 450),
    (46, 330),
    (47, 320),
    (45, 210),
    (42, 270),
    (33, 190),
    (34, 150),
    (35, 100),
    (38, 100),
    (41, 60),
    (43, 70),
    (39, 50),
    (37, 40),
    (64, 40),
    (56, 30),
    (128, 10),
    (30, 60),
    (31, 40),
];
/// Blocks that the registries give IPv6 addresses from, and their weight.
const BLOCKS_V6: [(u128, u8, u32); 6] = [
    (0x2001 << 112, 16, 12),
    (0x2400 << 112, 12, 32),
    (0x2600 << 112, 12, 20),
    (0x2800 << 112, 12, 11),
    (0x2a00 << 112, 11, 22),
    (0x2c00 << 112, 12, 3),
];

/// A small generator of random numbers (xorshift64*, Marsaglia and Vigna), the same in every run.
pub struct Random(u64);

impl Random {
    /// One of the many sequences.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn pick<T: Copy>(&mut self, shares: &[T], share: impl Fn(&T) -> u32) -> T {
        let mut left = self.below(shares.iter().map(|entry| u64::from(share(entry))).sum());
        for entry in shares {
            match left.checked_sub(u64::from(share(entry))) {
                Some(rest) => left = rest,
                None => return *entry,
            }
        }
        shares[0]
    }

    /// An address of `network`'s first `length` bits and random ones after them.
    pub fn inside_v6(&mut self, network: u128, length: u8) -> u128 {
        let random = u128::from(self.next()) << 64 | u128::from(self.next());
        if length >= 128 { network } else { network | random >> length }
    }
}

/// `count` distinct IPv4 prefixes.
pub fn prefixes_v4(count: usize, random: &mut Random) -> Vec<Prefix> {
    let mut made = HashSet::with_capacity(count);
    let mut prefixes = Vec::with_capacity(count);
    while prefixes.len() < count {
        let (length, _) = random.pick(&LENGTHS_V4, |entry| entry.1);
        let address = Ipv4Addr::from_bits(random.next() as u32);
        let [first, ..] = address.octets();
        if !(1..224).contains(&first) || first == 127 || first == 10 {
            continue;
        }
        prefixes.extend(Prefix::v4(address, length).filter(|prefix| made.insert(*prefix)));
    }
    prefixes
}

/// `count` distinct IPv6 prefixes.
pub fn prefixes_v6(count: usize, random: &mut Random) -> Vec<Prefix> {
    let mut made = HashSet::with_capacity(count);
    let mut prefixes = Vec::with_capacity(count);
    // What the registries gave out: about as many blocks as there are networks with IPv6.
    let holders: Vec<(u128, u8)> = (0..count / 5)
        .map(|_| {
            let (block, bits, _) = random.pick(&BLOCKS_V6, |entry| entry.2);
            let length = if random.below(4) == 0 { 29 } else { 32 };
            (random.inside_v6(block, bits) >> (128 - length) << (128 - length), length)
        })
        .collect();
    while prefixes.len() < count {
        let (length, _) = random.pick(&LENGTHS_V6, |entry| entry.1);
        // Few holders announce many prefixes.
        let place = random.below(holders.len() as u64) * random.below(holders.len() as u64) / holders.len() as u64;
        let (network, held) = holders[place as usize];
        let address = if length <= held {
            network
        } else if random.below(2) == 0 {
            network | u128::from(random.below(64)) << (128 - length)
        } else {
            random.inside_v6(network, held)
        };
        prefixes.extend(Prefix::v6(Ipv6Addr::from_bits(address), length).filter(|prefix| made.insert(*prefix)));
    }
    prefixes
}
