//! What goes wrong around the gateway, and what it makes of it: neighbours that change or do not answer, links and devices that go and
//! come back, kills and ends, and addresses that come by DHCP and router advertisements. Needs root.
mod gateway_common;

use ferrule::lab::probe::counters;
use ferrule::lab::probe::frame::Seen;
use ferrule::lab::probe::ping::{Ping, PingErrorKind, PingReport};
use ferrule::lab::{Background, GatewayRouter, Host, Lab, Topology, mac_text, tools, wait_until};
use gateway_common::control::*;
use gateway_common::{assert_balanced, count, ferrule as router};
use ipnetwork::IpNetwork;
use serde_json::Value;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

with_both_drivers! {
    a_neighbour_that_changes_its_mac_without_a_word_is_noticed
    packets_wait_for_their_neighbour_in_order
    a_neighbour_that_is_not_there_is_told_to_the_sender
    a_link_goes_down_and_comes_back
    a_port_that_is_set_down_carries_nothing
    a_device_is_deleted_and_made_again
    a_host_interface_that_is_deleted_is_made_again
    nothing_passes_after_a_kill_and_a_restart_goes_on
    an_end_with_the_kernel_restores_everything
    an_end_leaves_the_box_closed
    a_start_that_fails_leaves_everything_as_it_was
    an_address_comes_by_dhcp
    an_address_and_a_default_route_come_by_advertisement
}

/// C in both families.
fn server(lab: &Lab) -> [IpAddr; 2] {
    [lab.v4("c").into(), lab.v6("c").into()]
}

fn once(host: &Host, to: IpAddr) -> PingReport {
    Ping::new(to).count(1).run(host).unwrap()
}

/// Waits until a ping is answered; how long that took.
fn wait_answer(host: &Host, to: IpAddr, limit: Duration) -> Duration {
    let start = Instant::now();
    wait_until(&format!("a ping from {} to {to}", host.name()), limit, || {
        let report = once(host, to);
        Ok(if report.received == 1 { Ok(()) } else { Err(format!("{report:?}")) })
    })
    .unwrap();
    start.elapsed()
}

/// Gives a host its addresses and default routes again, which a link that goes down takes away.
fn configure_again(lab: &Lab, name: &str) {
    let plan = lab.plan();
    let mut batch = String::new();
    for end in plan.ends(name) {
        batch.push_str(&format!("link set {} up\n", end.device));
    }
    for address in plan.addresses.iter().filter(|address| address.host == name && address.device != "lo") {
        let nodad = if address.network.is_ipv6() { " nodad" } else { "" };
        batch.push_str(&format!("addr replace {} dev {}{nodad}\n", address.network, address.device));
    }
    for (_, gateway) in plan.gateways.iter().filter(|(host, _)| host == name) {
        batch.push_str(&format!("route replace default via {gateway}\n"));
    }
    lab.host(name).unwrap().ip_batch(&batch).unwrap();
}

/// State of a port, as `show ports` says it.
fn port_state(lab: &Lab, port: &str) -> (String, u64) {
    let snapshot = client(lab).snapshot().unwrap();
    let row = snapshot.ports.iter().find(|row| row.name == port).unwrap();
    (row.state.clone(), row.reattached)
}

fn wait_port(lab: &Lab, port: &str, state: &str) {
    wait_until(&format!("port {port} {state}"), PATIENCE, || {
        let (now, _) = port_state(lab, port);
        Ok(if now == state { Ok(()) } else { Err(now) })
    })
    .unwrap();
}

fn a_neighbour_that_changes_its_mac_without_a_word_is_noticed(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    for to in server(&lab) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    c.ip_batch("link set cb0 address 02:fe:00:00:77:77\n").unwrap();
    let taken = server(&lab).map(|to| wait_answer(&a, to, Duration::from_secs(60)));
    println!("{driver}: the new MAC was noticed after {taken:?}");
    assert!(once(&a, server(&lab)[0]).is_clean());
    let neighbors = client(&lab).neighbors().unwrap();
    for to in server(&lab) {
        let row = neighbors.iter().find(|row| row.address == to).unwrap();
        assert_eq!(row.mac.as_deref(), Some("02:fe:00:00:77:77"), "{row:?}");
    }
    assert_balanced(&lab);
}

