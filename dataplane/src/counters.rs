//! Counters of one worker: written by it alone with relaxed stores, read by anyone.
//!
//! The identity of promise 2 holds over the sum of all workers, once no packet is on its way:
//! received + from host + generated = transmitted + to host + dropped + consumed + held.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::verdict::{Consumed, DropReason, Generated, PuntClass};

/// A number with one writer.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only the owning thread may call it (two writers would lose counts, nothing worse).
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets; for gauges.
    #[inline(always)]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Packets and bytes.
#[derive(Debug, Default)]
pub struct Flow {
    /// Packets.
    pub packets: Counter,
    /// Bytes of the frames without FCS.
    pub bytes: Counter,
}

impl Flow {
    /// Counts a burst.
    #[inline(always)]
    pub fn add(&self, packets: u64, bytes: u64) {
        self.packets.add(packets);
        self.bytes.add(bytes);
    }
}

/// What one worker counts for one port.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct PortCounters {
    /// Frames taken from the device.
    pub received: Flow,
    /// Frames taken from the port's host interface.
    pub from_host: Flow,
    /// Frames given to the device.
    pub transmitted: Flow,
    /// Frames given to the host.
    pub to_host: Flow,
    /// VLAN ports only: packets that came in with the port's tag (their frames are counted at the physical port).
    pub vlan_received: Flow,
    /// VLAN ports only: packets that left with the port's tag.
    pub vlan_transmitted: Flow,
    /// Frames copied at this edge in user space (AF_PACKET, TAP): the copies that promise 1 asks to show.
    pub copied: Counter,
    /// Device receive losses before us (ring full, XDP_STATISTICS rx_dropped, tp_drops): outside the identity.
    pub device_rx_lost: Counter,
    /// Transmit losses after us that the device told of: outside the identity.
    pub device_tx_lost: Counter,
}

/// Packets and TSC cycles of one node of the path (VPP calls it `show runtime`).
#[derive(Debug, Default)]
pub struct NodeCounters {
    /// Packets that the stamped calls handled.
    pub packets: Counter,
    /// TSC cycles of the stamped calls.
    pub cycles: Counter,
    /// Stamped calls.
    pub calls: Counter,
}

/// The nodes of the path in the packet's order; filter stages follow under their own names.
pub const NODES: [&str; 6] = ["rx", "parse", "forward", "tx", "host", "other"];

/// Number of [`NODES`].
pub const NODE_COUNT: usize = NODES.len();

/// Everything one worker counts.
#[derive(Debug)]
#[repr(align(64))]
pub struct WorkerCounters {
    /// By port.
    pub ports: Box<[PortCounters]>,
    /// By [`DropReason`].
    pub dropped: [Counter; DropReason::COUNT],
    /// By [`Generated`].
    pub generated: [Counter; Generated::COUNT],
    /// By [`Consumed`].
    pub consumed: [Counter; Consumed::COUNT],
    /// Punted, by class (of those in `to_host`).
    pub punted: [Counter; PuntClass::COUNT],
    /// Gauge: packets that stages and neighbour queues hold now.
    pub held: Counter,
    /// Packets this thread put on a ring to another thread of ours (host I/O, other workers).
    pub ring_in: Counter,
    /// Packets this thread took from such a ring; the sum of all `ring_in` minus that of all `ring_out` is on its way.
    pub ring_out: Counter,
    /// Handed to another worker (not part of the identity: the other one goes on with it).
    pub handed_over: Counter,
    /// Taken over from other workers.
    pub taken_over: Counter,
    /// ICMP errors not sent because of the rate limit.
    pub icmp_suppressed: Counter,
    /// By node of [`NODES`].
    pub nodes: [NodeCounters; NODE_COUNT],
    /// By filter stage, in line-up order, In and Out together.
    pub stages: Box<[NodeCounters]>,
    /// Loops that found something.
    pub busy_loops: Counter,
    /// Loops that found nothing.
    pub idle_loops: Counter,
    /// TSC cycles in busy loops.
    pub busy_cycles: Counter,
    /// TSC cycles in all loops and sleeps.
    pub total_cycles: Counter,
    /// Times it slept.
    pub sleeps: Counter,
    /// Beats of the watchdog: rises with every loop.
    pub heartbeat: Counter,
}

impl WorkerCounters {
    /// All zero, for so many ports and filter stages.
    pub fn new(ports: usize, stages: usize) -> WorkerCounters {
        WorkerCounters {
            ports: (0..ports).map(|_| PortCounters::default()).collect(),
            dropped: std::array::from_fn(|_| Counter::default()),
            generated: std::array::from_fn(|_| Counter::default()),
            consumed: std::array::from_fn(|_| Counter::default()),
            punted: std::array::from_fn(|_| Counter::default()),
            held: Counter::default(),
            ring_in: Counter::default(),
            ring_out: Counter::default(),
            handed_over: Counter::default(),
            taken_over: Counter::default(),
            icmp_suppressed: Counter::default(),
            nodes: std::array::from_fn(|_| NodeCounters::default()),
            stages: (0..stages).map(|_| NodeCounters::default()).collect(),
            busy_loops: Counter::default(),
            idle_loops: Counter::default(),
            busy_cycles: Counter::default(),
            total_cycles: Counter::default(),
            sleeps: Counter::default(),
            heartbeat: Counter::default(),
        }
    }

    /// Counts a drop.
    #[inline]
    pub fn count_drop(&self, reason: DropReason) {
        self.dropped[reason as usize].add(1);
    }
}

/// The sums that promise 2 relates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// From devices.
    pub received: u64,
    /// From the host's stack.
    pub from_host: u64,
    /// Made by Ferrule.
    pub generated: u64,
    /// Given to devices.
    pub transmitted: u64,
    /// Given to the host's stack.
    pub to_host: u64,
    /// Dropped, all reasons.
    pub dropped: u64,
    /// Turned into something else.
    pub consumed: u64,
    /// Kept by stages, queues and rings.
    pub held: u64,
}

impl Balance {
    /// Sums over workers.
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a WorkerCounters>) -> Balance {
        let (mut b, mut held) = (Balance::default(), 0i128);
        for w in workers {
            for p in &w.ports {
                b.received += p.received.packets.get();
                b.from_host += p.from_host.packets.get();
                b.transmitted += p.transmitted.packets.get();
                b.to_host += p.to_host.packets.get();
            }
            b.dropped += w.dropped.iter().map(Counter::get).sum::<u64>();
            b.generated += w.generated.iter().map(Counter::get).sum::<u64>();
            b.consumed += w.consumed.iter().map(Counter::get).sum::<u64>();
            held += i128::from(w.held.get()) + i128::from(w.ring_in.get()) - i128::from(w.ring_out.get());
        }
        // Read while threads run, a packet may show as taken before it shows as put: never below zero.
        b.held = held.max(0) as u64;
        b
    }

    /// In minus out; 0 when every packet is accounted for.
    pub fn difference(&self) -> i128 {
        let sum = |v: [u64; 3]| v.iter().map(|n| i128::from(*n)).sum::<i128>();
        sum([self.received, self.from_host, self.generated])
            - sum([self.transmitted, self.to_host, self.dropped])
            - sum([self.consumed, self.held, 0])
    }
}
