#![forbid(unsafe_code)]
//! Look-up tables of ipfw(8).
//!
//! [`TableSet`] is the control side: it creates tables, changes entries, and keeps what `list` and `info` show. [`Tables`], one for each
//! worker, looks keys up without locks.
//!
//! *How a change reaches the workers.* Which tables there are is one immutable list behind an `ArcSwap`; a worker takes the
//! newest at the start of its turn ([`Tables::turn`]), so a `swap` of two tables or a `flush` is seen as a whole, and between two turns. Entries
//! are changed in place in one arena that all tables share (`arena`): a look-up meets the old or the new answer, and no worker waits. What
//! was unlinked is used again when every worker was quiescent, in the sense of [`ferrule_dataplane::quiesce`]; a worker
//! keeps no [`ValueIndex`] from turn to turn.
//!
//! *Structures.* IPv4 prefixes: `address4`. IPv6 prefixes: the forwarding table's [`ferrule_dataplane::fib::Fib6`]. Numbers, flows, interfaces
//! (by port) and MAC prefixes (each length that occurs): `exact`.

mod address4;
mod address6;
mod answer;
mod arena;
mod content;
mod entries;
mod exact;
mod ranges;
mod reader;
mod set;
#[cfg(test)]
mod tests;
mod value;

pub use answer::{AddMode, EntryResult, TableError, TableId, TableInfo};
pub use reader::Tables;
pub use set::TableSet;
pub use value::ValueIndex;
