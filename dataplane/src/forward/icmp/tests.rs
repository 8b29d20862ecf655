#![forbid(unsafe_code)]

use etherparse::{
    Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TransportSlice, icmpv4,
    icmpv6,
};

use super::*;
use crate::forward::testing::*;
use crate::ports::{Port, PortAddresses, PortTable};
use crate::rate::TokenBucket;

const KINDS: [IcmpError; 6] = [
    IcmpError::TimeExceeded,
    IcmpError::TimeExceededReassembly,
    IcmpError::Unreachable(Unreachable::Net),
    IcmpError::Unreachable(Unreachable::Port),
    IcmpError::FragmentationNeeded { mtu: 1400 },
    IcmpError::ParameterProblem { code: 0, pointer: 8 },
];

/// Sends one error and gives back its frame; checks that it is sound and goes to the sender.
fn one(bench: &mut Bench, kind: IcmpError, original: Packet) -> Vec<u8> {
    let (source, v4) = (original.frame.header()[22..38].to_vec(), original.family == Family::V4);
    assert!(bench.run(|context| error(kind, &original, context)), "{kind:?}");
    bench.pool.free(original.frame);
    let mut sent = bench.sent();
    assert_eq!(sent.len(), 1);
    let frame = sent.remove(0).0;
    assert_sound(&frame);
    if v4 {
        assert_eq!(frame[30..34], source[4..8]);
    } else {
        assert_eq!(frame[38..54], source);
    }
    frame
}

fn message_v4(frame: &[u8]) -> Icmpv4Slice<'_> {
    match SlicedPacket::from_ethernet(frame).unwrap().transport {
        Some(TransportSlice::Icmpv4(icmp)) => icmp,
        other => panic!("{other:?}"),
    }
}

fn message_v6(frame: &[u8]) -> Icmpv6Slice<'_> {
    match SlicedPacket::from_ethernet(frame).unwrap().transport {
        Some(TransportSlice::Icmpv6(icmp)) => icmp,
        other => panic!("{other:?}"),
    }
}

#[test]
fn types_and_codes_are_those_of_the_family() {
    use IcmpError::Unreachable as U;
    use Unreachable::*;
    let cases = [
        (IcmpError::TimeExceeded, (11, 0, 0), (3, 0, 0)),
        (IcmpError::TimeExceededReassembly, (11, 1, 0), (3, 1, 0)),
        (U(Net), (3, 0, 0), (1, 0, 0)),
        (U(Host), (3, 1, 0), (1, 3, 0)),
        (U(Protocol), (3, 2, 0), (1, 4, 0)),
        (U(Port), (3, 3, 0), (1, 4, 0)),
        (U(SourceRouteFailed), (3, 5, 0), (1, 7, 0)),
        (U(NetProhibited), (3, 9, 0), (1, 1, 0)),
        (U(HostProhibited), (3, 10, 0), (1, 1, 0)),
        (U(Prohibited), (3, 13, 0), (1, 1, 0)),
        (U(BeyondScope), (3, 0, 0), (1, 2, 0)),
        (U(Code(12)), (3, 12, 0), (1, 12, 0)),
        (IcmpError::FragmentationNeeded { mtu: 1400 }, (3, 4, 1400), (2, 0, 1400)),
        (IcmpError::FragmentationNeeded { mtu: 20 }, (3, 4, 68), (2, 0, 1280)),
        (IcmpError::FragmentationNeeded { mtu: 70_000 }, (3, 4, 65_535), (2, 0, 70_000)),
        (IcmpError::ParameterProblem { code: 1, pointer: 20 }, (12, 1, 20 << 24), (4, 1, 20)),
        (IcmpError::ParameterProblem { code: 2, pointer: 400 }, (12, 2, 255 << 24), (4, 2, 400)),
    ];
    let mut bench = Bench::new();
    let payload = [7; 1300];
    for (kind, (t4, c4, w4), (t6, c6, w6)) in cases {
        let original = bench.packet(&udp_v4(&payload));
        let frame = one(&mut bench, kind, original);
        let icmp = message_v4(&frame);
        assert_eq!((icmp.type_u8(), icmp.code_u8(), u32::from_be_bytes(icmp.bytes5to8())), (t4, c4, w4), "{kind:?}");
        let original = bench.packet(&udp_v6(&payload));
        let frame = one(&mut bench, kind, original);
        let icmp = message_v6(&frame);
        assert_eq!((icmp.type_u8(), icmp.code_u8(), u32::from_be_bytes(icmp.bytes5to8())), (t6, c6, w6), "{kind:?}");
    }
    bench.assert_no_leak();
}

