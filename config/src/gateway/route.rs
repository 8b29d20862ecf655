#![forbid(unsafe_code)]
//! What the blocks `[[route]]` and `[[neighbor]]` say: the static tables of standalone mode.

use super::address::MacAddress;
use crate::span::{Located, Place};
use ipnetwork::IpNetwork;
use std::net::IpAddr;

/// Most next hops of one route.
pub const NEXT_HOPS_MAX: usize = 64;

/// One block `[[route]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The header of the block.
    pub place: Place,
    /// `to`: a prefix without host bits, an address, or `"default"` (the family is that of `via`).
    pub to: Located<IpNetwork>,
    /// `type`, with `via` and `port` for the first.
    pub kind: RouteKind,
    /// `metric`: of routes to the same prefix the one with the least is used. Default 0.
    pub metric: u32,
}

/// `type`: what happens to packets of a route.
#[derive(Clone, Debug, PartialEq)]
pub enum RouteKind {
    /// `"unicast"` (the default): they are sent on.
    Unicast {
        /// `via`: next hops, each within a subnet of an interface (or link-local, with `port`); several share the flows
        /// equally. Empty: the destinations are on the link of `port`.
        via: Vec<Located<IpAddr>>,
        /// `port`: the interface. Default: the one whose subnet holds `via`.
        port: Option<Located<String>>,
    },
    /// `"blackhole"`: dropped in silence.
    Blackhole,
    /// `"unreachable"`: dropped, with an ICMP error "host unreachable".
    Unreachable,
    /// `"prohibit"`: dropped, with an ICMP error "administratively prohibited".
    Prohibit,
}

impl RouteKind {
    /// As written in the file.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unicast { .. } => "unicast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
        }
    }
}

/// One block `[[neighbor]]`: a neighbour that is not asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbor {
    /// The header of the block.
    pub place: Place,
    /// `port`: the interface.
    pub port: Located<String>,
    /// `address`: within a subnet of that interface, or link-local.
    pub address: Located<IpAddr>,
    /// `mac`: its Ethernet address.
    pub mac: Located<MacAddress>,
}
