#![forbid(unsafe_code)]

use super::*;

#[test]
fn fields_of_the_plain_packets() {
    for (bytes, family, protocol, l4, ports) in [
        (udp_v4(b"x"), Family::V4, 17, 34, (5000, 53)),
        (udp_v6(b"x"), Family::V6, 17, 54, (5000, 53)),
        (tcp(true, b"x"), Family::V4, 6, 34, (5000, 80)),
        (tcp(false, b"x"), Family::V6, 6, 54, (5000, 80)),
        (icmp(true), Family::V4, 1, 34, (77, 8 << 8)),
        (icmp(false), Family::V6, 58, 54, (77, 128 << 8)),
        (ip(true, 132, &[0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]), Family::V4, 132, 34, (7, 9)),
        (ip(true, 47, &[]), Family::V4, 47, 34, (0, 0)),
    ] {
        let parsed = read(&bytes);
        assert_eq!(parsed.verdict, Verdict::Forward);
        assert_eq!((parsed.family, parsed.protocol, parsed.l4), (family, protocol, l4));
        assert_eq!((parsed.source_port, parsed.destination_port), ports);
    }
}

#[test]
fn ipv4_headers_that_lie_are_dropped() {
    use DropReason::*;
    let cases = [
        ("version", with(udp_v4(b"x"), |b| b[14] = 0x55), IpVersion),
        ("version 6 under IPv4", with(udp_v4(b"x"), |b| b[14] = 0x65), IpVersion),
        ("header length 4", with(udp_v4(b"x"), |b| b[14] = 0x44), IpHeaderLength),
        ("header length 0", with(udp_v4(b"x"), |b| b[14] = 0x40), IpHeaderLength),
        ("header past the packet", with(udp_v4(b"x"), |b| b[14] = 0x4f), IpHeaderLength),
        ("total below the header", with(udp_v4(b"x"), |b| b[17] = 19), IpHeaderLength),
        ("total 0", with(udp_v4(b"x"), |b| b[17] = 0), IpHeaderLength),
        ("total past the frame", with(udp_v4(b"x"), |b| b[17] += 1), IpLength),
        ("total 65,535", with(udp_v4(b"x"), |b| b[16..18].fill(0xff)), IpLength),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(reason(&bytes), Some(expected), "{name}");
    }
    for at in 14..34 {
        let mut bytes = udp_v4(b"x");
        bytes[at] ^= 0x10;
        assert!(matches!(reason(&bytes), Some(IpChecksum | IpVersion | IpHeaderLength)), "byte {at}");
    }
}

#[test]
fn ipv6_headers_that_lie_are_dropped() {
    use DropReason::*;
    let change = |at: usize, value: u8| {
        let mut bytes = udp_v6(b"payload");
        bytes[at] = value;
        bytes
    };
    assert_eq!(reason(&change(14, 0x40)), Some(IpVersion));
    assert_eq!(reason(&change(19, 16)), Some(IpLength), "one byte more than there is");
    assert_eq!(reason(&change(18, 0xff)), Some(IpLength));
    assert_eq!(reason(&change(19, 4)), Some(TransportTruncated));
    assert_eq!(reason(&change(14, 0x6f)), None, "traffic class");
}

