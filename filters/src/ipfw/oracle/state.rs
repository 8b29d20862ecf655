#![forbid(unsafe_code)]
//! Dynamic rules as a list, newest last, after `ip_fw_dynamic.c` of FreeBSD 14.
//!
//! Time is in whole seconds, and a state is gone as soon as its second has come (FreeBSD looks once a second). A flow has one
//! state in a group: a rule that would make another one refreshes the one there is.

use std::net::IpAddr;

use ferrule_config::ipfw::ast::{Limit, StateName};

use super::pass::Pass;
use super::setup::{Lifetimes, Settings};
use super::view::{Family, View, long, protocol};

const FIN: u32 = 1;
const SYN: u32 = 2;
const RST: u32 = 4;
const BOTH_SYN: u32 = SYN | SYN << 8;
const BOTH_FIN: u32 = FIN | FIN << 8;
const FLAGS: u32 = (FIN | SYN | RST) | (FIN | SYN | RST) << 8;
const ACK_FORWARD: u32 = 1 << 16;
const ACK_REVERSE: u32 = 1 << 17;
const ACK_BOTH: u32 = ACK_FORWARD | ACK_REVERSE;

/// A flow in the direction of its first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Protocol.
    pub protocol: u8,
    /// Source and its port; in a limit's combination, zero where it does not count.
    pub source: (IpAddr, u16),
    /// Destination and its port.
    pub destination: (IpAddr, u16),
    /// Interface, where one of the addresses is link-local.
    pub scope: Option<String>,
}

impl Flow {
    /// The flow of a packet; None for what is not IP.
    pub fn of(view: &View, pass: &Pass<'_>) -> Option<Flow> {
        let local = |address: IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        let scoped = local(view.source) || local(view.destination);
        (view.family != Family::Other).then(|| Flow {
            protocol: view.protocol,
            source: (view.source, view.source_port),
            destination: (view.destination, view.destination_port),
            scope: if scoped { pass.interface().map(str::to_owned) } else { None },
        })
    }

    /// The same flow seen from the other end.
    pub fn reversed(&self) -> Flow {
        Flow { source: self.destination, destination: self.source, ..self.clone() }
    }

    /// The combination that a limit counts.
    fn counted(&self, limit: &Limit) -> Flow {
        let zero = |address: IpAddr| if address.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
        let part = |(address, port): (IpAddr, u16), keeps_address: bool, keeps_port: bool| {
            (if keeps_address { address } else { zero(address) }, if keeps_port { port } else { 0 })
        };
        Flow {
            source: part(self.source, limit.source_address, limit.source_port),
            destination: part(self.destination, limit.destination_address, limit.destination_port),
            ..self.clone()
        }
    }
}

/// Which way a packet goes in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As the first packet.
    Forward,
    /// Back.
    Reverse,
}

/// A dynamic rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Its flow.
    pub flow: Flow,
    /// Its group.
    pub name: StateName,
    /// Index of the rule that made it and whose action it carries out.
    pub rule: usize,
    /// Combination that it counts in, for `limit` and `set-limit`.
    pub limited: Option<Flow>,
    /// Second in which it ends.
    pub expire: u64,
    /// Packets forward and back.
    pub packets: [u64; 2],
    /// Bytes forward and back.
    pub bytes: [u64; 2],
    /// Flags seen: forward in the first byte, back in the second; above them whose acknowledgement was the last to count.
    tcp: u32,
    acknowledged: [u32; 2],
}

/// No state could be made: the packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// All dynamic rules.
#[derive(Clone, Debug, Default)]
pub struct States(Vec<State>);

/// What a state needs to know of a packet.
pub struct Sighting<'a> {
    /// The bytes.
    pub frame: &'a [u8],
    /// What was read from them.
    pub view: &'a View,
    /// Where the packet is.
    pub pass: &'a Pass<'a>,
    /// Now, in seconds.
    pub now: u64,
}

impl States {
    /// All states, oldest first.
    pub fn all(&self) -> &[State] {
        &self.0
    }

    /// Ends what has had its time.
    pub fn expire(&mut self, now: u64) {
        self.0.retain(|state| state.expire > now);
    }

