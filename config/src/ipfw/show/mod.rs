#![forbid(unsafe_code)]
//! What ipfw(8) prints: rows of plain data in, the original's lines out. Whoever counts (the daemon) fills the rows; they are also what
//! `--json` writes.

pub mod rules;
pub mod shaper;
pub mod states;
pub mod tables;

/// The line of `set show`: disabled sets, then enabled ones, 0 to 30.
pub fn sets(disabled: u32) -> String {
    let mut out = String::new();
    for (word, wanted) in [("disable", true), ("enable", false)] {
        let sets = (0..31).filter(|set| (disabled & (1 << set) != 0) == wanted);
        let sets: Vec<String> = sets.map(|set| format!(" {set}")).collect();
        if !sets.is_empty() {
            let gap = if out.is_empty() { "" } else { " " };
            out.push_str(&format!("{gap}{word}{}", sets.concat()));
        }
    }
    out.push('\n');
    out
}

/// The name of an IP protocol, or its number after `unknown`.
pub(crate) fn protocol(number: u8, names: &dyn super::names::Names, unknown: &str) -> String {
    names.protocol_name(number).map_or_else(|| format!("{unknown}{number}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_line_of_set_show() {
        let all: String = (0..31).map(|set| format!(" {set}")).collect();
        assert_eq!(super::sets(0), format!("enable{all}\n"));
        let line = super::sets(1 << 5 | 1 << 7);
        assert!(line.starts_with("disable 5 7 enable 0 1 2 3 4 6 8 "), "{line}");
    }
}
