#![forbid(unsafe_code)]
//! The comparison of two judges, and random rules and packets for it.
//!
//! [`rules`], [`tests`], [`actions`] and [`packets`] are proptest strategies over small pools of addresses and ports ([`pool`]), so that rules do hit
//! and flows do come back; [`differ()`] sends the packets of a [`Traffic`] through two [`Judge`]s and compares all that can be seen.

pub mod actions;
pub mod build;
pub mod differ;
pub mod faulty;
pub mod frame;
pub mod judge;
pub mod packets;
pub mod pool;
pub mod property;
pub mod rules;
pub mod tests;

pub use differ::{Difference, differ};
pub use faulty::Faulty;
pub use judge::Judge;
pub use packets::{Packet, Traffic};
pub use property::{agrees, missed};
