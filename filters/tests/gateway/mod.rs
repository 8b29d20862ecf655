//! A gateway in memory with the ipfw stage, told what to do by commands of ipfw(8): LAN 10.0.0.0/24 and 2001:db8:a::/64 behind port 0, the
//! world behind port 1 by way of 192.0.2.9 and 2001:db8:b::9.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::command::{CommandLine, Options as CommandOptions};
use ferrule_config::ipfw::grammar::Grammar;
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::{Environment, PendingSet};
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::verdict::DropReason;
use ferrule_dataplane::world::{PortPlan, World};
use ferrule_filters::ipfw::around::Holdings;
use ferrule_filters::ipfw::compile::{compile, compile_with_places};
use ferrule_filters::ipfw::dynamic::{Names, Shared, States};
use ferrule_filters::ipfw::live::Live;
use ferrule_filters::ipfw::program::Options;
use ferrule_filters::ipfw::services::control::{ServiceControl, ServiceStatus};
use ferrule_filters::ipfw::services::{self, Services};
use ferrule_filters::ipfw::stage::Ipfw;
use ferrule_filters::ipfw::table::{AddMode, TableSet};

pub const LAN: PortId = PortId(0);
pub const WAN: PortId = PortId(1);
pub const HOST: [u8; 4] = [10, 0, 0, 7];
pub const PEER: [u8; 4] = [198, 51, 100, 5];
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

pub struct Gateway {
    pub world: World,
    pub live: Arc<Live>,
    pub control: ServiceControl,
    pub set: PendingSet,
    pub shared: Arc<Shared>,
    tables: TableSet,
    names: Names,
    /// Places of rules: each has one of its own for good; 0 is the last rule's.
    places: Vec<Arc<Rule>>,
}

impl Gateway {
    /// With so many workers and these commands; what no rule matches is denied.
    pub fn new(workers: usize, commands: &[&str]) -> Gateway {
        Gateway::with(workers, commands, |builder| builder)
    }

    /// As [`Gateway::new`], with other settings of the world.
    pub fn with(
        workers: usize,
        commands: &[&str],
        change: impl FnOnce(ferrule_dataplane::world::Builder) -> ferrule_dataplane::world::Builder,
    ) -> Gateway {
        let seed = HashSeed(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345);
        let (control, ends) = services::pair(workers, seed);
        let ends: Rc<RefCell<Vec<Option<Services>>>> = Rc::new(RefCell::new(ends.into_iter().map(Some).collect()));
        let live = Arc::new(Live::new(compile(&[], &options(), &mut Names::default()), workers));
        let shared = Arc::new(Shared::default());
        let domain = Domain::new(workers);
        let mut tables = TableSet::new(&domain);
        tables.set_interfaces([("lan".to_owned(), LAN), ("wan".to_owned(), WAN)]).unwrap();
        let readers: RefCell<Vec<_>> = RefCell::new((0..workers).map(|_| Some(tables.reader())).collect());
        let (of_stage, states_of) = (live.clone(), shared.clone());
        let builder = World::builder()
            .seed(seed)
            .workers(workers)
            .port(
                PortPlan::new("lan")
                    .address("10.0.0.1/24".parse().unwrap())
                    .address("2001:db8:a::1/64".parse().unwrap()),
            )
            .port(
                PortPlan::new("wan")
                    .address("192.0.2.1/24".parse().unwrap())
                    .address("2001:db8:b::1/64".parse().unwrap()),
            )
            .stages(move |worker| {
                let states = States::new(states_of.clone(), 4096);
                let tables = readers.borrow_mut()[worker].take().unwrap();
                let mut holdings = Holdings::new(states, tables, 2);
                holdings.services = ends.borrow_mut()[worker].take();
                vec![Box::new(Ipfw::new(&of_stage, worker, 1, holdings))]
            });
        let mut world = change(builder).build().unwrap();
        let mac = |n| Some(MacAddress([2, 0, 0, 0, 9, n]));
        for (gateway, prefix) in [
            (IpAddr::from([192, 0, 2, 9]), Prefix::V4 { address: 0, length: 0 }),
            ("2001:db8:b::9".parse().unwrap(), Prefix::V6 { address: 0, length: 0 }),
        ] {
            world.table.neighbor_set(WAN, gateway, mac(9)).unwrap();
            world.table.route_replace(prefix, 0, RouteKind::via(WAN, gateway)).unwrap();
        }
        world.table.neighbor_set(LAN, HOST.into(), mac(7)).unwrap();
        world.table.neighbor_set(LAN, "2001:db8:a::7".parse().unwrap(), mac(7)).unwrap();
        let mut gateway = Gateway {
            world,
            live,
            control,
            set: PendingSet::new(),
            shared,
            tables,
            names: Names::default(),
            places: Vec::new(),
        };
        gateway.run(commands);
        gateway
    }

