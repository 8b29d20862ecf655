use super::*;
use crate::pktgen::range::Range;
use crate::pktgen::template::FrameSpec;
use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, HugePages};
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::memory::{self, Peer};
use std::collections::HashMap;

fn queue(ring: usize) -> (Queue, Peer) {
    let arena = Arena::new(512, DEFAULT_STRIDE, HugePages::Off).unwrap();
    let pool = Pool::split(&arena, 1).remove(0);
    let (pair, peer) = memory::queue(PortId(0), ring);
    (Queue { pair, pool }, peer)
}

fn template(source: &str, destination: &str, v6: bool, size: usize) -> Template {
    let spec = FrameSpec {
        size,
        source: Range::parse(source, v6).unwrap(),
        destination: Range::parse(destination, v6).unwrap(),
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        random_source: false,
        random_destination: false,
    };
    Template::new(&spec, 7)
}

/// Takes all that was sent, calls `each` with the bytes, and gives the buffers back.
fn sink(peer: &mut Peer, sender: &mut Sender, mut each: impl FnMut(&[u8])) -> u64 {
    let mut n = 0;
    while let Ok(t) = peer.from_port.pop() {
        let mut bytes = vec![0; t.frame.len()];
        sender.pool().arena().copy_out(&t.frame, 0, &mut bytes);
        each(&bytes);
        sender.pool().free(t.frame);
        n += 1;
    }
    n
}

#[test]
fn exactly_as_many_as_asked_each_flow_once() {
    let (queue, mut peer) = queue(100);
    let t = template("10.0.0.1:1000-10.0.0.10:1499", "10.1.0.1", false, 60);
    let mut sender = Sender::new(queue, t, None, 512, Some(5000));
    let mut flows: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut got = 0;
    let mut fulls = 0;
    loop {
        match sender.step(0).unwrap() {
            Sent::Done => break,
            Sent::Full => fulls += 1,
            _ => {}
        }
        got += sink(&mut peer, &mut sender, |b| *flows.entry(b[26..38].to_vec()).or_default() += 1);
        assert!(fulls < 10_000);
    }
    got += sink(&mut peer, &mut sender, |_| ());
    let totals = sender.totals();
    assert_eq!((got, totals.packets, totals.bytes), (5000, 5000, 300_000));
    assert_eq!(flows.len(), 5000, "ports first, then addresses: all different");
    assert!(flows.values().all(|n| *n == 1));
    assert!(totals.events >= 50, "the ring takes a hundred at a time");
    assert_eq!(sender.pool().available(), 512);
}

#[test]
fn a_full_ring_loses_nothing_and_no_buffer_is_no_end() {
    let (queue, mut peer) = queue(1000);
    let mut sender = Sender::new(queue, template("10.0.0.1", "10.1.0.1", false, 60), None, 512, None);
    assert_eq!(sender.step(0).unwrap(), Sent::Frames(512));
    assert_eq!(sender.step(0).unwrap(), Sent::Full, "all buffers are out");
    assert_eq!(sender.totals().min_space, 0);
    assert_eq!(sink(&mut peer, &mut sender, |_| ()), 512);
    assert_eq!(sender.step(0).unwrap(), Sent::Frames(512));
}

#[test]
fn rates_hold_in_virtual_time() {
    let (queue, mut peer) = queue(512);
    let pacer = Pacer::new(10_000, 512, 0);
    let mut sender = Sender::new(queue, template("10.0.0.1", "10.1.0.1", false, 60), Some(pacer), 512, None);
    let mut now = 0;
    while now < 3_000_000_000 {
        match sender.step(now).unwrap() {
            Sent::Early(at) => now = at,
            _ => drop(sink(&mut peer, &mut sender, |_| ())),
        }
    }
    let sent = sender.totals().packets;
    assert!((29_960..=30_040).contains(&sent), "{sent}");
}

#[test]
fn jumbo_frames_and_random_sizes() {
    let (queue, mut peer) = queue(512);
    let t = template("fd00::1", "fd00::2", true, 9014);
    let mut sender = Sender::new(queue, t, None, 4, Some(200)).with_sizes(Some((100, 9014)));
    let mut sizes = std::collections::HashSet::new();
    let mut bytes = 0;
    while sender.step(0).unwrap() != Sent::Done {
        sink(&mut peer, &mut sender, |b| {
            sizes.insert(b.len());
            bytes += b.len() as u64;
            let udp_len = u64::from(u16::from_be_bytes([b[58], b[59]]));
            assert_eq!(udp_len as usize + 54, b.len());
        });
    }
    assert_eq!((sender.totals().packets, sender.totals().bytes), (200, bytes));
    assert!(sizes.len() > 40 && sizes.iter().all(|s| (100..9014).contains(s)), "{sizes:?}");
}

