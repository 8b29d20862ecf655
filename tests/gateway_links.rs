//! Links that are not plain: VLANs, several next hops, unequal queues; and the box itself under load.
#![forbid(unsafe_code)]

mod gateway_common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrule::lab::probe::frame::{Ethernet, IPV4, IPV6, Ipv4, Ipv6, Seen};
use ferrule::lab::probe::generator::{self, Count};
use ferrule::lab::probe::iperf::{Direction, Iperf};
use ferrule::lab::probe::ping::{Ping, PingErrorKind};
use ferrule::lab::{GatewayRouter, Host, Lab, LabError, TagProtocol, Topology, Vlan, anycast_v4, anycast_v6, tools};
use gateway_common::receiver::Receiver;
use gateway_common::{Gateway, LIMIT, assert_balanced, count, drops, ferrule, port};

with_both_drivers! {
    tagged_packets_come_in
    tagged_packets_go_out
    tagged_packets_change_their_tag
    flows_are_shared_between_two_next_hops
    a_port_with_fewer_queues_than_workers
    the_box_is_reached_while_it_forwards_at_full_load
    a_flood_to_the_box_does_not_stop_forwarding
}

const CUSTOMER: Vlan = Vlan { id: 5, protocol: TagProtocol::Dot1q };
const SERVICE: Vlan = Vlan { id: 7, protocol: TagProtocol::Dot1ad };

fn tagged_packets_come_in(driver: &str) {
    vlans(driver, Some(CUSTOMER), None);
    vlans(driver, Some(SERVICE), None);
}

fn tagged_packets_go_out(driver: &str) {
    vlans(driver, None, Some(CUSTOMER));
    vlans(driver, None, Some(SERVICE));
}

fn tagged_packets_change_their_tag(driver: &str) {
    vlans(driver, Some(CUSTOMER), Some(SERVICE));
}

/// Packets between A and C, each in a VLAN or not; the hosts hear no tag but their own.
fn vlans(driver: &str, client: Option<Vlan>, server: Option<Vlan>) {
    let mut topology = Topology::new();
    let mut router = ferrule(driver);
    for (host, device, vlan) in [("a", "ba0", client), ("c", "bc0", server)] {
        let Some(vlan) = vlan else { continue };
        topology = topology.vlan(host, vlan);
        let protocol = if vlan.protocol == TagProtocol::Dot1ad { "802.1ad" } else { "802.1q" };
        let lines = format!("[[port.vlan]]\nid = {}\nprotocol = \"{protocol}\"", vlan.id);
        router.ports.insert(device.to_string(), lines);
        router.addresses_on.insert(device.to_string(), format!("{device}.{}", vlan.id));
    }
    let Some(lab) = Gateway::up(&["ping", "iperf3", "tc"], &topology, &router) else { return };
    let [a, _, c] = lab.hosts();
    for to in lab.both("c") {
        for size in [0, 56, 1400, if to.is_ipv4() { 1472 } else { 1452 }, 3000] {
            let report = Ping::new(to).size(size).run(&a).unwrap();
            assert!(report.is_clean() && report.reply_ttl == Some(63), "{to} size {size}: {report:?}");
        }
        let report = Ping::new(to).ttl(1).count(1).run(&a).unwrap();
        assert_eq!(report.errors.first().map(|e| &e.kind), Some(&PingErrorKind::TimeExceeded), "{report:?}");
        for direction in [Direction::Up, Direction::Down] {
            let report = Iperf::tcp(to).direction(direction).bytes(10_000_000).run(&a, &c).unwrap();
            assert!(report.bytes > 5_000_000, "{report:?}");
        }
        // A packet socket sees a frame as it came: with its tag.
        let mut at_server = c.packet_socket("cb0").unwrap();
        let mut at_client = a.packet_socket("ab0").unwrap();
        assert!(Ping::new(to).count(1).run(&a).unwrap().is_clean());
        for (socket, vlan, mac) in
            [(&mut at_server, server, lab.mac("b", "bc0")), (&mut at_client, client, lab.mac("b", "ba0"))]
        {
            let ethertype = if to.is_ipv4() { IPV4 } else { IPV6 };
            let from_gateway = |frame: &[u8]| {
                Seen::read(frame).is_some_and(|seen| seen.ethernet.source == mac && seen.ethertype == ethertype)
            };
            let frame = socket.receive_where(LIMIT, from_gateway).unwrap().expect("a packet from the gateway");
            let expected: Vec<(u16, u16)> = vlan.iter().map(|v| (tag_protocol(*v), v.id)).collect();
            assert_eq!(Seen::read(&frame).unwrap().ethernet.tags, expected, "{client:?} to {server:?}");
        }
    }
    let snapshot = assert_balanced(&lab);
    for (device, vlan) in [("ba0", client), ("bc0", server)] {
        let Some(vlan) = vlan else { continue };
        let row = port(&snapshot, &format!("{device}.{}", vlan.id));
        assert!(row.state == "up" && row.vlan.is_some(), "{row:?}");
    }
}

