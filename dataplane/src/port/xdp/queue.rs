//! One queue of a device: an AF_XDP socket in two halves, receive (receive and fill ring) and transmit (transmit and
//! completion ring), each of which may live on its own thread.
//!
//! **Ownership of buffers.** A buffer that is given to the kernel has its bit in the half's [`FrameSet`] and no `Frame`. It comes
//! back through the receive or completion ring, or when the queue is closed: taken out of the program's map, a grace period
//! waited for, the socket closed. Only then the kernel has let go, so the half that closes last hands back what both had.
//!
//! **Errors of kicks** (measured on Linux 6.18): EAGAIN is "budget used up" as well as "no room", EBUSY and ENOBUFS are "no
//! room": descriptors stay where they are. ENETDOWN is a link that is down and may return. ENXIO is a device that is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::frame_set::FrameSet;
use super::program::Redirect;
use super::rings::{ConsumerRing, ProducerRing};
use super::sys::{self, FRAGMENTS_MAX, RingKind, XskSocket};
use super::umem::{Bound, CopyMode, Geometry, RingSizes, Umem};
use crate::arena::{Frame, HEADER_WINDOW, MAX_FRAME, Pool, RawFrame};
use crate::batch::Batch;
use crate::packet::{Flags, Offload, Packet, PortId};
use crate::port::{PortError, QueueStatistics, RxQueue, TxFrame, TxQueue};

/// Empty polls between two looks at the socket's error: the only sign of a removed device while nothing is sent.
const POLLS_PER_CHECK: u32 = 4096;
/// Kicks without progress in one call, after which the descriptors wait for the next call.
const FRUITLESS_KICKS: u32 = 3;
/// Free places in the fill ring from which on it is topped up: one store for several frames.
const REFILL_FROM: usize = 32;
/// A zero-copy driver stops its rings in deferred work after the socket was closed.
const ZERO_COPY_SETTLE: Duration = Duration::from_millis(50);

/// What all queues of a port have in common.
#[derive(Debug)]
pub(super) struct QueueSettings {
    pub port: PortId,
    /// [A] longest frame that the device sends, in bytes with the Ethernet header and tags.
    pub frame_max: Arc<AtomicU32>,
    pub copy: CopyMode,
    pub fragments: bool,
    /// Frames that one kick may send.
    pub budget: u32,
    pub busy_poll: bool,
}

/// What the two halves share. It keeps the program on the device while either lives.
struct Pair {
    umem: Arc<Umem>,
    copy: CopyMode,
    redirect: Arc<Redirect>,
    queue: u32,
    leaving: Mutex<Leaving>,
}

struct Leaving {
    halves: u32,
    buffers: Vec<u32>,
}

impl Pair {
    /// Called by each half when it closes, its rings already unmapped. The last closes the socket and gives all buffers
    /// of both to its pool.
    fn leave(&self, socket: Arc<XskSocket>, mut held: FrameSet, pool: &mut Pool) {
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.halves -= 1;
        held.drain(|buffer| leaving.buffers.push(buffer));
        if leaving.halves > 0 {
            return;
        }
        // Closing the descriptor is not enough: a child that is between fork and exec may hold a copy of it for a moment.
        let _ = self.redirect.release(self.queue); // an error means that a removed device took it out already
        sys::wait_for_kernel_readers();
        self.umem.close(socket);
        if self.copy == CopyMode::ZeroCopy {
            std::thread::sleep(ZERO_COPY_SETTLE);
        }
        for buffer in leaving.buffers.drain(..) {
            // SAFETY: the bit in the half's set said that the kernel had the buffer, nobody else; the socket its rings and its map entry
            // are gone, so the kernel has let go.
            unsafe { pool.put_raw(buffer) };
        }
    }
}

/// The receiving half.
pub(super) struct Receive {
    pair: Arc<Pair>,
    open: Option<ReceiveRings>,
    geometry: Geometry,
    stride: u64,
    port: PortId,
    busy_poll: bool,
    idle_polls: u32,
    senseless: u64,
    lost: Option<String>,
    last: QueueStatistics,
}

struct ReceiveRings {
    socket: Arc<XskSocket>,
    receive: ConsumerRing<libc::xdp_desc>,
    fill: ProducerRing<u64>,
    held: FrameSet,
}

/// The transmitting half.
pub(super) struct Transmit {
    pair: Arc<Pair>,
    open: Option<TransmitRings>,
    geometry: Geometry,
    frame_max: Arc<AtomicU32>,
    segments_max: usize,
    zero_copy: bool,
    budget: u32,
    lost: Option<String>,
    lost_frames: u64,
    last: QueueStatistics,
}

