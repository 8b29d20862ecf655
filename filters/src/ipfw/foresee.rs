#![forbid(unsafe_code)]
//! What becomes of plain packets, told from their bytes before anything else is done with them (see
//! [`ferrule_dataplane::stage::Stage::foresee`]).
//!
//! Most packets of most rule sets pass both hooks with nothing done but counting, and perhaps a state that is refreshed. For these the
//! key is computed once, from the frame, and both hooks are decided by it; they are then forwarded as on a gateway without
//! filters and booked afterwards. Whatever else there is to do for a packet, it is judged in the ordinary way, in its place in the order.

use std::ops::Range;

use ferrule_dataplane::batch::{BATCH_MAX, Batch};
use ferrule_dataplane::forward::fast::FastPath;
use ferrule_dataplane::packet::plain::{self, Window};
use ferrule_dataplane::packet::{L3, PortId, hash};
use ferrule_dataplane::stage::{Context, Foresight, Shared};

use super::dynamic::{Candidate, Direction, FlowKey, NameFilter, PacketFacts, RuleRef, StateIndex, States};
use super::header::Field;
use super::memo::{DENY, Memo, PLAIN, TraceId};
use super::program::Program;
use super::stage::{Ipfw, Pending};

/// How far ahead headers and routes are asked for.
const AHEAD: usize = 8;
/// Of a batch at least all but one in so many packets must pass.
const OTHERS: usize = 8;
/// Batches that are not looked at after one that was not worth it.
const PAUSE: u32 = 7;

/// The state that a packet meets, in one word: number, way, in how many of the two passes it meets it, whether it is TCP.
#[derive(Clone, Copy)]
struct Meeting(u64);

impl Meeting {
    const NONE: Meeting = Meeting(0);
    const REVERSE: u64 = 1 << 32;
    const TCP: u64 = 1 << 33;

    #[inline(always)]
    fn new(index: StateIndex, direction: Direction, times: u64, tcp: bool) -> Meeting {
        let reverse = if direction == Direction::Reverse { Meeting::REVERSE } else { 0 };
        Meeting(u64::from(index.0) | reverse | if tcp { Meeting::TCP } else { 0 } | times << 34)
    }

    #[inline(always)]
    fn times(self) -> u32 {
        (self.0 >> 34) as u32
    }
}

/// What two keys make of a packet.
#[derive(Clone, Copy)]
struct Resolved {
    traces: [TraceId; 2],
    /// In which passes a state must be found.
    asks: [bool; 2],
    /// Of which groups.
    name: Option<NameFilter>,
    passes: bool,
}

impl Resolved {
    const NOTHING: Resolved = Resolved { traces: [0; 2], asks: [false; 2], name: None, passes: false };
}

#[inline(never)]
fn resolve(memo: &Memo, keys: [u64; 2]) -> Resolved {
    let traces = [memo.find(keys[0]), memo.find(keys[1])];
    let outcomes = traces.map(|id| outcome(memo, id));
    let name = match outcomes {
        [Outcome::Passes, Outcome::Passes] => None,
        [Outcome::Asks(first), Outcome::Asks(second)] if first == second => Some(first),
        [Outcome::Asks(name), Outcome::Passes] | [Outcome::Passes, Outcome::Asks(name)] => Some(name),
        _ => return Resolved::NOTHING,
    };
    Resolved { traces, asks: outcomes.map(|outcome| outcome != Outcome::Passes), name, passes: true }
}

/// What was foreseen of a batch, by place.
pub(super) struct Foreseen {
    /// Keys in the In pass and in the Out pass.
    keys: Box<[[u64; 2]; BATCH_MAX]>,
    /// What the packet books in each.
    traces: Box<[[TraceId; 2]; BATCH_MAX]>,
    lengths: Box<[u32; BATCH_MAX]>,
    hashes: Box<[u32; BATCH_MAX]>,
    candidates: Box<[Candidate; BATCH_MAX]>,
    meetings: Box<[Meeting; BATCH_MAX]>,
    /// Of TCP segments that meet a state: acknowledgement number and flags.
    segments: Box<[(u32, u32); BATCH_MAX]>,
    /// Whether it may still be asked for: no other program is taken up then.
    pub(super) is_open: bool,
    /// Of the numbers of traces and of states.
    epoch: (u64, u64),
    pause: u32,
}

impl Default for Foreseen {
    fn default() -> Self {
        Foreseen {
            keys: Box::new([[0; 2]; BATCH_MAX]),
            traces: Box::new([[0; 2]; BATCH_MAX]),
            lengths: Box::new([0; BATCH_MAX]),
            hashes: Box::new([0; BATCH_MAX]),
            candidates: Box::new([Candidate::NONE; BATCH_MAX]),
            meetings: Box::new([Meeting::NONE; BATCH_MAX]),
            segments: Box::new([(0, 0); BATCH_MAX]),
            is_open: false,
            epoch: (0, 0),
            pause: 0,
        }
    }
}

