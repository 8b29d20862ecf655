//! A packet in a batch: the frame it owns and the facts that the parser found, one cache line.
//!
//! Headers are parsed once, by [`parse`]; later stages read the descriptor. After the parser an IP frame is always
//! untagged and its IP header stands at [`L3`]: VLAN tags are taken off on the way in (the packet then belongs to the VLAN's own port)
//! and put on on the way out.

#![forbid(unsafe_code)]

pub mod checksum;
pub mod ether;
pub mod hash;
pub mod parse;
pub mod partial;
pub mod plain;
pub mod sctp;

use crate::arena::Frame;
use crate::fib::adjacency::AdjacencyId;
use crate::verdict::{PuntClass, Verdict};

/// Offset of the IP header in every parsed IP frame.
pub const L3: usize = 14;

/// Number of a port: its place in the table of ports. VLAN sub-interfaces are ports of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct PortId(pub u16);

impl PortId {
    /// No port: packets that Ferrule made itself, and packets without an egress yet.
    pub const NONE: PortId = PortId(u16::MAX);
}

/// What the network layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Family {
    /// Neither IPv4 nor IPv6: ARP, or an EtherType of no concern.
    Other,
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Facts about a packet that are a single bit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(transparent)]
pub struct Flags(u16);

impl Flags {
    /// None.
    pub const EMPTY: Flags = Flags(0);
    /// A fragment of any kind (offset not zero, or more to come).
    pub const FRAGMENT: Flags = Flags(1);
    /// A fragment that is not the first: there is no transport header.
    pub const LATER_FRAGMENT: Flags = Flags(1 << 1);
    /// An IPv4 header longer than 20 bytes.
    pub const OPTIONS: Flags = Flags(1 << 2);
    /// IPv6 extension headers other than a fragment header.
    pub const EXTENSIONS: Flags = Flags(1 << 3);
    /// Came in a link-layer broadcast or multicast.
    pub const LINK_GROUP: Flags = Flags(1 << 4);
    /// Came from the host's stack: keeps its MAC addresses and TTL, and passes the Out hook only.
    pub const FROM_HOST: Flags = Flags(1 << 5);
    /// Made by Ferrule.
    pub const GENERATED: Flags = Flags(1 << 6);
    /// TTL or hop limit already decremented.
    pub const DECREMENTED: Flags = Flags(1 << 7);
    /// The L4 checksum may be a pseudo-header sum only (AF_XDP gives no flag): complete before the wire when it is.
    pub const MAYBE_PARTIAL: Flags = Flags(1 << 8);
    /// `hash` is valid.
    pub const HASHED: Flags = Flags(1 << 9);
    /// A stage changed the destination: look the route up again.
    pub const REROUTE: Flags = Flags(1 << 10);
    /// Hop-by-hop options with a router alert, or the IPv4 option of that name.
    pub const ROUTER_ALERT: Flags = Flags(1 << 11);
    /// IPv4 without "don't fragment".
    pub const MAY_FRAGMENT: Flags = Flags(1 << 12);
    /// A link-local source or destination (or none): for the box perhaps, never forwarded.
    pub const LINK_LOCAL: Flags = Flags(1 << 13);
    /// `egress` and the Ethernet addresses are set: no route look-up and no rewrite, only the way out (ARP, ND, answers that must
    /// leave where the question came in).
    pub const LINK_READY: Flags = Flags(1 << 14);
    /// A stage names the next hop ([`crate::stage::Stage::next_hop`]): the route look-up is for that and not for the destination.
    pub const NEXT_HOP: Flags = Flags(1 << 15);

    /// Whether all of `other`'s bits are set.
    #[inline(always)]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other`'s bits is set.
    #[inline(always)]
    pub fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets `other`'s bits.
    #[inline(always)]
    pub fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    /// Clears `other`'s bits.
    #[inline(always)]
    pub fn clear(&mut self, other: Flags) {
        self.0 &= !other.0;
    }

    /// Both together.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Segmentation and checksum work that a sender left to the device: the parts of a virtio-net header (virtio 1.2, 5.1.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Offload {
    /// Where the checksum starts to be summed, from the frame's start; 0 when the checksum is whole.
    pub csum_start: u16,
    /// Where the sum goes, from `csum_start`.
    pub csum_offset: u16,
    /// Payload bytes of each segment; 0 when the frame is one packet.
    pub gso_size: u16,
    /// The kind of segmentation.
    pub gso_kind: GsoKind,
    /// The ECN bit of the virtio-net header.
    pub gso_ecn: bool,
}

/// Kind of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum GsoKind {
    /// One packet.
    #[default]
    None,
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams of equal size (USO).
    Udp,
}

