#![forbid(unsafe_code)]
//! What the rules make of each key, remembered.
//!
//! A *trace* lists the entries that packets of a key meet, from a given entry on: up to the first that surely decides, over `skipto`s whose
//! target is fixed. Traces are built from the bit vectors when a key is met first and then found by the key. A
//! trace that is one counter and a verdict has no steps: it is in its number. Everything is bounded; what grows past its bound is
//! forgotten as a whole and built again as it is met.

use super::dynamic::NameFilter;
use super::header::Atom;
use super::program::{Act, NO_ENTRY, Program};

/// Number of a trace: 0 is none; with [`PLAIN`] a counter and a verdict; else one more than the place in the list.
pub type TraceId = u32;
/// A trace that is one counter's place and a verdict.
pub const PLAIN: u32 = 1 << 31;
/// A plain trace's verdict is Deny.
pub const DENY: u32 = 1 << 30;
/// A plain trace's counter.
pub const SLOT: u32 = DENY - 1;

/// Most steps of a trace; what goes on behind them is another trace.
const STEPS_MAX: usize = 64;
/// Most keys that are an index instead of being searched for.
const DIRECT_MAX: u64 = 1 << 16;
/// Most keys whose places need no asking for ahead: 64 kB.
const NEAR_MAX: usize = 1 << 14;
/// Most traces and steps remembered.
const TRACES_MAX: usize = 1 << 16;
const STEPS_TOTAL: usize = 1 << 20;

/// A remembered trace.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    first: u32,
    len: u32,
    /// Entry at which another trace goes on; [`NO_ENTRY`] where it ends for good.
    pub next: u32,
    /// Every step surely matches and only counts, the last one decides.
    pub is_quiet: bool,
    /// The last step of a quiet trace drops.
    pub denies: bool,
    /// Its first step surely looks for a state of these groups.
    pub probe: Option<NameFilter>,
}

/// Four keys in a cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    keys: [u64; 4],
    starts: [u32; 4],
    traces: [TraceId; 4],
}

const EMPTY: Bucket = Bucket { keys: [0; 4], starts: [0; 4], traces: [0; 4] };

/// One worker's memory of keys and traces.
pub struct Memo {
    seed: u64,
    direct: Vec<TraceId>,
    buckets: Vec<Bucket>,
    traces: Vec<Trace>,
    steps: Vec<u32>,
    /// Of each step the place of its rule's counters.
    slots: Vec<u32>,
    /// How often everything was forgotten.
    epoch: u64,
    /// Open addressing over `traces`, to find equal ones.
    known: Vec<u32>,
    candidates: Vec<u64>,
    scratch: Vec<u64>,
    turn: usize,
}

#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}

impl Memo {
    /// An empty one for a program; `seed` is a secret, so that nobody outside can aim at a bucket.
    pub fn new(program: &Program, seed: u64) -> Memo {
        let keys = program.classifier.keys();
        let direct = if keys <= DIRECT_MAX { keys as usize } else { 0 };
        // Room for eight keys a rule, at least 1,024 and at most 131,072.
        let buckets = (program.entries.len() * 2).next_power_of_two().clamp(256, 1 << 15);
        let words = program.classifier.words();
        Memo {
            seed: seed | 1,
            direct: vec![0; direct],
            buckets: vec![EMPTY; buckets],
            traces: Vec::with_capacity(TRACES_MAX.min(program.entries.len() * 16 + 64)),
            steps: Vec::with_capacity(STEPS_TOTAL.min(program.entries.len() * 64 + STEPS_MAX * 64)),
            slots: Vec::with_capacity(STEPS_TOTAL.min(program.entries.len() * 64 + STEPS_MAX * 64)),
            epoch: 0,
            known: vec![0; (program.entries.len() * 16 + 64).min(TRACES_MAX).next_power_of_two() * 2],
            candidates: vec![0; words],
            scratch: vec![0; words],
            turn: 0,
        }
    }

