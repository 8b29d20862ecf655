//! fastforward: what becomes of an IP packet, in the order of FreeBSD's `ip_tryforward`.
//!
//! [`route`] answers "ours? then TTL, then where to": it leaves the adjacency in the packet or a verdict. [`fast::FastPath`] does all of it and the
//! rewrite for the packets that need nothing else. What has to be said to a sender ([`Refusal`]) is a value, so that the worker alone drops
//! and counts.

#![forbid(unsafe_code)]

pub mod abort;
pub mod answer;
mod build;
pub mod fast;
pub mod fragment;
pub mod icmp;
pub mod probe;
pub mod punt;
pub mod reset;
#[cfg(test)]
mod testing;

pub use icmp::refuse;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::fib::{AdjacencyId, AdjacencyKind, AdjacencyView, Fib};
use crate::packet::hash::{self, HashSeed};
use crate::packet::{Family, Flags, Packet, checksum};
use crate::stage::Shared;
use crate::verdict::{DropReason, PuntClass, Verdict};

/// Looks the destination up; None for what is not IP.
#[inline(always)]
fn lookup(packet: &Packet, fib: &Fib) -> Option<AdjacencyId> {
    match packet.family {
        Family::V4 => Some(fib.v4.lookup(packet.destination_v4())),
        Family::V6 => Some(fib.v6.lookup(packet.destination_v6())),
        Family::Other => None,
    }
}

/// A DHCP answer that the parser meant for a client on the box, but whose destination lies behind another port: a renewal of
/// somebody else's, to be forwarded like any packet.
#[inline(always)]
pub fn release_transit_dhcp(packet: &mut Packet, fib: &Fib) {
    if packet.verdict_is_dhcp() {
        release(packet, fib);
    }
}

#[inline(never)]
fn release(packet: &mut Packet, fib: &Fib) {
    let (_, view) = adjacency(packet, fib);
    let onward = matches!(view.kind(), AdjacencyKind::Forward | AdjacencyKind::Unresolved | AdjacencyKind::Glean);
    if onward && view.port() != packet.ingress && !packet.flags.has(Flags::LINK_GROUP) {
        packet.judge(Verdict::Forward);
    }
}

/// The adjacency of a packet now, a multipath route's member chosen by the hash that the packet has.
pub fn adjacency(packet: &Packet, fib: &Fib) -> (AdjacencyId, AdjacencyView) {
    let id = lookup(packet, fib).unwrap_or_default();
    fib.adjacencies.resolve(id, packet.hash)
}

/// The packet's IP destination.
pub fn destination(packet: &Packet) -> Option<IpAddr> {
    match packet.family {
        Family::V4 => Some(Ipv4Addr::from_bits(packet.destination_v4()).into()),
        Family::V6 => Some(Ipv6Addr::from_bits(packet.destination_v6()).into()),
        Family::Other => None,
    }
}

/// Decrements the TTL or hop limit.
#[inline(always)]
fn decrement(packet: &mut Packet) {
    let v4 = packet.family == Family::V4;
    let h = packet.frame.header_mut();
    if v4 {
        let mut check = [h[24], h[25]];
        checksum::decrement_ttl(&mut h[22], &mut check);
        [h[24], h[25]] = check;
    } else {
        h[21] = h[21].wrapping_sub(1);
    }
}

/// TTL or hop limit.
#[inline(always)]
pub fn ttl(packet: &Packet) -> u8 {
    packet.frame.header()[if packet.family == Family::V4 { 22 } else { 21 }]
}

/// What the sender is told of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// TTL or hop limit ran out.
    TimeExceeded,
    /// No route to the network.
    NoRoute,
    /// The host cannot be reached: an unreachable route, or a neighbour that does not answer.
    HostUnreachable,
    /// A prohibit route.
    Prohibited,
    /// Too long for the next link, which takes this many bytes.
    TooBig(u32),
    /// A source route was asked for.
    SourceRoute,
    /// An option or header is malformed.
    BadHeader,
}

/// Routes one packet. On return its verdict says what is next; with [`Verdict::Forward`] its adjacency and egress are set and the TTL
/// is decremented. The refusal, if any, is what the sender should be told.
pub fn route(packet: &mut Packet, shared: &Shared) -> Option<Refusal> {
    let id = lookup(packet, &shared.fib);
    route_by(packet, id, shared)
}

