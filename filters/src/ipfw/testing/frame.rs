#![forbid(unsafe_code)]
//! Frames put together by hand, checksums included.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One's complement sum over words (RFC 1071).
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let mut bytes: Vec<u8> = parts.concat();
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A TCP header with options (padded to whole words) and data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Flags.
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window.
    pub window: u16,
    /// Options.
    pub options: Vec<u8>,
    /// Bytes of data.
    pub data: usize,
}

impl Tcp {
    /// A segment without options or data.
    pub fn new(ports: (u16, u16), flags: u8) -> Self {
        Tcp { ports, flags, sequence: 1000, acknowledgement: 2000, window: 8192, options: Vec::new(), data: 0 }
    }

    /// Its bytes, the checksum still 0.
    pub fn bytes(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().div_ceil(4) * 4, 0);
        let mut bytes = Vec::new();
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgement.to_be_bytes());
        bytes.push((((20 + options.len()) / 4) << 4) as u8);
        bytes.push(self.flags);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.extend(vec![0x5a; self.data]);
        bytes
    }
}

/// UDP and UDP-Lite, the checksum still 0.
pub fn udp(ports: (u16, u16), data: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend((8 + data as u16).to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(vec![0x5a; data]);
    bytes
}

/// SCTP with one chunk of 16 bytes: INIT (1) carries its initiate tag behind the chunk's header.
pub fn sctp(ports: (u16, u16), tag: u32, chunk: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([chunk, 0, 0, 16]);
    bytes.extend(0x77u32.to_be_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// ICMP and ICMPv6: type and code, checksum still 0.
pub fn icmp(kind: u8, code: u8) -> Vec<u8> {
    let mut bytes = vec![kind, code, 0, 0, 0, 7, 0, 1];
    bytes.extend([0x5a; 8]);
    bytes
}

/// Fields of an IPv4 header that tests look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Source.
    pub source: Ipv4Addr,
    /// Destination.
    pub destination: Ipv4Addr,
    /// TOS byte.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// Flags and offset as they stand in the header.
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Options, padded to whole words.
    pub options: Vec<u8>,
}

impl V4 {
    /// A plain header.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        V4 { source, destination, tos: 0, id: 77, fragment: 0, ttl: 64, options: Vec::new() }
    }

    /// The packet.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().div_ceil(4) * 4, 0);
        let length = 20 + options.len();
        let mut header = vec![0x40 | (length / 4) as u8, self.tos];
        header.extend(((length + payload.len()) as u16).to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, protocol, 0, 0]);
        header.extend(self.source.octets());
        header.extend(self.destination.octets());
        header.extend(options);
        let sum = checksum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let ends = [self.source.octets(), self.destination.octets()].concat();
        header.extend(with_checksum(&ends, protocol, payload));
        header
    }
}

/// Fields of an IPv6 header that tests look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct V6 {
    /// Source.
    pub source: Ipv6Addr,
    /// Destination.
    pub destination: Ipv6Addr,
    /// Traffic class.
    pub class: u8,
    /// Flow label.
    pub label: u32,
    /// Extension headers: protocol number and bytes, the next header's number still open.
    pub extensions: Vec<(u8, Vec<u8>)>,
}

impl V6 {
    /// A plain header.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        V6 { source, destination, class: 0, label: 0, extensions: Vec::new() }
    }

    /// The packet.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut chain = Vec::new();
        let numbers: Vec<u8> = self.extensions.iter().map(|(number, _)| *number).chain([protocol]).collect();
        for ((_, bytes), next) in self.extensions.iter().zip(&numbers[1..]) {
            let mut bytes = bytes.clone();
            bytes[0] = *next;
            chain.extend(bytes);
        }
        let mut packet = (0x6000_0000 | u32::from(self.class) << 20 | self.label).to_be_bytes().to_vec();
        packet.extend(((chain.len() + payload.len()) as u16).to_be_bytes());
        packet.extend([numbers[0], 64]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        packet.extend(chain);
        let ends = [self.source.octets(), self.destination.octets()].concat();
        packet.extend(with_checksum(&ends, protocol, payload));
        packet
    }
}

/// Fills in the checksum of TCP, UDP, ICMP and ICMPv6.
fn with_checksum(ends: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut payload = payload.to_vec();
    let at = match protocol {
        6 => 16,
        17 => 6,
        1 | 58 => 2,
        _ => return payload,
    };
    if payload.len() >= at + 2 {
        let tail = [(payload.len() as u32).to_be_bytes(), u32::from(protocol).to_be_bytes()].concat();
        let sum = if protocol == 1 { checksum(&[&payload]) } else { checksum(&[ends, &tail, &payload]) };
        payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    payload
}

/// An Ethernet frame of at least 60 bytes around a packet.
pub fn ethernet(destination: [u8; 6], source: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut frame = [destination, source].concat();
    frame.extend(kind.to_be_bytes());
    frame.extend(packet);
    frame.resize(frame.len().max(60), 0);
    frame
}

/// A frame around an IP packet, between two of the pool's MAC addresses.
pub fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], kind, packet)
}

/// A frame with a packet between two addresses of one family.
///
/// # Panics
/// When the families differ.
pub fn between(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => frame(&V4::new(source, destination).packet(protocol, payload)),
        (IpAddr::V6(source), IpAddr::V6(destination)) => frame(&V6::new(source, destination).packet(protocol, payload)),
        _ => panic!("{source} and {destination} are of different families"),
    }
}
