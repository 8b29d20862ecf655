#![forbid(unsafe_code)]
//! One state: a cache line with all that a packet reads and writes, and what a packet does to its life.
//!
//! *TCP* follows FreeBSD's `dyn_update_tcp_state`: the FIN, SYN and RST bits seen in each direction are gathered. SYN alone gives
//! `dyn_syn_lifetime`. SYN from both sides, perhaps with a FIN from one, is established: an acknowledgement number that does not lie
//! behind the highest one of its direction marks that direction, and once both are marked the state gets `dyn_ack_lifetime` and
//! the marks are taken off. So neither side alone keeps a state alive, nor do old or made-up segments. FIN from both gives `dyn_fin_lifetime`,
//! everything else, RST above all, `dyn_rst_lifetime`.

use super::key::{PacketFacts, TCP, UDP, UDP_LITE};

/// The rule that made a state: any two numbers by which the engine knows it again. A rule that is deleted and added anew has others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RuleRef {
    /// The engine's number for it, such as its place in a slab of rules.
    pub index: u32,
    /// Tells a rule from one that had the same number before.
    pub generation: u32,
}

/// Whether a packet goes the way of the one that made the state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// The same way.
    Forward,
    /// The other way.
    Reverse,
}

/// Flags of the TCP header that a state keeps: FIN 1, SYN 2, RST 4.
const KEPT: u8 = 7;
/// The shift of the flags seen in the reverse direction.
const REVERSE_SHIFT: u32 = 3;
const FIN: u8 = 1;
const SYN: u8 = 2;
const BOTH_SYN: u8 = SYN | SYN << REVERSE_SHIFT;
const BOTH_FIN: u8 = FIN | FIN << REVERSE_SHIFT;
const TCP_FLAGS: u8 = KEPT | KEPT << REVERSE_SHIFT;
/// The forward direction acknowledged since the expiry was last set.
pub(super) const ACK_FORWARD: u8 = 1 << 6;
/// The reverse direction did.
pub(super) const ACK_REVERSE: u8 = 1 << 7;
const ACK_BOTH: u8 = ACK_FORWARD | ACK_REVERSE;

/// No parent, no state.
pub(super) const NONE: u32 = u32::MAX;

/// In use.
pub(super) const LIVE: u8 = 1;
/// IPv6: `addresses` is the number of the addresses in their own array.
pub(super) const V6: u8 = 2;
/// Made by `limit` or `set-limit`.
pub(super) const LIMIT: u8 = 4;
/// Its rule is gone (`dyn_keep_states`).
pub(super) const ORPHANED: u8 = 8;

/// When a state that is met now will expire, by what it has seen: `now` plus each lifetime, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expiries {
    pub(super) ack: u32,
    pub(super) syn: u32,
    pub(super) fin: u32,
    pub(super) rst: u32,
    pub(super) udp: u32,
    pub(super) short: u32,
}

/// A state.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct State {
    /// As in [`super::FlowKey::V4`]; for IPv6 the number of the addresses.
    pub(super) addresses: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// As in [`super::FlowKey`].
    pub(super) ports: u32,
    /// Second at which it ends.
    pub(super) expire: u32,
    /// Highest acknowledgement number of the forward direction.
    pub(super) ack_forward: u32,
    /// And of the reverse direction.
    pub(super) ack_reverse: u32,
    pub(super) rule: RuleRef,
    /// Number of its parent, or [`NONE`].
    pub(super) parent: u32,
    /// Its hash; the next free state while this one is free.
    pub(super) hash: u32,
    pub(super) name: u16,
    pub(super) zone: u16,
    pub(super) protocol: u8,
    pub(super) flags: u8,
    /// TCP flags seen and acknowledgement marks.
    pub(super) tcp: u8,
    /// The last byte of the second at which the wheel meets it.
    pub(super) timer: u8,
}

const _: () = assert!(size_of::<State>() == 64);

