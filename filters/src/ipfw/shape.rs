#![forbid(unsafe_code)]
//! Pipes and queues of one worker: dummynet's [`Shaper`] with packets in it, and the lanes to the other workers' shapers.
//!
//! A rule's packet is taken out of its batch and goes to the worker that owns the pipe ([`Owners`]). When it is through it goes home, to the
//! worker that took it, whose states and notes the rules behind need; there it goes on behind the hook (`one_pass`) or behind the rule.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrule_config::ipfw::dummynet::DummynetConfig;
use ferrule_dataplane::batch::BATCH_MAX;
use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::{Family, L3, Packet};
use ferrule_dataplane::stage::{Context, Hook};
use ferrule_dataplane::verdict::DropReason;

use super::dynamic::{FlowKey, RuleRef};
use super::notes::Notes;
use crate::dummynet::owner::{Lane, Message, Owners};
use crate::dummynet::{Addresses, ConfigError, DropCause, FlowId, Outcome, Outlet, Settings, Shaper, Target, ecn};

/// How long a worker may sleep while others may send it packets for its pipes.
const REST: Nanos = 1_000_000;

/// The rule behind which a packet goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Its number.
    pub number: u16,
    /// The rule.
    pub rule: RuleRef,
    /// Its index among the rules of this generation.
    pub index: u32,
    /// The generation of rules in which it matched.
    pub generation: u64,
}

/// A packet in a pipe, or on its way there or back.
pub struct Held {
    /// The packet.
    pub packet: Packet,
    /// What hangs on it.
    pub notes: Notes,
    /// The hook at which it was taken.
    pub hook: Hook,
    /// The worker that took it.
    pub home: usize,
    /// Where the rules go on; None: not at all, it has passed the hook (`one_pass`).
    pub resume: Option<Resume>,
}

/// A change of the configuration of pipes, queues and schedulers.
#[derive(Clone, Debug, PartialEq)]
pub enum PipeChange {
    /// `pipe|queue|sched N config`
    Configure(DummynetConfig),
    /// `pipe|queue N delete`
    Delete(Target),
    /// `sched N delete`
    DeleteScheduler(u32),
    /// `net.inet.ip.dummynet.*`
    Set(Settings),
}

impl PipeChange {
    /// Makes the change in a shaper.
    ///
    /// # Errors
    /// As [`Shaper::configure`] and [`Shaper::delete`] have them.
    pub fn make<T>(&self, shaper: &mut Shaper<T>, now: Nanos, outlet: &mut impl Outlet<T>) -> Result<(), ConfigError> {
        match self {
            PipeChange::Configure(config) => shaper.configure(config, now, outlet),
            PipeChange::Delete(target) => shaper.delete(*target, now, outlet),
            PipeChange::DeleteScheduler(number) => shaper.delete_scheduler(*number, now, outlet),
            PipeChange::Set(settings) => {
                shaper.set(*settings);
                Ok(())
            }
        }
    }
}

/// Pipes of one worker, and its lanes to the others.
pub struct Pipes {
    worker: usize,
    shaper: Option<Box<Shaper<Held>>>,
    owners: Arc<Owners>,
    lane: Lane<Held>,
    workers: usize,
    /// Packets that are through and at home.
    ready: VecDeque<Held>,
}

/// What the shaper is told through.
struct Sink<'a, 'c> {
    context: &'a mut Context<'c>,
    worker: usize,
    lane: &'a mut Lane<Held>,
    ready: &'a mut VecDeque<Held>,
    /// Counted for every drop in place of its own cause.
    instead: Option<DropReason>,
}

impl Sink<'_, '_> {
    /// Sends a packet that is through to the worker that took it.
    fn home(&mut self, held: Held) {
        if held.home == self.worker {
            self.ready.push_back(held);
            return;
        }
        match self.lane.send(held.home, Message::Deliver { packet: held, tag: 0 }) {
            Ok(()) => self.context.book_sent(),
            Err(Message::Deliver { packet, .. } | Message::Enqueue { packet, .. }) => {
                self.context.discard_held(packet.packet, DropReason::HandoverFull);
            }
        }
    }
}

impl Outlet<Held> for Sink<'_, '_> {
    fn mark(&mut self, held: &mut Held) -> bool {
        held.packet.frame.head_mut().get_mut(L3..).is_some_and(ecn::mark)
    }

