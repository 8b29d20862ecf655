//! in = out + dropped + held, for every scheduler and discipline, under random traffic and configuration.

use super::*;
use proptest::prelude::*;

fn kind() -> impl Strategy<Value = SchedulerKind> {
    let fq = (1u32..3000, 1u32..60, 1u32..8).prop_map(|(quantum, limit, flows)| FqParameters { quantum, limit, flows });
    prop_oneof![
        Just(SchedulerKind::Fifo),
        Just(SchedulerKind::Wf2qPlus),
        Just(SchedulerKind::Qfq),
        Just(SchedulerKind::RoundRobin),
        Just(SchedulerKind::Priority),
        (fq.clone(), any::<bool>()).prop_map(|(fq, ecn)| SchedulerKind::FqCodel(
            fq,
            CodelParameters { target_us: 500, interval_us: 5000, ecn }
        )),
        (fq, any::<bool>(), any::<bool>()).prop_map(|(fq, departure_rate, ecn)| {
            SchedulerKind::FqPie(fq, PieParameters { departure_rate, ecn, max_burst_us: 1000, target_us: 500, ..pie() })
        }),
    ]
}

fn management() -> impl Strategy<Value = QueueManagement> {
    prop_oneof![
        Just(QueueManagement::DropTail),
        any::<bool>().prop_map(|ecn| QueueManagement::Red(RedParameters {
            weight: 0.3,
            minimum: 2,
            maximum: 8,
            ecn,
            ..red()
        })),
        Just(QueueManagement::Gred(RedParameters { weight: 0.3, minimum: 2, maximum: 8, ..red() })),
        Just(QueueManagement::Codel(CodelParameters { target_us: 500, interval_us: 5000, ecn: false })),
        (any::<bool>(), any::<bool>()).prop_map(|(on_off, departure_rate)| {
            QueueManagement::Pie(PieParameters { on_off, departure_rate, max_burst_us: 1000, target_us: 500, ..pie() })
        }),
    ]
}

