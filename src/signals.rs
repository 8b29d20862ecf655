//! Signals, and what systemd is told.

#![forbid(unsafe_code)]

use std::thread::JoinHandle;
use std::time::Duration;

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Handle;
pub use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::log;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// TERM, INT: drain and end.
    Stop,
    /// TERM or INT once more: end without draining.
    StopNow,
    /// HUP: reload.
    Reload,
    /// USR1: write all counters to the log.
    Dump,
}

/// Turns signals into wishes.
#[derive(Debug, Default)]
pub struct Translator {
    stopping: bool,
}

impl Translator {
    /// What this signal means now.
    pub fn wish(&mut self, signal: i32) -> Option<Wish> {
        match signal {
            SIGTERM | SIGINT if std::mem::replace(&mut self.stopping, true) => Some(Wish::StopNow),
            SIGTERM | SIGINT => Some(Wish::Stop),
            SIGHUP => Some(Wish::Reload),
            SIGUSR1 => Some(Wish::Dump),
            _ => None,
        }
    }
}

/// A thread that waits for signals; ends when dropped.
pub struct SignalThread {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// Catches TERM, INT, HUP and USR1 from now on, without a thread yet: done first thing, so that none kills half a start.
///
/// # Errors
/// When the kernel refuses.
pub fn catch() -> Result<Signals, Failure> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(|e| Failure::runtime(format!("cannot catch signals: {e}")))
}

impl SignalThread {
    /// Calls `each` for every wish, on a thread of its own.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(mut signals: Signals, each: impl Fn(Wish) + Send + 'static) -> Result<SignalThread, Failure> {
        let handle = signals.handle();
        let run = move || {
            let mut translator = Translator::default();
            for signal in signals.forever() {
                if let Some(wish) = translator.wish(signal) {
                    each(wish);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("signals".into())
            .spawn(run)
            .map_err(|e| Failure::runtime(format!("cannot start the signal thread: {e}")))?;
        Ok(SignalThread { handle, thread: Some(thread) })
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// systemd's side of things (sd_notify(3)); says nothing where there is no systemd.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notifier;

impl Notifier {
    fn send(self, states: &[NotifyState<'_>]) {
        if let Err(e) = sd_notify::notify(states) {
            log::once("sd_notify", format!("cannot tell systemd: {e}"));
        }
    }

    /// The gateway forwards.
    pub fn ready(self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// One line for `systemctl status`.
    pub fn status(self, status: &str) {
        self.send(&[NotifyState::Status(status)]);
    }

    /// A reload begins (Type=notify-reload); [`Notifier::ready`] ends it.
    pub fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.send(&[NotifyState::Reloading, now]),
            Err(e) => log::once("sd_notify clock", format!("cannot read the clock for systemd: {e}")),
        }
    }

    /// The gateway drains.
    pub fn stopping(self) {
        self.send(&[NotifyState::Stopping]);
    }

    /// All is well, for WatchdogSec=.
    pub fn alive(self) {
        self.send(&[NotifyState::Watchdog]);
    }

    /// How often systemd wants [`Notifier::alive`]: half its limit; None where it does not watch.
    pub fn interval(self) -> Option<Duration> {
        sd_notify::watchdog_enabled().map(|limit| limit / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn the_second_term_does_not_wait() {
        let mut t = Translator::default();
        assert_eq!(t.wish(SIGHUP), Some(Wish::Reload));
        assert_eq!(t.wish(SIGUSR1), Some(Wish::Dump));
        assert_eq!(
            (t.wish(SIGTERM), t.wish(SIGINT), t.wish(SIGTERM)),
            (Some(Wish::Stop), Some(Wish::StopNow), Some(Wish::StopNow))
        );
        assert_eq!(t.wish(signal_hook::consts::SIGCHLD), None);
    }

    #[test]
    fn signals_arrive_as_wishes() {
        let (tx, rx) = mpsc::channel();
        // HUP and USR1 only: TERM to the test program would be felt by others.
        let thread = SignalThread::start(catch().unwrap(), move |w| tx.send(w).unwrap()).unwrap();
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert_eq!(rx.recv_timeout(Duration::from_secs(10)), Ok(Wish::Dump));
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(rx.recv_timeout(Duration::from_secs(10)), Ok(Wish::Reload));
        drop(thread);
    }
}
