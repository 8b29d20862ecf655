//! The rule files that people use, run by a real shell, in a gateway in memory: each rule is met by a packet that it is about, and what
//! `ipfw -a list` says of it is what the interpreter says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferrule::ipfw::script::{ScriptRequest, run};
use ferrule_config::ipfw::ast::Action;
use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::print::{PrintOptions, print_body, print_rule};
use ferrule_filters::ipfw::testing::frame::{Tcp, V4, frame, udp};
use ferrule_filters::ipfw::testing::gateway::rule_set;
use ferrule_filters::ipfw::testing::{Fate, Gateway, Origin, Plan, Shot, Solver, Twin};

fn rules_folder() -> Option<PathBuf> {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/rules");
    if rules.is_dir() {
        return Some(rules);
    }
    assert!(std::env::var_os("CI").is_none(), "no conformance data in {}", rules.display());
    println!("skipped: no conformance data");
    None
}

/// What a script comes to, run unchanged.
fn load(name: &str, settings: &[(&str, &str)]) -> Option<RuleSet> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let script = rules_folder()?.join(name);
    let directory = std::env::temp_dir().join(format!(
        "ferrule-rules-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    ));
    std::fs::create_dir_all(&directory).unwrap();
    let request = ScriptRequest {
        script,
        arguments: vec![],
        settings: settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>(),
        program: env!("CARGO_BIN_EXE_ferrule").into(),
        directory: directory.clone(),
        time_limit: Duration::from_secs(60),
    };
    let result = run(&request, builtin(), &NoHosts);
    std::fs::remove_dir_all(&directory).unwrap();
    Some(result.unwrap_or_else(|error| panic!("{name}: {error}")).rules)
}

/// The list of rules, loaded again, is the same program.
fn assert_lists_the_same(name: &str, set: &RuleSet) {
    let lines: Vec<String> =
        set.rules.iter().map(|rule| format!("add {}", print_rule(rule, &PrintOptions::default()))).collect();
    let again = rule_set(&lines).unwrap_or_else(|error| panic!("{name}: its own list: {error}"));
    let again = RuleSet { rules: again.rules, ..set.clone() };
    assert!(again == *set, "{name}: the list means something else");
    let twice: Vec<String> =
        again.rules.iter().map(|rule| format!("add {}", print_rule(rule, &PrintOptions::default()))).collect();
    assert_eq!(twice, lines, "{name}");
}

/// The outside is dc0, as in the handbook; xl0 and rl0 are inside.
fn handbook() -> Plan {
    Plan::new(
        &[
            ("dc0", "198.51.100.2/24 2001:db8:2::1/64"),
            ("xl0", "192.168.0.1/24 2001:db8:1::1/64"),
            ("rl0", "100.64.0.1/24 2001:db8:4::1/64"),
            ("lo0", "192.168.99.1/24 2001:db8:99::1/64"),
        ],
        &["198.51.100.3", "2001:db8:2::3"],
    )
}

/// The outside is em1, the inside em0.
fn box_of_rc() -> Plan {
    Plan::new(
        &[
            ("em0", "198.51.100.1/24 2001:db8:2::1/64 fe80::1/64"),
            ("em1", "198.18.0.1/24 2001:db8:3::1/64"),
            ("lo0", "100.99.99.1/24 2001:db8:99::1/64"),
        ],
        &["198.18.0.9", "2001:db8:3::9"],
    )
}

/// Whether a packet comes to rules at all, and in as many passes as the interpreter's gateway has: some a gateway drops before, whatever the
/// rules.
struct Admission(RefCell<(Gateway, Twin)>);

impl Admission {
    fn new(plan: &Plan) -> Admission {
        let mut set = rule_set(&["add 1 count ip from any to any"]).unwrap();
        set.variables.insert("net.inet.ip.fw.default_to_accept".to_owned(), 1);
        Admission(RefCell::new((Gateway::new(plan, &set), Twin::new(plan, &set))))
    }

    fn admits(&self, shot: &Shot) -> bool {
        let (gateway, twin) = &mut *self.0.borrow_mut();
        let before = gateway.counters()[0].0;
        let twice = twin.counters()[0].0;
        twin.send(shot.origin, &shot.frame, Duration::ZERO);
        gateway.shoot(shot);
        gateway.counters()[0].0 - before == twin.counters()[0].0 - twice
    }
}

/// Meets each rule with a packet, in one gateway; the numbers of rules for which no packet was found.
fn meet_all(name: &str, plan: &Plan, set: &RuleSet, by_hand: &[u16]) -> Vec<u16> {
    let admission = Admission::new(plan);
    let admits = |shot: &Shot| admission.admits(shot);
    let mut solver = Solver::new(plan, set, &admits);
    let (mut gateway, mut twin) = (Gateway::new(plan, set), Twin::new(plan, set));
    let order: Vec<_> = gateway.rules().cloned().collect();
    let mut unmet = Vec::new();
    for (index, rule) in order.iter().enumerate() {
        // What a state lets pass is counted by the rule that made the state.
        if matches!(rule.action, Action::CheckState(_)) || by_hand.contains(&rule.number) {
            continue;
        }
        let Some(shots) = solver.reach(index) else {
            unmet.push(rule.number);
            continue;
        };
        let before = gateway.counters()[index].0;
        let mut fate = Fate::NoWay;
        for shot in &shots {
            fate = twin.beside(&mut gateway, shot).unwrap_or_else(|error| {
                panic!("{name}, for rule {} {}: {error}", rule.number, print_body(rule, &PrintOptions::default()))
            });
        }
        assert!(gateway.counters()[index].0 > before, "{name}: rule {} was met and did not count", rule.number);
        if rule.action == Action::Deny {
            assert!(matches!(fate, Fate::Ended(_)), "{name}: rule {} is met last and denies", rule.number);
        }
        gateway.advance(1_000_000_000_000);
    }
    assert_listed(&gateway, &twin);
    gateway.close();
    unmet
}

/// `ipfw -a list`, line by line: number, packets, bytes, rule.
fn assert_listed(gateway: &Gateway, twin: &Twin) {
    let list = gateway.list();
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(lines.len(), twin.counters().len());
    for ((line, rule), (packets, bytes)) in lines.iter().zip(gateway.rules()).zip(twin.counters()) {
        let mut words = line.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok());
        assert_eq!((number(), number(), number()), (Some(rule.number.into()), Some(packets), Some(bytes)), "{line}");
        let text: Vec<&str> = words.collect();
        let body = print_body(rule, &PrintOptions::default());
        assert_eq!(text, body.split_whitespace().collect::<Vec<_>>());
    }
}

