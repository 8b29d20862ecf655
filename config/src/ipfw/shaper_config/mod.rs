#![forbid(unsafe_code)]
//! `pipe|queue|sched N config ...`, read as ipfw(8) does.

mod active;
mod mask;
mod profile;
mod quantity;
#[cfg(test)]
mod tests;

pub use profile::parse as parse_profile;

use super::command::{DummynetKind, Word, Words};
use super::dummynet::{
    DummynetConfig, FlowMask, FlowSet, PipeConfig, QueueConfig, QueueManagement, QueueSize, RedParameters,
    SchedulerConfig, SchedulerKind, SchedulerParameters,
};
use super::failure::{Failure, unrecognised};
use crate::span::Span;

const OPTIONS: [&str; 27] = [
    "plr",
    "noerror",
    "buckets",
    "weight",
    "lmax",
    "maxlen",
    "mask",
    "sched_mask",
    "flow_mask",
    "droptail",
    "ecn",
    "red",
    "gred",
    "codel",
    "pie",
    "bw",
    "bandwidth",
    "delay",
    "pipe",
    "link",
    "queue",
    "sched",
    "pri",
    "priority",
    "type",
    "profile",
    "burst",
];

/// What the command needs to know besides its words.
pub struct ShaperContext<'a> {
    /// Most slots of a queue (`net.inet.ip.dummynet.pipe_slot_limit`, 100).
    pub slot_limit: u32,
    /// Most bytes of a queue (`net.inet.ip.dummynet.pipe_byte_limit`, 1 MiB).
    pub byte_limit: u32,
    /// Reads the file of `profile`; an error is its text.
    pub read_file: &'a dyn Fn(&str) -> Result<String, String>,
}

/// A configuration, and what there is to say about it. A queue's scheduler is 0 where none was named: that of the queue that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedConfig {
    /// The object.
    pub config: DummynetConfig,
    /// Warnings for standard error.
    pub warnings: Vec<String>,
}

/// What the options say, whatever the object is.
#[derive(Default)]
struct Settings {
    size: Option<QueueSize>,
    loss_rate: f64,
    no_error: bool,
    mask: Option<FlowMask>,
    buckets: u32,
    management: Option<QueueManagement>,
    red: Option<RedParameters>,
    gentle: bool,
    ecn: Option<Span>,
    bandwidth: Option<u64>,
    delay_ms: u32,
    burst: u64,
    profile: Option<super::dummynet::Profile>,
    kind: Option<SchedulerKind>,
    weight: Option<u32>,
    longest: Option<u32>,
    parent: Option<u32>,
}

/// Reads the options of an object.
///
/// # Errors
/// What is wrong, with the original's words and exit code.
pub fn parse(
    kind: DummynetKind,
    number: u32,
    words: &[Word],
    end: Span,
    context: &ShaperContext<'_>,
) -> Result<ParsedConfig, Failure> {
    let mut reader = Reader { kind, context, warnings: Vec::new(), settings: Settings::default() };
    let mut words = Words::new(words, end);
    while let Some(word) = words.next() {
        reader.option(word, &mut words)?;
    }
    reader.finish(number, end)
}

struct Reader<'a> {
    kind: DummynetKind,
    context: &'a ShaperContext<'a>,
    warnings: Vec<String>,
    settings: Settings,
}

