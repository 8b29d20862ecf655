//! What the kernel tells, brought into the routing table and the table of ports. Runs on the thread that follows the kernel.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ferrule_dataplane::fib::{MacAddress, NextHop, Prefix, RouteError, RouteKind, RoutingTable};
use ferrule_dataplane::neighbor::NextHopKey;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::ports::PortAddresses;
use ipnetwork::IpNetwork;

use super::core::{Core, lock};
use crate::kernel::{Event, Hop, LinkState, NeighborState, RouteAction};
use crate::log;

/// The kernel has chosen between metrics already: one route per prefix.
const METRIC: u32 = 0;

/// Applies a batch of events in order.
pub fn apply(core: &Core, events: &mut Vec<Event>) {
    let mut addresses_changed = false;
    let mut routing = lock(&core.routing);
    for event in events.drain(..) {
        match event {
            Event::LinkChange(link) => link_change(core, &mut routing, &link),
            Event::LinkGone { ifindex, .. } => link_gone(core, &mut routing, ifindex),
            Event::AddressAdd { port, address, primary, .. } => {
                addresses_changed = true;
                if let Some(port) = port {
                    address_add(core, port, address.ip(), primary);
                }
            }
            Event::AddressDelete { port, address, .. } => {
                addresses_changed = true;
                if let Some(port) = port {
                    address_delete(core, port, address.ip());
                }
            }
            Event::Neighbor { ifindex, port, address, state, lladdr } => {
                if matches!(state, NeighborState::Failed | NeighborState::Gone) {
                    release(core, ifindex, address);
                }
                if state == NeighborState::Failed {
                    let key = NextHopKey { port, address };
                    core.workers.iter().for_each(|worker| worker.mailbox.neighbor_failed(key));
                }
                neighbor(core, &mut routing, port, address, state, lladdr);
            }
            Event::RouteReplace { prefix, action, .. } => route_replace(core, &mut routing, prefix, &action),
            Event::RouteDelete { prefix } => {
                // A route that was never taken in (reserved, multicast) has nothing to delete.
                if let Err(error) = routing.route_delete(Prefix::from(prefix), METRIC)
                    && !matches!(error, RouteError::NoSuchRoute { .. })
                {
                    refused(core, &prefix, &error);
                }
            }
            _ => {}
        }
    }
    drop(routing);
    if addresses_changed {
        lock(&core.host).refresh_records();
    }
}

fn link_change(core: &Core, routing: &mut RoutingTable, link: &LinkState) {
    if let Some(port) = link.port {
        // The host interface: the administrator's wishes.
        let Some(p) = core.shared.ports.get(port) else { return };
        p.set_mtu(link.mtu);
        if let Some(mac) = link.mac {
            p.set_mac(MacAddress(mac));
        }
        if let Some(status) = lock(&core.ports).get_mut(usize::from(port.0)) {
            status.admin_up = link.up;
        }
        report(core, core.refresh_port(routing, p.physical));
        return;
    }
    let Some(port) = lock(&core.host).port_of_nic(link.ifindex) else { return };
    let changed = {
        let mut ports = lock(&core.ports);
        let Some(status) = ports.get_mut(usize::from(port.0)) else { return };
        let carrier = link.up && link.carrier;
        std::mem::replace(&mut status.carrier, carrier) != carrier
    };
    if changed {
        log::notice(format!("{}: carrier {}", link.name, if link.carrier && link.up { "on" } else { "off" }));
        lock(&core.host).show_carrier(port, link.up && link.carrier);
        report(core, core.refresh_port(routing, port));
    }
}

fn link_gone(core: &Core, routing: &mut RoutingTable, ifindex: u32) {
    let Some(port) = lock(&core.host).port_of_nic(ifindex) else { return };
    if let Some(status) = lock(&core.ports).get_mut(usize::from(port.0)) {
        status.carrier = false;
    }
    lock(&core.host).show_carrier(port, false);
    report(core, core.refresh_port(routing, port));
}

fn report(core: &Core, result: Result<(), RouteError>) {
    if let Err(error) = result {
        core.counters.routes_refused.fetch_add(1, Relaxed);
        log::error(format!("routing table: {error}"));
    }
}

