//! The host interface of a port: a TAP that stands in the place of the NIC.
//!
//! Life cycle: [`HostInterface::take_over`] (record, silence, rename, TAP, move addresses and routes) -> running, where
//! [`HostInterface::refresh_record`] keeps the record in step -> [`release_all`]. A process that is killed takes the TAP
//! and the drop rules with it and leaves the NIC renamed, without addresses, with settings that let the kernel neither
//! forward nor answer on it; the next start finds it by the record.
#![forbid(unsafe_code)]

mod nic;
mod record;
mod rtnl;
mod silenced;

use super::error::KernelError;
use super::filter::KernelFilter;
use super::message::Link;
use super::sysctl::{self, HostRole, Setting};
use ferrule_dataplane::port::tapdev::{self, Carrier, TapFraming};
use ipnetwork::IpNetwork;
use nic::{Found, INHERITED, examine, find, is_tun, may_be_replaced, no_device, quiet, restore_link};
pub(super) use nic::{SUFFIX, strips_tags};
pub use record::{ChosenRecords, Left, OwnRecords, RecordKeeper, left, remove_vlan_record};
use record::{HostRecord, NicRecord, Record};
use rtnl::{Dad, Rtnl, Scope};
pub use silenced::SilencedNic;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What becomes of the NIC when we end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExit {
    /// It stays renamed, silent and down: nothing passes.
    #[default]
    Closed,
    /// Name, addresses, routes and settings as found: the kernel is the router again, if it was one.
    Kernel,
}

/// How to take over a NIC.
#[derive(Debug, Clone)]
pub struct TakeoverOptions {
    /// Queues of the TAP: one for each worker.
    pub queues: usize,
    /// How frames look on the TAP's descriptors.
    pub framing: TapFraming,
    /// Where records are kept.
    pub state_directory: PathBuf,
    /// SLAAC on this port, though the box is a router.
    pub accept_router_advertisements: bool,
    /// Redirections to 127.0.0.1 arrive on this port.
    pub route_localnet: bool,
    /// The kernel may forward IPv4 between this port and links that are no port.
    pub forward_to_host_links: bool,
    /// The NIC hands us all frames, not only those for its MAC and groups: needed for VLAN ports.
    pub promiscuous: bool,
    /// The NIC leaves VLAN tags in their frames: for AF_XDP, which is not told of a tag that the NIC took out, and would
    /// take the frame for an untagged one.
    pub tags_in_frames: bool,
    /// The kernel finishes checksums and cuts TCP super-packets itself before it gives frames to the NIC, if that is a veth,
    /// which would hand them to its other end unfinished. The `packet` port merges frames only where this is so.
    pub finished_by_kernel: bool,
}

impl Default for TakeoverOptions {
    fn default() -> Self {
        TakeoverOptions {
            queues: 1,
            framing: TapFraming::Plain,
            state_directory: PathBuf::from("/run/ferrule"),
            accept_router_advertisements: false,
            route_localnet: false,
            forward_to_host_links: false,
            promiscuous: false,
            tags_in_frames: false,
            finished_by_kernel: false,
        }
    }
}

/// A NIC taken over, and what could not be moved.
#[derive(Debug)]
pub struct Takeover {
    /// The host interface.
    pub interface: HostInterface,
    /// Addresses and routes that the kernel refused on the TAP, and settings that defeat ours: for `doctor` and the log.
    pub warnings: Vec<String>,
    /// The NIC was found as a killed process had left it.
    pub resumed: bool,
}

/// A port's host interface. Dropping it without [`release_all`] is what a kill does.
#[derive(Debug)]
pub struct HostInterface {
    name: String,
    ifindex: u32,
    mac: [u8; 6],
    queues: Vec<OwnedFd>,
    control: OwnedFd,
    record: Record,
    record_path: PathBuf,
    keeper: Arc<dyn RecordKeeper>,
}

