#![forbid(unsafe_code)]
//! The whole table: both directions, names, limits, keep-alives, bounds, and a comparison with a list that is searched from end to end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ferrule_dataplane::packet::hash::HashSeed;
use proptest::prelude::*;

use super::state::State;
use super::*;

const SEED: HashSeed = HashSeed(0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321);
const RULE: RuleRef = RuleRef { index: 10, generation: 1 };
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn seconds(n: u32) -> u64 {
    u64::from(n) * 1_000_000_000
}

fn udp(length: u32) -> PacketFacts {
    PacketFacts { length, ..PacketFacts::default() }
}

fn tcp(tcp_flags: u8, acknowledgement: u32) -> PacketFacts {
    PacketFacts { length: 40, tcp_flags, acknowledgement: Some(acknowledgement) }
}

fn new_state(key: FlowKey) -> NewState {
    NewState { key, hash: key.hash(SEED), name: NameId::DEFAULT, rule: RULE, limit: None }
}

fn table() -> (Arc<Shared>, States) {
    let shared = Arc::new(Shared::default());
    let states = States::new(Arc::clone(&shared), 100_000);
    (shared, states)
}

/// Every other probe goes by way of the candidate, which must be the same.
fn probe(states: &mut States, key: FlowKey, facts: PacketFacts) -> Option<Hit> {
    let (hash, name) = (key.hash(SEED), NameFilter::Name(NameId::DEFAULT));
    if facts.length.is_multiple_of(2) {
        return states.probe(&key, name, hash, &facts);
    }
    let candidate = states.prefetch_state(hash);
    states.probe_candidate(candidate, &key, name, hash, &facts)
}

fn sweep(states: &mut States) -> Vec<StateView> {
    let mut ended = Vec::new();
    while states.sweep(1000, |view| ended.push(*view), |_| {}) >= 1000 {}
    ended
}

#[test]
fn both_directions_match_and_nothing_else_does() {
    let (_, mut states) = table();
    let keys =
        [FlowKey::v4(0x0a00_0001, 0x0a00_0002, 17, 1000, 53), FlowKey::v6(1 << 120 | 1, 1 << 120 | 2, 17, 1000, 53)];
    for key in keys {
        let made = states.install(&new_state(key), &udp(100)).unwrap();
        let forward = probe(&mut states, key, udp(10)).unwrap();
        assert_eq!((forward.index, forward.direction, forward.rule), (made, Direction::Forward, RULE));
        let reverse = probe(&mut states, key.reverse(), udp(20)).unwrap();
        assert_eq!((reverse.index, reverse.direction), (made, Direction::Reverse));
        let view = states.view(made).unwrap();
        assert_eq!((view.key, view.packets, view.bytes, view.expires_in), (key, 3, 130, 10));
    }
    let others = [
        FlowKey::v4(0x0a00_0001, 0x0a00_0002, 6, 1000, 53),
        FlowKey::v4(0x0a00_0001, 0x0a00_0002, 17, 53, 1000),
        FlowKey::v4(0x0a00_0002, 0x0a00_0001, 17, 1000, 53),
        FlowKey::v4(0x0a00_0001, 0x0a00_0003, 17, 1000, 53),
        FlowKey::v6(1 << 120 | 2, 1 << 120 | 1, 17, 1000, 53),
        FlowKey::V6 { source: 1 << 120 | 1, destination: 1 << 120 | 2, ports: 1000 << 16 | 53, protocol: 17, zone: 3 },
    ];
    for key in others {
        // With the hash of a state that is there, so that its bucket and tag are met.
        for there in keys {
            assert_eq!(states.probe(&key, NameFilter::Any, there.hash(SEED), &udp(1)), None, "{key:?}");
        }
    }
    assert_eq!(states.len(), 2);
}

