//! SCTP aborts (RFC 9260, 3.3.7 and 8.4).

#![forbid(unsafe_code)]

use crate::forward::build;
use crate::packet::{GsoKind, Offload, Packet, sctp};
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
    let from = build::answerable(original, 132)?;
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
    let at = build::answer_at(original);
    let mut frame = build::frame(context, at + LEN)?;
    let bytes = &mut frame.header_mut()[at..at + LEN];
    bytes.fill(0);
    let [a, b, c, d] = ports;
    bytes[..4].copy_from_slice(&[c, d, a, b]);
    bytes[4..8].copy_from_slice(&tag);
    bytes[12..16].copy_from_slice(&[ABORT, flags, 0, 4]);
    build::answer_header(&mut frame, original);
    let mut whole = Offload { csum_start: at as u16, csum_offset: 8, gso_kind: GsoKind::None, ..Offload::NONE };
    if !sctp::complete(context.pool.arena(), &mut frame, &mut whole) {
        context.pool.free(frame);
        return None;
    }
    build::answer_back(frame, original, context)
}
