#![forbid(unsafe_code)]
//! CoDel (RFC 8289): when packets have waited longer than `target` for a whole `interval`, packets leave the queue by its front end at
//! intervals that shrink with the square root of their number.

use ferrule_config::ipfw::dummynet::CodelParameters;
use ferrule_dataplane::clock::Nanos;

/// Longest packet assumed before any was seen, in bytes.
const FIRST_LONGEST: u32 = 500;

/// Memory of one queue; the names are RFC 8289's (section 5.2).
#[derive(Clone, Debug)]
pub(crate) struct State {
    first_above: Option<Nanos>,
    drop_next: Nanos,
    count: u32,
    last_count: u32,
    dropping: bool,
    longest: u32,
}

impl Default for State {
    fn default() -> State {
        State { first_above: None, drop_next: 0, count: 0, last_count: 0, dropping: false, longest: FIRST_LONGEST }
    }
}

/// A packet taken from the front of the queue.
pub(crate) struct Front {
    pub id: u32,
    /// When it came.
    pub since: Nanos,
    /// Bytes left behind it.
    pub backlog: u64,
}

/// The queue that CoDel takes from.
pub(crate) trait Source {
    fn take(&mut self) -> Option<Front>;
    /// Marks a packet; false where its sender cannot read marks.
    fn mark(&mut self, id: u32) -> bool;
    fn drop(&mut self, id: u32);
}

impl State {
    /// A packet of `length` bytes came.
    pub(crate) fn arrived(&mut self, length: u32) {
        self.longest = self.longest.max(length);
    }

    /// A flow of FQ-CoDel starts anew (RFC 8290, 4.1).
    pub(crate) fn restart(&mut self) {
        self.dropping = false;
        self.first_above = None;
    }

