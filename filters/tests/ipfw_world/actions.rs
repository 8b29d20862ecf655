//! Each action of the language with a packet that it is carried out on and one that it is not, or its refusal.

use std::collections::BTreeSet;

use ferrule_config::ipfw::ast::{Action, Argument, NatInstance, ReturnTo};
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::names::builtin;
use ferrule_filters::ipfw::testing::frame::{V4, checksum, frame, icmp, sctp};
use ferrule_filters::ipfw::testing::gateway::{Gateway, rule_set};

use super::common::*;

/// Names of an action. A new variant does not compile until it has a name here, and fails until a case has it.
fn name_of(action: &Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Deny => "deny",
        Action::Unreach(_, None) => "unreach",
        Action::Unreach(_, Some(_)) => "unreach needfrag MTU",
        Action::Unreach6(_) => "unreach6",
        Action::Reset => "reset",
        Action::Reset6 => "reset6",
        Action::Abort => "abort",
        Action::Abort6 => "abort6",
        Action::Count => "count",
        Action::SkipTo(Argument::Number(_)) => "skipto",
        Action::SkipTo(Argument::Table) => "skipto tablearg",
        Action::Call(Argument::Number(_)) => "call",
        Action::Call(Argument::Table) => "call tablearg",
        Action::Return(ReturnTo::NextNumber) => "return",
        Action::Return(ReturnTo::NextRule) => "return next-rule",
        Action::CheckState(_) => "check-state",
        Action::Forward(_) => "fwd",
        Action::Nat(NatInstance::One(_)) => "nat",
        Action::Nat(NatInstance::Global) => "nat global",
        Action::Pipe(_) => "pipe",
        Action::Queue(_) => "queue",
        Action::SetFib(_) => "setfib",
        Action::SetDscp(_) => "setdscp",
        Action::SetMark(..) => "setmark",
        Action::TcpSetMss(_) => "tcp-setmss",
        Action::Reassemble => "reass",
        Action::Netgraph(_) => "netgraph",
        Action::NgTee(_) => "ngtee",
        Action::Divert(_) => "divert",
        Action::Tee(_) => "tee",
        Action::External(..) => "external",
    }
}

/// Every name that [`name_of`] gives.
const ALL: [&str; 32] = [
    "allow",
    "deny",
    "unreach",
    "unreach needfrag MTU",
    "unreach6",
    "reset",
    "reset6",
    "abort",
    "abort6",
    "count",
    "skipto",
    "skipto tablearg",
    "call",
    "call tablearg",
    "return",
    "return next-rule",
    "check-state",
    "fwd",
    "nat",
    "nat global",
    "pipe",
    "queue",
    "setfib",
    "setdscp",
    "setmark",
    "tcp-setmss",
    "reass",
    "netgraph",
    "ngtee",
    "divert",
    "tee",
    "external",
];

/// Actions whose packets are in another test of this folder.
const ELSEWHERE: [&str; 6] = ["fwd", "nat", "nat global", "pipe", "queue", "reass"];

/// Commands, and what they do to packets.
struct Case {
    commands: Vec<String>,
    check: fn(&mut Gateway),
}

fn case(commands: &[&str], check: fn(&mut Gateway)) -> Case {
    Case { commands: commands.iter().map(|text| (*text).to_owned()).collect(), check }
}

fn dns() -> Vec<u8> {
    udp4((1000, 53))
}

fn other() -> Vec<u8> {
    udp4((1000, 54))
}

fn passes(gateway: &mut Gateway, frame: &[u8]) -> bool {
    gateway.send(EM0, frame).by(EM1) == 1
}

/// Sends what is dropped and gives the answer that its sender gets.
fn answered(gateway: &mut Gateway, frame: &[u8]) -> Vec<u8> {
    let seen = gateway.send(EM0, frame);
    assert_eq!((seen.by(EM0), seen.by(EM1), seen.came_up()), (1, 0, 0), "{}", gateway.list());
    let answer = seen.out[EM0][0].clone();
    if answer[14] >> 4 == 4 {
        assert_eq!(checksum(&[&answer[14..34]]), 0, "the answer's header");
        assert_eq!(&answer[26..34], &[frame[30..34].to_vec(), frame[26..30].to_vec()].concat()[..][..8].to_vec()[..]);
    }
    answer
}

