//! A worker: one thread, pinned to a core, that owns one queue pair of every port and runs each batch to completion.
//!
//! [`Worker::turn`] is the packet's way in one place: receive, parse, hand over what another worker owns, then In hook, route, Out hook,
//! rewrite, transmit. Everything that ends a packet is here or in [`tx`], so that every end is counted.

#![forbid(unsafe_code)]

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

mod egress;
mod handover;
mod idle;
pub mod mailbox;
mod neighbors;
mod queues;
mod stages;
mod stamp;
mod turn;
pub mod tx;

use std::sync::Arc;

use crate::arena::Pool;
use crate::batch::{BATCH_MAX, Batch};
use crate::clock::{Clock, ClockSource};
use crate::counters::WorkerCounters;
use crate::forward::fast::LookUps;
use crate::host::HostLink;
use crate::neighbor::{self, NeighborQueues, NextHopKey};
use crate::packet::{Packet, PortId};
use crate::port::{QueueStatistics, RxQueue, TxFrame};
use crate::quiesce;
use crate::rate::TokenBucket;
use crate::stage::{Foresight, GENERATED_MAX, Shared, Stage};
use crate::wake::Waker;

pub use idle::Poll;
pub use mailbox::{Command, Event, Mailbox, WaitingReport};
pub use turn::Entry;

/// How packets go from receiving to processing (net.isr.direct).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dispatch {
    /// Run to completion on the worker that received it.
    #[default]
    Direct,
    /// Through a queue to the next worker (or, with one worker, to its own next turn), as netisr does when not direct.
    Queued,
}

/// Settings of a worker, fixed for its life.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its number; its place in the rings.
    pub id: usize,
    /// Most packets of a batch, 1 to [`BATCH_MAX`].
    pub batch: usize,
    /// Direct or queued.
    pub dispatch: Dispatch,
    /// False: every packet takes the full way alone (net.inet.ip.fastforwarding = 0).
    pub fastforward: bool,
    /// What to do when there is nothing to do.
    pub poll: Poll,
    /// Packets kept for an unresolved neighbour.
    pub neighbor_queue: usize,
    /// Unresolved neighbours at once.
    pub neighbor_limit: usize,
    /// ICMP errors per second and burst.
    pub icmp_rate: (u32, u32),
    /// Whether DHCP to our MAC goes to the host before the In hook.
    pub dhcp_bypass: bool,
    /// Whether a flow must be handled by the worker its hash names.
    pub flow_owner: bool,
    /// What tells the time.
    pub clock: ClockSource,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            id: 0,
            batch: BATCH_MAX,
            dispatch: Dispatch::Direct,
            fastforward: true,
            poll: Poll::Busy,
            neighbor_queue: 4,
            neighbor_limit: 1024,
            icmp_rate: (1000, 100),
            dhcp_bypass: true,
            flow_owner: false,
            clock: ClockSource::Tsc,
        }
    }
}

/// A receive queue and the port it belongs to.
struct RxSide {
    port: PortId,
    queue: Box<dyn RxQueue>,
    /// The queue's totals when they were last booked.
    booked: QueueStatistics,
}

/// A frame for a port of which the sender has no transmit queue.
pub struct Relayed {
    port: PortId,
    frame: TxFrame,
}

/// The rings between workers, as one of them sees them.
#[derive(Default)]
pub struct Rings {
    /// Frames for ports of which this worker has no transmit queue, to each worker.
    pub relay_to: Vec<rtrb::Producer<Relayed>>,
    /// Frames that others have no transmit queue for, from each worker.
    pub relay_from: Vec<rtrb::Consumer<Relayed>>,
    /// To each worker, by number (to itself too, for queued dispatch).
    pub to: Vec<rtrb::Producer<Packet>>,
    /// From each worker.
    pub from: Vec<rtrb::Consumer<Packet>>,
    /// The bells of all.
    pub bells: Vec<Arc<Waker>>,
}

impl Rings {
    /// Rings of `capacity` packets between `n` workers.
    pub fn mesh(n: usize, capacity: usize, bells: &[Arc<Waker>]) -> Vec<Rings> {
        let mut all: Vec<Rings> = (0..n).map(|_| Rings { bells: bells.to_vec(), ..Rings::default() }).collect();
        for from in 0..n {
            for to in 0..n {
                let (producer, consumer) = rtrb::RingBuffer::new(capacity);
                all[from].to.push(producer);
                all[to].from.push(consumer);
                let (producer, consumer) = rtrb::RingBuffer::new(capacity);
                all[from].relay_to.push(producer);
                all[to].relay_from.push(consumer);
            }
        }
        all
    }
}

/// Memory for one look at the waiting packets.
struct Waits {
    ready: Vec<Packet>,
    failed: Vec<Packet>,
    asks: Vec<NextHopKey>,
}

