//! The port against the kernel: veth pairs in a network namespace that each test makes and that ends with its thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::{self, AttachedMode, Device};
use super::program::{AttachError, Fragments, ModeChoice, PROGRAM_NAME, Redirect, Unclaimed, XdpMode};
use super::{Acquired, CopyMode, RingSizes, Umem, XdpConfig, XdpError, XdpPort, ZeroCopy, bpf};
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::batch::Batch;
use crate::packet::{Flags, Offload, PortId};
use crate::port::{PortError, QueuePair, TxFrame};

const BUFFERS: u32 = 4096;
const RINGS: RingSizes = RingSizes { fill: 256, receive: 256, transmit: 256, completion: 256 };
/// No wait in these tests is longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// EtherType of the test's frames (IEEE 802 local experimental).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];

/// Runs `test` in a thread with a network namespace of its own, or says why not.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: needs root for network namespaces and XDP");
        return;
    }
    if Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: needs the ip tool (iproute2)");
        return;
    }
    let thread = std::thread::spawn(|| {
        // SAFETY: unshare takes no pointers and concerns this thread only.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", io::Error::last_os_error());
        // Router solicitations would be among the frames counted here.
        for scope in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1").ok();
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A veth pair `{name}0` (the host's end) - `{name}1` (ours), up.
fn veth(name: &str, queues: u32, mtu: u32) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add {name}0 mtu {mtu} {queues} type veth peer name {name}1 mtu {mtu} {queues}"));
    ip(&format!("link set {name}0 up"));
    ip(&format!("link set {name}1 up"));
}

/// A host on the far end of a veth pair: an AF_PACKET socket.
struct Host {
    socket: OwnedFd,
}

impl Host {
    fn on(device: &str) -> Self {
        // SAFETY: socket takes no pointers; the result is checked, and owned by nothing else.
        let socket = unsafe {
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        let set = |level, name, value: libc::c_int| {
            // SAFETY: value is a live c_int of the size given.
            let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
            assert_eq!(result, 0, "{}", io::Error::last_os_error());
        };
        set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1);
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20);
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: Device::by_name(device).unwrap().ifindex as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: address is a live sockaddr_ll of the length given.
        let result = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
        };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        Self { socket }
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: frame is live and of the length given.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    /// The next test frame, or `None` when none comes in `wait`.
    fn receive(&self, wait: Duration) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let deadline = Instant::now() + wait;
        while Instant::now() < deadline {
            if !readable(self.socket.as_raw_fd(), 10) {
                continue;
            }
            // SAFETY: frame is live, writable and of the length given.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
            assert!(got > 0, "{}", io::Error::last_os_error());
            if frame[12..14] == ETHERTYPE {
                frame.truncate(got as usize);
                return Some(frame);
            }
        }
        None
    }
}

fn readable(fd: i32, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
}

/// A test frame of `length` bytes, recognisable by `number`.
fn frame(number: u32, length: usize) -> Vec<u8> {
    let mut bytes = vec![0x02, 0, 0, 0, 0, 0xc1, 0x02, 0, 0, 0, 0, 0xa0];
    bytes.extend(ETHERTYPE);
    bytes.extend(number.to_be_bytes());
    bytes.extend((0..).map(|at: u32| (at.wrapping_mul(7) ^ number) as u8).take(length - bytes.len()));
    bytes
}

/// The port of a test with one queue.
struct Opened {
    port: XdpPort,
    pair: QueuePair,
}

impl Opened {
    fn on(device: &str, number: u16, umem: &Arc<Umem>, mode: ModeChoice) -> Self {
        Self::with(&XdpConfig { mode, rings: RINGS, ..XdpConfig::new(device, PortId(number)) }, umem)
    }

    fn with(config: &XdpConfig, umem: &Arc<Umem>) -> Self {
        let (port, mut pairs) = XdpPort::open(config, umem).unwrap();
        assert_eq!(pairs.len(), 1);
        let pair = pairs.remove(0);
        assert_eq!(pair.port, config.port);
        Self { port, pair }
    }

    fn close(mut self, pool: &mut Pool) {
        self.pair.rx.close(pool);
        self.pair.tx.close(pool);
    }
}

