#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::*;
use crate::forward::testing::*;
use crate::packet::checksum::{checksum, is_valid};
use crate::packet::{Family, PortId};

/// A UDP datagram to be cut, with these IPv4 options (padded), identification and fragment word.
fn datagram(payload: &[u8], options: &[u8], id: u16, word: u16) -> Vec<u8> {
    let mut bytes = udp_v4(payload);
    let padded: Vec<u8> = options.iter().copied().chain([0; 3]).take(options.len().next_multiple_of(4)).collect();
    bytes[14] = 0x45 + (padded.len() / 4) as u8;
    bytes.splice(34..34, padded.iter().copied());
    let total = (bytes.len() - 14) as u16;
    bytes[16..18].copy_from_slice(&total.to_be_bytes());
    bytes[18..20].copy_from_slice(&id.to_be_bytes());
    bytes[20..22].copy_from_slice(&word.to_be_bytes());
    set_checksum(&mut bytes);
    bytes
}

fn set_checksum(bytes: &mut [u8]) {
    let header = 14 + usize::from(bytes[14] & 15) * 4;
    bytes[24..26].fill(0);
    let check = checksum(&bytes[14..header]);
    bytes[24..26].copy_from_slice(&check.to_ne_bytes());
}

/// One piece as a receiver sees it.
struct Piece {
    bytes: Vec<u8>,
    header: usize,
    offset: usize,
    more: bool,
}

impl Piece {
    fn options(&self) -> &[u8] {
        &self.bytes[34..14 + self.header]
    }

    fn payload(&self) -> &[u8] {
        &self.bytes[14 + self.header..]
    }
}

fn read(bytes: Vec<u8>, mtu: usize) -> Piece {
    let header = usize::from(bytes[14] & 15) * 4;
    assert!(bytes.len() - 14 <= mtu, "{} > {mtu}", bytes.len() - 14);
    assert!(is_valid(&bytes[14..14 + header]), "header checksum");
    assert_eq!(usize::from(u16::from_be_bytes([bytes[16], bytes[17]])), bytes.len() - 14, "total length");
    let word = u16::from_be_bytes([bytes[20], bytes[21]]);
    assert_eq!(word & 0xc000, 0);
    // etherparse reads it as the same fragment.
    let parsed = etherparse::Ipv4HeaderSlice::from_slice(&bytes[14..]).unwrap().to_header();
    assert_eq!(usize::from(parsed.fragment_offset.byte_offset()), usize::from(word & 0x1fff) * 8);
    assert_eq!(parsed.more_fragments, word & MORE != 0);
    Piece { header, offset: usize::from(word & 0x1fff) * 8, more: word & MORE != 0, bytes }
}

/// Cuts a frame; checks pieces one by one and the count.
fn cut(bench: &mut Bench, bytes: &[u8], mtu: usize) -> Vec<Piece> {
    bench.shared.ports.get(PortId(0)).unwrap().set_mtu(65_535);
    let packet = bench.packet(bytes);
    assert_eq!(packet.verdict(), crate::verdict::Verdict::Forward);
    let pieces = cut_packet(bench, packet, mtu).into_iter().map(|(bytes, piece)| {
        bench.pool.free(piece.frame);
        read(bytes, mtu)
    });
    let pieces = pieces.collect();
    bench.assert_no_leak();
    pieces
}

fn cut_packet(bench: &mut Bench, packet: Packet, mtu: usize) -> Vec<(Vec<u8>, Packet)> {
    let before = bench.generated(Generated::Fragment);
    let mut out = Vec::with_capacity(64);
    bench.run(|context| fragment(packet, mtu, context, &mut out));
    let out: Vec<_> = out.into_iter().map(|piece| (bench.take(&piece), piece)).collect();
    assert_eq!(bench.generated(Generated::Fragment) - before, out.len() as u64);
    out
}

fn reassemble(pieces: &[Piece]) -> Vec<u8> {
    let mut payload = Vec::new();
    let first = pieces[0].offset;
    for piece in pieces {
        assert_eq!(first + payload.len(), piece.offset, "in order, without gap or overlap");
        payload.extend_from_slice(piece.payload());
    }
    payload
}

