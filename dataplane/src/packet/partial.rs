//! Partial checksums: a local sender left only the pseudo-header sum in the field and the rest to the device
//! (virtio 1.2, 5.1.6.2: `csum_start`, `csum_offset`). They are completed here before such a packet reaches a wire without that
//! help, or is cut. Sums run over chains, whatever the parity of their segments.

#![forbid(unsafe_code)]

use crate::arena::{Arena, Frame};
use crate::packet::checksum::{fold, pseudo_v4, pseudo_v6, sum};
use crate::packet::{Family, Flags, Offload, Packet};

/// IANA number of TCP.
const TCP: u8 = 6;
/// IANA number of UDP.
const UDP: u8 = 17;
/// Offset of the checksum in a UDP header; tells UDP from TCP (16) in a virtio-net header.
const UDP_CHECKSUM: u16 = 6;

/// The folded sum (native order, not inverted) of `len` bytes of the frame from `from` on, added to `initial`.
/// Bytes past the frame's end count as zero.
pub fn sum_range(arena: &Arena, frame: &Frame, from: usize, len: usize, initial: u16) -> u16 {
    let (mut total, mut at, mut left, mut odd) = (u64::from(initial), 0, len, false);
    for segment in arena.segments(frame) {
        let start = from.saturating_sub(at).min(segment.len());
        let part = &segment[start..segment.len().min(start + left)];
        at += segment.len();
        left -= part.len();
        let folded = fold(sum(part, 0));
        // A part that starts at an odd place has its bytes in the other halves of the words (RFC 1071, 2 B).
        total += u64::from(if odd { folded.swap_bytes() } else { folded });
        odd ^= !part.len().is_multiple_of(2);
        if left == 0 {
            break;
        }
    }
    fold(total)
}

/// The folded pseudo-header sum of the packet for an upper-layer length; None for what is not IP.
fn pseudo(packet: &Packet, protocol: u8, len: usize) -> Option<u16> {
    let h = packet.frame.header();
    let sum = match packet.family {
        Family::V4 => pseudo_v4(*h[26..].first_chunk()?, *h[30..].first_chunk()?, protocol, len as u16),
        Family::V6 => pseudo_v6(*h[22..].first_chunk()?, *h[38..].first_chunk()?, protocol, len as u32),
        Family::Other => return None,
    };
    Some(fold(sum))
}

/// Offset of the checksum field of TCP and UDP, from the frame's start, where the parser found a whole header.
fn field(packet: &Packet) -> Option<usize> {
    let l4 = usize::from(packet.l4);
    match packet.protocol {
        _ if l4 == 0 || packet.flags.has(Flags::FRAGMENT) => None,
        TCP => Some(l4 + 16),
        UDP => Some(l4 + 6),
        _ => None,
    }
}

fn field_value(packet: &Packet, at: usize) -> Option<u16> {
    packet.frame.head().get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]))
}

/// Whether a TCP or UDP packet's checksum field is no more than its folded pseudo-header sum: the mark that a local stack left the
/// rest to the device, where the port gives no flag (AF_XDP). A right checksum looks the same once in 65,536 packets; completing it
/// then gives the value that is there, so the mistake costs a sum and changes nothing.
pub fn looks_partial(packet: &Packet) -> bool {
    let Some(at) = field(packet) else { return false };
    let len = packet.frame.len() - usize::from(packet.l4);
    let value = field_value(packet, at);
    // 0 is "no checksum" in UDP over IPv4, and never a pseudo-header sum.
    value.is_some_and(|v| v != 0) && value == pseudo(packet, packet.protocol, len)
}

/// Completes the checksum that [`Packet::offload`] leaves to the device and clears that request; true when there was none, too.
/// False, with nothing changed, where `csum_start` and `csum_offset` point outside the frame: such a packet is to be dropped.
#[must_use]
pub fn complete(arena: &Arena, packet: &mut Packet) -> bool {
    if !packet.offload.is_partial() {
        return true;
    }
    let Offload { csum_start, csum_offset, .. } = packet.offload;
    let (start, at) = (usize::from(csum_start), usize::from(csum_start) + usize::from(csum_offset));
    let len = packet.frame.len();
    if at + 2 > len {
        return false;
    }
    // The field holds the pseudo-header sum and is summed with the rest.
    let mut check = !sum_range(arena, &packet.frame, start, len - start, 0);
    if check == 0 && csum_offset == UDP_CHECKSUM {
        check = 0xffff;
    }
    write(arena, &mut packet.frame, at, check.to_ne_bytes());
    (packet.offload.csum_start, packet.offload.csum_offset) = (0, 0);
    packet.flags.clear(Flags::MAYBE_PARTIAL);
    true
}

/// As [`complete`], also for a packet of a port that gives no flag and that [`looks_partial`]. Not for a super-packet, whose
/// segments get their sums when it is cut.
#[must_use]
pub fn finish(arena: &Arena, packet: &mut Packet) -> bool {
    if packet.flags.has(Flags::MAYBE_PARTIAL) {
        packet.flags.clear(Flags::MAYBE_PARTIAL);
        if !packet.offload.is_partial() && looks_partial(packet) {
            packet.offload.csum_start = packet.l4;
            packet.offload.csum_offset = if packet.protocol == TCP { 16 } else { UDP_CHECKSUM };
        }
    }
    complete(arena, packet)
}

/// Whether the transport checksum of a whole packet (TCP, UDP, ICMP, ICMPv6) adds up; a sum still left to the device does, and so does
/// a transport that has none here. A UDP checksum of 0 is right in IPv4 and wrong in IPv6 (RFC 8200, 8.1).
pub fn is_valid(arena: &Arena, packet: &Packet) -> bool {
    let l4 = usize::from(packet.l4);
    if l4 == 0 || packet.flags.has(Flags::FRAGMENT) || packet.offload.is_partial() {
        return true;
    }
    let mut len = packet.frame.len() - l4;
    let initial = match (packet.protocol, packet.family) {
        (TCP, _) | (58, Family::V6) => pseudo(packet, packet.protocol, len),
        (UDP, family) => {
            let h = packet.frame.header();
            if [h[l4 + 6], h[l4 + 7]] == [0, 0] {
                return family == Family::V4;
            }
            // Bytes may follow the datagram within the packet (RFC 768 gives its own length).
            len = len.min(usize::from(u16::from_be_bytes([h[l4 + 4], h[l4 + 5]])));
            pseudo(packet, UDP, len)
        }
        (1, Family::V4) => Some(0),
        _ => return true,
    };
    let whole = initial.is_some_and(|initial| sum_range(arena, &packet.frame, l4, len, initial) == 0xffff);
    whole || (packet.flags.has(Flags::MAYBE_PARTIAL) && looks_partial(packet))
}

/// Writes two bytes that may lie on both sides of a segment's end.
fn write(arena: &Arena, frame: &mut Frame, at: usize, value: [u8; 2]) {
    let mut start = 0;
    arena.for_each_segment_mut(frame, |segment| {
        for (i, byte) in value.into_iter().enumerate() {
            if let Some(place) = (at + i).checked_sub(start).and_then(|n| segment.get_mut(n)) {
                *place = byte;
            }
        }
        start += segment.len();
    });
}

#[cfg(test)]
mod tests;
