//! The flow hash: the same for both directions of a flow, keyed with a secret so that nobody outside can choose a worker or a
//! bucket (promise 8).
//!
//! Fragments hash on addresses, protocol and identification, so that all parts of a datagram meet; the quoted packet of an ICMP error
//! is what that error belongs to, so it hashes as that packet does.

#![forbid(unsafe_code)]

use crate::packet::{Family, Flags, Packet};

/// Secret of the flow hash; drawn at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSeed(pub u64, pub u64);

impl HashSeed {
    /// Draws one from the operating system, by way of the keys that `std`'s hash maps get from it.
    pub fn random() -> HashSeed {
        use std::hash::{BuildHasher, RandomState};
        HashSeed(RandomState::new().hash_one(1u8), RandomState::new().hash_one(2u8) | 1)
    }
}

/// Multiplies to 128 bits and folds both halves together: one instruction pair that mixes every input bit.
#[inline(always)]
fn fold_multiply(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}

/// Hash of the unordered pair of ends and what they have in common.
#[inline(always)]
fn mix(seed: HashSeed, a: u64, b: u64, common: u64) -> u32 {
    // Ordering the ends makes the hash symmetric without the weakness of adding or xoring them.
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let first = fold_multiply(low ^ seed.0, seed.1 ^ common);
    let second = fold_multiply(first ^ high, seed.0.rotate_left(32) | 1);
    (second >> 32) as u32 ^ second as u32
}

/// An address folded to one word under the seed; IPv6 addresses must not collapse by xor, or a sender could choose collisions.
#[inline(always)]
fn fold_v6(seed: HashSeed, address: u128) -> u64 {
    fold_multiply((address >> 64) as u64 ^ seed.1, address as u64 ^ seed.0)
}

/// Hash of a flow's 5-tuple over IPv4, host-order numbers.
#[inline(always)]
pub fn v4(seed: HashSeed, source: u32, destination: u32, protocol: u8, source_port: u16, destination_port: u16) -> u32 {
    let a = u64::from(source) << 16 | u64::from(source_port);
    let b = u64::from(destination) << 16 | u64::from(destination_port);
    mix(seed, a, b, u64::from(protocol))
}

/// Hash of a flow's 5-tuple over IPv6.
#[inline(always)]
pub fn v6(
    seed: HashSeed,
    source: u128,
    destination: u128,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
) -> u32 {
    let a = fold_v6(seed, source).wrapping_add(u64::from(source_port) << 48 | u64::from(source_port));
    let b = fold_v6(seed, destination).wrapping_add(u64::from(destination_port) << 48 | u64::from(destination_port));
    mix(seed, a, b, u64::from(protocol) | 1 << 16)
}

/// The worker, of so many, that owns the flow of this hash. Multiplied so that a stage's buckets, which use the hash too, do not all lie in
/// one slice on each worker.
#[inline(always)]
pub fn owner(hash: u32, workers: usize) -> usize {
    ((u64::from(hash) * workers as u64) >> 32) as usize
}

/// Hash of a parsed packet, computed once.
#[inline]
pub fn of(seed: HashSeed, packet: &mut Packet) -> u32 {
    if packet.flags.has(Flags::HASHED) {
        return packet.hash;
    }
    packet.hash = compute(seed, packet);
    packet.flags.set(Flags::HASHED);
    packet.hash
}

#[inline(always)]
fn compute(seed: HashSeed, packet: &Packet) -> u32 {
    let fragment = packet.flags.has(Flags::FRAGMENT);
    match packet.family {
        Family::V4 if fragment => {
            // The parser left the identification in `hash`, which holds no hash yet.
            let id = packet.hash as u16;
            v4(seed, packet.source_v4(), packet.destination_v4(), packet.protocol, id, id)
        }
        Family::V4 => match (packet.protocol, icmp_quoted(packet)) {
            (1, Some(at)) => quoted_v4(seed, packet, at),
            (1, None) => {
                v4(seed, packet.source_v4(), packet.destination_v4(), 1, packet.source_port, packet.source_port)
            }
            (protocol, _) => {
                let (s, d) = (packet.source_port, packet.destination_port);
                v4(seed, packet.source_v4(), packet.destination_v4(), protocol, s, d)
            }
        },
        Family::V6 if fragment => {
            let id = (packet.hash ^ packet.hash >> 16) as u16;
            v6(seed, packet.source_v6(), packet.destination_v6(), packet.protocol, id, id)
        }
        Family::V6 => match (packet.protocol, icmp_quoted(packet)) {
            (58, Some(at)) => quoted_v6(seed, packet, at),
            (58, None) => {
                v6(seed, packet.source_v6(), packet.destination_v6(), 58, packet.source_port, packet.source_port)
            }
            (protocol, _) => {
                let (s, d) = (packet.source_port, packet.destination_port);
                v6(seed, packet.source_v6(), packet.destination_v6(), protocol, s, d)
            }
        },
        Family::Other => 0,
    }
}

