//! No allocation per packet after start-up: every turn of a worker is watched by a counting allocator, whatever the packets are.

// The frames and the standard world of the path's tests; this test uses a part of them.
#[allow(dead_code)]
#[path = "path/common.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;

use common::*;
use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::{PortId, RouteKind, VlanTag};
use ferrule_dataplane::packet::{Offload, Packet};
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::worker::Dispatch;
use ferrule_dataplane::world::{PortPlan, World};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it is; the counter is a plain thread-local cell without a destructor, so
// touching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller keeps GlobalAlloc's contract, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in alloc(); the pointer came from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as in dealloc().
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `run` runs.
fn allocations(run: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    run();
    COUNT.get() - before
}

/// Throws away what left every port, without copying it.
fn drain(world: &mut World) {
    for port in 0..world.shared().ports.len() as u16 {
        for worker in 0..world.workers() {
            let Some((pool, peer)) = world.pool_and_peer(PortId(port), worker) else { continue };
            while let Ok(sent) = peer.from_port.pop() {
                pool.free(sent.frame);
            }
        }
        world.collect_host(PortId(port));
    }
}

/// Lets the world carry the frames for `rounds` rounds, all of them in each, and expects no allocation in any turn after the first rounds.
/// `between` does what the outside world does between two rounds.
#[track_caller]
fn quiet(mut world: World, frames: &[Vec<u8>], mut between: impl FnMut(&mut World, usize)) {
    for round in 0..12 {
        between(&mut world, round);
        for frame in frames {
            assert!(world.inject_at(A, round % world.workers(), frame, Offload::NONE));
        }
        let count = allocations(|| while world.step() > 0 {});
        assert!(round < 2 || count == 0, "{count} allocations in round {round}");
        drain(&mut world);
    }
    let totals = check(world);
    assert!(totals.ports[0][0].0 >= 12 * frames.len() as u64);
}

/// Good ones of both families, `n` flows.
fn flows(world: &World, n: u16) -> Vec<Vec<u8>> {
    (0..n)
        .flat_map(|flow| {
            [("198.18.0.9", "203.0.113.5"), ("2001:db8:a::9", "2001:db8:f::5")]
                .map(|(from, to)| packet(from, to).udp(1000 + flow, 53, 18).at_a(world))
        })
        .collect()
}

#[test]
fn the_count_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1, 2, 3]))), 1);
}

#[test]
fn forwarding() {
    for batch in [1, 64, 256] {
        let world = world(ports().options(|o| o.batch = batch));
        let frames = flows(&world, 300);
        quiet(world, &frames, |_, _| ());
    }
}

/// Frames that leave the short way: VLAN tags, options, extension headers, several next hops, jumbo chains.
fn odd(world: &World) -> Vec<Vec<u8>> {
    let mut options = packet("198.18.0.9", "203.0.113.5");
    options.extra = vec![1, 1, 1, 0];
    let mut extension = packet("2001:db8:a::9", "2001:db8:f::5");
    (extension.protocol, extension.extra) = (0, vec![17, 0, 1, 4, 0, 0, 0, 0]);
    vec![
        options.at_a(world),
        extension.at_a(world),
        tagged(&packet("198.18.0.9", "203.0.113.5").at_a(world), &[(0x8100, 0x6000)]),
        packet("198.18.0.9", "10.5.0.9").at_a(world),
        packet("198.18.0.9", "198.51.100.9").udp(1, 2, 1400).at_a(world),
        packet("198.18.0.9", "198.51.100.9").udp(1, 2, 4000).at_a(world),
    ]
}

fn wide() -> World {
    let address = |plan: PortPlan, address: &str| plan.address(address.parse().unwrap());
    let tag = VlanTag { tpid: 0x8100, tci: 5 };
    let mut world = world(
        World::builder()
            .port(address(address(PortPlan::new("a").mtu(9000), "198.18.0.1/24"), "2001:db8:a::1/64"))
            .port(address(address(PortPlan::new("b"), "198.19.0.1/24"), "2001:db8:b::1/64"))
            .port(address(PortPlan::new("c").mtu(600), "198.51.100.1/24"))
            .port(address(PortPlan::vlan("b.5", B, tag), "10.5.0.1/24"))
            .stages(|_| vec![Box::new(Pipe(VecDeque::with_capacity(4096)))]),
    );
    world.table.neighbor_set(PortId(2), ip("198.51.100.9"), Some(MAC_B9)).unwrap();
    world.table.neighbor_set(PortId(3), ip("10.5.0.9"), Some(MAC_B9)).unwrap();
    world
}

/// Holds every fourth packet for a turn.
struct Pipe(VecDeque<Packet>);

impl Stage for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        for packet in batch.packets_mut().iter_mut().step_by(4) {
            if hook == Hook::Out && packet.goes_on() && self.0.len() < self.0.capacity() {
                self.0.extend(context.hold(packet));
            }
        }
    }

    fn poll(&mut self, batch: &mut Batch, _: &mut Context<'_>) {
        while batch.room() > 0
            && let Some(packet) = self.0.pop_front()
        {
            let _ = batch.push(packet);
        }
    }
}

