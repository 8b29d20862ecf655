//! Frames that no honest sender makes: each is dropped for its reason, and a panic or a lost buffer fails the test.

use ferrule_dataplane::fib::MacAddress;
use ferrule_dataplane::packet::Offload;

use crate::common::*;

/// A frame of IPv4 into port a, changed before the header checksum is put right again.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let world_mac = MacAddress([2, 0, 0, 0, 0, 1]);
    let mut frame = packet("198.18.0.9", "203.0.113.5").frame(world_mac, MAC_A9);
    change(&mut frame);
    let end = (14 + usize::from(frame[14] & 15) * 4).min(frame.len());
    if end >= 34 {
        frame[24..26].fill(0);
        let check = checksum(&frame[14..end]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
    frame
}

#[test]
pub fn ethernet_that_is_wrong() {
    let mut world = two();
    let good = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    for len in 1..14 {
        dropped(&mut world, A, &good[..len], "ethernet_truncated");
    }
    for len in 14..34 {
        dropped(&mut world, A, &good[..len], "ip_truncated");
    }
    for len in 34..good.len() {
        dropped(&mut world, A, &good[..len], "ip_length");
    }
    let v6 = packet("2001:db8:a::9", "2001:db8:f::5").at_a(&world);
    for len in 14..54 {
        dropped(&mut world, A, &v6[..len], "ip_truncated");
    }
    for len in 54..v6.len() {
        dropped(&mut world, A, &v6[..len], "ip_length");
    }
    let to = |mac: [u8; 6], from: [u8; 6]| [&mac[..], &from, &good[12..]].concat();
    let mac = world.mac(A).0;
    dropped(&mut world, A, &to([2, 0, 0, 0, 0, 99], MAC_A9.0), "not_our_mac");
    dropped(&mut world, A, &to(mac, [0xff; 6]), "source_mac_group");
    dropped(&mut world, A, &to(mac, [3, 0, 0, 0, 0, 1]), "source_mac_group");
    // For someone else, but sent to everyone (RFC 1812, 5.3.4).
    dropped(&mut world, A, &to([0xff; 6], MAC_A9.0), "link_broadcast");
    let other = [&mac[..], &MAC_A9.0, &[0x88, 0xb5], &[0; 46]].concat();
    dropped(&mut world, A, &other, "ethertype_unknown");
    let arp = [&mac[..], &MAC_A9.0, &[8, 6], &[0; 20]].concat();
    dropped(&mut world, A, &arp, "ethernet_truncated");
    assert!(world.collect(A).is_empty() && world.collect(B).is_empty());
    check(world);
}

#[test]
pub fn ipv4_headers_that_lie() {
    let mut world = two();
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 8] = [
        ("ip_version", |f| f[14] = 0x65),
        ("ip_version", |f| f[14] = 0x05),
        ("ip_header_length", |f| f[14] = 0x44),
        ("ip_header_length", |f| f[14] = 0x40),
        ("ip_header_length", |f| f[16..18].copy_from_slice(&[0, 19])),
        ("ip_length", |f| f[16..18].copy_from_slice(&[0, 47])),
        ("ip_length", |f| f[16..18].copy_from_slice(&[255, 255])),
        ("ip_header_length", |f| f[16..18].copy_from_slice(&[0, 0])),
    ];
    for (label, change) in cases {
        dropped(&mut world, A, &changed(change), label);
    }
    let mut frame = changed(|_| ());
    frame[24] ^= 1;
    dropped(&mut world, A, &frame, "ip_checksum");
    // A header that takes up all of the packet, and one that is longer than it.
    let frame = changed(|f| {
        f[14] = 0x4f;
        f[16..18].copy_from_slice(&[0, 46]);
    });
    dropped(&mut world, A, &frame, "ip_header_length");
    check(world);
}

