//! The way to the host's stack and back, as a worker sees it: rings to and from the host I/O thread, and the limits on what goes up.

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::clock::Nanos;
use crate::packet::Packet;
use crate::verdict::PuntClass;
use crate::wake::Waker;

/// A token bucket that all workers share, exact over all of them: the theoretical arrival time of the GCRA in one atomic.
#[derive(Debug)]
pub struct SharedBucket {
    cost: Nanos,
    depth: Nanos,
    arrival: AtomicU64,
}

impl SharedBucket {
    /// `rate` a second (0: nothing passes), `burst` at once.
    pub fn new(rate: u32, burst: u32) -> SharedBucket {
        let cost = if rate == 0 { Nanos::MAX } else { (1_000_000_000 / Nanos::from(rate)).max(1) };
        SharedBucket { cost, depth: cost.saturating_mul(Nanos::from(burst.max(1))), arrival: AtomicU64::new(0) }
    }

    /// Takes one token; false when there is none.
    #[inline]
    pub fn take(&self, now: Nanos) -> bool {
        if self.cost == Nanos::MAX {
            return false;
        }
        self.arrival
            .fetch_update(Relaxed, Relaxed, |arrival| {
                let next = arrival.max(now) + self.cost;
                (next <= now + self.depth).then_some(next)
            })
            .is_ok()
    }
}

/// Limits of what goes up, one bucket a class (packets a second).
#[derive(Debug)]
pub struct PuntLimits([SharedBucket; PuntClass::COUNT]);

impl PuntLimits {
    /// Rates in the order of [`PuntClass::ALL`]; bursts of a tenth of a second.
    pub fn new(rates: [u32; PuntClass::COUNT]) -> PuntLimits {
        PuntLimits(rates.map(|rate| SharedBucket::new(rate, (rate / 10).max(16))))
    }

    /// Whether one more packet of the class may go up.
    #[inline]
    pub fn take(&self, class: PuntClass, now: Nanos) -> bool {
        self.0[class as usize].take(now)
    }
}

/// A worker's ends of the rings to the host I/O thread.
pub struct HostLink {
    /// Packets for the host; the thread counts what the kernel took.
    pub to_host: rtrb::Producer<Packet>,
    /// Packets from the host, parsed, marked `FROM_HOST`.
    pub from_host: rtrb::Consumer<Packet>,
    /// Rouses the thread.
    pub bell: Arc<Waker>,
    /// Shared limits.
    pub limits: Arc<PuntLimits>,
}

/// The host I/O thread's ends for one worker.
pub struct HostEnd {
    /// From the worker.
    pub to_host: rtrb::Consumer<Packet>,
    /// To the worker.
    pub from_host: rtrb::Producer<Packet>,
    /// Rouses the worker.
    pub bell: Arc<Waker>,
}

/// Makes the two rings between a worker and the host I/O thread.
pub fn link(capacity: usize, thread: Arc<Waker>, worker: Arc<Waker>, limits: Arc<PuntLimits>) -> (HostLink, HostEnd) {
    let (to_host, up) = rtrb::RingBuffer::new(capacity);
    let (down, from_host) = rtrb::RingBuffer::new(capacity);
    (HostLink { to_host, from_host, bell: thread, limits }, HostEnd { to_host: up, from_host: down, bell: worker })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_bucket_is_exact_over_threads() {
        let bucket = SharedBucket::new(1000, 10);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| (0..10_000u64).filter(|i| bucket.take(i * 100_000)).count())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        // One second of virtual time at 1000/s and a burst of ten; a thread ahead in time may fill what the others missed.
        assert!((1000..=1010).contains(&taken), "{taken}");
    }
}
