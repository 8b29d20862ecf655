#![forbid(unsafe_code)]
//! A queue's entrance: who is let in.

use super::aqm::{self, Advice, pie, red};
use super::sched::Discipline;
use super::sched::fq::Fq;
use super::{DropCause, Outlet, Shaper};
use ferrule_config::ipfw::dummynet::{QueueManagement, QueueSize, SchedulerKind};
use ferrule_dataplane::clock::Nanos;

impl<T> Shaper<T> {
    /// Whether the queue takes a packet.
    pub(super) fn judge(
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

    pub(super) fn count_drop(&mut self, queue: u32, instance: u32) {
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
    pub(super) fn hold_limit(
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
}
