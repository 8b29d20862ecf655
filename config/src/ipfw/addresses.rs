#![forbid(unsafe_code)]
//! IP addresses with masks, sets and lists of them, tables: text to meaning and back, without a rule around them.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::ast::{Addresses, Masked4, Masked6, TableName, TableValueTest, ValueKind};
use super::keywords::{self, VALUE_KINDS};
use super::numbers::{decimal, number, number32};

/// Which addresses may stand here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `from`, `to` of a rule that is not for IPv6 alone.
    Both,
    /// `src-ip`, `dst-ip`.
    V4,
    /// `src-ip6`, `dst-ip6`, and `from`, `to` of `ip6` rules.
    V6,
}

/// What is wrong with an address: the message, and how to mend it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub message: String,
    pub hint: Option<String>,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// What an address word says; None is `any`.
pub(super) fn parse(text: &str, family: Family) -> Result<Option<Addresses>, Fault> {
    let quoted = crate::diagnostic::quoted;
    match (text, family) {
        ("any", _) => return Ok(None),
        ("me", Family::V6) | ("me6", Family::V6 | Family::Both) => return Ok(Some(Addresses::Me6)),
        ("me", _) => return Ok(Some(Addresses::Me)),
        ("me6", Family::V4) => return Err(Fault::new("me6 is no IPv4 address").hint("use src-ip6 or dst-ip6")),
        _ => {}
    }
    if text.starts_with("table(") {
        let (name, value) = table(text)?;
        return Ok(Some(Addresses::Table(name, value)));
    }
    let first = &text[..text.find(['/', ',']).unwrap_or(text.len())];
    let is_v6 = first.parse::<Ipv6Addr>().is_ok();
    match family {
        Family::V6 => list6(text),
        Family::Both if is_v6 => list6(text),
        Family::V4 if is_v6 => {
            Err(Fault::new(format!("bad address {}: not IPv4", quoted(text))).hint("use src-ip6 or dst-ip6"))
        }
        _ => list4(text),
    }
}

fn list4(text: &str) -> Result<Option<Addresses>, Fault> {
    if let Some((base, set)) = text.split_once('{') {
        return set4(base, set).map(Some);
    }
    let mut list = Vec::new();
    let mut any = false;
    for item in text.split(',') {
        if item.split('/').next().is_some_and(|host| host.parse::<Ipv6Addr>().is_ok()) {
            return Err(mixed_families());
        }
        let entry = masked4(item)?;
        any |= u32::from(entry.mask) == 0;
        list.push(entry);
    }
    // With /0 among them the list matches everything, IPv6 too: ipfw(8) leaves the test out.
    Ok((!any).then_some(Addresses::V4(list)))
}

/// `ADDRESS`, `ADDRESS/LENGTH`, `ADDRESS:MASK`.
fn masked4(text: &str) -> Result<Masked4, Fault> {
    let quoted = crate::diagnostic::quoted;
    let (host, mask) = match text.find(['/', ':']) {
        None => (text, Ipv4Addr::BROADCAST),
        Some(at) => {
            let (host, mask) = (&text[..at], &text[at + 1..]);
            let parsed = match text.as_bytes()[at] {
                b'/' => decimal(mask).filter(|&length| length <= 32).map(|length| prefix4(length as u8)),
                _ => inet_aton(mask),
            };
            let what = if text.as_bytes()[at] == b'/' { "bad width" } else { "bad netmask" };
            (host, parsed.ok_or_else(|| Fault::new(format!("{what} {}", quoted(mask))))?)
        }
    };
    let address = inet_aton(host).ok_or_else(|| unknown_host(host))?;
    Ok(Masked4 { address: Ipv4Addr::from(u32::from(address) & u32::from(mask)), mask })
}

fn mixed_families() -> Fault {
    Fault::new("IPv4 and IPv6 addresses in one list").hint("write { a or b } with a list for each family")
}

fn unknown_host(host: &str) -> Fault {
    let fault = Fault::new(format!("hostname {} unknown", crate::diagnostic::quoted(host)));
    match crate::suggest::did_you_mean(host, ["any", "me", "me6", "table(NAME)"]) {
        Some(hint) => fault.hint(hint),
        None => fault.hint("write an address: names are not looked up in the DNS when rules are read"),
    }
}