/// An ICMP error comes from the box, not from the destination.
fn error4(gateway: &mut Gateway, frame: &[u8]) -> Vec<u8> {
    let seen = gateway.send(EM0, frame);
    assert_eq!((seen.by(EM0), seen.by(EM1), seen.came_up()), (1, 0, 0), "{}", gateway.list());
    let answer = seen.out[EM0][0].clone();
    assert_eq!((&answer[26..30], &answer[30..34]), (&[10, 0, 0, 1][..], &frame[26..30]));
    assert_eq!((checksum(&[&answer[14..34]]), answer[23]), (0, 1));
    let end = 14 + usize::from(u16::from_be_bytes([answer[16], answer[17]]));
    assert_eq!(checksum(&[&answer[34..end]]), 0, "the error's checksum");
    assert_eq!(&answer[42..46], &frame[14..18], "the header of what was refused");
    answer
}

fn plain() -> Vec<Case> {
    vec![
        case(&["add 100 allow udp from any to any 53", "add 200 deny ip from any to any"], |g| {
            assert!(passes(g, &dns()) && !passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(200)), (2, 1), "once in each pass");
        }),
        case(&["add 100 deny udp from any to any 53"], |g| {
            assert!(!passes(g, &dns()) && passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(65535)), (1, 2));
        }),
        case(&["add 100 count udp from any to any 53", "add 200 allow ip from any to any"], |g| {
            assert!(passes(g, &dns()) && passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(200)), (2, 4));
        }),
        case(
            &[
                "add 100 skipto 300 udp from any to any 53",
                "add 200 deny ip from any to any",
                "add 310 count ip from any to any",
            ],
            |g| {
                assert!(passes(g, &dns()) && !passes(g, &other()));
                assert_eq!((g.packets(100), g.packets(200), g.packets(310)), (2, 1, 2));
            },
        ),
        // To itself or back means on to the next rule.
        case(&["add 100 skipto 50 udp from any to any 53", "add 200 count ip from any to any"], |g| {
            assert!(passes(g, &dns()) && passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(200)), (2, 4));
        }),
        case(
            &[
                "table t create type addr valtype skipto",
                "table t add 203.0.113.5 300",
                "add 100 skipto tablearg ip from any to table(t)",
                "add 200 deny ip from any to any",
                "add 300 count ip from any to any",
            ],
            |g| {
                let elsewhere = with4(V4 { destination: [203, 0, 113, 6].into(), ..v4() });
                assert!(passes(g, &dns()) && !passes(g, &elsewhere));
                assert_eq!((g.packets(100), g.packets(200), g.packets(300)), (2, 1, 2));
            },
        ),
        case(
            &[
                "add 100 call 300 udp from any to any 53",
                "add 100 count ip from any to any",
                "add 150 count ip from any to any",
                "add 200 allow ip from any to any",
                "add 300 count ip from any to any",
                "add 310 return ip from any to any",
                "add 320 deny ip from any to any",
            ],
            |g| {
                assert!(passes(g, &dns()));
                // Back to the first rule above 100: the second rule 100 is jumped over.
                assert_eq!((g.packets(100), g.packets(300), g.packets(310), g.packets(150)), (2, 2, 2, 2));
                assert!(passes(g, &other()));
                assert_eq!((g.packets(100), g.packets(300), g.packets(310), g.packets(150)), (4, 2, 2, 4));
            },
        ),
        case(
            &[
                "table t create type addr valtype skipto",
                "table t add 203.0.113.5 300",
                "add 100 call tablearg ip from any to table(t)",
                "add 100 deny udp from any to any 54",
                "add 200 allow ip from any to any",
                "add 300 return next-rule ip from any to any",
                "add 310 deny ip from any to any",
            ],
            |g| {
                assert!(passes(g, &dns()));
                assert_eq!((g.packets(100), g.packets(200), g.packets(300)), (2, 2, 2));
                assert!(!passes(g, &other()), "the second rule 100 is gone on at");
                assert_eq!((g.packets(100), g.packets(300), g.packets(310)), (4, 3, 0));
            },
        ),
        // A return without a call is no match.
        case(&["add 100 return ip from any to any", "add 200 deny udp from any to any 53"], |g| {
            assert!(!passes(g, &dns()) && passes(g, &other()));
            assert_eq!(g.packets(200), 1);
        }),
        case(
            &[
                "add 100 check-state",
                "add 200 allow udp from 10.0.0.0/24 to any 53 keep-state",
                "add 300 deny ip from any to any",
            ],
            |g| {
                let back = frame(
                    &V4::new(SERVER, CLIENT).packet(17, &ferrule_filters::ipfw::testing::frame::udp((53, 1000), 8)),
                );
                assert_eq!(g.send(EM1, &back).by(EM0), 0, "nobody asked");
                assert!(passes(g, &dns()) && !passes(g, &other()));
                assert_eq!(g.send(EM1, &back).by(EM0), 1);
                assert_eq!(
                    (g.packets(100), g.packets(200), g.packets(300)),
                    (0, 4, 2),
                    "what a state lets pass its rule counts"
                );
                g.advance(11_000_000_000);
                assert_eq!(g.send(EM1, &back).by(EM0), 0, "dyn_udp_lifetime is over");
            },
        ),
        case(&["add 100 setfib 0 udp from any to any 53", "add 200 count ip from any to any"], |g| {
            assert!(passes(g, &dns()) && passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(200)), (2, 4));
        }),
        case(&["add 100 setdscp ef udp from any to any 53 in"], |g| {
            let tos = |seen: ferrule_filters::ipfw::testing::Seen| seen.out[EM1][0][15];
            let marked = with4(V4 { tos: 3, ..v4() });
            let seen = g.send(EM0, &marked);
            assert_eq!(checksum(&[&seen.out[EM1][0][14..34]]), 0);
            assert_eq!(tos(seen), 46 << 2 | 3, "the ECN bits stay");
            assert_eq!(tos(g.send(EM0, &other())), 0);
            assert_eq!(g.packets(100), 1);
        }),
        case(&["add 100 setmark 0x5 udp from any to any 53", "add 200 deny ip from any to any mark 0x5"], |g| {
            assert!(!passes(g, &dns()) && passes(g, &other()));
            assert_eq!((g.packets(100), g.packets(200)), (1, 1));
        }),
        case(&["add 100 tcp-setmss 1200 tcp from any to any"], |g| {
            let with = |flags| {
                let mut segment = segment(flags);
                segment.options = vec![2, 4, 5, 0xb4];
                tcp4(segment)
            };
            let mss = |seen: &ferrule_filters::ipfw::testing::Seen| {
                let frame = &seen.out[EM1][0];
                let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
                let length = ((end - 34) as u16).to_be_bytes();
                let pseudo = [&frame[26..34], &[0, 6], &length].concat();
                assert_eq!(checksum(&[&pseudo, &frame[34..end]]), 0);
                u16::from_be_bytes([frame[56], frame[57]])
            };
            assert_eq!(mss(&g.send(EM0, &with(2))), 1200);
            assert_eq!(mss(&g.send(EM0, &with(16))), 1460, "segments that open nothing stay");
        }),
        case(&["add 100 reset tcp from any to any 80", "add 200 reset udp from any to any 53"], |g| {
            let answer = answered(g, &tcp4(segment(2)));
            assert_eq!((answer[23], answer[47] & 4), (6, 4));
            assert_eq!(&answer[34..38], &[0, 80, 3, 232], "ports the other way round");
            assert_eq!(g.send(EM0, &dns()).left().count(), 0, "what is not TCP gets no answer");
            assert_eq!((g.packets(100), g.packets(200), g.packets(65535)), (1, 1, 0), "a reset is not judged again");
            assert!(passes(g, &other()));
        }),
        case(&["add 100 reset6 tcp from any to any 80"], |g| {
            let seen = g.send(EM0, &tcp6(segment(2)));
            assert_eq!((seen.by(EM0), seen.by(EM1)), (1, 0));
            let answer = &seen.out[EM0][0];
            assert_eq!((answer[20], answer[67] & 4), (6, 4));
            assert!(passes(g, &with6(v6())));
        }),
        case(&["add 100 abort sctp from any to any"], |g| {
            let answer = answered(g, &frame(&v4().packet(132, &sctp((1000, 7), 0, 1))));
            assert_eq!((answer[23], answer[46]), (132, 6), "an ABORT");
            assert_eq!(&answer[38..42], &[0, 0, 0, 0x77], "the tag of the INIT");
            assert!(passes(g, &dns()));
        }),
        case(&["add 100 abort6 sctp from any to any"], |g| {
            let seen = g.send(EM0, &frame(&v6().packet(132, &sctp((1000, 7), 0, 1))));
            assert_eq!((seen.by(EM0), seen.by(EM1)), (1, 0));
            assert_eq!((seen.out[EM0][0][20], seen.out[EM0][0][66]), (132, 6));
            assert!(passes(g, &with6(v6())));
        }),
        case(&["add 100 unreach needfrag 1420 udp from any to any 53"], |g| {
            let answer = error4(g, &dns());
            assert_eq!((&answer[34..36], &answer[40..42]), (&[3, 4][..], &1420u16.to_be_bytes()[..]));
            assert!(passes(g, &other()));
        }),
        case(&["add 100 reject udp from any to any 53"], |g| {
            assert_eq!(error4(g, &dns())[34..36], [3, 1]);
            assert!(passes(g, &other()));
        }),
    ]
}