#[test]
fn every_byte_of_a_time_exceeded_is_as_the_rfc_says() {
    let mut bench = Bench::new();
    let sent = udp_v4(b"probe");
    let original = bench.packet(&sent);
    let frame = one(&mut bench, IcmpError::TimeExceeded, original);
    assert_eq!(frame[..14], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0]);
    // Version and length, precedence 6; may be cut; TTL 64, protocol 1.
    assert_eq!((frame[14], frame[15], &frame[20..22], &frame[22..24]), (0x45, 0xc0, &[0, 0][..], &[64, 1][..]));
    assert_eq!((&frame[26..30], &frame[30..34]), (&US_V4[..], &HOST_V4[..]));
    assert!(matches!(
        message_v4(&frame).icmp_type(),
        Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit)
    ));
    assert_eq!(frame[42..], sent[14..], "quotes the whole packet");
    let (sent, original) = (udp_v6(b"probe"), bench.packet(&udp_v6(b"probe")));
    let frame = one(&mut bench, IcmpError::TimeExceeded, original);
    assert_eq!((&frame[14..18], frame[20], frame[21]), (&[0x60, 0, 0, 0][..], 58, 64));
    assert_eq!((&frame[22..38], &frame[38..54]), (&US_V6[..], &HOST_V6[..]));
    assert!(matches!(
        message_v6(&frame).icmp_type(),
        Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded)
    ));
    assert_eq!(frame[62..], sent[14..]);
    assert_eq!(bench.generated(Generated::IcmpError), 2);
    bench.assert_no_leak();
}

#[test]
fn the_descriptor_is_that_of_the_parser() {
    let mut bench = Bench::new();
    for sent in [udp_v4(b"x"), udp_v6(b"x")] {
        let original = bench.packet(&sent);
        bench.run(|context| error(IcmpError::TimeExceeded, &original, context));
        bench.pool.free(original.frame);
        let made = bench.generated.pop().unwrap();
        // As if it had come in on port 0: the parser must find the same.
        let mut bytes = bench.take(&made);
        bytes[..6].copy_from_slice(&MAC_0.0);
        bytes[6..12].copy_from_slice(&PEER.0);
        let parsed = bench.packet(&bytes);
        assert_eq!(parsed.verdict(), crate::verdict::Verdict::Forward);
        assert_eq!(
            (made.family, made.protocol, made.l4, made.source_port, made.destination_port),
            (parsed.family, parsed.protocol, parsed.l4, parsed.source_port, parsed.destination_port)
        );
        assert_eq!(made.flags, parsed.flags.with(Flags::GENERATED));
        assert_eq!((made.ingress, made.egress), (PortId::NONE, PortId::NONE));
        bench.pool.free(made.frame);
        bench.pool.free(parsed.frame);
    }
    bench.assert_no_leak();
}

