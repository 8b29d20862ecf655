#![forbid(unsafe_code)]
//! What the oracle is told: rules, tables, settings and the box that the packets pass.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::Rule;

use super::table::Tables;

/// Everything that decides about a packet, apart from the packet.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Rules, in any order; equal numbers keep theirs. Number 0 is one step (100) above the highest before it.
    pub rules: Vec<Rule>,
    /// Bit i: set i is disabled (`set disable`). Set 31 cannot be.
    pub disabled_sets: u32,
    /// Look-up tables.
    pub tables: Tables,
    /// Variables under `net.inet.ip.fw` and their kin.
    pub settings: Settings,
    /// The box.
    pub environment: Environment,
    /// Seed of the random numbers that `prob` draws, see [`super::Dice`].
    pub seed: u64,
}

/// Variables of ipfw(8), SYSCTL VARIABLES, with FreeBSD's defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `net.inet.ip.fw.one_pass`: what comes back from a pipe or from NAT is not judged again.
    pub one_pass: bool,
    /// `net.inet.ip.fw.default_to_accept`: what rule 65535 does.
    pub default_to_accept: bool,
    /// `net.link.ether.ipfw`: whether there are layer2 passes.
    pub layer2: bool,
    /// `net.inet.ip.fw.verbose_limit`: log entries of a rule that names no `logamount`; 0 for no limit.
    pub verbose_limit: u32,
    /// `net.inet6.ip6.fw.deny_unknown_exthdrs`.
    pub deny_unknown_extension_headers: bool,
    /// `net.inet6.ip6.fw.permit_single_frag6`.
    pub permit_single_fragment6: bool,
    /// `net.fibs`: how many routing tables there are.
    pub fibs: u32,
    /// Life times of dynamic rules.
    pub lifetimes: Lifetimes,
    /// `net.inet.ip.fw.dyn_max`: most dynamic rules.
    pub dynamic_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            one_pass: true,
            default_to_accept: false,
            layer2: false,
            verbose_limit: 0,
            deny_unknown_extension_headers: true,
            permit_single_fragment6: true,
            fibs: 1,
            lifetimes: Lifetimes::default(),
            dynamic_max: 16384,
        }
    }
}

/// `net.inet.ip.fw.dyn_*_lifetime`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// `dyn_ack_lifetime`
    pub ack: u64,
    /// `dyn_syn_lifetime`
    pub syn: u64,
    /// `dyn_fin_lifetime`
    pub fin: u64,
    /// `dyn_rst_lifetime`
    pub rst: u64,
    /// `dyn_udp_lifetime`
    pub udp: u64,
    /// `dyn_short_lifetime`
    pub short: u64,
    /// `dyn_keepalive`
    pub keepalive: bool,
    /// Seconds between keep-alives: bounds `fin` and `rst` from above.
    pub keepalive_period: u64,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Lifetimes { ack: 300, syn: 20, fin: 1, rst: 1, udp: 10, short: 5, keepalive: true, keepalive_period: 5 }
    }
}

/// The box as rules can ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Its interfaces. Their addresses are `me`.
    pub interfaces: Vec<Interface>,
    /// Its routes, for `verrevpath`, `versrcreach` and `antispoof`.
    pub routes: Vec<Route>,
    /// Instances of NAT that are configured: `nat N` with another N drops.
    pub nat_instances: Vec<u32>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Addresses with prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its table.
    pub fib: u32,
    /// Destination.
    pub prefix: IpAddr,
    /// Length of the destination's prefix.
    pub length: u8,
    /// Where it leads; None is a blackhole or reject route.
    pub interface: Option<String>,
}

/// Whether `address` lies in `prefix`/`length`. Different families never do.
pub fn covers(prefix: IpAddr, length: u8, address: IpAddr) -> bool {
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            let shift = 32 - u32::from(length.min(32));
            u64::from(prefix.to_bits()) >> shift == u64::from(address.to_bits()) >> shift
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            (0..u32::from(length.min(128))).all(|bit| (prefix.to_bits() ^ address.to_bits()) << bit >> 127 == 0)
        }
        _ => false,
    }
}

impl Environment {
    /// `me`, `me6`: whether the box has this address. Multicast never is; the scope of a link-local address is not looked at.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.iter().any(|(own, _)| *own == address))
    }

    /// Whether the address belongs to a network that the box is attached to.
    pub fn is_attached(&self, address: IpAddr) -> bool {
        if let IpAddr::V6(address) = address
            && (address.is_loopback() || address.is_unicast_link_local())
        {
            return true;
        }
        self.interfaces
            .iter()
            .any(|interface| interface.addresses.iter().any(|(own, length)| covers(*own, *length, address)))
    }

    /// The route to an address: the longest prefix of that table.
    pub fn route(&self, fib: u32, address: IpAddr) -> Option<&Route> {
        let fitting =
            self.routes.iter().filter(|route| route.fib == fib && covers(route.prefix, route.length, address));
        fitting.max_by_key(|route| route.length)
    }

    /// `verrevpath` (with the interface that the packet came in by) and `versrcreach` (without).
    pub fn reaches(&self, fib: u32, source: IpAddr, received: Option<&str>) -> bool {
        if let IpAddr::V6(source) = source
            && (source.is_unicast_link_local() || source.segments()[0] & 0xff0f == 0xff02)
        {
            return true;
        }
        match (self.route(fib, source), received) {
            (None, _) => false,
            (Some(route), Some(name)) => route.interface.as_deref() == Some(name),
            (Some(route), None) => route.length > 0 && route.interface.is_some(),
        }
    }

    /// Whether the interface has this address.
    pub fn interface_has(&self, name: &str, address: IpAddr) -> bool {
        let mut named = self.interfaces.iter().filter(|interface| interface.name == name);
        named.any(|interface| interface.addresses.iter().any(|(own, _)| *own == address))
    }
}
