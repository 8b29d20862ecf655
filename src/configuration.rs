//! Reading gateway.toml from disk: the checked meaning, or every mistake with its place.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ferrule_config::gateway::{self, Gateway, MAX_BYTES};
use ferrule_config::{Color, Diagnostic, Source, render_all};
use serde::Serialize;

use crate::failure::Failure;
use crate::log;

/// A mistake or a remark, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// `error`, `warning` or `note`.
    pub severity: &'static str,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// What it is.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// What `ferrule check` found.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The meaning; None with errors.
    pub gateway: Option<Gateway>,
    /// Errors, or warnings and notes.
    pub remarks: Vec<Remark>,
    /// The same as text with source lines.
    pub text: String,
}

/// Reads and checks a file.
///
/// # Errors
/// [`Failure::Input`] when it cannot be read. Mistakes in it are no failure here: see [`Checked`].
pub fn check(path: &Path, color: Color) -> Result<Checked, Failure> {
    let told = |e: std::io::Error| Failure::input(format!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that the parser sees that it is too long; a device file has no end.
    File::open(path).map_err(told)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(told)?;
    Ok(check_bytes(path, &bytes, color))
}

/// Checks what was read from `path`.
fn check_bytes(path: &Path, bytes: &[u8], color: Color) -> Checked {
    let name = path.display().to_string();
    let text = String::from_utf8_lossy(bytes);
    let source = Source::new(&name, &text);
    let (gateway, diagnostics) = match gateway::parse_bytes(bytes) {
        Ok(gateway) => {
            let notes = gateway.notes();
            (Some(gateway), notes)
        }
        Err(errors) => (None, errors),
    };
    let remark = |d: &Diagnostic| {
        let position = source.position(d.span.start);
        Remark {
            severity: d.severity.as_str(),
            line: position.line,
            column: position.column,
            message: d.message.clone(),
            hint: d.hint.clone(),
        }
    };
    let remarks = diagnostics.iter().map(remark).collect();
    Checked { gateway, remarks, text: render_all(&diagnostics, &source, color) }
}

/// Reads a file that is to be put in force; notes go to the log.
///
/// # Errors
/// [`Failure::Input`] with every mistake.
pub fn load(path: &Path) -> Result<Gateway, Failure> {
    accept(path, check(path, color())?)
}

/// As [`load`], of bytes that the daemon's helper has read from `path`.
///
/// # Errors
/// [`Failure::Input`] with every mistake.
pub fn load_bytes(path: &Path, bytes: &[u8]) -> Result<Gateway, Failure> {
    accept(path, check_bytes(path, bytes, color()))
}

fn color() -> Color {
    if log::may_colour(&std::io::stderr()) { Color::Yes } else { Color::No }
}

fn accept(path: &Path, checked: Checked) -> Result<Gateway, Failure> {
    match checked.gateway {
        Some(gateway) => {
            if !checked.text.is_empty() {
                log::notice(checked.text.trim_end());
            }
            Ok(gateway)
        }
        None => Err(Failure::Input(format!("{} cannot be used:\n{}", path.display(), checked.text.trim_end()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("ferrule-configuration-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_good_file_is_its_meaning() {
        let path = file("good", "[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n");
        assert_eq!(load(&path).unwrap().ports[0].name.value, "wan");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_bad_file_names_line_and_column() {
        let path = file("bad", "[[port]]\ndevice = \"eth0\"\nqueue = 2\n");
        let Err(Failure::Input(text)) = load(&path) else { panic!("loaded") };
        assert!(text.contains("bad.toml:3:1: error: unknown key") && text.contains("did you mean `queues`"), "{text}");
        let checked = check(&path, Color::No).unwrap();
        let first = &checked.remarks[0];
        assert_eq!((first.severity, first.line, first.column), ("error", 3, 1));
        std::fs::remove_file(path).unwrap();
        let Err(Failure::Input(text)) = load(Path::new("/no/such/gateway.toml")) else { panic!("loaded") };
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn a_file_without_end_is_refused() {
        assert!(load(Path::new("/dev/zero")).is_err());
    }
}
