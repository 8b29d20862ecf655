#![forbid(unsafe_code)]
//! Look-up tables of ipfw(8): what kinds there are, what keys and values they hold.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;

use super::ast::ValueKind;

/// What a table is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum TableKind {
    /// `addr`: IPv4 and IPv6 prefixes, longest match.
    Address,
    /// `iface`: interface names.
    Interface,
    /// `number`: 32-bit numbers.
    Number,
    /// `flow[:FIELDS]`: exact flows over these fields.
    Flow(FlowFields),
    /// `mac`: MAC prefixes, longest match.
    Mac,
}

/// Fields of a flow table (`flow:src-ip,proto,src-port,dst-ip,dst-port`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FlowFields {
    /// `src-ip`
    pub source_address: bool,
    /// `src-port`
    pub source_port: bool,
    /// `proto`
    pub protocol: bool,
    /// `dst-ip`
    pub destination_address: bool,
    /// `dst-port`
    pub destination_port: bool,
}

/// Options of `table NAME create`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableOptions {
    /// `type`
    pub kind: TableKind,
    /// `valtype`, in FreeBSD's order; empty where it was not given (the `legacy` kind: one number that serves as all).
    pub values: Vec<ValueKind>,
    /// `algo`, accepted, printed and without effect: there is one algorithm for each kind.
    pub algorithm: Option<String>,
    /// `limit`: most entries, 0 for no limit.
    pub limit: u32,
    /// `locked`
    pub locked: bool,
    /// `missing`: creating what exists with the same options is no error.
    pub missing: bool,
    /// `or-flush`: flushes what exists.
    pub or_flush: bool,
}

/// Key of one entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TableKey {
    /// IPv4 prefix; host bits zero.
    V4(Ipv4Addr, u8),
    /// IPv6 prefix; host bits zero.
    V6(Ipv6Addr, u8),
    /// Interface name.
    Interface(String),
    /// Number.
    Number(u32),
    /// MAC prefix of this many bits.
    Mac([u8; 6], u8),
    /// Flow; fields that the table does not have are zero.
    Flow {
        /// Source, of the same family as the destination.
        source: std::net::IpAddr,
        /// Destination.
        destination: std::net::IpAddr,
        /// Protocol.
        protocol: u8,
        /// Source port.
        source_port: u16,
        /// Destination port.
        destination_port: u16,
    },
}

/// Value of one entry. A legacy value sets every number to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TableValue {
    /// `skipto`, also the legacy number.
    pub skipto: u32,
    /// `pipe`
    pub pipe: u32,
    /// `fib`
    pub fib: u32,
    /// `nat`
    pub nat: u32,
    /// `dscp`
    pub dscp: u8,
    /// `tag`
    pub tag: u32,
    /// `divert`
    pub divert: u32,
    /// `netgraph`
    pub netgraph: u32,
    /// `limit`
    pub limit: u32,
    /// `ipv4`: next hop.
    pub ipv4: Ipv4Addr,
    /// `ipv6`: next hop.
    pub ipv6: Ipv6Addr,
    /// `mark`
    pub mark: u32,
}

impl Default for TableValue {
    fn default() -> Self {
        TableValue {
            skipto: 0,
            pipe: 0,
            fib: 0,
            nat: 0,
            dscp: 0,
            tag: 0,
            divert: 0,
            netgraph: 0,
            limit: 0,
            ipv4: Ipv4Addr::UNSPECIFIED,
            ipv6: Ipv6Addr::UNSPECIFIED,
            mark: 0,
        }
    }
}
