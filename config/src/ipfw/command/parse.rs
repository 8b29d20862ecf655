#![forbid(unsafe_code)]
//! Which command a line is.

use super::abbreviation::{abbreviates, is_number, leading_number};
use super::words::{CommandLine, Word, Words};
use super::{Command, Delete, DummynetKind, Invocation, List, ListRange, Options, Switch, object, sets, table};
use crate::diagnostic::quoted;
use crate::ipfw::failure::Failure;
use crate::suggest::did_you_mean;

/// Words that begin a command, for "did you mean".
const COMMANDS: [&str; 20] = [
    "add", "delete", "disable", "enable", "flowset", "flush", "internal", "list", "nat", "pipe", "print", "queue",
    "resetlog", "sched", "set", "show", "table", "zero", "nptv6", "nat64lsn",
];

/// True where the arguments name a file of commands: the last begins with `/` (and can be read, which the caller knows).
pub fn file_mode<S: AsRef<str>>(arguments: &[S]) -> bool {
    arguments.last().is_some_and(|last| last.as_ref().starts_with('/'))
}

/// Reads a command. `options` are those in force already (a file's lines share theirs).
///
/// # Errors
/// What is wrong with it, with the original's exit code.
pub fn parse(line: &CommandLine, options: Options) -> Result<Invocation, Failure> {
    let mut invocation = Invocation { options, command: None, warnings: Vec::new() };
    if line.words.is_empty() {
        return Ok(invocation);
    }
    let mut words = Words::new(&line.words, line.end());
    invocation.options.take(line, &mut words)?;
    if invocation.options.help {
        invocation.command = Some(Command::Help);
        return Ok(invocation);
    }
    let mut words: Vec<Word> = words.rest().to_vec();
    if words.is_empty() {
        return Err(Failure::usage(line.end(), "bad arguments, for usage summary ``ipfw''"));
    }
    // "100 add ..." is "add 100 ...", as in the first ipfw.
    if words.len() > 1 && is_number(&words[0].text) {
        words.swap(0, 1);
    }
    let reader = Reader { end: line.end(), options: &invocation.options, warnings: &mut invocation.warnings };
    invocation.command = Some(reader.command(words)?);
    Ok(invocation)
}

