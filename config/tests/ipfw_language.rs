//! The rule language of ipfw(8) from outside: random rules, random text, and the conformance data.

#![forbid(unsafe_code)]

#[path = "ipfw/conformance.rs"]
mod conformance;
#[path = "ipfw/operations.rs"]
mod operations;
#[path = "ipfw/random.rs"]
mod random;

use std::time::{Duration, Instant};

use ferrule_config::diagnostic::Diagnostics;
use ferrule_config::ipfw::ast::{Block, Rule};
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::parse::parse_add_line;
use ferrule_config::ipfw::print::{PrintOptions, print_rule_with};
use ferrule_config::span::Span;
use proptest::prelude::*;

/// The rule without its places, which printing does not keep.
fn without_places(mut rule: Rule) -> Rule {
    rule.span = Span::default();
    for term in rule.blocks.iter_mut().flat_map(|block| &mut block.terms) {
        term.span = Span::default();
    }
    rule
}

/// The text that `add` takes for this rule.
fn text_of(rule: &Rule) -> String {
    let body = print_rule_with(rule, &PrintOptions { show_set: true, ..PrintOptions::default() }, "");
    format!("add {body}")
}

/// Parses what must be understood.
fn parse(text: &str) -> Rule {
    let mut diagnostics = Diagnostics::new();
    let rule = parse_add_line(text, 0, builtin(), &mut diagnostics);
    without_places(rule.unwrap_or_else(|| panic!("{text}\n{:?}", diagnostics.into_vec())))
}

/// Blocks without regard to their order.
fn sorted(blocks: &[Block]) -> Vec<String> {
    let mut blocks: Vec<String> = blocks.iter().map(|block| format!("{block:?}")).collect();
    blocks.sort();
    blocks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// What was printed is read back as the same rule.
    #[test]
    fn printed_rules_are_read_back(rule in random::canonical_rule()) {
        let text = text_of(&rule);
        prop_assert_eq!(parse(&text), rule, "{}", text);
    }

    /// Tests in any order: printing puts some of them in front, once, and keeps them all.
    #[test]
    fn printing_keeps_every_test_and_is_stable(rule in random::disordered_rule()) {
        let text = text_of(&rule);
        let again = parse(&text);
        prop_assert_eq!(sorted(&again.blocks), sorted(&rule.blocks), "{}", &text);
        prop_assert_eq!(text_of(&again), text);
    }

    /// Words of the language in any order: understood or refused, with places inside the text; what is understood prints stably.
    #[test]
    fn any_words_are_understood_or_refused(text in random::words()) {
        let mut diagnostics = Diagnostics::new();
        match parse_add_line(&text, 0, builtin(), &mut diagnostics) {
            Some(rule) => {
                let printed = text_of(&rule);
                prop_assert_eq!(text_of(&parse(&printed)), printed, "{}", text);
            }
            None => {
                let said = diagnostics.into_vec();
                prop_assert!(!said.is_empty(), "refused without a reason: {}", text);
                for said in said {
                    let inside = said.span.start <= said.span.end && said.span.end as usize <= text.len();
                    prop_assert!(inside, "{:?} in {}", said, text);
                }
            }
        }
    }
}

/// Every line of a text as a rule.
fn parse_all(text: &str) -> usize {
    let mut diagnostics = Diagnostics::new();
    let mut offset = 0;
    for line in text.split('\n') {
        parse_add_line(line, offset, builtin(), &mut diagnostics);
        offset += line.len() + 1;
    }
    diagnostics.errors()
}

/// No input costs more than its length: nothing here is quadratic. The bound leaves room for slow builds and busy machines.
fn assert_quick(what: &str, text: &str) -> usize {
    let start = Instant::now();
    let errors = parse_all(text);
    let took = start.elapsed();
    let bound = if cfg!(debug_assertions) { 20 } else { 1 };
    println!("{what}: {} bytes, {errors} errors, {took:?}", text.len());
    assert!(took < Duration::from_secs(bound), "{what}: {took:?}");
    errors
}

#[test]
fn ten_megabytes_of_noise_are_an_error_at_once() {
    const SIZE: usize = 10_000_000;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(SIZE);
    while bytes.len() < SIZE {
        // xorshift64*
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend(state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    assert!(assert_quick("noise", &String::from_utf8_lossy(&bytes)) > 0);
}

#[test]
fn long_lines_cost_no_more_than_their_length() {
    const COUNT: usize = 1_000_000;
    let prefix = "add allow ip from any to any ";
    for piece in
        ["{ ", "} ", "not ", "! ", "in or ", "{ in } ", "nonsense ", "// ", "x, ", "!!", "((", ")", "from ", "tag 1 "]
    {
        assert_quick(piece, &format!("{prefix}{}", piece.repeat(COUNT)));
        assert_quick(piece, &format!("add {}", piece.repeat(COUNT)));
    }
    for piece in ["1.2.3.4,", "::1,", "80,", "1.2.3.0/24{1},"] {
        assert_quick(piece, &format!("add allow ip from {}x to any", piece.repeat(COUNT)));
        assert_quick(piece, &format!("add allow ip from any {}x to any", piece.repeat(COUNT)));
    }
}
