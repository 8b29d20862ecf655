//! The terminal: alternate screen, no echo, keys read as they come; all of it put back when dropped.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// q, Q, Escape, Ctrl-C, Ctrl-D, or the end of input.
    Quit,
}

/// A terminal in our hands.
pub struct Screen {
    saved: Termios,
}

impl Screen {
    /// Takes the terminal of standard input and output.
    ///
    /// # Errors
    /// When it is no terminal.
    pub fn enter() -> Result<Screen, Failure> {
        let told = |e| Failure::runtime(format!("cannot set the terminal up: {e} (use --once)"));
        let saved = tcgetattr(io::stdin()).map_err(told)?;
        let mut raw = saved.clone();
        // Signals stay on: Ctrl-C ends the loop through its flag, Ctrl-Z works.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(told)?;
        let screen = Screen { saved };
        let mut out = io::stdout();
        let _ = out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J").and_then(|()| out.flush());
        Ok(screen)
    }

    /// Waits for a key; others than those of [`Key`] are ignored.
    pub fn key(&self, wait: Duration) -> Option<Key> {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        if !matches!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1..)) {
            return None;
        }
        let mut bytes = [0; 16];
        match rustix::io::read(&stdin, &mut bytes) {
            Ok(n) => meaning(&bytes[..n]),
            Err(_) => None,
        }
    }
}

/// What the bytes of a key press mean.
fn meaning(bytes: &[u8]) -> Option<Key> {
    // An escape sequence (arrow keys) starts with Escape but is longer than one byte.
    matches!(bytes, [] | [b'q' | b'Q' | 3 | 4 | 27, ..] if bytes.first() != Some(&27) || bytes.len() == 1)
        .then_some(Key::Quit)
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout();
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }
}

/// Rows and columns of the terminal; 24 and 80 where it does not tell.
pub fn size() -> (u16, u16) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for quit in [&b"q"[..], b"Q", b"\x03", b"\x04", b"\x1b", b""] {
            assert_eq!(meaning(quit), Some(Key::Quit), "{quit:?}");
        }
        for other in [&b"\x1b[A"[..], b"x", b" "] {
            assert_eq!(meaning(other), None, "{other:?}");
        }
    }
}
