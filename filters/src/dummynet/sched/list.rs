#![forbid(unsafe_code)]
//! A list of queues, linked through them.

use crate::dummynet::queue::Queues;
use crate::dummynet::rank::NONE;

/// First in, first out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    length: u32,
}

impl List {
    pub(crate) const EMPTY: List = List { head: NONE, tail: NONE, length: 0 };

    pub(crate) fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    pub(crate) fn push(&mut self, id: u32, queues: &mut Queues) {
        queues[id].share.next = NONE;
        match self.tail {
            NONE => self.head = id,
            tail => queues[tail].share.next = id,
        }
        self.tail = id;
        self.length += 1;
    }

    pub(crate) fn pop(&mut self, queues: &mut Queues) -> Option<u32> {
        let id = self.first()?;
        self.head = queues[id].share.next;
        if self.head == NONE {
            self.tail = NONE;
        }
        self.length -= 1;
        Some(id)
    }

    /// Takes `id` out from wherever it stands: goes through the list, so not for the packet path.
    pub(crate) fn remove(&mut self, id: u32, queues: &mut Queues) {
        for _ in 0..self.length {
            if let Some(first) = self.pop(queues)
                && first != id
            {
                self.push(first, queues);
            }
        }
    }

    /// All in order.
    pub(crate) fn iter<'a>(&self, queues: &'a Queues) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            at = queues[id].share.next;
            Some(id)
        })
    }

    /// Adds to the credit of all.
    pub(crate) fn give(&self, bytes: impl Fn(u32, &Queues) -> i64, queues: &mut Queues) {
        let mut at = self.head;
        while at != NONE {
            let more = bytes(at, queues);
            queues[at].share.credit += more;
            at = queues[at].share.next;
        }
    }
}
