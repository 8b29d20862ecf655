#![forbid(unsafe_code)]
//! The ipfw stage.

pub mod classify;
pub mod compile;
pub mod edit;
pub mod execute;
pub mod fault;
pub mod header;
pub mod interval;
pub mod memo;
pub mod notes;
pub mod oracle;
pub mod partition;
mod planted;
pub mod program;
pub mod residual;
pub mod stage;
pub mod trie;
