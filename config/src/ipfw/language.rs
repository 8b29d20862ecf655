#![forbid(unsafe_code)]
//! What the commands need from outside: the grammar of rules, and names of hosts.

use std::net::Ipv4Addr;

use super::ast::Rule;
use super::command::Word;
use super::failure::Failure;
use crate::span::Span;

/// How a rule is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleStyle {
    /// `-c`: without the parts that every rule has.
    pub compact: bool,
    /// `-b`: action and comment only.
    pub comment_only: bool,
    /// `-N`: names of services.
    pub names: bool,
}

/// The grammar of rules.
pub trait RuleLanguage {
    /// Reads the words after `add`. `end` is where something missing is reported.
    ///
    /// # Errors
    /// Everything that is wrong, with the original's exit codes.
    fn parse(&self, words: &[Word], end: Span) -> Result<ParsedRule, Vec<Failure>>;

    /// The rule from its action on, as `list` prints it after number and set.
    fn print(&self, rule: &Rule, style: RuleStyle) -> String;
}

/// A rule, and what there is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedRule {
    /// The rule; its number is 0 where the next free one is meant.
    pub rule: Rule,
    /// Warnings for standard error.
    pub warnings: Vec<String>,
}

/// Where host names are looked up. Rules that depend on a name server mean what it says at the time, there as here.
pub trait Hosts {
    /// Its IPv4 address.
    fn host4(&self, name: &str) -> Option<Ipv4Addr>;
}

/// Knows no host.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHosts;

impl Hosts for NoHosts {
    fn host4(&self, _: &str) -> Option<Ipv4Addr> {
        None
    }
}
