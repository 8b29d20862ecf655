//! What is to become of a packet, and why: every packet ends in exactly one of these, and each is counted (promise 2).

#![forbid(unsafe_code)]

/// The state of a packet's judgement while it is in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes on: to the next stage, in the end to its egress port.
    Forward,
    /// Goes up to the host's stack, through the token bucket of its class.
    Host(PuntClass),
    /// Ends here, counted under its reason.
    Drop(DropReason),
    /// Taken out of the batch by a stage that keeps it (neighbour queue, dummynet, reassembly) and gives it back later.
    Held,
    /// Ended by being turned into something else.
    Consumed(Consumed),
}

macro_rules! labelled {
    ($(#[$outer:meta])* $name:ident { $($(#[$meta:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$meta])* $variant,)+ }

        impl $name {
            /// Every value, in order of its number.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in `show drops`, metrics and `--json`.
            pub fn label(self) -> &'static str {
                match self { $($name::$variant => $label,)+ }
            }
        }
    };
}

labelled! {
    /// Token-bucket classes of the host path (DESIGN.md, "Host path").
    PuntClass {
        /// ARP, neighbour and router discovery.
        Neighbor = "neighbor",
        /// OSPF, BGP, RIP, BFD, VRRP and other routing protocols, by protocol number and port.
        Routing = "routing",
        /// DHCP and DHCPv6.
        Dhcp = "dhcp",
        /// Everything else for the box.
        Other = "other",
    }
}

labelled! {
    /// Ways of ending that are neither sending nor dropping: each has made or will make something else.
    Consumed {
        /// Cut into fragments, which are counted as generated.
        Fragmented = "fragmented",
        /// Joined with others to a whole datagram.
        Reassembled = "reassembled",
        /// Answered by Ferrule itself (ARP, ND and echo in standalone mode).
        Answered = "answered",
        /// Given back to the path a second time by a stage.
        Replayed = "replayed",
    }
}

labelled! {
    /// Packets that Ferrule makes itself.
    Generated {
        /// ICMP and ICMPv6 errors.
        IcmpError = "icmp_error",
        /// Fragments of a packet too long for the next link.
        Fragment = "fragment",
        /// ARP requests and replies, ND messages, echo replies (standalone mode).
        Answer = "answer",
        /// TCP resets, SCTP aborts.
        Reset = "reset",
        /// Keep-alives of dynamic rules.
        Keepalive = "keepalive",
        /// Copies (dup-to, tee).
        Copy = "copy",
        /// Datagrams put together from fragments.
        Reassembled = "reassembled",
    }
}

