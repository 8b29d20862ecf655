//! Bounds of queues, masks, limits of memory.

use super::*;

#[test]
fn slots_bound_the_queue_behind_the_packet_on_the_link() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(10))));
    let taken = (0..20).filter(|_| sim.send(Target::Pipe(1), 1000, 0).is_ok()).count();
    assert_eq!(taken, 11);
    assert_eq!(sim.drops(DropCause::QueueFull), 9);
    let status = &sim.shaper.pipes()[0].flows[0];
    assert_eq!((status.length, status.bytes), (10, 10_000));
    assert_eq!(status.counters, Counters { packets: 20, bytes: 20_000, drops: 9 });
    sim.drain();
    sim.check_balance();
}

#[test]
fn bytes_bound_the_queue_and_the_packet_that_goes_over_is_the_last() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { size: QueueSize::Bytes(3000), ..default_queue() })));
    // One on the link, then 1,000, 2,000, 3,000 (not over), 4,000 (over): the next is dropped.
    let taken = (0..20).filter(|_| sim.send(Target::Pipe(1), 1000, 0).is_ok()).count();
    assert_eq!(taken, 5);
}

#[test]
fn bounds_are_held_within_the_limits_of_the_system() {
    let mut sim = Sim::with(Limits::default(), Settings::default());
    for (number, size, expected) in [
        (1, QueueSize::Slots(0), 50),
        (2, QueueSize::Slots(500), 100),
        (3, QueueSize::Slots(7), 7),
        (4, QueueSize::Bytes(100), 17),
    ] {
        sim.config(link(pipe(number, MEGABYTE, 0, QueueSettings { size, ..default_queue() })));
        let taken = (0..300).filter(|_| sim.send(Target::Pipe(number), 1000, 0).is_ok()).count();
        assert_eq!(taken, expected + 1, "{size:?}");
    }
}

#[test]
fn a_pipes_mask_gives_each_flow_a_link() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { mask: source_mask(), ..slots(5) })));
    for n in 0..4 {
        for _ in 0..6 {
            sim.send(Target::Pipe(1), 1000, n).unwrap();
        }
        assert_eq!(sim.send(Target::Pipe(1), 1000, n), Err(DropCause::QueueFull));
    }
    assert_eq!(sim.shaper.instance_count(), 4);
    let flows: Vec<_> = sim.shaper.pipes()[0].flows.iter().map(|f| f.flow.addresses).collect();
    assert_eq!(flows.len(), 4);
    assert!(flows.contains(&Addresses::V4 { source: 3, destination: 0 }));
    sim.drain();
    assert_eq!(sim.now, SECOND + 6 * MS, "side by side");
}

#[test]
fn a_queues_mask_gives_each_flow_a_queue_of_one_link() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(queue(5, 1, 1, QueueSettings { mask: source_mask(), ..slots(5) }));
    for n in 0..4 {
        for _ in 0..5 {
            sim.send(Target::Queue(5), 1000, n).unwrap();
        }
    }
    assert_eq!((sim.shaper.instance_count(), sim.shaper.queue_count()), (1, 4));
    assert_eq!(sim.shaper.queues()[0].flows.len(), 4);
    sim.drain();
    assert_eq!(sim.now, SECOND + 20 * MS, "one after the other");
}

#[test]
fn a_schedulers_mask_gives_each_combination_an_instance() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    for kind in [SchedulerKind::Wf2qPlus, SchedulerKind::Qfq, SchedulerKind::Priority, SchedulerKind::RoundRobin] {
        let mask = FlowMask { source4: 0xff00, ..FlowMask::NONE };
        let parameters = SchedulerParameters { kind, mask };
        sim.config(DummynetConfig::Scheduler(SchedulerConfig {
            number: 1,
            pipe: None,
            parameters,
            queue: default_queue(),
        }));
        sim.config(queue(5, 1, 1, slots(50)));
        let (start, before) = (sim.now, sim.sink.out.len());
        for n in [0x0101, 0x0102, 0x0201, 0x0202] {
            for _ in 0..5 {
                sim.send(Target::Queue(5), 1000, n).unwrap();
            }
        }
        let status = &sim.shaper.schedulers()[0];
        assert_eq!((status.instances.len(), &status.queues[..]), (2, &[5][..]));
        sim.drain();
        assert_eq!((sim.now - start, sim.sink.out.len() - before), (10 * MS, 20), "{kind:?}: two links");
    }
}

#[test]
fn a_queues_flow_shows_what_its_mask_and_its_schedulers_keep() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    let mask = FlowMask { source4: 0xff00, ..FlowMask::NONE };
    let parameters = SchedulerParameters { kind: SchedulerKind::Wf2qPlus, mask };
    sim.config(DummynetConfig::Scheduler(SchedulerConfig {
        number: 1,
        pipe: None,
        parameters,
        queue: default_queue(),
    }));
    let mask = FlowMask { source_port: 0xffff, ..FlowMask::NONE };
    sim.config(queue(5, 1, 1, QueueSettings { mask, ..slots(5) }));
    sim.send(Target::Queue(5), 1000, 0x0a0b).unwrap();
    let flow = sim.shaper.queues()[0].flows[0].flow;
    let addresses = Addresses::V4 { source: 0x0a00, destination: 0 };
    assert_eq!(flow, FlowId { addresses, source_port: 1000, ..FlowId::NONE });
}

