//! A frame generator in the kernel: frames sent out of a device by BPF_PROG_RUN with live frames (kernel 5.18).
//!
//! The fastest way to load a veth: no buffer of ours is touched per frame, so one core offers many times what a socket can. The
//! program itself keeps the rate, since each call costs milliseconds to set up: it looks at the clock for every frame of the run,
//! sends it when one is due and drops it when none is. The other end receives such frames only with a native XDP program or
//! GRO on (veth's `ndo_xdp_xmit`). For benchmarks; needs CAP_NET_ADMIN and CAP_BPF. Owner thread: whichever sends; it must be in
//! the network namespace of the device.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::bpf::{self, Instruction};
use super::device::Device;

/// Frames that the kernel makes, and sends on, at a time.
const BATCH: u32 = 64;
/// How far a kind may be behind its time and still catch up, nanoseconds: a batch or two at full rate.
const SLACK: i32 = 50_000;
const PROGRAM_NAME: &str = "ferrule_live";

/// One kind of frame to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// Its bytes, Ethernet header first, no CRC, shorter than a page.
    pub frame: &'a [u8],
    /// Nanoseconds from one to the next, at most 2^31; 0 is as fast as the kernel can, and leaves nothing to the kinds after it.
    pub interval: u32,
}

/// Sends frames out of one device.
#[derive(Debug)]
pub struct LiveFrames {
    program: OwnedFd,
    first: Vec<u8>,
}

impl LiveFrames {
    /// Loads the program that sends these kinds of frames, all of one length, out of `device`. Earlier ones come first where
    /// several are due.
    ///
    /// # Errors
    /// `InvalidInput` for frames of several lengths or none at all; `EPERM` without the capabilities; what the verifier says.
    pub fn to(device: &Device, kinds: &[Kind<'_>]) -> io::Result<LiveFrames> {
        let Some(first) = kinds.first().map(|kind| kind.frame) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no frame to send"));
        };
        if kinds.iter().any(|kind| kind.frame.len() != first.len())
            || kinds.iter().any(|k| k.interval > i32::MAX as u32)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "frames of several lengths, or too far apart"));
        }
        let memory = bpf::create_memory(PROGRAM_NAME, 8 * kinds.len() as u32)?;
        let instructions = instructions(device.ifindex, kinds, memory.as_fd());
        let program = bpf::load_program(PROGRAM_NAME, &instructions, false)?;
        Ok(LiveFrames { program, first: first.to_vec() })
    }

    /// Makes `count` frames, and sends those that are due: all of them where the first kind has no interval. Returns how long it took,
    /// nanoseconds. What a full device drops shows in its counters only.
    ///
    /// # Errors
    /// `EINVAL` for a frame without an Ethernet header, or of more than a page; `EINTR` on a signal.
    pub fn run(&self, count: u32) -> io::Result<u64> {
        bpf::run_live(self.program.as_fd(), &self.first, count, BATCH)
    }
}

const PLAIN: Instruction = Instruction { code: 0, registers: 0, offset: 0, immediate: 0 };

