//! The rule set in force: owned by the control side, changed by one command or one script at a time, followed by every worker.
//!
//! A change is made on a copy of the set. What comes of it is brought to the engine first (tables, then the compiled rules, in one store),
//! and only then the copy is the set in force; so a change that the engine has no room for changes nothing.

#![forbid(unsafe_code)]

mod answer;
mod built_in;
mod data;
mod places;
mod services;
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
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Stage;
use ferrule_filters::ipfw::around::Holdings;
use ferrule_filters::ipfw::compile::{compile, compile_with_places};
use ferrule_filters::ipfw::counters::RuleCount;
use ferrule_filters::ipfw::dynamic::settings::{MOST_STATES, SettingError};
use ferrule_filters::ipfw::dynamic::{Names, RuleRef, Shared, States};
use ferrule_filters::ipfw::lister::{self, StateReader};
use ferrule_filters::ipfw::live::Live;
use ferrule_filters::ipfw::log::{LogBudget, LogSink};
use ferrule_filters::ipfw::program::{Options as CompileOptions, Program};
use ferrule_filters::ipfw::services::control::ServiceControl;
use ferrule_filters::ipfw::services::{self as service, Services};
use ferrule_filters::ipfw::stage::Ipfw;

pub use self::answer::only_asks;
use self::places::{HIDDEN, LAST, Places, Sameness};
use self::tables::{FollowedTables, Way};
use super::logging::{self, LogFacts};

/// Name of the variable that says what rule 65535 does.
const DEFAULT_TO_ACCEPT: &str = "net.inet.ip.fw.default_to_accept";
/// Name of the variable that says whether rules that log write.
const VERBOSE: &str = "net.inet.ip.fw.verbose";

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
    /// `dyn_max` at start, where the configuration names it.
    most_states: Option<u32>,
    /// Whether the configuration has a log: rules that log write there unless [`VERBOSE`] was set to 0.
    has_log: bool,
    /// Secret of the run.
    seed: u64,
    /// The workers' ends of pipes and NAT, until their stages are made.
    ends: Mutex<Vec<Option<Services>>>,
    state: Mutex<State>,
    /// Whoever reads the workers' states has them for himself.
    readers: Mutex<Vec<StateReader>>,
}

struct State {
    phase: Phase,
    set: PendingSet,
    places: Places,
    tables: FollowedTables,
    services: ServiceControl,
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
    verbose: bool,
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
    /// ports by number, `flows` is the seed of the flow hash.
    pub fn new(
        settings: &Settings,
        domain: &Arc<Domain>,
        workers: usize,
        ports: Vec<String>,
        flows: HashSeed,
    ) -> Firewall {
        let shared = Arc::new(Shared::default());
        let seed = HashSeed::random();
        let (services, ends) = service::pair(workers, flows);
        let options = CompileOptions { ports: ports.clone(), ..CompileOptions::default() };
        let closed = compile(&[], &options, &mut Names::default());
        let state = State {
            phase: Phase::Closed,
            set: PendingSet::new(),
            places: Places::new(domain.clone()),
            tables: FollowedTables::new(domain, &ports),
            services,
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
            most_states: settings.dyn_max,
            has_log: settings.log.is_some(),
            seed: seed.0,
            ends: Mutex::new(ends.into_iter().map(Some).collect()),
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
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        holdings.services = ends.get_mut(worker).and_then(Option::take);
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
        self.settings_of(&wanted)?;
        state.services.follow(&wanted).map_err(|error| error.to_string())?;
        let renumbered = match state.tables.follow(&wanted.tables, change.way) {
            Ok(renumbered) => renumbered,
            Err(reason) => {
                // Pipes and NAT are again what the set in force says.
                let before = state.set.rule_set();
                let back = state.services.follow(&before).and_then(|()| state.services.settle(&before));
                return Err(back.err().map_or(reason.clone(), |error| format!("{reason}; {error}")));
            }
        };
        let compiled = Compiled::of(&wanted, self.has_log);
        let same_rules = state.places.rules().len() == wanted.rules.len()
            && state.places.rules().iter().zip(&wanted.rules).all(|((old, _), new)| Arc::ptr_eq(old, new));
        if !same_rules || renumbered || compiled != state.compiled || state.phase == Phase::Closed {
            self.replace(state, &wanted, compiled, change.sameness);
        }
        state.tables.settled();
        state.set = set;
        // In force it is; a worker that cannot be told what is gone is a fault to be told all the same.
        state.services.settle(&wanted).map_err(|error| error.to_string())
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
        if !compiled.verbose {
            program.rules.iter_mut().for_each(|rule| rule.log = None);
        }
        self.live.replace(program);
        if !gone.is_empty() {
            let there: HashSet<RuleRef> = places.rules().iter().map(|(_, place)| *place).collect();
            self.shared.parents.end(|rule| !there.contains(&rule));
        }
        places.retire(gone);
        state.compiled = compiled;
    }

    /// Variables that the engine reads while it runs: what the set says, else what they are at start.
    ///
    /// # Errors
    /// One that was set is out of the engine's bounds.
    fn settings_of(&self, set: &RuleSet) -> Result<(), String> {
        for own in Shared::NAMES {
            let name = format!("net.inet.ip.fw.{own}");
            let at_start = || if own == "dyn_max" { self.most_states.map(i64::from) } else { None };
            let said = set.variables.get(&name).copied().or_else(at_start).unwrap_or_else(|| set.variable(&name));
            if let Ok(value) = u32::try_from(said) {
                // Those that only show something are refused, and `dyn_buckets`, which follows the number of states.
                let done = self.shared.set(own, value);
                if let (Err(SettingError::TooLarge(most)), true) = (done, set.variables.contains_key(&name)) {
                    return Err(format!("{name}={value}: at most {most} here"));
                }
            }
        }
        Ok(())
    }

    /// What a rule has counted since it was zeroed.
    fn count(&self, state: &State, place: u32) -> RuleCount {
        let before = state.zero.get(&place).copied().unwrap_or_default();
        self.live.count(place).since(before)
    }
}

impl Compiled {
    fn of(set: &RuleSet, has_log: bool) -> Compiled {
        let on = |name: &str| set.variable(name) != 0;
        Compiled {
            disabled_sets: set.disabled_sets,
            verbose: is_verbose(set, has_log),
            verbose_limit: u32::try_from(set.variable("net.inet.ip.fw.verbose_limit")).unwrap_or(0),
            enabled: [on("net.inet.ip.fw.enable"), on("net.inet6.ip6.fw.enable")],
        }
    }
}

/// Whether rules that log write: where a log is configured, unless the variable was set to 0.
fn is_verbose(set: &RuleSet, has_log: bool) -> bool {
    set.variables.get(VERBOSE).map_or(has_log, |value| *value != 0)
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
