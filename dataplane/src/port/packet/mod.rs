//! The `packet` port: AF_PACKET, which works with every driver, without XDP, and within a user namespace (it needs
//! CAP_NET_RAW over the network namespace, nothing else).
//!
//! Each queue has a TPACKET_V3 receive ring ([`receive`]), a TPACKET_V2 transmit ring ([`transmit`]) and a third socket for
//! super-packets, which the kernel gathers from their chains of buffers. Every frame is copied once in each direction, and
//! counted ([`super::QueueStatistics::copied`]).
//!
//! - *Several queues* share the interface by `PACKET_FANOUT` ([`Fanout`]). The sockets take nothing until the whole group stands.
//! - *The kernel's own reception* goes on beside AF_PACKET, so the kernel would answer and forward the same packets again: a port
//!   opens only with an [`IngressDropped`], which says that they are dropped at ingress and keeps that so.
//! - *Offloads.* The receive side always says what a local stack left undone (partial checksums, super-packets). With
//!   `offload = true` the transmit side hands both on, whole; without it the worker completes checksums and refuses super-packets.
//! - *Merging.* Without offload, a run of TCP frames of one flow that stand one behind another is handed to the kernel as one
//!   super-packet (`merge`), which the kernel cuts again into the very same frames and sends together: over veth every
//!   system call ends in a run of the receiving stack, and this is the only way to have it run for many frames. It is done only
//!   where the device leaves segmentation and checksums to the kernel (`ethtool -K DEV tx off`; asked once a
//!   second): a veth would hand the super-packet to its other end whole. While it is done, all frames pass the queueing
//!   discipline, so that none overtakes another. [`super::QueueStatistics::copied`] does not count merged frames.
//! - *VLAN tags* that the device or kernel took off are put back.
//! - *Link.* A link that is down loses what was marked for it and goes on when it is up again. A device that is gone is
//!   [`super::PortError::Lost`]; close the queues and open the port again when it is back.

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::QueuePair;
use crate::packet::PortId;

mod merge;
#[cfg(test)]
mod merge_tests;
mod queue;
pub mod receive;
pub mod sys;
#[cfg(test)]
mod tests;
pub mod transmit;

pub use sys::InterfaceFacts;

/// Proof that the kernel does not receive the packets of one interface while this lives.
///
/// It is made by whoever installs the drop, with the guard that takes it away again; the port holds it until its last queue
/// is closed.
#[derive(Clone)]
pub struct IngressDropped {
    interface: Arc<str>,
    /// Never looked at, only kept.
    _guard: Arc<dyn Any + Send + Sync>,
}

impl IngressDropped {
    /// States that the kernel drops all that comes in on `interface` behind AF_PACKET (a netdev ingress hook, for
    /// instance), as long as `guard` lives.
    ///
    /// The duty of the caller: this must be so *before* the call, and dropping `guard` must be what ends it. Stating it
    /// wrongly is no memory error, but the kernel would forward every packet a second time, past all filters.
    pub fn held_by(interface: &str, guard: impl Any + Send + Sync) -> Self {
        Self { interface: interface.into(), _guard: Arc::new(guard) }
    }

    /// The interface that it speaks of.
    pub fn interface(&self) -> &str {
        &self.interface
    }
}

impl fmt::Debug for IngressDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IngressDropped").field(&self.interface).finish()
    }
}

/// How the kernel shares an interface's packets among the queues. A flow stays on one queue with each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fanout {
    /// By the kernel's symmetric flow hash (addresses, protocol, ports; keyed with a boot-time secret): both directions of a
    /// flow meet on the same queue number of any port with as many queues. Fragments go by addresses only, so that
    /// all of a datagram meet.
    #[default]
    Hash,
    /// By the device's own receive queue, modulo the number of queues: no hash to compute, and the device's hash decides.
    DeviceQueue,
}

/// How to open a packet port.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// Name of the interface.
    pub interface: String,
    /// Queue pairs, one for each worker; 1 to 256.
    pub queues: usize,
    /// Pass super-packets and partial checksums on whole. Frames then go through the interface's queueing discipline, since
    /// only that path segments what the device cannot; without offload they bypass it, unless runs are merged (see the module).
    pub offload: bool,
    /// Receive frames for every MAC address. Otherwise the device filters: own address, broadcast, all multicast.
    pub promiscuous: bool,
    /// How queues share the packets.
    pub fanout: Fanout,
    /// Receive ring memory of each queue, in bytes; 0 takes 4 MiB, or 16 MiB with offload, since super-packets fill four in a
    /// millisecond.
    pub receive_bytes: usize,
    /// Frames of each transmit ring.
    pub transmit_slots: usize,
    /// Read frames before the kernel hands their block over ([`receive`]); only effective on x86-64.
    pub early: bool,
}