fn open_error(config: &XdpConfig, umem: &Arc<Umem>) -> XdpError {
    XdpPort::open(config, umem).map(|(port, _)| port).unwrap_err()
}

fn memory(stride: usize) -> (Arc<Umem>, Pool) {
    memory_of(BUFFERS, stride)
}

fn memory_of(buffers: u32, stride: usize) -> (Arc<Umem>, Pool) {
    let arena = Arena::new(buffers, stride, HugePages::Off).unwrap();
    let pool = Pool::split(&arena, 1).remove(0);
    (Umem::new(arena).unwrap(), pool)
}

/// Receives until `count` frames are there, as (bytes, packet's buffer).
fn receive(pair: &mut QueuePair, count: usize, pool: &mut Pool) -> Vec<TxFrame> {
    let (mut batch, mut frames) = (Batch::new(), Vec::new());
    let deadline = Instant::now() + PATIENCE;
    while frames.len() < count {
        pair.rx.receive(&mut batch, 64, pool).unwrap();
        for packet in batch.drain() {
            assert_eq!(packet.ingress, pair.port);
            assert!(packet.flags.has(Flags::MAYBE_PARTIAL));
            frames.push(TxFrame { frame: packet.frame, offload: packet.offload });
        }
        assert!(Instant::now() < deadline, "{} of {count} frames came", frames.len());
        std::thread::yield_now();
    }
    frames
}

