//! Real programs through the gateway, with each driver and in both families: what a user does first with a router.
//! Every test ends with the exact balance of the gateway's packets.
#![forbid(unsafe_code)]

mod gateway_common;

use std::net::IpAddr;
use std::time::Duration;

use ferrule::lab::probe::capture::Capture;
use ferrule::lab::probe::counters;
use ferrule::lab::probe::frame::{Ethernet, IPV4, IPV6, Ipv4, Ipv6, Seen};
use ferrule::lab::probe::http::WebServer;
use ferrule::lab::probe::iperf::{Direction, Iperf};
use ferrule::lab::probe::ping::{Ping, PingErrorKind};
use ferrule::lab::probe::trace;
use ferrule::lab::{Host, Offloads, Topology, wait_until};
use gateway_common::{Gateway, LIMIT, assert_balanced, count, ferrule, port};

with_both_drivers! {
    ping_of_every_size_passes_and_loses_one_hop
    traceroute_shows_the_gateway
    ttl_ends_at_the_gateway_and_is_one_less_behind_it
    path_mtu_is_discovered_and_what_may_be_cut_is_cut
    tcp_finds_a_narrow_link_in_the_middle
    iperf_transfers_in_both_directions
    a_download_of_200_megabytes_arrives_whole
    jumbo_frames_of_9000_pass
    unfinished_checksums_are_finished
}

/// The gateway's addresses on A's side.
fn gateways() -> [IpAddr; 2] {
    ["198.18.10.1".parse().unwrap(), "2001:2:0:a::1".parse().unwrap()]
}

fn ping_of_every_size_passes_and_loses_one_hop(driver: &str) {
    let Some(lab) = Gateway::up(&["ping"], &Topology::new(), &ferrule(driver)) else { return };
    let [a, _, _] = lab.hosts();
    for to in lab.both("c") {
        // 0 has no room for a time stamp; 1472 fills IPv4 and 1452 IPv6; beyond, the end hosts send fragments.
        for size in [0, 1, 2, 18, 56, 300, 1000, 1451, 1452, 1453, 1471, 1472, 1473, 2960, 9000, 65_000] {
            let report = Ping::new(to).size(size).count(2).run(&a).unwrap();
            assert!(report.is_clean(), "{to} size {size}: {report:?}");
            assert_eq!(report.reply_ttl, Some(63), "{to}: one router on the way back");
        }
    }
    let snapshot = lab.assert_nothing_dropped();
    assert!(snapshot.ports.iter().all(|p| p.driver == driver), "{:?}", snapshot.ports);
}

fn traceroute_shows_the_gateway(driver: &str) {
    let Some(lab) = Gateway::up(&["ping", "traceroute"], &Topology::new(), &ferrule(driver)) else { return };
    let [a, _, _] = lab.hosts();
    for (to, gateway) in lab.both("c").into_iter().zip(gateways()) {
        let expected = [Some(gateway), Some(to)];
        assert_eq!(trace::by_ping(&a, to).unwrap(), expected);
        assert_eq!(trace::traceroute(&a, to).unwrap(), expected);
    }
    assert_balanced(&lab);
}

