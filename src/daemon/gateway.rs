//! The running gateway as the control socket, metrics and signals see it.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use ferrule_config::gateway::{self, Gateway as Config};
use ferrule_config::ipfw::pending::PendingSet;
use ferrule_dataplane::clock;
use ferrule_dataplane::counters::Balance;
use ferrule_dataplane::fib::table::RouteView;
use ferrule_dataplane::fib::{AdjacencyKind, Prefix, RouteKind, RouteOrigin, RoutingTable};
use ferrule_dataplane::neighbor::NextHopKey;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::worker::{Command, WaitingReport};

use serde_json::Value;

use super::core::{Core, Unconfirmed, lock};
use super::host::host_name;
use super::{ipfw, plan, supervise};
use crate::control::{Gateway, RouteQuery};
use crate::failure::Failure;
use crate::ipfw::call::{Call, Reply};
use crate::ipfw::firewall::Phase;
use crate::snapshot::{
    Finding, NamedCount, NeighborRow, NextHopRow, RouteRow, RouteTotals, Severity, Snapshot, WorkerView,
};
use crate::{configuration, log};

/// Most neighbours of which `show neighbors` says how many packets wait.
const WAITING_MAX: usize = 65_536;

/// The control threads' handle on the gateway.
pub struct Running(pub Arc<Core>);

impl Running {
    fn port_name(&self, port: PortId) -> String {
        self.0.shared.ports.get(port).map_or_else(|| format!("port {}", port.0), |p| p.name.clone())
    }

    fn route_row(&self, routing: &RoutingTable, route: &RouteView) -> RouteRow {
        let hop = |port: PortId, via: Option<IpAddr>, weight: u16| NextHopRow {
            via,
            port: self.port_name(port),
            mac: via
                .and_then(|v| routing.neighbors().find(|n| n.port == port && n.address == v))
                .and_then(|n| n.mac.map(|m| m.to_string())),
            weight: u32::from(weight),
        };
        let (kind, next_hops) = match &route.kind {
            Some(RouteKind::Via(hops)) => ("forward", hops.iter().map(|h| hop(h.port, h.gateway, h.weight)).collect()),
            Some(RouteKind::Connected { port }) => ("forward", vec![hop(*port, None, 1)]),
            Some(RouteKind::Local { port }) => ("local", vec![hop(*port, None, 1)]),
            Some(RouteKind::Broadcast) => ("broadcast", vec![]),
            Some(RouteKind::Blackhole) => ("blackhole", vec![]),
            Some(RouteKind::Unreachable) => ("unreachable", vec![]),
            Some(RouteKind::Prohibit) => ("prohibit", vec![]),
            Some(RouteKind::HostVia) => ("host", vec![]),
            None => (kind_name(route.adjacency_kind), vec![]),
        };
        let source = match route.origin {
            RouteOrigin::BuiltIn => "built-in",
            RouteOrigin::Neighbor => "neighbor",
            RouteOrigin::Explicit if self.0.is_standalone() => "static",
            RouteOrigin::Explicit => "kernel",
        };
        let metric = (self.0.is_standalone() && route.origin == RouteOrigin::Explicit).then_some(route.metric);
        RouteRow {
            prefix: route.prefix.to_string(),
            kind: kind.to_owned(),
            next_hops,
            source: source.to_owned(),
            metric,
        }
    }
}

fn kind_name(kind: AdjacencyKind) -> &'static str {
    match kind {
        AdjacencyKind::Martian => "martian",
        AdjacencyKind::Multicast => "multicast",
        AdjacencyKind::LinkLocal => "link-local",
        AdjacencyKind::Broadcast => "broadcast",
        AdjacencyKind::Local => "local",
        _ => "forward",
    }
}

