//! FreeBSD's own packet tests of ipfw, as far as one box in memory can show them: rule text in, what the packets meet out.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ferrule_config::Diagnostics;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::parse::parse_add_line;
use ferrule_config::ipfw::table::{TableKey, TableKind, TableValue};
use ferrule_filters::ipfw::oracle::{Annotations, Oracle, Pass, Settings, Setup, Table, Verdict};
use ferrule_filters::ipfw::testing::frame::{Tcp, V4, V6, between, checksum, frame, icmp};
use serde_json::Value;

/// Lines of the data; None where there is none (never in CI).
fn expectations() -> Option<Vec<Value>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance/ipfw/expectations.jsonl");
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()),
        Err(error) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "{}: {error}", path.display());
            println!("skipped: no conformance data");
            None
        }
    }
}

/// A box with the commands of one expectation, and FreeBSD's test setting that what no rule matches is accepted.
fn oracle(commands: &[String]) -> Oracle {
    let settings = Settings { default_to_accept: true, ..Settings::default() };
    let mut setup = Setup { settings, ..Setup::default() };
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words[..] {
            ["table", name, "create", "type", kind] => {
                let kind = match kind {
                    "addr" => TableKind::Address,
                    "number" => TableKind::Number,
                    other => panic!("{command}: unknown type {other}"),
                };
                setup.tables.0.push(Table { name: name.into(), kind, entries: vec![] });
            }
            ["table", name, "add", key] => {
                let table = setup.tables.0.iter_mut().find(|table| table.name == name).expect("the table was created");
                table.entries.push((table_key(key), TableValue::default()));
            }
            ["add", ..] => {
                let mut diagnostics = Diagnostics::default();
                let rule = parse_add_line(command, 0, builtin(), &mut diagnostics);
                setup.rules.push(rule.unwrap_or_else(|| panic!("{command}: {diagnostics:?}")));
            }
            ["pipe" | "sched" | "queue", _, "config", ..] => {}
            _ => panic!("{command}: what is this?"),
        }
    }
    Oracle::new(setup)
}

fn table_key(text: &str) -> TableKey {
    match text.split_once('/') {
        None => TableKey::Number(text.parse().unwrap()),
        Some((address, length)) => match address.parse().unwrap() {
            IpAddr::V4(address) => TableKey::V4(address, length.parse().unwrap()),
            IpAddr::V6(address) => TableKey::V6(address, length.parse().unwrap()),
        },
    }
}

/// One pass; the frame is changed where a rule changes it.
fn pass(oracle: &mut Oracle, frame: &mut Vec<u8>, incoming: bool) -> Verdict {
    let pass = if incoming { Pass::incoming("epair0") } else { Pass::outgoing("epair0", "epair1") };
    oracle.judge(frame, &pass, &mut Annotations::default(), Duration::ZERO).verdict
}

/// `ADDRESS`, `ADDRESS:PORT`, `V6ADDRESS:PORT`: an address of IPv6 has a port only where one must be.
fn end(text: &str, port_must_be: bool) -> (IpAddr, u16) {
    if let (Ok(address), false) = (text.parse(), port_must_be) {
        return (address, 40_000);
    }
    let (address, port) = text.rsplit_once(':').unwrap();
    (address.parse().unwrap(), port.parse().unwrap())
}

/// Whether a connection to the box opens: its SYN and ACK come in, its SYN+ACK goes out.
fn connects(oracle: &mut Oracle, packet: &str) -> bool {
    let (from, to) = packet.strip_prefix("TCP connect ").unwrap().split_once(" -> ").unwrap();
    let (from, to) = (end(from, false), end(to, true));
    let there = |flags| between(from.0, to.0, 6, &Tcp::new((from.1, to.1), flags).bytes());
    let back = between(to.0, from.0, 6, &Tcp::new((to.1, from.1), 18).bytes());
    let steps = [(there(2), true), (back, false), (there(16), true)];
    steps.into_iter().all(|(mut frame, incoming)| pass(oracle, &mut frame, incoming) == Verdict::Allow)
}

fn echo4(tos: u8) -> Vec<u8> {
    let header = V4 { tos, ..V4::new([192, 0, 2, 2].into(), [198, 51, 100, 2].into()) };
    frame(&header.packet(1, &icmp(8, 0)))
}

