//! The control loop: the same work every time, beside what is measured, to tell when the machine was disturbed.
//!
//! On shared hosts throughput sometimes halves for seconds while the run queue looks idle. A sample counts only where the control
//! loop beside it took as long as it usually does.

#![forbid(unsafe_code)]

use std::hint::black_box;

use ferrule_dataplane::clock;
use ferrule_dataplane::packet::checksum;

use crate::ministat;

/// How far the control loop may move from its own median before a sample is dropped, as a share.
pub const TOLERANCE: f64 = 0.05;

/// Headers that the loop goes over: 40 KiB with what is beside them, more than L1 and less than L2 holds.
const HEADERS: usize = 640;
const STRIDE: usize = 64;

/// Constant work with a mix like the packet path's: checksums, and look-ups that depend on what was read.
pub struct Control {
    headers: Vec<[u8; STRIDE]>,
    table: Vec<u32>,
}

impl Default for Control {
    fn default() -> Self {
        Control::new()
    }
}

impl Control {
    /// The loop with its memory.
    pub fn new() -> Control {
        let mut x = 0x9e37_79b9_u32;
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x
        };
        let headers = (0..HEADERS).map(|_| std::array::from_fn(|_| (next() >> 24) as u8)).collect();
        Control { headers, table: (0..4096).map(|_| next()).collect() }
    }

    /// Does the work once and says how many TSC cycles a header took.
    pub fn once(&self) -> f64 {
        let start = clock::cycles();
        let mut sum = 0u32;
        for header in &self.headers {
            let check = checksum::checksum(&header[..40]);
            sum = sum.wrapping_add(self.table[usize::from(check) & 4095]).rotate_left(1);
        }
        black_box(sum);
        (clock::cycles().wrapping_sub(start)) as f64 / HEADERS as f64
    }

    /// Cycles per header, the median of a few times.
    pub fn measure(&self) -> f64 {
        let times: Vec<f64> = (0..9).map(|_| self.once()).collect();
        ministat::median(&times).unwrap_or_default()
    }
}

/// Which samples were disturbed, by what the control loop read beside each: those further than [`TOLERANCE`] from the median.
pub fn disturbed(readings: &[f64]) -> Vec<bool> {
    let usual = ministat::median(readings).unwrap_or_default();
    readings.iter().map(|reading| (reading - usual).abs() > TOLERANCE * usual).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_far_from_the_median_is_disturbed() {
        assert_eq!(disturbed(&[10.0, 10.4, 20.0, 9.6, 9.4]), [false, false, true, false, true]);
        assert_eq!(disturbed(&[10.0, 10.1]), [false, false]);
        assert!(disturbed(&[]).is_empty());
    }

    #[test]
    fn the_loop_takes_time() {
        assert!(Control::new().measure() > 1.0);
    }
}