impl Gateway for Running {
    fn snapshot(&self) -> Snapshot {
        let core = &*self.0;
        let views: Vec<WorkerView<'_>> = core
            .workers
            .iter()
            .enumerate()
            .map(|(i, w)| WorkerView {
                worker: i as u32,
                core: w.core.map(|c| c as u32),
                counters: &w.counters,
                stuck: core.alarms.get().is_some_and(|a| a.is_stuck(i)),
            })
            .collect();
        let stages = plan::stages(&lock(&core.in_force).config);
        let host = WorkerView { worker: u32::MAX, core: None, counters: &core.host_counters, stuck: false };
        let all: Vec<WorkerView<'_>> = views.into_iter().chain([host]).collect();
        let mut snapshot = Snapshot::read(&core.shared.ports, &all, &stages);
        // The host I/O thread counts as a worker does, and is none.
        snapshot.workers.pop();
        let counters = core.workers.iter().map(|w| &*w.counters).chain([&*core.host_counters]);
        snapshot.balance = Balance::of(counters).into();
        let in_force = lock(&core.in_force);
        let engine = &in_force.config.engine;
        let daemon = &mut snapshot.daemon;
        daemon.version = env!("CARGO_PKG_VERSION").to_owned();
        daemon.pid = std::process::id();
        daemon.config = in_force.path.display().to_string();
        daemon.state = if core.stop.load(Relaxed) { "draining" } else { "running" }.to_owned();
        daemon.uptime_s = core.started.elapsed().as_secs_f64();
        daemon.cycles_per_second = clock::cycles_per_second();
        daemon.poll = match engine.poll.value {
            gateway::Poll::Busy => "busy".to_owned(),
            gateway::Poll::Adaptive => "adaptive".to_owned(),
            gateway::Poll::Interrupt { hz: None } => "interrupt".to_owned(),
            gateway::Poll::Interrupt { hz: Some(hz) } => format!("interrupt, {hz} Hz"),
        };
        daemon.dispatch = if engine.dispatch == gateway::Dispatch::Direct { "direct" } else { "queued" }.to_owned();
        daemon.fastforward = engine.fastforward;
        daemon.last_error = in_force.last_error.clone();
        daemon.confirm_left_s = in_force
            .unconfirmed
            .as_ref()
            .map(|unconfirmed| unconfirmed.until.saturating_duration_since(Instant::now()).as_secs_f64());
        drop(in_force);
        let statuses = lock(&core.ports);
        for ((row, plan), status) in snapshot.ports.iter_mut().zip(&core.plans).zip(&*statuses) {
            let carrier = statuses.get(usize::from(plan.physical.0)).unwrap_or(status);
            row.device = carrier.nic.clone();
            (row.driver, row.mode, row.why) = (carrier.driver.clone(), carrier.mode.clone(), carrier.why.clone());
            row.queues = carrier.queues as u32;
            row.reattached = carrier.reattached;
            if !carrier.attached {
                row.state = "absent".to_owned();
            }
            let there = lock(&core.host).interface(plan.id).map(|i| i.name().to_owned());
            row.host_interface = there.filter(|_| status.host_lost.is_none());
        }
        drop(statuses);
        let routing = lock(&core.routing);
        let counts = routing.counts();
        snapshot.routes = RouteTotals {
            ipv4: counts.routes_v4 as u64,
            ipv6: counts.routes_v6 as u64,
            adjacencies: counts.adjacencies as u64,
            memory_bytes: routing.memory().total() as u64,
        };
        let resolved = routing.neighbors().filter(|n| n.mac.is_some()).count();
        snapshot.neighbors = vec![
            NamedCount::new("resolved", resolved as u64),
            NamedCount::new("unresolved", (counts.neighbors - resolved) as u64),
        ];
        drop(routing);
        snapshot.events = events(core);
        snapshot
    }

    fn routes(&self, query: &RouteQuery) -> Vec<RouteRow> {
        let routing = lock(&self.0.routing);
        if let Some(address) = query.lookup {
            return routing.route_to(address).iter().map(|r| self.route_row(&routing, r)).collect();
        }
        let wanted = |r: &RouteView| {
            matches!((query.family, r.prefix), (Some(4), Prefix::V4 { .. }) | (Some(6), Prefix::V6 { .. }) | (None, _))
        };
        let limit = query.limit.map_or(usize::MAX, |n| n as usize);
        // In the order of their addresses, and within one the shortest first; the table keeps none.
        let mut routes: Vec<RouteView> = routing.routes().filter(|r| r.in_force && wanted(r)).collect();
        routes.sort_unstable_by_key(|r| (r.prefix, r.metric));
        routes.truncate(limit);
        routes.iter().map(|r| self.route_row(&routing, r)).collect()
    }

