//! The floor: what one core needs at least to take packets from one ring to another, looked up and rewritten.
//!
//! One pass per packet over the same packet memory as the gateway's, the header prefetched eight packets ahead: EtherType and IHL,
//! header checksum, TTL, DIR-24-8 look-up, TTL decrement with the incremental checksum (RFC 1624), both MAC addresses, a descriptor
//! on the output ring. No filters, no ICMP, no accounting, no IPv6.
//!
//! [`Reference`] is an independent program that does the same, where the project's shared directory has it: our own floor is only
//! as honest as it agrees with that one.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

use ferrule::compare::rig::Random;
use ferrule::failure::Failure;
use ferrule_dataplane::arena::{Arena, Frame, HEADER_WINDOW, HugePages, Pool};
use ferrule_dataplane::clock;
use ferrule_dataplane::packet::checksum;

const AHEAD: usize = 8;
const OUT_RING: usize = 2048;
const HOPS: u16 = 64;
const GROUPS: usize = 256;
const GROUP: u16 = 0x8000;
const TOP: usize = 1 << 24;

/// The look-up table: an entry below [`GROUP`] is a next hop, above it a group of 256 entries for the last byte.
pub struct Table {
    top: Box<[u16]>,
    groups: Vec<[u16; 256]>,
    hops: Vec<[u8; 12]>,
}

impl Table {
    /// Every /24 has one of 64 next hops; 256 of them have longer prefixes.
    pub fn new(random: &mut Random) -> Table {
        let hop = |i: usize| 1 + (i % usize::from(HOPS)) as u16;
        let mut top: Box<[u16]> = (0..TOP).map(hop).collect();
        for group in 0..GROUPS {
            top[random.below(TOP)] = GROUP | group as u16;
        }
        let groups = (0..GROUPS).map(|group| std::array::from_fn(|i| hop(group + i))).collect();
        Table { top, groups, hops: vec![[2; 12]; usize::from(HOPS) + 1] }
    }

    #[inline(always)]
    fn look_up(&self, destination: u32) -> usize {
        let entry = self.top[(destination >> 8) as usize];
        if entry & GROUP == 0 {
            return usize::from(entry);
        }
        usize::from(self.groups[usize::from(entry & !GROUP)][(destination & 255) as usize])
    }
}

/// Frames to be forwarded, and where their descriptors go.
pub struct Floor {
    frames: Vec<Frame>,
    output: Box<[u64; OUT_RING]>,
    _arena: std::sync::Arc<Arena>,
}

impl Floor {
    /// So many frames, a power of two, `stride` bytes apart.
    ///
    /// # Errors
    /// When memory cannot be had.
    pub fn new(frames: usize, stride: usize, shuffled: bool, random: &mut Random) -> Result<Floor, Failure> {
        let failed = |e: std::io::Error| Failure::runtime(format!("memory for the floor: {e}"));
        let arena = Arena::new(frames as u32, stride, HugePages::Prefer).map_err(failed)?;
        let mut pool = Pool::split(&arena, 1).remove(0);
        let mut all: Vec<Frame> = std::iter::from_fn(|| pool.alloc()).take(frames).collect();
        if all.len() != frames || !frames.is_power_of_two() {
            return Err(Failure::runtime(format!("{} of {frames} buffers for the floor", all.len())));
        }
        all.sort_by_key(Frame::buffer);
        if shuffled {
            random.shuffle(&mut all);
        }
        Ok(Floor { frames: all, output: Box::new([0; OUT_RING]), _arena: arena })
    }

    /// Has every frame written; see [`ferrule::compare::rig::Rig::fill`].
    pub fn fill(&mut self, mut write: impl FnMut(&mut [u8; HEADER_WINDOW]) -> usize) {
        for frame in &mut self.frames {
            let len = write(frame.header_mut());
            assert!(frame.set_len(len), "the smallest frame fits in a buffer");
        }
    }

