#![forbid(unsafe_code)]
//! A queue's exit.

use super::aqm::codel::{self, Front};
use super::packets::Packets;
use super::pipe::Instance;
use super::queue::Queues;
use super::{DropCause, Outlet, Shaper, Totals};
use ferrule_dataplane::clock::Nanos;

impl<T> Shaper<T> {
    /// The front end of a queue of this instance.
    pub(super) fn leaf<'a, O: Outlet<T>>(
        &'a mut self,
        queue: u32,
        instance: u32,
        now: Nanos,
        outlet: &'a mut O,
    ) -> Leaf<'a, T, O> {
        Leaf {
            id: queue,
            now,
            queues: &mut self.queues,
            packets: &mut self.packets,
            instance: &mut self.instances[instance],
            totals: &mut self.totals,
            outlet,
        }
    }
}

/// The front end of a queue.
pub(super) struct Leaf<'a, T, O> {
    id: u32,
    now: Nanos,
    pub queues: &'a mut Queues,
    pub packets: &'a mut Packets<T>,
    instance: &'a mut Instance,
    totals: &'a mut Totals,
    outlet: &'a mut O,
}

impl<T, O: Outlet<T>> Leaf<'_, T, O> {
    pub(super) fn pop(&mut self) -> Option<u32> {
        let queue = &mut self.queues[self.id];
        let packet = self.packets.take_first(&mut queue.row)?;
        let length = self.packets.length(packet);
        queue.length -= 1;
        queue.bytes -= u64::from(length);
        queue.head = queue.row.first().map_or(0, |next| self.packets.length(next));
        self.instance.length -= 1;
        self.instance.bytes -= u64::from(length);
        Some(packet)
    }

    pub(super) fn discard(&mut self, packet: u32, cause: DropCause) {
        self.queues[self.id].counters.drops += 1;
        self.instance.counters.drops += 1;
        self.totals.drops[cause as usize] += 1;
        if let Some((payload, tag)) = self.packets.release(packet) {
            self.outlet.dropped(payload, tag, cause);
        }
    }
}

impl<T, O: Outlet<T>> codel::Source for Leaf<'_, T, O> {
    fn take(&mut self) -> Option<Front> {
        let id = self.pop()?;
        debug_assert!(self.packets.time(id) <= self.now);
        Some(Front { id, since: self.packets.time(id), backlog: self.queues[self.id].bytes })
    }

    fn mark(&mut self, id: u32) -> bool {
        let outlet = &mut self.outlet;
        self.packets.payload(id).is_some_and(|packet| outlet.mark(packet))
    }

    fn drop(&mut self, id: u32) {
        self.discard(id, DropCause::Early);
    }
}
