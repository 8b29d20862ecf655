//! Rates between two snapshots of the same daemon.

#![forbid(unsafe_code)]

use serde::Serialize;

use crate::show::rate;
use crate::snapshot::{FlowRow, NamedCount, PortRow, Snapshot, WorkerRow, ratio};

/// Packets and bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rate {
    /// Packets a second.
    pub pps: f64,
    /// 10^6 bits a second, frames without FCS.
    pub mbit_per_s: f64,
}

impl Rate {
    fn between(before: FlowRow, after: FlowRow, seconds: f64) -> Rate {
        let (pps, bits) = rate(before, after, seconds);
        Rate { pps, mbit_per_s: bits / 1e6 }
    }
}

/// A port's rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortRates {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: String,
    /// From the device.
    pub received: Rate,
    /// To the device.
    pub transmitted: Rate,
    /// From the host.
    pub from_host: Rate,
    /// To the host.
    pub to_host: Rate,
    /// Lost by the device before and after us.
    pub lost_pps: f64,
}

/// A node's work in the interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NodeRates {
    /// Its name.
    pub name: String,
    /// Packets a second.
    pub pps: f64,
    /// TSC cycles per packet.
    pub cycles_per_packet: f64,
    /// Packets per stamped call.
    pub packets_per_call: f64,
}

/// A worker's rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerRates {
    /// Its number.
    pub worker: u32,
    /// Its core.
    pub core: Option<u32>,
    /// Share of the interval in loops that found something.
    pub busy_share: f64,
    /// Packets received a second.
    pub pps: f64,
    /// Packets handed over a second.
    pub handed_over_pps: f64,
    /// Nodes that worked.
    pub nodes: Vec<NodeRates>,
}

/// A reason and its rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DropRate {
    /// The reason.
    pub name: String,
    /// Packets a second.
    pub pps: f64,
}

/// Everything that moved between two snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between them, by the daemon's clock.
    pub seconds: f64,
    /// All ports, from devices.
    pub received: Rate,
    /// All ports, to devices.
    pub transmitted: Rate,
    /// Drops a second.
    pub dropped_pps: f64,
    /// Reasons that happened in the interval, most frequent first.
    pub drops: Vec<DropRate>,
    /// By port.
    pub ports: Vec<PortRates>,
    /// By worker.
    pub workers: Vec<WorkerRates>,
}

impl Rates {
    /// None when the two are not of one daemon, or no time passed.
    pub fn between(before: &Snapshot, after: &Snapshot) -> Option<Rates> {
        let seconds = after.daemon.uptime_s - before.daemon.uptime_s;
        if before.daemon.pid != after.daemon.pid || seconds <= 0.0 {
            return None;
        }
        let all = |s: &Snapshot, pick: fn(&PortRow) -> FlowRow| {
            s.ports
                .iter()
                .map(pick)
                .fold(FlowRow::default(), |a, b| FlowRow { packets: a.packets + b.packets, bytes: a.bytes + b.bytes })
        };
        let total = |pick| Rate::between(all(before, pick), all(after, pick), seconds);
        let find = |name: &str| before.ports.iter().find(|p| p.name == name);
        let none = PortRow::default();
        let ports = after.ports.iter().map(|p| port(find(&p.name).unwrap_or(&none), p, seconds)).collect();
        let idle = WorkerRow::default();
        let find = |number| before.workers.iter().find(|w| w.worker == number);
        let workers = after.workers.iter().map(|w| worker(find(w.worker).unwrap_or(&idle), w, seconds)).collect();
        let dropped = after.balance.dropped.saturating_sub(before.balance.dropped);
        Some(Rates {
            seconds,
            received: total(|p| p.received),
            transmitted: total(|p| p.transmitted),
            dropped_pps: dropped as f64 / seconds,
            drops: drops(&before.drops, &after.drops, seconds),
            ports,
            workers,
        })
    }
}

fn port(before: &PortRow, after: &PortRow, seconds: f64) -> PortRates {
    let lost = |p: &PortRow| p.device_rx_lost + p.device_tx_lost;
    PortRates {
        name: after.name.clone(),
        state: after.state.clone(),
        received: Rate::between(before.received, after.received, seconds),
        transmitted: Rate::between(before.transmitted, after.transmitted, seconds),
        from_host: Rate::between(before.from_host, after.from_host, seconds),
        to_host: Rate::between(before.to_host, after.to_host, seconds),
        lost_pps: lost(after).saturating_sub(lost(before)) as f64 / seconds,
    }
}

fn worker(before: &WorkerRow, after: &WorkerRow, seconds: f64) -> WorkerRates {
    let per_second = |a: u64, b: u64| b.saturating_sub(a) as f64 / seconds;
    let nodes = after.nodes.iter().filter_map(|node| {
        let old = before.nodes.iter().find(|n| n.name == node.name).cloned().unwrap_or_default();
        let calls = node.calls.saturating_sub(old.calls);
        let packets = node.packets.saturating_sub(old.packets);
        (calls > 0).then(|| NodeRates {
            name: node.name.clone(),
            pps: packets as f64 / seconds,
            cycles_per_packet: ratio(node.cycles.saturating_sub(old.cycles), packets),
            packets_per_call: ratio(packets, calls),
        })
    });
    WorkerRates {
        worker: after.worker,
        core: after.core,
        busy_share: ratio(
            after.busy_cycles.saturating_sub(before.busy_cycles),
            after.total_cycles.saturating_sub(before.total_cycles),
        ),
        pps: per_second(before.packets, after.packets),
        handed_over_pps: per_second(before.handed_over, after.handed_over),
        nodes: nodes.collect(),
    }
}

fn drops(before: &[NamedCount], after: &[NamedCount], seconds: f64) -> Vec<DropRate> {
    let old = |name: &str| before.iter().find(|d| d.name == name).map_or(0, |d| d.count);
    let mut rates: Vec<_> = after
        .iter()
        .map(|d| DropRate { name: d.name.clone(), pps: d.count.saturating_sub(old(&d.name)) as f64 / seconds })
        .filter(|d| d.pps > 0.0)
        .collect();
    rates.sort_by(|a, b| b.pps.total_cmp(&a.pps).then_with(|| a.name.cmp(&b.name)));
    rates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::sample;

    #[test]
    fn another_daemon_or_no_time_gives_nothing() {
        let before = sample::snapshot();
        let mut after = before.clone();
        assert_eq!(Rates::between(&before, &after), None);
        after.daemon.uptime_s += 1.0;
        assert!(Rates::between(&before, &after).is_some());
        after.daemon.pid += 1;
        assert_eq!(Rates::between(&before, &after), None);
    }

    #[test]
    fn nothing_moved_is_all_zero() {
        let before = sample::snapshot();
        let mut after = before.clone();
        after.daemon.uptime_s += 1.0;
        let r = Rates::between(&before, &after).unwrap();
        assert_eq!((r.received, r.transmitted, r.dropped_pps), (Rate::default(), Rate::default(), 0.0));
        assert!(r.drops.is_empty() && r.workers.iter().all(|w| w.nodes.is_empty() && w.pps == 0.0));
    }

    #[test]
    fn a_port_that_came_late_counts_from_zero() {
        let after = sample::snapshot();
        let mut before = after.clone();
        before.daemon.uptime_s -= 1.0;
        before.ports.remove(1);
        let r = Rates::between(&before, &after).unwrap();
        assert_eq!(r.ports[1].received.pps, 3000.0);
    }
}
