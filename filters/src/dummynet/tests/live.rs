//! Configuration while packets are held.

use super::*;

fn held_pipe() -> Sim {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(100))));
    for _ in 0..50 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    sim.run_to(SECOND + 10 * MS + MS / 2);
    assert_eq!(sim.sink.out.len(), 10);
    sim
}

#[test]
fn a_new_bandwidth_counts_at_once_and_no_packet_is_lost() {
    let mut sim = held_pipe();
    sim.config(link(pipe(1, 2 * MEGABYTE, 0, slots(100))));
    sim.drain();
    assert_eq!(sim.sink.out.len(), 50);
    // The 11th was on its way; what was left of it, half, goes in half the time for the next ones' sake.
    assert_eq!(sim.times()[10], 11 * MS);
    let expected: Vec<Nanos> = (1..40).map(|i| 10 * MS + MS / 2 + MS / 4 + i * MS / 2).collect();
    assert_eq!(sim.times()[11..], expected);
    sim.check_balance();
}

#[test]
fn a_new_delay_counts_for_packets_that_leave_the_queue_from_now_on() {
    let mut sim = held_pipe();
    sim.config(link(pipe(1, MEGABYTE, 100, slots(100))));
    sim.drain();
    assert_eq!(sim.times()[10], 11 * MS);
    assert_eq!(sim.times()[11], 112 * MS);
    assert_eq!(sim.sink.out.len(), 50);
}

#[test]
fn no_limit_from_now_on_lets_all_out_and_a_smaller_bound_keeps_what_is_there() {
    let mut sim = held_pipe();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(5))));
    assert_eq!(sim.shaper.held(), 40);
    assert_eq!(sim.send(Target::Pipe(1), 1000, 0), Err(DropCause::QueueFull));
    sim.config(link(pipe(1, 0, 0, slots(5))));
    sim.drain();
    assert_eq!(sim.now, SECOND + 11 * MS, "behind the one that was on its way");
    assert_eq!(sim.sink.out.len(), 50);
}

#[test]
fn another_aqm_starts_without_losing_packets() {
    let mut sim = held_pipe();
    for management in [
        QueueManagement::Codel(codel()),
        QueueManagement::Pie(pie()),
        QueueManagement::Red(red()),
        QueueManagement::Gred(red()),
        QueueManagement::DropTail,
    ] {
        sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { management, ..slots(100) })));
        let _ = sim.send(Target::Pipe(1), 1000, 0);
        sim.run_to(sim.now + 3 * MS);
    }
    sim.drain();
    sim.check_balance();
    assert_eq!(sim.drops(DropCause::Deleted), 0);
}

#[test]
fn deletion_drops_with_a_count() {
    let mut sim = held_pipe();
    sim.config(queue(5, 1, 1, slots(100)));
    for _ in 0..20 {
        sim.send(Target::Queue(5), 1000, 0).unwrap();
    }
    sim.shaper.delete(Target::Queue(5), sim.now, &mut sim.sink).unwrap();
    // The first one is on the scheduler's link already.
    assert_eq!(sim.drops(DropCause::Deleted), 19);
    assert_eq!(sim.send(Target::Queue(5), 1000, 0), Err(DropCause::NoTarget));
    sim.shaper.delete(Target::Pipe(1), sim.now, &mut sim.sink).unwrap();
    assert_eq!(sim.drops(DropCause::Deleted), 19 + 1 + 40);
    assert_eq!((sim.shaper.held(), sim.shaper.next_event()), (0, None));
    assert_eq!(sim.shaper.delete(Target::Pipe(1), sim.now, &mut sim.sink), Err(ConfigError::Missing(Target::Pipe(1))));
    sim.check_balance();
}

#[test]
fn a_queue_waits_for_its_scheduler_to_come_back() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(queue(5, 1, 1, slots(50)));
    sim.send(Target::Queue(5), 1000, 0).unwrap();
    sim.shaper.delete(Target::Pipe(1), sim.now, &mut sim.sink).unwrap();
    assert_eq!(sim.send(Target::Queue(5), 1000, 0), Err(DropCause::NoTarget));
    sim.config(sched(1, SchedulerKind::Priority));
    sim.send(Target::Queue(5), 1000, 0).unwrap();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.send(Target::Queue(5), 1000, 0).unwrap();
    sim.drain();
    assert_eq!(sim.sink.out.len(), 2);
    assert_eq!(sim.shaper.schedulers()[0].queues, [5]);
}

