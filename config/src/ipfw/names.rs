#![forbid(unsafe_code)]
//! Names of services and protocols.
//!
//! What a rule file means must not depend on the box it is read on, so there is a table of our own ([`builtin`]). A program may consult
//! /etc/services and /etc/protocols as well: [`NameTable::parse`] reads their format.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Where names of services and protocols are looked up.
pub trait Names {
    /// The port of a service. `protocol` narrows it down ("tcp", "divert"); a service that is known for other protocols only has the port
    /// it has there.
    fn service(&self, name: &str, protocol: Option<&str>) -> Option<u16>;
    /// The name of a port.
    fn service_name(&self, port: u16, protocol: &str) -> Option<&str>;
    /// The number of an IP protocol.
    fn protocol(&self, name: &str) -> Option<u8>;
    /// The name of an IP protocol.
    fn protocol_name(&self, number: u8) -> Option<&str>;
    /// Every protocol name, for "did you mean".
    fn protocols(&self) -> Vec<&str>;
    /// Every service name, for "did you mean".
    fn services(&self) -> Vec<&str>;
}

/// Names read from texts in the format of /etc/services and /etc/protocols.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    /// Name to (protocol, port), in the order of the text.
    services: HashMap<String, Vec<(String, u16)>>,
    /// (port, protocol) to the first name.
    ports: HashMap<(u16, String), String>,
    protocols: HashMap<String, u8>,
    numbers: HashMap<u8, String>,
}

impl NameTable {
    /// Reads both texts. Lines that are not of the format are passed over, as getservbyname(3) does; of two lines for one name the first counts.
    pub fn parse(services: &str, protocols: &str) -> Self {
        let mut table = Self::default();
        for (name, value, aliases) in lines(services) {
            let Some((port, protocol)) = value.split_once('/') else { continue };
            let Ok(port) = port.parse::<u16>() else { continue };
            table.ports.entry((port, protocol.to_owned())).or_insert_with(|| name.to_owned());
            for name in std::iter::once(name).chain(aliases) {
                table.services.entry(name.to_owned()).or_default().push((protocol.to_owned(), port));
            }
        }
        for (name, value, aliases) in lines(protocols) {
            let Ok(number) = value.parse::<u8>() else { continue };
            table.numbers.entry(number).or_insert_with(|| name.to_owned());
            for name in std::iter::once(name).chain(aliases) {
                table.protocols.entry(name.to_owned()).or_insert(number);
            }
        }
        table
    }
}

/// Name, value and aliases of each line.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str, impl Iterator<Item = &str>)> {
    text.lines().filter_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        Some((words.next()?, words.next()?, words))
    })
}

impl Names for NameTable {
    fn service(&self, name: &str, protocol: Option<&str>) -> Option<u16> {
        let known = self.services.get(name)?;
        let exact = known.iter().find(|(of, _)| protocol == Some(of.as_str()));
        exact.or_else(|| known.first()).map(|&(_, port)| port)
    }

    fn service_name(&self, port: u16, protocol: &str) -> Option<&str> {
        self.ports.get(&(port, protocol.to_owned())).map(String::as_str)
    }

    fn protocol(&self, name: &str) -> Option<u8> {
        self.protocols.get(name).copied()
    }

    fn protocol_name(&self, number: u8) -> Option<&str> {
        self.numbers.get(&number).map(String::as_str)
    }

    fn protocols(&self) -> Vec<&str> {
        self.protocols.keys().map(String::as_str).collect()
    }

    fn services(&self) -> Vec<&str> {
        self.services.keys().map(String::as_str).collect()
    }
}

/// The table that is the same everywhere.
pub fn builtin() -> &'static NameTable {
    static TABLE: LazyLock<NameTable> =
        LazyLock::new(|| NameTable::parse(include_str!("services.txt"), include_str!("protocols.txt")));
    &TABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_names_are_there() {
        let names = builtin();
        for (name, protocol, port) in [
            ("ssh", Some("tcp"), 22),
            ("domain", Some("udp"), 53),
            ("ntp", Some("udp"), 123),
            ("ircd", None, 6667),
            ("natd", Some("divert"), 8668),
            ("www", Some("tcp"), 80),
            ("imap4", Some("tcp"), 143),
            ("ftp-data", Some("tcp"), 20),
            ("personal-agent", None, 5555),
            ("whois", Some("sctp"), 43),
        ] {
            assert_eq!(names.service(name, protocol), Some(port), "{name}");
        }
        assert_eq!(names.service("nonsense", None), None);
        assert_eq!(names.service_name(22, "tcp"), Some("ssh"));
        assert_eq!(names.service_name(8668, "tcp"), None);
        assert_eq!((names.protocol("ipv6-icmp"), names.protocol("icmp6")), (Some(58), Some(58)));
        assert_eq!((names.protocol_name(58), names.protocol_name(4)), (Some("ipv6-icmp"), Some("ipencap")));
        assert_eq!(names.protocol_name(253), None);
    }

    #[test]
    fn the_first_line_counts_and_noise_is_passed_over() {
        let table = NameTable::parse("a 1/tcp b # c\nd 1/tcp\nnoise\n e x/tcp\n", "p 300\np 3 q\n");
        assert_eq!(table.service_name(1, "tcp"), Some("a"));
        assert_eq!((table.service("b", None), table.service("c", None)), (Some(1), None));
        assert_eq!((table.protocol("q"), table.protocol_name(3)), (Some(3), Some("p")));
    }
}