/// What a trace makes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It passes, and the trace is booked.
    Passes,
    /// It does where a state of these groups is found that lets it pass.
    Asks(NameFilter),
    /// There is more to it, or it was not met yet.
    Other,
}

#[inline(always)]
fn outcome(memo: &Memo, id: TraceId) -> Outcome {
    if id & (PLAIN | DENY) == PLAIN {
        return Outcome::Passes;
    }
    if id & PLAIN != 0 {
        return Outcome::Other;
    }
    match memo.trace(id) {
        Some(trace) if trace.is_quiet && !trace.denies => Outcome::Passes,
        Some(trace) if !trace.is_quiet => trace.probe.map_or(Outcome::Other, Outcome::Asks),
        _ => Outcome::Other,
    }
}

/// Whether the state of this rule lets a packet pass and does nothing else.
#[inline(always)]
fn just_allows(program: &Program, made_by: RuleRef) -> bool {
    program.rule_of(made_by).and_then(|rule| program.rules.get(rule as usize)).is_some_and(|rule| rule.just_allows)
}

#[inline(always)]
fn is_v6(h: &Window) -> bool {
    plain::bytes::<2>(h, 12) == [0x86, 0xdd]
}

#[inline(always)]
fn be16(h: &Window, at: usize) -> u16 {
    u16::from_be_bytes(plain::bytes(h, at))
}

/// Flow of a plain IPv6 packet. Its addresses are global, so that it has no zone.
#[inline(always)]
fn flow_v6(h: &Window) -> FlowKey {
    let address = |at| u128::from_be_bytes(plain::bytes(h, at));
    FlowKey::v6(address(22), address(38), h[20], be16(h, 54), be16(h, 56))
}

#[inline(never)]
fn look_v6(
    states: &States,
    candidate: Candidate,
    h: &Window,
    name: NameFilter,
    hash: u32,
) -> Option<(StateIndex, Direction, RuleRef)> {
    states.look(candidate, &flow_v6(h), name, hash)
}

/// How many of the places pass.
type Passing = usize;

impl Ipfw {
    pub(super) fn look_ahead(
        &mut self,
        batch: &mut Batch,
        ingress: PortId,
        foresight: &mut Foresight,
        context: &mut Context<'_>,
    ) -> bool {
        self.foreseen.is_open = false;
        self.follow(context.now);
        if self.foreseen.pause > 0 {
            self.foreseen.pause -= 1;
            return false;
        }
        self.foreseen.is_open = true;
        self.foreseen.epoch = (self.memo.epoch(), self.holdings.orphans);
        let shared = context.shared;
        let classifier = &self.program.classifier;
        let passing = if self.memo.is_near() && !self.has_states && !classifier.uses_interfaces() {
            if classifier.uses_only(Field::Source) {
                self.decide_by(batch, foresight, |program, h| {
                    program.classifier.source_key(u32::from_be_bytes(plain::bytes(h, 26)))
                })
            } else if classifier.uses_only(Field::Destination) {
                self.decide_by(batch, foresight, |program, h| {
                    program.classifier.destination_key(u32::from_be_bytes(plain::bytes(h, 30)))
                })
            } else {
                self.decide_by(batch, foresight, |program, h| program.classifier.plain_key(h))
            }
        } else {
            let has_keys = classifier.keys() > 1;
            if has_keys {
                self.gather(batch, ingress, foresight, shared);
            }
            match (self.has_states, has_keys) {
                (false, _) => self.decide_keys(batch, foresight),
                (true, false) => {
                    foresight.is_routed = false;
                    self.gather_hashes(batch, shared);
                    self.decide_with_states::<false>(batch, foresight)
                }
                (true, true) => {
                    self.gather_hashes(batch, shared);
                    self.decide_with_states::<true>(batch, foresight)
                }
            }
        };
        let worth = (batch.len() - passing) * OTHERS <= batch.len();
        if !worth {
            self.foreseen.pause = PAUSE;
            self.foreseen.is_open = false;
        }
        worth
    }

