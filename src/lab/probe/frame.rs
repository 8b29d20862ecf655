//! Frames made by hand for the raw socket: any header field can be set, right or wrong; and just enough reading to say
//! what came back.
#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};

/// EtherTypes (IEEE 802 numbers).
pub const IPV4: u16 = 0x0800;
/// Address resolution protocol.
pub const ARP: u16 = 0x0806;
/// IP version 6.
pub const IPV6: u16 = 0x86dd;

/// IP protocol numbers (IANA).
pub const ICMP: u8 = 1;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// An Ethernet header with its tags; the methods append a payload and give the whole frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ethernet {
    /// Destination MAC.
    pub destination: [u8; 6],
    /// Source MAC.
    pub source: [u8; 6],
    /// Tags from the outside in: tag protocol (0x8100, 0x88a8) and tag control information (priority, VLAN).
    pub tags: Vec<(u16, u16)>,
}

impl Ethernet {
    /// Without tags.
    pub fn new(source: [u8; 6], destination: [u8; 6]) -> Ethernet {
        Ethernet { destination, source, tags: Vec::new() }
    }

    /// Adds a tag inside of those there.
    #[must_use]
    pub fn tag(mut self, protocol: u16, control: u16) -> Ethernet {
        self.tags.push((protocol, control));
        self
    }

    /// A frame with this EtherType and payload. Not padded to 60 bytes: veth does not need it.
    pub fn frame(&self, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [self.destination, self.source].concat();
        for (protocol, control) in &self.tags {
            frame.extend([protocol.to_be_bytes(), control.to_be_bytes()].concat());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// An ARP packet (RFC 826); operation 1 asks, 2 answers.
    pub fn arp(&self, operation: u16, sender: ([u8; 6], Ipv4Addr), target: ([u8; 6], Ipv4Addr)) -> Vec<u8> {
        let mut packet = vec![0, 1, 8, 0, 6, 4];
        packet.extend(operation.to_be_bytes());
        for (mac, address) in [sender, target] {
            packet.extend(mac);
            packet.extend(address.octets());
        }
        self.frame(ARP, &packet)
    }
}

/// An IPv4 header (RFC 791). Length and checksum are worked out when the packet is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source.
    pub source: Ipv4Addr,
    /// Destination.
    pub destination: Ipv4Addr,
    /// Type of service.
    pub tos: u8,
    /// Identification.
    pub identification: u16,
    /// Flags and fragment offset as in the header: 0x4000 is DF, 0x2000 is MF, the rest counts 8 bytes.
    pub fragment: u16,
    /// Time to live.
    pub ttl: u8,
    /// Options, a multiple of four bytes.
    pub options: Vec<u8>,
}

impl Ipv4 {
    /// TTL 64, no fragment, no options.
    pub fn new(source: Ipv4Addr, destination: Ipv4Addr) -> Ipv4 {
        Ipv4 { source, destination, tos: 0, identification: 0, fragment: 0, ttl: 64, options: Vec::new() }
    }

    /// The packet with this protocol and payload.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header_length = 20 + self.options.len();
        let mut packet = vec![0x40 | (header_length / 4) as u8, self.tos];
        packet.extend(((header_length + payload.len()) as u16).to_be_bytes());
        packet.extend(self.identification.to_be_bytes());
        packet.extend(self.fragment.to_be_bytes());
        packet.extend([self.ttl, protocol, 0, 0]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        packet.extend(&self.options);
        let sum = checksum(&[&packet]).to_be_bytes();
        packet[10..12].copy_from_slice(&sum);
        packet.extend(payload);
        packet
    }

    /// A UDP datagram.
    pub fn udp(&self, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
        self.packet(UDP, &udp(&self.pseudo(UDP), ports, data))
    }

    /// A TCP segment without options: flags as in the header (0x02 SYN, 0x10 ACK, 0x04 RST).
    pub fn tcp(&self, ports: (u16, u16), sequence: u32, acknowledgement: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        self.packet(TCP, &tcp(&self.pseudo(TCP), ports, sequence, acknowledgement, flags, data))
    }

