//! Facts about devices and host that decide how well forwarding works, the problems among them, and what to type.
//!
//! Reads only; safe to call at any time from any control thread. Files under /sys show the network namespace of the
//! mount, not of the thread: facts from there are left out when they do not fit the device.
#![forbid(unsafe_code)]

use super::error::KernelError;
pub use super::ethtool::Channels;
use super::ethtool::Ethtool;
use super::message::{IFINFOMSG, Link};
use super::socket::{Family, NetlinkSocket};
use super::sysctl;
use super::wire::Message;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;

/// Capabilities that Ferrule uses, by number in linux/capability.h.
const CAPABILITIES: [(u32, &str, &str); 5] = [
    (12, "cap_net_admin", "making TAPs, renaming NICs, nf_tables, AF_XDP"),
    (13, "cap_net_raw", "AF_PACKET and AF_XDP sockets"),
    (14, "cap_ipc_lock", "locking the packet memory"),
    (39, "cap_bpf", "loading the XDP redirect program"),
    (24, "cap_sys_resource", "raising the limit of locked memory"),
];
/// Locked memory that one UMEM with its rings may take, in bytes.
const MEMLOCK_NEEDED: u64 = 256 << 20;

/// What native XDP a driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpSupport {
    /// Native with zero-copy sockets.
    ZeroCopy,
    /// Native; sockets copy.
    Native,
    /// None: generic mode only.
    Generic,
    /// The kernel does not tell (before 6.3).
    Unknown,
}

/// An interrupt of a device and the cores it may be served on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupt {
    /// Its number in /proc/interrupts.
    pub number: u32,
    /// Its name there.
    pub name: String,
    /// Cores of its effective affinity.
    pub cores: Vec<usize>,
}

/// Facts about one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Interface name.
    pub name: String,
    /// Kernel index.
    pub ifindex: u32,
    /// Driver, or the kind of a virtual link.
    pub driver: Option<String>,
    /// Queue counts; none when the driver does not tell.
    pub channels: Option<Channels>,
    /// Queues that the device was made with: receive, transmit.
    pub queues: (u32, u32),
    /// Offloads that are on, by their names in `ethtool -k`.
    pub features: Option<BTreeSet<String>>,
    /// Offloads that cannot be changed.
    pub fixed_features: BTreeSet<String>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Set up.
    pub up: bool,
    /// Has a carrier.
    pub carrier: bool,
    /// XDP of the driver.
    pub xdp: XdpSupport,
    /// Receives multi-buffer frames with XDP (jumbo).
    pub xdp_multi_buffer: Option<bool>,
    /// Its interrupts.
    pub interrupts: Vec<Interrupt>,
}

/// A size of huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// Size of a page in KiB.
    pub size_kib: u64,
    /// Reserved pages.
    pub total: u64,
    /// Pages not in use.
    pub free: u64,
}

/// Facts about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// Kernel release.
    pub release: String,
    /// Cores that are online.
    pub cores: usize,
    /// Cores kept free of other tasks (isolcpus).
    pub isolated: Vec<usize>,
    /// Capabilities that this process has of those that Ferrule uses.
    pub capabilities: Vec<&'static str>,
    /// Those that it lacks, and what for.
    pub missing_capabilities: Vec<(&'static str, &'static str)>,
    /// Limit of locked memory in bytes; none is no limit.
    pub memlock: Option<u64>,
    /// Huge pages by size.
    pub huge_pages: Vec<HugePages>,
    /// /dev/net/tun can be opened.
    pub tun: bool,
}

/// Something to mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The device, or "host".
    pub subject: String,
    /// What is wrong and what it leads to.
    pub what: String,
    /// What to type.
    pub mend: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}\n    type: {}", self.subject, self.what, self.mend)
    }
}

impl From<super::Unsupported> for Problem {
    /// Names a rule or route that forwarding does not honour.
    fn from(unsupported: super::Unsupported) -> Self {
        let mend = if unsupported.what.starts_with("rule") {
            "ip rule show; then remove it, or write it as a rule of the filters".to_owned()
        } else {
            "ip route show table all; then lead the route through a port, or make the link a port".to_owned()
        };
        let what = format!("{}: {}", unsupported.what, unsupported.why);
        Problem { subject: "routing".to_owned(), what, mend }
    }
}

/// All facts, and the problems found in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The host.
    pub host: HostFacts,
    /// The devices asked for, in that order.
    pub devices: Vec<DeviceFacts>,
    /// What to mend.
    pub problems: Vec<Problem>,
}