/// `unmet` are the rules that no packet can meet.
fn check(name: &str, settings: &[(&str, &str)], plan: &Plan, unmet: &[u16]) {
    check_but(name, settings, plan, unmet, &[]);
}

fn check_but(name: &str, settings: &[(&str, &str)], plan: &Plan, unmet: &[u16], by_hand: &[u16]) {
    let Some(set) = load(name, settings) else { return };
    assert_lists_the_same(name, &set);
    for workers in [1, 2] {
        let label = format!("{name} {settings:?} on {workers}");
        assert_eq!(
            meet_all(&label, &plan.clone().on(workers), &set, by_hand),
            unmet,
            "{label}: rules that no packet meets"
        );
    }
}

#[test]
fn netbenches_stateless_and_stateful() {
    check("netbenches-stateless.ipfw.sh", &[], &handbook(), &[65535]);
    check("netbenches-stateful.ipfw.sh", &[], &handbook(), &[65535]);
}

#[test]
fn netbenches_table_and_blacklist() {
    check("netbenches-table1000.ipfw.sh", &[], &handbook(), &[65535]);
    check("netbenches-niclevel.ipfw.sh", &[], &handbook(), &[65535]);
}

#[test]
fn netbenches_1000_rules() {
    check("netbenches-rules1000.ipfw.sh", &[], &handbook(), &[65535]);
}

#[test]
fn handbook_stateful() {
    // Packets from 127/8, 0/8 and 224/3 are dropped before any rule, and rule 999 decides last.
    check("handbook-stateful.ipfw.sh", &[], &handbook(), &[303, 304, 308, 65535]);
}

