#![forbid(unsafe_code)]
//! The walk along the rules.

use std::sync::Arc;
use std::time::Duration;

use ferrule_config::ipfw::ast::{Action, DEFAULT_RULE, DEFAULT_SET, Rule, StateName};
use ferrule_config::ipfw::table::TableValue;

use super::annotations::Annotations;
use super::dice::Dice;
use super::matching::{Scene, number};
use super::outcome::{Counter, LogEntry, Outcome, Resume, Verdict};
use super::pass::Pass;
use super::setup::Setup;
use super::state::{Sighting, State, States, Way};
use super::view::{Unreadable, View};

/// Most states that one pass acts upon; after that a look-up finds nothing. FreeBSD has no such bound, and rules that lead back to each
/// other through states of two groups (or a state of `tcp-setmss`, behind which states are looked for anew) hang it for ever.
pub const STATE_JUMPS: usize = 16;
/// Most calls of one pass; one more goes to the next rule, as when [`super::CALL_DEPTH`] is reached. FreeBSD has no such bound either, and
/// rules that call back can take time exponential in their number.
pub const CALLS: usize = 256;

/// The interpreter, with the counters, dynamic rules and log that it has gathered.
pub struct Oracle {
    pub(super) setup: Setup,
    /// The rules of the setup in their order, closed by rule 65535.
    pub(super) rules: Arc<[Rule]>,
    pub(super) counters: Vec<Counter>,
    pub(super) states: States,
    pub(super) log: Vec<LogEntry>,
    /// Entries that a rule may still log; None without limit.
    pub(super) log_left: Vec<Option<u32>>,
    pub(super) passes: u64,
}

/// What the look-up of dynamic rules said so far in this pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Probed {
    /// Not asked.
    Not,
    /// Asked for this group.
    For(StateName),
}

/// Where a rule leads.
pub(super) enum Step {
    /// To the rule behind this one.
    Next(usize),
    /// To this rule.
    Jump(usize),
    /// Nowhere: decided by this rule.
    Done(usize, Verdict),
}

/// One packet on its way.
pub(super) struct Walk<'a> {
    pub frame: &'a mut Vec<u8>,
    pub view: View,
    pub pass: &'a Pass<'a>,
    pub annotations: &'a mut Annotations,
    pub argument: TableValue,
    pub probed: Probed,
    /// Rule and way of the state found last.
    pub found: Option<(usize, Way)>,
    pub jumps_left: usize,
    pub calls_left: usize,
    pub now: u64,
}

impl Oracle {
    /// Takes the rules in force: ordered by number, closed by rule 65535.
    pub fn new(mut setup: Setup) -> Self {
        let mut highest = 0;
        for rule in &mut setup.rules {
            if rule.number == 0 {
                rule.number = (highest + 100).min(DEFAULT_RULE - 1);
            }
            highest = highest.max(rule.number);
        }
        setup.rules.retain(|rule| rule.number != DEFAULT_RULE);
        setup.rules.sort_by_key(|rule| rule.number);
        setup.rules.push(Rule {
            number: DEFAULT_RULE,
            set: DEFAULT_SET,
            probability: None,
            action: if setup.settings.default_to_accept { Action::Allow } else { Action::Deny },
            log: None,
            tag: None,
            blocks: Vec::new(),
            state: None,
            options_only: false,
            comment: None,
            span: Default::default(),
        });
        let limit = setup.settings.verbose_limit;
        let left = |rule: &Rule| match rule.log.map(|log| log.amount.unwrap_or(limit)) {
            None | Some(0) => None,
            some => some,
        };
        Oracle {
            counters: vec![Counter::default(); setup.rules.len()],
            log_left: setup.rules.iter().map(left).collect(),
            states: States::default(),
            log: Vec::new(),
            passes: 0,
            rules: std::mem::take(&mut setup.rules).into(),
            setup,
        }
    }

    /// The rules in their order, the last one included. Indices in outcomes and states are into this.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Counters of the rules, in their order.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Dynamic rules, oldest first.
    pub fn states(&self) -> &[State] {
        self.states.all()
    }

    /// What was logged.
    pub fn log(&self) -> &[LogEntry] {
        &self.log
    }

    /// Ends the dynamic rules whose time has come; each pass does it as well.
    pub fn expire(&mut self, now: Duration) {
        self.states.expire(now.as_secs());
    }

    /// Enables and disables sets (`set enable`, `set disable`): bit i disables set i.
    pub fn disable_sets(&mut self, sets: u32) {
        self.setup.disabled_sets = sets;
    }

    /// Judges a packet in one pass, `now` after the start. Rules may change bytes of the frame and what the packet carries.
    pub fn judge(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
    ) -> Outcome {
        annotations.mark = 0;
        self.run(frame, pass, annotations, now, 0)
    }

    /// Goes on with a packet that came back from where an outcome sent it.
    pub fn resume(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Resume,
    ) -> Outcome {
        if from.done {
            return Outcome::ruleless(Verdict::Allow);
        }
        self.run(frame, pass, annotations, now, from.after + 1)
    }

