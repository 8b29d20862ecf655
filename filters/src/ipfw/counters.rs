#![forbid(unsafe_code)]
//! Counters of rules: one row a worker, written by it alone, read by anyone, and kept where the rules change around them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters in one piece of memory.
const CHUNK: usize = 1024;

/// Counters of one rule on one worker.
#[derive(Debug, Default)]
#[repr(align(32))]
pub struct RuleCounter {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Second of the last hit on the worker's clock, and one; 0 before the first.
    last: AtomicU64,
}

/// Counters of one rule, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Packets.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
    /// Second of the last hit on the workers' clock.
    pub last: Option<u64>,
}

impl RuleCounter {
    /// Counts; only the owning worker may call it.
    #[inline(always)]
    fn add(&self, packets: u64, bytes: u64, second: u64) {
        self.packets.store(self.packets.load(Relaxed).wrapping_add(packets), Relaxed);
        self.bytes.store(self.bytes.load(Relaxed).wrapping_add(bytes), Relaxed);
        self.last.store(second + 1, Relaxed);
    }

    fn get(&self) -> RuleCount {
        let last = self.last.load(Relaxed).checked_sub(1);
        RuleCount { packets: self.packets.load(Relaxed), bytes: self.bytes.load(Relaxed), last }
    }
}

/// One worker's counters, by the places of rules.
#[derive(Clone, Debug, Default)]
pub struct CounterRow {
    chunks: Vec<Arc<[RuleCounter]>>,
}

impl CounterRow {
    /// The row with room for so many places; what was counted stays, in the same memory.
    pub fn grown(&self, places: usize) -> CounterRow {
        let mut chunks = self.chunks.clone();
        while chunks.len() * CHUNK < places {
            chunks.push((0..CHUNK).map(|_| RuleCounter::default()).collect());
        }
        CounterRow { chunks }
    }

    /// Counts at a place; only the owning worker may call it.
    #[inline(always)]
    pub fn add(&self, slot: u32, packets: u64, bytes: u64, second: u64) {
        let slot = slot as usize;
        if let Some(counter) = self.chunks.get(slot / CHUNK).and_then(|chunk| chunk.get(slot % CHUNK)) {
            counter.add(packets, bytes, second);
        }
    }

    /// What was counted at a place.
    pub fn get(&self, slot: u32) -> RuleCount {
        let slot = slot as usize;
        self.chunks
            .get(slot / CHUNK)
            .and_then(|chunk| chunk.get(slot % CHUNK))
            .map_or_else(RuleCount::default, |c| c.get())
    }
}

impl RuleCount {
    /// Both together.
    pub fn plus(self, other: RuleCount) -> RuleCount {
        RuleCount {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            last: self.last.max(other.last),
        }
    }

    /// What was counted since `before`: zeroing a rule notes what it had.
    pub fn since(self, before: RuleCount) -> RuleCount {
        RuleCount {
            packets: self.packets.wrapping_sub(before.packets),
            bytes: self.bytes.wrapping_sub(before.bytes),
            last: if self.packets == before.packets { None } else { self.last },
        }
    }
}
