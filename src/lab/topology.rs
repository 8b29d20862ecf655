//! What a lab is asked to consist of, and how the plan follows from it.
//!
//! ```text
//!   a  ab0 ---- ba0  b  bc0 ---- cb0  c  ce0 ---- ec0  e     (e: behind a narrower link)
//!   a2 ab0 -+    (switch)   bd0 ---- db0  d                  (d: a second next hop)
//! ```
//! A device is named after its host, its neighbour and an index, as a BSD driver would be, so that a name tried in the
//! wrong namespace meets nothing. Addresses are from the benchmarking blocks of RFC 2544 and RFC 5180.
#![forbid(unsafe_code)]

use super::error::LabError;
use super::plan::{Plan, Port, Route};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Where state files are kept unless told otherwise: gone after a reboot, as the namespaces are.
pub const DEFAULT_DIRECTORY: &str = "/run/ferrule";

/// Whether the end hosts leave checksums and segmentation to their device.
///
/// With `On` a frame reaches the router with unfinished checksums and up to 64 KiB long, as between virtual machines;
/// with `Off` as from a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offloads {
    /// As veth comes: checksum, TSO and GSO on.
    On,
    /// Complete frames no longer than the MTU.
    Off,
}

/// The tag protocol of a VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagProtocol {
    /// 802.1Q, EtherType 0x8100.
    Dot1q,
    /// 802.1ad, EtherType 0x88a8.
    Dot1ad,
}

/// A VLAN that an end host lives in. Its frames are tagged on the way out and untagged on the way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vlan {
    /// VLAN identifier, 1 to 4094.
    pub id: u16,
    /// Tag protocol.
    pub protocol: TagProtocol,
}

/// The request: which hosts and links. `Topology::new()` is A - B - C with one queue, MTU 1500, IPv4 and IPv6.
#[derive(Debug, Clone)]
pub struct Topology {
    pub(super) name: Option<String>,
    pub(super) directory: PathBuf,
    pub(super) offloads: Offloads,
    queues: u16,
    client_queues: Option<u16>,
    client_mtu: u32,
    server_mtu: u32,
    ipv6: bool,
    clients: u16,
    servers: u16,
    second_next_hop: bool,
    narrow_mtu: Option<u32>,
    vlans: BTreeMap<String, Vlan>,
}

impl Default for Topology {
    fn default() -> Self {
        Topology::new()
    }
}

impl Topology {
    /// A - B - C: one queue, MTU 1500, IPv4 and IPv6, offloads of the end hosts off.
    pub fn new() -> Topology {
        Topology {
            name: None,
            directory: PathBuf::from(DEFAULT_DIRECTORY),
            offloads: Offloads::Off,
            queues: 1,
            client_queues: None,
            client_mtu: 1500,
            server_mtu: 1500,
            ipv6: true,
            clients: 1,
            servers: 1,
            second_next_hop: false,
            narrow_mtu: None,
            vlans: BTreeMap::new(),
        }
    }

    /// The lab's name (letters, digits, `-` and `_`, at most 32). Without one it gets a name of its own.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where the state file goes; default [`DEFAULT_DIRECTORY`].
    #[must_use]
    pub fn directory(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = directory.as_ref().to_path_buf();
        self
    }

    /// Queue pairs of each end of each link.
    #[must_use]
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Queue pairs of each end of the A - B link, where they differ from the others'.
    #[must_use]
    pub fn client_queues(mut self, queues: u16) -> Self {
        self.client_queues = Some(queues);
        self
    }

