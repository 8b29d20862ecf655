//! One turn of a worker: the packet's way.

#![forbid(unsafe_code)]

use super::{Dispatch, Event, Relayed, RxSide, Waits, Worker};
use crate::arena::HEADROOM;
use crate::batch::{Batch, Taken};
use crate::clock;
use crate::counters::NodeCounters;
use crate::fib::AdjacencyKind;
use crate::forward::fast::FastPath;
use crate::forward::{self, Refusal, fragment, punt};
use crate::neighbor::{NeighborState, NextHopKey, Outcome, Queued};
use crate::packet::parse::{self, Ingress};
use crate::packet::{Family, Flags, Packet, PortId, ether, hash, partial};
use crate::port::{PortError, QueuePair, QueueStatistics, TxFrame};
use crate::stage::{Context, Hook};
use crate::verdict::{Consumed, DropReason, Verdict};

/// Where packets join the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// From a device: In hook first.
    In,
    /// From the host or made here: Out hook only.
    Out,
}

/// Most VLAN tags of a packet, as in the parser.
const TAGS_MAX: usize = 2;
/// How far ahead headers are prefetched while parsing.
const AHEAD: usize = 8;
/// Turns below this many packets are stamped only now and then: five stamps would cost more than the packets.
const STAMP_MIN: usize = 16;
/// One of so many small turns is stamped.
const STAMP_EVERY: u32 = 16;

/// Time between two looks at the devices' own counters, which cost a system call each.
const STATISTICS_EVERY: u64 = 100_000_000;

/// Puts a context together out of the worker's own fields, so that other fields stay free to borrow.
macro_rules! context {
    ($w:expr) => {
        Context::new(
            $w.now,
            $w.options.id,
            &mut $w.pool,
            &$w.counters,
            &$w.shared,
            &mut $w.icmp_limit,
            &mut $w.generated,
        )
    };
}

/// Nodes of [`crate::counters::NODES`].
const RX: usize = 0;
const PARSE: usize = 1;
const FORWARD: usize = 2;
const TX: usize = 3;
const HOST: usize = 4;
const OTHER: usize = 5;

/// Time stamps of one turn; nothing at all where the turn is not stamped.
struct Stamp(Option<u64>);

impl Stamp {
    #[inline(always)]
    fn to(&mut self, node: &NodeCounters, packets: usize) {
        if let Some(last) = self.0 {
            let now = clock::cycles();
            node.cycles.add(now.wrapping_sub(last));
            node.packets.add(packets as u64);
            node.calls.add(1);
            self.0 = Some(now);
        }
    }
}

impl Worker {
    /// Looks at every queue and ring once. Returns how many packets it found.
    pub fn turn(&mut self) -> usize {
        self.quiesce.quiescent();
        self.now = self.clock.at(clock::cycles());
        self.counters.heartbeat.add(1);
        let mut found = 0;
        // Before anything new, so that what waited leaves first.
        if self.neighbors.due(self.now) {
            self.poll_neighbors();
        }
        for i in 0..self.rx.len() {
            found += self.receive(i);
        }
        if self.rings.from.iter().any(|r| !r.is_empty()) {
            found += self.take_over();
        }
        if self.host.as_ref().is_some_and(|h| !h.from_host.is_empty()) {
            found += self.take_from_host();
        }
        if self.rings.relay_from.iter().any(|r| !r.is_empty()) {
            found += self.send_relayed();
        }
        if self.now >= self.statistics_due {
            self.statistics_due = self.now + STATISTICS_EVERY;
            self.book_statistics();
        }
        if !self.stages.is_empty() {
            found += self.poll_stages();
        }
        self.settle();
        if found == 0 {
            self.flush_queues();
        }
        self.pool.balance();
        found
    }

