#![forbid(unsafe_code)]
//! Which worker owns a pipe, and how packets get there and back.
//!
//! A pipe, its scheduler and the queues that feed it must see all their packets on one worker. The owner is the *scheduler's* number
//! modulo the number of workers: `pipe N`, `sched N` and every `queue M config sched N` agree on it. Queues are looked up in an [`Owners`],
//! made anew with each configuration and shared by all workers, so that every worker routes alike.
//!
//! A packet that a rule sends to a pipe elsewhere travels as a [`Message::Enqueue`] over a bounded ring, one for each pair of workers, in order;
//! a full ring is a drop, counted by the sender ([`Lane::send`] gives the packet back). The owner enqueues it with the time of *its* turn. When
//! it is through, the owner may let it go on itself, or, where what follows needs the flow's own worker (states), send it home as a
//! [`Message::Deliver`] over the other ring of the pair. Each worker takes what others sent it once a turn ([`Lane::receive`]).

use super::Target;
use super::mask::FlowId;
use rtrb::{Consumer, Producer, PushError, RingBuffer};

/// Whose each pipe is.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    workers: usize,
    /// Scheduler of each queue, by the queue's number; 0 where there is none.
    schedulers: Vec<u32>,
}

impl Owners {
    /// For this many workers and these queues, each with its scheduler's number.
    pub fn new(workers: usize, queues: impl IntoIterator<Item = (u32, u32)>) -> Owners {
        let mut schedulers = Vec::new();
        for (queue, scheduler) in queues {
            if schedulers.len() <= queue as usize {
                schedulers.resize(queue as usize + 1, 0);
            }
            schedulers[queue as usize] = scheduler;
        }
        Owners { workers: workers.max(1), schedulers }
    }

    /// Worker that owns scheduler (or pipe) `number`: the one whose shaper it is configured in.
    pub fn of_scheduler(&self, number: u32) -> usize {
        number as usize % self.workers.max(1)
    }

    /// Worker that owns a target. A queue that does not exist belongs to worker 0, whose shaper drops the packet and counts it.
    pub fn of(&self, target: Target) -> usize {
        match target {
            Target::Pipe(number) => self.of_scheduler(number),
            Target::Queue(number) => self.of_scheduler(self.schedulers.get(number as usize).copied().unwrap_or(0)),
        }
    }
}

/// What travels between two workers.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<T> {
    /// To the owner: enqueue this.
    Enqueue {
        /// Pipe or queue.
        target: Target,
        /// The packet.
        packet: T,
        /// Its length in bytes.
        length: u32,
        /// Its flow.
        flow: FlowId,
        /// The sender's: where to go on.
        tag: u64,
    },
    /// From the owner: this one is through.
    Deliver {
        /// The packet.
        packet: T,
        /// As it was sent.
        tag: u64,
    },
}

/// One worker's ends of the rings to and from all others.
#[derive(Debug)]
pub struct Lane<T> {
    id: usize,
    to: Vec<Option<Producer<Message<T>>>>,
    from: Vec<Option<Consumer<Message<T>>>>,
}

impl<T> Lane<T> {
    /// Number of its worker.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Sends a message to another worker.
    ///
    /// # Errors
    /// The message, when the ring is full, or leads nowhere (to the worker itself, to one that there is not).
    pub fn send(&mut self, worker: usize, message: Message<T>) -> Result<(), Message<T>> {
        match self.to.get_mut(worker) {
            Some(Some(ring)) => ring.push(message).map_err(|PushError::Full(message)| message),
            _ => Err(message),
        }
    }

    /// Takes at most `most` messages from each other worker, in the order in which it sent them; how many.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(usize, Message<T>)) -> usize {
        let mut taken = 0;
        for (worker, ring) in self.from.iter_mut().enumerate() {
            let Some(ring) = ring else { continue };
            let n = ring.slots().min(most);
            let Ok(chunk) = ring.read_chunk(n) else { continue };
            for message in chunk {
                each(worker, message);
                taken += 1;
            }
        }
        taken
    }

    /// Takes the next message of one worker.
    pub fn take(&mut self, worker: usize) -> Option<Message<T>> {
        self.from.get_mut(worker)?.as_mut()?.pop().ok()
    }

    /// Whether others have sent something.
    pub fn is_waiting(&self) -> bool {
        self.from.iter().flatten().any(|ring| !ring.is_empty())
    }
}

/// Rings of `capacity` messages between each two of `workers` workers.
pub fn lanes<T>(workers: usize, capacity: usize) -> Vec<Lane<T>> {
    let mut lanes: Vec<Lane<T>> = (0..workers).map(|id| Lane { id, to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..workers {
        for to in 0..workers {
            let (producer, consumer) = if from == to {
                (None, None)
            } else {
                let (producer, consumer) = RingBuffer::new(capacity);
                (Some(producer), Some(consumer))
            };
            lanes[from].to.push(producer);
            lanes[to].from.push(consumer);
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_belongs_to_the_owner_of_its_scheduler() {
        let owners = Owners::new(3, [(100, 7), (200, 8)]);
        assert_eq!(owners.of(Target::Pipe(7)), owners.of(Target::Queue(100)));
        assert_eq!(owners.of(Target::Pipe(8)), owners.of(Target::Queue(200)));
        assert_ne!(owners.of(Target::Queue(100)), owners.of(Target::Queue(200)));
        assert_eq!(owners.of(Target::Queue(5)), 0);
        assert!((1..50).all(|n| owners.of(Target::Pipe(n)) < 3));
    }

    #[test]
    fn a_full_ring_gives_the_packet_back() {
        let mut lanes = lanes::<u32>(2, 2);
        let message = |packet| Message::Deliver { packet, tag: 0 };
        assert_eq!(lanes[0].send(0, message(9)), Err(message(9)));
        assert_eq!(lanes[0].send(5, message(9)), Err(message(9)));
        assert!(lanes[0].send(1, message(1)).is_ok() && lanes[0].send(1, message(2)).is_ok());
        assert_eq!(lanes[0].send(1, message(3)), Err(message(3)));
        assert!(lanes[1].is_waiting() && !lanes[0].is_waiting());
        let mut got = vec![];
        assert_eq!(lanes[1].receive(10, |from, m| got.push((from, m))), 2);
        assert_eq!(got, [(0, message(1)), (0, message(2))]);
    }
}
