//! What the ipfw stage does beyond pass and drop, in the gateway and over real interfaces: pipes, NAT and next hops, made by a script and by
//! `ferrule ipfw` while packets flow. Every packet is accounted for at the end of each test. Needs root.
mod gateway_common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ferrule::lab::probe::iperf::Iperf;
use ferrule::lab::probe::ping::{Ping, PingReport};
use ferrule::lab::{GatewayRouter, Lab, Topology, anycast_v4, wait_until};
use gateway_common::control::*;
use gateway_common::{Gateway, assert_balanced, drops, ferrule as router};
use serde_json::Value;

with_both_drivers! {
    a_pipe_delays_and_bounds_and_can_be_changed
    nat_hides_the_inside
    fwd_goes_to_the_next_hop_of_the_rule
}

/// A gateway whose rules a script of its own has made.
struct Scripted {
    lab: Gateway,
    directory: PathBuf,
}

impl Scripted {
    fn up(driver: &str, tools: &[&str], topology: &Topology, script: &str) -> Option<Scripted> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("ferrule-services-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("ipfw.rules");
        fs::write(&path, script).unwrap();
        let gateway = GatewayRouter { more: format!("\n[ipfw]\nscript = {path:?}\n"), ..router(driver) };
        Some(Scripted { lab: Gateway::up(tools, topology, &gateway)?, directory })
    }

    fn ipfw(&self, words: &str) -> String {
        let all: Vec<&str> = ["ipfw"].into_iter().chain(words.split(' ')).collect();
        let done = ask(&self.lab, &all);
        assert!(done.status.success(), "{done:?}");
        done.stdout
    }