    /// One batch from one receive queue, all the way.
    #[inline]
    fn receive(&mut self, i: usize) -> usize {
        let Some(RxSide { port, queue, .. }) = self.rx.get_mut(i) else { return 0 };
        let port = *port;
        let start = clock::cycles();
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
        let mut stamp = self.stamp(n, start);
        let bytes: u64 = self.batch.packets().iter().map(|p| p.frame.len() as u64).sum();
        self.counters.ports[usize::from(port.0)].received.add(n as u64, bytes);
        stamp.to(&self.counters.nodes[RX], n);
        if self.is_express(port) {
            self.express(port);
            self.leave(n, &mut stamp);
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
        n
    }

    fn stamp(&mut self, n: usize, start: u64) -> Stamp {
        if n >= STAMP_MIN {
            return Stamp(Some(start));
        }
        self.small_turns = self.small_turns.wrapping_add(1);
        Stamp(self.small_turns.is_multiple_of(STAMP_EVERY).then_some(start))
    }

    /// Parses the batch, headers prefetched ahead.
    fn parse(&mut self, port: PortId) {
        let Some(ingress) = Ingress::new(&self.shared.ports, port, self.options.dhcp_bypass) else { return };
        let path = FastPath::new(&self.shared.fib);
        let packets = self.batch.packets_mut();
        for p in packets.iter().take(AHEAD) {
            p.frame.prefetch();
        }
        if !self.options.fastforward {
            packets.iter_mut().for_each(|p| parse::parse_slow(p, &ingress));
            return;
        }
        for i in 0..packets.len() {
            if let Some(later) = packets.get(i + AHEAD) {
                later.frame.prefetch();
            }
            if let Some(packet) = packets.get_mut(i) {
                parse::parse(packet, &ingress);
                path.prefetch(packet);
            }
        }
    }

    /// Judges and sends what is in `self.batch`; the batch is empty afterwards.
    fn process(&mut self, entry: Entry, stamp: &mut Stamp) {
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
    fn leave(&mut self, n: usize, stamp: &mut Stamp) {
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

    /// Whether packets of the port can be parsed and forwarded in one pass: nobody judges in between, and nobody else owns them.
    fn is_express(&self, port: PortId) -> bool {
        self.stages.is_empty()
            && self.options.fastforward
            && self.options.dispatch == Dispatch::Direct
            && !(self.options.flow_owner && self.rings.to.len() > 1)
            && self.shared.ports.get(port).is_some_and(|p| p.vlans.is_empty() && p.is_enabled())
    }

    /// Parse, look-up and rewrite in one pass, headers and routes prefetched ahead.
    fn express(&mut self, port: PortId) {
        let shared = self.shared.clone();
        let Some(ingress) = Ingress::new(&shared.ports, port, self.options.dhcp_bypass) else { return };
        let path = FastPath::new(&shared.fib);
        let mut batch = std::mem::take(&mut self.batch);
        batch.consume_ahead(
            |far| far.frame.prefetch(),
            |near| path.prefetch_unparsed(near),
            |mut packet| match path.express(packet.get(), &ingress) {
                Some(port) => self.send(port, packet),
                None => self.not_plain(packet, &path, &ingress),
            },
        );
        self.batch = batch;
    }

    /// A packet that is not plain enough for one pass.
    #[inline(never)]
    fn not_plain(&mut self, mut packet: Taken<'_>, path: &FastPath<'_>, ingress: &Ingress<'_>) {
        parse::parse(packet.get(), ingress);
        match path.forward(packet.get()) {
            Some(port) => self.send(port, packet),
            None => self.full_one(Entry::In, packet.take()),
        }
    }

    /// No filter in the line-up: look-up and rewrite in one pass.
    fn fast(&mut self, batch: &mut Batch) {
        let shared = self.shared.clone();
        let path = FastPath::new(&shared.fib);
        batch.consume(|mut packet| match path.forward(packet.get()) {
            Some(port) => self.send(port, packet),
            None => self.full_one(Entry::In, packet.take()),
        });
    }

    fn full(&mut self, entry: Entry, batch: &mut Batch) {
        batch.consume(|packet| self.full_one(entry, packet.take()));
    }

    fn full_one(&mut self, entry: Entry, mut packet: Packet) {
        self.route(entry, &mut packet);
        self.finish_packet(packet);
    }

    /// With filters: In hook, route, Out hook, each over the whole batch.
    fn hooked(&mut self, entry: Entry, batch: &mut Batch) {
        if entry == Entry::In {
            self.hook(Hook::In, batch);
        }
        for packet in batch.packets_mut() {
            self.route(entry, packet);
        }
        self.hook(Hook::Out, batch);
        for packet in batch.packets_mut() {
            if packet.flags.has(Flags::REROUTE) && packet.goes_on() {
                packet.flags.clear(Flags::REROUTE);
                self.route(Entry::Out, packet);
            }
        }
        batch.consume(|packet| self.finish_packet(packet.take()));
    }

    /// fastforward = false: each packet alone through every step, as ip_input and ip_forward do.
    fn one_by_one(&mut self, entry: Entry, batch: &mut Batch) {
        let mut single = std::mem::take(&mut self.out);
        batch.consume(|packet| {
            if let Err(packet) = single.push(packet.take()) {
                context!(self).discard(packet, DropReason::NoBuffer);
            }
            self.hooked(entry, &mut single);
        });
        self.out = single;
    }

    fn hook(&mut self, hook: Hook, batch: &mut Batch) {
        let n = batch.len();
        let count = self.stages.len();
        for i in 0..count {
            // In: first to last, Out: last to first, so that the stage nearest the wire is the same on both sides.
            let at = if hook == Hook::In { i } else { count - 1 - i };
            let start = clock::cycles();
            if let Some(stage) = self.stages.get_mut(at) {
                stage.process(hook, batch, &mut context!(self));
            }
            if let Some(node) = self.counters.stages.get(at) {
                node.cycles.add(clock::cycles().wrapping_sub(start));
                node.packets.add(n as u64);
                node.calls.add(1);
            }
        }
    }

    /// Finds the way of one packet, and answers its sender where there is none.
    fn route(&mut self, entry: Entry, packet: &mut Packet) {
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
        if let Some(refusal) = forward::route(packet, &self.shared) {
            self.refuse(refusal, packet);
        }
    }

    fn refuse(&mut self, refusal: Refusal, packet: &Packet) {
        let mut context = context!(self);
        forward::refuse(refusal, packet, &mut context);
    }

    /// Header faults that RFC 1812 (5.3.1) and RFC 8200 want told.
    fn refuse_header(&mut self, reason: DropReason, packet: &Packet) {
        let refusal = match reason {
            DropReason::SourceRoute => Refusal::SourceRoute,
            DropReason::IpOption => Refusal::BadHeader,
            _ => return,
        };
        self.refuse(refusal, packet);
    }

    /// Carries a packet's verdict out.
    fn finish_packet(&mut self, packet: Packet) {
        match packet.verdict() {
            Verdict::Forward => self.egress(packet),
            Verdict::Host(_) => self.punt(packet),
            Verdict::Drop(reason) => context!(self).discard(packet, reason),
            // A held packet left an empty buffer here (Context::hold); of a consumed one the stage has taken what it wanted.
            Verdict::Held | Verdict::Consumed(_) => self.pool.free(packet.frame),
        }
    }

    /// MTU, MAC addresses, tag: the last steps of a packet that leaves.
    fn egress(&mut self, mut packet: Packet) {
        if packet.flags.any(Flags::FROM_HOST.with(Flags::LINK_READY)) {
            let port = packet.egress;
            self.send_tagged(port, packet);
            return;
        }
        let adjacencies = self.shared.fib.adjacencies.clone();
        let view = adjacencies.get(packet.adjacency);
        if !view.is_forward() {
            self.wait_for_neighbor(packet);
            return;
        }
        let mtu = usize::from(view.mtu());
        if fragment::segment_len(&packet) > mtu {
            self.too_big(packet, mtu);
            return;
        }
        let rewrite = adjacencies.rewrite(packet.adjacency);
        packet.frame.header_mut()[..12].copy_from_slice(&rewrite.macs());
        self.send_tagged(view.port(), packet);
    }

    /// Cuts the packet, or tells its sender.
    fn too_big(&mut self, mut packet: Packet, mtu: usize) {
        if !packet.flags.has(Flags::MAY_FRAGMENT) || packet.family != Family::V4 || packet.offload.gso_size != 0 {
            packet.judge(Verdict::Drop(DropReason::FragmentationNeeded));
            self.refuse(Refusal::TooBig(mtu as u32), &packet);
            context!(self).discard(packet, DropReason::FragmentationNeeded);
            return;
        }
        let mut fragments = std::mem::take(&mut self.fragments);
        fragment::fragment(packet, mtu, &mut context!(self), &mut fragments);
        for piece in fragments.drain(..) {
            self.egress(piece);
        }
        self.fragments = fragments;
    }

    /// Puts the port's VLAN tag on and hands the frame to the physical port.
    fn send_tagged(&mut self, port: PortId, mut packet: Packet) {
        let shared = self.shared.clone();
        let Some(info) = shared.ports.get(port) else {
            context!(self).discard(packet, DropReason::PortDown);
            return;
        };
        let unfinished = packet.offload.is_partial() || packet.flags.has(Flags::MAYBE_PARTIAL);
        if unfinished && !info.offload && !partial::finish(self.pool.arena(), &mut packet) {
            context!(self).discard(packet, DropReason::TxRefused);
            return;
        }
        let (mut info, mut at) = (info, port);
        for _ in 0..TAGS_MAX {
            let Some(tag) = info.tag else { break };
            let len = packet.frame.len() as u64;
            self.counters.ports[usize::from(at.0)].vlan_transmitted.add(1, len);
            debug_assert!(packet.frame.headroom() <= HEADROOM + 64);
            if ether::push_tag(&mut packet.frame, tag).is_none() {
                context!(self).discard(packet, DropReason::TxRefused);
                return;
            }
            if packet.offload.csum_start != 0 {
                packet.offload.csum_start += 4;
            }
            at = info.physical;
            let Some(parent) = shared.ports.get(at) else { break };
            info = parent;
        }
        self.send_packet(at, packet);
    }

    /// Books the packets of a batch that came in with a tag at the port that the tag names.
    #[inline(never)]
    fn count_tagged(&mut self, port: PortId) {
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

    /// Gathers the frame for its port, straight from the batch.
    #[inline(always)]
    fn send(&mut self, port: PortId, packet: Taken<'_>) {
        match self.tx.get_mut(usize::from(port.0)) {
            Some(side) if !side.is_empty() && !side.is_full() => {
                let Packet { frame, offload, .. } = packet.take();
                side.push(TxFrame { frame, offload });
            }
            _ => self.send_packet(port, packet.take()),
        }
    }

    /// Gathers the frame for its port.
    #[inline(never)]
    fn send_packet(&mut self, port: PortId, packet: Packet) {
        let Some(side) = self.tx.get_mut(usize::from(port.0)) else {
            context!(self).discard(packet, DropReason::PortDown);
            return;
        };
        if side.is_empty() {
            self.dirty.push(port);
        }
        side.push(TxFrame { frame: packet.frame, offload: packet.offload });
        if side.is_full() {
            self.flush();
        }
    }

    /// Hands what was gathered to the devices.
    fn flush(&mut self) {
        for i in 0..self.dirty.len() {
            let Some(&port) = self.dirty.get(i) else { break };
            let Some(side) = self.tx.get_mut(usize::from(port.0)) else { continue };
            if let (None, Some(via)) = (&side.queue, side.via) {
                self.relay_frames(port, via);
                continue;
            }
            if let Err(error) = side.flush(&mut self.pool, &self.counters) {
                self.lost(port, &error);
            }
        }
        self.dirty.clear();
    }

    /// Frames of a port that another worker sends for this one.
    fn relay_frames(&mut self, port: PortId, via: usize) {
        let (Some(side), Some(ring)) = (self.tx.get_mut(usize::from(port.0)), self.rings.relay_to.get_mut(via)) else {
            return;
        };
        for frame in side.drain() {
            match ring.push(Relayed { port, frame }) {
                Ok(()) => self.counters.ring_in.add(1),
                Err(rtrb::PushError::Full(relayed)) => {
                    self.counters.count_drop(DropReason::TxFull);
                    self.pool.free(relayed.frame.frame);
                }
            }
        }
        if let Some(bell) = self.rings.bells.get(via) {
            bell.wake();
        }
    }

    /// Sends what other workers have no transmit queue for.
    fn send_relayed(&mut self) -> usize {
        let mut total = 0;
        for i in 0..self.rings.relay_from.len() {
            for _ in 0..self.options.batch {
                let Some(Ok(Relayed { port, frame })) = self.rings.relay_from.get_mut(i).map(|r| r.pop()) else {
                    break;
                };
                self.counters.ring_out.add(1);
                total += 1;
                self.send_packet(port, Packet::new(frame.frame, frame.offload, PortId::NONE));
            }
        }
        self.flush();
        total
    }

    /// Books what the devices lost or discarded since the last time.
    fn book_statistics(&mut self) {
        for side in &mut self.rx {
            let now = side.queue.statistics();
            let port = &self.counters.ports[usize::from(side.port.0)];
            port.device_rx_lost.add(now.rx_lost.saturating_sub(side.booked.rx_lost));
            port.copied.add(now.copied.saturating_sub(side.booked.copied));
            // The queue received these and could do nothing with them: both sides of the identity.
            let discarded = now.rx_discarded.saturating_sub(side.booked.rx_discarded);
            port.received.add(discarded, 0);
            self.counters.dropped[DropReason::NoBuffer as usize].add(discarded);
            side.booked = now;
        }
        for (side, port) in self.tx.iter_mut().zip(&self.counters.ports) {
            let Some(queue) = side.queue.as_mut() else { continue };
            let now = queue.statistics();
            port.device_tx_lost.add(now.tx_lost.saturating_sub(side.booked.tx_lost));
            port.copied.add(now.copied.saturating_sub(side.booked.copied));
            side.booked = now;
        }
    }

    /// Completions and kicks, when there is nothing else to do.
    fn flush_queues(&mut self) {
        for i in 0..self.tx.len() {
            let Some(queue) = self.tx.get_mut(i).and_then(|side| side.queue.as_mut()) else { continue };
            if let Err(error) = queue.flush(&mut self.pool) {
                self.lost(PortId(i as u16), &error);
            }
        }
    }

    /// Routes and sends what stages and error paths made; what those make in turn (never ICMP about ICMP) too, a bounded number of times.
    fn settle(&mut self) {
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

    fn hooked_or_full(&mut self, out: &mut Batch) {
        if self.stages.is_empty() { self.full(Entry::Out, out) } else { self.hooked(Entry::Out, out) }
    }

    /// Gives a packet to the host I/O thread.
    fn punt(&mut self, packet: Packet) {
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
                    host.bell.wake();
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

    /// Standalone mode: Ferrule answers for itself.
    fn answer(&mut self, packet: Packet) {
        let mailbox = self.mailbox.clone();
        forward::answer::answer(packet, &mut context!(self), &mut |port, address, mac| {
            mailbox.tell(Event::Learned(port, address, mac));
        });
    }

    /// Packets from the host: parsed by the I/O thread, the Out hook judges them.
    fn take_from_host(&mut self) -> usize {
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
    fn take_over(&mut self) -> usize {
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
    fn hand_over(&mut self) {
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
            let owner = hash::owner(hash::of(seed, &mut packet), workers);
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
    fn enqueue_all(&mut self) {
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

    fn push_to(&mut self, owner: usize, packet: Packet) {
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

    fn ring_bells(&self, me: usize) {
        for (_, bell) in self.rings.bells.iter().enumerate().filter(|(i, _)| *i != me) {
            bell.wake();
        }
    }

    /// Holds a packet whose next hop has no MAC yet.
    fn wait_for_neighbor(&mut self, packet: Packet) {
        let Some(key) = next_hop(&packet, &self.shared.fib) else {
            context!(self).discard(packet, DropReason::NoRoute);
            return;
        };
        match self.neighbors.push(key, packet, self.now) {
            Queued::Waits { ask } => {
                if ask {
                    self.ask(key);
                }
            }
            Queued::Refused(packet, reason) => context!(self).discard(packet, reason),
        }
        self.note_waiting();
    }

    fn ask(&mut self, key: NextHopKey) {
        // Full: asked again in a second by the queue itself.
        let _ = self.requests.push(key);
        self.control.wake();
        if self.host.is_none() {
            forward::answer::solicit(key.port, key.address, &mut context!(self));
        }
    }

    /// Sends what its neighbour was found for, and gives up on the rest in time.
    fn poll_neighbors(&mut self) {
        let fib = self.shared.fib.clone();
        let mut waits = std::mem::take(&mut self.waits);
        let state = |_: NextHopKey, packet: &Packet| match forward::adjacency(packet, &fib).1.kind() {
            AdjacencyKind::Forward => NeighborState::Ready,
            AdjacencyKind::Glean | AdjacencyKind::Unresolved | AdjacencyKind::Multipath => NeighborState::Unresolved,
            _ => NeighborState::Failed,
        };
        let Waits { ready, failed, asks } = &mut waits;
        self.neighbors.poll(
            self.now,
            state,
            |packet, outcome| if outcome == Outcome::Ready { ready.push(packet) } else { failed.push(packet) },
            |key| asks.push(key),
        );
        self.note_waiting();
        for mut packet in ready.drain(..) {
            packet.adjacency = forward::adjacency(&packet, &fib).0;
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

    /// Brings the gauge up to date; what stages hold is in it too, counted by [`Context::hold`].
    fn note_waiting(&mut self) {
        let waiting = self.neighbors.held() as u64;
        self.counters.held.add(waiting.wrapping_sub(self.waiting));
        self.waiting = waiting;
    }

    /// Ends the line-up; what its stages held is dropped and counted by them.
    pub(super) fn close_stages(&mut self) {
        for mut stage in std::mem::take(&mut self.stages) {
            stage.close(&mut context!(self));
        }
    }

    fn poll_stages(&mut self) -> usize {
        let mut batch = std::mem::take(&mut self.out);
        for i in 0..self.stages.len() {
            if let Some(stage) = self.stages.get_mut(i) {
                stage.poll(&mut batch, &mut context!(self));
            }
        }
        let n = batch.len();
        self.counters.held.add((n as u64).wrapping_neg());
        batch.consume(|packet| self.full_one(Entry::Out, packet.take()));
        self.out = batch;
        self.flush();
        n
    }

    /// A port's device failed: its queues close, the others go on.
    fn lost(&mut self, port: PortId, error: &PortError) {
        self.detach(port);
        self.mailbox.tell(Event::PortLost(port, error.to_string()));
        self.control.wake();
    }

    pub(super) fn attach(&mut self, mut pair: QueuePair) {
        let Some(side) = self.tx.get_mut(usize::from(pair.port.0)) else { return };
        if side.queue.is_some() {
            pair.tx.close(&mut self.pool);
        } else {
            side.queue = Some(pair.tx);
            side.booked = QueueStatistics::default();
        }
        self.rx.push(RxSide { port: pair.port, queue: pair.rx, booked: QueueStatistics::default() });
    }

    pub(super) fn relay(&mut self, port: PortId, worker: usize) {
        if let Some(side) = self.tx.get_mut(usize::from(port.0)) {
            side.via = Some(worker);
        }
    }

    pub(super) fn detach(&mut self, port: PortId) {
        self.book_statistics();
        while let Some(at) = self.rx.iter().position(|r| r.port == port) {
            self.rx.remove(at).queue.close(&mut self.pool);
        }
        if let Some(mut queue) = self.tx.get_mut(usize::from(port.0)).and_then(|side| side.queue.take()) {
            queue.close(&mut self.pool);
        }
    }

    /// The end: transmit rings drained within 100 ms, held packets dropped and counted, buffers back in the pool.
    pub(super) fn finish(&mut self) {
        let until = clock::monotonic() + 100_000_000;
        while clock::monotonic() < until
            && self.tx.iter().any(|side| side.queue.as_ref().is_some_and(|q| q.outstanding() > 0))
        {
            self.flush_queues();
        }
        let mut left = Vec::new();
        self.neighbors.drain(|p| left.push(p));
        for packet in left {
            context!(self).discard(packet, DropReason::Shutdown);
        }
        self.note_waiting();
        self.close_stages();
        while let Some(Ok(packet)) = self.host.as_mut().map(|host| host.from_host.pop()) {
            self.counters.ring_out.add(1);
            context!(self).discard(packet, DropReason::Shutdown);
        }
        for ring in &mut self.rings.relay_from {
            while let Ok(relayed) = ring.pop() {
                self.counters.ring_out.add(1);
                self.counters.count_drop(DropReason::Shutdown);
                self.pool.free(relayed.frame.frame);
            }
        }
        for ring in &mut self.rings.from {
            while let Ok(packet) = ring.pop() {
                self.counters.ring_out.add(1);
                self.counters.count_drop(DropReason::Shutdown);
                self.pool.free(packet.frame);
            }
        }
        for port in self.rx.iter().map(|r| r.port).collect::<Vec<_>>() {
            self.detach(port);
        }
    }
}

/// The next hop a packet waits for.
fn next_hop(packet: &Packet, fib: &crate::fib::Fib) -> Option<NextHopKey> {
    let (id, view) = forward::adjacency(packet, fib);
    match view.kind() {
        AdjacencyKind::Glean => Some(NextHopKey { port: view.port(), address: forward::destination(packet)? }),
        AdjacencyKind::Unresolved => Some(NextHopKey { port: view.port(), address: fib.adjacencies.next_hop(id)? }),
        _ => None,
    }
}

/// For the identity: what a stage consumed is counted by the stage; this names the kind for readers.
const _: Consumed = Consumed::Replayed;
