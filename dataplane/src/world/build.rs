//! Describing a world and putting it together.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::{World, host::Host};
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::clock::{ClockSource, VirtualClock};
use crate::counters::WorkerCounters;
use crate::fib::{MacAddress, PortSettings, Prefix, RouteError, RouteKind, RoutingTable, TableLimits, VlanTag};
use crate::host::{self, PuntLimits};
use crate::packet::PortId;
use crate::packet::hash::HashSeed;
use crate::port::memory;
use crate::ports::{Port, PortAddresses, PortTable};
use crate::quiesce::Domain;
use crate::stage::{Shared, Stage};
use crate::verdict::PuntClass;
use crate::wake::Waker;
use crate::worker::{Command, Dispatch, Mailbox, Options, Parts, Rings, Worker};

/// Why a world could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    /// No memory or no descriptor.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A port's address makes no sense.
    #[error("port {port}: {source}")]
    Address {
        /// The port.
        port: String,
        /// Why its route was refused.
        source: RouteError,
    },
    /// A VLAN port whose parent comes later or not at all.
    #[error("port {port}: its parent is no port before it")]
    Parent {
        /// The VLAN port.
        port: String,
    },
}

/// One port to be.
#[derive(Clone, Debug)]
pub struct PortPlan {
    name: String,
    mac: Option<MacAddress>,
    mtu: u16,
    addresses: Vec<IpNetwork>,
    link_local: Option<Ipv6Addr>,
    vlan: Option<(PortId, VlanTag)>,
    offload: bool,
}

impl PortPlan {
    /// A port of this name: MTU 1500, no addresses, MAC 02:00:00:00:00:NN with NN its number from 1.
    pub fn new(name: &str) -> PortPlan {
        let name = name.to_owned();
        PortPlan { name, mac: None, mtu: 1500, addresses: vec![], link_local: None, vlan: None, offload: false }
    }

    /// A VLAN sub-interface of an earlier port, which may be a VLAN itself (802.1ad); it has its parent's MAC.
    pub fn vlan(name: &str, parent: PortId, tag: VlanTag) -> PortPlan {
        PortPlan { vlan: Some((parent, tag)), ..PortPlan::new(name) }
    }

    /// Sets the MAC address.
    pub fn mac(mut self, mac: MacAddress) -> PortPlan {
        self.mac = Some(mac);
        self
    }

    /// Sets the MTU in bytes.
    pub fn mtu(mut self, mtu: u16) -> PortPlan {
        self.mtu = mtu;
        self
    }

    /// Adds an address with its subnet; the first of a family is the one that speaks in ICMP errors. The subnet becomes a connected route,
    /// its IPv4 directed broadcast is known as such. A link-local IPv6 address is the port's own on this link.
    pub fn address(mut self, network: IpNetwork) -> PortPlan {
        match network.ip() {
            IpAddr::V6(address) if address.is_unicast_link_local() => self.link_local = Some(address),
            _ => self.addresses.push(network),
        }
        self
    }

    /// Lets partial checksums and super-packets through, as a port with `offload = true` does.
    pub fn offload(mut self) -> PortPlan {
        self.offload = true;
        self
    }

    fn addresses(&self) -> PortAddresses {
        let v4: Vec<Ipv4Addr> =
            self.addresses.iter().filter_map(|n| if let IpAddr::V4(a) = n.ip() { Some(a) } else { None }).collect();
        let v6 =
            self.addresses.iter().filter_map(|n| if let IpAddr::V6(a) = n.ip() { Some(a) } else { None }).collect();
        PortAddresses { v4, v6, link_local: self.link_local }
    }
}

/// Makes the stages of one worker, by its number.
type MakeStages = Box<dyn FnMut(usize) -> Vec<Box<dyn Stage>>>;

/// Describes a world; see [`World::builder`].
pub struct Builder {
    ports: Vec<PortPlan>,
    workers: usize,
    buffers: usize,
    outside: usize,
    stride: usize,
    huge: HugePages,
    ring: usize,
    handover: usize,
    options: Options,
    seed: HashSeed,
    limits: TableLimits,
    host: Option<([u32; PuntClass::COUNT], usize)>,
    stages: MakeStages,
    virtual_time: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Builder {
            ports: Vec::new(),
            workers: 1,
            buffers: 2048,
            outside: 2048,
            stride: DEFAULT_STRIDE,
            huge: HugePages::Off,
            ring: 1024,
            handover: 1024,
            options: Options::default(),
            seed: HashSeed(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345),
            limits: TableLimits { adjacencies: 4096, multipath_groups: 64 },
            host: None,
            stages: Box::new(|_| Vec::new()),
            virtual_time: true,
        }
    }
}

