//! Fuzz target `ipfw_rules`: see `ferrule_fuzz::ipfw_rules`. Without the feature `fuzzing` it replays the files given as arguments.

#![cfg_attr(feature = "fuzzing", no_main)]

#[cfg(feature = "fuzzing")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ferrule_fuzz::ipfw_rules(data));

#[cfg(not(feature = "fuzzing"))]
fn main() -> std::process::ExitCode {
    ferrule_fuzz::replay(ferrule_fuzz::ipfw_rules)
}
