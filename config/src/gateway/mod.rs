#![forbid(unsafe_code)]
//! The language of `gateway.toml`: which ports the gateway has and how it runs.
//!
//! [`parse`] gives the checked meaning, or every mistake of the file at once; [`Gateway`] prints as canonical TOML that
//! parses to the same meaning. Each item's documentation gives its keys with units, ranges and defaults:
//!
//! - `[gateway]`: [`Engine`]
//! - `[control]`: [`Control`]
//! - `[host]`: [`Host`]
//! - `[icmp]`: [`Icmp`]
//! - `[limits]`: [`Limits`]
//! - `[ipfw]`: [`Ipfw`]
//! - `[[port]]`: [`Port`], and `[[port.vlan]]`: [`Vlan`]
//! - `[[route]]`: [`Route`], standalone mode only
//! - `[[neighbor]]`: [`Neighbor`], standalone mode only
//!
//! ```
//! use ferrule_config::{Color, Source, gateway, render_all};
//!
//! let text = "[[port]]\ndevice = \"eth0\"\nqueue = 2\n";
//! let errors = gateway::parse(text).unwrap_err();
//! let shown = render_all(&errors, &Source::new("gateway.toml", text), Color::No);
//! assert!(shown.starts_with("gateway.toml:3:1: error: unknown key \"queue\" in [[port]]\n"));
//! assert!(shown.ends_with("  hint: did you mean `queues`?\n"));
//! ```

pub mod address;
mod check;
pub mod ipfw;
mod notes;
mod parse;
pub mod port;
mod print;
pub mod route;
mod section;
pub mod settings;
#[cfg(test)]
mod tests;

pub use address::MacAddress;
pub use ipfw::{DefaultRule, Ipfw, IpfwLog, LogFormat, Management};
pub use parse::{MAX_BYTES, parse, parse_bytes};
pub use port::{Driver, Interface, Port, Vlan, VlanProtocol, XdpMode};
pub use route::{Neighbor, Route, RouteKind};
pub use settings::{Control, Dispatch, Engine, Host, HugePages, Icmp, Limits, OnExit, Poll, PuntRate};

use crate::diagnostic::Diagnostic;

/// A checked `gateway.toml`. [`Display`](std::fmt::Display) prints it as canonical TOML, defaults included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gateway {
    /// `[gateway]`.
    pub engine: Engine,
    /// `[control]`.
    pub control: Control,
    /// `[host]`.
    pub host: Host,
    /// `[icmp]`.
    pub icmp: Icmp,
    /// `[limits]`.
    pub limits: Limits,
    /// `[ipfw]`, where there is one.
    pub ipfw: Option<Ipfw>,
    /// `[[port]]`, at least one, in the order of the file.
    pub ports: Vec<Port>,
    /// `[[route]]`.
    pub routes: Vec<Route>,
    /// `[[neighbor]]`.
    pub neighbors: Vec<Neighbor>,
}

impl Gateway {
    /// Every port and every VLAN of it, in the order of the file.
    pub fn interfaces(&self) -> impl Iterator<Item = Interface<'_>> {
        self.ports.iter().flat_map(Port::interfaces)
    }

    /// The port or VLAN of that name.
    pub fn interface(&self, name: &str) -> Option<Interface<'_>> {
        self.interfaces().find(|interface| interface.name.value == name)
    }

    /// The number of workers, as far as the file says: `workers`, else as many as `cores`, else the most `queues` of a
    /// port. None: it depends on the devices.
    pub fn workers(&self) -> Option<u16> {
        let cores = u16::try_from(self.engine.cores.len()).ok().filter(|&count| count > 0);
        let queues = || {
            let known: Option<Vec<u16>> = self.ports.iter().map(|port| Some(port.queues?.value)).collect();
            known?.into_iter().max()
        };
        self.engine.workers.map(|workers| workers.value).or(cores).or_else(queues)
    }

    /// True when there is no kernel beside the gateway: addresses, routes and neighbours are those of the file.
    pub fn is_standalone(&self) -> bool {
        !self.host.enabled.value
    }

    /// Warnings and notes: what is allowed and perhaps not meant.
    pub fn notes(&self) -> Vec<Diagnostic> {
        notes::notes(self)
    }
}
