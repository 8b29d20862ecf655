//! Changing links, addresses and routes over rtnetlink, and saving them so that they can be put back or moved.
//!
//! Saved are the kernel's own messages, byte for byte: replayed, they bring back every attribute, also those that we do
//! not know. Only the link's index is changed on the way, and what the kernel does not take back is left out.
#![forbid(unsafe_code)]

use crate::kernel::KernelError;
use crate::kernel::message::{
    IFADDRMSG, IFINFOMSG, Link, NHA_ID, NHA_OIF, NHMSG, RTA_NH_ID, RTM_GETNEXTHOP, RTM_NEWNEXTHOP, RTMSG, address_bytes,
};
use crate::kernel::socket::{Family, NetlinkSocket};
use crate::kernel::wire::{Attributes, Frame, Frames, Message, u16_at, u32_at};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use std::io;

/// rtm_flags and rtnh_flags that a request may not have: dead, pervasive, offload, linkdown, unresolved, trap.
const STATE_FLAGS: u8 = 0x01 | 0x02 | 0x08 | 0x10 | 0x20 | 0x40;
/// `rtm_protocol` of routes that the kernel makes itself from addresses.
const RTPROT_KERNEL: u8 = 2;
const RTPROT_BOOT: u8 = 3;
const RTPROT_STATIC: u8 = 4;
const RTPROT_RA: u8 = 9;
const RTPROT_DHCP: u8 = 16;

/// A message of the kernel, as hexadecimal digits of its family header and attributes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// `nlmsg_type`.
    kind: u16,
    /// The body.
    hex: String,
}

impl Saved {
    fn new(frame: &Frame<'_>) -> Self {
        let hex = frame.body.iter().map(|byte| format!("{byte:02x}")).collect();
        Saved { kind: frame.kind, hex }
    }

    /// The same of another link.
    fn moved(&self, from: u32, to: u32) -> Saved {
        let Some(body) = self.body() else { return self.clone() };
        let message = replay(self.kind, self.kind, 0, &body, Some((from, to))).finish(0);
        Frames(&message).next().map_or_else(|| self.clone(), |frame| Saved::new(&frame))
    }

    fn body(&self) -> Option<Vec<u8>> {
        let digit = |at: usize| self.hex.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        (0..self.hex.len() / 2).map(|index| digit(index * 2)).collect()
    }
}

/// What was configured on a link.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Configuration {
    /// RTM_NEWADDR messages in the kernel's order.
    pub(crate) addresses: Vec<Saved>,
    /// RTM_NEWNEXTHOP messages.
    pub(crate) nexthops: Vec<Saved>,
    /// RTM_NEWROUTE messages.
    pub(crate) routes: Vec<Saved>,
}

impl Configuration {
    /// The same as of another link: a device that was made anew has another index.
    pub(crate) fn moved(&self, from: u32, to: u32) -> Configuration {
        let all = |saved: &[Saved]| saved.iter().map(|one| one.moved(from, to)).collect();
        Configuration { addresses: all(&self.addresses), nexthops: all(&self.nexthops), routes: all(&self.routes) }
    }

    /// Adds what `other` has beside it.
    pub(crate) fn merge(&mut self, other: Configuration) {
        let add = |to: &mut Vec<Saved>, from: Vec<Saved>| {
            for saved in from {
                if !to.contains(&saved) {
                    to.push(saved);
                }
            }
        };
        add(&mut self.addresses, other.addresses);
        add(&mut self.nexthops, other.nexthops);
        add(&mut self.routes, other.routes);
    }
}

/// Which routes to save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All that do not come from addresses.
    All,
    /// Those that nobody else will put back: no routing daemon's.
    Administrator,
}

/// A socket for changes.
#[derive(Debug)]
pub(crate) struct Rtnl {
    socket: NetlinkSocket,
}

impl Rtnl {
    pub(crate) fn open() -> Result<Self, KernelError> {
        NetlinkSocket::open(Family::Route, 0, 4 << 20)
            .map(|socket| Rtnl { socket })
            .map_err(|error| KernelError::netlink("opening a NETLINK_ROUTE socket", error))
    }

    pub(crate) fn links(&mut self) -> Result<Vec<Link>, KernelError> {
        let message = Message::new(libc::RTM_GETLINK, 0, &[0; IFINFOMSG]);
        let mut links = Vec::new();
        self.socket
            .dump(&message, &mut links, Vec::clear, |links, frame| links.extend(Link::parse(frame)))
            .map_err(|error| KernelError::netlink("listing links", error))?;
        Ok(links)
    }

    pub(crate) fn link(&mut self, name: &str) -> Result<Option<Link>, KernelError> {
        Ok(self.links()?.into_iter().find(|link| link.name == name))
    }

