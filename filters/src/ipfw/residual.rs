#![forbid(unsafe_code)]
//! Tests that are made on each packet: of fields that no class is made for, and of what may change under the rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{
    Addresses, Argument, Bits, FragmentBits, InterfaceMatch, InterfaceRole, LookupKey, Numbers, Side, TableValueTest,
    Test, ValueKind,
};
use ferrule_config::ipfw::table::{TableKind, TableValue};
use ferrule_dataplane::packet::{Family, Flags, L3, Packet, PortId};
use ferrule_dataplane::stage::Hook;

use super::dynamic::FlowKey;
use super::fault::{Fault, Planted};
use super::header::{Atom, detail_of, has_ports, interfaces_of, kind_of, ports_of};
use super::notes::Notes;
use super::table::{TableId, Tables};

/// One test of an entry.
#[derive(Clone, Debug)]
pub enum Check {
    /// `prob`.
    Chance(f64),
    /// Terms of which one must match.
    Block(Vec<(bool, Need)>),
}

/// What a term of a residual block looks at.
#[derive(Clone, Debug)]
pub enum Need {
    /// A header field.
    Atom(Atom),
    /// Something else, perhaps in a table.
    Test(Test, TableId),
}

/// The table of a name that is none.
pub const NO_TABLE: TableId = TableId(u16::MAX);

/// The table that a test looks into, by name.
pub fn table_of(test: &Test) -> Option<&str> {
    match test {
        Test::MacTable(_, name, _)
        | Test::Lookup(_, name)
        | Test::FlowTable(name, _)
        | Test::Address(_, Addresses::Table(name, _))
        | Test::Interface(_, InterfaceMatch::Table(name, _)) => Some(name),
        _ => None,
    }
}

/// Whether a test asks what tables of this kind answer.
pub fn can_ask(test: &Test, kind: TableKind) -> bool {
    match test {
        Test::MacTable(..) | Test::Lookup(LookupKey::Mac(..), _) => kind == TableKind::Mac,
        Test::FlowTable(..) => matches!(kind, TableKind::Flow(_)),
        Test::Interface(..) => kind == TableKind::Interface,
        Test::Address(..)
        | Test::Lookup(LookupKey::Address(_) | LookupKey::Address4(..) | LookupKey::Address6(..), _) => {
            kind == TableKind::Address
        }
        Test::Lookup(..) => kind == TableKind::Number,
        _ => false,
    }
}

/// What a worker's tables say.
pub fn ask(tables: &Tables, table: TableId, question: Question) -> Option<TableValue> {
    let found = match question {
        Question::Address(IpAddr::V4(address)) => tables.lookup4(table, address.to_bits()),
        Question::Address(IpAddr::V6(address)) => tables.lookup6(table, address.to_bits()),
        Question::Number(number) => tables.lookup_number(table, number),
        Question::Interface(port) => tables.lookup_interface(table, port),
        Question::Mac(mac) => tables.lookup_mac(table, mac),
        Question::Flow { source, destination, protocol } => {
            let key = match (source.0, destination.0) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    FlowKey::v4(from.to_bits(), to.to_bits(), protocol, source.1, destination.1)
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    FlowKey::v6(from.to_bits(), to.to_bits(), protocol, source.1, destination.1)
                }
                _ => return None,
            };
            tables.lookup_flow(table, &key)
        }
    };
    found.map(|index| tables.value(index))
}

/// What a table is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question {
    /// An address.
    Address(IpAddr),
    /// A number.
    Number(u32),
    /// An interface.
    Interface(PortId),
    /// A MAC address.
    Mac([u8; 6]),
    /// The packet's flow.
    Flow {
        /// Source and its port.
        source: (IpAddr, u16),
        /// Destination and its port.
        destination: (IpAddr, u16),
        /// Protocol.
        protocol: u8,
    },
}

