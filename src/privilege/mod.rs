//! Giving up privileges once the ports are open (DESIGN.md, issue 2 item 7): another user, only the capabilities still needed,
//! no way to gain any, the file system closed (Landlock) and the system calls narrowed (seccomp).
//!
//! What still needs root afterwards, re-opening a port that came back or restoring the NIC at the end, is done by a small
//! [`helper`] process that was started before.
//!
//! Order: capability bounding set, groups, gid, uid, capabilities, no_new_privs, Landlock, seccomp. All of these are set for
//! the calling thread and inherited by those that it makes, so [`drop`] refuses to work once there are several.

#![forbid(unsafe_code)]

pub mod helper;
mod paths;
mod self_test;
mod syscalls;

use std::path::PathBuf;

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};

pub use self_test::self_test;
pub use syscalls::Refusal;

use crate::control::access::Accounts;
use crate::failure::Failure;
use crate::snapshot::{Finding, Severity};

/// What is to be left.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The user to become, by name or number; None stays who it is (but loses capabilities all the same).
    pub user: Option<String>,
    /// Capabilities that the daemon goes on needing.
    pub keep: Vec<Capability>,
    /// Files and directories that stay readable.
    pub read: Vec<PathBuf>,
    /// Files and directories that stay writable (and readable).
    pub write: Vec<PathBuf>,
    /// Whether to close the file system.
    pub landlock: bool,
    /// What a system call off the list meets; None: no list.
    pub seccomp: Option<Refusal>,
}

impl Default for Plan {
    /// To the user `nobody`, with CAP_NET_ADMIN alone: neighbour requests and TAPs need it (rtnetlink(7)).
    fn default() -> Self {
        let read = ["/proc", "/sys/class/net", "/sys/devices", "/etc/passwd", "/etc/group"];
        Plan {
            user: Some("nobody".into()),
            keep: vec![Capability::CAP_NET_ADMIN],
            read: read.map(PathBuf::from).to_vec(),
            write: Vec::new(),
            landlock: true,
            seccomp: Some(Refusal::Error),
        }
    }
}

/// What was left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Effective uid.
    pub uid: u32,
    /// Effective gid.
    pub gid: u32,
    /// Permitted capabilities.
    pub capabilities: Vec<String>,
    /// Landlock: `full`, `partial`, `unsupported` by the kernel, or `off`.
    pub landlock: String,
    /// seccomp: `error`, `kill`, `log`, or `off`.
    pub seccomp: String,
}

impl Report {
    /// The lines of `ferrule doctor` about it.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |good: bool, subject: &str, text: String, mend: &str| Finding {
            severity: if good { Severity::Ok } else { Severity::Warning },
            subject: subject.to_owned(),
            text,
            mend: (!good).then(|| mend.to_owned()),
        };
        let capabilities = if self.capabilities.is_empty() { "none".to_owned() } else { self.capabilities.join(", ") };
        vec![
            finding(self.uid != 0, "user", format!("runs as uid {}", self.uid), "set user in [gateway] of the file"),
            finding(self.capabilities.len() <= 3, "capabilities", capabilities, "set user in [gateway] of the file"),
            finding(
                self.landlock == "full",
                "landlock",
                format!("file system closed: {}", self.landlock),
                "use a kernel of 5.13 or later with landlock in its list of security modules (lsm=landlock,...)",
            ),
            finding(
                matches!(self.seccomp.as_str(), "error" | "kill"),
                "seccomp",
                format!("system calls narrowed: {}", self.seccomp),
                "use a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)",
            ),
        ]
    }
}

fn told(what: &str) -> impl Fn(rustix::io::Errno) -> Failure + '_ {
    move |e| Failure::runtime(format!("cannot drop privileges: {what}: {e}"))
}

fn caps_told(what: &str) -> impl Fn(caps::errors::CapsError) -> Failure + '_ {
    move |e| Failure::runtime(format!("cannot drop privileges: {what}: {e}"))
}

