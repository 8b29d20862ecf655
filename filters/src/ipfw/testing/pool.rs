#![forbid(unsafe_code)]
//! The few addresses, ports and names that rules and packets draw from, and the box they belong to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::ValueKind;
use ferrule_config::ipfw::table::{FlowFields, TableKey, TableKind, TableValue};

use crate::ipfw::oracle::{Environment, Interface, Route, Table, Tables};

/// Interfaces of the box.
pub const INTERFACES: [&str; 3] = ["em0", "em1", "igb0"];

/// IPv4 addresses of packets. The first two are the box's; 10.2.0.9 has no route but the default one, 203.0.113.1 a blackhole.
pub const V4: [Ipv4Addr; 8] = [
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 1, 0, 1),
    Ipv4Addr::new(10, 0, 0, 2),
    Ipv4Addr::new(10, 0, 1, 2),
    Ipv4Addr::new(10, 1, 0, 2),
    Ipv4Addr::new(10, 2, 0, 9),
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(224, 0, 0, 5),
];

/// IPv6 addresses of packets. The first two are the box's.
pub const V6: [Ipv6Addr; 7] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 2),
    Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 5),
];

/// Ports.
pub const PORTS: [u16; 8] = [0, 22, 53, 80, 81, 443, 1024, 65535];

/// MAC addresses.
pub const MACS: [[u8; 6]; 4] =
    [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 1, 3], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff]];

/// Names of tables.
pub const TABLES: [&str; 6] = ["addresses", "numbers", "interfaces", "flows", "macs", "missing"];

/// The box.
pub fn environment() -> Environment {
    let interface =
        |name: &str, addresses: &[(IpAddr, u8)]| Interface { name: name.into(), addresses: addresses.to_vec() };
    let route = |fib: u32, prefix: IpAddr, length: u8, name: Option<&str>| Route {
        fib,
        prefix,
        length,
        interface: name.map(str::to_owned),
    };
    Environment {
        interfaces: vec![
            interface(INTERFACES[0], &[(V4[0].into(), 24), (V6[0].into(), 64), (V6[1].into(), 64)]),
            interface(INTERFACES[1], &[(V4[1].into(), 16)]),
            interface(INTERFACES[2], &[]),
        ],
        routes: vec![
            route(0, V4[0].into(), 24, Some(INTERFACES[0])),
            route(0, V4[1].into(), 16, Some(INTERFACES[1])),
            route(0, V4[6].into(), 24, None),
            route(0, Ipv4Addr::UNSPECIFIED.into(), 0, Some(INTERFACES[2])),
            route(0, V6[0].into(), 64, Some(INTERFACES[0])),
            route(0, V6[4].into(), 48, Some(INTERFACES[1])),
            route(1, Ipv4Addr::UNSPECIFIED.into(), 0, Some(INTERFACES[0])),
        ],
        nat_instances: vec![1, 2],
    }
}

/// A value whose parts all differ, so that taking the wrong one shows.
pub fn value(base: u32) -> TableValue {
    TableValue {
        skipto: base * 100,
        pipe: base,
        fib: base % 3,
        nat: base % 4,
        dscp: (base * 9 % 64) as u8,
        tag: base + 1,
        divert: base + 2,
        netgraph: base + 3,
        limit: base % 3 + 1,
        ipv4: Ipv4Addr::new(10, 9, 0, base as u8),
        ipv6: Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, base as u16),
        mark: base * 0x101,
    }
}

/// The part of [`value`] that a test of `kind` compares.
pub fn value_part(base: u32, kind: Option<ValueKind>) -> u32 {
    let value = value(base);
    match kind {
        Some(ValueKind::SkipTo) => value.skipto,
        Some(ValueKind::Pipe) => value.pipe,
        Some(ValueKind::Fib) => value.fib,
        Some(ValueKind::Nat) => value.nat,
        Some(ValueKind::Mark) => value.mark,
        _ => value.tag,
    }
}

/// The tables: nested prefixes of both families, numbers that are ports, rules, code points and marks, and so on.
pub fn tables() -> Tables {
    let table = |name: &str, kind, entries| Table { name: name.into(), kind, entries };
    let v4 = |address: [u8; 4], length, base| (TableKey::V4(address.into(), length), value(base));
    let v6 = |address: Ipv6Addr, length, base| (TableKey::V6(address, length), value(base));
    let fields = FlowFields {
        source_address: true,
        source_port: false,
        protocol: true,
        destination_address: true,
        destination_port: true,
    };
    let flow = |source: IpAddr, destination: IpAddr, protocol, destination_port, base| {
        let source_port = 0;
        (TableKey::Flow { source, destination, protocol, source_port, destination_port }, value(base))
    };
    Tables(vec![
        table(
            TABLES[0],
            TableKind::Address,
            vec![
                v4([10, 0, 0, 0], 8, 1),
                v4([10, 0, 0, 0], 16, 2),
                v4([10, 0, 0, 2], 32, 3),
                v4([10, 1, 0, 0], 24, 4),
                v6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, 5),
                v6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, 0), 64, 6),
            ],
        ),
        table(
            TABLES[1],
            TableKind::Number,
            [0, 22, 80, 443, 9, 300, 0x101].map(|number| (TableKey::Number(number), value(number % 7 + 1))).to_vec(),
        ),
        table(
            TABLES[2],
            TableKind::Interface,
            vec![
                (TableKey::Interface(INTERFACES[0].into()), value(1)),
                (TableKey::Interface(INTERFACES[2].into()), value(3)),
            ],
        ),
        table(
            TABLES[3],
            TableKind::Flow(fields),
            vec![
                flow(V4[2].into(), V4[4].into(), 6, 80, 2),
                flow(V4[4].into(), V4[2].into(), 17, 53, 3),
                flow(V6[2].into(), V6[3].into(), 6, 443, 4),
            ],
        ),
        table(
            TABLES[4],
            TableKind::Mac,
            vec![(TableKey::Mac(MACS[0], 48), value(1)), (TableKey::Mac([2, 0, 0, 0, 0, 0], 40), value(2))],
        ),
    ])
}
