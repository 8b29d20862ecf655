#![forbid(unsafe_code)]
//! Bytes of a packet that rules change, and the checksums over them.

use super::view::{ETHERNET, Family, View, word};

/// RFC 1624, equation 3: the checksum after one word went from `old` to `new`.
fn adjusted(checksum: u16, old: u16, new: u16) -> u16 {
    let add = |a: u16, b: u16| {
        let (sum, carry) = a.overflowing_add(b);
        sum + u16::from(carry)
    };
    !add(add(!checksum, !old), new)
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// `setdscp`: the code point, the ECN bits staying as they are. False where the packet is not IP.
pub fn set_dscp(frame: &mut [u8], view: &View, point: u8) -> bool {
    let old = word(frame, ETHERNET);
    match view.family {
        Family::V4 => {
            let new = old & 0xff03 | u16::from(point) << 2;
            put(frame, ETHERNET, new);
            let checksum = adjusted(word(frame, ETHERNET + 10), old, new);
            put(frame, ETHERNET + 10, checksum);
        }
        Family::V6 => put(frame, ETHERNET, old & 0xf03f | u16::from(point) << 6),
        Family::Other => return false,
    }
    true
}

/// `tcp-setmss`: lowers the MSS option of the TCP header at `tcp`, whose options span `length` bytes. False where there is none.
pub fn set_mss(frame: &mut [u8], tcp: usize, length: usize, mss: u16) -> bool {
    let mut at = tcp + 20;
    let end = at + length;
    while at < end {
        match frame[at] {
            0 => return false,
            1 => at += 1,
            kind => {
                if end - at < 2 {
                    return false;
                }
                let size = usize::from(frame[at + 1]);
                if size < 2 || at + size > end {
                    return false;
                }
                if kind == 2 {
                    if size != 4 {
                        return false;
                    }
                    let old = word(frame, at + 2);
                    if old > mss {
                        put(frame, at + 2, mss);
                        let checksum = adjusted(word(frame, tcp + 16), old, mss);
                        put(frame, tcp + 16, checksum);
                    }
                    return true;
                }
                at += size;
            }
        }
    }
    false
}