/// The box around the rules, as tests ask for it.
pub trait Surroundings {
    /// What a table says.
    fn look_up(&self, table: TableId, question: Question) -> Option<TableValue>;
    /// Whether the address is the box's own.
    fn is_own(&self, address: IpAddr) -> bool;
    /// Whether the port has this address.
    fn has_address(&self, port: PortId, address: IpAddr) -> bool;
    /// Whether a network that the box is attached to holds the address.
    fn is_attached(&self, address: IpAddr) -> bool;
    /// Whether packets to `address` leave by `port`; without one, whether there is a route but the default one.
    fn reaches(&self, fib: u32, address: IpAddr, port: Option<PortId>) -> bool;
    /// A number below 2^31 for `prob` of this rule.
    fn roll(&mut self, rule: u32) -> u32;
}

/// A packet as tests see it.
pub struct Scene<'a> {
    /// The packet.
    pub packet: &'a Packet,
    /// Hook.
    pub hook: Hook,
    /// Whether it is the link layer's pass.
    pub layer2: bool,
    /// What hangs on it.
    pub notes: &'a Notes,
    /// Number of the rule.
    pub number: u16,
    /// A fault to be found by tests.
    pub planted: Planted,
}

const SYN: u8 = 2;

fn word(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_be_bytes([b[0], b[1]]))
}

fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from(word(bytes, at)) << 16 | u32::from(word(bytes, at + 2))
}

fn fits(bits: Bits, value: u8) -> bool {
    value & bits.set == bits.set && value & bits.clear == 0
}

fn listed(numbers: &Numbers, value: u32, argument: u32) -> bool {
    match numbers {
        Numbers::List(ranges) => ranges.iter().any(|r| (u32::from(r.low)..=u32::from(r.high)).contains(&value)),
        Numbers::Table => value == argument,
    }
}

/// Whether an entry has the value that a rule asks for.
pub fn value_fits(wanted: Option<TableValueTest>, found: &TableValue) -> bool {
    let Some(wanted) = wanted else { return true };
    wanted.value
        == match wanted.kind {
            Some(ValueKind::SkipTo) => found.skipto,
            Some(ValueKind::Pipe) => found.pipe,
            Some(ValueKind::Fib) => found.fib,
            Some(ValueKind::Nat) => found.nat,
            Some(ValueKind::Dscp) => found.dscp.into(),
            None | Some(ValueKind::Tag) => found.tag,
            Some(ValueKind::Divert) => found.divert,
            Some(ValueKind::Netgraph) => found.netgraph,
            Some(ValueKind::Limit) => found.limit,
            Some(ValueKind::Ipv4) => found.ipv4.to_bits(),
            Some(ValueKind::Ipv6) => return false,
            Some(ValueKind::Mark) => found.mark,
        }
}

/// The number written, or the table's.
pub fn number(argument: Argument, table: u32) -> u32 {
    match argument {
        Argument::Number(number) => number,
        Argument::Table => table,
    }
}

/// Kind and data of each option, up to the end mark or the first broken one.
fn options(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        while let [1, tail @ ..] = rest {
            rest = tail;
        }
        let (kind, len) = (*rest.first().filter(|kind| **kind != 0)?, usize::from(*rest.get(1)?));
        let data = rest.get(2..len)?;
        rest = rest.get(len..)?;
        Some((kind, data))
    })
}

