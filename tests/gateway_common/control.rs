//! The gateway's control plane in the lab: what it says on its socket, what the kernel beside it has, and streams of datagrams.
#![forbid(unsafe_code)]

use super::ferrule as router;
use ferrule::control::{Client, RouteQuery};
use ferrule::lab::probe::counters;
use ferrule::lab::probe::frame::{Ethernet, IPV4, IPV6, Ipv4, Ipv6};
use ferrule::lab::{Finished, GatewayRouter, Host, Lab, Topology, tools, wait_until};
use ferrule::snapshot::RouteRow;
use serde_json::Value;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ferrule");
/// For what takes no time of its own: the rest is left for a machine that does other things.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// B's addresses towards A.
pub const ROUTER: [&str; 2] = ["198.18.10.1", "2001:2:0:a::1"];

/// Held by tests that load the machine, so that they do not measure each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lab with the gateway forwarding in it; `None` after saying why it cannot be had.
pub fn up(driver: &str, topology: &Topology, programs: &[&str]) -> Option<Lab> {
    let needed: Vec<&str> = ["ping"].iter().chain(programs).copied().collect();
    tools::can_test(&needed).then(|| Lab::up(topology, &router(driver)).unwrap())
}

/// A connection to the lab's gateway.
pub fn client(lab: &Lab) -> Client {
    Client::connect(GatewayRouter::socket(lab)).unwrap()
}

/// Runs the program against the lab's gateway.
pub fn ask(lab: &Lab, words: &[&str]) -> Finished {
    let socket = GatewayRouter::socket(lab);
    let mut command = Command::new(PROGRAM);
    command.arg("--socket").arg(&socket).args(words);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let what = format!("ferrule {}", words.join(" "));
    Finished { what, status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// The route that a packet to `address` takes, if there is one.
pub fn lookup(client: &mut Client, address: IpAddr) -> Option<RouteRow> {
    client.routes(RouteQuery { lookup: Some(address), ..RouteQuery::default() }).unwrap().into_iter().next()
}

/// Waits until the gateway's answer for `address` is of this kind (None: no route).
pub fn wait_kind(client: &mut Client, address: IpAddr, kind: Option<&str>) {
    wait_until(&format!("{kind:?} for {address}"), PATIENCE, || {
        let found = lookup(client, address);
        Ok(if found.as_ref().map(|row| row.kind.as_str()) == kind { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .unwrap();
}

/// A UDP datagram from A to `to` as it leaves A.
pub fn datagram(lab: &Lab, to: IpAddr, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    datagram_from(lab, "a", to, ports, data)
}

/// A UDP datagram from a host next to B to `to` as it leaves that host.
pub fn datagram_from(lab: &Lab, host: &str, to: IpAddr, ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet::new(lab.mac(host, &format!("{host}b0")), lab.mac("b", &format!("b{host}0")));
    match to {
        IpAddr::V4(to) => ethernet.frame(IPV4, &Ipv4::new(lab.v4(host), to).udp(ports, data)),
        IpAddr::V6(to) => ethernet.frame(IPV6, &Ipv6::new(lab.v6(host), to).udp(ports, data)),
    }
}

/// UDP datagrams that reached the stack of a host.
pub fn datagrams(host: &Host) -> u64 {
    let names = ["UdpNoPorts", "UdpInDatagrams", "Udp6NoPorts", "Udp6InDatagrams"];
    let all = counters::protocols(host).unwrap();
    names.iter().filter_map(|name| all.get(*name)).sum()
}

/// A stream of datagrams in both families, about a thousand a second, until it is ended.
pub struct Stream {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Stream {
    /// From one host next to B to another.
    pub fn start(lab: &Lab, from: &str, to: &str) -> Stream {
        let targets: [IpAddr; 2] = [lab.v4(to).into(), lab.v6(to).into()];
        let frames = targets.map(|target| datagram_from(lab, from, target, (6000, 9), &[7; 64]));
        let socket = lab.host(from).unwrap().packet_socket(&format!("{from}b0")).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut sent = 0;
            while !ended.load(Ordering::Relaxed) {
                sent += frames.iter().filter(|frame| socket.send(frame).is_ok()).count() as u64;
                std::thread::sleep(Duration::from_millis(2));
            }
            sent
        });
        Stream { stop, thread }
    }

    /// Ends it; how many datagrams were sent.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// All that `ip` shows of a host, less what ages by itself: equal before and after means that nothing was touched.
pub fn kernel_state(host: &Host) -> Vec<String> {
    let queries: [&[&str]; 5] = [
        &["link", "show"],
        &["addr", "show"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
        &["nexthop", "show"],
    ];
    let mut lines = Vec::new();
    for query in queries {
        let mut value = host.ip_json(query).unwrap();
        forget(&mut value, &["valid_life_time", "preferred_life_time", "dynamic", "stats", "expires"]);
        // Routes are a set: within one prefix their order follows from metrics.
        let mut entries: Vec<String> = value.as_array().unwrap().iter().map(ToString::to_string).collect();
        entries.sort();
        lines.extend(entries);
    }
    lines
}

fn forget(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| forget(item, keys)),
        Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|item| forget(item, keys));
        }
        _ => {}
    }
}

/// Fails with what is gone and what is new.
pub fn assert_same(before: &[String], after: &[String]) {
    let gone: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    assert!(gone.is_empty() && new.is_empty(), "gone: {gone:#?}\nnew: {new:#?}");
}
