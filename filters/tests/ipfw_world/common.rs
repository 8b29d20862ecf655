//! The box of these tests, and packets for it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::document::RuleSet;
use ferrule_filters::ipfw::testing::frame::{Tcp, V4, V6, frame, icmp, udp};
use ferrule_filters::ipfw::testing::gateway::{Gateway, Plan, rule_set};
use ferrule_filters::ipfw::testing::{Origin, Shot};

/// Ports of the box.
pub const EM0: usize = 0;
/// Where the default routes lead.
pub const EM1: usize = 1;
/// A third one.
pub const IGB0: usize = 2;

/// A client behind em0.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// A server far away.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

/// The client's IPv6 address.
pub fn client6() -> Ipv6Addr {
    "2001:db8:1::2".parse().unwrap()
}

/// The server's IPv6 address.
pub fn server6() -> Ipv6Addr {
    "2001:db8:77::5".parse().unwrap()
}

/// Three ports; the world is behind em1.
pub fn plan() -> Plan {
    Plan::new(
        &[
            ("em0", "10.0.0.1/24 2001:db8:1::1/64"),
            ("em1", "198.51.100.2/24 2001:db8:2::1/64"),
            ("igb0", "192.168.5.1/24 2001:db8:3::1/64"),
        ],
        &["198.51.100.3", "2001:db8:2::3"],
    )
}

/// What commands come to where rule 65535 accepts.
pub fn accepting<S: AsRef<str>>(commands: &[S]) -> RuleSet {
    let mut set = rule_set(commands).unwrap_or_else(|error| panic!("{error}"));
    set.variables.insert("net.inet.ip.fw.default_to_accept".to_owned(), 1);
    set
}

/// A gateway where rule 65535 accepts.
pub fn open<S: AsRef<str>>(commands: &[S], workers: usize) -> Gateway {
    Gateway::new(&plan().on(workers), &accepting(commands))
}

/// The same, with default routes from the start if rules ask for routes.
pub fn routed<S: AsRef<str>>(commands: &[S], routes: bool, workers: usize) -> Gateway {
    let plan = if routes { plan().with_default_routes() } else { plan() };
    Gateway::new(&plan.on(workers), &accepting(commands))
}

/// IPv4 from client to server.
pub fn v4() -> V4 {
    V4::new(CLIENT, SERVER)
}

/// IPv6 from client to server.
pub fn v6() -> V6 {
    V6::new(client6(), server6())
}

/// UDP over IPv4.
pub fn udp4(ports: (u16, u16)) -> Vec<u8> {
    frame(&v4().packet(17, &udp(ports, 8)))
}

/// UDP over IPv4 with this header.
pub fn with4(header: V4) -> Vec<u8> {
    frame(&header.packet(17, &udp((1000, 53), 8)))
}

/// UDP over IPv6 with this header.
pub fn with6(header: V6) -> Vec<u8> {
    frame(&header.packet(17, &udp((1000, 53), 8)))
}

/// TCP over IPv4.
pub fn tcp4(segment: Tcp) -> Vec<u8> {
    frame(&v4().packet(6, &segment.bytes()))
}

/// TCP over IPv6.
pub fn tcp6(segment: Tcp) -> Vec<u8> {
    frame(&v6().packet(6, &segment.bytes()))
}

/// A segment of a connection to port 80.
pub fn segment(flags: u8) -> Tcp {
    Tcp::new((1000, 80), flags)
}

/// An echo request over IPv4.
pub fn echo4() -> Vec<u8> {
    frame(&v4().packet(1, &icmp(8, 0)))
}

/// An echo request over IPv6.
pub fn echo6() -> Vec<u8> {
    frame(&v6().packet(58, &icmp(128, 0)))
}

/// Into em0.
pub fn wire(frame: Vec<u8>) -> Shot {
    Shot { origin: Origin::Wire(EM0), frame }
}

/// From the host, out of em1.
pub fn host(frame: Vec<u8>) -> Shot {
    Shot { origin: Origin::Host, frame }
}

/// Fails where the two sets of names are not the same.
pub fn assert_complete(what: &str, all: &[&'static str], covered: &BTreeSet<&'static str>) {
    let all: BTreeSet<&'static str> = all.iter().copied().collect();
    let untested: Vec<_> = all.difference(covered).collect();
    let unlisted: Vec<_> = covered.difference(&all).collect();
    assert!(
        untested.is_empty() && unlisted.is_empty(),
        "{what}: without a test {untested:?}, not in the list {unlisted:?}"
    );
}
