#![forbid(unsafe_code)]

use std::cell::RefCell;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::packet::{Offload, hash};
use crate::ports::{MacAddress, Port, VlanTag};

mod fragments;
mod headers;
mod links;

const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 0x10];
const A4: [u8; 4] = [198, 18, 0, 10];
const B4: [u8; 4] = [198, 19, 0, 20];
const A6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xa];
const B6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];

/// Port 0 carries 802.1Q 100 (port 1) and 802.1ad 200 (port 2), the latter 802.1Q 300 within (port 3). Port 4 has a host.
fn ports() -> PortTable {
    let tag = |tpid, tci| VlanTag { tpid, tci };
    let port = |id| Port::new(&format!("p{id}"), PortId(id), MacAddress(US), 1500);
    let mut all: Vec<Port> = (0..5).map(port).collect();
    all[0].vlans = vec![(tag(ether::VLAN, 100), PortId(1)), (tag(ether::QINQ, 200), PortId(2))];
    all[2].vlans = vec![(tag(ether::VLAN, 300), PortId(3))];
    all[4].host = true;
    PortTable::new(all)
}

fn pool() -> Pool {
    Pool::split(&Arena::new(64, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
}

/// What the parser made of a frame.
#[derive(Debug, PartialEq, Eq)]
struct Parsed {
    verdict: Verdict,
    family: Family,
    protocol: u8,
    l4: u16,
    source_port: u16,
    destination_port: u16,
    flags: Flags,
    ingress: PortId,
    bytes: Vec<u8>,
}

/// Parses a frame on a port, by the whole parser alone with `slow`; checks what must hold of every packet that goes on.
fn parse_on(bytes: &[u8], cuts: &[usize], port: PortId, slow: bool) -> Parsed {
    // Mapping an arena costs more than a thousand frames.
    thread_local!(static BENCH: RefCell<(Pool, PortTable)> = RefCell::new((pool(), ports())));
    BENCH.with_borrow_mut(|(pool, ports)| parse_in(pool, ports, bytes, cuts, port, slow))
}

fn parse_in(pool: &mut Pool, ports: &PortTable, bytes: &[u8], cuts: &[usize], port: PortId, slow: bool) -> Parsed {
    let before = pool.available();
    // Stale bytes behind a short frame are those of a good one: nobody may read them.
    let stale = pool.frame_from(&udp_v4(&[0x5a; 200])).unwrap();
    pool.free(stale);
    let (mut rest, mut frame) = (bytes, None);
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let (part, left) = rest.split_at(cut.min(rest.len()));
        rest = left;
        if part.is_empty() {
            continue;
        }
        let part = pool.frame_from(part).unwrap();
        match &mut frame {
            None => frame = Some(part),
            Some(frame) => pool.arena().append(frame, part),
        }
    }
    let mut packet = Packet::new(frame.unwrap(), Offload::NONE, port);
    let ingress = Ingress::new(ports, port, true).unwrap();
    if slow {
        parse_slow(&mut packet, &ingress)
    } else {
        parse(&mut packet, &ingress)
    }
    let bytes: Vec<u8> = pool.arena().segments(&packet.frame).collect::<Vec<_>>().concat();
    // Whatever was made of it, hashing it must be safe.
    let Packet { family, protocol, l4, source_port, destination_port, flags, ingress, .. } = packet;
    let verdict = packet.verdict();
    if !matches!(verdict, Verdict::Drop(_)) {
        invariants(&packet, &bytes);
    }
    hash::of(hash::HashSeed(1, 3), &mut packet);
    pool.free(packet.frame);
    assert_eq!(pool.available(), before);
    Parsed { verdict, family, protocol, l4, source_port, destination_port, flags, ingress, bytes }
}

/// Parses on port 0 by both ways, which must agree.
fn read(bytes: &[u8]) -> Parsed {
    let (fast, slow) = (parse_on(bytes, &[], PortId(0), false), parse_on(bytes, &[], PortId(0), true));
    if let (Verdict::Drop(a), Verdict::Drop(b)) = (fast.verdict, slow.verdict) {
        assert_eq!(a, b, "{bytes:02x?}");
    } else {
        assert_eq!(fast, slow, "{bytes:02x?}");
    }
    fast
}

fn reason(bytes: &[u8]) -> Option<DropReason> {
    match read(bytes).verdict {
        Verdict::Drop(reason) => Some(reason),
        _ => None,
    }
}

fn invariants(packet: &Packet, bytes: &[u8]) {
    let l4 = usize::from(packet.l4);
    let headers = match packet.family {
        Family::Other => {
            assert_eq!((l4, packet.protocol), (0, 0));
            return;
        }
        Family::V4 => {
            assert_eq!(bytes[12..14], [8, 0]);
            assert_eq!(usize::from(be16(bytes, 16)), bytes.len() - 14);
            34
        }
        Family::V6 => {
            assert_eq!(bytes[12..14], [0x86, 0xdd]);
            assert_eq!(usize::from(be16(bytes, 18)) + 40, bytes.len() - 14);
            54
        }
    };
    assert!(!packet.flags.has(Flags::LATER_FRAGMENT) || packet.flags.has(Flags::FRAGMENT));
    if packet.flags.has(Flags::LATER_FRAGMENT) || (packet.family == Family::V6 && packet.protocol == 59) {
        assert_eq!(l4, 0);
    }
    if l4 == 0 {
        assert_eq!((packet.source_port, packet.destination_port), (0, 0));
        return;
    }
    let need = match packet.protocol {
        6 => 20,
        17 | 1 | 58 | 136 => 8,
        132 => 12,
        _ => 0,
    };
    assert!(l4 >= headers && l4 + need <= bytes.len(), "{l4} + {need} in {}", bytes.len());
    if need > 0 {
        // What later stages read at constant offsets is in the window and in the first buffer.
        assert!(l4 + need <= packet.frame.seg_len() && l4 + 20 <= crate::arena::HEADER_WINDOW);
    }
    if matches!(packet.protocol, 6 | 17 | 132 | 136) {
        assert_eq!((packet.source_port, packet.destination_port), (be16(bytes, l4), be16(bytes, l4 + 2)));
    }
    if packet.protocol == 6 {
        assert!(l4 + usize::from(bytes[l4 + 12] >> 4) * 4 <= bytes.len());
    }
}

/// Another parser's opinion of a packet that goes on: it must find the same.
fn second_opinion(parsed: &Parsed) {
    // What etherparse looks into and we do not: IGMP, ICMP time stamps, and authentication headers of IPv4, extensions to it.
    let stamp = parsed.protocol == 1 && matches!(parsed.destination_port >> 8, 13 | 14);
    let deeper = parsed.protocol == 2 || stamp || (parsed.family == Family::V4 && parsed.protocol == 51);
    if parsed.family == Family::Other || parsed.flags.has(Flags::FRAGMENT) || deeper {
        return;
    }
    let sliced = SlicedPacket::from_ethernet(&parsed.bytes).unwrap_or_else(|e| panic!("{e}: {parsed:?}"));
    let (protocol, payload) = match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => (ip.payload_ip_number(), ip.payload().payload),
        NetSlice::Ipv6(ip) => (ip.payload().ip_number, ip.payload().payload),
        NetSlice::Arp(_) => panic!("{parsed:?}"),
    };
    // Mobility, HIP and Shim6 are extension headers (RFC 7045, 4), which etherparse does not follow.
    if matches!(protocol.0, 135 | 139 | 140) {
        return;
    }
    assert_eq!(parsed.protocol, protocol.0);
    if parsed.l4 != 0 {
        assert_eq!(parsed.bytes.len() - usize::from(parsed.l4), payload.len());
    }
    match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            assert_eq!((parsed.source_port, parsed.destination_port), (tcp.source_port(), tcp.destination_port()));
        }
        Some(TransportSlice::Udp(udp)) => {
            assert_eq!((parsed.source_port, parsed.destination_port), (udp.source_port(), udp.destination_port()));
        }
        Some(TransportSlice::Icmpv4(icmp)) if parsed.family == Family::V4 => {
            assert_eq!(parsed.destination_port.to_be_bytes(), [icmp.type_u8(), icmp.code_u8()]);
        }
        Some(TransportSlice::Icmpv6(icmp)) if parsed.family == Family::V6 => {
            assert_eq!(parsed.destination_port.to_be_bytes(), [icmp.type_u8(), icmp.code_u8()]);
        }
        _ => {}
    }
}

