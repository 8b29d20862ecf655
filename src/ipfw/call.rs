//! What a program of the script hands to the runner, and the answer: one line of JSON each.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

use ferrule_config::ipfw::command::Options;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Environment variable that names the runner's socket; where it is set, `ipfw` speaks to the runner instead of the daemon.
pub const SOCKET_VARIABLE: &str = "FERRULE_SCRIPT_SOCKET";

/// Longest message, in bytes: a table of a million prefixes in one file of commands.
pub const LONGEST: u64 = 128 << 20;

/// The programs that a script finds in its PATH.
pub const PROGRAMS: [&str; 8] = ["ipfw", "sysctl", "kldload", "kldstat", "kldunload", "sysrc", "natd", "pfilctl"];

/// One call of one of [`PROGRAMS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which.
    pub program: String,
    /// Its arguments, without its name.
    pub arguments: Vec<String>,
    /// Its standard input is a terminal.
    pub terminal: bool,
    /// Files that the arguments name (`profile`), read where the script runs and with its rights.
    pub files: BTreeMap<String, Result<String, String>>,
    /// The file of commands, after its preprocessor.
    pub commands: Option<CommandFile>,
}

/// `ipfw [-cfnNqS] [-p PREPROCESSOR [ARGUMENT ...]] FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Options given, without the preprocessor's.
    pub options: Vec<String>,
}

impl CommandFile {
    /// Adds the file's options to those there are.
    pub(super) fn add_options(&self, options: &mut Options) {
        for option in &self.options {
            match option.as_str() {
                "-c" => options.compact = true,
                "-N" => options.names = true,
                "-n" => options.check_only = true,
                "-q" => options.quiet = true,
                "-S" => options.sets = true,
                _ => options.force = true,
            }
        }
    }
}

/// What the program prints and ends with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code.
    pub exit: u8,
}

/// Writes a message.
///
/// # Errors
/// Those of the socket.
pub fn send(to: &mut dyn Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads a message.
///
/// # Errors
/// Those of the socket; a message that is cut off, too long or none.
pub fn receive<T: DeserializeOwned>(from: &mut dyn BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the message is cut off or too long"));
    }
    Ok(serde_json::from_slice(&line)?)
}
