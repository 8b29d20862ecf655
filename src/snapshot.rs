//! What the gateway tells about itself, as plain data: `show`, `top`, metrics and `--json` all read this and nothing else.
//!
//! Times are seconds, sizes bytes, rates whole numbers per second. Counters only rise while a daemon lives.

#![forbid(unsafe_code)]

use std::net::IpAddr;

use ferrule_dataplane::counters::{Counter, Flow, NODES, NodeCounters, WorkerCounters};
use ferrule_dataplane::ports::PortTable;
use ferrule_dataplane::verdict::{Consumed, DropReason, Generated, PuntClass};
use serde::{Deserialize, Serialize};

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The daemon itself.
    pub daemon: DaemonRow,
    /// Ports, in the order of the configuration.
    pub ports: Vec<PortRow>,
    /// Workers, by number.
    pub workers: Vec<WorkerRow>,
    /// Drops by reason, every reason, zero ones too.
    pub drops: Vec<NamedCount>,
    /// Packets that Ferrule made, by kind.
    pub generated: Vec<NamedCount>,
    /// Packets turned into something else, by kind.
    pub consumed: Vec<NamedCount>,
    /// Packets given to the host, by punt class.
    pub punted: Vec<NamedCount>,
    /// The identity of packets in and out.
    pub balance: BalanceRow,
    /// Size of the forwarding table.
    pub routes: RouteTotals,
    /// Neighbours by state.
    pub neighbors: Vec<NamedCount>,
    /// Counters of the control plane: netlink messages, resyncs, port re-attachments, reloads, watchdog alarms.
    pub events: Vec<NamedCount>,
}

/// The daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonRow {
    /// Version of the program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The file in force.
    pub config: String,
    /// `running`, `closed` (nothing passes), `draining`.
    pub state: String,
    /// Seconds since the start, CLOCK_MONOTONIC.
    pub uptime_s: f64,
    /// TSC cycles a second, for turning cycles into time.
    pub cycles_per_second: f64,
    /// `busy`, `adaptive` or `interrupt`.
    pub poll: String,
    /// `direct` or `queued`.
    pub dispatch: String,
    /// Whether the batching path is on.
    pub fastforward: bool,
    /// Seconds until an unconfirmed `apply --confirm` is taken back.
    pub confirm_left_s: Option<f64>,
    /// The last error of a reload, if the last one failed.
    pub last_error: Option<String>,
}

/// A number with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCount {
    /// The name, as in metrics.
    pub name: String,
    /// The number.
    pub count: u64,
}

impl NamedCount {
    /// Puts the two together.
    pub fn new(name: impl Into<String>, count: u64) -> NamedCount {
        NamedCount { name: name.into(), count }
    }
}

/// Packets and bytes in one direction (bytes of the frames without FCS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRow {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl FlowRow {
    fn add(&mut self, flow: &Flow) {
        self.packets += flow.packets.get();
        self.bytes += flow.bytes.get();
    }
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortRow {
    /// The name that configuration and rules use.
    pub name: String,
    /// The device it is bound to.
    pub device: String,
    /// `xdp`, `packet`, `tap`, `memory`, `pcap`.
    pub driver: String,
    /// For example `native, copy` or `generic`.
    pub mode: String,
    /// Why this driver and mode were chosen.
    pub why: String,
    /// Queue pairs in use.
    pub queues: u32,
    /// `up`, `down`, `absent`.
    pub state: String,
    /// Longest IP packet in bytes.
    pub mtu: u32,
    /// As `02:00:00:00:00:01`.
    pub mac: String,
    /// The host interface, in host mode.
    pub host_interface: Option<String>,
    /// `802.1q 100`, for a VLAN sub-interface.
    pub vlan: Option<String>,
    /// From the device.
    pub received: FlowRow,
    /// To the device.
    pub transmitted: FlowRow,
    /// From the host's stack.
    pub from_host: FlowRow,
    /// To the host's stack.
    pub to_host: FlowRow,
    /// Frames copied in user space at this edge.
    pub copied: u64,
    /// Lost by the device or kernel before Ferrule saw them.
    pub device_rx_lost: u64,
    /// Lost after Ferrule gave them away, as far as the kernel tells.
    pub device_tx_lost: u64,
    /// Times it was attached again.
    pub reattached: u64,
}

