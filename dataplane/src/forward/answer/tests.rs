#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::{
    ArpHardwareId, ArpOperation, ArpPacket, EtherType, Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket,
    TransportSlice, icmpv4, icmpv6,
};

use super::*;
use crate::forward::testing::*;
use crate::rate::TokenBucket;
use crate::verdict::Generated;

type Told = Vec<(PortId, IpAddr, MacAddress)>;

/// Answers one frame: what was sent, what was learned. Nothing may be lost, and the balance must hold.
fn ask(bench: &mut Bench, bytes: &[u8]) -> (Vec<(Vec<u8>, Flags)>, Told) {
    let before = bench.pool.available();
    let totals = |b: &Bench| {
        let dropped: u64 = b.counters.dropped.iter().map(|c| c.get()).sum();
        dropped + b.consumed(Consumed::Answered)
    };
    let ended = totals(bench);
    let packet = bench.packet(bytes);
    let mut told = Vec::new();
    bench.run(|context| answer(packet, context, &mut |port, address, mac| told.push((port, address, mac))));
    assert_eq!(totals(bench) - ended, 1, "each packet ends once");
    let sent = bench.sent();
    assert_eq!(bench.pool.available(), before);
    (sent, told)
}

fn arp(operation: ArpOperation, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let packet =
        ArpPacket::new(ArpHardwareId::ETHERNET, EtherType::IPV4, operation, &sender.0, &sender.1, &target.0, &target.1)
            .unwrap();
    let to = if operation == ArpOperation::REQUEST { [0xff; 6] } else { MAC_0.0 };
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(PEER.0, to).arp(packet).write(&mut bytes).unwrap();
    // As on a wire, padded to the least frame.
    bytes.resize(60, 0x55);
    bytes
}

fn arp_of(frame: &[u8]) -> ArpPacket {
    match SlicedPacket::from_ethernet(frame).unwrap().net {
        Some(NetSlice::Arp(arp)) => arp.to_packet(),
        other => panic!("{other:?}"),
    }
}

const HOST: ([u8; 6], [u8; 4]) = (PEER.0, HOST_V4);

#[test]
fn an_arp_request_for_us_is_answered_and_learned_from() {
    let mut bench = Bench::new();
    let (sent, told) = ask(&mut bench, &arp(ArpOperation::REQUEST, HOST, ([0; 6], US_V4)));
    assert_eq!(told, [(PortId(0), IpAddr::from(HOST_V4), PEER)]);
    let [(frame, flags)] = &sent[..] else { panic!("{sent:?}") };
    assert!(flags.has(Flags::LINK_READY.with(Flags::GENERATED)));
    let mut expected = Vec::new();
    let reply = ArpPacket::new(
        ArpHardwareId::ETHERNET,
        EtherType::IPV4,
        ArpOperation::REPLY,
        &MAC_0.0,
        &US_V4,
        &PEER.0,
        &HOST_V4,
    );
    PacketBuilder::ethernet2(MAC_0.0, PEER.0).arp(reply.unwrap()).write(&mut expected).unwrap();
    assert_eq!(*frame, expected);
    assert_eq!((bench.generated(Generated::Answer), bench.consumed(Consumed::Answered)), (1, 1));
}

#[test]
fn arp_that_is_not_for_us_or_lies_is_left_alone() {
    let mut bench = Bench::new();
    let request = ArpOperation::REQUEST;
    let group = [1, 0, 0x5e, 0, 0, 1];
    let silent = [
        ("for another", arp(request, HOST, ([0; 6], FAR_V4))),
        ("for another port's address", arp(request, HOST, ([0; 6], [198, 19, 0, 1]))),
        ("group MAC", arp(request, (group, HOST_V4), ([0; 6], US_V4))),
        ("no MAC", arp(request, ([0; 6], HOST_V4), ([0; 6], US_V4))),
        ("reverse ARP", arp(ArpOperation(3), HOST, ([0; 6], US_V4))),
        ("announces our address", arp(request, (PEER.0, US_V4), ([0; 6], FAR_V4))),
    ];
    for (name, bytes) in &silent {
        let (sent, told) = ask(&mut bench, bytes);
        assert!(sent.is_empty() && told.is_empty(), "{name}");
    }
    assert_eq!(bench.dropped(DropReason::HostNone), silent.len() as u64);
    let mut other_hardware = arp(request, HOST, ([0; 6], US_V4));
    for at in 14..20 {
        other_hardware[at] ^= 1;
        assert!(ask(&mut bench, &other_hardware).0.is_empty(), "byte {at}");
        other_hardware[at] ^= 1;
    }
}

