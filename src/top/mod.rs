//! `ferrule top`: what the gateway does now, from the difference of two snapshots. Own ANSI drawing, no terminal library.

#![forbid(unsafe_code)]

pub mod rates;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::Args;

use crate::cli::Common;
use crate::cli::commands::{emit, style};
use crate::control::Client;
use crate::failure::Failure;
use crate::show::{Style, Table, human, paint};
use crate::snapshot::Snapshot;
use rates::Rates;
use screen::{Key, Screen};

/// `ferrule top`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  ferrule top                    live; q quits\n  ferrule top -n 5               every five seconds\n  \
    ferrule top --once             one report of one interval\n  ferrule top --json -c 10       ten JSON objects, one a second"
)]
pub struct TopArgs {
    /// Seconds between readings
    #[arg(short = 'n', long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// One report, then end
    #[arg(long)]
    pub once: bool,
    /// End after so many reports
    #[arg(short = 'c', long, value_name = "N")]
    pub count: Option<u64>,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(s),
        _ => Err(format!("`{text}` is not between 0.1 and 3600 seconds")),
    }
}

/// Runs until q, Ctrl-C, the asked number of reports, or the daemon's end.
///
/// # Errors
/// When the daemon does not answer or the output cannot be written.
pub fn run(args: &TopArgs, common: &Common, out: &mut dyn Write) -> Result<(), Failure> {
    let mut client = Client::connect(&common.socket)?;
    let live = !args.once && !common.json && io::stdout().is_terminal() && io::stdin().is_terminal();
    let limit = args.count.or((args.once || (!live && !common.json)).then_some(1));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| Failure::runtime(format!("cannot catch signals: {e}")))?;
    }
    let screen = if live { Some(Screen::enter()?) } else { None };
    let step = Duration::from_secs_f64(args.interval);
    let mut before = client.snapshot()?;
    let (mut next, mut reports) = (Instant::now() + step, 0);
    if live {
        draw(out, &waiting(&before, style(true)))?;
    }
    while !stop.load(Relaxed) && limit.is_none_or(|n| reports < n) {
        if pause(screen.as_ref(), next, &stop) == Some(Key::Quit) {
            break;
        }
        if stop.load(Relaxed) {
            break;
        }
        next += step;
        let after = client.snapshot()?;
        match Rates::between(&before, &after) {
            Some(rates) if common.json => emit(out, &json_line(&rates)?)?,
            Some(rates) if live => {
                let (rows, _) = screen::size();
                let text = render(&rates, &after, style(true));
                draw(out, &text.lines().take(usize::from(rows).max(2) - 1).collect::<Vec<_>>().join("\n"))?;
            }
            Some(rates) => emit(out, &render(&rates, &after, style(true)))?,
            // Another daemon answered: its counters began anew.
            None => {
                before = after;
                continue;
            }
        }
        before = after;
        reports += 1;
    }
    Ok(())
}

fn json_line(rates: &Rates) -> Result<String, Failure> {
    let text = serde_json::to_string(rates).map_err(|e| Failure::runtime(format!("JSON: {e}")))?;
    Ok(format!("{text}\n"))
}

/// Sleeps until `next`, in small steps so that keys and signals are noticed at once.
fn pause(screen: Option<&Screen>, next: Instant, stop: &AtomicBool) -> Option<Key> {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Relaxed) {
            return None;
        }
        let slice = left.min(Duration::from_millis(100));
        match screen {
            Some(screen) => {
                if let Some(key) = screen.key(slice) {
                    return Some(key);
                }
            }
            None => std::thread::sleep(slice),
        }
    }
}

/// Draws over the old picture: home, each line cleared to its end, the rest cleared. No flicker.
fn draw(out: &mut dyn Write, text: &str) -> Result<(), Failure> {
    emit(out, &format!("\x1b[H{}\x1b[K\x1b[J", text.replace('\n', "\x1b[K\r\n")))
}

fn title(s: &Snapshot) -> String {
    let d = &s.daemon;
    format!("ferrule {}  {}  up {:.0} s  poll {}  dispatch {}", d.version, d.state, d.uptime_s, d.poll, d.dispatch)
}

fn waiting(s: &Snapshot, style: Style) -> String {
    format!("{}\nreading... (q quits)", paint(style, "1", &title(s)))
}

