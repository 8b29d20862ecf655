#![forbid(unsafe_code)]
//! From the events of `toml_parser` to the tree: headers, dotted keys, and what may not be defined twice
//! (TOML 1.1, sections "Keys", "Table", "Array of Tables").

use super::{Document, Key, Kind, Origin, Table, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::span::Span;
use std::borrow::Cow;
use toml_parser::decoder::ScalarKind;
use toml_parser::parser::{Event, EventKind, RecursionGuard, ValidateWhitespace};
use toml_parser::{Expected, ParseError, Source};

/// Deepest nesting of lists and inline tables; no file of ours needs more than three.
const MAX_DEPTH: u32 = 32;
/// Most parts of a dotted key; bounds the depth of the tree together with [`MAX_DEPTH`].
const MAX_KEY_PARTS: usize = 16;

/// Reads `text`; what is wrong with it goes to `diagnostics`.
pub(crate) fn parse(text: &str, diagnostics: &mut Diagnostics) -> Document {
    let source = Source::new(text);
    let tokens = source.lex().into_vec();
    let mut events: Vec<Event> = Vec::new();
    let mut broken = false;
    {
        let mut validate = ValidateWhitespace::new(&mut events, source);
        let mut guard = RecursionGuard::new(&mut validate, MAX_DEPTH);
        let mut sink = |error: ParseError| report(error, diagnostics, &mut broken);
        toml_parser::parser::parse_document(&tokens, &mut guard, &mut sink);
    }
    let mut builder = Builder { source, events: &events, at: 0, diagnostics, broken };
    let root = builder.document();
    Document { root, broken: builder.broken }
}

/// Turns a syntax error into a diagnostic. Several complaints in a row about one place are one.
fn report(error: ParseError, diagnostics: &mut Diagnostics, broken: &mut bool) {
    *broken = true;
    let span = error.unexpected().or(error.context()).map_or(Span::default(), ours);
    if diagnostics.is_full() || diagnostics.last_span() == Some(span) {
        if diagnostics.last_span() != Some(span) {
            diagnostics.push(Diagnostic::error(span, "syntax error"));
        }
        return;
    }
    let expected: Vec<String> = error.expected().unwrap_or_default().iter().map(expectation).collect();
    let hint = (!expected.is_empty()).then(|| format!("expected {}", expected.join(" or ")));
    diagnostics.push(Diagnostic::error(span, format!("not TOML: {}", error.description())).maybe_hint(hint));
}

fn expectation(expected: &Expected) -> String {
    match expected {
        Expected::Literal("\n") => "a line end".to_owned(),
        Expected::Literal(literal) => format!("`{literal}`"),
        Expected::Description("literal string") => "a string in quotes".to_owned(),
        Expected::Description(description) => (*description).to_owned(),
        _ => "something else".to_owned(),
    }
}

fn ours(span: toml_parser::Span) -> Span {
    Span::new(span.start(), span.end())
}

struct Builder<'s, 'e, 'd> {
    source: Source<'s>,
    events: &'e [Event],
    at: usize,
    diagnostics: &'d mut Diagnostics,
    broken: bool,
}

/// The way to the table that a header opened: indices of entries from the root. A step through `[[..]]` blocks leads to
/// the last of them. None: the header was refused, its keys have no home.
type Way = Option<Vec<usize>>;

