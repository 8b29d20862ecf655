//! Packets that wait for a neighbour's MAC address.

#![forbid(unsafe_code)]

use std::net::IpAddr;

use super::{Waits, Worker};
use crate::fib::{AdjacencyId, AdjacencyKind, AdjacencyView, Fib};
use crate::forward::{self, Refusal};
use crate::neighbor::{NeighborState, NextHopKey, Outcome, Queued};
use crate::packet::{Flags, Packet};
use crate::stage::Context;
use crate::verdict::DropReason;

impl Worker {
    /// Holds a packet whose next hop has no MAC yet.
    pub(super) fn wait_for_neighbor(&mut self, mut packet: Packet) {
        let named = self.next_hop(&packet);
        let (adjacency, view) = way(&packet, named, &self.shared.fib);
        let Some(key) = next_hop(&packet, named, &self.shared.fib) else {
            // The routes changed since this packet was routed: it goes where they lead now.
            packet.adjacency = adjacency;
            match view.kind() {
                AdjacencyKind::Forward => self.egress(packet),
                AdjacencyKind::NoRoute => context!(self).discard(packet, DropReason::NoRoute),
                _ => context!(self).discard(packet, DropReason::Unreachable),
            }
            return;
        };
        match self.neighbors.push(key, packet, self.now) {
            Queued::Waits { ask } => {
                if ask {
                    self.ask(key);
                }
            }
            Queued::Refused { packet, reason, ask } => {
                context!(self).discard(packet, reason);
                if ask {
                    self.ask(key);
                }
            }
        }
        self.note_waiting();
    }

    pub(super) fn ask(&mut self, key: NextHopKey) {
        // Full: asked again in a second by the queue itself.
        let _ = self.requests.push(key);
        self.control.wake();
        if self.host.is_none() {
            forward::answer::solicit(key.port, key.address, &mut context!(self));
        }
    }

    /// Sends what its neighbour was found for, and gives up on the rest in time.
    pub(super) fn poll_neighbors(&mut self) {
        let fib = self.shared.fib.clone();
        let mut waits = std::mem::take(&mut self.waits);
        // A packet whose next hop was named by a stage goes where that is found.
        let found = |key: NextHopKey, packet: &Packet| way(packet, named(key, packet), &fib).1.kind();
        let state = |key: NextHopKey, packet: &Packet| match found(key, packet) {
            AdjacencyKind::Forward => NeighborState::Ready,
            AdjacencyKind::Glean | AdjacencyKind::Unresolved | AdjacencyKind::Multipath => NeighborState::Unresolved,
            _ => NeighborState::Failed,
        };
        let Waits { ready, failed, asks } = &mut waits;
        self.neighbors.poll(
            self.now,
            state,
            |key, mut packet, outcome| match outcome {
                Outcome::Ready => {
                    packet.adjacency = way(&packet, named(key, &packet), &fib).0;
                    ready.push(packet);
                }
                _ => failed.push(packet),
            },
            |key| asks.push(key),
        );
        self.note_waiting();
        for packet in ready.drain(..) {
            self.egress(packet);
        }
        for packet in failed.drain(..) {
            self.refuse(Refusal::HostUnreachable, &packet);
            context!(self).discard(packet, DropReason::NeighborFailed);
        }
        asks.drain(..).for_each(|key| self.ask(key));
        self.waits = waits;
        self.settle();
        self.flush();
    }

    /// The kernel gave up on a neighbour: what waits for it is answered now and not when its time is up.
    pub(super) fn neighbor_failed(&mut self, key: NextHopKey) {
        if self.neighbors.fail(key) {
            self.poll_neighbors();
        }
    }

    /// Brings the gauge up to date; what stages hold is in it too, counted by [`Context::hold`].
    pub(super) fn note_waiting(&mut self) {
        let waiting = self.neighbors.held() as u64;
        self.counters.held.add(waiting.wrapping_sub(self.waiting));
        self.waiting = waiting;
    }
}

/// The next hop that a packet waits for because a stage named it.
fn named(key: NextHopKey, packet: &Packet) -> Option<IpAddr> {
    packet.flags.has(Flags::NEXT_HOP).then_some(key.address)
}

/// Where a packet goes: by its destination, or by the next hop that a stage named.
fn way(packet: &Packet, named: Option<IpAddr>, fib: &Fib) -> (AdjacencyId, AdjacencyView) {
    match named {
        Some(address) => fib.adjacencies.resolve(forward::look_up_address(address, fib), packet.hash),
        None => forward::adjacency(packet, fib),
    }
}

/// The next hop a packet waits for.
fn next_hop(packet: &Packet, named: Option<IpAddr>, fib: &Fib) -> Option<NextHopKey> {
    let (id, view) = way(packet, named, fib);
    match view.kind() {
        AdjacencyKind::Glean => {
            Some(NextHopKey { port: view.port(), address: named.or_else(|| forward::destination(packet))? })
        }
        AdjacencyKind::Unresolved => Some(NextHopKey { port: view.port(), address: fib.adjacencies.next_hop(id)? }),
        _ => None,
    }
}
