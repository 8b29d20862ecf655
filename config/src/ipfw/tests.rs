//! Rules in, listings out; what is refused and why.

use super::ast::*;
use super::check::{owner_tests, unsupported};
use super::names::builtin;
use super::parse::{parse_add_arguments, parse_add_line};
use super::print::{PrintOptions, counter_columns, print_body, print_rule, print_rule_with};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};

/// Parses, and gives back what was said besides.
fn parse(text: &str) -> (Option<Rule>, Vec<Diagnostic>) {
    let mut diagnostics = Diagnostics::new();
    let rule = parse_add_line(text, 0, builtin(), &mut diagnostics);
    let said = diagnostics.into_vec();
    assert_eq!(rule.is_none(), said.iter().any(|said| said.severity == Severity::Error), "{text}: {said:?}");
    (rule, said)
}

/// A rule that must be understood.
#[track_caller]
fn rule(text: &str) -> Rule {
    let (rule, said) = parse(text);
    rule.unwrap_or_else(|| panic!("{text}: {said:?}"))
}

#[track_caller]
fn list(text: &str) -> String {
    print_body(&rule(text), &PrintOptions::default())
}

/// What is listed otherwise than it was written.
#[test]
fn rules_are_listed_as_ipfw_lists_them() {
    for (text, listed) in [
        ("pass all from any to any", "allow ip from any to any"),
        ("add accept ip from any to any", "allow ip from any to any"),
        ("drop tcp from 10.0.0.1/8 to me", "deny tcp from 10.0.0.0/8 to me"),
        ("unreach host ip from any to any", "reject ip from any to any"),
        ("unreach 13 ip from any to any", "unreach filter-prohib ip from any to any"),
        ("unreach 200 ip from any to any", "unreach 200 ip from any to any"),
        ("unreach6 4 ip from any to any", "unreach6 port ip from any to any"),
        ("check-state", "check-state :default"),
        ("check-state // text", "check-state :default // text"),
        ("return ip from any to any", "return next-rulenum ip from any to any"),
        ("divert natd ip from any to any", "divert 8668 ip from any to any"),
        ("setdscp 46 ip from any to any", "setdscp ef ip from any to any"),
        ("setdscp 42 ip from any to any", "setdscp 42 ip from any to any"),
        ("setmark 255 ip from any to any", "setmark 0xff ip from any to any"),
        ("forward 10.0.0.1:80 tcp from any to any", "fwd 10.0.0.1,80 tcp from any to any"),
        ("fwd [2001:db8::1]:http tcp from any to any", "fwd 2001:db8::1,80 tcp from any to any"),
        ("fwd 0.0.0.0,21 tcp from any to any", "fwd tablearg,21 tcp from any to any"),
        ("prob 0.7 allow ip from any to any", "prob 0.700000 allow ip from any to any"),
        ("prob 1 allow ip from any to any", "allow ip from any to any"),
        ("allow tag 5 log logamount 9 ip from any to any", "allow log logamount 9 tag 5 ip from any to any"),
        ("allow log logamount 0 ip from any to any", "allow log ip from any to any"),
        // Ports after an address, by name or number.
        ("allow tcp from any ssh,1024-65535 to any domain", "allow tcp from any 22,1024-65535 to any 53"),
        (r"allow tcp from any to any ftp\-data-ftp", "allow tcp from any to any 20-21"),
        ("allow tcp from any to any not 0x16", "allow tcp from any to any not 22"),
        ("allow tcp from any to any dst-port 22", "allow tcp from any to any 22"),
        ("allow tcp from any to any 22 dst-port 23", "allow tcp from any to any dst-port 22 dst-port 23"),
        ("allow tcp from any to any { dst-port 22 or in }", "allow tcp from any to any { dst-port 22 or in }"),
        ("allow ip from any any to any any", "allow ip from any to any"),
        // The first protocol and addresses come to the front.
        ("allow ip from any to any in src-ip 1.2.3.4 proto udp", "allow udp from 1.2.3.4 to any in"),
        ("allow tcp from any to any ip4", "allow ip4 from any to any proto tcp"),
        ("allow ip4 from any to any in proto tcp", "allow ip4 from any to any in proto tcp"),
        ("allow ip from 1.1.1.1 to any src-ip 2.2.2.2", "allow ip from 1.1.1.1 to any src-ip 2.2.2.2"),
        ("allow ipv6 from me to any", "allow ip6 from me6 to any"),
        ("allow ip6 from any to any src-ip me", "allow ip6 from any to any src-ip me"),
        // Protocol 41 must not come back as `ip6`.
        ("allow 41 from any to any", "allow 41 from any to any"),
        ("allow proto ipv6", "allow proto ipv6"),
        ("allow ICMP from any to any", "allow icmp from any to any"),
        ("allow 253 from any to any", "allow 253 from any to any"),
        // Blocks.
        ("deny { tcp or udp } from any to any 137-139,445 in", "deny { tcp or udp } from any to any 137-139,445 in"),
        (
            "deny {tcp or udp} from {1.2.3.4 or not 10.0.0.0/8} to any",
            "deny { tcp or udp } from { 1.2.3.4 or not 10.0.0.0/8 } to any",
        ),
        ("deny ( ip4 or ip6 ) from any to any", "deny { ip4 or ip6 } from any to any"),
        ("deny ip from { 1.2.3.4 or any } to any", "deny ip from any to any"),
        ("deny ip from { 1.2.3.4 or 2001:db8::1 } to any", "deny ip from { 1.2.3.4 or 2001:db8::1 } to any"),
        ("deny { ip or tcp } from any to any in", "deny ip from any to any in"),
        (
            "deny { dst-port 22 or src-port 22 or not recv em0 } out",
            "deny { dst-port 22 or src-port 22 or not recv em0 } out",
        ),
        ("deny ip from any to any { in or out recv em0 }", "deny ip from any to any { in or out } recv em0"),
        ("deny ip from any to any { in | layer2 }", "deny ip from any to any { in or layer2 }"),
        // Options.
        ("allow in recv em0", "allow in recv em0"),
        ("allow not in", "allow out"),
        ("allow !out", "allow in"),
        ("allow !via em0 ! layer2", "allow not via em0 not layer2"),
        ("allow via any", "allow proto ip"),
        ("allow proto ip", "allow proto ip"),
        ("// just a comment", "count // just a comment"),
        ("allow ip from any to any // one  two,  three", "allow ip from any to any // one two,three"),
        ("allow tcp from any to any setup", "allow tcp from any to any setup"),
        ("allow tcp from any to any tcpflags syn,!ack", "allow tcp from any to any setup"),
        ("allow tcp from any to any estab", "allow tcp from any to any established"),
        ("allow tcp from any to any tcpflags ack,syn,!rst", "allow tcp from any to any tcpflags syn,ack,!rst"),
        ("allow tcp from any to any tcpopts maxseg,!timestamp", "allow tcp from any to any tcpoptions mss,!ts"),
        ("allow ip from any to any frag in", "allow ip from any to any frag offset in"),
        ("allow ip from any to any fragment mf,!df", "allow ip from any to any frag !df,mf"),
        ("allow icmp from any to any icmptype 8,0x0,3", "allow icmp from any to any icmptypes 0,3,8"),
        ("allow ipv6-icmp from any to any icmp6type 128,129", "allow ipv6-icmp from any to any icmp6types 128,129"),
        ("allow ip from any to any ipversion 4 ipprecedence 3", "allow ip from any to any ipver 4 ipprecedence 3"),
        ("allow ip from any to any dscp 10,ef,cs0", "allow ip from any to any dscp be,af11,ef"),
        ("allow ip from any to any iplen 40-100,7 ipttl 0x40", "allow ip from any to any iplen 40-100,7 ipttl 64"),
        ("allow tcp from any to any tcpack 4294967295", "allow tcp from any to any tcpack -1"),
        ("allow tcp from any to any tcpseq -1", "allow tcp from any to any tcpseq -1"),
        ("allow ip6 from any to any flow-id 5,0x10 in", "allow ip6 from any to any flow-id 5,16  in"),
        ("allow ip6 from any to any ext6hdr esp,frag", "allow ip6 from any to any ext6hdr frag,esp"),
        ("allow MAC any 0:1:2:3:4:5/24 mac-type ipv4,arp", "allow MAC any 00:01:02:00:00:00/24 mac-type 0x0800,0x0806"),
        ("allow src-mac table(m) dst-mac table(m,5)", "allow src-mac table(m) dst-mac table(m,5)"),
        ("allow ip from any to any mark 255:0xff", "allow ip from any to any mark 0xff:0xff"),
        ("allow ip from any to any mark tablearg", "allow ip from any to any mark tablearg"),
        ("allow ip from any to any bridged", "allow ip from any to any layer2"),
        ("allow ip from any to any tagged 1-3 fib 2", "allow ip from any to any tagged 1-3 fib 2"),
        (
            "allow tcp from any to any lookup src-ip4:255.255.253.255 1 in",
            "allow tcp from any to any lookup src-ip4:255.255.253.255 1 in",
        ),
        ("allow ip from any to any lookup dst-port:255 1", "allow ip from any to any lookup dst-port:0xff 1"),
        ("allow ip from any to any lookup rulenum:32 1", "allow ip from any to any lookup rulenum:0x20 1"),
        (
            "allow ip from any to any lookup src-ip4:0xffffff00 1",
            "allow ip from any to any lookup src-ip4:255.255.255.0 1",
        ),
        ("allow ip from table(AAA) to table(1,7)", "allow ip from table(AAA) to table(1,7)"),
        (
            "allow ip from any to any flow table(f,3) via table(i)",
            "allow ip from any to any flow table(f,3) via table(i)",
        ),
        ("allow ip from not any to any", "allow ip from not any to any"),
        ("allow ip from any to any uid root gid 0 jail web", "allow ip from any to any uid root gid 0 jail web"),
        // States come last.
        ("allow tcp from any to any keep-state setup", "allow tcp from any to any setup keep-state :default"),
        (
            "allow tcp from any to any limit src-addr dst-port 4 :web",
            "allow tcp from any to any limit src-addr,dst-port 4 :web",
        ),
        (
            "allow tcp from any to any set-limit all tablearg",
            "allow tcp from any to any set-limit all tablearg :default",
        ),
        (
            "allow tcp from any to any record-state :default defer-action in",
            "allow tcp from any to any in record-state :default defer-immediate-action",
        ),
        ("check-state :any log", "check-state :any log"),
        ("nptv6 out6 ip from any to any", "nptv6 out6 ip from any to any"),
        ("eaction ntpv6 AAA ip from any to 1.2.3.4", "eaction ntpv6 AAA ip from any to 1.2.3.4"),
    ] {
        let printed = list(text);
        assert_eq!(printed, listed, "{text}");
        assert_eq!(list(&printed), listed, "{text}, read back");
    }
}

