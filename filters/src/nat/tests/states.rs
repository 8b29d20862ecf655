//! The table of states against a map.

use super::*;
use crate::nat::life::Life;
use crate::nat::state::{State, StateTable};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u16),
    Remove(u16),
    Live(u16, Life),
    Sweep(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let life = prop_oneof![Just(Life::Dead), Just(Life::Minute), Just(Life::HalfClosed), Just(Life::Opening)];
    prop_oneof![
        3 => (0u16..40, 0u16..60).prop_map(|(inside, alias)| Step::Insert(inside, alias)),
        1 => (0u16..40).prop_map(Step::Remove),
        1 => (0u16..40, life).prop_map(|(inside, life)| Step::Live(inside, life)),
        1 => (0u32..30).prop_map(Step::Sweep),
    ]
}

fn inside(port: u16) -> Key {
    Key { near: 1, far: 2, near_port: port, far_port: 80, protocol: 6 }
}

fn wire(port: u16) -> Key {
    Key { near: 3, near_port: port, ..inside(0) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn both_indexes_and_the_queues_agree_with_a_map(steps in vec(step(), 1..120)) {
        let mut table = StateTable::new(32, SEED);
        // By inside port: alias port; and who has which alias port.
        let (mut model, mut holder) = (HashMap::new(), HashMap::new());
        let mut now = 0;
        for step in steps {
            match step {
                Step::Insert(port, alias) => {
                    if model.contains_key(&port) {
                        continue;
                    }
                    let slot = table.insert(State::new(inside(port), 3, alias, now));
                    prop_assert_eq!(slot.is_some(), model.len() < 32);
                    if slot.is_some() {
                        model.insert(port, alias);
                        holder.insert(alias, port);
                    }
                }
                Step::Remove(port) => {
                    let removed = table.find_out(&inside(port)).and_then(|slot| table.remove(slot));
                    let alias = model.remove(&port);
                    prop_assert_eq!(removed.map(|s| s.alias_port), alias);
                    holder.retain(|_, p| *p != port);
                }
                Step::Live(port, life) => {
                    if let Some(slot) = table.find_out(&inside(port)) {
                        table.set_life(slot, life);
                    }
                }
                Step::Sweep(seconds) => {
                    now += seconds;
                    for _ in 0..5 {
                        if let Some(state) = table.sweep(now) {
                            prop_assert!(now - state.used > state.life.seconds());
                            model.remove(&state.inside_port);
                            holder.retain(|_, p| *p != state.inside_port);
                        }
                    }
                }
            }
            prop_assert_eq!(table.len(), model.len());
            for port in 0..60 {
                let found = table.find_out(&inside(port)).and_then(|s| table.get(s)).map(|s| s.alias_port);
                prop_assert_eq!(found, model.get(&port).copied());
                let found = table.find_in(&wire(port)).and_then(|s| table.get(s)).map(|s| s.inside_port);
                prop_assert_eq!(found, holder.get(&port).copied());
            }
        }
        // In the end every state is found by the sweep: none fell out of its queue.
        let left = table.len();
        let swept = (0..left * 5 + 5).filter(|_| table.sweep(now + 100_000).is_some()).count();
        prop_assert_eq!((swept, table.len()), (left, 0));
        prop_assert!((0..32).all(|port| table.insert(State::new(inside(port), 3, port, now)).is_some()));
    }
}