impl Reader<'_> {
    fn only(&self, allowed: &[DummynetKind], word: &Word, message: &str) -> Result<(), Failure> {
        if allowed.contains(&self.kind) { Ok(()) } else { Err(Failure::usage(word.span, message)) }
    }

    fn option(&mut self, word: &Word, words: &mut Words<'_>) -> Result<(), Failure> {
        use DummynetKind::{Pipe, Scheduler};
        match word.text.as_str() {
            "noerror" => self.settings.no_error = true,
            "plr" => {
                let value = need(words, "plr needs argument 0..1")?;
                self.settings.loss_rate = quantity::fraction(value)?.clamp(0.0, 1.0);
            }
            "queue" => {
                let value = need(words, "queue needs queue size")?;
                self.settings.size = Some(quantity::queue_size(value)?);
            }
            "buckets" => self.settings.buckets = quantity::number(need(words, "buckets needs argument")?)?,
            "mask" | "sched_mask" | "flow_mask" => self.settings.mask = Some(mask::parse(words)?),
            "codel" => self.settings.management = Some(QueueManagement::Codel(active::codel(words)?)),
            "pie" => self.settings.management = Some(QueueManagement::Pie(active::pie(words)?)),
            "fq_codel" | "fq_pie" => {
                self.only(&[Pipe, Scheduler], word, "fq_codel/fq_pie is only for schd")?;
                self.settings.kind = Some(scheduler_kind(word, words)?);
            }
            "red" | "gred" => {
                let value = need(words, "red/gred needs w_q/min_th/max_th/max_p")?;
                self.settings.red = Some(quantity::red(value)?);
                self.settings.gentle = word.text == "gred";
            }
            "ecn" => self.settings.ecn = Some(word.span),
            "droptail" => (self.settings.red, self.settings.gentle) = (None, false),
            "bw" | "bandwidth" => {
                self.only(&[Pipe], word, "bw is only for links")?;
                let value = need(words, "bw needs bandwidth or interface")?;
                if self.settings.bandwidth.is_some() {
                    self.warnings.push("duplicate token, override bandwidth value!".to_owned());
                }
                self.settings.bandwidth = Some(quantity::bandwidth(value, &mut self.warnings)?);
            }
            "delay" => {
                self.only(&[Pipe], word, "delay is only for links")?;
                let value = need(words, "delay needs argument 0..10000ms")?;
                self.settings.delay_ms = quantity::number(value)?;
                if self.settings.delay_ms > 10_000 {
                    return Err(Failure::data(value.span, "delay must be < 10000"));
                }
            }
            "type" => {
                self.only(&[Pipe, Scheduler], word, "type is only for schedulers")?;
                let value = need(words, "type needs a string")?;
                self.settings.kind = Some(scheduler_kind(value, words)?);
            }
            "weight" => self.settings.weight = Some(quantity::number(need(words, "weight needs argument")?)?),
            "lmax" | "maxlen" => self.settings.longest = Some(quantity::number(need(words, "lmax needs argument")?)?),
            "pri" | "priority" => {
                quantity::number(need(words, "priority needs argument")?)?;
                self.warnings.push("priority has no effect with any scheduler; PRIO goes by weight".to_owned());
            }
            "pipe" | "sched" => {
                let value = need(words, "pipe/link/sched needs number")?;
                self.settings.parent = Some(quantity::number(value)?);
            }
            "profile" => {
                self.only(&[Pipe], word, "profile")?;
                let value = need(words, "extra delay needs the file name")?;
                if self.settings.profile.is_some() {
                    return Err(Failure::usage(word.span, "profile already set"));
                }
                self.profile(value)?;
            }
            "burst" => {
                self.only(&[Pipe], word, "burst")?;
                self.settings.burst = quantity::burst(need(words, "burst needs argument")?)?;
            }
            other => return Err(unrecognised(other, word.span, OPTIONS)),
        }
        Ok(())
    }

    fn profile(&mut self, word: &Word) -> Result<(), Failure> {
        let text = (self.context.read_file)(&word.text).map_err(|reason| {
            let message = format!("fopen: {}: {reason}", word.text.escape_debug());
            Failure::new(super::failure::exit::UNAVAILABLE, word.span, message)
        })?;
        let file = profile::parse(&word.text, &text, word.span)?;
        self.warnings.extend(file.warnings);
        if let Some(bandwidth) = file.bandwidth {
            self.settings.bandwidth = Some(bandwidth);
        }
        self.settings.profile = Some(file.profile);
        Ok(())
    }

    fn finish(self, number: u32, end: Span) -> Result<ParsedConfig, Failure> {
        let settings = self.settings;
        let size = checked_size(settings.size, self.context, end)?;
        let mut management = settings.management.unwrap_or(QueueManagement::DropTail);
        if let Some(mut red) = settings.red {
            red.ecn = settings.ecn.is_some();
            check_red(&red, end)?;
            management = if settings.gentle { QueueManagement::Gred(red) } else { QueueManagement::Red(red) };
        }
        if let (Some(span), QueueManagement::DropTail) = (settings.ecn, management) {
            return Err(Failure::usage(span, "ECN can be used with red/gred/codel/fq_codel only!"));
        }
        let has_mask = settings.mask.is_some_and(|mask| mask != FlowMask::NONE);
        let buckets = match (has_mask, settings.buckets) {
            (false, _) => 1,
            (true, 0) => 64,
            (true, buckets) => buckets.min(65_536),
        };
        let mask = settings.mask.unwrap_or(FlowMask::NONE);
        let queue =
            FlowSet { size, loss_rate: settings.loss_rate, mask, buckets, no_error: settings.no_error, management };
        let config = match self.kind {
            DummynetKind::Pipe => DummynetConfig::Pipe(PipeConfig {
                number,
                bandwidth: settings.bandwidth.unwrap_or(0),
                delay_ms: settings.delay_ms,
                burst: settings.burst,
                profile: settings.profile,
                queue,
                scheduler: settings.kind.map(|kind| SchedulerParameters { kind, mask: FlowMask::NONE }),
            }),
            DummynetKind::Queue => DummynetConfig::Queue(QueueConfig {
                number,
                scheduler: settings.parent.unwrap_or(0),
                weight: settings.weight.unwrap_or(1).max(1),
                longest: settings.longest.unwrap_or(0),
                queue,
            }),
            DummynetKind::Scheduler => DummynetConfig::Scheduler(SchedulerConfig {
                number,
                pipe: settings.parent.filter(|&pipe| pipe != 0),
                parameters: SchedulerParameters { kind: settings.kind.unwrap_or(SchedulerKind::Wf2qPlus), mask },
                queue: FlowSet { mask: FlowMask::NONE, buckets: 1, ..queue },
            }),
        };
        Ok(ParsedConfig { config, warnings: self.warnings })
    }
}

