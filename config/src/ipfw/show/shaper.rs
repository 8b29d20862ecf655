#![forbid(unsafe_code)]
//! `pipe show`, `queue show`, `sched show`.

use std::fmt::Write;
use std::net::IpAddr;

use serde::Serialize;

use crate::ipfw::dummynet::{
    CodelParameters, FlowMask, FlowSet, PieParameters, PipeConfig, QueueConfig, QueueManagement, QueueSize,
    SchedulerConfig, SchedulerKind,
};
use crate::ipfw::names::Names;

/// FreeBSD numbers a pipe's own queue and scheduler this much higher.
const MAX_ID: u32 = 65536;

/// One dynamic queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowRow {
    /// Bucket of its hash table.
    pub bucket: u32,
    /// Protocol after the mask.
    pub protocol: u8,
    /// Source after the mask.
    pub source: IpAddr,
    /// Source port after the mask.
    pub source_port: u16,
    /// Destination after the mask, of the same family.
    pub destination: IpAddr,
    /// Destination port after the mask.
    pub destination_port: u16,
    /// IPv6 flow label after the mask.
    pub flow_id: u32,
    /// Told apart by the number of its queue (`mask queue`).
    pub by_queue: bool,
    /// Packets so far.
    pub total_packets: u64,
    /// Bytes so far.
    pub total_bytes: u64,
    /// Packets waiting.
    pub packets: u32,
    /// Bytes waiting.
    pub bytes: u32,
    /// Packets dropped.
    pub drops: u32,
}

/// A pipe with its queues.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipeRow {
    /// As configured.
    pub config: PipeConfig,
    /// Instances of its scheduler.
    pub active: u32,
    /// Queues that hold something or did lately.
    pub flows: Vec<FlowRow>,
}

/// A queue with its dynamic ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueRow {
    /// As configured.
    pub config: QueueConfig,
    /// Its dynamic queues.
    pub flows: Vec<FlowRow>,
}

/// A scheduler with its link and the queues that feed it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchedulerRow {
    /// As configured.
    pub config: SchedulerConfig,
    /// The pipe that it feeds.
    pub pipe: Option<PipeConfig>,
    /// Numbers of the queues that feed it.
    pub children: Vec<u32>,
    /// Instances.
    pub active: u32,
    /// Dynamic queues.
    pub flows: Vec<FlowRow>,
}

/// The lines of `pipe show`.
pub fn pipes(rows: &[PipeRow], names: &dyn Names) -> String {
    let mut out = Printer::new(names);
    for row in rows {
        let number = row.config.number;
        out.link(number, Some(&row.config));
        out.flow_set(number + 2 * MAX_ID, &row.config.queue, number + MAX_ID, 0, 0, 0, false);
        let mask = &row.config.queue.mask;
        let buckets = if *mask == FlowMask::NONE { 0 } else { row.config.queue.buckets };
        out.scheduler(number + MAX_ID, SchedulerKind::Fifo, mask, buckets, row.active);
        out.flows(&row.flows);
    }
    out.text
}

/// The lines of `queue show`.
pub fn queues(rows: &[QueueRow], names: &dyn Names) -> String {
    let mut out = Printer::new(names);
    for QueueRow { config, flows } in rows {
        let count = flows.len() as u32;
        out.flow_set(config.number, &config.queue, config.scheduler, config.weight, config.longest, count, true);
        out.flows(flows);
    }
    out.text
}

/// The lines of `sched show`.
pub fn schedulers(rows: &[SchedulerRow], names: &dyn Names) -> String {
    let mut out = Printer::new(names);
    for row in rows {
        let number = row.config.number;
        out.link(number, row.pipe.as_ref());
        let kind = row.config.parameters.kind;
        // Schedulers without queues of their own have one inside.
        if matches!(kind, SchedulerKind::Fifo | SchedulerKind::FqCodel(..) | SchedulerKind::FqPie(..)) {
            out.flow_set(number + MAX_ID, &FlowSet::PLAIN, number, 0, 0, 0, false);
        }
        let mask = &row.config.parameters.mask;
        out.scheduler(number, kind, mask, if *mask == FlowMask::NONE { 0 } else { 64 }, row.active);
        if !row.children.is_empty() {
            let children: String = row.children.iter().map(|child| format!("{child} ")).collect();
            let _ = writeln!(out.text, "   Children flowsets: {children}");
        }
        out.flows(&row.flows);
    }
    out.text
}

struct Printer<'a> {
    text: String,
    names: &'a dyn Names,
    /// The heading of flows comes once in a listing.
    heading: bool,
}

