//! The last steps of a packet that leaves: MTU, MAC addresses, tags, and the burst to its port.

#![forbid(unsafe_code)]

use super::{Relayed, Worker};
use crate::batch::Taken;
use crate::forward::{Refusal, fragment};
use crate::packet::{Family, Flags, Packet, PortId, ether, partial};
use crate::port::TxFrame;
use crate::stage::Context;
use crate::verdict::{DropReason, Verdict};

/// Most VLAN tags of a packet, as in the parser.
pub(super) const TAGS_MAX: usize = 2;

impl Worker {
    /// MTU, MAC addresses, tag: the last steps of a packet that leaves.
    pub(super) fn egress(&mut self, mut packet: Packet) {
        if packet.flags.any(Flags::FROM_HOST.with(Flags::LINK_READY)) {
            let port = packet.egress;
            self.send_tagged(port, packet);
            return;
        }
        let view = self.shared.fib.adjacencies.get(packet.adjacency);
        if !view.is_forward() {
            self.wait_for_neighbor(packet);
            return;
        }
        let mtu = usize::from(view.mtu());
        if fragment::segment_len(&packet) > mtu {
            self.too_big(packet, mtu);
            return;
        }
        let rewrite = self.shared.fib.adjacencies.rewrite(packet.adjacency);
        packet.frame.header_mut()[..12].copy_from_slice(&rewrite.macs());
        self.send_tagged(view.port(), packet);
    }

    /// Cuts the packet, or tells its sender.
    pub(super) fn too_big(&mut self, mut packet: Packet, mtu: usize) {
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
    pub(super) fn send_tagged(&mut self, port: PortId, mut packet: Packet) {
        let Some(offload) = self.shared.ports.get(port).map(|p| p.offload) else {
            context!(self).discard(packet, DropReason::PortDown);
            return;
        };
        let unfinished = packet.offload.is_partial() || packet.flags.has(Flags::MAYBE_PARTIAL);
        if unfinished && !offload {
            // Its sender left the cutting of a super-packet to a device, and this port's does none.
            let refused = match packet.offload.gso_size {
                0 => (!partial::finish(self.pool.arena(), &mut packet)).then_some(DropReason::TxRefused),
                _ => Some(DropReason::OverMtuReceived),
            };
            if let Some(reason) = refused {
                context!(self).discard(packet, reason);
                return;
            }
        }
        let mut at = port;
        for _ in 0..TAGS_MAX {
            let Some((Some(tag), parent)) = self.shared.ports.get(at).map(|p| (p.tag, p.physical)) else { break };
            if ether::push_tag(&mut packet.frame, tag).is_none() {
                context!(self).discard(packet, DropReason::TxRefused);
                return;
            }
            if packet.offload.csum_start != 0 {
                packet.offload.csum_start += 4;
            }
            let len = packet.frame.len() as u64 - 4;
            self.counters.ports[usize::from(at.0)].vlan_transmitted.add(1, len);
            at = parent;
        }
        self.send_packet(at, packet);
    }

    /// Gathers the frame for its port, straight from the batch.
    #[inline(always)]
    pub(super) fn send(&mut self, port: PortId, packet: Taken<'_>) {
        match self.tx.get_mut(usize::from(port.0)) {
            Some(side) if side.has_room_after_next() => {
                if side.is_empty() {
                    self.dirty.push(port);
                }
                let Packet { frame, offload, .. } = packet.take();
                side.push(TxFrame { frame, offload });
            }
            _ => self.send_packet(port, packet.take()),
        }
    }

    /// Gathers the frame for its port.
    #[inline(never)]
    pub(super) fn send_packet(&mut self, port: PortId, packet: Packet) {
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
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        if !self.dirty.is_empty() {
            self.flush_dirty();
        }
    }

    #[inline(never)]
    fn flush_dirty(&mut self) {
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
    pub(super) fn relay_frames(&mut self, port: PortId, via: usize) {
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
    pub(super) fn send_relayed(&mut self) -> usize {
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

    /// Completions and kicks, when there is nothing else to do.
    pub(super) fn flush_queues(&mut self) {
        for i in 0..self.tx.len() {
            let Some(queue) = self.tx.get_mut(i).and_then(|side| side.queue.as_mut()) else { continue };
            if let Err(error) = queue.flush(&mut self.pool) {
                self.lost(PortId(i as u16), &error);
            }
        }
    }
}
