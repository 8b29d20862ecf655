#![forbid(unsafe_code)]
//! What a parser has to say about a text, and the bounded list that collects it.

use crate::span::Span;
use serde::Serialize;

/// How bad it is. Only errors keep a file from being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, and probably does not do what was meant.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// The word shown before the message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// A second place that explains a diagnostic, such as the first of two definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// What is there.
    pub message: String,
}

/// One complaint: where, what, how to mend it, and the other places that belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Where to look.
    pub span: Span,
    /// What is wrong: one line, lower case, no full stop. Text from the file is quoted with [`quoted`].
    pub message: String,
    /// What to do about it: one line.
    pub hint: Option<String>,
    /// Other places, in the order to be shown.
    pub labels: Vec<Label>,
}

impl Diagnostic {
    /// An error at `span`.
    pub fn error(span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, span, message)
    }

    /// A warning at `span`.
    pub fn warning(span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, span, message)
    }

    /// A note at `span`.
    pub fn note(span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Note, span, message)
    }

    /// A diagnostic of any severity.
    pub fn new(severity: Severity, span: Span, message: impl Into<String>) -> Self {
        Self { severity, span, message: message.into(), hint: None, labels: Vec::new() }
    }

    /// Says how to mend it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says how to mend it, where that is known.
    #[must_use]
    pub fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Points to a second place.
    #[must_use]
    pub fn label(mut self, span: Span, message: impl Into<String>) -> Self {
        self.labels.push(Label { span, message: message.into() });
        self
    }
}

/// Collects the diagnostics of one run. Keeps the first [`Diagnostics::LIMIT`] errors and counts the rest, so that a
/// megabyte of noise costs no more memory, time or screen than a page of mistakes.
#[derive(Debug, Default)]
pub struct Diagnostics {
    kept: Vec<Diagnostic>,
    errors: usize,
    more: usize,
    first_left_out: Span,
}

impl Diagnostics {
    /// How many diagnostics are kept; beyond that they are counted.
    pub const LIMIT: usize = 30;

    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.errors += usize::from(diagnostic.severity == Severity::Error);
        if self.kept.len() < Self::LIMIT {
            self.kept.push(diagnostic);
            return;
        }
        if self.more == 0 {
            self.first_left_out = diagnostic.span;
        }
        self.more += 1;
    }

    /// True when a further diagnostic would only be counted: no use in working out its hint.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= Self::LIMIT
    }

    /// True when at least one of them is an error.
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Number of errors so far, kept or only counted.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// The span of the one added last, for telling repeated complaints about one place.
    pub(crate) fn last_span(&self) -> Option<Span> {
        self.kept.last().map(|diagnostic| diagnostic.span)
    }

    /// All of them in the order of the text. When some were only counted, a last one says how many.
    pub fn into_vec(mut self) -> Vec<Diagnostic> {
        self.kept.sort_by_key(|diagnostic| diagnostic.span.start);
        if self.more > 0 {
            let plural = if self.more == 1 { "error" } else { "errors" };
            self.kept.push(Diagnostic::error(self.first_left_out, format!("and {} more {plural}", self.more)));
        }
        self.kept
    }
}

/// Text from a file, quoted for a message: control and direction characters escaped (a terminal must not obey them),
/// and cut after 48 characters.
pub fn quoted(text: &str) -> String {
    const MAX: usize = 48;
    let mut out = String::from("\"");
    for character in text.chars().take(MAX) {
        if character == '\'' || is_plain(character) {
            out.push(character);
        } else {
            out.extend(character.escape_debug());
        }
    }
    out.push_str(if text.chars().nth(MAX).is_some() { "...\"" } else { "\"" });
    out
}

/// True for characters that can be shown as they are: neither control nor format (bidirectional) characters.
pub(crate) fn is_plain(character: char) -> bool {
    let hidden =
        matches!(character, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}');
    !character.is_control() && !hidden && !matches!(character, '"' | '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_harmless_and_short() {
        assert_eq!(quoted("em0"), "\"em0\"");
        assert_eq!(quoted("a\x1b[31m\"b'"), "\"a\\u{1b}[31m\\\"b'\"");
        assert_eq!(quoted("\u{202E}x"), "\"\\u{202e}x\"");
        assert_eq!(quoted(&"é".repeat(60)), format!("\"{}...\"", "é".repeat(48)));
    }

    #[test]
    fn the_list_is_sorted_and_bounded() {
        let mut list = Diagnostics::new();
        for at in (0..Diagnostics::LIMIT + 3).rev() {
            list.push(Diagnostic::error(Span::new(at, at), at.to_string()));
        }
        assert!(list.is_full());
        assert_eq!(list.errors(), Diagnostics::LIMIT + 3);
        let all = list.into_vec();
        assert_eq!(all.len(), Diagnostics::LIMIT + 1);
        assert!(all[..Diagnostics::LIMIT].is_sorted_by_key(|diagnostic| diagnostic.span.start));
        let last = all.last().unwrap();
        assert_eq!((last.message.as_str(), last.span.start), ("and 3 more errors", 2));
    }

    #[test]
    fn a_warning_is_not_an_error() {
        let mut list = Diagnostics::new();
        list.push(Diagnostic::warning(Span::default(), "hm"));
        assert!(!list.has_errors());
        list.push(Diagnostic::error(Span::default(), "no"));
        assert!(list.has_errors());
    }
}
