use super::*;

#[test]
fn the_plain_lab_is_three_hosts_and_two_links() {
    let plan = Topology::new().queues(4).plan().unwrap();
    assert_eq!(plan.hosts, ["b", "a", "c"]);
    let names = |host| plan.ends(host).map(|end| end.device.as_str()).collect::<Vec<_>>();
    assert_eq!((names("a"), names("b"), names("c")), (vec!["ab0"], vec!["ba0", "bc0"], vec!["cb0"]));
    let batch = plan.link_batch("b", |host| format!("ns-{host}"));
    assert_eq!(
        batch.lines().next().unwrap(),
        "link add ba0 mtu 1500 address 02:fe:00:00:00:01 numtxqueues 4 numrxqueues 4 type veth \
         peer name ab0 mtu 1500 address 02:fe:00:00:00:02 numtxqueues 4 numrxqueues 4 netns ns-a"
    );
    let host = plan.host_batch("c");
    for line in [
        "link set cb0 up",
        "addr add 198.19.10.2/24 dev cb0",
        "addr add 2001:2:0:b::2/64 dev cb0 nodad",
        "route add default via 198.19.10.1",
        "route add default via 2001:2:0:b::1",
    ] {
        assert!(host.lines().any(|have| have == line), "{line} not in\n{host}");
    }
    assert!(!plan.host_batch("b").contains("addr"), "the router sets its own addresses");
    let router = plan.router_batch();
    assert!(
        router.contains("addr replace 198.18.10.1/24 dev ba0\n") && router.contains("2001:2:0:b::1/64 dev bc0 nodad")
    );
}

#[test]
fn the_links_may_have_unequal_queues() {
    let plan = Topology::new().queues(3).client_queues(1).plan().unwrap();
    let queues: Vec<_> = plan.links.iter().map(|link| (link.far.host.as_str(), link.queues)).collect();
    assert_eq!(queues, [("a", 1), ("c", 3)]);
    assert!(Topology::new().client_queues(0).plan().is_err());
}

#[test]
fn several_hosts_share_a_bridge() {
    let plan = Topology::new().clients(3).plan().unwrap();
    assert_eq!(plan.hosts, ["b", "a", "a2", "a3", "sa", "c"]);
    assert_eq!(plan.ends("sa").map(|end| end.device.as_str()).collect::<Vec<_>>(), ["sb0", "s1", "s2", "s3"]);
    assert!(plan.host_batch("sa").contains("link set s3 master br0 up"));
    assert!(plan.host_batch("a3").contains("addr add 198.18.10.4/24 dev ab0"));
    let mut macs: Vec<_> = plan.links.iter().flat_map(|link| [link.near.mac, link.far.mac]).collect();
    macs.sort_unstable();
    macs.dedup();
    assert_eq!(macs.len(), plan.links.len() * 2, "every end has a MAC address of its own");
}

#[test]
fn further_links_bring_routes_for_the_router() {
    let plan = Topology::new().second_next_hop().narrow_link(1400).plan().unwrap();
    assert_eq!(plan.hosts, ["b", "a", "c", "d", "e"]);
    let router = plan.router_batch();
    assert!(
        router.contains("route replace 198.18.100.0/24 nexthop via 198.19.10.2 nexthop via 198.18.20.2\n"),
        "{router}"
    );
    assert!(router.contains("route replace 2001:2:0:e::/64 via 2001:2:0:b::2\n"), "{router}");
    assert!(plan.host_batch("d").contains("addr add 198.18.100.1/24 dev lo"));
    assert_eq!(plan.forwarders, ["c"]);
}

#[test]
fn without_ipv6_nothing_speaks_of_it() {
    let plan = Topology::new().without_ipv6().second_next_hop().narrow_link(600).plan().unwrap();
    let all: String = plan.hosts.iter().map(|host| plan.host_batch(host)).collect();
    assert!(!(all + &plan.router_batch()).contains("::"));
}

#[test]
fn requests_out_of_range_are_refused() {
    let vlan = Vlan { id: 4095, protocol: TagProtocol::Dot1q };
    for (topology, part) in [
        (Topology::new().queues(0), "1 to 64"),
        (Topology::new().mtu(1279), "1280"),
        (Topology::new().clients(201), "1 to 200"),
        (Topology::new().name("../x"), "lab name"),
        (Topology::new().name(""), "lab name"),
        (Topology::new().vlan("a", vlan), "1 to 4094"),
        (Topology::new().vlan("b", Vlan { id: 5, ..vlan }), "no end host"),
    ] {
        let error = topology.plan().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn device_names_fit_even_with_the_suffix_of_a_taken_over_port() {
    let plan = Topology::new().clients(200).servers(200).second_next_hop().narrow_link(1280).plan().unwrap();
    for link in &plan.links {
        for end in [&link.near, &link.far] {
            assert!(end.device.len() + ".phy".len() <= 15, "{}", end.device);
        }
    }
}