impl Scene<'_> {
    /// Whether a check lets the packet through. A table that answers leaves its value in `argument`.
    pub fn passes(&self, check: &Check, rule: u32, argument: &mut TableValue, around: &mut impl Surroundings) -> bool {
        match check {
            Check::Chance(chance) => {
                let hit = f64::from(around.roll(rule)) < chance * f64::from(0x7fff_ffff_u32);
                hit != self.planted.has(Fault::ProbabilityInverted)
            }
            Check::Block(terms) => terms.iter().any(|(not, need)| {
                let holds = match need {
                    Need::Atom(atom) => self.holds(atom),
                    Need::Test(test, table) => self.test(test, *table, argument, around),
                };
                holds != *not
            }),
        }
    }

    /// Whether a header test matches.
    pub fn holds(&self, atom: &Atom) -> bool {
        let p = self.packet;
        match atom {
            Atom::V4(side, set) => p.family == Family::V4 && set.contains(self.v4(*side).into()),
            Atom::V6(side, set) => p.family == Family::V6 && set.contains(self.v6(*side)),
            Atom::Ports(side, set) => {
                let (from, to) = ports_of(p);
                set.contains(u128::from(if *side == Side::Source { from } else { to }))
            }
            Atom::Detail(set) => set.contains(detail_of(p).into()),
            Atom::In | Atom::Out | Atom::Interface(..) => {
                let (received, sent) = interfaces_of(p, self.hook);
                atom.holds_interfaces(received.0, sent.0, PortId::NONE.0)
            }
            _ => atom.holds_kind(kind_of(p, self.layer2)),
        }
    }

    fn v4(&self, side: Side) -> u32 {
        if side == Side::Source { self.packet.source_v4() } else { self.packet.destination_v4() }
    }

    fn v6(&self, side: Side) -> u128 {
        if side == Side::Source { self.packet.source_v6() } else { self.packet.destination_v6() }
    }

    fn address(&self, side: Side) -> Option<IpAddr> {
        match self.packet.family {
            Family::V4 => Some(Ipv4Addr::from_bits(self.v4(side)).into()),
            Family::V6 => Some(Ipv6Addr::from_bits(self.v6(side)).into()),
            Family::Other => None,
        }
    }

    fn port(&self, side: Side) -> u16 {
        let (from, to) = ports_of(self.packet);
        let port = if side == Side::Source { from } else { to };
        u16::try_from(port).unwrap_or(0)
    }

    /// The TCP header and what follows in the first segment.
    fn tcp(&self) -> Option<&[u8]> {
        let p = self.packet;
        let is = p.protocol == 6 && p.l4 != 0 && !p.flags.has(Flags::LATER_FRAGMENT);
        if is { p.frame.head().get(usize::from(p.l4)..) } else { None }
    }

    fn tcp_options(&self) -> Option<&[u8]> {
        let tcp = self.tcp()?;
        tcp.get(20..usize::from(tcp.get(12)? >> 4) * 4)
    }

    fn mac(&self, side: Side, mask: [u8; 6]) -> Option<[u8; 6]> {
        let h = self.packet.frame.header();
        let at = if side == Side::Destination { 0 } else { 6 };
        self.layer2.then(|| std::array::from_fn(|i| h[at + i] & mask[i]))
    }

    /// Length of the packet as its IP header has it.
    fn ip_length(&self) -> u32 {
        let h = self.packet.frame.header();
        match self.packet.family {
            Family::V4 => word(h, L3 + 2).into(),
            Family::V6 => u32::from(word(h, L3 + 4)) + 40,
            Family::Other => 0,
        }
    }

    fn dscp(&self) -> Option<u8> {
        let h = self.packet.frame.header();
        match self.packet.family {
            Family::V4 => Some(h[L3 + 1] >> 2),
            Family::V6 => Some((word(h, L3) >> 6 & 63) as u8),
            Family::Other => None,
        }
    }

    fn table(
        &self,
        name: TableId,
        question: Question,
        wanted: Option<TableValueTest>,
        argument: &mut TableValue,
        around: &impl Surroundings,
    ) -> bool {
        match around.look_up(name, question) {
            Some(value) if value_fits(wanted, &value) || self.planted.has(Fault::TableValueIgnored) => {
                if !self.planted.has(Fault::TableArgumentLost) {
                    *argument = value;
                }
                true
            }
            _ => false,
        }
    }

    fn test(&self, test: &Test, name: TableId, argument: &mut TableValue, around: &impl Surroundings) -> bool {
        let p = self.packet;
        let h = p.frame.header();
        let (v4, v6) = (p.family == Family::V4, p.family == Family::V6);
        match test {
            Test::Address(side, addresses) => self.addresses(*side, addresses, name, argument, around),
            Test::Mac { destination, source } => {
                let same = |side, want: [u8; 6], mask| self.mac(side, mask).is_some_and(|mac| mac == want);
                same(Side::Destination, destination.address, destination.mask)
                    && same(Side::Source, source.address, source.mask)
            }
            Test::MacTable(side, _, wanted) => self
                .mac(*side, [0xff; 6])
                .is_some_and(|mac| self.table(name, Question::Mac(mac), *wanted, argument, around)),
            Test::MacType(types) => self.layer2 && types.iter().any(|r| (r.low..=r.high).contains(&word(h, 12))),
            Test::Lookup(key, _) => {
                self.question(key).is_some_and(|question| self.table(name, question, None, argument, around))
            }
            Test::FlowTable(_, wanted) => {
                let ends = self.address(Side::Source).zip(self.address(Side::Destination));
                ends.is_some_and(|(source, destination)| {
                    let source = (source, self.port(Side::Source));
                    let destination = (destination, self.port(Side::Destination));
                    let flow = Question::Flow { source, destination, protocol: p.protocol };
                    self.table(name, flow, *wanted, argument, around)
                })
            }
            Test::Interface(role, wanted) => self.interface(*role, wanted, name, argument, around),
            Test::Fragment(bits) => self.fragment(*bits),
            Test::IpId(numbers) => v4 && listed(numbers, word(h, L3 + 4).into(), argument.skipto),
            Test::IpLength(numbers) => listed(numbers, self.ip_length() & 0xffff, argument.skipto),
            Test::IpTtl(numbers) => v4 && listed(numbers, h[L3 + 8].into(), argument.skipto),
            Test::IpOptions(bits) => v4 && self.ip_options().is_some_and(|options| fits(*bits, options)),
            Test::IpPrecedence(precedence) => v4 && h[L3 + 1] >> 5 == *precedence,
            Test::IpTos(bits) => {
                let clear = if self.planted.has(Fault::TosClearIgnored) { 0 } else { bits.clear };
                v4 && fits(Bits { clear, ..*bits }, h[L3 + 1])
            }
            Test::Dscp(points) => {
                let shift = u8::from(self.planted.has(Fault::DscpOffByOne));
                self.dscp().is_some_and(|point| points >> ((point + shift) & 63) & 1 == 1)
            }
            Test::DscpTable => self.dscp() == Some(argument.dscp & 63),
            Test::TcpOptions(bits) => self.tcp_options().is_some_and(|all| {
                let found = options(all).map(|(kind, data)| match (kind, data.len()) {
                    (2, 2) => 1,
                    (3, 1) => 2,
                    (4, 0) => 4,
                    (5, len) if len > 0 && len.is_multiple_of(8) => 4,
                    (8, 8) => 8,
                    _ => 0,
                });
                fits(*bits, found.fold(0, |a, b| a | b))
            }),
            Test::TcpSequence(number) => self.tcp().is_some_and(|tcp| long(tcp, 4) == *number),
            Test::TcpAcknowledgement(number) => self.tcp().is_some_and(|tcp| long(tcp, 8) == *number),
            Test::TcpWindow(numbers) => {
                self.tcp().is_some_and(|tcp| listed(numbers, word(tcp, 14).into(), argument.skipto))
            }
            // A jumbo payload is not measured.
            Test::TcpDataLength(_) if v6 && self.ip_length() == 40 => false,
            Test::TcpDataLength(numbers) => self.tcp().is_some_and(|tcp| {
                let headers = usize::from(p.l4) - L3 + usize::from(tcp.get(12).unwrap_or(&0) >> 4) * 4;
                listed(numbers, self.ip_length().wrapping_sub(headers as u32) & 0xffff, argument.skipto)
            }),
            Test::TcpMss(numbers) => {
                let syn = self.tcp().and_then(|tcp| tcp.get(13)).is_some_and(|flags| flags & SYN != 0);
                let all = self.tcp_options().filter(|_| syn).unwrap_or_default();
                let mss = options(all).filter(|(kind, data)| *kind == 2 && data.len() == 2).last();
                mss.is_some_and(|(_, data)| listed(numbers, word(data, 0).into(), argument.skipto))
            }
            Test::ExtensionHeaders(bits) => v6 && self.extensions() & bits != 0,
            Test::FlowId(labels) => v6 && labels.contains(&(long(h, L3) & 0xf_ffff)),
            Test::VerifyReversePath => {
                let (received, _) = interfaces_of(p, self.hook);
                self.hook == Hook::Out || self.reaches((received != PortId::NONE).then_some(received), around)
            }
            Test::VerifySourceReach => (v4 || v6) && (self.hook == Hook::Out || self.reaches(None, around)),
            Test::AntiSpoof => {
                let (received, _) = interfaces_of(p, self.hook);
                let spoof = self.hook == Hook::In
                    && self.address(Side::Source).is_some_and(|a| around.is_attached(a))
                    && !self.reaches((received != PortId::NONE).then_some(received), around);
                !spoof
            }
            Test::Fib(wanted) => self.notes.fib == number(*wanted, argument.fib),
            Test::Tagged(Numbers::List(ranges)) => {
                let within = |tag: &u32| ranges.iter().any(|r| (u32::from(r.low)..=u32::from(r.high)).contains(tag));
                self.notes.tags.as_slice().iter().any(within)
            }
            Test::Tagged(Numbers::Table) => self.notes.tags.as_slice().contains(&argument.tag),
            Test::Mark(wanted, mask) => self.notes.mark & mask == number(*wanted, argument.mark) & mask,
            // The rest are header tests.
            _ => false,
        }
    }

    fn reaches(&self, port: Option<PortId>, around: &impl Surroundings) -> bool {
        // What is not IP has the address that says nothing.
        let source = self.address(Side::Source).unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        around.reaches(self.notes.fib, source, port)
    }

    fn question(&self, key: &LookupKey) -> Option<Question> {
        let p = self.packet;
        let numbered = has_ports(p.protocol) && !p.flags.has(Flags::LATER_FRAGMENT) && p.family != Family::Other;
        match *key {
            LookupKey::Address(side) => self.address(side).map(Question::Address),
            LookupKey::Address4(side, mask) => (p.family == Family::V4)
                .then(|| Question::Address(Ipv4Addr::from_bits(self.v4(side) & mask.to_bits()).into())),
            LookupKey::Address6(side, mask) => (p.family == Family::V6)
                .then(|| Question::Address(Ipv6Addr::from_bits(self.v6(side) & mask.to_bits()).into())),
            LookupKey::Port(side, mask) => numbered.then(|| Question::Number((self.port(side) & mask).into())),
            LookupKey::Mac(side, mask) => self.mac(side, mask).map(Question::Mac),
            LookupKey::Dscp(mask) => self.dscp().map(|point| Question::Number(u32::from(point) & mask)),
            LookupKey::RuleNumber(mask) => Some(Question::Number(u32::from(self.number) & mask)),
            LookupKey::Mark(mask) => Some(Question::Number(self.notes.mark & mask)),
            LookupKey::Owner(_) => None,
        }
    }

    fn addresses(
        &self,
        side: Side,
        addresses: &Addresses,
        name: TableId,
        argument: &mut TableValue,
        around: &impl Surroundings,
    ) -> bool {
        let Some(address) = self.address(side) else { return false };
        match (addresses, address) {
            (Addresses::Me, IpAddr::V6(_)) if self.planted.has(Fault::MeIgnoresV6) => false,
            (Addresses::Me, _) => around.is_own(address),
            (Addresses::Me6, _) => address.is_ipv6() && around.is_own(address),
            (Addresses::Table(_, wanted), _) => self.table(name, Question::Address(address), *wanted, argument, around),
            (Addresses::V4(list), IpAddr::V4(address)) => {
                list.iter().any(|m| address.to_bits() & m.mask.to_bits() == m.address.to_bits())
            }
            (Addresses::V6(list), IpAddr::V6(address)) => {
                list.iter().any(|m| address.to_bits() & m.mask.to_bits() == m.address.to_bits())
            }
            _ => false,
        }
    }

    fn interface(
        &self,
        role: InterfaceRole,
        wanted: &InterfaceMatch,
        name: TableId,
        argument: &mut TableValue,
        around: &impl Surroundings,
    ) -> bool {
        let (received, sent) = interfaces_of(self.packet, self.hook);
        let port = match role {
            InterfaceRole::Recv => received,
            InterfaceRole::Xmit => sent,
            InterfaceRole::Via if self.hook == Hook::In || self.planted.has(Fault::ViaMeansRecv) => received,
            InterfaceRole::Via => sent,
        };
        if port == PortId::NONE {
            return false;
        }
        match wanted {
            InterfaceMatch::Address4(address) => around.has_address(port, IpAddr::V4(*address)),
            InterfaceMatch::Address6(address) => around.has_address(port, IpAddr::V6(*address)),
            InterfaceMatch::Table(_, wanted) => self.table(name, Question::Interface(port), *wanted, argument, around),
            _ => false,
        }
    }

    fn fragment(&self, bits: FragmentBits) -> bool {
        let later = self.packet.flags.has(Flags::LATER_FRAGMENT);
        let clear = if self.planted.has(Fault::FragmentClearIgnored) { 0 } else { bits.clear };
        if self.packet.family != Family::V4 {
            return bits.set == FragmentBits::OFFSET && clear == 0 && later;
        }
        let field = word(self.packet.frame.header(), L3 + 6);
        let bit = |holds: bool, bit: u8| if holds { bit } else { 0 };
        let facts = bit(later, FragmentBits::OFFSET)
            | bit(field & 0x2000 != 0, FragmentBits::MORE)
            | bit(field & 0x4000 != 0, FragmentBits::DONT)
            | bit(field & 0x8000 != 0, FragmentBits::RESERVED);
        fits(Bits { set: bits.set, clear }, facts)
    }

    /// Options of the IPv4 header; None where they are broken.
    fn ip_options(&self) -> Option<u8> {
        let h = self.packet.frame.head();
        let mut rest = h.get(L3 + 20..L3 + usize::from(h.get(L3)? & 15) * 4)?;
        let mut bits = 0;
        while let [kind, tail @ ..] = rest {
            let len = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(*tail.first()?),
            };
            if len == 0 || len > rest.len() {
                return None;
            }
            bits |= match kind {
                137 => 1,
                131 => 2,
                7 => 4,
                68 => 8,
                _ => 0,
            };
            rest = rest.get(len..)?;
        }
        Some(bits)
    }

    /// Extension headers of the packet, in the bits of [`Test::ExtensionHeaders`].
    pub fn extensions(&self) -> u8 {
        let h = self.packet.frame.head();
        let (mut next, mut at, mut found) = (h.get(L3 + 6).copied().unwrap_or(59), L3 + 40, 0u8);
        // No chain that the parser lets through is longer.
        for _ in 0..16 {
            let (kind, len) = (h.get(at).copied(), h.get(at + 1).copied().unwrap_or(0));
            let Some(kind) = kind else { break };
            let size = match next {
                0 | 60 => (usize::from(len) + 1) * 8,
                43 => {
                    found |= match h.get(at + 2) {
                        Some(0) => 64,
                        Some(2) => 128,
                        _ => 0,
                    };
                    (usize::from(len) + 1) * 8
                }
                44 => 8,
                51 => (usize::from(len) + 2) * 4,
                50 => {
                    found |= 32;
                    break;
                }
                _ => break,
            };
            found |= match next {
                44 => 1,
                0 => 2,
                43 => 4,
                60 => 8,
                _ => 16,
            };
            if next == 44 && word(h, at + 2) & 0xfff8 != 0 {
                break;
            }
            (next, at) = (kind, at + size);
        }
        found
    }
}