/// One command being read.
struct Reader<'a> {
    end: crate::span::Span,
    options: &'a Options,
    warnings: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn command(mut self, mut words: Vec<Word>) -> Result<Command, Failure> {
        let first = words[0].text.clone();
        let mut kind = None;
        let mut set = None;
        let nat = "nat".starts_with(&first);
        if nat {
        } else if "pipe".starts_with(&first) {
            kind = Some(DummynetKind::Pipe);
        } else if self.is(&first, "queue") || self.is(&first, "flowset") {
            kind = Some(DummynetKind::Queue);
        } else if self.is(&first, "sched") {
            kind = Some(DummynetKind::Scheduler);
        } else if "set".starts_with(&first) && words.get(1).is_some_and(|second| is_number(&second.text)) {
            set = Some(sets::number(&words[1])?);
            words.drain(..2);
        }
        if nat || kind.is_some() {
            words.remove(0);
        }
        let Some(word) = words.first() else { return Err(Failure::usage(self.end, "missing command")) };
        if (nat || kind.is_some()) && words.len() > 1 && is_number(&word.text) {
            words.swap(0, 1);
        }
        if nat {
            return object::nat(&words, self.end, self.warnings);
        }
        if let Some(kind) = kind {
            return object::dummynet(kind, &words, self.end, self.warnings);
        }
        self.rules(set, &words)
    }

    fn is(&mut self, given: &str, full: &str) -> bool {
        abbreviates(given, full, self.warnings)
    }

    fn rules(&mut self, set: Option<u8>, words: &[Word]) -> Result<Command, Failure> {
        let (word, rest) = (&words[0], &words[1..]);
        let given = word.text.as_str();
        if set.is_none() {
            if self.is(given, "add") {
                return Ok(Command::Add(rest.to_vec()));
            }
            if self.is(given, "set") {
                return sets::command(rest, self.end, self.warnings).map(Command::Set);
            }
            if self.is(given, "table") {
                return table::command(rest, self.end).map(Command::Table);
            }
            if self.is(given, "enable") {
                return self.switch(rest, true);
            }
            if self.is(given, "disable") {
                return self.switch(rest, false);
            }
        }
        if self.is(given, "delete") {
            return self.delete(set, rest).map(Command::Delete);
        }
        if ["nat64clat", "nat64stl", "nat64lsn", "nptv6"].iter().any(|name| name.starts_with(given)) {
            return Err(Failure::usage(word.span, format!("{given} is not supported"))
                .hint("address translation between IPv6 and IPv4 is not part of Ferrule's ipfw"));
        }
        if self.is(given, "flush") {
            return Ok(Command::Flush { set });
        }
        if self.is(given, "zero") || self.is(given, "resetlog") {
            return zero(set, rest, "resetlog".starts_with(given));
        }
        if self.is(given, "print") || self.is(given, "list") {
            return Ok(Command::List(List { set, counters: self.options.counters, ranges: ranges(rest) }));
        }
        if self.is(given, "show") {
            return Ok(Command::List(List { set, counters: true, ranges: ranges(rest) }));
        }
        if self.is(given, "table") {
            return table::command(rest, self.end).map(Command::Table);
        }
        if self.is(given, "internal") {
            return Err(Failure::usage(word.span, "internal is not supported").hint(
                "it shows FreeBSD's kernel objects, which are not here; see `table all info` and `ferrule show`",
            ));
        }
        Err(Failure::usage(word.span, format!("bad command `{}'", given.escape_debug()))
            .maybe_hint(did_you_mean(given, COMMANDS)))
    }

    fn switch(&mut self, words: &[Word], on: bool) -> Result<Command, Failure> {
        let Some(word) = words.first() else {
            return Err(Failure::usage(self.end, "missing keyword to enable/disable"));
        };
        let found = Switch::ALL.iter().find(|(name, _)| self.is(&word.text, name)).map(|&(_, switch)| switch);
        if found.is_none() && "altq".starts_with(&word.text) {
            return Err(Failure::new(crate::ipfw::failure::exit::UNAVAILABLE, word.span, "altq is not supported")
                .hint("use pipes, queues and schedulers"));
        }
        if found.is_none() {
            let hint = did_you_mean(&word.text, Switch::ALL.iter().map(|&(name, _)| name));
            let hint = hint.map(|hint| format!(" ({hint})")).unwrap_or_default();
            self.warnings.push(format!("unrecognize enable/disable keyword: {}{hint}", word.text));
        }
        Ok(Command::Switch { switch: found, on })
    }

    fn delete(&mut self, set: Option<u8>, words: &[Word]) -> Result<Delete, Failure> {
        let Some(first) = words.first() else { return Err(Failure::usage(self.end, "missing rule specification")) };
        if self.is(&first.text, "set") {
            if set.is_some() {
                return Err(Failure::data(first.span, "invalid syntax"));
            }
            let sets =
                words[1..].iter().map(|word| Ok((number(word)?.0 & 31) as u8)).collect::<Result<_, Failure>>()?;
            return Ok(Delete::Sets(sets));
        }
        let ranges = words.iter().map(number).collect::<Result<_, _>>()?;
        Ok(Delete::Rules { set, ranges })
    }
}

/// A rule number or a range of them.
fn number(word: &Word) -> Result<(u16, u16), Failure> {
    let wrong = || Failure::data(word.span, format!("invalid rule number {}", quoted(&word.text)));
    let (first, rest) = leading_number(&word.text);
    if !is_number(&word.text) {
        return Err(wrong());
    }
    let last = match rest.strip_prefix('-') {
        Some(last) if is_number(last) && leading_number(last).1.is_empty() => leading_number(last).0,
        None if rest.is_empty() => first,
        _ => return Err(wrong()),
    };
    match (u16::try_from(first), u16::try_from(last)) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        _ => Err(wrong()),
    }
}

fn zero(set: Option<u8>, words: &[Word], log_only: bool) -> Result<Command, Failure> {
    let mut numbers = Vec::new();
    for word in words {
        if !is_number(&word.text) {
            return Err(Failure::usage(word.span, format!("invalid rule number ``{}''", word.text.escape_debug())));
        }
        let wrong = || Failure::data(word.span, format!("invalid rule number {}", word.text.escape_debug()));
        numbers.push(word.text.parse().map_err(|_| wrong())?);
    }
    Ok(Command::Zero { set, numbers, log_only })
}

fn ranges(words: &[Word]) -> Vec<ListRange> {
    let range = |word: &Word| {
        let (first, rest) = leading_number(&word.text);
        let (last, rest) = match rest.strip_prefix('-') {
            Some(last) => leading_number(last),
            None => (first, rest),
        };
        if rest.is_empty() && !word.text.is_empty() {
            let clamp = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            ListRange::Numbers(clamp(first), clamp(last))
        } else {
            ListRange::Invalid(word.text.clone())
        }
    };
    words.iter().map(range).collect()
}
