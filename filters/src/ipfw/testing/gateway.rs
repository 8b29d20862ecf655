#![forbid(unsafe_code)]
//! A whole gateway in memory with the ipfw stage in it: commands of ipfw(8) in, frames in, what came out and what `ipfw -a list` says.
//!
//! Every address of an attached network answers to the next hop's MAC address, so that nothing waits for a neighbour. The host's stack is
//! beside it: what is for the box comes up, and what the host sends goes through the out pass.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::command::{CommandLine, List, Options as CommandOptions};
use ferrule_config::ipfw::document::{RuleSet, same_rule};
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::{Environment, PendingSet};
use ferrule_config::ipfw::print::{PrintOptions, print_body};
use ferrule_config::ipfw::show::rules::{ListContext, RuleRow, list};
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteError, RouteKind};
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::packet::{Offload, PortId};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::verdict::PuntClass;
use ferrule_dataplane::world::{PortPlan, World};

use super::solve::Shot;
use super::twin::Origin;
use crate::ipfw::around::Holdings;
use crate::ipfw::compile::compile_with_places;
use crate::ipfw::counters::RuleCount;
use crate::ipfw::dynamic::{Names, Shared, States};
use crate::ipfw::live::Live;
use crate::ipfw::oracle::setup::covers;
use crate::ipfw::program::{Options, Program};
use crate::ipfw::services::{self, control::ServiceControl};
use crate::ipfw::stage::Ipfw;
use crate::ipfw::table::{AddMode, TableSet};

/// A port of the box.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name, as rules name it.
    pub name: String,
    /// Its addresses with the lengths of their networks.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// The box: its ports, and the default route of each family.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ports, the first is number 0.
    pub ports: Vec<Port>,
    /// Next hops of the default routes, each in an attached network.
    pub gateways: Vec<IpAddr>,
    /// Workers.
    pub workers: usize,
    /// Whether there are default routes from the start. Without, a network gets its route when a packet names it, which is much quicker
    /// and the same to all rules but those that ask for routes of sources.
    pub default_routes: bool,
}

impl Plan {
    /// A box with one worker. Ports are a name and addresses with lengths, parted by blanks.
    ///
    /// # Panics
    /// When an address cannot be read.
    pub fn new(ports: &[(&str, &str)], gateways: &[&str]) -> Plan {
        let address = |text: &str| text.parse::<IpAddr>().unwrap_or_else(|_| panic!("{text} is no address"));
        let with_length = |text: &str| {
            let (text, length) = text.split_once('/').unwrap_or_else(|| panic!("{text} has no length"));
            (address(text), length.parse().unwrap_or_else(|_| panic!("{length} is no length")))
        };
        let port = |&(name, addresses): &(&str, &str)| Port {
            name: name.to_owned(),
            addresses: addresses.split_whitespace().map(with_length).collect(),
        };
        Plan {
            ports: ports.iter().map(port).collect(),
            gateways: gateways.iter().map(|text| address(text)).collect(),
            workers: 1,
            default_routes: false,
        }
    }

    /// The same with default routes from the start, for rules that ask for routes.
    pub fn with_default_routes(self) -> Plan {
        Plan { default_routes: true, ..self }
    }

    /// The same with so many workers.
    pub fn on(self, workers: usize) -> Plan {
        Plan { workers, ..self }
    }

    /// The port that an address is attached to.
    pub fn attached(&self, address: IpAddr) -> Option<usize> {
        self.ports.iter().position(|port| port.addresses.iter().any(|(own, length)| covers(*own, *length, address)))
    }

    /// Whether the box has the address.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.ports.iter().any(|port| port.addresses.iter().any(|(own, _)| *own == address))
    }

    /// The port that packets to an address leave by.
    pub fn way(&self, address: IpAddr) -> Option<usize> {
        let gateway = || self.gateways.iter().find(|gateway| gateway.is_ipv4() == address.is_ipv4());
        self.attached(address).or_else(|| self.attached(*gateway()?))
    }
}

/// What commands of ipfw(8) come to. Each is the text behind `ipfw`, or `sysctl NAME=VALUE`.
///
/// # Errors
/// What the command says that failed.
pub fn rule_set<S: AsRef<str>>(commands: &[S]) -> Result<RuleSet, String> {
    let mut pending = PendingSet::new();
    let language = Grammar { names: builtin(), refuse_unsupported: true };
    let read_file = |path: &str| Err(format!("{path}: not read here"));
    let environment = Environment { language: &language, names: builtin(), hosts: &NoHosts, read_file: &read_file };
    for command in commands {
        if let Some((name, value)) = command.as_ref().strip_prefix("sysctl ").and_then(|set| set.split_once('=')) {
            pending.set_variable(name, value.parse().map_err(|_| format!("{value} is no number"))?)?;
            continue;
        }
        let mut options = CommandOptions { force: true, quiet: true, ..CommandOptions::default() };
        let answer = pending.run(&CommandLine::from_line(command.as_ref()), &mut options, environment);
        if answer.exit != 0 {
            return Err(format!("ipfw {}: {}", command.as_ref(), answer.stderr.join("; ")));
        }
    }
    Ok(pending.rule_set())
}

