//! A device as an AF_XDP port: the redirect program on it, and a socket for each of its queues.
//!
//! Owner thread: the control thread opens and inspects; each [`QueuePair`] belongs to one worker. The program stays on the device
//! as long as the [`XdpPort`] or one of its queues lives.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use super::acquire::Acquired;
use super::device::Device;
use super::program::{AttachError, Fragments, ModeChoice, Redirect, Unclaimed, XdpMode, claim_in};
use super::queue::{QueueSettings, halves};
use super::sys::{BusyPoll, XskSocket};
use super::umem::{Bound, CopyMode, RingSizes, Umem};
use crate::packet::PortId;
use crate::port::QueuePair;

/// Ethernet header and two VLAN tags.
const LINK_HEADER_MAX: u32 = 14 + 8;
/// Room for the kernel's copies of frames on their way to the driver, in bytes: with the default of 208 KiB some twenty
/// jumbo frames fill it.
const SEND_BUFFER: u32 = 4 << 20;
/// Frames per kick, as in `XDP_MAX_TX_SKB_BUDGET`.
const TRANSMIT_BUDGET: u32 = 256;
const TRANSMIT_BUDGET_OF_OLD_KERNELS: u32 = 32;

/// Whether the driver is to work in our buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroCopy {
    /// Where it can; else the kernel copies, and the report says why.
    #[default]
    Auto,
    /// Or an error.
    Require,
    /// Not.
    Never,
}

/// How to open a port.
#[derive(Debug, Clone)]
pub struct XdpConfig {
    /// Device name, in the network namespace of the calling thread.
    pub device: String,
    /// The port's number, put on each packet.
    pub port: PortId,
    /// Sizes of each socket's rings. A worker's pool needs `fill + transmit` buffers for each queue, and those it works on.
    pub rings: RingSizes,
    /// Native or generic.
    pub mode: ModeChoice,
    /// Zero-copy or copy.
    pub zero_copy: ZeroCopy,
    /// What becomes of frames whose queue has no socket.
    pub unclaimed: Unclaimed,
    /// Whether frames longer than a buffer are wanted.
    pub fragments: Fragments,
    /// Busy polling of the driver from the receive call; useful with real cards, without effect on veth.
    pub busy_poll: Option<BusyPoll>,
}

impl XdpConfig {
    /// The defaults for a device.
    pub fn new(device: &str, port: PortId) -> Self {
        Self {
            device: device.to_string(),
            port,
            rings: RingSizes::default(),
            mode: ModeChoice::default(),
            zero_copy: ZeroCopy::default(),
            unclaimed: Unclaimed::default(),
            fragments: Fragments::Yes,
            busy_poll: None,
        }
    }
}

/// Why a port could not be opened. Nothing is left behind then.
#[derive(Debug, Error)]
pub enum XdpError {
    /// No such device, or the kernel would not tell about it.
    #[error("{device}: {source}; see `ip link` for the devices of this network namespace")]
    Device {
        /// Device name.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// A socket could not be made or bound.
    #[error("{device} queue {queue}: cannot {doing}: {source}{hint}", hint = hint(source))]
    Queue {
        /// Device name.
        device: String,
        /// Queue number.
        queue: u32,
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// More receive than transmit queues.
    #[error(
        "{device} has {receive} receive and {transmit} transmit queues; each receive queue needs a transmit queue of its own \
         number: make them equal with `ethtool -L {device}` (combined, or rx and tx)"
    )]
    UnequalQueues {
        /// Device name.
        device: String,
        /// Receive queues.
        receive: u32,
        /// Transmit queues.
        transmit: u32,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (needs CAP_NET_RAW: run as root or grant it)",
        Some(libc::EBUSY) => " (another AF_XDP socket has this queue: stop its process)",
        Some(libc::EAFNOSUPPORT) => " (this kernel has no AF_XDP: use driver \"packet\")",
        Some(libc::EOPNOTSUPP) => " (the driver has no zero-copy: use zero_copy \"auto\" or \"never\")",
        Some(libc::EINVAL) => " (the device has no such queue, or the kernel lacks a feature)",
        _ => "",
    }
}