struct TransmitRings {
    socket: Arc<XskSocket>,
    transmit: ProducerRing<libc::xdp_desc>,
    completion: ConsumerRing<u64>,
    held: FrameSet,
}

/// Maps the rings of a bound socket and makes the two halves.
pub(super) fn halves(
    bound: Bound,
    umem: &Arc<Umem>,
    rings: RingSizes,
    settings: &QueueSettings,
    queue: u32,
    redirect: Arc<Redirect>,
) -> io::Result<(Receive, Transmit)> {
    let Bound { socket, .. } = bound;
    let count = umem.arena().count();
    let receive = ReceiveRings {
        receive: ConsumerRing::from_mapping(socket.map_ring(RingKind::Receive, rings.receive)?, rings.receive),
        fill: ProducerRing::from_mapping(socket.map_ring(RingKind::Fill, rings.fill)?, rings.fill),
        held: FrameSet::new(count),
        socket: socket.clone(),
    };
    let completion = socket.map_ring(RingKind::Completion, rings.completion)?;
    let transmit = TransmitRings {
        transmit: ProducerRing::from_mapping(socket.map_ring(RingKind::Transmit, rings.transmit)?, rings.transmit),
        completion: ConsumerRing::from_mapping(completion, rings.completion),
        held: FrameSet::new(count),
        socket,
    };
    let pair = Arc::new(Pair {
        umem: umem.clone(),
        copy: settings.copy,
        redirect,
        queue,
        leaving: Mutex::new(Leaving { halves: 2, buffers: Vec::new() }),
    });
    let receive = Receive {
        pair: pair.clone(),
        open: Some(receive),
        geometry: umem.geometry(),
        stride: umem.arena().stride() as u64,
        port: settings.port,
        busy_poll: settings.busy_poll,
        idle_polls: 0,
        senseless: 0,
        lost: None,
        last: QueueStatistics::default(),
    };
    let transmit = Transmit {
        pair,
        open: Some(transmit),
        geometry: umem.geometry(),
        frame_max: settings.frame_max.clone(),
        segments_max: if settings.fragments { FRAGMENTS_MAX } else { 1 },
        zero_copy: settings.copy == CopyMode::ZeroCopy,
        budget: settings.budget.max(1),
        lost: None,
        lost_frames: 0,
        last: QueueStatistics::default(),
    };
    Ok((receive, transmit))
}

impl ReceiveRings {
    /// Tops the fill ring up, so that the kernel has as many buffers as the ring has places, if the pool has them.
    #[inline]
    fn refill(&mut self, geometry: Geometry, pool: &mut Pool) {
        let missing = (self.fill.size() as usize).saturating_sub(self.held.len());
        if missing < REFILL_FROM.min(self.fill.size() as usize / 4) {
            return;
        }
        let places = (self.fill.free(missing as u32) as usize).min(missing);
        for buffer in pool.take_raw(places) {
            self.held.insert(buffer);
            let pushed = self.fill.push(geometry.buffer_address(buffer));
            debug_assert!(pushed, "no more are taken than there are free places");
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // Without buffers the driver sleeps. An error here shows in the next look at the socket's error.
            let _ = self.socket.kick_receive();
        }
    }

    /// Takes a received buffer over from the kernel. `None` when the descriptor makes no sense.
    #[inline]
    fn frame(&mut self, geometry: Geometry, stride: u64, entry: libc::xdp_desc, pool: &mut Pool) -> Option<Frame> {
        let (buffer, offset) = geometry.locate(entry.addr);
        if !self.held.remove(buffer) {
            return None;
        }
        let length = u64::from(entry.len);
        if length == 0 || offset + length > stride || offset + HEADER_WINDOW as u64 > stride {
            // SAFETY: the bit was set, so the kernel had the buffer and has just given it back.
            unsafe { pool.put_raw(buffer) };
            return None;
        }
        let raw = RawFrame { buffer, data: offset as u16, seg_len: length as u16, len: entry.len };
        // SAFETY: the bit was set, so the buffer was the kernel's alone, and its receive entry hands it to us.
        let frame = unsafe { pool.arena().frame_from_raw(raw) };
        frame.prefetch();
        Some(frame)
    }

    /// Takes the next frame, of one buffer or several, if all of it is there. The inner `None`: it made no sense.
    #[inline]
    fn next(&mut self, geometry: Geometry, stride: u64, pool: &mut Pool) -> Option<Option<Frame>> {
        let first = self.receive.peek(0)?;
        if first.options & libc::XDP_PKT_CONTD == 0 {
            let entry = self.receive.pop()?;
            return Some(self.frame(geometry, stride, entry, pool));
        }
        let mut more = 1;
        while self.receive.peek(more)?.options & libc::XDP_PKT_CONTD != 0 {
            more += 1;
        }
        Some(self.chain(more + 1, geometry, stride, pool))
    }

