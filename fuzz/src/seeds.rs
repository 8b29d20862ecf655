//! Seeds of the corpus: one small frame of every kind that the path tells apart, and inputs made of several.

#![forbid(unsafe_code)]

use ferrule_dataplane::packet::checksum;

use crate::world::{MAC, PEER};

/// A seed's file name and bytes.
pub type Seed = (String, Vec<u8>);

/// Whether a seed is a file of the corpus, too: every frame is one of `parse`'s files, so the other targets have files only of what they
/// tell apart (the CI test feeds them all seeds).
pub fn is_file(target: &str, name: &str) -> bool {
    let about = ["cut", "echo", "arp_re", "solicitation", "probe", "to_us", "source_route", "bad_option", "fragment6"];
    match target {
        "reactions" => about.iter().any(|part| name.contains(part)),
        // A file of nine kilobytes is not tiny.
        _ if name == "over_mtu" => false,
        "path" => ["all_", "partial_", "super", "from_b"].iter().any(|part| name.starts_with(part)),
        _ => true,
    }
}

/// The seeds of a target.
pub fn of(target: &str) -> Vec<Seed> {
    let frames = frames().into_iter();
    match target {
        "parse" => frames.map(|(name, bytes)| (name.to_owned(), bytes)).collect(),
        // An MTU of 476 makes fragments of the longer ones.
        "reactions" => frames.map(|(name, bytes)| (name.to_owned(), [&[57], &bytes[..]].concat())).collect(),
        "path" => path(),
        "gateway" => gateway(),
        "ipfw_rules" => ipfw_rules(),
        _ => Vec::new(),
    }
}

fn path() -> Vec<Seed> {
    let one = |flags: u8, bytes: &[u8]| [&[flags][..], &(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let mut seeds: Vec<Seed> =
        frames().iter().map(|(name, b)| ((*name).to_owned(), [&[0], &one(0, b)[..]].concat())).collect();
    for (name, choice) in [("all_fast", 0), ("all_full", 1)] {
        let small = frames().into_iter().filter(|(name, _)| *name != "over_mtu");
        let all: Vec<u8> = small.flat_map(|(_, bytes)| one(0, &bytes)).collect();
        seeds.push((name.to_owned(), [&[choice], &all[..]].concat()));
    }
    let (udp, tcp) = (udp4([198, 18, 0, 10], [198, 19, 0, 10], &[7; 64]), tcp4(0x02, &[1; 1400]));
    seeds.push(("partial_udp".to_owned(), [&[0], &one(2, &udp)[..]].concat()));
    seeds.push(("partial_tcp".to_owned(), [&[0], &one(6, &tcp)[..]].concat()));
    seeds.push(("super_packet".to_owned(), [&[0], &one(8, &tcp)[..]].concat()));
    seeds.push(("from_b".to_owned(), [&[0], &one(1, &with_mac(udp, 1))[..]].concat()));
    seeds
}

fn gateway() -> Vec<Seed> {
    let texts = [
        ("two_ports", "[[port]]\nname = \"em0\"\ndevice = \"eth0\"\n\n[[port]]\nname = \"em1\"\ndevice = \"eth1\"\n"),
        ("standalone", "mode = \"standalone\"\n[[port]]\ndevice = \"eth0\"\naddresses = [\"198.18.0.1/24\"]\n"),
        ("bad_key", "[[port]]\ndevise = \"eth0\"\n"),
        ("unclosed", "[[port]\nname = \"em0\n"),
        ("not_utf8", "# \u{fffd}\n[[port]]\ndevice = 5\n"),
    ];
    texts.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into()
}

fn ipfw_rules() -> Vec<Seed> {
    let texts = [
        (
            "plain",
            "add 200 allow ip from any to any\nadd deny tcp from 10.0.0.0/8, 1.2.3.4 to not me ssh,80-90 in recv em0\n",
        ),
        ("blocks", "deny { tcp or udp } from { 1.2.3.0/24{1,5-9} or table(x,7) } to any { dst-port 22 or not in }\n"),
        ("states", "check-state :any\nallow tcp from any to any setup limit src-addr 4 :web defer-action // text\n"),
        ("six", "allow ip6 from 2001:db8::/32,::1.2.3.4 to me6 flow-id 1,2 ext6hdr frag icmp6types 128\n"),
        (
            "actions",
            "unreach needfrag 1420 log tag 5 ip from any to any\nfwd [fe80::1%em0]:80 via em*\nsetmark 0xff/0xf in\n",
        ),
        ("options", "count frag mf,!df dscp ef iptos congestion tcpflags syn,!ack mac any 0:1:2:3:4:5&ff:0:0:0:0:0\n"),
        ("lookups", "skipto tablearg ip from any to any lookup src-ip4:255.0.255.0 t lookup dscp:0xf 1 mark 1:3\n"),
        ("wrong", "alow tcp from 1.2.3.4/99 to any ssj in { esablished\n65535 deny not not any\n"),
    ];
    texts.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec())).into()
}

