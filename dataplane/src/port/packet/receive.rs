//! The TPACKET_V3 receive ring: the kernel fills blocks with frames one behind another and hands over whole blocks.
//!
//! **Whose is what.** A block is the kernel's until its status has `TP_STATUS_USER`, then ours until we write
//! `TP_STATUS_KERNEL`. Frames are lent as slices that end before the next call, so none outlives its block.
//!
//! **Latency.** The kernel hands a block over when it is full, or when its timer (1 ms at the shortest) finds it open:
//! a ping would take a millisecond more in each direction. So frames are also read from the block that is still being filled
//! ("early reading"). The kernel copies the frame first and writes the frame's header and the socket address behind it
//! last; each of these words is not zero once written. We give blocks back with every byte behind the block header zero,
//! hence a header whose words are all there belongs to a frame that is whole. This leans on the order of stores as
//! another core sees it, so it is only done where the processor keeps that order (x86-64), and only until the block is
//! handed over: then the documented protocol says what is left. Elsewhere, and with `early = false`, only whole blocks are read.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use super::sys::{self, Mapping};
use crate::port::virtio::{HEADER_BYTES, VirtioHeader};

/// Bytes of one block: two super-packets, or some 900 small frames.
const BLOCK_BYTES: usize = 128 << 10;
/// First frame of a block: behind the block header, as we reserve no private area.
const FIRST_FRAME: usize = size_of::<libc::tpacket_block_desc>();
/// Frame header and the socket address behind it: what must fit before the end of a block for a frame to be there.
const FRAME_HEADER: usize = size_of::<libc::tpacket3_hdr>() + size_of::<libc::sockaddr_ll>();
/// The kernel aligns each frame to this.
const FRAME_ALIGNMENT: usize = 8;
/// Ethernet, the only hardware type a port is opened on.
pub(super) const ARPHRD_ETHER: u16 = 1;

/// How a receive ring is laid out.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRingOptions {
    /// Bytes of ring memory; rounded up to whole blocks of 128 KiB, at least four.
    pub bytes: usize,
    /// Read frames before their block is handed over (see the module's head). Ignored but on x86-64.
    pub early: bool,
}

/// A frame lent by the ring until the next call.
#[derive(Debug)]
pub struct ReceivedFrame<'ring> {
    /// The frame from its Ethernet header on, without a VLAN tag that the device or kernel took off.
    pub bytes: &'ring [u8],
    /// Bytes that the frame had; more than `bytes.len()` when it did not fit into a block.
    pub wire_length: usize,
    /// What the sender left undone. Offsets count from `bytes[0]`.
    pub virtio: VirtioHeader,
    /// The tag that was taken off: EtherType of the tag (0x8100, 0x88a8) and its control information, host order.
    pub tag: Option<(u16, u16)>,
}

/// A receive ring on a socket of its own.
#[derive(Debug)]
pub struct ReceiveRing {
    fd: OwnedFd,
    map: Mapping,
    blocks: usize,
    /// Interface that frames must come from; every early frame's address names it.
    interface: i32,
    early: bool,
    /// Block that is read.
    block: usize,
    /// Where its next frame starts; [`BLOCK_BYTES`] when no further frame will come in it.
    offset: usize,
    /// Frames of the block already passed.
    passed: u32,
    /// Places in the ring that the kernel took and did not fill (it counts them as drops).
    holes: u64,
}

