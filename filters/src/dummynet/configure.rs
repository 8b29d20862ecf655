#![forbid(unsafe_code)]
//! `ipfw pipe|queue|sched N config` and `delete`, while packets are held.
//!
//! New parameters count at once: a link's next packet takes as long as the new bandwidth says, and what is on its way arrives when it was
//! going to. Packets stay in their queues through all changes but three, which drop them with a count: another kind or mask of a
//! scheduler, another mask or scheduler of a queue, and deletion. (FreeBSD also empties a queue when its bound or weight changes.)

use super::aqm;
use super::flow_set::{FlowSet, Scheduler, default_queue};
use super::pipe::Link;
use super::queue::Owner;
use super::sched::Discipline;
use super::{DropCause, Outlet, Shaper, Target};
use ferrule_config::ipfw::dummynet::{
    self as config, DummynetConfig, FlowMask, PipeConfig, QueueConfig, SchedulerConfig, SchedulerKind,
    SchedulerParameters,
};
use ferrule_dataplane::clock::Nanos;
use std::fmt;

/// Largest number of a pipe, queue or scheduler.
const NUMBER_MAX: u32 = 65_535;
/// Longest delay in milliseconds.
const DELAY_MAX: u32 = 10_000;

/// Why a configuration was refused; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Numbers are 1 to 65535.
    Number(u32),
    /// There is none to delete.
    Missing(Target),
    /// There is no such scheduler to delete.
    MissingScheduler(u32),
    /// Delays are at most 10,000 ms.
    Delay(u32),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Number(n) => {
                write!(f, "{n} is no number of a pipe, queue or scheduler: use 1 to {NUMBER_MAX}")
            }
            ConfigError::Missing(Target::Pipe(n)) => write!(f, "there is no pipe {n}"),
            ConfigError::Missing(Target::Queue(n)) => write!(f, "there is no queue {n}"),
            ConfigError::MissingScheduler(n) => write!(f, "there is no scheduler {n}"),
            ConfigError::Delay(ms) => write!(f, "a delay of {ms} ms is too long: use at most {DELAY_MAX}"),
        }
    }
}

impl std::error::Error for ConfigError {}

impl<T> Shaper<T> {
    /// Puts a configuration in force at `now`. Allocates: for the control plane's turn, not for each packet.
    ///
    /// # Errors
    /// What is wrong with it; nothing was changed then.
    pub fn configure(
        &mut self,
        config: &DummynetConfig,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<(), ConfigError> {
        self.advance(now, outlet);
        match config {
            DummynetConfig::Pipe(pipe) => {
                check(pipe.number)?;
                if pipe.delay_ms > DELAY_MAX {
                    return Err(ConfigError::Delay(pipe.delay_ms));
                }
                self.configure_pipe(pipe, now, outlet);
            }
            DummynetConfig::Queue(queue) => {
                check(queue.number)?;
                check(queue.scheduler)?;
                self.configure_queue(queue, outlet);
            }
            DummynetConfig::Scheduler(scheduler) => {
                check(scheduler.number)?;
                check(scheduler.pipe.unwrap_or(scheduler.number))?;
                self.configure_scheduler(scheduler, now, outlet);
            }
        }
        Ok(())
    }

    /// `pipe N delete`, `queue N delete`. Deleting a pipe deletes scheduler N with it; queues that fed it stay, and drop what they get
    /// until there is a scheduler N again.
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&mut self, target: Target, now: Nanos, outlet: &mut impl Outlet<T>) -> Result<(), ConfigError> {
        self.advance(now, outlet);
        let missing = ConfigError::Missing(target);
        match target {
            Target::Pipe(number) => {
                let pipe = self.pipe_numbers.remove(number).ok_or(missing)?;
                self.links.remove(&number);
                self.remove_scheduler(pipe, outlet);
                if let Some(scheduler) = self.scheduler_numbers.remove(number) {
                    self.remove_scheduler(scheduler, outlet);
                }
            }
            Target::Queue(number) => {
                let place = self.queue_numbers.remove(number).ok_or(missing)?;
                self.drop_queues(Owner::FlowSet(place), outlet);
                self.flow_sets.remove(place);
            }
        }
        Ok(())
    }

    /// `sched N delete`; pipe N stays.
    ///
    /// # Errors
    /// There is none.
    pub fn delete_scheduler(
        &mut self,
        number: u32,
        now: Nanos,
        outlet: &mut impl Outlet<T>,
    ) -> Result<(), ConfigError> {
        self.advance(now, outlet);
        let place = self.scheduler_numbers.remove(number).ok_or(ConfigError::MissingScheduler(number))?;
        self.remove_scheduler(place, outlet);
        Ok(())
    }

