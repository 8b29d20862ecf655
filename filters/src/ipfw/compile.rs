#![forbid(unsafe_code)]
//! From rules to a [`Program`].

use std::sync::Arc;

use ferrule_config::ipfw::ast::{Action, Argument, Block, Rule, StateName, Test};

use super::classify::{Classifier, Conditions, FIELDS, TooMany};
use super::dynamic::{NameFilter, NameId, Names};
use super::fault::Fault;
use super::header::{Atom, Condition, Field};
use super::log::LogBudget;
use super::planted;
use super::program::{Act, Entry, MakeState, NO_ENTRY, NO_RULE, Options, Outside, Program, RuleFacts, in_order};
use super::residual::{Check, NO_TABLE, Need, can_ask, table_of};

/// Tests of a rule, by what they need.
#[derive(Default)]
struct Split {
    header: [Condition; FIELDS],
    mixed: Vec<Vec<(bool, Atom)>>,
    checks: Vec<Check>,
}

/// Compiles rules in any order; equal numbers keep theirs. Places of counters are the rules' indices.
pub fn compile(rules: &[Rule], options: &Options, names: &mut Names) -> Program {
    compile_with_places(rules, options, names, |index| (index, 0))
}

/// As [`compile`]; `place` gives the place of a rule's counters, and its generation there, by its index in the order of rules.
pub fn compile_with_places(
    rules: &[Rule],
    options: &Options,
    names: &mut Names,
    place: impl Fn(u32) -> (u32, u32),
) -> Program {
    let mut rules = in_order(rules, options);
    rules.iter_mut().for_each(|rule| planted::spoil(rule, options.planted));
    // Fields that have too many classes are tested on each packet instead: the last resort of enormous sets.
    let mut excluded = Vec::new();
    loop {
        match attempt(&rules, options, names, &excluded, &place) {
            Ok(program) => return program,
            Err(TooMany(field)) => excluded.push(field),
        }
    }
}

fn attempt(
    rules: &[Rule],
    options: &Options,
    names: &mut Names,
    excluded: &[Field],
    place: &impl Fn(u32) -> (u32, u32),
) -> Result<Program, TooMany> {
    let mut conditions = Conditions::default();
    let mut entries: Vec<Entry> = Vec::with_capacity(rules.len());
    let mut facts: Vec<RuleFacts> = Vec::with_capacity(rules.len());
    let last = rules.len() - 1;
    for (index, rule) in rules.iter().enumerate() {
        let disabled = index != last && options.disabled_sets >> rule.set & 1 == 1 && rule.set != 31;
        let disabled = disabled && !options.planted.has(Fault::DisabledSetStillMatches);
        let start = entries.len() as u32;
        if !disabled {
            let mut gathered =
                Gathered { options, names, excluded, conditions: &mut conditions, entries: &mut entries };
            gathered.add_rule(index as u32, rule);
        }
        let (slot, generation) = place(index as u32);
        facts.push(RuleFacts {
            number: rule.number,
            set: rule.set,
            log: rule.log.map(|log| Arc::new(LogBudget::new(log.amount.unwrap_or(options.verbose_limit)))),
            tag: rule.tag,
            entry: if disabled { NO_ENTRY } else { entries.len() as u32 - 1 },
            start,
            slot,
            generation,
            just_allows: rule.action == Action::Allow && rule.log.is_none() && rule.tag.is_none() && !disabled,
        });
    }
    let count = entries.len() as u32;
    let classifier = Classifier::new(conditions, count, options.ports.len() as u32)?;
    let places = facts.iter().map(|rule| rule.slot as usize + 1).max().unwrap_or(0);
    let mut by_slot = vec![NO_RULE; places];
    for (rule, facts) in (0u32..).zip(&facts) {
        by_slot[facts.slot as usize] = rule;
    }
    let (ports, planted) = (options.ports.clone(), options.planted);
    let mut program = Program { rules: facts, entries, classifier, ports, planted, by_slot };
    resolve_jumps(rules, &mut program);
    Ok(program)
}

/// Targets of `skipto` and `call`, known once every rule has its entries.
fn resolve_jumps(rules: &[Rule], program: &mut Program) {
    for at in 0..program.entries.len() {
        let rule = program.entries[at].rule;
        let act = match (&rules[rule as usize].action, &program.entries[at].act) {
            (_, Act::Probe(_)) => continue,
            (Action::SkipTo(Argument::Number(to)), _) => Act::SkipTo(planted::skip_target(program, rule, *to)),
            (Action::Call(Argument::Number(to)), _) => Act::Call(Some(program.entry_from(program.rule_from(*to)))),
            _ => continue,
        };
        program.entries[at].act = act;
    }
}

/// Rules compiled so far.
struct Gathered<'a> {
    options: &'a Options,
    names: &'a mut Names,
    excluded: &'a [Field],
    conditions: &'a mut Conditions,
    entries: &'a mut Vec<Entry>,
}

