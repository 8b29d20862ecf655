//! rtnetlink messages as our own structs: links, addresses, routes, nexthop objects, neighbours (rtnetlink(7),
//! linux/rtnetlink.h, linux/nexthop.h, linux/neighbour.h).
#![forbid(unsafe_code)]

use super::event::NeighborState;
use super::wire::{Attributes, Frame, u16_at, u32_at};
use ipnetwork::IpNetwork;
use std::net::IpAddr;

// Not in the libc crate; values from linux/rtnetlink.h and linux/nexthop.h.
pub(crate) const RTM_NEWNEXTHOP: u16 = 104;
pub(crate) const RTM_DELNEXTHOP: u16 = 105;
pub(crate) const RTM_GETNEXTHOP: u16 = 106;
pub(crate) const RTA_NH_ID: u16 = 30;
pub(crate) const NHA_ID: u16 = 1;
const NHA_GROUP: u16 = 2;
const NHA_BLACKHOLE: u16 = 4;
pub(crate) const NHA_OIF: u16 = 5;
const NHA_GATEWAY: u16 = 6;
const NHA_ENCAP: u16 = 8;
const NHA_FDB: u16 = 11;
/// `RTM_F_CLONED`: a cache entry (path MTU, redirect), not a route.
const RTM_F_CLONED: u32 = 0x200;
/// Lengths of the fixed headers in bytes.
pub(crate) const IFINFOMSG: usize = 16;
pub(crate) const IFADDRMSG: usize = 8;
pub(crate) const RTMSG: usize = 12;
pub(crate) const NDMSG: usize = 12;
pub(crate) const NHMSG: usize = 8;

/// A link (RTM_NEWLINK).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) ifindex: u32,
    pub(crate) name: String,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    pub(crate) flags: u32,
    pub(crate) kind: Option<String>,
    pub(crate) master: Option<u32>,
    /// Receive and transmit queues that the device was made with.
    pub(crate) queues: (u32, u32),
    /// `ignore_routes_with_linkdown`: routes through this link rest while it has no carrier.
    pub(crate) ignore_linkdown: bool,
}

impl Link {
    pub(crate) fn parse(frame: &Frame<'_>) -> Option<Link> {
        let (header, attributes) = frame.split(IFINFOMSG)?;
        if header[0] != libc::AF_UNSPEC as u8 {
            return None; // Bridge port and per-family notifications share the type.
        }
        Some(Link {
            ifindex: u32_at(header, 4)?,
            flags: u32_at(header, 8)?,
            name: attributes.string(libc::IFLA_IFNAME)?,
            mac: attributes.get(libc::IFLA_ADDRESS).and_then(|data| data.try_into().ok()),
            mtu: attributes.u32(libc::IFLA_MTU).unwrap_or(0),
            kind: attributes.nested(libc::IFLA_LINKINFO).and_then(|info| info.string(libc::IFLA_INFO_KIND)),
            master: attributes.u32(libc::IFLA_MASTER),
            queues: (
                attributes.u32(libc::IFLA_NUM_RX_QUEUES).unwrap_or(1),
                attributes.u32(libc::IFLA_NUM_TX_QUEUES).unwrap_or(1),
            ),
            ignore_linkdown: ignores_linkdown(attributes),
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    pub(crate) fn has_carrier(&self) -> bool {
        self.flags & libc::IFF_LOWER_UP as u32 != 0
    }
}

/// Reads the IPv4 device setting out of IFLA_AF_SPEC: AF_INET: IFLA_INET_CONF, an array indexed by IPV4_DEVCONF_* - 1.
fn ignores_linkdown(attributes: Attributes<'_>) -> bool {
    const IFLA_INET_CONF: u16 = 1;
    const IGNORE_ROUTES_WITH_LINKDOWN: usize = 29;
    let conf = attributes
        .nested(libc::IFLA_AF_SPEC)
        .and_then(|families| families.nested(libc::AF_INET as u16))
        .and_then(|inet| inet.get(IFLA_INET_CONF));
    conf.and_then(|data| u32_at(data, (IGNORE_ROUTES_WITH_LINKDOWN - 1) * 4)).is_some_and(|value| value != 0)
}

/// An address (RTM_NEWADDR).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ifindex: u32,
    pub(crate) network: IpNetwork,
    pub(crate) flags: u32,
}

impl Address {
    pub(crate) fn parse(frame: &Frame<'_>) -> Option<Address> {
        let (header, attributes) = frame.split(IFADDRMSG)?;
        // On point-to-point links IFA_ADDRESS is the peer; the address of the box is IFA_LOCAL.
        let data = attributes.get(libc::IFA_LOCAL).or_else(|| attributes.get(libc::IFA_ADDRESS))?;
        Some(Address {
            ifindex: u32_at(header, 4)?,
            network: IpNetwork::new(address(data)?, header[1]).ok()?,
            flags: attributes.u32(libc::IFA_FLAGS).unwrap_or(u32::from(header[2])),
        })
    }

    /// A secondary IPv4 address of its network, or an IPv6 address that must not be used as a source.
    pub(crate) fn is_primary(&self) -> bool {
        self.flags & (libc::IFA_F_SECONDARY | libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) == 0
    }
}

/// One next hop as the kernel gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RawHop {
    pub(crate) ifindex: u32,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) weight: u16,
    /// Needs an encapsulation (lightweight tunnel, MPLS), which only the host can do.
    pub(crate) encapsulated: bool,
}