    /// `pipe flush`: everything goes, also when the worker ends.
    pub fn flush(&mut self, now: Nanos, outlet: &mut impl Outlet<T>) {
        let numbers = |n: &super::flow_set::Numbers| n.iter().map(|(number, _)| number).collect::<Vec<_>>();
        let (queues, pipes, schedulers) =
            (numbers(&self.queue_numbers), numbers(&self.pipe_numbers), numbers(&self.scheduler_numbers));
        for number in queues {
            let _ = self.delete(Target::Queue(number), now, outlet);
        }
        for number in pipes {
            let _ = self.delete(Target::Pipe(number), now, outlet);
        }
        for number in schedulers {
            let _ = self.delete_scheduler(number, now, outlet);
        }
        self.links.clear();
    }

    fn configure_pipe(&mut self, pipe: &PipeConfig, now: Nanos, outlet: &mut impl Outlet<T>) {
        self.links.insert(pipe.number, Link::new(pipe));
        let fifo = SchedulerParameters { kind: SchedulerKind::Fifo, mask: pipe.queue.mask };
        let place = self.set_scheduler(pipe.number, true, pipe.number, &fifo, outlet);
        // The pipe's mask parts links; each has one queue.
        self.set_own_queue(place, &config::FlowSet { mask: FlowMask::NONE, ..pipe.queue.clone() });
        if let Some(parameters) = &pipe.scheduler {
            self.set_scheduler(pipe.number, false, pipe.number, parameters, outlet);
        } else if self.scheduler_numbers.get(pipe.number).is_none() {
            let wf2q = SchedulerParameters { kind: SchedulerKind::Wf2qPlus, mask: FlowMask::NONE };
            self.set_scheduler(pipe.number, false, pipe.number, &wf2q, outlet);
        }
        self.relink(pipe.number, now, outlet);
    }

    fn configure_scheduler(&mut self, scheduler: &SchedulerConfig, now: Nanos, outlet: &mut impl Outlet<T>) {
        let number = scheduler.number;
        let link = scheduler.pipe.unwrap_or(number);
        let place = self.set_scheduler(number, false, link, &scheduler.parameters, outlet);
        self.set_own_queue(place, &scheduler.queue);
        if self.pipe_numbers.get(number).is_none() {
            let fifo = SchedulerParameters { kind: SchedulerKind::Fifo, mask: FlowMask::NONE };
            self.set_scheduler(number, true, number, &fifo, outlet);
        }
        self.relink(link, now, outlet);
    }

    fn configure_queue(&mut self, queue: &QueueConfig, outlet: &mut impl Outlet<T>) {
        let mut new = FlowSet::new(queue.scheduler, &queue.queue, &self.settings);
        new.weight = queue.weight;
        new.longest = queue.longest;
        if let Some(place) = self.scheduler_numbers.get(queue.scheduler)
            && let Some(scheduler) = self.schedulers.get(place)
        {
            new.attach(place, scheduler);
        }
        match self.queue_numbers.get(queue.number) {
            Some(place) => self.replace_flow_set(place, new, outlet),
            None => {
                let place = self.flow_sets.add(new);
                self.queue_numbers.set(queue.number, place);
            }
        }
    }

    /// Makes or changes a scheduler; its place.
    fn set_scheduler(
        &mut self,
        number: u32,
        is_pipe: bool,
        link_number: u32,
        parameters: &SchedulerParameters,
        outlet: &mut impl Outlet<T>,
    ) -> u32 {
        let numbers = if is_pipe { &self.pipe_numbers } else { &self.scheduler_numbers };
        let existing = numbers.get(number);
        if let Some(place) = existing
            && let Some(scheduler) = self.schedulers.get_mut(place)
        {
            let kind = std::mem::discriminant(&scheduler.kind);
            if kind == std::mem::discriminant(&parameters.kind)
                && scheduler.mask == parameters.mask
                && !resized(scheduler, parameters)
            {
                scheduler.kind = parameters.kind;
                scheduler.link_number = link_number;
                self.tell_quantum(place);
                return place;
            }
            self.drop_instances(place, outlet);
        }
        let own = match existing.and_then(|place| self.schedulers.get(place)) {
            Some(scheduler) => scheduler.own,
            None => self.flow_sets.add(FlowSet::new(number, &default_queue(), &self.settings)),
        };
        let mut scheduler = Scheduler {
            number,
            is_pipe,
            kind: parameters.kind,
            mask: parameters.mask,
            link_number,
            link: self.links.get(&link_number).cloned().unwrap_or_default(),
            own,
            spares: Vec::new(),
        };
        scheduler.prepare(self.limits.instances);
        let place = match existing {
            Some(place) => {
                if let Some(old) = self.schedulers.get_mut(place) {
                    *old = scheduler;
                }
                place
            }
            None => self.schedulers.add(scheduler),
        };
        let numbers = if is_pipe { &mut self.pipe_numbers } else { &mut self.scheduler_numbers };
        numbers.set(number, place);
        self.attach_flow_sets(place);
        place
    }

