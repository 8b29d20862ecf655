//! The lines that pkt-gen prints, in its own form, so that scripts that read them go on working.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde::Serialize;

/// Totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Bytes without FCS.
    pub bytes: u64,
    /// Bursts.
    pub events: u64,
    /// Smallest number of free buffers seen since the last report.
    pub min_space: u64,
}

/// How numbers are written.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// K, M and G; off with -N.
    pub units: bool,
    /// Bits of framing and FCS added to each packet; 0 without -B.
    pub framing_bits: u64,
}

/// Bits of preamble, gap and FCS that -B adds: 24 bytes.
pub const FRAMING_BITS: u64 = 24 * 8;

impl Format {
    /// A number and its unit, with a space between: `14.881 M`, or `14880952 ` with -N.
    pub fn number(&self, value: f64) -> String {
        if !self.units {
            return format!("{value:.0} ");
        }
        let (mut value, mut unit) = (value, 0);
        const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
        while value >= 1000.0 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        format!("{value:.3} {}", UNITS[unit])
    }

    /// What is said each interval, without the time and function that the log line starts with. `average` is what -A adds.
    pub fn interval(&self, r: &Interval, average: Option<(f64, f64)>) -> String {
        let average = average.map_or_else(String::new, |(mean, deviation)| {
            format!("[avg/std {}/{} pps]", self.number(mean), self.number(deviation))
        });
        format!(
            "{}pps {average}({}pkts {}bps in {} usec) {:.2} avg_batch {} min_space",
            self.number(r.pps as f64),
            self.number(r.packets as f64),
            self.number(r.bits_per_s),
            r.usec,
            r.average_batch,
            r.min_space
        )
    }

    /// The last two lines: `Sent N packets ...` and `Speed: ...`; one line when there was nothing.
    pub fn summary(&self, verb: &str, t: Totals, took: Duration) -> String {
        if t.packets == 0 {
            return format!("{verb} nothing.\n");
        }
        let s = Summary::new(t, took, self.framing_bits);
        let size = t.bytes / t.packets;
        format!(
            "{verb} {} packets {} bytes {} events {size} bytes each in {:.2} seconds.\n\
             Speed: {}pps Bandwidth: {}bps (raw {}bps). Average batch: {:.2} pkts\n",
            t.packets,
            t.bytes,
            t.events,
            took.as_secs_f64(),
            self.number(s.pps),
            self.number(s.bits_per_s),
            self.number(s.raw_bits_per_s),
            s.average_batch
        )
    }
}

/// What happened in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// Packets a second, rounded.
    pub pps: u64,
    /// Packets in the interval.
    pub packets: u64,
    /// Bits a second, with framing where -B asked for it.
    pub bits_per_s: f64,
    /// Its length in microseconds.
    pub usec: u64,
    /// Packets in a burst.
    pub average_batch: f64,
    /// Smallest number of free buffers seen.
    pub min_space: u64,
}

impl Interval {
    /// The difference of two totals `usec` microseconds apart (more than 0).
    pub fn between(before: Totals, after: Totals, usec: u64, framing_bits: u64) -> Interval {
        let packets = after.packets - before.packets;
        let events = after.events - before.events;
        let bits = (after.bytes - before.bytes) * 8 + packets * framing_bits;
        Interval {
            pps: (packets * 1_000_000 + usec / 2) / usec,
            packets,
            bits_per_s: bits as f64 * 1e6 / usec as f64,
            usec,
            average_batch: if events == 0 { 0.0 } else { packets as f64 / events as f64 },
            min_space: after.min_space,
        }
    }
}

/// The whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Packets.
    pub packets: u64,
    /// Bytes without FCS.
    pub bytes: u64,
    /// Bursts.
    pub events: u64,
    /// From the first to the last packet.
    pub seconds: f64,
    /// Packets a second.
    pub pps: f64,
    /// Bits a second.
    pub bits_per_s: f64,
    /// With framing where -B asked for it.
    pub raw_bits_per_s: f64,
    /// Packets in a burst.
    pub average_batch: f64,
}

