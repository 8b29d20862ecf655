#![forbid(unsafe_code)]
//! From outside to inside: the destination becomes the inside host.

use ferrule_dataplane::packet::{Flags, Packet};

use super::counters::DropCause;
use super::directory::Face;
use super::flow::{self, ICMP, SCTP, Shape, TCP, UDP};
use super::rewrite::{self, End};
use super::state::{Key, State};
use super::{Mapping, Nat, Outcome};

impl Nat {
    /// Translates a packet from outside.
    pub(super) fn incoming(&mut self, packet: &mut Packet) -> Outcome {
        if packet.flags.has(Flags::LATER_FRAGMENT) {
            return self.fragment_incoming(packet);
        }
        let datagram = packet.flags.has(Flags::FRAGMENT).then(|| Nat::datagram(packet, false));
        let outcome = match flow::shape(packet) {
            Shape::Error => self.error_incoming(packet),
            Shape::Other => Outcome::Ignored,
            shape => self.flow_incoming(packet, shape),
        };
        if let Some(datagram) = datagram
            && (outcome == Outcome::Done || (outcome == Outcome::Ignored && !self.config.deny_in))
        {
            self.fragments.record(datagram, packet.destination_v4(), self.now);
        }
        outcome
    }

    fn flow_incoming(&mut self, packet: &mut Packet, shape: Shape) -> Outcome {
        // The flow as the outside sees it from our end.
        let Some(key) = flow::key(packet).map(Key::reversed) else { return Outcome::Ignored };
        let mapping = match self.known_incoming(&key) {
            Some(mapping) => mapping,
            None => match self.new_incoming(key) {
                Ok(Some(mapping)) => mapping,
                Ok(None) => return Outcome::Ignored,
                Err(cause) => return Outcome::Refused(cause),
            },
        };
        self.touch(mapping.slot, packet, false);
        let port = (shape == Shape::Echo || matches!(key.protocol, TCP | UDP)).then_some(mapping.port);
        if (mapping.address, port.unwrap_or(key.near_port)) != (key.near, key.near_port) {
            rewrite::end(packet, End::Destination, mapping.address, port);
        }
        Outcome::Done
    }

    /// The inside host of a flow that has a state, here or elsewhere.
    pub(super) fn known_incoming(&mut self, key: &Key) -> Option<Mapping> {
        if let Some(slot) = self.alive(self.states.find_in(key)) {
            let state = self.states.get(slot)?;
            return Some(Mapping { address: state.inside, port: state.inside_port, slot: Some(slot) });
        }
        self.elsewhere(key, Face::Wire)
    }

    /// A flow that begins outside: by redirection, or to the host that has the address; None with `deny_in`.
    fn new_incoming(&mut self, key: Key) -> Result<Option<Mapping>, DropCause> {
        let redirect = match key.protocol {
            ICMP => None,
            _ => self.redirects.incoming(&key, self.address, Some(&self.shared.turns)),
        };
        if let Some((address, port)) = redirect {
            let port = if key.protocol == SCTP { key.near_port } else { port };
            return self.begun_outside(key, address, port, true).map(Some);
        }
        if self.config.deny_in {
            return Ok(None);
        }
        let local = self.redirects.local_of(key.near, self.address, &self.shared.turns);
        match local {
            Some(address) => self.begun_outside(key, address, key.near_port, true).map(Some),
            None => match self.begun_outside(key, key.near, key.near_port, false) {
                Ok(mapping) => Ok(Some(mapping)),
                Err(_) => {
                    // It passes as it is; its answer will look like a new flow.
                    self.counters.unrecorded += 1;
                    Ok(Some(Mapping { address: key.near, port: key.near_port, slot: None }))
                }
            },
        }
    }

    /// A state for a flow from outside. Where the inside host has the same tuple in another flow, that one keeps it, lest a forged packet
    /// end it; this one's packets are translated one by one.
    fn begun_outside(&mut self, key: Key, address: u32, port: u16, asked_for: bool) -> Result<Mapping, DropCause> {
        let far_port = if key.protocol == ICMP { port } else { key.far_port };
        let inside = Key { near: address, near_port: port, far_port, ..key };
        if self.known_outgoing(&inside).is_some() {
            return Ok(Mapping { address, port, slot: None });
        }
        let state = State::new(inside, key.near, key.near_port, self.now);
        let slot = self.create(if asked_for { state } else { state.unsolicited() }, false)?;
        Ok(Mapping { address, port, slot: Some(slot) })
    }

    /// Later fragments have no ports: they go where the first one went.
    fn fragment_incoming(&mut self, packet: &mut Packet) -> Outcome {
        let Some(address) = self.fragments.find(&Nat::datagram(packet, false), self.now) else {
            return Outcome::Unresolved;
        };
        if address != packet.destination_v4() {
            rewrite::end(packet, End::Destination, address, None);
        }
        Outcome::Done
    }
}
