//! Runs against a software segmentation written from what the kernel does, byte by byte and with sums from scratch.

use proptest::prelude::*;

use super::merge::{MAX_FRAMES, Run, find};
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::packet::{GsoKind, Offload};
use crate::port::TxFrame;

const LONGEST: usize = 1514;

/// A flow whose frames may be merged.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub six: bool,
    /// Words of TCP options.
    pub options: usize,
    pub segment: usize,
    /// Payload of the last frame.
    pub last: usize,
    pub count: usize,
    pub push: bool,
    pub seed: u32,
}

fn flow() -> impl Strategy<Value = Flow> {
    (any::<bool>(), 0usize..11, 1usize..1400, any::<prop::sample::Index>(), 2usize..50, any::<bool>(), any::<u32>())
        .prop_map(|(six, options, segment, last, count, push, seed)| Flow {
            six,
            options,
            segment,
            last: 1 + last.index(segment),
            count,
            push,
            seed,
        })
}

impl Flow {
    pub fn transport(&self) -> usize {
        if self.six { 54 } else { 34 }
    }

    pub fn header_bytes(&self) -> usize {
        self.transport() + 20 + 4 * self.options
    }

    /// All frames, with right sums.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let mut state = self.seed | 1;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let t = self.transport();
        let mut headers: Vec<u8> = (0..self.header_bytes()).map(|_| random()).collect();
        headers[0] &= 0xfe;
        if self.six {
            headers[12..14].copy_from_slice(&[0x86, 0xdd]);
            headers[14] = 0x60 | headers[14] & 0xf;
            headers[20] = 6;
        } else {
            headers[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
            (headers[20], headers[21]) = (headers[20] & 0x40, 0);
            headers[23] = 6;
        }
        headers[t + 12] = ((5 + self.options) << 4) as u8 | headers[t + 12] & 0xf;
        headers[t + 13] = 0x10;
        headers[t + 18..t + 20].fill(0);
        let id = u16::from_be_bytes([headers[18], headers[19]]);
        let sequence = u32::from_be_bytes(headers[t + 4..t + 8].try_into().unwrap());
        (0..self.count)
            .map(|place| {
                let mut frame = headers.clone();
                let is_last = place + 1 == self.count;
                frame.extend((0..if is_last { self.last } else { self.segment }).map(|_| random()));
                if !self.six {
                    frame[18..20].copy_from_slice(&id.wrapping_add(place as u16).to_be_bytes());
                }
                let sequence = sequence.wrapping_add((place * self.segment) as u32);
                frame[t + 4..t + 8].copy_from_slice(&sequence.to_be_bytes());
                if is_last && self.push {
                    frame[t + 13] |= 0x08;
                }
                finish(&mut frame);
                frame
            })
            .collect()
    }
}

/// One's-complement sum the slow way.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(sum, |sum, word| {
        let sum = sum + u32::from(word[0]) * 256 + word.get(1).map_or(0, |low| u32::from(*low));
        (sum & 0xffff) + (sum >> 16)
    })
}

/// Sets lengths and sums of a frame from its bytes.
fn finish(frame: &mut [u8]) {
    let six = frame[12] == 0x86;
    let t = if six { 54 } else { 34 };
    let length = frame.len();
    let mut sum = 6 + (length - t) as u32;
    if six {
        frame[18..20].copy_from_slice(&((length - t) as u16).to_be_bytes());
        sum = add(sum, &frame[22..54]);
    } else {
        frame[16..18].copy_from_slice(&((length - 14) as u16).to_be_bytes());
        frame[24..26].fill(0);
        let header = !add(0, &frame[14..34]) as u16;
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        sum = add(sum, &frame[26..34]);
    }
    frame[t + 16..t + 18].fill(0);
    let check = !add(sum, &frame[t..]) as u16;
    frame[t + 16..t + 18].copy_from_slice(&check.to_be_bytes());
}

/// What the kernel makes of a TCP super-packet.
fn segment(packet: &[u8], header_bytes: usize, size: usize) -> Vec<Vec<u8>> {
    let t = if packet[12] == 0x86 { 54 } else { 34 };
    let (headers, payload) = packet.split_at(header_bytes);
    let count = payload.len().div_ceil(size);
    let id = u16::from_be_bytes([headers[18], headers[19]]);
    let sequence = u32::from_be_bytes(headers[t + 4..t + 8].try_into().unwrap());
    payload
        .chunks(size)
        .enumerate()
        .map(|(place, part)| {
            let mut frame = [headers, part].concat();
            if t == 34 {
                frame[18..20].copy_from_slice(&id.wrapping_add(place as u16).to_be_bytes());
            }
            frame[t + 4..t + 8].copy_from_slice(&sequence.wrapping_add((place * size) as u32).to_be_bytes());
            if place + 1 < count {
                frame[t + 13] &= !0x09;
            }
            finish(&mut frame);
            frame
        })
        .collect()
}

