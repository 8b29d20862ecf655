//! Random rules and random lines of the language's words.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::*;
use ferrule_config::span::Span;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn argument() -> impl Strategy<Value = Argument> {
    prop_oneof![4 => (1..=65534u32).prop_map(Argument::Number), 1 => Just(Argument::Table)]
}

fn object_name() -> impl Strategy<Value = String> {
    "[a-z0-9_.-]{1,9}".prop_filter("reserved", |name| !matches!(name.as_str(), "all" | "any" | "default"))
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::Source), Just(Side::Destination)]
}

fn ranges() -> impl Strategy<Value = Vec<Range<u16>>> {
    vec((any::<u16>(), any::<u16>()).prop_map(|(a, b)| Range { low: a.min(b), high: a.max(b) }), 1..4)
}

fn numbers() -> impl Strategy<Value = Numbers> {
    ranges().prop_map(Numbers::List)
}

/// Bits as a list of flags can give them.
fn bits(reachable: &'static [u8]) -> impl Strategy<Value = Bits> {
    let one = || vec(prop::sample::select(reachable), 0..4).prop_map(|bits| bits.iter().fold(0, |all, bit| all | bit));
    (one(), one()).prop_filter("no flag", |(set, clear)| set | clear != 0).prop_map(|(set, clear)| Bits { set, clear })
}

fn value_test() -> impl Strategy<Value = Option<TableValueTest>> {
    let kind = prop_oneof![
        Just(None),
        Just(Some(ValueKind::SkipTo)),
        Just(Some(ValueKind::Ipv4)),
        Just(Some(ValueKind::Mark)),
    ];
    option::of((kind, any::<u32>()).prop_map(|(kind, value)| TableValueTest { kind, value }))
}

fn masked4() -> impl Strategy<Value = Masked4> {
    let mask = prop_oneof![
        Just(u32::MAX),
        (1..32u32).prop_map(|length| u32::MAX << (32 - length)),
        any::<u32>().prop_filter("any", |mask| *mask != 0),
    ];
    (any::<u32>(), mask)
        .prop_map(|(address, mask)| Masked4 { address: Ipv4Addr::from(address & mask), mask: Ipv4Addr::from(mask) })
}

fn masked6() -> impl Strategy<Value = Masked6> {
    let mask = prop_oneof![
        Just(u128::MAX),
        (1..=128u32).prop_map(|length| u128::MAX << (128 - length)),
        any::<u128>(),
        Just(0),
    ];
    // Short addresses, mapped and compatible ones, and any.
    let address = prop_oneof![
        any::<u128>(),
        (0..70_000u128),
        any::<u32>().prop_map(u128::from),
        any::<u32>().prop_map(|low| 0xffff << 32 | u128::from(low))
    ];
    (address, mask)
        .prop_map(|(address, mask)| Masked6 { address: Ipv6Addr::from(address & mask), mask: Ipv6Addr::from(mask) })
}

fn set4() -> impl Strategy<Value = Addresses> {
    (any::<u32>(), 24..=31u8, vec(any::<u8>(), 1..40)).prop_map(|(base, length, members)| {
        let size = 1u32 << (32 - length);
        let base = base & !(size - 1);
        let mut map = [0u64; 4];
        for member in members {
            let member = (base & 0xff) + u32::from(member) % size;
            map[member as usize / 64] |= 1 << (member % 64);
        }
        Addresses::Set4 { base: Ipv4Addr::from(base), length, members: map }
    })
}

/// Addresses for a rule of any protocol, or for one of `ip6` alone.
fn addresses(ip6: bool) -> BoxedStrategy<Addresses> {
    let both = prop_oneof![
        Just(Addresses::None),
        Just(Addresses::Me6),
        (object_name(), value_test()).prop_map(|(name, value)| Addresses::Table(name, value)),
        vec(masked6(), 1..4).prop_map(Addresses::V6),
    ];
    if ip6 {
        return both.boxed();
    }
    prop_oneof![both, Just(Addresses::Me), vec(masked4(), 1..4).prop_map(Addresses::V4), set4()].boxed()
}

fn interface() -> impl Strategy<Value = InterfaceMatch> {
    prop_oneof![
        "[a-z]{2,6}[0-9]{1,3}".prop_map(InterfaceMatch::Name),
        "[a-z]{2,6}\\*".prop_map(InterfaceMatch::Pattern),
        any::<u32>().prop_map(|address| InterfaceMatch::Address4(address.into())),
        any::<u128>().prop_map(|address| InterfaceMatch::Address6(address.into())),
        (object_name(), value_test()).prop_map(|(name, value)| InterfaceMatch::Table(name, value)),
    ]
}

