//! FQ-CoDel and FQ-PIE.

use super::*;

fn kinds() -> [SchedulerKind; 2] {
    [SchedulerKind::FqCodel(fq(), codel()), SchedulerKind::FqPie(fq(), pie())]
}

fn sim(kind: SchedulerKind, delay_ms: u32) -> Sim {
    let mut sim = Sim::new();
    sim.config(link(pipe(1, MEGABYTE, delay_ms, slots(50))));
    sim.config(sched(1, kind));
    sim.config(queue(5, 1, 1, slots(1)));
    sim
}

#[test]
fn a_sparse_flow_goes_first() {
    for kind in kinds() {
        let mut sim = sim(kind, 0);
        for _ in 0..100 {
            for n in [1, 2] {
                sim.send(Target::Queue(5), 1000, n).unwrap();
            }
        }
        for round in 1..10 {
            sim.run_to(SECOND + round * 10 * MS + MS / 2);
            assert!(sim.shaper.held() > 20);
            let (before, at) = (sim.sink.out.len(), sim.now);
            sim.send(Target::Queue(5), 200, 3).unwrap();
            sim.run_to(at + 2 * MS);
            let place = sim.order()[before..].iter().position(|&f| f == 3);
            assert!(place <= Some(1), "behind the one on the link only: {kind:?} {place:?}");
            sim.run_to(at + 9 * MS);
        }
        sim.drain();
        sim.check_balance();
    }
}

#[test]
fn a_new_flow_that_has_more_stands_in_line() {
    for kind in kinds() {
        let mut sim = sim(kind, 0);
        for _ in 0..50 {
            sim.send(Target::Queue(5), 1514, 1).unwrap();
        }
        sim.run_to(SECOND + 10 * MS);
        for _ in 0..50 {
            sim.send(Target::Queue(5), 1514, 2).unwrap();
        }
        let before = sim.sink.out.len();
        sim.run_to(SECOND + 40 * MS);
        // The one on the link, then a quantum (two packets, as its credit may go below zero once) for the new flow, then by turns.
        let order = sim.order()[before..].to_vec();
        assert_eq!(order[0], 1);
        assert_eq!(order[1..3], [2, 2]);
        let twos = order.iter().filter(|&&f| f == 2).count();
        assert!(twos.abs_diff(order.len() - twos) <= 3, "{order:?}");
    }
}

#[test]
fn a_flow_cannot_stay_new_by_sending_one_packet_at_a_time() {
    for kind in kinds() {
        let mut sim = sim(kind, 0);
        for _ in 0..300 {
            for n in [1, 2] {
                sim.send(Target::Queue(5), 1000, n).unwrap();
            }
        }
        let mut sent = 0;
        for ms in 0..90 {
            sim.run_to(SECOND + ms * MS);
            if sim.bytes_of(3) == sent {
                sim.send(Target::Queue(5), 1000, 3).unwrap();
                sent += 1000;
            }
        }
        assert!((25..=36).contains(&(sent / 1000)), "{kind:?}: {} of 90, a third would be fair", sent / 1000);
    }
}

#[test]
fn flows_share_equally_whatever_their_packets_and_the_delay_stays_near_the_target() {
    for (kind, most) in kinds().into_iter().zip([15.0, 40.0]) {
        let mut sim = sim(kind, 20);
        let mut senders = [Sender::new(1, Target::Queue(5), 1500), Sender::new(2, Target::Queue(5), 500)];
        // A flow with small packets needs a wider window; let it grow first.
        sim.drive(&mut senders, SECOND + 40 * SECOND);
        let from = SECOND + 20 * SECOND;
        let bytes = |flow: u32| -> u64 {
            sim.sink.out.iter().filter(|(t, p)| *t >= from && p.flow == flow).map(|(_, p)| u64::from(p.length)).sum()
        };
        let share = bytes(1) as f64 / (bytes(1) + bytes(2)) as f64;
        assert!((share - 0.5).abs() < 0.1, "{kind:?}: {share}");
        let (wait, used) = (sim.mean_wait(from, 20 * MS), sim.bytes_since(from) as f64 / 20e6);
        assert!((0.5..most).contains(&wait) && used > 0.85, "{kind:?}: {wait} ms, {used}");
        assert!(sim.drops(DropCause::Early) > 20);
        sim.drain();
        sim.check_balance();
    }
}