#[test]
fn a_state_answers_to_its_own_name_and_to_any() {
    let (_, mut states) = table();
    let key = FlowKey::v4(1, 2, 17, 3, 4);
    let web = NameId(9);
    let first = states.install(&NewState { name: web, ..new_state(key) }, &udp(1)).unwrap();
    assert_eq!(probe(&mut states, key, udp(1)), None);
    let named = |states: &mut States, name| states.probe(&key, name, key.hash(SEED), &udp(1)).map(|hit| hit.index);
    assert_eq!(named(&mut states, NameFilter::Name(web)), Some(first));
    assert_eq!(named(&mut states, NameFilter::Any), Some(first));
    let second = states.install(&new_state(key), &udp(1)).unwrap();
    assert_ne!(first, second, "one flow has a state of each name");
    assert_eq!(named(&mut states, NameFilter::Name(NameId::DEFAULT)), Some(second));
}

#[test]
fn a_state_that_is_there_is_not_made_twice() {
    let (shared, mut states) = table();
    let key = FlowKey::v4(1, 2, 17, 3, 4);
    let first = states.install(&new_state(key), &udp(5)).unwrap();
    assert_eq!(states.install(&new_state(key.reverse()), &udp(6)), Ok(first));
    let view = states.view(first).unwrap();
    assert_eq!((view.key, view.packets, view.bytes, shared.count()), (key, 2, 11, 1));
}

#[test]
fn states_end_when_their_time_has_come() {
    let (shared, mut states) = table();
    states.turn(seconds(100));
    sweep(&mut states);
    for flow in 0..50 {
        states.install(&new_state(FlowKey::v4(flow, 2, 17, 3, 4)), &udp(1)).unwrap();
    }
    states.turn(seconds(109));
    assert!(sweep(&mut states).is_empty());
    assert!(probe(&mut states, FlowKey::v4(7, 2, 17, 3, 4), udp(1)).is_some());
    states.turn(seconds(110));
    assert_eq!(sweep(&mut states).len(), 49);
    assert_eq!((states.len(), shared.count()), (1, 1));
    states.turn(seconds(118));
    assert!(sweep(&mut states).is_empty());
    states.turn(seconds(119));
    let ended = sweep(&mut states);
    assert_eq!(
        ended.iter().map(|view| (view.key, view.packets)).collect::<Vec<_>>(),
        [(FlowKey::v4(7, 2, 17, 3, 4), 2)]
    );
    assert!(states.is_empty());
}

#[test]
fn a_closed_connection_ends_a_second_later_and_its_place_is_used_again() {
    let (_, mut states) = table();
    let key = FlowKey::v4(1, 2, 6, 3000, 80);
    let mut places = std::collections::HashSet::new();
    for round in 0..200 {
        states.turn(seconds(10 + round * 2));
        sweep(&mut states);
        let made = states.install(&new_state(key), &tcp(SYN, 0)).unwrap();
        places.insert(made);
        probe(&mut states, key.reverse(), tcp(SYN | ACK, 1)).unwrap();
        probe(&mut states, key, tcp(ACK, 1)).unwrap();
        assert_eq!(states.view(made).unwrap().expires_in, 300);
        probe(&mut states, key, tcp(FIN | ACK, 1)).unwrap();
        probe(&mut states, key.reverse(), tcp(FIN | ACK, 2)).unwrap();
        assert_eq!(states.view(made).unwrap().expires_in, 1);
        states.turn(seconds(11 + round * 2));
        assert_eq!(sweep(&mut states).len(), 1, "round {round}");
    }
    assert_eq!(places.len(), 1);
}

#[test]
fn settings_count_from_the_next_turn() {
    let (shared, mut states) = table();
    let key = FlowKey::v4(1, 2, 17, 3, 4);
    let made = states.install(&new_state(key), &udp(1)).unwrap();
    shared.set("dyn_udp_lifetime", 60).unwrap();
    shared.set("dyn_fin_lifetime", 100).unwrap();
    states.turn(0);
    probe(&mut states, key, udp(1));
    assert_eq!(states.view(made).unwrap().expires_in, 60);
    let key = FlowKey::v4(1, 2, 6, 3, 4);
    let made = states.install(&new_state(key), &tcp(SYN, 0)).unwrap();
    for (key, flags) in [(key.reverse(), SYN | FIN), (key, FIN)] {
        probe(&mut states, key, tcp(flags, 0));
    }
    assert_eq!(states.view(made).unwrap().expires_in, 4, "below the period of keep-alives");
}

