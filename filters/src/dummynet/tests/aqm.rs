//! Early drops in a pipe: what each discipline does to senders that answer to losses.

use super::*;

/// Four window senders over a pipe of 1 MByte/s and 20 ms for 20 s: mean wait in ms and share of the link used in the last 15 s.
fn steady(management: QueueManagement, capable: bool) -> (Sim, f64, f64) {
    let mut sim = Sim::new();
    sim.sink.capable = capable;
    sim.config(link(pipe(1, MEGABYTE, 20, QueueSettings { management, ..slots(1000) })));
    let mut senders: Vec<Sender> = (0..4).map(|n| Sender::new(n, Target::Pipe(1), 1000)).collect();
    sim.drive(&mut senders, SECOND + 20 * SECOND);
    let from = SECOND + 5 * SECOND;
    let (wait, used) = (sim.mean_wait(from, 20 * MS), sim.bytes_since(from) as f64 / 15e6);
    sim.check_balance();
    (sim, wait, used)
}

#[test]
fn drop_tail_lets_the_queue_stand_and_codel_and_pie_keep_it_near_their_targets() {
    let (sim, wait, used) = steady(QueueManagement::DropTail, false);
    assert!(wait > 400.0 && used > 0.99, "drop tail: {wait} ms, {used}");
    assert_eq!(sim.drops(DropCause::Early), 0);
    let (sim, wait, used) = steady(QueueManagement::Codel(codel()), false);
    assert!((1.0..15.0).contains(&wait) && used > 0.9, "CoDel: {wait} ms, {used}");
    assert!(sim.drops(DropCause::Early) > 50);
    for departure_rate in [true, false] {
        let (sim, wait, used) = steady(QueueManagement::Pie(PieParameters { departure_rate, ..pie() }), false);
        assert!((5.0..35.0).contains(&wait) && used > 0.9, "PIE: {wait} ms, {used}");
        assert!(sim.drops(DropCause::Early) > 50);
    }
}

#[test]
fn red_keeps_the_average_between_its_thresholds() {
    for management in [QueueManagement::Red(red()), QueueManagement::Gred(red())] {
        let (sim, wait, used) = steady(management, false);
        // A packet is a millisecond: 10 to 50 packets.
        assert!((8.0..50.0).contains(&wait) && used > 0.95, "{management:?}: {wait} ms, {used}");
        assert!(sim.drops(DropCause::Early) > 20 && sim.drops(DropCause::QueueFull) == 0);
    }
}

#[test]
fn with_ecn_capable_senders_are_marked_and_lose_nothing() {
    let marking = [
        QueueManagement::Codel(CodelParameters { ecn: true, ..codel() }),
        QueueManagement::Red(RedParameters { ecn: true, ..red() }),
        QueueManagement::Pie(PieParameters { ecn: true, max_ecn_threshold: 1.0, ..pie() }),
    ];
    for management in marking {
        let mut sim = Sim::new();
        sim.sink.capable = true;
        sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { management, ..slots(1000) })));
        // A standing queue of 60 packets for 3 s, by sending at the link's rate.
        for _ in 0..60 {
            sim.send(Target::Pipe(1), 1000, 0).unwrap();
        }
        for i in 1..3000 {
            sim.run_to(SECOND + i * MS);
            sim.send(Target::Pipe(1), 1000, 0).unwrap();
        }
        assert!(sim.sink.marked > 20, "{management:?}: {}", sim.sink.marked);
        assert!(sim.sink.dropped.is_empty());
        let (capable, ..) = steady(management, false);
        assert!(capable.sink.marked == 0 && capable.drops(DropCause::Early) > 20, "others are dropped: {management:?}");
    }
}

#[test]
fn codel_drops_a_standing_queue_by_the_control_law() {
    let mut sim = Sim::new();
    sim.config(link(pipe(
        1,
        MEGABYTE,
        0,
        QueueSettings { management: QueueManagement::Codel(codel()), ..slots(10_000) },
    )));
    // Twice the link's rate: the delay passes 5 ms at about 5 ms and never comes back.
    let mut times = vec![];
    for i in 0..2400u64 {
        sim.run_to(SECOND + i * MS / 2);
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
        times.resize(sim.sink.dropped.len(), i as f64 / 2.0);
    }
    assert!(times.len() > 15);
    let mut expected = 110.0;
    for (n, &t) in times.iter().enumerate() {
        // The first moment is known to the width of the ramp; from there each is interval / sqrt(n) later.
        assert!((t - expected).abs() <= if n == 0 { 8.0 } else { 1.6 }, "drop {n}: {t} ms for {expected} ms");
        expected = if n == 0 { t } else { expected } + 100.0 / ((n + 1) as f64).sqrt();
    }
}

#[test]
fn aqm_works_in_the_queues_of_every_scheduler() {
    for kind in [SchedulerKind::Wf2qPlus, SchedulerKind::Qfq, SchedulerKind::RoundRobin, SchedulerKind::Priority] {
        for management in [QueueManagement::Codel(codel()), QueueManagement::Pie(pie()), QueueManagement::Red(red())] {
            let mut sim = Sim::new();
            sim.config(link(pipe(1, MEGABYTE, 20, slots(50))));
            sim.config(sched(1, kind));
            let settings = QueueSettings { management, ..slots(1000) };
            sim.config(queue(1, 1, 1, settings.clone()));
            sim.config(queue(2, 1, 1, settings));
            let mut senders = [Sender::new(1, Target::Queue(1), 1000), Sender::new(2, Target::Queue(2), 1000)];
            sim.drive(&mut senders, SECOND + 15 * SECOND);
            let from = SECOND + 5 * SECOND;
            let (wait, used) = (sim.mean_wait(from, 20 * MS), sim.bytes_since(from) as f64 / 10e6);
            assert!(wait < 60.0 && used > 0.85, "{kind:?} {management:?}: {wait} ms, {used}");
            sim.drain();
            sim.check_balance();
        }
    }
}
