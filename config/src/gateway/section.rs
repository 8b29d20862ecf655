#![forbid(unsafe_code)]
//! Which keys each section takes, and typed access to them: a wrong type or range is reported where it stands.

use crate::diagnostic::{Diagnostic, Diagnostics, quoted};
use crate::document::{Entry, Kind, Table, Value};
use crate::span::{Located, Span};
use crate::suggest::{closest, did_you_mean};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// The sections of the file and whether they come as `[[blocks]]`.
pub(crate) const SECTIONS: &[(&str, bool)] = &[
    ("gateway", false),
    ("control", false),
    ("host", false),
    ("icmp", false),
    ("limits", false),
    ("ipfw", false),
    ("port", true),
    ("route", true),
    ("neighbor", true),
];

/// The keys of each section, as messages name it.
const KEYS: &[(&str, &[&str])] = &[
    (
        "[gateway]",
        &[
            "name",
            "on_exit",
            "dispatch",
            "fastforward",
            "poll",
            "hz",
            "batch",
            "workers",
            "cores",
            "buffers",
            "hugepages",
            "watchdog",
            "user",
        ],
    ),
    ("[control]", &["socket", "write_group", "read_group", "metrics"]),
    ("[host]", &["enabled", "dhcp_bypass", "punt_rate", "neighbor_queue", "neighbor_limit"]),
    ("punt_rate", &["neighbor", "routing", "dhcp", "other"]),
    ("[icmp]", &["rate", "burst"]),
    ("[limits]", &["ipv4_routes", "ipv6_routes", "adjacencies"]),
    (
        "[ipfw]",
        &["enabled", "script", "arguments", "environment", "time_limit", "default", "dyn_max", "management", "log"],
    ),
    ("management", &["port", "from"]),
    ("log", &["file", "format", "pcap", "size", "keep"]),
    (
        "[[port]]",
        &[
            "name",
            "device",
            "driver",
            "queues",
            "mtu",
            "offload",
            "mac",
            "addresses",
            "accept_ra",
            "xdp_mode",
            "in",
            "out",
            "vlan",
        ],
    ),
    ("[[port.vlan]]", &["id", "protocol", "name", "mtu", "addresses", "accept_ra"]),
    ("[[route]]", &["to", "type", "via", "port", "metric"]),
    ("[[neighbor]]", &["port", "address", "mac"]),
];

/// One section or block with its title.
pub(crate) struct Section<'t> {
    title: &'static str,
    table: &'t Table,
    /// Its header, or its braces.
    pub span: Span,
    /// It has keys that are unknown, so that something known may be missing under a misspelt name.
    pub misspelt: bool,
}

impl<'t> Section<'t> {
    /// Opens a section; unknown keys are reported here. `title` is one of [`KEYS`].
    pub fn open(title: &'static str, table: &'t Table, span: Span, diagnostics: &mut Diagnostics) -> Self {
        let known = keys(title);
        let mut misspelt = false;
        for entry in &table.entries {
            if !known.contains(&entry.key.text.as_str()) {
                misspelt = true;
                unknown_key(title, known, entry, diagnostics);
            }
        }
        Self { title, table, span, misspelt }
    }