#[test]
fn keepalives_come_in_the_last_twenty_seconds_for_sides_that_are_silent() {
    let (shared, mut states) = table();
    let key = FlowKey::v4(1, 2, 6, 3000, 80);
    states.turn(seconds(50));
    sweep(&mut states);
    states.install(&new_state(key), &tcp(SYN, 0)).unwrap();
    probe(&mut states, key.reverse(), tcp(SYN | ACK, 1001)).unwrap();
    probe(&mut states, key, tcp(ACK, 5001)).unwrap();
    let mut sent = Vec::new();
    let mut ended = None;
    for second in 51..=360 {
        states.turn(seconds(second));
        states.sweep(1000, |_| ended = Some(second), |keepalive| sent.push((second, *keepalive)));
    }
    assert_eq!(ended, Some(350));
    let forward = Keepalive { key, sequence: 1000, acknowledgement: 5001 };
    let reverse = Keepalive { key: key.reverse(), sequence: 5000, acknowledgement: 1001 };
    let seconds_of: Vec<u32> = sent.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds_of, [331, 331, 336, 336, 341, 341, 346, 346]);
    for pair in sent.chunks(2) {
        assert_eq!((pair[0].1, pair[1].1), (reverse, forward));
    }

    // The answer of one side alone: only the other is asked again. With the setting off nobody is.
    states.turn(seconds(400));
    states.install(&new_state(key), &tcp(SYN, 0)).unwrap();
    probe(&mut states, key.reverse(), tcp(SYN | ACK, 1001)).unwrap();
    probe(&mut states, key, tcp(ACK, 5001)).unwrap();
    probe(&mut states, key, tcp(ACK, 5001)).unwrap();
    sent.clear();
    for second in 401..=690 {
        states.turn(seconds(second));
        states.sweep(1000, |_| {}, |keepalive| sent.push((second, *keepalive)));
    }
    assert_eq!(sent, [(681, forward), (686, forward)]);
    shared.set("dyn_keepalive", 0).unwrap();
    sent.clear();
    for second in 691..=710 {
        states.turn(seconds(second));
        states.sweep(1000, |_| {}, |keepalive| sent.push((second, *keepalive)));
    }
    assert!(sent.is_empty() && states.is_empty());
}

#[test]
fn limits_count_by_the_fields_of_the_rule() {
    let key = |source: u32, source_port| FlowKey::v4(source, 2, 17, source_port, 53);
    let (shared, mut states) = table();
    let limit = LimitTo { source_address: true, count: 2, ..LimitTo::default() };
    let install = |states: &mut States, source, port| {
        let new = NewState { limit: Some(limit), ..new_state(key(source, port)) };
        states.install(&new, &udp(1))
    };
    let first = install(&mut states, 1, 10).unwrap();
    assert!(install(&mut states, 1, 11).is_ok());
    assert_eq!(install(&mut states, 1, 12), Err(InstallError::LimitReached));
    assert!(install(&mut states, 9, 12).is_ok(), "another source");
    assert_eq!(shared.get("dyn_parent_count"), Some(2));
    let other_rule =
        NewState { rule: RuleRef { index: 11, generation: 1 }, limit: Some(limit), ..new_state(key(1, 13)) };
    assert!(states.install(&other_rule, &udp(1)).is_ok(), "another rule counts for itself");
    states.remove(first);
    assert!(install(&mut states, 1, 12).is_ok(), "one ended");
    assert!(states.view(first).unwrap().limit);
    assert_eq!(shared.refused(), (0, 0), "a limit is no lack of room");

    // A second worker counts with the first.
    let mut second = States::new(Arc::clone(&shared), 1000);
    assert_eq!(install(&mut second, 1, 14), Err(InstallError::LimitReached));

    states.turn(seconds(100));
    assert_eq!(sweep(&mut states).len(), 4);
    for _ in 0..10_000 {
        states.sweep(0, |_| {}, |_| {});
    }
    assert_eq!(shared.get("dyn_parent_count"), Some(0));
}

