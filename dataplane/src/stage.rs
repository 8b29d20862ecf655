//! What a filter or any other stage is: called once per batch and hook.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use crate::arena::Pool;
use crate::batch::{BATCH_MAX, Batch};
use crate::clock::Nanos;
use crate::counters::WorkerCounters;
use crate::fib::Fib;
use crate::packet::hash::HashSeed;
use crate::packet::{Flags, Offload, Packet, PortId};
use crate::ports::PortTable;
use crate::rate::TokenBucket;
use crate::verdict::{DropReason, Generated, Verdict};

/// Where in its way a packet is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// After the header checks, before "is it ours?" and the route look-up.
    In,
    /// After the route look-up; also for what the host sends and what Ferrule makes.
    Out,
}

/// What every worker shares and reads.
pub struct Shared {
    /// Routes.
    pub fib: Arc<Fib>,
    /// Ports.
    pub ports: PortTable,
    /// Secret of the flow hash.
    pub seed: HashSeed,
}

/// What a stage is given beside its batch.
pub struct Context<'a> {
    /// Time of this turn.
    pub now: Nanos,
    /// Number of the worker.
    pub worker: usize,
    /// Free buffers.
    pub pool: &'a mut Pool,
    /// The worker's counters.
    pub counters: &'a WorkerCounters,
    /// What all workers share.
    pub shared: &'a Shared,
    /// Limit of the worker's own ICMP errors (RFC 1812, 4.3.2.8; RFC 4443, 2.4 f).
    pub icmp_limit: &'a mut TokenBucket,
    /// Packets made in this turn; they are routed, pass the Out hook and leave in the same turn.
    generated: &'a mut Vec<Packet>,
}

/// What a stage foresees of a batch, see [`Stage::foresee`]. The memory is allocated once.
#[derive(Default)]
pub struct Foresight {
    /// By place in the batch: whether the packet will pass both hooks.
    pub passes: Vec<bool>,
    /// Whether the stage looked the routes up and noted the adjacencies in the descriptors, since its answer depends on them.
    pub is_routed: bool,
    /// Whether it says anything of the present batch.
    pub is_in_use: bool,
}

impl Foresight {
    /// One with room for a batch.
    pub fn new() -> Foresight {
        Foresight { passes: vec![false; BATCH_MAX], is_routed: false, is_in_use: false }
    }
}

/// Most packets that one turn may make; beyond it the maker is told that there is no buffer.
pub const GENERATED_MAX: usize = 1024;

impl<'a> Context<'a> {
    /// Puts the parts together; `generated` must have room for [`GENERATED_MAX`].
    pub fn new(
        now: Nanos,
        worker: usize,
        pool: &'a mut Pool,
        counters: &'a WorkerCounters,
        shared: &'a Shared,
        icmp_limit: &'a mut TokenBucket,
        generated: &'a mut Vec<Packet>,
    ) -> Context<'a> {
        debug_assert!(generated.capacity() >= GENERATED_MAX);
        Context { now, worker, pool, counters, shared, icmp_limit, generated }
    }

    /// Sends a packet that Ferrule made: an IP packet with its L3 and L4 fields parsed and Ethernet addresses still to be
    /// written. Counted under `kind` here and nowhere else; past [`GENERATED_MAX`] it is counted as made and dropped.
    pub fn emit(&mut self, kind: Generated, mut packet: Packet) {
        self.counters.generated[kind as usize].add(1);
        if self.generated.len() >= GENERATED_MAX {
            self.discard(packet, DropReason::NoBuffer);
            return;
        }
        packet.flags.set(Flags::GENERATED);
        self.generated.push(packet);
    }

    /// Ends a packet here and counts why.
    pub fn discard(&mut self, packet: Packet, reason: DropReason) {
        self.counters.count_drop(reason);
        self.pool.free(packet.frame);
    }

    /// Takes a packet out of its batch for a stage to keep; an empty buffer, marked Held, stays in its place. The packet counts as held
    /// until [`Stage::poll`] gives it back or [`Context::discard_held`] ends it. None, with nothing changed, without a free buffer.
    pub fn hold(&mut self, packet: &mut Packet) -> Option<Packet> {
        let mut empty = Packet::new(self.pool.alloc()?, Offload::NONE, packet.ingress);
        empty.judge(Verdict::Held);
        self.counters.held.add(1);
        Some(std::mem::replace(packet, empty))
    }

    /// Puts a packet that the stage held back into its place in a batch; the empty buffer there goes back to the pool.
    pub fn release(&mut self, place: &mut Packet, packet: Packet) {
        self.counters.held.add(1u64.wrapping_neg());
        let empty = std::mem::replace(place, packet);
        self.pool.free(empty.frame);
    }

    /// Books a packet that the stage held as its own again: what it makes of it then ends it, or is given back with [`Context::book_held`].
    pub fn unbook_held(&mut self) {
        self.counters.held.add(1u64.wrapping_neg());
    }

    /// Books a packet that the stage has as held.
    pub fn book_held(&mut self) {
        self.counters.held.add(1);
    }

    /// Books a held packet as on its way to the same stage of another worker, by a ring between the two.
    pub fn book_sent(&mut self) {
        self.counters.held.add(1u64.wrapping_neg());
        self.counters.ring_in.add(1);
    }

    /// Books a packet that came by such a ring as held here.
    pub fn book_received(&mut self) {
        self.counters.ring_out.add(1);
        self.counters.held.add(1);
    }

    /// Ends a packet that the stage held.
    pub fn discard_held(&mut self, packet: Packet, reason: DropReason) {
        self.counters.held.add(1u64.wrapping_neg());
        self.discard(packet, reason);
    }

    /// How many packets were made in this turn so far.
    pub fn generated(&self) -> usize {
        self.generated.len()
    }
}

