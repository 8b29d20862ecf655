#![forbid(unsafe_code)]
//! Whether one test of a rule matches a packet.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::{
    Addresses, Argument, Bits, FragmentBits, InterfaceMatch, InterfaceRole, LookupKey, Numbers, Range, Side, TableName,
    TableValueTest, Test,
};
use ferrule_config::ipfw::table::TableValue;

use super::annotations::Annotations;
use super::options::{ip_option_bits, tcp_mss, tcp_option_bits};
use super::pass::{Direction, Pass};
use super::pattern;
use super::setup::Setup;
use super::table::{Question, value_fits};
use super::view::{ETHERNET, Family, Unreadable, View, long, protocol, word};

/// All that a test can look at.
pub struct Scene<'a> {
    /// Tables, settings and the box.
    pub setup: &'a Setup,
    /// The bytes: earlier rules may have changed them.
    pub frame: &'a [u8],
    /// What was read from them first.
    pub view: &'a View,
    /// Where the packet is.
    pub pass: &'a Pass<'a>,
    /// What it carries.
    pub annotations: &'a Annotations,
    /// Number of the rule.
    pub rule: u16,
}

const TCP_SYN: u8 = 2;
const TCP_RST: u8 = 4;
const TCP_ACK: u8 = 16;
/// `ICMP6_MAXTYPE` of FreeBSD.
const ICMP6_LAST: u8 = 201;

