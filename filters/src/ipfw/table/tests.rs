#![forbid(unsafe_code)]
//! Tables as a whole: FreeBSD's answers, random tables against a list of their entries, and changes while threads look up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ferrule_config::ipfw::ast::ValueKind;
use ferrule_config::ipfw::table::{FlowFields, TableKey, TableKind, TableOptions, TableValue};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::quiesce::Domain;
use proptest::prelude::*;

use super::*;
use crate::ipfw::dynamic::FlowKey;

fn options(kind: TableKind) -> TableOptions {
    TableOptions { kind, values: Vec::new(), algorithm: None, limit: 0, locked: false, missing: false, or_flush: false }
}

fn value(n: u32) -> TableValue {
    TableValue { skipto: n, ..TableValue::default() }
}

fn v4(text: &str) -> TableKey {
    let (address, length) = text.split_once('/').unwrap();
    TableKey::V4(address.parse().unwrap(), length.parse().unwrap())
}

fn v6(text: &str) -> TableKey {
    let (address, length) = text.split_once('/').unwrap();
    TableKey::V6(address.parse().unwrap(), length.parse().unwrap())
}

fn set() -> (Arc<Domain>, TableSet, Tables) {
    let domain = Domain::new(4);
    let set = TableSet::new(&domain);
    let tables = set.reader();
    (domain, set, tables)
}

fn add(set: &mut TableSet, name: &str, key: TableKey, n: u32) -> Result<(), TableError> {
    set.add(name, &[(key, value(n))], AddMode::default()).1
}

fn found(tables: &Tables, index: Option<ValueIndex>) -> Option<u32> {
    index.map(|index| tables.number(index, ValueKind::SkipTo))
}

#[test]
fn tables_are_made_and_destroyed_as_on_freebsd() {
    let (_, mut set, _) = set();
    let kind = options(TableKind::Address);
    let id = set.create("a", &kind).unwrap();
    assert_eq!(set.create("a", &kind), Err(TableError::Exists));
    let missing = TableOptions { missing: true, ..kind.clone() };
    assert_eq!(set.create("a", &missing), Ok(id));
    let other = TableOptions { kind: TableKind::Number, ..missing.clone() };
    assert_eq!(set.create("a", &other), Err(TableError::Incompatible));
    add(&mut set, "a", v4("10.0.0.0/8"), 1).unwrap();
    assert_eq!(set.create("a", &missing), Ok(id));
    assert_eq!(set.info("a").unwrap().entries, 1);
    assert_eq!(set.create("a", &TableOptions { or_flush: true, ..missing }), Ok(id));
    assert_eq!(set.info("a").unwrap().entries, 0);
    assert_eq!(set.create("", &kind), Err(TableError::Invalid));
    assert_eq!(set.create(&"x".repeat(64), &kind), Err(TableError::Invalid));

    assert_eq!(set.reference("a"), Ok(id));
    assert_eq!(set.destroy("a"), Err(TableError::Busy));
    set.release(id);
    assert_eq!(set.destroy("a"), Ok(()));
    for gone in [set.destroy("a"), set.flush("a"), set.swap("a", "a"), set.lock("a", true)] {
        assert_eq!(gone, Err(TableError::NoTable));
    }
    assert_eq!(add(&mut set, "a", v4("10.0.0.0/8"), 1), Err(TableError::NoTable));
    assert_eq!((set.memory(), set.values()), (0, 0), "nothing is left");
    assert_eq!(set.create("b", &kind), Ok(id), "numbers are used again");
}