/// `BASE[/LENGTH]{members}`.
fn set4(base: &str, members: &str) -> Result<Addresses, Fault> {
    let quoted = crate::diagnostic::quoted;
    if base.contains(',') {
        return Err(Fault::new("address set cannot be in a list").hint("write { a or b }"));
    }
    let Some(members) = members.strip_suffix('}') else { return Err(Fault::new("set not closed").hint("add }")) };
    let with_length = if base.contains(['/', ':']) { base.to_owned() } else { format!("{base}/24") };
    let masked = masked4(&with_length)?;
    let length = contiguous(u32::from(masked.mask).into(), 32).filter(|length| (24..=31).contains(length));
    let Some(length) = length else {
        return Err(Fault::new(format!("invalid set with mask {}", quoted(base))).hint("a set is /24 to /31"));
    };
    let low = u64::from(masked.address.octets()[3]);
    let high = low + (1 << (32 - length)) - 1;
    let mut map = [0u64; 4];
    for item in members.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (Some(first), Some(last)) = (number(first.trim()), number(last.trim())) else {
            return Err(Fault::new(format!("bad set member {}", quoted(item))).hint("write {1,5-9}"));
        };
        if first > last {
            return Err(Fault::new(format!("invalid range {first}-{last}")));
        }
        if first < low || last > high {
            let outside = if first < low { first } else { last };
            return Err(Fault::new(format!("addr {outside} out of range [{low}-{high}]")));
        }
        for member in first..=last {
            map[member as usize / 64] |= 1 << (member % 64);
        }
    }
    Ok(Addresses::Set4 { base: masked.address, length, members: map })
}

fn list6(text: &str) -> Result<Option<Addresses>, Fault> {
    let quoted = crate::diagnostic::quoted;
    let mut list = Vec::new();
    for item in text.split(',') {
        let (host, mask) = match item.split_once('/') {
            None => (item, u128::MAX),
            Some((host, mask)) if mask.contains(':') => {
                let parsed = mask.parse::<Ipv6Addr>().map_err(|_| Fault::new(format!("bad mask {}", quoted(mask))))?;
                (host, u128::from(parsed))
            }
            Some((host, mask)) => {
                let length = decimal(mask).filter(|&length| length <= 128);
                let length = length.ok_or_else(|| Fault::new(format!("bad width {}", quoted(mask))))?;
                (host, prefix(length as u8, 128))
            }
        };
        let address: Ipv6Addr = host.parse().map_err(|_| match inet_aton(host) {
            Some(_) if !list.is_empty() => mixed_families(),
            Some(_) => Fault::new(format!("bad address {}: not IPv6", quoted(host))),
            None => Fault::new(format!("bad address {}", quoted(host))),
        })?;
        list.push(Masked6 { address: Ipv6Addr::from(u128::from(address) & mask), mask: Ipv6Addr::from(mask) });
    }
    Ok(Some(Addresses::V6(list)))
}

/// An IPv4 address as inet_aton(3) takes it: one to four numbers in base 0, the last of which fills what is left.
pub(super) fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.splitn(5, '.').collect();
    let (last, heads) = parts.split_last()?;
    if heads.len() > 3 {
        return None;
    }
    let mut value: u64 = 0;
    for (index, head) in heads.iter().enumerate() {
        value |= number(head).filter(|&byte| byte <= 255)? << (24 - 8 * index);
    }
    let room = 8 * (4 - heads.len() as u32);
    let last = number(last).filter(|&last| last < 1 << room)?;
    Some(Ipv4Addr::from((value | last) as u32))
}

/// A mask of `length` leading ones in `bits`.
pub(super) fn prefix(length: u8, bits: u8) -> u128 {
    let ones = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    ones >> (128 - u32::from(bits))
}

fn prefix4(length: u8) -> Ipv4Addr {
    Ipv4Addr::from(prefix(length, 32) as u32)
}

/// The number of leading ones of a mask of `bits` bits; None when others follow.
pub(super) fn contiguous(mask: u128, bits: u8) -> Option<u8> {
    let length = (mask << (128 - u32::from(bits))).leading_ones() as u8;
    (prefix(length, bits) == mask).then_some(length)
}

/// `table(NAME[,VALUE])`.
pub(super) fn table(text: &str) -> Result<(TableName, Option<TableValueTest>), Fault> {
    let inner = text.strip_prefix("table(").unwrap_or(text);
    let Some(inner) = inner.strip_suffix(')') else {
        return Err(Fault::new(format!("forgotten parenthesis: {}", crate::diagnostic::quoted(text)))
            .hint("in a shell, quote it: \"table(1)\""));
    };
    let (name, value) = match inner.split_once(',') {
        Some((name, value)) => (name, Some(table_value(value)?)),
        None => (inner, None),
    };
    Ok((table_name(name)?, value))
}

