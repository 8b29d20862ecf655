//! A gateway in memory: the shortest way to run Ferrule's packet path inside another program, a test or a benchmark.
//!
//! A [`World`] puts the parts together as `ferrule run` does (ports, routing table, packet memory, workers, host path) over memory ports,
//! and is itself the rest of the world: it sends into the ports, takes what comes out, and moves the clock. Nothing runs by itself:
//! [`World::step`] gives each worker one turn, on the caller's thread, so that everything is repeatable.
//!
//! ```
//! use ferrule_dataplane::fib::{MacAddress, PortId, RouteKind};
//! use ferrule_dataplane::world::{PortPlan, World};
//!
//! let (lan, wan) = (PortId(0), PortId(1));
//! let mut world = World::builder()
//!     .port(PortPlan::new("lan").address("10.0.0.1/24".parse()?))
//!     .port(PortPlan::new("wan").address("192.0.2.1/24".parse()?))
//!     .build()?;
//! world.table.neighbor_set(wan, "192.0.2.9".parse()?, Some(MacAddress([2, 0, 0, 0, 9, 9])))?;
//! world.table.route_replace("0.0.0.0/0".parse::<ipnetwork::IpNetwork>()?.into(), 0, RouteKind::via(wan, "192.0.2.9".parse()?))?;
//!
//! let mut frame = vec![0; 60];
//! frame[..6].copy_from_slice(&world.mac(lan).0);
//! frame[6..12].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
//! frame[12..].copy_from_slice(&[
//!     8, 0, 0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0x34, 0xb2, 10, 0, 0, 7, 203, 0, 113, 5, 0, 7, 0, 9, 0, 26, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
//!     0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
//! ]);
//! assert!(world.inject(lan, &frame));
//! world.settle();
//! let sent = world.collect(wan);
//! assert_eq!((sent.len(), sent[0][22]), (1, 63), "one frame left, its TTL is one less");
//! assert_eq!(world.balance().difference(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod build;
mod host;
mod totals;

use std::sync::Arc;

pub use build::{Builder, PortPlan, WorldError};
pub use totals::{Closed, Totals};

use crate::arena::{Arena, Pool};
use crate::clock::{Nanos, VirtualClock};
use crate::counters::WorkerCounters;
use crate::fib::RoutingTable;
use crate::neighbor::NextHopKey;
use crate::packet::{Offload, PortId};
use crate::port::memory::{self, Peer};
use crate::port::{QueuePair, TxFrame};
use crate::ports::MacAddress;
use crate::stage::Shared;
use crate::worker::{Command, Event, Mailbox, Worker};

/// One worker with the other ends of its queues, to be driven on a thread of its own; see [`World::lanes`].
pub struct Lane<'a> {
    /// The worker.
    pub worker: &'a mut Worker,
    /// Other ends of its memory queues, by port; None for VLAN ports.
    pub peers: Vec<Option<&'a mut Peer>>,
}

/// Turns after which [`World::settle`] gives up: packets that go round for ever are a fault of a stage.
const SETTLE_MAX: usize = 100_000;

/// A gateway in memory, and the world around it.
pub struct World {
    /// Routes, neighbours and port states; a change is in force at once.
    pub table: RoutingTable,
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// The workers' counters, which stay here while the workers run elsewhere.
    counters: Vec<Arc<WorkerCounters>>,
    mailboxes: Vec<Arc<Mailbox>>,
    requests: Vec<rtrb::Consumer<NextHopKey>>,
    /// Other ends of the memory ports' queues: by port, then by worker; None for VLAN ports.
    peers: Vec<Vec<Option<Peer>>>,
    host: Option<host::Host>,
    /// Buffers of the world outside.
    pool: Pool,
    arena: Arc<Arena>,
    time: Option<VirtualClock>,
    ring: usize,
    closed: bool,
}

impl World {
    /// A world to be described port by port.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Gives every worker one turn, in their order. Returns how many packets they found.
    pub fn step(&mut self) -> usize {
        self.pool.balance();
        self.workers.iter_mut().map(Worker::turn).sum()
    }

