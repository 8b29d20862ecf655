//! Time stamps of the nodes of a turn.

#![forbid(unsafe_code)]

use crate::clock;
use crate::counters::NodeCounters;

/// Nodes of [`crate::counters::NODES`].
pub(super) const RX: usize = 0;
pub(super) const PARSE: usize = 1;
pub(super) const FORWARD: usize = 2;
pub(super) const TX: usize = 3;
pub(super) const HOST: usize = 4;
pub(super) const OTHER: usize = 5;

/// Time stamps of one turn; nothing at all where the turn is not stamped.
pub(super) struct Stamp(pub(super) Option<u64>);

impl Stamp {
    /// When the last node ended; `before` where the turn is not stamped.
    #[inline(always)]
    pub(super) fn last(&self, before: u64) -> u64 {
        self.0.unwrap_or(before)
    }

    #[inline(always)]
    pub(super) fn to(&mut self, node: &NodeCounters, packets: usize) {
        if let Some(last) = self.0 {
            let now = clock::cycles();
            node.cycles.add(now.wrapping_sub(last));
            node.packets.add(packets as u64);
            node.calls.add(1);
            self.0 = Some(now);
        }
    }
}
