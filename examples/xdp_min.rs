//! A minimal single-purpose AF_XDP forwarder: two devices, one thread, no routing, no checks.
//!
//! Every frame that comes in on one device goes out on the other with the given MAC addresses: nothing else is looked at. It
//! is the reference for the speed line "at least 0.95 of a minimal AF_XDP forwarder": same kernel interface, same ring
//! sizes, same shared UMEM, none of Ferrule's abstractions above the rings.
//!
//! ```text
//! cargo run --release --example xdp_min -- a1 c0 --to-a 02:00:00:00:00:0a --to-c 02:00:00:00:00:0c --cpu 1
//! ```

use std::error::Error;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::port::xdp::program::{Fragments, ModeChoice, Redirect, Unclaimed, claim_in};
use ferrule_dataplane::port::xdp::rings::{ConsumerRing, ProducerRing};
use ferrule_dataplane::port::xdp::sys::{self, RingKind, XskSocket};

/// Bytes of a buffer; the kernel leaves 256 of them before the frame.
const CHUNK: usize = 2048;
/// Buffers: both fill rings and both transmit rings can be full.
const BUFFERS: usize = 4 * RING as usize;
/// Entries of each ring.
const RING: u32 = 2048;
/// Frames taken in one go, and sent with one kick.
const BATCH: u32 = 64;
/// A queue stays busy for some 20 ms after its last socket was closed.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);

static STOP: AtomicBool = AtomicBool::new(false);

/// Forwards every frame between queue 0 of two devices.
#[derive(Parser)]
struct Arguments {
    /// One device.
    a: String,
    /// The other.
    c: String,
    /// Destination MAC of frames that go out on the first device.
    #[arg(long, value_parser = parse_mac)]
    to_a: [u8; 6],
    /// Destination MAC of frames that go out on the second device.
    #[arg(long, value_parser = parse_mac)]
    to_c: [u8; 6],
    /// Core to run on.
    #[arg(long)]
    cpu: Option<usize>,
    /// Stop after so many seconds (0: on SIGINT or SIGTERM only).
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Attach in generic mode.
    #[arg(long)]
    generic: bool,
}

fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| if byte.len() == 2 { u8::from_str_radix(byte, 16).ok() } else { None }).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| format!("{text:?} is no MAC address such as 02:00:00:00:00:01"))
}

/// The buffers: one mapping for the whole life of the process.
struct Memory {
    base: NonNull<u8>,
}

