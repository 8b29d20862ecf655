#![forbid(unsafe_code)]
//! The file of `profile`: an empirical distribution of extra delays (ipfw(8), "profile filename").

use super::quantity::{bandwidth, real};
use crate::ipfw::command::Word;
use crate::ipfw::dummynet::Profile;
use crate::ipfw::failure::Failure;
use crate::span::Span;

/// Most samples, and most points.
const MOST_SAMPLES: usize = 1024;
/// Longest name, in bytes.
const NAME: usize = 31;

/// A profile, and what else its file says.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFile {
    /// The distribution.
    pub profile: Profile,
    /// `bw`, in bit/s.
    pub bandwidth: Option<u64>,
    /// Warnings for standard error.
    pub warnings: Vec<String>,
}

/// Reads the text of a profile; `span` is where the command names the file.
///
/// # Errors
/// The first line that is wrong, as the original words it.
pub fn parse(name: &str, text: &str, span: Span) -> Result<ProfileFile, Failure> {
    let mut file = Reader::default();
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        last = at + 1;
        file.line(line).map_err(|reason| Failure::data(span, format!("error in {name} at line {last}: {reason}")))?;
    }
    file.finish().map_err(|reason| Failure::data(span, format!("error in {name} at line {last}: {reason}")))
}

#[derive(Default)]
struct Reader {
    samples: Option<usize>,
    loss: Option<f64>,
    name: Option<String>,
    delay_first: bool,
    in_points: bool,
    /// Probability and delay.
    points: Vec<(f64, f64)>,
    bandwidth: Option<u64>,
    warnings: Vec<String>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words =
            line.split([' ', '\t']).filter(|word| !word.is_empty()).take_while(|word| !word.starts_with('#'));
        let Some(key) = words.next() else { return Ok(()) };
        let value = words.next().ok_or_else(|| format!("missing arg for {key}"))?;
        if words.next().is_some() {
            return Err("too many arguments".to_owned());
        }
        let lower = key.to_ascii_lowercase();
        match lower.as_str() {
            "samples" if self.samples.is_some() => return Err("duplicate ``samples'' line".to_owned()),
            "samples" => {
                let samples = value.parse().ok().filter(|&n| n > 0).ok_or("invalid number of samples")?;
                if samples > MOST_SAMPLES {
                    return Err(format!("too many samples, maximum is {MOST_SAMPLES}"));
                }
                self.samples = Some(samples);
            }
            "bw" => {
                let word = Word { text: value.to_owned(), span: Span::default() };
                self.bandwidth = Some(bandwidth(&word, &mut self.warnings).map_err(|failure| failure.message)?);
            }
            "loss-level" if self.loss.is_some() => return Err(format!("duplicated token: {key}")),
            "loss-level" => {
                let loss = positive(value).ok_or_else(|| format!("invalid {value}"))?;
                if loss > 1.0 {
                    return Err(format!("{key} greater than 1.0"));
                }
                self.loss = Some(loss);
            }
            "name" if self.name.is_some() => return Err(format!("duplicated token: {key}")),
            "name" => self.name = Some(value.chars().take(NAME).collect()),
            "delay" | "prob" if self.in_points => return Err(format!("duplicated token: {key}")),
            "delay" | "prob" => {
                (self.delay_first, self.in_points) = (lower == "delay", true);
                return Ok(());
            }
            _ if self.in_points => {
                let (Some(first), Some(second)) = (positive(key), positive(value)) else {
                    return Err("invalid point found".to_owned());
                };
                let (probability, delay) = if self.delay_first { (second, first) } else { (first, second) };
                if probability > 1.0 {
                    return Err("probability greater than 1.0".to_owned());
                }
                if self.points.len() == MOST_SAMPLES {
                    return Err(format!("too many points, maximum is {MOST_SAMPLES}"));
                }
                self.points.push((probability, delay));
                return Ok(());
            }
            _ => return Err(format!("unrecognised command '{}'", key.escape_debug())),
        }
        if lower != "bw" {
            self.in_points = false;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ProfileFile, String> {
        if self.samples.is_none() {
            self.warnings.push("'samples' not found, assuming 100".to_owned());
        }
        if self.loss.is_none() {
            self.warnings.push("'loss-level' not found, assuming no loss".to_owned());
        }
        if self.points.len() < 2 {
            return Err("too few samples, need at least 2".to_owned());
        }
        self.points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let samples_ms = interpolated(&self.points, self.samples.unwrap_or(100));
        let loss_level = self.loss.unwrap_or(1.0);
        let profile = Profile { name: self.name.unwrap_or_default(), loss_level, samples_ms };
        Ok(ProfileFile { profile, bandwidth: self.bandwidth, warnings: self.warnings })
    }
}

/// A number without sign or exponent.
fn positive(text: &str) -> Option<f64> {
    text.bytes().all(|b| b.is_ascii_digit() || b == b'.').then(|| real(text)).flatten()
}

/// The curve at `count` evenly spaced probabilities.
fn interpolated(points: &[(f64, f64)], count: usize) -> Vec<u32> {
    let mut samples = vec![0; count];
    for pair in points.windows(2) {
        let [(p1, x1), (p2, x2)] = [pair[0], pair[1]];
        let (y1, y2) = (p1 * count as f64, p2 * count as f64);
        let (first, last) = (y1 as usize, (y2 as usize).min(count));
        for (at, sample) in samples.iter_mut().enumerate().take(last).skip(first) {
            let delay = if x1 == x2 || y1 == y2 { x1 } else { x1 + (at as f64 - y1) * (x2 - x1) / (y2 - y1) };
            *sample = delay.max(0.0) as u32;
        }
    }
    samples
}