impl State {
    /// Counts a packet and sets the expiry.
    #[inline(always)]
    pub(super) fn update(&mut self, direction: Direction, facts: &PacketFacts, expiries: &Expiries) {
        let expire = match self.protocol {
            TCP => self.update_tcp(direction, facts, expiries),
            UDP | UDP_LITE => expiries.udp,
            _ => expiries.short,
        };
        self.expire = expire;
        self.packets += 1;
        self.bytes += u64::from(facts.length);
    }

    #[inline(always)]
    fn update_tcp(&mut self, direction: Direction, facts: &PacketFacts, expiries: &Expiries) -> u32 {
        let seen = facts.tcp_flags & KEPT;
        self.tcp |= if direction == Direction::Forward { seen } else { seen << REVERSE_SHIFT };
        const ESTABLISHED: u8 = BOTH_SYN;
        const CLOSING_FORWARD: u8 = BOTH_SYN | FIN;
        const CLOSING_REVERSE: u8 = BOTH_SYN | FIN << REVERSE_SHIFT;
        const CLOSED: u8 = BOTH_SYN | BOTH_FIN;
        match self.tcp & TCP_FLAGS {
            ESTABLISHED | CLOSING_FORWARD | CLOSING_REVERSE => {
                let Some(acknowledgement) = facts.acknowledgement else { return self.expire };
                let (highest, mark) = match direction {
                    Direction::Forward => (&mut self.ack_forward, ACK_FORWARD),
                    Direction::Reverse => (&mut self.ack_reverse, ACK_REVERSE),
                };
                // 0 is "none yet", as on FreeBSD.
                if *highest == 0 || acknowledgement.wrapping_sub(*highest) as i32 >= 0 {
                    *highest = acknowledgement;
                    self.tcp |= mark;
                }
                if self.tcp & ACK_BOTH == ACK_BOTH {
                    self.tcp &= !ACK_BOTH;
                    return expiries.ack;
                }
                self.expire
            }
            SYN => expiries.syn,
            CLOSED => expiries.fin,
            _ => expiries.rst,
        }
    }

    /// Whether both sides of a TCP connection have sent their SYN.
    #[inline(always)]
    pub(super) fn is_established(&self) -> bool {
        self.protocol == TCP && self.tcp & BOTH_SYN == BOTH_SYN
    }

