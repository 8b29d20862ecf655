//! Routes of the kernel in B and what the gateway does by them: in force at once, every kind, next hop objects, routing daemons,
//! a hundred thousand changes under load. Needs root.
mod gateway_common;

use ferrule::lab::probe::counters;
use ferrule::lab::probe::frame::Seen;
use ferrule::lab::probe::generator::{self, Count};
use ferrule::lab::probe::ping::{Ping, PingErrorKind};
use ferrule::lab::probe::routing::{Bird, BirdConfig, Presence, Speaks, wait_route};
use ferrule::lab::{Background, Host, Lab, Topology, anycast_v4, anycast_v6, wait_until};
use gateway_common::control::*;
use gateway_common::{assert_balanced, count, ferrule as router};
use ipnetwork::IpNetwork;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

with_both_drivers! {
    a_route_is_in_force_within_100_milliseconds
    routes_that_refuse_say_so_in_the_right_words
    next_hop_objects_share_the_flows
    a_route_through_a_link_that_is_no_port_goes_by_the_host
    routing_daemons_change_forwarding
    a_hundred_thousand_routes_come_and_go_under_load
}

/// A network behind C that B does not know of, and the address of it that C has, in both families.
fn behind_c(lab: &Lab) -> [(IpNetwork, IpAddr, IpAddr); 2] {
    let c = lab.host("c").unwrap();
    c.ip_batch("addr add 198.18.200.1/24 dev lo\naddr add 2001:2:0:200::1/64 dev lo nodad\n").unwrap();
    [
        ("198.18.200.0/24".parse().unwrap(), "198.18.200.1".parse().unwrap(), lab.v4("c").into()),
        ("2001:2:0:200::/64".parse().unwrap(), "2001:2:0:200::1".parse().unwrap(), lab.v6("c").into()),
    ]
}

/// Datagrams from A, one a millisecond, each with the time that it was sent; and the times of those that reached C.
struct Ticker {
    stop: Arc<AtomicBool>,
    start: Instant,
    seen: Arc<Mutex<Vec<Duration>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Ticker {
    fn start(lab: &Lab, to: IpAddr) -> Ticker {
        let (stop, seen, start) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())), Instant::now());
        let sender = lab.host("a").unwrap().packet_socket("ab0").unwrap();
        let mut receiver = lab.host("c").unwrap().packet_socket("cb0").unwrap();
        // The data is the time. The checksum no longer fits it; nobody on the way looks, and C hears it by a raw socket.
        let mut frame = datagram(lab, to, (4000, 9), &[0; 8]);
        let at = frame.len() - 8;
        let ended = stop.clone();
        let sending = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                frame[at..].copy_from_slice(&(start.elapsed().as_nanos() as u64).to_be_bytes());
                sender.send(&frame).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (ended, list) = (stop.clone(), seen.clone());
        let receiving = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let wanted = |frame: &[u8]| Seen::read(frame).is_some_and(|seen| seen.ports() == Some((4000, 9)));
                let Some(frame) = receiver.receive_where(Duration::from_millis(100), wanted).unwrap() else { continue };
                let time = u64::from_be_bytes(frame[frame.len() - 8..].try_into().unwrap());
                list.lock().unwrap().push(Duration::from_nanos(time));
            }
        });
        Ticker { stop, start, seen, threads: vec![sending, receiving] }
    }

    fn last(&self) -> Option<Duration> {
        self.seen.lock().unwrap().last().copied()
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic in a thread shows as missing datagrams, which fails the test by itself.
            let _ = thread.join();
        }
    }
}

fn a_route_is_in_force_within_100_milliseconds(driver: &str) {
    let _alone = alone();
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let b = lab.host("b").unwrap();
    for (network, target, via) in behind_c(&lab) {
        let ticker = Ticker::start(&lab, target);
        let (mut added, mut deleted) = (Vec::new(), Vec::new());
        for _ in 0..7 {
            ticker.seen.lock().unwrap().clear();
            // From before `ip` is started: what it takes itself counts as well.
            let begun = ticker.start.elapsed();
            b.ip_batch(&format!("route add {network} via {via}\n")).unwrap();
            wait_until(&format!("traffic by {network}"), PATIENCE, || Ok(ticker.last().ok_or_else(String::new)))
                .unwrap();
            let first = ticker.seen.lock().unwrap()[0];
            added.push(first.saturating_sub(begun));
            let begun = ticker.start.elapsed();
            b.ip_batch(&format!("route del {network}\n")).unwrap();
            wait_until(&format!("no traffic by {network}"), PATIENCE, || {
                let last = ticker.last().unwrap_or_default();
                let silent = ticker.start.elapsed().saturating_sub(last) > Duration::from_millis(250);
                Ok(if silent { Ok(()) } else { Err(format!("{last:?}")) })
            })
            .unwrap();
            deleted.push(ticker.last().unwrap_or_default().saturating_sub(begun));
        }
        println!("{driver} {network}: in force after {added:?}, gone after {deleted:?}");
        // The machine may have had something else to do, once or twice.
        for times in [&mut added, &mut deleted] {
            times.sort();
            assert!(times[times.len() / 2] < Duration::from_millis(100), "{network}: {times:?}");
        }
    }
    assert_balanced(&lab);
}

