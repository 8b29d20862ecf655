#![forbid(unsafe_code)]
//! What was configured: flow sets (`queue N`, and the queue that a pipe or scheduler has itself) and schedulers, by number.

use super::Settings;
use super::mask::union;
use super::pipe::Link;
use super::rank::NONE;
use super::sched::{self, Discipline};
use ferrule_config::ipfw::dummynet::{self as config, FlowMask, QueueManagement, QueueSize, SchedulerKind};

/// A flow set that nobody configured: 50 slots, one queue, nothing dropped early.
pub fn default_queue() -> config::FlowSet {
    config::FlowSet {
        size: QueueSize::Slots(50),
        loss_rate: 0.0,
        mask: FlowMask::NONE,
        buckets: 0,
        no_error: false,
        management: QueueManagement::DropTail,
    }
}

/// A flow set.
#[derive(Clone, Debug)]
pub(crate) struct FlowSet {
    /// Place of its scheduler, once that is there.
    pub scheduler: Option<u32>,
    /// Number of its scheduler.
    pub scheduler_number: u32,
    pub weight: u32,
    pub longest: u32,
    pub queue: config::FlowSet,
    /// Its mask and the scheduler's.
    pub mask: FlowMask,
}

impl FlowSet {
    /// With the queue's bound held within the limits of `net.inet.ip.dummynet.pipe_*_limit`.
    pub(crate) fn new(scheduler_number: u32, queue: &config::FlowSet, settings: &Settings) -> FlowSet {
        let mut queue = queue.clone();
        queue.size = match queue.size {
            QueueSize::Slots(0) => QueueSize::Slots(50.min(settings.slot_limit)),
            QueueSize::Slots(n) => QueueSize::Slots(n.min(settings.slot_limit)),
            QueueSize::Bytes(n) if n < 1500 => QueueSize::Bytes(16_384.min(settings.byte_limit)),
            QueueSize::Bytes(n) => QueueSize::Bytes(n.min(settings.byte_limit)),
        };
        let mask = queue.mask;
        FlowSet { scheduler: None, scheduler_number, weight: 1, longest: 0, queue, mask }
    }

    pub(crate) fn attach(&mut self, place: u32, scheduler: &Scheduler) {
        self.scheduler = Some(place);
        self.mask = union(&self.queue.mask, &scheduler.mask);
    }
}

/// A scheduler: `sched N`, or the FIFO of `pipe N`.
#[derive(Debug)]
pub(crate) struct Scheduler {
    pub number: u32,
    /// Whether it is the FIFO of `pipe N`.
    pub is_pipe: bool,
    pub kind: SchedulerKind,
    pub mask: FlowMask,
    /// Number of the pipe whose link it feeds.
    pub link_number: u32,
    pub link: Link,
    /// Place of the flow set of its own.
    pub own: u32,
    /// Disciplines for instances to come.
    pub spares: Vec<Discipline>,
}

impl Scheduler {
    /// Makes the disciplines that allocate ahead of time: one, or as many as there can be instances.
    pub(crate) fn prepare(&mut self, instances: usize) {
        let boxed = matches!(self.kind, SchedulerKind::Qfq | SchedulerKind::Priority);
        let n = match (boxed, self.mask == FlowMask::NONE) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => instances,
        };
        self.spares = (0..n).map(|_| Discipline::new(&self.kind)).collect();
    }

    /// A discipline for a new instance, without allocating; None when all are in use.
    pub(crate) fn discipline(&mut self) -> Option<Discipline> {
        match self.kind {
            SchedulerKind::Qfq | SchedulerKind::Priority => self.spares.pop(),
            _ => Some(Discipline::new(&self.kind)),
        }
    }

    /// Takes the discipline of an instance that ended, for the next one.
    pub(crate) fn give_back(&mut self, discipline: Discipline) {
        if self.spares.len() < self.spares.capacity() {
            self.spares.push(discipline);
        }
    }

    pub(crate) fn has_queues(&self) -> bool {
        sched::has_queues(&self.kind)
    }

    /// Whether its instances go when idle.
    pub(crate) fn is_dynamic(&self) -> bool {
        self.mask != FlowMask::NONE
    }
}

/// Places by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers(Vec<u32>);

impl Numbers {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<u32> {
        self.0.get(number as usize).copied().filter(|&place| place != NONE)
    }

    pub(crate) fn set(&mut self, number: u32, place: u32) {
        if self.0.len() <= number as usize {
            self.0.resize(number as usize + 1, NONE);
        }
        self.0[number as usize] = place;
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<u32> {
        let place = self.get(number)?;
        self.0[number as usize] = NONE;
        Some(place)
    }

    /// All, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().enumerate().filter(|(_, place)| **place != NONE).map(|(n, &place)| (n as u32, place))
    }
}

/// Things by place; places of what was removed are used again.
#[derive(Debug)]
pub(crate) struct Places<V>(Vec<Option<V>>);

impl<V> Places<V> {
    pub(crate) fn new() -> Places<V> {
        Places(Vec::new())
    }

    pub(crate) fn add(&mut self, value: V) -> u32 {
        let place = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(None);
        }
        self.0[place] = Some(value);
        place as u32
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> Option<&V> {
        self.0.get(place as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut V> {
        self.0.get_mut(place as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, place: u32) -> Option<V> {
        self.0.get_mut(place as usize)?.take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &V)> {
        self.0.iter().enumerate().filter_map(|(place, v)| Some((place as u32, v.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut V)> {
        self.0.iter_mut().enumerate().filter_map(|(place, v)| Some((place as u32, v.as_mut()?)))
    }
}
