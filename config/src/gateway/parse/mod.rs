#![forbid(unsafe_code)]
//! From text to [`Gateway`]: every section is read to its end whatever went wrong before, then the whole is checked.

mod ipfw;
mod port;
mod route;
mod settings;

use super::section::{SECTIONS, Section, wrong_type};
use super::{Gateway, check};
use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::document::{self, Entry, Kind, Table, Value};
use crate::span::{Located, Span};
use crate::suggest::did_you_mean;

/// Largest file that is read, in bytes. Some ten thousand routes fit; no gateway has more by hand.
pub const MAX_BYTES: usize = 1 << 20;

/// What was not understood, so that checks which lean on it say nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubts {
    /// Names of ports and VLANs.
    pub names: bool,
    /// Addresses of ports and VLANs.
    pub addresses: bool,
    /// Whether the mode is standalone.
    pub mode: bool,
}

/// Reads `gateway.toml`.
///
/// # Errors
/// Everything that is wrong with the text, in its order; at most [`Diagnostics::LIMIT`] and a last one that counts the
/// rest. Render them with [`Diagnostic::render`].
pub fn parse(text: &str) -> Result<Gateway, Vec<Diagnostic>> {
    let mut diagnostics = Diagnostics::new();
    if text.len() > MAX_BYTES {
        return Err(vec![too_large(text.len())]);
    }
    let document = document::parse(text, &mut diagnostics);
    let (gateway, doubts) = Reader { diagnostics: &mut diagnostics }.gateway(&document.root);
    if !document.broken {
        check::check(&gateway, doubts, &mut diagnostics);
        if gateway.ports.is_empty() && !doubts.names {
            let place = document.root.get("port").map_or(Span::default(), |entry| entry.value.span);
            let hint = "add a block [[port]] with device = \"eth0\"";
            diagnostics.push(Diagnostic::error(place, "no ports: a gateway needs at least one").hint(hint));
        }
    }
    if diagnostics.has_errors() { Err(diagnostics.into_vec()) } else { Ok(gateway) }
}

/// Reads a file as it is on disk. What is not UTF-8 is an error at its first such byte; render it against
/// [`String::from_utf8_lossy`] of the bytes.
///
/// # Errors
/// As [`parse`].
pub fn parse_bytes(bytes: &[u8]) -> Result<Gateway, Vec<Diagnostic>> {
    if bytes.len() > MAX_BYTES {
        return Err(vec![too_large(bytes.len())]);
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text),
        Err(error) => {
            let at = error.valid_up_to();
            let message = format!("not UTF-8 text: byte 0x{:02x}", bytes[at]);
            Err(vec![Diagnostic::error(Span::new(at, at), message).hint("save the file as UTF-8")])
        }
    }
}

fn too_large(length: usize) -> Diagnostic {
    let message = format!("the file has {length} bytes, more than the {MAX_BYTES} of any gateway.toml");
    Diagnostic::error(Span::default(), message).hint("is this the right file?")
}

/// Reads sections; complaints go to one list.
struct Reader<'d> {
    diagnostics: &'d mut Diagnostics,
}

