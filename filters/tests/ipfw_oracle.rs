//! The comparison of two judges: it must be silent over one that is right and cry over one that is wrong.

use ferrule_filters::ipfw::fault::Fault;
use ferrule_filters::ipfw::oracle::{Oracle, Setup};
use ferrule_filters::ipfw::testing::packets::traffic;
use ferrule_filters::ipfw::testing::rules::setup;
use ferrule_filters::ipfw::testing::{Faulty, differ};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Most rule sets that are tried until a fault shows.
const SETS: usize = 3000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Two oracles agree: what the comparison looks at depends on nothing but rules and packets. And no packet makes one panic.
    #[test]
    fn the_oracle_agrees_with_itself((setup, traffic) in (setup(24), traffic(24))) {
        let mut first = Oracle::new(Setup::default());
        let mut second = Oracle::new(Setup::default());
        prop_assert_eq!(differ(&mut first, &mut second, &setup, &traffic), Ok(()));
    }
}

/// Each planted fault is caught, by rules and packets that know nothing of it.
#[test]
fn every_planted_fault_is_caught() {
    assert!(Fault::ALL.len() >= 20);
    let mut missed = Fault::ALL.to_vec();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, b"ferrule: ipfw faults, first seed");
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let cases = (setup(24), traffic(24));
    for _ in 0..SETS {
        let (setup, traffic) = cases.new_tree(&mut runner).unwrap().current();
        missed.retain(|fault| {
            let (mut oracle, mut faulty) = (Oracle::new(Setup::default()), Faulty::new(*fault));
            differ(&mut oracle, &mut faulty, &setup, &traffic).is_ok()
        });
        if missed.is_empty() {
            return;
        }
    }
    panic!("not caught with {SETS} rule sets: {missed:?}");
}
