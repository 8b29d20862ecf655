//! Several workers: every packet of a flow is judged where its state is, or finds the translation in the shared table.

use super::*;
use ferrule_config::ipfw::ast::Range;
use ferrule_config::ipfw::nat::Redirect;
use ferrule_dataplane::packet::hash;

/// All workers' instances, and packets that go to the worker that the data plane would give them to.
struct Workers {
    rigs: Vec<Rig>,
    shared: Arc<SharedFlows>,
    /// Worker of the last packet.
    at: usize,
    /// Packets that the shared table sent elsewhere than their hash.
    named: usize,
}

impl Workers {
    fn new(workers: usize, config: &NatConfig) -> Workers {
        let shared = SharedFlows::new(workers, 2048, SEED);
        let limits = Limits { states: 2048, fragments: 64 };
        let rigs = (0..workers).map(|w| Rig::of(Nat::new(config, limits, w, shared.clone()))).collect();
        Workers { rigs, shared, at: 0, named: 0 }
    }

    fn whole(&mut self, direction: Direction, ip: &[u8]) -> Option<Vec<u8>> {
        let mut packet = self.rigs[0].parsed(ip, Offload::NONE);
        let by_hash = hash::owner(hash::of(SEED, &mut packet), self.rigs.len());
        let named = self.shared.owner_of(&packet);
        self.rigs[0].pool.free(packet.frame);
        self.named += usize::from(named.is_some_and(|w| w != by_hash));
        self.at = named.unwrap_or(by_hash);
        self.rigs[self.at].whole(direction, ip)
    }

    fn states(&self) -> usize {
        self.rigs.iter().map(|r| r.nat.states().count()).sum()
    }
}

#[test]
fn answers_come_back_to_the_state_with_1_2_and_4_workers() {
    for workers in [1, 2, 4] {
        for same_ports in [false, true] {
            let config = NatConfig { same_ports, deny_in: true, ..config() };
            let mut all = Workers::new(workers, &config);
            for port in 1000..1200 {
                for host in [HOST, OTHER] {
                    for protocol in [1, 6, 17] {
                        let (out, answer): (_, fn(u16) -> Vec<u8>) = match protocol {
                            1 => (echo(host, PEER, 8, port), |a| echo(PEER, ALIAS, 0, a)),
                            6 => (tcp((host, port), (PEER, 80), 2), |a| tcp((PEER, 80), (ALIAS, a), 0x12)),
                            _ => (udp((host, port), (PEER, 53)), |a| udp((PEER, 53), (ALIAS, a))),
                        };
                        let sent = all.whole(Direction::Out, &out).unwrap();
                        let (owner, alias) = (all.at, ends(&sent).0.1);
                        let back = all.whole(Direction::In, &answer(alias)).unwrap();
                        assert_eq!(ends(&back).1, (host.to_owned(), port), "{workers} {same_ports} {protocol}");
                        assert_eq!(all.at, owner);
                        let wire = error("203.0.113.254", ALIAS, 3, &sent);
                        assert!(all.whole(Direction::In, &wire).is_some());
                        assert_eq!(all.at, owner, "an error goes to its flow's owner");
                    }
                }
            }
            assert_eq!(all.states(), 1200);
            let named = all.named > 0;
            assert_eq!(named, workers > 1 && same_ports, "ports of our choice need no table to find their owner");
            let keep = all.rigs[0].nat.states().all(|s| s.tcp != "opening");
            assert!(keep, "both directions of TCP were seen at one place");
            drop(all.rigs);
            assert_eq!(all.shared.entries(), 0, "who ends takes his entries along");
        }
    }
}

#[test]
fn what_nobody_can_choose_is_named() {
    let one = |port| Range { low: port, high: port };
    let servers = vec![(ip("192.168.0.11"), one(80)), (ip("192.168.0.12"), one(80)), (ip("192.168.0.13"), one(80))];
    let redirects = vec![
        Redirect::Port { protocol: 6, locals: servers, public: None, ports: one(80), remote: None },
        Redirect::Protocol { protocol: 47, local: ip(HOST), public: None, remote: None },
    ];
    for workers in [1, 2, 4] {
        let mut all = Workers::new(workers, &NatConfig { redirects: redirects.clone(), deny_in: true, ..config() });
        let mut count = [0; 3];
        for port in 1..=300 {
            let inward = all.whole(Direction::In, &tcp((PEER, port), (ALIAS, 80), 2)).unwrap();
            let (owner, server) = (all.at, ends(&inward).1.0);
            count[usize::from(server.as_bytes()[11] - b'1')] += 1;
            let answer = all.whole(Direction::Out, &tcp((&server, 80), (PEER, port), 0x12)).unwrap();
            assert_eq!((ends(&answer).0, all.at), ((ALIAS.to_owned(), 80), owner));
        }
        assert_eq!(count, [100; 3], "turns are counted across workers");
        for peer in 1..=60 {
            let peer = format!("203.0.113.{peer}");
            let inward = all.whole(Direction::In, &packet(&peer, ALIAS, 47, &[0; 8])).unwrap();
            let owner = all.at;
            assert_eq!(ends(&inward).1.0, HOST);
            let answer = all.whole(Direction::Out, &packet(HOST, &peer, 47, &[0; 8])).unwrap();
            assert_eq!((ends(&answer).0.0.as_str(), all.at), (ALIAS, owner));
        }
        assert_eq!(all.named > 0, workers > 1);
    }
}

