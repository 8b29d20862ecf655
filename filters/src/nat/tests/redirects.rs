//! Redirections of ports, addresses and protocols, and load sharing.

use super::*;
use ferrule_config::ipfw::ast::Range;
use ferrule_config::ipfw::nat::Redirect;

fn one(port: u16) -> Range<u16> {
    Range { low: port, high: port }
}

fn with(redirects: Vec<Redirect>) -> NatConfig {
    NatConfig { redirects, deny_in: true, ..config() }
}

fn redirect_port(locals: &[(&str, u16)], public: Option<&str>, ports: Range<u16>) -> Redirect {
    let locals = locals.iter().map(|(a, p)| (ip(a), Range { low: *p, high: p + (ports.high - ports.low) })).collect();
    Redirect::Port { protocol: 6, locals, public: public.map(ip), ports, remote: None }
}

#[test]
fn a_port_leads_inside_and_its_answer_out() {
    let mut rig = rig(with(vec![redirect_port(&[(HOST, 6667)], None, one(80))]));
    let inward = rig.back(&tcp((PEER, 4000), (ALIAS, 80), 2)).unwrap();
    assert_eq!(ends(&inward), at((PEER, 4000), (HOST, 6667)));
    let outward = rig.out(&tcp((HOST, 6667), (PEER, 4000), 0x12)).unwrap();
    assert_eq!(ends(&outward), at((ALIAS, 80), (PEER, 4000)));
    assert_eq!(rig.nat.states().next().unwrap().tcp, "connected");
    // Its own connections from that port look the same, even without a state: the redirection holds both ways.
    let own = rig.out(&tcp((HOST, 6667), (PEER, 4001), 2)).unwrap();
    assert_eq!(ends(&own).0, (ALIAS.to_owned(), 80));
    // Other ports, another protocol, another address.
    assert_eq!(rig.back(&tcp((PEER, 4000), (ALIAS, 81), 2)), None);
    assert_eq!(rig.back(&udp((PEER, 4000), (ALIAS, 80))), None);
    assert_eq!(rig.back(&tcp((PEER, 4000), ("198.51.100.3", 80), 2)), None);
}

#[test]
fn ranges_keep_their_distance() {
    let range = Range { low: 2000, high: 2009 };
    let mut rig = rig(with(vec![redirect_port(&[(HOST, 3000)], Some("198.51.100.7"), range)]));
    let inward = rig.back(&tcp((PEER, 9), ("198.51.100.7", 2003), 2)).unwrap();
    assert_eq!(ends(&inward).1, (HOST.to_owned(), 3003));
    assert_eq!(ends(&rig.out(&tcp((HOST, 3009), (PEER, 9), 2)).unwrap()).0, ("198.51.100.7".to_owned(), 2009));
    assert_eq!(rig.back(&tcp((PEER, 9), ("198.51.100.7", 2010), 2)), None);
    assert!(ends(&rig.out(&tcp((HOST, 3010), (PEER, 9), 2)).unwrap()).0.0 == ALIAS, "the port behind is nobody's");
}

#[test]
fn who_says_more_of_the_peer_wins_then_who_comes_last() {
    let to = |local, remote: Option<(&str, u16)>| Redirect::Port {
        protocol: 6,
        locals: vec![(ip(local), one(80))],
        public: None,
        ports: one(80),
        remote: remote.map(|(a, p)| (ip(a), one(p))),
    };
    let mut rig = rig(with(vec![
        to("192.168.0.40", Some((PEER, 4000))),
        to("192.168.0.30", Some((PEER, 0))),
        to("192.168.0.20", Some(("0.0.0.0", 4000))),
        to("192.168.0.11", None),
        to("192.168.0.10", None),
    ]));
    let mut went = |source| ends(&rig.back(&tcp(source, (ALIAS, 80), 2)).unwrap()).1.0;
    assert_eq!(went((PEER, 4000)), "192.168.0.40");
    assert_eq!(went((PEER, 4001)), "192.168.0.30");
    assert_eq!(went(("203.0.113.6", 4000)), "192.168.0.20");
    assert_eq!(went(("203.0.113.6", 4001)), "192.168.0.10");
    let mut rig =
        self::rig(with(vec![to("192.168.0.30", Some((PEER, 0))), to("192.168.0.20", Some(("0.0.0.0", 4000)))]));
    let inward = rig.back(&tcp((PEER, 4000), (ALIAS, 80), 2)).unwrap();
    assert_eq!(ends(&inward).1.0, "192.168.0.30", "the address says more than the port, though written first");
}

