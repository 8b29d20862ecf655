#![forbid(unsafe_code)]
//! The simple version of ipfw: an interpreter that walks the rules as they were written, one packet at a time.
//!
//! It exists to be compared with. Each part is written as ipfw(8) and `ipfw_chk` of FreeBSD 14 have it, with lists that are searched
//! from one end to the other, and shares nothing with the compiled engine: no matcher, no reader of packets, no state table. Where it
//! and the engine disagree, one of them is wrong, and this one is short enough to be read.
//!
//! Things that one would not guess, and that FreeBSD does:
//! - The value of the last table look-up (`tablearg`) outlives `skipto`, `call` and `return`, but not the step to the next rule.
//! - What is not IP counts packets but no bytes.
//! - A fragment that `reass` takes is counted twice by that rule.
//! - `established` is everything but a lone SYN.
//! - `reset` and `abort` answer an IPv6 packet with "administratively prohibited".
//! - The callers that wait for a `return` go with the packet into its out pass; the mark does not.
//! - A group of states is looked up again when another one was in between, so that rules can lead back to each other for ever; here
//!   [`STATE_JUMPS`] and [`CALLS`] end that.
//! - After a `check-state :any` that found nothing, `keep-state` looks no more, though it finds the flow when it makes its state.

mod action;
pub mod annotations;
pub mod dice;
mod edit;
mod interpreter;
mod matching;
mod options;
pub mod outcome;
pub mod pass;
mod pattern;
mod refusal;
pub mod setup;
pub mod state;
pub mod table;
#[cfg(test)]
mod tests;
mod view;
mod view6;

pub use annotations::{Annotations, CALL_DEPTH, Caller};
pub use dice::Dice;
pub use interpreter::{CALLS, Oracle, STATE_JUMPS};
pub use outcome::{Counter, LogEntry, Outcome, Resume, Verdict};
pub use pass::{Direction, Pass};
pub use setup::{Environment, Interface, Lifetimes, Route, Settings, Setup};
pub use state::{Flow, State, Way};
pub use table::{Table, Tables};
pub use view::{Family, View};
