#![forbid(unsafe_code)]
//! The settings of dynamic rules, `net.inet.ip.fw.dyn_*`, and what all workers share.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::parent::Parents;

/// Seconds before its end in which a TCP state gets keep-alives.
pub const KEEPALIVE_INTERVAL: u32 = 20;
/// Seconds between two keep-alives.
pub const KEEPALIVE_PERIOD: u32 = 5;
/// The highest `dyn_max`: states that one worker's table can hold. Their address space is reserved from the start.
pub const MOST_STATES: u32 = 1 << 22;
/// The highest `dyn_parent_max`.
pub const MOST_PARENTS: u32 = 1 << 16;

/// The settings, changed by the control side at any time and read by workers once per turn. Times are in seconds.
#[derive(Debug)]
pub struct Settings {
    /// `dyn_max`: states in the box.
    pub max: AtomicU32,
    /// `dyn_parent_max`: parents in the box.
    pub parent_max: AtomicU32,
    /// `dyn_buckets`: accepted and shown; the number of buckets follows the number of states.
    pub buckets: AtomicU32,
    /// `dyn_ack_lifetime`: TCP, both directions acknowledged.
    pub ack_lifetime: AtomicU32,
    /// `dyn_syn_lifetime`: TCP, opening.
    pub syn_lifetime: AtomicU32,
    /// `dyn_fin_lifetime`: TCP, closed by both sides.
    pub fin_lifetime: AtomicU32,
    /// `dyn_rst_lifetime`: TCP, reset or flags that make no sense.
    pub rst_lifetime: AtomicU32,
    /// `dyn_udp_lifetime`: UDP and UDP-Lite.
    pub udp_lifetime: AtomicU32,
    /// `dyn_short_lifetime`: other protocols, and parents without states.
    pub short_lifetime: AtomicU32,
    /// `dyn_keepalive`: 1 sends keep-alives for established TCP states that are about to end.
    pub keepalive: AtomicU32,
    /// `dyn_keep_states`: 1 keeps the states of a rule that is deleted.
    pub keep_states: AtomicU32,
}

impl Default for Settings {
    /// FreeBSD's values (sys/netpfil/ipfw/ip_fw_dynamic.c).
    fn default() -> Settings {
        Settings {
            max: AtomicU32::new(16384),
            parent_max: AtomicU32::new(4096),
            buckets: AtomicU32::new(8192),
            ack_lifetime: AtomicU32::new(300),
            syn_lifetime: AtomicU32::new(20),
            fin_lifetime: AtomicU32::new(1),
            rst_lifetime: AtomicU32::new(1),
            udp_lifetime: AtomicU32::new(10),
            short_lifetime: AtomicU32::new(5),
            keepalive: AtomicU32::new(1),
            keep_states: AtomicU32::new(0),
        }
    }
}

/// Why a setting was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// There is no variable of this name.
    Unknown,
    /// It can be read only.
    ReadOnly,
    /// The highest value that it may have here.
    TooLarge(u32),
    /// The lowest value that it may have.
    TooSmall(u32),
}

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The settings.
    pub settings: Settings,
    /// Parents of `limit` rules.
    pub parents: Parents,
    /// States of all workers.
    pub(super) count: AtomicU32,
    /// Buckets of the worker that has most.
    pub(super) buckets: AtomicU32,
    /// States that were not made because there were `dyn_max`.
    pub(super) refused_states: AtomicU64,
    /// States that were not made because there were `dyn_parent_max` parents.
    pub(super) refused_parents: AtomicU64,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared::new(Settings::default())
    }
}

impl Shared {
    /// With these settings and no states.
    pub fn new(settings: Settings) -> Shared {
        Shared {
            settings,
            parents: Parents::new(),
            count: AtomicU32::new(0),
            buckets: AtomicU32::new(0),
            refused_states: AtomicU64::new(0),
            refused_parents: AtomicU64::new(0),
        }
    }

