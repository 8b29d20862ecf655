//! A firewall made out of commands of ipfw(8), for a gateway in memory: what the daemon makes of a script, without the daemon.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::command::{CommandLine, Options as CommandOptions};
use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::{Environment, PendingSet};
use ferrule_config::ipfw::table::{TableKey, TableValue};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Stage;
use ferrule_filters::ipfw::around::Holdings;
use ferrule_filters::ipfw::compile::compile_with_places;
use ferrule_filters::ipfw::dynamic::{Names, Shared, States};
use ferrule_filters::ipfw::live::Live;
use ferrule_filters::ipfw::program::{Options, Program};
use ferrule_filters::ipfw::stage::Ipfw;
use ferrule_filters::ipfw::table::{AddMode, TableSet};

use crate::compare::rig::PORTS;
use crate::failure::Failure;

/// Prefix of the variables that dynamic rules have.
const VARIABLES: &str = "net.inet.ip.fw.";

/// Rules, tables and states in force.
pub struct Firewall {
    pending: PendingSet,
    tables: TableSet,
    options: Options,
    names: Names,
    /// Place of each rule's counters, by where the rule lies; the last rule has place 0.
    places: HashMap<*const Rule, u32>,
    live: Arc<Live>,
    shared: Arc<Shared>,
}

impl Firewall {
    /// Carries out commands, one a line as after `ipfw`; lines `sysctl NAME=VALUE` set variables.
    ///
    /// # Errors
    /// The first command that fails.
    pub fn new<S: AsRef<str>>(commands: impl IntoIterator<Item = S>) -> Result<Firewall, Failure> {
        let mut pending = PendingSet::new();
        for command in commands {
            carry_out(&mut pending, command.as_ref())?;
        }
        let set = pending.rule_set();
        let mut tables = TableSet::new(&Domain::new(1));
        let mut options = Options { ports: PORTS.map(str::to_owned).to_vec(), ..Options::default() };
        for (name, table) in &set.tables {
            let id = tables.create(name, &table.options).map_err(|e| failed(&format!("table {name}"), e))?;
            options.tables.insert(name.clone(), (id, table.options.kind));
            let entries: Vec<_> = table.entries.iter().map(|(key, value)| (key.clone(), *value)).collect();
            add_entries(&mut tables, name, &entries)?;
        }
        let shared = Arc::new(Shared::default());
        for name in Shared::NAMES {
            if let Some(value) = set.variables.get(&format!("{VARIABLES}{name}")) {
                shared.set(name, *value as u32).map_err(|e| failed(name, e))?;
            }
        }
        let (mut names, mut places) = (Names::default(), HashMap::new());
        let program = program(&set, &options, &mut names, &mut places);
        let live = Arc::new(Live::new(program, 1));
        Ok(Firewall { pending, tables, options, names, places, live, shared })
    }

    /// Adds entries to a table that was created.
    ///
    /// # Errors
    /// When it is not there, or one of the entries is.
    pub fn add_entries(&mut self, table: &str, entries: &[(TableKey, TableValue)]) -> Result<(), Failure> {
        add_entries(&mut self.tables, table, entries)
    }

    /// The stage of the one worker.
    pub fn stage(&self) -> Box<dyn Stage> {
        let most = self.shared.get("dyn_max").unwrap_or_default();
        let states = States::new(Arc::clone(&self.shared), most);
        Box::new(Ipfw::new(&self.live, 0, 77, Holdings::new(states, self.tables.reader(), 5)))
    }

    /// Compiles the rules as they are.
    pub fn compile(&mut self) -> Program {
        program(&self.pending.rule_set(), &self.options, &mut self.names, &mut self.places)
    }

    /// Carries out one more command and puts what comes of it in force; counters of the other rules go on.
    ///
    /// # Errors
    /// When the command fails.
    pub fn change(&mut self, command: &str) -> Result<(), Failure> {
        carry_out(&mut self.pending, command)?;
        let program = self.compile();
        self.live.replace(program);
        Ok(())
    }

    /// Rules, the last one included.
    pub fn rules(&self) -> usize {
        self.live.loaded().program.rules.len()
    }

