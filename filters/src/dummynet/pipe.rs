#![forbid(unsafe_code)]
//! Links: how long a packet takes. And instances: one for each combination of the bits that a scheduler's mask keeps, each with the whole
//! bandwidth to itself, a scheduler and a delay line.
//!
//! Credit is counted in bits times 10^9, so that nanoseconds times bit/s is a whole number: nothing is ever rounded away, and a pipe's
//! rate is exact over any length of time.

use super::mask::FlowId;
use super::packets::Row;
use super::queue::Counters;
use super::random::Random;
use super::rank::NONE;
use super::sched::Discipline;
use ferrule_config::ipfw::dummynet::PipeConfig;
use ferrule_dataplane::clock::Nanos;

/// One bit of credit.
const BIT: i128 = 1_000_000_000;
/// `io_fast`: what an idle pipe lets through at once, as time at its rate; FreeBSD's tick.
const FAST: Nanos = 1_000_000;

/// A link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    /// bit/s; 0 is no limit.
    pub bandwidth: u64,
    pub delay: Nanos,
    /// Bytes.
    pub burst: u64,
    /// Extra delays in milliseconds, one drawn for each packet.
    pub samples: Vec<u32>,
    /// First sample that means a loss.
    pub lost_from: usize,
}

impl Link {
    pub(crate) fn new(config: &PipeConfig) -> Link {
        let (samples, lost_from) = config
            .profile
            .as_ref()
            .map_or((Vec::new(), 0), |p| (p.samples_ms.clone(), (p.loss_level * p.samples_ms.len() as f64) as usize));
        Link {
            bandwidth: config.bandwidth,
            delay: u64::from(config.delay_ms) * 1_000_000,
            burst: config.burst,
            samples,
            lost_from,
        }
    }

    /// Most credit that an idle instance gathers.
    fn credit_max(&self, io_fast: bool) -> i128 {
        let fast = if io_fast { i128::from(self.bandwidth) * i128::from(FAST) } else { 0 };
        i128::from(self.burst) * 8 * BIT + fast
    }

    /// Extra time for one packet, and whether the packet is lost.
    fn draw(&self, random: &mut Random) -> (Nanos, bool) {
        if self.samples.is_empty() {
            return (0, false);
        }
        let index = random.below(self.samples.len());
        (u64::from(self.samples[index]) * 1_000_000, index >= self.lost_from)
    }
}

/// An instance of a scheduler.
#[derive(Debug)]
pub(crate) struct Instance {
    /// Scheduler's place; NONE for a free slot.
    pub scheduler: u32,
    pub flow: FlowId,
    pub discipline: Discipline,
    /// Packets on their way through the link.
    pub line: Row,
    /// Whether its next packet is waiting for the link; an event is planned then.
    pub active: bool,
    credit: i128,
    /// When `credit` was right.
    since: Nanos,
    pub queues: u32,
    pub counters: Counters,
    /// In its queues.
    pub length: u32,
    pub bytes: u64,
    hash: u64,
    chain: u32,
}

impl Instance {
    /// Before a packet comes to an idle instance.
    pub(crate) fn refill(&mut self, link: &Link, io_fast: bool, now: Nanos) {
        let earned = i128::from(now.saturating_sub(self.since)) * i128::from(link.bandwidth);
        self.credit = (self.credit + earned).min(link.credit_max(io_fast));
        self.since = now;
    }

    /// As if idle for ever: a new instance, or a pipe configured anew.
    pub(crate) fn fill(&mut self, link: &Link, io_fast: bool, now: Nanos) {
        self.credit = link.credit_max(io_fast);
        self.since = now;
    }

    /// Whether nothing would change if it went and came again.
    pub(crate) fn is_rested(&self, link: &Link, io_fast: bool, now: Nanos) -> bool {
        let earned = i128::from(now.saturating_sub(self.since)) * i128::from(link.bandwidth);
        !self.active && self.line.is_empty() && self.credit + earned >= link.credit_max(io_fast)
    }

    /// An active instance's time has come, or its link changed.
    pub(crate) fn settle(&mut self, bandwidth: u64, now: Nanos) {
        self.credit += i128::from(now.saturating_sub(self.since)) * i128::from(bandwidth);
        self.since = now;
    }

    /// Whether the link is free.
    pub(crate) fn may_send(&self, link: &Link) -> bool {
        link.bandwidth == 0 || self.credit >= 0
    }