#[test]
fn handbook_nat() {
    // The interpreter translates nothing: where translation matters is tested below.
    // Rule 99 puts fragments together, so that none comes to rule 330.
    check_but("handbook-nat.ipfw.sh", &[], &handbook(), &[330, 65535], &[400]);
}

#[test]
fn handbook_nat_translates_and_redirects() {
    let Some(set) = load("handbook-nat.ipfw.sh", &[]) else { return };
    for workers in [1, 2] {
        let mut gateway = Gateway::new(&handbook().on(workers), &set);
        let (inside, outside, own) = ([192, 168, 0, 5], [203, 0, 113, 80], [198, 51, 100, 2]);
        let seen = gateway.send(1, &tcp(inside, outside, (5000, 443), 2));
        assert_eq!(seen.by(0), 1, "{}", gateway.list());
        assert_eq!(
            (&seen.out[0][0][26..30], &seen.out[0][0][34..36]),
            (&own[..], &5000u16.to_be_bytes()[..]),
            "same_ports"
        );
        let counts = |gateway: &Gateway| [5, 100, 125, 1000, 1001].map(|rule| gateway.packets(rule));
        assert_eq!(counts(&gateway), [1, 0, 1, 1, 1]);
        let seen = gateway.send(0, &tcp(outside, own, (443, 5000), 18));
        assert_eq!(seen.by(1), 1, "{}", gateway.list());
        assert_eq!(seen.out[1][0][30..34], inside, "the answer goes to who asked");
        assert_eq!(counts(&gateway), [2, 1, 2, 1, 2], "by the state of rule 125 to rule 1000, which is for out only");
        // redirect_port makes it the web server's, which is not `me` any more: rule 400 is not for it.
        let seen = gateway.send(0, &tcp(outside, own, (4000, 80), 2));
        assert_eq!((seen.left().count(), seen.came_up()), (0, 0));
        assert_eq!((gateway.packets(400), gateway.packets(999)), (0, 1));
        gateway.close();
    }
}

#[test]
fn rc_firewall_open_with_nat() {
    rc("open", &[("firewall_nat_enable", "YES"), ("firewall_nat_interface", "em1")], &[65535]);
}

/// Both the gateway and its twin, which must agree on each packet.
struct Pair {
    gateway: Gateway,
    twin: Twin,
}

impl Pair {
    fn new(plan: &Plan, set: &RuleSet) -> Pair {
        Pair { gateway: Gateway::new(plan, set), twin: Twin::new(plan, set) }
    }

    fn send(&mut self, port: usize, frame: Vec<u8>) -> Fate {
        let shot = Shot { origin: Origin::Wire(port), frame };
        self.twin.beside(&mut self.gateway, &shot).unwrap_or_else(|error| panic!("{error}\n{}", self.gateway.list()))
    }
}

fn tcp(from: [u8; 4], to: [u8; 4], ports: (u16, u16), flags: u8) -> Vec<u8> {
    frame(&V4::new(from.into(), to.into()).packet(6, &Tcp::new(ports, flags).bytes()))
}

#[test]
fn handbook_stateful_lets_answers_in_and_limits_visitors() {
    let Some(set) = load("handbook-stateful.ipfw.sh", &[]) else { return };
    for workers in [1, 2] {
        let mut pair = Pair::new(&handbook().on(workers), &set);
        let (inside, outside, own) = ([192, 168, 0, 5], [203, 0, 113, 80], [198, 51, 100, 2]);
        let denied = Fate::Ended(ferrule_filters::ipfw::oracle::Verdict::Deny);
        // Nobody asked; then somebody does, and check-state lets the answer in. The rule that made the state counts it.
        assert_eq!(pair.send(0, tcp(outside, inside, (443, 5000), 18)), denied);
        assert_eq!(pair.gateway.packets(332), 1);
        assert_eq!(pair.send(1, tcp(inside, outside, (5000, 443), 2)), Fate::Left(0));
        assert_eq!(pair.send(0, tcp(outside, inside, (443, 5000), 18)), Fate::Left(1));
        assert_eq!(pair.send(1, tcp(inside, outside, (5000, 443), 16)), Fate::Left(0));
        assert_eq!((pair.gateway.packets(101), pair.gateway.packets(220)), (0, 3));
        assert_eq!(pair.gateway.packets(5), 3, "LAN traffic is let pass without a look");
        // A service that nobody may ask for.
        assert_eq!(pair.send(1, tcp(inside, outside, (5001, 8080), 2)), denied);
        assert_eq!(pair.gateway.packets(299), 1);
        // Two connections from one visitor, one more from another.
        for (source, port, fate) in
            [(outside, 1, Fate::Up), (outside, 2, Fate::Up), (outside, 3, denied), ([203, 0, 113, 81], 3, Fate::Up)]
        {
            assert_eq!(pair.send(0, tcp(source, own, (port, 80), 2)), fate);
        }
        assert_eq!(pair.gateway.packets(400), 4);
        pair.gateway.close();
    }
}

