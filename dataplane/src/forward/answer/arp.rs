//! ARP for IPv4 over Ethernet (RFC 826; address conflicts: RFC 5227).

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr};

use super::{Done, Learned, is_arp};
use crate::forward::build;
use crate::packet::{Offload, Packet, PortId, ether};
use crate::ports::MacAddress;
use crate::stage::Context;
use crate::verdict::{DropReason, Generated};

/// Bytes of an Ethernet frame with ARP, without padding.
pub(super) const FRAME_LEN: usize = 42;
/// Hardware type Ethernet, protocol IPv4, address lengths 6 and 4.
const SHAPE: [u8; 6] = [0, 1, 8, 0, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

pub(super) fn answer(packet: Packet, context: &mut Context<'_>, learned: &mut Learned<'_>) -> Done {
    let h = packet.frame.header();
    if !is_arp(&packet) || h[14..20] != SHAPE {
        return Done::Dropped(packet, DropReason::HostNone);
    }
    let operation = u16::from_be_bytes([h[20], h[21]]);
    let sender_mac = MacAddress(build::array(&h[22..]));
    let sender = Ipv4Addr::from(build::array::<4>(&h[28..]));
    let target = Ipv4Addr::from(build::array::<4>(&h[38..]));
    let Some(port) = context.shared.ports.get(packet.ingress) else {
        return Done::Dropped(packet, DropReason::HostNone);
    };
    let addresses = port.addresses();
    // Addresses of other ports are not announced here (arp_ignore 1): a host must not send traffic for one link into another.
    let for_us = addresses.v4.contains(&target);
    let ours = addresses.v4.contains(&sender);
    let one_host = !sender.is_unspecified() && !sender.is_multicast() && !sender.is_broadcast() && !ours;
    let good_mac = build::is_unicast_mac(sender_mac);
    // An announcement (sender and target the same) tells a neighbour's new MAC (RFC 5227, 3).
    let told = one_host && good_mac && (for_us || sender == target);
    if !good_mac || !matches!(operation, REQUEST | REPLY) || !(for_us || told) {
        return Done::Dropped(packet, DropReason::HostNone);
    }
    if told {
        learned(packet.ingress, IpAddr::V4(sender), sender_mac);
    }
    // A probe for our address (sender 0.0.0.0) is answered like any request, which defends the address.
    if for_us && operation == REQUEST {
        let ingress = packet.ingress;
        let mut reply = Packet::new(packet.frame, Offload::NONE, PortId::NONE);
        let fits = reply.frame.set_len(FRAME_LEN);
        debug_assert!(fits, "is_arp has refused shorter ones and chains");
        write(&mut reply, REPLY, port.mac(), target, sender_mac, sender);
        let sent = build::link(&mut reply, ingress, sender_mac, &context.shared.ports);
        debug_assert!(sent, "the port was found above");
        context.emit(Generated::Answer, reply);
        return Done::Here;
    }
    Done::Consumed(packet)
}

/// Broadcasts a request for `target`.
pub(super) fn request(port: PortId, target: Ipv4Addr, context: &mut Context<'_>) -> bool {
    let Some(info) = context.shared.ports.get(port) else { return false };
    let bits = |a: &&Ipv4Addr| (u32::from(**a) ^ u32::from(target)).leading_zeros();
    // The address nearest to the target is in its network, where any is (arp_announce 2).
    let Some(source) = info.addresses().v4.iter().rev().max_by_key(bits).copied() else { return false };
    let Some(frame) = build::frame(context, FRAME_LEN) else { return false };
    let mut packet = Packet::new(frame, Offload::NONE, PortId::NONE);
    write(&mut packet, REQUEST, info.mac(), source, MacAddress([0; 6]), target);
    let sent = build::link(&mut packet, port, MacAddress([0xff; 6]), &context.shared.ports);
    debug_assert!(sent, "the port was found above");
    context.emit(Generated::Answer, packet);
    true
}

fn write(
    packet: &mut Packet,
    operation: u16,
    mac: MacAddress,
    address: Ipv4Addr,
    target_mac: MacAddress,
    target: Ipv4Addr,
) {
    let h = packet.frame.header_mut();
    h[12..14].copy_from_slice(&ether::ARP.to_be_bytes());
    h[14..20].copy_from_slice(&SHAPE);
    h[20..22].copy_from_slice(&operation.to_be_bytes());
    h[22..28].copy_from_slice(&mac.0);
    h[28..32].copy_from_slice(&address.octets());
    h[32..38].copy_from_slice(&target_mac.0);
    h[38..42].copy_from_slice(&target.octets());
}