fn transmit(pair: &mut QueuePair, mut frames: Vec<TxFrame>, pool: &mut Pool) {
    let (mut refused, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while !frames.is_empty() {
        pair.tx.transmit(&mut frames, &mut refused, pool).unwrap();
        assert!(refused.is_empty());
        assert!(Instant::now() < deadline, "{} frames were not taken", frames.len());
    }
}

fn bytes_of(frame: &TxFrame, pool: &Pool) -> Vec<u8> {
    pool.arena().segments(&frame.frame).collect::<Vec<_>>().concat()
}

fn poll_once(pair: &mut QueuePair, pool: &mut Pool) {
    let mut batch = Batch::new();
    pair.rx.receive(&mut batch, 64, pool).unwrap();
    batch.drain().for_each(|packet| pool.free(packet.frame));
}

/// Waits for all completions, then every buffer must be in the pool again once the ports are closed.
fn close_all(ports: Vec<Opened>, mut pool: Pool) {
    for port in ports {
        port.close(&mut pool);
    }
    assert_eq!(pool.available(), BUFFERS as usize, "every buffer comes back");
}

fn echo(mode: ModeChoice, stride: usize) {
    in_namespace(move || {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(stride);
        let mut router = Opened::on("a1", 3, &umem, mode);
        let report = router.port.report();
        assert_eq!(report.mode, if mode == ModeChoice::Generic { XdpMode::Generic } else { XdpMode::Native });
        assert_eq!((report.copy, report.queues, report.no_fragments.clone()), (CopyMode::Copy, 1, None));
        assert!(report.no_zero_copy.is_some(), "veth has no zero-copy, and the report says so");
        poll_once(&mut router.pair, &mut pool);
        let host = Host::on("a0");
        for round in 0..8_u32 {
            let sent: Vec<_> = (0..50).map(|n| frame(round * 50 + n, 60 + (n as usize * 29) % 1455)).collect();
            sent.iter().for_each(|frame| host.send(frame));
            let received = receive(&mut router.pair, 50, &mut pool);
            for (frame, expected) in received.iter().zip(&sent) {
                assert_eq!(&bytes_of(frame, &pool), expected);
            }
            transmit(&mut router.pair, received, &mut pool);
            for expected in &sent {
                assert_eq!(host.receive(PATIENCE).as_ref(), Some(expected));
            }
        }
        close_all(vec![router], pool);
    });
}

#[test]
fn frames_go_in_and_out_in_native_mode() {
    echo(ModeChoice::Native, DEFAULT_STRIDE);
}

#[test]
fn frames_go_in_and_out_in_generic_mode() {
    echo(ModeChoice::Generic, DEFAULT_STRIDE);
}

#[test]
fn frames_go_in_and_out_of_aligned_chunks() {
    echo(ModeChoice::Auto, 2048);
}

fn forward(mode: ModeChoice) {
    in_namespace(move || {
        veth("a", 1, 1500);
        veth("c", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut a = Opened::on("a1", 0, &umem, mode);
        let mut c = Opened::on("c1", 1, &umem, mode);
        assert_eq!((umem.registrations(), umem.sockets(), c.port.report().shared_queues), (1, 2, 1));
        poll_once(&mut a.pair, &mut pool);
        poll_once(&mut c.pair, &mut pool);
        let (host_a, host_c) = (Host::on("a0"), Host::on("c0"));
        for number in 0..2000 {
            let (from, to, into, out) = if number % 3 == 0 {
                (&host_c, &host_a, &mut c.pair, &mut a.pair)
            } else {
                (&host_a, &host_c, &mut a.pair, &mut c.pair)
            };
            let sent = frame(number, 60 + number as usize % 1400);
            from.send(&sent);
            let mut frames = receive(into, 1, &mut pool);
            let buffer = frames[0].frame.buffer();
            frames[0].frame.header_mut()[0] = 0x06; // what a router does: it changes the header in place
            assert_eq!(frames[0].frame.buffer(), buffer);
            transmit(out, frames, &mut pool);
            let mut expected = sent;
            expected[0] = 0x06;
            assert_eq!(to.receive(PATIENCE), Some(expected));
        }
        assert_eq!(a.pair.rx.statistics().rx_lost + c.pair.rx.statistics().rx_lost, 0);
        assert_eq!(a.pair.rx.statistics().copied + c.pair.tx.statistics().copied, 0);
        close_all(vec![a, c], pool);
    });
}

#[test]
fn two_devices_forward_through_one_umem_in_native_mode() {
    forward(ModeChoice::Native);
}

#[test]
fn two_devices_forward_through_one_umem_in_generic_mode() {
    forward(ModeChoice::Generic);
}

#[test]
fn four_queues_have_a_socket_each() {
    in_namespace(|| {
        veth("a", 4, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let config = XdpConfig { rings: RINGS, ..XdpConfig::new("a1", PortId(0)) };
        let (port, mut pairs) = XdpPort::open(&config, &umem).unwrap();
        assert_eq!((pairs.len(), umem.registrations(), umem.sockets()), (4, 1, 4));
        assert_eq!((port.report().queues, port.report().shared_queues), (4, 3));
        pairs.iter_mut().for_each(|pair| poll_once(pair, &mut pool));
        let host = Host::on("a0");
        let mut sent = Vec::new();
        for flow in 0..200_u32 {
            // UDP over IPv4, so that the sender's stack has a flow to hash.
            let mut bytes = frame(flow, 60);
            bytes[12..14].copy_from_slice(&[0x08, 0x00]);
            bytes[14..38].copy_from_slice(&[
                0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 1, flow as u8, 0x30, flow as u8, 0, 53,
            ]);
            host.send(&bytes);
            sent.push(bytes);
        }
        let (mut got, mut used, mut batch) = (Vec::new(), [0; 4], Batch::new());
        let deadline = Instant::now() + PATIENCE;
        while got.len() < sent.len() {
            for (pair, used) in pairs.iter_mut().zip(&mut used) {
                *used += pair.rx.receive(&mut batch, 64, &mut pool).unwrap();
                for packet in batch.drain() {
                    got.push(packet.frame.head().to_vec());
                    pool.free(packet.frame);
                }
            }
            assert!(Instant::now() < deadline, "{} of {} frames came: {used:?}", got.len(), sent.len());
        }
        got.sort();
        sent.sort();
        assert_eq!(got, sent);
        assert!(used.iter().filter(|&&count| count > 0).count() > 1, "200 flows on one queue of four: {used:?}");
        // Each queue sends too.
        for (pair, number) in pairs.iter_mut().zip(0..) {
            let bytes = frame(number, 100);
            let tx = TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload: Offload::NONE };
            transmit(pair, vec![tx], &mut pool);
            assert_eq!(host.receive(PATIENCE), Some(bytes));
        }
        ip("link set a0 down");
        assert!(!port.inspect().unwrap().now.running);
        for pair in &mut pairs {
            pair.tx.close(&mut pool);
            pair.rx.close(&mut pool);
        }
        assert_eq!(pool.available(), BUFFERS as usize);
    });
}

fn jumbo(mode: ModeChoice, stride: usize) {
    in_namespace(move || {
        veth("a", 1, 9000);
        let (umem, mut pool) = memory(stride);
        let mut router = Opened::on("a1", 0, &umem, mode);
        assert!(router.port.report().fragments, "{:?}", router.port.report());
        poll_once(&mut router.pair, &mut pool);
        let host = Host::on("a0");
        for (number, length) in (0..).zip([60, 1500, 1792, 1856, 1857, 3000, 3712, 3713, 5000, 9000, 9014]) {
            let sent = frame(number, length);
            host.send(&sent);
            let frames = receive(&mut router.pair, 1, &mut pool);
            assert_eq!(frames[0].frame.is_chain(), length > umem.buffer_capacity() as usize, "{length} bytes");
            assert_eq!(bytes_of(&frames[0], &pool), sent);
            transmit(&mut router.pair, frames, &mut pool);
            assert_eq!(host.receive(PATIENCE), Some(sent));
        }
        // Enough of them to go round the rings.
        for number in 0..300 {
            host.send(&frame(number, 8000));
            let frames = receive(&mut router.pair, 1, &mut pool);
            transmit(&mut router.pair, frames, &mut pool);
            assert_eq!(host.receive(PATIENCE), Some(frame(number, 8000)));
        }
        close_all(vec![router], pool);
    });
}

#[test]
fn jumbo_frames_come_and_go_in_several_buffers_in_native_mode() {
    jumbo(ModeChoice::Native, DEFAULT_STRIDE);
}

#[test]
fn jumbo_frames_come_and_go_in_several_buffers_in_generic_mode() {
    jumbo(ModeChoice::Generic, DEFAULT_STRIDE);
}

#[test]
fn jumbo_frames_come_and_go_in_aligned_chunks() {
    jumbo(ModeChoice::Auto, 4096);
}

#[test]
fn native_mode_at_a_large_mtu_needs_fragments_and_generic_mode_says_why_it_was_taken() {
    in_namespace(|| {
        veth("a", 1, 9000);
        let (umem, pool) = memory(DEFAULT_STRIDE);
        let config = XdpConfig { rings: RINGS, fragments: Fragments::No, ..XdpConfig::new("a1", PortId(0)) };
        let native = XdpPort::open(&XdpConfig { mode: ModeChoice::Native, ..config.clone() }, &umem);
        assert!(matches!(native, Err(XdpError::Attach(AttachError::NoNative { .. }))), "native must be refused");
        let opened = Opened::with(&config, &umem);
        assert_eq!(opened.port.report().mode, XdpMode::Generic);
        assert!(opened.port.report().no_native.is_some());
        assert!(opened.port.report().no_zero_copy.as_ref().is_some_and(|why| why.contains("generic")));
        close_all(vec![opened], pool);
    });
}

#[test]
fn zero_copy_is_an_error_where_it_is_required_and_the_driver_has_none() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, _pool) = memory(DEFAULT_STRIDE);
        let config = XdpConfig { zero_copy: ZeroCopy::Require, rings: RINGS, ..XdpConfig::new("a1", PortId(0)) };
        let error = open_error(&config, &umem).to_string();
        assert!(error.starts_with("a1 queue 0: cannot bind a socket") && error.contains("zero_copy"), "{error}");
        let deadline = Instant::now() + PATIENCE;
        while Device::by_name("a1").unwrap().program.is_some() {
            assert!(Instant::now() < deadline, "nothing may be left behind");
        }
    });
}

