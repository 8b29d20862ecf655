#![forbid(unsafe_code)]
//! `table ... info`, `detail` and `list`.

use std::cmp::Ordering;
use std::fmt::Write;

use serde::Serialize;

use crate::ipfw::ast::ValueKind;
use crate::ipfw::document::Table;
use crate::ipfw::entry::{print_key, print_value};
use crate::ipfw::keywords::VALUE_KINDS;
use crate::ipfw::table::{TableKey, TableKind, TableValue};

/// What `info` tells of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableInfo {
    /// Name.
    pub name: String,
    /// Set it belongs to; 0 while tables have none of their own (`net.inet.ip.fw.tables_sets`).
    pub set: u8,
    /// Number of the table inside the firewall.
    pub kindex: u32,
    /// Kind of its keys.
    pub kind: TableKind,
    /// Kinds of its values; none is the legacy kind.
    pub values: Vec<ValueKind>,
    /// `algo` as given, None for the usual one.
    pub algorithm: Option<String>,
    /// Rules that look it up.
    pub references: u32,
    /// Entries of IPv4 (and of every kind but addresses).
    pub items: u32,
    /// Entries of IPv6.
    pub items6: u32,
    /// Bound, 0 for none.
    pub limit: u32,
    /// Locked.
    pub locked: bool,
}

impl TableInfo {
    /// What there is to tell of `table`.
    pub fn of(name: &str, table: &Table, kindex: u32, references: u32) -> Self {
        let items6 = table.entries.keys().filter(|key| matches!(key, TableKey::V6(..))).count() as u32;
        let options = &table.options;
        Self {
            name: name.to_owned(),
            set: 0,
            kindex,
            kind: options.kind,
            values: options.values.clone(),
            algorithm: options.algorithm.clone(),
            references,
            items: table.entries.len() as u32 - items6,
            items6,
            limit: options.limit,
            locked: options.locked,
        }
    }
}

/// `--- table(NAME), set(N) ---`
pub fn heading(name: &str, set: u8) -> String {
    format!("--- table({name}), set({set}) ---\n")
}

/// The lines of `info`; `detailed` is `detail`.
pub fn info(info: &TableInfo, detailed: bool) -> String {
    let mut out = heading(&info.name, info.set);
    let locked = if info.locked { ", locked" } else { "" };
    let _ = writeln!(out, " kindex: {}, type: {}{locked}", info.kindex, kind(info.kind));
    let _ = writeln!(out, " references: {}, valtype: {}", info.references, value_kinds(&info.values));
    let usual = || usual_algorithm(info.kind).to_owned();
    let algorithm = info.algorithm.clone().unwrap_or_else(usual);
    let _ = writeln!(out, " algorithm: {algorithm}");
    let items = info.items + info.items6;
    // The size of FreeBSD's dump of the table: 296 bytes and 128 for each entry.
    let _ = writeln!(out, " items: {items}, size: {}", 296 + 128 * u64::from(items));
    if info.limit > 0 {
        let _ = writeln!(out, " limit: {}", info.limit);
    }
    if detailed {
        match info.kind {
            TableKind::Address => {
                for (family, items) in [("IPv4", info.items), ("IPv6", info.items6)] {
                    let _ = write!(out, " {family} algorithm radix info\n  items: {items} itemsize: {ITEM_SIZE}\n");
                }
            }
            TableKind::Mac => {
                let _ = write!(out, " algorithm radix info\n  items: {items} itemsize: {ITEM_SIZE}\n");
            }
            TableKind::Interface | TableKind::Number | TableKind::Flow(_) => {
                let class = algorithm.split(':').nth(1).and_then(|class| class.split(' ').next()).unwrap_or("hash");
                let size = items.next_power_of_two().max(64);
                let _ = write!(out, " algorithm {class} info\n  size: {size} items: {items} itemsize: {ITEM_SIZE}\n");
            }
        }
    }
    out
}

/// Bytes of one entry here, for `detail`.
const ITEM_SIZE: usize = size_of::<(TableKey, TableValue)>();

/// The type as `info` names it.
pub fn kind(kind: TableKind) -> String {
    match kind {
        TableKind::Address => "addr".to_owned(),
        TableKind::Interface => "iface".to_owned(),
        TableKind::Number => "number".to_owned(),
        TableKind::Mac => "mac".to_owned(),
        TableKind::Flow(fields) => {
            let words = [
                (fields.source_address, "src-ip"),
                (fields.protocol, "proto"),
                (fields.source_port, "src-port"),
                (fields.destination_address, "dst-ip"),
                (fields.destination_port, "dst-port"),
            ];
            let words: Vec<&str> = words.iter().filter(|(has, _)| *has).map(|&(_, word)| word).collect();
            format!("flow:{}", words.join(","))
        }
    }
}

