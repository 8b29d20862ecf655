#![forbid(unsafe_code)]
//! The shaper in virtual time: packets are numbers, and the clock goes from event to event.

mod aqm;
mod bounds;
mod conservation;
mod fq;
mod live;
mod owner;
mod rate;
mod scenarios;
mod sched;

use super::*;
use ferrule_config::ipfw::dummynet::{
    CodelParameters, DummynetConfig, FlowMask, FlowSet as QueueSettings, FqParameters, PieParameters, PipeConfig,
    Profile, QueueConfig, QueueManagement, QueueSize, RedParameters, SchedulerConfig, SchedulerKind,
    SchedulerParameters,
};

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;
/// 8 Mbit/s: 1,000 bytes a millisecond.
const MEGABYTE: u64 = 8_000_000;

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    number: u64,
    flow: u32,
    length: u32,
    sent: Nanos,
}

/// What came out.
#[derive(Default)]
struct Sink {
    now: Nanos,
    /// With the time.
    out: Vec<(Nanos, Probe)>,
    dropped: Vec<(Probe, DropCause)>,
    marked: u64,
    /// Whether senders can read marks.
    capable: bool,
}

impl Outlet<Probe> for Sink {
    fn mark(&mut self, _packet: &mut Probe) -> bool {
        self.marked += u64::from(self.capable);
        self.capable
    }

    fn deliver(&mut self, packet: Probe, tag: u64) {
        assert_eq!(tag, packet.number);
        self.out.push((self.now, packet));
    }

    fn dropped(&mut self, packet: Probe, tag: u64, cause: DropCause) {
        assert_eq!(tag, packet.number);
        self.dropped.push((packet, cause));
    }
}

/// A shaper and its world.
struct Sim {
    shaper: Shaper<Probe>,
    sink: Sink,
    now: Nanos,
    sent: u64,
}

fn flow(n: u32) -> FlowId {
    FlowId {
        addresses: Addresses::V4 { source: n, destination: 0xc000_0201 },
        protocol: 17,
        source_port: 1000,
        destination_port: 9,
        ..FlowId::NONE
    }
}

fn source_mask() -> FlowMask {
    FlowMask { source4: u32::MAX, ..FlowMask::NONE }
}

fn slots(n: u32) -> QueueSettings {
    QueueSettings { size: QueueSize::Slots(n), ..default_queue() }
}

fn pipe(number: u32, bandwidth: u64, delay_ms: u32, queue: QueueSettings) -> PipeConfig {
    PipeConfig { number, bandwidth, delay_ms, burst: 0, profile: None, queue, scheduler: None }
}

fn queue(number: u32, scheduler: u32, weight: u32, queue: QueueSettings) -> DummynetConfig {
    DummynetConfig::Queue(QueueConfig { number, scheduler, weight, longest: 0, queue })
}

fn sched(number: u32, kind: SchedulerKind) -> DummynetConfig {
    sched_with(number, kind, default_queue())
}

fn sched_with(number: u32, kind: SchedulerKind, queue: QueueSettings) -> DummynetConfig {
    let parameters = SchedulerParameters { kind, mask: FlowMask::NONE };
    DummynetConfig::Scheduler(SchedulerConfig { number, pipe: None, parameters, queue })
}

impl Sim {
    fn new() -> Sim {
        let settings = Settings { slot_limit: 100_000, ..Settings::default() };
        Sim::with(Limits { packets: 20_000, queues: 2_000, instances: 64 }, settings)
    }

    fn with(limits: Limits, settings: Settings) -> Sim {
        Sim { shaper: Shaper::new(limits, settings, 1), sink: Sink::default(), now: SECOND, sent: 0 }
    }

    fn config(&mut self, config: impl Into<DummynetConfig>) {
        self.sink.now = self.now;
        self.shaper.configure(&config.into(), self.now, &mut self.sink).unwrap();
    }

    /// Sends one packet now; what became of it.
    fn send(&mut self, target: Target, length: u32, n: u32) -> Result<(), DropCause> {
        self.send_flow(target, length, n, &flow(n))
    }

    fn send_flow(&mut self, target: Target, length: u32, n: u32, id: &FlowId) -> Result<(), DropCause> {
        self.sent += 1;
        self.sink.now = self.now;
        let probe = Probe { number: self.sent, flow: n, length, sent: self.now };
        match self.shaper.enqueue(target, probe, length, id, self.sent, self.now, &mut self.sink) {
            Ok(Outcome::Held) => Ok(()),
            Ok(Outcome::Passed(packet)) => {
                assert_eq!(packet, probe);
                self.sink.out.push((self.now, packet));
                Ok(())
            }
            Err((packet, cause)) => {
                assert_eq!(packet, probe);
                self.sink.dropped.push((packet, cause));
                Err(cause)
            }
        }
    }

    /// Goes on until `time`, polling at each event.
    fn run_to(&mut self, time: Nanos) {
        while let Some(event) = self.shaper.next_event().filter(|&e| e <= time) {
            self.now = self.now.max(event);
            self.poll();
        }
        self.now = time;
        self.poll();
    }

    fn poll(&mut self) {
        self.sink.now = self.now;
        while self.shaper.poll(self.now, 256, &mut self.sink) > 0 {}
    }

