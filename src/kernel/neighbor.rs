//! Neighbour resolution by the kernel, at our request.
//!
//! The kernel probes a neighbour only when its own traffic uses it. For next hops that the packet path uses we say so
//! with RTM_NEWNEIGH and NTF_USE, which starts ARP or ND at once. NTF_EXT_MANAGED (Linux 5.16) makes the kernel repeat
//! that by itself; where it is missing we repeat NTF_USE. Either way an entry that has become STALE is probed, so that
//! a peer that changes its MAC without a word is noticed: unicast probes to the old MAC fail, then `mcast_resolicit` of
//! the link (see `sysctl`) asks everyone before the entry is given up.
#![forbid(unsafe_code)]

use super::message::address_bytes;
use super::socket::NetlinkSocket;
use super::wire::Message;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// `NDA_FLAGS_EXT` and `NTF_EXT_MANAGED` (linux/neighbour.h).
const NDA_FLAGS_EXT: u16 = 15;
const NTF_EXT_MANAGED: u32 = 1;

/// Who keeps neighbours in use fresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResolutionMode {
    /// The kernel where it can (NTF_EXT_MANAGED), else we.
    #[default]
    Automatic,
    /// We, by repeated NTF_USE.
    Repeated,
}

/// The neighbours in use.
#[derive(Debug)]
pub struct Resolver {
    mode: ResolutionMode,
    interval: Duration,
    /// In use: whether the kernel manages the entry.
    in_use: HashMap<(u32, IpAddr), bool>,
    refresh_due: Option<Instant>,
    requests: u64,
    refused: u64,
}

impl Default for Resolver {
    fn default() -> Self {
        Resolver {
            mode: ResolutionMode::default(),
            interval: Duration::from_secs(5),
            in_use: HashMap::new(),
            refresh_due: None,
            requests: 0,
            refused: 0,
        }
    }
}

impl Resolver {
    /// Chooses who keeps entries fresh, and how often we repeat NTF_USE where we do; also how often a managed entry that
    /// the kernel has lost is asked for again. 5 s by default, at least 100 ms.
    pub fn configure(&mut self, mode: ResolutionMode, interval: Duration) {
        self.mode = mode;
        self.interval = interval.max(Duration::from_millis(100));
        self.refresh_due = (!self.in_use.is_empty()).then(|| Instant::now() + self.interval);
    }

    pub(crate) fn request(&mut self, socket: &mut NetlinkSocket, ifindex: u32, address: IpAddr) {
        let managed = self.ask(socket, ifindex, address);
        self.in_use.insert((ifindex, address), managed);
        self.refresh_due.get_or_insert(Instant::now() + self.interval);
    }

    pub(crate) fn release(&mut self, socket: &mut NetlinkSocket, ifindex: u32, address: IpAddr) {
        if self.in_use.remove(&(ifindex, address)) == Some(true) {
            // A request without the flag clears it; the entry then ages like any other.
            let _ = socket.request(message(ifindex, address, None));
        }
        if self.in_use.is_empty() {
            self.refresh_due = None;
        }
    }

    /// Ends the care for the neighbours on links that are ports no more: asking for them would be in vain.
    pub(crate) fn forget(&mut self, links: &[u32]) {
        self.in_use.retain(|(ifindex, _), _| !links.contains(ifindex));
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.refresh_due
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.requests, self.refused)
    }

    /// Repeats NTF_USE for all that is in use when it is time. Managed entries, too: the kernel forgets them with the
    /// link, and the host interface may have been made anew.
    pub(crate) fn refresh(&mut self, socket: &mut NetlinkSocket, now: Instant) {
        if self.refresh_due.is_none_or(|due| now < due) {
            return;
        }
        self.refresh_due = Some(now + self.interval);
        for (ifindex, address) in self.in_use.keys().copied().collect::<Vec<_>>() {
            let managed = self.ask(socket, ifindex, address);
            self.in_use.insert((ifindex, address), managed);
        }
    }

    /// Sends the request; true when the kernel will manage the entry.
    fn ask(&mut self, socket: &mut NetlinkSocket, ifindex: u32, address: IpAddr) -> bool {
        self.requests += 1;
        if self.mode == ResolutionMode::Automatic
            && socket.request(message(ifindex, address, Some(NTF_EXT_MANAGED))).is_ok()
        {
            return true;
        }
        if socket.request(message(ifindex, address, None)).is_err() {
            self.refused += 1;
        }
        false
    }
}

fn message(ifindex: u32, address: IpAddr, extended: Option<u32>) -> Message {
    // struct ndmsg: family (1), padding (3), ifindex (4), state (2), flags (1), type (1).
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let mut header = [0; super::message::NDMSG];
    header[0] = family;
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    header[10] = libc::NTF_USE;
    let mut message = Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE as u16, &header);
    message.attribute(libc::NDA_DST, &address_bytes(address));
    if let Some(flags) = extended {
        message.attribute_u32(NDA_FLAGS_EXT, flags);
    }
    message
}
