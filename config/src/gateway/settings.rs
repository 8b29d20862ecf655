#![forbid(unsafe_code)]
//! What the sections `[gateway]`, `[control]`, `[host]`, `[icmp]` and `[limits]` say.

use crate::span::Located;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Longest path of a unix socket in bytes: `sun_path` holds 108 with the final zero (unix(7)).
pub const SOCKET_PATH_MAX: usize = 107;
/// What [`Engine::batch`] may be, in packets.
pub const BATCH: RangeInclusive<u16> = 1..=256;
/// What [`Engine::workers`] may be.
pub const WORKERS: RangeInclusive<u16> = 1..=256;
/// What a CPU number may be: those of a `cpu_set_t` (sched_setaffinity(2)).
pub const CORE: RangeInclusive<u16> = 0..=1023;
/// What [`Engine::buffers`] may be.
pub const BUFFERS: RangeInclusive<u32> = 1024..=4_194_304;
/// What the device-polling clock may be, in ticks a second.
pub const HZ: RangeInclusive<u32> = 50..=50_000;
/// What [`Engine::watchdog`] may be.
pub const WATCHDOG: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// What a punt rate may be, in packets a second.
pub const PUNT_RATE: RangeInclusive<u32> = 1..=10_000_000;
/// What [`Host::neighbor_queue`] may be, in packets.
pub const NEIGHBOR_QUEUE: RangeInclusive<u16> = 1..=16;
/// What [`Host::neighbor_limit`] may be.
pub const NEIGHBOR_LIMIT: RangeInclusive<u32> = 1..=65_536;
/// What [`Icmp::rate`] may be, in errors a second.
pub const ICMP_RATE: RangeInclusive<u32> = 0..=1_000_000;
/// What [`Icmp::burst`] may be, in errors.
pub const ICMP_BURST: RangeInclusive<u32> = 1..=100_000;
/// What a limit on routes may be.
pub const ROUTES: RangeInclusive<u32> = 1..=16_777_216;
/// What a limit on adjacencies may be.
pub const ADJACENCIES: RangeInclusive<u32> = 1..=1_048_576;

/// What happens to the ports when the gateway ends or dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExit {
    /// `"closed"`: nothing passes until it runs again.
    #[default]
    Closed,
    /// `"kernel"`: the kernel gets its devices back and may forward.
    Kernel,
}

/// Where a received packet is processed (FreeBSD's `net.isr.dispatch`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dispatch {
    /// `"direct"`: the worker that received it runs it to completion.
    #[default]
    Direct,
    /// `"queued"`: it is handed to another thread through a queue.
    Queued,
}

/// How a worker waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poll {
    /// `"busy"`: never sleeps; the core is always fully used.
    Busy,
    /// `"adaptive"`: spins while there is work, sleeps when idle and wakes on the first packet.
    #[default]
    Adaptive,
    /// `"interrupt"`: sleeps between batches.
    Interrupt {
        /// `hz`: look at the rings this often a second (device polling, polling(4)) instead of waking on packets.
        hz: Option<u32>,
    },
}

/// Whether packet memory comes from 2 MiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// `"prefer"`: if the kernel has some.
    #[default]
    Prefer,
    /// `"require"`: else the start is refused.
    Require,
    /// `"off"`: never.
    Off,
}

/// The section `[gateway]`: the engine as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Engine {
    /// `name`: what the gateway calls itself in metrics and prompts: 1 to 64 letters, digits, `.`, `-`, `_`.
    /// Default: the host's name.
    pub name: Option<Located<String>>,
    /// `on_exit = "closed" | "kernel"`. Default closed.
    pub on_exit: Located<OnExit>,
    /// `dispatch = "direct" | "queued"`. Default direct.
    pub dispatch: Dispatch,
    /// `fastforward = true | false`. False: the full input and forward way, one packet at a time
    /// (FreeBSD's `net.inet.ip.fastforwarding = 0`). Default true.
    pub fastforward: bool,
    /// `poll = "busy" | "adaptive" | "interrupt"`, with `hz = 50..=50000` for the last. Default adaptive.
    pub poll: Located<Poll>,
    /// `batch`: most packets taken from a queue at once, 1 to 256. Default 256.
    pub batch: u16,
    /// `workers`: polling threads, 1 to 256; worker i reads queue i (mod workers) of each port. Default: as many as
    /// `cores`, else as the port with the most queues has.
    pub workers: Option<Located<u16>>,
    /// `cores`: the CPU of each worker, 0 to 1023, none twice, as many as `workers`. Empty: chosen by the program.
    pub cores: Vec<Located<u16>>,
    /// `buffers`: packet buffers in the arena, 1024 to 4194304. Default 65536.
    pub buffers: Located<u32>,
    /// `hugepages = "prefer" | "require" | "off"`. Default prefer.
    pub hugepages: Located<HugePages>,
    /// `watchdog`: a worker without a sign of life for this long is named, `"100ms"` to `"1h"`, or `"off"`.
    /// Default `"5s"`.
    pub watchdog: Option<Duration>,
    /// `user`: whom to become after the ports are open. Default: `nobody` when started as root.
    pub user: Option<Located<String>>,
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            name: None,
            on_exit: OnExit::Closed.into(),
            dispatch: Dispatch::Direct,
            fastforward: true,
            poll: Poll::Adaptive.into(),
            batch: 256,
            workers: None,
            cores: Vec::new(),
            buffers: 65_536.into(),
            hugepages: HugePages::Prefer.into(),
            watchdog: Some(Duration::from_secs(5)),
            user: None,
        }
    }
}

