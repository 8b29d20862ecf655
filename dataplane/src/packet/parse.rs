//! The one parser: Ethernet to transport, once per packet.
//!
//! [`parse`] reads the common shape (untagged, to our MAC, IPv4 without options or IPv6 with the transport header right behind)
//! in straight-line code and leaves the rest to [`parse_slow`]. Both judge alike: a frame is either understood, with every length checked
//! against the bytes that are there, or dropped with its reason. After it an IP frame is untagged, trimmed to
//! its IP length, with the IP header at [`super::L3`].

#![forbid(unsafe_code)]

use crate::packet::{Family, Flags, GsoKind, Packet, PortId, checksum, ether, plain};
use crate::ports::{MAC_MASK, PortTable};
use crate::verdict::{DropReason, PuntClass, Verdict};

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_LEN: usize = 14;

/// What the parser knows of the port that the batch came in on; read once per batch.
#[derive(Clone, Copy)]
pub struct Ingress<'a> {
    /// The receiving (physical) port.
    pub port: PortId,
    /// All ports, for VLANs.
    pub ports: &'a PortTable,
    /// MAC of the port as a masked frame word.
    pub mac: u64,
    /// Longest IP packet.
    pub mtu: usize,
    /// Whether frames may go up to a host interface.
    pub host: bool,
    /// Whether DHCP for our MAC goes to the host before the In hook.
    pub dhcp_bypass: bool,
}

impl<'a> Ingress<'a> {
    /// Reads the port's present values.
    pub fn new(ports: &'a PortTable, port: PortId, dhcp_bypass: bool) -> Option<Ingress<'a>> {
        let p = ports.get(port)?;
        Some(Ingress { port, ports, mac: p.mac_word(), mtu: p.mtu() as usize, host: p.host, dhcp_bypass })
    }
}

#[inline(always)]
fn be16(h: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([h[at], h[at + 1]])
}

#[inline(always)]
fn be32(h: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]])
}

/// The first eight bytes masked to the destination MAC.
#[inline(always)]
fn destination_word(h: &[u8; 128]) -> u64 {
    u64::from_ne_bytes([h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]]) & MAC_MASK
}

/// Fills in the packet's descriptor, or drops it.
#[inline(always)]
pub fn parse(packet: &mut Packet, ingress: &Ingress<'_>) {
    let h = packet.frame.header();
    let len = packet.frame.len();
    if packet.frame.is_chain() {
        parse_slow(packet, ingress);
    } else if plain::is_v4(h, len, ingress) {
        let protocol = h[23];
        if h[20] & 0x40 == 0 {
            packet.flags.set(Flags::MAY_FRAGMENT);
        }
        packet.family = Family::V4;
        packet.protocol = protocol;
        packet.l4 = 34;
        transport(packet, protocol, 34, ingress);
    } else if matches!(h[20], 6 | 17 | 58) && plain::is_v6(h, len, ingress) {
        let protocol = h[20];
        packet.family = Family::V6;
        packet.protocol = protocol;
        packet.l4 = 54;
        transport(packet, protocol, 54, ingress);
    } else {
        parse_slow(packet, ingress);
    }
}

/// Checks the transport header at `l4`, which is inside the header window, and reads its ports.
#[inline(always)]
fn transport(packet: &mut Packet, protocol: u8, l4: usize, ingress: &Ingress<'_>) {
    let have = packet.frame.len() - l4;
    let h = packet.frame.header();
    match protocol {
        17 => {
            if have < 8 {
                packet.judge(Verdict::Drop(DropReason::TransportTruncated));
                return;
            }
            let udp_len = usize::from(be16(h, l4 + 4));
            (packet.source_port, packet.destination_port) = (be16(h, l4), be16(h, l4 + 2));
            if (udp_len < 8 || udp_len > have) && packet.offload.gso_kind != GsoKind::Udp {
                packet.judge(Verdict::Drop(DropReason::UdpLength));
            } else if packet.destination_port == 68 {
                dhcp_client(packet, ingress);
            }
        }
        6 => {
            if have < 20 {
                packet.judge(Verdict::Drop(DropReason::TransportTruncated));
                return;
            }
            let offset = usize::from(h[l4 + 12] >> 4) * 4;
            (packet.source_port, packet.destination_port) = (be16(h, l4), be16(h, l4 + 2));
            if offset < 20 || offset > have {
                packet.judge(Verdict::Drop(DropReason::TcpOffset));
            }
        }
        _ => transport_other(packet, protocol, l4, have),
    }
}

