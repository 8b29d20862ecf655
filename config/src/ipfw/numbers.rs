#![forbid(unsafe_code)]
//! Numbers, ranges and lists of them, flags: the arguments of options as text, both ways.

use super::ast::{Numbers, Range};
use super::keywords::{self, ETHER_TYPES, Flags};
use super::names::Names;

/// A number as strtoul(3) with base 0 takes it: decimal, `0x...`, or octal after a leading zero. Nothing may follow.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    // from_str_radix takes a sign as well.
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, base).ok()).flatten()
}

/// A decimal number; nothing may follow.
pub(super) fn decimal(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// A 32-bit number in base 0.
pub(super) fn number32(text: &str) -> Option<u32> {
    number(text).and_then(|value| u32::try_from(value).ok())
}

/// What the words of a list are.
#[derive(Clone, Copy)]
pub(super) enum ListKind<'a> {
    /// Numbers only.
    Plain,
    /// Ports, by number or service name; the protocol narrows the name down.
    Ports(&'a dyn Names, Option<&'a str>),
    /// Ethernet types.
    EtherTypes,
}

/// Why a list is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListError {
    /// Neither a number nor a name that is known.
    Unknown(String),
    /// Above 65535.
    TooLarge(String),
    /// `1-2-3`, `1,,2`, `1:2`.
    Malformed,
}

/// Values and ranges with commas between them: `22,80,1024-65535`. A dash or another character that is no part of a name is escaped with
/// a backslash (`ftp\-data`).
pub(super) fn list(text: &str, kind: ListKind<'_>) -> Result<Vec<Range<u16>>, ListError> {
    let mut ranges = Vec::new();
    let mut rest = text;
    loop {
        let (low, after) = item(rest, kind)?;
        let (high, after) = match after.strip_prefix('-') {
            Some(second) => item(second, kind)?,
            None => (low, after),
        };
        ranges.push(Range { low, high });
        match after.strip_prefix(',') {
            // ipfw(8) lets a list end with a comma.
            Some("") => return Ok(ranges),
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(ranges),
            None => return Err(ListError::Malformed),
        }
    }
}

/// One number or name at the start of `text`, and what follows.
fn item<'a>(text: &'a str, kind: ListKind<'_>) -> Result<(u16, &'a str), ListError> {
    if text.starts_with(|character: char| character.is_ascii_digit()) {
        let end = text.find(|character: char| !character.is_ascii_alphanumeric()).unwrap_or(text.len());
        let (digits, after) = text.split_at(end);
        let value = number(digits).ok_or_else(|| ListError::Unknown(digits.to_owned()))?;
        let value = u16::try_from(value).map_err(|_| ListError::TooLarge(digits.to_owned()))?;
        return Ok((value, after));
    }
    let (name, after) = escaped_name(text);
    if name.is_empty() {
        return Err(ListError::Malformed);
    }
    let value = match kind {
        ListKind::Plain => None,
        ListKind::Ports(names, protocol) => names.service(&name, protocol),
        ListKind::EtherTypes => keywords::value(ETHER_TYPES, &name),
    };
    value.map(|value| (value, after)).ok_or(ListError::Unknown(name))
}

/// The name at the start of `text` without its backslashes, and what follows it.
fn escaped_name(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            '_' | '.' => name.push(character),
            _ if character.is_ascii_alphanumeric() => name.push(character),
            _ => return (name, &text[at..]),
        }
    }
    (name, "")
}

/// A service name as a port list takes it.
pub(super) fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for character in name.chars() {
        if !(character.is_ascii_alphanumeric() || matches!(character, '_' | '.')) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// Prints a list; `name` gives a value's name where it is to be shown by it.
pub(super) fn print_list(ranges: &[Range<u16>], show: impl Fn(u16) -> String) -> String {
    let mut out = String::new();
    for (index, range) in ranges.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&show(range.low));
        if range.low != range.high {
            out.push('-');
            out.push_str(&show(range.high));
        }
    }
    out
}

/// Prints the values of a numeric option.
pub(super) fn print_numbers(numbers: &Numbers) -> String {
    match numbers {
        Numbers::List(ranges) => print_list(ranges, |value| value.to_string()),
        Numbers::Table => "tablearg".to_owned(),
    }
}

