//! What only each scheduler does. Ideal shares: a queue of weight w gets w / (sum of the backlogged weights) of every byte sent.

use super::*;

/// A pipe of 1 MByte/s under `kind`, fed by queues 1, 2, ... with these weights and longest packets; each gets `n` packets of its length.
fn backlogged(kind: SchedulerKind, queues: &[(u32, u32)], n: u32) -> Sim {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(sched(1, kind));
    for (i, &(weight, length)) in queues.iter().enumerate() {
        let number = i as u32 + 1;
        sim.config(DummynetConfig::Queue(QueueConfig {
            number,
            scheduler: 1,
            weight,
            longest: length,
            queue: slots(10_000),
        }));
    }
    for _ in 0..n {
        for (i, &(_, length)) in queues.iter().enumerate() {
            let number = i as u32 + 1;
            sim.send(Target::Queue(number), length, number).unwrap();
        }
    }
    sim
}

/// Goes through what came out while all were backlogged; for each queue, how far it was ahead of and behind its share at worst, in bytes.
fn worst_lag(sim: &Sim, queues: &[(u32, u32)], until: usize) -> Vec<(f64, f64)> {
    let sum: u32 = queues.iter().map(|q| q.0).sum();
    let mut got = vec![0u64; queues.len()];
    let mut worst = vec![(0f64, 0f64); queues.len()];
    let mut total = 0;
    for (_, p) in sim.sink.out.iter().take(until) {
        total += u64::from(p.length);
        got[p.flow as usize - 1] += u64::from(p.length);
        for (i, &(weight, _)) in queues.iter().enumerate() {
            let lead = got[i] as f64 - total as f64 * f64::from(weight) / f64::from(sum);
            worst[i].0 = worst[i].0.max(lead);
            worst[i].1 = worst[i].1.max(-lead);
        }
    }
    worst
}

#[test]
fn fifo_keeps_the_order_of_arrival_across_queues() {
    let mut sim = backlogged(SchedulerKind::Fifo, &[(1, 500), (99, 1500), (7, 60)], 16);
    sim.drain();
    let numbers: Vec<u64> = sim.sink.out.iter().map(|(_, p)| p.number).collect();
    assert_eq!(numbers, (1..=48).collect::<Vec<_>>());
}

#[test]
fn wf2q_keeps_every_queue_within_a_packet_of_its_share() {
    let queues = [(50, 1000), (30, 1000), (10, 1000), (5, 1000), (3, 1000), (2, 1000)];
    let mut sim = backlogged(SchedulerKind::Wf2qPlus, &queues, 1000);
    sim.run_to(SECOND + 1900 * MS);
    for (i, (ahead, behind)) in worst_lag(&sim, &queues, 1900).into_iter().enumerate() {
        // Bennett and Zhang, theorem 1: less than a packet ahead, by its share, and a packet behind. Queue 0 was alone when its first
        // packet left.
        let share = f64::from(queues[i].0) / 100.0;
        let alone = if i == 0 { 1000.0 * (1.0 - share) } else { 0.0 };
        let bound = 1000.0 * (1.0 - share) + alone;
        assert!(ahead <= bound + 1e-6 && behind <= 1000.0, "queue {i}: {ahead} ahead, {behind} behind");
    }
}

#[test]
fn wf2q_sends_a_heavy_queue_interleaved_where_wfq_would_send_it_in_a_row() {
    // The example of Bennett and Zhang: weight 10 against ten of weight 1. WFQ sends ten of the heavy queue first, WF2Q every other one.
    let queues: Vec<(u32, u32)> = std::iter::once((10, 1000)).chain(std::iter::repeat_n((1, 1000), 10)).collect();
    let mut sim = backlogged(SchedulerKind::Wf2qPlus, &queues, 50);
    sim.run_to(SECOND + 100 * MS);
    let order = sim.order();
    let longest_row = order.chunk_by(|a, b| a == b).filter(|c| c[0] == 1).map(<[u32]>::len).max();
    assert!(longest_row <= Some(2), "{order:?}");
    assert_eq!(order[..20].iter().filter(|&&f| f == 1).count(), 10);
}

#[test]
fn wf2q_shares_bytes_not_packets() {
    let queues = [(60, 300), (40, 1500)];
    let mut sim = backlogged(SchedulerKind::Wf2qPlus, &queues, 4000);
    sim.run_to(SECOND + 1500 * MS);
    let share = sim.bytes_of(1) as f64 / (sim.bytes_of(1) + sim.bytes_of(2)) as f64;
    assert!((share - 0.6).abs() < 0.002, "{share}");
}

#[test]
fn wf2q_gives_no_credit_for_idle_time() {
    let mut sim = backlogged(SchedulerKind::Wf2qPlus, &[(50, 1000), (50, 1000)], 0);
    for _ in 0..300 {
        sim.send(Target::Queue(1), 1000, 1).unwrap();
    }
    sim.run_to(SECOND + 100 * MS);
    for _ in 0..100 {
        sim.send(Target::Queue(2), 1000, 2).unwrap();
    }
    let before = sim.sink.out.len();
    sim.run_to(SECOND + 200 * MS);
    let late = sim.order()[before..].iter().filter(|&&f| f == 2).count();
    assert!((49..=51).contains(&late), "half from now on, not more to catch up: {late}");
}

