#![forbid(unsafe_code)]
//! The language of ipfw(8): rules, tables, address translation and the traffic shaper, as FreeBSD 14 and 15 write them.
//!
//! [`ast`] is what one rule means, [`table`], [`nat`] and [`dummynet`] what the other commands configure.

pub mod ast;
pub mod command;
pub mod document;
pub mod dummynet;
pub mod entry;
pub mod failure;
pub mod language;
pub mod names;
pub mod nat;
pub mod nat_config;
pub mod shaper_config;
pub mod show;
pub mod table;
pub mod variable;