#[test]
fn redirections_go_with_the_address_and_the_configuration() {
    let mut rig = rig(with(vec![redirect_port(&[(HOST, 6667)], None, one(80))]));
    let moved = "198.51.100.9";
    assert_eq!(rig.back(&tcp((PEER, 9), (moved, 80), 2)), None);
    rig.nat.reconfigure(&NatConfig { address: Some(ip(moved)), ..rig.nat.config().clone() });
    assert_eq!(ends(&rig.back(&tcp((PEER, 9), (moved, 80), 2)).unwrap()).1.0, HOST);
    assert!(!rig.flags.has(Flags::REROUTE), "the route is still to be found");
    assert_eq!(rig.back(&tcp((PEER, 9), (ALIAS, 80), 2)), None);
    rig.nat.reconfigure(&NatConfig { redirects: vec![], ..rig.nat.config().clone() });
    assert!(rig.back(&tcp((PEER, 9), (moved, 80), 2)).is_some(), "a state outlives its redirection");
    assert_eq!(rig.back(&tcp((PEER, 10), (moved, 80), 2)), None);
}

#[test]
fn the_last_of_several_hosts_behind_one_address_is_reached_and_deny_in_stops_them_all() {
    let public = "198.51.100.20";
    let redirects = [HOST, OTHER].map(|host| Redirect::Address { locals: vec![ip(host)], public: ip(public) }).to_vec();
    let mut rig = rig(NatConfig { redirects, ..config() });
    let other = |source: &str, destination: &str, protocol| packet(source, destination, protocol, &[0; 12]);
    assert_eq!(ends(&rig.back(&other(PEER, public, 254)).unwrap()).1.0, OTHER);
    for host in [HOST, OTHER] {
        assert_eq!(ends(&rig.out(&other(host, PEER, 253)).unwrap()).0.0, public);
    }
    rig.nat.reconfigure(&NatConfig { deny_in: true, ..rig.nat.config().clone() });
    assert_eq!(rig.back(&other(PEER, public, 252)), None);
}

#[test]
fn remote_port_ranges_go_along_with_the_public_ones() {
    let ports = Range { low: 2000, high: 2002 };
    let mut rig = rig(with(vec![Redirect::Port {
        protocol: 6,
        locals: vec![(ip(HOST), Range { low: 3000, high: 3002 })],
        public: None,
        ports,
        remote: Some((ip(PEER), Range { low: 5000, high: 5002 })),
    }]));
    assert_eq!(ends(&rig.back(&tcp((PEER, 5001), (ALIAS, 2001), 2)).unwrap()).1.1, 3001);
    assert_eq!(rig.back(&tcp((PEER, 5000), (ALIAS, 2001), 2)), None);
}

#[test]
fn load_is_shared_in_turn_and_a_flow_stays_where_it_is() {
    let servers = [("192.168.0.11", 8001), ("192.168.0.12", 8002), ("192.168.0.13", 8003)];
    let mut rig = rig(with(vec![redirect_port(&servers, None, one(80))]));
    for round in 0..2 {
        // The last written comes first, as with libalias.
        for (i, server) in servers.iter().rev().enumerate() {
            let port = 4000 + round * 10 + i as u16;
            for _ in 0..3 {
                let inward = rig.back(&tcp((PEER, port), (ALIAS, 80), 2)).unwrap();
                assert_eq!(ends(&inward).1, (server.0.to_owned(), server.1));
            }
            let answer = rig.out(&tcp((server.0, server.1), (PEER, port), 0x12)).unwrap();
            assert_eq!(ends(&answer).0, (ALIAS.to_owned(), 80));
        }
    }
    // A server's own connections are no answers.
    let own = ends(&rig.out(&tcp(servers[0], (PEER, 7777), 2)).unwrap()).0;
    assert!(own.0 == ALIAS && own.1 >= 0x8000);
}

#[test]
fn an_address_stands_for_another_both_ways() {
    let pair = Redirect::Address { locals: vec![ip(HOST)], public: ip("198.51.100.20") };
    let mut rig = rig(NatConfig { redirects: vec![pair], same_ports: true, ..config() });
    let out = rig.out(&udp((HOST, 700), (PEER, 53))).unwrap();
    assert_eq!(ends(&out).0, ("198.51.100.20".to_owned(), 700));
    assert_eq!(ends(&rig.out(&udp((OTHER, 700), (PEER, 53))).unwrap()).0.0, ALIAS);
    let inward = rig.back(&tcp((PEER, 9), ("198.51.100.20", 22), 2)).unwrap();
    assert_eq!(ends(&inward).1, (HOST.to_owned(), 22));
    assert_eq!(ends(&rig.out(&tcp((HOST, 22), (PEER, 9), 0x12)).unwrap()).0, ("198.51.100.20".to_owned(), 22));
    let ping = rig.back(&echo(PEER, "198.51.100.20", 8, 3)).unwrap();
    assert_eq!(ends(&ping).1, (HOST.to_owned(), 3));
    assert_eq!(ends(&rig.out(&echo(HOST, PEER, 0, 3)).unwrap()).0, ("198.51.100.20".to_owned(), 3));
}