fn ttl_ends_at_the_gateway_and_is_one_less_behind_it(driver: &str) {
    let Some(lab) = Gateway::up(&["ping"], &Topology::new(), &ferrule(driver)) else { return };
    let [a, _, c] = lab.hosts();
    let before = assert_balanced(&lab);
    for (to, gateway) in lab.both("c").into_iter().zip(gateways()) {
        let report = Ping::new(to).ttl(1).count(2).interval_ms(300).run(&a).unwrap();
        assert_eq!(report.received, 0, "{report:?}");
        let errors: Vec<_> = report.errors.iter().map(|e| (e.from, &e.kind)).collect();
        assert_eq!(errors, [(gateway, &PingErrorKind::TimeExceeded); 2]);
        assert!(Ping::new(to).ttl(2).run(&a).unwrap().is_clean(), "the next hop is C itself");
    }
    // By hand, so that every byte of the packet is known.
    let sender = a.packet_socket("ab0").unwrap();
    let mut receiver = c.packet_socket("cb0").unwrap();
    let to_gateway = Ethernet::new(lab.mac("a", "ab0"), lab.mac("b", "ba0"));
    let from_gateway = Ethernet::new(lab.mac("b", "bc0"), lab.mac("c", "cb0"));
    let v4 = |ttl| Ipv4 { ttl, tos: 0xb8, ..Ipv4::new(lab.v4("a"), lab.v4("c")) }.udp((4000, 9), b"by hand");
    let v6 = |hop_limit| {
        let header = Ipv6 { hop_limit, traffic_class: 0xb8, flow_label: 77, ..Ipv6::new(lab.v6("a"), lab.v6("c")) };
        header.udp((4000, 9), b"by hand")
    };
    for (ethertype, sent, expected) in [(IPV4, v4(17), v4(16)), (IPV6, v6(17), v6(16))] {
        sender.send(&to_gateway.frame(ethertype, &sent)).unwrap();
        let wanted = |frame: &[u8]| {
            Seen::read(frame).is_some_and(|seen| seen.ethertype == ethertype && seen.ports() == Some((4000, 9)))
        };
        let frame = receiver.receive_where(LIMIT, wanted).unwrap().expect("the datagram at C");
        let seen = Seen::read(&frame).unwrap();
        assert_eq!(seen.ethernet, from_gateway);
        assert_eq!(seen.packet[..expected.len()], expected[..], "all as it was but the hop count and its checksum");
    }
    let after = assert_balanced(&lab);
    assert_eq!(count(&after.drops, "ttl_expired") - count(&before.drops, "ttl_expired"), 4);
    assert_eq!(count(&after.generated, "icmp_error") - count(&before.generated, "icmp_error"), 4);
}

fn path_mtu_is_discovered_and_what_may_be_cut_is_cut(driver: &str) {
    let topology = Topology::new().server_mtu(1400).narrow_link(1300);
    let Some(lab) = Gateway::up(&["ping"], &topology, &ferrule(driver)) else { return };
    let [a, _, _] = lab.hosts();
    // Before A knows the path MTU: DF clear, and the gateway cuts each request in two.
    let before = assert_balanced(&lab);
    assert!(Ping::new(lab.v4("c")).size(1472).run(&a).unwrap().is_clean());
    let after = assert_balanced(&lab);
    let made = |name| count(&after.generated, name) - count(&before.generated, name);
    let ended = |name| count(&after.consumed, name) - count(&before.consumed, name);
    assert_eq!((ended("fragmented"), made("fragment"), made("icmp_error")), (3, 6, 0));
    for (to, gateway) in lab.both("c").into_iter().zip(gateways()) {
        let report = Ping::new(to).dont_fragment().size(1440).count(1).run(&a).unwrap();
        let error = report.errors.first().unwrap_or_else(|| panic!("{to}: {report:?}"));
        assert_eq!((error.from, &error.kind), (gateway, &PingErrorKind::TooBig(1400)));
        // From now on A knows, and refuses by itself what is too long, by one byte too.
        let fits = 1400 - if to.is_ipv4() { 28 } else { 48 };
        assert!(Ping::new(to).dont_fragment().size(fits).run(&a).unwrap().is_clean());
        let report = Ping::new(to).dont_fragment().size(fits + 1).count(1).run(&a).unwrap();
        assert_eq!((report.received, report.local_mtu), (0, Some(1400)));
        assert!(Ping::new(to).size(4000).run(&a).unwrap().is_clean(), "A sends fragments that fit");
    }
    // Behind C the link is narrower still; C says so, and the gateway carries the message to A.
    for to in lab.both("e") {
        let report = Ping::new(to).dont_fragment().size(1320).count(1).run(&a).unwrap();
        assert_eq!(report.errors.first().map(|e| &e.kind), Some(&PingErrorKind::TooBig(1300)), "{report:?}");
        assert!(Ping::new(to).dont_fragment().size(1200).run(&a).unwrap().is_clean());
    }
    let end = assert_balanced(&lab);
    assert_eq!(count(&end.drops, "fragmentation_needed"), 2, "one question in each family");
}

