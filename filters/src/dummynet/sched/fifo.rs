#![forbid(unsafe_code)]
//! FIFO: one queue for each instance, whatever flow set a packet came through.

use crate::dummynet::queue::Queues;

/// The queue, once there is one.
#[derive(Debug, Default)]
pub(crate) struct Fifo(Option<u32>);

impl Fifo {
    pub(crate) fn activated(&mut self, id: u32, _queues: &mut Queues) {
        self.0 = Some(id);
    }

    pub(crate) fn select(&mut self, queues: &mut Queues) -> Option<u32> {
        self.0.filter(|&id| queues[id].length > 0)
    }

    pub(crate) fn served(&mut self, _id: u32, _length: Option<u32>, _queues: &mut Queues) {}

    pub(crate) fn forget(&mut self, id: u32, _queues: &mut Queues) {
        self.0 = self.0.filter(|&mine| mine != id);
    }
}