/// DHCP for a client on the box, on its way before any filter (DESIGN.md, "Host path").
#[inline(never)]
fn dhcp_client(packet: &mut Packet, ingress: &Ingress<'_>) {
    if packet.source_port == 67 && ingress.dhcp_bypass && ingress.host {
        packet.judge(Verdict::Host(PuntClass::Dhcp));
    }
}

#[inline(never)]
fn transport_other(packet: &mut Packet, protocol: u8, l4: usize, have: usize) {
    let h = packet.frame.header();
    let need = match protocol {
        1 | 58 | 136 => 8,
        132 => 12,
        _ => 0,
    };
    if have < need {
        packet.judge(Verdict::Drop(DropReason::TransportTruncated));
        return;
    }
    match protocol {
        132 | 136 => (packet.source_port, packet.destination_port) = (be16(h, l4), be16(h, l4 + 2)),
        1 | 58 => {
            packet.destination_port = be16(h, l4);
            let echo = matches!((protocol, h[l4]), (1, 0 | 8 | 13 | 14 | 15 | 16) | (58, 128 | 129));
            packet.source_port = if echo { be16(h, l4 + 4) } else { 0 };
        }
        _ => {}
    }
}

/// The whole parser without the short cut for common shapes: for the rest of them, for `fastforward = false`, and as the short cut's oracle.
#[inline(never)]
pub fn parse_slow(packet: &mut Packet, ingress: &Ingress<'_>) {
    if let Err(reason) = dissect(packet, ingress) {
        packet.judge(Verdict::Drop(reason));
    }
}

/// Reads what it can of a frame that the host's stack made: the Out hook wants its fields, but the frame goes out as it is. Its verdict stays
/// Forward; one that makes no sense stays [`Family::Other`].
pub fn parse_from_host(packet: &mut Packet, ports: &PortTable) {
    let flags = packet.flags;
    // Shorter ones carry stale bytes where the EtherType would be.
    if packet.frame.seg_len() < ETHERNET_LEN {
        return;
    }
    let Some(ingress) = Ingress::new(ports, packet.ingress, false) else { return };
    let ingress = Ingress { host: false, mtu: usize::MAX, ..ingress };
    let read = match be16(packet.frame.header(), 12) {
        ether::IPV4 => ipv4(packet, &ingress),
        ether::IPV6 => ipv6(packet, &ingress),
        _ => Ok(()),
    };
    if read.is_err() || !packet.goes_on() {
        (packet.family, packet.protocol, packet.l4, packet.flags) = (Family::Other, 0, 0, flags);
        packet.judge(Verdict::Forward);
    }
}

fn dissect(packet: &mut Packet, ingress: &Ingress<'_>) -> Result<(), DropReason> {
    if packet.frame.seg_len() < ETHERNET_LEN {
        return Err(DropReason::EthernetTruncated);
    }
    let port = untag(packet, ingress)?;
    let Some(info) = ingress.ports.get(port) else { return Err(DropReason::VlanUnknown) };
    let h = packet.frame.header();
    if h[6] & 1 != 0 {
        return Err(DropReason::SourceMacGroup);
    }
    if h[0] & 1 != 0 {
        packet.flags.set(Flags::LINK_GROUP);
    } else if destination_word(h) != info.mac_word() {
        return Err(DropReason::NotOurMac);
    }
    let here = Ingress { port, mtu: info.mtu() as usize, host: info.host, ..*ingress };
    match be16(h, 12) {
        ether::IPV4 => ipv4(packet, &here),
        ether::IPV6 => ipv6(packet, &here),
        ether::ARP => {
            if packet.frame.seg_len() < ETHERNET_LEN + 28 {
                return Err(DropReason::EthernetTruncated);
            }
            packet.judge(Verdict::Host(PuntClass::Neighbor));
            Ok(())
        }
        _ if here.host => {
            packet.judge(Verdict::Host(PuntClass::Other));
            Ok(())
        }
        _ => Err(DropReason::EtherTypeUnknown),
    }
}

