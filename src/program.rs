//! The commands that need more than the control socket, wired to the parts that do them.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::OwnedFd;

use serde_json::Value;

use crate::cli::commands::{Program, emit, emit_json};
use crate::cli::{Common, CompareArgs, LabArgs, LabCommand, LabRouter, PrivilegeTestArgs, RunArgs};
use crate::failure::Failure;
use crate::lab::{Counters, KernelCounters, KernelRouter, Lab, LabError, Offloads, command};
use crate::pktgen::Opener;
use crate::pktgen::device::Devices;
use crate::privilege::helper::Actions;
use crate::privilege::{self, Plan};

/// The program as it was built.
pub struct Ferrule;

fn missing(what: &str) -> Failure {
    Failure::runtime(format!("`ferrule {what}` is not part of this build"))
}

impl Program for Ferrule {
    fn run(&self, _args: &RunArgs, _common: &Common) -> Result<(), Failure> {
        Err(missing("run"))
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
            LabCommand::Up(options) if options.driver == LabRouter::Kernel => {
                command::up(&lab_options(args, options), &KernelRouter, out).map(drop).map_err(lab_failure)
            }
            LabCommand::Demo(options) if options.driver == LabRouter::Kernel => {
                let counters = |lab: &Lab| -> Box<dyn Counters> {
                    Box::new(KernelCounters::new(lab).expect("a lab that is up has its host b"))
                };
                command::demo(&lab_options(args, options), &KernelRouter, &counters, out).map_err(lab_failure)
            }
            LabCommand::Up(_) | LabCommand::Demo(_) => {
                Err(Failure::runtime("only --driver kernel can be the lab's router in this build"))
            }
        }
    }

    fn compare(&self, _args: &CompareArgs, _common: &Common, _out: &mut dyn Write) -> Result<(), Failure> {
        Err(missing("compare"))
    }

    fn opener(&self) -> &dyn Opener {
        &Devices
    }

    fn helper(&self) -> Result<(), Failure> {
        privilege::helper::serve_stdin(&mut NoActions)
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

fn lab_failure(e: LabError) -> Failure {
    match e {
        LabError::Request(_) | LabError::NoLab { .. } | LabError::NoHost { .. } => Failure::input(e.to_string()),
        other => Failure::runtime(other.to_string()),
    }
}

fn lab_options(args: &LabArgs, options: &crate::cli::LabOptions) -> command::LabOptions {
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

/// A helper that can do nothing yet: the daemon's own actions are given here when it is wired.
struct NoActions;

impl Actions for NoActions {
    fn call(&mut self, action: &str, _: &Value, _: Vec<OwnedFd>) -> Result<(Value, Vec<OwnedFd>), String> {
        Err(format!("unknown action `{action}`"))
    }

    fn daemon_gone(&mut self) {}
}
