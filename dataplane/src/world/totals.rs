//! What a world counted, over all workers, and whether everything is still there.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::World;
use crate::counters::{Balance, Counter, WorkerCounters};
use crate::packet::PortId;
use crate::verdict::{Consumed, DropReason, Generated, PuntClass};
use crate::worker::{Command, Worker};

/// Sums of the counters that tell what became of packets; two runs that did the same have equal ones. What is zero is not in the maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// By [`DropReason::label`].
    pub dropped: BTreeMap<&'static str, u64>,
    /// By [`Generated::label`].
    pub generated: BTreeMap<&'static str, u64>,
    /// By [`Consumed::label`].
    pub consumed: BTreeMap<&'static str, u64>,
    /// By [`PuntClass::label`].
    pub punted: BTreeMap<&'static str, u64>,
    /// By port: packets and bytes received, transmitted, to the host, from the host.
    pub ports: Vec<[(u64, u64); 4]>,
    /// By port: packets and bytes with a VLAN port's tag received and transmitted.
    pub vlans: Vec<[(u64, u64); 2]>,
    /// ICMP errors that the rate limit kept back.
    pub icmp_suppressed: u64,
    /// Packets handed to another worker, and taken over.
    pub handed_over: (u64, u64),
}

/// What was left when a world ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The sums; [`Balance::difference`] and `held` are 0 where every packet is accounted for.
    pub balance: Balance,
    /// Buffers that nobody has; 0 where none was lost.
    pub missing: i64,
}

impl Closed {
    /// Whether every packet and every buffer is accounted for.
    pub fn is_exact(&self) -> bool {
        self.balance.difference() == 0 && self.balance.held == 0 && self.missing == 0
    }
}

impl World {
    fn counters(&self) -> impl Iterator<Item = &WorkerCounters> {
        let host = self.host.iter().map(|host| &*host.counters);
        self.counters.iter().map(|c| &**c).chain(host)
    }

    /// The sums of promise 2, over all workers and the host.
    pub fn balance(&self) -> Balance {
        Balance::of(self.counters())
    }

    /// Packets dropped for one reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.counters().map(|c| c.dropped[reason as usize].get()).sum()
    }

    /// Packets of one kind that were made.
    pub fn generated(&self, kind: Generated) -> u64 {
        self.counters().map(|c| c.generated[kind as usize].get()).sum()
    }

    /// Packets that ended in one way without being dropped.
    pub fn consumed(&self, kind: Consumed) -> u64 {
        self.counters().map(|c| c.consumed[kind as usize].get()).sum()
    }

    /// All sums.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for c in self.counters() {
            let labels = |labels: Vec<&'static str>, from: &[Counter], to: &mut BTreeMap<&'static str, u64>| {
                for (label, counter) in labels.into_iter().zip(from).filter(|(_, counter)| counter.get() != 0) {
                    *to.entry(label).or_default() += counter.get();
                }
            };
            labels(DropReason::ALL.iter().map(|r| r.label()).collect(), &c.dropped, &mut totals.dropped);
            labels(Generated::ALL.iter().map(|k| k.label()).collect(), &c.generated, &mut totals.generated);
            labels(Consumed::ALL.iter().map(|k| k.label()).collect(), &c.consumed, &mut totals.consumed);
            labels(PuntClass::ALL.iter().map(|k| k.label()).collect(), &c.punted, &mut totals.punted);
            totals.ports.resize(c.ports.len(), [(0, 0); 4]);
            totals.vlans.resize(c.ports.len(), [(0, 0); 2]);
            for ((port, sums), vlans) in c.ports.iter().zip(&mut totals.ports).zip(&mut totals.vlans) {
                let flows = [&port.received, &port.transmitted, &port.to_host, &port.from_host];
                let tagged = [&port.vlan_received, &port.vlan_transmitted];
                for (flow, sum) in flows.into_iter().zip(sums).chain(tagged.into_iter().zip(vlans)) {
                    sum.0 += flow.packets.get();
                    sum.1 += flow.bytes.get();
                }
            }
            totals.icmp_suppressed += c.icmp_suppressed.get();
            totals.handed_over.0 += c.handed_over.get();
            totals.handed_over.1 += c.taken_over.get();
        }
        totals
    }

    /// Buffers that are in a pool; all of them once nothing is on its way, held, or waiting to be collected.
    pub fn free_buffers(&self) -> usize {
        self.pool.available() + self.pool.between_pools() + self.workers.iter().map(Worker::buffers).sum::<usize>()
    }

    /// Ends the world: every worker stops, everything that left is thrown away, and the books are balanced. Nothing but counters
    /// can be asked for afterwards.
    pub fn close(&mut self) -> Closed {
        if !std::mem::replace(&mut self.closed, true) {
            for worker in &mut self.workers {
                worker.obey(Command::Stop);
            }
        }
        self.empty_host_rings();
        for port in 0..self.peers.len() {
            let _ = self.collect(PortId(port as u16));
        }
        Closed { balance: self.balance(), missing: i64::from(self.arena.count()) - self.free_buffers() as i64 }
    }
}