impl Gathered<'_> {
    fn add_rule(&mut self, index: u32, rule: &Rule) {
        let planted = self.options.planted;
        let probes = rule.state.as_ref().filter(|state| state.probes && !planted.has(Fault::KeepStateDoesNotProbe));
        let mut split = Split::default();
        if let Some(chance) = rule.probability {
            split.checks.push(Check::Chance(chance));
        }
        if let Some(state) = probes {
            // The state is looked for before the tests, by whatever packet comes here: an entry of its own. A chance decides about both:
            // the number drawn hangs on rule and packet, so that drawing it again gives the same.
            let act = Act::Probe(self.filter(&state.name));
            let checks = split.checks.clone();
            self.entries.push(Entry { rule: index, mixed: vec![], checks, state: None, act, is_quiet: false });
        }
        for block in &rule.blocks {
            split.add(block, self.options, self.excluded);
        }
        let number = self.entries.len() as u32;
        for (field, condition) in Field::ALL.into_iter().zip(split.header) {
            if !condition.is_empty() {
                self.conditions.add(field, condition, Some(number));
            }
        }
        for (_, atom) in split.mixed.iter().flatten() {
            self.conditions.add(atom.field(), vec![vec![(false, atom.clone())]], None);
        }
        let act = match &rule.action {
            Action::CheckState(name) => Act::CheckState(self.filter(name)),
            action => act_of(action, self.options),
        };
        let state = rule.state.as_ref().map(|state| MakeState {
            name: self.name(&state.name),
            limit: state.limit,
            deferred: state.deferred,
        });
        let quiet = matches!(act, Act::Count | Act::SkipTo(_) | Act::Allow | Act::Deny);
        let is_quiet = quiet && rule.log.is_none() && rule.tag.is_none() && state.is_none();
        self.entries.push(Entry { rule: index, mixed: split.mixed, checks: split.checks, state, act, is_quiet });
    }

    /// Number of a group. Where there are none left the rule shares the default group: the control side refuses it before.
    fn name(&mut self, name: &StateName) -> NameId {
        match name {
            StateName::Named(name) => self.names.intern(name).unwrap_or(NameId::DEFAULT),
            StateName::Default | StateName::Any => NameId::DEFAULT,
        }
    }

    fn filter(&mut self, name: &StateName) -> NameFilter {
        if *name == StateName::Any { NameFilter::Any } else { NameFilter::Name(self.name(name)) }
    }
}

impl Split {
    fn add(&mut self, block: &Block, options: &Options, excluded: &[Field]) {
        let ports = &options.ports[..];
        let table = |test: &Test| {
            let known = table_of(test).and_then(|name| options.tables.get(name));
            known.filter(|(_, kind)| can_ask(test, *kind)).map_or(NO_TABLE, |(id, _)| *id)
        };
        let terms = || block.terms.iter().map(|term| (term.not, Atom::of(term, ports), term));
        let atoms: Option<Vec<(bool, Atom)>> =
            terms().map(|(not, atom, _)| Some((not, atom.filter(|atom| !excluded.contains(&atom.field()))?))).collect();
        let Some(atoms) = atoms else {
            let needs = terms().map(|(not, atom, term)| {
                (not, atom.map_or_else(|| Need::Test(term.test.clone(), table(&term.test)), Need::Atom))
            });
            self.checks.push(Check::Block(needs.collect()));
            return;
        };
        // `not any` holds for no packet, whatever field the others ask for.
        let mut fields = atoms.iter().map(|(_, atom)| atom.field());
        let first = fields.next().unwrap_or(Field::Kind);
        if fields.all(|field| field == first) {
            self.header[first as usize].push(atoms);
        } else {
            self.mixed.push(atoms);
        }
    }
}

fn act_of(action: &Action, options: &Options) -> Act {
    let planted = options.planted;
    let code = |code: u8| if planted.has(Fault::UnreachCodeOffByOne) { code.wrapping_add(1) } else { code };
    match action {
        Action::Allow => Act::Allow,
        Action::Deny => Act::Deny,
        Action::Unreach(number, mtu) => Act::Unreach(code(*number), *mtu),
        Action::Unreach6(number) => Act::Unreach6(code(*number)),
        Action::Reset => Act::Reset,
        Action::Reset6 => Act::Reset6,
        Action::Abort => Act::Abort,
        Action::Abort6 => Act::Abort6,
        Action::Count if planted.has(Fault::CountAccepts) => Act::Allow,
        Action::Count => Act::Count,
        Action::SkipTo(Argument::Number(_)) => Act::SkipTo(NO_ENTRY),
        Action::SkipTo(Argument::Table) => Act::SkipToTable,
        Action::Call(_) => Act::Call(None),
        Action::Return(to) => Act::Return(*to),
        // Names are numbered by the caller.
        Action::CheckState(_) => Act::CheckState(NameFilter::Any),
        Action::Forward(to) => Act::Forward(*to),
        Action::Nat(instance) => Act::Nat(*instance),
        Action::Pipe(number) => Act::Pipe(*number),
        Action::Queue(number) => Act::Queue(*number),
        Action::SetFib(fib) => Act::SetFib(*fib),
        Action::SetDscp(point) => Act::SetDscp(*point),
        Action::SetMark(mark, mask) => Act::SetMark(*mark, *mask),
        Action::TcpSetMss(mss) => Act::TcpSetMss(*mss),
        Action::Reassemble => Act::Reassemble,
        Action::Netgraph(cookie) => Act::Outside(Outside::Netgraph, *cookie),
        Action::NgTee(cookie) => Act::Outside(Outside::NgTee, *cookie),
        Action::Divert(port) => Act::Outside(Outside::Divert, *port),
        Action::Tee(port) => Act::Outside(Outside::Tee, *port),
        Action::External(..) => Act::Nothing,
    }
}