#[test]
fn frames_that_the_device_cannot_send_are_refused_and_the_others_go() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut router = Opened::on("a1", 0, &umem, ModeChoice::Auto);
        let host = Host::on("a0");
        let mut made = |number, length| TxFrame {
            frame: pool.frame_from(&frame(number, length)).unwrap(),
            offload: Offload::NONE,
        };
        let partial = Offload { csum_start: 34, csum_offset: 6, ..Offload::NONE };
        let mut frames = vec![made(1, 100), made(2, 1523), made(3, 1522 - 8), made(4, 9000), made(5, 100), made(6, 80)];
        frames[4].offload = partial;
        let mut refused = Vec::new();
        router.pair.tx.transmit(&mut frames, &mut refused, &mut pool).unwrap();
        assert_eq!((frames.len(), refused.len()), (0, 3));
        for number in [1, 3, 6] {
            let got = host.receive(PATIENCE).unwrap();
            assert_eq!(got[14..18], u32::to_be_bytes(number));
        }
        // A larger MTU is known after the next inspection.
        ip("link set a0 mtu 9000");
        ip("link set a1 mtu 9000");
        assert!(!router.port.inspect().unwrap().queues_changed);
        let long = refused.swap_remove(1);
        transmit(&mut router.pair, vec![long], &mut pool);
        assert_eq!(host.receive(PATIENCE), Some(frame(4, 9000)));
        refused.into_iter().for_each(|tx| pool.free(tx.frame));
        close_all(vec![router], pool);
    });
}

