//! Ports that fail, rings that are full, memory that runs out, and the end.

use ferrule_dataplane::arena::Pool;
use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::PortSettings;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::{PortError, QueuePair, RxQueue, TxFrame, TxQueue};
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::worker::{Command, Event};
use ferrule_dataplane::world::World;

use crate::common::*;

fn through(world: &World) -> Vec<u8> {
    packet("198.18.0.9", "203.0.113.5").at_a(world)
}

fn back(world: &World) -> Vec<u8> {
    packet("203.0.113.5", "198.18.0.9").frame(world.mac(B), MAC_B9)
}

#[test]
pub fn a_detached_port_drops_what_is_for_it_and_works_again_when_attached() {
    let mut world = two();
    let frame = through(&world);
    // What lies in the ring of a port that goes was never received.
    assert!(world.inject(B, &back(&world)));
    world.detach(B);
    assert!(matches!(world.event(), Some((0, Event::Detached(PortId(1))))));
    dropped(&mut world, A, &frame, "port_down");
    world.attach_memory(B);
    for _ in 0..3 {
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B).len(), 1);
        let back = back(&world);
        send(&mut world, B, &back);
        assert_eq!(world.collect(A).len(), 1);
    }
    check(world);
}

#[test]
pub fn while_a_port_is_down_its_routes_say_so() {
    let mut world = two();
    let settings = PortSettings { mac: world.mac(B), mtu: 1500, vlan: None, up: false };
    world.table.port_set(B, settings).unwrap();
    let frame = through(&world);
    dropped(&mut world, A, &frame, "unreachable");
    assert_eq!(error(&world.collect(A)[0]).kind, (3, 1));
    world.table.port_set(B, PortSettings { up: true, ..settings }).unwrap();
    send(&mut world, A, &frame);
    assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))]);
    check(world);
}

/// A device that works for a while.
struct Device {
    port: PortId,
    sends: usize,
    receives: usize,
    /// Frames that it calls too long.
    refuses: bool,
}

impl RxQueue for Device {
    fn receive(&mut self, _: &mut Batch, _: usize, _: &mut Pool) -> Result<usize, PortError> {
        if self.receives == 0 {
            return Err(PortError::Lost("unplugged".into()));
        }
        self.receives -= 1;
        Ok(0)
    }

    fn close(&mut self, _: &mut Pool) {}
}

impl TxQueue for Device {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        if self.refuses {
            refused.append(frames);
            return Ok(());
        }
        let n = self.sends.min(frames.len());
        frames.drain(..n).for_each(|t| pool.free(t.frame));
        self.sends -= n;
        if self.sends == 0 { Err(PortError::Lost("unplugged".into())) } else { Ok(()) }
    }

    fn close(&mut self, _: &mut Pool) {}
}

fn device(port: PortId, sends: usize, receives: usize, refuses: bool) -> QueuePair {
    let new = |sends, receives| Box::new(Device { port, sends, receives, refuses });
    let _ = new(0, 0).port;
    QueuePair { port, rx: new(0, receives), tx: new(sends, 0) }
}

#[test]
pub fn a_lost_device_ends_its_port_alone_and_tells() {
    for (sends, receives) in [(3, usize::MAX), (usize::MAX, 2)] {
        let mut world = two();
        world.attach(0, device(B, sends, receives, false));
        while world.event().is_some() {}
        for _ in 0..10 {
            let frame = through(&world);
            send(&mut world, A, &frame);
        }
        let (worker, event) = world.event().unwrap();
        assert!(
            worker == 0 && matches!(&event, Event::PortLost(PortId(1), why) if why.contains("unplugged")),
            "{event:?}"
        );
        assert!(world.dropped(DropReason::PortDown) >= 7);
        // The others go on, and the port comes back.
        let hairpin = packet("198.18.0.7", "198.18.0.9").at_a(&world);
        send(&mut world, A, &hairpin);
        assert_eq!(world.collect(A).len(), 1);
        world.attach_memory(B);
        let frame = through(&world);
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B).len(), 1);
        check(world);
    }
}

#[test]
pub fn frames_that_a_device_refuses_are_counted() {
    let mut world = two();
    world.attach(0, device(B, usize::MAX, usize::MAX, true));
    for _ in 0..5 {
        let frame = through(&world);
        send(&mut world, A, &frame);
    }
    assert_eq!(check(world).dropped["tx_refused"], 5);
}

#[test]
pub fn a_full_transmit_ring_drops_the_rest_and_says_so() {
    let mut world = world(ports().ring(64));
    for round in 0..3u64 {
        let frame = through(&world);
        for _ in 0..64 {
            assert!(world.inject(A, &frame));
        }
        assert!(!world.inject(A, &frame), "the ring holds 64");
        world.settle();
        assert_eq!(world.dropped(DropReason::TxFull), round * 64);
    }
    assert_eq!(world.collect(B).len(), 64);
    check(world);
}

#[test]
pub fn without_buffers_pieces_and_errors_are_left_out_and_forwarding_goes_on() {
    // Eight buffers of the worker's own: enough to forward, whose buffers come from outside, not to cut into ten pieces.
    let plan = ferrule_dataplane::world::PortPlan::new("c").mtu(120).address("198.51.100.1/24".parse().unwrap());
    let mut world = world(ports().port(plan).buffers(8, 256));
    world.table.neighbor_set(PortId(2), ip("198.51.100.9"), Some(MAC_B9)).unwrap();
    let long = packet("198.18.0.9", "198.51.100.9").udp(1, 2, 1000).at_a(&world);
    dropped(&mut world, A, &long, "no_buffer");
    let lost = packet("198.18.0.9", "192.0.2.1").at_a(&world);
    for _ in 0..40 {
        assert!(world.inject(A, &lost) && world.inject(A, &through(&world)));
    }
    world.settle();
    assert_eq!(world.collect(B).len(), 40);
    let told = world.collect(A).len() as u64;
    let totals = check(world);
    assert!(told >= 8 && told + totals.icmp_suppressed == 40, "{told} {totals:?}");
}

#[test]
pub fn the_end_gives_up_what_is_held_and_sends_what_is_ready() {
    let mut world = world(ports().host([1000; 4], 64).workers(2).options(|o| o.flow_owner = true));
    for n in 0..50u16 {
        let waits = packet("198.18.0.9", &format!("198.19.0.{}", 100 + n % 8)).udp(n, 1, 4).at_a(&world);
        assert!(world.inject(A, &waits) && world.inject(A, &through(&world)));
    }
    world.step();
    // On their way when the end comes: in the ring of a port, to another worker, from the host.
    let mac = world.mac(B);
    for n in 0..10u16 {
        assert!(world.inject(A, &packet("198.18.0.9", "203.0.113.5").udp(n, 9, 4).at_a(&world)));
        assert!(world.inject_host(B, &packet("198.19.0.1", "198.19.0.9").udp(n, 9, 4).frame(MAC_B9, mac)));
    }
    world.worker(0).turn();
    assert!(world.balance().held > 0);
    world.command(1, Command::Stop);
    let totals = check(world);
    assert!(totals.dropped["shutdown"] > 0);
}
