//! Opening a port's queues with the driver asked for, or with the best there is.

#![forbid(unsafe_code)]

use std::any::Any;
use std::sync::Arc;

use ferrule_config::gateway::{Driver, XdpMode};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::packet::{self, IngressDropped, PacketOptions};
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::port::xdp::program::{AttachError, Fragments, ModeChoice};
use ferrule_dataplane::port::xdp::{CopyMode, Umem, XdpConfig, XdpError, XdpPort};
use ferrule_dataplane::port::{QueuePair, tap};

use super::helper::{TapRequest, XdpRequest};
use super::privileges::Assistant;
use crate::failure::Failure;
use crate::{kernel, log};

/// An open port.
pub struct Opened {
    /// Queue pairs in order of their numbers.
    pub pairs: Vec<QueuePair>,
    /// The driver in use.
    pub driver: &'static str,
    /// Its mode.
    pub mode: String,
    /// Why this driver and mode.
    pub why: String,
    /// What must live as long as the port is open.
    pub keep: Option<Box<dyn Any + Send + Sync>>,
}

/// What is opened, and with what.
pub struct Request<'a> {
    /// The port.
    pub port: PortId,
    /// The device to open: the NIC under its present name.
    pub nic: &'a str,
    /// The driver asked for.
    pub driver: &'a Driver,
    /// Workers.
    pub workers: usize,
    /// Queues asked for.
    pub queues: Option<u16>,
    /// The port's MTU.
    pub mtu: u32,
    /// Whether frames for any MAC are wanted (VLAN ports, or a NIC that cannot filter).
    pub promiscuous: bool,
    /// The kernel's reception is dropped on the NIC.
    pub silenced: bool,
    /// Who makes sockets and programs, where this process may not any more.
    pub assistant: Option<&'a Assistant>,
}

/// Opens the port.
///
/// # Errors
/// With what to do about it.
pub fn open(request: &Request<'_>, umem: &Arc<Umem>) -> Result<Opened, Failure> {
    match request.driver {
        Driver::Auto { xdp_mode, .. } => automatic(request, *xdp_mode, umem),
        Driver::Xdp { xdp_mode, .. } => xdp(request, choice(*xdp_mode), umem, "asked for".to_owned()),
        Driver::Packet { offload, .. } => packet(request, *offload, "asked for".to_owned()),
        Driver::Tap { offload, .. } => open_tap(request, *offload),
        Driver::Memory | Driver::Pcap { .. } => Err(Failure::input(format!(
            "driver \"{}\" is for embedding and replay; `ferrule run` opens xdp, packet and tap ports",
            request.driver.as_str()
        ))),
    }
}

fn choice(mode: XdpMode) -> ModeChoice {
    match mode {
        XdpMode::Auto => ModeChoice::Auto,
        XdpMode::Native => ModeChoice::Native,
        XdpMode::Generic => ModeChoice::Generic,
    }
}

/// Native AF_XDP where it works; else AF_PACKET: generic AF_XDP is no faster and does not see that a sender left cutting to the device.
fn automatic(request: &Request<'_>, mode: XdpMode, umem: &Arc<Umem>) -> Result<Opened, Failure> {
    let wanted = if mode == XdpMode::Generic { ModeChoice::Generic } else { ModeChoice::Native };
    if request.mtu > 9000 {
        return packet(request, false, format!("MTU {} is more than AF_XDP's 9000", request.mtu));
    }
    if let (Some(asked), Ok(device)) = (request.queues.map(u32::from), Device::by_name(request.nic))
        && asked != device.receive_queues
    {
        let has = device.receive_queues;
        return packet(
            request,
            false,
            format!("{asked} queues are asked for and AF_XDP must take all {has} of the device"),
        );
    }
    match xdp(request, wanted, umem, "the driver has native XDP".to_owned()) {
        Ok(opened) => Ok(opened),
        Err(failure) => packet(request, false, format!("no native XDP ({failure})")),
    }
}

fn xdp(request: &Request<'_>, mode: ModeChoice, umem: &Arc<Umem>, why: String) -> Result<Opened, Failure> {
    let mut config = XdpConfig::new(request.nic, request.port);
    config.mode = mode;
    config.fragments = if request.mtu > 1500 { Fragments::Yes } else { Fragments::No };
    let opened = match request.assistant {
        None => XdpPort::open(&config, umem),
        Some(assistant) => {
            let acquired = assistant.open_xdp(&XdpRequest::new(&config))?;
            XdpPort::assemble_with(&config, acquired, umem, &mut |map, queue, socket| {
                assistant.claim(map, queue, socket)
            })
        }
    };
    let (port, pairs) = opened.map_err(xdp_failure)?;
    tell_of_lost_tags(request);
    let report = port.report();
    let mut why = why;
    if let Some(reason) = &report.no_native {
        why.push_str(&format!("; not native: {reason}"));
    }
    let copy = if report.copy == CopyMode::ZeroCopy { "zero-copy" } else { "copy" };
    let mode = format!("{}, {copy}", report.mode);
    Ok(Opened { pairs, driver: "xdp", mode, why, keep: Some(Box::new(port)) })
}

