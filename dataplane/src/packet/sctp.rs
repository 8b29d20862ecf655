//! SCTP's checksum, left to the device by a local stack.
//!
//! A virtio-net header has no word for it: the request looks like any partial checksum, and only the place of the field, which
//! no other protocol shares, tells that a CRC32c is wanted (RFC 9260, 6.8 and appendix A). Ports therefore complete SCTP as it
//! comes in and never pass it on partial. The CRC covers no pseudo-header, so a change of addresses leaves it right.

#![forbid(unsafe_code)]

use crate::arena::{Arena, Frame};
use crate::packet::{GsoKind, Offload};

/// Offset of the checksum in an SCTP header.
const FIELD: u16 = 8;
/// Bytes of the checksum.
const WIDTH: usize = 4;

/// Whether the partial checksum is SCTP's.
#[inline(always)]
pub fn is_partial(offload: &Offload) -> bool {
    offload.is_partial() && offload.csum_offset == FIELD
}

/// Completes the checksum for which [`is_partial`] is true and clears the request. Returns false with nothing changed where the
/// field does not lie in the frame, or for a super-packet.
#[must_use]
pub fn complete(arena: &Arena, frame: &mut Frame, offload: &mut Offload) -> bool {
    let start = usize::from(offload.csum_start);
    let field = start + usize::from(FIELD);
    if offload.gso_kind != GsoKind::None || field + WIDTH > frame.len() {
        return false;
    }
    // The CRC goes over a field of zeros and is stored with its low byte first.
    write(arena, frame, field, [0; WIDTH]);
    let crc = crc32c(arena, frame, start);
    write(arena, frame, field, crc.to_le_bytes());
    (offload.csum_start, offload.csum_offset) = (0, 0);
    true
}

/// Puts the four bytes at `at` of the frame, also across segments.
fn write(arena: &Arena, frame: &mut Frame, at: usize, bytes: [u8; WIDTH]) {
    let mut position = 0;
    arena.for_each_segment_mut(frame, |segment| {
        for (at, byte) in (at..).zip(bytes) {
            if let Some(there) = at.checked_sub(position).and_then(|at| segment.get_mut(at)) {
                *there = byte;
            }
        }
        position += segment.len();
    });
}

/// The CRC32c (Castagnoli, reflected) from `start` of the frame on.
fn crc32c(arena: &Arena, frame: &Frame, start: usize) -> u32 {
    let mut skip = start;
    let mut crc = u32::MAX;
    for segment in arena.segments(frame) {
        let part = segment.get(skip..).unwrap_or_default();
        skip -= skip.min(segment.len());
        for byte in part {
            crc = TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
        }
    }
    !crc
}

/// The CRC of each single byte.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = step(crc);
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// One bit of the division by the reflected polynomial.
const fn step(crc: u32) -> u32 {
    if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{DEFAULT_STRIDE, HugePages, Pool};

    fn pool() -> Pool {
        Pool::split(&Arena::new(8, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
    }

    #[test]
    fn the_published_check_value_comes_out() {
        let mut pool = pool();
        let frame = pool.frame_from(b"headers-123456789").unwrap();
        assert_eq!(crc32c(&pool.arena().clone(), &frame, 8), 0xe306_9283);
        pool.free(frame);
    }

    #[test]
    fn every_cut_of_a_frame_gives_the_same_bytes() {
        let bytes: Vec<u8> = (0..101).collect();
        let mut expected = bytes.clone();
        expected[42..46].fill(0);
        let crc =
            expected[34..].iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)));
        expected[42..46].copy_from_slice(&(!crc).to_le_bytes());
        let mut pool = pool();
        let arena = pool.arena().clone();
        for cut in 1..bytes.len() {
            let mut frame = pool.frame_from(&bytes[..cut]).unwrap();
            let tail = pool.frame_from(&bytes[cut..]).unwrap();
            arena.append(&mut frame, tail);
            let mut offload = Offload { csum_start: 34, csum_offset: 8, ..Offload::NONE };
            assert!(is_partial(&offload) && complete(&arena, &mut frame, &mut offload));
            assert_eq!(offload, Offload::NONE);
            assert_eq!(arena.segments(&frame).collect::<Vec<_>>().concat(), expected, "cut at {cut}");
            pool.free(frame);
        }
    }

    #[test]
    fn a_field_outside_the_frame_is_refused() {
        let mut pool = pool();
        let arena = pool.arena().clone();
        let mut frame = pool.frame_from(&[7; 45]).unwrap();
        let mut offload = Offload { csum_start: 34, csum_offset: 8, ..Offload::NONE };
        assert!(!complete(&arena, &mut frame, &mut offload) && offload.is_partial());
        assert_eq!(frame.head(), [7; 45]);
        pool.free(frame);
    }
}
