#![forbid(unsafe_code)]
//! Keeping states: what making, using and ending one entails, here and in the table that the workers share.

use ferrule_dataplane::packet::Packet;

use super::counters::DropCause;
use super::directory::{Claim, Entry, Face};
use super::rewrite;
use super::state::{INCOMING, Key, State, UNSOLICITED};
use super::{Mapping, Nat};

/// States looked at before a full table refuses a new one.
const SWEEP_FULL: usize = 32;

impl Nat {
    /// What a state's end entails.
    pub(super) fn forget(&mut self, state: &State) {
        self.links.add(state.protocol, -1);
        if let Some(directory) = &self.shared.directory {
            let owner = self.worker as u16;
            directory.release(&state.inside_key(), Face::Inside, owner);
            // Otherwise the entry is that of a newer flow.
            if state.flags & INCOMING != 0 {
                directory.release(&state.wire_key(), Face::Wire, owner);
            }
        }
    }

    /// A state of this worker that is not past its time; one that is ends here.
    pub(super) fn alive(&mut self, found: Option<u32>) -> Option<u32> {
        let slot = found?;
        if !self.states.is_over(slot, self.now) {
            return Some(slot);
        }
        if let Some(state) = self.states.remove(slot) {
            self.forget(&state);
            self.counters.expired += 1;
        }
        None
    }

    /// What another worker has made of a flow.
    pub(super) fn elsewhere(&self, key: &Key, face: Face) -> Option<Mapping> {
        let entry = self.shared.directory.as_ref()?.get(key, face)?;
        // An entry of our own without its state is one that ends.
        let foreign = usize::from(entry.owner) != self.worker;
        foreign.then_some(Mapping { address: entry.address, port: entry.port, slot: None })
    }

    /// Makes a state for a flow. `exclusive`: the tuple outside was chosen and must be nobody else's; otherwise the newest flow has it. Err
    /// where it cannot be.
    pub(super) fn create(&mut self, state: State, exclusive: bool) -> Result<u32, DropCause> {
        let solicited = state.flags & UNSOLICITED == 0;
        // One past its time gives its tuple up.
        let _ = self.alive(self.states.find_in(&state.wire_key()));
        if self.states.len() == self.states.capacity() {
            self.sweep(SWEEP_FULL);
        }
        if self.states.len() == self.states.capacity()
            || (!solicited && self.states.unsolicited() * 2 >= self.states.capacity())
        {
            return Err(DropCause::TableFull);
        }
        if let Some(directory) = &self.shared.directory {
            let (inside, wire) = (state.inside_key(), state.wire_key());
            let owner = self.worker as u16;
            let back = Entry { address: state.inside, port: state.inside_port, owner };
            let claim = if exclusive {
                directory.claim(&wire, Face::Wire, back)
            } else {
                directory.put(&wire, Face::Wire, back)
            };
            match claim {
                Claim::Done => {}
                Claim::Taken => return Err(DropCause::NoPort),
                Claim::Full => return Err(DropCause::TableFull),
            }
            let there = Entry { address: state.alias, port: state.alias_port, owner };
            if directory.put(&inside, Face::Inside, there) != Claim::Done {
                directory.release(&wire, Face::Wire, owner);
                return Err(DropCause::TableFull);
            }
        }
        let slot = self.states.insert(state).ok_or(DropCause::TableFull)?;
        self.links.add(state.protocol, 1);
        self.counters.created += 1;
        Ok(slot)
    }

    /// Books a packet with its state, and what a TCP segment changes.
    pub(super) fn touch(&mut self, slot: Option<u32>, packet: &Packet, from_inside: bool) {
        let now = self.now;
        let Some(slot) = slot else { return };
        let Some(state) = self.states.get(slot) else { return };
        state.used = now;
        state.packets += 1;
        state.bytes += packet.ip_len() as u64;
        if let Some(flags) = rewrite::tcp_flags(packet)
            && let Some(life) = state.tcp.segment(from_inside, flags)
        {
            self.states.set_life(slot, life);
        }
    }
}