/// A frame to port A from its neighbour.
fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&MAC[0].0[..], &PEER.0, &ether_type.to_be_bytes(), payload].concat()
}

fn with_mac(mut frame: Vec<u8>, port: usize) -> Vec<u8> {
    frame[..6].copy_from_slice(&MAC[port].0);
    frame
}

/// An IPv4 packet; `word` holds flags and offset.
fn ip4(
    source: [u8; 4],
    destination: [u8; 4],
    ttl: u8,
    protocol: u8,
    word: u16,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let header = 20 + options.len();
    let total = ((header + payload.len()) as u16).to_be_bytes();
    let [high, low] = word.to_be_bytes();
    let fixed = [0x40 | (header / 4) as u8, 0, total[0], total[1], 0xbe, 0xef, high, low, ttl, protocol, 0, 0];
    let mut ip = [&fixed[..], &source, &destination, options].concat();
    let check = checksum::checksum(&ip);
    ip[10..12].copy_from_slice(&check.to_ne_bytes());
    ethernet(0x0800, &[&ip[..], payload].concat())
}

fn ip6(source: [u8; 16], destination: [u8; 16], hops: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    ethernet(0x86dd, &[&[0x60, 0, 0, 0, len[0], len[1], next, hops][..], &source, &destination, payload].concat())
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let len = ((8 + payload.len()) as u16).to_be_bytes();
    [&[0x13, 0x88, 0x82, 0x9a, len[0], len[1], 0, 0][..], payload].concat()
}

fn udp4(source: [u8; 4], destination: [u8; 4], payload: &[u8]) -> Vec<u8> {
    ip4(source, destination, 64, 17, 0, &[], &udp(payload))
}

fn tcp(flags: u8, payload: &[u8]) -> Vec<u8> {
    [&[0x9c, 0x40, 0, 22, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x20, 0, 0, 0, 0, 0][..], payload].concat()
}

fn tcp4(flags: u8, payload: &[u8]) -> Vec<u8> {
    ip4(HOST4, FAR4, 64, 6, 0x4000, &[], &tcp(flags, payload))
}

/// An ICMPv6 message with its checksum.
fn icmp6(source: [u8; 16], destination: [u8; 16], hops: u8, message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let pseudo = checksum::pseudo_v6(source, destination, 58, message.len() as u32);
    let check = !checksum::fold(checksum::sum(&message, pseudo));
    message[2..4].copy_from_slice(&check.to_ne_bytes());
    ip6(source, destination, hops, 58, &message)
}

fn icmp4(source: [u8; 4], destination: [u8; 4], message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    let check = checksum::checksum(&message);
    message[2..4].copy_from_slice(&check.to_ne_bytes());
    ip4(source, destination, 64, 1, 0, &[], &message)
}

/// The frame with its TCP or UDP checksum, `offset` bytes into the transport header.
fn summed(mut frame: Vec<u8>, offset: usize) -> Vec<u8> {
    let v4 = frame[12] == 8;
    let (l4, protocol) = if v4 { (34, frame[23]) } else { (54, frame[20]) };
    let len = frame.len() - l4;
    let first = |at: usize| frame[at..].first_chunk().copied();
    let pseudo = if v4 {
        let (source, destination) = (first(26), first(30));
        checksum::pseudo_v4(source.unwrap_or_default(), destination.unwrap_or_default(), protocol, len as u16)
    } else {
        let first = |at: usize| frame[at..].first_chunk().copied();
        let (source, destination) = (first(22), first(38));
        checksum::pseudo_v6(source.unwrap_or_default(), destination.unwrap_or_default(), protocol, len as u32)
    };
    let check = !checksum::fold(checksum::sum(&frame[l4..], pseudo));
    frame[l4 + offset..l4 + offset + 2].copy_from_slice(&check.to_ne_bytes());
    frame
}