fn tcp_finds_a_narrow_link_in_the_middle(driver: &str) {
    // Both ends agree on segments for 1500 bytes; only the link between B and C takes less.
    let topology = Topology::new().server_mtu(1400).narrow_link(1500);
    let Some(lab) = Gateway::up(&["ping", "iperf3"], &topology, &ferrule(driver)) else { return };
    let [a, ..] = lab.hosts();
    let e = lab.host("e").unwrap();
    for to in lab.both("e") {
        for direction in [Direction::Up, Direction::Down] {
            let report = Iperf::tcp(to).direction(direction).bytes(10_000_000).run(&a, &e).unwrap();
            assert!(report.bytes > 5_000_000, "{to} {direction:?}: {report:?}");
        }
    }
    let snapshot = assert_balanced(&lab);
    let told = count(&snapshot.generated, "icmp_error");
    assert!(told >= 2 && count(&snapshot.drops, "fragmentation_needed") >= told, "{snapshot:?}");
}

/// Datagrams that came to `host` and found their socket full.
fn full_sockets(host: &Host) -> u64 {
    let all = counters::protocols(host).unwrap();
    ["UdpRcvbufErrors", "Udp6RcvbufErrors"].iter().filter_map(|name| all.get(*name)).sum()
}

/// TCP and UDP, both ways, one and three streams, in both families.
fn transfers(lab: &Gateway, what: &str) {
    let [a, _, c] = lab.hosts();
    for to in lab.both("c") {
        for direction in [Direction::Up, Direction::Down] {
            for streams in [1, 3] {
                let report =
                    Iperf::tcp(to).direction(direction).streams(streams).bytes(40_000_000).run(&a, &c).unwrap();
                println!(
                    "{what}: TCP {to} {direction:?} x{streams}: {:.2} Gbit/s, {} retransmits",
                    report.bits_per_second / 1e9,
                    report.retransmits
                );
                assert_eq!(report.streams, streams as usize);
                assert!(report.bytes > 20_000_000, "{report:?}");
                let udp = Iperf::udp(to, "40M", 1200).direction(direction).streams(streams).bytes(2_400_000);
                let receiver = if direction == Direction::Up { &c } else { &a };
                let before = full_sockets(receiver);
                let report = udp.run(&a, &c).unwrap();
                // iperf3 does not always get a core in time to empty its socket; that is no loss of the gateway's.
                let late = full_sockets(receiver) - before;
                println!(
                    "{what}: UDP {to} {direction:?} x{streams}: {} of {} lost, {late} at the receiver's socket",
                    report.lost, report.datagrams
                );
                assert_eq!(report.streams, streams as usize);
                let lost = report.lost.saturating_sub(late);
                assert!(report.datagrams >= 1900 && lost * 100 <= report.datagrams, "{report:?}");
            }
        }
    }
}

fn iperf_transfers_in_both_directions(driver: &str) {
    let Some(lab) = Gateway::up(&["ping", "iperf3"], &Topology::new(), &ferrule(driver)) else { return };
    transfers(&lab, driver);
    assert_balanced(&lab);
}

fn unfinished_checksums_are_finished(driver: &str) {
    let topology = Topology::new().offloads(Offloads::On);
    let Some(lab) = Gateway::up(&["ping", "iperf3", "ethtool"], &topology, &ferrule(driver)) else { return };
    let [a, _, c] = lab.hosts();
    for (host, device) in [(&a, "ab0"), (&c, "cb0")] {
        // Checksums stay with the device, cutting does not.
        host.run(&["ethtool", "-K", device, "tso", "off", "gso", "off"], LIMIT).unwrap().success().unwrap();
        let features = host.run(&["ethtool", "-k", device], LIMIT).unwrap().success().unwrap().stdout;
        assert!(features.contains("tx-checksum-ip-generic: on"), "{features}");
    }
    transfers(&lab, &format!("{driver}, partial checksums"));
    assert_balanced(&lab);
}

