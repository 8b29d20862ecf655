#![forbid(unsafe_code)]
//! A compiled rule set: immutable, shared by all workers.
//!
//! A rule becomes one [`Entry`], or two where it looks for a state before anything else. An entry's tests are split by what they need:
//! *header* tests are in the [`Classifier`]; *mixed* ones, blocks whose terms ask for several header fields, are made once for each key
//! when a trace is built; *residual* ones are made on each packet. Header tests have no side effects, so making them first changes nothing.

use std::collections::HashMap;
use std::sync::Arc;

use ferrule_config::ipfw::ast::{Argument, DEFAULT_RULE, ForwardTo, Limit, NatInstance, ReturnTo, Rule, Tag};

use ferrule_config::ipfw::table::TableKind;

use super::classify::Classifier;
use super::dynamic::{NameFilter, NameId, RuleRef};
use super::fault::Planted;
use super::header::Atom;
use super::log::LogBudget;
use super::residual::Check;
use super::table::TableId;

/// What compiling needs to know beside the rules.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bit i: set i is disabled. Set 31 never is.
    pub disabled_sets: u32,
    /// What rule 65535 does.
    pub default_to_accept: bool,
    /// `net.inet.ip.fw.verbose_limit`: records of a rule that names no `logamount`; 0 is without limit.
    pub verbose_limit: u32,
    /// Names of the ports, by number.
    pub ports: Vec<String>,
    /// Tables by name, with what they are looked up by. A rule that names another, or one of another kind, never finds anything there.
    pub tables: HashMap<String, (TableId, TableKind)>,
    /// A fault to be found by tests.
    pub planted: Planted,
}

/// What an entry does with a packet that meets its tests.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Passes.
    Allow,
    /// Drops.
    Deny,
    /// Drops and sends "unreachable" (ICMP code, MTU).
    Unreach(u8, Option<u16>),
    /// As [`Act::Unreach`] for IPv6.
    Unreach6(u8),
    /// Drops and resets.
    Reset,
    /// Drops and aborts.
    Abort,
    /// As [`Act::Reset`] for IPv6.
    Reset6,
    /// As [`Act::Abort`] for IPv6.
    Abort6,
    /// Counts.
    Count,
    /// Goes on at this entry.
    SkipTo(u32),
    /// Goes on at the rule that a table names.
    SkipToTable,
    /// Goes on at this entry until a return; None is the rule that a table names.
    Call(Option<u32>),
    /// Back behind the last call.
    Return(ReturnTo),
    /// Looks for a state of the group, and goes on with what its rule does.
    CheckState(NameFilter),
    /// As [`Act::CheckState`], before the tests of a `keep-state` rule.
    Probe(NameFilter),
    /// Another next hop.
    Forward(ForwardTo),
    /// Address translation.
    Nat(NatInstance),
    /// To a pipe.
    Pipe(Argument),
    /// To a queue.
    Queue(Argument),
    /// Another routing table.
    SetFib(Argument),
    /// DSCP.
    SetDscp(Argument),
    /// Mark, under a mask.
    SetMark(Argument, u32),
    /// Most that a TCP segment may hold.
    TcpSetMss(u16),
    /// Puts fragments together.
    Reassemble,
    /// Netgraph, ngtee, divert and tee: told apart by the judge's verdict only; the stage has none of them.
    Outside(Outside, Argument),
    /// A module that is not there: the rule does not match.
    Nothing,
}

/// The state that an entry makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MakeState {
    /// Group.
    pub name: NameId,
    /// Its limit.
    pub limit: Option<Limit>,
    /// Whether the search goes on instead of the action.
    pub deferred: bool,
}

/// Ways out of the rules that nothing takes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    /// `netgraph`
    Netgraph,
    /// `ngtee`
    NgTee,
    /// `divert`
    Divert,
    /// `tee`
    Tee,
}

/// One step of the compiled rules.
#[derive(Debug)]
pub struct Entry {
    /// Index of its rule.
    pub rule: u32,
    /// Tests of several header fields: a conjunction of disjunctions.
    pub mixed: Vec<Vec<(bool, Atom)>>,
    /// Tests on each packet.
    pub checks: Vec<Check>,
    /// State that it makes.
    pub state: Option<MakeState>,
    /// What it does.
    pub act: Act,
    /// Whether it only counts and goes on: nothing else looks at or changes the packet.
    pub is_quiet: bool,
}

