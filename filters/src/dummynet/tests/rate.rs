//! Bandwidth, delay, burst, profile, loss.

use super::*;

#[test]
fn a_packet_leaves_when_its_last_bit_has_and_arrives_after_the_delay() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 20, slots(1000))));
    for _ in 0..500 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    sim.drain();
    let expected: Vec<Nanos> = (1..=500).map(|i| i * MS + 20 * MS).collect();
    assert_eq!(sim.times(), expected);
    sim.check_balance();
}

#[test]
fn odd_rates_do_not_drift() {
    let mut sim = Sim::new();
    let bandwidth = 7_000_003;
    sim.config(link(pipe(1, bandwidth, 0, slots(20_000))));
    for _ in 0..10_000 {
        sim.send(Target::Pipe(1), 1471, 0).unwrap();
    }
    sim.drain();
    for (i, t) in sim.times().into_iter().enumerate() {
        let bits = (i as u128 + 1) * 1471 * 8 * 1_000_000_000;
        assert_eq!(u128::from(t), bits.div_ceil(u128::from(bandwidth)), "packet {i}");
    }
}

#[test]
fn a_late_poll_delays_packets_but_not_the_rate() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(1000))));
    for _ in 0..100 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    for turn in 1..=11u64 {
        sim.now = SECOND + turn * 9_500_000;
        sim.poll();
        assert_eq!(sim.sink.out.len() as u64, (turn * 9_500_000 / MS).min(100));
    }
}

#[test]
fn packets_that_come_between_late_polls_are_not_sent_before_they_came() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(1000))));
    sim.send(Target::Pipe(1), 1000, 0).unwrap();
    sim.now = SECOND + 10 * MS;
    sim.send(Target::Pipe(1), 1000, 0).unwrap();
    assert_eq!(sim.shaper.next_event(), Some(SECOND + MS));
    sim.poll();
    assert_eq!(sim.sink.out.len(), 1);
    sim.drain();
    assert_eq!(sim.sink.out[1].0, SECOND + 11 * MS);
}

#[test]
fn idle_time_earns_nothing_without_burst() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(1000))));
    for round in 0..5u64 {
        sim.now = SECOND + round * SECOND;
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
        sim.drain();
        assert_eq!(sim.times()[round as usize * 2..], [round * SECOND + MS, round * SECOND + 2 * MS]);
    }
}

#[test]
fn no_bandwidth_is_no_limit_and_the_delay_stays_exact() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, 0, 50, slots(50))));
    sim.config(link(pipe(2, 0, 0, slots(50))));
    for i in 0..200 {
        sim.now = SECOND + i * 1234;
        sim.send(Target::Pipe(1), 1500, 0).unwrap();
        sim.send(Target::Pipe(2), 1500, 1).unwrap();
        let last = *sim.sink.out.last().unwrap();
        assert_eq!((last.0, last.1.flow), (sim.now, 1), "an empty pipe passes at once");
    }
    assert_eq!(sim.shaper.totals().fast, 200);
    sim.drain();
    for (t, p) in sim.sink.out.iter().filter(|(_, p)| p.flow == 0) {
        assert_eq!(*t, p.sent + 50 * MS);
    }
}

#[test]
fn a_burst_passes_at_once_and_is_earned_again_at_the_rate() {
    let mut sim = Sim::new();
    sim.config(link(PipeConfig { burst: 10_000, ..pipe(1, MEGABYTE, 0, slots(1000)) }));
    for _ in 0..12 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    sim.drain();
    let mut expected = vec![0; 10];
    expected.extend([MS, 2 * MS]);
    assert_eq!(sim.times(), expected);
    // 4 ms of idleness are worth 4 packets; the rest of the burst is not there yet.
    sim.run_to(sim.now + 4 * MS);
    let (before, at) = (sim.sink.out.len(), sim.now);
    for _ in 0..6 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    sim.drain();
    let gaps: Vec<Nanos> = sim.sink.out[before..].iter().map(|(t, _)| t - at).collect();
    assert_eq!(gaps, [0, 0, 0, 0, MS, 2 * MS]);
}

