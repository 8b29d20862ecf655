//! The TPACKET_V2 transmit ring: slots of one frame each, marked by us, taken in order by the kernel inside `send`.
//!
//! **Whose is what.** A slot is ours while its status is `AVAILABLE` or `WRONG_FORMAT`, and also while it is
//! `SEND_REQUEST` outside [`TransmitRing::kick`] (the kernel looks at marked slots only within that call); it is the kernel's
//! while `SENDING`, until the device has let go of the frame.
//!
//! Each frame has a virtio-net header in front, with or without offloads: its `header_length` makes the kernel
//! copy that much into the packet's linear part instead of linking the ring's pages to it. A small frame that is linear as
//! a whole is cheaper everywhere, and between containers it spares the kernel a page and a second copy, which it
//! makes whenever linked pages cross a veth.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sys::{self, Mapping};
use crate::port::virtio::{HEADER_BYTES, VirtioHeader};

/// Where a slot's data start: behind `struct tpacket2_hdr`.
const DATA: usize = size_of::<libc::tpacket2_hdr>();
/// Memory that holds a whole number of slots.
const BLOCK_BYTES: usize = 64 << 10;
/// Frames up to this length are made linear as a whole.
pub const LINEAR_BYTES: usize = 2048;

/// What became of the marked frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// The kernel took all of them.
    Done,
    /// The device, its queue or the socket's buffer is full (`EAGAIN`, `ENOBUFS`): the rest stays marked, kick again later.
    Busy,
}

/// A transmit ring on a socket of its own.
#[derive(Debug)]
pub struct TransmitRing {
    fd: OwnedFd,
    map: Mapping,
    slot_bytes: usize,
    slots: usize,
    /// Slot that the kernel will look at next.
    head: usize,
    /// Slot that is filled next.
    tail: usize,
    /// Marked slots from `head` on.
    marked: usize,
    /// Frames that the kernel refused as malformed.
    refused: u64,
}