    /// The entry of a key, if it is there.
    pub fn entry(&self, key: &str) -> Option<&'t Entry> {
        debug_assert!(keys(self.title).contains(&key), "{key} is missing in KEYS");
        self.table.get(key)
    }

    /// A string without control characters, not empty.
    pub fn string(&self, key: &str, diagnostics: &mut Diagnostics) -> Option<Located<String>> {
        let entry = self.entry(key)?;
        string(key, &entry.value, diagnostics)
    }

    /// `true` or `false`.
    pub fn boolean(&self, key: &str, diagnostics: &mut Diagnostics) -> Option<Located<bool>> {
        let entry = self.entry(key)?;
        match entry.value.kind {
            Kind::Boolean(value) => Some(Located::new(value, entry.value.span)),
            _ => wrong_type(key, "true or false", &entry.value, diagnostics),
        }
    }

    /// A whole number within `range`; `unit` follows the range in messages.
    pub fn integer<T>(
        &self,
        key: &str,
        range: RangeInclusive<T>,
        unit: &str,
        diagnostics: &mut Diagnostics,
    ) -> Option<Located<T>>
    where
        T: TryFrom<i64> + PartialOrd + Display,
    {
        let entry = self.entry(key)?;
        integer(key, &entry.value, range, unit, diagnostics)
    }

    /// One of a few words.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&str, T)],
        diagnostics: &mut Diagnostics,
    ) -> Option<Located<T>> {
        let word = self.string(key, diagnostics)?;
        if let Some((_, value)) = choices.iter().find(|(choice, _)| *choice == word.value) {
            return Some(Located::new(*value, word.span));
        }
        let all: Vec<String> = choices.iter().map(|(choice, _)| format!("\"{choice}\"")).collect();
        let hint = closest(&word, choices.iter().map(|(choice, _)| *choice));
        let hint =
            hint.map_or_else(|| format!("one of {}", all.join(", ")), |near| format!("did you mean \"{near}\"?"));
        diagnostics.push(Diagnostic::error(word.span, format!("{key} cannot be {}", quoted(&word))).hint(hint));
        None
    }

    /// The values of a list; `items` says of what.
    pub fn list(&self, key: &str, items: &str, diagnostics: &mut Diagnostics) -> Option<Located<&'t [Value]>> {
        let entry = self.entry(key)?;
        match &entry.value.kind {
            Kind::Array(values) => Some(Located::new(values.as_slice(), entry.value.span)),
            _ => wrong_type(key, &format!("a list of {items}"), &entry.value, diagnostics),
        }
    }
}

/// The keys of a section.
pub(crate) fn keys(title: &str) -> &'static [&'static str] {
    KEYS.iter().find(|(section, _)| *section == title).map_or(&[], |(_, keys)| keys)
}

fn unknown_key(title: &str, known: &[&str], entry: &Entry, diagnostics: &mut Diagnostics) {
    let key = entry.key.text.as_str();
    let diagnostic = Diagnostic::error(entry.key.span, format!("unknown key {} in {title}", quoted(key)));
    if diagnostics.is_full() {
        diagnostics.push(diagnostic);
        return;
    }
    let homes: Vec<&str> = KEYS.iter().filter(|(_, keys)| keys.contains(&key)).map(|(section, _)| *section).collect();
    let hint = match (did_you_mean(key, known.iter().copied()), homes.as_slice()) {
        (_, [home]) => format!("`{}` belongs in {home}", key),
        (Some(hint), _) => hint,
        _ => format!("{title} takes {}", known.join(", ")),
    };
    diagnostics.push(diagnostic.hint(hint));
}

/// A string value without control characters, not empty.
pub(crate) fn string(key: &str, value: &Value, diagnostics: &mut Diagnostics) -> Option<Located<String>> {
    let Kind::String(text) = &value.kind else {
        return wrong_type(key, "a string", value, diagnostics);
    };
    if text.is_empty() {
        diagnostics
            .push(Diagnostic::error(value.span, format!("{key} is empty")).hint("leave the key out, or fill it in"));
        return None;
    }
    if text.chars().any(char::is_control) {
        diagnostics.push(Diagnostic::error(value.span, format!("{key} contains a control character")));
        return None;
    }
    Some(Located::new(text.clone(), value.span))
}

/// A whole number within `range`.
pub(crate) fn integer<T>(
    key: &str,
    value: &Value,
    range: RangeInclusive<T>,
    unit: &str,
    diagnostics: &mut Diagnostics,
) -> Option<Located<T>>
where
    T: TryFrom<i64> + PartialOrd + Display,
{
    let Kind::Integer(number) = value.kind else {
        return wrong_type(key, "a whole number", value, diagnostics);
    };
    match number.and_then(|number| T::try_from(number).ok()) {
        Some(number) if range.contains(&number) => Some(Located::new(number, value.span)),
        _ => {
            let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
            let message = match number {
                Some(number) => format!("{key} cannot be {number}"),
                None => format!("{key} is far too large"),
            };
            let hint = format!("from {} to {}{unit}", range.start(), range.end());
            diagnostics.push(Diagnostic::error(value.span, message).hint(hint));
            None
        }
    }
}

