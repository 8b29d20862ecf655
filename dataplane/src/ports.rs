//! The table of ports as workers see it: names are fixed for a run, MAC, MTU, state and addresses follow the kernel.

#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;

pub use crate::fib::prefix::{MacAddress, VlanTag};
use crate::packet::PortId;

/// The first eight bytes of a frame, masked to its destination address.
pub const MAC_MASK: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);

/// Addresses of a port that Ferrule itself uses: as the source of its ICMP errors, and in standalone mode to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortAddresses {
    /// IPv4, the primary one first.
    pub v4: Vec<Ipv4Addr>,
    /// IPv6 of global scope, the primary one first.
    pub v6: Vec<Ipv6Addr>,
    /// IPv6 link-local.
    pub link_local: Option<Ipv6Addr>,
}

/// One port: a physical one, or a VLAN sub-interface of one.
#[derive(Debug)]
pub struct Port {
    /// The name that configuration and rule files use.
    pub name: String,
    /// The port that carries its frames: itself, or a VLAN's parent, which may be a VLAN in its turn (802.1ad).
    pub physical: PortId,
    /// The tag its frames carry on the wire; None for untagged.
    pub tag: Option<VlanTag>,
    /// For a physical port: the VLANs it carries and the ports they are.
    pub vlans: Vec<(VlanTag, PortId)>,
    /// Whether it has a host interface (host mode), so that frames for the box can go up.
    pub host: bool,
    /// Whether its device carries partial checksums and super-packets (`offload = true`).
    pub offload: bool,
    mac: AtomicU64,
    mtu: AtomicU32,
    up: AtomicBool,
    enabled: AtomicBool,
    addresses: ArcSwap<PortAddresses>,
}

impl Port {
    /// A physical port without VLANs, down until [`Port::set_up`].
    pub fn new(name: &str, id: PortId, mac: MacAddress, mtu: u32) -> Port {
        Port {
            name: name.to_owned(),
            physical: id,
            tag: None,
            vlans: Vec::new(),
            host: false,
            offload: false,
            mac: AtomicU64::new(mac_word(mac)),
            mtu: AtomicU32::new(mtu),
            up: AtomicBool::new(false),
            enabled: AtomicBool::new(true),
            addresses: ArcSwap::default(),
        }
    }

    /// Its MAC address as the masked first word of a frame sent to it.
    #[inline(always)]
    pub fn mac_word(&self) -> u64 {
        self.mac.load(Relaxed)
    }

    /// Its MAC address.
    pub fn mac(&self) -> MacAddress {
        let b = self.mac_word().to_ne_bytes();
        MacAddress([b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    /// Changes the MAC address.
    pub fn set_mac(&self, mac: MacAddress) {
        self.mac.store(mac_word(mac), Relaxed);
    }

    /// Longest IP packet in bytes.
    #[inline(always)]
    pub fn mtu(&self) -> u32 {
        self.mtu.load(Relaxed)
    }

    /// Changes the MTU.
    pub fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Relaxed);
    }

    /// Whether it can send and receive.
    #[inline(always)]
    pub fn is_up(&self) -> bool {
        self.up.load(Relaxed)
    }

    /// Marks it up or down.
    pub fn set_up(&self, up: bool) {
        self.up.store(up, Relaxed);
    }

    /// Whether it may receive. A link whose carrier is not known to be back yet may; one that the administrator has set down may
    /// not.
    #[inline(always)]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// Lets it receive, or not: what comes in then is dropped.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    /// Its addresses.
    pub fn addresses(&self) -> arc_swap::Guard<std::sync::Arc<PortAddresses>> {
        self.addresses.load()
    }

    /// Replaces its addresses.
    pub fn set_addresses(&self, addresses: PortAddresses) {
        self.addresses.store(std::sync::Arc::new(addresses));
    }
}

fn mac_word(mac: MacAddress) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

/// All ports, by [`PortId`].
#[derive(Debug, Default)]
pub struct PortTable {
    ports: Vec<Port>,
}

impl PortTable {
    /// A table of these ports; the id of each is its place.
    pub fn new(ports: Vec<Port>) -> PortTable {
        PortTable { ports }
    }

    /// The port, if there is one of this number.
    #[inline(always)]
    pub fn get(&self, id: PortId) -> Option<&Port> {
        self.ports.get(usize::from(id.0))
    }

    /// The port of this name.
    pub fn by_name(&self, name: &str) -> Option<(PortId, &Port)> {
        self.iter().find(|(_, p)| p.name == name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (PortId, &Port)> {
        self.ports.iter().enumerate().map(|(i, p)| (PortId(i as u16), p))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}
