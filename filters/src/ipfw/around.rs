#![forbid(unsafe_code)]
//! What the rules of one worker reach beyond the packet: states, tables, the box's addresses and routes, the log.

use std::net::{IpAddr, Ipv6Addr};

use ferrule_config::ipfw::table::TableValue;
use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::fib::{AdjacencyId, AdjacencyKind};
use ferrule_dataplane::packet::{Flags, Packet, PortId};
use ferrule_dataplane::stage::{Context, Hook};

use super::counters::CounterRow;
use super::dynamic::{Direction, FlowKey, LimitTo, NameFilter, NewState, PacketFacts, RuleRef, States, state_hash};
use super::execute::{Effects, bytes_of};
use super::lister::StateLister;
use super::log::{LogRecord, LogSink};
use super::notes::Ring;
use super::program::{MakeState, RuleFacts};
use super::residual::{Question, Surroundings, ask};
use super::services::Services;
use super::table::{TableId, Tables};

/// What one worker owns of it.
pub struct Holdings {
    /// What hangs on packets.
    pub notes: Ring,
    /// Dynamic rules.
    pub states: States,
    /// Look-up tables.
    pub tables: Tables,
    /// Pipes and NAT; None where there are none: rules that send packets there drop them.
    pub services: Option<Services>,
    /// Who shows the states to the control side; None where nobody asks.
    pub lister: Option<StateLister>,
    /// Where `log` rules write; None where nobody reads.
    pub log: Option<LogSink>,
    /// Secret of the numbers that `prob` draws.
    pub seed: u64,
    /// Packets walked so far: each draws its own numbers.
    pub walks: u64,
    /// States that ended because their rule was gone.
    pub orphans: u64,
}

impl Holdings {
    /// The holdings of a worker with these states and tables.
    pub fn new(states: States, tables: Tables, seed: u64) -> Holdings {
        Holdings {
            notes: Ring::default(),
            states,
            tables,
            lister: None,
            services: None,
            log: None,
            seed,
            walks: 0,
            orphans: 0,
        }
    }

    /// Takes over the time, the settings and the newest tables.
    #[inline]
    pub fn turn(&mut self, now: Nanos) {
        self.states.turn(now);
        self.tables.turn();
    }
}

/// The holdings at work on one packet.
pub struct Around<'a, 'c> {
    holdings: &'a mut Holdings,
    counters: &'a CounterRow,
    second: u64,
    context: &'a mut Context<'c>,
}

impl<'a, 'c> Around<'a, 'c> {
    /// Puts it together for one packet.
    pub fn new(
        holdings: &'a mut Holdings,
        counters: &'a CounterRow,
        second: u64,
        context: &'a mut Context<'c>,
    ) -> Around<'a, 'c> {
        holdings.walks = holdings.walks.wrapping_add(1);
        Around { holdings, counters, second, context }
    }

    /// What the route to an address leads to.
    fn adjacency(&self, address: IpAddr) -> AdjacencyId {
        let fib = &self.context.shared.fib;
        match address {
            IpAddr::V4(address) => fib.v4.lookup(address.to_bits()),
            IpAddr::V6(address) => fib.v6.lookup(address.to_bits()),
        }
    }

    /// Kind and port of the way to an address.
    fn way(&self, address: IpAddr) -> (AdjacencyKind, PortId) {
        let view = self.context.shared.fib.adjacencies.get(self.adjacency(address));
        (view.kind(), view.port())
    }
}

impl Surroundings for Around<'_, '_> {
    fn look_up(&self, table: TableId, question: Question) -> Option<TableValue> {
        ask(&self.holdings.tables, table, question)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.context.shared.ports.iter().any(|(port, _)| self.has_address(port, address))
    }

    fn has_address(&self, port: PortId, address: IpAddr) -> bool {
        let Some(port) = self.context.shared.ports.get(port) else { return false };
        let own = port.addresses();
        match address {
            IpAddr::V4(address) => own.v4.contains(&address),
            IpAddr::V6(address) => own.v6.contains(&address) || own.link_local == Some(address),
        }
    }