impl Builder {
    /// Adds a port; the first is [`PortId`] 0.
    pub fn port(mut self, plan: PortPlan) -> Builder {
        self.ports.push(plan);
        self
    }

    /// Sets the number of workers (at least 1).
    pub fn workers(mut self, workers: usize) -> Builder {
        self.workers = workers.max(1);
        self
    }

    /// Sets the buffers of each worker, and those of the world outside, out of which frames are injected.
    pub fn buffers(mut self, each: usize, outside: usize) -> Builder {
        (self.buffers, self.outside) = (each, outside);
        self
    }

    /// Sets the distance between buffers and the pages behind them; see [`Arena::new`].
    pub fn memory(mut self, stride: usize, huge: HugePages) -> Builder {
        (self.stride, self.huge) = (stride, huge);
        self
    }

    /// Sets how many frames the ring of each queue holds, in each direction.
    pub fn ring(mut self, frames: usize) -> Builder {
        self.ring = frames;
        self
    }

    /// Sets how many packets the rings between two workers hold.
    pub fn handover(mut self, packets: usize) -> Builder {
        self.handover = packets;
        self
    }

    /// Changes the workers' settings; their number and the clock are set by the builder.
    pub fn options(mut self, change: impl FnOnce(&mut Options)) -> Builder {
        change(&mut self.options);
        self
    }

    /// Sets the secret of the flow hash; the default is a constant, so that a world is repeatable.
    pub fn seed(mut self, seed: HashSeed) -> Builder {
        self.seed = seed;
        self
    }

    /// Sets the sizes of the routing table.
    pub fn limits(mut self, limits: TableLimits) -> Builder {
        self.limits = limits;
        self
    }

    /// Gives every port a host interface: what goes up is limited to `rates` packets a second by class, through rings of `ring` packets.
    /// Without it the gateway is standalone and answers for itself.
    pub fn host(mut self, rates: [u32; PuntClass::COUNT], ring: usize) -> Builder {
        self.host = Some((rates, ring));
        self
    }

    /// Sets the filter stages; called once per worker.
    pub fn stages(mut self, make: impl FnMut(usize) -> Vec<Box<dyn Stage>> + 'static) -> Builder {
        self.stages = Box::new(make);
        self
    }

    /// Runs on the machine's clock instead of a virtual one.
    pub fn real_time(mut self) -> Builder {
        self.virtual_time = false;
        self
    }

