//! The comparison as text.

#![forbid(unsafe_code)]

use std::fmt::Write;

use ferrule_dataplane::arena::Pages;
use ferrule_dataplane::clock;

use super::{Circumstances, Report, Row, SHOWN, machine};

/// Sets of the classic comparison that later issues build.
const NOT_BUILT: [&str; 2] = ["pf stateless", "pf stateful"];

/// The whole answer of `ferrule compare`.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let head = ["set", "family", "median pps", "min pps", "max pps", "cycles/packet", "added cycles", "of forwarding"];
    line(&mut text, &head.map(str::to_owned));
    for row in &report.rows {
        let rates = [row.median_pps, row.min_pps, row.max_pps].map(|pps| grouped(pps as u64));
        let [median, min, max] = rates;
        let (cycles, added) = (format!("{:.1}", row.cycles_per_packet), format!("{:+.1}", row.added_cycles));
        let added = if row.set == "forwarding" { "-".to_owned() } else { added };
        let ratio = format!("{:.2}", row.ratio_to_forwarding);
        line(&mut text, &[row.set.clone(), row.family.clone(), median, min, max, cycles, added, ratio]);
    }
    for set in NOT_BUILT {
        let _ = writeln!(text, "{set:<28}{:<8}{:>14}", "", "not built");
    }
    text.push_str("\nTSC cycles per packet by stage\n");
    let _ = write!(text, "{:<28}{:<8}{:>12}", "set", "family", "fastforward");
    SHOWN.iter().for_each(|(_, name)| {
        let _ = write!(text, "{name:>9}");
    });
    let _ = writeln!(text, "{:>9}{:>9}", "turn", "filter");
    report.rows.iter().for_each(|row| stages(&mut text, row));
    text.push_str("(- : part of the next one; a filter that decides for whole batches is part of forward)\n");
    text.push('\n');
    circumstances(&mut text, report);
    text
}

fn line(text: &mut String, cells: &[String; 8]) {
    let [set, family, numbers @ ..] = cells;
    let _ = write!(text, "{set:<28}{family:<8}");
    numbers.iter().for_each(|number| {
        let _ = write!(text, "{number:>14}");
    });
    text.push('\n');
}

fn stages(text: &mut String, row: &Row) {
    let cycles = |name: &str| row.stages.get(name).copied().unwrap_or_default();
    let whole = cycles("fastforward");
    let _ = write!(text, "{:<28}{:<8}{whole:>12.1}", row.set, row.family);
    let mut named = 0.0;
    for (_, name) in SHOWN {
        let part = row.stages.get(&format!("fastforward.{name}"));
        named += part.copied().unwrap_or_default();
        let _ = write!(text, "{:>9}", part.map_or_else(|| "-".to_owned(), |part| format!("{part:.1}")));
    }
    let filter = row.set.split(' ').next().and_then(|name| row.stages.get(name)).filter(|cycles| **cycles > 0.0);
    let filter = filter.map_or_else(|| "-".to_owned(), |cycles| format!("{cycles:.1}"));
    let _ = writeln!(text, "{:>9.1}{filter:>9}", (whole - named).max(0.0));
}

fn circumstances(text: &mut String, report: &Report) {
    let Circumstances { core, pages, runs, dropped, disturbed, packets, notes } = &report.circumstances;
    let core = core.map_or_else(|| "not pinned".to_owned(), |core| format!("core {core}"));
    let pages = match pages {
        Pages::Huge => "2 MiB pages",
        Pages::Transparent => "ordinary or transparent huge pages (none are reserved: sysctl vm.nr_hugepages)",
    };
    let _ =
        writeln!(text, "{}, {core}, TSC {:.3} GHz, {pages}.", machine::processor(), clock::cycles_per_second() / 1e9);
    let _ = writeln!(
        text,
        "Smallest UDP frames (60 bytes, inet6 62, without CRC), {} flows (mixed: those that its rules ask for, TCP too), {runs} run(s) of {}",
        grouped(super::flows::FLOWS.into()),
        grouped(*packets),
    );
    text.push_str(
        "packets. pps and cycles are those of the forwarding worker's own time; generator and sink share its core and are not counted.\n\
         Added cycles and the share of forwarding are against plain forwarding of the same packets in the same run; ipfw sees each twice.\n",
    );
    for note in notes {
        let _ = writeln!(text, "{note}");
    }
    let loops: Vec<String> = report
        .rows
        .iter()
        .zip(&report.loop_pps)
        .map(|(row, pps)| format!("{} {} {}", row.set, row.family, grouped(*pps as u64)))
        .collect();
    let _ = writeln!(text, "The whole loop, generator and sink included, did: {} pps.", loops.join(", "));
    let _ = writeln!(text, "Runs dropped because the control loop beside them moved by more than 5 %: {dropped}.");
    if *disturbed > 0 {
        let _ = writeln!(
            text,
            "Disturbed: {disturbed} run(s) count although the control loop moved, for want of better ones. Run it on an idle machine."
        );
    }
    if cfg!(debug_assertions) {
        text.push_str("This is a debug build: the figures mean nothing. Use `cargo run --release -- compare`.\n");
    }
}

/// Digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