    fn neighbors(&self) -> Vec<NeighborRow> {
        let waiting = waiting(&self.0);
        let routing = lock(&self.0.routing);
        let row = |n: ferrule_dataplane::fib::table::NeighborView| NeighborRow {
            address: n.address,
            port: self.port_name(n.port),
            mac: n.mac.map(|m| m.to_string()),
            state: if n.mac.is_some() { "resolved" } else { "unresolved" }.to_owned(),
            waiting: waiting.get(&NextHopKey { port: n.port, address: n.address }).copied().unwrap_or(0),
        };
        let mut rows: Vec<NeighborRow> = routing.neighbors().map(row).collect();
        rows.sort_by(|a, b| (a.address, &a.port).cmp(&(b.address, &b.port)));
        rows
    }

    fn doctor(&self) -> Vec<Finding> {
        let core = &*self.0;
        let names: Vec<String> = lock(&core.ports).iter().map(|s| s.nic.clone()).filter(|n| !n.is_empty()).collect();
        let cores: Vec<usize> = core.workers.iter().filter_map(|w| w.core).collect();
        let mut findings = crate::doctor::host(&names, &cores);
        if let Some(privileges) = core.privileges.get() {
            // What the host side misses, the helper has.
            let ours = |text: &str| text.contains(" is missing: ") || text.contains("/dev/net/tun cannot be opened");
            findings.retain(|f| privileges.assistant().is_none() || !ours(&f.text));
            findings.extend(privileges.findings());
        }
        if let Some(follower) = &*lock(&core.follower) {
            for unsupported in follower.unsupported() {
                findings.push(Finding {
                    severity: Severity::Warning,
                    subject: "kernel routing".to_owned(),
                    text: unsupported.to_string(),
                    mend: None,
                });
            }
        }
        for (plan, status) in core.plans.iter().zip(&*lock(&core.ports)).filter(|(p, _)| p.tag.is_none()) {
            findings.push(Finding {
                severity: if status.attached { Severity::Ok } else { Severity::Error },
                subject: plan.name.clone(),
                text: match &status.trouble {
                    Some(trouble) if !status.attached => format!("not open: {trouble}"),
                    _ => format!("{}, {}, {} queue(s): {}", status.driver, status.mode, status.queues, status.why),
                },
                mend: None,
            });
        }
        let statuses = lock(&core.ports).clone();
        for (plan, lost) in core.plans.iter().zip(&statuses).filter_map(|(p, s)| Some((p, s.host_lost.as_ref()?))) {
            findings.push(Finding {
                severity: Severity::Error,
                subject: plan.name.clone(),
                text: format!("its host interface {} is gone ({lost}); it is made again", host_name(plan)),
                mend: Some(format!(
                    "nothing, unless the log says what is in the way; ip link show {}",
                    host_name(plan)
                )),
            });
        }
        findings
    }

    fn reload(&self, path: Option<&Path>) -> Result<String, Failure> {
        put_in_force(&self.0, path, None)
    }

    fn apply(&self, path: &Path, confirm: Option<Duration>) -> Result<String, Failure> {
        put_in_force(&self.0, Some(path), confirm)
    }

    fn confirm(&self) -> Result<String, Failure> {
        match lock(&self.0.in_force).unconfirmed.take() {
            Some(_) => {
                log::notice("what was applied is confirmed");
                Ok("confirmed".to_owned())
            }
            None => Err(Failure::runtime("nothing waits for confirmation".to_owned())),
        }
    }

    fn ipfw(&self, call: &Call, json: bool) -> Result<(Reply, Option<Value>), Failure> {
        let Some(firewall) = &self.0.firewall else {
            return Err(Failure::runtime(
                "this gateway runs without ipfw: give gateway.toml a section [ipfw] and start it anew",
            ));
        };
        Ok(match call.program.as_str() {
            "sysctl" => (firewall.sysctl(call), None),
            _ => {
                let (reply, rows) = firewall.ipfw(call);
                (reply, rows.filter(|_| json))
            }
        })
    }

    fn stop(&self) {
        self.0.ask_to_stop();
    }
}

