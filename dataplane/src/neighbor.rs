//! Packets that wait for a neighbour: a few per next hop, in order, for a bounded time (RFC 1122, 2.3.2.2; RFC 4861, 7.2.2).

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::clock::Nanos;
use crate::packet::{Packet, PortId};
use crate::verdict::DropReason;

/// Most packets that may be asked for one neighbour.
pub const QUEUE_MAX: usize = 16;
/// How long packets wait: what the kernel takes for its three solicitations a second apart.
pub const WAIT: Nanos = 3_000_000_000;
/// Packets and requests of one [`NeighborQueues::poll`], about; what is left is due at once.
pub const POLL_MAX: usize = 256;
/// Up to so many waiting neighbours are looked at in every turn, so that what comes after a neighbour was found does not overtake what
/// waited for it; more of them, as a scan of a subnet makes, only once a millisecond.
const FEW: usize = 16;
/// Time between two requests for one neighbour.
const ASK_EVERY: Nanos = 1_000_000_000;

/// A next hop that has no MAC yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHopKey {
    /// Where it is.
    pub port: PortId,
    /// Its address.
    pub address: IpAddr,
}

struct Waiting {
    packets: SmallVec<[Packet; QUEUE_MAX]>,
    since: Nanos,
    asked: Nanos,
    /// The kernel gave up on it.
    failed: bool,
}

/// The waiting packets of one worker. Bounded twice: packets per neighbour, neighbours at once.
pub struct NeighborQueues {
    waiting: HashMap<NextHopKey, Waiting>,
    per_neighbor: usize,
    limit: usize,
    held: usize,
    checked: Nanos,
}

/// What became of a packet that was to wait.
pub enum Queued {
    /// It waits; with true the neighbour should be asked for now.
    Waits {
        /// Ask for the neighbour.
        ask: bool,
    },
    /// It may not.
    Refused {
        /// The packet.
        packet: Packet,
        /// Why.
        reason: DropReason,
        /// Ask for the neighbour all the same: the last request is a second old.
        ask: bool,
    },
}

impl NeighborQueues {
    /// Up to `per_neighbor` (1 to [`QUEUE_MAX`]) packets for each of up to `limit` neighbours.
    pub fn new(per_neighbor: usize, limit: usize) -> NeighborQueues {
        NeighborQueues {
            waiting: HashMap::with_capacity(limit * 2),
            per_neighbor: per_neighbor.clamp(1, QUEUE_MAX),
            limit,
            held: 0,
            checked: 0,
        }
    }

    /// Packets that wait.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Appends a packet for `key`.
    pub fn push(&mut self, key: NextHopKey, packet: Packet, now: Nanos) -> Queued {
        if !self.waiting.contains_key(&key) {
            if self.waiting.len() >= self.limit {
                return Queued::Refused { packet, reason: DropReason::NeighborLimit, ask: false };
            }
            let mut packets = SmallVec::new();
            packets.push(packet);
            self.held += 1;
            self.waiting.insert(key, Waiting { packets, since: now, asked: now, failed: false });
            return Queued::Waits { ask: true };
        }
        let Some(entry) = self.waiting.get_mut(&key) else {
            return Queued::Refused { packet, reason: DropReason::NeighborLimit, ask: false };
        };
        let ask = now.saturating_sub(entry.asked) >= ASK_EVERY;
        if ask {
            entry.asked = now;
        }
        if entry.packets.len() >= self.per_neighbor {
            return Queued::Refused { packet, reason: DropReason::NeighborQueueFull, ask };
        }
        entry.packets.push(packet);
        self.held += 1;
        Queued::Waits { ask }
    }

    /// Notes that a neighbour will not answer: the next [`NeighborQueues::poll`] gives up what waits for it, unless it has been found
    /// meanwhile. False when nothing waits for it.
    pub fn fail(&mut self, key: NextHopKey) -> bool {
        let entry = self.waiting.get_mut(&key);
        entry.map(|entry| entry.failed = true).is_some()
    }

    /// How many packets wait for each neighbour.
    pub fn counts(&self) -> impl Iterator<Item = (NextHopKey, u32)> {
        self.waiting.iter().map(|(key, entry)| (*key, entry.packets.len() as u32))
    }

    /// Whether it is time to look at the waiting ones: there are few, or the last look is a millisecond ago.
    #[inline(always)]
    pub fn due(&self, now: Nanos) -> bool {
        self.held != 0 && (self.waiting.len() <= FEW || now.saturating_sub(self.checked) >= 1_000_000)
    }

    /// Looks at every waiting neighbour: where `state` says Ready its packets are given to `ready` in order, where it says Failed or time
    /// is up to `failed`, and where a second has passed without an answer `ask` is called again. After [`POLL_MAX`] packets the rest is
    /// left for the next call.
    pub fn poll(
        &mut self,
        now: Nanos,
        mut state: impl FnMut(NextHopKey, &Packet) -> NeighborState,
        mut done: impl FnMut(NextHopKey, Packet, Outcome),
        mut ask: impl FnMut(NextHopKey),
    ) {
        let held = &mut self.held;
        let mut done_so_far = 0;
        self.waiting.retain(|key, entry| {
            let Some(first) = entry.packets.first() else { return false };
            if done_so_far >= POLL_MAX {
                return true;
            }
            let outcome = match state(*key, first) {
                NeighborState::Ready => Outcome::Ready,
                NeighborState::Failed => Outcome::Failed,
                NeighborState::Unresolved if entry.failed || now.saturating_sub(entry.since) >= WAIT => Outcome::Failed,
                NeighborState::Unresolved => {
                    if now.saturating_sub(entry.asked) >= ASK_EVERY {
                        entry.asked = now;
                        ask(*key);
                        done_so_far += 1;
                    }
                    return true;
                }
            };
            *held -= entry.packets.len();
            done_so_far += entry.packets.len();
            entry.packets.drain(..).for_each(|p| done(*key, p, outcome));
            false
        });
        self.checked = if done_so_far < POLL_MAX { now } else { 0 };
    }

