#![forbid(unsafe_code)]
//! What comes out of a pass.

use std::net::IpAddr;

use super::pass::Direction;

/// What happens to the packet. For refusals it says what is sent, not the bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on.
    Allow,
    /// Is dropped.
    Deny,
    /// Is dropped, and an ICMP "unreachable" goes to its sender.
    Unreach {
        /// ICMP code.
        code: u8,
        /// MTU of `needfrag`.
        mtu: Option<u16>,
    },
    /// Is dropped, and an ICMPv6 "unreachable" goes to its sender.
    Unreach6 {
        /// ICMPv6 code.
        code: u8,
    },
    /// Is dropped, and a TCP RST goes to its sender.
    Reset,
    /// Is dropped, and an SCTP ABORT goes to its sender.
    Abort,
    /// Goes on to this next hop (and, for packets to the box, port; 0 is none). A `fwd` of the other family is [`Verdict::Allow`].
    Forward(IpAddr, u16),
    /// To this instance of NAT.
    Nat(u32),
    /// To the instances of NAT one after the other (`nat global`).
    NatGlobal,
    /// To a pipe.
    Pipe(u32),
    /// To a queue.
    Queue(u32),
    /// An IPv4 fragment goes to reassembly.
    Reassemble,
    /// To a netgraph hook.
    Netgraph(u32),
    /// A copy to a netgraph hook.
    NgTee(u32),
    /// To a divert port.
    Divert(u32),
    /// A copy to a divert port.
    Tee(u32),
}

/// Where to go on with a packet that comes back from a pipe, from NAT or from reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Index of the rule behind which to go on.
    pub after: usize,
    /// Whether it is not judged again (`net.inet.ip.fw.one_pass` when the rule matched).
    pub done: bool,
}

/// Outcome of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What happens.
    pub verdict: Verdict,
    /// Index of the rule that decided; None where the packet was unreadable or the layer has no passes.
    pub rule: Option<usize>,
    /// For verdicts after which the packet may come back.
    pub resume: Option<Resume>,
}

impl Outcome {
    /// A verdict of no rule.
    pub fn ruleless(verdict: Verdict) -> Self {
        Outcome { verdict, rule: None, resume: None }
    }
}

/// Counters of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes, as IP counts them.
    pub bytes: u64,
    /// Second of the last hit; None before the first.
    pub last: Option<u64>,
}

/// An entry that a `log` rule wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Number of the rule.
    pub rule: u16,
    /// Direction.
    pub direction: Direction,
    /// Interface of the pass.
    pub interface: Option<String>,
    /// Source and its port.
    pub source: (IpAddr, u16),
    /// Destination and its port.
    pub destination: (IpAddr, u16),
    /// Protocol.
    pub protocol: u8,
}
