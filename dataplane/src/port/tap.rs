//! The `tap` port, and the way to the host's stack: frames to and from a TAP interface, one system call each.
//!
//! [`TapQueue`] reads and writes single frames, for the host I/O thread. [`open`] and [`queue_pair`] make of it a port's queues.
//! Both always speak with virtio-net headers, so that the stack takes partial checksums and super-packets from us whole;
//! whether it gives us any is [`tapdev::set_offload`]'s choice. The kernel copies frames straight from and to the arena's buffers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::virtio::{HEADER_BYTES, VirtioHeader};
use super::{PortError, QueuePair, QueueStatistics, RxQueue, TxFrame, TxQueue, tapdev};
use crate::arena::{Frame, MAX_FRAME, Pool};
use crate::batch::{BATCH_MAX, Batch};
use crate::packet::{Offload, Packet, PortId};

/// Ethernet header; shorter frames are none.
const ETHERNET_BYTES: usize = 14;
/// Segments of a frame: buffers hold at least 256 bytes.
const MAX_PARTS: usize = MAX_FRAME / 256 + 2;

/// What [`TapQueue::read`] found.
pub enum Read {
    /// A frame from the host's stack and what it left undone.
    Frame(Frame, Offload),
    /// Nothing there.
    Empty,
    /// The pool has not enough buffers for the longest frame that may come; frames wait in the kernel.
    NoBuffer,
    /// A frame that made no sense; it is gone.
    Senseless,
}

/// What became of a frame given to [`TapQueue::write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The stack has it.
    Done,
    /// The kernel has no memory for it now; try again or drop it.
    Busy,
    /// The interface is down: the kernel dropped it.
    Down,
    /// The kernel will never take this frame.
    Refused,
}

/// One queue of a TAP interface.
pub struct TapQueue {
    fd: Arc<OwnedFd>,
    /// Buffers for the next read, enough for the longest frame: its length is only known afterwards.
    landing: Vec<Frame>,
    /// Scratch for one call.
    parts: Vec<libc::iovec>,
}

// SAFETY: `parts` is scratch space, filled and emptied within one call, so no pointer in it outlives its frames or is used
// on another thread than the one that wrote it.
unsafe impl Send for TapQueue {}

impl TapQueue {
    /// Wraps a descriptor of [`tapdev::open`] that was opened with `vnet_hdr`.
    pub fn new(fd: OwnedFd) -> Self {
        Self::shared(Arc::new(fd))
    }

    fn shared(fd: Arc<OwnedFd>) -> Self {
        Self { fd, landing: Vec::with_capacity(MAX_PARTS), parts: Vec::with_capacity(MAX_PARTS + 1) }
    }

