#![forbid(unsafe_code)]
//! The control side: which tables there are, and every change of them, with FreeBSD's answers.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use ferrule_config::ipfw::table::{TableKey, TableOptions, TableValue};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::Domain;

use super::arena::Allocator;
use super::content::{Content, Key};
use super::reader::{Published, TableData, Tables};
use super::value::{self, ValueIndex, Values};

/// Longest name in bytes (64 with the NUL that FreeBSD puts behind it).
const NAME_LEN: usize = 63;
/// Most tables (FreeBSD: IPFW_TABLES_MAX).
const MOST_TABLES: usize = 65_534;

/// Number of a table: what compiled rules have. A swap exchanges what two numbers stand for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct TableId(pub u16);

/// Why something was not done; [`TableError::errno`] gives FreeBSD's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The table or entry exists already (EEXIST).
    Exists,
    /// There is no such table (ESRCH).
    NoTable,
    /// There is no such entry (ENOENT).
    NoEntry,
    /// A rule refers to it, or there are too many tables (EBUSY).
    Busy,
    /// It is locked (EACCES).
    Locked,
    /// Its limit is reached, or would be passed (EFBIG).
    Limit,
    /// The name, or the kind of key or table, is not right here (EINVAL).
    Invalid,
    /// The memory of all tables is used up (ENOMEM).
    NoMemory,
    /// `missing`: a table of this name exists with another type or other values (EEXIST).
    Incompatible,
}

impl TableError {
    /// FreeBSD's error number.
    pub const fn errno(self) -> i32 {
        match self {
            TableError::NoEntry => 2,
            TableError::NoTable => 3,
            TableError::NoMemory => 12,
            TableError::Locked => 13,
            TableError::Busy => 16,
            TableError::Exists | TableError::Incompatible => 17,
            TableError::Invalid => 22,
            TableError::Limit => 27,
        }
    }
}

/// What became of one entry of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryResult {
    /// It is new.
    Added,
    /// It had another value, or the same.
    Updated,
    /// It is gone.
    Deleted,
    /// It was there, and nothing was changed.
    Exists,
    /// It was not there.
    NotFound,
    /// The table's limit is reached.
    Limit,
    /// Something else; the request's error says what.
    Error,
    /// Nothing was done: another entry of an atomic request failed.
    Untouched,
}

/// How entries are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddMode {
    /// All or none (`ipfw table NAME atomic add`).
    pub atomic: bool,
    /// An entry that is there gets the new value instead of being an error (`ipfw -q table NAME add`, IPFW_TF_UPDATE).
    pub update: bool,
}

/// What `ipfw table NAME info` tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Name.
    pub name: String,
    /// Number.
    pub id: TableId,
    /// Type, values, algorithm, limit and lock as they are now.
    pub options: TableOptions,
    /// Rules that refer to it.
    pub references: u32,
    /// Entries.
    pub entries: usize,
}

struct Table {
    name: String,
    options: TableOptions,
    references: u32,
    content: Content,
}

/// All tables. Owned by the control side; workers have a [`Tables`] each.
pub struct TableSet {
    domain: Arc<Domain>,
    published: Arc<Published>,
    allocator: Allocator,
    values: Values,
    names: HashMap<String, TableId>,
    tables: Vec<Option<Table>>,
    ports: BTreeMap<String, PortId>,
    /// Tables that workers may still hold: freed here, not by a worker.
    unlinked: Vec<Arc<TableData>>,
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

