#![forbid(unsafe_code)]
//! dummynet: pipes, queues and schedulers (ipfw(8), TRAFFIC SHAPER), as an engine that knows neither rules nor threads.
//!
//! A [`Shaper`] holds packets of any kind `T` and gives them back when their time has come. It has no clock: each call is told the time,
//! and [`Shaper::next_event`] says when there is something to do. Events happen at their own time even when the caller comes late, so what
//! is measured in virtual time (a rate, a delay, who goes first) is exact, and a late poll delays packets but never changes a rate.
//!
//! ```text
//!  pipe N  ─► FIFO of pipe N ─┐ one instance for each combination   ┌─► delay line ─► out
//!  queue M ─► queues by mask ─┤ of the scheduler's mask, each with  ├─► delay line ─► out
//!  queue K ─► queues by mask ─┘ the bandwidth of its pipe           └─►    ...
//!             bound, AQM        WF2Q+, QFQ, RR, PRIO, FQ-*
//! ```
//!
//! As on FreeBSD, `pipe N` and `sched N` are two schedulers that do not share their bandwidth, `mask` of a pipe gives each flow a link of
//! its own, `mask` of a queue gives each flow a queue within the one link, and FIFO, FQ-CoDel and FQ-PIE ignore the bounds of the queues
//! (`queue N`) through which packets reach them. Time is counted in nanoseconds, not in ticks of 1 ms.
//!
//! # How a stage uses it
//! In `process`: take the packet out of the batch (`Context::hold`) and call [`Shaper::enqueue`]; [`Outcome::Passed`] is a packet that goes on
//! at once, an error is a packet that was not taken, with the reason. In `poll`: call [`Shaper::poll`] with room for at most a batch. The
//! [`Outlet`] that is handed in takes what is delivered and what is dropped later, and marks packets (ECN). The `tag` is the caller's:
//! where to go on.
//!
//! # Memory
//! All of it is set aside by [`Shaper::new`]: packets (a reserve of their own, so that no pipe starves reception), queues and instances.
//! Dynamic queues and instances go when they have been idle for [`Settings::expire`], or before that when their slot is needed; when
//! none is idle, packets of further flows are dropped and counted. No packet costs an allocation or a search over all queues.
//!
//! # One owner per pipe
//! A pipe is one worker's: [`owner`] says whose, and carries packets between workers.

mod admit;
mod aqm;
mod configure;
pub mod ecn;
mod events;
mod flow_set;
mod flows;
mod forward;
mod leaf;
pub mod mask;
pub mod owner;
mod packets;
mod pipe;
mod queue;
mod random;
mod rank;
mod sched;
mod status;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use configure::ConfigError;
pub use flow_set::default_queue;
pub use mask::{Addresses, FlowId};
pub use queue::Counters;
pub use status::{FlowStatus, PipeStatus, QueueStatus, SchedulerStatus};

use events::Events;
use ferrule_dataplane::clock::Nanos;
use flow_set::{FlowSet, Numbers, Places, Scheduler};
use packets::Packets;
use pipe::{Instances, Link};
use queue::Queues;
use random::Random;

/// What may be set while packets flow: `net.inet.ip.dummynet.*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `io_fast`: an idle pipe lets a millisecond's worth through at once (default no).
    pub io_fast: bool,
    /// `pipe_slot_limit`: largest bound of a queue in packets (default 100).
    pub slot_limit: u32,
    /// `pipe_byte_limit`: largest bound of a queue in bytes (default 1 MiB).
    pub byte_limit: u32,
    /// `expire`: after how long an idle dynamic queue goes (default 1 s); None is never (`expire=0`).
    pub expire: Option<Nanos>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { io_fast: false, slot_limit: 100, byte_limit: 1 << 20, expire: Some(1_000_000_000) }
    }
}

/// Memory of a shaper, set aside when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets held, in queues and on links together.
    pub packets: usize,
    /// Queues, dynamic ones and flows of FQ-CoDel and FQ-PIE included.
    pub queues: usize,
    /// Instances of schedulers.
    pub instances: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { packets: 16_384, queues: 16_384, instances: 1024 }
    }
}