impl<'a> Printer<'a> {
    fn new(names: &'a dyn Names) -> Self {
        Self { text: String::new(), names, heading: true }
    }

    fn link(&mut self, number: u32, pipe: Option<&PipeConfig>) {
        let (bandwidth, delay, burst) = pipe.map_or((0, 0, 0), |pipe| (pipe.bandwidth, pipe.delay_ms, pipe.burst));
        let bits = bandwidth as f64;
        let rate = match bandwidth {
            0 => "unlimited     ".to_owned(),
            1_000_000_000.. => format!("{:7.3} Gbit/s", bits / 1e9),
            1_000_000.. => format!("{:7.3} Mbit/s", bits / 1e6),
            1_000.. => format!("{:7.3} Kbit/s", bits / 1e3),
            _ => format!("{bits:7.3} bit/s "),
        };
        let _ = writeln!(self.text, "{number:05}: {rate} {delay:4} ms burst {}", humanized(burst));
        if let Some(profile) = pipe.and_then(|pipe| pipe.profile.as_ref()) {
            let (name, loss, samples) = (&profile.name, profile.loss_level, profile.samples_ms.len());
            let _ = writeln!(self.text, "\t profile: name \"{name}\" loss {loss:.6} samples {samples}");
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn flow_set(
        &mut self,
        number: u32,
        set: &FlowSet,
        scheduler: u32,
        weight: u32,
        longest: u32,
        flows: u32,
        with_mask: bool,
    ) {
        let size = match set.size {
            QueueSize::Slots(slots) => format!("{slots:3} sl."),
            QueueSize::Bytes(bytes @ 8192..) => format!("{} KB", bytes / 1024),
            QueueSize::Bytes(bytes) => format!("{bytes} B"),
        };
        let loss = if set.loss_rate > 0.0 { format!("plr {:.6}", set.loss_rate) } else { String::new() };
        let buckets = if with_mask { set.buckets } else { 1 };
        let management = management(&set.management);
        let _ = writeln!(
            self.text,
            "q{number:05} {size}{loss} {flows} flows ({buckets} buckets) sched {scheduler} weight {weight} lmax {longest} pri 0 {management}"
        );
        if with_mask && set.mask != FlowMask::NONE {
            self.mask(&set.mask);
        }
    }

    fn scheduler(&mut self, number: u32, kind: SchedulerKind, mask: &FlowMask, buckets: u32, active: u32) {
        let flags = u32::from(*mask != FlowMask::NONE);
        let name = match kind {
            SchedulerKind::Fifo => "FIFO",
            SchedulerKind::Wf2qPlus => "WF2Q+",
            SchedulerKind::Qfq => "QFQ",
            SchedulerKind::RoundRobin => "RR",
            SchedulerKind::Priority => "PRIO",
            SchedulerKind::FqCodel(..) => "FQ_CODEL",
            SchedulerKind::FqPie(..) => "FQ_PIE",
        };
        let _ = writeln!(self.text, " sched {number} type {name} flags 0x{flags:x} {buckets} buckets {active} active");
        if let SchedulerKind::FqCodel(fq, CodelParameters { target_us, interval_us, ecn }) = kind {
            let (target, interval) = (time(target_us), time(interval_us));
            let _ = writeln!(
                self.text,
                " FQ_CODEL target {target} interval {interval} quantum {} limit {} flows {} {}",
                fq.quantum,
                fq.limit,
                fq.flows,
                if ecn { "ECN" } else { "NoECN" }
            );
        }
        if let SchedulerKind::FqPie(fq, parameters) = kind {
            let numbers = format!(" quantum {} limit {} flows {}", fq.quantum, fq.limit, fq.flows);
            let _ = writeln!(self.text, "  FQ_PIE {}", pie(&parameters, &numbers));
        }
        if *mask != FlowMask::NONE {
            self.mask(mask);
        }
    }

    fn mask(&mut self, mask: &FlowMask) {
        let queue = if mask.extra != 0 { "queue," } else { "" };
        let v6 = mask.source4 == 0
            && mask.destination4 == 0
            && !(mask.source6.is_unspecified() && mask.destination6.is_unspecified() && mask.flow_id == 0);
        let _ = if v6 {
            writeln!(
                self.text,
                "\n        mask: {queue}proto: 0x{:02x}, flow_id: 0x{:08x},  {}/0x{:04x} -> {}/0x{:04x}",
                mask.protocol, mask.flow_id, mask.source6, mask.source_port, mask.destination6, mask.destination_port
            )
        } else {
            writeln!(
                self.text,
                "    mask: {queue} 0x{:02x} 0x{:08x}/0x{:04x} -> 0x{:08x}/0x{:04x}",
                mask.protocol, mask.source4, mask.source_port, mask.destination4, mask.destination_port
            )
        };
    }

    fn flows(&mut self, rows: &[FlowRow]) {
        for row in rows {
            let v6 = row.source.is_ipv6();
            if std::mem::take(&mut self.heading) {
                self.text.push_str(if v6 {
                    "BKT ___Prot___ _flow-id_ ______________Source IPv6/port_______________ \
                     _______________Dest. IPv6/port_______________ Tot_pkt/bytes Pkt/Byte Drp\n"
                } else {
                    "BKT Prot ___Source IP/port____ ____Dest. IP/port____ Tot_pkt/bytes Pkt/Byte Drp\n"
                });
            }
            let protocol = super::protocol(row.protocol, self.names, "");
            let mark = if row.by_queue { '*' } else { ' ' };
            let _ = write!(self.text, "{:3}{mark}", row.bucket & 0xff);
            let (source, destination) = (row.source.to_string(), row.destination.to_string());
            let _ = if v6 {
                write!(
                    self.text,
                    "{protocol:>9} {:7}  {source:>39}/{:<5}  {destination:>39}/{:<5} ",
                    row.flow_id, row.source_port, row.destination_port
                )
            } else {
                write!(
                    self.text,
                    "{protocol:<4} {source:>15}/{:<5} {destination:>15}/{:<5} ",
                    row.source_port, row.destination_port
                )
            };
            let _ = writeln!(
                self.text,
                "{:4} {:8} {:2} {:4} {:3}",
                row.total_packets, row.total_bytes, row.packets, row.bytes, row.drops
            );
        }
    }
}

/// humanize_number(3) in twelve columns: a blank and a binary prefix after the number.
fn humanized(mut number: u64) -> String {
    for prefix in ["", "K", "M", "G", "T"] {
        if number < 1_000_000_000 {
            return format!("{number} {prefix}");
        }
        number = (number + 512) / 1024;
    }
    format!("{number} P")
}

fn management(management: &QueueManagement) -> String {
    match management {
        QueueManagement::DropTail => "droptail".to_owned(),
        QueueManagement::Red(red) | QueueManagement::Gred(red) => {
            let gentle = if matches!(management, QueueManagement::Gred(_)) { 'G' } else { ' ' };
            let ecn = if red.ecn { " (ecn)" } else { "" };
            format!(
                "\n\t {gentle}RED w_q {:.6} min_th {} max_th {} max_p {:.6}{ecn}",
                red.weight, red.minimum, red.maximum, red.probability
            )
        }
        QueueManagement::Codel(codel) => {
            let ecn = if codel.ecn { "ECN" } else { "NoECN" };
            format!(" AQM CoDel target {} interval {} {ecn}", time(codel.target_us), time(codel.interval_us))
        }
        QueueManagement::Pie(parameters) => format!(" AQM type PIE {}", pie(parameters, "")),
    }
}

fn pie(pie: &PieParameters, numbers: &str) -> String {
    let word = |set: bool, yes: &'static str, no: &'static str| if set { yes } else { no };
    format!(
        "target {} tupdate {} alpha {} beta {} max_burst {} max_ecnth {}{numbers} {} {}{} {} {}",
        time(pie.target_us),
        time(pie.update_us),
        general(pie.alpha),
        general(pie.beta),
        time(pie.max_burst_us),
        general(pie.max_ecn_threshold),
        word(pie.ecn, "ECN", "NoECN"),
        word(pie.cap_drop, "CapDrop", "NoCapDrop"),
        word(pie.on_off, " OnOff", ""),
        word(pie.departure_rate, "DRE", "TS"),
        word(pie.derandomize, "Derand", "NoDerand"),
    )
}

/// A time as the original prints it: the largest of us, ms and s that keeps a whole part.
fn time(micros: u32) -> String {
    match micros {
        0 => "0".to_owned(),
        1..1_000 => format!("{micros}us"),
        1_000..1_000_000 => format!("{}ms", general(f64::from(micros) / 1e3)),
        _ => format!("{}s", general(f64::from(micros) / 1e6)),
    }
}

/// C's %g for the numbers met here: up to six significant digits.
fn general(number: f64) -> String {
    let whole = (number.abs().max(1.0).log10().floor() as i32 + 1).max(1);
    let text = format!("{number:.*}", (6 - whole).max(0) as usize);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::dummynet::{FqParameters, RedParameters, SchedulerParameters};
    use crate::ipfw::names::builtin;

    fn pipe() -> PipeConfig {
        PipeConfig {
            number: 1,
            bandwidth: 10_000_000,
            delay_ms: 0,
            burst: 0,
            profile: None,
            queue: FlowSet::PLAIN,
            scheduler: None,
        }
    }

    fn flow() -> FlowRow {
        FlowRow {
            bucket: 3,
            protocol: 0,
            source: "10.0.0.1".parse().unwrap(),
            source_port: 0,
            destination: "0.0.0.0".parse().unwrap(),
            destination_port: 0,
            flow_id: 0,
            by_queue: false,
            total_packets: 12,
            total_bytes: 1200,
            packets: 1,
            bytes: 100,
            drops: 2,
        }
    }

    #[test]
    fn a_pipe_as_freebsd_shows_it() {
        let plain = PipeRow { config: pipe(), active: 0, flows: Vec::new() };
        assert_eq!(
            pipes(&[plain], builtin()),
            "00001:  10.000 Mbit/s    0 ms burst 0 \n\
             q131073  50 sl. 0 flows (1 buckets) sched 65537 weight 0 lmax 0 pri 0 droptail\n \
             sched 65537 type FIFO flags 0x0 0 buckets 0 active\n"
        );
        let mut config = pipe();
        config.bandwidth = 0;
        config.queue.mask.source4 = u32::MAX;
        config.queue.buckets = 64;
        config.queue.loss_rate = 0.1;
        let masked = PipeRow { config, active: 1, flows: vec![flow()] };
        assert_eq!(
            pipes(&[masked], builtin()),
            "00001: unlimited         0 ms burst 0 \n\
             q131073  50 sl.plr 0.100000 0 flows (1 buckets) sched 65537 weight 0 lmax 0 pri 0 droptail\n \
             sched 65537 type FIFO flags 0x1 64 buckets 1 active\n    \
             mask:  0x00 0xffffffff/0x0000 -> 0x00000000/0x0000\n\
             BKT Prot ___Source IP/port____ ____Dest. IP/port____ Tot_pkt/bytes Pkt/Byte Drp\n  \
             3 ip          10.0.0.1/0             0.0.0.0/0       12     1200  1  100   2\n"
        );
    }

    #[test]
    fn queues_and_schedulers() {
        let red = RedParameters { weight: 0.002, minimum: 5, maximum: 15, probability: 0.1, ecn: true };
        let queue =
            FlowSet { size: QueueSize::Bytes(20_480), management: QueueManagement::Gred(red), ..FlowSet::PLAIN };
        let config = QueueConfig { number: 2, scheduler: 1, weight: 50, longest: 0, queue };
        assert_eq!(
            queues(&[QueueRow { config, flows: Vec::new() }], builtin()),
            "q00002 20 KB 0 flows (1 buckets) sched 1 weight 50 lmax 0 pri 0 \n\t GRED w_q 0.002000 min_th 5 max_th 15 max_p 0.100000 (ecn)\n"
        );
        let fq = FqParameters { quantum: 1514, limit: 10_240, flows: 1024 };
        let codel = CodelParameters { target_us: 5_000, interval_us: 100_000, ecn: true };
        let parameters = SchedulerParameters { kind: SchedulerKind::FqCodel(fq, codel), mask: FlowMask::NONE };
        let config = SchedulerConfig { number: 1, pipe: None, parameters, queue: FlowSet::default() };
        let row = SchedulerRow { config, pipe: Some(pipe()), children: vec![1, 2], active: 1, flows: Vec::new() };
        assert_eq!(
            schedulers(&[row], builtin()),
            "00001:  10.000 Mbit/s    0 ms burst 0 \n\
             q65537  50 sl. 0 flows (1 buckets) sched 1 weight 0 lmax 0 pri 0 droptail\n \
             sched 1 type FQ_CODEL flags 0x0 0 buckets 1 active\n \
             FQ_CODEL target 5ms interval 100ms quantum 1514 limit 10240 flows 1024 ECN\n   \
             Children flowsets: 1 2 \n"
        );
    }

    #[test]
    fn numbers_as_c_prints_them() {
        assert_eq!(
            (general(0.125), general(1.25), general(15.0), general(0.1)),
            ("0.125".into(), "1.25".into(), "15".into(), "0.1".into())
        );
        assert_eq!(
            (time(0), time(500), time(15_000), time(1_500_000)),
            ("0".into(), "500us".into(), "15ms".into(), "1.5s".into())
        );
        assert_eq!(
            (humanized(0), humanized(10_240), humanized(1 << 40)),
            ("0 ".into(), "10240 ".into(), "1048576 M".into())
        );
    }
}
