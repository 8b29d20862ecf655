//! `ferrule ipfw`, `ferrule sysctl`, and the program under the name of `ipfw`: arguments in, what the daemon answers out.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use ferrule_config::ipfw::command::{Command, CommandLine, DummynetCommand, Options, parse};
use ferrule_config::ipfw::failure::exit;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use serde_json::Value;

use super::call::{Call, Reply};
use super::firewall::only_asks;
use super::session::Session;
use super::{shim, sysctl};
use crate::control::{Client, DEFAULT_SOCKET};
use crate::failure::Failure;

/// Environment variable that names another control socket for the program under the name of `ipfw`.
pub const SOCKET_VARIABLE: &str = "FERRULE_SOCKET";

/// What is to be asked of which daemon.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// `ipfw` or `sysctl`.
    pub program: &'a str,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The control socket.
    pub socket: &'a Path,
    /// JSON instead of the original's text.
    pub json: bool,
}

/// Where this process was started as `ipfw` (a symlink): does what is asked. None under any other name.
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    if Path::new(&program).file_name()?.to_str()? != "ipfw" {
        return None;
    }
    let socket = std::env::var_os(SOCKET_VARIABLE).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let question =
        Question { program: "ipfw", arguments: arguments.collect(), socket: Path::new(&socket), json: false };
    Some(ExitCode::from(run(&question)))
}

/// Asks, prints, and gives the exit code.
pub fn run(question: &Question<'_>) -> u8 {
    let program = question.program;
    let (reply, json) = ask(question).unwrap_or_else(|(exit, reason)| {
        let stderr = reason.lines().map(|line| format!("{program}: {line}\n")).collect();
        (Reply { stderr, exit, ..Reply::default() }, None)
    });
    let text = match json {
        Some(value) if question.json => format!("{value}\n"),
        _ => reply.stdout,
    };
    // A reader that went away (`ipfw list | head`) is no failure.
    let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    let _ = io::stderr().write_all(reply.stderr.as_bytes());
    reply.exit
}

/// Whether a call changes anything, so that it needs the write group.
pub fn writes(call: &Call) -> bool {
    match call.program.as_str() {
        "sysctl" => sysctl::writes(&call.arguments),
        _ if call.commands.is_some() => true,
        _ => {
            let parsed = parse(&CommandLine::from_arguments(&call.arguments), Options::default());
            // What cannot be read changes nothing.
            parsed.is_ok_and(|read| read.command.is_some_and(|command| !only_asks(&command)))
        }
    }
}

fn ask(question: &Question<'_>) -> Result<(Reply, Option<Value>), (u8, String)> {
    let text = |argument: OsString| {
        argument.into_string().map_err(|bad| (exit::USAGE, format!("an argument is not UTF-8: {}", bad.display())))
    };
    let arguments = question.arguments.iter().cloned().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut call =
        Call { program: question.program.to_owned(), terminal: io::stdin().is_terminal(), ..Call::default() };
    if question.program == "ipfw" {
        call.commands = shim::command_file(&arguments)?;
        call.files = shim::profiles(&arguments);
    }
    call.arguments = arguments;
    if question.program == "ipfw" && is_local(&call) {
        let mut session = Session::new(builtin(), &NoHosts, BTreeMap::new());
        return Ok((session.answer(&call), None));
    }
    if !confirmed(&call) {
        return Ok((Reply::default(), None));
    }
    let told = |failure: Failure| (if question.program == "ipfw" { exit::UNAVAILABLE } else { 1 }, failure.to_string());
    Client::connect(question.socket).and_then(|mut client| client.ipfw(call, question.json)).map_err(told)
}

/// `-n`, `-h`, and what is no command at all need no daemon.
fn is_local(call: &Call) -> bool {
    if let Some(file) = &call.commands {
        return file.options.iter().any(|option| option == "-n");
    }
    match parse(&CommandLine::from_arguments(&call.arguments), Options::default()) {
        Ok(read) => read.options.check_only || matches!(read.command, None | Some(Command::Help)),
        Err(_) => true,
    }
}

/// `flush` at a terminal asks first, unless `-f` or `-q` says not to.
fn confirmed(call: &Call) -> bool {
    if !call.terminal || call.commands.is_some() {
        return true;
    }
    let Ok(read) = parse(&CommandLine::from_arguments(&call.arguments), Options::default()) else { return true };
    let flushes = match read.command {
        Some(Command::Flush { .. }) => true,
        Some(Command::Dummynet(_, command)) => command == DummynetCommand::Flush,
        _ => false,
    };
    if !flushes || read.options.force || read.options.quiet {
        return true;
    }
    loop {
        print!("Are you sure? [yn] ");
        let _ = io::stdout().flush();
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line).unwrap_or(0) == 0 {
            println!();
            return false;
        }
        match line.trim().chars().next() {
            Some('y' | 'Y') => return true,
            Some('n' | 'N') => return false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(words: &str) -> Call {
        let mut words = words.split(' ').map(str::to_owned);
        Call { program: words.next().unwrap(), arguments: words.collect(), ..Call::default() }
    }

    #[test]
    fn questions_need_no_write_group_and_changes_do() {
        for asks in [
            "ipfw -a list",
            "ipfw show 100",
            "ipfw table all info",
            "ipfw set show",
            "ipfw nat show config",
            "ipfw pipe show",
            "ipfw nonsense",
            "sysctl -n net.inet.ip.fw.enable",
            "ipfw -h",
            "ipfw table t lookup 1.1.1.1",
        ] {
            assert!(!writes(&call(asks)), "{asks}");
        }
        for changes in [
            "ipfw add allow ip from any to any",
            "ipfw -q flush",
            "ipfw zero",
            "ipfw set disable 3",
            "ipfw table t add 1.1.1.1",
            "ipfw disable firewall",
            "ipfw pipe 1 config bw 1Mbit/s",
            "ipfw delete 5",
            "sysctl net.inet.ip.fw.enable=0",
        ] {
            assert!(writes(&call(changes)), "{changes}");
        }
        let file = crate::ipfw::call::CommandFile { name: "/x".into(), text: String::new(), options: Vec::new() };
        assert!(writes(&Call { commands: Some(file), ..call("ipfw") }));
    }

    #[test]
    fn checking_needs_no_daemon() {
        let local = |words: &str| is_local(&call(words));
        assert!(local("ipfw -n add allow ip from any to any") && local("ipfw -h") && local("ipfw nonsense"));
        assert!(!local("ipfw list") && !local("ipfw -q add allow ip from any to any"));
    }
}
