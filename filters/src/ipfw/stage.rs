#![forbid(unsafe_code)]
//! The ipfw stage of one worker.
//!
//! A batch is judged in two passes of the processor over it: the first makes the key of each packet and asks for the memory that holds
//! what the rules make of it, the second decides. Nearly all packets end there, with a counter and a verdict; the rest are walked along
//! the rules ([`super::execute`]). At the Out hook the keys of the In hook are used again where packet and batch are still the same.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use ferrule_dataplane::batch::{BATCH_MAX, Batch};
use ferrule_dataplane::packet::hash::{self, HashSeed};
use ferrule_dataplane::packet::{Family, Flags, Packet, PortId};
use ferrule_dataplane::stage::{Context, Foresight, Hook, Stage};
use ferrule_dataplane::verdict::{DropReason, Verdict};

use super::around::{Holdings, facts_of};
use super::counters::CounterRow;
use super::dynamic::{Direction, Fate, FlowKey, NameFilter, RuleRef, StateIndex, StateView};
use super::execute::bytes_of;
use super::foresee::Foreseen;
use super::forwarding;
use super::keepalive::Keepalives;
use super::live::Live;
use super::memo::{DENY, Memo, PLAIN, SLOT, TraceId};
use super::program::{Act, Program};
use super::reassemble::Reassembler;

/// The key of what is not judged.
const NOT_JUDGED: u64 = u64::MAX;

/// States looked at for their end in one turn.
const SWEEP: usize = 64;

/// What the In hook found out about a packet.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// Its buffer and ports.
    identity: u64,
    /// Its IPv4 addresses.
    addresses: u64,
    /// The part of its key that is its own.
    key: u64,
}

/// A packet's state, the way it goes in it and the groups that were asked.
type Found = Option<(StateIndex, Direction, NameFilter)>;

/// Counts that belong together, not yet booked.
#[derive(Clone, Copy, Default)]
pub(super) struct Pending {
    pub(super) id: TraceId,
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

/// One worker's ipfw.
pub struct Ipfw {
    live: Arc<Live>,
    pub(super) generation: u64,
    pub(super) program: Arc<Program>,
    pub(super) counters: CounterRow,
    worker: usize,
    pub(super) memo: Memo,
    /// States, tables, notes and what else rules reach.
    pub(super) holdings: Holdings,
    keys: Box<[u64; BATCH_MAX]>,
    fresh: bool,
    seen: Box<[Seen; BATCH_MAX]>,
    found: Box<[Found; BATCH_MAX]>,
    /// What was foreseen of the present batch.
    pub(super) foreseen: Foreseen,
    /// Whether any rule looks for states.
    pub(super) has_states: bool,
    /// What the holdings counted at the last In hook.
    orphans: u64,
    keepalives: Keepalives,
    /// Where any rule says `reass`, or has said so.
    pub(super) reassembler: Option<Box<Reassembler>>,
    /// How far states of rules that are gone were looked for; None when all were.
    purging: Option<u32>,
    seed: u64,
    now: u64,
    pub(super) second: u64,
}

impl Ipfw {
    /// The stage of a worker. `seed` is a secret of the run.
    pub fn new(live: &Arc<Live>, worker: usize, seed: u64, holdings: Holdings) -> Ipfw {
        let loaded = live.loaded();
        let program = loaded.program.clone();
        Ipfw {
            generation: live.generation(),
            live: live.clone(),
            counters: loaded.counters.get(worker).cloned().unwrap_or_default(),
            worker,
            memo: Memo::new(&program, seed),
            has_states: program.has_states(),
            orphans: 0,
            purging: None,
            reassembler: reassembler_for(&program),
            program,
            holdings,
            keys: Box::new([0; BATCH_MAX]),
            fresh: false,
            seen: Box::new([Seen::default(); BATCH_MAX]),
            found: Box::new([None; BATCH_MAX]),
            foreseen: Foreseen::default(),
            keepalives: Keepalives::default(),
            seed,
            now: u64::MAX,
            second: 0,
        }
    }

    /// Takes another program up, where there is one.
    #[inline(always)]
    pub(super) fn follow(&mut self, now: u64) {
        if now != self.now {
            self.now = now;
            self.second = now / 1_000_000_000;
            self.holdings.turn(now);
        }
        if self.live.generation() != self.generation && !self.foreseen.is_open {
            self.take_up();
        }
    }