#[test]
fn each_action_with_a_packet_that_it_takes_and_one_that_it_leaves() {
    let mut covered = BTreeSet::from(ELSEWHERE);
    for case in plain() {
        covered.extend(accepting(&case.commands).rules.iter().map(|rule| name_of(&rule.action)));
        for workers in [1, 2] {
            let mut gateway = open(&case.commands, workers);
            (case.check)(&mut gateway);
            gateway.close();
        }
    }
    covered.extend(["unreach", "unreach6"]);
    covered.extend(REFUSED.iter().map(|(name, _, _)| *name));
    assert_complete("actions", &ALL, &covered);
}

/// Actions that nothing can carry out here, and what a script is told.
const REFUSED: [(&str, &str, &str); 5] = [
    ("netgraph", "add 100 netgraph 42 ip from any to any", "netgraph is not supported"),
    ("ngtee", "add 100 ngtee 42 ip from any to any", "ngtee is not supported"),
    ("divert", "add 100 divert natd ip from any to any", "divert is not supported"),
    ("tee", "add 100 tee 42 ip from any to any", "tee is not supported"),
    ("external", "add 100 nat64lsn NAT ip6 from any to any", "nat64lsn is not supported"),
];

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    for (name, command, reason) in REFUSED {
        let error = rule_set(&[command]).unwrap_err();
        assert!(error.contains(reason), "{command}: {error}");
        let language = Grammar { names: builtin(), refuse_unsupported: false };
        let line = ferrule_config::ipfw::command::CommandLine::from_line(command);
        let rule =
            ferrule_config::ipfw::language::RuleLanguage::parse(&language, &line.words[1..], line.end()).unwrap();
        assert_eq!(name_of(&rule.rule.action), name);
    }
}