#[test]
fn addresses_that_may_not_be_are_dropped() {
    use DropReason::*;
    let v4 = |source: [u8; 4], destination: [u8; 4]| {
        with(udp_v4(b"x"), |b| {
            b[26..30].copy_from_slice(&source);
            b[30..34].copy_from_slice(&destination);
        })
    };
    let cases = [
        ([0, 0, 0, 0], B4, Some(MartianSource)),
        ([0, 0, 0, 0], [255; 4], None),
        ([0, 0, 0, 0], [224, 0, 0, 1], None),
        ([0, 1, 2, 3], [255; 4], Some(MartianSource)),
        ([127, 0, 0, 1], B4, Some(LoopbackFromWire)),
        ([224, 0, 0, 1], B4, Some(MartianSource)),
        ([239, 255, 255, 255], B4, Some(MartianSource)),
        ([240, 0, 0, 1], B4, Some(MartianSource)),
        ([255; 4], B4, Some(MartianSource)),
        (A4, A4, Some(SourceIsDestination)),
        (A4, [127, 1, 2, 3], Some(LoopbackFromWire)),
        (A4, [0, 0, 0, 0], Some(MartianDestination)),
        (A4, [0, 1, 2, 3], Some(MartianDestination)),
        (A4, [240, 0, 0, 1], Some(MartianDestination)),
        (A4, [255, 255, 255, 254], Some(MartianDestination)),
        (A4, [255; 4], None),
        (A4, [224, 0, 0, 1], None),
        ([1, 0, 0, 1], [223, 255, 255, 254], None),
        ([169, 253, 0, 1], [169, 255, 0, 1], None),
    ];
    for (source, destination, expected) in cases {
        assert_eq!(reason(&v4(source, destination)), expected, "{source:?} -> {destination:?}");
    }
    assert!(read(&v4([169, 254, 0, 1], B4)).flags.has(Flags::LINK_LOCAL));
    assert!(read(&v4(A4, [169, 254, 0, 1])).flags.has(Flags::LINK_LOCAL));
    assert!(!read(&v4([169, 253, 0, 1], [169, 255, 0, 1])).flags.has(Flags::LINK_LOCAL));
    let v6 = |source: u128, destination: u128| {
        let mut bytes = udp_v6(b"x");
        bytes[22..38].copy_from_slice(&source.to_be_bytes());
        bytes[38..54].copy_from_slice(&destination.to_be_bytes());
        bytes
    };
    let (a, b) = (u128::from_be_bytes(A6), u128::from_be_bytes(B6));
    let (group, link, mapped) = (0xff02_u128 << 112 | 1, 0xfe80_u128 << 112 | 1, 0xffff_u128 << 32 | 1);
    let cases = [
        (0, b, Some(MartianSource)),
        (0, group, None),
        (1, b, Some(LoopbackFromWire)),
        (a, 1, Some(LoopbackFromWire)),
        (a, 0, Some(MartianDestination)),
        (group, b, Some(MartianSource)),
        (mapped, b, Some(MartianSource)),
        (a, mapped, Some(MartianDestination)),
        (a, a, Some(SourceIsDestination)),
        (link, link, Some(SourceIsDestination)),
        (a, group, None),
        (0x0064_ff9b_u128 << 96 | 1, b, None),
        (a, 0x0064_ff9b_u128 << 96 | 1, None),
        (0xfd00_u128 << 112 | 1, b, None),
    ];
    for (source, destination, expected) in cases {
        assert_eq!(reason(&v6(source, destination)), expected, "{source:x} -> {destination:x}");
    }
    for (source, destination) in [(link, b), (a, link), (0, group), (0xfebf_u128 << 112 | 1, b)] {
        assert!(read(&v6(source, destination)).flags.has(Flags::LINK_LOCAL), "{source:x} -> {destination:x}");
    }
    assert!(!read(&v6(a, group)).flags.has(Flags::LINK_LOCAL));
    assert!(!read(&v6(a, 0xfec0_u128 << 112 | 1)).flags.has(Flags::LINK_LOCAL));
}

#[test]
fn ipv4_options_are_walked() {
    use DropReason::*;
    let cases: [(&[u8], Option<DropReason>); 12] = [
        (&[1, 1, 1, 1], None),
        (&[0, 9, 9, 9], None),
        (&[148, 4, 0, 0], None),
        (&[7, 3, 4, 0], None),
        (&[7, 0, 0, 0], Some(IpOption)),
        (&[7, 1, 0, 0], Some(IpOption)),
        (&[7, 5, 0, 0], Some(IpOption)),
        (&[1, 1, 1, 7], Some(IpOption)),
        (&[131, 3, 4, 0], Some(SourceRoute)),
        (&[137, 3, 4, 0], Some(SourceRoute)),
        (&[1, 131, 3, 4], Some(SourceRoute)),
        (&[68, 4, 5, 0, 0, 131, 3, 4], None),
    ];
    for (options, expected) in cases {
        let bytes = with_options(options);
        assert_eq!(reason(&bytes), expected, "{options:?}");
        if expected.is_none() {
            let parsed = read(&bytes);
            assert!(parsed.flags.has(Flags::OPTIONS));
            assert_eq!(usize::from(parsed.l4), 34 + options.len());
            assert_eq!(parsed.flags.has(Flags::ROUTER_ALERT), options[0] == 148);
        }
    }
    assert_eq!(reason(&with_options(&[1; 40])), None);
}

const OPTIONS: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];
const UDP: [u8; 12] = [0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];

