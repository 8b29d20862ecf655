#![forbid(unsafe_code)]

use super::*;
use crate::arena::{DEFAULT_STRIDE, HugePages, Pool};
use crate::packet::{L3, PortId};
use proptest::prelude::*;

fn pool() -> Pool {
    Pool::split(&Arena::new(64, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
}

/// A frame cut into segments of these lengths (the last takes the rest).
fn chain(pool: &mut Pool, bytes: &[u8], cuts: &[usize]) -> Frame {
    let (mut rest, mut frame): (_, Option<Frame>) = (bytes, None);
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (part, left) = rest.split_at(cut.min(rest.len()));
        rest = left;
        if part.is_empty() {
            continue;
        }
        let part = pool.frame_from(part).unwrap();
        match &mut frame {
            None => frame = Some(part),
            Some(frame) => pool.arena().append(frame, part),
        }
    }
    assert!(rest.is_empty());
    frame.unwrap()
}

/// An IPv4 or IPv6 TCP or UDP packet with an empty checksum field; etherparse's idea of the checksum beside it.
fn packet(v4: bool, tcp: bool, payload: &[u8]) -> (Vec<u8>, usize, u16) {
    let link = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]);
    let ip = if v4 { link.ipv4([198, 18, 0, 1], [198, 19, 0, 2], 64) } else { link.ipv6([0x20; 16], [0x21; 16], 64) };
    let mut bytes = Vec::new();
    if tcp {
        ip.tcp(1000, 80, 7, 1024).write(&mut bytes, payload).unwrap();
    } else {
        ip.udp(1000, 53).write(&mut bytes, payload).unwrap();
    }
    let l4 = if v4 { 34 } else { 54 };
    let at = l4 + if tcp { 16 } else { 6 };
    let right = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    (bytes, l4, right)
}

fn describe(frame: Frame, v4: bool, tcp: bool, l4: usize) -> Packet {
    let mut packet = Packet::new(frame, Offload::NONE, PortId(0));
    packet.family = if v4 { Family::V4 } else { Family::V6 };
    packet.protocol = if tcp { TCP } else { UDP };
    packet.l4 = l4 as u16;
    packet
}

fn bytes_of(pool: &Pool, packet: &Packet) -> Vec<u8> {
    pool.arena().segments(&packet.frame).collect::<Vec<_>>().concat()
}

proptest! {
    #[test]
    fn completing_equals_the_full_checksum(
        v4: bool, tcp: bool, flagged: bool,
        payload in proptest::collection::vec(any::<u8>(), 0..3000),
        cuts in proptest::collection::vec(1usize..500, 0..5),
        first in 74usize..300,
    ) {
        let mut pool = pool();
        let (mut bytes, l4, right) = packet(v4, tcp, &payload);
        let at = l4 + if tcp { 16 } else { 6 };
        let cuts: Vec<usize> = [first].into_iter().chain(cuts).collect();
        let whole = describe(chain(&mut pool, &bytes, &cuts), v4, tcp, l4);
        prop_assert!(is_valid(pool.arena(), &whole));
        pool.free(whole.frame);
        // What a local stack leaves in the field.
        let mut partial = describe(chain(&mut pool, &bytes, &cuts), v4, tcp, l4);
        let sum = pseudo(&partial, partial.protocol, bytes.len() - l4).unwrap();
        write(pool.arena(), &mut partial.frame, at, sum.to_ne_bytes());
        prop_assert!(looks_partial(&partial));
        if flagged {
            (partial.offload.csum_start, partial.offload.csum_offset) = (l4 as u16, (at - l4) as u16);
        } else {
            prop_assert_eq!(is_valid(pool.arena(), &partial), right == u16::from_be(sum));
            partial.flags.set(Flags::MAYBE_PARTIAL);
        }
        prop_assert!(is_valid(pool.arena(), &partial));
        prop_assert!(finish(pool.arena(), &mut partial));
        prop_assert!(!partial.offload.is_partial() && !partial.flags.has(Flags::MAYBE_PARTIAL));
        bytes[at..at + 2].copy_from_slice(&right.to_be_bytes());
        prop_assert_eq!(bytes_of(&pool, &partial), bytes);
        prop_assert!(is_valid(pool.arena(), &partial));
    }

    #[test]
    fn a_sum_over_segments_is_the_sum_over_the_whole(
        bytes in proptest::collection::vec(any::<u8>(), 20..2000),
        cuts in proptest::collection::vec(1usize..100, 0..8),
        from in 0usize..40, len in 0usize..2100,
    ) {
        let mut pool = pool();
        let frame = chain(&mut pool, &bytes, &cuts);
        let part = &bytes[from.min(bytes.len())..(from + len).min(bytes.len()).max(from.min(bytes.len()))];
        let (a, b) = (sum_range(pool.arena(), &frame, from, len, 0), fold(sum(part, 0)));
        prop_assert!(a == b || (a ^ b == 0xffff && (a == 0 || b == 0)));
    }
}

