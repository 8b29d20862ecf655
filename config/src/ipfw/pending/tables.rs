#![forbid(unsafe_code)]
//! `table ...`.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::{Answer, Environment, PendingSet};
use crate::ipfw::command::{Options, TableAction, TableCommand, TableSelector, Word};
use crate::ipfw::document::Table;
use crate::ipfw::entry::{guess_kind, parse_key, parse_value};
use crate::ipfw::failure::{Failure, errno, exit};
use crate::ipfw::show::tables::{TableInfo, entry, heading, info, list, name_order, usual_algorithm};
use crate::ipfw::table::{TableKey, TableOptions, TableValue};
use crate::span::Span;

impl PendingSet {
    pub(super) fn table(&mut self, command: &TableCommand, options: &Options, environment: Environment<'_>) -> Answer {
        match &command.table {
            TableSelector::All => self.all_tables(&command.action, options),
            TableSelector::One(name) => {
                let result = self.one_table(name, command, options, environment);
                let incomplete = matches!(
                    command.action,
                    TableAction::Create(_)
                        | TableAction::Modify { .. }
                        | TableAction::Add { .. }
                        | TableAction::Swap(_)
                );
                result.unwrap_or_else(|failure| Answer { incomplete, ..Answer::failed(failure) })
            }
        }
    }

    fn names_in_order(&self) -> Vec<String> {
        let mut names: Vec<String> = self.objects.tables.keys().cloned().collect();
        names.sort_by(|a, b| name_order(a, b));
        names
    }

    fn info(&self, name: &str) -> Option<TableInfo> {
        let table = self.objects.tables.get(name)?;
        let references = self.references.get(name).copied().unwrap_or(0);
        Some(TableInfo::of(name, table, self.indices.get(name).copied().unwrap_or(0), references))
    }

    fn all_tables(&mut self, action: &TableAction, options: &Options) -> Answer {
        let mut answer = Answer::default();
        for name in self.names_in_order() {
            match action {
                TableAction::List => {
                    answer.stdout.push_str(&heading(&name, 0));
                    let table = &self.objects.tables[&name];
                    answer.stdout.push_str(&list(table, options.value_as_address));
                }
                TableAction::Info | TableAction::Detail => {
                    let row = self.info(&name).expect("the name comes from the tables");
                    answer.stdout.push_str(&info(&row, *action == TableAction::Detail));
                }
                TableAction::Flush if !options.check_only => self.flush_table(&name),
                TableAction::Destroy if !options.check_only => {
                    if let Err(errno) = self.destroy(&name)
                        && !options.quiet
                    {
                        answer.stderr.push(format!("failed to destroy table({name}) in set 0: {errno}"));
                    }
                }
                _ => {}
            }
        }
        answer
    }

    fn flush_table(&mut self, name: &str) {
        if let Some(table) = self.objects.tables.get_mut(name) {
            Arc::make_mut(table).entries.clear();
        }
    }

