#![forbid(unsafe_code)]
//! Active queue management: parameters of CoDel, PIE, FQ-CoDel and FQ-PIE. They take every word that follows.

use super::quantity::{number, real};
use crate::ipfw::command::{Word, Words};
use crate::ipfw::dummynet::{CodelParameters, FqParameters, PieParameters, SchedulerKind};
use crate::ipfw::failure::Failure;
use crate::suggest::did_you_mean;

/// Largest parameters of FreeBSD's dn_sched_fq_codel.c and dn_sched_fq_pie.c.
const MOST_PACKETS: u32 = 20_480;
const MOST_FLOWS: u32 = 65_536;
const MOST_QUANTUM: u32 = 9_000;

struct Reader {
    codel: CodelParameters,
    pie: PieParameters,
    fq: FqParameters,
}

impl Reader {
    fn new(ecn: bool, departure_rate: bool) -> Self {
        Self {
            codel: CodelParameters { target_us: 5_000, interval_us: 100_000, ecn },
            pie: PieParameters {
                target_us: 15_000,
                update_us: 15_000,
                alpha: 0.125,
                beta: 1.25,
                max_burst_us: 150_000,
                max_ecn_threshold: 0.1,
                ecn,
                cap_drop: true,
                derandomize: true,
                on_off: false,
                departure_rate,
            },
            fq: FqParameters { quantum: 1514, limit: 10_240, flows: 1024 },
        }
    }

    /// Takes words until the end. `pie`: parameters of PIE rather than CoDel; `fair`: with flow queues.
    fn read(mut self, words: &mut Words<'_>, pie: bool, fair: bool) -> Result<Self, Failure> {
        let plain = if pie { "pie" } else { "codel" };
        while let Some(word) = words.next() {
            match (word.text.as_str(), pie) {
                ("target", false) => self.codel.target_us = time(words, "target")?,
                ("target", true) => self.pie.target_us = time(words, "target")?,
                ("interval", false) => self.codel.interval_us = time(words, "interval")?,
                ("tupdate", true) => self.pie.update_us = time(words, "tupdate")?,
                ("max_burst", true) => self.pie.max_burst_us = time(words, "max_burst")?,
                ("max_ecnth", true) => self.pie.max_ecn_threshold = decimal(words, "max_ecnth", 1.0)?,
                ("alpha", true) => self.pie.alpha = decimal(words, "alpha", 7.0)?,
                ("beta", true) => self.pie.beta = decimal(words, "beta", 7.0)?,
                ("ecn", _) => (self.codel.ecn, self.pie.ecn) = (true, true),
                ("noecn", _) => (self.codel.ecn, self.pie.ecn) = (false, false),
                ("capdrop", true) => self.pie.cap_drop = true,
                ("nocapdrop", true) => self.pie.cap_drop = false,
                ("onoff", true) => self.pie.on_off = true,
                ("dre", true) => self.pie.departure_rate = true,
                ("ts", true) => self.pie.departure_rate = false,
                ("derand" | "drand", true) => self.pie.derandomize = true,
                ("noderand" | "nodrand", true) => self.pie.derandomize = false,
                (name @ ("quantum" | "flows"), _) if !fair => {
                    return Err(Failure::data(word.span, format!("{name} is not for {plain}")));
                }
                ("limit", _) if !fair => {
                    return Err(Failure::data(word.span, format!("limit is not for {plain}, use queue instead")));
                }
                ("quantum", _) => self.fq.quantum = whole(words, "quantum", MOST_QUANTUM)?,
                ("limit", _) => self.fq.limit = whole(words, "limit", MOST_PACKETS)?,
                ("flows", _) => self.fq.flows = whole(words, "flows", MOST_FLOWS)?,
                (other, _) => return Err(invalid(word, other, pie)),
            }
        }
        Ok(self)
    }
}

fn invalid(word: &Word, other: &str, pie: bool) -> Failure {
    const CODEL: [&str; 7] = ["target", "interval", "ecn", "noecn", "quantum", "limit", "flows"];
    const PIE: [&str; 16] = [
        "target",
        "tupdate",
        "max_burst",
        "max_ecnth",
        "alpha",
        "beta",
        "ecn",
        "noecn",
        "capdrop",
        "nocapdrop",
        "onoff",
        "dre",
        "ts",
        "quantum",
        "limit",
        "flows",
    ];
    let known: &[&str] = if pie { &PIE } else { &CODEL };
    // The original prints this and goes on, without the parameter; what was meant is not what would be in force.
    let kind = if pie { "invalid" } else { "Invalid" };
    Failure::data(word.span, format!("{} is {kind} parameter", other.escape_debug())).hint(
        did_you_mean(other, known.iter().copied())
            .unwrap_or_else(|| "these parameters come last in the command".to_owned()),
    )
}

/// A time: milliseconds without a unit, or us, ms, s.
fn time(words: &mut Words<'_>, name: &str) -> Result<u32, Failure> {
    let here = words.here();
    let needs = || Failure::data(here, format!("{name} needs time")).hint("such as 5ms");
    let word = words.next().ok_or_else(needs)?;
    let at = word.text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(word.text.len());
    let (number, unit) = word.text.split_at(at);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "us" => 1.0,
        "" | "ms" => 1_000.0,
        "s" => 1_000_000.0,
        _ => return Err(needs()),
    };
    let micros = real(number).ok_or_else(needs)? * factor;
    // The kernel's bound for each of them is ten seconds.
    if micros <= 10_000_000.0 { Ok(micros as u32) } else { Err(needs().hint("at most 10s")) }
}

fn decimal(words: &mut Words<'_>, name: &str, most: f64) -> Result<f64, Failure> {
    let here = words.here();
    let needs = || Failure::data(here, format!("{name} needs number"));
    let value = words.next().and_then(|word| real(&word.text)).filter(|&number| number >= 0.0).ok_or_else(needs)?;
    Ok(value.min(most))
}

fn whole(words: &mut Words<'_>, name: &str, most: u32) -> Result<u32, Failure> {
    let here = words.here();
    let needs = || Failure::data(here, format!("{name} needs number"));
    let value = number(words.next().ok_or_else(needs)?).map_err(|_| needs())?;
    Ok(value.clamp(1, most))
}

/// `codel ...`
pub(super) fn codel(words: &mut Words<'_>) -> Result<CodelParameters, Failure> {
    Reader::new(false, true).read(words, false, false).map(|reader| reader.codel)
}

/// `pie ...`
pub(super) fn pie(words: &mut Words<'_>) -> Result<PieParameters, Failure> {
    Reader::new(false, true).read(words, true, false).map(|reader| reader.pie)
}

/// `fq_codel ...`
pub(super) fn fq_codel(words: &mut Words<'_>) -> Result<SchedulerKind, Failure> {
    let reader = Reader::new(true, false).read(words, false, true)?;
    Ok(SchedulerKind::FqCodel(reader.fq, reader.codel))
}

/// `fq_pie ...`
pub(super) fn fq_pie(words: &mut Words<'_>) -> Result<SchedulerKind, Failure> {
    let reader = Reader::new(true, false).read(words, true, true)?;
    Ok(SchedulerKind::FqPie(reader.fq, reader.pie))
}
