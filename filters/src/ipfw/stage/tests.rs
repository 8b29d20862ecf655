//! The stage in a gateway in memory: LAN 10.0.0.0/24 behind port 0, the world behind port 1.

use std::sync::Arc;

use ferrule_config::ipfw::ast::{
    Action, Addresses, Argument, Block, InterfaceMatch, InterfaceRole, Masked4, Rule, Side, StateName, Tag, Test,
};
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::world::{PortPlan, World};

use super::super::around::Holdings;
use super::super::compile::compile;
use super::super::dynamic::{Names, Shared, States};
use super::super::live::Live;
use super::super::program::Options;
use super::super::table::TableSet;
use super::super::testing::build::{keep_state, range, rule, rule_if};
use super::*;

const LAN: PortId = PortId(0);
const WAN: PortId = PortId(1);
const HOST: [u8; 4] = [10, 0, 0, 7];
const PEER: [u8; 4] = [198, 51, 100, 5];

fn options() -> Options {
    Options { ports: vec!["lan".into(), "wan".into()], ..Options::default() }
}

struct Gateway {
    world: World,
    live: Arc<Live>,
}

impl Gateway {
    fn new(rules: &[Rule]) -> Gateway {
        Gateway::beside(rules, Vec::new)
    }

    /// With other stages behind it. A stage that is not alone foresees nothing.
    fn beside(rules: &[Rule], others: fn() -> Vec<Box<dyn Stage>>) -> Gateway {
        let live = Arc::new(Live::new(compile(rules, &options(), &mut Names::default()), 1));
        let shared = live.clone();
        let mut world = World::builder()
            .port(PortPlan::new("lan").address("10.0.0.1/24".parse().unwrap()))
            .port(PortPlan::new("wan").address("192.0.2.1/24".parse().unwrap()))
            .stages(move |worker| {
                let states = States::new(Arc::new(Shared::default()), 1024);
                let tables = TableSet::new(&Domain::new(1)).reader();
                let mut stages: Vec<Box<dyn Stage>> =
                    vec![Box::new(Ipfw::new(&shared, worker, 1, Holdings::new(states, tables, 2)))];
                stages.extend(others());
                stages
            })
            .build()
            .unwrap();
        let gateway = std::net::IpAddr::from([192, 0, 2, 9]);
        world.table.neighbor_set(WAN, gateway, Some(MacAddress([2, 0, 0, 0, 9, 9]))).unwrap();
        world.table.neighbor_set(LAN, HOST.into(), Some(MacAddress([2, 0, 0, 0, 7, 7]))).unwrap();
        world.table.route_replace(Prefix::V4 { address: 0, length: 0 }, 0, RouteKind::via(WAN, gateway)).unwrap();
        Gateway { world, live }
    }

    fn send(&mut self, from: PortId, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
        let mac = self.world.mac(from).0;
        frame[..6].copy_from_slice(&mac);
        assert!(self.world.inject(from, &frame));
        self.world.settle();
        assert_eq!(self.world.balance().difference(), 0);
        self.world.collect(if from == LAN { WAN } else { LAN })
    }

    /// All at once.
    fn send_burst(&mut self, from: PortId, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mac = self.world.mac(from).0;
        for frame in frames {
            let mut frame = frame.clone();
            frame[..6].copy_from_slice(&mac);
            assert!(self.world.inject(from, &frame));
        }
        self.world.settle();
        assert_eq!(self.world.balance().difference(), 0);
        self.world.collect(if from == LAN { WAN } else { LAN })
    }

    fn counters(&self) -> Vec<(u64, u64)> {
        let rules = self.live.loaded().program.rules.len() as u32;
        (0..rules).map(|slot| self.live.count(slot)).map(|count| (count.packets, count.bytes)).collect()
    }

    fn counts(&self) -> Vec<u64> {
        let rules = self.live.loaded().program.rules.len() as u32;
        (0..rules).map(|slot| self.live.count(slot).packets).collect()
    }

