//! Ferrule's packet path, from receive ring to transmit ring. It knows no filter and no rule language.
//!
//! The packet's way: [`port`] receive -> [`packet`] parse -> In hook -> [`forward`] (ours? TTL, route) -> Out hook -> MTU, rewrite
//! -> [`port`] transmit. `ARCHITECTURE.md` has the map.

pub mod arena;
pub mod batch;
pub mod clock;
pub mod counters;
pub mod fib;
pub mod forward;
pub mod host;
pub mod host_io;
pub mod neighbor;
pub mod packet;
pub mod port;
pub mod ports;
pub mod quiesce;
pub mod rate;
pub mod stage;
pub mod verdict;
pub mod wake;
pub mod worker;
pub mod world;

/// The examples of the page on embedding are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
pub struct Embedding;
