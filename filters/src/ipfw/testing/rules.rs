#![forbid(unsafe_code)]
//! Random rule sets.

use ferrule_config::ipfw::ast::{Action, Argument, Block, Log, ReturnTo, Rule, Tag, Term};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::ipfw::oracle::{Settings, Setup};

use super::actions::{action, state_option};
use super::build::rule;
use super::pool;
use super::tests::test;

/// Numbers that rules have: close together and twice the same, so that jumps meet them, miss them and meet several.
const NUMBERS: [u16; 12] = [1, 99, 100, 100, 100, 101, 200, 200, 300, 500, 1000, 65534];

/// One block: one test, or several in braces.
fn block() -> impl Strategy<Value = Block> {
    let term =
        || (prop::bool::weighted(0.2), test()).prop_map(|(not, test)| Term { not, test, span: Default::default() });
    prop_oneof![5 => vec(term(), 1), 1 => vec(term(), 2..4)].prop_map(|terms| Block { terms })
}

fn tag() -> impl Strategy<Value = Tag> {
    let number = || prop_oneof![5 => (1..4u32).prop_map(Argument::Number), 1 => Just(Argument::Table)];
    prop_oneof![3 => number().prop_map(Tag::Set), 2 => number().prop_map(Tag::Clear)]
}

/// One rule.
pub fn any_rule() -> impl Strategy<Value = Rule> {
    let log = select(vec![None, Some(0), Some(1), Some(2)]).prop_map(|amount| Log { amount });
    let set = prop_oneof![6 => Just(0u8), 1 => 1..4u8, 1 => Just(31u8)];
    let parts = (
        (select(&NUMBERS[..]), action(&NUMBERS), set),
        proptest::option::weighted(0.07, select(vec![0.001f64, 0.25, 0.5, 0.9])),
        proptest::option::weighted(0.15, log),
        proptest::option::weighted(0.12, tag()),
        vec(block(), 0..4),
        proptest::option::weighted(0.2, state_option()),
    );
    parts.prop_map(|((number, action, set), probability, log, tag, blocks, state)| {
        let action = match action {
            // Rules that call back can keep one packet busy for as long as there are paths through them.
            Action::Call(Argument::Number(target)) if target <= u32::from(number) => {
                Action::Return(ReturnTo::NextNumber)
            }
            other => other,
        };
        // ipfw(8) refuses a check-state that keeps state.
        let state = if matches!(action, Action::CheckState(_)) { None } else { state };
        Rule { set, probability, log, tag, blocks, state, ..rule(number, action) }
    })
}

/// Rules, tables, settings and the box. Up to `most` rules.
pub fn setup(most: usize) -> impl Strategy<Value = Setup> {
    let flags = any::<(bool, bool)>();
    let settings = (flags, prop::bool::weighted(0.3), 0..3u32, 1..4u32, select(vec![2usize, 16384])).prop_map(
        |((one_pass, default_to_accept), layer2, verbose_limit, fibs, dynamic_max)| Settings {
            one_pass,
            default_to_accept,
            layer2,
            verbose_limit,
            fibs,
            dynamic_max,
            ..Settings::default()
        },
    );
    let disabled = prop_oneof![3 => Just(0u32), 1 => any::<u32>().prop_map(|sets| sets & 0xe)];
    (vec(any_rule(), 0..=most), settings, disabled, any::<u64>()).prop_map(|(rules, settings, disabled_sets, seed)| {
        Setup { rules, disabled_sets, tables: pool::tables(), settings, environment: pool::environment(), seed }
    })
}
