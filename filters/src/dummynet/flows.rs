#![forbid(unsafe_code)]
//! Which queue a packet goes in: made when a flow's first packet comes, ended when it has been idle.

use super::Shaper;
use super::aqm::{self, codel, pie};
use super::flow_set::Scheduler;
use super::mask::FlowId;
use super::queue::{Owner, Share};
use super::sched::Discipline;
use ferrule_config::ipfw::dummynet::{FlowMask, SchedulerKind};
use ferrule_dataplane::clock::Nanos;

/// Idle queues looked at in one poll.
const EXPIRE_STEPS: usize = 16;
/// Idle queues looked at for one that may go now.
const EVICT_STEPS: usize = 8;

impl<T> Shaper<T> {
    /// The instance and the queue for a packet, made if need be.
    pub(super) fn find_queue(
        &mut self,
        scheduler: u32,
        flow_set: u32,
        flow: &FlowId,
        now: Nanos,
    ) -> Option<(u32, u32)> {
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
                let bucket = (u128::from(five.hash(self.seed)) * u128::from(fq.flows.clamp(1, 65_536))) >> 64;
                (Owner::Flow(instance), s.own, FlowId { extra: bucket as u32, ..FlowId::NONE })
            }
            SchedulerKind::Fifo => (Owner::FlowSet(s.own), s.own, FlowId::NONE),
            _ => (Owner::FlowSet(flow_set), flow_set, flow.masked(&self.flow_sets.get(flow_set)?.mask)),
        };
        let mut queue = match self.queues.find(owner, instance, &key) {
            Some(id) => id,
            None => {
                // Counted before there is one, so that the instance does not end with a queue that makes room.
                self.instances[instance].queues += 1;
                match self.new_queue(owner, flow_set, instance, &key, flow, now) {
                    Some(id) => id,
                    None => {
                        self.instances[instance].queues -= 1;
                        self.end_instance_if_unused(instance);
                        return None;
                    }
                }
            }
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
        // Idle until its first packet is taken, which may be never.
        self.queues.rest(id, now);
        Some(id)
    }

    /// Ends dynamic queues that have been idle for long enough.
    pub(super) fn expire(&mut self, now: Nanos) {
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
            self.end_queue(id);
        }
    }

    /// Whether nothing is lost with an idle queue: no lead that it would start again without, no link that is busy or owes a pause.
    fn may_end(&self, id: u32, now: Nanos) -> bool {
        let instance = &self.instances[self.queues[id].instance];
        let settled = match &instance.discipline {
            Discipline::Wf2q(d) => d.is_settled(id, &self.queues),
            Discipline::Qfq(d) => d.is_settled(id, &self.queues),
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
            self.end_queue(id);
            if enough(self) {
                return;
            }
        }
    }

    /// Ends an empty queue, and its instance with the last one.
    pub(super) fn end_queue(&mut self, id: u32) {
        let instance = self.queues[id].instance;
        self.instances[instance].discipline.forget(id, &mut self.queues);
        self.queues.destroy(id);
        self.instances[instance].queues -= 1;
        self.end_instance_if_unused(instance);
    }

    fn end_instance_if_unused(&mut self, id: u32) {
        let instance = &self.instances[id];
        let Some(s) = self.schedulers.get_mut(instance.scheduler) else { return };
        if instance.queues == 0 && s.is_dynamic() && !instance.active && instance.line.is_empty() {
            s.give_back(self.instances.destroy(id));
        }
    }
}
