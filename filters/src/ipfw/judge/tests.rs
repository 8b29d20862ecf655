use proptest::prelude::*;

use super::Compiled;
use crate::ipfw::fault::Planted;
use crate::ipfw::oracle::{Oracle, Setup};
use crate::ipfw::testing::{differ, packets, rules};

fn cases() -> u32 {
    std::env::var("FERRULE_IPFW_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_oracle_does(setup in rules::setup(10), traffic in packets::traffic(12)) {
        let mut oracle = Oracle::new(Setup::default());
        let mut engine = Compiled::new(Planted::NONE);
        if let Err(difference) = differ(&mut oracle, &mut engine, &setup, &traffic) {
            prop_assert!(false, "{difference}");
        }
    }
}
