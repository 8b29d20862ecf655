#![forbid(unsafe_code)]
//! Why an ipfw command could not be carried out, and the exit codes that ipfw(8) gives (sysexits(3)).

use serde::Serialize;

use crate::diagnostic::{Diagnostic, quoted};
use crate::span::Span;

/// Exit codes of ipfw(8).
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// A failure that the original gives no name (dummynet, redirect targets).
    pub const FAILED: u8 = 1;
    /// EX_USAGE: the command was written wrong.
    pub const USAGE: u8 = 64;
    /// EX_DATAERR: a value is wrong.
    pub const DATA: u8 = 65;
    /// EX_NOHOST: an unknown host name.
    pub const NO_HOST: u8 = 68;
    /// EX_UNAVAILABLE: what is asked for is not there, or was refused.
    pub const UNAVAILABLE: u8 = 69;
    /// EX_OSERR: the firewall refused it.
    pub const OS: u8 = 71;
}

/// Texts of the error numbers that FreeBSD's firewall answers with (strerror(3) there).
pub mod errno {
    /// EEXIST
    pub const EXISTS: &str = "File exists";
    /// ESRCH
    pub const NOT_FOUND: &str = "No such process";
    /// EINVAL
    pub const INVALID: &str = "Invalid argument";
    /// EBUSY
    pub const BUSY: &str = "Device busy";
    /// EFBIG
    pub const TOO_BIG: &str = "File too large";
    /// EACCES
    pub const LOCKED: &str = "Permission denied";
    /// ENOTSUP
    pub const UNSUPPORTED: &str = "Operation not supported";
}

/// What went wrong, where in the command's text, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// One of [`exit`].
    pub exit: u8,
    /// As the original words it, without the program's name.
    pub message: String,
    /// Place in the text of the command.
    pub span: Span,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(exit: u8, span: Span, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), span, hint: None }
    }

    /// The command was written wrong.
    pub fn usage(span: Span, message: impl Into<String>) -> Self {
        Self::new(exit::USAGE, span, message)
    }

    /// A value is wrong.
    pub fn data(span: Span, message: impl Into<String>) -> Self {
        Self::new(exit::DATA, span, message)
    }

    /// The firewall refused it; `errno` is one of the texts of [`errno`].
    pub fn os(span: Span, what: impl AsRef<str>, errno: &str) -> Self {
        Self::new(exit::OS, span, format!("{}: {errno}", what.as_ref()))
    }

    /// Says what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what to do about it, where that is known.
    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// As a diagnostic of the command's text.
    pub fn diagnostic(&self) -> Diagnostic {
        Diagnostic::error(self.span, self.message.clone()).maybe_hint(self.hint.clone())
    }
}

/// An option word that is unknown: the original's message, with the nearest right word as hint.
pub fn unrecognised<'a>(word: &str, span: Span, known: impl IntoIterator<Item = &'a str>) -> Failure {
    Failure::data(span, format!("unrecognised option {}", quoted(word)))
        .maybe_hint(crate::suggest::did_you_mean(word, known))
}