#[test]
fn limit_masks_keep_the_fields_that_count() {
    let v4 = FlowKey::v4(1, 2, 6, 3, 4);
    let v6 = FlowKey::v6(1, 2, 6, 3, 4);
    let mask = |source_address, source_port, destination_address, destination_port| LimitTo {
        source_address,
        source_port,
        destination_address,
        destination_port,
        count: 1,
    };
    assert_eq!(mask(true, false, false, false).mask(&v4), FlowKey::v4(1, 0, 6, 0, 0));
    assert_eq!(mask(false, true, false, false).mask(&v4), FlowKey::v4(0, 0, 6, 3, 0));
    assert_eq!(mask(false, false, true, true).mask(&v4), FlowKey::v4(0, 2, 6, 0, 4));
    assert_eq!(mask(true, false, false, true).mask(&v6), FlowKey::v6(1, 0, 6, 0, 4));
    assert_eq!(mask(false, true, true, false).mask(&v6), FlowKey::v6(0, 2, 6, 3, 0));
}

#[test]
fn a_flood_fills_dyn_max_and_no_more() {
    let (shared, mut states) = table();
    shared.set("dyn_max", 1000).unwrap();
    shared.set("dyn_parent_max", 10).unwrap();
    states.turn(0);
    let mut second = States::new(Arc::clone(&shared), 100_000);
    let mut made = 0;
    for flow in 0..5000 {
        let table = if flow % 2 == 0 { &mut states } else { &mut second };
        match table.install(&new_state(FlowKey::v4(flow, 2, 17, 3, 4)), &udp(1)) {
            Ok(_) => made += 1,
            Err(error) => assert_eq!(error, InstallError::TooManyStates),
        }
    }
    assert_eq!((made, shared.count(), shared.refused()), (1000, 1000, (4000, 0)));
    drop(second);
    assert_eq!(shared.count(), 500, "what a worker had is given back when it ends");
    let limit = Some(LimitTo { source_address: true, count: 1, ..LimitTo::default() });
    let mut errors = Vec::new();
    for flow in 0..12 {
        let new = NewState { limit, ..new_state(FlowKey::v4(flow, 3, 17, 3, 4)) };
        errors.extend(states.install(&new, &udp(1)).err());
    }
    assert_eq!(errors, [InstallError::TooManyParents; 2]);
    assert_eq!(shared.refused(), (4000, 2));
}

#[test]
fn a_table_that_is_full_refuses_and_goes_on() {
    let shared = Arc::new(Shared::default());
    let mut states = States::new(Arc::clone(&shared), 100);
    for flow in 0..300_u32 {
        let key = FlowKey::v6(u128::from(flow) << 64, 2, 17, 3, 4);
        assert_eq!(states.install(&new_state(key), &udp(1)).is_ok(), flow < 100, "{flow}");
    }
    assert_eq!((states.len(), shared.count(), shared.refused().0), (100, 100, 200));
    states.turn(seconds(30));
    sweep(&mut states);
    assert!(states.is_empty());
    assert!(states.install(&new_state(FlowKey::v6(5, 2, 17, 3, 4)), &udp(1)).is_ok());
}