#[test]
fn entries_are_added_and_deleted_as_on_freebsd() {
    let (_, mut set, _) = set();
    set.create("a", &options(TableKind::Address)).unwrap();
    let entry = |text: &str, n| (v4(text), value(n));
    add(&mut set, "a", v4("10.0.0.0/8"), 1).unwrap();
    assert_eq!(add(&mut set, "a", v4("10.0.0.0/8"), 2), Err(TableError::Exists));
    assert_eq!(add(&mut set, "a", TableKey::Number(1), 2), Err(TableError::Invalid));
    assert_eq!(add(&mut set, "a", TableKey::V4(Ipv4Addr::UNSPECIFIED, 33), 2), Err(TableError::Invalid));

    let three = [entry("10.1.0.0/16", 3), entry("10.0.0.0/8", 4), entry("10.2.0.0/16", 5)];
    let (results, outcome) = set.add("a", &three, AddMode { atomic: true, update: false });
    assert_eq!(outcome, Err(TableError::Exists));
    assert_eq!(results, [EntryResult::Untouched, EntryResult::Exists, EntryResult::Untouched]);
    assert_eq!(set.info("a").unwrap().entries, 1, "all or none");
    let (results, outcome) = set.add("a", &three, AddMode::default());
    assert_eq!(outcome, Err(TableError::Exists));
    assert_eq!(results, [EntryResult::Added, EntryResult::Exists, EntryResult::Added]);
    let (results, outcome) = set.add("a", &three[1..2], AddMode { atomic: false, update: true });
    assert_eq!((results, outcome), (vec![EntryResult::Updated], Ok(())));
    assert_eq!(set.lookup("a", &v4("10.9.9.9/32")).unwrap(), (v4("10.0.0.0/8"), value(4)));

    let (results, outcome) = set.delete("a", &[v4("10.1.0.0/16"), v4("10.1.0.0/16"), v4("11.0.0.0/8")]);
    assert_eq!(outcome, Err(TableError::NoEntry));
    assert_eq!(results, [EntryResult::Deleted, EntryResult::NotFound, EntryResult::NotFound]);
    let mut listed = Vec::new();
    set.list("a", |key, value| listed.push((key.clone(), value.skipto))).unwrap();
    assert_eq!(listed, [(v4("10.0.0.0/8"), 4), (v4("10.2.0.0/16"), 5)]);

    set.lock("a", true).unwrap();
    assert_eq!(add(&mut set, "a", v4("12.0.0.0/8"), 1), Err(TableError::Locked));
    assert_eq!(set.delete("a", &[v4("10.0.0.0/8")]).1, Err(TableError::Locked));
    set.lock("a", false).unwrap();
    set.set_limit("a", 3).unwrap();
    add(&mut set, "a", v4("12.0.0.0/8"), 1).unwrap();
    assert_eq!(add(&mut set, "a", v4("13.0.0.0/8"), 1), Err(TableError::Limit));
    assert_eq!(set.info("a").unwrap().entries, 3);
    assert_eq!(TableError::Limit.errno(), 27);
}

#[test]
fn a_swap_exchanges_entries_and_keeps_names_and_numbers() {
    let (_, mut set, mut tables) = set();
    let (a, b) = (set.create("a", &options(TableKind::Address)), set.create("b", &options(TableKind::Address)));
    let (a, b) = (a.unwrap(), b.unwrap());
    set.create("n", &options(TableKind::Number)).unwrap();
    add(&mut set, "a", v4("10.0.0.0/8"), 1).unwrap();
    add(&mut set, "b", v4("10.0.0.0/8"), 2).unwrap();
    add(&mut set, "b", v4("11.0.0.0/8"), 3).unwrap();
    tables.turn();
    assert_eq!(found(&tables, tables.lookup4(a, 0x0a00_0001)), Some(1));
    set.swap("a", "b").unwrap();
    assert_eq!(found(&tables, tables.lookup4(a, 0x0a00_0001)), Some(1), "seen from the next turn on");
    tables.turn();
    assert_eq!(found(&tables, tables.lookup4(a, 0x0a00_0001)), Some(2));
    assert_eq!(found(&tables, tables.lookup4(b, 0x0a00_0001)), Some(1));
    assert_eq!((set.info("a").unwrap().entries, set.info("b").unwrap().entries), (2, 1));
    assert_eq!(set.swap("a", "n"), Err(TableError::Invalid));
    set.set_limit("b", 1).unwrap();
    assert_eq!(set.swap("a", "b"), Err(TableError::Limit));
    assert_eq!(set.swap("a", "a"), Ok(()));
}