/// Packets that wait for neighbours, over all workers; what a worker does not say within a tenth of a second is left out.
fn waiting(core: &Core) -> HashMap<NextHopKey, u64> {
    let report = Arc::new(WaitingReport::new(WAITING_MAX));
    let asked = core.workers.iter().filter(|w| w.mailbox.send(Command::Waiting(report.clone())).is_ok()).count();
    let until = Instant::now() + Duration::from_millis(100);
    while report.answered() < asked && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut all = HashMap::new();
    while let Some((key, count)) = report.next() {
        *all.entry(key).or_default() += u64::from(count);
    }
    all
}

fn events(core: &Core) -> Vec<NamedCount> {
    let c = &core.counters;
    let mut events: Vec<NamedCount> = [
        ("reloads", &c.reloads),
        ("reloads_refused", &c.reloads_refused),
        ("routes_refused", &c.routes_refused),
        ("ports_lost", &c.ports_lost),
        ("ports_reattached", &c.ports_reattached),
        ("host_interfaces_lost", &c.host_interfaces_lost),
        ("host_interfaces_remade", &c.host_interfaces_remade),
        ("neighbor_requests", &c.neighbor_requests),
    ]
    .map(|(name, n)| NamedCount::new(name, n.load(Relaxed)))
    .into();
    if core.firewall.is_some() {
        let log = &core.log_counters;
        events.extend([
            NamedCount::new("ipfw_log_written", log.written.load(Relaxed)),
            NamedCount::new("ipfw_log_lost", log.lost.load(Relaxed)),
            NamedCount::new("ipfw_log_failed", log.failed.load(Relaxed)),
        ]);
    }
    if let Some(follower) = &*lock(&core.follower) {
        let k = follower.counters();
        events.extend(
            [
                ("netlink_notifications", k.notifications),
                ("netlink_overruns", k.overruns),
                ("netlink_resyncs", k.resyncs),
                ("netlink_events", k.events),
                ("netlink_unreadable", k.unreadable),
                ("neighbor_resolutions", k.resolutions),
                ("neighbor_resolutions_refused", k.refused_resolutions),
            ]
            .map(|(name, n)| NamedCount::new(name, n)),
        );
    }
    events
}

/// What a running gateway cannot change; the key is named.
fn needs_restart(old: &Config, new: &Config) -> Option<&'static str> {
    let mut a = old.engine.clone();
    let b = &new.engine;
    a.on_exit = b.on_exit;
    let strip = |config: &Config| {
        let mut ports = config.ports.clone();
        for port in &mut ports {
            port.addresses.clear();
            port.vlans.iter_mut().for_each(|v| v.addresses.clear());
        }
        ports
    };
    // What the firewall is built with; None where there is none.
    let fixed = |config: &Config| {
        let ipfw = config.ipfw.as_ref().filter(|ipfw| ipfw.enabled);
        ipfw.map(|ipfw| (ipfw.default, ipfw.dyn_max, ipfw.log.clone()))
    };
    match () {
        () if a != *b => Some("[gateway]"),
        () if old.control != new.control => Some("[control]"),
        () if old.host != new.host => Some("[host]"),
        () if old.icmp != new.icmp => Some("[icmp]"),
        () if old.limits != new.limits => Some("[limits]"),
        () if strip(old) != strip(new) => Some("[[port]]"),
        () if fixed(old) != fixed(new) => Some("[ipfw] (but script, arguments, environment, time_limit, management)"),
        () => None,
    }
}

