#![forbid(unsafe_code)]
//! Routes and neighbours lead to somewhere.

use super::with_host;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::gateway::address::{is_ipv6_link_local, masked, network, unusable_in, width};
use crate::gateway::parse::Doubts;
use crate::gateway::{Gateway, Neighbor, Route, RouteKind};
use crate::span::{Located, Span};
use crate::suggest::closest;
use ipnetwork::IpNetwork;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

pub(super) fn check(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    if doubts.mode {
        return;
    }
    if !gateway.is_standalone() {
        return refuse_in_host_mode(gateway, diagnostics);
    }
    let links = Links::new(gateway, doubts);
    let mut seen: HashMap<(IpNetwork, u32), Span> = HashMap::new();
    for route in &gateway.routes {
        if let Some(first) = seen.get(&(route.to.value, route.metric)) {
            let error = Diagnostic::error(
                route.to.span,
                format!("there are two routes to {} with metric {}", route.to, route.metric),
            )
            .label(*first, "the first one")
            .hint("to share the load write via = [\"..\", \"..\"], to have a spare give it a larger metric");
            diagnostics.push(error);
        } else {
            seen.insert((route.to.value, route.metric), route.to.span);
        }
        links.route(route, diagnostics);
    }
    let mut known: HashMap<(&str, IpAddr), Span> = HashMap::new();
    for neighbor in &gateway.neighbors {
        let key = (neighbor.port.as_str(), neighbor.address.value);
        if let Some(first) = known.get(&key) {
            let error =
                Diagnostic::error(neighbor.address.span, format!("the neighbour {} is given twice", neighbor.address))
                    .label(*first, "first given here");
            diagnostics.push(error);
        } else {
            known.insert(key, neighbor.address.span);
        }
        links.neighbor(neighbor, diagnostics);
    }
    limits(gateway, diagnostics);
}

fn refuse_in_host_mode(gateway: &Gateway, diagnostics: &mut Diagnostics) {
    for route in &gateway.routes {
        let command = match &route.kind {
            RouteKind::Unicast { via, port } => {
                let via = via.first().map(|via| format!(" via {via}")).unwrap_or_default();
                let port = port.as_ref().map(|port| format!(" dev {port}")).unwrap_or_default();
                format!("{}{via}{port}", route.to)
            }
            kind => format!("{} {}", kind.as_str(), route.to),
        };
        let error = Diagnostic::error(
            route.place.0,
            "[[route]] is for standalone mode: with the host in use the kernel's routes are taken",
        );
        let hint = format!("give it to the kernel: ip route add {command}; or set [host] enabled = false");
        diagnostics.push(with_host(error, gateway).hint(hint));
    }
    for neighbor in &gateway.neighbors {
        let message = "[[neighbor]] is for standalone mode: with the host in use the kernel resolves neighbours";
        let hint = format!(
            "give it to the kernel: ip neighbor add {} lladdr {} dev {}; or set [host] enabled = false",
            neighbor.address, neighbor.mac, neighbor.port
        );
        diagnostics.push(with_host(Diagnostic::error(neighbor.place.0, message), gateway).hint(hint));
    }
}

fn limits(gateway: &Gateway, diagnostics: &mut Diagnostics) {
    for (ipv6, limit) in [(false, gateway.limits.ipv4_routes), (true, gateway.limits.ipv6_routes)] {
        let Some(limit) = limit else { continue };
        let over = gateway.routes.iter().filter(|route| route.to.is_ipv6() == ipv6).nth(limit.value as usize);
        if let Some(route) = over {
            let error = Diagnostic::error(route.place.0, format!("more routes than the limit of {limit}"))
                .label(limit.span, "the limit is set here");
            diagnostics.push(error);
        }
    }
}

/// The interfaces with their subnets.
struct Links<'a> {
    gateway: &'a Gateway,
    doubts: Doubts,
    /// Names of ports and VLANs, with a number for each.
    interfaces: HashMap<&'a str, usize>,
    /// The box's own addresses.
    own: HashMap<IpAddr, Span>,
    /// Subnets without host bits: which interface has it, and the address that says so.
    subnets: HashMap<IpNetwork, (usize, &'a Located<IpNetwork>)>,
    /// Prefix lengths in use, longest last.
    lengths: BTreeSet<u8>,
}

impl<'a> Links<'a> {
    fn new(gateway: &'a Gateway, doubts: Doubts) -> Self {
        let mut links = Self {
            gateway,
            doubts,
            interfaces: HashMap::new(),
            own: HashMap::new(),
            subnets: HashMap::new(),
            lengths: BTreeSet::new(),
        };
        for (at, interface) in gateway.interfaces().enumerate() {
            links.interfaces.entry(interface.name).or_insert(at);
            for address in interface.addresses {
                links.own.entry(address.ip()).or_insert(address.span);
                if !is_ipv6_link_local(address.ip()) {
                    links.subnets.entry(masked(address.value)).or_insert((at, address));
                    links.lengths.insert(address.prefix());
                }
            }
        }
        links
    }

    /// The smallest subnet that holds `address`.
    fn subnet_of(&self, address: IpAddr) -> Option<(usize, &'a Located<IpNetwork>)> {
        let lengths = self.lengths.iter().rev().filter(|&&length| length <= width(address));
        lengths.filter_map(|&length| self.subnets.get(&masked(network(address, length)))).copied().next()
    }