    /// Forgets everything.
    fn clear(&mut self) {
        self.direct.fill(0);
        self.buckets.fill(EMPTY);
        self.traces.clear();
        self.steps.clear();
        self.slots.clear();
        self.epoch += 1;
        self.known.fill(0);
    }

    /// Whether keys are places.
    #[inline(always)]
    pub fn is_direct(&self) -> bool {
        !self.direct.is_empty()
    }

    /// Whether keys are places in a table that fits into the nearest caches.
    #[inline(always)]
    pub fn is_near(&self) -> bool {
        (1..=NEAR_MAX).contains(&self.direct.len())
    }

    #[inline(always)]
    fn bucket(&self, key: u64, start: u32) -> usize {
        let hash = mix(key ^ self.seed, self.seed.rotate_left(32) ^ u64::from(start) ^ 0x9e37_79b9_7f4a_7c15);
        hash as usize & (self.buckets.len() - 1)
    }

    /// Asks the processor for what [`Memo::find`] will look at.
    #[inline(always)]
    pub fn prefetch(&self, key: u64) {
        if self.is_direct() {
            if let Some(place) = self.direct.get(key as usize) {
                ferrule_dataplane::arena::prefetch(place);
            }
        } else if let Some(bucket) = self.buckets.get(self.bucket(key, 0)) {
            ferrule_dataplane::arena::prefetch(bucket);
        }
    }

    /// The trace of a key from the first entry on; 0 where it was not met yet.
    #[inline(always)]
    pub fn find(&self, key: u64) -> TraceId {
        if self.is_direct() { self.direct.get(key as usize).copied().unwrap_or(0) } else { self.find_from(key, 0) }
    }

    /// The trace of a key from an entry on; 0 where it was not met yet.
    #[inline(always)]
    pub fn find_from(&self, key: u64, start: u32) -> TraceId {
        let Some(bucket) = self.buckets.get(self.bucket(key, start)) else { return 0 };
        let mut found = 0;
        for way in 0..4 {
            let same = bucket.keys[way] == key && bucket.starts[way] == start;
            found |= if same { bucket.traces[way] } else { 0 };
        }
        found
    }

    /// The steps of a trace: numbers of entries.
    #[inline(always)]
    pub fn steps(&self, trace: &Trace) -> &[u32] {
        self.steps.get(trace.first as usize..(trace.first + trace.len) as usize).unwrap_or_default()
    }

    /// Places of the counters of a trace's steps.
    #[inline(always)]
    pub fn slots(&self, trace: &Trace) -> &[u32] {
        self.slots.get(trace.first as usize..(trace.first + trace.len) as usize).unwrap_or_default()
    }

    /// Changes when the numbers of traces lose their meaning.
    #[inline(always)]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The trace of this number, unless it is plain.
    #[inline(always)]
    pub fn trace(&self, id: TraceId) -> Option<Trace> {
        self.traces.get((id as usize).wrapping_sub(1)).copied()
    }

    /// Builds the trace of a key from an entry on and remembers it. `holds` says what header tests say of a packet of this key.
    #[inline(never)]
    pub fn build(&mut self, program: &Program, key: u64, start: u32, holds: impl Fn(&Atom) -> bool) -> TraceId {
        if self.traces.len() == self.traces.capacity() || self.steps.len() + STEPS_MAX > self.steps.capacity() {
            self.clear();
        }
        let id = self.make(program, key, start, holds);
        if start == 0 && self.is_direct() {
            if let Some(place) = self.direct.get_mut(key as usize) {
                *place = id;
            }
            return id;
        }
        let at = self.bucket(key, start);
        self.turn = self.turn.wrapping_add(1);
        let turn = self.turn;
        if let Some(bucket) = self.buckets.get_mut(at) {
            let way = bucket.traces.iter().position(|trace| *trace == 0).unwrap_or(turn & 3);
            (bucket.keys[way], bucket.starts[way], bucket.traces[way]) = (key, start, id);
        }
        id
    }