/// Without memory: what `std::mem::take` leaves behind for a moment.
impl Default for Waits {
    fn default() -> Self {
        Waits { ready: Vec::new(), failed: Vec::new(), asks: Vec::new() }
    }
}

impl Waits {
    fn new() -> Waits {
        // The last neighbour of a look may go past the bound with all of its packets.
        let most = neighbor::POLL_MAX + neighbor::QUEUE_MAX;
        Waits { ready: Vec::with_capacity(most), failed: Vec::with_capacity(most), asks: Vec::with_capacity(most) }
    }
}

/// One worker and all that it owns.
pub struct Worker {
    options: Options,
    shared: Arc<Shared>,
    /// Another reference to `shared`, for loops over a batch; None while one of them has it.
    lent: Option<Arc<Shared>>,
    /// Memory for looking up the routes of a batch.
    look_ups: LookUps,
    counters: Arc<WorkerCounters>,
    pool: Pool,
    clock: Clock,
    quiesce: quiesce::Worker,
    rx: Vec<RxSide>,
    tx: Vec<tx::TxSide>,
    /// Transmit sides with frames in them.
    dirty: Vec<PortId>,
    stages: Vec<Box<dyn Stage>>,
    /// What the stages foresee of the batch.
    foresight: Foresight,
    batch: Batch,
    /// A second batch, for packets that join the path at the Out hook.
    out: Batch,
    generated: Vec<Packet>,
    generating: Vec<Packet>,
    fragments: Vec<Packet>,
    host: Option<HostLink>,
    /// Whether this turn gave the host I/O thread something.
    punted: bool,
    rings: Rings,
    neighbors: NeighborQueues,
    waits: Waits,
    /// Packets in `neighbors` that the gauge shows.
    waiting: u64,
    /// Next hops to be resolved, for the control thread.
    requests: rtrb::Producer<NextHopKey>,
    /// Rouses the control thread.
    control: Arc<Waker>,
    icmp_limit: TokenBucket,
    mailbox: Arc<Mailbox>,
    now: u64,
    small_turns: u32,
    /// When the devices' own counters are read next.
    statistics_due: u64,
}

/// What a worker is made of.
pub struct Parts {
    /// Settings.
    pub options: Options,
    /// Shared tables.
    pub shared: Arc<Shared>,
    /// Its counters, made for as many ports and stages.
    pub counters: Arc<WorkerCounters>,
    /// Its buffers.
    pub pool: Pool,
    /// Its place in the domain of the shared tables.
    pub quiesce: quiesce::Worker,
    /// Filter stages in the order of the In hook; the Out hook runs them backwards.
    pub stages: Vec<Box<dyn Stage>>,
    /// The host path; None in standalone mode.
    pub host: Option<HostLink>,
    /// Rings to the other workers.
    pub rings: Rings,
    /// Where requests for neighbours go.
    pub requests: rtrb::Producer<NextHopKey>,
    /// Rouses the control thread that reads the requests and the mailbox's events.
    pub control: Arc<Waker>,
    /// Commands and events.
    pub mailbox: Arc<Mailbox>,
}

impl Worker {
    /// Puts a worker together; queues come by [`Command::Attach`].
    pub fn new(parts: Parts) -> Worker {
        let ports = parts.shared.ports.len();
        let (rate, burst) = parts.options.icmp_rate;
        Worker {
            neighbors: NeighborQueues::new(parts.options.neighbor_queue, parts.options.neighbor_limit),
            icmp_limit: TokenBucket::new(rate, burst),
            clock: Clock::of(parts.options.clock.clone()),
            waits: Waits::new(),
            waiting: 0,
            options: parts.options,
            lent: Some(parts.shared.clone()),
            look_ups: LookUps::default(),
            shared: parts.shared,
            counters: parts.counters,
            pool: parts.pool,
            quiesce: parts.quiesce,
            rx: Vec::with_capacity(ports),
            tx: (0..ports).map(|i| tx::TxSide::new(PortId(i as u16))).collect(),
            dirty: Vec::with_capacity(ports),
            stages: parts.stages,
            foresight: Foresight::new(),
            batch: Batch::new(),
            out: Batch::new(),
            generated: Vec::with_capacity(GENERATED_MAX),
            generating: Vec::with_capacity(GENERATED_MAX),
            fragments: Vec::with_capacity(GENERATED_MAX),
            host: parts.host,
            punted: false,
            rings: parts.rings,
            requests: parts.requests,
            control: parts.control,
            mailbox: parts.mailbox,
            now: 0,
            small_turns: 0,
            statistics_due: 0,
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<WorkerCounters> {
        &self.counters
    }

    /// Whether it keeps packets that time alone will move: for a driver of virtual time, which must not stop yet.
    pub fn holds(&self) -> bool {
        self.counters.held.get() != 0
    }

    /// Free buffers, for tests and gauges.
    pub fn buffers(&self) -> usize {
        self.pool.available()
    }
}