fn packets_wait_for_their_neighbour_in_order(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let sender = a.packet_socket("ab0").unwrap();
    for new in ["198.19.10.50/24", "2001:2:0:b::50/64"] {
        let new: IpNetwork = new.parse().unwrap();
        let mut receiver = c.packet_socket("cb0").unwrap();
        let mut client = client(&lab);
        let before = client.snapshot().unwrap();
        for number in 0..6 {
            sender.send(&datagram(&lab, new.ip(), (7000 + number, 9), b"waits")).unwrap();
        }
        // Four may wait (neighbor_queue); nobody has the address yet.
        wait_until("four packets held", Duration::from_secs(2), || {
            let now = client.snapshot().unwrap();
            let refused = count(&now.drops, "neighbor_queue_full") - count(&before.drops, "neighbor_queue_full");
            Ok(if (now.balance.held, refused) == (4, 2) { Ok(()) } else { Err(format!("{:?}", now.balance)) })
        })
        .unwrap();
        let nodad = if new.is_ipv6() { " nodad" } else { "" };
        c.ip_batch(&format!("addr add {new} dev cb0{nodad}\n")).unwrap();
        for number in 0..4 {
            let is_ours = |frame: &[u8]| {
                Seen::read(frame).and_then(|seen| seen.ports()).is_some_and(|(from, to)| to == 9 && from >= 7000)
            };
            let frame = receiver.receive_where(Duration::from_secs(4), is_ours).unwrap();
            let ports = frame.and_then(|frame| Seen::read(&frame)?.ports());
            assert_eq!(ports, Some((7000 + number, 9)), "{new}: the packets that waited, in order");
        }
        assert!(Ping::new(new.ip()).run(&a).unwrap().is_clean());
        assert_eq!(assert_balanced(&lab).balance.held, 0);
    }
}

fn a_neighbour_that_is_not_there_is_told_to_the_sender(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let a = lab.host("a").unwrap();
    let absent = ["198.19.10.77", "2001:2:0:b::77"];
    let words = ["Destination Host Unreachable", "Destination unreachable: Address unreachable"];
    for ((to, router), text) in absent.into_iter().zip(ROUTER).zip(words) {
        let to: IpAddr = to.parse().unwrap();
        let before = client(&lab).snapshot().unwrap();
        // ping ends a second after the last of them, the answer to the first takes three.
        let report = Ping::new(to).count(6).interval_ms(1000).run(&a).unwrap();
        assert_eq!(report.received, 0);
        assert!(report.errors.len() >= 3, "{report:?}");
        for error in &report.errors {
            assert_eq!(
                (error.from.to_string().as_str(), &error.kind),
                (router, &PingErrorKind::Other(text.to_owned()))
            );
        }
        let after = wait_until("nothing held", PATIENCE, || {
            let now = assert_balanced(&lab);
            Ok(if now.balance.held == 0 { Ok(now) } else { Err(format!("{:?}", now.balance)) })
        })
        .unwrap();
        let dropped: u64 = ["neighbor_failed", "neighbor_queue_full"]
            .iter()
            .map(|reason| count(&after.drops, reason) - count(&before.drops, reason))
            .sum();
        assert_eq!(dropped, 6, "{:?}", after.drops);
    }
}

