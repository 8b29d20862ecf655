#![forbid(unsafe_code)]
//! Random tests, of every kind.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{
    Addresses, Argument, Bits, FragmentBits, InterfaceMatch, InterfaceRole, LookupKey, Masked4, Masked6, MaskedMac,
    Numbers, OwnerKind, Range, Side, TableValueTest, Test, ValueKind,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::pool;

/// Source or destination.
pub fn side() -> impl Strategy<Value = Side> {
    select(vec![Side::Source, Side::Destination])
}

/// Ranges around the pool's ports.
pub fn port_ranges() -> impl Strategy<Value = Vec<Range<u16>>> {
    let range = (select(&pool::PORTS[..]), 0..4u16, any::<bool>()).prop_map(|(port, spread, up)| {
        if up {
            Range { low: port, high: port.saturating_add(spread) }
        } else {
            Range { low: port.saturating_sub(spread), high: port }
        }
    });
    vec(range, 1..4)
}

/// Ranges of numbers near those that packets have.
fn numbers(values: Vec<u16>) -> impl Strategy<Value = Numbers> {
    let range = (select(values), 0..3u16).prop_map(|(low, spread)| Range { low, high: low.saturating_add(spread) });
    prop_oneof![8 => vec(range, 1..3).prop_map(Numbers::List), 1 => Just(Numbers::Table)]
}

/// Bits to be set and clear, never the same bit in both.
fn bits(mask: u8) -> impl Strategy<Value = Bits> {
    let few = move || prop_oneof![2 => (0..8u8).prop_map(move |bit| mask & (1 << bit)), 1 => any::<u8>().prop_map(move |bits| bits & mask)];
    (few(), few()).prop_map(|(set, clear)| Bits { set, clear: clear & !set })
}

/// An IPv4 address with a mask, sometimes one with holes.
fn masked4() -> impl Strategy<Value = Masked4> {
    let mask = prop_oneof![
        6 => select(vec![32u32, 32, 31, 24, 16, 8]).prop_map(|length| u32::MAX << (32 - length)),
        1 => select(vec![0xff00_00ffu32, 0xffff_00ff, 0xff00_ff00]),
    ];
    (0..pool::V4.len(), mask).prop_map(|(index, mask)| Masked4 {
        address: Ipv4Addr::from_bits(pool::V4[index].to_bits() & mask),
        mask: Ipv4Addr::from_bits(mask),
    })
}

fn masked6() -> impl Strategy<Value = Masked6> {
    let mask = prop_oneof![
        6 => select(vec![128u32, 128, 127, 64, 48, 32]).prop_map(|length| u128::MAX << (128 - length)),
        1 => Just(0xffff_ffff_0000_0000_0000_0000_0000_ffffu128),
    ];
    (0..pool::V6.len(), mask).prop_map(|(index, mask)| Masked6 {
        address: Ipv6Addr::from_bits(pool::V6[index].to_bits() & mask),
        mask: Ipv6Addr::from_bits(mask),
    })
}

/// A value that an entry must have.
fn value_test() -> impl Strategy<Value = Option<TableValueTest>> {
    let kind = select(vec![
        None,
        Some(ValueKind::Tag),
        Some(ValueKind::SkipTo),
        Some(ValueKind::Pipe),
        Some(ValueKind::Nat),
        Some(ValueKind::Mark),
    ]);
    let some =
        (kind, 1..6u32).prop_map(|(kind, base)| Some(TableValueTest { kind, value: pool::value_part(base, kind) }));
    prop_oneof![3 => Just(None), 1 => some]
}

/// Name of a table, mostly of the fitting kind.
fn table(index: usize) -> impl Strategy<Value = String> {
    prop_oneof![8 => Just(pool::TABLES[index].to_owned()), 1 => select(&pool::TABLES[..]).prop_map(str::to_owned)]
}

/// What an address test compares with.
pub fn addresses() -> impl Strategy<Value = Addresses> {
    let set =
        (0..pool::V4.len(), 24..=32u8, any::<[u64; 4]>(), any::<bool>()).prop_map(|(index, length, members, own)| {
            let address = pool::V4[index];
            let mask = u32::MAX << (32 - u32::from(length));
            let last = usize::from(address.octets()[3]);
            let mut members = members;
            if own {
                members[last / 64] |= 1 << (last % 64);
            }
            Addresses::Set4 { base: Ipv4Addr::from_bits(address.to_bits() & mask), length, members }
        });
    prop_oneof![
        1 => Just(Addresses::None),
        2 => Just(Addresses::Me),
        1 => Just(Addresses::Me6),
        3 => (table(0), value_test()).prop_map(|(name, wanted)| Addresses::Table(name, wanted)),
        8 => vec(masked4(), 1..4).prop_map(Addresses::V4),
        2 => set,
        4 => vec(masked6(), 1..3).prop_map(Addresses::V6),
    ]
}