#[test]
fn probes_and_claims_of_our_address_are_answered_but_not_believed() {
    let mut bench = Bench::new();
    for sender in [[0; 4], US_V4, [255; 4], [224, 0, 0, 1]] {
        let (sent, told) = ask(&mut bench, &arp(ArpOperation::REQUEST, (PEER.0, sender), ([0; 6], US_V4)));
        assert!(told.is_empty(), "{sender:?}");
        assert_eq!(arp_of(&sent[0].0).sender_protocol_addr(), US_V4);
    }
}

#[test]
fn arp_replies_and_announcements_teach() {
    let mut bench = Bench::new();
    let expected = [(PortId(0), IpAddr::from(HOST_V4), PEER)];
    let (sent, told) = ask(&mut bench, &arp(ArpOperation::REPLY, HOST, (MAC_0.0, US_V4)));
    assert!(sent.is_empty());
    assert_eq!(told, expected);
    let (sent, told) = ask(&mut bench, &arp(ArpOperation::REQUEST, HOST, ([0; 6], HOST_V4)));
    assert!(sent.is_empty());
    assert_eq!(told, expected);
    assert_eq!(bench.consumed(Consumed::Answered), 2);
}

#[test]
fn an_arp_request_of_ours_asks_from_the_nearest_address() {
    let mut bench = Bench::new();
    let mut addresses = (**bench.shared.ports.get(PortId(0)).unwrap().addresses()).clone();
    addresses.v4 = vec![Ipv4Addr::new(10, 0, 0, 1), US_V4.into()];
    bench.shared.ports.get(PortId(0)).unwrap().set_addresses(addresses);
    assert!(bench.run(|context| solicit(PortId(0), IpAddr::from(HOST_V4), context)));
    let (frame, flags) = bench.sent().remove(0);
    assert!(flags.has(Flags::LINK_READY));
    assert_eq!(frame[..14], [&[0xff; 6][..], &MAC_0.0, &[8, 6]].concat());
    let request = arp_of(&frame);
    assert_eq!(request.operation, ArpOperation::REQUEST);
    assert_eq!((request.sender_hw_addr(), request.sender_protocol_addr()), (&MAC_0.0[..], &US_V4[..]));
    assert_eq!((request.target_hw_addr(), request.target_protocol_addr()), (&[0; 6][..], &HOST_V4[..]));
    assert!(!bench.run(|context| solicit(PortId(7), IpAddr::from(HOST_V4), context)), "no such port");
    bench.shared.ports.get(PortId(0)).unwrap().set_addresses(Default::default());
    for target in [IpAddr::from(HOST_V4), IpAddr::from(HOST_V6)] {
        assert!(!bench.run(|context| solicit(PortId(0), target, context)), "no address");
    }
    bench.assert_no_leak();
}

/// A neighbour discovery message with its options.
struct Nd {
    kind: u8,
    code: u8,
    flags: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
    target: [u8; 16],
    options: Vec<u8>,
}

const GROUP: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];

impl Nd {
    fn solicitation() -> Nd {
        Nd {
            kind: 135,
            code: 0,
            flags: 0,
            hop_limit: 255,
            source: HOST_V6,
            destination: GROUP,
            target: US_V6,
            options: [&[1, 1][..], &PEER.0].concat(),
        }
    }