/// The name of a table.
pub(super) fn table_name(name: &str) -> Result<TableName, Fault> {
    if is_object_name(name) && name != "all" {
        return Ok(name.to_owned());
    }
    Err(Fault::new(format!("invalid table name {}", crate::diagnostic::quoted(name)))
        .hint("1 to 63 letters, digits, `_`, `-` and `.`, and not `all`"))
}

/// Names of tables, states and external actions.
pub(super) fn is_object_name(name: &str) -> bool {
    (1..64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

fn table_value(text: &str) -> Result<TableValueTest, Fault> {
    let (kind, value) = match text.split_once('=') {
        None => (None, text),
        Some((kind, value)) => match keywords::value(VALUE_KINDS, kind) {
            Some(kind) => (Some(kind), value),
            None => {
                let mut fault = Fault::new(format!("unknown value type {}", crate::diagnostic::quoted(kind)));
                fault.hint = crate::suggest::did_you_mean(kind, keywords::names(VALUE_KINDS));
                return Err(fault);
            }
        },
    };
    let number = number32(value).or_else(|| {
        // Legacy values hold addresses as numbers.
        (kind.is_none_or(|kind| kind == ValueKind::Ipv4) && value.contains('.'))
            .then(|| inet_aton(value))?
            .map(u32::from)
    });
    match number {
        Some(value) => Ok(TableValueTest { kind, value }),
        None => Err(Fault::new(format!("bad table value {}", crate::diagnostic::quoted(value)))
            .hint("a number, or an IPv4 address")),
    }
}

/// `NAME` or `NAME,VALUE`, as it stands between the parentheses.
pub(super) fn print_table(name: &str, value: Option<TableValueTest>) -> String {
    match value {
        None => name.to_owned(),
        Some(TableValueTest { kind: None, value }) => format!("{name},{value}"),
        Some(TableValueTest { kind: Some(kind), value }) => {
            let word = keywords::name(VALUE_KINDS, kind).unwrap_or_default();
            match kind {
                ValueKind::Ipv4 => format!("{name},{word}={}", Ipv4Addr::from(value)),
                _ => format!("{name},{word}={value}"),
            }
        }
    }
}

/// An address test without its keyword and its `not`.
pub(super) fn print(addresses: &Addresses) -> String {
    match addresses {
        Addresses::None => "not any".to_owned(),
        Addresses::Me => "me".to_owned(),
        Addresses::Me6 => "me6".to_owned(),
        Addresses::Table(name, value) => format!("table({})", print_table(name, *value)),
        Addresses::V4(list) => list.iter().map(print4).collect::<Vec<_>>().join(","),
        Addresses::V6(list) => list.iter().map(print6).collect::<Vec<_>>().join(","),
        Addresses::Set4 { base, length, members } => format!("{base}/{length}{{{}}}", print_members(members)),
    }
}

fn print4(entry: &Masked4) -> String {
    match contiguous(u32::from(entry.mask).into(), 32) {
        Some(32) => entry.address.to_string(),
        Some(length) => format!("{}/{length}", entry.address),
        None => format!("{}:{}", entry.address, entry.mask),
    }
}

fn print6(entry: &Masked6) -> String {
    let address = inet_ntop(entry.address);
    match contiguous(entry.mask.into(), 128) {
        Some(128) => address,
        Some(length) => format!("{address}/{length}"),
        None => format!("{address}/{}", inet_ntop(entry.mask)),
    }
}

/// An IPv6 address as BSD's inet_ntop(3) prints it: IPv4-compatible ones end in a dotted quad as IPv4-mapped ones do.
pub(super) fn inet_ntop(address: Ipv6Addr) -> String {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => {
            format!("::{}", Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        _ => address.to_string(),
    }
}

/// Members of a set; three and more in a row are a range.
fn print_members(members: &[u64; 4]) -> String {
    let has = |member: usize| member < 256 && members[member / 64] >> (member % 64) & 1 != 0;
    let mut words = Vec::new();
    let mut member = 0;
    while member < 256 {
        if has(member) {
            let after = (member..257).find(|&next| !has(next)).unwrap_or(256);
            if after > member + 2 {
                words.push(format!("{member}-{}", after - 1));
                member = after;
                continue;
            }
            words.push(member.to_string());
        }
        member += 1;
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses and prints.
    fn round(text: &str, family: Family) -> Result<String, String> {
        match parse(text, family) {
            Ok(None) => Ok("any".into()),
            Ok(Some(addresses)) => Ok(print(&addresses)),
            Err(fault) => Err(fault.message),
        }
    }

    #[test]
    fn addresses_print_as_ipfw_prints_them() {
        for (text, expected) in [
            ("any", "any"),
            ("me", "me"),
            ("me6", "me6"),
            ("1.2.3.4", "1.2.3.4"),
            ("1.2.3.4/24", "1.2.3.0/24"),
            ("10/8", "0.0.0.0/8"),
            ("127.1", "127.0.0.1"),
            ("1.2.3.4/32,5.6.7.8/31", "1.2.3.4,5.6.7.8/31"),
            ("1.2.3.4:255.255.0.0", "1.2.0.0/16"),
            ("1.2.3.4:255.0.255.255", "1.0.3.4:255.0.255.255"),
            ("0.0.0.0/0", "any"),
            ("1.2.3.4,0/0", "any"),
            ("1.2.3.0/24{7,1-3,5,6,200-255}", "1.2.3.0/24{1-3,5-7,200-255}"),
            ("1.2.3.4{1,2}", "1.2.3.0/24{1,2}"),
            ("1.2.3.128/25{128,255}", "1.2.3.128/25{128,255}"),
            ("2001:db8::1", "2001:db8::1"),
            ("2001:db8::1/32,::1", "2001:db8::/32,::1"),
            ("2001:db8::1/ffff::ffff", "2001::1/ffff::ffff"),
            ("::/0", "::/0"),
            ("::224.0.0.0/100", "::224.0.0.0/100"),
            ("::ffff:0.0.0.0/96", "::ffff:0.0.0.0/96"),
            ("::5", "::0.0.0.5"),
            ("table(a.b)", "table(a.b)"),
            ("table(1,0x10)", "table(1,16)"),
            ("table(1,1.2.3.4)", "table(1,16909060)"),
            ("table(1,skipto=5)", "table(1,skipto=5)"),
            ("table(1,ipv4=1.2.3.4)", "table(1,ipv4=1.2.3.4)"),
        ] {
            let printed = round(text, Family::Both);
            assert_eq!(printed.as_deref(), Ok(expected), "{text}");
            assert_eq!(round(expected, Family::Both).as_deref(), Ok(expected), "{expected} again");
        }
        assert_eq!(round("me", Family::V6).as_deref(), Ok("me6"));
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (text, family, message) in [
            ("1.2.3.4/33", Family::Both, "bad width \"33\""),
            ("1.2.3.4:x", Family::Both, "bad netmask \"x\""),
            ("example.org", Family::Both, "hostname \"example.org\" unknown"),
            ("1.2.3.4,2001:db8::1", Family::Both, "IPv4 and IPv6 addresses in one list"),
            ("2001:db8::1,1.2.3.4", Family::Both, "IPv4 and IPv6 addresses in one list"),
            ("2001:db8::x", Family::V6, "bad address \"2001:db8::x\""),
            ("1.2.3.4", Family::V6, "bad address \"1.2.3.4\": not IPv6"),
            ("::1", Family::V4, "bad address \"::1\": not IPv4"),
            ("::1/129", Family::Both, "bad width \"129\""),
            ("1.2.3.0/23{1}", Family::Both, "invalid set with mask \"1.2.3.0/23\""),
            ("1.2.3.0/24{1", Family::Both, "set not closed"),
            ("1.2.3.0/24{5-1}", Family::Both, "invalid range 5-1"),
            ("1.2.3.0/25{128}", Family::Both, "addr 128 out of range [0-127]"),
            ("1.2.3.0/24{}", Family::Both, "bad set member \"\""),
            ("1.2.3.4,1.2.3.0/24{1}", Family::Both, "address set cannot be in a list"),
            ("table(1", Family::Both, "forgotten parenthesis: \"table(1\""),
            ("table(all)", Family::Both, "invalid table name \"all\""),
            ("table()", Family::Both, "invalid table name \"\""),
            ("table(1,skip=5)", Family::Both, "unknown value type \"skip\""),
            ("table(1,x)", Family::Both, "bad table value \"x\""),
        ] {
            assert_eq!(round(text, family), Err(message.into()), "{text}");
        }
    }
}
