//! What a handful of repeated runs say: smallest, median, largest, and how far they scatter.

#![forbid(unsafe_code)]

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
