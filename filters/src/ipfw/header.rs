#![forbid(unsafe_code)]
//! What of a packet the classifier looks at, and the tests that need nothing else.
//!
//! Each [`Atom`] is a function of one [`Field`]. A field's value is a number of a small domain, but for addresses, which have a domain for
//! each family; "there is none" is a value too, so that `not` means what it means in ipfw: the test's result turned round.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{Addresses, FragmentBits, InterfaceMatch, InterfaceRole, Side, Term, Test};
use ferrule_dataplane::packet::{Family, Flags, Packet, PortId};
use ferrule_dataplane::stage::Hook;

use super::interval::IntervalSet;

/// Header fields that rules are classified by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// Family, protocol, "not the first fragment", layer-2 pass.
    Kind,
    /// Interfaces of reception and transmission, and with them the direction.
    Interface,
    /// Source address.
    Source,
    /// Destination address.
    Destination,
    /// Source port.
    SourcePort,
    /// Destination port.
    DestinationPort,
    /// TCP flags, or the type of an ICMP message.
    Detail,
}

impl Field {
    /// All, in the order of the key.
    pub const ALL: [Field; 7] = [
        Field::Kind,
        Field::Interface,
        Field::Source,
        Field::Destination,
        Field::SourcePort,
        Field::DestinationPort,
        Field::Detail,
    ];
}

/// Last value of [`Field::Kind`].
pub const KIND_LAST: u32 = (1 << 12) - 1;
/// Value of a port field where there is no port.
pub const NO_PORT: u32 = 1 << 16;
/// Last value of [`Field::Detail`], which is "neither".
pub const NO_DETAIL: u32 = 768;

const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMP6: u8 = 58;
/// Highest ICMPv6 type that `icmp6types` knows (ICMP6_MAXTYPE).
const ICMP6_LAST: u32 = 201;
/// TCP flags of `established`.
const FIN_SYN_RST_ACK: (u8, u8, u8) = (2, 4, 16);

/// Whether the protocol has ports that ipfw tests: TCP, UDP, UDP-Lite, SCTP.
#[inline(always)]
pub fn has_ports(protocol: u8) -> bool {
    /// A table is one load where the comparisons are four branches.
    static PORTS: [bool; 256] = {
        let mut table = [false; 256];
        (table[6], table[17], table[132], table[136]) = (true, true, true, true);
        table
    };
    PORTS[usize::from(protocol)]
}

/// [`Field::Kind`] of a packet.
#[inline(always)]
pub fn kind_of(packet: &Packet, layer2: bool) -> u32 {
    let later = u32::from(packet.flags.has(Flags::LATER_FRAGMENT));
    u32::from(layer2) << 11 | (packet.family as u32) << 9 | later << 8 | u32::from(packet.protocol)
}

/// [`Field::Detail`] of a packet.
#[inline(always)]
pub fn detail_of(packet: &Packet) -> u32 {
    if packet.flags.has(Flags::LATER_FRAGMENT) {
        return NO_DETAIL;
    }
    let kind = u32::from(packet.destination_port >> 8);
    match (packet.protocol, packet.family) {
        (TCP, _) if packet.l4 != 0 => u32::from(*packet.frame.head().get(usize::from(packet.l4) + 13).unwrap_or(&0)),
        (ICMP, Family::V4) => 256 + kind,
        (ICMP6, Family::V6) => 512 + kind,
        _ => NO_DETAIL,
    }
}

/// Both port fields of a packet.
#[inline(always)]
pub fn ports_of(packet: &Packet) -> (u32, u32) {
    if has_ports(packet.protocol) && !packet.flags.has(Flags::LATER_FRAGMENT) {
        (packet.source_port.into(), packet.destination_port.into())
    } else {
        (NO_PORT, NO_PORT)
    }
}

/// Interfaces of a packet at a hook, as ipfw sees them: what the box itself sends came in nowhere, and nothing has left yet at In.
#[inline(always)]
pub fn interfaces_of(packet: &Packet, hook: Hook) -> (PortId, PortId) {
    let received =
        if packet.flags.any(Flags::FROM_HOST.with(Flags::GENERATED)) { PortId::NONE } else { packet.ingress };
    (received, if hook == Hook::In { PortId::NONE } else { packet.egress })
}