fn pool() -> Pool {
    Pool::split(&Arena::new(80, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
}

/// Lends the frames as a port gets them.
fn lend<T>(pool: &mut Pool, frames: &[Vec<u8>], work: impl FnOnce(&mut Vec<TxFrame>) -> T) -> T {
    let frame = |bytes: &Vec<u8>| TxFrame { frame: pool.frame_from(bytes).unwrap(), offload: Offload::NONE };
    let mut lent: Vec<TxFrame> = frames.iter().map(frame).collect();
    let result = work(&mut lent);
    lent.into_iter().for_each(|tx| pool.free(tx.frame));
    result
}

/// How many frames go as one.
fn merged(pool: &mut Pool, frames: &[Vec<u8>]) -> usize {
    lend(pool, frames, |lent| find(lent, LONGEST).map_or(0, |run| run.count))
}

/// The super-packet that is sent, and the virtio-net header's sizes.
fn super_packet(run: &Run, lent: &[TxFrame]) -> (Vec<u8>, usize, usize) {
    let (virtio, headers) = run.headers(lent);
    let packet = std::iter::once(&headers[..run.header_bytes]).chain(run.payloads(lent)).collect::<Vec<_>>().concat();
    assert!(virtio.needs_checksum() && virtio.offload(packet.len()).is_some());
    (packet, usize::from(virtio.header_length), usize::from(virtio.gso_size))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_merged_is_cut_to_the_same_frames(flow in flow()) {
        let frames = flow.frames();
        lend(&mut pool(), &frames, |lent| {
            let run = find(lent, LONGEST).unwrap();
            // All of them, unless they are more than 65,535 bytes.
            let all = flow.header_bytes() + (flow.count - 1) * flow.segment + flow.last;
            let room = (65_535 - flow.header_bytes()) / flow.segment;
            prop_assert_eq!(run.count, if all <= 65_535 { flow.count } else { room });
            let (packet, header_bytes, size) = super_packet(&run, lent);
            prop_assert!(packet.len() <= 65_535);
            prop_assert_eq!((header_bytes, size), (flow.header_bytes(), flow.segment));
            // The partial sum is that of the pseudo-header.
            let t = flow.transport();
            let addresses = if flow.six { 22..54 } else { 26..34 };
            let pseudo = add(add(6, &((packet.len() - t) as u16).to_be_bytes()), &packet[addresses]);
            prop_assert_eq!(u32::from(u16::from_be_bytes([packet[t + 16], packet[t + 17]])), pseudo);
            prop_assert_eq!(segment(&packet, header_bytes, size), &frames[..run.count]);
            Ok(())
        })?;
    }

    /// Any one bit of any frame, with the sums left as they are.
    #[test]
    fn one_wrong_bit_ends_the_run(flow in flow(), place in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>()) {
        let mut frames = flow.frames();
        let place = place.index(flow.count.min(8));
        let bit = bit.index(frames[place].len() * 8);
        frames[place][bit / 8] ^= 1 << (bit % 8);
        let expected = if place < 2 { 0 } else { place };
        prop_assert_eq!(merged(&mut pool(), &frames), expected, "bit {} of byte {} of frame {}", bit % 8, bit / 8, place);
    }

    /// Any one byte of the headers, with the sums made right again: only PSH may differ, and it ends the run.
    #[test]
    fn one_other_field_ends_the_run(flow in flow(), place in 1usize..8, at in any::<prop::sample::Index>(), with in 1u8..) {
        prop_assume!(flow.count > place);
        let mut frames = flow.frames();
        let at = at.index(flow.header_bytes());
        let t = flow.transport();
        let before = frames[place].clone();
        frames[place][at] ^= with;
        // A frame that is no longer IP and TCP of this shape has no sums to mend.
        if at >= 12 && !(12..15).contains(&at) && at != t + 12 {
            finish(&mut frames[place]);
        }
        prop_assume!(frames[place] != before);
        let only_push = frames[place][t + 13] & !0x08 == 0x10
            && frames[place].iter().zip(&before).enumerate().all(|(i, (a, b))| {
                a == b || i == t + 13 || (t + 16..t + 18).contains(&i)
            });
        let expected = if only_push { place + 1 } else if place < 2 { 0 } else { place };
        prop_assert_eq!(merged(&mut pool(), &frames), expected, "byte {} of frame {}", at, place);
    }
}

fn eight(six: bool) -> Flow {
    Flow { six, options: 3, segment: 1000, last: 1000, count: 8, push: false, seed: 7 }
}

#[test]
fn what_is_beside_the_headers_ends_the_run() {
    let mut pool = pool();
    for six in [false, true] {
        let flow = eight(six);
        assert_eq!(merged(&mut pool, &flow.frames()), 8);
        type Change = fn(&mut Vec<u8>);
        let changes: [(&str, Change, usize); 5] = [
            // A shorter one is the last; the next does not fit any more.
            (
                "shorter",
                |frame| {
                    frame.pop();
                    finish(frame)
                },
                4,
            ),
            (
                "longer",
                |frame| {
                    frame.push(1);
                    finish(frame)
                },
                3,
            ),
            ("padded", |frame| frame.push(0), 3),
            (
                "cut",
                |frame| {
                    frame.pop();
                },
                3,
            ),
            (
                "a VLAN tag",
                |frame| {
                    frame.splice(12..12, [0x81, 0, 0, 1]);
                },
                3,
            ),
        ];
        for (what, change, expected) in changes {
            let mut frames = flow.frames();
            change(&mut frames[3]);
            assert_eq!(merged(&mut pool, &frames), expected, "{what}");
        }
        // No payload.
        let mut frames = flow.frames();
        frames[3].truncate(flow.header_bytes());
        finish(&mut frames[3]);
        assert_eq!(merged(&mut pool, &frames), 3);
        // Left to the device.
        let partial = Offload { csum_start: flow.transport() as u16, csum_offset: 16, ..Offload::NONE };
        let large = Offload { gso_size: 1000, gso_kind: GsoKind::TcpV4, ..Offload::NONE };
        for offload in [partial, large] {
            for (place, expected) in [(0, 0), (1, 0), (3, 3)] {
                let count = lend(&mut pool, &flow.frames(), |lent| {
                    lent[place].offload = offload;
                    find(lent, LONGEST).map_or(0, |run| run.count)
                });
                assert_eq!(count, expected);
            }
        }
        // In two buffers, or longer than the link.
        let long = Flow { segment: 2500, last: 2500, ..flow.clone() };
        assert_eq!(lend(&mut pool, &long.frames(), |lent| find(lent, 9014)), None);
        assert_eq!(lend(&mut pool, &flow.frames(), |lent| find(lent, flow.header_bytes() + 999)), None);
        // One alone, or none.
        assert_eq!(merged(&mut pool, &flow.frames()[..1]), 0);
        assert_eq!(merged(&mut pool, &[]), 0);
    }
}

/// The other way to write a sum of zero adds up as well, but the kernel never writes it.
#[test]
fn a_sum_that_the_kernel_writes_otherwise_ends_the_run() {
    let mut pool = pool();
    for six in [false, true] {
        let flow = eight(six);
        let t = flow.transport();
        let mut frames = flow.frames();
        // A payload word takes up what the checksum field held.
        let field = [frames[3][t + 16], frames[3][t + 17]];
        let payload = flow.header_bytes();
        let word = add(add(0, &frames[3][payload..payload + 2]), &field);
        frames[3][payload..payload + 2].copy_from_slice(&(word as u16).to_be_bytes());
        finish(&mut frames[3]);
        assert_eq!(frames[3][t + 16..t + 18], [0, 0]);
        assert_eq!(merged(&mut pool, &frames), 8);
        frames[3][t + 16..t + 18].fill(0xff);
        assert_eq!(merged(&mut pool, &frames), 3);
    }
}

#[test]
fn a_run_has_bounds() {
    let mut pool = pool();
    let small = Flow { count: 70, segment: 10, last: 10, ..eight(false) };
    assert_eq!(merged(&mut pool, &small.frames()), MAX_FRAMES);
    // 44 times 1448 and 66 bytes of headers are 63,778; another would make 65,226, and the next 66,674.
    let full = Flow { count: 60, segment: 1448, last: 1448, ..eight(false) };
    assert_eq!(merged(&mut pool, &full.frames()), 45);
}
