//! What the end-to-end tests of the gateway share: a lab with `ferrule run` in B, one at a time, and the exact balance of its
//! packets.
#![forbid(unsafe_code)]
// Each test file is a program of its own and uses its part.
#![allow(dead_code)]

pub mod control;
pub mod receiver;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrule::lab::probe::counters::{self, DeviceCounters};
use ferrule::lab::{GatewayRouter, Host, Lab, LabError, Router, Topology, tools};
use ferrule::snapshot::{PortRow, Snapshot};

/// For what happens within milliseconds and gets the rest on an overloaded machine.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Each test with both drivers, as `xdp::NAME` and `packet::NAME`.
#[macro_export]
macro_rules! with_both_drivers {
    ($($name:ident)+) => {
        mod xdp {
            $(#[test] fn $name() { super::$name("xdp") })+
        }
        mod packet {
            $(#[test] fn $name() { super::$name("packet") })+
        }
    };
}

/// A lab whose router is the gateway. It has the machine for itself: a worker, the sender and the receiver want more than two
/// cores already. When a test fails, what the gateway counted and logged is printed.
pub struct Gateway {
    lab: Lab,
    /// What was dropped until it forwarded: what the box itself said while its ports were not open yet.
    before: BTreeMap<String, u64>,
    /// Frames that devices lost until then: they came before anybody read the queues.
    lost_before: u64,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

/// The gateway as router with this driver, all else as a user gets it.
pub fn ferrule(driver: &str) -> GatewayRouter {
    GatewayRouter::new(env!("CARGO_BIN_EXE_ferrule"), driver)
}

impl Gateway {
    /// The lab with the gateway forwarding, or `None` after saying why it cannot be had here.
    pub fn up(tools: &[&str], topology: &Topology, router: &dyn Router) -> Option<Gateway> {
        // A test that failed leaves nothing behind that the next one could trip over.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        tools::can_test(tools).then(|| {
            let lab = Lab::up(topology, router).unwrap();
            let snapshot = assert_balanced(&lab);
            Gateway { lab, before: drops(&snapshot), lost_before: lost(&snapshot), _turn: turn }
        })
    }

    /// The client, the router and the server.
    pub fn hosts(&self) -> [Host; 3] {
        ["a", "b", "c"].map(|name| self.lab.host(name).unwrap())
    }

    /// Both addresses of a host.
    pub fn both(&self, host: &str) -> [IpAddr; 2] {
        [self.lab.v4(host).into(), self.lab.v6(host).into()]
    }

    /// The lab, for tests that stop the gateway or start it anew.
    pub fn lab_mut(&mut self) -> &mut Lab {
        &mut self.lab
    }

    /// [`assert_balanced`], and nothing was dropped or lost since it forwards. What nobody on the box wants to hear of its
    /// neighbours' chatter is no loss.
    pub fn assert_nothing_dropped(&self) -> Snapshot {
        let snapshot = assert_balanced(&self.lab);
        let mut dropped = grown(&drops(&snapshot), &self.before);
        dropped.remove("multicast_unwanted");
        assert!(dropped.is_empty(), "dropped {dropped:?}; {}", story(&snapshot));
        assert_eq!(
            lost(&snapshot),
            self.lost_before,
            "lost by a device before the gateway saw them: {}",
            story(&snapshot)
        );
        snapshot
    }

    /// The gateway's process id.
    pub fn pid(&self) -> u32 {
        snapshot(&self.lab).unwrap().daemon.pid
    }
}

impl Deref for Gateway {
    type Target = Lab;
    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Ok(snapshot) = snapshot(&self.lab) {
                eprintln!("{}", story(&snapshot));
            }
            for child in self.lab.router() {
                eprintln!("the gateway's log:\n{}", child.log());
            }
        }
    }
}

/// What `ferrule show stats --json` says.
pub fn snapshot(lab: &Lab) -> Result<Snapshot, LabError> {
    let socket = GatewayRouter::socket(lab).display().to_string();
    let words = [env!("CARGO_BIN_EXE_ferrule"), "--socket", &socket, "--json", "show", "stats"];
    let done = lab.host("b")?.run(&words, LIMIT)?.success()?;
    serde_json::from_str(&done.stdout).map_err(|e| LabError::output(done.what, e, &done.stdout))
}

/// Drops that are not zero.
pub fn drops(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    snapshot.drops.iter().filter(|d| d.count > 0).map(|d| (d.name.clone(), d.count)).collect()
}

/// Frames that devices lost before the gateway saw them.
fn lost(snapshot: &Snapshot) -> u64 {
    snapshot.ports.iter().map(|p| p.device_rx_lost).sum()
}

