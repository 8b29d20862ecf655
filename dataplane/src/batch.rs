//! A batch: up to 256 packets that go through the stages together, in order.

#![forbid(unsafe_code)]

use crate::arena::{Slot, Slots};
use crate::packet::Packet;

/// Most packets in a batch.
pub const BATCH_MAX: usize = 256;

/// Packets in the order of their arrival. The memory is allocated once; a batch never grows past [`BATCH_MAX`].
pub struct Batch {
    packets: Slots<Packet, BATCH_MAX>,
}

/// A packet that is being taken out of a batch, still in its place.
pub type Taken<'a> = Slot<'a, Packet>;

/// Without memory of its own: what `std::mem::take` leaves behind for a moment. Use [`Batch::new`] for a working one.
impl Default for Batch {
    fn default() -> Self {
        Batch { packets: Slots::vacant() }
    }
}

impl Batch {
    /// An empty batch with its memory.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Batch {
        Batch { packets: Slots::new() }
    }

    /// Packets in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more fit.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.packets.room()
    }

    /// Appends a packet, or gives it back where the batch is full.
    ///
    /// # Errors
    /// The packet itself, when there is no room.
    #[inline(always)]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.packets.room() == 0 {
            return Err(packet);
        }
        let _ = self.packets.push_with(|| packet);
        Ok(())
    }

    /// Appends the packet that `make` gives, in place; None, and `make` not called, where the batch is full.
    #[inline(always)]
    pub fn push_with(&mut self, make: impl FnOnce() -> Packet) -> Option<()> {
        self.packets.push_with(make)
    }

    /// The packets.
    #[inline(always)]
    pub fn packets(&self) -> &[Packet] {
        self.packets.as_slice()
    }

    /// The packets, for a stage to change.
    #[inline(always)]
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        self.packets.as_mut_slice()
    }

    /// Takes every packet out into a vector, for tests and tools; the packet path uses [`Batch::consume`].
    pub fn drain(&mut self) -> std::vec::IntoIter<Packet> {
        let mut packets = Vec::with_capacity(self.len());
        self.consume(|packet| packets.push(packet.take()));
        packets.into_iter()
    }

    /// Takes every packet out, in order.
    #[inline(always)]
    pub fn consume(&mut self, each: impl FnMut(Taken<'_>)) {
        self.packets.consume(each);
    }

    /// As [`Batch::consume`], with the packets 4 and 8 places later shown first, for prefetches.
    #[inline(always)]
    pub fn consume_ahead(&mut self, far: impl Fn(&Packet), near: impl Fn(&Packet), each: impl FnMut(Taken<'_>)) {
        self.packets.consume_ahead(far, near, each);
    }
}
