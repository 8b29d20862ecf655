//! The supervisor: what has to be done now and then while the workers forward. It sleeps until it is rung for or 50 ms have passed.

#![forbid(unsafe_code)]

use std::fs;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ferrule_config::gateway::{Gateway as Config, RouteKind as ConfigRoute};
use ferrule_dataplane::fib::{MacAddress, NextHop, Prefix, RouteKind, RoutingTable};
use ferrule_dataplane::host_io::{HostCommand, HostEvent};
use ferrule_dataplane::neighbor::NextHopKey;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::tap::TapQueue;
use ferrule_dataplane::ports::PortAddresses;
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::worker::{Command, Event};
use ipnetwork::IpNetwork;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::core::{Core, lock};
use super::helper::HostTapRequest;
use super::plan::PortPlan;
use super::{host, start};
use crate::failure::Failure;
use crate::log;

const SLEEP: Duration = Duration::from_millis(50);
/// Time between two attempts to open a lost port.
const RETRY: Duration = Duration::from_millis(200);

/// Runs until [`Core::stop`] is set.
pub fn run(core: &Core, requests: &mut [rtrb::Consumer<NextHopKey>]) {
    let mut retry_at = Instant::now();
    let mut follower_failed = false;
    while !core.stop.load(Ordering::Acquire) {
        core.bell.prepare();
        let events = core.workers.iter().any(|w| w.mailbox.has_event());
        if !events && requests.iter().all(|r| r.is_empty()) && !core.stop.load(Ordering::Acquire) {
            let timeout = Timespec { tv_sec: 0, tv_nsec: SLEEP.as_nanos() as i64 };
            let _ = poll(&mut [PollFd::from_borrowed_fd(core.bell.fd(), PollFlags::IN)], Some(&timeout));
        }
        core.bell.awake();
        for ring in requests.iter_mut() {
            while let Ok(key) = ring.pop() {
                ask(core, key);
            }
        }
        for at in 0..core.workers.len() {
            while let Some(event) = core.workers.get(at).and_then(|w| w.mailbox.event()) {
                worker_event(core, event);
            }
        }
        while let Some(HostEvent::Lost(port, error)) = core.host_io.as_ref().and_then(|io| io.event()) {
            host_lost(core, port, &error);
        }
        if Instant::now() >= retry_at {
            retry_at = Instant::now() + RETRY;
            reattach(core);
            remake_host_interfaces(core);
            super::gateway::take_back_unconfirmed(core);
            explain_over_mtu(core);
        }
        let failure = lock(&core.follower).as_ref().and_then(|f| f.failure());
        if let (Some(failure), false) = (failure, follower_failed) {
            follower_failed = true;
            log::error(format!("routes are no longer followed: {failure}; restart ferrule"));
        }
    }
}

/// Says once why packets longer than the MTU arrive, and what to do about it.
fn explain_over_mtu(core: &Core) {
    if core.workers.iter().all(|w| w.counters.dropped[DropReason::OverMtuReceived as usize].get() == 0) {
        return;
    }
    let statuses = lock(&core.ports).clone();
    let carried = core.plans.iter().zip(&statuses).filter(|(plan, _)| plan.tag.is_none() && !plan.offload());
    let nics: Vec<&str> = carried.map(|(_, status)| status.nic.as_str()).collect();
    log::once(
        "over_mtu_received",
        format!(
            "packets longer than the MTU arrive and are dropped (over_mtu_received): a driver merges frames (GRO, LRO), or the \
             host at the other end of a veth leaves cutting to its device (TSO). Of {}: ethtool -K NIC gro off lro off; at \
             the other end of a veth: ethtool -K PEER tso off gso off; or offload = true (driver \"packet\") passes them whole",
            nics.join(", ")
        ),
    );
}

fn ask(core: &Core, key: NextHopKey) {
    core.counters.neighbor_requests.fetch_add(1, Ordering::Relaxed);
    let index = lock(&core.host).interface(key.port).map(|i| i.ifindex());
    if let (Some(index), Some(follower)) = (index, &*lock(&core.follower)) {
        let _ = follower.request_resolution(index, key.address);
    }
}

