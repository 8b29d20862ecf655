#![forbid(unsafe_code)]
//! The rules in force: put there by the control side, picked up by each worker between two batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::counters::{CounterRow, RuleCount};
use super::program::Program;

/// A program with the counters of all workers.
pub struct Loaded {
    /// The rules.
    pub program: Arc<Program>,
    /// Rows of counters, by worker.
    pub counters: Vec<CounterRow>,
}

/// What the control side and the workers share.
pub struct Live {
    loaded: ArcSwap<Loaded>,
    generation: AtomicU64,
}

impl Live {
    /// Puts a first program in force, for so many workers.
    pub fn new(program: Program, workers: usize) -> Live {
        let loaded = Loaded::new(program, &vec![CounterRow::default(); workers]);
        Live { loaded: ArcSwap::from_pointee(loaded), generation: AtomicU64::new(1) }
    }

    /// Puts another program in force. Counters at places that both use go on; each worker takes it up before its next batch.
    pub fn replace(&self, program: Program) {
        let loaded = Loaded::new(program, &self.loaded.load().counters);
        self.loaded.store(Arc::new(loaded));
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// What is in force.
    pub fn loaded(&self) -> Arc<Loaded> {
        self.loaded.load_full()
    }

    /// Changes with each [`Live::replace`].
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Counters at a place, summed over the workers.
    pub fn count(&self, slot: u32) -> RuleCount {
        let loaded = self.loaded.load();
        loaded.counters.iter().map(|row| row.get(slot)).fold(RuleCount::default(), RuleCount::plus)
    }
}

impl Loaded {
    fn new(program: Program, rows: &[CounterRow]) -> Loaded {
        let places = program.rules.iter().map(|rule| rule.slot as usize + 1).max().unwrap_or(0);
        Loaded { program: Arc::new(program), counters: rows.iter().map(|row| row.grown(places)).collect() }
    }
}
