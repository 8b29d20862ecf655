#![forbid(unsafe_code)]
//! The compiled engine as a [`Judge`]: what tests hold against the oracle.
//!
//! Frames are described here as ipfw reads them, more leniently than the parser of the packet path, which lets fewer through.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferrule_config::ipfw::ast::{Rule, StateName, ValueKind};
use ferrule_config::ipfw::table::{TableOptions, TableValue};
use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::packet::{Family, Flags, L3, Offload, Packet, PortId};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Hook;

use super::around::facts_of;
use super::compile::compile;
use super::dynamic::{
    Direction as Way, FlowKey, LimitTo, NameFilter, Names, NewState, PacketFacts, RuleRef, Settings, Shared, States,
    state_hash,
};
use super::execute::{self, Decision, Effects, Walk};
use super::fault::Planted;
use super::memo::Memo;
use super::notes::Notes;
use super::oracle::{
    Annotations, Caller, Counter, Dice, Direction, Flow, LogEntry, Outcome, Pass, Resume, Setup, Verdict, View,
};
use super::program::{MakeState, Options, Outside, Program, RuleFacts, in_order};
use super::residual::{Question, Surroundings, ask};
use super::table::{AddMode, TableId, TableSet, Tables};
use super::testing::Judge;
use super::testing::judge::StateRow;

/// The engine behind a compiler, perhaps with a fault.
pub struct Compiled {
    planted: Planted,
    pool: Pool,
    inner: Inner,
}

struct Inner {
    setup: Setup,
    rules: Vec<Rule>,
    names: Names,
    program: Arc<Program>,
    memo: Option<Memo>,
    states: States,
    tables: Tables,
    _set: TableSet,
    counters: Vec<Counter>,
    log: Vec<LogEntry>,
    log_left: Vec<Option<u32>>,
    pass: u64,
    next_pass: u64,
    second: u64,
    /// Bytes that counters count of the packet in hand.
    counted: u32,
    /// What the log says of the packet in hand.
    scene: Option<LogEntry>,
}

/// Every part of a value.
const KINDS: [ValueKind; 12] = [
    ValueKind::SkipTo,
    ValueKind::Pipe,
    ValueKind::Fib,
    ValueKind::Nat,
    ValueKind::Dscp,
    ValueKind::Tag,
    ValueKind::Divert,
    ValueKind::Netgraph,
    ValueKind::Limit,
    ValueKind::Ipv4,
    ValueKind::Ipv6,
    ValueKind::Mark,
];

const SEED: HashSeed = HashSeed(0x1357_9bdf_0246_8ace, 0x0123_4567_89ab_cdef);

impl Compiled {
    /// A judge without rules yet.
    pub fn new(planted: Planted) -> Compiled {
        let arena = Arena::new(8, DEFAULT_STRIDE, HugePages::Off).expect("memory for a few frames");
        let pool = Pool::split(&arena, 1).pop().expect("one pool");
        Compiled { planted, pool, inner: Inner::new(&Setup::default(), planted) }
    }
}

