//! Time for workers: the TSC where there is one, told in nanoseconds of CLOCK_MONOTONIC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Nanoseconds on a clock that never goes back; only differences mean anything.
pub type Nanos = u64;

/// Reads the time-stamp counter (x86-64), or nanoseconds where there is none. Not serialising: used over whole batches.
#[inline(always)]
pub fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc reads a register; every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        monotonic()
    }
}

/// Nanoseconds since the first call in this process.
pub fn monotonic() -> Nanos {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as Nanos
}

/// A time that stands still until it is moved: captures, tests and fuzzing run on it, so that the same input gives the same output.
/// Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock that shows `now`.
    pub fn new(now: Nanos) -> VirtualClock {
        VirtualClock(Arc::new(AtomicU64::new(now)))
    }

    /// What it shows.
    pub fn now(&self) -> Nanos {
        self.0.load(Ordering::Acquire)
    }

    /// Moves it to `to`; it never goes back.
    pub fn advance_to(&self, to: Nanos) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }

    /// Moves it on by `by` nanoseconds.
    pub fn advance(&self, by: Nanos) {
        self.0.fetch_add(by, Ordering::AcqRel);
    }
}

/// Where a worker's time comes from.
#[derive(Clone, Debug, Default)]
pub enum ClockSource {
    /// The machine's own clock.
    #[default]
    Tsc,
    /// A clock that whoever drives the worker moves.
    Virtual(VirtualClock),
}

/// A worker's clock: reads the TSC on every call and CLOCK_MONOTONIC about once a millisecond, so that a drift between the two
/// never adds up. Never goes back.
pub struct Clock {
    per_cycle: f64,
    base_cycles: u64,
    base_nanos: Nanos,
    resync: u64,
    last: Nanos,
    source: ClockSource,
}

/// TSC cycles per second, measured once against CLOCK_MONOTONIC over 20 ms.
pub fn cycles_per_second() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (c0, t0) = (cycles(), Instant::now());
        while t0.elapsed().as_millis() < 20 {
            std::hint::spin_loop();
        }
        (cycles() - c0) as f64 / t0.elapsed().as_secs_f64()
    })
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

impl Clock {
    /// Calibrates (20 ms, the first time in a process).
    pub fn new() -> Clock {
        let rate = cycles_per_second();
        Clock {
            per_cycle: 1e9 / rate,
            base_cycles: cycles(),
            base_nanos: monotonic(),
            resync: (rate / 1000.0) as u64,
            last: 0,
            source: ClockSource::Tsc,
        }
    }

    /// A clock that follows `source`; a virtual one needs no calibration.
    pub fn of(source: ClockSource) -> Clock {
        match source {
            ClockSource::Tsc => Clock::new(),
            ClockSource::Virtual(_) => {
                Clock { per_cycle: 0.0, base_cycles: 0, base_nanos: 0, resync: 0, last: 0, source }
            }
        }
    }

    /// The time that belongs to a TSC reading taken just now.
    #[inline(always)]
    pub fn at(&mut self, cycles_now: u64) -> Nanos {
        if let ClockSource::Virtual(time) = &self.source {
            return time.now();
        }
        let delta = cycles_now.wrapping_sub(self.base_cycles);
        if delta > self.resync {
            self.base_cycles = cycles();
            self.base_nanos = monotonic();
            self.last = self.last.max(self.base_nanos);
            return self.last;
        }
        self.last = self.last.max(self.base_nanos + (delta as f64 * self.per_cycle) as u64);
        self.last
    }
}
