//! Commands to a worker and events from it: rare, so a lock-free queue that the worker looks at once per turn.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use crate::neighbor::NextHopKey;
use crate::packet::PortId;
use crate::port::QueuePair;
use crate::ports::MacAddress;
use crate::stage::Stage;
use crate::wake::Waker;

/// What a worker is asked to do between two turns.
pub enum Command {
    /// Use this queue pair of a port from now on. A worker may have several receive queues of one port; the first pair's transmit queue is
    /// the one it sends on.
    Attach(QueuePair),
    /// Send frames of the port through that worker, which has a transmit queue of it, as this one has none.
    Relay(PortId, usize),
    /// Give the port's queue pair up.
    Detach(PortId),
    /// Use these filter stages from now on.
    Stages(Vec<Box<dyn Stage>>),
    /// Take nothing more from devices, and go on with what is in the rings; told by [`Event::Quiet`].
    Quiet,
    /// The kernel gave up on a neighbour: what waits for it is answered at once.
    NeighborFailed(NextHopKey),
    /// Say how many packets wait for which neighbours.
    Waiting(Arc<WaitingReport>),
    /// Finish: with true the transmit rings are drained first (bounded), and held packets are dropped and counted.
    Stop,
}

/// What a worker tells.
#[derive(Debug)]
pub enum Event {
    /// A port's device failed; its queues are closed.
    PortLost(PortId, String),
    /// A port's queues were closed as asked.
    Detached(PortId),
    /// Standalone mode: a neighbour told its MAC address.
    Learned(PortId, IpAddr, MacAddress),
    /// It takes nothing more from devices, as asked.
    Quiet,
    /// The thread ends.
    Stopped,
}

/// Where workers say how many packets wait for which neighbours ([`Command::Waiting`]); made by who asks.
#[derive(Debug)]
pub struct WaitingReport {
    rows: ArrayQueue<(NextHopKey, u32)>,
    answered: AtomicUsize,
}

impl WaitingReport {
    /// For up to `rows` neighbours; more are left out.
    pub fn new(rows: usize) -> WaitingReport {
        WaitingReport { rows: ArrayQueue::new(rows.max(1)), answered: AtomicUsize::new(0) }
    }

    /// Workers that have said all.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Acquire)
    }

    /// The next row; a neighbour may be in the rows of several workers.
    pub fn next(&self) -> Option<(NextHopKey, u32)> {
        self.rows.pop()
    }

    /// For the worker: its part.
    pub(super) fn answer(&self, rows: impl Iterator<Item = (NextHopKey, u32)>) {
        for row in rows {
            if self.rows.push(row).is_err() {
                break;
            }
        }
        self.answered.fetch_add(1, Ordering::Release);
    }
}

/// Both directions, and the bell.
pub struct Mailbox {
    commands: ArrayQueue<Command>,
    events: ArrayQueue<Event>,
    /// Apart from the rest: a flood of ARP must not push out the news that a port is lost.
    learned: ArrayQueue<Event>,
    /// Apart likewise: a scan that ends must not keep commands out.
    failed: ArrayQueue<NextHopKey>,
    waiting: AtomicBool,
    /// Rouses the worker.
    pub bell: Arc<Waker>,
}

impl Mailbox {
    /// An empty one.
    pub fn new(bell: Arc<Waker>) -> Mailbox {
        let (commands, events, learned) = (ArrayQueue::new(64), ArrayQueue::new(256), ArrayQueue::new(64));
        Mailbox { commands, events, learned, failed: ArrayQueue::new(256), waiting: AtomicBool::new(false), bell }
    }

    /// Sends a command.
    ///
    /// # Errors
    /// The command itself, when 64 wait already: the worker is stuck.
    pub fn send(&self, command: Command) -> Result<(), Command> {
        self.commands.push(command)?;
        self.waiting.store(true, Ordering::Release);
        self.bell.wake();
        Ok(())
    }

    /// Tells that the kernel gave up on a neighbour. When 256 such wait already it is not told: what waits for that neighbour is
    /// answered when its time is up.
    pub fn neighbor_failed(&self, key: NextHopKey) {
        if self.failed.push(key).is_ok() {
            self.waiting.store(true, Ordering::Release);
            self.bell.wake();
        }
    }

    /// The next event.
    pub fn event(&self) -> Option<Event> {
        self.events.pop().or_else(|| self.learned.pop())
    }

    /// Whether an event waits to be read.
    pub fn has_event(&self) -> bool {
        !self.events.is_empty() || !self.learned.is_empty()
    }

    /// For the worker: whether a command waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// For the worker: the next command; one plain load when there is none.
    #[inline(always)]
    pub(super) fn command(&self) -> Option<Command> {
        if !self.waiting.load(Ordering::Acquire) {
            return None;
        }
        self.next_command()
    }

    #[inline(never)]
    fn next_command(&self) -> Option<Command> {
        self.waiting.store(false, Ordering::SeqCst);
        let command = self.commands.pop().or_else(|| self.failed.pop().map(Command::NeighborFailed));
        if !self.commands.is_empty() || !self.failed.is_empty() {
            self.waiting.store(true, Ordering::Release);
        }
        command
    }

    /// For the worker: tells; an event that nobody reads is dropped rather than waited for.
    pub(super) fn tell(&self, event: Event) {
        let queue = if matches!(event, Event::Learned(..)) { &self.learned } else { &self.events };
        let _ = queue.push(event);
    }
}
