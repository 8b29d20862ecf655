#![forbid(unsafe_code)]
//! The ipfw stage.

pub mod dynamic;
pub mod table;