#[test]
fn the_full_way_with_a_stage_that_holds() {
    let world = wide();
    let frames: Vec<_> = odd(&world).into_iter().cycle().take(120).collect();
    quiet(world, &frames, |_, _| ());
}

#[test]
fn one_at_a_time() {
    let world = world(ports().options(|o| o.fastforward = false));
    let frames = flows(&world, 100);
    quiet(world, &frames, |_, _| ());
}

#[test]
fn drops_and_what_the_senders_are_told() {
    let mut world = world(ports().options(|o| o.icmp_rate = (1_000_000, 1_000_000)));
    route(&mut world, "192.0.2.64/26", RouteKind::Prohibit);
    let mut bad_option = packet("198.18.0.9", "203.0.113.5");
    bad_option.extra = vec![131, 4, 4, 0];
    let whole = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    let frames: Vec<_> = [
        packet("198.18.0.9", "192.0.2.1").at_a(&world),
        packet("198.18.0.9", "192.0.2.65").at_a(&world),
        packet("198.18.0.9", "203.0.113.5").ttl(1).at_a(&world),
        packet("2001:db8:a::9", "2001:db8:f::5").ttl(1).at_a(&world),
        packet("2001:db8:a::9", "2001:db8:99::5").at_a(&world),
        bad_option.at_a(&world),
        whole[..30].to_vec(),
        tagged(&whole, &[(0x8100, 99); 2]),
        packet("127.0.0.1", "203.0.113.5").at_a(&world),
        // Standalone: answered by Ferrule itself.
        packet("198.18.0.9", "198.18.0.1").echo(1, 56).at_a(&world),
        packet("2001:db8:a::9", "2001:db8:a::1").echo(1, 56).at_a(&world),
        packet("198.18.0.9", "198.18.0.1").tcp(1, 80, 2).at_a(&world),
        packet("198.18.0.9", "198.18.0.1").udp(1, 80, 2).at_a(&world),
    ]
    .into_iter()
    .cycle()
    .take(260)
    .collect();
    quiet(world, &frames, |world, _| world.advance(SECOND));
}

#[test]
fn packets_that_wait_for_neighbours() {
    let world = world(ports().options(|o| (o.neighbor_queue, o.neighbor_limit) = (16, 64)));
    // 100 neighbours, of which 64 may be waited for, 4 packets each.
    let frames: Vec<_> = (0..400u16)
        .map(|n| packet("198.18.0.9", &format!("198.19.0.{}", 100 + n % 100)).udp(n, 1, 18).at_a(&world))
        .collect();
    quiet(world, &frames, |world, round| {
        // Every other time they are found, else they fail; both are the work of turns that count.
        for n in 100..200 {
            let mac = (round % 2 == 1).then_some(MAC_B9);
            world.table.neighbor_set(B, ip(&format!("198.19.0.{n}")), mac).unwrap();
        }
        let clock = world.clock().unwrap().clone();
        clock.advance(4 * SECOND);
        let count = allocations(|| while world.step() > 0 {});
        assert!(round < 2 || count == 0, "{count} allocations in round {round}");
        drain(world);
        for n in 100..200 {
            world.table.neighbor_set(B, ip(&format!("198.19.0.{n}")), None).unwrap();
        }
        world.requests();
    });
}

#[test]
fn hand_over_and_queues() {
    let world = world(ports().workers(2).options(|o| o.flow_owner = true));
    let frames = flows(&world, 200);
    quiet(world, &frames, |_, _| ());
    let world = common::world(ports().options(|o| o.dispatch = Dispatch::Queued));
    let frames = flows(&world, 200);
    quiet(world, &frames, |_, _| ());
}

#[test]
fn the_host_path() {
    let world = world(ports().host([1_000_000; 4], 1024));
    let frames: Vec<_> = (0..200u16).map(|n| packet("198.18.0.9", "198.18.0.1").tcp(n, 22, 2).at_a(&world)).collect();
    let down = packet("198.19.0.1", "198.19.0.9").frame(MAC_B9, world.mac(B));
    quiet(world, &frames, |world, _| {
        for _ in 0..100 {
            assert!(world.inject_host(B, &down));
        }
        // The limits are a second's worth.
        world.clock().unwrap().advance(SECOND);
    });
}

#[test]
fn full_rings_and_ports_that_are_gone() {
    let mut world = world(ports().ring(128).workers(2).handover(16).options(|o| o.flow_owner = true));
    world.detach(B);
    let frames = flows(&world, 64);
    quiet(world, &frames, |world, round| {
        if round == 6 {
            world.attach_memory(B);
            // Fill it up, so that the rest finds it full.
            for _ in 0..4 {
                for frame in flows(world, 64) {
                    assert!(world.inject(A, &frame));
                }
                while world.step() > 0 {}
            }
        }
    });
}
