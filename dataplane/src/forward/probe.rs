//! Keep-alives that Ferrule sends to both ends of a TCP connection in the other's name (RFC 9293, 3.8.4).

#![forbid(unsafe_code)]

use std::net::IpAddr;

use crate::forward::build::{self, HeaderV4, HeaderV6};
use crate::packet::Family;
use crate::stage::Context;
use crate::verdict::Generated;

const ACK: u8 = 16;
/// TOS "low delay", as FreeBSD sends them.
const LOW_DELAY: u8 = 0x10;

/// What a keep-alive says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Source.
    pub source: IpAddr,
    /// Destination, of the same family.
    pub destination: IpAddr,
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Sequence number: one before what the receiver expects.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
}

/// Sends an empty segment with ACK alone. False without a free buffer, or where the families differ.
pub fn keepalive(probe: &Probe, context: &mut Context<'_>) -> bool {
    let (family, at) = match (probe.source, probe.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => (Family::V4, build::L4_V4),
        (IpAddr::V6(_), IpAddr::V6(_)) => (Family::V6, build::L4_V6),
        _ => return false,
    };
    let Some(mut frame) = build::frame(context, at + 20) else { return false };
    let tcp = &mut frame.header_mut()[at..at + 20];
    tcp.fill(0);
    tcp[..2].copy_from_slice(&probe.ports.0.to_be_bytes());
    tcp[2..4].copy_from_slice(&probe.ports.1.to_be_bytes());
    tcp[4..8].copy_from_slice(&probe.sequence.to_be_bytes());
    tcp[8..12].copy_from_slice(&probe.acknowledgement.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = ACK;
    let protocol = 6;
    match (probe.source, probe.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (source, destination) = (source.octets(), destination.octets());
            let header = HeaderV4 { source, destination, protocol, tos: LOW_DELAY, id: 0, dont_fragment: true };
            build::ipv4(&mut frame, &header);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (source, destination) = (source.octets(), destination.octets());
            build::ipv6(&mut frame, &HeaderV6 { source, destination, protocol, hop_limit: build::TTL });
        }
        _ => {}
    }
    build::transport_checksum(&mut frame, family, protocol, 16);
    let packet = build::packet(frame, family, protocol, probe.ports.0, probe.ports.1);
    context.emit(Generated::Keepalive, packet);
    true
}