fn udp_v4(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(PEER, US).ipv4(A4, B4, 9).udp(5000, 53).write(&mut bytes, payload).unwrap();
    bytes
}

fn udp_v6(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(PEER, US).ipv6(A6, B6, 9).udp(5000, 53).write(&mut bytes, payload).unwrap();
    bytes
}

fn tcp(v4: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let link = PacketBuilder::ethernet2(PEER, US);
    let ip = if v4 { link.ipv4(A4, B4, 9) } else { link.ipv6(A6, B6, 9) };
    ip.tcp(5000, 80, 1, 2).options_raw(&[1; 4]).unwrap().write(&mut bytes, payload).unwrap();
    bytes
}

fn icmp(v4: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let link = PacketBuilder::ethernet2(PEER, US);
    if v4 {
        link.ipv4(A4, B4, 9).icmpv4_echo_request(77, 1).write(&mut bytes, b"ping").unwrap();
    } else {
        link.ipv6(A6, B6, 9).icmpv6_echo_request(77, 1).write(&mut bytes, b"ping").unwrap();
    }
    bytes
}

/// An IP packet of any protocol.
fn ip(v4: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let link = PacketBuilder::ethernet2(PEER, US);
    let ip = if v4 { link.ipv4(A4, B4, 9) } else { link.ipv6(A6, B6, 9) };
    ip.write(&mut bytes, etherparse::IpNumber(protocol), payload).unwrap();
    bytes
}

