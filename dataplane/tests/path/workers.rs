//! Several workers: flows that belong to one of them, and queues between them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::{MacAddress, RouteKind};
use ferrule_dataplane::packet::{Offload, Packet};
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::worker::{Command, Dispatch, Event, Poll};
use ferrule_dataplane::world::World;

use crate::common::*;

type Log = Arc<Mutex<Vec<(usize, u16, u16)>>>;

/// Notes which worker saw which ports, in order.
struct Witness(Log);

impl Stage for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        let mut log = self.0.lock().unwrap();
        let note = |p: &Packet| (context.worker, p.source_port, p.destination_port);
        log.extend(batch.packets().iter().filter(|p| hook == Hook::In && p.goes_on()).map(note));
    }

    fn needs_flow_owner(&self) -> bool {
        true
    }
}

fn witnessed(workers: usize) -> (World, Log) {
    let log = Log::default();
    let stages = log.clone();
    let builder =
        ports().workers(workers).ring(4096).handover(2048).stages(move |_| vec![Box::new(Witness(stages.clone()))]);
    (world(builder), log)
}

#[test]
pub fn both_directions_of_a_flow_meet_on_one_worker_whatever_queue_they_came_in_on() {
    let (mut world, log) = witnessed(3);
    for flow in 0..200u16 {
        let there = packet("198.18.0.9", "203.0.113.5").udp(1000 + flow, 53, 4).at_a(&world);
        let back = packet("203.0.113.5", "198.18.0.9").udp(53, 1000 + flow, 4).frame(world.mac(B), MAC_B9);
        for queue in 0..3 {
            assert!(world.inject_at(A, queue, &there, Offload::NONE));
            assert!(world.inject_at(B, (queue + 1) % 3, &back, Offload::NONE));
        }
    }
    world.settle();
    let mut owner: BTreeMap<u16, usize> = BTreeMap::new();
    for (worker, source, destination) in log.lock().unwrap().iter() {
        let flow = *source.max(destination);
        assert_eq!(*owner.entry(flow).or_insert(*worker), *worker, "flow {flow}");
    }
    let mut share = [0; 3];
    owner.values().for_each(|w| share[*w] += 1);
    assert!(share.iter().all(|n| (40..100).contains(n)), "flows spread: {share:?}");
    assert_eq!((world.collect(A).len(), world.collect(B).len()), (600, 600));
    let totals = check(world);
    assert_eq!(totals.handed_over.0, totals.handed_over.1);
    // Two of three packets come in on another worker's queue.
    assert!((700..900).contains(&totals.handed_over.0), "{:?}", totals.handed_over);
}

/// A witness that knows of some flows where they belong.
struct Named(Witness);

impl Stage for Named {
    fn name(&self) -> &'static str {
        "named"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        self.0.process(hook, batch, context);
    }

    fn needs_flow_owner(&self) -> bool {
        true
    }

    fn flow_owner(&self, packet: &Packet) -> Option<usize> {
        match packet.source_port {
            1000..1100 => Some(usize::from(packet.source_port) % 3),
            // No such worker: the hash decides.
            1100..1200 => Some(3),
            _ => None,
        }
    }
}

#[test]
pub fn a_stage_names_the_owner_of_flows_that_the_hash_does_not_tell() {
    let log = Log::default();
    let stages = log.clone();
    let builder = ports().workers(3).stages(move |_| vec![Box::new(Named(Witness(stages.clone())))]);
    let mut world = world(builder);
    for flow in 1000..1300u16 {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(flow, 53, 4).at_a(&world);
        assert!(world.inject_at(A, usize::from(flow) % 2, &frame, Offload::NONE));
    }
    world.settle();
    let seen = log.lock().unwrap().clone();
    assert_eq!(seen.len(), 300);
    let mut by_hash = [0; 3];
    for (worker, source, _) in seen {
        if source < 1100 {
            assert_eq!(worker, usize::from(source) % 3);
        } else {
            by_hash[worker] += 1;
        }
    }
    assert!(by_hash.iter().all(|n| (40..100).contains(n)), "{by_hash:?}");
    check(world);
}

