#![forbid(unsafe_code)]
//! From inside to outside: the source becomes the alias.

use ferrule_dataplane::packet::{Flags, Packet, hash};

use super::counters::DropCause;
use super::directory::Face;
use super::flow::{self, ICMP, SCTP, Shape, TCP, UDP};
use super::port::choose_port;
use super::rewrite::{self, End};
use super::state::{Key, State, StateTable};
use super::{Mapping, Nat, Outcome, SharedFlows};

/// How often a port is chosen anew where another worker took it at the same moment.
const CLAIMS: usize = 3;

/// RFC 1918; with `shared`, RFC 6598 too.
fn is_unregistered(address: u32, shared: bool) -> bool {
    address >> 24 == 10
        || address >> 20 == 0xac1
        || address >> 16 == 0xc0a8
        || (shared && address >> 22 == 0x6440_0000 >> 22)
}

/// Whether a flow has the tuple outside, here or on another worker.
fn is_taken(states: &StateTable, shared: &SharedFlows, wire: &Key, now: u32) -> bool {
    match states.find_in(wire) {
        Some(slot) => !states.is_over(slot, now),
        None => shared.directory.as_ref().is_some_and(|d| d.get(wire, Face::Wire).is_some()),
    }
}

impl Nat {
    /// Translates a packet from inside; without `create` only by a state that is there.
    pub(super) fn outgoing(&mut self, packet: &mut Packet, create: bool) -> Outcome {
        if packet.flags.has(Flags::LATER_FRAGMENT) {
            return self.fragment_outgoing(packet, create);
        }
        let datagram = packet.flags.has(Flags::FRAGMENT).then(|| Nat::datagram(packet, true));
        let outcome = match flow::shape(packet) {
            Shape::Error => self.error_outgoing(packet),
            Shape::Other => Outcome::Ignored,
            shape => self.flow_outgoing(packet, shape, create),
        };
        if let Some(datagram) = datagram
            && matches!(outcome, Outcome::Done | Outcome::Ignored)
        {
            self.fragments.record(datagram, packet.source_v4(), self.now);
        }
        outcome
    }

    fn flow_outgoing(&mut self, packet: &mut Packet, shape: Shape, create: bool) -> Outcome {
        let Some(key) = flow::key(packet) else { return Outcome::Ignored };
        let mapping = match self.known_outgoing(&key) {
            Some(mapping) => mapping,
            None if !create => return Outcome::Ignored,
            None => match self.new_outgoing(key) {
                Ok(mapping) => mapping,
                Err(cause) => return Outcome::Refused(cause),
            },
        };
        self.touch(mapping.slot, packet, true);
        let port = (shape == Shape::Echo || matches!(key.protocol, TCP | UDP)).then_some(mapping.port);
        if (mapping.address, port.unwrap_or(key.near_port)) != (key.near, key.near_port) {
            rewrite::end(packet, End::Source, mapping.address, port);
        }
        Outcome::Done
    }

    /// The alias side of a flow that has a state, here or elsewhere.
    pub(super) fn known_outgoing(&mut self, key: &Key) -> Option<Mapping> {
        if let Some(slot) = self.alive(self.states.find_out(key)) {
            let state = self.states.get(slot)?;
            return Some(Mapping { address: state.alias, port: state.alias_port, slot: Some(slot) });
        }
        self.elsewhere(key, Face::Inside)
    }

    fn new_outgoing(&mut self, key: Key) -> Result<Mapping, DropCause> {
        if key.protocol != ICMP
            && let Some((address, port)) = self.redirects.outgoing(&key, self.address)
        {
            // SCTP keeps its ports.
            let port = if key.protocol == SCTP { key.near_port } else { port };
            return self.fixed(key, address, port);
        }
        match self.alias_of(key.near)? {
            // Left alone: the state only remembers that its answers are wanted.
            alias if alias == key.near && !self.is_aliased(key.near) => self.fixed(key, alias, key.near_port),
            alias => match key.protocol {
                TCP | UDP | ICMP => self.chosen(key, alias),
                SCTP => self.unshared(key, alias),
                _ => self.fixed(key, alias, key.near_port),
            },
        }
    }

