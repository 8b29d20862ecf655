//! What ipfw sends itself: keep-alives of dynamic rules and SCTP aborts.

mod gateway;

use ferrule_dataplane::verdict::Generated;
use ferrule_filters::ipfw::testing::frame::{Tcp, between, checksum, sctp};
use gateway::*;

/// The transport part of a frame, and whether its checksum over the pseudo-header is right.
fn transport(frame: &[u8]) -> (&[u8], bool) {
    let (ends, at, protocol) =
        if frame[12] == 8 { (&frame[26..34], 34, frame[23]) } else { (&frame[22..54], 54, frame[20]) };
    let length = ((frame.len() - at) as u32).to_be_bytes();
    let pseudo = [ends, &length, &[0, 0, 0, protocol]].concat();
    (&frame[at..], checksum(&[&pseudo, &frame[at..]]) == 0)
}

#[test]
fn both_ends_of_an_idle_connection_are_asked() {
    let families = [(HOST.into(), PEER.into()), (v6(7).into(), peer6().into())];
    for (workers, (host, peer)) in [(1, families[0]), (1, families[1]), (2, families[0]), (2, families[1])] {
        let mut gateway = Gateway::new(
            workers,
            // States see each packet once: an end whose last packet was seen twice has answered already, for FreeBSD and for us.
            &[
                "add 50 allow ip from any to any out",
                "add 100 check-state",
                "add 200 allow tcp from any to any setup keep-state",
                "add 300 deny tcp from any to any",
            ],
        );
        let there = |flags, sequence, acknowledgement| {
            between(host, peer, 6, &Tcp { sequence, acknowledgement, ..Tcp::new((5000, 80), flags) }.bytes())
        };
        let back = |flags, sequence, acknowledgement| {
            between(peer, host, 6, &Tcp { sequence, acknowledgement, ..Tcp::new((80, 5000), flags) }.bytes())
        };
        assert_eq!(gateway.send(LAN, there(2, 100, 0)).len(), 1);
        assert_eq!(gateway.send(WAN, back(18, 900, 101)).len(), 1);
        assert_eq!(gateway.send(LAN, there(16, 101, 901)).len(), 1);
        // dyn_ack_lifetime is 300 s; the last 20 of them ask.
        for _ in 0..279 {
            gateway.advance(SECOND);
        }
        assert_eq!(gateway.world.generated(Generated::Keepalive), 0);
        for _ in 0..6 {
            gateway.advance(SECOND);
        }
        let (to_host, to_peer) = (gateway.world.collect(LAN), gateway.world.collect(WAN));
        assert!(!to_host.is_empty() && to_host.len() <= 2, "{}", to_host.len());
        assert_eq!(to_host.len(), to_peer.len());
        assert_eq!(gateway.world.generated(Generated::Keepalive), 2 * to_host.len() as u64);
        // From the peer to the host: the byte before what the host expects, with what the peer had acknowledged.
        let (segment, right) = transport(&to_host[0]);
        assert!(right);
        assert_eq!(segment[..4], [0, 80, 0x13, 0x88]);
        assert_eq!(
            (segment[4..8].to_vec(), segment[8..12].to_vec()),
            (900u32.to_be_bytes().to_vec(), 101u32.to_be_bytes().to_vec())
        );
        assert_eq!((segment[13], segment.len()), (16, 20), "ACK alone");
        let (segment, right) = transport(&to_peer[0]);
        assert!(right);
        assert_eq!(
            (segment[4..8].to_vec(), segment[8..12].to_vec()),
            (100u32.to_be_bytes().to_vec(), 901u32.to_be_bytes().to_vec())
        );
        // An answer of both ends keeps the state.
        assert_eq!(gateway.send(LAN, there(16, 101, 901)).len(), 1);
        assert_eq!(gateway.send(WAN, back(16, 901, 101)).len(), 1);
        for _ in 0..100 {
            gateway.advance(SECOND);
        }
        assert_eq!(gateway.send(WAN, back(16, 901, 101)).len(), 1, "it lives on");
        gateway.run(&["sysctl net.inet.ip.fw.dyn_keepalive=0"]);
        let before = gateway.world.generated(Generated::Keepalive);
        for _ in 0..301 {
            gateway.advance(SECOND);
        }
        assert_eq!(gateway.world.generated(Generated::Keepalive), before);
        assert!(gateway.send(WAN, back(16, 901, 101)).is_empty());
        gateway.close();
    }
}

/// CRC32c, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[test]
fn abort_answers_with_the_tag_that_the_sender_knows() {
    for (host, peer, rule) in [
        (HOST.into(), PEER.into(), "add 100 abort sctp from any to any in"),
        (v6(7).into(), peer6().into(), "add 100 abort6 sctp from any to any in"),
    ] {
        let mut gateway = Gateway::new(1, &[rule, "add 200 allow ip from any to any"]);
        // DATA with tag 0x1234: reflected. INIT with tag 0: the initiate tag.
        for (tag, chunk, expected, reflected) in [(0x1234u32, 0, 0x1234u32, 1), (0, 1, 0x77, 0)] {
            assert!(gateway.send(LAN, between(host, peer, 132, &sctp((4000, 3868), tag, chunk))).is_empty());
            let answers = gateway.world.collect(LAN);
            assert_eq!(answers.len(), 1);
            let at = if answers[0][12] == 8 { 34 } else { 54 };
            let packet = &answers[0][at..];
            assert_eq!(packet[..4], [0x0f, 0x1c, 0x0f, 0xa0], "ports turned");
            assert_eq!(packet[4..8], expected.to_be_bytes());
            assert_eq!(packet[12..], [6, reflected, 0, 4]);
            let mut zeroed = packet.to_vec();
            zeroed[8..12].fill(0);
            assert_eq!(packet[8..12], crc32c(&zeroed).to_le_bytes());
        }
        // An ABORT is not answered, nor a tag of 0 outside of INIT.
        for (tag, chunk) in [(5, 6), (0, 0)] {
            assert!(gateway.send(LAN, between(host, peer, 132, &sctp((4000, 3868), tag, chunk))).is_empty());
            assert!(gateway.world.collect(LAN).is_empty());
        }
        assert_eq!(gateway.world.generated(Generated::Reset), 2);
        gateway.close();
    }
}