fn tag_protocol(vlan: Vlan) -> u16 {
    if vlan.protocol == TagProtocol::Dot1ad { 0x88a8 } else { 0x8100 }
}

fn flows_are_shared_between_two_next_hops(driver: &str) {
    let Some(lab) = Gateway::up(&["ping"], &Topology::new().second_next_hop(), &ferrule(driver)) else { return };
    let [a, _, c] = lab.hosts();
    let d = lab.host("d").unwrap();
    // The gateway must know both neighbours, or the first packets wait and some are lost.
    for to in lab.both("c").into_iter().chain(lab.both("d")) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean(), "{to}");
    }
    let sender = a.packet_socket("ab0").unwrap();
    let ethernet = Ethernet::new(lab.mac("a", "ab0"), lab.mac("b", "ba0"));
    let v4 = anycast_v4().nth(1).unwrap();
    let v6 = anycast_v6().iter().nth(1).unwrap();
    let (from_v4, from_v6) = (lab.v4("a"), lab.v6("a"));
    let frame_v4 = |port: u16| ethernet.frame(IPV4, &Ipv4::new(from_v4, v4).udp((port, 9), b"x"));
    let frame_v6 = |port: u16| ethernet.frame(IPV6, &Ipv6::new(from_v6, v6).udp((port, 9), b"x"));
    type MakeFrame<'a> = &'a dyn Fn(u16) -> Vec<u8>;
    let families: [(IpAddr, MakeFrame<'_>); 2] = [(v4.into(), &frame_v4), (v6.into(), &frame_v6)];
    for (target, frame) in families {
        let receivers = [&c, &d].map(|host| Receiver::start(host, target, 9));
        for _ in 0..5 {
            for port in 0..400 {
                sender.send(&frame(10_000 + port)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let [at_c, at_d] = receivers.map(Receiver::stop);
        println!("{driver}: {target}: {} flows at C, {} at D", at_c.len(), at_d.len());
        assert!(at_c.len() > 100 && at_d.len() > 100, "both next hops carry their share");
        assert!(at_c.values().chain(at_d.values()).all(|n| *n == 5), "a flow keeps to its next hop");
        let ports: BTreeSet<u16> = at_c.keys().chain(at_d.keys()).copied().collect();
        assert_eq!((ports.len(), at_c.len() + at_d.len()), (400, 400));
    }
    lab.assert_nothing_dropped();
}

/// The second worker has no queue of port A, and sends there through the first.
fn a_port_with_fewer_queues_than_workers(driver: &str) {
    let mut router = GatewayRouter { engine: "workers = 2".to_string(), ..ferrule(driver) };
    router.ports.insert("ba0".to_string(), "queues = 1".to_string());
    let topology = Topology::new().queues(2).client_queues(1);
    let Some(lab) = Gateway::up(&["ping", "iperf3"], &topology, &router) else { return };
    let [a, _, c] = lab.hosts();
    for to in lab.both("c") {
        assert!(Ping::new(to).size(1400).count(20).run(&a).unwrap().is_clean());
        for direction in [Direction::Up, Direction::Down] {
            let report = Iperf::tcp(to).direction(direction).streams(3).bytes(60_000_000).run(&a, &c).unwrap();
            assert!(report.bytes > 30_000_000, "{report:?}");
        }
    }
    // Many flows from C, so that the second worker has some of them for A.
    let receiver = Receiver::start(&a, lab.v4("a").into(), 9);
    let sender = c.packet_socket("cb0").unwrap();
    let ethernet = Ethernet::new(lab.mac("c", "cb0"), lab.mac("b", "bc0"));
    let before = assert_balanced(&lab);
    for port in 0..2000 {
        sender.send(&ethernet.frame(IPV4, &Ipv4::new(lab.v4("c"), lab.v4("a")).udp((10_000 + port, 9), b"x"))).unwrap();
        if port % 100 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(receiver.stop().len(), 2000);
    let after = assert_balanced(&lab);
    assert_eq!((port(&after, "ba0").queues, port(&after, "bc0").queues), (1, 2));
    for (now, then) in after.workers.iter().zip(&before.workers) {
        assert!(now.packets - then.packets > 200, "both workers have flows: {:?}", after.workers);
    }
}

/// With AF_XDP a queue without a reader would swallow what arrives on it: the start is refused, and nothing was touched.
#[test]
fn xdp_refuses_to_leave_a_queue_without_a_reader() {
    if !tools::can_test(&[]) {
        return;
    }
    let lab = Lab::without_router(&Topology::new().queues(2)).unwrap();
    let router = GatewayRouter { port: "queues = 1".to_string(), ..ferrule("xdp") };
    let config = lab.scratch().join("refused.toml");
    std::fs::write(&config, router.config(&lab)).unwrap();
    let b = lab.host("b").unwrap();
    let links = || b.ip_json(&["address", "show"]).unwrap();
    let before = links();
    let records = lab.scratch().join("none").display().to_string();
    let config = config.display().to_string();
    let words = [env!("CARGO_BIN_EXE_ferrule"), "run", &config, "--state-directory", &records];
    let done = b.run(&words, LIMIT).unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", done.stderr);
    assert!(done.stderr.contains("ba0 has 2 receive queues") && done.stderr.contains("ethtool -L"), "{}", done.stderr);
    assert_eq!(before, links());
}

/// A server in B that says each line again, in the manner of a remote shell.
fn echo_server(b: &Host, address: SocketAddr) {
    let listener = b.enter(|| TcpListener::bind(address)).unwrap().unwrap();
    // Ends with the test program; it holds nothing but its sockets.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let Ok(copy) = stream.try_clone() else { return };
                let (mut reader, mut writer, mut line) = (BufReader::new(copy), stream, String::new());
                while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
                    if writer.write_all(line.as_bytes()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
}

/// A session: keystrokes one after the other, then a screen of text. How long each keystroke took.
fn session(from: &Host, to: SocketAddr) -> Result<Vec<Duration>, LabError> {
    let failed = |e: std::io::Error| LabError::io(format!("session with {to}"), e);
    let mut stream: TcpStream = from.connect(to, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT)).and_then(|()| stream.set_nodelay(true)).map_err(failed)?;
    let mut times = Vec::new();
    for key in 0..40 {
        let (sent, start) = (format!("key {key}\n"), Instant::now());
        stream.write_all(sent.as_bytes()).map_err(failed)?;
        let mut heard = vec![0; sent.len()];
        stream.read_exact(&mut heard).map_err(failed)?;
        assert_eq!(heard, sent.as_bytes());
        times.push(start.elapsed());
    }
    let screen = [vec![b'x'; 60_000], vec![b'\n']].concat();
    stream.write_all(&screen).map_err(failed)?;
    let mut heard = vec![0; screen.len()];
    stream.read_exact(&mut heard).map_err(failed)?;
    assert!(heard == screen, "the screen came back changed");
    Ok(times)
}

/// UDP from many ports of one host to another, in both families, through the gateway's port of the sender.
fn flood(lab: &Gateway, (from, device): (&str, &str), gateway: &str, v4: IpAddr, v6: IpAddr) -> Vec<Vec<u8>> {
    let ethernet = Ethernet::new(lab.mac(from, device), lab.mac("b", gateway));
    let frame = |port: u16| match if port.is_multiple_of(2) { v4 } else { v6 } {
        IpAddr::V4(to) => ethernet.frame(IPV4, &Ipv4::new(lab.v4(from), to).udp((port, 9), &[0; 18])),
        IpAddr::V6(to) => ethernet.frame(IPV6, &Ipv6::new(lab.v6(from), to).udp((port, 9), &[0; 18])),
    };
    (0..512).map(|n| frame(2000 + n)).collect()
}

fn the_box_is_reached_while_it_forwards_at_full_load(driver: &str) {
    let topology = Topology::new().second_next_hop();
    let Some(lab) = Gateway::up(&["ping"], &topology, &ferrule(driver)) else { return };
    let [a, b, c] = lab.hosts();
    let d = lab.host("d").unwrap();
    for to in lab.both("d") {
        assert!(Ping::new(to).run(&c).unwrap().is_clean(), "the gateway knows D");
    }
    let addresses: [SocketAddr; 2] = ["198.18.10.1:22".parse().unwrap(), "[2001:2:0:a::1]:22".parse().unwrap()];
    addresses.iter().for_each(|address| echo_server(&b, *address));
    generator::sink(&d, "db0").unwrap();
    let frames = flood(&lab, ("c", "cb0"), "bc0", lab.v4("d").into(), lab.v6("d").into());
    let before = assert_balanced(&lab);
    let ended = AtomicBool::new(false);
    let (load, sessions) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let load =
                generator::run((&c, "cb0"), (&d, "db0"), Count::Frames, &frames, None, Duration::from_secs(4)).unwrap();
            ended.store(true, Ordering::Release);
            load
        });
        std::thread::sleep(Duration::from_millis(200));
        let mut sessions = Vec::new();
        while !ended.load(Ordering::Acquire) {
            for address in addresses {
                sessions.push(session(&a, address).unwrap());
            }
        }
        (load.join().unwrap(), sessions)
    });
    let mut keys: Vec<Duration> = sessions.iter().flatten().copied().collect();
    keys.sort_unstable();
    println!(
        "{driver}: {} sessions while {:.0} kpps passed of {:.0} offered; a keystroke took {:?}, at most {:?}",
        sessions.len(),
        load.received_pps() / 1e3,
        load.sent as f64 / load.seconds / 1e3,
        keys[keys.len() / 2],
        keys[keys.len() - 1],
    );
    assert!(sessions.len() >= 2 && load.received > 10_000, "{load:?}");
    let after = assert_balanced(&lab);
    assert_eq!(count(&after.drops, "punt_limited"), count(&before.drops, "punt_limited"), "{:?}", drops(&after));
}

fn a_flood_to_the_box_does_not_stop_forwarding(driver: &str) {
    let mut router = ferrule(driver);
    router.more = "\n[host]\npunt_rate = { other = 2000 }\n".to_string();
    let Some(lab) = Gateway::up(&["ping"], &Topology::new().second_next_hop(), &router) else { return };
    let [a, _, c] = lab.hosts();
    let d = lab.host("d").unwrap();
    for to in lab.both("d") {
        assert!(Ping::new(to).run(&c).unwrap().is_clean(), "the gateway knows D");
    }
    generator::sink(&d, "db0").unwrap();
    let own = ["198.18.10.1".parse().unwrap(), "2001:2:0:a::1".parse().unwrap()];
    let attack = flood(&lab, ("a", "ab0"), "ba0", own[0], own[1]);
    let traffic = flood(&lab, ("c", "cb0"), "bc0", lab.v4("d").into(), lab.v6("d").into());
    let before = assert_balanced(&lab);
    let time = Duration::from_secs(3);
    let (attack, traffic) = std::thread::scope(|scope| {
        // What arrives of the attack is the gateway's to count; the far end looked at is as good as any.
        let attack = scope.spawn(|| generator::run((&a, "ab0"), (&d, "db0"), Count::Datagrams, &attack, None, time));
        std::thread::sleep(Duration::from_millis(300));
        let time = time - Duration::from_millis(600);
        let traffic = generator::run((&c, "cb0"), (&d, "db0"), Count::Frames, &traffic, Some(10_000), time).unwrap();
        (attack.join().unwrap().unwrap(), traffic)
    });
    let after = assert_balanced(&lab);
    let limited = count(&after.drops, "punt_limited") - count(&before.drops, "punt_limited");
    println!(
        "{driver}: {} packets to the box, {limited} of them over its limit; of {} others {} passed, {} lost before the gateway",
        attack.sent, traffic.sent, traffic.received, traffic.dropped_at_sender
    );
    assert!(limited > 10_000, "{:?}", drops(&after));
    let offered = traffic.sent - traffic.dropped_at_sender;
    assert!(traffic.received * 100 >= offered * 95 && offered > 1000, "{traffic:?}");
    // And the box itself is there again at once.
    for to in own {
        assert!(Ping::new(to).run(&a).unwrap().is_clean(), "{to}");
    }
}
