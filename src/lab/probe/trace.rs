//! The routers on the way: `traceroute`, or ping with growing TTL where that is not installed.
#![forbid(unsafe_code)]

use super::ping::{Ping, PingErrorKind};
use crate::lab::{Host, LabError};
use std::net::IpAddr;
use std::time::Duration;

/// More hops than any lab has.
const MOST_HOPS: u8 = 6;

/// The hops from `host` to `to` over UDP with traceroute(1); `None` is a hop that did not answer.
///
/// # Errors
/// Those of [`Host::run`]; [`LabError::Command`] when traceroute fails.
pub fn traceroute(host: &Host, to: IpAddr) -> Result<Vec<Option<IpAddr>>, LabError> {
    let (family, to) = (if to.is_ipv4() { "-4" } else { "-6" }, to.to_string());
    let most = MOST_HOPS.to_string();
    let words = ["traceroute", family, "-n", "-q", "1", "-w", "2", "-m", &most, &to];
    let done = host.run(&words, Duration::from_secs(40))?.success()?;
    parse(&done.stdout)
}

/// The same by ICMP echo requests whose TTL grows from 1, the target last.
///
/// # Errors
/// Those of [`Ping::run`].
pub fn by_ping(host: &Host, to: IpAddr) -> Result<Vec<Option<IpAddr>>, LabError> {
    let mut hops = Vec::new();
    for ttl in 1..=MOST_HOPS {
        let report = Ping::new(to).count(1).ttl(ttl).run(host)?;
        if report.received > 0 {
            hops.push(Some(to));
            break;
        }
        let exceeded = report.errors.iter().find(|error| error.kind == PingErrorKind::TimeExceeded);
        hops.push(exceeded.map(|error| error.from));
    }
    Ok(hops)
}

fn parse(text: &str) -> Result<Vec<Option<IpAddr>>, LabError> {
    let mut hops = Vec::new();
    for line in text.lines().skip(1) {
        let mut words = line.split_ascii_whitespace();
        let (Some(_), Some(hop)) = (words.next(), words.next()) else { continue };
        let address = if hop == "*" { Ok(None) } else { hop.parse().map(Some) };
        hops.push(address.map_err(|e| LabError::output("traceroute", e, text))?);
    }
    Ok(hops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_and_silent_hops_are_read() {
        let text = "traceroute to 198.19.10.2 (198.19.10.2), 6 hops max, 60 byte packets\n 1  198.18.10.1  0.05 ms\n \
            2  *\n 3  198.19.10.2  0.1 ms !N\n";
        let hops = parse(text).unwrap();
        assert_eq!(hops, [Some("198.18.10.1".parse().unwrap()), None, Some("198.19.10.2".parse().unwrap())]);
        assert!(parse("header\n 1  nonsense 3 ms\n").is_err());
    }
}
