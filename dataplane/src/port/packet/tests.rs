//! The port against real kernels: veth pairs between namespaces that the test makes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::*;
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages, Pool};
use crate::batch::Batch;
use crate::packet::{GsoKind, Offload, partial};
use crate::port::testnet::{Namespace, connect};
use crate::port::{PortError, QueueStatistics, RxQueue, TxFrame};

mod merged;

/// An EtherType for experiments, which no stack answers.
const EXPERIMENT: u16 = 0x88b5;
const PATIENCE: Duration = Duration::from_secs(5);

fn pool(buffers: u32) -> Pool {
    Pool::split(&Arena::new(buffers, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
}

/// Drops the kernel's own reception with an nftables ingress chain, as the gateway does. Lasts as long as the namespace.
fn silence(namespace: &Namespace, interface: &str) -> IngressDropped {
    namespace.sh(&format!(
        "nft add table netdev t_{interface}
         nft 'add chain netdev t_{interface} c {{ type filter hook ingress device {interface} priority -500; policy drop; }}'"
    ));
    IngressDropped::held_by(interface, ())
}

fn open_in(namespace: &Namespace, options: PacketOptions, port: u16) -> OpenPort {
    let dropped = silence(namespace, &options.interface);
    namespace.run(move || open(&options, PortId(port), dropped)).unwrap()
}

/// A frame to a group address, so that any stack would look at it.
fn experiment(length: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, seed]);
    bytes.extend(EXPERIMENT.to_be_bytes());
    bytes.extend((14..length).map(|at| (at as u8).wrapping_mul(7).wrapping_add(seed)));
    bytes
}

/// A plain packet socket on an interface that is not a port.
fn raw_socket(namespace: &Namespace, interface: &'static str) -> OwnedFd {
    namespace.run(move || {
        let fd = sys::open_socket().unwrap();
        let facts = sys::interface_facts(&fd, interface).unwrap();
        sys::bind(&fd, facts.index, EXPERIMENT).unwrap();
        fd
    })
}

fn raw_send(fd: &OwnedFd, bytes: &[u8]) {
    let mut part = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    // SAFETY: the part is the borrowed slice.
    assert_eq!(unsafe { sys::send_parts(fd, &mut part) }.unwrap(), bytes.len());
}

