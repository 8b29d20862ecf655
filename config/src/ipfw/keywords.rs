#![forbid(unsafe_code)]
//! Words of the rule language and what they stand for: one list each for the parser, the printer and "did you mean".
//!
//! Where a value has several names the first is printed. Order counts for flags: they are printed in the order of their list.

use super::ast::ValueKind;

/// Named bits of a flags option.
pub(super) type Flags = &'static [(&'static str, u8)];

/// `tcpflags`: bits of the TCP header.
pub(super) const TCP_FLAGS: Flags = &[("syn", 2), ("fin", 1), ("ack", 16), ("psh", 8), ("rst", 4), ("urg", 32)];
/// `tcpoptions`.
pub(super) const TCP_OPTIONS: Flags =
    &[("mss", 1), ("maxseg", 1), ("window", 2), ("sack", 4), ("ts", 8), ("timestamp", 8), ("cc", 16)];
/// `ipoptions`.
pub(super) const IP_OPTIONS: Flags = &[("ssrr", 1), ("lsrr", 2), ("rr", 4), ("ts", 8)];
/// `iptos`: bits of the TOS byte. `congestion` is both ECN bits, `ecntransport` the bit that was `mincost`.
pub(super) const IP_TOS: Flags = &[
    ("lowdelay", 0x10),
    ("throughput", 0x08),
    ("reliability", 0x04),
    ("mincost", 0x02),
    ("congestion", 0x03),
    ("ecntransport", 0x02),
];
/// `frag`, as [`super::ast::FragmentBits`] numbers them.
pub(super) const FRAGMENT: Flags = &[("rf", 8), ("df", 4), ("mf", 2), ("offset", 1)];
/// `ext6hdr`.
pub(super) const EXTENSION_HEADERS: Flags = &[
    ("frag", 1),
    ("hopopt", 2),
    ("route", 4),
    ("rthdr0", 64),
    ("rthdr2", 128),
    ("dstopt", 8),
    ("ah", 16),
    ("esp", 32),
];
/// `limit`: source address 1, source port 2, destination address 4, destination port 8.
pub(super) const LIMIT_FIELDS: Flags =
    &[("all", 15), ("src-addr", 1), ("src-port", 2), ("dst-addr", 4), ("dst-port", 8)];

/// `unreach`: codes of ICMP destination unreachable (RFC 792, RFC 1122, RFC 1812).
pub(super) const UNREACH: &[(&str, u8)] = &[
    ("net", 0),
    ("host", 1),
    ("protocol", 2),
    ("port", 3),
    ("needfrag", 4),
    ("srcfail", 5),
    ("net-unknown", 6),
    ("host-unknown", 7),
    ("isolated", 8),
    ("net-prohib", 9),
    ("host-prohib", 10),
    ("tosnet", 11),
    ("toshost", 12),
    ("filter-prohib", 13),
    ("host-precedence", 14),
    ("precedence-cutoff", 15),
];
/// The code of `reject`.
pub(super) const UNREACH_HOST: u8 = 1;
/// The code that takes an MTU.
pub(super) const UNREACH_NEEDFRAG: u8 = 4;
/// `unreach6`: codes of ICMPv6 destination unreachable (RFC 4443).
pub(super) const UNREACH6: &[(&str, u8)] = &[("no-route", 0), ("admin-prohib", 1), ("address", 3), ("port", 4)];

/// Names of DiffServ code points (RFC 2474, 2597, 3246, 5865).
pub(super) const DSCP: &[(&str, u8)] = &[
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("be", 0),
    ("va", 44),
    ("ef", 46),
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
];

/// Ethernet types by the names of ipfw(8).
pub(super) const ETHER_TYPES: &[(&str, u16)] = &[
    ("ip", 0x0800),
    ("ipv4", 0x0800),
    ("ipv6", 0x86dd),
    ("arp", 0x0806),
    ("rarp", 0x8035),
    ("vlan", 0x8100),
    ("loop", 0x9000),
    ("trail", 0x1000),
    ("at", 0x809b),
    ("atalk", 0x809b),
    ("aarp", 0x80f3),
    ("pppoe_disc", 0x8863),
    ("pppoe_sess", 0x8864),
    ("ipx_8022", 0x00e0),
    ("ipx_8023", 0x0000),
    ("ipx_ii", 0x8137),
    ("ipx_snap", 0x8137),
    ("ipx", 0x8137),
    ("ns", 0x0600),
];

