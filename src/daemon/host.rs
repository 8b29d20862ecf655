//! The host side of the ports: the kernel silenced on the NICs, and a TAP under each port's name.

#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use ferrule_config::gateway::{self, Gateway};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::tapdev::{Carrier, TapFraming};

use super::plan::PortPlan;
use crate::failure::Failure;
use crate::kernel::{
    HostInterface, KernelError, KernelFilter, Left, OnExit, RecordKeeper, SilencedNic, TakeoverOptions, left,
    release_all, remove_vlan_record,
};
use crate::log;

/// Where records of what was changed are kept, to be put back.
pub const STATE_DIRECTORY: &str = "/run/ferrule";

/// All host interfaces and the kernel's silence.
#[derive(Default)]
pub struct HostPath {
    /// By port number; None in standalone mode.
    pub interfaces: Vec<Option<HostInterface>>,
    /// Standalone mode: the NICs of the ports, by port number.
    pub silenced: Vec<Option<SilencedNic>>,
    /// Keeps the kernel silent; None where no port needs it.
    pub filter: Option<KernelFilter>,
    /// Where records are.
    pub state_directory: PathBuf,
    /// A NIC was found as a killed process, or one that exited closed, had left it.
    pub resumed: bool,
}

/// A kernel error as the program tells it: bad input where the user can mend it.
pub fn failure(error: &KernelError) -> Failure {
    match error {
        KernelError::NoDevice { .. } | KernelError::NameTooLong { .. } | KernelError::Taken { .. } => {
            Failure::input(error.to_string())
        }
        KernelError::Capability { .. } => Failure::input(error.to_string()),
        _ => Failure::runtime(error.to_string()),
    }
}

/// Options of a port's host interface.
pub fn options(plan: &PortPlan, plans: &[PortPlan], state_directory: &std::path::Path) -> TakeoverOptions {
    let framing = if plan.offload() { TapFraming::VirtioNetOffload } else { TapFraming::VirtioNet };
    TakeoverOptions {
        queues: 1,
        framing,
        state_directory: state_directory.to_owned(),
        accept_router_advertisements: plan.accept_ra,
        tags_in_frames: matches!(plan.driver, gateway::Driver::Auto { .. } | gateway::Driver::Xdp { .. }),
        finished_by_kernel: matches!(plan.driver, gateway::Driver::Packet { offload: false, .. }),
        // A box that forwards does so for routes through links that are no port, too; between ports our own rule forbids it.
        forward_to_host_links: crate::kernel::forwards_ipv4(),
        promiscuous: plans.iter().any(|p| p.physical == plan.id && p.tag.is_some()),
        ..TakeoverOptions::default()
    }
}