/// A test of one header field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Atom {
    /// IPv4, IPv6: the version number.
    Version(u8),
    /// The protocol.
    Protocol(u8),
    /// Not the first fragment.
    LaterFragment,
    /// The link layer's pass.
    Layer2,
    /// In pass.
    In,
    /// Out pass.
    Out,
    /// One of these ports, by number, in this role.
    Interface(InterfaceRole, Vec<u16>),
    /// IPv4 addresses.
    V4(Side, IntervalSet),
    /// IPv6 addresses.
    V6(Side, IntervalSet),
    /// Transport ports.
    Ports(Side, IntervalSet),
    /// TCP flags or ICMP types, as values of [`Field::Detail`].
    Detail(IntervalSet),
    /// Never.
    Never,
}

/// Whether `name` is matched by the shell pattern (fnmatch(3) without flags).
pub fn pattern_matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|skip| pattern_matches(rest, &name[skip..])),
        ([b'?', p @ ..], [_, n @ ..]) => pattern_matches(p, n),
        ([b'[', rest @ ..], [c, n @ ..]) => {
            let Some(end) = rest.iter().skip(1).position(|b| *b == b']').map(|i| i + 1) else {
                return *c == b'[' && pattern_matches(rest, n);
            };
            let (set, after) = (&rest[..end], &rest[end + 1..]);
            let (not, set) = match set {
                [b'!' | b'^', set @ ..] => (true, set),
                _ => (false, set),
            };
            let mut found = false;
            let mut at = 0;
            while let Some(low) = set.get(at) {
                match (set.get(at + 1), set.get(at + 2)) {
                    (Some(b'-'), Some(high)) => {
                        found |= (low..=high).contains(&c);
                        at += 3;
                    }
                    _ => {
                        found |= low == c;
                        at += 1;
                    }
                }
            }
            found != not && pattern_matches(after, n)
        }
        ([b'\\', p, rest @ ..], [n, more @ ..]) => p == n && pattern_matches(rest, more),
        ([p, rest @ ..], [n, more @ ..]) => p == n && pattern_matches(rest, more),
        _ => false,
    }
}

/// The range of an address under a mask without holes; None with holes.
fn range4(address: Ipv4Addr, mask: Ipv4Addr) -> Option<(u128, u128)> {
    let (address, mask) = (address.to_bits(), mask.to_bits());
    let low = address & mask;
    ((!mask).wrapping_add(1) & !mask == 0 && address == low).then(|| (low.into(), (low | !mask).into()))
}

fn range6(address: Ipv6Addr, mask: Ipv6Addr) -> Option<(u128, u128)> {
    let (address, mask) = (address.to_bits(), mask.to_bits());
    let low = address & mask;
    ((!mask).wrapping_add(1) & !mask == 0 && address == low).then_some((low, low | !mask))
}