#[test]
fn each_code_of_unreach() {
    let codes = [
        "net",
        "host",
        "protocol",
        "port",
        "needfrag",
        "srcfail",
        "net-unknown",
        "host-unknown",
        "isolated",
        "net-prohib",
        "host-prohib",
        "tosnet",
        "toshost",
        "filter-prohib",
        "host-precedence",
        "precedence-cutoff",
    ];
    for (code, name) in (0u8..).zip(codes) {
        let mut gateway = open(&[format!("add 100 unreach {name} udp from any to any 53")], 1);
        assert_eq!(error4(&mut gateway, &dns())[34..36], [3, code], "{name}");
        assert!(passes(&mut gateway, &other()));
        let error = frame(&v4().packet(1, &icmp(3, 1)));
        assert!(passes(&mut gateway, &error));
        gateway.close();
    }
    for (code, name) in [(0, "no-route"), (1, "admin-prohib"), (3, "address"), (4, "port")] {
        let mut gateway = open(&[format!("add 100 unreach6 {name} udp from any to any 53")], 1);
        let seen = gateway.send(EM0, &with6(v6()));
        assert_eq!((seen.by(EM0), seen.by(EM1)), (1, 0), "{name}");
        let answer = &seen.out[EM0][0];
        assert_eq!((answer[20], &answer[54..56]), (58, &[1, code][..]), "{name}");
        assert!(passes(&mut gateway, &tcp6(segment(2))));
        gateway.close();
    }
}

