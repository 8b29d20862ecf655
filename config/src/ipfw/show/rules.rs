#![forbid(unsafe_code)]
//! `list` and `show`: the rules with their counters.

use std::fmt::Write;

use serde::Serialize;

use super::states::{self, StateRow};
use crate::ipfw::command::{Dynamic, List, ListRange, Options, Timestamp};
use crate::ipfw::failure::exit;
use crate::ipfw::names::Names;

/// One rule with its counters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleRow {
    /// Number.
    pub number: u16,
    /// Set.
    pub set: u8,
    /// From the action on, printed in the style that the options ask for.
    pub text: String,
    /// Packets that matched.
    pub packets: u64,
    /// Bytes that matched.
    pub bytes: u64,
    /// When it last matched, in seconds since 1970; 0 for never.
    pub last_hit_s: u32,
    /// In a disabled set.
    pub disabled: bool,
}

/// A listing and how it went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Standard output.
    pub stdout: String,
    /// Lines for standard error, without the program's name.
    pub stderr: Vec<String>,
    /// Exit code.
    pub exit: u8,
}

/// What is listed, besides the rows.
#[derive(Clone, Copy)]
pub struct ListContext<'a> {
    /// Options of the command.
    pub options: &'a Options,
    /// Names of protocols.
    pub names: &'a dyn Names,
    /// Seconds east of UTC, for `-t`.
    pub utc_offset_s: i32,
}

/// Widths of the counters' columns; 0 without counters.
#[derive(Clone, Copy, Default)]
pub(super) struct Widths {
    pub(super) packets: usize,
    pub(super) bytes: usize,
}

