use std::time::Duration;

use ferrule_config::Diagnostics;
use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::parse::parse_add_line;
use ferrule_config::ipfw::table::TableKind;
use ferrule_dataplane::arena::HEADER_WINDOW;
use ferrule_dataplane::fib::MacAddress;
use ferrule_filters::ipfw::oracle::{Annotations, Oracle, Pass, Setup, Table, Verdict};

use super::*;
use crate::compare::flows::write_flow;
use crate::compare::rig::PORTS;

fn rule(command: &str) -> Rule {
    let mut diagnostics = Diagnostics::new();
    parse_add_line(command, 0, builtin(), &mut diagnostics).unwrap_or_else(|| panic!("{command}: {diagnostics:?}"))
}

/// The tables of a set, for the interpreter.
fn tables(drawn: &Mixed) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for command in &drawn.tables {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["table", name, "create", ..] => {
                tables.push(Table { name: name.to_owned(), kind: TableKind::Address, entries: vec![] });
            }
            ["table", _, "add", net] => {
                let net: ipnetwork::IpNetwork = net.parse().unwrap();
                let key = match net {
                    ipnetwork::IpNetwork::V4(net) => TableKey::V4(net.ip(), net.prefix()),
                    ipnetwork::IpNetwork::V6(net) => TableKey::V6(net.ip(), net.prefix()),
                };
                tables.last_mut().unwrap().entries.push((key, TableValue::default()));
            }
            _ => panic!("{command}"),
        }
    }
    tables
}

fn oracle(drawn: &Mixed, rules: Vec<Rule>) -> Oracle {
    let mut setup = Setup { rules, ..Setup::default() };
    setup.tables.0 = tables(drawn);
    Oracle::new(setup)
}

/// Both passes of a packet; it must come through.
fn forward(oracle: &mut Oracle, flow: &Flow) {
    let mut frame = [0; HEADER_WINDOW];
    let len = write_flow(&mut frame, MacAddress([2; 6]), MacAddress([4; 6]), flow);
    let mut frame = frame[..len].to_vec();
    let mut annotations = Annotations::default();
    for pass in [Pass::incoming(PORTS[0]), Pass::outgoing(PORTS[0], PORTS[1])] {
        let outcome = oracle.judge(&mut frame, &pass, &mut annotations, Duration::ZERO);
        assert_eq!(outcome.verdict, Verdict::Allow, "{flow:?}");
    }
}

fn counts(oracle: &Oracle) -> Vec<u64> {
    oracle.counters().iter().map(|counter| counter.packets).collect()
}

#[test]
fn every_rule_is_hit_by_its_packet_when_alone() {
    for (family, seed) in [(Family::Inet, 1), (Family::Inet6, 2), (Family::Inet, 99)] {
        let drawn = mixed::draw(300, family, &Profile::ALL, seed);
        let last = rule(drawn.rules.last().unwrap());
        for (index, flow) in &drawn.hits {
            let mut oracle = oracle(&drawn, vec![rule(&drawn.rules[*index]), last.clone()]);
            forward(&mut oracle, flow);
            assert!(counts(&oracle)[0] > 0, "{family} seed {seed}: {}: {flow:?}", drawn.rules[*index]);
        }
    }
}

#[test]
fn in_the_whole_set_each_rule_is_reached_and_misses_meet_none() {
    for family in Family::ALL {
        for profiles in [&Profile::ALL[..], &[Profile::Acl], &[Profile::Fw], &[Profile::Ipc]] {
            let drawn = mixed::draw(200, family, profiles, 5);
            assert_eq!(drawn.rules.len(), 200);
            let rules: Vec<Rule> = drawn.rules.iter().map(|command| rule(command)).collect();
            let mut whole = oracle(&drawn, rules.clone());
            for (index, flow) in &drawn.hits {
                let before = counts(&whole)[*index];
                forward(&mut whole, flow);
                assert!(counts(&whole)[*index] > before, "{family}: {}: {flow:?}", drawn.rules[*index]);
            }
            // The ladder is reached by all that goes to its sections; so all rules but the last are.
            assert!(counts(&whole)[..199].iter().all(|packets| *packets > 0));
            let mut whole = oracle(&drawn, rules);
            drawn.misses.iter().take(500).for_each(|flow| forward(&mut whole, flow));
            assert_eq!(counts(&whole)[..199].iter().sum::<u64>(), 0);
        }
    }
}

#[test]
fn a_seed_gives_the_same_set_and_another_seed_another() {
    let draw = |seed| mixed::draw(150, Family::Inet, &Profile::ALL, seed);
    let (one, again, other) = (draw(11), draw(11), draw(12));
    assert_eq!((&one.rules, &one.tables, &one.hits), (&again.rules, &again.tables, &again.hits));
    assert_eq!(one.misses, again.misses);
    assert!(one.rules != other.rules && one.hits != other.hits && one.misses != other.misses);
    assert_ne!(even(&one, 11), one.hits.iter().map(|(_, flow)| *flow).collect::<Vec<_>>());
}

#[test]
fn all_that_mixed_rules_may_ask_for_is_there() {
    let text = mixed::draw(1000, Family::Inet, &Profile::ALL, 21).rules.join("\n");
    let wanted = [
        "skipto",
        "count",
        " tcp ",
        " udp ",
        " ip ",
        "table(",
        " or ",
        "{ src-port",
        "established",
        "setup",
        "tcpflags syn,!ack",
        "in recv em0",
        "out xmit em1",
        "via em0",
        "1024-65535",
        ",",
        "/16",
        "/24",
        "/28",
    ];
    for part in wanted {
        assert!(text.contains(part), "no {part}");
    }
}

#[test]
fn rules_of_one_shape_are_those_of_the_classic_set() {
    let rules = one_shape(1000, Family::Inet);
    assert_eq!(rules.len(), 1000);
    assert_eq!(rules[0], "add 1 deny ip from 1.1.1.0/24 to any");
    assert_eq!(rules[998], "add 999 deny ip from 1.4.237.0/24 to any");
    assert_eq!(rules[999], "add 1000 allow ip from any to any");
    for family in Family::ALL {
        assert_eq!(Loaded::new(one_shape(100, family)).unwrap().packets().unwrap().len(), 101);
    }
}

#[test]
fn keys_are_in_the_table_and_other_packets_are_noticed() {
    for family in Family::ALL {
        let (firewall, traffic) = table(100, family, &mut Random::new(4)).unwrap();
        let mut case = case("table", family, &firewall, traffic, 0).unwrap();
        assert!(case.sample(3).unwrap() > 0.0);
        let error = case_of(&firewall, family).err().unwrap().to_string();
        assert!(error.contains("0 of the round's packets came out"), "{error}");
        assert!(case.rig.close());
    }
}

/// The classic flows are from elsewhere.
fn case_of(firewall: &Loaded, family: Family) -> Result<Case, Failure> {
    case("not in the table", family, firewall, Traffic::Classic, 0)
}

#[test]
fn each_flow_has_its_state() {
    for family in Family::ALL {
        let firewall = Loaded::new(stateful(20_000)).unwrap();
        let mut case = case("states", family, &firewall, Traffic::Wide(20_000), 0).unwrap();
        assert_eq!(firewall.states().unwrap(), 20_000);
        case.sample(4).unwrap();
        assert_eq!(firewall.states().unwrap(), 20_000);
        assert!(case.rig.close());
    }
}
