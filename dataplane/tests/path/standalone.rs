//! Without a host: what Ferrule says for itself.

use std::net::IpAddr;

use ferrule_dataplane::fib::{MacAddress, PortId};
use ferrule_dataplane::world::World;

use crate::common::*;

fn arp(operation: u8, from: &str, from_mac: MacAddress, to: &str) -> Vec<u8> {
    let IpAddr::V4(from) = ip(from) else { panic!() };
    let IpAddr::V4(to) = ip(to) else { panic!() };
    let mut frame = [&[0xff; 6][..], &from_mac.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    frame.extend(from_mac.0);
    frame.extend(from.octets());
    frame.extend([0; 6]);
    frame.extend(to.octets());
    frame
}

#[test]
pub fn arp_is_answered_and_learned() {
    let mut world = two();
    let stranger = MacAddress([2, 0, 0, 0, 0xc, 1]);
    let request = arp(1, "198.18.0.77", stranger, "198.18.0.1");
    send(&mut world, A, &request);
    let mac = world.mac(A);
    let mut reply = [&stranger.0[..], &mac.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2], &mac.0, &[198, 18, 0, 1]].concat();
    reply.extend([&stranger.0[..], &[198, 18, 0, 77]].concat());
    assert_eq!(world.collect(A), [reply]);
    // What was learned is in force: a packet to it leaves at once.
    assert!(world.learn().unwrap().is_empty());
    let frame = packet("198.19.0.9", "198.18.0.77").frame(world.mac(B), MAC_B9);
    send(&mut world, B, &frame);
    assert_eq!(world.collect(A), [forwarded(&frame, stranger, mac)]);
    // Not for us: nothing is said and nothing learned.
    dropped(&mut world, A, &arp(1, "198.18.0.78", stranger, "198.18.0.79"), "host_none");
    assert!(world.learn().unwrap().is_empty() && world.collect(A).is_empty());
    let totals = check(world);
    assert_eq!((totals.consumed["answered"], totals.generated["answer"]), (1, 1));
}

/// Sends a packet to an unknown neighbour, answers the question, and expects the packet.
fn resolve(world: &mut World, to: &str, answer: impl Fn(&World, &[u8]) -> Vec<u8>) {
    let source = if ip(to).is_ipv4() { "198.18.0.9" } else { "2001:db8:a::9" };
    let frame = packet(source, to).at_a(world);
    send(world, A, &frame);
    let asked = world.collect(B);
    assert_eq!(asked.len(), 1, "one question");
    let reply = answer(world, &asked[0]);
    send(world, B, &reply);
    world.learn().unwrap();
    world.advance(2 * MILLISECOND);
    let stranger = MacAddress([2, 0, 0, 0, 0xc, 2]);
    assert_eq!(world.collect(B), [forwarded(&frame, stranger, world.mac(B))]);
}

#[test]
pub fn neighbours_are_asked_for_and_their_answers_release_what_waits() {
    let mut world = two();
    let stranger = MacAddress([2, 0, 0, 0, 0xc, 2]);
    resolve(&mut world, "198.19.0.60", |world, asked| {
        assert_eq!(asked[..6], [0xff; 6]);
        assert_eq!(
            (&asked[20..22], &asked[28..32], &asked[38..42]),
            (&[0, 1][..], &[198, 19, 0, 1][..], &[198, 19, 0, 60][..])
        );
        let mut reply = arp(2, "198.19.0.60", stranger, "198.19.0.1");
        reply[..6].copy_from_slice(&world.mac(B).0);
        reply
    });
    resolve(&mut world, "2001:db8:b::60", |world, asked| {
        // RFC 4861, 4.3: to the solicited-node group, hop limit 255, the target in the message.
        assert_eq!(asked[..6], [0x33, 0x33, 0xff, 0, 0, 0x60]);
        assert_eq!((asked[21], asked[54]), (255, 135));
        assert_eq!(asked[62..78], v6("2001:db8:b::60").octets());
        let asker = IpAddr::from(<[u8; 16]>::try_from(&asked[22..38]).unwrap());
        let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
        message.extend(v6("2001:db8:b::60").octets());
        message.extend([2, 1]);
        message.extend(stranger.0);
        let p = packet("2001:db8:b::60", &asker.to_string()).ttl(255).transport(58, message, 2);
        p.frame(world.mac(B), stranger)
    });
    check(world);
}

#[test]
pub fn echo_is_answered_ports_and_connections_are_refused() {
    let mut world = two();
    for (source, own) in [("198.18.0.9", "198.18.0.1"), ("2001:db8:a::9", "2001:db8:a::1")] {
        let v4 = ip(source).is_ipv4();
        let p = packet(source, own).echo(77, 100);
        let frame = p.at_a(&world);
        send(&mut world, A, &frame);
        let back = world.collect(A);
        assert_eq!(back.len(), 1);
        let l4 = if v4 { 34 } else { 54 };
        assert_eq!(back[0][..12], [MAC_A9.0, world.mac(A).0].concat()[..]);
        assert_eq!((back[0][l4], &back[0][l4 + 4..]), (if v4 { 0 } else { 129 }, &p.payload[4..]));
        let p = packet(source, own).udp(4000, 33434, 12);
        let frame = p.at_a(&world);
        send(&mut world, A, &frame);
        let told = error(&world.collect(A)[0]);
        assert_eq!((told.kind, told.quote), (if v4 { (3, 3) } else { (1, 4) }, p.bytes()));
        let frame = packet(source, own).tcp(4000, 80, 2).at_a(&world);
        send(&mut world, A, &frame);
        let reset = world.collect(A);
        assert_eq!((reset.len(), reset[0][l4 + 13]), (1, 0x14), "RST and ACK");
        let mut p = packet(source, own).echo(77, 100);
        p.payload[20] ^= 1;
        let frame = p.at_a(&world);
        dropped(&mut world, A, &frame, "transport_checksum");
        let frame = packet(source, own).transport(89, vec![0; 44], 12).at_a(&world);
        dropped(&mut world, A, &frame, "host_none");
    }
    let totals = check(world);
    assert_eq!((totals.generated["answer"], totals.generated["icmp_error"], totals.generated["reset"]), (2, 2, 2));
}

#[test]
pub fn link_local_echo_goes_back_where_it_came_from() {
    let mut world = two();
    let stranger = MacAddress([2, 0, 0, 0, 0xc, 3]);
    let frame = packet("fe80::99", "fe80::a").echo(5, 10).frame(world.mac(A), stranger);
    send(&mut world, A, &frame);
    let back = world.collect(A);
    assert_eq!((back.len(), &back[0][..6]), (1, &stranger.0[..]));
    // The other port's link-local address is none of ours on this link.
    let frame = packet("fe80::99", "fe80::b").echo(5, 10).frame(world.mac(A), stranger);
    dropped(&mut world, A, &frame, "host_none");
    assert!(world.collect(PortId(1)).is_empty());
    check(world);
}