#[test]
fn columns_sets_names_and_compact_lists() {
    let plain = PrintOptions::default();
    let rule = rule("add 200 set 5 allow tcp from any ssh to any dst-port 80,8081 in // web");
    assert_eq!(print_rule(&rule, &plain), "00200 allow tcp from any 22 to any 80,8081 in // web");
    let shown = PrintOptions { show_set: true, disabled: true, resolve: true, ..plain };
    assert_eq!(print_rule(&rule, &shown), "# DISABLED 00200 set 5 allow tcp from any ssh to any http,8081 in // web");
    let columns = counter_columns(7, 1234, 3, 6);
    assert_eq!(
        print_rule_with(&rule, &plain, &columns),
        "00200   7   1234 allow tcp from any 22 to any 80,8081 in // web"
    );
    let brief = PrintOptions { comment_only: true, ..plain };
    assert_eq!(print_rule(&rule, &brief), "00200 allow // web");
    let compact = PrintOptions { compact: true, ..plain };
    let bare = super::tests::rule("allow tcp from any to any in");
    assert_eq!(print_rule(&bare, &compact), "00000 allow tcp in");
    assert_eq!(print_rule(&bare, &brief), "00000 allow // ...");
    assert_eq!(print_rule(&rule, &compact), print_rule(&rule, &plain));
    // Without a protocol that has ports, ports have no names.
    let any = super::tests::rule("allow ip from any 22 to any");
    assert_eq!(print_rule(&any, &PrintOptions { resolve: true, ..plain }), "00000 allow ip from any 22 to any");
}