    /// Steps until a round finds nothing.
    ///
    /// # Panics
    /// When that does not happen: packets go round in circles.
    pub fn settle(&mut self) {
        for _ in 0..SETTLE_MAX {
            if self.step() == 0 {
                return;
            }
        }
        panic!("the world did not settle: packets go round between stages, ports or workers");
    }

    /// Time now; virtual unless [`Builder::real_time`] was asked for.
    pub fn now(&self) -> Nanos {
        self.time.as_ref().map_or_else(crate::clock::monotonic, VirtualClock::now)
    }

    /// Moves the virtual clock on and gives every worker a turn at the new time.
    ///
    /// # Panics
    /// In a world that runs in real time.
    pub fn advance(&mut self, by: Nanos) {
        self.time.as_ref().expect("real time cannot be moved").advance(by);
        self.settle();
    }

    /// The virtual clock, for other drivers.
    pub fn clock(&self) -> Option<&VirtualClock> {
        self.time.as_ref()
    }

    /// Sends a frame into a port, on the queue of worker 0. False where its ring is full or the world outside has no buffer left.
    pub fn inject(&mut self, port: PortId, frame: &[u8]) -> bool {
        self.inject_at(port, 0, frame, Offload::NONE)
    }

    /// As [`World::inject`], on the queue of a given worker and with what the sender left to the device.
    pub fn inject_at(&mut self, port: PortId, worker: usize, frame: &[u8], offload: Offload) -> bool {
        let Some(frame) = self.pool.frame_from(frame) else { return false };
        let Some(peer) = peer(&mut self.peers, port, worker) else {
            self.pool.free(frame);
            return false;
        };
        match peer.to_port.push(TxFrame { frame, offload }) {
            Ok(()) => true,
            Err(rtrb::PushError::Full(t)) => {
                self.pool.free(t.frame);
                false
            }
        }
    }

    /// Takes everything that left a port, worker by worker in order.
    pub fn collect(&mut self, port: PortId) -> Vec<Vec<u8>> {
        (0..self.workers()).flat_map(|worker| self.collect_at(port, worker)).map(|(bytes, _)| bytes).collect()
    }

    /// Takes what left a port on the queue of one worker, with what was left to the device.
    pub fn collect_at(&mut self, port: PortId, worker: usize) -> Vec<(Vec<u8>, Offload)> {
        let mut frames = Vec::new();
        let Some(peer) = peer(&mut self.peers, port, worker) else { return frames };
        while let Ok(TxFrame { frame, offload }) = peer.from_port.pop() {
            frames.push((bytes_of(&self.arena, &frame), offload));
            self.pool.free(frame);
        }
        frames
    }

    /// The other end of a port's queue, to send and take frames without copying; their buffers come from [`World::pool`].
    pub fn peer(&mut self, port: PortId, worker: usize) -> Option<&mut Peer> {
        peer(&mut self.peers, port, worker)
    }

    /// Buffers of the world outside, and the other end of a port's queue.
    pub fn pool_and_peer(&mut self, port: PortId, worker: usize) -> Option<(&mut Pool, &mut Peer)> {
        Some((&mut self.pool, peer(&mut self.peers, port, worker)?))
    }

    /// Buffers of the world outside.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// A worker.
    ///
    /// # Panics
    /// When there is no worker of this number.
    pub fn worker(&mut self, worker: usize) -> &mut Worker {
        &mut self.workers[worker]
    }

    /// All workers, for drivers such as [`crate::port::pcap::replay`].
    pub fn workers_mut(&mut self) -> &mut [Worker] {
        &mut self.workers
    }

