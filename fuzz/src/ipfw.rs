//! The rule language of ipfw(8).

#![forbid(unsafe_code)]

use ferrule_config::diagnostic::Diagnostics;
use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::parse::parse_add_line;
use ferrule_config::ipfw::print::{PrintOptions, print_rule};

/// Each line of any text is a rule or refused with places that lie inside it. A rule prints as text that is the same rule and prints the same.
pub fn ipfw_rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        let mut diagnostics = Diagnostics::new();
        let rule = parse_add_line(line, 0, builtin(), &mut diagnostics);
        let said = diagnostics.into_vec();
        assert!(rule.is_some() || !said.is_empty(), "refused without a reason: {line}");
        for said in said {
            assert!(said.span.start <= said.span.end && said.span.end as usize <= line.len(), "{said:?} in {line}");
        }
        if let Some(rule) = rule {
            assert_stable(&rule);
        }
    }
}

fn assert_stable(rule: &Rule) {
    let text = print_rule(rule, &PrintOptions::default());
    let mut diagnostics = Diagnostics::new();
    let again = parse_add_line(&text, 0, builtin(), &mut diagnostics);
    // A line ends at `#`, which arguments of a shell may hold; here all comes from lines.
    let again = again.unwrap_or_else(|| panic!("what was printed is refused: {:?}\n{text}", diagnostics.into_vec()));
    assert_eq!(print_rule(&again, &PrintOptions::default()), text, "printing is not stable");
    assert_eq!(again.blocks.len(), rule.blocks.len(), "tests were lost: {text}");
}