#[test]
fn other_kinds_of_keys_are_found() {
    let (_, mut set, mut tables) = set();
    let number = set.create("number", &options(TableKind::Number)).unwrap();
    let mac = set.create("mac", &options(TableKind::Mac)).unwrap();
    let interface = set.create("interface", &options(TableKind::Interface)).unwrap();
    let fields = FlowFields {
        source_address: true,
        source_port: false,
        protocol: true,
        destination_address: false,
        destination_port: true,
    };
    let flow = set.create("flow", &options(TableKind::Flow(fields))).unwrap();
    let address = set.create("address", &options(TableKind::Address)).unwrap();
    tables.turn();

    add(&mut set, "number", TableKey::Number(0), 1).unwrap();
    add(&mut set, "number", TableKey::Number(u32::MAX), 2).unwrap();
    assert_eq!(found(&tables, tables.lookup_number(number, 0)), Some(1));
    assert_eq!(found(&tables, tables.lookup_number(number, u32::MAX)), Some(2));
    assert_eq!(tables.lookup_number(number, 1), None);
    assert_eq!(tables.lookup_number(TableId(99), 1), None);

    add(&mut set, "mac", TableKey::Mac([2, 0, 0, 0, 0, 1], 48), 1).unwrap();
    add(&mut set, "mac", TableKey::Mac([2, 0, 0, 0, 0, 0], 24), 2).unwrap();
    add(&mut set, "mac", TableKey::Mac([0; 6], 0), 3).unwrap();
    let by_mac = |tables: &Tables, address| found(tables, tables.lookup_mac(mac, address));
    assert_eq!(by_mac(&tables, [2, 0, 0, 0, 0, 1]), Some(1));
    assert_eq!(by_mac(&tables, [2, 0, 0, 0, 0, 2]), Some(2));
    assert_eq!(by_mac(&tables, [4, 0, 0, 0, 0, 2]), Some(3));
    set.delete("mac", &[TableKey::Mac([2, 0, 0, 0, 0, 0], 24)]).1.unwrap();
    assert_eq!(by_mac(&tables, [2, 0, 0, 0, 0, 2]), Some(3));
    let shown = set.lookup("mac", &TableKey::Mac([9, 0, 0, 0, 0, 2], 48)).unwrap();
    assert_eq!(shown, (TableKey::Mac([0; 6], 0), value(3)));

    add(&mut set, "interface", TableKey::Interface("em1".into()), 1).unwrap();
    assert_eq!(tables.lookup_interface(interface, PortId(4)), None, "there is no such port yet");
    set.set_interfaces([("em1".into(), PortId(4)), ("em2".into(), PortId(5))]).unwrap();
    assert_eq!(found(&tables, tables.lookup_interface(interface, PortId(4))), Some(1));
    add(&mut set, "interface", TableKey::Interface("em2".into()), 2).unwrap();
    assert_eq!(found(&tables, tables.lookup_interface(interface, PortId(5))), Some(2));
    set.set_interfaces([("em1".into(), PortId(5))]).unwrap();
    assert_eq!(found(&tables, tables.lookup_interface(interface, PortId(5))), Some(1));
    assert_eq!(tables.lookup_interface(interface, PortId(4)), None);

    let key = |source: IpAddr, destination: IpAddr| TableKey::Flow {
        source,
        destination,
        protocol: 6,
        source_port: 0,
        destination_port: 80,
    };
    add(&mut set, "flow", key(Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::UNSPECIFIED.into()), 1).unwrap();
    add(&mut set, "flow", key(Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into()), 2).unwrap();
    let flow_of = |key: FlowKey| found(&tables, tables.lookup_flow(flow, &key));
    assert_eq!(flow_of(FlowKey::v4(0x0a00_0001, 7, 6, 999, 80)), Some(1));
    assert_eq!(flow_of(FlowKey::v6(1, 7, 6, 999, 80)), Some(2));
    assert_eq!(flow_of(FlowKey::v4(0x0a00_0001, 7, 17, 999, 80)), None);
    assert_eq!(flow_of(FlowKey::v4(1, 7, 6, 999, 80)), None, "an IPv4 flow is no IPv6 flow");

    add(&mut set, "address", v6("2001:db8::/32"), 1).unwrap();
    add(&mut set, "address", v6("2001:db8:1::/48"), 2).unwrap();
    add(&mut set, "address", v4("0.0.0.0/0"), 3).unwrap();
    let address_of = |text: &str| {
        let key: Ipv6Addr = text.parse().unwrap();
        found(&tables, tables.lookup6(address, key.to_bits()))
    };
    assert_eq!(address_of("2001:db8:1::5"), Some(2));
    assert_eq!(address_of("2001:db8:2::5"), Some(1));
    assert_eq!(address_of("2002::"), None);
    set.delete("address", &[v6("2001:db8:1::/48")]).1.unwrap();
    assert_eq!(address_of("2001:db8:1::5"), Some(1));
    assert_eq!(found(&tables, tables.lookup4(address, 5)), Some(3));
    let shown = set.lookup("address", &v6("2001:db8:1::5/128")).unwrap();
    assert_eq!(shown, (v6("2001:db8::/32"), value(1)));
    let mut listed = Vec::new();
    set.list("address", |key, value| listed.push((key.clone(), value.skipto))).unwrap();
    assert_eq!(listed, [(v4("0.0.0.0/0"), 3), (v6("2001:db8::/32"), 1)]);
}

