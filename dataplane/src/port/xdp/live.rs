//! A frame generator in the kernel: copies of one frame, sent out of a device by BPF_PROG_RUN with live frames (kernel 5.18).
//!
//! The fastest way to load a veth: no buffer of ours is touched per frame, so one core offers many times what a socket can. The
//! other end receives them only with a native XDP program or GRO on (veth's `ndo_xdp_xmit`). For benchmarks; needs CAP_NET_ADMIN
//! and CAP_BPF. Owner thread: whichever sends; it must be in the network namespace of the device.

#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::bpf::{self, Instruction};
use super::device::Device;

/// Most frames that the kernel takes at a time (`TEST_XDP_MAX_BATCH`).
pub const BATCH_MAX: u32 = 256;

const PROGRAM_NAME: &str = "ferrule_live";

/// Sends frames out of one device.
#[derive(Debug)]
pub struct LiveFrames {
    program: OwnedFd,
}

impl LiveFrames {
    /// Loads the program that redirects to `device`.
    ///
    /// # Errors
    /// `EPERM` without the capabilities; what the kernel says where it is too old.
    pub fn to(device: &Device) -> io::Result<LiveFrames> {
        let program = bpf::load_program(PROGRAM_NAME, &instructions(device.ifindex), false)?;
        Ok(LiveFrames { program })
    }

    /// Sends `count` frames with the contents of `frame` (Ethernet header first, no CRC, shorter than a page), and returns when all are
    /// with the device. What a full device drops shows in its counters only.
    ///
    /// # Errors
    /// `EINVAL` for a frame without an Ethernet header, or of more than a page; `EINTR` on a signal.
    pub fn send(&self, frame: &[u8], count: u32) -> io::Result<()> {
        bpf::run_live(self.program.as_fd(), frame, count, count.clamp(1, BATCH_MAX))
    }
}

/// `return bpf_redirect(ifindex, 0)`.
fn instructions(ifindex: u32) -> [Instruction; 4] {
    const MOVE: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    const REDIRECT: i32 = 23;
    let plain = Instruction { code: 0, registers: 0, offset: 0, immediate: 0 };
    [
        Instruction { code: MOVE, registers: 1, immediate: ifindex as i32, ..plain },
        Instruction { code: MOVE, registers: 2, immediate: 0, ..plain },
        Instruction { code: CALL, immediate: REDIRECT, ..plain },
        Instruction { code: EXIT, ..plain },
    ]
}