#[test]
fn ipv6_extension_chains_are_followed_and_bounded() {
    use DropReason::*;
    let options = |kind: u8| (kind, OPTIONS.to_vec());
    for n in 0..=20 {
        let chain: Vec<_> = (0..n).map(|_| options(60)).collect();
        let bytes = with_extensions(&chain, 59, &[]);
        // As far as they are followed, and a transport after them as far as the window goes.
        assert_eq!(reason(&bytes).is_none(), n <= EXTENSIONS_MAX, "{n} headers");
        let bytes = with_extensions(&chain, 17, &UDP);
        let expected = 54 + n * 8 + 20 <= 128 && n <= EXTENSIONS_MAX;
        assert_eq!(reason(&bytes).is_none(), expected, "{n} headers before UDP");
        if expected && n > 0 {
            let parsed = read(&bytes);
            assert_eq!((parsed.protocol, usize::from(parsed.l4)), (17, 54 + n * 8));
            assert!(parsed.flags.has(Flags::EXTENSIONS));
        }
    }
    for kind in [0, 43, 60, 135, 139, 140] {
        let mut header = vec![0; 8];
        header[2] = if kind == 43 { 4 } else { 1 };
        header[3] = if kind == 43 { 0 } else { 4 };
        assert_eq!(reason(&with_extensions(&[(kind, header)], 17, &UDP)), None, "header {kind}");
    }
    let cases: Vec<(&str, Vec<u8>, DropReason)> = vec![
        ("hop-by-hop not first", with_extensions(&[options(60), options(0)], 17, &UDP), ExtensionHeader),
        ("two hop-by-hop", with_extensions(&[options(0), options(0)], 17, &UDP), ExtensionHeader),
        ("longer than the packet", with_extensions(&[(60, vec![0, 9, 0, 0, 0, 0, 0, 0])], 17, &UDP), ExtensionHeader),
        ("cut short", with_extensions(&[(60, vec![0, 0, 1])], 17, &[]), ExtensionHeader),
        ("authentication of eight bytes", with_extensions(&[(51, vec![0; 8])], 17, &UDP), ExtensionHeader),
        ("route of type 0", with_extensions(&[(43, vec![0, 0, 0, 1, 0, 0, 0, 0])], 17, &UDP), SourceRoute),
        ("option past its header", with_extensions(&[(0, vec![0, 0, 1, 9, 0, 0, 0, 0])], 17, &UDP), ExtensionHeader),
        ("option without length", with_extensions(&[(0, vec![0, 0, 1, 3, 0, 0, 0, 1])], 17, &UDP), ExtensionHeader),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(reason(&bytes), Some(expected), "{name}");
    }
    // A type 0 route that has been travelled is as good as none (RFC 5095, 3).
    assert_eq!(reason(&with_extensions(&[(43, vec![0, 0, 0, 0, 0, 0, 0, 0])], 17, &UDP)), None);
}

#[test]
fn a_router_alert_is_an_option_of_its_own_not_bytes_in_another() {
    let alert = |options: [u8; 6]| {
        let header = [&[0, 0][..], &options].concat();
        read(&with_extensions(&[(0, header)], 17, &UDP)).flags.has(Flags::ROUTER_ALERT)
    };
    assert!(alert([5, 2, 0, 0, 1, 0]));
    assert!(alert([0, 0, 5, 2, 0, 0]));
    assert!(alert([1, 0, 5, 2, 0, 0]));
    assert!(!alert([0x1e, 4, 5, 2, 0, 0]), "data of another option");
    assert!(!alert([5, 4, 0, 0, 0, 0]), "of another length");
    assert!(!alert([1, 4, 0, 0, 0, 0]));
}

#[test]
fn transport_headers_that_lie_are_dropped() {
    use DropReason::*;
    for v4 in [true, false] {
        let l4 = if v4 { 34 } else { 54 };
        for offset in 0..16u8 {
            let mut bytes = tcp(v4, b"payload");
            bytes[l4 + 12] = offset << 4;
            // 24 bytes of header and 7 of payload.
            let expected = if (5..=7).contains(&offset) { None } else { Some(TcpOffset) };
            assert_eq!(reason(&bytes), expected, "TCP offset {offset}");
        }
        for len in 0..20u8 {
            let mut bytes = if v4 { udp_v4(b"12345678") } else { udp_v6(b"12345678") };
            bytes[l4 + 5] = len;
            let expected = if (8..=16).contains(&len) { None } else { Some(UdpLength) };
            assert_eq!(reason(&bytes), expected, "UDP length {len}");
        }
        let icmp_number = if v4 { 1 } else { 58 };
        for (protocol, need) in [(6, 20), (17, 8), (icmp_number, 8), (132, 12), (136, 8)] {
            let bytes = ip(v4, protocol, &vec![0; need - 1]);
            assert_eq!(reason(&bytes), Some(TransportTruncated), "protocol {protocol}");
        }
        assert_eq!(reason(&ip(v4, 47, &[])), None);
    }
}

#[test]
fn dhcp_for_a_client_on_the_box_goes_up_at_once() {
    let mut bytes = Vec::new();
    PacketBuilder::ethernet2(PEER, US).ipv4(A4, B4, 9).udp(67, 68).write(&mut bytes, &[0; 240]).unwrap();
    for slow in [false, true] {
        assert_eq!(parse_on(&bytes, &[], PortId(4), slow).verdict, Verdict::Host(PuntClass::Dhcp));
        assert_eq!(parse_on(&bytes, &[], PortId(0), slow).verdict, Verdict::Forward, "no host there");
        let mut other = bytes.clone();
        other[35] = 66;
        assert_eq!(parse_on(&other, &[], PortId(4), slow).verdict, Verdict::Forward);
    }
}
