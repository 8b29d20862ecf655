#![forbid(unsafe_code)]
//! Addresses as they are written: Ethernet addresses, prefixes, and what is wrong with an address as an interface's.

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(
    /// The six octets in the order of the wire.
    pub [u8; 6],
);

impl MacAddress {
    /// True for group addresses, broadcast included (IEEE 802: lowest bit of the first octet).
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Not six octets of two hexadecimal digits with `:` or `-` between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacError;

impl FromStr for MacAddress {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next().ok_or(MacError)?;
            if part.len() != 2 || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(MacError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacError)?;
        }
        if parts.next().is_some() { Err(MacError) } else { Ok(Self(octets)) }
    }
}

/// Reads `ADDRESS/LENGTH`; without `/LENGTH` the length is None.
pub(crate) fn parse_prefix(text: &str) -> Option<(IpAddr, Option<u8>)> {
    let Some((address, length)) = text.split_once('/') else {
        return Some((text.parse().ok()?, None));
    };
    let address: IpAddr = address.parse().ok()?;
    if length.is_empty() || length.len() > 3 || !length.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    (length <= width(address)).then_some((address, Some(length)))
}

/// Bits of an address of this family.
pub(crate) fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The network with that length; a length too long for the family counts as the longest.
pub(crate) fn network(address: IpAddr, length: u8) -> IpNetwork {
    match address {
        IpAddr::V4(address) => IpNetwork::V4(Ipv4Network::new(address, length.min(32)).unwrap_or(address.into())),
        IpAddr::V6(address) => IpNetwork::V6(Ipv6Network::new(address, length.min(128)).unwrap_or(address.into())),
    }
}

/// The network without its host bits.
pub(crate) fn masked(network_with_host: IpNetwork) -> IpNetwork {
    network(network_with_host.network(), network_with_host.prefix())
}

/// First and last address of a network as numbers, with the family: what an overlap is judged by.
pub(crate) fn bounds(network: IpNetwork) -> (bool, u128, u128) {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    (network.is_ipv6(), number(network.network()), number(network.broadcast()))
}

/// fe80::/10 (RFC 4291, section 2.5.6).
pub(crate) fn is_ipv6_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Why no host can have this address; None when one can.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    match address {
        _ if address.is_unspecified() => Some("it is the unspecified address"),
        _ if address.is_loopback() => Some("it is a loopback address"),
        _ if address.is_multicast() => Some("it is a multicast address"),
        IpAddr::V4(address) if address.is_broadcast() => Some("it is the broadcast address"),
        IpAddr::V4(address) if address.octets()[0] == 0 => Some("0.0.0.0/8 means \"this network\""),
        IpAddr::V4(address) if address.octets()[0] >= 240 => Some("240.0.0.0/4 is reserved"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => Some("it is an IPv4-mapped address"),
        _ => None,
    }
}

/// Why no interface in this subnet can have this address; None when one can.
pub(crate) fn unusable_in(network: IpNetwork) -> Option<String> {
    let address = network.ip();
    if let Some(reason) = unusable(address) {
        return Some(reason.to_owned());
    }
    // With one host bit both addresses are hosts (RFC 3021, RFC 6164).
    if width(address) - network.prefix() < 2 {
        return None;
    }
    if address == network.network() {
        let what = if address.is_ipv4() { "the network address" } else { "the subnet-router anycast address" };
        return Some(format!("it is {what} of {}", masked(network)));
    }
    (address.is_ipv4() && address == network.broadcast())
        .then(|| format!("it is the broadcast address of {}", masked(network)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read_and_shown() {
        let mac: MacAddress = "02:00:5E:10:00:ff".parse().unwrap();
        assert_eq!(mac.to_string(), "02:00:5e:10:00:ff");
        assert_eq!("02-00-5e-10-00-ff".parse(), Ok(mac));
        assert!(!mac.is_multicast());
        assert!("01:00:5e:00:00:01".parse::<MacAddress>().unwrap().is_multicast());
        for bad in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:ff:00", "2:0:5e:10:0:ff", "02:00:5e:10:00:gg", "+2:00:5e:10:00:ff"]
        {
            assert_eq!(bad.parse::<MacAddress>(), Err(MacError), "{bad}");
        }
    }

    #[test]
    fn prefixes_are_read_strictly() {
        assert_eq!(parse_prefix("192.0.2.1/24"), Some((IpAddr::from([192, 0, 2, 1]), Some(24))));
        assert_eq!(parse_prefix("192.0.2.1"), Some((IpAddr::from([192, 0, 2, 1]), None)));
        for bad in [
            "192.0.2.1/33",
            "192.0.2.1/",
            "192.0.2.1/+8",
            "192.0.2.1/255.255.255.0",
            "::1/129",
            "::/1 ",
            "x/8",
            "1.2.3/8",
        ] {
            assert_eq!(parse_prefix(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_no_interface_can_have() {
        let reason = |text: &str| unusable_in(text.parse().unwrap());
        for good in [
            "192.0.2.1/24",
            "192.0.2.0/31",
            "192.0.2.1/31",
            "192.0.2.1/32",
            "2001:db8::/127",
            "2001:db8::1/64",
            "fe80::1/64",
            "10.0.0.255/8",
        ] {
            assert_eq!(reason(good), None, "{good}");
        }
        for (bad, expected) in [
            ("192.0.2.0/24", "it is the network address of 192.0.2.0/24"),
            ("192.0.2.255/24", "it is the broadcast address of 192.0.2.0/24"),
            ("2001:db8::/64", "it is the subnet-router anycast address of 2001:db8::/64"),
            ("224.0.0.1/24", "it is a multicast address"),
            ("127.0.0.1/8", "it is a loopback address"),
            ("::1/128", "it is a loopback address"),
            ("0.0.0.0/0", "it is the unspecified address"),
            ("0.1.2.3/8", "0.0.0.0/8 means \"this network\""),
            ("255.255.255.255/32", "it is the broadcast address"),
            ("::ffff:10.0.0.1/128", "it is an IPv4-mapped address"),
        ] {
            assert_eq!(reason(bad).as_deref(), Some(expected), "{bad}");
        }
    }
}