fn routes_that_refuse_say_so_in_the_right_words(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let mut client = client(&lab);
    let no_route = ["Destination Net Unreachable", "Destination unreachable: No route"];
    let kinds = [
        ("blackhole", [None, None]),
        ("unreachable", [Some("Destination Host Unreachable"), Some("Destination unreachable: Address unreachable")]),
        ("prohibit", [Some("Packet filtered"), Some("Destination unreachable: Administratively prohibited")]),
    ];
    for (family, network) in ["198.18.201.0/24", "2001:2:0:201::/64"].into_iter().enumerate() {
        let network: IpNetwork = network.parse().unwrap();
        let target = network.iter().nth(1).unwrap();
        // One by one: an error that comes back while ping still sends the next request is taken for that one's.
        let ping = || Ping::new(target).count(4).interval_ms(100).run(&a).unwrap();
        let expect = |text: Option<&str>| {
            let report = ping();
            let from: IpAddr = ROUTER[family].parse().unwrap();
            assert_eq!(report.received, 0);
            assert!(report.errors.iter().all(|error| error.from == from), "{report:?}");
            let said: Vec<&PingErrorKind> = report.errors.iter().map(|error| &error.kind).collect();
            match text {
                None => assert!(said.is_empty(), "silence was wanted: {report:?}"),
                Some(text) => {
                    let text = PingErrorKind::Other(text.to_owned());
                    assert!(said.len() == 4 && said.iter().all(|kind| **kind == text), "{report:?}");
                }
            }
        };
        expect(Some(no_route[family]));
        for (kind, texts) in kinds {
            b.ip_batch(&format!("route add {kind} {network}\n")).unwrap();
            wait_kind(&mut client, target, Some(kind));
            let before = count(&client.snapshot().unwrap().drops, kind);
            expect(texts[family]);
            assert_eq!(count(&assert_balanced(&lab).drops, kind) - before, 4, "each of them is counted as {kind}");
            b.ip_batch(&format!("route del {kind} {network}\n")).unwrap();
            wait_kind(&mut client, target, None);
        }
        expect(Some(no_route[family]));
    }
}

/// UDP datagrams that reached the stack of each host.
fn arrived(hosts: &[&Host]) -> Vec<u64> {
    hosts.iter().map(|host| datagrams(host)).collect()
}

