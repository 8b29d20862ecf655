#![forbid(unsafe_code)]
//! What the blocks `[[port]]` and `[[port.vlan]]` say.

use super::address::MacAddress;
use crate::span::{Located, Place};
use ipnetwork::IpNetwork;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Longest name of an interface in bytes: `IFNAMSIZ` less the final zero (netdevice(7)).
pub const NAME_MAX: usize = 15;
/// What [`Port::queues`] may be.
pub const QUEUES: RangeInclusive<u16> = 1..=256;
/// What an MTU may be in bytes: from the least of IPv4 (RFC 791) to the most that a port carries.
pub const MTU: RangeInclusive<u16> = 68..=16_114;
/// The least MTU of a link with IPv6 (RFC 8200, section 5).
pub const IPV6_MIN_MTU: u16 = 1280;
/// The largest MTU that the `xdp` driver is made for (multi-buffer frames).
pub const XDP_JUMBO: u16 = 9000;
/// What a VLAN id may be (IEEE 802.1Q; 0 and 4095 are reserved).
pub const VLAN_ID: RangeInclusive<u16> = 1..=4094;

/// One block `[[port]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The header of the block.
    pub place: Place,
    /// `name`: what rule files, routes and commands call it: at most 15 characters, a letter, then letters, digits,
    /// `.`, `-`, `_`. Default: the device. Required for `memory` and `pcap`.
    pub name: Located<String>,
    /// `driver` and the keys that belong to it.
    pub driver: Located<Driver>,
    /// `queues`: pairs of receive and transmit queues, 1 to 256; `pcap` has one. Default: the device's, or as many as
    /// workers.
    pub queues: Option<Located<u16>>,
    /// `mtu`: bytes after the Ethernet header, 68 to 16114; at least 1280 with IPv6 addresses. Default: the device's,
    /// 1500 for `memory` and `pcap`.
    pub mtu: Option<Located<u16>>,
    /// `mac`: the port's Ethernet address, for standalone mode and for ports without a device. Default: the device's,
    /// or one made up by the program (locally administered).
    pub mac: Option<Located<MacAddress>>,
    /// `addresses`: standalone mode only; in host mode the kernel's are used.
    pub addresses: Vec<Located<IpNetwork>>,
    /// `accept_ra`: take addresses and routes from router advertisements though forwarding (`accept_ra = 2` on the host
    /// interface). Host mode only. Default false.
    pub accept_ra: Located<bool>,
    /// `[[port.vlan]]`: sub-interfaces.
    pub vlans: Vec<Vlan>,
}

/// `driver`: how frames come and go, with what only that driver knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Driver {
    /// `"auto"` (the default): the best that the device supports; the program says which and why.
    Auto {
        /// `device`: the kernel's name of the interface.
        device: Located<String>,
        /// `xdp_mode`, should it be `xdp`.
        xdp_mode: XdpMode,
    },
    /// `"xdp"`: AF_XDP.
    Xdp {
        /// `device`: the kernel's name of the interface.
        device: Located<String>,
        /// `xdp_mode = "auto" | "native" | "generic"`. Default auto.
        xdp_mode: XdpMode,
    },
    /// `"packet"`: AF_PACKET.
    Packet {
        /// `device`: the kernel's name of the interface.
        device: Located<String>,
        /// `offload`: carry GSO frames and partial checksums whole (virtio-net headers). Default false.
        offload: bool,
    },
    /// `"tap"`: a TAP device, made if there is none.
    Tap {
        /// `device`: the kernel's name of the TAP. Default: the port's name.
        device: Located<String>,
        /// `offload`: as for `packet`. Default false.
        offload: bool,
    },
    /// `"memory"`: rings within the process, for generators, sinks and tests.
    Memory,
    /// `"pcap"`: files in and out, in virtual time. At least one of the two; standalone mode only.
    Pcap {
        /// `in`: the capture whose frames arrive at the port.
        input: Option<Located<PathBuf>>,
        /// `out`: the capture that gets what the port sends.
        output: Option<Located<PathBuf>>,
    },
}

impl Driver {
    /// As written in the file.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Auto { .. } => "auto",
            Self::Xdp { .. } => "xdp",
            Self::Packet { .. } => "packet",
            Self::Tap { .. } => "tap",
            Self::Memory => "memory",
            Self::Pcap { .. } => "pcap",
        }
    }

    /// The kernel device, for drivers that have one.
    pub fn device(&self) -> Option<&Located<String>> {
        match self {
            Self::Auto { device, .. }
            | Self::Xdp { device, .. }
            | Self::Packet { device, .. }
            | Self::Tap { device, .. } => Some(device),
            Self::Memory | Self::Pcap { .. } => None,
        }
    }
}

/// `xdp_mode`: where the XDP program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// `"auto"`: in the driver where it can, else generic.
    #[default]
    Auto,
    /// `"native"`: in the driver, else the start is refused.
    Native,
    /// `"generic"`: in the kernel's stack, with any driver.
    Generic,
}

/// One block `[[port.vlan]]`: a sub-interface with its own name and host interface.
#[derive(Clone, Debug, PartialEq)]
pub struct Vlan {
    /// The header of the block.
    pub place: Place,
    /// `id`: 1 to 4094.
    pub id: Located<u16>,
    /// `protocol = "802.1q" | "802.1ad"`. Default 802.1q.
    pub protocol: VlanProtocol,
    /// `name`: as for ports. Default: `PORT.ID`.
    pub name: Located<String>,
    /// `mtu`: at most the port's. Default: the port's.
    pub mtu: Option<Located<u16>>,
    /// `addresses`: standalone mode only.
    pub addresses: Vec<Located<IpNetwork>>,
    /// `accept_ra`: as for ports.
    pub accept_ra: Located<bool>,
}

/// `protocol`: the tag's EtherType.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VlanProtocol {
    /// `"802.1q"`: customer tag, 0x8100.
    #[default]
    Dot1Q,
    /// `"802.1ad"`: service tag, 0x88a8.
    Dot1Ad,
}

/// A port or a VLAN of it: what has a name and addresses.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// Its name.
    pub name: &'a Located<String>,
    /// The port that carries it.
    pub port: &'a Port,
    /// The VLAN, unless it is the port itself.
    pub vlan: Option<&'a Vlan>,
    /// Its addresses.
    pub addresses: &'a [Located<IpNetwork>],
    /// Its own MTU, else the port's.
    pub mtu: Option<Located<u16>>,
    /// Its `accept_ra`.
    pub accept_ra: Located<bool>,
}

impl Port {
    /// The port itself, then its VLANs.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface<'_>> {
        let own = Interface {
            name: &self.name,
            port: self,
            vlan: None,
            addresses: &self.addresses,
            mtu: self.mtu,
            accept_ra: self.accept_ra,
        };
        let vlans = self.vlans.iter().map(|vlan| Interface {
            name: &vlan.name,
            port: self,
            vlan: Some(vlan),
            addresses: &vlan.addresses,
            mtu: vlan.mtu.or(self.mtu),
            accept_ra: vlan.accept_ra,
        });
        std::iter::once(own).chain(vlans)
    }
}
