//! The virtio-net header that AF_PACKET and TAP put before each frame (Virtio 1.2, section 5.1.6; linux/virtio_net.h).
//!
//! It says what the sender left undone: a transport checksum that covers the pseudo-header only, and a super-packet that
//! stands for several segments. Both interfaces use the *legacy* form: ten bytes in the byte order of the machine.
#![forbid(unsafe_code)]

use crate::arena::HEADER_WINDOW;
use crate::packet::{GsoKind, Offload};

/// Bytes of the legacy header, which both AF_PACKET (`PACKET_VNET_HDR`) and TAP (`TUNSETVNETHDRSZ` 10) use.
pub const HEADER_BYTES: usize = 10;

/// No transport header begins before the end of the Ethernet header.
const ETHERNET_BYTES: u16 = 14;

/// `flags`: the checksum at `csum_start + csum_offset` holds the pseudo-header sum only.
pub const FLAG_NEEDS_CHECKSUM: u8 = 1;
/// `flags`: the sender has verified the transport checksum.
pub const FLAG_DATA_VALID: u8 = 2;

/// `gso_type`: one packet, nothing to segment.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCP_V4: u8 = 1;
/// `gso_type`: UDP fragmentation (UFO), which no current kernel makes.
pub const GSO_UDP: u8 = 3;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCP_V6: u8 = 4;
/// `gso_type`: UDP segmentation (USO): each segment gets a UDP header of its own.
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type` modifier: a TCP packet with CWR set, which only the first segment keeps.
pub const GSO_ECN: u8 = 0x80;

/// The header as it stands before a frame. All offsets count from the first byte of the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VirtioHeader {
    /// [`FLAG_NEEDS_CHECKSUM`] and [`FLAG_DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_` types, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of all headers together; a hint of how much the receiver should keep in one piece. 0 says nothing.
    pub header_length: u16,
    /// Payload bytes of each segment; 0 when `gso_type` is [`GSO_NONE`].
    pub gso_size: u16,
    /// Where the partial sum starts to cover the packet.
    pub csum_start: u16,
    /// Where the checksum field lies, counted from `csum_start`.
    pub csum_offset: u16,
}

impl VirtioHeader {
    /// Reads the header from its ten bytes.
    #[inline]
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            header_length: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// The ten bytes to put before the frame.
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        bytes[2..4].copy_from_slice(&self.header_length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        bytes[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        bytes
    }

    /// Whether the transport checksum is still to be completed.
    #[inline]
    pub fn needs_checksum(&self) -> bool {
        self.flags & FLAG_NEEDS_CHECKSUM != 0
    }

    /// Whether the frame stands for several segments.
    #[inline]
    pub fn is_super_packet(&self) -> bool {
        self.gso_type & !GSO_ECN != GSO_NONE
    }

    /// What the header leaves to the device, for a frame of `length` bytes. None for a header that contradicts the frame or
    /// a kind of super-packet that we do not know.
    #[inline]
    pub fn offload(&self, length: usize) -> Option<Offload> {
        if self.flags & FLAG_NEEDS_CHECKSUM == 0 && self.gso_type == GSO_NONE {
            return Some(Offload::NONE);
        }
        let mut offload = Offload::NONE;
        if self.needs_checksum() {
            let field = usize::from(self.csum_start) + usize::from(self.csum_offset);
            if self.csum_start < ETHERNET_BYTES || field + 2 > length {
                return None;
            }
            offload.csum_start = self.csum_start;
            offload.csum_offset = self.csum_offset;
        }
        offload.gso_kind = match self.gso_type & !GSO_ECN {
            GSO_NONE => return Some(offload),
            GSO_TCP_V4 => GsoKind::TcpV4,
            GSO_TCP_V6 => GsoKind::TcpV6,
            GSO_UDP_L4 => GsoKind::Udp,
            _ => return None,
        };
        if self.gso_size == 0 {
            return None;
        }
        offload.gso_size = self.gso_size;
        offload.gso_ecn = self.gso_type & GSO_ECN != 0;
        Some(offload)
    }

    /// The header for a frame with this offload. `header` is the start of the frame, from which the length of a
    /// super-packet's headers is read (devices want those in one piece).
    #[inline]
    pub fn new(offload: &Offload, header: &[u8; HEADER_WINDOW]) -> Self {
        let mut virtio = Self::default();
        if offload.is_partial() {
            virtio.flags = FLAG_NEEDS_CHECKSUM;
            virtio.csum_start = offload.csum_start;
            virtio.csum_offset = offload.csum_offset;
        }
        if offload.gso_kind == GsoKind::None {
            return virtio;
        }
        virtio.gso_size = offload.gso_size;
        virtio.gso_type = match offload.gso_kind {
            GsoKind::TcpV4 => GSO_TCP_V4,
            GsoKind::TcpV6 => GSO_TCP_V6,
            GsoKind::Udp => GSO_UDP_L4,
            GsoKind::None => GSO_NONE,
        };
        if offload.gso_ecn {
            virtio.gso_type |= GSO_ECN;
        }
        // TCP's data offset stands in the upper half of its byte 12 and counts words of four bytes; UDP has eight bytes.
        let transport = usize::from(offload.csum_start);
        let words = header.get(transport + 12).map_or(5, |byte| u16::from(byte >> 4).max(5));
        let transport_bytes = if offload.gso_kind == GsoKind::Udp { 8 } else { 4 * words };
        virtio.header_length = offload.csum_start.saturating_add(transport_bytes);
        virtio
    }

    /// The same header for a frame into which `bytes` more were put before the network header (a VLAN tag).
    #[inline]
    pub fn shifted(mut self, bytes: u16) -> Self {
        if self.needs_checksum() {
            self.csum_start = self.csum_start.saturating_add(bytes);
        }
        if self.header_length != 0 {
            self.header_length = self.header_length.saturating_add(bytes);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encode_then_decode_gives_the_same(flags: u8, gso_type: u8, words: [u16; 4]) {
            let header = VirtioHeader {
                flags,
                gso_type,
                header_length: words[0],
                gso_size: words[1],
                csum_start: words[2],
                csum_offset: words[3],
            };
            prop_assert_eq!(VirtioHeader::decode(&header.encode()), header);
        }

        #[test]
        fn decode_then_encode_gives_the_same(bytes: [u8; HEADER_BYTES]) {
            prop_assert_eq!(VirtioHeader::decode(&bytes).encode(), bytes);
        }
    }

    fn any_offload() -> impl Strategy<Value = Offload> {
        let kinds = prop_oneof![Just(GsoKind::None), Just(GsoKind::TcpV4), Just(GsoKind::TcpV6), Just(GsoKind::Udp)];
        (14u16..100, 0u16..20, 1u16..9000, kinds, any::<bool>(), any::<bool>()).prop_map(
            |(csum_start, csum_offset, gso_size, gso_kind, gso_ecn, partial)| match gso_kind {
                GsoKind::None if !partial => Offload::NONE,
                GsoKind::None => Offload { csum_start, csum_offset, ..Offload::NONE },
                _ => Offload { csum_start, csum_offset, gso_size, gso_kind, gso_ecn },
            },
        )
    }

    proptest! {
        #[test]
        fn offload_passes_through_the_header(offload in any_offload(), bytes: [u8; 32]) {
            let mut frame = [0; HEADER_WINDOW];
            frame[..32].copy_from_slice(&bytes);
            let virtio = VirtioHeader::decode(&VirtioHeader::new(&offload, &frame).encode());
            prop_assert_eq!(virtio.offload(1500), Some(offload));
        }

        #[test]
        fn any_header_is_judged_without_panic(bytes: [u8; HEADER_BYTES], length in 0usize..70_000) {
            if let Some(offload) = VirtioHeader::decode(&bytes).offload(length) {
                let field = usize::from(offload.csum_start) + usize::from(offload.csum_offset);
                prop_assert!(!offload.is_partial() || field + 2 <= length);
                prop_assert_eq!(offload.gso_kind == GsoKind::None, offload.gso_size == 0);
            }
        }
    }

    #[test]
    fn headers_that_contradict_the_frame_are_refused() {
        let partial =
            VirtioHeader { flags: FLAG_NEEDS_CHECKSUM, csum_start: 34, csum_offset: 16, ..Default::default() };
        assert!(partial.offload(52).is_some());
        assert_eq!(partial.offload(51), None);
        assert_eq!(VirtioHeader { csum_start: 13, ..partial }.offload(100), None);
        assert_eq!(VirtioHeader { gso_type: GSO_UDP, gso_size: 1448, ..partial }.offload(100), None);
        assert_eq!(VirtioHeader { gso_type: GSO_TCP_V4, gso_size: 0, ..partial }.offload(100), None);
    }

    #[test]
    fn the_header_length_is_read_from_the_transport_header() {
        let mut frame = [0; HEADER_WINDOW];
        frame[34 + 12] = 8 << 4;
        let tcp = Offload { csum_start: 34, csum_offset: 16, gso_size: 1448, gso_kind: GsoKind::TcpV4, gso_ecn: false };
        assert_eq!(VirtioHeader::new(&tcp, &frame).header_length, 66);
        let udp = Offload { csum_offset: 6, gso_kind: GsoKind::Udp, ..tcp };
        assert_eq!(VirtioHeader::new(&udp, &frame).header_length, 42);
    }

    #[test]
    fn fields_lie_where_the_kernel_puts_them() {
        // A TCP/IPv4 super-packet as Linux describes it: 66 bytes of headers, 1448 per segment, sum at 34 + 16.
        let mut bytes = [FLAG_NEEDS_CHECKSUM, GSO_TCP_V4 | GSO_ECN, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes[2..4].copy_from_slice(&66u16.to_ne_bytes());
        bytes[4..6].copy_from_slice(&1448u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&34u16.to_ne_bytes());
        bytes[8..10].copy_from_slice(&16u16.to_ne_bytes());
        let header = VirtioHeader::decode(&bytes);
        assert!(header.needs_checksum() && header.is_super_packet());
        assert_eq!((header.header_length, header.gso_size, header.csum_start, header.csum_offset), (66, 1448, 34, 16));
        let tagged = header.shifted(4);
        assert_eq!((tagged.header_length, tagged.csum_start, tagged.csum_offset), (70, 38, 16));
    }
}
