//! Routes: longest-prefix match and the adjacencies it leads to.

#![forbid(unsafe_code)]

pub mod adjacency;

/// Placeholder until the branch that builds the tables is merged.
pub struct Fib;
