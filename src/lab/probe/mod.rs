//! Probes: real programs run in a lab's hosts, and what they say as numbers.
//!
//! Each names the program it needs; a missing one is [`super::LabError::MissingTool`]. Tests ask
//! [`super::tools::can_test`] first.

pub mod capture;
pub mod counters;
pub mod frame;
pub mod generator;
pub mod http;
pub mod iperf;
pub mod live;
pub mod ping;
pub mod routing;
pub mod trace;