#[test]
pub fn addresses_that_may_not_be() {
    let mut world = two();
    for source in ["0.0.0.0", "0.1.2.3", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"] {
        let frame = packet(source, "203.0.113.5").at_a(&world);
        dropped(&mut world, A, &frame, "martian_source");
    }
    for source in ["ff02::1", "ff0e::1", "::", "::ffff:198.18.0.9"] {
        let frame = packet(source, "2001:db8:f::5").at_a(&world);
        dropped(&mut world, A, &frame, "martian_source");
    }
    for (source, to) in [
        ("127.0.0.1", "203.0.113.5"),
        ("198.18.0.9", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "2001:db8:f::5"),
        ("2001:db8:a::9", "::1"),
    ] {
        let frame = packet(source, to).at_a(&world);
        dropped(&mut world, A, &frame, "loopback_from_wire");
    }
    for to in ["0.0.0.0", "0.1.2.3", "240.0.0.1", "250.1.2.3"] {
        let frame = packet("198.18.0.9", to).at_a(&world);
        dropped(&mut world, A, &frame, "martian_destination");
    }
    for to in ["::", "::ffff:203.0.113.5"] {
        let frame = packet("2001:db8:a::9", to).at_a(&world);
        dropped(&mut world, A, &frame, "martian_destination");
    }
    for (source, to) in [("203.0.113.5", "203.0.113.5"), ("2001:db8:f::5", "2001:db8:f::5")] {
        let frame = packet(source, to).at_a(&world);
        dropped(&mut world, A, &frame, "source_is_destination");
    }
    for (source, to) in [("169.254.1.1", "203.0.113.5"), ("198.18.0.9", "169.254.1.1"), ("fe80::1", "2001:db8:f::5")] {
        if to.starts_with("169.254") {
            world.table.route_replace(prefix("0.0.0.0/0"), 0, via_b9()).unwrap();
        }
        let frame = packet(source, to).at_a(&world);
        dropped(&mut world, A, &frame, "link_local");
    }
    assert!(world.collect(A).is_empty() && world.collect(B).is_empty(), "nobody is told");
    check(world);
}

fn via_b9() -> ferrule_dataplane::fib::RouteKind {
    ferrule_dataplane::fib::RouteKind::via(B, ip("198.19.0.9"))
}

#[test]
pub fn options_pass_or_are_told() {
    let mut world = two();
    let with = |options: &[u8]| {
        let mut p = packet("198.18.0.9", "203.0.113.5");
        p.extra = options.to_vec();
        p
    };
    // No-operation and end, record route, time stamp, router alert: a router that is not asked for more passes them on.
    for options in [&[1, 1, 1, 0][..], &[7, 7, 4, 0, 0, 0, 0, 0], &[68, 8, 5, 0, 0, 0, 0, 0], &[148, 4, 0, 0], &[1; 40]]
    {
        let frame = with(options).at_a(&world);
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))], "{options:?}");
    }
    for (options, label, kind) in [
        (&[131, 7, 4, 203, 0, 113, 9, 0][..], "source_route", (3, 5)),
        (&[137, 7, 4, 203, 0, 113, 9, 0], "source_route", (3, 5)),
        (&[7, 1, 0, 0], "ip_option", (12, 0)),
        (&[7, 0, 0, 0], "ip_option", (12, 0)),
        (&[1, 1, 1, 7], "ip_option", (12, 0)),
        (&[68, 5, 0, 0], "ip_option", (12, 0)),
    ] {
        let p = with(options);
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, label);
        let told = error(&world.collect(A)[0]);
        assert_eq!((told.kind, &told.quote), (kind, &p.bytes()), "{options:?}");
    }
    check(world);
}

/// An IPv6 extension header of `len` bytes; `next` follows it.
fn extension(next: u8, len: usize) -> Vec<u8> {
    let mut h = vec![next, (len / 8 - 1) as u8];
    // PadN over the rest.
    h.extend([1, (len - 4) as u8]);
    h.resize(len, 0);
    h
}

