//! TCP resets (RFC 9293, 3.5.2 and 3.10.7.1).

#![forbid(unsafe_code)]

use crate::forward::build;
use crate::packet::Packet;
use crate::stage::Context;
use crate::verdict::Generated;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Answers a TCP segment as a host without such a connection does: from its destination, to its source. True when a reset was sent.
///
/// Silent for resets, fragments, what came in a link-layer group or goes to or from one; without a free buffer nothing is sent.
/// The original stays with the caller. `original` may be a super-packet.
pub fn reset(original: &Packet, context: &mut Context<'_>) -> bool {
    let Some(packet) = build(original, context) else { return false };
    context.emit(Generated::Reset, packet);
    true
}

fn build(original: &Packet, context: &mut Context<'_>) -> Option<Packet> {
    let l4 = build::answerable(original, 6)?;
    let h = original.frame.header();
    let flags = h[l4 + 13];
    if flags & RST != 0 {
        return None;
    }
    let data = original.frame.len() - l4 - usize::from(h[l4 + 12] >> 4) * 4;
    let length = data as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let (sequence, acknowledgement, flags) = if flags & ACK != 0 {
        (build::array(&h[l4 + 8..]), [0; 4], RST)
    } else {
        let seen = u32::from_be_bytes(build::array(&h[l4 + 4..])).wrapping_add(length);
        ([0; 4], seen.to_be_bytes(), RST | ACK)
    };
    let at = build::answer_at(original);
    let mut frame = build::frame(context, at + 20)?;
    let tcp = &mut frame.header_mut()[at..at + 20];
    tcp.fill(0);
    tcp[..2].copy_from_slice(&h[l4 + 2..l4 + 4]);
    tcp[2..4].copy_from_slice(&h[l4..l4 + 2]);
    tcp[4..8].copy_from_slice(&sequence);
    tcp[8..12].copy_from_slice(&acknowledgement);
    tcp[12] = 5 << 4;
    tcp[13] = flags;
    build::answer_header(&mut frame, original);
    build::transport_checksum(&mut frame, original.family, original.protocol, 16);
    build::answer_back(frame, original, context)
}

#[cfg(test)]
mod tests;
