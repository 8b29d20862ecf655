//! Runs of TCP segments that can leave in one system call: handed to the kernel as one super-packet, which it cuts again itself.
//!
//! Every frame of the transmit ring is sent in a bottom-half section of its own. Where the far end is a stack on this machine
//! (veth), the end of that section is where the stack takes the packet in, one by one, while the kernel's own forwarding does
//! both for whole batches. A super-packet that the device cannot segment is cut in software and its frames are sent
//! within one section, as they are after the kernel's own GRO.
//!
//! The frames on the wire must not tell the difference: [`find`] takes only what software segmentation (`tcp_gso_segment`,
//! `inet_gso_segment`, `ipv6_gso_segment`, `skb_segment`) gives back bit for bit. It copies the headers of the super-packet to each
//! frame, sets the lengths, counts the sequence number up by the payload and the IPv4 identification by one, leaves PSH
//! to the last frame and sums afresh. Hence all sums are verified first: a wrong one would be mended.
#![forbid(unsafe_code)]

use crate::arena::HEADER_WINDOW;
use crate::packet::checksum;
use crate::packet::plain::{Window, bytes};
use crate::port::TxFrame;
use crate::port::virtio::{FLAG_NEEDS_CHECKSUM, GSO_TCP_V4, GSO_TCP_V6, VirtioHeader};

/// Frames of one run. The kernel's own super-packets have as many at most (`GSO_MAX_SEGS` is more, 64 KiB of 1448 are 45).
pub(super) const MAX_FRAMES: usize = 64;
/// Bytes of a super-packet with its Ethernet header: below `GSO_LEGACY_MAX_SIZE`, the least limit of any device.
const MAX_BYTES: usize = 65_535;
/// Ethernet header.
const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
/// Where the TCP header has its checksum.
const TCP_CHECKSUM: usize = 16;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
/// A sum that adds up, but that the kernel would write as 0 (only incremental updates leave it).
const OTHER_ZERO: [u8; 2] = [0xff, 0xff];

/// The first frames of a list, that go as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// How many; two at least.
    pub count: usize,
    /// Bytes of all headers of each.
    pub header_bytes: usize,
    /// Payload of each but the last, in bytes.
    pub segment: usize,
    /// Payload of all, in bytes.
    pub payload: usize,
    /// Where TCP begins.
    transport: usize,
}

/// What the first frame of a run says of the others.
struct First {
    transport: usize,
    header_bytes: usize,
    segment: usize,
}

/// The run at the start of `frames`, if there is one. `longest` is the length of a frame that fills the link.
#[inline]
pub(super) fn find(frames: &[TxFrame], longest: usize) -> Option<Run> {
    let (first, rest) = frames.split_first()?;
    let second = rest.first()?;
    let shape = shape(first)?;
    if first.frame.len() > longest {
        return None;
    }
    // The cheap comparison of two before the sum over the first.
    let mut payload = follows(first, second, 1, &shape)?;
    if !sums_are_right(first, &shape) {
        return None;
    }
    let mut run = Run {
        count: 1,
        header_bytes: shape.header_bytes,
        segment: shape.segment,
        payload: shape.segment,
        transport: shape.transport,
    };
    loop {
        let next = &frames[run.count];
        if run.header_bytes + run.payload + payload > MAX_BYTES || !sums_are_right(next, &shape) {
            break;
        }
        run.count += 1;
        run.payload += payload;
        let ends = payload < shape.segment || flags(next, &shape) != ACK;
        if ends || run.count == MAX_FRAMES || run.count == frames.len() {
            break;
        }
        match follows(first, &frames[run.count], run.count, &shape) {
            Some(more) => payload = more,
            None => break,
        }
    }
    (run.count > 1).then_some(run)
}

/// The frame's headers, when it can begin a run: untagged, in one buffer, IPv4 without options that is no fragment or IPv6, TCP right
/// behind, some payload, no flag but ACK, and the lengths say what the frame has.
#[inline]
fn shape(tx: &TxFrame) -> Option<First> {
    let (h, length) = (tx.frame.header(), tx.frame.len());
    let (transport, packet) = match bytes::<2>(h, 12) {
        // Fragment offset and More Fragments are 0; Don't Fragment is as it is.
        [0x08, 0x00] if h[14] == 0x45 && h[23] == 6 && h[20] & 0xbf == 0 && h[21] == 0 => {
            (ETHERNET + IPV4, usize::from(be16(h, 16)))
        }
        [0x86, 0xdd] if h[14] >> 4 == 6 && h[20] == 6 => (ETHERNET + IPV6, IPV6 + usize::from(be16(h, 18))),
        _ => return None,
    };
    let header_bytes = transport + 4 * usize::from(h[transport + 12] >> 4);
    let sensible = header_bytes >= transport + TCP && length > header_bytes && length == ETHERNET + packet;
    let plain = h[transport + 13] == ACK && bytes::<2>(h, transport + 18) == [0, 0];
    let whole = !tx.frame.is_chain() && tx.offload.is_none();
    (sensible && plain && whole).then_some(First { transport, header_bytes, segment: length - header_bytes })
}

