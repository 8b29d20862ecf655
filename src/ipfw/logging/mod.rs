//! What `log` rules write: a thread takes the workers' records and makes lines and a capture of them.
//!
//! Workers put records into rings of their own and never wait; a full ring loses records, which are counted and told. The thread looks at
//! the rings fifty times a second, so that a line is late by a moment and costs the packet path nothing.

#![forbid(unsafe_code)]

pub mod file;
pub mod line;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ferrule_config::gateway::{IpfwLog, LogFormat};
use ferrule_dataplane::clock;
use ferrule_filters::ipfw::log::{LogRecord, LogSink};

use self::file::{Bounded, Opener};
use self::line::Entry;
use super::firewall::Firewall;
use crate::log;

/// Records of a worker on their way: at a hundred a turn of the thread, some seconds' worth of a `log` rule that is met all the time.
const RING: usize = 8192;
/// Between two looks at the rings.
const TURN: Duration = Duration::from_millis(20);

/// Begin of a capture file: microseconds, version 2.4, Ethernet (pcap-savefile(5)).
const CAPTURE_HEAD: &[u8] = &[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

/// The workers' ends of the rings, to be read by [`Journal`].
pub struct Rings {
    readers: Vec<rtrb::Consumer<LogRecord>>,
    lost: Vec<Arc<AtomicU64>>,
}

impl Rings {
    /// A ring for each worker: the ends that write, and these.
    pub fn new(workers: usize) -> (Vec<LogSink>, Rings) {
        let mut rings = Rings { readers: Vec::new(), lost: Vec::new() };
        let sinks = (0..workers).map(|_| {
            let (sink, reader, lost) = LogSink::new(RING);
            rings.readers.push(reader);
            rings.lost.push(lost);
            sink
        });
        (sinks.collect(), rings)
    }
}

/// Counts of the log.
#[derive(Debug, Default)]
pub struct LogCounters {
    /// Records written.
    pub written: AtomicU64,
    /// Records that workers had no room for.
    pub lost: AtomicU64,
    /// Records that could not be written to a file.
    pub failed: AtomicU64,
}

/// The thread's own.
pub struct Journal {
    rings: Rings,
    firewall: Arc<Firewall>,
    format: LogFormat,
    lines: Option<Bounded>,
    capture: Option<Bounded>,
    opener: Opener,
    counters: Arc<LogCounters>,
    /// Places of rules whose bound was told.
    told: HashSet<u32>,
}

impl Journal {
    /// A journal that writes as the settings say.
    pub fn new(
        settings: &IpfwLog,
        rings: Rings,
        firewall: Arc<Firewall>,
        opener: Opener,
        counters: Arc<LogCounters>,
    ) -> Journal {
        let most = u64::from(settings.size) << 20;
        let bounded = |path: &Option<ferrule_config::Located<std::path::PathBuf>>, head| {
            path.as_ref().map(|path| Bounded::new(path.value.clone(), most, head))
        };
        Journal {
            rings,
            firewall,
            format: settings.format,
            lines: bounded(&settings.file, b""),
            capture: bounded(&settings.pcap, CAPTURE_HEAD),
            opener,
            counters,
            told: HashSet::new(),
        }
    }

    /// Writes until `stop`, and then what is left.
    pub fn run(mut self, stop: &AtomicBool) {
        loop {
            let ending = stop.load(Relaxed);
            self.turn();
            if ending {
                return;
            }
            std::thread::sleep(TURN);
        }
    }

    fn turn(&mut self) {
        let lost: u64 = self.rings.lost.iter().map(|lost| lost.load(Relaxed)).sum();
        if self.counters.lost.swap(lost, Relaxed) != lost {
            log::once(
                "ipfw log",
                "ipfw: log records are lost: rules with `log` are met more often than can be written",
            );
        }
        let mut records = Vec::new();
        for ring in &mut self.rings.readers {
            // No more than the ring holds: a rule that is met all the time must not keep the others waiting.
            records.extend(std::iter::from_fn(|| ring.pop().ok()).take(RING));
        }
        if records.is_empty() {
            return;
        }
        records.sort_by_key(|record| record.at);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let own_now = clock::monotonic();
        let facts = self.firewall.log_facts();
        let (mut lines, mut capture) = (String::new(), Vec::new());
        for record in &records {
            let time = now.saturating_sub(own_now.saturating_sub(record.at) / 1000);
            if self.lines.is_some() {
                let action = facts.actions.get(&record.slot).map_or("?", String::as_str);
                let name = |port: usize| self.firewall.port_name(port);
                let entry = Entry::new(record, action, time, name);
                lines.push_str(&match self.format {
                    LogFormat::Text => format!("{} {}", stamp(time), entry.text()),
                    LogFormat::Json => serde_json::to_string(&entry).unwrap_or_default(),
                });
                lines.push('\n');
            }
            if self.capture.is_some() {
                put(&mut capture, record, time);
            }
        }
        self.told.retain(|slot| facts.spent.iter().any(|(spent, ..)| spent == slot));
        for (slot, number, most) in facts.spent {
            if self.told.insert(slot) && self.format == LogFormat::Text && self.lines.is_some() {
                lines.push_str(&format!("{} ipfw: limit {most} reached on entry {number}\n", stamp(now)));
            }
        }
        let all = records.len() as u64;
        let mut failed = false;
        for (file, bytes) in [(&mut self.lines, lines.as_bytes()), (&mut self.capture, &capture)] {
            if let Some(file) = file
                && let Err(error) = file.write(bytes, &mut self.opener)
            {
                failed = true;
                let path = file.path().display();
                log::once(&format!("ipfw log {path}"), format!("ipfw: the log {path} cannot be written: {error}"));
            }
        }
        let counter = if failed { &self.counters.failed } else { &self.counters.written };
        counter.fetch_add(all, Relaxed);
    }
}

/// What the log needs to know of the rules in force.
#[derive(Clone, Debug, Default)]
pub struct LogFacts {
    /// What rules do, by place.
    pub actions: HashMap<u32, String>,
    /// Rules that may write no more: place, number, and how much they might.
    pub spent: Vec<(u32, u16, u32)>,
}

/// As syslogd writes the time, in UTC: `Nov 30 20:24:06`.
fn stamp(time_us: u64) -> String {
    let text = ferrule_config::ipfw::show::rules::date((time_us / 1_000_000) as i64);
    // Without the day of the week and the year.
    text.get(4..19).unwrap_or_default().to_owned()
}

fn put(out: &mut Vec<u8>, record: &LogRecord, time_us: u64) {
    let bytes = record.bytes.get(..usize::from(record.captured)).unwrap_or_default();
    let words = [(time_us / 1_000_000) as u32, (time_us % 1_000_000) as u32, bytes.len() as u32, record.length];
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
    out.extend(bytes);
}
