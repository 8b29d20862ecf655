//! `iperf3` between two hosts: TCP or UDP, either direction, one or several streams.
#![forbid(unsafe_code)]

use crate::lab::{Host, LabError};
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

/// iperf3's own port; each host is a namespace, so it is free.
const PORT: u16 = 5201;

/// Which way the data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client (`-R`).
    Down,
}

/// A transfer to be measured.
#[derive(Debug, Clone)]
pub struct Iperf {
    to: IpAddr,
    seconds: u32,
    bytes: Option<u64>,
    streams: u32,
    direction: Direction,
    udp: Option<(String, u32)>,
}

/// What iperf3 measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IperfReport {
    /// Bytes that the receiver got.
    pub bytes: u64,
    /// What the receiver got, bits per second.
    pub bits_per_second: f64,
    /// TCP segments sent again.
    pub retransmits: u64,
    /// UDP datagrams sent.
    pub datagrams: u64,
    /// UDP datagrams that did not arrive.
    pub lost: u64,
    /// Streams that ran.
    pub streams: usize,
}

impl Iperf {
    /// One TCP stream to `to` for a second.
    pub fn tcp(to: impl Into<IpAddr>) -> Iperf {
        Iperf { to: to.into(), seconds: 1, bytes: None, streams: 1, direction: Direction::Up, udp: None }
    }

    /// One UDP stream of `rate` (as iperf3 writes it, `50M`: bits per second per stream) in datagrams of `length` bytes.
    pub fn udp(to: impl Into<IpAddr>, rate: &str, length: u32) -> Iperf {
        Iperf { udp: Some((rate.to_string(), length)), ..Iperf::tcp(to) }
    }

    /// How long.
    #[must_use]
    pub fn seconds(mut self, seconds: u32) -> Iperf {
        self.seconds = seconds;
        self
    }

    /// How many bytes are sent, all streams together, in place of a time; for at most 21 s. What the receiver has not read
    /// when the sender ends is not in the report.
    #[must_use]
    pub fn bytes(mut self, bytes: u64) -> Iperf {
        self.bytes = Some(bytes);
        self
    }

    /// How many streams at once.
    #[must_use]
    pub fn streams(mut self, streams: u32) -> Iperf {
        self.streams = streams;
        self
    }

    /// Which way.
    #[must_use]
    pub fn direction(mut self, direction: Direction) -> Iperf {
        self.direction = direction;
        self
    }

    /// Starts a server in `server`, runs the client in `client`, and ends both.
    ///
    /// # Errors
    /// Those of [`Host::run`]; [`LabError::Command`] with iperf3's own message when it could not transfer.
    pub fn run(&self, client: &Host, server: &Host) -> Result<IperfReport, LabError> {
        let port = PORT.to_string();
        let mut listener = server.spawn(&["iperf3", "-s", "-1", "-p", &port])?;
        server.wait_listening(PORT, &mut listener, Duration::from_secs(10))?;
        let (to, streams) = (self.to.to_string(), self.streams.to_string());
        let (unit, amount) = match self.bytes {
            Some(bytes) => ("-n", bytes.to_string()),
            None => ("-t", self.seconds.to_string()),
        };
        let mut words = vec!["iperf3", "-J", "-c", &to, "-p", &port, unit, &amount, "-P", &streams];
        let length;
        if let Some((rate, bytes)) = &self.udp {
            length = bytes.to_string();
            words.extend(["-u", "-b", rate, "-l", &length]);
        }
        if self.direction == Direction::Down {
            words.push("-R");
        }
        let limit = Duration::from_secs(u64::from(self.seconds) + 20);
        let done = client.run(&words, limit)?;
        parse(&done.stdout, self.udp.is_some())
    }
}

fn parse(text: &str, udp: bool) -> Result<IperfReport, LabError> {
    let unread = |reason: &str| LabError::output("iperf3", reason, text);
    let value: Value = serde_json::from_str(text).map_err(|e| unread(&e.to_string()))?;
    if let Some(error) = value["error"].as_str() {
        return Err(LabError::Command {
            what: "iperf3".to_string(),
            status: "error".to_string(),
            output: error.to_string(),
        });
    }
    let end = &value["end"];
    let integer = |value: &Value| value.as_u64().unwrap_or_default();
    let streams = end["streams"].as_array().map_or(0, Vec::len);
    if udp {
        // `sum` counts the datagrams sent; what is missing of them at the receiver is `lost_packets`.
        let sum = &end["sum"];
        let (datagrams, lost) = (integer(&sum["packets"]), integer(&sum["lost_packets"]));
        let bytes = sum["bytes"].as_u64().ok_or_else(|| unread("no end.sum.bytes"))?;
        let share = if datagrams == 0 { 0.0 } else { 1.0 - lost as f64 / datagrams as f64 };
        let bits_per_second = sum["bits_per_second"].as_f64().unwrap_or_default() * share;
        let bytes = (bytes as f64 * share) as u64;
        return Ok(IperfReport { bytes, bits_per_second, retransmits: 0, datagrams, lost, streams });
    }
    let received = &end["sum_received"];
    Ok(IperfReport {
        bytes: received["bytes"].as_u64().ok_or_else(|| unread("no end.sum_received.bytes"))?,
        bits_per_second: received["bits_per_second"].as_f64().unwrap_or_default(),
        retransmits: integer(&end["sum_sent"]["retransmits"]),
        datagrams: 0,
        lost: 0,
        streams,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_udp_and_failure_are_read() {
        let tcp = r#"{"end":{"streams":[{},{}],"sum_sent":{"retransmits":3},
            "sum_received":{"bytes":1000,"bits_per_second":8000.5}}}"#;
        let report = parse(tcp, false).unwrap();
        assert_eq!((report.bytes, report.bits_per_second, report.retransmits, report.streams), (1000, 8000.5, 3, 2));
        let udp =
            r#"{"end":{"streams":[{}],"sum":{"bytes":1000,"bits_per_second":80.0,"packets":10,"lost_packets":5}}}"#;
        let report = parse(udp, true).unwrap();
        assert_eq!((report.bytes, report.bits_per_second, report.datagrams, report.lost), (500, 40.0, 10, 5));
        let error = parse(r#"{"error":"unable to connect to server"}"#, false).unwrap_err();
        assert!(error.to_string().contains("unable to connect"), "{error}");
        assert!(parse("", false).is_err());
    }
}