/// Where a route leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Hops {
    /// The route's own next hops; empty for blackhole and the like.
    Own(Vec<RawHop>),
    /// A nexthop object or group.
    Object(u32),
}

/// All of a route but its destination and table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RouteEntry {
    pub(crate) metric: u32,
    /// `rtm_type`, RTN_*.
    pub(crate) kind: u8,
    pub(crate) protocol: u8,
    pub(crate) tos: u8,
    /// IPv6 router preference: 1 high, 0 medium, 3 low (RFC 4191).
    pub(crate) preference: u8,
    pub(crate) hops: Hops,
}

/// A route message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) table: u32,
    pub(crate) prefix: IpNetwork,
    pub(crate) entry: RouteEntry,
    /// Has a source prefix (IPv6 source-specific routing), which the packet path does not look at.
    pub(crate) source_specific: bool,
}

impl Route {
    /// `None` for cache entries, multicast routing and malformed messages.
    pub(crate) fn parse(frame: &Frame<'_>) -> Option<Route> {
        let (header, attributes) = frame.split(RTMSG)?;
        let family = i32::from(header[0]);
        if (family != libc::AF_INET && family != libc::AF_INET6) || u32_at(header, 8)? & RTM_F_CLONED != 0 {
            return None;
        }
        let destination = match attributes.get(libc::RTA_DST) {
            Some(data) => address(data)?,
            None if family == libc::AF_INET => IpAddr::from([0u8; 4]),
            None => IpAddr::from([0u8; 16]),
        };
        let mut hops = Vec::new();
        let object = attributes.u32(RTA_NH_ID).filter(|id| *id != 0);
        if let Some(data) = attributes.get(libc::RTA_MULTIPATH) {
            parse_multipath(data, &mut hops);
        } else if let Some(ifindex) = attributes.u32(libc::RTA_OIF) {
            hops.push(parse_hop(ifindex, 1, attributes));
        }
        if family == libc::AF_INET6 {
            // The kernel lists an IPv6 set from any of its members on; in a fixed order the spread of flows stays put.
            hops.sort_by_key(|hop| (hop.ifindex, hop.gateway));
        }
        Some(Route {
            table: attributes.u32(libc::RTA_TABLE).unwrap_or(u32::from(header[4])),
            prefix: IpNetwork::new(destination, header[1]).ok()?,
            entry: RouteEntry {
                metric: attributes.u32(libc::RTA_PRIORITY).unwrap_or(0),
                kind: header[7],
                protocol: header[5],
                tos: header[3],
                preference: attributes.get(libc::RTA_PREF).and_then(|data| data.first().copied()).unwrap_or(0),
                hops: object.map_or(Hops::Own(hops), Hops::Object),
            },
            source_specific: header[2] != 0,
        })
    }
}

/// Walks `struct rtnexthop`s: length (2), flags (1), weight - 1 (1), ifindex (4), attributes.
fn parse_multipath(mut data: &[u8], hops: &mut Vec<RawHop>) {
    while let (Some(length), Some(ifindex)) = (u16_at(data, 0), u32_at(data, 4)) {
        let length = usize::from(length);
        let Some(attributes) = data.get(8..length) else { return };
        hops.push(parse_hop(ifindex, u16::from(data[3]) + 1, Attributes(attributes)));
        data = data.get((length + 3) & !3..).unwrap_or(&[]);
    }
}

