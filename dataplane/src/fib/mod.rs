#![forbid(unsafe_code)]
//! Forwarding tables: longest-prefix match and adjacencies for the workers, and the routing table that feeds them.
//!
//! Workers hold an `Arc<Fib>` and read it without locks; the control thread owns the [`RoutingTable`] and changes the
//! same memory in place by ordered atomic stores. What is unlinked is reused once every worker was quiescent
//! ([`crate::quiesce`]). A look-up is three steps: [`Fib4::lookup`] or [`Fib6::lookup`] gives an [`AdjacencyId`],
//! [`Adjacencies::resolve`] follows a multipath entry and reads the state, [`Adjacencies::rewrite`] gives the MACs.
//! All three belong to one turn of the worker's loop: ids are not kept over [`crate::quiesce::Worker::quiescent`].

pub mod adjacency;
mod hops;
mod memory;
mod path;
pub mod prefix;
mod reserved;
mod rib;
mod route;
pub mod table;
pub mod v4;
pub mod v6;

pub use adjacency::{Adjacencies, AdjacencyId, AdjacencyKind, AdjacencyView, Rewrite};
pub use hops::PortSettings;
pub use prefix::{MacAddress, PortId, Prefix, VlanTag};
pub use rib::RouteOrigin;
pub use route::{NextHop, RouteError, RouteKind};
pub use table::{RoutingTable, TableLimits};
pub use v4::Fib4;
pub use v6::Fib6;

use std::sync::Arc;

/// What workers read: [`RoutingTable::fib`] gives it.
pub struct Fib {
    /// IPv4 destinations.
    pub v4: Arc<Fib4>,
    /// IPv6 destinations.
    pub v6: Arc<Fib6>,
    /// What they lead to.
    pub adjacencies: Arc<Adjacencies>,
}