/// Message and place of every complaint.
fn complaints(text: &str) -> Vec<(String, &str)> {
    let (_, said) = parse(text);
    said.into_iter()
        .map(|said| (said.message, text.get(said.span.start as usize..said.span.end as usize).unwrap_or("?")))
        .collect()
}

#[test]
fn what_is_wrong_is_said_where_it_is() {
    for (text, message, place) in [
        ("", "missing action", ""),
        ("alow ip from any to any", "invalid action \"alow\"", "alow"),
        ("65535 allow ip from any to any", "rule 65535 is the default rule, which cannot be added", "65535"),
        ("65536 allow ip from any to any", "invalid rule number \"65536\"", "65536"),
        ("10x allow ip from any to any", "invalid rule number \"10x\"", "10x"),
        ("set 32 allow ip from any to any", "illegal set \"32\"", "32"),
        ("prob 1.5 allow ip from any to any", "illegal match prob. \"1.5\"", "1.5"),
        ("prob 0 allow ip from any to any", "illegal match prob. \"0\"", "0"),
        ("prob nan allow ip from any to any", "illegal match prob. \"nan\"", "nan"),
        ("allow", "missing protocol", ""),
        ("allow tpc from any to any", "invalid protocol \"tpc\"", "tpc"),
        ("allow tcp", "missing `from`", ""),
        ("allow tcp any to any", "missing `from` before \"any\"", "any"),
        ("allow tcp from", "missing source address", ""),
        ("allow tcp from any", "missing `to`", ""),
        ("allow tcp from any to", "missing destination address", ""),
        ("allow tcp from 1.2.3 .4 to any", "invalid port \".4\"", ".4"),
        ("allow tcp from any to 1.2.3.4/33", "bad width \"33\"", "1.2.3.4/33"),
        ("allow ip6 from 1.2.3.4 to any", "bad address \"1.2.3.4\": not IPv6", "1.2.3.4"),
        ("allow ip from 1.2.3.4,::1 to any", "IPv4 and IPv6 addresses in one list", "1.2.3.4,::1"),
        ("allow tcp from any to any 80x", "unrecognised option or port \"80x\"", "80x"),
        ("allow tcp from any to any 65536", "port 65536 out of range", "65536"),
        ("allow tcp from any to any netbios-ns", "invalid port \"netbios-ns\"", "netbios-ns"),
        ("allow tcp from any to any establishd", "unrecognised option or port \"establishd\"", "establishd"),
        ("allow tcp from any to any in establishd", "unrecognised option \"establishd\"", "establishd"),
        ("allow ip from any to any in or out", "invalid `or`: no block is open, or nothing stands before", "or"),
        ("allow { tcp or udp from any to any", "missing `}`", "from"),
        ("allow ip from any to any { in or out", "missing `}`", ""),
        ("allow ip from any to any }", "`}` without `{`", "}"),
        ("allow ip from any to any { { in } }", "nested `{` not allowed", "{"),
        ("allow ip from any to any not not in", "double `not` not allowed", "not"),
        ("allow ip from any to any not", "nothing after `not`", "not"),
        ("allow ip from not 0.0.0.0/0 to any", "`not any` never matches", "0.0.0.0/0"),
        ("allow not ip from any to any", "`not ip` never matches", "ip"),
        ("allow ip from any to any recv", "recv requires interface name or address", ""),
        ("allow ip from any to any via 1.2.3.x", "bad ip address \"1.2.3.x\"", "1.2.3.x"),
        (
            "allow ip from any to any keep-state limit src-addr 2",
            "only one of keep-state, record-state, limit and set-limit is allowed",
            "limit",
        ),
        ("allow ip from any to any { in or keep-state }", "keep-state cannot be part of an or block", "keep-state"),
        ("allow ip from any to any keep-state :any", "invalid state name \"any\"", ":any"),
        ("allow ip from any to any limit 5", "limit: missing limit mask", "5"),
        ("allow ip from any to any limit src-addr 0", "limit: argument is out of range (1..65534): 0", "0"),
        (
            "allow ip from any to any defer-action",
            "rule contains defer-immediate-action and doesn't contain any state-related options",
            "defer-action",
        ),
        ("check-state x", "invalid state name \"x\"", "x"),
        ("skipto ip from any to any", "illegal argument \"ip\" for skipto", "ip"),
        ("skipto 65535 ip from any to any", "skipto: argument is out of range (1..65534): 65535", "65535"),
        ("unreach prot ip from any to any", "unknown ICMP unreachable code \"prot\"", "prot"),
        ("unreach needfrag 60 ip from any to any", "illegal MTU \"60\"", "60"),
        ("divert nonsense ip from any to any", "illegal divert/tee port \"nonsense\"", "nonsense"),
        ("fwd example.org ip from any to any", "hostname \"example.org\" unknown", "example.org"),
        ("setdscp af14 ip from any to any", "unknown DSCP code \"af14\"", "af14"),
        ("tcp-setmss 0 ip from any to any", "invalid MSS value \"0\"", "0"),
        ("allow log log ip from any to any", "log cannot be specified more than once", "log"),
        ("allow tag 1 untag 2 ip from any to any", "tag and untag cannot be specified more than once", "untag"),
        ("allow altq web ip from any to any", "altq is not supported: there are no ALTQ queues here", "altq"),
        ("allow ip from any to any tcpflags syn,foo", "invalid flag \"foo\" for tcpflags", "syn,foo"),
        ("allow ip from any to any icmptypes 32", "ICMP type out of range: 32", "32"),
        ("allow ip from any to any icmptypes echo", "invalid ICMP type \"echo\"", "echo"),
        ("allow ip from any to any flow-id 5", "flow-id filter is active only for ipv6 protocol", "flow-id"),
        ("allow ip from any to any lookup dst-prt 1", "cannot lookup on \"dst-prt\"", "dst-prt"),
        ("allow ip from any to any lookup src-ip:255 1", "bad mask \"255\" for lookup src-ip", "src-ip:255"),
        ("allow ip from any to any lookup src-ip", "lookup requires a table after the key", ""),
        ("allow ip from any to any flow 1", "bad argument \"1\" for flow", "1"),
        (
            "allow ip from any to any mark 0x1ff:0xff",
            "some bits of the mark 0x1ff are masked out by 0xff",
            "0x1ff:0xff",
        ),
        ("allow ip from table(a b) to any", "forgotten parenthesis: \"table(a\"", "table(a"),
        ("allow ip from any to any ipprecedence 8", "invalid ipprecedence \"8\"", "8"),
        (
            "allow ip from any to any // 3456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789.1234567",
            "comment too long (max 80 chars)",
            "// 3456789.123456789.123456789.123456789.123456789.123456789.123456789.123456789.1234567",
        ),
    ] {
        let said = complaints(text);
        assert_eq!(
            said.first().map(|(message, place)| (message.as_str(), *place)),
            Some((message, place)),
            "{text}: {said:?}"
        );
    }
}

