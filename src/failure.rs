//! How a command fails: the exit code and what is said on standard error.

#![forbid(unsafe_code)]

use std::fmt;

/// Exit codes of the program: 0 is success.
pub mod code {
    /// Something failed while running: the daemon is not there, the kernel refused.
    pub const RUNTIME: u8 = 1;
    /// Bad usage or bad input; nothing was touched.
    pub const INPUT: u8 = 2;
}

/// Why a command could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The user's input is wrong (a flag, a file, a device that is not there); nothing was touched. Exit code 2.
    Input(String),
    /// It went wrong while running. Exit code 1.
    Runtime(String),
    /// All was said already; this exit code is another program's own.
    Exit(u8),
}

impl Failure {
    /// Bad usage or input.
    pub fn input(text: impl Into<String>) -> Failure {
        Failure::Input(text.into())
    }

    /// A failure at run time.
    pub fn runtime(text: impl Into<String>) -> Failure {
        Failure::Runtime(text.into())
    }

    /// The exit code that belongs to it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Input(_) => code::INPUT,
            Failure::Runtime(_) => code::RUNTIME,
            Failure::Exit(code) => *code,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(text) | Failure::Runtime(text) => f.write_str(text),
            Failure::Exit(code) => write!(f, "exit code {code}"),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_two_and_runtime_is_one() {
        assert_eq!((Failure::input("x").exit_code(), Failure::runtime("x").exit_code()), (2, 1));
        assert_eq!(Failure::input("no such device").to_string(), "no such device");
    }
}
