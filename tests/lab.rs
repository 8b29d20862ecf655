//! Proves the lab with the kernel as the router: what the end-to-end tests see through the gateway, they see here first.
//! The figures printed (`--nocapture`) are the kernel's rows to compare the gateway with.
use ferrule::lab::probe::capture::Capture;
use ferrule::lab::probe::counters;
use ferrule::lab::probe::frame::{Ethernet, IPV4, Ipv4, Seen};
use ferrule::lab::probe::generator::{self, Count};
use ferrule::lab::probe::http::WebServer;
use ferrule::lab::probe::iperf::{Direction, Iperf};
use ferrule::lab::probe::ping::{Ping, PingErrorKind};
use ferrule::lab::probe::trace;
use ferrule::lab::{
    Background, KernelRouter, Lab, LabError, Offloads, TagProtocol, Topology, Vlan, anycast_v4, tools, wait_until,
};
use std::net::IpAddr;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

/// The lab, or `None` after saying why it cannot be had here.
fn lab(tools: &[&str], topology: &Topology) -> Option<Lab> {
    tools::can_test(tools).then(|| Lab::up(topology, &KernelRouter).unwrap())
}

/// The server's addresses.
fn both(lab: &Lab, host: &str) -> [IpAddr; 2] {
    [lab.v4(host).into(), lab.v6(host).into()]
}

#[test]
fn ping_of_every_size_passes_and_loses_one_hop() {
    let Some(lab) = lab(&["ping"], &Topology::new().queues(2)) else { return };
    let a = lab.host("a").unwrap();
    for to in both(&lab, "c") {
        // 0 has no room for a time stamp; 1472 fills IPv4; beyond it the end hosts fragment.
        for size in [0, 1, 56, 1000, 1452, 1472, 1473, 3000, 9000] {
            let report = Ping::new(to).size(size).run(&a).unwrap();
            assert!(report.is_clean(), "{to} size {size}: {report:?}");
            assert_eq!(report.reply_ttl, Some(63), "{to}: one router on the way back");
        }
    }
}

#[test]
fn nothing_passes_where_nothing_forwards() {
    if !tools::can_test(&["ping", "iperf3"]) {
        return;
    }
    let lab = Lab::without_router(&Topology::new()).unwrap();
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    for to in both(&lab, "c") {
        let report = Ping::new(to).run(&a).unwrap();
        assert!(report.received == 0 && !report.is_clean(), "{report:?}");
    }
    let error = Iperf::tcp(lab.v4("c")).run(&a, &c).unwrap_err().to_string();
    assert!(error.contains("unable to connect"), "{error}");
}

#[test]
fn errors_of_the_router_are_read() {
    let Some(lab) = lab(&["ping"], &Topology::new().server_mtu(1400).narrow_link(1300)) else { return };
    let a = lab.host("a").unwrap();
    let routers: [IpAddr; 2] = ["198.18.10.1".parse().unwrap(), "2001:2:0:a::1".parse().unwrap()];
    for (to, router) in both(&lab, "c").into_iter().zip(routers) {
        let report = Ping::new(to).ttl(1).count(1).run(&a).unwrap();
        assert_eq!((report.errors[0].from, &report.errors[0].kind), (router, &PingErrorKind::TimeExceeded));
        let report = Ping::new(to).dont_fragment().size(1440).count(1).run(&a).unwrap();
        assert_eq!((report.errors[0].from, &report.errors[0].kind), (router, &PingErrorKind::TooBig(1400)));
    }
    // Behind C the link is narrower still; C says so, and B passes it on.
    for to in both(&lab, "e") {
        let report = Ping::new(to).dont_fragment().size(1320).count(1).run(&a).unwrap();
        assert_eq!(report.errors[0].kind, PingErrorKind::TooBig(1300), "{report:?}");
        assert!(Ping::new(to).dont_fragment().size(1200).run(&a).unwrap().is_clean());
        // From now on A knows the path MTU and refuses by itself.
        assert_eq!(Ping::new(to).dont_fragment().size(1320).count(1).run(&a).unwrap().local_mtu, Some(1300));
    }
    let nobody: IpAddr = "198.19.10.77".parse().unwrap();
    assert_eq!(Ping::new(nobody).count(1).run(&a).unwrap().received, 0);
}

