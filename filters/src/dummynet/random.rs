#![forbid(unsafe_code)]
//! The shaper's dice: xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016). Seeded, so
//! that a test sees the same losses each time; no secret depends on it.

/// A generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for the same seed.
    pub(crate) fn new(seed: u64) -> Random {
        // The state must not be zero; the multiplication spreads small seeds over all bits.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Evenly spread over 0 (included) to 1 (excluded).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Evenly spread over 0 to `below` - 1; 0 when `below` is 0.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        ((u128::from(self.next()) * below as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_repeatable() {
        let mut random = Random::new(7);
        let n = 100_000;
        let mean = (0..n).map(|_| random.unit()).sum::<f64>() / f64::from(n);
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        let mut hits = [0u32; 10];
        (0..n).for_each(|_| hits[random.below(10)] += 1);
        assert!(hits.iter().all(|&h| (9_500..10_500).contains(&h)), "{hits:?}");
        assert_eq!(Random::new(3).next(), Random::new(3).next());
        assert_ne!(Random::new(3).next(), Random::new(4).next());
    }
}
