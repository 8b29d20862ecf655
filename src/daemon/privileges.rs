//! The daemon's side of giving up privileges: whom it becomes, what it keeps, and what it asks of its helper afterwards.
//!
//! Kept: CAP_NET_ADMIN, for neighbour requests, nf_tables, links, addresses and the settings under /proc/sys/net (which the kernel opens to
//! whoever has it); and CAP_IPC_LOCK where locked memory is limited. Asked of the `helper`: AF_PACKET and AF_XDP sockets, the redirect program, TAPs, restore records and
//! configuration files, which belong to root.

#![forbid(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caps::{CapSet, Capability};
use ferrule_config::gateway::Gateway as Config;
use ferrule_dataplane::port::xdp::Acquired;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;

use super::helper::{self, Charter};
use super::ipfw::Gathered;
use crate::control::access::Accounts;
use crate::failure::Failure;
use crate::kernel::{KernelError, RecordKeeper};
use crate::privilege::helper::Helper;
use crate::privilege::{self, Plan, Report};
use crate::snapshot::{Finding, Severity};

/// The user where the file names none.
const DEFAULT_USER: &str = "nobody";
/// Readable beside what [`Plan`] has: facts for `doctor`.
const READ: [&str; 1] = ["/sys/kernel/mm"];
/// Writable: settings of interfaces that came back.
const WRITE: [&str; 1] = ["/proc/sys/net"];

/// Whom the daemon is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// This user.
    User(String),
    /// Nobody else, for this reason.
    Stay(String),
}

/// Reads it off the configuration; nothing is changed yet.
///
/// # Errors
/// [`Failure::Input`] for a user that does not exist.
pub fn whom(config: &Config) -> Result<Whom, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Whom::Stay(
            "not started as root: it stays who it is, with the capabilities it was given".to_owned(),
        ));
    }
    let name = config.engine.user.as_ref().map_or(DEFAULT_USER, |user| &user.value);
    match Accounts::default().user(name) {
        Some((0, _)) => Ok(Whom::Stay(format!("user = {name:?} in [gateway]: it stays root"))),
        Some(_) => Ok(Whom::User(name.to_owned())),
        None => Err(Failure::input(format!(
            "[gateway] user: there is no user {name}; make one (useradd --system {name}), name another, or stay root with \
             user = \"root\""
        ))),
    }
}

/// What became of the daemon's privileges.
pub enum Privileges {
    /// Given up.
    Dropped(Report, Arc<Assistant>),
    /// Not, and why.
    Kept(String),
}

impl Privileges {
    /// Whom to ask for what is not ours to do any more.
    pub fn assistant(&self) -> Option<&Arc<Assistant>> {
        match self {
            Privileges::Dropped(_, assistant) => Some(assistant),
            Privileges::Kept(_) => None,
        }
    }

    /// The lines of `ferrule doctor` about it.
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Privileges::Dropped(report, assistant) => {
                let mut findings = report.findings();
                findings.push(Finding {
                    severity: Severity::Ok,
                    subject: "privileged helper".to_owned(),
                    text: format!("process {}, opens ports again and keeps records", assistant.helper.pid()),
                    mend: None,
                });
                findings
            }
            Privileges::Kept(why) => vec![Finding {
                severity: Severity::Warning,
                subject: "privileges".to_owned(),
                text: format!("not given up: {why}"),
                mend: Some("start ferrule as root, with user in [gateway] of the file naming another user".to_owned()),
            }],
        }
    }
}

/// Gives privileges up; no thread may run yet.
///
/// # Errors
/// As [`privilege::drop`]: the process must end then.
pub fn drop(user: &str) -> Result<Report, Failure> {
    let mut plan = Plan { user: Some(user.to_owned()), write: WRITE.map(PathBuf::from).to_vec(), ..Plan::default() };
    plan.read.extend(READ.map(PathBuf::from));
    plan.keep.extend(lock_memory()?);
    privilege::drop(&plan)
}

/// CAP_IPC_LOCK, where the limit of locked memory could not be lifted: an AF_XDP port that is opened again registers the packet
/// memory anew, which locks it.
fn lock_memory() -> Result<Option<Capability>, Failure> {
    let lock = Capability::CAP_IPC_LOCK;
    let limited = getrlimit(Resource::Memlock).current.is_some();
    let has = caps::has_cap(None, CapSet::Permitted, lock);
    let has = has.map_err(|e| Failure::runtime(format!("cannot read the capabilities: {e}")))?;
    Ok((limited && has).then_some(lock))
}

/// The privileged helper, as the daemon asks it.
pub struct Assistant {
    helper: Helper,
}

impl fmt::Debug for Assistant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Assistant").field(&self.helper.pid()).finish()
    }
}