    #[cold]
    fn chain(&mut self, entries: u32, geometry: Geometry, stride: u64, pool: &mut Pool) -> Option<Frame> {
        let mut whole: Option<Frame> = None;
        let mut good = true;
        for _ in 0..entries {
            let entry = self.receive.pop()?;
            match (self.frame(geometry, stride, entry, pool), whole.take()) {
                (Some(segment), None) if good => whole = Some(segment),
                (Some(segment), Some(mut head)) if good && head.len() + segment.len() <= MAX_FRAME => {
                    pool.arena().append(&mut head, segment);
                    whole = Some(head);
                }
                (segment, head) => {
                    good = false;
                    segment.into_iter().chain(head).for_each(|frame| pool.free(frame));
                }
            }
        }
        whole
    }
}

impl Receive {
    fn lost(&self) -> Option<PortError> {
        self.lost.clone().map(PortError::Lost)
    }

    /// One system call: has the device been removed?
    #[cold]
    fn check(&mut self) {
        let Some(open) = &self.open else { return };
        self.lost = match open.socket.take_error() {
            Ok(None) => return,
            Ok(Some(error)) | Err(error) => Some(error.to_string()),
        };
    }
}

impl RxQueue for Receive {
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError> {
        let Some(open) = &mut self.open else { return Err(PortError::Lost("the queue is closed".into())) };
        let limit = max.min(batch.room());
        let mut taken = 0;
        while taken < limit {
            let Some(frame) = open.next(self.geometry, self.stride, pool) else { break };
            let Some(frame) = frame else {
                self.senseless += 1;
                continue;
            };
            let mut packet = Packet::new(frame, Offload::NONE, self.port);
            packet.flags.set(Flags::MAYBE_PARTIAL);
            if let Err(packet) = batch.push(packet) {
                pool.free(packet.frame);
                break;
            }
            taken += 1;
        }
        open.receive.release();
        open.refill(self.geometry, pool);
        if taken > 0 {
            self.idle_polls = 0;
            return Ok(taken);
        }
        if self.busy_poll {
            let _ = open.socket.kick_receive();
        }
        self.idle_polls += 1;
        if self.idle_polls >= POLLS_PER_CHECK {
            self.idle_polls = 0;
            self.check();
        }
        match self.lost() {
            Some(error) => Err(error),
            None => Ok(0),
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.as_ref().map(|open| open.socket.as_fd())
    }

    fn arm(&mut self) -> bool {
        // A removed device makes the descriptor readable for ever, so that the error must be looked for before sleeping.
        self.check();
        self.lost.is_some() || self.open.as_mut().is_some_and(|open| open.receive.available(1) > 0)
    }

    fn statistics(&mut self) -> QueueStatistics {
        if let Some(Ok(kernel)) = self.open.as_ref().map(|open| open.socket.statistics()) {
            // In copy mode a frame without a buffer is in rx_dropped; the fill ring's own counter counts look-ups.
            self.last.rx_lost = kernel.rx_dropped + kernel.rx_ring_full;
        }
        self.last.rx_senseless = self.senseless;
        self.last
    }

    fn close(&mut self, pool: &mut Pool) {
        self.statistics();
        let Some(ReceiveRings { socket, receive, fill, held }) = self.open.take() else { return };
        drop((receive, fill)); // the mappings keep the socket open
        self.pair.leave(socket, held, pool);
    }
}

/// What one kick of the transmit ring came to.
enum Kick {
    Done,
    NoRoom,
    Down,
    Gone(io::Error),
}

impl TransmitRings {
    /// Takes sent buffers back.
    #[inline]
    fn reap(&mut self, geometry: Geometry, pool: &mut Pool) {
        while let Some(address) = self.completion.pop() {
            let buffer = geometry.locate(address).0;
            if self.held.remove(buffer) {
                // SAFETY: the bit was set, so the kernel had the buffer, and its completion hands it back.
                unsafe { pool.put_raw(buffer) };
            }
        }
        self.completion.release();
    }

    #[inline]
    fn kick(&self) -> Kick {
        let Err(error) = self.socket.kick_transmit() else { return Kick::Done };
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Kick::NoRoom,
            Some(libc::ENETDOWN) => Kick::Down,
            _ => Kick::Gone(error),
        }
    }

    fn push(&mut self, geometry: Geometry, raw: RawFrame, options: u32) {
        self.held.insert(raw.buffer);
        let entry = libc::xdp_desc { addr: geometry.segment_address(raw), len: u32::from(raw.seg_len), options };
        let pushed = self.transmit.push(entry);
        debug_assert!(pushed, "the caller counted the free places");
    }
}

