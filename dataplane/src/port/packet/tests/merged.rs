//! Runs of TCP frames that leave as one super-packet, as the far end of a veth pair sees them.

use super::*;
use crate::port::packet::merge_tests::Flow;

const MERGING: &str = "ethtool -K b0 tx off tso off >/dev/null";

/// A packet socket that sees every frame which arrives.
fn watcher(namespace: &Namespace) -> OwnedFd {
    namespace.run(|| {
        let fd = sys::open_socket().unwrap();
        sys::set_packet_option(&fd, libc::PACKET_IGNORE_OUTGOING, &1i32).unwrap();
        sys::set_socket_option(&fd, libc::SO_RCVBUFFORCE, &(8i32 << 20)).unwrap();
        let facts = sys::interface_facts(&fd, "a0").unwrap();
        sys::bind(&fd, facts.index, libc::ETH_P_ALL as u16).unwrap();
        fd
    })
}

fn flow(six: bool, count: usize, seed: u32) -> Vec<Vec<u8>> {
    Flow { six, options: 3, segment: 1400, last: 700, count, push: true, seed }.frames()
}

/// Runs of both families, frames that are no part of one between and behind them, and one that is in a run but for its sum.
fn mixture() -> (Vec<Vec<u8>>, u64) {
    let mut frames = Vec::new();
    let mut alone = 0;
    for (lap, six) in [false, true, true, false].into_iter().enumerate() {
        frames.push(experiment(100 + lap, lap as u8));
        frames.extend(flow(six, 40, lap as u32));
        frames.extend(flow(six, 3, 10 + lap as u32));
        let mut wrong = flow(six, 9, 20 + lap as u32);
        wrong[4][200] ^= 1;
        frames.extend(wrong);
        // The experiment and the wrong one.
        alone += 2;
    }
    (frames, alone)
}

#[track_caller]
fn send_and_compare(port: &mut OpenPort, pool: &mut Pool, watch: &OwnedFd, frames: &[Vec<u8>]) -> u64 {
    let before = port.queues[0].tx.statistics().copied;
    assert!(send_all(&mut port.queues[0], pool, frames).is_empty());
    for frame in frames {
        assert_same(&raw_receive(watch), frame);
    }
    port.queues[0].tx.statistics().copied - before
}

#[test]
fn merged_runs_arrive_as_the_frames_they_were() {
    for scatter_gather in ["on", "off"] {
        let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
        b.sh(&format!("{MERGING}; ethtool -K b0 sg {scatter_gather} >/dev/null"));
        let (mut pool, watch) = (pool(512), watcher(&a));
        let (frames, alone) = mixture();
        assert_eq!(send_and_compare(&mut port, &mut pool, &watch, &frames), alone, "frames that went through the ring");
        assert_eq!(pool.available(), 512);
        assert_eq!(port.queues[0].tx.statistics().tx_lost, 0);
    }
}

#[test]
fn nothing_is_merged_for_a_device_that_hands_super_packets_on() {
    let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
    let (mut pool, watch) = (pool(512), watcher(&a));
    let (frames, alone) = mixture();
    let all = frames.len() as u64;
    // As veth is made; then without TSO but with unfinished checksums; then merging; then as made again.
    let steps = [
        ("true", all),
        ("ethtool -K b0 tso off >/dev/null", all),
        (MERGING, alone),
        ("ethtool -K b0 tx on tso on >/dev/null", all),
    ];
    for (set_up, expected) in steps {
        b.sh(set_up);
        std::thread::sleep(Duration::from_millis(1100));
        assert_eq!(send_and_compare(&mut port, &mut pool, &watch, &frames), expected, "{set_up}");
    }
}

/// The link loses room while the port is open: a run that fits no more is refused frame by frame, like any frame.
#[test]
fn runs_longer_than_the_link_are_refused() {
    let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
    b.sh(MERGING);
    let (mut pool, watch) = (pool(512), watcher(&a));
    let frames = flow(false, 10, 1);
    assert_eq!(send_and_compare(&mut port, &mut pool, &watch, &frames), 0);
    b.sh("ip link set b0 mtu 1300");
    std::thread::sleep(Duration::from_millis(1100));
    // Nine full frames; the last has 700 bytes of payload.
    assert_eq!(send_all(&mut port.queues[0], &mut pool, &frames), [1466; 9]);
    assert_same(&raw_receive(&watch), &frames[9]);
    assert_eq!(pool.available(), 512);
}

/// A link that loses its carrier loses frames as it does without merging: counted, without an error.
#[test]
fn losses_of_a_dead_link_are_counted() {
    let Some((a, b, mut port)) = wire(1500, |_| {}) else { return };
    b.sh(MERGING);
    let (mut pool, watch) = (pool(512), watcher(&a));
    let frames = flow(true, 10, 1);
    assert_eq!(send_and_compare(&mut port, &mut pool, &watch, &frames), 0);
    a.sh("ip link set a0 down");
    let limit = Instant::now() + PATIENCE;
    while port.queues[0].tx.statistics().tx_lost == 0 {
        let lend = |bytes: &Vec<u8>| TxFrame { frame: pool.frame_from(bytes).unwrap(), offload: Offload::NONE };
        let mut lent: Vec<TxFrame> = frames.iter().map(lend).collect();
        port.queues[0].tx.transmit(&mut lent, &mut Vec::new(), &mut pool).unwrap();
        lent.drain(..).for_each(|tx| pool.free(tx.frame));
        assert!(Instant::now() < limit);
    }
    a.sh("ip link set a0 up");
    let watch = watcher(&a);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(send_and_compare(&mut port, &mut pool, &watch, &frames), 0);
}

/// TCP of real stacks through a merging wire in user space, both ways of every connection.
#[test]
fn tcp_passes_a_merging_wire() {
    let Some(chain) = Chain::new(1500, false, "ethtool -K e0 tx off tso off gso off >/dev/null") else { return };
    chain._b.sh("ethtool -K b0 tx off tso off >/dev/null; ethtool -K b1 tx off tso off >/dev/null");
    chain.transfer("10.8.0.2", 32 << 20);
    chain.transfer("fd08::2", 32 << 20);
    assert_eq!(chain.checksum_errors(), 0);
    chain.forwarder.stop();
}