/// Takes VLAN tags off and moves the packet to the port that they name.
fn untag(packet: &mut Packet, ingress: &Ingress<'_>) -> Result<PortId, DropReason> {
    let mut port = packet.ingress;
    for _ in 0..3 {
        let h = packet.frame.header();
        let tpid = be16(h, 12);
        if !matches!(tpid, ether::VLAN | ether::QINQ) {
            return Ok(port);
        }
        if packet.frame.seg_len() < ETHERNET_LEN + 4 {
            return Err(DropReason::EthernetTruncated);
        }
        let id = be16(h, 14) & 0x0fff;
        // Tag 0 only carries a priority: the frame belongs to the port itself (802.1Q, 9.6).
        if id != 0 {
            let parent = ingress.ports.get(port).ok_or(DropReason::VlanUnknown)?;
            let found = parent.vlans.iter().find(|(tag, _)| tag.tpid == tpid && tag.tci & 0x0fff == id);
            port = found.ok_or(DropReason::VlanUnknown)?.1;
            packet.ingress = port;
        }
        ether::pop_tag(&mut packet.frame).ok_or(DropReason::EthernetTruncated)?;
        if packet.offload.csum_start >= 4 {
            packet.offload.csum_start -= 4;
        }
    }
    Err(DropReason::VlanTooDeep)
}

/// Cuts Ethernet padding off, or says that bytes are missing.
fn trim(packet: &mut Packet, ip_len: usize) -> Result<(), DropReason> {
    let have = packet.frame.len() - ETHERNET_LEN;
    if have < ip_len {
        return Err(DropReason::IpLength);
    }
    if have > ip_len && !packet.frame.set_len(ip_len + ETHERNET_LEN) {
        return Err(DropReason::IpLength);
    }
    Ok(())
}

fn check_mtu(packet: &Packet, ingress: &Ingress<'_>) -> Result<(), DropReason> {
    let merged = packet.offload.gso_kind != GsoKind::None;
    if packet.ip_len() > ingress.mtu && !merged { Err(DropReason::OverMtuReceived) } else { Ok(()) }
}

fn ipv4(packet: &mut Packet, ingress: &Ingress<'_>) -> Result<(), DropReason> {
    let have = packet.frame.seg_len() - ETHERNET_LEN;
    if have < 20 {
        return Err(DropReason::IpTruncated);
    }
    let h = packet.frame.header();
    if h[14] >> 4 != 4 {
        return Err(DropReason::IpVersion);
    }
    let header = usize::from(h[14] & 15) * 4;
    if header < 20 {
        return Err(DropReason::IpHeaderLength);
    }
    let total = usize::from(be16(h, 16));
    if total < header || have < header {
        return Err(DropReason::IpHeaderLength);
    }
    if !checksum::is_valid(&packet.frame.head()[14..14 + header]) {
        return Err(DropReason::IpChecksum);
    }
    trim(packet, total)?;
    packet.family = Family::V4;
    check_mtu(packet, ingress)?;
    let h = packet.frame.header();
    let (source, destination) = (be32(h, 26), be32(h, 30));
    let (protocol, fragment) = (h[23], be16(h, 20));
    packet.protocol = protocol;
    if fragment & 0x4000 == 0 {
        packet.flags.set(Flags::MAY_FRAGMENT);
    }
    if header > 20 {
        packet.flags.set(Flags::OPTIONS);
        if options_v4(&packet.frame.head()[34..14 + header])? {
            packet.flags.set(Flags::ROUTER_ALERT);
        }
    }
    addresses_v4(packet, source, destination)?;
    let l4 = ETHERNET_LEN + header;
    let payload = total - header;
    if fragment & 0x3fff != 0 {
        let offset = usize::from(fragment & 0x1fff) * 8;
        let h = packet.frame.header();
        packet.hash = u32::from(be16(h, 18));
        fragment_checks(packet, protocol, offset, payload, fragment & 0x2000 != 0, header)?;
        if offset != 0 {
            return Ok(());
        }
    }
    packet.l4 = l4 as u16;
    transport_in_first_segment(packet, protocol, l4, ingress)
}

/// Source and destination sanity of RFC 1812, 5.3.7; what only the routes can tell (directed broadcast, ours) comes later.
fn addresses_v4(packet: &mut Packet, source: u32, destination: u32) -> Result<(), DropReason> {
    let for_all = destination == u32::MAX || destination >> 28 == 0xe;
    if source >> 24 == 127 || destination >> 24 == 127 {
        return Err(DropReason::LoopbackFromWire);
    }
    // 0.0.0.0 is the source of a host that asks for its address (RFC 1122, 3.2.1.3): never forwarded.
    if source >> 28 >= 0xe || (source >> 24 == 0 && !(source == 0 && for_all)) {
        return Err(DropReason::MartianSource);
    }
    // Network 0 and class E are nobody's addresses (RFC 1812, 5.3.7); 255.255.255.255 is everybody's.
    if destination >> 24 == 0 || (destination >> 28 == 0xf && destination != u32::MAX) {
        return Err(DropReason::MartianDestination);
    }
    if source == destination {
        return Err(DropReason::SourceIsDestination);
    }
    if source >> 16 == 0xa9fe || destination >> 16 == 0xa9fe {
        packet.flags.set(Flags::LINK_LOCAL);
    }
    Ok(())
}