labelled! {
    /// Why a packet was dropped.
    DropReason {
        /// The frame ends within its Ethernet header or tags.
        EthernetTruncated = "ethernet_truncated",
        /// Unicast to a MAC address that is not the port's.
        NotOurMac = "not_our_mac",
        /// A tag of a VLAN that this port does not have.
        VlanUnknown = "vlan_unknown",
        /// More than two VLAN tags.
        VlanTooDeep = "vlan_too_deep",
        /// The source MAC is a group address.
        SourceMacGroup = "source_mac_group",
        /// An EtherType that is neither IP nor ARP (or an 802.3 length), with no host interface that wants it.
        EtherTypeUnknown = "ethertype_unknown",
        /// Longer than the port's MTU: merged by GRO or LRO, left uncut by its sender (TSO) where the port that it leaves by has no
        /// offload, or a wrong MTU at the peer.
        OverMtuReceived = "over_mtu_received",
        /// Shorter than the IP header it announces.
        IpTruncated = "ip_truncated",
        /// The version field is not that of the EtherType.
        IpVersion = "ip_version",
        /// IHL below five or past the packet.
        IpHeaderLength = "ip_header_length",
        /// Total or payload length unlike the frame's.
        IpLength = "ip_length",
        /// The IPv4 header checksum is wrong.
        IpChecksum = "ip_checksum",
        /// An IPv4 option that is malformed.
        IpOption = "ip_option",
        /// A source route, which we refuse as FreeBSD and Linux do by default (RFC 5095 for IPv6).
        SourceRoute = "source_route",
        /// A source that may not be one: multicast, broadcast, loopback, 0/8, 240/4 (RFC 1812, 5.3.7).
        MartianSource = "martian_source",
        /// A destination that may not be forwarded to (RFC 1812, 5.3.7).
        MartianDestination = "martian_destination",
        /// Source and destination are the same address.
        SourceIsDestination = "source_is_destination",
        /// A link-local address on either side, which a router must not forward.
        LinkLocal = "link_local",
        /// A multicast destination that the host does not want.
        MulticastUnwanted = "multicast_unwanted",
        /// A broadcast destination that is not forwarded.
        BroadcastNotForwarded = "broadcast_not_forwarded",
        /// A packet for someone else that came in a link-layer broadcast or multicast (RFC 1812, 5.3.4).
        LinkBroadcast = "link_broadcast",
        /// An IPv6 extension header chain that is broken, out of order or longer than we follow.
        ExtensionHeader = "extension_header",
        /// A fragment with an impossible offset or length (over 65,535 bytes, length not a multiple of eight, zero length).
        FragmentBad = "fragment_bad",
        /// The first fragment does not hold the transport header, or a later one overlaps it (RFC 1858, RFC 3128, RFC 7112).
        FragmentTiny = "fragment_tiny",
        /// The transport header is truncated.
        TransportTruncated = "transport_truncated",
        /// A TCP data offset below five or past the segment.
        TcpOffset = "tcp_offset",
        /// A UDP length below eight or past the datagram.
        UdpLength = "udp_length",
        /// A packet for the box itself whose transport checksum is wrong (standalone mode).
        TransportChecksum = "transport_checksum",
        /// TTL or hop limit ran out.
        TtlExpired = "ttl_expired",
        /// No route.
        NoRoute = "no_route",
        /// A blackhole route.
        Blackhole = "blackhole",
        /// An unreachable route.
        Unreachable = "unreachable",
        /// A prohibit route.
        Prohibit = "prohibit",
        /// Too long for the next link, and may not be cut.
        FragmentationNeeded = "fragmentation_needed",
        /// The port it came in by is set down, or the one it is to leave by is down or gone.
        PortDown = "port_down",
        /// The transmit ring stayed full.
        TxFull = "tx_full",
        /// Refused by the driver (too long, too many segments).
        TxRefused = "tx_refused",
        /// No free buffer.
        NoBuffer = "no_buffer",
        /// The neighbour did not answer.
        NeighborFailed = "neighbor_failed",
        /// The queue of an unresolved neighbour was full.
        NeighborQueueFull = "neighbor_queue_full",
        /// Too many unresolved neighbours at once.
        NeighborLimit = "neighbor_limit",
        /// The token bucket of the punt class was empty.
        PuntLimited = "punt_limited",
        /// The ring to the host I/O thread was full, or there is no host path.
        HostRingFull = "host_ring_full",
        /// No host path (standalone mode), and nothing of our own answers it.
        HostNone = "host_none",
        /// The kernel refused a frame for the host interface.
        HostRefused = "host_refused",
        /// The ring to the worker that owns the flow was full.
        HandoverFull = "handover_full",
        /// 127/8 or ::1 from the wire.
        LoopbackFromWire = "loopback_from_wire",
        /// A frame from the host interface that makes no sense (too short, wrong length).
        HostFrameBad = "host_frame_bad",
        /// A route or neighbour chain that did not settle (a loop of multipath groups).
        RouteLoop = "route_loop",
        /// Nothing passes: rules are not loaded yet, or the gateway is closing (promise 8).
        Closed = "closed",
        /// A filter stage said so.
        Filter = "filter",
        /// A rule sent it to a pipe or queue that does not exist.
        PipeMissing = "pipe_missing",
        /// A pipe lost it on purpose (`plr`, a profile's loss level).
        PipeLoss = "pipe_loss",
        /// The queue of a pipe was full.
        PipeFull = "pipe_full",
        /// Active queue management dropped it (RED, GRED, CoDel, PIE).
        PipeEarly = "pipe_early",
        /// The memory of the shaper was used up: packets, queues or instances.
        PipeLimit = "pipe_limit",
        /// Its pipe, queue or scheduler was deleted while it was in it.
        PipeDeleted = "pipe_deleted",
        /// Address translation: nobody inside asked for it (`deny_in`).
        NatDenied = "nat_denied",
        /// Address translation: no free port or identifier for this peer.
        NatNoPort = "nat_no_port",
        /// Address translation: no room for another state.
        NatTableFull = "nat_table_full",
        /// Address translation: a fragment from outside without its first one.
        NatFragment = "nat_fragment",
        /// Address translation: the interface whose address is to be used has none.
        NatNoAddress = "nat_no_address",
        /// A rule's next hop is the box itself.
        NextHopLocal = "next_hop_local",
        /// Reassembly: too many fragments of one datagram, or too many of all.
        ReassemblyLimit = "reassembly_limit",
        /// Reassembly: the rest of the datagram did not come in time.
        ReassemblyTimeout = "reassembly_timeout",
        /// Reassembly: fragments that overlap, contradict each other or make too long a datagram.
        ReassemblyBad = "reassembly_bad",
        /// The gateway ended while the packet was held.
        Shutdown = "shutdown",
    }
}

impl Verdict {
    /// In 16 bits: kind in the high byte, payload in the low one. 0 is Forward.
    #[inline(always)]
    pub const fn encode(self) -> u16 {
        match self {
            Verdict::Forward => 0,
            Verdict::Host(class) => 1 << 8 | class as u16,
            Verdict::Drop(reason) => 2 << 8 | reason as u16,
            Verdict::Held => 3 << 8,
            Verdict::Consumed(kind) => 4 << 8 | kind as u16,
        }
    }

    /// The verdict that [`Verdict::encode`] packed; a word that it never makes reads as a closed drop.
    #[inline(always)]
    pub fn decode(word: u16) -> Verdict {
        let payload = usize::from(word & 0xff);
        match word >> 8 {
            0 => Verdict::Forward,
            1 => Verdict::Host(PuntClass::ALL.get(payload).copied().unwrap_or(PuntClass::Other)),
            3 => Verdict::Held,
            4 => Verdict::Consumed(Consumed::ALL.get(payload).copied().unwrap_or(Consumed::Replayed)),
            _ => Verdict::Drop(DropReason::ALL.get(payload).copied().unwrap_or(DropReason::Closed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unique() {
        let mut labels: Vec<_> = DropReason::ALL.iter().map(|r| r.label()).collect();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), DropReason::COUNT);
    }

    #[test]
    fn verdicts_survive_packing() {
        let mut all = vec![Verdict::Forward, Verdict::Held];
        all.extend(PuntClass::ALL.iter().map(|c| Verdict::Host(*c)));
        all.extend(DropReason::ALL.iter().map(|r| Verdict::Drop(*r)));
        all.extend(Consumed::ALL.iter().map(|c| Verdict::Consumed(*c)));
        assert!(all.iter().all(|v| Verdict::decode(v.encode()) == *v));
    }
}
