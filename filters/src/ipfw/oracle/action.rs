#![forbid(unsafe_code)]
//! What a rule does once it matches.

use std::net::IpAddr;
use std::sync::Arc;

use ferrule_config::ipfw::ast::{Action, Argument, ForwardTo, NatInstance, ReturnTo, Rule, Tag};

use super::annotations::{CALL_DEPTH, Caller};
use super::edit;
use super::interpreter::{Oracle, Probed, Step, Walk};
use super::matching::number;
use super::outcome::{LogEntry, Verdict};
use super::refusal;
use super::state::Way;
use super::view::{ETHERNET, Family, protocol, word};

impl Oracle {
    /// The action part of a rule: `log`, then `tag`, then the action.
    pub(super) fn act(&mut self, at: usize, walk: &mut Walk<'_>) -> Step {
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
        if walk.annotations.callers.len() >= CALL_DEPTH || walk.calls_left == 0 {
            return Step::Next(at);
        }
        walk.calls_left -= 1;
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