impl PacketOptions {
    /// One queue on `interface`, without offload, and 1024 frames to send.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            queues: 1,
            offload: false,
            promiscuous: false,
            fanout: Fanout::Hash,
            receive_bytes: 0,
            transmit_slots: 1024,
            early: true,
        }
    }
}

/// Why a packet port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No CAP_NET_RAW.
    #[error("AF_PACKET on {0} needs CAP_NET_RAW in its network namespace: run as root, or grant the capability")]
    Permission(String),
    /// No such interface.
    #[error("there is no interface {0} in this network namespace; `ip link` lists those there are")]
    NoInterface(String),
    /// Not an Ethernet interface.
    #[error("{0} is not an Ethernet interface (hardware type {1})")]
    NotEthernet(String, u16),
    /// The number of queues makes no sense.
    #[error("a packet port has 1 to 256 queues, not {0}")]
    Queues(usize),
    /// The witness speaks of another interface.
    #[error("the kernel's reception is dropped on {dropped}, but the port is to open {interface}")]
    OtherInterface {
        /// The interface of the witness.
        dropped: String,
        /// The interface asked for.
        interface: String,
    },
    /// A system call failed.
    #[error("{interface}: {call}: {source}")]
    System {
        /// The interface asked for.
        interface: String,
        /// What was tried.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// An open packet port.
pub struct OpenPort {
    /// The interface as it was when the port was opened.
    pub facts: InterfaceFacts,
    /// Its queues, in order.
    pub queues: Vec<QueuePair>,
}

/// Opens a port in the network namespace of the calling thread.
///
/// # Errors
/// See [`OpenError`]; nothing stays open then.
pub fn open(options: &PacketOptions, port: PortId, dropped: IngressDropped) -> Result<OpenPort, OpenError> {
    open_with(options, port, dropped, &mut sys::open_socket)
}

/// [`open`] with sockets of another's making. CAP_NET_RAW is needed to make an AF_PACKET socket and for nothing after that: a
/// daemon that has given it up gets them, each as [`sys::open_socket`] makes it, from its privileged helper.
///
/// # Errors
/// See [`OpenError`]; nothing stays open then.
pub fn open_with(
    options: &PacketOptions,
    port: PortId,
    dropped: IngressDropped,
    sockets: &mut dyn FnMut() -> io::Result<OwnedFd>,
) -> Result<OpenPort, OpenError> {
    let interface = &options.interface;
    if !(1..=256).contains(&options.queues) {
        return Err(OpenError::Queues(options.queues));
    }
    if dropped.interface() != interface {
        return Err(OpenError::OtherInterface {
            dropped: dropped.interface().to_owned(),
            interface: interface.to_owned(),
        });
    }
    let failed = |call: &'static str| {
        move |source: io::Error| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::Permission(interface.clone()),
            Some(libc::ENODEV | libc::ENXIO) => OpenError::NoInterface(interface.clone()),
            _ => OpenError::System { interface: interface.clone(), call, source },
        }
    };
    let first = sockets().map_err(failed("socket"))?;
    let facts = sys::interface_facts(&first, interface).map_err(failed("interface look-up"))?;
    if facts.hardware != receive::ARPHRD_ETHER {
        return Err(OpenError::NotEthernet(interface.clone(), facts.hardware));
    }
    drop(first);

    let mut rings = Vec::with_capacity(options.queues);
    for _ in 0..options.queues {
        rings.push(open_receive_ring(options, &facts, sockets).map_err(failed("receive ring"))?);
    }
    if rings.len() > 1 {
        join_fanout(options.fanout, &rings).map_err(failed("PACKET_FANOUT"))?;
    }
    let mut transmits = Vec::with_capacity(options.queues);
    for _ in 0..options.queues {
        transmits.push(open_transmit(options, &facts, sockets).map_err(failed("transmit ring"))?);
    }
    // The whole group stands: open the gates.
    for ring in &rings {
        if rings.len() > 1 {
            // A fanout group takes what the box sends, too, whatever PACKET_IGNORE_OUTGOING says on its sockets.
            sys::attach_filter(ring.fd(), &INCOMING).map_err(failed("SO_ATTACH_FILTER"))?;
        } else {
            sys::detach_filter(ring.fd()).map_err(failed("SO_DETACH_FILTER"))?;
        }
    }
    let queues = rings
        .into_iter()
        .zip(transmits)
        .map(|(ring, (transmit, large))| QueuePair {
            port,
            rx: Box::new(queue::PacketReceive::new(port, interface, ring, dropped.clone())),
            tx: Box::new(queue::PacketTransmit::new(
                interface,
                &facts,
                transmit,
                large,
                options.offload,
                dropped.clone(),
            )),
        })
        .collect();
    Ok(OpenPort { facts, queues })
}