    #[inline(never)]
    fn take_up(&mut self) {
        self.generation = self.live.generation();
        let loaded = self.live.loaded();
        self.program = loaded.program.clone();
        self.counters = loaded.counters.get(self.worker).cloned().unwrap_or_default();
        self.memo = Memo::new(&self.program, self.seed);
        self.has_states = self.program.has_states();
        self.seen.fill(Seen::default());
        self.found.fill(None);
        if self.reassembler.is_none() {
            self.reassembler = reassembler_for(&self.program);
        }
        // States of rules that are gone end with them.
        self.purging = Some(0);
    }

    /// The key of a packet; at the Out hook the In hook's, where packet and batch are still the same.
    #[inline(always)]
    fn key_of(&mut self, hook: Hook, fresh: bool, at: usize, packet: &Packet) -> u64 {
        let classifier = &self.program.classifier;
        let Some(seen) = self.seen.get_mut(at) else { return NOT_JUDGED };
        let (identity, addresses) = (identity(packet), addresses(packet));
        let own = if hook == Hook::Out
            && fresh
            && seen.identity == identity
            && seen.addresses == addresses
            && identity != u64::MAX
        {
            seen.key
        } else {
            let key = classifier.packet_key(packet, false);
            if self.has_states {
                self.found[at & (BATCH_MAX - 1)] = None;
            }
            *seen = Seen { identity, addresses, key };
            key
        };
        own + classifier.interface_key(packet, hook)
    }

    /// Few keys, whose outcomes lie in the nearest cache: key and decision in one go.
    #[inline(always)]
    fn decide_at_once(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        let fresh = std::mem::replace(&mut self.fresh, hook == Hook::In);
        let mut pending = Pending::default();
        for (at, packet) in batch.packets_mut().iter_mut().enumerate() {
            if is_judged(packet) {
                let key = self.key_of(hook, fresh, at, packet);
                self.decide_one(hook, at, key, packet, &mut pending, context);
            }
        }
        self.book(&pending);
    }

    /// Keys of the batch.
    #[inline(always)]
    fn classify(&mut self, hook: Hook, batch: &Batch) {
        // Good for the Out hook that follows the In hook of the same batch, and only for that.
        let fresh = std::mem::replace(&mut self.fresh, hook == Hook::In);
        for (at, packet) in batch.packets().iter().enumerate().take(BATCH_MAX) {
            let judged = is_judged(packet);
            let key = if judged { self.key_of(hook, fresh, at, packet) } else { NOT_JUDGED };
            self.keys[at & (BATCH_MAX - 1)] = key;
            if judged {
                self.memo.prefetch(key);
            }
        }
    }

    /// Decides the batch by its keys.
    #[inline(always)]
    fn decide(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        let mut pending = Pending::default();
        for (at, packet) in batch.packets_mut().iter_mut().enumerate() {
            let key = self.keys[at & (BATCH_MAX - 1)];
            if key != NOT_JUDGED {
                self.decide_one(hook, at, key, packet, &mut pending, context);
            }
        }
        self.book(&pending);
    }

    #[inline(always)]
    fn decide_one(
        &mut self,
        hook: Hook,
        at: usize,
        key: u64,
        packet: &mut Packet,
        pending: &mut Pending,
        context: &mut Context<'_>,
    ) {
        let mut id = self.memo.find(key);
        if id & PLAIN == 0 {
            let trace = self.memo.trace(id);
            if !trace.is_some_and(|trace| trace.is_quiet) {
                let by_state = trace.and_then(|trace| trace.probe).and_then(|name| self.by_state(at, name, packet));
                let Some(allowed) = by_state else {
                    self.walk(hook, key, packet, context);
                    return;
                };
                id = allowed;
            } else if trace.is_some_and(|trace| trace.denies) {
                packet.judge(Verdict::Drop(DropReason::Filter));
            }
        } else if id & DENY != 0 {
            packet.judge(Verdict::Drop(DropReason::Filter));
        }
        if id != pending.id {
            self.book(pending);
            *pending = Pending { id, ..Pending::default() };
        }
        pending.packets += 1;
        pending.bytes += bytes_of(packet);
    }

