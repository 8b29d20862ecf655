//! The file system closed with Landlock: only named paths stay open.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};

use crate::failure::Failure;

/// The newest rules that we know; older kernels enforce what they can.
const RULES: ABI = ABI::V5;

/// Closes everything but these paths, and TCP sockets altogether: the metrics listener is bound already. Paths that do not
/// exist are left out. Returns how far the kernel went.
///
/// # Errors
/// When the kernel refuses.
pub fn close(read: &[PathBuf], write: &[PathBuf]) -> Result<&'static str, Failure> {
    let told = |e: landlock::RulesetError| Failure::runtime(format!("cannot close the file system (landlock): {e}"));
    let reading = AccessFs::ReadFile | AccessFs::ReadDir;
    // No program is ever started, so nothing is executable, not even where writing is allowed.
    let writing = AccessFs::from_all(RULES) & !AccessFs::Execute & !AccessFs::MakeChar & !AccessFs::MakeBlock;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(RULES))
        .and_then(|r| r.handle_access(AccessNet::from_all(RULES)))
        .and_then(Ruleset::create)
        .and_then(|r| r.add_rules(path_beneath_rules(read, reading)))
        .and_then(|r| r.add_rules(path_beneath_rules(write, writing)))
        .and_then(|r| r.restrict_self())
        .map_err(told)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => "full",
        RulesetStatus::PartiallyEnforced => "partial",
        RulesetStatus::NotEnforced => "unsupported",
    })
}
