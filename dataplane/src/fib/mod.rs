#![forbid(unsafe_code)]
//! Forwarding tables: longest-prefix match and adjacencies for the workers, and the routing table that feeds them.
//!
//! Workers hold an `Arc<Fib>` and read it without locks; the control thread owns the [`RoutingTable`] and changes the
//! same memory in place by ordered atomic stores. What is unlinked is reused once every worker was quiescent
//! ([`crate::quiesce`]). A look-up is three steps: [`Fib4::lookup`] or [`Fib6::lookup`] gives an [`AdjacencyId`],
//! [`Adjacencies::resolve`] follows a multipath entry and reads the state, [`Adjacencies::rewrite`] gives the MACs.
//! All three belong to one turn of the worker's loop: ids are not kept over [`crate::quiesce::Worker::quiescent`].

pub mod adjacency;
mod memory;
pub mod prefix;
pub mod v4;

pub use adjacency::{Adjacencies, AdjacencyId, AdjacencyKind, AdjacencyView, Rewrite};
pub use prefix::{MacAddress, PortId, Prefix, VlanTag};
pub use v4::Fib4;

use std::sync::Arc;

/// What workers read: both tables and the adjacencies that they lead to.
pub struct Fib {
    /// IPv4.
    pub v4: Arc<Fib4>,
    /// IPv6.
    pub v6: Fib6Stub,
    /// Where look-ups lead.
    pub adjacencies: Arc<Adjacencies>,
}

/// stub
pub struct Fib6Stub;
impl Fib6Stub {
    /// stub
    pub fn lookup(&self, _d: u128) -> AdjacencyId {
        AdjacencyId(0)
    }
}
