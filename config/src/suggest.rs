#![forbid(unsafe_code)]
//! "Did you mean": the nearest of the words that would have been right.

/// Longest word that is compared: longer ones are no slips of the finger.
const LONGEST: usize = 40;

/// The candidate nearest to `word` by edit distance (insert, delete, replace, swap of neighbours), if it is near enough
/// to be a slip: at most a third of the letters, at least one. Case, `-` and `_` do not count. A word that begins a
/// single candidate, or that a candidate begins, is near as well (`dev`, `queues_`).
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = folded(word)?;
    let allowed = (word.len() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    let mut prefixed: Vec<&str> = Vec::new();
    for candidate in candidates {
        let Some(folded) = folded(candidate) else { continue };
        if word.len() >= 3 && folded.starts_with(&word) {
            prefixed.push(candidate);
        }
        if folded.len().abs_diff(word.len()) > allowed {
            continue;
        }
        let distance = distance(&word, &folded);
        if distance <= allowed && distance < folded.len() && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    match (best, prefixed.as_slice()) {
        (Some((_, candidate)), _) => Some(candidate),
        (None, [only]) => Some(only),
        _ => None,
    }
}

/// A hint built from [`closest`].
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(word, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

/// Lower case without separators; None when empty or too long.
fn folded(word: &str) -> Option<Vec<char>> {
    let folded: Vec<char> =
        word.chars().take(LONGEST + 1).filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect();
    (!folded.is_empty() && folded.len() <= LONGEST).then_some(folded)
}

/// Optimal string alignment distance.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let keys = ["queues", "driver", "device", "neighbor", "xdp_mode", "mtu", "id"];
        for (word, expected) in [
            ("queue", Some("queues")),
            ("Queues", Some("queues")),
            ("drvier", Some("driver")),
            ("dev", Some("device")),
            ("neighbour", Some("neighbor")),
            ("xdpmode", Some("xdp_mode")),
            ("xdp-mode", Some("xdp_mode")),
            ("mut", Some("mtu")),
            ("colour", None),
            ("x", None),
            ("", None),
            ("_", None),
        ] {
            assert_eq!(closest(word, keys), expected, "{word}");
        }
        assert_eq!(closest(&"q".repeat(1_000_000), keys), None);
    }

    #[test]
    fn distance_counts_edits() {
        let chars = |word: &str| word.chars().collect::<Vec<_>>();
        for (a, b, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "acb", 1), ("kitten", "sitting", 3), ("a", "b", 1)]
        {
            assert_eq!(distance(&chars(a), &chars(b)), expected, "{a} {b}");
            assert_eq!(distance(&chars(b), &chars(a)), expected, "{b} {a}");
        }
    }
}