/// Key and table of `lookup`.
fn lookup() -> impl Strategy<Value = Test> {
    let mask4 = select(vec![0xffff_ffffu32, 0xffff_ff00, 0xff00_ffff]).prop_map(Ipv4Addr::from_bits);
    let mask6 = select(vec![u128::MAX, u128::MAX << 64]).prop_map(Ipv6Addr::from_bits);
    let mask = || select(vec![u32::MAX, 0xff, 1]);
    let key = prop_oneof![
        side().prop_map(|side| (LookupKey::Address(side), 0)),
        (side(), mask4).prop_map(|(side, mask)| (LookupKey::Address4(side, mask), 0)),
        (side(), mask6).prop_map(|(side, mask)| (LookupKey::Address6(side, mask), 0)),
        (side(), select(vec![0xffffu16, 0xff])).prop_map(|(side, mask)| (LookupKey::Port(side, mask), 1)),
        (side(), select(vec![[0xff; 6], [0xff, 0xff, 0xff, 0xff, 0xff, 0]]))
            .prop_map(|(side, mask)| (LookupKey::Mac(side, mask), 4)),
        mask().prop_map(|mask| (LookupKey::Dscp(mask), 1)),
        mask().prop_map(|mask| (LookupKey::RuleNumber(mask), 1)),
        mask().prop_map(|mask| (LookupKey::Mark(mask), 1)),
        Just((LookupKey::Owner(OwnerKind::User), 1)),
    ];
    key.prop_flat_map(|(key, index)| (Just(key), table(index))).prop_map(|(key, table)| Test::Lookup(key, table))
}

fn interface() -> impl Strategy<Value = Test> {
    let name = || select(&pool::INTERFACES[..]).prop_map(str::to_owned);
    let wanted = prop_oneof![
        1 => Just(InterfaceMatch::Any),
        5 => name().prop_map(InterfaceMatch::Name),
        2 => select(vec!["em*", "*0", "igb?", "em[1-9]", "vlan*"]).prop_map(|shape| InterfaceMatch::Pattern(shape.into())),
        1 => (0..3usize).prop_map(|index| InterfaceMatch::Address4(pool::V4[index])),
        1 => (0..3usize).prop_map(|index| InterfaceMatch::Address6(pool::V6[index])),
        2 => (table(2), value_test()).prop_map(|(name, wanted)| InterfaceMatch::Table(name, wanted)),
    ];
    let role = select(vec![InterfaceRole::Recv, InterfaceRole::Xmit, InterfaceRole::Via]);
    (role, wanted).prop_map(|(role, wanted)| Test::Interface(role, wanted))
}

fn mac() -> impl Strategy<Value = MaskedMac> {
    let mask = select(vec![[0u8; 6], [0xff; 6], [0xff, 0xff, 0xff, 0xff, 0, 0]]);
    (select(&pool::MACS[..]), mask)
        .prop_map(|(address, mask)| MaskedMac { address: std::array::from_fn(|i| address[i] & mask[i]), mask })
}

/// Link-layer tests.
fn layer2() -> impl Strategy<Value = Test> {
    prop_oneof![
        Just(Test::Layer2),
        (mac(), mac()).prop_map(|(destination, source)| Test::Mac { destination, source }),
        select(vec![0x0800u16, 0x0806, 0x86dd])
            .prop_map(|kind| Test::MacType(vec![Range { low: kind, high: kind + 1 }])),
        (side(), table(4), value_test()).prop_map(|(side, table, wanted)| Test::MacTable(side, table, wanted)),
    ]
}

