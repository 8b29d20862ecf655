#![forbid(unsafe_code)]
//! The control side: which tables there are and what is in them, with FreeBSD's answers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use ferrule_config::ipfw::table::{TableKey, TableOptions, TableValue};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::Domain;

use super::answer::{TableError, TableId, TableInfo};
use super::arena::Allocator;
use super::content::Content;
use super::reader::{Published, TableData, Tables};
use super::value::{self, ValueIndex, Values};

/// Longest name in bytes (64 with the NUL that FreeBSD puts behind it).
const NAME_LEN: usize = 63;
/// Most tables (FreeBSD: IPFW_TABLES_MAX).
const MOST_TABLES: usize = 65_534;

pub(super) struct Table {
    pub(super) name: String,
    pub(super) options: TableOptions,
    pub(super) references: u32,
    pub(super) content: Content,
}

/// All tables. Owned by the control side; workers have a [`Tables`] each.
pub struct TableSet {
    pub(super) domain: Arc<Domain>,
    pub(super) published: Arc<Published>,
    pub(super) allocator: Allocator,
    pub(super) values: Values,
    pub(super) names: HashMap<String, TableId>,
    pub(super) tables: Vec<Option<Table>>,
    pub(super) ports: BTreeMap<String, PortId>,
    /// Tables that workers may still hold: freed here, not by a worker.
    pub(super) unlinked: Vec<Arc<TableData>>,
}

impl TableSet {
    /// No tables. `domain` is that in which the workers that look keys up say when they are quiescent.
    pub fn new(domain: &Arc<Domain>) -> TableSet {
        let allocator = Allocator::new(domain);
        let published = Arc::new(Published {
            arena: Arc::clone(allocator.arena()),
            tables: ArcSwap::default(),
            version: AtomicU64::new(0),
            seed: RandomState::new().hash_one(1_u8),
        });
        TableSet {
            domain: Arc::clone(domain),
            published,
            allocator,
            values: Values::default(),
            names: HashMap::new(),
            tables: Vec::new(),
            ports: BTreeMap::new(),
            unlinked: Vec::new(),
        }
    }

    /// The tables for one more worker.
    pub fn reader(&self) -> Tables {
        Tables::new(Arc::clone(&self.published))
    }

    /// Bytes of the shared arena that entries and values take.
    pub fn memory(&self) -> usize {
        self.allocator.in_use() * 64
    }

    /// Distinct values of all entries.
    pub fn values(&self) -> usize {
        self.values.len()
    }

    fn publish(&mut self) {
        let list = self.tables.iter().map(|table| table.as_ref().map(|table| Arc::clone(&table.content.data)));
        self.published.tables.store(Arc::new(list.collect()));
        self.published.version.fetch_add(1, Ordering::Release);
        self.unlinked.retain(|data| Arc::strong_count(data) > 1);
    }

    pub(super) fn table(&self, name: &str) -> Result<&Table, TableError> {
        let id = self.names.get(name).ok_or(TableError::NoTable)?;
        self.tables.get(usize::from(id.0)).and_then(Option::as_ref).ok_or(TableError::NoTable)
    }

    fn table_mut(&mut self, name: &str) -> Result<&mut Table, TableError> {
        let id = self.names.get(name).ok_or(TableError::NoTable)?;
        self.tables.get_mut(usize::from(id.0)).and_then(Option::as_mut).ok_or(TableError::NoTable)
    }

