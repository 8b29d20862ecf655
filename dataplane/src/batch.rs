//! A batch: up to 256 packets that go through the stages together, in order.

#![forbid(unsafe_code)]

use crate::packet::Packet;

/// Most packets in a batch.
pub const BATCH_MAX: usize = 256;

/// Packets in the order of their arrival. The memory is allocated once; a batch never grows past [`BATCH_MAX`].
pub struct Batch {
    packets: Vec<Packet>,
}

impl Default for Batch {
    fn default() -> Self {
        Batch::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch { packets: Vec::with_capacity(BATCH_MAX) }
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
        BATCH_MAX - self.packets.len()
    }

    /// Appends a packet, or gives it back where the batch is full.
    ///
    /// # Errors
    /// The packet itself, when there is no room.
    #[inline(always)]
    pub fn push(&mut self, packet: Packet) -> Result<(), Packet> {
        if self.packets.len() >= BATCH_MAX {
            return Err(packet);
        }
        self.packets.push(packet);
        Ok(())
    }

    /// Appends packets while there is room; returns how many were taken from the iterator.
    #[inline(always)]
    pub fn extend(&mut self, packets: impl Iterator<Item = Packet>) -> usize {
        let before = self.packets.len();
        self.packets.extend(packets.take(BATCH_MAX - before));
        self.packets.len() - before
    }

    /// The packets.
    #[inline(always)]
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// The packets, for a stage to change.
    #[inline(always)]
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.packets
    }

    /// Takes every packet out, in order.
    #[inline(always)]
    pub fn drain(&mut self) -> std::vec::Drain<'_, Packet> {
        self.packets.drain(..)
    }
}