/// How the port was opened, to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdpReport {
    /// Native or generic.
    pub mode: XdpMode,
    /// Why it is not native, when native was tried.
    pub no_native: Option<String>,
    /// Zero-copy or copy.
    pub copy: CopyMode,
    /// Why it is not zero-copy, when that was tried.
    pub no_zero_copy: Option<String>,
    /// Whether frames longer than a buffer are sent and received.
    pub fragments: bool,
    /// Why not, when they were wanted.
    pub no_fragments: Option<String>,
    /// Queues.
    pub queues: u32,
    /// Queues that use the UMEM of an earlier socket.
    pub shared_queues: u32,
    /// Frames per transmit kick.
    pub transmit_budget: u32,
    /// Why the busy-poll options were refused, when they were wanted.
    pub no_busy_poll: Option<String>,
    /// Number of a leftover program of ours that was taken off first.
    pub replaced_program: Option<u32>,
}

/// Puts a socket into a redirect program's map: the map, the queue, the socket.
pub type Claim<'a> = dyn FnMut(BorrowedFd<'_>, u32, BorrowedFd<'_>) -> io::Result<()> + 'a;

/// A device opened as a port. Its queues work for themselves; this is the handle to look at it with.
#[derive(Debug)]
pub struct XdpPort {
    device: Device,
    report: XdpReport,
    frame_max: Arc<AtomicU32>,
    _redirect: Arc<Redirect>,
}

/// What has changed on a port's device since it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The device as it is now.
    pub now: Device,
    /// It has another number of queues: some have no reader (or no device) until the port is opened anew.
    pub queues_changed: bool,
}

impl XdpPort {
    /// Attaches the program, opens a socket on every receive queue, and makes frames go there. Frames that come before a
    /// worker first calls `receive` are lost, and counted by the kernel.
    ///
    /// # Errors
    /// [`XdpError`].
    pub fn open(config: &XdpConfig, umem: &Arc<Umem>) -> Result<(Self, Vec<QueuePair>), XdpError> {
        Self::assemble(config, Acquired::acquire(config)?, umem)
    }

    /// The second half of [`XdpPort::open`], which needs no privilege on kernels from 5.19.
    ///
    /// # Errors
    /// [`XdpError`].
    pub fn assemble(
        config: &XdpConfig,
        acquired: Acquired,
        umem: &Arc<Umem>,
    ) -> Result<(Self, Vec<QueuePair>), XdpError> {
        Self::assemble_with(config, acquired, umem, &mut claim_in)
    }

    /// [`XdpPort::assemble`] where `claim` puts a socket into the program's map at its queue's place ([`claim_in`]): for a
    /// daemon that may not call bpf(2) any more.
    ///
    /// # Errors
    /// [`XdpError`].
    pub fn assemble_with(
        config: &XdpConfig,
        acquired: Acquired,
        umem: &Arc<Umem>,
        claim: &mut Claim<'_>,
    ) -> Result<(Self, Vec<QueuePair>), XdpError> {
        let Acquired { device, redirect, mut sockets } = acquired;
        let queues = device.receive_queues;
        let mut plan = BindPlan::new(config, redirect.mode());
        let mut bound = Vec::new();
        for queue in 0..queues {
            bound.push(plan.bind(config, umem, &device, &mut sockets, queue)?);
        }
        let failed = |queue, doing| {
            let device = device.name.clone();
            move |source| XdpError::Queue { device, queue, doing, source }
        };
        let (mut budget, mut no_busy_poll) = (TRANSMIT_BUDGET.min(config.rings.transmit), None);
        for (queue, Bound { socket, .. }) in (0..).zip(&bound) {
            socket.set_send_buffer(SEND_BUFFER).map_err(failed(queue, "size the send buffer"))?;
            if socket.set_transmit_budget(budget).is_err() {
                budget = TRANSMIT_BUDGET_OF_OLD_KERNELS;
            }
            if let Some(busy) = config.busy_poll {
                no_busy_poll = socket.set_busy_poll(busy).err().map(|error| error.to_string());
            }
        }
        let report = XdpReport {
            mode: redirect.mode(),
            no_native: redirect.fallback().map(str::to_string),
            copy: plan.copy,
            no_zero_copy: plan.no_zero_copy,
            fragments: plan.fragments == Fragments::Yes,
            no_fragments: plan.no_fragments,
            queues,
            shared_queues: bound.iter().filter(|bound| bound.shared).count() as u32,
            transmit_budget: budget,
            replaced_program: redirect.replaced(),
            no_busy_poll,
        };
        let redirect = Arc::new(redirect);
        let frame_max = Arc::new(AtomicU32::new(device.mtu + LINK_HEADER_MAX));
        let settings = QueueSettings {
            port: config.port,
            frame_max: frame_max.clone(),
            copy: report.copy,
            fragments: report.fragments,
            budget,
            busy_poll: config.busy_poll.is_some() && report.no_busy_poll.is_none(),
        };
        let mut pairs = Vec::new();
        for (queue, bound) in (0..).zip(bound) {
            let socket = bound.socket.clone();
            let (rx, tx) = halves(bound, umem, config.rings, &settings, queue, redirect.clone())
                .map_err(failed(queue, "map the rings"))?;
            claim(redirect.map(), queue, socket.as_fd())
                .map_err(failed(queue, "put the socket into the program's map"))?;
            pairs.push(QueuePair { port: config.port, rx: Box::new(rx), tx: Box::new(tx) });
        }
        Ok((Self { device, report, frame_max, _redirect: redirect }, pairs))
    }

