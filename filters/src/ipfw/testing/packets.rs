#![forbid(unsafe_code)]
//! Random traffic: packets of a few flows in both directions, with what the wire can do to them.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::frame::{self, Tcp, V4, V6, ethernet};
use super::pool;

/// A packet on its way from one interface to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The frame, padding included.
    pub frame: Vec<u8>,
    /// Interface that it comes in by.
    pub recv: String,
    /// Interface that it leaves by.
    pub xmit: String,
    /// Seconds since the packet before.
    pub pause_s: u8,
}

impl Packet {
    /// Whether it reaches IP's passes.
    pub fn is_ip(&self) -> bool {
        matches!(self.frame.get(12..14), Some([8, 0] | [0x86, 0xdd]))
    }
}

/// Packets in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The packets.
    pub packets: Vec<Packet>,
}

/// Up to `most` packets.
pub fn traffic(most: usize) -> impl Strategy<Value = Traffic> {
    vec(packet(), 1..=most).prop_map(|packets| Traffic { packets })
}

/// One packet: mostly IP.
pub fn packet() -> impl Strategy<Value = Packet> {
    let frame = prop_oneof![12 => ip_frame(), 1 => other_frame()];
    let pause = prop_oneof![6 => Just(0u8), 2 => 1..4u8, 1 => 5..40u8];
    (frame, select(&pool::INTERFACES[..]), select(&pool::INTERFACES[..]), pause)
        .prop_map(|(frame, recv, xmit, pause_s)| Packet { frame, recv: recv.into(), xmit: xmit.into(), pause_s })
}

/// Source and destination of one family. Few pairs, so that flows come back.
fn ends() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    let v4 = (0..pool::V4.len(), 0..pool::V4.len()).prop_map(|(a, b)| (pool::V4[a].into(), pool::V4[b].into()));
    let v6 = (0..pool::V6.len(), 0..pool::V6.len()).prop_map(|(a, b)| (pool::V6[a].into(), pool::V6[b].into()));
    let usual = (0..4usize, any::<bool>()).prop_map(|(flow, back)| {
        let (a, b): (IpAddr, IpAddr) = match flow {
            0 => (pool::V4[2].into(), pool::V4[4].into()),
            1 => (pool::V4[3].into(), pool::V4[4].into()),
            2 => (pool::V6[2].into(), pool::V6[4].into()),
            _ => (pool::V6[2].into(), pool::V6[3].into()),
        };
        if back { (b, a) } else { (a, b) }
    });
    prop_oneof![5 => usual, 2 => v4, 2 => v6]
}

/// Ports of the pool, mostly those of the usual flows.
fn ports() -> impl Strategy<Value = (u16, u16)> {
    let port = || select(&pool::PORTS[..]);
    prop_oneof![3 => Just((1024, 80)), 3 => Just((80, 1024)), 1 => Just((53, 443)), 3 => (port(), port())]
}

