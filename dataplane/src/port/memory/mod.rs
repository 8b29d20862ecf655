//! Memory port: a lock-free single-producer, single-consumer ring in each direction, between workers, generators and sinks.
//!
//! A worker that may be asleep is roused with its own bell ([`crate::worker::Mailbox::bell`]) after a push.
//!
//! The frames stay where they are; only their owner changes.

pub mod ring;

use crate::arena::Pool;
use crate::batch::Batch;
use crate::packet::{Packet, PortId};
use crate::port::{PortError, QueuePair, RxQueue, TxFrame, TxQueue};

/// The other end of a memory port's queue: a generator pushes, a sink pops.
pub struct Peer {
    /// Towards the port.
    pub to_port: ring::Producer<TxFrame>,
    /// From the port.
    pub from_port: ring::Consumer<TxFrame>,
}

struct Receive {
    port: PortId,
    ring: ring::Consumer<TxFrame>,
}

struct Transmit {
    ring: ring::Producer<TxFrame>,
}

/// Makes one queue of a memory port with rings of `capacity` frames, and its other end.
pub fn queue(port: PortId, capacity: usize) -> (QueuePair, Peer) {
    let (to_port, rx) = ring::ring(capacity);
    let (tx, from_port) = ring::ring(capacity);
    let pair = QueuePair { port, rx: Box::new(Receive { port, ring: rx }), tx: Box::new(Transmit { ring: tx }) };
    (pair, Peer { to_port, from_port })
}

impl RxQueue for Receive {
    fn receive(&mut self, batch: &mut Batch, max: usize, _pool: &mut Pool) -> Result<usize, PortError> {
        // An idle port costs a look, and nothing else.
        if self.ring.is_empty() {
            return Ok(0);
        }
        let port = self.port;
        Ok(self.ring.pop_each(max.min(batch.room()), |t| {
            let _ = batch.push_with(|| Packet::new(t.frame, t.offload, port));
        }))
    }

    fn arm(&mut self) -> bool {
        !self.ring.is_empty()
    }

    fn close(&mut self, pool: &mut Pool) {
        while let Ok(t) = self.ring.pop() {
            pool.free(t.frame);
        }
    }
}

impl TxQueue for Transmit {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        _refused: &mut Vec<TxFrame>,
        _pool: &mut Pool,
    ) -> Result<(), PortError> {
        self.ring.push_all(frames);
        Ok(())
    }

    fn offloads(&self) -> bool {
        true
    }

    fn close(&mut self, _pool: &mut Pool) {}
}
