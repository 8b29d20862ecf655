//! The compiled rules in a gateway in memory: FreeBSD's own expectations and scenarios, and each test and action of the language with a
//! packet that it is about and one that it is not.

mod actions;
mod common;
mod expectations;
mod scenarios;
mod tests;