    /// The TCP flags as FreeBSD shows them: forward in bits 0-7, reverse in bits 8-15, marks in bits 16 and 17.
    pub(super) fn shown_tcp(&self) -> u32 {
        let forward = u32::from(self.tcp & KEPT);
        let reverse = u32::from(self.tcp >> REVERSE_SHIFT & KEPT);
        forward | reverse << 8 | u32::from(self.tcp >> 6) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACK: u8 = 16;
    const RST: u8 = 4;
    const EXPIRIES: Expiries = Expiries { ack: 300, syn: 20, fin: 1, rst: 2, udp: 10, short: 5 };

    fn state(protocol: u8) -> State {
        State {
            addresses: 0,
            packets: 0,
            bytes: 0,
            ports: 0,
            expire: 20,
            ack_forward: 0,
            ack_reverse: 0,
            rule: RuleRef::default(),
            parent: NONE,
            hash: 0,
            name: 1,
            zone: 0,
            protocol,
            flags: LIVE,
            tcp: 0,
            timer: 0,
        }
    }

    /// Segments as direction, flags, acknowledgement number and the expiry afterwards, each line one connection.
    #[test]
    fn tcp_lives_as_long_as_freebsd_says() {
        use Direction::{Forward as F, Reverse as R};
        let connections: [&[(Direction, u8, u32, u32)]; 8] = [
            // Handshake, data from both sides, close from both sides.
            &[
                (F, SYN, 0, 20),
                (R, SYN | ACK, 101, 20),
                (F, ACK, 501, 300),
                (R, ACK, 102, 300),
                (F, FIN | ACK, 502, 300),
                (R, FIN | ACK, 103, 1),
                (F, ACK, 503, 1),
            ],
            // Only one side acknowledges: the expiry stays.
            &[(F, SYN, 0, 20), (R, SYN | ACK, 101, 20), (R, ACK, 102, 20), (R, ACK, 103, 20)],
            // A reset ends it, whatever follows.
            &[(F, SYN, 0, 20), (R, RST | ACK, 101, 2), (F, SYN, 0, 2)],
            &[(F, SYN, 0, 20), (R, SYN | ACK, 101, 20), (F, ACK, 501, 300), (F, RST, 0, 2), (R, ACK, 101, 2)],
            // Started in the middle.
            &[(F, ACK, 7, 2), (R, ACK, 9, 2)],
            // FIN without SYN.
            &[(F, FIN | ACK, 7, 2)],
            // SYN from both sides at once.
            &[(F, SYN, 0, 20), (R, SYN, 0, 20), (F, ACK, 5, 300)],
            // A SYN that is answered by its own side only.
            &[(F, SYN, 0, 20), (F, SYN, 0, 20), (F, ACK, 5, 20)],
        ];
        for (number, connection) in connections.iter().enumerate() {
            let mut state = state(TCP);
            for (step, (direction, tcp_flags, acknowledgement, expire)) in connection.iter().enumerate() {
                let facts = PacketFacts { length: 40, tcp_flags: *tcp_flags, acknowledgement: Some(*acknowledgement) };
                state.update(*direction, &facts, &EXPIRIES);
                assert_eq!(state.expire, *expire, "connection {number}, segment {step}");
            }
            assert_eq!((state.packets, state.bytes), (connection.len() as u64, connection.len() as u64 * 40));
        }
    }

    #[test]
    fn old_acknowledgements_do_not_keep_a_state_alive() {
        use Direction::{Forward, Reverse};
        let mut state = state(TCP);
        let mut send = |direction, tcp_flags, acknowledgement, now: u32| {
            let facts = PacketFacts { length: 40, tcp_flags, acknowledgement };
            let expiries = Expiries { ack: now + 300, syn: now + 20, ..EXPIRIES };
            state.update(direction, &facts, &expiries);
            state.expire
        };
        send(Forward, SYN, Some(0), 0);
        send(Reverse, SYN | ACK, Some(0xffff_fff0), 0);
        assert_eq!(send(Forward, ACK, Some(1000), 0), 300);
        assert_eq!(send(Forward, ACK, Some(1000), 50), 300, "one side");
        assert_eq!(send(Reverse, ACK, Some(0xffff_ffef), 50), 300, "behind the highest");
        assert_eq!(send(Reverse, 0, None, 50), 300, "a later fragment has no number");
        assert_eq!(send(Reverse, ACK, Some(5), 60), 360, "numbers wrap");
    }

    #[test]
    fn other_protocols_have_one_lifetime() {
        for (protocol, expire) in [(UDP, 10), (UDP_LITE, 10), (1, 5), (47, 5), (132, 5)] {
            let mut state = state(protocol);
            state.update(Direction::Reverse, &PacketFacts { length: 100, ..PacketFacts::default() }, &EXPIRIES);
            assert_eq!((state.expire, state.packets, state.bytes), (expire, 1, 100), "{protocol}");
        }
    }

    #[test]
    fn flags_are_shown_in_freebsds_places() {
        let mut state = state(TCP);
        state.update(Direction::Forward, &PacketFacts { tcp_flags: SYN, ..PacketFacts::default() }, &EXPIRIES);
        let answer = PacketFacts { tcp_flags: SYN | ACK, acknowledgement: Some(1), length: 0 };
        state.update(Direction::Reverse, &answer, &EXPIRIES);
        assert_eq!(state.shown_tcp(), 0x2_0202);
    }
}