/// The longest prefix of a list that holds an address.
fn longest(prefixes: &BTreeMap<(u32, u8), u32>, address: u32) -> Option<u32> {
    let mask = |length: u8| u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
    (0..=32).rev().find_map(|length| prefixes.get(&(address & mask(length), length)).copied())
}

/// A prefix near few places, so that prefixes nest and meet.
fn prefix() -> impl Strategy<Value = (u32, u8)> {
    (prop_oneof![Just(0x0a00_0000_u32), Just(0x0aff_fff0), Just(0xffff_ff00)], 0..64_u32, 0..=32_u8, 0..4_u32).prop_map(
        |(base, low, length, far)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            ((base.wrapping_add(low).wrapping_add(far << 20)) & mask, length)
        },
    )
}

fn check(tables: &Tables, id: TableId, model: &BTreeMap<(u32, u8), u32>) -> Result<(), TestCaseError> {
    let mut addresses = vec![0, u32::MAX];
    for &(address, length) in model.keys() {
        let last = address | !u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        addresses.extend([
            address,
            address.wrapping_sub(1),
            last,
            last.wrapping_add(1),
            address | ((last - address) / 2),
        ]);
    }
    for address in addresses {
        prop_assert_eq!(found(tables, tables.lookup4(id, address)), longest(model, address), "{:#x}", address);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_random_table_answers_as_its_list(
        filler in prop_oneof![Just(0_u32), Just(120), Just(400)],
        steps in proptest::collection::vec((prefix(), 1..50_u32, any::<bool>(), 1..6_usize), 1..30),
    ) {
        let (domain, mut set, mut tables) = set();
        let mut worker = domain.register().unwrap();
        let id = set.create("t", &options(TableKind::Address)).unwrap();
        tables.turn();
        let mut model = BTreeMap::new();
        // Makes the table a large one, or one that changes form on the way.
        let fill: Vec<_> = (0..filler).map(|n| (TableKey::V4(Ipv4Addr::from_bits(0x0a00_0000 + n * 3), 32), value(1000 + n % 7))).collect();
        for n in 0..filler {
            model.insert((0x0a00_0000 + n * 3, 32), 1000 + n % 7);
        }
        set.add("t", &fill, AddMode::default()).1.unwrap();
        check(&tables, id, &model)?;
        let update = AddMode { atomic: true, update: true };
        for ((address, length), n, delete, run) in steps {
            let key = TableKey::V4(Ipv4Addr::from_bits(address), length);
            if delete && !model.is_empty() {
                let keys: Vec<(u32, u8)> = model.keys().copied().cycle().skip(n as usize).take(run.min(model.len())).collect();
                let gone: Vec<TableKey> = keys.iter().map(|(a, l)| TableKey::V4(Ipv4Addr::from_bits(*a), *l)).collect();
                prop_assert_eq!(set.delete("t", &gone).1, Ok(()));
                keys.iter().for_each(|key| { model.remove(key); });
            } else {
                prop_assert_eq!(set.add("t", &[(key, value(n))], update).1, Ok(()));
                model.insert((address, length), n);
            }
            worker.quiescent();
            check(&tables, id, &model)?;
            prop_assert_eq!(set.info("t").unwrap().entries, model.len());
        }
        set.flush("t").unwrap();
        tables.turn();
        check(&tables, id, &BTreeMap::new())?;
        prop_assert_eq!((set.memory(), set.values()), (0, 0), "a flushed table leaves nothing");
    }
}

#[test]
fn a_dense_network_needs_more_than_its_lines() {
    let (_, mut set, mut tables) = set();
    let id = set.create("t", &options(TableKind::Address)).unwrap();
    tables.turn();
    let mut model = BTreeMap::new();
    let mut entries = Vec::new();
    // All odd addresses of one /24, and one host in many /16s.
    for n in 0..128_u32 {
        model.insert((0x0a01_0201 + n * 2, 32), n);
        model.insert((0x1400_0000 + (n << 16) + n, 32), n);
    }
    entries.extend(model.iter().map(|(&(a, l), &n)| (TableKey::V4(Ipv4Addr::from_bits(a), l), value(n))));
    set.add("t", &entries, AddMode::default()).1.unwrap();
    check(&tables, id, &model).unwrap();
    let before = set.memory();
    set.delete("t", &[TableKey::V4(Ipv4Addr::from_bits(0x0a01_0203), 32)]).1.unwrap();
    model.remove(&(0x0a01_0203, 32));
    check(&tables, id, &model).unwrap();
    assert!(set.memory() <= before);
}

/// Scenario 63 of the conformance data: entries come and go and tables are swapped while packets look both up. A look-up in a turn
/// meets one of the two states that there are, and both tables of one turn are from the same side of the swap.
#[test]
fn readers_meet_the_old_or_the_new_table_and_nothing_else() {
    let (domain, mut set, _) = set();
    let (a, b) = (
        set.create("tb0", &options(TableKind::Address)).unwrap(),
        set.create("tb1", &options(TableKind::Address)).unwrap(),
    );
    // 10.0.0.0/8 says whose table it is; 10.x.0.0/24 come and go with that value plus 10.
    add(&mut set, "tb0", v4("10.0.0.0/8"), 1).unwrap();
    add(&mut set, "tb1", v4("10.0.0.0/8"), 2).unwrap();
    let many = |n: u32| -> Vec<(TableKey, TableValue)> {
        (0..200).map(|i| (TableKey::V4(Ipv4Addr::from_bits(0x0a00_0000 + (i << 16)), 24), value(n))).collect()
    };
    let keys: Vec<TableKey> = many(0).into_iter().map(|(key, _)| key).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (stop, turns) = (Arc::clone(&stop), Arc::clone(&turns));
            let mut worker = domain.register().unwrap();
            let mut tables = set.reader();
            std::thread::spawn(move || {
                let mut seen = [0_u64; 2];
                while !stop.load(Ordering::Relaxed) {
                    worker.quiescent();
                    tables.turn();
                    let one = found(&tables, tables.lookup4(a, 0x0aff_ff01)).unwrap();
                    let two = found(&tables, tables.lookup4(b, 0x0aff_ff01)).unwrap();
                    assert!((one, two) == (1, 2) || (one, two) == (2, 1), "{one} {two}");
                    for i in 0..200_u32 {
                        let here = found(&tables, tables.lookup4(a, 0x0a00_0001 + (i << 16))).unwrap();
                        assert!(here == one || here == one + 10, "{here} in the table of {one}");
                        seen[usize::from(here > 10)] += 1;
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                seen
            })
        })
        .collect();
    let mut owner = ["tb0", "tb1"];
    let mut rounds = 0;
    while rounds < 60 || turns.load(Ordering::Relaxed) < 200 {
        for (n, name) in owner.iter().enumerate() {
            let (results, outcome) = set.add(name, &many(n as u32 + 11), AddMode { atomic: true, update: false });
            assert_eq!(outcome, Ok(()));
            assert!(results.iter().all(|result| *result == EntryResult::Added));
        }
        set.swap("tb0", "tb1").unwrap();
        owner.swap(0, 1);
        for name in owner {
            set.delete(name, &keys).1.unwrap();
        }
        rounds += 1;
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        let seen = reader.join().unwrap();
        assert!(seen[0] + seen[1] > 0);
    }
    assert_eq!((set.info("tb0").unwrap().entries, set.info("tb1").unwrap().entries), (1, 1), "no table was lost");
}