impl ReceiveRing {
    /// Puts a receive ring with virtio-net headers on `fd`, which must not be bound yet.
    ///
    /// # Errors
    /// `ENOMEM` when the kernel has not got the ring memory.
    pub fn new(fd: OwnedFd, interface: i32, options: ReceiveRingOptions) -> io::Result<Self> {
        let blocks = options.bytes.div_ceil(BLOCK_BYTES).max(4);
        sys::set_packet_option(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V3 as libc::c_int))?;
        sys::set_packet_option(&fd, libc::PACKET_VNET_HDR, &1i32)?;
        // Frames may be longer than tp_frame_size, which V3 uses for its consistency check only.
        let frame_size = 2048;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: frame_size,
            tp_frame_nr: (BLOCK_BYTES / frame_size as usize * blocks) as u32,
            tp_retire_blk_tov: 1,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        sys::set_packet_option(&fd, libc::PACKET_RX_RING, &request)?;
        let map = Mapping::new(&fd, blocks * BLOCK_BYTES)?;
        Ok(Self {
            fd,
            map,
            blocks,
            interface,
            early: options.early && cfg!(target_arch = "x86_64"),
            block: 0,
            offset: FIRST_FRAME,
            passed: 0,
            holes: 0,
        })
    }

    /// The socket.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Places that the kernel took in the ring and left empty, because their kind of super-packet has no virtio-net
    /// form. They are among the socket's drops already.
    pub fn holes(&self) -> u64 {
        self.holes
    }

    /// The next frame, which stays the next one until [`ReceiveRing::advance`].
    #[inline]
    pub fn peek(&mut self) -> Option<ReceivedFrame<'_>> {
        loop {
            let status = self.block_word(BLOCK_STATUS).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER != 0 {
                if self.passed >= self.block_word(BLOCK_PACKETS).load(Ordering::Relaxed) {
                    self.release();
                    continue;
                }
                if self.offset + FRAME_HEADER > BLOCK_BYTES {
                    // A chain of offsets that leaves the block: the kernel never makes one; skip the block.
                    self.release();
                    continue;
                }
                if self.frame_word(FRAME_STATUS).load(Ordering::Relaxed) & libc::TP_STATUS_USER == 0 {
                    self.holes += 1;
                    self.advance();
                    continue;
                }
                return Some(self.lend());
            }
            if self.early && self.is_whole() {
                return Some(self.lend());
            }
            return None;
        }
    }

    /// Passes the frame that [`ReceiveRing::peek`] gave.
    #[inline]
    pub fn advance(&mut self) {
        if self.offset + FRAME_HEADER > BLOCK_BYTES {
            return;
        }
        let step = self.frame_word(FRAME_NEXT).load(Ordering::Relaxed) as usize;
        self.passed += 1;
        // 0 marks the last frame of a block that is being closed.
        self.offset = if step == 0 { BLOCK_BYTES } else { self.offset + step };
    }

    /// Whether a whole frame waits; does not move.
    pub fn is_ready(&mut self) -> bool {
        self.peek().is_some()
    }

    /// Whether the frame at `offset` of the open block is complete: see the module's head.
    #[inline]
    fn is_whole(&self) -> bool {
        if self.offset + FRAME_HEADER > BLOCK_BYTES {
            return false;
        }
        // The order of these loads does not matter, only that all precede those of the contents (Acquire).
        self.frame_word(FRAME_STATUS).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
            && self.frame_word(ADDRESS_INTERFACE).load(Ordering::Acquire) == self.interface as u32
            && self.frame_half(ADDRESS_HARDWARE).load(Ordering::Acquire) == ARPHRD_ETHER
            && self.frame_half(ADDRESS_PROTOCOL).load(Ordering::Acquire) != 0
            && self.frame_half(ADDRESS_FAMILY).load(Ordering::Acquire) == libc::AF_PACKET as u16
            && self.frame_word(FRAME_CAPTURED).load(Ordering::Acquire) != 0
            && self.frame_word(FRAME_LENGTH).load(Ordering::Acquire) != 0
            && self.frame_half(FRAME_MAC).load(Ordering::Acquire) != 0
            && self.frame_word(FRAME_NEXT).load(Ordering::Acquire) != 0
    }

    /// The frame at `offset`, which the caller has found to be there.
    #[inline]
    fn lend(&self) -> ReceivedFrame<'_> {
        let status = self.frame_word(FRAME_STATUS).load(Ordering::Relaxed);
        let mac = usize::from(self.frame_half(FRAME_MAC).load(Ordering::Relaxed));
        let captured = self.frame_word(FRAME_CAPTURED).load(Ordering::Relaxed) as usize;
        let wire_length = self.frame_word(FRAME_LENGTH).load(Ordering::Relaxed) as usize;
        let start = (self.offset + mac).min(BLOCK_BYTES);
        let length = captured.min(BLOCK_BYTES - start);
        let base = self.block_base();
        // SAFETY: start + length lie within the block by the two lines above, the mapping covers the block, and the kernel
        // does not write to a frame that it has completed until the block is given back, which takes `&mut self`.
        let bytes = unsafe { std::slice::from_raw_parts(base.add(start), length) };
        let mut virtio = VirtioHeader::default();
        if start >= self.offset + FRAME_HEADER + HEADER_BYTES {
            // SAFETY: the ten bytes before the frame lie behind the frame's header, inside the block; same owner as above.
            virtio = VirtioHeader::decode(unsafe { &*base.add(start - HEADER_BYTES).cast::<[u8; HEADER_BYTES]>() });
        }
        let mut tag = None;
        if status & libc::TP_STATUS_VLAN_VALID != 0 {
            let protocol = match status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => libc::ETH_P_8021Q as u16,
                _ => self.frame_half(FRAME_TAG_PROTOCOL).load(Ordering::Relaxed),
            };
            tag = Some((protocol, self.frame_word(FRAME_TAG).load(Ordering::Relaxed) as u16));
        }
        ReceivedFrame { bytes, wire_length, virtio, tag }
    }

    /// Gives the current block back to the kernel, every byte behind its header zero, and goes on to the next one.
    fn release(&mut self) {
        if self.early {
            let used = (self.block_word(BLOCK_USED).load(Ordering::Relaxed) as usize)
                .next_multiple_of(FRAME_ALIGNMENT)
                .clamp(FIRST_FRAME, BLOCK_BYTES);
            // SAFETY: the block is ours (status USER was seen), `used` lies within it, and `&mut self` means that no frame is lent.
            unsafe { self.block_base().add(FIRST_FRAME).write_bytes(0, used - FIRST_FRAME) };
        }
        self.block_word(BLOCK_STATUS).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.block = if self.block + 1 == self.blocks { 0 } else { self.block + 1 };
        self.offset = FIRST_FRAME;
        self.passed = 0;
    }

    #[inline(always)]
    fn block_base(&self) -> *mut u8 {
        debug_assert!(self.block < self.blocks && self.blocks * BLOCK_BYTES == self.map.length());
        // SAFETY: block < blocks, and the mapping is blocks * BLOCK_BYTES long (both kept by new and release).
        unsafe { self.map.base().as_ptr().add(self.block * BLOCK_BYTES) }
    }

    /// A word of the block's header.
    #[inline(always)]
    fn block_word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` is one of the BLOCK_ constants, aligned and within the 48 bytes of the header; the kernel writes
        // it concurrently, hence the atomic.
        unsafe { AtomicU32::from_ptr(self.block_base().add(at).cast()) }
    }

    /// A word of the current frame's header; the caller has checked that the header fits into the block.
    #[inline(always)]
    fn frame_word(&self, at: usize) -> &AtomicU32 {
        debug_assert!(self.offset + FRAME_HEADER <= BLOCK_BYTES && self.offset.is_multiple_of(FRAME_ALIGNMENT));
        // SAFETY: `at` is one of the FRAME_ or ADDRESS_ constants (four-byte aligned, within FRAME_HEADER), the offset is
        // a multiple of eight and checked to leave room; concurrent writes by the kernel, hence the atomic.
        unsafe { AtomicU32::from_ptr(self.block_base().add(self.offset + at).cast()) }
    }

    /// As [`Self::frame_word`], for fields of two bytes.
    #[inline(always)]
    fn frame_half(&self, at: usize) -> &AtomicU16 {
        debug_assert!(self.offset + FRAME_HEADER <= BLOCK_BYTES && self.offset.is_multiple_of(FRAME_ALIGNMENT));
        // SAFETY: as in frame_word, with two-byte fields.
        unsafe { AtomicU16::from_ptr(self.block_base().add(self.offset + at).cast()) }
    }
}

// Offsets within struct tpacket_block_desc; sys.rs asserts the layout.
const BLOCK_STATUS: usize = 8;
const BLOCK_PACKETS: usize = 12;
const BLOCK_USED: usize = 20;
// Offsets within struct tpacket3_hdr.
const FRAME_NEXT: usize = 0;
const FRAME_CAPTURED: usize = 12;
const FRAME_LENGTH: usize = 16;
const FRAME_STATUS: usize = 20;
const FRAME_MAC: usize = 24;
const FRAME_TAG: usize = 32;
const FRAME_TAG_PROTOCOL: usize = 36;
// Offsets of struct sockaddr_ll, which follows the frame header.
const ADDRESS_FAMILY: usize = 48;
const ADDRESS_PROTOCOL: usize = 50;
const ADDRESS_INTERFACE: usize = 52;
const ADDRESS_HARDWARE: usize = 56;
