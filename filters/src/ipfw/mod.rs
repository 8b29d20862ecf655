#![forbid(unsafe_code)]
//! The ipfw stage: FreeBSD's rules, compiled.
//!
//! - [`compile`] turns rules into a [`program::Program`]: entries in order, and a [`classify::Classifier`] of what they ask of header
//!   fields ([`header`], [`interval`], [`partition`], [`trie`]).
//! - A packet's header fields become one number, its *key*. Packets of one key meet the same header tests, so what the rules make of a key
//!   is found once, as a list of entries ([`memo`]), and then looked up.
//! - Most lists are a counter and a verdict. The rest are walked ([`execute`]): tests that need more than header fields ([`residual`]),
//!   states ([`dynamic`]), tables ([`table`]), tags and calls ([`notes`]), edits and refusals ([`edit`]).
//! - [`stage`] does it batch by batch; [`live`] exchanges the rules under it and keeps the counters ([`counters`]); [`log`] is what it tells.
//! - [`oracle`] is a plain interpreter that shares no matcher with all this; tests hold one against the other, and plant faults
//!   ([`fault`]) to see that they would notice.
//!
//! - Beyond pass and drop (`dispose`): pipes and queues ([`shape`], over [`crate::dummynet`]), NAT (`translate`, over [`crate::nat`]), `fwd`
//!   (`forwarding`), `reass` (`reassemble`), passes of the link layer (`layer2`), refusals (`refuse`), and keep-alives of states (`keepalive`).
//!
//! # What a control side does
//! Once: [`services::pair`] makes the ends of all workers' pipes and NAT; each worker's goes into [`around::Holdings::services`]. The seed is that
//! of the flow hash. With each change of the rule set ([`ferrule_config::ipfw::document::RuleSet`]), in this order:
//!
//! 1. tables ([`table::TableSet`]), then [`services::control::ServiceControl::follow`]: pipes, queues, schedulers and instances of NAT that are new
//!    or changed, and `one_pass`, `net.link.ether.ipfw` and `net.inet.ip.dummynet.*`. An error has changed nothing.
//! 2. [`compile`] and [`live::Live::replace`]. A worker carries out what was ordered before it uses rules that were put in force later.
//! 3. [`services::control::ServiceControl::settle`]: what the set has no more goes.
//!
//! Packets in pipes and states of NAT outlive all this, as long as their pipe or instance does; a packet that comes out of a pipe goes on
//! behind its rule as the rules are by then. What `pipe show`, `queue show`, `sched show` and `nat show` need comes by
//! [`services::control::ServiceControl::ask`] and [`answers`](services::control::ServiceControl::answers), dynamic rules by [`lister`].
//!
//! # Several workers
//! A flow is one worker's ([`ferrule_dataplane::stage::Stage::flow_owner`] asks the instances of NAT, else the hash says). A pipe is its
//! owner's, and what comes out of it goes home to the flow's worker; so does a datagram that `reass` has put together.
//!
//! # Bounds
//! A packet is sent to the rules of at most 16 states, goes on behind at most 256 rules at one hook, and jumps at most 4,096 times in one
//! search: where rules send packets round for ever, they are dropped. FreeBSD has no such bounds.

pub mod around;
pub mod classify;
pub mod compile;
pub mod counters;
mod dispose;
pub mod dynamic;
pub mod edit;
pub mod execute;
pub mod fault;
mod foresee;
mod forwarding;
pub mod header;
pub mod interval;
#[cfg(any(test, feature = "testing"))]
pub mod judge;
mod keepalive;
mod layer2;
pub mod lister;
pub mod live;
pub mod log;
pub mod memo;
pub mod notes;
pub mod oracle;
pub mod partition;
mod planted;
pub mod program;
mod reassemble;
mod refuse;
pub mod residual;
pub mod services;
pub mod shape;
pub mod stage;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod translate;
pub mod trie;