/// As [`route`], by way of a next hop that is not the destination's.
pub fn route_to(packet: &mut Packet, next_hop: IpAddr, shared: &Shared) -> Option<Refusal> {
    let id = look_up_address(next_hop, &shared.fib);
    if matches!(shared.fib.adjacencies.kind(id), AdjacencyKind::Local | AdjacencyKind::LinkLocal) {
        packet.judge(Verdict::Drop(DropReason::NextHopLocal));
        return None;
    }
    route_by(packet, Some(id), shared)
}

/// The entry of an address.
pub fn look_up_address(address: IpAddr, fib: &Fib) -> AdjacencyId {
    match address {
        IpAddr::V4(address) => fib.v4.lookup(address.to_bits()),
        IpAddr::V6(address) => fib.v6.lookup(address.to_bits()),
    }
}

fn route_by(packet: &mut Packet, id: Option<AdjacencyId>, shared: &Shared) -> Option<Refusal> {
    let fib = &*shared.fib;
    let Some(id) = id else {
        packet.judge(Verdict::Drop(DropReason::EtherTypeUnknown));
        return None;
    };
    let mut view = fib.adjacencies.get(id);
    let mut adjacency = id;
    if view.kind() == AdjacencyKind::Multipath {
        (adjacency, view) = member(packet, fib, view, shared.seed);
    }
    packet.adjacency = adjacency;
    packet.egress = view.port();
    match view.kind() {
        AdjacencyKind::Local | AdjacencyKind::LinkLocal | AdjacencyKind::HostVia => {
            packet.judge(Verdict::Host(PuntClass::Other));
            return None;
        }
        AdjacencyKind::Broadcast | AdjacencyKind::Multicast => {
            packet.judge(group(packet, view.kind()));
            return None;
        }
        _ => {}
    }
    transit(packet, view)
}

/// The member of a multipath route: by flow, so that a flow keeps its path. Fragments of a datagram keep together too.
fn member(packet: &mut Packet, fib: &Fib, view: AdjacencyView, seed: HashSeed) -> (AdjacencyId, AdjacencyView) {
    let id = fib.adjacencies.member(view, hash::of(seed, packet));
    (id, fib.adjacencies.get(id))
}

/// Multicast and broadcast end here: the host takes what it wants, nothing is forwarded.
fn group(packet: &Packet, kind: AdjacencyKind) -> Verdict {
    if packet.flags.has(Flags::GENERATED) {
        return Verdict::Drop(DropReason::MartianDestination);
    }
    // A unicast frame with a group destination is no packet of an honest sender (RFC 1122, 3.3.6).
    match (packet.flags.has(Flags::LINK_GROUP), kind) {
        (true, _) => Verdict::Host(PuntClass::Other),
        (false, AdjacencyKind::Multicast) => Verdict::Drop(DropReason::MulticastUnwanted),
        (false, _) => Verdict::Drop(DropReason::BroadcastNotForwarded),
    }
}

/// The rest of routing for a packet that is not for the box.
fn transit(packet: &mut Packet, view: AdjacencyView) -> Option<Refusal> {
    let drop = |packet: &mut Packet, reason| packet.judge(Verdict::Drop(reason));
    if packet.flags.has(Flags::LINK_GROUP) {
        drop(packet, DropReason::LinkBroadcast);
        return None;
    }
    if packet.flags.has(Flags::LINK_LOCAL) {
        drop(packet, DropReason::LinkLocal);
        return None;
    }
    if view.kind() == AdjacencyKind::Martian {
        drop(packet, DropReason::MartianDestination);
        return None;
    }
    if !packet.flags.any(Flags::GENERATED.with(Flags::DECREMENTED)) {
        if ttl(packet) <= 1 {
            drop(packet, DropReason::TtlExpired);
            return Some(Refusal::TimeExceeded);
        }
        decrement(packet);
        packet.flags.set(Flags::DECREMENTED);
    }
    match view.kind() {
        AdjacencyKind::Forward | AdjacencyKind::Unresolved | AdjacencyKind::Glean => None,
        AdjacencyKind::NoRoute => {
            drop(packet, DropReason::NoRoute);
            Some(Refusal::NoRoute)
        }
        AdjacencyKind::Unreachable => {
            drop(packet, DropReason::Unreachable);
            Some(Refusal::HostUnreachable)
        }
        AdjacencyKind::Prohibit => {
            drop(packet, DropReason::Prohibit);
            Some(Refusal::Prohibited)
        }
        AdjacencyKind::Multipath => {
            drop(packet, DropReason::RouteLoop);
            None
        }
        _ => {
            drop(packet, DropReason::Blackhole);
            None
        }
    }
}