impl Assistant {
    /// Starts the helper: this very program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start() -> Result<Assistant, Failure> {
        let program =
            std::env::current_exe().map_err(|e| Failure::runtime(format!("cannot find this program: {e}")))?;
        Ok(Assistant { helper: Helper::start(&program)? })
    }

    fn ask(
        &self,
        action: &str,
        arguments: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(serde_json::Value, Vec<OwnedFd>), Failure> {
        self.helper.call(action, arguments, fds)
    }

    /// Tells what it may do, once and for all. `lock` is that of the control socket, held until the helper is done.
    ///
    /// # Errors
    /// When the helper is gone.
    pub fn begin(&self, charter: &Charter, lock: BorrowedFd<'_>) -> Result<(), Failure> {
        self.ask(helper::BEGIN, charter, &[lock]).map(|_| ())
    }

    /// The privileged half of opening an AF_XDP port.
    ///
    /// # Errors
    /// What the driver says.
    pub fn open_xdp(&self, request: &helper::XdpRequest) -> Result<Acquired, Failure> {
        let (text, fds) = self.ask(helper::OPEN_XDP, request, &[])?;
        let text = text.as_str().unwrap_or_default();
        Acquired::from_message(text, fds).map_err(|e| Failure::runtime(format!("privileged helper: {e}")))
    }

    /// Puts a socket into the redirect program's map.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn claim(&self, map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(helper::CLAIM, &json!({ "queue": queue }), &[map, socket]).map(|_| ()).map_err(io::Error::other)
    }

    /// An AF_PACKET socket.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn packet_socket(&self) -> io::Result<OwnedFd> {
        let (_, fds) = self.ask(helper::PACKET_SOCKET, &json!({}), &[]).map_err(io::Error::other)?;
        fds.into_iter().next().ok_or_else(|| io::Error::other("the privileged helper gave no socket"))
    }

    /// A TAP's name and queues.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_tap(&self, request: &helper::TapRequest) -> Result<(String, Vec<OwnedFd>), Failure> {
        let (name, fds) = self.ask(helper::OPEN_TAP, request, &[])?;
        Ok((name.as_str().unwrap_or_default().to_owned(), fds))
    }

    /// A host interface that was deleted, made again: a descriptor for each queue.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open_host_tap(&self, request: &helper::HostTapRequest) -> Result<Vec<OwnedFd>, KernelError> {
        let told = |failure: Failure| {
            KernelError::netlink(format!("making the TAP {}", request.interface), io::Error::other(failure))
        };
        self.ask(helper::OPEN_HOST_TAP, request, &[]).map(|(_, fds)| fds).map_err(told)
    }

    /// The bytes of a configuration file.
    ///
    /// # Errors
    /// [`Failure::Input`] when it cannot be read, or may not be.
    pub fn read_config(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        let (_, fds) = self.ask(helper::READ_CONFIG, &json!({ "path": path }), &[]).map_err(|failure| {
            let text = failure.to_string();
            let own = format!("privileged helper: {}: ", helper::READ_CONFIG);
            Failure::input(text.strip_prefix(&own).unwrap_or(&text).to_owned())
        })?;
        let mut bytes = Vec::new();
        let Some(fd) = fds.into_iter().next() else { return Err(Failure::runtime("privileged helper: no file")) };
        match File::from(fd).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(e) => Err(Failure::runtime(format!("{}: {e}", path.display()))),
        }
    }

    /// Has the script of a configuration run, and gets the calls that it made.
    ///
    /// # Errors
    /// When the helper may not, or is gone. A script that failed is no error of this function.
    pub fn run_script(&self, config: &Path, patience: Duration) -> Result<Gathered, Failure> {
        let arguments = json!({ "path": config });
        let (_, fds) = self.helper.call_within(patience, helper::RUN_SCRIPT, &arguments, &[])?;
        let Some(fd) = fds.into_iter().next() else { return Err(Failure::runtime("privileged helper: no file")) };
        let told = |e: &dyn fmt::Display| Failure::runtime(format!("privileged helper: what the script made: {e}"));
        let mut bytes = Vec::new();
        File::from(fd).read_to_end(&mut bytes).map_err(|e| told(&e))?;
        serde_json::from_slice(&bytes).map_err(|e| told(&e))
    }

    /// A file of the firewall's log, after the one that is there was put aside where that is asked.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open_log(&self, path: &Path, aside: bool) -> io::Result<File> {
        let arguments = json!({ "path": path, "aside": aside });
        let (_, fds) = self.ask(helper::OPEN_LOG, &arguments, &[]).map_err(io::Error::other)?;
        fds.into_iter().next().map(File::from).ok_or_else(|| io::Error::other("the privileged helper gave no file"))
    }

    /// What becomes of the box if this process is killed.
    ///
    /// # Errors
    /// When the helper is gone.
    pub fn set_on_exit(&self, kernel: bool) -> Result<(), Failure> {
        self.ask(helper::ON_EXIT, &json!({ "kernel": kernel }), &[]).map(|_| ())
    }

    /// The box is left as it is to be: the helper has nothing to put right but our socket file.
    ///
    /// # Errors
    /// When the helper is gone.
    pub fn ended(&self) -> Result<(), Failure> {
        self.ask(helper::ENDED, &json!({}), &[]).map(|_| ())
    }

    fn record(&self, action: &str, path: &Path, fds: &[BorrowedFd<'_>]) -> Result<(), KernelError> {
        let told = |failure: Failure| KernelError::file(path, io::Error::other(failure));
        self.ask(action, &json!({ "path": path }), fds).map(|_| ()).map_err(told)
    }
}

impl RecordKeeper for Assistant {
    fn store(&self, path: &Path, text: &str) -> Result<(), KernelError> {
        let memory = in_memory(text.as_bytes()).map_err(|e| KernelError::file(path, e))?;
        self.record(helper::STORE_RECORD, path, &[memory.as_fd()])
    }

    fn remove(&self, path: &Path) -> Result<(), KernelError> {
        self.record(helper::REMOVE_RECORD, path, &[])
    }
}

/// Bytes as a file without a name, to be handed over: messages are short.
pub fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("ferrule", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
