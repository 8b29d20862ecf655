//! How samples are taken: again and again beside the control loop, and without those in which it moved.

#![forbid(unsafe_code)]

use ferrule::compare::control::{self, Control};
use ferrule::compare::machine;
use ferrule::compare::progress;
use ferrule::failure::Failure;

use crate::rows::Samples;

/// The set-up of the whole run.
pub struct Bench {
    /// A smoke run: everything once, with small numbers; the figures mean nothing.
    pub quick: bool,
    /// The cores that this process was given.
    pub cores: Vec<usize>,
    /// The core that is measured on.
    pub core: usize,
    /// Another core, where there is one: generators and second workers.
    pub other: Option<usize>,
    /// Samples of each row.
    pub samples: usize,
    control: Control,
}

impl Bench {
    /// Pins this thread to the last core.
    ///
    /// # Errors
    /// When it cannot be pinned: the figures would be of no use.
    pub fn new(quick: bool) -> Result<Bench, Failure> {
        let cores = machine::cores();
        let core = machine::pin(None)?.ok_or_else(|| Failure::runtime("cannot pin to a core"))?;
        let other = cores.iter().copied().rfind(|other| *other != core);
        Ok(Bench { quick, cores, core, other, samples: if quick { 1 } else { 7 }, control: Control::new() })
    }

    /// `full`, or in a quick run the smaller number.
    pub fn size(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// Takes samples until enough are undisturbed, at most half as many again; each may hold several figures measured in turn.
    ///
    /// # Errors
    /// That of the first sample that fails.
    pub fn take<T>(
        &self,
        what: &str,
        samples: usize,
        mut sample: impl FnMut() -> Result<T, Failure>,
    ) -> Result<Samples<T>, Failure> {
        let (mut taken, mut readings) = (Vec::new(), Vec::new());
        let judge = |readings: &[f64]| -> Vec<bool> {
            control::disturbed(readings).chunks(2).map(|before_and_after| before_and_after.contains(&true)).collect()
        };
        for attempt in 1..=samples + samples.div_ceil(2) {
            progress(&format!("{what}: sample {attempt} of {}", samples.max(attempt)));
            readings.push(self.control.measure());
            taken.push(sample()?);
            readings.push(self.control.measure());
            if attempt >= samples && judge(&readings).iter().filter(|moved| !**moved).count() >= samples {
                break;
            }
        }
        progress("");
        let total = taken.len();
        let mut all: Vec<(bool, T)> = judge(&readings).into_iter().zip(taken).collect();
        // Undisturbed ones first, in their order; the others only where those are too few.
        all.sort_by_key(|(moved, _)| *moved);
        let undisturbed = all.iter().filter(|(moved, _)| !moved).count();
        let kept: Vec<T> = all.into_iter().take(samples).map(|(_, sample)| sample).collect();
        let disturbed = kept.len().saturating_sub(undisturbed);
        Ok(Samples { dropped: total - undisturbed - disturbed, disturbed, kept })
    }
}
