#![forbid(unsafe_code)]
//! `reass`: puts the fragments of IPv4 datagrams together, without copying them (RFC 815).
//!
//! Fragments of a datagram meet on one worker, which keeps them until the last one comes. As on FreeBSD a datagram has 30 seconds and at most
//! [`PIECES_MAX`] fragments wait for another one (`net.inet.ip.maxfragsperpacket`). Fragments that overlap end their datagram, as RFC 5722
//! asks for IPv6: nobody sends such for a good reason. One that comes twice is dropped alone. Everything is bounded: when datagrams or
//! fragments get too many, others that wait are given up.

use std::collections::HashMap;

use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::{Flags, L3, Packet};
use ferrule_dataplane::stage::Context;
use ferrule_dataplane::verdict::{Consumed, DropReason, Generated, Verdict};

/// Most fragments of one datagram that wait for another one.
pub const PIECES_MAX: usize = 16;
/// Datagrams of a worker that wait for fragments.
const DATAGRAMS: usize = 512;
/// Fragments of a worker that wait: a part of its buffers, so that reception never lacks any.
const WAITING_MAX: usize = 1024;
/// How long a datagram waits (FreeBSD: 60 half seconds).
const WAIT: Nanos = 30_000_000_000;
/// Datagrams looked at for their time in one turn.
const SWEEP: usize = 32;
/// Longest IP packet.
const LONGEST: usize = 65_535;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Key {
    source: u32,
    destination: u32,
    id: u16,
    protocol: u8,
}

struct Piece {
    start: usize,
    end: usize,
    more: bool,
    packet: Packet,
}

#[derive(Default)]
struct Datagram {
    key: Key,
    /// In order; empty where the place is free.
    pieces: Vec<Piece>,
    deadline: Nanos,
    /// Bytes of payload so far.
    bytes: usize,
    /// Where the payload ends, once its last fragment is there.
    end: Option<usize>,
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reassembly {
    /// It waits, and an empty buffer is in its place.
    Waits,
    /// It was the one that was missing: the datagram is in its place.
    Whole,
    /// It is to be dropped.
    Dropped(DropReason),
}

/// The datagrams of one worker.
pub struct Reassembler {
    places: Vec<Datagram>,
    free: Vec<u32>,
    known: HashMap<Key, u32>,
    waiting: usize,
    cursor: usize,
}

impl Default for Reassembler {
    fn default() -> Reassembler {
        let place = |_| Datagram { pieces: Vec::with_capacity(PIECES_MAX + 1), ..Datagram::default() };
        Reassembler {
            places: (0..DATAGRAMS).map(place).collect(),
            free: (0..DATAGRAMS as u32).rev().collect(),
            known: HashMap::with_capacity(2 * DATAGRAMS),
            waiting: 0,
            cursor: 0,
        }
    }
}

impl Reassembler {
    /// Takes an IPv4 fragment out of its batch.
    pub fn add(&mut self, packet: &mut Packet, context: &mut Context<'_>) -> Reassembly {
        let h = packet.frame.header();
        let word = |at: usize| u16::from_be_bytes([h[at], h[at + 1]]);
        let header = usize::from(h[L3] & 15) * 4;
        let (flags, length) = (word(L3 + 6), packet.ip_len().saturating_sub(header));
        let (start, more) = (usize::from(flags & 0x1fff) * 8, flags & 0x2000 != 0);
        let end = start + length;
        if length == 0 || more && length % 8 != 0 || end + header > LONGEST || packet.offload.is_partial() {
            return Reassembly::Dropped(DropReason::ReassemblyBad);
        }
        let key = Key {
            source: packet.source_v4(),
            destination: packet.destination_v4(),
            id: word(L3 + 4),
            protocol: packet.protocol,
        };
        let Some(at) = self.place(key, context) else { return Reassembly::Dropped(DropReason::ReassemblyLimit) };
        if let Some(datagram) = self.places.get(at as usize) {
            let congestion = fits(datagram, start, end, more, h[L3 + 1] & 3);
            match congestion {
                Fit::Good => {}
                // This one alone; a place that was taken for it goes again.
                Fit::Alone => {
                    if datagram.pieces.is_empty() {
                        self.give_up(at, DropReason::ReassemblyBad, context);
                    }
                    return Reassembly::Dropped(DropReason::ReassemblyBad);
                }
                Fit::Bad => {
                    self.give_up(at, DropReason::ReassemblyBad, context);
                    return Reassembly::Dropped(DropReason::ReassemblyBad);
                }
            }
        }
        let Some(taken) = context.hold(packet) else {
            if self.places.get(at as usize).is_some_and(|datagram| datagram.pieces.is_empty()) {
                self.give_up(at, DropReason::NoBuffer, context);
            }
            return Reassembly::Dropped(DropReason::NoBuffer);
        };
        let Some(datagram) = self.places.get_mut(at as usize) else { return Reassembly::Waits };
        let place = datagram.pieces.partition_point(|piece| piece.start < start);
        datagram.pieces.insert(place, Piece { start, end, more, packet: taken });
        datagram.bytes += length;
        if !more {
            datagram.end = Some(end);
        }
        self.waiting += 1;
        // The parts do not overlap: as many bytes as there are to be are all of them.
        if datagram.end == Some(datagram.bytes) {
            return self.join(at, packet, context);
        }
        if datagram.pieces.len() > PIECES_MAX {
            self.give_up(at, DropReason::ReassemblyLimit, context);
        }
        Reassembly::Waits
    }

