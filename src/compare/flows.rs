//! The frames that are measured with: smallest UDP frames, and the flow set of the BSD routing benchmarks.
//!
//! Sources 198.18.10.1 to .71 and destinations 198.19.10.1 to .70, ports 2001 (RFC 2544), or their like in 2001:2::/48 (RFC 5180),
//! make 4,970 one-way flows, called "5K" there. More flows than that have more sources, to the same destinations.

#![forbid(unsafe_code)]

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_dataplane::arena::HEADER_WINDOW;
use ferrule_dataplane::fib::{MacAddress, Prefix};
use ferrule_dataplane::packet::checksum;

/// Sources of the classic flow set.
pub const SOURCES: u32 = 71;
/// Destinations of the classic flow set.
pub const DESTINATIONS: u32 = 70;
/// Flows of the classic flow set.
pub const FLOWS: u32 = SOURCES * DESTINATIONS;
/// UDP port of every flow, at both ends.
pub const PORT: u16 = 2001;

const ETHERNET: usize = 14;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
const TTL: u8 = 64;

/// One packet's flow, and the TCP flags that the packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source.
    pub source: IpAddr,
    /// Destination, of the same family.
    pub destination: IpAddr,
    /// [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// As in the TCP header (SYN 2, ACK 16); nothing in UDP.
    pub tcp_flags: u8,
}

impl Flow {
    /// UDP from [`PORT`] to [`PORT`].
    pub fn udp(source: IpAddr, destination: IpAddr) -> Flow {
        Flow { source, destination, protocol: UDP, source_port: PORT, destination_port: PORT, tcp_flags: 0 }
    }
}

/// Address family, under the BSD names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

impl Family {
    /// Both, in the order of the tables.
    pub const ALL: [Family; 2] = [Family::Inet, Family::Inet6];

    /// `inet` or `inet6`.
    pub fn label(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Inet6 => "inet6",
        }
    }

    /// Bytes of the smallest UDP frame without CRC: what 64 bytes on the wire carry, and the header's own minimum in IPv6.
    pub fn frame_len(self) -> usize {
        match self {
            Family::Inet => 60,
            Family::Inet6 => 62,
        }
    }

    /// The gateway of the measured routes; its place in 10.0.0.0/16 or fd00::/64 is its number from 1.
    pub fn gateway(self, number: u16) -> IpAddr {
        match self {
            Family::Inet => IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | u32::from(number))),
            Family::Inet6 => IpAddr::V6(Ipv6Addr::from_bits(0xfd00_u128 << 112 | u128::from(number))),
        }
    }

    /// The network that the classic flow set goes to.
    pub fn classic_network(self) -> Prefix {
        match self {
            Family::Inet => Prefix::V4 { address: 0xc613_0a00, length: 24 },
            Family::Inet6 => Prefix::V6 { address: 0x2001_0002_0000_000b_u128 << 64, length: 64 },
        }
    }

    /// Source and destination of a flow of the classic set; numbers past the last start over.
    pub fn classic_flow(self, number: u32) -> (IpAddr, IpAddr) {
        let number = number % FLOWS;
        let (source, destination) = (1 + number / DESTINATIONS, 1 + number % DESTINATIONS);
        match self {
            Family::Inet => (
                IpAddr::V4(Ipv4Addr::from_bits(0xc612_0a00 | source)),
                IpAddr::V4(Ipv4Addr::from_bits(0xc613_0a00 | destination)),
            ),
            Family::Inet6 => (
                IpAddr::V6(Ipv6Addr::from_bits(0x2001_0002_0000_000a_u128 << 64 | u128::from(source))),
                IpAddr::V6(Ipv6Addr::from_bits(0x2001_0002_0000_000b_u128 << 64 | u128::from(destination))),
            ),
        }
    }
}

impl Family {
    /// A flow out of more than the classic set has: 14.7 million differ in their sources and keep its destinations.
    pub fn wide_flow(self, number: u32) -> (IpAddr, IpAddr) {
        let (source, destination) = (number / DESTINATIONS, number % DESTINATIONS);
        let source = match self {
            Family::Inet => IpAddr::V4(Ipv4Addr::from_bits(0x1500_0000 | source % 210_000)),
            Family::Inet6 => {
                IpAddr::V6(Ipv6Addr::from_bits(0x2001_0002_0000_000a_u128 << 64 | u128::from(source % 210_000)))
            }
        };
        (source, self.classic_flow(destination).1)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Writes the smallest UDP frame from `source` to `destination`, checksums right, and returns its length in bytes. The two are of one
/// family; of a mixed pair the IPv4 address counts as its mapped IPv6 address.
pub fn write_frame(
    frame: &mut [u8; HEADER_WINDOW],
    to: MacAddress,
    from: MacAddress,
    (source, destination): (IpAddr, IpAddr),
) -> usize {
    write_flow(frame, to, from, &Flow::udp(source, destination))
}

/// As [`write_frame`], for any flow: the smallest frame, or one as long as its headers need.
pub fn write_flow(frame: &mut [u8; HEADER_WINDOW], to: MacAddress, from: MacAddress, flow: &Flow) -> usize {
    frame[..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&from.0);
    let l4_header = if flow.protocol == TCP { 20 } else { 8 };
    match (flow.source, flow.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let len = Family::Inet.frame_len().max(ETHERNET + 20 + l4_header);
            let ip_len = (len - ETHERNET) as u16;
            frame[12..len].fill(0);
            frame[12..14].copy_from_slice(&[8, 0]);
            frame[14] = 0x45;
            frame[16..18].copy_from_slice(&ip_len.to_be_bytes());
            (frame[22], frame[23]) = (TTL, flow.protocol);
            frame[26..30].copy_from_slice(&source.octets());
            frame[30..34].copy_from_slice(&destination.octets());
            let sum = checksum::checksum(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_ne_bytes());
            let pseudo = checksum::pseudo_v4(source.octets(), destination.octets(), flow.protocol, ip_len - 20);
            write_l4(&mut frame[34..len], flow, pseudo);
            len
        }
        _ => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let (source, destination) = (six(flow.source).octets(), six(flow.destination).octets());
            let len = ETHERNET + 40 + l4_header;
            let payload = (len - ETHERNET - 40) as u16;
            frame[12..len].fill(0);
            frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            frame[18..20].copy_from_slice(&payload.to_be_bytes());
            (frame[20], frame[21]) = (flow.protocol, TTL);
            frame[22..38].copy_from_slice(&source);
            frame[38..54].copy_from_slice(&destination);
            let pseudo = checksum::pseudo_v6(source, destination, flow.protocol, u32::from(payload));
            write_l4(&mut frame[54..len], flow, pseudo);
            len
        }
    }
}