/// Gathers facts about `names` and the host, for workers on the cores `workers`, as many as queues are read.
///
/// # Errors
/// [`KernelError::NoDevice`] for an unknown name; a failing netlink socket.
pub fn examine<S: AsRef<str>>(names: &[S], workers: &[usize]) -> Result<Report, KernelError> {
    let mut socket = NetlinkSocket::open(Family::Route, 0, 0)
        .map_err(|error| KernelError::netlink("opening a NETLINK_ROUTE socket", error))?;
    let message = Message::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG]);
    let mut links: Vec<Link> = Vec::new();
    socket
        .dump(&message, &mut links, Vec::clear, |links, frame| links.extend(Link::parse(frame)))
        .map_err(|error| KernelError::netlink("listing links", error))?;
    let mut ethtool = Ethtool::open()?;
    let host = host_facts();
    let mut devices = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let Some(link) = links.iter().find(|link| link.name == name) else {
            let existing = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(KernelError::NoDevice { name: name.to_owned(), existing });
        };
        devices.push(device_facts(link, &mut ethtool));
    }
    let mut problems = host_problems(&host);
    for device in &devices {
        problems.extend(device_problems(device, workers));
    }
    Ok(Report { host, devices, problems })
}

/// Does this process have CAP_NET_ADMIN?
pub fn has_net_admin() -> bool {
    effective_capabilities() & (1 << 12) != 0
}

/// The capabilities among those Ferrule uses that this process lacks: name and what it is for.
pub fn missing_capabilities() -> Vec<(&'static str, &'static str)> {
    let effective = effective_capabilities();
    let lacks = |number: u32, name: &str| {
        // capabilities(7): CAP_SYS_ADMIN includes what CAP_BPF allows.
        effective & (1 << number) == 0 && !(name == "cap_bpf" && effective & (1 << 21) != 0)
    };
    CAPABILITIES
        .into_iter()
        .filter(|(number, name, _)| lacks(*number, name))
        .map(|(_, name, why)| (name, why))
        .collect()
}

fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
}

