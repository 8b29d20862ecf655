//! Stages that drop, hold, make and redirect packets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::packet::{Family, Flags, Offload, Packet, PortId};
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::verdict::{Consumed, DropReason, Generated, PuntClass, Verdict};
use ferrule_dataplane::worker::Command;

use crate::common::*;

/// A stage that is a function of one packet.
pub struct Each<F>(F);

impl<F: FnMut(Hook, &mut Packet) + Send> Stage for Each<F> {
    fn name(&self) -> &'static str {
        "each"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, _context: &mut Context<'_>) {
        batch.packets_mut().iter_mut().filter(|p| p.goes_on()).for_each(|p| (self.0)(hook, p));
    }
}

impl<F: FnMut(Hook, &mut Packet) + Send + 'static> Each<F> {
    /// A line-up of this one stage.
    pub fn line_up(each: F) -> Vec<Box<dyn Stage>> {
        vec![Box::new(Each(each))]
    }
}

fn set_destination(packet: &mut Packet, to: [u8; 4]) {
    let h = packet.frame.header_mut();
    h[30..34].copy_from_slice(&to);
    h[24..26].fill(0);
    let check = checksum(&h[14..34]);
    h[24..26].copy_from_slice(&check.to_be_bytes());
}

#[test]
pub fn both_hooks_see_a_packet_in_line_up_order_and_back() {
    use std::sync::Mutex;
    type Seen = Vec<(usize, Hook, PortId, PortId)>;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let log = seen.clone();
    let mut world = world(ports().stages(move |_| {
        (0..2usize)
            .map(|n| {
                let log = log.clone();
                let each = move |hook, p: &mut Packet| log.lock().unwrap().push((n, hook, p.ingress, p.egress));
                Box::new(Each(each)) as Box<dyn Stage>
            })
            .collect()
    }));
    let frame = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))]);
    let none = PortId::NONE;
    let order = [(0, Hook::In, A, none), (1, Hook::In, A, none), (1, Hook::Out, A, B), (0, Hook::Out, A, B)];
    assert_eq!(*seen.lock().unwrap(), order);
    // What Ferrule makes passes the Out hook only; what the parser dropped passes none.
    seen.lock().unwrap().clear();
    let frame = packet("198.18.0.9", "192.0.2.1").at_a(&world);
    dropped(&mut world, A, &frame, "no_route");
    assert_eq!(world.collect(A).len(), 1);
    let hooks: Vec<_> = seen.lock().unwrap().iter().map(|s| (s.0, s.1)).collect();
    assert_eq!(hooks, [(0, Hook::In), (1, Hook::In), (1, Hook::Out), (0, Hook::Out)], "the error goes out");
    check(world);
}

#[test]
pub fn drops_at_either_hook_are_counted_and_the_rest_passes() {
    let stage = |_| {
        Each::line_up(|hook, p: &mut Packet| match (hook, p.destination_port) {
            (Hook::In, 10) | (Hook::Out, 11) => p.judge(Verdict::Drop(DropReason::Filter)),
            (Hook::In, 12) => p.judge(Verdict::Drop(DropReason::Closed)),
            _ => {}
        })
    };
    let mut world = world(ports().stages(stage));
    for port in [10, 11, 12, 13] {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(1, port, 4).at_a(&world);
        assert!(world.inject(A, &frame));
    }
    world.settle();
    assert_eq!(world.collect(B).len(), 1);
    let totals = check(world);
    assert_eq!((totals.dropped["filter"], totals.dropped["closed"]), (2, 1));
}

#[test]
pub fn a_destination_changed_at_either_hook_is_routed_anew() {
    let stage = |_| {
        Each::line_up(|hook, p: &mut Packet| {
            if p.family == Family::V4 && p.destination_port == if hook == Hook::In { 20 } else { 21 } {
                set_destination(p, [198, 18, 0, 9]);
                if hook == Hook::Out {
                    p.flags.set(Flags::REROUTE);
                }
            }
        })
    };
    let mut world = world(ports().stages(stage));
    for port in [20, 21] {
        let frame = packet("198.18.0.7", "203.0.113.5").udp(1, port, 4).at_a(&world);
        send(&mut world, A, &frame);
        let mut expected = forwarded(&frame, MAC_A9, world.mac(A));
        expected[30..34].copy_from_slice(&[198, 18, 0, 9]);
        let expected = {
            expected[24..26].fill(0);
            let check = checksum(&expected[14..34]);
            expected[24..26].copy_from_slice(&check.to_be_bytes());
            expected
        };
        assert_eq!(world.collect(A), [expected], "TTL is one less, not two");
    }
    // Changed to a neighbour that is not known: it waits like any other.
    assert!(world.collect(B).is_empty());
    check(world);
}

