#![forbid(unsafe_code)]
//! What becomes of a packet that the rules have decided about, beyond pass and drop.
//!
//! Pipes and NAT end the search where `one_pass` says so. Else, and behind `reass`, it goes on at the entry behind the rule, with the packet
//! as it is now: at once, or when the packet comes out of its pipe.

use ferrule_dataplane::batch::{BATCH_MAX, Batch};
use ferrule_dataplane::packet::{Packet, hash};
use ferrule_dataplane::stage::{Context, Hook};
use ferrule_dataplane::verdict::{DropReason, Verdict};

use super::around::Around;
use super::dynamic::RuleRef;
use super::execute::{self, Decision, Walk, bytes_of};
use super::forwarding;
use super::notes::Notes;
use super::reassemble::Reassembly;
use super::refuse;
use super::shape::{Held, Resume};
use super::stage::Ipfw;
use super::translate;
use crate::dummynet::{Outcome, Target};
use crate::nat::Translation;

/// Most times that one packet goes on behind a rule at one hook: rules that call each other around a `nat` or `pipe` drop it then. FreeBSD has
/// no such bound.
const ROUNDS_MAX: usize = 256;

/// Where a packet goes from a decision.
enum Onward {
    /// Nowhere: its verdict says what is to be done.
    End,
    /// On at this entry.
    Again(u32),
}

impl Ipfw {
    /// A packet that takes more than a counter and a verdict, from an entry on; `key` is its key.
    pub(super) fn judge_from(
        &mut self,
        hook: Hook,
        key: u64,
        start: u32,
        packet: &mut Packet,
        context: &mut Context<'_>,
    ) {
        let (mut key, mut start) = (key, start);
        for _ in 0..ROUNDS_MAX {
            let mut notes = self.holdings.notes.of(packet);
            notes.mark = 0;
            let before = notes;
            let bytes = bytes_of(packet);
            let mut around = Around::new(&mut self.holdings, &self.counters, self.second, context);
            let mut walk = Walk { packet, key, hook, layer2: false, notes: &mut notes, bytes };
            let (decision, rule) = execute::walk(&self.program, &mut self.memo, &mut walk, start, &mut around);
            if notes != before {
                self.holdings.notes.keep(packet, &notes);
            }
            if let Decision::Forward(next_hop, port) = decision {
                forwarding::forward(packet, next_hop, port, hook, &mut notes);
                self.holdings.notes.keep(packet, &notes);
                return;
            }
            match self.dispose(hook, decision, rule, packet, &notes, context) {
                Onward::End => return,
                Onward::Again(entry) => start = entry,
            }
            key =
                self.program.classifier.packet_key(packet, false) + self.program.classifier.interface_key(packet, hook);
        }
        packet.judge(Verdict::Drop(DropReason::Filter));
    }

    fn dispose(
        &mut self,
        hook: Hook,
        decision: Decision,
        rule: Option<u32>,
        packet: &mut Packet,
        notes: &Notes,
        context: &mut Context<'_>,
    ) -> Onward {
        match decision {
            Decision::Allow => return Onward::End,
            Decision::Unreach(..) | Decision::Unreach6(_) | Decision::Reset | Decision::Abort => {
                refuse::answer(decision, packet, context);
            }
            Decision::Pipe(number) => return self.shape(hook, Target::Pipe(number), rule, packet, notes, context),
            Decision::Queue(number) => return self.shape(hook, Target::Queue(number), rule, packet, notes, context),
            Decision::Nat(number) => return self.translate(hook, Some(number), rule, packet, context),
            Decision::NatGlobal => return self.translate(hook, None, rule, packet, context),
            // What is not there drops, as FreeBSD does without the module.
            Decision::Reassemble => return self.reassemble(hook, rule, packet, context),
            Decision::Deny | Decision::Forward(..) | Decision::Outside(..) => {}
        }
        packet.judge(Verdict::Drop(DropReason::Filter));
        Onward::End
    }

    fn one_pass(&self) -> bool {
        self.holdings.services.as_ref().is_none_or(|services| services.one_pass())
    }

    /// The entry behind a rule.
    fn entry_behind(&self, rule: Option<u32>) -> u32 {
        self.program.entry_from(rule.map_or(usize::MAX, |rule| rule as usize + 1))
    }

    /// `nat N`, and `nat global` without a number.
    fn translate(
        &mut self,
        hook: Hook,
        number: Option<u32>,
        rule: Option<u32>,
        packet: &mut Packet,
        context: &mut Context<'_>,
    ) -> Onward {
        let Some(services) = &mut self.holdings.services else {
            packet.judge(Verdict::Drop(DropReason::Filter));
            return Onward::End;
        };
        let translation = match number {
            Some(number) => services.nats.translate(number, packet, hook, context),
            None => services.nats.translate_known(packet, hook, context),
        };
        if let Translation::Drop(cause) = translation {
            packet.judge(Verdict::Drop(translate::reason(cause)));
            return Onward::End;
        }
        if services.one_pass() { Onward::End } else { Onward::Again(self.entry_behind(rule)) }
    }

