//! What `ferrule lab up | down | exec | demo` does; the command line fills the options in.
#![forbid(unsafe_code)]

use super::demo::{self, Counters};
use super::error::LabError;
use super::gateway::GatewayRouter;
use super::host::Host;
use super::removal;
use super::running::{Lab, Router, host_of};
use super::state::LabState;
use super::topology::{DEFAULT_DIRECTORY, Offloads, Topology};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// The lab's name when the user gives none.
pub const DEFAULT_NAME: &str = "lab";

/// What the user can choose. `LabOptions::default()` is one client, one server, one queue, MTU 1500, both families.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// Name of the lab.
    pub name: String,
    /// Directory of its state file.
    pub directory: PathBuf,
    /// Queue pairs of each port of B.
    pub queues: u16,
    /// MTU of the links, bytes.
    pub mtu: u32,
    /// Hosts on each side.
    pub hosts: u16,
    /// No IPv6.
    pub ipv4_only: bool,
    /// Offloads of the end hosts.
    pub offloads: Offloads,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions {
            name: DEFAULT_NAME.to_string(),
            directory: PathBuf::from(DEFAULT_DIRECTORY),
            queues: 1,
            mtu: 1500,
            hosts: 1,
            ipv4_only: false,
            offloads: Offloads::Off,
        }
    }
}

impl LabOptions {
    /// The topology that these options ask for.
    pub fn topology(&self) -> Topology {
        let topology = Topology::new()
            .name(&self.name)
            .directory(&self.directory)
            .queues(self.queues)
            .mtu(self.mtu)
            .clients(self.hosts)
            .servers(self.hosts)
            .offloads(self.offloads);
        if self.ipv4_only { topology.without_ipv6() } else { topology }
    }
}

/// Makes a lab with `router` in B, which stays up until [`down`]. Says on `out` what there is and how to use it.
///
/// # Errors
/// Those of [`Lab::up`]; nothing is left then.
pub fn up(options: &LabOptions, router: &dyn Router, out: &mut dyn Write) -> Result<LabState, LabError> {
    let lab = Lab::up(&options.topology(), router)?;
    let printed = demo::describe(&lab, out).and_then(|()| {
        let name = if options.name == DEFAULT_NAME { String::new() } else { format!(" --name {}", options.name) };
        let socket = GatewayRouter::socket(&lab);
        if socket.exists() {
            writeln!(out, "control socket: {}", socket.display())?;
            writeln!(out, "see: ferrule --socket {} show ports", socket.display())?;
        }
        writeln!(out, "try: ferrule lab exec{name} a ping -c 3 {}", lab.v4("c"))?;
        writeln!(out, "end: ferrule lab down{name}")
    });
    printed.map_err(|e| LabError::io("writing the answer", e))?;
    lab.keep()
}

/// Takes a lab down. Labs of killed runs in the same directory go with it.
///
/// # Errors
/// [`LabError::NoLab`] when there is none of this name; what could not be removed.
pub fn down(directory: &Path, name: &str) -> Result<LabState, LabError> {
    let state = removal::down(directory, name)?;
    removal::sweep(directory)?;
    Ok(state)
}

/// Runs a command in a host of a lab that is up, with our own standard input and output, for as long as it takes.
///
/// # Errors
/// [`LabError::NoLab`], [`LabError::NoHost`], [`LabError::MissingTool`], [`LabError::Io`].
pub fn exec(directory: &Path, name: &str, host: &str, words: &[String]) -> Result<ExitStatus, LabError> {
    let host: Host = host_of(&LabState::read(directory, name)?, host)?;
    let (program, arguments) =
        words.split_first().ok_or_else(|| LabError::Request("which command? ferrule lab exec HOST COMMAND".into()))?;
    let status = host.command(program)?.args(arguments).status();
    status.map_err(|e| LabError::io(format!("running {program} in {}", host.name()), e))
}

/// Makes a lab, shows ping, a TCP transfer and an HTTP download through B with the counters moving, takes it down.
///
/// # Errors
/// Those of [`Lab::up`], and the first step that fails. Nothing is left in either case.
pub fn demo(
    options: &LabOptions,
    router: &dyn Router,
    counters: &dyn Fn(&Lab) -> Box<dyn Counters>,
    out: &mut dyn Write,
) -> Result<(), LabError> {
    let lab = Lab::up(&options.topology(), router)?;
    let counters = counters(&lab);
    demo::show(&lab, counters.as_ref(), out)?;
    lab.down()
}
