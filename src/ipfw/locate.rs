//! Which line of a script a command came from.
//!
//! The shell does not say: LINENO is not exported, and tracing (`set -x`) would write into whatever the script redirects. But the text
//! is there: the line whose words, expansions standing for anything, make the command is the one. Where several do, the one after the
//! command before it is taken; where none does, nothing is claimed.

#![forbid(unsafe_code)]

use std::ops::Range;

use ferrule_config::Span;
use ferrule_config::ipfw::command::Word;

/// Words of a command or a line that are compared at most; longer ones are cut.
const LONGEST: usize = 64;

/// A word of the script.
struct Token {
    /// Without quotes and backslashes; expansions as written.
    text: String,
    place: Range<usize>,
}

/// A script, taken apart once.
pub struct Located {
    lines: Vec<Vec<Token>>,
    /// The line after the one found last.
    next: usize,
}

/// Where a command stands in the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// From its first word to its last.
    pub whole: Span,
    /// For each word of the command, the word of the script it came from.
    pub words: Vec<Option<Span>>,
}

impl Located {
    /// Takes a script apart.
    pub fn new(script: &str) -> Self {
        Self { lines: lines(script), next: 0 }
    }

    /// Finds the line that makes these words.
    pub fn find(&mut self, words: &[Word]) -> Option<Found> {
        let words = &words[..words.len().min(LONGEST)];
        let mut best: Option<(usize, usize, Vec<Option<usize>>)> = None;
        let count = self.lines.len();
        for at in (0..count).map(|offset| (self.next + offset) % count) {
            let Some((score, path)) = matched(words, &self.lines[at]) else { continue };
            if best.as_ref().is_none_or(|(most, ..)| score > *most) {
                best = Some((score, at, path));
            }
        }
        let (score, at, path) = best?;
        // Expansions alone would fit anything.
        if score == 0 || score * 3 < words.len() {
            return None;
        }
        // A loop runs its line again.
        self.next = at;
        let tokens = &self.lines[at];
        let span = |index: usize| Span::new(tokens[index].place.start, tokens[index].place.end);
        let words: Vec<_> = path.iter().map(|index| index.map(span)).collect();
        let first = tokens.first().map(|token| token.place.start)?;
        let last = words.iter().flatten().map(|span| span.end).max()?;
        Some(Found { whole: Span::new(first, last as usize), words })
    }
}

/// The best way to make all of `words` from some of the line's tokens in a row: how many words are there literally, and the token of
/// each word.
fn matched(words: &[Word], tokens: &[Token]) -> Option<(usize, Vec<Option<usize>>)> {
    let tokens = &tokens[..tokens.len().min(LONGEST)];
    let (rows, columns) = (words.len() + 1, tokens.len() + 1);
    // score[i][j]: words from i on, made from tokens from j on.
    let mut score: Vec<Vec<Option<usize>>> = vec![vec![None; columns]; rows];
    score[words.len()] = vec![Some(0); columns];
    for j in (0..tokens.len()).rev() {
        for i in (0..words.len()).rev() {
            let literal =
                fits(&tokens[j].text, &words[i].text).then(|| score[i + 1][j + 1].map(|rest| rest + 1)).flatten();
            let expanded =
                tokens[j].text.contains(['$', '`']).then(|| score[i..].iter().filter_map(|row| row[j + 1]).max());
            score[i][j] = literal.max(expanded.flatten());
        }
    }
    let start = (0..tokens.len()).filter(|&j| score[0][j].is_some()).max_by_key(|&j| (score[0][j], j))?;
    let total = score[0][start]?;
    let mut path = vec![None; words.len()];
    let (mut i, mut j) = (0, start);
    while i < words.len() && j < tokens.len() {
        let here = score[i][j]?;
        if fits(&tokens[j].text, &words[i].text) && score[i + 1][j + 1].is_some_and(|rest| rest + 1 == here) {
            path[i] = Some(j);
            i += 1;
        } else {
            let taken = (i..rows).find(|&k| score[k][j + 1] == Some(here))?;
            path[i..taken].fill(Some(j));
            i = taken;
        }
        j += 1;
    }
    Some((total, path))
}

/// True where the word of the script is this one, parts of it perhaps expanded.
fn fits(token: &str, word: &str) -> bool {
    let Some(dollar) = token.find(['$', '`']) else { return token == word };
    let prefix = &token[..dollar];
    let tail = token[dollar + 1..].trim_start_matches('{');
    let end = tail.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(tail.len());
    let suffix = tail[end..].trim_start_matches('}');
    // A word that is an expansion and nothing else is no evidence.
    if prefix.is_empty() && suffix.is_empty() {
        return false;
    }
    let suffix = if suffix.contains(['$', '`']) { "" } else { suffix };
    word.len() >= prefix.len() + suffix.len() && word.starts_with(prefix) && word.ends_with(suffix)
}

