#![forbid(unsafe_code)]
//! PRIO: strict priority; 0 goes before everything else, 63 after. Packets of one priority share the queue that was first to be
//! backlogged, as on FreeBSD, so that they keep their order.

use crate::dummynet::queue::Queues;
use crate::dummynet::rank::NONE;

const LEVELS: usize = 64;

/// The backlogged queue of each priority.
#[derive(Debug)]
pub(crate) struct Priority {
    backlogged: u64,
    queues: [u32; LEVELS],
}

/// Priority of a queue with this weight.
fn level(weight: u32) -> usize {
    (weight as usize).min(LEVELS - 1)
}

impl Priority {
    pub(crate) fn new() -> Priority {
        Priority { backlogged: 0, queues: [NONE; LEVELS] }
    }

    /// The queue in which a packet for `id` goes.
    pub(crate) fn redirect(&self, id: u32, queues: &Queues) -> u32 {
        let level = level(queues[id].share.weight);
        if self.backlogged & 1 << level == 0 { id } else { self.queues[level] }
    }

    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        let level = level(queues[id].share.weight);
        debug_assert!(self.backlogged & 1 << level == 0 || self.queues[level] == id);
        self.backlogged |= 1 << level;
        self.queues[level] = id;
        queues[id].share.known = true;
    }

    pub(crate) fn select(&mut self, _queues: &mut Queues) -> Option<u32> {
        (self.backlogged != 0).then(|| self.queues[self.backlogged.trailing_zeros() as usize])
    }

    pub(crate) fn served(&mut self, id: u32, _length: Option<u32>, queues: &mut Queues) {
        if queues[id].length == 0 {
            self.forget(id, queues);
        }
    }

    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        if std::mem::take(&mut queues[id].share.known) {
            let level = level(queues[id].share.weight);
            self.backlogged &= !(1 << level);
            self.queues[level] = NONE;
        }
    }
}
