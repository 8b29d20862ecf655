#![forbid(unsafe_code)]
//! The meaning of one ipfw(8) rule, in the order in which it is tested.
//!
//! A rule body is a list of [`Block`]s that must all match; a block is one or more [`Term`]s of which one must match (`{ a or b }`), each
//! perhaps negated. That is what ipfw(8) compiles to as well, so that order, `not` and `or` mean here what they mean there. Ports, types and
//! numbers are in host order, addresses as std has them.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::span::Span;

/// The number of the last rule, which cannot be added or deleted.
pub const DEFAULT_RULE: u16 = 65535;
/// The set of the last rule: always enabled.
pub const DEFAULT_SET: u8 = 31;

/// One rule as `add` gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Its number; 0 where the next free one is meant (`net.inet.ip.fw.autoinc_step`).
    pub number: u16,
    /// Its set, 0 to 31.
    pub set: u8,
    /// Chance of matching at all (`prob`), above 0 and below 1.
    pub probability: Option<f64>,
    /// What happens on a match.
    pub action: Action,
    /// `log`.
    pub log: Option<Log>,
    /// Tag put on or taken off on a match.
    pub tag: Option<Tag>,
    /// Tests, all of which must match, in order. Addresses and ports of `from` and `to` come first, as ipfw(8) puts them.
    pub blocks: Vec<Block>,
    /// `keep-state`, `limit` and their kin.
    pub state: Option<StateOption>,
    /// True where the rule was written with options only, without `PROTO from SRC to DST`: it is printed so.
    pub options_only: bool,
    /// Text after `//`.
    pub comment: Option<String>,
    /// Where it stands in its source.
    pub span: Span,
}

impl Rule {
    /// Rule 65535: `allow ip from any to any` where it accepts, else `deny`.
    pub fn last(accepts: bool) -> Rule {
        Rule {
            number: DEFAULT_RULE,
            set: DEFAULT_SET,
            probability: None,
            action: if accepts { Action::Allow } else { Action::Deny },
            log: None,
            tag: None,
            blocks: Vec::new(),
            state: None,
            options_only: false,
            comment: None,
            span: Span::default(),
        }
    }
}

/// `log [logamount N]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Most entries before it falls silent: Some(0) is "no limit"; None takes `net.inet.ip.fw.verbose_limit` when the rule is added.
    pub amount: Option<u32>,
}

/// `tag N`, `untag N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Puts the tag on.
    Set(Argument),
    /// Takes it off.
    Clear(Argument),
}

/// A number, or `tablearg`: the value that the last table look-up of this rule's match gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    /// The number written.
    Number(u32),
    /// `tablearg`.
    Table,
}

/// Name of a table, as written: `table(5)` is the table named "5". At most 63 bytes, see ipfw(8), LOOKUP TABLES.
pub type TableName = String;

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// `allow`, `accept`, `pass`, `permit`.
    Allow,
    /// `deny`, `drop`.
    Deny,
    /// `unreach CODE [MTU]`; `reject` is `unreach host`. The ICMP code, and the MTU of `needfrag MTU`.
    Unreach(u8, Option<u16>),
    /// `unreach6 CODE`: the ICMPv6 code.
    Unreach6(u8),
    /// `reset`: TCP gets RST, others are dropped.
    Reset,
    /// `reset6`.
    Reset6,
    /// `abort`: SCTP gets ABORT.
    Abort,
    /// `abort6`.
    Abort6,
    /// `count`.
    Count,
    /// `skipto N`.
    SkipTo(Argument),
    /// `call N`.
    Call(Argument),
    /// `return [next-rulenum | next-rule]`.
    Return(ReturnTo),
    /// `check-state [:NAME]`.
    CheckState(StateName),
    /// `fwd`, `forward`.
    Forward(ForwardTo),
    /// `nat`.
    Nat(NatInstance),
    /// `pipe N`.
    Pipe(Argument),
    /// `queue N`.
    Queue(Argument),
    /// `setfib N`.
    SetFib(Argument),
    /// `setdscp VALUE`.
    SetDscp(Argument),
    /// `setmark VALUE[/MASK]`.
    SetMark(Argument, u32),
    /// `tcp-setmss N`.
    TcpSetMss(u16),
    /// `reass`.
    Reassemble,
    /// `netgraph COOKIE`.
    Netgraph(Argument),
    /// `ngtee COOKIE`.
    NgTee(Argument),
    /// `divert PORT`.
    Divert(Argument),
    /// `tee PORT`.
    Tee(Argument),
    /// `eaction NAME INSTANCE`, and what is written without the keyword: `nat64lsn`, `nat64stl`, `nat64clat`, `nptv6 INSTANCE`.
    External(String, String),
}

