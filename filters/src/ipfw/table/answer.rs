#![forbid(unsafe_code)]
//! What the control side answers.

use ferrule_config::ipfw::table::TableOptions;

/// Number of a table: what compiled rules have. A swap exchanges what two numbers stand for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct TableId(pub u16);

/// Why something was not done; [`TableError::errno`] gives FreeBSD's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableError {
    /// The table or entry exists already (EEXIST).
    Exists,
    /// There is no such table (ESRCH).
    NoTable,
    /// There is no such entry (ENOENT).
    NoEntry,
    /// A rule refers to it, or there are too many tables (EBUSY).
    Busy,
    /// It is locked (EACCES).
    Locked,
    /// Its limit is reached, or would be passed (EFBIG).
    Limit,
    /// The name, or the kind of key or table, is not right here (EINVAL).
    Invalid,
    /// The memory of all tables is used up (ENOMEM).
    NoMemory,
    /// `missing`: a table of this name exists with another type or other values (EEXIST).
    Incompatible,
}

impl TableError {
    /// FreeBSD's error number.
    pub const fn errno(self) -> i32 {
        match self {
            TableError::NoEntry => 2,
            TableError::NoTable => 3,
            TableError::NoMemory => 12,
            TableError::Locked => 13,
            TableError::Busy => 16,
            TableError::Exists | TableError::Incompatible => 17,
            TableError::Invalid => 22,
            TableError::Limit => 27,
        }
    }
}

/// What became of one entry of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryResult {
    /// It is new.
    Added,
    /// It had another value, or the same.
    Updated,
    /// It is gone.
    Deleted,
    /// It was there, and nothing was changed.
    Exists,
    /// It was not there.
    NotFound,
    /// The table's limit is reached.
    Limit,
    /// Something else; the request's error says what.
    Error,
    /// Nothing was done: another entry of an atomic request failed.
    Untouched,
}

/// How entries are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddMode {
    /// All or none (`ipfw table NAME atomic add`).
    pub atomic: bool,
    /// An entry that is there gets the new value instead of being an error (`ipfw -q table NAME add`, IPFW_TF_UPDATE).
    pub update: bool,
}

/// What `ipfw table NAME info` tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableInfo {
    /// Name.
    pub name: String,
    /// Number.
    pub id: TableId,
    /// Type, values, algorithm, limit and lock as they are now.
    pub options: TableOptions,
    /// Rules that refer to it.
    pub references: u32,
    /// Entries.
    pub entries: usize,
}