impl Summary {
    /// Rates over the whole run.
    pub fn new(t: Totals, took: Duration, framing_bits: u64) -> Summary {
        let seconds = took.as_secs_f64().max(1e-6);
        Summary {
            packets: t.packets,
            bytes: t.bytes,
            events: t.events,
            seconds: took.as_secs_f64(),
            pps: t.packets as f64 / seconds,
            bits_per_s: t.bytes as f64 * 8.0 / seconds,
            raw_bits_per_s: (t.bytes * 8 + t.packets * framing_bits) as f64 / seconds,
            average_batch: if t.events == 0 { 0.0 } else { t.packets as f64 / t.events as f64 },
        }
    }
}

/// Mean and standard deviation of the last fifteen rates, for -A.
#[derive(Clone, Debug, Default)]
pub struct Window {
    rates: [u64; 15],
    next: usize,
}

impl Window {
    /// Takes a rate in; mean and deviation of those that are not zero.
    pub fn add(&mut self, pps: u64) -> (f64, f64) {
        self.rates[self.next] = pps;
        self.next = (self.next + 1) % self.rates.len();
        let seen: Vec<f64> = self.rates.iter().filter(|r| **r > 0).map(|r| *r as f64).collect();
        if seen.is_empty() {
            return (0.0, 0.0);
        }
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        let variance = seen.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / seen.len() as f64;
        (mean, variance.sqrt())
    }
}

/// How netmap's log macro starts a line: seconds modulo 1000, microseconds, function, line.
pub fn stamp(unix: Duration, function: &str, line: u32) -> String {
    format!("{:03}.{:06} {function} [{line}] ", unix.as_secs() % 1000, unix.subsec_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Format = Format { units: true, framing_bits: 0 };
    const BARE: Format = Format { units: false, framing_bits: 0 };

    fn totals(packets: u64, events: u64) -> Totals {
        Totals { packets, bytes: packets * 60, events, min_space: 99 }
    }

    #[test]
    fn interval_golden() {
        let r = Interval::between(totals(100, 1), totals(14_863_100, 36_251), 1_001_001, 0);
        assert_eq!(
            stamp(Duration::new(1_700_000_427, 628_199_000), "main_thread", 2781) + &UNITS.interval(&r, None),
            "427.628199 main_thread [2781] 14.848 Mpps (14.863 Mpkts 7.127 Gbps in 1001001 usec) 410.01 avg_batch 99 min_space"
        );
        assert_eq!(
            BARE.interval(&r, None),
            "14848137 pps (14863000 pkts 7127105767 bps in 1001001 usec) 410.01 avg_batch 99 min_space"
        );
        let idle = Interval::between(totals(5, 1), totals(5, 1), 1_000_000, 0);
        assert_eq!(
            UNITS.interval(&idle, None),
            "0.000 pps (0.000 pkts 0.000 bps in 1000000 usec) 0.00 avg_batch 99 min_space"
        );
    }

    #[test]
    fn averages_golden() {
        let r = Interval::between(totals(0, 0), totals(1000, 10), 1_000_000, FRAMING_BITS);
        assert_eq!(
            UNITS.interval(&r, Some((1500.0, 12.5))),
            "1.000 Kpps [avg/std 1.500 K/12.500  pps](1.000 Kpkts 672.000 Kbps in 1000000 usec) 100.00 avg_batch 99 min_space"
        );
        let mut window = Window::default();
        assert_eq!(window.add(0), (0.0, 0.0));
        assert_eq!(window.add(10), (10.0, 0.0));
        assert_eq!(window.add(20), (15.0, 5.0));
        for _ in 0..15 {
            window.add(7);
        }
        assert_eq!(window.add(7), (7.0, 0.0));
    }

    #[test]
    fn summary_golden() {
        assert_eq!(
            UNITS.summary("Sent", totals(1_000_000, 2000), Duration::from_millis(500)),
            "Sent 1000000 packets 60000000 bytes 2000 events 60 bytes each in 0.50 seconds.\n\
             Speed: 2.000 Mpps Bandwidth: 960.000 Mbps (raw 960.000 Mbps). Average batch: 500.00 pkts\n"
        );
        let framed = Format { units: false, framing_bits: FRAMING_BITS };
        assert_eq!(
            framed.summary("Received", totals(10, 2), Duration::from_secs(1)),
            "Received 10 packets 600 bytes 2 events 60 bytes each in 1.00 seconds.\n\
             Speed: 10 pps Bandwidth: 4800 bps (raw 6720 bps). Average batch: 5.00 pkts\n"
        );
        assert_eq!(UNITS.summary("Received", Totals::default(), Duration::ZERO), "Received nothing.\n");
    }
}
