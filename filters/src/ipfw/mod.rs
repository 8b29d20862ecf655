#![forbid(unsafe_code)]
//! The ipfw stage: FreeBSD's rules, compiled.
//!
//! - [`compile`] turns rules into a [`program::Program`]: entries in order, and a [`classify::Classifier`] of what they ask of header
//!   fields ([`header`], [`interval`], [`partition`], [`trie`]).
//! - A packet's header fields become one number, its *key*. Packets of one key meet the same header tests, so what the rules make of a key
//!   is found once, as a list of entries ([`memo`]), and then looked up.
//! - Most lists are a counter and a verdict. The rest are walked ([`execute`]): tests that need more than header fields ([`residual`]),
//!   states ([`dynamic`]), tables ([`table`]), tags and calls ([`notes`]), edits and refusals ([`edit`]).
//! - [`stage`] does it batch by batch; [`live`] exchanges the rules under it and keeps the counters ([`counters`]); [`log`] is what it tells.
//! - [`oracle`] is a plain interpreter that shares no matcher with all this; tests hold one against the other, and plant faults
//!   ([`fault`]) to see that they would notice.
//!
//! A bound: rules that call each other without end drop the packet after 4,096 jumps. FreeBSD has none.

pub mod around;
pub mod classify;
pub mod compile;
pub mod counters;
pub mod dynamic;
pub mod edit;
pub mod execute;
pub mod fault;
mod foresee;
pub mod header;
pub mod interval;
#[cfg(any(test, feature = "testing"))]
pub mod judge;
pub mod live;
pub mod log;
pub mod memo;
pub mod notes;
pub mod oracle;
pub mod partition;
mod planted;
pub mod program;
mod refuse;
pub mod residual;
pub mod stage;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trie;
