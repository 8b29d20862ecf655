//! Proves the routing probe with the kernel as the router: BIRD in B learns a route from C, and traffic follows it.
use ferrule::lab::probe::ping::Ping;
use ferrule::lab::probe::routing::{Bird, BirdConfig, Presence, Speaks, wait_route};
use ferrule::lab::{KernelRouter, Lab, Topology, tools};
use ipnetwork::IpNetwork;
use std::net::IpAddr;
use std::time::Duration;

fn learned(protocol: &str) {
    if !tools::can_test(&["bird", "birdc", "ping"]) {
        return;
    }
    let lab = Lab::up(&Topology::new(), &KernelRouter).unwrap();
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    let networks: Vec<IpNetwork> = match protocol {
        "ospf" => vec!["198.18.200.0/24".parse().unwrap(), "2001:2:0:200::/64".parse().unwrap()],
        _ => vec!["198.18.200.0/24".parse().unwrap()],
    };
    c.ip_batch("addr add 198.18.200.1/24 dev lo\naddr add 2001:2:0:200::1/64 dev lo nodad\n").unwrap();
    let targets: [IpAddr; 2] = ["198.18.200.1".parse().unwrap(), "2001:2:0:200::1".parse().unwrap()];
    let speaks = |own: u32, other: u32, neighbour: &str| match protocol {
        "ospf" => Speaks::Ospf,
        _ => Speaks::Bgp { neighbour: neighbour.parse().unwrap(), local_as: own, remote_as: other },
    };
    let in_b = BirdConfig {
        router_id: "198.19.10.1".parse().unwrap(),
        device: "bc0".to_string(),
        speaks: speaks(64512, 64513, "198.19.10.2"),
        announce: Vec::new(),
    };
    let mut in_c = BirdConfig {
        router_id: "198.19.10.2".parse().unwrap(),
        device: "cb0".to_string(),
        speaks: speaks(64513, 64512, "198.19.10.1"),
        announce: networks.clone(),
    };
    let _bird_b = Bird::start(&b, &in_b).unwrap();
    let bird_c = Bird::start(&c, &in_c).unwrap();
    for (network, target) in networks.iter().zip(targets) {
        wait_route(&b, *network, Presence::Present, Duration::from_secs(60)).unwrap();
        let report = Ping::new(target).run(&a).unwrap();
        assert!(report.is_clean(), "{target}: {report:?}");
    }
    in_c.announce.clear();
    bird_c.configure(&in_c).unwrap();
    for (network, target) in networks.iter().zip(targets) {
        wait_route(&b, *network, Presence::Absent, Duration::from_secs(60)).unwrap();
        assert_eq!(Ping::new(target).count(1).run(&a).unwrap().received, 0);
    }
}

#[test]
fn traffic_follows_a_route_learned_over_ospf() {
    learned("ospf");
}

#[test]
fn traffic_follows_a_route_learned_over_bgp() {
    learned("bgp");
}