    fn filtered(&mut self) -> u64 {
        self.world.worker(0).counters().dropped[DropReason::Filter as usize].get()
    }
}

/// UDP (flags 0) or TCP with these flags.
fn packet(source: [u8; 4], destination: [u8; 4], ports: (u16, u16), flags: u8) -> Vec<u8> {
    let (protocol, l4) = if flags == 0 { (17, 8) } else { (6, 20) };
    let mut f = vec![0; 34 + l4 + 12];
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 8, 8]);
    f[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    let total = (f.len() - 14) as u16;
    f[16..18].copy_from_slice(&total.to_be_bytes());
    (f[22], f[23]) = (64, protocol);
    f[26..30].copy_from_slice(&source);
    f[30..34].copy_from_slice(&destination);
    f[34..36].copy_from_slice(&ports.0.to_be_bytes());
    f[36..38].copy_from_slice(&ports.1.to_be_bytes());
    if flags == 0 {
        f[38..40].copy_from_slice(&20u16.to_be_bytes());
    } else {
        (f[46], f[47]) = (5 << 4, flags);
    }
    let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f
}

fn from(address: [u8; 4], mask: [u8; 4]) -> Test {
    Test::Address(Side::Source, Addresses::V4(vec![Masked4 { address: address.into(), mask: mask.into() }]))
}

#[test]
fn a_forwarded_packet_counts_twice_and_a_dropped_one_once() {
    let ports = |n| Test::Ports(Side::Destination, vec![range(n, n)]);
    let mut b = Gateway::new(&[rule_if(10, Action::Deny, [ports(53)]), rule(20, Action::Allow)]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1000, 80), 0)).len(), 1);
    assert_eq!(b.counts(), [0, 2, 0]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1000, 53), 0)).len(), 0);
    assert_eq!((b.counts(), b.filtered()), (vec![1, 2, 0], 1));
    assert_eq!(b.live.count(1).bytes, 2 * 40);
}

#[test]
fn the_last_rule_denies_and_allow_all_takes_the_short_way() {
    let mut b = Gateway::new(&[]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1, 2), 0)).len(), 0);
    assert_eq!(b.counts(), [1]);
    b.live.replace(compile(&[rule(3000, Action::Allow)], &options(), &mut Names::default()));
    for _ in 0..3 {
        assert_eq!(b.send(LAN, packet(HOST, PEER, (1, 2), 0)).len(), 1);
    }
    // The place of rule 0 went over to rule 3000 with what it had counted.
    assert_eq!(b.counts(), [1 + 6, 0]);
}

#[test]
fn interfaces_skips_and_counts() {
    let out = Test::Interface(InterfaceRole::Xmit, InterfaceMatch::Pattern("w*".into()));
    let mut b = Gateway::new(&[
        rule(10, Action::Count),
        rule_if(20, Action::SkipTo(Argument::Number(40)), [Test::In]),
        rule_if(30, Action::Deny, [out, from([10, 0, 0, 9], [255; 4])]),
        rule_if(40, Action::Allow, [from([10, 0, 0, 0], [255, 255, 255, 0])]),
    ]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1, 2), 0)).len(), 1);
    assert_eq!(b.counts(), [2, 1, 0, 2, 0]);
    assert_eq!(b.send(LAN, packet([10, 0, 0, 9], PEER, (1, 2), 0)).len(), 0);
    assert_eq!(b.counts(), [4, 2, 1, 3, 0]);
}