/// What was seen of frames that were sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Frames that left, by port.
    pub out: Vec<Vec<Vec<u8>>>,
    /// Frames that came up to the host, by port.
    pub up: Vec<Vec<Vec<u8>>>,
}

impl Seen {
    /// All that left.
    pub fn left(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.out.iter().flatten()
    }

    /// How many frames left by a port.
    pub fn by(&self, port: usize) -> usize {
        self.out.get(port).map_or(0, Vec::len)
    }

    /// How many frames came up to the host.
    pub fn came_up(&self) -> usize {
        self.up.iter().map(Vec::len).sum()
    }
}

/// The gateway.
pub struct Gateway {
    /// It and the world around it.
    pub world: World,
    /// The tables of the stage, for changes while it runs.
    pub tables: TableSet,
    /// What the states of all workers share.
    pub shared: Arc<Shared>,
    /// Pipes and translation.
    pub control: ServiceControl,
    plan: Plan,
    live: Arc<Live>,
    names: Names,
    /// Rules in their order, the last included, with their places.
    rules: Vec<(Rule, u32)>,
    next_place: u32,
    neighbors: HashSet<IpAddr>,
    /// Worker whose queue takes the next frame.
    queue: usize,
}

impl Gateway {
    /// A gateway with these rules in force.
    ///
    /// # Panics
    /// When the box or the rules make no sense, as does everything here: tests are to see it.
    pub fn new(plan: &Plan, set: &RuleSet) -> Gateway {
        let mut tables = TableSet::new(&Domain::new(plan.workers));
        let names = plan.ports.iter().enumerate().map(|(at, port)| (port.name.clone(), PortId(at as u16)));
        tables.set_interfaces(names).expect("room for the interfaces");
        let mut groups = Names::default();
        let mut rules: Vec<(Rule, u32)> = Vec::new();
        let mut next_place = 0;
        let program = build(plan, set, &mut tables, &mut groups, &mut rules, &mut next_place);
        let live = Arc::new(Live::new(program, plan.workers));
        let shared = Arc::new(Shared::default());
        for (name, value) in &set.variables {
            if let Some(name) = name.strip_prefix("net.inet.ip.fw.dyn_") {
                let value = u32::try_from(*value).expect("a variable of 32 bits");
                shared.set(&format!("dyn_{name}"), value).expect("a value that the variable takes");
            }
        }
        let mut builder =
            World::builder().workers(plan.workers).buffers(512, 512).host([u32::MAX; PuntClass::COUNT], 512);
        for port in &plan.ports {
            let mut described = PortPlan::new(&port.name);
            for (address, length) in &port.addresses {
                described = described.address(format!("{address}/{length}").parse().expect("a network"));
            }
            builder = builder.port(described);
        }
        let seed = HashSeed(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345);
        let (mut control, ends) = services::pair(plan.workers, seed);
        control.follow(set).expect("pipes and translation that make sense");
        let mut ends = ends.into_iter();
        let (of_workers, states) = (live.clone(), shared.clone());
        let readers: Vec<_> = (0..plan.workers).map(|_| tables.reader()).collect();
        let mut readers = readers.into_iter();
        // DHCP is to meet the rules like everything else.
        let builder = builder.options(|options| options.dhcp_bypass = false).seed(seed).stages(move |worker| {
            let states = States::new(states.clone(), 4096);
            let tables = readers.next().expect("a reader for each worker");
            let mut holdings = Holdings::new(states, tables, 2 + worker as u64);
            holdings.services = ends.next();
            vec![Box::new(Ipfw::new(&of_workers, worker, 1, holdings))]
        });
        control.settle(set).expect("room for what was ordered");
        let mut gateway = Gateway {
            world: builder.build().expect("a world"),
            control,
            tables,
            shared,
            plan: plan.clone(),
            live,
            names: groups,
            rules,
            next_place,
            neighbors: HashSet::new(),
            queue: 0,
        };
        for hop in &plan.gateways {
            gateway.answer(*hop);
            let all = match hop {
                IpAddr::V4(_) => Prefix::V4 { address: 0, length: 0 },
                IpAddr::V6(_) => Prefix::V6 { address: 0, length: 0 },
            };
            if plan.default_routes {
                gateway.route(all, *hop);
            }
        }
        gateway
    }