/// Where `return` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnTo {
    /// The rule numbered one above the caller's or the next that there is (`next-rulenum`, the default).
    NextNumber,
    /// The rule that follows the caller, also of the same number (`next-rule`).
    NextRule,
}

/// Target of `fwd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardTo {
    /// `fwd ADDRESS[,PORT]`.
    V4(Ipv4Addr, u16),
    /// `fwd ADDRESS[,PORT]`, perhaps with a scope (`fe80::1%em0`).
    V6(Ipv6Addr, Option<[u8; 16]>, u16),
    /// `fwd tablearg[,PORT]`.
    Table(u16),
}

/// Instance of `nat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatInstance {
    /// `nat N` or `nat tablearg`.
    One(Argument),
    /// `nat global`.
    Global,
}

/// Name of a group of dynamic rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StateName {
    /// None written: the group `default`.
    Default,
    /// `:any` (`check-state` only): every group.
    Any,
    /// `:NAME`.
    Named(String),
}

/// `keep-state [:NAME]`, `record-state [:NAME]`, `limit MASK N [:NAME]`, `set-limit MASK N [:NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateOption {
    /// Whether the rule also does what check-state does before anything else (keep-state, limit) or not (record-state, set-limit).
    pub probes: bool,
    /// Fields whose combinations are limited and how many states each may have; None for keep-state and record-state.
    pub limit: Option<Limit>,
    /// Group.
    pub name: StateName,
    /// `defer-immediate-action`, `defer-action`: the state is made, the action is not carried out and the search goes on.
    pub deferred: bool,
}

/// `limit {src-addr | src-port | dst-addr | dst-port} N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Source address counts.
    pub source_address: bool,
    /// Source port counts.
    pub source_port: bool,
    /// Destination address counts.
    pub destination_address: bool,
    /// Destination port counts.
    pub destination_port: bool,
    /// Most states for one combination.
    pub count: Argument,
}

/// Terms of which one must match. Never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The terms, in order; tried until one matches.
    pub terms: Vec<Term>,
}

/// One test, perhaps negated.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// `not`, `!`.
    pub not: bool,
    /// The test.
    pub test: Test,
    /// Where it stands.
    pub span: Span,
}

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// `from`, `src-...`.
    Source,
    /// `to`, `dst-...`.
    Destination,
}

/// From and to, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Range<T> {
    /// First.
    pub low: T,
    /// Last.
    pub high: T,
}

/// Values of a numeric field: ranges in the order written, or the table's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// A list.
    List(Vec<Range<u16>>),
    /// `tablearg`.
    Table,
}

/// Bits that must be set and bits that must be clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Bits {
    /// Must be set.
    pub set: u8,
    /// Must be clear.
    pub clear: u8,
}

/// An IPv4 address with a mask of any shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Masked4 {
    /// Address; bits outside the mask are zero.
    pub address: Ipv4Addr,
    /// Mask; all ones for a single address.
    pub mask: Ipv4Addr,
}

/// An IPv6 address with a mask of any shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Masked6 {
    /// Address; bits outside the mask are zero.
    pub address: Ipv6Addr,
    /// Mask.
    pub mask: Ipv6Addr,
}

/// A MAC address with a mask of any shape; an all-zero mask is `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskedMac {
    /// Address.
    pub address: [u8; 6],
    /// Mask.
    pub mask: [u8; 6],
}

