//! How `ferrule pkt-gen` opens real devices: over AF_XDP or AF_PACKET.
//!
//! pkt-gen takes the device for itself as netmap does: what comes in while it receives does not reach the kernel. A sender over
//! AF_PACKET leaves the kernel's reception alone; over AF_XDP what comes in is dropped.

#![forbid(unsafe_code)]

use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::packet::{self, IngressDropped, PacketOptions};
use ferrule_dataplane::port::tap;
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::port::xdp::{CopyMode, Umem, XdpConfig, XdpPort};

use super::{Driver, Opened, Opener, Wanted};
use crate::failure::Failure;
use crate::kernel::KernelFilter;
use crate::log;

/// Buffers of a thread beyond those of its rings: a burst in each direction, and what is on its way.
const SPARE: u32 = 8192;

/// Opens devices of this host's network namespace.
pub struct Devices;

impl Opener for Devices {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Opened, Failure> {
        if wanted.driver == Driver::Tap {
            return over_tap(wanted);
        }
        let device = Device::by_name(wanted.device)
            .map_err(|e| Failure::input(format!("{}: {e}; `ip link` lists the devices there are", wanted.device)))?;
        if !device.up {
            return Err(Failure::input(format!("{0} is down: ip link set {0} up", wanted.device)));
        }
        match wanted.driver {
            Driver::Xdp => xdp(wanted, &device, "asked for"),
            Driver::Packet => over_packet(wanted, &device, "asked for"),
            Driver::Auto => xdp(wanted, &device, "auto: AF_XDP works on this device").or_else(|e| {
                let reason = e.to_string();
                over_packet(wanted, &device, &format!("auto: AF_XDP does not work here ({reason})"))
            }),
            other => {
                Err(Failure::input(format!("pkt-gen does not do driver {other}: use xdp:, packet:, tap: or `null`")))
            }
        }
    }
}

fn arena(wanted: &Wanted<'_>, rings: u32) -> Result<(std::sync::Arc<Arena>, Vec<Pool>), Failure> {
    let jumbo = wanted.longest.div_ceil(DEFAULT_STRIDE - 512).max(1) as u32;
    let count = rings + SPARE * jumbo.min(8) * wanted.pools as u32;
    let arena = Arena::new(count, DEFAULT_STRIDE, HugePages::Prefer)
        .map_err(|e| Failure::runtime(format!("cannot get packet memory: {e}")))?;
    let pools = Pool::split(&arena, wanted.pools);
    Ok((arena, pools))
}

fn xdp(wanted: &Wanted<'_>, device: &Device, why: &str) -> Result<Opened, Failure> {
    let config = XdpConfig::new(wanted.device, PortId(0));
    let queues = device.receive_queues.max(1);
    let (arena, pools) = arena(wanted, queues * (config.rings.fill + config.rings.transmit + config.rings.receive))?;
    let umem = Umem::new(arena).map_err(|e| Failure::runtime(format!("AF_XDP memory: {e}")))?;
    let (port, queues) = XdpPort::open(&config, &umem).map_err(|e| Failure::runtime(e.to_string()))?;
    let report = port.report();
    Ok(Opened {
        driver: format!(
            "xdp ({}, {})",
            report.mode,
            if report.copy == CopyMode::ZeroCopy { "zero-copy" } else { "copy" }
        ),
        why: why.to_owned(),
        device_queues: queues.len(),
        mac: Some(device.mac),
        mtu: device.mtu as usize,
        queues,
        pools,
        guard: Box::new((port, umem)),
    })
}

fn over_packet(wanted: &Wanted<'_>, device: &Device, why: &str) -> Result<Opened, Failure> {
    let options = PacketOptions { queues: wanted.pools, ..PacketOptions::new(wanted.device) };
    let dropped = if wanted.all_queues { silence(wanted.device)? } else { IngressDropped::held_by(wanted.device, ()) };
    let (_, pools) = arena(wanted, 0)?;
    let port = packet::open(&options, PortId(0), dropped).map_err(|e| Failure::runtime(e.to_string()))?;
    Ok(Opened {
        driver: "packet".into(),
        why: why.to_owned(),
        device_queues: port.queues.len(),
        mac: Some(port.facts.mac),
        mtu: device.mtu as usize,
        queues: port.queues,
        pools,
        guard: Box::new(()),
    })
}

/// A TAP: what pkt-gen sends is received by the kernel, and the other way round. Made if there is none.
fn over_tap(wanted: &Wanted<'_>) -> Result<Opened, Failure> {
    let (_, pools) = arena(wanted, 0)?;
    let port = tap::open(wanted.device, wanted.pools, false, PortId(0)).map_err(|e| Failure::runtime(e.to_string()))?;
    let mtu = Device::by_name(&port.name).map_or(1500, |d| d.mtu as usize);
    Ok(Opened {
        driver: "tap".into(),
        why: "asked for".into(),
        device_queues: port.queues.len(),
        // The interface's own address is the kernel's end.
        mac: None,
        mtu,
        queues: port.queues,
        pools,
        guard: Box::new(()),
    })
}

/// Keeps the kernel from answering what is received. Where a running gateway has the rules already, pkt-gen goes on without:
/// it forwards nothing, so nothing can pass twice.
fn silence(device: &str) -> Result<IngressDropped, Failure> {
    let made = KernelFilter::open().and_then(|mut filter| filter.silence(device).map(|()| filter));
    Ok(match made {
        Ok(filter) => IngressDropped::held_by(device, filter),
        Err(e) => {
            log::warning(format!("the kernel will see, and may answer, what {device} receives: {e}"));
            IngressDropped::held_by(device, ())
        }
    })
}
