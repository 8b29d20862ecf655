#![forbid(unsafe_code)]
//! A command as text and as words that it owns.

use crate::ipfw::words::{joined, split_arguments, split_line};
use crate::span::Span;

/// One word with its place in the text of its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

/// A command as text and as words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// What spans refer to: the line, or the arguments joined by blanks.
    pub text: String,
    /// Its words; empty for a blank line or a comment.
    pub words: Vec<Word>,
}

impl CommandLine {
    /// The command of these arguments (without the program's name), see [`split_arguments`].
    pub fn from_arguments<S: AsRef<str>>(arguments: &[S]) -> Self {
        Self { text: joined(arguments), words: owned(split_arguments(arguments)) }
    }

    /// The command of one line of a file, see [`split_line`].
    pub fn from_line(text: &str) -> Self {
        let text = text.trim_end_matches(['\n', '\r']);
        Self { text: text.to_owned(), words: owned(split_line(text, 0)) }
    }

    /// The place after the last word: where something is missing.
    pub fn end(&self) -> Span {
        let end = self.words.last().map_or(self.text.len(), |word| word.span.end as usize);
        Span::new(end, end)
    }
}

fn owned(words: Vec<crate::ipfw::words::Word<'_>>) -> Vec<Word> {
    words.into_iter().map(|word| Word { text: word.text.into_owned(), span: word.span }).collect()
}

/// Words being read, one after the other.
#[derive(Clone, Debug)]
pub struct Words<'a> {
    words: &'a [Word],
    end: Span,
}

impl<'a> Words<'a> {
    /// Reads `words`; `end` is where something missing is reported.
    pub fn new(words: &'a [Word], end: Span) -> Self {
        Self { words, end }
    }

    /// The next word, which stays.
    pub fn peek(&self) -> Option<&'a Word> {
        self.words.first()
    }

    /// Takes the next word where it is exactly this.
    pub fn take_if(&mut self, word: &str) -> bool {
        let found = self.words.first().is_some_and(|first| first.text == word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    /// The words left.
    pub fn rest(&self) -> &'a [Word] {
        self.words
    }

    /// The place of the next word, or the end.
    pub fn here(&self) -> Span {
        self.words.first().map_or(self.end, |word| word.span)
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a Word;

    fn next(&mut self) -> Option<&'a Word> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &CommandLine) -> Vec<&str> {
        line.words.iter().map(|word| word.text.as_str()).collect()
    }

    #[test]
    fn a_line_is_split_at_blanks_and_ends_at_a_hash() {
        let line = CommandLine::from_line("  add 100\tallow ip from 1.2.3.4, 5.6.7.8 ,9 to any # why\n");
        assert_eq!(texts(&line), ["add", "100", "allow", "ip", "from", "1.2.3.4,5.6.7.8", ",9", "to", "any"]);
        let list = &line.words[5];
        assert_eq!(&line.text[list.span.start as usize..list.span.end as usize], "1.2.3.4, 5.6.7.8");
        assert!(CommandLine::from_line("   # nothing").words.is_empty());
    }

    #[test]
    fn arguments_that_end_in_a_comma_continue() {
        let line = CommandLine::from_arguments(&["add", "allow", "tcp", "from", "1.1.1.1,", "2.2.2.2", "to", "any"]);
        assert_eq!(texts(&line), ["add", "allow", "tcp", "from", "1.1.1.1,2.2.2.2", "to", "any"]);
        assert_eq!(texts(&CommandLine::from_arguments(&["add 10 deny ip from any to any"]))[1], "10");
        assert_eq!(texts(&CommandLine::from_arguments(&["add", "pass,"])), ["add", "pass,"]);
        assert_eq!(
            texts(&CommandLine::from_arguments(&["-q", "a#b"])),
            ["-q", "a#b"],
            "no comment in several arguments"
        );
    }
}
