#![forbid(unsafe_code)]
//! What an instance tells of itself.

use std::fmt;
use std::net::Ipv4Addr;

use super::flow::{ICMP, SCTP, TCP, UDP};
use super::state::{State, UNSOLICITED};

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropCause {
    /// `deny_in`, and no state or redirection.
    Denied,
    /// No free port or identifier for this peer.
    NoPort,
    /// No room for another state.
    TableFull,
    /// A fragment from outside whose first fragment did not come by.
    UnresolvedFragment,
    /// `if`: the interface has had no IPv4 address yet.
    NoAddress,
}

impl DropCause {
    /// Every cause, in order of its number.
    pub const ALL: [DropCause; 5] = [
        DropCause::Denied,
        DropCause::NoPort,
        DropCause::TableFull,
        DropCause::UnresolvedFragment,
        DropCause::NoAddress,
    ];

    /// The name in listings and metrics.
    pub fn label(self) -> &'static str {
        match self {
            DropCause::Denied => "denied",
            DropCause::NoPort => "no_port",
            DropCause::TableFull => "table_full",
            DropCause::UnresolvedFragment => "unresolved_fragment",
            DropCause::NoAddress => "no_address",
        }
    }
}

/// Packets and states of one instance on one worker, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets changed in an `in` pass.
    pub translated_in: u64,
    /// Packets changed in an `out` pass.
    pub translated_out: u64,
    /// Packets passed as they were.
    pub unchanged: u64,
    /// Packets refused, by [`DropCause`].
    pub dropped: [u64; DropCause::ALL.len()],
    /// States made.
    pub created: u64,
    /// States that ended for want of packets.
    pub expired: u64,
    /// Packets from outside that nobody asked for and that passed without a state: there was no room for it.
    pub unrecorded: u64,
}

impl std::ops::AddAssign for Counters {
    /// The sum over workers.
    fn add_assign(&mut self, more: Counters) {
        self.translated_in += more.translated_in;
        self.translated_out += more.translated_out;
        self.unchanged += more.unchanged;
        self.dropped.iter_mut().zip(more.dropped).for_each(|(sum, n)| *sum += n);
        self.created += more.created;
        self.expired += more.expired;
        self.unrecorded += more.unrecorded;
    }
}

/// States by kind. Its text is the line of libalias's log, which `ipfw nat N show log` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// ICMP echoes and time-stamps.
    pub icmp: usize,
    /// UDP.
    pub udp: usize,
    /// TCP.
    pub tcp: usize,
    /// SCTP.
    pub sctp: usize,
    /// Other protocols.
    pub other: usize,
    /// Fragmented datagrams.
    pub fragment: usize,
}

impl LinkCounts {
    pub(super) fn add(&mut self, protocol: u8, change: isize) {
        let count = match protocol {
            ICMP => &mut self.icmp,
            UDP => &mut self.udp,
            TCP => &mut self.tcp,
            SCTP => &mut self.sctp,
            _ => &mut self.other,
        };
        *count = count.saturating_add_signed(change);
    }

    /// All together.
    pub fn total(&self) -> usize {
        self.icmp + self.udp + self.tcp + self.sctp + self.other + self.fragment
    }
}

impl std::ops::AddAssign for LinkCounts {
    /// The sum over workers.
    fn add_assign(&mut self, more: LinkCounts) {
        self.icmp += more.icmp;
        self.udp += more.udp;
        self.tcp += more.tcp;
        self.sctp += more.sctp;
        self.other += more.other;
        self.fragment += more.fragment;
    }
}

impl fmt::Display for LinkCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkCounts { icmp, udp, tcp, sctp, other, fragment } = self;
        write!(
            f,
            "icmp={icmp}, udp={udp}, tcp={tcp}, sctp={sctp}, pptp=0, proto={other}, frag_id={fragment} frag_ptr=0 / tot={}",
            self.total()
        )
    }
}

/// One state, as a listing shows it. Ports of an ICMP flow are identifiers; protocols without ports have 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// IP protocol.
    pub protocol: u8,
    /// The inside host.
    pub inside: (Ipv4Addr, u16),
    /// What it looks like outside.
    pub alias: (Ipv4Addr, u16),
    /// The peer.
    pub remote: (Ipv4Addr, u16),
    /// Made by a packet from outside that nobody asked for.
    pub unsolicited: bool,
    /// How far a TCP connection is; empty for other protocols.
    pub tcp: &'static str,
    /// Seconds until it ends without a packet.
    pub expires: u32,
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of both directions, from the IP header on.
    pub bytes: u64,
}

impl StateInfo {
    pub(super) fn new(state: &State, now: u32) -> StateInfo {
        StateInfo {
            protocol: state.protocol,
            inside: (state.inside.into(), state.inside_port),
            alias: (state.alias.into(), state.alias_port),
            remote: (state.remote.into(), state.remote_port),
            unsolicited: state.flags & UNSOLICITED != 0,
            tcp: if state.protocol == TCP { state.tcp.label() } else { "" },
            expires: state.life.seconds().saturating_sub(now.wrapping_sub(state.used)),
            packets: state.packets,
            bytes: state.bytes,
        }
    }
}
