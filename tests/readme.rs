//! The documents say what is there: commands parse, files of theirs are valid, links lead somewhere, tables are complete.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{CommandFactory, Parser};
use ferrule::cli::Cli;
use ferrule::metrics;
use ferrule::snapshot::Snapshot;
use ferrule_dataplane::verdict::DropReason;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All documents for users, by their path from the root.
fn documents() -> Vec<String> {
    let pages = fs::read_dir(root().join("docs")).unwrap();
    let pages = pages.map(|e| format!("docs/{}", e.unwrap().file_name().to_string_lossy()));
    ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"].into_iter().map(str::to_owned).chain(pages).collect()
}

/// The fenced blocks of a document: what follows the fence, and the lines with the fence's indent taken off.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String, usize)> = None;
    for line in text.lines() {
        let bare = line.trim_start();
        match (&mut open, bare.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info.to_owned(), String::new(), line.len() - bare.len())),
            (Some(_), Some(_)) => blocks.extend(open.take().map(|(info, body, _)| (info, body))),
            (Some((_, body, indent)), None) => {
                body.push_str(line.get(*indent..).unwrap_or(bare));
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

/// The arguments of ours that a line of shell holds, if it calls us.
fn arguments(line: &str) -> Option<Vec<&str>> {
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let rest = line.strip_prefix("ferrule ").or_else(|| line.strip_prefix("cargo run --release -- "))?;
    Some(rest.split(" #").next().unwrap_or(rest).split_whitespace().collect())
}

#[test]
fn every_command_of_the_documents_is_one() {
    let mut seen = BTreeSet::new();
    for name in documents() {
        for (info, body) in blocks(&read(&name)) {
            if info.split(' ').next() != Some("sh") {
                continue;
            }
            for words in body.lines().filter_map(arguments) {
                let line = std::iter::once("ferrule").chain(words.iter().copied());
                Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{name}: ferrule {}\n{e}", words.join(" ")));
                seen.insert(words[0].to_owned());
            }
        }
    }
    for wanted in ["compare", "check", "doctor", "run", "show", "top", "lab", "apply", "pkt-gen"] {
        assert!(seen.contains(wanted), "the documents do not show `ferrule {wanted}`");
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_configuration_of_the_documents_is_valid() {
    let mut count = 0;
    for name in documents() {
        for (_, body) in blocks(&read(&name)).iter().filter(|(info, _)| info == "toml") {
            ferrule_config::gateway::parse(body).unwrap_or_else(|e| panic!("{name}:\n{body}\n{e:?}"));
            count += 1;
        }
    }
    assert!(count >= 2);
    for name in ["examples/gateway.toml", "examples/standalone.toml"] {
        ferrule_config::gateway::parse(&read(name)).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    }
}

/// CI runs what the README says, through `.ci/readme`: the script must see the same blocks as we do.
#[test]
fn ci_runs_the_readme() {
    let script = |argument: &str| {
        let output = Command::new(root().join(".ci/readme")).arg(argument).output().unwrap();
        assert!(output.status.success(), ".ci/readme {argument}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let marked = blocks(&read("README.md"));
    let marked: Vec<(&str, &str)> =
        marked.iter().filter_map(|(info, body)| Some((info.strip_prefix("sh ")?, body.as_str()))).collect();
    let names: Vec<&str> = marked.iter().map(|(name, _)| *name).collect();
    assert_eq!(script("list").lines().collect::<Vec<_>>(), names);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a mark is there twice");
    for (name, body) in &marked {
        assert_eq!(script(name), *body, "{name}");
    }
    let body = |wanted| marked.iter().find(|(name, _)| *name == wanted).map(|(_, body)| *body);
    assert_eq!(body("ci-compare"), Some("cargo run --release -- compare\n"));
    assert_eq!(body("ci-tests"), Some("cargo test --workspace --no-fail-fast\n"));
    let missing = Command::new(root().join(".ci/readme")).arg("ci-no-such-block").output().unwrap();
    assert!(!missing.status.success(), "a block that is not there must fail, or CI would run nothing in its place");
}

#[test]
fn links_lead_somewhere() {
    for name in documents() {
        let text = read(&name);
        let here = Path::new(&name).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("https://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { PathBuf::from(&name) } else { here.join(path) };
            assert!(root().join(&file).exists(), "{name}: {target} leads nowhere");
            if !anchor.is_empty() {
                let text = read(&file.display().to_string());
                let found = text.lines().filter(|l| l.starts_with('#')).any(|l| slug(l) == anchor);
                assert!(found, "{name}: {target}: there is no such heading");
            }
        }
    }
}

/// The anchor that a heading gets.
fn slug(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// First cells in code quotes of all table rows.
fn first_cells(text: &str) -> Vec<&str> {
    text.lines().filter_map(|l| l.strip_prefix("| `")?.split('`').next()).collect()
}

fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}"));
    rest.split("\n#").next().unwrap_or(rest)
}

#[test]
fn every_drop_reason_is_explained() {
    let text = read("docs/operations.md");
    let labels: Vec<&str> = DropReason::ALL.iter().map(|r| r.label()).collect();
    assert_eq!(first_cells(section(&text, "### Drops\n")), labels);
}

#[test]
fn every_metric_is_explained() {
    let text = read("docs/operations.md");
    let told: BTreeSet<&str> = first_cells(section(&text, "### Metrics\n")).into_iter().collect();
    let rendered = metrics::render(&Snapshot::default());
    let there: BTreeSet<&str> = rendered.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(told, there);
}

/// Source files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.map(|e| e.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            sources(&entry, found);
        } else if entry.extension().is_some_and(|e| e == "rs") {
            found.push(entry);
        }
    }
}

/// What ARCHITECTURE.md says of `unsafe` is all there is of it.
#[test]
fn unsafe_is_where_the_map_says() {
    let text = read("ARCHITECTURE.md");
    let told: Vec<&str> = section(&text, "## Where `unsafe` is\n")
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').filter(|part| part.contains('/')))
        .collect();
    let mut files = Vec::new();
    for folder in ["src", "config", "dataplane", "filters", "fuzz", "benches", "tests", "examples"] {
        sources(&root().join(folder), &mut files);
    }
    let mut used = BTreeSet::new();
    for file in files {
        let code = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let has = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"].iter().any(|w| code.contains(w));
        // This file names the words itself.
        if has && name != "tests/readme.rs" {
            let place = told.iter().find(|place| name.starts_with(**place));
            used.insert(*place.unwrap_or_else(|| panic!("{name} has `unsafe`, and ARCHITECTURE.md does not say why")));
        }
    }
    assert_eq!(used, told.into_iter().collect(), "ARCHITECTURE.md names places without `unsafe`");
}
