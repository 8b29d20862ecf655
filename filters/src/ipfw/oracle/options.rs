#![forbid(unsafe_code)]
//! Options of IPv4 and TCP headers.

use super::view::{ETHERNET, View};

/// Bits of `Test::IpOptions` that an IPv4 header has; None where its options are broken.
pub fn ip_option_bits(frame: &[u8], view: &View) -> Option<u8> {
    let end = (ETHERNET + view.header_length.max(20)).min(frame.len());
    let mut rest = &frame[ETHERNET + 20..end];
    let mut bits = 0;
    while let [kind, tail @ ..] = rest {
        let length = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(*tail.first()?),
        };
        if length == 0 || length > rest.len() {
            return None;
        }
        bits |= match kind {
            137 => 1,
            131 => 2,
            7 => 4,
            68 => 8,
            _ => 0,
        };
        rest = &rest[length..];
    }
    Some(bits)
}

/// The options of a TCP header one by one, up to the end mark or the first that is broken: kind and data.
pub fn tcp_options(options: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    let mut rest = options;
    while let [kind, tail @ ..] = rest {
        match (kind, tail.first().map(|length| usize::from(*length))) {
            (0, _) => break,
            (1, _) => rest = tail,
            (_, Some(length)) if (2..=rest.len()).contains(&length) => {
                found.push((*kind, &rest[2..length]));
                rest = &rest[length..];
            }
            _ => break,
        }
    }
    found
}

/// Bits of `Test::TcpOptions`. FreeBSD no longer knows `cc`, whose bit is never set.
pub fn tcp_option_bits(options: &[u8]) -> u8 {
    let bits = tcp_options(options).into_iter().map(|(kind, data)| match (kind, data.len()) {
        (2, 2) => 1,
        (3, 1) => 2,
        (4, 0) => 4,
        (5, length) if length > 0 && length.is_multiple_of(8) => 4,
        (8, 8) => 8,
        _ => 0,
    });
    bits.fold(0, |all, bit| all | bit)
}

/// The MSS option; of several the last.
pub fn tcp_mss(options: &[u8]) -> Option<u16> {
    let mut sizes = tcp_options(options).into_iter().filter(|(kind, data)| *kind == 2 && data.len() == 2);
    sizes.next_back().map(|(_, data)| u16::from_be_bytes([data[0], data[1]]))
}
