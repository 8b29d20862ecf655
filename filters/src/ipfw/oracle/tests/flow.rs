#![forbid(unsafe_code)]
//! Which rules a packet meets: first match, jumps, calls, sets, chance, `or` and `not`.

use std::time::Duration;

use ferrule_config::ipfw::ast::{Action, Addresses, Argument, Block, Numbers, ReturnTo, Rule, Side, Test};

use super::{incoming, judge, outgoing, setup};
use crate::ipfw::oracle::{Annotations, Counter, Oracle, Resume, Verdict};
use crate::ipfw::testing::build::{not, rule, rule_if, term};
use crate::ipfw::testing::frame::{V4, between, frame, udp};
use crate::ipfw::testing::pool;

fn packet() -> Vec<u8> {
    between(pool::V4[2].into(), pool::V4[4].into(), 17, &udp((1, 2), 4))
}

/// Numbers of the rules that counted one packet, and how often.
fn hits(rules: Vec<Rule>, disabled: u32) -> Vec<(u16, u64)> {
    let mut setup = setup(rules);
    setup.disabled_sets = disabled;
    let mut oracle = Oracle::new(setup);
    judge(&mut oracle, &packet(), &incoming());
    let rows = oracle.rules().iter().zip(oracle.counters());
    rows.filter(|(_, counter)| counter.packets > 0).map(|(rule, counter)| (rule.number, counter.packets)).collect()
}

fn skip(number: u16, target: u32) -> Rule {
    rule(number, Action::SkipTo(Argument::Number(target)))
}

fn call(number: u16, target: u32) -> Rule {
    rule(number, Action::Call(Argument::Number(target)))
}

#[test]
fn the_first_match_decides_and_counts_once() {
    let rules = vec![rule(200, Action::Deny), rule(100, Action::Count), rule(100, Action::Allow)];
    let mut oracle = Oracle::new(setup(rules));
    let outcome = oracle.judge(&mut packet(), &incoming(), &mut Annotations::default(), Duration::from_secs(7));
    assert_eq!((outcome.verdict, outcome.rule), (Verdict::Allow, Some(1)));
    let hit = Counter { packets: 1, bytes: 32, last: Some(7) };
    assert_eq!(oracle.counters(), [hit, hit, Counter::default(), Counter::default()]);
}

#[test]
fn the_last_rule_is_as_set() {
    for (accept, verdict) in [(false, Verdict::Deny), (true, Verdict::Allow)] {
        let mut setup = setup(vec![]);
        setup.settings.default_to_accept = accept;
        let mut oracle = Oracle::new(setup);
        assert_eq!(judge(&mut oracle, &packet(), &incoming()).verdict, verdict);
        assert_eq!(oracle.rules()[0].number, 65535);
        assert_eq!(oracle.counters()[0].packets, 1);
    }
}

#[test]
fn skipto() {
    let tail = || vec![rule(200, Action::Count), rule(300, Action::Count), rule(300, Action::Allow)];
    let with = |target| hits([vec![skip(100, target)], tail()].concat(), 0);
    assert_eq!(with(300), [(100, 1), (300, 1), (300, 1)]);
    assert_eq!(with(250), [(100, 1), (300, 1), (300, 1)], "the next higher number");
    assert_eq!(with(100), [(100, 1), (200, 1), (300, 1), (300, 1)], "never to itself");
    assert_eq!(with(1), [(100, 1), (200, 1), (300, 1), (300, 1)], "never back");
    assert_eq!(with(400), [(100, 1), (65535, 1)]);
    // Of two rules with one number, the second is skipped by a jump back.
    let rules = vec![skip(100, 50), rule(100, Action::Count), rule(101, Action::Allow)];
    assert_eq!(hits(rules, 0), [(100, 1), (101, 1)]);
}

#[test]
fn call_and_return() {
    let back = |to| rule(500, Action::Return(to));
    let rules = |to| vec![call(100, 500), rule(100, Action::Count), rule(101, Action::Allow), back(to)];
    assert_eq!(hits(rules(ReturnTo::NextNumber), 0), [(100, 1), (101, 1), (500, 1)]);
    assert_eq!(hits(rules(ReturnTo::NextRule), 0), [(100, 1), (100, 1), (101, 1), (500, 1)]);
    // Nobody called: on to the next rule, uncounted.
    let rules = vec![rule(100, Action::Return(ReturnTo::NextNumber)), rule(200, Action::Allow)];
    assert_eq!(hits(rules, 0), [(200, 1)]);
    // Back, and no deeper than 16.
    assert_eq!(
        hits(vec![rule(50, Action::Count), call(100, 50), rule(200, Action::Allow)], 0),
        [(50, 17), (100, 16), (200, 1)]
    );
}

#[test]
fn waiting_callers_go_along_into_the_out_pass() {
    let rules = vec![
        rule_if(100, Action::Call(Argument::Number(200)), [Test::In]),
        rule_if(200, Action::Allow, [Test::In]),
        rule_if(300, Action::Return(ReturnTo::NextNumber), [Test::Out]),
        rule(400, Action::Deny),
    ];
    let mut oracle = Oracle::new(setup(rules));
    let mut carried = Annotations::default();
    oracle.judge(&mut packet(), &incoming(), &mut carried, Duration::ZERO);
    assert_eq!(carried.callers.len(), 1);
    oracle.judge(&mut packet(), &outgoing(), &mut carried, Duration::ZERO);
    assert_eq!(oracle.counters()[2].packets, 1, "rule 300 went back behind rule 100");
    assert!(carried.callers.is_empty());
}

