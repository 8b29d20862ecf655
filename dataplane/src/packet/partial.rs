//! Completion of a partial checksum: what a network card would do for the local stack that left it the sum.
//!
//! The field holds the folded sum of the pseudo-header, not inverted; the packet is summed from `csum_start` to its end, the field
//! included, and the inverted sum takes the field's place (Virtio 1.2, 5.1.6.2; Linux `CHECKSUM_PARTIAL`).

#![forbid(unsafe_code)]

use crate::arena::{Arena, Frame};
use crate::packet::checksum;
use crate::packet::{GsoKind, Offload};

/// Completes the checksum of `frame`, which may be a chain with segments of odd length, and clears `offload`.
///
/// Returns false with nothing changed when the frame stands for several segments (each needs a sum of its own) or when the
/// field does not lie within the frame. A frame whose checksum is whole already gives true.
///
/// Stores 0xffff for a sum of 0, which UDP reserves for "no checksum" (RFC 768) and TCP takes as the same number.
#[must_use]
pub fn complete(arena: &Arena, frame: &mut Frame, offload: &mut Offload) -> bool {
    if !offload.is_partial() {
        return true;
    }
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(offload.csum_offset);
    if offload.gso_kind != GsoKind::None || field + 2 > frame.len() {
        return false;
    }
    let value =
        if frame.is_chain() { chain_sum(arena, frame, start) } else { checksum::sum(&frame.head()[start..], 0) };
    let bytes = match !checksum::fold(value) {
        0 => [0xff; 2],
        whole => whole.to_ne_bytes(),
    };
    if field + 2 <= frame.seg_len() {
        frame.head_mut()[field..field + 2].copy_from_slice(&bytes);
    } else {
        let mut position = 0;
        arena.for_each_segment_mut(frame, |segment| {
            for (at, byte) in (field..).zip(bytes) {
                if let Some(there) = at.checked_sub(position).and_then(|at| segment.get_mut(at)) {
                    *there = byte;
                }
            }
            position += segment.len();
        });
    }
    offload.csum_start = 0;
    offload.csum_offset = 0;
    true
}

/// The sum of a chain from `start` on. A segment that begins at an odd distance from `start` has its bytes in the other
/// halves of the words, so its sum goes in swapped (RFC 1071, 2 (B)).
fn chain_sum(arena: &Arena, frame: &Frame, start: usize) -> u64 {
    let mut total = 0u64;
    let mut skip = start;
    let mut odd = false;
    for segment in arena.segments(frame) {
        if skip >= segment.len() {
            skip -= segment.len();
            continue;
        }
        let part = &segment[skip..];
        skip = 0;
        let folded = checksum::fold(checksum::sum(part, 0));
        total += u64::from(if odd { folded.swap_bytes() } else { folded });
        odd ^= part.len() % 2 == 1;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{DEFAULT_STRIDE, HugePages, Pool};
    use proptest::prelude::*;

    fn pool() -> Pool {
        Pool::split(&Arena::new(64, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
    }

    /// A chain of the given pieces.
    fn chain(pool: &mut Pool, pieces: &[&[u8]]) -> Frame {
        let arena = pool.arena().clone();
        let mut frame = pool.frame_from(pieces[0]).unwrap();
        for piece in &pieces[1..] {
            let tail = pool.frame_from(piece).unwrap();
            arena.append(&mut frame, tail);
        }
        frame
    }

    /// The sum as RFC 1071 defines it, over network-order words, inverted.
    fn definition(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn completion_equals_full_recomputation(
            bytes in proptest::collection::vec(any::<u8>(), 60..4000),
            cuts in proptest::collection::vec(1usize..400, 0..12),
            start in 14usize..50,
            offset in 0usize..9,
        ) {
            let mut pool = pool();
            let mut pieces = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                if cut < rest.len() {
                    let (piece, after) = rest.split_at(cut);
                    pieces.push(piece);
                    rest = after;
                }
            }
            pieces.extend(rest.chunks(1500));
            let mut frame = chain(&mut pool, &pieces);
            let arena = pool.arena().clone();
            let mut offload =
                Offload { csum_start: start as u16, csum_offset: offset as u16, ..Offload::NONE };
            prop_assert!(complete(&arena, &mut frame, &mut offload));
            prop_assert_eq!(offload, Offload::NONE);

            let mut expected = bytes.clone();
            let whole = match definition(&bytes[start..]) { 0 => 0xffff, whole => whole };
            expected[start + offset..start + offset + 2].copy_from_slice(&whole.to_be_bytes());
            prop_assert_eq!(arena.segments(&frame).collect::<Vec<_>>().concat(), expected);
            pool.free(frame);
            prop_assert_eq!(pool.available(), 64);
        }
    }

    #[test]
    fn a_field_cut_in_two_by_segments_is_written() {
        let mut pool = pool();
        let arena = pool.arena().clone();
        let bytes: Vec<u8> = (0..64).collect();
        let mut frame = chain(&mut pool, &[&bytes[..41], &bytes[41..]]);
        let mut offload = Offload { csum_start: 34, csum_offset: 6, ..Offload::NONE };
        assert!(complete(&arena, &mut frame, &mut offload));
        let mut expected = bytes.clone();
        expected[40..42].copy_from_slice(&definition(&bytes[34..]).to_be_bytes());
        assert_eq!(arena.segments(&frame).collect::<Vec<_>>().concat(), expected);
        pool.free(frame);
    }

    #[test]
    fn a_sum_of_zero_is_stored_as_all_ones() {
        let mut pool = pool();
        let arena = pool.arena().clone();
        let mut bytes = [0u8; 60];
        bytes[40..42].copy_from_slice(&[0xff, 0xff]);
        let mut frame = pool.frame_from(&bytes).unwrap();
        let mut offload = Offload { csum_start: 34, csum_offset: 6, ..Offload::NONE };
        assert!(complete(&arena, &mut frame, &mut offload));
        assert_eq!(frame.head()[40..42], [0xff, 0xff]);
        pool.free(frame);
    }

    #[test]
    fn what_cannot_be_completed_is_left_alone() {
        let mut pool = pool();
        let arena = pool.arena().clone();
        let mut frame = pool.frame_from(&[7; 60]).unwrap();
        let outside = Offload { csum_start: 50, csum_offset: 9, ..Offload::NONE };
        let several =
            Offload { csum_start: 34, csum_offset: 16, gso_size: 10, gso_kind: GsoKind::TcpV4, ..Offload::NONE };
        for before in [outside, several] {
            let mut offload = before;
            assert!(!complete(&arena, &mut frame, &mut offload));
            assert_eq!((offload, frame.head()), (before, &[7; 60][..]));
        }
        pool.free(frame);
    }
}
