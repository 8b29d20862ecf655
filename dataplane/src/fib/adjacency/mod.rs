#![forbid(unsafe_code)]
//! What a look-up leads to: the adjacency table.
//!
//! An entry is one cache line of atomic words, written by the control thread alone and read by every worker:
//!
//! | word | holds |
//! |---|---|
//! | 0 | kind (8 bits), flags (8), egress port (16), its MTU (16), multipath group (16) |
//! | 1 | destination MAC (6 bytes), first two bytes of the source MAC |
//! | 2 | last four bytes of the source MAC, 802.1Q/802.1ad tag (TPID and TCI; zero when untagged) |
//! | 3, 4 | next hop's address, for the resolver |
//!
//! Words 1 and 2 are kept in the order of the wire, so that the rewrite is two plain stores. A neighbour that changes its
//! MAC is one store of word 1. A neighbour that is resolved gets words 1 and 2 first and then word 0 with Release, so a
//! worker that sees [`AdjacencyKind::Forward`] sees the MAC. Only a change of the *port's own* MAC writes both words:
//! a worker may then send a frame whose source MAC is half new, for the nanoseconds between the two stores.
//!
//! A slot is given to another next hop only after every worker was quiescent (see [`crate::quiesce`]).

mod writer;

pub(crate) use writer::AdjacencyWriter;

use super::memory::zeroed_u32_slice;
use super::prefix::{MacAddress, PortId, VlanTag};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of an entry of [`Adjacencies`]; 0 is "no route".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AdjacencyId(pub u32);

/// What a worker does with a packet whose look-up led here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum AdjacencyKind {
    /// No prefix covers the destination: drop, network unreachable.
    NoRoute = 0,
    /// A blackhole route: drop without a word.
    Blackhole = 1,
    /// An unreachable route, or one whose every port is down: drop, host unreachable.
    Unreachable = 2,
    /// A prohibit route: drop, administratively prohibited.
    Prohibit = 3,
    /// A directed broadcast of a connected subnet, or 255.255.255.255: never forwarded (RFC 2644); the host may want it.
    Broadcast = 4,
    /// An address that must not appear as a destination on the wire (RFC 1812 5.3.7, RFC 6890): drop.
    Martian = 5,
    /// IPv4 224/4 and IPv6 ff00::/8: never forwarded; the host may want it.
    Multicast = 6,
    /// IPv6 fe80::/10: never forwarded (RFC 4291 2.5.6); the host decides whether the address is its own on that link.
    LinkLocal = 7,
    /// The next hop is on an interface that is no port: the host's stack forwards it.
    HostVia = 8,
    /// An address of this box.
    Local = 9,
    /// A connected subnet: the next hop is the destination itself, and no neighbour is known for it.
    Glean = 10,
    /// The next hop is known, its MAC is not: hold the packet and ask.
    Unresolved = 11,
    /// Resolved: rewrite the MACs and send.
    Forward = 12,
    /// Several next hops: [`Adjacencies::resolve`] picks one by the flow hash.
    Multipath = 13,
}

impl AdjacencyKind {
    /// The kinds in the order of their numbers.
    pub const ALL: [AdjacencyKind; 14] = [
        AdjacencyKind::NoRoute,
        AdjacencyKind::Blackhole,
        AdjacencyKind::Unreachable,
        AdjacencyKind::Prohibit,
        AdjacencyKind::Broadcast,
        AdjacencyKind::Martian,
        AdjacencyKind::Multicast,
        AdjacencyKind::LinkLocal,
        AdjacencyKind::HostVia,
        AdjacencyKind::Local,
        AdjacencyKind::Glean,
        AdjacencyKind::Unresolved,
        AdjacencyKind::Forward,
        AdjacencyKind::Multipath,
    ];

    /// The kinds that need no port; the entry of each has the kind's own number as its id.
    pub(crate) const FIXED: usize = AdjacencyKind::HostVia as usize + 1;

