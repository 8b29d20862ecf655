//! What one host inside and its peers see, case by case as in FreeBSD's own tests of libalias (tests/sys/netinet/libalias).

use super::*;
use ferrule_config::ipfw::ast::Range;

#[test]
fn a_source_is_hidden_and_its_answer_found() {
    let mut rig = rig(config());
    let sent = rig.out(&udp((HOST, 0x1234), (PEER, 0x5678))).unwrap();
    let ((alias, port), peer) = ends(&sent);
    assert_eq!((alias.as_str(), peer), (ALIAS, (PEER.to_owned(), 0x5678)));
    assert!(port >= 0x8000);
    assert!(!rig.flags.has(Flags::REROUTE), "the destination is what it was");
    let back = rig.back(&udp((PEER, 0x5678), (ALIAS, port))).unwrap();
    assert_eq!(ends(&back), at((PEER, 0x5678), (HOST, 0x1234)));
    // Another host with the same ports; both are told apart.
    let other = ends(&rig.out(&udp((OTHER, 0x1234), (PEER, 0x5678))).unwrap()).0.1;
    assert_ne!(other, port);
    assert_eq!(ends(&rig.back(&udp((PEER, 0x5678), (ALIAS, other))).unwrap()).1.0, OTHER);
    assert_eq!(ends(&rig.back(&udp((PEER, 0x5678), (ALIAS, port))).unwrap()).1.0, HOST);
    assert_eq!(ends(&rig.out(&udp((HOST, 0x1234), (PEER, 0x5678))).unwrap()).0.1, port, "a flow keeps its port");
    let counters = *rig.nat.counters();
    assert_eq!((counters.created, counters.translated_out, counters.translated_in), (2, 3, 3));
    assert_eq!(
        rig.nat.links().to_string(),
        "icmp=0, udp=2, tcp=0, sctp=0, pptp=0, proto=0, frag_id=0 frag_ptr=0 / tot=2"
    );
    let state = rig.nat.states().find(|s| s.inside.0 == ip(HOST)).unwrap();
    assert_eq!((state.alias, state.remote), ((ip(ALIAS), port), (ip(PEER), 0x5678)));
    assert_eq!((state.packets, state.bytes, state.expires), (4, 160, 60));
}

