#![forbid(unsafe_code)]
//! Prefixes, which nest, as ranges, which do not.

/// A prefix as its first and last address, and what it leads to. An answer of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
    pub(super) answer: u32,
}

/// From here on (up to the next range) this is the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u32,
    pub(super) answer: u32,
}

/// The ranges from `first` to `last` of `spans`, which lie inside and come by first address, longer ones before shorter ones; `around` is the
/// answer outside all of them. Neighbours differ.
pub(super) fn ranges(first: u32, last: u32, around: u32, spans: impl Iterator<Item = Span>, into: &mut Vec<Range>) {
    fn put(into: &mut Vec<Range>, start: u32, answer: u32) {
        if into.last().is_some_and(|range| range.start == start) {
            into.pop();
        }
        if into.last().is_none_or(|range| range.answer != answer) {
            into.push(Range { start, answer });
        }
    }
    into.clear();
    into.push(Range { start: first, answer: around });
    // At most one span for each prefix length.
    let mut open: Vec<Span> = Vec::with_capacity(33);
    let close = |open: &mut Vec<Span>, into: &mut Vec<Range>, before: Option<u32>| {
        while let Some(top) = open.pop_if(|top| before.is_none_or(|start| top.last < start)) {
            if top.last < last {
                put(into, top.last + 1, open.last().map_or(around, |span| span.answer));
            }
        }
    };
    for span in spans {
        close(&mut open, into, Some(span.first));
        put(into, span.first, span.answer);
        open.push(span);
    }
    close(&mut open, into, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: &[(u32, u32, u32)]) -> Vec<(u32, u32)> {
        let mut into = Vec::new();
        let spans = spans.iter().map(|&(first, last, answer)| Span { first, last, answer });
        ranges(0, 255, 9, spans, &mut into);
        into.iter().map(|range| (range.start, range.answer)).collect()
    }

    #[test]
    fn nested_prefixes_become_ranges() {
        assert_eq!(of(&[]), [(0, 9)]);
        assert_eq!(of(&[(0, 255, 1)]), [(0, 1)]);
        assert_eq!(of(&[(16, 31, 1)]), [(0, 9), (16, 1), (32, 9)]);
        assert_eq!(of(&[(16, 31, 1), (16, 23, 2), (20, 20, 3)]), [(0, 9), (16, 2), (20, 3), (21, 2), (24, 1), (32, 9)]);
        assert_eq!(of(&[(0, 15, 1), (16, 31, 1)]), [(0, 1), (32, 9)], "neighbours with one answer");
        assert_eq!(of(&[(128, 255, 1), (254, 255, 2), (255, 255, 3)]), [(0, 9), (128, 1), (254, 2), (255, 3)]);
        assert_eq!(of(&[(16, 31, 9)]), [(0, 9)], "the answer around");
    }
}
