#![forbid(unsafe_code)]
//! Dynamic rules.

use std::time::Duration;

use ferrule_config::ipfw::ast::{Action, Argument, ForwardTo, Limit, Rule, Side, StateName, StateOption, Test};

use super::{incoming, setup};
use crate::ipfw::oracle::{Annotations, Oracle, Verdict};
use crate::ipfw::testing::build::{keep_state, range, rule, rule_if};
use crate::ipfw::testing::frame::{Tcp, between, icmp, udp};
use crate::ipfw::testing::pool;

fn at(oracle: &mut Oracle, second: u64, frame: &[u8]) -> Verdict {
    let now = Duration::from_secs(second);
    oracle.judge(&mut frame.to_vec(), &incoming(), &mut Annotations::default(), now).verdict
}

fn udp_from(port: u16) -> Vec<u8> {
    between(pool::V4[2].into(), pool::V4[4].into(), 17, &udp((port, 53), 4))
}

fn udp_to(port: u16) -> Vec<u8> {
    between(pool::V4[4].into(), pool::V4[2].into(), 17, &udp((53, port), 8))
}

/// A segment of one TCP connection: flags and acknowledgement, there or back.
fn tcp(back: bool, flags: u8, acknowledgement: u32) -> Vec<u8> {
    let ports = if back { (80, 1024) } else { (1024, 80) };
    let segment = Tcp { acknowledgement, ..Tcp::new(ports, flags) }.bytes();
    let (a, b) = (pool::V4[2].into(), pool::V4[4].into());
    if back { between(b, a, 6, &segment) } else { between(a, b, 6, &segment) }
}

fn to_53(action: Action, state: StateOption) -> Rule {
    Rule { state: Some(state), ..rule_if(200, action, [Test::Ports(Side::Destination, vec![range(53, 53)])]) }
}

#[test]
fn replies_pass_and_count_where_the_state_was_made() {
    let rules = vec![rule(100, Action::CheckState(StateName::Default)), to_53(Action::Allow, keep_state())];
    let mut oracle = Oracle::new(setup(rules));
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Deny, "nobody asked");
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 1, &udp_to(1000)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 1, &udp_to(1001)), Verdict::Deny);
    let counters = oracle.counters();
    assert_eq!((counters[0].packets, counters[1].packets, counters[1].bytes), (0, 2, 32 + 36));
    let [state] = oracle.states() else { panic!("{:?}", oracle.states()) };
    assert_eq!((state.rule, state.packets, state.bytes, state.expire), (1, [1, 1], [32, 36], 11));
}

#[test]
fn life_times() {
    let all = |option| vec![Rule { state: Some(option), ..rule(200, Action::Allow) }];
    let mut oracle = Oracle::new(setup(all(keep_state())));
    at(&mut oracle, 100, &udp_from(1000));
    at(&mut oracle, 100, &between(pool::V4[2].into(), pool::V4[4].into(), 1, &icmp(8, 0)));
    let ends: Vec<u64> = oracle.states().iter().map(|state| state.expire).collect();
    assert_eq!(ends, [110, 105]);
    oracle.expire(Duration::from_secs(105));
    assert_eq!(oracle.states().len(), 1);
    oracle.expire(Duration::from_secs(110));
    assert!(oracle.states().is_empty());

    let mut oracle = Oracle::new(setup(all(keep_state())));
    let mut end = |back, flags, acknowledgement| {
        at(&mut oracle, 100, &tcp(back, flags, acknowledgement));
        oracle.states()[0].expire
    };
    assert_eq!(end(false, 2, 0), 120, "SYN");
    assert_eq!(end(true, 18, 1), 120, "SYN of the other end, which alone has acknowledged");
    assert_eq!(end(false, 16, 1), 400, "both have acknowledged");
    assert_eq!(end(false, 17, 2), 400, "one end closes");
    assert_eq!(end(true, 17, 3), 101, "both closed");
    let mut oracle = Oracle::new(setup(all(keep_state())));
    at(&mut oracle, 100, &tcp(false, 16, 5));
    assert_eq!(oracle.states()[0].expire, 101, "no SYN was seen");
}

#[test]
fn an_expired_state_lets_nothing_through() {
    let rules = vec![rule(100, Action::CheckState(StateName::Default)), to_53(Action::Allow, keep_state())];
    let mut oracle = Oracle::new(setup(rules));
    at(&mut oracle, 0, &udp_from(1000));
    assert_eq!(at(&mut oracle, 9, &udp_to(1000)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 18, &udp_to(1000)), Verdict::Allow, "each packet renews it");
    assert_eq!(at(&mut oracle, 28, &udp_to(1000)), Verdict::Deny);
}

#[test]
fn the_first_keep_state_looks_for_states() {
    let rules = vec![
        Rule { state: Some(keep_state()), ..rule_if(100, Action::Deny, [Test::Ipv6]) },
        rule(150, Action::Count),
        to_53(Action::Allow, keep_state()),
    ];
    let mut oracle = Oracle::new(setup(rules));
    at(&mut oracle, 0, &udp_from(1000));
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Allow, "rule 100 finds it");
    assert_eq!(oracle.counters()[1].packets, 1, "so rule 150 saw the first packet only");
}

#[test]
fn record_state_does_not_look() {
    let record = StateOption { probes: false, ..keep_state() };
    let mut oracle = Oracle::new(setup(vec![to_53(Action::Allow, record)]));
    at(&mut oracle, 0, &udp_from(1000));
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Deny);
    at(&mut oracle, 0, &udp_from(1000));
    assert_eq!(oracle.states().len(), 1, "a flow has one state");
    assert_eq!(oracle.states()[0].packets, [2, 0]);
}

