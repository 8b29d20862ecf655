//! One turn of a worker: the packet's way.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use super::egress::TAGS_MAX;
use super::stamp::{FORWARD, PARSE, RX, Stamp, TX};
use super::{Dispatch, RxSide, Worker};
use crate::batch::{Batch, Taken};
use crate::clock;
use crate::forward::fast::{Families, FastPath};
use crate::forward::{self, Refusal};
use crate::packet::parse::{self, Ingress};
use crate::packet::{Flags, Packet, PortId};
use crate::stage::{Context, Foresight, Hook, Shared};
use crate::verdict::{DropReason, Verdict};

/// Where packets join the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From a device: In hook first.
    In,
    /// From the host or made here: Out hook only.
    Out,
}

/// How far ahead headers are prefetched while parsing.
const AHEAD: usize = 8;
/// Turns below this many packets are stamped only now and then: five stamps would cost more than the packets.
const STAMP_MIN: usize = 16;
/// One of so many small turns is stamped.
const STAMP_EVERY: u32 = 64;
/// Time between two looks at the devices' own counters, which cost a system call each.
const STATISTICS_EVERY: u64 = 100_000_000;

impl Worker {
    /// Looks at every queue and ring once. Returns how many packets it found.
    pub fn turn(&mut self) -> usize {
        self.turn_at(clock::cycles())
    }

    /// As [`Worker::turn`], for a caller that has just read the time-stamp counter: at one packet a turn that costs more than the packet.
    pub(super) fn turn_at(&mut self, cycles: u64) -> usize {
        self.quiesce.quiescent();
        self.now = self.clock.at(cycles);
        let mut since = cycles;
        self.counters.heartbeat.add(1);
        let mut found = 0;
        // Before anything new, so that what waited leaves first.
        if self.neighbors.due(self.now) {
            self.poll_neighbors();
        }
        for i in 0..self.rx.len() {
            found += self.receive(i, &mut since);
        }
        // A single worker hands nothing over, unless it is to itself.
        if self.rings.from.len() > 1 || self.options.dispatch == Dispatch::Queued {
            found += self.take_rings();
        }
        if self.host.as_ref().is_some_and(|h| !h.from_host.is_empty()) {
            found += self.take_from_host();
        }
        if self.now >= self.statistics_due {
            self.statistics_due = self.now + STATISTICS_EVERY;
            self.book_statistics();
        }
        if !self.stages.is_empty() {
            found += self.poll_stages();
        }
        self.settle();
        self.flush();
        self.ring_host();
        if found == 0 {
            self.flush_queues();
        }
        self.pool.balance();
        found
    }

    /// What other workers handed over: packets to be processed, frames to be sent.
    fn take_rings(&mut self) -> usize {
        let mut found = 0;
        if self.rings.from.iter().any(|r| !r.is_empty()) {
            found += self.take_over();
        }
        if self.rings.relay_from.iter().any(|r| !r.is_empty()) {
            found += self.send_relayed();
        }
        found
    }

    /// One batch from one receive queue, all the way. `since` is the last time that was read: what has passed since then was
    /// spent on this queue and on empty ones before it.
    #[inline]
    pub(super) fn receive(&mut self, i: usize, since: &mut u64) -> usize {
        let Some(RxSide { port, queue, .. }) = self.rx.get_mut(i) else { return 0 };
        let port = *port;
        let max = self.options.batch;
        let n = match queue.receive(&mut self.batch, max, &mut self.pool) {
            Ok(n) => n,
            Err(error) => {
                self.lost(port, &error);
                return 0;
            }
        };
        if n == 0 {
            return 0;
        }
        let mut stamp = self.stamp(n, *since);
        let bytes: u64 = self.batch.packets().iter().map(|p| p.frame.len() as u64).sum();
        self.counters.ports[usize::from(port.0)].received.add(n as u64, bytes);
        stamp.to(&self.counters.nodes[RX], n);
        if self.may_be_express(port) && (self.is_express() || self.foresee(port)) {
            self.express(port);
            self.leave(n, &mut stamp);
            *since = stamp.last(*since);
            return n;
        }
        self.parse(port);
        if self.shared.ports.get(port).is_some_and(|p| !p.vlans.is_empty()) {
            self.count_tagged(port);
        }
        self.drop_disabled(port);
        stamp.to(&self.counters.nodes[PARSE], n);
        if self.options.dispatch == Dispatch::Queued {
            self.enqueue_all();
        } else if self.options.flow_owner {
            self.hand_over();
        }
        self.process(Entry::In, &mut stamp);
        *since = stamp.last(*since);
        n
    }