#[test]
fn keep_state_lets_the_answer_in() {
    let mut keeping = rule_if(20, Action::Allow, [from([10, 0, 0, 0], [255, 255, 255, 0])]);
    keeping.state = Some(keep_state());
    let mut b = Gateway::new(&[rule(10, Action::CheckState(StateName::Default)), keeping]);
    assert_eq!(b.send(WAN, packet(PEER, HOST, (80, 1000), 0)).len(), 0, "nobody asked");
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1000, 80), 0)).len(), 1);
    assert_eq!(b.counts(), [0, 2, 1]);
    assert_eq!(b.send(WAN, packet(PEER, HOST, (80, 1000), 0)).len(), 1);
    assert_eq!(b.send(WAN, packet(PEER, HOST, (80, 1001), 0)).len(), 0);
    assert_eq!(b.counts(), [0, 4, 2]);
    // dyn_udp_lifetime is 10 s.
    b.world.advance(11_000_000_000);
    assert_eq!(b.send(WAN, packet(PEER, HOST, (80, 1000), 0)).len(), 0);
}

#[test]
fn states_of_a_rule_that_is_gone_are_gone() {
    let mut keeping = rule_if(20, Action::Allow, [from([10, 0, 0, 0], [255, 255, 255, 0])]);
    keeping.state = Some(keep_state());
    let check = rule(10, Action::CheckState(StateName::Default));
    let mut b = Gateway::new(&[check.clone(), keeping]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (1000, 80), 0)).len(), 1);
    let places = |index| if index == 1 { (1, 1) } else { (index, 0) };
    let other = rule_if(20, Action::Allow, [from([10, 0, 0, 0], [255, 255, 255, 0])]);
    b.live.replace(super::super::compile::compile_with_places(
        &[check, other],
        &options(),
        &mut Names::default(),
        places,
    ));
    assert_eq!(b.send(WAN, packet(PEER, HOST, (80, 1000), 0)).len(), 0);
}

#[test]
fn refusals_are_sent() {
    let tcp = || Test::Protocol(6);
    let mut b = Gateway::new(&[
        rule_if(10, Action::Reset, [tcp()]),
        rule_if(15, Action::Allow, [Test::Out]),
        rule(20, Action::Unreach(13, None)),
    ]);
    assert!(b.send(LAN, packet(HOST, PEER, (1000, 80), 2)).is_empty());
    let answers = b.world.collect(LAN);
    assert_eq!((answers.len(), answers[0][23], answers[0][47]), (1, 6, 4 | 16), "RST and ACK");
    assert!(b.send(LAN, packet(HOST, PEER, (1000, 80), 0)).is_empty());
    let answers = b.world.collect(LAN);
    assert_eq!((answers.len(), &answers[0][34..36]), (1, &[3, 13][..]));
    // The reset is not judged again; the ICMP error is, on its way out.
    assert_eq!(b.counts(), [1, 1, 1, 0]);
}

#[test]
fn tags_go_with_a_packet_from_in_to_out() {
    let mut tagging = rule_if(10, Action::Count, [Test::In, Test::Ports(Side::Source, vec![range(5, 5)])]);
    tagging.tag = Some(Tag::Set(Argument::Number(7)));
    let tagged = Test::Tagged(ferrule_config::ipfw::ast::Numbers::List(vec![range(7, 7)]));
    let mut b = Gateway::new(&[tagging, rule_if(20, Action::Deny, [Test::Out, tagged]), rule(30, Action::Allow)]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (4, 2), 0)).len(), 1);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (5, 2), 0)).len(), 0);
    assert_eq!(b.counts(), [1, 1, 3, 0]);
}

#[test]
fn setdscp_keeps_the_checksum_right() {
    let mut b =
        Gateway::new(&[rule_if(10, Action::SetDscp(Argument::Number(46)), [Test::In]), rule(20, Action::Allow)]);
    let sent = b.send(LAN, packet(HOST, PEER, (4, 2), 0));
    assert_eq!(sent[0][15], 46 << 2);
    let sum: u32 = sent[0][14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn blocks_over_several_fields_and_negations() {
    let term = |not, test| ferrule_config::ipfw::ast::Term { not, test, span: Default::default() };
    let either = Block {
        terms: vec![
            term(false, Test::Ports(Side::Destination, vec![range(53, 53)])),
            term(false, from([10, 0, 0, 9], [255; 4])),
        ],
    };
    let mut both = rule(10, Action::Deny);
    both.blocks = vec![either, Block { terms: vec![term(true, Test::Protocol(6))] }];
    let mut b = Gateway::new(&[both, rule(20, Action::Allow)]);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (4, 53), 0)).len(), 0);
    assert_eq!(b.send(LAN, packet([10, 0, 0, 9], PEER, (4, 2), 0)).len(), 0);
    assert_eq!(b.send(LAN, packet(HOST, PEER, (4, 53), 2)).len(), 1, "TCP is spared");
    assert_eq!(b.send(LAN, packet(HOST, PEER, (4, 2), 0)).len(), 1);
}

