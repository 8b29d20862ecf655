//! Each test of the language with a packet that matches and one that does not.

use std::collections::BTreeSet;

use ferrule_config::ipfw::ast::{Addresses, InterfaceMatch, InterfaceRole, LookupKey, Numbers, Test};
use ferrule_filters::ipfw::testing::Shot;
use ferrule_filters::ipfw::testing::frame::{V4, V6, frame, icmp, udp};

use super::common::*;

/// Names of a test and of what it is made of. A new variant does not compile until it has a name here, and fails until a case has it.
fn names_of(test: &Test) -> Vec<&'static str> {
    match test {
        Test::Ipv4 => vec!["ip4"],
        Test::Ipv6 => vec!["ip6"],
        Test::Protocol(_) => vec!["protocol"],
        Test::Layer2 => vec!["layer2"],
        Test::Mac { .. } => vec!["mac"],
        Test::MacTable(..) => vec!["mac table"],
        Test::MacType(_) => vec!["mac-type"],
        Test::Address(_, addresses) => vec![match addresses {
            Addresses::None => "address none",
            Addresses::Me => "address me",
            Addresses::Me6 => "address me6",
            Addresses::Table(_, None) => "address table",
            Addresses::Table(_, Some(_)) => "address table value",
            Addresses::V4(_) => "address v4",
            Addresses::Set4 { .. } => "address set",
            Addresses::V6(_) => "address v6",
        }],
        Test::Ports(..) => vec!["ports"],
        Test::Lookup(key, _) => vec![match key {
            LookupKey::Address(_) => "lookup ip",
            LookupKey::Address4(..) => "lookup ip4",
            LookupKey::Address6(..) => "lookup ip6",
            LookupKey::Port(..) => "lookup port",
            LookupKey::Mac(..) => "lookup mac",
            LookupKey::Dscp(_) => "lookup dscp",
            LookupKey::RuleNumber(_) => "lookup rulenum",
            LookupKey::Mark(_) => "lookup mark",
            LookupKey::Owner(_) => "lookup owner",
        }],
        Test::FlowTable(_, None) => vec!["flow table"],
        Test::FlowTable(_, Some(_)) => vec!["flow table value"],
        Test::In => vec!["in"],
        Test::Out => vec!["out"],
        Test::Interface(role, wanted) => vec![
            match role {
                InterfaceRole::Recv => "recv",
                InterfaceRole::Xmit => "xmit",
                InterfaceRole::Via => "via",
            },
            match wanted {
                InterfaceMatch::Any => "interface any",
                InterfaceMatch::Name(_) => "interface name",
                InterfaceMatch::Pattern(_) => "interface pattern",
                InterfaceMatch::Address4(_) => "interface v4",
                InterfaceMatch::Address6(_) => "interface v6",
                InterfaceMatch::Table(..) => "interface table",
            },
        ],
        Test::Fragment(_) => vec!["frag"],
        Test::IpId(numbers) => vec!["ipid", kind_of(numbers)],
        Test::IpLength(numbers) => vec!["iplen", kind_of(numbers)],
        Test::IpTtl(numbers) => vec!["ipttl", kind_of(numbers)],
        Test::IpVersion(_) => vec!["ipversion"],
        Test::IpOptions(_) => vec!["ipoptions"],
        Test::IpPrecedence(_) => vec!["ipprecedence"],
        Test::IpTos(_) => vec!["iptos"],
        Test::Dscp(_) => vec!["dscp"],
        Test::DscpTable => vec!["dscp tablearg"],
        Test::TcpFlags(_) => vec!["tcpflags"],
        Test::Established => vec!["established"],
        Test::TcpOptions(_) => vec!["tcpoptions"],
        Test::TcpSequence(_) => vec!["tcpseq"],
        Test::TcpAcknowledgement(_) => vec!["tcpack"],
        Test::TcpWindow(numbers) => vec!["tcpwin", kind_of(numbers)],
        Test::TcpDataLength(numbers) => vec!["tcpdatalen", kind_of(numbers)],
        Test::TcpMss(numbers) => vec!["tcpmss", kind_of(numbers)],
        Test::IcmpTypes(_) => vec!["icmptypes"],
        Test::Icmp6Types(_) => vec!["icmp6types"],
        Test::ExtensionHeaders(_) => vec!["ext6hdr"],
        Test::FlowId(_) => vec!["flow-id"],
        Test::VerifyReversePath => vec!["verrevpath"],
        Test::VerifySourceReach => vec!["versrcreach"],
        Test::AntiSpoof => vec!["antispoof"],
        Test::Fib(_) => vec!["fib"],
        Test::Tagged(numbers) => vec!["tagged", kind_of(numbers)],
        Test::Mark(..) => vec!["mark"],
        Test::Owner(..) => vec!["owner"],
        Test::Ipsec => vec!["ipsec"],
        Test::Diverted { .. } => vec!["diverted"],
        Test::SocketArgument => vec!["sockarg"],
    }
}