    /// Puts it together; all ports are up.
    ///
    /// # Errors
    /// When memory cannot be had or a port's plan makes no sense.
    pub fn build(mut self) -> Result<World, WorldError> {
        let n = self.workers;
        let ports = self.port_table()?;
        let domain = Domain::new(n);
        let mut table = RoutingTable::new(&domain, self.limits);
        self.program(&mut table, &ports)?;
        let shared = Arc::new(Shared { fib: table.fib(), ports, seed: self.seed });
        let mut shares = vec![self.buffers; n];
        shares.push(self.outside);
        let arena = Arena::new(shares.iter().sum::<usize>() as u32, self.stride, self.huge)?;
        let mut pools = Pool::split_by(&arena, &shares);
        let pool = pools.pop().expect("one share more than workers");
        let bells = (0..n).map(|_| Waker::new().map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let mut ends = Vec::new();
        let mut links: Vec<_> = (0..n).map(|_| None).collect();
        if let Some((rates, ring)) = self.host {
            let (thread, limits) = (Arc::new(Waker::new()?), Arc::new(PuntLimits::new(rates)));
            for (link, bell) in links.iter_mut().zip(&bells) {
                let (worker, end) = host::link(ring, thread.clone(), bell.clone(), limits.clone());
                *link = Some(worker);
                ends.push(end);
            }
        }
        let control = Arc::new(Waker::new()?);
        let time = self.virtual_time.then(VirtualClock::default);
        self.options.clock = time.clone().map_or(ClockSource::Tsc, ClockSource::Virtual);
        let lonely = n == 1 && self.options.dispatch == Dispatch::Direct;
        let rings = if lonely { vec![Rings::default()] } else { Rings::mesh(n, self.handover, &bells) };
        let count = shared.ports.len();
        let mut world = World {
            table,
            host: (!ends.is_empty()).then(|| Host::new(ends, WorkerCounters::new(count, 0), count)),
            shared,
            workers: Vec::with_capacity(n),
            counters: Vec::with_capacity(n),
            mailboxes: Vec::new(),
            requests: Vec::new(),
            peers: (0..count).map(|_| (0..n).map(|_| None).collect()).collect(),
            pool,
            arena,
            time,
            ring: self.ring,
            closed: false,
        };
        for (id, (((pool, link), rings), bell)) in pools.into_iter().zip(links).zip(rings).zip(bells).enumerate() {
            let stages = (self.stages)(id);
            let flow_owner = self.options.flow_owner || (n > 1 && stages.iter().any(|s| s.needs_flow_owner()));
            let (requests, asked) = rtrb::RingBuffer::new(1024);
            let mailbox = Arc::new(Mailbox::new(bell));
            let worker = Worker::new(Parts {
                options: Options { id, flow_owner, ..self.options.clone() },
                shared: world.shared.clone(),
                counters: Arc::new(WorkerCounters::new(count, stages.len())),
                pool,
                quiesce: domain.register().expect("the domain has a place for every worker"),
                stages,
                host: link,
                rings,
                requests,
                control: control.clone(),
                mailbox: mailbox.clone(),
            });
            world.counters.push(worker.counters().clone());
            world.workers.push(worker);
            world.mailboxes.push(mailbox);
            world.requests.push(asked);
        }
        for (port, _) in self.ports.iter().enumerate().filter(|(_, plan)| plan.vlan.is_none()) {
            for worker in 0..n {
                let (pair, peer) = memory::queue(PortId(port as u16), self.ring);
                world.command(worker, Command::Attach(pair));
                world.peers[port][worker] = Some(peer);
            }
        }
        Ok(world)
    }

    fn port_table(&mut self) -> Result<PortTable, WorldError> {
        let mut ports: Vec<Port> = Vec::new();
        for i in 0..self.ports.len() {
            let id = PortId(i as u16);
            let plan = &mut self.ports[i];
            let [high, low] = (i as u16 + 1).to_be_bytes();
            let parent = plan.vlan.map(|(parent, _)| parent);
            let mac = match parent.map(|parent| ports.get(usize::from(parent.0))) {
                Some(None) => return Err(WorldError::Parent { port: plan.name.clone() }),
                Some(Some(parent)) => parent.mac(),
                None => MacAddress([2, 0, 0, 0, high, low]),
            };
            let mac = *plan.mac.get_or_insert(mac);
            let mut port = Port::new(&plan.name, id, mac, u32::from(plan.mtu));
            (port.host, port.offload) = (self.host.is_some(), plan.offload);
            if let Some((parent, tag)) = plan.vlan {
                (port.physical, port.tag) = (parent, Some(tag));
                ports[usize::from(parent.0)].vlans.push((tag, id));
            }
            port.set_addresses(plan.addresses());
            port.set_up(true);
            ports.push(port);
        }
        Ok(PortTable::new(ports))
    }

    /// Ports, addresses and connected subnets, as the kernel's tables have them.
    fn program(&self, table: &mut RoutingTable, ports: &PortTable) -> Result<(), WorldError> {
        for ((id, port), plan) in ports.iter().zip(&self.ports) {
            let settings = PortSettings { mac: port.mac(), mtu: plan.mtu, vlan: port.tag, up: true };
            let refused = |source| WorldError::Address { port: plan.name.clone(), source };
            table.port_set(id, settings).map_err(refused)?;
            for network in &plan.addresses {
                let subnet = Prefix::from(*network);
                table.route_replace(subnet, 0, RouteKind::Connected { port: id }).map_err(refused)?;
                if let IpNetwork::V4(v4) = network
                    && v4.prefix() < 31
                {
                    let all = Prefix::host(v4.broadcast().into());
                    table.route_replace(all, 0, RouteKind::Broadcast).map_err(refused)?;
                }
                let own = Prefix::host(network.ip());
                table.route_replace(own, 0, RouteKind::Local { port: id }).map_err(refused)?;
            }
        }
        Ok(())
    }
}
