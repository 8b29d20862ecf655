//! A gateway between memory ports whose worker's turns are timed: generator and sink run on the same core and are not counted.
//!
//! One [`Rig`] is one thing to be measured: the benchmarks differ in how many buffers there are, where they lie, what is written in
//! them and which routes there are. A round takes every frame once from the first port to the second, in pieces of [`PIECE`], so that
//! the rings stay in cache as a NIC's do while the packets' own memory may not.

#![forbid(unsafe_code)]

use ferrule_dataplane::arena::{DEFAULT_STRIDE, Frame, HEADER_WINDOW, HugePages, Pages};
use ferrule_dataplane::clock;
use ferrule_dataplane::counters::{NODE_COUNT, NODES, WorkerCounters};
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind, RoutingTable, TableLimits};
use ferrule_dataplane::packet::{Offload, PortId};
use ferrule_dataplane::port::TxFrame;
use ferrule_dataplane::stage::Stage;
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::world::{Lane, PortPlan, World};

use super::flows::Family;
use crate::failure::Failure;

/// Frames that are on the rings at once.
pub const PIECE: usize = 2048;
/// Gateways behind the second port.
pub const GATEWAYS: u16 = 64;
/// Buffers of a worker's own, which no frame of a round needs.
const SPARE: usize = 512;
/// Rounds that a written frame lasts: its TTL starts at 64.
pub const ROUNDS_PER_FILL: usize = 40;

/// Names of the two ports, as rules know them: packets come in by the first and go out by the second.
pub const PORTS: [&str; 2] = ["em0", "em1"];

const IN: PortId = PortId(0);
const OUT: PortId = PortId(1);

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct RigPlan {
    /// Frames of a worker.
    pub frames: usize,
    /// Bytes from one buffer to the next.
    pub stride: usize,
    /// Frames in random order instead of that of their memory.
    pub shuffled: bool,
    /// Most packets of a batch.
    pub batch: usize,
    /// Workers, each with its own frames.
    pub workers: usize,
    /// Sizes of the routing table.
    pub limits: TableLimits,
    /// Runs on a clock that [`Rig::advance`] moves instead of the machine's.
    pub virtual_time: bool,
}

impl Default for RigPlan {
    fn default() -> RigPlan {
        RigPlan {
            frames: PIECE,
            stride: DEFAULT_STRIDE,
            shuffled: false,
            batch: ferrule_dataplane::batch::BATCH_MAX,
            workers: 1,
            limits: TableLimits { adjacencies: 4096, multipath_groups: 64 },
            virtual_time: false,
        }
    }
}

/// What one round took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Packets that came out.
    pub packets: u64,
    /// TSC cycles of the worker's turns.
    pub cycles: u64,
    /// TSC cycles by node of [`NODES`], of the packets that were stamped.
    pub node_cycles: [u64; NODE_COUNT],
    /// Packets that were stamped, by node.
    pub node_packets: [u64; NODE_COUNT],
    /// TSC cycles in filter stages, where the packets went through them one stage at a time.
    pub stage_cycles: u64,
}

impl Round {
    /// TSC cycles per packet.
    pub fn cycles_per_packet(&self) -> f64 {
        self.cycles as f64 / self.packets as f64
    }

    /// TSC cycles per packet in filter stages, both passes together; 0 where none was stamped.
    pub fn stages(&self) -> f64 {
        self.stage_cycles as f64 / self.packets as f64
    }

    /// TSC cycles per packet in one node, 0 where none was stamped.
    pub fn node(&self, node: usize) -> f64 {
        match self.node_packets[node] {
            0 => 0.0,
            packets => self.node_cycles[node] as f64 / packets as f64,
        }
    }
}

/// A small generator of random numbers (xorshift64*, Marsaglia and Vigna), the same in every run.
pub struct Random(u64);

impl Random {
    /// One of the many sequences.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.draw()) * end as u128) >> 64) as usize
    }

    /// Puts things in random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for i in (1..things.len()).rev() {
            things.swap(i, self.below(i + 1));
        }
    }
}

/// A gateway with its frames.
pub struct Rig {
    world: World,
    /// By worker: the frames in the order in which they are sent, and room for them while they are on their way.
    frames: Vec<(Vec<Frame>, Vec<Frame>)>,
}

