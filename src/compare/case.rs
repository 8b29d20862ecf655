//! One row of the comparison: a gateway, what is sent through it, and what a run of it took.

#![forbid(unsafe_code)]

use ferrule_dataplane::clock;
use ferrule_dataplane::counters::NODES;

use super::control::Control;
use super::flows::{FLOWS, Family, Flow, write_flow};
use super::rig::{PIECE, Random, Rig};
use crate::failure::Failure;

/// The control loop runs once every so many rounds.
const CONTROL_EVERY: u64 = 32;
/// Rounds before the first that counts: caches, branch predictors and the clock's frequency settle.
const WARM_UP: u64 = 50;

/// What is sent.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// The classic flow set, one flow after the other.
    Classic,
    /// So many flows, each packet one of them at random.
    Wide(u32),
    /// These, one after the other.
    Flows(Vec<Flow>),
}

/// Where a sequence of packets has come to.
pub struct Cursor {
    number: u32,
    random: Random,
}

impl Default for Cursor {
    fn default() -> Cursor {
        Cursor { number: 0, random: Random::new(3) }
    }
}

impl Traffic {
    /// Flows that there are.
    pub fn len(&self) -> usize {
        match self {
            Traffic::Classic => FLOWS as usize,
            Traffic::Wide(flows) => *flows as usize,
            Traffic::Flows(flows) => flows.len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The flow of this number.
    pub fn flow(&self, family: Family, number: u32) -> Flow {
        let udp = |(source, destination)| Flow::udp(source, destination);
        match self {
            Traffic::Classic => udp(family.classic_flow(number)),
            Traffic::Wide(flows) => udp(family.wide_flow(number % flows)),
            Traffic::Flows(flows) => flows[number as usize % flows.len()],
        }
    }

    /// The next packet's flow.
    pub fn next(&self, family: Family, cursor: &mut Cursor) -> Flow {
        cursor.number = cursor.number.wrapping_add(1);
        match self {
            Traffic::Wide(flows) => self.flow(family, cursor.random.below(*flows as usize) as u32),
            _ => self.flow(family, cursor.number),
        }
    }
}

/// A row to be.
pub struct Case {
    /// As in [`super::Row::set`].
    pub set: String,
    /// Of the packets.
    pub family: Family,
    /// The gateway.
    pub rig: Rig,
    /// What goes through it.
    pub traffic: Traffic,
    /// Number of the case that forwards the same packets without a filter; its own where it is that one.
    pub plain: usize,
    /// Whether the answer shows it; others are there to be compared with.
    pub is_shown: bool,
    cursor: Cursor,
}

/// One run of one row.
#[derive(Clone, Debug)]
pub struct Run {
    /// TSC cycles of the worker per packet.
    pub cycles: f64,
    /// By node of the path.
    pub nodes: [f64; NODES.len()],
    /// In filter stages, where they are stamped.
    pub stages: f64,
    /// Packets a second of the whole loop.
    pub loop_pps: f64,
    /// What the control loop read.
    pub control: f64,
}

impl Case {
    /// A row that is shown.
    pub fn new(set: impl Into<String>, family: Family, rig: Rig, traffic: Traffic, plain: usize) -> Case {
        let set = set.into();
        Case { set, family, rig, traffic, plain, is_shown: true, cursor: Cursor::default() }
    }

    /// The same, not shown.
    pub fn hidden(self) -> Case {
        Case { is_shown: false, ..self }
    }

    /// Sends every flow once: states are made, and what is found once for each flow is found.
    ///
    /// # Errors
    /// When packets were lost.
    pub fn prime(&mut self) -> Result<(), Failure> {
        let (to, from) = self.rig.macs();
        let mut number = 0;
        for _ in 0..self.traffic.len().div_ceil(PIECE) {
            self.rig.fill(|frame| {
                let flow = self.traffic.flow(self.family, number);
                number += 1;
                write_flow(frame, to, from, &flow)
            })?;
            self.rig.round()?;
        }
        Ok(())
    }

    /// The median of so many rounds' cycles per packet, each round of new packets.
    ///
    /// # Errors
    /// When packets were lost.
    pub fn sample(&mut self, rounds: usize) -> Result<f64, Failure> {
        let mut cycles = Vec::with_capacity(rounds);
        for _ in 0..rounds.max(1) {
            self.fill()?;
            cycles.push(self.rig.round()?.cycles_per_packet());
        }
        crate::ministat::median(&cycles).ok_or_else(|| Failure::runtime("a sample without rounds"))
    }

    fn fill(&mut self) -> Result<(), Failure> {
        let (to, from) = self.rig.macs();
        let (traffic, cursor, family) = (&self.traffic, &mut self.cursor, self.family);
        self.rig.fill(|frame| write_flow(frame, to, from, &traffic.next(family, cursor)))
    }

    /// One run of at least so many packets.
    ///
    /// # Errors
    /// When packets were lost.
    pub fn run(&mut self, packets: u64, control: &Control) -> Result<Run, Failure> {
        let rounds = packets.div_ceil(PIECE as u64).max(1);
        let (mut cycles, mut controls, mut whole, mut stages) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut nodes: [Vec<f64>; NODES.len()] = Default::default();
        for number in 0..rounds + WARM_UP {
            let start = clock::cycles();
            self.fill()?;
            let round = self.rig.round()?;
            let took = clock::cycles().wrapping_sub(start);
            if number < WARM_UP {
                continue;
            }
            cycles.push(round.cycles_per_packet());
            stages.push(round.stages());
            whole.push(took as f64 / round.packets as f64);
            nodes.iter_mut().enumerate().for_each(|(node, all)| all.push(round.node(node)));
            if number % CONTROL_EVERY == 0 || controls.is_empty() {
                controls.push(control.once());
            }
        }
        let middle = |values: &[f64]| crate::ministat::median(values).unwrap_or_default();
        Ok(Run {
            cycles: middle(&cycles),
            nodes: nodes.map(|all| middle(&all)),
            stages: middle(&stages),
            loop_pps: clock::cycles_per_second() / middle(&whole),
            control: middle(&controls),
        })
    }
}
