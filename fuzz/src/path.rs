//! The whole path: a worker over memory ports, as in production, without a host.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;

use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use ferrule_dataplane::counters::{Balance, WorkerCounters};
use ferrule_dataplane::packet::{GsoKind, Offload};
use ferrule_dataplane::port::TxFrame;
use ferrule_dataplane::port::memory::{self, Peer};
use ferrule_dataplane::wake::Waker;
use ferrule_dataplane::worker::{Command, Mailbox, Options, Parts, Rings, Worker};

use crate::world::{self, A, B};

/// Ring of a port, and the most frames of one input.
const RING: usize = 64;
/// Enough that a leak is found soon, and that nothing else runs out.
const BUFFERS: u32 = 4096;

struct Path {
    worker: Worker,
    counters: Arc<WorkerCounters>,
    mailbox: Arc<Mailbox>,
    peers: [Peer; 2],
    pool: Pool,
    /// Frames that came out, by balance of what went in.
    received: u64,
}

impl Path {
    fn new(fastforward: bool) -> Path {
        let (shared, domain) = world::shared();
        let arena = Arena::new(BUFFERS, DEFAULT_STRIDE, HugePages::Off).expect("memory for the buffers");
        let mut pools = Pool::split(&arena, 2);
        let bell = Arc::new(Waker::new().expect("an eventfd"));
        let mailbox = Arc::new(Mailbox::new(bell.clone()));
        let counters = Arc::new(WorkerCounters::new(3, 0));
        let (requests, _) = rtrb::RingBuffer::new(16);
        let options = Options {
            fastforward,
            neighbor_queue: 2,
            neighbor_limit: 16,
            icmp_rate: (1_000_000, 100_000),
            ..Options::default()
        };
        let mut worker = Worker::new(Parts {
            options,
            shared,
            counters: counters.clone(),
            pool: pools.remove(0),
            quiesce: domain.register().expect("a place in the domain"),
            stages: Vec::new(),
            host: None,
            rings: Rings::default(),
            requests,
            control: bell,
            mailbox: mailbox.clone(),
        });
        let peers = [A, B].map(|port| {
            let (queue, peer) = memory::queue(port, RING);
            assert!(worker.obey(Command::Attach(queue)));
            peer
        });
        Path { worker, counters, mailbox, peers, pool: pools.remove(0), received: 0 }
    }

    fn feed(&mut self, frame: &Frame<'_>) {
        let Some(bytes) = self.pool.frame_from(frame.bytes) else { return };
        let sent = self.peers[frame.port].to_port.push(TxFrame { frame: bytes, offload: frame.offload });
        if let Err(rtrb::PushError::Full(back)) = sent {
            self.pool.free(back.frame);
        }
    }

    /// Runs until nothing moves; checks every frame that leaves and the balance of all.
    fn settle(&mut self) {
        for _ in 0..RING {
            let found = self.worker.turn();
            let mut out = 0;
            for (peer, port) in self.peers.iter_mut().zip([A, B]) {
                while let Ok(sent) = peer.from_port.pop() {
                    let bytes = self.pool.arena().segments(&sent.frame).collect::<Vec<_>>().concat();
                    if sent.offload.gso_kind == GsoKind::None {
                        world::assert_sound(&bytes, port);
                        assert!(!sent.offload.is_partial(), "a checksum is left to a device that cannot");
                    }
                    self.pool.free(sent.frame);
                    out += 1;
                }
            }
            self.pool.balance();
            self.received += out;
            while self.mailbox.event().is_some() {}
            if found == 0 && out == 0 {
                break;
            }
        }
        let balance = Balance::of([&*self.counters]);
        assert_eq!(balance.difference(), 0, "{balance:?}");
        assert_eq!(balance.transmitted, self.received, "sent and arrived");
        // Packets that wait for a neighbour have up to five buffers each (9,014 bytes); all others are free.
        let free = self.worker.buffers() + self.pool.available() + self.pool.between_pools();
        let waiting = BUFFERS as usize - free;
        let held = balance.held as usize;
        assert!((held..=held * 5).contains(&waiting), "{waiting} buffers are not free, {held} packets wait");
    }
}

/// One frame of an input.
struct Frame<'a> {
    port: usize,
    offload: Offload,
    bytes: &'a [u8],
}

/// Reads a frame: flags (port, offload), length (two bytes), then the bytes, as many as there are.
fn frame<'a>(data: &mut &'a [u8]) -> Option<Frame<'a>> {
    let (head, rest) = data.split_at_checked(3)?;
    let len = usize::from(u16::from_be_bytes([head[1], head[2]])).min(rest.len());
    let (bytes, rest) = rest.split_at(len);
    *data = rest;
    let mut offload = Offload::NONE;
    // What a driver lets through: sums inside the frame.
    if head[0] & 2 != 0 && len >= 62 {
        (offload.csum_start, offload.csum_offset) = (34, if head[0] & 4 != 0 { 16 } else { 6 });
    }
    if head[0] & 8 != 0 {
        offload.gso_kind = [GsoKind::TcpV4, GsoKind::TcpV6, GsoKind::Udp][usize::from(head[0] >> 4) % 3];
        offload.gso_size = 1200;
    }
    Some(Frame { port: usize::from(head[0] & 1), offload, bytes })
}

thread_local!(static PATHS: RefCell<[Option<Path>; 2]> = const { RefCell::new([None, None]) });

/// Frames through a worker, from receive ring to transmit ring: none makes it panic, each is accounted for, and what leaves is sound.
/// The first byte chooses between fastforward and the full way; frames follow, up to 64.
pub fn path(data: &[u8]) {
    let Some((&choice, mut data)) = data.split_first() else { return };
    let which = usize::from(choice & 1);
    PATHS.with_borrow_mut(|paths| {
        let path = paths[which].get_or_insert_with(|| Path::new(which == 0));
        for _ in 0..RING {
            let Some(frame) = frame(&mut data) else { break };
            if !frame.bytes.is_empty() {
                path.feed(&frame);
            }
        }
        path.settle();
    });
}
