#![forbid(unsafe_code)]
//! What a packet carries along with its bytes.

use std::collections::BTreeSet;

/// Facts that rules hang on a packet. They go with it from the in pass to the out pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// Tags (`tag`, `untag`, `tagged`).
    pub tags: BTreeSet<u32>,
    /// `setmark`. As in FreeBSD it is 0 again when a pass begins, and kept when one is resumed.
    pub mark: u32,
    /// Routing table (`setfib`).
    pub fib: u32,
    /// Rules that called and have not been returned to, oldest first: FreeBSD keeps them with the packet, also into the out pass.
    pub callers: Vec<Caller>,
}

/// A rule whose `call` waits for a `return`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its number.
    pub number: u16,
    /// Its index in the order of rules.
    pub index: usize,
}

/// Most calls that can wait: one more goes to the next rule instead (`IPFW_CALLSTACK_SIZE`).
pub const CALL_DEPTH: usize = 16;
