#![forbid(unsafe_code)]
//! A rule set being built: commands go in one after the other and are answered as FreeBSD's ipfw(8) and kernel would, and what they come
//! to is a [`RuleSet`]. A script fills an empty one; a single command changes a copy of the one in force.

mod objects;
mod rules;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::ast::Rule;
use super::command::{Command, CommandLine, Invocation, Options, parse};
use super::document::{RuleSet, Table, tables_of};
use super::entry::Lookup;
use super::failure::{Failure, exit};
use super::language::{Hosts, RuleLanguage};
use super::names::Names;
use super::variable;

/// What commands need from outside.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// The grammar of rules.
    pub language: &'a dyn RuleLanguage,
    /// Services and protocols.
    pub names: &'a dyn Names,
    /// Hosts.
    pub hosts: &'a dyn Hosts,
    /// Reads a file that a command names (`profile`); an error is its text.
    pub read_file: &'a dyn Fn(&str) -> Result<String, String>,
}

impl<'a> Environment<'a> {
    pub(super) fn lookup(&self) -> Lookup<'a> {
        Lookup { names: self.names, hosts: self.hosts }
    }
}

/// How a command went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Standard output.
    pub stdout: String,
    /// Lines for standard error, without the program's name.
    pub stderr: Vec<String>,
    /// Exit code.
    pub exit: u8,
    /// What went wrong, with places in the command's text.
    pub failures: Vec<Failure>,
    /// True where the command leaves the set incomplete: an add, config or create that failed. Deleting what is not there does not.
    pub incomplete: bool,
}

impl Answer {
    fn said(stdout: impl Into<String>) -> Self {
        Self { stdout: stdout.into(), ..Self::default() }
    }

    fn failed(failure: Failure) -> Self {
        let mut answer = Self::default();
        answer.fail(failure);
        answer
    }

    /// Adds a failure; the first one gives the exit code.
    fn fail(&mut self, failure: Failure) {
        if self.exit == exit::OK {
            self.exit = failure.exit;
        }
        self.stderr.push(match &failure.hint {
            Some(hint) => format!("{} ({hint})", failure.message),
            None => failure.message.clone(),
        });
        self.failures.push(failure);
    }
}

/// A rule set being built.
#[derive(Clone, Debug, Default)]
pub struct PendingSet {
    /// Rules by number, those of one number in the order in which they were added.
    rules: BTreeMap<u16, Vec<Arc<Rule>>>,
    /// Everything but the rules.
    objects: RuleSet,
    /// How many rules look a table up.
    references: HashMap<String, u32>,
    /// Numbers of tables, in the order in which they came to be.
    indices: HashMap<String, u32>,
    last_index: u32,
}

