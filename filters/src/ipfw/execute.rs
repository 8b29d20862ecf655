#![forbid(unsafe_code)]
//! The walk along the compiled rules, for packets whose trace is more than a counter and a verdict.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::{ForwardTo, NatInstance, ReturnTo, Tag};
use ferrule_config::ipfw::table::TableValue;
use ferrule_dataplane::packet::{Family, Flags, L3, Packet};
use ferrule_dataplane::stage::Hook;

use super::dynamic::{NameFilter, RuleRef};
use super::edit;
use super::fault::Fault;
use super::memo::{DENY, Memo, PLAIN, SLOT, TraceId};
use super::notes::Notes;
use super::program::{Act, MakeState, NO_ENTRY, Outside, Program, RuleFacts};
use super::residual::{Scene, Surroundings, number};

/// Most jumps of one packet: rules that call each other for longer drop it.
const JUMPS_MAX: usize = 4096;

/// Most states that send one packet to their rules: two `count keep-state` rules of different groups would send it to and fro for ever,
/// and FreeBSD's kernel with it.
const STATE_JUMPS_MAX: u32 = 16;

/// What the rules decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Passes.
    Allow,
    /// Is dropped.
    Deny,
    /// Is dropped; its sender is told with this ICMP code and MTU.
    Unreach(u8, Option<u16>),
    /// Is dropped; its sender is told with this ICMPv6 code.
    Unreach6(u8),
    /// Is dropped, and its TCP connection reset.
    Reset,
    /// Is dropped, and its SCTP association aborted.
    Abort,
    /// Goes to this next hop.
    Forward(IpAddr, u16),
    /// To an instance of NAT.
    Nat(u32),
    /// To the instances of NAT one after the other.
    NatGlobal,
    /// To a pipe.
    Pipe(u32),
    /// To a queue.
    Queue(u32),
    /// A fragment goes to reassembly.
    Reassemble,
    /// Where nothing is here.
    Outside(Outside, u32),
}

/// What rules do that reaches beyond the packet.
pub trait Effects: Surroundings {
    /// Counts the packet at a rule's place.
    fn count(&mut self, slot: u32, bytes: u64);
    /// Looks for a state of the packet's flow; gives the rule that made it, and whether the packet goes the way back. Where `is_there`
    /// says that the rule is gone, the state ends and nothing was found.
    fn probe(
        &mut self,
        name: NameFilter,
        packet: &mut Packet,
        is_there: impl FnOnce(RuleRef) -> Option<u32>,
    ) -> Option<(u32, bool)>;
    /// Makes a state for a rule, with its limit. False where there is no room or the limit is reached: the packet is dropped.
    fn install(&mut self, rule: RuleRef, state: &MakeState, limit: u32, packet: &mut Packet) -> bool;
    /// Writes a log entry for a rule.
    fn log(&mut self, rule: &RuleFacts, packet: &Packet, hook: Hook);
    /// Whether there is this instance of NAT.
    fn has_nat(&self, instance: u32) -> bool;
    /// How many routing tables there are.
    fn fibs(&self) -> u32;
}

/// One packet in one pass.
pub struct Walk<'a> {
    /// The packet.
    pub packet: &'a mut Packet,
    /// Its key.
    pub key: u64,
    /// Hook.
    pub hook: Hook,
    /// Whether it is the link layer's pass.
    pub layer2: bool,
    /// What hangs on it.
    pub notes: &'a mut Notes,
    /// Bytes that counters count.
    pub bytes: u64,
}

/// A decision and the rule that made it; none where the walk went on for too long.
pub type Outcome = (Decision, Option<u32>);

enum Step {
    Next,
    Jump(u32),
    Done(Decision, u32),
}

struct Run<'a, 'p, E> {
    walk: &'a mut Walk<'p>,
    program: &'a Program,
    around: &'a mut E,
    argument: TableValue,
    /// Group of the last look-up of states.
    probed: Option<NameFilter>,
    /// What it found.
    found: Option<(u32, bool)>,
    /// How many states may still send the packet to their rules.
    state_jumps: u32,
}

