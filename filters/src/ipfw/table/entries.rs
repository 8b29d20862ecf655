#![forbid(unsafe_code)]
//! The control side: entries are added and deleted.

use std::collections::{HashMap, HashSet};

use ferrule_config::ipfw::table::{TableKey, TableValue};

use super::answer::{AddMode, EntryResult, TableError};
use super::content::Key;
use super::set::TableSet;

impl TableSet {
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
        let mut fresh: HashSet<&Key> = HashSet::new();
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
        let mut gone = HashSet::new();
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
}
