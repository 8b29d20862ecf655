//! The route in force for a prefix, over all tables that the rules name.
//!
//! The packet path does one longest-prefix match, the kernel one for each rule until a table answers. They agree when
//! each prefix P of any table carries the kernel's answer for P: for an address whose longest prefix (over all tables) is
//! P, every table's longest match covers P, so the kernel's walk gives the same for the address as for P.
#![forbid(unsafe_code)]

use super::event::{Hop, PortId, RouteAction};
use super::message::{Hops, NextHopObject, RawHop, RouteEntry};
use super::mirror::{Mirror, Table};
use super::rules::Step;
use ipnetwork::IpNetwork;
use std::collections::HashMap;

/// Which link is the host interface of which port.
pub(crate) type Ports = HashMap<u32, PortId>;

/// How deep groups may nest; the kernel allows one level.
const GROUP_DEPTH: u8 = 2;

impl Mirror {
    /// The metric and action in force for `prefix`, `None` when nothing in any consulted table is for exactly it.
    pub(crate) fn resolve(&self, prefix: IpNetwork, ports: &Ports) -> Option<(u32, RouteAction)> {
        let is_v6 = prefix.is_ipv6();
        let mut present = false;
        let mut answer = None;
        for step in &self.chains[usize::from(is_v6)].steps {
            match *step {
                Step::End { kind } => {
                    // Rules that end the look-up hold for everything that no shorter way was found for.
                    present |= prefix.prefix() == 0;
                    answer = answer.or_else(|| Some((0, ended(kind)?)));
                    break;
                }
                Step::Table { table, suppress } => {
                    let Some(table) = self.tables.get(&(is_v6, table)) else { continue };
                    // The prefix may be there in a later table only, shadowed by an earlier one.
                    present = present || self.usable_at(table, prefix).is_some();
                    if answer.is_none() {
                        answer = self.look_up(table, prefix, suppress, ports);
                    }
                    if answer.is_some() && present {
                        break;
                    }
                }
            }
        }
        // A throw that nobody catches: no route, although a shorter prefix may have one.
        let answer = answer.unwrap_or((0, RouteAction::Unreachable));
        present.then_some(answer)
    }

    fn usable_at<'a>(&'a self, table: &'a Table, prefix: IpNetwork) -> Option<&'a RouteEntry> {
        table.routes.get(&prefix)?.iter().find(|entry| self.is_usable(entry))
    }

    /// The answer of one table; `None` when the look-up goes on with the next rule.
    fn look_up(
        &self,
        table: &Table,
        prefix: IpNetwork,
        suppress: Option<u8>,
        ports: &Ports,
    ) -> Option<(u32, RouteAction)> {
        for (found, entries) in table.covering(prefix) {
            let Some(entry) = self.preferred(entries) else { continue };
            if entry.kind == libc::RTN_THROW || suppress.is_some_and(|length| found.prefix() <= length) {
                return None;
            }
            return Some((entry.metric, self.action(entry, ports)));
        }
        None
    }