fn settings() -> impl Strategy<Value = QueueSettings> {
    let size = prop_oneof![(1u32..40).prop_map(QueueSize::Slots), (1500u32..40_000).prop_map(QueueSize::Bytes)];
    (size, prop_oneof![Just(0.0), Just(0.2)], any::<bool>(), management()).prop_map(
        |(size, loss_rate, masked, management)| QueueSettings {
            size,
            loss_rate,
            mask: if masked { source_mask() } else { FlowMask::NONE },
            management,
            ..default_queue()
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Send { target: Target, length: u32, flow: u32, n: u32 },
    Wait(Nanos),
    Pipe { number: u32, bandwidth: u64, delay_ms: u32, burst: u64, queue: QueueSettings },
    Scheduler { number: u32, kind: SchedulerKind, masked: bool },
    Queue { number: u32, scheduler: u32, weight: u32, longest: u32, queue: QueueSettings },
    Delete(Target),
    DeleteScheduler(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let target = || prop_oneof![(1u32..4).prop_map(Target::Pipe), (1u32..6).prop_map(Target::Queue)];
    prop_oneof![
        30 => (target(), 40u32..9000, 0u32..6, 1u32..20).prop_map(|(target, length, flow, n)| Step::Send { target, length, flow, n }),
        20 => (0u64..30_000_000).prop_map(Step::Wait),
        1 => Just(Step::Wait(5 * SECOND)),
        3 => (1u32..4, prop_oneof![Just(0), 100_000u64..100_000_000], 0u32..5, 0u64..9000, settings())
            .prop_map(|(number, bandwidth, delay_ms, burst, queue)| Step::Pipe { number, bandwidth, delay_ms, burst, queue }),
        3 => (1u32..4, kind(), any::<bool>()).prop_map(|(number, kind, masked)| Step::Scheduler { number, kind, masked }),
        6 => (1u32..6, 1u32..4, 0u32..101, prop_oneof![Just(0u32), 1u32..3000], settings())
            .prop_map(|(number, scheduler, weight, longest, queue)| Step::Queue { number, scheduler, weight, longest, queue }),
        1 => target().prop_map(Step::Delete),
        1 => (1u32..4).prop_map(Step::DeleteScheduler),
    ]
}

fn apply(sim: &mut Sim, step: Step) {
    sim.sink.now = sim.now;
    match step {
        Step::Send { target, length, flow, n } => (0..n).for_each(|_| {
            let _ = sim.send(target, length, flow);
        }),
        Step::Wait(by) => sim.run_to(sim.now + by),
        Step::Pipe { number, bandwidth, delay_ms, burst, queue } => {
            sim.config(link(PipeConfig { burst, ..pipe(number, bandwidth, delay_ms, queue) }));
        }
        Step::Scheduler { number, kind, masked } => {
            let mask = if masked { source_mask() } else { FlowMask::NONE };
            let parameters = SchedulerParameters { kind, mask };
            sim.config(DummynetConfig::Scheduler(SchedulerConfig {
                number,
                pipe: None,
                parameters,
                queue: default_queue(),
            }));
        }
        Step::Queue { number, scheduler, weight, longest, queue } => {
            sim.config(DummynetConfig::Queue(QueueConfig { number, scheduler, weight, longest, queue }));
        }
        Step::Delete(target) => {
            let _ = sim.shaper.delete(target, sim.now, &mut sim.sink);
        }
        Step::DeleteScheduler(number) => {
            let _ = sim.shaper.delete_scheduler(number, sim.now, &mut sim.sink);
        }
    }
}

/// Every queue's counts agree with its instance's, and none is forgotten by its scheduler.
fn check_lengths(sim: &Sim) {
    let flows: u32 = sim.shaper.schedulers().iter().flat_map(|s| s.instances.iter().map(|i| i.length)).sum::<u32>()
        + sim.shaper.pipes().iter().flat_map(|p| p.flows.iter().map(|f| f.length)).sum::<u32>();
    assert!(flows as usize <= sim.shaper.held());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_packet_is_lost_or_made(
        first in kind(),
        queues in prop::collection::vec(settings(), 5),
        steps in prop::collection::vec(step(), 0..80),
        small in any::<bool>(),
    ) {
        let limits = if small { Limits { packets: 60, queues: 6, instances: 4 } } else { Limits { packets: 5000, queues: 200, instances: 40 } };
        let mut sim = Sim::with(limits, Settings { slot_limit: 100_000, ..Settings::default() });
        sim.sink.capable = small;
        sim.config(link(pipe(1, 8_000_000, 1, queues[0].clone())));
        sim.config(sched(1, first));
        for (i, settings) in queues.into_iter().enumerate() {
            sim.config(queue(i as u32 + 1, 1, i as u32 * 7, settings));
        }
        for step in steps {
            apply(&mut sim, step);
            sim.check_balance();
            check_lengths(&sim);
        }
        // Nothing is stuck: time alone brings everything out.
        sim.drain();
        sim.check_balance();
        prop_assert_eq!(sim.shaper.next_event(), None);
        // Packets of one flow through one pipe's queue come out in the order in which they went in.
        let mut seen = std::collections::HashSet::new();
        for (_, p) in &sim.sink.out {
            prop_assert!(seen.insert(p.number), "packet {} came out twice", p.number);
        }
    }

    /// Without drops and with equal weights a backlogged link is never idle, whatever the scheduler.
    #[test]
    fn every_scheduler_is_work_conserving(
        kind in kind(),
        packets in prop::collection::vec((1u32..6, 40u32..9000), 1..200),
    ) {
        let mut sim = Sim::new();
        sim.config(link(pipe(1, MEGABYTE, 0, slots(10_000))));
        let kind = match kind {
            SchedulerKind::FqCodel(fq, p) => {
                SchedulerKind::FqCodel(FqParameters { limit: 10_000, ..fq }, CodelParameters { target_us: 5_000_000, ..p })
            }
            SchedulerKind::FqPie(fq, p) => {
                SchedulerKind::FqPie(FqParameters { limit: 10_000, ..fq }, PieParameters { max_burst_us: 10_000_000, ..p })
            }
            other => other,
        };
        sim.config(sched_with(1, kind, slots(10_000)));
        for n in 1..6 {
            sim.config(queue(n, 1, n * 9, slots(10_000)));
        }
        let mut bytes = 0;
        for (n, length) in packets {
            sim.send(Target::Queue(n), length, n).unwrap();
            bytes += u64::from(length);
        }
        sim.drain();
        prop_assert_eq!(sim.now, SECOND + bytes * 1000);
        prop_assert_eq!(sim.sink.out.len() as u64, sim.sent);
    }
}
