//! Interface settings under /proc/sys/net, in the network namespace of the calling thread.
//!
//! Written through paths and not through `sysctl` names: interface names may hold dots.
#![forbid(unsafe_code)]

use super::error::KernelError;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;

/// A setting of an interface, without its name: it survives renaming.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setting {
    /// "ipv4/conf", "ipv6/conf", "ipv4/neigh" or "ipv6/neigh".
    pub(crate) tree: String,
    /// The file.
    pub(crate) key: String,
    /// Its value.
    pub(crate) value: String,
}

impl Setting {
    pub(crate) fn new(tree: &str, key: &str, value: impl ToString) -> Self {
        Setting { tree: tree.to_owned(), key: key.to_owned(), value: value.to_string() }
    }

    /// Whether it names a setting of an interface, and no path beyond.
    pub(crate) fn is_sane(&self) -> bool {
        let tree = ["ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh"].contains(&self.tree.as_str());
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
        tree && !self.key.is_empty() && self.key.chars().all(letter)
    }

    fn path(&self, interface: &str) -> PathBuf {
        ["/proc/sys/net", &self.tree, interface, &self.key].iter().collect()
    }

    /// What the setting is on `interface` now; `None` where this kernel lacks it (IPv6 off, older version).
    pub(crate) fn read(&self, interface: &str) -> Option<Setting> {
        let value = fs::read_to_string(self.path(interface)).ok()?;
        Some(Setting { value: value.trim().to_owned(), ..self.clone() })
    }

    /// Sets it, unless it is so already: in a container the files may be read-only. Returns false where this kernel lacks it.
    pub(crate) fn write(&self, interface: &str) -> Result<bool, KernelError> {
        let path = self.path(interface);
        if !path.exists() {
            return Ok(false);
        }
        if self.read(interface).is_some_and(|now| now.value == self.value) {
            return Ok(true);
        }
        fs::write(&path, &self.value).map_err(|error| KernelError::file(&path, error))?;
        Ok(true)
    }
}

/// On a NIC that ports take over: no addresses by itself, no forwarding, no answers. They outlast us, so that after a
/// kill the kernel passes nothing: forwarding is off, and as the NIC has no address, a strict reverse path filter
/// drops every IPv4 packet that arrives there, those for the box's other addresses, too.
pub(crate) fn silent_nic() -> Vec<Setting> {
    vec![
        Setting::new("ipv6/conf", "addr_gen_mode", 1),
        Setting::new("ipv6/conf", "accept_ra", 0),
        Setting::new("ipv6/conf", "forwarding", 0),
        Setting::new("ipv6/conf", "disable_ipv6", 1),
        Setting::new("ipv4/conf", "forwarding", 0),
        Setting::new("ipv4/conf", "rp_filter", 1),
        Setting::new("ipv4/conf", "arp_ignore", 8),
    ]
}

/// Whether the box forwards IPv4 between its own links.
pub fn forwards_ipv4() -> bool {
    fs::read_to_string("/proc/sys/net/ipv4/ip_forward").is_ok_and(|text| text.trim() == "1")
}

/// What a host interface is for, as far as the kernel must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostRole {
    pub(crate) forward_v4: bool,
    pub(crate) accept_ra: bool,
    pub(crate) route_localnet: bool,
}

/// On the TAP. The neighbour settings make the kernel notice a peer with a new MAC within about twenty seconds: entries
/// stay REACHABLE for 5 to 15 s, are probed 1 s after use, twice by unicast and then, still usable, by asking everyone.
pub(crate) fn host_interface(role: HostRole) -> Vec<Setting> {
    let mut settings = vec![
        Setting::new("ipv4/conf", "forwarding", u8::from(role.forward_v4)),
        Setting::new("ipv4/conf", "rp_filter", 0),
        Setting::new("ipv4/conf", "send_redirects", 0),
        Setting::new("ipv4/conf", "accept_redirects", 0),
        Setting::new("ipv4/conf", "arp_ignore", 1),
        Setting::new("ipv4/conf", "arp_announce", 2),
        Setting::new("ipv4/conf", "route_localnet", u8::from(role.route_localnet)),
        Setting::new("ipv6/conf", "forwarding", 1),
        Setting::new("ipv6/conf", "accept_redirects", 0),
        // 2: also while forwarding is on.
        Setting::new("ipv6/conf", "accept_ra", if role.accept_ra { 2 } else { 0 }),
    ];
    for tree in ["ipv4/neigh", "ipv6/neigh"] {
        settings.extend([
            Setting::new(tree, "base_reachable_time_ms", 10_000),
            Setting::new(tree, "delay_first_probe_time", 1),
            Setting::new(tree, "ucast_solicit", 2),
            Setting::new(tree, "mcast_resolicit", 3),
        ]);
    }
    settings
}

/// Settings of `conf/all` that override what we set on an interface, with what to type. (`send_redirects` is left out: on
/// by default, it takes effect for what the host forwards back through the same TAP, and it is given no such packets.)
pub(crate) fn overrides() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, harmless, effect) in [
        ("rp_filter", 0, "the host drops packets whose way back leads through another port"),
        ("arp_ignore", 1, "the host answers ARP for fewer addresses than it should"),
    ] {
        let probe = Setting::new("ipv4/conf", key, 0);
        if let Some(value) = probe.read("all").and_then(|setting| setting.value.parse::<u32>().ok())
            && value > harmless
        {
            found.push((
                format!("net.ipv4.conf.all.{key} = {value} overrides the port's setting: {effect}"),
                format!("sysctl -w net.ipv4.conf.all.{key}={harmless}"),
            ));
        }
    }
    found
}