    pub(super) fn stamp(&mut self, n: usize, start: u64) -> Stamp {
        if n >= STAMP_MIN {
            return Stamp(Some(start));
        }
        self.small_turns = self.small_turns.wrapping_add(1);
        Stamp(self.small_turns.is_multiple_of(STAMP_EVERY).then_some(start))
    }

    /// Parses the batch, headers prefetched ahead.
    pub(super) fn parse(&mut self, port: PortId) {
        let Some(ingress) = Ingress::new(&self.shared.ports, port, self.options.dhcp_bypass) else { return };
        let path = FastPath::new(&self.shared.fib);
        let packets = self.batch.packets_mut();
        for p in packets.iter().take(AHEAD) {
            p.frame.prefetch();
        }
        if !self.options.fastforward {
            for packet in packets {
                parse::parse_slow(packet, &ingress);
                forward::release_transit_dhcp(packet, &self.shared.fib);
            }
            return;
        }
        for i in 0..packets.len() {
            if let Some(later) = packets.get(i + AHEAD) {
                later.frame.prefetch();
            }
            if let Some(packet) = packets.get_mut(i) {
                parse::parse(packet, &ingress);
                path.prefetch(packet);
                forward::release_transit_dhcp(packet, &self.shared.fib);
            }
        }
    }

    /// Judges and sends what is in `self.batch`; the batch is empty afterwards.
    pub(super) fn process(&mut self, entry: Entry, stamp: &mut Stamp) {
        let n = self.batch.len();
        let mut batch = std::mem::take(&mut self.batch);
        if self.stages.is_empty() {
            if entry == Entry::In && self.options.fastforward {
                self.fast(&mut batch)
            } else {
                self.full(entry, &mut batch)
            }
        } else if self.options.fastforward {
            self.hooked(entry, &mut batch);
        } else {
            self.one_by_one(entry, &mut batch);
        }
        self.batch = batch;
        self.leave(n, stamp);
    }

    /// What was made while judging, and then what was gathered, goes out.
    pub(super) fn leave(&mut self, n: usize, stamp: &mut Stamp) {
        stamp.to(&self.counters.nodes[FORWARD], n);
        self.settle();
        self.flush();
        stamp.to(&self.counters.nodes[TX], n);
    }

    /// Ends what came in on a port, or a VLAN of it, that is set down.
    fn drop_disabled(&mut self, port: PortId) {
        let ports = &self.shared.ports;
        let enabled = |id: PortId| ports.get(id).is_none_or(|p| p.is_enabled());
        if enabled(port) && ports.get(port).is_none_or(|p| p.vlans.is_empty()) {
            return;
        }
        for packet in self.batch.packets_mut() {
            if !enabled(packet.ingress) && !matches!(packet.verdict(), Verdict::Drop(_)) {
                packet.judge(Verdict::Drop(DropReason::PortDown));
            }
        }
    }

    /// Whether packets of the port can be parsed and forwarded in one pass, where nobody judges in between: nobody else owns them.
    #[inline(always)]
    fn may_be_express(&self, port: PortId) -> bool {
        self.options.fastforward
            && self.options.dispatch == Dispatch::Direct
            && !(self.options.flow_owner && self.rings.to.len() > 1)
            && self.shared.ports.get(port).is_some_and(|p| p.vlans.is_empty() && p.is_enabled())
    }