fn a_download_of_200_megabytes_arrives_whole(driver: &str) {
    let tools = ["ping", "nginx", "curl", "sha256sum"];
    let Some(lab) = Gateway::up(&tools, &Topology::new(), &ferrule(driver)) else { return };
    download(&lab, driver);
}

fn download(lab: &Gateway, what: &str) {
    let [a, _, c] = lab.hosts();
    let mut server = WebServer::start(&c, 200_000_000).unwrap();
    for from in lab.both("c") {
        let download = server.download(&a, from, Duration::from_secs(90)).unwrap();
        println!("{what}: HTTP {from}: {:.0} MB/s", download.bytes as f64 / download.seconds / 1e6);
        assert_eq!((download.status, download.bytes), (200, 200_000_000));
        assert_eq!(download.sha256, server.sha256());
    }
    let snapshot = assert_balanced(lab);
    assert!(port(&snapshot, "ba0").transmitted.bytes > 400_000_000, "it all went through the gateway: {snapshot:?}");
}

fn jumbo_frames_of_9000_pass(driver: &str) {
    jumbo(driver, 9000);
}

#[test]
fn packet_carries_16114() {
    jumbo("packet", 16_114);
}

fn jumbo(driver: &str, mtu: u32) {
    let Some(lab) = Gateway::up(&["ping", "iperf3"], &Topology::new().mtu(mtu), &ferrule(driver)) else { return };
    let [a, _, c] = lab.hosts();
    let before = assert_balanced(&lab);
    for to in lab.both("c") {
        let largest = mtu - if to.is_ipv4() { 28 } else { 48 };
        for size in [1400, 1500, 2048, 4000, 4096, largest - 1, largest] {
            let report = Ping::new(to).dont_fragment().size(size).run(&a).unwrap();
            assert!(report.is_clean(), "{to} size {size}: {report:?}");
        }
        assert!(Ping::new(to).size(30_000).run(&a).unwrap().is_clean());
        for direction in [Direction::Up, Direction::Down] {
            let report = Iperf::tcp(to).direction(direction).bytes(50_000_000).run(&a, &c).unwrap();
            println!("{driver}, MTU {mtu}: TCP {to} {direction:?}: {:.2} Gbit/s", report.bits_per_second / 1e9);
            assert!(report.bytes > 25_000_000, "{report:?}");
        }
    }
    let after = assert_balanced(&lab);
    let (packets, bytes) = ["ba0", "bc0"].iter().fold((0, 0), |(packets, bytes), name| {
        let grown = |row: fn(&ferrule::snapshot::PortRow) -> u64| row(port(&after, name)) - row(port(&before, name));
        (packets + grown(|p| p.received.packets), bytes + grown(|p| p.received.bytes))
    });
    // Half of the frames are acknowledgements at most.
    assert!(bytes / packets > u64::from(mtu) / 3, "{bytes} bytes in {packets} frames");
}

/// From long links to short ones: a long packet that lies in several buffers is cut, or its sender told.
#[test]
fn jumbo_packets_are_cut_for_a_short_link() {
    for driver in ["xdp", "packet"] {
        let topology = Topology::new().client_mtu(9000);
        let Some(lab) = Gateway::up(&["ping"], &topology, &ferrule(driver)) else { return };
        let [a, ..] = lab.hosts();
        let before = assert_balanced(&lab);
        assert!(Ping::new(lab.v4("c")).size(8000).run(&a).unwrap().is_clean());
        let after = assert_balanced(&lab);
        let made = count(&after.generated, "fragment") - count(&before.generated, "fragment");
        // 8008 bytes of ICMP in pieces of 1480.
        assert_eq!((made, count(&after.consumed, "fragmented") - count(&before.consumed, "fragmented")), (3 * 6, 3));
        for to in lab.both("c") {
            let report = Ping::new(to).dont_fragment().size(8000).count(1).run(&a).unwrap();
            assert_eq!(report.errors.first().map(|e| &e.kind), Some(&PingErrorKind::TooBig(1500)), "{report:?}");
        }
        assert_balanced(&lab);
    }
}