    fn run(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        start: usize,
    ) -> Outcome {
        if pass.layer2 && !self.setup.settings.layer2 {
            return Outcome::ruleless(Verdict::Allow);
        }
        let now = now.as_secs();
        self.states.expire(now);
        let pass_number = self.passes;
        self.passes += 1;
        let Ok(view) = View::read(frame, pass.layer2, &self.setup.settings) else {
            return Outcome::ruleless(Verdict::Deny);
        };
        let mut walk = Walk {
            frame,
            view,
            pass,
            annotations,
            argument: TableValue::default(),
            probed: Probed::Not,
            found: None,
            jumps_left: STATE_JUMPS,
            calls_left: CALLS,
            now,
        };
        let mut at = start;
        while at < self.rules.len() {
            if self.is_disabled(at) {
                at += 1;
                continue;
            }
            match self.step(at, &mut walk, pass_number) {
                Err(Unreadable) => return Outcome::ruleless(Verdict::Deny),
                Ok(Step::Next(passed)) => {
                    walk.argument = TableValue::default();
                    at = passed + 1;
                }
                Ok(Step::Jump(target)) => at = target,
                Ok(Step::Done(rule, verdict)) => {
                    self.count(rule, &walk);
                    return Outcome { verdict, rule: Some(rule), resume: self.resumption(rule, verdict) };
                }
            }
        }
        Outcome::ruleless(Verdict::Deny)
    }

    pub(super) fn is_disabled(&self, index: usize) -> bool {
        let set = self.rules[index].set;
        set != DEFAULT_SET && self.setup.disabled_sets >> set & 1 == 1
    }

    pub(super) fn count(&mut self, index: usize, walk: &Walk<'_>) {
        let counter = &mut self.counters[index];
        counter.packets += 1;
        counter.bytes += walk.view.counted;
        counter.last = Some(walk.now);
    }

    fn resumption(&self, after: usize, verdict: Verdict) -> Option<Resume> {
        let done = match verdict {
            Verdict::Pipe(_) | Verdict::Queue(_) | Verdict::Netgraph(_) | Verdict::NgTee(_) => {
                self.setup.settings.one_pass
            }
            Verdict::Nat(_) | Verdict::NatGlobal => self.setup.settings.one_pass,
            Verdict::Reassemble | Verdict::Divert(_) | Verdict::Tee(_) => false,
            _ => return None,
        };
        Some(Resume { after, done })
    }

    /// One rule: chance, states, tests, the state it makes, and what it does.
    fn step(&mut self, at: usize, walk: &mut Walk<'_>, pass_number: u64) -> Result<Step, Unreadable> {
        let rules = Arc::clone(&self.rules);
        let rule = &rules[at];
        let dice = Dice { seed: self.setup.seed };
        if rule.probability.is_some_and(|chance| !dice.lets_match(pass_number, at, chance)) {
            return Ok(Step::Next(at));
        }
        if let Some(state) = &rule.state
            && state.probes
            && let Some(parent) = self.probe(&state.name, walk)
        {
            return Ok(self.act(parent, walk));
        }
        for block in &rule.blocks {
            let mut hit = false;
            for term in &block.terms {
                let scene = Scene {
                    setup: &self.setup,
                    frame: walk.frame,
                    view: &walk.view,
                    pass: walk.pass,
                    annotations: walk.annotations,
                    rule: rule.number,
                };
                if scene.matches(&term.test, &mut walk.argument)? != term.not {
                    hit = true;
                    break;
                }
            }
            if !hit {
                return Ok(Step::Next(at));
            }
        }
        if let Some(state) = &rule.state {
            let limit = state.limit.as_ref().map(|limit| (limit, number(limit.count, walk.argument.limit)));
            let seen = Sighting { frame: walk.frame, view: &walk.view, pass: walk.pass, now: walk.now };
            if self.states.install(&seen, at, &state.name, limit, &self.setup.settings).is_err() {
                return Ok(Step::Done(at, Verdict::Deny));
            }
            if state.deferred {
                return Ok(Step::Next(at));
            }
        }
        Ok(self.act(at, walk))
    }

    /// Looks for a dynamic rule, once for each group in a pass; gives the rule that made it.
    pub(super) fn probe(&mut self, name: &StateName, walk: &mut Walk<'_>) -> Option<usize> {
        let needed = match &walk.probed {
            Probed::Not => true,
            Probed::For(StateName::Any) => false,
            Probed::For(before) => before != name,
        };
        if !needed {
            return None;
        }
        walk.probed = Probed::For(name.clone());
        walk.found = None;
        if walk.jumps_left == 0 {
            return None;
        }
        let seen = Sighting { frame: walk.frame, view: &walk.view, pass: walk.pass, now: walk.now };
        walk.found = self.states.find(&seen, name, &self.setup.settings.lifetimes);
        walk.jumps_left -= usize::from(walk.found.is_some());
        walk.found.map(|(rule, _)| rule)
    }
}
