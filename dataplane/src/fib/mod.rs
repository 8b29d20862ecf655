//! Routes: longest-prefix match and the adjacencies it leads to.

#![forbid(unsafe_code)]

pub mod adjacency;
