#![forbid(unsafe_code)]
//! The ipfw stage.

pub mod fault;
pub mod oracle;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
