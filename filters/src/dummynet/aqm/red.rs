#![forbid(unsafe_code)]
//! RED (Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993) and gentle RED (Floyd 2000): drops that
//! grow with the average length of the queue, spread evenly over the packets.
//!
//! As FreeBSD has it: with `ecn` every packet beyond the lower threshold is marked, and dropped where its sender cannot read marks;
//! a queue in bytes scales the chance by the packet's length over 1,500.

use super::Advice;
use crate::dummynet::random::Random;
use ferrule_config::ipfw::dummynet::RedParameters;
use ferrule_dataplane::clock::Nanos;

/// net.inet.ip.dummynet.red_avg_pkt_size: the packet that an idle link would have sent meanwhile, in bytes.
const AVERAGE_PACKET: u64 = 512;
/// net.inet.ip.dummynet.red_max_pkt_size, in bytes.
const LONGEST_PACKET: f64 = 1500.0;

/// Memory of one queue.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The average, in the unit of the queue's bound.
    average: f64,
    /// Packets since the last drop; None while below the lower threshold.
    since: Option<u32>,
    /// How far the chances may add up before the next drop: even over 0 to 1.
    patience: f64,
    /// When the queue ran empty.
    idle_since: Nanos,
}

impl Default for State {
    fn default() -> State {
        State { average: 0.0, since: None, patience: 0.0, idle_since: 0 }
    }
}

/// What a packet comes to.
pub(crate) struct Arrival {
    /// Length of the queue in the unit of its bound.
    pub size: u64,
    /// Whether that unit is bytes.
    pub in_bytes: bool,
    /// Bytes of the packet.
    pub length: u32,
    /// bit/s of the link; 0 is no limit.
    pub bandwidth: u64,
    pub now: Nanos,
}

impl State {
    /// The queue ran empty.
    pub(crate) fn emptied(&mut self, now: Nanos) {
        self.idle_since = now;
    }

    #[cfg(test)]
    pub(crate) fn average(&self) -> f64 {
        self.average
    }

    /// Judges a packet that comes.
    pub(crate) fn arrive(&mut self, p: &RedParameters, gentle: bool, at: &Arrival, random: &mut Random) -> Advice {
        self.update(p, at);
        let Some(mut chance) = self.chance(p, gentle) else {
            self.since = None;
            return Advice::Keep;
        };
        if p.ecn && self.average > f64::from(p.minimum) {
            return Advice::Mark;
        }
        if chance >= 1.0 {
            self.since = None;
            return Advice::Drop;
        }
        if at.in_bytes {
            chance *= f64::from(at.length) / LONGEST_PACKET;
        }
        let since = self.since.map_or(0, |n| n.saturating_add(1));
        self.since = Some(since);
        if since == 0 {
            self.patience = random.unit();
        } else if chance * f64::from(since) > self.patience {
            self.since = Some(0);
            self.patience = random.unit();
            return Advice::Drop;
        }
        Advice::Keep
    }

    fn update(&mut self, p: &RedParameters, at: &Arrival) {
        if at.size > 0 {
            self.average += p.weight * (at.size as f64 - self.average);
        } else if self.average > 0.0 {
            // As if small packets had found the queue empty since: (1 - w) ^ (idle / s).
            let missed =
                at.now.saturating_sub(self.idle_since) as f64 * at.bandwidth as f64 / (AVERAGE_PACKET * 8) as f64 / 1e9;
            self.average *= (1.0 - p.weight).powf(if at.bandwidth == 0 { f64::INFINITY } else { missed });
        }
    }