#[track_caller]
fn raw_receive(fd: &OwnedFd) -> Vec<u8> {
    let mut bytes = vec![0; 70_000];
    let limit = Instant::now() + PATIENCE;
    loop {
        // SAFETY: the buffer is as long as stated.
        let got = unsafe { libc::recv(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
        if got >= 0 {
            bytes.truncate(got as usize);
            return bytes;
        }
        assert!(Instant::now() < limit, "nothing came");
        std::thread::yield_now();
    }
}

/// Takes the next frame with the experiment's EtherType (anywhere behind tags), as bytes.
#[track_caller]
fn receive_one(rx: &mut dyn RxQueue, pool: &mut Pool) -> (Vec<u8>, Offload) {
    let mut batch = Batch::new();
    let limit = Instant::now() + PATIENCE;
    let arena = pool.arena().clone();
    loop {
        rx.receive(&mut batch, 1, pool).unwrap();
        for packet in batch.drain() {
            let bytes = arena.segments(&packet.frame).collect::<Vec<_>>().concat();
            pool.free(packet.frame);
            if bytes.windows(2).take(20).any(|window| window == EXPERIMENT.to_be_bytes()) {
                return (bytes, packet.offload);
            }
        }
        assert!(Instant::now() < limit, "nothing came");
    }
}

/// Compares frames without printing thousands of numbers.
#[track_caller]
fn assert_same(got: &[u8], expected: &[u8]) {
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert!(got == expected, "{} bytes for {}, first difference at {differs:?}", got.len(), expected.len());
}

fn send_all(pair: &mut QueuePair, pool: &mut Pool, frames: &[Vec<u8>]) -> Vec<usize> {
    let mut out: Vec<TxFrame> =
        frames.iter().map(|bytes| TxFrame { frame: pool.frame_from(bytes).unwrap(), offload: Offload::NONE }).collect();
    let mut refused = Vec::new();
    pair.tx.transmit(&mut out, &mut refused, pool).unwrap();
    assert!(out.is_empty());
    refused
        .into_iter()
        .map(|tx| {
            let length = tx.frame.len();
            pool.free(tx.frame);
            length
        })
        .collect()
}

/// Two namespaces and a port in the second.
fn wire(mtu: u32, change: impl FnOnce(&mut PacketOptions)) -> Option<(Namespace, Namespace, OpenPort)> {
    let (a, b) = (Namespace::new()?, Namespace::new()?);
    connect((&a, "a0"), (&b, "b0"), mtu);
    // Nothing but the test's own frames on the wire.
    a.sh("sysctl -qw net.ipv6.conf.a0.disable_ipv6=1");
    b.sh("sysctl -qw net.ipv6.conf.b0.disable_ipv6=1");
    let mut options = PacketOptions::new("b0");
    change(&mut options);
    let port = open_in(&b, options, 1);
    assert_eq!(port.facts.mtu, mtu);
    Some((a, b, port))
}

#[test]
fn frames_pass_whole_in_both_directions() {
    for early in [true, false] {
        let Some((a, _b, mut port)) = wire(1500, |options| options.early = early) else { return };
        let mut pool = pool(512);
        let raw = raw_socket(&a, "a0");
        let pair = &mut port.queues[0];
        for length in [14, 15, 59, 60, 61, 127, 128, 500, 1513, 1514] {
            let bytes = experiment(length, length as u8);
            raw_send(&raw, &bytes);
            let (got, offload) = receive_one(pair.rx.as_mut(), &mut pool);
            assert_same(&got, &bytes);
            assert_eq!(offload, Offload::NONE);
            assert!(send_all(pair, &mut pool, std::slice::from_ref(&bytes)).is_empty());
            assert_same(&raw_receive(&raw), &bytes);
        }
        assert_eq!(pool.available(), 512);
        let statistics = pair.rx.statistics();
        assert_eq!((statistics.rx_lost, statistics.rx_discarded), (0, 0));
        assert!(statistics.copied >= 10);
    }
}

/// Every frame arrives in order and unchanged when blocks are read while the kernel fills them, over many laps of the ring.
#[test]
fn early_reading_sees_only_whole_frames() {
    let Some((a, _b, mut port)) = wire(1500, |options| options.receive_bytes = 512 << 10) else { return };
    let mut pool = pool(512);
    let raw = raw_socket(&a, "a0");
    let total = 200_000u32;
    let backlog = backlog_lost();
    let sender = std::thread::spawn(move || {
        let mut frame = experiment(1514, 1);
        for number in 0..total {
            // Lengths and contents differ from lap to lap, so that stale memory never looks right.
            let length = 60 + (number.wrapping_mul(2_654_435_761) >> 21) as usize % 1400;
            frame[14..18].copy_from_slice(&number.to_be_bytes());
            frame[18..length].fill(number as u8);
            raw_send_patiently(&raw, &frame[..length]);
            if number % 64 == 0 {
                std::thread::sleep(Duration::from_micros(u64::from(number % 300)));
            }
        }
    });
    let mut batch = Batch::new();
    let (mut expected, mut missing) = (0, 0);
    let limit = Instant::now() + Duration::from_secs(60);
    let mut quiet = Instant::now();
    while expected < total {
        port.queues[0].rx.receive(&mut batch, 64, &mut pool).unwrap();
        for packet in batch.drain() {
            let head = packet.frame.head();
            if head[12..14] == EXPERIMENT.to_be_bytes() {
                let number = u32::from_be_bytes([head[14], head[15], head[16], head[17]]);
                let length = 60 + (number.wrapping_mul(2_654_435_761) >> 21) as usize % 1400;
                assert!(number >= expected, "frame {number} came after {expected}");
                assert_eq!(head.len(), length, "length of frame {number}");
                assert!(head[18..].iter().all(|&byte| byte == number as u8), "contents of frame {number}");
                missing += number - expected;
                expected = number + 1;
                quiet = Instant::now();
            }
            pool.free(packet.frame);
        }
        if sender.is_finished() && quiet.elapsed() > Duration::from_millis(200) {
            missing += total - expected;
            break;
        }
        assert!(Instant::now() < limit);
    }
    sender.join().unwrap();
    let lost = port.queues[0].rx.statistics().rx_lost;
    let before = backlog_lost() - backlog;
    assert!(u64::from(missing) <= lost + before, "{missing} missing, {lost} counted, {before} lost before us");
    assert!(missing < total / 2, "{missing} of {total} missing");
}

fn raw_send_patiently(fd: &OwnedFd, bytes: &[u8]) {
    let mut part = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
    // SAFETY: the part is the borrowed slice.
    while let Err(error) = unsafe { sys::send_parts(fd, &mut part) } {
        assert!(matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS)), "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn jumbo_frames_are_chains() {
    for mtu in [9000, 16114] {
        let Some((a, _b, mut port)) = wire(mtu, |_| {}) else { return };
        let mut pool = pool(512);
        let raw = raw_socket(&a, "a0");
        for length in [1514, 4000, mtu as usize + 14] {
            let bytes = experiment(length, 9);
            raw_send(&raw, &bytes);
            assert_same(&receive_one(port.queues[0].rx.as_mut(), &mut pool).0, &bytes);
            assert!(send_all(&mut port.queues[0], &mut pool, std::slice::from_ref(&bytes)).is_empty());
            assert_same(&raw_receive(&raw), &bytes);
        }
        assert_eq!(pool.available(), 512);
    }
}

#[test]
fn what_is_longer_than_the_link_is_refused_and_the_rest_goes_on() {
    let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
    let mut pool = pool(512);
    let raw = raw_socket(&a, "a0");
    let mut tagged = experiment(1514, 3);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let mut too_long = experiment(1515, 4);
    let frames = [experiment(60, 1), too_long.clone(), experiment(61, 2), tagged.clone()];
    assert_eq!(send_all(&mut port.queues[0], &mut pool, &frames), [1515]);
    assert_same(&raw_receive(&raw), &frames[0]);
    assert_same(&raw_receive(&raw), &frames[2]);
    // The end host's stack took the tag off.
    assert_same(&raw_receive(&raw), &experiment(1514, 3));

    // The MTU rises while the port is open: frames of the new length go, also those longer than the ring's slots.
    a.sh("ip link set a0 mtu 9000");
    b.sh("ip link set b0 mtu 9000");
    let limit = Instant::now() + PATIENCE;
    too_long = experiment(9014, 5);
    while !send_all(&mut port.queues[0], &mut pool, std::slice::from_ref(&too_long)).is_empty() {
        assert!(Instant::now() < limit, "the new MTU is not seen");
    }
    assert_same(&raw_receive(&raw), &too_long);
    assert_eq!(pool.available(), 512);
}

#[test]
fn a_tag_that_was_taken_off_is_put_back() {
    let Some((a, _b, mut port)) = wire(1500, |_| {}) else { return };
    let mut pool = pool(64);
    let raw = raw_socket(&a, "a0");
    // veth hands tagged frames over with the tag in the packet's metadata (the stack untags on reception).
    for tag in [[0x81, 0x00, 0x60, 0x05], [0x88, 0xa8, 0x00, 0x07]] {
        let mut bytes = experiment(100, 6);
        bytes.splice(12..12, tag);
        raw_send(&raw, &bytes);
        assert_same(&receive_one(port.queues[0].rx.as_mut(), &mut pool).0, &bytes);
    }
}

#[test]
fn an_overrun_is_counted() {
    let Some((a, _b, mut port)) = wire(1500, |options| options.receive_bytes = 512 << 10) else { return };
    let mut pool = pool(512);
    let raw = raw_socket(&a, "a0");
    let (sent, backlog) = (2000, backlog_lost());
    for number in 0..sent {
        raw_send_patiently(&raw, &experiment(1514, number as u8));
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut batch = Batch::new();
    let mut got = 0;
    while port.queues[0].rx.receive(&mut batch, 256, &mut pool).unwrap() > 0 {
        for packet in batch.drain() {
            got += u64::from(packet.frame.head()[12..14] == EXPERIMENT.to_be_bytes());
            pool.free(packet.frame);
        }
    }
    let statistics = port.queues[0].rx.statistics();
    assert!(statistics.rx_lost > 0 && got < sent, "{got} came, {statistics:?}");
    let before = backlog_lost() - backlog;
    assert!(got + statistics.rx_lost + before >= sent, "{got} came, {statistics:?}, {before} lost before us");
}

/// Frames that the kernel's backlog queues (which veth uses) lost before AF_PACKET saw them: second column, hexadecimal.
fn backlog_lost() -> u64 {
    let table = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    table.lines().map(|line| u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()).sum()
}

#[test]
fn without_buffers_frames_wait_in_the_ring() {
    let Some((a, _b, mut port)) = wire(9000, |_| {}) else { return };
    let mut pool = pool(4);
    let raw = raw_socket(&a, "a0");
    let bytes = experiment(9014, 1);
    raw_send(&raw, &bytes);
    raw_send(&raw, &experiment(60, 2));
    std::thread::sleep(Duration::from_millis(20));
    let mut batch = Batch::new();
    // Five buffers are needed and four are there: the frame waits, and nothing overtakes it.
    for _ in 0..100 {
        assert_eq!(port.queues[0].rx.receive(&mut batch, 8, &mut pool).unwrap(), 0);
    }
    assert_eq!((pool.available(), port.queues[0].rx.statistics().rx_discarded), (4, 0));
    // A pool that will never hold it must not block the queue for ever: it is given up and counted.
    assert_same(&receive_one(port.queues[0].rx.as_mut(), &mut pool).0, &experiment(60, 2));
    assert_eq!(port.queues[0].rx.statistics().rx_discarded, 1);
}

#[test]
fn fanout_keeps_flows_together() {
    let Some((a, _b, mut port)) = wire(1500, |options| options.queues = 2) else { return };
    a.sh("sysctl -qw net.ipv6.conf.a0.disable_ipv6=0
          ip addr add 10.7.0.1/24 dev a0; ip addr add fd07::1/64 dev a0 nodad");
    let mac = port.facts.mac.map(|byte| format!("{byte:02x}")).join(":");
    a.sh(&format!("ip neigh add 10.7.0.2 lladdr {mac} dev a0; ip neigh add fd07::2 lladdr {mac} dev a0"));
    // 32 flows of each family, and one datagram of each that is sent in fragments.
    a.run(|| {
        for (local, remote) in [("10.7.0.1", "10.7.0.2"), ("fd07::1", "fd07::2")] {
            for flow in 0..32u16 {
                let socket = UdpSocket::bind((local, 4000 + flow)).unwrap();
                for _ in 0..20 {
                    socket.send_to(&flow.to_be_bytes(), (remote, 9)).unwrap();
                }
            }
            let socket = UdpSocket::bind((local, 5000)).unwrap();
            socket.send_to(&[0; 6000], (remote, 9)).unwrap();
        }
    });
    let mut pool = pool(2048);
    let mut seen = [const { std::collections::BTreeMap::<(bool, u16), u32>::new() }; 2];
    let mut fragments = [[0; 2]; 2];
    let mut batch = Batch::new();
    let limit = Instant::now() + Duration::from_millis(500);
    while Instant::now() < limit {
        for (queue, pair) in port.queues.iter_mut().enumerate() {
            pair.rx.receive(&mut batch, 64, &mut pool).unwrap();
            for packet in batch.drain() {
                let h = packet.frame.header();
                let six = h[12..14] == [0x86, 0xdd];
                let (protocol, fragment, ports) = match (six, h[12..14] == [8, 0]) {
                    (false, true) => (h[23], u16::from_be_bytes([h[20], h[21]]) & 0x3fff != 0, 34),
                    (true, _) => (if h[20] == 44 { h[54] } else { h[20] }, h[20] == 44, 54),
                    _ => (0, false, 0),
                };
                if protocol == 17 && fragment {
                    fragments[usize::from(six)][queue] += 1;
                } else if protocol == 17 {
                    *seen[queue].entry((six, u16::from_be_bytes([h[ports], h[ports + 1]]))).or_default() += 1;
                }
                pool.free(packet.frame);
            }
        }
    }
    for six in [false, true] {
        let flows = [0, 1].map(|queue| seen[queue].keys().filter(|key| key.0 == six).count());
        assert_eq!(flows[0] + flows[1], 32, "each flow on one queue: {flows:?}");
        assert!(flows[0] >= 4 && flows[1] >= 4, "flows are spread: {flows:?}");
        assert!(seen.iter().flatten().filter(|(key, _)| key.0 == six).all(|(_, &count)| count == 20));
        let parts = fragments[usize::from(six)];
        assert!(parts.contains(&0) && parts[0] + parts[1] >= 4, "fragments of a datagram meet: {parts:?}");
    }
}

/// A wire in user space between two ports: what comes in on one goes out on the other.
struct Forwarder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<([QueueStatistics; 2], u64, u64)>,
}

impl Forwarder {
    fn start(ports: [OpenPort; 2]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut pool = pool(16_384);
            let arena = pool.arena().clone();
            let mut batch = Batch::new();
            let (mut out, mut refused) = (Vec::new(), Vec::new());
            let (mut supers, mut partials) = (0, 0);
            let [mut left, mut right] = ports;
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..2 {
                    std::mem::swap(&mut left, &mut right);
                    let (rx, tx) = (&mut left.queues[0].rx, &mut right.queues[0].tx);
                    rx.receive(&mut batch, 64, &mut pool).unwrap();
                    for mut packet in batch.drain() {
                        supers += u64::from(packet.offload.gso_kind != GsoKind::None);
                        partials += u64::from(packet.offload.is_partial());
                        if !tx.offloads() && packet.offload.gso_kind == GsoKind::None {
                            assert!(partial::complete(&arena, &mut packet));
                        }
                        out.push(TxFrame { frame: packet.frame, offload: packet.offload });
                    }
                    tx.transmit(&mut out, &mut refused, &mut pool).unwrap();
                    for tx in out.drain(..).chain(refused.drain(..)) {
                        pool.free(tx.frame);
                    }
                }
            }
            let statistics = [left.queues[0].rx.statistics(), right.queues[0].rx.statistics()];
            (statistics, supers, partials)
        });
        Self { stop, thread }
    }

    /// Receive statistics, super-packets and partial checksums seen.
    fn stop(self) -> ([QueueStatistics; 2], u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// A - B - C with addresses at the ends and a wire in user space in the middle.
struct Chain {
    a: Namespace,
    c: Namespace,
    _b: Namespace,
    forwarder: Forwarder,
}

impl Chain {
    fn new(mtu: u32, offload: bool, end_host_set_up: &str) -> Option<Self> {
        let (a, b, c) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
        connect((&a, "e0"), (&b, "b0"), mtu);
        connect((&c, "e0"), (&b, "b1"), mtu);
        for (namespace, host) in [(&a, 1), (&c, 2)] {
            namespace.sh(&format!(
                "{end_host_set_up}\nip addr add 10.8.0.{host}/24 dev e0; ip addr add fd08::{host}/64 dev e0 nodad"
            ));
        }
        let port = |interface: &str, number| {
            let mut options = PacketOptions::new(interface);
            (options.promiscuous, options.offload) = (true, offload);
            open_in(&b, options, number)
        };
        let forwarder = Forwarder::start([port("b0", 0), port("b1", 1)]);
        Some(Self { a, c, _b: b, forwarder })
    }

    /// Sends `bytes` of a pattern over TCP from A to C, which sends the sum back.
    fn transfer(&self, to: &'static str, bytes: usize) {
        let server = self.c.run(move || TcpListener::bind((to, 7000)).unwrap());
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let (mut sum, mut total, mut buffer) = (0u64, 0, vec![0; 1 << 16]);
            loop {
                let got = stream.read(&mut buffer).unwrap();
                if got == 0 {
                    break;
                }
                for byte in &buffer[..got] {
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
                }
                total += got;
            }
            stream.write_all(&sum.to_be_bytes()).unwrap();
            total
        });
        self.a.run(move || {
            let mut stream = TcpStream::connect((to, 7000)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
            let (mut state, mut sum, mut sent) = (1u32, 0u64, 0);
            let mut buffer = vec![0; 1 << 16];
            while sent < bytes {
                for byte in buffer.iter_mut() {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    *byte = (state >> 24) as u8;
                    sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
                }
                stream.write_all(&buffer).unwrap();
                sent += buffer.len();
            }
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(u64::from_be_bytes(answer), sum, "the data that arrived");
        });
        assert_eq!(receiver.join().unwrap(), bytes);
    }

    /// Checksum errors that the end hosts counted: (TCP, UDP, UDP over IPv6) of both together.
    fn checksum_errors(&self) -> u64 {
        [&self.a, &self.c]
            .map(|namespace| {
                namespace.run(|| {
                    let old = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
                    let new = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
                    let mut total = 0;
                    let lines: Vec<_> = old.lines().collect();
                    for pair in lines.chunks(2) {
                        let names = pair[0].split_whitespace();
                        for (name, value) in names.zip(pair[1].split_whitespace()) {
                            total += if name == "InCsumErrors" { value.parse::<u64>().unwrap() } else { 0 };
                        }
                    }
                    for line in new.lines().filter(|line| line.contains("InCsumErrors")) {
                        total += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
                    }
                    total
                })
            })
            .iter()
            .sum()
    }
}

#[test]
fn super_packets_and_partial_checksums_pass_whole_with_offload() {
    let Some(chain) = Chain::new(1500, true, "") else { return };
    chain.transfer("10.8.0.2", 32 << 20);
    chain.transfer("fd08::2", 32 << 20);
    assert_eq!(chain.checksum_errors(), 0);
    let (statistics, supers, partials) = chain.forwarder.stop();
    assert!(supers > 100 && partials >= supers, "{supers} super-packets, {partials} partial checksums");
    assert_eq!(statistics.map(|statistics| statistics.rx_discarded), [0, 0]);
}

/// The egress device cannot segment, nor sum: the kernel does both behind us.
#[test]
fn super_packets_are_cut_where_the_egress_device_cannot() {
    let Some(chain) = Chain::new(1500, true, "") else { return };
    chain._b.sh("ethtool -K b1 tso off gso off tx off >/dev/null; ethtool -K b0 tso off gso off tx off >/dev/null");
    chain.transfer("10.8.0.2", 4 << 20);
    chain.transfer("fd08::2", 4 << 20);
    assert_eq!(chain.checksum_errors(), 0);
    assert!(chain.forwarder.stop().1 > 10);
}

#[test]
fn partial_checksums_are_completed_without_offload() {
    let Some(chain) = Chain::new(1500, false, "ethtool -K e0 tso off gso off >/dev/null") else { return };
    // The ends must look at the sums: a veth peer would take them on trust were they still marked as partial.
    chain.transfer("10.8.0.2", 8 << 20);
    chain.transfer("fd08::2", 8 << 20);
    chain.a.sh("ping -c 3 -i 0.05 -W 2 -s 1200 10.8.0.2; ping -c 3 -i 0.05 -W 2 -s 1200 fd08::2");
    assert_eq!(chain.checksum_errors(), 0);
    let (_, supers, partials) = chain.forwarder.stop();
    assert_eq!(supers, 0);
    assert!(partials > 100, "{partials} partial checksums");
}

#[test]
fn jumbo_tcp_passes() {
    let Some(chain) = Chain::new(16114, false, "ethtool -K e0 tso off gso off >/dev/null") else { return };
    chain.transfer("10.8.0.2", 8 << 20);
    chain.a.sh("ping -c 2 -i 0.05 -W 2 -M do -s 16086 10.8.0.2");
    assert_eq!(chain.checksum_errors(), 0);
    chain.forwarder.stop();
}

#[test]
fn merged_frames_are_chains_that_say_so() {
    let Some((a, _b, mut port)) = wire(1500, |_| {}) else { return };
    a.sh("ip addr add 10.7.0.1/24 dev a0");
    let mac = port.facts.mac.map(|byte| format!("{byte:02x}")).join(":");
    a.sh(&format!("ip neigh add 10.7.0.2 lladdr {mac} dev a0"));
    // UDP segmentation offload makes a super-packet without any handshake.
    a.run(|| {
        let socket = UdpSocket::bind("10.7.0.1:4000").unwrap();
        let segment = 1000i32;
        // SAFETY: UDP_SEGMENT takes an int.
        let result = unsafe {
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, (&raw const segment).cast(), 4)
        };
        assert_eq!(result, 0);
        socket.send_to(&[0x88; 20_000], "10.7.0.2:9").unwrap();
    });
    let mut pool = pool(64);
    let mut batch = Batch::new();
    let limit = Instant::now() + PATIENCE;
    let packet = 'found: loop {
        port.queues[0].rx.receive(&mut batch, 1, &mut pool).unwrap();
        for packet in batch.drain() {
            if packet.offload.gso_kind == GsoKind::Udp {
                break 'found packet;
            }
            pool.free(packet.frame);
        }
        assert!(Instant::now() < limit, "no super-packet came");
    };
    assert_eq!((packet.offload.gso_size, packet.offload.csum_start, packet.offload.csum_offset), (1000, 34, 6));
    assert!(packet.frame.is_chain() && packet.frame.len() > 20_000);
    // Without offload it is refused, not sent wrong.
    let mut frames = vec![TxFrame { frame: packet.frame, offload: packet.offload }];
    let mut refused = Vec::new();
    port.queues[0].tx.transmit(&mut frames, &mut refused, &mut pool).unwrap();
    assert_eq!((frames.len(), refused.len()), (0, 1));
    pool.free(refused.remove(0).frame);
}

