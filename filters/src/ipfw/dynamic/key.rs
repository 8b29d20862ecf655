#![forbid(unsafe_code)]
//! What a state is found by: the flow, the group's name, and what a packet tells a state.

use std::collections::HashMap;

use ferrule_dataplane::packet::hash::{self, HashSeed};
use ferrule_dataplane::packet::{Family, Flags, Packet};

/// ICMP.
const ICMP: u8 = 1;
/// TCP.
pub(super) const TCP: u8 = 6;
/// UDP.
pub(super) const UDP: u8 = 17;
/// ICMPv6.
const ICMP6: u8 = 58;
/// SCTP.
const SCTP: u8 = 132;
/// UDP-Lite.
pub(super) const UDP_LITE: u8 = 136;

/// A flow as ipfw(8) identifies it: addresses, protocol and ports, these being 0 for all but TCP, UDP, UDP-Lite and SCTP. ICMP between two
/// hosts is therefore one flow, whatever its types and identifiers, and so is every other protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowKey {
    /// IPv4.
    V4 {
        /// Source in the high half, destination in the low half, host order.
        addresses: u64,
        /// Source port in the high half, destination port in the low half.
        ports: u32,
        /// Protocol.
        protocol: u8,
    },
    /// IPv6.
    V6 {
        /// Source.
        source: u128,
        /// Destination.
        destination: u128,
        /// Source port in the high half, destination port in the low half.
        ports: u32,
        /// Upper-layer protocol.
        protocol: u8,
        /// Zone of link-local addresses: the number of the packet's port plus one; 0 where neither address is link-local.
        zone: u16,
    },
}

impl FlowKey {
    /// An IPv4 flow; host-order numbers.
    pub const fn v4(source: u32, destination: u32, protocol: u8, source_port: u16, destination_port: u16) -> FlowKey {
        FlowKey::V4 {
            addresses: (source as u64) << 32 | destination as u64,
            ports: (source_port as u32) << 16 | destination_port as u32,
            protocol,
        }
    }

    /// An IPv6 flow; host-order numbers, no zone.
    pub const fn v6(source: u128, destination: u128, protocol: u8, source_port: u16, destination_port: u16) -> FlowKey {
        let ports = (source_port as u32) << 16 | destination_port as u32;
        FlowKey::V6 { source, destination, ports, protocol, zone: 0 }
    }

    /// The flow of a parsed packet; None for what is not IP. The zone is that of the ingress port.
    #[inline(always)]
    pub fn of(packet: &Packet) -> Option<FlowKey> {
        let has_ports = matches!(packet.protocol, TCP | UDP | UDP_LITE | SCTP);
        let ports = u32::from(packet.source_port) << 16 | u32::from(packet.destination_port);
        let ports = if has_ports { ports } else { 0 };
        match packet.family {
            Family::V4 => {
                let addresses = u64::from(packet.source_v4()) << 32 | u64::from(packet.destination_v4());
                Some(FlowKey::V4 { addresses, ports, protocol: packet.protocol })
            }
            Family::V6 => {
                let (source, destination) = (packet.source_v6(), packet.destination_v6());
                let link_local = |address: u128| address >> 118 == 0xfe80 >> 6;
                let scoped = link_local(source) || link_local(destination);
                let zone = if scoped { packet.ingress.0.wrapping_add(1) } else { 0 };
                Some(FlowKey::V6 { source, destination, ports, protocol: packet.protocol, zone })
            }
            Family::Other => None,
        }
    }

    /// The other direction.
    pub const fn reverse(self) -> FlowKey {
        match self {
            FlowKey::V4 { addresses, ports, protocol } => {
                FlowKey::V4 { addresses: addresses.rotate_left(32), ports: ports.rotate_left(16), protocol }
            }
            FlowKey::V6 { source, destination, ports, protocol, zone } => {
                FlowKey::V6 { source: destination, destination: source, ports: ports.rotate_left(16), protocol, zone }
            }
        }
    }

    /// Protocol.
    #[inline(always)]
    pub const fn protocol(&self) -> u8 {
        match *self {
            FlowKey::V4 { protocol, .. } | FlowKey::V6 { protocol, .. } => protocol,
        }
    }

    /// Source port and destination port.
    pub const fn ports(&self) -> (u16, u16) {
        match *self {
            FlowKey::V4 { ports, .. } | FlowKey::V6 { ports, .. } => ((ports >> 16) as u16, ports as u16),
        }
    }