fn change_addresses(core: &Core, port: PortId, change: impl FnOnce(&mut PortAddresses)) {
    if let Some(p) = core.shared.ports.get(port) {
        let mut addresses = PortAddresses::clone(&p.addresses());
        change(&mut addresses);
        p.set_addresses(addresses);
    }
}

fn address_add(core: &Core, port: PortId, address: IpAddr, primary: bool) {
    change_addresses(core, port, |all| match address {
        IpAddr::V4(a) => {
            all.v4.retain(|x| *x != a);
            if primary { all.v4.insert(0, a) } else { all.v4.push(a) }
        }
        IpAddr::V6(a) if a.is_unicast_link_local() => all.link_local = Some(a),
        IpAddr::V6(a) => {
            all.v6.retain(|x| *x != a);
            if primary { all.v6.insert(0, a) } else { all.v6.push(a) }
        }
    });
}

fn address_delete(core: &Core, port: PortId, address: IpAddr) {
    change_addresses(core, port, |all| match address {
        IpAddr::V4(a) => all.v4.retain(|x| *x != a),
        IpAddr::V6(a) => {
            all.v6.retain(|x| *x != a);
            all.link_local = all.link_local.filter(|x| *x != a);
        }
    });
}

/// A neighbour that does not answer is not asked for until packets want it again: a scan must not leave a storm behind.
fn release(core: &Core, ifindex: u32, address: IpAddr) {
    if let Some(follower) = &*lock(&core.follower) {
        let _ = follower.release_resolution(ifindex, address);
    }
}

fn neighbor(
    core: &Core,
    routing: &mut RoutingTable,
    port: PortId,
    address: IpAddr,
    state: NeighborState,
    lladdr: Option<[u8; 6]>,
) {
    let result = match (state, lladdr) {
        (NeighborState::Usable, Some(mac)) => routing.neighbor_set(port, address, Some(MacAddress(mac))),
        (NeighborState::Gone, _) => routing.neighbor_delete(port, address).map(|_| ()),
        _ => routing.neighbor_set(port, address, None),
    };
    if !matches!(result, Err(RouteError::UnknownPort { .. })) {
        report(core, result);
    }
}

fn route_replace(core: &Core, routing: &mut RoutingTable, prefix: IpNetwork, action: &RouteAction) {
    let kind = match action {
        RouteAction::Forward(hops) => forward(hops),
        RouteAction::HostVia(_) => RouteKind::HostVia,
        // An address of an interface that is no port (lo, a bridge) is ours all the same.
        RouteAction::Local { ifindex } => {
            let port = lock(&core.host).indices().iter().find(|(i, _)| i == ifindex).map_or(PortId(0), |(_, p)| *p);
            RouteKind::Local { port }
        }
        RouteAction::Broadcast { .. } => RouteKind::Broadcast,
        RouteAction::Blackhole => RouteKind::Blackhole,
        RouteAction::Unreachable => RouteKind::Unreachable,
        RouteAction::Prohibit => RouteKind::Prohibit,
        // Multicast is never forwarded; the built-in entries say what becomes of it.
        _ => return,
    };
    match routing.route_replace(Prefix::from(prefix), METRIC, kind) {
        // The kernel has routes for 127/8, 224/4, fe80::/64 and the like, which the packet path never forwards by.
        Ok(_) | Err(RouteError::Reserved { .. }) => {}
        Err(error) => refused(core, &prefix, &error),
    }
}

fn forward(hops: &[Hop]) -> RouteKind {
    if let [Hop { port: Some(port), gateway: None, .. }] = hops {
        return RouteKind::Connected { port: *port };
    }
    // A hop through an interface that is no port cannot share flows with ports: the ports carry them all.
    let through_ports = hops.iter().filter_map(|hop| {
        let (port, gateway) = (hop.port?, hop.gateway);
        Some(NextHop { port, gateway, weight: hop.weight.max(1), on_link: true })
    });
    RouteKind::Via(through_ports.collect())
}

fn refused(core: &Core, prefix: &IpNetwork, error: &RouteError) {
    core.counters.routes_refused.fetch_add(1, Relaxed);
    log::once(&format!("route {error}"), format!("route {prefix}: {error}"));
}

/// As a sink for the follower.
pub fn sink(core: Arc<Core>) -> impl FnMut(&mut Vec<Event>) + Send {
    move |events| apply(&core, events)
}
