#![forbid(unsafe_code)]
//! `nat`, `pipe`, `queue` and `sched`: the command, and the number it is about.

use super::abbreviation::{abbreviates, is_number, leading_number};
use super::words::Word;
use super::{Command, DummynetCommand, DummynetKind, NatCommand};
use crate::ipfw::failure::Failure;
use crate::span::Span;
use crate::suggest::did_you_mean;

/// dummynet numbers its objects below this.
pub(crate) const MAX_ID: u32 = 65536;

/// The words after `nat`; the command's word comes first.
pub(super) fn nat(words: &[Word], end: Span, warnings: &mut Vec<String>) -> Result<Command, Failure> {
    let (word, rest) = (&words[0], &words[1..]);
    if abbreviates(&word.text, "show", warnings) || abbreviates(&word.text, "list", warnings) {
        return nat_show(rest, end, "list".starts_with(&word.text)).map(Command::Nat);
    }
    if abbreviates(&word.text, "config", warnings) {
        let Some(id) = rest.first() else { return Err(Failure::data(end, "missing nat id")) };
        let number = id.text.parse().ok().filter(|&id: &u32| id > 0 && i32::try_from(id).is_ok());
        let number =
            number.ok_or_else(|| Failure::data(id.span, format!("illegal nat id: {}", id.text.escape_debug())))?;
        let words = rest[1..].to_vec();
        if words.is_empty() {
            return Err(Failure::data(end, "missing option"));
        }
        return Ok(Command::Nat(NatCommand::Config { number, words }));
    }
    if abbreviates(&word.text, "delete", warnings) {
        return numbers(rest, end).map(|numbers| Command::Nat(NatCommand::Delete(numbers)));
    }
    Err(bad(word, "config"))
}

fn nat_show(words: &[Word], end: Span, list: bool) -> Result<NatCommand, Failure> {
    let (mut config, mut log, mut name) = (list, false, None);
    for word in words {
        if "config".starts_with(&word.text) {
            config = true;
        } else if word.text == "log" {
            log = true;
        } else if name.is_some() {
            return Err(Failure::usage(word.span, "only one instance name may be specified"));
        } else {
            name = Some(word.text.clone());
        }
    }
    match (config, log) {
        (_, true) => Ok(NatCommand::ShowLog(name)),
        (true, false) => Ok(NatCommand::ShowConfig(name)),
        (false, false) => Err(Failure::usage(end, "Please specify action. Available: config,log")),
    }
}

/// The words after `pipe`, `queue` or `sched`; the command's word comes first.
pub(super) fn dummynet(
    kind: DummynetKind,
    words: &[Word],
    end: Span,
    warnings: &mut Vec<String>,
) -> Result<Command, Failure> {
    let (word, rest) = (&words[0], &words[1..]);
    let command = if abbreviates(&word.text, "config", warnings) {
        let need = |span| Failure::usage(span, "need a pipe/flowset/sched number");
        let Some(id) = rest.first() else { return Err(need(end)) };
        let number = leading_number(&id.text).0;
        if !is_number(&id.text) || number == 0 || !leading_number(&id.text).1.is_empty() {
            return Err(need(id.span));
        }
        let number = u32::try_from(number).ok().filter(|&number| number < MAX_ID);
        let number = number.ok_or_else(|| Failure::usage(id.span, "the number must be between 1 and 65535"))?;
        DummynetCommand::Config { number, words: rest[1..].to_vec() }
    } else if abbreviates(&word.text, "delete", warnings) {
        DummynetCommand::Delete(numbers(rest, end)?)
    } else if abbreviates(&word.text, "flush", warnings) {
        DummynetCommand::Flush
    } else if ["print", "list", "show"].iter().any(|full| abbreviates(&word.text, full, warnings)) {
        DummynetCommand::Show(show_ranges(rest, warnings))
    } else {
        return Err(bad(word, "config"));
    };
    Ok(Command::Dummynet(kind, command))
}

fn bad(word: &Word, common: &'static str) -> Failure {
    let hint = did_you_mean(&word.text, [common, "show", "list", "delete", "flush"]);
    Failure::usage(word.span, format!("bad command `{}'", word.text.escape_debug())).maybe_hint(hint)
}

fn numbers(words: &[Word], end: Span) -> Result<Vec<u32>, Failure> {
    if words.is_empty() {
        return Err(Failure::usage(end, "missing rule specification"));
    }
    let number = |word: &Word| {
        let wrong = || Failure::data(word.span, format!("invalid number: {}", word.text.escape_debug()));
        word.text.parse().map_err(|_| wrong())
    };
    words.iter().map(number).collect()
}

/// Numbers and ranges, separated by blanks or commas; a range that runs backwards is passed over.
fn show_ranges(words: &[Word], warnings: &mut Vec<String>) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    for part in words.iter().flat_map(|word| word.text.split(',')).filter(|part| !part.is_empty()) {
        let (first, rest) = leading_number(part);
        let (last, rest) = rest.strip_prefix('-').map_or((first, rest), leading_number);
        if !rest.is_empty() {
            warnings.push(format!("invalid number: {part}"));
            continue;
        }
        if let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last))
            && first <= last
        {
            ranges.push((first, last.min(MAX_ID)));
        }
    }
    ranges
}
