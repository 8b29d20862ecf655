//! SCTP aborts (RFC 9260, 3.3.7 and 8.4).

#![forbid(unsafe_code)]

use crate::forward::build::{self, HeaderV4, HeaderV6};
use crate::packet::{Family, Flags, GsoKind, Offload, Packet, sctp};
use crate::stage::Context;
use crate::verdict::Generated;

const INIT: u8 = 1;
const ABORT: u8 = 6;
/// The T bit: the verification tag is the one that the packet had, and not the receiver's own.
const REFLECTED: u8 = 1;
/// Common header and an ABORT chunk without causes.
const LEN: usize = 16;

/// Answers an SCTP packet as a host without such an association does: from its destination, to its source. True when an ABORT was sent.
///
/// Silent for fragments, what came in a link-layer group or goes to or from one, for an ABORT, and where the tag that the answer must carry
/// is not known; without a free buffer nothing is sent. The original stays with the caller.
pub fn abort(original: &Packet, context: &mut Context<'_>) -> bool {
    let Some(packet) = build(original, context) else { return false };
    context.emit(Generated::Reset, packet);
    true
}

fn build(original: &Packet, context: &mut Context<'_>) -> Option<Packet> {
    let from = usize::from(original.l4);
    if original.protocol != 132 || from == 0 || original.flags.any(Flags::FRAGMENT.with(Flags::LINK_GROUP)) {
        return None;
    }
    let (source, destination) = build::ends(original)?;
    if source.is_multicast() || source.is_unspecified() || destination.is_multicast() {
        return None;
    }
    let head = original.frame.head();
    let (tag, flags) = match head.get(from + 12) {
        Some(&ABORT) => return None,
        // The tag of an INIT is 0; the one to use is in it.
        Some(&INIT) => (head.get(from + 16..from + 20)?, 0),
        _ => (head.get(from + 4..from + 8)?, REFLECTED),
    };
    let (tag, ports): ([u8; 4], [u8; 4]) = (build::array(tag), build::array(head.get(from..from + 4)?));
    if tag == [0; 4] {
        return None;
    }
    let family = original.family;
    let at = if family == Family::V4 { build::L4_V4 } else { build::L4_V6 };
    let mut frame = build::frame(context, at + LEN)?;
    let bytes = &mut frame.header_mut()[at..at + LEN];
    bytes.fill(0);
    let [a, b, c, d] = ports;
    bytes[..4].copy_from_slice(&[c, d, a, b]);
    bytes[4..8].copy_from_slice(&tag);
    bytes[12..16].copy_from_slice(&[ABORT, flags, 0, 4]);
    let (protocol, h) = (132, original.frame.header());
    if family == Family::V4 {
        let (source, destination) = (build::array(&h[30..]), build::array(&h[26..]));
        build::ipv4(&mut frame, &HeaderV4 { source, destination, protocol, tos: 0, id: 0, dont_fragment: true });
    } else {
        let (source, destination) = (build::array(&h[38..]), build::array(&h[22..]));
        build::ipv6(&mut frame, &HeaderV6 { source, destination, protocol, hop_limit: build::TTL });
    }
    let mut whole = Offload { csum_start: at as u16, csum_offset: 8, gso_kind: GsoKind::None, ..Offload::NONE };
    if !sctp::complete(context.pool.arena(), &mut frame, &mut whole) {
        context.pool.free(frame);
        return None;
    }
    let mut packet = build::packet(frame, family, protocol, original.destination_port, original.source_port);
    if !build::Origin::of(original).link_back(&mut packet, &context.shared.ports) {
        context.pool.free(packet.frame);
        return None;
    }
    Some(packet)
}
