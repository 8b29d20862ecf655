//! Ports: where packets come in and go out. A port has receive and transmit queues; each queue belongs to one worker.
//!
//! The traits are called once per batch, so they are used as trait objects. Kernel rings and their `unsafe` live in the
//! folders below; every other module of this crate forbids it.

use std::os::fd::BorrowedFd;

use crate::arena::{Frame, Pool};
use crate::batch::Batch;
use crate::packet::{Offload, PortId};

mod copy;
pub mod memory;
pub mod packet;
pub mod pcap;
pub mod tap;
pub mod tapdev;
#[cfg(test)]
pub(crate) mod testnet;
pub mod virtio;
pub mod xdp;

/// A frame on its way to a device.
#[must_use = "a frame must be sent or given back"]
pub struct TxFrame {
    /// The bytes.
    pub frame: Frame,
    /// What is left to the device (only for queues whose [`TxQueue::offloads`] is true).
    pub offload: Offload,
}

/// Why a queue can do no more.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The device went away or down for good; the supervisor re-attaches the port when it is back.
    #[error("device lost: {0}")]
    Lost(String),
    /// An error of the kernel that will not mend itself.
    #[error("{call}: {source}")]
    System {
        /// Which system call.
        call: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// Losses outside Ferrule and copies at its edge, as totals since the queue was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatistics {
    /// Frames that the device or kernel lost before we saw them.
    pub rx_lost: u64,
    /// Frames that were lost after we gave them away, as far as the kernel tells.
    pub tx_lost: u64,
    /// Frames copied in user space.
    pub copied: u64,
    /// Frames dropped within the receive queue itself for want of buffers (received, but never in a batch): the worker
    /// books them as received and dropped.
    pub rx_discarded: u64,
    /// The same of frames that made no sense: shorter than an Ethernet header, cut short by the ring, or with an offload that cannot
    /// be.
    pub rx_senseless: u64,
}

/// The receiving half of a queue.
pub trait RxQueue: Send {
    /// Appends up to `max` packets to `batch` (which has room for them), marked with the ingress port given at opening.
    /// Never blocks. Returns how many.
    ///
    /// # Errors
    /// When the device is gone.
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError>;

    /// A descriptor that becomes readable when there is something to receive; None where there is none to wait on.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called before the worker sleeps on [`RxQueue::wait_fd`]; true when something is there already.
    fn arm(&mut self) -> bool {
        false
    }

    /// Totals since opening.
    fn statistics(&mut self) -> QueueStatistics {
        QueueStatistics::default()
    }

    /// Gives every buffer back to the pool; the queue is not used afterwards.
    fn close(&mut self, pool: &mut Pool);
}

/// The transmitting half of a queue.
pub trait TxQueue: Send {
    /// Sends the frames in order, draining those accepted from the front of `frames`; the rest stays with the caller, who
    /// tries again once and then drops them. Frames that can never be sent (too long for the device) are moved to `refused`.
    /// Buffers of frames sent earlier go back to `pool`. Never blocks.
    ///
    /// # Errors
    /// When the device is gone; the frames stay with the caller.
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError>;

    /// Reaps completions and kicks what is pending; called when idle and once per loop with nothing to send.
    ///
    /// # Errors
    /// When the device is gone.
    fn flush(&mut self, pool: &mut Pool) -> Result<(), PortError> {
        let _ = pool;
        Ok(())
    }

    /// Whether partial checksums and super-packets may be given to it; else the worker completes and refuses them.
    fn offloads(&self) -> bool {
        false
    }

    /// Frames accepted but not yet completed.
    fn outstanding(&self) -> usize {
        0
    }

    /// Totals since opening.
    fn statistics(&mut self) -> QueueStatistics {
        QueueStatistics::default()
    }

    /// Gives every buffer back to the pool; the queue is not used afterwards.
    fn close(&mut self, pool: &mut Pool);
}

/// One queue pair of a port, as opened by a driver for one worker.
pub struct QueuePair {
    /// Which port.
    pub port: PortId,
    /// Receiving half.
    pub rx: Box<dyn RxQueue>,
    /// Transmitting half.
    pub tx: Box<dyn TxQueue>,
}
