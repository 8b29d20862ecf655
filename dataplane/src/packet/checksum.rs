//! The Internet checksum (RFC 1071), full and incremental (RFC 1624, equation 3).
//!
//! Sums are kept as native-endian words: one's-complement addition does not care about byte order, as long as the result is
//! stored the way it was summed. The incremental forms take values as they stand in the packet (network order bytes).

#![forbid(unsafe_code)]

/// Adds the 16-bit words of `bytes` to `sum` (a running 64-bit one's-complement sum, native order; start with 0).
/// An odd last byte counts as the high byte (network order) of a word, so only the last part of a packet may be odd.
#[inline]
pub fn sum(bytes: &[u8], sum: u64) -> u64 {
    let mut total = u128::from(sum);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut low = 0u64;
    let mut carries = 0u64;
    for word in words {
        let (next, carry) = low.overflowing_add(u64::from_ne_bytes(*word));
        low = next;
        carries += u64::from(carry);
    }
    total += u128::from(low) + u128::from(carries);
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    total += u128::from(u64::from_ne_bytes(last));
    let folded = (total & u128::from(u64::MAX)) + (total >> 64);
    ((folded & u128::from(u64::MAX)) + (folded >> 64)) as u64
}

/// Folds a running sum to 16 bits, native order, not inverted.
#[inline(always)]
pub fn fold(sum: u64) -> u16 {
    let s = (sum & 0xffff_ffff) + (sum >> 32);
    let s = (s & 0xffff) + ((s >> 16) & 0xffff) + (s >> 32);
    let s = (s & 0xffff) + (s >> 16);
    ((s & 0xffff) + (s >> 16)) as u16
}

/// The checksum of `bytes` as it goes into a header (write with `to_ne_bytes`).
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes, 0))
}

/// Whether a region that includes its checksum field adds up.
pub fn is_valid(bytes: &[u8]) -> bool {
    fold(sum(bytes, 0)) == 0xffff
}

/// Whether the 20 bytes of an IPv4 header without options add up.
///
/// 2^16 and 2^32 are 1 modulo 0xffff, so the header is right exactly when the plain sum of its 32-bit words is a multiple of 0xffff
/// (it is never 0: the version is not). A multiple is told by one multiplication with the inverse of 0xffff modulo 2^64 (Granlund and
/// Montgomery, "Division by Invariant Integers using Multiplication", section 9), half the work of folding.
#[inline(always)]
pub fn ipv4_header_is_valid(h: &[u8; 20]) -> bool {
    /// 0xffff * INVERSE = 1 modulo 2^64.
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    const _: () = assert!(INVERSE.wrapping_mul(0xffff) == 1);
    let (words, _) = h.as_chunks::<4>();
    let sum: u64 = words.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
    sum != 0 && sum.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// The pseudo-header sum of IPv4 (RFC 793; RFC 768): addresses as on the wire, `len` the transport length in bytes.
pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, len: u16) -> u64 {
    let mut h = [0; 12];
    h[..4].copy_from_slice(&source);
    h[4..8].copy_from_slice(&destination);
    h[9] = protocol;
    h[10..].copy_from_slice(&len.to_be_bytes());
    sum(&h, 0)
}

/// The pseudo-header sum of IPv6 (RFC 8200, 8.1): `len` is the upper-layer length, `protocol` the upper-layer protocol.
pub fn pseudo_v6(source: [u8; 16], destination: [u8; 16], protocol: u8, len: u32) -> u64 {
    let mut h = [0; 40];
    h[..16].copy_from_slice(&source);
    h[16..32].copy_from_slice(&destination);
    h[32..36].copy_from_slice(&len.to_be_bytes());
    h[39] = protocol;
    sum(&h, 0)
}

/// The checksum after one aligned 16-bit word changed from `old` to `new` (all three as read with `from_ne_bytes`):
/// HC' = ~(~HC + ~m + m'), RFC 1624 equation 3.
///
/// Never turns a sum that is right into one that is wrong, but may give 0x0000 where full summing gives the same; for UDP over
/// IPv4 the caller keeps 0 ("no checksum") apart and writes 0xffff for a result of 0.
#[inline(always)]
pub fn update16(check: u16, old: u16, new: u16) -> u16 {
    let s = u32::from(!check) + u32::from(!old) + u32::from(new);
    let s = (s & 0xffff) + (s >> 16);
    !(((s & 0xffff) + (s >> 16)) as u16)
}

/// As [`update16`] for a run of aligned bytes of even, equal length: addresses, ports.
pub fn update(check: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert!(old.len() == new.len() && old.len().is_multiple_of(2));
    let mut s = u64::from(!check);
    for (o, n) in old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0) {
        s += u64::from(!u16::from_ne_bytes(*o)) + u64::from(u16::from_ne_bytes(*n));
    }
    !fold(s)
}

/// A *partial* sum (the field holds the folded pseudo-header sum, not inverted) after `old` became `new`: the field is
/// a plain sum, so m' - m is added without any inversion.
pub fn update_partial(field: u16, old: &[u8], new: &[u8]) -> u16 {
    !update(!field, old, new)
}