fn kind_of(numbers: &Numbers) -> &'static str {
    match numbers {
        Numbers::List(_) => "numbers list",
        Numbers::Table => "numbers tablearg",
    }
}

/// Every name that [`names_of`] gives.
const ALL: [&str; 75] = [
    "ip4",
    "ip6",
    "protocol",
    "layer2",
    "mac",
    "mac table",
    "mac-type",
    "address none",
    "address me",
    "address me6",
    "address table",
    "address table value",
    "address v4",
    "address set",
    "address v6",
    "ports",
    "lookup ip",
    "lookup ip4",
    "lookup ip6",
    "lookup port",
    "lookup mac",
    "lookup dscp",
    "lookup rulenum",
    "lookup mark",
    "lookup owner",
    "flow table",
    "flow table value",
    "in",
    "out",
    "recv",
    "xmit",
    "via",
    "interface any",
    "interface name",
    "interface pattern",
    "interface v4",
    "interface v6",
    "interface table",
    "frag",
    "ipid",
    "iplen",
    "ipttl",
    "ipversion",
    "ipoptions",
    "ipprecedence",
    "iptos",
    "dscp",
    "dscp tablearg",
    "tcpflags",
    "established",
    "tcpoptions",
    "tcpseq",
    "tcpack",
    "tcpwin",
    "tcpdatalen",
    "tcpmss",
    "icmptypes",
    "icmp6types",
    "ext6hdr",
    "flow-id",
    "verrevpath",
    "versrcreach",
    "antispoof",
    "fib",
    "tagged",
    "mark",
    "owner",
    "ipsec",
    "diverted",
    "sockarg",
    "numbers list",
    "numbers tablearg",
    "negated",
    "or-block",
    "masked",
];

/// A rule with its packets.
struct Case {
    /// Commands before it.
    before: Vec<&'static str>,
    /// What stands behind `add 100 deny`.
    rule: &'static str,
    /// A packet that it is about; None where there can be none here.
    yes: Option<Shot>,
    /// One that it is not about; None where it is about all.
    no: Option<Shot>,
    /// Whether it asks for routes.
    routes: bool,
    /// What it shows beside the tests in it.
    also: Option<&'static str>,
}

fn case(rule: &'static str, yes: Vec<u8>, no: Vec<u8>) -> Case {
    Case { before: vec![], rule, yes: Some(wire(yes)), no: Some(wire(no)), routes: false, also: None }
}

fn never(rule: &'static str) -> Case {
    Case { before: vec![], rule, yes: None, no: Some(wire(udp4((1000, 53)))), routes: false, also: None }
}

