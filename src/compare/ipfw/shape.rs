//! What a rule of a mixed set is, before it is text: what it matches, how specific it is, and how it is written.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::compare::flows::{Family, Flow, TCP};
use crate::compare::rig::{PORTS, Random};

/// A network: its address in the low bits, and its length there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net {
    /// Address, host bits zero.
    pub address: u128,
    /// Prefix length, of 32 or 128.
    pub length: u8,
}

/// How addresses of a family are made.
#[derive(Clone, Copy, Debug)]
pub struct Width(pub Family);

impl Width {
    fn bits(self) -> u8 {
        if self.0 == Family::Inet { 32 } else { 128 }
    }

    /// The length in this family of what has this length (16 to 32) in IPv4.
    fn length(self, of_v4: u8) -> u8 {
        if self.0 == Family::Inet { of_v4 } else { 48 + (of_v4 - 16) * 5 }
    }

    /// A network of sources.
    pub fn source(self, random: &mut Random) -> Net {
        let number = random.below(1 << 13) as u128;
        let address = match self.0 {
            Family::Inet => 0x2000_0000 | number << 16,
            Family::Inet6 => 0x2400_0000_u128 << 96 | number << 80,
        };
        Net { address, length: self.length(16) }
    }

    /// The network of destinations of this number: 172.NUMBER.0.0/16, or its like.
    pub fn destination(self, number: u128) -> Net {
        let address = match self.0 {
            Family::Inet => 0xac00_0000 | number << 16,
            Family::Inet6 => 0x2600_u128 << 112 | number << 80,
        };
        Net { address, length: self.length(16) }
    }

    fn below(self, net: &Net) -> u128 {
        u128::MAX.checked_shr(128 - u32::from(self.bits() - net.length)).unwrap_or(0)
    }

    /// A network in another, of the length that in IPv4 is this.
    pub fn within(self, net: &Net, of_v4: u8, random: &mut Random) -> Net {
        let length = self.length(of_v4).max(net.length);
        let inner = Net { address: self.draw(net, random), length };
        Net { address: inner.address & !self.below(&inner), length }
    }

    fn draw(self, net: &Net, random: &mut Random) -> u128 {
        let bits = u128::from(random.draw()) << 64 | u128::from(random.draw());
        net.address | bits & self.below(net)
    }

    /// An address in a network.
    pub fn host(self, net: &Net, random: &mut Random) -> IpAddr {
        self.address(self.draw(net, random))
    }

    fn address(self, bits: u128) -> IpAddr {
        match self.0 {
            Family::Inet => Ipv4Addr::from_bits(bits as u32).into(),
            Family::Inet6 => Ipv6Addr::from_bits(bits).into(),
        }
    }

    /// As rules name it.
    pub fn text(self, net: &Net) -> String {
        let address = self.address(net.address);
        if net.length == self.bits() { address.to_string() } else { format!("{address}/{}", net.length) }
    }
}

impl Net {
    fn contains(&self, address: IpAddr) -> bool {
        let (bits, width) = match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()), 32),
            IpAddr::V6(v6) => (v6.to_bits(), 128),
        };
        (bits ^ self.address).checked_shr(u32::from(width - self.length)).unwrap_or(0) == 0
    }
}

/// What a rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Lets pass.
    #[default]
    Allow,
    /// Counts.
    Count,
    /// Goes on at the rule of this index.
    SkipTo(usize),
}

/// Source or destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Anywhere.
    #[default]
    Any,
    /// One of these networks.
    Nets(Vec<Net>),
    /// A table, by number.
    Table(usize),
}

/// Ports and ranges of them; empty is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<(u16, Option<u16>)>);

impl Ports {
    /// How many ports.
    pub fn width(&self) -> u32 {
        match self.0.is_empty() {
            true => 65_536,
            false => self.0.iter().map(|(low, high)| u32::from(high.unwrap_or(*low) - low) + 1).sum(),
        }
    }

    /// One of them.
    pub fn draw(&self, random: &mut Random) -> u16 {
        match self.0.is_empty() {
            true => 1 + random.below(65_535) as u16,
            false => {
                let (low, high) = self.0[random.below(self.0.len())];
                low + random.below(usize::from(high.unwrap_or(low) - low) + 1) as u16
            }
        }
    }

    fn contain(&self, port: u16) -> bool {
        self.0.is_empty() || self.0.iter().any(|(low, high)| (*low..=high.unwrap_or(*low)).contains(&port))
    }

    fn text(&self) -> String {
        let one = |(low, high): &(u16, Option<u16>)| high.map_or(low.to_string(), |high| format!("{low}-{high}"));
        self.0.iter().map(one).collect::<Vec<_>>().join(",")
    }
}

/// `{ src-port A or dst-port B }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Either {
    /// The one.
    pub source: u16,
    /// The other.
    pub destination: u16,
}