fn worker_event(core: &Core, event: Event) {
    match event {
        Event::PortLost(port, text) => {
            // The other workers' queues of the port go too: a port is opened as a whole.
            let name = core.shared.ports.get(port).map_or(String::new(), |p| p.name.clone());
            let first = {
                let mut ports = lock(&core.ports);
                let Some(status) = ports.get_mut(usize::from(port.0)) else { return };
                status.trouble = Some(text.clone());
                status.carrier = false;
                std::mem::replace(&mut status.attached, false)
            };
            if !first {
                return;
            }
            log::warning(format!("{name}: lost ({text}); the other ports go on"));
            core.counters.ports_lost.fetch_add(1, Ordering::Relaxed);
            for worker in &core.workers {
                let _ = worker.mailbox.send(Command::Detach(port));
            }
            lock(&core.kept).remove(&port);
            let mut routing = lock(&core.routing);
            let _ = core.refresh_port(&mut routing, port);
            lock(&core.host).show_carrier(port, false);
        }
        Event::Learned(port, address, mac) => {
            learn(core, port, address, mac);
        }
        Event::Detached(_) | Event::Quiet | Event::Stopped => {}
    }
}

/// Most neighbours that standalone mode learns by itself; beyond it only those already known are brought up to date.
const LEARNED_MAX: usize = 16_384;

/// Standalone mode: notes what a neighbour told of itself. Anyone on the link may tell anything, so only addresses of the port's own
/// subnets count, up to a bound, and never against a `[[neighbor]]` of the file.
fn learn(core: &Core, port: PortId, address: IpAddr, mac: MacAddress) {
    let in_force = lock(&core.in_force);
    let name = core.shared.ports.get(port).map(|p| p.name.as_str());
    let fixed =
        |n: &ferrule_config::gateway::Neighbor| Some(n.port.value.as_str()) == name && n.address.value == address;
    let interface = in_force.config.interfaces().nth(usize::from(port.0));
    let link_local = matches!(address, IpAddr::V6(a) if a.is_unicast_link_local());
    let ours = link_local || interface.is_some_and(|i| i.addresses.iter().any(|n| n.value.contains(address)));
    if !ours || in_force.config.neighbors.iter().any(fixed) {
        return;
    }
    drop(in_force);
    let mut routing = lock(&core.routing);
    let known = routing.neighbors().any(|n| n.port == port && n.address == address);
    if !known && routing.counts().neighbors >= LEARNED_MAX {
        log::once("learned", format!("more than {LEARNED_MAX} neighbours: {address} is not noted"));
        return;
    }
    if let Err(error) = routing.neighbor_set(port, address, Some(mac)) {
        log::once("learned", format!("a neighbour could not be noted: {error}"));
    }
}

/// Opens ports again whose device came back.
fn reattach(core: &Core) {
    for plan in core.plans.iter().filter(|p| p.tag.is_none()) {
        let at = usize::from(plan.id.0);
        if lock(&core.ports).get(at).is_none_or(|s| s.attached) {
            continue;
        }
        let found = {
            let mut host = lock(&core.host);
            let options = host::options(plan, &core.plans, &host.state_directory.clone());
            let super::host::HostPath { interfaces, silenced, filter, .. } = &mut *host;
            let interface = interfaces.get_mut(at).and_then(Option::as_mut);
            match (interface, silenced.get_mut(at).and_then(Option::as_mut), filter) {
                (Some(interface), _, Some(filter)) => interface.readopt(&options, filter).is_ok(),
                (None, Some(nic), Some(filter)) => nic.readopt(filter).is_ok(),
                _ => plan.device.as_ref().is_some_and(|d| interfaces_there(d)),
            }
        };
        if !found {
            continue;
        }
        match start::open_port(core, plan).and_then(|queues| start::deliver(core, queues)) {
            Ok(()) => {
                core.counters.ports_reattached.fetch_add(1, Ordering::Relaxed);
                if let Some(status) = lock(&core.ports).get_mut(at) {
                    status.reattached += 1;
                }
                let carrier = lock(&core.ports).get(at).is_some_and(|s| s.carrier);
                lock(&core.host).show_carrier(plan.id, carrier);
                log::notice(format!("{}: back", plan.name));
                log::forget(&format!("reattach {}", plan.name));
            }
            Err(failure) => log::once(&format!("reattach {}", plan.name), format!("{}: {failure}", plan.name)),
        }
    }
}