    /// Nanoseconds until the link is free.
    pub(crate) fn wait(&self, link: &Link) -> Nanos {
        if self.may_send(link) {
            return 0;
        }
        let missing = self.credit.unsigned_abs();
        let bandwidth = link.bandwidth;
        match u64::try_from(missing) {
            Ok(missing) => missing.div_ceil(bandwidth),
            Err(_) => u64::try_from(missing.div_ceil(u128::from(bandwidth))).unwrap_or(u64::MAX),
        }
    }

    /// Sends a packet: when it is through, and whether the profile loses it.
    pub(crate) fn send(&mut self, link: &Link, length: u32, now: Nanos, random: &mut Random) -> (Nanos, bool) {
        let (extra, lost) = link.draw(random);
        if link.bandwidth == 0 {
            self.credit = 0;
        } else {
            let bits = i128::from(length) * 8 * BIT;
            self.credit -= bits + i128::from(extra) * i128::from(link.bandwidth);
        }
        (now + self.wait(link) + link.delay, lost)
    }
}

/// All instances.
#[derive(Debug)]
pub(crate) struct Instances {
    slots: Vec<Instance>,
    free: Vec<u32>,
    heads: Vec<u32>,
    seed: u64,
}

impl std::ops::Index<u32> for Instances {
    type Output = Instance;
    fn index(&self, id: u32) -> &Instance {
        &self.slots[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Instances {
    fn index_mut(&mut self, id: u32) -> &mut Instance {
        &mut self.slots[id as usize]
    }
}

impl Instances {
    pub(crate) fn new(capacity: usize, seed: u64) -> Instances {
        let vacant = || Instance {
            scheduler: NONE,
            flow: FlowId::NONE,
            discipline: Discipline::Fifo(Default::default()),
            line: Row::EMPTY,
            active: false,
            credit: 0,
            since: 0,
            queues: 0,
            counters: Counters::default(),
            length: 0,
            bytes: 0,
            hash: 0,
            chain: NONE,
        };
        Instances {
            slots: (0..capacity).map(|_| vacant()).collect(),
            free: (0..capacity as u32).rev().collect(),
            heads: vec![NONE; (capacity * 2).next_power_of_two()],
            seed,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Numbers of a scheduler's instances.
    pub(crate) fn of(&self, scheduler: u32) -> impl Iterator<Item = u32> + '_ {
        (0..self.slots.len() as u32).filter(move |&id| self[id].scheduler == scheduler)
    }

    fn hash(&self, scheduler: u32, flow: &FlowId) -> u64 {
        flow.hash(self.seed ^ u64::from(scheduler))
    }

    pub(crate) fn find(&self, scheduler: u32, flow: &FlowId) -> Option<u32> {
        let hash = self.hash(scheduler, flow);
        let mut at = self.heads[hash as usize & (self.heads.len() - 1)];
        while at != NONE {
            let instance = &self[at];
            if instance.hash == hash && instance.scheduler == scheduler && instance.flow == *flow {
                return Some(at);
            }
            at = instance.chain;
        }
        None
    }

    /// A new instance, idle; None when there is no slot.
    pub(crate) fn create(&mut self, scheduler: u32, flow: &FlowId, discipline: Discipline) -> Option<u32> {
        let id = self.free.pop()?;
        let hash = self.hash(scheduler, flow);
        let head = hash as usize & (self.heads.len() - 1);
        let chain = std::mem::replace(&mut self.heads[head], id);
        self[id] = Instance {
            scheduler,
            flow: *flow,
            discipline,
            line: Row::EMPTY,
            active: false,
            credit: 0,
            since: 0,
            queues: 0,
            counters: Counters::default(),
            length: 0,
            bytes: 0,
            hash,
            chain,
        };
        Some(id)
    }

    /// Ends an instance without queues and packets; its scheduler is left to be used again.
    pub(crate) fn destroy(&mut self, id: u32) -> Discipline {
        debug_assert!(self[id].queues == 0 && self[id].line.is_empty());
        let (hash, chain) = (self[id].hash, self[id].chain);
        let head = hash as usize & (self.heads.len() - 1);
        if self.heads[head] == id {
            self.heads[head] = chain;
        } else {
            let mut at = self.heads[head];
            while self[at].chain != id {
                at = self[at].chain;
            }
            self[at].chain = chain;
        }
        self[id].scheduler = NONE;
        self.free.push(id);
        std::mem::replace(&mut self[id].discipline, Discipline::Fifo(Default::default()))
    }
}
