//! `sysctl` for the variables of the firewall, with the original's lines.

#![forbid(unsafe_code)]

use ferrule_config::ipfw::pending::PendingSet;
use ferrule_config::ipfw::variable::VARIABLES;

use super::call::Reply;

/// Variables of the system that scripts ask for or set, and what they are here: the gateway forwards both families.
const FORWARDING: [&str; 3] = ["net.inet.ip.forwarding", "net.inet6.ip6.forwarding", "net.inet.ip.fastforwarding"];

/// Whoever has the variables.
pub trait Variables {
    /// A value; None where there is no such variable.
    fn get(&self, name: &str) -> Option<i64>;

    /// Sets a value; the one before.
    ///
    /// # Errors
    /// Why not, without the program's name.
    fn set(&mut self, name: &str, value: i64) -> Result<i64, String>;
}

impl Variables for PendingSet {
    fn get(&self, name: &str) -> Option<i64> {
        self.variable(name)
    }

    fn set(&mut self, name: &str, value: i64) -> Result<i64, String> {
        self.set_variable(name, value)
    }
}

/// Whether a call changes anything.
pub fn writes(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| !argument.starts_with('-') && argument.contains('='))
}

/// Answers a call.
pub fn answer(arguments: &[&str], variables: &mut dyn Variables) -> Reply {
    let mut reply = Reply::default();
    let mut value_only = false;
    let mut quiet = false;
    for &argument in arguments {
        if let Some(letters) = argument.strip_prefix('-') {
            value_only |= letters.contains('n');
            quiet |= letters.contains('q');
            if letters.contains('a') {
                for variable in VARIABLES {
                    let value = variables.get(variable.name).unwrap_or(variable.default);
                    reply.stdout.push_str(&format!("{}: {value}\n", variable.name));
                }
            }
            continue;
        }
        let (name, new) = match argument.split_once('=') {
            Some((name, new)) => (name, Some(new)),
            None => (argument, None),
        };
        match one(name, new, value_only, variables) {
            Ok(text) if quiet && new.is_some() => drop(text),
            Ok(text) => reply.stdout.push_str(&text),
            Err(reason) => {
                if !quiet {
                    reply.stderr.push_str(&format!("sysctl: {reason}\n"));
                }
                reply.exit = 1;
            }
        }
    }
    reply
}

fn one(name: &str, new: Option<&str>, value_only: bool, variables: &mut dyn Variables) -> Result<String, String> {
    let shown = if value_only { String::new() } else { format!("{name}: ") };
    let forwarding = FORWARDING.contains(&name);
    match new {
        None if forwarding => Ok(format!("{shown}1\n")),
        None => variables.get(name).map(|value| format!("{shown}{value}\n")).ok_or_else(|| unknown(name)),
        Some("1") if forwarding => Ok(format!("{shown}1 -> 1\n")),
        Some(new) => {
            let value = new.trim().parse().map_err(|_| format!("invalid integer '{new}'"))?;
            let before = variables.set(name, value)?;
            Ok(format!("{shown}{before} -> {value}\n"))
        }
    }
}

fn unknown(name: &str) -> String {
    format!("unknown oid '{name}'")
}