    /// Few keys, one for both passes: all in one go. `v4` gives the key of an IPv4 packet.
    #[inline(always)]
    fn decide_by(
        &mut self,
        batch: &Batch,
        foresight: &mut Foresight,
        v4: impl Fn(&Program, &Window) -> u64,
    ) -> Passing {
        foresight.is_routed = false;
        let packets = batch.packets();
        let (program, memo, foreseen) = (&*self.program, &self.memo, &mut self.foreseen);
        packets.iter().take(AHEAD).for_each(|packet| packet.frame.prefetch());
        let mut passing = 0;
        let places = foreseen.traces.iter_mut().zip(foreseen.lengths.iter_mut()).zip(foresight.passes.iter_mut());
        for (at, (packet, ((traces, length), passes))) in packets.iter().zip(places).enumerate() {
            if let Some(later) = packets.get(at + AHEAD) {
                later.frame.prefetch();
            }
            let h = packet.frame.header();
            let id = memo.find(if is_v6(h) { program.classifier.plain_key(h) } else { v4(program, h) });
            *traces = [id; 2];
            *length = packet.frame.len() as u32;
            *passes = outcome(memo, id) == Outcome::Passes;
            passing += usize::from(*passes);
        }
        passing
    }

    /// Keys and routes of the batch, as far as they are needed, and what they lead to asked for.
    #[inline(always)]
    fn gather(&mut self, batch: &mut Batch, ingress: PortId, foresight: &mut Foresight, shared: &Shared) {
        let (program, memo, foreseen) = (&*self.program, &self.memo, &mut self.foreseen);
        let classifier = &program.classifier;
        let routed = classifier.uses_interfaces();
        foresight.is_routed = routed;
        let path = FastPath::new(&shared.fib);
        let packets = batch.packets_mut();
        packets.iter().take(AHEAD).for_each(|packet| packet.frame.prefetch());
        let received = classifier.ports_key(ingress, PortId::NONE);
        let (mut last, mut sent) = (PortId::NONE, received);
        let is_near = memo.is_near();
        for at in 0..packets.len().min(BATCH_MAX) {
            if let Some(later) = packets.get(at + AHEAD) {
                later.frame.prefetch();
            }
            if routed && let Some(later) = packets.get(at + AHEAD / 2) {
                path.prefetch_unparsed(later);
            }
            let Some(packet) = packets.get_mut(at) else { break };
            foreseen.lengths[at] = packet.frame.len() as u32;
            if routed {
                let egress = path.look_up(packet);
                if egress != last {
                    (last, sent) = (egress, classifier.ports_key(ingress, egress));
                }
            }
            let h = packet.frame.header();
            let own = classifier.plain_key(h);
            let keys = [own + received, own + sent];
            foreseen.keys[at] = keys;
            if !is_near {
                memo.prefetch(keys[0]);
                if routed {
                    memo.prefetch(keys[1]);
                }
            }
        }
    }

    /// Hashes of the batch's flows; asks for their buckets.
    #[inline(always)]
    fn gather_hashes(&mut self, batch: &Batch, shared: &Shared) {
        let (states, foreseen) = (&self.holdings.states, &mut self.foreseen);
        let packets = batch.packets();
        packets.iter().take(AHEAD).for_each(|packet| packet.frame.prefetch());
        let places = foreseen.hashes.iter_mut().zip(foreseen.lengths.iter_mut());
        for (at, (packet, (hash, length))) in packets.iter().zip(places).enumerate() {
            if let Some(later) = packets.get(at + AHEAD) {
                later.frame.prefetch();
            }
            let h = packet.frame.header();
            *length = packet.frame.len() as u32;
            *hash = if is_v6(h) { hash_v6(h, shared) } else { hash_v4(h, shared) };
            states.prefetch_bucket(*hash);
        }
    }

    #[inline(always)]
    fn decide_keys(&mut self, batch: &Batch, foresight: &mut Foresight) -> Passing {
        let (memo, foreseen) = (&self.memo, &mut self.foreseen);
        let mut passing = 0;
        let places = foreseen.keys.iter().zip(foreseen.traces.iter_mut()).zip(foresight.passes.iter_mut());
        for ((keys, traces), passes) in places.take(batch.len()) {
            let first = memo.find(keys[0]);
            let second = if keys[0] == keys[1] { first } else { memo.find(keys[1]) };
            *traces = [first, second];
            *passes = outcome(memo, first) == Outcome::Passes && outcome(memo, second) == Outcome::Passes;
            passing += usize::from(*passes);
        }
        passing
    }