fn mac() -> impl Strategy<Value = MaskedMac> {
    let mask = prop_oneof![Just([0xff; 6]), Just([0; 6]), Just([0xff, 0xff, 0xff, 0xf0, 0, 0]), any::<[u8; 6]>()];
    (any::<[u8; 6]>(), mask)
        .prop_map(|(address, mask)| MaskedMac { address: std::array::from_fn(|at| address[at] & mask[at]), mask })
}

fn lookup_key() -> impl Strategy<Value = LookupKey> {
    prop_oneof![
        side().prop_map(LookupKey::Address),
        (side(), any::<u32>()).prop_map(|(side, mask)| LookupKey::Address4(side, mask.into())),
        (side(), any::<u128>()).prop_map(|(side, mask)| LookupKey::Address6(side, mask.into())),
        (side(), any::<u16>()).prop_map(|(side, mask)| LookupKey::Port(side, mask)),
        (side(), any::<[u8; 6]>()).prop_map(|(side, mask)| LookupKey::Mac(side, mask)),
        prop_oneof![Just(u32::MAX), any::<u32>()].prop_map(LookupKey::Dscp),
        any::<u32>().prop_map(LookupKey::RuleNumber),
        any::<u32>().prop_map(LookupKey::Mark),
        Just(LookupKey::Owner(OwnerKind::User)),
        Just(LookupKey::Owner(OwnerKind::Jail)),
    ]
}

/// Tests that are no protocol, address or port.
fn option_test() -> BoxedStrategy<Test> {
    let links = prop_oneof![
        Just(Test::Layer2),
        (mac(), mac()).prop_map(|(destination, source)| Test::Mac { destination, source }),
        (side(), object_name(), value_test()).prop_map(|(side, name, value)| Test::MacTable(side, name, value)),
        ranges().prop_map(Test::MacType),
        Just(Test::In),
        Just(Test::Out),
        (prop_oneof![Just(InterfaceRole::Recv), Just(InterfaceRole::Xmit), Just(InterfaceRole::Via)], interface())
            .prop_map(|(role, interface)| Test::Interface(role, interface)),
        (lookup_key(), object_name()).prop_map(|(key, name)| Test::Lookup(key, name)),
        (object_name(), value_test()).prop_map(|(name, value)| Test::FlowTable(name, value)),
    ];
    let headers = prop_oneof![
        bits(&[1, 2, 4, 8]).prop_map(|bits| Test::Fragment(FragmentBits { set: bits.set, clear: bits.clear })),
        numbers().prop_map(Test::IpId),
        numbers().prop_map(Test::IpLength),
        numbers().prop_map(Test::IpTtl),
        any::<u8>().prop_map(Test::IpVersion),
        bits(&[1, 2, 4, 8]).prop_map(Test::IpOptions),
        (0..8u8).prop_map(Test::IpPrecedence),
        bits(&[0x10, 8, 4, 2, 3]).prop_map(Test::IpTos),
        (1..=u64::MAX).prop_map(Test::Dscp),
        Just(Test::DscpTable),
        (1..=u8::MAX).prop_map(Test::ExtensionHeaders),
    ];
    let transport = prop_oneof![
        bits(&[1, 2, 4, 8, 16, 32]).prop_map(Test::TcpFlags),
        Just(Test::TcpFlags(Bits { set: 2, clear: 16 })),
        Just(Test::Established),
        bits(&[1, 2, 4, 8, 16]).prop_map(Test::TcpOptions),
        any::<u32>().prop_map(Test::TcpSequence),
        any::<u32>().prop_map(Test::TcpAcknowledgement),
        numbers().prop_map(Test::TcpWindow),
        numbers().prop_map(Test::TcpDataLength),
        numbers().prop_map(Test::TcpMss),
        (1..=u32::MAX).prop_map(Test::IcmpTypes),
        (any::<[u64; 4]>(), 0..64u32).prop_map(|(map, bit)| {
            // Types up to 201, at least one.
            Test::Icmp6Types([map[0] | 1 << bit, map[1], map[2], map[3] & 0x3ff])
        }),
    ];
    let marks = prop_oneof![
        Just(Test::VerifyReversePath),
        Just(Test::VerifySourceReach),
        Just(Test::AntiSpoof),
        (0..=32767u32).prop_map(|fib| Test::Fib(Argument::Number(fib))),
        Just(Test::Tagged(Numbers::Table)),
        (1..=65534u16).prop_map(|tag| Test::Tagged(Numbers::List(vec![Range { low: tag, high: tag }]))),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Test::Mark(Argument::Number(value & mask), mask)),
        any::<u32>().prop_map(|mask| Test::Mark(Argument::Table, mask)),
        (prop_oneof![Just(OwnerKind::User), Just(OwnerKind::Group), Just(OwnerKind::Jail)], "[a-z0-9]{1,8}")
            .prop_map(|(kind, name)| Test::Owner(kind, name)),
        Just(Test::Ipsec),
        Just(Test::SocketArgument),
        prop_oneof![Just((true, true)), Just((true, false)), Just((false, true))]
            .prop_map(|(loopback, output)| Test::Diverted { loopback, output }),
    ];
    prop_oneof![links, headers, transport, marks].boxed()
}

