#![forbid(unsafe_code)]
//! The control side of pipes and NAT: brings the workers to what a rule set says, and asks them how they are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::dummynet::DummynetConfig;
use ferrule_config::ipfw::nat::NatConfig;
use ferrule_dataplane::packet::hash::HashSeed;

use super::{Answer, Line, NatStatus, Order, PipeChange, Switches, WorkerStatus};
use crate::dummynet::owner::Owners;
use crate::dummynet::{
    ConfigError, DropCause, Limits as PipeLimits, Outlet, PipeStatus, QueueStatus, SchedulerStatus, Settings, Shaper,
    Target, Totals,
};
use crate::nat::{Limits as NatLimits, Nat, SharedFlows};

/// Why an order was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceError {
    /// The configuration of a pipe, queue or scheduler is wrong.
    Pipe(ConfigError),
    /// A worker does not take its orders.
    Stuck(usize),
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceError::Pipe(error) => error.fmt(f),
            ServiceError::Stuck(worker) => {
                write!(f, "worker {worker} does not take its orders: see `ferrule show workers` whether it still runs")
            }
        }
    }
}

impl std::error::Error for ServiceError {}

/// What all workers told together.
#[derive(Clone, Debug, Default)]
pub struct ServiceStatus {
    /// Pipes by number (`pipe show`).
    pub pipes: Vec<PipeStatus>,
    /// Queues by number (`queue show`).
    pub queues: Vec<QueueStatus>,
    /// Schedulers by number (`sched show`).
    pub schedulers: Vec<SchedulerStatus>,
    /// What the shapers counted.
    pub totals: Totals,
    /// Packets in the shapers.
    pub held: usize,
    /// Instances of NAT by number, over all workers.
    pub nats: Vec<NatStatus>,
}

/// A shaper to try changes in: it never has packets.
struct Nothing;

impl Outlet<()> for Nothing {
    fn deliver(&mut self, (): (), _tag: u64) {}
    fn dropped(&mut self, (): (), _tag: u64, _cause: DropCause) {}
}

/// The control side of pipes and NAT.
pub struct ServiceControl {
    lines: Vec<Line>,
    switches: Arc<Switches>,
    seed: HashSeed,
    /// Memory of each worker's shaper.
    pub pipe_limits: PipeLimits,
    /// Memory of each instance of NAT on each worker.
    pub nat_limits: NatLimits,
    /// What the workers were told so far.
    told: Told,
    trial: Shaper<()>,
    has_shaper: bool,
}

/// What was ordered so far.
#[derive(Clone, Default)]
struct Told {
    settings: Settings,
    pipes: BTreeMap<Target, DummynetConfig>,
    schedulers: BTreeMap<u32, DummynetConfig>,
    owners: Vec<(u32, u32)>,
    nats: BTreeMap<u32, (NatConfig, Arc<SharedFlows>)>,
}

impl ServiceControl {
    pub(super) fn new(lines: Vec<Line>, switches: Arc<Switches>, seed: HashSeed) -> ServiceControl {
        let small = PipeLimits { packets: 1, queues: 1, instances: 1 };
        ServiceControl {
            lines,
            switches,
            seed,
            pipe_limits: PipeLimits::default(),
            nat_limits: NatLimits::default(),
            told: Told::default(),
            trial: Shaper::new(small, Settings::default(), 0),
            has_shaper: false,
        }
    }

    /// Brings the workers to what the set says, as far as that adds or changes something: to be called before the set's rules are put in
    /// force. Packets in pipes that stay are not touched but by what their own new configuration says. What is gone from the set goes
    /// with [`ServiceControl::settle`].
    ///
    /// # Errors
    /// [`ServiceError`]; nothing was changed where it is about a pipe.
    pub fn follow(&mut self, set: &RuleSet) -> Result<(), ServiceError> {
        self.collect_garbage();
        let (changes, told) = self.pipe_changes(set)?;
        self.switches.one_pass.store(set.variable("net.inet.ip.fw.one_pass") != 0, Relaxed);
        self.switches.layer2.store(set.variable("net.link.ether.ipfw") != 0, Relaxed);
        if !changes.is_empty() {
            if !self.has_shaper {
                let (limits, settings) = (self.pipe_limits, Settings::default());
                let seed = self.seed.0;
                self.order(|worker| {
                    Order::Shaper(Box::new(Shaper::new(limits, settings, seed ^ (worker as u64 + 1).rotate_left(40))))
                })?;
                self.has_shaper = true;
            }
            let owners = Arc::new(Owners::new(self.lines.len(), told.owners.iter().copied()));
            self.order(|_| Order::Pipes(changes.clone(), owners.clone()))?;
        }
        self.told = told;
        self.follow_nats(set)
    }

