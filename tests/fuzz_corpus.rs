//! Replays the fuzz corpus and seeded mutations of it: bounded, the same on every run, and on stable Rust.

#![forbid(unsafe_code)]

use std::path::Path;

use ferrule_fuzz::{TARGETS, Target, seeds};

/// Mutations of each input: enough to matter, few enough for every CI run. FERRULE_FUZZ_MUTATIONS asks for more.
const MUTATIONS: usize = 60;

/// A generator whose numbers are the same everywhere (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Changes bytes, cuts, repeats, or joins with another input.
fn mutate(random: &mut Random, input: &[u8], other: &[u8]) -> Vec<u8> {
    const EDGES: [u8; 8] = [0, 1, 0x3f, 0x40, 0x7f, 0x80, 0xfe, 0xff];
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let (at, n) = (random.below(bytes.len()), random.next());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), n as u8),
            2 => bytes.extend_from_slice(&other[random.below(other.len() + 1).min(other.len())..]),
            3 => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
            4 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << (n % 8);
                }
            }
            5 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = EDGES[n as usize % EDGES.len()];
                }
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = n as u8;
                }
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    // A header checksum that is right lets the frame further in.
    mend(&mut bytes);
    bytes
}

/// Puts the IPv4 header checksum right where the input is a bare frame, or one behind the bytes of `reactions` or `path`.
fn mend(bytes: &mut [u8]) {
    for start in [0, 1, 4] {
        let Some(frame) = bytes.get_mut(start..).filter(|f| f.len() >= 34 && f[12..15] == [8, 0, 0x45]) else {
            continue;
        };
        frame[24..26].fill(0);
        let check = ferrule_dataplane::packet::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&check.to_ne_bytes());
    }
}

fn files(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// Feeds one input; a panic names it, so that it can be kept as a file of the corpus.
fn feed(name: &str, run: Target, from: &str, input: &[u8]) {
    let result = std::panic::catch_unwind(|| run(input));
    assert!(result.is_ok(), "target {name}, from {from}, input {}", hex(input));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn replay(name: &str) {
    let (_, run) = TARGETS.into_iter().find(|(n, _)| *n == name).unwrap();
    let mut inputs = files(name);
    assert!(!inputs.is_empty(), "no corpus for {name}");
    for (seed, bytes) in seeds::of(name) {
        let file = inputs.iter().find(|(n, _)| *n == seed);
        match file {
            Some((_, written)) => assert_eq!(*written, bytes, "{name}/{seed}: cargo run -p ferrule-fuzz --bin seeds"),
            None => {
                assert!(
                    !seeds::is_file(name, &seed),
                    "{name}/{seed} is missing: cargo run -p ferrule-fuzz --bin seeds"
                );
                inputs.push((seed, bytes));
            }
        }
    }
    let mutations = std::env::var("FERRULE_FUZZ_MUTATIONS").map_or(MUTATIONS, |n| n.parse().expect("a number"));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for i in 0..inputs.len() {
        let (from, input) = &inputs[i];
        feed(name, run, from, input);
        for _ in 0..mutations {
            let other = &inputs[random.below(inputs.len())].1;
            feed(name, run, from, &mutate(&mut random, input, other));
        }
    }
}

#[test]
fn parse() {
    replay("parse");
}

#[test]
fn reactions() {
    replay("reactions");
}

#[test]
fn path() {
    replay("path");
}

#[test]
fn gateway() {
    replay("gateway");
}

#[test]
fn ipfw_rules() {
    replay("ipfw_rules");
}