impl PendingSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set that begins as this one.
    pub fn from_rule_set(set: &RuleSet) -> Self {
        let mut pending = Self { objects: RuleSet { rules: Vec::new(), ..set.clone() }, ..Self::default() };
        set.tables.keys().for_each(|name| pending.index(name));
        set.rules.iter().for_each(|rule| pending.insert(rule.clone()));
        pending
    }

    /// What it came to.
    pub fn rule_set(&self) -> RuleSet {
        let mut set = self.objects.clone();
        set.rules = self.rules.values().flatten().cloned().collect();
        set.bound_weights();
        set
    }

    /// The rules, in order.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.values().flatten()
    }

    /// How many rules there are, without the last.
    pub fn len(&self) -> usize {
        self.rules.values().map(Vec::len).sum()
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The value of a variable.
    pub fn variable(&self, name: &str) -> Option<i64> {
        match name {
            "net.inet.ip.fw.static_count" => Some(self.len() as i64 + 1),
            _ => variable::find(name).map(|_| self.objects.variable(name)),
        }
    }

    /// Sets a variable; the value before.
    ///
    /// # Errors
    /// It is unknown, read-only, or the value out of its range: a text that says so.
    pub fn set_variable(&mut self, name: &str, value: i64) -> Result<i64, String> {
        let known = variable::find(name).ok_or_else(|| {
            let hint = crate::suggest::did_you_mean(name, variable::VARIABLES.iter().map(|variable| variable.name));
            format!("unknown oid '{name}'{}", hint.map(|hint| format!(" ({hint})")).unwrap_or_default())
        })?;
        if !known.writable {
            return Err(format!("oid '{name}' is read only"));
        }
        if !(known.least..=known.most).contains(&value) {
            return Err(format!("{name}={value}: Invalid argument (from {} to {})", known.least, known.most));
        }
        let before = self.objects.variable(name);
        self.objects.variables.insert(name.to_owned(), value);
        Ok(before)
    }

    /// Gives a variable its value where only the box may: those set before start.
    pub fn fix_variable(&mut self, name: &str, value: i64) {
        self.objects.variables.insert(name.to_owned(), value);
    }

    /// Reads and carries out one command. Options that it gives are added to `options`.
    pub fn run(&mut self, line: &CommandLine, options: &mut Options, environment: Environment<'_>) -> Answer {
        match parse(line, options.clone()) {
            Ok(invocation) => {
                *options = invocation.options.clone();
                self.apply(&invocation, line, environment)
            }
            // A command that cannot be read may have been meant to add something.
            Err(failure) => Answer { incomplete: true, ..Answer::failed(failure) },
        }
    }

    /// Carries out one command.
    pub fn apply(&mut self, invocation: &Invocation, line: &CommandLine, environment: Environment<'_>) -> Answer {
        let options = &invocation.options;
        let end = line.end();
        let mut answer = match &invocation.command {
            None => Answer::default(),
            Some(Command::Help) => Answer { stderr: vec![HELP.to_owned()], ..Answer::default() },
            Some(Command::Add(words)) => self.add(words, end, options, environment),
            Some(Command::List(_)) if options.check_only => {
                Answer { stderr: vec!["Testing only, list disabled".to_owned()], ..Answer::default() }
            }
            Some(Command::Nat(command)) => self.nat(command, end, options, environment),
            Some(Command::Dummynet(kind, command)) => self.dummynet(*kind, command, end, options, environment),
            Some(Command::Table(command)) => self.table(command, options, environment),
            Some(_) if options.check_only => Answer::default(),
            Some(Command::Delete(delete)) => self.delete(delete, end, options),
            Some(Command::Flush { set }) => self.flush(*set, options),
            Some(Command::Zero { set, numbers, log_only }) => self.zero(*set, numbers, *log_only, options),
            Some(Command::List(list)) => self.list(list, options, environment),
            Some(Command::Set(command)) => self.set(command),
            Some(Command::Switch { switch, on }) => {
                for name in switch.iter().flat_map(|switch| switch.variables()) {
                    self.objects.variables.insert((*name).to_owned(), i64::from(*on));
                }
                Answer::default()
            }
        };
        answer.stderr.splice(0..0, invocation.warnings.iter().cloned());
        answer
    }

    /// Gives a table its number.
    fn index(&mut self, name: &str) {
        self.last_index += 1;
        self.indices.insert(name.to_owned(), self.last_index);
    }

    /// Puts a rule in its place; tables that it looks up and that do not exist come to be, as in the kernel.
    fn insert(&mut self, rule: Arc<Rule>) {
        for (name, kind) in tables_of(&rule) {
            *self.references.entry(name.to_owned()).or_default() += 1;
            if !self.objects.tables.contains_key(name) {
                self.objects.tables.insert(name.to_owned(), Arc::new(Table::automatic(kind)));
                self.index(name);
            }
        }
        self.rules.entry(rule.number).or_default().push(rule);
    }
}

impl RuleSet {
    /// Weights above 100 are for round robin only (dn_sched_wf2q.c, dn_sched_qfq.c, dn_sched_rr.c).
    fn bound_weights(&mut self) {
        use super::dummynet::SchedulerKind::RoundRobin;
        for queue in self.queues.values_mut() {
            let kind = self.schedulers.get(&queue.scheduler).map(|scheduler| scheduler.parameters.kind);
            let most = if kind == Some(RoundRobin) { 65_536 } else { 100 };
            queue.weight = queue.weight.clamp(1, most);
        }
    }
}

/// `-h`.
const HELP: &str = "ipfw syntax summary (see ipfw(8) and the page \"ipfw on Ferrule\" for the rest)

	ipfw [-abcdDefhinNqsStTv] <command>

where <command> is one of:

add [num] [set N] [prob x] RULE-BODY
delete N[-N] ... | delete set N | flush | zero [N ...] | resetlog [N ...]
list | show [N[-N] ...]
set [disable N... enable N...] | move [rule] X to Y | swap X Y | show
set N {show|list|zero|resetlog|delete|flush} [N ...]
enable | disable {firewall|one_pass|debug|verbose|dyn_keepalive|skipto_cache}
table NAME create [type T] [valtype V] [algo A] [limit N] [locked] [missing] [or-flush]
table NAME {add KEY [VALUE] | delete KEY | lookup KEY | swap NAME | lock | unlock | modify limit N}
table {NAME|all} {flush | list | info | detail | destroy}
nat N config {ip ADDRESS|if NAME|log|deny_in|same_ports|unreg_only|unreg_cgn|reset|reverse|
		proxy_only|skip_global|port_range N-M|redirect_addr|redirect_port|redirect_proto ...}
nat [N] show {config|log} | nat N delete
{pipe|queue|sched} N config ... | {pipe|queue|sched} [N] {show|delete} | pipe flush";