    /// The id of a kind that needs no port.
    pub(crate) const fn fixed_id(self) -> AdjacencyId {
        assert!((self as usize) < Self::FIXED, "this kind has an entry for each port or next hop");
        AdjacencyId(self as u32)
    }
}

const KIND_MASK: u64 = 0xff;
const NEXT_HOP_V4: u64 = 1 << 8;
const NEXT_HOP_V6: u64 = 1 << 9;
const PORT_SHIFT: u32 = 16;
const MTU_SHIFT: u32 = 32;
const GROUP_SHIFT: u32 = 48;

/// Buckets of a multipath group: the flow hash picks one of them.
pub const MULTIPATH_BUCKETS: usize = 64;

/// Word 0 of an entry, as read at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdjacencyView(u64);

impl AdjacencyView {
    /// What to do with the packet.
    #[inline(always)]
    pub fn kind(self) -> AdjacencyKind {
        // Spelled out so that it compiles to one range check and no table; other numbers are never stored.
        match self.0 & KIND_MASK {
            1 => AdjacencyKind::Blackhole,
            2 => AdjacencyKind::Unreachable,
            3 => AdjacencyKind::Prohibit,
            4 => AdjacencyKind::Broadcast,
            5 => AdjacencyKind::Martian,
            6 => AdjacencyKind::Multicast,
            7 => AdjacencyKind::LinkLocal,
            8 => AdjacencyKind::HostVia,
            9 => AdjacencyKind::Local,
            10 => AdjacencyKind::Glean,
            11 => AdjacencyKind::Unresolved,
            12 => AdjacencyKind::Forward,
            13 => AdjacencyKind::Multipath,
            _ => AdjacencyKind::NoRoute,
        }
    }

    /// Whether the kind is [`AdjacencyKind::Forward`]: the one test of the common case.
    #[inline(always)]
    pub fn is_forward(self) -> bool {
        self.0 & KIND_MASK == AdjacencyKind::Forward as u64
    }

    /// The egress port; of a local address the port that owns it. Meaningless for kinds without a port.
    #[inline(always)]
    pub fn port(self) -> PortId {
        PortId((self.0 >> PORT_SHIFT) as u16)
    }

    /// The egress port's MTU in bytes, 0 for kinds without a port.
    #[inline(always)]
    pub fn mtu(self) -> u16 {
        (self.0 >> MTU_SHIFT) as u16
    }

    fn group(self) -> usize {
        (self.0 >> GROUP_SHIFT) as usize
    }
}

/// The link-layer header to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rewrite {
    head: u64,
    tail: u64,
}

impl Rewrite {
    /// Destination MAC, source MAC, TPID, TCI: the first 16 bytes of a tagged frame.
    #[inline(always)]
    pub fn tagged(self) -> [u8; 16] {
        let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) = (self.head.to_ne_bytes(), self.tail.to_ne_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// Destination MAC and source MAC: the first 12 bytes of a frame.
    #[inline(always)]
    pub fn macs(self) -> [u8; 12] {
        let ([a, b, c, d, e, f, g, h], [i, j, k, l, ..]) = (self.head.to_ne_bytes(), self.tail.to_ne_bytes());
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    /// Whether there is a tag to push.
    #[inline(always)]
    pub fn is_tagged(self) -> bool {
        let [.., m, n, _, _] = self.tail.to_ne_bytes();
        m | n != 0
    }

    /// The tag to push, if the egress port is a VLAN sub-interface.
    #[inline(always)]
    pub fn vlan(self) -> Option<VlanTag> {
        let [.., m, n, o, p] = self.tail.to_ne_bytes();
        let tpid = u16::from_be_bytes([m, n]);
        (tpid != 0).then_some(VlanTag { tpid, tci: u16::from_be_bytes([o, p]) })
    }
}

/// One adjacency: a cache line.
#[repr(align(64))]
#[derive(Default)]
pub struct Entry([AtomicU64; 8]);

impl Entry {
    /// Its state.
    #[inline(always)]
    pub fn view(&self) -> AdjacencyView {
        AdjacencyView(self.0[0].load(Ordering::Acquire))
    }

    /// Its link-layer header; see [`Adjacencies::rewrite`].
    #[inline(always)]
    pub fn rewrite(&self) -> Rewrite {
        Rewrite { head: self.0[1].load(Ordering::Relaxed), tail: self.0[2].load(Ordering::Relaxed) }
    }
}

/// [`Adjacencies`] as plain references: the compiler keeps them in registers over a batch.
#[derive(Clone, Copy)]
pub struct AdjacencyReader<'a> {
    entries: &'a [Entry],
}

impl<'a> AdjacencyReader<'a> {
    /// The entry of an id; None for one that was never published.
    #[inline(always)]
    pub fn entry(&self, id: AdjacencyId) -> Option<&'a Entry> {
        self.entries.get(id.0 as usize)
    }
}