impl Transmit {
    /// Kicks until the ring is empty, or the kernel takes no more, or the calls that the ring's size allows are used up.
    fn send_pending(&mut self, pool: &mut Pool) {
        let Some(open) = &mut self.open else { return };
        let mut pending = open.transmit.pending();
        let mut calls = if self.zero_copy { 1 } else { pending.div_ceil(self.budget) + FRUITLESS_KICKS };
        let mut fruitless = 0;
        while pending > 0 && calls > 0 && fruitless < FRUITLESS_KICKS && open.transmit.needs_wakeup() {
            calls -= 1;
            let outcome = open.kick();
            let now = open.transmit.pending();
            match outcome {
                Kick::Done => {}
                Kick::NoRoom => {
                    open.reap(self.geometry, pool);
                    fruitless += u32::from(now == pending);
                }
                Kick::Down => break,
                Kick::Gone(error) => {
                    let mut frames = 0;
                    open.transmit
                        .for_each_pending(|entry| frames += u64::from(entry.options & libc::XDP_PKT_CONTD == 0));
                    self.lost_frames += frames;
                    self.lost = Some(error.to_string());
                    break;
                }
            }
            pending = now;
        }
        open.reap(self.geometry, pool);
    }

    fn check_lost(&self) -> Result<(), PortError> {
        match &self.lost {
            Some(error) => Err(PortError::Lost(error.clone())),
            None => Ok(()),
        }
    }
}

/// What the device can send.
#[derive(Clone, Copy)]
struct Limits {
    frame_max: usize,
    segments_max: usize,
    segment_max: usize,
}

impl Limits {
    /// Places that the frame takes in the ring; `None` when the device cannot send it at all.
    #[inline]
    fn places(self, tx: &TxFrame, pool: &Pool) -> Option<usize> {
        if tx.frame.len() > self.frame_max || tx.offload != Offload::NONE {
            return None;
        }
        if !tx.frame.is_chain() {
            return (tx.frame.seg_len() <= self.segment_max).then_some(1);
        }
        let (mut segments, mut fits) = (0, true);
        pool.arena().raw_segments(&tx.frame, |raw| {
            segments += 1;
            fits &= usize::from(raw.seg_len) <= self.segment_max;
        });
        (fits && segments <= self.segments_max).then_some(segments)
    }
}

impl TxQueue for Transmit {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        self.check_lost()?;
        let limits = Limits {
            frame_max: self.frame_max.load(Ordering::Relaxed) as usize,
            segments_max: self.segments_max,
            segment_max: self.geometry.chunk() as usize,
        };
        let Some(open) = &mut self.open else { return Err(PortError::Lost("the queue is closed".into())) };
        open.reap(self.geometry, pool);
        let mut free = open.transmit.free(frames.len() as u32) as usize;
        let mut accepted = 0;
        for tx in frames.iter() {
            match limits.places(tx, pool) {
                None => {}
                Some(places) if places <= free => free -= places,
                Some(_) => break,
            }
            accepted += 1;
        }
        for tx in frames.drain(..accepted) {
            if limits.places(&tx, pool).is_none() {
                refused.push(tx);
            } else if tx.frame.is_chain() {
                let mut left = tx.frame.len();
                pool.arena().raw_segments(&tx.frame, |raw| {
                    left -= usize::from(raw.seg_len);
                    open.push(self.geometry, raw, if left > 0 { libc::XDP_PKT_CONTD } else { 0 });
                });
                let _first = tx.frame.into_raw(); // all its segments are the kernel's now
            } else {
                open.push(self.geometry, tx.frame.into_raw(), 0);
            }
        }
        open.transmit.publish();
        self.send_pending(pool);
        Ok(())
    }

    fn flush(&mut self, pool: &mut Pool) -> Result<(), PortError> {
        if self.outstanding() > 0 {
            self.send_pending(pool);
        }
        self.check_lost()
    }

    fn outstanding(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.held.len())
    }

    fn statistics(&mut self) -> QueueStatistics {
        if let Some(Ok(kernel)) = self.open.as_ref().map(|open| open.socket.statistics()) {
            self.last.tx_lost = kernel.tx_invalid_descs;
        }
        QueueStatistics { tx_lost: self.last.tx_lost + self.lost_frames, ..self.last }
    }

    fn close(&mut self, pool: &mut Pool) {
        if self.lost.is_none() {
            self.send_pending(pool); // what was accepted goes out, if the device takes it now
        }
        self.statistics();
        let Some(TransmitRings { socket, transmit, completion, held }) = self.open.take() else { return };
        drop((transmit, completion)); // the mappings keep the socket open
        self.pair.leave(socket, held, pool);
    }
}
