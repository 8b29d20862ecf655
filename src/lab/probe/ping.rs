//! `ping` (iputils), both families: sizes, don't fragment, TTL; the errors that routers on the way answered with.
#![forbid(unsafe_code)]

use crate::lab::{Host, LabError};
use std::net::IpAddr;
use std::time::Duration;

/// A ping to be run.
#[derive(Debug, Clone)]
pub struct Ping {
    to: IpAddr,
    count: u32,
    size: u32,
    interval_ms: u32,
    dont_fragment: bool,
    ttl: Option<u8>,
    wait_s: u32,
}

impl Ping {
    /// Three echo requests of 56 bytes, 100 ms apart: ping waits as long for the last reply once it has got another one.
    pub fn new(to: impl Into<IpAddr>) -> Ping {
        Ping { to: to.into(), count: 3, size: 56, interval_ms: 100, dont_fragment: false, ttl: None, wait_s: 1 }
    }

    /// How many echo requests.
    #[must_use]
    pub fn count(mut self, count: u32) -> Ping {
        self.count = count;
        self
    }

    /// Bytes after the ICMP header; 1472 fills an IPv4 packet of 1500, 1452 an IPv6 one.
    #[must_use]
    pub fn size(mut self, bytes: u32) -> Ping {
        self.size = bytes;
        self
    }

    /// Milliseconds between requests.
    #[must_use]
    pub fn interval_ms(mut self, interval_ms: u32) -> Ping {
        self.interval_ms = interval_ms;
        self
    }

    /// Sets DF (IPv6: never fragments at the source either) and learns the path MTU.
    #[must_use]
    pub fn dont_fragment(mut self) -> Ping {
        self.dont_fragment = true;
        self
    }

    /// TTL or hop limit of the requests.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Ping {
        self.ttl = Some(ttl);
        self
    }

    /// Runs it in `host`. Lost replies are no error but show in the report.
    ///
    /// # Errors
    /// Those of [`Host::run`], and [`LabError::Output`] when ping did not get to its summary.
    pub fn run(&self, host: &Host) -> Result<PingReport, LabError> {
        let mut words = vec!["ping".to_string(), "-n".to_string()];
        let mut option = |name: &str, value: String| words.extend([name.to_string(), value]);
        option("-c", self.count.to_string());
        option("-s", self.size.to_string());
        option("-i", format!("{}.{:03}", self.interval_ms / 1000, self.interval_ms % 1000));
        option("-W", self.wait_s.to_string());
        option("-M", if self.dont_fragment { "do" } else { "dont" }.to_string());
        if let Some(ttl) = self.ttl {
            option("-t", ttl.to_string());
        }
        words.push(self.to.to_string());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let sending = Duration::from_millis(u64::from(self.count) * u64::from(self.interval_ms));
        let done = host.run(&words, sending + Duration::from_secs(20))?;
        PingReport::parse(&format!("{}{}", done.stdout, done.stderr))
    }
}

/// What a ping saw.
#[derive(Debug, Clone, PartialEq)]
pub struct PingReport {
    /// Requests sent.
    pub transmitted: u32,
    /// Replies, each request counted once.
    pub received: u32,
    /// Replies to requests that had been answered already.
    pub duplicates: u32,
    /// TTL or hop limit of the last reply.
    pub reply_ttl: Option<u8>,
    /// Least, average and greatest round trip, milliseconds.
    pub round_trip_ms: Option<[f64; 3]>,
    /// The round trip of each reply, milliseconds.
    pub times_ms: Vec<f64>,
    /// ICMP errors that came instead of replies.
    pub errors: Vec<PingError>,
    /// The path MTU that the own kernel knew of and refused to exceed.
    pub local_mtu: Option<u32>,
}

/// An ICMP error in answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PingError {
    /// Who sent it.
    pub from: IpAddr,
    /// What it says.
    pub kind: PingErrorKind,
}

/// What an ICMP error says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PingErrorKind {
    /// TTL or hop limit exceeded in transit.
    TimeExceeded,
    /// Too big for the next link, which has this MTU (bytes).
    TooBig(u32),
    /// Anything else, in ping's words, such as `Destination Host Unreachable`.
    Other(String),
}

impl PingReport {
    /// Every request was answered exactly once and nothing else came.
    pub fn is_clean(&self) -> bool {
        self.transmitted > 0 && self.received == self.transmitted && self.duplicates == 0 && self.errors.is_empty()
    }

    /// The median round trip, milliseconds (of an even number of replies the upper one).
    pub fn median_ms(&self) -> Option<f64> {
        let mut times = self.times_ms.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    }

