#![forbid(unsafe_code)]
//! What rules change in a packet, and what a refused packet's sender is told.

use ferrule_dataplane::packet::{Family, Flags, L3, Packet};

use super::execute::Decision;
use super::program::Act;

const SYN: u8 = 2;
const RST: u8 = 4;

fn word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// RFC 1624, equation 3: the checksum after one word went from `old` to `new`.
fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// `setdscp`: the ECN bits stay. False where the packet is not IP.
pub fn set_dscp(packet: &mut Packet, point: u8) -> bool {
    let family = packet.family;
    let h = packet.frame.header_mut();
    let old = word(h, L3);
    match family {
        Family::V4 => {
            let new = old & 0xff03 | u16::from(point) << 2;
            put(h, L3, new);
            let checksum = adjusted(word(h, L3 + 10), old, new);
            put(h, L3 + 10, checksum);
        }
        Family::V6 => put(h, L3, old & 0xf03f | u16::from(point) << 6),
        Family::Other => return false,
    }
    true
}

/// `tcp-setmss`: lowers the MSS option of a SYN. False where there is none to look at, or behind a fragment or authentication header.
pub fn set_mss(packet: &mut Packet, mss: u16, extensions: u8) -> bool {
    if packet.protocol != 6 || packet.l4 == 0 || packet.flags.has(Flags::LATER_FRAGMENT) || extensions & (1 | 16) != 0 {
        return false;
    }
    let at = usize::from(packet.l4);
    let partial = packet.offload.is_partial();
    let Some(tcp) = packet.frame.head_mut().get_mut(at..) else { return false };
    let Some(flags) = tcp.get(13).copied() else { return false };
    let end = usize::from(tcp.get(12).copied().unwrap_or(0) >> 4) * 4;
    if flags & SYN == 0 || end > tcp.len() {
        return false;
    }
    let mut at = 20;
    while at < end {
        let (kind, len) = (tcp.get(at).copied().unwrap_or(0), usize::from(tcp.get(at + 1).copied().unwrap_or(0)));
        match kind {
            0 => return false,
            1 => at += 1,
            _ if at + 1 >= end || len < 2 || at + len > end => return false,
            2 if len != 4 => return false,
            2 => {
                let old = word(tcp, at + 2);
                if old > mss {
                    put(tcp, at + 2, mss);
                    // A partial checksum does not cover the options yet.
                    if !partial {
                        let checksum = adjusted(word(tcp, 16), old, mss);
                        put(tcp, 16, checksum);
                    }
                }
                return true;
            }
            _ => at += len,
        }
    }
    false
}

/// What `unreach`, `reset`, `abort` and their kin come to for a packet: Deny where nothing is to be sent.
pub fn refusal(act: &Act, packet: &Packet) -> Decision {
    let h = packet.frame.header();
    if h[0] & 1 == 1 || packet.flags.has(Flags::LATER_FRAGMENT) {
        return Decision::Deny;
    }
    match packet.family {
        Family::V4 => refusal_v4(act, packet),
        Family::V6 => refusal_v6(act, packet),
        Family::Other => Decision::Deny,
    }
}

fn refusal_v4(act: &Act, packet: &Packet) -> Decision {
    let kind = (packet.destination_port >> 8) as u8;
    let answer = packet.protocol == 1 && !matches!(kind, 8 | 10 | 13 | 15 | 17);
    if packet.destination_v4() >> 28 == 0xe || answer {
        return Decision::Deny;
    }
    match act {
        Act::Unreach(code, mtu) => Decision::Unreach(*code, mtu.filter(|_| *code == 4)),
        Act::Reset => reset(packet),
        Act::Abort => abort(packet),
        _ => Decision::Deny,
    }
}

fn refusal_v6(act: &Act, packet: &Packet) -> Decision {
    let kind = (packet.destination_port >> 8) as u8;
    let answer = packet.protocol == 58 && !matches!(kind, 128 | 130 | 139);
    if packet.destination_v6() >> 120 == 0xff || answer {
        return Decision::Deny;
    }
    match act {
        Act::Unreach6(code) => Decision::Unreach6(*code),
        Act::Reset6 => reset(packet),
        Act::Abort6 => abort(packet),
        // Codes of ICMP as those of ICMPv6 (RFC 7915, 4.2); what has no counterpart becomes "administratively prohibited".
        Act::Unreach(0 | 1 | 5 | 6 | 7 | 11 | 12, _) => Decision::Unreach6(0),
        Act::Unreach(3, _) => Decision::Unreach6(4),
        Act::Unreach(..) | Act::Reset | Act::Abort => Decision::Unreach6(1),
        _ => Decision::Deny,
    }
}

fn reset(packet: &Packet) -> Decision {
    let flags = packet.frame.head().get(usize::from(packet.l4) + 13).copied().unwrap_or(RST);
    let tcp = packet.protocol == 6 && packet.l4 != 0;
    if tcp && flags & RST == 0 { Decision::Reset } else { Decision::Deny }
}

/// None for an ABORT, nor where the verification tag is unknown (RFC 9260, 8.4).
fn abort(packet: &Packet) -> Decision {
    let head = packet.frame.head();
    let at = usize::from(packet.l4);
    if packet.protocol != 132 || at == 0 {
        return Decision::Deny;
    }
    let tag = word(head, at + 4) | word(head, at + 6);
    let end = match packet.family {
        Family::V4 => packet.frame.len().min(L3 + usize::from(word(head, L3 + 2))),
        _ => packet.frame.len(),
    };
    let behind = end.saturating_sub(at + 12);
    let mut answer = tag != 0;
    if behind >= 4 {
        match head.get(at + 12) {
            // INIT has tag 0 and stands alone; its initiate tag is the one to use.
            Some(1) if tag != 0 || behind > usize::from(word(head, at + 14)) + 3 => answer = false,
            Some(1) if behind >= 8 => answer = word(head, at + 16) | word(head, at + 18) != 0,
            Some(6) => answer = false,
            _ => {}
        }
    }
    if answer { Decision::Abort } else { Decision::Deny }
}