/// What the control thread writes into an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AdjacencyContent {
    pub(crate) kind: AdjacencyKind,
    pub(crate) port: PortId,
    pub(crate) mtu: u16,
    pub(crate) group: u16,
    pub(crate) destination: MacAddress,
    pub(crate) source: MacAddress,
    pub(crate) vlan: Option<VlanTag>,
    pub(crate) next_hop: Option<IpAddr>,
}

impl AdjacencyContent {
    pub(crate) fn new(kind: AdjacencyKind) -> AdjacencyContent {
        AdjacencyContent {
            kind,
            port: PortId(0),
            mtu: 0,
            group: 0,
            destination: MacAddress::default(),
            source: MacAddress::default(),
            vlan: None,
            next_hop: None,
        }
    }

    fn words(&self) -> [u64; 5] {
        let (flags, address) = match self.next_hop {
            None => (0, 0),
            Some(IpAddr::V4(address)) => (NEXT_HOP_V4, u128::from(address.to_bits())),
            Some(IpAddr::V6(address)) => (NEXT_HOP_V6, address.to_bits()),
        };
        let state = self.kind as u64
            | flags
            | u64::from(self.port.0) << PORT_SHIFT
            | u64::from(self.mtu) << MTU_SHIFT
            | u64::from(self.group) << GROUP_SHIFT;
        let ([a, b, c, d, e, f], [g, h, i, j, k, l]) = (self.destination.0, self.source.0);
        let ([m, n], [o, p]) =
            self.vlan.map_or(([0; 2], [0; 2]), |vlan| (vlan.tpid.to_be_bytes(), vlan.tci.to_be_bytes()));
        [
            state,
            u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            u64::from_ne_bytes([i, j, k, l, m, n, o, p]),
            (address >> 64) as u64,
            address as u64,
        ]
    }
}

/// The adjacency table: fixed capacity, shared by all workers.
pub struct Adjacencies {
    entries: Box<[Entry]>,
    /// Group `g` has buckets `g * MULTIPATH_BUCKETS ..`, each the id of a member.
    buckets: Box<[AtomicU32]>,
}

impl Adjacencies {
    /// Entries if nothing else is asked for.
    pub const DEFAULT_CAPACITY: usize = 65_536;
    /// Multipath groups if nothing else is asked for.
    pub const DEFAULT_GROUPS: usize = 4096;

    /// A table of `capacity` entries and `groups` multipath groups (at most 65,536); the fixed kinds are in place.
    pub(crate) fn new(capacity: usize, groups: usize) -> Adjacencies {
        let capacity = capacity.max(AdjacencyKind::FIXED);
        let table = Adjacencies {
            entries: (0..capacity).map(|_| Entry::default()).collect(),
            buckets: zeroed_u32_slice(groups.min(1 << 16) * MULTIPATH_BUCKETS),
        };
        for kind in AdjacencyKind::ALL.into_iter().take(AdjacencyKind::FIXED) {
            table.write(kind.fixed_id(), &AdjacencyContent::new(kind));
        }
        table
    }

    /// Number of entries.
    pub fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Number of multipath groups.
    pub fn groups(&self) -> usize {
        self.buckets.len() / MULTIPATH_BUCKETS
    }