/// Parts of a table's values.
pub(super) const VALUE_KINDS: &[(&str, ValueKind)] = &[
    ("skipto", ValueKind::SkipTo),
    ("pipe", ValueKind::Pipe),
    ("fib", ValueKind::Fib),
    ("nat", ValueKind::Nat),
    ("dscp", ValueKind::Dscp),
    ("tag", ValueKind::Tag),
    ("divert", ValueKind::Divert),
    ("netgraph", ValueKind::Netgraph),
    ("limit", ValueKind::Limit),
    ("ipv4", ValueKind::Ipv4),
    ("ipv6", ValueKind::Ipv6),
    ("mark", ValueKind::Mark),
];

/// An action word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionWord {
    Allow,
    Deny,
    Reject,
    Unreach,
    Unreach6,
    Reset,
    Reset6,
    Abort,
    Abort6,
    Count,
    SkipTo,
    Call,
    Return,
    CheckState,
    Forward,
    Nat,
    Pipe,
    Queue,
    SetFib,
    SetDscp,
    SetMark,
    TcpSetMss,
    Reassemble,
    Netgraph,
    NgTee,
    Divert,
    Tee,
    External,
    /// External actions that have a word of their own.
    NamedExternal,
}

/// Actions.
pub(super) const ACTIONS: &[(&str, ActionWord)] = &[
    ("allow", ActionWord::Allow),
    ("accept", ActionWord::Allow),
    ("pass", ActionWord::Allow),
    ("permit", ActionWord::Allow),
    ("deny", ActionWord::Deny),
    ("drop", ActionWord::Deny),
    ("reject", ActionWord::Reject),
    ("unreach", ActionWord::Unreach),
    ("unreach6", ActionWord::Unreach6),
    ("reset", ActionWord::Reset),
    ("reset6", ActionWord::Reset6),
    ("abort", ActionWord::Abort),
    ("abort6", ActionWord::Abort6),
    ("count", ActionWord::Count),
    ("skipto", ActionWord::SkipTo),
    ("call", ActionWord::Call),
    ("return", ActionWord::Return),
    ("check-state", ActionWord::CheckState),
    ("fwd", ActionWord::Forward),
    ("forward", ActionWord::Forward),
    ("nat", ActionWord::Nat),
    ("pipe", ActionWord::Pipe),
    ("queue", ActionWord::Queue),
    ("setfib", ActionWord::SetFib),
    ("setdscp", ActionWord::SetDscp),
    ("setmark", ActionWord::SetMark),
    ("tcp-setmss", ActionWord::TcpSetMss),
    ("reass", ActionWord::Reassemble),
    ("netgraph", ActionWord::Netgraph),
    ("ngtee", ActionWord::NgTee),
    ("divert", ActionWord::Divert),
    ("tee", ActionWord::Tee),
    ("eaction", ActionWord::External),
    ("nat64lsn", ActionWord::NamedExternal),
    ("nat64stl", ActionWord::NamedExternal),
    ("nat64clat", ActionWord::NamedExternal),
    ("nptv6", ActionWord::NamedExternal),
];

/// An option word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OptionWord {
    Tagged,
    Uid,
    Gid,
    Jail,
    In,
    Out,
    Limit,
    SetLimit,
    KeepState,
    RecordState,
    DeferAction,
    Layer2,
    Diverted,
    DivertedLoopback,
    DivertedOutput,
    Recv,
    Xmit,
    Via,
    Fragment,
    Fib,
    IpOptions,
    IpLength,
    IpId,
    IpPrecedence,
    Dscp,
    IpTos,
    IpTtl,
    IpVersion,
    Established,
    Setup,
    SocketArgument,
    TcpDataLength,
    TcpFlags,
    TcpMss,
    TcpOptions,
    TcpSequence,
    TcpAcknowledgement,
    TcpWindow,
    IcmpTypes,
    Icmp6Types,
    SourceIp,
    DestinationIp,
    SourceIp6,
    DestinationIp6,
    SourcePort,
    DestinationPort,
    SourceMac,
    DestinationMac,
    Protocol,
    Mac,
    MacType,
    VerifyReversePath,
    VerifySourceReach,
    AntiSpoof,
    Ipsec,
    ExtensionHeaders,
    FlowId,
    Ipv6,
    Ipv4,
    Lookup,
    Flow,
    Mark,
}

