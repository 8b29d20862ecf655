//! The host's stack of a world: takes what is punted and sends what it is told to, as the host I/O thread would.

#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{World, bytes_of};
use crate::counters::WorkerCounters;
use crate::host::HostEnd;
use crate::packet::{Flags, Offload, Packet, PortId, hash, parse};
use crate::verdict::DropReason;

/// The host I/O thread's part.
pub(super) struct Host {
    ends: Vec<HostEnd>,
    pub(super) counters: Arc<WorkerCounters>,
    /// What came up and was not asked for yet, by port.
    waiting: Vec<Vec<Vec<u8>>>,
}

impl Host {
    pub(super) fn new(ends: Vec<HostEnd>, counters: WorkerCounters, ports: usize) -> Host {
        Host { ends, counters: Arc::new(counters), waiting: vec![Vec::new(); ports] }
    }
}

impl World {
    /// Takes the frames that came up to the host interface of a port, in order by worker. They count as given to the host now.
    pub fn collect_host(&mut self, port: PortId) -> Vec<Vec<u8>> {
        self.empty_host_rings();
        let waiting = self.host.as_mut().and_then(|host| host.waiting.get_mut(usize::from(port.0)));
        waiting.map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn empty_host_rings(&mut self) {
        let Some(host) = self.host.as_mut() else { return };
        for end in &mut host.ends {
            while let Ok(packet) = end.to_host.pop() {
                host.counters.ring_out.add(1);
                let port = usize::from(packet.ingress.0);
                match (host.counters.ports.get(port), host.waiting.get_mut(port)) {
                    (Some(counters), Some(waiting)) => {
                        counters.to_host.add(1, packet.frame.len() as u64);
                        waiting.push(bytes_of(&self.arena, &packet.frame));
                    }
                    _ => host.counters.count_drop(DropReason::HostRefused),
                }
                self.pool.free(packet.frame);
            }
        }
    }

    /// Sends a frame as the host's stack does, from the host interface of a port; it goes to the worker that owns its flow.
    /// False where there is no host path, no buffer or no room in the ring (which counts as a drop).
    pub fn inject_host(&mut self, port: PortId, frame: &[u8]) -> bool {
        let Some(host) = self.host.as_mut() else { return false };
        let Some(frame) = self.pool.frame_from(frame) else { return false };
        host.counters.ports[usize::from(port.0)].from_host.add(1, frame.len() as u64);
        let mut packet = Packet::new(frame, Offload::NONE, port);
        packet.egress = port;
        packet.flags.set(Flags::FROM_HOST);
        parse::parse_from_host(&mut packet, &self.shared.ports);
        let workers = host.ends.len();
        let owner = hash::owner(hash::of(self.shared.seed, &mut packet), workers);
        match host.ends[owner].from_host.push(packet) {
            Ok(()) => {
                host.counters.ring_in.add(1);
                true
            }
            Err(rtrb::PushError::Full(packet)) => {
                host.counters.count_drop(DropReason::HostRingFull);
                self.pool.free(packet.frame);
                false
            }
        }
    }
}
