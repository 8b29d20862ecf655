use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::Compiled;
use crate::ipfw::fault::{Fault, Planted};
use crate::ipfw::oracle::{Oracle, Settings, Setup, View};
use crate::ipfw::testing::{differ, packets, rules};

fn cases() -> u32 {
    std::env::var("FERRULE_IPFW_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}

/// Without TCP segments whose options are cut off: ipfw drops them when a rule looks there, the parser of the packet path before.
fn whole(mut traffic: packets::Traffic) -> packets::Traffic {
    let settings = Settings::default();
    traffic.packets.retain(|packet| {
        [true, false]
            .into_iter()
            .filter_map(|layer2| View::read(&packet.frame, layer2, &settings).ok())
            .all(|view| view.tcp().is_none_or(|at| view.tcp_options(&packet.frame, at).is_ok()))
    });
    traffic
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_oracle_does(setup in rules::setup(10), traffic in packets::traffic(12)) {
        let mut oracle = Oracle::new(Setup::default());
        let mut engine = Compiled::new(Planted::NONE);
        if let Err(difference) = differ(&mut oracle, &mut engine, &setup, &whole(traffic)) {
            // Rules that call each other for ever are ended by the engine after 4,096 jumps, by the oracle much later.
            let endless = oracle.counters().iter().any(|counter| counter.packets > 4000);
            prop_assert!(endless, "{difference}");
        }
    }
}

#[test]
fn states_that_send_a_packet_to_and_fro_end_alike() {
    use crate::ipfw::testing::build::{keep_state, rule, rule_if};
    use crate::ipfw::testing::frame::{between, udp};
    use ferrule_config::ipfw::ast::{Action, Rule, StateName, StateOption, Test};
    let in_group = |rule: Rule, name: &str| {
        let state = StateOption { name: StateName::Named(name.to_owned()), ..keep_state() };
        Rule { state: Some(state), ..rule }
    };
    let other = Rule { state: Some(keep_state()), ..rule_if(101, Action::Allow, [Test::Ipv6]) };
    let rules = vec![in_group(rule(1, Action::Count), "B"), other, in_group(rule(200, Action::Allow), "B")];
    let setup = Setup { rules, ..Setup::default() };
    let frame = between([10, 0, 0, 2].into(), [10, 1, 0, 2].into(), 17, &udp((1024, 80), 4));
    let packet = packets::Packet { frame, recv: "em0".to_owned(), xmit: "em0".to_owned(), pause_s: 0 };
    let traffic = packets::Traffic { packets: vec![packet] };
    let mut oracle = Oracle::new(Setup::default());
    let mut engine = Compiled::new(Planted::NONE);
    differ(&mut oracle, &mut engine, &setup, &traffic).unwrap();
}

/// Faults that lie elsewhere than in this compiler: in the reader of packets and in the tables.
const ELSEWHERE: [Fault; 2] = [Fault::LaterFragmentHasPorts, Fault::TableShortestPrefix];
/// Random rule sets after which a fault counts as missed.
const TRIES: usize = 20_000;

#[test]
fn planted_faults_are_caught() {
    let inputs = (rules::setup(6), packets::traffic(10));
    let mut missed = Vec::new();
    for fault in Fault::ALL.iter().filter(|fault| !ELSEWHERE.contains(fault)) {
        let mut runner = TestRunner::deterministic();
        let caught = (0..TRIES).any(|_| {
            let (setup, traffic) = inputs.new_tree(&mut runner).unwrap().current();
            let traffic = whole(traffic);
            let mut oracle = Oracle::new(Setup::default());
            let mut engine = Compiled::new(Planted::new(*fault));
            differ(&mut oracle, &mut engine, &setup, &traffic).is_err()
        });
        if !caught {
            missed.push(*fault);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

/// For whoever works on the engine: what differs in so many random cases, one of each kind, unshrunk but small.
#[test]
#[ignore = "a tool"]
fn survey() {
    let inputs = (rules::setup(3), packets::traffic(4));
    let mut runner = TestRunner::default();
    let mut seen = std::collections::HashMap::new();
    for _ in 0..cases() {
        let (setup, traffic) = inputs.new_tree(&mut runner).unwrap().current();
        let traffic = whole(traffic);
        let mut oracle = Oracle::new(Setup::default());
        let mut engine = Compiled::new(Planted::NONE);
        if let Err(difference) = differ(&mut oracle, &mut engine, &setup, &traffic) {
            let place = seen.entry(difference.what).or_insert_with(Vec::new);
            place.push((
                setup.rules.len() * 4 + traffic.packets.len(),
                format!("{difference}\n{:?}\n{:?}", setup.rules, traffic),
            ));
        }
    }
    for (what, mut all) in seen {
        all.sort();
        println!("== {what}: {} cases", all.len());
        all.iter().take(3).for_each(|(_, text)| println!("{text}\n"));
    }
}