    /// Reads what ping printed.
    ///
    /// # Errors
    /// [`LabError::Output`] without a summary line.
    pub fn parse(text: &str) -> Result<PingReport, LabError> {
        let mut report = PingReport {
            transmitted: 0,
            received: 0,
            duplicates: 0,
            reply_ttl: None,
            round_trip_ms: None,
            times_ms: Vec::new(),
            errors: Vec::new(),
            local_mtu: None,
        };
        let mut summary = false;
        for line in text.lines() {
            if line.contains(" bytes from ") {
                report.reply_ttl = number_after(line, "ttl=").or(report.reply_ttl);
                let time: Option<f64> =
                    line.split_once("time=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
                report.times_ms.extend(time);
            } else if let Some(rest) = line.strip_prefix("From ") {
                report.errors.extend(parse_error(rest));
            } else if line.contains("message too long") {
                report.local_mtu = number_after(line, "mtu=").or_else(|| number_after(line, "mtu: "));
            } else if line.contains(" packets transmitted") {
                summary = true;
                for part in line.split(", ") {
                    let number = part.trim_start_matches('+').split(' ').next().and_then(|word| word.parse().ok());
                    match (number, part) {
                        (Some(n), part) if part.contains("transmitted") => report.transmitted = n,
                        (Some(n), part) if part.contains("received") => report.received = n,
                        (Some(n), part) if part.contains("duplicates") => report.duplicates = n,
                        _ => {}
                    }
                }
            } else if let Some((_, times)) = line.split_once("min/avg/max/mdev = ") {
                let times: Vec<f64> = times.split(['/', ' ']).filter_map(|time| time.parse().ok()).collect();
                report.round_trip_ms = times.get(..3).and_then(|three| three.try_into().ok());
            }
        }
        if summary { Ok(report) } else { Err(LabError::output("ping", "no summary line", text)) }
    }
}

/// The part of a line after `From `: address, sequence number, and what the error is.
fn parse_error(rest: &str) -> Option<PingError> {
    let (address, rest) = rest.split_once(' ')?;
    let from = address.trim_end_matches(':').parse().ok()?;
    let text = rest.split_once("icmp_seq=").and_then(|(_, rest)| rest.split_once(' ')).map_or(rest, |(_, text)| text);
    let lower = text.to_lowercase();
    let kind = if lower.starts_with("time to live exceeded") || lower.starts_with("time exceeded: hop limit") {
        PingErrorKind::TimeExceeded
    } else if lower.starts_with("frag needed") || lower.starts_with("packet too big") {
        PingErrorKind::TooBig(number_after(&lower, "mtu=").or_else(|| number_after(&lower, "mtu = "))?)
    } else {
        PingErrorKind::Other(text.trim().to_string())
    };
    Some(PingError { from, kind })
}

fn number_after<T: std::str::FromStr>(text: &str, mark: &str) -> Option<T> {
    let rest = &text[text.find(mark)? + mark.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_and_the_summary_are_read() {
        let text = "PING 198.19.10.2 (198.19.10.2) 56(84) bytes of data.\n\
            64 bytes from 198.19.10.2: icmp_seq=1 ttl=63 time=0.393 ms\n\
            64 bytes from 198.19.10.2: icmp_seq=1 ttl=63 time=0.4 ms (DUP!)\n\n\
            --- 198.19.10.2 ping statistics ---\n\
            2 packets transmitted, 1 received, +1 duplicates, +3 errors, 50% packet loss, time 31ms\n\
            rtt min/avg/max/mdev = 0.059/0.171/0.393/0.156 ms\n";
        let report = PingReport::parse(text).unwrap();
        assert_eq!((report.transmitted, report.received, report.duplicates), (2, 1, 1));
        assert_eq!(report.reply_ttl, Some(63));
        assert_eq!(report.round_trip_ms, Some([0.059, 0.171, 0.393]));
        assert_eq!((report.times_ms.as_slice(), report.median_ms()), (&[0.393, 0.4][..], Some(0.4)));
        assert!(!report.is_clean());
    }

    #[test]
    fn errors_of_both_families_are_told_apart() {
        let text = "From 198.18.10.1 icmp_seq=1 Time to live exceeded\n\
            From 2001:2:0:a::1 icmp_seq=1 Time exceeded: Hop limit\n\
            From 198.18.10.1 icmp_seq=2 Frag needed and DF set (mtu = 1400)\n\
            From 2001:2:0:a::1 icmp_seq=2 Packet too big: mtu=1280\n\
            From 198.18.10.1 icmp_seq=3 Destination Host Unreachable\n\
            ping: local error: message too long, mtu=1300\n\
            3 packets transmitted, 0 received, +5 errors, 100% packet loss, time 1ms\n";
        let report = PingReport::parse(text).unwrap();
        let kinds: Vec<PingErrorKind> = report.errors.iter().map(|error| error.kind.clone()).collect();
        let unreachable = PingErrorKind::Other("Destination Host Unreachable".to_string());
        assert_eq!(kinds[..2], [PingErrorKind::TimeExceeded, PingErrorKind::TimeExceeded]);
        assert_eq!(kinds[2..], [PingErrorKind::TooBig(1400), PingErrorKind::TooBig(1280), unreachable]);
        assert_eq!(report.errors[1].from.to_string(), "2001:2:0:a::1");
        assert_eq!(report.local_mtu, Some(1300));
    }

    #[test]
    fn a_ping_without_summary_is_an_error() {
        assert!(PingReport::parse("ping: connect: Network is unreachable\n").is_err());
    }
}
