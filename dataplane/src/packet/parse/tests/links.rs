#![forbid(unsafe_code)]

use super::*;

/// An ARP request, padded.
pub(super) fn arp() -> Vec<u8> {
    [&[0xff; 6][..], &PEER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &PEER, &A4, &[0; 6], &B4].concat()
}

/// The frame with these tags (TPID, TCI), the outer one first.
pub(super) fn tagged(tags: &[(u16, u16)], frame: &[u8]) -> Vec<u8> {
    let tags: Vec<u8> = tags.iter().flat_map(|(tpid, tci)| [tpid.to_be_bytes(), tci.to_be_bytes()].concat()).collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

#[test]
fn tags_lead_to_their_port_and_come_off() {
    let plain = udp_v4(b"payload");
    let cases: [(&[(u16, u16)], u16); 9] = [
        (&[], 0),
        (&[(0x8100, 100)], 1),
        (&[(0x8100, 0xe064)], 1),
        (&[(0x8100, 0)], 0),
        (&[(0x8100, 0xe000)], 0),
        (&[(0x88a8, 200)], 2),
        (&[(0x88a8, 200), (0x8100, 300)], 3),
        (&[(0x8100, 0), (0x8100, 100)], 1),
        (&[(0x88a8, 0), (0x8100, 0)], 0),
    ];
    for (tags, port) in cases {
        let parsed = read(&tagged(tags, &plain));
        assert_eq!((parsed.verdict, parsed.ingress), (Verdict::Forward, PortId(port)), "{tags:x?}");
        assert_eq!(parsed.bytes, plain, "{tags:x?}");
    }
}

#[test]
fn unknown_and_stacked_tags_are_dropped() {
    use DropReason::*;
    let plain = udp_v4(b"payload");
    let cases: [(&[(u16, u16)], DropReason); 8] = [
        (&[(0x8100, 101)], VlanUnknown),
        (&[(0x88a8, 100)], VlanUnknown),
        (&[(0x8100, 200)], VlanUnknown),
        (&[(0x8100, 300)], VlanUnknown),
        (&[(0x8100, 100), (0x8100, 300)], VlanUnknown),
        (&[(0x8100, 0), (0x8100, 0), (0x8100, 0)], VlanTooDeep),
        (&[(0x88a8, 200), (0x8100, 300), (0x8100, 0)], VlanTooDeep),
        (&[(0x88a8, 200), (0x8100, 300), (0x8100, 5)], VlanUnknown),
    ];
    for (tags, expected) in cases {
        assert_eq!(reason(&tagged(tags, &plain)), Some(expected), "{tags:x?}");
    }
    for tag in [(0x8100, 0), (0x8100, 100), (0x88a8, 200)] {
        let deep = tagged(&[tag; 40], &plain);
        assert!(matches!(reason(&deep), Some(VlanTooDeep | VlanUnknown)), "40 tags {tag:x?}");
    }
}

#[test]
fn mac_addresses_are_checked() {
    use DropReason::*;
    let change = |at: usize, value: u8| {
        let mut bytes = udp_v4(b"payload");
        bytes[at] = value;
        bytes
    };
    assert_eq!(reason(&change(5, 2)), Some(NotOurMac));
    assert_eq!(reason(&change(0, 4)), Some(NotOurMac));
    assert_eq!(reason(&change(6, 3)), Some(SourceMacGroup));
    let group = read(&change(0, 3));
    assert_eq!(group.verdict, Verdict::Forward);
    assert!(group.flags.has(Flags::LINK_GROUP) && !read(&udp_v4(b"x")).flags.has(Flags::LINK_GROUP));
}

#[test]
fn other_ether_types_go_to_a_host_that_is_there() {
    let lldp = [&[1, 0x80, 0xc2, 0, 0, 0xe][..], &PEER, &[0x88, 0xcc], &[0; 46]].concat();
    let osi = [&[1, 0x80, 0xc2, 0, 0, 0x14][..], &PEER, &[0, 40, 0xfe, 0xfe, 3], &[0; 43]].concat();
    for bytes in [lldp, osi] {
        assert_eq!(reason(&bytes), Some(DropReason::EtherTypeUnknown));
        let parsed = parse_on(&bytes, &[], PortId(4), false);
        assert_eq!((parsed.verdict, parsed.family), (Verdict::Host(PuntClass::Other), Family::Other));
    }
    assert_eq!(read(&arp()).verdict, Verdict::Host(PuntClass::Neighbor));
    assert_eq!(reason(&arp()[..41]), Some(DropReason::EthernetTruncated));
}

#[test]
fn frames_over_the_mtu_are_told_apart_from_super_packets() {
    for long in [udp_v4(&vec![0; 1473]), udp_v6(&vec![0; 1453])] {
        assert_eq!(reason(&long), Some(DropReason::OverMtuReceived));
    }
    for fits in [udp_v4(&vec![0; 1472]), udp_v6(&vec![0; 1452])] {
        assert_eq!(reason(&fits), None);
    }
    let (mut pool, ports) = (pool(), ports());
    let mut packet = Packet::new(pool.frame_from(&tcp(true, &vec![0; 5000])).unwrap(), Offload::NONE, PortId(0));
    (packet.offload.gso_kind, packet.offload.gso_size) = (GsoKind::TcpV4, 1448);
    parse(&mut packet, &Ingress::new(&ports, PortId(0), false).unwrap());
    assert_eq!((packet.verdict(), packet.l4), (Verdict::Forward, 34));
    pool.free(packet.frame);
}

#[test]
fn a_removed_tag_moves_the_checksum_request() {
    let (mut pool, ports) = (pool(), ports());
    let bytes = tagged(&[(0x88a8, 200), (0x8100, 300)], &udp_v4(b"payload"));
    let mut packet = Packet::new(pool.frame_from(&bytes).unwrap(), Offload::NONE, PortId(0));
    (packet.offload.csum_start, packet.offload.csum_offset) = (42, 6);
    parse(&mut packet, &Ingress::new(&ports, PortId(0), false).unwrap());
    assert_eq!((packet.offload.csum_start, packet.l4), (34, 34));
    pool.free(packet.frame);
}

#[test]
fn what_the_host_sends_is_read_but_never_dropped() {
    let ports = ports();
    let mut cases: Vec<(Vec<u8>, Family)> = vec![
        (udp_v4(b"x"), Family::V4),
        (udp_v6(b"x"), Family::V6),
        (arp(), Family::Other),
        (udp_v4(&vec![0; 3000]), Family::V4),
        // Its own MAC is the source, anybody's the destination; an address of nobody makes no sense.
        (with(udp_v4(b"x"), |b| b[30] = 127), Family::Other),
    ];
    // Cut at every byte, over stale bytes of a whole one.
    let whole = udp_v4(b"payload");
    cases.extend((1..whole.len()).map(|len| (whole[..len].to_vec(), Family::Other)));
    for (bytes, family) in cases {
        let mut pool = pool();
        let stale = pool.frame_from(&whole).unwrap();
        pool.free(stale);
        let mut packet = Packet::new(pool.frame_from(&bytes).unwrap(), Offload::NONE, PortId(4));
        packet.flags.set(Flags::FROM_HOST);
        parse_from_host(&mut packet, &ports);
        assert_eq!((packet.verdict(), packet.family), (Verdict::Forward, family), "{} bytes", bytes.len());
        assert!(packet.flags.has(Flags::FROM_HOST));
        assert_eq!(packet.frame.len(), bytes.len());
        pool.free(packet.frame);
    }
}
