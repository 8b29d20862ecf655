//! Tests with whole packets. Checksums are proven by summing everything anew, with code of the tests' own.

mod behaviour;
mod errors;
mod fragments;
mod limits;
mod properties;
mod redirects;
mod states;
mod workers;
mod world;

use std::net::Ipv4Addr;
use std::sync::Arc;

use ferrule_config::ipfw::nat::NatConfig;
use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::packet::parse::{self, Ingress};
use ferrule_dataplane::packet::{Flags, Offload, Packet, PortId};
use ferrule_dataplane::ports::{MacAddress, Port, PortTable};

use super::*;

const SECOND: u64 = 1_000_000_000;
const SEED: HashSeed = HashSeed(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// The alias address, the peer, and hosts inside.
const ALIAS: &str = "198.51.100.2";
const PEER: &str = "203.0.113.5";
const HOST: &str = "192.168.0.2";
const OTHER: &str = "192.168.0.3";

fn ip(address: &str) -> Ipv4Addr {
    address.parse().unwrap()
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The pseudo-header of an IP packet.
fn pseudo(ip: &[u8]) -> Vec<u8> {
    let len = be16(ip, 2) - u16::from(ip[0] & 15) * 4;
    [&ip[12..20], &[0, ip[9]], &len.to_be_bytes()].concat()
}

/// Where the transport checksum is, from the transport header on.
fn field(protocol: u8) -> Option<usize> {
    match protocol {
        1 => Some(2),
        6 => Some(16),
        17 | 33 | 136 => Some(6),
        _ => None,
    }
}

/// An IP packet with right checksums.
fn packet(source: &str, destination: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0x45, 0];
    p.extend((20 + payload.len() as u16).to_be_bytes());
    p.extend([0x12, 0x34, 0, 0, 64, protocol, 0, 0]);
    p.extend(ip(source).octets());
    p.extend(ip(destination).octets());
    p.extend(payload);
    seal(&mut p);
    p
}

/// Puts the checksums in.
fn seal(p: &mut [u8]) {
    p[10..12].fill(0);
    let check = checksum(&p[..20]);
    p[10..12].copy_from_slice(&check.to_be_bytes());
    if let Some(at) = field(p[9]).map(|at| 20 + at)
        && p.len() >= at + 2
    {
        p[at..at + 2].fill(0);
        let front = if p[9] == 1 { vec![] } else { pseudo(p) };
        let check = checksum(&[front, p[20..].to_vec()].concat());
        let check = if check == 0 && p[9] == 17 { 0xffff } else { check };
        p[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
}

fn udp(source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
    let data = b"to be or not";
    let head = [source.1.to_be_bytes(), destination.1.to_be_bytes(), (8 + data.len() as u16).to_be_bytes(), [0, 0]];
    packet(source.0, destination.0, 17, &[&head.concat()[..], data].concat())
}

fn tcp(source: (&str, u16), destination: (&str, u16), flags: u8) -> Vec<u8> {
    let ports = [source.1.to_be_bytes(), destination.1.to_be_bytes()].concat();
    let rest = [0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x20, 0, 0, 0, 0, 0, b'o', b'd', b'd'];
    packet(source.0, destination.0, 6, &[&ports[..], &rest].concat())
}

fn echo(source: &str, destination: &str, kind: u8, id: u16) -> Vec<u8> {
    let id = id.to_be_bytes();
    packet(source, destination, 1, &[kind, 0, 0, 0, id[0], id[1], 0, 7, 1, 2, 3, 4, 5])
}

/// An ICMP error about a packet, quoting as much of it as RFC 1812 wants.
fn error(source: &str, destination: &str, kind: u8, about: &[u8]) -> Vec<u8> {
    packet(source, destination, 1, &[&[kind, 1, 0, 0, 0, 0, 0, 0], about].concat())
}

/// Source and destination with ports (identifiers for ICMP) of a packet's bytes.
fn ends(p: &[u8]) -> ((String, u16), (String, u16)) {
    let address = |at: usize| Ipv4Addr::new(p[at], p[at + 1], p[at + 2], p[at + 3]).to_string();
    let l4 = usize::from(p[0] & 15) * 4;
    let (s, d) = match p[9] {
        1 => (be16(p, l4 + 4), be16(p, l4 + 4)),
        6 | 17 | 132 => (be16(p, l4), be16(p, l4 + 2)),
        _ => (0, 0),
    };
    ((address(12), s), (address(16), d))
}

/// Whether every checksum of a whole packet adds up, and those of the packet that an ICMP error quotes.
#[track_caller]
fn assert_sums(p: &[u8]) {
    let l4 = usize::from(p[0] & 15) * 4;
    assert_eq!(checksum(&p[..l4]), 0, "IP {p:02x?}");
    if be16(p, 6) & 0x3fff != 0 {
        return;
    }
    if let Some(at) = field(p[9])
        && p.len() >= l4 + at + 2
        && !(p[9] == 17 && be16(p, l4 + at) == 0)
        && p.len() == usize::from(be16(p, 2))
    {
        let front = if p[9] == 1 { vec![] } else { pseudo(p) };
        assert_eq!(checksum(&[front, p[l4..].to_vec()].concat()), 0, "transport {p:02x?}");
    }
    if p[9] == 1 && matches!(p[l4], 3 | 4 | 11 | 12) {
        assert_sums(&p[l4 + 8..]);
    }
}

/// One instance with packets to put through it.
struct Rig {
    pool: Pool,
    ports: PortTable,
    nat: Nat,
    now: u64,
    /// Flags of the last packet afterwards.
    flags: Flags,
}

fn config() -> NatConfig {
    NatConfig { number: 1, address: Some(ip(ALIAS)), ..NatConfig::default() }
}

fn rig(config: NatConfig) -> Rig {
    Rig::of(Nat::new(&config, Limits { states: 64, fragments: 16 }, 0, SharedFlows::new(1, 64, SEED)))
}

impl Rig {
    fn of(nat: Nat) -> Rig {
        let pool = Pool::split(&Arena::new(16, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0);
        let ports = PortTable::new(vec![Port::new("em0", PortId(0), MacAddress(MAC), 9000)]);
        Rig { pool, ports, nat, now: SECOND, flags: Flags::EMPTY }
    }

    fn parsed(&mut self, ip: &[u8], offload: Offload) -> Packet {
        let frame = [&MAC[..], &[2, 0, 0, 0, 0, 9, 8, 0], ip].concat();
        let mut packet = Packet::new(self.pool.frame_from(&frame).unwrap(), offload, PortId(0));
        parse::parse_slow(&mut packet, &Ingress::new(&self.ports, PortId(0), false).unwrap());
        assert!(packet.goes_on(), "{:?} {ip:02x?}", packet.verdict());
        packet
    }

    /// Puts a packet through; checks that descriptor and bytes agree afterwards.
    fn through(&mut self, direction: Direction, ip: &[u8], offload: Offload) -> (Translation, Vec<u8>) {
        let mut packet = self.parsed(ip, offload);
        let translation = self.nat.translate(&mut packet, direction, self.now, |_| None);
        (translation, self.finish(packet))
    }

    fn finish(&mut self, packet: Packet) -> Vec<u8> {
        let after = packet.frame.head()[14..].to_vec();
        let fresh = self.parsed(&after, packet.offload);
        let facts = |p: &Packet| (p.source_port, p.destination_port, p.l4, p.protocol);
        assert_eq!(facts(&packet), facts(&fresh));
        self.flags = packet.flags;
        self.pool.free(fresh.frame);
        self.pool.free(packet.frame);
        after
    }

    /// Out, with right checksums afterwards; None where it was dropped.
    #[track_caller]
    fn out(&mut self, ip: &[u8]) -> Option<Vec<u8>> {
        self.whole(Direction::Out, ip)
    }

    /// In, with right checksums afterwards; None where it was dropped.
    #[track_caller]
    fn back(&mut self, ip: &[u8]) -> Option<Vec<u8>> {
        self.whole(Direction::In, ip)
    }

    #[track_caller]
    fn whole(&mut self, direction: Direction, ip: &[u8]) -> Option<Vec<u8>> {
        match self.through(direction, ip, Offload::NONE) {
            (Translation::Drop(_), after) => {
                assert_eq!(after, ip, "a dropped packet is not touched");
                None
            }
            (Translation::Unchanged, after) => {
                assert_eq!(after, ip);
                Some(after)
            }
            (Translation::Translated, after) => {
                assert_sums(&after);
                Some(after)
            }
        }
    }

    fn dropped(&self, cause: DropCause) -> u64 {
        self.nat.counters().dropped[cause as usize]
    }
}

/// `ends` as they are written in expectations.
fn at(source: (&str, u16), destination: (&str, u16)) -> ((String, u16), (String, u16)) {
    ((source.0.to_owned(), source.1), (destination.0.to_owned(), destination.1))
}