    /// States of all workers (`dyn_count`).
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// States that were not made because there were `dyn_max` already, and because there were `dyn_parent_max` parents.
    pub fn refused(&self) -> (u64, u64) {
        (self.refused_states.load(Ordering::Relaxed), self.refused_parents.load(Ordering::Relaxed))
    }

    /// The value of a variable, named without `net.inet.ip.fw.`; None where there is none of this name.
    pub fn get(&self, name: &str) -> Option<u32> {
        if let Some(cell) = self.cell(name) {
            return Some(cell.load(Ordering::Relaxed));
        }
        match name {
            "dyn_count" => Some(self.count()),
            "dyn_parent_count" => Some(self.parents.len()),
            "curr_dyn_buckets" => Some(self.buckets.load(Ordering::Relaxed)),
            _ => None,
        }
    }

    /// Sets a variable, named without `net.inet.ip.fw.`.
    ///
    /// # Errors
    /// [`SettingError`]; nothing was changed then.
    pub fn set(&self, name: &str, value: u32) -> Result<(), SettingError> {
        let cell = match self.cell(name) {
            Some(cell) => cell,
            None if self.get(name).is_some() => return Err(SettingError::ReadOnly),
            None => return Err(SettingError::Unknown),
        };
        match name {
            "dyn_max" if value > MOST_STATES => return Err(SettingError::TooLarge(MOST_STATES)),
            "dyn_parent_max" if value > MOST_PARENTS => return Err(SettingError::TooLarge(MOST_PARENTS)),
            // FreeBSD refuses 256 and fewer and rounds others up to a power of two.
            "dyn_buckets" if value <= 256 => return Err(SettingError::TooSmall(257)),
            _ => {}
        }
        let value = if name == "dyn_buckets" { value.checked_next_power_of_two().unwrap_or(1 << 31) } else { value };
        cell.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Names of all variables, in the order of FreeBSD's source.
    pub const NAMES: [&'static str; 14] = [
        "dyn_count",
        "dyn_parent_count",
        "curr_dyn_buckets",
        "dyn_buckets",
        "dyn_max",
        "dyn_parent_max",
        "dyn_ack_lifetime",
        "dyn_syn_lifetime",
        "dyn_fin_lifetime",
        "dyn_rst_lifetime",
        "dyn_udp_lifetime",
        "dyn_short_lifetime",
        "dyn_keepalive",
        "dyn_keep_states",
    ];

    fn cell(&self, name: &str) -> Option<&AtomicU32> {
        let s = &self.settings;
        Some(match name {
            "dyn_max" => &s.max,
            "dyn_parent_max" => &s.parent_max,
            "dyn_buckets" => &s.buckets,
            "dyn_ack_lifetime" => &s.ack_lifetime,
            "dyn_syn_lifetime" => &s.syn_lifetime,
            "dyn_fin_lifetime" => &s.fin_lifetime,
            "dyn_rst_lifetime" => &s.rst_lifetime,
            "dyn_udp_lifetime" => &s.udp_lifetime,
            "dyn_short_lifetime" => &s.short_lifetime,
            "dyn_keepalive" => &s.keepalive,
            "dyn_keep_states" => &s.keep_states,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_read_and_set_by_name() {
        let shared = Shared::default();
        assert!(Shared::NAMES.iter().all(|name| shared.get(name).is_some()));
        assert_eq!(shared.get("dyn_max"), Some(16384));
        assert_eq!(shared.set("dyn_max", 1_000_000), Ok(()));
        assert_eq!(shared.get("dyn_max"), Some(1_000_000));
        assert_eq!(shared.set("dyn_max", MOST_STATES + 1), Err(SettingError::TooLarge(MOST_STATES)));
        assert_eq!(shared.set("dyn_count", 1), Err(SettingError::ReadOnly));
        assert_eq!(shared.set("dyn_magic", 1), Err(SettingError::Unknown));
        assert_eq!(shared.set("dyn_buckets", 256), Err(SettingError::TooSmall(257)));
        assert_eq!(shared.set("dyn_buckets", 1000), Ok(()));
        assert_eq!(shared.get("dyn_buckets"), Some(1024));
    }
}
