#![forbid(unsafe_code)]
//! The whole rule set: what a script, a file or a series of commands comes to, and what engines compile.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ast::{Addresses, DEFAULT_SET, InterfaceMatch, LookupKey, Rule, Test};
use super::dummynet::{PipeConfig, QueueConfig, SchedulerConfig};
use super::nat::NatConfig;
use super::table::{TableKey, TableKind, TableOptions, TableValue};
use super::variable;

/// A table and its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// As created.
    pub options: TableOptions,
    /// Its entries, by key.
    pub entries: BTreeMap<TableKey, TableValue>,
}

impl Table {
    /// An empty table with the options that one gets which is made by its first use.
    pub fn automatic(kind: TableKind) -> Self {
        let options = TableOptions {
            kind,
            values: Vec::new(),
            algorithm: None,
            limit: 0,
            locked: false,
            missing: false,
            or_flush: false,
        };
        Self { options, entries: BTreeMap::new() }
    }
}

/// Everything that the firewall is configured with. Cheap to clone: rules and tables are shared.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// The rules by number, those of one number in the order in which they were added; without the last rule (65535).
    pub rules: Vec<Arc<Rule>>,
    /// Tables by name.
    pub tables: BTreeMap<String, Arc<Table>>,
    /// Instances of address translation by number.
    pub nats: BTreeMap<u32, NatConfig>,
    /// Pipes by number.
    pub pipes: BTreeMap<u32, PipeConfig>,
    /// Queues by number.
    pub queues: BTreeMap<u32, QueueConfig>,
    /// Schedulers by number.
    pub schedulers: BTreeMap<u32, SchedulerConfig>,
    /// Bit N is set where set N is disabled; never bit 31.
    pub disabled_sets: u32,
    /// Variables that were set, by name.
    pub variables: BTreeMap<String, i64>,
}

impl PartialEq for RuleSet {
    /// Equal where they mean the same; where it was written does not count.
    fn eq(&self, other: &Self) -> bool {
        self.rules.len() == other.rules.len()
            && self.rules.iter().zip(&other.rules).all(|(a, b)| Arc::ptr_eq(a, b) || same_rule(a, b))
            && self.tables == other.tables
            && self.nats == other.nats
            && self.pipes == other.pipes
            && self.queues == other.queues
            && self.schedulers == other.schedulers
            && self.disabled_sets == other.disabled_sets
            && self.variables == other.variables
    }
}

impl RuleSet {
    /// The value of a variable; 0 for an unknown one.
    pub fn variable(&self, name: &str) -> i64 {
        let default = || variable::find(name).map_or(0, |variable| variable.default);
        self.variables.get(name).copied().unwrap_or_else(default)
    }

    /// The last rule: `deny ip from any to any`, or `allow` where `net.inet.ip.fw.default_to_accept` says so.
    pub fn default_rule(&self) -> Rule {
        Rule::last(self.variable("net.inet.ip.fw.default_to_accept") != 0)
    }

    /// True where the set is enabled.
    pub fn is_enabled(&self, set: u8) -> bool {
        set >= DEFAULT_SET || self.disabled_sets & (1 << set) == 0
    }
}

/// True where two rules are the same rule, wherever they were written: such a rule keeps its counters over a reload.
pub fn same_rule(a: &Rule, b: &Rule) -> bool {
    let Rule { number, set, probability, action, log, tag, blocks, state, options_only, comment, span: _ } = a;
    let same_blocks = || {
        blocks.len() == b.blocks.len()
            && blocks.iter().zip(&b.blocks).all(|(a, b)| {
                a.terms.len() == b.terms.len()
                    && a.terms.iter().zip(&b.terms).all(|(a, b)| a.not == b.not && a.test == b.test)
            })
    };
    (*number, *set, *probability, *log, *tag, *options_only)
        == (b.number, b.set, b.probability, b.log, b.tag, b.options_only)
        && *action == b.action
        && *state == b.state
        && *comment == b.comment
        && same_blocks()
}

/// The tables that a rule looks up, each with the kind that its use asks for.
pub fn tables_of(rule: &Rule) -> impl Iterator<Item = (&str, TableKind)> {
    rule.blocks.iter().flat_map(|block| &block.terms).filter_map(|term| match &term.test {
        Test::Address(_, Addresses::Table(name, _)) => Some((name.as_str(), TableKind::Address)),
        Test::Interface(_, InterfaceMatch::Table(name, _)) => Some((name.as_str(), TableKind::Interface)),
        Test::FlowTable(name, _) => Some((name.as_str(), TableKind::Flow(super::command::ALL_FIELDS))),
        Test::Lookup(key, name) => Some((name.as_str(), looked_up(*key))),
        _ => None,
    })
}

fn looked_up(key: LookupKey) -> TableKind {
    match key {
        LookupKey::Address(_) | LookupKey::Address4(..) | LookupKey::Address6(..) => TableKind::Address,
        LookupKey::Mac(..) => TableKind::Mac,
        LookupKey::Port(..)
        | LookupKey::Dscp(_)
        | LookupKey::RuleNumber(_)
        | LookupKey::Mark(_)
        | LookupKey::Owner(_) => TableKind::Number,
    }
}