/// Decrements the TTL of an IPv4 header and mends its checksum. TTL is the high byte of its word, so the sum rises by 0x0100.
#[inline(always)]
pub fn decrement_ttl(ttl: &mut u8, check: &mut [u8; 2]) {
    *ttl = ttl.wrapping_sub(1);
    let s = u32::from(u16::from_be_bytes(*check)) + 0x0100;
    // 0xffff is the one value a valid header never holds unless all of it is zero: RFC 1624, section 3.
    *check = ((s + (s >> 16)) as u16).to_be_bytes();
}

/// Undoes [`decrement_ttl`], to the bit: for quoting a packet as it arrived.
pub fn restore_ttl(ttl: &mut u8, check: &mut [u8; 2]) {
    *ttl = ttl.wrapping_add(1);
    let c = u16::from_be_bytes(*check);
    // Below 0x0100 the decrement carried out and added the carry back in.
    *check = c.checked_sub(0x0100).unwrap_or(c.wrapping_add(0xfeff)).to_be_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn oracle(bytes: &[u8]) -> u16 {
        let mut s = 0u32;
        for pair in bytes.chunks(2) {
            s += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while s >> 16 != 0 {
            s = (s & 0xffff) + (s >> 16);
        }
        !(s as u16)
    }

    /// 0x0000 and 0xffff are the same number in one's complement.
    fn same(a: u16, b: u16) -> bool {
        a == b || (a == 0 && b == 0xffff) || (a == 0xffff && b == 0)
    }

    const CORNERS: [u16; 12] = [0, 1, 2, 0x00ff, 0x0100, 0x7fff, 0x8000, 0x8001, 0xff00, 0xfffd, 0xfffe, 0xffff];

    #[test]
    fn incremental_equals_full_over_all_corner_words() {
        for old in CORNERS {
            for new in CORNERS {
                for other in CORNERS {
                    for third in CORNERS {
                        let before = [old.to_be_bytes(), other.to_be_bytes(), third.to_be_bytes()].concat();
                        let after = [new.to_be_bytes(), other.to_be_bytes(), third.to_be_bytes()].concat();
                        let check = checksum(&before);
                        let inc = update16(
                            check,
                            u16::from_ne_bytes(old.to_be_bytes()),
                            u16::from_ne_bytes(new.to_be_bytes()),
                        );
                        assert!(same(inc, checksum(&after)), "{old:04x} -> {new:04x} beside {other:04x} {third:04x}");
                        // Receivers add everything up: exactly 0xffff, except where all is zero.
                        if after.iter().any(|b| *b != 0) {
                            let whole = [after.clone(), inc.to_ne_bytes().to_vec()].concat();
                            assert!(is_valid(&whole), "{old:04x} -> {new:04x} beside {other:04x} {third:04x}");
                        }
                        assert_eq!(inc, update(check, &before[..2], &after[..2]));
                    }
                }
            }
        }
    }

    #[test]
    fn the_example_of_rfc_1624_comes_out() {
        // Section 4: header checksum 0xDD2F, m 0x5555 -> 0x3285 gives 0x0000.
        let n = |v: u16| u16::from_ne_bytes(v.to_be_bytes());
        assert_eq!(update16(n(0xdd2f), n(0x5555), n(0x3285)), 0x0000);
    }

    #[test]
    fn decrement_is_right_for_every_ttl_and_sum() {
        for ttl in 1..=255u8 {
            for id in 0..=0xffffu32 {
                if id % 7 != 0 && !(0xff00..=0xffff).contains(&id) {
                    continue;
                }
                let mut h =
                    [0x45, 0, 0, 46, (id >> 8) as u8, id as u8, 0, 0, ttl, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
                let check = checksum(&h);
                h[10..12].copy_from_slice(&check.to_ne_bytes());
                let (mut t, mut c) = (h[8], [h[10], h[11]]);
                decrement_ttl(&mut t, &mut c);
                h[8] = t;
                h[10..12].copy_from_slice(&c);
                assert!(ipv4_header_is_valid(&h) && is_valid(&h), "ttl {ttl} id {id}");
                restore_ttl(&mut t, &mut c);
                assert_eq!((t, c), (ttl, check.to_ne_bytes()), "ttl {ttl} id {id}");
            }
        }
    }

    proptest! {
        #[test]
        fn sum_equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(checksum(&bytes), u16::from_ne_bytes(oracle(&bytes).to_be_bytes()));
        }

        #[test]
        fn parts_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            let cut = (cut * 2).min(bytes.len());
            let parts = sum(&bytes[cut..], sum(&bytes[..cut], 0));
            prop_assert!(same(!fold(parts), checksum(&bytes)));
        }

        #[test]
        fn header_check_agrees(h in any::<[u8; 20]>()) {
            prop_assert_eq!(ipv4_header_is_valid(&h), is_valid(&h) && h != [0; 20]);
            let mut good = h;
            good[10..12].fill(0);
            let check = checksum(&good);
            good[10..12].copy_from_slice(&check.to_ne_bytes());
            prop_assert!(ipv4_header_is_valid(&good));
        }

        #[test]
        fn partial_update_equals_new_pseudo_sum(a in any::<[u8; 4]>(), b in any::<[u8; 4]>(), c in any::<[u8; 4]>(), len in any::<u16>()) {
            let before = fold(pseudo_v4(a, b, 6, len));
            prop_assert!(same(update_partial(before, &a, &c), fold(pseudo_v4(c, b, 6, len))));
        }
    }
}