    /// Changes a link: `flags` under `mask` (IFF_*), and attributes.
    pub(crate) fn change(
        &mut self,
        ifindex: u32,
        (flags, mask): (i32, i32),
        fill: impl FnOnce(&mut Message),
    ) -> io::Result<()> {
        let mut header = [0; IFINFOMSG];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        header[8..12].copy_from_slice(&flags.to_ne_bytes());
        header[12..16].copy_from_slice(&mask.to_ne_bytes());
        let mut message = Message::new(libc::RTM_NEWLINK, 0, &header);
        fill(&mut message);
        self.socket.request(message)
    }

    /// Renames a link; where the kernel cannot do that to a link that is up (before 6.2), sets it down for it.
    pub(crate) fn rename(&mut self, ifindex: u32, name: &str) -> Result<(), KernelError> {
        let rename = |message: &mut Message| {
            message.attribute_str(libc::IFLA_IFNAME, name);
        };
        let mut result = self.change(ifindex, (0, 0), rename);
        if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            result = self
                .change(ifindex, (0, libc::IFF_UP), |_| {})
                .and_then(|()| self.change(ifindex, (0, 0), rename))
                .and_then(|()| self.change(ifindex, (libc::IFF_UP, libc::IFF_UP), |_| {}));
        }
        result.map_err(|error| KernelError::netlink(format!("renaming a link to {name}"), error))
    }

    pub(crate) fn delete_link(&mut self, ifindex: u32) -> io::Result<()> {
        let mut header = [0; IFINFOMSG];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        self.socket.request(Message::new(libc::RTM_DELLINK, 0, &header))
    }

    pub(crate) fn add_address(&mut self, ifindex: u32, address: IpNetwork) -> Result<(), KernelError> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
        let mut header = [0; IFADDRMSG];
        header[0] = family;
        header[1] = address.prefix();
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let bytes = address_bytes(address.ip());
        let mut message = Message::new(libc::RTM_NEWADDR, (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16, &header);
        message.attribute(libc::IFA_LOCAL, &bytes).attribute(libc::IFA_ADDRESS, &bytes);
        if let IpNetwork::V4(network) = address
            && network.prefix() < 31
        {
            message.attribute(libc::IFA_BROADCAST, &network.broadcast().octets());
        }
        match self.socket.request(message) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Err(KernelError::netlink(format!("adding {address}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Reads what is configured on a link.
    pub(crate) fn configuration(&mut self, ifindex: u32, scope: Scope) -> Result<Configuration, KernelError> {
        let mut configuration = Configuration::default();
        let fail = |what: &'static str| move |error| KernelError::netlink(format!("reading {what}"), error);
        let message = Message::new(libc::RTM_GETADDR, 0, &[0; IFADDRMSG]);
        let own = |frame: &Frame<'_>| u32_at(frame.body, 4) == Some(ifindex);
        self.socket
            .dump(&message, &mut configuration.addresses, Vec::clear, |list, frame| {
                list.extend(Some(frame).filter(|frame| own(frame)).map(Saved::new));
            })
            .map_err(fail("addresses"))?;
        let message = Message::new(RTM_GETNEXTHOP, 0, &[0; NHMSG]);
        let nexthops = self.socket.dump(&message, &mut configuration.nexthops, Vec::clear, |list, frame| {
            let uses = frame.split(NHMSG).and_then(|(_, attributes)| attributes.u32(NHA_OIF)) == Some(ifindex);
            list.extend(Some(frame).filter(|_| uses).map(Saved::new));
        });
        if let Err(error) = nexthops
            && error.raw_os_error() != Some(libc::EOPNOTSUPP)
        {
            return Err(fail("nexthop objects")(error));
        }
        let ids: Vec<u32> = configuration.nexthops.iter().filter_map(nexthop_id).collect();
        let mut routes = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut header = [0; RTMSG];
            header[0] = family as u8;
            let message = Message::new(libc::RTM_GETROUTE, 0, &header);
            let mut found = Vec::new();
            self.socket
                .dump(&message, &mut found, Vec::clear, |list, frame| {
                    let wanted = route_wanted(frame, ifindex, &ids, scope).unwrap_or(false);
                    list.extend(Some(frame).filter(|_| wanted).map(|frame| (has_gateway(frame), Saved::new(frame))));
                })
                .map_err(fail("routes"))?;
            routes.append(&mut found);
        }
        // Routes to neighbours' networks first: gateways must be reachable when their routes come.
        routes.sort_by_key(|(with_gateway, _)| *with_gateway);
        configuration.routes = routes.into_iter().map(|(_, saved)| saved).collect();
        Ok(configuration)
    }

    /// Removes all addresses and routes of a link.
    pub(crate) fn clear(&mut self, ifindex: u32) -> Result<(), KernelError> {
        let configuration = self.configuration(ifindex, Scope::All)?;
        for (saved, kind) in configuration
            .routes
            .iter()
            .map(|saved| (saved, libc::RTM_DELROUTE))
            .chain(configuration.addresses.iter().map(|saved| (saved, libc::RTM_DELADDR)))
        {
            let Some(body) = saved.body() else { continue };
            match self.socket.request(replay(saved.kind, kind, 0, &body, None)) {
                // Gone with another in the meantime.
                Err(error) if !is_absence(&error) => {
                    return Err(KernelError::netlink("moving addresses and routes off the NIC", error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Puts saved addresses, nexthop objects and routes on a link, where `from` was the link they were saved from.
    /// Returns those that the kernel refused, with its reason.
    pub(crate) fn put(&mut self, configuration: &Configuration, from: u32, to: u32, dad: Dad) -> Vec<String> {
        let mut refused = self.put_addresses(configuration, from, to, dad);
        refused.extend(self.put_routes(configuration, from, to));
        refused
    }

    pub(crate) fn put_addresses(&mut self, configuration: &Configuration, from: u32, to: u32, dad: Dad) -> Vec<String> {
        // The kernel puts a new IPv6 address before the others of its scope, a new IPv4 address behind them.
        let is_v6 = |saved: &&Saved| saved.hex.starts_with(&format!("{:02x}", libc::AF_INET6));
        let v4 = configuration.addresses.iter().filter(|saved| !is_v6(saved));
        let v6 = configuration.addresses.iter().filter(is_v6).rev();
        v4.chain(v6).filter_map(|saved| self.put_one(saved, (from, to), Some(dad))).collect()
    }

    pub(crate) fn put_routes(&mut self, configuration: &Configuration, from: u32, to: u32) -> Vec<String> {
        let all = configuration.nexthops.iter().chain(&configuration.routes);
        all.filter_map(|saved| self.put_one(saved, (from, to), None)).collect()
    }

    fn put_one(&mut self, saved: &Saved, (from, to): (u32, u32), dad: Option<Dad>) -> Option<String> {
        let Some(body) = saved.body() else { return Some(format!("{}: not hexadecimal", saved.hex)) };
        let flags = match saved.kind {
            RTM_NEWNEXTHOP => libc::NLM_F_CREATE | libc::NLM_F_REPLACE,
            libc::RTM_NEWADDR => libc::NLM_F_CREATE | libc::NLM_F_REPLACE,
            _ => libc::NLM_F_CREATE | libc::NLM_F_APPEND,
        };
        let mut message = replay(saved.kind, saved.kind, flags as u16, &body, Some((from, to)));
        if dad == Some(Dad::Skip) && body.first() == Some(&(libc::AF_INET6 as u8)) {
            // The address was in use under this MAC a moment ago.
            let known = Attributes(&body[IFADDRMSG..]).u32(libc::IFA_FLAGS).unwrap_or(0);
            message.attribute_u32(libc::IFA_FLAGS, request_flags(known) | libc::IFA_F_NODAD);
        }
        match self.socket.request(message) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Some(format!("{}: {error}", describe(saved))),
            _ => None,
        }
    }
}

/// Whether moved IPv6 addresses go through duplicate address detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dad {
    Run,
    Skip,
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT | libc::EADDRNOTAVAIL | libc::ENODEV))
}

fn nexthop_id(saved: &Saved) -> Option<u32> {
    Attributes(saved.body()?.get(NHMSG..)?).u32(NHA_ID)
}

fn has_gateway(frame: &Frame<'_>) -> bool {
    frame.split(RTMSG).is_some_and(|(_, attributes)| {
        [libc::RTA_GATEWAY, libc::RTA_VIA, libc::RTA_MULTIPATH, RTA_NH_ID]
            .into_iter()
            .any(|k| attributes.get(k).is_some())
    })
}

/// Does a route lead through the link, and would nobody else put it back?
fn route_wanted(frame: &Frame<'_>, ifindex: u32, nexthops: &[u32], scope: Scope) -> Option<bool> {
    let (header, attributes) = frame.split(RTMSG)?;
    let (protocol, kind) = (header[5], header[7]);
    let cloned = u32_at(header, 8)? & 0x200 != 0;
    if protocol == RTPROT_KERNEL || cloned || matches!(kind, libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_ANYCAST)
    {
        return Some(false);
    }
    let administrator = [RTPROT_BOOT, RTPROT_STATIC, RTPROT_RA, RTPROT_DHCP].contains(&protocol);
    if scope == Scope::Administrator && !administrator {
        return Some(false);
    }
    if let Some(id) = attributes.u32(RTA_NH_ID) {
        return Some(nexthops.contains(&id));
    }
    if attributes.u32(libc::RTA_OIF) == Some(ifindex) {
        return Some(true);
    }
    let mut data = attributes.get(libc::RTA_MULTIPATH).unwrap_or(&[]);
    while let (Some(length), Some(found)) = (u16_at(data, 0), u32_at(data, 4)) {
        if found == ifindex {
            return Some(true);
        }
        if length < 8 {
            return None;
        }
        data = data.get((usize::from(length) + 3) & !3..).unwrap_or(&[]);
    }
    Some(false)
}

/// IFA_F_* that describe a state, not a wish, are not sent back.
fn request_flags(flags: u32) -> u32 {
    flags & !(libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED | libc::IFA_F_PERMANENT | libc::IFA_F_SECONDARY)
}

/// A request made of a saved message of `kind`.
fn replay(kind: u16, request: u16, flags: u16, body: &[u8], links: Option<(u32, u32)>) -> Message {
    let length = match kind {
        libc::RTM_NEWADDR => IFADDRMSG,
        libc::RTM_NEWROUTE => RTMSG,
        _ => NHMSG,
    };
    let mut header = body.get(..length).map_or_else(|| vec![0; length], <[u8]>::to_vec);
    let attributes = Attributes(body.get(length..).unwrap_or(&[]));
    let moved = |ifindex: u32| links.filter(|(from, _)| *from == ifindex).map_or(ifindex, |(_, to)| to);
    match kind {
        libc::RTM_NEWADDR => {
            let ifindex = u32_at(&header, 4).unwrap_or(0);
            header[4..8].copy_from_slice(&moved(ifindex).to_ne_bytes());
            header[2] &= !0xc8; // The old eight-bit flags: tentative, permanent, dadfailed.
        }
        // rtm_flags and nh_flags are the last four bytes of their headers.
        _ => header[length - 4] &= !STATE_FLAGS,
    }
    if kind == RTM_NEWNEXTHOP {
        header[1] = 0; // nh_scope: the kernel's to say.
    }
    let mut message = Message::new(request, flags, &header);
    let by_object = kind == libc::RTM_NEWROUTE && attributes.get(RTA_NH_ID).is_some();
    for (name, data) in attributes {
        match (kind, name) {
            (libc::RTM_NEWROUTE, libc::RTA_OIF | libc::RTA_GATEWAY | libc::RTA_VIA | libc::RTA_MULTIPATH)
                if by_object => {}
            (libc::RTM_NEWROUTE, libc::RTA_OIF) | (RTM_NEWNEXTHOP, NHA_OIF) => {
                message.attribute_u32(name, moved(u32_at(data, 0).unwrap_or(0)));
            }
            (libc::RTM_NEWROUTE, libc::RTA_MULTIPATH) => {
                message.attribute(name, &move_multipath(data, moved));
            }
            (libc::RTM_NEWROUTE, libc::RTA_CACHEINFO) => {
                // struct rta_cacheinfo: rta_expires is the third word, in hundredths of a second.
                let expires = u32_at(data, 8).unwrap_or(0) as i32 / 100;
                if header[0] == libc::AF_INET6 as u8 && expires > 0 {
                    message.attribute_u32(libc::RTA_EXPIRES, expires as u32);
                }
            }
            (libc::RTM_NEWADDR, libc::IFA_FLAGS) => {
                message.attribute_u32(name, request_flags(u32_at(data, 0).unwrap_or(0)));
            }
            _ => {
                message.attribute(name, data);
            }
        }
    }
    message
}

fn move_multipath(data: &[u8], moved: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut copy = data.to_vec();
    let mut at = 0;
    while let (Some(length), Some(ifindex)) = (u16_at(&copy, at), u32_at(&copy, at + 4)) {
        copy[at + 4..at + 8].copy_from_slice(&moved(ifindex).to_ne_bytes());
        copy[at + 2] &= !STATE_FLAGS;
        if length < 8 {
            break;
        }
        at += (usize::from(length) + 3) & !3;
    }
    copy
}

/// A saved message for the eye.
fn describe(saved: &Saved) -> String {
    use crate::kernel::message::{Address, Route};
    let Some(body) = saved.body() else { return "unreadable record".to_owned() };
    let mut bytes = ((body.len() + 16) as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&saved.kind.to_ne_bytes());
    bytes.extend_from_slice(&[0; 10]);
    bytes.extend_from_slice(&body);
    let frame = Frames(&bytes).next();
    match (saved.kind, frame) {
        (libc::RTM_NEWADDR, Some(frame)) => {
            Address::parse(&frame).map_or_else(|| "address".to_owned(), |found| format!("address {}", found.network))
        }
        (libc::RTM_NEWROUTE, Some(frame)) => Route::parse(&frame)
            .map_or_else(|| "route".to_owned(), |found| format!("route {} table {}", found.prefix, found.table)),
        _ => format!("nexthop {}", nexthop_id(saved).unwrap_or(0)),
    }
}