impl HostInterface {
    /// Puts a TAP in the place of the NIC `name`, which becomes `name.phy`, and silences the NIC.
    ///
    /// # Errors
    /// Before anything is touched: [`KernelError::NoDevice`], [`KernelError::NameTooLong`], [`KernelError::Taken`],
    /// [`KernelError::CannotSilence`], [`KernelError::Record`]. A later failure puts back what was changed.
    pub fn take_over(
        name: &str,
        options: &TakeoverOptions,
        filter: &mut KernelFilter,
    ) -> Result<Takeover, KernelError> {
        if name.len() + SUFFIX.len() > tapdev::NAME_LENGTH {
            return Err(KernelError::NameTooLong { name: name.to_owned() });
        }
        let mut rtnl = Rtnl::open()?;
        let path = Record::path(&options.state_directory, name);
        let (record, resumed) = match find(&mut rtnl, name, Record::load(&path)?)? {
            Found::Fresh(link) => {
                may_be_replaced(&link)?;
                let nic = examine(&mut rtnl, &link)?;
                let record = Record::new(name, Some(nic));
                record.store(&OwnRecords, &path)?;
                (record, false)
            }
            Found::Left(mut record) => {
                // Standalone mode leaves the NIC its name.
                if let Some(nic) = &mut record.nic {
                    nic.phy_name = format!("{name}{SUFFIX}");
                }
                record.store(&OwnRecords, &path)?;
                (*record, true)
            }
        };
        let result = Self::build(&mut rtnl, record.clone(), path.clone(), options, filter);
        let (interface, mut warnings) = match result {
            Ok(built) => built,
            Err(error) => {
                if !resumed && let Some(nic) = &record.nic {
                    // Half a takeover would leave the box without its address: undo it.
                    let _ = restore_link(&mut rtnl, name, nic, filter);
                    rtnl.put_routes(&nic.configuration, nic.ifindex, nic.ifindex);
                    let _ = OwnRecords.remove(&path);
                }
                return Err(error);
            }
        };
        warnings.extend(sysctl::overrides().into_iter().map(|(what, mend)| format!("{what}; type: {mend}")));
        Ok(Takeover { interface, warnings, resumed })
    }

    /// Makes the host interface of a VLAN port: a TAP named as configured, with the MAC of its parent.
    ///
    /// # Errors
    /// [`KernelError::Taken`] when a link of the name exists, such as the kernel's own VLAN device.
    pub fn create_vlan(
        name: &str,
        parent: &HostInterface,
        mtu: u32,
        options: &TakeoverOptions,
    ) -> Result<Takeover, KernelError> {
        let mut rtnl = Rtnl::open()?;
        if let Some(link) = rtnl.link(name)? {
            let kind = link.kind.as_deref().unwrap_or("device");
            let why = format!("a {kind} link has this name; the VLAN port makes its own: ip link del {name}");
            return Err(KernelError::Taken { name: name.to_owned(), why });
        }
        let path = Record::path(&options.state_directory, name);
        let known = Record::load(&path)?;
        let resumed = known.is_some();
        let record = known.unwrap_or_else(|| Record::new(name, None));
        let role = Role { mac: parent.mac, mtu, inherited: Vec::new() };
        let (mut interface, mut warnings) = Self::make_tap(&mut rtnl, record, path, &role, options)?;
        if let Some(host) = interface.record.host.clone() {
            warnings.extend(rtnl.put(&host.configuration, host.ifindex, interface.ifindex, Dad::Skip));
        }
        interface.refresh_record()?;
        Ok(Takeover { interface, warnings, resumed })
    }

    fn build(
        rtnl: &mut Rtnl,
        record: Record,
        path: PathBuf,
        options: &TakeoverOptions,
        filter: &mut KernelFilter,
    ) -> Result<(Self, Vec<String>), KernelError> {
        let Some(nic) = record.nic.clone() else {
            return Err(KernelError::Record { path, why: "it names no NIC".to_owned() });
        };
        let name = record.name.clone();
        quiet(rtnl, &name, &nic, options, filter)?;
        let role = Role { mac: nic.mac.unwrap_or_default(), mtu: nic.mtu, inherited: inherited(Some(&nic)) };
        let (mut interface, mut warnings) = Self::make_tap(rtnl, record, path, &role, options)?;
        // After a kill the TAP had something newer than what was found on the NIC.
        let (configuration, from) = match &interface.record.host {
            Some(host) => (host.configuration.clone(), host.ifindex),
            None => (nic.configuration.clone(), nic.ifindex),
        };
        warnings.extend(rtnl.put(&configuration, from, interface.ifindex, Dad::Skip));
        interface.refresh_record()?;
        Ok((interface, warnings))
    }

