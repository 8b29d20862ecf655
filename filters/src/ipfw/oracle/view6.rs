#![forbid(unsafe_code)]
//! The walk along the headers of an IPv6 packet (RFC 8200), as far as ipfw goes.

use super::setup::Settings;
use super::view::{ETHERNET, Family, Unreadable, View, address6, protocol, word};

/// Bits of `Test::ExtensionHeaders`.
mod bit {
    pub const FRAGMENT: u8 = 1;
    pub const HOP_BY_HOP: u8 = 2;
    pub const ROUTING: u8 = 4;
    pub const DESTINATION: u8 = 8;
    pub const AUTHENTICATION: u8 = 16;
    pub const ENCAPSULATING: u8 = 32;
    pub const ROUTING_0: u8 = 64;
    pub const ROUTING_2: u8 = 128;
}

/// Fills in what an IPv6 packet is.
pub fn read(mut view: View, frame: &[u8], layer2: bool, settings: &Settings) -> Result<View, Unreadable> {
    view.family = Family::V6;
    view.header_length = 40;
    let payload = usize::from(word(frame, ETHERNET + 4));
    view.ip_length = payload + 40;
    if !layer2 {
        if ETHERNET + view.ip_length > frame.len() {
            return Err(Unreadable);
        }
        view.end = if payload == 0 { frame.len() } else { ETHERNET + view.ip_length };
    }
    view.source = address6(frame, ETHERNET + 8);
    view.destination = address6(frame, ETHERNET + 24);
    view.protocol = frame[ETHERNET + 6];
    while view.upper.is_none() && !view.later_fragment {
        header(&mut view, frame, settings)?;
    }
    Ok(view)
}

/// Takes one header: an extension, after which there is another, or the upper one.
fn header(view: &mut View, frame: &[u8], settings: &Settings) -> Result<(), Unreadable> {
    let from = view.header_length;
    match view.protocol {
        protocol::TCP | protocol::UDP | protocol::UDP_LITE | protocol::SCTP => view.take_upper(frame)?,
        protocol::ICMPV6 => {
            let at = view.demand(from, 8)?;
            view.upper = Some(at);
            view.icmp6_type = frame[at];
        }
        // Hop-by-hop options, destination options.
        0 | 60 => {
            let at = view.demand(from, 2)?;
            view.extensions |= if view.protocol == 0 { bit::HOP_BY_HOP } else { bit::DESTINATION };
            view.header_length += (usize::from(frame[at + 1]) + 1) * 8;
            view.protocol = frame[at];
        }
        // Routing.
        43 => {
            let at = view.demand(from, 4)?;
            match frame[at + 2] {
                0 => view.extensions |= bit::ROUTING_0,
                2 => view.extensions |= bit::ROUTING_2,
                _ if settings.deny_unknown_extension_headers => return Err(Unreadable),
                _ => {}
            }
            view.extensions |= bit::ROUTING;
            view.header_length += (usize::from(frame[at + 1]) + 1) * 8;
            view.protocol = frame[at];
        }
        // Fragment.
        44 => {
            let at = view.demand(from, 8)?;
            view.extensions |= bit::FRAGMENT;
            view.header_length += 8;
            view.protocol = frame[at];
            let field = word(frame, at + 2);
            view.later_fragment = field & 0xfff8 != 0;
            let single = !view.later_fragment && field & 1 == 0;
            if single && !settings.permit_single_fragment6 {
                return Err(Unreadable);
            }
        }
        // Authentication.
        51 => {
            let at = view.demand(from, 2)?;
            view.extensions |= bit::AUTHENTICATION;
            view.header_length += (usize::from(frame[at + 1]) + 2) * 4;
            view.protocol = frame[at];
        }
        // Encapsulating security payload: what follows is not readable.
        50 => {
            view.upper = Some(view.demand(from, 4)?);
            view.extensions |= bit::ENCAPSULATING;
        }
        // No next header.
        59 => view.upper = Some(ETHERNET),
        // CARP: version 2 advertisements only.
        112 => {
            let at = view.demand(from, 8)?;
            if frame[at] & 15 != 1 {
                return Err(Unreadable);
            }
            view.upper = Some(at);
        }
        other => {
            let length = match other {
                89 => 2,       // OSPF
                103 | 47 => 4, // PIM, GRE
                41 => 40,      // IPv6 in IPv6
                4 | 240 => 20, // IPv4 in IPv6, pfsync
                _ if settings.deny_unknown_extension_headers => return Err(Unreadable),
                _ => 2,
            };
            view.upper = Some(view.demand(from, length)?);
        }
    }
    Ok(())
}