#[test]
fn one_run_shows_every_mistake_of_a_line() {
    let text = "set 40 alow tcp from 1.2.3.4/99 to any ssj in esablished recv em0 icmptypes 99 // fine";
    let said: Vec<String> = complaints(text).into_iter().map(|(message, _)| message).collect();
    assert_eq!(
        said,
        [
            "illegal set \"40\"",
            "invalid action \"alow\"",
            "bad width \"99\"",
            "unrecognised option or port \"ssj\"",
            "unrecognised option \"esablished\"",
            "ICMP type out of range: 99",
        ]
    );
    let (_, said) = parse(text);
    let hints: Vec<_> = said.iter().filter_map(|said| said.hint.as_deref()).collect();
    for hint in ["did you mean `allow`?", "did you mean `ssh`?", "did you mean `established`?"] {
        assert!(hints.contains(&hint), "{hint} in {hints:?}");
    }
}

#[test]
fn what_can_never_match_is_warned_of() {
    for (text, message) in [
        ("allow icmp from any to any 80", "icmp has no ports: the rule never matches"),
        (
            "allow ip4 from ::1 to any",
            "the source is an IPv6 address, but the rule is for IPv4: the rule never matches",
        ),
        (
            "allow ip from 1.2.3.4 to ::1",
            "the destination is an IPv6 address, but the source is an IPv4 address: the rule never matches",
        ),
        ("allow tcp from any to any 90-80", "the range 90-80 is empty"),
        ("allow ip from not any to any", "`not any` never matches"),
        ("check-state :x in", "check-state takes no options: \"in\" and what follows is ignored"),
        (
            "allow ip from any to any not { in or out }",
            "`not` before a block negates its first term only: write it before each term",
        ),
    ] {
        let (rule, said) = parse(text);
        assert!(rule.is_some(), "{text}");
        let said: Vec<_> = said.iter().map(|said| (said.severity, said.message.as_str())).collect();
        assert_eq!(said, [(Severity::Warning, message)], "{text}");
    }
    for text in ["allow { tcp or icmp } from any to any 80", "allow ip from any to any 80", "allow ip4 from me to any"]
    {
        assert_eq!(parse(text).1, [], "{text}");
    }
}

