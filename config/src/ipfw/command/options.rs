#![forbid(unsafe_code)]
//! The options before a command: `-a`, `-q`, `-atT`, `-s 3` ...

use serde::{Deserialize, Serialize};

use super::words::{CommandLine, Words};
use crate::ipfw::failure::Failure;

/// How the time of the last match is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Timestamp {
    /// Not at all.
    #[default]
    None,
    /// `-t`: as a date.
    Text,
    /// `-T`: in seconds since 1970.
    Numeric,
}

/// Whether dynamic rules are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dynamic {
    /// Rules only.
    #[default]
    No,
    /// `-d`: after the rules.
    Also,
    /// `-D`: nothing else; `delete` deletes only them.
    Only,
}

/// Options of ipfw(8).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// `-a`: counters.
    pub counters: bool,
    /// `-b`: action and comment only.
    pub comment_only: bool,
    /// `-c`: without `ip from any to any`.
    pub compact: bool,
    /// `-d`, `-D`.
    pub dynamic: Dynamic,
    /// `-f`: no question, and failed deletions are no failure; also set where standard input is no terminal.
    pub force: bool,
    /// `-h`.
    pub help: bool,
    /// `-i`: table values as addresses.
    pub value_as_address: bool,
    /// `-n`: check only.
    pub check_only: bool,
    /// `-N`: names instead of numbers.
    pub names: bool,
    /// `-q`: quiet.
    pub quiet: bool,
    /// `-s`: column that pipes are sorted by; accepted, without effect as in FreeBSD.
    pub sort: i32,
    /// `-S`: sets, and disabled rules too.
    pub sets: bool,
    /// `-t`, `-T`.
    pub time: Timestamp,
    /// `-v`.
    pub verbose: bool,
}

impl Options {
    /// Takes the options off the front of a command, in addition to those there are.
    ///
    /// # Errors
    /// An unknown option, or `-p` (which needs a file).
    pub(super) fn take(&mut self, line: &CommandLine, words: &mut Words<'_>) -> Result<(), Failure> {
        while let Some(word) = words.peek() {
            let Some(letters) = word.text.strip_prefix('-').filter(|letters| !letters.is_empty()) else { break };
            words.next();
            if letters == "-" {
                break;
            }
            for (at, letter) in letters.char_indices() {
                match letter {
                    'a' => self.counters = true,
                    'b' => (self.comment_only, self.compact) = (true, true),
                    'c' => self.compact = true,
                    'd' => self.dynamic = Dynamic::Also,
                    'D' => self.dynamic = Dynamic::Only,
                    // Expired dynamic rules are not kept, there as here.
                    'e' => {}
                    'f' => self.force = true,
                    'h' => self.help = true,
                    'i' => self.value_as_address = true,
                    'n' => self.check_only = true,
                    'N' => self.names = true,
                    'q' => self.quiet = true,
                    's' => {
                        let attached = &letters[at + 1..];
                        let value = if attached.is_empty() {
                            let missing = || Failure::usage(line.end(), "option requires an argument -- s");
                            words.next().ok_or_else(missing)?.text.as_str()
                        } else {
                            attached
                        };
                        self.sort = value.parse().unwrap_or(0);
                        break;
                    }
                    'S' => self.sets = true,
                    't' => self.time = Timestamp::Text,
                    'T' => self.time = Timestamp::Numeric,
                    'v' => self.verbose = true,
                    'p' => {
                        return Err(Failure::usage(word.span, "An absolute pathname must be used with -p option."));
                    }
                    other => {
                        return Err(Failure::usage(word.span, format!("illegal option -- {}", other.escape_debug()))
                            .hint("`ipfw -h` lists the options"));
                    }
                }
            }
        }
        Ok(())
    }
}
