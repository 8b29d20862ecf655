#![forbid(unsafe_code)]
//! What others see of states.

use super::key::{FlowKey, NameId};
use super::state::RuleRef;

/// A state as `ipfw -d list` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateView {
    /// Its flow, as the packet that made it went.
    pub key: FlowKey,
    /// Group.
    pub name: NameId,
    /// The rule that made it.
    pub rule: RuleRef,
    /// Whether `limit` or `set-limit` made it.
    pub limit: bool,
    /// Seconds until it ends.
    pub expires_in: u32,
    /// Packets of both directions.
    pub packets: u64,
    /// Bytes of both directions.
    pub bytes: u64,
    /// TCP flags as FreeBSD shows them: forward in bits 0-7, reverse in bits 8-15, acknowledgement marks in bits 16 and 17.
    pub tcp: u32,
    /// Highest acknowledgement number of the forward and of the reverse direction.
    pub acknowledgements: (u32, u32),
    /// Whether its rule is gone (`dyn_keep_states`).
    pub orphaned: bool,
}

/// What becomes of a state that [`super::States::purge`] shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it is.
    Keep,
    /// It ends now.
    End,
    /// It stays, but its rule is gone: `dyn_keep_states`. Whoever says so keeps the rule.
    Orphan,
}

/// A keep-alive to be sent: an empty TCP segment with ACK alone, which does not pass the rules (FreeBSD: M_SKIP_FIREWALL), with "don't
/// fragment" and TOS "low delay" over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Addresses and ports as they stand in the segment.
    pub key: FlowKey,
    /// Sequence number: the last byte that the receiver acknowledged.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
}
