//! BENCHMARKS.md: the report as a page, with everything that a reader needs to judge it or to do it again.

#![forbid(unsafe_code)]

use std::fmt::Write;
use std::process::Command;

use ferrule::compare::machine;
use ferrule_dataplane::clock;

use crate::bench::Bench;
use crate::rows::{Row, Section};

/// The command that writes the page.
pub const COMMAND: &str = "cargo bench --bench report";

/// The whole page.
pub fn page(bench: &Bench, sections: &[Section], minutes: f64) -> String {
    let mut text = String::from("# Benchmarks\n\n");
    let _ = writeln!(
        text,
        "Written by `{COMMAND}`, not by hand; as root it includes the lab. It took {minutes:.0} minutes. How figures are taken: samples \
         of the things compared alternate; a control loop of constant work runs before and after each, and a sample beside which it \
         moved by more than 5 % from its own median is dropped and taken again (half as many samples again at most). A row gives the median, \
         the smallest and the largest sample; its median is held against the target. `cycles` are TSC cycles per packet.\n"
    );
    for (what, value) in circumstances(bench) {
        let _ = writeln!(text, "- {what}: {value}");
    }
    let judged: Vec<&Row> = sections.iter().flat_map(|s| &s.rows).filter(|row| row.is_met().is_some()).collect();
    let met = judged.iter().filter(|row| row.is_met() == Some(true)).count();
    let _ = writeln!(text, "\n{met} of {} targets met.", judged.len());
    for row in judged.iter().filter(|row| row.is_met() == Some(false)) {
        let median = row.series.map_or(0.0, |series| series.median);
        let target = row.target.map_or_else(String::new, |target| target.text());
        let _ = writeln!(text, "- not met: {}: {} {}, target {target}", row.name, figure(median), row.unit);
    }
    let unknown = |row: &&Row| row.target.is_some() && row.series.is_none();
    for row in sections.iter().flat_map(|section| &section.rows).filter(unknown) {
        let _ = writeln!(text, "- not measured: {}: {}", row.name, one_line(&row.note));
    }
    for section in sections {
        let _ = write!(text, "\n## {}\n\n{}\n\n", section.title, section.text);
        text.push_str("| row | median | min | max | unit | target | met | dropped | note |\n");
        text.push_str("|---|---:|---:|---:|---|---|---|---:|---|\n");
        section.rows.iter().for_each(|row| line(&mut text, row));
    }
    text
}

fn line(text: &mut String, row: &Row) {
    let [median, min, max] = match row.series {
        Some(series) => [series.median, series.min, series.max].map(figure),
        None => ["-", "-", "-"].map(str::to_owned),
    };
    let target = row.target.map_or_else(String::new, |target| target.text());
    let met = match row.is_met() {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    };
    let note = one_line(&row.note);
    let (name, unit, dropped) = (&row.name, row.unit, row.dropped);
    let _ = writeln!(text, "| {name} | {median} | {min} | {max} | {unit} | {target} | {met} | {dropped} | {note} |");
}

/// A note may hold what a program said: one line, and no column of its own.
fn one_line(note: &str) -> String {
    note.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A figure with as many digits as it is worth.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 20.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn circumstances(bench: &Bench) -> Vec<(&'static str, String)> {
    let list: Vec<String> = bench.cores.iter().map(usize::to_string).collect();
    let governor = machine::governor(bench.core).unwrap_or_else(|| "not visible".to_owned());
    let pages = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let huge = pages.lines().find_map(|line| line.strip_prefix("HugePages_Total:")).map_or("0", str::trim).to_owned();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    vec![
        ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("commit", said("git", &["describe", "--always", "--dirty"])),
        ("processor", format!("{}, cores {}, measured on core {}", machine::processor(), list.join(" "), bench.core)),
        ("caches", machine::caches(bench.core)),
        ("clock", format!("TSC {:.3} GHz, frequency governor: {governor}", clock::cycles_per_second() / 1e9)),
        ("kernel", machine::kernel()),
        ("compiler", said("rustc", &["--version"])),
        ("reserved 2 MiB pages", huge),
        ("load average at the end", load.join(" ")),
    ]
}

/// The first line that a program says, for the page's head.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("not told").to_owned()
}