    /// Bytes of the table.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.buckets)
    }

    #[inline(always)]
    fn word(&self, id: AdjacencyId, word: usize) -> u64 {
        match self.entries.get(id.0 as usize) {
            Some(entry) => entry.0[word].load(Ordering::Acquire),
            // No such id is ever published; reads as "no route".
            None => 0,
        }
    }

    /// Plain references, for a batch of look-ups.
    #[inline(always)]
    pub fn reader(&self) -> AdjacencyReader<'_> {
        AdjacencyReader { entries: &self.entries }
    }

    /// State of an entry: kind, port, MTU.
    #[inline(always)]
    pub fn get(&self, id: AdjacencyId) -> AdjacencyView {
        AdjacencyView(self.word(id, 0))
    }

    /// What to do with packets that lead to `id`.
    #[inline(always)]
    pub fn kind(&self, id: AdjacencyId) -> AdjacencyKind {
        self.get(id).kind()
    }

    /// The link-layer header of a [`AdjacencyKind::Forward`] entry. Of [`AdjacencyKind::Glean`] and
    /// [`AdjacencyKind::Unresolved`] only the source MAC and the tag are meaningful.
    #[inline(always)]
    pub fn rewrite(&self, id: AdjacencyId) -> Rewrite {
        match self.entries.get(id.0 as usize) {
            Some(entry) => entry.rewrite(),
            None => Rewrite { head: 0, tail: 0 },
        }
    }

    /// Follows a multipath entry to the member that `flow_hash` picks; any other entry is its own answer.
    #[inline(always)]
    pub fn resolve(&self, id: AdjacencyId, flow_hash: u32) -> (AdjacencyId, AdjacencyView) {
        let view = self.get(id);
        if view.0 & KIND_MASK != AdjacencyKind::Multipath as u64 {
            return (id, view);
        }
        let member = self.member(view, flow_hash);
        (member, self.get(member))
    }

    /// The member of a multipath entry that `flow_hash` picks.
    #[inline(always)]
    pub fn member(&self, multipath: AdjacencyView, flow_hash: u32) -> AdjacencyId {
        // Multiplied (Fibonacci hashing) so that the choice of a next hop does not follow the bits that chose the worker.
        let bucket = (flow_hash.wrapping_mul(0x9e37_79b1) >> 26) as usize;
        match self.buckets.get(multipath.group() * MULTIPATH_BUCKETS + bucket) {
            Some(bucket) => AdjacencyId(bucket.load(Ordering::Acquire)),
            None => AdjacencyId(0),
        }
    }

    /// The next hop's address; `None` where the destination itself is the next hop, or there is none.
    pub fn next_hop(&self, id: AdjacencyId) -> Option<IpAddr> {
        let state = self.word(id, 0);
        let bits = u128::from(self.word(id, 3)) << 64 | u128::from(self.word(id, 4));
        if state & NEXT_HOP_V4 != 0 {
            Some(IpAddr::V4(Ipv4Addr::from_bits(bits as u32)))
        } else if state & NEXT_HOP_V6 != 0 {
            Some(IpAddr::V6(Ipv6Addr::from_bits(bits)))
        } else {
            None
        }
    }

    /// Writes an entry, the state last. Stores only the words that change.
    pub(crate) fn write(&self, id: AdjacencyId, content: &AdjacencyContent) {
        let entry = &self.entries[id.0 as usize].0;
        let words = content.words();
        for (word, value) in entry.iter().zip(words).skip(1) {
            if word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Release);
            }
        }
        if entry[0].load(Ordering::Relaxed) != words[0] {
            entry[0].store(words[0], Ordering::Release);
        }
    }

    /// Points one bucket of a multipath group at `member`.
    pub(crate) fn write_bucket(&self, group: u16, bucket: usize, member: AdjacencyId) {
        let word = &self.buckets[usize::from(group) * MULTIPATH_BUCKETS + bucket];
        if word.load(Ordering::Relaxed) != member.0 {
            word.store(member.0, Ordering::Release);
        }
    }
}
