//! Follows the kernel: dump, notifications, resync; turns the mirror's changes into events.
//!
//! One socket hears notifications, another asks. The notification socket joins its groups before the first dump, so that
//! nothing falls between. Three things start a new dump: an overrun (ENOBUFS), a hint that the kernel dropped IPv4 routes
//! without telling (it does so when a link goes down, an address or a nexthop object is removed), and a slow clock as the
//! last line of defence.
#![forbid(unsafe_code)]

use super::error::KernelError;
use super::event::{Event, PortId};
use super::message::{
    Address, IFADDRMSG, IFINFOMSG, Link, NDMSG, NHMSG, Neighbor, RTM_DELNEXTHOP, RTM_GETNEXTHOP, RTM_NEWNEXTHOP, RTMSG,
    Route, parse_nexthop,
};
use super::mirror::{Chain, Mirror};
use super::neighbor::Resolver;
use super::publish::Publisher;
use super::resolve::Ports;
use super::rules::{self, RULE_HEADER, Reading, Unsupported};
use super::socket::{Family, NetlinkSocket, Received};
use super::wire::{Frame, Message};
use rustix::fd::BorrowedFd;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Multicast groups (linux/rtnetlink.h, RTNLGRP_*): links, neighbours, addresses, routes and rules of both families,
/// nexthop objects.
const GROUPS: u32 = group(1) | group(3) | group(5) | group(7) | group(8) | group(9) | group(11) | group(19) | group(32);

const fn group(number: u32) -> u32 {
    1 << (number - 1)
}

/// Most notifications taken in before events are given out, so that a long burst is acted on while it lasts.
const BATCH_LIMIT: usize = 16 * 1024;
/// Wait after a hint of silently dropped routes: several hints come together.
const QUIET_TIME: Duration = Duration::from_millis(50);

/// How to follow.
#[derive(Debug, Clone)]
pub struct MonitorOptions {
    /// Receive buffer of the notification socket in bytes. A notification takes about 1 KiB there.
    pub receive_buffer: usize,
    /// Time between full resyncs when nothing else asks for one; zero turns them off.
    pub resync_interval: Duration,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        MonitorOptions { receive_buffer: 64 << 20, resync_interval: Duration::from_secs(300) }
    }
}

/// What the monitor has done. All count from its start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Notifications taken in.
    pub notifications: u64,
    /// Notifications that could not be read: always 0 unless the kernel speaks a newer dialect.
    pub unreadable: u64,
    /// Times that the kernel dropped notifications (ENOBUFS).
    pub overruns: u64,
    /// Full dumps after the first.
    pub resyncs: u64,
    /// Dumps of routes alone.
    pub route_dumps: u64,
    /// Dumps that were still disturbed by changes at the last attempt; followed by another.
    pub disturbed_dumps: u64,
    /// Events given out.
    pub events: u64,
    /// Prefixes mirrored, over all tables.
    pub routes: u64,
    /// Requests to the kernel to resolve or keep a neighbour.
    pub resolutions: u64,
    /// Such requests that the kernel refused.
    pub refused_resolutions: u64,
}

/// Mirrors the kernel and gives out changes. Single-threaded; [`super::Follower`] runs one on a thread.
#[derive(Debug)]
pub struct Monitor {
    notifications: NetlinkSocket,
    requests: NetlinkSocket,
    mirror: Mirror,
    publisher: Publisher,
    resolver: Resolver,
    ports: Ports,
    options: MonitorOptions,
    counters: Counters,
    rules_changed: bool,
    /// When the routes of a family (IPv4, IPv6) are to be read again.
    route_dump_due: [Option<Instant>; 2],
    /// How long the last route dump took: they are kept from following each other too closely.
    route_dump_cost: Duration,
    resync_due: Option<Instant>,
    synchronized: bool,
}

impl Monitor {
    /// Opens the sockets in the network namespace of the calling thread and reads the kernel's state. The first
    /// [`Monitor::poll`] gives it out.
    ///
    /// # Errors
    /// When a socket or a dump fails.
    pub fn open(options: MonitorOptions) -> Result<Self, KernelError> {
        let open = |groups, buffer| {
            NetlinkSocket::open(Family::Route, groups, buffer)
                .map_err(|error| KernelError::netlink("opening a NETLINK_ROUTE socket", error))
        };
        let mut monitor = Monitor {
            notifications: open(GROUPS, options.receive_buffer)?,
            requests: open(0, 4 << 20)?,
            mirror: Mirror::default(),
            publisher: Publisher::default(),
            resolver: Resolver::default(),
            ports: Ports::new(),
            resync_due: None,
            options,
            counters: Counters::default(),
            rules_changed: false,
            route_dump_due: [None; 2],
            route_dump_cost: Duration::ZERO,
            synchronized: false,
        };
        monitor.mirror = monitor.dump_all()?;
        monitor.mirror.in_dump = false;
        monitor.mirror.dirty.all_prefixes = true;
        monitor.plan_resync();
        Ok(monitor)
    }

