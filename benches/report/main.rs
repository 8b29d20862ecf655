//! All benchmarks in one command, and the page BENCHMARKS.md out of them.
//!
//! ```text
//! sudo -E cargo bench --bench report                  everything, about fifteen minutes; writes BENCHMARKS.md
//! cargo bench --bench report -- --no-root             without the lab
//! cargo bench --bench report -- --quick               does it run? figures of no meaning, nothing is written
//! ```
//! `cargo test` builds it and runs it as with `--quick --no-root`.

#![forbid(unsafe_code)]

mod bench;
mod floor;
mod internet;
mod ipfw;
mod kernel;
mod page;
mod path;
mod routers;
mod rows;
mod scaling;
mod tables;
mod traffic;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use ferrule::failure::Failure;

use bench::Bench;
use floor::Reference;
use internet::Internet;
use rows::{Row, Section};

#[derive(Parser)]
#[command(about = "Measures Ferrule and writes BENCHMARKS.md")]
struct Arguments {
    /// Everything once with small numbers: does it run?
    #[arg(long)]
    quick: bool,
    /// Leave out what needs root: the lab
    #[arg(long)]
    no_root: bool,
    /// Only these parts; nothing is written unless --output says where
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Where the page goes; default: BENCHMARKS.md beside Cargo.toml
    #[arg(long)]
    output: Option<PathBuf>,
    /// Given by cargo bench; without it this is a run of cargo test
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    /// Memory and changes of the full table
    Tables,
    /// Between memory ports
    Path,
    /// What the ipfw stage adds
    Ipfw,
    /// Parts by themselves
    Parts,
    /// Packets per second in the lab
    Packets,
    /// TCP in the lab
    Tcp,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if !arguments.bench {
        (arguments.quick, arguments.no_root) = (true, true);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("report: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let start = Instant::now();
    let bench = Bench::new(arguments.quick)?;
    if cfg!(debug_assertions) {
        eprintln!("report: a debug build, the figures mean nothing");
    }
    let scratch = Scratch::new()?;
    let wanted = |part: Part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut sections = Vec::new();
    if [Part::Tables, Part::Path].into_iter().any(wanted) {
        memory(&bench, &scratch.0, &wanted, &mut sections);
    }
    if wanted(Part::Ipfw) {
        sections.push(ipfw::section(&bench));
    }
    if wanted(Part::Parts) {
        sections.push(tables::parts(&bench));
    }
    let in_lab = [Part::Packets, Part::Tcp].into_iter().any(wanted);
    match ferrule::lab::tools::obstacle(&[]) {
        _ if !in_lab => {}
        _ if arguments.no_root => sections.push(left_out("--no-root")),
        Some(obstacle) => sections.push(left_out(&obstacle.to_string())),
        None => {
            if wanted(Part::Packets) {
                sections.extend(kernel::packets(&bench));
            }
            if wanted(Part::Tcp) {
                sections.push(kernel::tcp(&bench));
            }
        }
    }
    let text = page::page(&bench, &sections, start.elapsed().as_secs_f64() / 60.0);
    print!("{text}");
    let whole = arguments.only.is_empty() && !arguments.quick;
    let default = whole.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("BENCHMARKS.md"));
    let Some(path) = arguments.output.clone().or(default) else { return Ok(()) };
    std::fs::write(&path, text).map_err(|e| Failure::runtime(format!("writing {}: {e}", path.display())))?;
    eprintln!("report: {} is written", path.display());
    Ok(())
}

/// What needs no root: tables first, since later the process has memory to reuse and its growth would tell nothing.
fn memory(bench: &Bench, scratch: &Path, wanted: &dyn Fn(Part) -> bool, sections: &mut Vec<Section>) {
    let internet = Internet::new(bench);
    if wanted(Part::Tables) {
        let mut section = Section::new(
            "Routing table",
            "A made-up table shaped like the Internet's (dataplane/tests/internet): 1.1 M IPv4 and 250 k IPv6 routes. Changes are made \
             one at a time while the table is full.",
        );
        section.add("full table", |rows| tables::table(bench, &internet, rows));
        sections.push(section);
    }
    if wanted(Part::Path) {
        sections.push(path::cases(bench, &internet, &Reference::build(scratch)));
        let mut section =
            Section::new("Tables, batches, workers", "As above, 2048 coloured buffers; the things compared alternate.");
        section.add("full table", |rows| path::full_table(bench, &internet, rows));
        section.add("batches", |rows| path::batches(bench, rows));
        section.add("two workers", |rows| scaling::two_workers(bench, rows));
        sections.push(section);
    }
}

fn left_out(why: &str) -> Section {
    let mut section = Section::new("In the lab", "Veth pairs between network namespaces; needs root.");
    section.rows.push(Row::skipped("everything over devices", why));
    section
}

/// A directory of this run, removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Failure> {
        let path = std::env::temp_dir().join(format!("ferrule-report-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|e| Failure::runtime(format!("creating {}: {e}", path.display())))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover directory in /tmp is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