fn a_link_goes_down_and_comes_back(driver: &str) {
    let Some(lab) = up(driver, &Topology::new().second_next_hop(), &[]) else { return };
    let (a, b, d) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("d").unwrap());
    let c = lab.host("c").unwrap();
    // From D to C, past the link that fails.
    let others = |when: &str| {
        for to in server(&lab) {
            let report = Ping::new(to).count(10).run(&d).unwrap();
            assert!(report.is_clean(), "{when}: {report:?}");
        }
    };
    others("before");
    let before = datagrams(&c);
    let streams = [Stream::start(&lab, "d", "c"), Stream::start(&lab, "c", "a")];
    a.ip_batch("link set ab0 down\n").unwrap();
    wait_port(&lab, "ba0", "down");
    let carrier = |wanted: bool| {
        wait_until("the carrier on the host interface", PATIENCE, || {
            let link = b.ip_json(&["link", "show", "dev", "ba0"]).unwrap();
            let flags = link[0]["flags"].as_array().cloned().unwrap_or_default();
            Ok(if flags.contains(&Value::from("LOWER_UP")) == wanted { Ok(()) } else { Err(link.to_string()) })
        })
        .unwrap();
    };
    carrier(false);
    others("with A's link down");
    configure_again(&lab, "a");
    wait_port(&lab, "ba0", "up");
    carrier(true);
    for to in server(&lab) {
        wait_answer(&a, to, PATIENCE);
    }
    others("after");
    let [past, towards] = streams.map(Stream::end);
    let end = assert_balanced(&lab);
    assert!(past > 100 && towards > 100);
    assert_eq!(datagrams(&c) - before, past, "nothing was lost past the link that failed: {:?}", end.drops);
    assert!(count(&end.drops, "port_down") > 0, "what was for A is told lost: {:?}", end.drops);
}

fn a_port_that_is_set_down_carries_nothing(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    let before = datagrams(&c);
    b.ip_batch("link set ba0 down\n").unwrap();
    wait_port(&lab, "ba0", "down");
    let stream = Stream::start(&lab, "a", "c");
    for (host, to) in [(&a, IpAddr::from(lab.v4("c"))), (&c, lab.v4("a").into()), (&c, lab.v6("a").into())] {
        assert_eq!(once(host, to).received, 0, "the administrator has set the port down");
    }
    assert!(stream.end() > 100);
    assert_eq!(datagrams(&c), before, "nothing is taken from a port that is down");
    assert_balanced(&lab);
    // What the kernel took from the interface when it went down has to be given again.
    b.ip_batch(&format!("link set ba0 up\n{}", lab.plan().router_batch())).unwrap();
    wait_port(&lab, "ba0", "up");
    for to in server(&lab) {
        wait_answer(&a, to, PATIENCE);
    }
    b.ip_batch("link set ba0 mtu 1400\n").unwrap();
    for (to, from) in server(&lab).into_iter().zip(["198.19.10.1", "2001:2:0:b::1"]) {
        let to_a: IpAddr = if to.is_ipv4() { lab.v4("a").into() } else { lab.v6("a").into() };
        let said = wait_until("an MTU that was changed", PATIENCE, || {
            let report = Ping::new(to_a).dont_fragment().size(1420).count(1).run(&c)?;
            Ok(report.errors.first().cloned().ok_or_else(|| format!("{report:?}")))
        })
        .unwrap();
        assert_eq!((said.from.to_string().as_str(), said.kind), (from, PingErrorKind::TooBig(1400)));
    }
    assert_balanced(&lab);
}

fn a_device_is_deleted_and_made_again(driver: &str) {
    let Some(lab) = up(driver, &Topology::new().second_next_hop(), &[]) else { return };
    let (a, b, d) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("d").unwrap());
    let c = lab.host("c").unwrap();
    let before = b.ip_json(&["addr", "show", "dev", "ba0"]).unwrap();
    let arrived = datagrams(&c);
    let streams = [Stream::start(&lab, "d", "c"), Stream::start(&lab, "c", "a")];
    a.ip_batch("link del ab0\n").unwrap();
    wait_port(&lab, "ba0", "absent");
    for to in server(&lab) {
        assert!(Ping::new(to).count(10).run(&d).unwrap().is_clean(), "the other ports go on");
    }
    let events = client(&lab).snapshot().unwrap().events;
    assert_eq!((count(&events, "ports_lost"), count(&events, "ports_reattached")), (1, 0));
    // A USB adapter that is put in again has its MAC and some name.
    b.ip_batch(&format!(
        "link add usb7 address {} type veth peer name ab0 address {} netns {}\n",
        mac_text(lab.mac("b", "ba0")),
        mac_text(lab.mac("a", "ab0")),
        a.namespace()
    ))
    .unwrap();
    a.offloads("ab0", ferrule::lab::Offloads::Off).unwrap();
    configure_again(&lab, "a");
    wait_port(&lab, "ba0", "up");
    assert_eq!(port_state(&lab, "ba0").1, 1);
    for to in server(&lab) {
        wait_answer(&a, to, PATIENCE);
        assert!(Ping::new(to).count(10).run(&a).unwrap().is_clean());
    }
    let after = b.ip_json(&["addr", "show", "dev", "ba0"]).unwrap();
    assert_eq!(before[0]["addr_info"], after[0]["addr_info"], "the host interface kept its addresses");
    let [past, towards] = streams.map(Stream::end);
    let end = assert_balanced(&lab);
    assert!(past > 100 && towards > 100);
    assert_eq!(datagrams(&c) - arrived, past, "nothing was lost past the device that went: {:?}", end.drops);
    assert_eq!((count(&end.events, "ports_lost"), count(&end.events, "ports_reattached")), (1, 1));
}