    /// Says which links are the host interfaces of which ports. Routes over links whose port changed are given out again
    /// by the next poll, with their links, addresses and neighbours.
    pub fn set_ports(&mut self, ports: impl IntoIterator<Item = (u32, PortId)>) {
        let ports: Ports = ports.into_iter().collect();
        let changed = |ifindex: &&u32| self.ports.get(ifindex) != ports.get(ifindex);
        for ifindex in self.ports.keys().chain(ports.keys()).filter(changed) {
            let dirty = &mut self.mirror.dirty;
            dirty.hop_links.insert(*ifindex);
            dirty.links.insert(*ifindex);
            dirty.addresses = true;
            dirty.neighbors.extend(self.mirror.neighbors.keys().filter(|key| key.0 == *ifindex));
        }
        let gone: Vec<u32> = self.ports.keys().filter(|ifindex| !ports.contains_key(ifindex)).copied().collect();
        self.resolver.forget(&gone);
        self.ports = ports;
    }

    /// Waits up to `timeout` for a change, or until `wake` is readable, and appends the events to `events`.
    ///
    /// # Errors
    /// When a socket fails for good. Overruns are no errors: they are counted and lead to a resync.
    pub fn poll(
        &mut self,
        timeout: Duration,
        wake: Option<BorrowedFd<'_>>,
        events: &mut Vec<Event>,
    ) -> Result<(), KernelError> {
        let fail = |error| KernelError::netlink("reading kernel notifications", error);
        let pending = !self.synchronized || !self.mirror.dirty_is_empty();
        let timeout = if pending { Duration::ZERO } else { self.until_due(timeout) };
        self.notifications.wait(wake, timeout).map_err(fail)?;
        if self.take_in().map_err(fail)? {
            self.counters.overruns += 1;
            self.resync()?;
        }
        self.timed_work()?;
        if self.rules_changed {
            self.rules_changed = false;
            for is_v6 in [false, true] {
                let chain = self.dump_chain(is_v6)?;
                self.mirror.chain_set(is_v6, chain);
            }
        }
        let before = events.len();
        self.publisher.flush(&mut self.mirror, &self.ports, events);
        if !self.synchronized {
            self.synchronized = true;
            events.push(Event::Synchronized);
        }
        self.counters.events += (events.len() - before) as u64;
        if std::mem::take(&mut self.mirror.dirty.silent_loss) {
            self.plan_route_dump(false);
        }
        Ok(())
    }

    /// Asks the kernel to resolve `address` on the link `ifindex` and to keep it fresh until
    /// [`Monitor::release_resolution`]. The answer comes as [`Event::Neighbor`].
    pub fn request_resolution(&mut self, ifindex: u32, address: IpAddr) {
        self.resolver.request(&mut self.requests, ifindex, address);
    }

    /// Ends the care for a neighbour.
    pub fn release_resolution(&mut self, ifindex: u32, address: IpAddr) {
        self.resolver.release(&mut self.requests, ifindex, address);
    }

    /// Access to the settings of neighbour resolution.
    pub fn resolver(&mut self) -> &mut Resolver {
        &mut self.resolver
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        let (resolutions, refused_resolutions) = self.resolver.counts();
        Counters { routes: self.mirror.route_count() as u64, resolutions, refused_resolutions, ..self.counters }
    }

    /// Rules and routes that forwarding does not honour, by name; and routes that lead through links that are no port.
    pub fn unsupported(&self) -> Vec<Unsupported> {
        self.publisher.unsupported(&self.mirror)
    }

    /// Reads everything again and marks the differences; the next poll gives them out.
    ///
    /// # Errors
    /// When a dump fails.
    pub fn resync(&mut self) -> Result<(), KernelError> {
        self.counters.resyncs += 1;
        let fresh = self.dump_all()?;
        self.mirror.replace(fresh);
        self.plan_resync();
        Ok(())
    }

    fn plan_resync(&mut self) {
        let interval = self.options.resync_interval;
        self.resync_due = (!interval.is_zero()).then(|| Instant::now() + interval);
    }

