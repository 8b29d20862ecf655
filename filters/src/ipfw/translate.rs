#![forbid(unsafe_code)]
//! The instances of NAT of one worker, by their numbers.

use std::net::Ipv4Addr;

use ferrule_config::ipfw::nat::NatConfig;
use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::{Packet, PortId};
use ferrule_dataplane::ports::PortTable;
use ferrule_dataplane::stage::{Context, Hook};
use ferrule_dataplane::verdict::DropReason;

use crate::nat::{Direction, DropCause, Nat, Translation};

/// States of each instance looked at for their end in one turn.
const SWEEP: usize = 16;

struct Instance {
    number: u32,
    nat: Box<Nat>,
    /// The port of `if`, once it was looked for.
    port: Option<PortId>,
}

/// All instances of a worker.
#[derive(Default)]
pub struct Translations {
    /// By number.
    instances: Vec<Instance>,
    swept: Nanos,
}

/// The primary IPv4 address of a port.
fn address_of(ports: &PortTable, port: Option<PortId>) -> Option<Ipv4Addr> {
    ports.get(port?)?.addresses().v4.first().copied()
}

/// How a drop of NAT is counted.
pub fn reason(cause: DropCause) -> DropReason {
    match cause {
        DropCause::Denied => DropReason::NatDenied,
        DropCause::NoPort => DropReason::NatNoPort,
        DropCause::TableFull => DropReason::NatTableFull,
        DropCause::UnresolvedFragment => DropReason::NatFragment,
        DropCause::NoAddress => DropReason::NatNoAddress,
    }
}

impl Translations {
    fn place(&self, number: u32) -> Result<usize, usize> {
        self.instances.binary_search_by_key(&number, |instance| instance.number)
    }

    /// Whether there is this instance.
    pub fn has(&self, number: u32) -> bool {
        self.place(number).is_ok()
    }

    /// Puts an instance in; the one that had its number before comes back.
    pub fn put(&mut self, nat: Box<Nat>) -> Option<Box<Nat>> {
        let number = nat.config().number;
        let instance = Instance { number, nat, port: None };
        match self.place(number) {
            Ok(at) => self.instances.get_mut(at).map(|place| std::mem::replace(place, instance).nat),
            Err(at) => {
                self.instances.insert(at, instance);
                None
            }
        }
    }

    /// Gives an instance another configuration; its states stay.
    pub fn reconfigure(&mut self, config: &NatConfig) {
        if let Ok(at) = self.place(config.number)
            && let Some(instance) = self.instances.get_mut(at)
        {
            instance.nat.reconfigure(config);
            instance.port = None;
        }
    }

    /// Takes an instance out.
    pub fn take(&mut self, number: u32) -> Option<Box<Nat>> {
        self.place(number).ok().map(|at| self.instances.remove(at).nat)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Nat> {
        self.instances.iter().map(|instance| &*instance.nat)
    }

    /// The worker that has the state of a packet just received, where one of the instances knows.
    #[inline]
    pub fn owner_of(&self, packet: &Packet) -> Option<usize> {
        self.instances.iter().find_map(|instance| instance.nat.shared().owner_of(packet))
    }

    /// `nat N`; [`Translation::Unchanged`] where there is no such instance: the rules have looked before.
    pub fn translate(&mut self, number: u32, packet: &mut Packet, hook: Hook, context: &Context<'_>) -> Translation {
        let Ok(at) = self.place(number) else { return Translation::Unchanged };
        let Some(instance) = self.instances.get_mut(at) else { return Translation::Unchanged };
        let ports = &context.shared.ports;
        let port = instance.find_port(ports);
        let direction = if hook == Hook::In { Direction::In } else { Direction::Out };
        instance.nat.translate(packet, direction, context.now, |_| address_of(ports, port))
    }

    /// `nat global`: the first instance that knows the flow of a packet on its way out.
    pub fn translate_known(&mut self, packet: &mut Packet, hook: Hook, context: &Context<'_>) -> Translation {
        if hook == Hook::In {
            return Translation::Unchanged;
        }
        let ports = &context.shared.ports;
        for instance in &mut self.instances {
            let port = instance.find_port(ports);
            let known = instance.nat.translate_known(packet, context.now, |_| address_of(ports, port));
            if let Some(translation) = known {
                return translation;
            }
        }
        Translation::Unchanged
    }

    /// Ends states whose time is up, also where no packets come; once a millisecond is enough.
    pub fn sweep(&mut self, now: Nanos) {
        if now.saturating_sub(self.swept) < 1_000_000 {
            return;
        }
        self.swept = now;
        self.instances.iter_mut().for_each(|instance| instance.nat.sweep_at(now, SWEEP));
    }
}

impl Instance {
    fn find_port(&mut self, ports: &PortTable) -> Option<PortId> {
        if self.port.is_none() {
            // Names of ports do not change; one that is none is looked for again with each packet.
            self.port = self.nat.config().interface.as_deref().and_then(|name| ports.by_name(name)).map(|(id, _)| id);
        }
        self.port
    }
}