    /// The MTU of all links to B, bytes.
    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        self.client_mtu(mtu).server_mtu(mtu)
    }

    /// The MTU of the A - B link, bytes.
    #[must_use]
    pub fn client_mtu(mut self, mtu: u32) -> Self {
        self.client_mtu = mtu;
        self
    }

    /// The MTU of the B - C and B - D links, bytes.
    #[must_use]
    pub fn server_mtu(mut self, mtu: u32) -> Self {
        self.server_mtu = mtu;
        self
    }

    /// IPv4 only: no IPv6 addresses, and IPv6 switched off in the hosts.
    #[must_use]
    pub fn without_ipv6(mut self) -> Self {
        self.ipv6 = false;
        self
    }

    /// How many hosts on A's side (`a`, `a2`, `a3`, ...), joined by a bridge when more than one.
    #[must_use]
    pub fn clients(mut self, hosts: u16) -> Self {
        self.clients = hosts;
        self
    }

    /// How many hosts on C's side (`c`, `c2`, ...), joined by a bridge when more than one.
    #[must_use]
    pub fn servers(mut self, hosts: u16) -> Self {
        self.servers = hosts;
        self
    }

    /// Adds host `d` on a third link of B. `c` and `d` both own the network [`anycast_v4`] / [`anycast_v6`], for ECMP.
    #[must_use]
    pub fn second_next_hop(mut self) -> Self {
        self.second_next_hop = true;
        self
    }

    /// Adds host `e` behind `c`, over a link of this MTU (bytes), for path MTU discovery.
    #[must_use]
    pub fn narrow_link(mut self, mtu: u32) -> Self {
        self.narrow_mtu = Some(mtu);
        self
    }

    /// Whether the end hosts use their device's offloads.
    #[must_use]
    pub fn offloads(mut self, offloads: Offloads) -> Self {
        self.offloads = offloads;
        self
    }

    /// Puts an end host into a VLAN.
    #[must_use]
    pub fn vlan(mut self, host: &str, vlan: Vlan) -> Self {
        self.vlans.insert(host.to_string(), vlan);
        self
    }

    /// Works the plan out.
    ///
    /// # Errors
    /// [`LabError::Request`] when a number is out of its range or a VLAN names no end host.
    pub fn plan(&self) -> Result<Plan, LabError> {
        self.check()?;
        let queues = self.client_queues.unwrap_or(self.queues);
        let mut plan = Plan { queues, ipv6: self.ipv6, ..Plan::default() };
        plan.hosts.push("b".to_string());
        self.side(&mut plan, Segment::Clients, self.clients, self.client_mtu);
        plan.queues = self.queues;
        self.side(&mut plan, Segment::Servers, self.servers, self.server_mtu);
        if self.second_next_hop {
            self.side(&mut plan, Segment::SecondHop, 1, self.server_mtu);
            for host in ["c", "d"] {
                plan.address(host, "lo", anycast_v4(), 1);
                plan.address_v6(host, "lo", anycast_v6(), 1);
            }
            let hops = [Segment::Servers.member(1), Segment::SecondHop.member(1)];
            plan.router_routes.push(Route { to: anycast_v4().into(), via: hops.iter().map(|h| h.0.into()).collect() });
            if self.ipv6 {
                let via = hops.iter().map(|h| h.1.into()).collect();
                plan.router_routes.push(Route { to: anycast_v6().into(), via });
            }
        }
        if let Some(mtu) = self.narrow_mtu {
            self.narrow(&mut plan, mtu);
        }
        plan.vlans = self.vlans.clone();
        match self.vlans.keys().find(|host| !plan.is_end_host(host)) {
            Some(host) => {
                Err(LabError::Request(format!("a VLAN is asked for {host}, which is no end host of this lab")))
            }
            None => Ok(plan),
        }
    }

    fn check(&self) -> Result<(), LabError> {
        let bad = |text: String| Err(LabError::Request(text));
        for queues in [self.queues, self.client_queues.unwrap_or(self.queues)] {
            if !(1..=64).contains(&queues) {
                return bad(format!("{queues} queues: a link has 1 to 64"));
            }
        }
        if !(1..=200).contains(&self.clients) || !(1..=200).contains(&self.servers) {
            return bad(format!("{} clients and {} servers: 1 to 200 each", self.clients, self.servers));
        }
        let least = if self.ipv6 { 1280 } else { 576 };
        for mtu in [Some(self.client_mtu), Some(self.server_mtu), self.narrow_mtu].into_iter().flatten() {
            if !(least..=65535).contains(&mtu) {
                return bad(format!("MTU {mtu}: {least} to 65535 (IPv6 needs 1280, RFC 8200 section 5)"));
            }
        }
        if let Some((host, vlan)) = self.vlans.iter().find(|(_, vlan)| !(1..=4094).contains(&vlan.id)) {
            return bad(format!("VLAN {} of {host}: 1 to 4094", vlan.id));
        }
        let Some(name) = &self.name else { return Ok(()) };
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 32 || name.starts_with('-') || !name.chars().all(fits) {
            return bad(format!("lab name {name:?}: 1 to 32 letters, digits, - and _"));
        }
        Ok(())
    }

    /// One port of B and the hosts behind it.
    fn side(&self, plan: &mut Plan, segment: Segment, hosts: u16, mtu: u32) {
        let letter = segment.letter();
        let port = format!("b{letter}0");
        let names: Vec<String> =
            (1..=hosts).map(|n| if n == 1 { letter.to_string() } else { format!("{letter}{n}") }).collect();
        for name in &names {
            plan.hosts.push(name.clone());
            plan.end_hosts.push(name.clone());
        }
        let device = format!("{letter}b0");
        if hosts == 1 {
            plan.link(("b", &port), (&names[0], &device), mtu);
        } else {
            let switch = format!("s{letter}");
            plan.hosts.push(switch.clone());
            plan.bridges.push(switch.clone());
            plan.link(("b", &port), (&switch, "sb0"), mtu);
            for (index, name) in names.iter().enumerate() {
                plan.link((&switch, &format!("s{}", index + 1)), (name, &device), mtu);
            }
        }
        for (index, name) in names.iter().enumerate() {
            let host_part = index as u16 + 2;
            plan.address(name, &device, segment.v4(), host_part.into());
            plan.address_v6(name, &device, segment.v6(), host_part.into());
            plan.default_route(name, segment.member(0));
        }
        let mut networks = vec![IpNetwork::from(v4_member(segment.v4(), 1))];
        if self.ipv6 {
            networks.push(v6_member(segment.v6(), 1).into());
        }
        plan.router_ports.push(Port { device: port, neighbour: letter.to_string(), mtu, networks });
    }

    /// Host `e` behind `c`.
    fn narrow(&self, plan: &mut Plan, mtu: u32) {
        let (v4, v6) = (narrow_v4(), narrow_v6());
        plan.hosts.push("e".to_string());
        plan.end_hosts.push("e".to_string());
        plan.forwarders.push("c".to_string());
        plan.link(("c", "ce0"), ("e", "ec0"), mtu);
        for (host, device, part) in [("c", "ce0", 1), ("e", "ec0", 2)] {
            plan.address(host, device, v4, part);
            plan.address_v6(host, device, v6, part.into());
        }
        plan.default_route("e", (v4_member(v4, 1).ip(), v6_member(v6, 1).ip()));
        let next = Segment::Servers.member(1);
        plan.router_routes.push(Route { to: v4.into(), via: vec![next.0.into()] });
        if self.ipv6 {
            plan.router_routes.push(Route { to: v6.into(), via: vec![next.1.into()] });
        }
    }
}

