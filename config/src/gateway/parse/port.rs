#![forbid(unsafe_code)]
//! Reads `[[port]]` and `[[port.vlan]]`.

use super::{Doubts, Reader, complaint};
use crate::diagnostic::{Diagnostic, quoted};
use crate::gateway::address::{MacAddress, network, parse_prefix, unusable_in};
use crate::gateway::port::{Driver, MTU, NAME_MAX, Port, QUEUES, VLAN_ID, Vlan, VlanProtocol, XdpMode};
use crate::gateway::section::Section;
use crate::span::{Located, Place};
use ipnetwork::IpNetwork;
use std::path::PathBuf;

/// The words of `driver`.
const DRIVERS: [&str; 6] = ["auto", "xdp", "packet", "tap", "memory", "pcap"];
/// Keys that belong to some drivers only.
const DRIVER_KEYS: [(&str, &[&str]); 5] = [
    ("device", &["auto", "xdp", "packet", "tap"]),
    ("offload", &["packet", "tap"]),
    ("xdp_mode", &["auto", "xdp"]),
    ("in", &["pcap"]),
    ("out", &["pcap"]),
];
/// Words that mean something else in rule files.
const RESERVED_NAMES: [&str; 6] = ["any", "all", "self", "egress", "lo", "lo0"];