/// Sends 400 flows from A to `target` and says how many reached each host.
fn spread(lab: &Lab, target: IpAddr, hosts: &[&Host]) -> Vec<u64> {
    let sender = lab.host("a").unwrap().packet_socket("ab0").unwrap();
    let before = arrived(hosts);
    for flow in 0..400 {
        sender.send(&datagram(lab, target, (10_000 + flow, 9), b"x")).unwrap();
        if flow % 32 == 31 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    wait_until("400 datagrams", PATIENCE, || {
        let now: Vec<u64> = arrived(hosts).iter().zip(&before).map(|(now, before)| now - before).collect();
        Ok(if now.iter().sum::<u64>() == 400 { Ok(now) } else { Err(format!("{now:?}")) })
    })
    .unwrap()
}

fn next_hop_objects_share_the_flows(driver: &str) {
    let Some(lab) = up(driver, &Topology::new().second_next_hop(), &[]) else { return };
    let (a, b, c, d) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap(), lab.host("d").unwrap());
    let mut client = client(&lab);
    let families: [(IpNetwork, IpAddr, IpAddr, &str); 2] = [
        (anycast_v4().into(), lab.v4("c").into(), lab.v4("d").into(), "-4"),
        (anycast_v6().into(), lab.v6("c").into(), lab.v6("d").into(), "-6"),
    ];
    for (network, via_c, via_d, family) in families {
        // The neighbours are known, so that none of the datagrams waits beyond its queue.
        for host in [via_c, via_d] {
            assert!(Ping::new(host).run(&a).unwrap().is_clean());
        }
        let target = network.iter().nth(1).unwrap();
        b.ip_batch(&format!(
            "route del {network}\nnexthop add id 11 via {via_c} dev bc0\nnexthop add id 12 via {via_d} dev bd0\n\
             nexthop add id 20 group 11/12\nroute add {network} nhid 20\n"
        ))
        .unwrap();
        let hops = |client: &mut ferrule::control::Client, wanted: &[(IpAddr, u32)]| {
            wait_until(&format!("{wanted:?} for {network}"), PATIENCE, || {
                let row = lookup(client, target).unwrap_or_default();
                let hops: Vec<_> = row.next_hops.iter().filter_map(|hop| Some((hop.via?, hop.weight))).collect();
                Ok(if hops == wanted { Ok(()) } else { Err(format!("{row:?}")) })
            })
            .unwrap();
        };
        hops(&mut client, &[(via_c, 1), (via_d, 1)]);
        let even = spread(&lab, target, &[&c, &d]);
        assert!(even.iter().all(|n| *n > 120), "{even:?}");
        b.ip_batch("nexthop replace id 20 group 11,3/12,1\n").unwrap();
        hops(&mut client, &[(via_c, 3), (via_d, 1)]);
        let three_to_one = spread(&lab, target, &[&c, &d]);
        assert!(three_to_one[1] > 50 && three_to_one[0] > 2 * three_to_one[1], "{three_to_one:?}");
        // An object that goes takes its share with it; nothing is sent where nobody is.
        b.ip_batch("nexthop del id 12\n").unwrap();
        wait_until("one next hop", PATIENCE, || {
            let row = lookup(&mut client, target).unwrap_or_default();
            Ok(if row.next_hops.len() == 1 { Ok(()) } else { Err(format!("{row:?}")) })
        })
        .unwrap();
        assert_eq!(spread(&lab, target, &[&c, &d]), [400, 0]);
        // The kernel removes the routes of an object that is deleted, IPv4 ones without a word.
        b.ip_batch("nexthop del id 20\n").unwrap();
        wait_kind(&mut client, target, None);
        assert_eq!(b.ip_json(&[family, "route", "show", &network.to_string()]).unwrap(), serde_json::json!([]));
        b.ip_batch("nexthop del id 11\n").unwrap();
    }
    assert_balanced(&lab);
}

fn a_route_through_a_link_that_is_no_port_goes_by_the_host(driver: &str) {
    let topology = Topology::new();
    if !ferrule::lab::tools::can_test(&["ping"]) {
        return;
    }
    let mut lab = Lab::without_router(&topology).unwrap();
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    // The box forwards for its own other links, as one with containers on it does.
    b.sysctl("net.ipv4.ip_forward", "1").unwrap();
    b.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    b.ip_batch(&format!(
        "link add hv0 type veth peer name vh0 netns {}\nlink set hv0 up\naddr add 198.18.50.1/24 dev hv0\n\
         addr add 2001:2:0:50::1/64 dev hv0 nodad\n",
        c.namespace()
    ))
    .unwrap();
    c.ip_batch(
        "link set vh0 up\naddr add 198.18.50.2/24 dev vh0\naddr add 2001:2:0:50::2/64 dev vh0 nodad\n\
         route add 198.18.10.0/24 via 198.18.50.1\nroute add 2001:2:0:a::/64 via 2001:2:0:50::1\n",
    )
    .unwrap();
    let networks = behind_c(&lab);
    lab.start_router(&router(driver)).unwrap();
    let mut client = client(&lab);
    for ((network, target, _), via) in networks.into_iter().zip(["198.18.50.2", "2001:2:0:50::2"]) {
        b.ip_batch(&format!("route add {network} via {via} dev hv0\n")).unwrap();
        wait_kind(&mut client, target, Some("host"));
        let before = client.snapshot().unwrap().balance.to_host;
        let report = Ping::new(target).run(&a).unwrap();
        assert!(report.is_clean(), "{network}: {report:?}");
        let after = assert_balanced(&lab).balance.to_host;
        assert!(after - before >= 3, "the host had them: {before} to {after}");
        // What doctor tells is at most a second old.
        wait_until("doctor to name it", PATIENCE, || {
            let findings = client.doctor().unwrap();
            let named = |text: &str| text.contains(&network.to_string()) && text.contains("hv0");
            assert!(
                findings.iter().all(|finding| !finding.text.contains("fe80::")),
                "every link has that: {findings:#?}"
            );
            Ok(if findings.iter().any(|finding| named(&finding.text)) { Ok(()) } else { Err(format!("{findings:#?}")) })
        })
        .unwrap();
    }
    assert_balanced(&lab);
}

