//! Ferrule: a software router for a two-NIC gateway box.
pub mod lab;