/// Changes an IPv4 frame and mends its header checksum.
fn with(mut bytes: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    change(&mut bytes);
    mend(&mut bytes);
    bytes
}

fn mend(bytes: &mut [u8]) {
    let end = 14 + usize::from(bytes[14] & 15).max(5) * 4;
    if be16(bytes, 12) == ether::IPV4 && bytes.len() >= end {
        bytes[24..26].fill(0);
        let check = checksum::checksum(&bytes[14..end]);
        bytes[24..26].copy_from_slice(&check.to_ne_bytes());
    }
}

/// IPv4 with options of a length that is a multiple of four.
fn with_options(options: &[u8]) -> Vec<u8> {
    with(udp_v4(b"x"), |b| {
        b.splice(34..34, options.iter().copied());
        b[14] += (options.len() / 4) as u8;
        b[17] += options.len() as u8;
    })
}

/// IPv6 with these extension headers: numbers and bytes (the next-header byte is filled in).
fn with_extensions(headers: &[(u8, Vec<u8>)], protocol: u8, transport: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (i, (_, bytes)) in headers.iter().enumerate() {
        let at = payload.len();
        payload.extend_from_slice(bytes);
        payload[at] = headers.get(i + 1).map_or(protocol, |(kind, _)| *kind);
    }
    payload.extend_from_slice(transport);
    let mut bytes = ip(false, 59, &payload);
    bytes[20] = headers.first().map_or(protocol, |(kind, _)| *kind);
    bytes
}

