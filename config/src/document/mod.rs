#![forbid(unsafe_code)]
//! A TOML text as a tree in which every key and value knows its place.
//!
//! Why not serde: it stops at the first mistake and forgets where the rest stood. Here duplicates are reported with both
//! places and reading goes on after an error.

mod build;

use crate::span::Span;
use std::collections::HashMap;

pub(crate) use build::parse;

/// A parsed text.
pub(crate) struct Document {
    /// The top table.
    pub root: Table,
    /// The text is not TOML: parts of the tree may be missing, so nothing should be reported as missing.
    pub broken: bool,
}

/// A decoded key and its place.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub text: String,
    pub span: Span,
}

/// A value and its place; a table's place is its header or its braces.
#[derive(Debug)]
pub(crate) struct Value {
    pub kind: Kind,
    pub span: Span,
}

/// What a value is.
#[derive(Debug)]
pub(crate) enum Kind {
    String(String),
    /// None: beyond 64 bits.
    Integer(Option<i64>),
    Float,
    Boolean(bool),
    DateTime,
    Array(Vec<Value>),
    /// `[[name]]` blocks; each is a `Table`.
    Tables(Vec<Value>),
    Table(Table),
    /// A syntax error, already reported.
    Invalid,
}

impl Kind {
    /// What to call it in a message.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "a number",
            Self::Float => "a fraction",
            Self::Boolean(_) => "true or false",
            Self::DateTime => "a date",
            Self::Array(_) => "a list",
            Self::Tables(_) => "a list of tables",
            Self::Table(_) => "a table",
            Self::Invalid => "nothing",
        }
    }
}

/// How a table came to be; decides what may be added to it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `a` of the header `[a.b]`.
    Implicit,
    /// A header of its own, or the top.
    Header,
    /// `a` of the key `a.b = 1`.
    Dotted,
    /// Braces.
    Inline,
}

/// One `key = value`.
#[derive(Debug)]
pub(crate) struct Entry {
    pub key: Key,
    pub value: Value,
}

/// Keys and values in the order of the text.
#[derive(Debug)]
pub(crate) struct Table {
    pub entries: Vec<Entry>,
    origin: Origin,
    index: HashMap<String, usize>,
}

impl Table {
    fn new(origin: Origin) -> Self {
        Self { entries: Vec::new(), origin, index: HashMap::new() }
    }

    /// The entry of a key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.position(key).map(|at| &self.entries[at])
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.index.get(key).copied()
    }

    /// Adds an entry whose key is not there yet, and says at which index.
    fn push(&mut self, key: Key, value: Value) -> usize {
        self.index.insert(key.text.clone(), self.entries.len());
        self.entries.push(Entry { key, value });
        self.entries.len() - 1
    }
}

#[cfg(test)]
mod tests;
