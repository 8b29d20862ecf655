//! What the runner answers to the programs of a script: `ipfw` from the set that is being built, the others as a box that runs it would.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use ferrule_config::Diagnostic;
use ferrule_config::ipfw::command::{CommandLine, Options};
use ferrule_config::ipfw::failure::{Failure, exit};
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::Hosts;
use ferrule_config::ipfw::names::Names;
use ferrule_config::ipfw::pending::{Environment, PendingSet};

use super::call::{Call, CommandFile, Reply};
use super::sysctl;

/// Modules that are built in here.
const MODULES: [&str; 6] = ["ipfw", "ipfw_nat", "dummynet", "libalias", "ipfw_pmod", "alias_ftp"];

/// How much text the calls of one script may hand over, in bytes: the set that is built from it is bounded by it.
const MEMORY: usize = 512 << 20;

/// A command that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCommand {
    /// Its number among the calls of the script, from 1.
    pub number: usize,
    /// Its text, which the failures' places refer to.
    pub line: CommandLine,
    /// File and line, where it stood in a file of commands.
    pub file: Option<(String, u32)>,
    /// What is wrong with it.
    pub failures: Vec<Failure>,
}

impl FailedCommand {
    /// The failures as diagnostics of the command's text.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        self.failures.iter().map(Failure::diagnostic).collect()
    }
}

/// The state of a script that is being run.
pub struct Session<'a> {
    pending: PendingSet,
    names: &'a dyn Names,
    hosts: &'a dyn Hosts,
    /// Settings that `sysrc` shows.
    settings: BTreeMap<String, String>,
    calls: usize,
    /// Bytes of text handed over.
    received: usize,
    failed: Vec<FailedCommand>,
    recorded: Vec<Call>,
}

impl<'a> Session<'a> {
    /// A session with an empty rule set.
    pub fn new(names: &'a dyn Names, hosts: &'a dyn Hosts, settings: BTreeMap<String, String>) -> Self {
        Self {
            pending: PendingSet::new(),
            names,
            hosts,
            settings,
            calls: 0,
            received: 0,
            failed: Vec::new(),
            recorded: Vec::new(),
        }
    }

    /// The set as it is now.
    pub fn pending(&self) -> &PendingSet {
        &self.pending
    }

    /// Commands that leave the set incomplete.
    pub fn failed(&self) -> &[FailedCommand] {
        &self.failed
    }

    /// The calls so far, in their order: another session that answers them comes to the same.
    pub fn recorded(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.recorded)
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Answers one call.
    pub fn answer(&mut self, call: &Call) -> Reply {
        self.calls += 1;
        self.received += call.arguments.iter().map(String::len).sum::<usize>();
        self.received += call.commands.as_ref().map_or(0, |file| file.text.len());
        if self.received > MEMORY {
            return self.overrun(call);
        }
        self.recorded.push(call.clone());
        let arguments: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
        match call.program.as_str() {
            "ipfw" => self.ipfw(call),
            "sysctl" => sysctl::answer(&arguments, &mut self.pending),
            "sysrc" => self.sysrc(&arguments),
            "kldload" => modules(&arguments, "kldload", "can't load", "No such file or directory"),
            "kldstat" => kldstat(&arguments),
            "kldunload" => wrong("kldunload", "can't unload file: it is built into ferrule", 1),
            other => wrong(other, "not supported: use nat and tables of ipfw instead", exit::UNAVAILABLE),
        }
    }

    fn overrun(&mut self, call: &Call) -> Reply {
        let reason = format!("the script handed over more than {} MiB", MEMORY >> 20);
        let line = CommandLine::from_arguments(&call.arguments);
        let failure = Failure::new(exit::OS, line.end(), &reason).hint("use fewer or smaller tables");
        self.failed.push(FailedCommand { number: self.calls, line, file: None, failures: vec![failure] });
        wrong(&call.program, &reason, exit::OS)
    }