    /// Takes every packet out, for the end.
    pub fn drain(&mut self, mut each: impl FnMut(Packet)) {
        self.waiting.drain().for_each(|(_, entry)| entry.packets.into_iter().for_each(&mut each));
        self.held = 0;
    }
}

/// What is known of a neighbour now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborState {
    /// It has a MAC.
    Ready,
    /// Not yet.
    Unresolved,
    /// It will not have one: the route went, or the kernel gave up.
    Failed,
}

/// How the waiting of a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send it.
    Ready,
    /// Answer with host unreachable and drop it.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
    use crate::packet::Offload;

    fn key(last: u8) -> NextHopKey {
        NextHopKey { port: PortId(1), address: IpAddr::from([198, 18, 0, last]) }
    }

    #[test]
    fn packets_wait_in_order_and_within_bounds() {
        let mut pool = Pool::split(&Arena::new(64, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0);
        let mut queues = NeighborQueues::new(3, 2);
        let mut packet = |n: u8| Packet::new(pool.frame_from(&[n; 60]).unwrap(), Offload::NONE, PortId(0));
        assert!(matches!(queues.push(key(1), packet(1), 0), Queued::Waits { ask: true }));
        assert!(matches!(queues.push(key(1), packet(2), 5), Queued::Waits { ask: false }));
        assert!(matches!(queues.push(key(1), packet(3), 6), Queued::Waits { ask: false }));
        assert!(matches!(
            queues.push(key(1), packet(4), 7),
            Queued::Refused { reason: DropReason::NeighborQueueFull, .. }
        ));
        assert!(matches!(queues.push(key(2), packet(5), 7), Queued::Waits { ask: true }));
        assert!(matches!(queues.push(key(3), packet(6), 7), Queued::Refused { reason: DropReason::NeighborLimit, .. }));
        assert!(queues.due(10) && queues.held() == 4);
        let (mut sent, mut failed) = (vec![], vec![]);
        let state =
            |k: NextHopKey, _: &Packet| if k == key(1) { NeighborState::Ready } else { NeighborState::Unresolved };
        let done = |_: NextHopKey, p: Packet, o| {
            if o == Outcome::Ready { sent.push(p.frame.head()[0]) } else { failed.push(p.frame.head()[0]) }
        };
        queues.poll(1_000_000, state, done, |_| panic!("too early to ask again"));
        assert_eq!((sent, failed.len(), queues.held()), (vec![1, 2, 3], 0, 1));
        let mut asked = 0;
        queues.poll(1_500_000_000, |_, _| NeighborState::Unresolved, |_, _, _| panic!("still waits"), |_| asked += 1);
        assert_eq!(asked, 1);
        queues.poll(
            WAIT + 7,
            |_, _| NeighborState::Unresolved,
            |_, p, o| failed.push((p.frame.head()[0], o).0),
            |_| (),
        );
        assert_eq!((failed, queues.held()), (vec![5], 0));
        // The kernel gave up: long before the time is up, and only what waits for that neighbour.
        assert!(!queues.fail(key(1)), "nothing waits for it");
        for n in 1..=2 {
            assert!(matches!(queues.push(key(n), packet(n), WAIT), Queued::Waits { ask: true }));
        }
        assert!(queues.fail(key(2)));
        assert_eq!(queues.counts().count(), 2);
        let mut gone = vec![];
        queues.poll(WAIT + 1, |_, _| NeighborState::Unresolved, |_, p, o| gone.push((p.frame.head()[0], o)), |_| ());
        assert_eq!((gone, queues.held()), (vec![(2, Outcome::Failed)], 1));
        queues.drain(drop);
        assert!(!queues.due(u64::MAX), "nobody waits");
    }

    #[test]
    fn many_neighbours_are_looked_at_less_often_and_a_part_at_a_time() {
        let mut pool = Pool::split(&Arena::new(512, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0);
        let mut queues = NeighborQueues::new(1, 400);
        for n in 0..400u16 {
            let packet = Packet::new(pool.alloc().unwrap(), Offload::NONE, PortId(0));
            let key = NextHopKey { port: PortId(n), address: IpAddr::from([198, 18, 0, 1]) };
            assert!(matches!(queues.push(key, packet, 5), Queued::Waits { ask: true }));
        }
        assert!(!queues.due(999_999) && queues.due(1_000_005));
        let mut sent = 0;
        let mut turn = |queues: &mut NeighborQueues, now| {
            let done = |_: NextHopKey, p: Packet, _| (pool.free(p.frame), sent += 1).0;
            queues.poll(now, |_, _| NeighborState::Ready, done, |_| ());
            sent
        };
        assert_eq!(turn(&mut queues, 1_000_005), POLL_MAX);
        assert!(queues.due(1_000_006));
        assert_eq!((turn(&mut queues, 1_000_006), queues.held()), (400, 0));
    }
}
