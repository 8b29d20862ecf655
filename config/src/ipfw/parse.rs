#![forbid(unsafe_code)]
//! The parser of one rule: `add [NUMBER] [set N] [prob P] ACTION [log ...] [tag N] PROTO from SRC to DST [OPTIONS] [// TEXT]`.
//!
//! It follows compile_rule() of FreeBSD's ipfw(8) in what it takes. It goes on after an error where the rest of the line can still be
//! understood, so that one run shows the mistakes of a whole file. Where ipfw(8) lets a `not` slip to the next test (`not any`), or
//! an `or` with `any` join what follows, the meaning of the text is kept instead.

use super::addresses::{self, Fault};
use super::ast::{Action, Addresses, Block, DEFAULT_RULE, Rule, Side, StateOption, Term, Test};
use super::keywords::{self, OPTIONS};
use super::names::Names;
use super::numbers::{self, ListError, ListKind};
use super::words::{Word, separate_braces, split_arguments, split_line};
use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::span::Span;
use crate::suggest::did_you_mean;

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
    words: &'a [Word<'a>],
    at: usize,
    end: Span,
    pub names: &'a dyn Names,
    diagnostics: &'d mut Diagnostics,
    blocks: Vec<Draft>,
    /// The brace of the block we are in.
    pub open: Option<Span>,
    /// The last term can be joined by `or`.
    joinable: bool,
    /// `or` was read: the next term joins the last block.
    join: bool,
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
    fn new(words: &'a [Word<'a>], end: Span, names: &'a dyn Names, diagnostics: &'d mut Diagnostics) -> Self {
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

    fn peek_at(&self, ahead: usize) -> Option<&'a str> {
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
        let mut comment = None;
        let mut options_only = false;
        if let Some(Action::CheckState(_)) = action {
            comment = self.check_state_rest();
        } else {
            match self.body() {
                Some(only) => options_only = only,
                None => return None,
            }
            comment = self.options().or(comment);
        }
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

    /// The test that a protocol word makes: Some(None) for `ip` and `all`.
    pub fn protocol_word(&self, word: &str) -> Option<Option<Test>> {
        match word {
            "ip" | "all" => Some(None),
            "ip4" | "ipv4" => Some(Some(Test::Ipv4)),
            "ip6" | "ipv6" => Some(Some(Test::Ipv6)),
            _ => self.numbered_protocol(word),
        }
    }

    /// The test of a protocol by number or by its name in the table of protocols, where `ipv6` is 41.
    pub fn numbered_protocol(&self, word: &str) -> Option<Option<Test>> {
        let number = numbers::decimal(word).and_then(|number| u8::try_from(number).ok());
        let number = number.or_else(|| self.names.protocol(word)).filter(|&number| number > 0)?;
        Some(Some(Test::Protocol(number)))
    }

    /// Remembers the protocol for what follows.
    pub fn note_protocol(&mut self, test: &Option<Test>) {
        self.ip6 = matches!(test, Some(Test::Ipv6));
        self.ip6_named |= self.ip6;
        self.protocol = match test {
            Some(Test::Protocol(number)) => Some(*number),
            _ => None,
        };
    }

    /// `PROTO from SRC [PORTS] to DST [PORTS]`. Some(true) where there is none of it (options follow at once), None where it makes no sense
    /// to read on.
    fn body(&mut self) -> Option<bool> {
        if self.open_brace_and_not_before_option() {
            return Some(true);
        }
        let first = self.here();
        let Some(word) = self.peek() else {
            self.hinted(first, "missing protocol", "write ip from any to any, or options such as in recv em0");
            return None;
        };
        let inner = if matches!(word, "{" | "(") { self.peek_at(1).unwrap_or(word) } else { word };
        let inner = if inner == "not" { self.peek_at(1).unwrap_or(inner) } else { inner };
        if self.protocol_word(inner).is_none() {
            let message = format!("invalid protocol {}", quoted(inner));
            let mut candidates = self.protocol_names();
            candidates.extend(["ip", "ip4", "ip6", "all"]);
            candidates.extend(keywords::names(OPTIONS));
            self.unknown(first, message, inner, candidates);
            self.skip_to("from")?;
        } else {
            self.alternatives(Self::protocol_term);
        }
        self.expect("from")?;
        self.alternatives(|parser, not| parser.address_term(Side::Source, not));
        self.ports(Side::Source);
        self.expect("to")?;
        self.alternatives(|parser, not| parser.address_term(Side::Destination, not));
        self.ports(Side::Destination);
        Some(false)
    }

    /// True where options begin at once. Nothing is consumed.
    fn open_brace_and_not_before_option(&self) -> bool {
        let mut ahead = 0;
        while matches!(self.peek_at(ahead), Some("{" | "(" | "not" | "!")) {
            ahead += 1;
        }
        let Some(word) = self.peek_at(ahead) else { return false };
        if ahead == 0 && word == "//" {
            return true;
        }
        let bare = word.strip_prefix('!').filter(|bare| !bare.is_empty()).unwrap_or(word);
        self.protocol_word(word).is_none() && keywords::value(OPTIONS, bare).is_some()
    }

    fn skip_to(&mut self, wanted: &str) -> Option<()> {
        let found = self.words[self.at..].iter().position(|word| word.text == wanted)?;
        self.at += found;
        Some(())
    }

    /// Takes `from` or `to`; complains if it is not there, and goes on where it is.
    fn expect(&mut self, wanted: &str) -> Option<()> {
        if !self.eat(&[wanted]) {
            let here = self.here();
            match self.peek() {
                Some(word) => {
                    let message = format!("missing `{wanted}` before {}", quoted(word));
                    self.unknown(here, message, word, [wanted]);
                }
                None => {
                    self.error(here, format!("missing `{wanted}`"));
                }
            }
            self.skip_to(wanted)?;
            self.at += 1;
        }
        Some(())
    }

    /// One term, or `{ term or term }`.
    fn alternatives(&mut self, mut term: impl FnMut(&mut Self, bool) -> Result<Option<Test>, Failed>) {
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
                // `not any` is a test of its own and carries its `not`.
                let not = not && test != Some(Test::Address(Side::Source, Addresses::None));
                let not = not && test != Some(Test::Address(Side::Destination, Addresses::None));
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
    fn push(&mut self, not: bool, test: Option<Test>, start: Span) {
        if !self.join || self.blocks.is_empty() {
            self.blocks.push(Draft::default());
        }
        self.join = false;
        self.joinable = true;
        let span = start.to(self.before());
        let Some(block) = self.blocks.last_mut() else { return };
        match test {
            None => block.always = true,
            Some(test) => block.terms.push(Term { not, test, span }),
        }
    }

    fn finish_blocks(&mut self) -> Vec<Block> {
        let drafts = std::mem::take(&mut self.blocks);
        let tests = drafts.into_iter().filter(|draft| !draft.always && !draft.terms.is_empty());
        tests.map(|draft| Block { terms: draft.terms }).collect()
    }

    fn protocol_term(&mut self, not: bool) -> Result<Option<Test>, Failed> {
        let here = self.here();
        let Some((word, span)) = self.next() else {
            return Err(self.error(here, "missing protocol"));
        };
        let Some(test) = self.protocol_word(word) else {
            let names = self.protocol_names();
            return Err(self.unknown(span, format!("invalid protocol {}", quoted(word)), word, names));
        };
        self.note_protocol(&test);
        if not && test.is_none() {
            return Err(self.hinted(span, format!("`not {word}` never matches"), "leave the rule out"));
        }
        Ok(test)
    }

    fn address_term(&mut self, side: Side, not: bool) -> Result<Option<Test>, Failed> {
        let family = if self.ip6 { addresses::Family::V6 } else { addresses::Family::Both };
        let what = if side == Side::Source { "source" } else { "destination" };
        let here = self.here();
        match self.peek() {
            None | Some("to" | "//" | "}") => Err(self.error(here, format!("missing {what} address"))),
            Some(_) => {
                let (word, span) = self.next().ok_or(Failed)?;
                self.address(word, span, side, family, not)
            }
        }
    }

    /// The test of an address word.
    pub fn address(
        &mut self,
        word: &str,
        span: Span,
        side: Side,
        family: addresses::Family,
        not: bool,
    ) -> Result<Option<Test>, Failed> {
        match addresses::parse(word, family).map_err(|fault| self.fault(span, fault))? {
            Some(addresses) => Ok(Some(Test::Address(side, addresses))),
            None if not && word != "any" => Err(self.error(span, "`not any` never matches")),
            None if not => {
                self.warn(span, "`not any` never matches");
                Ok(Some(Test::Address(side, Addresses::None)))
            }
            None => Ok(None),
        }
    }

    /// The name that narrows service names down; only these protocols have ports.
    pub fn port_protocol(&self) -> Option<&'static str> {
        super::check::port_protocol(self.protocol?)
    }

    /// Ports after an address, if there are some.
    fn ports(&mut self, side: Side) {
        let start = self.here();
        let not =
            matches!(self.peek(), Some("not" | "!")) && self.peek_at(1).is_some_and(|word| !self.ends_ports(word));
        let Some(word) = self.peek_at(usize::from(not)) else { return };
        if self.ends_ports(word) {
            return;
        }
        self.at += usize::from(not);
        let Some((word, span)) = self.next() else { return };
        if word == "any" {
            return;
        }
        match numbers::list(word, ListKind::Ports(self.names, self.port_protocol())) {
            Ok(ranges) => self.push(not, Some(Test::Ports(side, ranges)), start),
            Err(error) => {
                self.bad_ports(word, span, &error, side == Side::Destination);
            }
        }
        self.joinable = false;
    }

    /// Words that can follow an address and are no ports.
    fn ends_ports(&self, word: &str) -> bool {
        let bare = word.strip_prefix('!').unwrap_or(word);
        matches!(word, "to" | "//" | "{" | "(" | "}" | ")" | "or" | "|" | "not" | "!" | "altq")
            || keywords::value(OPTIONS, bare).is_some()
    }

    /// Reports a list of ports that is none. `or_option`: an option could stand there as well.
    pub fn bad_ports(&mut self, word: &str, span: Span, error: &ListError, or_option: bool) -> Failed {
        match error {
            ListError::TooLarge(port) => {
                self.hinted(span, format!("port {port} out of range"), "ports are numbers up to 65535")
            }
            _ if self.names.service(word, self.port_protocol()).is_some() => {
                let hint = format!("escape what is no letter or digit: {}", numbers::escape(word));
                self.hinted(span, format!("invalid port {}", quoted(word)), hint)
            }
            _ => {
                let what = if or_option { "unrecognised option or port" } else { "invalid port" };
                let mut candidates = if self.diagnostics.is_full() { Vec::new() } else { self.names.services() };
                candidates.extend(keywords::names(OPTIONS).filter(|_| or_option));
                let message = format!("{what} {}", quoted(word));
                self.unknown(span, message, word, candidates)
            }
        }
    }

    /// Options up to the end of the line; the comment.
    fn options(&mut self) -> Option<String> {
        let mut not: Option<Span> = None;
        self.joinable = false;
        self.join = false;
        while let Some((mut word, mut span)) = self.next() {
            if word.len() > 1 && word.starts_with('!') {
                if not.is_some() {
                    self.error(span, "double `not` not allowed");
                }
                not = Some(span);
                (word, span.start) = (&word[1..], span.start + 1);
            }
            match word {
                "not" | "!" => {
                    if not.is_some() {
                        self.error(span, "double `not` not allowed");
                    }
                    not = Some(span);
                }
                "or" | "|" => {
                    if self.open.is_none() || !self.joinable {
                        self.hinted(
                            span,
                            "invalid `or`: no block is open, or nothing stands before",
                            "write { a or b }",
                        );
                    }
                    self.join = self.open.is_some() && self.joinable;
                }
                "{" | "(" => {
                    if self.open.is_some() {
                        self.error(span, "nested `{` not allowed");
                    }
                    if not.is_some() {
                        self.warn(span, "`not` before a block negates its first term only: write it before each term");
                    }
                    self.open = Some(span);
                    (self.join, self.joinable) = (false, false);
                }
                "}" | ")" => {
                    if self.open.take().is_none() {
                        self.error(span, "`}` without `{`");
                    }
                    if self.join {
                        self.error(span, "nothing after `or`");
                    }
                    (self.join, self.joinable) = (false, false);
                }
                "//" => {
                    let comment = self.comment(span);
                    self.end_options(not);
                    return comment;
                }
                _ => self.option_word(word, span, &mut not),
            }
        }
        self.end_options(not);
        None
    }

    fn option_word(&mut self, word: &str, span: Span, not: &mut Option<Span>) {
        let Some(option) = keywords::value(OPTIONS, word) else {
            self.unknown(span, format!("unrecognised option {}", quoted(word)), word, keywords::names(OPTIONS));
            // Its arguments mean nothing either.
            while self.peek().is_some_and(|word| !self.ends_ports(word)) {
                self.at += 1;
            }
            not.take();
            return;
        };
        let negation = not.take();
        let start = negation.unwrap_or(span);
        if let Ok(Parsed::Term(negated, test)) = self.option(option, word, span, negation.is_some()) {
            self.push(negated, test, start);
        }
    }

    fn end_options(&mut self, not: Option<Span>) {
        if let Some(span) = not {
            self.error(span, "nothing after `not`");
        }
        if self.join {
            self.error(self.before(), "nothing after `or`");
        }
        if let Some(open) = self.open.take() {
            let end = self.end;
            self.report(Diagnostic::error(end, "missing `}`").label(open, "the block begins here"));
        }
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