fn protocol_test() -> impl Strategy<Value = Test> {
    prop_oneof![Just(Test::Ipv4), Just(Test::Ipv6), (1..=255u8).prop_map(Test::Protocol), Just(Test::Protocol(6))]
}

fn term(not: bool, test: Test) -> Term {
    // `in` and `out` are each other's negation; `not any` carries its own.
    let plain = matches!(test, Test::In | Test::Out | Test::Address(_, Addresses::None));
    Term { not: not && !plain, test, span: Span::default() }
}

fn block(test: impl Strategy<Value = Test>) -> impl Strategy<Value = Block> {
    let terms = vec((any::<bool>(), test), 1..4);
    terms.prop_map(|terms| Block { terms: terms.into_iter().map(|(not, test)| term(not, test)).collect() })
}

fn single(test: impl Strategy<Value = Test>) -> impl Strategy<Value = Block> {
    (any::<bool>(), test).prop_map(|(not, test)| Block { terms: vec![term(not, test)] })
}

fn action() -> BoxedStrategy<Action> {
    let plain = prop_oneof![
        Just(Action::Allow),
        Just(Action::Deny),
        Just(Action::Reset),
        Just(Action::Reset6),
        Just(Action::Abort),
        Just(Action::Abort6),
        Just(Action::Count),
        Just(Action::Reassemble),
        Just(Action::Return(ReturnTo::NextNumber)),
        Just(Action::Return(ReturnTo::NextRule)),
        Just(Action::Nat(NatInstance::Global)),
    ];
    let codes = prop_oneof![
        any::<u8>().prop_map(|code| Action::Unreach(code, None)),
        (68..65535u16).prop_map(|mtu| Action::Unreach(4, Some(mtu))),
        any::<u8>().prop_map(Action::Unreach6),
        (0..64u32).prop_map(|code| Action::SetDscp(Argument::Number(code))),
        (any::<u32>(), prop_oneof![Just(u32::MAX), any::<u32>()])
            .prop_map(|(value, mask)| Action::SetMark(Argument::Number(value), mask)),
        (1..=u16::MAX).prop_map(Action::TcpSetMss),
        (0..=32767u32).prop_map(|fib| Action::SetFib(Argument::Number(fib))),
    ];
    let arguments = (argument(), 0..10usize).prop_map(|(argument, which)| match which {
        0 => Action::SkipTo(argument),
        1 => Action::Call(argument),
        2 => Action::Nat(NatInstance::One(argument)),
        3 => Action::Pipe(argument),
        4 => Action::Queue(argument),
        5 => Action::Netgraph(argument),
        6 => Action::NgTee(argument),
        7 => Action::Divert(argument),
        8 => Action::Tee(argument),
        _ => Action::SetMark(Argument::Table, u32::MAX),
    });
    let named = prop_oneof![
        (1..=u32::MAX, any::<u16>()).prop_map(|(to, port)| Action::Forward(ForwardTo::V4(to.into(), port))),
        (any::<u128>(), any::<u16>()).prop_map(|(to, port)| Action::Forward(ForwardTo::V6(to.into(), None, port))),
        any::<u16>().prop_map(|port| {
            let mut scope = [0; 16];
            scope[..3].copy_from_slice(b"em0");
            Action::Forward(ForwardTo::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), Some(scope), port))
        }),
        any::<u16>().prop_map(|port| Action::Forward(ForwardTo::Table(port))),
        (object_name(), object_name()).prop_map(|(name, instance)| Action::External(name, instance)),
    ];
    prop_oneof![plain, codes, arguments, named].boxed()
}

fn state() -> impl Strategy<Value = StateOption> {
    let limit = (1..16u8, argument()).prop_map(|(fields, count)| Limit {
        source_address: fields & 1 != 0,
        source_port: fields & 2 != 0,
        destination_address: fields & 4 != 0,
        destination_port: fields & 8 != 0,
        count,
    });
    let name = prop_oneof![Just(StateName::Default), object_name().prop_map(StateName::Named)];
    (any::<bool>(), option::of(limit), name, any::<bool>()).prop_map(|(probes, limit, name, deferred)| StateOption {
        probes,
        limit,
        name,
        deferred,
    })
}

