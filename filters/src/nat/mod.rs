#![forbid(unsafe_code)]
//! `ipfw nat`: network address translation with the endpoint behaviour of libalias(3).
//!
//! A [`Nat`] is one instance (`ipfw nat N config`) on one worker: its states, and what it knows of the fragments under way. The instances of
//! one number on all workers share a [`SharedFlows`]. A packet is translated in place by [`Nat::translate`]; rules, `one_pass`, and what
//! happens to the packet afterwards are the engine's.
//!
//! - *Out*: the source becomes the alias address; TCP and UDP ports and ICMP identifiers are chosen ([`port`]), other protocols and SCTP keep
//!   what they have. A tuple is used by one flow at a time for each peer, not for the whole outside.
//! - *In*: by state, then by redirection, then to the host itself (`deny_in`: dropped). A packet that nobody asked for makes a
//!   state too, so that its answer keeps its port, but such states never take more than half the table.
//! - *ICMP errors* follow the flow that they quote, the quoted packet and its checksums too.
//! - *Fragments* behind the first go where the first went; from outside without one they are dropped. `reass` before `nat` avoids both.
//! - IPv6 passes untouched, as in FreeBSD.
//!
//! Where this differs from libalias, on purpose: a packet that finds no free port, or no room for its state, is dropped and counted and
//! does not leave with its inside address; sources that `unreg_only` leaves alone keep their ports too; `deny_in` holds for
//! first fragments; checksums within quoted packets are mended; errors about protocols without ports are translated; `nat global` asks for
//! a state with protocols without ports, too. Two SCTP flows that differ in their verification tags only are not told apart.
//! The helpers for FTP, IRC, PPTP, RTSP, Skinny and NetBIOS, which libalias loads on request, do not exist here.

mod counters;
mod directory;
mod flow;
mod fragment;
mod icmp;
mod incoming;
mod life;
mod outgoing;
pub mod port;
mod redirect;
mod rewrite;
mod shared;
mod state;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;
use std::sync::Arc;

use ferrule_config::ipfw::nat::NatConfig;
use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::{Family, Flags, Packet};

pub use counters::{Counters, DropCause, LinkCounts, StateInfo};
pub use shared::SharedFlows;
pub use state::Key;

use directory::{Claim, Entry, Face};
use fragment::{Datagram, FragmentTable};
use port::{PortDice, PortRange};
use redirect::Redirects;
use state::{INCOMING, State, StateTable, UNSOLICITED};

/// The direction of the pass in which a rule matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received (`in`).
    In,
    /// To be sent (`out`).
    Out,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translation {
    /// Its addresses or ports changed.
    Translated,
    /// Passed as it was. It may have a state all the same.
    Unchanged,
    /// It must be dropped; counted.
    Drop(DropCause),
}

/// Sizes; the memory is taken when the instance is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// States of one instance on one worker: about 80 bytes each, and 64 to 128 more in [`SharedFlows`] with several workers.
    pub states: usize,
    /// Fragmented datagrams under way.
    pub fragments: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { states: 65_536, fragments: 1024 }
    }
}

/// States looked at for expiry with each packet.
const SWEEP: usize = 2;
/// States looked at before a full table refuses a new one.
const SWEEP_FULL: usize = 32;

/// What the translation itself found; the direction decides what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The packet belongs to a flow; it may have changed.
    Done,
    /// Nothing of ours.
    Ignored,
    /// A later fragment whose first one did not come by.
    Unresolved,
    /// It must not go on.
    Refused(DropCause),
}

/// The other face of one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    address: u32,
    port: u16,
    /// The state, where it is this worker's.
    slot: Option<u32>,
}

/// One instance on one worker.
pub struct Nat {
    config: NatConfig,
    range: PortRange,
    redirects: Redirects,
    /// The alias address; 0 where there is none (yet).
    address: u32,
    worker: usize,
    shared: Arc<SharedFlows>,
    states: StateTable,
    fragments: FragmentTable,
    dice: PortDice,
    counters: Counters,
    links: LinkCounts,
    /// Second of the present packet.
    now: u32,
}