impl Offload {
    /// A frame that is one packet with its checksums in place.
    pub const NONE: Offload =
        Offload { csum_start: 0, csum_offset: 0, gso_size: 0, gso_kind: GsoKind::None, gso_ecn: false };

    /// Whether nothing is left to the device.
    #[inline(always)]
    pub fn is_none(&self) -> bool {
        self.csum_start == 0 && self.gso_size == 0
    }

    /// Whether the checksum is still to be completed.
    pub fn is_partial(&self) -> bool {
        self.csum_start != 0
    }
}

/// One packet: the frame and what is known of it.
#[must_use = "a packet ends in a verdict"]
#[repr(C, align(64))]
pub struct Packet {
    /// The bytes.
    pub frame: Frame,
    /// What the sender left to the device.
    pub offload: Offload,
    /// The adjacency that the route look-up gave.
    pub adjacency: AdjacencyId,
    /// The flow hash: symmetric, seeded; valid with [`Flags::HASHED`].
    pub hash: u32,
    /// Where it came in; [`PortId::NONE`] for what Ferrule made.
    pub ingress: PortId,
    /// Where it goes out, once known.
    pub egress: PortId,
    /// Transport source port, host order; the identifier of an ICMP echo; 0 where there is none.
    pub source_port: u16,
    /// Transport destination port, host order; for ICMP type << 8 | code.
    pub destination_port: u16,
    /// Offset of the transport header from the frame's start; 0 where there is none.
    pub l4: u16,
    /// Bits.
    pub flags: Flags,
    /// The judgement so far, as [`Verdict::encode`] packs it: an enum with a payload would leave a byte undefined, and copying around it
    /// costs more than the look-up.
    verdict: u16,
    /// The transport protocol (IANA number, behind the extension headers); for [`Family::Other`] 0.
    pub protocol: u8,
    /// Network layer.
    pub family: Family,
    /// The tag that stages give each other (ipfw tag, pf tag); 0: none.
    pub tag: u16,
    /// Free for later stages; part of the line either way.
    pub mark: u16,
}

const _: () = assert!(size_of::<Packet>() == 64);

impl Packet {
    /// A packet about which nothing is known but where it came in.
    #[inline(always)]
    pub fn new(frame: Frame, offload: Offload, ingress: PortId) -> Packet {
        Packet {
            frame,
            offload,
            adjacency: AdjacencyId(0),
            hash: 0,
            ingress,
            egress: PortId::NONE,
            source_port: 0,
            destination_port: 0,
            l4: 0,
            flags: Flags::EMPTY,
            verdict: Verdict::Forward.encode(),
            protocol: 0,
            family: Family::Other,
            tag: 0,
            mark: 0,
        }
    }

    /// The judgement so far.
    #[inline(always)]
    pub fn verdict(&self) -> Verdict {
        Verdict::decode(self.verdict)
    }

    /// Whether it is one segment that leaves nothing to the device for sure, with no other flag set: as most packets come in.
    #[inline(always)]
    pub fn is_bare(&self) -> bool {
        self.offload.is_none() & (self.flags.0 & !Flags::MAYBE_PARTIAL.0 == 0) & !self.frame.is_chain()
    }

    /// Whether the packet still goes on.
    #[inline(always)]
    pub fn goes_on(&self) -> bool {
        self.verdict == Verdict::Forward.encode()
    }

    /// Whether the parser took it for DHCP to a client on the box.
    #[inline(always)]
    pub fn verdict_is_dhcp(&self) -> bool {
        self.verdict == Verdict::Host(PuntClass::Dhcp).encode()
    }

    /// Judges it.
    #[inline(always)]
    pub fn judge(&mut self, verdict: Verdict) {
        self.verdict = verdict.encode();
    }

    /// The IPv4 source; meaningful for [`Family::V4`].
    #[inline(always)]
    pub fn source_v4(&self) -> u32 {
        u32::from_be_bytes(plain::bytes(self.frame.header(), 26))
    }

    /// The IPv4 destination; meaningful for [`Family::V4`].
    #[inline(always)]
    pub fn destination_v4(&self) -> u32 {
        u32::from_be_bytes(plain::bytes(self.frame.header(), 30))
    }

    /// The IPv6 source; meaningful for [`Family::V6`].
    #[inline(always)]
    pub fn source_v6(&self) -> u128 {
        u128::from_be_bytes(plain::bytes(self.frame.header(), 22))
    }

    /// The IPv6 destination; meaningful for [`Family::V6`].
    #[inline(always)]
    pub fn destination_v6(&self) -> u128 {
        u128::from_be_bytes(plain::bytes(self.frame.header(), 38))
    }

    /// Bytes of the IP packet, from its header on.
    #[inline(always)]
    pub fn ip_len(&self) -> usize {
        self.frame.len() - L3
    }
}
