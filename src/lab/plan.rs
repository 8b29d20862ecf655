//! A lab worked out: every namespace, link, address and route, and the `ip -batch` lines that make them. Nothing here
//! touches the machine.
#![forbid(unsafe_code)]

use super::topology::{Vlan, v4_member, v6_member};
use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// Host.
    pub host: String,
    /// Device in it.
    pub device: String,
    /// Its MAC address.
    pub mac: [u8; 6],
}

/// A veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The end in whose namespace the pair is made.
    pub near: End,
    /// The other end.
    pub far: End,
    /// MTU of both ends, bytes.
    pub mtu: u32,
    /// Queue pairs of each end.
    pub queues: u16,
}

/// An address of an end host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host.
    pub host: String,
    /// Device in it.
    pub device: String,
    /// Address and prefix length.
    pub network: IpNetwork,
}

/// A route of the router: one next hop, or several to share the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub to: IpNetwork,
    /// Next hops.
    pub via: Vec<IpAddr>,
}

/// A port of the router B, for its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Device in B.
    pub device: String,
    /// The first host behind it.
    pub neighbour: String,
    /// MTU, bytes.
    pub mtu: u32,
    /// B's addresses there with prefix length, IPv4 first. The router sets them, the lab does not.
    pub networks: Vec<IpNetwork>,
}

/// All of a lab, worked out.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// All namespaces by host name, the router `b` first, switches included.
    pub hosts: Vec<String>,
    /// The hosts with addresses and offloads to be set.
    pub end_hosts: Vec<String>,
    /// Hosts that are bridges.
    pub bridges: Vec<String>,
    /// End hosts that forward (`c` before a narrow link).
    pub forwarders: Vec<String>,
    /// veth pairs.
    pub links: Vec<Link>,
    /// Addresses of the end hosts.
    pub addresses: Vec<Address>,
    /// Default gateways of the end hosts.
    pub gateways: Vec<(String, IpAddr)>,
    /// Ports of B in the order A, C, D.
    pub router_ports: Vec<Port>,
    /// Routes that B needs beside its connected ones.
    pub router_routes: Vec<Route>,
    /// VLANs of end hosts.
    pub vlans: BTreeMap<String, Vlan>,
    /// Queue pairs of each end of the links made from now on.
    pub queues: u16,
    /// Whether there is IPv6.
    pub ipv6: bool,
}

impl Plan {
    pub(super) fn is_end_host(&self, host: &str) -> bool {
        self.end_hosts.iter().any(|name| name == host)
    }

    pub(super) fn link(&mut self, near: (&str, &str), far: (&str, &str), mtu: u32) {
        let mut number = self.links.len() as u16 * 2;
        let mut end = |(host, device): (&str, &str)| {
            number += 1;
            let [high, low] = number.to_be_bytes();
            // Locally administered (02), "fe" as in ferrule, then the number of the end.
            End { host: host.to_string(), device: device.to_string(), mac: [2, 0xfe, 0, 0, high, low] }
        };
        let link = Link { near: end(near), far: end(far), mtu, queues: self.queues };
        self.links.push(link);
    }

    pub(super) fn address(&mut self, host: &str, device: &str, network: Ipv4Network, part: u32) {
        let network = v4_member(network, part).into();
        self.addresses.push(Address { host: host.to_string(), device: device.to_string(), network });
    }

    pub(super) fn address_v6(&mut self, host: &str, device: &str, network: Ipv6Network, part: u128) {
        if self.ipv6 {
            let network = v6_member(network, part).into();
            self.addresses.push(Address { host: host.to_string(), device: device.to_string(), network });
        }
    }

    pub(super) fn default_route(&mut self, host: &str, gateway: (Ipv4Addr, Ipv6Addr)) {
        self.gateways.push((host.to_string(), gateway.0.into()));
        if self.ipv6 {
            self.gateways.push((host.to_string(), gateway.1.into()));
        }
    }

    /// The ends in one host.
    pub fn ends<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a End> {
        self.links.iter().flat_map(|link| [&link.near, &link.far]).filter(move |end| end.host == host)
    }

    /// The `ip -batch` lines that make the links whose near end is in `host`.
    pub(super) fn link_batch(&self, host: &str, namespace: impl Fn(&str) -> String) -> String {
        let mut batch = String::new();
        if self.bridges.iter().any(|bridge| bridge == host) {
            batch.push_str("link add br0 type bridge stp_state 0 mcast_snooping 0\n");
        }
        for Link { near, far, mtu, queues } in self.links.iter().filter(|link| link.near.host == host) {
            let queues = format!("numtxqueues {queues} numrxqueues {queues}");
            batch.push_str(&format!(
                "link add {} mtu {mtu} address {} {queues} type veth peer name {} mtu {mtu} address {} {queues} netns {}\n",
                near.device,
                mac_text(near.mac),
                far.device,
                mac_text(far.mac),
                namespace(&far.host),
            ));
        }
        batch
    }

    /// The `ip -batch` lines that bring `host` up with addresses and routes.
    pub(super) fn host_batch(&self, host: &str) -> String {
        let mut batch = String::from("link set lo up\n");
        let bridge = self.bridges.iter().any(|bridge| bridge == host);
        for end in self.ends(host) {
            let master = if bridge { "master br0 " } else { "" };
            batch.push_str(&format!("link set {} {master}up\n", end.device));
        }
        if bridge {
            batch.push_str("link set br0 up\n");
        }
        for Address { device, network, .. } in self.addresses.iter().filter(|address| address.host == host) {
            let nodad = if network.is_ipv6() { " nodad" } else { "" };
            batch.push_str(&format!("addr add {network} dev {device}{nodad}\n"));
        }
        for (_, gateway) in self.gateways.iter().filter(|(name, _)| name == host) {
            batch.push_str(&format!("route add default via {gateway}\n"));
        }
        batch
    }

    /// The `ip -batch` lines with which the kernel of B gets its addresses and routes; they may be run again.
    pub fn router_batch(&self) -> String {
        let mut batch = String::new();
        for port in &self.router_ports {
            for network in &port.networks {
                let nodad = if network.is_ipv6() { " nodad" } else { "" };
                batch.push_str(&format!("addr replace {network} dev {}{nodad}\n", port.device));
            }
        }
        for Route { to, via } in &self.router_routes {
            let hops: Vec<String> = via.iter().map(|hop| format!("via {hop}")).collect();
            let hops = if hops.len() == 1 { hops[0].clone() } else { format!("nexthop {}", hops.join(" nexthop ")) };
            batch.push_str(&format!("route replace {to} {hops}\n"));
        }
        batch
    }
}

/// A MAC address as `02:fe:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
