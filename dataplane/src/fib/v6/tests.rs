use super::*;
use crate::fib::prefix::mask6;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The naive table: every prefix is looked at.
#[derive(Default)]
struct Oracle(BTreeMap<(u8, u128), u32>);

impl Oracle {
    fn longest(&self, address: u128, shorter_than: u8) -> (u8, AdjacencyId) {
        let holds = |&(&(length, network), _): &(&(u8, u128), &u32)| {
            length < shorter_than && address & mask6(length) == network
        };
        self.0.iter().rfind(holds).map_or((0, AdjacencyId(0)), |(&(length, _), &id)| (length, AdjacencyId(id)))
    }

    fn lookup(&self, address: u128) -> AdjacencyId {
        self.longest(address, 129).1
    }
}

/// Addresses that share long paths and fork at every kind of place.
fn address() -> impl Strategy<Value = u128> {
    let byte = prop_oneof![4 => Just(0_u8), 2 => Just(0xff), 1 => any::<u8>()];
    (proptest::collection::vec(byte, 14), 0_u8..3).prop_map(|(bytes, top)| {
        let mut all = [0x20, top, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        all[2..].copy_from_slice(&bytes);
        u128::from_be_bytes(all)
    })
}

fn length() -> impl Strategy<Value = u8> {
    prop_oneof![
        6 => prop_oneof![Just(32_u8), Just(48), Just(64), Just(128), Just(56), Just(72), Just(40), Just(24), Just(16)],
        4 => 0_u8..=128,
    ]
}

fn check(fib: &Fib6, oracle: &Oracle, probes: &[u128]) {
    let edges = oracle.0.keys().flat_map(|&(length, network)| {
        let last = network | !mask6(length);
        [network, last, network.wrapping_sub(1), last.wrapping_add(1), network | 1 << 40]
    });
    let addresses: Vec<u128> = edges.chain(probes.iter().copied()).collect();
    let mut entries: Vec<u64> = addresses.iter().map(|address| fib.top(*address)).collect();
    fib.finish_batch(&mut entries, |index| addresses[index]);
    for (address, entry) in addresses.iter().zip(entries) {
        let right = oracle.lookup(*address);
        assert_eq!(fib.lookup(*address), right, "{:x?}", address.to_be_bytes());
        assert_eq!(Fib6::answer(entry), right, "in a batch: {:x?}", address.to_be_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn agrees_with_the_naive_table(
        updates in proptest::collection::vec((address(), length(), 0_u32..6), 1..60),
        probes in proptest::collection::vec(address(), 20),
        order in any::<u64>(),
        large_from in 0_usize..40,
    ) {
        let (fib, mut writer) = Fib6::new(&Domain::new(1));
        let mut oracle = Oracle::default();
        for (number, (address, length, id)) in updates.into_iter().enumerate() {
            // From here on new nodes are narrow, before that wide: both kinds meet.
            if number == large_from {
                writer.behave_as_large();
            }
            let network = address & mask6(length);
            if id == 0 {
                // Withdraws something that is there, if anything is.
                let Some(&(length, network)) = oracle.0.keys().nth(address as usize % oracle.0.len().max(1)) else { continue };
                oracle.0.remove(&(length, network));
                writer.remove(network, length, oracle.longest(network, length)).unwrap();
            } else {
                oracle.0.insert((length, network), id);
                writer.insert(network, length, AdjacencyId(id)).unwrap();
            }
            check(&fib, &oracle, &probes);
        }
        let mut left: Vec<_> = oracle.0.keys().copied().collect();
        while !left.is_empty() {
            let (length, network) = left.swap_remove(order as usize % left.len());
            oracle.0.remove(&(length, network));
            writer.remove(network, length, oracle.longest(network, length)).unwrap();
            check(&fib, &oracle, &probes);
        }
        prop_assert_eq!(writer.bytes_in_use(), 0);
    }
}

fn network(text: &str) -> u128 {
    text.parse::<std::net::Ipv6Addr>().unwrap().to_bits()
}

#[test]
fn a_few_routes_of_any_length_take_few_nodes() {
    let (fib, mut writer) = Fib6::new(&Domain::new(1));
    for (text, length, id) in [("2001:db8::", 48, 1), ("2001:de8:1:2::", 64, 2), ("2a00::", 64, 3)] {
        writer.insert(network(text), length, AdjacencyId(id)).unwrap();
        let first = fib.top(network(text));
        assert!(is_pointer(first));
    }
    assert_eq!(fib.lookup(network("2001:db8:0:7::1")), AdjacencyId(1));
    assert_eq!(fib.lookup(network("2001:db8:1::1")), AdjacencyId(0));
    assert_eq!(fib.lookup(network("2001:de8:1:2:3::")), AdjacencyId(2));
    // Two groups, a node for each route, and one where two of them fork.
    assert_eq!(writer.bytes_in_use(), 2 * SLOTS * 8 + 4 * 33 * 64);
    let all = [("2001:db8::", 48), ("2001:de8:1:2::", 64), ("2a00::", 64)];
    for (text, length) in all {
        writer.remove(network(text), length, (0, AdjacencyId(0))).unwrap();
    }
    assert_eq!(writer.bytes_in_use(), 0);
    writer.behave_as_large();
    for (text, length) in all {
        writer.insert(network(text), length, AdjacencyId(9)).unwrap();
    }
    assert!(all.iter().all(|(text, _)| fib.lookup(network(text)) == AdjacencyId(9)));
    assert_eq!(writer.bytes_in_use(), 2 * SLOTS * 8 + 4 * 128);
}

#[test]
fn a_node_full_of_equal_routes_is_still_many_routes() {
    let (fib, mut writer) = Fib6::new(&Domain::new(1));
    let none = (0, AdjacencyId(0));
    let nth = |number: u128| network("2001:db8::") | number << 80;
    for number in 0..256 {
        writer.insert(nth(number), 48, AdjacencyId(1)).unwrap();
    }
    writer.remove(nth(7), 48, none).unwrap();
    assert_eq!((fib.lookup(nth(7)), fib.lookup(nth(8))), (AdjacencyId(0), AdjacencyId(1)));
    // The same around a pointer: all but one are one answer.
    writer.insert(nth(7), 48, AdjacencyId(1)).unwrap();
    writer.insert(nth(9) | 1, 128, AdjacencyId(2)).unwrap();
    writer.remove(nth(7), 48, none).unwrap();
    assert_eq!((fib.lookup(nth(7)), fib.lookup(nth(8))), (AdjacencyId(0), AdjacencyId(1)));
    assert_eq!((fib.lookup(nth(9)), fib.lookup(nth(9) | 1)), (AdjacencyId(1), AdjacencyId(2)));
    writer.remove(nth(9) | 1, 128, (48, AdjacencyId(1))).unwrap();
    for number in (0..256).filter(|number| *number != 7) {
        writer.remove(nth(number), 48, none).unwrap();
    }
    assert_eq!(writer.bytes_in_use(), 0);
}

#[test]
fn nodes_start_on_cache_lines() {
    let (fib, mut writer) = Fib6::new(&Domain::new(1));
    writer.insert(network("2001:db8::"), 48, AdjacencyId(1)).unwrap();
    let node = fib.top(network("2001:db8::")) as u32 as usize;
    assert_eq!((&raw const fib.words[node]).addr() % 64, 0);
}

#[test]
fn a_node_is_reused_only_after_every_worker_was_quiescent() {
    let domain = Domain::new(1);
    let mut worker = domain.register().unwrap();
    let (fib, mut writer) = Fib6::new(&domain);
    writer.behave_as_large();
    let (first, second) = (network("2001:db8:1::"), network("2001:db8:2::"));
    writer.insert(first, 48, AdjacencyId(1)).unwrap();
    let held = fib.top(first);
    // Changes the runs of the node, so it is written anew; then back and forth.
    for _ in 0..100 {
        writer.insert(second, 48, AdjacencyId(2)).unwrap();
        writer.remove(second, 48, (0, AdjacencyId(0))).unwrap();
        assert_eq!(fib.finish(held, first), AdjacencyId(1), "the held node is as it was");
        assert_eq!(fib.finish(held, second), AdjacencyId(0), "the held node is as it was");
    }
    let grown = writer.words_ever_used();
    assert!(grown > 200 * 8, "nothing was reused while the worker could be reading: {grown}");
    worker.quiescent();
    for _ in 0..50 {
        writer.insert(second, 48, AdjacencyId(2)).unwrap();
        writer.remove(second, 48, (0, AdjacencyId(0))).unwrap();
    }
    assert_eq!(writer.words_ever_used(), grown, "now the old blocks are reused");
}