#[test]
fn a_rule_that_goes_takes_its_states_or_leaves_them_orphaned() {
    let (shared, mut states) = table();
    for flow in 0..100 {
        let rule = RuleRef { index: flow % 4, generation: 0 };
        states.install(&NewState { rule, ..new_state(FlowKey::v4(flow, 2, 17, 3, 4)) }, &udp(1)).unwrap();
    }
    let mut cursor = 0;
    let mut turns = 0;
    while !states.purge(&mut cursor, 30, |view| match view.rule.index {
        1 => Fate::End,
        2 => Fate::Orphan,
        _ => Fate::Keep,
    }) {
        turns += 1;
    }
    assert_eq!((turns, states.len(), shared.count()), (3, 75, 75));
    let mut seen = [0; 4];
    let mut orphaned = 0;
    states.list(&mut 0, u32::MAX, |view| {
        seen[view.rule.index as usize] += 1;
        orphaned += u32::from(view.orphaned);
    });
    assert_eq!((seen, orphaned), ([25, 0, 25, 25], 25));
    assert!(probe(&mut states, FlowKey::v4(2, 2, 17, 3, 4), udp(1)).unwrap().orphaned);
    assert!(probe(&mut states, FlowKey::v4(1, 2, 17, 3, 4), udp(1)).is_none());
    states.turn(seconds(40));
    assert_eq!(sweep(&mut states).len(), 75, "entries left behind in the wheel do no harm");
}

#[test]
fn a_hundred_thousand_states_take_less_than_128_bytes_each() {
    let (shared, mut states) = table();
    shared.set("dyn_max", 100_000).unwrap();
    states.turn(0);
    for flow in 0..100_000_u32 {
        let key = FlowKey::v6(u128::from(flow) << 70 | 1, 2, 17, 3, 4);
        states.install(&new_state(key), &udp(1)).unwrap();
    }
    assert!(states.memory() <= 128 * 100_000, "{} bytes each", states.memory() / 100_000);
    let v6 = states.memory();
    let mut states = States::new(Arc::new(Shared::default()), 100_000);
    states.shared().set("dyn_max", 100_000).unwrap();
    states.turn(0);
    for flow in 0..100_000_u32 {
        states.install(&new_state(FlowKey::v4(flow, 2, 17, 3, 4)), &udp(1)).unwrap();
    }
    assert!(states.memory() <= 96 * 100_000, "{} bytes each", states.memory() / 100_000);
    assert!(states.memory() < v6);
    assert_eq!(size_of::<State>(), 64);
}

/// What the table does, as a list that is searched from end to end.
#[derive(Clone, Debug)]
struct Model {
    key: FlowKey,
    name: NameId,
    expire: u32,
    packets: u64,
    seen: [u8; 2],
    acks: [Option<u32>; 2],
    marked: [bool; 2],
}

