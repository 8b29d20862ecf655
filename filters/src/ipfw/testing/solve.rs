#![forbid(unsafe_code)]
//! Finds packets that reach a rule: built from what the rule asks for, tried on the interpreter until its counter moves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrule_config::ipfw::ast::{Addresses, FragmentBits, InterfaceMatch, InterfaceRole, Rule, Side, Test};
use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::table::TableKey;

use super::frame::{Tcp, V4, V6, frame, icmp, udp};
use super::gateway::{Plan, ends_of};
use super::twin::{Fate, Origin, Twin};

/// A packet on its way into the box.
#[derive(Clone, Debug, PartialEq)]
pub struct Shot {
    /// Where it comes from.
    pub origin: Origin,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// What a packet may be made of to meet a rule.
#[derive(Default)]
struct Wishes {
    sources: Vec<IpAddr>,
    destinations: Vec<IpAddr>,
    protocols: Vec<u8>,
    flags: Vec<u8>,
    source_ports: Vec<u16>,
    destination_ports: Vec<u16>,
    icmp: Vec<(u8, u8)>,
    fragments: Vec<u16>,
    /// Ports that the packet comes in by, and leaves by.
    recv: Vec<usize>,
    xmit: Vec<usize>,
    incoming: bool,
    outgoing: bool,
}

/// Most packets tried for one rule.
const TRIES: usize = 20_000;

/// Finds packets for rules of a set.
pub struct Solver<'a> {
    plan: &'a Plan,
    set: &'a RuleSet,
    scratch: Twin,
    now: u64,
    found: Vec<Vec<Shot>>,
    /// Whether packets with these ends ever come to the rules: a gateway drops some before.
    admits: &'a dyn Fn(&Shot) -> bool,
}