/// Whether the headers of `next` are what the kernel makes of those of `first` at place `place` (sums apart); gives the payload.
#[inline]
fn follows(first: &TxFrame, next: &TxFrame, place: usize, shape: &First) -> Option<usize> {
    let (a, b) = (first.frame.header(), next.frame.header());
    let t = shape.transport;
    let payload = next.frame.len().checked_sub(shape.header_bytes)?;
    if payload == 0 || payload > shape.segment || next.frame.is_chain() || !next.offload.is_none() {
        return None;
    }
    let same = |from: usize, to: usize| a[from..to] == b[from..to];
    let packet = next.frame.len() - ETHERNET;
    let network = if t == ETHERNET + IPV4 {
        // Identification in 18..20, header checksum in 24..26.
        usize::from(be16(b, 16)) == packet
            && be16(b, 18) == be16(a, 18).wrapping_add(place as u16)
            && same(20, 24)
            && same(26, 34)
            && same(0, 16)
    } else {
        usize::from(be16(b, 18)) == packet - IPV6 && same(20, 54) && same(0, 18)
    };
    let sequence = |h: &Window| u32::from_be_bytes(bytes(h, t + 4));
    let transport = same(t, t + 4)
        && sequence(b) == sequence(a).wrapping_add((place * shape.segment) as u32)
        && same(t + 8, t + 13)
        && b[t + 13] & !PSH == ACK
        && same(t + 14, t + TCP_CHECKSUM)
        && same(t + 18, shape.header_bytes);
    (network && transport).then_some(payload)
}

/// Whether the kernel would write the same sums.
#[inline]
fn sums_are_right(tx: &TxFrame, shape: &First) -> bool {
    let (h, bytes_of) = (tx.frame.header(), tx.frame.head());
    let t = shape.transport;
    if bytes::<2>(h, t + TCP_CHECKSUM) == OTHER_ZERO {
        return false;
    }
    if t == ETHERNET + IPV4
        && (bytes::<2>(h, 24) == OTHER_ZERO || !checksum::ipv4_header_is_valid(&bytes::<IPV4>(h, ETHERNET)))
    {
        return false;
    }
    let transport = &bytes_of[t..];
    checksum::fold(checksum::sum(transport, pseudo(h, t, transport.len()))) == 0xffff
}

/// The sum of the pseudo-header over `length` bytes of TCP.
fn pseudo(h: &Window, transport: usize, length: usize) -> u64 {
    if transport == ETHERNET + IPV4 {
        checksum::pseudo_v4(bytes(h, 26), bytes(h, 30), 6, length as u16)
    } else {
        checksum::pseudo_v6(bytes(h, 22), bytes(h, 38), 6, length as u32)
    }
}

fn flags(tx: &TxFrame, shape: &First) -> u8 {
    tx.frame.header()[shape.transport + 13]
}

fn be16(h: &Window, at: usize) -> u16 {
    u16::from_be_bytes(bytes(h, at))
}

impl Run {
    /// The headers of the super-packet, [`Run::header_bytes`] long, and what goes before them. `frames` are those of the run.
    pub(super) fn headers(&self, frames: &[TxFrame]) -> (VirtioHeader, [u8; HEADER_WINDOW]) {
        let t = self.transport;
        let mut h = *frames[0].frame.header();
        // PSH of the last.
        h[t + 13] = frames[self.count - 1].frame.header()[t + 13];
        let length = self.header_bytes + self.payload - ETHERNET;
        let is_v4 = t == ETHERNET + IPV4;
        if is_v4 {
            h[16..18].copy_from_slice(&(length as u16).to_be_bytes());
            h[24..26].copy_from_slice(&[0, 0]);
            let sum = checksum::checksum(&h[ETHERNET..t]);
            h[24..26].copy_from_slice(&sum.to_ne_bytes());
        } else {
            h[18..20].copy_from_slice(&((length - IPV6) as u16).to_be_bytes());
        }
        // A partial sum, not inverted: the kernel completes it for each frame.
        let partial = checksum::fold(pseudo(&h, t, length + ETHERNET - t));
        h[t + TCP_CHECKSUM..t + TCP_CHECKSUM + 2].copy_from_slice(&partial.to_ne_bytes());
        let virtio = VirtioHeader {
            flags: FLAG_NEEDS_CHECKSUM,
            gso_type: if is_v4 { GSO_TCP_V4 } else { GSO_TCP_V6 },
            header_length: self.header_bytes as u16,
            gso_size: self.segment as u16,
            csum_start: t as u16,
            csum_offset: TCP_CHECKSUM as u16,
        };
        (virtio, h)
    }

    /// The payload of each frame, in order.
    pub(super) fn payloads<'a>(&self, frames: &'a [TxFrame]) -> impl Iterator<Item = &'a [u8]> {
        let header_bytes = self.header_bytes;
        frames[..self.count].iter().map(move |tx| &tx.frame.head()[header_bytes..])
    }
}
