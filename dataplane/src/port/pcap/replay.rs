//! Drives workers over captures in virtual time.

#![forbid(unsafe_code)]

use crate::clock::{Nanos, VirtualClock};
use crate::port::pcap::Handle;
use crate::worker::Worker;

/// Step of the clock while packets wait for something that only time brings (neighbours, stages' timers).
const TICK: Nanos = 1_000_000;
/// How long waiting packets are given after the last frame.
const PATIENCE: Nanos = 60_000_000_000;
/// Turns at one instant before the line-up counts as going round in circles.
const TURNS_MAX: u64 = 1 << 24;

/// How a replay went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Virtual time of the first frame.
    pub start: Nanos,
    /// Virtual time of the end.
    pub end: Nanos,
    /// Turns of all workers together.
    pub turns: u64,
}

/// Why a replay stopped before the captures ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Frames are due and nobody takes them.
    #[error(
        "the frame of {due} ns was not taken for a minute of virtual time: there are no free buffers, or no worker has its port"
    )]
    Stalled {
        /// The frame's time stamp.
        due: Nanos,
    },
    /// Workers find something in every turn and time cannot go on.
    #[error("packets go round without end at {now} ns: look for a stage that makes packets out of its own packets")]
    Circles {
        /// The instant.
        now: Nanos,
    },
}

/// Runs the workers, one turn each in their order, until every capture has been read and nothing is held any more (or only what a
/// minute did not move). The clock goes from one frame's time stamp to the next, in ticks of a millisecond while packets are held.
/// `between` is called after every round of turns: there the caller reads events and does what a control thread would.
///
/// The ports stay open: send [`crate::worker::Command::Stop`] or `Detach` and then call [`Handle::finish`].
///
/// # Errors
/// When it cannot go on; the captures are read and written up to there.
pub fn replay(
    workers: &mut [Worker],
    ports: &[Handle],
    time: &VirtualClock,
    mut between: impl FnMut(&mut [Worker]),
) -> Result<Replayed, ReplayError> {
    let mut done = Replayed::default();
    let next = || ports.iter().filter_map(Handle::next_due).min();
    let mut started = false;
    let (mut last_progress, mut last_held) = (0, 0);
    loop {
        let held = workers.iter().any(Worker::holds);
        let now = time.now();
        let target = match next() {
            // The first frame sets the clock.
            Some(due) if !started => due,
            Some(due) if due <= now => {
                if now.saturating_sub(last_progress) > PATIENCE {
                    return Err(ReplayError::Stalled { due });
                }
                now + TICK
            }
            Some(due) if held => due.min(now + TICK),
            Some(due) => due,
            None if held && now.saturating_sub(last_held) < PATIENCE => now + TICK,
            None => break,
        };
        if next().is_none_or(|due| due > now) {
            // Nothing was kept waiting up to here.
            last_progress = target;
        }
        time.advance_to(target);
        if !started {
            (started, done.start) = (true, time.now());
            last_progress = done.start;
        }
        let read = frames(ports);
        let mut rounds = 0;
        while round(workers, &mut done, &mut between) > 0 {
            rounds += 1;
            if rounds > TURNS_MAX {
                return Err(ReplayError::Circles { now: time.now() });
            }
        }
        if frames(ports) != read {
            (last_progress, last_held) = (time.now(), time.now());
        }
    }
    done.end = time.now();
    Ok(done)
}

fn frames(ports: &[Handle]) -> u64 {
    ports.iter().map(|port| port.counts().read).sum()
}

/// One turn of every worker; returns what they found.
fn round(workers: &mut [Worker], done: &mut Replayed, between: &mut impl FnMut(&mut [Worker])) -> usize {
    let mut found = 0;
    for worker in workers.iter_mut() {
        found += worker.turn();
        done.turns += 1;
    }
    between(workers);
    found
}
