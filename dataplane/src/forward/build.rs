//! Writing the headers of packets that Ferrule makes itself.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::arena::Frame;
use crate::packet::checksum::{checksum, fold, pseudo_v4, pseudo_v6, sum};
use crate::packet::{Family, Flags, L3, Offload, Packet, PortId, ether};
use crate::ports::{MacAddress, PortTable};
use crate::stage::Context;

/// Default TTL and hop limit, as FreeBSD and Linux have it (RFC 1700).
pub(crate) const TTL: u8 = 64;
/// Frame bytes up to the transport header, IPv4 without options.
pub(crate) const L4_V4: usize = L3 + 20;
/// Frame bytes up to the transport header, IPv6 without extensions.
pub(crate) const L4_V6: usize = L3 + 40;

/// What an IPv4 header of ours says.
pub(crate) struct HeaderV4 {
    pub source: [u8; 4],
    pub destination: [u8; 4],
    pub protocol: u8,
    pub tos: u8,
    pub id: u16,
    pub dont_fragment: bool,
}

/// What an IPv6 header of ours says.
pub(crate) struct HeaderV6 {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub protocol: u8,
    pub hop_limit: u8,
}

/// Writes EtherType and IPv4 header (20 bytes) for a frame of this length; the Ethernet addresses are zero until the rewrite.
pub(crate) fn ipv4(frame: &mut Frame, header: &HeaderV4) {
    let total = (frame.len() - L3) as u16;
    let h = frame.header_mut();
    h[..12].fill(0);
    h[12..14].copy_from_slice(&ether::IPV4.to_be_bytes());
    h[14] = 0x45;
    h[15] = header.tos;
    h[16..18].copy_from_slice(&total.to_be_bytes());
    h[18..20].copy_from_slice(&header.id.to_be_bytes());
    h[20..22].copy_from_slice(&(if header.dont_fragment { 0x4000u16 } else { 0 }).to_be_bytes());
    h[22] = TTL;
    h[23] = header.protocol;
    h[24..26].fill(0);
    h[26..30].copy_from_slice(&header.source);
    h[30..34].copy_from_slice(&header.destination);
    let check = checksum(&h[L3..L4_V4]);
    h[24..26].copy_from_slice(&check.to_ne_bytes());
}

/// Writes EtherType and IPv6 header for a frame of this length; the Ethernet addresses are zero until the rewrite.
pub(crate) fn ipv6(frame: &mut Frame, header: &HeaderV6) {
    let payload = (frame.len() - L4_V6) as u16;
    let h = frame.header_mut();
    h[..12].fill(0);
    h[12..14].copy_from_slice(&ether::IPV6.to_be_bytes());
    h[14..18].copy_from_slice(&[0x60, 0, 0, 0]);
    h[18..20].copy_from_slice(&payload.to_be_bytes());
    h[20] = header.protocol;
    h[21] = header.hop_limit;
    h[22..38].copy_from_slice(&header.source);
    h[38..54].copy_from_slice(&header.destination);
}

/// Sums the transport part of a frame of one buffer and writes the checksum at `offset` of the transport header.
/// ICMP over IPv4 has no pseudo-header (RFC 792).
pub(crate) fn transport_checksum(frame: &mut Frame, family: Family, protocol: u8, offset: usize) {
    let h = frame.header();
    let (l4, pseudo) = match family {
        Family::V6 => {
            let len = (frame.len() - L4_V6) as u32;
            (L4_V6, pseudo_v6(array(&h[22..]), array(&h[38..]), protocol, len))
        }
        _ if protocol == 1 => (L4_V4, 0),
        _ => {
            let len = (frame.len() - L4_V4) as u16;
            (L4_V4, pseudo_v4(array(&h[26..]), array(&h[30..]), protocol, len))
        }
    };
    let bytes = &mut frame.head_mut()[l4..];
    bytes[offset..offset + 2].fill(0);
    let check = !fold(sum(bytes, pseudo));
    bytes[offset..offset + 2].copy_from_slice(&check.to_ne_bytes());
}

/// Whether a neighbour may have this MAC: neither a group's nor all zero.
pub(crate) fn is_unicast_mac(mac: MacAddress) -> bool {
    mac.0[0] & 1 == 0 && mac.0 != [0; 6]
}

/// The first bytes of a slice that is long enough.
pub(crate) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// A descriptor for a frame of ours that holds an IP packet without options or extension headers.
pub(crate) fn packet(frame: Frame, family: Family, protocol: u8, source_port: u16, destination_port: u16) -> Packet {
    let mut packet = Packet::new(frame, Offload::NONE, PortId::NONE);
    packet.family = family;
    packet.protocol = protocol;
    packet.l4 = if family == Family::V4 { L4_V4 } else { L4_V6 } as u16;
    (packet.source_port, packet.destination_port) = (source_port, destination_port);
    if family == Family::V4 && packet.frame.header()[20] & 0x40 == 0 {
        packet.flags.set(Flags::MAY_FRAGMENT);
    }
    packet
}

/// Addresses the frame to a neighbour on `port` and marks it as needing no route. False where there is no such port.
pub(crate) fn link(packet: &mut Packet, port: PortId, to: MacAddress, ports: &PortTable) -> bool {
    let Some(from) = ports.get(port).map(|p| p.mac()) else { return false };
    let h = packet.frame.header_mut();
    h[..6].copy_from_slice(&to.0);
    h[6..12].copy_from_slice(&from.0);
    packet.egress = port;
    packet.flags.set(Flags::LINK_READY);
    true
}

