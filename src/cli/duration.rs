//! Times on the command line: `60s`, `5m`, `1h`, `250ms`, or a bare number of seconds.

#![forbid(unsafe_code)]

use std::time::Duration;

/// Longest time that makes sense here: a day.
const MAX: Duration = Duration::from_secs(86_400);

/// Reads a time.
///
/// # Errors
/// What is wrong with it, for clap.
pub fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is no time: write 60s, 5m or 1h"))?;
    let scale_ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("`{unit}` is no unit of time: use ms, s, m or h")),
    };
    let time = number.checked_mul(scale_ms).map(Duration::from_millis);
    time.filter(|t| !t.is_zero() && *t <= MAX).ok_or_else(|| format!("`{text}` is not between 1ms and 24h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let cases = [("60s", 60_000), ("60", 60_000), ("5m", 300_000), ("1h", 3_600_000), ("250ms", 250)];
        for (text, ms) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "s", "-1s", "0", "0s", "25h", "1d", "99999999999999999999s", "18446744073709551615h", "1.5s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
