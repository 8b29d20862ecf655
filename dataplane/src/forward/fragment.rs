//! IPv4 fragmentation (RFC 791, 3.2), and the length that matters for an MTU.

#![forbid(unsafe_code)]

use crate::arena::Frame;
use crate::forward::build;
use crate::packet::{Flags, GsoKind, L3, Offload, Packet, checksum, partial};
use crate::stage::Context;
use crate::verdict::{Consumed, DropReason, Generated};

/// "More fragments" in the flags and offset word.
const MORE: u16 = 0x2000;
/// Longest IPv4 header.
const HEADER_MAX: usize = 60;

/// Bytes of the longest IP packet that this frame puts on a wire: its own length, or that of each full segment of a super-packet.
/// What is compared with an MTU; where it is larger, a super-packet needs "fragmentation needed" just as one packet does.
pub fn segment_len(packet: &Packet) -> usize {
    let whole = packet.ip_len();
    let l4 = usize::from(packet.l4);
    let transport = match packet.offload.gso_kind {
        GsoKind::None => return whole,
        GsoKind::Udp => 8,
        // The parser has checked that the header is in the window, and its length.
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            packet.frame.header().get(l4 + 12).map_or(60, |offset| usize::from(offset >> 4) * 4)
        }
    };
    whole.min(l4.saturating_sub(L3) + transport + usize::from(packet.offload.gso_size))
}

/// Cuts an IPv4 packet into pieces of at most `mtu` bytes and appends them to `out` in order; the packet itself ends here.
///
/// The pieces keep the packet's ports, adjacency, egress and tags, and its Ethernet header as it stands. They are counted as
/// generated, the packet as consumed. All or nothing: a packet that may not be cut (DF, a super-packet) or cannot be (an MTU
/// below the header and eight bytes) is dropped as too long, and one for which there are not enough buffers, or not enough
/// room in `out` (which never grows), as that; nothing is sent of it.
pub fn fragment(mut packet: Packet, mtu: usize, context: &mut Context<'_>, out: &mut Vec<Packet>) {
    if !packet.flags.has(Flags::MAY_FRAGMENT) || packet.offload.gso_kind != GsoKind::None {
        return context.discard(packet, DropReason::FragmentationNeeded);
    }
    if !partial::finish(context.pool.arena(), &mut packet) {
        return context.discard(packet, DropReason::TransportTruncated);
    }
    let first = Header::first(&packet);
    let later = first.later();
    let payload = packet.ip_len() - first.len;
    let room = |header: &Header| mtu.saturating_sub(header.len) & !7;
    let (room_first, room_later) = (room(&first), room(&later));
    if room_first == 0 || room_later == 0 {
        return context.discard(packet, DropReason::FragmentationNeeded);
    }
    // The last piece needs no multiple of eight, but one that fits so would not have been cut there.
    let pieces = 1 + payload.saturating_sub(room_first).div_ceil(room_later);
    let capacity = context.pool.arena().capacity();
    let buffers = (L3 + first.len + room_first).div_ceil(capacity)
        + (pieces - 1) * (L3 + later.len + room_later).div_ceil(capacity);
    if context.pool.available() < buffers || out.capacity() - out.len() < pieces {
        return context.discard(packet, DropReason::NoBuffer);
    }
    let mut done = 0;
    while done < payload {
        let (header, most) = if done == 0 { (&first, room_first) } else { (&later, room_later) };
        let len = most.min(payload - done);
        let last = done + len == payload;
        let Some(frame) = piece(&packet, &first, header, done, len, last, context) else {
            debug_assert!(false, "the buffers were counted");
            return context.discard(packet, DropReason::NoBuffer);
        };
        let piece = describe(&packet, frame, done != 0, header.len > 20);
        done += len;
        context.counters.generated[Generated::Fragment as usize].add(1);
        out.push(piece);
    }
    context.counters.consumed[Consumed::Fragmented as usize].add(1);
    context.pool.free(packet.frame);
}

/// An IPv4 header of any length.
struct Header {
    bytes: [u8; HEADER_MAX],
    len: usize,
}

