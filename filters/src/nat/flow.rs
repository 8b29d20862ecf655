#![forbid(unsafe_code)]
//! Which flow a packet belongs to, and the packet that an ICMP error quotes.

use ferrule_dataplane::packet::{Flags, Packet};

use super::state::Key;

/// IP protocol numbers.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const SCTP: u8 = 132;

/// Whether an ICMP message has an identifier that names a flow: echo and time-stamp, request and reply.
fn has_id(kind: u8) -> bool {
    matches!(kind, 0 | 8 | 13 | 14)
}

/// What NAT makes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Ports to look for.
    Ports,
    /// An ICMP identifier.
    Echo,
    /// An ICMP error.
    Error,
    /// Addresses only.
    Address,
    /// An ICMP message of a kind that libalias leaves alone.
    Other,
}

/// The shape of a whole packet or a first fragment.
pub(super) fn shape(packet: &Packet) -> Shape {
    let [kind, code] = packet.destination_port.to_be_bytes();
    match packet.protocol {
        TCP | UDP | SCTP => Shape::Ports,
        ICMP if has_id(kind) && code == 0 => Shape::Echo,
        ICMP if matches!(kind, 3 | 4 | 11 | 12) => Shape::Error,
        ICMP => Shape::Other,
        _ => Shape::Address,
    }
}

/// The flow of a packet, its source as the near end; None for what has no flow (other ICMP messages).
pub(super) fn key(packet: &Packet) -> Option<Key> {
    let (near_port, far_port) = match shape(packet) {
        Shape::Ports => (packet.source_port, packet.destination_port),
        Shape::Echo => (packet.source_port, packet.source_port),
        Shape::Address => (0, 0),
        Shape::Error | Shape::Other => return None,
    };
    let (near, far) = (packet.source_v4(), packet.destination_v4());
    Some(Key { near, far, near_port, far_port, protocol: packet.protocol })
}

/// The packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted {
    /// Its IP header, from the frame's start.
    pub at: usize,
    /// Its transport header.
    pub transport: usize,
    /// Its flow, its source as the near end.
    pub key: Key,
}

/// What an ICMP error quotes, where that is enough of a packet to tell its flow. A quoted fragment other than the first tells no ports.
pub(super) fn quoted(packet: &Packet) -> Option<Quoted> {
    if packet.protocol != ICMP || packet.flags.has(Flags::FRAGMENT) || shape(packet) != Shape::Error {
        return None;
    }
    let head = packet.frame.head();
    let at = usize::from(packet.l4) + 8;
    let h: &[u8; 20] = head.get(at..)?.first_chunk()?;
    let transport = at + usize::from(h[0] & 15) * 4;
    if h[0] >> 4 != 4 || transport < at + 20 || u16::from_be_bytes([h[6], h[7]]) & 0x1fff != 0 {
        return None;
    }
    let word = |i: usize| u32::from_be_bytes([h[i], h[i + 1], h[i + 2], h[i + 3]]);
    let two = |i: usize| head.get(transport + i..transport + i + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let protocol = h[9];
    let (near_port, far_port) = match protocol {
        TCP | UDP | SCTP => (two(0)?, two(2)?),
        ICMP if has_id(*head.get(transport)?) => (two(4)?, two(4)?),
        ICMP => return None,
        _ => (0, 0),
    };
    Some(Quoted { at, transport, key: Key { near: word(12), far: word(16), near_port, far_port, protocol } })
}