fn routing_daemons_change_forwarding(driver: &str) {
    let Some(mut lab) = up(driver, &Topology::new(), &["bird", "birdc"]) else { return };
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    let mut client = client(&lab);
    let all = behind_c(&lab);
    type Protocol<'a> = (&'a str, &'a [usize], Option<[&'a str; 2]>);
    let protocols: [Protocol<'_>; 3] = [
        ("OSPF", &[0, 1], None),
        ("BGP", &[0], Some(["198.19.10.1", "198.19.10.2"])),
        ("BGP over IPv6", &[1], Some(["2001:2:0:b::1", "2001:2:0:b::2"])),
    ];
    for (protocol, families, session) in protocols {
        let networks: Vec<_> = families.iter().map(|family| all[*family]).collect();
        let speaks = |own: u32, other: u32, side: usize| match session {
            None => Speaks::Ospf,
            Some(ends) => Speaks::Bgp { neighbour: ends[side].parse().unwrap(), local_as: own, remote_as: other },
        };
        let in_b = BirdConfig {
            router_id: "198.19.10.1".parse().unwrap(),
            device: "bc0".to_owned(),
            speaks: speaks(64512, 64513, 1),
            announce: Vec::new(),
        };
        let mut in_c = BirdConfig {
            router_id: "198.19.10.2".parse().unwrap(),
            device: "cb0".to_owned(),
            speaks: speaks(64513, 64512, 0),
            announce: networks.iter().map(|(network, ..)| *network).collect(),
        };
        let _bird_b = Bird::start(&b, &in_b).unwrap();
        let bird_c = Bird::start(&c, &in_c).unwrap();
        for (network, target, _) in &networks {
            wait_route(&b, *network, Presence::Present, Duration::from_secs(60)).unwrap();
            wait_kind(&mut client, *target, Some("forward"));
            let report = Ping::new(*target).run(&a).unwrap();
            assert!(report.is_clean(), "{protocol} {network}: {report:?}");
        }
        if session.is_none() {
            // A gateway that is killed takes the interfaces with it, and brings them back: the daemons find each other again.
            lab.take_router().into_iter().for_each(Background::kill);
            lab.start_router(&|lab: &Lab| Ok(vec![router(driver).launch(lab, &lab.scratch().join("gateway.toml"))?]))
                .unwrap();
            client = gateway_common::control::client(&lab);
            for (network, target, _) in &networks {
                wait_route(&b, *network, Presence::Present, Duration::from_secs(60)).unwrap();
                wait_kind(&mut client, *target, Some("forward"));
                let report = Ping::new(*target).run(&a).unwrap();
                assert!(report.is_clean(), "{protocol} {network} after a restart: {report:?}");
            }
        }
        in_c.announce.clear();
        bird_c.configure(&in_c).unwrap();
        for (network, target, _) in &networks {
            wait_route(&b, *network, Presence::Absent, Duration::from_secs(60)).unwrap();
            wait_kind(&mut client, *target, None);
            assert_eq!(Ping::new(*target).count(1).run(&a).unwrap().received, 0, "{protocol} {network} is withdrawn");
        }
    }
    let end = assert_balanced(&lab);
    assert!(count(&end.punted, "routing") > 10, "the daemons' packets went up as such: {:?}", end.punted);
}

/// The n-th of the routes that come and go, and an address in it.
fn churned(n: u32, v4: bool) -> (IpNetwork, IpAddr) {
    if v4 {
        let network = Ipv4Addr::from(0x0a00_0000 + (n << 7));
        let address = Ipv4Addr::from(u32::from(network) + 1);
        return (IpNetwork::new(network.into(), 25).unwrap(), address.into());
    }
    let network = Ipv6Addr::from(0x2001_0db8_u128 << 96 | u128::from(n) << 64);
    (IpNetwork::new(network.into(), 64).unwrap(), Ipv6Addr::from(u128::from(network) + 1).into())
}