#[test]
fn a_port_can_be_closed_and_opened_again_at_once() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let host = Host::on("a0");
        for number in 0..6 {
            let mut router = Opened::on("a1", 0, &umem, ModeChoice::Auto);
            poll_once(&mut router.pair, &mut pool);
            host.send(&frame(number, 200));
            let got = receive(&mut router.pair, 1, &mut pool);
            assert_eq!(bytes_of(&got[0], &pool), frame(number, 200));
            got.into_iter().for_each(|tx| pool.free(tx.frame));
            router.close(&mut pool);
            assert_eq!(pool.available(), BUFFERS as usize);
            let deadline = Instant::now() + PATIENCE;
            while Device::by_name("a1").unwrap().program.is_some() {
                assert!(Instant::now() < deadline, "the program must go with the port");
            }
        }
    });
}

/// Runs only as the child of the test below: opens the port and waits to be killed.
#[test]
fn child_that_is_killed() {
    let Ok(device) = std::env::var("FERRULE_TEST_XDP_CHILD") else { return };
    let (umem, mut pool) = memory(DEFAULT_STRIDE);
    let mut opened = Opened::on(&device, 0, &umem, ModeChoice::Auto);
    poll_once(&mut opened.pair, &mut pool);
    println!("child is ready");
    std::thread::sleep(Duration::from_secs(30));
}

#[test]
fn a_killed_process_leaves_nothing_and_its_device_is_free() {
    use std::io::BufRead;
    in_namespace(|| {
        veth("a", 1, 1500);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "port::xdp::tests::child_that_is_killed", "--nocapture"])
            .env("FERRULE_TEST_XDP_CHILD", "a1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = io::BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.is_ok_and(|line| line.contains("child is ready"))));
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let config = XdpConfig { rings: RINGS, ..XdpConfig::new("a1", PortId(0)) };
        let id = Device::by_name("a1").unwrap().program.unwrap().id;
        // While it lives the device is taken, and the message names the program.
        match XdpPort::open(&config, &umem) {
            Err(XdpError::Attach(error @ AttachError::Occupied { id: named, link: Some(_), .. })) if named == id => {
                let text = error.to_string();
                assert!(text.contains(&format!("program {id} (\"{PROGRAM_NAME}\", Native)")), "{text}");
            }
            other => panic!("expected Occupied by {id}, got {:?}", other.map(|(port, _)| port)),
        }
        child.kill().unwrap();
        let mut router = Opened::with(&config, &umem);
        child.wait().unwrap();
        poll_once(&mut router.pair, &mut pool);
        Host::on("a0").send(&frame(7, 90));
        let got = receive(&mut router.pair, 1, &mut pool);
        got.into_iter().for_each(|tx| pool.free(tx.frame));
        close_all(vec![router], pool);
    });
}

/// Repeats while the device is busy: a child of another test, between fork and exec, may hold our link for a moment.
fn once_free<T>(mut attempt: impl FnMut() -> io::Result<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(2));
            }
            other => return other.unwrap(),
        }
    }
}

/// A program with `name` that drops everything: our own, with an empty map.
fn drop_program(name: &str) -> OwnedFd {
    let exit = |code, immediate| bpf::Instruction { code, registers: 0, offset: 0, immediate };
    bpf::load_program(name, &[exit(0xb7, 1), exit(0x95, 0)], false).unwrap()
}

