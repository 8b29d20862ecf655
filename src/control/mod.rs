//! The control socket: how `ferrule show`, `reload`, `apply`, `top` and `stop` talk to the running daemon.
//!
//! The daemon gives the server a [`Gateway`]; the server calls it from its own threads and never touches the data plane.
//! Who may ask what is decided by the peer's credentials ([`access`]), not by what the client says.

#![forbid(unsafe_code)]

pub mod access;
pub mod client;
pub mod protocol;
pub mod server;

use std::path::Path;
use std::time::Duration;

pub use access::Access;
pub use client::Client;
pub use protocol::{Reply, Request, RouteQuery};
pub use server::{Options, Server};

use crate::failure::Failure;
use crate::ipfw::{self, call::Call};
use crate::snapshot::{Finding, NeighborRow, RouteRow, Snapshot};

/// Where the socket is unless asked otherwise.
pub const DEFAULT_SOCKET: &str = "/run/ferrule/control.sock";

/// The running gateway, as the control socket, metrics and signals use it. Calls come from several threads at once; one that
/// changes something may take as long as it needs, the others must not wait for it.
pub trait Gateway: Send + Sync {
    /// Everything but routes and neighbours.
    fn snapshot(&self) -> Snapshot;

    /// Routes in force.
    fn routes(&self, query: &RouteQuery) -> Vec<RouteRow>;

    /// Neighbours in use.
    fn neighbors(&self) -> Vec<NeighborRow>;

    /// Checks of the running gateway and its host.
    fn doctor(&self) -> Vec<Finding>;

    /// Reads the file in force again (or another) and puts it in force; returns what changed.
    ///
    /// # Errors
    /// [`Failure::Input`] for a bad file, [`Failure::Runtime`] otherwise; in both cases the old one stays in force.
    fn reload(&self, path: Option<&Path>) -> Result<String, Failure>;

    /// Puts a file in force; with `confirm`, the old one returns unless [`Gateway::confirm`] is called in time.
    ///
    /// # Errors
    /// As [`Gateway::reload`].
    fn apply(&self, path: &Path, confirm: Option<Duration>) -> Result<String, Failure>;

    /// Keeps what the last [`Gateway::apply`] brought.
    ///
    /// # Errors
    /// When nothing waits for confirmation.
    fn confirm(&self) -> Result<String, Failure>;

    /// Answers a call of `ipfw` or `sysctl`; with `json`, what it shows as data, too.
    ///
    /// # Errors
    /// When there is no firewall here.
    fn ipfw(&self, call: &Call, json: bool) -> Result<(ipfw::call::Reply, Option<serde_json::Value>), Failure>;

    /// Begins to drain and end; returns at once.
    fn stop(&self);
}

#[cfg(test)]
mod tests;