fn failed(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::runtime(format!("{what}: {error}"))
}

impl Rig {
    /// Puts it together: two ports, [`GATEWAYS`] resolved gateways of each family behind the second, no routes but the connected ones.
    ///
    /// # Errors
    /// When memory cannot be had.
    pub fn new(plan: &RigPlan) -> Result<Rig, Failure> {
        Rig::with_stages(plan, |_| Vec::new())
    }

    /// As [`Rig::new`], with the filter stages that `make` gives each worker.
    ///
    /// # Errors
    /// When memory cannot be had.
    pub fn with_stages(
        plan: &RigPlan,
        make: impl FnMut(usize) -> Vec<Box<dyn Stage>> + 'static,
    ) -> Result<Rig, Failure> {
        let total = plan.frames * plan.workers;
        let mut builder = World::builder();
        if !plan.virtual_time {
            builder = builder.real_time();
        }
        let mut world = builder
            .port(PortPlan::new(PORTS[0]))
            .port(PortPlan::new(PORTS[1]))
            .stages(make)
            .workers(plan.workers)
            .buffers(SPARE, total)
            .memory(plan.stride, HugePages::Prefer)
            .ring(PIECE)
            .limits(plan.limits)
            .options(|o| o.batch = plan.batch)
            .build()
            .map_err(|e| failed("putting the gateway together", e))?;
        // The gateways have the first port's MAC address: a frame that came out can go in again as it is.
        let back = world.mac(IN);
        for family in Family::ALL {
            let connected: ipnetwork::IpNetwork = match family {
                Family::Inet => "10.0.0.0/16",
                Family::Inet6 => "fd00::/64",
            }
            .parse()
            .map_err(|e| failed("the gateways' network", e))?;
            let refused = |e| failed("a gateway", e);
            world.table.route_replace(connected.into(), 0, RouteKind::Connected { port: OUT }).map_err(refused)?;
            for number in 1..=GATEWAYS {
                world.table.neighbor_set(OUT, family.gateway(number), Some(back)).map_err(refused)?;
            }
        }
        let mut all: Vec<Frame> = std::iter::from_fn(|| world.pool().alloc()).take(total).collect();
        if all.len() < total {
            return Err(Failure::runtime(format!("only {} of {total} buffers could be had", all.len())));
        }
        all.sort_by_key(Frame::buffer);
        let mut random = Random::new(1);
        let mut frames = Vec::new();
        for _ in 0..plan.workers {
            let mut own: Vec<Frame> = all.drain(..plan.frames).collect();
            if plan.shuffled {
                random.shuffle(&mut own);
            }
            frames.push((own, Vec::with_capacity(plan.frames)));
        }
        Ok(Rig { world, frames })
    }

    /// Routes and neighbours.
    pub fn table(&mut self) -> &mut RoutingTable {
        &mut self.world.table
    }

    /// A route's target: the gateway of this number, counted from 0 and round and round.
    pub fn via(family: Family, number: u64) -> RouteKind {
        RouteKind::via(OUT, family.gateway(1 + (number % u64::from(GATEWAYS)) as u16))
    }

    /// Adds a route to the network of the classic flow set.
    ///
    /// # Errors
    /// When the table is full.
    pub fn classic_route(&mut self, family: Family) -> Result<(), Failure> {
        self.route(family, family.classic_network())
    }

    /// Adds a route to a network, by the first gateway.
    ///
    /// # Errors
    /// When the table is full.
    pub fn route(&mut self, family: Family, network: Prefix) -> Result<(), Failure> {
        self.world.table.route_replace(network, 0, Rig::via(family, 0)).map(drop).map_err(|e| failed("the route", e))
    }

    /// Moves the virtual clock on and gives the worker so many turns without packets; the TSC cycles that these took.
    ///
    /// # Errors
    /// When the rig runs in real time.
    pub fn advance(&mut self, nanoseconds: u64, turns: usize) -> Result<u64, Failure> {
        let clock = self.world.clock().ok_or_else(|| Failure::runtime("a rig in real time cannot be moved on"))?;
        clock.advance(nanoseconds);
        let worker = self.world.worker(0);
        let start = clock::cycles();
        for _ in 0..turns {
            worker.turn();
        }
        Ok(clock::cycles().wrapping_sub(start))
    }

