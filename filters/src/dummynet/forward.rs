#![forbid(unsafe_code)]
//! A packet's way: into a queue, through the scheduler, along the link, out.

use super::aqm::codel::{self, Front};
use super::aqm::{self, Advice, pie, red};
use super::flow_set::Scheduler;
use super::mask::FlowId;
use super::packets::Packets;
use super::pipe::Instance;
use super::queue::{Owner, Queues, Share};
use super::sched::Discipline;
use super::sched::fq::Fq;
use super::{DropCause, Outcome, Outlet, Shaper, Target, Totals};
use ferrule_config::ipfw::dummynet::{FlowMask, QueueManagement, QueueSize, SchedulerKind};
use ferrule_dataplane::clock::Nanos;

/// Idle queues looked at in one poll.
const EXPIRE_STEPS: usize = 16;
/// Idle queues looked at for one that may go now.
const EVICT_STEPS: usize = 8;

impl<T> Shaper<T> {
    /// Sends a packet of `length` bytes to a pipe or queue at `now`, which is no earlier than in any call before. What else happens until
    /// `now` happens first; packets that are dropped by that go to `outlet`, those that are through wait for [`Shaper::poll`].
    ///
    /// # Errors
    /// The packet, when it was not taken, and why.
    #[allow(clippy::too_many_arguments)]
    pub fn enqueue(
        &mut self,
        target: Target,
        packet: T,
        length: u32,
        flow: &FlowId,
        tag: u64,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<Outcome<T>, (T, DropCause)> {
        self.totals.offered += 1;
        self.advance(now, outlet);
        match self.take_in(target, packet, length, flow, tag, now, outlet) {
            Ok(id) => Ok(match self.passed_at_once(id, now) {
                Some(packet) => Outcome::Passed(packet),
                None => Outcome::Held,
            }),
            Err((packet, cause)) => {
                self.totals.drops[cause as usize] += 1;
                Err((packet, cause))
            }
        }
    }

    /// Gives out what is through by `now`, at most `most` packets, in the order of their times; how many.
    pub fn poll(&mut self, now: Nanos, most: usize, outlet: &mut impl Outlet<T>) -> usize {
        self.advance(now, outlet);
        let mut given = 0;
        while given < most {
            let Some((_, instance)) = self.deliver.due(now) else { break };
            let line = &mut self.instances[instance].line;
            let Some(id) = self.packets.take_first(line) else { continue };
            if let Some(next) = line.first() {
                self.deliver.plan(instance, self.packets.time(next));
            }
            let lost = self.packets.is_lost(id);
            let Some((packet, tag)) = self.packets.release(id) else { continue };
            if lost {
                self.totals.drops[DropCause::ProfileLoss as usize] += 1;
                self.instances[instance].counters.drops += 1;
                outlet.dropped(packet, tag, DropCause::ProfileLoss);
            } else {
                self.totals.passed += 1;
                outlet.deliver(packet, tag);
                given += 1;
            }
        }
        self.expire(now);
        given
    }

    /// Lets the links go on until `now`, each at its own times.
    pub(super) fn advance(&mut self, now: Nanos, outlet: &mut impl Outlet<T>) {
        while let Some((time, instance)) = self.serve.due(now) {
            let Some(scheduler) = self.schedulers.get(self.instances[instance].scheduler) else { continue };
            let bandwidth = scheduler.link.bandwidth;
            self.instances[instance].settle(bandwidth, time);
            self.run(instance, time, outlet);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn take_in(
        &mut self,
        target: Target,
        mut packet: T,
        length: u32,
        flow: &FlowId,
        tag: u64,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<u32, (T, DropCause)> {
        let found = match target {
            Target::Pipe(number) => {
                self.pipe_numbers.get(number).and_then(|s| Some((s, self.schedulers.get(s)?.own, number)))
            }
            Target::Queue(number) => {
                self.queue_numbers.get(number).and_then(|f| Some((self.flow_sets.get(f)?.scheduler?, f, number)))
            }
        };
        let Some((scheduler, flow_set, number)) = found else { return Err((packet, DropCause::NoTarget)) };
        let flow = FlowId { extra: number, ..*flow };
        let Some((instance, queue)) = self.find_queue(scheduler, flow_set, &flow, now) else {
            return Err((packet, DropCause::TooManyFlows));
        };
        self.queues[queue].counters.offered(length);
        self.instances[instance].counters.offered(length);
        let kept = match self.judge(scheduler, queue, length, &mut packet, now, outlet) {
            Ok(()) => self.packets.keep(packet, length, tag, now).map_err(|p| (p, DropCause::Reserve)),
            Err(cause) => Err((packet, cause)),
        };
        let id = kept.inspect_err(|_| self.count_drop(queue, instance))?;
        self.push(queue, instance, id, length);
        if let Err(cause) = self.hold_limit(scheduler, instance, id, now, outlet) {
            return match self.packets.release(id) {
                Some((packet, _)) => Err((packet, cause)),
                None => Ok(id),
            };
        }
        if !self.instances[instance].active
            && let Some(s) = self.schedulers.get(scheduler)
        {
            self.instances[instance].refill(&s.link, self.settings.io_fast, now);
            self.run(instance, now, outlet);
        }
        Ok(id)
    }

    /// The instance and the queue for a packet, made if need be.
    fn find_queue(&mut self, scheduler: u32, flow_set: u32, flow: &FlowId, now: Nanos) -> Option<(u32, u32)> {
        let s = self.schedulers.get(scheduler)?;
        let masked = flow.masked(&s.mask);
        let instance = match self.instances.find(scheduler, &masked) {
            Some(id) => id,
            None => self.new_instance(scheduler, &masked, now)?,
        };
        let s = self.schedulers.get(scheduler)?;
        let (owner, flow_set, key) = match s.kind {
            SchedulerKind::FqCodel(fq, _) | SchedulerKind::FqPie(fq, _) => {
                let five = FlowId { flow_label: 0, extra: 0, ..*flow };
                let bucket = u128::from(five.hash(self.seed)) * u128::from(fq.flows.clamp(1, 65_536)) >> 64;
                (Owner::Flow(instance), s.own, FlowId { extra: bucket as u32, ..FlowId::NONE })
            }
            SchedulerKind::Fifo => (Owner::FlowSet(s.own), s.own, FlowId::NONE),
            _ => (Owner::FlowSet(flow_set), flow_set, flow.masked(&self.flow_sets.get(flow_set)?.mask)),
        };
        let mut queue = match self.queues.find(owner, instance, &key) {
            Some(id) => id,
            None => match self.new_queue(owner, flow_set, instance, &key, flow, now) {
                Some(id) => id,
                None => {
                    self.end_instance_if_unused(instance, now);
                    return None;
                }
            },
        };
        if let Discipline::Priority(d) = &self.instances[instance].discipline {
            queue = d.redirect(queue, &self.queues);
        }
        Some((instance, queue))
    }

    fn new_instance(&mut self, scheduler: u32, flow: &FlowId, now: Nanos) -> Option<u32> {
        if self.instances.is_full() {
            self.evict(now, |shaper| !shaper.instances.is_full());
        }
        if self.instances.is_full() {
            return None;
        }
        let s = self.schedulers.get_mut(scheduler)?;
        let discipline = s.discipline()?;
        let id = self.instances.create(scheduler, flow, discipline)?;
        self.instances[id].fill(&s.link, self.settings.io_fast, now);
        Some(id)
    }

    fn new_queue(
        &mut self,
        owner: Owner,
        flow_set: u32,
        instance: u32,
        key: &FlowId,
        flow: &FlowId,
        now: Nanos,
    ) -> Option<u32> {
        if self.queues.is_full() {
            self.evict(now, |shaper| !shaper.queues.is_full());
        }
        let fs = self.flow_sets.get(flow_set)?;
        let s = self.schedulers.get(self.instances[instance].scheduler)?;
        let share = Share::new(fs.weight, fs.longest);
        let id = self.queues.create(owner, flow_set, instance, key, share)?;
        let queue = &mut self.queues[id];
        queue.aqm = match s.kind {
            SchedulerKind::FqCodel(..) => aqm::State::Codel(codel::State::default()),
            SchedulerKind::FqPie(_, p) => aqm::State::Pie(pie::State::new(&p)),
            _ => aqm::State::new(&fs.queue.management),
        };
        let is_flow = matches!(owner, Owner::Flow(_));
        if is_flow {
            queue.flow = *flow;
        }
        queue.dynamic = is_flow || s.is_dynamic() || key != &FlowId::NONE || fs.mask != FlowMask::NONE;
        self.instances[instance].queues += 1;
        Some(id)
    }

    /// Whether the queue takes a packet.
    fn judge(
        &mut self,
        scheduler: u32,
        id: u32,
        length: u32,
        packet: &mut T,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<(), DropCause> {
        let Some(s) = self.schedulers.get(scheduler) else { return Err(DropCause::NoTarget) };
        let Some(fs) = self.flow_sets.get(self.queues[id].flow_set) else { return Err(DropCause::NoTarget) };
        let inactive = Fq::is_inactive(id, &self.queues);
        let queue = &mut self.queues[id];
        let advice = match (&s.kind, &mut queue.aqm) {
            (SchedulerKind::FqCodel(..), aqm::State::Codel(state)) => {
                state.arrived(length);
                if inactive {
                    state.restart();
                }
                return Ok(());
            }
            (SchedulerKind::FqPie(_, p), aqm::State::Pie(state)) => {
                if inactive {
                    state.restart(p, now);
                }
                let at = pie::Arrival { now, backlog: queue.bytes, third_full: false };
                state.arrive(p, &at, &mut self.random)
            }
            (_, state) => {
                if fs.queue.loss_rate > 0.0 && self.random.unit() < fs.queue.loss_rate {
                    return Err(DropCause::RandomLoss);
                }
                let (size, bound, in_bytes) = match fs.queue.size {
                    QueueSize::Slots(n) => (u64::from(queue.length), u64::from(n), false),
                    QueueSize::Bytes(n) => (queue.bytes, u64::from(n), true),
                };
                // A queue in bytes takes the packet that goes over its bound; with CoDel and PIE not the one that finds it met.
                let strict = matches!(state, aqm::State::Codel(_) | aqm::State::Pie(_));
                let full = if in_bytes && !strict { size > bound } else { size >= bound };
                let advice = match (&fs.queue.management, state) {
                    (QueueManagement::Red(p), aqm::State::Red(state)) => {
                        let at = red::Arrival { size, in_bytes, length, bandwidth: s.link.bandwidth, now };
                        state.arrive(p, false, &at, &mut self.random)
                    }
                    (QueueManagement::Gred(p), aqm::State::Red(state)) => {
                        let at = red::Arrival { size, in_bytes, length, bandwidth: s.link.bandwidth, now };
                        state.arrive(p, true, &at, &mut self.random)
                    }
                    (QueueManagement::Pie(p), aqm::State::Pie(state)) if !full => {
                        let at = pie::Arrival { now, backlog: queue.bytes, third_full: size >= bound / 3 };
                        state.arrive(p, &at, &mut self.random)
                    }
                    (QueueManagement::Codel(_), aqm::State::Codel(state)) => {
                        state.arrived(length);
                        Advice::Keep
                    }
                    _ => Advice::Keep,
                };
                if full && advice != Advice::Drop {
                    if let aqm::State::Pie(state) = &mut queue.aqm {
                        state.dropped();
                    }
                    return Err(DropCause::QueueFull);
                }
                advice
            }
        };
        if advice == Advice::Keep || advice == Advice::Mark && outlet.mark(packet) {
            return Ok(());
        }
        if let aqm::State::Pie(state) = &mut self.queues[id].aqm {
            state.dropped();
        }
        Err(DropCause::Early)
    }

    fn count_drop(&mut self, queue: u32, instance: u32) {
        self.queues[queue].counters.drops += 1;
        self.instances[instance].counters.drops += 1;
    }

    /// Adds a packet to a queue.
    pub(super) fn push(&mut self, id: u32, instance: u32, packet: u32, length: u32) {
        self.queues.wake(id);
        let queue = &mut self.queues[id];
        let first = queue.row.is_empty();
        self.packets.append(&mut queue.row, packet);
        queue.length += 1;
        queue.bytes += u64::from(length);
        if first {
            queue.head = length;
        }
        let instance = &mut self.instances[instance];
        instance.length += 1;
        instance.bytes += u64::from(length);
        if first {
            instance.discipline.activated(id, &mut self.queues);
        }
        if let Discipline::Fq(fq) = &mut instance.discipline {
            fq.grown(id, &mut self.queues);
        }
    }

    /// FQ: past the limit the longest flow loses its first packet. An error when that is `newest`, which is out of its queue then.
    fn hold_limit(
        &mut self,
        scheduler: u32,
        instance: u32,
        newest: u32,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<(), DropCause> {
        let limit = match self.schedulers.get(scheduler).map(|s| s.kind) {
            Some(SchedulerKind::FqCodel(fq, _) | SchedulerKind::FqPie(fq, _)) => fq.limit.clamp(1, 20_480),
            _ => return Ok(()),
        };
        if self.instances[instance].length <= limit {
            return Ok(());
        }
        let Discipline::Fq(fq) = &mut self.instances[instance].discipline else { return Ok(()) };
        let Some(fattest) = fq.fattest(&mut self.queues) else { return Ok(()) };
        let mut leaf = self.leaf(fattest, instance, now, outlet);
        match leaf.pop() {
            Some(packet) if packet == newest => {
                self.count_drop(fattest, instance);
                Err(DropCause::FlowLimit)
            }
            Some(packet) => {
                leaf.discard(packet, DropCause::FlowLimit);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn leaf<'a, O: Outlet<T>>(
        &'a mut self,
        queue: u32,
        instance: u32,
        now: Nanos,
        outlet: &'a mut O,
    ) -> Leaf<'a, T, O> {
        Leaf {
            id: queue,
            now,
            queues: &mut self.queues,
            packets: &mut self.packets,
            instance: &mut self.instances[instance],
            totals: &mut self.totals,
            outlet,
        }
    }

    /// Sends what the link has room for at `now`.
    pub(super) fn run(&mut self, id: u32, now: Nanos, outlet: &mut impl Outlet<T>) {
        let scheduler = self.instances[id].scheduler;
        loop {
            let Some(s) = self.schedulers.get(scheduler) else { return };
            let instance = &mut self.instances[id];
            instance.active = !instance.may_send(&s.link);
            if instance.active {
                self.serve.plan(id, now + instance.wait(&s.link));
                return;
            }
            let Some(packet) = self.next_packet(scheduler, id, now, outlet) else { return };
            let Some(s) = self.schedulers.get(scheduler) else { return };
            let instance = &mut self.instances[id];
            let (due, lost) = instance.send(&s.link, self.packets.length(packet), now, &mut self.random);
            self.packets.set_due(packet, due, lost);
            if instance.line.is_empty() {
                self.deliver.plan(id, due);
            }
            self.packets.append(&mut instance.line, packet);
        }
    }

    /// The packet that the scheduler sends next.
    fn next_packet(&mut self, scheduler: u32, id: u32, now: Nanos, outlet: &mut impl Outlet<T>) -> Option<u32> {
        loop {
            let queue = self.instances[id].discipline.select(&mut self.queues)?;
            let packet = self.leave(scheduler, queue, id, now, outlet);
            let length = packet.map(|p| self.packets.length(p));
            let instance = &mut self.instances[id];
            instance.discipline.served(queue, length, &mut self.queues);
            let listed = matches!(instance.discipline, Discipline::Fq(_)) && !Fq::is_inactive(queue, &self.queues);
            if self.queues[queue].length == 0 && !listed {
                self.queues.rest(queue, now);
            }
            if packet.is_some() {
                return packet;
            }
        }
    }

    /// Takes the next packet from a queue, as its AQM has it.
    fn leave(
        &mut self,
        scheduler: u32,
        id: u32,
        instance: u32,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Option<u32> {
        let kind = self.schedulers.get(scheduler)?.kind;
        let management = self.flow_sets.get(self.queues[id].flow_set)?.queue.management;
        let mut state = std::mem::replace(&mut self.queues[id].aqm, aqm::State::None);
        let mut leaf = self.leaf(id, instance, now, outlet);
        let packet = match (&mut state, kind, management) {
            (aqm::State::Codel(state), SchedulerKind::FqCodel(_, p), _)
            | (aqm::State::Codel(state), _, QueueManagement::Codel(p)) => state.leave(&p, now, &mut leaf),
            (aqm::State::Pie(state), SchedulerKind::FqPie(_, p), _)
            | (aqm::State::Pie(state), _, QueueManagement::Pie(p)) => leaf.pop().inspect(|&packet| {
                let (since, length) = (leaf.packets.time(packet), leaf.packets.length(packet));
                state.leave(&p, now, since, length, leaf.queues[id].bytes);
            }),
            (aqm::State::Red(state), ..) => {
                let packet = leaf.pop();
                if leaf.queues[id].length == 0 {
                    state.emptied(now);
                }
                packet
            }
            _ => leaf.pop(),
        };
        self.queues[id].aqm = state;
        packet
    }

    /// Takes a packet back out of the delay line when it is through without having waited for anything.
    fn passed_at_once(&mut self, packet: u32, now: Nanos) -> Option<T> {
        let (_, instance) = self.deliver.first().filter(|&(due, _)| due <= now)?;
        let line = &mut self.instances[instance].line;
        if line.first() != Some(packet) || self.packets.is_lost(packet) {
            return None;
        }
        self.deliver.cancel(instance);
        self.packets.take_first(line)?;
        if let Some(next) = line.first() {
            self.deliver.plan(instance, self.packets.time(next));
        }
        let (payload, _) = self.packets.release(packet)?;
        self.totals.passed += 1;
        self.totals.fast += 1;
        Some(payload)
    }

    /// Ends dynamic queues that have been idle for long enough.
    fn expire(&mut self, now: Nanos) {
        let Some(after) = self.settings.expire else { return };
        for _ in 0..EXPIRE_STEPS {
            let Some(id) = self.queues.idle_first() else { return };
            if now.saturating_sub(self.queues[id].idle_since) < after {
                return;
            }
            if !self.may_end(id, now) {
                self.queues.rest(id, now);
                continue;
            }
            self.end_queue(id, now);
        }
    }

    /// Whether nothing is lost with an idle queue: no lead that it would start again without, no link that is busy or owes a pause.
    fn may_end(&self, id: u32, now: Nanos) -> bool {
        let instance = &self.instances[self.queues[id].instance];
        let settled = match &instance.discipline {
            Discipline::Wf2q(d) => d.is_settled(id, &self.queues),
            _ => true,
        };
        let Some(s) = self.schedulers.get(instance.scheduler) else { return true };
        settled && (instance.queues > 1 || !s.is_dynamic() || instance.is_rested(&s.link, self.settings.io_fast, now))
    }

    /// Ends idle queues before their time until `enough`, a few at most.
    fn evict(&mut self, now: Nanos, enough: impl Fn(&Shaper<T>) -> bool) {
        for _ in 0..EVICT_STEPS {
            let Some(id) = self.queues.idle_first() else { return };
            let instance = &self.instances[self.queues[id].instance];
            let busy = instance.active || !instance.line.is_empty();
            let dynamic = self.schedulers.get(instance.scheduler).is_some_and(Scheduler::is_dynamic);
            if busy && dynamic && instance.queues == 1 {
                self.queues.rest(id, now);
                continue;
            }
            self.end_queue(id, now);
            if enough(self) {
                return;
            }
        }
    }

    /// Ends an empty queue, and its instance with the last one.
    pub(super) fn end_queue(&mut self, id: u32, now: Nanos) {
        let instance = self.queues[id].instance;
        self.instances[instance].discipline.forget(id, &mut self.queues);
        self.queues.destroy(id);
        self.instances[instance].queues -= 1;
        self.end_instance_if_unused(instance, now);
    }

    fn end_instance_if_unused(&mut self, id: u32, _now: Nanos) {
        let instance = &self.instances[id];
        let Some(s) = self.schedulers.get_mut(instance.scheduler) else { return };
        if instance.queues == 0 && s.is_dynamic() && !instance.active && instance.line.is_empty() {
            s.give_back(self.instances.destroy(id));
        }
    }
}

/// The front end of a queue.
struct Leaf<'a, T, O> {
    id: u32,
    now: Nanos,
    queues: &'a mut Queues,
    packets: &'a mut Packets<T>,
    instance: &'a mut Instance,
    totals: &'a mut Totals,
    outlet: &'a mut O,
}

impl<T, O: Outlet<T>> Leaf<'_, T, O> {
    fn pop(&mut self) -> Option<u32> {
        let queue = &mut self.queues[self.id];
        let packet = self.packets.take_first(&mut queue.row)?;
        let length = self.packets.length(packet);
        queue.length -= 1;
        queue.bytes -= u64::from(length);
        queue.head = queue.row.first().map_or(0, |next| self.packets.length(next));
        self.instance.length -= 1;
        self.instance.bytes -= u64::from(length);
        Some(packet)
    }

    fn discard(&mut self, packet: u32, cause: DropCause) {
        self.queues[self.id].counters.drops += 1;
        self.instance.counters.drops += 1;
        self.totals.drops[cause as usize] += 1;
        if let Some((payload, tag)) = self.packets.release(packet) {
            self.outlet.dropped(payload, tag, cause);
        }
    }
}

impl<T, O: Outlet<T>> codel::Source for Leaf<'_, T, O> {
    fn take(&mut self) -> Option<Front> {
        let id = self.pop()?;
        debug_assert!(self.packets.time(id) <= self.now);
        Some(Front { id, since: self.packets.time(id), backlog: self.queues[self.id].bytes })
    }

    fn mark(&mut self, id: u32) -> bool {
        let outlet = &mut self.outlet;
        self.packets.payload(id).is_some_and(|packet| outlet.mark(packet))
    }

    fn drop(&mut self, id: u32) {
        self.discard(id, DropCause::Early);
    }
}