    /// A program without any header test decides all alike.
    #[inline(always)]
    fn decide_alike(&mut self, id: TraceId, batch: &mut Batch) {
        let mut pending = Pending { id, ..Pending::default() };
        for packet in batch.packets_mut() {
            if is_judged(packet) {
                pending.packets += 1;
                pending.bytes += bytes_of(packet);
                if id & DENY != 0 {
                    packet.judge(Verdict::Drop(DropReason::Filter));
                }
            }
        }
        self.book(&pending);
    }

    /// Asks for the memory of the states that the batch's packets will be looked for in.
    #[inline(never)]
    fn prefetch_states(&mut self, batch: &mut Batch, seed: HashSeed) {
        for (packet, key) in batch.packets_mut().iter_mut().zip(self.keys.iter()) {
            if *key != NOT_JUDGED && !packet.flags.has(Flags::FRAGMENT) {
                self.holdings.states.prefetch_bucket(hash::of(seed, packet));
            }
        }
        for (packet, key) in batch.packets().iter().zip(self.keys.iter()) {
            if *key != NOT_JUDGED && packet.flags.has(Flags::HASHED) {
                self.holdings.states.prefetch_state(packet.hash);
            }
        }
    }

    /// A packet whose trace begins with a look-up of states, where it has one whose rule just lets it pass: what to book. None, with nothing
    /// done, where there is more to it.
    #[inline(always)]
    fn by_state(&mut self, at: usize, name: NameFilter, packet: &Packet) -> Option<TraceId> {
        // ICMP and fragments are found by another hash; the walk knows it.
        if !packet.flags.has(Flags::HASHED) || packet.flags.has(Flags::FRAGMENT) || matches!(packet.protocol, 1 | 58) {
            return None;
        }
        let found = self.found.get_mut(at)?;
        let states = &mut self.holdings.states;
        let hit = match *found {
            Some((index, direction, groups)) if self.orphans == self.holdings.orphans && groups == name => {
                states.touch(index, direction, &facts_of(packet))?
            }
            _ => {
                let key = FlowKey::of(packet)?;
                let (program, facts) = (&self.program, facts_of(packet));
                let good = |made_by: RuleRef| {
                    program
                        .rule_of(made_by)
                        .and_then(|rule| program.rules.get(rule as usize))
                        .is_some_and(|r| r.just_allows)
                };
                states.probe_if(&key, name, packet.hash, &facts, good)?
            }
        };
        *found = Some((hit.index, hit.direction, name));
        Some(PLAIN | hit.rule.index)
    }

    #[inline(always)]
    pub(super) fn book(&self, pending: &Pending) {
        if pending.packets == 0 {
            return;
        }
        if pending.id & PLAIN != 0 {
            self.counters.add(pending.id & SLOT, pending.packets, pending.bytes, self.second);
        } else {
            self.book_quiet(pending);
        }
    }

    #[inline(never)]
    fn book_quiet(&self, pending: &Pending) {
        let Some(trace) = self.memo.trace(pending.id) else { return };
        for slot in self.memo.slots(&trace) {
            self.counters.add(*slot, pending.packets, pending.bytes, self.second);
        }
    }

    /// A packet that takes more than a counter and a verdict, or whose key was not met yet.
    #[inline(never)]
    fn walk(&mut self, hook: Hook, key: u64, packet: &mut Packet, context: &mut Context<'_>) {
        self.judge_from(hook, false, key, 0, packet, context);
    }

    /// The pass of IP.
    #[inline(always)]
    fn judge_batch(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        if self.program.classifier.keys() == 1 {
            let id = self.memo.find(0);
            if id & PLAIN != 0 {
                self.decide_alike(id, batch);
                return;
            }
        }
        if self.memo.is_near() && !self.has_states {
            self.decide_at_once(hook, batch, context);
            return;
        }
        self.classify(hook, batch);
        if self.has_states && hook == Hook::In {
            self.prefetch_states(batch, context.shared.seed);
            self.orphans = self.holdings.orphans;
        }
        self.decide(hook, batch, context);
    }

