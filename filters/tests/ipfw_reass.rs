//! `reass` in a gateway: what it joins, what it refuses, its bounds, and that the rules behind see ports.

mod gateway;

use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::verdict::{Consumed, DropReason, Generated};
use ferrule_filters::ipfw::testing::frame::{V4, V6, frame, udp};
use gateway::*;

const RULES: [&str; 4] = [
    "add 100 reass ip4 from any to any in",
    "add 150 count udp from any to any dst-port 53",
    "add 160 count ip from any to any frag",
    "add 200 allow ip from any to any",
];

/// A datagram with so many bytes of data, whole.
fn datagram(id: u16, port: u16, data: usize) -> Vec<u8> {
    let mut payload = udp((port, 53), data);
    for (at, byte) in payload.iter_mut().enumerate().skip(8) {
        *byte = at as u8;
    }
    V4 { id, ..V4::new(HOST.into(), PEER.into()) }.packet(17, &payload)
}

/// The bytes of a datagram's payload from `start` on, as a fragment.
fn piece(whole: &[u8], start: usize, end: usize, more: bool) -> Vec<u8> {
    let id = u16::from_be_bytes([whole[4], whole[5]]);
    let fragment = (start / 8) as u16 | if more { 0x2000 } else { 0 };
    let mut ip = V4 { id, fragment, ..V4::new(HOST.into(), PEER.into()) }.packet(200, &whole[20 + start..20 + end]);
    // Its protocol, and the checksum that goes with it.
    ip[9] = 17;
    ip[10..12].fill(0);
    let sum = ferrule_filters::ipfw::testing::frame::checksum(&[&ip[..20]]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame(&ip)
}

/// A datagram cut into pieces of so many bytes.
fn cut(whole: &[u8], size: usize) -> Vec<Vec<u8>> {
    let length = whole.len() - 20;
    (0..length)
        .step_by(size)
        .map(|start| piece(whole, start, (start + size).min(length), start + size < length))
        .collect()
}

fn send_all(gateway: &mut Gateway, port: PortId, frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    frames
        .into_iter()
        .enumerate()
        .flat_map(|(at, frame)| gateway.send_at(port, at % gateway.world.workers(), frame))
        .collect()
}

#[test]
fn fragments_in_any_order_become_one_datagram() {
    for workers in [1, 2] {
        let whole = datagram(9, 1000, 1000);
        let parts = cut(&whole, 256);
        assert_eq!(parts.len(), 4);
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let mut gateway = Gateway::new(workers, &RULES);
            let sent = send_all(&mut gateway, LAN, order.map(|at| parts[at].clone()));
            gateway.rest();
            let sent = [sent, gateway.world.collect(WAN)].concat();
            assert_eq!(sent.len(), 1, "{order:?}");
            let mut expected = whole.clone();
            expected[8] -= 1;
            expected[10..12].copy_from_slice(&sent[0][24..26]);
            assert_eq!(sent[0][14..], expected);
            assert_eq!(ferrule_filters::ipfw::testing::frame::checksum(&[&sent[0][14..34]]), 0);
            assert_eq!(
                (gateway.world.consumed(Consumed::Reassembled), gateway.world.generated(Generated::Reassembled)),
                (4, 1)
            );
            // Each fragment at the rule; the whole at both hooks behind it, and no fragment.
            // A fragment counts when it is seen and as it is taken.
            assert_eq!((gateway.count(100), gateway.count(150), gateway.count(160)), (8, 2, 0));
            gateway.close();
        }
    }
}

#[test]
fn a_datagram_longer_than_the_next_link_is_cut_again() {
    let mut gateway = Gateway::new(1, &RULES);
    let whole = datagram(9, 1000, 4000);
    let sent = send_all(&mut gateway, LAN, cut(&whole, 1000));
    assert_eq!(sent.len(), 3);
    let mut payload = vec![0; 4008];
    for frame in &sent {
        let at = usize::from(u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff) * 8;
        payload[at..at + frame.len() - 34].copy_from_slice(&frame[34..]);
    }
    assert_eq!(payload, whole[20..]);
    gateway.close();
}

