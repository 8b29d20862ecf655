#![forbid(unsafe_code)]
//! `redirect_port`, `redirect_addr`, `redirect_proto`, with load sharing (LSNAT, RFC 2391).
//!
//! Ranges stay ranges: a line of the configuration is one entry, looked at when a flow has no state yet. Where several match, the one that
//! says more of the peer wins (address and port, address, port, nothing), then the one written last, as libalias(3) has it.

use ferrule_config::ipfw::nat::{NatConfig, Redirect};

use super::shared::Turns;
use super::state::Key;

/// Our own address stands for 0.0.0.0 (libalias(3), PORT AND ADDRESS REDIRECTION).
fn or_own(address: u32, own: u32) -> u32 {
    if address == 0 { own } else { address }
}

/// Whether `address` is the one meant, 0 standing for our own.
fn is(meant: u32, address: u32, own: u32) -> bool {
    address != 0 && or_own(meant, own) == address
}

struct PortRedirect {
    protocol: u8,
    /// Outside; 0 is our own address.
    public: u32,
    low: u16,
    high: u16,
    /// 0 is anybody.
    remote: u32,
    /// Of the first port; 0 is any.
    remote_port: u16,
    /// The last written comes first, as libalias takes its servers.
    locals: Box<[(u32, u16)]>,
    turn: usize,
}

impl PortRedirect {
    /// Which of the ports, and how much it says of the peer, where the flow is one of its own.
    fn matches(&self, place: Option<u16>, key: &Key) -> Option<(u16, u8)> {
        let place = place.filter(|place| *place <= self.high - self.low)?;
        let remote_port = if self.remote_port == 0 { 0 } else { self.remote_port.wrapping_add(place) };
        let fits = self.protocol == key.protocol
            && (self.remote == 0 || self.remote == key.far)
            && (remote_port == 0 || remote_port == key.far_port);
        fits.then_some((place, u8::from(self.remote != 0) * 2 + u8::from(remote_port != 0)))
    }
}

struct AddressRedirect {
    public: u32,
    locals: Box<[u32]>,
    turn: usize,
}

struct ProtocolRedirect {
    protocol: u8,
    local: u32,
    public: u32,
    remote: u32,
}

/// All redirections of an instance.
#[derive(Default)]
pub(super) struct Redirects {
    ports: Vec<PortRedirect>,
    addresses: Vec<AddressRedirect>,
    protocols: Vec<ProtocolRedirect>,
}

/// The last of those that say most.
fn best<T>(found: impl Iterator<Item = (T, u8)>) -> Option<T> {
    found.max_by_key(|(_, weight)| *weight).map(|(found, _)| found)
}

impl Redirects {
    /// What a configuration says.
    pub fn new(config: &NatConfig) -> Redirects {
        let mut redirects = Redirects::default();
        for (turn, redirect) in config.redirects.iter().enumerate() {
            match redirect {
                Redirect::Address { locals, public } => redirects.addresses.push(AddressRedirect {
                    public: (*public).into(),
                    locals: locals.iter().rev().map(|a| u32::from(*a)).collect(),
                    turn,
                }),
                Redirect::Port { protocol, locals, public, ports, remote } => {
                    let (remote, remote_port) = remote.as_ref().map_or((0, 0), |(a, p)| ((*a).into(), p.low));
                    redirects.ports.push(PortRedirect {
                        protocol: *protocol,
                        public: public.map_or(0, u32::from),
                        low: ports.low,
                        high: ports.high.max(ports.low),
                        remote,
                        remote_port,
                        locals: locals.iter().rev().map(|(a, p)| (u32::from(*a), p.low)).collect(),
                        turn,
                    });
                }
                Redirect::Protocol { protocol, local, public, remote } => {
                    redirects.protocols.push(ProtocolRedirect {
                        protocol: *protocol,
                        local: (*local).into(),
                        public: public.map_or(0, u32::from),
                        remote: remote.map_or(0, u32::from),
                    });
                }
            }
        }
        redirects
    }

    /// Where a new flow from outside goes, as `key` of the wire face; `own` is the alias address (0: none). Load sharing takes the next
    /// server; without `turns` (an ICMP error is no new flow) only fixed redirections count.
    pub fn incoming(&self, key: &Key, own: u32, turns: Option<&Turns>) -> Option<(u32, u16)> {
        let ports = self.ports.iter().filter(|r| is(r.public, key.near, own)).filter_map(|r| {
            let (place, weight) = r.matches(key.near_port.checked_sub(r.low), key)?;
            Some(((r, place), weight))
        });
        if let Some((redirect, place)) = best(ports) {
            let (address, port) = match (&*redirect.locals, turns) {
                ([one], _) => *one,
                (several, Some(turns)) => *several.get(turns.next(redirect.turn, several.len()))?,
                _ => return None,
            };
            return Some((or_own(address, own), port.wrapping_add(place)));
        }
        let fits = |r: &&ProtocolRedirect| {
            r.protocol == key.protocol && is(r.public, key.near, own) && (r.remote == 0 || r.remote == key.far)
        };
        best(self.protocols.iter().filter(fits).map(|r| (r, u8::from(r.remote != 0))))
            .map(|r| (or_own(r.local, own), key.near_port))
    }

    /// What a new flow from inside looks like outside, as `key` of the inside face, where a redirection fixes that. Load sharing does
    /// not: its servers' own connections are like everybody's.
    pub fn outgoing(&self, key: &Key, own: u32) -> Option<(u32, u16)> {
        let ports = self.ports.iter().filter_map(|r| {
            let [(local, port)] = *r.locals else { return None };
            if !is(local, key.near, own) {
                return None;
            }
            let (place, weight) = r.matches(key.near_port.checked_sub(port), key)?;
            Some(((or_own(r.public, own), r.low.wrapping_add(place)), weight))
        });
        if let Some(found) = best(ports) {
            return Some(found);
        }
        let fits = |r: &&ProtocolRedirect| {
            r.protocol == key.protocol && is(r.local, key.near, own) && (r.remote == 0 || r.remote == key.far)
        };
        best(self.protocols.iter().filter(fits).map(|r| (r, u8::from(r.remote != 0))))
            .map(|r| (or_own(r.public, own), key.near_port))
    }

    /// The inside host behind a public address (`redirect_addr`).
    pub fn local_of(&self, public: u32, own: u32, turns: &Turns) -> Option<u32> {
        let redirect = self.addresses.iter().rev().find(|r| is(r.public, public, own))?;
        let local = *redirect.locals.get(turns.next(redirect.turn, redirect.locals.len()))?;
        Some(or_own(local, own))
    }

    /// The public address of an inside host (`redirect_addr` with one local address).
    pub fn public_of(&self, local: u32, own: u32) -> Option<u32> {
        let fits = |r: &&AddressRedirect| matches!(*r.locals, [one] if is(one, local, own));
        self.addresses.iter().rev().find(fits).map(|r| or_own(r.public, own))
    }
}