#[test]
fn the_packet_is_quoted_with_the_ttl_it_came_with() {
    let mut bench = Bench::new();
    for ttl in [1, 2, 64, 255] {
        for id in (0..=0xffffu16).step_by(257) {
            let mut sent = udp_v4(b"as it arrived");
            (sent[22], sent[18], sent[19]) = (ttl, (id >> 8) as u8, id as u8);
            sent[24..26].fill(0);
            let check = checksum::checksum(&sent[14..34]);
            sent[24..26].copy_from_slice(&check.to_ne_bytes());
            let mut original = bench.packet(&sent);
            let h = original.frame.header_mut();
            let (mut t, mut c) = (h[22], [h[24], h[25]]);
            checksum::decrement_ttl(&mut t, &mut c);
            h[22] = t;
            h[24..26].copy_from_slice(&c);
            original.flags.set(Flags::DECREMENTED);
            let frame = one(&mut bench, IcmpError::Unreachable(Unreachable::Host), original);
            assert_eq!(frame[42..], sent[14..], "ttl {ttl} id {id}");
            // The bucket of the bench is not what is tested here.
            bench.now += 1_000_000_000;
        }
    }
    let sent = udp_v6(b"as it arrived");
    let mut original = bench.packet(&sent);
    original.frame.header_mut()[21] -= 1;
    original.flags.set(Flags::DECREMENTED);
    let frame = one(&mut bench, IcmpError::Unreachable(Unreachable::Host), original);
    assert_eq!(frame[62..], sent[14..]);
    bench.assert_no_leak();
}

#[test]
fn quotes_are_as_long_as_allowed_from_chains_too() {
    let mut bench = Bench::new();
    for size in [0, 1, 500, 519, 520, 521, 1000, 1183, 1184, 1185, 1472, 1473, 4000, 8900] {
        let payload: Vec<u8> = (0..size).map(|i| i as u8).collect();
        for sent in [udp_v4(&payload), udp_v6(&payload)] {
            let v4 = sent[12] == 8;
            // Long ones come in through a port of that MTU.
            bench.shared.ports.get(PortId(0)).unwrap().set_mtu(9000);
            let original = bench.packet(&sent);
            assert_eq!(original.verdict(), crate::verdict::Verdict::Forward);
            let frame = one(&mut bench, IcmpError::TimeExceeded, original);
            let (headers, most) = if v4 { (42, 576) } else { (62, 1280) };
            assert_eq!(frame.len(), (headers + sent.len() - 14).min(most + 14), "{size}");
            assert_eq!(frame[headers..], sent[14..][..frame.len() - headers]);
        }
    }
    bench.assert_no_leak();
}

fn icmp_v4(icmp_type: u8) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv4(HOST_V4, FAR_V4, 9);
    let mut bytes = Vec::new();
    builder.icmpv4_raw(icmp_type, 0, [0, 1, 0, 2]).write(&mut bytes, &[0x45; 28]).unwrap();
    bytes
}

fn icmp_v6(icmp_type: u8) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv6(HOST_V6, FAR_V6, 9);
    let mut bytes = Vec::new();
    builder.icmpv6_raw(icmp_type, 0, [0, 1, 0, 2]).write(&mut bytes, &[0x60; 1300]).unwrap();
    bytes
}

fn with_v4(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = udp_v4(&[1; 64]);
    change(&mut bytes);
    bytes[24..26].fill(0);
    let check = checksum::checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&check.to_ne_bytes());
    bytes
}

fn with_v6(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = udp_v6(&[1; 1300]);
    change(&mut bytes);
    bytes
}

