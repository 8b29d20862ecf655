//! Standalone mode: what a host's stack would say, where there is none. ARP and neighbour discovery are answered and learned from,
//! echo requests and connection attempts are answered, everything else for the box is dropped.

#![forbid(unsafe_code)]

mod arp;
mod echo;
mod nd;

use std::net::IpAddr;

use crate::forward::icmp::{self, IcmpError, Unreachable};
use crate::forward::{build, reset};
use crate::packet::{Family, Flags, Packet, PortId, ether, partial};
use crate::ports::MacAddress;
use crate::stage::Context;
use crate::verdict::{Consumed, DropReason};

/// Takes a neighbour's address that was told: port, IP address, MAC. The taker updates what it knows or is asking for,
/// and bounds what it adds: anyone on the link may tell anything.
pub type Learned<'a> = dyn FnMut(PortId, IpAddr, MacAddress) + 'a;

/// Answers a packet for the box, or drops it with its reason; what was answered or learned from counts as consumed.
///
/// Answers to link-local addresses, ARP and neighbour discovery leave where the question came in, complete
/// ([`Flags::LINK_READY`]); all others are routed like any packet that Ferrule makes.
pub fn answer(packet: Packet, context: &mut Context<'_>, learned: &mut Learned<'_>) {
    let done = match packet.family {
        Family::Other => arp::answer(packet, context, learned),
        Family::V4 | Family::V6 => network(packet, context, learned),
    };
    match done {
        Done::Here => context.counters.consumed[Consumed::Answered as usize].add(1),
        Done::Consumed(packet) => {
            context.counters.consumed[Consumed::Answered as usize].add(1);
            context.pool.free(packet.frame);
        }
        Done::Dropped(packet, reason) => context.discard(packet, reason),
    }
}

/// Asks for the MAC of a neighbour: an ARP request in broadcast or a neighbour solicitation to the solicited-node multicast group.
/// False where the port has no address of that family to ask from, or there is no buffer.
pub fn solicit(port: PortId, target: IpAddr, context: &mut Context<'_>) -> bool {
    match target {
        IpAddr::V4(target) => arp::request(port, target, context),
        IpAddr::V6(target) => nd::solicit(port, target, context),
    }
}

/// How an answer ended.
enum Done {
    /// The packet's own buffer carries the answer.
    Here,
    /// Answered or learned from; the buffer is free.
    Consumed(Packet),
    /// Nothing to say.
    Dropped(Packet, DropReason),
}

fn network(packet: Packet, context: &mut Context<'_>, learned: &mut Learned<'_>) -> Done {
    let icmp_type = (packet.destination_port >> 8) as u8;
    let v6 = packet.family == Family::V6;
    if packet.flags.has(Flags::FRAGMENT) {
        return Done::Dropped(packet, DropReason::HostNone);
    }
    if !partial::is_valid(context.pool.arena(), &packet) {
        return Done::Dropped(packet, DropReason::TransportChecksum);
    }
    if v6 && packet.protocol == 58 && matches!(icmp_type, 135 | 136) {
        return nd::answer(packet, context, learned);
    }
    let ours = build::ends(&packet).is_some_and(|(_, to)| build::is_ours(&context.shared.ports, to, packet.ingress));
    if !ours {
        return Done::Dropped(packet, DropReason::HostNone);
    }
    // One host addressed in a frame to many: silence (RFC 1122, 3.3.6).
    if packet.flags.has(Flags::LINK_GROUP) {
        return Done::Dropped(packet, DropReason::LinkBroadcast);
    }
    match (packet.protocol, icmp_type) {
        (1, 8) if !v6 => echo::answer(packet, context),
        (58, 128) if v6 => echo::answer(packet, context),
        (17, _) => told(icmp::error(IcmpError::Unreachable(Unreachable::Port), &packet, context), packet),
        // Limited like ICMP errors, as in FreeBSD: the box is no reflector of a flood.
        (6, _) => {
            let allowed = context.icmp_limit.take(context.now);
            if !allowed {
                context.counters.icmp_suppressed.add(1);
            }
            told(allowed && reset::reset(&packet, context), packet)
        }
        _ => Done::Dropped(packet, DropReason::HostNone),
    }
}

fn told(sent: bool, packet: Packet) -> Done {
    if sent { Done::Consumed(packet) } else { Done::Dropped(packet, DropReason::HostNone) }
}

/// The EtherType of a frame without tags.
fn ether_type(packet: &Packet) -> u16 {
    let h = packet.frame.header();
    u16::from_be_bytes([h[12], h[13]])
}

/// Whether a frame may be ARP at all.
fn is_arp(packet: &Packet) -> bool {
    ether_type(packet) == ether::ARP && packet.frame.len() >= arp::FRAME_LEN && !packet.frame.is_chain()
}

#[cfg(test)]
mod tests;
