//! The device that is none: frames sent are gone at once, nothing comes in. What remains is the cost of making frames.

#![forbid(unsafe_code)]

use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::{PortError, QueuePair, RxQueue, TxFrame, TxQueue};

use super::{Opened, Wanted};
use crate::failure::Failure;

struct Nothing;

struct Gone;

impl RxQueue for Nothing {
    fn receive(&mut self, _batch: &mut Batch, _max: usize, _pool: &mut Pool) -> Result<usize, PortError> {
        Ok(0)
    }

    fn close(&mut self, _pool: &mut Pool) {}
}

impl TxQueue for Gone {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        _refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        frames.drain(..).for_each(|t| pool.free(t.frame));
        Ok(())
    }

    fn close(&mut self, _pool: &mut Pool) {}
}

/// Opens it, with a queue for each thread.
///
/// # Errors
/// When there is no memory.
pub fn open(wanted: &Wanted<'_>) -> Result<Opened, Failure> {
    let arena = Arena::new(4096 * wanted.pools as u32, DEFAULT_STRIDE, HugePages::Prefer)
        .map_err(|e| Failure::runtime(format!("cannot get packet memory: {e}")))?;
    let pair = |i| QueuePair { port: PortId(i as u16), rx: Box::new(Nothing), tx: Box::new(Gone) };
    Ok(Opened {
        driver: "null".into(),
        why: "asked for".into(),
        device_queues: wanted.pools,
        mac: Some([2, 0, 0, 0, 0, 1]),
        mtu: 65_535,
        queues: (0..wanted.pools).map(pair).collect(),
        pools: Pool::split(&arena, wanted.pools),
        guard: Box::new(()),
    })
}
