//! The state file of a lab: what it made, so that `down` removes this and nothing else, even after a crash.
//!
//! It is written before the first namespace is made, with all names in it, so there is no moment at which something
//! exists that no file tells of. The names carry the process id, the start time and a counter: none of them can belong
//! to somebody else.
#![forbid(unsafe_code)]

use super::error::LabError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The content of `lab-NAME.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabState {
    /// Format of this file.
    pub version: u32,
    /// The lab's name.
    pub name: String,
    /// The process that made it.
    pub owner: u32,
    /// That process's start time in clock ticks after boot (proc(5), field 22), for a process id used again.
    pub owner_start: u64,
    /// Whether the lab outlives its owner.
    pub kept: bool,
    /// Host name -> network namespace name.
    pub namespaces: BTreeMap<String, String>,
    /// Scratch directory (logs, served files), removed with the lab.
    pub scratch: PathBuf,
}

impl LabState {
    /// The state file of the lab `name` in `directory`.
    pub fn path(directory: &Path, name: &str) -> PathBuf {
        directory.join(format!("lab-{name}.json"))
    }

    /// Writes the file anew; refused if there is one, so that of two labs of one name only one comes up.
    ///
    /// # Errors
    /// [`LabError::Exists`], [`LabError::Io`].
    pub fn create(&self, directory: &Path) -> Result<PathBuf, LabError> {
        let path = LabState::path(directory, &self.name);
        fs::create_dir_all(directory).map_err(|e| LabError::io(format!("creating {}", directory.display()), e))?;
        // The whole text under another name first, then a link: the file is never seen half written.
        let draft = directory.join(format!(".lab-{}.{}.tmp", self.name, self.owner));
        self.write(&draft)?;
        let linked = fs::hard_link(&draft, &path);
        let _ = fs::remove_file(&draft);
        match linked {
            Ok(()) => Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                Err(LabError::Exists { name: self.name.clone(), state: path })
            }
            Err(error) => Err(LabError::io(format!("creating {}", path.display()), error)),
        }
    }

    /// Replaces the file by this state in one step.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn replace(&self, path: &Path) -> Result<(), LabError> {
        let draft = path.with_extension(format!("{}.tmp", self.owner));
        self.write(&draft)?;
        fs::rename(&draft, path).map_err(|e| LabError::io(format!("writing {}", path.display()), e))
    }

    fn write(&self, path: &Path) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).expect("plain data has a JSON form");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|e| LabError::io(format!("writing {}", path.display()), e))
    }

    /// Reads the state of the lab `name`.
    ///
    /// # Errors
    /// [`LabError::NoLab`], [`LabError::Io`], [`LabError::Output`] if the file is not what we write.
    pub fn read(directory: &Path, name: &str) -> Result<LabState, LabError> {
        let path = LabState::path(directory, name);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => LabError::NoLab { name: name.to_string(), state: path.clone() },
            _ => LabError::io(format!("reading {}", path.display()), error),
        })?;
        let state: LabState =
            serde_json::from_str(&text).map_err(|e| LabError::output(path.display().to_string(), e, &text))?;
        if state.version != VERSION || state.name != name {
            let reason = format!("version {} of lab {}, expected {VERSION} of {name}", state.version, state.name);
            return Err(LabError::output(path.display().to_string(), reason, &text));
        }
        Ok(state)
    }

    /// The names of all labs in `directory`.
    pub fn list(directory: &Path) -> Vec<String> {
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        let name = |entry: fs::DirEntry| {
            let file = entry.file_name().into_string().ok()?;
            Some(file.strip_prefix("lab-")?.strip_suffix(".json")?.to_string())
        };
        let mut names: Vec<String> = entries.flatten().filter_map(name).collect();
        names.sort();
        names
    }

    /// Whether the process that made the lab is gone.
    pub fn is_orphan(&self) -> bool {
        process_start(self.owner) != Some(self.owner_start)
    }
}

/// Format of the state file.
pub const VERSION: u32 = 1;

/// Start time of a process in clock ticks after boot; `None` if there is no such process.
pub fn process_start(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name (field 2) may hold anything, spaces and parentheses too; field 3 follows its last parenthesis.
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str) -> LabState {
        let owner = std::process::id();
        LabState {
            version: VERSION,
            name: name.to_string(),
            owner,
            owner_start: process_start(owner).unwrap(),
            kept: false,
            namespaces: BTreeMap::from([("a".to_string(), "ferrule-x-a".to_string())]),
            scratch: PathBuf::from("/nowhere"),
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_a_second_lab_of_the_name_is_refused() {
        let directory = std::env::temp_dir().join(format!("ferrule-state-{}", std::process::id()));
        let mut state = sample("one");
        let path = state.create(&directory).unwrap();
        assert_eq!(LabState::read(&directory, "one").unwrap(), state);
        assert!(matches!(state.create(&directory), Err(LabError::Exists { .. })));
        state.kept = true;
        state.replace(&path).unwrap();
        assert!(LabState::read(&directory, "one").unwrap().kept);
        assert_eq!(LabState::list(&directory), ["one"], "no draft is left behind or listed");
        assert!(matches!(LabState::read(&directory, "two"), Err(LabError::NoLab { .. })));
        fs::write(&path, "{").unwrap();
        assert!(matches!(LabState::read(&directory, "one"), Err(LabError::Output { .. })));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_process_id_used_again_is_no_owner() {
        let mut state = sample("x");
        assert!(!state.is_orphan());
        state.owner_start += 1;
        assert!(state.is_orphan());
    }
}
