//! The record of what was changed on a NIC, written before the change, so that a clean exit puts everything back and a
//! start after a kill finds the NIC again.
//!
//! One JSON file for each port and network namespace, `restore-NAMESPACE-NAME.json`, replaced atomically.
#![forbid(unsafe_code)]

use super::rtnl::Configuration;
use crate::kernel::KernelError;
use crate::kernel::sysctl::Setting;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Format of the file; others are refused.
const VERSION: u32 = 1;

/// A renamed NIC as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NicRecord {
    /// Its index, which survives renaming.
    pub(crate) ifindex: u32,
    /// The name it has while we run.
    pub(crate) phy_name: String,
    pub(crate) mac: Option<[u8; 6]>,
    pub(crate) mtu: u32,
    /// IFF_* as found.
    pub(crate) flags: u32,
    pub(crate) settings: Vec<Setting>,
    /// Features with which it takes VLAN tags out of frames, of those that were on and can be switched.
    #[serde(default)]
    pub(crate) stripping: Vec<String>,
    pub(crate) configuration: Configuration,
}

/// What a host interface had last, to put back after a kill: it vanishes with the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostRecord {
    /// Its index then.
    pub(crate) ifindex: u32,
    pub(crate) configuration: Configuration,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    boot: String,
    /// The port's name.
    pub(crate) name: String,
    /// None for VLAN ports, which have no NIC of their own.
    pub(crate) nic: Option<NicRecord>,
    pub(crate) host: Option<HostRecord>,
}

impl Record {
    pub(crate) fn new(name: &str, nic: Option<NicRecord>) -> Self {
        Record { version: VERSION, boot: boot(), name: name.to_owned(), nic, host: None }
    }

    /// Where the record of a port lies.
    pub(crate) fn path(directory: &Path, name: &str) -> PathBuf {
        directory.join(format!("restore-{}-{name}.json", network_namespace()))
    }

    /// Reads the record; `None` when there is none or it is of an earlier boot, whose interfaces are gone.
    pub(crate) fn load(path: &Path) -> Result<Option<Record>, KernelError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(KernelError::file(path, error)),
        };
        let broken = |why: String| KernelError::Record { path: path.to_owned(), why };
        let record: Record = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
        if record.version != VERSION {
            return Err(broken(format!("its version is {}, this ferrule writes {VERSION}", record.version)));
        }
        Ok(Some(record).filter(|record| record.boot == boot()))
    }

    /// Writes the record, whole or not at all.
    pub(crate) fn store(&self, path: &Path) -> Result<(), KernelError> {
        let fail = |error| KernelError::file(path, error);
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(fail)?;
        let draft = path.with_extension("new");
        let text = serde_json::to_string_pretty(self).map_err(|error| fail(error.into()))?;
        let mut file = fs::File::create(&draft).map_err(fail)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&draft, path).map_err(fail)
    }

    pub(crate) fn remove(path: &Path) -> Result<(), KernelError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(KernelError::file(path, error)),
            _ => Ok(()),
        }
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The inode number of the calling thread's network namespace.
fn network_namespace() -> String {
    let link = fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    let text = link.to_string_lossy().into_owned();
    text.chars().filter(char::is_ascii_digit).collect()
}
