#![forbid(unsafe_code)]
//! The properties: a judge agrees with the oracle, and one with a planted fault does not. Both from a fixed seed, so that a failure
//! comes back.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::ipfw::fault::Fault;
use crate::ipfw::oracle::{Oracle, Setup};

use super::differ::differ;
use super::judge::Judge;
use super::packets::traffic;
use super::rules::setup;

/// Most rules of a set and most packets of its traffic.
const SIZE: usize = 24;

fn runner(seed: u64, cases: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Compares judges that `make` makes with the oracle over `cases` rule sets, each with packets of its own.
///
/// # Errors
/// The smallest rule set and traffic found that tell them apart, and where they differ.
pub fn agrees(make: impl Fn() -> Box<dyn Judge>, seed: u64, cases: u32) -> Result<(), String> {
    let property = |(setup, traffic)| {
        let mut oracle = Oracle::new(Setup::default());
        differ(&mut oracle, &mut *make(), &setup, &traffic)
            .map_err(|difference| TestCaseError::fail(difference.to_string()))
    };
    runner(seed, cases).run(&(setup(SIZE), traffic(SIZE)), property).map_err(|error| format!("{error}"))
}

/// The faults that up to `sets` rule sets with their packets do not show. `make` makes a judge in whose compiler the fault is planted.
pub fn missed(make: impl Fn(Fault) -> Box<dyn Judge>, seed: u64, sets: usize) -> Vec<Fault> {
    let mut missed = Fault::ALL.to_vec();
    let mut runner = runner(seed, 1);
    let cases = (setup(SIZE), traffic(SIZE));
    for _ in 0..sets {
        if missed.is_empty() {
            break;
        }
        let (setup, traffic) = cases.new_tree(&mut runner).expect("no strategy here rejects what it drew").current();
        missed.retain(|fault| {
            let mut oracle = Oracle::new(Setup::default());
            differ(&mut oracle, &mut *make(*fault), &setup, &traffic).is_ok()
        });
    }
    missed
}