impl Inner {
    fn new(setup: &Setup, planted: Planted) -> Inner {
        let ports: Vec<String> = setup.environment.interfaces.iter().map(|i| i.name.clone()).collect();
        let mut set = TableSet::new(&Domain::new(1));
        let numbered = ports.iter().enumerate().map(|(i, name)| (name.clone(), PortId(i as u16)));
        set.set_interfaces(numbered).expect("room for the interfaces");
        let mut ids = std::collections::HashMap::new();
        for table in &setup.tables.0 {
            let options = TableOptions {
                kind: table.kind,
                values: KINDS.to_vec(),
                algorithm: None,
                limit: 0,
                locked: false,
                missing: false,
                or_flush: false,
            };
            // Of two tables of one name the first counts, and of two equal keys.
            let Ok(id) = set.create(&table.name, &options) else { continue };
            ids.insert(table.name.clone(), (id, table.kind));
            for entry in &table.entries {
                let _ = set.add(&table.name, std::slice::from_ref(entry), AddMode::default());
            }
        }
        let options = Options {
            disabled_sets: setup.disabled_sets,
            default_to_accept: setup.settings.default_to_accept,
            verbose_limit: setup.settings.verbose_limit,
            ports,
            tables: ids,
            planted,
        };
        let mut names = Names::default();
        let program = Arc::new(compile(&setup.rules, &options, &mut names));
        let rules = in_order(&setup.rules, &options);
        let settings = Settings::default();
        let store = |cell: &std::sync::atomic::AtomicU32, value: u64| {
            cell.store(value as u32, std::sync::atomic::Ordering::Relaxed);
        };
        let lives = setup.settings.lifetimes;
        store(&settings.ack_lifetime, lives.ack);
        store(&settings.syn_lifetime, lives.syn);
        store(&settings.fin_lifetime, lives.fin);
        store(&settings.rst_lifetime, lives.rst);
        store(&settings.udp_lifetime, lives.udp);
        store(&settings.short_lifetime, lives.short);
        store(&settings.keepalive, lives.keepalive.into());
        store(&settings.max, setup.settings.dynamic_max as u64);
        let limit = setup.settings.verbose_limit;
        let logs = !planted.has(super::fault::Fault::LogAmountIgnored);
        let left = |rule: &Rule| match rule.log.map(|log| log.amount.unwrap_or(limit)) {
            None | Some(0) => None,
            some => some.filter(|_| logs),
        };
        Inner {
            memo: Some(Memo::new(&program, 7)),
            counters: vec![Counter::default(); rules.len()],
            log_left: rules.iter().map(left).collect(),
            log: Vec::new(),
            states: States::new(Arc::new(Shared::new(settings)), 4096),
            tables: set.reader(),
            _set: set,
            setup: setup.clone(),
            rules,
            names,
            program,
            pass: 0,
            next_pass: 0,
            second: 0,
            counted: 0,
            scene: None,
        }
    }

    fn port(&self, name: Option<&str>) -> PortId {
        let found = name.and_then(|name| self.program.ports.iter().position(|port| port == name));
        found.map_or(PortId::NONE, |at| PortId(at as u16))
    }

    /// The flow, its zone that of the interface of the pass.
    fn key(&self, packet: &Packet) -> Option<FlowKey> {
        let key = FlowKey::of(packet)?;
        let interface = self.scene.as_ref().and_then(|scene| scene.interface.as_deref());
        Some(match key {
            FlowKey::V6 { source, destination, ports, protocol, zone } if zone != 0 => {
                let zone = self.port(interface).0.wrapping_add(1);
                FlowKey::V6 { source, destination, ports, protocol, zone }
            }
            key => key,
        })
    }

    fn name_of(&self, port: PortId) -> Option<&str> {
        self.program.ports.get(usize::from(port.0)).map(String::as_str)
    }

    fn run(&mut self, packet: &mut Packet, view: &View, pass: &Pass<'_>, notes: &mut Notes, start: u32) -> Outcome {
        let hook = if pass.direction == Direction::In { Hook::In } else { Hook::Out };
        let classifier = &self.program.classifier;
        let key = classifier.packet_key(packet, pass.layer2) + classifier.interface_key(packet, hook);
        let program = self.program.clone();
        let Some(mut memo) = self.memo.take() else { return Outcome::ruleless(Verdict::Deny) };
        let mut walk = Walk { packet, key, hook, layer2: pass.layer2, notes, bytes: view.counted };
        let (decision, rule) = execute::walk(&program, &mut memo, &mut walk, start, self);
        self.memo = Some(memo);
        let rule = rule.map(|rule| rule as usize);
        let verdict = verdict_of(decision);
        let one_pass = self.setup.settings.one_pass;
        let done = match verdict {
            Verdict::Pipe(_) | Verdict::Queue(_) | Verdict::Netgraph(_) | Verdict::NgTee(_) => Some(one_pass),
            Verdict::Nat(_) | Verdict::NatGlobal => Some(one_pass),
            Verdict::Reassemble | Verdict::Divert(_) | Verdict::Tee(_) => Some(false),
            _ => None,
        };
        let resume = done.zip(rule).map(|(done, after)| Resume { after, done });
        Outcome { verdict, rule, resume }
    }
}

