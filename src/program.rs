//! The commands that need more than the control socket, wired to the parts that do them.

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::commands::{Program, emit, emit_json};
use crate::cli::{
    ArgumentsAsTheyAre, Common, CompareArgs, LabArgs, LabCommand, LabOptions, LabRouter, PrivilegeTestArgs, RunArgs,
};
use crate::control::{Client, DEFAULT_SOCKET};
use crate::failure::Failure;
use crate::ipfw::{self, command::Question};
use crate::lab::{Counters, GatewayRouter, KernelCounters, KernelRouter, Lab, LabError, Offloads, Router, command};
use crate::log;
use crate::pktgen::Opener;
use crate::pktgen::device::Devices;
use crate::privilege::{self, Plan};
use crate::{compare, daemon};

/// The program as it was built.
pub struct Ferrule;

impl Program for Ferrule {
    fn run(&self, args: &RunArgs, common: &Common) -> Result<(), Failure> {
        // The file names the socket; the flag wins where it was given.
        let socket = (common.socket != Path::new(DEFAULT_SOCKET)).then(|| common.socket.clone());
        let (config, state_directory) = (args.config.clone(), args.state_directory.clone());
        daemon::run(&daemon::RunOptions { config, socket, state_directory })
    }

    fn lab(&self, args: &LabArgs, _common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
        match &args.command {
            LabCommand::Down => {
                command::down(&args.directory, &args.name).map_err(lab_failure)?;
                emit(out, &format!("lab {} is down\n", args.name))
            }
            LabCommand::Exec { host, command: words } => {
                let status = command::exec(&args.directory, &args.name, host, words).map_err(lab_failure)?;
                if status.success() { Ok(()) } else { Err(Failure::runtime(format!("{}: {status}", words[0]))) }
            }
            LabCommand::Up(options) => {
                let (request, router) = (lab_options(args, options), router(options)?);
                command::up(&request, &*router, out).map(drop).map_err(lab_failure)
            }
            LabCommand::Demo(options) => {
                let kernel = options.driver == LabRouter::Kernel;
                let counters = |lab: &Lab| -> Box<dyn Counters> {
                    if kernel {
                        return Box::new(KernelCounters::new(lab).expect("a lab that is up has its host b"));
                    }
                    Box::new(GatewayCounters { socket: GatewayRouter::socket(lab) })
                };
                let (request, router) = (lab_options(args, options), router(options)?);
                command::demo(&request, &*router, &counters, out).map_err(lab_failure)
            }
        }
    }

    fn compare(&self, args: &CompareArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
        compare::run(args, common, out)
    }

    fn opener(&self) -> &dyn Opener {
        &Devices
    }

    fn firewall(&self, name: &str, args: &ArgumentsAsTheyAre, common: &Common) -> Result<(), Failure> {
        let (arguments, socket) = (args.arguments.clone(), &*common.socket);
        match ipfw::command::run(&Question { program: name, arguments, socket, json: common.json }) {
            0 => Ok(()),
            code => Err(Failure::Exit(code)),
        }
    }

    fn helper(&self) -> Result<(), Failure> {
        privilege::helper::serve_stdin(&mut daemon::helper::Duties::default())
    }

    fn privilege_test(&self, args: &PrivilegeTestArgs, out: &mut dyn Write) -> Result<(), Failure> {
        let mut plan = Plan { user: Some(args.user.clone()), ..Plan::default() };
        plan.read.extend(args.read.iter().cloned());
        let result = privilege::self_test(&plan)?;
        emit_json(out, &result)?;
        match result.surprises().as_slice() {
            [] => Ok(()),
            [first, ..] => Err(Failure::runtime(format!("`{}` did not go as it should", first.what))),
        }
    }
}

/// What forwards in the lab's B.
fn router(options: &LabOptions) -> Result<Box<dyn Router>, Failure> {
    let driver = match options.driver {
        LabRouter::Kernel => return Ok(Box::new(KernelRouter)),
        LabRouter::Auto => "auto",
        LabRouter::Xdp => "xdp",
        LabRouter::Packet => "packet",
    };
    if options.offload && options.driver != LabRouter::Packet {
        return Err(Failure::input("--offload needs --driver packet: AF_XDP carries no super-packets"));
    }
    let program = std::env::current_exe().map_err(|e| Failure::runtime(format!("cannot find this program: {e}")))?;
    Ok(Box::new(GatewayRouter { offload: options.offload, ..GatewayRouter::new(program, driver) }))
}

/// The counters of the lab's gateway, over its control socket.
struct GatewayCounters {
    socket: PathBuf,
}

impl Counters for GatewayCounters {
    fn snapshot(&self) -> Vec<(String, u64)> {
        let snapshot = match Client::connect(&self.socket).and_then(|mut c| c.snapshot()) {
            Ok(snapshot) => snapshot,
            Err(e) => {
                log::once("lab counters", format!("the gateway's counters cannot be read: {e}"));
                return Vec::new();
            }
        };
        let ports = snapshot.ports.iter().flat_map(|p| {
            let row = |what: &str, count| (format!("{} {what}", p.name), count);
            [row("received", p.received.packets), row("transmitted", p.transmitted.packets)]
        });
        let drops = snapshot.drops.iter().map(|d| (format!("dropped {}", d.name), d.count));
        ports.chain(drops).collect()
    }
}

fn lab_failure(e: LabError) -> Failure {
    match e {
        LabError::Request(_) | LabError::NoLab { .. } | LabError::NoHost { .. } => Failure::input(e.to_string()),
        other => Failure::runtime(other.to_string()),
    }
}

fn lab_options(args: &LabArgs, options: &LabOptions) -> command::LabOptions {
    command::LabOptions {
        name: args.name.clone(),
        directory: args.directory.clone(),
        queues: options.queues,
        mtu: options.mtu,
        hosts: options.hosts,
        ipv4_only: options.no_ipv6,
        offloads: if options.offload { Offloads::On } else { Offloads::Off },
    }
}