/// Takes a packet along the rules from an entry on.
pub fn walk<E: Effects>(
    program: &Program,
    memo: &mut Memo,
    walk: &mut Walk<'_>,
    start: u32,
    around: &mut E,
) -> Outcome {
    let mut run = Run {
        walk,
        program,
        around,
        argument: TableValue::default(),
        probed: None,
        found: None,
        state_jumps: STATE_JUMPS_MAX,
    };
    let mut start = start;
    // Rule that still sees the value of the table look-up that led to it.
    let mut carry = NO_ENTRY;
    for _ in 0..JUMPS_MAX {
        let id = run.trace(memo, start);
        if id & PLAIN != 0 {
            run.around.count(id & SLOT, run.walk.bytes);
            let decision = if id & DENY != 0 { Decision::Deny } else { Decision::Allow };
            return (decision, program.rule_at(id & SLOT));
        }
        let Some(trace) = memo.trace(id) else { break };
        let mut jump = trace.next;
        for &step in memo.steps(&trace) {
            let Some(entry) = program.entries.get(step as usize) else { break };
            if carry != entry.rule {
                run.argument = TableValue::default();
            }
            carry = if matches!(entry.act, Act::Probe(_)) { entry.rule } else { NO_ENTRY };
            if !run.passes(step) {
                continue;
            }
            match run.take(step) {
                Step::Next => {}
                Step::Jump(to) => {
                    carry = program.entries.get(to as usize).map_or(NO_ENTRY, |entry| entry.rule);
                    // A certain jump is followed in the trace itself.
                    if !(entry.is_certain() && entry.state.is_none() && matches!(entry.act, Act::SkipTo(_))) {
                        jump = to;
                        break;
                    }
                }
                Step::Done(decision, rule) => {
                    run.count(rule);
                    return (decision, Some(rule));
                }
            }
        }
        if jump == NO_ENTRY {
            break;
        }
        start = jump;
    }
    (Decision::Deny, None)
}

impl<E: Effects> Run<'_, '_, E> {
    fn trace(&mut self, memo: &mut Memo, start: u32) -> TraceId {
        let key = self.walk.key;
        let id = if start == 0 { memo.find(key) } else { memo.find_from(key, start) };
        if id != 0 {
            return id;
        }
        let scene = self.scene(0);
        memo.build(self.program, key, start, |atom| scene.holds(atom))
    }

