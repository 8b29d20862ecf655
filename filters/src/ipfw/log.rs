#![forbid(unsafe_code)]
//! What `log` rules write: records in a ring between the worker and the thread that makes text and captures of them. A full ring loses
//! records, which are counted, and never holds a worker up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::{Packet, PortId};
use ferrule_dataplane::stage::Hook;

use super::header::interfaces_of;

/// Bytes of the frame that a record has: enough for every header that the rules look at.
pub const SNAP: usize = 96;

/// One packet that a `log` rule matched.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord {
    /// When, on the workers' clock.
    pub at: Nanos,
    /// Number of the rule.
    pub rule: u16,
    /// Place of the rule's counters.
    pub slot: u32,
    /// Hook.
    pub hook: Hook,
    /// Where it came in.
    pub received: PortId,
    /// Where it goes out.
    pub sent: PortId,
    /// Bytes of the whole frame.
    pub length: u32,
    /// How many of `bytes` are the frame's.
    pub captured: u8,
    /// Its first bytes.
    pub bytes: [u8; SNAP],
}

impl LogRecord {
    /// The record of a packet.
    pub fn new(at: Nanos, rule: u16, slot: u32, packet: &Packet, hook: Hook) -> LogRecord {
        let (received, sent) = interfaces_of(packet, hook);
        let head = packet.frame.head();
        let captured = head.len().min(SNAP);
        let mut bytes = [0; SNAP];
        bytes[..captured].copy_from_slice(&head[..captured]);
        let length = packet.frame.len() as u32;
        LogRecord { at, rule, slot, hook, received, sent, length, captured: captured as u8, bytes }
    }
}

/// How many records a rule may still write, over all workers; `ipfw resetlog` sets it anew.
#[derive(Debug)]
pub struct LogBudget {
    left: AtomicU32,
    most: u32,
}

impl LogBudget {
    /// So many (`logamount`); 0 is without limit.
    pub fn new(most: u32) -> LogBudget {
        LogBudget { left: AtomicU32::new(most), most }
    }

    /// Takes one; false where none is left.
    pub fn take(&self) -> bool {
        self.most == 0 || self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// `resetlog`.
    pub fn reset(&self) {
        self.left.store(self.most, Relaxed);
    }

    /// How many it is; 0 is without limit.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// How many are left; None without limit.
    pub fn left(&self) -> Option<u32> {
        (self.most != 0).then(|| self.left.load(Relaxed))
    }
}

/// The worker's end of the ring.
pub struct LogSink {
    ring: rtrb::Producer<LogRecord>,
    lost: Arc<AtomicU64>,
}

impl LogSink {
    /// A ring of `records`: the worker's end, the reader's end, and how many records were lost.
    pub fn new(records: usize) -> (LogSink, rtrb::Consumer<LogRecord>, Arc<AtomicU64>) {
        let (ring, reader) = rtrb::RingBuffer::new(records);
        let lost = Arc::new(AtomicU64::new(0));
        (LogSink { ring, lost: lost.clone() }, reader, lost)
    }

    /// Writes a record, or counts it as lost.
    pub fn write(&mut self, record: LogRecord) {
        if self.ring.push(record).is_err() {
            self.lost.store(self.lost.load(Relaxed) + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_and_begins_again() {
        let budget = LogBudget::new(2);
        assert_eq!([budget.take(), budget.take(), budget.take()], [true, true, false]);
        assert_eq!(budget.left(), Some(0));
        budget.reset();
        assert!(budget.take());
        assert!((0..9).all(|_| LogBudget::new(0).take()));
    }
}
