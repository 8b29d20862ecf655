#![forbid(unsafe_code)]
//! The walk along the rules.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferrule_config::ipfw::ast::{
    Action, Argument, DEFAULT_RULE, DEFAULT_SET, ForwardTo, NatInstance, ReturnTo, Rule, StateName, Tag,
};
use ferrule_config::ipfw::table::TableValue;

use super::annotations::{Annotations, CALL_DEPTH, Caller};
use super::dice::Dice;
use super::edit;
use super::matching::{Scene, number};
use super::outcome::{Counter, LogEntry, Outcome, Resume, Verdict};
use super::pass::Pass;
use super::refusal;
use super::setup::Setup;
use super::state::{Sighting, State, States, Way};
use super::view::{ETHERNET, Family, Unreadable, View, protocol, word};

/// Most steps of one packet: rules that call back and forth for longer drop it. FreeBSD has no such bound.
const STEPS: usize = 1 << 20;

/// The interpreter, with the counters, dynamic rules and log that it has gathered.
pub struct Oracle {
    setup: Setup,
    /// The rules of the setup in their order, closed by rule 65535.
    rules: Arc<[Rule]>,
    counters: Vec<Counter>,
    states: States,
    log: Vec<LogEntry>,
    /// Entries that a rule may still log; None without limit.
    log_left: Vec<Option<u32>>,
    passes: u64,
}

/// What the look-up of dynamic rules said so far in this pass.
#[derive(Clone, Debug, PartialEq)]
enum Probed {
    /// Not asked.
    Not,
    /// Asked for this group.
    For(StateName),
}

/// Where a rule leads.
enum Step {
    /// To the rule behind this one.
    Next(usize),
    /// To this rule.
    Jump(usize),
    /// Nowhere: decided by this rule.
    Done(usize, Verdict),
}