#[test]
fn no_error_answers_an_error() {
    let mut gateway = open(&["add 100 unreach host icmp from any to any"], 1);
    let seen = gateway.send(EM0, &frame(&v4().packet(1, &[icmp(3, 1), vec![0; 28]].concat())));
    assert_eq!(seen.left().count(), 0);
    assert_eq!(gateway.packets(100), 1);
    gateway.close();
}

#[test]
fn modifiers_of_rules() {
    // `prob` draws anew for each packet and pass.
    let mut gateway = open(&["add 100 prob 0.25 deny ip from any to any in"], 1);
    let frames: Vec<_> = (0..400).map(|port| udp4((port, 53))).collect();
    let left: usize = frames.chunks(100).map(|some| gateway.send_all(EM0, some).by(EM1)).sum();
    assert!((240..=360).contains(&left), "{left} of 400");
    assert_eq!(gateway.packets(100), 400 - left as u64);
    gateway.close();
    // `tag` goes with the packet, `untag` takes it off.
    let mut gateway = open(
        &[
            "add 100 count tag 7 ip from any to any in",
            "add 200 count untag 7 udp from any to any 53 in",
            "add 300 deny ip from any to any out tagged 7",
        ],
        1,
    );
    assert!(passes(&mut gateway, &dns()) && !passes(&mut gateway, &other()));
    gateway.close();
    // Rules of a disabled set are not there.
    let commands =
        ["set disable 5", "add 100 set 5 deny udp from any to any 53", "add 200 deny udp from any to any 54"];
    let mut gateway = open(&commands, 1);
    assert!(passes(&mut gateway, &dns()) && !passes(&mut gateway, &other()));
    gateway.close();
    // A rule of a comment only counts.
    let mut gateway = open(&["add 100 // test comment"], 1);
    assert!(passes(&mut gateway, &dns()));
    assert_eq!(gateway.packets(100), 2);
    assert!(gateway.list().starts_with("00100 2 72 count // test comment\n"), "{}", gateway.list());
    gateway.close();
}

#[test]
fn states_and_limits() {
    let to_port = |port| tcp4(ferrule_filters::ipfw::testing::frame::Tcp::new((port, 80), 2));
    let mut gateway = open(
        &["add 100 allow tcp from any to any 80 setup limit src-addr 2 :WEB", "add 200 deny tcp from any to any setup"],
        2,
    );
    assert!(passes(&mut gateway, &to_port(1)) && passes(&mut gateway, &to_port(2)));
    assert!(!passes(&mut gateway, &to_port(3)), "a third one from one address");
    assert!(passes(&mut gateway, &to_port(1)), "what has a state goes on");
    let another = frame(&V4 { source: [10, 0, 0, 3].into(), ..v4() }.packet(6, &to_port(1)[34..54]));
    assert!(passes(&mut gateway, &another));
    assert_eq!((gateway.packets(100), gateway.packets(200)), (9, 0), "{}", gateway.list());
    gateway.close();
    // `record-state` makes a state and looks for none; `defer-action` makes one and goes on.
    let mut gateway = open(
        &[
            "add 100 check-state :A",
            "add 200 allow udp from 10.0.0.0/24 to any 53 record-state :A",
            "add 300 deny udp from any to any 54 keep-state :B defer-action",
            "add 400 count ip from any to any",
        ],
        1,
    );
    assert!(passes(&mut gateway, &dns()));
    assert_eq!(gateway.packets(200), 2);
    // The in pass makes the state and goes on; the out pass finds it, and it denies.
    assert!(!passes(&mut gateway, &other()));
    assert_eq!(gateway.packets(400), 1, "{}", gateway.list());
    gateway.close();
}