/// The header of UDP or TCP with its checksum; `bytes` reach to the end of the packet and are zero.
fn write_l4(bytes: &mut [u8], flow: &Flow, pseudo: u64) {
    bytes[..2].copy_from_slice(&flow.source_port.to_be_bytes());
    bytes[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
    let place = if flow.protocol == TCP {
        (bytes[12], bytes[13]) = (5 << 4, flow.tcp_flags);
        16..18
    } else {
        let len = bytes.len() as u16;
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
        6..8
    };
    let sum = !checksum::fold(checksum::sum(bytes, pseudo));
    bytes[place].copy_from_slice(&sum.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_set_has_its_flows_and_no_two_are_alike() {
        for family in Family::ALL {
            let flows: std::collections::HashSet<_> = (0..FLOWS).map(|n| family.classic_flow(n)).collect();
            assert_eq!(flows.len(), 4970);
            assert_eq!(family.classic_flow(FLOWS), family.classic_flow(0));
        }
        assert_eq!(Family::Inet.classic_flow(0), (IpAddr::from([198, 18, 10, 1]), IpAddr::from([198, 19, 10, 1])));
        assert_eq!(Family::Inet.classic_flow(4969), (IpAddr::from([198, 18, 10, 71]), IpAddr::from([198, 19, 10, 70])));
    }

    #[test]
    fn wide_flows_differ_and_go_where_the_classic_ones_go() {
        for family in Family::ALL {
            let flows: std::collections::HashSet<_> = (0..200_000).map(|n| family.wide_flow(n)).collect();
            assert_eq!(flows.len(), 200_000);
            let network: ipnetwork::IpNetwork = match family {
                Family::Inet => "198.19.10.0/24",
                Family::Inet6 => "2001:2:0:b::/64",
            }
            .parse()
            .unwrap();
            assert!(flows.iter().all(|(_, destination)| network.contains(*destination)));
        }
    }

    #[test]
    fn tcp_frames_have_right_sums_and_flags() {
        let mut frame = [0xff; HEADER_WINDOW];
        for (family, l4) in [(Family::Inet, 34), (Family::Inet6, 54)] {
            let (source, destination) = family.classic_flow(7);
            let flow = Flow { protocol: TCP, tcp_flags: 18, ..Flow::udp(source, destination) };
            let len = write_flow(&mut frame, MacAddress([2; 6]), MacAddress([4; 6]), &flow);
            let pseudo = match (source, destination) {
                (IpAddr::V4(s), IpAddr::V4(d)) => checksum::pseudo_v4(s.octets(), d.octets(), 6, (len - 34) as u16),
                (IpAddr::V6(s), IpAddr::V6(d)) => checksum::pseudo_v6(s.octets(), d.octets(), 6, (len - 54) as u32),
                _ => unreachable!("both ends of a flow are of one family"),
            };
            assert_eq!(checksum::fold(checksum::sum(&frame[l4..len], pseudo)), 0xffff, "{family}");
            assert_eq!((frame[l4 + 12], frame[l4 + 13]), (0x50, 18));
        }
    }

    #[test]
    fn frames_have_right_sums_and_lengths() {
        for family in Family::ALL {
            let mut frame = [0xff; HEADER_WINDOW];
            let flow = family.classic_flow(1234);
            let len = write_frame(&mut frame, MacAddress([2; 6]), MacAddress([4; 6]), flow);
            assert_eq!(len, family.frame_len());
            let (l4, pseudo) = match flow {
                (IpAddr::V4(s), IpAddr::V4(d)) => {
                    assert!(checksum::is_valid(&frame[14..34]));
                    (34, checksum::pseudo_v4(s.octets(), d.octets(), 17, 26))
                }
                (IpAddr::V6(s), IpAddr::V6(d)) => (54, checksum::pseudo_v6(s.octets(), d.octets(), 17, 8)),
                _ => unreachable!("both ends of a flow are of one family"),
            };
            assert_eq!(checksum::fold(checksum::sum(&frame[l4..len], pseudo)), 0xffff, "{family}");
            assert_eq!(u16::from_be_bytes([frame[l4 + 4], frame[l4 + 5]]) as usize, len - l4);
        }
    }
}
