//! Taking a lab down by its state file: the processes in its namespaces, the namespaces, its files. Nothing else.
#![forbid(unsafe_code)]

use super::error::LabError;
use super::host::{IP_LIMIT, NAMESPACES};
use super::process::{self, wait_until};
use super::state::LabState;
use super::tools;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time that processes in the lab get between SIGTERM and SIGKILL: the gateway restores its ports in it.
const GRACE: Duration = Duration::from_secs(5);

/// Takes down the labs in `directory` whose owner was killed; their names.
///
/// # Errors
/// As [`down`].
pub fn sweep(directory: &Path) -> Result<Vec<String>, LabError> {
    let mut swept = Vec::new();
    for name in LabState::list(directory) {
        match LabState::read(directory, &name) {
            Ok(state) if !state.kept && state.is_orphan() => {
                remove(&state, &LabState::path(directory, &name))?;
                swept.push(name);
            }
            // Another process swept it at the same moment.
            Ok(_) | Err(LabError::NoLab { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}

/// Takes a lab down: ends the processes in its namespaces, removes those, its scratch directory and its state file.
/// Gives the state that it had.
///
/// # Errors
/// [`LabError::NoLab`]; otherwise what could not be removed, with the state file left in place for another try.
pub fn down(directory: &Path, name: &str) -> Result<LabState, LabError> {
    let state = LabState::read(directory, name)?;
    remove(&state, &LabState::path(directory, name))?;
    Ok(state)
}

fn remove(state: &LabState, path: &Path) -> Result<(), LabError> {
    let there = |namespace: &&String| Path::new(NAMESPACES).join(namespace).exists();
    let namespaces: Vec<&String> = state.namespaces.values().filter(there).collect();
    end_processes(&namespaces)?;
    let batch: String = namespaces.iter().map(|name| format!("netns delete {name}\n")).collect();
    if !batch.is_empty() {
        let done = ip_batch(&batch)?;
        if let Some(left) = namespaces.iter().copied().find(there) {
            let output = format!("{left} is still there: {}", done.stderr.trim());
            return Err(LabError::Command { what: done.what, status: done.status.to_string(), output });
        }
    }
    for removed in [fs::remove_dir_all(&state.scratch), fs::remove_file(path)] {
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(LabError::io(format!("removing the files of lab {}", state.name), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Ends all processes whose network namespace is one of these: SIGTERM, after [`GRACE`] SIGKILL.
fn end_processes(namespaces: &[&String]) -> Result<(), LabError> {
    let inodes: Vec<u64> =
        namespaces.iter().filter_map(|name| Some(fs::metadata(Path::new(NAMESPACES).join(name)).ok()?.ino())).collect();
    for (signal, limit) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE)] {
        let mut signalled = Vec::new();
        let gone = wait_until("the processes in the lab to end", limit, || {
            let inside = processes_in(&inodes);
            for pid in inside.iter().filter(|pid| !signalled.contains(*pid)) {
                send(*pid, &inodes, signal);
            }
            signalled.clone_from(&inside);
            Ok(if inside.is_empty() { Ok(()) } else { Err(format!("process ids {inside:?}")) })
        });
        match gone {
            Err(error) if signal == Signal::KILL => return Err(error),
            Err(_) => {}
            Ok(()) => break,
        }
    }
    Ok(())
}

fn processes_in(inodes: &[u64]) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own = std::process::id() as i32;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != own && is_inside(*pid, inodes)).collect()
}

/// A zombie has no namespace any more, so it does not count.
fn is_inside(pid: i32, inodes: &[u64]) -> bool {
    let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/net")) else { return false };
    let text = link.to_string_lossy();
    let inode = text.strip_prefix("net:[").and_then(|rest| rest.strip_suffix(']')).and_then(|inode| inode.parse().ok());
    inode.is_some_and(|inode: u64| inodes.contains(&inode))
}

/// Signals through a pidfd and looks again after opening it: a process id used anew in between is not hit.
fn send(pid: i32, inodes: &[u64], signal: Signal) {
    let Some(id) = Pid::from_raw(pid) else { return };
    if let Ok(pidfd) = pidfd_open(id, PidfdFlags::empty())
        && is_inside(pid, inodes)
    {
        // It may have ended by itself, which is as good.
        let _ = pidfd_send_signal(&pidfd, signal);
    }
}

/// Runs `ip -batch` lines outside of any host, going on after a line that fails.
pub(super) fn ip_batch(lines: &str) -> Result<process::Finished, LabError> {
    let mut command = Command::new(tools::find("ip")?);
    process::run(command.args(["-force", "-batch", "-"]), lines.as_bytes(), IP_LIMIT)
}