    fn advertisement() -> Nd {
        Nd {
            kind: 136,
            code: 0,
            flags: 0x60,
            hop_limit: 255,
            source: HOST_V6,
            destination: US_V6,
            target: HOST_V6,
            options: [&[2, 1][..], &PEER.0].concat(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mac = if self.destination[0] == 0xff { [0x33, 0x33, 0xff, 0, 0, 1] } else { MAC_0.0 };
        let mut bytes = Vec::new();
        PacketBuilder::ethernet2(PEER.0, mac)
            .ipv6(self.source, self.destination, self.hop_limit)
            .icmpv6_raw(self.kind, self.code, [self.flags, 0, 0, 0])
            .write(&mut bytes, &[&self.target[..], &self.options].concat())
            .unwrap();
        bytes
    }
}

/// Checks an advertisement of ours: target, solicited flag, where to.
fn assert_advertisement(frame: &[u8], target: [u8; 16], solicited: bool, to: [u8; 16], mac: [u8; 6]) {
    assert_sound(frame);
    assert_eq!(frame[..14], [&mac[..], &MAC_0.0, &[0x86, 0xdd]].concat());
    assert_eq!((frame[21], &frame[22..38], &frame[38..54]), (255, &target[..], &to[..]));
    let Some(TransportSlice::Icmpv6(icmp)) = SlicedPacket::from_ethernet(frame).unwrap().transport else { panic!() };
    match icmp.icmp_type() {
        Icmpv6Type::NeighborAdvertisement(h) => {
            assert_eq!((h.router, h.solicited, h.r#override), (true, solicited, true));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(icmp.payload(), [&target[..], &[2, 1], &MAC_0.0].concat());
}

#[test]
fn a_solicitation_is_answered_and_learned_from() {
    let mut bench = Bench::new();
    let (sent, told) = ask(&mut bench, &Nd::solicitation().bytes());
    assert_eq!(told, [(PortId(0), IpAddr::from(HOST_V6), PEER)]);
    assert!(sent[0].1.has(Flags::LINK_READY));
    assert_advertisement(&sent[0].0, US_V6, true, HOST_V6, PEER.0);
    // Unicast, as a neighbour that checks whether we are there; without its own address.
    let (sent, told) =
        ask(&mut bench, &Nd { destination: US_LINK, target: US_LINK, options: vec![], ..Nd::solicitation() }.bytes());
    assert!(told.is_empty());
    assert_advertisement(&sent[0].0, US_LINK, true, HOST_V6, PEER.0);
    assert_eq!((bench.generated(Generated::Answer), bench.consumed(Consumed::Answered)), (2, 2));
}

#[test]
fn a_probe_for_our_address_is_answered_to_all() {
    let mut bench = Bench::new();
    let (sent, told) = ask(&mut bench, &Nd { source: [0; 16], options: vec![], ..Nd::solicitation() }.bytes());
    assert!(told.is_empty());
    let all: [u8; 16] = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets();
    assert_advertisement(&sent[0].0, US_V6, false, all, [0x33, 0x33, 0, 0, 0, 1]);
}

#[test]
fn advertisements_teach() {
    let mut bench = Bench::new();
    let expected = [(PortId(0), IpAddr::from(HOST_V6), PEER)];
    for flags in [0x60, 0x40, 0x20, 0xe0] {
        let (sent, told) = ask(&mut bench, &Nd { flags, ..Nd::advertisement() }.bytes());
        assert!(sent.is_empty());
        assert_eq!(told, expected, "{flags:#x}");
    }
    // Unsolicited, to all nodes: a changed MAC.
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets();
    let (_, told) = ask(&mut bench, &Nd { flags: 0x20, destination: all, ..Nd::advertisement() }.bytes());
    assert_eq!(told, expected);
}

#[test]
fn neighbour_discovery_that_breaks_a_rule_is_ignored() {
    let mut bench = Bench::new();
    let padded = |options: &[u8]| [options, &[1, 1], &PEER.0].concat();
    let group_mac = [1, 1, 0x33, 0x33, 0, 0, 0, 1].to_vec();
    let multicast = GROUP;
    let ns = Nd::solicitation;
    let na = Nd::advertisement;
    let cases = [
        ("hop limit", Nd { hop_limit: 254, ..ns() }),
        ("code", Nd { code: 1, ..ns() }),
        ("multicast target", Nd { target: multicast, ..ns() }),
        ("option of length 0", Nd { options: padded(&[14, 0]), ..ns() }),
        ("option past the end", Nd { options: vec![1, 2, 0, 0, 0, 0, 0, 0], ..ns() }),
        ("option cut short", Nd { options: vec![1], ..ns() }),
        ("MAC of 14 bytes", Nd { options: [&[1, 2][..], &[2; 14]].concat(), ..ns() }),
        ("group MAC", Nd { options: group_mac, ..ns() }),
        ("probe with a MAC", Nd { source: [0; 16], ..ns() }),
        ("for another", Nd { target: FAR_V6, ..ns() }),
        ("for another port's", Nd { target: [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], ..ns() }),
        ("from our own address", Nd { source: US_V6, ..ns() }),
        ("solicited, to a group", Nd { destination: GROUP, ..na() }),
        ("about our address", Nd { target: US_V6, ..na() }),
        ("neither flag", Nd { flags: 0, ..na() }),
        ("no address", Nd { options: vec![], ..na() }),
        ("hop limit of an advertisement", Nd { hop_limit: 64, ..na() }),
    ];
    let count = cases.len() as u64;
    for (name, message) in cases {
        let (sent, told) = ask(&mut bench, &message.bytes());
        assert!(sent.is_empty() && told.is_empty(), "{name}");
    }
    assert_eq!(bench.dropped(DropReason::HostNone), count);
    // Cut off at every byte behind the ICMPv6 header; the IPv6 length says so, too, and the checksum is right.
    let whole = ns().bytes();
    for len in 62..whole.len() - 8 {
        let mut bytes = whole[..len].to_vec();
        bytes[18..20].copy_from_slice(&((len - 54) as u16).to_be_bytes());
        bytes[56..58].fill(0);
        let (s, d) = (bytes[22..38].try_into().unwrap(), bytes[38..54].try_into().unwrap());
        let sum = crate::packet::checksum::pseudo_v6(s, d, 58, (len - 54) as u32);
        let check = !crate::packet::checksum::fold(crate::packet::checksum::sum(&bytes[54..], sum));
        bytes[56..58].copy_from_slice(&check.to_ne_bytes());
        let (sent, told) = ask(&mut bench, &bytes);
        assert!(sent.is_empty() && told.is_empty(), "{len} bytes");
    }
    assert_eq!(bench.dropped(DropReason::HostNone), count + 16);
    let mut damaged = ns().bytes();
    damaged[70] ^= 1;
    assert!(ask(&mut bench, &damaged).0.is_empty());
    assert_eq!(bench.dropped(DropReason::TransportChecksum), 1);
    for (kind, name) in [(133, "router solicitation"), (134, "router advertisement"), (137, "redirect"), (143, "MLD")] {
        assert!(ask(&mut bench, &Nd { kind, destination: US_V6, ..ns() }.bytes()).0.is_empty(), "{name}");
    }
}

#[test]
fn a_solicitation_of_ours_goes_to_the_solicited_node_group() {
    let mut bench = Bench::new();
    let target = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xaa, 0xbb, 0xcc, 0xdd];
    assert!(bench.run(|context| solicit(PortId(0), IpAddr::from(target), context)));
    assert_eq!(bench.generated[0].egress, PortId(0));
    let (frame, flags) = bench.sent().remove(0);
    assert!(flags.has(Flags::LINK_READY));
    assert_sound(&frame);
    assert_eq!(frame[..12], [&[0x33, 0x33, 0xff, 0xbb, 0xcc, 0xdd][..], &MAC_0.0].concat());
    let group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xbb, 0xcc, 0xdd];
    assert_eq!((frame[21], &frame[22..38], &frame[38..54]), (255, &US_LINK[..], &group[..]));
    assert_eq!(frame[54..56], [135, 0]);
    assert_eq!(frame[58..], [&[0; 4][..], &target, &[1, 1], &MAC_0.0].concat());
    // And the neighbour, being a Ferrule too, answers it.
    let mut neighbour = Bench::new();
    let addresses = crate::ports::PortAddresses { v6: vec![target.into()], ..Default::default() };
    neighbour.shared.ports.get(PortId(0)).unwrap().set_addresses(addresses);
    let (sent, told) = ask(&mut neighbour, &frame);
    assert_eq!(told, [(PortId(0), IpAddr::from(US_LINK), MAC_0)]);
    let mut advertisement = sent[0].0.clone();
    // Both benches give port 0 the same MAC; the answer is addressed to it.
    assert_eq!(advertisement[..6], MAC_0.0);
    advertisement[6..12].copy_from_slice(&PEER.0);
    let (_, told) = ask(&mut bench, &advertisement);
    assert_eq!(told, [(PortId(0), IpAddr::from(target), MAC_0)]);
}

fn echo_v4(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv4(HOST_V4, US_V4, 9);
    ip.icmpv4_echo_request(0x1234, 7).write(&mut bytes, payload).unwrap();
    bytes
}

fn echo_v6(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv6(HOST_V6, US_V6, 9);
    ip.icmpv6_echo_request(0x1234, 7).write(&mut bytes, payload).unwrap();
    bytes
}

#[test]
fn echo_is_answered_at_every_size() {
    let mut bench = Bench::new();
    bench.shared.ports.get(PortId(0)).unwrap().set_mtu(9000);
    for size in [0, 1, 2, 3, 56, 1471, 1472, 4001, 8900] {
        let payload: Vec<u8> = (0..size).map(|i| (i * 13) as u8).collect();
        let (sent, _) = ask(&mut bench, &echo_v4(&payload));
        let frame = &sent[0].0;
        assert_sound(frame);
        assert!(!sent[0].1.has(Flags::LINK_READY), "routed");
        let Some(TransportSlice::Icmpv4(icmp)) = SlicedPacket::from_ethernet(frame).unwrap().transport else {
            panic!()
        };
        assert_eq!(icmp.icmp_type(), Icmpv4Type::EchoReply(etherparse::IcmpEchoHeader { id: 0x1234, seq: 7 }));
        assert_eq!(icmp.payload(), payload);
        assert_eq!((frame[22], &frame[26..34]), (64, &[US_V4, HOST_V4].concat()[..]));
        let (sent, _) = ask(&mut bench, &echo_v6(&payload));
        let frame = &sent[0].0;
        assert_sound(frame);
        let Some(TransportSlice::Icmpv6(icmp)) = SlicedPacket::from_ethernet(frame).unwrap().transport else {
            panic!()
        };
        assert_eq!(icmp.icmp_type(), Icmpv6Type::EchoReply(etherparse::IcmpEchoHeader { id: 0x1234, seq: 7 }));
        assert_eq!(icmp.payload(), payload);
        assert_eq!((frame[21], &frame[22..54]), (64, &[US_V6, HOST_V6].concat()[..]));
    }
    // An address on another port is ours as well.
    let mut far = echo_v4(b"x");
    far[30..34].copy_from_slice(&[198, 19, 0, 1]);
    fix_v4(&mut far);
    assert_eq!(ask(&mut bench, &far).0[0].0[26..30], [198, 19, 0, 1]);
}

fn fix_v4(bytes: &mut [u8]) {
    let header = 14 + usize::from(bytes[14] & 15) * 4;
    bytes[24..26].fill(0);
    let check = crate::packet::checksum::checksum(&bytes[14..header]);
    bytes[24..26].copy_from_slice(&check.to_ne_bytes());
}

#[test]
fn an_echo_reply_leaves_options_and_extension_headers_behind() {
    let mut bench = Bench::new();
    let mut v4 = echo_v4(b"payload");
    v4.splice(34..34, [7, 7, 4, 0, 0, 0, 0, 0]);
    (v4[14], v4[17]) = (0x47, v4[17] + 8);
    fix_v4(&mut v4);
    let plain = ask(&mut bench, &echo_v4(b"payload")).0.remove(0).0;
    assert_eq!(ask(&mut bench, &v4).0[0].0, plain);
    let mut v6 = echo_v6(b"payload");
    // A destination options header of padding.
    v6.splice(54..54, [58, 0, 1, 4, 0, 0, 0, 0]);
    (v6[20], v6[19]) = (60, v6[19] + 8);
    let plain = ask(&mut bench, &echo_v6(b"payload")).0.remove(0).0;
    assert_eq!(ask(&mut bench, &v6).0[0].0, plain);
}

#[test]
fn link_local_echo_returns_to_its_link() {
    let mut bench = Bench::new();
    let mut bytes = Vec::new();
    let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv6(HOST_LINK, US_LINK, 64);
    ip.icmpv6_echo_request(1, 1).write(&mut bytes, b"x").unwrap();
    let packet = bench.packet(&bytes);
    bench.run(|context| answer(packet, context, &mut |_, _, _| {}));
    assert_eq!(bench.generated[0].egress, PortId(0));
    let (frame, flags) = bench.sent().remove(0);
    assert_sound(&frame);
    assert!(flags.has(Flags::LINK_READY));
    assert_eq!(frame[..12], [PEER.0, MAC_0.0].concat());
    // fe80::1 is ours on port 0 only.
    let mut packet = bench.packet(&bytes);
    packet.ingress = PortId(1);
    bench.run(|context| answer(packet, context, &mut |_, _, _| {}));
    assert!(bench.sent().is_empty());
}

#[test]
fn echo_that_is_not_sound_or_not_for_us_alone_is_not_answered() {
    let mut bench = Bench::new();
    let mut cases: Vec<(Vec<u8>, DropReason)> = Vec::new();
    for good in [echo_v4(b"payload"), echo_v6(b"payload")] {
        let v4 = good[12] == 8;
        let mut damaged = good.clone();
        *damaged.last_mut().unwrap() ^= 1;
        cases.push((damaged, DropReason::TransportChecksum));
        let mut group = good.clone();
        group[..6].fill(0xff);
        cases.push((group, DropReason::LinkBroadcast));
        let mut elsewhere = good.clone();
        if v4 {
            elsewhere[30..34].copy_from_slice(&FAR_V4);
            fix_v4(&mut elsewhere);
            let mut fragment = good.clone();
            fragment[21] = 1;
            fix_v4(&mut fragment);
            cases.push((fragment, DropReason::HostNone));
        } else {
            elsewhere = Vec::new();
            let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv6(HOST_V6, FAR_V6, 9);
            ip.icmpv6_echo_request(1, 1).write(&mut elsewhere, b"x").unwrap();
        }
        cases.push((elsewhere, DropReason::HostNone));
    }
    for (bytes, reason) in cases {
        let before = bench.dropped(reason);
        assert!(ask(&mut bench, &bytes).0.is_empty(), "{reason:?}");
        assert_eq!(bench.dropped(reason), before + 1);
    }
    // A reply for us is nothing we asked for.
    let mut reply = Vec::new();
    let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv4(HOST_V4, US_V4, 9);
    ip.icmpv4(Icmpv4Type::EchoReply(etherparse::IcmpEchoHeader { id: 1, seq: 1 })).write(&mut reply, b"").unwrap();
    assert!(ask(&mut bench, &reply).0.is_empty());
}

fn to_us(v4: bool, tcp: bool) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(PEER.0, MAC_0.0);
    let ip = if v4 { link.ipv4(HOST_V4, US_V4, 9) } else { link.ipv6(HOST_V6, US_V6, 9) };
    let mut bytes = Vec::new();
    if tcp {
        ip.tcp(1000, 22, 5, 1024).syn().write(&mut bytes, &[]).unwrap();
    } else {
        ip.udp(1000, 33434).write(&mut bytes, b"probe").unwrap();
    }
    bytes
}

#[test]
fn udp_and_tcp_for_us_are_not_met_with_silence() {
    let mut bench = Bench::new();
    for v4 in [true, false] {
        let asked = to_us(v4, false);
        let (sent, _) = ask(&mut bench, &asked);
        assert_sound(&sent[0].0);
        match SlicedPacket::from_ethernet(&sent[0].0).unwrap().transport {
            Some(TransportSlice::Icmpv4(icmp)) => {
                assert_eq!(icmp.icmp_type(), Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port));
                assert_eq!(sent[0].0[42..], asked[14..]);
            }
            Some(TransportSlice::Icmpv6(icmp)) => {
                let port = icmpv6::DestUnreachableCode::Port;
                assert_eq!(icmp.icmp_type(), Icmpv6Type::DestinationUnreachable(port));
                assert_eq!(sent[0].0[62..], asked[14..]);
            }
            other => panic!("{other:?}"),
        }
        let (sent, _) = ask(&mut bench, &to_us(v4, true));
        assert_sound(&sent[0].0);
        let Some(TransportSlice::Tcp(tcp)) = SlicedPacket::from_ethernet(&sent[0].0).unwrap().transport else {
            panic!()
        };
        assert!(tcp.rst() && tcp.ack());
        assert_eq!(tcp.acknowledgment_number(), 6);
    }
    assert_eq!((bench.generated(Generated::IcmpError), bench.generated(Generated::Reset)), (2, 2));
    assert_eq!((bench.consumed(Consumed::Answered), bench.dropped(DropReason::HostNone)), (4, 0));
    bench.limit = TokenBucket::new(0, 0);
    for (v4, tcp) in [(true, true), (true, false), (false, true), (false, false)] {
        assert!(ask(&mut bench, &to_us(v4, tcp)).0.is_empty());
    }
    assert_eq!((bench.counters.icmp_suppressed.get(), bench.dropped(DropReason::HostNone)), (4, 4));
}

#[test]
fn a_partial_checksum_of_a_local_peer_is_no_damage() {
    let mut bench = Bench::new();
    for v4 in [true, false] {
        let mut bytes = to_us(v4, true);
        let l4 = if v4 { 34 } else { 54 };
        let sum = if v4 {
            crate::packet::checksum::pseudo_v4(HOST_V4, US_V4, 6, 20)
        } else {
            crate::packet::checksum::pseudo_v6(HOST_V6, US_V6, 6, 20)
        };
        bytes[l4 + 16..l4 + 18].copy_from_slice(&crate::packet::checksum::fold(sum).to_ne_bytes());
        assert!(ask(&mut bench, &bytes).0.is_empty(), "damaged where the port knows better");
        let mut packet = bench.packet(&bytes);
        packet.flags.set(Flags::MAYBE_PARTIAL);
        bench.run(|context| answer(packet, context, &mut |_, _, _| {}));
        assert_eq!(bench.sent().len(), 1);
    }
}

#[test]
fn everything_else_is_dropped() {
    let mut bench = Bench::new();
    let mut gre = Vec::new();
    let ip = PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv4(HOST_V4, US_V4, 9);
    ip.write(&mut gre, etherparse::IpNumber::GRE, &[0; 20]).unwrap();
    let lldp = [&[1, 0x80, 0xc2, 0, 0, 0xe][..], &PEER.0, &[0x88, 0xcc], &[0; 46]].concat();
    for bytes in [gre, lldp] {
        assert!(ask(&mut bench, &bytes).0.is_empty());
    }
    assert_eq!(bench.dropped(DropReason::HostNone), 2);
    bench.assert_no_leak();
}