    fn ipfw(&mut self, call: &Call) -> Reply {
        // A script has no terminal to ask at; with one, `ipfw flush` would wait for it.
        let mut options = Options { force: true, ..Options::default() };
        match &call.commands {
            None => self.command(&CommandLine::from_arguments(&call.arguments), &mut options, call, None),
            Some(file) => self.command_file(file, options, call),
        }
    }

    fn command_file(&mut self, file: &CommandFile, mut options: Options, call: &Call) -> Reply {
        let mut reply = Reply::default();
        file.add_options(&mut options);
        for (at, text) in (1_u32..).zip(file.text.lines()) {
            let line = CommandLine::from_line(text);
            if line.words.is_empty() {
                continue;
            }
            // The original stops at the first error; here the rest is read too, so that one run shows them all. The whole fails anyway.
            let answer = self.command(&line, &mut options, call, Some((&file.name, at)));
            reply.stdout.push_str(&answer.stdout);
            reply.stderr.push_str(&answer.stderr);
            if reply.exit == exit::OK {
                reply.exit = answer.exit;
            }
        }
        reply
    }

    fn command(&mut self, line: &CommandLine, options: &mut Options, call: &Call, file: Option<(&str, u32)>) -> Reply {
        let grammar = Grammar { names: self.names, refuse_unsupported: true };
        let read_file = |name: &str| {
            call.files.get(name).cloned().unwrap_or_else(|| Err("not read by the script's ipfw".to_owned()))
        };
        let environment =
            Environment { language: &grammar, names: self.names, hosts: self.hosts, read_file: &read_file };
        if line.words.is_empty() {
            return wrong("ipfw", "usage: ipfw [options]\ndo \"ipfw -h\" or \"man ipfw\" for details", exit::USAGE);
        }
        let answer = self.pending.run(line, options, environment);
        if answer.incomplete {
            let file = file.map(|(name, line)| (name.to_owned(), line));
            let (number, line) = (self.calls, line.clone());
            self.failed.push(FailedCommand { number, line, file, failures: answer.failures });
        }
        let program = file.map_or_else(|| "ipfw".to_owned(), |(_, line)| format!("Line {line}"));
        let stderr = answer.stderr.iter().map(|text| format!("{program}: {text}\n")).collect();
        Reply { stdout: answer.stdout, stderr, exit: answer.exit }
    }

    fn sysrc(&mut self, arguments: &[&str]) -> Reply {
        let mut reply = Reply::default();
        let value_only = arguments.iter().any(|argument| argument.starts_with('-') && argument.contains('n'));
        for &argument in arguments.iter().filter(|argument| !argument.starts_with('-')) {
            if let Some((name, new)) = argument.split_once('=') {
                let before = self.settings.insert(name.to_owned(), new.to_owned()).unwrap_or_default();
                reply.stdout.push_str(&format!("{name}: {before} -> {new}\n"));
            } else if let Some(value) = self.settings.get(argument) {
                reply.stdout.push_str(&if value_only {
                    format!("{value}\n")
                } else {
                    format!("{argument}: {value}\n")
                });
            } else {
                reply.stderr.push_str(&format!("sysrc: unknown variable '{argument}'\n"));
                reply.exit = 1;
            }
        }
        reply
    }
}

fn wrong(program: &str, reason: &str, exit: u8) -> Reply {
    Reply { stderr: format!("{program}: {reason}\n"), exit, ..Reply::default() }
}

fn module_name(argument: &str) -> &str {
    argument.rsplit('/').next().unwrap_or_default().trim_end_matches(".ko")
}

fn modules(arguments: &[&str], program: &str, what: &str, reason: &str) -> Reply {
    let unknown = arguments.iter().find(|name| !name.starts_with('-') && !MODULES.contains(&module_name(name)));
    match unknown {
        None => Reply::default(),
        Some(name) => wrong(program, &format!("{what} {name}: {reason}"), 1),
    }
}