    /// Whether sources of this kind are translated at all.
    fn is_aliased(&self, source: u32) -> bool {
        match (self.config.unregistered_only, self.config.unregistered_cgn) {
            (false, false) => true,
            (_, cgn) => is_unregistered(source, cgn),
        }
    }

    /// The address that stands for an inside host outside.
    fn alias_of(&self, source: u32) -> Result<u32, DropCause> {
        if let Some(public) = self.redirects.public_of(source, self.address) {
            return Ok(public);
        }
        if !self.is_aliased(source) {
            return Ok(source);
        }
        match self.address {
            0 if self.config.interface.is_some() => Err(DropCause::NoAddress),
            // Neither `ip` nor `if`: redirections only.
            0 => Ok(source),
            address => Ok(address),
        }
    }

    /// A state whose tuple outside is given.
    fn fixed(&mut self, key: Key, address: u32, port: u16) -> Result<Mapping, DropCause> {
        let slot = self.create(State::new(key, address, port, self.now), false)?;
        Ok(Mapping { address, port, slot: Some(slot) })
    }

    /// A state that keeps its ports and can be had once.
    fn unshared(&mut self, key: Key, alias: u32) -> Result<Mapping, DropCause> {
        let state = State::new(key, alias, key.near_port, self.now);
        if is_taken(&self.states, &self.shared, &state.wire_key(), self.now) {
            return Err(DropCause::NoPort);
        }
        let slot = self.create(state, true)?;
        Ok(Mapping { address: alias, port: key.near_port, slot: Some(slot) })
    }

    /// A state with a port or identifier of our choice.
    fn chosen(&mut self, key: Key, alias: u32) -> Result<Mapping, DropCause> {
        let wire = |port| {
            let far_port = if key.protocol == ICMP { port } else { key.far_port };
            Key { near: alias, near_port: port, far_port, ..key }
        };
        let same = self.config.same_ports.then_some(key.near_port);
        for _ in 0..CLAIMS {
            let Nat { dice, states, shared, worker, range, now, .. } = self;
            let owner = |port| hash::owner(wire(port).hash(shared.seed()), shared.workers()) == *worker;
            let free = |port| !is_taken(states, shared, &wire(port), *now);
            let Some(choice) = choose_port(same, *range, dice, free, owner) else { break };
            match self.create(State::new(key, alias, choice.port, self.now), true) {
                Ok(slot) => return Ok(Mapping { address: alias, port: choice.port, slot: Some(slot) }),
                Err(DropCause::NoPort) => {}
                Err(cause) => return Err(cause),
            }
        }
        Err(DropCause::NoPort)
    }

    /// Later fragments have no ports: they go as the first one went, or by address.
    fn fragment_outgoing(&mut self, packet: &mut Packet, create: bool) -> Outcome {
        let first = self.fragments.find(&Nat::datagram(packet, true), self.now);
        let alias = match first {
            Some(alias) => alias,
            None if !create => return Outcome::Ignored,
            None => match self.alias_of(packet.source_v4()) {
                Ok(alias) => alias,
                Err(cause) => return Outcome::Refused(cause),
            },
        };
        if alias != packet.source_v4() {
            rewrite::end(packet, End::Source, alias, None);
        }
        Outcome::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_networks_are_as_the_rfcs_have_them() {
        let yes = ["10.0.0.0", "10.255.255.255", "172.16.0.0", "172.31.255.255", "192.168.0.0", "192.168.255.255"];
        let no = ["9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255", "192.169.0.0"];
        let number = |a: &&str| u32::from(a.parse::<std::net::Ipv4Addr>().unwrap());
        assert!(yes.iter().all(|a| is_unregistered(number(a), false)));
        assert!(no.iter().all(|a| !is_unregistered(number(a), true)));
        for (address, inside) in
            [("100.63.255.255", false), ("100.64.0.0", true), ("100.127.255.255", true), ("100.128.0.0", false)]
        {
            assert_eq!(is_unregistered(number(&address), true), inside, "{address}");
            assert!(!is_unregistered(number(&address), false));
        }
    }
}