/// A fragment header of IPv6 before the transport.
fn fragment_v6(protocol: u8, offset_and_more: u16) -> Vec<u8> {
    let mut bytes = udp_v6(&[1; 1304]);
    bytes.splice(54..54, [protocol, 0, (offset_and_more >> 8) as u8, offset_and_more as u8, 0, 0, 0, 9]);
    bytes[20] = 44;
    let len = (bytes.len() - 54) as u16;
    bytes[18..20].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// Whether each of [`KINDS`] is sent about this frame: parsed as if it had passed (what the parser drops is asked about, too).
fn sent_about(bench: &mut Bench, bytes: &[u8]) -> [bool; 6] {
    KINDS.map(|kind| {
        // The rate limit is not what is tested here.
        bench.now += 1_000_000_000;
        let packet = bench.packet(bytes);
        let sent = bench.run(|context| error(kind, &packet, context));
        bench.pool.free(packet.frame);
        assert_eq!(bench.sent().len(), usize::from(sent));
        assert_eq!(bench.counters.icmp_suppressed.get(), 0, "silence by rule is not the rate limit's");
        bench.assert_no_leak();
        sent
    })
}

#[test]
fn some_packets_are_never_answered() {
    const ALL: [bool; 6] = [true; 6];
    const NONE: [bool; 6] = [false; 6];
    /// Packet too big is the exception.
    const BIG: [bool; 6] = [false, false, false, false, true, false];
    let cases: Vec<(&str, Vec<u8>, [bool; 6])> = vec![
        ("IPv4 unicast", with_v4(|_| {}), ALL),
        ("IPv4 first fragment", with_v4(|h| h[20] = 0x20), ALL),
        ("IPv4 later fragment", with_v4(|h| h[21] = 8), NONE),
        ("link-layer broadcast", with_v4(|h| h[..6].fill(0xff)), NONE),
        ("link-layer multicast", with_v4(|h| h[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 1])), NONE),
        ("IPv4 multicast", with_v4(|h| h[30..34].copy_from_slice(&[239, 0, 0, 1])), NONE),
        ("IPv4 broadcast", with_v4(|h| h[30..34].fill(255)), NONE),
        ("from 0.0.0.0", with_v4(|h| h[26..30].fill(0)), NONE),
        ("from 0.1.2.3", with_v4(|h| h[26..30].copy_from_slice(&[0, 1, 2, 3])), NONE),
        ("from 127.0.0.1", with_v4(|h| h[26..30].copy_from_slice(&[127, 0, 0, 1])), NONE),
        ("from a group", with_v4(|h| h[26..30].copy_from_slice(&[224, 0, 0, 5])), NONE),
        ("from class E", with_v4(|h| h[26..30].copy_from_slice(&[240, 0, 0, 5])), NONE),
        ("from broadcast", with_v4(|h| h[26..30].fill(255)), NONE),
        ("IPv6 unicast", with_v6(|_| {}), ALL),
        ("IPv6 first fragment", fragment_v6(17, 1), ALL),
        ("IPv6 later fragment of UDP", fragment_v6(17, 8 << 3), ALL),
        ("IPv6 later fragment of ICMPv6", fragment_v6(58, 8 << 3), NONE),
        ("IPv6 multicast", with_v6(|h| h[38] = 0xff), BIG),
        ("IPv6 in a link-layer group", with_v6(|h| h[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1])), BIG),
        ("from ::", with_v6(|h| h[22..38].fill(0)), NONE),
        ("from ::1", with_v6(|h| (h[22..38].fill(0), h[37] = 1).1), NONE),
        ("from an IPv6 group", with_v6(|h| h[22] = 0xff), NONE),
        ("ARP", [&[0xff; 6][..], &PEER.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[0; 20]].concat(), NONE),
    ];
    let mut bench = Bench::new();
    for (name, bytes, expected) in cases {
        assert_eq!(sent_about(&mut bench, &bytes), expected, "{name}");
    }
    for icmp_type in 0..=255 {
        // RFC 792, 950, 1256; unknown types may be errors.
        let query = matches!(icmp_type, 0 | 8 | 9 | 10 | 13..=18);
        assert_eq!(sent_about(&mut bench, &icmp_v4(icmp_type)), if query { ALL } else { NONE }, "ICMP {icmp_type}");
        let query = icmp_type >= 128 && icmp_type != 137;
        assert_eq!(sent_about(&mut bench, &icmp_v6(icmp_type)), if query { ALL } else { NONE }, "ICMPv6 {icmp_type}");
    }
}