/// One frame of every kind that is understood, with the length at which it is whole.
fn samples() -> Vec<Vec<u8>> {
    let udp = [0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    vec![
        udp_v4(b"payload"),
        udp_v6(b"payload"),
        tcp(true, b"payload"),
        tcp(false, b"payload"),
        icmp(true),
        icmp(false),
        ip(true, 132, &[0; 16]),
        ip(false, 132, &[0; 16]),
        ip(true, 47, &[0; 16]),
        ip(true, 136, &[0; 8]),
        with_options(&[148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 0]),
        with_extensions(&[(0, vec![0, 0, 5, 2, 0, 0, 1, 0])], 17, &udp),
        with_extensions(
            &[(0, vec![0, 0, 1, 4, 0, 0, 0, 0]), (60, vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
            17,
            &udp,
        ),
        with_extensions(&[(44, vec![0, 0, 0, 0, 0, 0, 0, 1])], 17, &udp),
        with_extensions(&[(44, vec![0, 0, 0, 9, 0, 0, 0, 1])], 17, &[0; 16]),
        with_extensions(&[(44, vec![0, 0, 0, 1, 0, 0, 0, 1])], 6, &[0x50; 24]),
        with_extensions(
            &[(43, vec![0, 2, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
            17,
            &udp,
        ),
        with_extensions(
            &[(51, vec![0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])],
            17,
            &udp,
        ),
        links::arp(),
        links::tagged(&[(0x8100, 100)], &udp_v4(b"payload")),
        links::tagged(&[(0x88a8, 200), (0x8100, 300)], &udp_v6(b"payload")),
        links::tagged(&[(0x8100, 0)], &tcp(true, b"payload")),
        fragments::v4(17, 0, true, &[0, 9, 0, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        fragments::v4(17, 8, false, &[0; 5]),
    ]
}

#[test]
fn every_sample_goes_on_and_another_parser_agrees() {
    for bytes in samples() {
        let parsed = read(&bytes);
        assert!(!matches!(parsed.verdict, Verdict::Drop(_)), "{parsed:?}");
        second_opinion(&parsed);
    }
}

#[test]
fn a_frame_cut_at_any_byte_is_dropped() {
    use DropReason::*;
    for bytes in samples() {
        for len in 1..bytes.len() {
            let parsed = read(&bytes[..len]);
            let Verdict::Drop(reason) = parsed.verdict else { panic!("{len} of {}: {bytes:02x?}", bytes.len()) };
            let expected = [EthernetTruncated, IpTruncated, IpHeaderLength, IpLength];
            assert!(expected.contains(&reason), "{len} of {}: {reason:?}", bytes.len());
        }
    }
}

#[test]
fn an_ip_packet_cut_short_with_its_length_is_dropped_or_understood() {
    // The length field follows the cut, so only what is inside can tell.
    for bytes in samples() {
        let (Family::V4 | Family::V6) = read(&bytes).family else { continue };
        let bytes = read(&bytes).bytes;
        for len in 34..bytes.len() {
            let mut short = bytes[..len].to_vec();
            if short[12] == 8 {
                short[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
                mend(&mut short);
            } else if len >= 54 {
                short[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
            }
            let parsed = read(&short);
            if !matches!(parsed.verdict, Verdict::Drop(_)) {
                second_opinion(&parsed);
            }
        }
    }
}

#[test]
fn padding_is_trimmed() {
    for bytes in samples() {
        let whole = read(&bytes);
        for extra in [1, 6, 46] {
            let padded = [&bytes[..], &vec![0xa5; extra]].concat();
            let parsed = read(&padded);
            if whole.family == Family::Other {
                assert_eq!((parsed.verdict, parsed.family), (whole.verdict, whole.family));
            } else {
                assert_eq!(parsed, whole);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_judged_alike(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        read(&bytes);
    }

    #[test]
    fn any_ip_bytes_are_judged_alike(v4: bool, bytes in proptest::collection::vec(any::<u8>(), 20..120)) {
        let mut frame = [&US[..], &PEER, if v4 { &[8, 0] } else { &[0x86, 0xdd] }, &bytes].concat();
        // The first nibbles right, so that the rest is looked at.
        frame[14] = if v4 { 0x40 | (frame[14] % 12) } else { 0x60 | (frame[14] & 15) };
        let len = frame.len() - 14;
        if v4 {
            frame[16..18].copy_from_slice(&(len as u16).to_be_bytes());
            mend(&mut frame);
        } else if len >= 40 {
            frame[18..20].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            frame[20] = [0, 6, 17, 43, 44, 51, 58, 59, 60, 132, 135, 200][usize::from(frame[20]) % 12];
        }
        let parsed = read(&frame);
        if !matches!(parsed.verdict, Verdict::Drop(_)) {
            second_opinion(&parsed);
        }
    }

    #[test]
    fn good_frames_with_some_bytes_changed_are_judged_alike(
        which in 0usize..24, changes in proptest::collection::vec((0usize..80, any::<u8>()), 0..4), fix: bool,
    ) {
        let mut bytes = samples().swap_remove(which);
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        if fix {
            mend(&mut bytes);
        }
        let parsed = read(&bytes);
        if !matches!(parsed.verdict, Verdict::Drop(_)) {
            second_opinion(&parsed);
        }
    }

    #[test]
    fn a_chain_is_judged_as_one_buffer_is(which in 0usize..24, first in 20usize..120, second in 1usize..60) {
        let bytes = samples().swap_remove(which);
        let whole = read(&bytes);
        let chain = parse_on(&bytes, &[first, second], PortId(0), false);
        if first >= whole.bytes.len().max(bytes.len()) || !matches!(chain.verdict, Verdict::Drop(_)) {
            prop_assert_eq!(&chain, &whole);
        }
        // All headers in the first buffer: no reason to refuse it.
        if first >= 94 {
            prop_assert!(!matches!(chain.verdict, Verdict::Drop(_)));
        }
    }
}
