//! What the report consists of: rows of figures with their targets.

#![forbid(unsafe_code)]

use ferrule::failure::Failure;
use ferrule::ministat::Series;

/// What a row must reach, judged by its median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
}

impl Target {
    /// Whether a figure reaches it.
    pub fn is_met(self, figure: f64) -> bool {
        match self {
            Target::AtMost(limit) => figure <= limit,
            Target::AtLeast(limit) => figure >= limit,
        }
    }

    /// As it stands in the table.
    pub fn text(self) -> String {
        match self {
            Target::AtMost(limit) => format!("<= {limit}"),
            Target::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Unit of the figures: `cycles`, `x` (a ratio), `kpps`, `MB`.
    pub unit: &'static str,
    /// The figures; None where it could not be measured.
    pub series: Option<Series>,
    /// What they must reach.
    pub target: Option<Target>,
    /// Samples that were dropped because the control loop moved.
    pub dropped: usize,
    /// What a reader must know, or why there are no figures.
    pub note: String,
}

impl Row {
    /// A row of these figures.
    pub fn new(name: impl Into<String>, unit: &'static str, figures: &[f64]) -> Row {
        Row { name: name.into(), unit, series: Series::of(figures), target: None, dropped: 0, note: String::new() }
    }

    /// A row that could not be measured.
    pub fn skipped(name: impl Into<String>, why: impl Into<String>) -> Row {
        let (name, why) = (name.into(), why.into());
        // Loudly and in full here: the table has no room for all that a program may say.
        eprintln!("report: {name}: skipped: {why}");
        Row { note: format!("skipped: {}", shortened(&why)), ..Row::new(name, "", &[]) }
    }

    /// Sets the target.
    pub fn target(mut self, target: Target) -> Row {
        self.target = Some(target);
        self
    }

    /// Sets the note.
    pub fn note(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// Notes how many samples were dropped, and how many count although they were disturbed.
    pub fn samples<T>(mut self, samples: &Samples<T>) -> Row {
        self.dropped = samples.dropped;
        if samples.disturbed > 0 {
            let note = format!("{} of {} samples disturbed", samples.disturbed, samples.kept.len());
            self.note = if self.note.is_empty() { note } else { format!("{}; {note}", self.note) };
        }
        self
    }

    /// Whether the target is met; None without target or figures.
    pub fn is_met(&self) -> Option<bool> {
        Some(self.target?.is_met(self.series?.median))
    }
}

/// The beginning and the end of a long text, which say what was done and how it ended.
fn shortened(text: &str) -> String {
    const HEAD: usize = 80;
    const TAIL: usize = 160;
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= HEAD + TAIL {
        return text.to_owned();
    }
    let (head, tail) = (&letters[..HEAD], &letters[letters.len() - TAIL..]);
    head.iter().chain(&[' ', '.', '.', '.', ' ']).chain(tail).collect()
}

/// Rows that belong together.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading.
    pub title: String,
    /// What is measured and how, in Markdown.
    pub text: String,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Section {
    /// A section without rows yet.
    pub fn new(title: &str, text: &str) -> Section {
        Section { title: title.to_owned(), text: text.to_owned(), rows: Vec::new() }
    }

    /// Adds what `measure` adds; where it fails the row says why, and the report goes on.
    pub fn add(&mut self, name: &str, measure: impl FnOnce(&mut Vec<Row>) -> Result<(), Failure>) {
        if let Err(failure) = measure(&mut self.rows) {
            self.rows.push(Row::skipped(name, failure.to_string()));
        }
    }
}

/// Samples that count.
#[derive(Clone, Debug)]
pub struct Samples<T> {
    /// Those that count.
    pub kept: Vec<T>,
    /// How many were dropped.
    pub dropped: usize,
    /// How many of those that count were disturbed, for want of better ones.
    pub disturbed: usize,
}

impl<T> Samples<T> {
    /// One figure of each sample.
    pub fn each(&self, figure: impl Fn(&T) -> f64) -> Vec<f64> {
        self.kept.iter().map(figure).collect()
    }
}