/// Passes all but what goes out: frames of type PACKET_OUTGOING (packet(7)), which the filter finds at SKF_AD_PKTTYPE.
const INCOMING: [libc::sock_filter; 4] = [
    sys::instruction(
        libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
        0,
        0,
        (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32,
    ),
    sys::instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::PACKET_OUTGOING as u32),
    sys::instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
    sys::instruction(libc::BPF_RET | libc::BPF_K, 0, 0, u32::MAX),
];

/// A bound receive ring behind a filter that lets nothing through yet.
fn open_receive_ring(
    options: &PacketOptions,
    facts: &InterfaceFacts,
    sockets: &mut dyn FnMut() -> io::Result<OwnedFd>,
) -> io::Result<receive::ReceiveRing> {
    const NOTHING: [libc::sock_filter; 1] = [sys::instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0)];
    let fd = sockets()?;
    sys::attach_filter(&fd, &NOTHING)?;
    sys::set_packet_option(&fd, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
    let bytes = match options.receive_bytes {
        0 if options.offload => 16 << 20,
        0 => 4 << 20,
        bytes => bytes,
    };
    let ring_options = receive::ReceiveRingOptions { bytes, early: options.early };
    let ring = receive::ReceiveRing::new(fd, facts.index, ring_options)?;
    sys::bind(ring.fd(), facts.index, libc::ETH_P_ALL as u16)?;
    let membership = if options.promiscuous { libc::PACKET_MR_PROMISC } else { libc::PACKET_MR_ALLMULTI };
    sys::add_membership(ring.fd(), facts.index, membership)?;
    Ok(ring)
}

/// Makes one group of the sockets, in order. The first asks for a group number that nobody else has.
fn join_fanout(fanout: Fanout, rings: &[receive::ReceiveRing]) -> io::Result<()> {
    let mode = match fanout {
        Fanout::Hash => libc::PACKET_FANOUT_HASH,
        Fanout::DeviceQueue => libc::PACKET_FANOUT_QM,
    };
    let Some((first, rest)) = rings.split_first() else { return Ok(()) };
    sys::set_packet_option(first.fd(), libc::PACKET_FANOUT, &((mode | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16))?;
    let group = sys::fanout_value(first.fd())? & 0xffff;
    for ring in rest {
        sys::set_packet_option(ring.fd(), libc::PACKET_FANOUT, &(group | mode << 16))?;
    }
    Ok(())
}

/// The transmit ring and the socket for super-packets. Neither receives anything (protocol 0).
fn open_transmit(
    options: &PacketOptions,
    facts: &InterfaceFacts,
    sockets: &mut dyn FnMut() -> io::Result<OwnedFd>,
) -> io::Result<(transmit::TransmitRing, OwnedFd)> {
    let mut open = || {
        let fd = sockets()?;
        // Beyond the system's limit with CAP_NET_ADMIN, else up to it: less room means Busy sooner, nothing worse.
        const BUFFER: i32 = 16 << 20;
        if sys::set_socket_option(&fd, libc::SO_SNDBUFFORCE, &BUFFER).is_err() {
            sys::set_socket_option(&fd, libc::SO_SNDBUF, &BUFFER)?;
        }
        if !options.offload {
            sys::set_packet_option(&fd, libc::PACKET_QDISC_BYPASS, &1i32)?;
        }
        io::Result::Ok(fd)
    };
    let ring = transmit::TransmitRing::new(open()?, options.transmit_slots, queue::longest_packet(facts.mtu))?;
    sys::bind(ring.fd(), facts.index, 0)?;
    let large = open()?;
    sys::set_packet_option(&large, libc::PACKET_VNET_HDR, &1i32)?;
    sys::bind(&large, facts.index, 0)?;
    Ok((ring, large))
}