    fn make_tap(
        rtnl: &mut Rtnl,
        record: Record,
        record_path: PathBuf,
        role: &Role,
        options: &TakeoverOptions,
    ) -> Result<(Self, Vec<String>), KernelError> {
        let name = record.name.clone();
        let queues = Self::make_device(&name, options.queues, options.framing)?;
        let control =
            queues[0].try_clone().map_err(|error| KernelError::netlink(format!("making the TAP {name}"), error))?;
        let (ifindex, warnings) = Self::dress(rtnl, &name, role, options)?;
        let keeper = Arc::new(OwnRecords);
        let interface = HostInterface { name, ifindex, mac: role.mac, queues, control, record, record_path, keeper };
        Ok((interface, warnings))
    }

    /// Makes a bare TAP, down, with a random MAC: the part that needs /dev/net/tun. One descriptor for each queue.
    ///
    /// # Errors
    /// [`KernelError::Taken`] when something else has the name, [`KernelError::Capability`], [`KernelError::File`].
    pub fn make_device(name: &str, queues: usize, framing: TapFraming) -> Result<Vec<OwnedFd>, KernelError> {
        tapdev::create(name, queues, framing).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                KernelError::Capability { action: format!("making the TAP {name}"), capability: "cap_net_admin" }
            }
            Some(libc::ENOENT | libc::ENODEV) => KernelError::file("/dev/net/tun", error),
            _ if error.kind() == io::ErrorKind::AlreadyExists => {
                KernelError::Taken { name: name.to_owned(), why: "a link of this name exists".to_owned() }
            }
            _ => KernelError::netlink(format!("making the TAP {name}"), error),
        })
    }

    /// Gives a new TAP its MAC, MTU and settings, and sets it up. Returns its index, and the settings that were refused.
    fn dress(
        rtnl: &mut Rtnl,
        name: &str,
        role: &Role,
        options: &TakeoverOptions,
    ) -> Result<(u32, Vec<String>), KernelError> {
        let ifindex = rtnl.link(name)?.map_or(0, |link| link.ifindex);
        rtnl.change(ifindex, (0, 0), |message| {
            message.attribute(libc::IFLA_ADDRESS, &role.mac).attribute_u32(libc::IFLA_MTU, role.mtu);
        })
        .map_err(|error| KernelError::netlink(format!("setting MAC and MTU of {name}"), error))?;
        let host_role = HostRole {
            forward_v4: options.forward_to_host_links,
            accept_ra: options.accept_router_advertisements,
            route_localnet: options.route_localnet,
        };
        let mut warnings = Vec::new();
        for setting in role.inherited.iter().chain(&sysctl::host_interface(host_role)) {
            // A kernel without IPv6, or without a newer knob, does not need it.
            if let Err(error) = setting.write(name) {
                warnings.push(error.to_string());
            }
        }
        rtnl.change(ifindex, (libc::IFF_UP, libc::IFF_UP), |_| {})
            .map_err(|error| KernelError::netlink(format!("setting {name} up"), error))?;
        Ok((ifindex, warnings))
    }

    /// Makes the TAP again after somebody deleted it: its MAC, `mtu`, its settings, and what the record says that it had
    /// last. `make` makes the bare device of a name and returns a descriptor for each queue. Returns what was refused.
    ///
    /// # Errors
    /// What the kernel or `make` says; there is no TAP then, and it can be tried again.
    pub fn remake(
        &mut self,
        mtu: u32,
        options: &TakeoverOptions,
        make: impl FnOnce(&str) -> Result<Vec<OwnedFd>, KernelError>,
    ) -> Result<Vec<String>, KernelError> {
        let mut rtnl = Rtnl::open()?;
        let queues = make(&self.name)?;
        let broken = |error| KernelError::netlink(format!("making the TAP {}", self.name), error);
        let Some(first) = queues.first() else { return Err(broken(io::ErrorKind::InvalidInput.into())) };
        let control = first.try_clone().map_err(broken)?;
        let role = Role { mac: self.mac, mtu, inherited: inherited(self.record.nic.as_ref()) };
        let (ifindex, mut warnings) = Self::dress(&mut rtnl, &self.name, &role, options)?;
        (self.queues, self.control, self.ifindex) = (queues, control, ifindex);
        if let Some(host) = self.record.host.clone() {
            warnings.extend(rtnl.put(&host.configuration, host.ifindex, ifindex, Dad::Skip));
        }
        self.refresh_record()?;
        Ok(warnings)
    }

    /// The port's name, which the TAP has.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kernel index of the TAP.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// The MAC of both TAP and NIC.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Name and kernel index of the NIC; none for VLAN ports.
    pub fn nic(&self) -> Option<(&str, u32)> {
        self.record.nic.as_ref().map(|nic| (nic.phy_name.as_str(), nic.ifindex))
    }

    /// Gives the TAP's descriptors away, one for each queue; empty the second time.
    pub fn take_queues(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.queues)
    }

    /// Writes its record through another from now on.
    pub fn keep_record_through(&mut self, keeper: Arc<dyn RecordKeeper>) {
        self.keeper = keeper;
    }

    /// Shows the NIC's carrier on the TAP, so that routing daemons see a lost link.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_carrier(&self, carrier: Carrier) -> Result<(), KernelError> {
        tapdev::set_carrier(self.control.as_fd(), carrier)
            .map_err(|error| KernelError::netlink(format!("setting the carrier of {}", self.name), error))
    }

    /// Adds an address to the TAP, as `ip address add` does.
    ///
    /// # Errors
    /// What the kernel says; an address that is there already is none.
    pub fn add_address(&self, address: IpNetwork) -> Result<(), KernelError> {
        Rtnl::open()?.add_address(self.ifindex, address)
    }

    /// Writes into the record what the TAP has now, to be put back after a kill: its addresses, and the routes that no
    /// routing daemon will bring back. To be called when addresses of the port change. A TAP that is gone has lost what it
    /// had and leaves the record as it is.
    ///
    /// # Errors
    /// When the kernel cannot be asked or the file not be written.
    pub fn refresh_record(&mut self) -> Result<(), KernelError> {
        let mut rtnl = Rtnl::open()?;
        let configuration = rtnl.configuration(self.ifindex, Scope::Administrator)?;
        // Looked at afterwards: it may have gone meanwhile.
        if !rtnl.links()?.iter().any(|link| link.ifindex == self.ifindex) {
            return Ok(());
        }
        let host = Some(HostRecord { ifindex: self.ifindex, configuration });
        if self.record.host != host {
            self.record.host = host;
            self.record.store(&*self.keeper, &self.record_path)?;
        }
        Ok(())
    }

    /// Takes over the NIC again after it had disappeared: finds it by its MAC, under whatever name it came back.
    ///
    /// # Errors
    /// [`KernelError::NoDevice`] while it is not there.
    pub fn readopt(&mut self, options: &TakeoverOptions, filter: &mut KernelFilter) -> Result<(), KernelError> {
        let Some(mut nic) = self.record.nic.clone() else { return Ok(()) };
        let mut rtnl = Rtnl::open()?;
        let links = rtnl.links()?;
        let is_nic = |link: &&Link| link.mac == nic.mac && link.ifindex != self.ifindex && !is_tun(link);
        let Some(link) = links.iter().find(is_nic) else { return Err(no_device(&nic.phy_name, &links)) };
        may_be_replaced(link)?;
        let fresh = examine(&mut rtnl, link)?;
        nic.moved_to(fresh);
        filter.unsilence(&nic.phy_name)?;
        self.record.nic = Some(nic.clone());
        self.record.store(&*self.keeper, &self.record_path)?;
        quiet(&mut rtnl, &link.name, &nic, options, filter)
    }
}

