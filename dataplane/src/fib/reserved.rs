#![forbid(unsafe_code)]
//! Destinations that a router never forwards: the built-in entries of every routing table.

use super::adjacency::AdjacencyKind;
use super::prefix::Prefix;

/// A built-in entry.
pub(super) struct Reserved {
    pub(super) prefix: Prefix,
    pub(super) kind: AdjacencyKind,
    /// Whether routes of the user's may lie inside, and replace the entry itself.
    pub(super) may_be_routed: bool,
}

const fn v4(address: [u8; 4], length: u8, kind: AdjacencyKind, may_be_routed: bool) -> Reserved {
    Reserved { prefix: Prefix::V4 { address: u32::from_be_bytes(address), length }, kind, may_be_routed }
}

const fn v6(address: u128, length: u8, kind: AdjacencyKind) -> Reserved {
    Reserved { prefix: Prefix::V6 { address, length }, kind, may_be_routed: false }
}

/// RFC 1812 5.3.7 and 4.2.3.1, RFC 6890 2.2.2 and 2.2.3, RFC 4291 2.5.
pub(super) const RESERVED: [Reserved; 10] = [
    v4([0, 0, 0, 0], 8, AdjacencyKind::Martian, false),
    v4([127, 0, 0, 0], 8, AdjacencyKind::Martian, false),
    v4([224, 0, 0, 0], 4, AdjacencyKind::Multicast, false),
    // Class E: some networks number hosts from it, and Linux forwards it; a route makes it ordinary.
    v4([240, 0, 0, 0], 4, AdjacencyKind::Martian, true),
    v4([255, 255, 255, 255], 32, AdjacencyKind::Broadcast, false),
    v6(0, 128, AdjacencyKind::Martian),
    v6(1, 128, AdjacencyKind::Martian),
    // IPv4-mapped addresses (::ffff:0:0/96) never stand on the wire.
    v6(0xffff << 32, 96, AdjacencyKind::Martian),
    v6(0xfe80 << 112, 10, AdjacencyKind::LinkLocal),
    v6(0xff00 << 112, 8, AdjacencyKind::Multicast),
];
