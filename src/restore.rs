//! `ferrule restore`: gives the kernel back what a closed end, or a killed process, has left.

#![forbid(unsafe_code)]

use std::path::Path;

use crate::daemon::kernel_failure;
use crate::failure::Failure;
use crate::kernel::{left, remove_vlan_record, restore_left};

/// Gives back the NICs of these ports, or of all that there are records of. Returns what was done and what the kernel did not
/// take back, a line each.
///
/// # Errors
/// [`Failure::Input`] while a ferrule runs, and for a name of which there is no record.
pub fn run(names: &[String], state_directory: &Path) -> Result<Vec<String>, Failure> {
    let all = left(state_directory).map_err(|e| kernel_failure(&e))?;
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|left| left.name != **name)) {
        let known: Vec<&str> = all.iter().map(|left| left.name.as_str()).collect();
        let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
        return Err(Failure::input(format!(
            "{}: no record of {unknown} in this network namespace; there is one of: {known}",
            state_directory.display()
        )));
    }
    let mut lines = Vec::new();
    for left in all.iter().filter(|left| names.is_empty() || names.contains(&left.name)) {
        if left.has_nic {
            let refused = restore_left(&left.name, state_directory).map_err(|e| kernel_failure(&e))?;
            lines.push(format!("{}: the kernel has its device back", left.name));
            lines.extend(refused.into_iter().map(|text| format!("{}: {text}", left.name)));
        } else {
            remove_vlan_record(&left.name, state_directory).map_err(|e| kernel_failure(&e))?;
            lines.push(format!("{}: a VLAN without a device of its own; its record is removed", left.name));
        }
    }
    if lines.is_empty() {
        lines.push("nothing to give back".to_owned());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_nothing_was_left_nothing_is_touched_and_an_unknown_name_is_told() {
        let directory = std::env::temp_dir().join(format!("ferrule-nothing-left-{}", std::process::id()));
        assert_eq!(run(&[], &directory).unwrap(), ["nothing to give back"]);
        let Err(Failure::Input(text)) = run(&["em0".to_owned()], &directory) else { panic!("restored em0") };
        assert!(text.contains("no record of em0") && text.contains("one of: nothing"), "{text}");
    }
}
