//! Prometheus metrics: the text of a [`Snapshot`] ([`render`]) and a small HTTP server for it ([`server`]).
//!
//! The text exposition format 0.0.4, written by hand: a help and a type line for each family, base units (seconds, bytes),
//! counters end in `_total`.

#![forbid(unsafe_code)]

pub mod server;

use std::fmt::Write as _;

use crate::snapshot::{NamedCount, Snapshot};

/// Kind of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises while a daemon lives.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// Writes families one after the other; all samples of a family stand together, as the format asks.
#[derive(Debug, Default)]
pub struct Writer {
    text: String,
}

impl Writer {
    /// Begins a family.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) -> Family<'_> {
        let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.text, name: name.to_owned() }
    }

    /// All of it.
    pub fn finish(self) -> String {
        self.text
    }
}

/// A family being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: String,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl std::fmt::Display) -> &mut Self {
        self.text.push_str(&self.name);
        for (i, (label, value)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if i == 0 { '{' } else { ',' }, escape(value));
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
        self
    }
}

/// A label's value: backslash, quote and newline escaped.
pub fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Everything in a snapshot.
pub fn render(s: &Snapshot) -> String {
    let mut w = Writer::default();
    daemon(&mut w, s);
    ports(&mut w, s);
    workers(&mut w, s);
    let mut named = |name: &str, label: &str, help: &str, kind, counts: &[NamedCount]| {
        let mut family = w.family(name, kind, help);
        for c in counts {
            family.sample(&[(label, &c.name)], c.count);
        }
    };
    use Kind::{Counter, Gauge};
    named("ferrule_dropped_packets_total", "reason", "Packets dropped, by reason.", Counter, &s.drops);
    named("ferrule_generated_packets_total", "kind", "Packets made by Ferrule.", Counter, &s.generated);
    named("ferrule_consumed_packets_total", "kind", "Packets turned into something else.", Counter, &s.consumed);
    named("ferrule_punted_packets_total", "class", "Packets given to the host, by punt class.", Counter, &s.punted);
    named("ferrule_neighbors", "state", "Neighbours of next hops in use, by state.", Gauge, &s.neighbors);
    named("ferrule_events_total", "event", "Events of the control plane.", Counter, &s.events);
    balance(&mut w, s);
    w.finish()
}

fn daemon(w: &mut Writer, s: &Snapshot) {
    let d = &s.daemon;
    let pid = d.pid.to_string();
    w.family("ferrule_build_info", Kind::Gauge, "Version of the running program.")
        .sample(&[("version", &d.version)], 1);
    w.family("ferrule_config_info", Kind::Gauge, "What is in force.").sample(
        &[
            ("path", &d.config),
            ("poll", &d.poll),
            ("dispatch", &d.dispatch),
            ("fastforward", if d.fastforward { "true" } else { "false" }),
            ("pid", &pid),
        ],
        1,
    );
    w.family("ferrule_state", Kind::Gauge, "State of the gateway; 1 for the one it is in.")
        .sample(&[("state", &d.state)], 1);
    w.family("ferrule_uptime_seconds", Kind::Gauge, "Seconds since the start.").sample(&[], d.uptime_s);
    w.family("ferrule_tsc_hertz", Kind::Gauge, "TSC cycles a second, for the cycle counters.")
        .sample(&[], d.cycles_per_second);
    let mut left =
        w.family("ferrule_confirm_left_seconds", Kind::Gauge, "Seconds until an unconfirmed apply is taken back.");
    if let Some(seconds) = d.confirm_left_s {
        left.sample(&[], seconds);
    }
    w.family(
        "ferrule_last_reload_failed",
        Kind::Gauge,
        "1 when the last reload was refused and the old file stays in force.",
    )
    .sample(&[], u8::from(d.last_error.is_some()));
    let r = &s.routes;
    w.family("ferrule_routes", Kind::Gauge, "Routes in force.")
        .sample(&[("family", "ipv4")], r.ipv4)
        .sample(&[("family", "ipv6")], r.ipv6);
    w.family("ferrule_adjacencies", Kind::Gauge, "Next hops and groups of them.").sample(&[], r.adjacencies);
    w.family("ferrule_route_memory_bytes", Kind::Gauge, "Memory of the route tables.").sample(&[], r.memory_bytes);
}