impl<'a> Solver<'a> {
    /// A solver for the rules of a box.
    pub fn new(plan: &'a Plan, set: &'a RuleSet, admits: &'a dyn Fn(&Shot) -> bool) -> Solver<'a> {
        Solver { plan, set, scratch: Twin::new(plan, set), now: 0, found: Vec::new(), admits }
    }

    /// Packets, one after the other, of which the last makes the rule at this place of the order count; None where none was found.
    pub fn reach(&mut self, index: usize) -> Option<Vec<Shot>> {
        let rule = self.scratch.oracle.rules().get(index)?.clone();
        let shot = self.own(&rule, index);
        let shots = shot.map(|shot| vec![shot]).or_else(|| self.after_others(index))?;
        self.found.push(shots.clone());
        Some(shots)
    }

    /// Whether a series makes the rule count.
    fn counts(&mut self, shots: &[Shot], index: usize) -> bool {
        self.now += 1_000_000;
        let now = Duration::from_secs(self.now);
        let before = self.scratch.oracle.counters()[index].packets;
        let known = shots.iter().all(|shot| !matches!(self.scratch.send(shot.origin, &shot.frame, now), Fate::NoWay));
        known && self.scratch.oracle.counters()[index].packets > before
    }

    fn own(&mut self, rule: &Rule, index: usize) -> Option<Shot> {
        let wishes = self.wishes(rule);
        let mut tries = 0;
        for shot in wishes.shots(self.plan) {
            tries += 1;
            if tries > TRIES {
                break;
            }
            if self.counts(std::slice::from_ref(&shot), index) && (self.admits)(&shot) {
                return Some(shot);
            }
        }
        None
    }

    /// What reached other rules, once, twice, and with an answer: states and jumps lead on.
    fn after_others(&mut self, index: usize) -> Option<Vec<Shot>> {
        for before in self.found.clone() {
            let last = before.last()?.clone();
            let back = self.answer(&last);
            for more in [vec![], vec![last.clone()], vec![back.clone()], vec![back.clone(), last.clone()]] {
                let series: Vec<Shot> = before.iter().cloned().chain(more).collect();
                if self.counts(&series, index) {
                    return Some(series);
                }
            }
        }
        None
    }

    /// The packet that answers another, into the port that the first would leave by.
    fn answer(&self, shot: &Shot) -> Shot {
        let mut frame = shot.frame.clone();
        let (at, length, l4) = if frame[14] >> 4 == 4 { (26, 4, 34) } else { (22, 16, 54) };
        for i in 0..length {
            frame.swap(at + i, at + length + i);
        }
        let protocol = if frame[14] >> 4 == 4 { frame[23] } else { frame[20] };
        match protocol {
            6 | 17 => {
                frame.swap(l4, l4 + 2);
                frame.swap(l4 + 1, l4 + 3);
                if protocol == 6 {
                    frame[l4 + 13] = 0x12;
                }
            }
            1 => frame[l4] = 0,
            58 => frame[l4] = 129,
            _ => {}
        }
        let port = ends_of(&frame).and_then(|(source, _)| self.plan.way(source)).unwrap_or(0);
        Shot { origin: Origin::Wire(port), frame }
    }

    fn wishes(&self, rule: &Rule) -> Wishes {
        let mut wishes = Wishes::default();
        for term in rule.blocks.iter().flat_map(|block| &block.terms).filter(|term| !term.not) {
            self.wish(&term.test, &mut wishes);
        }
        let own: Vec<IpAddr> = self.plan.ports.iter().flat_map(|port| &port.addresses).map(|(own, _)| *own).collect();
        let others: Vec<IpAddr> =
            self.plan.ports.iter().flat_map(|port| &port.addresses).map(|(own, _)| other(*own)).collect();
        let far: [IpAddr; 4] = [
            [203, 0, 113, 77].into(),
            [192, 88, 99, 77].into(),
            "2001:db8:77::77".parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED).into(),
            "2a00:77::77".parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED).into(),
        ];
        let any: Vec<IpAddr> = far.into_iter().chain(others).chain(own).collect();
        for list in [&mut wishes.sources, &mut wishes.destinations] {
            if list.is_empty() {
                list.clone_from(&any);
            }
        }
        let default = |list: &mut Vec<u16>, value| {
            if list.is_empty() {
                list.push(value);
            }
        };
        default(&mut wishes.source_ports, 40_077);
        default(&mut wishes.destination_ports, 40_078);
        default(&mut wishes.fragments, 0);
        if wishes.protocols.is_empty() {
            wishes.protocols = if wishes.flags.is_empty() { vec![17, 6, 1, 58, 99] } else { vec![6] };
        }
        if wishes.flags.is_empty() {
            wishes.flags = vec![2, 16];
        }
        if wishes.icmp.is_empty() {
            wishes.icmp = vec![(8, 128), (0, 129), (5, 137)];
        }
        wishes
    }

    fn wish(&self, test: &Test, wishes: &mut Wishes) {
        match test {
            Test::Protocol(number) => wishes.protocols.push(*number),
            Test::Address(side, addresses) => {
                let list = if *side == Side::Source { &mut wishes.sources } else { &mut wishes.destinations };
                list.extend(self.members(addresses));
            }
            Test::Ports(side, ranges) => {
                let list = if *side == Side::Source { &mut wishes.source_ports } else { &mut wishes.destination_ports };
                list.extend(ranges.iter().flat_map(|range| [range.low, range.high]));
            }
            Test::TcpFlags(bits) => wishes.flags.push(bits.set),
            Test::Established => wishes.flags.push(16),
            Test::IcmpTypes(bits) => {
                wishes.icmp.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| (bit, 128)));
                wishes.protocols.push(1);
            }
            Test::Icmp6Types(bits) => {
                let set = (0..=255u8).filter(|bit| bits[usize::from(*bit) / 64] >> (bit % 64) & 1 == 1);
                wishes.icmp.extend(set.map(|bit| (8, bit)));
                wishes.protocols.push(58);
            }
            Test::Fragment(FragmentBits { set, .. }) if set & FragmentBits::OFFSET != 0 => wishes.fragments.push(100),
            Test::Fragment(FragmentBits { set, .. }) if set & FragmentBits::MORE != 0 => wishes.fragments.push(0x2000),
            Test::In => wishes.incoming = true,
            Test::Out => wishes.outgoing = true,
            Test::Interface(role, InterfaceMatch::Name(name)) => {
                let port = self.plan.ports.iter().position(|port| port.name == *name);
                if *role != InterfaceRole::Xmit {
                    wishes.recv.extend(port);
                }
                if *role != InterfaceRole::Recv {
                    wishes.xmit.extend(port);
                }
            }
            _ => {}
        }
    }

    /// Some of the addresses that a test means.
    fn members(&self, addresses: &Addresses) -> Vec<IpAddr> {
        let own = |v6: bool| {
            let all = self.plan.ports.iter().flat_map(|port| &port.addresses);
            all.map(|(address, _)| *address).filter(move |address| address.is_ipv6() == v6)
        };
        match addresses {
            Addresses::None => vec![],
            Addresses::Me => own(false).chain(own(true)).collect(),
            Addresses::Me6 => own(true).collect(),
            Addresses::V4(list) => list
                .iter()
                .flat_map(|m| {
                    let (address, free) = (m.address.to_bits(), !m.mask.to_bits());
                    [77, 1, 9, 0xff_ffff, 0x0101_0101, 0].map(|bits| Ipv4Addr::from_bits(address | bits & free).into())
                })
                .collect(),
            Addresses::Set4 { base, members, .. } => {
                let last = (0..=255u8).filter(|last| members[usize::from(*last) / 64] >> (last % 64) & 1 == 1);
                let [a, b, c, _] = base.octets();
                last.take(3).map(|last| IpAddr::from([a, b, c, last])).collect()
            }
            Addresses::V6(list) => list
                .iter()
                .flat_map(|m| {
                    let (address, free) = (m.address.to_bits(), !m.mask.to_bits());
                    let bits = [0x77, 1, 0x5_0000_0077, 0x0808_0808, 0x7_0000_0000_0000_0077, 0];
                    bits.map(|bits| Ipv6Addr::from_bits(address | bits & free).into())
                })
                .collect(),
            Addresses::Table(name, _) => {
                let table = self.set.tables.get(name);
                let keys = table.iter().flat_map(|table| table.entries.keys());
                keys.filter_map(|key| match key {
                    TableKey::V4(address, length) => {
                        let free = u32::MAX.checked_shr(u32::from(*length)).unwrap_or(0);
                        Some(Ipv4Addr::from_bits(address.to_bits() | 0x0101_0177 & free).into())
                    }
                    TableKey::V6(address, length) => {
                        let free = u128::MAX.checked_shr(u32::from(*length)).unwrap_or(0);
                        Some(Ipv6Addr::from_bits(address.to_bits() | 0x177 & free).into())
                    }
                    _ => None,
                })
                .collect()
            }
        }
    }
}

