//! The rule set in force: owned by the control side, changed by one command or one script at a time, followed by every worker.
//!
//! A change is made on a copy of the set. What comes of it is brought to the engine first (tables, then the compiled rules, in one store),
//! and only then the copy is the set in force; so a change that the engine has no room for changes nothing.

#![forbid(unsafe_code)]

mod answer;
mod built_in;
mod data;
mod places;
mod states;
mod tables;
#[cfg(test)]
mod tests;
mod variables;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ferrule_config::gateway::{DefaultRule, Ipfw as Settings};
use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::{Environment, PendingSet};
use ferrule_dataplane::clock;
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Stage;
use ferrule_filters::ipfw::around::Holdings;
use ferrule_filters::ipfw::compile::{compile, compile_with_places};
use ferrule_filters::ipfw::counters::RuleCount;
use ferrule_filters::ipfw::dynamic::settings::MOST_STATES;
use ferrule_filters::ipfw::dynamic::{Names, RuleRef, Shared, States};
use ferrule_filters::ipfw::lister::{self, StateReader};
use ferrule_filters::ipfw::live::Live;
use ferrule_filters::ipfw::log::{LogBudget, LogSink};
use ferrule_filters::ipfw::program::{Options as CompileOptions, Program};
use ferrule_filters::ipfw::stage::Ipfw;

pub use self::answer::only_asks;
use self::places::{HIDDEN, LAST, Places, Sameness};
use self::tables::{FollowedTables, Way};
use super::logging::{self, LogFacts};

/// Name of the variable that says what rule 65535 does.
const DEFAULT_TO_ACCEPT: &str = "net.inet.ip.fw.default_to_accept";

/// How far the first script has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not ended: nothing passes, and nothing can be changed.
    Closed,
    /// It failed: the built-in set is in force, and commands can change it.
    BuiltIn,
    /// Its rules are in force.
    Scripted,
}

/// The firewall of a gateway.
pub struct Firewall {
    live: Arc<Live>,
    shared: Arc<Shared>,
    ports: Vec<String>,
    /// What rule 65535 does.
    accept: bool,
    /// Secret of the run.
    seed: u64,
    state: Mutex<State>,
    /// Whoever reads the workers' states has them for himself.
    readers: Mutex<Vec<StateReader>>,
}

struct State {
    phase: Phase,
    set: PendingSet,
    places: Places,
    tables: FollowedTables,
    names: Names,
    /// What rules had counted when they were zeroed, by place.
    zero: HashMap<u32, RuleCount>,
    /// What `log` rules may still write, by place.
    budgets: HashMap<u32, Arc<LogBudget>>,
    /// What the program in force was compiled with beside rules and tables.
    compiled: Compiled,
}

/// What compiling takes from the set beside rules and tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Compiled {
    disabled_sets: u32,
    verbose_limit: u32,
    enabled: [bool; 2],
}

/// What a command or script makes the set to be.
struct Change {
    set: PendingSet,
    sameness: Sameness,
    way: Way,
    /// Tables that change places before all else.
    swap: Option<(String, String)>,
}

impl Firewall {
    /// A closed firewall: nothing passes before [`Firewall::load`] or [`Firewall::fall_back`]. `domain` is the workers', `ports` are the names of
    /// ports by number.
    pub fn new(settings: &Settings, domain: &Arc<Domain>, workers: usize, ports: Vec<String>) -> Firewall {
        let shared = Arc::new(Shared::default());
        if let Some(most) = settings.dyn_max {
            let _ = shared.set("dyn_max", most);
        }
        let seed = ferrule_dataplane::packet::hash::HashSeed::random();
        let options = CompileOptions { ports: ports.clone(), ..CompileOptions::default() };
        let closed = compile(&[], &options, &mut Names::default());
        let state = State {
            phase: Phase::Closed,
            set: PendingSet::new(),
            places: Places::new(domain.clone()),
            tables: FollowedTables::new(domain, &ports),
            names: Names::default(),
            zero: HashMap::new(),
            budgets: HashMap::new(),
            compiled: Compiled::default(),
        };
        Firewall {
            live: Arc::new(Live::new(closed, workers)),
            shared,
            ports,
            accept: settings.default == DefaultRule::Accept,
            seed: seed.0,
            state: Mutex::new(state),
            readers: Mutex::default(),
        }
    }