#[test]
fn a_link_goes_down_and_returns_and_is_lost() {
    let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
    let mut pool = pool(512);
    let raw = raw_socket(&a, "a0");
    let pair = &mut port.queues[0];
    let bytes = experiment(60, 1);

    // The peer goes down: no carrier here. Frames are lost and counted, nothing blocks, no error.
    a.sh("ip link set a0 down");
    let limit = Instant::now() + PATIENCE;
    let mut refused = Vec::new();
    while pair.tx.statistics().tx_lost == 0 {
        let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload: Offload::NONE }];
        pair.tx.transmit(&mut frames, &mut refused, &mut pool).unwrap();
        // The ring may fill before the kernel says that there is no carrier.
        frames.drain(..).for_each(|tx| pool.free(tx.frame));
        assert!(refused.is_empty() && Instant::now() < limit, "{:?}", pair.tx.statistics());
    }
    // The interface itself goes down, too.
    b.sh("ip link set b0 down");
    let before = pair.tx.statistics().tx_lost;
    send_all(pair, &mut pool, &[bytes.clone(), bytes.clone()]);
    assert_eq!(pair.tx.statistics().tx_lost, before + 2);
    assert!(!pair.rx.arm());

    b.sh("ip link set b0 up");
    a.sh("ip link set a0 up");
    let raw_again = raw_socket(&a, "a0");
    drop(raw);
    raw_send(&raw_again, &bytes);
    assert_same(&receive_one(pair.rx.as_mut(), &mut pool).0, &bytes);
    send_all(pair, &mut pool, std::slice::from_ref(&bytes));
    assert_same(&raw_receive(&raw_again), &bytes);

    // The device goes for good.
    a.sh("ip link del a0");
    let mut batch = Batch::new();
    let limit = Instant::now() + PATIENCE;
    let lost = loop {
        match pair.rx.receive(&mut batch, 8, &mut pool) {
            Err(error) => break error,
            Ok(_) => batch.drain().for_each(|packet| pool.free(packet.frame)),
        }
        assert!(Instant::now() < limit, "the loss is not seen");
    };
    assert!(matches!(&lost, PortError::Lost(name) if name == "b0"), "{lost}");
    assert!(pair.rx.arm(), "a lost device does not let the worker sleep");
    let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload: Offload::NONE }];
    let error = pair.tx.transmit(&mut frames, &mut Vec::new(), &mut pool).unwrap_err();
    assert!(matches!(error, PortError::Lost(_)), "{error}");
    pair.rx.close(&mut pool);
    pair.tx.close(&mut pool);
    drop(port);

    // It returns, and the port opens again.
    connect((&a, "a0"), (&b, "b0"), 1500);
    let mut options = PacketOptions::new("b0");
    options.queues = 1;
    b.sh("nft delete table netdev t_b0");
    let mut port = open_in(&b, options, 1);
    let raw = raw_socket(&a, "a0");
    raw_send(&raw, &bytes);
    assert_same(&receive_one(port.queues[0].rx.as_mut(), &mut pool).0, &bytes);
}