    fn plan_route_dump(&mut self, is_v6: bool) {
        let wait = QUIET_TIME.max(self.route_dump_cost * 4);
        self.route_dump_due[usize::from(is_v6)].get_or_insert(Instant::now() + wait);
    }

    fn until_due(&self, timeout: Duration) -> Duration {
        let dues = self.route_dump_due.iter().flatten().chain(&self.resync_due);
        let next = dues.copied().chain(self.resolver.next_due()).min();
        next.map_or(timeout, |due| timeout.min(due.saturating_duration_since(Instant::now())))
    }

    fn timed_work(&mut self) -> Result<(), KernelError> {
        let now = Instant::now();
        if self.resync_due.is_some_and(|due| now >= due) {
            self.resync()?;
        }
        for is_v6 in [false, true] {
            let slot = &mut self.route_dump_due[usize::from(is_v6)];
            if slot.is_some_and(|due| now >= due) {
                *slot = None;
                self.counters.route_dumps += 1;
                let mut fresh = Mirror::for_dump();
                let objects = self.dump_objects(&mut fresh)?;
                let routes = self.dump_routes(is_v6, &mut fresh)?;
                self.mirror.replace_routes(fresh.objects, fresh.tables, fresh.source_specific, Some(is_v6));
                self.route_dump_cost = now.elapsed();
                if !(objects && routes) {
                    self.counters.disturbed_dumps += 1;
                    self.plan_route_dump(is_v6);
                }
            }
        }
        self.resolver.refresh(&mut self.requests, now);
        Ok(())
    }

    /// Takes in waiting notifications. True: the kernel dropped some, and the rest was thrown away.
    fn take_in(&mut self) -> io::Result<bool> {
        for _ in 0..BATCH_LIMIT {
            match self.notifications.receive()? {
                Received::Empty => return Ok(false),
                Received::Overrun => {
                    // What still waits is older than the dump to come.
                    for _ in 0..BATCH_LIMIT * 16 {
                        if self.notifications.receive()? == Received::Empty {
                            break;
                        }
                    }
                    return Ok(true);
                }
                Received::Data(length) => {
                    for frame in self.notifications.frames(length) {
                        self.counters.notifications += 1;
                        match apply(&mut self.mirror, &frame) {
                            Applied::Done => {}
                            Applied::RuleChanged => self.rules_changed = true,
                            Applied::Uncertain { is_v6 } => {
                                let slot = &mut self.route_dump_due[usize::from(is_v6)];
                                slot.get_or_insert(Instant::now() + QUIET_TIME);
                            }
                            Applied::Unreadable => self.counters.unreadable += 1,
                        }
                    }
                }
            }
        }
        Ok(false)
    }

    fn dump_all(&mut self) -> Result<Mirror, KernelError> {
        let mut fresh = Mirror::for_dump();
        let mut consistent = self.dump_links(&mut fresh)?;
        consistent &= self.dump_addresses(&mut fresh)?;
        for is_v6 in [false, true] {
            fresh.chains[usize::from(is_v6)] = self.dump_chain(is_v6)?;
        }
        consistent &= self.dump_objects(&mut fresh)?;
        for is_v6 in [false, true] {
            consistent &= self.dump_routes(is_v6, &mut fresh)?;
        }
        consistent &= self.dump_neighbors(&mut fresh)?;
        if !consistent {
            self.counters.disturbed_dumps += 1;
            self.plan_route_dump(false);
            self.plan_route_dump(true);
        }
        Ok(fresh)
    }

