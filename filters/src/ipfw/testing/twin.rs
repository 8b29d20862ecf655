#![forbid(unsafe_code)]
//! The oracle in the place of a gateway: the passes that a packet makes through a box, judged by the interpreter.

use std::time::Duration;

use ferrule_config::ipfw::document::RuleSet;

use super::gateway::{Gateway, Plan, ends_of};
use super::solve::Shot;
use crate::ipfw::oracle::{
    Annotations, Counter, Environment, Interface, Oracle, Outcome, Pass, Route, Settings, Setup, Table, Tables, Verdict,
};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Into this port.
    Wire(usize),
    /// From the host's stack.
    Host,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Leaves by this port.
    Left(usize),
    /// Comes up to the host.
    Up,
    /// Something else than a plain pass decided.
    Ended(Verdict),
    /// There is no way to its destination.
    NoWay,
}

/// The interpreter's gateway. Translation changes nothing here, and pipes hold nothing back: what comes after them is judged at once.
pub struct Twin {
    /// The interpreter.
    pub oracle: Oracle,
    plan: Plan,
}

/// The setup that a box and its rules make.
pub fn setup_of(plan: &Plan, set: &RuleSet) -> Setup {
    let mut routes = Vec::new();
    for port in &plan.ports {
        for (prefix, length) in &port.addresses {
            let interface = Some(port.name.clone());
            routes.push(Route { fib: 0, prefix: *prefix, length: *length, interface });
        }
    }
    for hop in &plan.gateways {
        let interface = plan.attached(*hop).map(|port| plan.ports[port].name.clone());
        let all = if hop.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        routes.push(Route { fib: 0, prefix: all, length: 0, interface });
    }
    let interface =
        |port: &super::gateway::Port| Interface { name: port.name.clone(), addresses: port.addresses.clone() };
    let table = |(name, table): (&String, &std::sync::Arc<ferrule_config::ipfw::document::Table>)| Table {
        name: name.clone(),
        kind: table.options.kind,
        entries: table.entries.iter().map(|(key, value)| (key.clone(), *value)).collect(),
    };
    let on = |name: &str| set.variable(name) != 0;
    Setup {
        rules: set.rules.iter().map(|rule| (**rule).clone()).collect(),
        disabled_sets: set.disabled_sets,
        tables: Tables(set.tables.iter().map(table).collect()),
        settings: Settings {
            one_pass: on("net.inet.ip.fw.one_pass"),
            default_to_accept: on("net.inet.ip.fw.default_to_accept"),
            ..Settings::default()
        },
        environment: Environment {
            interfaces: plan.ports.iter().map(interface).collect(),
            routes,
            nat_instances: set.nats.keys().copied().collect(),
        },
        seed: 0,
    }
}

impl Twin {
    /// The twin of a gateway with these rules.
    pub fn new(plan: &Plan, set: &RuleSet) -> Twin {
        Twin { oracle: Oracle::new(setup_of(plan, set)), plan: plan.clone() }
    }

    /// Takes a packet through the box.
    pub fn send(&mut self, origin: Origin, frame: &[u8], now: Duration) -> Fate {
        let mut frame = frame.to_vec();
        let Some((_, destination)) = ends_of(&frame) else { return Fate::NoWay };
        let mut carried = Annotations::default();
        let names: Vec<String> = self.plan.ports.iter().map(|port| port.name.clone()).collect();
        let recv = match origin {
            Origin::Wire(port) => {
                if let Err(verdict) = self.pass(&mut frame, &Pass::incoming(&names[port]), &mut carried, now) {
                    return Fate::Ended(verdict);
                }
                Some(names[port].as_str())
            }
            Origin::Host => None,
        };
        let to_all = match destination {
            std::net::IpAddr::V4(address) => address.is_broadcast() || address.is_multicast(),
            std::net::IpAddr::V6(address) => address.is_multicast(),
        };
        if recv.is_some() && (self.plan.is_own(destination) || to_all) {
            return Fate::Up;
        }
        let Some(way) = self.plan.way(destination) else { return Fate::NoWay };
        if recv.is_some() {
            let at = if frame[14] >> 4 == 4 { 22 } else { 21 };
            frame[at] = frame[at].saturating_sub(1);
        }
        let out = Pass { recv, ..Pass::outgoing("", &names[way]) };
        match self.pass(&mut frame, &out, &mut carried, now) {
            Ok(()) => Fate::Left(way),
            Err(verdict) => Fate::Ended(verdict),
        }
    }

    /// Sends a packet through the gateway and through here. What becomes of it and every counter must be the same.
    ///
    /// # Errors
    /// How they differ.
    pub fn beside(&mut self, gateway: &mut Gateway, shot: &Shot) -> Result<Fate, String> {
        let fate = self.send(shot.origin, &shot.frame, Duration::from_nanos(gateway.world.now()));
        let seen = gateway.shoot(shot);
        let (left, up) = (seen.left().count(), seen.came_up());
        let same = match fate {
            Fate::Left(port) => (seen.by(port), left, up) == (1, 1, 0),
            Fate::Up => (left, up) == (0, 1),
            Fate::Ended(Verdict::Deny) => (left, up) == (0, 0),
            Fate::Ended(_) => up == 0,
            Fate::NoWay => true,
        };
        // The error that answers a refused packet is judged as well, which nothing here does.
        let answered = matches!(fate, Fate::Ended(Verdict::Unreach { .. } | Verdict::Unreach6 { .. }));
        if same && (answered || gateway.counters() == self.counters()) {
            return Ok(fate);
        }
        let wanted = gateway.rules().zip(gateway.counters()).zip(self.counters());
        let wanted: Vec<String> = wanted
            .filter(|((_, here), there)| here != there)
            .map(|((rule, here), there)| format!("rule {}: {here:?}, should be {there:?}", rule.number))
            .collect();
        let dropped = gateway.world.totals().dropped;
        Err(format!("{shot:?}\nshould be {fate:?}, left {left}, came up {up}; {wanted:?}\n{dropped:?}"))
    }

    /// One pass with all that comes back from translation, pipes and reassembly; Err is what ended it.
    fn pass(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        carried: &mut Annotations,
        now: Duration,
    ) -> Result<(), Verdict> {
        let mut outcome = self.oracle.judge(frame, pass, carried, now);
        loop {
            match outcome {
                Outcome { verdict: Verdict::Allow | Verdict::Forward(..), .. } => return Ok(()),
                Outcome {
                    verdict: Verdict::Nat(_) | Verdict::NatGlobal | Verdict::Pipe(_) | Verdict::Queue(_),
                    resume: Some(resume),
                    ..
                } => {
                    if resume.done {
                        return Ok(());
                    }
                    outcome = self.oracle.resume(frame, pass, carried, now, resume);
                }
                Outcome { verdict, .. } => return Err(verdict),
            }
        }
    }

    /// Packets and bytes of each rule in their order, the last included.
    pub fn counters(&self) -> Vec<(u64, u64)> {
        self.oracle.counters().iter().map(|Counter { packets, bytes, .. }| (*packets, *bytes)).collect()
    }
}