    /// The device as it was when the port was opened.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How the port was opened.
    pub fn report(&self) -> &XdpReport {
        &self.report
    }

    /// Looks at the device anew, and from now on sends frames as long as its MTU allows now.
    ///
    /// # Errors
    /// `ENODEV` when it is gone.
    pub fn inspect(&self) -> io::Result<Inspection> {
        let now = Device::by_index(self.device.ifindex)?;
        self.frame_max.store(now.mtu + LINK_HEADER_MAX, Ordering::Relaxed);
        let counts = |device: &Device| (device.receive_queues, device.transmit_queues);
        Ok(Inspection { queues_changed: counts(&now) != counts(&self.device), now })
    }
}

/// The mode that a port's sockets get: tried with the first queue, kept for the others.
struct BindPlan {
    copy: CopyMode,
    fragments: Fragments,
    no_zero_copy: Option<String>,
    no_fragments: Option<String>,
    may_fall_back: bool,
}

impl BindPlan {
    fn new(config: &XdpConfig, mode: XdpMode) -> Self {
        let (copy, no_zero_copy) = match (config.zero_copy, mode) {
            (ZeroCopy::Never, _) => (CopyMode::Copy, None),
            (ZeroCopy::Auto, XdpMode::Generic) => {
                (CopyMode::Copy, Some("the program runs in generic mode".to_string()))
            }
            (ZeroCopy::Auto | ZeroCopy::Require, _) => (CopyMode::ZeroCopy, None),
        };
        let may_fall_back = config.zero_copy != ZeroCopy::Require;
        Self { copy, fragments: config.fragments, no_zero_copy, no_fragments: None, may_fall_back }
    }

    fn bind(
        &mut self,
        config: &XdpConfig,
        umem: &Umem,
        device: &Device,
        sockets: &mut Vec<XskSocket>,
        queue: u32,
    ) -> Result<Bound, XdpError> {
        loop {
            let fresh = sockets.pop().ok_or_else(|| io::Error::other("the sockets that were opened are used up"));
            let bound = fresh
                .and_then(|socket| umem.bind(socket, device.ifindex, queue, config.rings, self.copy, self.fragments));
            let error = match bound {
                Ok(bound) => {
                    self.may_fall_back = false;
                    return Ok(bound);
                }
                Err(error) => error,
            };
            let unsupported = matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL));
            if unsupported && self.copy == CopyMode::ZeroCopy && self.may_fall_back {
                self.no_zero_copy = Some(error.to_string());
                self.copy = CopyMode::Copy;
            } else if unsupported && self.fragments == Fragments::Yes && queue == 0 {
                // Kernels before 6.6 know no XDP_USE_SG.
                self.no_fragments = Some(error.to_string());
                self.fragments = Fragments::No;
            } else {
                return Err(XdpError::Queue {
                    device: device.name.clone(),
                    queue,
                    doing: "bind a socket",
                    source: error,
                });
            }
        }
    }
}