impl Case {
    fn after(mut self, commands: &[&'static str]) -> Case {
        self.before.extend(commands);
        self
    }

    fn routes(self) -> Case {
        Case { routes: true, ..self }
    }

    fn also(self, name: &'static str) -> Case {
        Case { also: Some(name), ..self }
    }
}

/// UDP from an address.
fn from(source: &str) -> Vec<u8> {
    match source.parse().unwrap() {
        std::net::IpAddr::V4(source) => with4(V4 { source, ..v4() }),
        std::net::IpAddr::V6(source) => with6(V6 { source, ..v6() }),
    }
}

/// UDP to an address.
fn to(destination: &str) -> Vec<u8> {
    match destination.parse().unwrap() {
        std::net::IpAddr::V4(destination) => with4(V4 { destination, ..v4() }),
        std::net::IpAddr::V6(destination) => with6(V6 { destination, ..v6() }),
    }
}

fn addresses() -> Vec<Case> {
    let table = [
        "table t create type addr",
        "table t add 10.0.0.0/24 5",
        "table t add 10.0.0.9/32 6",
        "table t add 2001:db8:1::/64 7",
    ];
    vec![
        case("ip4 from any to any", udp4((1, 2)), with6(v6())),
        case("ip6 from any to any", with6(v6()), udp4((1, 2))),
        case("tcp from any to any", tcp4(segment(2)), udp4((1, 2))),
        case("{ tcp or icmp } from any to any", echo4(), udp4((1, 2))).also("or-block"),
        case("not tcp from any to any", udp4((1, 2)), tcp4(segment(2))).also("negated"),
        never("ip from not any to any"),
        case("ip from any to me", to("10.0.0.1"), udp4((1, 2))),
        case("ip from any to me", to("2001:db8:2::1"), with6(v6())),
        case("ip6 from any to me6", to("2001:db8:1::1"), with6(v6())),
        case("ip from table(t) to any", from("10.0.0.7"), from("192.0.2.7")).after(&table),
        case("ip from table(t) to any", from("2001:db8:1::7"), from("2001:db8:9::7")).after(&table),
        case("ip from table(t,5) to any", from("10.0.0.7"), from("10.0.0.9")).after(&table),
        case("ip from 10.0.0.0/25,192.0.2.1 to any", from("10.0.0.2"), from("10.0.0.200")),
        case("ip from 10.0.0.0/25,192.0.2.1 to any", from("192.0.2.1"), from("192.0.2.2")),
        case("ip from 10.0.0.2:255.0.255.255 to any", from("10.7.0.2"), from("10.7.1.2")).also("masked"),
        case("ip from 10.0.0.0/24{2,7-9} to any", from("10.0.0.8"), from("10.0.0.10")),
        case("ip6 from 2001:db8:1::/64 to any", from("2001:db8:1:0:5::"), from("2001:db8:2::7")),
        case("ip from any to any dst-ip 203.0.113.0/24", udp4((1, 2)), to("192.0.2.9")),
        case("ip from any to any src-ip6 2001:db8:1::2", with6(v6()), from("2001:db8:1::3")),
        case("udp from any 1000-1010 to any 53,80", udp4((1005, 53)), udp4((1005, 54))),
        case("ip from any to any src-port 7", udp4((7, 53)), with4(V4 { fragment: 100, ..v4() })),
        case("ip from any to any lookup src-ip t", from("10.0.0.7"), from("192.0.2.7")).after(&table),
        case("ip from any to any lookup src-ip4:255.255.255.15 t", from("10.0.0.249"), with6(v6()))
            .after(&["table t create type addr", "table t add 10.0.0.9"]),
        case("ip from any to any lookup src-ip6:ffff:ffff:ffff:: t", from("2001:db8:1:ff::7"), from("10.0.0.7"))
            .after(&["table t create type addr", "table t add 2001:db8:1::/48"]),
        case("ip from any to any lookup dst-port:255 t", udp4((1, 0x135)), udp4((1, 0x136)))
            .after(&["table t create type number", "table t add 53"]),
        case("ip from any to any lookup dscp t", with4(V4 { tos: 46 << 2, ..v4() }), udp4((1, 2)))
            .after(&["table t create type number", "table t add 46"]),
        Case { no: None, ..case("ip from any to any lookup rulenum t", udp4((1, 2)), vec![]) }
            .after(&["table t create type number", "table t add 100"]),
        Case { yes: None, ..case("ip from any to any lookup rulenum t", vec![], udp4((1, 2))) }
            .after(&["table t create type number", "table t add 101"]),
        case("ip from any to any lookup mark t", udp4((1, 53)), udp4((1, 54))).after(&[
            "table t create type number",
            "table t add 9",
            "add 50 setmark 9 udp from any to any dst-port 53",
        ]),
        never("ip from any to any lookup uid t").after(&["table t create type number", "table t add 0"]),
        never("ip from any to any lookup src-mac t")
            .after(&["table t create type mac", "table t add 02:00:00:00:00:02"]),
        case("ip from any to any flow table(f)", udp4((1, 53)), udp4((1, 54)))
            .after(&["table f create type flow:proto,dst-port", "table f add udp,53 8"]),
        case("ip from any to any flow table(f,8)", udp4((1, 53)), udp4((1, 54))).after(&[
            "table f create type flow:proto,dst-port",
            "table f add udp,53 8",
            "table f add udp,54 9",
        ]),
    ]
}

fn places() -> Vec<Case> {
    let to_me = || wire(to("10.0.0.1"));
    let own = || host(with4(V4 { source: [198, 51, 100, 2].into(), ..v4() }));
    vec![
        Case { no: Some(own()), ..case("ip from any to any in", udp4((1, 2)), vec![]) },
        Case { no: Some(to_me()), ..case("ip from any to any out", udp4((1, 2)), vec![]) },
        case("ip from any to any out xmit em1", udp4((1, 2)), to("192.168.5.9")),
        Case { no: Some(own()), ..case("ip from any to any recv em0", udp4((1, 2)), vec![]) },
        // What comes from the host came in by nothing.
        Case { yes: Some(own()), ..case("ip from any to any out not recv any", vec![], udp4((1, 2))) },
        case("ip from any to any via igb0", to("192.168.5.9"), udp4((1, 2))),
        case("ip from any to any via igb*", to("192.168.5.9"), udp4((1, 2))),
        case("ip from any to any via 192.168.5.1", to("192.168.5.9"), udp4((1, 2))),
        case("ip from any to any via 2001:db8:3::1", to("2001:db8:3::9"), with6(v6())),
        case("ip from any to any via table(i)", to("192.168.5.9"), udp4((1, 2)))
            .after(&["table i create type iface", "table i add igb0"]),
        case("ip from any to any not xmit em1 out", to("192.168.5.9"), udp4((1, 2))),
        case("ip from any to any not verrevpath in", from("198.51.100.9"), udp4((1, 2))).routes(),
        case("ip from any to any verrevpath in", from("2001:db8:1::9"), from("2001:db8:2::9")).routes(),
        case("ip from any to any verrevpath in", udp4((1, 2)), from("198.51.100.9")).routes(),
        // The default route does not count, an attached network does.
        case("ip from any to any versrcreach in", udp4((1, 2)), from("192.0.2.77")).routes(),
        case("ip from any to any not antispoof in", from("192.168.5.77"), udp4((1, 2))).routes(),
        case("ip from any to any antispoof in", from("192.0.2.77"), from("192.168.5.77")).routes(),
        Case { no: None, ..case("ip from any to any fib 0", udp4((1, 2)), vec![]) },
        case("ip from any to any tagged 5-7,9", udp4((1, 53)), udp4((1, 54)))
            .after(&["add 50 count tag 7 udp from any to any dst-port 53"]),
        case("ip from any to any out tagged 7", udp4((1, 53)), udp4((1, 54)))
            .after(&["add 50 count tag 7 udp from any to any dst-port 53 in"]),
        case("ip from table(t) to any tagged tablearg", from("10.0.0.7"), from("10.0.0.9")).after(&[
            "table t create type addr",
            "table t add 10.0.0.0/24 5",
            "table t add 10.0.0.9 6",
            "add 50 count tag 5 ip from any to any",
        ]),
        case("ip from any to any mark 0x4:0xf", udp4((1, 53)), udp4((1, 54)))
            .after(&["add 50 setmark 0x34 udp from any to any dst-port 53"]),
        never("ip from any to any uid 0"),
        never("ip from any to any jail 1"),
        never("ip from any to any ipsec"),
        never("ip from any to any diverted"),
        never("ip from any to any sockarg"),
        // What these ask of is seen in the passes of the link layer alone.
        never("ip from any to any layer2"),
        never("ip from any to any mac any 02:00:00:00:00:02"),
        never("ip from any to any src-mac table(m)")
            .after(&["table m create type mac", "table m add 02:00:00:00:00:02"]),
        never("ip from any to any mac-type 0x0800"),
    ]
}

/// With passes of the link layer.
fn link_layer() -> Vec<Case> {
    let ether = "sysctl net.link.ether.ipfw=1";
    let from_mac = |last| {
        let mut frame = udp4((1, 2));
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 7, last]);
        frame
    };
    let tables = [ether, "table m create type mac", "table m add 02:00:00:00:07:02"];
    vec![
        Case { no: None, ..case("ip from any to any layer2", udp4((1, 2)), vec![]) }.after(&[ether]),
        case("ip from any to any mac any 02:00:00:00:07:02", from_mac(2), from_mac(3)).after(&[ether]),
        case("ip from any to any src-mac table(m)", from_mac(2), from_mac(3)).after(&tables),
        case("ip from any to any lookup src-mac m", from_mac(2), from_mac(3)).after(&tables),
        case("ip from any to any mac-type 0x86dd", with6(v6()), udp4((1, 2))).after(&[ether]),
    ]
}

