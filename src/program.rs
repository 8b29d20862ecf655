//! The commands that need more than the control socket, wired to the parts that do them.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use serde_json::Value;

use crate::cli::commands::{Program, emit_json};
use crate::cli::{CheckArgs, Common, CompareArgs, LabArgs, PrivilegeTestArgs, RunArgs};
use crate::control::DEFAULT_SOCKET;
use crate::daemon;
use crate::failure::Failure;
use crate::pktgen::{Opened, Opener, Wanted};
use crate::privilege::helper::Actions;
use crate::privilege::{self, Plan};
use crate::snapshot::Finding;

/// The program as it was built.
pub struct Ferrule;

fn missing(what: &str) -> Failure {
    Failure::runtime(format!("`ferrule {what}` is not part of this build"))
}

impl Program for Ferrule {
    fn run(&self, args: &RunArgs, common: &Common) -> Result<(), Failure> {
        // The file names the socket; the flag wins where it was given.
        let socket = (common.socket != Path::new(DEFAULT_SOCKET)).then(|| common.socket.clone());
        let (config, state_directory) = (args.config.clone(), args.state_directory.clone());
        daemon::run(&daemon::RunOptions { config, socket, state_directory })
    }

    fn check(&self, _args: &CheckArgs, _common: &Common) -> Result<String, Failure> {
        Err(missing("check"))
    }

    fn doctor(&self, _file: &Path) -> Result<Vec<Finding>, Failure> {
        Err(missing("doctor FILE"))
    }

    fn lab(&self, _args: &LabArgs, _common: &Common, _out: &mut dyn Write) -> Result<(), Failure> {
        Err(missing("lab"))
    }

    fn compare(&self, _args: &CompareArgs, _common: &Common, _out: &mut dyn Write) -> Result<(), Failure> {
        Err(missing("compare"))
    }

    fn opener(&self) -> &dyn Opener {
        self
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

/// A helper that can do nothing yet: the daemon's own actions are given here when it is wired.
struct NoActions;

impl Actions for NoActions {
    fn call(&mut self, action: &str, _: &Value, _: Vec<OwnedFd>) -> Result<(Value, Vec<OwnedFd>), String> {
        Err(format!("unknown action `{action}`"))
    }

    fn daemon_gone(&mut self) {}
}

impl Opener for Ferrule {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Opened, Failure> {
        Err(Failure::input(format!("driver {} is not part of this build; `-i null` is", wanted.driver)))
    }
}