    /// Looks for the packet's flow in one group or in all, newest first, and counts the packet where it is found.
    pub fn find(&mut self, seen: &Sighting<'_>, name: &StateName, lifetimes: &Lifetimes) -> Option<(usize, Way)> {
        let flow = Flow::of(seen.view, seen.pass)?;
        let back = flow.reversed();
        let state = self.0.iter_mut().rev().find(|state| {
            (*name == StateName::Any || state.name == *name) && (state.flow == flow || state.flow == back)
        })?;
        let way = if state.flow == flow { Way::Forward } else { Way::Reverse };
        state.see(seen, way, lifetimes);
        Some((state.rule, way))
    }

    /// How many states of a rule count in a combination.
    fn children(&self, rule: usize, combination: &Flow) -> usize {
        let counts = |state: &&State| state.rule == rule && state.limited.as_ref() == Some(combination);
        self.0.iter().filter(counts).count()
    }

    /// Makes a state of the packet's flow for a rule, or counts the packet in the one there is. A limit that is reached refuses the
    /// packet before it is asked whether the flow has its state already.
    pub fn install(
        &mut self,
        seen: &Sighting<'_>,
        rule: usize,
        name: &StateName,
        limit: Option<(&Limit, u32)>,
        settings: &Settings,
    ) -> Result<(), Full> {
        let flow = Flow::of(seen.view, seen.pass).ok_or(Full)?;
        let limited = limit.map(|(limit, _)| flow.counted(limit));
        if let (Some(combination), Some((_, most))) = (&limited, limit)
            && self.children(rule, combination) >= most as usize
        {
            return Err(Full);
        }
        if self.find(seen, name, &settings.lifetimes).is_some() {
            return Ok(());
        }
        if self.0.len() >= settings.dynamic_max {
            return Err(Full);
        }
        let expire = seen.now + settings.lifetimes.syn;
        let (name, packets, bytes, acknowledged) = (name.clone(), [0; 2], [0; 2], [0; 2]);
        let mut state = State { flow, name, rule, limited, expire, packets, bytes, tcp: 0, acknowledged };
        state.see(seen, Way::Forward, &settings.lifetimes);
        self.0.push(state);
        Ok(())
    }
}

impl State {
    /// Counts a packet and gives the state its new end.
    fn see(&mut self, seen: &Sighting<'_>, way: Way, lifetimes: &Lifetimes) {
        self.expire = match seen.view.protocol {
            protocol::UDP | protocol::UDP_LITE => seen.now + lifetimes.udp,
            protocol::TCP => self.see_tcp(seen, way, lifetimes),
            _ => seen.now + lifetimes.short,
        };
        let index = if way == Way::Forward { 0 } else { 1 };
        self.packets[index] += 1;
        self.bytes[index] += seen.view.counted;
    }

    fn see_tcp(&mut self, seen: &Sighting<'_>, way: Way, lifetimes: &Lifetimes) -> u64 {
        let flags = u32::from(seen.view.tcp_flags) & (FIN | SYN | RST);
        let (shifted, ack_bit, index) = match way {
            Way::Forward => (flags, ACK_FORWARD, 0),
            Way::Reverse => (flags << 8, ACK_REVERSE, 1),
        };
        self.tcp |= shifted;
        let below = |life: u64, bounded: bool| {
            if bounded && life >= lifetimes.keepalive_period { lifetimes.keepalive_period - 1 } else { life }
        };
        match self.tcp & FLAGS {
            SYN => seen.now + lifetimes.syn,
            both if both == BOTH_SYN || both == BOTH_SYN | FIN || both == BOTH_SYN | FIN << 8 => {
                let Some(tcp) = seen.view.tcp() else { return self.expire };
                let acknowledgement = long(seen.frame, tcp + 8);
                let last = self.acknowledged[index];
                let mut heard = self.tcp;
                // The life time is renewed only when both ends have acknowledged since it was last.
                if last == 0 || acknowledgement.wrapping_sub(last) as i32 >= 0 {
                    heard |= ack_bit;
                    self.acknowledged[index] = acknowledgement;
                }
                if heard & ACK_BOTH == ACK_BOTH {
                    self.tcp ^= ACK_BOTH;
                    seen.now + lifetimes.ack
                } else {
                    self.tcp |= heard & ACK_BOTH;
                    self.expire
                }
            }
            all if all == BOTH_SYN | BOTH_FIN => seen.now + below(lifetimes.fin, true),
            _ => seen.now + below(lifetimes.rst, lifetimes.keepalive),
        }
    }
}
