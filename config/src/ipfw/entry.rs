#![forbid(unsafe_code)]
//! Entries of look-up tables as text: keys and values, read and printed as ipfw(8) does.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ast::ValueKind;
use super::command::Word;
use super::command::abbreviation::{any_base, is_number, leading_number};
use super::failure::{Failure, exit};
use super::language::Hosts;
use super::names::Names;
use super::table::{FlowFields, TableKey, TableKind, TableValue};
use crate::span::Span;

/// Longest interface name.
const INTERFACE_NAME: usize = 15;

/// What names mean while keys and values are read.
#[derive(Clone, Copy)]
pub struct Lookup<'a> {
    /// Services and protocols.
    pub names: &'a dyn Names,
    /// Hosts.
    pub hosts: &'a dyn Hosts,
}

/// The kind of table that a key is for, where the table does not exist yet: address, number or interface.
///
/// # Errors
/// When it looks like none of them.
pub fn guess_kind(key: &Word, table: &str) -> Result<TableKind, Failure> {
    let text = key.text.as_str();
    let address = text.split('/').next().unwrap_or_default();
    if address.parse::<IpAddr>().is_ok() {
        return Ok(TableKind::Address);
    }
    if is_number(text) {
        if leading_number(text).1.is_empty() {
            return Ok(TableKind::Number);
        }
        if leading_number(text).1.starts_with('.') {
            let message = format!("Table {table} does not exist, cannot guess key '{}' type", text.escape_debug());
            return Err(Failure::usage(key.span, message).hint("create the table first: `table NAME create type ...`"));
        }
    }
    Ok(if text.contains('.') { TableKind::Address } else { TableKind::Interface })
}

/// Reads a key of this kind of table; host bits are cleared.
///
/// # Errors
/// When it is not one.
pub fn parse_key(kind: TableKind, word: &Word, lookup: Lookup<'_>) -> Result<TableKey, Failure> {
    let text = word.text.as_str();
    match kind {
        TableKind::Address => address(text, word.span, lookup),
        TableKind::Mac => mac(text, word.span),
        TableKind::Interface => Ok(TableKey::Interface(text.chars().take(INTERFACE_NAME).collect())),
        TableKind::Number => {
            let wrong = || Failure::data(word.span, format!("Invalid number: {}", text.escape_debug()));
            text.parse().map(TableKey::Number).map_err(|_| wrong())
        }
        TableKind::Flow(fields) => flow(fields, text, word.span, lookup),
    }
}

/// Address and prefix length of `ADDRESS[/LENGTH]`, the length as written.
fn split_length(text: &str) -> (&str, Option<u64>) {
    match text.split_once('/') {
        Some((address, length)) => (address, Some(leading_number(length).0)),
        None => (text, None),
    }
}

fn address(text: &str, span: Span, lookup: Lookup<'_>) -> Result<TableKey, Failure> {
    let (address, length) = split_length(text);
    let length = |most: u8, family: &str| match length {
        None => Ok(most),
        Some(length) => u8::try_from(length)
            .ok()
            .filter(|&length| length <= most)
            .ok_or_else(|| Failure::data(span, format!("bad {family} mask width: {length}"))),
    };
    match address.parse() {
        Ok(IpAddr::V4(address)) => Ok(prefix4(address, length(32, "IPv4")?)),
        Ok(IpAddr::V6(address)) => {
            let compatible = address.to_ipv4().is_some() && address.to_ipv4_mapped().is_none();
            if compatible && !matches!(u128::from(address), 0 | 1) {
                return Err(Failure::data(span, "Use IPv4 instead of v4-compatible"));
            }
            Ok(prefix6(address, length(128, "IPv6")?))
        }
        Err(_) => {
            let host = lookup.hosts.host4(address);
            let unknown =
                || Failure::new(exit::NO_HOST, span, format!("hostname ``{}'' unknown", address.escape_debug()));
            host.map(|host| TableKey::V4(host, 32)).ok_or_else(unknown)
        }
    }
}

fn prefix4(address: Ipv4Addr, length: u8) -> TableKey {
    let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
    TableKey::V4(Ipv4Addr::from(u32::from(address) & mask), length)
}

fn prefix6(address: Ipv6Addr, length: u8) -> TableKey {
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    TableKey::V6(Ipv6Addr::from(u128::from(address) & mask), length)
}

