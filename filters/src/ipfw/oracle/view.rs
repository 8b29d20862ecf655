#![forbid(unsafe_code)]
//! The facts of a packet, read from the bytes of its frame as `ipfw_chk` of FreeBSD 14 reads them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::setup::Settings;
use super::view6;

/// Length of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Protocol numbers that mean something to ipfw.
pub mod protocol {
    /// ICMP
    pub const ICMP: u8 = 1;
    /// TCP
    pub const TCP: u8 = 6;
    /// UDP
    pub const UDP: u8 = 17;
    /// ICMPv6
    pub const ICMPV6: u8 = 58;
    /// SCTP
    pub const SCTP: u8 = 132;
    /// UDP-Lite
    pub const UDP_LITE: u8 = 136;
}

/// The packet is dropped before, or while, a rule looks at it: a header that must be there is cut off ("pullup failed"), or an
/// IPv6 header is unknown. No counter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// Kind of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Not IP (layer2 passes only).
    Other,
}

/// What is known of a packet before the first rule.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// IPv4, IPv6 or neither.
    pub family: Family,
    /// Index in the frame of the byte after the last one that may be read.
    pub end: usize,
    /// Protocol, of IPv6 the one that the chain of headers ends with; 0 for what is not IP.
    pub protocol: u8,
    /// Bytes from the IP header's start to the upper header.
    pub header_length: usize,
    /// Index in the frame of the upper header; None in later fragments and, in IPv4, for protocols without one that ipfw reads.
    pub upper: Option<usize>,
    /// Not the first fragment.
    pub later_fragment: bool,
    /// Length that the IP header gives, 0 for what is not IP.
    pub ip_length: usize,
    /// Length that counters count: the lesser of the header's and the real one.
    pub counted: u64,
    /// Source; unspecified for what is not IP.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// Source port, 0 where there is none.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Flags of the TCP header, 0 where there is none.
    pub tcp_flags: u8,
    /// Extension headers met, in the bits of `Test::ExtensionHeaders`.
    pub extensions: u8,
    /// ICMPv6 type, 0 where there is none.
    pub icmp6_type: u8,
}

/// Two bytes in network order.
pub fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Four bytes in network order.
pub fn long(frame: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

impl View {
    /// Reads a frame. In layer2 passes the Ethernet type decides what it is and nothing has been checked yet; in the others the IP
    /// layer has checked the header and cut off the frame's padding.
    pub fn read(frame: &[u8], layer2: bool, settings: &Settings) -> Result<View, Unreadable> {
        let none = View {
            family: Family::Other,
            end: frame.len(),
            protocol: 0,
            header_length: 0,
            upper: None,
            later_fragment: false,
            ip_length: 0,
            counted: 0,
            source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            source_port: 0,
            destination_port: 0,
            tcp_flags: 0,
            extensions: 0,
            icmp6_type: 0,
        };
        if frame.len() <= ETHERNET {
            return if layer2 { Ok(none) } else { Err(Unreadable) };
        }
        let version = frame[ETHERNET] >> 4;
        let ethernet_type = word(frame, 12);
        let mut view = if frame.len() >= ETHERNET + 40 && version == 6 && (!layer2 || ethernet_type == 0x86dd) {
            view6::read(none, frame, layer2, settings)?
        } else if frame.len() >= ETHERNET + 20 && version == 4 && (!layer2 || ethernet_type == 0x0800) {
            read4(none, frame, layer2)?
        } else if layer2 {
            none
        } else {
            return Err(Unreadable);
        };
        let real = if layer2 { frame.len() } else { frame.len() - ETHERNET };
        view.counted = view.ip_length.min(real) as u64;
        Ok(view)
    }

    /// Demands `length` bytes `from` the IP header's start, and gives their index in the frame.
    pub fn demand(&self, from: usize, length: usize) -> Result<usize, Unreadable> {
        let at = ETHERNET + from;
        if at + length <= self.end { Ok(at) } else { Err(Unreadable) }
    }

    /// Reads the upper header's ports and flags.
    pub fn take_upper(&mut self, frame: &[u8]) -> Result<(), Unreadable> {
        let length = match self.protocol {
            protocol::TCP => 20,
            protocol::SCTP => 12,
            protocol::UDP | protocol::UDP_LITE => 8,
            _ => return Ok(()),
        };
        let at = self.demand(self.header_length, length)?;
        self.upper = Some(at);
        self.source_port = word(frame, at);
        self.destination_port = word(frame, at + 2);
        if self.protocol == protocol::TCP {
            self.tcp_flags = frame[at + 13];
        }
        Ok(())
    }

    /// Whether there are ports: TCP, UDP, UDP-Lite or SCTP, and not a later fragment.
    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP)
            && !self.later_fragment
    }

    /// Index of the TCP header, where there is one.
    pub fn tcp(&self) -> Option<usize> {
        if self.protocol == protocol::TCP && !self.later_fragment { self.upper } else { None }
    }

    /// The options of the TCP header at `tcp`.
    pub fn tcp_options<'a>(&self, frame: &'a [u8], tcp: usize) -> Result<&'a [u8], Unreadable> {
        let length = usize::from(frame[tcp + 12] >> 4) * 4;
        self.demand(tcp - ETHERNET, length)?;
        Ok(if length > 20 { &frame[tcp + 20..tcp + length] } else { &[] })
    }
}

fn read4(mut view: View, frame: &[u8], layer2: bool) -> Result<View, Unreadable> {
    view.family = Family::V4;
    view.header_length = usize::from(frame[ETHERNET] & 15) * 4;
    view.ip_length = usize::from(word(frame, ETHERNET + 2));
    if !layer2 {
        if view.header_length < 20 || view.ip_length < view.header_length || ETHERNET + view.ip_length > frame.len() {
            return Err(Unreadable);
        }
        view.end = ETHERNET + view.ip_length;
    }
    view.protocol = frame[ETHERNET + 9];
    view.source = IpAddr::V4(Ipv4Addr::from_bits(long(frame, ETHERNET + 12)));
    view.destination = IpAddr::V4(Ipv4Addr::from_bits(long(frame, ETHERNET + 16)));
    let offset = word(frame, ETHERNET + 6) & 0x1fff;
    view.later_fragment = offset != 0;
    if offset == 1 && view.protocol == protocol::TCP {
        // RFC 3128: such a fragment only serves to change the flags of a header already judged.
        return Err(Unreadable);
    }
    if offset == 0 {
        view.take_upper(frame)?;
        if view.protocol == protocol::ICMP {
            view.upper = Some(view.demand(view.header_length, 4)?);
        }
    }
    Ok(view)
}

/// An IPv6 address in the frame.
pub fn address6(frame: &[u8], at: usize) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&frame[at..at + 16]);
    IpAddr::V6(Ipv6Addr::from(octets))
}