    fn destroy(&mut self, name: &str) -> Result<(), &'static str> {
        if self.references.get(name).is_some_and(|&count| count > 0) {
            return Err(errno::BUSY);
        }
        self.indices.remove(name);
        self.objects.tables.remove(name).map(drop).ok_or(errno::NOT_FOUND)
    }

    fn one_table(
        &mut self,
        name: &str,
        command: &TableCommand,
        options: &Options,
        environment: Environment<'_>,
    ) -> Result<Answer, Failure> {
        let span = command.span;
        match &command.action {
            TableAction::Create(_) if options.check_only => {}
            TableAction::Create(wanted) => self.create_table(name, wanted, span)?,
            TableAction::Add { entries, atomic } => {
                return self.add_entries(name, entries, *atomic, span, options, environment);
            }
            TableAction::Delete(keys) => return self.delete_entries(name, keys, span, options, environment),
            _ if options.check_only => {}
            TableAction::Modify { limit } => {
                let table = self.existing(name, span, "Table modification failed")?;
                if let Some(limit) = limit {
                    table.options.limit = *limit;
                }
            }
            TableAction::Destroy => {
                let refused = |errno| format!("failed to destroy table {name}: {errno}");
                match self.destroy(name) {
                    Ok(()) => {}
                    Err(errno::NOT_FOUND) => return Ok(absent(refused(errno::NOT_FOUND), options)),
                    Err(errno) => {
                        return Err(Failure::new(exit::OS, span, refused(errno)).hint("a rule looks the table up"));
                    }
                }
            }
            TableAction::Flush if !self.objects.tables.contains_key(name) => {
                return Ok(absent(format!("failed to flush table {name} info: {}", errno::NOT_FOUND), options));
            }
            TableAction::Flush => self.flush_table(name),
            TableAction::List => {
                let table = self.existing(name, span, "failed to request table info")?;
                return Ok(Answer::said(list(table, options.value_as_address)));
            }
            TableAction::Info | TableAction::Detail => {
                let missing = || self.missing(name, span, "failed to request table info");
                let row = self.info(name).ok_or_else(missing)?;
                return Ok(Answer::said(info(&row, command.action == TableAction::Detail)));
            }
            TableAction::Lookup(key) => return self.lookup(name, key, span, options, environment),
            TableAction::Lock(lock) => {
                let what = if *lock { "Table lock failed" } else { "Table unlock failed" };
                self.existing(name, span, what)?.options.locked = *lock;
            }
            TableAction::Swap(second) => self.swap(name, second, span)?,
        }
        Ok(Answer::default())
    }

    fn missing(&self, name: &str, span: Span, what: &str) -> Failure {
        let hint = crate::suggest::did_you_mean(name, self.objects.tables.keys().map(String::as_str));
        Failure::os(span, what, errno::NOT_FOUND).maybe_hint(hint)
    }

    fn existing(&mut self, name: &str, span: Span, what: &str) -> Result<&mut Table, Failure> {
        if !self.objects.tables.contains_key(name) {
            return Err(self.missing(name, span, what));
        }
        let table = self.objects.tables.get_mut(name).expect("looked up before");
        Ok(Arc::make_mut(table))
    }

    fn create_table(&mut self, name: &str, wanted: &TableOptions, span: Span) -> Result<(), Failure> {
        let Some(existing) = self.objects.tables.get_mut(name) else {
            let table = Table { options: wanted.clone(), ..Table::automatic(wanted.kind) };
            self.objects.tables.insert(name.to_owned(), Arc::new(table));
            self.index(name);
            return Ok(());
        };
        if !wanted.missing {
            return Err(Failure::os(span, "Table creation failed", errno::EXISTS)
                .hint("`missing` allows for a table that exists, `or-flush` empties it"));
        }
        let algorithm = |options: &TableOptions| {
            options.algorithm.clone().unwrap_or_else(|| usual_algorithm(options.kind).to_owned())
        };
        let is = &existing.options;
        let same =
            (is.kind, &is.values, is.limit, is.locked) == (wanted.kind, &wanted.values, wanted.limit, wanted.locked);
        if !same || algorithm(is) != algorithm(wanted) {
            return Err(Failure::data(span, "The existing table is not compatible with one you are creating."));
        }
        if wanted.or_flush {
            self.flush_table(name);
        }
        Ok(())
    }

    fn swap(&mut self, name: &str, second: &str, span: Span) -> Result<(), Failure> {
        let pair = (self.objects.tables.get(name).cloned(), self.objects.tables.get(second).cloned());
        let (Some(a), Some(b)) = pair else {
            let absent = if self.objects.tables.contains_key(name) { second } else { name };
            return Err(self.missing(absent, span, &format!("Unable to swap table {absent}")));
        };
        let (one, other) = (&a.options, &b.options);
        if (one.kind, &one.values) != (other.kind, &other.values) {
            return Err(Failure::usage(span, "Unable to swap table: check types"));
        }
        let fits = |table: &Table, limit: u32| limit == 0 || table.entries.len() <= limit as usize;
        if !fits(&a, other.limit) || !fits(&b, one.limit) {
            return Err(Failure::usage(span, "Unable to swap table: check limits"));
        }
        if one.locked || other.locked {
            return Err(Failure::os(span, "Unable to swap table", errno::LOCKED));
        }
        self.objects.tables.insert(name.to_owned(), b);
        self.objects.tables.insert(second.to_owned(), a);
        Ok(())
    }

    fn lookup(
        &self,
        name: &str,
        key: &Word,
        span: Span,
        options: &Options,
        environment: Environment<'_>,
    ) -> Result<Answer, Failure> {
        let not_found = || Failure::data(span, format!("Table {name} does not exist"));
        let table = self.objects.tables.get(name).ok_or_else(not_found)?;
        let wanted = parse_key(table.options.kind, key, environment.lookup())?;
        let missing =
            || Failure::new(exit::UNAVAILABLE, key.span, format!("Entry {} not found", key.text.escape_debug()));
        let (key, value) = longest_match(table, &wanted).ok_or_else(missing)?;
        Ok(Answer::said(entry(table.options.kind, &table.options.values, key, value, options.value_as_address)))
    }

    fn add_entries(
        &mut self,
        name: &str,
        words: &[(Word, Option<Word>)],
        atomic: bool,
        span: Span,
        options: &Options,
        environment: Environment<'_>,
    ) -> Result<Answer, Failure> {
        let lookup = environment.lookup();
        let mut answer = Answer::default();
        let exists = self.objects.tables.get(name).map(|table| table.options.clone());
        let kind = match &exists {
            Some(table) => table.kind,
            None => guess_kind(&words[0].0, name)?,
        };
        let values = exists.as_ref().map(|table| table.values.clone()).unwrap_or_default();
        let mut entries = Vec::with_capacity(words.len());
        for (key, value) in words {
            let value = value.as_ref().map(|value| parse_value(&values, value, lookup)).transpose()?;
            entries.push((parse_key(kind, key, lookup)?, value.unwrap_or_default()));
        }
        if options.check_only {
            return Ok(answer);
        }
        if exists.is_none() {
            if !options.quiet {
                answer
                    .stderr
                    .push(format!("DEPRECATED: inserting data into non-existent table {name}. (auto-created)"));
            }
            self.objects.tables.insert(name.to_owned(), Arc::new(Table::automatic(kind)));
            self.index(name);
        }
        let table = Arc::make_mut(self.objects.tables.get_mut(name).expect("made above"));
        let added = insert(table, &entries, atomic, options.quiet);
        let harmless = matches!(added.first, None | Some("record already exists"));
        if harmless && options.quiet {
            return Ok(answer);
        }
        for ((key, value), result) in entries.iter().zip(&added.results) {
            let undone = if atomic && added.first.is_some() && *result == "added" { "(reverted)" } else { "" };
            answer
                .stdout
                .push_str(&format!("{result}{undone}: {}", entry(kind, &values, key, value, options.value_as_address)));
        }
        if let Some(reason) = added.first {
            answer.fail(Failure::new(exit::OS, span, format!("Adding record failed: {reason}")));
            answer.incomplete = !added.only_repeated;
        }
        Ok(answer)
    }

    fn delete_entries(
        &mut self,
        name: &str,
        words: &[Word],
        span: Span,
        options: &Options,
        environment: Environment<'_>,
    ) -> Result<Answer, Failure> {
        let not_found = || Failure::data(span, format!("Table {name} does not exist"));
        if options.check_only {
            return Ok(Answer::default());
        }
        let table = self.objects.tables.get_mut(name).ok_or_else(not_found)?;
        let (kind, values) = (table.options.kind, table.options.values.clone());
        let keys =
            words.iter().map(|word| parse_key(kind, word, environment.lookup())).collect::<Result<Vec<_>, _>>()?;
        let table = Arc::make_mut(table);
        let mut answer = Answer::default();
        let mut reason = None;
        for key in &keys {
            let result = if table.options.locked {
                reason = Some("table is locked");
                "ignored"
            } else if table.entries.remove(key).is_some() {
                "deleted"
            } else {
                reason = reason.or(Some("record not found"));
                "notfound"
            };
            let line = entry(kind, &values, key, &TableValue::default(), options.value_as_address);
            answer.stdout.push_str(&format!("{result}: {line}"));
        }
        match reason {
            None | Some("record not found") if options.quiet => Ok(Answer::default()),
            None => Ok(answer),
            Some(reason) => {
                answer.fail(Failure::new(exit::OS, span, format!("Deleting record failed: {reason}")));
                Ok(answer)
            }
        }
    }
}

