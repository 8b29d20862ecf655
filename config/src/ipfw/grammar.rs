#![forbid(unsafe_code)]
//! The grammar of rules ([`super::parse`], [`super::print`]) as the commands use it.

use std::borrow::Cow;

use super::ast::Rule;
use super::command::Word;
use super::failure::{Failure, exit};
use super::language::{ParsedRule, RuleLanguage, RuleStyle};
use super::names::Names;
use super::print::PrintOptions;
use super::{check, parse, print, words};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::span::Span;

/// The grammar with these names.
#[derive(Clone, Copy)]
pub struct Grammar<'a> {
    /// Services and protocols.
    pub names: &'a dyn Names,
    /// Refuse rules that cannot be put in force here (`divert` and its kin); `-n` and printing do not need it.
    pub refuse_unsupported: bool,
}

impl RuleLanguage for Grammar<'_> {
    fn parse(&self, words: &[Word], end: Span) -> Result<ParsedRule, Vec<Failure>> {
        let words: Vec<words::Word<'_>> =
            words.iter().map(|word| words::Word { text: Cow::Borrowed(&word.text), span: word.span }).collect();
        let mut diagnostics = Diagnostics::new();
        let rule = parse::parse_add(&words, end, self.names, &mut diagnostics);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            diagnostics.into_vec().into_iter().partition(|diagnostic| diagnostic.severity == Severity::Error);
        let Some(rule) = rule else {
            return Err(errors.into_iter().map(|diagnostic| failure(exit_code(&diagnostic), diagnostic)).collect());
        };
        if self.refuse_unsupported {
            let refused = check::unsupported(&rule);
            if !refused.is_empty() {
                return Err(refused.into_iter().map(|diagnostic| failure(exit::UNAVAILABLE, diagnostic)).collect());
            }
        }
        let said = |warning: Diagnostic| match warning.hint {
            Some(hint) => format!("{} ({hint})", warning.message),
            None => warning.message,
        };
        Ok(ParsedRule { rule, warnings: warnings.into_iter().map(said).collect() })
    }

    fn print(&self, rule: &Rule, style: RuleStyle) -> String {
        let options = PrintOptions {
            names: self.names,
            compact: style.compact,
            resolve: style.names,
            comment_only: style.comment_only,
            ..PrintOptions::default()
        };
        print::print_body(rule, &options)
    }
}

fn failure(exit: u8, diagnostic: Diagnostic) -> Failure {
    Failure { exit, message: diagnostic.message, span: diagnostic.span, hint: diagnostic.hint }
}

/// The exit code: how a rule is put together is EX_USAGE, unknown hosts are EX_NOHOST, the last rule is refused by the firewall
/// (EX_UNAVAILABLE), and every wrong value is EX_DATAERR (compile_rule() of FreeBSD's ipfw2.c).
fn exit_code(diagnostic: &Diagnostic) -> u8 {
    const STRUCTURE: [&str; 9] = [
        "missing",
        "unrecognised",
        "unknown option",
        "double",
        "nested",
        "nothing after",
        "invalid `or`",
        "`}`",
        "only one",
    ];
    let message = diagnostic.message.as_str();
    if STRUCTURE.iter().any(|start| message.starts_with(start)) {
        exit::USAGE
    } else if message.starts_with("hostname") || message.starts_with("unknown host") {
        exit::NO_HOST
    } else if message.starts_with("rule 65535") {
        exit::UNAVAILABLE
    } else {
        exit::DATA
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::command::{CommandLine, Options};
    use crate::ipfw::language::NoHosts;
    use crate::ipfw::names::builtin;
    use crate::ipfw::pending::{Answer, Environment, PendingSet};

    fn run(text: &str) -> Answer {
        let grammar = Grammar { names: builtin(), refuse_unsupported: true };
        let environment =
            Environment { language: &grammar, names: builtin(), hosts: &NoHosts, read_file: &|_| Err(String::new()) };
        PendingSet::new().run(&CommandLine::from_line(text), &mut Options::default(), environment)
    }

    #[test]
    fn rules_are_read_and_shown() {
        assert_eq!(run("add 100 pass all from any to any via lo0").stdout, "00100 allow ip from any to any via lo0\n");
        assert_eq!(run("add deny tcp from any to me 25 setup").stdout, "00100 deny tcp from any to me 25 setup\n");
        assert_eq!(run("-q add count ip from any to any").stdout, "");
    }

    #[test]
    fn wrong_rules_have_the_originals_exit_codes() {
        let exit = |text: &str| {
            let answer = run(text);
            assert!(answer.incomplete && !answer.failures.is_empty(), "{text}: {answer:?}");
            answer.exit
        };
        assert_eq!(exit("add allow tcp"), 64);
        assert_eq!(exit("add alow ip from any to any"), 65);
        assert_eq!(exit("add allow tcp from any to any 70000"), 65);
        assert_eq!(exit("add divert natd ip from any to any"), 69);
        assert_eq!(exit("add 65535 allow ip from any to any"), 69);
    }
}