    fn deliver(&mut self, held: Held, _tag: u64) {
        self.home(held);
    }

    fn dropped(&mut self, held: Held, _tag: u64, cause: DropCause) {
        self.context.discard_held(held.packet, self.instead.unwrap_or_else(|| reason(cause)));
    }
}

/// How a drop of the shaper is counted.
pub fn reason(cause: DropCause) -> DropReason {
    match cause {
        DropCause::NoTarget => DropReason::PipeMissing,
        DropCause::RandomLoss | DropCause::ProfileLoss => DropReason::PipeLoss,
        DropCause::QueueFull | DropCause::FlowLimit => DropReason::PipeFull,
        DropCause::Early => DropReason::PipeEarly,
        DropCause::Reserve | DropCause::TooManyFlows => DropReason::PipeLimit,
        DropCause::Deleted => DropReason::PipeDeleted,
    }
}

/// The flow that masks of pipes and queues see.
fn flow_of(packet: &Packet) -> FlowId {
    let ports = |ports: u32| ((ports >> 16) as u16, ports as u16);
    match FlowKey::of(packet) {
        Some(FlowKey::V4 { addresses, ports: both, protocol }) => FlowId {
            addresses: Addresses::V4 { source: (addresses >> 32) as u32, destination: addresses as u32 },
            protocol,
            source_port: ports(both).0,
            destination_port: ports(both).1,
            ..FlowId::NONE
        },
        Some(FlowKey::V6 { source, destination, ports: both, protocol, .. }) => FlowId {
            addresses: Addresses::V6 { source, destination },
            protocol,
            source_port: ports(both).0,
            destination_port: ports(both).1,
            flow_label: label_of(packet),
            ..FlowId::NONE
        },
        None => FlowId::NONE,
    }
}

fn label_of(packet: &Packet) -> u32 {
    debug_assert!(packet.family == Family::V6);
    match packet.frame.head().get(L3..L3 + 4) {
        Some([a, b, c, d]) => u32::from_be_bytes([*a, *b, *c, *d]) & 0xf_ffff,
        _ => 0,
    }
}

impl Pipes {
    /// No pipes yet, for a worker with this lane; of all lanes there are `workers`.
    pub fn new(lane: Lane<Held>, workers: usize) -> Pipes {
        Pipes {
            worker: lane.id(),
            shaper: None,
            owners: Arc::new(Owners::new(workers, [])),
            lane,
            workers,
            ready: VecDeque::with_capacity(2 * BATCH_MAX),
        }
    }

    /// The shaper, once there are pipes.
    pub fn shaper(&self) -> Option<&Shaper<Held>> {
        self.shaper.as_deref()
    }

    /// Takes up a shaper, made elsewhere since its memory is large. Gives it back where there is one already.
    pub fn take_up(&mut self, shaper: Box<Shaper<Held>>) -> Option<Box<Shaper<Held>>> {
        if self.shaper.is_some() {
            return Some(shaper);
        }
        self.shaper = Some(shaper);
        None
    }