    /// Whether nobody judges.
    #[inline(always)]
    fn is_express(&mut self) -> bool {
        let now = self.now;
        self.foresight.is_in_use = false;
        self.stages.iter_mut().all(|stage| stage.passes_plain(now))
    }

    /// Whether the one stage there is foresees what becomes of the batch.
    fn foresee(&mut self, port: PortId) -> bool {
        let [stage] = &mut self.stages[..] else { return false };
        let mut batch = std::mem::take(&mut self.batch);
        let start = clock::cycles();
        let foresees = stage.foresee(&mut batch, port, &mut self.foresight, &mut context!(self));
        if let Some(node) = self.counters.stages.first().filter(|_| foresees) {
            node.cycles.add(clock::cycles().wrapping_sub(start));
            node.packets.add(batch.len() as u64);
            node.calls.add(1);
        }
        self.batch = batch;
        self.foresight.is_in_use = foresees;
        foresees
    }

    /// Parse, look-up and rewrite in one pass, headers and routes prefetched ahead.
    pub(super) fn express(&mut self, port: PortId) {
        let shared = self.borrow_shared();
        if let Some(ingress) = Ingress::new(&shared.ports, port, self.options.dhcp_bypass) {
            let path = FastPath::new(&shared.fib);
            let mut batch = std::mem::take(&mut self.batch);
            let families = Families::of(&batch);
            let foreseen = self.foresight.is_in_use;
            let routed = foreseen && self.foresight.is_routed;
            let looked_up = !routed && families.v6 && path.look_up_v6(&mut batch, &mut self.look_ups);
            let prefetch = |near: &Packet| {
                if families.v4 && !routed {
                    path.prefetch_unparsed(near);
                }
            };
            if self.stages.is_empty() {
                batch.consume_ahead(
                    |far| far.frame.prefetch(),
                    prefetch,
                    |mut packet| match path.express(packet.get(), &ingress, (false, looked_up)) {
                        Some(port) => self.send(port, packet),
                        None => self.not_plain(packet, &path, &ingress),
                    },
                );
            } else if foreseen {
                self.express_foreseen(&mut batch, &path, &ingress, (routed, routed | looked_up));
            } else {
                let (mut packets, mut bytes) = (0u64, 0u64);
                batch.consume_ahead(
                    |far| far.frame.prefetch(),
                    prefetch,
                    |mut packet| match path.express(packet.get(), &ingress, (false, looked_up)) {
                        Some(port) => {
                            packets += 1;
                            bytes += packet.get().ip_len() as u64;
                            self.send(port, packet);
                        }
                        None => self.hooked_one(packet, &ingress),
                    },
                );
                self.stages.iter_mut().for_each(|stage| stage.passed(packets, bytes));
            }
            self.batch = batch;
        }
        self.lent = Some(shared);
    }

    /// As [`Worker::express`], for the packets of which the stage foresees that they pass; the others are judged where they stand in the order.
    #[inline(never)]
    fn express_foreseen(
        &mut self,
        batch: &mut Batch,
        path: &FastPath<'_>,
        ingress: &Ingress<'_>,
        looked_up: (bool, bool),
    ) {
        let mut foresight = std::mem::take(&mut self.foresight);
        let all = batch.len();
        let (mut at, mut told) = (0, 0);
        batch.consume_ahead(
            |far| far.frame.prefetch(),
            |near| {
                if !looked_up.0 {
                    path.prefetch_unparsed(near)
                }
            },
            |mut packet| {
                let passes = foresight.passes.get(at).is_some_and(|passes| *passes);
                let port = if passes { path.express(packet.get(), ingress, looked_up) } else { None };
                match port {
                    Some(port) => self.send(port, packet),
                    None => {
                        self.tell(told..at, &foresight);
                        told = at + 1;
                        self.hooked_one(packet, ingress);
                        if !self.stages.first().is_some_and(|stage| stage.still_holds())
                            && let Some(rest) = foresight.passes.get_mut(told..)
                        {
                            rest.fill(false);
                        }
                    }
                }
                at += 1;
            },
        );
        self.tell(told..all, &foresight);
        foresight.is_in_use = false;
        self.foresight = foresight;
    }

