#![forbid(unsafe_code)]
//! Words of an ipfw(8) command line, each with its place.
//!
//! ipfw(8) takes its command in one string (a line of a file, or one argument) or as arguments that a shell has split. In both a word that
//! ends with a comma goes on in the next one, so that lists may be written with blanks; a string ends at `#`.

use std::borrow::Cow;

use crate::span::Span;

/// A word and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// Its text.
    pub text: Cow<'a, str>,
    /// Where it stands.
    pub span: Span,
}

/// The words of one line or string that begins at byte `offset` of its source.
pub fn split_line(text: &str, offset: usize) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    split_into(&mut words, text.split('#').next().unwrap_or_default(), offset);
    words
}

/// The words of arguments that a shell has split. Spans are those in the arguments joined with one blank between them
/// ([`joined`]). An argument that holds several words counts as these. A single argument is taken as a whole line.
pub fn split_arguments<S: AsRef<str>>(arguments: &[S]) -> Vec<Word<'_>> {
    if let [line] = arguments {
        return split_line(line.as_ref(), 0);
    }
    let mut words = Vec::new();
    let mut offset = 0;
    for argument in arguments {
        split_into(&mut words, argument.as_ref(), offset);
        offset += argument.as_ref().len() + 1;
    }
    words
}

/// The text that the spans of [`split_arguments`] point into.
pub fn joined<S: AsRef<str>>(arguments: &[S]) -> String {
    arguments.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(" ")
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\x0b' | '\x0c' | '\n' | '\r')
}

fn split_into<'a>(words: &mut Vec<Word<'a>>, text: &'a str, offset: usize) {
    let mut start = 0;
    for piece in text.split(is_blank) {
        let span = Span::new(offset + start, offset + start + piece.len());
        // A blank is one byte.
        start += piece.len() + 1;
        if piece.is_empty() {
            continue;
        }
        match words.last_mut() {
            Some(last) if last.text.ends_with(',') => {
                last.text.to_mut().push_str(piece);
                last.span = last.span.to(span);
            }
            _ => words.push(Word { text: Cow::Borrowed(piece), span }),
        }
    }
}

/// Takes braces off the words that they are written together with (`{tcp`, `udp}`), up to a comment. A brace that closes one opened in
/// the same word (`10.0.0.0/24{1,2}`, `table(1)`) stays.
pub(super) fn separate_braces<'a>(words: &'a [Word<'_>]) -> Vec<Word<'a>> {
    let mut out = Vec::with_capacity(words.len());
    let mut comment = false;
    for word in words {
        comment |= word.text == "//";
        let (mut text, mut span): (&str, Span) = (&word.text, word.span);
        let mut closing = None;
        if !comment && text.len() > 1 {
            if text.starts_with(['{', '(']) {
                let split = Span { start: span.start, end: span.start + 1 };
                out.push(Word { text: Cow::Borrowed(&text[..1]), span: split });
                (text, span.start) = (&text[1..], split.end);
            }
            if text.len() > 1 && text.ends_with(['}', ')']) && !text.contains(['{', '(']) {
                let at = text.len() - 1;
                let split = Span { start: span.end.saturating_sub(1), end: span.end };
                closing = Some(Word { text: Cow::Borrowed(&text[at..]), span: split });
                (text, span.end) = (&text[..at], split.start);
            }
        }
        out.push(Word { text: Cow::Borrowed(text), span });
        out.extend(closing);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(words: &[Word<'_>]) -> Vec<String> {
        words.iter().map(|word| format!("{}@{}-{}", word.text, word.span.start, word.span.end)).collect()
    }

    #[test]
    fn a_line_is_split_at_blanks_joined_after_commas_and_ends_at_a_hash() {
        assert_eq!(
            texts(&split_line(" add\t1.2.3.4, 5.6.7.8,\t9 x#y z", 10)),
            ["add@11-14", "1.2.3.4,5.6.7.8,9@15-34", "x@35-36"]
        );
        assert_eq!(texts(&split_line("# nothing", 0)), [""; 0]);
        assert_eq!(texts(&split_line("a,", 0)), ["a,@0-2"]);
    }

    #[test]
    fn arguments_keep_their_hashes_and_their_places() {
        let arguments = ["add", "80, 81", "a#b"];
        assert_eq!(texts(&split_arguments(&arguments)), ["add@0-3", "80,81@4-10", "a#b@11-14"]);
        assert_eq!(&joined(&arguments)[11..14], "a#b");
        assert_eq!(texts(&split_arguments(&["add 1 # x"])), ["add@0-3", "1@4-5"]);
    }

    #[test]
    fn braces_come_off_where_they_do_not_belong_to_the_word() {
        let words = split_line("{tcp or udp} 1.0.0.0/24{1,2} table(1) { x } // {y}", 0);
        let separated = separate_braces(&words);
        assert_eq!(texts(&separated)[..5], ["{@0-1", "tcp@1-4", "or@5-7", "udp@8-11", "}@11-12"]);
        let rest: Vec<&str> = separated[5..].iter().map(|word| word.text.as_ref()).collect();
        assert_eq!(rest, ["1.0.0.0/24{1,2}", "table(1)", "{", "x", "}", "//", "{y}"]);
    }
}
