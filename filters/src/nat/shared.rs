#![forbid(unsafe_code)]
//! What the workers of one instance share: whose flow a tuple is, and whose turn it is in load sharing.
//!
//! Both directions of a translated flow have different tuples and so different flow hashes. Ports are chosen so that the reply
//! hashes to the worker that has the state; where nobody can choose (redirections, `same_ports`, protocols without ports), and for
//! fragments, which hash on other things, this table names the owner and the translation. With one worker there is no table.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::packet::{Family, Flags, Packet};

use super::directory::{Directory, Face};
use super::flow;

/// Turn counters; redirections past so many share them, which only makes their order less even.
const TURNS: usize = 64;

/// Whose turn it is, for each redirection: exact across workers.
pub(super) struct Turns([AtomicU32; TURNS]);

impl Turns {
    /// The next of `count` servers.
    pub fn next(&self, redirect: usize, count: usize) -> usize {
        if count < 2 {
            return 0;
        }
        self.0[redirect % TURNS].fetch_add(1, Relaxed) as usize % count
    }
}

/// Shared by the [`Nat`](super::Nat)s of one instance number, one for each worker.
pub struct SharedFlows {
    workers: usize,
    seed: HashSeed,
    pub(super) directory: Option<Directory>,
    pub(super) turns: Turns,
}

impl SharedFlows {
    /// For so many workers with so many states each; `seed` is that of the flow hash. With one worker it takes no memory to speak of,
    /// else 64 to 128 bytes a state.
    pub fn new(workers: usize, states: usize, seed: HashSeed) -> Arc<SharedFlows> {
        let directory = (workers > 1).then(|| Directory::new(2 * states * workers, seed));
        let turns = Turns(std::array::from_fn(|_| AtomicU32::new(0)));
        Arc::new(SharedFlows { workers: workers.max(1), seed, directory, turns })
    }

    /// Workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Secret of the flow hash.
    pub fn seed(&self) -> HashSeed {
        self.seed
    }

    /// The worker that has the state of a packet as it was received, from inside or outside, where there is one; the packet's hash names
    /// the owner of all others. Reads a few cache lines of shared memory; with one worker it reads nothing.
    pub fn owner_of(&self, packet: &Packet) -> Option<usize> {
        let directory = self.directory.as_ref()?;
        if packet.family != Family::V4 || packet.flags.has(Flags::FRAGMENT) {
            return None;
        }
        // An error belongs to the flow that it quotes, whose source is the one that it goes back to.
        let key = match flow::quoted(packet) {
            Some(quoted) => quoted.key.reversed(),
            None => flow::key(packet)?,
        };
        let entry = directory.get(&key, Face::Inside).or_else(|| directory.get(&key.reversed(), Face::Wire))?;
        Some(usize::from(entry.owner))
    }

    /// Bytes of memory it has taken.
    pub fn memory(&self) -> usize {
        self.directory.as_ref().map_or(0, Directory::memory)
    }

    /// Entries in use: two for each state, one where both tuples are the same.
    pub fn entries(&self) -> usize {
        self.directory.as_ref().map_or(0, Directory::len)
    }
}
