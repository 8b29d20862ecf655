//! One host of a lab: a network namespace, entered by children or by a thread of ours.
#![forbid(unsafe_code)]

use super::error::LabError;
use super::offload;
use super::packet_socket::PacketSocket;
use super::process::{self, Background, Finished, wait_until};
use super::tools;
use super::topology::Offloads;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where iproute2 keeps named network namespaces (ip-netns(8)).
pub(super) const NAMESPACES: &str = "/run/netns";

/// What a call of `ip` may take. It answers in milliseconds; an overloaded machine gets the rest.
pub(super) const IP_LIMIT: Duration = Duration::from_secs(30);

/// A host of a lab.
#[derive(Debug, Clone)]
pub struct Host {
    name: String,
    namespace: String,
    scratch: PathBuf,
}

impl Host {
    pub(super) fn new(name: &str, namespace: &str, scratch: &Path) -> Host {
        Host { name: name.to_string(), namespace: namespace.to_string(), scratch: scratch.to_path_buf() }
    }

    /// Its name in the lab: `a`, `b`, `c`, ...
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its network namespace, as `ip netns` lists it.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// A directory for files of this lab, removed with it.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// A command to run in the host; arguments, environment and the like can be added.
    ///
    /// # Errors
    /// [`LabError::MissingTool`].
    pub fn command(&self, program: &str) -> Result<Command, LabError> {
        let program = if program.contains('/') { PathBuf::from(program) } else { tools::find(program)? };
        let mut command = Command::new(tools::find("ip")?);
        command.args(["netns", "exec", &self.namespace]).arg(program);
        Ok(command)
    }

    /// Runs `words` (program and arguments) to the end, for at most `limit`. A failing child is no error here.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Timeout`], [`LabError::Io`].
    pub fn run(&self, words: &[&str], limit: Duration) -> Result<Finished, LabError> {
        process::run(&mut self.words(words)?, b"", limit)
    }

    /// Starts `words` in the background; its output goes to a log in the scratch directory.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Io`].
    pub fn spawn(&self, words: &[&str]) -> Result<Background, LabError> {
        self.spawn_command(&mut self.words(words)?)
    }

