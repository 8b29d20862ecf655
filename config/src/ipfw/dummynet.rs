#![forbid(unsafe_code)]
//! `ipfw pipe|queue|sched N config`: what they hold (ipfw(8), TRAFFIC SHAPER (DUMMYNET) CONFIGURATION).

use std::net::Ipv6Addr;

use serde::Serialize;

/// A pipe, queue or scheduler as configured by one command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum DummynetConfig {
    /// `pipe N config`: a link, with a FIFO queue of its own.
    Pipe(PipeConfig),
    /// `queue N config`: a flow set that feeds a scheduler or the WF2Q+ one of a pipe.
    Queue(QueueConfig),
    /// `sched N config`.
    Scheduler(SchedulerConfig),
}

/// `pipe N config`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipeConfig {
    /// Its number, 1 to 65535.
    pub number: u32,
    /// `bw` in bit/s; 0 is no limit.
    pub bandwidth: u64,
    /// `delay` in milliseconds, at most 10,000.
    pub delay_ms: u32,
    /// `burst` in bytes.
    pub burst: u64,
    /// `profile FILE`: samples of extra delay as read from the file.
    pub profile: Option<Profile>,
    /// Its queue.
    pub queue: FlowSet,
    /// `type`, `sched_mask`.
    pub scheduler: Option<SchedulerParameters>,
}

/// An empirical distribution of extra delays (`profile FILE`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Profile {
    /// Its name in the file.
    pub name: String,
    /// `loss-level`: fraction of the samples past which a packet is lost.
    pub loss_level: f64,
    /// Delays in milliseconds, evenly spaced over the probability.
    pub samples_ms: Vec<u32>,
}

/// `queue N config`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueueConfig {
    /// Its number.
    pub number: u32,
    /// `pipe N` or `sched N`: whose scheduler serves it.
    pub scheduler: u32,
    /// `weight`, 1 to 100 (default 1); priority for PRIO.
    pub weight: u32,
    /// `lmax` of QFQ: longest packet.
    pub longest: u32,
    /// The queue itself.
    pub queue: FlowSet,
}

/// `sched N config`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchedulerConfig {
    /// Its number.
    pub number: u32,
    /// `pipe N`: the link it feeds; by default its own number's.
    pub pipe: Option<u32>,
    /// Kind and parameters.
    pub parameters: SchedulerParameters,
    /// Its own queue, which FIFO uses; its mask is that of the parameters.
    pub queue: FlowSet,
}

/// Kind of a scheduler, its mask and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchedulerParameters {
    /// `type`
    pub kind: SchedulerKind,
    /// `mask`, `sched_mask`: one instance for each combination.
    pub mask: FlowMask,
}

/// Kind of a scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum SchedulerKind {
    /// `fifo`
    Fifo,
    /// `wf2q+`
    Wf2qPlus,
    /// `qfq`
    Qfq,
    /// `rr`
    RoundRobin,
    /// `prio`
    Priority,
    /// `fq_codel`
    FqCodel(FqParameters, CodelParameters),
    /// `fq_pie`
    FqPie(FqParameters, PieParameters),
}

/// `quantum`, `limit`, `flows` of fq_codel and fq_pie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FqParameters {
    /// Bytes a round (default 1514).
    pub quantum: u32,
    /// Most packets in all flows (default 10240).
    pub limit: u32,
    /// Flow queues (default 1024).
    pub flows: u32,
}

/// Parameters of CoDel (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CodelParameters {
    /// `target` in microseconds (default 5 ms).
    pub target_us: u32,
    /// `interval` in microseconds (default 100 ms).
    pub interval_us: u32,
    /// `ecn`, `noecn`.
    pub ecn: bool,
}

/// Parameters of PIE (RFC 8033).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PieParameters {
    /// `target` in microseconds (default 15 ms).
    pub target_us: u32,
    /// `tupdate` in microseconds (default 15 ms).
    pub update_us: u32,
    /// `alpha` (default 0.125).
    pub alpha: f64,
    /// `beta` (default 1.25).
    pub beta: f64,
    /// `max_burst` in microseconds (default 150 ms).
    pub max_burst_us: u32,
    /// `max_ecnth`, 0 to 1 (default 0.1).
    pub max_ecn_threshold: f64,
    /// `ecn`, `noecn`.
    pub ecn: bool,
    /// `capdrop`, `nocapdrop`.
    pub cap_drop: bool,
    /// `drand`, `nodrand`.
    pub derandomize: bool,
    /// `onoff`.
    pub on_off: bool,
    /// `dre`, `ts`: whether the queue delay is taken from the departure rate or from time stamps.
    pub departure_rate: bool,
}

/// A queue: its bound, its dropping and its mask.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSet {
    /// Bound (default 50 slots).
    pub size: QueueSize,
    /// `plr`: chance of losing a packet at random, 0 to 1.
    pub loss_rate: f64,
    /// `mask`: one queue for each combination.
    pub mask: FlowMask,
    /// `buckets` of the hash table of queues (accepted, printed; ours grows by itself).
    pub buckets: u32,
    /// `noerror`: a dropped local packet is no error for its sender.
    pub no_error: bool,
    /// Dropping before the bound.
    pub management: QueueManagement,
}

impl FlowSet {
    /// 50 slots, dropped at the end, one queue for all.
    pub const PLAIN: FlowSet = FlowSet {
        size: QueueSize::Slots(50),
        loss_rate: 0.0,
        mask: FlowMask::NONE,
        buckets: 1,
        no_error: false,
        management: QueueManagement::DropTail,
    };
}

impl Default for FlowSet {
    fn default() -> Self {
        FlowSet::PLAIN
    }
}

/// Bound of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum QueueSize {
    /// Packets.
    Slots(u32),
    /// Bytes.
    Bytes(u32),
}

/// Active queue management.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum QueueManagement {
    /// `droptail`
    DropTail,
    /// `red w_q/min_th/max_th/max_p`
    Red(RedParameters),
    /// `gred ...`
    Gred(RedParameters),
    /// `codel ...`
    Codel(CodelParameters),
    /// `pie ...`
    Pie(PieParameters),
}

/// `w_q/min_th/max_th/max_p [ecn]`, thresholds in the unit of the queue's size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RedParameters {
    /// Weight of the average, 0 to 1.
    pub weight: f64,
    /// Lower threshold.
    pub minimum: u32,
    /// Upper threshold.
    pub maximum: u32,
    /// Chance of a drop at the upper threshold, 0 to 1.
    pub probability: f64,
    /// `ecn`: mark instead of dropping where the sender can.
    pub ecn: bool,
}

/// Which bits of a flow's identity tell queues apart; all zero is one queue for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FlowMask {
    /// Protocol.
    pub protocol: u8,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// IPv4 source.
    pub source4: u32,
    /// IPv4 destination.
    pub destination4: u32,
    /// IPv6 source.
    pub source6: Ipv6Addr,
    /// IPv6 destination.
    pub destination6: Ipv6Addr,
    /// IPv6 flow label.
    pub flow_id: u32,
    /// Number of the queue that a packet was sent to (`mask queue`, schedulers only).
    pub extra: u32,
}

impl FlowMask {
    /// One queue for all.
    pub const NONE: FlowMask = FlowMask {
        protocol: 0,
        source_port: 0,
        destination_port: 0,
        source4: 0,
        destination4: 0,
        source6: Ipv6Addr::UNSPECIFIED,
        destination6: Ipv6Addr::UNSPECIFIED,
        flow_id: 0,
        extra: 0,
    };
}
