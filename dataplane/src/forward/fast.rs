//! The short way of plain packets: look-up, TTL, MTU and MAC addresses in one pass, with nothing to say to anyone.
//!
//! [`FastPath`] holds plain references into the tables, taken once per batch: through the `Arc`s of [`Fib`] the compiler would
//! load every pointer again for each packet, since the packet's own stores might have changed it.

#![forbid(unsafe_code)]

use crate::batch::{BATCH_MAX, Batch};
use crate::fib::adjacency::AdjacencyReader;
use crate::fib::v4::Fib4Reader;
use crate::fib::{AdjacencyId, Fib, Fib6};
use crate::packet::parse::Ingress;
use crate::packet::plain::{self, Window};
use crate::packet::{Family, Flags, L3, Packet, PortId, checksum, ether, partial};

/// Flags of packets that need the full way.
const RARE: Flags = Flags::LINK_GROUP
    .with(Flags::LINK_LOCAL)
    .with(Flags::FROM_HOST)
    .with(Flags::GENERATED)
    .with(Flags::LINK_READY)
    .with(Flags::NEXT_HOP)
    .with(Flags::DECREMENTED);

/// Flags of packets that leave by the full way.
const NOT_ROUTED: Flags = Flags::FROM_HOST.with(Flags::GENERATED).with(Flags::LINK_READY).with(Flags::REROUTE);

/// Whether an unparsed packet says that it is IPv6.
#[inline(always)]
pub fn is_v6(packet: &Packet) -> bool {
    plain::bytes::<2>(packet.frame.header(), 12) == ether::IPV6.to_be_bytes()
}

/// What the packets at both ends of a batch say of those between them: whether preparing for a family is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// There is IPv4, or something else.
    pub v4: bool,
    /// There is IPv6.
    pub v6: bool,
}

impl Families {
    /// Looks at the first and the last packet.
    #[inline(always)]
    pub fn of(batch: &Batch) -> Families {
        let ends = [batch.packets().first(), batch.packets().last()].map(|packet| packet.is_some_and(is_v6));
        Families { v4: ends != [true, true], v6: ends != [false, false] }
    }
}

/// Memory for [`FastPath::look_up_v6`].
pub struct LookUps {
    destinations: Box<[u128; BATCH_MAX]>,
    entries: Box<[u64; BATCH_MAX]>,
}

impl Default for LookUps {
    fn default() -> Self {
        LookUps { destinations: Box::new([0; BATCH_MAX]), entries: Box::new([0; BATCH_MAX]) }
    }
}

/// The tables as one batch reads them.
#[derive(Clone, Copy)]
pub struct FastPath<'a> {
    v4: Fib4Reader<'a>,
    v6: &'a Fib6,
    adjacencies: AdjacencyReader<'a>,
}