#[test]
fn a_leftover_of_ours_is_replaced_and_a_foreign_program_is_not() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let config = XdpConfig { rings: RINGS, ..XdpConfig::new("a1", PortId(0)) };
        let ifindex = Device::by_name("a1").unwrap().ifindex;
        for mode in [AttachedMode::Native, AttachedMode::Generic] {
            // Attached by netlink, a program stays when its process ends.
            let program = drop_program(PROGRAM_NAME);
            once_free(|| device::set_program(ifindex, mode, program.as_raw_fd()));
            let leftover = Device::by_name("a1").unwrap().program.unwrap();
            let opened = Opened::with(&config, &umem);
            assert_eq!(opened.port.report().replaced_program, Some(leftover.id));
            opened.close(&mut pool);

            let program = drop_program("someone_else");
            once_free(|| device::set_program(ifindex, mode, program.as_raw_fd()));
            let foreign = Device::by_name("a1").unwrap().program.unwrap();
            let error = open_error(&config, &umem).to_string();
            for part in [format!("program {} (\"someone_else\"", foreign.id), "ip link set dev a1 xdp off".into()] {
                assert!(error.contains(&part), "{part:?} in {error}");
            }
            assert_eq!(Device::by_name("a1").unwrap().program, Some(foreign), "it is left alone");
            device::detach_program(ifindex, mode).unwrap();
        }
        let program = drop_program("linked");
        let _link = once_free(|| bpf::create_xdp_link(program.as_fd(), ifindex, bpf::AttachFlag::Native));
        let error = open_error(&config, &umem).to_string();
        assert!(error.contains("held by BPF link") && error.contains("stop that process"), "{error}");
    });
}

#[test]
fn frames_without_a_socket_are_dropped_or_passed_as_asked() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (inside, outside) = (Host::on("a1"), Host::on("a0"));
        let device = Device::by_name("a1").unwrap();
        for (unclaimed, arrives) in [(Unclaimed::Drop, false), (Unclaimed::Pass, true)] {
            let redirect = Redirect::attach(&device, 1, ModeChoice::Auto, unclaimed, Fragments::Yes).unwrap();
            assert_eq!((redirect.mode(), redirect.fragments()), (XdpMode::Native, true));
            outside.send(&frame(1, 80));
            let got = inside.receive(if arrives { PATIENCE } else { Duration::from_millis(200) });
            assert_eq!(got.is_some(), arrives, "{unclaimed:?}");
        }
    });
}