/// A stage of the line-up. It owns whatever state it needs; `Send`, since it is built on one thread and run on another.
pub trait Stage: Send {
    /// Its name in `show workers` and in metrics.
    fn name(&self) -> &'static str;

    /// Judges every packet of the batch whose verdict is still Forward. A packet that it keeps is taken with [`Context::hold`]; one that
    /// it turns into something else is marked Consumed and counted by the stage; one that it answers is dropped with a reason and the answer goes to [`Context::emit`].
    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>);

    /// How long the worker may sleep at most before the next [`Stage::poll`], in nanoseconds: for what is to happen at a time, or may come
    /// from another worker's stage without a bell.
    fn rests(&self, now: Nanos) -> Nanos {
        let _ = now;
        Nanos::MAX
    }

    /// Gives back packets that it held, and only those (what it makes goes to [`Context::emit`]); called once per turn. They go on after
    /// the hook at which they were taken.
    fn poll(&mut self, batch: &mut Batch, context: &mut Context<'_>) {
        let _ = (batch, context);
    }

    /// The end, of the worker or of this line-up: whatever is still held is given up with [`Context::discard_held`].
    fn close(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Whether every IP packet passes both hooks unseen at present. Plain packets are then not shown to the stage at all but told of
    /// afterwards ([`Stage::passed`]), and take the way of a gateway without stages. Asked once per batch.
    fn passes_plain(&mut self, now: Nanos) -> bool {
        let _ = now;
        false
    }

    /// So many packets with so many bytes of IP passed both hooks, see [`Stage::passes_plain`].
    fn passed(&mut self, packets: u64, bytes: u64) {
        let _ = (packets, bytes);
    }

    /// Says of each packet of a batch, as it came from the device and not parsed yet, whether it would surely pass both hooks with nothing
    /// done but counting, were it plain IPv4 or IPv6 with TCP or UDP (no options, no fragment) and forwarded. Nothing is counted yet. Those
    /// packets take the way of a gateway without stages, as far as they are plain; which of them did is told by [`Stage::came_true`]. False
    /// where it is not worth it: the batch is then parsed and judged as ever. Asked only of a stage that is alone.
    fn foresee(
        &mut self,
        batch: &mut Batch,
        ingress: PortId,
        foresight: &mut Foresight,
        context: &mut Context<'_>,
    ) -> bool {
        let _ = (batch, ingress, foresight, context);
        false
    }

    /// Of the packets at these places of the batch those that `foresight` still says to pass went through both hooks. Called in order and
    /// before any later packet of the batch is shown to the stage in the ordinary way.
    fn came_true(&mut self, places: Range<usize>, foresight: &Foresight) {
        let _ = (places, foresight);
    }

    /// Whether what it foresaw of the rest of the batch still holds, after it judged a packet in between.
    fn still_holds(&self) -> bool {
        true
    }

    /// The next hop of a packet that this stage gave [`Flags::NEXT_HOP`]; of the packet's family. None where it is none of this stage's.
    /// At the In hook such a packet is routed by it even where it is for the box; at the Out hook it is routed anew, and
    /// no hook sees it again.
    fn next_hop(&self, packet: &Packet) -> Option<IpAddr> {
        let _ = packet;
        None
    }

    /// Whether both directions of a flow must meet on one worker for this stage.
    fn needs_flow_owner(&self) -> bool {
        false
    }

    /// The worker that owns a packet just received, where the packet's own hash does not tell: address translation gives the directions
    /// of a flow different tuples. Asked only where flows have owners and there are several workers; None leaves it to the hash.
    fn flow_owner(&self, packet: &Packet) -> Option<usize> {
        let _ = packet;
        None
    }
}