#[test]
pub fn a_stage_may_send_packets_to_the_host() {
    let stage = |_| {
        Each::line_up(|hook, p: &mut Packet| {
            if hook == Hook::In && p.destination_port == 53 {
                p.judge(Verdict::Host(PuntClass::Other));
            }
        })
    };
    let mut world = world(ports().host([1000; 4], 16).stages(stage));
    let frame = packet("198.18.0.9", "203.0.113.5").udp(1, 53, 4).at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect_host(A), [frame]);
    check(world);
}

/// Holds every packet with a source port of 30 for a time, as a pipe does.
struct Pipe {
    held: VecDeque<(u64, Packet)>,
    delay: u64,
}

impl Stage for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        for packet in batch.packets_mut() {
            if hook == Hook::Out && packet.goes_on() && packet.source_port == 30 {
                match context.hold(packet) {
                    Some(held) => self.held.push_back((context.now + self.delay, held)),
                    None => packet.judge(Verdict::Drop(DropReason::NoBuffer)),
                }
            }
        }
    }

    fn poll(&mut self, batch: &mut Batch, context: &mut Context<'_>) {
        while let Some((due, _)) = self.held.front()
            && *due <= context.now
            && batch.room() > 0
            && let Some((_, packet)) = self.held.pop_front()
        {
            let _ = batch.push(packet);
        }
    }

    fn close(&mut self, context: &mut Context<'_>) {
        self.held.drain(..).for_each(|(_, packet)| context.discard_held(packet, DropReason::Shutdown));
    }
}

fn pipes(delay: u64) -> impl FnMut(usize) -> Vec<Box<dyn Stage>> {
    move |_| vec![Box::new(Pipe { held: VecDeque::new(), delay })]
}

#[test]
pub fn held_packets_come_back_in_order_and_count_as_held_meanwhile() {
    let mut world = world(ports().stages(pipes(5 * MILLISECOND)));
    let mut expected = vec![];
    for n in 0..300u16 {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(30, n, 4).at_a(&world);
        send(&mut world, A, &frame);
        expected.push(forwarded(&frame, MAC_B9, world.mac(B)));
    }
    // One that waits for its neighbour beside them: both count.
    let frame = packet("198.18.0.9", "198.19.0.70").at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!((world.balance().held, world.balance().difference()), (301, 0));
    world.collect(B);
    world.advance(4 * MILLISECOND);
    assert!(world.collect(B).is_empty() && world.worker(0).holds());
    world.advance(MILLISECOND);
    assert_eq!(world.collect(B), expected);
    assert_eq!(world.balance().held, 1);
    check(world);
}

#[test]
pub fn what_a_stage_holds_is_given_up_at_the_end_and_at_a_reload() {
    let mut world = world(ports().stages(pipes(SECOND)));
    for round in 0..2 {
        for n in 0..10u16 {
            let frame = packet("198.18.0.9", "203.0.113.5").udp(30, n, 4).at_a(&world);
            send(&mut world, A, &frame);
        }
        assert_eq!(world.balance().held, 10);
        if round == 0 {
            world.command(0, Command::Stages(pipes(SECOND)(0)));
            assert_eq!((world.balance().held, world.dropped(DropReason::Shutdown)), (0, 10));
        }
    }
    assert_eq!(check(world).dropped["shutdown"], 20);
}

/// Copies every packet from port 40 as it leaves, resets what comes from 41, consumes 42, and answers its own copies without end from 43.
struct Maker;