    /// Becomes readable when the stack has sent something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Reads one frame. Never blocks.
    ///
    /// # Errors
    /// `EBADFD` when the interface is gone.
    pub fn read(&mut self, pool: &mut Pool) -> io::Result<Read> {
        let capacity = pool.arena().capacity();
        let wanted = MAX_FRAME.div_ceil(capacity);
        while self.landing.len() < wanted {
            let Some(mut frame) = pool.alloc() else { return Ok(Read::NoBuffer) };
            if !frame.set_len(capacity) {
                pool.free(frame);
                return Ok(Read::NoBuffer);
            }
            self.landing.push(frame);
        }
        let mut header = [0; HEADER_BYTES];
        self.parts.clear();
        self.parts.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER_BYTES });
        // From the end, where a vector is short-lived cheaply: the last frame of `landing` takes the first bytes.
        for frame in self.landing.iter_mut().rev() {
            let room = frame.head_mut();
            self.parts.push(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
        }
        // SAFETY: the parts are `header` and the whole lengths of frames that we own and that nothing else borrows.
        let got = unsafe { libc::readv(self.fd.as_raw_fd(), self.parts.as_ptr(), self.parts.len() as libc::c_int) };
        self.parts.clear();
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(Read::Empty),
                _ => Err(error),
            };
        }
        let Some(length) = (got as usize).checked_sub(HEADER_BYTES) else { return Ok(Read::Senseless) };
        // A read that fills everything may have been cut short.
        if !(ETHERNET_BYTES..=MAX_FRAME).contains(&length) {
            return Ok(Read::Senseless);
        }
        let Some(offload) = VirtioHeader::decode(&header).offload(length) else { return Ok(Read::Senseless) };
        match self.take(length, pool) {
            Some(frame) => Ok(Read::Frame(frame, offload)),
            None => Ok(Read::Senseless),
        }
    }

    /// Makes a frame of the first `length` bytes that were read.
    fn take(&mut self, length: usize, pool: &mut Pool) -> Option<Frame> {
        let capacity = pool.arena().capacity();
        let parts = length.div_ceil(capacity);
        // Joined from the end, so that each link is set once.
        let mut rest: Option<Frame> = None;
        let first = self.landing.len().checked_sub(parts)?;
        for (place, mut frame) in self.landing.drain(first..).enumerate() {
            if place == 0 && !frame.set_len(length - (parts - 1) * capacity) {
                pool.free(frame);
                continue;
            }
            if let Some(rest) = rest.take() {
                pool.arena().append(&mut frame, rest);
            }
            rest = Some(frame);
        }
        rest
    }

    /// Writes one frame to the stack. Never blocks; the frame stays the caller's.
    ///
    /// # Errors
    /// `EBADFD` when the interface is gone.
    pub fn write(&mut self, frame: &Frame, offload: &Offload, pool: &Pool) -> io::Result<Written> {
        let mut header = VirtioHeader::new(offload, frame.header()).encode();
        self.parts.clear();
        self.parts.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER_BYTES });
        for segment in pool.arena().segments(frame) {
            if self.parts.len() == self.parts.capacity() {
                return Ok(Written::Refused);
            }
            self.parts.push(libc::iovec { iov_base: segment.as_ptr().cast_mut().cast(), iov_len: segment.len() });
        }
        // SAFETY: the parts are `header` and segments of a borrowed frame; the kernel only reads them.
        let sent = unsafe { libc::writev(self.fd.as_raw_fd(), self.parts.as_ptr(), self.parts.len() as libc::c_int) };
        self.parts.clear();
        if sent >= 0 {
            return Ok(Written::Done);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => Ok(Written::Busy),
            Some(libc::EIO) => Ok(Written::Down),
            Some(libc::EINVAL | libc::EMSGSIZE | libc::EFAULT) => Ok(Written::Refused),
            _ => Err(error),
        }
    }

    /// Gives the buffers that wait for frames back.
    pub fn close(&mut self, pool: &mut Pool) {
        self.landing.drain(..).for_each(|frame| pool.free(frame));
    }
}

/// Why a TAP port could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("TAP interface {name}: {source}{hint}")]
pub struct OpenError {
    /// The interface asked for.
    pub name: String,
    /// The kernel's answer.
    pub source: io::Error,
    /// What to do, with its own punctuation; empty where there is nothing to say.
    pub hint: &'static str,
}

impl OpenError {
    fn new(name: &str, source: io::Error) -> Self {
        let hint = match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => ": load the driver with `modprobe tun`",
            Some(libc::EPERM | libc::EACCES) => {
                ": CAP_NET_ADMIN in its network namespace and access to /dev/net/tun are needed"
            }
            Some(libc::EBUSY) => ": another program has it open",
            Some(libc::EINVAL) => ": it exists and is no TAP, or was made with another queue mode",
            _ => "",
        };
        Self { name: name.to_owned(), source, hint }
    }
}

/// An open TAP port.
pub struct OpenTap {
    /// The interface's name as the kernel gave it.
    pub name: String,
    /// Its queues, in order.
    pub queues: Vec<QueuePair>,
}

/// Opens a TAP interface, made if there is none, with `queues` queues in the namespace of the calling thread. With `offload`
/// the stack may leave checksums and segmentation to us.
///
/// # Errors
/// See [`OpenError`]; nothing stays open then.
pub fn open(name: &str, queues: usize, offload: bool, port: PortId) -> Result<OpenTap, OpenError> {
    let (name, queues) = open_queues(name, queues, offload)?;
    let queues = queues.into_iter().map(|fd| queue_pair(fd, &name, port)).collect();
    Ok(OpenTap { name, queues })
}

