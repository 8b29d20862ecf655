#![forbid(unsafe_code)]
//! Dynamic rules: the states that `keep-state`, `limit`, `record-state` and `set-limit` make, and the parents of `limit`.
//!
//! Each worker owns its [`States`] and nobody else touches them: a flow belongs to the worker that its symmetric hash names, so both
//! directions meet in one table. What is exact over the whole box lives in [`Shared`]: the settings (`net.inet.ip.fw.dyn_*`), the number of
//! states against `dyn_max`, and the [`parent::Parents`] that count the states of one combination of a `limit` rule.
//!
//! *Life of a state.* [`States::install`] makes it; [`States::probe`] finds it by its flow in either direction, counts the packet and sets
//! its expiry from the protocol and, for TCP, from the flags seen in both directions ([`state`]); [`States::sweep`] ends it at its
//! expiry and says when a keep-alive is due. As on FreeBSD a state that has expired still matches until the sweep has met it, which is
//! less than a second later. A rule that goes takes its states with it ([`States::purge`]) or, with `dyn_keep_states`, leaves them orphaned.
//!
//! *Layout.* A state is one cache line, which holds everything that a packet of an IPv4 flow reads and writes. IPv6 addresses
//! lie in an array of their own. Buckets are one cache line too: ten 16-bit tags and the numbers of ten states. There are as many as the
//! states need: linear hashing splits one bucket whenever a few states were added, so the table grows without ever being copied
//! (`bucket`). Arrays have their full size reserved and never move; pages that no state ever used cost nothing.
//!
//! *Expiry.* A timing wheel of one-second slots (`wheel`). A packet only writes the new expiry into the state; the sweep, which
//! meets each state every few seconds, frees it or puts it into a later slot.
//!
//! *Bounds.* `dyn_max` states and `dyn_parent_max` parents in the box, whatever is sent; beyond that [`InstallError`] says which limit it was,
//! and the packet is dropped as on FreeBSD.

mod bucket;
pub mod key;
pub mod parent;
pub mod settings;
pub mod state;
mod states;
#[cfg(test)]
mod tests;
mod upkeep;
mod view;
mod wheel;

pub use key::{FlowKey, NameFilter, NameId, Names, PacketFacts, state_hash};
pub use settings::{Settings, Shared};
pub use state::{Direction, RuleRef};
pub use states::{Candidate, Hit, InstallError, LimitTo, NewState, StateIndex, States};
pub use view::{Fate, Keepalive, StateView};