fn host_facts() -> HostFacts {
    let effective = effective_capabilities();
    let (have, lack): (Vec<_>, Vec<_>) =
        CAPABILITIES.into_iter().partition(|(number, ..)| effective & (1 << number) != 0);
    let mut huge_pages = Vec::new();
    for entry in fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let size =
            name.strip_prefix("hugepages-").and_then(|rest| rest.strip_suffix("kB")).and_then(|n| n.parse().ok());
        let number = |file: &str| {
            fs::read_to_string(entry.path().join(file)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        if let Some(size_kib) = size {
            huge_pages.push(HugePages { size_kib, total: number("nr_hugepages"), free: number("free_hugepages") });
        }
    }
    huge_pages.sort_by_key(|pages| pages.size_kib);
    HostFacts {
        release: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        cores: core_list(&fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default()).len(),
        isolated: core_list(&fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap_or_default()),
        capabilities: have.into_iter().map(|(_, name, _)| name).collect(),
        missing_capabilities: lack.into_iter().map(|(_, name, purpose)| (name, purpose)).collect(),
        memlock: getrlimit(Resource::Memlock).current,
        huge_pages,
        tun: fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok(),
    }
}

fn device_facts(link: &Link, ethtool: &mut Ethtool) -> DeviceFacts {
    let directory = format!("/sys/class/net/{}", link.name);
    // A device of this name in another namespace has another index there.
    let in_sys =
        fs::read_to_string(format!("{directory}/ifindex")).is_ok_and(|text| text.trim().parse() == Ok(link.ifindex));
    let driver = fs::read_link(format!("{directory}/device/driver"))
        .ok()
        .filter(|_| in_sys)
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .or_else(|| link.kind.clone());
    let features = ethtool.features(link.ifindex);
    let xdp = ethtool.xdp_features(link.ifindex);
    DeviceFacts {
        name: link.name.clone(),
        ifindex: link.ifindex,
        driver,
        channels: ethtool.channels(link.ifindex),
        queues: link.queues,
        fixed_features: features.as_ref().map(|(_, fixed)| fixed.clone()).unwrap_or_default(),
        features: features.map(|(active, _)| active),
        mtu: link.mtu,
        up: link.is_up(),
        carrier: link.has_carrier(),
        // NETDEV_XDP_ACT_*: basic 1, redirect 2, xsk zero-copy 8, rx scatter-gather 32.
        xdp: match xdp {
            None => XdpSupport::Unknown,
            Some(bits) if bits & 3 != 3 => XdpSupport::Generic,
            Some(bits) if bits & 8 != 0 => XdpSupport::ZeroCopy,
            Some(_) => XdpSupport::Native,
        },
        xdp_multi_buffer: xdp.map(|bits| bits & 32 != 0),
        interrupts: if in_sys { interrupts(&directory, &link.name) } else { Vec::new() },
    }
}

/// Interrupts of a device: its MSI vectors, else those that carry its name in /proc/interrupts.
fn interrupts(directory: &str, name: &str) -> Vec<Interrupt> {
    let own: BTreeSet<u32> = fs::read_dir(format!("{directory}/device/msi_irqs"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .collect();
    let table = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let mut found = Vec::new();
    for line in table.lines().skip(1) {
        let Some((number, rest)) = line.split_once(':') else { continue };
        let Ok(number) = number.trim().parse::<u32>() else { continue };
        let label = rest.split_whitespace().last().unwrap_or_default();
        let named = label == name || label.starts_with(&format!("{name}-"));
        if !own.contains(&number) && !named {
            continue;
        }
        let affinity = |file: &str| fs::read_to_string(format!("/proc/irq/{number}/{file}")).ok();
        let cores = affinity("effective_affinity_list").or_else(|| affinity("smp_affinity_list")).unwrap_or_default();
        found.push(Interrupt { number, name: label.to_owned(), cores: core_list(&cores) });
    }
    found
}

/// Reads a list such as "0-2,5".
fn core_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

fn host_problems(host: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |what: String, mend: String| problems.push(Problem { subject: "host".to_owned(), what, mend });
    for (name, purpose) in &host.missing_capabilities {
        add(format!("{name} is missing: {purpose}"), format!("setcap {name}+ep $(command -v ferrule), or run as root"));
    }
    if let Some(limit) = host.memlock
        && limit < MEMLOCK_NEEDED
        && !host.capabilities.contains(&"cap_sys_resource")
    {
        add(
            format!("at most {} KiB may be locked, packet memory needs {}", limit >> 10, MEMLOCK_NEEDED >> 10),
            "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)".to_owned(),
        );
    }
    if !host.huge_pages.iter().any(|pages| pages.free > 0) {
        add(
            "no huge pages are free: small pages cost up to a quarter of the speed".to_owned(),
            "sysctl -w vm.nr_hugepages=128".to_owned(),
        );
    }
    if !host.tun {
        add("/dev/net/tun cannot be opened: no host interfaces".to_owned(), "modprobe tun".to_owned());
    }
    for (what, mend) in sysctl::overrides() {
        add(what, mend);
    }
    problems
}

fn device_problems(device: &DeviceFacts, workers: &[usize]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let name = &device.name;
    let mut add = |what: String, mend: String| problems.push(Problem { subject: name.clone(), what, mend });
    if !device.up {
        add("is down".to_owned(), format!("ip link set {name} up"));
    } else if !device.carrier {
        add("has no carrier".to_owned(), "plug in the cable, or set the other end up".to_owned());
    }
    let on = |feature: &str| device.features.as_ref().is_some_and(|features| features.contains(feature));
    for (feature, short, effect) in [
        ("rx-gro", "gro", "merged frames longer than the MTU arrive, which xdp and packet without offload drop"),
        ("rx-lro", "lro", "merged frames longer than the MTU arrive, and cannot be taken apart"),
        ("rx-gro-hw", "rx-gro-hw", "merged frames longer than the MTU arrive"),
        ("rx-vlan-hw-parse", "rxvlan", "VLAN tags are stripped before xdp sees them"),
    ] {
        if on(feature) && !device.fixed_features.contains(feature) {
            add(format!("{feature} is on: {effect}"), format!("ethtool -K {name} {short} off"));
        }
    }
    let receive = device.channels.map_or(device.queues.0, |channels| channels.receive_queues());
    let readers = workers.len() as u32;
    if readers > 0 && receive > readers {
        add(
            format!("{receive} receive queues, {readers} readers: some queue is read by no worker of its own"),
            format!("ethtool -L {name} combined {readers} (or rx {readers} tx {readers}), or more workers"),
        );
    }
    match device.xdp {
        XdpSupport::Generic => add(
            format!("driver {} has no native XDP: generic mode", device.driver.as_deref().unwrap_or("?")),
            "driver = \"packet\" in gateway.toml is often faster".to_owned(),
        ),
        XdpSupport::Unknown | XdpSupport::Native | XdpSupport::ZeroCopy => {}
    }
    if device.mtu > 3506 && device.xdp_multi_buffer == Some(false) {
        add(
            format!("MTU {} does not fit one XDP buffer and the driver has no multi-buffer XDP", device.mtu),
            format!("ip link set {name} mtu 3500, or driver = \"packet\""),
        );
    }
    for interrupt in &device.interrupts {
        if let Some(core) = interrupt.cores.iter().find(|core| workers.contains(core)) {
            let free = (0..64).find(|core| !workers.contains(core)).unwrap_or(0);
            add(
                format!(
                    "interrupt {} ({}) is served on core {core}, where a worker spins",
                    interrupt.number, interrupt.name
                ),
                format!("echo {free} > /proc/irq/{}/smp_affinity_list", interrupt.number),
            );
        }
    }
    problems
}

impl Report {
    /// The report as lines of text: facts first, then problems with what to type.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.facts();
        lines.extend(self.problems.iter().map(ToString::to_string));
        lines
    }

    /// The facts as lines of text.
    pub fn facts(&self) -> Vec<String> {
        let host = &self.host;
        let memlock = host.memlock.map_or_else(|| "unlimited".to_owned(), |limit| format!("{} KiB", limit >> 10));
        let mut lines = vec![
            format!(
                "host: Linux {}, {} cores, isolated {:?}, memlock {memlock}",
                host.release, host.cores, host.isolated
            ),
            format!("host: capabilities {}", host.capabilities.join(" ")),
        ];
        for pages in &host.huge_pages {
            lines.push(format!("host: huge pages of {} KiB: {} free of {}", pages.size_kib, pages.free, pages.total));
        }
        for device in &self.devices {
            let receive = device.channels.map_or(device.queues.0, |channels| channels.receive_queues());
            lines.push(format!(
                "{}: driver {}, {receive} receive queues, MTU {}, {}, carrier {}, XDP {:?}",
                device.name,
                device.driver.as_deref().unwrap_or("unknown"),
                device.mtu,
                if device.up { "up" } else { "down" },
                if device.carrier { "yes" } else { "no" },
                device.xdp,
            ));
            for interrupt in &device.interrupts {
                lines.push(format!(
                    "{}: interrupt {} ({}) on cores {:?}",
                    device.name, interrupt.number, interrupt.name, interrupt.cores
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceFacts {
        DeviceFacts {
            name: "em0".to_owned(),
            ifindex: 2,
            driver: Some("ixgbe".to_owned()),
            channels: Some(Channels { combined: 4, combined_max: 8, ..Channels::default() }),
            queues: (4, 4),
            features: Some(BTreeSet::new()),
            fixed_features: BTreeSet::new(),
            mtu: 1500,
            up: true,
            carrier: true,
            xdp: XdpSupport::ZeroCopy,
            xdp_multi_buffer: Some(true),
            interrupts: Vec::new(),
        }
    }

    fn mends(device: &DeviceFacts, workers: &[usize]) -> Vec<String> {
        device_problems(device, workers).into_iter().map(|problem| problem.mend).collect()
    }

    #[test]
    fn a_good_device_has_no_problems() {
        assert!(mends(&device(), &[1, 2, 3, 4]).is_empty());
    }

    #[test]
    fn each_problem_says_what_to_type() {
        let bad = DeviceFacts {
            features: Some(["rx-gro", "rx-lro"].map(String::from).into()),
            interrupts: vec![Interrupt { number: 77, name: "em0-rx-0".to_owned(), cores: vec![1] }],
            ..device()
        };
        let found = mends(&bad, &[1]);
        assert_eq!(
            found,
            [
                "ethtool -K em0 gro off",
                "ethtool -K em0 lro off",
                "ethtool -L em0 combined 1 (or rx 1 tx 1), or more workers",
                "echo 0 > /proc/irq/77/smp_affinity_list",
            ]
        );
    }

    #[test]
    fn an_offload_that_cannot_be_changed_is_not_complained_about() {
        let features = BTreeSet::from(["rx-lro".to_owned()]);
        let fixed = DeviceFacts { features: Some(features.clone()), fixed_features: features, ..device() };
        assert!(mends(&fixed, &[1, 2, 3, 4]).is_empty());
    }

    #[test]
    fn core_lists_are_read() {
        assert_eq!(core_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(core_list("\n").is_empty());
    }
}