/// TCP's own tests.
fn tcp() -> impl Strategy<Value = Test> {
    prop_oneof![
        4 => bits(63).prop_map(Test::TcpFlags),
        2 => Just(Test::TcpFlags(Bits { set: 2, clear: 16 })),
        3 => Just(Test::Established),
        1 => bits(15).prop_map(Test::TcpOptions),
        1 => (0..3u32).prop_map(Test::TcpSequence),
        1 => (0..3u32).prop_map(Test::TcpAcknowledgement),
        1 => numbers(vec![0, 8191, 8192]).prop_map(Test::TcpWindow),
        1 => numbers(vec![0, 1, 60]).prop_map(Test::TcpDataLength),
        1 => numbers(vec![1024, 1459, 1460]).prop_map(Test::TcpMss),
    ]
}

/// ICMP types: bits of the types that packets have.
fn icmp() -> impl Strategy<Value = Test> {
    let v4 = vec(select(vec![0u32, 3, 8, 11, 13, 30, 31]), 1..4);
    let v6 = vec(select(vec![1usize, 128, 129, 135, 200, 255]), 1..4);
    prop_oneof![
        v4.prop_map(|kinds| Test::IcmpTypes(kinds.into_iter().fold(0, |bits, kind| bits | 1 << kind))),
        v6.prop_map(|kinds| {
            let mut bits = [0u64; 4];
            kinds.into_iter().for_each(|kind| bits[kind / 64] |= 1 << (kind % 64));
            Test::Icmp6Types(bits)
        }),
    ]
}

/// Fields of the IP header.
fn header() -> impl Strategy<Value = Test> {
    let fragment =
        (any::<u8>(), any::<u8>()).prop_map(|(set, clear)| FragmentBits { set: set & 15, clear: clear & 15 & !set });
    let plain = Just(FragmentBits { set: FragmentBits::OFFSET, clear: 0 });
    let points = vec(select(vec![0u8, 4, 9, 26, 56]), 1..3)
        .prop_map(|points| Test::Dscp(points.into_iter().fold(0, |bits, point| bits | 1 << point)));
    prop_oneof![
        5 => prop_oneof![plain, fragment].prop_map(Test::Fragment),
        1 => numbers(vec![77, 80]).prop_map(Test::IpId),
        1 => numbers(vec![0, 28, 40, 44, 60]).prop_map(Test::IpLength),
        1 => numbers(vec![1, 63, 64, 255]).prop_map(Test::IpTtl),
        1 => select(vec![4u8, 6]).prop_map(Test::IpVersion),
        1 => bits(15).prop_map(Test::IpOptions),
        1 => select(vec![0u8, 1, 3, 7]).prop_map(Test::IpPrecedence),
        3 => bits(0x1f).prop_map(Test::IpTos),
        1 => points,
        1 => Just(Test::DscpTable),
        1 => any::<u8>().prop_map(Test::ExtensionHeaders),
        1 => vec(select(vec![0u32, 5, 0xf_ffff]), 1..3).prop_map(Test::FlowId),
    ]
}

/// What is known of the packet besides its bytes.
fn carried() -> impl Strategy<Value = Test> {
    let argument = || prop_oneof![4 => (0..4u32).prop_map(Argument::Number), 1 => Just(Argument::Table)];
    prop_oneof![
        argument().prop_map(Test::Fib),
        numbers(vec![1, 2, 3, 4]).prop_map(Test::Tagged),
        (argument(), select(vec![u32::MAX, 1, 0xff00])).prop_map(|(mark, mask)| Test::Mark(mark, mask)),
        Just(Test::VerifyReversePath),
        Just(Test::VerifySourceReach),
        Just(Test::AntiSpoof),
        Just(Test::Owner(OwnerKind::User, "root".into())),
        Just(Test::Ipsec),
        Just(Test::Diverted { loopback: true, output: false }),
        Just(Test::SocketArgument),
    ]
}

/// Any test, weighted as rules in the field have them.
pub fn test() -> impl Strategy<Value = Test> {
    prop_oneof![
        2 => Just(Test::Ipv4),
        2 => Just(Test::Ipv6),
        5 => select(vec![6u8, 6, 17, 1, 58, 132, 47]).prop_map(Test::Protocol),
        9 => (side(), addresses()).prop_map(|(side, addresses)| Test::Address(side, addresses)),
        6 => (side(), port_ranges()).prop_map(|(side, ports)| Test::Ports(side, ports)),
        4 => select(vec![Test::In, Test::Out]),
        4 => interface(),
        3 => lookup(),
        2 => (table(3), value_test()).prop_map(|(name, wanted)| Test::FlowTable(name, wanted)),
        4 => tcp(),
        2 => icmp(),
        4 => header(),
        3 => carried(),
        1 => layer2(),
    ]
}