    /// Attaches the flow sets that name this scheduler, and its own.
    fn attach_flow_sets(&mut self, place: u32) {
        let Some(scheduler) = self.schedulers.get(place) else { return };
        let queues: Vec<u32> = self.queue_numbers.iter().map(|(_, place)| place).collect();
        for (fs, flow_set) in self.flow_sets.iter_mut() {
            let feeds = !scheduler.is_pipe && flow_set.scheduler_number == scheduler.number && queues.contains(&fs);
            if feeds || fs == scheduler.own {
                flow_set.attach(place, scheduler);
            }
        }
    }

    fn set_own_queue(&mut self, scheduler: u32, queue: &config::FlowSet) {
        let Some(s) = self.schedulers.get(scheduler) else { return };
        let mut new = FlowSet::new(s.number, queue, &self.settings);
        new.attach(scheduler, s);
        let own = s.own;
        self.update_flow_set(own, new);
    }

    fn replace_flow_set(&mut self, place: u32, new: FlowSet, outlet: &mut impl Outlet<T>) {
        let Some(old) = self.flow_sets.get(place) else { return };
        if old.mask != new.mask || old.scheduler != new.scheduler {
            self.drop_queues(Owner::FlowSet(place), outlet);
        }
        self.update_flow_set(place, new);
    }

    /// New parameters for a flow set and the queues that it has.
    fn update_flow_set(&mut self, place: u32, new: FlowSet) {
        let Some(old) = self.flow_sets.get_mut(place) else { return };
        let same = std::mem::discriminant(&old.queue.management) == std::mem::discriminant(&new.queue.management);
        let reweighed = old.weight != new.weight || old.longest != new.longest;
        *old = new;
        let (weight, longest, management) = (old.weight, old.longest, old.queue.management);
        let ids: Vec<u32> = self.queues.ids().filter(|&id| self.queues[id].owner == Owner::FlowSet(place)).collect();
        for id in ids {
            if !same {
                self.queues[id].aqm = aqm::State::new(&management);
            }
            if reweighed {
                self.reweigh(id, weight, longest);
            }
        }
    }

    /// Changes what a queue's scheduler knows about it.
    fn reweigh(&mut self, id: u32, weight: u32, longest: u32) {
        let instance = self.queues[id].instance;
        self.instances[instance].discipline.forget(id, &mut self.queues);
        self.queues[id].share.weight = weight;
        self.queues[id].share.longest = longest;
        if self.queues[id].length == 0 {
            return;
        }
        if let Discipline::Priority(d) = &self.instances[instance].discipline {
            let other = d.redirect(id, &self.queues);
            if other != id {
                self.merge(id, other, instance);
                return;
            }
        }
        self.instances[instance].discipline.activated(id, &mut self.queues);
    }

    /// Moves all packets of a queue to the end of another one of the same instance.
    fn merge(&mut self, from: u32, to: u32, instance: u32) {
        let mut row = std::mem::replace(&mut self.queues[from].row, super::packets::Row::EMPTY);
        let queue = &mut self.queues[from];
        let owner = &mut self.instances[instance];
        owner.length -= queue.length;
        owner.bytes -= queue.bytes;
        (queue.length, queue.bytes, queue.head) = (0, 0, 0);
        while let Some(packet) = self.packets.take_first(&mut row) {
            self.push(to, instance, packet, self.packets.length(packet));
        }
    }

    fn tell_quantum(&mut self, scheduler: u32) {
        let Some(s) = self.schedulers.get(scheduler) else { return };
        let (SchedulerKind::FqCodel(fq, _) | SchedulerKind::FqPie(fq, _)) = s.kind else { return };
        let ids: Vec<u32> = self.instances.of(scheduler).collect();
        for id in ids {
            if let Discipline::Fq(d) = &mut self.instances[id].discipline {
                d.set_quantum(fq.quantum);
            }
        }
    }

