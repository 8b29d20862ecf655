#![forbid(unsafe_code)]
//! Pipes and NAT of one worker, as the control side sets them up and asks about them.
//!
//! [`pair`] makes the ends of all workers and the one of the control side, [`control::ServiceControl`]. Orders go to each worker by a ring and are
//! carried out between two batches, always before rules that were put in force after they were given. What takes memory or time to make
//! or to take down (a shaper, an instance of NAT) is made and taken down by the control side.

pub mod control;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ferrule_config::ipfw::nat::NatConfig;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::stage::Context;

use super::shape::{Held, PipeChange, Pipes};
use super::translate::Translations;
use crate::dummynet::owner::{Owners, lanes};
use crate::dummynet::{PipeStatus, QueueStatus, SchedulerStatus, Shaper, Target, Totals};
use crate::nat::{Counters, LinkCounts, Nat, StateInfo};

/// Orders on their way to a worker.
const ORDERS: usize = 64;
/// Packets on their way between two workers' shapers, for each direction.
const LANE: usize = 1024;

/// What the control side sets and workers read with each packet that needs it.
#[derive(Debug)]
pub struct Switches {
    /// `net.inet.ip.fw.one_pass`: what comes out of a pipe or NAT has passed the hook.
    pub one_pass: AtomicBool,
    /// `net.link.ether.ipfw`: frames pass the rules in a layer-2 pass, too.
    pub layer2: AtomicBool,
}

impl Default for Switches {
    fn default() -> Switches {
        Switches { one_pass: AtomicBool::new(true), layer2: AtomicBool::new(false) }
    }
}

/// What a worker is to do.
enum Order {
    /// Use this shaper, unless there is one.
    Shaper(Box<Shaper<Held>>),
    /// Change pipes; from then on these own them.
    Pipes(Vec<PipeChange>, Arc<Owners>),
    /// Take these instances up; give the others of their numbers another configuration.
    Nats(Vec<Box<Nat>>, Vec<NatConfig>),
    /// Give these instances up.
    DeleteNats(Vec<u32>),
    /// Tell.
    Tell(Box<WorkerStatus>),
}

/// What comes back from a worker.
enum Answer {
    Nat(Box<Nat>),
    Shaper(Box<Shaper<Held>>),
    Status(Box<WorkerStatus>),
}

/// One instance of NAT on one worker.
#[derive(Clone, Debug)]
pub struct NatStatus {
    /// Its number.
    pub number: u32,
    /// The alias address in force.
    pub address: Option<std::net::Ipv4Addr>,
    /// Packets and states since it was made.
    pub counters: Counters,
    /// States by kind, as `nat N show log` prints them.
    pub links: LinkCounts,
    /// Every state, in no order; empty unless asked for.
    pub states: Vec<StateInfo>,
}

/// What one worker tells.
#[derive(Clone, Debug, Default)]
pub struct WorkerStatus {
    /// Whether states of NAT are wanted, too.
    pub wants_states: bool,
    /// Its pipes.
    pub pipes: Vec<PipeStatus>,
    /// Its queues.
    pub queues: Vec<QueueStatus>,
    /// Its schedulers.
    pub schedulers: Vec<SchedulerStatus>,
    /// What its shaper counted.
    pub totals: Totals,
    /// Packets in its shaper.
    pub held: usize,
    /// Its instances of NAT.
    pub nats: Vec<NatStatus>,
}

/// One worker's end.
pub struct Services {
    /// Pipes and queues.
    pub pipes: Pipes,
    /// Instances of NAT.
    pub nats: Translations,
    switches: Arc<Switches>,
    orders: rtrb::Consumer<Order>,
    answers: rtrb::Producer<Answer>,
}

/// The control side's end of one worker.
struct Line {
    orders: rtrb::Producer<Order>,
    answers: rtrb::Consumer<Answer>,
}

/// The ends of `workers` workers, and that of the control side. `seed` is that of the flow hash (`Shared::seed`).
pub fn pair(workers: usize, seed: HashSeed) -> (control::ServiceControl, Vec<Services>) {
    let switches = Arc::new(Switches::default());
    let mut lines = Vec::new();
    let mut ends = Vec::new();
    for lane in lanes(workers, LANE) {
        let (orders, from_control) = rtrb::RingBuffer::new(ORDERS);
        let (to_control, answers) = rtrb::RingBuffer::new(ORDERS);
        lines.push(Line { orders, answers });
        ends.push(Services {
            pipes: Pipes::new(lane, workers),
            nats: Translations::default(),
            switches: switches.clone(),
            orders: from_control,
            answers: to_control,
        });
    }
    (control::ServiceControl::new(lines, switches, seed), ends)
}

impl Services {
    /// Whether what comes out of a pipe or NAT has passed the hook.
    #[inline]
    pub fn one_pass(&self) -> bool {
        self.switches.one_pass.load(Relaxed)
    }

    /// Whether frames pass the rules in a layer-2 pass.
    #[inline]
    pub fn has_layer2(&self) -> bool {
        self.switches.layer2.load(Relaxed)
    }

    /// Whether orders wait.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Carries out what was ordered.
    #[inline(never)]
    pub fn obey(&mut self, context: &mut Context<'_>) {
        while let Ok(order) = self.orders.pop() {
            match order {
                Order::Shaper(shaper) => {
                    if let Some(spare) = self.pipes.take_up(shaper) {
                        self.answer(Answer::Shaper(spare));
                    }
                }
                Order::Pipes(changes, owners) => {
                    changes.iter().for_each(|change| self.pipes.change(change, context));
                    self.pipes.follow(owners);
                }
                Order::Nats(fresh, changed) => {
                    for nat in fresh {
                        if let Some(old) = self.nats.put(nat) {
                            self.answer(Answer::Nat(old));
                        }
                    }
                    changed.iter().for_each(|config| self.nats.reconfigure(config));
                }
                Order::DeleteNats(numbers) => {
                    for number in numbers {
                        if let Some(nat) = self.nats.take(number) {
                            self.answer(Answer::Nat(nat));
                        }
                    }
                }
                Order::Tell(mut status) => {
                    self.tell(&mut status);
                    self.answer(Answer::Status(status));
                }
            }
        }
    }

    /// Gives something to the control side; what it does not take is taken down here.
    fn answer(&mut self, answer: Answer) {
        let _ = self.answers.push(answer);
    }

    fn tell(&self, status: &mut WorkerStatus) {
        if let Some(shaper) = self.pipes.shaper() {
            let owns = |target| self.pipes.owns(target);
            status.pipes = shaper.pipes().into_iter().filter(|pipe| owns(Target::Pipe(pipe.number))).collect();
            status.queues = shaper.queues().into_iter().filter(|queue| owns(Target::Queue(queue.number))).collect();
            status.schedulers =
                shaper.schedulers().into_iter().filter(|scheduler| owns(Target::Pipe(scheduler.number))).collect();
            status.totals = *shaper.totals();
            status.held = shaper.held();
        }
        status.nats = self
            .nats
            .iter()
            .map(|nat| NatStatus {
                number: nat.config().number,
                address: nat.address(),
                counters: *nat.counters(),
                links: nat.links(),
                states: if status.wants_states { nat.states().collect() } else { Vec::new() },
            })
            .collect();
    }
}