#[test]
fn traceroute_shows_the_router() {
    let Some(lab) = lab(&["ping", "traceroute"], &Topology::new()) else { return };
    let a = lab.host("a").unwrap();
    for (to, router) in both(&lab, "c").into_iter().zip(["198.18.10.1", "2001:2:0:a::1"]) {
        let expected = [Some(router.parse().unwrap()), Some(to)];
        assert_eq!(trace::by_ping(&a, to).unwrap(), expected);
        assert_eq!(trace::traceroute(&a, to).unwrap(), expected);
    }
}

#[test]
fn iperf_transfers_in_both_directions() {
    let Some(lab) = lab(&["iperf3"], &Topology::new()) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    for to in both(&lab, "c") {
        for direction in [Direction::Up, Direction::Down] {
            for streams in [1, 3] {
                let report = Iperf::tcp(to).direction(direction).streams(streams).run(&a, &c).unwrap();
                println!(
                    "kernel TCP {to} {direction:?} x{streams}: {:.2} Gbit/s, {} retransmits",
                    report.bits_per_second / 1e9,
                    report.retransmits
                );
                assert_eq!(report.streams, streams as usize);
                assert!(report.bytes > 1_000_000, "{report:?}");
            }
            let report = Iperf::udp(to, "10M", 1000).direction(direction).streams(3).run(&a, &c).unwrap();
            println!("kernel UDP {to} {direction:?} x3: {} datagrams, {} lost", report.datagrams, report.lost);
            assert!(report.datagrams > 1000 && report.lost * 100 <= report.datagrams, "{report:?}");
        }
    }
    let counted = counters::protocols(&lab.host("b").unwrap()).unwrap();
    assert!(counted["IpForwDatagrams"] > 2000 && counted["Ip6OutForwDatagrams"] > 2000, "{counted:?}");
}

#[test]
fn a_download_of_200_megabytes_arrives_whole() {
    let Some(lab) = lab(&["nginx", "curl", "sha256sum"], &Topology::new()) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let mut server = WebServer::start(&c, 200_000_000).unwrap();
    for from in both(&lab, "c") {
        let download = server.download(&a, from, Duration::from_secs(60)).unwrap();
        println!("kernel HTTP {from}: {:.0} MB/s", download.bytes as f64 / download.seconds / 1e6);
        assert_eq!((download.status, download.bytes), (200, 200_000_000));
        assert_eq!(download.sha256, server.sha256());
    }
}

#[test]
fn a_frame_made_by_hand_comes_out_with_new_addresses_and_one_hop_less() {
    let Some(lab) = lab(&[], &Topology::new()) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let sender = a.packet_socket("ab0").unwrap();
    let mut receiver = c.packet_socket("cb0").unwrap();
    let ethernet = Ethernet::new(lab.mac("a", "ab0"), lab.mac("b", "ba0"));
    let packet = Ipv4 { ttl: 17, ..Ipv4::new(lab.v4("a"), lab.v4("c")) }.udp((4000, 9), b"by hand");
    sender.send(&ethernet.frame(IPV4, &packet)).unwrap();
    let wanted = |frame: &[u8]| Seen::read(frame).is_some_and(|seen| seen.ports() == Some((4000, 9)));
    let frame = receiver.receive_where(LIMIT, wanted).unwrap().expect("the datagram at C");
    let seen = Seen::read(&frame).unwrap();
    assert_eq!(seen.ethernet, Ethernet::new(lab.mac("b", "bc0"), lab.mac("c", "cb0")));
    assert_eq!(seen.packet[..], Ipv4 { ttl: 16, ..Ipv4::new(lab.v4("a"), lab.v4("c")) }.udp((4000, 9), b"by hand"));
    // A TTL of 1 ends at B, which tells A.
    let mut errors = a.packet_socket("ab0").unwrap();
    let packet = Ipv4 { ttl: 1, ..Ipv4::new(lab.v4("a"), lab.v4("c")) }.udp((4001, 9), b"");
    sender.send(&ethernet.frame(IPV4, &packet)).unwrap();
    let is_error = |frame: &[u8]| Seen::read(frame).is_some_and(|s| s.payload().is_some_and(|p| p[..2] == [11, 0]));
    assert!(errors.receive_where(LIMIT, is_error).unwrap().is_some(), "time exceeded (RFC 792)");
}