#[test]
fn a_burst_spent_slowly_is_not_lost() {
    let mut sim = Sim::new();
    sim.config(link(PipeConfig { burst: 10_000, ..pipe(1, 80_000, 0, slots(1000)) }));
    for i in 0..10 {
        sim.run_to(SECOND + i * 1000);
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    assert_eq!(sim.times(), (0..10).map(|i| i * 1000).collect::<Vec<_>>());
}

#[test]
fn io_fast_lets_a_millisecond_of_traffic_through_an_idle_pipe() {
    let run = |io_fast: bool| {
        let mut sim = Sim::with(Limits::default(), Settings { io_fast, ..Settings::default() });
        sim.config(link(pipe(1, MEGABYTE, 0, slots(100))));
        for _ in 0..20 {
            sim.send(Target::Pipe(1), 100, 0).unwrap();
        }
        sim.drain();
        sim.times()
    };
    assert_eq!(run(false)[..3], [100_000, 200_000, 300_000]);
    assert_eq!(run(true)[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100_000, 200_000]);
}

#[test]
fn a_profile_adds_its_delays_and_loses_what_is_beyond_its_level() {
    let mut sim = Sim::new();
    let profile = Profile { name: "p".into(), loss_level: 0.9, samples_ms: (0..100).collect() };
    sim.config(link(PipeConfig { profile: Some(profile), ..pipe(1, MEGABYTE, 0, slots(100)) }));
    let mut total = 0;
    for _ in 0..5000 {
        let before = (sim.sink.out.len(), sim.now);
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
        sim.drain();
        let took = sim.now - before.1;
        assert_eq!(took % MS, 0);
        if sim.sink.out.len() > before.0 {
            assert!((1..=90).contains(&(took / MS)));
            total += took / MS - 1;
        } else {
            assert!((91..=100).contains(&(took / MS)), "lost packets take their time");
        }
    }
    let lost = sim.drops(DropCause::ProfileLoss);
    assert!((400..600).contains(&lost), "{lost}");
    let mean = total as f64 / sim.sink.out.len() as f64;
    assert!((mean - 44.5).abs() < 2.0, "{mean}");
    sim.check_balance();
}

#[test]
fn plr_loses_its_share_and_repeats_with_the_seed() {
    let run = || {
        let mut sim = Sim::new();
        sim.config(link(pipe(1, 0, 0, QueueSettings { loss_rate: 0.05, ..slots(50) })));
        for _ in 0..100_000 {
            let _ = sim.send(Target::Pipe(1), 100, 0);
        }
        sim.check_balance();
        let lost: Vec<u64> = sim.sink.dropped.iter().map(|d| d.0.number).collect();
        assert_eq!(sim.drops(DropCause::RandomLoss), lost.len());
        lost
    };
    let lost = run();
    // Four standard deviations: 4 * sqrt(100,000 * 0.05 * 0.95).
    assert!((4724..5276).contains(&lost.len()), "{}", lost.len());
    assert_eq!(lost, run());
}

#[test]
fn pipe_and_scheduler_of_one_number_have_a_link_each() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(100))));
    sim.config(queue(7, 1, 1, slots(100)));
    for _ in 0..10 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
        sim.send(Target::Queue(7), 1000, 1).unwrap();
    }
    sim.drain();
    assert_eq!(sim.now, SECOND + 10 * MS);
}

#[test]
fn large_values_do_not_overflow() {
    let mut sim = Sim::new();
    let profile = Profile { name: "slow".into(), loss_level: 1.0, samples_ms: vec![3_600_000] };
    sim.config(link(PipeConfig {
        profile: Some(profile),
        burst: u64::MAX,
        ..pipe(1, 400_000_000_000, 10_000, slots(100))
    }));
    sim.config(link(pipe(2, 1, 0, slots(100))));
    sim.now = u64::MAX / 2;
    for _ in 0..10 {
        sim.send(Target::Pipe(1), 65_535, 0).unwrap();
        sim.send(Target::Pipe(2), 65_535, 1).unwrap();
    }
    assert_eq!(sim.shaper.held(), 20);
    let start = sim.now;
    sim.run_to(start + 65_535 * 8 * SECOND);
    assert_eq!(sim.sink.out.iter().filter(|(_, p)| p.flow == 1).count(), 1, "one bit a second");
}
