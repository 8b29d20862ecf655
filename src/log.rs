//! The log of the control plane: lines on standard error, never from the packet path.
//!
//! Under systemd each line starts with `<N>`, the syslog priority that journald reads (sd-daemon(3)); on a terminal it starts
//! with the level's name. What would be said over and over is said once: [`once`].

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// Severity, with the numbers of syslog(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Something failed.
    Error = 3,
    /// Something is not as it should be; Ferrule goes on.
    Warning = 4,
    /// A change that an operator wants to see.
    Notice = 5,
    /// What it is doing.
    Info = 6,
    /// For developers.
    Debug = 7,
}

impl Level {
    /// Its name, as `--log` takes it.
    pub fn label(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Notice => "notice",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// How a line starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `<3>text`, for journald.
    Journal,
    /// `error: text`.
    Plain,
    /// As plain, with colour.
    Colour,
}

static THRESHOLD: AtomicU8 = AtomicU8::new(Level::Info as u8);

/// Lines less severe than this are not written.
pub fn set_threshold(level: Level) {
    THRESHOLD.store(level as u8, Relaxed);
}

/// The line as it is written, newlines within it turned into one line of journal each.
pub fn render(style: Style, level: Level, text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for (i, line) in text.lines().enumerate() {
        match style {
            Style::Journal => out.push_str(&format!("<{}>{line}\n", level as u8)),
            _ if i > 0 => out.push_str(&format!("  {line}\n")),
            Style::Plain => out.push_str(&format!("{}: {line}\n", level.label())),
            Style::Colour => {
                let colour = match level {
                    Level::Error => "31",
                    Level::Warning => "33",
                    Level::Notice => "36",
                    Level::Info | Level::Debug => "2",
                };
                out.push_str(&format!("\x1b[{colour}m{}\x1b[0m: {line}\n", level.label()));
            }
        }
    }
    out
}

/// Whether colour may be used on this stream: a terminal, and NO_COLOR (no-color.org) unset or empty.
pub fn may_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn style() -> Style {
    static STYLE: OnceLock<Style> = OnceLock::new();
    *STYLE.get_or_init(|| {
        // systemd sets JOURNAL_STREAM for a unit whose standard error is the journal (systemd.exec(5)).
        if std::env::var_os("JOURNAL_STREAM").is_some() && !std::io::stderr().is_terminal() {
            Style::Journal
        } else if may_colour(&std::io::stderr()) {
            Style::Colour
        } else {
            Style::Plain
        }
    })
}

/// Writes a line. A standard error that is closed loses it; the gateway does not stop for that.
pub fn write(level: Level, text: &str) {
    if level as u8 > THRESHOLD.load(Relaxed) {
        return;
    }
    let line = render(style(), level, text);
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// An error.
pub fn error(text: impl AsRef<str>) {
    write(Level::Error, text.as_ref());
}

/// A warning.
pub fn warning(text: impl AsRef<str>) {
    write(Level::Warning, text.as_ref());
}

/// A notice.
pub fn notice(text: impl AsRef<str>) {
    write(Level::Notice, text.as_ref());
}

/// Information.
pub fn info(text: impl AsRef<str>) {
    write(Level::Info, text.as_ref());
}

/// For developers.
pub fn debug(text: impl AsRef<str>) {
    write(Level::Debug, text.as_ref());
}

/// Keys that [`Once`] remembers at most; later new keys are not explained (they are still counted).
const ONCE_MAX: usize = 4096;

/// Remembers what was said already.
#[derive(Debug, Default)]
pub struct Once {
    said: Mutex<HashSet<String>>,
    suppressed: AtomicU64,
}

impl Once {
    /// True the first time a key comes, false afterwards (and counted).
    pub fn first(&self, key: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(|e| e.into_inner());
        if said.len() < ONCE_MAX && said.insert(key.to_owned()) {
            return true;
        }
        self.suppressed.fetch_add(1, Relaxed);
        false
    }

    /// How often something was not said because it had been.
    pub fn suppressed(&self) -> u64 {
        self.suppressed.load(Relaxed)
    }

    /// Forgets a key: its cause is gone, and its return is news.
    pub fn forget(&self, key: &str) {
        self.said.lock().unwrap_or_else(|e| e.into_inner()).remove(key);
    }
}

fn global_once() -> &'static Once {
    static ONCE: OnceLock<Once> = OnceLock::new();
    ONCE.get_or_init(Once::default)
}

/// Explains something the first time its key comes, and never again in this process.
pub fn once(key: &str, text: impl AsRef<str>) {
    if global_once().first(key) {
        warning(text);
    }
}

/// Lets [`once`] speak again for this key.
pub fn forget(key: &str) {
    global_once().forget(key);
}

/// Lets at most one line through per interval, and says how many were swallowed in between.
#[derive(Debug)]
pub struct Limited {
    interval_ms: u64,
    last_ms: AtomicU64,
    swallowed: AtomicU64,
    start: Instant,
}

impl Limited {
    /// One line per `interval_ms` milliseconds.
    pub fn new(interval_ms: u64) -> Limited {
        Limited { interval_ms, last_ms: AtomicU64::new(u64::MAX), swallowed: AtomicU64::new(0), start: Instant::now() }
    }

    /// The line to write at this time (milliseconds since any start), if one may be written.
    pub fn line(&self, now_ms: u64, text: &str) -> Option<String> {
        let last = self.last_ms.load(Relaxed);
        if last != u64::MAX && now_ms.saturating_sub(last) < self.interval_ms {
            self.swallowed.fetch_add(1, Relaxed);
            return None;
        }
        self.last_ms.store(now_ms, Relaxed);
        Some(match self.swallowed.swap(0, Relaxed) {
            0 => text.to_owned(),
            n => format!("{text} ({n} more like this since the last line)"),
        })
    }

    /// Writes the line if one may be written now.
    pub fn write(&self, level: Level, text: &str) {
        if let Some(line) = self.line(self.start.elapsed().as_millis() as u64, text) {
            write(level, &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journald_gets_its_priority_on_every_line() {
        assert_eq!(render(Style::Journal, Level::Error, "a\nb"), "<3>a\n<3>b\n");
        assert_eq!(render(Style::Plain, Level::Warning, "a\nb"), "warning: a\n  b\n");
        assert_eq!(render(Style::Colour, Level::Error, "a"), "\x1b[31merror\x1b[0m: a\n");
    }

    #[test]
    fn once_is_once_until_forgotten() {
        let once = Once::default();
        assert!(once.first("gro eth0") && once.first("gro eth1"));
        assert!(!once.first("gro eth0"));
        assert_eq!(once.suppressed(), 1);
        once.forget("gro eth0");
        assert!(once.first("gro eth0"));
    }

    #[test]
    fn once_does_not_grow_without_bound() {
        let once = Once::default();
        for i in 0..ONCE_MAX + 100 {
            once.first(&i.to_string());
        }
        assert_eq!(once.suppressed(), 100);
    }

    #[test]
    fn a_limited_line_tells_what_it_swallowed() {
        let limited = Limited::new(1000);
        assert_eq!(limited.line(0, "full").as_deref(), Some("full"));
        assert_eq!((limited.line(10, "full"), limited.line(999, "full")), (None, None));
        assert_eq!(limited.line(1000, "full").as_deref(), Some("full (2 more like this since the last line)"));
        assert_eq!(limited.line(2000, "full").as_deref(), Some("full"));
    }
}