#[test]
fn unregistered_sources_only() {
    let sources = ["10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "192.0.2.1"];
    let alias = |unregistered_only, unregistered_cgn| {
        let mut rig = rig(NatConfig { unregistered_only, unregistered_cgn, ..config() });
        sources.map(|source| ends(&rig.out(&packet(source, PEER, 254, &[0; 12])).unwrap()).0.0 == ALIAS)
    };
    assert_eq!(alias(false, false), [true; 5]);
    assert_eq!(alias(true, false), [true, true, true, false, false]);
    assert_eq!(alias(false, true), [true, true, true, true, false]);
    // States outlive the mode.
    let mut rig = rig(NatConfig { unregistered_only: true, deny_in: true, ..config() });
    let public = udp(("192.0.2.1", 500), (PEER, 500));
    assert_eq!(rig.out(&public).unwrap(), public, "address and port stay");
    assert_eq!(
        ends(&rig.back(&udp((PEER, 500), ("192.0.2.1", 500))).unwrap()).1.0,
        "192.0.2.1",
        "its answer is wanted"
    );
    rig.nat.reconfigure(&config());
    assert_eq!(rig.out(&public).unwrap(), public);
    assert_eq!(ends(&rig.out(&udp(("192.0.2.1", 501), (PEER, 500))).unwrap()).0.0, ALIAS);
}

#[test]
fn same_ports_are_kept_where_free() {
    let mut rig = rig(NatConfig { same_ports: true, ..config() });
    assert_eq!(ends(&rig.out(&tcp((HOST, 5000), (PEER, 80), 2)).unwrap()).0.1, 5000);
    let other = ends(&rig.out(&tcp((OTHER, 5000), (PEER, 80), 2)).unwrap()).0.1;
    assert!(other != 5000 && other >= 0x8000);
    // Free for another peer, and for another protocol.
    assert_eq!(ends(&rig.out(&tcp((OTHER, 5000), (PEER, 81), 2)).unwrap()).0.1, 5000);
    assert_eq!(ends(&rig.out(&udp((OTHER, 5000), (PEER, 80))).unwrap()).0.1, 5000);
}

#[test]
fn a_port_range_is_kept_and_runs_out() {
    let range = Some(Range { low: 4000, high: 4001 });
    let mut rig = rig(NatConfig { port_range: range, ..config() });
    for port in 1..=2 {
        let alias = ends(&rig.out(&udp((HOST, port), (PEER, 7))).unwrap()).0.1;
        assert!((4000..=4001).contains(&alias));
    }
    assert_eq!(rig.out(&udp((HOST, 3), (PEER, 7))), None, "it does not leave with its own address");
    assert_eq!(rig.dropped(DropCause::NoPort), 1);
    assert!(rig.out(&udp((HOST, 3), (PEER, 8))).is_some(), "ports are counted for each peer");
    rig.nat.reconfigure(&config());
    assert!(ends(&rig.out(&udp((HOST, 3), (PEER, 7))).unwrap()).0.1 >= 0x8000);
    // Ports come back with time.
    rig.nat.reconfigure(&NatConfig { port_range: range, ..config() });
    rig.now += 62 * SECOND;
    assert!((4000..=4001).contains(&ends(&rig.out(&udp((HOST, 9), (PEER, 7))).unwrap()).0.1));
}

#[test]
fn an_address_change_resets_where_asked() {
    for reset in [true, false] {
        let mut rig = rig(NatConfig { reset, deny_in: true, same_ports: true, ..config() });
        rig.out(&udp((HOST, 900), (PEER, 9))).unwrap();
        rig.nat.reconfigure(&NatConfig { reset, deny_in: true, same_ports: true, ..config() });
        assert_eq!(rig.nat.states().count(), 1, "the same address resets nothing");
        let moved = NatConfig { reset, deny_in: true, address: Some(ip("198.51.100.9")), ..config() };
        rig.nat.reconfigure(&moved);
        let answer = rig.back(&udp((PEER, 9), (ALIAS, 900)));
        assert_eq!(answer.is_none(), reset);
        assert_eq!(rig.dropped(DropCause::Denied), u64::from(reset));
        let alias = ends(&rig.out(&udp((HOST, 900), (PEER, 9))).unwrap()).0.0;
        assert_eq!(alias, if reset { "198.51.100.9" } else { ALIAS });
    }
}

#[test]
fn an_interface_lends_its_address() {
    let mut rig = rig(NatConfig { address: None, interface: Some("em0".to_owned()), reset: true, ..config() });
    let mut address = None;
    let mut out = |rig: &mut Rig, port, now: Option<&str>| {
        address = now.map(ip);
        let mut packet = rig.parsed(&udp((HOST, port), (PEER, 9)), Offload::NONE);
        let translation = rig.nat.translate(&mut packet, Direction::Out, rig.now, |name| {
            assert_eq!(name, "em0");
            address
        });
        let after = rig.finish(packet);
        (translation, ends(&after).0.0)
    };
    assert_eq!(out(&mut rig, 1, None), (Translation::Drop(DropCause::NoAddress), HOST.to_owned()));
    assert_eq!(out(&mut rig, 1, Some(ALIAS)), (Translation::Translated, ALIAS.to_owned()));
    assert_eq!(out(&mut rig, 2, None).1, ALIAS, "the last address stays");
    assert_eq!(rig.nat.states().count(), 2);
    assert_eq!(out(&mut rig, 1, Some("198.51.100.77")).1, "198.51.100.77");
    assert_eq!((rig.nat.states().count(), rig.nat.address()), (1, Some(ip("198.51.100.77"))));
}

#[test]
fn who_comes_unasked_reaches_the_host_itself_unless_denied() {
    let ssh = tcp((PEER, 4000), (ALIAS, 22), 2);
    let mut open = rig(config());
    assert_eq!(open.back(&ssh).unwrap(), ssh);
    // The answer keeps its port, though ports are not to be kept in general.
    let answer = tcp((ALIAS, 22), (PEER, 4000), 0x12);
    assert_eq!(open.out(&answer).unwrap(), answer);
    assert!(open.nat.states().all(|s| s.unsolicited));
    let mut closed = rig(NatConfig { deny_in: true, ..config() });
    assert_eq!(closed.back(&ssh), None);
    assert_eq!(closed.dropped(DropCause::Denied), 1);
    assert_eq!(closed.nat.states().count(), 0);
}

#[test]
fn echoes_have_identifiers_for_ports() {
    for (request, reply) in [(8, 0), (13, 14)] {
        let mut rig = rig(config());
        let ids = [HOST, OTHER].map(|host| ends(&rig.out(&echo(host, PEER, request, 42)).unwrap()).0.1);
        assert_ne!(ids[0], ids[1]);
        for (host, id) in [HOST, OTHER].into_iter().zip(ids) {
            let back = rig.back(&echo(PEER, ALIAS, reply, id)).unwrap();
            assert_eq!(ends(&back), at((PEER, 42), (host, 42)));
        }
        assert_eq!(rig.nat.links().icmp, 2);
    }
    // From outside: to the host itself, and its answer back.
    let mut rig = rig(config());
    let ping = echo(PEER, ALIAS, 8, 9);
    assert_eq!(rig.back(&ping).unwrap(), ping);
    let pong = echo(ALIAS, PEER, 0, 9);
    assert_eq!(rig.out(&pong).unwrap(), pong);
    // Kinds that libalias leaves alone: a router solicitation.
    let other = packet(HOST, PEER, 1, &[10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.out(&other).unwrap(), other);
}

#[test]
fn protocols_without_ports_change_their_address() {
    let mut rig = rig(config());
    for protocol in [47, 50, 33, 136, 132] {
        let payload = [0x12, 0x34, 0x56, 0x78, 0, 20, 0, 0, 1, 1, 1, 1, 9, 9, 9, 9, 8, 8, 8, 8];
        let sent = rig.out(&packet(HOST, PEER, protocol, &payload)).unwrap();
        let plain = |p: &[u8], s: &str, d: &str| {
            assert_eq!((p[12..16].to_vec(), p[16..20].to_vec()), (ip(s).octets().to_vec(), ip(d).octets().to_vec()));
        };
        plain(&sent, ALIAS, PEER);
        let mut answer = payload;
        if protocol == 132 {
            answer[..4].copy_from_slice(&[0x56, 0x78, 0x12, 0x34]);
        }
        plain(&rig.back(&packet(PEER, ALIAS, protocol, &answer)).unwrap(), PEER, HOST);
        // The newest speaker gets the answers; SCTP, which has ports that nobody may change, is refused.
        let second = rig.out(&packet(OTHER, PEER, protocol, &payload));
        let receiver = if protocol == 132 { HOST } else { OTHER };
        assert_eq!(second.is_none(), protocol == 132);
        plain(&rig.back(&packet(PEER, ALIAS, protocol, &answer)).unwrap(), PEER, receiver);
    }
    assert_eq!(rig.dropped(DropCause::NoPort), 1);
    assert_eq!((rig.nat.links().other, rig.nat.links().sctp), (8, 1));
}

#[test]
fn reverse_exchanges_the_sides() {
    let mut rig = rig(NatConfig { reverse: true, same_ports: true, ..config() });
    let sent = rig.back(&udp((HOST, 700), (PEER, 53))).unwrap();
    assert_eq!(ends(&sent), at((ALIAS, 700), (PEER, 53)));
    let answer = rig.out(&udp((PEER, 53), (ALIAS, 700))).unwrap();
    assert_eq!(ends(&answer), at((PEER, 53), (HOST, 700)));
    assert!(rig.flags.has(Flags::REROUTE), "the destination changed at the Out hook");
}

#[test]
fn proxy_only_translates_nothing() {
    let mut rig = rig(NatConfig { proxy_only: true, deny_in: true, ..config() });
    let out = udp((HOST, 700), (PEER, 53));
    assert_eq!(rig.out(&out).unwrap(), out);
    let other = udp((PEER, 53), (ALIAS, 700));
    assert_eq!(rig.back(&other).unwrap(), other);
    assert_eq!(rig.nat.states().count(), 0);
}

#[test]
fn global_takes_only_what_is_known() {
    let mut rig = rig(NatConfig { same_ports: true, ..config() });
    let known = |rig: &mut Rig, bytes: &[u8]| {
        let mut packet = rig.parsed(bytes, Offload::NONE);
        let translation = rig.nat.translate_known(&mut packet, rig.now, |_| None);
        (translation, ends(&rig.finish(packet)).0.0)
    };
    let flow = udp((HOST, 700), (PEER, 53));
    assert_eq!(known(&mut rig, &flow), (None, HOST.to_owned()));
    rig.out(&flow).unwrap();
    assert_eq!(known(&mut rig, &flow), (Some(Translation::Translated), ALIAS.to_owned()));
    rig.nat.reconfigure(&NatConfig { skip_global: true, ..config() });
    assert_eq!(known(&mut rig, &flow).0, None);
}

/// The instance of the FreeBSD Handbook's NAT example: `if dc0 same_ports unreg_only reset` and two redirected ports.
#[test]
fn the_instance_of_the_handbook_does_what_it_says() {
    use ferrule_config::ipfw::nat::Redirect;
    let one = |port| Range { low: port, high: port };
    let to = |local, from, port| Redirect::Port {
        protocol: 6,
        locals: vec![(ip(local), one(from))],
        public: None,
        ports: one(port),
        remote: None,
    };
    let redirects = vec![to("192.168.0.2", 6667, 6667), to("192.168.0.3", 80, 80)];
    let mut rig = rig(NatConfig { same_ports: true, unregistered_only: true, reset: true, redirects, ..config() });
    assert_eq!(ends(&rig.out(&tcp(("192.168.0.9", 5000), (PEER, 443), 2)).unwrap()).0, (ALIAS.to_owned(), 5000));
    assert_eq!(ends(&rig.back(&tcp((PEER, 443), (ALIAS, 5000), 0x12)).unwrap()).1, ("192.168.0.9".to_owned(), 5000));
    assert_eq!(ends(&rig.back(&tcp((PEER, 9), (ALIAS, 80), 2)).unwrap()).1, ("192.168.0.3".to_owned(), 80));
    assert_eq!(ends(&rig.back(&tcp((PEER, 9), (ALIAS, 6667), 2)).unwrap()).1, ("192.168.0.2".to_owned(), 6667));
    // What the box itself sends has a registered source; what comes for it stays.
    let own = udp((ALIAS, 123), (PEER, 123));
    assert_eq!(rig.out(&own).unwrap(), own);
    let ssh = tcp((PEER, 9), (ALIAS, 22), 2);
    assert_eq!(rig.back(&ssh).unwrap(), ssh);
}

#[test]
fn ipv6_passes_untouched() {
    let mut rig = rig(NatConfig { deny_in: true, ..config() });
    let mut bytes = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
    bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 8, 0x55, 0x55]);
    let frame = [&MAC[..], &[2, 0, 0, 0, 0, 9, 0x86, 0xdd], &bytes].concat();
    for direction in [Direction::In, Direction::Out] {
        let mut packet = Packet::new(rig.pool.frame_from(&frame).unwrap(), Offload::NONE, PortId(0));
        parse::parse_slow(&mut packet, &Ingress::new(&rig.ports, PortId(0), false).unwrap());
        assert_eq!((packet.family, packet.goes_on()), (Family::V6, true));
        assert_eq!(rig.nat.translate(&mut packet, direction, 0, |_| None), Translation::Unchanged);
        assert_eq!(packet.frame.head(), frame);
        rig.pool.free(packet.frame);
    }
}

#[test]
fn a_udp_checksum_never_becomes_none() {
    // Every value of one word of the data: for one of them the sum comes out as 0.
    let mut rig = rig(config());
    let mut bytes = udp((HOST, 1), (PEER, 2));
    for word in 0..=u16::MAX {
        bytes[30..32].copy_from_slice(&word.to_be_bytes());
        seal(&mut bytes);
        let (_, sent) = rig.through(Direction::Out, &bytes, Offload::NONE);
        assert_ne!(be16(&sent, 26), 0, "{word:04x}");
    }
}

#[test]
fn udp_without_checksum_stays_without() {
    let mut rig = rig(config());
    let mut bytes = udp((HOST, 1), (PEER, 2));
    bytes[26..28].fill(0);
    let sent = rig.out(&bytes).unwrap();
    assert_eq!(be16(&sent, 26), 0);
}
