//! Rule sets of mixed shapes and traffic for them, drawn at random: what ClassBench does for packet classifiers (Taylor, Turner:
//! "ClassBench: A Packet Classification Benchmark", 2005), with what only ipfw has added: interfaces, or-blocks, tables, ladders of
//! `skipto`, `count`.
//!
//! A set begins with a ladder: one `skipto` for each destination network, to the section of that network. In a section the more
//! specific rules come first. All rules let packets pass, so that a measurement sees every packet come out; whether a rule allows or
//! denies makes no difference to finding it. Each rule comes with a packet that reaches it, past all rules before it.

#![forbid(unsafe_code)]

use super::shape::{Action, Either, Flags, Interface, Net, Place, Ports, Shape, Width};
use crate::compare::flows::{Family, Flow, TCP, UDP};
use crate::compare::rig::Random;

/// The kinds of rule sets whose statistics ClassBench's seeds carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Access lists of routers: destinations are hosts, ports exact, sources wide.
    Acl,
    /// Firewalls: many wildcards and ranges of ports, interfaces.
    Fw,
    /// Chains of Linux's ipchains: pairs of networks and hosts.
    Ipc,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 3] = [Profile::Acl, Profile::Fw, Profile::Ipc];
}

/// A rule set with its traffic.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// Commands that make the tables, in their order.
    pub tables: Vec<String>,
    /// The `add` commands, in their order; the last one is `allow ip from any to any`.
    pub rules: Vec<String>,
    /// Index of a rule, and a packet that reaches it in one pass or both, for every rule but the ladder and the last; a rule for which none is
    /// found is left out, which has not been seen.
    pub hits: Vec<(usize, Flow)>,
    /// Packets that no rule but the last matches.
    pub misses: Vec<Flow>,
}

impl Mixed {
    /// All commands.
    pub fn commands(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().chain(&self.rules).map(String::as_str)
    }
}

/// Most sections. Their networks are 172.16.0.0/16 to 172.30.0.0/16, or 2600:0:10::/48 to 2600:0:1e::/48.
const SECTIONS: usize = 15;
/// Rules that a section has at least.
const SECTION_LEAST: usize = 40;
/// Entries of a table.
const TABLE_ENTRIES: usize = 64;
/// Tables of sources.
const SOURCE_TABLES: usize = 8;
/// Source networks that rules are drawn from.
const SOURCE_NETWORKS: usize = 48;
/// Packets that miss.
const MISSES: usize = 4096;
/// Packets drawn for a rule before another takes its place.
const TRIES: usize = 32;
/// Packets drawn for a place before it goes without one.
const GIVE_UP: usize = 100 * TRIES;
/// Number of the last rule.
const LAST: usize = 65_000;
/// Ports that services have; exact ports are mostly these.
const SERVICES: [u16; 24] =
    [20, 21, 22, 23, 25, 53, 67, 69, 80, 110, 111, 119, 123, 135, 137, 139, 143, 161, 179, 389, 443, 445, 514, 993];

/// Draws a set of `count` rules, the last one included, out of one stream of numbers: equal arguments give equal sets.
pub fn draw(count: usize, family: Family, profiles: &[Profile], seed: u64) -> Mixed {
    let mut random = Random::new(seed);
    let body = count.saturating_sub(2).max(1);
    let sections = (body / SECTION_LEAST).clamp(1, SECTIONS);
    let body = count.saturating_sub(1 + sections).max(1);
    let step = (LAST / (count + 1)).clamp(1, 5);
    let pool = Pool::draw(Width(family), sections, &mut random);
    let mut shapes: Vec<Shape> = Vec::with_capacity(count);
    let mut hits = Vec::with_capacity(body);
    let mut starts = Vec::with_capacity(sections);
    for section in 0..sections {
        let start = sections + section * body / sections;
        let end = sections + (section + 1) * body / sections;
        starts.push(start);
        let profile = profiles.get(section % profiles.len().max(1)).copied().unwrap_or(Profile::Acl);
        let rules = pool.section(section, profile, (start, end), &mut random);
        hits.extend(rules.iter().enumerate().filter_map(|(at, (_, flow))| Some((start + at, (*flow)?))));
        shapes.extend(rules.into_iter().map(|(shape, _)| shape));
    }
    let number = |index: usize| step * (index + 1);
    let mut rules = Vec::with_capacity(count);
    for (section, start) in starts.iter().enumerate() {
        let network = pool.width.text(&pool.sections[section]);
        rules.push(format!("add {} skipto {} ip from any to {network}", number(section), number(*start)));
    }
    rules.extend(shapes.iter().enumerate().map(|(at, shape)| {
        let index = sections + at;
        format!("add {} {}", number(index), shape.text(pool.width, number))
    }));
    rules.push(format!("add {LAST} allow ip from any to any"));
    let misses = pool.misses(&shapes, &mut random);
    Mixed { tables: pool.commands(), rules, hits, misses }
}