fn headers() -> Vec<Case> {
    let options = |options: &[u8]| with4(V4 { options: options.to_vec(), ..v4() });
    let class = |class| with6(V6 { class, ..v6() });
    let tos = |tos| with4(V4 { tos, ..v4() });
    let extension = |extensions: Vec<(u8, Vec<u8>)>| with6(V6 { extensions, ..v6() });
    let tables = ["table t create type addr valtype dscp", "table t add 10.0.0.2 46", "table t add 10.0.0.9 12"];
    vec![
        case("ip from any to any frag", with4(V4 { fragment: 100, ..v4() }), with4(V4 { fragment: 0x2000, ..v4() })),
        case(
            "ip from any to any frag mf,!offset",
            with4(V4 { fragment: 0x2000, ..v4() }),
            with4(V4 { fragment: 0x2010, ..v4() }),
        ),
        case("ip from any to any frag df", with4(V4 { fragment: 0x4000, ..v4() }), udp4((1, 2))),
        case("ip from any to any frag", extension(vec![(44, vec![0, 0, 0, 8, 0, 0, 0, 9])]), with6(v6())),
        case("ip from any to any ipid 70-77,90", udp4((1, 2)), with4(V4 { id: 78, ..v4() })),
        case("ip from any to any iplen 36", udp4((1, 2)), frame(&v4().packet(17, &udp((1, 2), 9)))),
        case("ip from any to any iplen 56", with6(v6()), udp4((1, 2))),
        case("ip from any to any in ipttl 60-64", udp4((1, 2)), with4(V4 { ttl: 65, ..v4() })),
        // The out pass sees it one less.
        case("ip from any to any out ipttl 64", with4(V4 { ttl: 65, ..v4() }), udp4((1, 2))),
        case("ip from any to any ipversion 6", with6(v6()), udp4((1, 2))),
        case("ip from any to any ipoptions rr,!lsrr", options(&[7, 7, 4, 0, 0, 0, 0]), udp4((1, 2))),
        case("ip from any to any ipprecedence 5", tos(0xa4), tos(0x84)),
        case("ip from any to any iptos lowdelay,!throughput", tos(0x10), tos(0x18)),
        case("ip from any to any dscp ef,af11", tos(46 << 2 | 1), tos(47 << 2)),
        case("ip from any to any dscp ef", class(46 << 2), class(12 << 2)),
        case("ip from table(t) to any dscp tablearg", tos(46 << 2), tos(12 << 2)).after(&tables),
        case("ip from any to any icmptypes 0,8", echo4(), frame(&v4().packet(1, &icmp(3, 1)))),
        case("ip from any to any icmp6types 128,200", echo6(), frame(&v6().packet(58, &icmp(129, 0)))),
        case("ip6 from any to any ext6hdr dstopt", extension(vec![(60, vec![0, 0, 1, 4, 0, 0, 0, 0])]), with6(v6())),
        case("ip6 from any to any flow-id 5,7", with6(V6 { label: 7, ..v6() }), with6(V6 { label: 6, ..v6() })),
    ]
}

