//! What forwards in the lab's B: Ferrule, the minimal forwarders of examples/, DPDK's testpmd, the kernel.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ferrule::failure::Failure;
use ferrule::lab::probe::generator;
use ferrule::lab::probe::ping::Ping;
use ferrule::lab::{Background, GatewayRouter, KernelRouter, Lab, LabError, Router, Topology, mac_text, tools};

use crate::bench::Bench;
use crate::traffic::{self, SERVER};

/// The program that is measured.
pub const FERRULE: &str = env!("CARGO_BIN_EXE_ferrule");
const TESTPMD: &str = "dpdk-testpmd";
const LIMIT: Duration = Duration::from_secs(30);

/// A router to be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Contender {
    /// `ferrule run` with a driver.
    Ferrule(&'static str),
    /// The example of this name.
    Example(&'static str),
    /// testpmd, mac mode, with a poll-mode driver.
    Testpmd(&'static str),
    /// The kernel's own forwarding, its receive work in a thread on the router's core.
    Kernel,
}

impl Contender {
    /// Its name in the table.
    pub fn name(self) -> String {
        match self {
            Contender::Ferrule(driver) => format!("ferrule, driver {driver}"),
            Contender::Example(name) => format!("examples/{name}.rs"),
            Contender::Testpmd(driver) => format!("testpmd, {driver}"),
            Contender::Kernel => "the kernel's forwarding".to_owned(),
        }
    }

    /// Whether B's device needs GRO on, since no native XDP program is on it: a veth takes live frames only with one of the two.
    fn needs_gro(self) -> bool {
        matches!(
            self,
            Contender::Ferrule("packet") | Contender::Example("packet_min") | Contender::Testpmd("net_af_packet")
        ) || self == Contender::Kernel
    }

    /// What is missing to run it here.
    pub fn obstacle(self, examples: &Result<PathBuf, String>) -> Option<String> {
        let missing = |tool: &str| tools::find(tool).err().map(|e| e.to_string());
        match self {
            Contender::Example(_) => examples.as_ref().err().cloned(),
            Contender::Testpmd(_) => missing(TESTPMD),
            _ if self.needs_gro() => missing("ethtool"),
            _ => None,
        }
    }

    /// A lab with this router in B, on the measured core, and a sink in C.
    ///
    /// # Errors
    /// Whatever keeps it from forwarding; the router's own words are in it.
    pub fn up(self, bench: &Bench, examples: &Result<PathBuf, String>) -> Result<Lab, LabError> {
        let mut lab = Lab::without_router(&Topology::new().without_ipv6())?;
        if self.needs_gro() {
            lab.host("b")?.run(&["ethtool", "-K", "ba0", "gro", "on"], LIMIT)?.success()?;
        }
        generator::sink(&lab.host(SERVER.0)?, SERVER.1)?;
        let core = bench.core;
        match self {
            Contender::Ferrule(driver) => lab.start_router(&gateway(driver, core))?,
            Contender::Kernel => {
                lab.start_router(&KernelRouter)?;
                // The neighbours are resolved before the load comes, as they are when Ferrule says that it forwards.
                Ping::new(lab.v4("c")).run(&lab.host("a")?)?;
                threaded(&lab, core)?;
            }
            Contender::Example(name) => {
                let directory = examples.clone().map_err(LabError::Request)?;
                lab.start_router(&|lab: &Lab| example(lab, &directory.join(name), name, core))?;
            }
            Contender::Testpmd(driver) => lab.start_router(&|lab: &Lab| testpmd(lab, driver, bench))?,
        }
        Ok(lab)
    }
}

/// Ferrule with one worker that never sleeps, on `core`.
pub fn gateway(driver: &str, core: usize) -> GatewayRouter {
    let engine = format!("workers = 1\ncores = [{core}]\npoll = \"busy\"");
    GatewayRouter { engine, ..GatewayRouter::new(FERRULE, driver) }
}

/// Moves the kernel's receive work for B's port to a thread on `core`, where the other routers do theirs.
fn threaded(lab: &Lab, core: usize) -> Result<(), LabError> {
    let script = format!(
        "echo 1 > /sys/class/net/ba0/threaded && for pid in $(pgrep 'napi/ba0-'); do taskset -pc {core} $pid; done"
    );
    lab.host("b")?.run(&["sh", "-c", &script], LIMIT)?.success().map(drop)
}

/// One of the minimal forwarders, between B's two ports.
fn example(lab: &Lab, program: &Path, name: &str, core: usize) -> Result<Vec<Background>, LabError> {
    let (program, core) = (program.display().to_string(), core.to_string());
    let (a, c) = (mac_text(lab.mac("a", "ab0")), mac_text(lab.mac("c", "cb0")));
    let b = lab.host("b")?;
    let mut child = if name == "xdp_min" {
        b.spawn(&[&program, "ba0", "bc0", "--to-a", &a, "--to-c", &c, "--cpu", &core])?
    } else {
        b.spawn(&["taskset", "-c", &core, &program, "ba0", "bc0", &c])?
    };
    traffic::wait_through(lab, &mut child)?;
    Ok(vec![child])
}

/// testpmd between B's two ports: no huge pages, nothing shared, no PCI devices.
fn testpmd(lab: &Lab, driver: &str, bench: &Bench) -> Result<Vec<Background>, LabError> {
    let cores = format!("{},{}", bench.other.unwrap_or(bench.core), bench.core);
    let device = |number: u8, device: &str| match driver {
        "net_af_xdp" => format!("--vdev={driver}{number},iface={device},start_queue=0,queue_count=1"),
        _ => format!("--vdev={driver}{number},iface={device},qdisc_bypass=1"),
    };
    let (peer, first, second) =
        (format!("--eth-peer=1,{}", mac_text(lab.mac("c", "cb0"))), device(0, "ba0"), device(1, "bc0"));
    let words = [
        TESTPMD,
        "-l",
        &cores,
        "--no-pci",
        "--no-shconf",
        "--no-huge",
        "-m",
        "512",
        &first,
        &second,
        "--",
        "--forward-mode=mac",
        &peer,
        "--nb-cores=1",
        "--total-num-mbufs=32768",
        "--stats-period=1",
    ];
    let mut child = lab.host("b")?.spawn(&words)?;
    traffic::wait_through(lab, &mut child)?;
    Ok(vec![child])
}

/// Builds the minimal forwarders as this program was built; the directory that they are in, or why they are not.
pub fn build_examples() -> Result<PathBuf, String> {
    let target = Path::new(FERRULE).parent().ok_or("the program has no directory")?;
    let release = target.file_name().is_some_and(|name| name == "release");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--example", "xdp_min", "--example", "packet_min"]);
    if release {
        cargo.arg("--release");
    }
    if let Some(directory) = target.parent() {
        cargo.arg("--target-dir").arg(directory);
    }
    let done = cargo.output().map_err(|e| format!("cargo: {e}"))?;
    if done.status.success() {
        return Ok(target.join("examples"));
    }
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(format!("the examples do not build: {}", said.lines().last().unwrap_or_default()))
}

/// A lab's error as the report's.
pub fn failure(error: LabError) -> Failure {
    Failure::runtime(error.to_string())
}

/// The kernel as a router, for comparisons by TCP.
pub fn kernel() -> Box<dyn Router> {
    Box::new(KernelRouter)
}

/// Ferrule over AF_PACKET as a user gets it, with or without `offload = true`.
pub fn over_packet(offload: bool) -> Box<dyn Router> {
    Box::new(GatewayRouter { offload, ..GatewayRouter::new(FERRULE, "packet") })
}
