//! TAP queues against the kernel's stack, in namespaces that the test makes.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::arena::{Arena, DEFAULT_STRIDE, HugePages};
use crate::packet::GsoKind;
use crate::port::testnet::Namespace;

const PATIENCE: Duration = Duration::from_secs(5);

fn pool(buffers: u32) -> Pool {
    Pool::split(&Arena::new(buffers, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
}

/// A namespace with a TAP in it, without IPv6 chatter; None with the reason printed.
fn tap(queues: usize, offload: bool, mtu: u32, address: &str) -> Option<(Namespace, OpenTap)> {
    let namespace = Namespace::new()?;
    if let Err(error) = std::fs::metadata("/dev/net/tun") {
        eprintln!("skipped: no /dev/net/tun: {error}");
        return None;
    }
    let tap = namespace.run(move || open("tap%d", queues, offload, PortId(3))).unwrap();
    assert!(tap.name.starts_with("tap"), "{}", tap.name);
    namespace.sh(&format!(
        "sysctl -qw net.ipv6.conf.{0}.disable_ipv6=1
         ip link set {0} mtu {mtu} address 02:00:00:00:00:01 up
         ip addr add {address}/24 dev {0}
         for host in 1 2 3; do ip neigh add 10.9.0.$host lladdr 02:00:00:00:00:99 dev {0} 2>/dev/null || true; done",
        tap.name
    ));
    Some((namespace, tap))
}

/// An IPv4 UDP frame to the TAP's host, port 7, with a checksum over the pseudo-header only.
fn datagram(payload: &[u8]) -> (Vec<u8>, Offload) {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x99, 8, 0];
    let total = (28 + payload.len()) as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = crate::packet::checksum::checksum(&ip).to_ne_bytes();
    ip[10..12].copy_from_slice(&sum);
    bytes.extend(ip);
    let length = (8 + payload.len()) as u16;
    let pseudo = crate::packet::checksum::pseudo_v4([10, 9, 0, 2], [10, 9, 0, 1], 17, length);
    bytes.extend([0x10, 0, 0, 7]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(crate::packet::checksum::fold(pseudo).to_ne_bytes());
    bytes.extend(payload);
    (bytes, Offload { csum_start: 34, csum_offset: 6, ..Offload::NONE })
}

fn receive_one(rx: &mut dyn RxQueue, pool: &mut Pool) -> Packet {
    let mut batch = Batch::new();
    let limit = Instant::now() + PATIENCE;
    loop {
        if rx.receive(&mut batch, 1, pool).unwrap() == 1 {
            return batch.drain().next().unwrap();
        }
        assert!(Instant::now() < limit, "nothing came");
    }
}

#[test]
fn frames_pass_both_ways_and_long_ones_are_chains() {
    let Some((namespace, mut tap)) = tap(1, false, 9000, "10.9.0.1") else { return };
    let mut pool = pool(256);
    let arena = pool.arena().clone();
    let socket = namespace.run(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let pair = &mut tap.queues[0];
    for length in [1, 18, 1000, 1472, 3000, 8972] {
        let payload: Vec<u8> = (0..length).map(|at| (at * 13 + length) as u8).collect();
        // Up: the stack completes and checks the sum, or it would drop the datagram.
        let (bytes, offload) = datagram(&payload);
        let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload }];
        pair.tx.transmit(&mut frames, &mut Vec::new(), &mut pool).unwrap();
        assert!(frames.is_empty());
        let mut got = vec![0; 10_000];
        let (count, from) = socket.recv_from(&mut got).unwrap();
        assert!(got[..count] == payload);
        // Down: without offload the sum is whole.
        socket.send_to(&payload, from).unwrap();
        let packet = receive_one(pair.rx.as_mut(), &mut pool);
        assert_eq!((packet.offload, packet.ingress), (Offload::NONE, PortId(3)));
        let bytes = arena.segments(&packet.frame).collect::<Vec<_>>().concat();
        assert_eq!(packet.frame.is_chain(), bytes.len() > arena.capacity());
        assert!(bytes[42..] == payload);
        let pseudo = crate::packet::checksum::pseudo_v4([10, 9, 0, 1], [10, 9, 0, 2], 17, (bytes.len() - 34) as u16);
        assert_eq!(crate::packet::checksum::fold(crate::packet::checksum::sum(&bytes[34..], pseudo)), 0xffff);
        pool.free(packet.frame);
    }
    assert_eq!(pair.rx.statistics().copied, 6);
    pair.rx.close(&mut pool);
    pair.tx.close(&mut pool);
    assert_eq!(pool.available(), 256);
}

#[test]
fn a_wrong_checksum_does_not_pass_as_partial() {
    let Some((namespace, mut tap)) = tap(1, false, 1500, "10.9.0.1") else { return };
    let mut pool = pool(64);
    let socket = namespace.run(|| UdpSocket::bind("10.9.0.1:7").unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // The same datagram without the mark: its field holds the pseudo sum only, which is wrong on a wire.
    let (bytes, _) = datagram(b"not marked");
    let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload: Offload::NONE }];
    tap.queues[0].tx.transmit(&mut frames, &mut Vec::new(), &mut pool).unwrap();
    assert!(socket.recv_from(&mut [0; 100]).is_err());
}