#[test]
fn a_small_pool_is_used_to_its_end_and_never_twice() {
    let config = NatConfig { port_range: Some(Range { low: 30_000, high: 30_007 }), ..config() };
    for workers in [1, 2, 4] {
        let mut all = Workers::new(workers, &config);
        let mut used = std::collections::BTreeSet::new();
        for port in 1..=20 {
            if let Some(sent) = all.whole(Direction::Out, &tcp((HOST, port), (PEER, 80), 2)) {
                assert!(used.insert(ends(&sent).0.1), "used twice");
            }
        }
        assert_eq!(used.len(), 8, "{workers} workers");
        let dropped: u64 = all.rigs.iter().map(|r| r.dropped(DropCause::NoPort)).sum();
        assert_eq!(dropped, 12);
        for port in used {
            assert!(all.whole(Direction::In, &tcp((PEER, 80), (ALIAS, port), 0x12)).is_some());
        }
    }
}

#[test]
fn the_end_of_an_older_flow_takes_nothing_from_a_newer_one() {
    let mut all = Workers::new(2, &config());
    let gre = |source: &str, destination: &str| packet(source, destination, 47, &[0; 8]);
    let rig = &mut all.rigs[1];
    rig.out(&gre(HOST, PEER)).unwrap();
    rig.now += 40 * SECOND;
    rig.out(&gre(OTHER, PEER)).unwrap();
    rig.now += 30 * SECOND;
    rig.nat.sweep_at(rig.now, 10);
    assert_eq!(rig.nat.states().count(), 1);
    let answer = all.rigs[0].parsed(&gre(PEER, ALIAS), Offload::NONE);
    assert_eq!(all.shared.owner_of(&answer), Some(1));
    all.rigs[0].pool.free(answer.frame);
    assert_eq!(ends(&all.rigs[0].back(&gre(PEER, ALIAS)).unwrap()).1.0, OTHER);
}

#[test]
fn a_port_past_its_time_is_free_at_once() {
    let mut all = Workers::new(2, &NatConfig { port_range: Some(Range { low: 4000, high: 4000 }), ..config() });
    let rig = &mut all.rigs[0];
    rig.out(&udp((HOST, 1), (PEER, 53))).unwrap();
    assert_eq!(rig.out(&udp((HOST, 2), (PEER, 53))), None);
    // Nothing swept it up yet: the sweep has other queues to look at first.
    rig.now += 61 * SECOND;
    assert_eq!(ends(&rig.out(&udp((HOST, 2), (PEER, 53))).unwrap()).0.1, 4000);
}

#[test]
fn a_packet_at_another_worker_is_translated_all_the_same() {
    let config = NatConfig { deny_in: true, ..config() };
    let mut all = Workers::new(4, &config);
    let sent = all.whole(Direction::Out, &udp((HOST, 700), (PEER, 53))).unwrap();
    let owner = all.at;
    for rig in &mut all.rigs {
        assert_eq!(rig.out(&udp((HOST, 700), (PEER, 53))).unwrap(), sent);
        let back = rig.back(&udp((PEER, 53), (ALIAS, ends(&sent).0.1))).unwrap();
        assert_eq!(ends(&back).1, (HOST.to_owned(), 700));
    }
    assert_eq!(all.states(), 1);
    // Once the state is gone, nobody knows it.
    let rig = &mut all.rigs[owner];
    rig.now += 61 * SECOND;
    (0..5).for_each(|_| rig.nat.sweep_at(rig.now, 10));
    let answer = udp((PEER, 53), (ALIAS, ends(&sent).0.1));
    assert!(all.rigs.iter_mut().all(|rig| rig.back(&answer).is_none()));
    assert_eq!(all.shared.entries(), 0);
}
