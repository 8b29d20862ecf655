//! pcap port: frames come from a capture file and go to one, and the frames' time stamps are the clock.
//!
//! A frame is received once the [`VirtualClock`] has reached its time stamp; [`replay`] moves the clock from one frame or timer to the
//! next and never waits, so that the same captures, settings and hash seed give byte-identical output however fast the machine is.
//! The port has one queue: the order of a capture is exact.

#![forbid(unsafe_code)]

pub mod file;
mod replay;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub use file::{PcapError, Reader, Writer};
pub use replay::{ReplayError, Replayed, replay};

use crate::arena::{MAX_FRAME, Pool};
use crate::batch::Batch;
use crate::clock::{Nanos, VirtualClock};
use crate::packet::{Offload, Packet, PortId};
use crate::port::{PortError, QueuePair, QueueStatistics, RxQueue, TxFrame, TxQueue};

/// No frame left.
const NEVER: Nanos = Nanos::MAX;

/// What the queue tells the one who drives the clock.
#[derive(Debug)]
struct Progress {
    next: AtomicU64,
    read: AtomicU64,
    cut_short: AtomicU64,
    written: AtomicU64,
    error: Mutex<Option<PcapError>>,
}

impl Progress {
    /// Keeps the first error for [`Handle::finish`] and makes it one of the port.
    fn fail(&self, error: PcapError) -> PortError {
        let text = error.to_string();
        self.keep(error);
        PortError::System { call: "capture", source: std::io::Error::other(text) }
    }

    fn keep(&self, error: PcapError) {
        // A poisoned lock only means that another thread panicked; the value is whole.
        self.error.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
    }
}

/// A pcap port as seen from outside its worker.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Progress>);

/// What went through a pcap port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames read.
    pub read: u64,
    /// Of those, frames that the capture had cut short: the parser drops them unless what is there is whole.
    pub cut_short: u64,
    /// Frames written.
    pub written: u64,
}

impl Handle {
    /// When the next frame is due; None where there is none left (or no input).
    pub fn next_due(&self) -> Option<Nanos> {
        Some(self.0.next.load(Relaxed)).filter(|next| *next != NEVER)
    }

    /// Frames so far.
    pub fn counts(&self) -> Counts {
        let p = &self.0;
        Counts { read: p.read.load(Relaxed), cut_short: p.cut_short.load(Relaxed), written: p.written.load(Relaxed) }
    }

    /// The sums, once the worker has closed the port.
    ///
    /// # Errors
    /// What ended the capture early: a bad record, a full disk.
    pub fn finish(&self) -> Result<Counts, PcapError> {
        match self.0.error.lock().unwrap_or_else(|e| e.into_inner()).take() {
            Some(error) => Err(error),
            None => Ok(self.counts()),
        }
    }
}

/// Opens a port on capture files: without an input nothing is ever received, without an output what is sent is only counted.
///
/// # Errors
/// When a file cannot be opened or made, or the input is no classic pcap file of Ethernet frames; a bad first record shows here too.
pub fn open(
    port: PortId,
    input: Option<&Path>,
    output: Option<&Path>,
    time: &VirtualClock,
) -> Result<(QueuePair, Handle), PcapError> {
    // The input first: a mistake there leaves the output file as it was.
    let reader = input.map(Reader::open).transpose()?;
    let writer = output.map(Writer::create).transpose()?;
    queue(port, reader, writer, time)
}

/// As [`open`], from a reader and to a writer.
///
/// # Errors
/// When the first record is bad.
pub fn queue(
    port: PortId,
    input: Option<Reader>,
    output: Option<Writer>,
    time: &VirtualClock,
) -> Result<(QueuePair, Handle), PcapError> {
    let progress = Arc::new(Progress {
        next: AtomicU64::new(NEVER),
        read: AtomicU64::new(0),
        cut_short: AtomicU64::new(0),
        written: AtomicU64::new(0),
        error: Mutex::new(None),
    });
    let mut rx = Receive {
        port,
        input,
        bytes: Vec::new(),
        wire_len: 0,
        failed: None,
        discarded: 0,
        time: time.clone(),
        progress: progress.clone(),
    };
    rx.load();
    if let Some(error) = rx.failed.take() {
        return Err(error);
    }
    let tx = Transmit { output, time: time.clone(), progress: progress.clone() };
    Ok((QueuePair { port, rx: Box::new(rx), tx: Box::new(tx) }, Handle(progress)))
}