    /// The place of a datagram; one that waits may have to go for it.
    fn place(&mut self, key: Key, context: &mut Context<'_>) -> Option<u32> {
        if self.waiting >= WAITING_MAX {
            self.evict(context);
        }
        if let Some(at) = self.known.get(&key) {
            return Some(*at);
        }
        if self.free.is_empty() {
            self.evict(context);
        }
        let at = self.free.pop()?;
        let datagram = self.places.get_mut(at as usize)?;
        (datagram.key, datagram.bytes, datagram.end) = (key, 0, None);
        datagram.deadline = context.now + WAIT;
        self.known.insert(key, at);
        Some(at)
    }

    /// Gives one datagram up, another one each time.
    fn evict(&mut self, context: &mut Context<'_>) {
        for _ in 0..DATAGRAMS {
            self.cursor = (self.cursor + 1) % DATAGRAMS;
            if self.places.get(self.cursor).is_some_and(|datagram| !datagram.pieces.is_empty()) {
                self.give_up(self.cursor as u32, DropReason::ReassemblyLimit, context);
                return;
            }
        }
    }

    /// Ends a datagram.
    fn give_up(&mut self, at: u32, reason: DropReason, context: &mut Context<'_>) {
        let Some(datagram) = self.places.get_mut(at as usize) else { return };
        self.waiting -= datagram.pieces.len();
        for piece in datagram.pieces.drain(..) {
            context.discard_held(piece.packet, reason);
        }
        if self.known.remove(&datagram.key).is_some() {
            self.free.push(at);
        }
    }