#[test]
fn qfq_keeps_shares_within_the_bound_of_its_groups() {
    let queues = [(64, 1500), (32, 1500), (10, 1500), (5, 700), (3, 60), (1, 1500)];
    let mut sim = backlogged(SchedulerKind::Qfq, &queues, 3000);
    sim.run_to(SECOND + 2900 * MS);
    let sent = sim.sink.out.len();
    // Queue 1 gets 64/115 of 2,900 kB, less than the 4,500 kB it has: all were backlogged all the time.
    for (i, (ahead, behind)) in worst_lag(&sim, &queues, sent).into_iter().enumerate() {
        // QFQ, theorem 2: 3 times the group's width (at most 2 L / w, so 6 L) and a packet of anybody.
        let bound = 6.0 * f64::from(queues[i].1) + 1500.0;
        assert!(ahead <= bound && behind <= bound, "queue {i}: {ahead} ahead, {behind} behind, bound {bound}");
    }
    sim.drain();
    sim.check_balance();
}

#[test]
fn qfq_does_not_send_a_heavy_queue_in_a_row() {
    let queues: Vec<(u32, u32)> = std::iter::once((64, 1000)).chain(std::iter::repeat_n((1, 1000), 64)).collect();
    let mut sim = backlogged(SchedulerKind::Qfq, &queues, 100);
    sim.run_to(SECOND + 120 * MS);
    let order = sim.order();
    let longest_row = order.chunk_by(|a, b| a == b).filter(|c| c[0] == 1).map(<[u32]>::len).max();
    assert!(longest_row <= Some(8), "{longest_row:?}");
}

/// Share of a queue that has one packet of 100 bytes at a time, the next as soon as the last has left the queue, beside a backlogged
/// queue of the same weight with packets of 1,000.
fn share_of_one_at_a_time(kind: SchedulerKind, expire: Option<Nanos>) -> f64 {
    let mut sim = Sim::with(Limits::default(), Settings { slot_limit: 100_000, expire, ..Settings::default() });
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(sched(1, kind));
    sim.config(queue(1, 1, 5, QueueSettings { mask: source_mask(), ..slots(100) }));
    sim.config(queue(2, 1, 5, slots(10_000)));
    for _ in 0..600 {
        sim.send(Target::Queue(2), 1000, 2).unwrap();
    }
    let step = MS / 20;
    for i in 0..10_000 {
        sim.run_to(SECOND + i * step + step / 2);
        if sim.shaper.queues()[0].flows.iter().all(|f| f.length == 0) {
            sim.send(Target::Queue(1), 100, 1).unwrap();
        }
    }
    sim.bytes_of(1) as f64 / sim.bytes_since(0) as f64
}

#[test]
fn a_queue_cannot_gain_by_running_empty() {
    for kind in [SchedulerKind::Wf2qPlus, SchedulerKind::Qfq] {
        // Nor by expiring at once.
        for expire in [None, Some(1)] {
            let share = share_of_one_at_a_time(kind, expire);
            assert!(share <= 0.55, "{kind:?} {expire:?}: {share}");
        }
    }
}

#[test]
fn a_queue_that_is_ahead_does_not_expire_before_the_others_have_caught_up() {
    for kind in [SchedulerKind::Wf2qPlus, SchedulerKind::Qfq] {
        let mut sim = Sim::with(Limits::default(), Settings { expire: Some(1), ..Settings::default() });
        sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
        sim.config(sched(1, kind));
        sim.config(queue(1, 1, 1, QueueSettings { mask: source_mask(), ..slots(50) }));
        sim.config(queue(2, 1, 9, slots(50)));
        sim.send(Target::Queue(2), 1000, 2).unwrap();
        sim.send(Target::Queue(1), 1000, 1).unwrap();
        for _ in 0..40 {
            sim.send(Target::Queue(2), 1000, 2).unwrap();
        }
        while sim.shaper.queues()[0].flows.iter().any(|f| f.length > 0) {
            sim.run_to(sim.now + MS);
        }
        sim.run_to(sim.now + MS);
        assert_eq!(sim.shaper.queue_count(), 2, "{kind:?}");
        sim.run_to(sim.now + 20 * MS);
        assert_eq!(sim.shaper.queue_count(), 1, "{kind:?}");
    }
}

#[test]
fn qfq_serves_many_queues_of_all_groups_and_survives_long_packets() {
    let queues: Vec<(u32, u32)> = (0..60).map(|i| (1 << (i % 15), 1500)).collect();
    let mut sim = backlogged(SchedulerKind::Qfq, &queues, 0);
    for round in 0..40 {
        for number in 1..=60 {
            let length = if (number + round) % 7 == 0 { 65_535 } else { 60 + number * 20 };
            sim.send(Target::Queue(number), length, number).unwrap();
        }
        sim.run_to(sim.now + 300 * MS);
    }
    sim.drain();
    assert_eq!(sim.sink.out.len(), 2400);
    sim.check_balance();
}