impl Header {
    fn first(packet: &Packet) -> Header {
        let mut bytes = [0; HEADER_MAX];
        bytes.copy_from_slice(&packet.frame.header()[L3..L3 + HEADER_MAX]);
        let len = usize::from(bytes[0] & 15) * 4;
        Header { bytes, len }
    }

    /// The header of pieces after the first: of the options only those with the copied flag (RFC 791, 3.1).
    fn later(&self) -> Header {
        let mut bytes = [0; HEADER_MAX];
        bytes[..20].copy_from_slice(&self.bytes[..20]);
        let (mut from, mut to) = (20, 20);
        while from < self.len {
            let kind = self.bytes[from];
            // End of list, and no-operation, which only aligns.
            let len = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(*self.bytes.get(from + 1).unwrap_or(&0)),
            };
            if len == 0 || from + len > self.len {
                break;
            }
            if kind & 0x80 != 0 {
                bytes[to..to + len].copy_from_slice(&self.bytes[from..from + len]);
                to += len;
            }
            from += len;
        }
        let len = to.next_multiple_of(4);
        bytes[0] = 0x40 | (len / 4) as u8;
        Header { bytes, len }
    }
}

/// Builds one piece: `len` bytes of the payload from `done` on. None without a free buffer.
fn piece(
    packet: &Packet,
    first: &Header,
    header: &Header,
    done: usize,
    len: usize,
    last: bool,
    context: &mut Context<'_>,
) -> Option<Frame> {
    let word = u16::from_be_bytes([first.bytes[6], first.bytes[7]]);
    // The packet may be a fragment itself: offsets go on from its own, and its last piece has more to come if it had.
    let offset = (word & 0x1fff) + (done / 8) as u16;
    let more = if last { word & MORE } else { MORE };
    let capacity = context.pool.arena().capacity();
    let whole = L3 + header.len + len;
    let mut frame = build::frame(context, whole.min(capacity))?;
    let h = frame.header_mut();
    h[..L3].copy_from_slice(&packet.frame.header()[..L3]);
    let ip = &mut h[L3..L3 + header.len];
    ip.copy_from_slice(&header.bytes[..header.len]);
    ip[2..4].copy_from_slice(&((header.len + len) as u16).to_be_bytes());
    ip[6..8].copy_from_slice(&(offset | more).to_be_bytes());
    ip[10..12].fill(0);
    let check = checksum::checksum(ip);
    ip[10..12].copy_from_slice(&check.to_ne_bytes());
    let mut from = L3 + first.len + done;
    from += context.pool.arena().copy_out(&packet.frame, from, &mut frame.head_mut()[L3 + header.len..]);
    while frame.len() < whole {
        let Some(mut tail) = build::frame(context, (whole - frame.len()).min(capacity)) else {
            context.pool.free(frame);
            return None;
        };
        from += context.pool.arena().copy_out(&packet.frame, from, tail.head_mut());
        context.pool.arena().append(&mut frame, tail);
    }
    Some(frame)
}

/// The descriptor of a piece.
fn describe(packet: &Packet, frame: Frame, later: bool, options: bool) -> Packet {
    let mut piece = Packet::new(frame, Offload::NONE, packet.ingress);
    piece.adjacency = packet.adjacency;
    // Without a flow hash yet, fragments carry their identification in its place, as from the parser.
    let h = packet.frame.header();
    let id = u32::from(u16::from_be_bytes([h[18], h[19]]));
    piece.hash = if packet.flags.has(Flags::HASHED) { packet.hash } else { id };
    piece.egress = packet.egress;
    piece.flags = packet.flags;
    piece.judge(packet.verdict());
    piece.protocol = packet.protocol;
    piece.family = packet.family;
    (piece.tag, piece.mark) = (packet.tag, packet.mark);
    piece.flags.set(Flags::FRAGMENT.with(Flags::GENERATED));
    if !options {
        piece.flags.clear(Flags::OPTIONS.with(Flags::ROUTER_ALERT));
    }
    if later {
        piece.flags.set(Flags::LATER_FRAGMENT);
    } else {
        piece.l4 = packet.l4;
        (piece.source_port, piece.destination_port) = (packet.source_port, packet.destination_port);
    }
    piece
}

#[cfg(test)]
mod tests;