impl Atom {
    /// The atom that a term is without its `not`; None where it needs more than one header field, or what may change under the rules.
    pub fn of(term: &Term, ports: &[String]) -> Option<Atom> {
        let named = |holds: &dyn Fn(&str) -> bool| {
            (0u16..).zip(ports).filter(|(_, name)| holds(name)).map(|(port, _)| port).collect::<Vec<u16>>()
        };
        let detail = |holds: &dyn Fn(u32) -> bool| Atom::Detail(IntervalSet::filter(NO_DETAIL - 1, holds));
        Some(match &term.test {
            Test::Ipv4 => Atom::Version(4),
            Test::Ipv6 => Atom::Version(6),
            Test::IpVersion(version) => Atom::Version(*version),
            Test::Protocol(protocol) => Atom::Protocol(*protocol),
            Test::Fragment(FragmentBits { set: FragmentBits::OFFSET, clear: 0 }) => Atom::LaterFragment,
            Test::Layer2 => Atom::Layer2,
            Test::In => Atom::In,
            Test::Out => Atom::Out,
            Test::Interface(role, InterfaceMatch::Any) => Atom::Interface(*role, named(&|_| true)),
            Test::Interface(role, InterfaceMatch::Name(name)) => Atom::Interface(*role, named(&|port| port == name)),
            Test::Interface(role, InterfaceMatch::Pattern(pattern)) => {
                Atom::Interface(*role, named(&|port| pattern_matches(pattern.as_bytes(), port.as_bytes())))
            }
            Test::Address(_, Addresses::None) => Atom::Never,
            Test::Address(side, Addresses::V4(list)) => {
                let ranges: Option<Vec<_>> = list.iter().map(|m| range4(m.address, m.mask)).collect();
                Atom::V4(*side, IntervalSet::of(ranges?))
            }
            Test::Address(side, Addresses::Set4 { base, length, members }) => {
                let mask = (!0u32).checked_shl(32 - u32::from((*length).min(32))).unwrap_or(0);
                let low = u128::from(base.to_bits() & mask);
                let all = IntervalSet::range(low, low | u128::from(!mask));
                let base = u128::from(base.to_bits() & !255);
                let bytes = (0..256u128).filter(|n| members[(n / 64) as usize] >> (n % 64) & 1 != 0);
                Atom::V4(*side, IntervalSet::of(bytes.map(|n| (base + n, base + n))).intersection(&all))
            }
            Test::Address(side, Addresses::V6(list)) => {
                let ranges: Option<Vec<_>> = list.iter().map(|m| range6(m.address, m.mask)).collect();
                Atom::V6(*side, IntervalSet::of(ranges?))
            }
            Test::Ports(side, ranges) => {
                Atom::Ports(*side, IntervalSet::of(ranges.iter().map(|r| (r.low.into(), r.high.into()))))
            }
            Test::TcpFlags(bits) => {
                let bits = *bits;
                detail(&|v| v < 256 && v & u32::from(bits.set) == u32::from(bits.set) && v & u32::from(bits.clear) == 0)
            }
            Test::Established => {
                let (syn, rst, ack) = FIN_SYN_RST_ACK;
                detail(&|v| v < 256 && v & u32::from(syn | rst | ack) != u32::from(syn))
            }
            Test::IcmpTypes(types) => detail(&|v| (256..288).contains(&v) && types >> (v - 256) & 1 != 0),
            Test::Icmp6Types(types) => detail(&|v| {
                (512..=512 + ICMP6_LAST).contains(&v) && types[((v - 512) / 64) as usize] >> ((v - 512) % 64) & 1 != 0
            }),
            Test::Owner(..) | Test::Ipsec | Test::Diverted { .. } | Test::SocketArgument => Atom::Never,
            _ => return None,
        })
    }

    /// The field that it tests.
    pub fn field(&self) -> Field {
        match self {
            Atom::Version(_) | Atom::Protocol(_) | Atom::LaterFragment | Atom::Layer2 | Atom::Never => Field::Kind,
            Atom::In | Atom::Out | Atom::Interface(..) => Field::Interface,
            Atom::V4(Side::Source, _) | Atom::V6(Side::Source, _) => Field::Source,
            Atom::V4(Side::Destination, _) | Atom::V6(Side::Destination, _) => Field::Destination,
            Atom::Ports(Side::Source, _) => Field::SourcePort,
            Atom::Ports(Side::Destination, _) => Field::DestinationPort,
            Atom::Detail(_) => Field::Detail,
        }
    }

    /// Its values of a domain.
    pub fn values(&self, domain: Domain) -> IntervalSet {
        match (self, domain) {
            (Atom::V4(_, set), Domain::V4) | (Atom::V6(_, set), Domain::V6) => set.clone(),
            (Atom::Ports(_, set) | Atom::Detail(set), _) => set.clone(),
            (_, Domain::Interface { ports }) => IntervalSet::filter(domain.last() as u32, |v| {
                let (received, sent) = ((v / (ports + 1)) as u16, (v % (ports + 1)) as u16);
                self.holds_interfaces(received, sent, ports as u16)
            }),
            (_, Domain::Kind) => IntervalSet::filter(KIND_LAST, |v| self.holds_kind(v)),
            _ => IntervalSet::empty(),
        }
    }

    /// Whether it holds for a value of [`Field::Kind`].
    pub fn holds_kind(&self, kind: u32) -> bool {
        let (protocol, family) = (kind as u8, kind >> 9 & 3);
        match self {
            Atom::Version(4) => family == Family::V4 as u32,
            Atom::Version(6) => family == Family::V6 as u32,
            Atom::Protocol(p) => *p == protocol && family != Family::Other as u32,
            Atom::LaterFragment => kind >> 8 & 1 != 0,
            Atom::Layer2 => kind >> 11 != 0,
            _ => false,
        }
    }