    /// Gives every scheduler that feeds pipe `number` its link as it is now.
    fn relink(&mut self, number: u32, now: Nanos, outlet: &mut impl Outlet<T>) {
        let link = self.links.get(&number).cloned().unwrap_or_default();
        let places: Vec<u32> =
            self.schedulers.iter().filter(|(_, s)| s.link_number == number).map(|(place, _)| place).collect();
        for place in places {
            let Some(s) = self.schedulers.get_mut(place) else { continue };
            let before = std::mem::replace(&mut s.link, link.clone()).bandwidth;
            let ids: Vec<u32> = self.instances.of(place).collect();
            for id in ids {
                let instance = &mut self.instances[id];
                if instance.active {
                    // What is left of the packet on its way goes at the new rate.
                    instance.settle(before, now);
                    self.serve.cancel(id);
                    self.run(id, now, outlet);
                } else {
                    instance.fill(&link, self.settings.io_fast, now);
                }
            }
        }
    }

    fn remove_scheduler(&mut self, place: u32, outlet: &mut impl Outlet<T>) {
        self.drop_instances(place, outlet);
        if let Some(s) = self.schedulers.remove(place) {
            self.flow_sets.remove(s.own);
        }
        for (_, flow_set) in self.flow_sets.iter_mut() {
            if flow_set.scheduler == Some(place) {
                flow_set.scheduler = None;
                flow_set.mask = flow_set.queue.mask;
            }
        }
    }

    /// Ends all instances of a scheduler, with what they hold.
    fn drop_instances(&mut self, scheduler: u32, outlet: &mut impl Outlet<T>) {
        let ids: Vec<u32> = self.instances.of(scheduler).collect();
        for id in ids {
            self.serve.cancel(id);
            self.deliver.cancel(id);
            let mut line = std::mem::replace(&mut self.instances[id].line, super::packets::Row::EMPTY);
            while let Some(packet) = self.packets.take_first(&mut line) {
                self.give_up(packet, outlet);
            }
            self.instances[id].active = true;
            let queues: Vec<u32> = self.queues.ids().filter(|&q| self.queues[q].instance == id).collect();
            for queue in queues {
                self.drop_queue(queue, outlet);
            }
            self.instances[id].active = false;
            self.instances.destroy(id);
        }
    }

    /// Ends all queues of this owner, with what they hold.
    fn drop_queues(&mut self, owner: Owner, outlet: &mut impl Outlet<T>) {
        let ids: Vec<u32> = self.queues.ids().filter(|&id| self.queues[id].owner == owner).collect();
        for id in ids {
            self.drop_queue(id, outlet);
        }
    }

    fn drop_queue(&mut self, id: u32, outlet: &mut impl Outlet<T>) {
        let instance = self.queues[id].instance;
        self.instances[instance].discipline.forget(id, &mut self.queues);
        let queue = &mut self.queues[id];
        let mut row = std::mem::replace(&mut queue.row, super::packets::Row::EMPTY);
        let owner = &mut self.instances[instance];
        owner.length -= queue.length;
        owner.bytes -= queue.bytes;
        owner.counters.drops += u64::from(queue.length);
        (queue.length, queue.bytes, queue.head) = (0, 0, 0);
        while let Some(packet) = self.packets.take_first(&mut row) {
            self.give_up(packet, outlet);
        }
        self.end_queue(id);
    }

    fn give_up(&mut self, packet: u32, outlet: &mut impl Outlet<T>) {
        if let Some((payload, tag)) = self.packets.release(packet) {
            self.totals.drops[DropCause::Deleted as usize] += 1;
            outlet.dropped(payload, tag, DropCause::Deleted);
        }
    }
}

fn check(number: u32) -> Result<(), ConfigError> {
    if (1..=NUMBER_MAX).contains(&number) { Ok(()) } else { Err(ConfigError::Number(number)) }
}

/// Whether a change of FQ's number of flows would send packets of a flow to another queue than those before them.
fn resized(scheduler: &Scheduler, parameters: &SchedulerParameters) -> bool {
    let flows = |kind: &SchedulerKind| match kind {
        SchedulerKind::FqCodel(fq, _) | SchedulerKind::FqPie(fq, _) => fq.flows,
        _ => 0,
    };
    flows(&scheduler.kind) != flows(&parameters.kind)
}