#[test]
fn what_cannot_be_put_in_force_parses_and_says_why() {
    for word in ["divert 1", "tee 1", "netgraph 1", "ngtee 1", "nat64lsn a", "eaction a b"] {
        let refused = unsupported(&rule(&format!("{word} ip from any to any")));
        assert_eq!(refused.len(), 1, "{word}");
        assert!(refused[0].message.contains("is not supported"), "{word}: {refused:?}");
        assert!(refused[0].hint.is_some());
    }
    for (to, refused) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("127.0.0.1,8080", true),
        ("192.0.2.9,8080", true),
        ("tablearg,8080", true),
        ("192.0.2.9", false),
        ("2001:db8::9", false),
        ("tablearg", false),
    ] {
        assert_eq!(unsupported(&rule(&format!("fwd {to} tcp from any to any"))).len(), usize::from(refused), "{to}");
    }
}

#[test]
fn tests_of_owners_are_found() {
    let text = "allow ip from any to any { uid root or in } jail 1";
    let found = owner_tests(&rule(text));
    let places: Vec<_> =
        found.iter().map(|(kind, span)| (*kind, &text[span.start as usize..span.end as usize])).collect();
    assert_eq!(places, [(OwnerKind::User, "uid root"), (OwnerKind::Jail, "jail 1")]);
    assert_eq!(owner_tests(&rule("allow ip from any to any")), []);
}

