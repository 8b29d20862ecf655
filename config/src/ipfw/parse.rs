#![forbid(unsafe_code)]
//! The parser of one rule: `add [NUMBER] [set N] [prob P] ACTION [log ...] [tag N] PROTO from SRC to DST [OPTIONS] [// TEXT]`.
//!
//! It follows compile_rule() of FreeBSD's ipfw(8) in what it takes. It goes on after an error where the rest of the line can still be
//! understood, so that one run shows the mistakes of a whole file. Where ipfw(8) lets a `not` slip to the next test (`not any`), or
//! an `or` with `any` join what follows, the meaning of the text is kept instead.

use super::ast::{Action, DEFAULT_RULE, Rule};
use super::names::Names;
use super::numbers;
use super::reader::Parser;
use super::words::{Word, separate_braces, split_arguments, split_line};
use crate::diagnostic::{Diagnostics, quoted};
use crate::span::Span;

/// Most characters of a comment, blanks after words included (ipfw(8)).
const COMMENT_MOST: usize = 84;

/// Parses the words after `add`. None when there was an error; errors and warnings go to `diagnostics`. `end` is where the
/// line ends, for complaints about what is missing.
pub fn parse_add(words: &[Word<'_>], end: Span, names: &dyn Names, diagnostics: &mut Diagnostics) -> Option<Rule> {
    let words = separate_braces(words);
    let errors = diagnostics.errors();
    let mut parser = Parser::new(&words, end, names, diagnostics);
    let rule = parser.rule();
    let rule = rule.filter(|_| diagnostics.errors() == errors)?;
    for warning in super::check::warnings(&rule) {
        diagnostics.push(warning);
    }
    Some(rule)
}

/// Parses a line that begins at byte `offset` of its source: what stands after `add`, or with it.
pub fn parse_add_line(text: &str, offset: usize, names: &dyn Names, diagnostics: &mut Diagnostics) -> Option<Rule> {
    let end = Span::new(offset + text.trim_end().len(), offset + text.trim_end().len());
    parse_add(without_add(&split_line(text, offset)), end, names, diagnostics)
}

/// Parses arguments as a shell hands them over: what stands after `add`, or with it. Spans point into
/// [`super::words::joined`] of the arguments.
pub fn parse_add_arguments<S: AsRef<str>>(
    arguments: &[S],
    names: &dyn Names,
    diagnostics: &mut Diagnostics,
) -> Option<Rule> {
    let length = arguments.iter().map(|argument| argument.as_ref().len() + 1).sum::<usize>().saturating_sub(1);
    let words = split_arguments(arguments);
    parse_add(without_add(&words), Span::new(length, length), names, diagnostics)
}

fn without_add<'a, 'w>(words: &'a [Word<'w>]) -> &'a [Word<'w>] {
    match words {
        [add, rest @ ..] if add.text == "add" => rest,
        _ => words,
    }
}

impl Parser<'_, '_> {
    fn rule(&mut self) -> Option<Rule> {
        let start = self.here();
        let number = self.rule_number();
        let set = self.set();
        let probability = self.probability();
        let action = self.action();
        if action.is_none() && !self.skip_to_body() {
            return None;
        }
        let (log, tag) = self.modifiers();
        let (options_only, comment) = match action {
            Some(Action::CheckState(_)) => (false, self.check_state_rest()),
            _ => (self.body()?, self.options()),
        };
        let state = self.finish_state();
        let blocks = self.finish_blocks();
        Some(Rule {
            number,
            set,
            probability,
            action: action?,
            log,
            tag,
            blocks,
            state,
            options_only,
            comment,
            span: start.to(self.before()),
        })
    }

    fn rule_number(&mut self) -> u16 {
        let Some(word) = self.peek().filter(|word| word.starts_with(|first: char| first.is_ascii_digit())) else {
            return 0;
        };
        let span = self.here();
        self.at += 1;
        match numbers::decimal(word) {
            Some(number) if number < u64::from(DEFAULT_RULE) => return number as u16,
            Some(number) if number == u64::from(DEFAULT_RULE) => {
                self.hinted(span, "rule 65535 is the default rule, which cannot be added", "use a number up to 65534");
            }
            _ => {
                self.hinted(
                    span,
                    format!("invalid rule number {}", quoted(word)),
                    "rules are numbered from 1 to 65534",
                );
            }
        }
        0
    }

    fn set(&mut self) -> u8 {
        if !self.eat(&["set"]) {
            return 0;
        }
        let Ok((word, span)) = self.argument("set", "a number from 0 to 31") else { return 0 };
        match numbers::decimal(word).filter(|&set| set <= 31) {
            Some(set) => set as u8,
            None => {
                self.hinted(span, format!("illegal set {}", quoted(word)), "sets are numbered from 0 to 31");
                0
            }
        }
    }

    fn probability(&mut self) -> Option<f64> {
        if !self.eat(&["prob"]) {
            return None;
        }
        let (word, span) = self.argument("prob", "a number above 0 and at most 1").ok()?;
        match word.parse::<f64>() {
            Ok(1.0) => None,
            Ok(value) if value > 0.0 && value < 1.0 => Some(value),
            _ => {
                let message = format!("illegal match prob. {}", quoted(word));
                self.hinted(span, message, "a number above 0 and at most 1");
                None
            }
        }
    }

    /// After an action that was not understood: on to the protocol, if there is one.
    fn skip_to_body(&mut self) -> bool {
        let Some(from) = self.words[self.at..].iter().position(|word| word.text == "from") else { return false };
        let before = from.checked_sub(1).and_then(|before| self.peek_at(before));
        match before {
            Some(word) if self.protocol_word(word).is_some() => self.at += from - 1,
            Some("}" | ")") => {
                let block = &self.words[self.at..self.at + from];
                let Some(open) = block.iter().rposition(|word| matches!(word.text.as_ref(), "{" | "(")) else {
                    return false;
                };
                self.at += open;
            }
            _ => return false,
        }
        true
    }

    /// What stands after `//`: words with one blank between them.
    pub fn comment(&mut self, slashes: Span) -> Option<String> {
        let words = &self.words[self.at.min(self.words.len())..];
        self.at = self.words.len();
        let length: usize = words.iter().map(|word| word.text.len() + 1).sum();
        if length > COMMENT_MOST {
            let span = slashes.to(self.before());
            self.error(span, "comment too long (max 80 chars)");
            return None;
        }
        let text = words.iter().map(|word| word.text.as_ref()).collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    }

    /// After `check-state [:NAME]` nothing but a comment counts.
    fn check_state_rest(&mut self) -> Option<String> {
        let here = self.here();
        match self.next() {
            Some(("//", span)) => self.comment(span),
            Some((word, _)) => {
                self.warn(here, format!("check-state takes no options: {} and what follows is ignored", quoted(word)));
                self.at = self.words.len();
                None
            }
            None => None,
        }
    }
}