fn echo6() -> Vec<u8> {
    frame(&V6::new("2001:db8:42::1".parse().unwrap(), "2001:db8:43::2".parse().unwrap()).packet(58, &icmp(128, 0)))
}

/// Both passes of a forwarded packet.
fn forwarded(oracle: &mut Oracle, frame: &mut Vec<u8>) -> bool {
    pass(oracle, frame, true) == Verdict::Allow && pass(oracle, frame, false) == Verdict::Allow
}

#[test]
fn packets_meet_what_freebsd_says() {
    let Some(lines) = expectations() else { return };
    let mut seen = 0;
    for line in &lines {
        let expect = &line["expect"];
        let Some(packet) = expect["packet"].as_str() else { continue };
        let commands: Vec<String> = serde_json::from_value(line["rule"].clone()).unwrap();
        let outcome = expect["outcome"].as_str().unwrap();
        let script = line["source"].as_str().unwrap().rsplit('/').next().unwrap();
        let mut oracle = oracle(&commands);
        let told = match (script, packet) {
            ("lookup.sh", packet) => {
                let works = connects(&mut oracle, packet);
                if works { "connection works" } else { "connection refused/blocked" }
            }
            ("pass_block.sh", _) => {
                let all = [echo4(0), echo6()].into_iter().all(|mut frame| forwarded(&mut oracle, &mut frame));
                if all { "reply" } else { "no reply" }
            }
            ("forward.sh", _) => {
                assert_eq!(pass(&mut oracle, &mut echo4(0), true), Verdict::Allow);
                if pass(&mut oracle, &mut echo4(0), false) == Verdict::Deny { "not forwarded" } else { "forwarded" }
            }
            ("tos.sh", "forwarded ICMP, TOS 3 (ECN bits set)") => {
                let mut frame = echo4(3);
                assert!(forwarded(&mut oracle, &mut frame));
                assert_eq!(checksum(&[&frame[14..34]]), 0);
                if frame[15] == 39 { "leaves with TOS 39: ECN bits preserved" } else { "leaves otherwise" }
            }
            ("tos.sh", "forwarded ICMP, TOS 32") => {
                assert!(!forwarded(&mut oracle, &mut echo4(9 << 2)), "DSCP 9 is denied");
                if forwarded(&mut oracle, &mut echo4(32)) { "forwarded" } else { "not forwarded" }
            }
            // What follows decides elsewhere: here only where the packets are sent.
            ("nat.sh", _) => {
                let mut frame = echo4(0);
                let via = Pass { recv: Some("EXT"), ..Pass::incoming("EXT") };
                let verdict = oracle.judge(&mut frame, &via, &mut Annotations::default(), Duration::ZERO).verdict;
                assert_eq!(verdict, Verdict::Divert(8668));
                outcome
            }
            ("fragments.sh", _) => {
                let header = V4 { fragment: 0x2000, ..V4::new([192, 0, 2, 2].into(), [192, 0, 2, 1].into()) };
                assert_eq!(pass(&mut oracle, &mut frame(&header.packet(1, &icmp(8, 0))), true), Verdict::Reassemble);
                assert_eq!(pass(&mut oracle, &mut echo4(0), true), Verdict::Allow, "a whole packet goes on");
                outcome
            }
            ("dummynet.sh", "flood ping of 1300 bytes + 2 MB TCP echo") => {
                let segment = between([192, 0, 2, 2].into(), [192, 0, 2, 1].into(), 6, &Tcp::new((1, 7), 16).bytes());
                assert_eq!(pass(&mut oracle, &mut segment.clone(), false), Verdict::Queue(100));
                assert_eq!(pass(&mut oracle, &mut echo4(0), false), Verdict::Queue(200));
                assert_eq!(pass(&mut oracle, &mut segment.clone(), true), Verdict::Allow);
                outcome
            }
            ("dummynet.sh", _) => {
                assert_eq!(pass(&mut oracle, &mut echo4(0), true), Verdict::Pipe(1));
                outcome
            }
            other => panic!("no packets for {other:?}"),
        };
        assert_eq!(told, outcome, "{commands:?}");
        seen += 1;
    }
    assert!(seen >= 20, "only {seen} lines with packets");
}
