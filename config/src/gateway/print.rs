#![forbid(unsafe_code)]
//! Canonical TOML: every section and every value in force, defaults included; what has no value is left out.
//! `parse(print(x)) == x`.

use super::ipfw::{DefaultRule, Ipfw, LogFormat};
use super::settings::{Control, Dispatch, Engine, Host, HugePages, Icmp, Limits, OnExit, Poll};
use super::{Driver, Gateway, Neighbor, Port, Route, RouteKind, Vlan, VlanProtocol, XdpMode};
use std::fmt::{Display, Formatter, Result};
use std::path::Path;
use std::time::Duration;

impl Display for Gateway {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        engine(f, &self.engine)?;
        control(f, &self.control)?;
        host(f, &self.host)?;
        icmp(f, self.icmp)?;
        limits(f, &self.limits)?;
        if let Some(section) = &self.ipfw {
            ipfw(f, section)?;
        }
        for item in &self.ports {
            port(f, item, self.is_standalone())?;
        }
        for item in &self.routes {
            route(f, item)?;
        }
        for item in &self.neighbors {
            neighbor(f, item)?;
        }
        Ok(())
    }
}

fn engine(f: &mut Formatter<'_>, engine: &Engine) -> Result {
    writeln!(f, "[gateway]")?;
    text(f, "name", engine.name.as_deref())?;
    let on_exit = match engine.on_exit.value {
        OnExit::Closed => "closed",
        OnExit::Kernel => "kernel",
    };
    text(f, "on_exit", Some(on_exit))?;
    let dispatch = match engine.dispatch {
        Dispatch::Direct => "direct",
        Dispatch::Queued => "queued",
    };
    text(f, "dispatch", Some(dispatch))?;
    plain(f, "fastforward", Some(engine.fastforward))?;
    let (poll, hz) = match engine.poll.value {
        Poll::Busy => ("busy", None),
        Poll::Adaptive => ("adaptive", None),
        Poll::Interrupt { hz } => ("interrupt", hz),
    };
    text(f, "poll", Some(poll))?;
    plain(f, "hz", hz)?;
    plain(f, "batch", Some(engine.batch))?;
    plain(f, "workers", engine.workers.as_deref())?;
    if !engine.cores.is_empty() {
        list(f, "cores", &engine.cores, |core| core.to_string())?;
    }
    plain(f, "buffers", Some(&engine.buffers))?;
    let hugepages = match engine.hugepages.value {
        HugePages::Prefer => "prefer",
        HugePages::Require => "require",
        HugePages::Off => "off",
    };
    text(f, "hugepages", Some(hugepages))?;
    text(f, "watchdog", Some(&watchdog(engine.watchdog)))?;
    text(f, "user", engine.user.as_deref())
}

fn control(f: &mut Formatter<'_>, control: &Control) -> Result {
    writeln!(f, "\n[control]")?;
    path(f, "socket", Some(&control.socket))?;
    text(f, "write_group", control.write_group.as_deref())?;
    text(f, "read_group", control.read_group.as_deref())?;
    text(f, "metrics", control.metrics.map(|address| address.to_string()).as_ref())
}

fn host(f: &mut Formatter<'_>, host: &Host) -> Result {
    writeln!(f, "\n[host]")?;
    plain(f, "enabled", Some(host.enabled))?;
    if host.enabled.value {
        plain(f, "dhcp_bypass", Some(host.dhcp_bypass))?;
        let rate = host.punt_rate;
        writeln!(
            f,
            "punt_rate = {{ neighbor = {}, routing = {}, dhcp = {}, other = {} }}",
            rate.neighbor, rate.routing, rate.dhcp, rate.other
        )?;
    }
    plain(f, "neighbor_queue", Some(host.neighbor_queue))?;
    plain(f, "neighbor_limit", Some(host.neighbor_limit))
}

fn icmp(f: &mut Formatter<'_>, icmp: Icmp) -> Result {
    writeln!(f, "\n[icmp]\nrate = {}\nburst = {}", icmp.rate, icmp.burst)
}

fn limits(f: &mut Formatter<'_>, limits: &Limits) -> Result {
    if *limits == Limits::default() {
        return Ok(());
    }
    writeln!(f, "\n[limits]")?;
    plain(f, "ipv4_routes", limits.ipv4_routes)?;
    plain(f, "ipv6_routes", limits.ipv6_routes)?;
    plain(f, "adjacencies", limits.adjacencies)
}

fn ipfw(f: &mut Formatter<'_>, ipfw: &Ipfw) -> Result {
    writeln!(f, "\n[ipfw]")?;
    plain(f, "enabled", Some(ipfw.enabled))?;
    path(f, "script", ipfw.script.as_ref().map(|script| script.as_path()))?;
    if !ipfw.arguments.is_empty() {
        list(f, "arguments", &ipfw.arguments, |argument| quote(argument))?;
    }
    if !ipfw.environment.is_empty() {
        let variables: Vec<String> =
            ipfw.environment.iter().map(|(name, value)| format!("{name} = {}", quote(value))).collect();
        writeln!(f, "environment = {{ {} }}", variables.join(", "))?;
    }
    plain(f, "time_limit", Some(ipfw.time_limit))?;
    let default = match ipfw.default {
        DefaultRule::Deny => "deny",
        DefaultRule::Accept => "accept",
    };
    text(f, "default", Some(default))?;
    plain(f, "dyn_max", ipfw.dyn_max)?;
    let from: Vec<String> = ipfw.management.from.iter().map(|address| quote(&address.to_string())).collect();
    let from = if from.is_empty() { String::new() } else { format!(", from = [{}]", from.join(", ")) };
    writeln!(f, "management = {{ port = {}{from} }}", ipfw.management.port)?;
    let Some(log) = &ipfw.log else { return Ok(()) };
    let mut keys = Vec::new();
    let quoted = |file: &Path| quote(&file.to_string_lossy());
    if let Some(file) = &log.file {
        let format = match log.format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        keys.extend([format!("file = {}", quoted(file)), format!("format = \"{format}\"")]);
    }
    keys.extend(log.pcap.as_ref().map(|file| format!("pcap = {}", quoted(file))));
    keys.extend([format!("size = {}", log.size), format!("keep = {}", log.keep)]);
    writeln!(f, "log = {{ {} }}", keys.join(", "))
}

