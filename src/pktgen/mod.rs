//! `ferrule pkt-gen`: sends and receives test packets over any port driver, with the flags and the output of netmap's pkt-gen(8).
//!
//! What differs: -R is the rate of all threads together, -n is met exactly with several threads, IPv6 ranges run over whole
//! addresses, -z and -Z stay within a range where one is given, and `min_space` is the smallest number of free buffers.

#![forbid(unsafe_code)]

pub mod device;
pub mod engine;
pub mod null;
pub mod pacer;
pub mod range;
pub mod report;
pub mod template;
pub mod traffic;

use std::any::Any;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use ferrule_dataplane::arena::Pool;
use ferrule_dataplane::port::QueuePair;

use crate::failure::Failure;
use range::Range;
use template::FrameSpec;

/// `ferrule pkt-gen`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    sudo ferrule pkt-gen -i eth0 -f tx -d 10.1.0.1 -D 02:00:00:00:00:02\n  \
    sudo ferrule pkt-gen -i packet:eth0 -f rx -W\n  \
    sudo ferrule pkt-gen -i xdp:eth0 -f tx -l 60 -n 5000 -s 10.0.0.1:2000-10.0.0.5:2999 -d 10.1.0.1\n  \
    sudo ferrule pkt-gen -i eth0 -f tx -6 -s '[fd00::1]:7' -d '[fd00:1::1]:7' -R 100000 -T 500\n  \
    sudo ferrule pkt-gen -i eth0 -f ping -n 10 -R 1     with -f pong at the other end\n  \
    ferrule pkt-gen -i null -f tx -n 10000000 -w 0      how fast frames are made, without a device")]
pub struct PktGenArgs {
    /// Device: NAME, or DRIVER:NAME with auto, xdp, packet, tap or netmap; `null` for none at all
    #[arg(short = 'i', value_name = "IF")]
    pub interface: String,
    /// What to do
    #[arg(short = 'f', value_enum, value_name = "FUNCTION", default_value_t = Function::Rx)]
    pub function: Function,
    /// Packets to send or receive; 0 is without end
    #[arg(short = 'n', value_name = "COUNT", default_value_t = 0)]
    pub count: u64,
    /// Frame size in bytes without CRC; given twice, sizes are random from the second to below the first
    #[arg(short = 'l', value_name = "SIZE", action = ArgAction::Append)]
    pub size: Vec<usize>,
    /// Packets at a time
    #[arg(short = 'b', value_name = "BURST")]
    pub burst: Option<usize>,
    /// IPv4 (the default)
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// IPv6
    #[arg(short = '6')]
    pub ipv6: bool,
    /// Destination addresses and ports
    #[arg(
        short = 'd',
        value_name = "DST",
        help = "Destination addresses and ports: ADDR[:PORT][-ADDR[:PORT]]; IPv6 with a port as [ADDR]:PORT"
    )]
    pub destination: Option<String>,
    /// Source addresses and ports, likewise
    #[arg(short = 's', value_name = "SRC")]
    pub source: Option<String>,
    /// Destination MAC address
    #[arg(short = 'D', value_name = "MAC", default_value = "ff:ff:ff:ff:ff:ff", value_parser = range::mac)]
    pub destination_mac: [u8; 6],
    /// Source MAC address; the device's own if not given
    #[arg(short = 'S', value_name = "MAC", value_parser = range::mac)]
    pub source_mac: Option<[u8; 6]>,
    /// Random source address and port
    #[arg(short = 'z')]
    pub random_source: bool,
    /// Random destination address and port
    #[arg(short = 'Z')]
    pub random_destination: bool,
    /// Packets a second, all threads together; 0 is as fast as possible
    #[arg(short = 'R', value_name = "RATE", default_value_t = 0)]
    pub rate: u64,
    /// Milliseconds between reports
    #[arg(short = 'T', value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub report_ms: u64,
    /// Seconds to wait for the link before starting
    #[arg(short = 'w', value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub wait: u64,
    /// Threads; tx: each with a queue of its own
    #[arg(short = 'p', value_name = "THREADS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// Pin the first thread to this core, the others to those after it
    #[arg(short = 'a', value_name = "CORE")]
    pub core: Option<usize>,
    /// Cores to use with -a; 0 is all
    #[arg(short = 'c', value_name = "CORES", default_value_t = 1)]
    pub cores: usize,
    /// Plain numbers: pps and bps in place of Mpps and Gbps
    #[arg(short = 'N')]
    pub no_units: bool,
    /// rx: end when nothing has come for a second after the first packet
    #[arg(short = 'W')]
    pub end_when_idle: bool,
    /// Mean and standard deviation over the last fifteen reports
    #[arg(short = 'A')]
    pub averages: bool,
    /// Count CRC, preamble and gap (24 bytes) as bandwidth
    #[arg(short = 'B')]
    pub framing: bool,
    /// rx: count only pkt-gen's own packets
    #[arg(long)]
    pub own: bool,
}