#[test]
fn an_ethernet_packet_over_a_smaller_link() {
    let mut bench = Bench::new();
    let payload: Vec<u8> = (0..1472u32).map(|i| (i * 31) as u8).collect();
    let original = datagram(&payload, &[], 0x1234, 0);
    let pieces = cut(&mut bench, &original, 576);
    // (576 - 20) & !7 = 552 bytes each.
    let shape: Vec<_> = pieces.iter().map(|p| (p.offset, p.payload().len(), p.more)).collect();
    assert_eq!(shape, [(0, 552, true), (552, 552, true), (1104, 376, false)]);
    for piece in &pieces {
        assert_eq!(piece.bytes[..14], original[..14], "Ethernet header as it stands");
        assert_eq!((&piece.bytes[18..20], piece.bytes[22], piece.bytes[23]), (&[0x12, 0x34][..], 9, 17));
        assert_eq!(piece.bytes[26..34], original[26..34]);
    }
    assert_eq!(reassemble(&pieces), original[34..]);
    assert_eq!(bench.consumed(Consumed::Fragmented), 1);
    assert_eq!(bench.generated(Generated::Fragment), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pieces_make_up_the_packet(
        size in 0usize..9000, mtu in 68usize..4000, id: u16, options in 0usize..=40, offset in 0u16..4000, more: bool,
    ) {
        let mut bench = Bench::new();
        let word = if more { MORE } else { 0 } | offset;
        // A fragment that is not the last has a multiple of eight bytes.
        let size = if more { size & !7 } else { size };
        let payload: Vec<u8> = (0..size).map(|i| (i ^ (i >> 8)) as u8).collect();
        let kinds = [1, 0x94, 4, 0, 0, 0x44, 8, 5, 0, 0, 0, 0, 0, 7, 7, 4, 0, 0, 0, 0, 0x88, 4, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        // Cut where an option ends.
        let cut_at = [0, 1, 5, 13, 20, 24, 32, 40].into_iter().rfind(|n| *n <= options).unwrap();
        let original = datagram(&payload, &kinds[..cut_at], id, word);
        let header = usize::from(original[14] & 15) * 4;
        let per_piece = (mtu - header) & !7;
        prop_assume!((original.len() - 14 - header).div_ceil(per_piece) < 40);
        let pieces = cut(&mut bench, &original, mtu);
        prop_assert!(!pieces.is_empty());
        prop_assert_eq!(reassemble(&pieces), original[14 + header..].to_vec());
        prop_assert_eq!(pieces[0].offset, usize::from(offset) * 8);
        prop_assert_eq!(pieces[0].options(), &original[34..14 + header]);
        let last = pieces.len() - 1;
        for (i, piece) in pieces.iter().enumerate() {
            prop_assert_eq!(piece.more, more || i != last);
            prop_assert!(i == last || piece.payload().len().is_multiple_of(8));
        }
        // Router alert (148) and stream id (136) have the copied flag; time stamp (68) and record route (7) do not.
        if cut_at >= 24 && pieces.len() > 1 {
            prop_assert_eq!(pieces[1].options(), &[0x94, 4, 0, 0, 0x88, 4, 1, 2]);
        }
    }
}

#[test]
fn options_without_the_copied_flag_stay_with_the_first_piece() {
    let mut bench = Bench::new();
    // No-operation, record route (7), router alert (148), end of list.
    let options = [1, 7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0];
    let original = datagram(&[5; 1000], &options, 9, 0);
    let pieces = cut(&mut bench, &original, 532);
    assert_eq!(pieces.len(), 3);
    assert_eq!(pieces[0].options(), options);
    assert_eq!((pieces[1].options(), pieces[2].options()), (&[148, 4, 0, 0][..], &[148, 4, 0, 0][..]));
    let only_first = datagram(&[5; 1000], &[7, 7, 4, 0, 0, 0, 0], 9, 0);
    let pieces = cut(&mut bench, &only_first, 532);
    assert_eq!((pieces[0].header, pieces[1].header), (28, 20));
}

#[test]
fn descriptors_tell_what_the_parser_would_find() {
    let mut bench = Bench::new();
    let original = datagram(&[5; 1000], &[148, 4, 0, 0], 0xbeef, 0);
    let mut packet = bench.packet(&original);
    (packet.egress, packet.tag, packet.mark) = (PortId(1), 3, 4);
    let pieces = cut_packet(&mut bench, packet, 532);
    assert_eq!(pieces.len(), 2);
    for (i, (bytes, piece)) in pieces.into_iter().enumerate() {
        let parsed = bench.packet(&bytes);
        assert_eq!(parsed.verdict(), crate::verdict::Verdict::Forward);
        assert_eq!(piece.flags, parsed.flags.with(Flags::GENERATED), "piece {i}");
        assert_eq!(
            (piece.l4, piece.protocol, piece.source_port, piece.destination_port, piece.hash, piece.family),
            (parsed.l4, parsed.protocol, parsed.source_port, parsed.destination_port, 0xbeef, Family::V4)
        );
        assert_eq!((piece.ingress, piece.egress, piece.tag, piece.mark), (PortId(0), PortId(1), 3, 4));
        bench.pool.free(parsed.frame);
        bench.pool.free(piece.frame);
    }
    bench.assert_no_leak();
}

#[test]
fn a_partial_checksum_is_completed_before_the_cut() {
    let mut bench = Bench::new();
    for flagged in [true, false] {
        let original = datagram(&[0xa5; 1400], &[], 1, 0);
        let mut packet = bench.packet(&original);
        // The field as a local stack leaves it: the pseudo-header sum.
        let h = packet.frame.header();
        let (s, d): ([u8; 4], [u8; 4]) = (h[26..30].try_into().unwrap(), h[30..34].try_into().unwrap());
        let sum = checksum::fold(checksum::pseudo_v4(s, d, 17, 1408));
        packet.frame.header_mut()[40..42].copy_from_slice(&sum.to_ne_bytes());
        if flagged {
            (packet.offload.csum_start, packet.offload.csum_offset) = (34, 6);
        } else {
            packet.flags.set(Flags::MAYBE_PARTIAL);
        }
        let pieces: Vec<_> = cut_packet(&mut bench, packet, 576)
            .into_iter()
            .map(|(bytes, p)| {
                assert!(!p.offload.is_partial() && !p.flags.has(Flags::MAYBE_PARTIAL));
                bench.pool.free(p.frame);
                read(bytes, 576)
            })
            .collect();
        assert_eq!(reassemble(&pieces), original[34..]);
    }
    let mut packet = bench.packet(&datagram(&[0; 1000], &[], 1, 0));
    packet.offload.csum_start = 5000;
    assert!(cut_packet(&mut bench, packet, 576).is_empty());
    assert_eq!(bench.dropped(DropReason::TransportTruncated), 1);
    bench.assert_no_leak();
}

#[test]
fn too_few_buffers_send_nothing() {
    let mut bench = Bench::new();
    let original = datagram(&[1; 1400], &[], 1, 0);
    for left in 0..3 {
        let packet = bench.packet(&original);
        let taken: Vec<_> =
            std::iter::from_fn(|| (bench.pool.available() > left).then(|| bench.pool.alloc())).flatten().collect();
        let mut out = Vec::with_capacity(64);
        bench.run(|context| fragment(packet, 576, context, &mut out));
        assert_eq!((out.len(), bench.generated(Generated::Fragment), bench.consumed(Consumed::Fragmented)), (0, 0, 0));
        taken.into_iter().for_each(|frame| bench.pool.free(frame));
        bench.assert_no_leak();
    }
    let packet = bench.packet(&original);
    bench.run(|context| fragment(packet, 576, context, &mut Vec::with_capacity(2)));
    assert_eq!((bench.dropped(DropReason::NoBuffer), bench.generated(Generated::Fragment)), (4, 0));
    assert_eq!(cut(&mut bench, &original, 576).len(), 3);
}

#[test]
fn what_may_not_be_cut_is_dropped_as_too_long() {
    let mut bench = Bench::new();
    let forbidden = bench.packet(&datagram(&[1; 1400], &[], 1, 0x4000));
    let v6 = bench.packet(&udp_v6(&[1; 1400]));
    let mut super_packet = bench.packet(&datagram(&[1; 1400], &[], 1, 0));
    (super_packet.offload.gso_kind, super_packet.offload.gso_size) = (GsoKind::Udp, 700);
    let small = bench.packet(&datagram(&[1; 1400], &[7, 39, 4, 0], 1, 0));
    for (i, (packet, mtu)) in [(forbidden, 576), (v6, 1280), (super_packet, 576), (small, 27)].into_iter().enumerate() {
        let mut out = Vec::with_capacity(64);
        bench.run(|context| fragment(packet, mtu, context, &mut out));
        assert!(out.is_empty());
        assert_eq!(bench.dropped(DropReason::FragmentationNeeded), i as u64 + 1);
    }
    bench.assert_no_leak();
}

#[test]
fn the_length_of_a_segment_counts_its_headers() {
    let mut bench = Bench::new();
    let mut tcp = Vec::new();
    etherparse::PacketBuilder::ethernet2(PEER.0, MAC_0.0)
        .ipv4(HOST_V4, FAR_V4, 9)
        .tcp(1, 2, 3, 4)
        .options(&[etherparse::TcpOptionElement::Timestamp(1, 2)])
        .unwrap()
        .write(&mut tcp, &[0; 1400])
        .unwrap();
    let mut packet = bench.packet(&tcp);
    assert_eq!(segment_len(&packet), 20 + 32 + 1400);
    (packet.offload.gso_kind, packet.offload.gso_size) = (GsoKind::TcpV4, 700);
    assert_eq!(segment_len(&packet), 20 + 32 + 700);
    packet.offload.gso_size = 5000;
    assert_eq!(segment_len(&packet), 20 + 32 + 1400, "never longer than the whole");
    bench.pool.free(packet.frame);
    let mut packet = bench.packet(&udp_v6(&[0; 1000]));
    (packet.offload.gso_kind, packet.offload.gso_size) = (GsoKind::Udp, 300);
    assert_eq!(segment_len(&packet), 40 + 8 + 300);
    bench.pool.free(packet.frame);
}