/// The kernel refuses a frame in the middle of a batch: it is taken out and counted, the others go in order.
#[test]
fn a_malformed_frame_does_not_stop_the_ring() {
    let Some((a, b)) = Namespace::new().zip(Namespace::new()) else { return };
    connect((&a, "a0"), (&b, "b0"), 1500);
    let raw = raw_socket(&a, "a0");
    let mut ring = b.run(|| {
        let fd = sys::open_socket().unwrap();
        let facts = sys::interface_facts(&fd, "b0").unwrap();
        let ring = transmit::TransmitRing::new(fd, 32, 1522).unwrap();
        sys::bind(ring.fd(), facts.index, 0).unwrap();
        ring
    });
    let good = crate::port::virtio::VirtioHeader::default();
    let bad = crate::port::virtio::VirtioHeader { gso_type: 0x42, gso_size: 1, ..good };
    for lap in 0..20u8 {
        let frames: Vec<Vec<u8>> = (0..7).map(|seed| experiment(60 + usize::from(seed), seed + lap)).collect();
        for (place, bytes) in frames.iter().enumerate() {
            let header = if [2, 3, 6].contains(&place) { &bad } else { &good };
            assert!(ring.put(bytes.len(), header, |room| room.copy_from_slice(bytes)));
        }
        assert_eq!(ring.kick().unwrap(), transmit::Kick::Done);
        assert_eq!((ring.marked(), ring.refused()), (0, 3 * (u64::from(lap) + 1)));
        for place in [0, 1, 4, 5] {
            assert_same(&raw_receive(&raw), &frames[place]);
        }
    }
    assert_eq!(ring.outstanding(), 0);
}

