//! What the hosts' own kernels counted: per device, and per protocol.
#![forbid(unsafe_code)]

use crate::lab::{Host, LabError};
use std::collections::BTreeMap;

/// Counters of a device (ip-link(8), `-s`), packets unless named otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Received.
    pub rx_packets: u64,
    /// Received, bytes.
    pub rx_bytes: u64,
    /// Received and dropped by the device.
    pub rx_dropped: u64,
    /// Received with an error.
    pub rx_errors: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Sent, bytes.
    pub tx_bytes: u64,
    /// Not sent: on veth, the peer's ring was full.
    pub tx_dropped: u64,
    /// Not sent because of an error.
    pub tx_errors: u64,
}

/// Reads the counters of one device of `host`.
///
/// # Errors
/// [`LabError::Command`] when there is no such device, [`LabError::Output`].
pub fn device(host: &Host, device: &str) -> Result<DeviceCounters, LabError> {
    let links = host.ip_json(&["-s", "link", "show", "dev", device])?;
    let stats = &links[0]["stats64"];
    let count = |direction: &str, name: &str| {
        let value = stats[direction][name].as_u64();
        value.ok_or_else(|| LabError::output("ip -s link", format!("no {direction} {name}"), &links.to_string()))
    };
    Ok(DeviceCounters {
        rx_packets: count("rx", "packets")?,
        rx_bytes: count("rx", "bytes")?,
        rx_dropped: count("rx", "dropped")?,
        rx_errors: count("rx", "errors")?,
        tx_packets: count("tx", "packets")?,
        tx_bytes: count("tx", "bytes")?,
        tx_dropped: count("tx", "dropped")?,
        tx_errors: count("tx", "errors")?,
    })
}

/// The protocol counters of `host` since its start, under the names of nstat(8): `IpForwDatagrams`, `Ip6InReceives`,
/// `TcpRetransSegs`, `TcpExtTCPTimeouts`, `UdpInErrors`. Read from the files that nstat reads.
///
/// # Errors
/// [`LabError::Io`].
pub fn protocols(host: &Host) -> Result<BTreeMap<String, u64>, LabError> {
    let files = host.enter(|| {
        ["snmp", "netstat", "snmp6"].map(|name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")))
    })?;
    let mut counters = BTreeMap::new();
    for text in files {
        match text {
            Ok(text) => parse(&text, &mut counters),
            // snmp6 is absent with IPv6 off.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(LabError::io(format!("reading the counters of {}", host.name()), error)),
        }
    }
    Ok(counters)
}

/// snmp and netstat: a line of names, then one of values, both begun by the protocol. snmp6: a name and a value a line.
fn parse(text: &str, counters: &mut BTreeMap<String, u64>) {
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some((protocol, names)) = line.split_once(':') {
            let values = lines.next().and_then(|line| line.split_once(':')).map_or("", |(_, values)| values);
            for (name, value) in names.split_ascii_whitespace().zip(values.split_ascii_whitespace()) {
                // A few settings among the counters can be negative (TcpMaxConn -1): they are not counters.
                if let Ok(value) = value.parse() {
                    counters.insert(format!("{protocol}{name}"), value);
                }
            }
        } else if let Some((name, value)) = line.split_once(char::is_whitespace)
            && let Ok(value) = value.trim().parse()
        {
            counters.insert(name.to_string(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let mut counters = BTreeMap::new();
        parse("Ip: Forwarding ForwDatagrams\nIp: 1 42\nTcp: MaxConn ActiveOpens\nTcp: -1 7\n", &mut counters);
        parse("Ip6InReceives                   \t10\n", &mut counters);
        let expected = [("Ip6InReceives", 10), ("IpForwDatagrams", 42), ("IpForwarding", 1), ("TcpActiveOpens", 7)];
        assert_eq!(counters, expected.map(|(name, value)| (name.to_string(), value)).into());
    }
}