/// Where a packet came from on the link. The answer to one with a link-local end has no route: it goes back there.
pub(crate) struct Origin {
    link_local: bool,
    port: PortId,
    mac: MacAddress,
}

impl Origin {
    pub(crate) fn of(original: &Packet) -> Origin {
        let link_local = original.flags.has(Flags::LINK_LOCAL);
        Origin { link_local, port: original.ingress, mac: MacAddress(array(&original.frame.header()[6..])) }
    }

    /// Addresses an answer to the sender's MAC where it cannot be routed. False where the ingress port is gone.
    pub(crate) fn link_back(&self, answer: &mut Packet, ports: &PortTable) -> bool {
        if !self.link_local {
            return true;
        }
        answer.flags.set(Flags::LINK_LOCAL);
        link(answer, self.port, self.mac, ports)
    }
}

/// Takes a buffer and sets its length; None without a free buffer or where the buffers are too small.
pub(crate) fn frame(context: &mut Context<'_>, len: usize) -> Option<Frame> {
    let mut frame = context.pool.alloc()?;
    if frame.set_len(len) {
        return Some(frame);
    }
    context.pool.free(frame);
    None
}

/// A value for the IPv4 identification of a packet that may be cut (RFC 6864): the worker's packets of one kind count up, shifted by a
/// secret, so that 65,536 in a row differ and an outsider learns no count from one of them.
pub(crate) fn identification(context: &Context<'_>, count: u64) -> u16 {
    let seed = context.shared.seed;
    let n = (count as u16).wrapping_add((context.worker as u16) << 12);
    // Odd multipliers and xor are bijections of 16 bits, so no value repeats early.
    let n = (n ^ seed.0 as u16).wrapping_mul((seed.1 >> 16) as u16 | 1);
    ((n ^ n >> 7) ^ (seed.0 >> 32) as u16).wrapping_mul(0x9e37)
}

/// Whether the address is one of the box's own, on any port (a router answers for all of them: RFC 1122, 3.3.4.2).
pub(crate) fn is_ours(ports: &PortTable, address: IpAddr, ingress: PortId) -> bool {
    match address {
        IpAddr::V4(a) => ports.iter().any(|(_, p)| p.addresses().v4.contains(&a)),
        // A link-local address names a host on one link only.
        IpAddr::V6(a) if a.is_unicast_link_local() => {
            ports.get(ingress).is_some_and(|p| p.addresses().link_local == Some(a))
        }
        IpAddr::V6(a) => ports.iter().any(|(_, p)| p.addresses().v6.contains(&a)),
    }
}

/// Where the transport header of a packet begins that a host may answer on the transport's own terms. None for other protocols, for
/// fragments, for what came in a link-layer group, and for what goes to or from one.
pub(crate) fn answerable(original: &Packet, protocol: u8) -> Option<usize> {
    let from = usize::from(original.l4);
    if original.protocol != protocol || from == 0 || original.flags.any(Flags::FRAGMENT.with(Flags::LINK_GROUP)) {
        return None;
    }
    let (source, destination) = ends(original)?;
    if source.is_multicast() || source.is_unspecified() || destination.is_multicast() {
        return None;
    }
    Some(from)
}

/// Frame bytes up to the transport header of an answer to `original`.
pub(crate) fn answer_at(original: &Packet) -> usize {
    if original.family == Family::V4 { L4_V4 } else { L4_V6 }
}

/// Writes the IP header of an answer: from the destination of `original`, to its source.
pub(crate) fn answer_header(frame: &mut Frame, original: &Packet) {
    let (h, protocol) = (original.frame.header(), original.protocol);
    if original.family == Family::V4 {
        let (source, destination) = (array(&h[30..]), array(&h[26..]));
        // Never cut, so an identification of 0 is right (RFC 6864, 4.1).
        ipv4(frame, &HeaderV4 { source, destination, protocol, tos: 0, id: 0, dont_fragment: true });
    } else {
        let (source, destination) = (array(&h[38..]), array(&h[22..]));
        ipv6(frame, &HeaderV6 { source, destination, protocol, hop_limit: TTL });
    }
}

/// The finished answer, on its way back to where `original` came from. None where there is no such way; the buffer is then free again.
pub(crate) fn answer_back(frame: Frame, original: &Packet, context: &mut Context<'_>) -> Option<Packet> {
    let (family, protocol) = (original.family, original.protocol);
    let mut answer = packet(frame, family, protocol, original.destination_port, original.source_port);
    if !Origin::of(original).link_back(&mut answer, &context.shared.ports) {
        context.pool.free(answer.frame);
        return None;
    }
    Some(answer)
}

/// Source and destination of an IP packet.
pub(crate) fn ends(packet: &Packet) -> Option<(IpAddr, IpAddr)> {
    match packet.family {
        Family::V4 => Some((Ipv4Addr::from(packet.source_v4()).into(), Ipv4Addr::from(packet.destination_v4()).into())),
        Family::V6 => Some((Ipv6Addr::from(packet.source_v6()).into(), Ipv6Addr::from(packet.destination_v6()).into())),
        Family::Other => None,
    }
}