    /// An ICMP echo request.
    pub fn echo(&self, identifier: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
        self.packet(ICMP, &echo(8, &[], identifier, sequence, data))
    }

    fn pseudo(&self, protocol: u8) -> Vec<u8> {
        [&self.source.octets()[..], &self.destination.octets(), &[0, protocol]].concat()
    }
}

/// An IPv6 header (RFC 8200). The length is worked out when the packet is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source.
    pub source: Ipv6Addr,
    /// Destination.
    pub destination: Ipv6Addr,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Ipv6 {
    /// Hop limit 64.
    pub fn new(source: Ipv6Addr, destination: Ipv6Addr) -> Ipv6 {
        Ipv6 { source, destination, traffic_class: 0, flow_label: 0, hop_limit: 64 }
    }

    /// The packet with this next header and payload (extension headers are the payload's beginning).
    pub fn packet(&self, next_header: u8, payload: &[u8]) -> Vec<u8> {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        let mut packet = first.to_be_bytes().to_vec();
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next_header, self.hop_limit]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        packet.extend(payload);
        packet
    }

    /// A UDP datagram.
    pub fn udp(&self, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
        self.packet(UDP, &udp(&self.pseudo(UDP), ports, data))
    }

    /// A TCP segment without options.
    pub fn tcp(&self, ports: (u16, u16), sequence: u32, acknowledgement: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        self.packet(TCP, &tcp(&self.pseudo(TCP), ports, sequence, acknowledgement, flags, data))
    }

    /// An ICMPv6 echo request.
    pub fn echo(&self, identifier: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
        self.packet(ICMPV6, &echo(128, &self.pseudo(ICMPV6), identifier, sequence, data))
    }

    fn pseudo(&self, protocol: u8) -> Vec<u8> {
        [&self.source.octets()[..], &self.destination.octets(), &[0, protocol]].concat()
    }
}

/// The internet checksum (RFC 1071) over the parts one after the other, each but the last of even length.
pub fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u64 = words.map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0))).sum();
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    !(folded as u16)
}