fn seconds(now: Nanos) -> u32 {
    (now / 1_000_000_000) as u32
}

impl Nat {
    /// The instance on one worker (by its number); `shared` is that of all workers' instances of this number.
    pub fn new(config: &NatConfig, limits: Limits, worker: usize, shared: Arc<SharedFlows>) -> Nat {
        let seed = shared.seed();
        Nat {
            config: config.clone(),
            range: config.port_range.into(),
            redirects: Redirects::new(config),
            address: config.address.map_or(0, u32::from),
            worker,
            states: StateTable::new(limits.states, seed),
            fragments: FragmentTable::new(limits.fragments, seed),
            dice: PortDice::new(seed, worker),
            shared,
            counters: Counters::default(),
            links: LinkCounts::default(),
            now: 0,
        }
    }

    /// Translates a packet that a rule `nat N` matched. `interface_address` gives the primary IPv4 address of an interface; it is asked
    /// with each packet where the configuration says `if`, so it must cost little. None leaves the last address in force.
    pub fn translate(
        &mut self,
        packet: &mut Packet,
        direction: Direction,
        now: Nanos,
        interface_address: impl Fn(&str) -> Option<Ipv4Addr>,
    ) -> Translation {
        if !self.begin(packet, now, interface_address) {
            return Translation::Unchanged;
        }
        let outward = (direction == Direction::Out) != self.config.reverse;
        self.carry_out(
            packet,
            direction,
            |nat, packet| {
                if outward { nat.outgoing(packet, true) } else { nat.incoming(packet) }
            },
        )
    }

    /// As [`Nat::translate`] on the way out, but only where the flow has a state already: what `nat global` does with each instance in
    /// turn until one answers Some. None with `skip_global`.
    pub fn translate_known(
        &mut self,
        packet: &mut Packet,
        now: Nanos,
        interface_address: impl Fn(&str) -> Option<Ipv4Addr>,
    ) -> Option<Translation> {
        if self.config.skip_global || !self.begin(packet, now, interface_address) {
            return None;
        }
        let mut found = Outcome::Ignored;
        let translation = self.carry_out(packet, Direction::Out, |nat, packet| {
            found = if nat.config.reverse { nat.incoming(packet) } else { nat.outgoing(packet, false) };
            found
        });
        (found == Outcome::Done).then_some(translation)
    }

    /// What comes before every packet. False where the instance has nothing to do with it.
    fn begin(&mut self, packet: &Packet, now: Nanos, address: impl Fn(&str) -> Option<Ipv4Addr>) -> bool {
        self.now = seconds(now);
        if let Some(address) = self.config.interface.as_deref().and_then(address) {
            self.set_address(address);
        }
        self.sweep(SWEEP);
        packet.family == Family::V4 && !self.config.proxy_only
    }

    fn carry_out(
        &mut self,
        packet: &mut Packet,
        direction: Direction,
        translate: impl FnOnce(&mut Nat, &mut Packet) -> Outcome,
    ) -> Translation {
        let face = |p: &Packet| (p.source_v4(), p.destination_v4(), p.source_port, p.destination_port);
        let before = face(packet);
        let outcome = translate(self, packet);
        let refused = match outcome {
            Outcome::Refused(cause) => Some(cause),
            Outcome::Ignored if direction == Direction::In && self.config.deny_in => Some(DropCause::Denied),
            Outcome::Unresolved if direction == Direction::In => Some(DropCause::UnresolvedFragment),
            _ => None,
        };
        if let Some(cause) = refused {
            self.counters.dropped[cause as usize] += 1;
            return Translation::Drop(cause);
        }
        let after = face(packet);
        if before == after && !(outcome == Outcome::Done && flow::shape(packet) == flow::Shape::Error) {
            self.counters.unchanged += 1;
            return Translation::Unchanged;
        }
        // At the In hook the route comes afterwards anyway.
        if before.1 != after.1 && direction == Direction::Out {
            packet.flags.set(Flags::REROUTE);
        }
        match direction {
            Direction::In => self.counters.translated_in += 1,
            Direction::Out => self.counters.translated_out += 1,
        }
        Translation::Translated
    }

