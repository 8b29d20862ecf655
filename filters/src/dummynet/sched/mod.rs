#![forbid(unsafe_code)]
//! Schedulers: which of an instance's queues sends next.
//!
//! All work on the queues' own fields ([`Share`](super::queue::Share)), so that an instance needs no memory that grows. The order of
//! calls: [`Discipline::activated`] when a queue gets its first packet, [`Discipline::select`], then [`Discipline::served`] for the queue
//! selected once its packet (or, when its AQM dropped everything, no packet) was taken, [`Discipline::forget`] before a queue goes.

pub(crate) mod fq;
pub(crate) mod list;
pub(crate) mod prio;
pub(crate) mod qfq;
pub(crate) mod rr;
pub(crate) mod wf2q;

mod fifo;

use super::queue::Queues;
use ferrule_config::ipfw::dummynet::SchedulerKind;

pub(crate) use fifo::Fifo;

/// The scheduler of one instance.
#[derive(Debug)]
pub(crate) enum Discipline {
    Fifo(Fifo),
    Wf2q(wf2q::Wf2q),
    Qfq(Box<qfq::Qfq>),
    RoundRobin(rr::RoundRobin),
    Priority(Box<prio::Priority>),
    Fq(fq::Fq),
}

/// Whether queues of flow sets feed it, each on its own; else all packets share what the scheduler has itself.
pub(crate) fn has_queues(kind: &SchedulerKind) -> bool {
    !matches!(kind, SchedulerKind::Fifo | SchedulerKind::FqCodel(..) | SchedulerKind::FqPie(..))
}

macro_rules! each {
    ($self:ident, $d:ident => $call:expr) => {
        match $self {
            Discipline::Fifo($d) => $call,
            Discipline::Wf2q($d) => $call,
            Discipline::Qfq($d) => $call,
            Discipline::RoundRobin($d) => $call,
            Discipline::Priority($d) => $call,
            Discipline::Fq($d) => $call,
        }
    };
}

impl Discipline {
    /// A new one; allocates for QFQ and PRIO, so instances keep theirs when they are used again.
    pub(crate) fn new(kind: &SchedulerKind) -> Discipline {
        match kind {
            SchedulerKind::Fifo => Discipline::Fifo(Fifo::default()),
            SchedulerKind::Wf2qPlus => Discipline::Wf2q(wf2q::Wf2q::new()),
            SchedulerKind::Qfq => Discipline::Qfq(Box::new(qfq::Qfq::new())),
            SchedulerKind::RoundRobin => Discipline::RoundRobin(rr::RoundRobin::new()),
            SchedulerKind::Priority => Discipline::Priority(Box::new(prio::Priority::new())),
            SchedulerKind::FqCodel(fq, _) | SchedulerKind::FqPie(fq, _) => Discipline::Fq(fq::Fq::new(fq.quantum)),
        }
    }

    /// A queue got its first packet.
    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        each!(self, d => d.activated(id, queues));
    }

    /// The queue to send from; None when all are empty.
    pub(crate) fn select(&mut self, queues: &mut Queues) -> Option<u32> {
        each!(self, d => d.select(queues))
    }

    /// The queue selected gave a packet of `length` bytes, or none.
    pub(crate) fn served(&mut self, id: u32, length: Option<u32>, queues: &mut Queues) {
        each!(self, d => d.served(id, length, queues));
    }

    /// The queue goes, or its weight changes; it may hold packets.
    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        each!(self, d => d.forget(id, queues));
    }
}