#[test]
pub fn workers_that_come_to_rest_before_they_end_leave_nothing_in_their_rings() {
    let mut world = world(ports().workers(2).options(|o| o.dispatch = Dispatch::Queued));
    for flow in 0..20u16 {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(1000 + flow, 53, 4).at_a(&world);
        assert!(world.inject_at(A, 0, &frame, Offload::NONE));
    }
    // They are in the rings to both workers now, and more would come.
    world.worker(0).turn();
    let late = packet("198.18.0.9", "203.0.113.5").udp(3000, 53, 4).at_a(&world);
    assert!(world.inject_at(A, 1, &late, Offload::NONE));
    for worker in 0..2 {
        world.command(worker, Command::Quiet);
    }
    let told = [world.event(), world.event()];
    assert!(told.iter().all(|e| matches!(e, Some((_, Event::Quiet)))), "{told:?}");
    world.settle();
    assert_eq!(
        (world.collect(B).len(), world.balance().received),
        (20, 20),
        "what was in hand goes on, nothing comes in"
    );
    assert_eq!(check(world).dropped.get("shutdown"), None);
}

#[test]
pub fn the_order_of_a_flow_is_kept_over_the_hand_over() {
    let (mut world, log) = witnessed(2);
    for n in 0..500u16 {
        for flow in 0..4u16 {
            let frame = packet("198.18.0.9", "203.0.113.5").tcp(2000 + flow, 80, 0x10);
            let mut frame = frame.at_a(&world);
            frame[38..40].copy_from_slice(&n.to_be_bytes());
            assert!(world.inject_at(A, 0, &frame, Offload::NONE));
        }
        if n % 37 == 0 {
            world.step();
        }
    }
    world.settle();
    let mut next = [0u16; 4];
    let out: Vec<_> = (0..2).flat_map(|worker| world.collect_at(B, worker)).collect();
    assert_eq!(out.len(), 2000);
    for (frame, _) in out {
        let flow = usize::from(u16::from_be_bytes([frame[34], frame[35]]) - 2000);
        assert_eq!(u16::from_be_bytes([frame[38], frame[39]]), next[flow]);
        next[flow] += 1;
    }
    assert!(log.lock().unwrap().iter().any(|(worker, ..)| *worker == 1), "some of it was handed over");
    check(world);
}

#[test]
pub fn fragments_of_a_datagram_meet() {
    let (mut world, log) = witnessed(4);
    for id in 0..100 {
        for (queue, fragment) in [(0, 0x2000), (1, 0x2002), (2, 4)] {
            let mut p = packet("198.18.0.9", "203.0.113.5");
            (p.id, p.fragment) = (id, fragment);
            p.payload.truncate(16);
            let frame = p.at_a(&world);
            assert!(world.inject_at(A, queue, &frame, Offload::NONE));
        }
        log.lock().unwrap().clear();
        world.settle();
        let seen = log.lock().unwrap();
        assert!(seen.len() == 3 && seen.iter().all(|s| s.0 == seen[0].0), "id {id}: {seen:?}");
    }
    world.collect(B);
    check(world);
}

#[test]
pub fn a_full_ring_between_workers_is_a_counted_drop() {
    let mut world = world(ports().workers(2).handover(8).options(|o| o.flow_owner = true));
    for flow in 0..200u16 {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(flow, 53, 4).at_a(&world);
        assert!(world.inject_at(A, 0, &frame, Offload::NONE));
    }
    // Worker 0 alone: the other one does not take anything.
    world.worker(0).turn();
    let lost = world.dropped(DropReason::HandoverFull);
    assert!((50..150).contains(&lost), "{lost}");
    assert_eq!((world.balance().held, world.balance().difference()), (8, 0));
    world.settle();
    assert_eq!(world.collect(B).len() as u64, 200 - lost);
    check(world);
}

#[test]
pub fn queued_dispatch_loses_nothing_and_keeps_the_order() {
    for workers in [1, 2, 3] {
        let mut world = world(ports().workers(workers).options(|o| o.dispatch = Dispatch::Queued));
        let frames: Vec<_> =
            (0..300u16).map(|n| packet("198.18.0.9", "203.0.113.5").udp(n, 53, 4).at_a(&world)).collect();
        for frame in &frames {
            assert!(world.inject(A, frame));
        }
        world.settle();
        let mac = world.mac(B);
        let expected: Vec<_> = frames.iter().map(|f| forwarded(f, MAC_B9, mac)).collect();
        assert_eq!(world.collect(B), expected, "{workers}");
        let totals = check(world);
        assert_eq!(totals.handed_over, (300, 300));
    }
}