/// Where a rule sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// `pipe N`
    Pipe(u32),
    /// `queue N`
    Queue(u32),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropCause {
    /// There is no such pipe or queue, or the queue's scheduler is not there.
    NoTarget,
    /// `plr`
    RandomLoss,
    /// The queue was full.
    QueueFull,
    /// RED, GRED, CoDel, PIE.
    Early,
    /// FQ-CoDel, FQ-PIE: all flows together had too many; the longest lost one.
    FlowLimit,
    /// The profile's loss level.
    ProfileLoss,
    /// The reserve of packets was used up.
    Reserve,
    /// All queues or instances were busy.
    TooManyFlows,
    /// The pipe, queue or scheduler was deleted, or changed its kind.
    Deleted,
}

impl DropCause {
    /// All of them.
    pub const ALL: [DropCause; 9] = [
        DropCause::NoTarget,
        DropCause::RandomLoss,
        DropCause::QueueFull,
        DropCause::Early,
        DropCause::FlowLimit,
        DropCause::ProfileLoss,
        DropCause::Reserve,
        DropCause::TooManyFlows,
        DropCause::Deleted,
    ];
}

/// What became of a packet that was taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It is in a queue or on a link.
    Held,
    /// It is through already.
    Passed(T),
}

/// What a shaper asks of its caller, and gives back.
pub trait Outlet<T> {
    /// Marks a packet as having met congestion (RFC 3168); false when its sender cannot read marks.
    fn mark(&mut self, packet: &mut T) -> bool {
        let _ = packet;
        false
    }

    /// A packet is through.
    fn deliver(&mut self, packet: T, tag: u64);

    /// A packet that was held is dropped.
    fn dropped(&mut self, packet: T, tag: u64, cause: DropCause);
}

/// All that happened since the start. offered = passed + all drops + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets handed in (`io_pkt`).
    pub offered: u64,
    /// Packets that came through, at once or later.
    pub passed: u64,
    /// Those of them that came through at once (`io_pkt_fast`).
    pub fast: u64,
    /// Packets dropped (`io_pkt_drop` together), by [`DropCause`].
    pub drops: [u64; DropCause::ALL.len()],
}

impl Totals {
    /// All drops.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }
}

/// The pipes, queues and schedulers of one worker, and the packets in them.
#[derive(Debug)]
pub struct Shaper<T> {
    settings: Settings,
    limits: Limits,
    packets: Packets<T>,
    queues: Queues,
    instances: Instances,
    schedulers: Places<Scheduler>,
    flow_sets: Places<FlowSet>,
    /// As configured, also for schedulers to come.
    links: BTreeMap<u32, Link>,
    pipe_numbers: Numbers,
    scheduler_numbers: Numbers,
    queue_numbers: Numbers,
    /// Instances whose link becomes free.
    serve: Events,
    /// Instances whose first packet in the delay line is through.
    deliver: Events,
    random: Random,
    seed: u64,
    totals: Totals,
}

impl<T> Shaper<T> {
    /// An empty one. `seed` steers random losses, and keeps senders from choosing whom they share a hash bucket with: secret in
    /// production, fixed in tests.
    pub fn new(limits: Limits, settings: Settings, seed: u64) -> Shaper<T> {
        let mut random = Random::new(seed);
        let seed = random.next();
        Shaper {
            settings,
            limits,
            packets: Packets::new(limits.packets),
            queues: Queues::new(limits.queues, random.next()),
            instances: Instances::new(limits.instances, random.next()),
            schedulers: Places::new(),
            flow_sets: Places::new(),
            links: BTreeMap::new(),
            pipe_numbers: Numbers::default(),
            scheduler_numbers: Numbers::default(),
            queue_numbers: Numbers::default(),
            serve: Events::new(limits.instances),
            deliver: Events::new(limits.instances),
            random,
            seed,
            totals: Totals::default(),
        }
    }

    /// The settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes settings; limits of queues count for queues configured from now on, as on FreeBSD.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// When something is to be done next; None when nothing is held that time would move.
    pub fn next_event(&self) -> Option<Nanos> {
        [self.serve.first(), self.deliver.first()].into_iter().flatten().map(|(time, _)| time).min()
    }

    /// Packets held.
    pub fn held(&self) -> usize {
        self.packets.held()
    }

    /// Queues there are (`queue_count`).
    pub fn queue_count(&self) -> usize {
        self.queues.count()
    }

    /// Instances there are (`si_count`).
    pub fn instance_count(&self) -> usize {
        self.instances.count()
    }

    /// All that happened since the start.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }
}
