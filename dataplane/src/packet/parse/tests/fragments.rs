#![forbid(unsafe_code)]

use super::*;

/// An IPv4 fragment: `offset` in bytes.
pub(super) fn v4(protocol: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    with(ip(true, protocol, payload), |b| {
        b[18..20].copy_from_slice(&[0xbe, 0xef]);
        b[20..22].copy_from_slice(&((offset / 8) | if more { 0x2000 } else { 0 }).to_be_bytes());
    })
}

/// An IPv6 fragment with extension headers before and after its fragment header.
fn v6(before: usize, after: usize, protocol: u8, offset: u16, more: bool, payload: &[u8]) -> Vec<u8> {
    let options = || (60, vec![0, 0, 1, 4, 0, 0, 0, 0]);
    let word = (offset | u16::from(more)).to_be_bytes();
    let mut headers: Vec<(u8, Vec<u8>)> = (0..before).map(|_| options()).collect();
    headers.push((44, vec![0, 0, word[0], word[1], 0xde, 0xad, 0xbe, 0xef]));
    headers.extend((0..after).map(|_| options()));
    with_extensions(&headers, protocol, payload)
}

#[test]
fn fragments_of_every_kind() {
    use DropReason::*;
    let cases = [
        // Protocol, offset, more, payload bytes -> reason in both families.
        (17, 0, true, 16, None),
        (17, 0, true, 8, None),
        (17, 8, true, 8, None),
        (17, 8, false, 1, None),
        (17, 65_512, false, 3, None),
        (17, 0, true, 15, Some(FragmentBad)),
        (17, 8, true, 9, Some(FragmentBad)),
        (17, 8, false, 0, Some(FragmentBad)),
        (17, 0, true, 0, Some(FragmentBad)),
        (17, 65_528, false, 8, Some(FragmentBad)),
        (17, 65_528, false, 100, Some(FragmentBad)),
        (6, 0, true, 24, None),
        (6, 0, true, 16, Some(FragmentTiny)),
        (6, 0, true, 8, Some(FragmentTiny)),
        (6, 8, false, 8, Some(FragmentTiny)),
        (6, 8, true, 40, Some(FragmentTiny)),
        (6, 16, false, 8, None),
        (132, 0, true, 8, Some(FragmentTiny)),
        (132, 0, true, 16, None),
        (47, 0, true, 8, None),
    ];
    for (protocol, offset, more, len, expected) in cases {
        let mut payload = vec![0x55; len];
        if protocol == 6 && offset == 0 && len >= 20 {
            payload[12] = 5 << 4;
        }
        for bytes in [v4(protocol, offset, more, &payload), v6(0, 0, protocol, offset, more, &payload)] {
            let family = if bytes[12] == 8 { "IPv4" } else { "IPv6" };
            assert_eq!(
                reason(&bytes),
                expected,
                "{family} protocol {protocol} offset {offset} more {more} {len} bytes"
            );
            if expected.is_none() {
                let parsed = read(&bytes);
                assert!(parsed.flags.has(Flags::FRAGMENT));
                assert_eq!(parsed.flags.has(Flags::LATER_FRAGMENT), offset != 0);
                assert_eq!(parsed.protocol, protocol);
                assert_eq!(parsed.l4 == 0, offset != 0);
            }
        }
    }
}

#[test]
fn a_whole_longer_than_65535_bytes_cannot_be() {
    use DropReason::FragmentBad;
    // 20 bytes of header count in IPv4: 65,512 + 3 is the last that fits, 65,512 + 4 the first that does not.
    assert_eq!(reason(&v4(17, 65_512, false, &[0; 3])), None);
    assert_eq!(reason(&v4(17, 65_512, false, &[0; 4])), Some(FragmentBad));
    assert_eq!(reason(&v4(17, 65_528, false, &[0; 1])), Some(FragmentBad));
    // In IPv6 the extension headers before the fragment header.
    assert_eq!(reason(&v6(0, 0, 17, 65_528, false, &[0; 7])), None);
    assert_eq!(reason(&v6(0, 0, 17, 65_528, false, &[0; 8])), Some(FragmentBad));
    assert_eq!(reason(&v6(1, 0, 17, 65_520, false, &[0; 7])), None);
    assert_eq!(reason(&v6(1, 0, 17, 65_520, false, &[0; 8])), Some(FragmentBad));
}

#[test]
fn ipv6_fragments_between_other_headers() {
    use DropReason::*;
    let udp = [0x13, 0x88, 0, 53, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let parsed = read(&v6(1, 1, 17, 0, true, &udp));
    assert_eq!((parsed.verdict, parsed.l4, parsed.destination_port), (Verdict::Forward, 54 + 24, 53));
    assert!(parsed.flags.has(Flags::FRAGMENT.with(Flags::EXTENSIONS)));
    // A fragment header is no extension header of the kind that the flag tells of.
    let parsed = read(&v6(0, 0, 17, 0, true, &udp));
    assert!(parsed.flags.has(Flags::FRAGMENT) && !parsed.flags.has(Flags::EXTENSIONS));
    // What follows the fragment header of a later fragment is payload.
    let parsed = read(&v6(0, 1, 17, 64, false, &udp));
    assert_eq!((parsed.verdict, parsed.protocol, parsed.l4), (Verdict::Forward, 60, 0));
    let twice = with_extensions(&[(44, vec![0; 8]), (44, vec![0; 8])], 17, &udp);
    assert_eq!(reason(&twice), Some(ExtensionHeader));
    // The first fragment holds the whole chain (RFC 7112).
    assert!(matches!(reason(&v6(0, 1, 17, 0, true, &[])), Some(FragmentBad | FragmentTiny)));
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let udp = [0x13, 0x88, 0, 53, 0, 9, 0, 0, 1];
    let parsed = read(&v6(0, 0, 17, 0, false, &udp));
    assert_eq!((parsed.verdict, parsed.l4, parsed.destination_port), (Verdict::Forward, 62, 53));
    assert!(!parsed.flags.has(Flags::FRAGMENT));
}

#[test]
fn a_first_fragment_has_the_udp_length_of_the_whole() {
    let udp = |len: u16| {
        let len = len.to_be_bytes();
        [0x13, 0x88, 0, 53, len[0], len[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    };
    for make in [|p: &[u8]| v4(17, 0, true, p), |p: &[u8]| v6(0, 0, 17, 0, true, p)] {
        let parsed = read(&make(&udp(4000)));
        assert_eq!((parsed.verdict, parsed.source_port, parsed.destination_port), (Verdict::Forward, 5000, 53));
        assert_eq!(reason(&make(&udp(7))), Some(DropReason::UdpLength));
    }
}

#[test]
fn fragments_of_a_datagram_hash_alike() {
    let (mut pool, ports) = (pool(), ports());
    let mut hashes = Vec::new();
    for bytes in [
        v4(17, 0, true, &[1; 16]),
        v4(17, 16, true, &[2; 16]),
        v4(17, 32, false, &[3; 5]),
        v6(0, 0, 17, 0, true, &[1; 16]),
        v6(0, 0, 17, 16, false, &[2; 5]),
    ] {
        let mut packet = Packet::new(pool.frame_from(&bytes).unwrap(), Offload::NONE, PortId(0));
        parse(&mut packet, &Ingress::new(&ports, PortId(0), false).unwrap());
        hashes.push(hash::of(hash::HashSeed(7, 9), &mut packet));
        pool.free(packet.frame);
    }
    assert!(hashes[0] == hashes[1] && hashes[1] == hashes[2] && hashes[3] == hashes[4] && hashes[0] != hashes[3]);
}
