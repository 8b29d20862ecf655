//! Address and port ranges as pkt-gen(8) writes them: `10.0.0.1`, `10.0.0.1:2000`, `10.0.0.1:2000-10.0.0.9:2999`,
//! `[2001:db8::1]:7-[2001:db8::ff]:9`.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv6Addr};

/// Port where none is given.
pub const DEFAULT_PORT: u16 = 1234;

/// A range of addresses of one family, and of ports; both ends belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// IPv6.
    pub v6: bool,
    /// First address.
    pub first: u128,
    /// Last address.
    pub last: u128,
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
}

impl Range {
    /// Reads a range of the wanted family.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, v6: bool) -> Result<Range, String> {
        let (low, high) = match text.split_once('-') {
            Some((low, high)) => (low, Some(high)),
            None => (text, None),
        };
        let (first, first_port) = end(low, v6)?;
        let (last, last_port) = match high {
            Some(high) => end(high, v6)?,
            None => (first, first_port),
        };
        let (first_port, last_port) = match (first_port, last_port) {
            (None, None) => (DEFAULT_PORT, DEFAULT_PORT),
            (Some(a), None) => (a, a),
            (Some(a), Some(b)) => (a.min(b), a.max(b)),
            (None, Some(b)) => return Err(format!("`{text}` has a port at its end only: write {low}:{b}-...:{b}")),
        };
        Ok(Range { v6, first: first.min(last), last: first.max(last), first_port, last_port })
    }

    /// Ports in it.
    pub fn ports(&self) -> u128 {
        u128::from(self.last_port) - u128::from(self.first_port) + 1
    }

    /// Addresses in it; saturates for the whole of IPv6.
    pub fn addresses(&self) -> u128 {
        (self.last - self.first).saturating_add(1)
    }

    /// Whether there is more than one combination.
    pub fn varies(&self) -> bool {
        self.ports() > 1 || self.addresses() > 1
    }
}

/// One end: an address, and a port where given.
fn end(text: &str, v6: bool) -> Result<(u128, Option<u16>), String> {
    if text.contains('@') {
        return Err(format!("`{text}`: the group@ form is not known here; ranges run over whole addresses"));
    }
    let (address, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or_else(|| format!("`{text}` lacks a `]`"))?;
        match rest {
            "" => (address, None),
            _ => (address, Some(rest.strip_prefix(':').ok_or_else(|| format!("`{text}`: what is `{rest}`?"))?)),
        }
    } else if v6 || text.parse::<Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        match text.split_once(':') {
            Some((address, port)) => (address, Some(port)),
            None => (text, None),
        }
    };
    let port = port.map(|p| p.parse().map_err(|_| format!("`{p}` is no port (0 to 65535)"))).transpose()?;
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(a)) if !v6 => Ok((u128::from(u32::from(a)), port)),
        Ok(IpAddr::V6(a)) if v6 => Ok((u128::from(a), port)),
        Ok(_) if v6 => Err(format!("`{address}` is an IPv4 address, but -6 was given")),
        Ok(_) => Err(format!("`{address}` is an IPv6 address: add -6")),
        Err(_) => Err(format!("`{address}` is no {} address", if v6 { "IPv6" } else { "IPv4" })),
    }
}

/// Reads a MAC address.
///
/// # Errors
/// What is wrong with it.
pub fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("`{text}` is no MAC address: write 02:00:00:00:00:01");
    let mut out = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut out {
        let part = parts.next().filter(|p| (1..=2).contains(&p.len())).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_some() { Err(wrong()) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(a: [u8; 4]) -> u128 {
        u128::from(u32::from_be_bytes(a))
    }

    #[test]
    fn forms_of_the_manual() {
        let r = Range::parse("10.0.0.1", false).unwrap();
        assert_eq!((r.first, r.last, r.first_port, r.last_port), (v4([10, 0, 0, 1]), v4([10, 0, 0, 1]), 1234, 1234));
        let r = Range::parse("10.0.0.1:2000-10.0.0.9:2999", false).unwrap();
        assert_eq!((r.addresses(), r.ports(), r.first_port), (9, 1000, 2000));
        let r = Range::parse("10.0.0.9:9-10.0.0.1:7", false).unwrap();
        assert_eq!((r.first, r.first_port, r.last_port), (v4([10, 0, 0, 1]), 7, 9), "ends may be swapped");
        let r = Range::parse("10.0.0.1:5-10.0.0.2", false).unwrap();
        assert_eq!((r.ports(), r.addresses()), (1, 2));
        let r = Range::parse("[2001:db8::1]:7-[2001:db8::ff]:9", true).unwrap();
        assert_eq!((r.addresses(), r.ports()), (255, 3));
        let r = Range::parse("2001:db8::1-2001:db8::2", true).unwrap();
        assert_eq!((r.addresses(), r.ports(), r.varies()), (2, 1, true));
        assert!(!Range::parse("::1", true).unwrap().varies());
        assert_eq!(Range::parse("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true).unwrap().addresses(), u128::MAX);
    }

    #[test]
    fn wrong_forms_say_why() {
        for (text, v6, word) in [
            ("10.0.0.256", false, "no IPv4"),
            ("10.0.0.1:70000", false, "no port"),
            ("10.0.0.1:x", false, "no port"),
            ("2001:db8::1", false, "add -6"),
            ("[2001:db8::1]", false, "add -6"),
            ("10.0.0.1", true, "-6 was given"),
            ("[2001:db8::1", true, "lacks"),
            ("[2001:db8::1]x", true, "what is"),
            ("7@[2001:db8::1]", true, "group@"),
            ("10.0.0.1-10.0.0.2:5", false, "end only"),
            ("", false, "no IPv4"),
        ] {
            let error = Range::parse(text, v6).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn macs() {
        assert_eq!(mac("02:0:0a:00:00:ff"), Ok([2, 0, 10, 0, 0, 255]));
        for bad in
            ["", "02:00:00:00:00", "02:00:00:00:00:00:00", "02:00:00:00:00:gg", "02-00-00-00-00-00", "002:0:0:0:0:0"]
        {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }
}