/// A host interface was deleted under us: `ip link del`, or a network manager.
fn host_lost(core: &Core, port: PortId, error: &std::io::Error) {
    let Some(plan) = core.plans.get(usize::from(port.0)) else { return };
    if let Some(status) = lock(&core.ports).get_mut(usize::from(port.0)) {
        status.host_lost = Some(error.to_string());
    }
    core.counters.host_interfaces_lost.fetch_add(1, Ordering::Relaxed);
    log::warning(format!(
        "{}: the host interface {} is gone ({error}); it is made again, with the addresses and routes that it had",
        plan.name,
        host::host_name(plan)
    ));
}

/// Makes host interfaces again that were deleted, and gives them to the host thread and the follower.
fn remake_host_interfaces(core: &Core) {
    for (at, plan) in core.plans.iter().enumerate() {
        if lock(&core.ports).get(at).is_none_or(|s| s.host_lost.is_none()) {
            continue;
        }
        let once = format!("host interface {}", plan.name);
        match remake_host_interface(core, plan) {
            Ok(warnings) => {
                warnings.iter().for_each(|text| log::warning(format!("{}: {text}", plan.name)));
                let carrier = {
                    let mut ports = lock(&core.ports);
                    if let Some(status) = ports.get_mut(at) {
                        status.host_lost = None;
                    }
                    ports.get(usize::from(plan.physical.0)).is_some_and(|s| s.attached && s.carrier)
                };
                core.counters.host_interfaces_remade.fetch_add(1, Ordering::Relaxed);
                lock(&core.host).show_carrier(plan.id, carrier);
                log::notice(format!("{}: the host interface is back", plan.name));
                log::forget(&once);
            }
            Err(failure) => log::once(&once, format!("{}: {failure}", plan.name)),
        }
    }
}

fn remake_host_interface(core: &Core, plan: &PortPlan) -> Result<Vec<String>, Failure> {
    let (Some(io), Some(port)) = (&core.host_io, core.shared.ports.get(plan.id)) else { return Ok(Vec::new()) };
    let mut host = lock(&core.host);
    let options = host::options(plan, &core.plans, &host.state_directory.clone());
    let Some(interface) = host.interfaces.get_mut(usize::from(plan.id.0)).and_then(Option::as_mut) else {
        return Ok(Vec::new());
    };
    let request =
        HostTapRequest { interface: interface.name().to_owned(), queues: options.queues, offload: plan.offload() };
    let warnings = interface
        .remake(port.mtu(), &options, |_| match core.assistant() {
            Some(assistant) => assistant.open_host_tap(&request),
            None => request.make(),
        })
        .map_err(|e| host::failure(&e))?;
    let queues = interface.take_queues();
    let indices = host.indices();
    drop(host);
    if let Some(follower) = &*lock(&core.follower) {
        follower.set_ports(indices).map_err(|e| host::failure(&e))?;
    }
    for fd in queues {
        io.send(HostCommand::Attach(plan.id, TapQueue::new(fd)))
            .map_err(|_| Failure::runtime("the host thread does not read its mailbox; restart ferrule"))?;
    }
    Ok(warnings)
}

fn interfaces_there(device: &str) -> bool {
    fs::metadata(format!("/sys/class/net/{device}")).is_ok()
}

/// Names of the devices in this network namespace.
pub fn interfaces() -> Vec<String> {
    let links = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    links.lines().skip(2).filter_map(|line| line.split(':').next()).map(|name| name.trim().to_owned()).collect()
}

/// The MAC address of a device.
pub fn mac_of(device: &str) -> Option<[u8; 6]> {
    crate::kernel::link_state(device).and_then(|facts| facts.mac)
}

/// Whether a device has a carrier now.
pub fn carrier_of(device: &str) -> bool {
    crate::kernel::link_state(device).is_some_and(|facts| facts.up && facts.carrier)
}

/// Standalone mode: addresses, routes and neighbours of the file.
///
/// # Errors
/// What the routing table refuses.
pub fn install_static(core: &Core) -> Result<(), Failure> {
    let in_force = lock(&core.in_force);
    let mut routing = lock(&core.routing);
    install(core, &mut routing, &in_force.config)
}

