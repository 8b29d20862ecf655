//! The lab: a client A, a router B and a server C as network namespaces of this machine, joined by veth pairs.
//!
//! [`Topology`] is the request, [`Plan`] what follows from it, [`Lab`] the thing that is up, [`Host`] one namespace of
//! it. What forwards in B is given by the caller as a [`Router`]: the gateway, or the kernel as the baseline. The
//! probes in [`probe`] run real programs through it and read what they say.
//!
//! Everything happens in namespaces that the lab makes itself. A state file tells what it made; taking it down removes
//! exactly that, also after a crash.

mod bpf_object;
mod error;
mod host;
mod offload;
mod packet_socket;
mod process;
mod running;
mod state;
pub mod tools;
mod topology;

pub use error::LabError;
pub use host::Host;
pub use packet_socket::PacketSocket;
pub use process::{Background, Finished, wait_until};
pub use running::{KernelRouter, Lab, Router, down, host_of, sweep};
pub use state::LabState;
pub use topology::{
    Address, DEFAULT_DIRECTORY, End, Link, Offloads, Plan, Port, Route, TagProtocol, Topology, Vlan, anycast_v4,
    anycast_v6, mac_text, narrow_v4, narrow_v6,
};