/// What is asked of TCP flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flags {
    /// `established`
    Established,
    /// `setup`
    Setup,
    /// `tcpflags syn,!ack`
    SynWithoutAck,
}

impl Flags {
    /// Flags that match.
    pub fn example(self) -> u8 {
        if self == Flags::Established { 16 } else { 2 }
    }

    fn match_flags(self, flags: u8) -> bool {
        if self == Flags::Established { flags & 20 != 0 } else { flags & 18 == 2 }
    }
}

/// Pass and interface. Packets come in by the rig's first port and go out by its second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `in recv`; also the in pass itself.
    In,
    /// `out xmit`; also the out pass itself.
    Out,
    /// `via` the port by which packets come in: the in pass, as `via` asks in the out pass for the port that a packet leaves by.
    Via,
}

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// What it does.
    pub action: Action,
    /// TCP, UDP, or whatever.
    pub protocol: Option<u8>,
    /// Source.
    pub source: Place,
    /// Destination.
    pub destination: Place,
    /// Source ports.
    pub source_ports: Ports,
    /// Destination ports.
    pub destination_ports: Ports,
    /// An or-block over both ports.
    pub either: Option<Either>,
    /// TCP flags.
    pub flags: Option<Flags>,
    /// Pass and interface.
    pub interface: Option<Interface>,
}

impl Shape {
    /// Whether it matches in a pass ([`Interface::In`] or [`Interface::Out`]).
    pub fn matches(&self, flow: &Flow, pass: Interface, tables: &[Vec<Net>]) -> bool {
        let at = |place: &Place, address| match place {
            Place::Any => true,
            Place::Nets(nets) => nets.iter().any(|net| net.contains(address)),
            Place::Table(table) => tables[*table].iter().any(|net| net.contains(address)),
        };
        let in_pass = match self.interface {
            None => true,
            Some(Interface::Out) => pass == Interface::Out,
            Some(Interface::In | Interface::Via) => pass == Interface::In,
        };
        let either = |e: Either| flow.source_port == e.source || flow.destination_port == e.destination;
        in_pass
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.source_ports.contain(flow.source_port)
            && self.destination_ports.contain(flow.destination_port)
            && self.either.is_none_or(either)
            && self.flags.is_none_or(|flags| flow.protocol == TCP && flags.match_flags(flow.tcp_flags))
            && at(&self.source, flow.source)
            && at(&self.destination, flow.destination)
    }

    /// The higher, the fewer packets it matches, roughly: bits that it asks for.
    pub fn specificity(&self) -> u32 {
        let place = |place: &Place| match place {
            Place::Any => 0,
            Place::Nets(nets) => nets.iter().map(|net| u32::from(net.length)).min().unwrap_or(0) - nets.len() as u32,
            Place::Table(_) => 20,
        };
        let ports = |ports: &Ports| 16 - ports.width().ilog2();
        let some = |is: bool, bits: u32| if is { bits } else { 0 };
        place(&self.source)
            + place(&self.destination)
            + ports(&self.source_ports)
            + ports(&self.destination_ports)
            + some(self.protocol.is_some(), 1)
            + some(self.flags.is_some(), 1)
            + some(self.either.is_some(), 14)
            + some(self.interface.is_some(), 1)
    }

    /// From the action on; `number` gives the numbers of rules by index.
    pub fn text(&self, width: Width, number: impl Fn(usize) -> usize) -> String {
        let action = match self.action {
            Action::Allow => "allow".to_owned(),
            Action::Count => "count".to_owned(),
            Action::SkipTo(index) => format!("skipto {}", number(index)),
        };
        let protocol = match self.protocol {
            Some(TCP) => "tcp",
            Some(_) => "udp",
            None => "ip",
        };
        let place = |place: &Place| match place {
            Place::Any => "any".to_owned(),
            Place::Table(table) => format!("table(mixed{table})"),
            Place::Nets(nets) => match &nets[..] {
                [net] => width.text(net),
                _ => format!("{{ {} }}", nets.iter().map(|net| width.text(net)).collect::<Vec<_>>().join(" or ")),
            },
        };
        let mut words = vec![action, protocol.to_owned(), "from".to_owned(), place(&self.source)];
        words.push(self.source_ports.text());
        words.extend(["to".to_owned(), place(&self.destination), self.destination_ports.text()]);
        words.extend(self.either.map(|e| format!("{{ src-port {} or dst-port {} }}", e.source, e.destination)));
        words.extend(self.flags.map(|flags| {
            let word = match flags {
                Flags::Established => "established",
                Flags::Setup => "setup",
                Flags::SynWithoutAck => "tcpflags syn,!ack",
            };
            word.to_owned()
        }));
        let [first, second] = PORTS;
        words.extend(self.interface.map(|interface| match interface {
            Interface::In => format!("in recv {first}"),
            Interface::Out => format!("out xmit {second}"),
            Interface::Via => format!("via {first}"),
        }));
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }
}
