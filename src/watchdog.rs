//! The watchdog: names a worker whose loop does not turn any more.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::log;

/// One worker's pulse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Rises with every loop.
    pub count: u64,
    /// Asleep until a packet comes (poll = adaptive or interrupt): may stand still as long as it likes.
    pub asleep: bool,
}

/// What changed about a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has not moved for so long.
    Stuck {
        /// Its number.
        worker: usize,
        /// For how long.
        since: Duration,
    },
    /// It moves again.
    Recovered {
        /// Its number.
        worker: usize,
    },
}

/// The judgement, apart from threads and clocks.
#[derive(Debug)]
pub struct Watch {
    limit: Duration,
    last: Vec<Option<(u64, Duration)>>,
    stuck: Vec<bool>,
}

impl Watch {
    /// A worker that does not move for `limit` is stuck.
    pub fn new(limit: Duration) -> Watch {
        Watch { limit, last: Vec::new(), stuck: Vec::new() }
    }

    /// Looks at all workers at time `now` (since any start).
    pub fn check(&mut self, now: Duration, beats: &[Beat]) -> Vec<Change> {
        self.last.resize(beats.len(), None);
        self.stuck.resize(beats.len(), false);
        let mut changes = Vec::new();
        for (worker, beat) in beats.iter().enumerate() {
            match self.last[worker] {
                Some((count, since)) if count == beat.count && !beat.asleep => {
                    let still = now.saturating_sub(since);
                    if still >= self.limit && !self.stuck[worker] {
                        self.stuck[worker] = true;
                        changes.push(Change::Stuck { worker, since: still });
                    }
                }
                _ => {
                    self.last[worker] = Some((beat.count, now));
                    if std::mem::take(&mut self.stuck[worker]) {
                        changes.push(Change::Recovered { worker });
                    }
                }
            }
        }
        changes
    }
}

/// What the watchdog tells the rest of the daemon.
#[derive(Debug, Default)]
pub struct Alarms {
    /// Times a worker was found stuck, for `events`.
    pub stuck_total: AtomicU64,
    stuck: Mutex<Vec<bool>>,
}

impl Alarms {
    /// Whether this worker is stuck now.
    pub fn is_stuck(&self, worker: usize) -> bool {
        self.stuck.lock().unwrap_or_else(|e| e.into_inner()).get(worker).copied().unwrap_or(false)
    }

    /// Whether any is: systemd is then not told that all is well.
    pub fn any(&self) -> bool {
        self.stuck.lock().unwrap_or_else(|e| e.into_inner()).iter().any(|s| *s)
    }

    fn note(&self, change: Change) {
        let (worker, is) = match change {
            Change::Stuck { worker, since } => {
                self.stuck_total.fetch_add(1, Relaxed);
                log::error(format!(
                    "worker {worker} is stuck: its loop has not turned for {:.1} s; packets of its queues are not forwarded",
                    since.as_secs_f64()
                ));
                (worker, true)
            }
            Change::Recovered { worker } => {
                log::notice(format!("worker {worker} runs again"));
                (worker, false)
            }
        };
        let mut stuck = self.stuck.lock().unwrap_or_else(|e| e.into_inner());
        if stuck.len() <= worker {
            stuck.resize(worker + 1, false);
        }
        stuck[worker] = is;
    }
}

/// A running watchdog; ends when dropped.
pub struct Watchdog {
    alarms: Arc<Alarms>,
    end: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts it. `beats` reads the pulses of all workers; `each` is called after every look (for systemd's watchdog).
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        limit: Duration,
        beats: impl Fn() -> Vec<Beat> + Send + 'static,
        each: impl Fn(&Alarms) + Send + 'static,
    ) -> Result<Watchdog, Failure> {
        let alarms = Arc::new(Alarms::default());
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let step = (limit / 4).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let (thread_alarms, thread_end) = (alarms.clone(), end.clone());
        let run = move || {
            let (start, mut watch) = (Instant::now(), Watch::new(limit));
            let (lock, condition) = &*thread_end;
            let mut over = lock.lock().unwrap_or_else(|e| e.into_inner());
            while !*over {
                for change in watch.check(start.elapsed(), &beats()) {
                    thread_alarms.note(change);
                }
                each(&thread_alarms);
                over = condition.wait_timeout(over, step).unwrap_or_else(|e| e.into_inner()).0;
            }
        };
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(run)
            .map_err(|e| Failure::runtime(format!("cannot start the watchdog: {e}")))?;
        Ok(Watchdog { alarms, end, thread: Some(thread) })
    }

    /// What it found.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.end.0.lock().unwrap_or_else(|e| e.into_inner()) = true;
        self.end.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn beats(counts: &[(u64, bool)]) -> Vec<Beat> {
        counts.iter().map(|&(count, asleep)| Beat { count, asleep }).collect()
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_worker_that_stands_still_is_named_once_and_its_return_too() {
        let mut w = Watch::new(MS(500));
        assert_eq!(w.check(MS(0), &beats(&[(1, false), (1, false)])), []);
        assert_eq!(w.check(MS(499), &beats(&[(2, false), (1, false)])), []);
        assert_eq!(w.check(MS(500), &beats(&[(3, false), (1, false)])), [Change::Stuck { worker: 1, since: MS(500) }]);
        assert_eq!(w.check(MS(900), &beats(&[(4, false), (1, false)])), []);
        assert_eq!(w.check(MS(950), &beats(&[(5, false), (2, false)])), [Change::Recovered { worker: 1 }]);
        assert_eq!(w.check(MS(1400), &beats(&[(6, false), (2, false)])), []);
        assert_eq!(w.check(MS(1450), &beats(&[(7, false), (2, false)])).len(), 1);
    }

    #[test]
    fn a_sleeper_is_not_stuck_and_is_timed_from_its_waking() {
        let mut w = Watch::new(MS(500));
        assert_eq!(w.check(MS(0), &beats(&[(1, true)])), []);
        assert_eq!(w.check(MS(9000), &beats(&[(1, true)])), []);
        assert_eq!(w.check(MS(9400), &beats(&[(1, false)])), []);
        assert_eq!(w.check(MS(9500), &beats(&[(1, false)])).len(), 1);
    }

    #[test]
    fn the_thread_raises_the_alarm_and_lowers_it() {
        let pulse = Arc::new(AtomicU64::new(0));
        let moving = Arc::new(AtomicBool::new(false));
        let (p, m) = (pulse.clone(), moving.clone());
        let read = move || {
            if m.load(Relaxed) {
                p.fetch_add(1, Relaxed);
            }
            vec![Beat { count: p.load(Relaxed), asleep: false }]
        };
        let dog = Watchdog::start(MS(60), read, |_| ()).unwrap();
        let wait = |is: bool| {
            let deadline = Instant::now() + Duration::from_secs(10);
            while dog.alarms().is_stuck(0) != is {
                assert!(Instant::now() < deadline);
                std::thread::sleep(MS(5));
            }
        };
        wait(true);
        assert!(dog.alarms().any());
        moving.store(true, Relaxed);
        wait(false);
        assert_eq!(dog.alarms().stuck_total.load(Relaxed), 1);
        assert!(!dog.alarms().any());
    }
}