    /// The stage of a worker.
    pub fn stage(&self, worker: usize, log: Option<LogSink>) -> Box<dyn Stage> {
        let states = States::new(self.shared.clone(), MOST_STATES);
        let tables = self.state().tables.reader();
        let own = self.seed ^ (worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut holdings = Holdings::new(states, tables, own);
        holdings.log = log;
        let (lister, reader) = lister::pair();
        holdings.lister = Some(lister);
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        Box::new(Ipfw::new(&self.live, worker, self.seed.rotate_left(17), holdings))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the first script has come.
    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// The set in force.
    pub fn set(&self) -> PendingSet {
        self.state().set.clone()
    }

    /// Puts what a script came to in force. Rules that it had made before keep their counters and states.
    ///
    /// # Errors
    /// What the engine has no room for; the set in force stays.
    pub fn load(&self, set: PendingSet) -> Result<(), String> {
        let mut state = self.state();
        let change = Change { set, sameness: Sameness::Meaning, way: Way::Beside, swap: None };
        self.put_in_force(&mut state, change)?;
        state.phase = Phase::Scripted;
        Ok(())
    }

    /// The first script failed: lets the management port in and nothing else. Returns the rules, for the log.
    ///
    /// # Errors
    /// As [`Firewall::load`]; the box stays closed.
    pub fn fall_back(&self, settings: &Settings) -> Result<String, String> {
        let (set, text) = built_in::management(&settings.management)?;
        let mut state = self.state();
        let change = Change { set, sameness: Sameness::Identity, way: Way::Beside, swap: None };
        self.put_in_force(&mut state, change)?;
        state.phase = Phase::BuiltIn;
        Ok(text)
    }

    /// The name of a port.
    pub fn port_name(&self, port: usize) -> Option<String> {
        self.ports.get(port).cloned()
    }

    /// What the log needs to know of the rules in force.
    pub fn log_facts(&self) -> LogFacts {
        let state = self.state();
        let last = state.set.rule_set().default_rule();
        let rules = state.places.rules().iter().map(|(rule, place)| (&**rule, place.index)).chain([(&last, LAST)]);
        let mut facts = LogFacts::default();
        for (rule, place) in rules.filter(|(rule, _)| rule.log.is_some()) {
            facts.actions.insert(place, logging::line::action(rule));
            if let Some(budget) = state.budgets.get(&place).filter(|budget| budget.left() == Some(0)) {
                facts.spent.push((place, rule.number, budget.most()));
            }
        }
        facts
    }

    fn put_in_force(&self, state: &mut State, change: Change) -> Result<(), String> {
        let mut set = change.set;
        // The loader tunable is the box's, not the script's.
        set.fix_variable(DEFAULT_TO_ACCEPT, i64::from(self.accept));
        let wanted = set.rule_set();
        if let Some((a, b)) = &change.swap {
            state.tables.swap(a, b);
        }
        let renumbered = state.tables.follow(&wanted.tables, change.way)?;
        let compiled = Compiled::of(&wanted);
        let same_rules = state.places.rules().len() == wanted.rules.len()
            && state.places.rules().iter().zip(&wanted.rules).all(|((old, _), new)| Arc::ptr_eq(old, new));
        self.settings_of(&wanted);
        if !same_rules || renumbered || compiled != state.compiled || state.phase == Phase::Closed {
            self.replace(state, &wanted, compiled, change.sameness);
        }
        state.tables.settled();
        state.set = set;
        Ok(())
    }

    /// Compiles the rules and puts them in force.
    fn replace(&self, state: &mut State, wanted: &RuleSet, compiled: Compiled, sameness: Sameness) {
        let State { places, zero, budgets, names, .. } = state;
        let gone = places.change(wanted.rules.clone(), sameness, |place| {
            zero.insert(place, self.live.count(place));
            budgets.remove(&place);
        });
        let options = CompileOptions {
            disabled_sets: wanted.disabled_sets,
            default_to_accept: self.accept,
            verbose_limit: compiled.verbose_limit,
            ports: self.ports.clone(),
            tables: state.tables.ids(),
            ..CompileOptions::default()
        };
        let hidden = built_in::switched_off(compiled.enabled);
        let before = hidden.len();
        let rules: Vec<Rule> = hidden.into_iter().chain(wanted.rules.iter().map(|rule| Rule::clone(rule))).collect();
        let all = before + wanted.rules.len();
        let place = |index: u32| match index as usize {
            index if index < before => (HIDDEN, 0),
            index if index < all => {
                let place = places.rules()[index - before].1;
                (place.index, place.generation)
            }
            _ => (LAST, 0),
        };
        let mut program = compile_with_places(&rules, &options, names, place);
        keep_budgets(&mut program, budgets);
        self.live.replace(program);
        if !gone.is_empty() {
            let there: HashSet<RuleRef> = places.rules().iter().map(|(_, place)| *place).collect();
            self.shared.parents.end(|rule| !there.contains(&rule));
        }
        places.retire(gone);
        state.compiled = compiled;
    }

    /// Variables that the engine reads while it runs.
    fn settings_of(&self, set: &RuleSet) {
        for (name, value) in &set.variables {
            if let (Some(name), Ok(value)) = (name.strip_prefix("net.inet.ip.fw."), u32::try_from(*value)) {
                // Names that are not of dynamic rules are not meant.
                let _ = self.shared.set(name, value);
            }
        }
    }

    /// What a rule has counted since it was zeroed.
    fn count(&self, state: &State, place: u32) -> RuleCount {
        let before = state.zero.get(&place).copied().unwrap_or_default();
        self.live.count(place).since(before)
    }
}

impl Compiled {
    fn of(set: &RuleSet) -> Compiled {
        let on = |name: &str| set.variable(name) != 0;
        Compiled {
            disabled_sets: set.disabled_sets,
            verbose_limit: u32::try_from(set.variable("net.inet.ip.fw.verbose_limit")).unwrap_or(0),
            enabled: [on("net.inet.ip.fw.enable"), on("net.inet6.ip6.fw.enable")],
        }
    }
}

/// What `log` rules may still write goes on where the rules change around them.
fn keep_budgets(program: &mut Program, budgets: &mut HashMap<u32, Arc<LogBudget>>) {
    let mut next = HashMap::new();
    for rule in &mut program.rules {
        if let Some(fresh) = &mut rule.log {
            if let Some(kept) = budgets.get(&rule.slot) {
                *fresh = kept.clone();
            }
            next.insert(rule.slot, fresh.clone());
        }
    }
    *budgets = next;
}

/// Calls `body` with what commands need from outside; `files` are those that they name.
pub(crate) fn with_environment<T>(
    files: &BTreeMap<String, Result<String, String>>,
    body: impl FnOnce(Environment<'_>) -> T,
) -> T {
    let grammar = Grammar { names: builtin(), refuse_unsupported: true };
    let read_file = |name: &str| files.get(name).cloned().unwrap_or_else(|| Err("it was not handed over".to_owned()));
    body(Environment { language: &grammar, names: builtin(), hosts: &NoHosts, read_file: &read_file })
}

/// A second on the workers' clock, in seconds since 1970.
fn wall_clock(second: u64) -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let ago = (clock::monotonic() / 1_000_000_000).saturating_sub(second);
    u32::try_from(now.saturating_sub(ago)).unwrap_or(u32::MAX)
}
