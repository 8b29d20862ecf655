#![forbid(unsafe_code)]
//! Shell patterns, as fnmatch(3) without flags takes them.

/// Whether the whole of `name` fits `pattern` (`*`, `?`, `[a-c]`, `[!a]`, `\` before a literal).
pub fn matches(pattern: &str, name: &str) -> bool {
    fits(pattern.as_bytes(), name.as_bytes())
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], rest) => rest.is_empty(),
        ([b'*', pattern @ ..], _) => (0..=name.len()).any(|skipped| fits(pattern, &name[skipped..])),
        ([b'?', pattern @ ..], [_, name @ ..]) => fits(pattern, name),
        ([b'[', set @ ..], [byte, rest @ ..]) => match in_set(set, *byte) {
            Some((inside, pattern)) => inside && fits(pattern, rest),
            None => *byte == b'[' && fits(set, rest),
        },
        ([b'\\', literal, pattern @ ..], [byte, name @ ..]) => literal == byte && fits(pattern, name),
        ([literal, pattern @ ..], [byte, name @ ..]) => literal == byte && fits(pattern, name),
        (_, []) => false,
    }
}

/// Whether the set holds the byte, and the pattern behind the set; None where the set is not closed.
fn in_set(set: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let negated = matches!(set.first(), Some(b'!' | b'^'));
    let mut rest = if negated { &set[1..] } else { set };
    let mut inside = false;
    let mut first = true;
    loop {
        match rest {
            [b']', pattern @ ..] if !first => return Some((inside != negated, pattern)),
            [low, b'-', high, tail @ ..] if *high != b']' => {
                inside |= (*low..=*high).contains(&byte);
                rest = tail;
            }
            [one, tail @ ..] => {
                inside |= *one == byte;
                rest = tail;
            }
            [] => return None,
        }
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn shapes_of_names() {
        for (pattern, name) in
            [("em*", "em0"), ("em*", "em"), ("*", "vlan7"), ("em?", "em1"), ("em[0-2]", "em2"), ("e*0", "eth10")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("em*", "igb0"), ("em?", "em10"), ("em[0-2]", "em3"), ("em[!0-2]", "em1"), ("em", "em0")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
