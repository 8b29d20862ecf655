//! From checked configuration to what the data plane is made of: the table of ports and the workers' settings.

#![forbid(unsafe_code)]

use std::num::NonZero;

use ferrule_config::gateway::{self, Driver, Gateway, Interface, VlanProtocol};
use ferrule_dataplane::arena::HugePages;
use ferrule_dataplane::batch::BATCH_MAX;
use ferrule_dataplane::clock::ClockSource;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::ports::{MacAddress, Port, VlanTag};
use ferrule_dataplane::worker::{Dispatch, Options, Poll};

/// One port or VLAN, with what is known before any device is opened.
#[derive(Clone, Debug)]
pub struct PortPlan {
    /// Its number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// The port that carries it (itself unless it is a VLAN).
    pub physical: PortId,
    /// Its tag.
    pub tag: Option<VlanTag>,
    /// The kernel's device, before it is renamed.
    pub device: Option<String>,
    /// The driver asked for (that of the parent for a VLAN).
    pub driver: Driver,
    /// MTU, where the file gives one.
    pub mtu: Option<u16>,
    /// MAC, where the file gives one.
    pub mac: Option<MacAddress>,
    /// Queues, where the file gives a number.
    pub queues: Option<u16>,
    /// Whether router advertisements count on its host interface.
    pub accept_ra: bool,
}

impl PortPlan {
    /// Whether it takes a NIC of the kernel for itself: no VLAN, and no TAP, whose other end is the kernel's to use.
    pub fn has_nic(&self) -> bool {
        self.tag.is_none() && !matches!(self.driver, Driver::Tap { .. })
    }

    /// Whether super-packets and partial checksums pass whole.
    pub fn offload(&self) -> bool {
        matches!(self.driver, Driver::Packet { offload: true, .. } | Driver::Tap { offload: true, .. })
    }
}

/// The ports in the order of the file; a VLAN follows its parent.
pub fn ports(gateway: &Gateway) -> Vec<PortPlan> {
    let mut plans: Vec<PortPlan> = Vec::new();
    for (i, interface) in gateway.interfaces().enumerate() {
        let id = PortId(i as u16);
        let parent = plans.iter().rev().find(|p| p.tag.is_none()).map_or(id, |p| p.id);
        plans.push(port(&interface, id, parent));
    }
    plans
}

fn port(interface: &Interface<'_>, id: PortId, parent: PortId) -> PortPlan {
    let tag = interface.vlan.map(|vlan| VlanTag {
        tpid: if vlan.protocol == VlanProtocol::Dot1Ad { 0x88a8 } else { 0x8100 },
        tci: vlan.id.value,
    });
    let driver = interface.port.driver.value.clone();
    PortPlan {
        id,
        name: interface.name.value.clone(),
        physical: if tag.is_some() { parent } else { id },
        tag,
        device: driver.device().map(|d| d.value.clone()),
        driver,
        mtu: interface.mtu.map(|m| m.value),
        mac: interface.port.mac.map(|m| MacAddress(m.value.0)),
        queues: interface.port.queues.map(|q| q.value),
        accept_ra: interface.accept_ra.value,
    }
}

/// The data plane's table of ports; MAC and MTU come with the devices.
pub fn table(plans: &[PortPlan], host: bool) -> Vec<Port> {
    let mut ports: Vec<Port> = plans
        .iter()
        .map(|plan| {
            let mac = plan.mac.unwrap_or_else(|| made_up_mac(plan.id));
            let mut port = Port::new(&plan.name, plan.physical, mac, u32::from(plan.mtu.unwrap_or(1500)));
            port.tag = plan.tag;
            port.host = host;
            port.offload = plan.offload();
            port
        })
        .collect();
    for plan in plans {
        if let (Some(tag), Some(parent)) = (plan.tag, ports.get_mut(usize::from(plan.physical.0))) {
            parent.vlans.push((tag, plan.id));
        }
    }
    ports
}

/// A locally administered address for ports without a device.
fn made_up_mac(id: PortId) -> MacAddress {
    let [high, low] = id.0.to_be_bytes();
    MacAddress([0x02, 0xfe, 0x72, 0x75, high, low.wrapping_add(1)])
}

/// Names of the stages in the packets' way, in the order of the In hook.
pub fn stages(gateway: &Gateway) -> Vec<String> {
    gateway.ipfw.iter().filter(|ipfw| ipfw.enabled).map(|_| "ipfw".to_owned()).collect()
}

/// Settings of worker `id`.
pub fn worker(gateway: &Gateway, id: usize, workers: usize) -> Options {
    let engine = &gateway.engine;
    Options {
        id,
        batch: usize::from(engine.batch).clamp(1, BATCH_MAX),
        dispatch: match engine.dispatch {
            gateway::Dispatch::Direct => Dispatch::Direct,
            gateway::Dispatch::Queued => Dispatch::Queued,
        },
        fastforward: engine.fastforward,
        poll: match engine.poll.value {
            gateway::Poll::Busy => Poll::Busy,
            gateway::Poll::Adaptive => Poll::Adaptive,
            gateway::Poll::Interrupt { hz } => Poll::Interrupt { hz: hz.unwrap_or(0) },
        },
        neighbor_queue: usize::from(gateway.host.neighbor_queue),
        neighbor_limit: (gateway.host.neighbor_limit as usize).div_ceil(workers),
        icmp_rate: (gateway.icmp.rate.div_ceil(workers as u32), gateway.icmp.burst),
        dhcp_bypass: gateway.host.dhcp_bypass,
        // A stage with states needs both directions of a flow at one worker.
        flow_owner: workers > 1 && !stages(gateway).is_empty(),
        clock: ClockSource::Tsc,
    }
}

/// The arena's pages.
pub fn huge_pages(gateway: &Gateway) -> HugePages {
    match gateway.engine.hugepages.value {
        gateway::HugePages::Prefer => HugePages::Prefer,
        gateway::HugePages::Require => HugePages::Require,
        gateway::HugePages::Off => HugePages::Off,
    }
}

/// Cores for `workers` workers: those of the file, else the last ones, so that core 0 stays for the system where there is another.
pub fn cores(gateway: &Gateway, workers: usize) -> Vec<Option<usize>> {
    if !gateway.engine.cores.is_empty() {
        return gateway.engine.cores.iter().map(|c| Some(usize::from(c.value))).collect();
    }
    let available = core_affinity::get_core_ids().unwrap_or_default();
    if workers > available.len() {
        return vec![None; workers];
    }
    available[available.len() - workers..].iter().map(|c| Some(c.id)).collect()
}

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}