#[test]
fn a_removed_device_is_reported_and_the_port_works_again_when_it_is_back() {
    in_namespace(|| {
        veth("a", 1, 1500);
        veth("c", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        // a1's socket registered the UMEM, so it is the one that must not be missed.
        let mut a = Opened::on("a1", 0, &umem, ModeChoice::Auto);
        let mut c = Opened::on("c1", 1, &umem, ModeChoice::Auto);
        for round in 0..3 {
            poll_once(&mut a.pair, &mut pool);
            poll_once(&mut c.pair, &mut pool);
            let (host_a, host_c) = (Host::on("a0"), Host::on("c0"));
            host_a.send(&frame(round, 300));
            let frames = receive(&mut a.pair, 1, &mut pool);
            transmit(&mut c.pair, frames, &mut pool);
            assert_eq!(host_c.receive(PATIENCE), Some(frame(round, 300)));

            ip("link del a0");
            assert!(a.port.inspect().is_err());
            // A receiver that never sends learns of it, polling or about to sleep.
            let deadline = Instant::now() + PATIENCE;
            let mut batch = Batch::new();
            if round == 1 {
                assert!(a.pair.rx.arm(), "a removed device must not be slept on");
            }
            loop {
                match a.pair.rx.receive(&mut batch, 64, &mut pool) {
                    Ok(_) => assert!(Instant::now() < deadline, "the loss was not noticed"),
                    Err(PortError::Lost(_)) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            // So does a sender: the frame that it had accepted counts as lost, the next stay with the caller.
            let made =
                |pool: &mut Pool| TxFrame { frame: pool.frame_from(&frame(0, 60)).unwrap(), offload: Offload::NONE };
            let (mut frames, mut refused) = (vec![made(&mut pool)], Vec::new());
            a.pair.tx.transmit(&mut frames, &mut refused, &mut pool).unwrap();
            assert_eq!((frames.len(), a.pair.tx.statistics().tx_lost), (0, 1));
            frames.push(made(&mut pool));
            let error = a.pair.tx.transmit(&mut frames, &mut refused, &mut pool);
            assert!(matches!(error, Err(PortError::Lost(_))), "{error:?}");
            assert_eq!(frames.len(), 1);
            frames.into_iter().for_each(|tx| pool.free(tx.frame));
            a.close(&mut pool);

            // The other port goes on meanwhile.
            host_c.send(&frame(round, 100));
            let frames = receive(&mut c.pair, 1, &mut pool);
            transmit(&mut c.pair, frames, &mut pool);
            assert_eq!(host_c.receive(PATIENCE), Some(frame(round, 100)));

            veth("a", 1, 1500);
            a = Opened::on("a1", 0, &umem, ModeChoice::Auto);
            assert_eq!((umem.registrations(), a.port.report().shared_queues), (1, 1));
        }
        // When no socket is bound any more, the memory is registered once more.
        ip("link del a0");
        ip("link del c0");
        veth("a", 1, 1500);
        let mut again = Opened::on("a1", 2, &umem, ModeChoice::Auto);
        assert_eq!(umem.registrations(), 2);
        poll_once(&mut again.pair, &mut pool);
        Host::on("a0").send(&frame(9, 99));
        let got = receive(&mut again.pair, 1, &mut pool);
        got.into_iter().for_each(|tx| pool.free(tx.frame));
        close_all(vec![a, c, again], pool);
    });
}

#[test]
fn a_link_that_goes_down_and_up_keeps_its_sockets() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut router = Opened::on("a1", 0, &umem, ModeChoice::Auto);
        poll_once(&mut router.pair, &mut pool);
        for round in 0..2 {
            ip("link set a1 down");
            assert!(!router.port.inspect().unwrap().now.up);
            let tx = TxFrame { frame: pool.frame_from(&frame(round, 64)).unwrap(), offload: Offload::NONE };
            transmit(&mut router.pair, vec![tx], &mut pool);
            assert_eq!(router.pair.tx.outstanding(), 1, "it waits in the ring");
            ip("link set a1 up");
            let host = Host::on("a0");
            router.pair.tx.flush(&mut pool).unwrap();
            assert_eq!(host.receive(PATIENCE), Some(frame(round, 64)));
            host.send(&frame(round + 10, 64));
            let got = receive(&mut router.pair, 1, &mut pool);
            assert_eq!(bytes_of(&got[0], &pool), frame(round + 10, 64));
            got.into_iter().for_each(|tx| pool.free(tx.frame));
        }
        close_all(vec![router], pool);
    });
}

#[test]
fn losses_before_us_are_counted_exactly() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut router = Opened::on("a1", 0, &umem, ModeChoice::Generic);
        poll_once(&mut router.pair, &mut pool);
        let host = Host::on("a0");
        let total = 3 * RINGS.fill;
        for number in 0..total {
            host.send(&frame(number, 60));
        }
        std::thread::sleep(Duration::from_millis(50));
        let got = receive(&mut router.pair, RINGS.fill as usize, &mut pool);
        assert_eq!(got.len() as u64 + router.pair.rx.statistics().rx_lost, u64::from(total));
        got.into_iter().for_each(|tx| pool.free(tx.frame));
        // The ring was filled again, so the next ones come.
        poll_once(&mut router.pair, &mut pool);
        host.send(&frame(1, 60));
        let got = receive(&mut router.pair, 1, &mut pool);
        got.into_iter().for_each(|tx| pool.free(tx.frame));
        close_all(vec![router], pool);
    });
}

#[test]
fn the_descriptor_wakes_a_sleeper_on_the_first_frame() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut router = Opened::on("a1", 0, &umem, ModeChoice::Auto);
        poll_once(&mut router.pair, &mut pool);
        let host = Host::on("a0");
        for number in 0..20 {
            assert!(!router.pair.rx.arm());
            let fd = router.pair.rx.wait_fd().unwrap().as_raw_fd();
            assert!(!readable(fd, 0));
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(move || readable(fd, PATIENCE.as_millis() as i32));
                host.send(&frame(number, 60));
                assert!(sleeper.join().unwrap());
            });
            assert!(router.pair.rx.arm());
            let got = receive(&mut router.pair, 1, &mut pool);
            got.into_iter().for_each(|tx| pool.free(tx.frame));
        }
        close_all(vec![router], pool);
    });
}

