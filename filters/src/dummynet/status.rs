#![forbid(unsafe_code)]
//! What `pipe show`, `queue show` and `sched show` print, as plain fields; what was configured is the caller's to print.

use super::mask::FlowId;
use super::queue::Counters;
use super::{Shaper, Target};

/// A queue, or an instance of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// Masked flow; for FQ a flow that is in this queue.
    pub flow: FlowId,
    /// `Tot_pkt/bytes`, `Drp`.
    pub counters: Counters,
    /// `Pkt`: packets held now.
    pub length: u32,
    /// `Byte`: bytes held now.
    pub bytes: u64,
}

/// `pipe N show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeStatus {
    /// Its number.
    pub number: u32,
    /// Its flows, each with a link of its own.
    pub flows: Vec<FlowStatus>,
}

/// `queue N show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    /// Its number.
    pub number: u32,
    /// Number of the scheduler that it feeds.
    pub scheduler: u32,
    /// Whether that scheduler exists; else the queue drops everything.
    pub attached: bool,
    /// Its queues.
    pub flows: Vec<FlowStatus>,
}

/// `sched N show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerStatus {
    /// Its number.
    pub number: u32,
    /// Numbers of the queues that feed it.
    pub queues: Vec<u32>,
    /// Its instances.
    pub instances: Vec<FlowStatus>,
    /// FQ-CoDel, FQ-PIE: flows that have a queue now.
    pub flows: Vec<FlowStatus>,
}

impl<T> Shaper<T> {
    /// All pipes by number.
    pub fn pipes(&self) -> Vec<PipeStatus> {
        let status = |(number, place)| PipeStatus { number, flows: self.instances_of(place) };
        self.pipe_numbers.iter().map(status).collect()
    }

    /// All queues by number.
    pub fn queues(&self) -> Vec<QueueStatus> {
        let status = |(number, place)| {
            let flow_set = self.flow_sets.get(place)?;
            Some(QueueStatus {
                number,
                scheduler: flow_set.scheduler_number,
                attached: flow_set.scheduler.is_some(),
                flows: self.queues_where(|id| self.queues[id].flow_set == place),
            })
        };
        self.queue_numbers.iter().filter_map(status).collect()
    }

    /// All schedulers by number.
    pub fn schedulers(&self) -> Vec<SchedulerStatus> {
        let status = |(number, place)| {
            let scheduler = self.schedulers.get(place)?;
            let feeds = |&(_, fs): &(u32, u32)| self.flow_sets.get(fs).is_some_and(|f| f.scheduler == Some(place));
            Some(SchedulerStatus {
                number,
                queues: self.queue_numbers.iter().filter(feeds).map(|(n, _)| n).collect(),
                instances: self.instances_of(place),
                flows: if scheduler.has_queues() {
                    Vec::new()
                } else {
                    self.queues_where(|id| self.instances[self.queues[id].instance].scheduler == place)
                },
            })
        };
        self.scheduler_numbers.iter().filter_map(status).collect()
    }

    /// Whether a local sender is not to be told of drops there (`noerror`); false when there is no such target.
    pub fn is_silent(&self, target: Target) -> bool {
        let flow_set = match target {
            Target::Pipe(number) => self.pipe_numbers.get(number).and_then(|s| Some(self.schedulers.get(s)?.own)),
            Target::Queue(number) => self.queue_numbers.get(number),
        };
        flow_set.and_then(|fs| self.flow_sets.get(fs)).is_some_and(|fs| fs.queue.no_error)
    }

    /// Number of the scheduler that serves a target, by which its owner is found; None when there is no such target.
    pub fn scheduler_of(&self, target: Target) -> Option<u32> {
        match target {
            Target::Pipe(number) => self.pipe_numbers.get(number).map(|_| number),
            Target::Queue(number) => Some(self.flow_sets.get(self.queue_numbers.get(number)?)?.scheduler_number),
        }
    }

    fn instances_of(&self, scheduler: u32) -> Vec<FlowStatus> {
        let status = |id| {
            let instance = &self.instances[id];
            FlowStatus {
                flow: instance.flow,
                counters: instance.counters,
                length: instance.length,
                bytes: instance.bytes,
            }
        };
        self.instances.of(scheduler).map(status).collect()
    }

    fn queues_where(&self, wanted: impl Fn(u32) -> bool) -> Vec<FlowStatus> {
        let status = |id| {
            let queue = &self.queues[id];
            FlowStatus { flow: queue.flow, counters: queue.counters, length: queue.length, bytes: queue.bytes }
        };
        self.queues.ids().filter(|&id| wanted(id)).map(status).collect()
    }
}
