//! The transmit side of a worker: frames gather per port during a batch and leave in one call.

#![forbid(unsafe_code)]

use crate::arena::Pool;
use crate::counters::WorkerCounters;
use crate::packet::PortId;
use crate::port::{PortError, QueueStatistics, TxFrame, TxQueue};
use crate::verdict::DropReason;

/// Frames gathered before a flush at the latest.
pub const GATHER_MAX: usize = 512;

/// One port's transmit side.
pub struct TxSide {
    frames: Vec<TxFrame>,
    refused: Vec<TxFrame>,
    /// The worker's transmit queue; None while the port is detached, and for VLAN ports.
    pub queue: Option<Box<dyn TxQueue>>,
    /// The worker that sends for this one, where it has no queue of its own.
    pub via: Option<usize>,
    /// The queue's totals when they were last booked.
    pub booked: QueueStatistics,
    port: PortId,
}

impl TxSide {
    /// An empty side without a queue.
    pub fn new(port: PortId) -> TxSide {
        let (frames, refused) = (Vec::with_capacity(GATHER_MAX), Vec::with_capacity(GATHER_MAX));
        TxSide { frames, refused, queue: None, via: None, booked: QueueStatistics::default(), port }
    }

    /// Whether frames wait for [`TxSide::flush`].
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether the next frame needs a flush first.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.frames.len() >= GATHER_MAX
    }

    /// Whether the next frame does not fill it.
    #[inline(always)]
    pub fn has_room_after_next(&self) -> bool {
        self.frames.len() + 1 < GATHER_MAX
    }

    /// Appends a frame.
    #[inline(always)]
    pub fn push(&mut self, frame: TxFrame) {
        self.frames.push(frame);
    }

    /// Hands everything to the queue; what it does not take, even when asked twice, is dropped and counted.
    ///
    /// # Errors
    /// When the device is gone; the frames are dropped and counted.
    pub fn flush(&mut self, pool: &mut Pool, counters: &WorkerCounters) -> Result<(), PortError> {
        let Some(queue) = self.queue.as_mut() else {
            self.discard(DropReason::PortDown, pool, counters);
            return Ok(());
        };
        let (packets, bytes) = sum(&self.frames);
        let mut result = queue.transmit(&mut self.frames, &mut self.refused, pool);
        if result.is_ok() && !self.frames.is_empty() {
            result = queue.transmit(&mut self.frames, &mut self.refused, pool);
        }
        let sent = &counters.ports[usize::from(self.port.0)].transmitted;
        if self.frames.is_empty() && self.refused.is_empty() {
            sent.add(packets, bytes);
        } else {
            let (left, left_bytes) = sum(&self.frames);
            let (refused, refused_bytes) = sum(&self.refused);
            sent.add(packets - left - refused, bytes - left_bytes - refused_bytes);
            let reason = if result.is_ok() { DropReason::TxFull } else { DropReason::PortDown };
            self.discard(reason, pool, counters);
            counters.dropped[DropReason::TxRefused as usize].add(refused);
            self.refused.drain(..).for_each(|f| pool.free(f.frame));
        }
        result
    }

    /// Takes the gathered frames out, for another worker to send.
    pub fn drain(&mut self) -> std::vec::Drain<'_, TxFrame> {
        self.frames.drain(..)
    }

    fn discard(&mut self, reason: DropReason, pool: &mut Pool, counters: &WorkerCounters) {
        counters.dropped[reason as usize].add(self.frames.len() as u64);
        self.frames.drain(..).for_each(|f| pool.free(f.frame));
    }
}

#[inline(always)]
fn sum(frames: &[TxFrame]) -> (u64, u64) {
    (frames.len() as u64, frames.iter().map(|f| f.frame.len() as u64).sum())
}