fn verdict_of(decision: Decision) -> Verdict {
    match decision {
        Decision::Allow => Verdict::Allow,
        Decision::Deny => Verdict::Deny,
        Decision::Unreach(code, mtu) => Verdict::Unreach { code, mtu },
        Decision::Unreach6(code) => Verdict::Unreach6 { code },
        Decision::Reset => Verdict::Reset,
        Decision::Abort => Verdict::Abort,
        Decision::Forward(address, port) => Verdict::Forward(address, port),
        Decision::Nat(instance) => Verdict::Nat(instance),
        Decision::NatGlobal => Verdict::NatGlobal,
        Decision::Pipe(pipe) => Verdict::Pipe(pipe),
        Decision::Queue(queue) => Verdict::Queue(queue),
        Decision::Reassemble => Verdict::Reassemble,
        Decision::Outside(Outside::Netgraph, to) => Verdict::Netgraph(to),
        Decision::Outside(Outside::NgTee, to) => Verdict::NgTee(to),
        Decision::Outside(Outside::Divert, to) => Verdict::Divert(to),
        Decision::Outside(Outside::Tee, to) => Verdict::Tee(to),
    }
}

/// Fills the descriptor in from what the oracle's reader found: the packet path has a parser of its own for it.
fn describe(packet: &mut Packet, view: &View) {
    use super::oracle::Family as Kind;
    packet.family = match view.family {
        Kind::V4 => Family::V4,
        Kind::V6 => Family::V6,
        Kind::Other => Family::Other,
    };
    (packet.protocol, packet.l4) = (view.protocol, view.upper.map_or(0, |at| at as u16));
    (packet.source_port, packet.destination_port) = (view.source_port, view.destination_port);
    let h = packet.frame.header();
    if view.later_fragment {
        packet.flags.set(Flags::FRAGMENT.with(Flags::LATER_FRAGMENT));
    } else if packet.family == Family::V4 && h[L3 + 6] & 0x20 != 0 {
        packet.flags.set(Flags::FRAGMENT);
    }
    if let (Some(at), 1 | 58) = (view.upper, view.protocol) {
        packet.destination_port = u16::from_be_bytes([h[at], h[at + 1]]);
    }
}

impl Compiled {
    fn pass(
        &mut self,
        frame: &mut [u8],
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Option<usize>,
    ) -> Outcome {
        let inner = &mut self.inner;
        if pass.layer2 && !inner.setup.settings.layer2 {
            return Outcome::ruleless(Verdict::Allow);
        }
        inner.second = now.as_secs();
        inner.states.turn(now.as_nanos() as u64);
        inner.states.sweep(1 << 20, |_| {}, |_| {});
        inner.pass = inner.next_pass;
        inner.next_pass += 1;
        let Ok(view) = View::read(frame, pass.layer2, &inner.setup.settings) else {
            return Outcome::ruleless(Verdict::Deny);
        };
        // Without padding, as the parser leaves it.
        let end = if pass.layer2 { frame.len() } else { view.end.min(frame.len()) };
        let buffer = self.pool.frame_from(&frame[..end]).expect("a buffer");
        let mut packet = Packet::new(buffer, Offload::NONE, inner.port(pass.recv));
        packet.egress = inner.port(pass.xmit);
        describe(&mut packet, &view);
        inner.counted = view.counted as u32;
        inner.scene = Some(LogEntry {
            rule: 0,
            direction: pass.direction,
            interface: pass.interface().map(str::to_owned),
            source: (view.source, view.source_port),
            destination: (view.destination, view.destination_port),
            protocol: view.protocol,
        });
        let mut notes = Notes { mark: annotations.mark, fib: annotations.fib, ..Notes::default() };
        annotations.tags.iter().for_each(|tag| assert!(notes.tags.push(*tag), "a packet of more tags"));
        annotations.callers.iter().for_each(|caller| assert!(notes.callers.push(caller.index as u32)));
        let start = from.map_or(0, |after| inner.program.entry_from(after + 1));
        let outcome = inner.run(&mut packet, &view, pass, &mut notes, start);
        annotations.tags = notes.tags.as_slice().iter().copied().collect();
        let number = |index: u32| inner.rules[index as usize].number;
        let callers = notes.callers.as_slice().iter();
        annotations.callers = callers.map(|i| Caller { number: number(*i), index: *i as usize }).collect();
        (annotations.mark, annotations.fib) = (notes.mark, notes.fib);
        frame[..end].copy_from_slice(packet.frame.head());
        self.pool.free(packet.frame);
        outcome
    }
}

impl Judge for Compiled {
    fn load(&mut self, setup: &Setup) {
        self.inner = Inner::new(setup, self.planted);
    }

    fn judge(&mut self, frame: &mut Vec<u8>, pass: &Pass<'_>, annotations: &mut Annotations, now: Duration) -> Outcome {
        annotations.mark = 0;
        self.pass(frame, pass, annotations, now, None)
    }