#[test]
fn netbenches_stateful_lets_both_ways_pass_by_one_state() {
    let Some(set) = load("netbenches-stateful.ipfw.sh", &[]) else { return };
    for workers in [1, 2] {
        let mut pair = Pair::new(&handbook().on(workers), &set);
        let udp =
            |from: [u8; 4], to: [u8; 4], ports| frame(&V4::new(from.into(), to.into()).packet(17, &udp(ports, 8)));
        let (a, b) = ([192, 168, 0, 5], [203, 0, 113, 80]);
        for flow in 0..50 {
            assert_eq!(pair.send(1, udp(a, b, (flow, 7))), Fate::Left(0));
            assert_eq!(pair.send(0, udp(b, a, (7, flow))), Fate::Left(1));
        }
        assert_eq!(pair.gateway.shared.count(), 50, "one state for both ways and both passes");
        assert_eq!(pair.gateway.packets(3000), 200);
        pair.gateway.close();
    }
}

const SETTINGS6: [(&str, &str); 3] = [
    ("firewall_client_net_ipv6", "2001:db8:2::/64"),
    ("firewall_simple_inet_ipv6", "2001:db8:2::/64"),
    ("firewall_simple_onet_ipv6", "2001:db8:3::/64"),
];

const SETTINGS4: [(&str, &str); 6] = [
    ("firewall_client_net", "198.51.100.0/24"),
    ("firewall_simple_iif", "em0"),
    ("firewall_simple_inet", "198.51.100.0/24"),
    ("firewall_simple_oif", "em1"),
    ("firewall_simple_onet", "198.18.0.0/24"),
    ("firewall_quiet", "YES"),
];

/// Rules of `setup_loopback`: what has a loopback address is dropped before any rule.
const LOOPBACK: [u16; 4] = [200, 300, 400, 500];

fn rc(kind: &str, more: &[(&str, &str)], unmet: &[u16]) {
    let settings: Vec<_> = [("firewall_type", kind)].into_iter().chain(SETTINGS4).chain(more.iter().copied()).collect();
    check("rc.firewall.ipfw.sh", &settings, &box_of_rc(), &[&LOOPBACK, unmet].concat());
}

#[test]
fn rc_firewall_open_closed_unknown() {
    rc("open", &SETTINGS6, &[65535]);
    rc("closed", &SETTINGS6, &[65535]);
    rc("UNKNOWN", &SETTINGS6, &[]);
}

#[test]
fn rc_firewall_client() {
    rc("client", &[], &[]);
    rc("client", &SETTINGS6, &[]);
}

#[test]
fn rc_firewall_simple() {
    rc("simple", &[], &[]);
    // From and to addresses of IPv4 in IPv6, and from a group: dropped before any rule.
    rc("simple", &SETTINGS6, &[2100, 2200, 4700]);
}

#[test]
fn rc_firewall_workstation() {
    let services = [
        ("firewall_myservices", "22/tcp 53/udp 8080 ospf/proto"),
        ("firewall_allowservices", "any"),
        ("firewall_trusted", "198.18.0.77"),
        ("firewall_logdeny", "YES"),
    ];
    rc("workstation", &services, &[65535]);
}