    /// Carries commands out and puts what they come to in force.
    pub fn run(&mut self, commands: &[&str]) {
        let grammar = Grammar { names: builtin(), refuse_unsupported: true };
        let read_file = |_: &str| Err("no files".to_owned());
        for command in commands {
            if let Some((name, value)) = command.strip_prefix("sysctl ").and_then(|set| set.split_once('=')) {
                self.set.set_variable(name, value.parse().unwrap()).unwrap();
                continue;
            }
            let environment =
                Environment { language: &grammar, names: builtin(), hosts: &NoHosts, read_file: &read_file };
            // Nobody answers questions.
            let mut options = CommandOptions { force: true, ..CommandOptions::default() };
            let answer = self.set.run(&CommandLine::from_line(command), &mut options, environment);
            assert_eq!((answer.exit, answer.incomplete), (0, false), "{command}: {:?}", answer.stderr);
        }
        self.put_in_force();
    }

    fn put_in_force(&mut self) {
        let set = self.set.rule_set();
        self.control.follow(&set).unwrap();
        let mut options = options();
        for (name, table) in &set.tables {
            let id = match self.tables.find(name) {
                Some(id) => id,
                None => self.tables.create(name, &table.options).unwrap(),
            };
            let entries: Vec<_> = table.entries.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            let _already_there = self.tables.add(name, &entries, AddMode::default());
            options.tables.insert(name.clone(), (id, table.options.kind));
        }
        for (name, value) in &set.variables {
            if let Some(name) = name.strip_prefix("net.inet.ip.fw.") {
                let _ = self.shared.set(name, *value as u32);
            }
        }
        let rules: Vec<_> = set.rules.iter().map(|rule| (**rule).clone()).collect();
        let places: Vec<u32> = set.rules.iter().map(|rule| self.place(rule)).collect();
        let place = |index: u32| (places.get(index as usize).copied().unwrap_or(0), 0);
        self.live.replace(compile_with_places(&rules, &options, &mut self.names, place));
        self.control.settle(&set).unwrap();
    }

    fn place(&mut self, rule: &Arc<Rule>) -> u32 {
        let known = self.places.iter().position(|known| Arc::ptr_eq(known, rule));
        let at = known.unwrap_or_else(|| {
            self.places.push(rule.clone());
            self.places.len() - 1
        });
        at as u32 + 1
    }

    /// Sends a frame into a port by the queue of a worker; what has left the other port since, once the world is at rest.
    pub fn send_at(&mut self, port: PortId, worker: usize, mut frame: Vec<u8>) -> Vec<Vec<u8>> {
        frame[..6].copy_from_slice(&self.world.mac(port).0);
        let offload = ferrule_dataplane::packet::Offload::NONE;
        assert!(self.world.inject_at(port, worker, &frame, offload));
        self.rest();
        self.world.collect(if port == LAN { WAN } else { LAN })
    }

    pub fn send(&mut self, port: PortId, frame: Vec<u8>) -> Vec<Vec<u8>> {
        self.send_at(port, 0, frame)
    }

    /// Lets everything happen that happens now; every packet is accounted for at every time.
    pub fn rest(&mut self) {
        self.world.settle();
        assert_eq!(self.world.balance().difference(), 0);
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: u64) {
        self.world.advance(by);
        assert_eq!(self.world.balance().difference(), 0);
    }

    pub fn held(&self) -> u64 {
        self.world.balance().held
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.world.dropped(reason)
    }

    /// Packets that the rule of this number counted.
    pub fn count(&self, number: u16) -> u64 {
        let loaded = self.live.loaded();
        let rules = loaded.program.rules.iter().filter(|rule| rule.number == number);
        rules.map(|rule| self.live.count(rule.slot).packets).sum()
    }

    pub fn status(&mut self, states: bool) -> ServiceStatus {
        self.control.ask(states).unwrap();
        self.rest();
        self.control.answers(Duration::from_secs(5)).unwrap()
    }

    /// The end: nothing is lost, neither packet nor buffer.
    pub fn close(mut self) {
        let closed = self.world.close();
        assert!(closed.is_exact(), "{closed:?}");
    }
}

fn options() -> Options {
    Options { ports: vec!["lan".into(), "wan".into()], ..Options::default() }
}

/// An address of the host in the LAN.
pub fn v6(last: u16) -> std::net::Ipv6Addr {
    std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xa, 0, 0, 0, 0, last)
}

pub fn peer6() -> std::net::Ipv6Addr {
    "2001:db8:c::5".parse().unwrap()
}