/// Networks, tables and ports that the rules of one set are drawn from.
struct Pool {
    width: Width,
    sources: Vec<Net>,
    sections: Vec<Net>,
    /// No rule is about it.
    elsewhere: Net,
    /// First those of sources, then one for each section.
    tables: Vec<Vec<Net>>,
}

impl Pool {
    fn draw(width: Width, sections: usize, random: &mut Random) -> Pool {
        let section = |number: usize| width.destination(16 + number as u128);
        let mut pool = Pool {
            width,
            sources: (0..SOURCE_NETWORKS).map(|_| width.source(random)).collect(),
            sections: (0..sections).map(section).collect(),
            elsewhere: section(SECTIONS),
            tables: Vec::new(),
        };
        for table in 0..SOURCE_TABLES + sections {
            let mut nets = Vec::new();
            while nets.len() < TABLE_ENTRIES {
                let base = match table.checked_sub(SOURCE_TABLES) {
                    None => pool.sources[random.below(SOURCE_NETWORKS)],
                    Some(section) => pool.sections[section],
                };
                let net = width.within(&base, [20, 24, 24, 28, 32][random.below(5)], random);
                if !nets.contains(&net) {
                    nets.push(net);
                }
            }
            pool.tables.push(nets);
        }
        pool
    }

    fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for (number, nets) in self.tables.iter().enumerate() {
            commands.push(format!("table mixed{number} create type addr"));
            commands.extend(nets.iter().map(|net| format!("table mixed{number} add {}", self.width.text(net))));
        }
        commands
    }

    /// The rules of a section with a packet for each; `span` is where they stand in the whole set.
    fn section(
        &self,
        section: usize,
        profile: Profile,
        span: (usize, usize),
        random: &mut Random,
    ) -> Vec<(Shape, Option<Flow>)> {
        let (start, end) = span;
        let mut shapes: Vec<Shape> = (start..end).map(|_| self.shape(section, profile, random)).collect();
        shapes.sort_by_key(|shape| std::cmp::Reverse(shape.specificity()));
        let mut flows = Vec::with_capacity(shapes.len());
        for at in 0..shapes.len() {
            if random.below(100) < 4 && at + 2 < shapes.len() {
                shapes[at].action = Action::SkipTo((start + at + 2 + random.below(30)).min(end));
            }
            flows.push((0..GIVE_UP).find_map(|attempt| {
                if attempt % TRIES == TRIES - 1 {
                    // What stands before it covers it: a pair of hosts takes its place.
                    let action = shapes[at].action;
                    shapes[at] = Shape { action, ..self.pair(section, random) };
                }
                let flow = self.flow(&shapes[at], section, random);
                reaches(&shapes, start, at, &flow, &self.tables).then_some(flow)
            }));
        }
        shapes.into_iter().zip(flows).collect()
    }

    fn shape(&self, section: usize, profile: Profile, random: &mut Random) -> Shape {
        loop {
            let shape = self.any_shape(section, profile, random);
            let whole = self.sections[section].length;
            let wide = shape.source == Place::Any
                && match &shape.destination {
                    Place::Any => true,
                    Place::Nets(nets) => nets.iter().any(|net| net.length <= whole),
                    Place::Table(_) => false,
                };
            let ports = shape.source_ports.width().min(shape.destination_ports.width());
            // A rule about everything in the section would leave nothing for those behind it; one about a service is what firewalls have some of.
            if !wide || (ports <= 8 && random.below(8) == 0) {
                return shape;
            }
        }
    }

    fn any_shape(&self, section: usize, profile: Profile, random: &mut Random) -> Shape {
        // Prefix lengths with their weights, 0 for any; shares of TCP and UDP in percent, the rest has no protocol; weights of source
        // and destination ports: any, exact, range, high ports.
        type Weights = &'static [(u8, usize)];
        let (source, destination, (tcp, udp), source_ports, destination_ports): (Weights, Weights, _, _, _) =
            match profile {
                Profile::Acl => (
                    &[(0, 30), (16, 15), (20, 10), (24, 25), (28, 5), (32, 15)],
                    &[(16, 5), (24, 20), (28, 10), (32, 65)],
                    (70, 20),
                    [95, 0, 2, 3],
                    [15, 70, 15, 0],
                ),
                Profile::Fw => (
                    &[(0, 45), (16, 20), (24, 10), (32, 25)],
                    &[(0, 35), (16, 10), (24, 25), (32, 30)],
                    (55, 30),
                    [60, 20, 0, 20],
                    [25, 40, 25, 10],
                ),
                Profile::Ipc => (
                    &[(0, 20), (16, 10), (20, 10), (24, 20), (32, 40)],
                    &[(0, 20), (16, 10), (20, 10), (24, 25), (32, 35)],
                    (45, 40),
                    [60, 25, 15, 0],
                    [40, 40, 20, 0],
                ),
            };
        let protocol = match random.below(100) {
            tcp_at if tcp_at < tcp => Some(TCP),
            udp_at if udp_at < tcp + udp => Some(UDP),
            _ => None,
        };
        let mut shape = Shape {
            action: if random.below(100) < 8 { Action::Count } else { Action::Allow },
            protocol,
            source: self.place(None, weighted(source, random), random),
            destination: self.place(Some(section), weighted(destination, random), random),
            ..Shape::default()
        };
        if protocol.is_some() {
            if random.below(100) < 5 {
                shape.either = Some(Either { source: exact_port(random), destination: exact_port(random) });
            } else {
                shape.source_ports = ports(source_ports, random);
                shape.destination_ports = ports(destination_ports, random);
            }
        }
        if protocol == Some(TCP) {
            shape.flags = match random.below(10) {
                0 => Some(Flags::Established),
                1 => Some(Flags::Setup),
                2 if profile == Profile::Fw => Some(Flags::SynWithoutAck),
                _ => None,
            };
        }
        let interfaces = if profile == Profile::Fw { 50 } else { 20 };
        if random.below(100) < interfaces {
            shape.interface =
                Some([Interface::In, Interface::In, Interface::Out, Interface::Out, Interface::Via][random.below(5)]);
        }
        shape
    }

    /// Where packets come from, or go to in a section: any, a network, one of several, or a table.
    fn place(&self, section: Option<usize>, length: u8, random: &mut Random) -> Place {
        if length == 0 {
            return Place::Any;
        }
        let mut net = || {
            let base = section.map_or_else(|| self.sources[random.below(SOURCE_NETWORKS)], |s| self.sections[s]);
            self.width.within(&base, length, random)
        };
        let first = net();
        let others = [net(), net()];
        match random.below(100) {
            0..8 => Place::Table(section.map_or_else(|| random.below(SOURCE_TABLES), |s| SOURCE_TABLES + s)),
            8..14 => Place::Nets(vec![first, others[0], others[1]]),
            _ => Place::Nets(vec![first]),
        }
    }

    /// A rule about two hosts.
    fn pair(&self, section: usize, random: &mut Random) -> Shape {
        let source = self.width.within(&self.sources[random.below(SOURCE_NETWORKS)], 32, random);
        let destination = self.width.within(&self.sections[section], 32, random);
        let (source, destination) = (Place::Nets(vec![source]), Place::Nets(vec![destination]));
        Shape { source, destination, ..Shape::default() }
    }

    /// A packet that the rule matches.
    fn flow(&self, shape: &Shape, section: usize, random: &mut Random) -> Flow {
        let any_source = self.sources[random.below(SOURCE_NETWORKS)];
        let mut address = |place: &Place, otherwise: &Net| {
            let nets = match place {
                Place::Any => std::slice::from_ref(otherwise),
                Place::Nets(nets) => nets,
                Place::Table(table) => &self.tables[*table],
            };
            self.width.host(&nets[random.below(nets.len())], random)
        };
        let source = address(&shape.source, &any_source);
        let destination = address(&shape.destination, &self.sections[section]);
        let protocol = shape.protocol.unwrap_or(if random.below(2) == 0 { TCP } else { UDP });
        let mut flow = Flow {
            source_port: shape.source_ports.draw(random),
            destination_port: shape.destination_ports.draw(random),
            tcp_flags: if protocol == TCP {
                shape.flags.map_or([2, 16, 24][random.below(3)], Flags::example)
            } else {
                0
            },
            protocol,
            ..Flow::udp(source, destination)
        };
        match shape.either {
            Some(either) if random.below(2) == 0 => flow.source_port = either.source,
            Some(either) => flow.destination_port = either.destination,
            None => {}
        }
        flow
    }

    /// Packets from the rules' sources to where no section is, that no rule matches.
    fn misses(&self, shapes: &[Shape], random: &mut Random) -> Vec<Flow> {
        let mut misses = Vec::with_capacity(MISSES);
        let anything = Shape { destination: Place::Nets(vec![self.elsewhere]), ..Shape::default() };
        while misses.len() < MISSES {
            let mut flow = self.flow(&anything, 0, random);
            if random.below(2) == 0 {
                flow.destination_port = exact_port(random);
            }
            let hit = |pass| shapes.iter().any(|shape| shape.matches(&flow, pass, &self.tables));
            if !hit(Interface::In) && !hit(Interface::Out) {
                misses.push(flow);
            }
        }
        misses
    }
}

