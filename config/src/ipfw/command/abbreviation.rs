#![forbid(unsafe_code)]
//! Abbreviated words: ipfw(8) takes the beginning of most of its words, and says that it should not be relied upon.

/// True where `given` is `full` or its beginning; a shortened one adds the original's warning.
pub(crate) fn abbreviates(given: &str, full: &str, warnings: &mut Vec<String>) -> bool {
    if !full.starts_with(given) {
        return false;
    }
    if given != full {
        warnings.push(format!("DEPRECATED: '{given}' matched '{full}' as a sub-string"));
    }
    true
}

/// The only word of `known` that begins with `given`.
///
/// # Errors
/// How many there are otherwise.
pub(crate) fn unique<'a>(given: &str, known: &[&'a str]) -> Result<&'a str, usize> {
    let mut found = known.iter().filter(|full| !given.is_empty() && full.starts_with(given));
    match (found.next(), found.count()) {
        (Some(first), 0) => Ok(first),
        (first, more) => Err(more + usize::from(first.is_some())),
    }
}

/// True where `text` begins with a digit, as the original tells numbers from words.
pub(crate) fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// The number at the beginning of `text` (strtol(3), base 10) and what follows it; saturates.
pub(crate) fn leading_number(text: &str) -> (u64, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = if end == 0 { 0 } else { text[..end].parse().unwrap_or(u64::MAX) };
    (number, &text[end..])
}

/// A number as strtoul(3) with base 0 reads it (`0x` hexadecimal, leading `0` octal) and what follows it; None where there is none.
pub(crate) fn any_base(text: &str) -> Option<(u64, &str)> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_hexdigit()) => (rest, 16),
        _ if text.starts_with('0') => (text, 8),
        _ => (text, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    (end > 0).then(|| (u64::from_str_radix(&digits[..end], radix).unwrap_or(u64::MAX), &digits[end..]))
}