#[test]
fn an_unknown_option_to_a_group_is_told() {
    let mut bench = Bench::new();
    for (code, told) in [(0, false), (1, false), (2, true)] {
        let packet = bench.packet(&with_v6(|h| h[38] = 0xff));
        let kind = IcmpError::ParameterProblem { code, pointer: 42 };
        assert_eq!(bench.run(|context| error(kind, &packet, context)), told, "code {code}");
        bench.pool.free(packet.frame);
    }
}

#[test]
fn a_link_below_1280_is_not_told_to_ipv6() {
    let mut bench = Bench::new();
    for (len, told) in [(1232, false), (1233, true)] {
        let packet = bench.packet(&udp_v6(&vec![0; len]));
        let kind = IcmpError::FragmentationNeeded { mtu: 1000 };
        assert_eq!(bench.run(|context| error(kind, &packet, context)), told, "payload {len}");
        bench.pool.free(packet.frame);
    }
    let (frame, _) = bench.sent().remove(0);
    assert!(matches!(message_v6(&frame).icmp_type(), Icmpv6Type::PacketTooBig { mtu: 1280 }));
}

#[test]
fn errors_keep_to_their_rate() {
    let mut bench = Bench::new();
    bench.limit = TokenBucket::new(10, 5);
    let packet = bench.packet(&udp_v4(b"x"));
    let count = |bench: &mut Bench| {
        (0..100).filter(|_| bench.run(|context| error(IcmpError::TimeExceeded, &packet, context))).count()
    };
    assert_eq!(count(&mut bench), 5);
    assert_eq!((bench.generated(Generated::IcmpError), bench.counters.icmp_suppressed.get()), (5, 95));
    bench.now += 300_000_000;
    assert_eq!(count(&mut bench), 3);
    bench.pool.free(packet.frame);
    bench.sent();
    bench.assert_no_leak();
}

#[test]
fn identifications_differ() {
    let mut bench = Bench::new();
    bench.limit = TokenBucket::new(1_000_000_000, 1_000_000);
    let packet = bench.packet(&udp_v4(b"x"));
    let mut seen = std::collections::HashSet::new();
    for _ in 0..65_536 {
        bench.run(|context| error(IcmpError::TimeExceeded, &packet, context));
        let made = bench.generated.pop().unwrap();
        seen.insert([made.frame.header()[18], made.frame.header()[19]]);
        bench.pool.free(made.frame);
    }
    assert_eq!(seen.len(), 65_536);
}

#[test]
fn the_source_is_the_ingress_ports_address_or_another() {
    let port = |id, v4: &[[u8; 4]], v6: &[[u8; 16]]| {
        let port = Port::new(&format!("p{id}"), PortId(id), MAC_0, 1500);
        let (v4, v6) = (v4.iter().map(|a| (*a).into()).collect(), v6.iter().map(|a| (*a).into()).collect());
        port.set_addresses(PortAddresses { v4, v6, link_local: Some(US_LINK.into()) });
        port
    };
    let second_v4 = [198, 18, 0, 2];
    let cases = [
        (vec![port(0, &[US_V4, second_v4], &[US_V6])], Some(US_V4), Some(US_V6)),
        (vec![port(0, &[], &[]), port(1, &[], &[]), port(2, &[second_v4], &[US_V6])], Some(second_v4), Some(US_V6)),
        (vec![port(0, &[], &[])], None, None),
    ];
    for (ports, v4, v6) in cases {
        let mut bench = Bench::with_ports(PortTable::new(ports));
        for (bytes, expected) in [(udp_v4(b"x"), v4.map(|a| a.to_vec())), (udp_v6(b"x"), v6.map(|a| a.to_vec()))] {
            let packet = bench.packet(&bytes);
            bench.run(|context| error(IcmpError::TimeExceeded, &packet, context));
            bench.pool.free(packet.frame);
            let source = bench.sent().first().map(|(f, _)| if f[12] == 8 { &f[26..30] } else { &f[22..38] }.to_vec());
            assert_eq!(source, expected);
            if expected.is_none() {
                assert_eq!(bench.counters.icmp_suppressed.get(), if bytes[12] == 8 { 1 } else { 2 });
            }
        }
        bench.assert_no_leak();
    }
}