#[test]
fn a_udp_sum_of_zero_is_written_as_all_ones() {
    let mut pool = pool();
    // Two bytes of payload chosen so that the whole sums to 0xffff.
    let (bytes, l4, right) = packet(true, false, &[0, 0]);
    let mut bytes = bytes;
    bytes[42..44].copy_from_slice(&right.to_be_bytes());
    let mut packet = describe(pool.frame_from(&bytes).unwrap(), true, false, l4);
    let sum = pseudo(&packet, UDP, 10).unwrap();
    packet.frame.head_mut()[l4 + 6..l4 + 8].copy_from_slice(&sum.to_ne_bytes());
    packet.flags.set(Flags::MAYBE_PARTIAL);
    assert!(finish(pool.arena(), &mut packet));
    assert_eq!(packet.frame.head()[l4 + 6..l4 + 8], [0xff, 0xff]);
    assert!(is_valid(pool.arena(), &packet));
}

#[test]
fn no_udp_checksum_is_not_a_partial_one() {
    let mut pool = pool();
    for v4 in [true, false] {
        let (mut bytes, l4, _) = packet(v4, false, b"name");
        bytes[l4 + 6..l4 + 8].fill(0);
        let mut packet = describe(pool.frame_from(&bytes).unwrap(), v4, false, l4);
        packet.flags.set(Flags::MAYBE_PARTIAL);
        assert!(!looks_partial(&packet));
        assert_eq!(is_valid(pool.arena(), &packet), v4, "IPv6 needs the checksum");
        assert!(finish(pool.arena(), &mut packet));
        assert_eq!(packet.frame.head(), bytes);
    }
}

#[test]
fn a_damaged_packet_is_neither_valid_nor_partial() {
    let mut pool = pool();
    for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut bytes, l4, _) = packet(v4, tcp, b"payload");
        *bytes.last_mut().unwrap() ^= 1;
        let packet = describe(pool.frame_from(&bytes).unwrap(), v4, tcp, l4);
        assert!(!is_valid(pool.arena(), &packet) && !looks_partial(&packet));
    }
}

#[test]
fn an_offload_request_outside_the_frame_is_refused() {
    let mut pool = pool();
    let (bytes, l4, _) = packet(true, true, b"x");
    let mut packet = describe(pool.frame_from(&bytes).unwrap(), true, true, l4);
    let (len, start) = (bytes.len() as u16, L3 as u16 + 20);
    for (csum_start, csum_offset) in [(start, len - start - 1), (len, 0), (u16::MAX, u16::MAX), (1, u16::MAX)] {
        packet.offload = Offload { csum_start, csum_offset, ..Offload::NONE };
        assert!(!complete(pool.arena(), &mut packet), "{csum_start} {csum_offset}");
        assert_eq!(packet.frame.head(), bytes);
    }
    packet.offload = Offload { csum_start: start, csum_offset: len - start - 2, ..Offload::NONE };
    assert!(complete(pool.arena(), &mut packet));
}
