#![forbid(unsafe_code)]
//! Places in a text: byte spans, values that remember where they were written, and a text with its line starts.

use serde::Serialize;
use std::fmt;
use std::ops::Deref;

/// A half-open range of byte offsets in one source text. The default, `0..0`, is the start of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The span `start..end`. Offsets beyond 4 GiB are clamped (no language of this crate accepts such a text).
    pub fn new(start: usize, end: usize) -> Self {
        let clamp = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self { start: clamp(start), end: clamp(end) }
    }

    /// The smallest span that covers both.
    pub fn to(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// A value and the place where it was written.
///
/// Two located values are equal when their values are: a file and its canonical print mean the same. A default value
/// has the span of its section's header, or the start of the file where there is no such section.
#[derive(Clone, Copy, Default)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Where it stands in the file.
    pub span: Span,
}

impl<T> Located<T> {
    /// `value`, written at `span`.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }

    /// The same place, another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: change(self.value), span: self.span }
    }
}

/// A value that stands in no file (a default, or one made by a program).
impl<T> From<T> for Located<T> {
    fn from(value: T) -> Self {
        Self { value, span: Span::default() }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Located<T> {}

impl<T: fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

/// The place of a whole block. All places are equal, for the same reason as those of [`Located`] values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place(
    /// Its header.
    pub Span,
);

impl PartialEq for Place {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Place {}

/// A line and column, both counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// A source text with the name it is reported under and an index of its lines.
pub struct Source<'a> {
    name: &'a str,
    text: &'a str,
    line_starts: Vec<u32>,
}

impl<'a> Source<'a> {
    /// Indexes `text`; `name` is what diagnostics call the file.
    pub fn new(name: &'a str, text: &'a str) -> Self {
        let newlines = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| Span::new(at + 1, at + 1).start)).collect();
        Self { name, text, line_starts }
    }

    /// The name of the file in diagnostics.
    pub fn name(&self) -> &'a str {
        self.name
    }

    /// Line and column of a byte offset. An offset beyond the end, or inside a character, is moved back to the nearest
    /// place that exists.
    pub fn position(&self, offset: u32) -> Position {
        let offset = self.floor(offset);
        let line = self.line_of(offset);
        let before = &self.text[self.line_starts[line] as usize..offset];
        Position { line: line as u32 + 1, column: before.chars().count() as u32 + 1 }
    }

    /// The line that holds `offset`, without its line end, and the offset of its first byte.
    pub(crate) fn line_at(&self, offset: u32) -> (&'a str, usize) {
        let line = self.line_of(self.floor(offset));
        let start = self.line_starts[line] as usize;
        let end = self.line_starts.get(line + 1).map_or(self.text.len(), |&next| next as usize - 1);
        let text = &self.text[start..end];
        (text.strip_suffix('\r').unwrap_or(text), start)
    }

    fn line_of(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|&start| start as usize <= offset) - 1
    }

    /// The nearest character boundary at or before `offset`.
    fn floor(&self, offset: u32) -> usize {
        let mut offset = (offset as usize).min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let source = Source::new("x", "ab\né = 1\r\n\nend");
        let at = |offset| {
            let position = source.position(offset);
            (position.line, position.column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(2), (1, 3));
        assert_eq!(at(3), (2, 1));
        assert_eq!(at(4), (2, 1), "inside the two bytes of é");
        assert_eq!(at(5), (2, 2));
        assert_eq!(at(11), (3, 1));
        assert_eq!(at(12), (4, 1));
        assert_eq!(at(999), (4, 4), "beyond the end");
        assert_eq!(source.line_at(6).0, "é = 1");
        assert_eq!(source.line_at(11).0, "");
    }

    #[test]
    fn located_values_compare_without_their_place() {
        assert_eq!(Located::new(1, Span::new(1, 2)), Located::from(1));
        assert_ne!(Located::from(1), Located::from(2));
    }
}
