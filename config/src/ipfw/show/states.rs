#![forbid(unsafe_code)]
//! `list -d`: dynamic rules.

use std::fmt::Write;
use std::net::IpAddr;

use serde::Serialize;

use super::rules::{ListContext, Widths};

/// One dynamic rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateRow {
    /// Number of the rule that made it.
    pub rule: u16,
    /// Set of that rule.
    pub set: u8,
    /// Packets in both directions.
    pub packets: u64,
    /// Bytes in both directions.
    pub bytes: u64,
    /// Seconds until it ends.
    pub expires_s: u32,
    /// What made it.
    pub kind: StateKind,
    /// IP protocol.
    pub protocol: u8,
    /// Source of the packet that made it.
    pub source: IpAddr,
    /// Its source port.
    pub source_port: u16,
    /// Its destination.
    pub destination: IpAddr,
    /// Its destination port.
    pub destination_port: u16,
    /// Name of the group (`default` where none was written).
    pub name: String,
    /// TCP flags seen: low byte forward, next byte backward.
    pub flags: u32,
    /// Last acknowledgement forward.
    pub acknowledged_forward: u32,
    /// Last acknowledgement backward.
    pub acknowledged_reverse: u32,
}

/// What a dynamic rule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum StateKind {
    /// Of keep-state or record-state.
    State,
    /// Of limit or set-limit.
    Limit,
    /// The counter of a limit, with how many states it has.
    Parent(u32),
}

/// Bytes of FreeBSD's dump of so many states, which the heading shows.
pub(super) fn dump_size(states: usize) -> usize {
    16 + 128 * states
}

const SYN: u32 = 0x02;
const FIN: u32 = 0x01;

/// One line.
pub(super) fn line(out: &mut String, row: &StateRow, widths: Widths, context: ListContext<'_>) {
    if row.expires_s == 0 && !matches!(row.kind, StateKind::Parent(_)) {
        return;
    }
    let _ = write!(out, "{:05}", row.rule);
    if widths.packets > 0 {
        let _ =
            write!(out, " {:>1$} {2:>3$} ({4}s)", row.packets, widths.packets, row.bytes, widths.bytes, row.expires_s);
    }
    match row.kind {
        StateKind::Parent(count) => {
            let _ = write!(out, " PARENT {count}");
        }
        StateKind::Limit => out.push_str(" LIMIT"),
        StateKind::State => out.push_str(" STATE"),
    }
    let protocol = super::protocol(row.protocol, context.names, "proto ");
    let _ = write!(
        out,
        " {protocol} {} {} <-> {} {} :{}",
        row.source, row.source_port, row.destination, row.destination_port, row.name
    );
    if context.options.verbose {
        let _ = write!(out, " state 0x{:08x}{}", row.flags, if row.flags != 0 { " " } else { "," });
        for (flag, name) in [(SYN, "SYN"), (FIN, "FIN")] {
            match (row.flags & flag != 0, row.flags & (flag << 8) != 0) {
                (true, true) => _ = write!(out, "BOTH_{name},"),
                (true, false) => _ = write!(out, "F_{name},"),
                (false, true) => _ = write!(out, "R_{name},"),
                (false, false) => {}
            }
        }
        let _ = write!(out, " f_ack 0x{:x}, r_ack 0x{:x}", row.acknowledged_forward, row.acknowledged_reverse);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::command::{Dynamic, List, Options};
    use crate::ipfw::names::builtin;
    use crate::ipfw::show::rules::list;

    fn row() -> StateRow {
        StateRow {
            rule: 100,
            set: 0,
            packets: 5,
            bytes: 420,
            expires_s: 300,
            kind: StateKind::State,
            protocol: 6,
            source: "10.0.0.1".parse().unwrap(),
            source_port: 1234,
            destination: "10.0.0.2".parse().unwrap(),
            destination_port: 80,
            name: "default".to_owned(),
            flags: 0x0202,
            acknowledged_forward: 0x10,
            acknowledged_reverse: 0,
        }
    }

    fn listed(states: &[StateRow], counters: bool, verbose: bool) -> String {
        let options = Options { dynamic: Dynamic::Only, verbose, ..Options::default() };
        let request = List { set: None, counters, ranges: Vec::new() };
        list(&request, &[], states, ListContext { options: &options, names: builtin(), utc_offset_s: 0 }).stdout
    }

    #[test]
    fn states_limits_and_parents() {
        let limit = StateRow { kind: StateKind::Limit, protocol: 253, packets: 1000, ..row() };
        let parent = StateRow { kind: StateKind::Parent(2), expires_s: 0, source: "::1".parse().unwrap(), ..row() };
        let ended = StateRow { expires_s: 0, ..row() };
        assert_eq!(
            listed(&[row(), limit, parent, ended], true, false),
            "## Dynamic rules (4 528):\n\
             00100    5 420 (300s) STATE tcp 10.0.0.1 1234 <-> 10.0.0.2 80 :default\n\
             00100 1000 420 (300s) LIMIT proto 253 10.0.0.1 1234 <-> 10.0.0.2 80 :default\n\
             00100    5 420 (0s) PARENT 2 tcp ::1 1234 <-> 10.0.0.2 80 :default\n"
        );
        assert_eq!(
            listed(&[row()], false, true),
            "## Dynamic rules (1 144):\n\
             00100 STATE tcp 10.0.0.1 1234 <-> 10.0.0.2 80 :default state 0x00000202 BOTH_SYN, f_ack 0x10, r_ack 0x0\n"
        );
    }
}
