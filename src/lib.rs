//! Ferrule: a software router for a two-NIC gateway box.
pub mod lab;

pub mod control;
pub mod failure;
pub mod log;
pub mod show;
pub mod snapshot;

pub mod kernel;
