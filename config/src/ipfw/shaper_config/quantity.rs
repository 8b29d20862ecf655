#![forbid(unsafe_code)]
//! Numbers with units.

use crate::ipfw::command::Word;
use crate::ipfw::command::abbreviation::any_base;
use crate::ipfw::dummynet::{QueueSize, RedParameters};
use crate::ipfw::failure::{Failure, exit};

/// Largest `burst`.
const BURST: u64 = (1 << 48) - 1;

fn wrong(word: &Word) -> Failure {
    Failure::data(word.span, format!("invalid number: {}", word.text.escape_debug()))
}

/// A whole number.
pub(super) fn number(word: &Word) -> Result<u32, Failure> {
    let (number, rest) = any_base(&word.text).ok_or_else(|| wrong(word))?;
    if rest.is_empty() { u32::try_from(number).map_err(|_| wrong(word)) } else { Err(wrong(word)) }
}

/// A real number.
pub(super) fn fraction(word: &Word) -> Result<f64, Failure> {
    real(&word.text).ok_or_else(|| wrong(word))
}

/// A real number, finite.
pub(super) fn real(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// `bw`: bit/s by default; K, M and G are powers of 1000, bytes count eight times.
pub(super) fn bandwidth(word: &Word, warnings: &mut Vec<String>) -> Result<u64, Failure> {
    if word.text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(Failure::new(exit::FAILED, word.span, "no if support").hint("give a bandwidth, such as 10Mbit/s"));
    }
    let bad =
        || Failure::data(word.span, format!("invalid bandwidth {}", word.text.escape_debug())).hint("such as 10Mbit/s");
    let (number, unit) = any_base(&word.text).ok_or_else(bad)?;
    let (factor, unit) = match unit.as_bytes().first() {
        Some(b'K' | b'k') => (1_000, &unit[1..]),
        Some(b'M' | b'm') => (1_000_000, &unit[1..]),
        Some(b'G' | b'g') => (1_000_000_000, &unit[1..]),
        _ => (1, unit),
    };
    let bytes = if unit.starts_with("Bi") {
        if unit != "Bit/s" {
            warnings.push(format!("DEPRECATED: '{unit}' matched 'Bit/s'"));
        }
        false
    } else if unit.starts_with("by") {
        if unit != "bytes" {
            warnings.push(format!("DEPRECATED: '{unit}' matched 'bytes'"));
        }
        true
    } else {
        unit.starts_with('B')
    };
    let bits = number.checked_mul(factor).and_then(|bits| bits.checked_mul(if bytes { 8 } else { 1 }));
    bits.ok_or_else(|| Failure::data(word.span, "bandwidth too large"))
}

/// `queue`: slots, or bytes with K, M, B or bytes.
pub(super) fn queue_size(word: &Word) -> Result<QueueSize, Failure> {
    let (number, unit) = any_base(&word.text).ok_or_else(|| wrong(word))?;
    let factor = match unit.as_bytes().first() {
        None => return u32::try_from(number).map(QueueSize::Slots).map_err(|_| wrong(word)),
        Some(b'K' | b'k') => 1024,
        Some(b'M' | b'm') => 1024 * 1024,
        Some(b'B') => 1,
        Some(b'b') if unit.starts_with("by") => 1,
        _ => return Err(wrong(word).hint("a number of slots, or of bytes such as 10KBytes")),
    };
    let bytes = number.checked_mul(factor).and_then(|bytes| u32::try_from(bytes).ok());
    bytes.map(QueueSize::Bytes).ok_or_else(|| wrong(word))
}

/// `burst`: bytes, with k, m, g ... as powers of 1024 (expand_number(3)).
pub(super) fn burst(word: &Word) -> Result<u64, Failure> {
    let invalid = || Failure::data(word.span, "burst: invalid argument");
    let (number, unit) = any_base(&word.text).ok_or_else(invalid)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        "p" | "pb" => 50,
        _ => return Err(invalid()),
    };
    let bytes = number.checked_mul(1 << shift).filter(|&bytes| bytes <= BURST);
    bytes.ok_or_else(|| Failure::data(word.span, "burst: out of range (0..2^48-1)"))
}

/// `w_q/min_th/max_th/max_p`.
pub(super) fn red(word: &Word) -> Result<RedParameters, Failure> {
    let parts: Vec<&str> = word.text.split('/').collect();
    let [weight, minimum, maximum, probability] = parts.as_slice() else {
        return Err(Failure::usage(word.span, "red/gred needs w_q/min_th/max_th/max_p"));
    };
    let threshold = |text: &str| -> Result<u32, Failure> {
        let (number, unit) = any_base(text).ok_or_else(|| wrong(word))?;
        let factor = if unit.starts_with(['K', 'k']) { 1024 } else { 1 };
        number.checked_mul(factor).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| wrong(word))
    };
    let weight = real(weight).ok_or_else(|| wrong(word))?;
    if !(weight > 0.0 && weight <= 1.0) {
        return Err(Failure::data(word.span, "0 < w_q <= 1"));
    }
    let probability = real(probability).ok_or_else(|| wrong(word))?;
    if !(0.0..=1.0).contains(&probability) {
        return Err(Failure::data(word.span, "0 <= max_p <= 1"));
    }
    Ok(RedParameters { weight, minimum: threshold(minimum)?, maximum: threshold(maximum)?, probability, ecn: false })
}