fn mac(text: &str, span: Span) -> Result<TableKey, Failure> {
    let (address, length) = split_length(text);
    let length = length.unwrap_or(48);
    if length > 48 {
        return Err(Failure::data(span, format!("bad MAC mask width: {length}")));
    }
    let mut bytes = [0; 6];
    let mut parts = address.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
        let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte = value.ok_or_else(|| Failure::data(span, "Incorrect MAC address"))?;
    }
    if parts.next().is_some() {
        return Err(Failure::data(span, "Incorrect MAC address"));
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        let kept = (length as usize).saturating_sub(at * 8).min(8);
        *byte &= (0xff00_u16 >> kept) as u8;
    }
    Ok(TableKey::Mac(bytes, length as u8))
}

fn flow(fields: FlowFields, text: &str, span: Span, lookup: Lookup<'_>) -> Result<TableKey, Failure> {
    let mut parts = text.split(',');
    let mut take =
        |missing: &str| parts.next().ok_or_else(|| Failure::data(span, format!("invalid key: {missing} missing")));
    let mut addresses: [Option<IpAddr>; 2] = [None, None];
    let (mut protocol, mut source_port, mut destination_port) = (0, 0, 0);
    if fields.source_address {
        addresses[0] = Some(flow_address(take("src ip")?, span)?);
    }
    if fields.protocol {
        let part = take("proto")?;
        let number = part.parse::<u64>().ok().or_else(|| lookup.names.protocol(part).map(u64::from));
        let number = number.ok_or_else(|| Failure::data(span, format!("Unknown proto: {}", part.escape_debug())))?;
        protocol = u8::try_from(number).map_err(|_| Failure::data(span, format!("Bad protocol number: {number}")))?;
    }
    if fields.source_port {
        source_port = flow_port(take("src port")?, span, lookup)?;
    }
    if fields.destination_address {
        addresses[1] = Some(flow_address(take("dst ip")?, span)?);
    }
    if fields.destination_port {
        destination_port = flow_port(take("dst port")?, span, lookup)?;
    }
    let v6 = addresses.iter().flatten().next().is_some_and(IpAddr::is_ipv6);
    if addresses.iter().flatten().any(|address| address.is_ipv6() != v6) {
        return Err(Failure::data(span, "Inconsistent address family"));
    }
    let none = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let [source, destination] = addresses.map(|address| address.unwrap_or(none));
    Ok(TableKey::Flow { source, destination, protocol, source_port, destination_port })
}

fn flow_address(text: &str, span: Span) -> Result<IpAddr, Failure> {
    text.parse().map_err(|_| Failure::data(span, format!("invalid key: {} is no address", text.escape_debug())))
}

fn flow_port(text: &str, span: Span, lookup: Lookup<'_>) -> Result<u16, Failure> {
    let port = text.parse().ok().or_else(|| lookup.names.service(text, None));
    port.ok_or_else(|| Failure::data(span, format!("Unknown service: {}", text.escape_debug())))
}

/// Reads a value for a table with these kinds of values; none is the legacy kind, one number for all.
///
/// # Errors
/// When it is not one.
pub fn parse_value(kinds: &[ValueKind], word: &Word, lookup: Lookup<'_>) -> Result<TableValue, Failure> {
    let text = word.text.as_str();
    if kinds.is_empty() {
        let number = any_base(text).filter(|(_, rest)| rest.is_empty()).map(|(number, _)| number as u32);
        let number = number.or_else(|| text.parse().ok().or_else(|| lookup.hosts.host4(text)).map(u32::from));
        return number.map(legacy).ok_or_else(|| {
            Failure::new(exit::OS, word.span, format!("Unable to parse value {}", text.escape_debug()))
        });
    }
    let mut value = TableValue::default();
    let parts: Vec<&str> = text.split(',').collect();
    if parts.len() < kinds.len() {
        return Err(Failure::usage(word.span, "Not enough fields inside value"));
    }
    // FreeBSD reads the fields in the order of its kinds, whatever the order in `valtype`.
    for (&kind, part) in kinds.iter().zip(&parts) {
        field(&mut value, kind, part, lookup)
            .map_err(|what| Failure::usage(word.span, format!("Unable to parse {} as {what}", part.escape_debug())))?;
    }
    Ok(value)
}

fn legacy(number: u32) -> TableValue {
    TableValue {
        skipto: number,
        pipe: number,
        fib: number,
        nat: number,
        dscp: number as u8,
        tag: number,
        divert: number,
        netgraph: number,
        limit: number,
        ipv4: Ipv4Addr::from(number),
        ..TableValue::default()
    }
}

