//! Echo replies (RFC 792; RFC 4443, 4.2), made in the request's own buffers, whatever its size.

#![forbid(unsafe_code)]

use super::Done;
use crate::forward::build::{self, HeaderV4, HeaderV6};
use crate::packet::{Family, Packet, checksum, partial};
use crate::stage::Context;
use crate::verdict::{DropReason, Generated};

/// Turns an echo request to one of our addresses, checksum checked, into its reply.
pub(super) fn answer(mut packet: Packet, context: &mut Context<'_>) -> Done {
    let v4 = packet.family == Family::V4;
    let (at, kind) = if v4 { (build::L4_V4, 0) } else { (build::L4_V6, 129) };
    // The code is 0 and nothing else.
    if packet.destination_port as u8 != 0 || !partial::finish(context.pool.arena(), &mut packet) {
        return Done::Dropped(packet, DropReason::HostNone);
    }
    let origin = build::Origin::of(&packet);
    // IPv4 options and IPv6 extension headers of the request stay behind: the headers move up to the message.
    let extra = usize::from(packet.l4) - at;
    if extra > 0 {
        packet.frame.header_mut().copy_within(..at, extra);
        if !packet.frame.trim_front(extra) {
            return Done::Dropped(packet, DropReason::HostNone);
        }
    }
    let h = packet.frame.header_mut();
    let old = u16::from_ne_bytes([h[at], h[at + 1]]);
    let check = u16::from_ne_bytes([h[at + 2], h[at + 3]]);
    // Both families: source and destination change places, which leaves the pseudo-header sum alone.
    let new = u16::from_ne_bytes([kind, 0]);
    let check = checksum::update16(check, old, new);
    h[at..at + 2].copy_from_slice(&new.to_ne_bytes());
    h[at + 2..at + 4].copy_from_slice(&check.to_ne_bytes());
    if v4 {
        let (source, destination) = (build::array(&h[30..]), build::array(&h[26..]));
        let (tos, id, dont_fragment) = (h[15], u16::from_be_bytes([h[18], h[19]]), h[20] & 0x40 != 0);
        build::ipv4(&mut packet.frame, &HeaderV4 { source, destination, protocol: 1, tos, id, dont_fragment });
    } else {
        let (source, destination) = (build::array(&h[38..]), build::array(&h[22..]));
        build::ipv6(&mut packet.frame, &HeaderV6 { source, destination, protocol: 58, hop_limit: build::TTL });
    }
    let id = packet.source_port;
    let mut reply = build::packet(packet.frame, packet.family, packet.protocol, id, u16::from(kind) << 8);
    if !origin.link_back(&mut reply, &context.shared.ports) {
        return Done::Dropped(reply, DropReason::HostNone);
    }
    context.emit(Generated::Answer, reply);
    Done::Here
}