    #[inline(always)]
    fn tell(&mut self, places: Range<usize>, foresight: &Foresight) {
        if let (Some(stage), false) = (self.stages.first_mut(), places.is_empty()) {
            stage.came_true(places, foresight);
        }
    }

    /// What the workers share, for a loop that changes the worker itself; it goes back to `lent`. Cloning and dropping an Arc for each
    /// batch would be two locked instructions, as much as a packet at one packet a turn.
    #[inline(always)]
    fn borrow_shared(&mut self) -> Arc<Shared> {
        self.lent.take().unwrap_or_else(|| self.shared.clone())
    }

    /// A packet that is not plain, where there are stages.
    #[inline(never)]
    fn hooked_one(&mut self, mut packet: Taken<'_>, ingress: &Ingress<'_>) {
        parse::parse(packet.get(), ingress);
        forward::release_transit_dhcp(packet.get(), &self.shared.fib);
        let mut single = std::mem::take(&mut self.out);
        if let Err(packet) = single.push(packet.take()) {
            context!(self).discard(packet, DropReason::NoBuffer);
        }
        self.hooked(Entry::In, &mut single);
        self.out = single;
    }

    /// A packet that is not plain enough for one pass.
    #[inline(never)]
    pub(super) fn not_plain(&mut self, mut packet: Taken<'_>, path: &FastPath<'_>, ingress: &Ingress<'_>) {
        parse::parse(packet.get(), ingress);
        forward::release_transit_dhcp(packet.get(), &self.shared.fib);
        match path.forward(packet.get()) {
            Some(port) => self.send(port, packet),
            None => self.full_one(Entry::In, packet.take()),
        }
    }

    /// No filter in the line-up: look-up and rewrite in one pass.
    pub(super) fn fast(&mut self, batch: &mut Batch) {
        let shared = self.borrow_shared();
        let path = FastPath::new(&shared.fib);
        batch.consume(|mut packet| match path.forward(packet.get()) {
            Some(port) => self.send(port, packet),
            None => self.full_one(Entry::In, packet.take()),
        });
        self.lent = Some(shared);
    }

    pub(super) fn full(&mut self, entry: Entry, batch: &mut Batch) {
        batch.consume(|packet| self.full_one(entry, packet.take()));
    }

    pub(super) fn full_one(&mut self, entry: Entry, mut packet: Packet) {
        self.route(entry, &mut packet);
        self.finish_packet(packet);
    }

    /// With filters: In hook, route, Out hook, each over the whole batch.
    pub(super) fn hooked(&mut self, entry: Entry, batch: &mut Batch) {
        let all = self.stages.len();
        if entry == Entry::In {
            (0..all).for_each(|at| self.judge(at, Hook::In, batch));
        }
        self.route_and_leave(entry, all, batch);
    }

    /// Routes the batch, gives it to the Out hooks of the stages below `below`, and carries the verdicts out.
    pub(super) fn route_and_leave(&mut self, entry: Entry, below: usize, batch: &mut Batch) {
        let shared = self.borrow_shared();
        let path = FastPath::new(&shared.fib);
        for packet in batch.packets_mut() {
            if entry == Entry::Out || !path.route(packet) {
                self.route(entry, packet);
            }
        }
        // Backwards, so that the stage nearest the wire is the same on both sides.
        (0..below).rev().for_each(|at| self.judge(at, Hook::Out, batch));
        batch.consume(|mut packet| match path.leave(packet.get()) {
            Some(port) => self.send(port, packet),
            None => self.finish_routed(packet.take()),
        });
        self.lent = Some(shared);
    }

    /// A packet behind the Out hook that is not plain.
    #[inline(never)]
    fn finish_routed(&mut self, mut packet: Packet) {
        if packet.flags.has(Flags::REROUTE) && packet.goes_on() {
            packet.flags.clear(Flags::REROUTE);
            if packet.flags.has(Flags::NEXT_HOP.with(Flags::FROM_HOST)) {
                // The kernel's choice of port and neighbour does not hold any more; its TTL does.
                packet.flags.clear(Flags::FROM_HOST);
                packet.flags.set(Flags::DECREMENTED);
            }
            self.route(Entry::Out, &mut packet);
        }
        self.finish_packet(packet);
    }