/// Moves frames from one memory port's peer to the other's.
fn wire(from: &mut Peer, to: &mut Peer) {
    while let Ok(t) = from.from_port.pop() {
        to.to_port.push(t).unwrap_or_else(|_| panic!("ring too small"));
    }
}

/// Two queues that share an arena, as a device and its peer do not, but a test may.
fn two_queues() -> [(Queue, Peer); 2] {
    let arena = Arena::new(1024, DEFAULT_STRIDE, HugePages::Off).unwrap();
    let mut pools = Pool::split(&arena, 2).into_iter();
    std::array::from_fn(|i| {
        let (pair, peer) = memory::queue(PortId(i as u16), 256);
        (Queue { pair, pool: pools.next().unwrap() }, peer)
    })
}

#[test]
fn the_receiver_counts_its_own_only_when_asked() {
    for own in [false, true] {
        let [(tx_queue, mut tx_peer), (rx_queue, mut rx_peer)] = two_queues();
        let mut sender = Sender::new(tx_queue, template("10.0.0.1", "10.1.0.1", false, 100), None, 32, Some(96));
        let mut receiver = Receiver::new(rx_queue, 512, own);
        let stranger = receiver.queue.pool.frame_from(&[0xaa; 70]).unwrap();
        rx_peer.to_port.push(TxFrame { frame: stranger, offload: Offload::NONE }).ok().unwrap();
        let mut got = 0;
        while sender.step(0).unwrap() != Sent::Done {
            wire(&mut tx_peer, &mut rx_peer);
            got += receiver.step(u64::MAX).unwrap();
        }
        assert_eq!(got, if own { 96 } else { 97 });
        assert_eq!(receiver.others(), u64::from(own));
        let totals = receiver.totals();
        assert_eq!((totals.packets, totals.bytes), (got, 9600 + if own { 0 } else { 70 }));
    }
}

#[test]
fn ping_and_pong_measure_the_way_there_and_back() {
    for v6 in [false, true] {
        let [(ping_queue, mut ping_peer), (pong_queue, mut pong_peer)] = two_queues();
        let (s, d) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.1.0.1") };
        let mut pinger = Pinger::new(ping_queue, template(s, d, v6, 90));
        let mut ponger = Ponger::new(pong_queue, Some([2, 0, 0, 0, 0, 2]));
        let mut now = 5_999_999_000;
        for _ in 0..10 {
            assert!(pinger.send(now).unwrap());
            wire(&mut ping_peer, &mut pong_peer);
            assert_eq!(ponger.step().unwrap(), 1);
            let reply = pong_peer.from_port.pop().unwrap();
            let h = reply.frame.header();
            assert_eq!((h[..6].to_vec(), h[6..12].to_vec()), (vec![2, 0, 0, 0, 0, 1], vec![2, 0, 0, 0, 0, 2]));
            assert_eq!(h[if v6 { 37 } else { 29 }], if v6 { 2 } else { 1 }, "the source is the one that was pinged");
            ping_peer.to_port.push(reply).ok().unwrap();
            now += 1500;
            assert_eq!(pinger.receive(now).unwrap(), 1);
        }
        assert_eq!((pinger.sent, ponger.totals().packets), (10, 10));
        assert_eq!(pinger.round_trips.overall(), Some((1500, 1500)));
        assert_eq!(
            pinger.round_trips.interval().unwrap(),
            "count 10 RTT: min 1500 av 1500 ns\nk: 1024 .. 1024\n\t    10"
        );
        assert_eq!(pinger.round_trips.interval(), None);
    }
}

#[test]
fn pong_leaves_other_frames_alone() {
    let [(queue, mut peer), _] = two_queues();
    let mut ponger = Ponger::new(queue, Some([2, 0, 0, 0, 0, 2]));
    let mut other = template("10.0.0.1", "10.1.0.1", false, 60).bytes().to_vec();
    other[5] = 9;
    let mut tcp = template("10.0.0.1", "10.1.0.1", false, 60).bytes().to_vec();
    tcp[23] = 6;
    for bytes in [&other[..], &tcp[..], &[0; 20][..]] {
        let frame = ponger.queue.pool.frame_from(bytes).unwrap();
        peer.to_port.push(TxFrame { frame, offload: Offload::NONE }).ok().unwrap();
    }
    assert_eq!(ponger.step().unwrap(), 3);
    assert!(peer.from_port.pop().is_err());
}