/// By how much each count has grown, those that have not left out.
pub fn grown(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let by = |(name, count): (&String, &u64)| (name.clone(), count - then.get(name).copied().unwrap_or_default());
    now.iter().map(by).filter(|(_, count)| *count > 0).collect()
}

/// A count by its name; panics when there is none of that name.
pub fn count(counts: &[ferrule::snapshot::NamedCount], name: &str) -> u64 {
    counts.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no count {name} in {counts:?}")).count
}

/// A port by the name of its device.
pub fn port<'a>(snapshot: &'a Snapshot, name: &str) -> &'a PortRow {
    snapshot.ports.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("no port {name} in {:?}", snapshot.ports))
}

/// What a failed test wants to know.
fn story(snapshot: &Snapshot) -> String {
    let ports: String = snapshot.ports.iter().map(|p| format!("  {p:?}\n")).collect();
    let non_zero = |all: &[ferrule::snapshot::NamedCount]| -> Vec<(String, u64)> {
        all.iter().filter(|c| c.count > 0).map(|c| (c.name.clone(), c.count)).collect()
    };
    format!(
        "{:?}\ndrops {:?}\ngenerated {:?}\nconsumed {:?}\npunted {:?}\nneighbors {:?}\nports\n{ports}",
        snapshot.balance,
        drops(snapshot),
        non_zero(&snapshot.generated),
        non_zero(&snapshot.consumed),
        non_zero(&snapshot.punted),
        snapshot.neighbors,
    )
}

/// Waits until nothing is on its way, and asserts that every packet is accounted for: what came in and what was made is what went
/// out and what ended, to the packet, and nothing is held.
pub fn assert_balanced(lab: &Lab) -> Snapshot {
    let deadline = Instant::now() + LIMIT;
    let mut last = snapshot(lab).unwrap();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = snapshot(lab).unwrap();
        let balance = now.balance;
        if balance == last.balance && balance.difference == 0 && balance.held == 0 {
            assert!(balance.received > 0 && balance.transmitted > 0, "nothing was forwarded: {}", story(&now));
            return now;
        }
        assert!(Instant::now() < deadline, "packets that nobody accounts for: {}", story(&now));
        last = now;
    }
}

/// The gateway's counts of one of its ports and those of the devices at the other end of the link, which agree packet for packet.
#[derive(Debug, Clone, Copy)]
pub struct LinkCount {
    /// Frames that the peer's device sent.
    pub peer_sent: u64,
    /// Of those, frames that the gateway got.
    pub received: u64,
    /// Of those, frames that the gateway's device lost.
    pub lost_before: u64,
    /// Frames that the gateway's device dropped while receiving, as the kernel counts them.
    pub dropped_before: u64,
    /// Frames that the gateway gave to its device.
    pub transmitted: u64,
    /// Of those, frames that the peer's device got.
    pub peer_received: u64,
    /// Of those, frames that the link dropped since the peer's ring was full.
    pub lost_after: u64,
}

/// Counts quiet links from both ends, at one moment: each a port of B, the host at its other end, and its device there.
pub fn link_counts<const N: usize>(lab: &Lab, links: [(&str, &str, &str); N]) -> (Snapshot, [LinkCount; N]) {
    let b = lab.host("b").unwrap();
    let ends = || -> [[DeviceCounters; 2]; N] {
        links.map(|(port, peer, device)| {
            let peer = lab.host(peer).unwrap();
            [counters::device(&b, &format!("{port}.phy")).unwrap(), counters::device(&peer, device).unwrap()]
        })
    };
    let deadline = Instant::now() + LIMIT;
    let mut before = ends();
    loop {
        // A worker reads its devices' own counters every 100 ms, and an idle one wakes as often.
        std::thread::sleep(Duration::from_millis(300));
        let snapshot = assert_balanced(lab);
        let after = ends();
        // Neighbour discovery may come between two readings; what was the same before and after is one moment.
        if after == before {
            let counts = std::array::from_fn(|at| {
                let ([near, far], row) = (after[at], port(&snapshot, links[at].0));
                LinkCount {
                    peer_sent: far.tx_packets,
                    received: row.received.packets,
                    lost_before: row.device_rx_lost,
                    dropped_before: near.rx_dropped,
                    transmitted: row.transmitted.packets,
                    peer_received: far.rx_packets,
                    lost_after: near.tx_dropped,
                }
            });
            return (snapshot, counts);
        }
        assert!(Instant::now() < deadline, "the links do not come to rest: {before:?}, {after:?}");
        before = after;
    }
}
