#![forbid(unsafe_code)]
//! `table NAME ...`.

use super::abbreviation::{leading_number, unique};
use super::words::{Word, Words};
use crate::ipfw::addresses::is_object_name;
use crate::ipfw::ast::ValueKind;
use crate::ipfw::failure::Failure;
use crate::ipfw::keywords::VALUE_KINDS;
use crate::ipfw::table::{FlowFields, TableKind, TableOptions};
use crate::span::Span;
use crate::suggest::did_you_mean;

/// One command about tables.
#[derive(Clone, Debug, PartialEq)]
pub struct TableCommand {
    /// Which.
    pub table: TableSelector,
    /// Where its name stands.
    pub span: Span,
    /// What to do.
    pub action: TableAction,
}

/// Which tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSelector {
    /// The one of this name.
    One(String),
    /// `all`.
    All,
}

/// What to do with a table.
#[derive(Clone, Debug, PartialEq)]
pub enum TableAction {
    /// `create`
    Create(TableOptions),
    /// `modify limit N`
    Modify {
        /// New bound, where one was given.
        limit: Option<u32>,
    },
    /// `destroy`
    Destroy,
    /// `[atomic] add KEY [VALUE] [KEY VALUE] ...`
    Add {
        /// Keys and values.
        entries: Vec<(Word, Option<Word>)>,
        /// All or none.
        atomic: bool,
    },
    /// `delete KEY ...`
    Delete(Vec<Word>),
    /// `flush`
    Flush,
    /// `list`
    List,
    /// `info`
    Info,
    /// `detail`
    Detail,
    /// `lookup KEY`
    Lookup(Word),
    /// `lock`, `unlock`
    Lock(bool),
    /// `swap NAME`
    Swap(String),
}

const COMMANDS: [&str; 14] = [
    "add", "delete", "create", "destroy", "flush", "modify", "swap", "info", "detail", "list", "lookup", "atomic",
    "lock", "unlock",
];
const OPTIONS: [&str; 7] = ["type", "valtype", "algo", "limit", "locked", "missing", "or-flush"];

/// One of `known`, perhaps shortened.
fn token(word: &Word, known: &[&'static str], what: &str) -> Result<&'static str, Failure> {
    unique(&word.text, known).map_err(|matches| {
        let wrong = if matches == 0 { "invalid" } else { "ambiguous" };
        Failure::usage(word.span, format!("{wrong} {what} {}", word.text.escape_debug()))
            .maybe_hint(did_you_mean(&word.text, known.iter().copied()))
    })
}

/// The words after `table`.
pub(super) fn command(words: &[Word], end: Span) -> Result<TableCommand, Failure> {
    let mut words = Words::new(words, end);
    let name = words.next().ok_or_else(|| Failure::usage(end, "table needs name"))?;
    let table = match name.text.as_str() {
        "all" => TableSelector::All,
        text if is_object_name(text) => TableSelector::One(text.to_owned()),
        text => {
            return Err(Failure::usage(name.span, format!("table name {} is invalid", text.escape_debug()))
                .hint("a name is 1 to 63 letters, digits, `_`, `-` and `.`"));
        }
    };
    let mut word = words.next().ok_or_else(|| Failure::usage(end, "table needs command"))?;
    let mut command = token(word, &COMMANDS, "table command")?;
    let atomic = command == "atomic";
    if atomic {
        word = words.next().ok_or_else(|| Failure::usage(end, "atomic needs command"))?;
        command = token(word, &COMMANDS, "table command")?;
        if command != "add" {
            return Err(Failure::usage(word.span, format!("atomic is not compatible with {command}")));
        }
    }
    if table == TableSelector::All && !matches!(command, "list" | "info" | "detail" | "flush" | "destroy") {
        return Err(Failure::usage(name.span, "table name required"));
    }
    let address = |words: &Words<'_>| Failure::usage(words.here(), "address required");
    let action = match command {
        "create" => TableAction::Create(create(&mut words)?),
        "modify" => modify(&mut words)?,
        "destroy" => TableAction::Destroy,
        "add" => {
            if words.peek().is_none() {
                return Err(address(&words));
            }
            let mut entries = Vec::with_capacity(words.rest().len() / 2 + 1);
            while let Some(key) = words.next() {
                entries.push((key.clone(), words.next().cloned()));
            }
            TableAction::Add { entries, atomic }
        }
        "delete" if words.peek().is_none() => return Err(address(&words)),
        "delete" => TableAction::Delete(words.rest().to_vec()),
        "flush" => TableAction::Flush,
        "list" => TableAction::List,
        "info" => TableAction::Info,
        "detail" => TableAction::Detail,
        "lookup" => TableAction::Lookup(words.next().ok_or_else(|| address(&words))?.clone()),
        "lock" | "unlock" => TableAction::Lock(command == "lock"),
        "swap" => {
            let second = words.next().ok_or_else(|| Failure::usage(end, "second table name required"))?;
            if !is_object_name(&second.text) || second.text == "all" {
                return Err(Failure::usage(
                    second.span,
                    format!("table name {} is invalid", second.text.escape_debug()),
                ));
            }
            TableAction::Swap(second.text.clone())
        }
        other => unreachable!("{other} is not one of COMMANDS"),
    };
    Ok(TableCommand { table, span: name.span, action })
}

fn value<'a>(words: &mut Words<'a>, missing: &str) -> Result<&'a Word, Failure> {
    let here = words.here();
    words.next().ok_or_else(|| Failure::usage(here, missing))
}

