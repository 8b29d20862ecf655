//! Copies between foreign memory and the arena, for the ports whose frames do not lie in it. Each is counted by its port.
#![forbid(unsafe_code)]

use super::TxFrame;
use crate::arena::{Frame, Pool};

/// Copies `bytes` into buffers of `pool`. None when there are too few, with none of them taken; never with more than
/// [`crate::arena::MAX_FRAME`] bytes or without any.
///
/// The chain is built from its end, so that each link is set once without walking the rest.
#[inline]
pub(super) fn copy_in(pool: &mut Pool, bytes: &[u8]) -> Option<Frame> {
    let capacity = pool.arena().capacity();
    if bytes.len() <= capacity {
        return fill(pool, bytes);
    }
    copy_chain(pool, bytes, capacity)
}

#[inline]
fn fill(pool: &mut Pool, bytes: &[u8]) -> Option<Frame> {
    let mut frame = pool.alloc()?;
    if !frame.set_len(bytes.len()) {
        pool.free(frame);
        return None;
    }
    frame.head_mut().copy_from_slice(bytes);
    Some(frame)
}

fn copy_chain(pool: &mut Pool, bytes: &[u8], capacity: usize) -> Option<Frame> {
    if bytes.len() > crate::arena::MAX_FRAME || pool.available() < bytes.len().div_ceil(capacity) {
        return None;
    }
    let arena = pool.arena().clone();
    let mut rest: Option<Frame> = None;
    for part in bytes.chunks(capacity).rev() {
        let Some(mut frame) = fill(pool, part) else {
            if let Some(rest) = rest {
                pool.free(rest);
            }
            return None;
        };
        if let Some(rest) = rest {
            arena.append(&mut frame, rest);
        }
        rest = Some(frame);
    }
    rest
}

/// Ends a transmit call: the first `done` frames leave `frames`, those at the places `refused_at` (ascending) for `refused`,
/// the others, which were copied, for the pool.
#[inline]
pub(super) fn give_back(
    frames: &mut Vec<TxFrame>,
    done: usize,
    refused_at: &[usize],
    refused: &mut Vec<TxFrame>,
    pool: &mut Pool,
) {
    let mut refusals = refused_at.iter().peekable();
    for (place, tx) in frames.drain(..done).enumerate() {
        if refusals.next_if(|at| **at == place).is_some() {
            refused.push(tx);
        } else {
            pool.free(tx.frame);
        }
    }
}

/// Puts a VLAN tag (EtherType and control information, host order) behind the MAC addresses. False where it does not fit.
#[must_use]
pub(super) fn insert_tag(frame: &mut Frame, tag: (u16, u16)) -> bool {
    if frame.seg_len() < 12 || !frame.extend_front(4) {
        return false;
    }
    let header = frame.header_mut();
    header.copy_within(4..16, 0);
    header[12..14].copy_from_slice(&tag.0.to_be_bytes());
    header[14..16].copy_from_slice(&tag.1.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, DEFAULT_STRIDE, HugePages};

    fn pool(buffers: u32) -> Pool {
        Pool::split(&Arena::new(buffers, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
    }

    #[test]
    fn every_length_is_copied_whole() {
        let mut pool = pool(64);
        let arena = pool.arena().clone();
        let bytes: Vec<u8> = (0..65_549u32).map(|i| (i * 31 / 8) as u8).collect();
        for length in [1, 59, 60, 1791, 1792, 1856, 1857, 3712, 3713, 9014, 16_128, 65_549] {
            let frame = copy_in(&mut pool, &bytes[..length]).unwrap();
            assert_eq!(frame.len(), length);
            assert_eq!(arena.segments(&frame).collect::<Vec<_>>().concat(), bytes[..length]);
            pool.free(frame);
            assert_eq!(pool.available(), 64);
        }
    }

    #[test]
    fn too_few_buffers_take_none() {
        let mut pool = pool(3);
        assert!(copy_in(&mut pool, &[1; 9000]).is_none());
        assert_eq!(pool.available(), 3);
        assert!(copy_in(&mut pool, &[]).is_none());
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn a_tag_goes_behind_the_addresses() {
        let mut pool = pool(4);
        let bytes: Vec<u8> = (0..60).collect();
        let mut frame = copy_in(&mut pool, &bytes).unwrap();
        assert!(insert_tag(&mut frame, (0x88a8, 0x2064)));
        let mut expected = bytes[..12].to_vec();
        expected.extend([0x88, 0xa8, 0x20, 0x64]);
        expected.extend(&bytes[12..]);
        assert_eq!(frame.head(), expected);
        pool.free(frame);
    }
}