    /// Takes out what is past its time, looking at no more than so many states: with each packet, and for whoever calls it in quiet times.
    pub fn sweep(&mut self, states: usize) {
        for _ in 0..states {
            if let Some(state) = self.states.sweep(self.now) {
                self.forget(&state);
                self.counters.expired += 1;
            }
        }
    }

    /// As [`Nat::sweep`] at a time of the caller's.
    pub fn sweep_at(&mut self, now: Nanos, states: usize) {
        self.now = seconds(now);
        self.sweep(states);
    }

    fn set_address(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        if self.address == address {
            return;
        }
        // The first address is no change of one.
        if self.config.reset && self.address != 0 {
            self.reset();
        }
        self.address = address;
    }

    /// Puts another configuration in force. States go on with the address and port that they have; with `reset` they end where the alias
    /// address is another one.
    pub fn reconfigure(&mut self, config: &NatConfig) {
        self.range = config.port_range.into();
        self.redirects = Redirects::new(config);
        self.config = config.clone();
        match (config.address, &config.interface) {
            (Some(address), _) => self.set_address(address),
            (None, None) => self.set_address(Ipv4Addr::UNSPECIFIED),
            // The interface's follows with the next packet.
            (None, Some(_)) => {}
        }
    }

    /// Ends every state.
    pub fn reset(&mut self) {
        // One look at each queue's head per round; every state is taken out once.
        let all: Vec<Key> = self.states.iter().map(State::inside_key).collect();
        for key in all {
            if let Some(state) = self.states.find_out(&key).and_then(|slot| self.states.remove(slot)) {
                self.forget(&state);
            }
        }
        self.fragments.clear();
    }

    /// The configuration in force.
    pub fn config(&self) -> &NatConfig {
        &self.config
    }

    /// The alias address in force.
    pub fn address(&self) -> Option<Ipv4Addr> {
        (self.address != 0).then(|| self.address.into())
    }

    /// Counters since the instance was made.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// States by kind, as `ipfw nat N show log` prints them.
    pub fn links(&self) -> LinkCounts {
        LinkCounts { fragment: self.fragments.len(self.now), ..self.links }
    }

    /// Every state, in no order.
    pub fn states(&self) -> impl Iterator<Item = StateInfo> {
        self.states.iter().map(|state| StateInfo::new(state, self.now))
    }

    /// Bytes of memory that the instance has taken, beside [`SharedFlows::memory`].
    pub fn memory(&self) -> usize {
        self.states.memory()
    }

    /// What a state's end entails.
    fn forget(&mut self, state: &State) {
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
    fn alive(&mut self, found: Option<u32>) -> Option<u32> {
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
    fn elsewhere(&self, key: &Key, face: Face) -> Option<Mapping> {
        let entry = self.shared.directory.as_ref()?.get(key, face)?;
        // An entry of our own without its state is one that ends.
        let foreign = usize::from(entry.owner) != self.worker;
        foreign.then_some(Mapping { address: entry.address, port: entry.port, slot: None })
    }

    /// Makes a state for a flow. `exclusive`: the tuple outside was chosen and must be nobody else's; otherwise the newest flow has it. Err
    /// where it cannot be.
    fn create(&mut self, state: State, exclusive: bool) -> Result<u32, DropCause> {
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
    fn touch(&mut self, slot: Option<u32>, packet: &Packet, from_inside: bool) {
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

    /// The datagram that a fragment is part of.
    fn datagram(packet: &Packet, outward: bool) -> Datagram {
        let h = packet.frame.header();
        Datagram {
            source: packet.source_v4(),
            destination: packet.destination_v4(),
            id: u16::from_be_bytes([h[18], h[19]]),
            protocol: packet.protocol,
            outward,
        }
    }
}

impl Drop for Nat {
    /// The shared table must name no worker for flows that are gone.
    fn drop(&mut self) {
        if self.shared.directory.is_some() {
            self.reset();
        }
    }
}