#[test]
fn a_scheduler_of_another_kind_starts_empty_with_the_same_link() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(queue(5, 1, 1, slots(50)));
    for kind in [
        SchedulerKind::Qfq,
        SchedulerKind::Fifo,
        SchedulerKind::FqPie(fq(), pie()),
        SchedulerKind::Priority,
        SchedulerKind::RoundRobin,
        SchedulerKind::FqCodel(fq(), codel()),
        SchedulerKind::Wf2qPlus,
    ] {
        sim.config(sched(1, kind));
        assert_eq!((sim.shaper.held(), sim.shaper.instance_count(), sim.shaper.queue_count()), (0, 0, 0));
        let (at, before) = (sim.now, sim.sink.out.len());
        for _ in 0..10 {
            sim.send(Target::Queue(5), 1000, 0).unwrap();
        }
        sim.run_to(at + 5 * MS);
        assert_eq!(sim.sink.out.len() - before, 5, "{kind:?}");
    }
    sim.check_balance();
}

#[test]
fn the_same_configuration_again_changes_nothing() {
    let mut sim = held_pipe();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(100))));
    sim.drain();
    assert_eq!(sim.times(), (1..=50).map(|i| i * MS).collect::<Vec<_>>());
}

#[test]
fn a_queue_moves_to_another_scheduler() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(link(pipe(2, 10 * MEGABYTE, 0, slots(50))));
    sim.config(queue(5, 1, 1, slots(50)));
    for _ in 0..10 {
        sim.send(Target::Queue(5), 1000, 0).unwrap();
    }
    sim.config(queue(5, 2, 1, slots(50)));
    assert_eq!(sim.drops(DropCause::Deleted), 9);
    assert_eq!(sim.shaper.scheduler_of(Target::Queue(5)), Some(2));
    sim.send(Target::Queue(5), 1000, 0).unwrap();
    sim.run_to(sim.now + MS / 10);
    assert_eq!(sim.sink.out.len(), 1);
    sim.drain();
    sim.check_balance();
}

#[test]
fn flush_takes_everything() {
    let mut sim = held_pipe();
    sim.config(queue(5, 1, 1, slots(100)));
    sim.config(sched(7, SchedulerKind::Qfq));
    sim.send(Target::Queue(5), 1000, 0).unwrap();
    sim.shaper.flush(sim.now, &mut sim.sink);
    assert_eq!((sim.shaper.held(), sim.shaper.queue_count(), sim.shaper.instance_count()), (0, 0, 0));
    assert!(sim.shaper.pipes().is_empty() && sim.shaper.queues().is_empty() && sim.shaper.schedulers().is_empty());
    sim.check_balance();
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut sim = Sim::new();
    let mut refuse = |config: DummynetConfig| sim.shaper.configure(&config, sim.now, &mut sim.sink).unwrap_err();
    assert_eq!(refuse(link(pipe(0, 1, 0, slots(5))).into()), ConfigError::Number(0));
    assert_eq!(refuse(link(pipe(65_536, 1, 0, slots(5))).into()), ConfigError::Number(65_536));
    assert_eq!(refuse(link(pipe(1, 1, 10_001, slots(5))).into()), ConfigError::Delay(10_001));
    assert_eq!(refuse(queue(1, 0, 1, slots(5))), ConfigError::Number(0));
    assert!(sim.shaper.pipes().is_empty());
    assert!(ConfigError::Number(0).to_string().contains("1 to 65535"));
}

#[test]
fn the_schedulers_own_queue_and_noerror() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { no_error: true, ..slots(50) })));
    sim.config(sched(1, SchedulerKind::Fifo));
    sim.config(queue(5, 1, 1, slots(3)));
    assert!(sim.shaper.is_silent(Target::Pipe(1)) && !sim.shaper.is_silent(Target::Queue(5)));
    sim.config(sched_with(1, SchedulerKind::Fifo, slots(7)));
    let taken = (0..20).filter(|_| sim.send(Target::Queue(5), 1000, 0).is_ok()).count();
    assert_eq!(taken, 8, "FIFO's own bound counts, not the queue's");
}