/// One packet on its way.
struct Walk<'a> {
    frame: &'a mut Vec<u8>,
    view: View,
    pass: &'a Pass<'a>,
    annotations: &'a mut Annotations,
    argument: TableValue,
    probed: Probed,
    /// Rule and way of the state found last.
    found: Option<(usize, Way)>,
    now: u64,
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
        let argument = TableValue::default();
        let mut walk = Walk { frame, view, pass, annotations, argument, probed: Probed::Not, found: None, now };
        let mut at = start;
        for _ in 0..STEPS {
            if at >= self.rules.len() {
                break;
            }
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

    fn is_disabled(&self, index: usize) -> bool {
        let set = self.rules[index].set;
        set != DEFAULT_SET && self.setup.disabled_sets >> set & 1 == 1
    }

    fn count(&mut self, index: usize, walk: &Walk<'_>) {
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
    fn probe(&mut self, name: &StateName, walk: &mut Walk<'_>) -> Option<usize> {
        let needed = match &walk.probed {
            Probed::Not => true,
            Probed::For(StateName::Any) => false,
            Probed::For(before) => before != name,
        };
        if !needed {
            return None;
        }
        walk.probed = Probed::For(name.clone());
        let seen = Sighting { frame: walk.frame, view: &walk.view, pass: walk.pass, now: walk.now };
        walk.found = self.states.find(&seen, name, &self.setup.settings.lifetimes);
        walk.found.map(|(rule, _)| rule)
    }

    /// The action part of a rule: `log`, then `tag`, then the action.
    fn act(&mut self, at: usize, walk: &mut Walk<'_>) -> Step {
        let rules = Arc::clone(&self.rules);
        let rule = &rules[at];
        if rule.log.is_some() {
            self.write_log(at, walk);
        }
        match rule.tag {
            Some(Tag::Set(tag)) => {
                walk.annotations.tags.insert(number(tag, walk.argument.tag));
            }
            Some(Tag::Clear(tag)) => {
                walk.annotations.tags.remove(&number(tag, walk.argument.tag));
            }
            None => {}
        }
        let value = walk.argument;
        match &rule.action {
            Action::Allow => Step::Done(at, Verdict::Allow),
            Action::Deny => Step::Done(at, Verdict::Deny),
            Action::Unreach(..)
            | Action::Unreach6(_)
            | Action::Reset
            | Action::Reset6
            | Action::Abort
            | Action::Abort6 => Step::Done(at, refusal::verdict(&rule.action, walk.frame, &walk.view)),
            Action::Count => {
                self.count(at, walk);
                Step::Next(at)
            }
            Action::SkipTo(target) => {
                self.count(at, walk);
                let target = number(*target, value.skipto).max(u32::from(rule.number) + 1);
                Step::Jump(self.rule_from(target))
            }
            Action::Call(target) => self.call(at, rule, *target, walk),
            Action::Return(to) => self.give_back(at, *to, walk),
            Action::CheckState(name) => match self.probe(name, walk) {
                Some(parent) if !matches!(self.rules[parent].action, Action::CheckState(_)) => self.act(parent, walk),
                _ => Step::Next(at),
            },
            Action::Forward(_) if walk.pass.layer2 => Step::Next(at),
            Action::Forward(to) => Step::Done(at, forward(*to, at, walk)),
            Action::Nat(instance) => Step::Done(at, self.nat(*instance, walk)),
            Action::Pipe(pipe) => Step::Done(at, Verdict::Pipe(number(*pipe, value.pipe))),
            Action::Queue(queue) => Step::Done(at, Verdict::Queue(number(*queue, value.pipe))),
            Action::SetFib(fib) => {
                self.count(at, walk);
                let fib = number(*fib, value.fib) & 0x7fff;
                walk.annotations.fib = if fib < self.setup.settings.fibs { fib } else { 0 };
                Step::Next(at)
            }
            Action::SetDscp(point) => {
                let point = (number(*point, u32::from(value.dscp)) & 63) as u8;
                if edit::set_dscp(walk.frame, &walk.view, point) {
                    self.count(at, walk);
                }
                Step::Next(at)
            }
            Action::SetMark(mark, mask) => {
                let kept = walk.annotations.mark & !mask;
                walk.annotations.mark = kept | number(*mark, value.mark) & mask;
                self.count(at, walk);
                Step::Next(at)
            }
            Action::TcpSetMss(mss) => {
                if set_mss(walk, *mss) {
                    self.count(at, walk);
                    walk.probed = Probed::Not;
                }
                Step::Next(at)
            }
            Action::Reassemble => self.reassemble(at, walk),
            Action::Netgraph(hook) => Step::Done(at, Verdict::Netgraph(number(*hook, value.netgraph))),
            Action::NgTee(hook) => Step::Done(at, Verdict::NgTee(number(*hook, value.netgraph))),
            Action::Divert(_) | Action::Tee(_) if walk.pass.layer2 => Step::Next(at),
            Action::Divert(port) => Step::Done(at, Verdict::Divert(number(*port, value.divert))),
            Action::Tee(port) => Step::Done(at, Verdict::Tee(number(*port, value.divert))),
            // There is no such module here: as on FreeBSD when the instance is gone, the rule does not match.
            Action::External(..) => Step::Next(at),
        }
    }

    /// Index of the first enabled rule with this number or a higher one; the last rule where there is none.
    fn rule_from(&self, number: u32) -> usize {
        let reached = |rule: &Rule| u32::from(rule.number) >= number;
        let last = self.rules.len() - 1;
        let first = self.rules.iter().position(reached).unwrap_or(last);
        self.enabled_from(first)
    }

    fn enabled_from(&self, first: usize) -> usize {
        let last = self.rules.len() - 1;
        (first..last).find(|index| !self.is_disabled(*index)).unwrap_or(last)
    }

    fn call(&mut self, at: usize, rule: &Rule, target: Argument, walk: &mut Walk<'_>) -> Step {
        if walk.annotations.callers.len() >= CALL_DEPTH {
            return Step::Next(at);
        }
        self.count(at, walk);
        walk.annotations.callers.push(Caller { number: rule.number, index: at });
        Step::Jump(self.rule_from(number(target, walk.argument.skipto)))
    }

    fn give_back(&mut self, at: usize, to: ReturnTo, walk: &mut Walk<'_>) -> Step {
        let Some(caller) = walk.annotations.callers.pop() else { return Step::Next(at) };
        self.count(at, walk);
        Step::Jump(match to {
            ReturnTo::NextNumber => self.rule_from(u32::from(caller.number) + 1),
            ReturnTo::NextRule => self.enabled_from(caller.index + 1),
        })
    }

    fn nat(&self, instance: NatInstance, walk: &Walk<'_>) -> Verdict {
        if walk.view.family != Family::V4 {
            return Verdict::Deny;
        }
        match instance {
            NatInstance::Global => Verdict::NatGlobal,
            NatInstance::One(instance) => {
                let instance = number(instance, walk.argument.nat);
                let there = self.setup.environment.nat_instances.contains(&instance);
                if there { Verdict::Nat(instance) } else { Verdict::Deny }
            }
        }
    }

    fn reassemble(&mut self, at: usize, walk: &Walk<'_>) -> Step {
        if walk.view.family != Family::V4 {
            return Step::Next(at);
        }
        self.count(at, walk);
        // More fragments, or an offset.
        if word(walk.frame, ETHERNET + 6) & 0x3fff == 0 { Step::Next(at) } else { Step::Done(at, Verdict::Reassemble) }
    }

    fn write_log(&mut self, at: usize, walk: &Walk<'_>) {
        if let Some(left) = &mut self.log_left[at] {
            if *left == 0 {
                return;
            }
            *left -= 1;
        }
        self.log.push(LogEntry {
            rule: self.rules[at].number,
            direction: walk.pass.direction,
            interface: walk.pass.interface().map(str::to_owned),
            source: (walk.view.source, walk.view.source_port),
            destination: (walk.view.destination, walk.view.destination_port),
            protocol: walk.view.protocol,
        });
    }
}

/// `fwd`: replies that come through the rule's own state are not forwarded.
fn forward(to: ForwardTo, at: usize, walk: &Walk<'_>) -> Verdict {
    if walk.found == Some((at, Way::Reverse)) {
        return Verdict::Allow;
    }
    let v6 = walk.view.family == Family::V6;
    let (address, port) = match to {
        ForwardTo::V4(address, port) => (IpAddr::V4(address), port),
        ForwardTo::V6(address, _, port) => (IpAddr::V6(address), port),
        ForwardTo::Table(port) if v6 => (IpAddr::V6(walk.argument.ipv6), port),
        ForwardTo::Table(port) => (IpAddr::V4(walk.argument.ipv4), port),
    };
    if address.is_ipv6() == v6 { Verdict::Forward(address, port) } else { Verdict::Allow }
}

/// `tcp-setmss`: the first packets of TCP connections that have an MSS option. False leaves the rule as if it had not matched.
fn set_mss(walk: &mut Walk<'_>, mss: u16) -> bool {
    const SYN: u8 = 2;
    // Behind fragment and authentication headers FreeBSD does not find the TCP header, nor does it behind an Ethernet header.
    const UNSEEN: u8 = 1 | 16;
    let view = &walk.view;
    if walk.pass.layer2 || view.protocol != protocol::TCP || view.tcp_flags & SYN == 0 || view.extensions & UNSEEN != 0
    {
        return false;
    }
    let Some(tcp) = view.tcp() else { return false };
    let length = usize::from(walk.frame[tcp + 12] >> 4) * 4;
    if length <= 20 || tcp + length > view.end {
        return false;
    }
    edit::set_mss(walk.frame, tcp, length - 20, mss)
}