    /// From now on these own the pipes.
    pub fn follow(&mut self, owners: Arc<Owners>) {
        self.owners = owners;
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Sends a packet that is booked as held to its home, where it goes on.
    ///
    /// # Errors
    /// The packet, where the lane is full.
    #[expect(clippy::result_large_err, reason = "the packet itself comes back")]
    pub fn send(&mut self, held: Held, context: &mut Context<'_>) -> Result<(), Held> {
        let home = held.home;
        match self.lane.send(home, Message::Deliver { packet: held, tag: 0 }) {
            Ok(()) => {
                context.book_sent();
                Ok(())
            }
            Err(Message::Deliver { packet, .. } | Message::Enqueue { packet, .. }) => Err(packet),
        }
    }

    /// Whether a pipe or queue is this worker's.
    pub fn owns(&self, target: Target) -> bool {
        self.owners.of(target) == self.worker
    }

    /// Changes the shaper's configuration; what it drops by that is counted. The control side has tried each change before, so that none
    /// fails here; without a shaper there is nothing to change.
    pub fn change(&mut self, change: &PipeChange, context: &mut Context<'_>) {
        let Pipes { shaper, lane, ready, worker, .. } = self;
        let Some(shaper) = shaper else { return };
        let now = context.now;
        let mut sink = Sink { context, worker: *worker, lane, ready, instead: None };
        let _tried_before = change.make(shaper, now, &mut sink);
    }

    /// Sends a packet that is booked as held to a pipe or queue.
    ///
    /// # Errors
    /// The packet, still booked as held, and why it was not taken.
    pub fn offer(
        &mut self,
        target: Target,
        held: Held,
        context: &mut Context<'_>,
    ) -> Result<Outcome<Held>, (Held, DropReason)> {
        let Pipes { shaper, lane, ready, worker, .. } = self;
        let Some(shaper) = shaper else { return Err((held, DropReason::PipeMissing)) };
        let (length, flow) = (held.packet.ip_len() as u32, flow_of(&held.packet));
        let owner = self.owners.of(target);
        if owner != *worker {
            let message = Message::Enqueue { target, packet: held, length, flow, tag: 0 };
            return match lane.send(owner, message) {
                Ok(()) => {
                    context.book_sent();
                    Ok(Outcome::Held)
                }
                Err(Message::Enqueue { packet, .. } | Message::Deliver { packet, .. }) => {
                    Err((packet, DropReason::HandoverFull))
                }
            };
        }
        let now = context.now;
        let mut sink = Sink { context, worker: *worker, lane, ready, instead: None };
        shaper.enqueue(target, held, length, &flow, 0, now, &mut sink).map_err(|(held, cause)| (held, reason(cause)))
    }

    /// Takes what other workers sent and lets time pass; at most about `room` packets come through.
    pub fn turn(&mut self, room: usize, context: &mut Context<'_>) {
        let Pipes { shaper, lane, ready, worker, workers, .. } = self;
        let now = context.now;
        if *workers > 1 && lane.is_waiting() {
            // Enqueuing sends packets on by the same lane: first they are taken, then worked on.
            let most = (room / (*workers - 1)).max(1);
            for (from, _) in (0..*workers).flat_map(|from| (0..most).map(move |n| (from, n))) {
                let Some(message) = lane.take(from) else { continue };
                context.book_received();
                let mut sink = Sink { context, worker: *worker, lane, ready, instead: None };
                match (message, shaper.as_deref_mut()) {
                    (Message::Deliver { packet, .. }, _) => sink.ready.push_back(packet),
                    (Message::Enqueue { target, packet, length, flow, tag }, Some(shaper)) => {
                        match shaper.enqueue(target, packet, length, &flow, tag, now, &mut sink) {
                            Ok(Outcome::Held) => {}
                            Ok(Outcome::Passed(held)) => sink.home(held),
                            Err((held, cause)) => sink.context.discard_held(held.packet, reason(cause)),
                        }
                    }
                    (Message::Enqueue { packet, .. }, None) => {
                        sink.context.discard_held(packet.packet, DropReason::PipeMissing);
                    }
                }
            }
        }
        if let Some(shaper) = shaper {
            let most = room.saturating_sub(ready.len());
            let mut sink = Sink { context, worker: *worker, lane, ready, instead: None };
            shaper.poll(now, most, &mut sink);
        }
    }

    /// The next packet that is through, still booked as held.
    pub fn next(&mut self) -> Option<Held> {
        self.ready.pop_front()
    }

    /// The end: everything that is held is given up.
    pub fn close(&mut self, context: &mut Context<'_>) {
        let Pipes { shaper, lane, ready, worker, .. } = self;
        lane.receive(usize::MAX, |_, message| {
            let (Message::Enqueue { packet, .. } | Message::Deliver { packet, .. }) = message;
            context.book_received();
            context.discard_held(packet.packet, DropReason::Shutdown);
        });
        for held in ready.drain(..) {
            context.discard_held(held.packet, DropReason::Shutdown);
        }
        if let Some(shaper) = shaper {
            let now = context.now;
            let mut sink = Sink { context, worker: *worker, lane, ready, instead: Some(DropReason::Shutdown) };
            shaper.flush(now, &mut sink);
        }
    }

    /// How long the worker may sleep: until the next packet is through, and not for long where others may send some, for pipes or
    /// otherwise (`shares`).
    pub fn rests(&self, now: Nanos, shares: bool) -> Nanos {
        let next = self.shaper.as_ref().and_then(|shaper| shaper.next_event());
        let next = next.map_or(Nanos::MAX, |event| event.saturating_sub(now));
        if self.workers > 1 && (shares || self.shaper.is_some()) { next.min(REST) } else { next }
    }
}
