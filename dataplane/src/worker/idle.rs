//! What a worker does when a turn found nothing.

#![forbid(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::{Command, Event, Worker};
use crate::clock;

/// How a worker waits for packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Poll {
    /// Looks again at once, for ever: the lowest latency, one core at 100 %.
    Busy,
    /// Looks for a while, then sleeps until the first packet.
    #[default]
    Adaptive,
    /// Sleeps as soon as there is nothing; with a clock rate it looks only at each tick, as FreeBSD's device polling (polling(4)) does.
    Interrupt {
        /// Ticks a second; 0: woken by the device.
        hz: u32,
    },
}

/// How long an adaptive worker looks at empty rings before it sleeps: a few times what a wake-up costs.
const SPIN_NANOS: u64 = 50_000;
/// Longest sleep: the watchdog and timers of stages want a turn now and then.
const SLEEP_MAX_NANOS: u64 = 100_000_000;
/// Sleep while packets wait for neighbours.
const SLEEP_HELD_NANOS: u64 = 1_000_000;

impl Worker {
    /// Runs until [`Command::Stop`].
    pub fn run(mut self) {
        self.serve();
    }

    /// As [`Worker::run`], for who wants the worker back.
    pub fn serve(&mut self) {
        let mut idle_since = None;
        let mut tick = clock::monotonic();
        let mut end = clock::cycles();
        loop {
            let start = end;
            let handled = self.turn_at(start);
            end = clock::cycles();
            self.counters.total_cycles.add(end.wrapping_sub(start));
            if handled > 0 {
                self.counters.busy_loops.add(1);
                self.counters.busy_cycles.add(end.wrapping_sub(start));
                idle_since = None;
            } else {
                self.counters.idle_loops.add(1);
            }
            while let Some(command) = self.mailbox.command() {
                if !self.obey(command) {
                    return;
                }
            }
            match self.options.poll {
                Poll::Busy if handled == 0 => std::hint::spin_loop(),
                Poll::Adaptive if handled == 0 => {
                    let since = *idle_since.get_or_insert(self.now);
                    if self.now.saturating_sub(since) >= SPIN_NANOS {
                        self.sleep(true, SLEEP_MAX_NANOS);
                        (idle_since, end) = (None, clock::cycles());
                    } else {
                        std::hint::spin_loop();
                    }
                }
                Poll::Interrupt { hz: 0 } if handled == 0 => {
                    self.sleep(true, SLEEP_MAX_NANOS);
                    end = clock::cycles();
                }
                Poll::Interrupt { hz } if hz > 0 && handled < self.options.batch => {
                    let now = clock::monotonic();
                    let period = 1_000_000_000 / u64::from(hz);
                    tick = (tick + period).max(now);
                    self.sleep(false, tick - now);
                    end = clock::cycles();
                }
                _ => {}
            }
        }
    }

    /// Sleeps until the bell, a packet (where `devices`), or `most` nanoseconds have passed.
    fn sleep(&mut self, devices: bool, most: u64) {
        let bell = self.mailbox.bell.clone();
        bell.prepare();
        let ready = self.rings.from.iter().any(|r| !r.is_empty())
            || self.rings.relay_from.iter().any(|r| !r.is_empty())
            || self.host.as_ref().is_some_and(|h| !h.from_host.is_empty())
            || self.mailbox.is_waiting()
            || self.rx.iter_mut().any(|r| devices && r.queue.arm());
        if !ready {
            let start = clock::cycles();
            self.quiesce.offline();
            self.counters.sleeps.add(1);
            // Frames that a device has not taken yet are offered again soon.
            let pending = self.tx.iter().any(|side| side.queue.as_ref().is_some_and(|q| q.outstanding() > 0));
            let nanos = if pending || self.holds() { most.min(SLEEP_HELD_NANOS) } else { most };
            let now = self.now;
            let nanos = self.stages.iter().map(|stage| stage.rests(now)).fold(nanos, u64::min);
            let timeout = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
            let mut fds: SmallVec<[PollFd<'_>; 16]> = SmallVec::new();
            fds.push(PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN));
            if devices {
                let waits = self.rx.iter().filter_map(|r| r.queue.wait_fd());
                fds.extend(waits.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            }
            let _ = poll(&mut fds, Some(&timeout));
            drop(fds);
            self.quiesce.online();
            self.counters.total_cycles.add(clock::cycles().wrapping_sub(start));
        }
        bell.awake();
    }

    /// Carries a command out; false when it was the last.
    pub fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Attach(pair) => self.attach(pair),
            Command::Relay(port, worker) => self.relay(port, worker),
            Command::Detach(port) => {
                self.detach(port);
                self.mailbox.tell(Event::Detached(port));
            }
            Command::Stages(stages) => {
                self.close_stages();
                self.stages = stages;
            }
            Command::Quiet => {
                self.close_receive();
                self.mailbox.tell(Event::Quiet);
            }
            Command::NeighborFailed(key) => self.neighbor_failed(key),
            Command::Waiting(report) => report.answer(self.neighbors.counts()),
            Command::Stop => {
                self.finish();
                self.mailbox.tell(Event::Stopped);
                return false;
            }
        }
        true
    }
}