/// Reports a value of the wrong type, unless it is a syntax error that was reported before.
pub(crate) fn wrong_type<T>(key: &str, wanted: &str, value: &Value, diagnostics: &mut Diagnostics) -> Option<T> {
    let hint = match &value.kind {
        Kind::Invalid => return None,
        Kind::String(text) if wanted == "a whole number" && text.parse::<i64>().is_ok() => {
            Some("write it without quotes")
        }
        Kind::String(text) if wanted == "true or false" && matches!(text.as_str(), "true" | "false") => {
            Some("write it without quotes")
        }
        Kind::Integer(_) | Kind::Boolean(_) | Kind::Float | Kind::DateTime if wanted == "a string" => {
            Some("write it in double quotes")
        }
        Kind::String(_) | Kind::Integer(_) if wanted.starts_with("a list") => Some("write it in brackets: [ ]"),
        _ => None,
    };
    let message = format!("{key} must be {wanted}, not {}", value.kind.describe());
    diagnostics.push(Diagnostic::error(value.span, message).maybe_hint(hint.map(str::to_owned)));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    fn with_section<T>(text: &str, read: impl FnOnce(&Section<'_>, &mut Diagnostics) -> T) -> (T, Vec<String>) {
        let mut diagnostics = Diagnostics::new();
        let document = document::parse(text, &mut diagnostics);
        let section = Section::open("[[port]]", &document.root, Span::default(), &mut diagnostics);
        let value = read(&section, &mut diagnostics);
        let said = diagnostics.into_vec();
        (value, said.into_iter().map(|d| format!("{} / {}", d.message, d.hint.unwrap_or_default())).collect())
    }

    #[test]
    fn unknown_keys_say_what_was_meant_or_where_it_belongs() {
        let (_, said) = with_section("queue = 1\nsocket = 2\ncolour = 3", |_, _| ());
        assert_eq!(said[0], "unknown key \"queue\" in [[port]] / did you mean `queues`?");
        assert_eq!(said[1], "unknown key \"socket\" in [[port]] / `socket` belongs in [control]");
        assert!(
            said[2].starts_with("unknown key \"colour\" in [[port]] / [[port]] takes name, device,"),
            "{}",
            said[2]
        );
    }

    #[test]
    fn numbers_have_types_and_ranges() {
        let read = |text: &str| with_section(text, |section, d| section.integer("mtu", 68..=9000_u16, "bytes", d));
        assert_eq!(read("mtu = 1_500").0.map(|mtu| mtu.value), Some(1500));
        assert_eq!(read("").0, None);
        for (text, expected) in [
            ("mtu = 67", "mtu cannot be 67 / from 68 to 9000 bytes"),
            ("mtu = -1", "mtu cannot be -1 / from 68 to 9000 bytes"),
            ("mtu = 99999999999999999999", "mtu is far too large / from 68 to 9000 bytes"),
            ("mtu = \"1500\"", "mtu must be a whole number, not a string / write it without quotes"),
            ("mtu = 1.5", "mtu must be a whole number, not a fraction / "),
        ] {
            assert_eq!(read(text), (None, vec![expected.to_owned()]));
        }
    }

    #[test]
    fn strings_and_choices() {
        let read =
            |text: &str| with_section(text, |section, d| section.choice("driver", &[("xdp", 1), ("packet", 2)], d));
        assert_eq!(read("driver = \"packet\"").0.map(|driver| driver.value), Some(2));
        for (text, expected) in [
            ("driver = \"xpd\"", "driver cannot be \"xpd\" / did you mean \"xdp\"?"),
            ("driver = \"netmap\"", "driver cannot be \"netmap\" / one of \"xdp\", \"packet\""),
            ("driver = true", "driver must be a string, not true or false / write it in double quotes"),
            ("driver = \"\"", "driver is empty / leave the key out, or fill it in"),
            ("driver = \"a\\u0007\"", "driver contains a control character / "),
        ] {
            assert_eq!(read(text), (None, vec![expected.to_owned()]));
        }
    }

    /// The page for users has every key, in the order of the messages, and no other.
    #[test]
    fn every_key_is_explained() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/gateway-toml.md")).unwrap();
        for (title, keys) in KEYS {
            let heading = format!("# `{title}`\n");
            let (_, rest) = page.split_once(&heading).unwrap_or_else(|| panic!("no heading {title}"));
            let part = rest.split("\n#").next().unwrap_or(rest);
            let told: Vec<&str> = part.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect();
            assert_eq!(told, *keys, "{title}");
        }
    }
}