    fn follow_nats(&mut self, set: &RuleSet) -> Result<(), ServiceError> {
        let mut changed = Vec::new();
        let mut fresh = Vec::new();
        for (number, config) in &set.nats {
            match self.told.nats.get_mut(number) {
                Some((old, _)) if old == config => {}
                Some((old, _)) => {
                    old.clone_from(config);
                    changed.push(config.clone());
                }
                None => {
                    let shared = SharedFlows::new(self.lines.len(), self.nat_limits.states, self.seed);
                    self.told.nats.insert(*number, (config.clone(), shared.clone()));
                    fresh.push((config.clone(), shared));
                }
            }
        }
        if fresh.is_empty() && changed.is_empty() {
            return Ok(());
        }
        let limits = self.nat_limits;
        self.order(|worker| {
            let make = |(config, shared): &(NatConfig, Arc<SharedFlows>)| {
                Box::new(Nat::new(config, limits, worker, shared.clone()))
            };
            Order::Nats(fresh.iter().map(make).collect(), changed.clone())
        })
    }

    /// Takes away what the set does not have any more: to be called once its rules are in force. Packets in pipes that go are dropped and
    /// counted, as on FreeBSD.
    ///
    /// # Errors
    /// [`ServiceError::Stuck`].
    pub fn settle(&mut self, set: &RuleSet) -> Result<(), ServiceError> {
        let mut changes = Vec::new();
        let gone = |target: &Target| match target {
            Target::Pipe(number) => !set.pipes.contains_key(number),
            Target::Queue(number) => !set.queues.contains_key(number),
        };
        let targets: Vec<Target> = self.told.pipes.keys().rev().copied().filter(gone).collect();
        for target in targets {
            self.told.pipes.remove(&target);
            changes.push(PipeChange::Delete(target));
        }
        let schedulers: Vec<u32> =
            self.told.schedulers.keys().copied().filter(|number| !set.schedulers.contains_key(number)).collect();
        for number in schedulers {
            self.told.schedulers.remove(&number);
            changes.push(PipeChange::DeleteScheduler(number));
            // Its pipe has one of its own again.
            if let Some(pipe) = self.told.pipes.get(&Target::Pipe(number)) {
                changes.push(PipeChange::Configure(pipe.clone()));
            }
        }
        // What a deleted pipe took with it although the set has it.
        for (number, scheduler) in &self.told.schedulers {
            if changes.contains(&PipeChange::Delete(Target::Pipe(*number))) {
                changes.push(PipeChange::Configure(scheduler.clone()));
            }
        }
        if !changes.is_empty() {
            for change in &changes {
                // A scheduler may have gone with its pipe already.
                let _ = change.make(&mut self.trial, 0, &mut Nothing);
            }
            self.told.owners.retain(|(queue, _)| set.queues.contains_key(queue));
            let owners = Arc::new(Owners::new(self.lines.len(), self.told.owners.iter().copied()));
            self.order(|_| Order::Pipes(changes.clone(), owners.clone()))?;
        }
        let nats: Vec<u32> = self.told.nats.keys().copied().filter(|number| !set.nats.contains_key(number)).collect();
        if !nats.is_empty() {
            self.order(|_| Order::DeleteNats(nats.clone()))?;
            nats.iter().for_each(|number| drop(self.told.nats.remove(number)));
        }
        Ok(())
    }