fn tagged(tags: &[[u8; 4]], frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &tags.concat(), &frame[12..]].concat()
}

const HOST4: [u8; 4] = [198, 18, 0, 10];
const US4: [u8; 4] = [198, 18, 0, 1];
const FAR4: [u8; 4] = [198, 19, 0, 10];
const HOST6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const US6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const LINK6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const US_LINK6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const FAR6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10];
const GROUP6: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];
/// A destination options header of padding before UDP, with its own number next.
const OPTIONS: [u8; 8] = [17, 0, 1, 4, 0, 0, 0, 0];

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let arp = |operation: u8, target: [u8; 4]| {
        let body = [&[0, 1, 8, 0, 6, 4, 0, operation][..], &PEER.0, &HOST4, &[0; 6], &target].concat();
        ethernet(0x0806, &body)
    };
    let nd = |kind: u8, flags: u8, target: [u8; 16], option: u8| {
        [&[kind, 0, 0, 0, flags, 0, 0, 0][..], &target, &[option, 1], &PEER.0].concat()
    };
    let six = |next: u8, payload: &[u8]| ip6(HOST6, FAR6, 64, next, payload);
    let chain = |n: usize| {
        let headers: Vec<u8> = (0..n).flat_map(|i| [if i + 1 == n { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0]).collect();
        six(60, &[headers, udp(b"x")].concat())
    };
    let fragment6 = |word: u16, payload: &[u8]| {
        let [high, low] = word.to_be_bytes();
        six(44, &[&[17, 0, high, low, 0, 0, 0, 9][..], payload].concat())
    };
    let plain = udp4(HOST4, FAR4, b"payload");
    let long = udp(&[0xa5; 1200]);
    vec![
        ("udp4", plain.clone()),
        ("udp6", six(17, &udp(b"payload"))),
        ("tcp4_syn", tcp4(2, &[])),
        ("tcp6_ack", six(6, &tcp(16, b"data"))),
        (
            "tcp4_offset_4",
            ip4(HOST4, FAR4, 64, 6, 0, &[], &{
                let mut t = tcp(2, &[]);
                t[12] = 0x40;
                t
            }),
        ),
        ("tcp4_to_us", summed(ip4(HOST4, US4, 64, 6, 0, &[], &tcp(16, b"data")), 16)),
        ("tcp6_to_us", summed(ip6(HOST6, US6, 64, 6, &tcp(2, &[])), 16)),
        ("udp4_to_us", udp4(HOST4, US4, b"x")),
        ("link_local_source", ip6(LINK6, FAR6, 64, 17, &udp(b"x"))),
        ("link_local_echo", icmp6(LINK6, US_LINK6, 64, b"\x80\x00\x00\x00\x12\x34\x00\x01ping")),
        ("over_mtu", udp4(HOST4, FAR4, &[0; 9000])),
        ("udp6_to_us", summed(ip6(HOST6, US6, 64, 17, &udp(b"x")), 6)),
        ("ttl_1", ip4(HOST4, FAR4, 1, 17, 0, &[], &udp(b"x"))),
        ("hops_1", ip6(HOST6, FAR6, 1, 17, &udp(b"x"))),
        ("no_fragment_too_long", ip4(HOST4, [10, 0, 0, 1], 64, 17, 0x4000, &[], &long)),
        ("cut", ip4(HOST4, [10, 0, 0, 1], 64, 17, 0, &[], &long)),
        ("cut_with_options", ip4(HOST4, [10, 0, 0, 1], 64, 17, 0, &[148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 0], &long)),
        ("cut_a_fragment", ip4(HOST4, [10, 0, 0, 1], 64, 17, 0x2064, &[], &long[..1200])),
        ("too_big6", ip6(HOST6, FAR6, 64, 17, &udp(&[1; 1500]))),
        ("unresolved", udp4(HOST4, [198, 19, 0, 77], b"x")),
        ("unresolved6", {
            let mut far = FAR6;
            far[15] = 0x77;
            ip6(HOST6, far, 64, 17, &udp(b"x"))
        }),
        ("prohibited", udp4(HOST4, [100, 64, 0, 1], b"x")),
        ("unreachable", udp4(HOST4, [192, 0, 2, 1], b"x")),
        ("blackhole", udp4(HOST4, [203, 0, 113, 1], b"x")),
        ("first_fragment", ip4(HOST4, FAR4, 64, 17, 0x2000, &[], &udp(&[1; 16]))),
        ("later_fragment", ip4(HOST4, FAR4, 64, 17, 3, &[], &[1; 9])),
        ("tiny_fragment", ip4(HOST4, FAR4, 64, 6, 0x2000, &[], &tcp(2, &[])[..8])),
        ("tcp_fragment_1", ip4(HOST4, FAR4, 64, 6, 1, &[], &tcp(2, &[])[..16])),
        ("ping_of_death", ip4(HOST4, FAR4, 64, 17, 0x1fff, &[], &[1; 100])),
        ("first_fragment6", fragment6(1, &udp(&[1; 16]))),
        ("later_fragment6", fragment6(8 << 3, &[1; 9])),
        ("atomic_fragment6", fragment6(0, &udp(b"x"))),
        ("options4", ip4(HOST4, FAR4, 64, 17, 0, &[148, 4, 0, 0, 68, 4, 5, 0], &udp(b"x"))),
        ("bad_option4", ip4(HOST4, FAR4, 64, 17, 0, &[7, 40, 4, 0], &udp(b"x"))),
        ("source_route4", ip4(HOST4, FAR4, 64, 17, 0, &[131, 3, 4, 0], &udp(b"x"))),
        ("source_route6", six(43, &[&[17, 2, 0, 1, 0, 0, 0, 0][..], &FAR6, &udp(b"x")].concat())),
        ("options6", six(60, &[&OPTIONS[..], &udp(b"x")].concat())),
        ("router_alert6", six(0, &[&[17, 0, 5, 2, 0, 0, 1, 0][..], &udp(b"x")].concat())),
        ("chain_6_headers", chain(6)),
        ("chain_40_headers", chain(40)),
        ("authentication6", six(51, &[&[17, 4, 0, 0][..], &[0; 20], &udp(b"x")].concat())),
        ("no_next_header6", six(59, &[])),
        ("same_addresses", udp4(HOST4, HOST4, b"x")),
        ("loopback_source", udp4([127, 0, 0, 1], FAR4, b"x")),
        ("loopback_destination", udp4(HOST4, [127, 0, 0, 1], b"x")),
        ("broadcast", with_broadcast(udp4(HOST4, [255; 4], b"x"))),
        ("directed_broadcast", udp4(HOST4, [198, 18, 0, 255], b"x")),
        ("multicast", udp4(HOST4, [224, 0, 0, 5], b"x")),
        ("echo4", icmp4(HOST4, US4, b"\x08\x00\x00\x00\x12\x34\x00\x01ping")),
        ("echo6", icmp6(HOST6, US6, 64, b"\x80\x00\x00\x00\x12\x34\x00\x01ping")),
        ("icmp_error4", icmp4(HOST4, FAR4, &[&[3, 1, 0, 0, 0, 0, 0, 0][..], &plain[14..]].concat())),
        ("arp_request", arp(1, US4)),
        ("arp_reply", arp(2, US4)),
        ("arp_other", arp(1, FAR4)),
        ("solicitation", icmp6(HOST6, GROUP6, 255, &nd(135, 0, US6, 1))),
        ("advertisement", icmp6(HOST6, US6, 255, &nd(136, 0x60, HOST6, 2))),
        ("probe", icmp6([0; 16], GROUP6, 255, &nd(135, 0, US6, 1)[..24])),
        ("sctp4", ip4(HOST4, FAR4, 64, 132, 0, &[], &[0, 7, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0])),
        ("vlan", tagged(&[[0x81, 0, 0, 100]], &plain)),
        ("priority_tag", tagged(&[[0x81, 0, 0xe0, 0]], &plain)),
        ("double_tag", tagged(&[[0x88, 0xa8, 0, 200], [0x81, 0, 0, 100]], &plain)),
        ("tags_40", tagged(&[[0x81, 0, 0, 0]; 40], &plain)),
        ("padded", [&plain[..], &[0x55; 13]].concat()),
        ("cut_short", plain[..33].to_vec()),
        ("lldp", ethernet(0x88cc, &[2, 7, 4, 2, 0, 0, 0, 0, 0x10])),
        ("isis", ethernet(40, &[0xfe, 0xfe, 3, 0x83])),
    ]
}

fn with_broadcast(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].fill(0xff);
    frame
}
