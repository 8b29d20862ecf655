//! What the tests of this folder share: two ports, a pool, a context, and frames built by etherparse.

#![forbid(unsafe_code)]

use std::sync::{Arc, LazyLock};

use etherparse::PacketBuilder;

use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::clock::Nanos;
use crate::counters::WorkerCounters;
use crate::fib::{Fib, RoutingTable, TableLimits};
use crate::packet::hash::HashSeed;
use crate::packet::parse::{Ingress, parse};
use crate::packet::{Flags, Offload, Packet, PortId};
use crate::ports::{MacAddress, Port, PortAddresses, PortTable};
use crate::quiesce::Domain;
use crate::rate::TokenBucket;
use crate::stage::{Context, GENERATED_MAX, Shared};
use crate::verdict::{Consumed, DropReason, Generated};

/// MAC of port 0.
pub const MAC_0: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
/// MAC of port 1.
pub const MAC_1: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
/// MAC of a neighbour on port 0.
pub const PEER: MacAddress = MacAddress([2, 0, 0, 0, 0, 0x10]);
/// Primary address of port 0.
pub const US_V4: [u8; 4] = [198, 18, 0, 1];
/// A host behind port 0.
pub const HOST_V4: [u8; 4] = [198, 18, 0, 10];
/// A host behind port 1.
pub const FAR_V4: [u8; 4] = [198, 19, 0, 20];
/// Primary address of port 0.
pub const US_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// A host behind port 0.
pub const HOST_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
/// A host behind port 1.
pub const FAR_V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20];
/// Link-local address of port 0.
pub const US_LINK: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Link-local address of the neighbour.
pub const HOST_LINK: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
/// Buffers in the pool.
pub const BUFFERS: usize = 64;

/// A worker's surroundings.
pub struct Bench {
    pub pool: Pool,
    pub counters: WorkerCounters,
    pub shared: Shared,
    pub limit: TokenBucket,
    pub generated: Vec<Packet>,
    pub now: Nanos,
}

/// Two ports with addresses of both families.
pub fn ports() -> PortTable {
    let port = |name, id, mac, v4: [u8; 4], v6: [u8; 16], link_local: Option<[u8; 16]>| {
        let port = Port::new(name, PortId(id), mac, 1500);
        port.set_up(true);
        port.set_addresses(PortAddresses {
            v4: vec![v4.into()],
            v6: vec![v6.into()],
            link_local: link_local.map(Into::into),
        });
        port
    };
    let mut far = US_V6;
    far[5] = 1;
    PortTable::new(vec![
        port("a", 0, MAC_0, US_V4, US_V6, Some(US_LINK)),
        port("c", 1, MAC_1, [198, 19, 0, 1], far, None),
    ])
}

/// Routes that lead nowhere: nothing in this folder looks them up.
pub fn shared(ports: PortTable) -> Shared {
    // Making the tables takes longer than most tests, and none of them changes a route.
    static FIB: LazyLock<Arc<Fib>> = LazyLock::new(|| RoutingTable::new(&Domain::new(1), TableLimits::default()).fib());
    Shared { fib: FIB.clone(), ports, seed: HashSeed(0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321) }
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with_ports(ports())
    }

    pub fn with_ports(ports: PortTable) -> Bench {
        let arena = Arena::new(BUFFERS as u32, DEFAULT_STRIDE, HugePages::Off).unwrap();
        Bench {
            pool: Pool::split(&arena, 1).remove(0),
            counters: WorkerCounters::new(2, 0),
            shared: shared(ports),
            limit: TokenBucket::new(1000, 1000),
            generated: Vec::with_capacity(GENERATED_MAX),
            now: 1,
        }
    }

    /// Calls with a context; the packets that it emitted are taken out of it with [`Bench::sent`].
    pub fn run<T>(&mut self, call: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let Bench { pool, counters, shared, limit, generated, now } = self;
        call(&mut Context::new(*now, 0, pool, counters, shared, limit, generated))
    }

    /// A packet that came in on port 0, parsed.
    pub fn packet(&mut self, bytes: &[u8]) -> Packet {
        let frame = self.pool.frame_from(bytes).unwrap();
        let mut packet = Packet::new(frame, Offload::NONE, PortId(0));
        parse(&mut packet, &Ingress::new(&self.shared.ports, PortId(0), false).unwrap());
        packet
    }

    /// The frames emitted since the last call, with the flags of their descriptors.
    pub fn sent(&mut self) -> Vec<(Vec<u8>, Flags)> {
        let packets: Vec<Packet> = self.generated.drain(..).collect();
        let mut out = Vec::new();
        for packet in packets {
            out.push((self.take(&packet), packet.flags));
            self.pool.free(packet.frame);
        }
        out
    }

    /// The bytes of a packet.
    pub fn take(&self, packet: &Packet) -> Vec<u8> {
        self.pool.arena().segments(&packet.frame).collect::<Vec<_>>().concat()
    }

    pub fn generated(&self, kind: Generated) -> u64 {
        self.counters.generated[kind as usize].get()
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.counters.dropped[reason as usize].get()
    }

    pub fn consumed(&self, kind: Consumed) -> u64 {
        self.counters.consumed[kind as usize].get()
    }

    /// No buffer is lost once every packet has ended.
    pub fn assert_no_leak(&self) {
        assert_eq!(self.pool.available() + self.generated.len(), BUFFERS);
    }
}

/// A UDP datagram from the host behind port 0 to the one behind port 1.
pub fn udp_v4(payload: &[u8]) -> Vec<u8> {
    built(PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv4(HOST_V4, FAR_V4, 9).udp(5000, 33434), payload)
}

/// The same over IPv6.
pub fn udp_v6(payload: &[u8]) -> Vec<u8> {
    built(PacketBuilder::ethernet2(PEER.0, MAC_0.0).ipv6(HOST_V6, FAR_V6, 9).udp(5000, 33434), payload)
}

/// The bytes of a builder that ends in UDP.
pub fn built(builder: etherparse::PacketBuilderStep<etherparse::UdpHeader>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// Checks a frame of ours with another parser: IP and transport checksums, lengths.
pub fn assert_sound(frame: &[u8]) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ethernet(frame).unwrap_or_else(|e| panic!("{e}: {frame:02x?}"));
    match (sliced.net.as_ref().unwrap(), sliced.transport.as_ref()) {
        (NetSlice::Ipv4(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header checksum");
            assert_eq!(usize::from(header.total_len) + 14, frame.len());
            match transport {
                Some(TransportSlice::Icmpv4(icmp)) => {
                    // etherparse sums what it understood of the header, not what stands there.
                    assert!(crate::packet::checksum::is_valid(icmp.slice()), "ICMP checksum");
                }
                Some(TransportSlice::Tcp(tcp)) => assert_eq!(
                    tcp.checksum(),
                    tcp.to_header().calc_checksum_ipv4_raw(header.source, header.destination, tcp.payload()).unwrap()
                ),
                _ => {}
            }
        }
        (NetSlice::Ipv6(ip), transport) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.payload_length) + 54, frame.len());
            match transport {
                Some(TransportSlice::Icmpv6(icmp)) => {
                    assert!(icmp.is_checksum_valid(header.source, header.destination), "ICMPv6 checksum");
                }
                Some(TransportSlice::Tcp(tcp)) => assert_eq!(
                    tcp.checksum(),
                    tcp.to_header().calc_checksum_ipv6_raw(header.source, header.destination, tcp.payload()).unwrap()
                ),
                _ => {}
            }
        }
        (other, _) => panic!("{other:?}"),
    }
}
