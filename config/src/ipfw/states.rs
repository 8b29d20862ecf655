#![forbid(unsafe_code)]
//! `keep-state`, `limit` and their kin, `check-state`: text to meaning and back.

use super::addresses::is_object_name;
use super::ast::{Limit, StateName, StateOption};
use super::keywords::{self, LIMIT_FIELDS, OptionWord};
use super::reader::{Failed, Parsed, Parser};
use crate::diagnostic::{Diagnostic, quoted};
use crate::span::Span;

/// The group of states that have no other name.
const DEFAULT_NAME: &str = "default";

impl Parser<'_, '_> {
    /// The name after `check-state`.
    pub(super) fn check_state_name(&mut self) -> Result<StateName, Failed> {
        match self.peek() {
            None | Some("//") => Ok(StateName::Default),
            Some(":any") => {
                self.next();
                Ok(StateName::Any)
            }
            Some(word) if word.starts_with(':') => self.state_name(),
            Some(word) => {
                let (_, span) = self.next().ok_or(Failed)?;
                let message = format!("invalid state name {}", quoted(word));
                let hint = if matches!(word, "log" | "tag" | "untag") {
                    format!("write check-state :default {word}")
                } else {
                    "write check-state :NAME, or check-state alone".to_owned()
                };
                Err(self.hinted(span, message, hint))
            }
        }
    }

    /// `:NAME`, if there is one.
    fn state_name(&mut self) -> Result<StateName, Failed> {
        let Some(name) = self.peek().and_then(|word| word.strip_prefix(':')) else { return Ok(StateName::Default) };
        let (_, span) = self.next().ok_or(Failed)?;
        match name {
            DEFAULT_NAME => Ok(StateName::Default),
            _ if is_object_name(name) && name != "any" => Ok(StateName::Named(name.to_owned())),
            _ => {
                let message = format!("invalid state name {}", quoted(name));
                Err(self.hinted(span, message, "1 to 63 letters, digits, `_`, `-` and `.`, and not `any`"))
            }
        }
    }

    /// A state option.
    pub(super) fn state_option(&mut self, option: OptionWord, word: &str, span: Span) -> Result<Parsed, Failed> {
        let limited = matches!(option, OptionWord::Limit | OptionWord::SetLimit);
        let limit = if limited { Some(self.limit(word)?) } else { None };
        let name = self.state_name()?;
        if let Some(open) = self.open {
            let message = format!("{word} cannot be part of an or block");
            return Err(self.report(Diagnostic::error(span, message).label(open, "the block begins here")));
        }
        if self.state.is_some() {
            return Err(self.error(span, "only one of keep-state, record-state, limit and set-limit is allowed"));
        }
        let probes = matches!(option, OptionWord::KeepState | OptionWord::Limit);
        self.state = Some(StateOption { probes, limit, name, deferred: false });
        Ok(Parsed::Nothing)
    }

    /// `FIELD... N`; fields may also be joined with commas, as they are listed.
    fn limit(&mut self, word: &str) -> Result<Limit, Failed> {
        let mut fields = 0;
        while let Some(text) = self.peek() {
            let parts: Option<Vec<u8>> = text.split(',').map(|part| keywords::value(LIMIT_FIELDS, part)).collect();
            let Some(parts) = parts else { break };
            fields |= parts.iter().fold(0, |fields, field| fields | field);
            self.next();
        }
        if fields == 0 {
            let here = self.here();
            let message = format!("{word}: missing limit mask");
            let near = self.peek().unwrap_or_default();
            return Err(match near.starts_with(|first: char| first.is_ascii_digit()) || near.is_empty() {
                true => {
                    self.hinted(here, message, "write src-addr, src-port, dst-addr, dst-port or all before the number")
                }
                false => {
                    self.next();
                    self.unknown(here, message, near, keywords::names(LIMIT_FIELDS))
                }
            });
        }
        Ok(Limit {
            source_address: fields & 1 != 0,
            source_port: fields & 2 != 0,
            destination_address: fields & 4 != 0,
            destination_port: fields & 8 != 0,
            count: self.number_or_table(word)?,
        })
    }

    /// `defer-action`.
    pub(super) fn defer(&mut self, span: Span) -> Result<Parsed, Failed> {
        if self.deferred.is_some() {
            return Err(self.error(span, "only one defer-action is allowed"));
        }
        self.deferred = Some(span);
        Ok(Parsed::Nothing)
    }

    /// The state option with everything that belongs to it.
    pub(super) fn finish_state(&mut self) -> Option<StateOption> {
        let state = self.state.take();
        match (state, self.deferred) {
            (Some(state), deferred) => Some(StateOption { deferred: deferred.is_some(), ..state }),
            (None, Some(span)) => {
                let message = "rule contains defer-immediate-action and doesn't contain any state-related options";
                self.hinted(
                    span,
                    message,
                    "such a rule never does anything: add keep-state, record-state, limit or set-limit",
                );
                None
            }
            (None, None) => None,
        }
    }
}

/// `:NAME`.
pub(super) fn print_state_name(name: &StateName) -> String {
    match name {
        StateName::Default => format!(":{DEFAULT_NAME}"),
        StateName::Any => ":any".to_owned(),
        StateName::Named(name) => format!(":{name}"),
    }
}

/// A state option as ipfw(8) lists it.
pub(super) fn print_state(state: &StateOption) -> String {
    let word = match (state.limit.is_some(), state.probes) {
        (false, true) => "keep-state",
        (false, false) => "record-state",
        (true, true) => "limit",
        (true, false) => "set-limit",
    };
    let mut out = word.to_owned();
    if let Some(limit) = &state.limit {
        let fields = u8::from(limit.source_address)
            | u8::from(limit.source_port) << 1
            | u8::from(limit.destination_address) << 2
            | u8::from(limit.destination_port) << 3;
        let mut rest = fields;
        let mut words = Vec::new();
        for &(name, bits) in LIMIT_FIELDS {
            if rest & bits == bits {
                rest &= !bits;
                words.push(name);
            }
        }
        out.push_str(&format!(" {} {}", words.join(","), super::actions::print_argument(limit.count)));
    }
    out.push(' ');
    out.push_str(&print_state_name(&state.name));
    if state.deferred {
        out.push_str(" defer-immediate-action");
    }
    out
}
