//! What becomes of a packet between the hooks, and what Ferrule itself says about it.

#![forbid(unsafe_code)]

pub mod answer;
mod build;
pub mod fragment;
pub mod icmp;
pub mod punt;
pub mod reset;
#[cfg(test)]
mod testing;