    /// `pipe N`, `queue N`.
    fn shape(
        &mut self,
        hook: Hook,
        target: Target,
        rule: Option<u32>,
        packet: &mut Packet,
        notes: &Notes,
        context: &mut Context<'_>,
    ) -> Onward {
        let resume = if self.one_pass() { None } else { rule.map(|rule| self.resume_behind(rule)) };
        let Some(services) = &mut self.holdings.services else {
            packet.judge(Verdict::Drop(DropReason::PipeMissing));
            return Onward::End;
        };
        let Some(taken) = context.hold(packet) else {
            packet.judge(Verdict::Drop(DropReason::NoBuffer));
            return Onward::End;
        };
        let held = Held { packet: taken, notes: *notes, hook, home: context.worker, resume };
        match services.pipes.offer(target, held, context) {
            Ok(Outcome::Held) => Onward::End,
            Ok(Outcome::Passed(held)) => {
                context.release(packet, held.packet);
                if resume.is_none() { Onward::End } else { Onward::Again(self.entry_behind(rule)) }
            }
            Err((held, reason)) => {
                context.release(packet, held.packet);
                packet.judge(Verdict::Drop(reason));
                Onward::End
            }
        }
    }

    /// `reass`: the search goes on with the whole datagram, on the worker that its flow belongs to.
    fn reassemble(&mut self, hook: Hook, rule: Option<u32>, packet: &mut Packet, context: &mut Context<'_>) -> Onward {
        let Some(reassembler) = &mut self.reassembler else {
            packet.judge(Verdict::Drop(DropReason::Filter));
            return Onward::End;
        };
        match reassembler.add(packet, context) {
            Reassembly::Waits => return Onward::End,
            Reassembly::Dropped(reason) => {
                packet.judge(Verdict::Drop(reason));
                return Onward::End;
            }
            Reassembly::Whole => {}
        }
        let resume = rule.map(|rule| self.resume_behind(rule));
        let Some(services) = self.holdings.services.as_mut().filter(|services| services.pipes.workers() > 1) else {
            return Onward::Again(self.entry_behind(rule));
        };
        let by_hash = hash::owner(hash::of(context.shared.seed, packet), services.pipes.workers());
        let owner = services.nats.owner_of(packet).unwrap_or(by_hash);
        if owner == context.worker {
            return Onward::Again(self.entry_behind(rule));
        }
        let notes = self.holdings.notes.of(packet);
        let Some(whole) = context.hold(packet) else {
            packet.judge(Verdict::Drop(DropReason::NoBuffer));
            return Onward::End;
        };
        if let Err(held) = services.pipes.send(Held { packet: whole, notes, hook, home: owner, resume }, context) {
            context.release(packet, held.packet);
            packet.judge(Verdict::Drop(DropReason::HandoverFull));
        }
        Onward::End
    }

    fn resume_behind(&self, rule: u32) -> Resume {
        let facts = self.program.rules.get(rule as usize);
        Resume {
            number: facts.map_or(0, |facts| facts.number),
            rule: facts
                .map_or_else(RuleRef::default, |facts| RuleRef { index: facts.slot, generation: facts.generation }),
            index: rule,
            generation: self.generation,
        }
    }

    /// Where a packet goes on that was held while the rules may have changed: behind its rule, or at the first rule of its number or above
    /// where that is gone.
    fn entry_of(&self, resume: &Resume) -> u32 {
        if resume.generation == self.generation {
            return self.entry_behind(Some(resume.index));
        }
        match self.program.rule_of(resume.rule) {
            Some(rule) => self.entry_behind(Some(rule)),
            None => self.program.entry_from(self.program.rule_from(resume.number.into())),
        }
    }

    /// Gives back what came out of pipes, at most as much as the batch has room for.
    pub(super) fn give_back(&mut self, batch: &mut Batch, context: &mut Context<'_>) {
        let room = BATCH_MAX - batch.len().min(BATCH_MAX);
        match &mut self.holdings.services {
            Some(services) => services.pipes.turn(room, context),
            None => return,
        }
        for _ in 0..room {
            let Some(held) = self.holdings.services.as_mut().and_then(|services| services.pipes.next()) else { return };
            self.go_on(held, batch, context);
        }
    }

    fn go_on(&mut self, held: Held, batch: &mut Batch, context: &mut Context<'_>) {
        let Held { mut packet, mut notes, hook, resume, .. } = held;
        // The place of its notes may be another packet's by now.
        packet.mark = 0;
        if let Some(resume) = &resume
            && resume.generation != self.generation
        {
            // Callers are rules by their places in the rules of then.
            notes.callers = Default::default();
        }
        self.holdings.notes.keep(&mut packet, &notes);
        if let Some(resume) = resume {
            context.unbook_held();
            let classifier = &self.program.classifier;
            let key = classifier.packet_key(&packet, false) + classifier.interface_key(&packet, hook);
            self.judge_from(hook, key, self.entry_of(&resume), &mut packet, context);
            match packet.verdict() {
                Verdict::Forward => context.book_held(),
                Verdict::Drop(reason) => return context.discard(packet, reason),
                // It went on into another pipe, and this is the empty buffer that takes its place.
                Verdict::Held | Verdict::Consumed(_) | Verdict::Host(_) => return context.pool.free(packet.frame),
            }
        }
        if let Err(packet) = batch.push(packet) {
            context.discard_held(packet, DropReason::NoBuffer);
        }
    }
}