fn a_hundred_thousand_routes_come_and_go_under_load(driver: &str) {
    const ROUTES: u32 = 100_000;
    let _alone = alone();
    let Some(lab) = up(driver, &Topology::new().second_next_hop(), &[]) else { return };
    let (a, b, c, d) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap(), lab.host("d").unwrap());
    let mut client = client(&lab);
    // Both hosts own all of the space, and a short route leads to one of them throughout: whatever is in force at a moment, a
    // packet arrives.
    for host in [&c, &d] {
        host.ip_batch("route add local 10.0.0.0/8 dev lo\nroute add local 2001:db8::/32 dev lo\n").unwrap();
    }
    b.ip_batch(&format!("route add 10.0.0.0/8 via {}\nroute add 2001:db8::/32 via {}\n", lab.v4("c"), lab.v6("c")))
        .unwrap();
    for v4 in [true, false] {
        let hops: [IpAddr; 2] =
            if v4 { [lab.v4("c").into(), lab.v4("d").into()] } else { [lab.v6("c").into(), lab.v6("d").into()] };
        for hop in hops {
            assert!(Ping::new(hop).run(&a).unwrap().is_clean());
        }
        wait_kind(&mut client, churned(0, v4).1, Some("forward"));
        let start = assert_balanced(&lab);
        let routes = |row: ferrule::snapshot::RouteTotals| if v4 { row.ipv4 } else { row.ipv6 };
        let at_first = routes(start.routes);
        let lines = |verb: &str| {
            let mut lines = String::new();
            for n in 0..ROUTES {
                let _ = writeln!(lines, "route {verb} {} via {}", churned(n, v4).0, hops[n as usize % 2]);
            }
            lines
        };
        let (add, delete) = (lines("add"), lines("del"));
        let frames: Vec<Vec<u8>> =
            (0..512u32).map(|n| datagram(&lab, churned(n * 195, v4).1, (5000 + n as u16, 9), &[0; 18])).collect();
        let before = (arrived(&[&c, &d]), lost_by_devices(&b));
        let done = AtomicBool::new(false);
        let (sent, dropped) = std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let (mut sent, mut dropped) = (0, 0);
                while !done.load(Ordering::Relaxed) {
                    let second = Duration::from_secs(1);
                    let run = generator::run((&a, "ab0"), (&c, "cb0"), Count::Datagrams, &frames, Some(20_000), second)
                        .unwrap();
                    (sent, dropped) = (sent + run.sent, dropped + run.dropped_at_sender);
                }
                (sent, dropped)
            });
            for (lines, wanted) in [(&add, at_first + u64::from(ROUTES)), (&delete, at_first)] {
                let begun = Instant::now();
                b.ip_batch(lines).unwrap();
                let taken = begun.elapsed();
                wait_until(&format!("{wanted} routes"), Duration::from_secs(60), || {
                    let now = routes(client.snapshot().unwrap().routes);
                    Ok(if now == wanted { Ok(()) } else { Err(format!("{now}")) })
                })
                .unwrap();
                println!("{driver}: {ROUTES} changes in {taken:?}, followed after {:?}", begun.elapsed());
            }
            done.store(true, Ordering::Relaxed);
            load.join().unwrap()
        });
        let end = assert_balanced(&lab);
        let delivered: u64 = arrived(&[&c, &d]).iter().sum::<u64>() - before.0.iter().sum::<u64>();
        let after_us = lost_by_devices(&b) - before.1;
        let before_us: u64 = end.ports.iter().zip(&start.ports).map(|(e, s)| e.device_rx_lost - s.device_rx_lost).sum();
        println!(
            "{driver}: sent {sent}, refused by the first link {dropped}, lost before us {before_us}, after us {after_us}"
        );
        assert!(sent > 5_000, "there was a load");
        assert_eq!(
            delivered + dropped + before_us + after_us,
            sent,
            "every datagram is where it should be, or told lost"
        );
        // The hosts answer with port unreachable at their own pace; those come back through us and are no loss.
        for (now, then) in end.drops.iter().zip(&start.drops) {
            assert_eq!(now.count, then.count, "dropped for {} while routes changed", now.name);
        }
        // What the machine cannot carry may be lost on a link, never much of it.
        assert!((dropped + before_us + after_us) * 20 < sent, "the load was too high to prove anything");
    }
    assert_eq!(count(&client.snapshot().unwrap().events, "routes_refused"), 0);
}

/// Frames that the NICs of the gateway gave to a peer that had no room.
fn lost_by_devices(b: &Host) -> u64 {
    ["ba0.phy", "bc0.phy", "bd0.phy"].iter().map(|nic| counters::device(b, nic).unwrap().tx_dropped).sum()
}
