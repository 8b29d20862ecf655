//! The rate limiter: a burst every so often, without drift. Knows no clock, so that tests run it in virtual time.

#![forbid(unsafe_code)]

use ferrule_dataplane::clock::Nanos;

/// Bursts at a rate.
#[derive(Clone, Debug)]
pub struct Pacer {
    rate: u64,
    burst: u64,
    start: Nanos,
    /// Bursts granted since `start`.
    granted: u64,
}

impl Pacer {
    /// `rate` packets a second in bursts of at most `burst`; as in pkt-gen, a burst is never more than a 300th of the rate,
    /// so that there is something every few milliseconds. The first burst is due at `start`.
    pub fn new(rate: u64, burst: usize, start: Nanos) -> Pacer {
        let burst = (burst as u64).min(rate / 300).max(1);
        Pacer { rate: rate.max(1), burst, start, granted: 0 }
    }

    /// Packets in a burst.
    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// When the next burst is due.
    pub fn due_at(&self) -> Nanos {
        let after = u128::from(self.granted) * u128::from(self.burst) * 1_000_000_000 / u128::from(self.rate);
        self.start + after as Nanos
    }

    /// Takes a burst if one is due: how many packets may be sent now. Bursts missed while the device was busy are made up for,
    /// at most a tenth of a second's worth.
    pub fn take(&mut self, now: Nanos) -> u64 {
        let due = self.due_at();
        if now < due {
            return 0;
        }
        let late = now - due;
        const FORGIVEN: Nanos = 100_000_000;
        if late > FORGIVEN {
            self.start += late - FORGIVEN;
        }
        self.granted += 1;
        self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets sent from `from` on until `until`, looked at every `step`.
    fn run(pacer: &mut Pacer, from: Nanos, until: Nanos, step: Nanos) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < until {
            loop {
                match pacer.take(now) {
                    0 => break,
                    n => sent += n,
                }
            }
            now += step;
        }
        sent
    }

    #[test]
    fn rates_are_met_over_ten_seconds_of_virtual_time() {
        for (rate, burst) in
            [(1, 512), (7, 512), (1000, 512), (1000, 1), (123_457, 512), (1_000_000, 64), (14_880_952, 512)]
        {
            let mut pacer = Pacer::new(rate, burst, 5);
            let sent = run(&mut pacer, 5, 5 + 10_000_000_000, 50_000);
            let wanted = rate * 10;
            assert!(sent.abs_diff(wanted) <= pacer.burst(), "rate {rate}: {sent} for {wanted}");
        }
    }

    #[test]
    fn no_window_of_ten_milliseconds_gets_more_than_its_share_and_a_burst() {
        let mut pacer = Pacer::new(100_000, 512, 0);
        for window in 0..500 {
            let sent = run(&mut pacer, window * 10_000_000, (window + 1) * 10_000_000, 20_000);
            assert!(sent <= 1000 + pacer.burst(), "window {window}: {sent}");
        }
    }

    #[test]
    fn a_stall_is_made_up_for_within_bounds() {
        let mut pacer = Pacer::new(100_000, 512, 0);
        let before = run(&mut pacer, 0, 1_000_000_000, 100_000);
        let after = run(&mut pacer, 9_000_000_000, 9_000_000_001, 1);
        assert!((99_000..=101_000).contains(&before));
        assert!((9_000..=11_000).contains(&after), "a tenth of a second: {after}");
    }

    #[test]
    fn bursts_are_as_in_pkt_gen() {
        assert_eq!(Pacer::new(1000, 512, 0).burst(), 3);
        assert_eq!(Pacer::new(10, 512, 0).burst(), 1);
        assert_eq!(Pacer::new(10_000_000, 512, 0).burst(), 512);
    }
}