    fn make(&mut self, program: &Program, key: u64, start: u32, holds: impl Fn(&Atom) -> bool) -> TraceId {
        program.classifier.candidates(key, &mut self.candidates, &mut self.scratch);
        let first = self.steps.len();
        let (mut at, mut next, mut is_quiet) = (start, NO_ENTRY, true);
        let mut probed = None;
        while let Some(number) = next_bit(&self.candidates, at) {
            let Some(entry) = program.entries.get(number as usize) else { break };
            at = number + 1;
            let meets = |block: &Vec<(bool, Atom)>| block.iter().any(|(not, atom)| holds(atom) != *not);
            if !entry.mixed.iter().all(meets) {
                continue;
            }
            // The look-up that the entry before has surely made gives the same again.
            if let Act::Probe(name) = &entry.act {
                if probed == Some(name) {
                    continue;
                }
                probed = entry.is_certain().then_some(name);
            } else if !matches!(entry.act, Act::Allow | Act::Deny | Act::Count | Act::SkipTo(_)) {
                probed = None;
            }
            if self.steps.len() - first == STEPS_MAX {
                next = number;
                break;
            }
            self.steps.push(number);
            self.slots.push(program.rules.get(entry.rule as usize).map_or(u32::MAX, |rule| rule.slot));
            is_quiet &= entry.is_certain() && entry.is_quiet;
            match entry.act {
                Act::SkipTo(target) if entry.is_certain() && entry.state.is_none() => at = target,
                _ if entry.is_certain() && entry.is_terminal() => break,
                _ => {}
            }
        }
        is_quiet &= next == NO_ENTRY;
        if let (true, [only]) = (is_quiet, &self.steps[first..])
            && let Some(entry) = program.entries.get(*only as usize)
            && let Some(slot) = program.rules.get(entry.rule as usize).map(|rule| rule.slot).filter(|s| *s < SLOT)
        {
            let id = match entry.act {
                Act::Allow => PLAIN | slot,
                Act::Deny => PLAIN | DENY | slot,
                _ => 0,
            };
            if id != 0 {
                self.steps.truncate(first);
                self.slots.truncate(first);
                return id;
            }
        }
        let last = self.steps.last().and_then(|step| program.entries.get(*step as usize));
        let denies = last.is_some_and(|entry| entry.act == Act::Deny);
        is_quiet &= last.is_some_and(|entry| matches!(entry.act, Act::Allow | Act::Deny));
        let opening = self.steps.get(first).and_then(|step| program.entries.get(*step as usize));
        let probe = match opening.filter(|entry| entry.is_certain()).map(|entry| &entry.act) {
            Some(Act::Probe(name) | Act::CheckState(name)) => Some(*name),
            _ => None,
        };
        self.intern(first, Trace { first: first as u32, len: 0, next, is_quiet, denies, probe })
    }

    /// The number of the trace whose steps are those from `first` on; they go again where it was known.
    fn intern(&mut self, first: usize, trace: Trace) -> TraceId {
        let new = self.steps.get(first..).unwrap_or_default();
        let hash = new.iter().fold(u64::from(trace.next) ^ 1, |hash, step| mix(hash ^ u64::from(*step), self.seed));
        let mask = self.known.len() - 1;
        let mut at = hash as usize & mask;
        while let Some(id) = self.known.get(at).copied().filter(|id| *id != 0) {
            let known = self.trace(id);
            if known.is_some_and(|known| known.next == trace.next && self.steps(&known) == new) {
                self.steps.truncate(first);
                self.slots.truncate(first);
                return id;
            }
            at = (at + 1) & mask;
        }
        let len = (self.steps.len() - first) as u32;
        self.traces.push(Trace { len, ..trace });
        let id = self.traces.len() as TraceId;
        if let Some(place) = self.known.get_mut(at) {
            *place = id;
        }
        id
    }
}

/// The lowest bit set at `from` or above.
fn next_bit(bits: &[u64], from: u32) -> Option<u32> {
    let mut at = (from / 64) as usize;
    let mut word = bits.get(at)? & (!0u64).checked_shl(from % 64).unwrap_or(0);
    while word == 0 {
        at += 1;
        word = *bits.get(at)?;
    }
    Some(at as u32 * 64 + word.trailing_zeros())
}
