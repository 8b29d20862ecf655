#![forbid(unsafe_code)]
//! What rules do to packets that they match.

use std::time::Duration;

use ferrule_config::ipfw::ast::{Action, Argument, ForwardTo, Log, NatInstance, Rule, Tag, Test};

use super::{incoming, judge, outgoing, setup, verdict};
use crate::ipfw::oracle::{Annotations, Oracle, Outcome, Verdict};
use crate::ipfw::testing::build::{rule, rule_if};
use crate::ipfw::testing::frame::{Tcp, V4, V6, between, checksum, ethernet, frame, icmp, udp};
use crate::ipfw::testing::pool;

fn four() -> Vec<u8> {
    between(pool::V4[2].into(), pool::V4[4].into(), 17, &udp((1, 2), 4))
}

fn six() -> Vec<u8> {
    between(pool::V6[2].into(), pool::V6[4].into(), 17, &udp((1, 2), 4))
}

fn run(oracle: &mut Oracle, frame: &mut Vec<u8>) -> (Outcome, Annotations) {
    let mut annotations = Annotations::default();
    let outcome = oracle.judge(frame, &incoming(), &mut annotations, Duration::ZERO);
    (outcome, annotations)
}

#[test]
fn verdicts() {
    let only = |action: Action, frame: &[u8]| verdict(vec![rule(100, action), rule(200, Action::Count)], frame);
    let number = Argument::Number;
    assert_eq!(only(Action::Allow, &four()), Verdict::Allow);
    assert_eq!(only(Action::Deny, &four()), Verdict::Deny);
    assert_eq!(only(Action::Pipe(number(7)), &four()), Verdict::Pipe(7));
    assert_eq!(only(Action::Queue(number(8)), &six()), Verdict::Queue(8));
    assert_eq!(only(Action::Divert(number(8668)), &four()), Verdict::Divert(8668));
    assert_eq!(only(Action::Tee(number(8668)), &four()), Verdict::Tee(8668));
    assert_eq!(only(Action::Netgraph(number(3)), &four()), Verdict::Netgraph(3));
    assert_eq!(only(Action::NgTee(number(3)), &four()), Verdict::NgTee(3));
    assert_eq!(only(Action::Nat(NatInstance::One(number(1))), &four()), Verdict::Nat(1));
    assert_eq!(only(Action::Nat(NatInstance::One(number(9))), &four()), Verdict::Deny, "no such instance");
    assert_eq!(only(Action::Nat(NatInstance::Global), &four()), Verdict::NatGlobal);
    assert_eq!(only(Action::Nat(NatInstance::Global), &six()), Verdict::Deny, "NAT knows IPv4 only");
    assert_eq!(only(Action::External("nat64lsn".into(), "x".into()), &four()), Verdict::Deny, "falls through");
}

#[test]
fn forward() {
    let to4 = Action::Forward(ForwardTo::V4([192, 0, 2, 9].into(), 8080));
    let to6 = Action::Forward(ForwardTo::V6(pool::V6[3], None, 0));
    let only = |action: &Action, frame: &[u8]| verdict(vec![rule(100, action.clone())], frame);
    assert_eq!(only(&to4, &four()), Verdict::Forward([192, 0, 2, 9].into(), 8080));
    assert_eq!(only(&to4, &six()), Verdict::Allow, "a next hop of the other family is none");
    assert_eq!(only(&to6, &six()), Verdict::Forward(pool::V6[3].into(), 0));
    let mut oracle = Oracle::new(setup(vec![rule(100, to4), rule(200, Action::Deny)]));
    assert_eq!(judge(&mut oracle, &four(), &incoming().at_layer2()).verdict, Verdict::Deny, "not at the link layer");
    assert_eq!(oracle.counters()[0].packets, 0);
}

