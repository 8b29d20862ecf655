#![forbid(unsafe_code)]
//! What can be compared.

use std::time::Duration;

use ferrule_config::ipfw::ast::StateName;

use crate::ipfw::oracle::{Annotations, Counter, Flow, LogEntry, Oracle, Outcome, Pass, Resume, Setup, State};

/// Something that judges packets by ipfw rules.
///
/// Indices of rules are into the rules ordered by number, equal numbers in the order given, rule 65535 last. Numbers of `prob` come
/// from [`crate::ipfw::oracle::Dice`] with the seed of the setup: the first `judge` or `resume` after `load` is pass 0, and each one
/// counts (also of packets that cannot be read), except where `resume` is `done` or the layer has no passes.
pub trait Judge {
    /// Puts rules in force, forgetting all counters, states and log entries of earlier ones.
    fn load(&mut self, setup: &Setup);
    /// Judges a packet, as [`Oracle::judge`] does.
    fn judge(&mut self, frame: &mut Vec<u8>, pass: &Pass<'_>, annotations: &mut Annotations, now: Duration) -> Outcome;
    /// Goes on with a packet, as [`Oracle::resume`] does.
    fn resume(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Resume,
    ) -> Outcome;
    /// Counters in the order of rules.
    fn counters(&self) -> Vec<Counter>;
    /// Dynamic rules in any order: the comparison sorts them.
    fn states(&self) -> Vec<StateRow>;
    /// What was logged since `load`.
    fn log(&self) -> Vec<LogEntry>;
}

/// A dynamic rule as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRow {
    /// Flow in the direction of its first packet.
    pub flow: Flow,
    /// Group.
    pub name: StateName,
    /// Index of the rule that made it.
    pub rule: usize,
    /// Second in which it ends.
    pub expire: u64,
    /// Packets of both directions, as `ipfw -d list` shows them.
    pub packets: u64,
    /// Bytes likewise.
    pub bytes: u64,
}

impl StateRow {
    /// The row of one of the oracle's states.
    pub fn of(state: &State) -> Self {
        StateRow {
            flow: state.flow.clone(),
            name: state.name.clone(),
            rule: state.rule,
            expire: state.expire,
            packets: state.packets.iter().sum(),
            bytes: state.bytes.iter().sum(),
        }
    }
}

impl Judge for Oracle {
    fn load(&mut self, setup: &Setup) {
        *self = Oracle::new(setup.clone());
    }

    fn judge(&mut self, frame: &mut Vec<u8>, pass: &Pass<'_>, annotations: &mut Annotations, now: Duration) -> Outcome {
        Oracle::judge(self, frame, pass, annotations, now)
    }

    fn resume(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Resume,
    ) -> Outcome {
        Oracle::resume(self, frame, pass, annotations, now, from)
    }

    fn counters(&self) -> Vec<Counter> {
        Oracle::counters(self).to_vec()
    }

    fn states(&self) -> Vec<StateRow> {
        Oracle::states(self).iter().map(StateRow::of).collect()
    }

    fn log(&self) -> Vec<LogEntry> {
        Oracle::log(self).to_vec()
    }
}