#[test]
fn names() {
    let named = |name: &str| StateName::Named(name.into());
    let check = |name| {
        vec![
            rule(100, Action::CheckState(name)),
            to_53(Action::Allow, StateOption { name: named("A"), ..keep_state() }),
        ]
    };
    for (name, reply) in [
        (named("A"), Verdict::Allow),
        (StateName::Any, Verdict::Allow),
        (named("B"), Verdict::Deny),
        (StateName::Default, Verdict::Deny),
    ] {
        // Rule 200 would look for A itself: keep replies from it.
        let mut rules = check(name.clone());
        rules.insert(1, rule_if(150, Action::Deny, [Test::Ports(Side::Source, vec![range(53, 53)])]));
        let mut oracle = Oracle::new(setup(rules));
        at(&mut oracle, 0, &udp_from(1000));
        assert_eq!(at(&mut oracle, 0, &udp_to(1000)), reply, "{name:?}");
    }
}

#[test]
fn a_deferred_action_waits_for_the_next_packet() {
    let deferred = StateOption { deferred: true, ..keep_state() };
    let mut oracle = Oracle::new(setup(vec![to_53(Action::Deny, deferred), rule(300, Action::Allow)]));
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Allow);
    assert_eq!(oracle.counters()[0].packets, 0);
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Deny);
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Deny);
}

#[test]
fn limits() {
    let limit = |source_address, source_port| Limit {
        source_address,
        source_port,
        destination_address: false,
        destination_port: false,
        count: Argument::Number(2),
    };
    let with = |limit, probes| vec![to_53(Action::Allow, StateOption { limit: Some(limit), probes, ..keep_state() })];
    let mut oracle = Oracle::new(setup(with(limit(true, false), true)));
    assert_eq!(at(&mut oracle, 0, &udp_from(1)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 0, &udp_from(2)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 0, &udp_from(3)), Verdict::Deny);
    assert_eq!(oracle.counters()[0].packets, 3, "the refused packet counts");
    assert_eq!(at(&mut oracle, 0, &udp_from(2)), Verdict::Allow, "a state that is there goes on");
    let other = between(pool::V4[3].into(), pool::V4[4].into(), 17, &udp((1, 53), 4));
    assert_eq!(at(&mut oracle, 0, &other), Verdict::Allow, "another source");
    assert_eq!(at(&mut oracle, 10, &udp_from(3)), Verdict::Allow, "states ended");
    // By port, each port is a combination of its own.
    let mut oracle = Oracle::new(setup(with(limit(false, true), true)));
    assert!((1..=5).all(|port| at(&mut oracle, 0, &udp_from(port)) == Verdict::Allow));
    // set-limit does not look for the state first: a full combination refuses even its own flows.
    let mut oracle = Oracle::new(setup(with(limit(true, false), false)));
    for (port, verdict) in [(1, Verdict::Allow), (1, Verdict::Allow), (2, Verdict::Allow), (1, Verdict::Deny)] {
        assert_eq!(at(&mut oracle, 0, &udp_from(port)), verdict);
    }
}

#[test]
fn the_table_can_be_full() {
    let mut setup = setup(vec![to_53(Action::Allow, keep_state())]);
    setup.settings.dynamic_max = 1;
    let mut oracle = Oracle::new(setup);
    assert_eq!(at(&mut oracle, 0, &udp_from(1)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 0, &udp_from(2)), Verdict::Deny);
}

#[test]
fn the_action_of_the_state_is_the_rules() {
    // skipto by a state leads where the rule leads, and fwd is for the way forward only.
    let rules = vec![
        to_53(Action::SkipTo(Argument::Number(400)), keep_state()),
        rule(300, Action::Deny),
        rule(400, Action::Allow),
    ];
    let mut oracle = Oracle::new(setup(rules));
    at(&mut oracle, 0, &udp_from(1000));
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Allow);
    let next = [192, 0, 2, 1].into();
    let mut oracle = Oracle::new(setup(vec![to_53(Action::Forward(ForwardTo::V4(next, 0)), keep_state())]));
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Forward(next.into(), 0));
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Forward(next.into(), 0));
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Allow);
}

#[test]
fn a_disabled_set_does_not_end_its_states() {
    let mut ask = to_53(Action::Allow, keep_state());
    ask.set = 2;
    let mut oracle = Oracle::new(setup(vec![rule(100, Action::CheckState(StateName::Default)), ask]));
    at(&mut oracle, 0, &udp_from(1000));
    oracle.disable_sets(1 << 2);
    assert_eq!(at(&mut oracle, 0, &udp_to(1000)), Verdict::Allow);
    assert_eq!(at(&mut oracle, 0, &udp_from(1001)), Verdict::Deny);
}

#[test]
fn rules_that_lead_back_to_each_other_end() {
    // The state of rule 200 leads on to 300, whose own to 400, which looks for the first group again and leads back to 200.
    let named = |name: &str| StateName::Named(name.into());
    let keep = |number, name: &str| Rule {
        state: Some(StateOption { name: named(name), ..keep_state() }),
        ..rule(number, Action::Count)
    };
    let rules =
        vec![keep(200, "A"), keep(300, "B"), rule(400, Action::CheckState(named("A"))), rule(500, Action::Allow)];
    let mut oracle = Oracle::new(setup(rules));
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Allow);
    let before: u64 = oracle.counters()[..2].iter().map(|counter| counter.packets).sum();
    assert_eq!(at(&mut oracle, 0, &udp_from(1000)), Verdict::Allow);
    let after: u64 = oracle.counters()[..2].iter().map(|counter| counter.packets).sum();
    // Behind the bound, rules 200 and 300 match by themselves once more or not at all.
    assert!((16..=18).contains(&(after - before)), "{}", after - before);
}