#[test]
fn a_host_in_a_vlan_speaks_and_hears_its_tag_only() {
    let vlan = Vlan { id: 5, protocol: TagProtocol::Dot1q };
    let topology = Topology::new().clients(2).vlan("a", vlan).vlan("a2", Vlan { id: 6, protocol: TagProtocol::Dot1ad });
    if !tools::can_test(&["ping", "tc"]) {
        return;
    }
    // The kernel here has no VLAN devices, so B answers by hand.
    let lab = Lab::without_router(&topology).unwrap();
    let mut b = lab.host("b").unwrap().packet_socket("ba0").unwrap();
    let (q, ad) = (0x8100, 0x88a8);
    for (name, tag, wrong) in [("a", (q, 5), [(q, 6), (ad, 5)]), ("a2", (ad, 6), [(ad, 5), (q, 6)])] {
        let host = lab.host(name).unwrap();
        let (mac, address) = (lab.mac(name, "ab0"), lab.v4(name));
        let router = "198.18.10.1".parse().unwrap();
        let mut ping = host.spawn(&["ping", "-c", "1", "-W", "5", "198.18.10.1"]).unwrap();
        let from_host = |frame: &[u8]| Seen::read(frame).is_some_and(|seen| seen.ethernet.source == mac);
        let is_arp = |frame: &[u8]| from_host(frame) && Seen::read(frame).unwrap().ethertype == 0x0806;
        let question = b.receive_where(LIMIT, is_arp).unwrap().expect("an ARP question at B");
        assert_eq!(Seen::read(&question).unwrap().ethernet.tags, [tag]);
        let us = [2, 0, 0, 0, 0, 1];
        let tagged = |(protocol, id)| Ethernet::new(us, mac).tag(protocol, id);
        let answer = |tag| tagged(tag).arp(2, (us, router), (mac, address));
        for tag in wrong {
            b.send(&answer(tag)).unwrap();
        }
        b.send(&Ethernet::new(us, mac).arp(2, (us, router), (mac, address))).unwrap();
        let is_echo = |frame: &[u8]| from_host(frame) && Seen::read(frame).unwrap().ethertype == IPV4;
        let early = b.receive_where(Duration::from_millis(300), is_echo).unwrap();
        assert_eq!(early, None, "answers in another VLAN or none are not heard");
        b.send(&answer(tag)).unwrap();
        let echo =
            b.receive_where(LIMIT, is_echo).unwrap().expect("the echo request once the answer had the right tag");
        let echo = Seen::read(&echo).unwrap();
        assert_eq!(echo.ethernet.tags, [tag]);
        let mut reply = echo.payload().unwrap().to_vec();
        reply[0] = 0;
        reply[2..4].fill(0);
        let sum = ferrule::lab::probe::frame::checksum(&[&reply]).to_be_bytes();
        reply[2..4].copy_from_slice(&sum);
        b.send(&tagged(tag).frame(IPV4, &Ipv4::new(router, address).packet(1, &reply))).unwrap();
        wait_until("the ping to end well", LIMIT, || {
            let log = ping.log();
            Ok(if log.contains("1 received") && !ping.is_running() { Ok(()) } else { Err(log) })
        })
        .unwrap();
    }
}

