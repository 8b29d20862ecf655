#![forbid(unsafe_code)]
//! Changing addresses and ports in place, checksums mended incrementally (RFC 1624), whole or left to the device.

use ferrule_dataplane::packet::checksum::{update, update_partial, update16};
use ferrule_dataplane::packet::{Flags, Packet, partial};

use super::flow::{self, ICMP, Quoted, TCP, UDP};

/// Which end of the packet changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Source address and port.
    Source,
    /// Destination address and port.
    Destination,
}

/// Where the IP header's checksum and addresses are, from the header's start.
const IP_CHECKSUM: usize = 10;

impl End {
    fn address_at(self) -> usize {
        if self == End::Source { 12 } else { 16 }
    }

    fn port_at(self) -> usize {
        if self == End::Source { 0 } else { 2 }
    }
}

/// Where a transport header has a checksum over the addresses.
fn checksum_at(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(16),
        // UDP, DCCP, UDP-Lite.
        UDP | 33 | 136 => Some(6),
        _ => None,
    }
}

fn read(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]))
}

fn write(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// Gives one end of a packet another address and, for TCP, UDP and ICMP echoes, another port or identifier. The descriptor follows: ports,
/// and the hash, which is to be computed anew.
pub(super) fn end(packet: &mut Packet, end: End, address: u32, port: Option<u16>) {
    let l4 = usize::from(packet.l4);
    let protocol = packet.protocol;
    // Read before anything changes: it compares the field with the present addresses.
    let left_to_device =
        packet.offload.is_partial() || (packet.flags.has(Flags::MAYBE_PARTIAL) && partial::looks_partial(packet));
    let new = address.to_be_bytes();
    let head = packet.frame.head_mut();
    let at = 14 + end.address_at();
    let Some(old) = head.get(at..).and_then(|b| b.first_chunk::<4>()).copied() else { return };
    if let Some(check) = read(head, 14 + IP_CHECKSUM) {
        write(head, 14 + IP_CHECKSUM, &update(check, &old, &new).to_ne_bytes());
    }
    write(head, at, &new);
    // Later fragments have no transport header.
    if l4 != 0 {
        if let Some(field) = checksum_at(protocol).map(|field| l4 + field)
            && let Some(check) = read(head, field)
            && !(protocol == UDP && check == 0 && !left_to_device)
        {
            let port_at = l4 + end.port_at();
            let mut check = if left_to_device { update_partial(check, &old, &new) } else { update(check, &old, &new) };
            if let (Some(port), false, Some(old)) = (port, left_to_device, read(head, port_at)) {
                check = update16(check, old, port.to_be());
            }
            if check == 0 && protocol == UDP {
                check = 0xffff;
            }
            write(head, field, &check.to_ne_bytes());
        }
        if let Some(port) = port {
            let at = if protocol == ICMP { l4 + 4 } else { l4 + end.port_at() };
            if protocol == ICMP
                && let (Some(check), Some(old)) = (read(head, l4 + 2), read(head, at))
            {
                write(head, l4 + 2, &update16(check, old, port.to_be()).to_ne_bytes());
            }
            write(head, at, &port.to_be_bytes());
            match end {
                _ if protocol == ICMP => packet.source_port = port,
                End::Source => packet.source_port = port,
                End::Destination => packet.destination_port = port,
            }
        }
    }
    forget_hash(packet);
}

/// The flow hash is that of the present tuple, or none. For a fragment the parser leaves the identification in its place.
fn forget_hash(packet: &mut Packet) {
    packet.flags.clear(Flags::HASHED);
    if packet.flags.has(Flags::FRAGMENT) {
        let h = packet.frame.header();
        packet.hash = u32::from(u16::from_be_bytes([h[18], h[19]]));
    }
}

/// Changes a field inside an ICMP message and mends the message's checksum.
fn inside_message(head: &mut [u8], message: usize, at: usize, new: &[u8]) {
    let Some(old) = head.get(at..at + new.len()) else { return };
    if let Some(check) = read(head, message + 2) {
        let check = update(check, old, new);
        write(head, message + 2, &check.to_ne_bytes());
    }
    write(head, at, new);
}

/// Gives one end of the packet that an ICMP error quotes another address and port; its own checksums, as far as they are quoted, and the
/// error's follow.
pub(super) fn quoted_end(packet: &mut Packet, quoted: &Quoted, end: End, address: u32, port: u16) {
    let message = usize::from(packet.l4);
    let Quoted { at, transport, key } = *quoted;
    let new = address.to_be_bytes();
    let head = packet.frame.head_mut();
    let Some(old) = head.get(at + end.address_at()..).and_then(|b| b.first_chunk::<4>()).copied() else { return };
    if let Some(check) = read(head, at + IP_CHECKSUM) {
        inside_message(head, message, at + IP_CHECKSUM, &update(check, &old, &new).to_ne_bytes());
    }
    inside_message(head, message, at + end.address_at(), &new);
    let port_at = transport + if key.protocol == ICMP { 4 } else { end.port_at() };
    let has_port = matches!(key.protocol, TCP | UDP | ICMP);
    let field = if key.protocol == ICMP { Some(2) } else { checksum_at(key.protocol) }.map(|field| transport + field);
    if let Some(field) = field
        && let Some(check) = read(head, field)
        && !(key.protocol == UDP && check == 0)
    {
        let mut mended = if key.protocol == ICMP { check } else { update(check, &old, &new) };
        if let (true, Some(old)) = (has_port, read(head, port_at)) {
            mended = update16(mended, old, port.to_be());
        }
        if mended == 0 && key.protocol == UDP {
            mended = 0xffff;
        }
        inside_message(head, message, field, &mended.to_ne_bytes());
    }
    if has_port {
        inside_message(head, message, port_at, &port.to_be_bytes());
    }
    forget_hash(packet);
}

/// Flags of a TCP segment.
pub(super) fn tcp_flags(packet: &Packet) -> Option<u8> {
    (packet.protocol == flow::TCP && packet.l4 != 0)
        .then(|| packet.frame.head().get(usize::from(packet.l4) + 13).copied())?
}
