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
    /// Features with which a veth takes unfinished frames from the kernel, likewise.
    #[serde(default)]
    pub(crate) finishing: Vec<String>,
    pub(crate) configuration: Configuration,
}

impl NicRecord {
    /// Follows the NIC to the device that `fresh` was read from. One that was made anew comes bare: what the first one had is
    /// to be given back, and what this one got meanwhile.
    pub(crate) fn moved_to(&mut self, fresh: NicRecord) {
        let was = std::mem::replace(&mut self.ifindex, fresh.ifindex);
        if was != fresh.ifindex {
            self.configuration = self.configuration.moved(was, fresh.ifindex);
            self.configuration.merge(fresh.configuration);
        }
    }
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
        let record = Record::parse(&text).map_err(|why| KernelError::Record { path: path.to_owned(), why })?;
        Ok(Some(record).filter(|record| record.boot == boot()))
    }

    /// Writes the record, whole or not at all.
    pub(crate) fn store(&self, keeper: &dyn RecordKeeper, path: &Path) -> Result<(), KernelError> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| KernelError::file(path, io::Error::from(error)))?;
        keeper.store(path, &text)
    }

    /// Reads a record from its text; what could lead a later start out of the settings of one interface is refused.
    fn parse(text: &str) -> Result<Record, String> {
        let record: Record = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if record.version != VERSION {
            return Err(format!("its version is {}, this ferrule writes {VERSION}", record.version));
        }
        match record.nic.iter().flat_map(|nic| &nic.settings).find(|setting| !setting.is_sane()) {
            Some(setting) => Err(format!("{}/{} is no setting of an interface", setting.tree, setting.key)),
            None => Ok(record),
        }
    }
}

/// Where records are written: by ourselves, or by a privileged helper once we may not.
pub trait RecordKeeper: std::fmt::Debug + Send + Sync {
    /// Writes a record, whole or not at all.
    ///
    /// # Errors
    /// [`KernelError::File`] and others, when it was not written.
    fn store(&self, path: &Path, text: &str) -> Result<(), KernelError>;

    /// Removes a record; one that is not there is no error.
    ///
    /// # Errors
    /// [`KernelError::File`] and others, when it is still there.
    fn remove(&self, path: &Path) -> Result<(), KernelError>;
}

/// Records written by this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnRecords;

impl RecordKeeper for OwnRecords {
    fn store(&self, path: &Path, text: &str) -> Result<(), KernelError> {
        let fail = |error| KernelError::file(path, error);
        let directory = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(fail)?;
        let draft = path.with_extension("new");
        let mut file = fs::File::create(&draft).map_err(fail)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
        fs::rename(&draft, path).map_err(fail)
    }

    fn remove(&self, path: &Path) -> Result<(), KernelError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(KernelError::file(path, error)),
            _ => Ok(()),
        }
    }
}

/// The records of these interfaces and no others, for a helper that keeps them on behalf of a process it does not trust.
#[derive(Debug)]
pub struct ChosenRecords {
    paths: Vec<(String, PathBuf)>,
}

impl ChosenRecords {
    /// Those of `names`, host interfaces of the calling thread's network namespace.
    pub fn new(directory: &Path, names: &[String]) -> ChosenRecords {
        ChosenRecords { paths: names.iter().map(|name| (name.clone(), Record::path(directory, name))).collect() }
    }

    fn name(&self, path: &Path) -> Result<&str, KernelError> {
        let found = self.paths.iter().find(|(_, chosen)| chosen == path).map(|(name, _)| name.as_str());
        found.ok_or_else(|| KernelError::Record { path: path.to_owned(), why: "it is no record of a port".to_owned() })
    }
}

impl RecordKeeper for ChosenRecords {
    fn store(&self, path: &Path, text: &str) -> Result<(), KernelError> {
        let name = self.name(path)?;
        let broken = |why| KernelError::Record { path: path.to_owned(), why };
        let record = Record::parse(text).map_err(broken)?;
        if record.name != name {
            return Err(broken(format!("it is about {}, not {name}", record.name)));
        }
        record.store(&OwnRecords, path)
    }

    fn remove(&self, path: &Path) -> Result<(), KernelError> {
        self.name(path)?;
        OwnRecords.remove(path)
    }
}

/// A port that an earlier run has left a record of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Its name.
    pub name: String,
    /// It has a NIC, which is closed; a VLAN has none, and only its addresses are noted.
    pub has_nic: bool,
}

/// What runs of this boot have left in the network namespace of the calling thread, by name.
///
/// # Errors
/// [`KernelError::File`] when the directory cannot be read; none is no error. [`KernelError::Record`].
pub fn left(directory: &Path) -> Result<Vec<Left>, KernelError> {
    let prefix = format!("restore-{}-", network_namespace());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(KernelError::file(directory, error)),
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.starts_with(&prefix) && n.ends_with(".json")) else { continue };
        if let Some(record) = Record::load(&directory.join(name))? {
            found.push(Left { has_nic: record.nic.is_some(), name: record.name });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Removes the record of a VLAN port, whose interface went with its process. One that is not there is no error, and one of
/// a NIC stays.
///
/// # Errors
/// When it cannot be read or removed.
pub fn remove_vlan_record(name: &str, directory: &Path) -> Result<(), KernelError> {
    let path = Record::path(directory, name);
    match Record::load(&path)? {
        Some(Record { nic: Some(_), .. }) => Ok(()),
        _ => OwnRecords.remove(&path),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, tree: &str, key: &str) -> String {
        let nic = NicRecord {
            ifindex: 7,
            phy_name: format!("{name}.phy"),
            mac: None,
            mtu: 1500,
            flags: 0,
            settings: vec![Setting::new(tree, key, 1)],
            stripping: Vec::new(),
            finishing: Vec::new(),
            configuration: Configuration::default(),
        };
        serde_json::to_string(&Record::new(name, Some(nic))).unwrap()
    }

    #[test]
    fn a_helper_keeps_the_records_of_its_ports_alone() {
        let directory = std::env::temp_dir().join(format!("ferrule-records-{}", std::process::id()));
        let keeper = ChosenRecords::new(&directory, &["em0".to_owned()]);
        let path = Record::path(&directory, "em0");
        keeper.store(&path, &record("em0", "ipv4/conf", "rp_filter")).unwrap();
        assert_eq!(Record::load(&path).unwrap().unwrap().name, "em0");

        let refused = |path: &Path, text: &str| keeper.store(path, text).unwrap_err().to_string();
        assert!(refused(&directory.join("passwd"), &record("em0", "ipv4/conf", "rp_filter")).contains("no record"));
        assert!(refused(&path, &record("em1", "ipv4/conf", "rp_filter")).contains("not em0"));
        for (tree, key) in [("../../etc", "rp_filter"), ("ipv4/conf", "../../../../../etc/passwd"), ("ipv4/conf", "")] {
            assert!(refused(&path, &record("em0", tree, key)).contains("no setting"), "{tree} {key}");
        }
        assert!(refused(&path, "{}").contains("missing field"));
        assert!(keeper.remove(&directory.join("passwd")).is_err());
        keeper.remove(&path).unwrap();
        assert!(Record::load(&path).unwrap().is_none());
        fs::remove_dir(&directory).unwrap();
    }
}