impl Reader<'_> {
    fn gateway(&mut self, root: &Table) -> (Gateway, Doubts) {
        let mut gateway = Gateway::default();
        let mut doubts = Doubts::default();
        self.unknown_sections(root, &mut doubts);
        if let Some(section) = self.section(root, "gateway", "[gateway]") {
            gateway.engine = self.engine(&section);
        }
        if let Some(section) = self.section(root, "control", "[control]") {
            gateway.control = self.control(&section);
        }
        if let Some(section) = self.section(root, "host", "[host]") {
            gateway.host = self.host(&section, &mut doubts);
        }
        if let Some(section) = self.section(root, "icmp", "[icmp]") {
            gateway.icmp = self.icmp(&section);
        }
        if let Some(section) = self.section(root, "limits", "[limits]") {
            gateway.limits = self.limits(&section);
        }
        if let Some(section) = self.section(root, "ipfw", "[ipfw]") {
            gateway.ipfw = Some(self.ipfw(&section));
        }
        let ports = self.blocks(root.get("port"), "[[port]]");
        doubts.names |= ports.is_none();
        doubts.addresses |= ports.is_none();
        gateway.ports = ports.unwrap_or_default().iter().map(|section| self.port(section, &mut doubts)).collect();
        let routes = self.blocks(root.get("route"), "[[route]]").unwrap_or_default();
        gateway.routes = routes.iter().filter_map(|section| self.route(section)).collect();
        let neighbors = self.blocks(root.get("neighbor"), "[[neighbor]]").unwrap_or_default();
        gateway.neighbors = neighbors.iter().filter_map(|section| self.neighbor(section)).collect();
        (gateway, doubts)
    }

    fn unknown_sections(&mut self, root: &Table, doubts: &mut Doubts) {
        for Entry { key, value } in &root.entries {
            if SECTIONS.iter().any(|(section, _)| *section == key.text) {
                continue;
            }
            let table = matches!(value.kind, Kind::Table(_) | Kind::Tables(_));
            // It may be any section under a misspelt name.
            if table {
                *doubts = Doubts { names: true, addresses: true, mode: true };
            }
            let message = match table {
                true => format!("unknown section {}", quoted(&key.text)),
                false => format!("{} stands outside of any section", quoted(&key.text)),
            };
            let hint = match table {
                _ if self.diagnostics.is_full() => None,
                true => did_you_mean(&key.text, SECTIONS.iter().map(|(section, _)| *section)),
                false => home_of(&key.text).map(|section| format!("put it below {section}")),
            };
            self.diagnostics.push(Diagnostic::error(key.span, message).maybe_hint(hint));
        }
    }

    /// A section that is written once.
    fn section<'t>(&mut self, root: &'t Table, key: &str, title: &'static str) -> Option<Section<'t>> {
        let entry = root.get(key)?;
        match &entry.value.kind {
            Kind::Table(table) => Some(Section::open(title, table, entry.value.span, self.diagnostics)),
            Kind::Tables(_) => {
                let message = format!("there is one {key} only");
                self.diagnostics.push(Diagnostic::error(entry.value.span, message).hint(format!("write {title}")));
                None
            }
            _ => wrong_type(key, "a section", &entry.value, self.diagnostics),
        }
    }

    /// Blocks that may be repeated; empty when there are none, None when they could not be read.
    fn blocks<'t>(&mut self, entry: Option<&'t Entry>, title: &'static str) -> Option<Vec<Section<'t>>> {
        let Some(Entry { key, value }) = entry else { return Some(Vec::new()) };
        let blocks = match &value.kind {
            Kind::Tables(blocks) | Kind::Array(blocks) => blocks,
            Kind::Table(_) => {
                let message = format!("there may be several of {}, each in double brackets", quoted(&key.text));
                self.diagnostics.push(Diagnostic::error(value.span, message).hint(format!("write {title}")));
                return None;
            }
            _ => return wrong_type(&key.text, &format!("written as {title}"), value, self.diagnostics),
        };
        let sections = blocks.iter().map(|block| match &block.kind {
            Kind::Table(table) => Some(Section::open(title, table, block.span, self.diagnostics)),
            _ => wrong_type(&key.text, &format!("written as {title}"), block, self.diagnostics),
        });
        // Collected first: a bad block must not hide the ones after it.
        let sections: Vec<Option<Section<'t>>> = sections.collect();
        sections.into_iter().collect()
    }

    /// Reports a key that must be there and is not.
    fn missing<T>(&mut self, section: &Section<'_>, title: &str, key: &str, hint: impl Into<String>) -> Option<T> {
        if section.entry(key).is_none() && !section.misspelt {
            let message = format!("this {title} has no `{key}`");
            self.diagnostics.push(Diagnostic::error(section.span, message).hint(hint));
        }
        None
    }

    /// A string read further by `read`, which gives the message when it cannot.
    fn parsed<T>(
        &mut self,
        text: Located<String>,
        read: impl FnOnce(&str) -> Result<T, Diagnostic>,
    ) -> Option<Located<T>> {
        match read(&text.value) {
            Ok(value) => Some(Located::new(value, text.span)),
            Err(mut diagnostic) => {
                diagnostic.span = text.span;
                self.diagnostics.push(diagnostic);
                None
            }
        }
    }

    /// The strings of a list; bad ones are reported and left out. The flag is true when all were good.
    fn strings(&mut self, key: &str, values: &[Value]) -> (Vec<Located<String>>, bool) {
        let strings: Vec<_> =
            values.iter().filter_map(|value| super::section::string(key, value, self.diagnostics)).collect();
        let complete = strings.len() == values.len();
        (strings, complete)
    }
}

/// A complaint whose place is filled in by [`Reader::parsed`].
fn complaint(message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(Span::default(), message)
}

/// The only section that takes this key.
fn home_of(key: &str) -> Option<&'static str> {
    const TITLES: [&str; 9] =
        ["[gateway]", "[control]", "[host]", "[icmp]", "[limits]", "[ipfw]", "[[port]]", "[[route]]", "[[neighbor]]"];
    let mut homes = TITLES.into_iter().filter(|title| super::section::keys(title).contains(&key));
    match (homes.next(), homes.next()) {
        (Some(home), None) => Some(home),
        _ => None,
    }
}