    /// The pages behind the packet memory.
    pub fn pages(&mut self) -> Pages {
        self.world.pool().arena().pages()
    }

    /// MAC addresses that a frame into the gateway has: its destination and its source.
    pub fn macs(&self) -> (MacAddress, MacAddress) {
        (self.world.mac(IN), MacAddress([2, 0, 0, 0, 7, 7]))
    }

    /// Has every frame of every worker written; see [`Driven::fill`].
    ///
    /// # Errors
    /// As there.
    pub fn fill(&mut self, mut write: impl FnMut(&mut [u8; HEADER_WINDOW]) -> usize) -> Result<(), Failure> {
        self.frames.iter_mut().try_for_each(|(frames, _)| fill(frames, &mut write))
    }

    /// Sends every frame of the first worker once; see [`Driven::round`].
    ///
    /// # Errors
    /// As there.
    pub fn round(&mut self) -> Result<Round, Failure> {
        match self.world.lanes().into_iter().zip(&mut self.frames).next() {
            Some((lane, frames)) => Driven { lane, frames }.round(),
            None => Err(Failure::runtime("a gateway without workers")),
        }
    }

    /// Runs `drive` for every worker at the same time, each on a thread of its own; its results in the order of the workers.
    ///
    /// # Errors
    /// Those of `drive`, or a thread that panicked.
    pub fn at_once<T: Send>(
        &mut self,
        drive: impl Fn(usize, &mut Driven<'_>) -> Result<T, Failure> + Sync,
    ) -> Result<Vec<T>, Failure> {
        let drive = &drive;
        std::thread::scope(|scope| {
            let lanes = self.world.lanes().into_iter().zip(&mut self.frames).enumerate();
            let threads: Vec<_> = lanes
                .map(|(worker, (lane, frames))| scope.spawn(move || drive(worker, &mut Driven { lane, frames })))
                .collect();
            let panicked = |_| Failure::runtime("a thread of the measurement panicked");
            threads.into_iter().map(|thread| thread.join().map_err(panicked)?).collect()
        })
    }

    /// Ends it; whether every packet and buffer is accounted for.
    pub fn close(mut self) -> bool {
        for (frames, _) in &mut self.frames {
            for frame in frames.drain(..) {
                self.world.pool().free(frame);
            }
        }
        self.world.close().is_exact()
    }
}

/// One worker with its frames.
pub struct Driven<'a> {
    lane: Lane<'a>,
    frames: &'a mut (Vec<Frame>, Vec<Frame>),
}

fn fill(frames: &mut [Frame], mut write: impl FnMut(&mut [u8; HEADER_WINDOW]) -> usize) -> Result<(), Failure> {
    for frame in frames {
        let len = write(frame.header_mut());
        if !frame.set_len(len) {
            return Err(Failure::runtime(format!("a frame of {len} bytes does not fit in a buffer")));
        }
    }
    Ok(())
}

impl Driven<'_> {
    /// Has every frame written: `write` gets its bytes and says its length. It lasts for [`ROUNDS_PER_FILL`] rounds.
    ///
    /// # Errors
    /// When a frame is longer than a buffer.
    pub fn fill(&mut self, write: impl FnMut(&mut [u8; HEADER_WINDOW]) -> usize) -> Result<(), Failure> {
        fill(&mut self.frames.0, write)
    }

    /// Sends every frame once.
    ///
    /// # Errors
    /// When not all of them came out: with the reasons for which they were dropped.
    pub fn round(&mut self) -> Result<Round, Failure> {
        round(&mut self.lane, self.frames)
    }
}