/// A rule by three small numbers.
fn rule_by(number: u16, (action, test, value): (u8, u8, u8)) -> Rule {
    let port = |side| Test::Ports(side, vec![range(53, 52 + 30 * u16::from(value % 2 + 1))]);
    let tests = match test {
        0 => vec![port(Side::Destination)],
        1 => vec![from([10, 0, 0, value], [255, 255, 255, 255 - value])],
        2 => vec![Test::In],
        3 => vec![Test::Interface(InterfaceRole::Xmit, InterfaceMatch::Name("wan".into())), port(Side::Source)],
        4 => vec![Test::Protocol(if value % 2 == 0 { 6 } else { 17 })],
        5 => vec![Test::Established],
        _ => vec![],
    };
    let next = u32::from(number) + 10 + 10 * u32::from(value);
    match action {
        0 => rule_if(number, Action::Deny, tests),
        1 => rule_if(number, Action::Count, tests),
        2 => rule_if(number, Action::SkipTo(Argument::Number(next)), tests),
        3 | 4 => Rule { state: Some(keep_state()), ..rule_if(number, Action::Allow, tests) },
        5 => rule(number, Action::CheckState(StateName::Default)),
        _ => rule_if(number, Action::Allow, tests),
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_foreseen_is_what_happens(
        drawn in proptest::collection::vec((0u8..8, 0u8..8, 0u8..3), 0..7),
        bursts in proptest::collection::vec(proptest::collection::vec((0u8..40, 0u8..3, 0u8..4, 0u8..24), 1..40), 4..16),
    ) {
        let mut rules: Vec<Rule> = (1..).zip(drawn).map(|(n, drawn)| rule_by(10 * n, drawn)).collect();
        rules.push(rule_if(900, Action::Allow, [Test::Ipv4]));
        let mut alone = Gateway::new(&rules);
        let mut beside = Gateway::beside(&rules, || vec![Box::new(crate::PassThrough)]);
        for (turn, burst) in bursts.iter().enumerate() {
            let back = turn % 3 == 2;
            // Often what was sent before, so that there is something to foresee.
            let burst = if turn % 4 == 0 { burst } else { &bursts[turn / 4 * 4] };
            let frames: Vec<_> = burst
                .iter()
                .map(|(port, kind, flags, rare)| {
                    let flags = if kind % 2 == 0 { 0 } else { [2, 16, 17, 4][usize::from(*flags)] };
                    let ports = (1000 + u16::from(*port), [53, 80, 443][usize::from(*kind)]);
                    let mut frame = if back {
                        packet(PEER, HOST, (ports.1, ports.0), flags)
                    } else {
                        packet(HOST, PEER, ports, flags)
                    };
                    // What is not plain: a TTL that runs out, a broken checksum.
                    match rare {
                        0 => (frame[22], frame[24]) = (1, frame[24].wrapping_add(63)),
                        1 => frame[24] ^= 1,
                        _ => {}
                    }
                    frame
                })
                .collect();
            let from = if back { WAN } else { LAN };
            let (first, second) = (alone.send_burst(from, &frames), beside.send_burst(from, &frames));
            proptest::prop_assert_eq!(first, second);
            proptest::prop_assert_eq!(alone.counters(), beside.counters());
        }
    }
}