/// Reads a file and puts it in force, or refuses it whole.
fn put_in_force(core: &Core, path: Option<&Path>, confirm: Option<Duration>) -> Result<String, Failure> {
    // As long as the command line allows; a request can come past it.
    let confirm = confirm.map(|time| time.min(Duration::from_secs(24 * 3600)));
    let _alone = lock(&core.changing);
    let path = {
        let in_force = lock(&core.in_force);
        if in_force.unconfirmed.is_some() {
            return Err(Failure::runtime(
                "an applied configuration waits for its confirmation: ferrule confirm, or wait until it is taken back"
                    .to_owned(),
            ));
        }
        path.map_or_else(|| in_force.path.clone(), Path::to_owned)
    };
    let result = prepare(core, &path).and_then(|(config, rules)| {
        let in_force = lock(&core.in_force);
        let mut routing = lock(&core.routing);
        if core.is_standalone()
            && let Err(failure) = supervise::install(core, &mut routing, &config)
        {
            // The table says no halfway: the old file's routes, which it had room for, come back.
            supervise::install(core, &mut routing, &in_force.config)?;
            return Err(failure);
        }
        drop((routing, in_force));
        let before = core.firewall.as_ref().map(|firewall| firewall.set());
        if let (Some(firewall), Some(rules)) = (&core.firewall, rules) {
            firewall.load(rules).map_err(Failure::runtime)?;
        }
        Ok((config, before))
    });
    let mut in_force = lock(&core.in_force);
    match result {
        Ok((config, rules)) => {
            core.counters.reloads.fetch_add(1, Relaxed);
            tell_on_exit(core, &config);
            let old = Box::new(std::mem::replace(&mut in_force.config, config));
            let old_path = std::mem::replace(&mut in_force.path, path.clone());
            in_force.last_error = None;
            let text = format!("{} is in force", path.display());
            match confirm {
                Some(time) => log::notice(format!("{text}, for {} s unless confirmed", time.as_secs())),
                None => log::notice(&text),
            }
            in_force.unconfirmed =
                confirm.map(|time| Unconfirmed { config: old, path: old_path, rules, until: Instant::now() + time });
            Ok(match confirm {
                Some(time) => format!("{text}; taken back in {} s unless confirmed: ferrule confirm", time.as_secs()),
                None => text,
            })
        }
        Err(failure) => {
            core.counters.reloads_refused.fetch_add(1, Relaxed);
            log::error(format!("reload refused, the old configuration stays in force:\n{failure}"));
            in_force.last_error = Some(failure.to_string());
            Err(failure)
        }
    }
}

/// Reads a file and runs its script; nothing is changed yet.
fn prepare(core: &Core, path: &Path) -> Result<(Config, Option<PendingSet>), Failure> {
    let config = match core.assistant() {
        Some(assistant) => assistant.read_config(path).and_then(|bytes| configuration::load_bytes(path, &bytes))?,
        None => configuration::load(path)?,
    };
    if let Some(part) = needs_restart(&lock(&core.in_force).config, &config) {
        return Err(Failure::input(format!(
            "{}: a change in {part} needs a restart; nothing was changed",
            path.display()
        )));
    }
    let Some(firewall) = &core.firewall else { return Ok((config, None)) };
    if firewall.phase() == Phase::Closed {
        return Err(Failure::runtime("the script that was started first has not ended yet; nothing was changed"));
    }
    let settings = config.ipfw.clone().unwrap_or_default();
    let rules = ipfw::gather(core, &settings, path)?;
    Ok((config, Some(rules)))
}

/// The helper puts the box right if we are killed: it must know how.
fn tell_on_exit(core: &Core, config: &Config) {
    if let Some(assistant) = core.assistant()
        && let Err(failure) = assistant.set_on_exit(config.engine.on_exit.value == gateway::OnExit::Kernel)
    {
        log::warning(failure.to_string());
    }
}

/// Takes an applied configuration back whose time to be confirmed has passed.
pub fn take_back_unconfirmed(core: &Core) {
    let mut in_force = lock(&core.in_force);
    let due = in_force.unconfirmed.take_if(|unconfirmed| Instant::now() >= unconfirmed.until);
    let Some(Unconfirmed { config, path, rules, .. }) = due else { return };
    if let (Some(firewall), Some(rules)) = (&core.firewall, rules)
        && let Err(reason) = firewall.load(rules)
    {
        log::error(format!("taking the rules back: {reason}"));
    }
    if core.is_standalone()
        && let Err(failure) = supervise::install(core, &mut lock(&core.routing), &config)
    {
        log::error(format!("taking {} back: {failure}", in_force.path.display()));
        return;
    }
    log::warning(format!(
        "{} was not confirmed in time; {} is in force again",
        in_force.path.display(),
        path.display()
    ));
    tell_on_exit(core, &config);
    (in_force.config, in_force.path) = (*config, path);
}
