//! ICMP and ICMPv6 errors of our own: RFC 792 and RFC 1812 (4.3), RFC 4443.
//!
//! An error is built in a fresh buffer: from the primary address of the port that the packet came in on, to its source, quoting it
//! as it arrived. It then goes the way of everything Ferrule makes ([`Context::emit`]). The original stays with the caller, who
//! drops it with its own reason.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::forward::build::{self, HeaderV4, HeaderV6};
use crate::forward::{Refusal, fragment};
use crate::packet::{Family, Flags, L3, Packet, PortId, checksum};
use crate::ports::PortTable;
use crate::stage::Context;
use crate::verdict::Generated;

/// Longest ICMP error (RFC 1812, 4.3.2.3).
pub const ERROR_MAX_V4: usize = 576;
/// Longest ICMPv6 error: the least MTU of IPv6 (RFC 4443, 2.4 c).
pub const ERROR_MAX_V6: usize = 1280;
/// Least MTU of an IPv4 link (RFC 791, 3.2): what every router carries in one piece.
pub const MTU_FLOOR_V4: u32 = 68;
/// Least MTU of an IPv6 link (RFC 8200, 5).
pub const MTU_FLOOR_V6: u32 = 1280;

/// Precedence 6, internetwork control (RFC 1812, 4.3.2.5); as a DSCP: CS6.
const TOS: u8 = 0xc0;

/// What went wrong with a packet; becomes type and code of the packet's own family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// TTL or hop limit ran out.
    TimeExceeded,
    /// Fragments were missing when reassembly gave up.
    TimeExceededReassembly,
    /// It could not be delivered.
    Unreachable(Unreachable),
    /// Longer than the next link takes, and not to be cut: "packet too big" in IPv6. The MTU is that of the link; what is told
    /// is at least [`MTU_FLOOR_V4`] or [`MTU_FLOOR_V6`].
    FragmentationNeeded {
        /// Longest IP packet of the next link, in bytes.
        mtu: u32,
    },
    /// Something in its header makes no sense.
    ParameterProblem {
        /// The code of the packet's family: for IPv6 0 header field, 1 next header, 2 option (RFC 4443, 3.4); for IPv4 0.
        code: u8,
        /// Offset of the fault from the start of the IP header (in IPv4 at most 255).
        pointer: u32,
    },
}

/// Why a packet could not be delivered, with the codes of RFC 792, RFC 1812 (5.2.7.1) and RFC 4443 (3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// No route: 0 in both families.
    Net,
    /// The neighbour does not answer: 1; in IPv6 3 (address unreachable).
    Host,
    /// Nobody speaks that protocol: 2; in IPv6 4 (port unreachable; the exact form is a parameter problem of code 1).
    Protocol,
    /// Nobody listens: 3; in IPv6 4.
    Port,
    /// A source route that we do not follow: 5; in IPv6 7 (error in source routing header).
    SourceRouteFailed,
    /// The network is prohibited: 9; in IPv6 1 (administratively prohibited).
    NetProhibited,
    /// The host is prohibited: 10; in IPv6 1.
    HostProhibited,
    /// Communication is prohibited: 13; in IPv6 1.
    Prohibited,
    /// The source address does not reach that far: 0; in IPv6 2 (beyond scope of source address).
    BeyondScope,
    /// A code as it stands, for rule languages that name one.
    Code(u8),
}

impl Unreachable {
    fn code(self, family: Family) -> u8 {
        let (v4, v6) = match self {
            Unreachable::Net => (0, 0),
            Unreachable::Host => (1, 3),
            Unreachable::Protocol => (2, 4),
            Unreachable::Port => (3, 4),
            Unreachable::SourceRouteFailed => (5, 7),
            Unreachable::NetProhibited => (9, 1),
            Unreachable::HostProhibited => (10, 1),
            Unreachable::Prohibited => (13, 1),
            Unreachable::BeyondScope => (0, 2),
            Unreachable::Code(code) => (code, code),
        };
        if family == Family::V4 { v4 } else { v6 }
    }
}

impl IcmpError {
    /// Type, code and the second word of the message.
    fn message(self, family: Family) -> (u8, u8, u32) {
        let v4 = family == Family::V4;
        match self {
            IcmpError::TimeExceeded => (if v4 { 11 } else { 3 }, 0, 0),
            IcmpError::TimeExceededReassembly => (if v4 { 11 } else { 3 }, 1, 0),
            IcmpError::Unreachable(why) => (if v4 { 3 } else { 1 }, why.code(family), 0),
            // RFC 1191, 4: the MTU stands in the low half of the word.
            IcmpError::FragmentationNeeded { mtu } if v4 => (3, 4, mtu.clamp(MTU_FLOOR_V4, 0xffff)),
            IcmpError::FragmentationNeeded { mtu } => (2, 0, mtu.max(MTU_FLOOR_V6)),
            // RFC 792: the pointer is the first byte of the word.
            IcmpError::ParameterProblem { code, pointer } if v4 => (12, code, pointer.min(255) << 24),
            IcmpError::ParameterProblem { code, pointer } => (4, code, pointer),
        }
    }
}

