#![forbid(unsafe_code)]
//! The ipfw stage.

pub mod around;
pub mod classify;
pub mod compile;
pub mod counters;
pub mod dynamic;
pub mod edit;
pub mod execute;
pub mod fault;
pub mod header;
pub mod interval;
#[cfg(any(test, feature = "testing"))]
pub mod judge;
pub mod lister;
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