fn ports(w: &mut Writer, s: &Snapshot) {
    let mut info = w.family("ferrule_port_info", Kind::Gauge, "What a port is bound to.");
    for p in &s.ports {
        info.sample(
            &[
                ("port", &p.name),
                ("device", &p.device),
                ("driver", &p.driver),
                ("mode", &p.mode),
                ("mac", &p.mac),
                ("host_interface", p.host_interface.as_deref().unwrap_or("")),
                ("vlan", p.vlan.as_deref().unwrap_or("")),
                ("state", &p.state),
            ],
            1,
        );
    }
    let mut each = |name, kind, help, value: fn(&crate::snapshot::PortRow) -> u64| {
        let mut family = w.family(name, kind, help);
        for p in &s.ports {
            family.sample(&[("port", &p.name)], value(p));
        }
    };
    each("ferrule_port_up", Kind::Gauge, "1 when the port can send and receive.", |p| u64::from(p.state == "up"));
    each("ferrule_port_mtu_bytes", Kind::Gauge, "Longest IP packet.", |p| u64::from(p.mtu));
    each("ferrule_port_queues", Kind::Gauge, "Queue pairs in use.", |p| u64::from(p.queues));
    each("ferrule_port_copied_frames_total", Kind::Counter, "Frames copied in user space at this edge.", |p| p.copied);
    each("ferrule_port_reattached_total", Kind::Counter, "Times the port was attached again.", |p| p.reattached);
    let mut flows = |name, help, value: fn(&crate::snapshot::FlowRow) -> u64| {
        let mut family = w.family(name, Kind::Counter, help);
        for p in &s.ports {
            let directions = [
                ("received", p.received),
                ("transmitted", p.transmitted),
                ("from_host", p.from_host),
                ("to_host", p.to_host),
            ];
            for (direction, flow) in directions {
                family.sample(&[("port", &p.name), ("direction", direction)], value(&flow));
            }
        }
    };
    flows("ferrule_port_packets_total", "Packets, by direction.", |f| f.packets);
    flows("ferrule_port_bytes_total", "Bytes of frames without FCS, by direction.", |f| f.bytes);
    let mut lost =
        w.family("ferrule_port_device_lost_packets_total", Kind::Counter, "Lost by the device, before or after us.");
    for p in &s.ports {
        lost.sample(&[("port", &p.name), ("direction", "receive")], p.device_rx_lost);
        lost.sample(&[("port", &p.name), ("direction", "transmit")], p.device_tx_lost);
    }
}

