//! What `ipfw` is answered, from the rules in force: one command is one change.

#![forbid(unsafe_code)]

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::command::{
    Command, CommandLine, DummynetCommand, Dynamic, Invocation, List, NatCommand, Options, SetCommand, TableAction,
    TableSelector, parse,
};
use ferrule_config::ipfw::failure::exit;
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::{RuleLanguage, RuleStyle};
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::{Answer, PendingSet};
use ferrule_config::ipfw::show;
use ferrule_config::ipfw::show::rules::{ListContext, RuleRow};
use serde_json::{Value, json};

use super::places::{LAST, Sameness};
use super::tables::Way;
use super::{Change, Firewall, Phase, State, services, wall_clock, with_environment};
use crate::ipfw::call::{Call, CommandFile, Reply};

/// Whether a command only asks.
pub fn only_asks(command: &Command) -> bool {
    match command {
        Command::Help | Command::List(_) | Command::Set(SetCommand::Show) => true,
        Command::Nat(command) => matches!(command, NatCommand::ShowConfig(_) | NatCommand::ShowLog(_)),
        Command::Dummynet(_, command) => matches!(command, DummynetCommand::Show(_)),
        Command::Table(command) => matches!(
            command.action,
            TableAction::List | TableAction::Info | TableAction::Detail | TableAction::Lookup(_)
        ),
        _ => false,
    }
}

/// A set on its way: what commands made of the one in force and what is not in force yet.
struct Working<'a> {
    firewall: &'a Firewall,
    state: &'a mut State,
    copy: Option<PendingSet>,
    /// Rows of the last command, for `--json`.
    rows: Option<Value>,
}

impl Firewall {
    /// Answers a call of `ipfw`; the second value is what it shows, as data, where there is such a thing.
    pub fn ipfw(&self, call: &Call) -> (Reply, Option<Value>) {
        let mut state = self.state();
        let mut working = Working { firewall: self, state: &mut state, copy: None, rows: None };
        let options = Options { force: !call.terminal, ..Options::default() };
        let reply = match &call.commands {
            Some(file) => working.file(file, options, call),
            None => {
                let line = CommandLine::from_arguments(&call.arguments);
                if line.words.is_empty() {
                    let usage = "usage: ipfw [options]\ndo \"ipfw -h\" or \"man ipfw\" for details\n";
                    return (Reply { stderr: usage.to_owned(), exit: exit::USAGE, ..Reply::default() }, None);
                }
                let mut options = options;
                let answer = working.command(&line, &mut options, call);
                spoken(answer.and_then_commit(&mut working), "ipfw")
            }
        };
        (reply, working.rows)
    }
}

trait ThenCommit {
    fn and_then_commit(self, working: &mut Working<'_>) -> Answer;
}

impl ThenCommit for Answer {
    /// The answer, after what the command changed is in force; where it cannot be, that is the answer.
    fn and_then_commit(self, working: &mut Working<'_>) -> Answer {
        match working.commit(Sameness::Identity, None) {
            Ok(()) => self,
            Err(reason) => refused(reason),
        }
    }
}

fn refused(reason: String) -> Answer {
    Answer { stderr: vec![reason], exit: exit::OS, ..Answer::default() }
}

fn spoken(answer: Answer, program: &str) -> Reply {
    let stderr = answer.stderr.iter().map(|text| format!("{program}: {text}\n")).collect();
    Reply { stdout: answer.stdout, stderr, exit: answer.exit }
}

impl Working<'_> {
    /// A file of commands, one change a line; it ends at the first error, as the original does.
    fn file(&mut self, file: &CommandFile, mut options: Options, call: &Call) -> Reply {
        file.add_options(&mut options);
        let mut reply = Reply::default();
        for (number, text) in (1_u32..).zip(file.text.lines()) {
            let line = CommandLine::from_line(text);
            if line.words.is_empty() {
                continue;
            }
            let answer = spoken(self.command(&line, &mut options, call), &format!("Line {number}"));
            reply.stdout.push_str(&answer.stdout);
            reply.stderr.push_str(&answer.stderr);
            reply.exit = answer.exit;
            if answer.exit != exit::OK {
                break;
            }
        }
        // Lines that nobody looked at in between are put in force together.
        if let Err(reason) = self.commit(Sameness::Identity, None) {
            let refused = spoken(refused(reason), "ipfw");
            reply.stderr.push_str(&refused.stderr);
            reply.exit = refused.exit;
        }
        reply
    }