/// What pkt-gen does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Function {
    /// Send
    Tx,
    /// Receive
    Rx,
    /// Send and time what comes back
    Ping,
    /// Send back what comes in
    Pong,
}

/// Which driver opens the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// The best that the device supports.
    Auto,
    /// AF_XDP.
    Xdp,
    /// AF_PACKET.
    Packet,
    /// TAP.
    Tap,
    /// netmap.
    Netmap,
    /// No device: what is sent is gone, nothing is received.
    Null,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Driver::Auto => "auto",
            Driver::Xdp => "xdp",
            Driver::Packet => "packet",
            Driver::Tap => "tap",
            Driver::Netmap => "netmap",
            Driver::Null => "null",
        })
    }
}

/// Reads `xdp:eth0`.
///
/// # Errors
/// When the driver is not known or the name is empty or too long for a device.
pub fn interface(text: &str) -> Result<(Driver, &str), String> {
    if text == "null" {
        return Ok((Driver::Null, "null"));
    }
    let (driver, name) = match text.split_once(':') {
        None => (Driver::Auto, text),
        Some(("auto", name)) => (Driver::Auto, name),
        Some(("xdp", name)) => (Driver::Xdp, name),
        Some(("packet", name)) => (Driver::Packet, name),
        Some(("tap", name)) => (Driver::Tap, name),
        Some(("netmap", name)) => (Driver::Netmap, name),
        Some((other, _)) => return Err(format!("`{other}:` is no driver: use auto:, xdp:, packet:, tap: or netmap:")),
    };
    // IFNAMSIZ is 16 with the final NUL (net/if.h).
    if name.is_empty() || name.len() > 15 { Err(format!("`{name}` is no device name")) } else { Ok((driver, name)) }
}

/// What pkt-gen wants of a device.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Driver.
    pub driver: Driver,
    /// Name.
    pub device: &'a str,
    /// Pools to split the arena into: one for each thread.
    pub pools: usize,
    /// Whether every receive queue is to be opened (rx, ping, pong), or only as many queues as there are pools (tx).
    pub all_queues: bool,
    /// Longest frame that will be sent; 0 when none is.
    pub longest: usize,
}

/// An open device.
pub struct Opened {
    /// What it is, for people: `xdp (native, copy)`.
    pub driver: String,
    /// Why, where `auto` chose.
    pub why: String,
    /// Queue pairs that the device has.
    pub device_queues: usize,
    /// Its MAC address.
    pub mac: Option<[u8; 6]>,
    /// Longest IP packet in bytes.
    pub mtu: usize,
    /// The open queues.
    pub queues: Vec<QueuePair>,
    /// As many as asked for, all of one arena.
    pub pools: Vec<Pool>,
    /// Whatever has to live as long as the queues (and puts the device back when dropped).
    pub guard: Box<dyn Any>,
}

/// Opens devices: the program gives one that knows the drivers it was built with.
pub trait Opener {
    /// Opens a device.
    ///
    /// # Errors
    /// [`Failure::Input`] when there is no such device or driver, [`Failure::Runtime`] when the kernel refuses.
    fn open(&self, wanted: &Wanted<'_>) -> Result<Opened, Failure>;
}

/// What the arguments come to, checked.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What to do.
    pub function: Function,
    /// Frames, but for the MAC addresses that the device may still give.
    pub spec: FrameSpec,
    /// The source MAC address as given.
    pub source_mac: Option<[u8; 6]>,
    /// Random sizes from .0 to below .1.
    pub sizes: Option<(usize, usize)>,
    /// Packets at a time.
    pub burst: usize,
    /// None: without end.
    pub count: Option<u64>,
    /// Packets a second of all threads; None: as fast as possible.
    pub rate: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Time between reports.
    pub interval: Duration,
    /// Time before the start.
    pub wait: Duration,
}

/// Most packets at a time.
const BURST_MAX: usize = 4096;

