#![forbid(unsafe_code)]
//! A packet's way: into a queue, through the scheduler, along the link, out.

use super::aqm;
use super::mask::FlowId;
use super::sched::Discipline;
use super::sched::fq::Fq;
use super::{DropCause, Outcome, Outlet, Shaper, Target};
use ferrule_config::ipfw::dummynet::{QueueManagement, SchedulerKind};
use ferrule_dataplane::clock::Nanos;

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
}
