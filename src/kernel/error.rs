//! What can go wrong between Ferrule and the kernel, each with what to do about it.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;

/// An error of the kernel side. Its text says what was tried, what the kernel said and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// A netlink socket could not be opened or used.
    #[error("netlink: {action}: {source}")]
    Netlink {
        /// What was being done.
        action: String,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel refused a request for lack of a capability.
    #[error("{action} needs {capability}; run as root, or: setcap {capability}+ep $(command -v ferrule)")]
    Capability {
        /// What was being done.
        action: String,
        /// The capability by its name in capabilities(7).
        capability: &'static str,
    },
    /// There is no such device.
    #[error("there is no device {name}; there are: {existing}")]
    NoDevice {
        /// The name asked for.
        name: String,
        /// What exists, comma-separated.
        existing: String,
    },
    /// The name leaves no room for the suffix of the renamed NIC.
    #[error(
        "the name {name} is too long: the NIC becomes {name}.phy and Linux allows 15 characters; rename it first: ip link set {name} name SHORTER"
    )]
    NameTooLong {
        /// The name asked for.
        name: String,
    },
    /// Something else holds the name or the NIC.
    #[error("{name} is already taken: {why}")]
    Taken {
        /// The device.
        name: String,
        /// By whom, and what to do.
        why: String,
    },
    /// The kernel cannot keep the NIC silent in a way that ends with this process.
    #[error(
        "the kernel would receive the packets of {device} a second time: {why}; the port refuses to run (needs nf_tables with owner flag, Linux 5.12 or later, CONFIG_NF_TABLES_NETDEV)"
    )]
    CannotSilence {
        /// The NIC.
        device: String,
        /// What the kernel said.
        why: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A restore record makes no sense.
    #[error("{path}: {why}; look at it, put the NIC back by hand if need be, then remove the file")]
    Record {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The control thread is gone.
    #[error("the kernel control thread has ended; restart ferrule")]
    Ended,
}

impl KernelError {
    /// Wraps an I/O error of a netlink exchange; a refused permission becomes [`KernelError::Capability`].
    pub(crate) fn netlink(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        if source.raw_os_error() == Some(libc::EPERM) {
            KernelError::Capability { action, capability: "cap_net_admin" }
        } else {
            KernelError::Netlink { action, source }
        }
    }

    /// Wraps an I/O error of a file.
    pub(crate) fn file(path: impl Into<PathBuf>, source: io::Error) -> Self {
        KernelError::File { path: path.into(), source }
    }
}