    fn scene(&self, rule: u32) -> Scene<'_> {
        Scene {
            packet: self.walk.packet,
            hook: self.walk.hook,
            layer2: self.walk.layer2,
            notes: self.walk.notes,
            number: self.program.rules.get(rule as usize).map_or(0, |rule| rule.number),
            planted: self.program.planted,
        }
    }

    /// Whether the residual tests of an entry pass.
    fn passes(&mut self, entry: u32) -> bool {
        let Some(entry) = self.program.entries.get(entry as usize) else { return false };
        if entry.is_certain() {
            return true;
        }
        let scene = Scene {
            packet: self.walk.packet,
            hook: self.walk.hook,
            layer2: self.walk.layer2,
            notes: self.walk.notes,
            number: self.program.rules.get(entry.rule as usize).map_or(0, |rule| rule.number),
            planted: self.program.planted,
        };
        entry.checks.iter().all(|check| scene.passes(check, entry.rule, &mut self.argument, self.around))
    }

    /// What an entry that matches does: its state, then its action.
    fn take(&mut self, step: u32) -> Step {
        let Some(entry) = self.program.entries.get(step as usize) else { return Step::Next };
        if let Act::Probe(name) = &entry.act {
            return match self.probe(*name) {
                Some(parent) => self.act_of_rule(parent),
                None => Step::Next,
            };
        }
        if let Some(state) = &entry.state {
            let count = state.limit.as_ref().map_or(0, |limit| number(limit.count, self.argument.limit));
            let count = count.saturating_add(u32::from(self.program.planted.has(Fault::LimitOneMore)));
            let made_by = self.program.rules.get(entry.rule as usize);
            let made_by =
                made_by.map_or_else(RuleRef::default, |rule| RuleRef { index: rule.slot, generation: rule.generation });
            if !self.around.install(made_by, state, count, self.walk.packet) {
                return Step::Done(Decision::Deny, entry.rule);
            }
            if state.deferred {
                return Step::Next;
            }
        }
        self.act(step)
    }

    fn probe(&mut self, name: NameFilter) -> Option<u32> {
        let needed = match self.probed {
            None => true,
            Some(NameFilter::Any) => false,
            Some(before) => before != name,
        };
        if !needed {
            return None;
        }
        self.probed = Some(name);
        self.found = None;
        if self.state_jumps == 0 {
            return None;
        }
        let program = self.program;
        self.found = self.around.probe(name, self.walk.packet, |made_by| program.rule_of(made_by));
        self.state_jumps -= u32::from(self.found.is_some());
        self.found.map(|(rule, _)| rule)
    }

    /// The action of a rule whose state was found.
    fn act_of_rule(&mut self, rule: u32) -> Step {
        match self.program.rules.get(rule as usize).map(|rule| rule.entry) {
            None | Some(NO_ENTRY) => Step::Next,
            Some(entry) => match self.act(entry) {
                // On behind the rule whose action it was.
                Step::Next => {
                    self.argument = TableValue::default();
                    Step::Jump(entry + 1)
                }
                other => other,
            },
        }
    }

    fn count(&mut self, rule: u32) {
        if let Some(rule) = self.program.rules.get(rule as usize) {
            self.around.count(rule.slot, self.walk.bytes);
        }
    }

    /// `log`, then `tag`, then the action.
    fn act(&mut self, step: u32) -> Step {
        let program = self.program;
        let Some(entry) = program.entries.get(step as usize) else { return Step::Next };
        let at = entry.rule;
        let Some(rule) = program.rules.get(at as usize) else { return Step::Next };
        if rule.log.is_some() {
            self.around.log(rule, self.walk.packet, self.walk.hook);
        }
        match rule.tag {
            Some(Tag::Set(tag)) => {
                let tag = number(tag, self.argument.tag);
                if !self.walk.notes.tags.as_slice().contains(&tag) {
                    self.walk.notes.tags.push(tag);
                }
            }
            Some(Tag::Clear(tag)) if !program.planted.has(Fault::UntagForgotten) => {
                self.walk.notes.tags.remove(number(tag, self.argument.tag));
            }
            _ => {}
        }
        let value = self.argument;
        let done = |decision| Step::Done(decision, at);
        match &entry.act {
            Act::Allow => done(Decision::Allow),
            Act::Deny => done(Decision::Deny),
            Act::Unreach(..) | Act::Unreach6(_) | Act::Reset | Act::Reset6 | Act::Abort | Act::Abort6 => {
                done(edit::refusal(&entry.act, self.walk.packet))
            }
            Act::Count => self.counted(at),
            Act::SkipTo(to) => {
                self.count(at);
                Step::Jump(*to)
            }
            Act::SkipToTable => {
                self.count(at);
                Step::Jump(program.skip_target(at, value.skipto))
            }
            Act::Call(to) => self.call(at, *to),
            Act::Return(to) => self.give_back(at, *to),
            Act::CheckState(name) => match self.probe(*name) {
                Some(parent) if !self.is_check(parent) => self.act_of_rule(parent),
                _ => Step::Next,
            },
            // Handled before the tests.
            Act::Probe(_) => Step::Next,
            Act::Forward(_) if self.walk.layer2 => Step::Next,
            Act::Forward(to) => done(self.forward(at, *to)),
            Act::Nat(instance) => done(self.nat(*instance)),
            Act::Pipe(pipe) => done(Decision::Pipe(number(*pipe, value.pipe))),
            Act::Queue(queue) => done(Decision::Queue(number(*queue, value.pipe))),
            Act::SetFib(fib) => {
                let fib = number(*fib, value.fib) & 0x7fff;
                self.walk.notes.fib = if fib < self.around.fibs() { fib } else { 0 };
                self.counted(at)
            }
            Act::SetDscp(point) => {
                if edit::set_dscp(self.walk.packet, (number(*point, value.dscp.into()) & 63) as u8) {
                    self.count(at);
                }
                Step::Next
            }
            Act::SetMark(mark, mask) => {
                let kept = self.walk.notes.mark & !mask;
                self.walk.notes.mark = kept | number(*mark, value.mark) & mask;
                self.counted(at)
            }
            Act::TcpSetMss(mss) => {
                let extensions = if self.walk.packet.family == Family::V6 { self.scene(at).extensions() } else { 0 };
                if !self.walk.layer2 && edit::set_mss(self.walk.packet, *mss, extensions) {
                    self.count(at);
                    self.probed = None;
                }
                Step::Next
            }
            // A fragment counts here and once more as decided, as in FreeBSD.
            Act::Reassemble if self.walk.packet.family == Family::V4 => {
                self.count(at);
                if self.walk.packet.flags.has(Flags::FRAGMENT) { done(Decision::Reassemble) } else { Step::Next }
            }
            Act::Reassemble | Act::Nothing => Step::Next,
            Act::Outside(Outside::Divert | Outside::Tee, _) if self.walk.layer2 => Step::Next,
            Act::Outside(way, argument) => {
                let table = match way {
                    Outside::Netgraph | Outside::NgTee => value.netgraph,
                    Outside::Divert | Outside::Tee => value.divert,
                };
                done(Decision::Outside(*way, number(*argument, table)))
            }
        }
    }

    fn counted(&mut self, rule: u32) -> Step {
        self.count(rule);
        Step::Next
    }

    fn is_check(&self, rule: u32) -> bool {
        let entry = self.program.rules.get(rule as usize).map_or(NO_ENTRY, |rule| rule.entry);
        matches!(self.program.entries.get(entry as usize).map(|entry| &entry.act), Some(Act::CheckState(_)) | None)
    }

    fn call(&mut self, at: u32, to: Option<u32>) -> Step {
        let forgets = self.program.planted.has(Fault::CallForgetsCaller);
        if !forgets && !self.walk.notes.callers.push(at) {
            return Step::Next;
        }
        self.count(at);
        let table = self.argument.skipto;
        Step::Jump(to.unwrap_or_else(|| self.program.entry_from(self.program.rule_from(table))))
    }

    fn give_back(&mut self, at: u32, to: ReturnTo) -> Step {
        let Some(caller) = self.walk.notes.callers.pop() else { return Step::Next };
        self.count(at);
        let number = self.program.rules.get(caller as usize).map_or(0, |rule| u32::from(rule.number));
        Step::Jump(match to {
            ReturnTo::NextNumber if !self.program.planted.has(Fault::ReturnToSameNumber) => {
                self.program.entry_from(self.program.rule_from(number + 1))
            }
            _ => self.program.entry_from(caller as usize + 1),
        })
    }

    /// `fwd`: replies that come through the rule's own state are not forwarded.
    fn forward(&self, at: u32, to: ForwardTo) -> Decision {
        if self.found == Some((at, true)) {
            return Decision::Allow;
        }
        let v6 = self.walk.packet.family == Family::V6;
        let (address, port): (IpAddr, u16) = match to {
            ForwardTo::V4(address, port) => (address.into(), port),
            ForwardTo::V6(address, _, port) => (address.into(), port),
            ForwardTo::Table(port) if v6 => (self.argument.ipv6.into(), port),
            ForwardTo::Table(port) => (self.argument.ipv4.into(), port),
        };
        if address.is_ipv6() == v6 { Decision::Forward(address, port) } else { Decision::Allow }
    }

    fn nat(&self, instance: NatInstance) -> Decision {
        match instance {
            _ if self.walk.packet.family != Family::V4 => Decision::Deny,
            NatInstance::Global => Decision::NatGlobal,
            NatInstance::One(instance) => {
                let instance = number(instance, self.argument.nat);
                if self.around.has_nat(instance) { Decision::Nat(instance) } else { Decision::Deny }
            }
        }
    }
}

/// Bytes that counters count of a packet.
#[inline(always)]
pub fn bytes_of(packet: &Packet) -> u64 {
    (packet.frame.len() - L3) as u64
}
