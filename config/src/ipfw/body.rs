#![forbid(unsafe_code)]
//! The body of a rule: protocol, addresses and ports, and the row of options.

use super::addresses;
use super::ast::{Addresses, Side, Test};
use super::keywords::{self, OPTIONS};
use super::numbers::{self, ListError, ListKind};
use super::reader::{Failed, Parsed, Parser};
use crate::diagnostic::{Diagnostic, quoted};
use crate::span::Span;

impl Parser<'_, '_> {
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
    pub fn body(&mut self) -> Option<bool> {
        if self.open_brace_and_not_before_option() {
            return Some(true);
        }
        let first = self.here();
        let Some(word) = self.peek() else {
            self.hinted(first, "missing protocol", "write ip from any to any, or options such as in recv em0");
            return None;
        };
        let mut ahead = 0;
        while matches!(self.peek_at(ahead), Some("{" | "(" | "not" | "!")) {
            ahead += 1;
        }
        let inner = self.peek_at(ahead).unwrap_or(word);
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
    pub fn ends_ports(&self, word: &str) -> bool {
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
    pub fn options(&mut self) -> Option<String> {
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
}
