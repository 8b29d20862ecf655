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
//! Chains and super-packets are translated like others: the parser leaves the headers in the first segment. An ICMP error whose quoted headers
//! are not there counts as one about nobody's flow. Checksums left to the device stay left to it.
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
mod keep;
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

use fragment::{Datagram, FragmentTable};
use port::{PortDice, PortRange};
use redirect::Redirects;
use state::StateTable;

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
        if self.config.reset {
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

    /// Ends every state. Takes time with the size of the table: a millisecond or a few, once for each change of the alias address.
    pub fn reset(&mut self) {
        for slot in 0..self.states.capacity() {
            if let Some(state) = self.states.remove(slot as u32) {
                self.forget(&state);
            }
        }
        self.fragments.clear();
    }

    /// The configuration in force.
    pub fn config(&self) -> &NatConfig {
        &self.config
    }

    /// What it shares with the other workers' instances of its number.
    pub fn shared(&self) -> &Arc<SharedFlows> {
        &self.shared
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