/// TCP between two namespaces whose TAPs are joined in user space; with offload, super-packets pass.
#[test]
fn tcp_passes_between_two_taps() {
    for offload in [true, false] {
        let Some((a, mut left)) = tap(1, offload, 1500, "10.9.0.1") else { return };
        let Some((c, mut right)) = tap(1, offload, 1500, "10.9.0.2") else { return };
        // Each end reaches the other under the address that the neighbour entries name.
        a.sh(&format!("ip link set {} address 02:00:00:00:00:01", left.name));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let wire = std::thread::spawn(move || {
            let mut pool = pool(4096);
            let mut batch = Batch::new();
            let (mut out, mut refused, mut supers) = (Vec::new(), Vec::new(), 0);
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..2 {
                    std::mem::swap(&mut left, &mut right);
                    left.queues[0].rx.receive(&mut batch, 32, &mut pool).unwrap();
                    for mut packet in batch.drain() {
                        supers += u32::from(packet.offload.gso_kind != GsoKind::None);
                        packet.frame.head_mut()[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
                        out.push(TxFrame { frame: packet.frame, offload: packet.offload });
                    }
                    right.queues[0].tx.transmit(&mut out, &mut refused, &mut pool).unwrap();
                    assert!(refused.is_empty());
                    out.drain(..).for_each(|tx| pool.free(tx.frame));
                }
            }
            supers
        });
        let server = c.run(|| TcpListener::bind("10.9.0.2:7000").unwrap());
        let receiver = std::thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let sent = bytes.clone();
        a.run(move || {
            let mut stream = TcpStream::connect("10.9.0.2:7000").unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&sent).unwrap();
        });
        assert!(receiver.join().unwrap() == bytes, "the data that arrived");
        stop.store(true, Ordering::Relaxed);
        let supers = wire.join().unwrap();
        assert_eq!(supers > 10, offload, "{supers} super-packets");
    }
}

#[test]
fn several_queues_share_one_interface() {
    let Some((namespace, mut tap)) = tap(2, false, 1500, "10.9.0.1") else { return };
    let mut pool = pool(512);
    namespace.run(|| {
        for flow in 0..64u16 {
            UdpSocket::bind(("10.9.0.1", 4000 + flow)).unwrap().send_to(b"x", "10.9.0.2:9").unwrap();
        }
    });
    let mut batch = Batch::new();
    let counts = [0, 1].map(|queue| {
        let count = tap.queues[queue].rx.receive(&mut batch, 256, &mut pool).unwrap();
        batch.drain().for_each(|packet| pool.free(packet.frame));
        count
    });
    assert_eq!(counts[0] + counts[1], 64, "{counts:?}");
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn down_gone_and_starved_are_told_apart() {
    let Some((namespace, mut tap)) = tap(1, false, 1500, "10.9.0.1") else { return };
    let mut pool = pool(64);
    let (bytes, offload) = datagram(b"hello");
    let pair = &mut tap.queues[0];
    let mut batch = Batch::new();

    // Too few buffers for the longest frame: nothing is read, nothing is lost.
    namespace.run(|| UdpSocket::bind("10.9.0.1:0").unwrap().send_to(b"waits", "10.9.0.2:9").unwrap());
    let held: Vec<Frame> = (0..40).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pair.rx.receive(&mut batch, 8, &mut pool).unwrap(), 0);
    held.into_iter().for_each(|frame| pool.free(frame));
    let packet = receive_one(pair.rx.as_mut(), &mut pool);
    assert_eq!(&packet.frame.head()[42..47], b"waits");
    pool.free(packet.frame);

    namespace.sh(&format!("ip link set {} down", tap.name));
    let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload }];
    pair.tx.transmit(&mut frames, &mut Vec::new(), &mut pool).unwrap();
    assert_eq!((frames.len(), pair.tx.statistics().tx_lost), (0, 1));

    namespace.sh(&format!("ip link del {}", tap.name));
    let mut frames = vec![TxFrame { frame: pool.frame_from(&bytes).unwrap(), offload }];
    let error = pair.tx.transmit(&mut frames, &mut Vec::new(), &mut pool).unwrap_err();
    assert!(matches!(error, PortError::Lost(_)), "{error}");
    let error = pair.rx.receive(&mut batch, 8, &mut pool).unwrap_err();
    assert!(matches!(error, PortError::Lost(_)), "{error}");
    frames.drain(..).for_each(|tx| pool.free(tx.frame));
    pair.rx.close(&mut pool);
    pair.tx.close(&mut pool);
    assert_eq!(pool.available(), 64);
}

#[test]
fn a_taken_interface_is_named() {
    let Some((namespace, tap)) = tap(1, false, 1500, "10.9.0.1") else { return };
    let name = tap.name.clone();
    let error = namespace.run(move || open(&name, 1, false, PortId(0)).err().unwrap().to_string());
    assert!(error.contains(&tap.name) && error.contains("another program has it open"), "{error}");
    let error = namespace.run(|| open("lo", 1, false, PortId(0)).err().unwrap().to_string());
    assert!(error.contains("no TAP"), "{error}");
}