    /// Carries out what the control side ordered for pipes and NAT.
    #[inline(always)]
    fn obey(&mut self, context: &mut Context<'_>) {
        if let Some(services) = &mut self.holdings.services
            && services.is_waiting()
        {
            services.obey(context);
        }
    }
}

/// Memory for `reass`, where any rule needs it.
fn reassembler_for(program: &Program) -> Option<Box<Reassembler>> {
    program.entries.iter().any(|entry| entry.act == Act::Reassemble).then(Box::default)
}

/// Whether the rules see a packet: what still goes on and is IP. Resets that this stage made do not meet it again, as FreeBSD marks them.
#[inline(always)]
pub(super) fn is_judged(packet: &Packet) -> bool {
    packet.goes_on()
        && packet.family != Family::Other
        && !(packet.flags.has(Flags::GENERATED) && matches!(packet.protocol, 6 | 132))
}

#[inline(always)]
fn identity(packet: &Packet) -> u64 {
    if packet.family != Family::V4 {
        return u64::MAX;
    }
    u64::from(packet.frame.buffer()) << 32 | u64::from(packet.source_port) << 16 | u64::from(packet.destination_port)
}

/// IPv4 addresses as one word.
#[inline(always)]
fn addresses(packet: &Packet) -> u64 {
    u64::from(packet.source_v4()) << 32 | u64::from(packet.destination_v4())
}

impl Stage for Ipfw {
    fn name(&self) -> &'static str {
        "ipfw"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        self.follow(context.now);
        // Behind the rules: what is new in them was ordered before.
        self.obey(context);
        let layer2 = self.has_layer2();
        if layer2 && hook == Hook::In {
            self.link_pass(hook, batch, context);
        }
        self.judge_batch(hook, batch, context);
        if layer2 && hook == Hook::Out {
            self.link_pass(hook, batch, context);
        }
    }

    fn poll(&mut self, batch: &mut Batch, context: &mut Context<'_>) {
        self.foreseen.is_open = false;
        self.follow(context.now);
        self.obey(context);
        self.give_back(batch, context);
        self.holdings.states.sweep(SWEEP, |_| {}, |keepalive| self.keepalives.send(keepalive, context));
        if let Some(services) = &mut self.holdings.services {
            services.nats.sweep(context.now);
        }
        if let Some(reassembler) = &mut self.reassembler {
            reassembler.turn(context);
        }
        if let Some(cursor) = &mut self.purging {
            let program = &self.program;
            let fate = |state: &StateView| if program.rule_of(state.rule).is_none() { Fate::End } else { Fate::Keep };
            if self.holdings.states.purge(cursor, SWEEP as u32, fate) {
                self.purging = None;
                // What the batches before found may have been one of them.
                self.holdings.orphans = self.holdings.orphans.wrapping_add(1);
            }
        }
        if let Some(lister) = &mut self.holdings.lister {
            lister.turn(&self.holdings.states);
        }
    }

    fn close(&mut self, context: &mut Context<'_>) {
        if let Some(services) = &mut self.holdings.services {
            services.pipes.close(context);
        }
        if let Some(reassembler) = &mut self.reassembler {
            reassembler.close(context);
        }
    }

    fn rests(&self, now: u64) -> u64 {
        let shares = self.reassembler.is_some();
        self.holdings.services.as_ref().map_or(u64::MAX, |services| services.pipes.rests(now, shares))
    }

    fn next_hop(&self, packet: &Packet) -> Option<IpAddr> {
        forwarding::next_hop(packet, &self.holdings.notes.of(packet))
    }

    fn needs_flow_owner(&self) -> bool {
        true
    }

    fn foresee(
        &mut self,
        batch: &mut Batch,
        ingress: PortId,
        foresight: &mut Foresight,
        context: &mut Context<'_>,
    ) -> bool {
        self.look_ahead(batch, ingress, foresight, context)
    }

    fn came_true(&mut self, places: Range<usize>, foresight: &Foresight) {
        self.book_foreseen(places, foresight);
    }

    fn still_holds(&self) -> bool {
        self.foreseen_holds()
    }

    fn flow_owner(&self, packet: &Packet) -> Option<usize> {
        self.holdings.services.as_ref()?.nats.owner_of(packet)
    }

    fn passes_plain(&mut self, now: u64) -> bool {
        self.foreseen.is_open = false;
        self.follow(now);
        self.program.classifier.keys() == 1 && self.memo.find(0) & (PLAIN | DENY) == PLAIN && !self.has_layer2()
    }

    fn passed(&mut self, packets: u64, bytes: u64) {
        let id = self.memo.find(0);
        self.book(&Pending { id, packets: packets * 2, bytes: bytes * 2 });
    }
}

#[cfg(test)]
mod tests;