/// A rule around its tests.
fn rule(tests: impl Strategy<Value = (bool, Vec<Block>)>) -> impl Strategy<Value = Rule> {
    let head = (0..65535u16, 0..32u8, option::of((1..1_000_000u32).prop_map(|millionths| f64::from(millionths) / 1e6)));
    let log = option::of(option::of(1..=u32::MAX).prop_map(|amount| Log { amount }));
    let tag = option::of(prop_oneof![argument().prop_map(Tag::Set), argument().prop_map(Tag::Clear)]);
    let comment = option::of("[a-z!{}/]{1,9}( [a-z0-9,]{1,9}[a-z]){0,3}");
    (head, action(), log, tag, tests, option::of(state()), comment).prop_map(
        |((number, set, probability), action, log, tag, (options_only, blocks), state, comment)| Rule {
            number,
            set,
            probability,
            action,
            log,
            tag,
            blocks,
            state,
            options_only,
            comment,
            span: Span::default(),
        },
    )
}

/// `PROTO from SRC PORTS to DST PORTS` and options.
fn header() -> impl Strategy<Value = (bool, Vec<Block>)> {
    (option::of(block(protocol_test())), vec(block(option_test()), 0..4), vec(0..1_048_576u32, 1..3)).prop_flat_map(
        |(protocol, options, labels)| {
            let last = protocol.as_ref().and_then(|block| block.terms.last());
            let ip6 = last.is_some_and(|term| term.test == Test::Ipv6);
            let address = move |side| option::of(block(addresses(ip6).prop_map(move |of| Test::Address(side, of))));
            let ports = |side| option::of(single(ranges().prop_map(move |ranges| Test::Ports(side, ranges))));
            let flow = ip6.then(|| Block { terms: vec![term(false, Test::FlowId(labels))] });
            let sides =
                (address(Side::Source), ports(Side::Source), address(Side::Destination), ports(Side::Destination));
            sides.prop_map(move |(source, source_ports, destination, destination_ports)| {
                let head = [protocol.clone(), source, source_ports, destination, destination_ports];
                let tests = head.into_iter().flatten().chain(options.clone()).chain(flow.clone());
                (false, tests.collect())
            })
        },
    )
}

fn any_test() -> impl Strategy<Value = Test> {
    prop_oneof![
        protocol_test(),
        (side(), addresses(false)).prop_map(|(side, addresses)| Test::Address(side, addresses)),
        (side(), ranges()).prop_map(|(side, ranges)| Test::Ports(side, ranges)),
        option_test(),
    ]
}

/// A rule that prints in its own order.
pub fn canonical_rule() -> impl Strategy<Value = Rule> {
    let options = vec(block(any_test()), 0..5).prop_map(|blocks| (true, blocks));
    let check = prop_oneof![Just(StateName::Default), Just(StateName::Any), object_name().prop_map(StateName::Named)];
    let check = (rule(Just((false, Vec::new()))), check).prop_map(|(mut rule, name)| {
        rule.action = Action::CheckState(name);
        rule.state = None;
        rule
    });
    prop_oneof![6 => rule(header()), 3 => rule(options), 1 => check]
}

/// A rule with its tests in any order.
pub fn disordered_rule() -> impl Strategy<Value = Rule> {
    rule(vec(block(any_test()), 0..6).prop_map(|blocks| (false, blocks)))
}

/// A line of words that mean something somewhere.
pub fn words() -> impl Strategy<Value = String> {
    let words = [
        "add",
        "100",
        "65535",
        "set",
        "prob",
        "0.5",
        "allow",
        "deny",
        "count",
        "skipto",
        "unreach",
        "port",
        "check-state",
        ":x",
        "fwd",
        "1.2.3.4",
        "10.0.0.0/8",
        "10.0.0.0/24{1,2}",
        "::1",
        "2001:db8::/32",
        "any",
        "me",
        "me6",
        "table(1)",
        "table(1,5)",
        "ip",
        "ip4",
        "ip6",
        "tcp",
        "udp",
        "icmp",
        "{",
        "}",
        "(",
        ")",
        "or",
        "not",
        "!",
        "!in",
        "{tcp",
        "udp}",
        "from",
        "to",
        "22",
        "ssh,80-90",
        "in",
        "out",
        "recv",
        "via",
        "em0",
        "keep-state",
        "limit",
        "src-addr",
        "5",
        "frag",
        "mf,!df",
        "setup",
        "tcpflags",
        "syn,!ack",
        "icmptypes",
        "0,8",
        "log",
        "logamount",
        "tag",
        "tablearg",
        "proto",
        "src-ip",
        "dst-ip6",
        "dst-port",
        "lookup",
        "src-ip4:255.0.0.0",
        "dscp",
        "ef",
        "flow-id",
        "defer-action",
        "mac",
        "//",
        "text",
        "x,",
        "#",
        "é",
        "nonsense",
    ];
    vec(prop::sample::select(words.to_vec()), 0..16).prop_flat_map(|words| {
        // Half of them begin as rules do, so that the rest is reached.
        prop_oneof![Just(words.join(" ")), Just(format!("allow ip from any to any {}", words.join(" ")))]
    })
}
