//! The Linux kernel as Ferrule's control plane.
//!
//! Four parts, each usable alone:
//! - [`Monitor`] and [`Follower`] mirror the kernel's links, addresses, rules, routes, nexthop objects and neighbours
//!   over netlink and turn every change into an [`Event`] for the packet path. They also ask the kernel to resolve
//!   neighbours and keep asking while a next hop is in use.
//! - [`HostInterface`] puts a TAP in the place of a NIC: its name, MAC, MTU, addresses and routes, with every changed
//!   setting recorded so that it can be put back, also after a kill.
//! - [`KernelFilter`] keeps the kernel from receiving a NIC's packets a second time and from forwarding between ports.
//! - [`doctor`] gathers facts about devices and host, names what is wrong and says what to type.
//!
//! All of it runs on control threads, never on a worker. The sockets belong to the network namespace of the thread that
//! opens them.
#![forbid(unsafe_code)]

pub mod doctor;
mod error;
mod ethtool;
mod event;
mod filter;
mod follower;
mod iface;
mod message;
mod mirror;
mod monitor;
mod neighbor;
mod publish;
mod resolve;
mod rules;
mod socket;
mod sysctl;
mod wire;

pub use error::KernelError;
pub use event::{ControlSink, Event, Hop, LinkState, NeighborState, PortId, RouteAction};
pub use filter::KernelFilter;
pub use follower::{Follower, FollowerHandle};
pub use iface::{
    ChosenRecords, HostInterface, Left, OnExit, OwnRecords, RecordKeeper, SilencedNic, Takeover, TakeoverOptions, left,
    release_all, remove_vlan_record, restore_left,
};
pub use monitor::{Counters, Monitor, MonitorOptions};
pub use neighbor::{ResolutionMode, Resolver};
pub use rules::Unsupported;
pub use sysctl::forwards_ipv4;

/// What the NIC of this name is called while a host interface has its name.
pub fn nic_name(device: &str) -> String {
    format!("{device}{}", iface::SUFFIX)
}

/// What the kernel says of one link now; None where there is none of that name.
pub fn link_state(name: &str) -> Option<LinkState> {
    let link = iface::find_link(name)?;
    let flag = |f: i32| link.flags & f as u32 != 0;
    Some(LinkState {
        ifindex: link.ifindex,
        port: None,
        name: link.name.clone(),
        mac: link.mac,
        mtu: link.mtu,
        up: flag(libc::IFF_UP),
        carrier: flag(libc::IFF_LOWER_UP),
        kind: link.kind.clone(),
    })
}

/// Whether a device takes VLAN tags out of frames (rxvlan), so that AF_XDP sees frames of all VLANs as untagged ones.
pub fn strips_vlan_tags(ifindex: u32) -> bool {
    iface::strips_tags(ifindex)
}
