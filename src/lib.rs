//! Ferrule: a software router for a two-NIC gateway box.

pub mod cli;
pub mod compare;
pub mod configuration;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod failure;
pub mod ipfw;
pub mod kernel;
pub mod lab;
pub mod log;
pub mod metrics;
pub mod ministat;
pub mod pktgen;
pub mod privilege;
pub mod program;
pub mod restore;
pub mod show;
pub mod signals;
pub mod snapshot;
pub mod top;
pub mod watchdog;