#[test]
fn every_frame_of_a_long_burst_is_sent_in_order_and_every_buffer_returns() {
    in_namespace(|| {
        veth("a", 1, 1500);
        let (umem, mut pool) = memory(DEFAULT_STRIDE);
        let mut router = Opened::on("a1", 0, &umem, ModeChoice::Auto);
        let host = Host::on("a0");
        let (mut frames, mut refused) = (Vec::new(), Vec::new());
        let total = 5000;
        let (mut made, mut seen) = (0, 0);
        let deadline = Instant::now() + 4 * PATIENCE;
        while seen < total {
            while made < total && frames.len() < 64 && made - seen < 2000 {
                frames.push(TxFrame { frame: pool.frame_from(&frame(made, 200)).unwrap(), offload: Offload::NONE });
                made += 1;
            }
            router.pair.tx.transmit(&mut frames, &mut refused, &mut pool).unwrap();
            router.pair.tx.flush(&mut pool).unwrap();
            while let Some(got) = host.receive(Duration::from_millis(1)) {
                assert_eq!(got, frame(seen, 200));
                seen += 1;
            }
            assert!(Instant::now() < deadline, "{seen} of {total} arrived");
        }
        assert_eq!((router.pair.tx.outstanding(), router.pair.tx.statistics().tx_lost), (0, 0));
        close_all(vec![router], pool);
    });
}

#[test]
fn a_daemon_without_privilege_works_with_what_a_helper_acquired() {
    in_namespace(|| {
        veth("a", 1, 1500);
        // Small enough for the default RLIMIT_MEMLOCK, where that could not be raised.
        let buffers = 512;
        let (umem, mut pool) = memory_of(buffers, DEFAULT_STRIDE);
        let host = Host::on("a0");
        let config = XdpConfig { rings: RINGS, ..XdpConfig::new("a1", PortId(0)) };
        let acquired = Acquired::acquire(&config).unwrap();
        let (text, borrowed) = acquired.to_message();
        let descriptors: Vec<_> = borrowed.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        assert!(Acquired::from_message("ferrule-xdp-0\n", Vec::new()).is_err());
        assert!(Acquired::from_message(&text, Vec::new()).is_err());
        let received = Acquired::from_message(&text, descriptors).unwrap();
        drop(acquired);
        // This thread alone drops its capabilities, as a user of its own (locked memory is counted by user).
        let user = 1_000_000 + std::process::id();
        // SAFETY: setresuid takes no pointers (and libc's wrapper would change all threads).
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
        assert!(matches!(open_error(&config, &umem), XdpError::Attach(_)), "it may not attach by itself");
        let (port, mut pairs) = XdpPort::assemble(&config, received, &umem).unwrap();
        assert_eq!(port.report().mode, XdpMode::Native);
        let mut router = Opened { port, pair: pairs.remove(0) };
        poll_once(&mut router.pair, &mut pool);
        host.send(&frame(1, 333));
        let frames = receive(&mut router.pair, 1, &mut pool);
        transmit(&mut router.pair, frames, &mut pool);
        assert_eq!(host.receive(PATIENCE), Some(frame(1, 333)));
        router.close(&mut pool);
        assert_eq!(pool.available(), buffers as usize);
    });
}

#[test]
fn a_missing_device_is_named() {
    let (umem, _pool) = memory(DEFAULT_STRIDE);
    let error = open_error(&XdpConfig::new("no-such-dev0", PortId(0)), &umem).to_string();
    assert!(error.starts_with("no-such-dev0: No such device"), "{error}");
}

#[test]
fn more_receive_than_transmit_queues_are_refused() {
    in_namespace(|| {
        ip("link add a0 numrxqueues 1 numtxqueues 4 type veth peer name a1 numrxqueues 4 numtxqueues 1");
        let (umem, _pool) = memory(DEFAULT_STRIDE);
        let error = open_error(&XdpConfig::new("a1", PortId(0)), &umem);
        assert!(matches!(error, XdpError::UnequalQueues { receive: 4, transmit: 1, .. }), "{error}");
    });
}