    /// Puts a complete datagram together in the place of its last fragment to come.
    fn join(&mut self, at: u32, packet: &mut Packet, context: &mut Context<'_>) -> Reassembly {
        let Some(datagram) = self.places.get_mut(at as usize) else { return Reassembly::Waits };
        let header = |packet: &Packet| usize::from(packet.frame.header()[L3] & 15) * 4;
        let length = datagram.bytes + datagram.pieces.first().map_or(0, |first| header(&first.packet));
        let congested = datagram.pieces.iter().any(|piece| piece.packet.frame.header()[L3 + 1] & 3 == 3);
        // Each later fragment gives up its headers, all of them before any is joined.
        let cut = |piece: &mut Piece| {
            let headers = L3 + header(&piece.packet);
            piece.packet.frame.trim_front(headers)
        };
        if length > LONGEST || !datagram.pieces.iter_mut().skip(1).all(cut) {
            self.give_up(at, DropReason::ReassemblyBad, context);
            return Reassembly::Waits;
        }
        self.waiting -= datagram.pieces.len();
        let mut pieces = datagram.pieces.drain(..);
        let Some(first) = pieces.next() else { return Reassembly::Waits };
        let mut whole = first.packet;
        let mut count = 1;
        for piece in pieces {
            context.pool.arena().append(&mut whole.frame, piece.packet.frame);
            count += 1;
        }
        if self.known.remove(&datagram.key).is_some() {
            self.free.push(at);
        }
        (0..count).for_each(|_| context.unbook_held());
        context.counters.consumed[Consumed::Reassembled as usize].add(count);
        context.counters.generated[Generated::Reassembled as usize].add(1);
        mend(&mut whole, length as u16, congested);
        let empty = std::mem::replace(packet, whole);
        context.pool.free(empty.frame);
        Reassembly::Whole
    }

    /// Gives up what waited for too long.
    pub fn turn(&mut self, context: &mut Context<'_>) {
        if self.waiting == 0 {
            return;
        }
        for _ in 0..SWEEP {
            self.cursor = (self.cursor + 1) % DATAGRAMS;
            let late = |datagram: &Datagram| !datagram.pieces.is_empty() && datagram.deadline <= context.now;
            if self.places.get(self.cursor).is_some_and(late) {
                self.give_up(self.cursor as u32, DropReason::ReassemblyTimeout, context);
            }
        }
    }

    /// The end: everything that waits is given up.
    pub fn close(&mut self, context: &mut Context<'_>) {
        for at in 0..DATAGRAMS as u32 {
            self.give_up(at, DropReason::Shutdown, context);
        }
    }
}

enum Fit {
    Good,
    Alone,
    Bad,
}

/// Whether a fragment goes with those that are there.
fn fits(datagram: &Datagram, start: usize, end: usize, more: bool, congestion: u8) -> Fit {
    let twice = |piece: &Piece| piece.start == start && piece.end == end && piece.more == more;
    if datagram.pieces.iter().any(twice) {
        return Fit::Alone;
    }
    let overlaps = datagram.pieces.iter().any(|piece| piece.start < end && start < piece.end);
    let behind = datagram.end.is_some_and(|last| start >= last || !more);
    let cut_off = !more && datagram.pieces.iter().any(|piece| piece.end > end);
    if overlaps || behind || cut_off {
        return Fit::Bad;
    }
    // "Congestion experienced" and "not capable" do not go together (RFC 3168, 5.3).
    let first = datagram.pieces.first().map(|piece| piece.packet.frame.header()[L3 + 1] & 3);
    match first {
        Some(first) if (first == 0) != (congestion == 0) => Fit::Alone,
        _ => Fit::Good,
    }
}

/// The header of the whole, and what the descriptor says of it.
fn mend(whole: &mut Packet, length: u16, congested: bool) {
    let head = whole.frame.head_mut();
    let header = usize::from(head[L3] & 15) * 4;
    head[L3 + 2..L3 + 4].copy_from_slice(&length.to_be_bytes());
    // "Don't fragment" goes with the rest: whoever cut the packet has ignored it.
    head[L3 + 6..L3 + 8].fill(0);
    if congested {
        head[L3 + 1] |= 3;
    }
    head[L3 + 10..L3 + 12].fill(0);
    let check = ferrule_dataplane::packet::checksum::checksum(&head[L3..L3 + header]);
    head[L3 + 10..L3 + 12].copy_from_slice(&check.to_ne_bytes());
    whole.flags.clear(Flags::FRAGMENT.with(Flags::LATER_FRAGMENT).with(Flags::HASHED));
    whole.flags.set(Flags::MAY_FRAGMENT);
    whole.judge(Verdict::Forward);
}
