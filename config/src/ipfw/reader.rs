#![forbid(unsafe_code)]
//! The words of one rule as they are being read: where we are, the blocks that have been built, complaints.

use super::addresses::Fault;
use super::ast::{Addresses, Block, StateOption, Term, Test};
use super::names::Names;
use super::words::Word;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Span;
use crate::suggest::did_you_mean;

/// A complaint was made; nothing was understood.
pub(super) struct Failed;

/// What an option came to.
pub(super) enum Parsed {
    /// No test: a state option.
    Nothing,
    /// A test, perhaps negated; None matches everything (`via any`).
    Term(bool, Option<Test>),
}

/// A block that is being read.
#[derive(Default)]
struct Draft {
    terms: Vec<Term>,
    /// `any` is among its terms: it matches everything, so it is no test.
    always: bool,
}

/// The state of reading one rule.
pub(super) struct Parser<'a, 'd> {
    pub words: &'a [Word<'a>],
    pub at: usize,
    pub end: Span,
    pub names: &'a dyn Names,
    pub diagnostics: &'d mut Diagnostics,
    blocks: Vec<Draft>,
    /// The brace of the block we are in.
    pub open: Option<Span>,
    /// The last term can be joined by `or`.
    pub joinable: bool,
    /// `or` was read: the next term joins the last block.
    pub join: bool,
    /// The protocol named last, which narrows service names down.
    pub protocol: Option<u8>,
    /// The protocol named last is `ip6`.
    pub ip6: bool,
    /// `ip6` was named.
    pub ip6_named: bool,
    pub state: Option<StateOption>,
    pub deferred: Option<Span>,
}

impl<'a, 'd> Parser<'a, 'd> {
    pub fn new(words: &'a [Word<'a>], end: Span, names: &'a dyn Names, diagnostics: &'d mut Diagnostics) -> Self {
        Self {
            words,
            at: 0,
            end,
            names,
            diagnostics,
            blocks: Vec::new(),
            open: None,
            joinable: false,
            join: false,
            protocol: None,
            ip6: false,
            ip6_named: false,
            state: None,
            deferred: None,
        }
    }

    /// The next word.
    pub fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|word| word.text.as_ref())
    }

    /// The word `ahead` words after the next.
    pub fn peek_at(&self, ahead: usize) -> Option<&'a str> {
        self.words.get(self.at + ahead).map(|word| word.text.as_ref())
    }

    /// The place of the next word, or the end of the line.
    pub fn here(&self) -> Span {
        self.words.get(self.at).map_or(self.end, |word| word.span)
    }

    /// The place of the word before.
    pub fn before(&self) -> Span {
        self.at.checked_sub(1).and_then(|at| self.words.get(at)).map_or(self.here(), |word| word.span)
    }

    /// Takes the next word.
    pub fn next(&mut self) -> Option<(&'a str, Span)> {
        let word = self.words.get(self.at)?;
        self.at += 1;
        Some((word.text.as_ref(), word.span))
    }

    /// Gives the word taken last back.
    pub fn back(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    /// Takes the next word if it is one of these.
    pub fn eat(&mut self, wanted: &[&str]) -> bool {
        let found = self.peek().is_some_and(|word| wanted.contains(&word));
        self.at += usize::from(found);
        found
    }

    /// Takes the argument of `option`, or complains that it is missing.
    pub fn argument(&mut self, option: &str, what: &str) -> Result<(&'a str, Span), Failed> {
        if self.peek().is_none_or(|word| word == "//") {
            return Err(self.error(self.here(), format!("{option} requires {what}")));
        }
        self.next().ok_or(Failed)
    }

    /// Reports.
    pub fn report(&mut self, diagnostic: Diagnostic) -> Failed {
        self.diagnostics.push(diagnostic);
        Failed
    }

    /// Reports an error.
    pub fn error(&mut self, span: Span, message: impl Into<String>) -> Failed {
        self.report(Diagnostic::error(span, message))
    }

    /// Reports an error with a way to mend it.
    pub fn hinted(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) -> Failed {
        self.report(Diagnostic::error(span, message).hint(hint))
    }

    /// Reports a warning.
    pub fn warn(&mut self, span: Span, message: impl Into<String>) {
        self.diagnostics.push(Diagnostic::warning(span, message));
    }

    /// Reports a word that is none of these. The nearest is worked out only when it will be shown.
    pub fn unknown<'n>(
        &mut self,
        span: Span,
        message: impl Into<String>,
        word: &str,
        candidates: impl IntoIterator<Item = &'n str>,
    ) -> Failed {
        let hint = if self.diagnostics.is_full() { None } else { did_you_mean(word, candidates) };
        self.report(Diagnostic::error(span, message).maybe_hint(hint))
    }

    /// Names of protocols to suggest; none when nobody will see them.
    pub fn protocol_names(&self) -> Vec<&'a str> {
        if self.diagnostics.is_full() { Vec::new() } else { self.names.protocols() }
    }

    /// Reports what is wrong with an address or a table.
    pub fn fault(&mut self, span: Span, fault: Fault) -> Failed {
        self.report(Diagnostic::error(span, fault.message).maybe_hint(fault.hint))
    }

    /// One term, or `{ term or term }`.
    pub fn alternatives(&mut self, mut term: impl FnMut(&mut Self, bool) -> Result<Option<Test>, Failed>) {
        if let Some("{" | "(") = self.peek() {
            self.open = Some(self.here());
            self.at += 1;
        }
        loop {
            let start = self.here();
            let mut not = false;
            while self.eat(&["not", "!"]) {
                if not {
                    self.error(self.before(), "double `not` not allowed");
                }
                not = true;
            }
            if let Ok(test) = term(self, not) {
                self.push(not, test, start);
            }
            self.join = false;
            if self.eat(&["or", "|"]) {
                if self.open.is_none() {
                    self.hinted(self.before(), "invalid `or`: no block is open", "write { a or b }");
                }
                self.join = true;
                continue;
            }
            break;
        }
        if let Some(open) = self.open.take()
            && !self.eat(&["}", ")"])
        {
            let here = self.here();
            self.report(Diagnostic::error(here, "missing `}`").label(open, "the block begins here"));
        }
        self.joinable = false;
    }

    /// Adds a term, to the last block after `or`. None is `any`.
    pub fn push(&mut self, not: bool, test: Option<Test>, start: Span) {
        if !self.join || self.blocks.is_empty() {
            self.blocks.push(Draft::default());
        }
        self.join = false;
        self.joinable = true;
        // `not any` is a test of its own and carries its `not`.
        let not = not && !matches!(test, Some(Test::Address(_, Addresses::None)));
        let span = start.to(self.before());
        let Some(block) = self.blocks.last_mut() else { return };
        match test {
            None => block.always = true,
            Some(test) => block.terms.push(Term { not, test, span }),
        }
    }

    pub fn finish_blocks(&mut self) -> Vec<Block> {
        let drafts = std::mem::take(&mut self.blocks);
        let tests = drafts.into_iter().filter(|draft| !draft.always && !draft.terms.is_empty());
        tests.map(|draft| Block { terms: draft.terms }).collect()
    }
}
