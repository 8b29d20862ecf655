#![forbid(unsafe_code)]
//! The comparison of two judges, and random rules and packets for it.
//!
//! [`gateway`] is a whole gateway in memory, for tests of rules with packets. [`rules`], [`tests`], [`actions`] and [`packets`] are proptest strategies over small pools of addresses and ports ([`pool`]), so that rules do hit
//! and flows do come back; [`differ()`] sends the packets of a [`Traffic`] through two [`Judge`]s and compares all that can be seen.

pub mod actions;
pub mod build;
pub mod differ;
pub mod faulty;
pub mod frame;
pub mod gateway;
pub mod judge;
pub mod packets;
pub mod pool;
pub mod property;
pub mod rules;
pub mod solve;
pub mod tests;
pub mod twin;

pub use differ::{Difference, differ};
pub use faulty::Faulty;
pub use gateway::{Gateway, Plan, Seen, rule_set};
pub use judge::Judge;
pub use packets::{Packet, Traffic};
pub use property::{agrees, missed};
pub use solve::{Shot, Solver};
pub use twin::{Fate, Origin, Twin};