    /// Starts a command made by [`Host::command`] in the background.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Io`].
    pub fn spawn_command(&self, command: &mut Command) -> Result<Background, LabError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let program = command.get_args().nth(3).map(Path::new).and_then(Path::file_name).unwrap_or_default();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let log = format!("{}-{}-{}-{number}.log", self.name, program.to_string_lossy(), std::process::id());
        Background::start(command, &self.scratch.join(log))
    }

    fn words(&self, words: &[&str]) -> Result<Command, LabError> {
        let (program, arguments) =
            words.split_first().ok_or_else(|| LabError::Request("no command is given".to_string()))?;
        let mut command = self.command(program)?;
        command.args(arguments);
        Ok(command)
    }

    /// Runs `work` in a thread of its own that has entered the host. Sockets made there stay in the host.
    /// `/proc/sys/net` and `/proc/thread-self/net` are the host's for that thread, `/sys/class/net` is not.
    ///
    /// # Errors
    /// [`LabError::Io`] when the namespace cannot be entered; a panic of `work` goes on in the caller.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let enter = || self.enter_this_thread().map(|()| work());
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }

    /// Starts a thread in the host that goes on beside the caller.
    ///
    /// # Errors
    /// [`LabError::Io`] when no thread can be made; failing to enter is the thread's result.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T, LabError>>, LabError> {
        let host = self.clone();
        let builder = std::thread::Builder::new().name(format!("lab-{}", self.name));
        let started = builder.spawn(move || host.enter_this_thread().map(|()| work()));
        started.map_err(|e| LabError::io(format!("starting a thread in {}", self.name), e))
    }

    /// Moves the calling thread into the host for good; only for threads that end afterwards.
    fn enter_this_thread(&self) -> Result<(), LabError> {
        let path = Path::new(NAMESPACES).join(&self.namespace);
        let failed = |error: std::io::Error| LabError::io(format!("entering {}", path.display()), error);
        let file = File::open(&path).map_err(failed)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|e| failed(e.into()))
    }

    /// Sets a network sysctl of the host, `key` as in `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// [`LabError::Request`] for a key outside of `net.` (it would be the machine's), [`LabError::Io`].
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        if !key.starts_with("net.") {
            return Err(LabError::Request(format!("{key} is no network sysctl: it would change the machine itself")));
        }
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        let written = self.enter(|| std::fs::write(&path, value))?;
        written.map_err(|e| LabError::io(format!("writing {value} to {} in {}", path.display(), self.name), e))
    }

    /// Runs `ip -batch` lines in the host.
    ///
    /// # Errors
    /// [`LabError::Command`] with the line that `ip` refused.
    pub fn ip_batch(&self, lines: &str) -> Result<(), LabError> {
        if lines.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(tools::find("ip")?);
        command.args(["-n", &self.namespace, "-batch", "-"]);
        let done = process::run(&mut command, lines.as_bytes(), IP_LIMIT)?;
        if done.status.success() {
            return Ok(());
        }
        let output = format!("{}; the lines were:\n{lines}", done.stderr.trim());
        Err(LabError::Command { what: done.what, status: done.status.to_string(), output })
    }

    /// What `ip -json ARGUMENTS` prints in the host, for example `["route", "show"]`.
    ///
    /// # Errors
    /// [`LabError::Command`], [`LabError::Output`].
    pub fn ip_json(&self, arguments: &[&str]) -> Result<Value, LabError> {
        let mut command = Command::new(tools::find("ip")?);
        command.args(["-n", &self.namespace, "-json"]).args(arguments);
        let done = process::run(&mut command, b"", IP_LIMIT)?.success()?;
        if done.stdout.trim().is_empty() {
            return Ok(Value::Array(Vec::new()));
        }
        serde_json::from_str(&done.stdout).map_err(|e| LabError::output(done.what, e, &done.stdout))
    }

    /// Switches the offloads of a device on or off.
    ///
    /// # Errors
    /// [`LabError::Io`] with the kernel's reason.
    pub fn offloads(&self, device: &str, offloads: Offloads) -> Result<(), LabError> {
        let set = self.enter(|| offload::set(device, offloads))?;
        set.map_err(|e| LabError::io(format!("setting the offloads of {device} in {}", self.name), e))
    }

    /// A raw socket on a device of the host, for frames made by hand.
    ///
    /// # Errors
    /// [`LabError::Io`] when there is no such device.
    pub fn packet_socket(&self, device: &str) -> Result<PacketSocket, LabError> {
        let opened = self.enter(|| PacketSocket::open(device))?;
        opened.map_err(|e| LabError::io(format!("opening a packet socket on {device} in {}", self.name), e))
    }

    /// Waits until something in the host listens on a TCP port (IPv4 or IPv6); `server` must go on running.
    ///
    /// # Errors
    /// [`LabError::NotReached`], or the server's log if it ended.
    pub fn wait_listening(&self, port: u16, server: &mut Background, limit: Duration) -> Result<(), LabError> {
        wait_until(&format!("TCP port {port} in {}", self.name), limit, || {
            server.check()?;
            let tables = self.enter(|| {
                ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/thread-self/net/{name}")))
            })?;
            let listens = tables.into_iter().flatten().any(|table| table.lines().any(|line| is_listening(line, port)));
            Ok(if listens { Ok(()) } else { Err(format!("not listening; log: {}", server.log())) })
        })
    }

    /// Connects over TCP from within the host.
    ///
    /// # Errors
    /// [`LabError::Io`].
    pub fn connect(&self, to: SocketAddr, limit: Duration) -> Result<std::net::TcpStream, LabError> {
        let connected = self.enter(|| std::net::TcpStream::connect_timeout(&to, limit))?;
        connected.map_err(|e| LabError::io(format!("connecting from {} to {to}", self.name), e))
    }
}

/// Whether a line of /proc/net/tcp tells of a listening socket (state 0A) on `port`.
fn is_listening(line: &str, port: u16) -> bool {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let local = fields.next().unwrap_or_default();
    fields.nth(1) == Some("0A") && local.rsplit(':').next() == Some(format!("{port:04X}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_known_by_state_and_port() {
        let line = "   0: 00000000:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 1234 1";
        assert!(is_listening(line, 5201));
        assert!(!is_listening(line, 5202));
        assert!(!is_listening(&line.replace(" 0A ", " 01 "), 5201));
    }

    #[test]
    fn sysctls_of_the_machine_are_refused() {
        let host = Host::new("a", "no-such-namespace", Path::new("/tmp"));
        assert!(matches!(host.sysctl("kernel.panic", "1"), Err(LabError::Request(_))));
    }
}