fn workers(w: &mut Writer, s: &Snapshot) {
    let mut info = w.family("ferrule_worker_info", Kind::Gauge, "The core a worker is pinned to.");
    for row in &s.workers {
        let core = row.core.map_or_else(String::new, |c| c.to_string());
        info.sample(&[("worker", &row.worker.to_string()), ("core", &core)], 1);
    }
    let mut each = |name, kind, help, value: fn(&crate::snapshot::WorkerRow) -> u64| {
        let mut family = w.family(name, kind, help);
        for row in &s.workers {
            family.sample(&[("worker", &row.worker.to_string())], value(row));
        }
    };
    each("ferrule_worker_packets_total", Kind::Counter, "Packets taken from devices and the host.", |r| r.packets);
    each("ferrule_worker_handed_over_packets_total", Kind::Counter, "Handed to the owner of the flow.", |r| {
        r.handed_over
    });
    each("ferrule_worker_taken_over_packets_total", Kind::Counter, "Taken over from other workers.", |r| r.taken_over);
    each("ferrule_worker_held_packets", Kind::Gauge, "Held by stages and neighbour queues.", |r| r.held);
    each("ferrule_worker_ring_in_packets_total", Kind::Counter, "Put on rings to other threads.", |r| r.ring_in);
    each("ferrule_worker_ring_out_packets_total", Kind::Counter, "Taken from rings of other threads.", |r| r.ring_out);
    each("ferrule_worker_icmp_suppressed_total", Kind::Counter, "ICMP errors held back by the rate limit.", |r| {
        r.icmp_suppressed
    });
    each("ferrule_worker_sleeps_total", Kind::Counter, "Times the worker slept.", |r| r.sleeps);
    each("ferrule_worker_heartbeats_total", Kind::Counter, "Loops, for the watchdog.", |r| r.heartbeat);
    each("ferrule_worker_stuck", Kind::Gauge, "1 when the watchdog finds the worker stuck.", |r| u64::from(r.stuck));
    let mut two = |name, help, label, values: fn(&crate::snapshot::WorkerRow) -> [(&'static str, u64); 2]| {
        let mut family = w.family(name, Kind::Counter, help);
        for row in &s.workers {
            for (kind, value) in values(row) {
                family.sample(&[("worker", &row.worker.to_string()), (label, kind)], value);
            }
        }
    };
    two("ferrule_worker_loops_total", "Loops, by whether they found something.", "kind", |r| {
        [("busy", r.busy_loops), ("idle", r.idle_loops)]
    });
    two("ferrule_worker_cycles_total", "TSC cycles: in busy loops, and in all.", "kind", |r| {
        [("busy", r.busy_cycles), ("all", r.total_cycles)]
    });
    let mut nodes = |name, help, value: fn(&crate::snapshot::NodeRow) -> u64| {
        let mut family = w.family(name, Kind::Counter, help);
        for row in &s.workers {
            for node in &row.nodes {
                family.sample(&[("worker", &row.worker.to_string()), ("node", &node.name)], value(node));
            }
        }
    };
    nodes("ferrule_node_packets_total", "Packets through a node of the path.", |n| n.packets);
    nodes("ferrule_node_cycles_total", "TSC cycles of a node of the path.", |n| n.cycles);
    nodes("ferrule_node_calls_total", "Batches through a node of the path.", |n| n.calls);
}

fn balance(w: &mut Writer, s: &Snapshot) {
    let b = &s.balance;
    let mut terms =
        w.family("ferrule_balance_packets", Kind::Gauge, "Terms of the accounting identity, summed over workers.");
    for (term, value) in [
        ("received", b.received),
        ("from_host", b.from_host),
        ("generated", b.generated),
        ("transmitted", b.transmitted),
        ("to_host", b.to_host),
        ("dropped", b.dropped),
        ("consumed", b.consumed),
        ("held", b.held),
    ] {
        terms.sample(&[("term", term)], value);
    }
    w.family("ferrule_balance_difference_packets", Kind::Gauge, "In minus out: packets in hand; 0 at rest.")
        .sample(&[], b.difference);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample;
    use serde_json::Value;
    use std::collections::HashSet;

    #[test]
    fn labels_are_escaped() {
        let mut w = Writer::default();
        w.family("m", Kind::Gauge, "a \\ b\nc").sample(&[("path", "C:\\x \"y\"\nz"), ("b", "")], 1.5);
        assert_eq!(w.finish(), "# HELP m a \\\\ b\\nc\n# TYPE m gauge\nm{path=\"C:\\\\x \\\"y\\\"\\nz\",b=\"\"} 1.5\n");
    }

    /// Gives every number in the value one of its own, and returns them.
    fn number(value: &mut Value, next: &mut u64, out: &mut Vec<u64>) {
        match value {
            Value::Number(n) => {
                *next += 7;
                out.push(*next);
                *n = if n.is_f64() {
                    serde_json::Number::from_f64(*next as f64 + 0.25).unwrap()
                } else {
                    (*next).into()
                };
            }
            Value::Array(items) => items.iter_mut().for_each(|v| number(v, next, out)),
            Value::Object(fields) => fields.values_mut().for_each(|v| number(v, next, out)),
            _ => {}
        }
    }

    #[test]
    fn every_number_of_a_snapshot_is_exposed() {
        let mut s = sample::snapshot();
        s.daemon.confirm_left_s = Some(1.5);
        let mut value = serde_json::to_value(&s).unwrap();
        let (mut next, mut numbers) = (100_000, Vec::new());
        number(&mut value, &mut next, &mut numbers);
        let text = render(&serde_json::from_value(value).unwrap());
        let shown: HashSet<&str> = text.split(|c: char| !c.is_ascii_digit()).collect();
        for n in &numbers {
            assert!(shown.contains(n.to_string().as_str()), "{n} is not in:\n{text}");
        }
        assert!(numbers.len() > 100);
    }

    #[test]
    fn every_text_of_a_port_is_exposed() {
        let mut s = sample::snapshot();
        s.ports[0].name = "w\"an".into();
        s.ports[0].vlan = Some("802.1q 7".into());
        let text = render(&s);
        let line = text.lines().find(|l| l.starts_with("ferrule_port_info")).unwrap();
        for part in
            ["port=\"w\\\"an\"", "device=\"wan.phy\"", "driver=\"xdp\"", "mode=\"native, copy\"", "vlan=\"802.1q 7\""]
        {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn families_are_well_formed() {
        let text = render(&sample::snapshot());
        let (mut seen, mut current, mut kind) = (HashSet::new(), String::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, k) = rest.split_once(' ').unwrap();
                assert!(seen.insert(name.to_owned()), "{name} twice");
                assert_eq!(k == "counter", name.ends_with("_total"), "{name} {k}");
                (current, kind) = (name.to_owned(), k.to_owned());
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                assert_eq!(name, current, "a sample away from its family");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(seen.len() > 35 && !kind.is_empty());
    }
}
