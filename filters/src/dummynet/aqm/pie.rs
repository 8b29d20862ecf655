#![forbid(unsafe_code)]
//! PIE (RFC 8033): a chance of dropping at arrival, moved each `tupdate` by how far the queue's delay is from `target` and where it is going.
//!
//! There is no timer: between two packets the queue does not change, so the updates missed since the last packet are made up for when the
//! next one comes or goes, with the same result.

use super::Advice;
use crate::dummynet::random::Random;
use ferrule_config::ipfw::dummynet::PieParameters;
use ferrule_dataplane::clock::Nanos;

/// Bytes that must leave for the departure rate to be measured (RFC 8033, 5.2).
const RATE_THRESHOLD: u64 = 1 << 14;
/// Weight of a new measurement: RATE_THRESHOLD / 2^16.
const RATE_WEIGHT: f64 = 0.25;
/// MEAN_PKTSIZE of FreeBSD, in bytes: two of them in the queue are never too many.
const MEAN_PACKET: u64 = 800;
/// Updates made up for at most; by then the chance of an idle queue is nothing (0.984 ^ 1500 < 10^-9).
const CATCH_UP: u32 = 1500;

/// Memory of one queue; the names follow RFC 8033.
#[derive(Clone, Debug)]
pub(crate) struct State {
    chance: f64,
    /// Chances added up since the last drop (derandomization, 5.4).
    added: f64,
    /// Nanoseconds.
    delay: f64,
    delay_before: f64,
    burst_allowance: Nanos,
    active: bool,
    started: bool,
    next_update: Nanos,
    measuring: bool,
    measured_since: Nanos,
    measured_bytes: u64,
    /// Average nanoseconds in which RATE_THRESHOLD bytes leave.
    departure: f64,
}

/// A packet that comes.
pub(crate) struct Arrival {
    pub now: Nanos,
    /// Bytes in the queue.
    pub backlog: u64,
    /// Whether the queue is a third full (5.1, for `onoff`).
    pub third_full: bool,
}

impl State {
    pub(crate) fn new(p: &PieParameters) -> State {
        State {
            chance: 0.0,
            added: 0.0,
            delay: 0.0,
            delay_before: 0.0,
            burst_allowance: micros(p.max_burst_us),
            active: !p.on_off,
            started: false,
            next_update: 0,
            measuring: false,
            measured_since: 0,
            measured_bytes: 0,
            departure: 0.0,
        }
    }

    #[cfg(test)]
    pub(crate) fn chance(&self) -> f64 {
        self.chance
    }

    /// Starts from nothing, active: a flow of FQ-PIE that becomes active, or a queue that fills up with `onoff`.
    pub(crate) fn restart(&mut self, p: &PieParameters, now: Nanos) {
        *self = State { active: true, started: true, next_update: now + micros(p.update_us).max(1), ..State::new(p) };
    }

    /// Judges a packet that comes.
    pub(crate) fn arrive(&mut self, p: &PieParameters, at: &Arrival, random: &mut Random) -> Advice {
        self.catch_up(p, at.now, at.backlog);
        let mut advice = Advice::Keep;
        if self.active && self.burst_allowance == 0 && self.drops_early(p, at.backlog, random) {
            advice = if p.ecn && self.chance < p.max_ecn_threshold { Advice::Mark } else { Advice::Drop };
        }
        if !self.active && at.third_full {
            self.restart(p, at.now);
        }
        let calm = micros(p.target_us) as f64 / 2.0;
        if self.active && self.chance == 0.0 && self.delay < calm && self.delay_before < calm {
            self.burst_allowance = micros(p.max_burst_us);
            if p.on_off && at.backlog == 0 {
                self.active = false;
                self.measuring = false;
            }
        }
        advice
    }

    /// A packet was dropped: the chances start to add up again.
    pub(crate) fn dropped(&mut self) {
        self.added = 0.0;
    }

    /// A packet left that came at `since`; `backlog` bytes are left behind it.
    pub(crate) fn leave(&mut self, p: &PieParameters, now: Nanos, since: Nanos, length: u32, backlog: u64) {
        self.catch_up(p, now, backlog + u64::from(length));
        if !self.active {
            return;
        }
        if !p.departure_rate {
            self.delay = now.saturating_sub(since) as f64;
            return;
        }
        if self.measuring {
            self.measured_bytes += u64::from(length);
            if self.measured_bytes >= RATE_THRESHOLD {
                let took =
                    now.saturating_sub(self.measured_since) as f64 * RATE_THRESHOLD as f64 / self.measured_bytes as f64;
                self.departure = if self.departure == 0.0 {
                    took
                } else {
                    took * RATE_WEIGHT + self.departure * (1.0 - RATE_WEIGHT)
                };
                self.measuring = false;
            }
        }
        if !self.measuring && backlog >= RATE_THRESHOLD {
            self.measuring = true;
            self.measured_since = now;
            self.measured_bytes = 0;
        }
    }

