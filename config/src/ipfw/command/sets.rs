#![forbid(unsafe_code)]
//! `set ...`: showing, moving, swapping, enabling and disabling sets of rules.

use super::SetCommand;
use super::abbreviation::{abbreviates, is_number, leading_number};
use super::words::Word;
use crate::ipfw::ast::{DEFAULT_RULE, DEFAULT_SET};
use crate::ipfw::failure::Failure;
use crate::span::Span;
use crate::suggest::did_you_mean;

/// A set's number, 0 to 31.
pub(super) fn number(word: &Word) -> Result<u8, Failure> {
    let wrong = || {
        Failure::data(word.span, format!("invalid set number {}", word.text.escape_debug())).hint("sets are 0 to 31")
    };
    word.text.parse().ok().filter(|&set| is_number(&word.text) && set <= DEFAULT_SET).ok_or_else(wrong)
}

/// The words after `set`.
pub(super) fn command(words: &[Word], end: Span, warnings: &mut Vec<String>) -> Result<SetCommand, Failure> {
    let Some(first) = words.first() else { return Err(Failure::usage(end, "set needs command")) };
    let rest = &words[1..];
    if abbreviates(&first.text, "show", warnings) {
        return Ok(SetCommand::Show);
    }
    if abbreviates(&first.text, "swap", warnings) {
        let [a, b, ..] = rest else { return Err(Failure::usage(end, "set swap needs 2 set numbers")) };
        return Ok(SetCommand::Swap(number(a)?, number(b)?));
    }
    if abbreviates(&first.text, "move", warnings) {
        return moved(rest, end, warnings);
    }
    if abbreviates(&first.text, "disable", warnings) || abbreviates(&first.text, "enable", warnings) {
        return enable(words, warnings);
    }
    let hint = did_you_mean(&first.text, ["show", "swap", "move", "enable", "disable"]);
    Err(Failure::usage(first.span, format!("invalid set command {}", first.text.escape_debug())).maybe_hint(hint))
}

fn moved(words: &[Word], end: Span, warnings: &mut Vec<String>) -> Result<SetCommand, Failure> {
    let rule = words.first().is_some_and(|word| abbreviates(&word.text, "rule", warnings));
    let words = if rule { &words[1..] } else { words };
    let syntax = |span| Failure::usage(span, "syntax: set move [rule] X to Y");
    let [from, to, target] = words else { return Err(syntax(words.first().map_or(end, |word| word.span))) };
    if !abbreviates(&to.text, "to", warnings) {
        return Err(syntax(to.span));
    }
    let source = || Failure::data(from.span, format!("invalid source number {}", from.text.escape_debug()));
    let target = number(target)
        .map_err(|_| Failure::data(target.span, format!("invalid dest. set {}", target.text.escape_debug())))?;
    if rule {
        let number = from.text.parse().ok().filter(|&number: &u16| is_number(&from.text) && number != DEFAULT_RULE);
        Ok(SetCommand::MoveRule(number.ok_or_else(source)?, target))
    } else {
        Ok(SetCommand::Move(number(from).map_err(|_| source())?, target))
    }
}

fn enable(words: &[Word], warnings: &mut Vec<String>) -> Result<SetCommand, Failure> {
    let mut masks = [0_u32; 2];
    let mut enabling = false;
    for word in words {
        if is_number(&word.text) {
            let set = leading_number(&word.text).0;
            if set > u64::from(DEFAULT_SET) {
                return Err(Failure::data(word.span, format!("invalid set number {set}")).hint("sets are 0 to 31"));
            }
            masks[usize::from(enabling)] |= 1 << set;
        } else if abbreviates(&word.text, "disable", warnings) {
            enabling = false;
        } else if abbreviates(&word.text, "enable", warnings) {
            enabling = true;
        } else {
            return Err(Failure::data(word.span, format!("invalid set command {}", word.text.escape_debug())));
        }
    }
    if masks[0] & masks[1] != 0 {
        let span = words.first().map_or(Span::default(), |word| word.span);
        return Err(Failure::data(span, "cannot enable and disable the same set"));
    }
    Ok(SetCommand::Enable { disable: masks[0], enable: masks[1] })
}