impl Scene<'_> {
    /// Whether the test matches. A table that answers leaves its value in `argument` (`tablearg`).
    pub fn matches(&self, test: &Test, argument: &mut TableValue) -> Result<bool, Unreadable> {
        let view = self.view;
        let frame = self.frame;
        let v4 = view.family == Family::V4;
        let v6 = view.family == Family::V6;
        let tos = if v4 { Some(frame[ETHERNET + 1]) } else { None };
        let tcp = view.tcp();
        Ok(match test {
            Test::Ipv4 => v4,
            Test::Ipv6 => v6,
            Test::Protocol(number) => view.family != Family::Other && view.protocol == *number,
            Test::Layer2 => self.pass.layer2,
            Test::Mac { destination, source } => {
                let same = |at: usize, want: [u8; 6], mask: [u8; 6]| (0..6).all(|i| frame[at + i] & mask[i] == want[i]);
                self.pass.layer2
                    && frame.len() >= ETHERNET
                    && same(0, destination.address, destination.mask)
                    && same(6, source.address, source.mask)
            }
            Test::MacTable(side, table, wanted) => {
                let question = self.mac(*side, [0xff; 6]);
                question.is_some_and(|question| self.table(table, question, *wanted, argument))
            }
            Test::MacType(types) => self.pass.layer2 && frame.len() >= ETHERNET && within(types, word(frame, 12)),
            Test::Address(side, addresses) => self.address(*side, addresses, argument),
            Test::Ports(side, ports) => view.has_ports() && within(ports, self.port(*side)),
            Test::Lookup(key, table) => self.look_up(key, table, argument),
            Test::FlowTable(table, wanted) => {
                let flow = Question::Flow {
                    source: (view.source, view.source_port),
                    destination: (view.destination, view.destination_port),
                    protocol: view.protocol,
                };
                view.family != Family::Other && self.table(table, flow, *wanted, argument)
            }
            Test::In => self.pass.direction == Direction::In,
            Test::Out => self.pass.direction == Direction::Out,
            Test::Interface(role, wanted) => self.interface(*role, wanted, argument),
            Test::Fragment(bits) => self.fragment(*bits),
            Test::IpId(numbers) => v4 && listed(numbers, u32::from(word(frame, ETHERNET + 4)), argument.skipto),
            Test::IpLength(numbers) => listed(numbers, (view.ip_length & 0xffff) as u32, argument.skipto),
            Test::IpTtl(numbers) => v4 && listed(numbers, u32::from(frame[ETHERNET + 8]), argument.skipto),
            Test::IpVersion(version) => (v4 && *version == 4) || (v6 && *version == 6),
            Test::IpOptions(bits) => v4 && ip_option_bits(frame, view).is_some_and(|options| flags(*bits, options)),
            Test::IpPrecedence(precedence) => tos.is_some_and(|tos| tos >> 5 == *precedence),
            Test::IpTos(bits) => tos.is_some_and(|tos| flags(*bits, tos)),
            Test::Dscp(points) => self.dscp().is_some_and(|point| points >> point & 1 == 1),
            Test::DscpTable => self.dscp() == Some(argument.dscp & 63),
            Test::TcpFlags(bits) => tcp.is_some_and(|at| flags(*bits, frame[at + 13])),
            // The kernel excludes the opening SYN alone, so that a lone FIN is established as well.
            Test::Established => tcp.is_some_and(|at| frame[at + 13] & (TCP_RST | TCP_ACK | TCP_SYN) != TCP_SYN),
            Test::TcpOptions(bits) => match tcp {
                Some(at) => flags(*bits, tcp_option_bits(view.tcp_options(frame, at)?)),
                None => false,
            },
            Test::TcpSequence(number) => tcp.is_some_and(|at| long(frame, at + 4) == *number),
            Test::TcpAcknowledgement(number) => tcp.is_some_and(|at| long(frame, at + 8) == *number),
            Test::TcpWindow(numbers) => {
                tcp.is_some_and(|at| listed(numbers, u32::from(word(frame, at + 14)), argument.skipto))
            }
            Test::TcpDataLength(numbers) => match tcp {
                // A jumbo payload is not measured.
                Some(_) if v6 && view.ip_length == 40 => false,
                Some(at) => {
                    let headers = view.header_length + usize::from(frame[at + 12] >> 4) * 4;
                    listed(numbers, (view.ip_length as u32).wrapping_sub(headers as u32) & 0xffff, argument.skipto)
                }
                None => false,
            },
            Test::TcpMss(numbers) => match tcp {
                Some(at) if view.tcp_flags & TCP_SYN != 0 => tcp_mss(view.tcp_options(frame, at)?)
                    .is_some_and(|mss| listed(numbers, u32::from(mss), argument.skipto)),
                _ => false,
            },
            Test::IcmpTypes(types) => {
                v4 && view.protocol == protocol::ICMP
                    && !view.later_fragment
                    && view.upper.is_some_and(|at| frame[at] < 32 && types >> frame[at] & 1 == 1)
            }
            Test::Icmp6Types(types) => {
                let kind = view.icmp6_type;
                v6 && view.protocol == protocol::ICMPV6
                    && !view.later_fragment
                    && kind <= ICMP6_LAST
                    && types[usize::from(kind / 64)] >> (kind % 64) & 1 == 1
            }
            Test::ExtensionHeaders(bits) => v6 && view.extensions & bits != 0,
            Test::FlowId(labels) => v6 && labels.contains(&(long(frame, ETHERNET) & 0xf_ffff)),
            Test::VerifyReversePath => self.pass.direction == Direction::Out || self.reaches(self.pass.recv),
            Test::VerifySourceReach => {
                view.family != Family::Other && (self.pass.direction == Direction::Out || self.reaches(None))
            }
            Test::AntiSpoof => {
                self.pass.direction == Direction::Out
                    || view.family == Family::Other
                    || !self.setup.environment.is_attached(view.source)
                    || self.reaches(self.pass.recv)
            }
            Test::Fib(wanted) => self.annotations.fib == number(*wanted, argument.fib),
            Test::Tagged(numbers) => match numbers {
                Numbers::List(ranges) => {
                    self.annotations.tags.iter().any(|tag| ranges.iter().any(|range| holds(range, *tag)))
                }
                Numbers::Table => self.annotations.tags.contains(&argument.tag),
            },
            Test::Mark(wanted, mask) => self.annotations.mark & mask == number(*wanted, argument.mark) & mask,
            // A forwarded packet has no owner, no socket, no IPsec and no divert here.
            Test::Owner(..) | Test::Ipsec | Test::Diverted { .. } | Test::SocketArgument => false,
        })
    }

    fn side(&self, side: Side) -> IpAddr {
        if side == Side::Source { self.view.source } else { self.view.destination }
    }

    fn port(&self, side: Side) -> u16 {
        if side == Side::Source { self.view.source_port } else { self.view.destination_port }
    }

    /// A MAC address as a question; None outside the link layer.
    fn mac(&self, side: Side, mask: [u8; 6]) -> Option<Question<'static>> {
        let at = if side == Side::Destination { 0 } else { 6 };
        let seen = self.pass.layer2 && self.frame.len() >= ETHERNET;
        seen.then(|| Question::Mac(std::array::from_fn(|i| self.frame[at + i] & mask[i])))
    }

    fn dscp(&self) -> Option<u8> {
        match self.view.family {
            Family::V4 => Some(self.frame[ETHERNET + 1] >> 2),
            Family::V6 => Some((word(self.frame, ETHERNET) >> 6 & 63) as u8),
            Family::Other => None,
        }
    }

    fn reaches(&self, received: Option<&str>) -> bool {
        self.setup.environment.reaches(self.annotations.fib, self.view.source, received)
    }

    fn table(
        &self,
        name: &TableName,
        question: Question<'_>,
        wanted: Option<TableValueTest>,
        argument: &mut TableValue,
    ) -> bool {
        match self.setup.tables.look_up(name, question) {
            Some(value) if value_fits(wanted, &value) => {
                *argument = value;
                true
            }
            _ => false,
        }
    }

    fn address(&self, side: Side, addresses: &Addresses, argument: &mut TableValue) -> bool {
        let address = self.side(side);
        if self.view.family == Family::Other {
            return false;
        }
        match addresses {
            Addresses::None => false,
            Addresses::Me => self.setup.environment.is_own(address),
            Addresses::Me6 => address.is_ipv6() && self.setup.environment.is_own(address),
            Addresses::Table(name, wanted) => self.table(name, Question::Address(address), *wanted, argument),
            Addresses::V4(list) => match address {
                IpAddr::V4(address) => {
                    list.iter().any(|entry| address.to_bits() & entry.mask.to_bits() == entry.address.to_bits())
                }
                IpAddr::V6(_) => false,
            },
            Addresses::V6(list) => match address {
                IpAddr::V6(address) => {
                    list.iter().any(|entry| address.to_bits() & entry.mask.to_bits() == entry.address.to_bits())
                }
                IpAddr::V4(_) => false,
            },
            Addresses::Set4 { base, length, members } => match address {
                IpAddr::V4(address) => {
                    let last = address.octets()[3];
                    super::setup::covers(IpAddr::V4(*base), *length, IpAddr::V4(address))
                        && members[usize::from(last / 64)] >> (last % 64) & 1 == 1
                }
                IpAddr::V6(_) => false,
            },
        }
    }

    fn look_up(&self, key: &LookupKey, table: &TableName, argument: &mut TableValue) -> bool {
        let ip = self.view.family != Family::Other;
        let question = match (*key, self.view.family) {
            (LookupKey::Address(side), Family::V4 | Family::V6) => Question::Address(self.side(side)),
            (LookupKey::Address4(side, mask), Family::V4) => match self.side(side) {
                IpAddr::V4(address) => Question::Address(IpAddr::V4(address & mask)),
                IpAddr::V6(_) => return false,
            },
            (LookupKey::Address6(side, mask), Family::V6) => match self.side(side) {
                IpAddr::V6(address) => Question::Address(IpAddr::V6(address & mask)),
                IpAddr::V4(_) => return false,
            },
            (LookupKey::Port(side, mask), _) if self.view.has_ports() => {
                Question::Number(u32::from(self.port(side) & mask))
            }
            (LookupKey::Mac(side, mask), _) => match self.mac(side, mask) {
                Some(question) => question,
                None => return false,
            },
            (LookupKey::Dscp(mask), _) if ip => Question::Number(u32::from(self.dscp().unwrap_or(0)) & mask),
            (LookupKey::RuleNumber(mask), _) => Question::Number(u32::from(self.rule) & mask),
            (LookupKey::Mark(mask), _) => Question::Number(self.annotations.mark & mask),
            // The packet lacks the field, or, having no owner, is never found.
            _ => return false,
        };
        self.table(table, question, None, argument)
    }

    fn interface(&self, role: InterfaceRole, wanted: &InterfaceMatch, argument: &mut TableValue) -> bool {
        let incoming = self.pass.direction == Direction::In;
        let name = match role {
            InterfaceRole::Recv => self.pass.recv,
            InterfaceRole::Xmit if incoming => None,
            InterfaceRole::Xmit => self.pass.xmit,
            InterfaceRole::Via if incoming => self.pass.recv,
            InterfaceRole::Via => self.pass.xmit,
        };
        let Some(name) = name else { return false };
        match wanted {
            InterfaceMatch::Any => true,
            InterfaceMatch::Name(wanted) => name == wanted,
            InterfaceMatch::Pattern(shape) => pattern::matches(shape, name),
            InterfaceMatch::Address4(address) => self.setup.environment.interface_has(name, IpAddr::V4(*address)),
            InterfaceMatch::Address6(address) => self.setup.environment.interface_has(name, IpAddr::V6(*address)),
            InterfaceMatch::Table(table, wanted) => self.table(table, Question::Interface(name), *wanted, argument),
        }
    }

    fn fragment(&self, bits: FragmentBits) -> bool {
        if self.view.family != Family::V4 {
            // Only plain `frag` knows IPv6.
            return bits.set == FragmentBits::OFFSET && bits.clear == 0 && self.view.later_fragment;
        }
        let field = word(self.frame, ETHERNET + 6);
        let mut facts = 0;
        for (mask, bit) in [
            (0x1fff, FragmentBits::OFFSET),
            (0x2000, FragmentBits::MORE),
            (0x4000, FragmentBits::DONT),
            (0x8000, FragmentBits::RESERVED),
        ] {
            facts |= if field & mask != 0 { bit } else { 0 };
        }
        flags(Bits { set: bits.set, clear: bits.clear }, facts)
    }
}

/// The number written, or the table's.
pub fn number(argument: Argument, table: u32) -> u32 {
    match argument {
        Argument::Number(number) => number,
        Argument::Table => table,
    }
}

fn flags(wanted: Bits, is: u8) -> bool {
    is & wanted.set == wanted.set && is & wanted.clear == 0
}

fn holds(range: &Range<u16>, number: u32) -> bool {
    (u32::from(range.low)..=u32::from(range.high)).contains(&number)
}

fn within(ranges: &[Range<u16>], number: u16) -> bool {
    ranges.iter().any(|range| holds(range, u32::from(number)))
}

fn listed(numbers: &Numbers, is: u32, table: u32) -> bool {
    match numbers {
        Numbers::List(ranges) => ranges.iter().any(|range| holds(range, is)),
        Numbers::Table => is == table,
    }
}