    /// The next packet to send, after whatever had to be dropped before it.
    pub(crate) fn leave(&mut self, p: &CodelParameters, now: Nanos, source: &mut impl Source) -> Option<u32> {
        let (mut front, mut may_drop) = self.look(p, now, source);
        if self.dropping {
            if !may_drop {
                self.dropping = false;
            }
            while self.dropping && now >= self.drop_next {
                let id = front?;
                self.count += 1;
                if p.ecn && source.mark(id) {
                    self.drop_next = control_law(p, self.drop_next, self.count);
                    return Some(id);
                }
                source.drop(id);
                (front, may_drop) = self.look(p, now, source);
                if may_drop {
                    self.drop_next = control_law(p, self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
        } else if may_drop {
            let id = front?;
            if !(p.ecn && source.mark(id)) {
                source.drop(id);
                (front, _) = self.look(p, now, source);
            }
            self.dropping = true;
            // Soon after the last time, start from the rate that worked then.
            let delta = self.count - self.last_count;
            let recent = now.saturating_sub(self.drop_next) < 16 * interval(p);
            self.count = if delta > 1 && recent { delta } else { 1 };
            self.drop_next = control_law(p, now, self.count);
            self.last_count = self.count;
        }
        front
    }

    /// Takes a packet, and tells whether it may be dropped.
    fn look(&mut self, p: &CodelParameters, now: Nanos, source: &mut impl Source) -> (Option<u32>, bool) {
        let Some(front) = source.take() else {
            self.first_above = None;
            return (None, false);
        };
        let waited = now.saturating_sub(front.since);
        let below = waited < u64::from(p.target_us) * 1000 || front.backlog <= u64::from(self.longest);
        let mut may_drop = false;
        match (below, self.first_above) {
            (true, _) => self.first_above = None,
            (false, None) => self.first_above = Some(now + interval(p)),
            (false, Some(at)) => may_drop = now >= at,
        }
        (Some(front.id), may_drop)
    }
}

fn interval(p: &CodelParameters) -> Nanos {
    u64::from(p.interval_us) * 1000
}

/// When the next drop is due (RFC 8289, 5.4).
fn control_law(p: &CodelParameters, from: Nanos, count: u32) -> Nanos {
    from + (interval(p) as f64 / f64::from(count).sqrt()) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: CodelParameters = CodelParameters { target_us: 5_000, interval_us: 100_000, ecn: false };

    /// A queue whose packets have all waited `waited`.
    struct Standing {
        now: Nanos,
        waited: Nanos,
        backlog: u64,
        next: u32,
        dropped: Vec<Nanos>,
        marked: Vec<Nanos>,
        capable: bool,
    }

    impl Source for Standing {
        fn take(&mut self) -> Option<Front> {
            self.next += 1;
            Some(Front { id: self.next, since: self.now - self.waited, backlog: self.backlog })
        }
        fn mark(&mut self, _id: u32) -> bool {
            if self.capable {
                self.marked.push(self.now);
            }
            self.capable
        }
        fn drop(&mut self, _id: u32) {
            self.dropped.push(self.now);
        }
    }

    fn run(p: &CodelParameters, waited: Nanos, capable: bool, end: Nanos) -> Standing {
        let start = 1_000_000_000;
        let mut state = State::default();
        let mut q =
            Standing { now: start, waited, backlog: 100_000, next: 0, dropped: vec![], marked: vec![], capable };
        while q.now < start + end {
            assert!(state.leave(p, q.now, &mut q).is_some());
            q.now += 100_000;
        }
        q.dropped.iter_mut().for_each(|t| *t -= start);
        q.marked.iter_mut().for_each(|t| *t -= start);
        q
    }

    /// First drop one interval after the delay went above; then interval / sqrt(count) apart: 100, 70.7, 57.7 ms ...
    fn law(n: usize) -> Vec<f64> {
        let mut at = 100e6;
        (1..=n)
            .map(|count| {
                let this = at;
                at += 100e6 / (count as f64).sqrt();
                this
            })
            .collect()
    }

    fn follows_the_law(times: &[Nanos]) {
        assert!(times.len() >= 20);
        for (found, expected) in times.iter().zip(law(times.len())) {
            // Packets leave each 0.1 ms here, so that late a drop may be.
            assert!(*found as f64 >= expected - 1e3 && *found as f64 - expected < 101e3, "{found} for {expected}");
        }
    }

    #[test]
    fn drops_follow_the_control_law() {
        let q = run(&P, 20_000_000, false, 1_500_000_000);
        follows_the_law(&q.dropped);
        assert!(q.marked.is_empty());
    }

    #[test]
    fn marks_follow_the_control_law_and_nothing_is_dropped() {
        let q = run(&CodelParameters { ecn: true, ..P }, 20_000_000, true, 1_500_000_000);
        follows_the_law(&q.marked);
        assert!(q.dropped.is_empty());
        let q = run(&CodelParameters { ecn: true, ..P }, 20_000_000, false, 1_500_000_000);
        follows_the_law(&q.dropped);
    }

    #[test]
    fn delay_below_the_target_or_for_less_than_an_interval_drops_nothing() {
        assert!(run(&P, 4_999_999, false, 5_000_000_000).dropped.is_empty());
        assert!(run(&P, 20_000_000, false, 100_000_000).dropped.is_empty());
    }

    #[test]
    fn a_queue_of_one_packet_is_never_too_long() {
        let (mut state, mut dropped) = (State::default(), vec![]);
        state.arrived(1500);
        for backlog in [1500, 1501] {
            let mut q =
                Standing { now: 0, waited: 0, backlog, next: 0, dropped: vec![], marked: vec![], capable: false };
            for ms in 100..1000 {
                (q.now, q.waited) = (ms * 1_000_000, 90_000_000);
                state.leave(&P, q.now, &mut q);
            }
            dropped.push(q.dropped.len());
        }
        assert_eq!(dropped[0], 0);
        assert!(dropped[1] > 0);
    }

    #[test]
    fn a_second_time_soon_after_starts_at_the_old_rate() {
        let mut state = State::default();
        let mut q = Standing {
            now: 1_000_000_000,
            waited: 20_000_000,
            backlog: 100_000,
            next: 0,
            dropped: vec![],
            marked: vec![],
            capable: false,
        };
        let mut go = |waited: Nanos, length: Nanos, q: &mut Standing| {
            q.waited = waited;
            let end = q.now + length;
            while q.now < end {
                state.leave(&P, q.now, q);
                q.now += 100_000;
            }
        };
        go(20_000_000, 1_000_000_000, &mut q);
        let before = q.dropped.len();
        go(0, 50_000_000, &mut q);
        go(20_000_000, 300_000_000, &mut q);
        let again = &q.dropped[before..];
        let gap = (again[1] - again[0]) as f64;
        let expected = 100e6 / ((before - 1) as f64).sqrt();
        assert!((gap - expected).abs() < 200e3, "{gap} for {expected}");
    }
}
