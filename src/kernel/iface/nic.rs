//! The NIC under a host interface: finding it, reading what will change, silencing and restoring it.
#![forbid(unsafe_code)]

use super::TakeoverOptions;
use super::record::{NicRecord, Record};
use super::rtnl::{Dad, Rtnl, Scope};
use crate::kernel::KernelError;
use crate::kernel::ethtool::Ethtool;
use crate::kernel::filter::KernelFilter;
use crate::kernel::message::Link;
use crate::kernel::sysctl::{self, Setting};

/// What a NIC is called while a TAP has its name.
pub(crate) const SUFFIX: &str = ".phy";
/// Settings that a TAP takes over from its NIC.
pub(super) const INHERITED: [&str; 4] = ["addr_gen_mode", "autoconf", "use_tempaddr", "disable_ipv6"];

/// Features with which a NIC takes the VLAN tag out of a frame and tells it beside: 802.1Q, 802.1ad.
const STRIPPING: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];

/// Features with which a device takes unfinished checksums from the kernel. TCP segmentation depends on them, and the kernel
/// switches it off and on with them.
const FINISHING: [&str; 2] = ["tx-checksum-ip-generic", "tx-checksum-sctp"];

/// In what state a NIC was found; there is one at a time.
#[allow(clippy::large_enum_variant)]
pub(super) enum Found {
    /// The NIC under its own name.
    Fresh(Link),
    /// The NIC as a killed process, or one that exited closed, left it.
    Left(Box<Record>),
}

pub(super) fn find(rtnl: &mut Rtnl, name: &str, record: Option<Record>) -> Result<Found, KernelError> {
    let links = rtnl.links()?;
    let by_name = |wanted: &str| links.iter().find(|link| link.name == wanted).cloned();
    let phy_name = format!("{name}{SUFFIX}");
    let (named, renamed) = (by_name(name), by_name(&phy_name));
    let recorded = record.as_ref().and_then(|record| record.nic.as_ref()).map(|nic| nic.ifindex);
    let taken = |why: String| Err(KernelError::Taken { name: name.to_owned(), why });
    match (named, renamed) {
        (Some(_), Some(_)) => taken(format!(
            "both {name} and {phy_name} exist; is another ferrule running? If not: ip link del {name}, or rename one"
        )),
        // Killed in the middle of taking over or of restoring: the record knows what was there before.
        (Some(link), None) if recorded == Some(link.ifindex) => {
            record.map_or(Ok(Found::Fresh(link)), |r| Ok(Found::Left(Box::new(r))))
        }
        (Some(link), None) => Ok(Found::Fresh(link)),
        (None, Some(link)) => match record {
            Some(record) if recorded == Some(link.ifindex) => Ok(Found::Left(Box::new(record))),
            _ => taken(format!("{phy_name} exists without a record of ours; type: ip link set {phy_name} name {name}")),
        },
        (None, None) => Err(no_device(name, &links)),
    }
}

pub(super) fn no_device(name: &str, links: &[Link]) -> KernelError {
    let existing = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    KernelError::NoDevice { name: name.to_owned(), existing }
}

pub(super) fn is_tun(link: &Link) -> bool {
    link.kind.as_deref() == Some("tun")
}

fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

/// Whether a TAP may stand in the place of this link.
pub(super) fn may_be_replaced(link: &Link) -> Result<(), KernelError> {
    let refuse = |why: &str| Err(KernelError::Taken { name: link.name.clone(), why: why.to_owned() });
    if is_tun(link) {
        return refuse("it is not an Ethernet device; ports need one");
    }
    if link.master.is_some() {
        return refuse("it belongs to a bridge, bond or VRF; type: ip link set DEVICE nomaster");
    }
    Ok(())
}

/// Reads all that will be changed on a NIC.
pub(super) fn examine(rtnl: &mut Rtnl, link: &Link) -> Result<NicRecord, KernelError> {
    let refuse = |why: &str| KernelError::Taken { name: link.name.clone(), why: why.to_owned() };
    if link.flags & libc::IFF_LOOPBACK as u32 != 0 || link.mac.is_none() {
        return Err(refuse("it is not an Ethernet device; ports need one"));
    }
    let phy_name = format!("{}{SUFFIX}", link.name.strip_suffix(SUFFIX).unwrap_or(&link.name));
    let settings = sysctl::silent_nic();
    let inherited = INHERITED.iter().map(|key| Setting::new("ipv6/conf", key, 0));
    let mut found: Vec<Setting> = settings.iter().filter_map(|setting| setting.read(&link.name)).collect();
    for setting in inherited.filter_map(|setting| setting.read(&link.name)) {
        if !found.contains(&setting) {
            found.push(setting);
        }
    }
    Ok(NicRecord {
        ifindex: link.ifindex,
        phy_name,
        mac: link.mac,
        mtu: link.mtu,
        flags: link.flags,
        settings: found,
        stripping: switchable(link.ifindex, &STRIPPING),
        finishing: if is_veth(link) { switchable(link.ifindex, &FINISHING) } else { Vec::new() },
        configuration: rtnl.configuration(link.ifindex, Scope::All)?,
    })
}