fn limit(words: &mut Words<'_>) -> Result<u32, Failure> {
    let word = value(words, "limit value required")?;
    let wrong = || Failure::usage(word.span, format!("invalid limit {}", word.text.escape_debug()));
    let (number, rest) = leading_number(&word.text);
    u32::try_from(number).ok().filter(|_| rest.is_empty()).ok_or_else(wrong)
}

fn modify(words: &mut Words<'_>) -> Result<TableAction, Failure> {
    let mut bound = None;
    while let Some(word) = words.next() {
        if token(word, &OPTIONS, "option")? != "limit" {
            return Err(Failure::usage(word.span, "cmd is not supported for modification"));
        }
        bound = Some(limit(words)?);
    }
    Ok(TableAction::Modify { limit: bound })
}

fn create(words: &mut Words<'_>) -> Result<TableOptions, Failure> {
    let mut options = TableOptions {
        kind: TableKind::Address,
        values: Vec::new(),
        algorithm: None,
        limit: 0,
        locked: false,
        missing: false,
        or_flush: false,
    };
    let (mut kind, mut algorithm_at) = (None, Span::default());
    while let Some(word) = words.next() {
        match token(word, &OPTIONS, "option")? {
            "limit" => options.limit = limit(words)?,
            "type" => kind = Some(parse_kind(value(words, "table type required")?)?),
            "valtype" => options.values = value_kinds(value(words, "table value type required")?)?,
            "algo" => {
                let name = value(words, "table algorithm name required")?;
                if name.text.len() > 32 {
                    return Err(Failure::usage(name.span, "algorithm name too long"));
                }
                algorithm_at = name.span;
                options.algorithm = Some(name.text.clone());
            }
            "locked" => options.locked = true,
            "or-flush" => (options.or_flush, options.missing) = (true, true),
            _ => options.missing = true,
        }
    }
    let of_algorithm = options.algorithm.as_deref().map(|name| name.split(':').next().unwrap_or_default());
    let implied = match of_algorithm {
        None => None,
        Some("addr") => Some(TableKind::Address),
        Some("iface") => Some(TableKind::Interface),
        Some("number") => Some(TableKind::Number),
        Some("flow") => Some(TableKind::Flow(ALL_FIELDS)),
        Some("mac") => Some(TableKind::Mac),
        Some(_) => return Err(unsupported(algorithm_at)),
    };
    if let (Some(kind), Some(implied)) = (kind, implied)
        && std::mem::discriminant(&kind) != std::mem::discriminant(&implied)
    {
        return Err(unsupported(algorithm_at));
    }
    options.kind = kind.or(implied).unwrap_or(TableKind::Address);
    Ok(options)
}

fn unsupported(span: Span) -> Failure {
    Failure::os(span, "Table creation failed", crate::ipfw::failure::errno::UNSUPPORTED)
        .hint("algorithms begin with the type of their table, such as addr:radix")
}

/// What a flow table without fields is looked up by.
pub(crate) const ALL_FIELDS: FlowFields = FlowFields {
    source_address: true,
    source_port: true,
    protocol: true,
    destination_address: true,
    destination_port: true,
};

fn parse_kind(word: &Word) -> Result<TableKind, Failure> {
    let (name, fields) = match word.text.split_once(':') {
        Some((name, fields)) => (name, Some(fields)),
        None => (word.text.as_str(), None),
    };
    let kind = match name {
        "addr" => TableKind::Address,
        "mac" => TableKind::Mac,
        "iface" => TableKind::Interface,
        "number" => TableKind::Number,
        "flow" => return fields.map_or(Ok(TableKind::Flow(ALL_FIELDS)), |fields| flow(word, fields)),
        _ => {
            let hint = did_you_mean(name, ["addr", "mac", "iface", "number", "flow"]);
            let message =
                format!("Unknown tabletype: {}. Supported: addr, mac, iface, number, flow", name.escape_debug());
            return Err(Failure::usage(word.span, message).maybe_hint(hint));
        }
    };
    match fields {
        None => Ok(kind),
        Some(fields) => Err(Failure::usage(word.span, format!("Unsupported suboptions: {}", fields.escape_debug()))),
    }
}

fn flow(word: &Word, text: &str) -> Result<TableKind, Failure> {
    let mut fields = FlowFields {
        source_address: false,
        source_port: false,
        protocol: false,
        destination_address: false,
        destination_port: false,
    };
    for field in text.split(',') {
        match field {
            "src-ip" => fields.source_address = true,
            "proto" => fields.protocol = true,
            "src-port" => fields.source_port = true,
            "dst-ip" => fields.destination_address = true,
            "dst-port" => fields.destination_port = true,
            _ => {
                let hint = did_you_mean(field, ["src-ip", "proto", "src-port", "dst-ip", "dst-port"]);
                let message = format!("unable to parse flow option {}", field.escape_debug());
                return Err(Failure::usage(word.span, message).maybe_hint(hint));
            }
        }
    }
    Ok(TableKind::Flow(fields))
}

fn value_kinds(word: &Word) -> Result<Vec<ValueKind>, Failure> {
    let mut kinds = Vec::new();
    for name in word.text.split(',').filter(|name| !name.is_empty()) {
        let Some(&(_, kind)) = VALUE_KINDS.iter().find(|(known, _)| *known == name) else {
            let names: Vec<_> = VALUE_KINDS.iter().map(|&(name, _)| name).collect();
            let message = format!("Unknown value type: {}. Supported: {}", name.escape_debug(), names.join(", "));
            return Err(Failure::usage(word.span, message).maybe_hint(did_you_mean(name, names)));
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.sort_unstable();
    Ok(kinds)
}