impl HostPath {
    /// Takes the NICs of host mode over. Returns the TAPs' descriptors by port. Nothing stays changed on an error.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn take_over(&mut self, plans: &[PortPlan]) -> Result<Vec<(PortId, OwnedFd)>, Failure> {
        let result = self.try_take_over(plans);
        if result.is_err() {
            let as_found = if self.resumed { OnExit::Closed } else { OnExit::Kernel };
            let interfaces = std::mem::take(&mut self.interfaces).into_iter().flatten().collect();
            if let Some(filter) = &mut self.filter
                && let Err(error) = release_all(interfaces, as_found, filter)
            {
                log::error(format!("putting back what was changed: {error}"));
            }
        }
        result
    }

    fn try_take_over(&mut self, plans: &[PortPlan]) -> Result<Vec<(PortId, OwnedFd)>, Failure> {
        let mut filter = KernelFilter::open().map_err(|e| failure(&e))?;
        let names = plans.iter().map(host_name);
        let ports = filter.set_ports(names);
        self.filter = Some(filter);
        ports.map_err(|e| failure(&e))?;
        self.interfaces = plans.iter().map(|_| None).collect();
        let mut taps = Vec::new();
        for plan in plans {
            let options = options(plan, plans, &self.state_directory);
            let taken = match plan.tag {
                None => {
                    let Some(filter) = self.filter.as_mut() else { continue };
                    HostInterface::take_over(host_name(plan), &options, filter)
                }
                Some(_) => {
                    let at = usize::from(plan.physical.0);
                    let Some(parent) = self.interfaces.get(at).and_then(Option::as_ref) else { continue };
                    HostInterface::create_vlan(&plan.name, parent, u32::from(plan.mtu.unwrap_or(1500)), &options)
                }
            };
            let mut taken = taken.map_err(|e| failure(&e))?;
            for warning in &taken.warnings {
                log::warning(format!("{}: {warning}", plan.name));
            }
            if taken.resumed {
                self.resumed = true;
                log::notice(format!("{}: found as the last run left it", plan.name));
            }
            taps.extend(taken.interface.take_queues().into_iter().map(|fd| (plan.id, fd)));
            if let Some(place) = self.interfaces.get_mut(usize::from(plan.id.0)) {
                *place = Some(taken.interface);
            }
        }
        Ok(taps)
    }

    /// Standalone mode: keeps the kernel from receiving and forwarding on the NICs, while we run and after a kill. Nothing stays
    /// changed on an error.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn silence(&mut self, plans: &[PortPlan]) -> Result<(), Failure> {
        let result = self.try_silence(plans);
        if result.is_err() {
            self.release(self.as_found());
        }
        result
    }

    fn try_silence(&mut self, plans: &[PortPlan]) -> Result<(), Failure> {
        self.silenced = plans.iter().map(|_| None).collect();
        for plan in plans {
            let nic = plan.device.as_ref().filter(|_| plan.has_nic());
            let Some(device) = nic else { continue };
            let filter = match &mut self.filter {
                Some(filter) => filter,
                none => none.insert(KernelFilter::open().map_err(|e| failure(&e))?),
            };
            let (nic, resumed) = SilencedNic::take(device, &self.state_directory, filter).map_err(|e| failure(&e))?;
            if resumed {
                self.resumed = true;
                log::notice(format!("{}: found as the last run left it", plan.name));
            }
            if let Some(place) = self.silenced.get_mut(usize::from(plan.id.0)) {
                *place = Some(nic);
            }
        }
        Ok(())
    }

    /// Names of all that has a record of ours.
    pub fn recorded(&self) -> Vec<String> {
        let taps = self.interfaces.iter().flatten().map(|i| i.name().to_owned());
        taps.chain(self.silenced.iter().flatten().map(|nic| nic.name().to_owned())).collect()
    }

    /// Says what earlier runs have left closed that is no port any more, and forgets what VLANs had that are none any more.
    pub fn tell_of_leftovers(&self) {
        // Without rules of our own another ferrule may run here, whose records are no leftovers.
        if self.filter.is_none() {
            return;
        }
        let left = match left(&self.state_directory) {
            Ok(left) => left,
            Err(error) => return log::warning(error.to_string()),
        };
        let ours = self.recorded();
        for Left { name, has_nic } in left.into_iter().filter(|left| !ours.contains(&left.name)) {
            if has_nic {
                log::warning(format!(
                    "{name} is no port any more and still closed, as an earlier run left it; give it back to the kernel                      once this one has ended: ferrule restore {name}"
                ));
            } else if let Err(error) = remove_vlan_record(&name, &self.state_directory) {
                log::warning(error.to_string());
            }
        }
    }

    /// The host interface of a port.
    pub fn interface(&self, port: PortId) -> Option<&HostInterface> {
        self.interfaces.get(usize::from(port.0)).and_then(Option::as_ref)
    }

    /// The port whose TAP or NIC has this kernel index.
    pub fn port_of_nic(&self, ifindex: u32) -> Option<PortId> {
        let at = self
            .interfaces
            .iter()
            .position(|i| i.as_ref().and_then(|i| i.nic()).is_some_and(|(_, index)| index == ifindex))?;
        Some(PortId(at as u16))
    }

    /// Kernel indices of the TAPs with their ports.
    pub fn indices(&self) -> Vec<(u32, PortId)> {
        let places = self.interfaces.iter().enumerate();
        places.filter_map(|(i, p)| Some((p.as_ref()?.ifindex(), PortId(i as u16)))).collect()
    }

    /// Shows a NIC's carrier on its TAP.
    pub fn show_carrier(&self, port: PortId, on: bool) {
        if let Some(interface) = self.interface(port)
            && let Err(error) = interface.set_carrier(if on { Carrier::On } else { Carrier::Off })
        {
            log::warning(error.to_string());
        }
    }

    /// Has the records kept by another from now on.
    pub fn keep_records_through(&mut self, keeper: &Arc<impl RecordKeeper + 'static>) {
        for interface in self.interfaces.iter_mut().flatten() {
            interface.keep_record_through(keeper.clone());
        }
        for nic in self.silenced.iter_mut().flatten() {
            nic.keep_record_through(keeper.clone());
        }
    }

    /// Writes what the host interfaces have now into their records, for a restart after a kill.
    pub fn refresh_records(&mut self) {
        for interface in self.interfaces.iter_mut().flatten() {
            if let Err(error) = interface.refresh_record() {
                log::warning(format!("{}: {error}", interface.name()));
            }
        }
    }

    /// What leaves the box as it was found, for a start that failed: a box that was closed stays so.
    pub fn as_found(&self) -> gateway::OnExit {
        if self.resumed { gateway::OnExit::Closed } else { gateway::OnExit::Kernel }
    }

    /// Leaves the box as `on_exit` says.
    pub fn release(&mut self, on_exit: gateway::OnExit) {
        let interfaces: Vec<_> = std::mem::take(&mut self.interfaces).into_iter().flatten().collect();
        let on_exit = if on_exit == gateway::OnExit::Kernel { OnExit::Kernel } else { OnExit::Closed };
        let silenced: Vec<_> = std::mem::take(&mut self.silenced).into_iter().flatten().collect();
        let Some(filter) = &mut self.filter else { return };
        for nic in silenced {
            match nic.release(on_exit, filter) {
                Ok(refused) => refused.iter().for_each(log::warning),
                Err(error) => log::error(error.to_string()),
            }
        }
        match release_all(interfaces, on_exit, filter) {
            Ok(refused) => refused.iter().for_each(log::warning),
            Err(error) => log::error(error.to_string()),
        }
    }
}

/// The name of a port's host interface: the device's own for a physical port, the VLAN's for a VLAN.
pub fn host_name(plan: &PortPlan) -> &str {
    match (&plan.device, plan.tag) {
        (Some(device), None) => device,
        _ => &plan.name,
    }
}

/// Whether the file wants host mode.
pub fn wanted(config: &Gateway) -> bool {
    !config.is_standalone()
}
