//! Every line of the conformance data's expectations.jsonl, as FreeBSD's own tests have it: commands in, connections and pings out.

use std::net::IpAddr;
use std::path::PathBuf;

use ferrule_config::ipfw::document::RuleSet;
use ferrule_filters::ipfw::testing::frame::{Tcp, V4, between, checksum, frame, icmp};
use ferrule_filters::ipfw::testing::gateway::{Gateway, Plan, rule_set};
use ferrule_filters::ipfw::testing::{Solver, Twin};
use serde_json::Value;

use super::common::accepting;
use super::scenarios;

/// Lines whose rule is refused here, with a word of the reason that the script is told.
const REFUSED: [(&str, &str); 4] = [
    ("add netgraph 42 ip from any to any", "there is no netgraph"),
    ("add divert 42 ip from any to any", "divert sockets"),
    ("add tee 42 ip from any to any", "divert sockets"),
    ("add divert natd all from any to any via EXT", "use nat instead of natd"),
];

/// Lines whose rule no packet meets: it looks into tables that nobody filled.
const UNMET: [&str; 1] = ["add allow ip from table(AAA) to table(BBB)"];

/// Lines of the data; None where there is none (never in CI).
pub fn lines() -> Option<Vec<Value>> {
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

/// FreeBSD's tests: one cable to a client, here with another to the world.
fn plan() -> Plan {
    Plan::new(
        &[("epair0", "192.0.2.1/31 2001:db8:42::2/64"), ("epair1", "198.51.100.2/24 2001:db8:43::1/64")],
        &["198.51.100.3", "2001:db8:43::2"],
    )
}

fn commands_of(line: &Value) -> Vec<String> {
    match &line["rule"] {
        Value::String(text) => vec![text.clone()],
        list => serde_json::from_value(list.clone()).unwrap(),
    }
}

/// `ADDRESS`, `ADDRESS:PORT`, `V6ADDRESS:PORT`: an address of IPv6 has a port only where one must be.
fn end(text: &str, port_must_be: bool) -> (IpAddr, u16) {
    if let (Ok(address), false) = (text.parse(), port_must_be) {
        return (address, 40_000);
    }
    let (address, port) = text.rsplit_once(':').unwrap();
    (address.parse().unwrap(), port.parse().unwrap())
}

/// A connection to the box: its SYN and ACK come up to the host, the host's SYN+ACK gets out.
fn connect(gateway: &mut Gateway, packet: &str) -> &'static str {
    let (from, to) = packet.strip_prefix("TCP connect ").unwrap().split_once(" -> ").unwrap();
    let (from, to) = (end(from, false), end(to, true));
    let there = |flags| between(from.0, to.0, 6, &Tcp::new((from.1, to.1), flags).bytes());
    let back = between(to.0, from.0, 6, &Tcp::new((to.1, from.1), 18).bytes());
    let seen = gateway.send(0, &there(2));
    if seen.came_up() == 0 {
        // Refused by an ICMP error where the rule is for the packet's family.
        let refused = seen.by(0) == 1 || from.0.is_ipv6() && seen.by(0) == 0;
        assert!(refused, "{packet}: {seen:?}\n{}", gateway.list());
        return "connection refused/blocked";
    }
    let works = gateway.send_host(0, &back).by(0) == 1 && gateway.send(0, &there(16)).came_up() == 1;
    if works { "connection works" } else { "connection refused/blocked" }
}

fn echo4(tos: u8) -> Vec<u8> {
    let header = V4 { tos, ..V4::new([192, 0, 2, 0].into(), [203, 0, 113, 2].into()) };
    frame(&header.packet(1, &icmp(8, 0)))
}

fn ping(gateway: &mut Gateway, from: &str, to: &str) -> bool {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let (protocol, request, reply) = if from.is_ipv4() { (1, 8, 0) } else { (58, 128, 129) };
    gateway.send(0, &between(from, to, protocol, &icmp(request, 0))).came_up() == 1
        && gateway.send_host(0, &between(to, from, protocol, &icmp(reply, 0))).by(0) == 1
}