#[test]
fn flows_are_shared_between_two_next_hops() {
    let Some(lab) = lab(&[], &Topology::new().second_next_hop()) else { return };
    let a = lab.host("a").unwrap();
    let sender = a.packet_socket("ab0").unwrap();
    // The router must know both neighbours, or the first packets wait and are lost.
    for host in ["c", "d"] {
        assert!(Ping::new(lab.v4(host)).run(&a).unwrap().is_clean());
    }
    let before = ["c", "d"].map(|name| counters::device(&lab.host(name).unwrap(), &format!("{name}b0")).unwrap());
    let ethernet = Ethernet::new(lab.mac("a", "ab0"), lab.mac("b", "ba0"));
    let target = anycast_v4().nth(1).unwrap();
    for port in 0..400 {
        sender.send(&ethernet.frame(IPV4, &Ipv4::new(lab.v4("a"), target).udp((10_000 + port, 9), b"x"))).unwrap();
    }
    let counts = wait_until("400 datagrams at C and D", LIMIT, || {
        let after = ["c", "d"].map(|name| counters::device(&lab.host(name).unwrap(), &format!("{name}b0")).unwrap());
        let counts = [0, 1].map(|index| after[index].rx_packets - before[index].rx_packets);
        Ok(if counts[0] + counts[1] >= 400 { Ok(counts) } else { Err(format!("{counts:?}")) })
    })
    .unwrap();
    println!("kernel ECMP: {counts:?}");
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}

#[test]
fn offloads_decide_whether_frames_are_longer_than_the_mtu() {
    for (offloads, longer) in [(Offloads::On, true), (Offloads::Off, false)] {
        let Some(lab) = lab(&["iperf3", "tcpdump", "tshark"], &Topology::new().offloads(offloads)) else { return };
        let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
        let capture = Capture::start(&b, "ba0", "tcp dst port 5201 and len > 1000").unwrap();
        let report = Iperf::tcp(lab.v4("c")).run(&a, &c).unwrap();
        println!("kernel TCP offloads {offloads:?}: {:.2} Gbit/s", report.bits_per_second / 1e9);
        let captured = capture.stop_after(100, LIMIT).unwrap();
        let longest = captured.frames.iter().map(|frame| frame.bytes.len()).max().unwrap();
        assert_eq!(longest > 1514, longer, "longest frame {longest} with offloads {offloads:?}");
        // Unfinished checksums are what offload means; without it every segment must carry a good one.
        let states = captured.fields(&["tcp.checksum.status", "ip.ttl"]).unwrap();
        assert_eq!(states.len(), captured.frames.len());
        assert!(states.iter().all(|row| row[1] == "64"));
        assert_eq!(states.iter().all(|row| row[0] == "1"), !longer, "checksums with offloads {offloads:?}");
    }
}

#[test]
fn several_hosts_on_a_side_all_reach_the_server() {
    let Some(lab) = lab(&["ping"], &Topology::new().clients(3).servers(2).queues(4).mtu(9000)) else { return };
    for name in ["a", "a2", "a3"] {
        for target in ["c", "c2"] {
            for to in both(&lab, target) {
                let report = Ping::new(to).dont_fragment().size(8900).run(&lab.host(name).unwrap()).unwrap();
                assert!(report.is_clean(), "{name} to {to}: {report:?}");
            }
        }
    }
    let queues = lab.host("b").unwrap().ip_json(&["-d", "link", "show", "dev", "ba0"]).unwrap();
    assert_eq!((&queues[0]["num_rx_queues"], &queues[0]["mtu"]), (&4.into(), &9000.into()));
}