fn segments() -> Vec<Case> {
    let with = |options: &[u8]| {
        let mut segment = segment(2);
        segment.options = options.to_vec();
        tcp4(segment)
    };
    let data = |data| {
        let mut segment = segment(16);
        segment.data = data;
        tcp4(segment)
    };
    let numbers = |sequence, acknowledgement, window| {
        let mut segment = segment(16);
        (segment.sequence, segment.acknowledgement, segment.window) = (sequence, acknowledgement, window);
        tcp4(segment)
    };
    vec![
        case("tcp from any to any setup", tcp4(segment(2)), tcp4(segment(18))),
        case("tcp from any to any tcpflags fin,!ack", tcp4(segment(1)), tcp4(segment(17))),
        case("tcp from any to any established", tcp6(segment(16)), tcp6(segment(2))),
        case("tcp from any to any established", tcp4(segment(4)), tcp4(segment(2))),
        case("tcp from any to any tcpoptions mss,!sack", with(&[2, 4, 5, 0xb4]), with(&[2, 4, 5, 0xb4, 4, 2])),
        case("tcp from any to any tcpseq 70000", numbers(70_000, 1, 1), numbers(70_001, 1, 1)),
        case("tcp from any to any tcpack 70000", numbers(1, 70_000, 1), numbers(1, 70_001, 1)),
        case("tcp from any to any tcpwin 100-200,300", numbers(1, 1, 300), numbers(1, 1, 299)),
        case("tcp from any to any tcpdatalen 10-20", data(12), data(21)),
        case("tcp from any to any tcpmss 1460", with(&[2, 4, 5, 0xb4]), with(&[2, 4, 5, 0xb5])),
    ]
}