#[test]
fn idle_dynamic_queues_and_instances_expire_and_the_fixed_ones_stay() {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, 0, QueueSettings { mask: source_mask(), ..slots(5) })));
    sim.config(link(pipe(2, MEGABYTE, 0, slots(5))));
    sim.config(queue(5, 2, 1, QueueSettings { mask: source_mask(), ..slots(5) }));
    for n in 0..10 {
        sim.send(Target::Pipe(1), 1000, n).unwrap();
        sim.send(Target::Queue(5), 1000, n).unwrap();
    }
    sim.send(Target::Pipe(2), 1000, 0).unwrap();
    assert_eq!((sim.shaper.instance_count(), sim.shaper.queue_count()), (12, 21));
    sim.drain();
    sim.run_to(sim.now + 900 * MS);
    assert_eq!((sim.shaper.instance_count(), sim.shaper.queue_count()), (12, 21));
    for step in 1..10 {
        sim.run_to(sim.now + step * 100 * MS);
    }
    assert_eq!((sim.shaper.instance_count(), sim.shaper.queue_count()), (2, 1));
    assert_eq!(sim.shaper.pipes()[1].flows[0].counters.packets, 1);
}

#[test]
fn a_flood_of_flows_takes_idle_slots_and_is_dropped_when_all_are_busy() {
    let limits = Limits { packets: 1000, queues: 32, instances: 16 };
    let mut sim = Sim::with(limits, Settings { expire: None, ..Settings::default() });
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    sim.config(queue(5, 1, 1, QueueSettings { mask: source_mask(), ..slots(5) }));
    // One packet each: the queues empty again and again, and there is always an idle one.
    for n in 0..500 {
        sim.send(Target::Queue(5), 1000, n).unwrap();
        sim.drain();
    }
    assert!(sim.shaper.queue_count() <= 32);
    // All at once: 32 queues are busy, one of them by then idle for its packet on the link.
    let taken = (1000..1100).filter(|&n| sim.send(Target::Queue(5), 1000, n).is_ok()).count();
    assert!((32..=33).contains(&taken), "{taken}");
    assert_eq!(sim.drops(DropCause::TooManyFlows), 100 - taken);
    sim.drain();
    // Instances likewise.
    sim.config(link(pipe(2, MEGABYTE, 0, QueueSettings { mask: source_mask(), ..slots(5) })));
    let taken = (0..100).filter(|&n| sim.send(Target::Pipe(2), 1000, n).is_ok()).count();
    assert_eq!(taken, 15, "one of 16 is the scheduler's");
    sim.drain();
    for n in 200..300 {
        sim.send(Target::Pipe(2), 1000, n).unwrap();
        sim.drain();
    }
    sim.check_balance();
}

#[test]
fn the_reserve_of_packets_bounds_all_together() {
    let mut sim = Sim::with(Limits { packets: 100, queues: 10, instances: 10 }, Settings::default());
    sim.config(link(pipe(1, MEGABYTE, 1000, slots(90))));
    sim.config(link(pipe(2, 0, 1000, slots(90))));
    for _ in 0..60 {
        sim.send(Target::Pipe(1), 1000, 0).unwrap();
    }
    let taken = (0..60).filter(|_| sim.send(Target::Pipe(2), 1000, 0).is_ok()).count();
    assert_eq!((taken, sim.shaper.held()), (40, 100));
    assert_eq!(sim.drops(DropCause::Reserve), 20);
    sim.check_balance();
    sim.drain();
}

#[test]
fn packets_for_what_does_not_exist_are_given_back() {
    let mut sim = Sim::new();
    assert_eq!(sim.send(Target::Pipe(1), 100, 0), Err(DropCause::NoTarget));
    assert_eq!(sim.send(Target::Queue(70_000), 100, 0), Err(DropCause::NoTarget));
    sim.config(queue(5, 9, 1, slots(5)));
    assert_eq!(sim.send(Target::Queue(5), 100, 0), Err(DropCause::NoTarget), "no scheduler 9 yet");
    assert!(!sim.shaper.queues()[0].attached);
    sim.config(link(pipe(9, MEGABYTE, 0, slots(50))));
    assert_eq!(sim.send(Target::Queue(5), 100, 0), Ok(()));
    sim.check_balance();
}

#[test]
fn queues_whose_first_packet_was_dropped_go_too() {
    let limits = Limits { packets: 1000, queues: 16, instances: 16 };
    let mut sim = Sim::with(limits, Settings::default());
    let lossy = QueueSettings { loss_rate: 1.0, mask: source_mask(), ..slots(5) };
    sim.config(link(pipe(1, MEGABYTE, 0, lossy.clone())));
    sim.config(queue(5, 1, 1, lossy));
    for n in 0..100 {
        assert_eq!(sim.send(Target::Queue(5), 1000, n), Err(DropCause::RandomLoss));
        assert_eq!(sim.send(Target::Pipe(1), 1000, n), Err(DropCause::RandomLoss));
    }
    for _ in 0..10 {
        sim.run_to(sim.now + SECOND);
    }
    // The scheduler's one instance stays.
    assert_eq!((sim.shaper.queue_count(), sim.shaper.instance_count()), (0, 1));
}

#[test]
fn room_for_a_queue_is_not_made_by_ending_its_own_instance() {
    let mut sim = Sim::with(Limits { packets: 100, queues: 1, instances: 4 }, Settings::default());
    sim.config(link(pipe(1, MEGABYTE, 0, slots(50))));
    let parameters =
        SchedulerParameters { kind: SchedulerKind::Wf2qPlus, mask: FlowMask { source4: 0xff00, ..FlowMask::NONE } };
    sim.config(DummynetConfig::Scheduler(SchedulerConfig {
        number: 1,
        pipe: None,
        parameters,
        queue: default_queue(),
    }));
    sim.config(queue(5, 1, 1, QueueSettings { mask: source_mask(), ..slots(5) }));
    for n in 0x100..0x120 {
        sim.send(Target::Queue(5), 1000, n).unwrap();
        sim.drain();
    }
    assert_eq!(sim.sink.out.len(), 32);
}