    fn dump(
        &mut self,
        what: &str,
        message: Message,
        fresh: &mut Mirror,
        clear: impl FnMut(&mut Mirror),
    ) -> Result<bool, KernelError> {
        let each = |fresh: &mut Mirror, frame: &Frame<'_>| {
            apply(fresh, frame);
        };
        self.requests
            .dump(&message, fresh, clear, each)
            .map_err(|error| KernelError::netlink(format!("reading the kernel's {what}"), error))
    }

    fn dump_links(&mut self, fresh: &mut Mirror) -> Result<bool, KernelError> {
        let message = Message::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG]);
        self.dump("links", message, fresh, |fresh| fresh.links = BTreeMap::new())
    }

    fn dump_addresses(&mut self, fresh: &mut Mirror) -> Result<bool, KernelError> {
        let message = Message::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG]);
        self.dump("addresses", message, fresh, |fresh| fresh.addresses = BTreeMap::new())
    }

    fn dump_neighbors(&mut self, fresh: &mut Mirror) -> Result<bool, KernelError> {
        let message = Message::new(libc::RTM_GETNEIGH, 0, &[0; NDMSG]);
        self.dump("neighbours", message, fresh, |fresh| fresh.neighbors = HashMap::new())
    }

    fn dump_objects(&mut self, fresh: &mut Mirror) -> Result<bool, KernelError> {
        let message = Message::new(RTM_GETNEXTHOP, 0, &[0; NHMSG]);
        let clear = |fresh: &mut Mirror| fresh.objects = HashMap::new();
        match self.dump("nexthop objects", message, fresh, clear) {
            // Before Linux 5.3 there were none.
            Err(KernelError::Netlink { source, .. }) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(true),
            other => other,
        }
    }

    fn dump_routes(&mut self, is_v6: bool, fresh: &mut Mirror) -> Result<bool, KernelError> {
        let mut header = [0; RTMSG];
        header[0] = if is_v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
        let message = Message::new(libc::RTM_GETROUTE, 0, &header);
        self.dump("routes", message, fresh, |fresh| {
            fresh.tables.retain(|key, _| key.0 != is_v6);
            fresh.throws = BTreeSet::new();
        })
    }

    fn dump_chain(&mut self, is_v6: bool) -> Result<Chain, KernelError> {
        let mut header = [0; RULE_HEADER];
        header[0] = if is_v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
        let message = Message::new(libc::RTM_GETRULE, 0, &header);
        let mut found: Vec<(u32, Reading)> = Vec::new();
        self.requests
            .dump(&message, &mut found, Vec::clear, |found, frame| found.extend(rules::read(frame)))
            .map_err(|error| KernelError::netlink("reading the kernel's rules", error))?;
        found.sort_by_key(|(priority, _)| *priority);
        let mut chain = Chain::default();
        for (_, reading) in found {
            match reading {
                Reading::Step(step) => chain.steps.push(step),
                Reading::Unsupported(unsupported) => chain.unsupported.push(unsupported),
                Reading::Irrelevant => {}
            }
        }
        Ok(chain)
    }
}

/// What became of a message.
enum Applied {
    Done,
    RuleChanged,
    Uncertain { is_v6: bool },
    Unreadable,
}

/// Takes one message, of a dump or a notification, into the mirror.
fn apply(mirror: &mut Mirror, frame: &Frame<'_>) -> Applied {
    let done = |read: Option<()>| if read.is_some() { Applied::Done } else { Applied::Unreadable };
    match frame.kind {
        libc::RTM_NEWLINK | libc::RTM_DELLINK => {
            // Notifications of bridge ports and the like carry a family and say nothing about the link itself.
            if frame.body.first().is_some_and(|family| *family != 0) {
                return Applied::Done;
            }
            done(Link::parse(frame).map(|link| match frame.kind {
                libc::RTM_NEWLINK => mirror.link_set(link),
                _ => mirror.link_remove(link.ifindex),
            }))
        }
        libc::RTM_NEWADDR => done(Address::parse(frame).map(|address| mirror.address_set(address))),
        libc::RTM_DELADDR => done(Address::parse(frame).map(|address| mirror.address_remove(&address))),
        libc::RTM_NEWROUTE => {
            if let Some(route) = Route::parse(frame) {
                let is_v6 = route.prefix.is_ipv6();
                if !mirror.route_set(route, frame.flags) {
                    return Applied::Uncertain { is_v6 };
                }
            }
            Applied::Done
        }
        libc::RTM_DELROUTE => {
            if let Some(route) = Route::parse(frame) {
                mirror.route_remove(&route);
            }
            Applied::Done
        }
        RTM_NEWNEXTHOP => done(parse_nexthop(frame).map(|(id, object)| mirror.object_set(id, object))),
        RTM_DELNEXTHOP => done(parse_nexthop(frame).map(|(id, _)| mirror.object_remove(id))),
        libc::RTM_NEWNEIGH => {
            if let Some(neighbor) = Neighbor::parse(frame) {
                mirror.neighbor_set(neighbor);
            }
            Applied::Done
        }
        libc::RTM_DELNEIGH => {
            if let Some(neighbor) = Neighbor::parse(frame) {
                mirror.neighbor_remove(neighbor.ifindex, neighbor.address);
            }
            Applied::Done
        }
        libc::RTM_NEWRULE | libc::RTM_DELRULE => Applied::RuleChanged,
        _ => Applied::Done,
    }
}