    /// fastforward = false: each packet alone through every step, as ip_input and ip_forward do.
    pub(super) fn one_by_one(&mut self, entry: Entry, batch: &mut Batch) {
        let mut single = std::mem::take(&mut self.out);
        batch.consume(|packet| {
            if let Err(packet) = single.push(packet.take()) {
                context!(self).discard(packet, DropReason::NoBuffer);
            }
            self.hooked(entry, &mut single);
        });
        self.out = single;
    }

    /// One stage's judgement.
    pub(super) fn judge(&mut self, at: usize, hook: Hook, batch: &mut Batch) {
        let start = clock::cycles();
        let Some(stage) = self.stages.get_mut(at) else { return };
        stage.process(hook, batch, &mut context!(self));
        if let Some(node) = self.counters.stages.get(at) {
            node.cycles.add(clock::cycles().wrapping_sub(start));
            node.packets.add(batch.len() as u64);
            node.calls.add(1);
        }
    }

    /// Finds the way of one packet, and answers its sender where there is none.
    #[inline(never)]
    pub(super) fn route(&mut self, entry: Entry, packet: &mut Packet) {
        if !packet.goes_on() {
            if let Verdict::Drop(reason) = packet.verdict()
                && entry == Entry::In
            {
                self.refuse_header(reason, packet);
            }
            return;
        }
        if packet.flags.any(Flags::FROM_HOST.with(Flags::LINK_READY)) {
            return;
        }
        let next_hop = self.next_hop(packet);
        let refusal = match next_hop {
            Some(next_hop) => forward::route_to(packet, next_hop, &self.shared),
            None => forward::route(packet, &self.shared),
        };
        if let Some(refusal) = refusal {
            self.refuse(refusal, packet);
        }
    }

    /// The next hop that a stage has named.
    #[inline(always)]
    pub(super) fn next_hop(&self, packet: &Packet) -> Option<IpAddr> {
        let named = packet.flags.has(Flags::NEXT_HOP);
        if named { self.stages.iter().find_map(|stage| stage.next_hop(packet)) } else { None }
    }

    pub(super) fn refuse(&mut self, refusal: Refusal, packet: &Packet) {
        let mut context = context!(self);
        forward::refuse(refusal, packet, &mut context);
    }

    /// Header faults that RFC 1812 (5.3.1) and RFC 8200 want told.
    pub(super) fn refuse_header(&mut self, reason: DropReason, packet: &Packet) {
        let refusal = match reason {
            DropReason::SourceRoute => Refusal::SourceRoute,
            DropReason::IpOption => Refusal::BadHeader,
            _ => return,
        };
        self.refuse(refusal, packet);
    }

    /// Carries a packet's verdict out.
    pub(super) fn finish_packet(&mut self, packet: Packet) {
        match packet.verdict() {
            Verdict::Forward => self.egress(packet),
            Verdict::Host(_) => self.punt(packet),
            Verdict::Drop(reason) => context!(self).discard(packet, reason),
            // A held packet left an empty buffer here (Context::hold); of a consumed one the stage has taken what it wanted.
            Verdict::Held | Verdict::Consumed(_) => self.pool.free(packet.frame),
        }
    }

    /// Books the packets of a batch that came in with a tag at the port that the tag names.
    #[inline(never)]
    pub(super) fn count_tagged(&mut self, port: PortId) {
        for packet in self.batch.packets() {
            let (mut at, mut len) = (packet.ingress, packet.frame.len() as u64);
            for _ in 0..TAGS_MAX {
                if at == port {
                    break;
                }
                self.counters.ports[usize::from(at.0)].vlan_received.add(1, len);
                len += 4;
                let Some(info) = self.shared.ports.get(at) else { break };
                at = info.physical;
            }
        }
    }
}