struct Receive {
    port: PortId,
    input: Option<Reader>,
    /// The next frame, read ahead: its time stamp is the next event.
    bytes: Vec<u8>,
    wire_len: u32,
    failed: Option<PcapError>,
    discarded: u64,
    time: VirtualClock,
    progress: Arc<Progress>,
}

impl Receive {
    /// Reads one frame ahead.
    fn load(&mut self) {
        let Some(reader) = self.input.as_mut() else { return };
        let next = match reader.next(&mut self.bytes) {
            Ok(Some(record)) => {
                self.wire_len = record.wire_len;
                record.time
            }
            Ok(None) => {
                self.input = None;
                NEVER
            }
            Err(error) => {
                self.input = None;
                self.failed = Some(error);
                // Due at once, so that the error shows after the last good frame.
                self.time.now()
            }
        };
        self.progress.next.store(next, Relaxed);
    }

    /// Buffers that the next frame takes.
    fn buffers(&self, pool: &Pool) -> usize {
        self.bytes.len().div_ceil(pool.arena().capacity()).max(1)
    }
}

impl RxQueue for Receive {
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError> {
        let now = self.time.now();
        let mut n = 0;
        while n < max.min(BURST) && batch.room() > 0 && self.failed.is_none() {
            if self.progress.next.load(Relaxed) > now {
                break;
            }
            // A file can wait where a wire cannot: frames stay in it until there are buffers.
            let sensible = (1..=MAX_FRAME).contains(&self.bytes.len());
            if sensible && self.buffers(pool) > pool.available() {
                break;
            }
            self.progress.read.fetch_add(1, Relaxed);
            if self.wire_len as usize > self.bytes.len() {
                self.progress.cut_short.fetch_add(1, Relaxed);
            }
            match pool.frame_from(&self.bytes) {
                Some(frame) => {
                    let _ = batch.push(Packet::new(frame, Offload::NONE, self.port));
                    n += 1;
                }
                None => self.discarded += 1,
            }
            self.load();
        }
        match self.failed.take() {
            Some(error) if n == 0 => {
                self.progress.next.store(NEVER, Relaxed);
                Err(self.progress.fail(error))
            }
            failed => {
                self.failed = failed;
                Ok(n)
            }
        }
    }

    fn statistics(&mut self) -> QueueStatistics {
        let copied = self.progress.read.load(Relaxed) - self.discarded;
        QueueStatistics { copied, rx_discarded: self.discarded, ..QueueStatistics::default() }
    }

    fn close(&mut self, _pool: &mut Pool) {
        self.input = None;
        self.progress.next.store(NEVER, Relaxed);
    }
}

/// Most frames of one call: a batch.
const BURST: usize = crate::batch::BATCH_MAX;

struct Transmit {
    output: Option<Writer>,
    time: VirtualClock,
    progress: Arc<Progress>,
}

impl TxQueue for Transmit {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        _refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        let now = self.time.now();
        let mut sent = 0;
        let mut result = Ok(());
        for t in frames.iter() {
            if let Some(output) = self.output.as_mut()
                && let Err(error) = output.append(now, t.frame.len(), pool.arena().segments(&t.frame))
            {
                result = Err(self.progress.fail(error));
                break;
            }
            sent += 1;
        }
        frames.drain(..sent).for_each(|t| pool.free(t.frame));
        self.progress.written.fetch_add(sent as u64, Relaxed);
        result
    }

    fn statistics(&mut self) -> QueueStatistics {
        QueueStatistics { copied: self.progress.written.load(Relaxed), ..QueueStatistics::default() }
    }

    fn close(&mut self, _pool: &mut Pool) {
        if let Some(Err(error)) = self.output.take().map(|mut output| output.flush()) {
            self.progress.keep(error);
        }
    }
}

#[cfg(test)]
mod tests;