/// The picture.
pub fn render(rates: &Rates, s: &Snapshot, style: Style) -> String {
    let mut out = paint(style, "1", &title(s));
    out.push_str(&format!(
        "\n\nin {}pps {}bit/s   out {}pps {}bit/s   dropped {}pps   over {:.2} s\n\n",
        unit(rates.received.pps),
        unit(rates.received.mbit_per_s * 1e6),
        unit(rates.transmitted.pps),
        unit(rates.transmitted.mbit_per_s * 1e6),
        unit(rates.dropped_pps),
        rates.seconds,
    ));
    let mut ports =
        Table::new(&["Port", "State", ">In pps", ">In Mbit/s", ">Out pps", ">Out Mbit/s", ">To host pps", ">Lost pps"]);
    for p in &rates.ports {
        ports.row([
            p.name.clone(),
            p.state.clone(),
            format!("{:.0}", p.received.pps),
            format!("{:.1}", p.received.mbit_per_s),
            format!("{:.0}", p.transmitted.pps),
            format!("{:.1}", p.transmitted.mbit_per_s),
            format!("{:.0}", p.to_host.pps),
            format!("{:.0}", p.lost_pps),
        ]);
    }
    out.push_str(&ports.render(style));
    let mut workers = Table::new(&["Worker", ">Core", ">Busy", ">pps", ">Handed over pps", "Cycles per packet"]);
    for w in &rates.workers {
        let nodes: Vec<_> = w.nodes.iter().map(|n| format!("{} {:.1}", n.name, n.cycles_per_packet)).collect();
        workers.row([
            w.worker.to_string(),
            w.core.map_or_else(|| "-".to_owned(), |c| c.to_string()),
            format!("{:.1} %", w.busy_share * 100.0),
            format!("{:.0}", w.pps),
            format!("{:.0}", w.handed_over_pps),
            nodes.join("  "),
        ]);
    }
    out.push('\n');
    out.push_str(&workers.render(style));
    let mut drops = Table::new(&["Dropped because", ">pps", ">Total"]);
    for d in &rates.drops {
        let total = s.drops.iter().find(|t| t.name == d.name).map_or(0, |t| t.count);
        drops.row([d.name.clone(), format!("{:.0}", d.pps), total.to_string()]);
    }
    if !drops.is_empty() {
        out.push('\n');
        out.push_str(&drops.render(style));
    }
    if s.workers.iter().any(|w| w.stuck) {
        let stuck: Vec<_> = s.workers.iter().filter(|w| w.stuck).map(|w| w.worker.to_string()).collect();
        out.push_str(&paint(style, "31", &format!("\nSTUCK: worker {}\n", stuck.join(", "))));
    }
    out
}

/// A human number with a space before what follows.
fn unit(n: f64) -> String {
    let text = human(n);
    if text.ends_with(|c: char| c.is_ascii_digit()) { format!("{text} ") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{NamedCount, sample};

    fn pair() -> (Snapshot, Snapshot) {
        let before = sample::snapshot();
        let mut after = before.clone();
        after.daemon.uptime_s += 2.0;
        after.ports[0].received.packets += 2_000_000;
        after.ports[0].received.bytes += 120_000_000;
        after.ports[1].transmitted.packets += 1_999_000;
        after.ports[1].transmitted.bytes += 119_940_000;
        after.balance.received += 2_000_000;
        after.balance.transmitted += 1_999_000;
        after.balance.dropped += 1000;
        after.drops.iter_mut().find(|d| d.name == "ttl_expired").unwrap().count += 1000;
        after.workers[0].packets += 2_000_000;
        after.workers[0].busy_cycles += 3_000_000;
        after.workers[0].total_cycles += 4_000_000;
        after.workers[0].nodes[1].packets += 2_000_000;
        after.workers[0].nodes[1].cycles += 12_000_000;
        after.workers[0].nodes[1].calls += 10_000;
        after.workers[1].handed_over += 10;
        after.events.push(NamedCount::new("reloads", 1));
        (before, after)
    }

    #[test]
    fn picture_golden() {
        let (before, after) = pair();
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!(
            render(&rates, &after, Style::default()),
            "\
ferrule 0.1.0  running  up 3728 s  poll adaptive  dispatch direct

in 1.00 Mpps 480 Mbit/s   out 1.00 Mpps 480 Mbit/s   dropped 500 pps   over 2.00 s

Port  State   In pps  In Mbit/s  Out pps  Out Mbit/s  To host pps  Lost pps
wan   up     1000000      480.0        0         0.0            0         0
lan   down         0        0.0   999500       479.8            0         0

Worker  Core    Busy      pps  Handed over pps  Cycles per packet
0          2  75.0 %  1000000                0  parse 6.0
1          3   0.0 %        0                5

Dropped because  pps  Total
ttl_expired      500   1005

STUCK: worker 1
"
        );
    }

    #[test]
    fn json_has_every_rate() {
        let (before, after) = pair();
        let line = json_line(&Rates::between(&before, &after).unwrap()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["received"]["pps"], 1_000_000.0);
        assert_eq!(value["received"]["mbit_per_s"], 480.0);
        assert_eq!(value["workers"][0]["busy_share"], 0.75);
        assert_eq!(value["workers"][0]["nodes"][0]["cycles_per_packet"], 6.0);
        assert_eq!(value["drops"][0]["name"], "ttl_expired");
        assert_eq!(value["drops"][0]["pps"], 500.0);
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(0.5));
        assert!(
            interval("0").is_err() && interval("nan").is_err() && interval("-1").is_err() && interval("4000").is_err()
        );
    }
}