/// Adds a character to the word being read, or begins one.
fn push(word: &mut Option<Token>, text: Option<char>, place: Range<usize>) {
    let end = place.end;
    let word = word.get_or_insert_with(|| Token { text: String::new(), place });
    word.text.extend(text);
    word.place.end = end;
}

/// The words of each line; a line that ends in a backslash goes on in the next.
fn lines(script: &str) -> Vec<Vec<Token>> {
    let mut lines = Vec::new();
    let mut line: Vec<Token> = Vec::new();
    let mut word: Option<Token> = None;
    let mut quote = None;
    let mut characters = script.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        let end = at + character.len_utf8();
        let between = word.is_none();
        match (quote, character) {
            (None, '\\') => match characters.next() {
                Some((_, '\n')) => line.extend(word.take()),
                Some((at, next)) => push(&mut word, Some(next), at..at + next.len_utf8()),
                None => {}
            },
            (None, '\'' | '"') => {
                quote = Some(character);
                push(&mut word, None, at..end);
            }
            (Some(open), _) if open == character => {
                quote = None;
                push(&mut word, None, at..end);
            }
            // A quoted text of several words may be a whole command, or a variable's value.
            (_, ' ' | '\t') => line.extend(word.take()),
            (None, '#') if between => while characters.next_if(|&(_, c)| c != '\n').is_some() {},
            (None, '\n') => {
                line.extend(word.take());
                lines.push(std::mem::take(&mut line));
            }
            (Some(_), '\n') => line.extend(word.take()),
            _ => push(&mut word, Some(character), at..end),
        }
    }
    line.extend(word);
    lines.push(line);
    lines.retain(|line| !line.is_empty());
    lines
}

#[cfg(test)]
mod tests {
    use ferrule_config::Source;
    use ferrule_config::ipfw::command::CommandLine;

    use super::*;

    const SCRIPT: &str = "#!/bin/sh
fwcmd=\"/sbin/ipfw -q\"
pif=dc0 # the outside
${fwcmd} add 100 pass all from any to any via lo0
$cmd 005 $skip udp from any to 192.0.2.11 53 out via $pif $ks
for i in 1 2; do
	${fwcmd} add deny all from 10.${i}.0.0/16 to \"table($BAD)\"
done
${fwcmd} nat 1 config if $pif reset \\
   redirect_port tcp 10.0.0.1:80 80
[ -n \"$x\" ] && ${fwcmd} add deny tcp from any to me 25 setup > /dev/null
";

    fn place(located: &mut Located, command: &str, word: &str) -> Option<(u32, u32)> {
        let line = CommandLine::from_line(command);
        let at = line.words.iter().position(|candidate| candidate.text == word).unwrap();
        let span = located.find(&line.words)?.words[at]?;
        let position = Source::new("x", SCRIPT).position(span.start);
        Some((position.line, position.column))
    }

    #[test]
    fn commands_are_found_through_expansions_loops_and_continued_lines() {
        let mut located = Located::new(SCRIPT);
        assert_eq!(place(&mut located, "add 100 pass all from any to any via lo0", "pass"), Some((4, 18)));
        assert_eq!(
            place(&mut located, "-q add 005 skipto 1000 udp from any to 192.0.2.11 53 out via dc0 keep-state", "udp"),
            Some((5, 16))
        );
        assert_eq!(place(&mut located, "add deny all from 10.2.0.0/16 to table(13)", "10.2.0.0/16"), Some((7, 29)));
        assert_eq!(place(&mut located, "add deny all from 10.1.0.0/16 to table(13)", "table(13)"), Some((7, 47)));
        assert_eq!(
            place(&mut located, "nat 1 config if dc0 reset redirect_port tcp 10.0.0.1:80 80", "redirect_port"),
            Some((10, 4))
        );
        assert_eq!(place(&mut located, "add deny tcp from any to me 25 setup", "25"), Some((11, 53)));
    }

    #[test]
    fn nothing_is_claimed_without_evidence() {
        let mut located = Located::new(SCRIPT);
        assert_eq!(located.find(&CommandLine::from_line("table 5 create type mac").words), None);
        assert_eq!(located.find(&CommandLine::from_line("add 7 count icmp from 1.1.1.1 to 2.2.2.2").words), None);
        assert_eq!(Located::new("").find(&CommandLine::from_line("flush").words), None);
    }
}
