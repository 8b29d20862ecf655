//! The command line: what can be asked (this file), and what is done about it ([`commands`]).

#![forbid(unsafe_code)]

pub mod commands;
pub mod duration;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use commands::{Program, dispatch};

use crate::control::DEFAULT_SOCKET;
use crate::{log, pktgen, top};

/// Where the configuration is unless asked otherwise.
pub const DEFAULT_CONFIG: &str = "/etc/ferrule/gateway.toml";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "ferrule",
    version,
    about = "A software router for a two-NIC gateway box",
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        ferrule compare                               what forwarding and filters cost here, without root or a NIC\n  \
        sudo ferrule lab demo                         see it forward between two namespaces\n  \
        ferrule check /etc/ferrule/gateway.toml       is the file right?\n  \
        sudo ferrule run /etc/ferrule/gateway.toml    the gateway\n  \
        ferrule top                                   what it does now\n\n\
        Exit codes: 0 done, 1 failed while running, 2 bad usage or bad input (nothing was touched)."
)]
pub struct Cli {
    /// For every command.
    #[command(flatten)]
    pub common: Common,
    /// Which one.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Print JSON instead of text
    #[arg(long, global = true, help_heading = "Common options")]
    pub json: bool,
    /// Control socket of the daemon
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_SOCKET, help_heading = "Common options")]
    pub socket: PathBuf,
    /// Least severe messages to write to standard error
    #[arg(long, global = true, value_name = "LEVEL", value_enum, default_value_t = LogLevel::Info, help_heading = "Common options")]
    pub log: LogLevel,
}

/// Values of `--log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what is not as it should be.
    Warning,
    /// And changes.
    Notice,
    /// And what it is doing.
    Info,
    /// Everything.
    Debug,
}

impl From<LogLevel> for log::Level {
    fn from(level: LogLevel) -> log::Level {
        match level {
            LogLevel::Error => log::Level::Error,
            LogLevel::Warning => log::Level::Warning,
            LogLevel::Notice => log::Level::Notice,
            LogLevel::Info => log::Level::Info,
            LogLevel::Debug => log::Level::Debug,
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the gateway in the foreground
    Run(RunArgs),
    /// Check a configuration file without touching anything
    Check(CheckArgs),
    /// Look for what will hurt: offloads, queues, MTUs, capabilities, cores; and say what to type
    Doctor(DoctorArgs),
    /// Show the running gateway's ports, routes, neighbors, workers, drops or statistics
    Show(ShowArgs),
    /// The firewall's command, as FreeBSD's ipfw(8)
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  sudo ferrule ipfw -a list\n  sudo ferrule ipfw add 500 deny tcp from any to any 23 in\n  \
                      ferrule ipfw -n rules.txt    checks a file of commands, without a gateway"
    )]
    Ipfw(ArgumentsAsTheyAre),
    /// Read and set the firewall's variables (net.inet.ip.fw.*)
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  ferrule sysctl net.inet.ip.fw.one_pass\n  sudo ferrule sysctl net.inet.ip.fw.one_pass=0"
    )]
    Sysctl(ArgumentsAsTheyAre),
    /// Read the configuration again and put it in force
    Reload(ReloadArgs),
    /// Put a configuration in force, to be taken back unless confirmed
    Apply(ApplyArgs),
    /// Keep what the last `apply --confirm` brought
    #[command(
        after_help = "Example:\n  ferrule apply --confirm 60s new.toml && ping -c 3 192.0.2.1 && ferrule confirm"
    )]
    Confirm,
    /// Drain and end the running gateway
    Stop(StopArgs),
    /// Give the NICs that a closed end or a kill left back to the kernel
    Restore(RestoreArgs),
    /// Live rates, drops, busy share of the cores and cycles per stage
    Top(top::TopArgs),
    /// Send or receive test packets with the flags of netmap's pkt-gen
    #[command(name = "pkt-gen")]
    PktGen(Box<pktgen::PktGenArgs>),
    /// A test network of namespaces A - B - C with the gateway in B
    Lab(LabArgs),
    /// Measure forwarding between memory ports on one core
    Compare(CompareArgs),
    /// The privileged helper of a running daemon
    #[command(hide = true)]
    Helper,
    /// Drop privileges as the daemon does and try what must then fail
    #[command(hide = true)]
    PrivilegeTest(PrivilegeTestArgs),
}

/// Arguments that are another program's own.
#[derive(Clone, Debug, Args)]
pub struct ArgumentsAsTheyAre {
    /// As that program takes them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    pub arguments: Vec<std::ffi::OsString>,
}

/// `ferrule run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  sudo ferrule run\n  sudo ferrule run ./gateway.toml\n\n\
    Signals: TERM and INT drain and end, HUP reloads, USR1 writes all counters to the log.")]
pub struct RunArgs {
    /// Configuration
    #[arg(value_name = "GATEWAY.TOML", default_value = DEFAULT_CONFIG)]
    pub config: PathBuf,
    /// Where it keeps what it needs to put the box back after a kill
    #[arg(long, value_name = "DIR", default_value = crate::daemon::STATE_DIRECTORY)]
    pub state_directory: PathBuf,
}

