//! What stages make and what they held: routed, judged by the stages still ahead of it, and sent.

#![forbid(unsafe_code)]

use super::Worker;
use super::turn::Entry;
use crate::batch::Batch;
use crate::counters::WorkerCounters;
use crate::packet::{Flags, Packet};
use crate::stage::{Context, Hook};
use crate::verdict::DropReason;

/// Of a packet that was held: it had been routed, so the stage took it at the Out hook.
const ROUTED: Flags = Flags::DECREMENTED;
/// Packets that meet the Out hook only.
const OUT_ONLY: Flags = Flags::FROM_HOST.with(Flags::GENERATED).with(Flags::LINK_READY);

impl Worker {
    /// Routes and sends what stages and error paths made; what those make in turn (never ICMP about ICMP) too, a bounded number of times.
    #[inline(always)]
    pub(super) fn settle(&mut self) {
        if !self.generated.is_empty() {
            self.settle_all();
        }
    }

    #[inline(never)]
    fn settle_all(&mut self) {
        for _ in 0..4 {
            if self.generated.is_empty() {
                return;
            }
            std::mem::swap(&mut self.generated, &mut self.generating);
            let mut made = std::mem::take(&mut self.generating);
            let mut out = std::mem::take(&mut self.out);
            for packet in made.drain(..) {
                if let Err(packet) = out.push(packet) {
                    self.hooked_or_full(&mut out);
                    let _ = out.push(packet);
                }
            }
            self.hooked_or_full(&mut out);
            self.out = out;
            self.generating = made;
        }
        while let Some(packet) = self.generated.pop() {
            context!(self).discard(packet, DropReason::RouteLoop);
        }
    }

    pub(super) fn hooked_or_full(&mut self, out: &mut Batch) {
        if self.stages.is_empty() { self.full(Entry::Out, out) } else { self.hooked(Entry::Out, out) }
    }

    /// Gives every stage its turn: packets that it held go on behind it, packets that it made are routed.
    pub(super) fn poll_stages(&mut self) -> usize {
        let on_rings = |counters: &WorkerCounters| counters.ring_in.get().wrapping_add(counters.ring_out.get());
        let before = on_rings(&self.counters);
        let mut total = 0;
        for at in 0..self.stages.len() {
            let mut back = std::mem::take(&mut self.out);
            if let Some(stage) = self.stages.get_mut(at) {
                stage.poll(&mut back, &mut context!(self));
            }
            let n = back.len();
            total += n;
            self.counters.held.add((n as u64).wrapping_neg());
            back.consume(|packet| self.resume(at, packet.take()));
            self.out = back;
        }
        // What the stages of several workers hand to each other is work too: there is more to come of it.
        total + (on_rings(&self.counters).wrapping_sub(before) != 0) as usize
    }

    /// A packet that stage `at` had held goes on after the hook at which it was taken: no stage that has not judged it is skipped.
    fn resume(&mut self, at: usize, packet: Packet) {
        let mut one = std::mem::take(&mut self.batch);
        let (entry, below) =
            if packet.flags.any(ROUTED.with(OUT_ONLY)) { (Entry::Out, at) } else { (Entry::In, self.stages.len()) };
        if let Err(packet) = one.push(packet) {
            context!(self).discard(packet, DropReason::NoBuffer);
        }
        if entry == Entry::In {
            (at + 1..below).for_each(|next| self.judge(next, Hook::In, &mut one));
        }
        self.route_and_leave(entry, below, &mut one);
        self.batch = one;
    }

    /// Ends the line-up; what its stages held is dropped and counted by them, what they make last is sent.
    pub(super) fn close_stages(&mut self) {
        for mut stage in std::mem::take(&mut self.stages) {
            stage.close(&mut context!(self));
        }
        self.settle();
        self.flush();
    }
}