impl TransmitRing {
    /// Puts a transmit ring of `slots` frames of up to `longest` bytes on `fd`.
    ///
    /// # Errors
    /// `ENOMEM` when the kernel has not got the ring memory.
    pub fn new(fd: OwnedFd, slots: usize, longest: usize) -> io::Result<Self> {
        let slot_bytes = (DATA + HEADER_BYTES + longest).next_power_of_two().max(2048);
        let block_bytes = slot_bytes.max(BLOCK_BYTES);
        let per_block = block_bytes / slot_bytes;
        let blocks = slots.div_ceil(per_block).max(1);
        let slots = blocks * per_block;
        sys::set_packet_option(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        sys::set_packet_option(&fd, libc::PACKET_VNET_HDR, &1i32)?;
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        sys::set_packet_option(&fd, libc::PACKET_TX_RING, &request)?;
        let map = Mapping::new(&fd, blocks * block_bytes)?;
        Ok(Self { fd, map, slot_bytes, slots, head: 0, tail: 0, marked: 0, refused: 0 })
    }

    /// The socket.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Longest frame that a slot holds.
    pub fn longest(&self) -> usize {
        self.slot_bytes - DATA - HEADER_BYTES
    }

    /// Frames marked and not yet taken by the kernel.
    pub fn marked(&self) -> usize {
        self.marked
    }

    /// Frames that the kernel refused as malformed, since opening.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Slots that the device has not let go of yet, the marked ones included. Walks the ring.
    pub fn outstanding(&self) -> usize {
        (0..self.slots).filter(|&slot| self.status(slot).load(Ordering::Relaxed) != libc::TP_STATUS_AVAILABLE).count()
    }

    /// Writes a frame of `length` bytes into the next free slot: `fill` copies it in. Returns false, with nothing done, when
    /// the ring is full. The kernel sees the frame at the next [`TransmitRing::kick`].
    ///
    /// # Panics
    /// When `length` is more than [`TransmitRing::longest`]: the caller has looked.
    #[inline]
    pub fn put(&mut self, length: usize, virtio: &VirtioHeader, fill: impl FnOnce(&mut [u8])) -> bool {
        assert!(length <= self.longest(), "a frame longer than a slot");
        if self.marked == self.slots || self.status(self.tail).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return false;
        }
        let slot = self.slot(self.tail);
        // SAFETY: the slot is AVAILABLE, so the kernel does not touch it; header and frame fit into it, as was asserted.
        let data = unsafe { std::slice::from_raw_parts_mut(slot.add(DATA), HEADER_BYTES + length) };
        let (header, frame) = data.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&virtio.encode());
        fill(frame);
        self.length(self.tail).store((HEADER_BYTES + length) as u32, Ordering::Relaxed);
        self.status(self.tail).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.tail = self.after(self.tail);
        self.marked += 1;
        true
    }

    /// Lets the kernel take the marked frames. Never blocks.
    ///
    /// # Errors
    /// What `send` says but for the transient ones: `ENETDOWN` while the interface is down, `ENXIO` once it is gone.
    pub fn kick(&mut self) -> io::Result<Kick> {
        while self.marked > 0 {
            let sent = sys::kick(&self.fd);
            self.pass_taken();
            let error = match sent {
                Ok(_) if self.marked == 0 => return Ok(Kick::Done),
                // Part of them went, then the socket's buffer was full.
                Ok(_) => return Ok(Kick::Busy),
                Err(error) => error,
            };
            // The kernel stops at a malformed frame and stays there: take it out and go on with the rest.
            if self.status(self.head).load(Ordering::Acquire) & libc::TP_STATUS_WRONG_FORMAT != 0 {
                self.close_gap();
                continue;
            }
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENOMEM) => Ok(Kick::Busy),
                _ => Err(error),
            };
        }
        Ok(Kick::Done)
    }

    /// Takes back every marked frame; returns how many. For a link that went down.
    pub fn discard_marked(&mut self) -> usize {
        let mut slot = self.head;
        for _ in 0..self.marked {
            self.status(slot).store(libc::TP_STATUS_AVAILABLE, Ordering::Relaxed);
            slot = self.after(slot);
        }
        self.tail = self.head;
        std::mem::take(&mut self.marked)
    }

    /// Moves `head` past what the kernel took: it takes in order, so when the last is taken, all are.
    fn pass_taken(&mut self) {
        let last = if self.tail == 0 { self.slots - 1 } else { self.tail - 1 };
        if !self.is_marked(last) {
            (self.head, self.marked) = (self.tail, 0);
            return;
        }
        while self.marked > 0 && !self.is_marked(self.head) {
            self.head = self.after(self.head);
            self.marked -= 1;
        }
    }

    /// Whether the kernel has yet to take the slot (or refused it).
    #[inline(always)]
    fn is_marked(&self, slot: usize) -> bool {
        let status = self.status(slot).load(Ordering::Acquire);
        status & (libc::TP_STATUS_SEND_REQUEST | libc::TP_STATUS_WRONG_FORMAT) != 0
    }

    /// Takes the malformed frame at `head` out by moving each later one a slot forward, which keeps their order. Never
    /// needed unless the kernel's rules and ours differ, so its cost does not matter.
    fn close_gap(&mut self) {
        self.refused += 1;
        let mut to = self.head;
        for _ in 1..self.marked {
            let from = self.after(to);
            // SAFETY: both are distinct slots of the mapping, marked but not being sent, hence ours.
            unsafe { std::ptr::copy_nonoverlapping(self.slot(from), self.slot(to), self.slot_bytes) };
            to = from;
        }
        self.status(to).store(libc::TP_STATUS_AVAILABLE, Ordering::Release);
        self.tail = to;
        self.marked -= 1;
    }

    #[inline(always)]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots { 0 } else { slot + 1 }
    }

    #[inline(always)]
    fn slot(&self, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.slots && self.slots * self.slot_bytes == self.map.length());
        // SAFETY: slot < slots, and the mapping holds slots * slot_bytes (kept by new and after).
        unsafe { self.map.base().as_ptr().add(slot * self.slot_bytes) }
    }

    #[inline(always)]
    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: tp_status is the first word of an aligned slot; the kernel writes it concurrently, hence the atomic.
        unsafe { AtomicU32::from_ptr(self.slot(slot).cast()) }
    }

    #[inline(always)]
    fn length(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: tp_len is the second word of an aligned slot.
        unsafe { AtomicU32::from_ptr(self.slot(slot).add(4).cast()) }
    }
}
