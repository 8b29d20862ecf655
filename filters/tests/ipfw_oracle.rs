//! The comparison of two judges: it must be silent over one that is right and cry over one that is wrong.

use ferrule_filters::ipfw::fault::Fault;
use ferrule_filters::ipfw::oracle::{Oracle, Setup};
use ferrule_filters::ipfw::testing::{Faulty, agrees, missed};

/// Two oracles agree: what the comparison looks at depends on nothing but rules and packets. And no packet makes one panic.
#[test]
fn the_oracle_agrees_with_itself() {
    assert_eq!(agrees(|| Box::new(Oracle::new(Setup::default())), 1, 256), Ok(()));
}

/// Each planted fault is caught, by rules and packets that know nothing of it.
#[test]
fn every_planted_fault_is_caught() {
    assert!(Fault::ALL.len() >= 20);
    for seed in [1, 2] {
        assert_eq!(missed(|fault| Box::new(Faulty::new(fault)), seed, 3000), [], "seed {seed}");
    }
}

/// A failure comes shrunk to the rule and the packet that matter.
#[test]
fn a_difference_is_shrunk() {
    let text = agrees(|| Box::new(Faulty::new(Fault::CountAccepts)), 3, 256).unwrap_err();
    assert!(text.contains("differs"), "{text}");
    assert_eq!(text.matches("Rule {").count(), 1, "{text}");
    assert_eq!(text.matches("Packet {").count(), 1, "{text}");
}