/// The link of this name.
pub(super) fn find_link(name: &str) -> Option<Link> {
    Rtnl::open().ok()?.link(name).ok()?
}

/// Ends host interfaces, all at once because routes may lead through several: the TAPs go, and the NICs are left as
/// `on_exit` says. The TAPs' queue descriptors may still be open elsewhere. Returns what the kernel did not take back.
///
/// # Errors
/// The first failure; the others are released all the same.
pub fn release_all(
    interfaces: Vec<HostInterface>,
    on_exit: OnExit,
    filter: &mut KernelFilter,
) -> Result<Vec<String>, KernelError> {
    let mut rtnl = Rtnl::open()?;
    let mut refused = Vec::new();
    let mut first_error = None;
    let mut restored = Vec::new();
    for mut interface in interfaces {
        if on_exit == OnExit::Closed {
            // The next start puts the addresses back.
            first_error = first_error.or(interface.refresh_record().err());
        }
        let HostInterface { name, ifindex, record, record_path, keeper, .. } = interface;
        match rtnl.delete_link(ifindex) {
            Err(error) if error.raw_os_error() != Some(libc::ENODEV) => {
                first_error = first_error.or(Some(KernelError::netlink(format!("removing the TAP {name}"), error)));
                continue;
            }
            _ => {}
        }
        let Some(nic) = record.nic else {
            if on_exit == OnExit::Kernel {
                first_error = first_error.or(keeper.remove(&record_path).err());
            }
            continue;
        };
        let result = match on_exit {
            OnExit::Closed => rtnl
                .change(nic.ifindex, (0, libc::IFF_UP), |_| {})
                .map_err(|error| KernelError::netlink(format!("setting {} down", nic.phy_name), error)),
            OnExit::Kernel => restore_link(&mut rtnl, &name, &nic, filter).map(|mut messages| {
                refused.append(&mut messages);
                restored.push((nic, record_path, keeper));
            }),
        };
        first_error = first_error.or(result.err());
    }
    for (nic, path, keeper) in restored {
        refused.extend(rtnl.put_routes(&nic.configuration, nic.ifindex, nic.ifindex));
        first_error = first_error.or(keeper.remove(&path).err());
    }
    first_error.map_or(Ok(refused), Err)
}