#[test]
fn coming_back_from_where_a_rule_sent_it() {
    for (one_pass, then) in [(true, Verdict::Allow), (false, Verdict::Deny)] {
        let mut setup = setup(vec![rule(100, Action::Pipe(Argument::Number(1))), rule(200, Action::Deny)]);
        setup.settings.one_pass = one_pass;
        let mut oracle = Oracle::new(setup);
        let (outcome, mut carried) = run(&mut oracle, &mut four());
        let from = outcome.resume.unwrap();
        assert_eq!((from.after, from.done), (0, one_pass));
        let again = oracle.resume(&mut four(), &incoming(), &mut carried, Duration::ZERO, from);
        assert_eq!(again.verdict, then);
        assert_eq!(oracle.counters()[1].packets, u64::from(!one_pass));
    }
    // Reassembly always goes on behind its rule.
    let fragment = frame(&V4 { fragment: 0x2000, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(17, &udp((1, 2), 16)));
    let mut oracle = Oracle::new(setup(vec![rule(100, Action::Reassemble), rule(200, Action::Allow)]));
    let (outcome, _) = run(&mut oracle, &mut fragment.clone());
    assert_eq!(outcome.verdict, Verdict::Reassemble);
    assert!(!outcome.resume.unwrap().done);
    assert_eq!(oracle.counters()[0].packets, 2, "FreeBSD counts it before and after");
    run(&mut oracle, &mut four());
    assert_eq!(oracle.counters()[0].packets, 3, "a whole packet is counted and goes on");
    run(&mut oracle, &mut six());
    assert_eq!(oracle.counters()[0].packets, 3, "IPv6 is not reassembled");
    assert_eq!(oracle.counters()[1].packets, 2);
}

#[test]
fn tags_marks_and_tables_of_routes() {
    let tag = |number| Some(Tag::Set(Argument::Number(number)));
    let rules = vec![
        Rule { tag: tag(5), ..rule(100, Action::Count) },
        Rule { tag: tag(6), ..rule(200, Action::Count) },
        Rule { tag: Some(Tag::Clear(Argument::Number(5))), ..rule(300, Action::Count) },
        Rule { tag: tag(7), ..rule_if(350, Action::Count, [Test::Out]) },
        rule(400, Action::SetFib(Argument::Number(2))),
        rule(500, Action::SetMark(Argument::Number(0x1234), u32::MAX)),
        rule(600, Action::SetMark(Argument::Number(0xff), 0x0f)),
        rule(700, Action::Allow),
    ];
    let mut oracle = Oracle::new(setup(rules));
    let (outcome, mut carried) = run(&mut oracle, &mut four());
    assert_eq!(outcome.verdict, Verdict::Allow);
    assert_eq!((carried.tags.clone(), carried.fib, carried.mark), ([6].into(), 2, 0x123f));
    assert!(
        oracle
            .counters()
            .iter()
            .zip(oracle.rules())
            .all(|(counter, rule)| counter.packets == u64::from(rule.number != 350 && rule.number != 65535))
    );
    oracle.judge(&mut four(), &outgoing(), &mut carried, Duration::ZERO);
    assert_eq!(carried.tags, [6, 7].into(), "tags stay on the packet in its out pass");
    // There are three tables of routes; another number is the first.
    let (_, carried) = run(&mut Oracle::new(setup(vec![rule(100, Action::SetFib(Argument::Number(3)))])), &mut four());
    assert_eq!(carried.fib, 0);
}

#[test]
fn a_mark_lasts_one_pass() {
    let rules = vec![
        rule_if(100, Action::SetMark(Argument::Number(4), u32::MAX), [Test::In]),
        rule_if(200, Action::Deny, [Test::Out, Test::Mark(Argument::Number(4), u32::MAX)]),
        rule(300, Action::Allow),
    ];
    let mut oracle = Oracle::new(setup(rules));
    let (_, mut carried) = run(&mut oracle, &mut four());
    assert_eq!(carried.mark, 4);
    assert_eq!(oracle.judge(&mut four(), &outgoing(), &mut carried, Duration::ZERO).verdict, Verdict::Allow);
}

#[test]
fn setdscp() {
    let mut oracle =
        Oracle::new(setup(vec![rule(100, Action::SetDscp(Argument::Number(9))), rule(200, Action::Allow)]));
    let mut changed = frame(&V4 { tos: 3, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(1, &icmp(8, 0)));
    run(&mut oracle, &mut changed);
    assert_eq!(changed, frame(&V4 { tos: 39, ..V4::new(pool::V4[2], pool::V4[4]) }.packet(1, &icmp(8, 0))));
    assert_eq!(checksum(&[&changed[14..34]]), 0);
    let header = |class| V6 { class, label: 0xf_ffff, ..V6::new(pool::V6[2], pool::V6[4]) };
    let mut changed = frame(&header(0xff).packet(58, &icmp(128, 0)));
    run(&mut oracle, &mut changed);
    assert_eq!(changed, frame(&header(39).packet(58, &icmp(128, 0))));
    assert_eq!(oracle.counters()[0].packets, 2);
    let arp = ethernet([0xff; 6], pool::MACS[1], 0x0806, &[0; 28]);
    judge(&mut oracle, &arp, &incoming().at_layer2());
    assert_eq!(oracle.counters()[0].packets, 2, "what is not IP has no DSCP");
    assert_eq!(oracle.counters()[1], super::super::Counter { packets: 3, bytes: 36 + 56, last: Some(0) }, "nor bytes");
}

#[test]
fn tcp_setmss() {
    let rules = vec![rule(100, Action::TcpSetMss(1200)), rule(200, Action::Allow)];
    let segment = |flags, options: &[u8]| Tcp { options: options.to_vec(), ..Tcp::new((1, 2), flags) }.bytes();
    let v4 = |payload: Vec<u8>| frame(&V4::new(pool::V4[2], pool::V4[4]).packet(6, &payload));
    let v6 = |payload: Vec<u8>| frame(&V6::new(pool::V6[2], pool::V6[4]).packet(6, &payload));
    let lowered: &[u8] = &[1, 1, 2, 4, 4, 0xb0];
    let cases = [
        (v4(segment(2, &[1, 1, 2, 4, 5, 0xb4])), v4(segment(2, lowered)), true),
        (v6(segment(18, &[1, 1, 2, 4, 5, 0xb4])), v6(segment(18, lowered)), true),
        // Already lower: left alone, but matched.
        (v4(segment(2, &[2, 4, 1, 0])), v4(segment(2, &[2, 4, 1, 0])), true),
        (v4(segment(2, &[3, 3, 7])), v4(segment(2, &[3, 3, 7])), false),
        (v4(segment(16, &[2, 4, 5, 0xb4])), v4(segment(16, &[2, 4, 5, 0xb4])), false),
        (four(), four(), false),
    ];
    for (mut before, after, counted) in cases {
        let mut oracle = Oracle::new(setup(rules.clone()));
        let (outcome, _) = run(&mut oracle, &mut before);
        assert_eq!(before, after);
        assert_eq!((outcome.verdict, oracle.counters()[0].packets), (Verdict::Allow, u64::from(counted)));
    }
}

#[test]
fn log() {
    let logging = |number, amount| Rule { log: Some(Log { amount }), ..rule(number, Action::Count) };
    let mut setup =
        setup(vec![logging(100, Some(2)), logging(200, Some(0)), logging(300, None), rule(400, Action::Allow)]);
    setup.settings.verbose_limit = 1;
    let mut oracle = Oracle::new(setup);
    for _ in 0..3 {
        run(&mut oracle, &mut four());
    }
    let numbers: Vec<u16> = oracle.log().iter().map(|entry| entry.rule).collect();
    assert_eq!(numbers, [100, 200, 300, 100, 200, 200]);
    assert_eq!(oracle.log()[0].source, (pool::V4[2].into(), 1));
    assert_eq!(oracle.log()[0].interface.as_deref(), Some("em0"));
    assert_eq!(oracle.counters()[0].packets, 3, "the rule goes on matching");
}