impl Reader<'_> {
    pub(super) fn port(&mut self, section: &Section<'_>, doubts: &mut Doubts) -> Port {
        let driver = self.driver(section);
        let device = self.device(section);
        let given = section.string("name", self.diagnostics);
        let known = |word: &str| driver.as_ref().is_some_and(|driver| driver.value == word);
        let name = given.as_ref().or(device.as_ref()).cloned();
        let name = match name {
            Some(name) => self.interface_name(name, given.is_none()),
            None if known("memory") || known("pcap") || known("tap") => {
                self.missing(section, "[[port]]", "name", "give it the name that rules and routes use: name = \"em0\"")
            }
            None => None,
        };
        doubts.names |= section.misspelt || name.is_none();
        let name = name.unwrap_or(Located::new(String::new(), section.span));

        let queues = section.integer("queues", QUEUES, "queues", self.diagnostics);
        let mtu = section.integer("mtu", MTU, "bytes", self.diagnostics);
        let mac = self.mac(section);
        let addresses = self.addresses(section, doubts);
        let accept_ra = section.boolean("accept_ra", self.diagnostics);
        let backend = self.backend(section, driver, device, &name);
        let vlans = self.blocks(section.entry("vlan"), "[[port.vlan]]");
        doubts.names |= vlans.is_none();
        doubts.addresses |= vlans.is_none();
        let vlans = vlans.unwrap_or_default();
        Port {
            place: Place(section.span),
            driver: backend,
            queues,
            mtu,
            mac,
            addresses,
            accept_ra: accept_ra.unwrap_or(Located::new(false, section.span)),
            vlans: vlans.iter().filter_map(|vlan| self.vlan(vlan, &name, doubts)).collect(),
            name,
        }
    }

    /// The word of `driver`; None when it is not one of them (reported).
    fn driver(&mut self, section: &Section<'_>) -> Option<Located<&'static str>> {
        if section.entry("driver").is_none() {
            return Some(Located::new("auto", section.span));
        }
        section.choice("driver", &DRIVERS.map(|driver| (driver, driver)), self.diagnostics)
    }

    /// The driver with its keys; those of other drivers are refused.
    fn backend(
        &mut self,
        section: &Section<'_>,
        driver: Option<Located<&'static str>>,
        device: Option<Located<String>>,
        name: &Located<String>,
    ) -> Located<Driver> {
        let xdp_modes = [("auto", XdpMode::Auto), ("native", XdpMode::Native), ("generic", XdpMode::Generic)];
        let xdp_mode =
            section.choice("xdp_mode", &xdp_modes, self.diagnostics).map_or(XdpMode::Auto, |mode| mode.value);
        let offload = section.boolean("offload", self.diagnostics).is_some_and(|on| on.value);
        let input = section.string("in", self.diagnostics).map(|path| path.map(PathBuf::from));
        let output = section.string("out", self.diagnostics).map(|path| path.map(PathBuf::from));
        let no_device = Located::new(String::new(), section.span);
        let Some(driver) = driver else {
            return Located::new(Driver::Auto { device: device.unwrap_or(no_device), xdp_mode }, section.span);
        };
        self.foreign_keys(section, driver);
        if matches!(driver.value, "auto" | "xdp" | "packet") && device.is_none() {
            self.missing::<()>(section, "[[port]]", "device", "name the kernel's interface: device = \"eth0\"");
        }
        let backend = match driver.value {
            "xdp" => Driver::Xdp { device: device.unwrap_or(no_device), xdp_mode },
            "packet" => Driver::Packet { device: device.unwrap_or(no_device), offload },
            "tap" => Driver::Tap { device: device.unwrap_or_else(|| name.clone()), offload },
            "memory" => Driver::Memory,
            "pcap" => {
                if section.entry("in").is_none() && section.entry("out").is_none() && !section.misspelt {
                    let hint = "in = \"a.pcap\" for frames that arrive, out = \"b.pcap\" for those that leave";
                    let error = Diagnostic::error(section.span, "this [[port]] has neither `in` nor `out`");
                    self.diagnostics.push(error.hint(hint));
                }
                Driver::Pcap { input, output }
            }
            _ => Driver::Auto { device: device.unwrap_or(no_device), xdp_mode },
        };
        Located::new(backend, driver.span)
    }

    /// Keys that mean nothing to this driver.
    fn foreign_keys(&mut self, section: &Section<'_>, driver: Located<&'static str>) {
        for (key, drivers) in DRIVER_KEYS {
            let Some(entry) = section.entry(key).filter(|_| !drivers.contains(&driver.value)) else { continue };
            let (message, hint) = match (key, driver.value) {
                ("offload", "xdp") => (
                    "offload does not go with driver \"xdp\": AF_XDP tells neither segment sizes nor partial checksums"
                        .to_owned(),
                    "use driver = \"packet\", or leave offload out".to_owned(),
                ),
                ("offload", "auto") => (
                    "offload needs a driver that carries it, and \"auto\" may choose \"xdp\"".to_owned(),
                    "use driver = \"packet\", or leave offload out".to_owned(),
                ),
                ("device", _) => (
                    format!("driver \"{}\" has no device", driver.value),
                    "leave device out; `name` is what rules call the port".to_owned(),
                ),
                _ => {
                    let all: Vec<String> = drivers.iter().map(|driver| format!("\"{driver}\"")).collect();
                    (
                        format!("`{key}` means nothing to driver \"{}\"", driver.value),
                        format!("it belongs to driver = {}", all.join(" or ")),
                    )
                }
            };
            let error = Diagnostic::error(entry.key.span, message).hint(hint);
            let written = section.entry("driver").is_some();
            self.diagnostics.push(if written { error.label(driver.span, "the driver is set here") } else { error });
        }
    }

    /// A kernel interface's name (`dev_valid_name` in the kernel).
    fn device(&mut self, section: &Section<'_>) -> Option<Located<String>> {
        let device = section.string("device", self.diagnostics)?;
        self.parsed(device, |device| {
            if device.len() > NAME_MAX {
                let message = format!("device {} has {} characters", quoted(device), device.len());
                return Err(complaint(message).hint(format!("interface names have at most {NAME_MAX}")));
            }
            let forbidden = |c: char| c == '/' || c == ':' || c == '%' || c.is_whitespace();
            if device == "." || device == ".." || device.contains(forbidden) {
                return Err(complaint(format!("no interface can be called {}", quoted(device))));
            }
            if device == "lo" {
                return Err(
                    complaint("the loopback device cannot be a port").hint("name the interface that has the cable")
                );
            }
            Ok(device.to_owned())
        })
    }

    /// What rules call an interface. `from_device`: it was not written as a name.
    fn interface_name(&mut self, name: Located<String>, from_device: bool) -> Option<Located<String>> {
        let hint_for = |hint: String| {
            if from_device { "give the port a name of its own: name = \"em0\"".to_owned() } else { hint }
        };
        self.parsed(name, |name| {
            if name.len() > NAME_MAX {
                let message = format!("name {} has {} characters", quoted(name), name.len());
                return Err(complaint(message).hint(format!("names of interfaces have at most {NAME_MAX}")));
            }
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(allowed) {
                let hint = hint_for("a letter, then letters, digits, `.`, `-`, `_`".to_owned());
                return Err(complaint(format!("a port cannot be called {}", quoted(name))).hint(hint));
            }
            if RESERVED_NAMES.contains(&name) {
                let message = format!("a port cannot be called \"{name}\": the word has a meaning of its own in rules");
                return Err(complaint(message).hint(hint_for("choose another, such as \"em0\"".to_owned())));
            }
            Ok(name.to_owned())
        })
    }

    /// An Ethernet address that one station can have.
    pub(super) fn mac(&mut self, section: &Section<'_>) -> Option<Located<MacAddress>> {
        let text = section.string("mac", self.diagnostics)?;
        self.parsed(text, |text| {
            let Ok(mac) = text.parse::<MacAddress>() else {
                let message = format!("{} is no Ethernet address", quoted(text));
                return Err(complaint(message).hint("six octets in hexadecimal: \"02:00:00:00:00:01\""));
            };
            if mac.is_multicast() {
                return Err(complaint(format!("{mac} is a group address")).hint("the first octet must be even"));
            }
            if mac == MacAddress::default() {
                return Err(complaint("the Ethernet address is all zero"));
            }
            Ok(mac)
        })
    }

    fn addresses(&mut self, section: &Section<'_>, doubts: &mut Doubts) -> Vec<Located<IpNetwork>> {
        doubts.addresses |= section.misspelt;
        let Some(list) = section.list("addresses", "strings", self.diagnostics) else {
            doubts.addresses |= section.entry("addresses").is_some();
            return Vec::new();
        };
        let (texts, complete) = self.strings("an address", &list);
        let count = texts.len();
        let addresses: Vec<_> = texts.into_iter().filter_map(|text| self.parsed(text, interface_address)).collect();
        doubts.addresses |= !complete || addresses.len() != count;
        addresses
    }

    fn vlan(&mut self, section: &Section<'_>, port: &Located<String>, doubts: &mut Doubts) -> Option<Vlan> {
        let protocols = [("802.1q", VlanProtocol::Dot1Q), ("802.1ad", VlanProtocol::Dot1Ad)];
        let id = section.integer("id", VLAN_ID, "", self.diagnostics);
        let protocol = section.choice("protocol", &protocols, self.diagnostics);
        let name = section.string("name", self.diagnostics);
        let mtu = section.integer("mtu", MTU, "bytes", self.diagnostics);
        let accept_ra = section.boolean("accept_ra", self.diagnostics);
        let addresses = self.addresses(section, doubts);
        doubts.names |= section.misspelt;
        let id = id.or_else(|| self.missing(section, "[[port.vlan]]", "id", "id = 1 to 4094"));
        let name = match (name, id) {
            (Some(name), _) => self.interface_name(name, false),
            (None, Some(id)) if !port.is_empty() => {
                let name = Located::new(format!("{port}.{id}"), id.span);
                if name.len() > NAME_MAX {
                    let message =
                        format!("the VLAN would be called {}, which has {} characters", quoted(&name), name.len());
                    let hint = format!("give it a name of at most {NAME_MAX}: name = \"vlan{id}\"");
                    self.diagnostics.push(Diagnostic::error(id.span, message).hint(hint));
                    None
                } else {
                    Some(name)
                }
            }
            _ => None,
        };
        doubts.names |= name.is_none();
        doubts.addresses |= id.is_none() || name.is_none();
        Some(Vlan {
            place: Place(section.span),
            id: id?,
            protocol: protocol.map_or(VlanProtocol::Dot1Q, |protocol| protocol.value),
            name: name?,
            mtu,
            addresses,
            accept_ra: accept_ra.unwrap_or(Located::new(false, section.span)),
        })
    }
}

fn interface_address(text: &str) -> Result<IpNetwork, Diagnostic> {
    let (address, length) = match parse_prefix(text) {
        Some((address, Some(length))) => (address, length),
        Some((address, None)) => {
            let hint = format!(
                "write it with the length of its subnet: \"{address}/{}\"",
                if address.is_ipv4() { 24 } else { 64 }
            );
            return Err(complaint(format!("address {} has no prefix length", quoted(text))).hint(hint));
        }
        None => {
            let hint = "write \"192.0.2.1/24\" or \"2001:db8::1/64\"";
            return Err(complaint(format!("{} is no address with a prefix length", quoted(text))).hint(hint));
        }
    };
    let network = network(address, length);
    match unusable_in(network) {
        Some(reason) => Err(complaint(format!("{address} cannot be an interface's address: {reason}"))),
        None => Ok(network),
    }
}