/// Packets and cycles of one node of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRow {
    /// `rx`, `parse`, `forward`, `tx`, `host`, `other`, or a filter stage.
    pub name: String,
    /// Packets.
    pub packets: u64,
    /// TSC cycles.
    pub cycles: u64,
    /// Stamped calls (batches).
    pub calls: u64,
}

impl NodeRow {
    fn new(name: &str, node: &NodeCounters) -> NodeRow {
        let (packets, cycles, calls) = (node.packets.get(), node.cycles.get(), node.calls.get());
        NodeRow { name: name.to_owned(), packets, cycles, calls }
    }

    /// TSC cycles per packet since the start; 0 without packets.
    pub fn cycles_per_packet(&self) -> f64 {
        ratio(self.cycles, self.packets)
    }
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerRow {
    /// Its number, which is the queue index that it serves.
    pub worker: u32,
    /// The core it is pinned to.
    pub core: Option<u32>,
    /// Packets received by it from devices and the host.
    pub packets: u64,
    /// Nodes of the path, then filter stages.
    pub nodes: Vec<NodeRow>,
    /// Packets handed to the worker that owns their flow.
    pub handed_over: u64,
    /// Packets taken over from others.
    pub taken_over: u64,
    /// Packets held by stages and neighbour queues now.
    pub held: u64,
    /// Packets it put on rings to other threads of ours.
    pub ring_in: u64,
    /// Packets it took from such rings; over all threads the difference is on its way.
    pub ring_out: u64,
    /// ICMP errors not sent because of the rate limit.
    pub icmp_suppressed: u64,
    /// Loops that found something.
    pub busy_loops: u64,
    /// Loops that found nothing.
    pub idle_loops: u64,
    /// TSC cycles in busy loops.
    pub busy_cycles: u64,
    /// TSC cycles in all loops and sleeps.
    pub total_cycles: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Beats; rises with every loop.
    pub heartbeat: u64,
    /// Whether the watchdog finds it stuck.
    pub stuck: bool,
}

impl WorkerRow {
    /// Share of its time in loops that found something, 0 to 1, since the start.
    pub fn busy_share(&self) -> f64 {
        ratio(self.busy_cycles, self.total_cycles)
    }

    /// Reads a worker's counters; `stages` are the names of the filter stages in line-up order.
    pub fn read(worker: u32, core: Option<u32>, counters: &WorkerCounters, stages: &[String]) -> WorkerRow {
        let path = NODES.iter().zip(&counters.nodes).map(|(name, n)| NodeRow::new(name, n));
        let filters = stages.iter().zip(&counters.stages).map(|(name, n)| NodeRow::new(name, n));
        WorkerRow {
            worker,
            core,
            packets: counters.ports.iter().map(|p| p.received.packets.get() + p.from_host.packets.get()).sum(),
            nodes: path.chain(filters).collect(),
            handed_over: counters.handed_over.get(),
            taken_over: counters.taken_over.get(),
            held: counters.held.get(),
            ring_in: counters.ring_in.get(),
            ring_out: counters.ring_out.get(),
            icmp_suppressed: counters.icmp_suppressed.get(),
            busy_loops: counters.busy_loops.get(),
            idle_loops: counters.idle_loops.get(),
            busy_cycles: counters.busy_cycles.get(),
            total_cycles: counters.total_cycles.get(),
            sleeps: counters.sleeps.get(),
            heartbeat: counters.heartbeat.get(),
            stuck: false,
        }
    }
}

/// The sums that the accounting identity relates:
/// received + from_host + generated = transmitted + to_host + dropped + consumed + held, once nothing is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceRow {
    /// From devices.
    pub received: u64,
    /// From the host's stack.
    pub from_host: u64,
    /// Made by Ferrule.
    pub generated: u64,
    /// To devices.
    pub transmitted: u64,
    /// To the host's stack.
    pub to_host: u64,
    /// Dropped.
    pub dropped: u64,
    /// Turned into something else.
    pub consumed: u64,
    /// Kept by stages, queues and rings.
    pub held: u64,
    /// In minus out: packets within a worker's hands at this moment; 0 at rest, or a fault.
    pub difference: i64,
}

