#![forbid(unsafe_code)]
//! What the section `[ipfw]` says.

use crate::span::Located;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// What [`Ipfw::time_limit`] may be, in seconds.
pub const TIME_LIMIT: RangeInclusive<u32> = 1..=3600;
/// What [`Ipfw::dyn_max`] may be: states that a worker can hold at most.
pub const DYN_MAX: RangeInclusive<u32> = 1..=4_194_304;
/// What [`IpfwLog::size`] may be, in MiB.
pub const LOG_SIZE: RangeInclusive<u32> = 1..=65_536;
/// What [`IpfwLog::keep`] may be, in files.
pub const LOG_KEEP: RangeInclusive<u32> = 0..=100;

/// What rule 65535 does (FreeBSD's loader tunable `net.inet.ip.fw.default_to_accept`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultRule {
    /// `"deny"`.
    #[default]
    Deny,
    /// `"accept"`.
    Accept,
}

/// How lines of the log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// As FreeBSD's kernel writes them to the system log.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What the built-in set lets in when the script fails at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// TCP port of the box.
    pub port: u16,
    /// Where connections may come from; empty is anywhere.
    pub from: Vec<Located<IpAddr>>,
}

impl Default for Management {
    /// ssh from anywhere.
    fn default() -> Self {
        Management { port: 22, from: Vec::new() }
    }
}

/// Where `log` rules write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpfwLog {
    /// File of lines.
    pub file: Option<Located<PathBuf>>,
    /// How they are written.
    pub format: LogFormat,
    /// Capture file, as of FreeBSD's interface `ipfw0`.
    pub pcap: Option<Located<PathBuf>>,
    /// Size in MiB at which a file is put aside and a new one begun.
    pub size: u32,
    /// Files put aside that are kept.
    pub keep: u32,
}

impl Default for IpfwLog {
    fn default() -> Self {
        IpfwLog { file: None, format: LogFormat::Text, pcap: None, size: 64, keep: 4 }
    }
}

/// `[ipfw]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipfw {
    /// Whether the stage stands in the packets' way.
    pub enabled: bool,
    /// The script that makes the rules; None only where it is not enabled.
    pub script: Option<Located<PathBuf>>,
    /// Its arguments.
    pub arguments: Vec<Located<String>>,
    /// Variables of its environment, as rc.conf(5) gives them.
    pub environment: BTreeMap<String, String>,
    /// Longest run of the script, in seconds.
    pub time_limit: u32,
    /// What rule 65535 does.
    pub default: DefaultRule,
    /// `net.inet.ip.fw.dyn_max` at start.
    pub dyn_max: Option<u32>,
    /// What is let in when the script fails at start.
    pub management: Management,
    /// Where `log` rules write.
    pub log: Option<IpfwLog>,
}

impl Default for Ipfw {
    fn default() -> Self {
        Ipfw {
            enabled: true,
            script: None,
            arguments: Vec::new(),
            environment: BTreeMap::new(),
            time_limit: 60,
            default: DefaultRule::default(),
            dyn_max: None,
            management: Management::default(),
            log: None,
        }
    }
}