impl Model {
    fn update(&mut self, reverse: bool, facts: &PacketFacts, now: u32) {
        let side = usize::from(reverse);
        self.packets += 1;
        if self.key.protocol() == 17 {
            self.expire = now + 10;
            return;
        }
        self.seen[side] |= facts.tcp_flags & 7;
        let both_syn = self.seen[0] & SYN != 0 && self.seen[1] & SYN != 0;
        let fins = (self.seen[0] & FIN) + (self.seen[1] & FIN);
        let reset = (self.seen[0] | self.seen[1]) & RST != 0;
        if reset || !(both_syn || self.seen == [SYN, 0]) {
            self.expire = now + 1;
        } else if self.seen == [SYN, 0] {
            self.expire = now + 20;
        } else if fins == 2 {
            self.expire = now + 1;
        } else {
            let ack = facts.acknowledgement.unwrap_or(0);
            // Numbers of the test do not wrap, and 0 stands for none.
            if self.acks[side].is_none_or(|highest| highest == 0 || ack >= highest) {
                self.acks[side] = Some(ack);
                self.marked[side] = true;
            }
            if self.marked == [true, true] {
                self.marked = [false, false];
                self.expire = now + 300;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Packet { key: FlowKey, name: u16, any: bool, facts: PacketFacts },
    Wait(u32),
    Remove(usize),
}

fn flow() -> impl Strategy<Value = FlowKey> {
    (0..4_u32, 0..4_u32, any::<bool>(), any::<bool>(), 1..3_u16, 1..3_u16).prop_map(|(s, d, is_tcp, is_v6, sp, dp)| {
        let protocol = if is_tcp { 6 } else { 17 };
        if is_v6 {
            FlowKey::v6(u128::from(s) << 100, u128::from(d) << 100, protocol, sp, dp)
        } else {
            FlowKey::v4(s, d, protocol, sp, dp)
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let facts = (0..8_u8, 0..5_u32).prop_map(|(flags, ack)| tcp(flags | ACK, ack * 1000));
    prop_oneof![
        12 => (flow(), 1..3_u16, any::<bool>(), facts).prop_map(|(key, name, any, facts)| Step::Packet { key, name, any, facts }),
        3 => (0..25_u32).prop_map(Step::Wait),
        1 => (0..64_usize).prop_map(Step::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn the_table_does_what_a_plain_list_does(steps in proptest::collection::vec(step(), 1..300)) {
        let (shared, mut states) = table();
        let mut model: Vec<Model> = Vec::new();
        let mut time = 1;
        for step in steps {
            states.turn(seconds(time));
            let now = States::seconds(seconds(time));
            match step {
                Step::Packet { key, name, any, facts } => {
                    let facts = if key.protocol() == 17 { udp(40) } else { facts };
                    let filter = if any { NameFilter::Any } else { NameFilter::Name(NameId(name)) };
                    let hash = key.hash(SEED);
                    let hit = if time.is_multiple_of(2) {
                        states.probe(&key, filter, hash, &facts)
                    } else {
                        let candidate = if time % 4 == 1 { states.prefetch_state(hash) } else { Candidate::NONE };
                        states.probe_candidate(candidate, &key, filter, hash, &facts)
                    };
                    let matches = |m: &Model| (m.key == key || m.key.reverse() == key) && (any || m.name.0 == name);
                    if let Some(hit) = hit {
                        // Where states of several names match any of them may be taken, so the model follows.
                        let view = states.view(hit.index).unwrap();
                        let found = model.iter_mut().find(|m| m.key == view.key && m.name == view.name).unwrap();
                        prop_assert!(matches(found));
                        let reverse = found.key != key;
                        prop_assert_eq!(reverse, hit.direction == Direction::Reverse);
                        found.update(reverse, &facts, now);
                        prop_assert_eq!(view.expires_in + now, found.expire);
                        prop_assert_eq!(view.packets, found.packets);
                    } else {
                        prop_assert!(!model.iter().any(matches));
                        let new = NewState { name: NameId(name), ..new_state(key) };
                        states.install(&new, &facts).unwrap();
                        let mut made = Model {
                            key, name: NameId(name), expire: now + 20, packets: 0, seen: [0; 2], acks: [None; 2], marked: [false; 2],
                        };
                        made.update(false, &facts, now);
                        model.push(made);
                    }
                }
                Step::Wait(wait) => {
                    for _ in 0..wait {
                        time += 1;
                        states.turn(seconds(time));
                        let now = States::seconds(seconds(time));
                        let mut ended: Vec<_> = sweep(&mut states).iter().map(|v| (v.key, v.name, v.packets)).collect();
                        let mut expected: Vec<_> =
                            model.iter().filter(|m| m.expire <= now).map(|m| (m.key, m.name, m.packets)).collect();
                        model.retain(|m| m.expire > now);
                        let order = |e: &(FlowKey, NameId, u64)| format!("{e:?}");
                        ended.sort_by_key(order);
                        expected.sort_by_key(order);
                        prop_assert_eq!(ended, expected);
                    }
                }
                Step::Remove(which) if which < model.len() => {
                    let gone = model.remove(which);
                    let hit = states.probe(&gone.key, NameFilter::Name(gone.name), gone.key.hash(SEED), &udp(0)).unwrap();
                    states.remove(hit.index);
                }
                Step::Remove(_) => {}
            }
            prop_assert_eq!(states.len(), model.len());
            prop_assert_eq!(shared.count.load(Relaxed) as usize, model.len());
        }
    }
}