/// Bits set and bits clear (`syn,!ack`), or the word that is no flag.
pub(super) fn flags(list: Flags, text: &str) -> Result<(u8, u8), &str> {
    let (mut set, mut clear) = (0, 0);
    for word in text.split(',') {
        let (word, bits) = match word.strip_prefix('!') {
            Some(word) => (word, &mut clear),
            None => (word, &mut set),
        };
        *bits |= keywords::value(list, word).ok_or(word)?;
    }
    Ok((set, clear))
}

/// Prints flags in the order of their list.
pub(super) fn print_flags(list: Flags, mut set: u8, mut clear: u8) -> String {
    let mut words = Vec::new();
    for &(name, bits) in list {
        if set & bits != 0 {
            set &= !bits;
            words.push(name.to_owned());
        }
        if clear & bits != 0 {
            clear &= !bits;
            words.push(format!("!{name}"));
        }
    }
    words.join(",")
}

/// Numbers up to `most` with commas between them, as bits of a map. The error is the word that is none.
pub(super) fn bit_list(text: &str, most: u64) -> Result<[u64; 4], &str> {
    let mut map = [0; 4];
    for word in text.split(',') {
        let value = number(word).filter(|&value| value <= most.min(255)).ok_or(word)? as usize;
        map[value / 64] |= 1 << (value % 64);
    }
    Ok(map)
}

/// The numbers of the bits of a map.
pub(super) fn print_bits(map: &[u64]) -> String {
    let set = (0..map.len() * 64).filter(|bit| map[bit / 64] >> (bit % 64) & 1 != 0);
    set.map(|bit| bit.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::names::builtin;
    use super::*;

    #[test]
    fn numbers_come_in_three_bases() {
        for (text, value) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x1F", Some(31)),
            ("08", None),
            ("0x", None),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1a", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(number(text), value, "{text}");
        }
        assert_eq!((decimal("010"), decimal("1x"), decimal("")), (Some(10), None, None));
    }

    fn ports(text: &str) -> Result<Vec<(u16, u16)>, ListError> {
        let ranges = list(text, ListKind::Ports(builtin(), Some("tcp")))?;
        Ok(ranges.iter().map(|range| (range.low, range.high)).collect())
    }

    #[test]
    fn lists_hold_ranges_and_names() {
        assert_eq!(ports("57-59,41"), Ok(vec![(57, 59), (41, 41)]));
        assert_eq!(ports("ssh,domain-80,"), Ok(vec![(22, 22), (53, 80)]));
        assert_eq!(ports(r"ftp\-data-ftp"), Ok(vec![(20, 21)]));
        assert_eq!(ports("ftp-data"), Err(ListError::Unknown("data".into())));
        assert_eq!(ports("70000"), Err(ListError::TooLarge("70000".into())));
        assert_eq!(ports("80x"), Err(ListError::Unknown("80x".into())));
        for text in ["1-2-3", "1,,2", "", "-1", "1-", "1:2"] {
            assert_eq!(ports(text), Err(ListError::Malformed), "{text}");
        }
        assert_eq!(escape("ftp-data"), r"ftp\-data");
        assert!(list("ssh", ListKind::Plain).is_err());
        assert_eq!(list("ipv6,0x800", ListKind::EtherTypes).unwrap()[0].low, 0x86dd);
    }

    #[test]
    fn flags_print_in_the_order_of_the_list() {
        assert_eq!(flags(keywords::TCP_FLAGS, "ack,!fin,syn"), Ok((18, 1)));
        assert_eq!(print_flags(keywords::TCP_FLAGS, 18, 1), "syn,!fin,ack");
        assert_eq!(flags(keywords::TCP_FLAGS, "ack,foo"), Err("foo"));
        assert_eq!(flags(keywords::TCP_FLAGS, ""), Err(""));
        // Printed by the names of its bits, as ipfw(8) does, and read back as the same bits.
        let congestion = print_flags(keywords::IP_TOS, 3, 0);
        assert_eq!(congestion, "mincost,congestion");
        assert_eq!(flags(keywords::IP_TOS, &congestion), Ok((3, 0)));
    }

    #[test]
    fn maps_of_bits() {
        assert_eq!(bit_list("0,3,0x10", 31), Ok([1 | 8 | 1 << 16, 0, 0, 0]));
        assert_eq!(bit_list("32", 31), Err("32"));
        assert_eq!(bit_list("1,", 31), Err(""));
        assert_eq!(print_bits(&bit_list("200,64,1", 255).unwrap()), "1,64,200");
    }
}