/// An attached host is attached whether its MAC address is known or not.
#[test]
fn antispoof_knows_neighbours() {
    let mut gateway = routed(&["add 100 deny ip from any to any not antispoof in"], true, 1);
    gateway.answer("192.168.5.77".parse().unwrap());
    assert_eq!(gateway.send(EM0, &from("192.168.5.77")).left().count(), 0, "{}", gateway.list());
}

#[test]
fn each_test_with_a_packet_that_matches_and_one_that_does_not() {
    let mut covered = BTreeSet::new();
    let mut failures = Vec::new();
    for case in addresses().into_iter().chain(places()).chain(link_layer()).chain(headers()).chain(segments()) {
        let commands: Vec<String> =
            case.before.iter().map(|text| (*text).to_owned()).chain([format!("add 100 deny {}", case.rule)]).collect();
        let set = accepting(&commands);
        let rule = set.rules.iter().find(|rule| rule.number == 100).unwrap();
        let tests = rule.blocks.iter().flat_map(|block| &block.terms).map(|term| &term.test);
        covered.extend(tests.flat_map(names_of));
        covered.extend(case.also);
        for workers in [1, 2] {
            for (shot, expected) in [(&case.yes, 1), (&case.no, 0)] {
                let Some(shot) = shot else { continue };
                let mut gateway = routed(&commands, case.routes, workers);
                let seen = gateway.shoot(shot);
                let passed = seen.left().count() + seen.came_up();
                if gateway.packets(100) != expected || passed as u64 != 1 - expected {
                    failures.push(format!(
                        "{}: {} on {workers}: passed {passed}\n{}{:?}",
                        case.rule,
                        if expected == 1 { "should match" } else { "should not match" },
                        gateway.list(),
                        gateway.world.totals().dropped,
                    ));
                }
                gateway.close();
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_complete("tests", &ALL, &covered);
}
