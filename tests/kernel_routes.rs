//! The kernel's routes as events: dump, changes, latency, bulk, overrun. Needs root.

mod kernel_common;

use ferrule::kernel::{Event, Follower, Hop, Monitor, MonitorOptions, PortId, RouteAction};
use ipnetwork::IpNetwork;
use kernel_common::{ifindex, inside, poll_all, poll_until, run};
use std::collections::HashMap;
use std::io::Write;
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_millis(150);
const LIMIT: Duration = Duration::from_secs(5);

/// The packet path's view: what a table holds after the events.
#[derive(Default)]
struct View {
    routes: HashMap<IpNetwork, (u32, RouteAction)>,
}

impl View {
    fn apply(&mut self, events: Vec<Event>) -> &mut Self {
        for event in events {
            match event {
                Event::RouteReplace { prefix, metric, action } => {
                    self.routes.insert(prefix, (metric, (*action).clone()));
                }
                Event::RouteDelete { prefix } => {
                    assert!(self.routes.remove(&prefix).is_some(), "{prefix} withdrawn but never given");
                }
                _ => {}
            }
        }
        self
    }

    fn get(&self, prefix: &str) -> Option<&RouteAction> {
        self.routes.get(&prefix.parse::<IpNetwork>().unwrap()).map(|(_, action)| action)
    }
}