/// A neighbour of an address of the box.
fn other(own: IpAddr) -> IpAddr {
    match own {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() ^ 2).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() ^ 0x70).into(),
    }
}

impl Wishes {
    /// Every packet that can be made of this.
    fn shots<'w>(&'w self, plan: &'w Plan) -> impl Iterator<Item = Shot> + 'w {
        let ends = self.sources.iter().flat_map(|source| self.destinations.iter().map(move |to| (*source, *to)));
        let ends = ends.filter(|(source, to)| source != to && source.is_ipv4() == to.is_ipv4());
        ends.flat_map(move |(source, to)| {
            let origins = self.origins(plan, source, to);
            self.payloads(source.is_ipv4()).flat_map(move |(protocol, payload)| {
                let frames: Vec<Vec<u8>> = self
                    .fragments
                    .iter()
                    .map(|fragment| match (source, to) {
                        (IpAddr::V4(source), IpAddr::V4(to)) => {
                            frame(&V4 { fragment: *fragment, ..V4::new(source, to) }.packet(protocol, &payload))
                        }
                        (IpAddr::V6(source), IpAddr::V6(to)) => frame(&V6::new(source, to).packet(protocol, &payload)),
                        _ => Vec::new(),
                    })
                    .collect();
                let origins = origins.clone();
                frames.into_iter().flat_map(move |frame| {
                    origins.clone().into_iter().map(move |origin| Shot { origin, frame: frame.clone() })
                })
            })
        })
    }

    fn origins(&self, plan: &Plan, source: IpAddr, to: IpAddr) -> Vec<Origin> {
        let all = 0..plan.ports.len();
        // What the box sends comes from its host, what has its address elsewhere is no packet that one meets.
        if plan.is_own(source) || source.is_unspecified() {
            return vec![Origin::Host];
        }
        let leaves = plan.way(to);
        let wanted = |port: &usize| {
            let comes = self.recv.contains(port) && !self.outgoing;
            let goes = leaves.is_some_and(|way| self.xmit.contains(&way)) && !self.incoming;
            self.recv.is_empty() && self.xmit.is_empty() || comes || goes
        };
        let first = plan.way(source);
        let mut ports: Vec<usize> = all.filter(wanted).collect();
        // The port that the source lives behind comes first.
        ports.sort_by_key(|port| Some(*port) != first);
        ports.into_iter().map(Origin::Wire).collect()
    }

    fn payloads(&self, v4: bool) -> impl Iterator<Item = (u8, Vec<u8>)> + '_ {
        let ports = self.source_ports.iter().flat_map(|from| self.destination_ports.iter().map(move |to| (*from, *to)));
        let ports: Vec<(u16, u16)> = ports.collect();
        self.protocols.iter().flat_map(move |&protocol| -> Vec<(u8, Vec<u8>)> {
            match protocol {
                6 => {
                    let segments =
                        ports.iter().flat_map(|ports| self.flags.iter().map(|flags| Tcp::new(*ports, *flags)));
                    // What opens a connection names a largest segment.
                    let options = |flags: u8| if flags & 2 != 0 { vec![2, 4, 5, 0xb4] } else { vec![] };
                    segments.map(|segment| (6, Tcp { options: options(segment.flags), ..segment }.bytes())).collect()
                }
                17 => ports.iter().map(|ports| (17, udp(*ports, 8))).collect(),
                1 if v4 => self.icmp.iter().map(|kinds| (1, icmp(kinds.0, 0))).collect(),
                58 if !v4 => self.icmp.iter().map(|kinds| (58, icmp(kinds.1, 0))).collect(),
                1 | 58 => Vec::new(),
                other => vec![(other, vec![0x5a; 24])],
            }
        })
    }
}