    /// Forwards every frame once; TSC cycles per packet.
    ///
    /// # Errors
    /// When not all were forwarded: the TTL is used up.
    pub fn round(&mut self, table: &Table) -> Result<f64, Failure> {
        let start = clock::cycles();
        let sent = forward(&mut self.frames, &mut self.output, table);
        let cycles = clock::cycles().wrapping_sub(start);
        if sent != self.frames.len() {
            return Err(Failure::runtime(format!("the floor forwarded {sent} of {} frames", self.frames.len())));
        }
        black_box(&self.output);
        Ok(cycles as f64 / sent as f64)
    }
}

#[inline(never)]
fn forward(frames: &mut [Frame], output: &mut [u64; OUT_RING], table: &Table) -> usize {
    let mut sent = 0;
    for i in 0..frames.len() {
        if let Some(later) = frames.get(i + AHEAD) {
            later.prefetch();
        }
        let frame = &mut frames[i];
        let (buffer, len) = (frame.buffer(), frame.seg_len());
        let header = frame.header_mut();
        let ipv4 = u32::from_be_bytes([0, header[12], header[13], header[14]]) == 0x0008_0045;
        let Some(ip) = header[14..].first_chunk::<20>() else { continue };
        if !ipv4 || len < 34 || !checksum::ipv4_header_is_valid(ip) || ip[8] <= 1 {
            continue;
        }
        let hop = table.look_up(u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]));
        if hop == 0 {
            continue;
        }
        header[22] -= 1;
        // The TTL is the high byte of its word: one less there is 0x0100 less, and so as much more in the sum.
        let sum = u32::from(u16::from_ne_bytes([header[24], header[25]])) + u32::from(u16::from_ne_bytes([1, 0]));
        let sum = if sum == 0xffff { 0 } else { (sum + (sum >> 16)) as u16 };
        header[24..26].copy_from_slice(&sum.to_ne_bytes());
        header[..12].copy_from_slice(&table.hops[hop]);
        output[sent % OUT_RING] = u64::from(buffer) << 32 | len as u64;
        sent += 1;
    }
    sent
}

/// A run of the reference floor: cycles per packet by case, in the order of [`crate::path::CASES`].
pub struct Reference {
    program: PathBuf,
}

/// Where a measurement beside the reference floor counts, hot (TSC cycles per packet).
pub const HONEST: std::ops::RangeInclusive<f64> = 9.4..=11.0;

impl Reference {
    /// Builds the program in `directory`; the reason where it cannot be.
    pub fn build(directory: &Path) -> Result<Reference, String> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let given = std::env::var_os("FERRULE_FLOOR").map(PathBuf::from);
        let places =
            given.into_iter().chain(["../shared", "../../shared"].map(|place| here.join(place).join("floor.rs")));
        let source = places.into_iter().find(|path| path.is_file()).ok_or(
            "shared/floor.rs is not beside this checkout (FERRULE_FLOOR names another place); only our own floor counts",
        )?;
        let program = directory.join("floor");
        let mut compiler = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        compiler.args(["-O", "-C", "target-cpu=native", "--edition", "2021", "-A", "warnings", "-o"]);
        let done = compiler.arg(&program).arg(&source).output().map_err(|e| format!("rustc: {e}"))?;
        if done.status.success() {
            return Ok(Reference { program });
        }
        Err(format!("{} does not compile: {}", source.display(), String::from_utf8_lossy(&done.stderr)))
    }

    /// Runs it on the core that this thread is pinned to.
    ///
    /// # Errors
    /// When it fails, or says what cannot be understood.
    pub fn run(&self) -> Result<Vec<f64>, Failure> {
        let failed = |why: String| Failure::runtime(format!("shared/floor.rs: {why}"));
        let done = Command::new(&self.program).arg("--json").output().map_err(|e| failed(e.to_string()))?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        if !done.status.success() {
            return Err(failed(String::from_utf8_lossy(&done.stderr).into_owned()));
        }
        let median = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["median"].as_f64();
        text.lines().map(|line| median(line).ok_or_else(|| failed(format!("{line:?} has no median")))).collect()
    }
}