fn a_host_interface_that_is_deleted_is_made_again(driver: &str) {
    let Some(mut lab) = up(driver, &Topology::new(), &[]) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    add_by_hand(&lab);
    b.ip_batch("link set ba0 mtu 1480\n").unwrap();
    let mut client = client(&lab);
    wait_kind(&mut client, "198.18.200.7".parse().unwrap(), Some("forward"));
    // The record follows the kernel's own notices, which take a moment.
    std::thread::sleep(Duration::from_millis(500));
    let before = configuration(&b);
    let link = || b.ip_json(&["link", "show", "dev", "ba0"]).unwrap()[0].clone();
    let first = link();
    b.ip_batch("link del ba0\n").unwrap();
    wait_until("the host interface made again", PATIENCE, || {
        let events = client.snapshot().unwrap().events;
        let counts = (count(&events, "host_interfaces_lost"), count(&events, "host_interfaces_remade"));
        Ok(if counts == (1, 1) { Ok(()) } else { Err(format!("{counts:?}")) })
    })
    .unwrap();
    assert_same(&before, &configuration(&b));
    let again = link();
    assert_ne!(first["ifindex"], again["ifindex"]);
    assert_eq!([&first["address"], &first["mtu"]], [&again["address"], &again["mtu"]]);
    wait_port(&lab, "ba0", "up");
    for to in server(&lab).into_iter().chain(ROUTER.map(|text| text.parse().unwrap())) {
        wait_answer(&a, to, PATIENCE);
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    wait_kind(&mut client, "198.18.200.7".parse().unwrap(), Some("forward"));
    let log: String = lab.router().iter().map(|child| child.log()).collect();
    assert!(log.contains("the host interface ba0 is gone") && log.contains("the host interface is back"), "{log}");
    assert_balanced(&lab);
}

/// A lab whose B would forward by its kernel: what passes while the gateway is not there, passes by mistake.
fn tempted(topology: &Topology) -> Option<Lab> {
    if !tools::can_test(&["ping"]) {
        return None;
    }
    let lab = Lab::without_router(topology).unwrap();
    let b = lab.host("b").unwrap();
    b.sysctl("net.ipv4.ip_forward", "1").unwrap();
    b.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    b.ip_batch(&lab.plan().router_batch()).unwrap();
    Some(lab)
}

fn kernel_forwarded(b: &Host) -> u64 {
    let all = counters::protocols(b).unwrap();
    all["IpForwDatagrams"] + all.get("Ip6OutForwDatagrams").copied().unwrap_or(0)
}

/// A - C in both families, either way: no packet passes.
fn assert_closed(lab: &Lab, when: &str) {
    let (a, c) = (lab.host("a").unwrap(), lab.host("c").unwrap());
    let pairs =
        [(&a, lab.v4("c").into()), (&a, lab.v6("c").into()), (&c, IpAddr::from(lab.v4("a"))), (&c, lab.v6("a").into())];
    let before = kernel_forwarded(&lab.host("b").unwrap());
    for (from, to) in pairs {
        let report = once(from, to);
        assert_eq!(report.received, 0, "{when}: {report:?}");
    }
    assert_eq!(kernel_forwarded(&lab.host("b").unwrap()), before, "{when}: the kernel forwards nothing");
}

/// Addresses (without indices) and routes of B, for comparing across host interfaces made anew.
fn configuration(b: &Host) -> Vec<String> {
    let mut lines = Vec::new();
    for link in b.ip_json(&["addr", "show"]).unwrap().as_array().unwrap() {
        for address in link["addr_info"].as_array().unwrap() {
            // The kernel makes link-local addresses by itself.
            if address["scope"] == "global" {
                lines.push(format!("{} {}/{}", link["ifname"], address["local"], address["prefixlen"]));
            }
        }
    }
    for family in ["-4", "-6"] {
        for route in b.ip_json(&[family, "route", "show"]).unwrap().as_array().unwrap() {
            if route["dst"] != "fe80::/64" {
                lines.push(format!(
                    "{family} {} {} {} {} {}",
                    route["dst"], route["gateway"], route["dev"], route["metric"], route["nexthops"]
                ));
            }
        }
    }
    lines.sort();
    lines
}

/// An address and two routes beside those of the lab, set while the gateway runs.
fn add_by_hand(lab: &Lab) {
    let b = lab.host("b").unwrap();
    b.ip_batch(&format!(
        "addr add 198.18.40.1/24 dev ba0\naddr add 2001:2:0:40::1/64 dev ba0 nodad\nroute add 198.18.200.0/24 via {}\n\
         route add 2001:2:0:200::/64 via {}\n",
        lab.v4("c"),
        lab.v6("c")
    ))
    .unwrap();
}

/// Starts the gateway again with the file that is there.
fn start_again(lab: &Lab, driver: &str) -> Background {
    router(driver).launch(lab, &lab.scratch().join("gateway.toml")).unwrap()
}

fn nothing_passes_after_a_kill_and_a_restart_goes_on(driver: &str) {
    let Some(mut lab) = tempted(&Topology::new()) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    assert!(Ping::new(lab.v4("c")).run(&a).unwrap().is_clean(), "the kernel would forward");
    let found = kernel_state(&b);
    lab.start_router(&router(driver)).unwrap();
    let forwarded = kernel_forwarded(&b);
    add_by_hand(&lab);
    let mut client = client(&lab);
    wait_kind(&mut client, "198.18.200.7".parse().unwrap(), Some("forward"));
    for to in server(&lab) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    assert_eq!(kernel_forwarded(&b), forwarded, "it is not the kernel that forwards");
    // The record follows the kernel's own notices, which take a moment.
    std::thread::sleep(Duration::from_millis(500));
    let before = configuration(&b);
    lab.take_router().into_iter().for_each(Background::kill);
    assert_closed(&lab, "after a kill");
    let child = start_again(&lab, driver);
    assert_same(&before, &configuration(&b));
    for to in server(&lab) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    wait_kind(&mut gateway_common::control::client(&lab), "2001:2:0:200::7".parse().unwrap(), Some("forward"));
    assert!(child.log().contains("the last run left it"), "the log tells how it was found: {}", child.log());
    assert_balanced(&lab);
    // What was taken over from a killed process is given back as it was found at first.
    child.kill();
    let router = GatewayRouter { engine: "on_exit = \"kernel\"\n".to_owned(), ..router(driver) };
    fs::write(lab.scratch().join("gateway.toml"), router.config(&lab)).unwrap();
    let child = router.launch(&lab, &lab.scratch().join("gateway.toml")).unwrap();
    assert_balanced(&lab);
    assert!(child.stop(PATIENCE).unwrap().0.success());
    wait_until("B as it was", PATIENCE, || {
        let after = kernel_state(&b);
        Ok(if after == found { Ok(()) } else { Err(String::new()) })
    })
    .unwrap_or_else(|_| assert_same(&found, &kernel_state(&b)));
    wait_answer(&a, lab.v4("c").into(), PATIENCE);
}

fn an_end_with_the_kernel_restores_everything(driver: &str) {
    let Some(mut lab) = tempted(&Topology::new().second_next_hop()) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    b.ip_batch(&format!(
        "addr add 198.18.10.9/24 dev ba0\nroute add 198.18.200.0/24 via {} metric 50\nroute add default via {}\n\
         nexthop add id 5 via {} dev bd0\nroute add 198.18.201.0/24 nhid 5\nroute add 2001:2:0:200::/64 via {}\n",
        lab.v4("c"),
        lab.v4("d"),
        lab.v4("d"),
        lab.v6("d"),
    ))
    .unwrap();
    let before = kernel_state(&b);
    let router = GatewayRouter { engine: "on_exit = \"kernel\"\n".to_owned(), ..router(driver) };
    lab.start_router(&router).unwrap();
    for to in server(&lab) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    assert_balanced(&lab);
    let log = lab.stop_router().unwrap().concat();
    assert!(log.contains("the kernel has its devices back"), "{log}");
    wait_until("B as it was", PATIENCE, || {
        // Links take a moment to have their carrier again, and neighbours to be found.
        let after = kernel_state(&b);
        Ok(if after == before { Ok(()) } else { Err(String::new()) })
    })
    .unwrap_or_else(|_| assert_same(&before, &kernel_state(&b)));
    for to in server(&lab) {
        wait_answer(&a, to, PATIENCE);
    }
}

fn an_end_leaves_the_box_closed(driver: &str) {
    let Some(mut lab) = tempted(&Topology::new()) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    lab.start_router(&router(driver)).unwrap();
    add_by_hand(&lab);
    std::thread::sleep(Duration::from_millis(500));
    let before = configuration(&b);
    assert_balanced(&lab);
    let log = lab.stop_router().unwrap().concat();
    assert!(log.contains("nothing passes until ferrule runs again"), "{log}");
    assert_closed(&lab, "after the end");
    let links = b.ip_json(&["link", "show"]).unwrap().to_string();
    assert!(links.contains("ba0.phy") && !links.contains("\"ba0\""), "the NIC keeps its other name: {links}");
    let _child = start_again(&lab, driver);
    assert_same(&before, &configuration(&b));
    for to in server(&lab) {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    assert_balanced(&lab);
}

fn a_start_that_fails_leaves_everything_as_it_was(driver: &str) {
    let Some(lab) = tempted(&Topology::new()) else { return };
    let b = lab.host("b").unwrap();
    let before = kernel_state(&b);
    // Packet memory is had after the NICs are taken over; there is not that much of it.
    let router = GatewayRouter { engine: "buffers = 4194304\nhugepages = \"require\"\n".to_owned(), ..router(driver) };
    let path = lab.scratch().join("gateway.toml");
    fs::write(&path, router.config(&lab)).unwrap();
    let records = lab.scratch().join("records").display().to_string();
    let words = [PROGRAM, "run", path.to_str().unwrap(), "--state-directory", &records];
    let done = b.run(&words, PATIENCE).unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(done.stderr.contains("memory"), "{}", done.stderr);
    wait_until("B as it was", PATIENCE, || {
        let after = kernel_state(&b);
        Ok(if after == before { Ok(()) } else { Err(String::new()) })
    })
    .unwrap_or_else(|_| assert_same(&before, &kernel_state(&b)));
    assert!(Ping::new(lab.v4("c")).run(&lab.host("a").unwrap()).unwrap().is_clean(), "the kernel forwards as before");
}

fn an_address_comes_by_dhcp(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &["dnsmasq", "dhclient"]) else { return };
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let file = |name: &str| lab.scratch().join(name).display().to_string();
    let mut server = a
        .spawn(&[
            "dnsmasq",
            "--keep-in-foreground",
            "--port=0",
            "--conf-file=/dev/null",
            "--user=root",
            "--log-dhcp",
            "--log-facility=-",
            "--interface=ab0",
            "--bind-interfaces",
            "--dhcp-range=198.18.10.100,198.18.10.120,255.255.255.0,2m",
            "--dhcp-option=3",
            &format!("--dhcp-leasefile={}", file("leases")),
            &format!("--pid-file={}", file("dnsmasq.pid")),
        ])
        .unwrap();
    // Only what the address needs: the script of the distribution would write into the machine's /etc.
    let script = lab.scratch().join("dhclient-script");
    let text = "#!/bin/sh\n[ -n \"$new_ip_address\" ] && ip address replace \"$new_ip_address/24\" dev \"$interface\"\nexit 0\n";
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let before = assert_balanced(&lab);
    let mut asking = b
        .spawn(&[
            "dhclient",
            "-4",
            "-d",
            "-cf",
            "/dev/null",
            "-sf",
            script.to_str().unwrap(),
            "-lf",
            &file("dhclient.leases"),
            "-pf",
            &file("dhclient.pid"),
            "ba0",
        ])
        .unwrap();
    let address: IpAddr = wait_until("an address by DHCP", Duration::from_secs(40), || {
        server.check()?;
        asking.check()?;
        let addresses = b.ip_json(&["-4", "addr", "show", "dev", "ba0"])?;
        let all = addresses[0]["addr_info"].as_array().cloned().unwrap_or_default();
        let leased = all
            .iter()
            .filter_map(|address| address["local"].as_str())
            .find(|text| text.contains(".10.1") && text.len() > 11);
        Ok(leased.map(|text| text.parse().unwrap()).ok_or_else(|| format!("{}\n{}", server.log(), asking.log())))
    })
    .unwrap();
    wait_answer(&a, address, PATIENCE);
    let report = Ping::new(address).run(&lab.host("c").unwrap()).unwrap();
    assert!(report.is_clean(), "the leased address is the box's own on every port: {report:?}");
    let end = assert_balanced(&lab);
    assert!(count(&end.punted, "dhcp") > count(&before.punted, "dhcp"), "{:?}", end.punted);
}

fn an_address_and_a_default_route_come_by_advertisement(driver: &str) {
    if !tools::can_test(&["ping", "radvd"]) {
        return;
    }
    let mut lab = Lab::without_router(&Topology::new()).unwrap();
    let router = GatewayRouter { port: "accept_ra = true\n".to_owned(), ..router(driver) };
    lab.start_router(&router).unwrap();
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    let file = |name: &str| lab.scratch().join(name).display().to_string();
    // A is the provider's router, with a network behind it.
    a.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    a.ip_batch("addr add 2001:2:0:f::1/64 dev lo nodad\n").unwrap();
    let text = "interface ab0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvDefaultLifetime 600;\n\
                prefix 2001:2:0:aa::/64 { AdvOnLink on; AdvAutonomous on; }; };\n";
    fs::write(file("radvd.conf"), text).unwrap();
    fs::set_permissions(file("radvd.conf"), fs::Permissions::from_mode(0o644)).unwrap();
    let mut radvd = a
        .spawn(&["radvd", "-n", "-m", "stderr", "-d", "1", "-C", &file("radvd.conf"), "-p", &file("radvd.pid")])
        .unwrap();
    let address: IpAddr = wait_until("an address by advertisement", Duration::from_secs(30), || {
        radvd.check()?;
        let addresses = b.ip_json(&["-6", "addr", "show", "dev", "ba0"])?;
        let all = addresses[0]["addr_info"].as_array().cloned().unwrap_or_default();
        let given = all.iter().filter_map(|a| a["local"].as_str()).find(|text| text.starts_with("2001:2:0:aa:"));
        Ok(given.map(|text| text.parse().unwrap()).ok_or_else(|| format!("{addresses}\n{}", radvd.log())))
    })
    .unwrap();
    a.ip_batch("route add 2001:2:0:aa::/64 dev ab0\n").unwrap();
    wait_answer(&a, address, PATIENCE);
    // By the default route, whose next hop is A's link-local address.
    let behind: IpAddr = "2001:2:0:f::1".parse().unwrap();
    wait_kind(&mut client(&lab), behind, Some("forward"));
    wait_answer(&c, behind, PATIENCE);
    let report = Ping::new(behind).run(&c).unwrap();
    assert!(report.is_clean() && report.reply_ttl == Some(63), "{report:?}");
    assert_balanced(&lab);
}