fn field(value: &mut TableValue, kind: ValueKind, text: &str, lookup: Lookup<'_>) -> Result<(), &'static str> {
    let number = |what| text.parse::<u32>().map_err(|_| what);
    match kind {
        ValueKind::SkipTo => value.skipto = number("skipto")?,
        ValueKind::Pipe => value.pipe = number("pipe")?,
        ValueKind::Fib => value.fib = number("fib")?,
        ValueKind::Nat => value.nat = number("nat")?,
        ValueKind::Tag => value.tag = number("tag")?,
        ValueKind::Divert => value.divert = number("divert")?,
        ValueKind::Netgraph => value.netgraph = number("netgraph")?,
        ValueKind::Limit => value.limit = number("limit")?,
        ValueKind::Dscp if text.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            value.dscp = dscp(text).ok_or("DSCP code")?;
        }
        ValueKind::Dscp => {
            value.dscp =
                number("DSCP value").ok().and_then(|n| u8::try_from(n).ok()).filter(|&n| n < 64).ok_or("DSCP value")?
        }
        ValueKind::Ipv4 => value.ipv4 = text.parse().ok().or_else(|| lookup.hosts.host4(text)).ok_or("ipv4")?,
        ValueKind::Ipv6 => value.ipv6 = text.parse().map_err(|_| "ipv6")?,
        ValueKind::Mark => {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            value.mark = u32::from_str_radix(digits, 16).map_err(|_| "mark")?;
        }
    }
    Ok(())
}

/// Code points by name (RFC 2474, 2597, 3246, 5865).
fn dscp(name: &str) -> Option<u8> {
    let class = |digits: &str| digits.parse::<u8>().ok();
    match name {
        "be" => Some(0),
        "ef" => Some(46),
        "va" => Some(44),
        _ if name.starts_with("cs") => class(&name[2..]).filter(|&c| c < 8).map(|c| c * 8),
        _ if name.starts_with("af") && name.len() == 4 => {
            let number = class(&name[2..])?;
            let (class, drop) = (number / 10, number % 10);
            ((1..=4).contains(&class) && (1..=3).contains(&drop)).then_some(class * 8 + drop * 2)
        }
        _ => None,
    }
}

/// The value as `table list` shows it; `as_address` is `-i`.
pub fn print_value(kinds: &[ValueKind], value: &TableValue, as_address: bool) -> String {
    if kinds.is_empty() {
        return if as_address { Ipv4Addr::from(value.tag).to_string() } else { value.tag.to_string() };
    }
    let field = |kind: &ValueKind| match kind {
        ValueKind::SkipTo => value.skipto.to_string(),
        ValueKind::Pipe => value.pipe.to_string(),
        ValueKind::Fib => value.fib.to_string(),
        ValueKind::Nat => value.nat.to_string(),
        ValueKind::Dscp => value.dscp.to_string(),
        ValueKind::Tag => value.tag.to_string(),
        ValueKind::Divert => value.divert.to_string(),
        ValueKind::Netgraph => value.netgraph.to_string(),
        ValueKind::Limit => value.limit.to_string(),
        ValueKind::Ipv4 => value.ipv4.to_string(),
        ValueKind::Ipv6 => value.ipv6.to_string(),
        // C's %#x writes no prefix before zero.
        ValueKind::Mark if value.mark == 0 => "0".to_owned(),
        ValueKind::Mark => format!("{:#x}", value.mark),
    };
    kinds.iter().map(field).collect::<Vec<_>>().join(",")
}

