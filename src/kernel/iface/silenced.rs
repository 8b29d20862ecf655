//! A NIC that a port has for itself, under its own name and with no host interface beside it: standalone mode.
//!
//! What the kernel may do on it while we run is dropped by nf_tables rules that go with the process. So that nothing passes
//! afterwards either, the settings that outlive us are made before the first packet: no IPv4 forwarding from this NIC, no
//! IPv6 on it, no answers to ARP. They are recorded, and put back by an end with [`OnExit::Kernel`] or by
//! [`super::restore_left`]; IPv4 addresses stay where they are.
#![forbid(unsafe_code)]

use super::nic::{Found, examine, find, restore_link};
use super::record::{NicRecord, OwnRecords, Record, RecordKeeper};
use super::rtnl::Rtnl;
use super::{OnExit, no_device};
use crate::kernel::KernelError;
use crate::kernel::filter::KernelFilter;
use crate::kernel::message::Link;
use crate::kernel::sysctl;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A NIC on which the kernel is silent. Dropping it without [`SilencedNic::release`] is what a kill does.
#[derive(Debug)]
pub struct SilencedNic {
    record: Record,
    path: PathBuf,
    keeper: Arc<dyn RecordKeeper>,
}

impl SilencedNic {
    /// Silences the NIC `name`. Returns true beside it when it was found as a killed process, or one that exited closed,
    /// had left it.
    ///
    /// # Errors
    /// As [`super::HostInterface::take_over`]; nothing stays changed then.
    pub fn take(name: &str, directory: &Path, filter: &mut KernelFilter) -> Result<(SilencedNic, bool), KernelError> {
        let mut rtnl = Rtnl::open()?;
        let path = Record::path(directory, name);
        let (record, nic, resumed) = match find(&mut rtnl, name, Record::load(&path)?)? {
            Found::Fresh(link) => {
                let nic = NicRecord { phy_name: name.to_owned(), ..examine(&mut rtnl, &link)? };
                (Record::new(name, Some(nic.clone())), nic, false)
            }
            Found::Left(record) => {
                let mut record = *record;
                let Some(nic) = &mut record.nic else {
                    return Err(KernelError::Record { path, why: "it names no NIC".to_owned() });
                };
                name.clone_into(&mut nic.phy_name);
                let nic = nic.clone();
                (record, nic, true)
            }
        };
        record.store(&OwnRecords, &path)?;
        if let Err(error) = quiet(&mut rtnl, name, &nic, filter) {
            if !resumed {
                let _ = restore_link(&mut rtnl, name, &nic, filter);
                rtnl.put_routes(&nic.configuration, nic.ifindex, nic.ifindex);
                let _ = OwnRecords.remove(&path);
            }
            return Err(error);
        }
        Ok((SilencedNic { record, path, keeper: Arc::new(OwnRecords) }, resumed))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// Writes its record through another from now on.
    pub fn keep_record_through(&mut self, keeper: Arc<dyn RecordKeeper>) {
        self.keeper = keeper;
    }

    /// Silences the device anew after it had disappeared: a new one of the name comes with neither rules nor settings.
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] while it is not there.
    pub fn readopt(&mut self, filter: &mut KernelFilter) -> Result<(), KernelError> {
        let Some(mut nic) = self.record.nic.clone() else { return Ok(()) };
        let mut rtnl = Rtnl::open()?;
        let links = rtnl.links()?;
        let is_nic = |link: &&Link| link.name == self.record.name;
        let Some(link) = links.iter().find(is_nic) else { return Err(no_device(&self.record.name, &links)) };
        let fresh = examine(&mut rtnl, link)?;
        nic.moved_to(fresh);
        self.record.nic = Some(nic.clone());
        self.record.store(&*self.keeper, &self.path)?;
        filter.unsilence(&self.record.name)?;
        quiet(&mut rtnl, &self.record.name, &nic, filter)
    }

    /// Ends it as `on_exit` says: down and closed, or as found. Returns what the kernel did not take back.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn release(self, on_exit: OnExit, filter: &mut KernelFilter) -> Result<Vec<String>, KernelError> {
        let Some(nic) = &self.record.nic else { return Ok(Vec::new()) };
        let mut rtnl = Rtnl::open()?;
        if on_exit == OnExit::Closed {
            return rtnl
                .change(nic.ifindex, (0, libc::IFF_UP), |_| {})
                .map(|()| Vec::new())
                .map_err(|error| KernelError::netlink(format!("setting {} down", nic.phy_name), error));
        }
        let mut refused = restore_link(&mut rtnl, &self.record.name, nic, filter)?;
        refused.extend(rtnl.put_routes(&nic.configuration, nic.ifindex, nic.ifindex));
        self.keeper.remove(&self.path)?;
        Ok(refused)
    }
}

/// Rules, settings, and up if it was. Each step may have been done before.
fn quiet(rtnl: &mut Rtnl, name: &str, nic: &NicRecord, filter: &mut KernelFilter) -> Result<(), KernelError> {
    filter.silence(name)?;
    for setting in sysctl::silent_nic() {
        setting.write(name)?;
    }
    let up = nic.flags as i32 & libc::IFF_UP;
    rtnl.change(nic.ifindex, (up, up), |_| {})
        .map_err(|error| KernelError::netlink(format!("setting {name} up"), error))
}