/// Offset of the packet that an ICMP error quotes, from the frame's start; None for everything else.
fn icmp_quoted(packet: &Packet) -> Option<usize> {
    let kind = (packet.destination_port >> 8) as u8;
    let error = match (packet.family, packet.protocol) {
        (Family::V4, 1) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        (Family::V6, 58) => kind < 128,
        _ => false,
    };
    (error && packet.l4 != 0).then_some(usize::from(packet.l4) + 8)
}

fn ports_at(bytes: &[u8], at: usize) -> (u16, u16) {
    match bytes.get(at..at + 4) {
        Some(p) => (u16::from_be_bytes([p[0], p[1]]), u16::from_be_bytes([p[2], p[3]])),
        None => (0, 0),
    }
}

/// Ports of a quoted transport header as the flow itself hashes them.
fn quoted_ports(protocol: u8, bytes: &[u8], l4: usize) -> (u16, u16) {
    match protocol {
        6 | 17 | 132 | 136 => ports_at(bytes, l4),
        1 | 58 => {
            let id = ports_at(bytes, l4 + 4).0;
            (id, id)
        }
        _ => (0, 0),
    }
}

fn quoted_v4(seed: HashSeed, packet: &Packet, at: usize) -> u32 {
    let bytes = packet.frame.head();
    let Some(h) = bytes.get(at..at + 20) else { return 0 };
    let fragmented = u16::from_be_bytes([h[6], h[7]]) & 0x3fff != 0;
    let word = |i: usize| u32::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]);
    let (s, d) = if fragmented {
        let id = u16::from_be_bytes([h[4], h[5]]);
        (id, id)
    } else {
        quoted_ports(h[9], bytes, at + usize::from(h[0] & 15) * 4)
    };
    v4(seed, word(12), word(16), h[9], s, d)
}

fn quoted_v6(seed: HashSeed, packet: &Packet, at: usize) -> u32 {
    let bytes = packet.frame.head();
    let Some(h) = bytes.get(at..at + 40) else { return 0 };
    let address = |i: usize| h[i..i + 16].iter().fold(0u128, |a, b| a << 8 | u128::from(*b));
    let (s, d) = quoted_ports(h[6], bytes, at + 40);
    v6(seed, address(8), address(24), h[6], s, d)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_directions_meet(s in any::<u32>(), d in any::<u32>(), sp in any::<u16>(), dp in any::<u16>(), x in any::<u64>()) {
            let seed = HashSeed(x, x.rotate_left(7) | 1);
            prop_assert_eq!(v4(seed, s, d, 6, sp, dp), v4(seed, d, s, 6, dp, sp));
            let (s6, d6) = (u128::from(s) << 90 | 5, u128::from(d) << 3);
            prop_assert_eq!(v6(seed, s6, d6, 17, sp, dp), v6(seed, d6, s6, 17, dp, sp));
        }
    }

    #[test]
    fn flows_spread_evenly() {
        let seed = HashSeed(0x1234_5678_9abc_def0, 0xfeed_beef_0bad_cafd);
        let mut buckets = [0u32; 8];
        for i in 0..80_000u32 {
            buckets[(v4(seed, 0xc612_0a01 + i / 70, 0xc613_0a01 + i % 70, 17, 2000, 2000) % 8) as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (9_500..10_500).contains(n)), "{buckets:?}");
    }
}