    /// What is to be changed in the shapers, tried, and what they will have been told then.
    fn pipe_changes(&mut self, set: &RuleSet) -> Result<(Vec<PipeChange>, Told), ServiceError> {
        let mut told = self.told.clone();
        let mut changes = Vec::new();
        let settings = settings_of(set);
        if settings != told.settings {
            told.settings = settings;
            changes.push(PipeChange::Set(settings));
        }
        for (number, pipe) in &set.pipes {
            let config = DummynetConfig::Pipe(pipe.clone());
            if told.pipes.get(&Target::Pipe(*number)) != Some(&config) {
                told.pipes.insert(Target::Pipe(*number), config.clone());
                changes.push(PipeChange::Configure(config));
            }
        }
        for (number, scheduler) in &set.schedulers {
            let config = DummynetConfig::Scheduler(scheduler.clone());
            if told.schedulers.get(number) != Some(&config) {
                told.schedulers.insert(*number, config.clone());
                changes.push(PipeChange::Configure(config));
            }
        }
        for (number, queue) in &set.queues {
            let config = DummynetConfig::Queue(queue.clone());
            if told.pipes.get(&Target::Queue(*number)) != Some(&config) {
                told.pipes.insert(Target::Queue(*number), config.clone());
                changes.push(PipeChange::Configure(config));
            }
        }
        told.owners = set.queues.iter().map(|(number, queue)| (*number, queue.scheduler)).collect();
        for change in &changes {
            change.make(&mut self.trial, 0, &mut Nothing).map_err(ServiceError::Pipe)?;
        }
        Ok((changes, told))
    }

    fn order(&mut self, make: impl Fn(usize) -> Order) -> Result<(), ServiceError> {
        for (worker, line) in self.lines.iter_mut().enumerate() {
            line.orders.push(make(worker)).map_err(|_| ServiceError::Stuck(worker))?;
        }
        Ok(())
    }

    /// Takes down what workers gave back.
    fn collect_garbage(&mut self) {
        for line in &mut self.lines {
            while let Ok(answer) = line.answers.pop() {
                match answer {
                    Answer::Nat(nat) => drop(nat),
                    Answer::Shaper(shaper) => drop(shaper),
                    Answer::Status(late) => drop(late),
                }
            }
        }
    }

    /// Asks every worker; [`ServiceControl::answers`] takes the answers.
    ///
    /// # Errors
    /// [`ServiceError::Stuck`].
    pub fn ask(&mut self, wants_states: bool) -> Result<(), ServiceError> {
        self.collect_garbage();
        self.order(|_| Order::Tell(Box::new(WorkerStatus { wants_states, ..WorkerStatus::default() })))
    }

    /// What the workers answer to [`ServiceControl::ask`] within `patience`.
    ///
    /// # Errors
    /// [`ServiceError::Stuck`].
    pub fn answers(&mut self, patience: Duration) -> Result<ServiceStatus, ServiceError> {
        let until = Instant::now() + patience;
        let mut all = ServiceStatus::default();
        for (worker, line) in self.lines.iter_mut().enumerate() {
            let status = loop {
                match line.answers.pop() {
                    Ok(Answer::Status(status)) => break *status,
                    Ok(Answer::Nat(nat)) => drop(nat),
                    Ok(Answer::Shaper(shaper)) => drop(shaper),
                    Err(_) if Instant::now() >= until => return Err(ServiceError::Stuck(worker)),
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            all.add(status);
        }
        all.pipes.sort_by_key(|pipe| pipe.number);
        all.queues.sort_by_key(|queue| queue.number);
        all.schedulers.sort_by_key(|scheduler| scheduler.number);
        all.nats.sort_by_key(|nat| nat.number);
        Ok(all)
    }
}

impl ServiceStatus {
    fn add(&mut self, status: WorkerStatus) {
        self.pipes.extend(status.pipes);
        self.queues.extend(status.queues);
        self.schedulers.extend(status.schedulers);
        self.held += status.held;
        self.totals.offered += status.totals.offered;
        self.totals.passed += status.totals.passed;
        self.totals.fast += status.totals.fast;
        self.totals.drops.iter_mut().zip(status.totals.drops).for_each(|(sum, more)| *sum += more);
        for nat in status.nats {
            match self.nats.iter_mut().find(|sum| sum.number == nat.number) {
                Some(sum) => {
                    sum.address = sum.address.or(nat.address);
                    sum.counters += nat.counters;
                    sum.links += nat.links;
                    sum.states.extend(nat.states);
                }
                None => self.nats.push(nat),
            }
        }
    }
}

/// `net.inet.ip.dummynet.*`
fn settings_of(set: &RuleSet) -> Settings {
    let size = |name: &str| u32::try_from(set.variable(name)).unwrap_or(u32::MAX);
    Settings {
        io_fast: set.variable("net.inet.ip.dummynet.io_fast") != 0,
        slot_limit: size("net.inet.ip.dummynet.pipe_slot_limit"),
        byte_limit: size("net.inet.ip.dummynet.pipe_byte_limit"),
        expire: (set.variable("net.inet.ip.dummynet.expire") != 0).then_some(1_000_000_000),
    }
}