#[test]
fn a_flood_beside_a_fair_flow_takes_no_more_than_its_half() {
    for kind in kinds() {
        let mut sim = sim(kind, 5);
        let mut senders = [Sender::new(1, Target::Queue(5), 1000)];
        for i in 0..5000u64 {
            // 2 MByte/s that answer to nothing.
            for _ in 0..2 {
                let _ = sim.send(Target::Queue(5), 1000, 2);
            }
            sim.drive(&mut senders, SECOND + (i + 1) * MS);
        }
        let fair = sim.bytes_of(1) as f64 / 5e6;
        assert!(fair > 0.38, "{kind:?}: {fair}");
        sim.drain();
        sim.check_balance();
    }
}

#[test]
fn past_the_limit_the_longest_flow_loses_its_first_packet() {
    for kind in [
        SchedulerKind::FqCodel(FqParameters { limit: 100, ..fq() }, codel()),
        SchedulerKind::FqPie(FqParameters { limit: 100, ..fq() }, pie()),
    ] {
        let mut sim = sim(kind, 0);
        for _ in 0..81 {
            sim.send(Target::Queue(5), 1000, 1).unwrap();
        }
        for _ in 0..40 {
            sim.send(Target::Queue(5), 1000, 2).unwrap();
        }
        assert_eq!(sim.drops(DropCause::FlowLimit), 20);
        let lost: Vec<(u32, u64)> = sim.sink.dropped.iter().map(|(p, _)| (p.flow, p.number)).collect();
        assert!(lost.iter().all(|&(flow, number)| flow == 1 && number <= 22), "{lost:?}");
        sim.drain();
        sim.check_balance();
    }
}

#[test]
fn flows_past_the_limit_one_by_one_share_the_losses() {
    // All queues stay equally long: the longest must be found again for each packet.
    let mut sim = sim(SchedulerKind::FqCodel(FqParameters { limit: 200, ..fq() }, codel()), 0);
    for _ in 0..20 {
        for n in 0..50 {
            let _ = sim.send(Target::Queue(5), 1000, n);
        }
    }
    let mut lost = [0; 50];
    sim.sink.dropped.iter().for_each(|(p, _)| lost[p.flow as usize] += 1);
    assert_eq!(lost.iter().sum::<i32>(), 799);
    // Two flows may share a bucket; nobody loses much more than its share.
    assert!(lost.iter().all(|&n| n <= 20), "{lost:?}");
    assert!(lost.iter().filter(|&&n| (14..=18).contains(&n)).count() > 40, "{lost:?}");
}

#[test]
fn a_quantum_below_a_packet_still_shares() {
    let mut sim = sim(
        SchedulerKind::FqCodel(
            FqParameters { quantum: 1, ..fq() },
            CodelParameters { target_us: 5_000_000, ..codel() },
        ),
        0,
    );
    for _ in 0..300 {
        sim.send(Target::Queue(5), 1500, 1).unwrap();
        sim.send(Target::Queue(5), 500, 2).unwrap();
    }
    sim.run_to(SECOND + 200 * MS);
    assert!(sim.bytes_of(1).abs_diff(sim.bytes_of(2)) <= 3000, "{} {}", sim.bytes_of(1), sim.bytes_of(2));
}

#[test]
fn flow_queues_go_when_idle() {
    let mut sim = sim(SchedulerKind::FqCodel(fq(), codel()), 0);
    for n in 0..100 {
        sim.send(Target::Queue(5), 1000, n).unwrap();
    }
    let flows = sim.shaper.schedulers()[0].flows.len();
    assert!((85..=100).contains(&flows), "{flows}");
    sim.drain();
    for _ in 0..20 {
        sim.run_to(sim.now + 200 * MS);
    }
    assert_eq!(sim.shaper.queue_count(), 0);
    assert_eq!(sim.shaper.instance_count(), 1);
}