    /// A gateway with what these commands come to.
    ///
    /// # Panics
    /// When one of them fails.
    pub fn with<S: AsRef<str>>(plan: &Plan, commands: &[S]) -> Gateway {
        Gateway::new(plan, &rule_set(commands).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Puts other rules in force. Those that were there before keep their counters.
    pub fn replace(&mut self, set: &RuleSet) {
        let Gateway { plan, tables, names, rules, next_place, .. } = self;
        self.control.follow(set).expect("pipes and translation that make sense");
        let program = build(plan, set, tables, names, rules, next_place);
        self.live.replace(program);
        self.control.settle(set).expect("room for what was ordered");
    }

    /// The box.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes an address of an attached network answer.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn answer(&mut self, address: IpAddr) {
        if self.plan.is_own(address) {
            return;
        }
        if let Some(port) = self.plan.attached(address)
            && self.neighbors.insert(address)
        {
            self.world
                .table
                .neighbor_set(PortId(port as u16), address, Some(MacAddress(MAC)))
                .expect("room for a neighbour");
        }
    }

    fn route(&mut self, prefix: Prefix, hop: IpAddr) {
        let port = PortId(self.plan.attached(hop).expect("a next hop in an attached network") as u16);
        match self.world.table.route_replace(prefix, 0, RouteKind::via(port, hop)) {
            // Loopback and its kin are never forwarded, whatever a packet asks for.
            Ok(_) | Err(RouteError::Reserved { .. }) => {}
            Err(error) => panic!("{hop}: {error}"),
        }
    }

    /// Makes a way to a far address.
    fn lead(&mut self, address: IpAddr) {
        let is_group = match address {
            IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
            IpAddr::V6(address) => address.is_multicast(),
        };
        if self.plan.default_routes
            || is_group
            || self.plan.attached(address).is_some()
            || !self.neighbors.insert(address)
        {
            return;
        }
        let hop = self.plan.gateways.iter().find(|hop| hop.is_ipv4() == address.is_ipv4()).copied();
        if let Some(hop) = hop {
            self.route(Prefix::host(address), hop);
        }
    }

    /// Sends frames into a port, at once, and takes what came of them. Their destination MAC address is made the port's, or that of their
    /// group.
    ///
    /// # Panics
    /// When a packet is not accounted for.
    pub fn send_all(&mut self, port: usize, frames: &[Vec<u8>]) -> Seen {
        for frame in frames {
            let mut frame = frame.clone();
            self.address(port, &mut frame);
            let id = PortId(port as u16);
            assert!(self.world.inject_at(id, self.queue, &frame, Offload::NONE), "no room for the frame");
            self.queue = (self.queue + 1) % self.plan.workers;
        }
        self.gather()
    }

    /// As [`Gateway::send_all`] with one frame.
    pub fn send(&mut self, port: usize, frame: &[u8]) -> Seen {
        self.send_all(port, std::slice::from_ref(&frame.to_vec()))
    }

    /// Sends a frame as the host's stack does, out of a port.
    ///
    /// # Panics
    /// When a packet is not accounted for.
    pub fn send_host(&mut self, port: usize, frame: &[u8]) -> Seen {
        let mut frame = frame.to_vec();
        self.address(port, &mut frame);
        frame[..6].copy_from_slice(&MAC);
        assert!(self.world.inject_host(PortId(port as u16), &frame), "no room for the frame");
        self.gather()
    }

    /// Sends a packet from where it comes; the host's leaves by the port that leads to its destination.
    pub fn shoot(&mut self, shot: &Shot) -> Seen {
        match shot.origin {
            Origin::Wire(port) => self.send(port, &shot.frame),
            Origin::Host => {
                let way = ends_of(&shot.frame).and_then(|(_, destination)| self.plan.way(destination));
                self.send_host(way.unwrap_or(0), &shot.frame)
            }
        }
    }

    /// Lets time pass and takes what came of it.
    pub fn advance(&mut self, nanoseconds: u64) -> Seen {
        self.world.advance(nanoseconds);
        self.gather()
    }

    fn address(&mut self, port: usize, frame: &mut [u8]) {
        let ends = ends_of(frame);
        if let Some((source, destination)) = ends {
            // Who pretends to be elsewhere is not made known there.
            if self.plan.attached(source).is_none_or(|attached| attached == port) {
                self.answer(source);
                self.lead(source);
            }
            self.answer(destination);
            self.lead(destination);
        }
        let mac = self.world.mac(PortId(port as u16)).0;
        let mac = ends.map_or(mac, |(_, destination)| group_mac(destination).unwrap_or(mac));
        frame[..6].copy_from_slice(&mac);
    }

    fn gather(&mut self) -> Seen {
        self.world.settle();
        let ports = self.plan.ports.len() as u16;
        let out = (0..ports).map(|port| self.world.collect(PortId(port))).collect();
        let up = (0..ports).map(|port| self.world.collect_host(PortId(port))).collect();
        assert_eq!(self.world.balance().difference(), 0, "a packet is not accounted for");
        Seen { out, up }
    }

    /// Packets and bytes of each rule in their order, the last included.
    pub fn counters(&self) -> Vec<(u64, u64)> {
        let count = |place: u32| {
            let RuleCount { packets, bytes, .. } = self.live.count(place);
            (packets, bytes)
        };
        self.rules.iter().map(|(_, place)| count(*place)).collect()
    }

    /// The rules in their order, the last included.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// Packets of all rules of a number.
    pub fn packets(&self, number: u16) -> u64 {
        self.rules()
            .zip(self.counters())
            .filter(|(rule, _)| rule.number == number)
            .map(|(_, (packets, _))| packets)
            .sum()
    }

    /// What `ipfw -a list` prints.
    pub fn list(&self) -> String {
        let rows: Vec<RuleRow> = self
            .rules()
            .zip(self.counters())
            .map(|(rule, (packets, bytes))| RuleRow {
                number: rule.number,
                set: rule.set,
                text: print_body(rule, &PrintOptions::default()),
                packets,
                bytes,
                last_hit_s: 0,
                disabled: false,
            })
            .collect();
        let request = List { set: None, counters: true, ranges: Vec::new() };
        let options = CommandOptions::default();
        list(&request, &rows, &[], ListContext { options: &options, names: builtin(), utc_offset_s: 0 }).stdout
    }

    /// Ends it: every packet and every buffer is accounted for.
    ///
    /// # Panics
    /// When one is not.
    pub fn close(mut self) {
        let closed = self.world.close();
        assert!(closed.is_exact(), "{closed:?}\n{:?}", self.world.totals());
    }
}

/// MAC address of everybody outside.
const MAC: [u8; 6] = [2, 0, 0, 0, 9, 9];

/// Compiles a set. Rules that were there keep their places.
fn build(
    plan: &Plan,
    set: &RuleSet,
    tables: &mut TableSet,
    names: &mut Names,
    rules: &mut Vec<(Rule, u32)>,
    next_place: &mut u32,
) -> Program {
    let mut ids = HashMap::new();
    for (name, table) in &set.tables {
        let id = tables.find(name).unwrap_or_else(|| {
            let id = tables.create(name, &table.options).expect("a table");
            let entries: Vec<_> = table.entries.iter().map(|(key, value)| (key.clone(), *value)).collect();
            tables.add(name, &entries, AddMode::default()).1.expect("entries that the table takes");
            id
        });
        ids.insert(name.clone(), (id, table.options.kind));
    }
    let last = set.default_rule();
    let options = Options {
        disabled_sets: set.disabled_sets,
        default_to_accept: last.action == ferrule_config::ipfw::ast::Action::Allow,
        verbose_limit: u32::try_from(set.variable("net.inet.ip.fw.verbose_limit")).unwrap_or(0),
        ports: plan.ports.iter().map(|port| port.name.clone()).collect(),
        tables: ids,
        ..Options::default()
    };
    let wanted: Vec<Rule> = set.rules.iter().map(|rule| Rule::clone(rule)).collect();
    let mut before = std::mem::take(rules);
    for rule in wanted.iter().chain([&last]) {
        let place = match before.iter().position(|(old, _)| same_rule(old, rule)) {
            Some(at) => before.remove(at).1,
            None => {
                *next_place += 1;
                *next_place - 1
            }
        };
        rules.push((rule.clone(), place));
    }
    compile_with_places(&wanted, &options, names, |index| (rules[index as usize].1, 0))
}

/// Source and destination of a frame with an IP packet.
pub fn ends_of(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let part = |at: usize, length: usize| frame.get(at..at + length);
    match part(12, 2)? {
        [8, 0] => {
            let address = |at| <[u8; 4]>::try_from(part(at, 4)?).ok();
            Some((address(26)?.into(), address(30)?.into()))
        }
        [0x86, 0xdd] => {
            let address = |at| <[u8; 16]>::try_from(part(at, 16)?).ok();
            Some((address(22)?.into(), address(38)?.into()))
        }
        _ => None,
    }
}

/// MAC address of a group (RFC 1112, RFC 2464) or of all.
fn group_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(address) if address.is_broadcast() => Some([0xff; 6]),
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            Some([1, 0, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let [.., a, b, c, d] = address.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}
