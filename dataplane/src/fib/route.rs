#![forbid(unsafe_code)]
//! What a route says, and why one is refused.

use super::prefix::{PortId, Prefix};
use smallvec::SmallVec;
use std::net::IpAddr;
use thiserror::Error;

/// One way out of the box.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NextHop {
    /// The port to send on.
    pub port: PortId,
    /// The neighbour to send to, of either family (RFC 8950); `None`: the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// Share of the flows among the next hops of one route, 1 or more.
    pub weight: u16,
    /// Take the gateway's being on the link for granted: the kernel has checked it, or the administrator says so
    /// (`onlink`). Otherwise a connected subnet of `port` must hold it.
    pub on_link: bool,
}

/// What a route does with a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum RouteKind {
    /// Send it to a next hop; to one of several by the flow hash.
    Via(SmallVec<[NextHop; 4]>),
    /// The destination is on the link of this port.
    Connected {
        /// The port.
        port: PortId,
    },
    /// The destination is an address of this box.
    Local {
        /// The port that has the address.
        port: PortId,
    },
    /// A directed broadcast.
    Broadcast,
    /// Drop without a word.
    Blackhole,
    /// Drop, host unreachable.
    Unreachable,
    /// Drop, administratively prohibited.
    Prohibit,
    /// The next hop is on an interface that is no port: the host's stack forwards it.
    HostVia,
}

impl RouteKind {
    /// A route through one neighbour, which a connected subnet of `port` must hold.
    pub fn via(port: PortId, gateway: IpAddr) -> RouteKind {
        RouteKind::Via(SmallVec::from_slice(&[NextHop { port, gateway: Some(gateway), weight: 1, on_link: false }]))
    }
}

/// Why a change was refused; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RouteError {
    /// The length does not fit the family.
    #[error("prefix length {length} is more than the {bits} bits of an address")]
    BadLength {
        /// Length asked for.
        length: u8,
        /// Longest possible.
        bits: u8,
    },
    /// The prefix lies among addresses that a router never forwards.
    #[error("{prefix} lies in {reserved}, which is never forwarded (RFC 1812 5.3.7, RFC 6890): remove the route")]
    Reserved {
        /// Prefix asked for.
        prefix: Prefix,
        /// The built-in entry around it.
        reserved: Prefix,
    },
    /// The route leads nowhere.
    #[error("the route has no next hop: give a gateway or a port")]
    NoNextHop,
    /// More next hops than buckets.
    #[error("the route has {count} next hops, at most 64 are possible")]
    TooManyNextHops {
        /// Next hops asked for.
        count: usize,
    },
    /// A next hop of weight zero.
    #[error("a next hop has weight 0: give 1 or more, or leave it out")]
    ZeroWeight,
    /// The port was never set.
    #[error("port {} is not known: set the port before the routes through it", port.0)]
    UnknownPort {
        /// The port.
        port: PortId,
    },
    /// The gateway is not on a link of the port.
    #[error("gateway {gateway} is in no connected subnet of port {}: add the subnet first, or mark the next hop onlink", port.0)]
    GatewayNotConnected {
        /// The gateway.
        gateway: IpAddr,
        /// The port asked for.
        port: PortId,
    },
    /// The gateway is this box.
    #[error("gateway {gateway} is an address of this box: give the neighbour's")]
    GatewayIsLocal {
        /// The gateway.
        gateway: IpAddr,
    },
    /// There is no such route.
    #[error("no route {prefix} with metric {metric}")]
    NoSuchRoute {
        /// Prefix asked for.
        prefix: Prefix,
        /// Metric asked for.
        metric: u32,
    },
    /// All adjacencies are in use.
    #[error("the adjacency table is full: start with more adjacencies, or use fewer distinct next hops")]
    AdjacenciesFull,
    /// All multipath groups are in use.
    #[error("all multipath groups are in use: start with more, or use fewer distinct sets of next hops")]
    MultipathFull,
    /// The forwarding table has no room for the prefix.
    #[error("the forwarding table has no room for {prefix}: use fewer prefixes longer than /24")]
    TableFull {
        /// Prefix that did not fit.
        prefix: Prefix,
    },
    /// As many routes of the family as were allowed.
    #[error("there are {most} routes of this family, the limit that was set: raise it ([limits] in gateway.toml)")]
    LimitReached {
        /// The limit.
        most: usize,
    },
}