    /// The first usable route of the lowest metric; among IPv6 ones from router advertisements the preferred router.
    fn preferred<'a>(&self, entries: &'a [RouteEntry]) -> Option<&'a RouteEntry> {
        let rank = |entry: &RouteEntry| match entry.preference {
            1 => 0,
            3 => 2,
            _ => 1,
        };
        entries.iter().filter(|entry| self.is_usable(entry)).min_by_key(|entry| (entry.metric, rank(entry)))
    }

    /// A route without a live next hop is passed over, as the kernel does. Packets carry no type of service that a
    /// route with one could be chosen by: those are left out and reported.
    fn is_usable(&self, entry: &RouteEntry) -> bool {
        if entry.tos != 0 {
            return false;
        }
        match entry.kind {
            libc::RTN_UNICAST => {
                let mut hops = Vec::new();
                self.expand(&entry.hops, 1, GROUP_DEPTH, &mut hops).is_none_or(|_| !hops.is_empty())
            }
            libc::RTN_LOCAL | libc::RTN_ANYCAST | libc::RTN_BROADCAST => match &entry.hops {
                Hops::Own(hops) => hops.iter().all(|hop| self.links.contains_key(&hop.ifindex)),
                Hops::Object(_) => true,
            },
            _ => true,
        }
    }

    /// Gathers the live hops of a route; `None` when it is a nexthop object that drops.
    fn expand(&self, hops: &Hops, weight: u16, depth: u8, into: &mut Vec<RawHop>) -> Option<()> {
        match hops {
            Hops::Own(hops) => into.extend(hops.iter().filter(|hop| self.is_live(hop.ifindex)).cloned()),
            Hops::Object(id) => match self.objects.get(id) {
                Some(NextHopObject::Single(hop)) if self.is_live(hop.ifindex) => {
                    into.push(RawHop { weight, ..hop.clone() });
                }
                Some(NextHopObject::Group(members)) if depth > 0 => {
                    for (member, weight) in members {
                        self.expand(&Hops::Object(*member), *weight, depth - 1, into)?;
                    }
                }
                Some(NextHopObject::Blackhole) => return None,
                _ => {}
            },
        }
        Some(())
    }

    /// The kernel keeps using a link without carrier unless told otherwise, so only the administrative state counts. A
    /// route that names a link we have not heard of yet waits until its message comes (NEWROUTE before NEWLINK).
    fn is_live(&self, ifindex: u32) -> bool {
        self.links.get(&ifindex).is_some_and(|link| link.is_up() && (link.has_carrier() || !link.ignore_linkdown))
    }

    fn action(&self, entry: &RouteEntry, ports: &Ports) -> RouteAction {
        let mut raw = Vec::new();
        let Some(()) = self.expand(&entry.hops, 1, GROUP_DEPTH, &mut raw) else { return RouteAction::Blackhole };
        let first = match &entry.hops {
            Hops::Own(hops) => hops.first().map_or(0, |hop| hop.ifindex),
            Hops::Object(_) => raw.first().map_or(0, |hop| hop.ifindex),
        };
        match entry.kind {
            libc::RTN_UNICAST => {
                let hop = |hop: RawHop| Hop {
                    ifindex: hop.ifindex,
                    port: ports.get(&hop.ifindex).copied().filter(|_| !hop.encapsulated),
                    gateway: hop.gateway,
                    weight: hop.weight,
                };
                let hops: Vec<Hop> = raw.into_iter().map(hop).collect();
                if hops.iter().any(|hop| hop.port.is_some()) {
                    RouteAction::Forward(hops)
                } else {
                    RouteAction::HostVia(hops)
                }
            }
            libc::RTN_LOCAL | libc::RTN_ANYCAST => RouteAction::Local { ifindex: first },
            libc::RTN_BROADCAST => RouteAction::Broadcast { ifindex: first },
            libc::RTN_MULTICAST => RouteAction::Multicast,
            kind => ended(kind).unwrap_or(RouteAction::Unreachable),
        }
    }

    /// Does a route of these lead through one of `links` or `objects`?
    pub(crate) fn touches(
        &self,
        entries: &[RouteEntry],
        links: &std::collections::HashSet<u32>,
        objects: &std::collections::HashSet<u32>,
    ) -> bool {
        entries.iter().any(|entry| match &entry.hops {
            Hops::Own(hops) => hops.iter().any(|hop| links.contains(&hop.ifindex)),
            Hops::Object(id) => objects.contains(id) || self.object_touches(*id, links, GROUP_DEPTH),
        })
    }

    fn object_touches(&self, id: u32, links: &std::collections::HashSet<u32>, depth: u8) -> bool {
        match self.objects.get(&id) {
            Some(NextHopObject::Single(hop)) => links.contains(&hop.ifindex),
            Some(NextHopObject::Group(members)) if depth > 0 => {
                members.iter().any(|(member, _)| self.object_touches(*member, links, depth - 1))
            }
            _ => false,
        }
    }
}

/// The action of a type that needs no next hop.
fn ended(kind: u8) -> Option<RouteAction> {
    match kind {
        libc::RTN_BLACKHOLE => Some(RouteAction::Blackhole),
        libc::RTN_UNREACHABLE => Some(RouteAction::Unreachable),
        libc::RTN_PROHIBIT => Some(RouteAction::Prohibit),
        _ => None,
    }
}
