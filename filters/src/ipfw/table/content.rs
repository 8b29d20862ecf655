#![forbid(unsafe_code)]
//! The entries of one table, of whatever kind.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ferrule_config::ipfw::table::{FlowFields, TableKey, TableKind};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::Domain;

use super::address4::Writer4;
use super::address6::Writer6;
use super::arena::{Allocator, NoRoom};
use super::exact::Exact;
use super::reader::{TableData, flow_words, mac_number, mac_word};
use crate::ipfw::dynamic::FlowKey;

/// A key in the form that its kind of table works with.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    V4(u32, u8),
    V6(u128, u8),
    /// A number, or a MAC prefix as [`mac_word`] makes it.
    Word(u64),
    Name(String),
    Flow([u64; 5]),
}

enum Kind {
    Address(Box<Writer4>, Box<Writer6>),
    Number(Exact<1>),
    Interface { names: BTreeMap<String, u32>, ports: Exact<1> },
    Flow(FlowFields, Exact<5>),
    Mac(Exact<1>, [u32; 49]),
}

/// The entries, and what workers see of them.
pub(super) struct Content {
    pub(super) data: Arc<TableData>,
    kind: Kind,
}

impl Content {
    pub(super) fn new(kind: TableKind, seed: u64) -> Content {
        let fields = if let TableKind::Flow(fields) = kind { Some(fields) } else { None };
        let data = TableData { root: AtomicU64::new(0), v6: OnceLock::new(), lengths: AtomicU64::new(0), fields };
        let kind = match kind {
            TableKind::Address => Kind::Address(Box::default(), Box::default()),
            TableKind::Interface => Kind::Interface { names: BTreeMap::new(), ports: Exact::new(seed) },
            TableKind::Number => Kind::Number(Exact::new(seed)),
            TableKind::Flow(fields) => Kind::Flow(fields, Exact::new(seed)),
            TableKind::Mac => Kind::Mac(Exact::new(seed), [0; 49]),
        };
        Content { data: Arc::new(data), kind }
    }