    fn table(&self, name: &str) -> Result<&Table, TableError> {
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

    /// `table NAME add`: adds entries; what became of each, and the first error. Entries are seen by workers one by one, IPv4 prefixes of a
    /// request for each /16 at once; an atomic request that fails was never seen.
    ///
    /// # Errors
    /// In the second place of the answer. `NoTable`, `Locked`; `Exists`, `Limit`, `Invalid`, `NoMemory` for the first entry that failed.
    pub fn add(
        &mut self,
        name: &str,
        entries: &[(TableKey, TableValue)],
        mode: AddMode,
    ) -> (Vec<EntryResult>, Result<(), TableError>) {
        let mut results = vec![EntryResult::Untouched; entries.len()];
        let outcome = self.try_add(name, entries, mode, &mut results);
        (results, outcome)
    }

    fn try_add(
        &mut self,
        name: &str,
        entries: &[(TableKey, TableValue)],
        mode: AddMode,
        results: &mut [EntryResult],
    ) -> Result<(), TableError> {
        let table = self.table(name)?;
        if table.options.locked {
            return Err(TableError::Locked);
        }
        // FreeBSD refuses the whole request for one key that makes no sense.
        let keys: Option<Vec<Key>> = entries.iter().map(|(key, _)| table.content.key(key)).collect();
        let keys = keys.ok_or(TableError::Invalid)?;
        // First what would become of each, entries of this request that come before it included; then all of it.
        let limit = table.options.limit as usize;
        let mut count = table.content.len();
        let mut first_error = Ok(());
        let mut fresh: std::collections::HashSet<&Key> = std::collections::HashSet::new();
        for (key, result) in keys.iter().zip(results.iter_mut()) {
            let there = table.content.get(key).is_some() || fresh.contains(key);
            let full = limit != 0 && count >= limit;
            *result = match (there, full) {
                (true, _) if mode.update => EntryResult::Updated,
                (_, true) => EntryResult::Limit,
                (true, false) => EntryResult::Exists,
                (false, false) => {
                    count += 1;
                    fresh.insert(key);
                    EntryResult::Added
                }
            };
            let error = match result {
                EntryResult::Limit => Some(TableError::Limit),
                EntryResult::Exists => Some(TableError::Exists),
                _ => None,
            };
            if let (Some(error), Ok(())) = (error, first_error) {
                first_error = Err(error);
            }
            if error.is_some() && mode.atomic {
                break;
            }
        }
        if first_error.is_err() && mode.atomic {
            for result in results.iter_mut().filter(|r| matches!(r, EntryResult::Added | EntryResult::Updated)) {
                *result = EntryResult::Untouched;
            }
            return first_error;
        }
        let wanted = |result: &EntryResult| matches!(result, EntryResult::Added | EntryResult::Updated);
        let mut changes = Vec::with_capacity(keys.len());
        for (number, key) in keys.into_iter().enumerate() {
            if !wanted(&results[number]) {
                continue;
            }
            match self.values.take(&mut self.allocator, &entries[number].1) {
                Ok(line) => changes.push((key, line)),
                Err(_) => {
                    changes.iter().for_each(|(_, line)| self.values.give_back(&mut self.allocator, *line));
                    results.fill(EntryResult::Error);
                    return Err(TableError::NoMemory);
                }
            }
        }
        if self.apply(name, &changes).is_err() {
            results.fill(EntryResult::Error);
            return Err(TableError::NoMemory);
        }
        first_error
    }

    /// `table NAME delete`: deletes entries; what became of each, and the first error.
    ///
    /// # Errors
    /// In the second place of the answer. `NoTable`, `Locked`, `Invalid`; `NoEntry` for the first entry that was not there.
    pub fn delete(&mut self, name: &str, entries: &[TableKey]) -> (Vec<EntryResult>, Result<(), TableError>) {
        let mut results = vec![EntryResult::Untouched; entries.len()];
        let outcome = self.try_delete(name, entries, &mut results);
        (results, outcome)
    }

    fn try_delete(&mut self, name: &str, entries: &[TableKey], results: &mut [EntryResult]) -> Result<(), TableError> {
        let table = self.table(name)?;
        if table.options.locked {
            return Err(TableError::Locked);
        }
        let keys: Option<Vec<Key>> = entries.iter().map(|key| table.content.key(key)).collect();
        let mut gone = std::collections::HashSet::new();
        let mut changes = Vec::new();
        for (key, result) in keys.ok_or(TableError::Invalid)?.into_iter().zip(results.iter_mut()) {
            let there = table.content.get(&key).is_some() && gone.insert(key.clone());
            *result = if there { EntryResult::Deleted } else { EntryResult::NotFound };
            if there {
                changes.push((key, 0));
            }
        }
        if self.apply(name, &changes).is_err() {
            results.fill(EntryResult::Error);
            return Err(TableError::NoMemory);
        }
        if results.contains(&EntryResult::NotFound) { Err(TableError::NoEntry) } else { Ok(()) }
    }

    /// Makes the changes, whose values were taken before, and gives the values that they replace back. All or none.
    fn apply(&mut self, name: &str, changes: &[(Key, u32)]) -> Result<(), TableError> {
        let id = self.find(name).ok_or(TableError::NoTable)?;
        let Some(table) = &mut self.tables[usize::from(id.0)] else { return Err(TableError::NoTable) };
        let (allocator, ports) = (&mut self.allocator, &self.ports);
        let content = &mut table.content;
        // Of a key that comes twice the value in between is replaced as well.
        let mut replaced = Vec::new();
        let mut last: HashMap<&Key, u32> = HashMap::new();
        for (key, line) in changes {
            let before = last.insert(key, *line).or_else(|| content.get(key));
            replaced.push(before.unwrap_or(0));
        }
        if content.change(allocator, &self.domain, ports, changes).is_err() {
            let back: Vec<(Key, u32)> =
                changes.iter().zip(&replaced).rev().map(|((key, _), before)| (key.clone(), *before)).collect();
            // Only takes what the changes gave: room is there, or it stays as far as it was.
            let _ = content.change(allocator, &self.domain, ports, &back);
            changes.iter().for_each(|(_, line)| self.values.give_back(&mut self.allocator, *line));
            return Err(TableError::NoMemory);
        }
        for line in replaced.into_iter().filter(|line| *line != 0) {
            self.values.give_back(&mut self.allocator, line);
        }
        Ok(())
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