    /// Chance of a drop for the average as it is; None below the lower threshold.
    fn chance(&self, p: &RedParameters, gentle: bool) -> Option<f64> {
        let (least, most) = (f64::from(p.minimum), f64::from(p.maximum));
        if self.average < least {
            None
        } else if self.average < most {
            Some(p.probability * (self.average - least) / (most - least))
        } else if gentle {
            // From max_p at the upper threshold to 1 at twice that.
            Some((p.probability + (1.0 - p.probability) * (self.average - most) / most).min(1.0))
        } else {
            Some(1.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: RedParameters = RedParameters { weight: 0.002, minimum: 5, maximum: 15, probability: 0.1, ecn: false };

    fn at(size: u64) -> Arrival {
        Arrival { size, in_bytes: false, length: 1500, bandwidth: 1_000_000, now: 0 }
    }

    /// Share of packets dropped while the average stands at `average`.
    fn rate(p: &RedParameters, gentle: bool, average: f64, length: u32, in_bytes: bool) -> f64 {
        let (mut state, mut random) = (State { average, ..State::default() }, Random::new(5));
        let p = RedParameters { weight: 0.0, ..*p };
        let n = 200_000;
        let arrival = Arrival { size: 1, in_bytes, length, bandwidth: 0, now: 0 };
        (0..n).filter(|_| state.arrive(&p, gentle, &arrival, &mut random) == Advice::Drop).count() as f64 / f64::from(n)
    }

    /// Intervals between drops are even over 1 to 1/p (Floyd and Jacobson, section 7, method 2): (1/p + 1) / 2 packets on average.
    fn expected(chance: f64) -> f64 {
        2.0 * chance / (1.0 + chance)
    }

    #[test]
    fn the_curve_is_linear_between_the_thresholds_and_full_above() {
        assert_eq!(rate(&P, false, 4.99, 1500, false), 0.0);
        for (average, chance) in [(7.5, 0.025), (10.0, 0.05), (14.9, 0.099)] {
            let found = rate(&P, false, average, 1500, false);
            assert!((found / expected(chance) - 1.0).abs() < 0.05, "{average}: {found} for {}", expected(chance));
        }
        assert_eq!(rate(&P, false, 15.0, 1500, false), 1.0);
    }

    #[test]
    fn gentle_red_goes_on_to_twice_the_upper_threshold() {
        for (average, chance) in [(15.0, 0.1), (22.5, 0.55)] {
            let found = rate(&P, true, average, 1500, false);
            // Above 1/2 the interval between drops is a small whole number; the definition is checked where it is fine enough.
            if chance < 0.2 {
                assert!((found / expected(chance) - 1.0).abs() < 0.06, "{average}: {found}");
            } else {
                assert!(found > 0.6 && found < 0.9, "{average}: {found}");
            }
        }
        assert_eq!(rate(&P, true, 30.0, 1500, false), 1.0);
    }

    #[test]
    fn in_bytes_the_chance_goes_with_the_length() {
        let long = rate(&P, false, 10.0, 1500, true);
        let short = rate(&P, false, 10.0, 150, true);
        assert!((long / short / 10.0 - 1.0).abs() < 0.1, "{long} {short}");
    }

    #[test]
    fn the_average_is_a_low_pass_filter_and_decays_while_idle() {
        let (mut state, mut random) = (State::default(), Random::new(1));
        for n in 1..=1000 {
            state.arrive(&P, false, &at(10), &mut random);
            let expected = 10.0 * (1.0 - 0.998f64.powi(n));
            assert!((state.average() - expected).abs() < 1e-9);
        }
        let before = state.average();
        state.emptied(0);
        // 512 bytes take 4.096 ms at 1 Mbit/s; 100 of them.
        state.arrive(&P, false, &Arrival { size: 0, now: 409_600_000, ..at(0) }, &mut random);
        assert!((state.average() - before * 0.998f64.powi(100)).abs() < 1e-9);
    }

    #[test]
    fn ecn_marks_whatever_comes_beyond_the_lower_threshold() {
        let p = RedParameters { ecn: true, weight: 0.0, ..P };
        let mut random = Random::new(1);
        for (average, advice) in [(4.0, Advice::Keep), (5.1, Advice::Mark), (20.0, Advice::Mark)] {
            let mut state = State { average, ..State::default() };
            assert_eq!(state.arrive(&p, false, &at(1), &mut random), advice);
        }
    }
}