    /// One command, made on the copy; what needs the state of the engine has the changes before it in force.
    fn command(&mut self, line: &CommandLine, options: &mut Options, call: &Call) -> Answer {
        let invocation = match parse(line, options.clone()) {
            Ok(invocation) => invocation,
            Err(failure) => {
                let message = match &failure.hint {
                    Some(hint) => format!("{} ({hint})", failure.message),
                    None => failure.message.clone(),
                };
                return Answer { stderr: vec![message], exit: failure.exit, ..Answer::default() };
            }
        };
        *options = invocation.options.clone();
        let Some(command) = &invocation.command else { return self.apply(&invocation, line, call) };
        if options.check_only || matches!(command, Command::Help) {
            return self.apply(&invocation, line, call);
        }
        if !only_asks(command) && self.state.phase == Phase::Closed {
            let reason = "the rules of the script are not in force yet: try again when it has ended";
            return Answer { stderr: vec![reason.to_owned()], exit: exit::UNAVAILABLE, ..Answer::default() };
        }
        let (sameness, swap) = match command {
            Command::List(_) | Command::Zero { .. } => (Sameness::Identity, None),
            live if services::is_live(live) => (Sameness::Identity, None),
            Command::Set(SetCommand::Swap(..) | SetCommand::Move(..) | SetCommand::MoveRule(..)) => {
                (Sameness::Position, None)
            }
            Command::Table(table) => match (&table.action, &table.table) {
                (TableAction::Swap(other), TableSelector::One(name)) => {
                    (Sameness::Identity, Some((name.clone(), other.clone())))
                }
                _ => return self.apply(&invocation, line, call),
            },
            _ => return self.apply(&invocation, line, call),
        };
        if let Err(reason) = self.commit(Sameness::Identity, None) {
            return refused(reason);
        }
        match command {
            Command::List(list) => self.list(list, &invocation.options),
            live if services::is_live(live) => match self.state.show_services(live) {
                Ok(shown) => {
                    let (text, rows) = shown.map(|shown| (shown.text, shown.rows)).unzip();
                    self.rows = rows;
                    Answer { stdout: text.unwrap_or_default(), ..Answer::default() }
                }
                Err(error) => refused(error.to_string()),
            },
            Command::Zero { set, numbers, log_only } => {
                let answer = self.apply(&invocation, line, call);
                self.zero(*set, numbers, *log_only);
                answer
            }
            _ => {
                let answer = self.apply(&invocation, line, call);
                let swap = swap.filter(|_| answer.exit == exit::OK);
                match self.commit(sameness, swap) {
                    Ok(()) => answer,
                    Err(reason) => refused(reason),
                }
            }
        }
    }

    fn apply(&mut self, invocation: &Invocation, line: &CommandLine, call: &Call) -> Answer {
        let copy = self.copy.get_or_insert_with(|| self.state.set.clone());
        let answer = with_environment(&call.files, |environment| copy.apply(invocation, line, environment));
        if let Some(command) = invocation.command.as_ref().filter(|command| only_asks(command)) {
            self.rows = super::data::rows(command, &copy.rule_set());
        }
        answer
    }

    fn commit(&mut self, sameness: Sameness, swap: Option<(String, String)>) -> Result<(), String> {
        let Some(set) = self.copy.take() else { return Ok(()) };
        if self.state.phase == Phase::Closed {
            return Ok(());
        }
        self.firewall.put_in_force(self.state, Change { set, sameness, way: Way::InPlace, swap })
    }

    fn list(&mut self, list: &List, options: &Options) -> Answer {
        let grammar = Grammar { names: builtin(), refuse_unsupported: false };
        let style = RuleStyle { compact: options.compact, comment_only: options.comment_only, names: options.names };
        let objects = self.state.set.rule_set();
        let last = objects.default_rule();
        let row = |rule: &Rule, place: u32| {
            let count = self.firewall.count(self.state, place);
            RuleRow {
                number: rule.number,
                set: rule.set,
                text: grammar.print(rule, style),
                packets: count.packets,
                bytes: count.bytes,
                last_hit_s: count.last.map_or(0, wall_clock),
                disabled: !objects.is_enabled(rule.set),
            }
        };
        let placed = self.state.places.rules().iter().map(|(rule, place)| row(rule, place.index));
        let rows: Vec<RuleRow> = placed.chain([row(&last, LAST)]).collect();
        let states = match options.dynamic {
            Dynamic::No => Vec::new(),
            Dynamic::Also | Dynamic::Only => self.firewall.states(self.state),
        };
        let context = ListContext { options, names: builtin(), utc_offset_s: 0 };
        let listed = show::rules::list(list, &rows, &states, context);
        self.rows = Some(json!({ "rules": rows, "states": states }));
        Answer { stdout: listed.stdout, stderr: listed.stderr, exit: listed.exit, ..Answer::default() }
    }

    /// `zero` and `resetlog`: a rule's counters go on from where they are, and what they had is forgotten.
    fn zero(&mut self, set: Option<u8>, numbers: &[u16], log_only: bool) {
        let state = &mut *self.state;
        let wanted = |rule: &Rule| {
            (numbers.is_empty() || numbers.contains(&rule.number)) && set.is_none_or(|set| rule.set == set)
        };
        let last = state.set.rule_set().default_rule();
        let places = state.places.rules().iter().map(|(rule, place)| (&**rule, place.index)).chain([(&last, LAST)]);
        for (_, place) in places.filter(|(rule, _)| wanted(rule)) {
            if !log_only {
                state.zero.insert(place, self.firewall.live.count(place));
            }
            if let Some(budget) = state.budgets.get(&place) {
                budget.reset();
            }
        }
    }
}