#[test]
fn a_generator_counts_what_arrives() {
    let Some(lab) = lab(&[], &Topology::new()) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    assert!(Ping::new(lab.v4("c")).run(&a).unwrap().is_clean(), "B has to know C's MAC");
    let ethernet = Ethernet::new(lab.mac("a", "ab0"), lab.mac("b", "ba0"));
    let flow = |n: u16| ethernet.frame(IPV4, &Ipv4::new(lab.v4("a"), lab.v4("c")).udp((1024 + n, 9), &[0; 18]));
    let frames: Vec<Vec<u8>> = (0..5000).map(flow).collect();
    let time = Duration::from_millis(500);
    let run = |count, rate| generator::run((&a, "ab0"), (&c, "cb0"), count, &frames, rate, time).unwrap();
    let slow = run(Count::Datagrams, Some(20_000));
    assert_eq!((slow.received, slow.dropped_at_sender), (slow.sent, 0), "every frame arrives at a low rate: {slow:?}");
    assert!((1..=10_100).contains(&slow.sent), "at most 20,000 a second and a batch: {slow:?}");
    generator::sink(&c, "cb0").unwrap();
    let fast = run(Count::Frames, None);
    println!("kernel forwarding, 60-byte frames, raw socket sender: {:.0} kpps ({fast:?})", fast.received_pps() / 1e3);
    assert!(fast.received > 0, "{fast:?}");
    assert!(Ping::new(lab.v4("c")).run(&a).unwrap().is_clean(), "the sink takes UDP only");
    assert_eq!(run(Count::Datagrams, Some(1000)).received, 0, "and all of that");
}

#[test]
fn children_end_with_their_time() {
    let Some(lab) = lab(&[], &Topology::new()) else { return };
    let a = lab.host("a").unwrap();
    let error = a.run(&["sleep", "1000"], Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, LabError::Timeout { .. }), "{error}");
    let error = a.run(&["no-such-program"], LIMIT).unwrap_err();
    assert!(matches!(error, LabError::MissingTool { .. }), "{error}");
    let done = a.run(&["sh", "-c", "exit 7"], LIMIT).unwrap();
    assert_eq!(done.status.code(), Some(7));
    assert!(matches!(lab.host("z"), Err(LabError::NoHost { .. })));
    let left: Vec<Background> = (0..3).map(|_| a.spawn(&["sleep", "1000"]).unwrap()).collect();
    let ids: Vec<u32> = left.iter().filter_map(Background::id).collect();
    drop(left);
    assert!(ids.iter().all(|id| !std::path::Path::new(&format!("/proc/{id}")).exists()));
}

#[test]
fn a_router_that_is_a_child_is_waited_for_and_its_failure_told() {
    if !tools::can_test(&["ping"]) {
        return;
    }
    // Stands for the gateway: a process in B, which forwards only once it has started.
    let commands = |plan: &str| format!("sleep 0.3; echo 1 > /proc/sys/net/ipv4/ip_forward; {plan} exec sleep 1000");
    let gateway = |script: String| {
        move |lab: &Lab| -> Result<Vec<Background>, LabError> {
            lab.host("b")?.ip_batch(&lab.plan().router_batch())?;
            let mut child = lab.host("b")?.spawn(&["sh", "-c", &script])?;
            lab.wait_forwarding(&mut child, LIMIT)?;
            Ok(vec![child])
        }
    };
    let forwarding = gateway(commands("echo 1 > /proc/sys/net/ipv6/conf/all/forwarding;"));
    let mut lab = Lab::up(&Topology::new(), &forwarding).unwrap();
    assert!(Ping::new(lab.v6("c")).run(&lab.host("a").unwrap()).unwrap().is_clean());
    assert!(lab.router()[0].is_running());
    assert_eq!(lab.stop_router().unwrap().len(), 1);
    let failing = gateway("echo no licence to forward; exit 2".to_string());
    lab.start_router(&forwarding).unwrap();
    let error = Lab::up(&Topology::new(), &failing).unwrap_err().to_string();
    assert!(error.contains("no licence to forward"), "{error}");
}