/// Takes all of a worker's frames through it once.
fn round(lane: &mut Lane<'_>, (frames, back): &mut (Vec<Frame>, Vec<Frame>)) -> Result<Round, Failure> {
    let Lane { worker, peers } = lane;
    let [Some(input), Some(output)] = &mut peers[..] else {
        return Err(Failure::runtime("the gateway lost a port"));
    };
    let before = nodes(worker.counters());
    let stages_before = stages(worker.counters());
    let (mut packets, mut cycles) = (0, 0);
    let mut lost = false;
    back.clear();
    let mut waiting = frames.drain(..);
    while waiting.len() > 0 {
        let mut sent = 0;
        for frame in waiting.by_ref().take(PIECE) {
            if let Err(rtrb::PushError::Full(refused)) = input.to_port.push(TxFrame { frame, offload: Offload::NONE }) {
                back.push(refused.frame);
                lost = true;
            }
            sent += 1;
        }
        let start = clock::cycles();
        let mut found = 0;
        while found < sent {
            match worker.turn() {
                0 => break,
                some => found += some,
            }
        }
        cycles += clock::cycles().wrapping_sub(start);
        let had = back.len();
        while let Ok(done) = output.from_port.pop() {
            back.push(done.frame);
        }
        packets += (back.len() - had) as u64;
        lost |= back.len() - had != sent;
    }
    drop(waiting);
    std::mem::swap(frames, back);
    if lost {
        let why = drops(worker.counters());
        return Err(Failure::runtime(format!("{packets} of the round's packets came out; dropped: {why}")));
    }
    let after = nodes(worker.counters());
    let difference = |i: usize, f: fn(&(u64, u64)) -> u64| f(&after[i]).wrapping_sub(f(&before[i]));
    Ok(Round {
        packets,
        cycles,
        node_cycles: std::array::from_fn(|i| difference(i, |n| n.0)),
        node_packets: std::array::from_fn(|i| difference(i, |n| n.1)),
        stage_cycles: stages(worker.counters()).wrapping_sub(stages_before),
    })
}

fn nodes(counters: &WorkerCounters) -> [(u64, u64); NODES.len()] {
    std::array::from_fn(|i| (counters.nodes[i].cycles.get(), counters.nodes[i].packets.get()))
}

fn stages(counters: &WorkerCounters) -> u64 {
    counters.stages.iter().map(|stage| stage.cycles.get()).sum()
}

fn drops(counters: &WorkerCounters) -> String {
    let some = DropReason::ALL.iter().zip(&counters.dropped).filter(|(_, count)| count.get() > 0);
    let texts: Vec<String> = some.map(|(reason, count)| format!("{} {}", reason.label(), count.get())).collect();
    if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::flows::write_frame;
    use super::*;

    fn filled(plan: &RigPlan, family: Family) -> Rig {
        let mut rig = Rig::new(plan).unwrap();
        rig.classic_route(family).unwrap();
        let (to, from) = rig.macs();
        let mut number = 0;
        rig.fill(|frame| {
            number += 1;
            write_frame(frame, to, from, family.classic_flow(number))
        })
        .unwrap();
        rig
    }

    #[test]
    fn frames_go_round_until_their_ttl_is_used_up() {
        for family in Family::ALL {
            let mut rig = filled(&RigPlan { frames: 300, batch: 64, ..RigPlan::default() }, family);
            for _ in 0..ROUNDS_PER_FILL {
                let round = rig.round().unwrap();
                assert_eq!(round.packets, 300);
                assert!(round.cycles > 0 && round.node_packets[0] == 300 && round.node(2) > 0.0, "{round:?}");
            }
            for _ in ROUNDS_PER_FILL..63 {
                rig.round().unwrap();
            }
            let error = rig.round().unwrap_err().to_string();
            assert!(error.contains("0 of the round's packets"), "{error}");
        }
    }

    #[test]
    fn more_frames_than_a_ring_holds_go_in_pieces_and_all_come_back() {
        let mut rig = filled(&RigPlan { frames: PIECE + 7, shuffled: true, ..RigPlan::default() }, Family::Inet);
        assert_eq!(rig.round().unwrap().packets as usize, PIECE + 7);
        assert_eq!(rig.round().unwrap().packets as usize, PIECE + 7);
        assert!(rig.close(), "every packet and buffer is accounted for");
    }

    #[test]
    fn two_workers_run_at_once() {
        let mut rig = filled(&RigPlan { frames: 256, workers: 2, ..RigPlan::default() }, Family::Inet6);
        let packets = rig.at_once(|_, driven| Ok(driven.round()?.packets + driven.round()?.packets)).unwrap();
        assert_eq!(packets, [512, 512]);
        assert!(rig.close());
    }
}