    /// Goes on until nothing is held.
    fn drain(&mut self) {
        while let Some(event) = self.shaper.next_event() {
            self.run_to(event.max(self.now));
        }
        assert_eq!(self.shaper.held(), 0);
    }

    /// Times out since the start.
    fn times(&self) -> Vec<Nanos> {
        self.sink.out.iter().map(|(t, _)| t - SECOND).collect()
    }

    /// Flows in the order in which their packets came out.
    fn order(&self) -> Vec<u32> {
        self.sink.out.iter().map(|(_, p)| p.flow).collect()
    }

    fn bytes_of(&self, flow: u32) -> u64 {
        self.sink.out.iter().filter(|(_, p)| p.flow == flow).map(|(_, p)| u64::from(p.length)).sum()
    }

    fn drops(&self, cause: DropCause) -> usize {
        self.sink.dropped.iter().filter(|d| d.1 == cause).count()
    }

    /// in = out + dropped + held, by the shaper's own count and by ours.
    fn check_balance(&self) {
        let t = self.shaper.totals();
        assert_eq!(t.offered, self.sent);
        assert_eq!(t.passed, self.sink.out.len() as u64);
        assert_eq!(t.dropped(), self.sink.dropped.len() as u64);
        assert_eq!(t.offered, t.passed + t.dropped() + self.shaper.held() as u64);
    }
}

/// So that tests can hand in pipes as they are.
struct Config(DummynetConfig);

impl From<Config> for DummynetConfig {
    fn from(config: Config) -> DummynetConfig {
        config.0
    }
}

fn link(config: PipeConfig) -> Config {
    Config(DummynetConfig::Pipe(config))
}

/// A sender that keeps a window of packets on their way: one more a window when all goes well, half when one is lost or marked.
struct Sender {
    flow: u32,
    target: Target,
    length: u32,
    window: f64,
    flying: u32,
    /// No second cut before this: losses of one window count once.
    calm_until: Nanos,
    acked: u64,
}

impl Sender {
    fn new(flow: u32, target: Target, length: u32) -> Sender {
        Sender { flow, target, length, window: 2.0, flying: 0, calm_until: 0, acked: 0 }
    }

    fn cut(&mut self, now: Nanos) {
        if now >= self.calm_until {
            self.window = (self.window / 2.0).max(1.0);
            self.calm_until = now + 50 * MS;
        }
    }
}

impl Sim {
    /// Lets window senders send until `end`.
    fn drive(&mut self, senders: &mut [Sender], end: Nanos) {
        let (mut seen_out, mut seen_dropped) = (self.sink.out.len(), self.sink.dropped.len());
        while self.now < end {
            for s in senders.iter_mut() {
                while f64::from(s.flying) < s.window {
                    if self.send(s.target, s.length, s.flow).is_err() {
                        seen_dropped = self.sink.dropped.len();
                        s.cut(self.now);
                        break;
                    }
                    s.flying += 1;
                }
            }
            let next = self.shaper.next_event().unwrap_or(end).clamp(self.now + 1000, self.now + MS);
            self.run_to(next);
            for (_, p) in &self.sink.out[seen_out..] {
                if let Some(s) = senders.iter_mut().find(|s| s.flow == p.flow) {
                    s.flying -= 1;
                    s.acked += 1;
                    s.window += if s.calm_until == 0 { 1.0 } else { 1.0 / s.window };
                }
            }
            for (p, _) in &self.sink.dropped[seen_dropped..] {
                if let Some(s) = senders.iter_mut().find(|s| s.flow == p.flow) {
                    s.flying -= 1;
                    s.cut(self.now);
                }
            }
            (seen_out, seen_dropped) = (self.sink.out.len(), self.sink.dropped.len());
        }
    }

    /// Mean time in the queue, in ms, of packets that came out since `from`, behind a link with this delay.
    fn mean_wait(&self, from: Nanos, delay: Nanos) -> f64 {
        let waits: Vec<f64> = self
            .sink
            .out
            .iter()
            .filter(|(t, _)| *t >= from)
            .map(|(t, p)| (t - p.sent - delay - u64::from(p.length) * 1000) as f64 / 1e6)
            .collect();
        waits.iter().sum::<f64>() / waits.len() as f64
    }

    /// Bytes that came out since `from`.
    fn bytes_since(&self, from: Nanos) -> u64 {
        self.sink.out.iter().filter(|(t, _)| *t >= from).map(|(_, p)| u64::from(p.length)).sum()
    }
}

fn codel() -> CodelParameters {
    CodelParameters { target_us: 5_000, interval_us: 100_000, ecn: false }
}

fn pie() -> PieParameters {
    PieParameters {
        target_us: 15_000,
        update_us: 15_000,
        alpha: 0.125,
        beta: 1.25,
        max_burst_us: 150_000,
        max_ecn_threshold: 0.1,
        ecn: false,
        cap_drop: true,
        derandomize: true,
        on_off: false,
        departure_rate: true,
    }
}

fn red() -> RedParameters {
    RedParameters { weight: 0.01, minimum: 10, maximum: 50, probability: 0.1, ecn: false }
}

fn fq() -> FqParameters {
    FqParameters { quantum: 1514, limit: 10_240, flows: 1024 }
}