/// The section `[control]`: who may look and who may change things.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// `socket`: absolute path of the control socket, at most 107 bytes. Default `/run/ferrule/control.sock`.
    pub socket: Located<PathBuf>,
    /// `write_group`: a group that may change things, beside root. Default: none.
    pub write_group: Option<Located<String>>,
    /// `read_group`: a group that may look. Default: none.
    pub read_group: Option<Located<String>>,
    /// `metrics`: loopback address and port of the Prometheus listener. Default: no listener.
    pub metrics: Option<Located<SocketAddr>>,
}

impl Default for Control {
    fn default() -> Self {
        let socket = PathBuf::from("/run/ferrule/control.sock").into();
        Self { socket, write_group: None, read_group: None, metrics: None }
    }
}

/// `punt_rate`: packets a second that each class may bring to the host, 1 to 10000000; the rest is dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PuntRate {
    /// ARP and neighbour discovery. Default 1000.
    pub neighbor: u32,
    /// Routing protocols (OSPF, BGP, RIP, BFD and the like). Default 2000.
    pub routing: u32,
    /// DHCP and DHCPv6. Default 200.
    pub dhcp: u32,
    /// Everything else to the box. Default 50000.
    pub other: u32,
}

impl Default for PuntRate {
    fn default() -> Self {
        Self { neighbor: 1000, routing: 2000, dhcp: 200, other: 50_000 }
    }
}

/// The section `[host]`: the way to the kernel's stack, and neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// `enabled`: the kernel is the control plane: addresses, routes and neighbours are its own. False: standalone,
    /// they stand in this file. Default true.
    pub enabled: Located<bool>,
    /// `dhcp_bypass`: DHCP client traffic to the port's MAC reaches the host before the filters, as BPF does on
    /// FreeBSD. Default true. Needs the host.
    pub dhcp_bypass: bool,
    /// `punt_rate = { neighbor, routing, dhcp, other }`. Needs the host.
    pub punt_rate: PuntRate,
    /// `neighbor_queue`: packets held for each neighbour that is being resolved, 1 to 16. Default 4.
    pub neighbor_queue: u16,
    /// `neighbor_limit`: neighbours being resolved at a time, 1 to 65536. Default 1024.
    pub neighbor_limit: u32,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            enabled: true.into(),
            dhcp_bypass: true,
            punt_rate: PuntRate::default(),
            neighbor_queue: 4,
            neighbor_limit: 1024,
        }
    }
}

/// The section `[icmp]`: the limit on ICMP errors that the gateway makes itself (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// `rate`: errors a second, 0 (none at all) to 1000000. Default 1000.
    pub rate: u32,
    /// `burst`: errors at once, 1 to 100000. Default 100.
    pub burst: u32,
}

impl Default for Icmp {
    fn default() -> Self {
        Self { rate: 1000, burst: 100 }
    }
}

/// The section `[limits]`: sizes of tables. None: the data plane's own default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits {
    /// `ipv4_routes`: 1 to 16777216.
    pub ipv4_routes: Option<Located<u32>>,
    /// `ipv6_routes`: 1 to 16777216.
    pub ipv6_routes: Option<Located<u32>>,
    /// `adjacencies`: resolved next hops, 1 to 1048576.
    pub adjacencies: Option<Located<u32>>,
}