/// Sends an error about `original`; true when one was sent.
///
/// Silent where the standards forbid an answer (RFC 1812, 4.3.2.7; RFC 4443, 2.4 e). Not sent, and counted as
/// `icmp_suppressed`, beyond the rate limit, without any address to send from, and without a free buffer.
pub fn error(kind: IcmpError, original: &Packet, context: &mut Context<'_>) -> bool {
    if !may_answer(kind, original) {
        return false;
    }
    let sent = if context.icmp_limit.take(context.now) { build(kind, original, context) } else { None };
    let Some(packet) = sent else {
        context.counters.icmp_suppressed.add(1);
        return false;
    };
    context.emit(Generated::IcmpError, packet);
    true
}

/// Tells the sender why its packet goes no further, in the words of its family.
pub fn refuse(refusal: Refusal, original: &Packet, context: &mut Context<'_>) {
    let v4 = original.family == Family::V4;
    let kind = match refusal {
        Refusal::TimeExceeded => IcmpError::TimeExceeded,
        Refusal::NoRoute => IcmpError::Unreachable(Unreachable::Net),
        Refusal::HostUnreachable => IcmpError::Unreachable(Unreachable::Host),
        Refusal::Prohibited => IcmpError::Unreachable(Unreachable::Prohibited),
        Refusal::TooBig(mtu) => IcmpError::FragmentationNeeded { mtu },
        Refusal::SourceRoute if v4 => IcmpError::Unreachable(Unreachable::SourceRouteFailed),
        Refusal::SourceRoute => match routing_type(original) {
            Some(pointer) => IcmpError::ParameterProblem { code: 0, pointer },
            None => return,
        },
        Refusal::BadHeader if v4 => IcmpError::ParameterProblem { code: 0, pointer: bad_option(original) },
        // The parser tells no place in an IPv6 chain, and without one the message says nothing.
        Refusal::BadHeader => return,
    };
    error(kind, original, context);
}

/// Where the first IPv4 option that makes no sense starts, from the IP header.
fn bad_option(original: &Packet) -> u32 {
    let h = original.frame.header();
    let end = L3 + usize::from(h[L3] & 15) * 4;
    let mut at = build::L4_V4;
    while at < end {
        let len = match h[at] {
            1 => 1,
            _ => usize::from(h[at + 1]),
        };
        if h[at] == 0 || at + 1 == end || (len < 2 && h[at] != 1) || at + len > end {
            break;
        }
        at += len;
    }
    (at - L3) as u32
}

/// Where the type of the IPv6 routing header stands, from the IP header (RFC 5095, 3). None where none is found, and where what
/// follows is an ICMPv6 error or cannot be told from one.
fn routing_type(original: &Packet) -> Option<u32> {
    let bytes = original.frame.head();
    let (mut next, mut at) = (*bytes.get(20)?, build::L4_V6);
    // Hop-by-hop and destination options may come first (RFC 8200, 4.1).
    for _ in 0..2 {
        if matches!(next, 0 | 60) {
            (next, at) = (*bytes.get(at)?, at + (usize::from(*bytes.get(at + 1)?) + 1) * 8);
        }
    }
    let (after, len) = (*bytes.get(at)?, (usize::from(*bytes.get(at + 1)?) + 1) * 8);
    let query = || bytes.get(at + len).is_some_and(|kind| *kind >= 128 && *kind != 137);
    let harmless = matches!(after, 6 | 17 | 132) || (after == 58 && query());
    (next == 43 && harmless).then_some((at + 2 - L3) as u32)
}

/// Whether the standards let anything be said about this packet.
pub fn may_answer(kind: IcmpError, original: &Packet) -> bool {
    let own = original.flags.has(Flags::GENERATED) && original.ingress == PortId::NONE;
    match original.family {
        _ if own => false,
        Family::V4 => may_answer_v4(original),
        Family::V6 => may_answer_v6(kind, original),
        Family::Other => false,
    }
}

fn may_answer_v4(original: &Packet) -> bool {
    let (source, destination) = (original.source_v4(), original.destination_v4());
    // 0/8, 127/8, multicast and 240/4 (with the limited broadcast) name no single host.
    let one_host = !matches!(source >> 24, 0 | 127 | 224..);
    let to_one = destination >> 28 < 0xe && !original.flags.has(Flags::LINK_GROUP);
    // Read anew: a packet that the parser refused for its options has no flags yet.
    let h = original.frame.header();
    let later = u16::from_be_bytes([h[20], h[21]]) & 0x1fff != 0;
    one_host && to_one && !later && !is_error(original)
}