fn value_kinds(values: &[ValueKind]) -> String {
    if values.is_empty() {
        return "legacy".to_owned();
    }
    let names = VALUE_KINDS.iter().filter(|(_, kind)| values.contains(kind)).map(|&(name, _)| name);
    names.collect::<Vec<_>>().join(",")
}

/// The algorithm of a table that names none.
pub(crate) fn usual_algorithm(kind: TableKind) -> &'static str {
    match kind {
        TableKind::Address => "addr:radix",
        TableKind::Interface => "iface:array",
        TableKind::Number => "number:array",
        TableKind::Flow(_) => "flow:hash",
        TableKind::Mac => "mac:radix",
    }
}

/// One line of `list`; also what `add`, `delete` and `lookup` show.
pub fn entry(kind: TableKind, values: &[ValueKind], key: &TableKey, value: &TableValue, as_address: bool) -> String {
    format!("{} {}\n", print_key(kind, key), print_value(values, value, as_address))
}

/// The lines of `list`: entries in the order of their keys, a longer prefix before the shorter ones of the same address.
pub fn list(table: &Table, as_address: bool) -> String {
    let mut entries: Vec<_> = table.entries.iter().collect();
    entries.sort_by(|(a, _), (b, _)| order(a, b));
    entries
        .into_iter()
        .map(|(key, value)| entry(table.options.kind, &table.options.values, key, value, as_address))
        .collect()
}

fn order(a: &TableKey, b: &TableKey) -> Ordering {
    match (a, b) {
        (TableKey::V4(a, m), TableKey::V4(b, n)) => a.cmp(b).then(n.cmp(m)),
        (TableKey::V6(a, m), TableKey::V6(b, n)) => a.cmp(b).then(n.cmp(m)),
        (TableKey::Mac(a, m), TableKey::Mac(b, n)) => a.cmp(b).then(n.cmp(m)),
        _ => a.cmp(b),
    }
}

/// Names in the order of `table all`: shorter ones first, so that numbers are in their order.
pub fn name_order(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::command::ALL_FIELDS;

    #[test]
    fn info_and_detail() {
        let mut table = Table::automatic(TableKind::Address);
        table.entries.insert(TableKey::V4([10, 0, 0, 0].into(), 8), TableValue::default());
        table.options.limit = 5;
        table.options.locked = true;
        let row = TableInfo::of("x", &table, 3, 2);
        let expected = "--- table(x), set(0) ---\n kindex: 3, type: addr, locked\n references: 2, valtype: legacy\n \
                        algorithm: addr:radix\n items: 1, size: 424\n limit: 5\n";
        assert_eq!(info(&row, false), expected);
        let detail = info(&row, true);
        assert!(
            detail.starts_with(expected) && detail.contains(" IPv4 algorithm radix info\n  items: 1 itemsize: "),
            "{detail}"
        );
        let row =
            TableInfo { kind: TableKind::Flow(ALL_FIELDS), values: vec![ValueKind::SkipTo, ValueKind::Nat], ..row };
        let text = info(&row, false);
        assert!(text.contains("type: flow:src-ip,proto,src-port,dst-ip,dst-port, locked\n"), "{text}");
        assert!(text.contains("valtype: skipto,nat\n algorithm: flow:hash\n"), "{text}");
    }

    #[test]
    fn longer_prefixes_come_first() {
        let mut table = Table::automatic(TableKind::Address);
        for (address, length) in [([10, 0, 0, 0], 8), ([10, 0, 0, 0], 24), ([9, 0, 0, 0], 8)] {
            table.entries.insert(TableKey::V4(address.into(), length), TableValue::default());
        }
        table.entries.insert(TableKey::V6(std::net::Ipv6Addr::LOCALHOST, 128), TableValue::default());
        assert_eq!(list(&table, false), "9.0.0.0/8 0\n10.0.0.0/24 0\n10.0.0.0/8 0\n::1/128 0\n");
        let mut names = ["10", "9", "b", "all2"];
        names.sort_by(|a, b| name_order(a, b));
        assert_eq!(names, ["9", "b", "10", "all2"]);
    }
}