fn need<'a>(words: &mut Words<'a>, message: &str) -> Result<&'a Word, Failure> {
    let here = words.here();
    words.next().ok_or_else(|| Failure::usage(here, message))
}

fn scheduler_kind(word: &Word, words: &mut Words<'_>) -> Result<SchedulerKind, Failure> {
    Ok(match word.text.to_ascii_lowercase().as_str() {
        "fifo" => SchedulerKind::Fifo,
        "wf2q+" => SchedulerKind::Wf2qPlus,
        "qfq" => SchedulerKind::Qfq,
        "rr" => SchedulerKind::RoundRobin,
        "prio" => SchedulerKind::Priority,
        "fq_codel" => active::fq_codel(words)?,
        "fq_pie" => active::fq_pie(words)?,
        other => {
            let known = ["fifo", "wf2q+", "qfq", "rr", "prio", "fq_codel", "fq_pie"];
            let message = format!("unknown scheduler type {}", other.escape_debug());
            let hint = crate::suggest::did_you_mean(other, known);
            return Err(Failure::new(super::failure::exit::FAILED, word.span, message).maybe_hint(hint));
        }
    })
}

/// The bound of a queue within its limits (ip_dn_io.c: 50 slots, or at least 1500 bytes).
fn checked_size(size: Option<QueueSize>, context: &ShaperContext<'_>, end: Span) -> Result<QueueSize, Failure> {
    match size {
        None | Some(QueueSize::Slots(0)) => Ok(QueueSize::Slots(50)),
        Some(QueueSize::Slots(slots)) if slots > context.slot_limit => {
            Err(Failure::data(end, format!("2 <= queue size <= {}", context.slot_limit))
                .hint("raise net.inet.ip.dummynet.pipe_slot_limit"))
        }
        Some(QueueSize::Bytes(bytes)) if bytes > context.byte_limit => {
            Err(Failure::data(end, format!("queue size must be < {}B", context.byte_limit))
                .hint("raise net.inet.ip.dummynet.pipe_byte_limit"))
        }
        Some(QueueSize::Bytes(bytes)) => Ok(QueueSize::Bytes(bytes.max(1500))),
        Some(slots) => Ok(slots),
    }
}

fn check_red(red: &RedParameters, end: Span) -> Result<(), Failure> {
    let (low, high) = (red.minimum, red.maximum);
    if !red.ecn && low >= high {
        return Err(Failure::data(end, format!("min_th {low} must be < than max_th {high}")));
    }
    if low > high {
        return Err(Failure::data(end, format!("min_th {low} must be =< than max_th {high}")));
    }
    if high == 0 { Err(Failure::data(end, "max_th must be > 0")) } else { Ok(()) }
}
