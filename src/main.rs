//! The ferrule program: parse, run, map the error to an exit code.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferrule::cli::{self, Cli};
use ferrule::failure::Failure;
use ferrule::ipfw::{command, shim};
use ferrule::log;
use ferrule::program::Ferrule;

fn main() -> ExitCode {
    // Inside the user's script we are `ipfw`, `sysctl` and their kin.
    if let Some(code) = shim::main() {
        return code;
    }
    if let Some(code) = command::main() {
        return code;
    }
    let cli = Cli::parse();
    match cli::dispatch(cli, &Ferrule, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Said already, in the words of the program that it stands for.
        Err(Failure::Exit(code)) => ExitCode::from(code),
        Err(failure) => {
            log::error(failure.to_string());
            ExitCode::from(failure.exit_code())
        }
    }
}