/// Protocol number and what follows the IP header.
fn upper() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let options = prop_oneof![
        4 => Just(vec![]),
        3 => Just(vec![2, 4, 5, 0xb4]),
        1 => Just(vec![2, 4, 4, 0, 1, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
        1 => Just(vec![1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
        1 => vec(any::<u8>(), 0..12),
    ];
    let flags = prop_oneof![
        4 => Just(2u8),
        3 => Just(18u8),
        4 => Just(16u8),
        2 => Just(17u8),
        1 => Just(4u8),
        1 => Just(1u8),
        1 => any::<u8>(),
    ];
    let tcp = (ports(), flags, options, 0..3u32, 0..3u32, select(vec![0usize, 1, 60]), select(vec![0u16, 8192]))
        .prop_map(|(ports, flags, options, sequence, acknowledgement, data, window)| {
            let segment = Tcp { ports, flags, sequence, acknowledgement, window, options, data };
            (6, segment.bytes())
        });
    let udp = (ports(), 0..40usize, select(vec![17u8, 17, 17, 136]))
        .prop_map(|(ports, data, protocol)| (protocol, frame::udp(ports, data)));
    let icmp =
        (select(vec![0u8, 3, 8, 11, 13, 30, 31, 40]), 0..3u8).prop_map(|(kind, code)| (1, frame::icmp(kind, code)));
    let icmp6 = (select(vec![1u8, 128, 129, 135, 139, 200, 255]), 0..3u8)
        .prop_map(|(kind, code)| (58, frame::icmp(kind, code)));
    let sctp = (ports(), select(vec![0u32, 9]), select(vec![0u8, 1, 6]))
        .prop_map(|(ports, tag, chunk)| (132, frame::sctp(ports, tag, chunk)));
    let other = (select(vec![2u8, 47, 50, 89, 99, 112, 0]), vec(any::<u8>(), 0..30));
    prop_oneof![10 => tcp, 5 => udp, 2 => icmp, 2 => icmp6, 1 => sctp, 1 => other]
}

/// Extension headers of IPv6, each with its next-header byte still open.
fn extensions() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let fragment = (prop_oneof![Just(0u16), Just(1), Just(8), Just(9), Just(160)], any::<u8>())
        .prop_map(|(field, id)| (44, [&[0, 0], &field.to_be_bytes()[..], &[0, 0, 0, id]].concat()));
    let one = prop_oneof![
        1 => Just((0u8, vec![0, 0, 1, 4, 0, 0, 0, 0])),
        1 => Just((60u8, vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        1 => select(vec![0u8, 2, 4]).prop_map(|kind| (43u8, vec![0, 0, kind, 0, 0, 0, 0, 0])),
        1 => Just((51u8, vec![0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2])),
        3 => fragment,
    ];
    prop_oneof![4 => Just(vec![]), 2 => vec(one, 1..3)]
}

fn ip_frame() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop_oneof![
        8 => Just(0u16),
        2 => Just(0x4000u16),
        1 => Just(0x2000u16),
        1 => Just(0x2010u16),
        1 => Just(0x0010u16),
        1 => Just(0x0001u16),
        1 => Just(0x8000u16),
    ];
    let options = prop_oneof![
        6 => Just(vec![]),
        1 => Just(vec![7u8, 7, 4, 0, 0, 0, 0]),
        1 => Just(vec![1u8, 131, 7, 4, 0, 0, 0, 0]),
        1 => Just(vec![68u8, 0]),
        1 => vec(any::<u8>(), 0..12),
    ];
    let tos = select(vec![0u8, 3, 0x10, 0x24, 0x68, 0xe0]);
    let v4 = (fragment, options, tos.clone(), select(vec![1u8, 64, 255]), select(vec![77u16, 80]));
    let v6 = (extensions(), tos, select(vec![0u32, 5, 0xf_ffff]));
    let macs = (select(&pool::MACS[..]), select(&pool::MACS[..3]));
    // Cut off some bytes behind the IP header, so that headers end early.
    let cut = prop_oneof![12 => Just(0usize), 1 => 1..28usize];
    (ends(), upper(), v4, v6, macs, cut, 0..20usize).prop_map(|(ends, upper, v4, v6, macs, cut, padding)| {
        let (protocol, payload) = upper;
        let payload = &payload[..payload.len().saturating_sub(cut)];
        let (kind, packet) = match ends {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (fragment, options, tos, ttl, id) = v4;
                let protocol = if protocol == 58 { 1 } else { protocol };
                (0x0800, V4 { source, destination, tos, id, fragment, ttl, options }.packet(protocol, payload))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (extensions, class, label) = v6;
                let protocol = if protocol == 1 { 58 } else { protocol };
                (0x86dd, V6 { source, destination, class, label, extensions }.packet(protocol, payload))
            }
            _ => unreachable!("ends() gives two addresses of one family"),
        };
        let mut frame = ethernet(macs.0, macs.1, kind, &packet);
        frame.resize(frame.len() + padding, 0);
        frame
    })
}

/// Frames that are not IP: they only meet layer2 passes.
fn other_frame() -> impl Strategy<Value = Vec<u8>> {
    (
        select(&pool::MACS[..]),
        select(&pool::MACS[..3]),
        select(vec![0x0806u16, 0x8100, 0x88cc]),
        vec(any::<u8>(), 28..50),
    )
        .prop_map(|(to, from, kind, bytes)| ethernet(to, from, kind, &bytes))
}
