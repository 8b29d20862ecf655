//! What a handful of repeated runs say: smallest, median, largest, how far they scatter, and whether two series differ.
//!
//! The comparison is that of ministat(1): Student's t for two samples with a pooled variance, two-sided, at 95 % confidence. A
//! difference is told only where it is larger than chance explains.

#![forbid(unsafe_code)]

use std::fmt;

use serde::{Deserialize, Serialize};

/// Figures of a series of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Runs.
    pub count: usize,
    /// Smallest.
    pub min: f64,
    /// Median: the middle one, or the mean of the two in the middle.
    pub median: f64,
    /// Largest.
    pub max: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the sample (n - 1); 0 for one run.
    pub deviation: f64,
}

impl Series {
    /// Of these values; None without any, or with one that is no number.
    pub fn of(values: &[f64]) -> Option<Series> {
        if values.is_empty() || values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|v| (v - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        Some(Series { count, min: sorted[0], median, max: sorted[count - 1], mean, deviation })
    }

    /// Largest minus smallest, as a share of the median: how noisy the runs were.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / self.median.abs() }
    }
}

/// The median; None where there is nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    Series::of(values).map(|s| s.median)
}

/// The value below which a `share` (0 to 1) of the measurements lies; between two of them, in proportion.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    (!sorted.is_empty()).then(|| quantile_of_sorted(&sorted, share))
}

fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    let place = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (below, part) = (place.floor() as usize, place.fract());
    let above = sorted[(below + 1).min(sorted.len() - 1)];
    sorted[below] + (above - sorted[below]) * part
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Mean of the second minus mean of the first.
    pub by: f64,
    /// Half the width of the interval of 95 % confidence around it; infinite where a set has less than two measurements.
    pub uncertainty: f64,
    /// The difference in percent of the first mean.
    pub percent: f64,
    /// The uncertainty in percent of the first mean.
    pub percent_uncertainty: f64,
}

impl Difference {
    /// Compares `second` with `first`.
    pub fn between(first: &Series, second: &Series) -> Difference {
        let by = second.mean - first.mean;
        let degrees = (first.count + second.count).saturating_sub(2);
        let uncertainty = if first.count < 2 || second.count < 2 {
            f64::INFINITY
        } else {
            let squares = |s: &Series| s.deviation.powi(2) * (s.count - 1) as f64;
            let pooled = ((squares(first) + squares(second)) / degrees as f64).sqrt();
            student_95(degrees) * pooled * (1.0 / first.count as f64 + 1.0 / second.count as f64).sqrt()
        };
        let percent = |v: f64| 100.0 * v / first.mean.abs();
        Difference { by, uncertainty, percent: percent(by), percent_uncertainty: percent(uncertainty) }
    }

    /// Whether the difference is larger than chance explains at 95 % confidence.
    pub fn is_proven(&self) -> bool {
        self.by.abs() > self.uncertainty
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_proven() {
            return f.write_str("no difference proven at 95.0% confidence");
        }
        write!(f, "{:+.1}% +/- {:.1}% at 95.0% confidence", self.percent, self.percent_uncertainty)
    }
}

/// Quantiles of Student's t for 1 to 30 degrees of freedom, two-sided 95 % (any table of statistics).
const STUDENT_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];
/// The same quantile of the normal distribution.
const NORMAL_95: f64 = 1.959_964;

/// The two-sided 95 % quantile of Student's t.
fn student_95(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1..=30 => STUDENT_95[degrees - 1],
        _ => {
            // Cornish and Fisher's expansion around the normal quantile; at 31 degrees it is right to four digits.
            let (z, n) = (NORMAL_95, degrees as f64);
            let first = (z.powi(3) + z) / (4.0 * n);
            let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n);
            z + first + second
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_and_even_counts() {
        let s = Series::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!((s.count, s.min, s.median, s.max, s.mean, s.deviation), (3, 1.0, 3.0, 5.0, 3.0, 2.0));
        assert_eq!(s.spread(), 4.0 / 3.0);
        let s = Series::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(s.median, 2.5);
        assert!((s.deviation - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(Series::of(&[7.0]).unwrap().deviation, 0.0);
    }

    #[test]
    fn nothing_and_no_numbers_are_refused() {
        assert_eq!(Series::of(&[]), None);
        assert_eq!(Series::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn quantiles_lie_between_the_measurements() {
        assert_eq!(quantile(&[0.0, 10.0], 0.1), Some(1.0));
        assert_eq!(quantile(&[], 0.1), None);
    }

    /// The example of ministat's manual page, iguana and chameleon, and its own answer.
    #[test]
    fn the_answer_is_ministats() {
        let iguana = Series::of(&[50.0, 200.0, 150.0, 400.0, 750.0, 400.0, 150.0]).unwrap();
        let chameleon = Series::of(&[150.0, 400.0, 720.0, 500.0, 930.0]).unwrap();
        let d = Difference::between(&iguana, &chameleon);
        assert!((iguana.mean - 300.0).abs() < 1e-9 && (iguana.deviation - 238.047_61).abs() < 1e-4);
        assert!((chameleon.mean - 540.0).abs() < 1e-9 && (chameleon.deviation - 299.081_93).abs() < 1e-4);
        assert!(!d.is_proven(), "{d:?}");
        assert_eq!(d.to_string(), "no difference proven at 95.0% confidence");
    }

    #[test]
    fn a_clear_difference_is_proven_and_its_size_told() {
        let a = Series::of(&[100.0, 101.0, 99.0, 100.0, 100.0]).unwrap();
        let b = Series::of(&[110.0, 111.0, 109.0, 110.0, 110.0]).unwrap();
        let d = Difference::between(&a, &b);
        // Pooled deviation sqrt(0.5), t(8) 2.306: 2.306 * 0.70711 * sqrt(2/5) = 1.0313.
        assert!(d.is_proven() && (d.by - 10.0).abs() < 1e-9 && (d.uncertainty - 1.0313).abs() < 1e-3, "{d:?}");
        assert_eq!(d.to_string(), "+10.0% +/- 1.0% at 95.0% confidence");
    }

    #[test]
    fn one_measurement_proves_nothing() {
        let (a, b) = (Series::of(&[1.0]).unwrap(), Series::of(&[2.0]).unwrap());
        assert!(!Difference::between(&a, &b).is_proven());
    }

    #[test]
    fn the_expansion_continues_the_table() {
        assert!((student_95(31) - 2.0395).abs() < 5e-4, "{}", student_95(31));
        assert!((student_95(100) - 1.9840).abs() < 5e-4);
        assert!(student_95(30) > student_95(31) && student_95(1_000_000) - NORMAL_95 < 1e-5);
    }

    proptest! {
        #[test]
        fn a_shift_moves_everything_but_the_spread(values in proptest::collection::vec(-1e6..1e6f64, 2..40), by in -1e6..1e6f64) {
            let moved: Vec<f64> = values.iter().map(|v| v + by).collect();
            let (a, b) = (Series::of(&values).unwrap(), Series::of(&moved).unwrap());
            prop_assert!((b.median - a.median - by).abs() < 1e-6 && (b.deviation - a.deviation).abs() < 1e-6);
            prop_assert!(a.min <= a.median && a.median <= a.max);
            let (there, back) = (Difference::between(&a, &b), Difference::between(&b, &a));
            prop_assert!((there.by + back.by).abs() < 1e-9 && there.is_proven() == back.is_proven());
        }
    }
}