fn udp(pseudo: &[u8], (source, destination): (u16, u16), data: &[u8]) -> Vec<u8> {
    let length = ((8 + data.len()) as u16).to_be_bytes();
    let mut datagram = [source.to_be_bytes(), destination.to_be_bytes(), length, [0, 0]].concat();
    datagram.extend(data);
    // RFC 768: a sum of zero is sent as all ones, because zero says "no checksum".
    let sum = match checksum(&[pseudo, &length, &datagram]) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

fn tcp(pseudo: &[u8], ports: (u16, u16), sequence: u32, acknowledgement: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
    segment.extend([sequence.to_be_bytes(), acknowledgement.to_be_bytes()].concat());
    segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(data);
    let length = (segment.len() as u16).to_be_bytes();
    let sum = checksum(&[pseudo, &length, &segment]).to_be_bytes();
    segment[16..18].copy_from_slice(&sum);
    segment
}

fn echo(kind: u8, pseudo: &[u8], identifier: u16, sequence: u16, data: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend([identifier.to_be_bytes(), sequence.to_be_bytes()].concat());
    message.extend(data);
    let length = (message.len() as u16).to_be_bytes();
    // ICMP for IPv4 has no pseudo header (RFC 792), ICMPv6 has one (RFC 4443 section 2.3).
    let parts: [&[u8]; 3] = if pseudo.is_empty() { [&[], &[], &message] } else { [pseudo, &length, &message] };
    let sum = checksum(&parts).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

/// The parts of a received frame that tests ask for. Ports are zero where there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Ethernet header and tags.
    pub ethernet: Ethernet,
    /// EtherType after the tags.
    pub ethertype: u16,
    /// What follows the Ethernet header.
    pub packet: Vec<u8>,
}

impl Seen {
    /// Reads a frame; `None` if it ends before its EtherType.
    pub fn read(frame: &[u8]) -> Option<Seen> {
        let mac = |at: usize| frame.get(at..at + 6)?.try_into().ok();
        let mut ethernet = Ethernet::new(mac(6)?, mac(0)?);
        let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let mut at = 12;
        while let protocol @ (0x8100 | 0x88a8) = word(at)? {
            ethernet.tags.push((protocol, word(at + 2)?));
            at += 4;
        }
        Some(Seen { ethernet, ethertype: word(at)?, packet: frame[at + 2..].to_vec() })
    }

    /// TTL or hop limit of an IP packet.
    pub fn ttl(&self) -> Option<u8> {
        match self.ethertype {
            IPV4 => self.packet.get(8).copied(),
            IPV6 => self.packet.get(7).copied(),
            _ => None,
        }
    }

    /// Protocol of an IPv4 packet, next header of an IPv6 one.
    pub fn protocol(&self) -> Option<u8> {
        match self.ethertype {
            IPV4 => self.packet.get(9).copied(),
            IPV6 => self.packet.get(6).copied(),
            _ => None,
        }
    }

    /// What follows the IP header (IPv6: the fixed one), cut to the length that the header tells.
    pub fn payload(&self) -> Option<&[u8]> {
        let (from, to) = match self.ethertype {
            IPV4 => {
                let total = u16::from_be_bytes(self.packet.get(2..4)?.try_into().ok()?);
                (usize::from(self.packet.first()? & 15) * 4, usize::from(total))
            }
            IPV6 => (40, 40 + usize::from(u16::from_be_bytes(self.packet.get(4..6)?.try_into().ok()?))),
            _ => return None,
        };
        self.packet.get(from..to)
    }

    /// Source and destination port of UDP and TCP, directly after the IP header.
    pub fn ports(&self) -> Option<(u16, u16)> {
        if !matches!(self.protocol()?, UDP | TCP) {
            return None;
        }
        let bytes = self.payload()?.get(..4)?;
        Some((u16::from_be_bytes([bytes[0], bytes[1]]), u16::from_be_bytes([bytes[2], bytes[3]])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const DESTINATION: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

    #[test]
    fn checksums_verify_to_zero() {
        let packet = Ipv4 { options: vec![1, 1, 1, 0], ..Ipv4::new(SOURCE, DESTINATION) }.udp((1, 2), b"odd");
        assert_eq!(packet[0], 0x46);
        assert_eq!(checksum(&[&packet[..24]]), 0);
        let pseudo = [&SOURCE.octets()[..], &DESTINATION.octets(), &[0, UDP, 0, 11]].concat();
        assert_eq!(checksum(&[&pseudo, &packet[24..]]), 0);
        let echo = Ipv4::new(SOURCE, DESTINATION).echo(1, 2, b"abc");
        assert_eq!(checksum(&[&echo[20..]]), 0);
    }

    #[test]
    fn the_example_of_rfc_1071_gives_its_sum() {
        // RFC 1071 section 3: 00 01 f2 03 f4 f5 f6 f7 sums to ddf2 before the complement.
        assert_eq!(checksum(&[&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]]), !0xddf2);
    }

    #[test]
    fn a_tagged_frame_is_read_back() {
        let ethernet = Ethernet::new([2; 6], [4; 6]).tag(0x88a8, 7).tag(0x8100, 5);
        let v6 = Ipv6 { hop_limit: 9, ..Ipv6::new(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST) };
        let seen = Seen::read(&ethernet.frame(IPV6, &v6.tcp((80, 81), 1, 2, 0x10, b"data"))).unwrap();
        assert_eq!(seen.ethernet, ethernet);
        assert_eq!((seen.ttl(), seen.protocol(), seen.ports()), (Some(9), Some(TCP), Some((80, 81))));
        assert_eq!(seen.payload().map(<[u8]>::len), Some(24));
        assert_eq!(Seen::read(&[0; 13]), None);
    }
}