#[test]
fn a_link_local_sender_is_answered_on_its_link() {
    let mut bench = Bench::new();
    let packet = bench.packet(&with_v6(|h| h[22..38].copy_from_slice(&HOST_LINK)));
    assert!(bench.run(|context| error(IcmpError::Unreachable(Unreachable::BeyondScope), &packet, context)));
    bench.pool.free(packet.frame);
    assert_eq!(bench.generated[0].egress, PortId(0));
    let (frame, flags) = bench.sent().remove(0);
    assert_sound(&frame);
    assert!(flags.has(Flags::LINK_READY.with(Flags::LINK_LOCAL)));
    assert_eq!((&frame[..6], &frame[6..12]), (&PEER.0[..], &MAC_0.0[..]));
    assert_eq!((&frame[22..38], &frame[38..54]), (&US_LINK[..], &HOST_LINK[..]));
}

#[test]
fn what_was_sent_to_us_is_answered_from_that_address() {
    let mut bench = Bench::new();
    // Sent to port 1's address through port 0.
    let packet = bench.packet(&with_v4(|h| h[30..34].copy_from_slice(&[198, 19, 0, 1])));
    let frame = one(&mut bench, IcmpError::Unreachable(Unreachable::Port), packet);
    assert_eq!(frame[26..30], [198, 19, 0, 1]);
    assert!(matches!(SlicedPacket::from_ethernet(&frame).unwrap().net, Some(NetSlice::Ipv4(_))));
}

#[test]
fn without_a_buffer_nothing_is_sent_and_that_is_counted() {
    let mut bench = Bench::new();
    let packet = bench.packet(&udp_v4(b"x"));
    let all: Vec<_> = std::iter::from_fn(|| bench.pool.alloc()).collect();
    assert!(!bench.run(|context| error(IcmpError::TimeExceeded, &packet, context)));
    assert_eq!((bench.generated(Generated::IcmpError), bench.counters.icmp_suppressed.get()), (0, 1));
    all.into_iter().for_each(|frame| bench.pool.free(frame));
    bench.pool.free(packet.frame);
    bench.assert_no_leak();
}

#[test]
fn our_own_packets_are_not_answered() {
    let mut bench = Bench::new();
    let mut packet = bench.packet(&udp_v4(b"x"));
    packet.flags.set(Flags::GENERATED);
    // A fragment that we cut is still its sender's.
    assert!(bench.run(|context| error(IcmpError::TimeExceeded, &packet, context)));
    packet.ingress = PortId::NONE;
    assert!(!bench.run(|context| error(IcmpError::TimeExceeded, &packet, context)));
    bench.pool.free(packet.frame);
}

/// Refuses a frame; type, code and second word of what its sender is told.
fn told(bytes: &[u8], refusal: Refusal) -> Option<(u8, u8, u32)> {
    let mut bench = Bench::new();
    let packet = bench.packet(bytes);
    bench.run(|context| refuse(refusal, &packet, context));
    bench.pool.free(packet.frame);
    let sent = bench.sent();
    bench.assert_no_leak();
    let (frame, _) = sent.into_iter().next()?;
    assert_sound(&frame);
    let at = if frame[12] == 8 { 34 } else { 54 };
    Some((frame[at], frame[at + 1], u32::from_be_bytes(frame[at + 4..at + 8].try_into().unwrap())))
}

