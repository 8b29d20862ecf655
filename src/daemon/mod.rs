//! `ferrule run`: puts the gateway together, keeps it together, takes it apart.
//!
//! Threads: one per worker (the packet path), one for host I/O, one that follows the kernel (`kernel`), one supervisor, and those of
//! the control socket. The control side meets in [`core::Core`]; nothing here runs per packet.

#![forbid(unsafe_code)]

pub mod attach;
pub mod core;
pub mod gateway;
pub mod helper;
pub mod host;
pub mod ipfw;
pub mod plan;
pub mod privileges;
pub mod sink;
pub mod start;
pub mod supervise;

pub use host::{STATE_DIRECTORY, failure as kernel_failure};
pub use start::{RunOptions, run};
