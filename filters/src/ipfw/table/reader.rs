#![forbid(unsafe_code)]
//! The workers' side: look-ups.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use ferrule_config::ipfw::ast::ValueKind;
use ferrule_config::ipfw::table::{FlowFields, TableValue};
use ferrule_dataplane::fib::Fib6;
use ferrule_dataplane::packet::PortId;

use super::answer::TableId;
use super::arena::Arena;
use super::value::{self, ValueIndex};
use super::{address4, exact};
use crate::ipfw::dynamic::FlowKey;

/// A table as workers see it.
pub(super) struct TableData {
    /// Where IPv4 prefixes, or the cells of exact keys, are.
    pub(super) root: AtomicU64,
    /// IPv6 prefixes, from the first one on.
    pub(super) v6: OnceLock<Arc<Fib6>>,
    /// Which lengths of MAC prefixes occur.
    pub(super) lengths: AtomicU64,
    /// Fields of a flow table.
    pub(super) fields: Option<FlowFields>,
}

/// What the control side publishes.
pub(super) struct Published {
    pub(super) arena: Arc<Arena>,
    pub(super) tables: ArcSwap<Vec<Option<Arc<TableData>>>>,
    /// Goes up with each new list.
    pub(super) version: AtomicU64,
    pub(super) seed: u64,
}

/// The tables as one worker sees them.
pub struct Tables {
    published: Arc<Published>,
    tables: Arc<Vec<Option<Arc<TableData>>>>,
    version: u64,
}

impl Tables {
    pub(super) fn new(published: Arc<Published>) -> Tables {
        let version = published.version.load(Ordering::Acquire);
        let tables = published.tables.load_full();
        Tables { published, tables, version }
    }

    /// Takes over the newest list of tables. To be called once per turn, after the worker was quiescent and before its first look-up.
    #[inline]
    pub fn turn(&mut self) {
        let version = self.published.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.tables = self.published.tables.load_full();
        }
    }

    #[inline(always)]
    fn data(&self, id: TableId) -> Option<&TableData> {
        self.tables.get(usize::from(id.0))?.as_deref()
    }

    #[inline(always)]
    fn found(answer: u32) -> Option<ValueIndex> {
        (answer != 0).then_some(ValueIndex(answer))
    }

    /// First stage of a batch of look-ups in an `addr` table.
    #[inline(always)]
    pub fn prefetch4(&self, id: TableId, address: u32) {
        if let Some(data) = self.data(id) {
            address4::prefetch_word(&self.published.arena, &data.root, address);
        }
    }

    /// Second stage, some packets later.
    #[inline(always)]
    pub fn prefetch4_line(&self, id: TableId, address: u32) {
        if let Some(data) = self.data(id) {
            address4::prefetch_line(&self.published.arena, &data.root, address);
        }
    }

    /// The value of the longest prefix that holds an IPv4 address, host order.
    #[inline]
    pub fn lookup4(&self, id: TableId, address: u32) -> Option<ValueIndex> {
        Self::found(address4::lookup(&self.published.arena, &self.data(id)?.root, address))
    }

    /// The value of the longest prefix that holds an IPv6 address, host order.
    #[inline]
    pub fn lookup6(&self, id: TableId, address: u128) -> Option<ValueIndex> {
        Self::found(self.data(id)?.v6.get()?.lookup(address).0)
    }

    /// The value of a number.
    #[inline]
    pub fn lookup_number(&self, id: TableId, number: u32) -> Option<ValueIndex> {
        self.exact(self.data(id)?, &[u64::from(number)])
    }

    /// The value of the interface that this port is.
    #[inline]
    pub fn lookup_interface(&self, id: TableId, port: PortId) -> Option<ValueIndex> {
        self.exact(self.data(id)?, &[u64::from(port.0)])
    }

    /// The value of a flow, by the fields that the table has.
    #[inline]
    pub fn lookup_flow(&self, id: TableId, flow: &FlowKey) -> Option<ValueIndex> {
        let data = self.data(id)?;
        self.exact(data, &flow_words(flow, data.fields.as_ref()?))
    }

    /// The value of the longest prefix that holds a MAC address.
    #[inline]
    pub fn lookup_mac(&self, id: TableId, mac: [u8; 6]) -> Option<ValueIndex> {
        let data = self.data(id)?;
        let mut lengths = data.lengths.load(Ordering::Acquire);
        let mac = mac_number(mac);
        while lengths != 0 {
            let length = 63 - lengths.leading_zeros();
            lengths &= !(1 << length);
            let found = self.exact(data, &[mac_word(mac, length as u8)]);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    #[inline(always)]
    fn exact<const K: usize>(&self, data: &TableData, key: &[u64; K]) -> Option<ValueIndex> {
        Self::found(exact::lookup(&self.published.arena, &data.root, self.published.seed, key))
    }

    /// A value that was found in this turn.
    pub fn value(&self, index: ValueIndex) -> TableValue {
        value::read(&self.published.arena, index)
    }

    /// One part of a value that was found in this turn, as a number; of `ipv6` the low half.
    #[inline]
    pub fn number(&self, index: ValueIndex, kind: ValueKind) -> u32 {
        value::number(&self.published.arena, index, kind)
    }
}

pub(super) fn mac_number(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A MAC prefix as a key: the length above the masked address.
pub(super) fn mac_word(mac: u64, length: u8) -> u64 {
    let mask = if length == 0 { 0 } else { u64::MAX << (48 - u32::from(length.min(48))) };
    u64::from(length) << 48 | (mac & mask & 0xffff_ffff_ffff)
}

/// A flow as a key, with the fields that the table does not have set to 0.
pub(super) fn flow_words(flow: &FlowKey, fields: &FlowFields) -> [u64; 5] {
    let (source_port, destination_port) = flow.ports();
    let keep = |wanted: bool, value: u64| if wanted { value } else { 0 };
    let ports = keep(fields.source_port, u64::from(source_port)) << 16
        | keep(fields.destination_port, u64::from(destination_port));
    let protocol = keep(fields.protocol, u64::from(flow.protocol()));
    let (family, source, destination) = match *flow {
        FlowKey::V4 { addresses, .. } => (0, u128::from(addresses >> 32), u128::from(addresses as u32)),
        FlowKey::V6 { source, destination, .. } => (1_u64, source, destination),
    };
    let source = if fields.source_address { source } else { 0 };
    let destination = if fields.destination_address { destination } else { 0 };
    [
        family << 63 | protocol << 32 | ports,
        (source >> 64) as u64,
        source as u64,
        (destination >> 64) as u64,
        destination as u64,
    ]
}