impl<'a> FastPath<'a> {
    /// References into the tables.
    pub fn new(fib: &'a Fib) -> FastPath<'a> {
        FastPath { v4: fib.v4.reader(), v6: &fib.v6, adjacencies: fib.adjacencies.reader() }
    }

    /// Asks the processor for the routing entry of a packet that will be looked up soon.
    #[inline(always)]
    pub fn prefetch(&self, packet: &Packet) {
        match packet.family {
            Family::V4 => self.v4.prefetch(packet.destination_v4()),
            Family::V6 => self.v6.prefetch(packet.destination_v6()),
            Family::Other => {}
        }
    }

    /// Asks for the routing entry of an unparsed packet: the destination of whatever it is, were it IPv4. Any value is a place in the table.
    #[inline(always)]
    pub fn prefetch_unparsed(&self, packet: &Packet) {
        self.v4.prefetch(packet.destination_v4());
    }

    /// Looks up the route of an unparsed packet, notes the adjacency in its descriptor and gives the port that it leads to.
    #[inline(always)]
    pub fn look_up(&self, packet: &mut Packet) -> PortId {
        packet.adjacency = if is_v6(packet) {
            self.v6.lookup(packet.destination_v6())
        } else {
            self.v4.lookup(packet.destination_v4())
        };
        self.adjacencies.entry(packet.adjacency).map_or(PortId::NONE, |entry| entry.view().port())
    }

    /// Looks up the IPv6 destinations of a whole batch of unparsed packets, and notes the adjacencies in their descriptors; true when it did.
    ///
    /// Under a large table a look-up is a chain of loads from distant memory. Here the chains of all packets go forward together,
    /// which takes half the time; under a small one, whose few nodes are at hand, it would take longer.
    #[inline(always)]
    pub fn look_up_v6(&self, batch: &mut Batch, memory: &mut LookUps) -> bool {
        let large = self.v6.is_large();
        if large {
            self.look_up_all_v6(batch.packets_mut(), memory);
        }
        large
    }

    #[inline(never)]
    fn look_up_all_v6(&self, packets: &mut [Packet], memory: &mut LookUps) {
        const AHEAD: usize = 8;
        let LookUps { destinations, entries } = memory;
        packets.iter().take(AHEAD).for_each(|packet| packet.frame.prefetch());
        for (at, (destination, entry)) in
            destinations.iter_mut().zip(entries.iter_mut()).enumerate().take(packets.len())
        {
            if let Some(later) = packets.get(at + AHEAD) {
                later.frame.prefetch();
            }
            let Some(packet) = packets.get(at) else { break };
            *destination = packet.destination_v6();
            *entry = if is_v6(packet) { self.v6.top(*destination) } else { 0 };
            self.v6.prefetch_node(*entry);
        }
        let (entries, _) = entries.split_at_mut(packets.len().min(BATCH_MAX));
        self.v6.finish_batch(entries, |at| destinations.get(at).copied().unwrap_or(0));
        for (packet, entry) in packets.iter_mut().zip(entries) {
            packet.adjacency = Fib6::answer(*entry);
        }
    }

    /// Parses and forwards a plain packet in one go, without filling its descriptor in. None, with the packet unchanged, where it
    /// is not plain: it then takes [`crate::packet::parse::parse`] and [`FastPath::forward`] or the full way. With `looked_up`
    /// the descriptor has its adjacency already, by family: IPv4, IPv6.
    #[inline(always)]
    pub fn express(&self, packet: &mut Packet, ingress: &Ingress<'_>, looked_up: (bool, bool)) -> Option<PortId> {
        if !packet.is_bare() {
            return None;
        }
        let h = packet.frame.header();
        let len = packet.frame.len();
        if plain::is_v4(h, len, ingress) {
            let protocol = h[23];
            if !plain::is_transport(h, protocol, 34, len - 34) || is_unfinished(packet, Family::V4, protocol, 34) {
                return None;
            }
            let id = if looked_up.0 { packet.adjacency } else { self.v4.lookup(packet.destination_v4()) };
            self.send(packet, id, decrement_v4)
        } else if plain::is_v6(h, len, ingress) {
            let protocol = h[20];
            if !plain::is_transport(h, protocol, 54, len - 54) || is_unfinished(packet, Family::V6, protocol, 54) {
                return None;
            }
            let id = if looked_up.1 { packet.adjacency } else { self.v6.lookup(packet.destination_v6()) };
            self.send(packet, id, decrement_v6)
        } else {
            None
        }
    }

    /// Forwards a parsed, plain packet all the way. Returns its egress port, or None with the packet unchanged where it needs the full way.
    #[inline(always)]
    pub fn forward(&self, packet: &mut Packet) -> Option<PortId> {
        if !packet.goes_on() || packet.flags.any(RARE) || packet.offload.is_partial() {
            return None;
        }
        if packet.flags.has(Flags::MAYBE_PARTIAL) && partial::looks_partial(packet) {
            return None;
        }
        match packet.family {
            Family::V4 => self.send(packet, self.v4.lookup(packet.destination_v4()), decrement_v4),
            Family::V6 => self.send(packet, self.v6.lookup(packet.destination_v6()), decrement_v6),
            Family::Other => None,
        }
    }

    /// Routes a parsed, plain packet as [`super::route`] does: adjacency, egress, TTL. False, with the packet unchanged, where it needs that.
    #[inline(always)]
    pub fn route(&self, packet: &mut Packet) -> bool {
        if !packet.goes_on() || packet.flags.any(RARE) {
            return false;
        }
        let v4 = packet.family == Family::V4;
        let id = match packet.family {
            Family::V4 => self.v4.lookup(packet.destination_v4()),
            Family::V6 => self.v6.lookup(packet.destination_v6()),
            Family::Other => return false,
        };
        let Some(view) = self.adjacencies.entry(id).map(|entry| entry.view()) else { return false };
        let h = packet.frame.header_mut();
        if !view.is_forward() || !(if v4 { decrement_v4(h) } else { decrement_v6(h) }) {
            return false;
        }
        (packet.adjacency, packet.egress) = (id, view.port());
        packet.flags.set(Flags::DECREMENTED);
        true
    }

    /// Rewrites a packet that [`FastPath::route`] routed and the Out hook let pass. Returns its egress port, or None with the packet
    /// unchanged where it needs the full way.
    #[inline(always)]
    pub fn leave(&self, packet: &mut Packet) -> Option<PortId> {
        if !packet.goes_on() || !packet.flags.has(Flags::DECREMENTED) || packet.flags.any(NOT_ROUTED) {
            return None;
        }
        if packet.offload.is_partial() || packet.flags.has(Flags::MAYBE_PARTIAL) && partial::looks_partial(packet) {
            return None;
        }
        self.send(packet, packet.adjacency, |_| true)
    }

    /// Rewrites the packet for its adjacency; `decrement` says false, with nothing changed, where the TTL runs out.
    #[inline(always)]
    fn send(
        &self,
        packet: &mut Packet,
        id: AdjacencyId,
        decrement: impl FnOnce(&mut Window) -> bool,
    ) -> Option<PortId> {
        let len = packet.frame.len() - L3;
        let adjacency = self.adjacencies.entry(id)?;
        let view = adjacency.view();
        let rewrite = adjacency.rewrite();
        if !view.is_forward() || len > usize::from(view.mtu()) || rewrite.is_tagged() {
            return None;
        }
        let h = packet.frame.header_mut();
        if !decrement(h) {
            return None;
        }
        h[..12].copy_from_slice(&rewrite.macs());
        Some(view.port())
    }
}

/// Whether a local sender left the transport checksum to the device: only ports that give no flag of it (AF_XDP) have to look.
#[inline(always)]
fn is_unfinished(packet: &mut Packet, family: Family, protocol: u8, l4: u16) -> bool {
    if !packet.flags.has(Flags::MAYBE_PARTIAL) {
        return false;
    }
    // What the test reads, and what the parser writes again where it is met.
    (packet.family, packet.protocol, packet.l4) = (family, protocol, l4);
    partial::looks_partial(packet)
}

#[inline(always)]
fn decrement_v4(h: &mut Window) -> bool {
    if h[22] <= 1 {
        return false;
    }
    let mut check = [h[24], h[25]];
    checksum::decrement_ttl(&mut h[22], &mut check);
    [h[24], h[25]] = check;
    true
}

#[inline(always)]
fn decrement_v6(h: &mut Window) -> bool {
    if h[21] <= 1 {
        return false;
    }
    h[21] -= 1;
    true
}