#[test]
fn overlaps_end_their_datagram_and_a_duplicate_only_itself() {
    let whole = datagram(9, 1000, 1000);
    let mut gateway = Gateway::new(1, &RULES);
    let parts = cut(&whole, 512);
    assert!(send_all(&mut gateway, LAN, [parts[0].clone(), parts[0].clone()]).is_empty());
    assert_eq!((gateway.dropped(DropReason::ReassemblyBad), gateway.held()), (1, 1));
    assert_eq!(gateway.send(LAN, parts[1].clone()).len(), 1);
    // Overlaps at either side, behind the end, and a second end.
    let bad = [
        (piece(&whole, 0, 512, true), piece(&whole, 504, 1008, false)),
        (piece(&whole, 504, 1008, false), piece(&whole, 0, 512, true)),
        (piece(&whole, 256, 512, false), piece(&whole, 512, 1008, true)),
        (piece(&whole, 256, 512, false), piece(&whole, 8, 248, false)),
        (piece(&whole, 512, 1008, true), piece(&whole, 0, 256, false)),
    ];
    for (n, (a, b)) in bad.into_iter().enumerate() {
        assert!(send_all(&mut gateway, LAN, [a, b]).is_empty(), "{n}");
        assert_eq!((gateway.dropped(DropReason::ReassemblyBad), gateway.held()), (3 + 2 * n as u64, 0), "{n}");
    }
    gateway.close();
}

#[test]
fn too_many_fragments_too_many_datagrams_and_too_much_time() {
    // FreeBSD's own test: a large datagram over a small MTU gets no answer.
    let mut gateway = Gateway::new(1, &RULES);
    let whole = datagram(9, 1000, 20_000);
    assert!(send_all(&mut gateway, LAN, cut(&whole, 176)).is_empty());
    assert!(gateway.dropped(DropReason::ReassemblyLimit) > 64);
    gateway.close();
    // Sixteen may wait for a seventeenth.
    let mut gateway = Gateway::new(1, &RULES);
    let whole = datagram(9, 1000, 17 * 64 - 8);
    assert_eq!(send_all(&mut gateway, LAN, cut(&whole, 64)).len(), 1);
    for id in 0..2000 {
        assert!(gateway.send(LAN, cut(&datagram(id, 1000, 200), 104)[0].clone()).is_empty());
    }
    assert_eq!((gateway.held(), gateway.dropped(DropReason::ReassemblyLimit)), (512, 2000 - 512));
    // A part of them is looked at in each turn.
    for _ in 0..60 {
        gateway.advance(SECOND);
    }
    assert_eq!((gateway.held(), gateway.dropped(DropReason::ReassemblyTimeout)), (0, 512));
    assert!(gateway.send(LAN, cut(&datagram(7, 1000, 200), 104)[0].clone()).is_empty());
    gateway.close();
}

#[test]
fn states_of_reassembled_datagrams_are_on_the_flows_worker() {
    let mut gateway = Gateway::new(
        2,
        &[
            "add 100 reass ip from any to any in",
            "add 150 check-state",
            "add 200 allow udp from 10.0.0.0/24 to any keep-state",
        ],
    );
    let mut through = 0;
    for port in 1000..1040u16 {
        let parts = cut(&datagram(port, port, 400), 256);
        through += send_all(&mut gateway, LAN, parts).len();
        gateway.rest();
        through += gateway.world.collect(WAN).len();
        let back = V4::new(PEER.into(), HOST.into()).packet(17, &udp((53, port), 20));
        assert_eq!(gateway.send_at(WAN, 1, frame(&back)).len(), 1, "{port}");
    }
    assert_eq!(through, 40);
    gateway.close();
}

#[test]
fn fragments_of_ipv6_go_on_as_they_are() {
    let mut gateway = Gateway::new(1, &["add 100 reass ip from any to any", "add 200 allow ip from any to any"]);
    let fragment = vec![17, 0, 0, 1, 0, 0, 0, 9];
    let header = V6 { extensions: vec![(44, fragment)], ..V6::new(v6(7), peer6()) };
    let sent = gateway.send(LAN, frame(&header.packet(17, &udp((1, 53), 40))));
    assert_eq!((sent.len(), gateway.count(200)), (1, 2));
    gateway.close();
}