#[test]
fn addresses_share_load_too() {
    let locals = vec![ip("192.168.0.11"), ip("192.168.0.12")];
    let shared = Redirect::Address { locals, public: ip(ALIAS) };
    let mut rig = rig(NatConfig { redirects: vec![shared], ..config() });
    let mut went = |port| ends(&rig.back(&udp((PEER, port), (ALIAS, 53))).unwrap()).1.0;
    assert_eq!([went(1), went(2), went(3), went(1)].map(|a| a[10..].to_owned()), ["12", "11", "12", "12"]);
}

#[test]
fn a_protocol_leads_inside() {
    let to = |local, remote: Option<&str>| Redirect::Protocol {
        protocol: 47,
        local: ip(local),
        public: None,
        remote: remote.map(ip),
    };
    let mut rig = rig(with(vec![to(HOST, Some(PEER)), to(OTHER, None)]));
    let gre = |s: &str, d: &str| packet(s, d, 47, &[0; 8]);
    assert_eq!(ends(&rig.back(&gre(PEER, ALIAS)).unwrap()).1.0, HOST);
    assert_eq!(ends(&rig.back(&gre("203.0.113.6", ALIAS)).unwrap()).1.0, OTHER);
    assert_eq!(ends(&rig.out(&gre(OTHER, "203.0.113.7")).unwrap()).0.0, ALIAS);
    assert_eq!(rig.back(&packet(PEER, ALIAS, 50, &[0; 8])), None);
}

#[test]
fn the_own_address_may_be_written_0_0_0_0() {
    let mut rig = rig(with(vec![redirect_port(&[("0.0.0.0", 8080)], Some("198.51.100.8"), one(80))]));
    assert_eq!(ends(&rig.back(&tcp((PEER, 9), ("198.51.100.8", 80), 2)).unwrap()).1, (ALIAS.to_owned(), 8080));
    assert_eq!(ends(&rig.out(&tcp((ALIAS, 8080), (PEER, 9), 0x12)).unwrap()).0, ("198.51.100.8".to_owned(), 80));
}

#[test]
fn a_forged_packet_takes_no_tuple_away() {
    // HOST talks to PEER through the public address .20; a packet that claims to be PEER's comes by .21, which leads to HOST too.
    let twice = [20, 21].map(|last| redirect_port(&[(HOST, 80)], Some(&format!("198.51.100.{last}")), one(80)));
    let mut rig = rig(with(twice.to_vec()));
    assert!(rig.back(&tcp((PEER, 9), ("198.51.100.20", 80), 2)).is_some());
    assert!(rig.back(&tcp((PEER, 9), ("198.51.100.21", 80), 2)).is_some());
    assert_eq!(ends(&rig.out(&tcp((HOST, 80), (PEER, 9), 0x12)).unwrap()).0.0, "198.51.100.20");
    assert_eq!(rig.nat.states().count(), 1);
}

#[test]
fn sctp_is_led_by_address_alone() {
    let mut sctp = redirect_port(&[(HOST, 38412)], None, one(38412));
    if let Redirect::Port { protocol, .. } = &mut sctp {
        *protocol = 132;
    }
    let mut rig = rig(with(vec![sctp]));
    let init = |s: (&str, u16), d: (&str, u16)| {
        packet(
            s.0,
            d.0,
            132,
            &[&s.1.to_be_bytes()[..], &d.1.to_be_bytes(), &[0, 0, 0, 9, 0xaa, 0xbb, 0xcc, 0xdd]].concat(),
        )
    };
    let inward = rig.back(&init((PEER, 1000), (ALIAS, 38412))).unwrap();
    assert_eq!(ends(&inward), at((PEER, 1000), (HOST, 38412)));
    assert_eq!(inward[28..32], [0xaa, 0xbb, 0xcc, 0xdd], "the CRC covers no address");
    assert_eq!(ends(&rig.out(&init((HOST, 38412), (PEER, 1000))).unwrap()).0, (ALIAS.to_owned(), 38412));
}
