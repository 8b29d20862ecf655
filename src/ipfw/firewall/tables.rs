//! The engine's tables follow those of the rule set.
//!
//! A command's changes are made in place, entry by entry. What a script changed is built as a table of its own beside the old one, which
//! workers look up until they take the new rules up: no packet meets new rules with old tables.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ferrule_config::ipfw::document::Table;
use ferrule_config::ipfw::table::{TableKey, TableKind, TableOptions, TableValue};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::{Deferred, Domain};
use ferrule_filters::ipfw::table::{AddMode, TableError, TableId, TableSet, Tables};

/// How a change of tables is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In place.
    InPlace,
    /// Beside the old ones.
    Beside,
}

/// A table of the rule set, and the engine's.
struct Followed {
    table: Arc<Table>,
    id: TableId,
    /// Its name in the engine: a number, since a table and the one that replaces it are there together for a while.
    inner: String,
}

/// The engine's tables.
pub struct FollowedTables {
    set: TableSet,
    tables: BTreeMap<String, Followed>,
    /// Out of force, but perhaps still looked up.
    retired: Deferred<String>,
    /// Put out of force by the change under way.
    leaving: Vec<String>,
    serial: u64,
}

impl FollowedTables {
    /// No tables.
    pub fn new(domain: &Arc<Domain>, ports: &[String]) -> FollowedTables {
        let mut set = TableSet::new(domain);
        let names = (0..).zip(ports).map(|(id, name)| (name.clone(), PortId(id)));
        // Without tables nothing needs room yet.
        let _ = set.set_interfaces(names);
        let retired = Deferred::new(domain.clone());
        FollowedTables { set, tables: BTreeMap::new(), retired, leaving: Vec::new(), serial: 0 }
    }

    /// The tables for one more worker.
    pub fn reader(&self) -> Tables {
        self.set.reader()
    }

    /// Numbers and kinds by name, for the compiler.
    pub fn ids(&self) -> HashMap<String, (TableId, TableKind)> {
        let of = |followed: &Followed| (followed.id, followed.table.options.kind);
        self.tables.iter().map(|(name, followed)| (name.clone(), of(followed))).collect()
    }

    /// `table A swap B`, in one moment for the workers.
    pub fn swap(&mut self, a: &str, b: &str) {
        let (Some(first), Some(second)) = (self.tables.get(a), self.tables.get(b)) else { return };
        if self.set.swap(&first.inner, &second.inner).is_err() {
            return;
        }
        let (first, second) = (first.table.clone(), second.table.clone());
        let mut exchange = |name: &str, options: &TableOptions, table: Arc<Table>| {
            if let Some(followed) = self.tables.get_mut(name) {
                followed.table = Arc::new(Table { options: options.clone(), entries: table.entries.clone() });
            }
        };
        exchange(a, &first.options, second.clone());
        exchange(b, &second.options, first.clone());
    }

    /// Follows; true where numbers of tables changed, so that rules must be compiled anew.
    ///
    /// # Errors
    /// What the engine has no room for, by table; what was changed in place until then stays.
    pub fn follow(&mut self, wanted: &BTreeMap<String, Arc<Table>>, way: Way) -> Result<bool, String> {
        let set = &mut self.set;
        self.retired.reclaim(|inner| {
            // Nothing refers to it in the engine: names of rules were resolved when they were compiled.
            let _ = set.destroy(&inner);
        });
        let mut renumbered = false;
        let gone: Vec<String> = self.tables.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in gone {
            if let Some(followed) = self.tables.remove(&name) {
                self.leaving.push(followed.inner);
                renumbered = true;
            }
        }
        for (name, table) in wanted {
            let told = |error: TableError| format!("table {name}: {}", reason(error));
            match self.tables.get_mut(name) {
                Some(followed) if Arc::ptr_eq(&followed.table, table) => {}
                Some(followed) if *followed.table == **table => followed.table = table.clone(),
                Some(followed) if way == Way::InPlace && followed.table.options.kind == table.options.kind => {
                    in_place(&mut self.set, &followed.inner, &followed.table, table).map_err(told)?;
                    followed.table = table.clone();
                }
                _ => {
                    self.serial += 1;
                    let inner = self.serial.to_string();
                    let id = build(&mut self.set, &inner, table).map_err(told)?;
                    let new = Followed { table: table.clone(), id, inner };
                    if let Some(old) = self.tables.insert(name.clone(), new) {
                        self.leaving.push(old.inner);
                    }
                    renumbered = true;
                }
            }
        }
        Ok(renumbered)
    }

    /// The rules that use what [`FollowedTables::follow`] left are in force.
    pub fn settled(&mut self) {
        let leaving = std::mem::take(&mut self.leaving);
        if !leaving.is_empty() {
            self.retired.retire(leaving);
        }
    }
}

/// Bounds and locks are the rule set's business; here every entry is let in.
fn open(table: &Table) -> TableOptions {
    TableOptions { limit: 0, locked: false, missing: false, or_flush: false, ..table.options.clone() }
}

fn build(set: &mut TableSet, inner: &str, table: &Table) -> Result<TableId, TableError> {
    let id = set.create(inner, &open(table))?;
    let entries: Vec<(TableKey, TableValue)> = table.entries.iter().map(|(k, v)| (k.clone(), *v)).collect();
    match set.add(inner, &entries, AddMode::default()).1 {
        Ok(()) => Ok(id),
        Err(error) => {
            let _ = set.destroy(inner);
            Err(error)
        }
    }
}

fn in_place(set: &mut TableSet, inner: &str, old: &Table, new: &Table) -> Result<(), TableError> {
    if new.entries.is_empty() && !old.entries.is_empty() {
        return set.flush(inner);
    }
    let gone: Vec<TableKey> = old.entries.keys().filter(|key| !new.entries.contains_key(key)).cloned().collect();
    if !gone.is_empty() {
        set.delete(inner, &gone).1?;
    }
    let changed: Vec<(TableKey, TableValue)> = new
        .entries
        .iter()
        .filter(|(key, value)| old.entries.get(key) != Some(value))
        .map(|(key, value)| (key.clone(), *value))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    set.add(inner, &changed, AddMode { atomic: true, update: true }).1
}

fn reason(error: TableError) -> &'static str {
    match error {
        TableError::NoMemory => "no room for its entries",
        TableError::Busy => "there are too many tables",
        TableError::Invalid => "a key or the name cannot be used",
        _ => "the engine refuses it",
    }
}