    /// Makes the updates that are due; the queue held `backlog` bytes all the time.
    fn catch_up(&mut self, p: &PieParameters, now: Nanos, backlog: u64) {
        let period = micros(p.update_us).max(1);
        if !self.started {
            self.started = true;
            self.next_update = now + period;
        }
        for _ in 0..CATCH_UP {
            if !self.active || now < self.next_update {
                return;
            }
            if self.is_at_rest(backlog) {
                // Nothing moves until something comes; the allowance runs out meanwhile.
                let missed = (now - self.next_update) / period + 1;
                self.next_update += missed * period;
                self.burst_allowance = self.burst_allowance.saturating_sub(missed * period);
                return;
            }
            self.next_update += period;
            self.update(p, backlog);
        }
        // Still behind: a queue that slept this long has nothing to answer for; one that stood this long is where it will stay.
        let behind = (now + period).saturating_sub(self.next_update) / period;
        self.next_update += behind * period;
        self.burst_allowance = 0;
    }

    fn is_at_rest(&self, backlog: u64) -> bool {
        backlog == 0 && self.chance == 0.0 && self.delay == 0.0 && self.delay_before == 0.0
    }

    /// One step of the controller (RFC 8033, 4.2, with 5.5's cap).
    fn update(&mut self, p: &PieParameters, backlog: u64) {
        if p.departure_rate {
            self.delay = backlog as f64 * self.departure / RATE_THRESHOLD as f64;
        } else if backlog == 0 {
            self.delay = 0.0;
        }
        let seconds = |nanos: f64| nanos / 1e9;
        let mut step = p.alpha * seconds(self.delay - micros(p.target_us) as f64)
            + p.beta * seconds(self.delay - self.delay_before);
        step /= match self.chance {
            c if c < 0.000_001 => 2048.0,
            c if c < 0.000_01 => 512.0,
            c if c < 0.000_1 => 128.0,
            c if c < 0.001 => 32.0,
            c if c < 0.01 => 8.0,
            c if c < 0.1 => 2.0,
            _ => 1.0,
        };
        if p.cap_drop && self.chance >= 0.1 {
            step = step.min(0.02);
        }
        self.chance = (self.chance + step).max(0.0);
        if self.chance > 0.0 && self.delay == 0.0 && self.delay_before == 0.0 {
            self.chance -= self.chance / 64.0;
        }
        self.chance = self.chance.min(1.0);
        self.delay_before = self.delay;
        self.burst_allowance = self.burst_allowance.saturating_sub(micros(p.update_us));
    }

    fn drops_early(&mut self, p: &PieParameters, backlog: u64, random: &mut Random) -> bool {
        let calm = self.delay_before < micros(p.target_us) as f64 / 2.0 && self.chance < 0.2;
        if calm || backlog <= 2 * MEAN_PACKET {
            return false;
        }
        if self.chance == 0.0 {
            self.added = 0.0;
        }
        if p.derandomize {
            self.added += self.chance;
            if self.added < 0.85 {
                return false;
            }
        }
        if p.derandomize && self.added >= 8.5 || random.unit() < self.chance {
            self.added = 0.0;
            return true;
        }
        false
    }
}