/// What a line with a packet comes to.
fn outcome(script: &str, packet: &str, commands: &[String], workers: usize) -> &'static str {
    let plan = plan().on(workers);
    let mut gateway = Gateway::new(&plan, &accepting(commands));
    let told = match (script, packet) {
        ("lookup.sh", packet) => connect(&mut gateway, packet),
        ("pass_block.sh", _) => {
            let both =
                ping(&mut gateway, "192.0.2.0", "192.0.2.1") && ping(&mut gateway, "2001:db8:42::1", "2001:db8:42::2");
            assert_eq!(gateway.packets(100), 4, "request in and reply out, twice");
            if both { "reply" } else { "no reply" }
        }
        ("forward.sh", _) => {
            let out = gateway.send(0, &echo4(0)).by(1);
            assert_eq!(gateway.packets(100), 1 - out as u64);
            if out == 0 { "not forwarded" } else { "forwarded" }
        }
        ("tos.sh", "forwarded ICMP, TOS 3 (ECN bits set)") => {
            let seen = gateway.send(0, &echo4(3));
            assert_eq!(checksum(&[&seen.out[1][0][14..34]]), 0);
            assert_eq!(gateway.packets(100), 2);
            if seen.out[1][0][15] == 39 { "leaves with TOS 39: ECN bits preserved" } else { "leaves otherwise" }
        }
        ("tos.sh", "forwarded ICMP, TOS 32") => {
            assert_eq!(gateway.send(0, &echo4(9 << 2)).by(1), 0, "DSCP 9 is denied");
            let out = gateway.send(0, &echo4(32)).by(1);
            assert_eq!(gateway.packets(100), 1);
            if out == 1 { "forwarded" } else { "not forwarded" }
        }
        other => panic!("no packets for {other:?}"),
    };
    gateway.close();
    told
}

/// A rule alone: a packet that the interpreter says it is for, through the gateway.
fn meets(set: &RuleSet, text: &str, workers: usize) -> bool {
    let plan = plan().on(workers);
    let Some(shots) = Solver::new(&plan, set, &|_| true).reach(0) else { return false };
    let (mut gateway, mut twin) = (Gateway::new(&plan, set), Twin::new(&plan, set));
    for shot in &shots {
        twin.beside(&mut gateway, shot).unwrap_or_else(|error| panic!("{text}: {error}\n{}", gateway.list()));
    }
    assert!(gateway.counters()[0].0 > 0);
    gateway.close();
    true
}

#[test]
fn every_line_is_what_happens() {
    let Some(lines) = lines() else { return };
    let (mut packets, mut rules, mut refused) = (0, 0, 0);
    for line in &lines {
        let commands = commands_of(line);
        if let Some((_, reason)) = REFUSED.iter().find(|(text, _)| commands == [*text]) {
            let error = rule_set(&commands).unwrap_err();
            assert!(error.contains(reason), "{commands:?}: {error}");
            refused += 1;
            continue;
        }
        let expect = &line["expect"];
        for workers in [1, 2] {
            match expect["packet"].as_str() {
                Some(packet) => {
                    let stated = expect["outcome"].as_str().unwrap();
                    let script = line["source"].as_str().unwrap().rsplit('/').next().unwrap();
                    let told = match scenarios::of_line(script, packet, &commands, workers) {
                        Some(told) => told,
                        None => outcome(script, packet, &commands, workers),
                    };
                    assert_eq!(told, stated, "{commands:?} on {workers}");
                    packets += 1;
                }
                None => {
                    let set = rule_set(&commands).unwrap();
                    if scenarios::is_shaped(&commands) {
                        continue;
                    }
                    let met = meets(&set, &commands[0], workers);
                    assert_eq!(met, !UNMET.contains(&commands[0].as_str()), "{commands:?}");
                    rules += 1;
                }
            }
        }
    }
    // A line that is neither refused nor sent packets fails above; fewer lines than there were would pass unseen.
    assert!((packets, rules, refused) >= (2 * 20, 2 * 15, 4), "{packets} {rules} {refused}");
}