impl From<ferrule_dataplane::counters::Balance> for BalanceRow {
    fn from(b: ferrule_dataplane::counters::Balance) -> BalanceRow {
        BalanceRow {
            received: b.received,
            from_host: b.from_host,
            generated: b.generated,
            transmitted: b.transmitted,
            to_host: b.to_host,
            dropped: b.dropped,
            consumed: b.consumed,
            held: b.held,
            difference: i64::try_from(b.difference()).unwrap_or(if b.difference() < 0 { i64::MIN } else { i64::MAX }),
        }
    }
}

/// Size of the forwarding table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTotals {
    /// IPv4 routes.
    pub ipv4: u64,
    /// IPv6 routes.
    pub ipv6: u64,
    /// Next hops and groups of them.
    pub adjacencies: u64,
    /// Bytes of the tables.
    pub memory_bytes: u64,
}

/// A route, for `show routes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteRow {
    /// As `192.0.2.0/24` or `2001:db8::/32`.
    pub prefix: String,
    /// `forward`, `local`, `host`, `broadcast`, `blackhole`, `unreachable`, `prohibit`.
    pub kind: String,
    /// Next hops; several for ECMP.
    pub next_hops: Vec<NextHopRow>,
    /// Where it came from: `static`, or the kernel's protocol name (`kernel`, `bird`, `zebra`...).
    pub source: String,
    /// The kernel's metric.
    pub metric: Option<u32>,
}

/// One next hop of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextHopRow {
    /// The gateway; None for a connected route.
    pub via: Option<IpAddr>,
    /// The port, or the interface where it is no port of ours.
    pub port: String,
    /// The gateway's MAC address, once known.
    pub mac: Option<String>,
    /// Share in an ECMP group.
    pub weight: u32,
}

/// A neighbour, for `show neighbors`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborRow {
    /// Its address.
    pub address: IpAddr,
    /// The port it is behind.
    pub port: String,
    /// Its MAC address, once known.
    pub mac: Option<String>,
    /// `reachable`, `stale`, `delay`, `probe`, `permanent`, `incomplete`, `failed`.
    pub state: String,
    /// Packets that wait for it.
    pub waiting: u64,
}

/// A finding of `doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What it is about: `eth0 gro`, `capabilities`, `cores`.
    pub subject: String,
    /// What was found.
    pub text: String,
    /// What to type to mend it.
    pub mend: Option<String>,
}

/// Severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Ok,
    /// Works, but costs something.
    Warning,
    /// Does not work.
    Error,
}

/// What a worker counts under, as the daemon knows it.
pub struct WorkerView<'a> {
    /// Its number.
    pub worker: u32,
    /// The core it is pinned to.
    pub core: Option<u32>,
    /// Its counters.
    pub counters: &'a WorkerCounters,
    /// Whether the watchdog finds it stuck.
    pub stuck: bool,
}