    /// Each worker with the other ends of its queues, for threads that drive them at the same time.
    pub fn lanes(&mut self) -> Vec<Lane<'_>> {
        let mut lanes: Vec<Lane<'_>> =
            self.workers.iter_mut().map(|worker| Lane { worker, peers: Vec::new() }).collect();
        for port in &mut self.peers {
            for (lane, peer) in lanes.iter_mut().zip(port) {
                lane.peers.push(peer.as_mut());
            }
        }
        lanes
    }

    /// Takes the workers out, to run each on a thread of its own with [`Worker::serve`]; [`World::step`] then moves nobody. They are
    /// stopped through [`World::mailbox`] and brought back with [`World::return_workers`].
    pub fn take_workers(&mut self) -> Vec<Worker> {
        std::mem::take(&mut self.workers)
    }

    /// Brings the workers back, in their order, once they have stopped.
    pub fn return_workers(&mut self, workers: Vec<Worker>) {
        self.workers = workers;
    }

    /// A worker's mailbox, with the bell that rouses it.
    ///
    /// # Panics
    /// When there is no worker of this number.
    pub fn mailbox(&self, worker: usize) -> Arc<Mailbox> {
        self.mailboxes[worker].clone()
    }

    /// How many workers there are, here or on threads of their own.
    pub fn workers(&self) -> usize {
        self.counters.len()
    }

    /// What the workers share: ports, routes as they see them, the seed of the flow hash.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// MAC address of a port; zero where there is no such port.
    pub fn mac(&self, port: PortId) -> MacAddress {
        self.shared.ports.get(port).map_or(MacAddress::default(), |p| p.mac())
    }

    /// Carries a command out on one worker, between two turns.
    pub fn command(&mut self, worker: usize, command: Command) {
        self.workers[worker].obey(command);
    }

    /// Gives a port another queue pair on one worker (of any driver). What it had is detached first, with the event that tells of it; what
    /// had left by its memory queue can still be collected.
    pub fn attach(&mut self, worker: usize, pair: QueuePair) {
        self.command(worker, Command::Detach(pair.port));
        self.command(worker, Command::Attach(pair));
    }

    /// Gives a port new memory queues on every worker, as when its device comes back. Frames that had left and were not collected
    /// are thrown away.
    pub fn attach_memory(&mut self, port: PortId) {
        for worker in 0..self.workers.len() {
            let _ = self.collect_at(port, worker);
            let (pair, peer) = memory::queue(port, self.ring);
            self.attach(worker, pair);
            if let Some(place) = self.peers.get_mut(usize::from(port.0)).and_then(|p| p.get_mut(worker)) {
                *place = Some(peer);
            }
        }
    }

    /// Takes a port's queues away from every worker.
    pub fn detach(&mut self, port: PortId) {
        for worker in 0..self.workers.len() {
            self.command(worker, Command::Detach(port));
        }
    }

    /// The next event of any worker.
    pub fn event(&mut self) -> Option<(usize, Event)> {
        self.mailboxes.iter().enumerate().find_map(|(worker, mailbox)| Some((worker, mailbox.event()?)))
    }

    /// Next hops that workers asked for since the last call.
    pub fn requests(&mut self) -> Vec<NextHopKey> {
        self.requests.iter_mut().flat_map(|ring| std::iter::from_fn(|| ring.pop().ok())).collect()
    }

    /// Does what a control thread does in standalone mode: notes the neighbours that were learned. Returns the other events.
    ///
    /// # Errors
    /// When the routing table is full.
    pub fn learn(&mut self) -> Result<Vec<(usize, Event)>, crate::fib::RouteError> {
        let mut others = Vec::new();
        while let Some((worker, event)) = self.event() {
            match event {
                Event::Learned(port, address, mac) => self.table.neighbor_set(port, address, Some(mac))?,
                other => others.push((worker, other)),
            }
        }
        Ok(others)
    }
}

fn peer(peers: &mut [Vec<Option<Peer>>], port: PortId, worker: usize) -> Option<&mut Peer> {
    peers.get_mut(usize::from(port.0))?.get_mut(worker)?.as_mut()
}

/// All bytes of a frame.
fn bytes_of(arena: &Arena, frame: &crate::arena::Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frame.len());
    arena.segments(frame).for_each(|segment| bytes.extend_from_slice(segment));
    bytes
}