fn parse_hop(ifindex: u32, weight: u16, attributes: Attributes<'_>) -> RawHop {
    // RTA_VIA (RFC 8950 style gateways): family (2), address.
    let via = attributes.get(libc::RTA_VIA).and_then(|data| data.get(2..)).and_then(address);
    RawHop {
        ifindex,
        gateway: attributes.get(libc::RTA_GATEWAY).and_then(address).or(via),
        weight,
        encapsulated: attributes.get(libc::RTA_ENCAP).is_some(),
    }
}

/// A nexthop object (ip-nexthop(8)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NextHopObject {
    /// One next hop.
    Single(RawHop),
    /// Several others, by id, with weights.
    Group(Vec<(u32, u16)>),
    /// Drops.
    Blackhole,
    /// Belongs to a bridge's forwarding table, no route uses it.
    Foreign,
}

/// Reads RTM_NEWNEXTHOP and RTM_DELNEXTHOP: id and object.
pub(crate) fn parse_nexthop(frame: &Frame<'_>) -> Option<(u32, NextHopObject)> {
    let (_, attributes) = frame.split(NHMSG)?;
    let id = attributes.u32(NHA_ID)?;
    let object = if let Some(group) = attributes.get(NHA_GROUP) {
        // struct nexthop_grp: id (4), weight - 1 low byte (1), high byte (1, Linux 6.12), reserved (2).
        let member = |entry: &[u8]| {
            let weight = (u16::from(entry[4]) | u16::from(entry[5]) << 8).saturating_add(1);
            u32_at(entry, 0).map(|id| (id, weight))
        };
        NextHopObject::Group(group.chunks_exact(8).filter_map(member).collect())
    } else if attributes.get(NHA_BLACKHOLE).is_some() {
        NextHopObject::Blackhole
    } else if attributes.get(NHA_FDB).is_some() {
        NextHopObject::Foreign
    } else {
        NextHopObject::Single(RawHop {
            ifindex: attributes.u32(NHA_OIF).unwrap_or(0),
            gateway: attributes.get(NHA_GATEWAY).and_then(address),
            weight: 1,
            encapsulated: attributes.get(NHA_ENCAP).is_some(),
        })
    };
    Some((id, object))
}

/// A neighbour (RTM_NEWNEIGH).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Neighbor {
    pub(crate) ifindex: u32,
    pub(crate) address: IpAddr,
    pub(crate) state: NeighborState,
    pub(crate) lladdr: Option<[u8; 6]>,
}

impl Neighbor {
    pub(crate) fn parse(frame: &Frame<'_>) -> Option<Neighbor> {
        let (header, attributes) = frame.split(NDMSG)?;
        let family = i32::from(header[0]);
        if (family != libc::AF_INET && family != libc::AF_INET6) || header[10] & libc::NTF_PROXY != 0 {
            return None;
        }
        let found = address(attributes.get(libc::NDA_DST)?)?;
        if found.is_multicast() || found == IpAddr::V4(std::net::Ipv4Addr::BROADCAST) {
            return None; // The kernel's own entries for groups; their MAC follows from the address.
        }
        let lladdr = attributes.get(libc::NDA_LLADDR).and_then(|data| data.try_into().ok());
        let usable = libc::NUD_REACHABLE
            | libc::NUD_STALE
            | libc::NUD_DELAY
            | libc::NUD_PROBE
            | libc::NUD_PERMANENT
            | libc::NUD_NOARP;
        let state = match u16_at(header, 8)? {
            state if state & usable != 0 && lladdr.is_some() => NeighborState::Usable,
            state if state & libc::NUD_INCOMPLETE != 0 => NeighborState::Incomplete,
            state if state & libc::NUD_FAILED != 0 => NeighborState::Failed,
            _ => NeighborState::Gone,
        };
        Some(Neighbor {
            ifindex: u32_at(header, 4)?,
            address: found,
            state,
            lladdr: lladdr.filter(|_| state == NeighborState::Usable),
        })
    }
}

/// An IPv4 or IPv6 address by the length of its bytes.
pub(crate) fn address(data: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(data) {
        return Some(octets.into());
    }
    <[u8; 16]>::try_from(data).ok().map(IpAddr::from)
}

/// The bytes of an address as attributes carry them.
pub(crate) fn address_bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
