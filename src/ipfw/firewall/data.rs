//! What the commands that ask show, as data (`ferrule --json ipfw ...`).

#![forbid(unsafe_code)]

use ferrule_config::ipfw::command::{
    Command, DummynetCommand, DummynetKind, NatCommand, SetCommand, TableAction, TableSelector,
};
use ferrule_config::ipfw::document::{RuleSet, Table};
use serde::Serialize;
use serde_json::{Value, json};

/// The rows of a command; None where it shows nothing but text.
pub fn rows(command: &Command, set: &RuleSet) -> Option<Value> {
    match command {
        Command::Set(SetCommand::Show) => {
            let disabled: Vec<u8> = (0..31).filter(|set_number| set.disabled_sets >> set_number & 1 == 1).collect();
            Some(json!({ "disabled_sets": disabled }))
        }
        Command::Table(command) => {
            let with_entries = match command.action {
                TableAction::List => true,
                TableAction::Info | TableAction::Detail => false,
                _ => return None,
            };
            let wanted = |name: &str| match &command.table {
                TableSelector::All => true,
                TableSelector::One(one) => one == name,
            };
            let tables = set.tables.iter().filter(|(name, _)| wanted(name));
            let tables: Vec<Value> = tables.map(|(name, shown)| table(name, shown, with_entries)).collect();
            Some(json!({ "tables": tables }))
        }
        Command::Nat(NatCommand::ShowConfig(one)) => {
            let wanted = |number: &u32| one.as_ref().is_none_or(|one| one.parse() == Ok(*number));
            Some(json!({ "nats": numbered(set.nats.iter().filter(|(number, _)| wanted(number))) }))
        }
        Command::Dummynet(kind, DummynetCommand::Show(ranges)) => {
            let wanted =
                |number: &u32| ranges.is_empty() || ranges.iter().any(|(first, last)| (first..=last).contains(&number));
            Some(match kind {
                DummynetKind::Pipe => json!({ "pipes": numbered(set.pipes.iter().filter(|(n, _)| wanted(n))) }),
                DummynetKind::Queue => json!({ "queues": numbered(set.queues.iter().filter(|(n, _)| wanted(n))) }),
                DummynetKind::Scheduler => {
                    json!({ "schedulers": numbered(set.schedulers.iter().filter(|(n, _)| wanted(n))) })
                }
            })
        }
        _ => None,
    }
}

fn table(name: &str, table: &Table, with_entries: bool) -> Value {
    let mut value = json!({ "name": name, "options": table.options, "items": table.entries.len() });
    if with_entries {
        let entries: Vec<Value> =
            table.entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        value["entries"] = Value::from(entries);
    }
    value
}

fn numbered<'a, T: Serialize + 'a>(objects: impl Iterator<Item = (&'a u32, &'a T)>) -> Vec<Value> {
    objects.map(|(number, object)| json!({ "number": number, "config": object })).collect()
}