/// Two links with addresses, both ports, and a third that is none.
fn two_ports() -> (Monitor, u32, u32, View) {
    run("ip link add pa type veth peer name xa; ip link add pb type veth peer name xb; ip link add other type veth peer name xo
         for d in pa xa pb xb other xo; do ip link set $d addrgenmode none; ip link set $d up; done
         ip addr add 10.0.1.1/24 dev pa; ip addr add 10.0.2.1/24 dev pb; ip addr add 10.0.3.1/24 dev other
         ip -6 addr add 2001:db8:1::1/64 dev pa nodad; ip -6 addr add 2001:db8:2::1/64 dev pb nodad");
    let (pa, pb) = (ifindex("pa"), ifindex("pb"));
    let mut monitor = Monitor::open(MonitorOptions::default()).unwrap();
    monitor.set_ports([(pa, PortId(0)), (pb, PortId(1))]);
    let mut view = View::default();
    let events = poll_until(&mut monitor, LIMIT, |events| events.contains(&Event::Synchronized));
    view.apply(events);
    (monitor, pa, pb, view)
}

fn via(ifindex: u32, port: u16, gateway: &str, weight: u16) -> Hop {
    Hop { ifindex, port: Some(PortId(port)), gateway: Some(gateway.parse().unwrap()), weight }
}

#[test]
fn the_first_dump_has_connected_local_and_broadcast_routes() {
    inside(|_| {
        let (_, pa, _, view) = two_ports();
        let connected = Hop { ifindex: pa, port: Some(PortId(0)), gateway: None, weight: 1 };
        assert_eq!(view.get("10.0.1.0/24"), Some(&RouteAction::Forward(vec![connected.clone()])));
        assert_eq!(view.get("2001:db8:1::/64"), Some(&RouteAction::Forward(vec![connected])));
        assert_eq!(view.get("10.0.1.1/32"), Some(&RouteAction::Local { ifindex: pa }));
        assert_eq!(view.get("2001:db8:1::1/128"), Some(&RouteAction::Local { ifindex: pa }));
        assert_eq!(view.get("10.0.1.255/32"), Some(&RouteAction::Broadcast { ifindex: pa }));
        let other = Hop { ifindex: ifindex("other"), port: None, gateway: None, weight: 1 };
        assert_eq!(view.get("10.0.3.0/24"), Some(&RouteAction::HostVia(vec![other])));
    });
}

#[test]
fn each_kind_of_route_is_followed() {
    inside(|_| {
        let (mut monitor, pa, pb, mut view) = two_ports();
        run("ip route add 192.0.2.0/24 via 10.0.1.2
             ip route add 198.51.100.0/24 nexthop via 10.0.1.2 weight 1 nexthop via 10.0.2.2 weight 3
             ip route add blackhole 203.0.113.0/25; ip route add unreachable 203.0.113.128/26; ip route add prohibit 203.0.113.192/26
             ip -6 route add 2001:db8:f::/48 via 2001:db8:1::2
             ip -6 route add 2001:db8:e::/48 nexthop via 2001:db8:1::2 nexthop via 2001:db8:2::2
             ip -6 route add blackhole 2001:db8:d::/48
             ip route add 192.0.3.0/24 via inet6 2001:db8:2::7 dev pb");
        view.apply(poll_all(&mut monitor, QUIET));
        let one = via(pa, 0, "10.0.1.2", 1);
        assert_eq!(view.get("192.0.2.0/24"), Some(&RouteAction::Forward(vec![one.clone()])));
        let spread = RouteAction::Forward(vec![one.clone(), via(pb, 1, "10.0.2.2", 3)]);
        assert_eq!(view.get("198.51.100.0/24"), Some(&spread));
        assert_eq!(view.get("203.0.113.0/25"), Some(&RouteAction::Blackhole));
        assert_eq!(view.get("203.0.113.128/26"), Some(&RouteAction::Unreachable));
        assert_eq!(view.get("203.0.113.192/26"), Some(&RouteAction::Prohibit));
        let six = via(pa, 0, "2001:db8:1::2", 1);
        assert_eq!(view.get("2001:db8:f::/48"), Some(&RouteAction::Forward(vec![six.clone()])));
        let spread = RouteAction::Forward(vec![six.clone(), via(pb, 1, "2001:db8:2::2", 1)]);
        assert_eq!(view.get("2001:db8:e::/48"), Some(&spread));
        assert_eq!(view.get("2001:db8:d::/48"), Some(&RouteAction::Blackhole));
        let mixed = RouteAction::Forward(vec![via(pb, 1, "2001:db8:2::7", 1)]);
        assert_eq!(view.get("192.0.3.0/24"), Some(&mixed));

        // One hop of an IPv6 set goes, then the rest; a lower metric wins and gives way again.
        run("ip -6 route del 2001:db8:e::/48 via 2001:db8:2::2; ip -6 route append 2001:db8:f::/48 via 2001:db8:2::2
             ip route add 192.0.2.0/24 via 10.0.2.2 metric 50; ip route del blackhole 203.0.113.0/25
             ip route replace 198.51.100.0/24 via 10.0.2.9");
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.get("2001:db8:e::/48"), Some(&RouteAction::Forward(vec![six.clone()])));
        let both = RouteAction::Forward(vec![six, via(pb, 1, "2001:db8:2::2", 1)]);
        assert_eq!(view.get("2001:db8:f::/48"), Some(&both));
        assert_eq!(view.get("192.0.2.0/24"), Some(&RouteAction::Forward(vec![one])));
        assert_eq!(view.get("203.0.113.0/25"), None);
        let replaced = RouteAction::Forward(vec![via(pb, 1, "10.0.2.9", 1)]);
        assert_eq!(view.get("198.51.100.0/24"), Some(&replaced));
        run("ip route del 192.0.2.0/24 via 10.0.1.2");
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.get("192.0.2.0/24"), Some(&RouteAction::Forward(vec![via(pb, 1, "10.0.2.2", 1)])));
        assert_same_as_fresh(&mut monitor, &view);
        assert_eq!(monitor.counters().unreadable, 0);
    });
}

#[test]
fn nexthop_objects_and_groups_lead_routes() {
    inside(|_| {
        let (mut monitor, pa, pb, mut view) = two_ports();
        run("ip nexthop add id 1 via 10.0.1.2 dev pa; ip nexthop add id 2 via 10.0.2.2 dev pb
             ip nexthop add id 9 group 1/2,7; ip nexthop add id 5 blackhole
             ip route add 192.0.2.0/24 nhid 1; ip route add 198.51.100.0/24 nhid 9; ip route add 203.0.113.0/24 nhid 5
             ip nexthop add id 6 via 2001:db8:1::2 dev pa; ip -6 route add 2001:db8:f::/48 nhid 6");
        view.apply(poll_all(&mut monitor, QUIET));
        let one = via(pa, 0, "10.0.1.2", 1);
        assert_eq!(view.get("192.0.2.0/24"), Some(&RouteAction::Forward(vec![one.clone()])));
        let group = RouteAction::Forward(vec![one, via(pb, 1, "10.0.2.2", 7)]);
        assert_eq!(view.get("198.51.100.0/24"), Some(&group));
        assert_eq!(view.get("203.0.113.0/24"), Some(&RouteAction::Blackhole));
        let six = RouteAction::Forward(vec![via(pa, 0, "2001:db8:1::2", 1)]);
        assert_eq!(view.get("2001:db8:f::/48"), Some(&six));

        // What FRR does when a session moves: the object changes, the routes do not.
        run("ip nexthop replace id 1 via 10.0.2.5 dev pb");
        view.apply(poll_all(&mut monitor, QUIET));
        let moved = via(pb, 1, "10.0.2.5", 1);
        assert_eq!(view.get("192.0.2.0/24"), Some(&RouteAction::Forward(vec![moved.clone()])));
        let group = RouteAction::Forward(vec![moved, via(pb, 1, "10.0.2.2", 7)]);
        assert_eq!(view.get("198.51.100.0/24"), Some(&group));
        run("ip nexthop del id 1");
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.get("192.0.2.0/24"), None, "the kernel drops the routes of a deleted object");
        assert_eq!(view.get("198.51.100.0/24"), Some(&RouteAction::Forward(vec![via(pb, 1, "10.0.2.2", 7)])));
        assert_same_as_fresh(&mut monitor, &view);
    });
}

#[test]
fn routes_that_the_kernel_drops_without_a_word_are_withdrawn() {
    inside(|_| {
        let (mut monitor, _, pb, mut view) = two_ports();
        run("ip route add 192.0.2.0/24 via 10.0.1.2; ip route add 198.51.100.0/24 via 10.0.2.2 src 10.0.1.1
             ip route add 203.0.113.0/24 nexthop via 10.0.1.2 nexthop via 10.0.2.2");
        view.apply(poll_all(&mut monitor, QUIET));
        assert!(view.get("192.0.2.0/24").is_some() && view.get("198.51.100.0/24").is_some());
        run("ip link set pa down");
        view.apply(poll_all(&mut monitor, Duration::from_millis(300)));
        assert_eq!(view.get("192.0.2.0/24"), None);
        assert_eq!(view.get("203.0.113.0/24"), Some(&RouteAction::Forward(vec![via(pb, 1, "10.0.2.2", 1)])));
        run("ip addr del 10.0.1.1/24 dev pa");
        view.apply(poll_all(&mut monitor, Duration::from_millis(300)));
        assert_eq!(view.get("198.51.100.0/24"), None, "its preferred source is gone");
        assert_same_as_fresh(&mut monitor, &view);
    });
}

#[test]
fn a_link_that_becomes_a_port_changes_its_routes() {
    inside(|_| {
        let (mut monitor, pa, pb, mut view) = two_ports();
        let other = ifindex("other");
        monitor.set_ports([(pa, PortId(0)), (pb, PortId(1)), (other, PortId(2))]);
        view.apply(poll_all(&mut monitor, QUIET));
        let hop = Hop { ifindex: other, port: Some(PortId(2)), gateway: None, weight: 1 };
        assert_eq!(view.get("10.0.3.0/24"), Some(&RouteAction::Forward(vec![hop])));
        assert!(!monitor.unsupported().iter().any(|found| found.what.contains("10.0.3.0/24")));
        monitor.set_ports([(pa, PortId(0)), (pb, PortId(1))]);
        view.apply(poll_all(&mut monitor, QUIET));
        assert!(matches!(view.get("10.0.3.0/24"), Some(RouteAction::HostVia(_))));
        let named = monitor.unsupported();
        assert!(named.iter().any(|found| found.what == "route 10.0.3.0/24 dev other"), "{named:?}");
    });
}

#[test]
fn rules_choose_tables_and_others_are_named() {
    inside(|_| {
        let (mut monitor, pa, pb, mut view) = two_ports();
        run("ip route add default via 10.0.1.2; ip route add 192.0.2.0/24 via 10.0.1.2
             ip route add 192.0.0.0/16 via 10.0.2.2 table 77; ip route add throw 192.0.2.128/25 table 77");
        view.apply(poll_all(&mut monitor, QUIET));
        let main = RouteAction::Forward(vec![via(pa, 0, "10.0.1.2", 1)]);
        let other = RouteAction::Forward(vec![via(pb, 1, "10.0.2.2", 1)]);
        assert_eq!(view.get("192.0.2.0/24"), Some(&main));
        assert_eq!(view.get("192.0.0.0/16"), None, "no rule names table 77 yet");
        run("ip rule add priority 100 lookup 77; ip rule add priority 90 from 10.9.0.0/16 lookup 78
             ip rule add priority 80 iif pa lookup 79; ip rule add priority 70 iif lo lookup 80");
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.get("192.0.0.0/16"), Some(&other));
        assert_eq!(view.get("192.0.2.0/24"), Some(&other), "shadowed by the shorter route of the earlier table");
        assert_eq!(view.get("192.0.2.128/25"), Some(&main), "throw goes on to the main table");
        let named: Vec<_> = monitor.unsupported().into_iter().map(|found| found.what).collect();
        assert!(named.contains(&"rule 90: from 10.9.0.0/16 lookup 78".to_owned()), "{named:?}");
        assert!(named.contains(&"rule 80: from all iif pa lookup 79".to_owned()), "{named:?}");
        assert!(!named.iter().any(|what| what.contains("iif lo")), "{named:?}");

        // A route of the main table behind the throw changes; the throw's prefix follows.
        run("ip route replace 192.0.2.0/24 via 10.0.2.9");
        view.apply(poll_all(&mut monitor, QUIET));
        let replaced = RouteAction::Forward(vec![via(pb, 1, "10.0.2.9", 1)]);
        assert_eq!(view.get("192.0.2.128/25"), Some(&replaced));
        run("ip rule del priority 100");
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.get("192.0.2.0/24"), Some(&replaced));
        assert_eq!(view.get("192.0.0.0/16"), None);
        assert_same_as_fresh(&mut monitor, &view);
    });
}

#[test]
fn a_route_is_an_event_within_50_ms() {
    inside(|_| {
        let (mut monitor, ..) = two_ports();
        poll_all(&mut monitor, QUIET);
        let mut worst = Duration::ZERO;
        for i in 0..10 {
            let line = format!("ip route add 192.0.{i}.0/24 via 10.0.1.2");
            let command = std::thread::spawn({
                let namespace =
                    rustix::fs::open("/proc/thread-self/ns/net", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
                move || {
                    let kind = rustix::thread::LinkNameSpaceType::Network;
                    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))
                        .unwrap();
                    run(&line);
                    Instant::now()
                }
            });
            let prefix: IpNetwork = format!("192.0.{i}.0/24").parse().unwrap();
            let is_it = |event: &Event| matches!(event, Event::RouteReplace { prefix: found, .. } if *found == prefix);
            poll_until(&mut monitor, LIMIT, |events| events.iter().any(is_it));
            let seen = Instant::now();
            worst = worst.max(seen.saturating_duration_since(command.join().unwrap()));
        }
        eprintln!("worst time from the end of `ip route add` to the event: {worst:?}");
        assert!(worst < Duration::from_millis(50), "{worst:?}");
    });
}

#[test]
fn a_hundred_thousand_routes_come_and_go() {
    inside(|_| {
        let (mut monitor, pa, _, mut view) = two_ports();
        let before = view.routes.len();
        let action = RouteAction::Forward(vec![via(pa, 0, "10.0.1.2", 1)]);
        batch("add", 100_000);
        let added = Instant::now();
        view.apply(poll_all(&mut monitor, QUIET));
        eprintln!("100,000 routes given out {:?} after ip ended", added.elapsed() - QUIET);
        assert_eq!(view.routes.len(), before + 100_000);
        assert_eq!(view.routes.values().filter(|(_, found)| *found == action).count(), 100_000);
        assert_eq!(monitor.counters().overruns, 0, "64 MiB hold the burst");
        batch("del", 100_000);
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.routes.len(), before);
    });
}