#[test]
fn arguments_are_read_as_a_shell_hands_them_over() {
    let mut diagnostics = Diagnostics::new();
    for arguments in [
        &["add", "100", "allow", "tcp", "from", "10.0.0.0/8,", "192.168.0.0/16", "to", "any", "22"][..],
        &["100", "allow tcp from 10.0.0.0/8,192.168.0.0/16", "to", "any 22"],
        &["add 100 allow tcp from 10.0.0.0/8, 192.168.0.0/16 to any 22 # comment"],
    ] {
        let rule = parse_add_arguments(arguments, builtin(), &mut diagnostics).expect("a rule");
        let listed = print_rule(&rule, &PrintOptions::default());
        assert_eq!(listed, "00100 allow tcp from 10.0.0.0/8,192.168.0.0/16 to any 22");
    }
    assert!(parse_add_arguments(&["add", "allow", "x"], builtin(), &mut diagnostics).is_none());
    let said = diagnostics.into_vec();
    assert_eq!((said[0].span.start, said[0].span.end), (10, 11));
}

#[test]
fn blocks_keep_the_order_of_the_text() {
    let rule = rule("add allow tcp from 1.2.3.4 80 to me 90 in recv em0");
    let tests: Vec<_> = rule.blocks.iter().map(|block| block.terms[0].test.clone()).collect();
    let port = |port| vec![Range { low: port, high: port }];
    assert!(matches!(&tests[..], [
        Test::Protocol(6),
        Test::Address(Side::Source, Addresses::V4(_)),
        Test::Ports(Side::Source, source),
        Test::Address(Side::Destination, Addresses::Me),
        Test::Ports(Side::Destination, destination),
        Test::In,
        Test::Interface(InterfaceRole::Recv, InterfaceMatch::Name(_)),
    ] if *source == port(80) && *destination == port(90)));
}