    /// Whether it holds for these interfaces; `none` is the number of "no port".
    pub fn holds_interfaces(&self, received: u16, sent: u16, none: u16) -> bool {
        match self {
            Atom::In => sent == none,
            Atom::Out => sent != none,
            Atom::Interface(InterfaceRole::Recv, ports) => ports.contains(&received),
            Atom::Interface(InterfaceRole::Xmit, ports) => ports.contains(&sent),
            Atom::Interface(InterfaceRole::Via, ports) => ports.contains(if sent == none { &received } else { &sent }),
            _ => false,
        }
    }
}

/// A field's domain of values. Address fields have three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// [`kind_of`]
    Kind,
    /// Received times number of ports and one, plus sent.
    Interface {
        /// Number of ports.
        ports: u32,
    },
    /// IPv4 addresses.
    V4,
    /// IPv6 addresses.
    V6,
    /// The one value of what has no addresses.
    NoAddress,
    /// Ports and [`NO_PORT`].
    Ports,
    /// [`detail_of`]
    Detail,
}

impl Domain {
    /// Domains of a field.
    pub fn of(field: Field, ports: u32) -> Vec<Domain> {
        match field {
            Field::Kind => vec![Domain::Kind],
            Field::Interface => vec![Domain::Interface { ports }],
            Field::Source | Field::Destination => vec![Domain::V4, Domain::V6, Domain::NoAddress],
            Field::SourcePort | Field::DestinationPort => vec![Domain::Ports],
            Field::Detail => vec![Domain::Detail],
        }
    }

    /// Its last value; the first is 0.
    pub fn last(self) -> u128 {
        match self {
            Domain::Kind => KIND_LAST.into(),
            Domain::Interface { ports } => u128::from(ports + 1) * u128::from(ports + 1) - 1,
            Domain::V4 => u32::MAX.into(),
            Domain::V6 => u128::MAX,
            Domain::NoAddress => 0,
            Domain::Ports => NO_PORT.into(),
            Domain::Detail => NO_DETAIL.into(),
        }
    }
}

/// Blocks of one field, all of which must match: a conjunction of disjunctions of perhaps negated atoms.
pub type Condition = Vec<Vec<(bool, Atom)>>;

/// The values of a domain that meet a condition.
pub fn condition_values(condition: &Condition, domain: Domain) -> IntervalSet {
    let last = domain.last();
    let term = |(not, atom): &(bool, Atom)| {
        let set = atom.values(domain);
        if *not { set.complement(last) } else { set }
    };
    let block = |terms: &Vec<(bool, Atom)>| match &terms[..] {
        [one] => term(one),
        several => IntervalSet::of(several.iter().flat_map(|t| term(t).ranges().to_vec())),
    };
    let mut blocks = condition.iter().map(block);
    let first = blocks.next().unwrap_or_else(|| IntervalSet::range(0, last));
    blocks.fold(first, |all, next| all.intersection(&next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_patterns() {
        let is = |p: &str, n: &str| pattern_matches(p.as_bytes(), n.as_bytes());
        assert!(is("em*", "em0") && is("em*", "em") && is("*", "") && is("e?0", "em0") && is("*0", "em10"));
        assert!(is("em[0-3]", "em2") && is("em[!0]", "em2") && is("em[ab]*", "emb9") && is("\\*", "*"));
        assert!(
            !is("em*", "igb0") && !is("e?0", "e0") && !is("em[0-3]", "em4") && !is("em[!0]", "em0") && !is("", "a")
        );
    }

    #[test]
    fn masks_with_holes_are_no_ranges() {
        assert_eq!(range4([10, 0, 0, 0].into(), [255, 0, 0, 0].into()), Some((0x0a00_0000, 0x0aff_ffff)));
        assert_eq!(range4([0, 0, 0, 0].into(), [0, 0, 0, 0].into()), Some((0, 0xffff_ffff)));
        assert_eq!(range4([10, 0, 3, 0].into(), [255, 0, 255, 0].into()), None);
        assert_eq!(range6(Ipv6Addr::LOCALHOST, u128::MAX.into()), Some((1, 1)));
    }
}
