#![forbid(unsafe_code)]
//! The language of ipfw(8): rules, tables, address translation and the traffic shaper, as FreeBSD 14 and 15 write them.
//!
//! [`ast`] is what one rule means, [`table`], [`nat`] and [`dummynet`] what the other commands configure.

pub mod ast;
pub mod dummynet;
pub mod nat;
pub mod table;