fn micros(us: u32) -> Nanos {
    u64::from(us) * 1000
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const P: PieParameters = PieParameters {
        target_us: 15_000,
        update_us: 15_000,
        alpha: 0.125,
        beta: 1.25,
        max_burst_us: 150_000,
        max_ecn_threshold: 0.1,
        ecn: false,
        cap_drop: true,
        derandomize: false,
        on_off: false,
        departure_rate: false,
    };

    /// The controller of RFC 8033, 4.2, for a queue whose delay stands.
    fn reference(delay: f64, steps: usize) -> f64 {
        let (mut p, mut before) = (0.0f64, 0.0);
        for _ in 0..steps {
            let mut d = 0.125 * (delay - 0.015) + 1.25 * (delay - before);
            d /= [(1e-6, 2048.0), (1e-5, 512.0), (1e-4, 128.0), (1e-3, 32.0), (1e-2, 8.0), (1e-1, 2.0)]
                .iter()
                .find(|t| p < t.0)
                .map_or(1.0, |t| t.1);
            if p >= 0.1 {
                d = d.min(0.02);
            }
            p = (p + d).clamp(0.0, 1.0);
            before = delay;
        }
        p
    }

    /// A queue of 100,000 bytes whose packets wait `delay` for `length` of time, a packet in and out each ms; drops of arrivals.
    fn stand(p: &PieParameters, delay: Nanos, length: Nanos) -> (State, Vec<Nanos>, u32) {
        let (mut state, mut random) = (State::new(p), Random::new(3));
        let (mut drops, mut marks) = (vec![], 0);
        for now in (0..length).step_by(1_000_000) {
            match state.arrive(p, &Arrival { now, backlog: 100_000, third_full: true }, &mut random) {
                Advice::Keep => (),
                Advice::Drop => {
                    state.dropped();
                    drops.push(now);
                }
                Advice::Mark => marks += 1,
            }
            state.leave(p, now, now.saturating_sub(delay), 1500, 98_500);
        }
        (state, drops, marks)
    }

    #[test]
    fn the_chance_follows_the_controller() {
        for (delay, steps) in [(0.016, 400), (0.020, 300), (0.060, 50), (0.5, 20), (0.014, 50)] {
            let mut state = State { delay: delay * 1e9, ..State::new(&P) };
            for step in 1..=steps {
                state.update(&P, 100_000);
                let expected = reference(delay, step);
                assert!(
                    (state.chance() - expected).abs() < 1e-12,
                    "{delay} s, step {step}: {} for {expected}",
                    state.chance()
                );
            }
            assert_eq!(state.chance() > 0.0, delay > 0.015, "{delay}");
        }
    }

    #[test]
    fn updates_missed_are_made_up_for() {
        let (mut late, mut timely) = (State::new(&P), State::new(&P));
        for state in [&mut late, &mut timely] {
            state.catch_up(&P, 0, 100_000);
            state.delay = 60e6;
        }
        for step in 1..=50 {
            timely.catch_up(&P, step * 15_000_000, 100_000);
        }
        late.catch_up(&P, 50 * 15_000_000, 100_000);
        assert_eq!(late.chance(), timely.chance());
        assert!((late.chance() - reference(0.060, 50)).abs() < 1e-12);
    }

    #[test]
    fn nothing_is_dropped_below_the_target_or_within_the_burst_allowance() {
        assert!(stand(&P, 7_000_000, 10_000_000_000).1.is_empty());
        let (_, drops, _) = stand(&P, 60_000_000, 3_000_000_000);
        assert!(drops[0] >= 150_000_000, "{}", drops[0]);
    }

    #[test]
    fn marks_stop_at_the_safeguard() {
        let p = PieParameters { ecn: true, ..P };
        let (state, drops, marks) = stand(&p, 40_000_000, 3_000_000_000);
        assert!(marks > 0 && !drops.is_empty() && state.chance() > 0.1);
    }

    #[test]
    fn derandomization_spaces_the_drops() {
        // A controller that does not move, at 5 %.
        let still = PieParameters { alpha: 0.0, beta: 0.0, ..P };
        let gaps = |p: &PieParameters| {
            let mut random = Random::new(3);
            let mut state =
                State { chance: 0.05, delay: 60e6, delay_before: 60e6, burst_allowance: 0, ..State::new(p) };
            let drops: Vec<u32> = (0..100_000).filter(|_| state.drops_early(p, 100_000, &mut random)).collect();
            let gaps: Vec<u32> = drops.windows(2).map(|w| w[1] - w[0]).collect();
            (gaps.iter().min().copied(), gaps.iter().max().copied(), drops.len())
        };
        let (shortest, _, number) = gaps(&still);
        assert_eq!(shortest, Some(1));
        assert!((4700..5300).contains(&number), "{number}");
        // None before the chances add up to 0.85 (17 packets), one for certain at 8.5 (170).
        let (shortest, longest, _) = gaps(&PieParameters { derandomize: true, ..still });
        assert!(shortest == Some(17) && longest <= Some(171), "{shortest:?} {longest:?}");
    }

    #[test]
    fn the_chance_decays_when_the_queue_is_idle() {
        let (mut state, ..) = stand(&P, 60_000_000, 2_000_000_000);
        assert!(state.chance() > 0.5);
        state.catch_up(&P, 2_000_000_000 + 15_000_000 * 40, 0);
        assert!(state.chance() < 0.5);
        state.catch_up(&P, 3_600_000_000_000, 0);
        assert_eq!(state.chance(), 0.0);
        // One step: the controller's, then a 64th less.
        let mut state = State { chance: 0.5, ..State::new(&P) };
        state.update(&P, 0);
        assert!((state.chance() - (0.5 - 0.125 * 0.015) * 63.0 / 64.0).abs() < 1e-12);
    }

    #[test]
    fn the_departure_rate_gives_the_delay() {
        let p = PieParameters { departure_rate: true, ..P };
        let mut state = State::new(&p);
        // 1,500 bytes each 12 ms (1 Mbit/s) from a standing queue of 30,000 bytes: 240 ms.
        for i in 0..40u64 {
            state.leave(&p, i * 12_000_000, 0, 1500, 30_000);
        }
        state.catch_up(&p, 40 * 12_000_000 + 15_000_000, 30_000);
        assert!((state.delay / 1e6 - 240.0).abs() < 1.0, "{}", state.delay / 1e6);
    }

    #[test]
    fn on_off_starts_when_a_third_is_full() {
        let p = PieParameters { on_off: true, ..P };
        let (mut state, mut random) = (State::new(&p), Random::new(1));
        state.arrive(&p, &Arrival { now: 0, backlog: 5000, third_full: false }, &mut random);
        assert!(!state.active);
        state.arrive(&p, &Arrival { now: 1, backlog: 50_000, third_full: true }, &mut random);
        assert!(state.active);
        state.arrive(&p, &Arrival { now: 2, backlog: 0, third_full: false }, &mut random);
        assert!(!state.active);
    }
}
