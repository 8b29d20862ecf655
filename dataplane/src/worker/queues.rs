//! The worker's queues: attached, detached, lost, counted, and given back at the end.

#![forbid(unsafe_code)]

use super::{Event, RxSide, Worker};
use crate::clock;
use crate::packet::PortId;
use crate::port::{PortError, QueuePair, QueueStatistics};
use crate::stage::Context;
use crate::verdict::DropReason;

impl Worker {
    /// A port's device failed: its queues close, the others go on.
    pub(super) fn lost(&mut self, port: PortId, error: &PortError) {
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

    /// Closes first and books afterwards: closing takes in what was under way, and counts it.
    pub(super) fn detach(&mut self, port: PortId) {
        for side in self.rx.iter_mut().filter(|r| r.port == port) {
            side.queue.close(&mut self.pool);
        }
        if let Some(queue) = self.tx.get_mut(usize::from(port.0)).and_then(|side| side.queue.as_mut()) {
            queue.close(&mut self.pool);
        }
        self.book_statistics();
        self.rx.retain(|r| r.port != port);
        if let Some(side) = self.tx.get_mut(usize::from(port.0)) {
            side.queue = None;
        }
    }

    /// Takes nothing more from devices; what is in hand can still be sent.
    pub(super) fn close_receive(&mut self) {
        for side in &mut self.rx {
            side.queue.close(&mut self.pool);
        }
        self.book_statistics();
        self.rx.clear();
    }

    /// The end: transmit rings drained within 100 ms, held packets dropped and counted, buffers back in the pool.
    pub(super) fn finish(&mut self) {
        self.close_stages();
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

    /// Books what the devices lost or discarded since the last time.
    pub(super) fn book_statistics(&mut self) {
        for side in &mut self.rx {
            let now = side.queue.statistics();
            let port = &self.counters.ports[usize::from(side.port.0)];
            port.device_rx_lost.add(now.rx_lost.saturating_sub(side.booked.rx_lost));
            port.copied.add(now.copied.saturating_sub(side.booked.copied));
            // The queue received these and could do nothing with them: both sides of the identity.
            let discarded = now.rx_discarded.saturating_sub(side.booked.rx_discarded);
            let senseless = now.rx_senseless.saturating_sub(side.booked.rx_senseless);
            port.received.add(discarded + senseless, 0);
            self.counters.dropped[DropReason::NoBuffer as usize].add(discarded);
            self.counters.dropped[DropReason::EthernetTruncated as usize].add(senseless);
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
}
