//! A gateway in memory with a stage that does nothing but `nat` on its outer port.

use super::*;
use ferrule_config::ipfw::ast::Range;
use ferrule_config::ipfw::nat::Redirect;
use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::{Prefix, RouteKind};
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::verdict::{DropReason, Verdict};
use ferrule_dataplane::world::{PortPlan, World};

const INSIDE: PortId = PortId(0);
const SECOND_INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);
const NEIGHBOR: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// `add nat 1 ip from any to any via EXT`.
struct Only {
    nat: Nat,
    shared: Arc<SharedFlows>,
}

impl Stage for Only {
    fn name(&self) -> &'static str {
        "nat"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        for packet in batch.packets_mut().iter_mut().filter(|p| p.goes_on()) {
            let (direction, port) = match hook {
                Hook::In => (Direction::In, packet.ingress),
                Hook::Out => (Direction::Out, packet.egress),
            };
            if port != OUTSIDE {
                continue;
            }
            let ports = &context.shared.ports;
            let address = |name: &str| ports.by_name(name)?.1.addresses().v4.first().copied();
            if let Translation::Drop(_) = self.nat.translate(packet, direction, context.now, address) {
                packet.judge(Verdict::Drop(DropReason::Filter));
            }
        }
    }

    fn needs_flow_owner(&self) -> bool {
        true
    }

    fn flow_owner(&self, packet: &Packet) -> Option<usize> {
        self.shared.owner_of(packet)
    }
}

/// Inside networks 192.0.2.0/24 and 192.0.3.0/24, outside 198.51.100.0/24; the server there has no route back.
fn world(workers: usize, config: Option<NatConfig>) -> World {
    let shared = SharedFlows::new(workers, 256, SEED);
    let mut world = World::builder()
        .port(PortPlan::new("in0").address("192.0.2.1/24".parse().unwrap()))
        .port(PortPlan::new("in1").address("192.0.3.1/24".parse().unwrap()))
        .port(PortPlan::new("ext").address("198.51.100.2/24".parse().unwrap()))
        .workers(workers)
        .seed(SEED)
        .stages(move |worker| match &config {
            Some(config) => {
                let limits = Limits { states: 256, fragments: 64 };
                let nat = Nat::new(config, limits, worker, shared.clone());
                vec![Box::new(Only { nat, shared: shared.clone() })]
            }
            None => vec![],
        })
        .build()
        .unwrap();
    for (port, address) in [(INSIDE, "192.0.2.2"), (SECOND_INSIDE, "192.0.3.2"), (OUTSIDE, "198.51.100.1")] {
        world.table.neighbor_set(port, ip(address).into(), Some(MacAddress(NEIGHBOR))).unwrap();
    }
    let all = Prefix::V4 { address: 0, length: 0 };
    world.table.route_replace(all, 0, RouteKind::via(OUTSIDE, ip("198.51.100.1").into())).unwrap();
    world
}

/// Sends an IP packet into a port, on the queue of each worker in turn, and gives back what left another.
fn cross(world: &mut World, from: PortId, to: PortId, ip: &[u8]) -> Vec<Vec<u8>> {
    let workers = world.workers();
    let queue = ip.iter().map(|b| usize::from(*b)).sum::<usize>() % workers;
    let frame = [&world.mac(from).0[..], &NEIGHBOR, &[8, 0], ip].concat();
    assert!(world.inject_at(from, queue, &frame, Offload::NONE));
    world.settle();
    let sent: Vec<Vec<u8>> = world.collect(to).into_iter().map(|f| f[14..].to_vec()).collect();
    sent.iter().for_each(|p| assert_sums(p));
    sent
}

fn done(mut world: World) -> u64 {
    assert_eq!(world.balance().difference(), 0);
    let closed = world.close();
    assert!(closed.is_exact(), "{closed:?}");
    world.totals().dropped.get("filter").copied().unwrap_or(0)
}

fn if_ext() -> NatConfig {
    NatConfig { number: 123, interface: Some("ext".to_owned()), ..NatConfig::default() }
}

/// A server on the outer link that answers only who is on that link: it has no route back to the inside.
fn server(world: &mut World, request: &[u8]) -> Option<Vec<Vec<u8>>> {
    let ((source, id), (destination, _)) = ends(request);
    source.starts_with("198.51.100.").then(|| {
        let reply = echo(&destination, &source, 0, id);
        let mut seen = cross(world, OUTSIDE, INSIDE, &reply);
        seen.extend(world.collect(SECOND_INSIDE).into_iter().map(|f| f[14..].to_vec()));
        seen
    })
}