/// Those of the features that are in use and can be switched off.
fn switchable(ifindex: u32, features: &[&str]) -> Vec<String> {
    let found = Ethtool::open().ok().and_then(|mut ethtool| ethtool.features(ifindex));
    let Some((active, fixed)) = found else { return Vec::new() };
    features.iter().filter(|name| active.contains(**name) && !fixed.contains(**name)).map(|&name| name.into()).collect()
}

/// Whether a NIC takes VLAN tags out of frames now.
pub(crate) fn strips_tags(ifindex: u32) -> bool {
    let features = Ethtool::open().ok().and_then(|mut ethtool| ethtool.features(ifindex));
    features.is_some_and(|(active, _)| STRIPPING.iter().any(|name| active.contains(*name)))
}

/// Switches features of the record. A NIC that has none, or a kernel without ethtool netlink, needs nothing.
fn switch(nic: &NicRecord, features: &[String], on: bool) -> Result<(), KernelError> {
    if features.is_empty() {
        return Ok(());
    }
    let switched = Ethtool::open()?.set_features(nic.ifindex, features, on);
    let what = || format!("switching {} of {} {}", features.join(", "), nic.phy_name, if on { "on" } else { "off" });
    switched.map_err(|error| KernelError::netlink(what(), error))
}

/// Silences a NIC, takes its addresses and renames it. Each step may have been done before.
pub(super) fn quiet(
    rtnl: &mut Rtnl,
    name: &str,
    nic: &NicRecord,
    options: &TakeoverOptions,
    filter: &mut KernelFilter,
) -> Result<(), KernelError> {
    let now = rtnl.links()?.into_iter().find(|link| link.ifindex == nic.ifindex);
    let now = now.map_or_else(|| name.to_owned(), |link| link.name);
    filter.silence(&now)?;
    for setting in sysctl::silent_nic() {
        setting.write(&now)?;
    }
    rtnl.clear(nic.ifindex)?;
    if now != nic.phy_name {
        rtnl.rename(nic.ifindex, &nic.phy_name)?;
        // Newer kernels tie the chain to the name: it no longer holds the NIC, and would catch the TAP.
        filter.silence(&nic.phy_name)?;
        filter.unsilence(&now)?;
    }
    if options.tags_in_frames {
        switch(nic, &nic.stripping, false)?;
    }
    if options.finished_by_kernel {
        switch(nic, &nic.finishing, false)?;
    }
    let mut flags = libc::IFF_UP | libc::IFF_ALLMULTI;
    if options.promiscuous {
        flags |= libc::IFF_PROMISC;
    }
    rtnl.change(nic.ifindex, (flags, flags), |_| {})
        .map_err(|error| KernelError::netlink(format!("setting {} up", nic.phy_name), error))
}

/// Gives a NIC its name, settings and addresses back; the routes come when all links have theirs. Returns what the
/// kernel refused.
pub(super) fn restore_link(
    rtnl: &mut Rtnl,
    name: &str,
    nic: &NicRecord,
    filter: &mut KernelFilter,
) -> Result<Vec<String>, KernelError> {
    let now = rtnl.links()?.into_iter().find(|link| link.ifindex == nic.ifindex).map(|link| link.name);
    if now.as_deref() != Some(name) {
        rtnl.rename(nic.ifindex, name)?;
    }
    let changed = libc::IFF_UP | libc::IFF_ALLMULTI | libc::IFF_PROMISC;
    rtnl.change(nic.ifindex, (nic.flags as i32 & changed, changed), |message| {
        message.attribute_u32(libc::IFLA_MTU, nic.mtu);
    })
    .map_err(|error| KernelError::netlink(format!("restoring {name}"), error))?;
    switch(nic, &nic.stripping, true)?;
    switch(nic, &nic.finishing, true)?;
    filter.unsilence(&nic.phy_name)?;
    filter.unsilence(name)?;
    for setting in &nic.settings {
        setting.write(name)?;
    }
    Ok(rtnl.put_addresses(&nic.configuration, nic.ifindex, nic.ifindex, Dad::Run))
}
