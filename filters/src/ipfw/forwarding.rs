#![forbid(unsafe_code)]
//! `fwd`: the rule's next hop instead of the route's.
//!
//! The next hop hangs on the packet ([`super::notes`]) and the data plane asks for it where it routes. At the In hook the packet goes there
//! even if it was for the box, and the Out hook sees the port that leads there; at the Out hook it is routed anew and no rule sees it again.
//! Both are what FreeBSD does. A next hop that is the box itself is not honoured (it would need sockets): such packets are dropped as
//! [`DropReason::NextHopLocal`](ferrule_dataplane::verdict::DropReason).

use std::net::IpAddr;

use ferrule_dataplane::packet::{Family, Flags, Packet};
use ferrule_dataplane::stage::Hook;
use ferrule_dataplane::verdict::{DropReason, Verdict};

use super::notes::Notes;

/// Sends a packet to a next hop. The notes are to be kept by the caller.
pub fn forward(packet: &mut Packet, next_hop: IpAddr, port: u16, hook: Hook, notes: &mut Notes) {
    // A port only means something for a socket of the box.
    if port != 0 || next_hop.is_loopback() {
        packet.judge(Verdict::Drop(DropReason::NextHopLocal));
        return;
    }
    // No address at all: a table without such a value.
    if next_hop.is_unspecified() || next_hop.is_multicast() {
        packet.judge(Verdict::Drop(DropReason::NoRoute));
        return;
    }
    notes.next_hop = match next_hop {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    };
    packet.flags.set(Flags::NEXT_HOP);
    if hook == Hook::Out {
        packet.flags.set(Flags::REROUTE);
    }
}

/// The next hop that hangs on a packet.
pub fn next_hop(packet: &Packet, notes: &Notes) -> Option<IpAddr> {
    match (notes.next_hop, packet.family) {
        (0, _) | (_, Family::Other) => None,
        (address, Family::V4) => Some(std::net::Ipv4Addr::from_bits(address as u32).into()),
        (address, Family::V6) => Some(std::net::Ipv6Addr::from_bits(address).into()),
    }
}
