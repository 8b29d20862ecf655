//! The conformance data: what each rule compiles to, and that every rule in it is understood and prints stably.

use std::path::PathBuf;

use ferrule_config::diagnostic::Diagnostics;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::words::split_line;
use ferrule_config::ipfw::{ast::Rule, parse::parse_add};
use ferrule_config::span::Span;
use serde_json::Value;

use super::operations::operations;
use super::{parse, text_of};

/// The folder of the data. Without it tests are skipped, but not where CI runs.
fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/conformance");
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none(), "no conformance data at {}", folder.display());
    println!("skipped: no conformance data");
    None
}

fn read(name: &str) -> Option<String> {
    let path = folder()?.join(name);
    Some(std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Printed and read back, a rule is the same one and prints the same.
fn assert_stable(rule: &Rule) {
    let text = text_of(rule);
    let again = parse(&text);
    assert_eq!(text_of(&again), text);
    assert_eq!(operations(&again).0, operations(rule).0, "{text}");
}

/// A number as the data writes it: plain, with its name (`ICMP_UNREACH_PORT(3)`) or as `1|0x8000`.
fn expected_number(value: &Value) -> u64 {
    let radix = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).expect("a hex number"),
        None => text.parse().expect("a number"),
    };
    match value {
        Value::Number(number) => number.as_u64().expect("a whole number"),
        Value::String(text) => {
            let inner = text.split_once('(').map_or(text.as_str(), |(_, inner)| inner.trim_end_matches(')'));
            inner.split('|').map(radix).fold(0, |bits, bit| bits | bit)
        }
        other => panic!("no number: {other}"),
    }
}

fn assert_operation(expected: &Value, found: &Value, text: &str) {
    for (key, value) in expected.as_object().expect("an object") {
        let same = match key.as_str() {
            "note" => continue,
            "arg1" | "u32" | "mtu" => found[key].as_u64() == Some(expected_number(value)),
            "is_or" => found["or"].as_bool().unwrap_or(false) == value.as_bool().unwrap_or(false),
            "is_not" => found["not"].as_bool().unwrap_or(false) == value.as_bool().unwrap_or(false),
            _ => found[key] == *value,
        };
        assert!(same, "{text}: {key} of {expected}, found {found}");
    }
}

#[test]
fn rules_compile_to_the_expected_operations() {
    let Some(data) = read("ipfw/expectations.jsonl") else { return };
    let (mut compiled, mut listed) = (0, 0);
    for line in data.lines() {
        let case: Value = serde_json::from_str(line).expect("a line of JSON");
        let texts: Vec<&str> = match &case["rule"] {
            Value::String(text) => vec![text],
            Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
            other => panic!("no rule: {other}"),
        };
        for text in texts.iter().filter(|text| text.starts_with("add ")) {
            assert_stable(&parse(text));
            listed += 1;
        }
        let expect = &case["expect"];
        let Some(expected) = expect["insns"].as_array() else { continue };
        let rule = parse(texts[0]);
        let (found, objects) = operations(&rule);
        assert_eq!(found.len(), expected.len(), "{}: {found:?}", texts[0]);
        for (expected, found) in expected.iter().zip(&found) {
            assert_operation(expected, found, texts[0]);
        }
        if let Some(number) = expect["rulenum"].as_u64() {
            assert_eq!(u64::from(rule.number), number, "{}", texts[0]);
        }
        for object in expect["objects"].as_array().into_iter().flatten() {
            let index = expected_number(&object["idx"]) as usize;
            let (kind, name) = &objects.list[index - 1];
            assert_eq!(
                (Some(*kind), Some(name.as_str())),
                (object["type"].as_str(), object["name"].as_str()),
                "{}",
                texts[0]
            );
        }
        compiled += 1;
    }
    assert!(compiled >= 20 && listed >= 40, "{compiled} compiled, {listed} listed");
}

#[test]
fn rules_with_a_meaning_are_understood_and_print_stably() {
    let Some(data) = read("ipfw/rules-meaning.tsv") else { return };
    let texts: Vec<&str> =
        data.lines().filter_map(|line| line.split('\t').next()).filter(|text| text.starts_with("add ")).collect();
    assert!(texts.len() > 15);
    for text in texts {
        assert_stable(&parse(text));
    }
}

/// The rules of the files people use: every `add` whose words are all there (others need the shell that fills them in).
#[test]
fn rules_of_rule_files_are_understood_and_print_stably() {
    let Some(folder) = folder() else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder.join("rules")).expect("the folder") {
        let path = entry.expect("an entry").path();
        if !path.to_string_lossy().ends_with(".ipfw.sh") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a rule file").replace("\\\n", " ");
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            let Some((_, rule)) = line.split_once("fwcmd} add ").or_else(|| line.split_once("$cmd ")) else { continue };
            // Enough of a shell for these files.
            let rule = rule
                .replace(['"', '\\'], "")
                .replace("${oif}", "em0")
                .replace("${oif6}", "em0")
                .replace("${iif}", "em1");
            let rule = rule.replace("$pif", "em0").replace("$ks", "keep-state").replace("$skip", "skipto 1000");
            let rule = rule.replace("$good_tcpo", "22,25,37").replace("$BAD_ADDR_TBL", "22");
            if rule.contains(['$', ';']) {
                continue;
            }
            let words = split_line(&rule, 0);
            let mut diagnostics = Diagnostics::new();
            let parsed = parse_add(&words, Span::new(rule.len(), rule.len()), builtin(), &mut diagnostics);
            let said = diagnostics.into_vec();
            assert_stable(&parsed.unwrap_or_else(|| panic!("{}: {rule}\n{said:?}", path.display())));
            assert!(said.is_empty(), "{}: {rule}\n{said:?}", path.display());
            count += 1;
        }
    }
    assert!(count > 1000, "{count} rules");
}