/// Gives a NIC back to the kernel that a killed process, or one that exited closed, has left: what [`OnExit::Kernel`]
/// would have done. Returns what the kernel did not take back.
///
/// # Errors
/// [`KernelError::Taken`] while a ferrule runs or when there is nothing to give back, [`KernelError::NoDevice`].
pub fn restore_left(name: &str, state_directory: &Path) -> Result<Vec<String>, KernelError> {
    let mut filter = KernelFilter::open()?;
    let mut rtnl = Rtnl::open()?;
    let path = Record::path(state_directory, name);
    let left = match find(&mut rtnl, name, Record::load(&path)?)? {
        Found::Left(record) => record.nic,
        Found::Fresh(_) => None,
    };
    let Some(nic) = left else {
        let why = "it has its own name and no record of ours: nothing to give back".to_owned();
        return Err(KernelError::Taken { name: name.to_owned(), why });
    };
    let mut refused = restore_link(&mut rtnl, name, &nic, &mut filter)?;
    refused.extend(rtnl.put_routes(&nic.configuration, nic.ifindex, nic.ifindex));
    OwnRecords.remove(&path)?;
    Ok(refused)
}

/// Settings that a TAP has of its NIC.
fn inherited(nic: Option<&NicRecord>) -> Vec<Setting> {
    let all = nic.into_iter().flat_map(|nic| &nic.settings);
    all.filter(|setting| INHERITED.contains(&setting.key.as_str())).cloned().collect()
}

/// What a TAP is to look like.
struct Role {
    mac: [u8; 6],
    mtu: u32,
    inherited: Vec<Setting>,
}