/// Instructions of RFC 9669, as far as they are needed here. Registers: 6 context, 7 memory (the time at which each kind is due),
/// 8 time now.
fn instructions(ifindex: u32, kinds: &[Kind<'_>], memory: BorrowedFd<'_>) -> Vec<Instruction> {
    const PSEUDO_MAP_VALUE: u8 = 2;
    const KTIME_GET_NS: i32 = 5;
    const REDIRECT: i32 = 23;
    const XDP_DROP: i32 = 1;
    let two = |destination: u8, source: u8| source << 4 | destination;
    let set = |register: u8, immediate: i32| Instruction { code: 0xb7, registers: register, immediate, ..PLAIN };
    let copy = |to: u8, from: u8| Instruction { code: 0xbf, registers: two(to, from), ..PLAIN };
    let add = |register: u8, immediate: i32| Instruction { code: 0x07, registers: register, immediate, ..PLAIN };
    let call = |helper: i32| Instruction { code: 0x85, immediate: helper, ..PLAIN };
    let load =
        |code: u8, to: u8, from: u8, offset: i16| Instruction { code, registers: two(to, from), offset, ..PLAIN };
    let exit = Instruction { code: 0x95, ..PLAIN };
    let (load_word, load_double, store_double, store_half_immediate) = (0x61, 0x79, 0x7b, 0x6a);
    let (jump_less, jump_not_less, jump_greater) = (0xad, 0x3d, 0x2d);

    let mut program = vec![
        copy(6, 1),
        Instruction { code: 0x18, registers: two(7, PSEUDO_MAP_VALUE), immediate: memory.as_raw_fd(), ..PLAIN },
        PLAIN,
        call(KTIME_GET_NS),
        copy(8, 0),
    ];
    for (number, kind) in kinds.iter().enumerate() {
        let due = 8 * number as i16;
        // Frames are recycled as the run before left them, so each kind writes all words in which the kinds differ.
        let words = differing(kinds).into_iter().map(|at| Instruction {
            code: store_half_immediate,
            registers: 2,
            offset: at as i16,
            immediate: i32::from(u16::from_le_bytes([kind.frame[at], kind.frame[at + 1]])),
        });
        let mut send =
            vec![load(load_word, 2, 6, 0), load(load_word, 3, 6, 4), copy(4, 2), add(4, kind.frame.len() as i32)];
        let words: Vec<Instruction> = words.collect();
        // A frame too short to be one of ours is dropped: it cannot be, but the verifier wants to see it.
        send.push(load(jump_greater, 4, 3, words.len() as i16 + 4));
        send.extend(words);
        send.extend([set(1, ifindex as i32), set(2, 0), call(REDIRECT), exit, set(0, XDP_DROP), exit]);
        if kind.interval > 0 {
            program.extend([
                load(load_double, 1, 7, due),
                // Not yet: on to the next kind.
                load(jump_less, 8, 1, 5 + send.len() as i16),
                copy(2, 8),
                add(2, -SLACK),
                load(jump_not_less, 1, 2, 1),
                copy(1, 2),
                add(1, kind.interval as i32),
                load(store_double, 7, 1, due),
            ]);
            // The jump above passes over what is between it and the end of `send`.
            let jump = program.len() - 7;
            program[jump].offset = (6 + send.len()) as i16;
        }
        program.extend(send);
        if kind.interval == 0 {
            break;
        }
    }
    // The verifier refuses what can never be reached.
    if kinds.iter().all(|kind| kind.interval > 0) {
        program.extend([set(0, XDP_DROP), exit]);
    }
    program
}

/// Where the 16-bit words lie in which frames of the kinds differ; an odd last byte counts with the one before it.
fn differing(kinds: &[Kind<'_>]) -> Vec<usize> {
    let first = kinds[0].frame;
    let last = first.len().saturating_sub(2);
    let starts = (0..first.len()).step_by(2).map(|at| at.min(last));
    starts.filter(|at| kinds.iter().any(|kind| kind.frame[*at..at + 2] != first[*at..at + 2])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_differ_are_found_and_no_others() {
        let (a, b) = ([0, 1, 2, 3, 4, 5, 6], [0, 1, 9, 3, 4, 5, 7]);
        let kind = |frame| Kind { frame, interval: 1 };
        assert_eq!(differing(&[kind(&a), kind(&b)]), [2, 5]);
        assert!(differing(&[kind(&a)]).is_empty());
    }

    /// Every jump lands inside the program, at its end or on the first instruction of the next kind.
    #[test]
    fn jumps_land_where_a_block_begins() {
        let (a, b) = ([7; 60], [8; 60]);
        let kinds = [Kind { frame: &a, interval: 300 }, Kind { frame: &b, interval: 0 }];
        let file = std::fs::File::open("/dev/null").unwrap();
        let program = instructions(3, &kinds, file.as_fd());
        let target = |at: usize| (at as i64 + 1 + i64::from(program[at].offset)) as usize;
        let jumps: Vec<usize> =
            (0..program.len()).filter(|at| [0xad, 0x3d, 0x2d].contains(&program[*at].code)).collect();
        assert_eq!(jumps.len(), 4);
        let next = target(jumps[0]);
        assert_eq!((program[next].code, program[next - 1].code), (0x61, 0x95), "the next kind's first instruction");
        assert_eq!(program[target(jumps[1])].immediate, 300, "the interval is added in any case");
        for jump in [jumps[2], jumps[3]] {
            assert_eq!((program[target(jump)].code, program[target(jump)].immediate), (0xb7, 1), "a drop");
        }
    }
}