    /// Packets that each rule counted, in the order of the rules, the last one included.
    pub fn packets(&self) -> Vec<u64> {
        self.live.loaded().program.rules.iter().map(|rule| self.live.count(rule.slot).packets).collect()
    }

    /// Dynamic rules there are.
    pub fn states(&self) -> u32 {
        self.shared.count()
    }
}

fn failed(what: &str, error: impl std::fmt::Debug) -> Failure {
    Failure::runtime(format!("{what}: {error:?}"))
}

fn add_entries(tables: &mut TableSet, name: &str, entries: &[(TableKey, TableValue)]) -> Result<(), Failure> {
    let mode = AddMode { update: false, atomic: false };
    tables.add(name, entries, mode).1.map_err(|e| failed(&format!("entries of table {name}"), e))
}

fn carry_out(pending: &mut PendingSet, command: &str) -> Result<(), Failure> {
    if let Some((name, value)) = command.strip_prefix("sysctl ").and_then(|text| text.split_once('=')) {
        let value = value.parse().map_err(|e| failed(command, e))?;
        return pending.set_variable(name, value).map(drop).map_err(|e| failed(command, e));
    }
    let grammar = Grammar { names: builtin(), refuse_unsupported: true };
    let no_file = |name: &str| Err(format!("{name}: no files here"));
    let environment = Environment { language: &grammar, names: builtin(), hosts: &NoHosts, read_file: &no_file };
    let mut options = CommandOptions { force: true, quiet: true, ..CommandOptions::default() };
    let answer = pending.run(&CommandLine::from_line(command), &mut options, environment);
    match answer.stderr.first() {
        Some(complaint) if answer.incomplete => Err(Failure::runtime(format!("{command}: {complaint}"))),
        None if answer.incomplete => Err(Failure::runtime(format!("{command}: refused"))),
        _ => Ok(()),
    }
}

/// Compiles a set; a rule that was there before keeps the place of its counters.
fn program(set: &RuleSet, options: &Options, names: &mut Names, places: &mut HashMap<*const Rule, u32>) -> Program {
    let mut by_index = Vec::with_capacity(set.rules.len());
    for rule in &set.rules {
        let next = places.len() as u32 + 1;
        by_index.push(*places.entry(Arc::as_ptr(rule)).or_insert(next));
    }
    let rules: Vec<Rule> = set.rules.iter().map(|rule| Rule::clone(rule)).collect();
    compile_with_places(&rules, options, names, |index| (by_index.get(index as usize).copied().unwrap_or(0), 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::flows::{Family, write_frame};
    use crate::compare::rig::{Rig, RigPlan};

    #[test]
    fn commands_are_in_force_and_counted_and_more_can_be_added() {
        let commands = ["table t create", "table t add 198.18.10.0/28 1", "add 10 count ip from table(t) to any"];
        let mut firewall = Firewall::new(commands.iter().copied().chain(["add 20 allow ip from any to any"])).unwrap();
        assert_eq!(firewall.rules(), 3);
        let stage = firewall.stage();
        let mut stages = Some(vec![stage]);
        let plan = RigPlan { frames: 140, ..RigPlan::default() };
        let mut rig = Rig::with_stages(&plan, move |_| stages.take().unwrap_or_default()).unwrap();
        rig.classic_route(Family::Inet).unwrap();
        let (to, from) = rig.macs();
        let mut number = 0;
        let mut send = |rig: &mut Rig| {
            rig.fill(|frame| {
                number += 1;
                write_frame(frame, to, from, Family::Inet.classic_flow(number % 140))
            })
            .unwrap();
            assert_eq!(rig.round().unwrap().packets, 140);
        };
        send(&mut rig);
        assert_eq!(firewall.packets(), [280, 280, 0]);
        firewall.change("add 15 allow ip from 198.18.10.1 to any").unwrap();
        send(&mut rig);
        assert_eq!(firewall.packets(), [560, 140, 420, 0]);
        assert!(rig.close());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let error = Firewall::new(["add 10 allow ip from nowhere"]).err().unwrap().to_string();
        assert!(error.contains("add 10 allow ip from nowhere: "), "{error}");
        let error = Firewall::new(["sysctl net.inet.ip.fw.dyn_maxi=7"]).err().unwrap().to_string();
        assert!(error.contains("dyn_max"), "{error}");
    }
}
