//! Classes of packets for the box: each has a token bucket of its own, so that a flood of one never starves another.

#![forbid(unsafe_code)]

use crate::packet::{Family, Flags, Packet, ether};
use crate::verdict::PuntClass;

/// First bytes of an OSI frame behind an 802.3 length: DSAP, SSAP and control of IS-IS (ISO 10589, 8.4).
const ISIS_LLC: [u8; 3] = [0xfe, 0xfe, 0x03];

/// The class of a parsed packet that goes to the host, or is answered in its place.
pub fn class(packet: &Packet) -> PuntClass {
    match packet.family {
        Family::Other => link(packet),
        Family::V4 | Family::V6 => network(packet),
    }
}

fn link(packet: &Packet) -> PuntClass {
    let h = packet.frame.header();
    match u16::from_be_bytes([h[12], h[13]]) {
        ether::ARP => PuntClass::Neighbor,
        // An 802.3 length (below 0x0600), so an LLC header follows.
        0..0x0600 if packet.frame.len() >= 17 && h[14..17] == ISIS_LLC => PuntClass::Routing,
        _ => PuntClass::Other,
    }
}

/// IANA protocol numbers: IGMP 2, EGP 8, RSVP 46, EIGRP 88, OSPF 89, PIM 103, VRRP 112 (CARP too), IS-IS over IP 124.
fn network(packet: &Packet) -> PuntClass {
    match packet.protocol {
        2 | 8 | 46 | 88 | 89 | 103 | 112 | 124 => PuntClass::Routing,
        // Later fragments have no ports: they cannot be told from any other packet.
        _ if packet.flags.has(Flags::LATER_FRAGMENT) || packet.l4 == 0 => PuntClass::Other,
        6 if tcp_routing(packet.destination_port) || tcp_routing(packet.source_port) => PuntClass::Routing,
        17 => udp(packet),
        58 if packet.family == Family::V6 => icmp_v6((packet.destination_port >> 8) as u8),
        _ => PuntClass::Other,
    }
}

/// BGP (RFC 4271), MSDP (RFC 3618) and LDP sessions (RFC 5036); either end may have opened the connection.
fn tcp_routing(port: u16) -> bool {
    matches!(port, 179 | 639 | 646)
}

fn udp(packet: &Packet) -> PuntClass {
    match packet.destination_port {
        67 | 68 | 546 | 547 => PuntClass::Dhcp,
        // RIP, RIPng, LDP hellos, HSRP, BFD (control, echo, multihop, seamless), Babel.
        520 | 521 | 646 | 1985 | 3784 | 3785 | 4784 | 7784 | 6696 => PuntClass::Routing,
        _ => PuntClass::Other,
    }
}

/// MLD (RFC 2710, RFC 3810), neighbour and router discovery with redirects (RFC 4861), multicast router discovery (RFC 4286).
fn icmp_v6(kind: u8) -> PuntClass {
    if matches!(kind, 130..=137 | 143 | 151..=153) { PuntClass::Neighbor } else { PuntClass::Other }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;
    use crate::forward::testing::*;

    fn class_of(bytes: &[u8]) -> PuntClass {
        let mut bench = Bench::new();
        let packet = bench.packet(bytes);
        let class = class(&packet);
        bench.pool.free(packet.frame);
        class
    }

    fn ip(protocol: u8, v4: bool) -> Vec<u8> {
        let link = PacketBuilder::ethernet2(PEER.0, MAC_0.0);
        let ip = if v4 { link.ipv4(HOST_V4, US_V4, 1) } else { link.ipv6(HOST_V6, US_V6, 1) };
        let mut bytes = Vec::new();
        ip.write(&mut bytes, etherparse::IpNumber(protocol), &[0; 24]).unwrap();
        bytes
    }

    fn port(protocol: u8, source: u16, destination: u16, v4: bool) -> Vec<u8> {
        let link = PacketBuilder::ethernet2(PEER.0, MAC_0.0);
        let ip = if v4 { link.ipv4(HOST_V4, US_V4, 1) } else { link.ipv6(HOST_V6, US_V6, 1) };
        let mut bytes = Vec::new();
        match protocol {
            6 => ip.tcp(source, destination, 1, 1024).write(&mut bytes, &[]).unwrap(),
            _ => ip.udp(source, destination).write(&mut bytes, &[0; 24]).unwrap(),
        }
        bytes
    }

    fn icmp_v6(kind: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let link = PacketBuilder::ethernet2(PEER.0, MAC_0.0);
        link.ipv6(HOST_V6, US_V6, 255).icmpv6_raw(kind, 0, [0; 4]).write(&mut bytes, &[0; 16]).unwrap();
        bytes
    }

    #[test]
    fn protocols_and_ports_have_their_class() {
        use PuntClass::*;
        for v4 in [true, false] {
            for (protocol, class) in [(89, Routing), (103, Routing), (112, Routing), (88, Routing), (47, Other)] {
                assert_eq!(class_of(&ip(protocol, v4)), class, "protocol {protocol}");
            }
            let cases = [
                (6, 40000, 179, Routing),
                (6, 179, 40000, Routing),
                (6, 646, 40000, Routing),
                (6, 40000, 22, Other),
                (17, 520, 520, Routing),
                (17, 521, 521, Routing),
                (17, 49152, 3784, Routing),
                (17, 49152, 4784, Routing),
                (17, 646, 646, Routing),
                (17, 68, 67, Dhcp),
                (17, 67, 68, Dhcp),
                (17, 546, 547, Dhcp),
                (17, 547, 546, Dhcp),
                (17, 67, 53, Other),
                (17, 520, 5000, Other),
            ];
            for (protocol, source, destination, class) in cases {
                let bytes = port(protocol, source, destination, v4);
                assert_eq!(class_of(&bytes), class, "{protocol} {source} -> {destination}");
            }
        }
        assert_eq!(class_of(&ip(2, true)), Routing, "IGMP");
        for kind in 0..=255u8 {
            let neighbor = (130..=137).contains(&kind) || kind == 143 || (151..=153).contains(&kind);
            assert_eq!(class_of(&icmp_v6(kind)), if neighbor { Neighbor } else { Other }, "ICMPv6 {kind}");
        }
    }

    #[test]
    fn link_frames_have_their_class() {
        let frame = |ether_type: u16, rest: &[u8]| {
            [&[1, 0x80, 0xc2, 0, 0, 0x14], &PEER.0[..], &ether_type.to_be_bytes(), rest, &[0; 40]].concat()
        };
        assert_eq!(class_of(&frame(0x0806, &[0, 1, 8, 0, 6, 4, 0, 1])), PuntClass::Neighbor);
        assert_eq!(class_of(&frame(60, &[0xfe, 0xfe, 3, 0x83])), PuntClass::Routing);
        assert_eq!(class_of(&frame(60, &[0x42, 0x42, 3])), PuntClass::Other, "spanning tree");
        assert_eq!(class_of(&frame(0x88cc, &[0xfe, 0xfe, 3])), PuntClass::Other, "LLDP");
        assert_eq!(class_of(&frame(60, &[0xfe, 0xfe, 3])[..16]), PuntClass::Other);
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        let mut bytes = port(17, 68, 67, true);
        bytes[21] = 9;
        bytes[24..26].fill(0);
        let check = crate::packet::checksum::checksum(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&check.to_ne_bytes());
        assert_eq!(class_of(&bytes), PuntClass::Other);
    }
}
