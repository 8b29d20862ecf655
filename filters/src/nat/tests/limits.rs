//! Life times, full tables, and what a hostile sender can reach.

use super::*;

#[test]
fn idle_states_end_when_libalias_ends_them() {
    let flow = |protocol: u8| match protocol {
        1 => (echo(HOST, PEER, 8, 7), echo(PEER, ALIAS, 0, 7)),
        17 => (udp((HOST, 7), (PEER, 8)), udp((PEER, 8), (ALIAS, 7))),
        47 => (packet(HOST, PEER, 47, &[0; 8]), packet(PEER, ALIAS, 47, &[0; 8])),
        _ => (tcp((HOST, 7), (PEER, 8), 2), tcp((PEER, 8), (ALIAS, 7), 0x10)),
    };
    for (protocol, seconds) in [(1, 60), (17, 60), (47, 60), (6, 300)] {
        let (out, back) = flow(protocol);
        let mut rig = rig(NatConfig { same_ports: true, deny_in: true, ..config() });
        rig.out(&out).unwrap();
        for _ in 0..3 {
            rig.now += seconds * SECOND;
            assert!(rig.back(&back).is_some(), "{protocol}: a packet of either direction keeps it");
        }
        let connecting = protocol == 6;
        assert_eq!(rig.nat.states().all(|s| s.tcp == "opening"), connecting);
        rig.now += (seconds + 1) * SECOND;
        assert_eq!(rig.back(&back), None, "{protocol}");
        assert_eq!((rig.nat.states().count(), rig.nat.counters().expired), (0, 1));
    }
}

#[test]
fn a_tcp_connection_lives_a_day_and_its_end_seconds() {
    let open = |rig: &mut Rig| {
        rig.out(&tcp((HOST, 7), (PEER, 8), 2)).unwrap();
        rig.back(&tcp((PEER, 8), (ALIAS, 7), 0x12)).unwrap();
        rig.nat.states().next().unwrap().expires
    };
    let fin_out = tcp((HOST, 7), (PEER, 8), 0x11);
    let fin_in = tcp((PEER, 8), (ALIAS, 7), 0x11);
    let mut rig = rig(NatConfig { same_ports: true, deny_in: true, ..config() });
    assert_eq!(open(&mut rig), 86_400);
    rig.out(&fin_out).unwrap();
    assert_eq!(rig.nat.states().next().unwrap().expires, 90);
    rig.back(&fin_in).unwrap();
    assert_eq!(rig.nat.states().next().unwrap().expires, 10);
    rig.now += 11 * SECOND;
    assert_eq!(rig.back(&fin_in), None);
    assert_eq!(open(&mut rig), 86_400, "the tuple is free again");
}

#[test]
fn the_sweep_finds_what_nobody_asks_for() {
    let mut rig = rig(config());
    for port in 1..=40 {
        rig.out(&udp((HOST, port), (PEER, 8))).unwrap();
    }
    rig.out(&tcp((HOST, 7), (PEER, 8), 2)).unwrap();
    for second in (SECOND..400 * SECOND).step_by(SECOND as usize) {
        rig.nat.sweep_at(second, 10);
        let left = rig.nat.states().count();
        let expected = match second / SECOND {
            ..=61 => 41..=41,
            62..=90 => 1..=41,
            91..=301 => 1..=1,
            302..=310 => 0..=1,
            _ => 0..=0,
        };
        assert!(expected.contains(&left), "{left} after {} s", second / SECOND);
    }
}

#[test]
fn a_full_table_refuses_and_goes_on() {
    let mut rig = rig(config());
    for port in 1..=64 {
        assert!(rig.out(&udp((HOST, port), (PEER, 8))).is_some());
    }
    assert_eq!(rig.out(&udp((HOST, 65), (PEER, 8))), None);
    assert_eq!(rig.dropped(DropCause::TableFull), 1);
    assert!(rig.out(&udp((HOST, 64), (PEER, 8))).is_some(), "who is in stays in");
    rig.now += 61 * SECOND;
    assert!(rig.out(&udp((HOST, 65), (PEER, 8))).is_some(), "room comes back with time");
}

#[test]
fn a_flood_from_outside_leaves_half_the_table() {
    let mut rig = rig(config());
    for port in 1..=1000 {
        let syn = tcp((PEER, port), (ALIAS, 22), 2);
        assert_eq!(rig.back(&syn).unwrap(), syn);
    }
    assert_eq!((rig.nat.states().count(), rig.nat.counters().unrecorded), (32, 968));
    for port in 1..=32 {
        assert!(rig.out(&udp((HOST, port), (PEER, 8))).is_some());
    }
    assert_eq!(rig.dropped(DropCause::TableFull), 0);
}

#[test]
fn memory_is_taken_once_and_stays_small() {
    let shared = SharedFlows::new(1, 65_536, SEED);
    let nat = Nat::new(&config(), Limits::default(), 0, shared.clone());
    assert!(nat.memory() / 65_536 <= 80, "{}", nat.memory());
    assert_eq!(shared.memory(), 0);
}

#[test]
fn many_flows_of_one_peer_all_come_back() {
    // The stress of FreeBSD's test, against one peer, so that ports are what tells the flows apart.
    let flows = 4000;
    let limits = Limits { states: 4096, fragments: 16 };
    let mut rig = Rig::of(Nat::new(&config(), limits, 0, SharedFlows::new(1, 4096, SEED)));
    let mut aliases: Vec<(u16, u16)> =
        (0..flows).map(|i| (1000 + i, ends(&rig.out(&udp((HOST, 1000 + i), (PEER, 9))).unwrap()).0.1)).collect();
    aliases.sort_by_key(|(_, alias)| *alias);
    aliases.windows(2).for_each(|w| assert_ne!(w[0].1, w[1].1));
    for (port, alias) in aliases {
        assert_eq!(ends(&rig.back(&udp((PEER, 9), (ALIAS, alias))).unwrap()).1, (HOST.to_owned(), port));
    }
}
