//! Any packet: out, the answer in, and every checksum by summing anew.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Any host but the ones that the parser refuses.
fn host() -> impl Strategy<Value = String> {
    (1u8..=223, any::<[u8; 3]>())
        .prop_filter("loopback and link-local", |(a, _)| !matches!(a, 127 | 169))
        .prop_map(|(a, [b, c, d])| format!("{a}.{b}.{c}.{d}"))
}

/// A packet of any protocol, with any data, between two hosts.
fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let data = vec(any::<u8>(), 20..90);
    (host(), host(), prop_oneof![Just(1u8), Just(6), Just(17), Just(47), Just(136)], data)
        .prop_filter("two hosts, none of them the alias", |(s, d, ..)| s != d && s != ALIAS && d != ALIAS)
        .prop_map(|(source, destination, protocol, mut data)| {
            let len = data.len() as u16;
            match protocol {
                1 => (data[0], data[1]) = (if data[0] & 1 == 0 { 8 } else { 13 }, 0),
                6 => data[12] = 0x50,
                17 => data[4..6].copy_from_slice(&len.to_be_bytes()),
                _ => {}
            }
            packet(&source, &destination, protocol, &data)
        })
}

/// The packet as its peer answers it: ends exchanged, the rest the same.
fn answer(p: &[u8]) -> Vec<u8> {
    let mut a = p.to_vec();
    a[12..16].copy_from_slice(&p[16..20]);
    a[16..20].copy_from_slice(&p[12..16]);
    match p[9] {
        1 => a[20] = if p[20] == 8 { 0 } else { 14 },
        6 | 17 => {
            a[20..22].copy_from_slice(&p[22..24]);
            a[22..24].copy_from_slice(&p[20..22]);
        }
        _ => {}
    }
    seal(&mut a);
    a
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_answer_reaches_who_asked(original in any_packet(), same_ports: bool, deny_in: bool) {
        let mut rig = rig(NatConfig { same_ports, deny_in, ..config() });
        let sent = rig.out(&original).unwrap();
        prop_assert_eq!(&sent[12..16], ip(ALIAS).octets());
        prop_assert_eq!(&sent[16..20], &original[16..20]);
        let back = rig.back(&answer(&sent)).unwrap();
        prop_assert_eq!(ends(&back), ends(&answer(&original)));
        prop_assert_eq!(back, answer(&original), "nothing else changed");
        // And the error about it.
        let about = error("203.0.113.254", ALIAS, 3, &sent);
        prop_assert_eq!(rig.back(&about).unwrap(), error("203.0.113.254", &ends(&original).0.0, 3, &original));
    }

    #[test]
    fn what_is_left_to_the_device_stays_right(original in any_packet(), flagged: bool) {
        // A sender with offload puts the pseudo-header's sum into the field; the device sums the rest over it.
        prop_assume!(matches!(original[9], 6 | 17));
        let at = 20 + field(original[9]).unwrap();
        let unfinished = |p: &[u8]| {
            let mut p = p.to_vec();
            let sum = !checksum(&pseudo(&p));
            p[at..at + 2].copy_from_slice(&sum.to_be_bytes());
            p
        };
        let mut rig = rig(config());
        let offload = Offload { csum_start: 34, csum_offset: (at - 20) as u16, ..Offload::NONE };
        let mut packet = rig.parsed(&unfinished(&original), if flagged { offload } else { Offload::NONE });
        if !flagged {
            packet.flags.set(Flags::MAYBE_PARTIAL);
        }
        let translation = rig.nat.translate(&mut packet, Direction::Out, rig.now, |_| None);
        prop_assert_eq!(translation, Translation::Translated);
        let arena = rig.pool.arena().clone();
        prop_assert!(ferrule_dataplane::packet::partial::finish(&arena, &mut packet));
        let done = rig.finish(packet);
        assert_sums(&done);
        prop_assert_ne!(be16(&done, at), 0);
    }

    #[test]
    fn bytes_of_any_kind_are_survived(mut bytes in vec(any::<u8>(), 40..120), protocol in prop_oneof![Just(1u8), Just(6), Just(17), any::<u8>()], kind in prop_oneof![Just(3u8), Just(11), any::<u8>()]) {
        bytes[0] = 0x45;
        let len = bytes.len() as u16;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        (bytes[6], bytes[7], bytes[9]) = (bytes[6] & 0x20, 0, protocol);
        if protocol == 1 {
            (bytes[20], bytes[28]) = (kind, 0x45);
        }
        bytes[10..12].fill(0);
        let check = checksum(&bytes[..20]);
        bytes[10..12].copy_from_slice(&check.to_be_bytes());
        let mut rig = rig(config());
        let frame = [&MAC[..], &[2, 0, 0, 0, 0, 9, 8, 0], &bytes].concat();
        for direction in [Direction::Out, Direction::In, Direction::In] {
            let mut packet = Packet::new(rig.pool.frame_from(&frame).unwrap(), Offload::NONE, PortId(0));
            parse::parse_slow(&mut packet, &Ingress::new(&rig.ports, PortId(0), false).unwrap());
            if packet.goes_on() {
                let _ = rig.nat.translate(&mut packet, direction, rig.now, |_| None);
                prop_assert_eq!(packet.frame.len(), frame.len());
                prop_assert_eq!(checksum(&packet.frame.head()[14..34]), 0);
            }
            rig.pool.free(packet.frame);
        }
    }
}
