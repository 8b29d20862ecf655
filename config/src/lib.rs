#![forbid(unsafe_code)]
//! Ferrule's languages: text in, checked meaning or *all* diagnostics out.
//!
//! This crate is pure. It opens no file, asks nothing of the machine it runs on and imports none of the other crates;
//! whatever needs the machine ("no such device", "no such group") is checked by the program, which complains at the
//! [`Span`]s kept in the parsed values.
//!
//! - [`gateway`]: the language of `gateway.toml`.
//! - [`ipfw`]: the language of ipfw(8).
//! - [`diagnostic`], [`span`], [`suggest`]: errors with file:line:column, a hint and "did you mean", shared by every
//!   language of this crate.

pub mod diagnostic;
mod document;
pub mod gateway;
pub mod ipfw;
mod render;
pub mod span;
pub mod suggest;

pub use diagnostic::{Diagnostic, Diagnostics, Label, Severity};
pub use render::{Color, render_all};
pub use span::{Located, Place, Position, Source, Span};
