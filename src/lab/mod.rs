//! The lab: a client A, a router B and a server C as network namespaces of this machine, joined by veth pairs.
//!
//! [`Topology`] is the request, [`Plan`] what follows from it, [`Lab`] the thing that is up, [`Host`] one namespace of
//! it. What forwards in B is given by the caller as a [`Router`]: the gateway, or the kernel as the baseline. The
//! probes in [`probe`] run real programs through it and read what they say.
//!
//! Everything happens in namespaces that the lab makes itself. A state file tells what it made; taking it down removes
//! exactly that, also after a crash.
//!
//! ```no_run
//! use ferrule::lab::{Lab, LabError, Topology, probe::ping::Ping};
//! use std::time::Duration;
//!
//! let gateway = |lab: &Lab| -> Result<_, LabError> {
//!     let mut child = lab.host("b")?.spawn(&["/usr/bin/ferrule", "run", "gateway.toml"])?;
//!     lab.wait_forwarding(&mut child, Duration::from_secs(10))?;
//!     Ok(vec![child])
//! };
//! let lab = Lab::up(&Topology::new().queues(2), &gateway)?;
//! assert!(Ping::new(lab.v4("c")).run(&lab.host("a")?)?.is_clean());
//! # Ok::<(), LabError>(())
//! ```

mod bpf_object;
pub mod command;
mod demo;
mod error;
mod gateway;
mod host;
mod offload;
mod packet_socket;
mod plan;
pub mod probe;
mod process;
mod removal;
mod running;
mod state;
pub mod tools;
mod topology;

pub use demo::{Counters, KernelCounters};
pub use error::LabError;
pub use gateway::GatewayRouter;
pub use host::Host;
pub use packet_socket::PacketSocket;
pub use plan::{Address, End, Link, Plan, Port, Route, mac_text};
pub use process::{Background, Finished, wait_until};
pub use removal::{down, sweep};
pub use running::{KernelRouter, Lab, Router, host_of};
pub use state::LabState;
pub use topology::{
    DEFAULT_DIRECTORY, Offloads, TagProtocol, Topology, Vlan, anycast_v4, anycast_v6, narrow_v4, narrow_v6,
};