#[test]
fn super_packets_of_the_end_hosts_pass_whole_with_offload() {
    let topology = Topology::new().offloads(Offloads::On);
    let mut router = ferrule("packet");
    router.offload = true;
    let tools = ["ping", "iperf3", "nginx", "curl", "sha256sum"];
    let Some(lab) = Gateway::up(&tools, &topology, &router) else { return };
    let [a, ..] = lab.hosts();
    for to in lab.both("c") {
        for size in [0, 56, 1472, 1473, 30_000] {
            let report = Ping::new(to).size(size).run(&a).unwrap();
            assert!(report.is_clean(), "{to} size {size}: {report:?}");
        }
    }
    transfers(&lab, "packet, offload");
    let before = assert_balanced(&lab);
    download(&lab, "packet, offload");
    let after = assert_balanced(&lab);
    let grown = |row: fn(&ferrule::snapshot::PortRow) -> u64| row(port(&after, "bc0")) - row(port(&before, "bc0"));
    let (packets, bytes) = (grown(|p| p.received.packets), grown(|p| p.received.bytes));
    assert!(bytes / packets > 5000, "from the server came {bytes} bytes in {packets} frames: not whole");
}

/// A super-packet is as long as its segments are: they do not fit, although each might be cut by a device.
#[test]
fn segments_of_super_packets_are_held_against_the_mtu() {
    let topology = Topology::new().offloads(Offloads::On).server_mtu(1400).narrow_link(1500);
    let mut router = ferrule("packet");
    router.offload = true;
    let Some(lab) = Gateway::up(&["ping", "iperf3", "tcpdump"], &topology, &router) else { return };
    let [a, _, c] = lab.hosts();
    let e = lab.host("e").unwrap();
    let capture = Capture::start(&c, "cb0", "tcp and dst port 5201 and greater 1000").unwrap();
    for to in lab.both("e") {
        let report = Iperf::tcp(to).bytes(10_000_000).run(&a, &e).unwrap();
        assert!(report.bytes > 5_000_000, "{to}: {report:?}");
    }
    let captured = capture.stop().unwrap();
    assert!(!captured.frames.is_empty());
    let snapshot = assert_balanced(&lab);
    assert!(count(&snapshot.drops, "fragmentation_needed") >= 2, "{snapshot:?}");
}

/// Frames that the sender left uncut cannot leave a device that cuts nothing: they end, and the operator is told why, once.
#[test]
fn frames_longer_than_the_mtu_are_explained_once() {
    let topology = Topology::new().offloads(Offloads::On);
    let Some(mut lab) = Gateway::up(&["ping", "iperf3"], &topology, &ferrule("packet")) else { return };
    let [a, _, c] = lab.hosts();
    // The transfer stalls and may fail; what matters is what the gateway makes of it.
    let _ = Iperf::tcp(lab.v4("c")).run(&a, &c);
    let snapshot = assert_balanced(&lab);
    assert!(count(&snapshot.drops, "over_mtu_received") > 0, "{:?}", snapshot.drops);
    assert!(Ping::new(lab.v4("c")).run(&a).unwrap().is_clean(), "all else goes on");
    let gateway = &mut lab.lab_mut().router()[0];
    let told = |log: &str| log.matches("ethtool -K").count() / 2;
    wait_until("the explanation", LIMIT, || {
        gateway.check()?;
        let log = gateway.log();
        Ok(if told(&log) == 1 { Ok(()) } else { Err(log) })
    })
    .unwrap();
}
