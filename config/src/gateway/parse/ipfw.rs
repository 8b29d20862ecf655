#![forbid(unsafe_code)]
//! `[ipfw]`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use super::super::ipfw::{DYN_MAX, DefaultRule, Ipfw, IpfwLog, LOG_KEEP, LOG_SIZE, LogFormat, Management, TIME_LIMIT};
use super::super::section::{Section, wrong_type};
use super::{Reader, complaint};
use crate::diagnostic::{Diagnostic, quoted};
use crate::document::{Entry, Kind, Value};
use crate::span::Located;

impl Reader<'_> {
    pub(super) fn ipfw(&mut self, section: &Section<'_>) -> Ipfw {
        let default = Ipfw::default();
        let enabled = section.boolean("enabled", self.diagnostics).map_or(default.enabled, |on| on.value);
        let script = section.string("script", self.diagnostics).and_then(|text| self.parsed(text, absolute));
        if enabled && script.is_none() {
            let hint = "add script = \"/etc/ipfw.rules\", or enabled = false";
            self.missing::<()>(section, "[ipfw]", "script", hint);
        }
        let rule = [("deny", DefaultRule::Deny), ("accept", DefaultRule::Accept)];
        Ipfw {
            enabled,
            script,
            arguments: self.arguments(section),
            environment: self.environment(section),
            time_limit: section
                .integer("time_limit", TIME_LIMIT, "seconds", self.diagnostics)
                .map_or(default.time_limit, |n| n.value),
            default: section.choice("default", &rule, self.diagnostics).map_or(default.default, |rule| rule.value),
            dyn_max: section.integer("dyn_max", DYN_MAX, "states", self.diagnostics).map(|n| n.value),
            management: self.management(section),
            log: self.ipfw_log(section),
        }
    }

    fn arguments(&mut self, section: &Section<'_>) -> Vec<Located<String>> {
        let list = section.list("arguments", "strings", self.diagnostics);
        list.map_or_else(Vec::new, |list| self.strings("arguments", list.value).0)
    }

    /// The table of a key that holds one.
    fn table_of<'t>(&mut self, section: &Section<'t>, key: &str, example: &str) -> Option<&'t Value> {
        let value = &section.entry(key)?.value;
        if matches!(value.kind, Kind::Table(_)) {
            return Some(value);
        }
        wrong_type(key, &format!("a table such as {example}"), value, self.diagnostics)
    }

    fn environment(&mut self, section: &Section<'_>) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        let example = "{ firewall_type = \"open\" }";
        let Some(Value { kind: Kind::Table(table), .. }) = self.table_of(section, "environment", example) else {
            return out;
        };
        for Entry { key, value } in &table.entries {
            let name = key.text.as_str();
            let rest_is_word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if name.is_empty() || !rest_is_word || name.as_bytes()[0].is_ascii_digit() {
                let message = format!("{} cannot be a variable of the shell", quoted(name));
                let hint = "letters, digits and `_`, a letter first";
                self.diagnostics.push(Diagnostic::error(key.span, message).hint(hint));
                continue;
            }
            match &value.kind {
                Kind::String(text) if text.contains('\0') => {
                    let message = format!("{name} contains a zero byte");
                    self.diagnostics.push(Diagnostic::error(value.span, message));
                }
                Kind::String(text) => {
                    out.insert(name.to_owned(), text.clone());
                }
                _ => {
                    wrong_type::<()>(name, "a string", value, self.diagnostics);
                }
            }
        }
        out
    }

    fn management(&mut self, section: &Section<'_>) -> Management {
        let mut management = Management::default();
        let Some(value) = self.table_of(section, "management", "{ port = 22 }") else { return management };
        let Kind::Table(table) = &value.kind else { return management };
        let keys = Section::open("management", table, value.span, self.diagnostics);
        if let Some(port) = keys.integer("port", 1..=u16::MAX, "", self.diagnostics) {
            management.port = port.value;
        }
        if let Some(list) = keys.list("from", "addresses", self.diagnostics) {
            let (texts, _) = self.strings("from", list.value);
            management.from = texts.into_iter().filter_map(|text| self.parsed(text, address)).collect();
        }
        management
    }

    fn ipfw_log(&mut self, section: &Section<'_>) -> Option<IpfwLog> {
        let value = self.table_of(section, "log", "{ pcap = \"/var/log/ipfw.pcap\" }")?;
        let Kind::Table(table) = &value.kind else { return None };
        let keys = Section::open("log", table, value.span, self.diagnostics);
        let default = IpfwLog::default();
        let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
        let log = IpfwLog {
            file: keys.string("file", self.diagnostics).and_then(|text| self.parsed(text, absolute)),
            pcap: keys.string("pcap", self.diagnostics).and_then(|text| self.parsed(text, absolute)),
            format: keys.choice("format", &formats, self.diagnostics).map_or(default.format, |format| format.value),
            size: keys.integer("size", LOG_SIZE, "MiB", self.diagnostics).map_or(default.size, |n| n.value),
            keep: keys.integer("keep", LOG_KEEP, "files", self.diagnostics).map_or(default.keep, |n| n.value),
        };
        if keys.entry("file").is_none() && keys.entry("pcap").is_none() && !keys.misspelt {
            let hint = "name a file, a pcap, or both";
            self.diagnostics.push(Diagnostic::error(value.span, "this log is written nowhere").hint(hint));
        }
        if let (Some(file), Some(pcap)) = (&log.file, &log.pcap)
            && file.value == pcap.value
        {
            let message = "file and pcap are the same file";
            self.diagnostics.push(Diagnostic::error(pcap.span, message).label(file.span, "lines are written here"));
        }
        Some(log)
    }
}

fn absolute(text: &str) -> Result<PathBuf, Diagnostic> {
    if text.starts_with('/') {
        return Ok(PathBuf::from(text));
    }
    Err(complaint(format!("{} is not an absolute path", quoted(text))).hint("begin it with `/`"))
}

fn address(text: &str) -> Result<IpAddr, Diagnostic> {
    text.parse().map_err(|_| {
        complaint(format!("{} is no address", quoted(text))).hint("write \"192.0.2.7\" or \"2001:db8::7\"")
    })
}