/// Walks the options; Ok(true) with a router alert.
fn options_v4(options: &[u8]) -> Result<bool, DropReason> {
    let (mut at, mut alert) = (0, false);
    while let Some(kind) = options.get(at) {
        match kind {
            0 => break,
            1 => at += 1,
            _ => {
                let len = usize::from(*options.get(at + 1).ok_or(DropReason::IpOption)?);
                if len < 2 || at + len > options.len() {
                    return Err(DropReason::IpOption);
                }
                match kind {
                    131 | 137 => return Err(DropReason::SourceRoute),
                    148 => alert = true,
                    _ => {}
                }
                at += len;
            }
        }
    }
    Ok(alert)
}

/// `before` is what the whole datagram's length counts beside the fragments: the header in IPv4, extension headers in IPv6.
fn fragment_checks(
    packet: &mut Packet,
    protocol: u8,
    offset: usize,
    len: usize,
    more: bool,
    before: usize,
) -> Result<(), DropReason> {
    packet.flags.set(Flags::FRAGMENT);
    if offset != 0 {
        packet.flags.set(Flags::LATER_FRAGMENT);
    }
    if len == 0 || (more && !len.is_multiple_of(8)) || before + offset + len > 65_535 {
        return Err(DropReason::FragmentBad);
    }
    // RFC 1858 and RFC 3128: the first fragment shows the whole transport header, and no later one may rewrite it.
    let need = match protocol {
        6 => 20,
        17 | 1 | 58 | 136 => 8,
        132 => 12,
        _ => 0,
    };
    if (offset == 0 && len < need) || (offset != 0 && offset < 16 && protocol == 6) {
        return Err(DropReason::FragmentTiny);
    }
    Ok(())
}

fn transport_in_first_segment(
    packet: &mut Packet,
    protocol: u8,
    l4: usize,
    ingress: &Ingress<'_>,
) -> Result<(), DropReason> {
    let known = matches!(protocol, 1 | 6 | 17 | 58 | 132 | 136);
    // The header window is 128 bytes; a transport header past it (long extension chains) is beyond what we follow.
    if known && l4 + 20 > crate::arena::HEADER_WINDOW {
        return Err(DropReason::ExtensionHeader);
    }
    if known && packet.frame.is_chain() && packet.frame.seg_len() < l4 + 20 {
        return Err(DropReason::TransportTruncated);
    }
    // A first fragment's UDP length is that of the whole datagram.
    if packet.flags.has(Flags::FRAGMENT) && protocol == 17 {
        let h = packet.frame.header();
        (packet.source_port, packet.destination_port) = (be16(h, l4), be16(h, l4 + 2));
        return if be16(h, l4 + 4) < 8 { Err(DropReason::UdpLength) } else { Ok(()) };
    }
    if known {
        transport(packet, protocol, l4, ingress);
    }
    Ok(())
}

fn ipv6(packet: &mut Packet, ingress: &Ingress<'_>) -> Result<(), DropReason> {
    if packet.frame.seg_len() < ETHERNET_LEN + 40 {
        return Err(DropReason::IpTruncated);
    }
    let h = packet.frame.header();
    if h[14] >> 4 != 6 {
        return Err(DropReason::IpVersion);
    }
    let total = usize::from(be16(h, 18)) + 40;
    trim(packet, total)?;
    packet.family = Family::V6;
    check_mtu(packet, ingress)?;
    addresses_v6(packet)?;
    let (protocol, l4, fragment) = extensions(packet)?;
    packet.protocol = protocol;
    if let Some(FragmentHeader { offset, more, id }) = fragment {
        packet.hash = id;
        // An atomic fragment (RFC 6946) is a whole packet with a fragment header.
        if offset != 0 || more {
            let payload = packet.frame.len() - l4;
            // Of the headers before the fragment header at least this much stays in the whole (RFC 8200, 4.5).
            let before = l4 - (ETHERNET_LEN + 40) - 8;
            fragment_checks(packet, protocol, offset, payload, more, before)?;
        }
        if offset != 0 {
            return Ok(());
        }
    }
    if protocol == 59 {
        return Ok(());
    }
    packet.l4 = l4 as u16;
    transport_in_first_segment(packet, protocol, l4, ingress)
}