impl Memory {
    fn map() -> std::io::Result<Self> {
        // SAFETY: a new anonymous mapping touches no memory of ours; it is never unmapped.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BUFFERS * CHUNK,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        match NonNull::new(base) {
            Some(mapped) if base != libc::MAP_FAILED => Ok(Self { base: mapped.cast() }),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Overwrites both MAC addresses of the frame at `address`.
    #[inline]
    fn set_macs(&mut self, address: u64, macs: &[u8; 12]) {
        assert!(address as usize + macs.len() <= BUFFERS * CHUNK, "the kernel named a buffer that is none");
        // SAFETY: inside the mapping, as just checked; the frame was received and not yet sent, so the kernel does not use it.
        unsafe { self.base.add(address as usize).cast::<[u8; 12]>().write(*macs) };
    }
}

/// A device: program, socket, rings.
struct Side {
    rx: ConsumerRing<libc::xdp_desc>,
    fill: ProducerRing<u64>,
    tx: ProducerRing<libc::xdp_desc>,
    completion: ConsumerRing<u64>,
    socket: XskSocket,
    /// Destination and source of frames that go out here.
    macs: [u8; 12],
    forwarded: u64,
    name: String,
    _redirect: Redirect,
}

impl Side {
    fn open(
        name: &str,
        destination: [u8; 6],
        memory: &Memory,
        shared: Option<&Side>,
        mode: ModeChoice,
    ) -> Result<Self, Box<dyn Error>> {
        let device = Device::by_name(name).map_err(|error| format!("{name}: {error}"))?;
        let redirect = Redirect::attach(&device, device.receive_queues, mode, Unclaimed::Drop, Fragments::No)?;
        let socket = XskSocket::open()?;
        for kind in [RingKind::Fill, RingKind::Completion, RingKind::Receive, RingKind::Transmit] {
            socket.set_ring_size(kind, RING)?;
        }
        let flags = if shared.is_some() {
            0
        } else {
            let reg = libc::xdp_umem_reg {
                addr: memory.base.as_ptr() as u64,
                len: (BUFFERS * CHUNK) as u64,
                chunk_size: CHUNK as u32,
                headroom: 0,
                flags: 0,
                tx_metadata_len: 0,
            };
            // SAFETY: the mapping is never unmapped, and read through no reference.
            unsafe { socket.register_umem(&reg) }?;
            libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP
        };
        let started = Instant::now();
        while let Err(error) = socket.bind(device.ifindex, 0, flags, shared.map(|side| side.socket.as_fd())) {
            if error.raw_os_error() != Some(libc::EBUSY) || started.elapsed() > BUSY_PATIENCE {
                return Err(format!("{name}: cannot bind: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Err(error) = socket.set_transmit_budget(256) {
            eprintln!("{name}: 32 frames per kick ({error})");
        }
        socket.set_send_buffer(4 << 20)?;
        let side = Self {
            rx: ConsumerRing::from_mapping(socket.map_ring(RingKind::Receive, RING)?, RING),
            fill: ProducerRing::from_mapping(socket.map_ring(RingKind::Fill, RING)?, RING),
            tx: ProducerRing::from_mapping(socket.map_ring(RingKind::Transmit, RING)?, RING),
            completion: ConsumerRing::from_mapping(socket.map_ring(RingKind::Completion, RING)?, RING),
            socket,
            macs: {
                let mut macs = [0; 12];
                macs[..6].copy_from_slice(&destination);
                macs[6..].copy_from_slice(&device.mac);
                macs
            },
            forwarded: 0,
            name: name.to_string(),
            _redirect: redirect,
        };
        claim_in(side._redirect.map(), 0, side.socket.as_fd())?;
        println!("{name}: {} mode, queue 0 of {}", side._redirect.mode(), device.receive_queues);
        Ok(side)
    }

    /// Empty buffers to the kernel.
    #[inline]
    fn refill(&mut self, free: &mut Vec<u64>) {
        if self.fill.free(BATCH) < BATCH {
            return;
        }
        while let Some(buffer) = free.pop() {
            if !self.fill.push(buffer) {
                free.push(buffer);
                break;
            }
        }
        self.fill.publish();
    }

    /// Sent buffers back.
    #[inline]
    fn reap(&mut self, free: &mut Vec<u64>) {
        while let Some(address) = self.completion.pop() {
            free.push(address & !(CHUNK as u64 - 1));
        }
        self.completion.release();
    }

    /// Has the kernel send what is in the ring.
    #[inline]
    fn kick(&mut self) {
        if self.tx.pending() > 0 && self.tx.needs_wakeup() {
            // Without success the frames stay in the ring, and the next round kicks again.
            let _ = self.socket.kick_transmit();
        }
    }
}

/// Takes a batch from one side to the other; true when there was one.
#[inline]
fn forward(from: &mut Side, to: &mut Side, memory: &mut Memory, free: &mut Vec<u64>) -> bool {
    to.reap(free);
    let count = from.rx.available(BATCH).min(BATCH).min(to.tx.free(BATCH));
    for _ in 0..count {
        let Some(frame) = from.rx.pop() else { break };
        memory.set_macs(frame.addr, &to.macs);
        to.tx.push(frame);
    }
    from.rx.release();
    to.tx.publish();
    to.forwarded += u64::from(count);
    to.kick();
    from.refill(free);
    count > 0
}

extern "C" fn stop(_signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only stores to an atomic, which is allowed in a signal handler.
        unsafe { libc::signal(signal, stop as *const () as libc::sighandler_t) };
    }
    if let Some(id) = arguments.cpu
        && !core_affinity::set_for_current(core_affinity::CoreId { id })
    {
        return Err(format!("cannot run on core {id}").into());
    }
    sys::raise_memlock_limit()?;
    let mut memory = Memory::map()?;
    let mode = if arguments.generic { ModeChoice::Generic } else { ModeChoice::Native };
    let mut a = Side::open(&arguments.a, arguments.to_a, &memory, None, mode)?;
    let mut c = Side::open(&arguments.c, arguments.to_c, &memory, Some(&a), mode)?;
    let mut free: Vec<u64> = (0..BUFFERS as u64).map(|buffer| buffer * CHUNK as u64).collect();
    a.refill(&mut free);
    c.refill(&mut free);
    println!("forwarding (descriptors {} and {})", a.socket.as_raw_fd(), c.socket.as_raw_fd());
    let started = Instant::now();
    let (mut reported, mut last) = (started, (0, 0));
    let mut rounds = 0_u32;
    while !STOP.load(Ordering::Relaxed) {
        forward(&mut a, &mut c, &mut memory, &mut free);
        forward(&mut c, &mut a, &mut memory, &mut free);
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(1024) && reported.elapsed() >= Duration::from_secs(1) {
            let seconds = reported.elapsed().as_secs_f64();
            let rate = |now: u64, before: u64| (now - before) as f64 / seconds;
            println!(
                "{:.0} pps to {}, {:.0} pps to {}",
                rate(c.forwarded, last.1),
                c.name,
                rate(a.forwarded, last.0),
                a.name
            );
            (reported, last) = (Instant::now(), (a.forwarded, c.forwarded));
            if arguments.seconds > 0 && started.elapsed() >= Duration::from_secs(arguments.seconds) {
                break;
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("total {} to {} and {} to {} in {seconds:.1} s", c.forwarded, c.name, a.forwarded, a.name);
    for side in [&a, &c] {
        println!("{}: {:?}", side.name, side.socket.statistics()?);
    }
    Ok(())
}
