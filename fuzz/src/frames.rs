//! Targets that take one frame.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;

use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, MAX_FRAME, Pool};
use ferrule_dataplane::counters::{Balance, WorkerCounters};
use ferrule_dataplane::forward::icmp::{IcmpError, Unreachable};
use ferrule_dataplane::forward::{answer, fragment, icmp, punt, reset};
use ferrule_dataplane::packet::parse::{self, Ingress};
use ferrule_dataplane::packet::{Flags, Offload, Packet, hash};
use ferrule_dataplane::rate::TokenBucket;
use ferrule_dataplane::stage::{Context, GENERATED_MAX, Shared};
use ferrule_dataplane::verdict::Verdict;

use crate::world::{self, A};

const BUFFERS: u32 = 256;

/// What stays from one input to the next: mapping it anew would take longer than all the rest.
struct Bench {
    pool: Pool,
    shared: Arc<Shared>,
    counters: WorkerCounters,
    generated: Vec<Packet>,
    fragments: Vec<Packet>,
    limit: TokenBucket,
    now: u64,
}

impl Bench {
    fn new() -> Bench {
        let arena = Arena::new(BUFFERS, DEFAULT_STRIDE, HugePages::Off).expect("memory for 256 buffers");
        Bench {
            pool: Pool::split(&arena, 1).remove(0),
            shared: world::shared().0,
            counters: WorkerCounters::new(3, 0),
            generated: Vec::with_capacity(GENERATED_MAX),
            fragments: Vec::with_capacity(GENERATED_MAX),
            limit: TokenBucket::new(1_000_000_000, 1000),
            now: 1,
        }
    }

    /// A packet of these bytes as port A receives it; None for no bytes, or more than a frame has.
    fn packet(&mut self, data: &[u8], slow: bool) -> Option<Packet> {
        let mut packet = Packet::new(self.pool.frame_from(data)?, Offload::NONE, A);
        let ingress = Ingress::new(&self.shared.ports, A, true)?;
        if slow {
            parse::parse_slow(&mut packet, &ingress)
        } else {
            parse::parse(&mut packet, &ingress)
        }
        Some(packet)
    }

    fn bytes(&self, packet: &Packet) -> Vec<u8> {
        self.pool.arena().segments(&packet.frame).collect::<Vec<_>>().concat()
    }

    fn context<T>(&mut self, call: impl FnOnce(&mut Context<'_>, &mut Vec<Packet>) -> T) -> T {
        self.now += 1_000_000;
        let Bench { pool, shared, counters, generated, fragments, limit, now } = self;
        call(&mut Context::new(*now, 0, pool, counters, shared, limit, generated), fragments)
    }
}

thread_local!(static BENCH: RefCell<Bench> = RefCell::new(Bench::new()));

/// The parser's short cut and the whole parser judge any frame alike, and what goes on keeps to its lengths.
pub fn parse(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        let Some(fast) = bench.packet(data, false) else { return };
        let Some(mut slow) = bench.packet(data, true) else { return bench.pool.free(fast.frame) };
        assert_eq!(fast.verdict(), slow.verdict());
        if !matches!(fast.verdict(), Verdict::Drop(_)) {
            let fields = |p: &Packet| {
                (p.family, p.protocol, p.l4, p.source_port, p.destination_port, p.flags, p.ingress, p.frame.len())
            };
            assert_eq!(fields(&fast), fields(&slow));
            assert_eq!(bench.bytes(&fast), bench.bytes(&slow));
            assert!(usize::from(fast.l4) <= fast.frame.len());
        }
        hash::of(bench.shared.seed, &mut slow);
        punt::class(&slow);
        bench.pool.free(fast.frame);
        bench.pool.free(slow.frame);
        assert_eq!(bench.pool.available(), BUFFERS as usize, "a buffer was lost");
    });
}

const KINDS: [IcmpError; 6] = [
    IcmpError::TimeExceeded,
    IcmpError::Unreachable(Unreachable::Port),
    IcmpError::Unreachable(Unreachable::SourceRouteFailed),
    IcmpError::FragmentationNeeded { mtu: 1400 },
    IcmpError::ParameterProblem { code: 2, pointer: 40 },
    IcmpError::TimeExceededReassembly,
];

/// Everything that is said about a packet, whatever the packet: ICMP errors, resets, answers, fragments. Nothing is lost on the way.
/// The first byte chooses the MTU and whether the checksum may be partial, the rest is the frame.
pub fn reactions(data: &[u8]) {
    let Some((&choice, frame)) = data.split_first() else { return };
    if frame.len() > MAX_FRAME {
        return;
    }
    BENCH.with_borrow_mut(|bench| {
        let before = Balance::of([&bench.counters]);
        let mtu = 20 + usize::from(choice) * 8;
        let Some(mut packet) = bench.packet(frame, false) else { return };
        if choice & 1 != 0 {
            packet.flags.set(Flags::MAYBE_PARTIAL);
        }
        for kind in KINDS {
            bench.context(|context, _| icmp::error(kind, &packet, context));
        }
        bench.context(|context, _| {
            use ferrule_dataplane::forward::Refusal::*;
            [SourceRoute, BadHeader, TooBig(1300)].into_iter().for_each(|why| icmp::refuse(why, &packet, context));
        });
        // From here on what the parser refused never comes.
        if matches!(packet.verdict(), Verdict::Drop(_)) {
            bench.pool.free(packet.frame);
        } else {
            bench.context(|context, _| reset::reset(&packet, context));
            fragment::segment_len(&packet);
            if packet.ip_len() > mtu {
                bench.context(|context, fragments| fragment::fragment(packet, mtu, context, fragments));
            } else {
                bench.context(|context, _| answer::answer(packet, context, &mut |_, _, _| {}));
            }
        }
        let made: Vec<Packet> = bench.generated.drain(..).chain(bench.fragments.drain(..)).collect();
        let count = made.len() as u64;
        for packet in made {
            check(bench, &packet, mtu);
            bench.pool.free(packet.frame);
        }
        assert_eq!(bench.pool.available(), BUFFERS as usize, "a buffer was lost");
        let after = Balance::of([&bench.counters]);
        assert!(after.generated - before.generated >= count);
    });
}

/// A packet of ours, parsed anew as its receiver would.
fn check(bench: &mut Bench, packet: &Packet, mtu: usize) {
    let mut bytes = bench.bytes(packet);
    let cut = packet.flags.has(Flags::FRAGMENT);
    assert!(!cut || packet.ip_len() <= mtu);
    bytes[..6].copy_from_slice(&world::MAC[0].0);
    bytes[6..12].copy_from_slice(&world::PEER.0);
    let Some(parsed) = bench.packet(&bytes, true) else { panic!("no packet") };
    // The original's own faults live on in its fragments: their first piece may be too short for a transport header.
    if !cut {
        assert!(!matches!(parsed.verdict(), Verdict::Drop(_)), "{:?}: {bytes:02x?}", parsed.verdict());
        let fields = |p: &Packet| (p.family, p.protocol, p.l4, p.source_port, p.destination_port);
        assert_eq!(fields(packet), fields(&parsed));
    }
    bench.pool.free(parsed.frame);
}