    /// Source and destination.
    pub fn addresses(&self) -> (std::net::IpAddr, std::net::IpAddr) {
        match *self {
            FlowKey::V4 { addresses, .. } => (
                std::net::Ipv4Addr::from_bits((addresses >> 32) as u32).into(),
                std::net::Ipv4Addr::from_bits(addresses as u32).into(),
            ),
            FlowKey::V6 { source, destination, .. } => {
                (std::net::Ipv6Addr::from_bits(source).into(), std::net::Ipv6Addr::from_bits(destination).into())
            }
        }
    }

    /// Its hash: symmetric, and that of [`hash::of`] for packets that have ports.
    pub fn hash(&self, seed: HashSeed) -> u32 {
        let (source_port, destination_port) = self.ports();
        match *self {
            FlowKey::V4 { addresses, protocol, .. } => {
                hash::v4(seed, (addresses >> 32) as u32, addresses as u32, protocol, source_port, destination_port)
            }
            FlowKey::V6 { source, destination, protocol, .. } => {
                hash::v6(seed, source, destination, protocol, source_port, destination_port)
            }
        }
    }
}

/// The hash under which the states of this packet's flow are kept: the descriptor's own, but for fragments and ICMP, whose hash goes by
/// other fields than those of the flow.
#[inline(always)]
pub fn state_hash(seed: HashSeed, packet: &Packet, key: &FlowKey) -> u32 {
    let ordinary = packet.flags.has(Flags::HASHED)
        && !packet.flags.has(Flags::FRAGMENT)
        && packet.protocol != ICMP
        && packet.protocol != ICMP6;
    if ordinary { packet.hash } else { key.hash(seed) }
}

/// What a packet tells the state that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PacketFacts {
    /// Bytes counted: the IP packet's length (ipfw counts `ip_len`).
    pub length: u32,
    /// The flags of the TCP header; 0 where there is none.
    pub tcp_flags: u8,
    /// The acknowledgement number of the TCP header; None where the packet has no such header (later fragments).
    pub acknowledgement: Option<u32>,
}

/// Number of a group's name, from [`Names`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NameId(pub u16);

impl NameId {
    /// The group `default`.
    pub const DEFAULT: NameId = NameId(1);
}

/// Which groups a probe looks in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameFilter {
    /// `check-state :any`: all.
    Any,
    /// This one.
    Name(NameId),
}

impl NameFilter {
    /// As a number that a state's name is compared with: 0 for any.
    #[inline(always)]
    pub(super) fn number(self) -> u16 {
        match self {
            NameFilter::Any => 0,
            NameFilter::Name(name) => name.0,
        }
    }
}

/// The names of groups and their numbers. Control side; a name keeps its number for as long as the daemon runs, since states of any
/// worker may have it.
#[derive(Debug)]
pub struct Names {
    numbers: HashMap<String, NameId>,
    names: Vec<String>,
}

/// All 65,534 names are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNameLeft;

impl Default for Names {
    fn default() -> Names {
        let mut names = Names { numbers: HashMap::new(), names: vec![String::new()] };
        // Number 1, as `NameId::DEFAULT` says; there is room.
        let _ = names.intern("default");
        names
    }
}

impl Names {
    /// The number of a name, a new one if it was not seen before.
    ///
    /// # Errors
    /// [`NoNameLeft`] when there are no numbers left.
    pub fn intern(&mut self, name: &str) -> Result<NameId, NoNameLeft> {
        if let Some(id) = self.numbers.get(name) {
            return Ok(*id);
        }
        let id = NameId(u16::try_from(self.names.len()).map_err(|_| NoNameLeft)?);
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), id);
        Ok(id)
    }

    /// The name of a number.
    pub fn name(&self, id: NameId) -> Option<&str> {
        self.names.get(usize::from(id.0)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers() {
        let mut names = Names::default();
        assert_eq!(names.intern("default"), Ok(NameId::DEFAULT));
        let web = names.intern("web").unwrap();
        assert_ne!(web, NameId::DEFAULT);
        assert_eq!(names.intern("web"), Ok(web));
        assert_eq!(names.name(web), Some("web"));
    }

    #[test]
    fn both_directions_have_one_hash_and_reverse_twice_is_the_same() {
        let seed = HashSeed(3, 5);
        for key in [FlowKey::v4(1, 2, 6, 3, 4), FlowKey::v6(1 << 100, 2, 17, 3, 4)] {
            assert_eq!(key.hash(seed), key.reverse().hash(seed));
            assert_ne!(key, key.reverse());
            assert_eq!(key.reverse().reverse(), key);
        }
    }
}