    /// The key in this table's form; None where it is of another kind.
    pub(super) fn key(&self, key: &TableKey) -> Option<Key> {
        match (&self.kind, key) {
            (Kind::Address(..), TableKey::V4(address, length)) if *length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*length)).unwrap_or(0);
                Some(Key::V4(address.to_bits() & mask, *length))
            }
            (Kind::Address(..), TableKey::V6(address, length)) if *length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*length)).unwrap_or(0);
                Some(Key::V6(address.to_bits() & mask, *length))
            }
            (Kind::Number(_), TableKey::Number(number)) => Some(Key::Word(u64::from(*number))),
            (Kind::Interface { .. }, TableKey::Interface(name)) => Some(Key::Name(name.clone())),
            (Kind::Mac(..), TableKey::Mac(mac, length)) if *length <= 48 => {
                Some(Key::Word(mac_word(mac_number(*mac), *length)))
            }
            (
                Kind::Flow(fields, _),
                TableKey::Flow { source, destination, protocol, source_port, destination_port },
            ) => {
                let (protocol, ports) = (*protocol, (*source_port, *destination_port));
                let flow = match (source, destination) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => FlowKey::v4(s.to_bits(), d.to_bits(), protocol, ports.0, ports.1),
                    (IpAddr::V6(s), IpAddr::V6(d)) => FlowKey::v6(s.to_bits(), d.to_bits(), protocol, ports.0, ports.1),
                    _ => return None,
                };
                Some(Key::Flow(flow_words(&flow, fields)))
            }
            _ => None,
        }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Address(v4, v6) => v4.len() + v6.len(),
            Kind::Number(exact) | Kind::Mac(exact, _) => exact.len(),
            Kind::Interface { names, .. } => names.len(),
            Kind::Flow(_, exact) => exact.len(),
        }
    }

    /// The answer of exactly this key.
    pub(super) fn get(&self, key: &Key) -> Option<u32> {
        match (&self.kind, key) {
            (Kind::Address(v4, _), Key::V4(address, length)) => v4.get(*address, *length),
            (Kind::Address(_, v6), Key::V6(address, length)) => v6.get(*address, *length),
            (Kind::Number(exact) | Kind::Mac(exact, _), Key::Word(word)) => exact.get(&[*word]),
            (Kind::Interface { names, .. }, Key::Name(name)) => names.get(name).copied(),
            (Kind::Flow(_, exact), Key::Flow(words)) => exact.get(words),
            _ => None,
        }
    }

    /// The entry that a packet with this key would meet: for prefixes the longest that holds it.
    pub(super) fn matching(&self, key: &Key) -> Option<(Key, u32)> {
        match (&self.kind, key) {
            (Kind::Address(v4, _), Key::V4(address, _)) => {
                v4.matching(*address).map(|(address, length, answer)| (Key::V4(address, length), answer))
            }
            (Kind::Address(_, v6), Key::V6(address, _)) => {
                v6.matching(*address).map(|(address, length, answer)| (Key::V6(address, length), answer))
            }
            (Kind::Mac(exact, lengths), Key::Word(word)) => {
                (0..=48_u8).rev().filter(|&length| lengths[usize::from(length)] > 0).find_map(|length| {
                    let found = mac_word(*word, length);
                    exact.get(&[found]).map(|answer| (Key::Word(found), answer))
                })
            }
            _ => self.get(key).map(|answer| (key.clone(), answer)),
        }
    }

    /// Sets the answers of keys, or takes those with answer 0 out. Prefixes are published together; `ports` tells which port an
    /// interface is. On an error the changes before it stay.
    pub(super) fn change(
        &mut self,
        allocator: &mut Allocator,
        domain: &Arc<Domain>,
        ports: &BTreeMap<String, PortId>,
        changes: &[(Key, u32)],
    ) -> Result<(), NoRoom> {
        if let Kind::Address(v4, _) = &mut self.kind {
            let together: Vec<(u32, u8, u32)> = changes
                .iter()
                .filter_map(|(key, answer)| match key {
                    Key::V4(address, length) => Some((*address, *length, *answer)),
                    _ => None,
                })
                .collect();
            if !together.is_empty() {
                v4.change(allocator, &self.data.root, &together)?;
            }
        }
        for (key, answer) in changes {
            let (root, answer) = (&self.data.root, *answer);
            match (&mut self.kind, key) {
                (Kind::Address(_, v6), Key::V6(address, length)) => {
                    v6.change(domain, &self.data.v6, (*address, *length, answer))?;
                }
                (Kind::Number(exact), Key::Word(word)) => exact.change(allocator, root, [*word], answer)?,
                (Kind::Flow(_, exact), Key::Flow(words)) => exact.change(allocator, root, *words, answer)?,
                (Kind::Mac(exact, lengths), Key::Word(word)) => {
                    let length = (word >> 48) as usize;
                    let before = exact.get(&[*word]).is_some();
                    if answer != 0 {
                        // Before the entry itself: a length without entries does no harm.
                        self.data.lengths.fetch_or(1 << length, Ordering::Release);
                    }
                    exact.change(allocator, root, [*word], answer)?;
                    lengths[length] = lengths[length] + u32::from(answer != 0) - u32::from(before);
                    if lengths[length] == 0 {
                        self.data.lengths.fetch_and(!(1 << length), Ordering::Release);
                    }
                }
                (Kind::Interface { names, ports: exact }, Key::Name(name)) => {
                    if let Some(port) = ports.get(name) {
                        exact.change(allocator, root, [u64::from(port.0)], answer)?;
                    }
                    if answer == 0 {
                        names.remove(name);
                    } else {
                        names.insert(name.clone(), answer);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Follows a new assignment of names to ports; true if it has to do with ports at all.
    pub(super) fn resolve(
        &mut self,
        allocator: &mut Allocator,
        ports: &BTreeMap<String, PortId>,
    ) -> Result<(), NoRoom> {
        let Kind::Interface { names, ports: exact } = &mut self.kind else { return Ok(()) };
        let wanted: BTreeMap<u64, u32> = names
            .iter()
            .filter_map(|(name, answer)| ports.get(name).map(|port| (u64::from(port.0), *answer)))
            .collect();
        let gone: Vec<u64> = exact.iter().map(|([port], _)| port).filter(|port| !wanted.contains_key(port)).collect();
        for port in gone {
            exact.change(allocator, &self.data.root, [port], 0)?;
        }
        for (port, answer) in wanted {
            exact.change(allocator, &self.data.root, [port], answer)?;
        }
        Ok(())
    }

    /// Keys and answers in order: addresses by address and length, IPv4 first; the others by value or name.
    pub(super) fn for_each(&self, mut each: impl FnMut(TableKey, u32)) {
        match &self.kind {
            Kind::Address(v4, v6) => {
                for (address, length, answer) in v4.iter() {
                    each(TableKey::V4(Ipv4Addr::from_bits(address), length), answer);
                }
                for (address, length, answer) in v6.iter() {
                    each(TableKey::V6(Ipv6Addr::from_bits(address), length), answer);
                }
            }
            Kind::Number(exact) => exact.iter().for_each(|([word], answer)| each(number_key(word), answer)),
            Kind::Mac(exact, _) => exact.iter().for_each(|([word], answer)| each(mac_key(word), answer)),
            Kind::Interface { names, .. } => {
                names.iter().for_each(|(name, answer)| each(TableKey::Interface(name.clone()), *answer));
            }
            Kind::Flow(_, exact) => exact.iter().for_each(|(words, answer)| each(flow_key(&words), answer)),
        }
    }

    /// The key as others write it.
    pub(super) fn shown(&self, key: &Key) -> TableKey {
        match (key, &self.kind) {
            (Key::V4(address, length), _) => TableKey::V4(Ipv4Addr::from_bits(*address), *length),
            (Key::V6(address, length), _) => TableKey::V6(Ipv6Addr::from_bits(*address), *length),
            (Key::Word(word), Kind::Mac(..)) => mac_key(*word),
            (Key::Word(word), _) => number_key(*word),
            (Key::Name(name), _) => TableKey::Interface(name.clone()),
            (Key::Flow(words), _) => flow_key(words),
        }
    }

    /// Takes back all memory; the table was unlinked.
    pub(super) fn retire(&self, allocator: &mut Allocator) {
        let root = self.data.root.load(Ordering::Relaxed);
        match &self.kind {
            Kind::Address(v4, _) => v4.retire(allocator, root),
            Kind::Number(exact) | Kind::Mac(exact, _) | Kind::Interface { ports: exact, .. } => {
                exact.retire(allocator, root);
            }
            Kind::Flow(_, exact) => exact.retire(allocator, root),
        }
    }
}

fn number_key(word: u64) -> TableKey {
    TableKey::Number(word as u32)
}

fn mac_key(word: u64) -> TableKey {
    let bytes = word.to_be_bytes();
    TableKey::Mac([bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]], (word >> 48) as u8)
}

fn flow_key(words: &[u64; 5]) -> TableKey {
    let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
    let (source, destination) = (wide(words[1], words[2]), wide(words[3], words[4]));
    let address = |address: u128| -> IpAddr {
        if words[0] >> 63 == 0 {
            Ipv4Addr::from_bits(address as u32).into()
        } else {
            Ipv6Addr::from_bits(address).into()
        }
    };
    TableKey::Flow {
        source: address(source),
        destination: address(destination),
        protocol: (words[0] >> 32) as u8,
        source_port: (words[0] >> 16) as u16,
        destination_port: words[0] as u16,
    }
}