/// What is not there cannot be removed: said, and no failure.
fn absent(message: String, options: &Options) -> Answer {
    let stderr = if options.quiet { Vec::new() } else { vec![message] };
    Answer { stderr, ..Answer::default() }
}

/// What came of adding entries.
struct Added {
    /// One word for each entry.
    results: Vec<&'static str>,
    /// The first reason why one was not added.
    first: Option<&'static str>,
    /// Whatever was not added was there already with the same value.
    only_repeated: bool,
}

fn insert(table: &mut Table, entries: &[(TableKey, TableValue)], atomic: bool, update: bool) -> Added {
    let mut added = Added { results: vec!["ignored"; entries.len()], first: None, only_repeated: true };
    if table.options.locked {
        return Added { first: Some("table is locked"), only_repeated: false, ..added };
    }
    let before = atomic.then(|| table.entries.clone());
    for (at, (key, value)) in entries.iter().enumerate() {
        let full = table.options.limit != 0 && table.entries.len() >= table.options.limit as usize;
        let reason = match table.entries.entry(key.clone()) {
            Entry::Occupied(mut there) if update => {
                there.insert(*value);
                added.results[at] = "updated";
                continue;
            }
            Entry::Occupied(there) => {
                added.results[at] = "exists";
                added.only_repeated &= there.get() == value;
                "record already exists"
            }
            Entry::Vacant(_) if full => {
                added.results[at] = "limit";
                added.only_repeated = false;
                "limit hit"
            }
            Entry::Vacant(place) => {
                place.insert(*value);
                added.results[at] = "added";
                continue;
            }
        };
        added.first = added.first.or(Some(reason));
        if let Some(before) = before {
            table.entries = before;
            break;
        }
    }
    added
}

/// The entry that a packet with this key would find.
fn longest_match<'a>(table: &'a Table, wanted: &TableKey) -> Option<(&'a TableKey, &'a TableValue)> {
    let shorter = |length: u8| match wanted {
        TableKey::V4(address, _) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            TableKey::V4((u32::from(*address) & mask).into(), length)
        }
        TableKey::V6(address, _) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            TableKey::V6((u128::from(*address) & mask).into(), length)
        }
        TableKey::Mac(bytes, _) => {
            let mut bytes = *bytes;
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte &= (0xff00_u16 >> usize::from(length).saturating_sub(at * 8).min(8)) as u8;
            }
            TableKey::Mac(bytes, length)
        }
        other => other.clone(),
    };
    let length = match wanted {
        TableKey::V4(_, length) | TableKey::V6(_, length) | TableKey::Mac(_, length) => *length,
        _ => return table.entries.get_key_value(wanted),
    };
    (0..=length).rev().find_map(|length| table.entries.get_key_value(&shorter(length)))
}
