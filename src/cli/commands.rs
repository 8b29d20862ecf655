//! What each command does: those that speak to the daemon here, the others through [`Program`].

#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use ferrule_config::Color;
use serde::Serialize;

use super::{
    ArgumentsAsTheyAre, CheckArgs, Cli, Command, Common, CompareArgs, DoctorArgs, LabArgs, PrivilegeTestArgs, RunArgs,
    Show, ShowArgs,
};
use crate::control::{Client, Request, RouteQuery};
use crate::failure::Failure;
use crate::snapshot::Severity;
use crate::{configuration, log, pktgen, restore, show, top};

/// The parts of the program that need more than the control socket.
pub trait Program {
    /// `ferrule run`: returns when the gateway ended.
    ///
    /// # Errors
    /// Why it could not start, or why it ended.
    fn run(&self, args: &RunArgs, common: &Common) -> Result<(), Failure>;

    /// `ferrule lab`.
    ///
    /// # Errors
    /// What failed.
    fn lab(&self, args: &LabArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure>;

    /// `ferrule compare`.
    ///
    /// # Errors
    /// What failed.
    fn compare(&self, args: &CompareArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure>;

    /// How `ferrule pkt-gen` opens devices.
    fn opener(&self) -> &dyn pktgen::Opener;

    /// `ferrule ipfw` and `ferrule sysctl`.
    ///
    /// # Errors
    /// [`Failure::Exit`] with the exit code of the program that it stands for.
    fn firewall(&self, name: &str, args: &ArgumentsAsTheyAre, common: &Common) -> Result<(), Failure>;

    /// `ferrule helper`: the privileged child of the daemon.
    ///
    /// # Errors
    /// When its socket is no socket.
    fn helper(&self) -> Result<(), Failure>;

    /// `ferrule privilege-test`.
    ///
    /// # Errors
    /// When privileges cannot be dropped.
    fn privilege_test(&self, args: &PrivilegeTestArgs, out: &mut dyn Write) -> Result<(), Failure>;
}

/// Runs a command.
///
/// # Errors
/// Why it could not be done; its exit code is in it.
pub fn dispatch(cli: Cli, program: &dyn Program, out: &mut dyn Write) -> Result<(), Failure> {
    let common = cli.common;
    log::set_threshold(common.log.into());
    match cli.command {
        Command::Run(args) => program.run(&args, &common),
        Command::Check(args) => check(&args, &common, out),
        Command::Doctor(args) => doctor(&args, &common, out),
        Command::Show(args) => show(&args, &common, out),
        Command::Reload(args) => {
            let path = args.file.as_deref().map(absolute).transpose()?;
            change(Request::Reload { path }, &common, out)
        }
        Command::Apply(args) => {
            let confirm_s = args.confirm.map(|t| t.as_secs().max(1));
            change(Request::Apply { path: absolute(&args.file)?, confirm_s }, &common, out)
        }
        Command::Confirm => change(Request::Confirm, &common, out),
        Command::Stop(args) => {
            let text = Client::connect(&common.socket)?.stop(args.wait)?;
            done(&text, &common, out)
        }
        Command::Restore(args) => done(&restore::run(&args.names, &args.state_directory)?.join("\n"), &common, out),
        Command::Top(args) => top::run(&args, &common, out),
        Command::PktGen(args) => pktgen::run(&args, common.json, program.opener(), out),
        Command::Lab(args) => program.lab(&args, &common, out),
        Command::Compare(args) => program.compare(&args, &common, out),
        Command::Ipfw(args) => program.firewall("ipfw", &args, &common),
        Command::Sysctl(args) => program.firewall("sysctl", &args, &common),
        Command::Helper => program.helper(),
        Command::PrivilegeTest(args) => program.privilege_test(&args, out),
    }
}

/// The style for standard output.
pub fn style(human: bool) -> show::Style {
    show::Style { human, colour: log::may_colour(&io::stdout()) }
}

/// Writes to standard output; a reader that went away (`| head`) is no failure.
///
/// # Errors
/// When the output cannot be written.
pub fn emit(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::runtime(format!("cannot write the output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON: readable on a terminal, one line elsewhere.
///
/// # Errors
/// As [`emit`].
pub fn emit_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Failure> {
    let text =
        if io::stdout().is_terminal() { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
    emit(out, &format!("{}\n", text.map_err(|e| Failure::runtime(format!("JSON: {e}")))?))
}

/// The daemon does not stand where we do: paths go to it in full, and a file that is not there is told at once.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::canonicalize(path).map_err(|e| Failure::input(format!("{}: {e}", path.display())))
}

#[derive(Serialize)]
struct Done<'a> {
    done: &'a str,
}

fn done(text: &str, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    if common.json { emit_json(out, &Done { done: text }) } else { emit(out, &format!("{text}\n")) }
}

fn change(request: Request, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let text = Client::connect(&common.socket)?.change(request)?;
    done(&text, common, out)
}

#[derive(Serialize)]
struct CheckReport {
    file: String,
    good: bool,
    remarks: Vec<configuration::Remark>,
    /// The canonical form, with --print.
    canonical: Option<String>,
}

fn check(args: &CheckArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let color = if !common.json && log::may_colour(&io::stdout()) { Color::Yes } else { Color::No };
    let checked = configuration::check(&args.file, color)?;
    let file = args.file.display().to_string();
    let canonical = checked.gateway.as_ref().filter(|_| args.print).map(ToString::to_string);
    let good = checked.gateway.is_some();
    if common.json {
        emit_json(out, &CheckReport { file: file.clone(), good, remarks: checked.remarks, canonical })?;
    } else {
        emit(out, &checked.text)?;
        match (good, canonical) {
            (true, Some(text)) => emit(out, &text)?,
            (true, None) => emit(out, &format!("{file}: good\n"))?,
            (false, _) => {}
        }
    }
    if good { Ok(()) } else { Err(Failure::input(format!("{file} cannot be used"))) }
}

fn doctor(args: &DoctorArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let findings = match &args.file {
        Some(file) => crate::doctor::before_start(&configuration::load(file)?)?,
        None => Client::connect(&common.socket)?.doctor()?,
    };
    if common.json {
        emit_json(out, &findings)?;
    } else {
        emit(out, &show::findings(&findings, style(false)))?;
    }
    match findings.iter().filter(|f| f.severity == Severity::Error).count() {
        0 => Ok(()),
        n => Err(Failure::runtime(format!("doctor: {n} thing{} to mend", if n == 1 { "" } else { "s" }))),
    }
}

fn show(args: &ShowArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let mut client = Client::connect(&common.socket)?;
    let style = style(args.human);
    match &args.what {
        Show::Routes { ipv4, ipv6, lookup, limit } => {
            let family = if *ipv4 { Some(4) } else { ipv6.then_some(6) };
            let rows = client.routes(RouteQuery { family, lookup: *lookup, limit: *limit })?;
            return if common.json { emit_json(out, &rows) } else { emit(out, &show::routes(&rows, style)) };
        }
        Show::Neighbors => {
            let rows = client.neighbors()?;
            return if common.json { emit_json(out, &rows) } else { emit(out, &show::neighbors(&rows, style)) };
        }
        Show::Ports | Show::Workers | Show::Drops { .. } | Show::Stats => {}
    }
    let snapshot = client.snapshot()?;
    match (&args.what, common.json) {
        (Show::Ports, true) => emit_json(out, &snapshot.ports),
        (Show::Ports, false) => emit(out, &show::ports(&snapshot, style)),
        (Show::Workers, true) => emit_json(out, &snapshot.workers),
        (Show::Workers, false) => emit(out, &show::workers(&snapshot, style)),
        (Show::Drops { .. }, true) => emit_json(out, &snapshot.drops),
        (Show::Drops { all }, false) => emit(out, &show::drops(&snapshot, *all, style)),
        (_, true) => emit_json(out, &snapshot),
        (_, false) => emit(out, &show::stats(&snapshot, style)),
    }
}