/// What an address test compares with. `any` is no test and never stands here (negated, it is [`Addresses::None`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// `not any`: matches nothing.
    None,
    /// `me`: an IPv4 address of the box; in rules whose protocol allows IPv6 (`ip`, `me`) ipfw(8) prints and tests as FreeBSD 14 does.
    Me,
    /// `me6`.
    Me6,
    /// `table(NAME[,VALUE])`.
    Table(TableName, Option<TableValueTest>),
    /// A list of IPv4 addresses, prefixes and masks, in the order written.
    V4(Vec<Masked4>),
    /// `A.B.C.D/N{x,y,z-w}`: the base address with its last byte as in the set, N from 24 to 32, and the last bytes that match.
    Set4 {
        /// Network of the set.
        base: Ipv4Addr,
        /// Prefix length, 24 to 32.
        length: u8,
        /// Bit i of the 256: whether last byte i matches.
        members: [u64; 4],
    },
    /// A list of IPv6 addresses, prefixes and masks.
    V6(Vec<Masked6>),
}

/// A value that the entry found must have: `table(NAME,VALUE)`, `lookup KEY NAME` has none. A kind is named as in `valtype`
/// (`table(NAME,skipto=5)`); without one every value word of the entry is compared as FreeBSD's legacy test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableValueTest {
    /// Which part of the value.
    pub kind: Option<ValueKind>,
    /// What it must be.
    pub value: u32,
}

/// Parts of a table's values (`valtype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub enum ValueKind {
    /// `skipto`
    SkipTo,
    /// `pipe`
    Pipe,
    /// `fib`
    Fib,
    /// `nat`
    Nat,
    /// `dscp`
    Dscp,
    /// `tag`
    Tag,
    /// `divert`
    Divert,
    /// `netgraph`
    Netgraph,
    /// `limit`
    Limit,
    /// `ipv4`
    Ipv4,
    /// `ipv6`
    Ipv6,
    /// `mark`
    Mark,
}

/// The key of `lookup KEY[:MASK] TABLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupKey {
    /// `src-ip`, `dst-ip`, both families.
    Address(Side),
    /// `src-ip4[:MASK]`, `dst-ip4[:MASK]`.
    Address4(Side, Ipv4Addr),
    /// `src-ip6[:MASK]`, `dst-ip6[:MASK]`.
    Address6(Side, Ipv6Addr),
    /// `src-port[:MASK]`, `dst-port[:MASK]`.
    Port(Side, u16),
    /// `src-mac[:MASK]`, `dst-mac[:MASK]`.
    Mac(Side, [u8; 6]),
    /// `dscp[:MASK]`.
    Dscp(u32),
    /// `rulenum[:MASK]`.
    RuleNumber(u32),
    /// `mark[:MASK]`.
    Mark(u32),
    /// `uid`, `gid`, `jail`: a forwarded packet has none, so never found.
    Owner(OwnerKind),
}

/// Whose packet it is; only packets of local sockets have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// `uid`
    User,
    /// `gid`
    Group,
    /// `jail`
    Jail,
}

/// `recv`, `xmit`, `via`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterfaceRole {
    /// Came in by it.
    Recv,
    /// Goes out by it (never matches in the in pass).
    Xmit,
    /// `recv` in the in pass, `xmit` in the out pass.
    Via,
}

/// An interface as a rule names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceMatch {
    /// `any`: there is one (`not recv any`: there is none).
    Any,
    /// A name.
    Name(String),
    /// A shell pattern (`em*`).
    Pattern(String),
    /// Has this address.
    Address4(Ipv4Addr),
    /// Has this address.
    Address6(Ipv6Addr),
    /// `table(NAME[,VALUE])`.
    Table(TableName, Option<TableValueTest>),
}

/// `frag [SPEC]`: fragment facts as FreeBSD 13 and later take them; plain `frag` is `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FragmentBits {
    /// Which of [`FragmentBits::OFFSET`], `MORE`, `DONT`, `RESERVED` must be set.
    pub set: u8,
    /// Which must be clear.
    pub clear: u8,
}