#[test]
fn an_overrun_is_counted_and_repaired() {
    inside(|_| {
        let (_, pa, _, _) = two_ports();
        let options = MonitorOptions { receive_buffer: 4096, ..MonitorOptions::default() };
        let mut monitor = Monitor::open(options).unwrap();
        monitor.set_ports([(pa, PortId(0))]);
        let mut view = View::default();
        view.apply(poll_all(&mut monitor, QUIET));
        let before = view.routes.len();
        batch("add", 5_000);
        view.apply(poll_all(&mut monitor, QUIET));
        assert!(monitor.counters().overruns > 0, "{:?}", monitor.counters());
        assert!(monitor.counters().resyncs > 0);
        assert_eq!(view.routes.len(), before + 5_000);
        batch("del", 5_000);
        view.apply(poll_all(&mut monitor, QUIET));
        assert_eq!(view.routes.len(), before);
    });
}

#[test]
fn the_follower_gives_events_to_its_sink_and_takes_commands() {
    inside(|_| {
        let (_, pa, pb, _) = two_ports();
        let (sender, receiver) = std::sync::mpsc::channel();
        let sink = move |events: &mut Vec<Event>| events.drain(..).for_each(|event| sender.send(event).unwrap());
        let follower = Follower::start(MonitorOptions::default(), [(pa, PortId(0))], Box::new(sink)).unwrap();
        let wait = |wanted: &dyn Fn(&Event) -> bool| {
            while !wanted(&receiver.recv_timeout(LIMIT).expect("no such event")) {}
        };
        wait(&|event| *event == Event::Synchronized);
        let handle = follower.handle();
        let mac = |event: &Event| matches!(event, Event::LinkChange(link) if link.port == Some(PortId(1)) && link.name == "pb");
        handle.set_ports([(pa, PortId(0)), (pb, PortId(1))]).unwrap();
        wait(&mac);
        run("ip route add 192.0.2.0/24 via 10.0.2.2");
        let prefix: IpNetwork = "192.0.2.0/24".parse().unwrap();
        wait(&|event| matches!(event, Event::RouteReplace { prefix: found, .. } if *found == prefix));
        run("ip link set pb mtu 1280; ip addr add 10.0.9.1/24 dev pb");
        wait(&|event| matches!(event, Event::LinkChange(link) if link.mtu == 1280));
        let address: IpNetwork = "10.0.9.1/24".parse().unwrap();
        wait(&|event| matches!(event, Event::AddressAdd { address: found, primary: true, .. } if *found == address));
        run("ip addr del 10.0.9.1/24 dev pb");
        wait(&|event| matches!(event, Event::AddressDelete { address: found, .. } if *found == address));
        handle.resync().unwrap();
        run("ip link del pb");
        wait(&|event| matches!(event, Event::LinkGone { port: Some(PortId(1)), .. }));
        assert_eq!(handle.counters().resyncs, 1);
        assert!(handle.counters().notifications > 0 && handle.counters().routes > 0);
        assert_eq!(handle.failure(), None);
        drop(follower);
        assert!(handle.resync().is_err(), "the thread has ended");
    });
}

/// Adds or deletes `count` /32 routes from 100.64.0.0 on with `ip -batch`.
fn batch(verb: &str, count: u32) {
    let path = std::env::temp_dir().join(format!("ferrule-batch-{}-{verb}-{count}", std::process::id()));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    for i in 0..count {
        let address = std::net::Ipv4Addr::from(0x6440_0000 + i);
        writeln!(file, "route {verb} {address}/32 via 10.0.1.2").unwrap();
    }
    file.into_inner().unwrap().sync_all().unwrap();
    run(&format!("ip -batch {}", path.display()));
    std::fs::remove_file(path).unwrap();
}

/// What was built up by events is what a fresh start reads.
fn assert_same_as_fresh(monitor: &mut Monitor, view: &View) {
    monitor.resync().unwrap();
    let differences = poll_all(monitor, Duration::from_millis(50));
    assert!(differences.is_empty(), "the mirror had drifted: {differences:#?}");
    assert!(!view.routes.is_empty());
}