    fn resume(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Resume,
    ) -> Outcome {
        if from.done {
            return Outcome::ruleless(Verdict::Allow);
        }
        self.pass(frame, pass, annotations, now, Some(from.after))
    }

    fn counters(&self) -> Vec<Counter> {
        self.inner.counters.clone()
    }

    fn states(&self) -> Vec<StateRow> {
        let inner = &self.inner;
        let (mut rows, mut cursor) = (Vec::new(), 0);
        inner.states.list(&mut cursor, u32::MAX, |state| {
            let (source, destination) = state.key.addresses();
            let (from, to) = state.key.ports();
            let zone = match state.key {
                FlowKey::V6 { zone, .. } if zone != 0 => inner.name_of(PortId(zone - 1)).map(str::to_owned),
                _ => None,
            };
            let name = match inner.names.name(state.name) {
                Some("default") | None => StateName::Default,
                Some(name) => StateName::Named(name.to_owned()),
            };
            rows.push(StateRow {
                flow: Flow {
                    protocol: state.key.protocol(),
                    source: (source, from),
                    destination: (destination, to),
                    scope: zone,
                },
                name,
                rule: state.rule.index as usize,
                expire: inner.second + u64::from(state.expires_in),
                packets: state.packets,
                bytes: state.bytes,
            });
        });
        rows
    }

    fn log(&self) -> Vec<LogEntry> {
        self.inner.log.clone()
    }
}

impl Surroundings for Inner {
    fn look_up(&self, table: TableId, question: Question) -> Option<TableValue> {
        ask(&self.tables, table, question)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.setup.environment.is_own(address)
    }

    fn has_address(&self, port: PortId, address: IpAddr) -> bool {
        let interface = self.setup.environment.interfaces.get(usize::from(port.0));
        interface.is_some_and(|interface| self.setup.environment.interface_has(&interface.name, address))
    }

    fn is_attached(&self, address: IpAddr) -> bool {
        self.setup.environment.is_attached(address)
    }

    fn reaches(&self, fib: u32, address: IpAddr, port: Option<PortId>) -> bool {
        let name = port.and_then(|port| self.setup.environment.interfaces.get(usize::from(port.0)));
        self.setup.environment.reaches(fib, address, name.map(|interface| interface.name.as_str()))
    }

    fn roll(&mut self, rule: u32) -> u32 {
        Dice { seed: self.setup.seed }.roll(self.pass, rule as usize)
    }
}

impl Effects for Inner {
    fn count(&mut self, slot: u32, bytes: u64) {
        let counter = &mut self.counters[slot as usize];
        counter.packets += 1;
        counter.bytes += bytes;
        counter.last = Some(self.second);
    }

    fn probe(
        &mut self,
        name: NameFilter,
        packet: &mut Packet,
        is_there: impl FnOnce(RuleRef) -> Option<u32>,
    ) -> Option<(u32, bool)> {
        let key = self.key(packet)?;
        let hit = self.states.probe(
            &key,
            name,
            state_hash(SEED, packet, &key),
            &PacketFacts { length: self.counted, ..facts_of(packet) },
        )?;
        Some((is_there(hit.rule)?, hit.direction == Way::Reverse))
    }

    fn install(&mut self, rule: RuleRef, state: &MakeState, limit: u32, packet: &mut Packet) -> bool {
        let Some(key) = self.key(packet) else { return false };
        let limit = state.limit.map(|by| LimitTo {
            source_address: by.source_address,
            source_port: by.source_port,
            destination_address: by.destination_address,
            destination_port: by.destination_port,
            count: limit,
        });
        let new = NewState { key, hash: state_hash(SEED, packet, &key), name: state.name, rule, limit };
        self.states.install(&new, &PacketFacts { length: self.counted, ..facts_of(packet) }).is_ok()
    }

    fn log(&mut self, rule: &RuleFacts, _packet: &Packet, _hook: Hook) {
        if let Some(left) = &mut self.log_left[rule.slot as usize] {
            if *left == 0 {
                return;
            }
            *left -= 1;
        }
        self.log.extend(self.scene.clone().map(|entry| LogEntry { rule: rule.number, ..entry }));
    }

    fn has_nat(&self, instance: u32) -> bool {
        self.setup.environment.nat_instances.contains(&instance)
    }

    fn fibs(&self) -> u32 {
        self.setup.settings.fibs
    }
}

#[cfg(test)]
mod tests;