    #[inline(always)]
    fn decide_with_states<const HAS_KEYS: bool>(&mut self, batch: &Batch, foresight: &mut Foresight) -> Passing {
        let (program, memo, states, foreseen) = (&*self.program, &self.memo, &self.holdings.states, &mut self.foreseen);
        for (hash, candidate) in foreseen.hashes.iter().zip(foreseen.candidates.iter_mut()).take(batch.len()) {
            *candidate = states.prefetch_state(*hash);
        }
        let mut passing = 0;
        // Nearly always the keys and the rule of the packet before.
        let (mut last, mut resolved) = ([0; 2], resolve(memo, [0; 2]));
        let mut known = RuleRef { index: u32::MAX, generation: 0 };
        let mut traces = [0; 2];
        for (at, (packet, passes)) in batch.packets().iter().zip(foresight.passes.iter_mut()).enumerate() {
            let at = at & (BATCH_MAX - 1);
            *passes = false;
            if HAS_KEYS && foreseen.keys[at] != last {
                last = foreseen.keys[at];
                resolved = resolve(memo, last);
                known = RuleRef { index: u32::MAX, generation: 0 };
            }
            if !resolved.passes {
                continue;
            }
            let Some(name) = resolved.name else {
                foreseen.traces[at] = resolved.traces;
                foreseen.meetings[at] = Meeting::NONE;
                *passes = true;
                passing += 1;
                continue;
            };
            let h = packet.frame.header();
            let (candidate, hash) = (foreseen.candidates[at], foreseen.hashes[at]);
            // Twice, so that each look-up knows its family.
            let (found, protocol, l4) = if is_v6(h) {
                (look_v6(states, candidate, h, name, hash), h[20], 54)
            } else {
                let addresses = u64::from_be_bytes(plain::bytes(h, 26));
                let ports = u32::from_be_bytes(plain::bytes(h, 34));
                let protocol = h[23];
                (states.look(candidate, &FlowKey::V4 { addresses, ports, protocol }, name, hash), protocol, 34)
            };
            let Some((index, direction, rule)) = found else { continue };
            if rule != known {
                if !just_allows(program, rule) {
                    continue;
                }
                known = rule;
                let booked = PLAIN | rule.index;
                let trace = |pass: usize| if resolved.asks[pass] { booked } else { resolved.traces[pass] };
                traces = [trace(0), trace(1)];
            }
            foreseen.traces[at] = traces;
            let times = u64::from(resolved.asks[0]) + u64::from(resolved.asks[1]);
            foreseen.meetings[at] = Meeting::new(index, direction, times, protocol == 6);
            if protocol == 6 {
                foreseen.segments[at] = (u32::from_be_bytes(plain::bytes(h, l4 + 8)), u32::from(h[l4 + 13]));
            }
            *passes = true;
            passing += 1;
        }
        passing
    }

    /// Books what went through.
    pub(super) fn book_foreseen(&mut self, places: Range<usize>, foresight: &Foresight) {
        let mut run = [0; 2];
        let (mut packets, mut bytes) = (0, 0);
        for at in places {
            if !foresight.passes.get(at).is_some_and(|passes| *passes) {
                continue;
            }
            let at = at & (BATCH_MAX - 1);
            let traces = self.foreseen.traces[at];
            if traces != run {
                self.book_both(run, packets, bytes);
                (run, packets, bytes) = (traces, 0, 0);
            }
            packets += 1;
            bytes += u64::from(self.foreseen.lengths[at]) - L3 as u64;
            if self.has_states {
                self.meet(at);
            }
        }
        self.book_both(run, packets, bytes);
    }

    /// What a packet does to its state.
    #[inline(always)]
    fn meet(&mut self, at: usize) {
        let meeting = self.foreseen.meetings[at];
        if meeting.times() == 0 {
            return;
        }
        let length = self.foreseen.lengths[at] - L3 as u32;
        let direction = if meeting.0 & Meeting::REVERSE != 0 { Direction::Reverse } else { Direction::Forward };
        let index = StateIndex(meeting.0 as u32);
        let states = &mut self.holdings.states;
        if meeting.0 & Meeting::TCP != 0 {
            let (acknowledgement, flags) = self.foreseen.segments[at];
            let facts = PacketFacts { length, tcp_flags: flags as u8, acknowledgement: Some(acknowledgement) };
            // What a segment does to a connection depends on the one before, be it the same.
            for _ in 0..meeting.times() {
                let _ = states.touch(index, direction, &facts);
            }
        } else {
            states.touch_times(index, length, meeting.times());
        }
    }

    #[inline(always)]
    fn book_both(&self, [first, second]: [TraceId; 2], packets: u64, bytes: u64) {
        if first == second {
            self.book(&Pending { id: first, packets: 2 * packets, bytes: 2 * bytes });
        } else {
            self.book(&Pending { id: first, packets, bytes });
            self.book(&Pending { id: second, packets, bytes });
        }
    }

    /// Whether traces and states still have the numbers that they were foreseen with.
    pub(super) fn foreseen_holds(&self) -> bool {
        self.foreseen.epoch == (self.memo.epoch(), self.holdings.orphans)
    }
}

#[inline(never)]
fn hash_v6(h: &Window, shared: &Shared) -> u32 {
    flow_v6(h).hash(shared.seed)
}

#[inline(always)]
fn hash_v4(h: &Window, shared: &Shared) -> u32 {
    let address = |at| u32::from_be_bytes(plain::bytes(h, at));
    hash::v4(shared.seed, address(26), address(30), h[23], be16(h, 34), be16(h, 36))
}
