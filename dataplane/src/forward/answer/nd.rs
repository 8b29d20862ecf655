//! Neighbour discovery for IPv6 (RFC 4861): solicitations and advertisements. Router solicitations and redirects are not answered.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr};

use super::{Done, Learned};
use crate::arena::Frame;
use crate::forward::build::{self, HeaderV6, L4_V6};
use crate::packet::{Family, Packet, PortId};
use crate::ports::{MacAddress, PortAddresses};
use crate::stage::Context;
use crate::verdict::{DropReason, Generated};

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options: source and target link-layer address.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
/// Flags of an advertisement.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Hop limit that proves that no router was in between (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
/// Bytes of a message before its options.
const BODY: usize = 24;
/// Bytes of a link-layer address option.
const OPTION: usize = 8;
/// Most options that are looked at; real messages have one or two.
const OPTIONS_MAX: usize = 16;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A message that passed the checks of RFC 4861, 7.1.1 and 7.1.2.
struct Message {
    source: Ipv6Addr,
    target: Ipv6Addr,
    flags: u8,
    link: Option<MacAddress>,
}

/// Answers a solicitation, learns from both; the checksum was checked.
pub(super) fn answer(packet: Packet, context: &mut Context<'_>, learned: &mut Learned<'_>) -> Done {
    let Some(message) = checked(&packet) else { return Done::Dropped(packet, DropReason::HostNone) };
    let Some(port) = context.shared.ports.get(packet.ingress) else {
        return Done::Dropped(packet, DropReason::HostNone);
    };
    let ours = has(&port.addresses(), message.target);
    match (packet.destination_port >> 8) as u8 {
        // From an address of ours: somebody else claims it, and there is nobody to answer.
        SOLICITATION if ours && !has(&port.addresses(), message.source) => {
            if let Some(mac) = message.link.filter(|_| !message.source.is_unspecified()) {
                learned(packet.ingress, IpAddr::V6(message.source), mac);
            }
            if advertise(&packet, &message, port.mac(), context) {
                Done::Consumed(packet)
            } else {
                Done::Dropped(packet, DropReason::NoBuffer)
            }
        }
        ADVERTISEMENT if !ours => match message.link {
            // Without "override" or "solicited" it is a proxy's or an idle word, which changes nothing we know.
            Some(mac) if message.flags & (OVERRIDE | SOLICITED) != 0 => {
                learned(packet.ingress, IpAddr::V6(message.target), mac);
                Done::Consumed(packet)
            }
            _ => Done::Dropped(packet, DropReason::HostNone),
        },
        _ => Done::Dropped(packet, DropReason::HostNone),
    }
}

fn has(addresses: &PortAddresses, address: Ipv6Addr) -> bool {
    addresses.link_local == Some(address) || addresses.v6.contains(&address)
}

fn checked(packet: &Packet) -> Option<Message> {
    let h = packet.frame.header();
    // RFC 6980: no fragment header; other extension headers have no use here either.
    let whole = usize::from(packet.l4) == L4_V6 && h[21] == HOP_LIMIT && packet.destination_port as u8 == 0;
    let bytes = packet.frame.head().get(L4_V6..)?;
    if !whole || packet.frame.is_chain() || bytes.len() < BODY {
        return None;
    }
    let source = Ipv6Addr::from(packet.source_v6());
    let destination = Ipv6Addr::from(packet.destination_v6());
    let target = Ipv6Addr::from(build::array::<16>(&bytes[8..]));
    let flags = bytes[4];
    let advertisement = bytes[0] == ADVERTISEMENT;
    let kind = if advertisement { TARGET_LINK } else { SOURCE_LINK };
    let link = option(&bytes[BODY..], kind)?;
    let probe = source.is_unspecified();
    let good = if advertisement {
        !(destination.is_multicast() && flags & SOLICITED != 0)
    } else {
        !probe || (destination == solicited_node(target) && link.is_none())
    };
    // A group MAC would turn what we send to one neighbour into a flood.
    let good_link = link.is_none_or(build::is_unicast_mac);
    (good && good_link && !target.is_multicast()).then_some(Message { source, target, flags, link })
}

/// The link-layer address option of this kind, if any; None as a whole for options that make no sense.
fn option(mut options: &[u8], kind: u8) -> Option<Option<MacAddress>> {
    let mut found = None;
    for _ in 0..OPTIONS_MAX {
        let [this, units, ..] = *options else {
            return options.is_empty().then_some(found);
        };
        let len = usize::from(units) * 8;
        if len == 0 || len > options.len() {
            return None;
        }
        if this == kind && found.is_none() {
            // An address of another length is not Ethernet's.
            found = Some(if len == OPTION { MacAddress(build::array(&options[2..])) } else { return None });
        }
        options = &options[len..];
    }
    options.is_empty().then_some(found)
}

fn advertise(packet: &Packet, message: &Message, mac: MacAddress, context: &mut Context<'_>) -> bool {
    let probe = message.source.is_unspecified();
    let (to, solicited) = if probe { (ALL_NODES, 0) } else { (message.source, SOLICITED) };
    let to_mac = match message.link {
        _ if probe => multicast_mac(ALL_NODES),
        Some(mac) => mac,
        None => MacAddress(build::array(&packet.frame.header()[6..])),
    };
    let flags = ROUTER | solicited | OVERRIDE;
    let body = Body { kind: ADVERTISEMENT, flags, target: message.target, option: (TARGET_LINK, mac) };
    send(packet.ingress, message.target, to, to_mac, &body, context)
}

/// Sends a solicitation for `target` to its solicited-node group.
pub(super) fn solicit(port: PortId, target: Ipv6Addr, context: &mut Context<'_>) -> bool {
    let Some(info) = context.shared.ports.get(port) else { return false };
    let addresses = info.addresses();
    let Some(source) = addresses.link_local.or(addresses.v6.first().copied()) else { return false };
    let group = solicited_node(target);
    let body = Body { kind: SOLICITATION, flags: 0, target, option: (SOURCE_LINK, info.mac()) };
    send(port, source, group, multicast_mac(group), &body, context)
}

struct Body {
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: (u8, MacAddress),
}

fn send(
    port: PortId,
    from: Ipv6Addr,
    to: Ipv6Addr,
    to_mac: MacAddress,
    body: &Body,
    context: &mut Context<'_>,
) -> bool {
    let Some(mut frame) = build::frame(context, L4_V6 + BODY + OPTION) else { return false };
    write(&mut frame, body);
    let (source, destination) = (from.octets(), to.octets());
    build::ipv6(&mut frame, &HeaderV6 { source, destination, protocol: 58, hop_limit: HOP_LIMIT });
    build::transport_checksum(&mut frame, Family::V6, 58, 2);
    let mut packet = build::packet(frame, Family::V6, 58, 0, u16::from(body.kind) << 8);
    if !build::link(&mut packet, port, to_mac, &context.shared.ports) {
        context.pool.free(packet.frame);
        return false;
    }
    context.emit(Generated::Answer, packet);
    true
}

fn write(frame: &mut Frame, body: &Body) {
    let m = &mut frame.header_mut()[L4_V6..L4_V6 + BODY + OPTION];
    m.fill(0);
    (m[0], m[4]) = (body.kind, body.flags);
    m[8..24].copy_from_slice(&body.target.octets());
    (m[24], m[25]) = (body.option.0, 1);
    m[26..32].copy_from_slice(&body.option.1.0);
}

/// The group that a host with this address listens to (RFC 4291, 2.7.1).
fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let low = target.octets();
    let [.., a, b, c] = low;
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The MAC of an IPv6 multicast group (RFC 2464, 7).
fn multicast_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}