    /// `table NAME create`: makes a table. With `missing` one that exists with the same type and values will do, and `or_flush` empties it.
    ///
    /// # Errors
    /// `Exists`, `Incompatible`; `Invalid` for an empty or too long name; `Busy` when there are 65,534 tables.
    pub fn create(&mut self, name: &str, options: &TableOptions) -> Result<TableId, TableError> {
        if name.is_empty() || name.len() > NAME_LEN {
            return Err(TableError::Invalid);
        }
        if let Some(id) = self.names.get(name).copied() {
            if !options.missing {
                return Err(TableError::Exists);
            }
            let there = &self.table(name)?.options;
            if there.kind != options.kind || there.values != options.values {
                return Err(TableError::Incompatible);
            }
            if options.or_flush {
                self.flush(name)?;
            }
            return Ok(id);
        }
        let place = match self.tables.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.tables.len() < MOST_TABLES => {
                self.tables.push(None);
                self.tables.len() - 1
            }
            None => return Err(TableError::Busy),
        };
        let content = Content::new(options.kind, self.published.seed);
        let options = TableOptions { missing: false, or_flush: false, ..options.clone() };
        self.tables[place] = Some(Table { name: name.to_owned(), options, references: 0, content });
        let id = TableId(place as u16);
        self.names.insert(name.to_owned(), id);
        self.publish();
        Ok(id)
    }

    /// `table NAME destroy`.
    ///
    /// # Errors
    /// `NoTable`; `Busy` while a rule refers to it.
    pub fn destroy(&mut self, name: &str) -> Result<(), TableError> {
        if self.table(name)?.references > 0 {
            return Err(TableError::Busy);
        }
        if let Some(id) = self.names.remove(name)
            && let Some(table) = self.tables[usize::from(id.0)].take()
        {
            self.publish();
            self.give_up(table.content);
        }
        Ok(())
    }

    /// `table NAME flush`; as on FreeBSD a lock does not keep it off.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn flush(&mut self, name: &str) -> Result<(), TableError> {
        let seed = self.published.seed;
        let table = self.table_mut(name)?;
        let empty = Content::new(table.options.kind, seed);
        let old = std::mem::replace(&mut table.content, empty);
        self.publish();
        self.give_up(old);
        Ok(())
    }

    /// Frees what a table that is no longer published had.
    fn give_up(&mut self, content: Content) {
        content.retire(&mut self.allocator);
        content.for_each(|_, answer| self.values.give_back(&mut self.allocator, answer));
        self.unlinked.push(content.data);
    }

    /// `table A swap B`: exchanges their entries, for workers in one moment.
    ///
    /// # Errors
    /// `NoTable`; `Invalid` if their types differ; `Limit` if one has more entries than the other may have.
    pub fn swap(&mut self, a: &str, b: &str) -> Result<(), TableError> {
        let (first, second) = (self.table(a)?, self.table(b)?);
        if a == b {
            return Ok(());
        }
        if first.options.kind != second.options.kind {
            return Err(TableError::Invalid);
        }
        let fits = |table: &Table, entries: usize| table.options.limit == 0 || entries <= table.options.limit as usize;
        if !fits(first, second.content.len()) || !fits(second, first.content.len()) {
            return Err(TableError::Limit);
        }
        let (first, second) = (self.names[a].0.min(self.names[b].0), self.names[a].0.max(self.names[b].0));
        let (low, high) = self.tables.split_at_mut(usize::from(second));
        if let (Some(low), Some(high)) = (&mut low[usize::from(first)], &mut high[0]) {
            std::mem::swap(&mut low.content, &mut high.content);
        }
        self.publish();
        Ok(())
    }

    /// `table NAME lock` and `unlock`: a locked table refuses entries to be added and deleted.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn lock(&mut self, name: &str, locked: bool) -> Result<(), TableError> {
        self.table_mut(name)?.options.locked = locked;
        Ok(())
    }

    /// `table NAME modify limit N`.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn set_limit(&mut self, name: &str, limit: u32) -> Result<(), TableError> {
        self.table_mut(name)?.options.limit = limit;
        Ok(())
    }

    /// The number of a table.
    pub fn find(&self, name: &str) -> Option<TableId> {
        self.names.get(name).copied()
    }

    /// Notes that a rule refers to it.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn reference(&mut self, name: &str) -> Result<TableId, TableError> {
        self.table_mut(name)?.references += 1;
        self.find(name).ok_or(TableError::NoTable)
    }

    /// Notes that a rule refers to it no more.
    pub fn release(&mut self, id: TableId) {
        if let Some(Some(table)) = self.tables.get_mut(usize::from(id.0)) {
            table.references = table.references.saturating_sub(1);
        }
    }

    /// Which ports interface names are now; `iface` tables follow.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn set_interfaces(&mut self, names: impl IntoIterator<Item = (String, PortId)>) -> Result<(), TableError> {
        self.ports = names.into_iter().collect();
        for table in self.tables.iter_mut().flatten() {
            table.content.resolve(&mut self.allocator, &self.ports).map_err(|_| TableError::NoMemory)?;
        }
        Ok(())
    }

    /// `table NAME list`: every entry, in order.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn list(&self, name: &str, mut each: impl FnMut(&TableKey, &TableValue)) -> Result<(), TableError> {
        let arena = self.allocator.arena();
        self.table(name)?.content.for_each(|key, answer| each(&key, &value::read(arena, ValueIndex(answer))));
        Ok(())
    }

    /// `table NAME lookup KEY`: the entry that a packet would meet.
    ///
    /// # Errors
    /// `NoTable`, `NoEntry`; `Invalid` for a key of another kind.
    pub fn lookup(&self, name: &str, key: &TableKey) -> Result<(TableKey, TableValue), TableError> {
        let content = &self.table(name)?.content;
        let key = content.key(key).ok_or(TableError::Invalid)?;
        let (found, answer) = content.matching(&key).ok_or(TableError::NoEntry)?;
        Ok((content.shown(&found), value::read(self.allocator.arena(), ValueIndex(answer))))
    }

    /// `table NAME info`.
    ///
    /// # Errors
    /// `NoTable`.
    pub fn info(&self, name: &str) -> Result<TableInfo, TableError> {
        let table = self.table(name)?;
        Ok(TableInfo {
            name: table.name.clone(),
            id: self.names[name],
            options: table.options.clone(),
            references: table.references,
            entries: table.content.len(),
        })
    }

    /// The names of all tables, in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().flatten().map(|table| table.name.as_str())
    }
}