impl Stage for Maker {
    fn name(&self) -> &'static str {
        "maker"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        for packet in batch.packets_mut() {
            let endless = packet.source_port == 43;
            let own = packet.flags.has(Flags::GENERATED);
            if hook != Hook::Out || !packet.goes_on() || (own && !endless) {
                continue;
            }
            match packet.source_port {
                40 | 43 => {
                    let bytes = packet.frame.head().to_vec();
                    let Some(frame) = context.pool.frame_from(&bytes) else { continue };
                    let mut copy = Packet::new(frame, Offload::NONE, PortId::NONE);
                    (copy.family, copy.l4, copy.protocol) = (packet.family, packet.l4, packet.protocol);
                    (copy.source_port, copy.destination_port) = (packet.source_port, packet.destination_port);
                    context.emit(if packet.source_port == 40 { Generated::Copy } else { Generated::Reassembled }, copy);
                }
                42 => {
                    packet.judge(Verdict::Consumed(Consumed::Replayed));
                    context.counters.consumed[Consumed::Replayed as usize].add(1);
                }
                44 => {
                    packet.judge(Verdict::Consumed(Consumed::Reassembled));
                    context.counters.consumed[Consumed::Reassembled as usize].add(1);
                }
                _ => {}
            }
        }
    }
}

#[test]
pub fn what_a_stage_makes_leaves_in_the_same_turn_and_is_counted() {
    let mut world = world(ports().stages(|_| vec![Box::new(Maker)]));
    for port in [40, 42, 44] {
        let frame = packet("198.18.0.9", "203.0.113.5").udp(port, 9, 4).at_a(&world);
        assert!(world.inject(A, &frame));
    }
    world.step();
    let out = world.collect(B);
    assert_eq!((out.len(), &out[0]), (2, &out[1]));
    let totals = check(world);
    assert_eq!((totals.generated["copy"], totals.consumed["replayed"], totals.consumed["reassembled"]), (1, 1, 1));
}

#[test]
pub fn packets_that_make_packets_end() {
    let mut world = world(ports().stages(|_| vec![Box::new(Maker)]));
    for _ in 0..3 {
        for _ in 0..100 {
            let frame = packet("198.18.0.9", "203.0.113.5").udp(43, 9, 4).at_a(&world);
            assert!(world.inject(A, &frame));
        }
        world.settle();
        world.collect(B);
    }
    let totals = check(world);
    // Four generations of every packet are sent, the fifth is dropped.
    assert_eq!((totals.generated["reassembled"], totals.dropped["route_loop"]), (300 * 5, 300));
}

#[test]
pub fn more_than_a_turn_may_make_is_dropped() {
    struct Flood;
    impl Stage for Flood {
        fn name(&self) -> &'static str {
            "flood"
        }

        fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
            if hook == Hook::In && batch.packets().iter().any(|p| p.source_port == 50) {
                for _ in 0..1100 {
                    let Some(frame) = context.pool.frame_from(batch.packets()[0].frame.head()) else { return };
                    let mut copy = Packet::new(frame, Offload::NONE, PortId::NONE);
                    (copy.family, copy.l4) = (Family::V4, 34);
                    context.emit(Generated::Copy, copy);
                }
            }
        }
    }
    let mut world = world(ports().ring(4096).stages(|_| vec![Box::new(Flood)]));
    let frame = packet("198.18.0.9", "203.0.113.5").udp(50, 9, 4).at_a(&world);
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B).len(), 1025);
    let totals = check(world);
    assert_eq!((totals.generated["copy"], totals.dropped["no_buffer"]), (1100, 76));
}

#[test]
pub fn stages_are_counted() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let stage = |_| {
        Each::line_up(|_, _: &mut Packet| {
            CALLS.fetch_add(1, Ordering::Relaxed);
        })
    };
    let mut world = world(ports().stages(stage));
    for _ in 0..50 {
        let frame = packet("198.18.0.9", "203.0.113.5").at_a(&world);
        assert!(world.inject(A, &frame));
    }
    world.settle();
    assert_eq!(CALLS.load(Ordering::Relaxed), 100);
    let node = &world.worker(0).counters().stages[0];
    assert_eq!((node.packets.get(), node.calls.get()), (100, 2));
    world.collect(B);
    check(world);
}