#[test]
pub fn a_worker_without_a_transmit_queue_sends_through_another() {
    let (mut world, _) = witnessed(2);
    world.command(1, Command::Detach(B));
    world.command(1, Command::Relay(B, 0));
    for flow in 0..100u16 {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(flow, 53, 4).at_a(&world);
        assert!(world.inject_at(A, 1, &frame, Offload::NONE));
    }
    world.settle();
    assert_eq!((world.collect_at(B, 0).len(), world.collect_at(B, 1).len()), (100, 0));
    check(world);
}

/// Two threads that sleep when there is nothing, fed in bursts, while routes and neighbours change under them.
#[test]
pub fn on_threads_of_their_own_nothing_is_lost_while_tables_change() {
    let builder =
        ports().workers(2).real_time().buffers(2048, 4096).options(|o| (o.flow_owner, o.poll) = (true, Poll::Adaptive));
    let mut world = world(builder);
    let other = MacAddress([2, 0, 0, 0, 0xb, 8]);
    world.table.neighbor_set(B, ip("198.19.0.8"), Some(other)).unwrap();
    let frames: Vec<_> = (0..64u16).map(|n| packet("198.18.0.9", "203.0.113.5").udp(n, 53, 4).at_a(&world)).collect();
    let threads: Vec<_> = world
        .take_workers()
        .into_iter()
        .map(|mut worker| {
            std::thread::spawn(move || {
                worker.serve();
                worker
            })
        })
        .collect();
    let limit = Instant::now() + Duration::from_secs(60);
    let (mut sent, mut received) = (0, 0);
    for round in 0..300u32 {
        for (n, frame) in frames.iter().enumerate() {
            sent += usize::from(world.inject_at(A, n % 2, frame, Offload::NONE));
        }
        (0..2).for_each(|worker| world.mailbox(worker).bell.wake());
        let gateway = if round % 2 == 0 { "198.19.0.8" } else { "198.19.0.9" };
        route(&mut world, "203.0.113.0/24", RouteKind::via(B, ip(gateway)));
        route(&mut world, &format!("203.0.113.{}/32", round % 200), RouteKind::via(B, ip("198.19.0.9")));
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        while received < sent && Instant::now() < limit {
            let out = world.collect(B);
            assert!(out.iter().all(|f| f[..6] == MAC_B9.0 || f[..6] == other.0), "whole MACs only");
            received += out.len();
        }
    }
    (0..2).for_each(|worker| assert!(world.mailbox(worker).send(Command::Stop).is_ok()));
    let workers = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    world.return_workers(workers);
    assert_eq!((received, sent), (300 * 64, 300 * 64));
    let sleeps: u64 = (0..2).map(|n| world.worker(n).counters().sleeps.get()).sum();
    let totals = check(world);
    assert!(totals.dropped.is_empty() && totals.handed_over.0 > 0, "{totals:?}");
    println!("{sleeps} sleeps");
}

#[test]
pub fn buffers_find_their_way_back_when_traffic_goes_one_way() {
    // All comes in at worker 0, is owned by both, and leaves; 64 times what each pool holds.
    let mut world = world(ports().workers(2).buffers(256, 512).options(|o| o.flow_owner = true));
    for round in 0..128 {
        for flow in 0..128u16 {
            let frame = packet("198.18.0.9", "203.0.113.5").udp(flow, round, 4).at_a(&world);
            assert!(world.inject_at(A, 0, &frame, Offload::NONE), "round {round}");
            let lost = packet("198.18.0.9", "192.0.2.5").udp(flow, round, 4).at_a(&world);
            assert!(world.inject_at(A, 0, &lost, Offload::NONE), "round {round}");
        }
        world.settle();
        assert_eq!(world.collect(B).len(), 128);
        world.collect(A);
    }
    check(world);
}
