#![forbid(unsafe_code)]
//! Dropping before the bound: what each discipline remembers about one queue.

pub(crate) mod codel;
pub(crate) mod pie;
pub(crate) mod red;

use ferrule_config::ipfw::dummynet::QueueManagement;

/// What to do with a packet that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Keep,
    Drop,
    /// Mark it where the sender can; else drop.
    Mark,
}

/// Memory of a queue's discipline.
#[derive(Clone, Debug)]
pub(crate) enum State {
    None,
    Red(red::State),
    Codel(codel::State),
    Pie(pie::State),
}

impl State {
    /// The memory of a new queue.
    pub(crate) fn new(management: &QueueManagement) -> State {
        match management {
            QueueManagement::DropTail => State::None,
            QueueManagement::Red(_) | QueueManagement::Gred(_) => State::Red(red::State::default()),
            QueueManagement::Codel(_) => State::Codel(codel::State::default()),
            QueueManagement::Pie(p) => State::Pie(pie::State::new(p)),
        }
    }
}
