#![forbid(unsafe_code)]
//! What ipfw(8) says, with packets that show it.

mod actions;
mod flow;
mod header;
mod reading;
mod refusals;
mod states;
mod surroundings;
mod upper;

use std::time::Duration;

use ferrule_config::ipfw::ast::{Action, Rule, Test};

use super::{Annotations, Oracle, Outcome, Pass, Settings, Setup, Verdict};
use crate::ipfw::testing::build::{rule, rule_if};
use crate::ipfw::testing::pool;

/// The pool's box with these rules; layer2 passes are on.
pub fn setup(rules: Vec<Rule>) -> Setup {
    let settings = Settings { layer2: true, fibs: 3, ..Settings::default() };
    Setup { rules, tables: pool::tables(), settings, environment: pool::environment(), ..Setup::default() }
}

/// The in pass from the first interface.
pub fn incoming() -> Pass<'static> {
    Pass::incoming(pool::INTERFACES[0])
}

/// The out pass from the first interface to the second.
pub fn outgoing() -> Pass<'static> {
    Pass::outgoing(pool::INTERFACES[0], pool::INTERFACES[1])
}

/// Judges one packet.
pub fn judge(oracle: &mut Oracle, frame: &[u8], pass: &Pass<'_>) -> Outcome {
    oracle.judge(&mut frame.to_vec(), pass, &mut Annotations::default(), Duration::ZERO)
}

/// What one packet meets.
pub fn verdict(rules: Vec<Rule>, frame: &[u8]) -> Verdict {
    judge(&mut Oracle::new(setup(rules)), frame, &incoming()).verdict
}

/// Whether `add allow ... TEST` lets the packet through, where all else is denied.
pub fn matches_in(test: &Test, frame: &[u8], pass: &Pass<'_>) -> bool {
    let rules = vec![rule_if(100, Action::Allow, [test.clone()]), rule(200, Action::Deny)];
    let outcome = judge(&mut Oracle::new(setup(rules)), frame, pass);
    assert!(outcome.rule.is_some(), "{test:?}: the packet could not be read");
    outcome.verdict == Verdict::Allow
}

/// Each test with a frame that it matches and one that it does not, in the in pass.
pub fn check(cases: Vec<(Test, Vec<u8>, Vec<u8>)>) {
    for (test, yes, no) in cases {
        assert!(matches_in(&test, &yes, &incoming()), "{test:?} does not match its packet");
        assert!(!matches_in(&test, &no, &incoming()), "{test:?} matches the other packet");
    }
}
