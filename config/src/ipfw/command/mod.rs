#![forbid(unsafe_code)]
//! The command language of ipfw(8): arguments in, one [`Command`] out.
//!
//! Words are matched, abbreviated and refused in the order in which FreeBSD's main.c tries them, because that order decides what an
//! abbreviation means (`ipfw d` disables, `ipfw de` deletes). Rule bodies, keys and values stay words here: rules belong to the
//! [`RuleLanguage`](super::language::RuleLanguage), and keys can only be read once the kind of their table is known.

pub(crate) mod abbreviation;
mod object;
mod options;
mod parse;
mod sets;
mod table;
mod words;

pub use options::{Dynamic, Options, Timestamp};
pub use parse::{file_mode, parse};
pub(crate) use table::ALL_FIELDS;
pub use table::{TableAction, TableCommand, TableSelector};
pub use words::{CommandLine, Word, Words};

/// What one call of ipfw(8) asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Invocation {
    /// Its options.
    pub options: Options,
    /// What to do; None for a blank line.
    pub command: Option<Command>,
    /// Things to say on standard error first.
    pub warnings: Vec<String>,
}

/// One command.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `-h`.
    Help,
    /// `add`: the words after it.
    Add(Vec<Word>),
    /// `[set N] delete ...`, `delete set N ...`.
    Delete(Delete),
    /// `[set N] flush`.
    Flush {
        /// Only this set.
        set: Option<u8>,
    },
    /// `[set N] zero [NUMBER ...]`, `resetlog`.
    Zero {
        /// Only in this set.
        set: Option<u8>,
        /// Rule numbers; empty is all rules.
        numbers: Vec<u16>,
        /// Counters of log entries only.
        log_only: bool,
    },
    /// `[set N] list [RANGE ...]`, `show`.
    List(List),
    /// `set ...`.
    Set(SetCommand),
    /// `enable`, `disable`.
    Switch {
        /// Which; None where the word was unknown (a warning says so, and nothing happens).
        switch: Option<Switch>,
        /// Enable.
        on: bool,
    },
    /// `table ...`.
    Table(TableCommand),
    /// `nat ...`.
    Nat(NatCommand),
    /// `pipe`, `queue`, `sched ...`.
    Dummynet(DummynetKind, DummynetCommand),
}

/// What `delete` deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delete {
    /// Rules numbered in these ranges; 0 alone is all rules.
    Rules {
        /// Only those of this set.
        set: Option<u8>,
        /// First and last number.
        ranges: Vec<(u16, u16)>,
    },
    /// `delete set N ...`.
    Sets(Vec<u8>),
}

/// What `list` lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Only this set.
    pub set: Option<u8>,
    /// With counters.
    pub counters: bool,
    /// What was asked for; empty is everything.
    pub ranges: Vec<ListRange>,
}

/// One argument of `list`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListRange {
    /// Rules numbered from the first to the second.
    Numbers(u32, u32),
    /// No number: complained about while the others are listed.
    Invalid(String),
}

/// `set` without a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetCommand {
    /// `set show`.
    Show,
    /// `set swap A B`.
    Swap(u8, u8),
    /// `set move A to B`.
    Move(u8, u8),
    /// `set move rule N to B`.
    MoveRule(u16, u8),
    /// `set disable A ... enable B ...`: one bit for each set.
    Enable {
        /// To be disabled.
        disable: u32,
        /// To be enabled.
        enable: u32,
    },
}

/// Word of `enable` and `disable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `firewall`
    Firewall,
    /// `one_pass`
    OnePass,
    /// `debug`
    Debug,
    /// `verbose`
    Verbose,
    /// `dyn_keepalive`
    DynKeepalive,
    /// `skipto_cache`
    SkiptoCache,
}

impl Switch {
    /// Every switch and its word.
    pub const ALL: [(&'static str, Switch); 6] = [
        ("firewall", Switch::Firewall),
        ("one_pass", Switch::OnePass),
        ("debug", Switch::Debug),
        ("verbose", Switch::Verbose),
        ("dyn_keepalive", Switch::DynKeepalive),
        ("skipto_cache", Switch::SkiptoCache),
    ];

    /// The variables that it sets to 1 and 0.
    pub fn variables(self) -> &'static [&'static str] {
        match self {
            Switch::Firewall => &["net.inet.ip.fw.enable", "net.inet6.ip6.fw.enable"],
            Switch::OnePass => &["net.inet.ip.fw.one_pass"],
            Switch::Debug => &["net.inet.ip.fw.debug"],
            Switch::Verbose => &["net.inet.ip.fw.verbose"],
            Switch::DynKeepalive => &["net.inet.ip.fw.dyn_keepalive"],
            Switch::SkiptoCache => &["net.inet.ip.fw.skipto_cache"],
        }
    }
}

/// `nat ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatCommand {
    /// `nat N config ...`: the words after `config N`.
    Config {
        /// Instance.
        number: u32,
        /// Its options.
        words: Vec<Word>,
    },
    /// `nat [N] show config`.
    ShowConfig(Option<String>),
    /// `nat [N] show log`.
    ShowLog(Option<String>),
    /// `nat N delete`.
    Delete(Vec<u32>),
}

/// Which of dummynet's objects a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum DummynetKind {
    /// `pipe`
    Pipe,
    /// `queue`, `flowset`
    Queue,
    /// `sched`
    Scheduler,
}

/// `pipe`, `queue`, `sched ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DummynetCommand {
    /// `pipe N config ...`: the words after `config N`.
    Config {
        /// Number.
        number: u32,
        /// Its options.
        words: Vec<Word>,
    },
    /// `pipe [RANGE ...] show`: first and last numbers; empty is all.
    Show(Vec<(u32, u32)>),
    /// `pipe N delete`.
    Delete(Vec<u32>),
    /// `pipe flush`: every pipe, queue and scheduler.
    Flush,
}
