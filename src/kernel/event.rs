//! What the kernel side tells the packet path.
#![forbid(unsafe_code)]

use ipnetwork::IpNetwork;
use std::net::IpAddr;
use std::sync::Arc;

pub use ferrule_dataplane::packet::PortId;

/// A change of the kernel's control plane. The order in which a batch of events is given is safe to apply one by one:
/// links first, then new addresses, neighbours, new and changed routes, withdrawn routes, removed addresses, lost links.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A link is new or changed.
    LinkChange(LinkState),
    /// A link has disappeared.
    LinkGone {
        /// Its kernel index.
        ifindex: u32,
        /// The port it was the host interface of.
        port: Option<PortId>,
    },
    /// An address of the box, with the length of its network: new, or changed in `port` or `primary` (an IPv6 address
    /// becomes usable when duplicate address detection ends).
    AddressAdd {
        /// Kernel index of its link.
        ifindex: u32,
        /// The port that link is the host interface of.
        port: Option<PortId>,
        /// The address and its network's prefix length.
        address: IpNetwork,
        /// First of its family and network on the link, as `ip address` orders them: the source of ICMP errors.
        primary: bool,
    },
    /// An address is gone.
    AddressDelete {
        /// Kernel index of its link.
        ifindex: u32,
        /// The port that link is the host interface of.
        port: Option<PortId>,
        /// The address and its network's prefix length.
        address: IpNetwork,
    },
    /// A neighbour on a port changed.
    Neighbor {
        /// Kernel index of the host interface.
        ifindex: u32,
        /// The port.
        port: PortId,
        /// The neighbour's address.
        address: IpAddr,
        /// Whether packets may be sent to it.
        state: NeighborState,
        /// Its MAC, when known.
        lladdr: Option<[u8; 6]>,
    },
    /// The route in force for exactly this prefix, over all tables and metrics that the kernel would consult. There is
    /// one for each prefix: it replaces whatever was in force for the prefix before.
    RouteReplace {
        /// The destination.
        prefix: IpNetwork,
        /// The kernel's metric, for display: the choice between metrics has been made.
        metric: u32,
        /// What to do with packets.
        action: Arc<RouteAction>,
    },
    /// No route is in force for exactly this prefix any more; shorter ones apply.
    RouteDelete {
        /// The destination.
        prefix: IpNetwork,
    },
    /// Everything that the kernel had when a full dump was taken has been given out.
    Synchronized,
}

/// What is known of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkState {
    /// Kernel index.
    pub ifindex: u32,
    /// The port it is the host interface of.
    pub port: Option<PortId>,
    /// Interface name.
    pub name: String,
    /// MAC address, for links that have one of six bytes.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Set up by the administrator (IFF_UP).
    pub up: bool,
    /// Has a carrier (IFF_LOWER_UP).
    pub carrier: bool,
    /// Kind, such as "veth", "tun" or "vlan", for virtual links.
    pub kind: Option<String>,
}

/// May packets be sent to a neighbour?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighborState {
    /// Yes: REACHABLE, STALE, DELAY, PROBE, PERMANENT or NOARP in the kernel.
    Usable,
    /// The kernel is asking: INCOMPLETE. Packets wait.
    Incomplete,
    /// It did not answer: FAILED. Packets are answered with host unreachable.
    Failed,
    /// The kernel has forgotten it.
    Gone,
}

/// One next hop of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Kernel index of the link it leads through.
    pub ifindex: u32,
    /// The port that link is the host interface of; none means that the packet must go to the host, which sends it.
    pub port: Option<PortId>,
    /// The router's address; none for a directly connected network. May be IPv6 for an IPv4 route (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// Share of the flows, 1 to 65535.
    pub weight: u16,
}

/// What a route does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RouteAction {
    /// To one or several next hops of which at least one is on a port.
    Forward(Vec<Hop>),
    /// All next hops are on links that are no port: the host forwards these packets, if it wants to. `doctor` names them.
    HostVia(Vec<Hop>),
    /// To the box itself; also anycast.
    Local {
        /// Link that has the address.
        ifindex: u32,
    },
    /// A broadcast address of a link.
    Broadcast {
        /// That link.
        ifindex: u32,
    },
    /// A multicast route: the packet path's own multicast rules apply.
    Multicast,
    /// Dropped silently.
    Blackhole,
    /// Dropped, answered with host unreachable (IPv6: no route). Also the hole that an uncaught throw route makes.
    Unreachable,
    /// Dropped, answered with communication administratively prohibited.
    Prohibit,
}

/// Takes the events; called on the control thread.
pub trait ControlSink: Send {
    /// Applies one batch, in order. The sink may take the events out.
    fn apply(&mut self, events: &mut Vec<Event>);
}

impl<F: FnMut(&mut Vec<Event>) + Send> ControlSink for F {
    fn apply(&mut self, events: &mut Vec<Event>) {
        self(events)
    }
}
