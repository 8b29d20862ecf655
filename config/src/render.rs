#![forbid(unsafe_code)]
//! Diagnostics as text: `file:line:column: error: message`, the line with a caret, other places, a hint.
//!
//! ```text
//! gateway.toml:12:1: error: unknown key "queue" in [[port]]
//!    12 | queue = 2
//!       | ^^^^^
//!   hint: did you mean `queues`?
//! ```
//! The first line is what editors and CI logs recognise. Long lines are cut around the caret, and control characters of
//! the file never reach the terminal.

use crate::diagnostic::{Diagnostic, Severity, is_plain};
use crate::span::{Source, Span};
use std::fmt::Write;

/// Whether to colour for a terminal (ANSI escape codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// Plain text.
    No,
    /// Bold, red, yellow and blue.
    Yes,
}

/// Characters of a source line shown at most.
const WINDOW: usize = 100;
/// Characters shown before the caret when a line is cut.
const BEFORE_CARET: usize = 40;

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const BLUE: &str = "\x1b[1;34m";

impl Diagnostic {
    /// The diagnostic as text with a line end.
    pub fn render(&self, source: &Source<'_>, color: Color) -> String {
        let mut out = String::new();
        entry(&mut out, source, color, self.severity, self.span, &self.message);
        for label in &self.labels {
            entry(&mut out, source, color, Severity::Note, label.span, &label.message);
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(out, "  {} {hint}", painted("hint:", BOLD, color));
        }
        out
    }
}

/// Every diagnostic, one after the other.
pub fn render_all(diagnostics: &[Diagnostic], source: &Source<'_>, color: Color) -> String {
    diagnostics.iter().map(|diagnostic| diagnostic.render(source, color)).collect()
}

/// The first line and the excerpt of one place.
fn entry(out: &mut String, source: &Source<'_>, color: Color, severity: Severity, span: Span, message: &str) {
    let position = source.position(span.start);
    let place = format!("{}:{}:{}:", source.name(), position.line, position.column);
    let paint = match severity {
        Severity::Error => RED,
        Severity::Warning => YELLOW,
        Severity::Note => BLUE,
    };
    let word = format!("{}:", severity.as_str());
    let _ = writeln!(out, "{} {} {message}", painted(&place, BOLD, color), painted(&word, paint, color));

    let (line, line_start) = source.line_at(span.start);
    if line.is_empty() {
        return;
    }
    let column = position.column as usize - 1;
    let end = (span.end as usize).saturating_sub(line_start).min(line.len());
    let width = line.char_indices().skip(column).take(WINDOW).take_while(|&(at, _)| at < end).count().max(1);
    let (cut, shift) = if column > WINDOW - BEFORE_CARET { ("...", column - BEFORE_CARET) } else { ("", 0) };
    let text: String = line.chars().skip(shift).take(WINDOW).map(shown).collect();
    let width = width.min((shift + WINDOW).saturating_sub(column).max(1));
    let more = if line.chars().nth(shift + WINDOW).is_some() { "..." } else { "" };
    let indent = cut.len() + column - shift;
    let carets = format!("{:indent$}{}", "", painted(&"^".repeat(width), paint, color));
    let _ = writeln!(out, "{:>5} | {cut}{}{more}", position.line, text.trim_end());
    let _ = writeln!(out, "      | {carets}");
}

/// One column for each character, whatever it is.
fn shown(character: char) -> char {
    match character {
        '\t' => ' ',
        '"' | '\\' => character,
        _ if is_plain(character) => character,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

fn painted(text: &str, paint: &str, color: Color) -> String {
    match color {
        Color::No => text.to_owned(),
        Color::Yes => format!("{paint}{text}\x1b[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_shows_line_caret_label_and_hint() {
        let text = "a = 1\n\tb = \"two\"\n";
        let diagnostic = Diagnostic::error(Span::new(11, 16), "b must be a number")
            .label(Span::new(0, 1), "a is one")
            .hint("write b = 2");
        let expected = "f.toml:2:6: error: b must be a number\n    2 |  b = \"two\"\n      |      ^^^^^\n\
                        f.toml:1:1: note: a is one\n    1 | a = 1\n      | ^\n  hint: write b = 2\n";
        assert_eq!(diagnostic.render(&Source::new("f.toml", text), Color::No), expected);
    }

    #[test]
    fn colour_only_when_asked() {
        let diagnostic = Diagnostic::warning(Span::new(0, 1), "hm");
        let source = Source::new("f", "x");
        assert!(!diagnostic.render(&source, Color::No).contains('\x1b'));
        assert!(diagnostic.render(&source, Color::Yes).contains("\x1b[1;33mwarning:\x1b[0m"));
    }

    #[test]
    fn long_lines_are_cut_around_the_caret_and_control_characters_replaced() {
        let text = format!("{}\x1b[2J{}", "a".repeat(500), "b".repeat(500));
        let rendered = Diagnostic::error(Span::new(500, 1004), "bad").render(&Source::new("f", &text), Color::No);
        let lines: Vec<&str> = rendered.lines().collect();
        assert_eq!(lines[0], "f:1:501: error: bad");
        assert_eq!(lines[1], format!("    1 | ...{}\u{FFFD}[2J{}...", "a".repeat(40), "b".repeat(56)));
        assert_eq!(lines[2], format!("      |    {}{}", " ".repeat(40), "^".repeat(60)));
    }

    #[test]
    fn any_span_can_be_rendered() {
        let text = "é\n";
        let source = Source::new("f", text);
        for start in 0..6 {
            for end in 0..6 {
                let rendered = Diagnostic::error(Span::new(start, end), "x").render(&source, Color::No);
                let excerpt = source.position(start as u32).line == 1;
                assert_eq!(rendered.contains('^'), excerpt, "{start}..{end}");
            }
        }
        assert_eq!(
            Diagnostic::error(Span::default(), "empty").render(&Source::new("f", ""), Color::No),
            "f:1:1: error: empty\n"
        );
    }
}
