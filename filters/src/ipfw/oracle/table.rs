#![forbid(unsafe_code)]
//! Look-up tables as lists that are searched from one end to the other.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::{TableValueTest, ValueKind};
use ferrule_config::ipfw::table::{TableKey, TableKind, TableValue};

use super::setup::covers;

/// One table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// What it is looked up by. A key of another kind is never found.
    pub kind: TableKind,
    /// Its entries. Of two equal keys the first counts.
    pub entries: Vec<(TableKey, TableValue)>,
}

/// All tables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables(pub Vec<Table>);

/// What a table is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question<'a> {
    /// An address.
    Address(IpAddr),
    /// A number.
    Number(u32),
    /// An interface.
    Interface(&'a str),
    /// A MAC address.
    Mac([u8; 6]),
    /// A flow.
    Flow {
        /// Source and its port.
        source: (IpAddr, u16),
        /// Destination and its port.
        destination: (IpAddr, u16),
        /// Protocol.
        protocol: u8,
    },
}

impl Tables {
    /// What the table says; None where it, or a table of that name, says nothing.
    pub fn look_up(&self, name: &str, question: Question<'_>) -> Option<TableValue> {
        let table = self.0.iter().find(|table| table.name == name)?;
        let hits =
            table.entries.iter().rev().filter_map(|(key, value)| Some((hit(table.kind, key, question)?, *value)));
        hits.max_by_key(|(length, _)| *length).map(|(_, value)| value)
    }
}

/// How well an entry fits: the length of its prefix, where it has one.
fn hit(kind: TableKind, key: &TableKey, question: Question<'_>) -> Option<u8> {
    let (fits, length) = match (kind, key, question) {
        (TableKind::Address, TableKey::V4(prefix, length), Question::Address(address)) => {
            (covers(IpAddr::V4(*prefix), *length, address), *length)
        }
        (TableKind::Address, TableKey::V6(prefix, length), Question::Address(address)) => {
            (covers(IpAddr::V6(*prefix), *length, address), *length)
        }
        (TableKind::Number, TableKey::Number(entry), Question::Number(number)) => (*entry == number, 0),
        (TableKind::Interface, TableKey::Interface(entry), Question::Interface(name)) => (entry == name, 0),
        (TableKind::Mac, TableKey::Mac(prefix, length), Question::Mac(mac)) => {
            let differs =
                |bit: u8| (prefix[usize::from(bit / 8)] ^ mac[usize::from(bit / 8)]) & (0x80 >> (bit % 8)) != 0;
            (!(0..*length).any(differs), *length)
        }
        (TableKind::Flow(fields), TableKey::Flow { .. }, Question::Flow { source, destination, protocol }) => {
            let zero = |address: IpAddr| if address.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
            let asked = TableKey::Flow {
                source: if fields.source_address { source.0 } else { zero(source.0) },
                destination: if fields.destination_address { destination.0 } else { zero(destination.0) },
                protocol: if fields.protocol { protocol } else { 0 },
                source_port: if fields.source_port { source.1 } else { 0 },
                destination_port: if fields.destination_port { destination.1 } else { 0 },
            };
            (asked == *key, 0)
        }
        _ => (false, 0),
    };
    fits.then_some(length)
}

/// `table(NAME,VALUE)`. Without a kind FreeBSD compares the `tag`, which in legacy tables is the value written.
pub fn value_fits(wanted: Option<TableValueTest>, found: &TableValue) -> bool {
    let Some(wanted) = wanted else { return true };
    let is = match wanted.kind {
        Some(ValueKind::SkipTo) => found.skipto,
        Some(ValueKind::Pipe) => found.pipe,
        Some(ValueKind::Fib) => found.fib,
        Some(ValueKind::Nat) => found.nat,
        Some(ValueKind::Dscp) => u32::from(found.dscp),
        Some(ValueKind::Tag) | None => found.tag,
        Some(ValueKind::Divert) => found.divert,
        Some(ValueKind::Netgraph) => found.netgraph,
        Some(ValueKind::Limit) => found.limit,
        Some(ValueKind::Ipv4) => found.ipv4.to_bits(),
        // A number of 32 bits says nothing about an address of 128.
        Some(ValueKind::Ipv6) => return false,
        Some(ValueKind::Mark) => found.mark,
    };
    is == wanted.value
}