/// Options.
pub(super) const OPTIONS: &[(&str, OptionWord)] = &[
    ("tagged", OptionWord::Tagged),
    ("uid", OptionWord::Uid),
    ("gid", OptionWord::Gid),
    ("jail", OptionWord::Jail),
    ("in", OptionWord::In),
    ("out", OptionWord::Out),
    ("limit", OptionWord::Limit),
    ("set-limit", OptionWord::SetLimit),
    ("keep-state", OptionWord::KeepState),
    ("record-state", OptionWord::RecordState),
    ("defer-immediate-action", OptionWord::DeferAction),
    ("defer-action", OptionWord::DeferAction),
    ("layer2", OptionWord::Layer2),
    ("bridged", OptionWord::Layer2),
    ("diverted", OptionWord::Diverted),
    ("diverted-loopback", OptionWord::DivertedLoopback),
    ("diverted-output", OptionWord::DivertedOutput),
    ("recv", OptionWord::Recv),
    ("xmit", OptionWord::Xmit),
    ("via", OptionWord::Via),
    ("frag", OptionWord::Fragment),
    ("fragment", OptionWord::Fragment),
    ("fib", OptionWord::Fib),
    ("ipoptions", OptionWord::IpOptions),
    ("ipopts", OptionWord::IpOptions),
    ("iplen", OptionWord::IpLength),
    ("ipid", OptionWord::IpId),
    ("ipprecedence", OptionWord::IpPrecedence),
    ("dscp", OptionWord::Dscp),
    ("iptos", OptionWord::IpTos),
    ("ipttl", OptionWord::IpTtl),
    ("ipver", OptionWord::IpVersion),
    ("ipversion", OptionWord::IpVersion),
    ("established", OptionWord::Established),
    ("estab", OptionWord::Established),
    ("setup", OptionWord::Setup),
    ("sockarg", OptionWord::SocketArgument),
    ("tcpdatalen", OptionWord::TcpDataLength),
    ("tcpflags", OptionWord::TcpFlags),
    ("tcpflgs", OptionWord::TcpFlags),
    ("tcpmss", OptionWord::TcpMss),
    ("tcpoptions", OptionWord::TcpOptions),
    ("tcpopts", OptionWord::TcpOptions),
    ("tcpseq", OptionWord::TcpSequence),
    ("tcpack", OptionWord::TcpAcknowledgement),
    ("tcpwin", OptionWord::TcpWindow),
    ("icmptypes", OptionWord::IcmpTypes),
    ("icmptype", OptionWord::IcmpTypes),
    ("icmp6types", OptionWord::Icmp6Types),
    ("icmp6type", OptionWord::Icmp6Types),
    ("src-ip", OptionWord::SourceIp),
    ("dst-ip", OptionWord::DestinationIp),
    ("src-ip6", OptionWord::SourceIp6),
    ("src-ipv6", OptionWord::SourceIp6),
    ("dst-ip6", OptionWord::DestinationIp6),
    ("dst-ipv6", OptionWord::DestinationIp6),
    ("src-port", OptionWord::SourcePort),
    ("dst-port", OptionWord::DestinationPort),
    ("src-mac", OptionWord::SourceMac),
    ("dst-mac", OptionWord::DestinationMac),
    ("proto", OptionWord::Protocol),
    ("MAC", OptionWord::Mac),
    ("mac", OptionWord::Mac),
    ("mac-type", OptionWord::MacType),
    ("verrevpath", OptionWord::VerifyReversePath),
    ("versrcreach", OptionWord::VerifySourceReach),
    ("antispoof", OptionWord::AntiSpoof),
    ("ipsec", OptionWord::Ipsec),
    ("ext6hdr", OptionWord::ExtensionHeaders),
    ("flow-id", OptionWord::FlowId),
    ("ip6", OptionWord::Ipv6),
    ("ipv6", OptionWord::Ipv6),
    ("ip4", OptionWord::Ipv4),
    ("ipv4", OptionWord::Ipv4),
    ("lookup", OptionWord::Lookup),
    ("flow", OptionWord::Flow),
    ("mark", OptionWord::Mark),
];

/// What `word` stands for.
pub(super) fn value<T: Copy>(list: &[(&str, T)], word: &str) -> Option<T> {
    list.iter().find(|(name, _)| *name == word).map(|&(_, value)| value)
}

/// The first name of `wanted`.
pub(super) fn name<T: Copy + PartialEq>(list: &'static [(&'static str, T)], wanted: T) -> Option<&'static str> {
    list.iter().find(|(_, value)| *value == wanted).map(|&(name, _)| name)
}

/// The names, for "did you mean".
pub(super) fn names<'n, T>(list: &'n [(&'n str, T)]) -> impl Iterator<Item = &'n str> {
    list.iter().map(|(name, _)| *name)
}
