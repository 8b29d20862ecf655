//! The little world that frames are let into: three ports with addresses of both families, routes of every kind, one neighbour that
//! answers and many that do not.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ferrule_dataplane::fib::{PortSettings, Prefix, RouteKind, RoutingTable, TableLimits};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::ports::{MacAddress, Port, PortAddresses, PortTable, VlanTag};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Shared;

/// Receives the frames; jumbo.
pub const A: PortId = PortId(0);
/// Sends most of them; an Ethernet MTU.
pub const B: PortId = PortId(1);
/// VLAN 100 on A, with an MTU that makes fragments.
pub const V: PortId = PortId(2);
/// MTU of each port.
pub const MTU: [u16; 3] = [9000, 1500, 576];
/// The tag of V.
pub const TAG: VlanTag = VlanTag { tpid: 0x8100, tci: 100 };
/// MAC of each port: V has that of A.
pub const MAC: [MacAddress; 3] =
    [MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]), MacAddress([2, 0, 0, 0, 0, 1])];
/// MAC of the neighbours that answer.
pub const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x10]);
/// Address of each port.
pub const V4: [[u8; 4]; 3] = [[198, 18, 0, 1], [198, 19, 0, 1], [198, 18, 100, 1]];
/// Second half of 2001:db8::/32 of each port's network; its own address ends in 1, the neighbour's in 10.
pub const V6: [u16; 3] = [0, 1, 100];

/// An address in a port's IPv6 network.
pub fn v6(network: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, host)
}

/// Link-local address of every port.
pub const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// What workers share, and the domain they register in. The table is complete and stays as it is.
pub fn shared() -> (Arc<Shared>, Arc<Domain>) {
    let domain = Domain::new(4);
    let mut table = RoutingTable::new(&domain, TableLimits { adjacencies: 256, multipath_groups: 16 });
    let mut ports = Vec::new();
    for i in 0..3u16 {
        let at = usize::from(i);
        let vlan = (i == V.0).then_some(TAG);
        let settings = PortSettings { mac: MAC[at], mtu: MTU[at], vlan, up: true };
        table.port_set(PortId(i), settings).expect("a new table takes a port");
        let mut port = Port::new(["a", "b", "v"][at], PortId(i), MAC[at], u32::from(MTU[at]));
        if i == A.0 {
            port.vlans = vec![(TAG, V)];
        }
        (port.tag, port.physical) = (vlan, if i == V.0 { A } else { PortId(i) });
        port.set_up(true);
        let v4 = Ipv4Addr::from(V4[at]);
        port.set_addresses(PortAddresses { v4: vec![v4], v6: vec![v6(V6[at], 1)], link_local: Some(LINK_LOCAL) });
        ports.push(port);
        let mut add = |prefix, kind| {
            table.route_replace(prefix, 0, kind).expect("routes of the fuzz world are good");
        };
        let network = u128::from(v6(V6[at], 0));
        add(Prefix::V4 { address: u32::from(v4) & !0xff, length: 24 }, RouteKind::Connected { port: PortId(i) });
        add(Prefix::V4 { address: u32::from(v4), length: 32 }, RouteKind::Local { port: PortId(i) });
        add(Prefix::V4 { address: u32::from(v4) | 0xff, length: 32 }, RouteKind::Broadcast);
        add(Prefix::V6 { address: network, length: 64 }, RouteKind::Connected { port: PortId(i) });
        add(Prefix::V6 { address: network | 1, length: 128 }, RouteKind::Local { port: PortId(i) });
        let near = Ipv4Addr::from((u32::from(v4) & !0xff) | 10);
        for address in [IpAddr::V4(near), IpAddr::V6(v6(V6[at], 10))] {
            table.neighbor_set(PortId(i), address, Some(PEER)).expect("a connected neighbour");
        }
    }
    let near = |i: usize| IpAddr::V4(Ipv4Addr::from((u32::from(Ipv4Addr::from(V4[i])) & !0xff) | 10));
    let near6 = |i: usize| IpAddr::V6(v6(V6[i], 10));
    let silent = IpAddr::V4(Ipv4Addr::new(198, 19, 0, 99));
    let routes = [
        (p4([0, 0, 0, 0], 0), RouteKind::via(B, near(1))),
        (p4([10, 0, 0, 0], 8), RouteKind::via(V, near(2))),
        (p4([11, 0, 0, 0], 8), RouteKind::via(B, silent)),
        (p4([100, 64, 0, 0], 10), RouteKind::Prohibit),
        (p4([192, 0, 2, 0], 24), RouteKind::Unreachable),
        (p4([203, 0, 113, 0], 24), RouteKind::Blackhole),
        (p6(v6(2, 0), 48), RouteKind::via(B, near6(1))),
        (p6(v6(3, 0), 48), RouteKind::via(A, near6(0))),
        (p6(v6(4, 0), 48), RouteKind::Unreachable),
    ];
    for (prefix, kind) in routes {
        table.route_replace(prefix, 0, kind).expect("routes of the fuzz world are good");
    }
    let fib = table.fib();
    // The writer is not needed again; what it made must outlive it.
    std::mem::forget(table);
    (
        Arc::new(Shared {
            fib,
            ports: PortTable::new(ports),
            seed: HashSeed(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321),
        }),
        domain,
    )
}

fn p4(address: [u8; 4], length: u8) -> Prefix {
    Prefix::V4 { address: u32::from_be_bytes(address), length }
}

fn p6(address: Ipv6Addr, length: u8) -> Prefix {
    Prefix::V6 { address: u128::from(address), length }
}

/// Checks a frame that leaves: what a receiver relies on.
///
/// # Panics
/// When it is not as it must be.
pub fn assert_sound(frame: &[u8], port: PortId) {
    assert!(frame.len() >= 14, "a frame of {} bytes", frame.len());
    let be16 = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let (l3, mtu) = if be16(12) == 0x8100 {
        assert_eq!((port, be16(14) & 0xfff), (A, 100), "a tag that is not V's");
        (18, usize::from(MTU[usize::from(V.0)]))
    } else {
        (14, usize::from(MTU[usize::from(port.0)]))
    };
    assert_eq!(frame[6..12], MAC[usize::from(port.0)].0, "not from the port's MAC");
    assert!(frame.len() - l3 <= mtu, "{} bytes over an MTU of {mtu}", frame.len() - l3);
    match be16(l3 - 2) {
        0x0800 => {
            let header = usize::from(frame[l3] & 15) * 4;
            assert!(frame[l3] >> 4 == 4 && header >= 20 && l3 + header <= frame.len());
            assert_eq!(be16(l3 + 2), frame.len() - l3, "IPv4 total length");
            assert!(ferrule_dataplane::packet::checksum::is_valid(&frame[l3..l3 + header]), "IPv4 checksum");
            assert!(frame[l3 + 8] > 0, "TTL 0");
        }
        0x86dd => {
            assert!(frame[l3] >> 4 == 6 && frame.len() >= l3 + 40);
            assert_eq!(be16(l3 + 4), frame.len() - l3 - 40, "IPv6 payload length");
            assert!(frame[l3 + 7] > 0, "hop limit 0");
        }
        0x0806 => assert_eq!(frame.len(), l3 + 28),
        other => panic!("EtherType {other:#x} leaves"),
    }
}
