//! Token buckets.

#![forbid(unsafe_code)]

use crate::clock::Nanos;

/// A token bucket: `rate` events a second, bursts up to `burst`. Integer arithmetic, no drift: credit is kept in nanoseconds.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    cost: Nanos,
    depth: Nanos,
    credit: Nanos,
    last: Nanos,
}

impl TokenBucket {
    /// `rate` a second (0: never), `burst` at once; starts full.
    pub fn new(rate: u32, burst: u32) -> TokenBucket {
        if rate == 0 {
            return TokenBucket { cost: u64::MAX, depth: 0, credit: 0, last: 0 };
        }
        let cost = 1_000_000_000 / u64::from(rate).min(1_000_000_000);
        let depth = cost * u64::from(burst.max(1));
        TokenBucket { cost, depth, credit: depth, last: 0 }
    }

    /// Takes one token at time `now`; false when there is none.
    #[inline]
    pub fn take(&mut self, now: Nanos) -> bool {
        let passed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        self.credit = self.credit.saturating_add(passed).min(self.depth);
        if self.credit < self.cost {
            return false;
        }
        self.credit -= self.cost;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_then_rate() {
        let mut bucket = TokenBucket::new(1000, 10);
        assert_eq!((0..20).filter(|_| bucket.take(5)).count(), 10);
        let passed = (1..=1_000_000u64).filter(|us| bucket.take(5 + us * 1000)).count();
        assert_eq!(passed, 1000);
    }

    #[test]
    fn rate_zero_never_and_time_going_back_gives_nothing() {
        assert!(!TokenBucket::new(0, 10).take(1 << 60));
        let mut bucket = TokenBucket::new(1, 1);
        assert!(bucket.take(10_000_000_000));
        assert!(!bucket.take(5) && !bucket.take(10_000_000_001));
    }
}