fn may_answer_v6(kind: IcmpError, original: &Packet) -> bool {
    let (source, destination) = (original.source_v6(), original.destination_v6());
    let one_host = source > 1 && source >> 120 != 0xff;
    let to_one = destination >> 120 != 0xff && !original.flags.has(Flags::LINK_GROUP);
    let path_mtu = matches!(kind, IcmpError::FragmentationNeeded { .. });
    let excepted = path_mtu || matches!(kind, IcmpError::ParameterProblem { code: 2, .. });
    // A link under 1280 bytes must cut below IPv6 (RFC 8200, 5): no number that we could tell would help the sender.
    let helps = !path_mtu || fragment::segment_len(original) > MTU_FLOOR_V6 as usize;
    one_host && (to_one || excepted) && helps && !is_error(original)
}

/// ICMP errors and redirects, and whatever ICMP does not show its type; unknown types count as errors, as in FreeBSD.
fn is_error(original: &Packet) -> bool {
    let kind = (original.destination_port >> 8) as u8;
    match (original.family, original.protocol) {
        (Family::V4, 1) => original.l4 == 0 || !matches!(kind, 0 | 8..=10 | 13..=18),
        (Family::V6, 58) => original.l4 == 0 || kind < 128 || kind == 137,
        _ => false,
    }
}

fn build(kind: IcmpError, original: &Packet, context: &mut Context<'_>) -> Option<Packet> {
    let ports = &context.shared.ports;
    let (to, asked) = build::ends(original)?;
    // Somebody who claims our address gets no answer: it would go to ourselves.
    let from = source(ports, original, asked).filter(|from| *from != to)?;
    let v4 = original.family == Family::V4;
    let (headers, most) = if v4 { (build::L4_V4 + 8, ERROR_MAX_V4) } else { (build::L4_V6 + 8, ERROR_MAX_V6) };
    let room = most.min(context.pool.arena().capacity() - L3) - (headers - L3);
    let quoted = original.ip_len().min(room);
    let mut frame = build::frame(context, headers + quoted)?;
    let quote = &mut frame.head_mut()[headers..];
    context.pool.arena().copy_out(&original.frame, L3, quote);
    if original.flags.has(Flags::DECREMENTED) {
        restore(quote, v4);
    }
    let (icmp_type, code, word) = kind.message(original.family);
    let h = frame.header_mut();
    h[headers - 8..headers].copy_from_slice(&[icmp_type, code, 0, 0, 0, 0, 0, 0]);
    h[headers - 4..headers].copy_from_slice(&word.to_be_bytes());
    let protocol = if v4 { 1 } else { 58 };
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let count = context.counters.generated[Generated::IcmpError as usize].get();
            // It may be cut on its way: nobody would be told that it was too long (an error about an error).
            let id = build::identification(context, count);
            let (source, destination) = (from.octets(), to.octets());
            build::ipv4(&mut frame, &HeaderV4 { source, destination, protocol, tos: TOS, id, dont_fragment: false });
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let (source, destination) = (from.octets(), to.octets());
            build::ipv6(&mut frame, &HeaderV6 { source, destination, protocol, hop_limit: build::TTL });
        }
        _ => {
            context.pool.free(frame);
            return None;
        }
    }
    build::transport_checksum(&mut frame, original.family, protocol, 2);
    let mut packet = build::packet(frame, original.family, protocol, 0, u16::from(icmp_type) << 8 | u16::from(code));
    if !build::Origin::of(original).link_back(&mut packet, ports) {
        context.pool.free(packet.frame);
        return None;
    }
    Some(packet)
}

/// Makes the quoted header what it was before we took one from its TTL.
fn restore(quote: &mut [u8], v4: bool) {
    match quote {
        [_, _, _, _, _, _, _, hop_limit, ..] if !v4 => *hop_limit = hop_limit.wrapping_add(1),
        [_, _, _, _, _, _, _, _, ttl, _, high, low, ..] if v4 => {
            let mut check = [*high, *low];
            checksum::restore_ttl(ttl, &mut check);
            [*high, *low] = check;
        }
        _ => {}
    }
}

/// The address that speaks: the one asked for where it is ours (RFC 1122, 3.2.2; RFC 4443, 2.2 b), the ingress port's primary one,
/// any other port's. To a link-local sender only a link-local address can speak.
fn source(ports: &PortTable, original: &Packet, asked: IpAddr) -> Option<IpAddr> {
    let ingress = original.ingress;
    if build::is_ours(ports, asked, ingress) {
        return Some(asked);
    }
    if original.family == Family::V4 {
        let first = |id: PortId| -> Option<Ipv4Addr> { ports.get(id)?.addresses().v4.first().copied() };
        return first(ingress).or_else(|| ports.iter().find_map(|(id, _)| first(id))).map(IpAddr::V4);
    }
    let first = |id: PortId| -> Option<Ipv6Addr> { ports.get(id)?.addresses().v6.first().copied() };
    let link_local = || ports.get(ingress)?.addresses().link_local;
    if original.source_v6() >> 118 == 0xfe80 >> 6 {
        return link_local().map(IpAddr::V6);
    }
    first(ingress).or_else(|| ports.iter().find_map(|(id, _)| first(id))).map(IpAddr::V6)
}

#[cfg(test)]
mod tests;