impl Snapshot {
    /// Reads the counters of all workers into the parts of a snapshot that come from them: workers, sums of ports, drops,
    /// generated, consumed, punted and the balance. `ports` gives names, MTU, MAC and state; the daemon adds driver, mode and
    /// the rest to each [`PortRow`] (same order).
    pub fn read(ports: &PortTable, workers: &[WorkerView<'_>], stages: &[String]) -> Snapshot {
        let sum = |pick: &dyn Fn(&WorkerCounters) -> &Counter| workers.iter().map(|w| pick(w.counters).get()).sum();
        let mut snapshot = Snapshot::default();
        for (id, port) in ports.iter() {
            let mut row = PortRow {
                name: port.name.clone(),
                mtu: port.mtu(),
                mac: mac_text(port.mac().0),
                state: if port.is_up() { "up" } else { "down" }.to_owned(),
                vlan: port
                    .tag
                    .map(|t| format!("{} {}", if t.tpid == 0x88a8 { "802.1ad" } else { "802.1q" }, t.tci & 0x0fff)),
                ..PortRow::default()
            };
            for counters in workers.iter().filter_map(|w| w.counters.ports.get(usize::from(id.0))) {
                row.received.add(&counters.received);
                row.transmitted.add(&counters.transmitted);
                row.from_host.add(&counters.from_host);
                row.to_host.add(&counters.to_host);
                row.copied += counters.copied.get();
                row.device_rx_lost += counters.device_rx_lost.get();
                row.device_tx_lost += counters.device_tx_lost.get();
            }
            snapshot.ports.push(row);
        }
        let row =
            |w: &WorkerView<'_>| WorkerRow { stuck: w.stuck, ..WorkerRow::read(w.worker, w.core, w.counters, stages) };
        snapshot.workers = workers.iter().map(row).collect();
        let reasons = DropReason::ALL.iter();
        snapshot.drops = reasons.map(|r| NamedCount::new(r.label(), sum(&|w| &w.dropped[*r as usize]))).collect();
        let kinds = Generated::ALL.iter();
        snapshot.generated = kinds.map(|k| NamedCount::new(k.label(), sum(&|w| &w.generated[*k as usize]))).collect();
        let kinds = Consumed::ALL.iter();
        snapshot.consumed = kinds.map(|k| NamedCount::new(k.label(), sum(&|w| &w.consumed[*k as usize]))).collect();
        let classes = PuntClass::ALL.iter();
        snapshot.punted = classes.map(|c| NamedCount::new(c.label(), sum(&|w| &w.punted[*c as usize]))).collect();
        snapshot.balance = ferrule_dataplane::counters::Balance::of(workers.iter().map(|w| w.counters)).into();
        snapshot
    }

    /// How unevenly the workers share the packets: the busiest one's packets over the mean, 1 for even, 0 without packets.
    pub fn skew(&self) -> f64 {
        let most = self.workers.iter().map(|w| w.packets).max().unwrap_or(0);
        let total: u64 = self.workers.iter().map(|w| w.packets).sum();
        ratio(most.saturating_mul(self.workers.len() as u64), total)
    }
}

/// A MAC address as text.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// a / b; 0 where b is 0.
pub fn ratio(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

#[cfg(test)]
pub mod sample {
    //! A snapshot with something in every field, for golden tests.

    use super::*;
    use ferrule_dataplane::packet::PortId;
    use ferrule_dataplane::ports::{MacAddress, Port};

    /// Two ports, two workers, one filter stage.
    pub fn snapshot() -> Snapshot {
        let wan = Port::new("wan", PortId(0), MacAddress([2, 0, 0, 0, 0, 1]), 1500);
        wan.set_up(true);
        let lan = Port::new("lan", PortId(1), MacAddress([2, 0, 0, 0, 0, 2]), 9000);
        let ports = PortTable::new(vec![wan, lan]);
        let counters: Vec<_> = (0..2).map(|_| WorkerCounters::new(2, 1)).collect();
        counters[0].ports[0].received.add(1000, 60_000);
        counters[0].ports[1].transmitted.add(985, 59_100);
        counters[1].ports[1].received.add(3000, 4_500_000);
        counters[1].ports[0].transmitted.add(3000, 4_500_000);
        counters[1].ports[0].from_host.add(2, 84);
        counters[0].ports[0].to_host.add(7, 420);
        counters[1].ports[0].copied.add(9);
        counters[0].ports[0].device_rx_lost.add(4);
        counters[0].dropped[DropReason::TtlExpired as usize].add(5);
        counters[0].dropped[DropReason::NoRoute as usize].add(6);
        counters[0].generated[Generated::IcmpError as usize].add(5);
        counters[0].consumed[Consumed::Fragmented as usize].add(1);
        counters[0].punted[PuntClass::Neighbor as usize].add(7);
        counters[0].held.set(3);
        counters[0].nodes[1].packets.add(1000);
        counters[0].nodes[1].cycles.add(6500);
        counters[0].nodes[1].calls.add(10);
        counters[0].stages[0].packets.add(1000);
        counters[0].stages[0].cycles.add(30_000);
        counters[0].stages[0].calls.add(10);
        counters[0].busy_cycles.add(250);
        counters[0].total_cycles.add(1000);
        counters[0].heartbeat.add(42);
        counters[1].handed_over.add(11);
        let views: Vec<_> = counters
            .iter()
            .enumerate()
            .map(|(i, c)| WorkerView { worker: i as u32, core: Some(i as u32 + 2), counters: c, stuck: i == 1 })
            .collect();
        let mut s = Snapshot::read(&ports, &views, &["pf".to_owned()]);
        s.daemon = DaemonRow {
            version: "0.1.0".into(),
            pid: 4711,
            config: "/etc/ferrule/gateway.toml".into(),
            state: "running".into(),
            uptime_s: 3725.5,
            cycles_per_second: 2.3e9,
            poll: "adaptive".into(),
            dispatch: "direct".into(),
            fastforward: true,
            confirm_left_s: None,
            last_error: None,
        };
        for (row, driver) in s.ports.iter_mut().zip(["xdp", "packet"]) {
            row.device = format!("{}.phy", row.name);
            row.driver = driver.into();
            row.mode = if driver == "xdp" { "native, copy" } else { "ring" }.into();
            row.why = "auto: the best that the device supports".into();
            row.queues = 2;
            row.host_interface = Some(row.name.clone());
        }
        s.routes = RouteTotals { ipv4: 3, ipv6: 2, adjacencies: 4, memory_bytes: 67_108_864 };
        s.neighbors = vec![NamedCount::new("reachable", 2), NamedCount::new("incomplete", 1)];
        s.events = vec![NamedCount::new("netlink_resyncs", 1), NamedCount::new("reloads", 2)];
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_summed_over_workers() {
        let s = sample::snapshot();
        assert_eq!(s.ports[0].received, FlowRow { packets: 1000, bytes: 60_000 });
        assert_eq!(s.ports[0].transmitted.packets, 3000);
        assert_eq!((s.ports[0].copied, s.ports[0].device_rx_lost), (9, 4));
        assert_eq!((s.ports[0].state.as_str(), s.ports[1].state.as_str()), ("up", "down"));
        assert_eq!(s.drops.len(), DropReason::COUNT);
        assert_eq!(s.drops.iter().map(|d| d.count).sum::<u64>(), 11);
        assert_eq!(s.balance.dropped, 11);
        assert_eq!(s.balance.difference, (1000 + 3000 + 2 + 5) - (985 + 3000 + 7 + 11 + 1 + 3));
        assert_eq!((s.workers[0].packets, s.workers[1].packets), (1000, 3002));
        assert_eq!(s.workers[0].busy_share(), 0.25);
        assert_eq!(s.workers[0].nodes.last().unwrap().cycles_per_packet(), 30.0);
        assert!((s.skew() - 3002.0 * 2.0 / 4002.0).abs() < 1e-9);
    }

    #[test]
    fn json_round_trip_loses_nothing() {
        let s = sample::snapshot();
        let text = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), s);
    }

    #[test]
    fn an_older_daemon_without_a_field_is_still_understood() {
        let s: Snapshot = serde_json::from_str(r#"{"ports":[{"name":"wan","mtu":1500}]}"#).unwrap();
        assert_eq!((s.ports[0].name.as_str(), s.ports[0].queues), ("wan", 0));
    }
}