/// `ferrule check`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  ferrule check gateway.toml\n  ferrule check --print gateway.toml    with every default written out"
)]
pub struct CheckArgs {
    /// Print the configuration as it was understood, defaults included
    #[arg(long)]
    pub print: bool,
    /// Configuration
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `ferrule doctor`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  sudo ferrule doctor                    the running gateway\n  \
    sudo ferrule doctor gateway.toml       what would hurt if this were started")]
pub struct DoctorArgs {
    /// Look at what this configuration needs, instead of the running gateway
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `ferrule show`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  ferrule show ports\n  ferrule show routes --lookup 192.0.2.7\n  \
    ferrule show drops --all\n  ferrule show stats --json | jq .balance")]
pub struct ShowArgs {
    /// Write 12.3 M for 12345678
    #[arg(short = 'H', long, global = true)]
    pub human: bool,
    /// What
    #[command(subcommand)]
    pub what: Show,
}

/// What `ferrule show` shows.
#[derive(Clone, Debug, Subcommand)]
pub enum Show {
    /// Ports: driver, mode, queues, packets, bytes, copies and losses
    Ports,
    /// Routes in force
    Routes {
        /// Only IPv4
        #[arg(short = '4', conflicts_with = "ipv6")]
        ipv4: bool,
        /// Only IPv6
        #[arg(short = '6')]
        ipv6: bool,
        /// Only the route that a packet to this address takes
        #[arg(long, value_name = "ADDRESS")]
        lookup: Option<std::net::IpAddr>,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// Neighbours of the next hops in use
    Neighbors,
    /// Workers: core, busy share, packets, cycles per packet of each node
    Workers,
    /// Drops by reason
    Drops {
        /// Reasons that never happened, too
        #[arg(long)]
        all: bool,
    },
    /// Everything, in the manner of netstat -s
    Stats,
}

/// `ferrule reload`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  sudo ferrule reload\n  sudo ferrule reload /etc/ferrule/night.toml\n\n\
    A file with an error changes nothing: the old configuration stays in force.")]
pub struct ReloadArgs {
    /// Another file than the one in force
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `ferrule apply`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo ferrule apply --confirm 60s new.toml    then `ferrule confirm` within a minute\n  \
    sudo ferrule apply new.toml"
)]
pub struct ApplyArgs {
    /// Go back to the old configuration unless `ferrule confirm` comes within this time (60s, 5m)
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub confirm: Option<Duration>,
    /// Configuration
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `ferrule stop`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:\n  sudo ferrule stop --wait 10s")]
pub struct StopArgs {
    /// How long to wait for it to drain
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "30s")]
    pub wait: Duration,
}

/// `ferrule restore`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo ferrule stop && sudo ferrule restore      all of them\n  sudo ferrule restore eth0\n\n\
    Name, addresses, routes and settings come back as the first start found them. A running gateway is not touched: stop it first."
)]
pub struct RestoreArgs {
    /// Ports by the names of their devices; all unless named
    #[arg(value_name = "DEVICE")]
    pub names: Vec<String>,
    /// Where the records are
    #[arg(long, value_name = "DIR", default_value = crate::daemon::STATE_DIRECTORY)]
    pub state_directory: PathBuf,
}

/// `ferrule lab`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo ferrule lab demo\n  sudo ferrule lab up --queues 2 --mtu 9000 --driver packet\n  \
    sudo ferrule lab exec a ping -c 3 198.19.10.2\n  sudo ferrule lab down"
)]
pub struct LabArgs {
    /// Name of the lab, so that several can be up
    #[arg(long, global = true, default_value = crate::lab::command::DEFAULT_NAME)]
    pub name: String,
    /// Directory of its state file
    #[arg(long, global = true, value_name = "DIR", default_value = crate::lab::DEFAULT_DIRECTORY)]
    pub directory: PathBuf,
    /// What
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What `ferrule lab` does.
#[derive(Clone, Debug, Subcommand)]
pub enum LabCommand {
    /// Make namespaces A - B - C and run the gateway in B
    Up(LabOptions),
    /// Remove what `up` made, and nothing else
    Down,
    /// Run a command in the namespace of a host
    Exec {
        /// a, b, c; a2, c2, ... with several hosts
        host: String,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Show ping, a TCP transfer and an HTTP download through the gateway, with its counters moving
    Demo(LabOptions),
}

/// How the lab is to be.
#[derive(Clone, Debug, Args)]
pub struct LabOptions {
    /// Hosts on each side
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub hosts: u16,
    /// Queue pairs of each veth
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// MTU of all links
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=16114))]
    pub mtu: u32,
    /// Without IPv6
    #[arg(long)]
    pub no_ipv6: bool,
    /// What forwards in B
    #[arg(long, value_enum, default_value_t = LabRouter::Auto)]
    pub driver: LabRouter,
    /// Let super-packets through whole (driver packet)
    #[arg(long)]
    pub offload: bool,
}

/// What forwards in the lab's B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LabRouter {
    /// Ferrule with the best driver for veth.
    Auto,
    /// Ferrule over AF_XDP.
    Xdp,
    /// Ferrule over AF_PACKET.
    Packet,
    /// The Linux kernel's own forwarding, as the baseline.
    Kernel,
}

/// `ferrule compare`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  ferrule compare\n  ferrule compare --all --seed 7\n  \
    ferrule compare --only mixed --runs 9 --core 1 --json\n\n\
    No root and no NIC are needed: generator, forwarding and sink share one core over memory ports.")]
pub struct CompareArgs {
    /// Runs, of which the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Packets in each run
    #[arg(long, value_name = "N")]
    pub packets: Option<u64>,
    /// Core to run on
    #[arg(long, value_name = "CORE")]
    pub core: Option<usize>,
    /// The large sets too: a million states, a million prefixes, each kind of mixed rules
    #[arg(long)]
    pub all: bool,
    /// Beside plain forwarding only sets whose name holds this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Seed of mixed rules and tables; another one each time unless given
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// `ferrule privilege-test`.
#[derive(Clone, Debug, Args)]
pub struct PrivilegeTestArgs {
    /// User to become
    #[arg(long, default_value = "nobody")]
    pub user: String,
    /// A directory that stays readable
    #[arg(long)]
    pub read: Vec<PathBuf>,
}

#[cfg(test)]
mod tests;
