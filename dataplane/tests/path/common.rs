//! Frames, a standard world, and the end of every test.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_dataplane::fib::{MacAddress, PortId, Prefix, RouteKind};
use ferrule_dataplane::world::{Builder, PortPlan, Totals, World};

pub const A: PortId = PortId(0);
pub const B: PortId = PortId(1);
/// The neighbours that are known: one on each link.
pub const MAC_A9: MacAddress = MacAddress([2, 0, 0, 0, 0xa, 9]);
pub const MAC_B9: MacAddress = MacAddress([2, 0, 0, 0, 0xb, 9]);

pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub fn v6(address: &str) -> Ipv6Addr {
    address.parse().unwrap()
}

pub fn ip(address: &str) -> IpAddr {
    address.parse().unwrap()
}

pub fn prefix(prefix: &str) -> Prefix {
    prefix.parse::<ipnetwork::IpNetwork>().unwrap().into()
}

/// Port a: 198.18.0.1/24 and 2001:db8:a::1/64; port b: 198.19.0.1/24 and 2001:db8:b::1/64.
pub fn ports() -> Builder {
    let a = PortPlan::new("a").address("198.18.0.1/24".parse().unwrap()).address("2001:db8:a::1/64".parse().unwrap());
    let b = PortPlan::new("b").address("198.19.0.1/24".parse().unwrap()).address("2001:db8:b::1/64".parse().unwrap());
    World::builder().port(a.address("fe80::a/64".parse().unwrap())).port(b.address("fe80::b/64".parse().unwrap()))
}

/// Makes the two known neighbours, .9 and ::9 of each link, and routes 203.0.113.0/24 and 2001:db8:f::/48 behind b's.
pub fn world(builder: Builder) -> World {
    let mut world = builder.build().unwrap();
    for (port, v4, v6, mac) in [(A, "198.18.0.9", "2001:db8:a::9", MAC_A9), (B, "198.19.0.9", "2001:db8:b::9", MAC_B9)]
    {
        world.table.neighbor_set(port, ip(v4), Some(mac)).unwrap();
        world.table.neighbor_set(port, ip(v6), Some(mac)).unwrap();
    }
    route(&mut world, "203.0.113.0/24", RouteKind::via(B, ip("198.19.0.9")));
    route(&mut world, "2001:db8:f::/48", RouteKind::via(B, ip("2001:db8:b::9")));
    world
}

pub fn two() -> World {
    world(ports())
}

pub fn route(world: &mut World, to: &str, kind: RouteKind) {
    world.table.route_replace(prefix(to), 0, kind).unwrap();
}