#[test]
fn rr_gives_equal_bytes_whatever_the_packets() {
    let mut sim = backlogged(SchedulerKind::RoundRobin, &[(1, 0); 3], 0);
    let lengths = [64, 512, 1500];
    for (i, &length) in lengths.iter().enumerate() {
        for _ in 0..600_000 / length {
            sim.send(Target::Queue(i as u32 + 1), length, i as u32 + 1).unwrap();
        }
    }
    sim.run_to(SECOND + 1500 * MS);
    let bytes: Vec<u64> = (1..=3).map(|f| sim.bytes_of(f)).collect();
    // Deficit round robin: within a quantum and a packet of each other.
    let spread = bytes.iter().max().unwrap() - bytes.iter().min().unwrap();
    assert!(spread <= 3000, "{bytes:?}");
    // Which packet-wise round robin would not do:
    let packets: Vec<usize> = (1..=3).map(|f| sim.order().iter().filter(|&&o| o == f).count()).collect();
    assert!(packets[0] > 7 * packets[1] && packets[1] > 2 * packets[2], "{packets:?}");
}

#[test]
fn rr_sends_a_quantum_in_a_row_and_weights_multiply_it() {
    let mut sim = backlogged(SchedulerKind::RoundRobin, &[(1, 1000), (3, 1000)], 40);
    sim.run_to(SECOND + 30 * MS);
    let order = sim.order();
    let rows: Vec<(u32, usize)> = order.chunk_by(|a, b| a == b).skip(1).map(|c| (c[0], c.len())).collect();
    assert!(rows[..4].iter().all(|&(f, n)| n == if f == 1 { 1 } else { 3 }), "{rows:?}");
}

#[test]
fn rr_with_quanta_below_a_packet_still_shares() {
    let mut sim = backlogged(SchedulerKind::RoundRobin, &[(1, 64), (2, 64)], 0);
    for _ in 0..400 {
        sim.send(Target::Queue(1), 1500, 1).unwrap();
        sim.send(Target::Queue(2), 1500, 2).unwrap();
    }
    sim.run_to(SECOND + 450 * MS);
    let ratio = sim.bytes_of(2) as f64 / sim.bytes_of(1) as f64;
    assert!((ratio - 2.0).abs() < 0.1, "{ratio}");
}

#[test]
fn prio_sends_nothing_of_a_lower_priority_while_a_higher_one_waits() {
    let mut sim = backlogged(SchedulerKind::Priority, &[(5, 1000), (0, 1000), (63, 1000)], 50);
    sim.run_to(SECOND + 30 * MS);
    // While 1 and 3 wait, more for 2.
    for _ in 0..20 {
        sim.send(Target::Queue(2), 1000, 2).unwrap();
    }
    sim.drain();
    let order = sim.order();
    // The very first packet found the link free.
    assert_eq!(order[0], 1);
    let mut expected = vec![2; 70];
    expected.extend([1; 49]);
    expected.extend([3; 50]);
    assert_eq!(order[1..], expected);
}

#[test]
fn prio_keeps_the_order_within_a_priority() {
    let mut sim = backlogged(SchedulerKind::Priority, &[(4, 1000), (4, 1000)], 40);
    sim.drain();
    let numbers: Vec<u64> = sim.sink.out.iter().map(|(_, p)| p.number).collect();
    assert_eq!(numbers, (1..=80).collect::<Vec<_>>());
}

#[test]
fn weights_change_while_packets_wait() {
    for kind in [SchedulerKind::Wf2qPlus, SchedulerKind::Qfq, SchedulerKind::RoundRobin] {
        let mut sim = backlogged(kind, &[(10, 1000), (10, 1000)], 1000);
        sim.run_to(SECOND + 400 * MS);
        assert!(sim.bytes_of(1).abs_diff(sim.bytes_of(2)) <= 12_000, "{kind:?}");
        let set = |weight| QueueConfig { number: 1, scheduler: 1, weight, longest: 1000, queue: slots(10_000) };
        sim.config(DummynetConfig::Queue(set(30)));
        let before = (sim.bytes_of(1), sim.bytes_of(2));
        sim.run_to(SECOND + 800 * MS);
        let ratio = (sim.bytes_of(1) - before.0) as f64 / (sim.bytes_of(2) - before.1) as f64;
        assert!((ratio - 3.0).abs() < 0.3, "{kind:?}: {ratio}");
        sim.drain();
        assert_eq!(sim.sink.out.len(), 2000);
    }
}

#[test]
fn priorities_change_while_packets_wait() {
    let mut sim = backlogged(SchedulerKind::Priority, &[(4, 1000), (9, 1000), (2, 1000)], 20);
    sim.config(queue(2, 1, 4, slots(10_000)));
    sim.drain();
    assert_eq!(sim.sink.out.len(), 60);
    let order = sim.order();
    assert_eq!(order[1..21], [3; 20]);
    assert_eq!(order[21..40], [1; 19]);
    sim.check_balance();
}