    /// What a command shows, as data.
    fn data(&self, words: &str) -> Value {
        let all: Vec<&str> = ["--json", "ipfw"].into_iter().chain(words.split(' ')).collect();
        let done = ask(&self.lab, &all);
        assert!(done.status.success(), "{done:?}");
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// Packets that the rule of this number counted.
    fn counted(&self, number: u16) -> u64 {
        let listed = self.ipfw(&format!("-a list {number}"));
        listed.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Packets that a pipe was sent.
    fn piped(&self, number: u16) -> u64 {
        let shown = self.data(&format!("pipe {number} show"));
        let flows = shown["pipes"][0]["flows"].as_array().unwrap();
        flows.iter().map(|flow| flow["total_packets"].as_u64().unwrap()).sum()
    }

    fn ping(&self, from: &str, to: impl Into<IpAddr>) -> PingReport {
        Ping::new(to).run(&self.lab.host(from).unwrap()).unwrap()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Waits until so many datagrams more have reached a host.
fn reached(lab: &Lab, host: &str, before: u64, expected: u64) {
    let host = lab.host(host).unwrap();
    wait_until("datagrams to arrive", PATIENCE, || {
        let more = datagrams(&host) - before;
        Ok(if more == expected { Ok(()) } else { Err(format!("{more} of {expected}")) })
    })
    .unwrap();
}

fn a_pipe_delays_and_bounds_and_can_be_changed(driver: &str) {
    let script = "ipfw -q flush\nipfw -q pipe flush\nipfw pipe 1 config delay 60\nipfw pipe 2 config bw 2Mbit/s\n\
                  ipfw pipe 3 config delay 2500\nipfw add 100 pipe 1 icmp from any to any icmptypes 0,8 out\n\
                  ipfw add 110 pipe 2 tcp from any to any 5201 out\nipfw add 120 pipe 3 udp from any to any 7003 out\n\
                  ipfw add 200 count icmp from any to any icmptypes 0,8 out\nipfw add 65000 allow ip from any to any\n";
    let Some(lab) = Scripted::up(driver, &["ping", "iperf3"], &Topology::new(), script) else { return };
    let c = lab.lab.v4("c");
    let before = lab.piped(1);
    let report = lab.ping("a", c);
    assert!(report.is_clean(), "{report:?}");
    assert!(report.times_ms.iter().all(|time| (119.0..900.0).contains(time)), "60 ms each way: {report:?}");
    assert_eq!(lab.piped(1) - before, 6, "three requests and three answers");
    assert_eq!(lab.counted(200), 0, "one_pass: what comes out of a pipe has passed");
    assert!(lab.ipfw("pipe 1 show").starts_with("00001: unlimited"), "{}", lab.ipfw("pipe 1 show"));
    assert_eq!(ask(&lab.lab, &["sysctl", "net.inet.ip.fw.one_pass=0"]).stdout, "net.inet.ip.fw.one_pass: 1 -> 0\n");
    lab.ipfw("pipe 1 config delay 10");
    let report = lab.ping("a", c);
    assert!(report.is_clean(), "{report:?}");
    assert!(report.times_ms.iter().all(|time| *time >= 19.0), "{report:?}");
    assert!(report.median_ms().unwrap() < 110.0, "the pipe has its new delay: {report:?}");
    assert_eq!(lab.counted(200), 6, "without one_pass they go on behind their rule");
    // A rate: the bytes of a second are those of the pipe, however fast the link is.
    let [a, _, server] = lab.lab.hosts();
    let rate = Iperf::tcp(c).seconds(3).run(&a, &server).unwrap().bits_per_second;
    println!("{driver}: 2 Mbit/s let {:.2} Mbit/s of TCP through", rate / 1e6);
    assert!((0.4e6..2.2e6).contains(&rate), "{rate}");
    // A pipe that is configured anew keeps the packets in it.
    let before = datagrams(&server);
    let socket = a.packet_socket("ab0").unwrap();
    let frame = datagram(&lab.lab, c.into(), (6000, 7003), &[7; 64]);
    (0..10).for_each(|_| socket.send(&frame).unwrap());
    wait_until("the pipe to have them", PATIENCE, || {
        let piped = lab.piped(3);
        Ok(if piped == 10 { Ok(()) } else { Err(piped.to_string()) })
    })
    .unwrap();
    lab.ipfw("pipe 3 config delay 1");
    reached(&lab.lab, "c", before, 10);
    // One that is gone lets nothing through, and this is counted.
    let lost = drops(&assert_balanced(&lab.lab));
    lab.ipfw("pipe 3 delete");
    (0..4).for_each(|_| socket.send(&frame).unwrap());
    wait_until("the rule without a pipe to drop them", PATIENCE, || {
        let now = drops(&assert_balanced(&lab.lab));
        let of = |all: &std::collections::BTreeMap<String, u64>| all.get("pipe_missing").copied().unwrap_or_default();
        Ok(if of(&now) - of(&lost) == 4 { Ok(()) } else { Err(format!("{now:?}")) })
    })
    .unwrap();
    // What would have no effect is refused, with the reason.
    let refused = ask(&lab.lab, &["sysctl", "net.inet.ip.dummynet.hash_size=256"]);
    assert!(refused.stderr.contains("buckets follows"), "{refused:?}");
}

/// Scenario 11.
fn nat_hides_the_inside(driver: &str) {
    let script = "ipfw -q flush\nipfw add 65000 allow ip from any to any\n";
    let topology = Topology::new().clients(2);
    let Some(lab) = Scripted::up(driver, &["ping"], &topology, script) else { return };
    let (inside, c) = (["a", "a2"], lab.lab.v4("c"));
    let server = lab.lab.host("c").unwrap();
    // Outside has no way back to the inside.
    let routes: String = inside.iter().map(|host| format!("route add blackhole {}/32\n", lab.lab.v4(host))).collect();
    server.ip_batch(&routes).unwrap();
    for host in inside {
        assert_eq!(lab.ping(host, c).received, 0, "{host} without translation");
    }
    lab.ipfw("-q nat 123 config if bc0");
    lab.ipfw("add 1000 nat 123 all from any to any");
    for host in inside {
        let report = lab.ping(host, c);
        assert!(report.is_clean(), "{host}: {report:?}");
    }
    let before = datagrams(&server);
    let socket = lab.lab.host("a").unwrap().packet_socket("ab0").unwrap();
    let frame = datagram(&lab.lab, c.into(), (6000, 7001), &[7; 64]);
    (0..5).for_each(|_| socket.send(&frame).unwrap());
    reached(&lab.lab, "c", before, 5);
    let shown = lab.data("nat 123 show log");
    assert_eq!(shown["nats"][0]["number"], 123, "{shown}");
    assert!(shown["nats"][0]["translated_out"].as_u64().unwrap() >= 6 + 5, "{shown}");
    let text = lab.ipfw("nat 123 show log");
    assert!(text.starts_with("nat 123: icmp=") && !text.contains(" udp=0,"), "{text}");
    assert!(lab.counted(1000) > 0);
    assert_balanced(&lab.lab);
    // Without the instance the rule finds none; without the rule it is as before.
    lab.ipfw("delete 1000");
    lab.ipfw("nat 123 delete");
    assert_eq!(lab.ipfw("nat show log"), "");
    assert_eq!(lab.ping("a", c).received, 0);
    assert_balanced(&lab.lab);
}

fn fwd_goes_to_the_next_hop_of_the_rule(driver: &str) {
    let topology = Topology::new().second_next_hop();
    let target = anycast_v4().nth(1).unwrap();
    let script = "ipfw -q flush\nipfw add 65000 allow ip from any to any\n";
    let Some(lab) = Scripted::up(driver, &["ping"], &topology, script) else { return };
    let socket = lab.lab.host("a").unwrap().packet_socket("ab0").unwrap();
    let frames: Vec<Vec<u8>> =
        (0..64).map(|port| datagram(&lab.lab, target.into(), (7000 + port, 9), &[7; 64])).collect();
    let hosts = ["c", "d"].map(|name| lab.lab.host(name).unwrap());
    let send = || -> [u64; 2] {
        let before = hosts.each_ref().map(datagrams);
        frames.iter().for_each(|frame| socket.send(frame).unwrap());
        let mut more = [0; 2];
        wait_until("datagrams to arrive", PATIENCE, || {
            more = [0, 1].map(|at| datagrams(&hosts[at]) - before[at]);
            Ok(if more.iter().sum::<u64>() == 64 { Ok(()) } else { Err(format!("{more:?}")) })
        })
        .unwrap();
        more
    };
    // Both neighbours are known then: a burst would not wait for that.
    for host in ["c", "d"] {
        assert!(lab.ping("a", lab.lab.v4(host)).is_clean());
    }
    let shared = send();
    assert!(shared.iter().all(|part| *part > 0), "the route shares flows out: {shared:?}");
    let next_hop = |host: &str| -> Ipv4Addr { lab.lab.v4(host) };
    lab.ipfw(&format!("add 100 fwd {} udp from any to {target} in", next_hop("d")));
    assert_eq!(send(), [0, 64], "all to the rule's next hop");
    assert_eq!(lab.counted(100), 64);
    lab.ipfw("delete 100");
    lab.ipfw(&format!("add 100 fwd {} udp from any to {target} out", next_hop("c")));
    assert_eq!(send(), [64, 0], "on the way out, too");
    lab.ipfw("delete 100");
    assert!(send().iter().all(|part| *part > 0));
    std::thread::sleep(Duration::from_millis(50));
    assert_balanced(&lab.lab);
}