thread_local! {
    static SEEN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// What the tests of this thread have reached so far: "dropped no_route", "generated copy" and so on.
pub fn seen() -> BTreeSet<String> {
    SEEN.with_borrow(Clone::clone)
}

/// The end of every test: the books are balanced now and after the end, and no buffer is missing.
#[track_caller]
pub fn check(mut world: World) -> Totals {
    let balance = world.balance();
    assert_eq!(balance.difference(), 0, "{balance:?} {:?}", world.totals());
    let closed = world.close();
    let totals = world.totals();
    assert!(closed.is_exact(), "{closed:?} {totals:?}");
    SEEN.with_borrow_mut(|seen| {
        let kinds = [("dropped", &totals.dropped), ("generated", &totals.generated), ("consumed", &totals.consumed)];
        seen.extend(kinds.iter().flat_map(|(kind, map)| map.keys().map(move |label| format!("{kind} {label}"))));
    });
    totals
}

/// Sends a frame in and lets everything happen.
pub fn send(world: &mut World, port: PortId, frame: &[u8]) {
    assert!(world.inject(port, frame), "no room");
    world.settle();
}

/// Sends one frame in and expects it to be dropped for one reason, with nothing coming out.
#[track_caller]
pub fn dropped(world: &mut World, port: PortId, frame: &[u8], label: &str) {
    let before = world.totals();
    send(world, port, frame);
    let after = world.totals();
    let count = |t: &Totals| t.dropped.get(label).copied().unwrap_or(0);
    assert_eq!(count(&after), count(&before) + 1, "{label}: {:?} {:02x?}", after.dropped, frame);
    let all = |t: &Totals| t.dropped.values().sum::<u64>();
    assert_eq!(all(&after), all(&before) + 1, "{:?}", after.dropped);
}

/// The Internet checksum, word by word (RFC 1071): the tests' own.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A packet to be, of either family.
#[derive(Clone, Debug)]
pub struct Ip {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub protocol: u8,
    /// IPv4 flags and offset.
    pub fragment: u16,
    pub id: u16,
    /// IPv4 options, a multiple of four bytes, or IPv6 extension headers (of which the first's number is `protocol`).
    pub extra: Vec<u8>,
    pub payload: Vec<u8>,
}

pub fn packet(source: &str, destination: &str) -> Ip {
    let (source, destination) = (ip(source), ip(destination));
    Ip { source, destination, ttl: 64, protocol: 17, fragment: 0, id: 7, extra: vec![], payload: vec![0; 26] }
        .udp(1000, 2000, 18)
}

impl Ip {
    pub fn ttl(mut self, ttl: u8) -> Ip {
        self.ttl = ttl;
        self
    }

    pub fn dont_fragment(mut self) -> Ip {
        self.fragment |= 0x4000;
        self
    }

    pub fn udp(self, source: u16, destination: u16, len: usize) -> Ip {
        let mut payload = vec![0; 8 + len];
        payload[..2].copy_from_slice(&source.to_be_bytes());
        payload[2..4].copy_from_slice(&destination.to_be_bytes());
        payload[4..6].copy_from_slice(&(8 + len as u16).to_be_bytes());
        payload[8..].iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        self.transport(17, payload, 6)
    }

    pub fn tcp(self, source: u16, destination: u16, flags: u8) -> Ip {
        let mut payload = vec![0; 20];
        payload[..2].copy_from_slice(&source.to_be_bytes());
        payload[2..4].copy_from_slice(&destination.to_be_bytes());
        (payload[7], payload[12], payload[13]) = (1, 0x50, flags);
        self.transport(6, payload, 16)
    }

    pub fn echo(self, id: u16, len: usize) -> Ip {
        let v4 = self.source.is_ipv4();
        let mut payload = vec![0x5a; 8 + len];
        payload[..8].fill(0);
        payload[0] = if v4 { 8 } else { 128 };
        payload[4..6].copy_from_slice(&id.to_be_bytes());
        self.transport(if v4 { 1 } else { 58 }, payload, 2)
    }

    /// Sets protocol and payload and puts the checksum at `at`.
    pub fn transport(mut self, protocol: u8, mut payload: Vec<u8>, at: usize) -> Ip {
        let mut pseudo = Vec::new();
        match (self.source, self.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) if protocol != 1 => pseudo.extend([s.octets(), d.octets()].concat()),
            (IpAddr::V6(s), IpAddr::V6(d)) => pseudo.extend([s.octets(), d.octets()].concat()),
            _ => {}
        }
        if !pseudo.is_empty() {
            pseudo.extend([0, protocol]);
            pseudo.extend((payload.len() as u16).to_be_bytes());
        }
        payload[at..at + 2].fill(0);
        let check = checksum(&[pseudo, payload.clone()].concat());
        let check = if check == 0 && protocol == 17 { 0xffff } else { check };
        payload[at..at + 2].copy_from_slice(&check.to_be_bytes());
        (self.protocol, self.payload) = (protocol, payload);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let len = self.extra.len() + self.payload.len();
        let mut h = match (self.source, self.destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                let mut h = vec![0x45 + (self.extra.len() / 4) as u8, 0];
                h.extend((20 + len as u16).to_be_bytes());
                h.extend(self.id.to_be_bytes());
                h.extend(self.fragment.to_be_bytes());
                h.extend([self.ttl, self.protocol, 0, 0]);
                h.extend(s.octets());
                h.extend(d.octets());
                h
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                let mut h = vec![0x60, 0, 0, 0];
                h.extend((len as u16).to_be_bytes());
                h.extend([self.protocol, self.ttl]);
                h.extend(s.octets());
                h.extend(d.octets());
                h
            }
            _ => panic!("two families"),
        };
        h.extend(&self.extra);
        if self.source.is_ipv4() {
            let check = checksum(&h);
            h[10..12].copy_from_slice(&check.to_be_bytes());
        }
        h.extend(&self.payload);
        h
    }

    /// As a frame without padding.
    pub fn frame(&self, to: MacAddress, from: MacAddress) -> Vec<u8> {
        let kind: u16 = if self.source.is_ipv4() { 0x0800 } else { 0x86dd };
        [&to.0[..], &from.0, &kind.to_be_bytes(), &self.bytes()].concat()
    }

    /// As a frame into port a.
    pub fn at_a(&self, world: &World) -> Vec<u8> {
        self.frame(world.mac(A), MAC_A9)
    }
}

/// What a router makes of a frame: new addresses, TTL one less, and the IPv4 header checksum summed anew.
pub fn forwarded(frame: &[u8], to: MacAddress, from: MacAddress) -> Vec<u8> {
    let mut out = frame.to_vec();
    out[..6].copy_from_slice(&to.0);
    out[6..12].copy_from_slice(&from.0);
    match out[12..14] {
        [8, 0] => {
            out[22] -= 1;
            let end = 14 + usize::from(out[14] & 15) * 4;
            out[24..26].fill(0);
            let check = checksum(&out[14..end]);
            out[24..26].copy_from_slice(&check.to_be_bytes());
        }
        _ => out[21] -= 1,
    }
    out
}

/// An ICMP or ICMPv6 error as it came out: its ends, type and code, the second word, and the packet it quotes.
#[derive(Debug, PartialEq, Eq)]
pub struct Error {
    pub from: IpAddr,
    pub to: IpAddr,
    pub kind: (u8, u8),
    pub word: u32,
    pub quote: Vec<u8>,
}

/// Reads an ICMP error and checks its checksums.
#[track_caller]
pub fn error(frame: &[u8]) -> Error {
    let array4 = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let array16 = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
    let (from, to, l4): (IpAddr, IpAddr, _) = if frame[12..14] == [8, 0] {
        assert_eq!((frame[14], frame[23], checksum(&frame[14..34])), (0x45, 1, 0));
        (array4(26).into(), array4(30).into(), 34)
    } else {
        assert_eq!((frame[14], frame[20]), (0x60, 58));
        (array16(22).into(), array16(38).into(), 54)
    };
    let message = &frame[l4..];
    let pseudo = if l4 == 34 {
        vec![]
    } else {
        [&frame[22..54], &(message.len() as u32).to_be_bytes(), &[0, 0, 0, 58]].concat()
    };
    assert_eq!(checksum(&[&pseudo, message].concat()), 0, "checksum");
    let word = u32::from_be_bytes(message[4..8].try_into().unwrap());
    Error { from, to, kind: (message[0], message[1]), word, quote: message[8..].to_vec() }
}

/// A frame with tags after its MAC addresses: (TPID, TCI), outermost first.
pub fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    for (tpid, tci) in tags {
        out.extend(tpid.to_be_bytes());
        out.extend(tci.to_be_bytes());
    }
    out.extend(&frame[12..]);
    out
}