fn addresses_v6(packet: &mut Packet) -> Result<(), DropReason> {
    let (source, destination) = (packet.source_v6(), packet.destination_v6());
    if source == 1 || destination == 1 {
        return Err(DropReason::LoopbackFromWire);
    }
    if source >> 120 == 0xff || source >> 32 == 0xffff || (source == 0 && destination >> 120 != 0xff) {
        return Err(DropReason::MartianSource);
    }
    if destination == 0 || destination >> 32 == 0xffff {
        return Err(DropReason::MartianDestination);
    }
    if source == destination {
        return Err(DropReason::SourceIsDestination);
    }
    if source >> 118 == 0xfe80 >> 6 || destination >> 118 == 0xfe80 >> 6 || source == 0 {
        packet.flags.set(Flags::LINK_LOCAL);
    }
    Ok(())
}

/// Walks the options of a hop-by-hop header (RFC 8200, 4.2); Ok(true) with a router alert (RFC 2711).
fn router_alert(mut options: &[u8]) -> Result<bool, DropReason> {
    let mut alert = false;
    while let [kind, rest @ ..] = options {
        // Pad1 is the one option without a length.
        if *kind == 0 {
            options = rest;
            continue;
        }
        let (len, data) = rest.split_first().ok_or(DropReason::ExtensionHeader)?;
        alert |= *kind == 5 && *len == 2;
        options = data.get(usize::from(*len)..).ok_or(DropReason::ExtensionHeader)?;
    }
    Ok(alert)
}

struct FragmentHeader {
    offset: usize,
    more: bool,
    id: u32,
}

/// Most extension headers that are followed; real packets have one or two.
const EXTENSIONS_MAX: usize = 8;

/// Follows the extension headers (RFC 8200, section 4): the upper protocol, its offset from the frame's start, the fragment header.
fn extensions(packet: &mut Packet) -> Result<(u8, usize, Option<FragmentHeader>), DropReason> {
    let bytes = packet.frame.head();
    let (mut next, mut at) = (bytes[20], ETHERNET_LEN + 40);
    let (mut fragment, mut seen, mut alert) = (None, 0, false);
    let mut bad = Ok(());
    while matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140) {
        let (Some(h), true) = (bytes.get(at..at + 8), seen < EXTENSIONS_MAX) else {
            bad = Err(DropReason::ExtensionHeader);
            break;
        };
        let len = match next {
            44 => 8,
            51 => (usize::from(h[1]) + 2) * 4,
            _ => (usize::from(h[1]) + 1) * 8,
        };
        let Some(header) = bytes.get(at..at + len) else {
            bad = Err(DropReason::ExtensionHeader);
            break;
        };
        match next {
            // Hop-by-hop only right behind the IPv6 header (RFC 8200, 4.1).
            0 if seen > 0 => bad = Err(DropReason::ExtensionHeader),
            0 => alert |= router_alert(&header[2..])?,
            // Type 0 routing headers are abolished (RFC 5095).
            43 if h[2] == 0 && h[3] > 0 => bad = Err(DropReason::SourceRoute),
            // An authentication header has twelve bytes before its check value (RFC 4302, 2).
            51 if len < 12 => bad = Err(DropReason::ExtensionHeader),
            44 if fragment.is_some() => bad = Err(DropReason::ExtensionHeader),
            44 => {
                let word = be16(h, 2);
                let id = be32(h, 4);
                fragment = Some(FragmentHeader { offset: usize::from(word & 0xfff8), more: word & 1 != 0, id });
            }
            _ => {}
        }
        if bad.is_err() {
            break;
        }
        seen += 1;
        at += len;
        let later = matches!(fragment, Some(FragmentHeader { offset, .. }) if offset != 0);
        next = h[0];
        if later {
            break;
        }
    }
    bad?;
    if at > packet.frame.len() {
        return Err(DropReason::ExtensionHeader);
    }
    if seen > usize::from(fragment.is_some()) {
        packet.flags.set(Flags::EXTENSIONS);
    }
    if alert {
        packet.flags.set(Flags::ROUTER_ALERT);
    }
    Ok((next, at, fragment))
}

#[cfg(test)]
mod tests;