impl Widths {
    fn take(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.max(digits(packets));
        self.bytes = self.bytes.max(digits(bytes));
    }
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Lists rules (in their order, the last one included) and, where the options ask for them, dynamic rules.
pub fn list(request: &List, rules: &[RuleRow], states: &[StateRow], context: ListContext<'_>) -> Listed {
    let options = context.options;
    let in_set = |set: u8| request.set.is_none_or(|wanted| wanted == set);
    let static_rules = options.dynamic != Dynamic::Only;
    let mut widths = Widths::default();
    if request.counters {
        rules.iter().filter(|row| static_rules && in_set(row.set)).for_each(|row| widths.take(row.packets, row.bytes));
        if options.dynamic != Dynamic::No {
            states.iter().filter(|row| in_set(row.set)).for_each(|row| widths.take(row.packets, row.bytes));
        }
    }
    let mut out = Listed::default();
    let everything = [ListRange::Numbers(0, u32::from(u16::MAX))];
    let ranges = if request.ranges.is_empty() { &everything[..] } else { &request.ranges };
    for range in ranges {
        let (first, last) = match range {
            ListRange::Numbers(first, last) => (*first, *last),
            ListRange::Invalid(text) => {
                out.exit = exit::USAGE;
                out.stderr.push(format!("invalid rule number: {}", text.escape_debug()));
                continue;
            }
        };
        if !static_rules {
            continue;
        }
        let start = rules.partition_point(|row| u32::from(row.number) < first);
        let wanted =
            rules[start..].iter().take_while(|row| u32::from(row.number) <= last).filter(|row| in_set(row.set));
        let mut seen = false;
        for row in wanted {
            seen = true;
            line(&mut out.stdout, row, widths, context);
        }
        if !seen && !request.ranges.is_empty() {
            if out.exit == exit::OK {
                out.exit = exit::UNAVAILABLE;
            }
            out.stderr.push(if first == last {
                format!("rule {first} does not exist")
            } else {
                format!("no rules in range {first}-{last}")
            });
        }
    }
    if options.dynamic != Dynamic::No && !states.is_empty() {
        if request.ranges.is_empty() {
            let _ = writeln!(out.stdout, "## Dynamic rules ({} {}):", states.len(), states::dump_size(states.len()));
        } else {
            out.stdout.push_str("## Dynamic rules:\n");
        }
        for range in ranges {
            let ListRange::Numbers(first, last) = *range else { continue };
            let wanted = states.iter().filter(|row| (first..=last).contains(&u32::from(row.rule)) && in_set(row.set));
            wanted.for_each(|row| states::line(&mut out.stdout, row, widths, context));
        }
    }
    out
}

fn line(out: &mut String, row: &RuleRow, widths: Widths, context: ListContext<'_>) {
    if row.disabled {
        if !context.options.sets {
            return;
        }
        out.push_str("# DISABLED ");
    }
    let _ = write!(out, "{:05} ", row.number);
    if widths.packets > 0 {
        let _ = write!(out, "{:>1$} {2:>3$} ", row.packets, widths.packets, row.bytes, widths.bytes);
    }
    match context.options.time {
        Timestamp::None => {}
        Timestamp::Numeric => {
            let _ = write!(out, "{:>10} ", row.last_hit_s);
        }
        Timestamp::Text if row.last_hit_s == 0 => {
            let _ = write!(out, "{:24}", "");
        }
        Timestamp::Text => {
            let _ = write!(out, "{} ", date(i64::from(row.last_hit_s) + i64::from(context.utc_offset_s)));
        }
    }
    if context.options.sets {
        let _ = write!(out, "set {} ", row.set);
    }
    let _ = writeln!(out, "{}", row.text);
}

/// Seconds since 1970 as ctime(3) writes them: `Thu Jan  1 00:00:00 1970`.
pub fn date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to civil date, counted from 1 March of year 0 (proleptic Gregorian calendar).
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 2, 0) } else { (month - 10, 1) };
    let year = year_of_era + era * 400 + carry;
    let weekday = DAYS[days.rem_euclid(7) as usize];
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{weekday} {} {day:>2} {hour:02}:{minute:02}:{second:02} {year}", MONTHS[month as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::names::builtin;

    fn row(number: u16, set: u8, text: &str, packets: u64, bytes: u64) -> RuleRow {
        RuleRow { number, set, text: text.to_owned(), packets, bytes, last_hit_s: 0, disabled: set == 7 }
    }

    fn rows() -> Vec<RuleRow> {
        vec![
            row(100, 0, "allow ip from any to any", 5, 420),
            row(100, 7, "count ip from any to any", 1, 1),
            row(300, 2, "deny tcp from any to any 25", 12_345, 6),
            row(65535, 31, "deny ip from any to any", 0, 0),
        ]
    }

    fn listed(options: Options, set: Option<u8>, counters: bool, ranges: &[ListRange]) -> Listed {
        let request = List { set, counters, ranges: ranges.to_vec() };
        list(&request, &rows(), &[], ListContext { options: &options, names: builtin(), utc_offset_s: 0 })
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_counter() {
        let out = listed(Options::default(), None, true, &[]).stdout;
        assert_eq!(
            out,
            "00100     5 420 allow ip from any to any\n\
             00300 12345   6 deny tcp from any to any 25\n\
             65535     0   0 deny ip from any to any\n"
        );
        let out = listed(Options { sets: true, ..Options::default() }, Some(7), true, &[]).stdout;
        assert_eq!(out, "# DISABLED 00100 1 1 set 7 count ip from any to any\n");
    }

    #[test]
    fn missing_and_wrong_numbers_are_told() {
        let ranges = [ListRange::Numbers(200, 299), ListRange::Numbers(300, 300), ListRange::Numbers(5, 5)];
        let out = listed(Options::default(), None, false, &ranges);
        assert_eq!((out.stdout.as_str(), out.exit), ("00300 deny tcp from any to any 25\n", 69));
        assert_eq!(out.stderr, ["no rules in range 200-299", "rule 5 does not exist"]);
        let out = listed(Options::default(), None, false, &[ListRange::Invalid("x".into()), ListRange::Numbers(1, 1)]);
        assert_eq!(out.exit, 64, "the first error decides");
    }

    #[test]
    fn times_are_shown_as_ctime_and_as_numbers() {
        assert_eq!(date(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(date(1_078_099_199), "Sun Feb 29 23:59:59 2004");
        assert_eq!(date(1_764_531_254), "Sun Nov 30 19:34:14 2025");
        assert_eq!(date(951_868_800), "Wed Mar  1 00:00:00 2000");
        let numeric = Options { time: Timestamp::Numeric, ..Options::default() };
        assert_eq!(listed(numeric, Some(0), false, &[]).stdout, "00100          0 allow ip from any to any\n");
        let text = Options { time: Timestamp::Text, ..Options::default() };
        assert_eq!(listed(text, Some(0), false, &[]).stdout, format!("00100 {:24}allow ip from any to any\n", ""));
    }
}