#[test]
pub fn extension_headers_pass_or_are_dropped() {
    let mut world = two();
    let with = |first: u8, chain: Vec<u8>| {
        let mut p = packet("2001:db8:a::9", "2001:db8:f::5");
        (p.protocol, p.extra) = (first, chain);
        p
    };
    let fragment = |next: u8, word: u16| [&[next, 0][..], &word.to_be_bytes(), &[0, 0, 0, 77]].concat();
    let good = [
        with(0, extension(17, 8)),
        with(60, extension(17, 16)),
        with(43, vec![17, 0, 4, 0, 0, 0, 0, 0]),
        with(0, [extension(60, 8), extension(17, 8)].concat()),
        // A router alert; an atomic fragment; fragments.
        with(0, vec![17, 0, 5, 2, 0, 0, 1, 0]),
        with(44, fragment(17, 0)),
        with(44, fragment(17, 1)),
        with(44, fragment(17, 8 * 100)),
        with(44, fragment(60, 8 * 100)),
        with(59, vec![]),
    ];
    for p in good {
        let mut p = p;
        if p.protocol == 44 {
            p.payload.resize(32, 0);
        }
        let frame = p.at_a(&world);
        send(&mut world, A, &frame);
        assert_eq!(world.collect(B), [forwarded(&frame, MAC_B9, world.mac(B))], "{p:?}");
    }
    let bad = [
        (with(60, extension(0, 8)), "extension_header"),
        (with(44, [fragment(44, 0), fragment(17, 0)].concat()), "extension_header"),
        (
            with(60, [60, 0, 1, 4, 0, 0, 0, 0].repeat(8).into_iter().chain(extension(17, 8)).collect()),
            "extension_header",
        ),
        (with(60, vec![17, 200, 0, 0, 0, 0, 0, 0]), "extension_header"),
        (with(43, [17, 2, 0, 1].into_iter().chain([0; 20]).collect()), "source_route"),
        (with(44, fragment(6, 8)), "fragment_tiny"),
    ];
    for (p, label) in bad {
        let mut p = p;
        if p.protocol == 44 {
            p.payload.resize(32, 0);
        }
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, label);
    }
    check(world);
}

#[test]
pub fn fragments_that_cannot_be() {
    let mut world = two();
    let part = |fragment: u16, protocol: u8, len: usize| {
        let mut p = packet("198.18.0.9", "203.0.113.5");
        (p.fragment, p.protocol, p.payload) = (fragment, protocol, vec![0x50; len]);
        p
    };
    for (p, label) in [
        // No multiple of eight with more to come; nothing in it; past 65,535 bytes.
        (part(0x2000, 17, 20), "fragment_bad"),
        (part(0x2001, 17, 0), "fragment_bad"),
        (part(5, 17, 0), "fragment_bad"),
        (part(0x1fff, 17, 16), "fragment_bad"),
        // The first shows no transport header; the second would write over it.
        (part(0x2000, 6, 16), "fragment_tiny"),
        (part(1, 6, 24), "fragment_tiny"),
        (part(0x2000, 132, 8), "fragment_tiny"),
    ] {
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, label);
    }
    check(world);
}

#[test]
pub fn transport_headers_that_lie() {
    let mut world = two();
    for source in ["198.18.0.9", "2001:db8:a::9"] {
        let to = if ip(source).is_ipv4() { "203.0.113.5" } else { "2001:db8:f::5" };
        let make = |protocol: u8, payload: Vec<u8>| {
            let mut p = packet(source, to);
            (p.protocol, p.payload) = (protocol, payload);
            p
        };
        for (protocol, len) in [(17, 7), (17, 0), (6, 19), (132, 11), (1, 7), (58, 7)] {
            let frame = make(protocol, vec![0xff; len]).at_a(&world);
            dropped(&mut world, A, &frame, "transport_truncated");
        }
        for (at, byte) in [(12, 0x40), (12, 0x60), (12, 0)] {
            let mut payload = vec![0; 20];
            payload[at] = byte;
            let frame = make(6, payload).at_a(&world);
            dropped(&mut world, A, &frame, "tcp_offset");
        }
        for len in [7u16, 0, 9, 0xffff] {
            let mut payload = vec![0; 8];
            payload[4..6].copy_from_slice(&len.to_be_bytes());
            let frame = make(17, payload).at_a(&world);
            dropped(&mut world, A, &frame, "udp_length");
        }
    }
    check(world);
}

#[test]
pub fn an_offload_that_points_outside_is_refused() {
    let mut world = two();
    let frame = packet("198.18.0.9", "203.0.113.5").at_a(&world);
    let offload = Offload { csum_start: 60_000, csum_offset: 16, ..Offload::NONE };
    assert!(world.inject_at(A, 0, &frame, offload));
    world.settle();
    assert_eq!(check(world).dropped["tx_refused"], 1);
}
