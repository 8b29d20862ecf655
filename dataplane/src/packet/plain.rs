//! The common shape of a packet, told in straight-line code: untagged, to our MAC, IPv4 without options or IPv6 with TCP or UDP right
//! behind, nothing about it that needs a second look. Both short ways use these tests: the parser's ([`super::parse::parse`])
//! and the forwarding path's ([`crate::forward::fast`]). What they do not take, [`super::parse::parse_slow`] judges; a property
//! test holds the two against each other.

#![forbid(unsafe_code)]

use crate::arena::HEADER_WINDOW;
use crate::packet::checksum;
use crate::packet::parse::{ETHERNET_LEN, Ingress};
use crate::ports::MAC_MASK;

/// The first 128 bytes of a frame's buffer; bytes past the frame's end are stale, so its length is compared first.
pub type Window = [u8; HEADER_WINDOW];

/// `N` bytes from a constant offset, as one load: put together byte by byte, the compiler takes them apart again for the tests.
#[inline(always)]
pub fn bytes<const N: usize>(h: &Window, at: usize) -> [u8; N] {
    h[at..].first_chunk().copied().unwrap_or([0; N])
}

#[inline(always)]
fn be16(h: &Window, at: usize) -> u16 {
    u16::from_be_bytes(bytes(h, at))
}

#[inline(always)]
fn word(h: &Window, at: usize) -> u32 {
    u32::from_ne_bytes(bytes(h, at))
}

/// EtherType, version and header length of IPv4 without options, as they stand in the frame.
const SHAPE_V4: u32 = u32::from_ne_bytes([0x08, 0x00, 0x45, 0]);
const SHAPE_MASK_V4: u32 = u32::from_ne_bytes([0xff, 0xff, 0xff, 0]);
/// EtherType and version of IPv6.
const SHAPE_V6: u32 = u32::from_ne_bytes([0x86, 0xdd, 0x60, 0]);
const SHAPE_MASK_V6: u32 = u32::from_ne_bytes([0xff, 0xff, 0xf0, 0]);

/// To our MAC, and from one that is no group address: one comparison of the first eight bytes.
#[inline(always)]
fn is_addressed(h: &Window, ingress: &Ingress<'_>) -> bool {
    const GROUP_BIT: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 1, 0]);
    u64::from_ne_bytes(bytes(h, 0)) & (MAC_MASK | GROUP_BIT) == ingress.mac
}

/// By first byte of an address: false for 0/8, 127/8 and 224/3 (RFC 1812, 5.3.7), and for 169/8, of which the slow path finds 169.254/16
/// (RFC 3927, 2.7). A table costs three instructions where the comparisons cost twelve.
static UNICAST: [bool; 256] = {
    let mut table = [true; 256];
    table[0] = false;
    table[127] = false;
    table[169] = false;
    let mut i = 224;
    while i < 256 {
        table[i] = false;
        i += 1;
    }
    table
};

/// Whether a frame of one segment of `len` bytes is a plain IPv4 packet, whole, with a right header, no fragment.
///
/// Destinations are tested as sources are: what no packet from the wire may have as its destination must not reach the routes,
/// where a filter's redirection may lead to it.
#[inline(always)]
pub fn is_v4(h: &Window, len: usize, ingress: &Ingress<'_>) -> bool {
    let total = usize::from(be16(h, 16));
    len >= 34
        && word(h, 12) & SHAPE_MASK_V4 == SHAPE_V4
        && is_addressed(h, ingress)
        && total + ETHERNET_LEN == len
        && total <= ingress.mtu
        && be16(h, 20) & 0x3fff == 0
        && UNICAST[usize::from(h[26])] & UNICAST[usize::from(h[30])]
        && word(h, 26) != word(h, 30)
        && checksum::ipv4_header_is_valid(&bytes(h, 14))
}

/// Whether a frame of one segment of `len` bytes is a plain IPv6 packet, whole; [`is_transport`] or the caller says whether the
/// transport header is right behind.
///
/// The source is global unicast or unique local: the first byte settles it for nearly all (2000::/3, fc00::/7). The destination is
/// not of 0::/8 (unspecified, loopback, mapped IPv4), not of fe::/8 (link-local), not a group.
#[inline(always)]
pub fn is_v6(h: &Window, len: usize, ingress: &Ingress<'_>) -> bool {
    len >= 54
        && word(h, 12) & SHAPE_MASK_V6 == SHAPE_V6
        && is_addressed(h, ingress)
        && usize::from(be16(h, 18)) + 54 == len
        && len - ETHERNET_LEN <= ingress.mtu
        && (h[22] & 0xe0 == 0x20 || h[22] & 0xfe == 0xfc)
        && h[38].wrapping_add(2) > 2
        && bytes::<16>(h, 22) != bytes::<16>(h, 38)
}

/// Whether the transport header at `l4`, with `have` bytes from there on, is a TCP or UDP header in order, and not one of a DHCP client.
#[inline(always)]
pub fn is_transport(h: &Window, protocol: u8, l4: usize, have: usize) -> bool {
    match protocol {
        17 => {
            let length = usize::from(be16(h, l4 + 4));
            have >= 8 && length >= 8 && length <= have && be16(h, l4 + 2) != 68
        }
        6 => {
            let offset = usize::from(h[l4 + 12] >> 4) * 4;
            have >= 20 && offset >= 20 && offset <= have
        }
        _ => false,
    }
}