#[test]
fn each_refusal_has_its_words() {
    let (v4, v6) = (with_v4(|_| {}), with_v6(|_| {}));
    let cases = [
        (Refusal::TimeExceeded, (11, 0, 0), (3, 0, 0)),
        (Refusal::NoRoute, (3, 0, 0), (1, 0, 0)),
        (Refusal::HostUnreachable, (3, 1, 0), (1, 3, 0)),
        (Refusal::Prohibited, (3, 13, 0), (1, 1, 0)),
        (Refusal::TooBig(1300), (3, 4, 1300), (2, 0, 1300)),
    ];
    for (refusal, in_v4, in_v6) in cases {
        assert_eq!((told(&v4, refusal), told(&v6, refusal)), (Some(in_v4), Some(in_v6)), "{refusal:?}");
    }
}

/// The datagram with IPv4 options of a length that is a multiple of four.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = udp_v4(b"x");
    bytes.splice(34..34, options.iter().copied());
    bytes[14] += (options.len() / 4) as u8;
    bytes[17] += options.len() as u8;
    let header = 34 + options.len();
    bytes[24..26].fill(0);
    let check = checksum::checksum(&bytes[14..header]);
    bytes[24..26].copy_from_slice(&check.to_ne_bytes());
    bytes
}

#[test]
fn a_bad_option_is_pointed_at() {
    let cases: [(&[u8], u32); 6] = [
        (&[7, 0, 0, 0], 20),
        (&[1, 7, 1, 0], 21),
        (&[1, 7, 9, 0], 21),
        (&[1, 1, 1, 7], 23),
        (&[7, 3, 4, 68, 3, 0, 1, 68], 27),
        (&[7, 3, 4, 68, 6, 0, 0, 0], 23),
    ];
    for (options, pointer) in cases {
        let bytes = with_options(options);
        let mut bench = Bench::new();
        let packet = bench.packet(&bytes);
        assert_eq!(
            packet.verdict(),
            crate::verdict::Verdict::Drop(crate::verdict::DropReason::IpOption),
            "{options:?}"
        );
        bench.pool.free(packet.frame);
        assert_eq!(told(&bytes, Refusal::BadHeader), Some((12, 0, pointer << 24)), "{options:?}");
    }
}

#[test]
fn a_source_route_is_refused_by_name() {
    assert_eq!(told(&with_options(&[131, 7, 4, 1, 2, 3, 4, 0]), Refusal::SourceRoute), Some((3, 5, 0)));
    let mut later = with_options(&[131, 7, 4, 1, 2, 3, 4, 0]);
    later[21] = 9;
    later[24..26].fill(0);
    let check = checksum::checksum(&later[14..42]);
    later[24..26].copy_from_slice(&check.to_ne_bytes());
    assert_eq!(told(&later, Refusal::SourceRoute), None, "a later fragment");
    // IPv6: a routing header of type 0, behind these extension headers, before this protocol.
    let routing = |before: &[u8], after: u8, first: u8| {
        let mut bytes = udp_v6(&[]);
        let route = [&[after, 2, 0, 1, 0, 0, 0, 0][..], &FAR_V6].concat();
        bytes.truncate(54);
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(&route);
        bytes.extend_from_slice(&[first, 0, 0, 0, 0, 8, 0, 0]);
        bytes[20] = if before.is_empty() { 43 } else { 60 };
        bytes[19] = (bytes.len() - 54) as u8;
        bytes
    };
    let options = [43, 0, 1, 4, 0, 0, 0, 0];
    assert_eq!(told(&routing(&[], 17, 0), Refusal::SourceRoute), Some((4, 0, 42)));
    assert_eq!(told(&routing(&options, 17, 0), Refusal::SourceRoute), Some((4, 0, 50)));
    assert_eq!(told(&routing(&[], 58, 128), Refusal::SourceRoute), Some((4, 0, 42)));
    assert_eq!(told(&routing(&[], 58, 1), Refusal::SourceRoute), None, "an error in a source route");
    assert_eq!(told(&routing(&[], 44, 0), Refusal::SourceRoute), None, "who knows what");
    assert_eq!(told(&udp_v6(b"x"), Refusal::SourceRoute), None);
}