fn port(f: &mut Formatter<'_>, port: &Port, standalone: bool) -> Result {
    writeln!(f, "\n[[port]]")?;
    text(f, "name", Some(port.name.as_str()))?;
    text(f, "driver", Some(port.driver.as_str()))?;
    text(f, "device", port.driver.device().map(|device| device.as_str()))?;
    match &port.driver.value {
        Driver::Auto { xdp_mode, .. } | Driver::Xdp { xdp_mode, .. } => {
            let word = match xdp_mode {
                XdpMode::Auto => "auto",
                XdpMode::Native => "native",
                XdpMode::Generic => "generic",
            };
            text(f, "xdp_mode", Some(word))?;
        }
        Driver::Packet { offload, .. } | Driver::Tap { offload, .. } => plain(f, "offload", Some(offload))?,
        Driver::Memory => {}
        Driver::Pcap { input, output } => {
            path(f, "in", input.as_ref().map(|file| file.as_path()))?;
            path(f, "out", output.as_ref().map(|file| file.as_path()))?;
        }
    }
    plain(f, "queues", port.queues)?;
    plain(f, "mtu", port.mtu)?;
    text(f, "mac", port.mac.map(|mac| mac.to_string()).as_ref())?;
    addresses(f, &port.addresses)?;
    if !standalone {
        plain(f, "accept_ra", Some(port.accept_ra))?;
    }
    port.vlans.iter().try_for_each(|item| vlan(f, item, standalone))
}

fn vlan(f: &mut Formatter<'_>, vlan: &Vlan, standalone: bool) -> Result {
    writeln!(f, "\n[[port.vlan]]")?;
    plain(f, "id", Some(vlan.id))?;
    let protocol = match vlan.protocol {
        VlanProtocol::Dot1Q => "802.1q",
        VlanProtocol::Dot1Ad => "802.1ad",
    };
    text(f, "protocol", Some(protocol))?;
    text(f, "name", Some(vlan.name.as_str()))?;
    plain(f, "mtu", vlan.mtu)?;
    addresses(f, &vlan.addresses)?;
    if !standalone {
        plain(f, "accept_ra", Some(vlan.accept_ra))?;
    }
    Ok(())
}

fn addresses(f: &mut Formatter<'_>, addresses: &[impl Display]) -> Result {
    if addresses.is_empty() {
        return Ok(());
    }
    list(f, "addresses", addresses, |address| quote(&address.to_string()))
}

fn route(f: &mut Formatter<'_>, route: &Route) -> Result {
    writeln!(f, "\n[[route]]")?;
    text(f, "to", Some(route.to.to_string()))?;
    text(f, "type", Some(route.kind.as_str()))?;
    if let RouteKind::Unicast { via, port } = &route.kind {
        match via.as_slice() {
            [] => {}
            [only] => text(f, "via", Some(only.to_string()))?,
            hops => list(f, "via", hops, |hop| quote(&hop.to_string()))?,
        }
        text(f, "port", port.as_deref())?;
    }
    plain(f, "metric", Some(route.metric))
}

fn neighbor(f: &mut Formatter<'_>, neighbor: &Neighbor) -> Result {
    writeln!(f, "\n[[neighbor]]")?;
    text(f, "port", Some(neighbor.port.as_str()))?;
    text(f, "address", Some(neighbor.address.to_string()))?;
    text(f, "mac", Some(neighbor.mac.to_string()))
}

/// The largest unit that is exact.
fn watchdog(duration: Option<Duration>) -> String {
    let Some(duration) = duration else { return "off".to_owned() };
    let milliseconds = duration.as_millis();
    match milliseconds {
        _ if milliseconds % 3_600_000 == 0 => format!("{}h", milliseconds / 3_600_000),
        _ if milliseconds % 60_000 == 0 => format!("{}m", milliseconds / 60_000),
        _ if milliseconds % 1000 == 0 => format!("{}s", milliseconds / 1000),
        _ => format!("{milliseconds}ms"),
    }
}

/// `key = value` for numbers and booleans.
fn plain(f: &mut Formatter<'_>, key: &str, value: Option<impl Display>) -> Result {
    value.map_or(Ok(()), |value| writeln!(f, "{key} = {value}"))
}

/// `key = "value"`.
fn text(f: &mut Formatter<'_>, key: &str, value: Option<impl AsRef<str>>) -> Result {
    value.map_or(Ok(()), |value| writeln!(f, "{key} = {}", quote(value.as_ref())))
}

fn path(f: &mut Formatter<'_>, key: &str, value: Option<&Path>) -> Result {
    text(f, key, value.map(Path::to_string_lossy))
}

fn list<T>(f: &mut Formatter<'_>, key: &str, items: &[T], show: impl Fn(&T) -> String) -> Result {
    let items: Vec<String> = items.iter().map(show).collect();
    writeln!(f, "{key} = [{}]", items.join(", "))
}

/// A TOML basic string. Values hold no control characters ([`super::parse`] refuses them); those of a value made by a
/// program are escaped as well.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