/// The port wakes a sleeper, and a frame that waits is seen before sleeping.
#[test]
fn a_frame_wakes_the_waiting_descriptor() {
    let Some((a, _b, mut port)) = wire(1500, |_| {}) else { return };
    let mut pool = pool(64);
    let raw = raw_socket(&a, "a0");
    let rx = port.queues[0].rx.as_mut();
    let mut batch = Batch::new();
    std::thread::sleep(Duration::from_millis(50));
    while rx.receive(&mut batch, 8, &mut pool).unwrap() > 0 {
        batch.drain().for_each(|packet| pool.free(packet.frame));
    }
    assert!(!rx.arm());
    let mut poll = libc::pollfd { fd: rx.wait_fd().unwrap().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 0) }, 0, "{:#x}", poll.revents);
    raw_send(&raw, &experiment(60, 1));
    // SAFETY: one pollfd.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 2000) }, 1);
    assert!(rx.arm());
    assert_same(&receive_one(rx, &mut pool).0, &experiment(60, 1));
}

#[test]
fn refusals_say_what_to_do() {
    let Some(namespace) = Namespace::new() else { return };
    let attempt = |options: PacketOptions, dropped: &'static str| {
        namespace
            .run(move || open(&options, PortId(0), IngressDropped::held_by(dropped, ())).err().unwrap().to_string())
    };
    assert!(attempt(PacketOptions::new("nope0"), "nope0").contains("no interface nope0"));
    assert!(attempt(PacketOptions::new("lo"), "lo").contains("not an Ethernet interface"));
    assert!(attempt(PacketOptions::new("lo"), "eth0").contains("dropped on eth0"));
    let none = PacketOptions { queues: 0, ..PacketOptions::new("lo") };
    assert!(attempt(none, "lo").contains("1 to 256"));
}

/// The same tests run as an unprivileged user would run them: root only within a user namespace of its own.
#[test]
fn works_in_a_user_namespace() {
    if std::env::var_os("FERRULE_IN_USER_NAMESPACE").is_some() {
        return;
    }
    let can = Command::new("unshare").args(["-Urn", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: `unshare -Urn` is not allowed here");
        return;
    }
    let test = "port::packet::tests::frames_pass_whole_in_both_directions";
    let output = Command::new("unshare")
        .args(["-Urn"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("FERRULE_IN_USER_NAMESPACE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed") && !text.contains("skipped"), "{text}");
}
