#![forbid(unsafe_code)]
//! The words of routing: prefix, port, MAC address, VLAN tag.

use ipnetwork::IpNetwork;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use crate::packet::PortId;

/// An Ethernet address in the order of the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A VLAN tag as it stands on the wire (IEEE 802.1Q 9.6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VlanTag {
    /// Tag protocol: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub tpid: u16,
    /// Priority (3 bits), drop eligible (1), VLAN number (12).
    pub tci: u16,
}

/// An IPv4 or IPv6 prefix; bits beyond the length are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prefix {
    /// IPv4.
    V4 {
        /// Network address.
        address: u32,
        /// Length, 0 to 32.
        length: u8,
    },
    /// IPv6.
    V6 {
        /// Network address.
        address: u128,
        /// Length, 0 to 128.
        length: u8,
    },
}

/// The network mask of an IPv4 prefix length.
pub(crate) const fn mask4(length: u8) -> u32 {
    if length == 0 { 0 } else { u32::MAX << (32 - length as u32) }
}

/// The network mask of an IPv6 prefix length.
pub(crate) const fn mask6(length: u8) -> u128 {
    if length == 0 { 0 } else { u128::MAX << (128 - length as u32) }
}

impl Prefix {
    /// The IPv4 prefix of `length` bits around `address`; `None` if the length is over 32.
    pub const fn v4(address: Ipv4Addr, length: u8) -> Option<Prefix> {
        if length > 32 { None } else { Some(Prefix::V4 { address: address.to_bits() & mask4(length), length }) }
    }

    /// The IPv6 prefix of `length` bits around `address`; `None` if the length is over 128.
    pub const fn v6(address: Ipv6Addr, length: u8) -> Option<Prefix> {
        if length > 128 { None } else { Some(Prefix::V6 { address: address.to_bits() & mask6(length), length }) }
    }

    /// The prefix that holds `address` alone (/32 or /128).
    pub const fn host(address: IpAddr) -> Prefix {
        match address {
            IpAddr::V4(address) => Prefix::V4 { address: address.to_bits(), length: 32 },
            IpAddr::V6(address) => Prefix::V6 { address: address.to_bits(), length: 128 },
        }
    }

    /// Length in bits.
    pub const fn length(self) -> u8 {
        match self {
            Prefix::V4 { length, .. } | Prefix::V6 { length, .. } => length,
        }
    }

    /// The network address, which is the lowest address.
    pub const fn first(self) -> IpAddr {
        match self {
            Prefix::V4 { address, .. } => IpAddr::V4(Ipv4Addr::from_bits(address)),
            Prefix::V6 { address, .. } => IpAddr::V6(Ipv6Addr::from_bits(address)),
        }
    }

    /// The highest address.
    pub const fn last(self) -> IpAddr {
        match self {
            Prefix::V4 { address, length } => IpAddr::V4(Ipv4Addr::from_bits(address | !mask4(length))),
            Prefix::V6 { address, length } => IpAddr::V6(Ipv6Addr::from_bits(address | !mask6(length))),
        }
    }

    /// Whether the prefix holds a single address.
    pub const fn is_host(self) -> bool {
        matches!(self, Prefix::V4 { length: 32, .. } | Prefix::V6 { length: 128, .. })
    }

    /// Whether every address of `other` is one of this prefix; false between families.
    pub const fn contains(self, other: Prefix) -> bool {
        match (self, other) {
            (Prefix::V4 { address, length }, Prefix::V4 { address: inner, length: inner_length }) => {
                length <= inner_length && inner & mask4(length) == address
            }
            (Prefix::V6 { address, length }, Prefix::V6 { address: inner, length: inner_length }) => {
                length <= inner_length && inner & mask6(length) == address
            }
            _ => false,
        }
    }

    /// The same prefix with host bits cleared: the fields are public, so a caller may have left some.
    pub(crate) fn canonical(self) -> Option<Prefix> {
        match self {
            Prefix::V4 { address, length } => Prefix::v4(Ipv4Addr::from_bits(address), length),
            Prefix::V6 { address, length } => Prefix::v6(Ipv6Addr::from_bits(address), length),
        }
    }
}

impl From<IpNetwork> for Prefix {
    fn from(network: IpNetwork) -> Prefix {
        match network {
            IpNetwork::V4(network) => {
                Prefix::V4 { address: network.ip().to_bits() & mask4(network.prefix()), length: network.prefix() }
            }
            IpNetwork::V6(network) => {
                Prefix::V6 { address: network.ip().to_bits() & mask6(network.prefix()), length: network.prefix() }
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first(), self.length())
    }
}
