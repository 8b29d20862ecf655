//! Text reports: aligned tables in the manner of netstat(1) and vppctl. Numbers are written out in full unless `human` is asked.

#![forbid(unsafe_code)]

use std::fmt::Write as _;

use crate::snapshot::{Finding, ratio};
use crate::snapshot::{FlowRow, NamedCount, NeighborRow, NextHopRow, PortRow, RouteRow, Severity, Snapshot, WorkerRow};

/// How a report is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// `12.3 M` in place of 12300000.
    pub human: bool,
    /// Headings bold, faults red.
    pub colour: bool,
}

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table of text cells.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; a heading that starts with `>` is that of a column of numbers.
    pub fn new(headings: &[&str]) -> Table {
        let column = |h: &&str| match h.strip_prefix('>') {
            Some(rest) => (rest.to_owned(), Align::Right),
            None => ((*h).to_owned(), Align::Left),
        };
        Table { columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text: two spaces between columns, no space at the end of a line.
    pub fn render(&self, style: Style) -> String {
        let width = |i: usize, heading: &str| {
            let cells = self.rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
            cells.chain([heading.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(|(i, (h, _))| width(i, h)).collect();
        let line = |cells: &[String]| {
            let mut out = String::new();
            for (i, (width, (_, align))) in widths.iter().zip(&self.columns).enumerate() {
                let cell = cells.get(i).map_or("", String::as_str);
                let pad = " ".repeat(width - cell.chars().count());
                let gap = if i == 0 { "" } else { "  " };
                match align {
                    Align::Left => write!(out, "{gap}{cell}{pad}"),
                    Align::Right => write!(out, "{gap}{pad}{cell}"),
                }
                .unwrap_or_default();
            }
            out.trim_end().to_owned()
        };
        let headings: Vec<String> = self.columns.iter().map(|(h, _)| h.clone()).collect();
        let mut out = paint(style, "1", &line(&headings));
        out.push('\n');
        for row in &self.rows {
            out.push_str(&line(row));
            out.push('\n');
        }
        out
    }
}

/// Wraps text in an SGR sequence where colour is on.
pub fn paint(style: Style, sgr: &str, text: &str) -> String {
    if style.colour { format!("\x1b[{sgr}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A whole number: in full, or with a decimal unit where human is asked.
pub fn number(style: Style, n: u64) -> String {
    if style.human { human(n as f64) } else { n.to_string() }
}

/// Three significant digits and a decimal unit: `999`, `1.23 k`, `45.6 M`.
pub fn human(n: f64) -> String {
    const UNITS: [&str; 6] = ["", " k", " M", " G", " T", " P"];
    let (mut value, mut unit) = (n, 0);
    while value.abs() >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value.abs() {
        _ if unit == 0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{}", UNITS[unit])
}

/// Seconds as `3725.5 s`.
pub fn seconds(s: f64) -> String {
    format!("{s:.1} s")
}

/// `show ports`.
pub fn ports(s: &Snapshot, style: Style) -> String {
    let mut facts =
        Table::new(&["Port", "State", "Driver", "Mode", ">Queues", ">MTU", "MAC", "Device", "Host", "VLAN"]);
    let mut counts =
        Table::new(&["Port", ">In", ">In bytes", ">Out", ">Out bytes", ">From host", ">To host", ">Copied"]);
    let mut losses = Table::new(&["Port", ">Lost before us", ">Lost after us", ">Re-attached"]);
    let n = |v| number(style, v);
    for p in &s.ports {
        let dash = |v: &Option<String>| v.clone().unwrap_or_else(|| "-".to_owned());
        facts.row([
            p.name.clone(),
            p.state.clone(),
            p.driver.clone(),
            p.mode.clone(),
            p.queues.to_string(),
            p.mtu.to_string(),
            p.mac.clone(),
            p.device.clone(),
            dash(&p.host_interface),
            dash(&p.vlan),
        ]);
        let [inward, outward] = [p.received, p.transmitted];
        counts.row([
            p.name.clone(),
            n(inward.packets),
            n(inward.bytes),
            n(outward.packets),
            n(outward.bytes),
            n(p.from_host.packets),
            n(p.to_host.packets),
            n(p.copied),
        ]);
        losses.row([p.name.clone(), n(p.device_rx_lost), n(p.device_tx_lost), n(p.reattached)]);
    }
    let mut out = format!("{}\n{}\n{}", facts.render(style), counts.render(style), losses.render(style));
    for p in s.ports.iter().filter(|p| !p.why.is_empty()) {
        let _ = write!(out, "\n{}: {} because {}", p.name, driver_text(p), p.why);
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn driver_text(p: &PortRow) -> String {
    if p.mode.is_empty() { p.driver.clone() } else { format!("{} ({})", p.driver, p.mode) }
}

/// `show workers`.
pub fn workers(s: &Snapshot, style: Style) -> String {
    let n = |v| number(style, v);
    let mut table = Table::new(&[
        "Worker",
        ">Core",
        ">Busy",
        ">Packets",
        ">Handed over",
        ">Taken over",
        ">Held",
        ">Ring in",
        ">Ring out",
        ">Busy loops",
        ">Idle loops",
        ">Sleeps",
        "State",
    ]);
    for w in &s.workers {
        let state = if w.stuck { paint(style, "31", "STUCK") } else { "ok".to_owned() };
        table.row([
            w.worker.to_string(),
            w.core.map_or_else(|| "-".to_owned(), |c| c.to_string()),
            format!("{:.1} %", w.busy_share() * 100.0),
            n(w.packets),
            n(w.handed_over),
            n(w.taken_over),
            n(w.held),
            n(w.ring_in),
            n(w.ring_out),
            n(w.busy_loops),
            n(w.idle_loops),
            n(w.sleeps),
            state,
        ]);
    }
    let mut out = table.render(style);
    let _ = writeln!(out, "\nSkew: {:.2} (packets of the busiest worker over the mean)\n", s.skew());
    out.push_str(&nodes(&s.workers, style));
    out
}

/// Packets and cycles per node of each worker.
fn nodes(workers: &[WorkerRow], style: Style) -> String {
    let mut table = Table::new(&["Worker", "Node", ">Packets", ">Calls", ">Packets/call", ">Cycles/packet"]);
    for w in workers {
        for node in w.nodes.iter().filter(|n| n.calls > 0) {
            table.row([
                w.worker.to_string(),
                node.name.clone(),
                number(style, node.packets),
                number(style, node.calls),
                format!("{:.1}", ratio(node.packets, node.calls)),
                format!("{:.1}", node.cycles_per_packet()),
            ]);
        }
    }
    if table.is_empty() { "No packets yet.\n".to_owned() } else { table.render(style) }
}

/// `show drops`: reasons that happened, or all of them.
pub fn drops(s: &Snapshot, all: bool, style: Style) -> String {
    let mut table = Table::new(&["Reason", ">Packets"]);
    for d in s.drops.iter().filter(|d| all || d.count > 0) {
        table.row([d.name.clone(), number(style, d.count)]);
    }
    let mut out = if table.is_empty() { "Nothing was dropped.\n".to_owned() } else { table.render(style) };
    for p in &s.ports {
        if p.device_rx_lost + p.device_tx_lost > 0 {
            let (before, after) = (number(style, p.device_rx_lost), number(style, p.device_tx_lost));
            let _ = write!(
                out,
                "\n{}: {before} lost by the device before us, {after} after us (not counted above)",
                p.name
            );
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

fn named(out: &mut String, title: &str, counts: &[NamedCount], style: Style) {
    let _ = writeln!(out, "{}", paint(style, "1", &format!("{title}:")));
    let shown: Vec<_> = counts.iter().filter(|c| c.count > 0).collect();
    if shown.is_empty() {
        out.push_str("        none\n");
    }
    for c in shown {
        let _ = writeln!(out, "        {} {}", number(style, c.count), c.name);
    }
}

/// `show stats`: everything in the manner of `netstat -s`.
pub fn stats(s: &Snapshot, style: Style) -> String {
    let mut out = String::new();
    let d = &s.daemon;
    let n = |v| number(style, v);
    let _ = writeln!(out, "{}", paint(style, "1", "gateway:"));
    let _ = writeln!(out, "        ferrule {}, process {}, {}, up {}", d.version, d.pid, d.state, seconds(d.uptime_s));
    let _ = writeln!(out, "        configuration {}", d.config);
    let fast = if d.fastforward { "on" } else { "off" };
    let _ = writeln!(out, "        poll {}, dispatch {}, fastforward {fast}", d.poll, d.dispatch);
    if let Some(left) = d.confirm_left_s {
        let _ =
            writeln!(out, "        {}", paint(style, "33", &format!("not confirmed: rolls back in {}", seconds(left))));
    }
    if let Some(error) = &d.last_error {
        let _ = writeln!(out, "        {}", paint(style, "31", &format!("last reload failed: {error}")));
    }
    let b = &s.balance;
    let _ = writeln!(out, "{}", paint(style, "1", "packets:"));
    let rows = [
        ("received from devices", b.received),
        ("received from the host", b.from_host),
        ("generated", b.generated),
        ("transmitted to devices", b.transmitted),
        ("given to the host", b.to_host),
        ("dropped", b.dropped),
        ("consumed", b.consumed),
        ("held", b.held),
    ];
    for (text, count) in rows {
        let _ = writeln!(out, "        {} {text}", n(count));
    }
    let _ = writeln!(out, "        {} in hand at this moment (in minus out)", b.difference);
    named(&mut out, "dropped", &s.drops, style);
    named(&mut out, "generated", &s.generated, style);
    named(&mut out, "consumed", &s.consumed, style);
    named(&mut out, "given to the host by class", &s.punted, style);
    let r = &s.routes;
    let _ = writeln!(out, "{}", paint(style, "1", "routes:"));
    let _ = writeln!(out, "        {} IPv4", n(r.ipv4));
    let _ = writeln!(out, "        {} IPv6", n(r.ipv6));
    let _ = writeln!(out, "        {} next hops and groups", n(r.adjacencies));
    let _ = writeln!(out, "        {} bytes of memory", n(r.memory_bytes));
    named(&mut out, "neighbours", &s.neighbors, style);
    named(&mut out, "events", &s.events, style);
    out
}

fn hop(h: &NextHopRow) -> String {
    let via = h.via.map_or_else(|| "connected".to_owned(), |v| v.to_string());
    let weight = if h.weight > 1 { format!(" weight {}", h.weight) } else { String::new() };
    format!("{via}{weight}")
}

/// `show routes`: a line for each next hop.
pub fn routes(rows: &[RouteRow], style: Style) -> String {
    let mut table = Table::new(&["Destination", "Kind", "Gateway", "Port", "MAC", "Source", ">Metric"]);
    let metric = |r: &RouteRow| r.metric.map_or_else(String::new, |m| m.to_string());
    for r in rows {
        if r.next_hops.is_empty() {
            let [none, port, mac] = ["-", "-", "-"].map(str::to_owned);
            table.row([r.prefix.clone(), r.kind.clone(), none, port, mac, r.source.clone(), metric(r)]);
        }
        for (i, h) in r.next_hops.iter().enumerate() {
            let first = i == 0;
            let or_blank = |text: String| if first { text } else { String::new() };
            table.row([
                or_blank(r.prefix.clone()),
                or_blank(r.kind.clone()),
                hop(h),
                h.port.clone(),
                h.mac.clone().unwrap_or_else(|| "-".to_owned()),
                or_blank(r.source.clone()),
                or_blank(metric(r)),
            ]);
        }
    }
    if table.is_empty() { "No routes.\n".to_owned() } else { table.render(style) }
}

/// `show neighbors`.
pub fn neighbors(rows: &[NeighborRow], style: Style) -> String {
    let mut table = Table::new(&["Address", "Port", "MAC", "State", ">Waiting"]);
    for r in rows {
        let mac = r.mac.clone().unwrap_or_else(|| "-".to_owned());
        table.row([r.address.to_string(), r.port.clone(), mac, r.state.clone(), number(style, r.waiting)]);
    }
    if table.is_empty() { "No neighbours.\n".to_owned() } else { table.render(style) }
}

/// `doctor`: one line for each finding, and below it what to type.
pub fn findings(rows: &[Finding], style: Style) -> String {
    let mut out = String::new();
    for f in rows {
        let (sgr, word) = match f.severity {
            Severity::Ok => ("32", "ok      "),
            Severity::Warning => ("33", "warning "),
            Severity::Error => ("31", "error   "),
        };
        let _ = writeln!(out, "{}{}: {}", paint(style, sgr, word), f.subject, f.text);
        if let Some(mend) = &f.mend {
            let _ = writeln!(out, "        -> {mend}");
        }
    }
    if out.is_empty() { "Nothing to report.\n".to_owned() } else { out }
}

/// Packets and bits of a flow between two readings `seconds` apart: per second.
pub fn rate(before: FlowRow, after: FlowRow, seconds: f64) -> (f64, f64) {
    if seconds <= 0.0 {
        return (0.0, 0.0);
    }
    let packets = after.packets.saturating_sub(before.packets) as f64 / seconds;
    (packets, after.bytes.saturating_sub(before.bytes) as f64 * 8.0 / seconds)
}

#[cfg(test)]
mod tests;
