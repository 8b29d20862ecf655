#![forbid(unsafe_code)]
//! The language of ipfw(8): rules, tables, address translation and the traffic shaper, as FreeBSD 14 and 15 write them.
//!
//! [`ast`] is what one rule means, [`table`], [`nat`] and [`dummynet`] what the other commands configure. [`command`] takes a call of
//! ipfw(8) apart, [`pending`] carries it out, [`document`] is what a series of them comes to, and [`show`] prints.

mod actions;
mod addresses;
pub mod ast;
mod body;
pub mod check;
pub mod command;
pub mod document;
pub mod dummynet;
pub mod entry;
pub mod failure;
pub mod grammar;
mod keywords;
pub mod language;
mod lookup;
mod mac;
pub mod names;
pub mod nat;
pub mod nat_config;
mod numbers;
mod options;
pub mod parse;
pub mod pending;
pub mod print;
mod reader;
pub mod shaper_config;
pub mod show;
mod states;
pub mod table;
pub mod variable;
pub mod words;

#[cfg(test)]
mod tests;