/// The key as `table list` shows it.
pub fn print_key(kind: TableKind, key: &TableKey) -> String {
    match key {
        TableKey::V4(address, length) => format!("{address}/{length}"),
        TableKey::V6(address, length) => format!("{address}/{length}"),
        TableKey::Interface(name) => name.clone(),
        TableKey::Number(number) => number.to_string(),
        TableKey::Mac(bytes, length) => {
            let [a, b, c, d, e, f] = bytes;
            format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}/{length}")
        }
        TableKey::Flow { source, destination, protocol, source_port, destination_port } => {
            let fields = if let TableKind::Flow(fields) = kind { fields } else { super::command::ALL_FIELDS };
            let mut out = String::new();
            let mut part = |has: bool, text: &dyn std::fmt::Display| {
                if has {
                    let comma = if out.is_empty() { "" } else { "," };
                    let _ = write!(out, "{comma}{text}");
                }
            };
            part(fields.source_address, source);
            part(fields.protocol, protocol);
            part(fields.source_port, source_port);
            part(fields.destination_address, destination);
            part(fields.destination_port, destination_port);
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::command::ALL_FIELDS;
    use crate::ipfw::language::NoHosts;
    use crate::ipfw::names::builtin;

    fn word(text: &str) -> Word {
        Word { text: text.to_owned(), span: Span::new(0, text.len()) }
    }

    fn lookup() -> Lookup<'static> {
        Lookup { names: builtin(), hosts: &NoHosts }
    }

    fn key(kind: TableKind, text: &str) -> Result<String, (u8, String)> {
        let key = parse_key(kind, &word(text), lookup()).map_err(|failure| (failure.exit, failure.message))?;
        let printed = print_key(kind, &key);
        assert_eq!(parse_key(kind, &word(&printed), lookup()).unwrap(), key, "printed {printed}");
        Ok(printed)
    }

    #[test]
    fn keys_are_read_and_printed() {
        let good = |kind, text: &str| key(kind, text).unwrap();
        assert_eq!(good(TableKind::Address, "10.1.2.3/8"), "10.0.0.0/8");
        assert_eq!(good(TableKind::Address, "10.1.2.3"), "10.1.2.3/32");
        assert_eq!(good(TableKind::Address, "0.0.0.0/0"), "0.0.0.0/0");
        assert_eq!(good(TableKind::Address, "2001:db8::1/33"), "2001:db8::/33");
        assert_eq!(good(TableKind::Address, "::/0"), "::/0");
        assert_eq!(good(TableKind::Mac, "00:11:22:33:44:ff/44"), "00:11:22:33:44:f0/44");
        assert_eq!(good(TableKind::Number, "4294967295"), "4294967295");
        assert_eq!(good(TableKind::Interface, "em0"), "em0");
        let flow = TableKind::Flow(ALL_FIELDS);
        assert_eq!(good(flow, "10.0.0.1,tcp,80,10.0.0.2,ssh"), "10.0.0.1,6,80,10.0.0.2,22");
        let ports = FlowFields { source_address: false, protocol: false, destination_address: false, ..ALL_FIELDS };
        assert_eq!(good(TableKind::Flow(ports), "1,2"), "1,2");
    }

    #[test]
    fn wrong_keys_have_the_originals_words_and_codes() {
        let bad = |kind, text: &str| key(kind, text).unwrap_err();
        assert_eq!(bad(TableKind::Address, "10.0.0.0/33"), (65, "bad IPv4 mask width: 33".into()));
        assert_eq!(bad(TableKind::Address, "nonsense"), (68, "hostname ``nonsense'' unknown".into()));
        assert_eq!(bad(TableKind::Address, "::1.2.3.4"), (65, "Use IPv4 instead of v4-compatible".into()));
        assert_eq!(bad(TableKind::Mac, "1:2:3:4:5").1, "Incorrect MAC address");
        assert_eq!(bad(TableKind::Number, "12x").1, "Invalid number: 12x");
        assert_eq!(bad(TableKind::Flow(ALL_FIELDS), "10.0.0.1,tcp,80,::1,22").1, "Inconsistent address family");
        assert_eq!(bad(TableKind::Flow(ALL_FIELDS), "10.0.0.1,tcp,80").1, "invalid key: dst ip missing");
    }

    #[test]
    fn values_by_kind_and_legacy() {
        let read = |kinds: &[ValueKind], text: &str| parse_value(kinds, &word(text), lookup());
        assert_eq!(print_value(&[], &read(&[], "0x10").unwrap(), false), "16");
        assert_eq!(print_value(&[], &read(&[], "10.0.0.1").unwrap(), true), "10.0.0.1");
        assert_eq!(read(&[], "x").unwrap_err().exit, 71);
        let kinds = [ValueKind::SkipTo, ValueKind::Dscp, ValueKind::Ipv6, ValueKind::Mark];
        let value = read(&kinds, "100,af41,fe80::1,0xff").unwrap();
        assert_eq!(print_value(&kinds, &value, false), "100,34,fe80::1,0xff");
        assert_eq!(read(&kinds, "1,2").unwrap_err().message, "Not enough fields inside value");
        assert_eq!(read(&[ValueKind::Dscp], "64").unwrap_err().message, "Unable to parse 64 as DSCP value");
    }

    #[test]
    fn the_kind_of_an_unknown_table_is_guessed() {
        let guess = |text: &str| guess_kind(&word(text), "t");
        assert_eq!(guess("10.0.0.0/8"), Ok(TableKind::Address));
        assert_eq!(guess("::1"), Ok(TableKind::Address));
        assert_eq!(guess("80"), Ok(TableKind::Number));
        assert_eq!(guess("em0"), Ok(TableKind::Interface));
        assert_eq!(guess("10.5").unwrap_err().exit, 64);
    }
}