fn kldstat(arguments: &[&str]) -> Reply {
    let named: Vec<&&str> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    if named.is_empty() {
        let mut stdout = String::from("Id Refs Address                Size Name\n");
        for (id, name) in (1..).zip(MODULES) {
            stdout.push_str(&format!("{id:2}    1 0x0                       0 {name}.ko\n"));
        }
        return Reply { stdout, ..Reply::default() };
    }
    modules(arguments, "kldstat", "can't find file", "No such file or directory")
}

#[cfg(test)]
mod tests {
    use ferrule_config::ipfw::language::NoHosts;
    use ferrule_config::ipfw::names::builtin;

    use super::*;

    fn call(words: &str) -> Call {
        let mut words = words.split(' ').map(str::to_owned);
        Call { program: words.next().unwrap(), arguments: words.collect(), ..Call::default() }
    }

    fn said(session: &mut Session<'_>, words: &str) -> (u8, String, String) {
        let Reply { stdout, stderr, exit } = session.answer(&call(words));
        (exit, stdout, stderr)
    }

    fn session() -> Session<'static> {
        Session::new(builtin(), &NoHosts, BTreeMap::from([("firewall_type".to_owned(), "open".to_owned())]))
    }

    #[test]
    fn the_programs_of_a_script_are_answered() {
        let mut session = session();
        let none = String::new;
        assert_eq!(said(&mut session, "ipfw flush").1, "Flushed all rules.\n");
        assert_eq!(said(&mut session, "ipfw add 65000 pass all from any to any").1, "65000 allow ip from any to any\n");
        assert_eq!(
            said(&mut session, "ipfw list").1,
            "65000 allow ip from any to any\n65535 deny ip from any to any\n"
        );
        assert_eq!(said(&mut session, "ipfw delete 5"), (0, none(), "ipfw: rule 5 not found\n".into()));
        assert_eq!(said(&mut session, "sysctl net.inet.ip.fw.verbose=1").1, "net.inet.ip.fw.verbose: 0 -> 1\n");
        assert_eq!(said(&mut session, "sysctl -n net.inet.ip.fw.verbose").1, "1\n");
        assert_eq!(said(&mut session, "sysctl -n net.inet.ip.forwarding").1, "1\n");
        assert_eq!(said(&mut session, "sysctl kern.x"), (1, none(), "sysctl: unknown oid 'kern.x'\n".into()));
        assert_eq!(said(&mut session, "sysrc -n firewall_type").1, "open\n");
        assert_eq!(said(&mut session, "sysrc nothing").0, 1);
        assert_eq!(said(&mut session, "kldload ipfw").0, 0);
        assert_eq!(said(&mut session, "kldload if_bridge").0, 1);
        assert_eq!(said(&mut session, "kldstat -q -m ipfw").0, 0);
        assert_eq!(said(&mut session, "natd -n em0").0, 69);
        assert!(session.failed().is_empty());
        assert_eq!(session.pending().len(), 1);
    }

    #[test]
    fn every_error_of_a_file_of_commands_is_kept() {
        let mut session = session();
        let text = "# rules\nadd 100 allow ip from any to any\nadd alow ip from any to any\nnonsense\nadd 300 count tcp from any to any\n";
        let file = CommandFile { name: "/etc/rules".to_owned(), text: text.to_owned(), options: vec!["-q".to_owned()] };
        let reply = session.answer(&Call { commands: Some(file), ..call("ipfw") });
        assert_eq!((reply.exit, reply.stdout.as_str()), (65, ""));
        assert!(reply.stderr.contains("Line 4: bad command `nonsense'"), "{}", reply.stderr);
        let places: Vec<_> = session.failed().iter().map(|failed| failed.file.clone().unwrap()).collect();
        assert_eq!(places, [("/etc/rules".to_owned(), 3), ("/etc/rules".to_owned(), 4)]);
        assert_eq!(session.pending().len(), 2);
    }
}
