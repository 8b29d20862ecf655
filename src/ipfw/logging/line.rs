//! A record as a line: FreeBSD's words (sys/netpfil/ipfw/ip_fw_log.c), or JSON.

#![forbid(unsafe_code)]

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{Action, Argument, ForwardTo, Rule};
use ferrule_dataplane::stage::Hook;
use ferrule_filters::ipfw::log::LogRecord;
use serde::Serialize;

/// What the log says of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// When, in microseconds since 1970.
    pub time_us: u64,
    /// Number of the rule.
    pub rule: u16,
    /// What it does.
    pub action: String,
    /// IP protocol; None where the packet is not IP.
    pub protocol: Option<u8>,
    /// Source address.
    pub source: String,
    /// Destination address.
    pub destination: String,
    /// Source and destination port.
    pub ports: Option<(u16, u16)>,
    /// ICMP type and code.
    pub icmp: Option<(u8, u8)>,
    /// `in` or `out`.
    pub direction: &'static str,
    /// Where it came in or goes out.
    pub interface: String,
    /// Of a fragment: its id, length, offset, and whether more follow.
    pub fragment: Option<(u32, u32, u32, bool)>,
    /// Bytes of the frame.
    pub length: u32,
}

impl Entry {
    /// What a record says. `name` gives the names of ports.
    pub fn new(record: &LogRecord, action: &str, time_us: u64, name: impl Fn(usize) -> Option<String>) -> Entry {
        let port = if record.hook == Hook::In { record.received } else { record.sent };
        let mut entry = Entry {
            time_us,
            rule: record.rule,
            action: action.to_owned(),
            direction: if record.hook == Hook::In { "in" } else { "out" },
            interface: name(usize::from(port.0)).unwrap_or_else(|| "?".to_owned()),
            length: record.length,
            ..Entry::default()
        };
        entry.read(record.bytes.get(..usize::from(record.captured)).unwrap_or_default());
        entry
    }

    fn read(&mut self, frame: &[u8]) {
        let mut at = 12;
        // Tags of VLANs come before the type.
        while matches!(word(frame, at), Some(0x8100 | 0x88a8)) {
            at += 4;
        }
        let packet = frame.get(at + 2..).unwrap_or_default();
        match word(frame, at) {
            Some(0x0800) => self.read_v4(packet),
            Some(0x86dd) => self.read_v6(packet),
            _ => {}
        }
    }

    fn read_v4(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<20>() else { return };
        let length = usize::from(header[0] & 15) * 4;
        let [a, b, c, d, e, f, g, h] = *header.last_chunk::<8>().unwrap_or(&[0; 8]);
        (self.source, self.destination) =
            (Ipv4Addr::new(a, b, c, d).to_string(), Ipv4Addr::new(e, f, g, h).to_string());
        self.protocol = Some(header[9]);
        let place = u16::from_be_bytes([header[6], header[7]]);
        let (offset, more) = (u32::from(place & 0x1fff) * 8, place & 0x2000 != 0);
        if offset != 0 || more {
            let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
            let id = u32::from(u16::from_be_bytes([header[4], header[5]]));
            self.fragment = Some((id, total.saturating_sub(length as u32), offset, more));
        }
        if offset == 0 {
            self.read_transport(header[9], packet.get(length..).unwrap_or_default());
        }
    }