impl FragmentBits {
    /// `offset`: not the first fragment.
    pub const OFFSET: u8 = 1;
    /// `mf`: more to come.
    pub const MORE: u8 = 2;
    /// `df`.
    pub const DONT: u8 = 4;
    /// `rf`.
    pub const RESERVED: u8 = 8;
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// `ip4`, `ipv4`: the packet is IPv4.
    Ipv4,
    /// `ip6`, `ipv6`: the packet is IPv6.
    Ipv6,
    /// An IP protocol number (for IPv6 the upper-layer protocol).
    Protocol(u8),
    /// `layer2`: the packet comes from the link layer's pass.
    Layer2,
    /// `MAC DST SRC`, in that order.
    Mac {
        /// Destination.
        destination: MaskedMac,
        /// Source.
        source: MaskedMac,
    },
    /// `src-mac table(NAME[,VALUE])`, `dst-mac ...`.
    MacTable(Side, TableName, Option<TableValueTest>),
    /// `mac-type`.
    MacType(Vec<Range<u16>>),
    /// `from X`, `to X`, `src-ip`, `dst-ip`, `src-ip6`, `dst-ip6`.
    Address(Side, Addresses),
    /// Ports, of TCP, UDP, UDP-Lite and SCTP; never of later fragments.
    Ports(Side, Vec<Range<u16>>),
    /// `lookup KEY TABLE`.
    Lookup(LookupKey, TableName),
    /// `flow table(NAME[,VALUE])`.
    FlowTable(TableName, Option<TableValueTest>),
    /// `in`.
    In,
    /// `out`.
    Out,
    /// `recv`, `xmit`, `via`.
    Interface(InterfaceRole, InterfaceMatch),
    /// `frag`.
    Fragment(FragmentBits),
    /// `ipid`.
    IpId(Numbers),
    /// `iplen`: total length.
    IpLength(Numbers),
    /// `ipttl`.
    IpTtl(Numbers),
    /// `ipversion`.
    IpVersion(u8),
    /// `ipoptions`: bits ssrr 1, lsrr 2, rr 4, ts 8.
    IpOptions(Bits),
    /// `ipprecedence`, 0 to 7.
    IpPrecedence(u8),
    /// `iptos`: bits of the TOS byte.
    IpTos(Bits),
    /// `dscp`: bit i for code point i.
    Dscp(u64),
    /// `dscp tablearg`.
    DscpTable,
    /// `tcpflags`: bits as in the TCP header (fin 1, syn 2, rst 4, psh 8, ack 16, urg 32). `setup` is set syn, clear ack.
    TcpFlags(Bits),
    /// `established`: RST or ACK.
    Established,
    /// `tcpoptions`: bits mss 1, window 2, sack 4, ts 8, cc 16.
    TcpOptions(Bits),
    /// `tcpseq`.
    TcpSequence(u32),
    /// `tcpack`.
    TcpAcknowledgement(u32),
    /// `tcpwin`.
    TcpWindow(Numbers),
    /// `tcpdatalen`.
    TcpDataLength(Numbers),
    /// `tcpmss`: the MSS option of a SYN.
    TcpMss(Numbers),
    /// `icmptypes`: bit i for type i, 0 to 31.
    IcmpTypes(u32),
    /// `icmp6types`: bit i for type i, 0 to 255.
    Icmp6Types([u64; 4]),
    /// `ext6hdr`: bits frag 1, hopopt 2, route 4, dstopt 8, ah 16, esp 32, rthdr0 64, rthdr2 128.
    ExtensionHeaders(u8),
    /// `flow-id`: one of these flow labels.
    FlowId(Vec<u32>),
    /// `verrevpath`.
    VerifyReversePath,
    /// `versrcreach`.
    VerifySourceReach,
    /// `antispoof`.
    AntiSpoof,
    /// `fib N`.
    Fib(Argument),
    /// `tagged LIST`.
    Tagged(Numbers),
    /// `mark VALUE[:MASK]`.
    Mark(Argument, u32),
    /// `uid`, `gid`, `jail`.
    Owner(OwnerKind, String),
    /// `ipsec`: came through IPsec; there is none here, so it never matches.
    Ipsec,
    /// `diverted`, `diverted-loopback`, `diverted-output`: there is no divert here, so they never match.
    Diverted {
        /// From loopback reinjection.
        loopback: bool,
        /// From output reinjection.
        output: bool,
    },
    /// `sockarg`: the value of the socket that owns the packet; a forwarded one has none.
    SocketArgument,
}
