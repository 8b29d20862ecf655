#![forbid(unsafe_code)]
//! The language of ipfw(8): rules, tables, address translation and the traffic shaper, as FreeBSD 14 and 15 write them.
//!
//! [`ast`] is what one rule means, [`table`], [`nat`] and [`dummynet`] what the other commands configure.

mod actions;
mod addresses;
pub mod ast;
pub mod check;
pub mod dummynet;
mod keywords;
mod lookup;
pub mod names;
pub mod nat;
mod numbers;
mod options;
pub mod parse;
pub mod print;
mod states;
pub mod table;
pub mod words;

#[cfg(test)]
mod tests;
