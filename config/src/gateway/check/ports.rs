#![forbid(unsafe_code)]
//! Names, devices, drivers, MTUs and VLANs.

use super::with_host;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::gateway::Gateway;
use crate::gateway::parse::Doubts;
use crate::gateway::port::{Driver, IPV6_MIN_MTU, Interface, Port, VlanProtocol};
use crate::span::Span;
use std::collections::HashMap;
use std::path::Path;

pub(super) fn check(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    names_and_devices(gateway, diagnostics);
    captures(gateway, doubts, diagnostics);
    for port in &gateway.ports {
        vlans(port, diagnostics);
        if !doubts.mode {
            mode(gateway, port, diagnostics);
        }
        for interface in port.interfaces() {
            mtu(interface, diagnostics);
        }
    }
}

fn names_and_devices(gateway: &Gateway, diagnostics: &mut Diagnostics) {
    let mut names: HashMap<&str, Span> = HashMap::new();
    for interface in gateway.interfaces().filter(|interface| !interface.name.is_empty()) {
        if let Some(first) = names.get(interface.name.as_str()) {
            let error = Diagnostic::error(interface.name.span, format!("the name \"{}\" is taken", interface.name))
                .label(*first, "first used here")
                .hint("give each port and VLAN a name of its own: name = \"em1\"");
            diagnostics.push(error);
        } else {
            names.insert(&interface.name.value, interface.name.span);
        }
    }
    let mut devices: HashMap<&str, &Port> = HashMap::new();
    for port in &gateway.ports {
        let Some(device) = port.driver.device().filter(|device| !device.is_empty()) else { continue };
        if let Some(first) = devices.get(device.value.as_str()) {
            let place = first.driver.device().map_or(first.place.0, |device| device.span);
            let error = Diagnostic::error(device.span, format!("the device \"{device}\" is taken"))
                .label(place, format!("port \"{}\" has it", first.name))
                .hint("a device carries one port; for several networks on it use [[port.vlan]]");
            diagnostics.push(error);
        } else {
            devices.insert(&device.value, port);
        }
    }
}

/// Pcap ports run on virtual time, have one queue, and must not read or write what another writes.
fn captures(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    let pcap = gateway.ports.iter().find(|port| matches!(port.driver.value, Driver::Pcap { .. }));
    let Some(pcap) = pcap else { return };
    if !gateway.is_standalone() && !doubts.mode {
        let error = Diagnostic::error(
            pcap.driver.span,
            "driver \"pcap\" runs on the clock of its captures, which the host does not share",
        );
        diagnostics.push(with_host(error, gateway).hint("run standalone: [host] enabled = false"));
    }
    let mut written: HashMap<&Path, Span> = HashMap::new();
    for port in &gateway.ports {
        let Driver::Pcap { output, .. } = &port.driver.value else {
            if port.driver.device().is_some() {
                let message = format!(
                    "driver \"{}\" cannot share a gateway with captures: they have clocks of their own",
                    port.driver.as_str()
                );
                diagnostics.push(
                    Diagnostic::error(port.driver.span, message).label(pcap.driver.span, "a capture is used here"),
                );
            }
            continue;
        };
        if let Some(queues) = port.queues.filter(|queues| queues.value != 1) {
            let message = format!("driver \"pcap\" has 1 queue, not {queues}: the order of a capture is exact");
            diagnostics.push(Diagnostic::error(queues.span, message).hint("leave queues out"));
        }
        let Some(output) = output else { continue };
        if let Some(first) = written.get(output.as_path()) {
            let error =
                Diagnostic::error(output.span, "another port writes this capture").label(*first, "it is written here");
            diagnostics.push(error.hint("give each port a file of its own"));
        } else {
            written.insert(output, output.span);
        }
    }
    for port in &gateway.ports {
        let Driver::Pcap { input: Some(input), .. } = &port.driver.value else { continue };
        if let Some(first) = written.get(input.as_path()) {
            let error = Diagnostic::error(input.span, "this capture would be read while it is written")
                .label(*first, "it is written here");
            diagnostics.push(error);
        }
    }
}

fn vlans(port: &Port, diagnostics: &mut Diagnostics) {
    let mut seen: HashMap<(u16, VlanProtocol), Span> = HashMap::new();
    for vlan in &port.vlans {
        let key = (vlan.id.value, vlan.protocol);
        if let Some(first) = seen.get(&key) {
            let error = Diagnostic::error(vlan.id.span, format!("port \"{}\" has VLAN {} already", port.name, vlan.id))
                .label(*first, "first defined here");
            diagnostics.push(error);
        } else {
            seen.insert(key, vlan.id.span);
        }
        if let (Some(inner), Some(outer)) = (vlan.mtu, port.mtu)
            && inner.value > outer.value
        {
            let error = Diagnostic::error(
                inner.span,
                format!("a VLAN cannot have a larger MTU ({inner}) than its port ({outer})"),
            )
            .label(outer.span, "the MTU of the port");
            diagnostics.push(error);
        }
    }
}

fn mtu(interface: Interface<'_>, diagnostics: &mut Diagnostics) {
    let Some(mtu) = interface.mtu.filter(|mtu| mtu.value < IPV6_MIN_MTU) else { return };
    let (place, what) = match interface.addresses.iter().find(|address| address.is_ipv6()) {
        Some(address) => (address.span, "an IPv6 address is given here"),
        None if interface.accept_ra.value => (interface.accept_ra.span, "router advertisements are wanted here"),
        None => return,
    };
    let error = Diagnostic::error(mtu.span, format!("IPv6 needs an MTU of at least {IPV6_MIN_MTU}, this is {mtu}"))
        .label(place, what)
        .hint("raise the MTU, or use IPv4 only on this port");
    diagnostics.push(error);
}

/// What belongs to the other mode.
fn mode(gateway: &Gateway, port: &Port, diagnostics: &mut Diagnostics) {
    if gateway.is_standalone() {
        for interface in port.interfaces().filter(|interface| interface.accept_ra.value) {
            let error = Diagnostic::error(
                interface.accept_ra.span,
                "accept_ra is done by the host's kernel, and there is none",
            );
            diagnostics
                .push(with_host(error, gateway).hint("give `addresses` and [[route]] blocks, or enable the host"));
        }
        return;
    }
    if let (Some(mac), Some(device)) = (port.mac, port.driver.device()) {
        let error =
            Diagnostic::error(mac.span, "mac is for standalone mode: with the host in use the port has the device's");
        let hint = format!("change it there: ip link set dev {device} address {mac}; or leave mac out");
        diagnostics.push(with_host(error, gateway).hint(hint));
    }
    for interface in port.interfaces() {
        let (Some(first), Some(last)) = (interface.addresses.first(), interface.addresses.last()) else { continue };
        let message = "addresses are for standalone mode: with the host in use the kernel's are taken";
        let error = Diagnostic::error(first.span.to(last.span), message);
        let hint = format!(
            "give them to the kernel: ip address add {first} dev {}; or set [host] enabled = false",
            kernel_name(interface)
        );
        diagnostics.push(with_host(error, gateway).hint(hint));
    }
}

/// What the host interface is called in the kernel: it takes over the name of the device.
fn kernel_name(interface: Interface<'_>) -> &str {
    match (interface.vlan, interface.port.driver.device()) {
        (None, Some(device)) => device,
        _ => interface.name,
    }
}