    fn read_v6(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<40>() else { return };
        let address = |at: usize| {
            let bytes: [u8; 16] = header[at..at + 16].try_into().unwrap_or([0; 16]);
            format!("[{}]", Ipv6Addr::from(bytes))
        };
        (self.source, self.destination) = (address(8), address(24));
        let payload = u32::from(u16::from_be_bytes([header[4], header[5]]));
        let (mut next, mut at, mut later) = (header[6], 40, false);
        // Hop-by-hop, routing, fragment, authentication, destination options (RFC 8200).
        while let (0 | 43 | 44 | 51 | 60, Some(extension)) = (next, packet.get(at..at + 8)) {
            let length = match next {
                44 => 8,
                51 => (usize::from(extension[1]) + 2) * 4,
                _ => (usize::from(extension[1]) + 1) * 8,
            };
            if next == 44 {
                let place = u16::from_be_bytes([extension[2], extension[3]]);
                let id = u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]);
                let behind = payload.saturating_sub((at + length - 40) as u32);
                later = place >> 3 != 0;
                self.fragment = Some((id, behind, u32::from(place & 0xfff8), place & 1 != 0));
            }
            next = extension[0];
            at += length;
            if later {
                break;
            }
        }
        self.protocol = Some(next);
        if !later {
            self.read_transport(next, packet.get(at..).unwrap_or_default());
        }
    }

    fn read_transport(&mut self, protocol: u8, bytes: &[u8]) {
        match protocol {
            6 | 17 | 136 => self.ports = word(bytes, 0).zip(word(bytes, 2)),
            1 | 58 => self.icmp = bytes.first().copied().zip(bytes.get(1).copied()),
            _ => {}
        }
    }

    /// As FreeBSD's kernel writes it to the system log.
    pub fn text(&self) -> String {
        let mut out = format!("ipfw: {} {} ", self.rule, self.action);
        let (source, destination) = (&self.source, &self.destination);
        let icmp = |name: &str| match self.icmp {
            Some((kind, code)) => format!("{name}:{kind}.{code} {source} {destination}"),
            None => format!("{name} {source} {destination}"),
        };
        let with_ports = |name: &str| match self.ports {
            Some((from, to)) => format!("{name} {source}:{from} {destination}:{to}"),
            None => format!("{name} {source} {destination}"),
        };
        out.push_str(&match self.protocol {
            None => "MAC".to_owned(),
            Some(1) => icmp("ICMP"),
            Some(58) => icmp("ICMPv6"),
            Some(6) => with_ports("TCP"),
            Some(17) => with_ports("UDP"),
            Some(136) => with_ports("UDPLite"),
            Some(other) => format!("P:{other} {source} {destination}"),
        });
        let _ = write!(out, " {} via {}", self.direction, self.interface);
        if let Some((id, length, offset, more)) = self.fragment {
            let more = if more { "+" } else { "" };
            let _ = match source.starts_with('[') {
                true => write!(out, " (frag {id:08x}:{length}@{offset}{more})"),
                false => write!(out, " (frag {id}:{length}@{offset}{more})"),
            };
        }
        out
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// What a rule does, in the words of the log.
pub fn action(rule: &Rule) -> String {
    let numbered = |name: &str, argument: &Argument| match argument {
        Argument::Number(number) => format!("{name} {number}"),
        Argument::Table => format!("{name} tablearg"),
    };
    match &rule.action {
        Action::Allow => "Accept".to_owned(),
        Action::Deny => "Deny".to_owned(),
        Action::Unreach(1, _) => "Reject".to_owned(),
        Action::Unreach(code, _) | Action::Unreach6(code) => format!("Unreach {code}"),
        Action::Reset | Action::Reset6 => "Reset".to_owned(),
        Action::Abort | Action::Abort6 => "Abort".to_owned(),
        Action::Count => "Count".to_owned(),
        Action::SkipTo(to) => numbered("SkipTo", to),
        Action::Call(to) => numbered("Call", to),
        Action::Return(_) => "Return".to_owned(),
        Action::Forward(ForwardTo::V4(address, 0)) => format!("Forward to {address}"),
        Action::Forward(ForwardTo::V4(address, port)) => format!("Forward to {address}:{port}"),
        Action::Forward(ForwardTo::V6(address, _, 0)) => format!("Forward to [{address}]"),
        Action::Forward(ForwardTo::V6(address, _, port)) => format!("Forward to [{address}]:{port}"),
        Action::Forward(ForwardTo::Table(_)) => "Forward to tablearg".to_owned(),
        Action::Nat(_) => "Nat".to_owned(),
        Action::Pipe(number) => numbered("Pipe", number),
        Action::Queue(number) => numbered("Queue", number),
        Action::SetFib(number) => numbered("SetFib", number),
        Action::SetDscp(number) => numbered("SetDscp", number),
        Action::SetMark(Argument::Number(mark), _) => format!("SetMark {mark:#x}"),
        Action::SetMark(Argument::Table, _) => "SetMark tablearg".to_owned(),
        Action::Reassemble => "Reass".to_owned(),
        Action::Netgraph(number) => numbered("Netgraph", number),
        Action::NgTee(number) => numbered("Ngtee", number),
        Action::Divert(number) => numbered("Divert", number),
        Action::Tee(number) => numbered("Tee", number),
        Action::TcpSetMss(_) | Action::CheckState(_) => "UNKNOWN".to_owned(),
        Action::External(name, _) => format!("Eaction {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_dataplane::packet::PortId;
    use ferrule_filters::ipfw::log::SNAP;

    fn entry(hook: Hook, ether: u16, packet: &[u8]) -> Entry {
        let mut bytes = [0; SNAP];
        bytes[12..14].copy_from_slice(&ether.to_be_bytes());
        bytes[14..14 + packet.len()].copy_from_slice(packet);
        let captured = (14 + packet.len()) as u8;
        let (received, sent, length) = (PortId(0), PortId(1), 200);
        let record = LogRecord { at: 0, rule: 100, slot: 2, hook, received, sent, length, captured, bytes };
        Entry::new(&record, "Deny", 0, |port| ["em0", "em1"].get(port).map(|name| (*name).to_owned()))
    }

    fn v4(protocol: u8, place: u16, rest: &[u8]) -> Vec<u8> {
        let mut p = vec![0x45, 0, 0, 60, 0, 9, (place >> 8) as u8, place as u8, 64, protocol, 0, 0];
        p.extend([192, 0, 2, 7, 198, 51, 100, 1]);
        p.extend(rest);
        p
    }

    fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut p = vec![0x60, 0, 0, 0, 0, 40, next, 64];
        p.extend("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        p.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        p.extend(rest);
        p
    }

    #[test]
    fn lines_are_those_of_freebsd() {
        let ports = [15, 160, 0, 25, 0, 0, 0, 0];
        let said = |hook, ether, packet: &[u8]| entry(hook, ether, packet).text();
        assert_eq!(
            said(Hook::In, 0x800, &v4(6, 0, &ports)),
            "ipfw: 100 Deny TCP 192.0.2.7:4000 198.51.100.1:25 in via em0"
        );
        assert_eq!(
            said(Hook::Out, 0x800, &v4(1, 0, &[8, 0, 0, 0])),
            "ipfw: 100 Deny ICMP:8.0 192.0.2.7 198.51.100.1 out via em1"
        );
        assert_eq!(
            said(Hook::In, 0x800, &v4(17, 0x2000 | 3, &ports)),
            "ipfw: 100 Deny UDP 192.0.2.7 198.51.100.1 in via em0 (frag 9:40@24+)"
        );
        assert_eq!(said(Hook::In, 0x800, &v4(89, 0, &[])), "ipfw: 100 Deny P:89 192.0.2.7 198.51.100.1 in via em0");
        assert_eq!(
            said(Hook::In, 0x86dd, &v6(17, &ports)),
            "ipfw: 100 Deny UDP [2001:db8::7]:4000 [2001:db8::1]:25 in via em0"
        );
        let mut fragment = vec![58, 0, 0, 1, 0, 0, 0, 0xab];
        fragment.extend([128, 0]);
        assert_eq!(
            said(Hook::In, 0x86dd, &v6(44, &fragment)),
            "ipfw: 100 Deny ICMPv6:128.0 [2001:db8::7] [2001:db8::1] in via em0 (frag 000000ab:32@0+)"
        );
        assert_eq!(said(Hook::In, 0x806, &[0; 28]), "ipfw: 100 Deny MAC in via em0");
    }

    #[test]
    fn cut_short_packets_are_told_as_far_as_they_go() {
        for length in 0..80 {
            let packet: Vec<u8> = v6(0, &[43; 30]).into_iter().take(length).collect();
            assert!(entry(Hook::In, 0x86dd, &packet).text().starts_with("ipfw: 100 Deny "));
            assert!(entry(Hook::In, 0x800, &packet).text().starts_with("ipfw: 100 Deny "));
        }
    }
}