/// Gives privileges up for good. Call it once, after everything that needs them and before the first thread.
///
/// # Errors
/// [`Failure::Input`] for a user that does not exist; [`Failure::Runtime`] when there are several threads or the kernel
/// refuses. The process must end then: some may be given up already.
pub fn drop(plan: &Plan) -> Result<Report, Failure> {
    single_threaded()?;
    let account = match &plan.user {
        Some(name) => Some(Accounts::default().user(name).ok_or_else(|| {
            Failure::input(format!("there is no user `{name}`: make one (useradd --system {name}) or name another"))
        })?),
        None => None,
    };
    let keep: CapsHashSet = plan.keep.iter().copied().collect();
    let permitted = caps::read(None, CapSet::Permitted).map_err(caps_told("capabilities"))?;
    if let Some(missing) = plan.keep.iter().find(|c| !permitted.contains(c)) {
        return Err(Failure::runtime(format!(
            "{missing} is needed and not there: run as root, or give it to the program"
        )));
    }
    // Without CAP_SETPCAP the bounding set cannot be narrowed; no_new_privs makes it meaningless anyway.
    if permitted.contains(&Capability::CAP_SETPCAP) {
        caps::clear(None, CapSet::Bounding).map_err(caps_told("bounding set"))?;
    }
    caps::clear(None, CapSet::Ambient).map_err(caps_told("ambient set"))?;
    if let Some((uid, gid)) = account {
        become_user(uid, gid)?;
    }
    caps::set(None, CapSet::Effective, &keep).map_err(caps_told("effective set"))?;
    caps::set(None, CapSet::Permitted, &keep).map_err(caps_told("permitted set"))?;
    caps::clear(None, CapSet::Inheritable).map_err(caps_told("inheritable set"))?;
    rustix::thread::set_no_new_privs(true).map_err(told("no_new_privs"))?;
    let landlock = if plan.landlock { paths::close(&plan.read, &plan.write)? } else { "off" };
    if let Some(refusal) = plan.seccomp {
        syscalls::narrow(refusal)?;
    }
    let mut capabilities: Vec<String> = caps::read(None, CapSet::Permitted)
        .map_err(caps_told("capabilities"))?
        .iter()
        .map(ToString::to_string)
        .collect();
    capabilities.sort();
    Ok(Report {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        capabilities,
        landlock: landlock.to_owned(),
        seccomp: plan.seccomp.map_or("off", Refusal::label).to_owned(),
    })
}

fn single_threaded() -> Result<(), Failure> {
    let tasks = std::fs::read_dir("/proc/self/task").map(Iterator::count);
    match tasks {
        Ok(1) => Ok(()),
        Ok(n) => Err(Failure::runtime(format!("privileges are dropped before threads start, and there are {n}"))),
        Err(e) => Err(Failure::runtime(format!("cannot count threads in /proc/self/task: {e}"))),
    }
}

fn become_user(uid: u32, gid: u32) -> Result<(), Failure> {
    if uid == 0 {
        return Err(Failure::input("the user to become is root: name one without privileges"));
    }
    if rustix::process::geteuid().as_raw() == uid {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // Capabilities survive the change of user until they are narrowed below (prctl(2), PR_SET_KEEPCAPS).
    rustix::thread::set_keep_capabilities(true).map_err(told("keep capabilities"))?;
    rustix::thread::set_thread_groups(&[gid]).map_err(told("groups"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(told("group"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(told("user"))?;
    rustix::thread::set_keep_capabilities(false).map_err(told("keep capabilities"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_are_refused() {
        // The test runner has a thread of its own beside this one.
        let Err(Failure::Runtime(text)) = drop(&Plan::default()) else { panic!("dropped in the test runner") };
        assert!(text.contains("before threads start"), "{text}");
    }

    #[test]
    fn root_is_no_user_to_become() {
        assert!(matches!(become_user(0, 0), Err(Failure::Input(_))));
    }

    #[test]
    fn doctor_tells_what_is_not_closed() {
        let open = Report { landlock: "unsupported".into(), seccomp: "off".into(), ..Report::default() };
        let severities: Vec<_> = open.findings().iter().map(|f| f.severity).collect();
        assert_eq!(severities, [Severity::Warning, Severity::Ok, Severity::Warning, Severity::Warning]);
        let closed = Report {
            uid: 65_534,
            gid: 65_534,
            capabilities: vec!["CAP_NET_ADMIN".into()],
            landlock: "full".into(),
            seccomp: "error".into(),
        };
        assert!(closed.findings().iter().all(|f| f.severity == Severity::Ok && f.mend.is_none()));
    }
}