impl Builder<'_, '_, '_> {
    fn document(&mut self) -> Table {
        let mut root = Table::new(Origin::Header);
        let mut homeless = Table::new(Origin::Header);
        let mut way: Way = Some(Vec::new());
        while let Some(kind) = self.peek() {
            match kind {
                EventKind::StdTableOpen | EventKind::ArrayTableOpen => {
                    way = self.header(&mut root);
                    homeless = Table::new(Origin::Header);
                }
                EventKind::SimpleKey => {
                    let keys = self.keys();
                    if self.peek() != Some(EventKind::KeyValSep) {
                        continue;
                    }
                    self.at += 1;
                    self.skip_space();
                    let value = self.value();
                    let table = way.as_deref().and_then(|way| follow(&mut root, way)).unwrap_or(&mut homeless);
                    self.insert(table, keys, value);
                }
                _ => self.at += 1,
            }
        }
        root
    }

    /// `[a.b]` or `[[a.b]]`.
    fn header(&mut self, root: &mut Table) -> Way {
        let open = self.events[self.at];
        let array = open.kind() == EventKind::ArrayTableOpen;
        let mut span = ours(open.span());
        let mut keys = Vec::new();
        self.at += 1;
        while let Some(kind) = self.peek() {
            match kind {
                EventKind::SimpleKey => keys = self.keys(),
                EventKind::StdTableClose | EventKind::ArrayTableClose => {
                    span = span.to(ours(self.events[self.at].span()));
                    self.at += 1;
                    break;
                }
                EventKind::Newline => break,
                _ => self.at += 1,
            }
        }
        let last = keys.pop()?;
        let mut way = Vec::new();
        let mut table = root;
        for key in keys {
            let at = match table.position(&key.text) {
                Some(at) => at,
                None => {
                    let value = Value { span: key.span, kind: Kind::Table(Table::new(Origin::Implicit)) };
                    table.push(key.clone(), value)
                }
            };
            way.push(at);
            let first = table.entries[at].key.span;
            match inside(&mut table.entries[at].value.kind) {
                Some(next) if next.origin != Origin::Inline => table = next,
                _ => {
                    let message = format!("{} cannot hold the table {}", quoted(&key.text), quoted(&last.text));
                    self.complain(key.span, message, first, "it is a value here");
                    return None;
                }
            }
        }
        match table.position(&last.text) {
            None => {
                let block = Value { span, kind: Kind::Table(Table::new(Origin::Header)) };
                let kind = if array { Kind::Tables(vec![block]) } else { block.kind };
                way.push(table.push(last, Value { span, kind }));
            }
            Some(at) => {
                way.push(at);
                let entry = &mut table.entries[at];
                match &mut entry.value.kind {
                    Kind::Tables(blocks) if array => {
                        blocks.push(Value { span, kind: Kind::Table(Table::new(Origin::Header)) });
                    }
                    Kind::Table(table) if !array && table.origin == Origin::Implicit => {
                        table.origin = Origin::Header;
                        entry.value.span = span;
                    }
                    kind => {
                        // Keys below a repeated header are still read into the first table, to be checked there.
                        let readable = matches!(kind, Kind::Table(table) if !array && table.origin == Origin::Header);
                        let message = format!("{} is defined twice", quoted(&last.text));
                        self.complain(last.span, message, entry.key.span, "first defined here");
                        return readable.then_some(way);
                    }
                }
            }
        }
        Some(way)
    }

    /// `a.b.c`, up to what follows it.
    fn keys(&mut self) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::new();
        while let Some(kind) = self.peek() {
            match kind {
                EventKind::SimpleKey => {
                    let event = self.events[self.at];
                    let mut text = Cow::Borrowed("");
                    if let Some(raw) = self.source.get(event) {
                        let (diagnostics, broken) = (&mut *self.diagnostics, &mut self.broken);
                        raw.decode_key(&mut text, &mut |error: ParseError| report(error, diagnostics, broken));
                    }
                    keys.push(Key { text: text.into_owned(), span: ours(event.span()) });
                }
                EventKind::KeySep | EventKind::Whitespace => {}
                _ => break,
            }
            self.at += 1;
        }
        if keys.len() > MAX_KEY_PARTS {
            self.diagnostics.push(Diagnostic::error(keys[0].span, "this key has too many parts"));
            self.broken = true;
            keys.truncate(MAX_KEY_PARTS);
        }
        keys
    }

    fn value(&mut self) -> Value {
        let Some(event) = self.events.get(self.at).copied() else {
            return Value {
                span: Span::new(self.source.input().len(), self.source.input().len()),
                kind: Kind::Invalid,
            };
        };
        match event.kind() {
            EventKind::Scalar => {
                self.at += 1;
                self.scalar(event)
            }
            EventKind::ArrayOpen => self.array(event),
            EventKind::InlineTableOpen => self.inline_table(event),
            _ => Value { span: ours(event.span()), kind: Kind::Invalid },
        }
    }

    fn scalar(&mut self, event: Event) -> Value {
        let span = ours(event.span());
        let Some(raw) = self.source.get(event) else {
            return Value { span, kind: Kind::Invalid };
        };
        let mut text = Cow::Borrowed("");
        let mut invalid = false;
        let (diagnostics, broken) = (&mut *self.diagnostics, &mut self.broken);
        let mut sink = |error: ParseError| {
            invalid = true;
            report(error, diagnostics, broken);
        };
        let kind = match raw.decode_scalar(&mut text, &mut sink) {
            _ if invalid => Kind::Invalid,
            ScalarKind::String => Kind::String(text.into_owned()),
            ScalarKind::Boolean(value) => Kind::Boolean(value),
            ScalarKind::Integer(radix) => Kind::Integer(i64::from_str_radix(&text, radix.value()).ok()),
            ScalarKind::Float => Kind::Float,
            ScalarKind::DateTime => Kind::DateTime,
        };
        Value { span, kind }
    }

    fn array(&mut self, open: Event) -> Value {
        let mut span = ours(open.span());
        let mut items = Vec::new();
        self.at += 1;
        while let Some(kind) = self.peek() {
            match kind {
                EventKind::Scalar | EventKind::ArrayOpen | EventKind::InlineTableOpen => items.push(self.value()),
                EventKind::ArrayClose => {
                    span = span.to(ours(self.events[self.at].span()));
                    self.at += 1;
                    break;
                }
                EventKind::ValueSep
                | EventKind::Whitespace
                | EventKind::Comment
                | EventKind::Newline
                | EventKind::Error => self.at += 1,
                _ => break,
            }
        }
        Value { span, kind: Kind::Array(items) }
    }

    fn inline_table(&mut self, open: Event) -> Value {
        let mut span = ours(open.span());
        let mut table = Table::new(Origin::Inline);
        self.at += 1;
        while let Some(kind) = self.peek() {
            match kind {
                EventKind::SimpleKey => {
                    let keys = self.keys();
                    if self.peek() == Some(EventKind::KeyValSep) {
                        self.at += 1;
                        self.skip_space();
                        let value = self.value();
                        self.insert(&mut table, keys, value);
                    }
                }
                EventKind::InlineTableClose => {
                    span = span.to(ours(self.events[self.at].span()));
                    self.at += 1;
                    break;
                }
                EventKind::StdTableOpen
                | EventKind::StdTableClose
                | EventKind::ArrayTableOpen
                | EventKind::ArrayTableClose
                | EventKind::ArrayClose => break,
                _ => self.at += 1,
            }
        }
        Value { span, kind: Kind::Table(table) }
    }

    /// `a.b = value` within one table.
    fn insert(&mut self, table: &mut Table, mut keys: Vec<Key>, value: Value) {
        let Some(last) = keys.pop() else { return };
        let dotted = !keys.is_empty();
        let mut table = table;
        for key in keys {
            let at = match table.position(&key.text) {
                Some(at) => at,
                None => {
                    let value = Value { span: key.span, kind: Kind::Table(Table::new(Origin::Dotted)) };
                    table.push(key.clone(), value)
                }
            };
            let entry = &mut table.entries[at];
            match &mut entry.value.kind {
                Kind::Table(next) if matches!(next.origin, Origin::Dotted | Origin::Implicit) => {
                    next.origin = Origin::Dotted;
                    table = next;
                }
                Kind::Tables(_) => {
                    let message = format!("a dotted key cannot reach into the blocks of {}", quoted(&key.text));
                    self.complain(key.span, message, entry.key.span, "they are defined here");
                    return;
                }
                _ => {
                    let message = format!("{} is defined twice", quoted(&key.text));
                    self.complain(key.span, message, entry.key.span, "first defined here");
                    return;
                }
            }
        }
        debug_assert!(!dotted || table.origin == Origin::Dotted);
        match table.position(&last.text) {
            None => {
                table.push(last, value);
            }
            Some(at) => {
                let message = format!("{} is defined twice", quoted(&last.text));
                self.complain(last.span, message, table.entries[at].key.span, "first defined here");
            }
        }
    }

    fn complain(&mut self, span: Span, message: String, first: Span, label: &str) {
        self.diagnostics.push(Diagnostic::error(span, message).label(first, label));
    }

    fn peek(&self) -> Option<EventKind> {
        self.events.get(self.at).map(Event::kind)
    }

    fn skip_space(&mut self) {
        while self.peek() == Some(EventKind::Whitespace) {
            self.at += 1;
        }
    }
}

/// The table that a step of a header leads into: a table, or the last of `[[..]]` blocks.
fn inside(kind: &mut Kind) -> Option<&mut Table> {
    match kind {
        Kind::Table(table) => Some(table),
        Kind::Tables(blocks) => match &mut blocks.last_mut()?.kind {
            Kind::Table(table) => Some(table),
            _ => None,
        },
        _ => None,
    }
}

fn follow<'t>(root: &'t mut Table, way: &[usize]) -> Option<&'t mut Table> {
    way.iter().try_fold(root, |table, &at| inside(&mut table.entries.get_mut(at)?.value.kind))
}
