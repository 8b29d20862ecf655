//! The commands that need more than the control socket, wired to the parts that do them.

#![forbid(unsafe_code)]

use std::io::Write;
use std::path::Path;

use crate::cli::commands::Program;
use crate::cli::{CheckArgs, Common, CompareArgs, LabArgs, PrivilegeTestArgs, RunArgs};
use crate::failure::Failure;
use crate::pktgen::{Opened, Opener, Wanted};
use crate::snapshot::Finding;

/// The program as it was built.
pub struct Ferrule;

fn missing(what: &str) -> Failure {
    Failure::runtime(format!("`ferrule {what}` is not part of this build"))
}

impl Program for Ferrule {
    fn run(&self, _args: &RunArgs, _common: &Common) -> Result<(), Failure> {
        Err(missing("run"))
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
        Err(missing("helper"))
    }

    fn privilege_test(&self, _args: &PrivilegeTestArgs, _out: &mut dyn Write) -> Result<(), Failure> {
        Err(missing("privilege-test"))
    }
}

impl Opener for Ferrule {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Opened, Failure> {
        Err(Failure::input(format!("driver {} is not part of this build; `-i null` is", wanted.driver)))
    }
}