/// Scenario 11: source NAT.
#[test]
fn pings_from_two_networks_are_answered_through_nat_only() {
    for workers in [1, 2, 4] {
        for translated in [false, true] {
            let mut world = world(workers, translated.then(if_ext));
            for (port, host) in [(INSIDE, "192.0.2.2"), (SECOND_INSIDE, "192.0.3.2")] {
                let sent = cross(&mut world, port, OUTSIDE, &echo(host, "198.51.100.1", 8, 77));
                assert_eq!(sent.len(), 1);
                let reply = server(&mut world, &sent[0]);
                assert_eq!(reply.is_some(), translated);
                if let Some(reply) = reply {
                    assert_eq!(reply.len(), 1);
                    assert_eq!(ends(&reply[0]), at(("198.51.100.1", 77), (host, 77)));
                }
            }
            assert_eq!(done(world), 0);
        }
    }
}

/// Scenario 23: two clients with the same ICMP identifier and the same server.
#[test]
fn two_pings_with_one_identifier_both_get_it_back() {
    for workers in [1, 2, 4] {
        for same_ports in [false, true] {
            let mut world = world(workers, Some(NatConfig { same_ports, ..if_ext() }));
            let clients = [(INSIDE, "192.0.2.2"), (SECOND_INSIDE, "192.0.3.2")];
            let sent: Vec<Vec<u8>> = clients
                .iter()
                .flat_map(|(port, host)| cross(&mut world, *port, OUTSIDE, &echo(host, "198.51.100.1", 8, 42)))
                .collect();
            assert_eq!(sent.len(), 2);
            assert_ne!(ends(&sent[0]).0, ends(&sent[1]).0);
            for ((_, host), request) in clients.iter().zip(&sent).rev() {
                let reply = server(&mut world, request).unwrap();
                assert_eq!(reply.iter().map(|r| ends(r).1).collect::<Vec<_>>(), [((*host).to_owned(), 42)]);
            }
            assert_eq!(done(world), 0);
        }
    }
}

/// As scenario 13, with ipfw's words: a pool of two ports, three connections.
#[test]
fn the_third_connection_through_two_ports_fails_and_nothing_hangs() {
    for workers in [1, 2, 4] {
        let port_range = Some(Range { low: 30_000, high: 30_001 });
        let mut world = world(workers, Some(NatConfig { port_range, ..if_ext() }));
        let mut aliases = Vec::new();
        for port in 1..=3 {
            let sent = cross(&mut world, INSIDE, OUTSIDE, &tcp(("192.0.2.2", port), ("198.51.100.1", 80), 2));
            aliases.extend(sent.iter().map(|p| ends(p).0.1));
        }
        aliases.sort_unstable();
        assert_eq!(aliases, [30_000, 30_001], "{workers} workers");
        for alias in aliases {
            let answer = tcp(("198.51.100.1", 80), ("198.51.100.2", alias), 0x12);
            assert_eq!(cross(&mut world, OUTSIDE, INSIDE, &answer).len(), 1);
        }
        assert_eq!(done(world), 1);
    }
}

/// A redirected port from outside: the answer leaves by the same address, on whichever queue it comes in.
#[test]
fn a_redirected_connection_works_over_all_workers() {
    let one = |port| Range { low: port, high: port };
    let redirects = vec![Redirect::Port {
        protocol: 6,
        locals: vec![(ip("192.0.2.2"), one(4321))],
        public: None,
        ports: one(1234),
        remote: None,
    }];
    for workers in [1, 2, 4] {
        let mut world = world(workers, Some(NatConfig { redirects: redirects.clone(), deny_in: true, ..if_ext() }));
        for port in 5000..5040 {
            let peer = ("203.0.113.5", port);
            let inward = cross(&mut world, OUTSIDE, INSIDE, &tcp(peer, ("198.51.100.2", 1234), 2));
            assert_eq!(inward.iter().map(|p| ends(p)).collect::<Vec<_>>(), [at(peer, ("192.0.2.2", 4321))]);
            let outward = cross(&mut world, INSIDE, OUTSIDE, &tcp(("192.0.2.2", 4321), peer, 0x12));
            assert_eq!(outward.iter().map(|p| ends(p)).collect::<Vec<_>>(), [at(("198.51.100.2", 1234), peer)]);
        }
        assert_eq!(done(world), 0);
    }
}

/// TTL runs out at the gateway behind the translation: the error goes out about what the peer sent.
#[test]
fn our_own_errors_quote_what_the_sender_sent() {
    let mut world = world(1, Some(NatConfig { same_ports: true, ..if_ext() }));
    let peer = "203.0.113.5";
    assert_eq!(cross(&mut world, INSIDE, OUTSIDE, &udp(("192.0.2.2", 700), (peer, 53))).len(), 1);
    let mut late = udp((peer, 53), ("198.51.100.2", 700));
    late[8] = 1;
    seal(&mut late);
    let told = cross(&mut world, OUTSIDE, OUTSIDE, &late);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0][9], told[0][20]), (1, 11));
    assert_eq!(ends(&told[0]).0.0, "198.51.100.2");
    assert_eq!(told[0][28..48], late[..20], "to the bit");
    assert_eq!(told[0][48..56], late[20..28]);
    assert_eq!(done(world), 0);
}
