//! Packets that go to another thread of ours or come from one: the host I/O thread, and the workers that own other flows.

#![forbid(unsafe_code)]

use super::stamp::{HOST, OTHER};
use super::turn::Entry;
use super::{Event, Worker};
use crate::clock;
use crate::forward::{self, punt};
use crate::packet::{Packet, hash};
use crate::stage::Context;
use crate::verdict::DropReason;

impl Worker {
    /// Gives a packet to the host I/O thread.
    pub(super) fn punt(&mut self, packet: Packet) {
        let class = punt::class(&packet);
        let Some(host) = self.host.as_mut() else {
            self.answer(packet);
            return;
        };
        let reason = if !host.limits.take(class, self.now) {
            DropReason::PuntLimited
        } else {
            match host.to_host.push(packet) {
                Ok(()) => {
                    self.counters.punted[class as usize].add(1);
                    self.counters.ring_in.add(1);
                    self.punted = true;
                    return;
                }
                Err(rtrb::PushError::Full(packet)) => {
                    context!(self).discard(packet, DropReason::HostRingFull);
                    return;
                }
            }
        };
        context!(self).discard(packet, reason);
    }

    /// Rouses the host I/O thread when this turn punted: once, for a wake-up costs as much as a hundred packets.
    #[inline(always)]
    pub(super) fn ring_host(&mut self) {
        if self.punted {
            self.punted = false;
            if let Some(host) = &self.host {
                host.bell.wake();
            }
        }
    }

    /// Standalone mode: Ferrule answers for itself.
    pub(super) fn answer(&mut self, packet: Packet) {
        let mailbox = self.mailbox.clone();
        forward::answer::answer(packet, &mut context!(self), &mut |port, address, mac| {
            mailbox.tell(Event::Learned(port, address, mac));
        });
    }

    /// Packets from the host: parsed by the I/O thread, the Out hook judges them.
    pub(super) fn take_from_host(&mut self) -> usize {
        let start = clock::cycles();
        let Some(host) = self.host.as_mut() else { return 0 };
        let n = host.from_host.slots().min(self.options.batch);
        let Ok(chunk) = host.from_host.read_chunk(n) else { return 0 };
        for packet in chunk {
            let _ = self.batch.push(packet);
        }
        self.counters.ring_out.add(n as u64);
        let mut stamp = self.stamp(n, start);
        stamp.to(&self.counters.nodes[HOST], n);
        self.process(Entry::Out, &mut stamp);
        n
    }

    /// Packets that other workers received and this one owns.
    pub(super) fn take_over(&mut self) -> usize {
        let mut total = 0;
        for i in 0..self.rings.from.len() {
            let start = clock::cycles();
            let Some(ring) = self.rings.from.get_mut(i) else { break };
            let n = ring.slots().min(self.options.batch);
            if n == 0 {
                continue;
            }
            let Ok(chunk) = ring.read_chunk(n) else { continue };
            for packet in chunk {
                let _ = self.batch.push(packet);
            }
            self.counters.ring_out.add(n as u64);
            self.counters.taken_over.add(n as u64);
            let mut stamp = self.stamp(n, start);
            stamp.to(&self.counters.nodes[OTHER], n);
            self.process(Entry::In, &mut stamp);
            total += n;
        }
        total
    }

    /// Keeps the packets whose flow this worker owns, and hands the others to their owners in order.
    pub(super) fn hand_over(&mut self) {
        let workers = self.rings.to.len();
        if workers < 2 {
            return;
        }
        let me = self.options.id;
        let seed = self.shared.seed;
        let mut batch = std::mem::take(&mut self.batch);
        let mut mine = std::mem::take(&mut self.out);
        batch.consume(|packet| {
            let mut packet = packet.take();
            let named = self.stages.iter().find_map(|stage| stage.flow_owner(&packet)).filter(|owner| *owner < workers);
            let owner = named.unwrap_or_else(|| hash::owner(hash::of(seed, &mut packet), workers));
            if owner == me {
                let _ = mine.push(packet);
            } else {
                self.push_to(owner, packet);
            }
        });
        self.ring_bells(me);
        self.out = batch;
        self.batch = mine;
    }

    /// dispatch = queued: nothing is processed where it was received.
    pub(super) fn enqueue_all(&mut self) {
        let workers = self.rings.to.len();
        if workers == 0 {
            return;
        }
        let next = (self.options.id + 1) % workers;
        let mut batch = std::mem::take(&mut self.batch);
        batch.consume(|packet| self.push_to(next, packet.take()));
        self.ring_bells(self.options.id);
        self.batch = batch;
    }

    pub(super) fn push_to(&mut self, owner: usize, packet: Packet) {
        let Some(ring) = self.rings.to.get_mut(owner) else {
            context!(self).discard(packet, DropReason::HandoverFull);
            return;
        };
        match ring.push(packet) {
            Ok(()) => {
                self.counters.handed_over.add(1);
                self.counters.ring_in.add(1);
            }
            Err(rtrb::PushError::Full(packet)) => context!(self).discard(packet, DropReason::HandoverFull),
        }
    }

    pub(super) fn ring_bells(&self, me: usize) {
        for (_, bell) in self.rings.bells.iter().enumerate().filter(|(i, _)| *i != me) {
            bell.wake();
        }
    }
}