/// What the user can mend (a device in use, another driver asked for than it has) is bad input, the rest is not.
fn told(mendable: bool, error: &dyn std::fmt::Display) -> Failure {
    if mendable { Failure::input(error.to_string()) } else { Failure::runtime(error.to_string()) }
}

fn is_busy(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn xdp_failure(error: XdpError) -> Failure {
    let mendable = match &error {
        XdpError::Attach(AttachError::Occupied { .. } | AttachError::NoNative { .. } | AttachError::NoMode { .. }) => {
            true
        }
        XdpError::Attach(AttachError::System { source, .. }) | XdpError::Queue { source, .. } => is_busy(source),
        XdpError::Device { .. } | XdpError::UnequalQueues { .. } => true,
    };
    told(mendable, &error)
}

fn packet_failure(error: packet::OpenError) -> Failure {
    let mendable = match &error {
        packet::OpenError::System { source, .. } => is_busy(source),
        packet::OpenError::OtherInterface { .. } => false,
        packet::OpenError::Permission(_)
        | packet::OpenError::NoInterface(_)
        | packet::OpenError::NotEthernet(..)
        | packet::OpenError::Queues(_) => true,
    };
    told(mendable, &error)
}

/// Where the kernel keeps a VLAN tag beside the frame, XDP does not see it: the frame looks like an untagged one.
fn tell_of_lost_tags(request: &Request<'_>) {
    let Some(link) = kernel::link_state(request.nic) else { return };
    let nic = request.nic;
    if kernel::strips_vlan_tags(link.ifindex) {
        log::warning(format!(
            "{nic} takes VLAN tags out of frames before xdp sees them, and frames of all VLANs look untagged: \
             ethtool -K {nic} rxvlan off, or driver = \"packet\""
        ));
    } else if request.promiscuous && link.kind.as_deref() == Some("veth") {
        log::notice(format!(
            "{nic} is a veth: its peer must put VLAN tags into the frames, or xdp does not see them: \
             ethtool -K PEER txvlan off tx-vlan-stag-hw-insert off, or driver = \"packet\""
        ));
    }
}

fn packet(request: &Request<'_>, offload: bool, why: String) -> Result<Opened, Failure> {
    if !request.silenced {
        return Err(Failure::runtime(format!(
            "{}: the kernel would receive this port's packets a second time, and its reception cannot be dropped here",
            request.nic
        )));
    }
    let mut options = PacketOptions::new(request.nic);
    options.queues = request.queues.map_or(request.workers, usize::from);
    options.offload = offload;
    options.promiscuous = request.promiscuous;
    let dropped = IngressDropped::held_by(request.nic, ());
    let opened = match request.assistant {
        None => packet::open(&options, request.port, dropped),
        Some(assistant) => packet::open_with(&options, request.port, dropped, &mut || assistant.packet_socket()),
    };
    let opened = opened.map_err(packet_failure)?;
    let mode = format!("TPACKET_V3, {}", if offload { "offload" } else { "copy" });
    Ok(Opened { pairs: opened.queues, driver: "packet", mode, why, keep: None })
}

fn open_tap(request: &Request<'_>, offload: bool) -> Result<Opened, Failure> {
    let queues = request.queues.map_or(request.workers, usize::from);
    let pairs = match request.assistant {
        None => tap::open(request.nic, queues, offload, request.port).map_err(|e| told(is_busy(&e.source), &e))?.queues,
        Some(assistant) => {
            let (name, fds) = assistant.open_tap(&TapRequest { device: request.nic.to_owned(), queues, offload })?;
            fds.into_iter().map(|fd| tap::queue_pair(fd, &name, request.port)).collect()
        }
    };
    Ok(Opened { pairs, driver: "tap", mode: "copy".to_owned(), why: "asked for".to_owned(), keep: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error;

    #[test]
    fn a_device_in_use_is_the_users_to_mend_and_a_kernel_that_fails_is_not() {
        let queue = |errno| {
            let source = Error::from_raw_os_error(errno);
            xdp_failure(XdpError::Queue { device: "em0".into(), queue: 0, doing: "bind", source }).exit_code()
        };
        assert_eq!((queue(libc::EBUSY), queue(libc::ENOMEM)), (2, 1));
        let missing = packet_failure(packet::OpenError::NoInterface("em0".into()));
        assert_eq!(missing.exit_code(), 2);
        let source = Error::from_raw_os_error(libc::ENOBUFS);
        let failed = packet::OpenError::System { interface: "em0".into(), call: "setsockopt", source };
        assert_eq!(packet_failure(failed).exit_code(), 1);
    }
}