    fn is_attached(&self, address: IpAddr) -> bool {
        let local = |address: Ipv6Addr| address.is_loopback() || address.is_unicast_link_local();
        if matches!(address, IpAddr::V6(address) if local(address)) {
            return true;
        }
        let adjacencies = &self.context.shared.fib.adjacencies;
        let id = self.adjacency(address);
        match adjacencies.get(id).kind() {
            AdjacencyKind::Glean | AdjacencyKind::Local => true,
            // A neighbour that is known, or asked for, is its own next hop; beyond a gateway the next hop is the gateway.
            AdjacencyKind::Forward | AdjacencyKind::Unresolved => {
                adjacencies.next_hop(id).is_none_or(|hop| hop == address)
            }
            _ => false,
        }
    }

    fn reaches(&self, fib: u32, address: IpAddr, port: Option<PortId>) -> bool {
        if let IpAddr::V6(address) = address
            && (address.is_unicast_link_local() || address.segments()[0] & 0xff0f == 0xff02)
        {
            return true;
        }
        let (kind, leads) = self.way(address);
        // `versrcreach` is not content with a default route.
        let is_default = || match address {
            IpAddr::V4(address) => self.context.shared.fib.v4.length(address.to_bits()) == 0,
            IpAddr::V6(address) => self.context.shared.fib.v6.length(address.to_bits()) == 0,
        };
        let has_port = matches!(kind, AdjacencyKind::Forward | AdjacencyKind::Unresolved | AdjacencyKind::Glean);
        fib == 0 && has_port && port.map_or_else(|| !is_default(), |port| port == leads)
    }

    fn roll(&mut self, rule: u32) -> u32 {
        let mut bits = self.holdings.seed
            ^ self.holdings.walks.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(rule).wrapping_mul(0xd1b5_4a32_d192_ed03);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) >> 33) as u32
    }
}

/// What a packet tells its state.
#[inline(always)]
pub fn facts_of(packet: &Packet) -> PacketFacts {
    let length = bytes_of(packet) as u32;
    if packet.protocol != 6 || packet.l4 == 0 || packet.flags.has(Flags::LATER_FRAGMENT) {
        return PacketFacts { length, tcp_flags: 0, acknowledgement: None };
    }
    match packet.frame.head().get(usize::from(packet.l4)..) {
        Some([_, _, _, _, _, _, _, _, a, b, c, d, _, flags, ..]) => {
            let acknowledgement = Some(u32::from_be_bytes([*a, *b, *c, *d]));
            PacketFacts { length, tcp_flags: *flags, acknowledgement }
        }
        _ => PacketFacts { length, tcp_flags: 0, acknowledgement: None },
    }
}

impl Effects for Around<'_, '_> {
    fn count(&mut self, slot: u32, bytes: u64) {
        self.counters.add(slot, 1, bytes, self.second);
    }

    fn probe(
        &mut self,
        name: NameFilter,
        packet: &mut Packet,
        is_there: impl FnOnce(RuleRef) -> Option<u32>,
    ) -> Option<(u32, bool)> {
        let key = FlowKey::of(packet)?;
        let hash = state_hash(self.context.shared.seed, packet, &key);
        let hit = self.holdings.states.probe(&key, name, hash, &facts_of(packet))?;
        match is_there(hit.rule) {
            Some(rule) => Some((rule, hit.direction == Direction::Reverse)),
            None => {
                self.holdings.states.remove(hit.index);
                self.holdings.orphans = self.holdings.orphans.wrapping_add(1);
                None
            }
        }
    }

    fn install(&mut self, rule: RuleRef, state: &MakeState, limit: u32, packet: &mut Packet) -> bool {
        let Some(key) = FlowKey::of(packet) else { return false };
        let hash = state_hash(self.context.shared.seed, packet, &key);
        let limit = state.limit.map(|by| LimitTo {
            source_address: by.source_address,
            source_port: by.source_port,
            destination_address: by.destination_address,
            destination_port: by.destination_port,
            count: limit,
        });
        let new = NewState { key, hash, name: state.name, rule, limit };
        self.holdings.states.install(&new, &facts_of(packet)).is_ok()
    }

    fn log(&mut self, rule: &RuleFacts, packet: &Packet, hook: Hook) {
        let Some(sink) = self.holdings.log.as_mut() else { return };
        if rule.log.as_ref().is_some_and(|budget| budget.take()) {
            sink.write(LogRecord::new(self.context.now, rule.number, rule.slot, packet, hook));
        }
    }

    fn has_nat(&self, instance: u32) -> bool {
        self.holdings.services.as_ref().is_some_and(|services| services.nats.has(instance))
    }

    fn fibs(&self) -> u32 {
        1
    }
}