/// Whether a packet comes to the rule at `at` and matches it, in the in pass or the out pass, when it starts at the first of these rules.
fn reaches(shapes: &[Shape], start: usize, at: usize, flow: &Flow, tables: &[Vec<Net>]) -> bool {
    [Interface::In, Interface::Out].into_iter().any(|pass| {
        if !shapes[at].matches(flow, pass, tables) {
            return false;
        }
        let mut here = 0;
        while here < at {
            here = match shapes[here].action {
                _ if !shapes[here].matches(flow, pass, tables) => here + 1,
                Action::Allow => return false,
                Action::Count => here + 1,
                Action::SkipTo(index) => index - start,
            };
        }
        here == at
    })
}

fn weighted(weights: &[(u8, usize)], random: &mut Random) -> u8 {
    let total: usize = weights.iter().map(|(_, weight)| weight).sum();
    let mut left = random.below(total);
    for (what, weight) in weights {
        if left < *weight {
            return *what;
        }
        left -= weight;
    }
    0
}

fn exact_port(random: &mut Random) -> u16 {
    match random.below(3) {
        0 => 1 + random.below(65_000) as u16,
        _ => SERVICES[random.below(SERVICES.len())],
    }
}

/// Ports by weights of: any, exact, range, high ports.
fn ports([any, exact, range, high]: [usize; 4], random: &mut Random) -> Ports {
    match random.below(any + exact + range + high) {
        at if at < any => Ports::default(),
        at if at < any + exact => match random.below(8) {
            0 => Ports(vec![(exact_port(random), None), (exact_port(random), None)]),
            _ => Ports(vec![(exact_port(random), None)]),
        },
        at if at < any + exact + range => {
            let low = 1 + random.below(60_000) as u16;
            Ports(vec![(low, Some(low + 1 + random.below(2000) as u16))])
        }
        _ => Ports(vec![(1024, Some(65_535))]),
    }
}
