//! Waking a thread that sleeps in poll(2): one flag and one eventfd. The waker makes a system call only when the other side
//! really sleeps, so a busy pair never makes any.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

/// The bell of one thread.
#[derive(Debug)]
pub struct Waker {
    sleeping: AtomicBool,
    bell: OwnedFd,
}

impl Waker {
    /// A new one, awake.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new() -> io::Result<Waker> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Waker { sleeping: AtomicBool::new(false), bell })
    }

    /// Rings if the thread sleeps or is about to. Call after the work has been made visible (pushed to a ring).
    #[inline]
    pub fn wake(&self) {
        // Store (of the work) before load (of the flag): paired with the fence in prepare().
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Announces that the thread will sleep; it must look for work once more before it does.
    pub fn prepare(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Back to work: takes the announcement back and silences the bell.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    /// Whether the thread sleeps now, or is about to. It may have changed by the time of the answer.
    pub fn is_sleeping(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    /// The descriptor to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_told_from_one_that_is_stuck() {
        let waker = Waker::new().unwrap();
        assert!(!waker.is_sleeping());
        waker.prepare();
        assert!(waker.is_sleeping());
        waker.wake();
        assert!(!waker.is_sleeping(), "it was rung for and has work");
        waker.prepare();
        waker.awake();
        assert!(!waker.is_sleeping());
    }
}