/// The part of [`open`] that needs privilege: the interface's name as the kernel gave it, and a descriptor for each
/// [`queue_pair`].
///
/// # Errors
/// See [`OpenError`]; nothing stays open then.
pub fn open_queues(name: &str, queues: usize, offload: bool) -> Result<(String, Vec<OwnedFd>), OpenError> {
    let mut name = name.to_owned();
    let mut opened = Vec::with_capacity(queues);
    for _ in 0..queues {
        let (fd, given) = tapdev::open(&name, queues > 1, true).map_err(|source| OpenError::new(&name, source))?;
        name = given;
        tapdev::set_offload(&fd, offload).map_err(|source| OpenError::new(&name, source))?;
        opened.push(fd);
    }
    Ok((name, opened))
}

/// A port's queue on a descriptor of [`tapdev::open`] that was opened with `vnet_hdr`.
pub fn queue_pair(fd: OwnedFd, name: &str, port: PortId) -> QueuePair {
    let fd = Arc::new(fd);
    let half = || TapHalf { queue: TapQueue::shared(fd.clone()), name: name.into(), statistics: Default::default() };
    let rx = TapReceive { half: half(), port };
    let tx = TapTransmit { half: half(), refused_at: Vec::with_capacity(BATCH_MAX) };
    QueuePair { port, rx: Box::new(rx), tx: Box::new(tx) }
}

struct TapHalf {
    queue: TapQueue,
    name: Box<str>,
    statistics: QueueStatistics,
}

impl TapHalf {
    fn judge(&self, call: &'static str, source: io::Error) -> PortError {
        match source.raw_os_error() {
            Some(libc::EBADFD | libc::ENODEV) => PortError::Lost(self.name.to_string()),
            _ => PortError::System { call, source },
        }
    }
}

struct TapReceive {
    half: TapHalf,
    port: PortId,
}

impl RxQueue for TapReceive {
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError> {
        let mut count = 0;
        // What makes no sense uses up a turn, too: the loop is bounded.
        for _ in 0..max.min(batch.room()) {
            match self.half.queue.read(pool) {
                Ok(Read::Frame(frame, offload)) => match batch.push(Packet::new(frame, offload, self.port)) {
                    Ok(()) => count += 1,
                    Err(packet) => {
                        pool.free(packet.frame);
                        self.half.statistics.rx_discarded += 1;
                    }
                },
                Ok(Read::Senseless) => self.half.statistics.rx_senseless += 1,
                Ok(Read::Empty | Read::NoBuffer) => break,
                Err(error) if count == 0 => return Err(self.half.judge("readv", error)),
                Err(_) => break,
            }
        }
        self.half.statistics.copied += count as u64;
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.half.queue.fd())
    }

    fn statistics(&mut self) -> QueueStatistics {
        self.half.statistics
    }

    fn close(&mut self, pool: &mut Pool) {
        self.half.queue.close(pool);
    }
}

struct TapTransmit {
    half: TapHalf,
    /// Places among the frames of the current call that are refused.
    refused_at: Vec<usize>,
}

impl TxQueue for TapTransmit {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        let mut done = 0;
        let mut outcome = Ok(());
        self.refused_at.clear();
        for tx in frames.iter() {
            match self.half.queue.write(&tx.frame, &tx.offload, pool) {
                Ok(Written::Done) => self.half.statistics.copied += 1,
                Ok(Written::Down) => self.half.statistics.tx_lost += 1,
                Ok(Written::Refused) => self.refused_at.push(done),
                Ok(Written::Busy) => break,
                Err(error) => {
                    outcome = Err(self.half.judge("writev", error));
                    break;
                }
            }
            done += 1;
        }
        super::copy::give_back(frames, done, &self.refused_at, refused, pool);
        outcome
    }

    fn offloads(&self) -> bool {
        true
    }

    fn statistics(&mut self) -> QueueStatistics {
        self.half.statistics
    }

    fn close(&mut self, pool: &mut Pool) {
        self.half.queue.close(pool);
    }
}

#[cfg(test)]
mod tests;