#[test]
fn sets() {
    let rules = || {
        vec![
            Rule { set: 3, ..rule(100, Action::Deny) },
            skip(150, 200),
            Rule { set: 3, ..rule(200, Action::Deny) },
            rule(200, Action::Count),
            rule(300, Action::Allow),
        ]
    };
    assert_eq!(hits(rules(), 0), [(100, 1)]);
    assert_eq!(hits(rules(), 1 << 3), [(150, 1), (200, 1), (300, 1)], "a jump passes over disabled rules too");
    assert_eq!(hits(vec![], u32::MAX), [(65535, 1)], "set 31 is always there");
}

#[test]
fn chance() {
    let mut setup = setup(vec![Rule { probability: Some(0.25), ..rule(100, Action::Allow) }, rule(200, Action::Deny)]);
    setup.seed = 9;
    let mut oracle = Oracle::new(setup);
    for _ in 0..4000 {
        judge(&mut oracle, &packet(), &incoming());
    }
    let matched = oracle.counters()[0].packets;
    assert!((900..1100).contains(&matched), "{matched} of 4000");
    assert_eq!(oracle.counters()[1].packets, 4000 - matched);
}

#[test]
fn or_and_not() {
    let blocks = |terms| vec![Block { terms }];
    let allow = |blocks| vec![Rule { blocks, ..rule(100, Action::Allow) }];
    let first = |rules| hits(rules, 0)[0].0;
    assert_eq!(first(allow(blocks(vec![term(Test::Ipv6), term(Test::In)]))), 100);
    assert_eq!(first(allow(blocks(vec![term(Test::Ipv6), term(Test::Out)]))), 65535);
    assert_eq!(first(allow(blocks(vec![not(Test::Ipv6)]))), 100);
    assert_eq!(first(allow(blocks(vec![not(Test::In), not(Test::Ipv4)]))), 65535);
    assert_eq!(first(allow(blocks(vec![not(Test::In), not(Test::Ipv6)]))), 100);
    let two = [blocks(vec![term(Test::In)]), blocks(vec![term(Test::Out)])].concat();
    assert_eq!(first(allow(two)), 65535, "every block must match");
}

#[test]
fn the_value_of_a_table_lasts_until_the_next_rule() {
    let found = || Test::Address(Side::Source, Addresses::Table("addresses".into(), None));
    let pipe = || rule(300, Action::Pipe(Argument::Table));
    let first = |rules: Vec<Rule>| judge(&mut Oracle::new(setup(rules)), &packet(), &incoming()).verdict;
    // 10.0.0.2/32 has base 3, 10.1.0/24 base 4.
    assert_eq!(first(vec![rule_if(100, Action::Pipe(Argument::Table), [found()])]), Verdict::Pipe(3));
    let last = Test::Address(Side::Destination, Addresses::Table("addresses".into(), None));
    assert_eq!(first(vec![rule_if(100, Action::Pipe(Argument::Table), [found(), last])]), Verdict::Pipe(4));
    assert_eq!(first(vec![rule_if(100, Action::Count, [found()]), pipe()]), Verdict::Pipe(0));
    assert_eq!(first(vec![rule_if(100, Action::SkipTo(Argument::Table), [found()]), pipe()]), Verdict::Pipe(3));
    let negated = Block { terms: vec![not(found()), term(Test::In)] };
    assert_eq!(
        first(vec![Rule { blocks: vec![negated], ..rule(100, Action::Queue(Argument::Table)) }]),
        Verdict::Queue(3)
    );
}

#[test]
fn tests_can_compare_with_the_value_of_a_table() {
    let found = || Test::Address(Side::Source, Addresses::Table("addresses".into(), None));
    // The entry's value has base 3: code point 27, tag 4, table of routes 0, mark 0x303.
    let passes = |test: Test, tos: u8, carried: Annotations| {
        let header = V4 { tos, ..V4::new(pool::V4[2], pool::V4[4]) };
        let mut packet = frame(&header.packet(17, &udp((1, 2), 4)));
        let rules = vec![rule(100, Action::Count), rule_if(200, Action::Allow, [found(), test])];
        let from = Resume { after: 0, done: false };
        let mut oracle = Oracle::new(setup(rules));
        oracle.resume(&mut packet, &incoming(), &mut carried.clone(), Duration::ZERO, from).verdict == Verdict::Allow
    };
    let none = Annotations::default;
    assert!(passes(Test::DscpTable, 27 << 2 | 1, none()));
    assert!(!passes(Test::DscpTable, 26 << 2, none()));
    assert!(passes(Test::Tagged(Numbers::Table), 0, Annotations { tags: [4].into(), ..none() }));
    assert!(!passes(Test::Tagged(Numbers::Table), 0, Annotations { tags: [3].into(), ..none() }));
    assert!(passes(Test::Fib(Argument::Table), 0, none()));
    assert!(!passes(Test::Fib(Argument::Table), 0, Annotations { fib: 1, ..none() }));
    assert!(passes(Test::Mark(Argument::Table, 0xff), 0, Annotations { mark: 0x1103, ..none() }));
    assert!(!passes(Test::Mark(Argument::Table, 0xffff), 0, Annotations { mark: 0x1103, ..none() }));
}
