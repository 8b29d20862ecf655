//! AF_XDP: frames between a device's driver (or, generic, the bottom of the stack) and our buffers.
//!
//! `sys` and `bpf` are the system calls, `rings` the four rings of a socket, `program` the redirect program, `device` what the
//! kernel tells about a device, `umem` the memory that all sockets share, `queue` one socket with its rings, `acquire` what needs
//! privilege, and `port` the device as the workers see it.
//!
//! Local stacks behind a veth send frames whose transport checksum is only the pseudo-header's sum, and AF_XDP does not
//! say so: every received packet carries [`Flags::MAYBE_PARTIAL`](crate::packet::Flags::MAYBE_PARTIAL).

mod acquire;
mod bpf;
pub mod device;
mod frame_set;
pub mod live;
mod port;
pub mod program;
mod queue;
pub mod rings;
pub mod sys;
#[cfg(test)]
mod tests;
mod umem;

pub use acquire::Acquired;
pub use port::{Claim, Inspection, XdpConfig, XdpError, XdpPort, XdpReport, ZeroCopy};
pub use umem::{CopyMode, RingSizes, Umem};