impl Entry {
    /// Whether nothing but header tests decides that it matches.
    pub fn is_certain(&self) -> bool {
        self.checks.is_empty()
    }

    /// Whether nothing behind it can be reached from it.
    pub fn is_terminal(&self) -> bool {
        matches!(
            self.act,
            Act::Allow
                | Act::Deny
                | Act::Unreach(..)
                | Act::Unreach6(_)
                | Act::Reset
                | Act::Reset6
                | Act::Abort
                | Act::Abort6
                | Act::Pipe(_)
                | Act::Queue(_)
                | Act::Nat(_)
        ) && self.state.as_ref().is_none_or(|state| !state.deferred)
    }
}

/// A rule, as entries and listings need it.
#[derive(Clone, Debug)]
pub struct RuleFacts {
    /// Its number.
    pub number: u16,
    /// Its set.
    pub set: u8,
    /// `log`, with what may still be written.
    pub log: Option<Arc<LogBudget>>,
    /// `tag`, `untag`.
    pub tag: Option<Tag>,
    /// The entry that carries its action; [`NO_ENTRY`] in a disabled set.
    pub entry: u32,
    /// The entry at which a jump to it goes on.
    pub start: u32,
    /// Place of its counters, and what tells it from a rule that had the place before.
    pub slot: u32,
    /// See [`RuleFacts::slot`].
    pub generation: u32,
    /// Whether all that its action does is to let pass.
    pub just_allows: bool,
}

/// No entry.
pub const NO_ENTRY: u32 = u32::MAX;
/// No rule.
pub const NO_RULE: u32 = u32::MAX;

/// A compiled rule set.
#[derive(Debug)]
pub struct Program {
    /// Rules in their order, the last one (65535) included.
    pub rules: Vec<RuleFacts>,
    /// Entries in their order.
    pub entries: Vec<Entry>,
    /// Header tests.
    pub classifier: Classifier,
    /// Names of the ports, by number.
    pub ports: Vec<String>,
    /// A fault to be found by tests.
    pub planted: Planted,
    /// Rules by the places of their counters; [`NO_RULE`] for places of others.
    pub by_slot: Vec<u32>,
}

impl Program {
    /// Whether any rule looks for states.
    pub fn has_states(&self) -> bool {
        self.entries.iter().any(|entry| matches!(entry.act, Act::Probe(_) | Act::CheckState(_)))
    }

    /// Index of the rule at a place of counters.
    #[inline(always)]
    pub fn rule_at(&self, slot: u32) -> Option<u32> {
        self.by_slot.get(slot as usize).copied().filter(|rule| *rule != NO_RULE)
    }

    /// Index of the rule that made a state, unless it is gone.
    #[inline(always)]
    pub fn rule_of(&self, made_by: RuleRef) -> Option<u32> {
        let rule = self.rule_at(made_by.index)?;
        self.rules.get(rule as usize).filter(|facts| facts.generation == made_by.generation).map(|_| rule)
    }

    /// Index of the first rule with this number or a higher one; that of the last rule where there is none.
    pub fn rule_from(&self, number: u32) -> usize {
        let at = self.rules.partition_point(|rule| u32::from(rule.number) < number);
        at.min(self.rules.len() - 1)
    }

    /// Entry at which the search goes on at the rule of this index: disabled rules are passed over.
    pub fn entry_from(&self, rule: usize) -> u32 {
        self.rules.get(rule).map_or(self.entries.len() as u32 - 1, |facts| facts.start)
    }

    /// The entry where `skipto` from a rule goes: never back.
    pub fn skip_target(&self, from: u32, to: u32) -> u32 {
        let number = self.rules.get(from as usize).map_or(0, |rule| u32::from(rule.number));
        self.entry_from(self.rule_from(if to > number { to } else { number + 1 }))
    }
}

/// The rules in force: ordered by number, closed by the last rule.
pub(super) fn in_order(rules: &[Rule], options: &Options) -> Vec<Rule> {
    let mut rules = rules.to_vec();
    let mut highest = 0;
    for rule in &mut rules {
        if rule.number == 0 {
            rule.number = (highest + 100).min(DEFAULT_RULE - 1);
        }
        highest = highest.max(rule.number);
    }
    rules.retain(|rule| rule.number != DEFAULT_RULE);
    if options.planted.has(super::fault::Fault::SameNumberReversed) {
        rules.reverse();
    }
    rules.sort_by_key(|rule| rule.number);
    rules.push(Rule::last(options.default_to_accept));
    rules
}
