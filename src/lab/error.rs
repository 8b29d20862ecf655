//! What can go wrong in the lab, each message saying what to do.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of the lab. The text is made to be shown to the user as it is.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// Namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN.
    #[error("the lab makes network namespaces and needs root: run it with sudo")]
    NotRoot,
    /// A program that the lab calls is not on the PATH.
    #[error("{tool} is not installed: install the package {package} (apt install {package})")]
    MissingTool {
        /// The program.
        tool: String,
        /// The Debian package that has it.
        package: String,
    },
    /// A child ended with a failure.
    #[error("{what} failed ({status}): {output}")]
    Command {
        /// The command line.
        what: String,
        /// How it ended.
        status: String,
        /// What it wrote, standard error first.
        output: String,
    },
    /// A child did not end in its time and was killed.
    #[error("{what} did not end within {limit:?} and was killed; it wrote: {output}")]
    Timeout {
        /// The command line.
        what: String,
        /// The time it had.
        limit: Duration,
        /// What it had written until then.
        output: String,
    },
    /// A condition was polled and did not come true.
    #[error("waited {limit:?} for {what}; last seen: {last}")]
    NotReached {
        /// The condition.
        what: String,
        /// The time it had.
        limit: Duration,
        /// The last observation.
        last: String,
    },
    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A tool printed something that is not understood.
    #[error("cannot read the output of {what}: {reason}: {text}")]
    Output {
        /// The tool.
        what: String,
        /// What is wrong.
        reason: String,
        /// The text (shortened).
        text: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Request(String),
    /// A lab of this name is there already.
    #[error("a lab named {name} is up already ({}): `ferrule lab down --name {name}` removes it", state.display())]
    Exists {
        /// The lab.
        name: String,
        /// Its state file.
        state: PathBuf,
    },
    /// No lab of this name.
    #[error("no lab named {name} is up: there is no {}", state.display())]
    NoLab {
        /// The lab.
        name: String,
        /// The state file that was looked for.
        state: PathBuf,
    },
    /// No host of this name.
    #[error("no host {host} in this lab; it has {hosts}")]
    NoHost {
        /// The name asked for.
        host: String,
        /// The names there are.
        hosts: String,
    },
}

impl LabError {
    /// Wraps an I/O error with what was tried.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        LabError::Io { what: what.into(), source: source.into() }
    }

    /// An output that could not be understood; keeps the first 2000 characters of it.
    pub fn output(what: impl Into<String>, reason: impl ToString, text: &str) -> Self {
        LabError::Output { what: what.into(), reason: reason.to_string(), text: text.chars().take(2000).collect() }
    }
}
