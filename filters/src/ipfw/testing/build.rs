#![forbid(unsafe_code)]
//! Rules put together by hand.

use ferrule_config::ipfw::ast::{Action, Block, Range, Rule, StateName, StateOption, Term, Test};

/// A rule in set 0 without tests.
pub fn rule(number: u16, action: Action) -> Rule {
    Rule {
        number,
        set: 0,
        probability: None,
        action,
        log: None,
        tag: None,
        blocks: Vec::new(),
        state: None,
        options_only: false,
        comment: None,
        span: Default::default(),
    }
}

/// A test as it stands.
pub fn term(test: Test) -> Term {
    Term { not: false, test, span: Default::default() }
}

/// A test negated.
pub fn not(test: Test) -> Term {
    Term { not: true, test, span: Default::default() }
}

/// A rule with one test to each block.
pub fn rule_if(number: u16, action: Action, tests: impl IntoIterator<Item = Test>) -> Rule {
    let blocks = tests.into_iter().map(|test| Block { terms: vec![term(test)] }).collect();
    Rule { blocks, ..rule(number, action) }
}

/// A range.
pub fn range(low: u16, high: u16) -> Range<u16> {
    Range { low, high }
}

/// `keep-state`.
pub fn keep_state() -> StateOption {
    StateOption { probes: true, limit: None, name: StateName::Default, deferred: false }
}