impl Plan {
    /// Checks the arguments.
    ///
    /// # Errors
    /// [`Failure::Input`] with what is wrong.
    pub fn new(args: &PktGenArgs) -> Result<Plan, Failure> {
        let v6 = args.ipv6;
        let (default_source, default_destination) =
            if v6 { ("fd00::1", "fd00:1::1") } else { ("10.0.0.1", "10.1.0.1") };
        let range = |flag: &str, given: &Option<String>, default: &str| {
            let text = given.as_deref().unwrap_or(default);
            Range::parse(text, v6).map_err(|e| Failure::input(format!("pkt-gen {flag}: {e}")))
        };
        let smallest = template::smallest(v6);
        // 60 holds pkt-gen's magic in IPv4; in IPv6 it takes 16 more.
        let size = args.size.first().copied().unwrap_or(if v6 { 76 } else { 60 });
        let needed = if args.function == Function::Ping { smallest + 12 } else { smallest };
        for s in &args.size {
            if !(needed..=65_535 + 14).contains(s) {
                return Err(Failure::input(format!("pkt-gen -l: {s} is not between {needed} and 65549 bytes")));
            }
        }
        let sizes = match args.size[..] {
            [] | [_] => None,
            [high, low] if low <= high => Some((low, high)),
            [high, low] => {
                return Err(Failure::input(format!("pkt-gen -l: the second size ({low}) is above the first ({high})")));
            }
            _ => return Err(Failure::input("pkt-gen -l: give at most two sizes")),
        };
        let default_burst = if matches!(args.function, Function::Ping | Function::Pong) { 1 } else { 512 };
        let burst = args.burst.unwrap_or(default_burst);
        if !(1..=BURST_MAX).contains(&burst) {
            return Err(Failure::input(format!("pkt-gen -b: {burst} is not between 1 and {BURST_MAX}")));
        }
        if args.threads > 1 && matches!(args.function, Function::Ping | Function::Pong) {
            return Err(Failure::input("pkt-gen -p: ping and pong use one thread"));
        }
        Ok(Plan {
            function: args.function,
            spec: FrameSpec {
                size,
                source: range("-s", &args.source, default_source)?,
                destination: range("-d", &args.destination, default_destination)?,
                source_mac: args.source_mac.unwrap_or_default(),
                destination_mac: args.destination_mac,
                random_source: args.random_source,
                random_destination: args.random_destination,
            },
            source_mac: args.source_mac,
            sizes,
            burst,
            count: (args.count > 0).then_some(args.count),
            rate: (args.rate > 0).then_some(args.rate),
            threads: args.threads as usize,
            interval: Duration::from_millis(args.report_ms),
            wait: Duration::from_secs(args.wait),
        })
    }
}

/// Runs pkt-gen until its count, its end, or Ctrl-C.
///
/// # Errors
/// [`Failure::Input`] for arguments and devices that are not there, [`Failure::Runtime`] for what fails on the way.
pub fn run(args: &PktGenArgs, json: bool, opener: &dyn Opener, out: &mut dyn Write) -> Result<(), Failure> {
    let mut plan = Plan::new(args)?;
    let (driver, device) = interface(&args.interface).map_err(|e| Failure::input(format!("pkt-gen -i: {e}")))?;
    let sends = matches!(plan.function, Function::Tx | Function::Ping);
    let wanted = Wanted {
        driver,
        device,
        pools: plan.threads,
        all_queues: plan.function != Function::Tx,
        longest: if sends { plan.spec.size } else { 0 },
    };
    let opened = if driver == Driver::Null { null::open(&wanted)? } else { opener.open(&wanted)? };
    if sends {
        if plan.spec.size > opened.mtu + 14 {
            let text = format!("a frame of {} bytes does not go through {device} (MTU {})", plan.spec.size, opened.mtu);
            return Err(Failure::input(format!("pkt-gen -l: {text}")));
        }
        plan.spec.source_mac = plan
            .source_mac
            .or(opened.mac)
            .ok_or_else(|| Failure::input(format!("{device} has no MAC address: give one with -S")))?;
    }
    if plan.threads > opened.queues.len() {
        let text = format!("pkt-gen -p: {} threads, but {device} has {} queues", plan.threads, opened.device_queues);
        return Err(Failure::input(text));
    }
    engine::run(&plan, args, opened, json, out)
}

#[cfg(test)]
mod tests;
