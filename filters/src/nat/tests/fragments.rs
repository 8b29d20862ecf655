//! Fragments follow their first one.

use super::*;

/// A datagram cut in three.
fn cut(whole: &[u8], at: [usize; 2]) -> Vec<Vec<u8>> {
    let payload = &whole[20..];
    let ends = [at[0], at[1], payload.len()];
    (0..3)
        .map(|i| {
            let from = if i == 0 { 0 } else { ends[i - 1] };
            let mut piece = [&whole[..20], &payload[from..ends[i]]].concat();
            let len = piece.len() as u16;
            piece[2..4].copy_from_slice(&len.to_be_bytes());
            let word = (from / 8) as u16 | if i < 2 { 0x2000 } else { 0 };
            piece[6..8].copy_from_slice(&word.to_be_bytes());
            piece[10..12].fill(0);
            let check = checksum(&piece[..20]);
            piece[10..12].copy_from_slice(&check.to_be_bytes());
            piece
        })
        .collect()
}

/// Puts fragments together again.
fn joined(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut whole = pieces[0][..20].to_vec();
    pieces.iter().for_each(|p| whole.extend(&p[20..]));
    let len = whole.len() as u16;
    whole[2..4].copy_from_slice(&len.to_be_bytes());
    whole[6..8].fill(0);
    whole[10..12].fill(0);
    let check = checksum(&whole[..20]);
    whole[10..12].copy_from_slice(&check.to_be_bytes());
    whole
}

fn long_udp(source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
    let data: Vec<u8> = (0..100).collect();
    let head = [source.1.to_be_bytes(), destination.1.to_be_bytes(), 108u16.to_be_bytes(), [0, 0]].concat();
    packet(source.0, destination.0, 17, &[head, data].concat())
}

#[test]
fn all_go_where_the_first_goes() {
    let mut rig = rig(NatConfig { same_ports: true, deny_in: true, ..config() });
    let out: Vec<_> = cut(&long_udp((HOST, 700), (PEER, 53)), [16, 40]).iter().map(|p| rig.out(p).unwrap()).collect();
    let whole = joined(&out);
    assert_sums(&whole);
    assert_eq!(ends(&whole), at((ALIAS, 700), (PEER, 53)));
    let answer = cut(&long_udp((PEER, 53), (ALIAS, 700)), [8, 88]);
    let back: Vec<_> = answer.iter().map(|p| rig.back(p).unwrap()).collect();
    let whole = joined(&back);
    assert_sums(&whole);
    assert_eq!(ends(&whole), at((PEER, 53), (HOST, 700)));
    assert_eq!(rig.nat.links().fragment, 2);
    rig.now += 11 * SECOND;
    assert_eq!(rig.back(&answer[1]), None, "ten seconds later nobody remembers");
    assert_eq!(rig.dropped(DropCause::UnresolvedFragment), 1);
}

#[test]
fn without_a_first_they_go_out_by_address_and_not_in() {
    let mut rig = rig(config());
    let pieces = cut(&long_udp((HOST, 700), (PEER, 53)), [16, 40]);
    assert_eq!(rig.out(&pieces[2]).unwrap()[12..16], ip(ALIAS).octets());
    let pieces = cut(&long_udp((PEER, 53), (ALIAS, 700)), [16, 40]);
    assert_eq!(rig.back(&pieces[1]), None);
    // Behind a first one that is for the host itself they pass.
    assert_eq!(rig.back(&pieces[0]).unwrap(), pieces[0]);
    assert_eq!(rig.back(&pieces[1]).unwrap(), pieces[1]);
}

#[test]
fn deny_in_holds_for_them_all() {
    let mut rig = rig(NatConfig { deny_in: true, ..config() });
    let pieces = cut(&long_udp((PEER, 53), (ALIAS, 700)), [16, 40]);
    assert!(pieces.iter().all(|p| rig.back(p).is_none()));
    assert_eq!((rig.dropped(DropCause::Denied), rig.dropped(DropCause::UnresolvedFragment)), (1, 2));
}

#[test]
fn a_fragment_keeps_its_identification_for_the_hash() {
    let mut rig = rig(config());
    let pieces = cut(&long_udp((HOST, 700), (PEER, 53)), [16, 40]);
    let hashes: Vec<u32> = pieces
        .iter()
        .map(|piece| {
            let mut packet = rig.parsed(piece, Offload::NONE);
            let before = ferrule_dataplane::packet::hash::of(SEED, &mut packet);
            assert_eq!(rig.nat.translate(&mut packet, Direction::Out, rig.now, |_| None), Translation::Translated);
            assert!(!packet.flags.has(Flags::HASHED));
            let after = ferrule_dataplane::packet::hash::of(SEED, &mut packet);
            assert_ne!(before, after);
            let bytes = rig.finish(packet);
            let mut fresh = rig.parsed(&bytes, Offload::NONE);
            assert_eq!(after, ferrule_dataplane::packet::hash::of(SEED, &mut fresh), "as if received so");
            rig.pool.free(fresh.frame);
            after
        })
        .collect();
    assert!(hashes.iter().all(|h| *h == hashes[0]), "translated fragments still meet");
}
