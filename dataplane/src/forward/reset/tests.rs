#![forbid(unsafe_code)]

use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};

use super::*;
use crate::forward::testing::*;
use crate::packet::Flags;
use crate::packet::PortId;

fn segment(v4: bool, payload: &[u8], change: impl FnOnce(&mut TcpHeader)) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(PEER.0, MAC_0.0);
    let ip = if v4 { link.ipv4(HOST_V4, US_V4, 9) } else { link.ipv6(HOST_V6, US_V6, 9) };
    let mut header = TcpHeader::new(40_000, 22, 1000, 8192);
    change(&mut header);
    let mut bytes = Vec::new();
    ip.tcp_header(header).write(&mut bytes, payload).unwrap();
    bytes
}

/// The reset's TCP header, if there is one.
fn answer(bytes: &[u8]) -> Option<TcpHeader> {
    let mut bench = Bench::new();
    let packet = bench.packet(bytes);
    let sent = bench.run(|context| reset(&packet, context));
    bench.pool.free(packet.frame);
    assert_eq!(bench.generated(Generated::Reset), u64::from(sent));
    let frames = bench.sent();
    bench.assert_no_leak();
    assert_eq!(frames.len(), usize::from(sent));
    let (frame, flags) = frames.into_iter().next()?;
    assert_sound(&frame);
    assert!(flags.has(Flags::GENERATED) && !flags.has(Flags::LINK_READY));
    if bytes[12] == 8 {
        assert_eq!((frame.len(), &frame[26..34], frame[22]), (54, &[US_V4, HOST_V4].concat()[..], 64));
    } else {
        assert_eq!((frame.len(), &frame[22..54], frame[21]), (74, &[US_V6, HOST_V6].concat()[..], 64));
    }
    match SlicedPacket::from_ethernet(&frame).unwrap().transport {
        Some(TransportSlice::Tcp(tcp)) => Some(tcp.to_header()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sequence_and_acknowledgement_follow_the_segment() {
    for v4 in [true, false] {
        type Change = fn(&mut TcpHeader);
        // Segment, payload -> sequence, acknowledgement, ACK flag of the reset.
        let cases: [(&str, Change, usize, u32, u32, bool); 6] = [
            ("SYN", |h| h.syn = true, 0, 0, 1001, true),
            ("SYN with data", |h| h.syn = true, 10, 0, 1011, true),
            ("FIN without ACK", |h| h.fin = true, 0, 0, 1001, true),
            ("SYN at the end of numbers", |h| (h.syn, h.sequence_number) = (true, u32::MAX), 0, 0, 0, true),
            ("ACK", |h| (h.ack, h.acknowledgment_number) = (true, 77), 10, 77, 0, false),
            ("SYN and ACK", |h| (h.syn, h.ack, h.acknowledgment_number) = (true, true, 78), 0, 78, 0, false),
        ];
        for (name, change, payload, sequence, acknowledgement, ack) in cases {
            let got = answer(&segment(v4, &vec![1; payload], change)).expect(name);
            assert_eq!((got.source_port, got.destination_port), (22, 40_000), "{name}");
            assert_eq!((got.sequence_number, got.acknowledgment_number), (sequence, acknowledgement), "{name}");
            assert!(got.rst && got.ack == ack && !got.syn && !got.fin, "{name}");
            assert_eq!((got.window_size, got.data_offset()), (0, 5), "{name}");
        }
    }
}

#[test]
fn options_are_no_data() {
    let bytes = segment(true, &[1; 3], |h| {
        h.syn = true;
        h.set_options(&[etherparse::TcpOptionElement::MaximumSegmentSize(1460)]).unwrap();
    });
    assert_eq!(answer(&bytes).unwrap().acknowledgment_number, 1004);
}

#[test]
fn a_reset_is_not_answered_nor_is_what_came_to_many() {
    for v4 in [true, false] {
        assert!(answer(&segment(v4, &[], |h| h.rst = true)).is_none());
        let mut group = segment(v4, &[], |h| h.syn = true);
        group[..6].fill(0xff);
        assert!(answer(&group).is_none());
    }
    assert!(answer(&udp_v4(b"x")).is_none());
    let mut fragment = segment(true, &[0; 24], |h| h.syn = true);
    fragment[20] = 0x20;
    fragment[24..26].fill(0);
    let check = crate::packet::checksum::checksum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&check.to_ne_bytes());
    // 44 bytes of payload are no multiple of eight: make it a good fragment.
    fragment.truncate(14 + 20 + 40);
    fragment[16..18].copy_from_slice(&60u16.to_be_bytes());
    fragment[24..26].fill(0);
    let check = crate::packet::checksum::checksum(&fragment[14..34]);
    fragment[24..26].copy_from_slice(&check.to_ne_bytes());
    assert!(answer(&fragment).is_none());
}

#[test]
fn a_link_local_peer_is_answered_on_its_link() {
    let mut bench = Bench::new();
    let mut bytes = segment(false, &[], |h| h.syn = true);
    bytes[22..38].copy_from_slice(&HOST_LINK);
    bytes[38..54].copy_from_slice(&US_LINK);
    let packet = bench.packet(&bytes);
    assert!(bench.run(|context| reset(&packet, context)));
    bench.pool.free(packet.frame);
    assert_eq!(bench.generated[0].egress, PortId(0));
    let (frame, flags) = bench.sent().remove(0);
    assert_sound(&frame);
    assert!(flags.has(Flags::LINK_READY));
    assert_eq!(frame[..12], [PEER.0, MAC_0.0].concat());
}
