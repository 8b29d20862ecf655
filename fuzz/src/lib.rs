//! Fuzz targets over the packet path and the languages, as plain functions.
//!
//! Each takes any bytes and panics when something that must hold does not: no input may do that. `fuzz_targets/` makes programs of them:
//! for libFuzzer with the feature `fuzzing`, and without it to replay files. `tests/fuzz_corpus.rs` in the root replays
//! `corpus/` and seeded mutations of it on every CI run; an input that once crashed something stays there as a file.

#![forbid(unsafe_code)]

mod frames;
mod gateway;
mod ipfw;
mod path;
pub mod seeds;
mod world;

use std::process::ExitCode;

pub use frames::{parse, reactions};
pub use gateway::gateway;
pub use ipfw::ipfw_rules;
pub use path::path;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its folder in `corpus/`.
pub const TARGETS: [(&str, Target); 5] =
    [("parse", parse), ("reactions", reactions), ("path", path), ("gateway", gateway), ("ipfw_rules", ipfw_rules)];

/// The main function of a target without libFuzzer: feeds it the files given as arguments.
pub fn replay(target: Target) -> ExitCode {
    let files: Vec<_> = std::env::args_os().skip(1).collect();
    if files.is_empty() {
        eprintln!("give files to replay, or build with --features fuzzing to fuzz");
        return ExitCode::from(2);
    }
    for file in &files {
        match std::fs::read(file) {
            Ok(bytes) => target(&bytes),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(2);
            }
        }
    }
    println!("{} files, nothing found", files.len());
    ExitCode::SUCCESS
}