/// Puts the static part of `config` into the table, and takes out what it no longer has.
///
/// # Errors
/// What the routing table refuses; what was installed by then stays until the next call.
pub fn install(core: &Core, routing: &mut RoutingTable, config: &Config) -> Result<(), Failure> {
    let fail = |e: &dyn std::fmt::Display| Failure::runtime(format!("routing table: {e}"));
    let mut wanted: Vec<(Prefix, u32)> = Vec::new();
    let mut put = |routing: &mut RoutingTable, prefix: IpNetwork, metric: u32, kind: RouteKind| {
        wanted.push((Prefix::from(prefix), metric));
        routing.route_replace(Prefix::from(prefix), metric, kind).map(|_| ())
    };
    for (i, interface) in config.interfaces().enumerate() {
        let port = PortId(i as u16);
        let mut addresses = PortAddresses::default();
        for network in interface.addresses {
            match network.value {
                IpNetwork::V4(n) => addresses.v4.push(n.ip()),
                IpNetwork::V6(n) if n.ip().is_unicast_link_local() => addresses.link_local = Some(n.ip()),
                IpNetwork::V6(n) => addresses.v6.push(n.ip()),
            }
            let net = IpNetwork::new(network.value.network(), network.value.prefix()).map_err(|e| fail(&e))?;
            put(routing, net, 0, RouteKind::Connected { port }).map_err(|e| fail(&e))?;
            let own = IpNetwork::from(network.value.ip());
            put(routing, own, 0, RouteKind::Local { port }).map_err(|e| fail(&e))?;
            if let IpNetwork::V4(n) = network.value
                && n.prefix() < 31
            {
                let all = IpNetwork::from(std::net::IpAddr::from(n.broadcast()));
                put(routing, all, 0, RouteKind::Broadcast).map_err(|e| fail(&e))?;
            }
        }
        if let Some(p) = core.shared.ports.get(port) {
            if addresses.link_local.is_none() {
                addresses.link_local = Some(link_local(p.mac()));
            }
            p.set_addresses(addresses);
        }
    }
    for route in &config.routes {
        let kind = match &route.kind {
            ConfigRoute::Unicast { via, port } => {
                let port = port.as_ref().and_then(|p| core.shared.ports.by_name(&p.value)).map(|(id, _)| id);
                let hops = via.iter().filter_map(|via| {
                    let port = port.or_else(|| port_of(config, via.value))?;
                    Some(NextHop { port, gateway: Some(via.value), weight: 1, on_link: true })
                });
                match (via.is_empty(), port) {
                    (true, Some(port)) => RouteKind::Connected { port },
                    _ => RouteKind::Via(hops.collect()),
                }
            }
            ConfigRoute::Blackhole => RouteKind::Blackhole,
            ConfigRoute::Unreachable => RouteKind::Unreachable,
            ConfigRoute::Prohibit => RouteKind::Prohibit,
        };
        put(routing, route.to.value, route.metric, kind).map_err(|e| fail(&e))?;
    }
    for neighbor in &config.neighbors {
        if let Some((port, _)) = core.shared.ports.by_name(&neighbor.port.value) {
            let mac = MacAddress(neighbor.mac.value.0);
            routing.neighbor_set(port, neighbor.address.value, Some(mac)).map_err(|e| fail(&e))?;
        }
    }
    routing.routes_retain(|r| wanted.contains(&(r.prefix, r.metric))).map_err(|e| fail(&e))?;
    Ok(())
}

/// The port whose subnet holds an address.
fn port_of(config: &Config, address: std::net::IpAddr) -> Option<PortId> {
    let at = config.interfaces().position(|i| i.addresses.iter().any(|n| n.value.contains(address)))?;
    Some(PortId(at as u16))
}

/// The link-local address of a MAC (RFC 4291, appendix A).
fn link_local(mac: MacAddress) -> std::net::Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let pair = |x: u8, y: u8| u16::from_be_bytes([x, y]);
    std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, pair(a ^ 2, b), pair(c, 0xff), pair(0xfe, d), pair(e, f))
}