/// The networks around B.
#[derive(Debug, Clone, Copy)]
enum Segment {
    Clients,
    Servers,
    SecondHop,
}

impl Segment {
    fn letter(self) -> char {
        match self {
            Segment::Clients => 'a',
            Segment::Servers => 'c',
            Segment::SecondHop => 'd',
        }
    }

    fn v4(self) -> Ipv4Network {
        let (second, third) = match self {
            Segment::Clients => (18, 10),
            Segment::Servers => (19, 10),
            Segment::SecondHop => (18, 20),
        };
        v4_network(second, third)
    }

    fn v6(self) -> Ipv6Network {
        v6_network(match self {
            Segment::Clients => 0xa,
            Segment::Servers => 0xb,
            Segment::SecondHop => 0xd,
        })
    }

    /// Member 0 is B, member n the n-th host.
    fn member(self, index: u32) -> (Ipv4Addr, Ipv6Addr) {
        (v4_member(self.v4(), index + 1).ip(), v6_member(self.v6(), (index + 1).into()).ip())
    }
}

fn v4_network(second: u8, third: u8) -> Ipv4Network {
    Ipv4Network::new(Ipv4Addr::new(198, second, third, 0), 24).expect("24 is a prefix length")
}

fn v6_network(subnet: u16) -> Ipv6Network {
    Ipv6Network::new(Ipv6Addr::new(0x2001, 2, 0, subnet, 0, 0, 0, 0), 64).expect("64 is a prefix length")
}

pub(super) fn v4_member(network: Ipv4Network, part: u32) -> Ipv4Network {
    let address = Ipv4Addr::from(u32::from(network.network()) + part);
    Ipv4Network::new(address, network.prefix()).expect("the prefix length of a network")
}

pub(super) fn v6_member(network: Ipv6Network, part: u128) -> Ipv6Network {
    let address = Ipv6Addr::from(u128::from(network.network()) + part);
    Ipv6Network::new(address, network.prefix()).expect("the prefix length of a network")
}

/// The network that both `c` and `d` own (`.1` answers on both): 198.18.100.0/24.
pub fn anycast_v4() -> Ipv4Network {
    v4_network(18, 100)
}

/// The network that both `c` and `d` own (`::1` answers on both): 2001:2:0:100::/64.
pub fn anycast_v6() -> Ipv6Network {
    v6_network(0x100)
}

/// The network of the narrow link behind `c`: 198.19.30.0/24.
pub fn narrow_v4() -> Ipv4Network {
    v4_network(19, 30)
}

/// The network of the narrow link behind `c`: 2001:2:0:e::/64.
pub fn narrow_v6() -> Ipv6Network {
    v6_network(0xe)
}

#[cfg(test)]
mod tests;
