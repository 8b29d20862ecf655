//! The packet path.

pub mod fib;
pub mod quiesce;