    fn name(&self, interface: usize) -> &'a str {
        self.gateway.interfaces().nth(interface).map_or("", |interface| interface.name)
    }

    /// The interface called `port`; the flag says whether to go on without (it may be a misspelt one).
    fn interface(&self, port: &Located<String>, diagnostics: &mut Diagnostics) -> Result<usize, ()> {
        if let Some(&at) = self.interfaces.get(port.as_str()) {
            return Ok(at);
        }
        if self.doubts.names {
            return Err(());
        }
        let error = Diagnostic::error(port.span, format!("there is no port {}", crate::diagnostic::quoted(port)));
        if diagnostics.is_full() {
            diagnostics.push(error);
            return Err(());
        }
        let by_device = self.gateway.ports.iter().find(|other| other.driver.device() == Some(port));
        let hint = match by_device {
            Some(other) => format!("{port} is the device of port \"{}\"; use the port's name", other.name),
            None => match closest(port, self.gateway.interfaces().map(|interface| interface.name.as_str())) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!("ports are {}", listed(self.gateway.interfaces().map(|interface| interface.name.as_str())))
                }
            },
        };
        diagnostics.push(error.hint(hint));
        Err(())
    }

    fn route(&self, route: &Route, diagnostics: &mut Diagnostics) {
        let RouteKind::Unicast { via, port } = &route.kind else { return };
        let interface = match port {
            Some(port) => match self.interface(port, diagnostics) {
                Ok(interface) => Some((port, interface)),
                Err(()) => return,
            },
            None => None,
        };
        let mut seen: HashMap<IpAddr, Span> = HashMap::new();
        for hop in via {
            if hop.is_ipv4() != route.to.is_ipv4() {
                let family = |ipv4: bool| if ipv4 { "IPv4" } else { "IPv6" };
                let message =
                    format!("an {} next hop for an {} route", family(hop.is_ipv4()), family(route.to.is_ipv4()));
                let error =
                    Diagnostic::error(hop.span, message).label(route.to.span, format!("the route is to {}", route.to));
                diagnostics.push(error.hint("use a next hop of the same family"));
                continue;
            }
            if let Some(first) = seen.insert(hop.value, hop.span) {
                let error = Diagnostic::error(hop.span, format!("the next hop {hop} is given twice"))
                    .label(first, "first given here");
                diagnostics.push(error);
                continue;
            }
            self.reachable(hop, interface, "next hop", diagnostics);
        }
    }

    fn neighbor(&self, neighbor: &Neighbor, diagnostics: &mut Diagnostics) {
        if let Ok(interface) = self.interface(&neighbor.port, diagnostics) {
            self.reachable(&neighbor.address, Some((&neighbor.port, interface)), "neighbour", diagnostics);
        }
    }

    /// A direct neighbour: in a subnet of an interface (of that one, if one is named), and not this box.
    fn reachable(
        &self,
        address: &Located<IpAddr>,
        interface: Option<(&Located<String>, usize)>,
        what: &str,
        diagnostics: &mut Diagnostics,
    ) {
        if self.doubts.addresses {
            return;
        }
        if let Some(own) = self.own.get(&address.value) {
            let error = Diagnostic::error(address.span, format!("the {what} {address} is this box itself"));
            diagnostics.push(error.label(*own, "it has the address here"));
            return;
        }
        if is_ipv6_link_local(address.value) {
            if interface.is_none() {
                let error = Diagnostic::error(
                    address.span,
                    format!("the {what} {address} is link-local: any port might be meant"),
                );
                diagnostics.push(error.hint(format!("say which: port = \"{}\"", self.name(0))));
            }
            return;
        }
        match (self.subnet_of(address.value), interface) {
            (None, _) => {
                let message = match what {
                    "next hop" => format!("route via nothing: {address} is in no subnet of a port"),
                    _ => format!("the {what} {address} is in no subnet of a port"),
                };
                let mut subnets = self
                    .gateway
                    .interfaces()
                    .flat_map(|interface| interface.addresses)
                    .filter(|subnet| subnet.is_ipv4() == address.is_ipv4())
                    .map(|subnet| masked(subnet.value).to_string());
                let hint = match subnets.next() {
                    _ if diagnostics.is_full() => String::new(),
                    None => "no port has an address of this family; add addresses = [\"..\"]".to_owned(),
                    Some(first) => format!("subnets are {}", listed(std::iter::once(first).chain(subnets))),
                };
                diagnostics.push(Diagnostic::error(address.span, message).hint(hint));
            }
            (Some((at, subnet)), Some((port, wanted))) if at != wanted => {
                let message = format!("the {what} {address} is on \"{}\", not on \"{port}\"", self.name(at));
                let error = Diagnostic::error(address.span, message)
                    .label(subnet.span, format!("{} is here", masked(subnet.value)));
                diagnostics.push(error);
            }
            (Some((_, subnet)), _) => {
                if let Some(reason) = unusable_in(network(address.value, subnet.prefix())) {
                    let error = Diagnostic::error(address.span, format!("{address} cannot be a {what}: {reason}"));
                    diagnostics.push(error.label(subnet.span, "by this address of a port"));
                }
            }
        }
    }
}

/// The first few of a list.
fn listed(items: impl Iterator<Item = impl AsRef<str>>) -> String {
    const MOST: usize = 6;
    let mut items: Vec<String> = items.take(MOST + 1).map(|item| item.as_ref().to_owned()).collect();
    if items.len() > MOST {
        items[MOST] = "...".to_owned();
    }
    items.join(", ")
}
