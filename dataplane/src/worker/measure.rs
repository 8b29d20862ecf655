//! temporary measurement
use super::*;
use crate::arena::*;
use crate::fib::*;
use crate::packet::Offload;
use crate::packet::hash::HashSeed;
use crate::port::{TxFrame, memory};
use crate::ports::*;
use crate::stage::*;
use std::sync::Arc;
/// Runs one case and prints its cycles.
pub fn run(buffers: u32, stride: usize, shuffled: bool, dests: usize) {
    let domain = crate::quiesce::Domain::new(1);
    let mut t = RoutingTable::new(&domain, TableLimits::default());
    for i in 0..2u16 {
        t.port_set(
            PortId(i),
            PortSettings { mac: MacAddress([2, 0, 0, 0, 0, 1 + i as u8]), mtu: 1500, vlan: None, up: true },
        )
        .unwrap();
    }
    let p4 = |a: u32, l: u8| Prefix::V4 { address: a, length: l };
    t.route_replace(p4(0x0a000000, 24), 0, RouteKind::Connected { port: PortId(1) }).unwrap();
    let gw = |i: u32| -> std::net::IpAddr { std::net::Ipv4Addr::from(0x0a000001 + i).into() };
    for i in 0..64 {
        t.neighbor_set(PortId(1), gw(i), Some(MacAddress([2, 0, 0, 0, 1, i as u8]))).unwrap();
    }
    if dests == 1 {
        t.route_replace(p4(0xc6130000, 16), 0, RouteKind::via(PortId(1), gw(0))).unwrap();
    } else {
        for i in 0..(1u32 << 20) {
            let a = i << 12;
            let top = a >> 24;
            if top == 0 || top == 127 || top >= 224 {
                continue;
            }
            t.route_replace(p4(a, 20), 0, RouteKind::via(PortId(1), gw(i % 64))).unwrap();
        }
        let mut x = 1u64;
        for _ in 0..256 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let a = x as u32 & !127;
            let top = a >> 24;
            if top == 0 || top == 127 || top >= 224 {
                continue;
            }
            t.route_replace(p4(a, 25), 0, RouteKind::via(PortId(1), gw(1))).ok();
        }
    }
    let ports = PortTable::new(vec![
        Port::new("a", PortId(0), MacAddress([2, 0, 0, 0, 0, 1]), 1500),
        Port::new("b", PortId(1), MacAddress([2, 0, 0, 0, 0, 2]), 1500),
    ]);
    let shared = Arc::new(Shared { fib: t.fib(), ports, seed: HashSeed::random() });
    let arena = Arena::new(buffers + 64, stride, HugePages::Prefer).unwrap();
    let pool = Pool::split(&arena, 1).remove(0);
    let bell = Arc::new(Waker::new().unwrap());
    let counters = Arc::new(WorkerCounters::new(2, 0));
    let (requests, _r) = rtrb::RingBuffer::new(16);
    let mut worker = Worker::new(Parts {
        options: Options::default(),
        shared,
        counters: counters.clone(),
        pool,
        quiesce: domain.register().unwrap(),
        stages: vec![],
        host: None,
        rings: Rings::default(),
        requests,
        control: Arc::new(Waker::new().unwrap()),
        mailbox: Arc::new(Mailbox::new(bell)),
    });
    let (qa, mut pa) = memory::queue(PortId(0), buffers as usize);
    let (qb, mut pb) = memory::queue(PortId(1), buffers as usize);
    worker.attach(qa);
    worker.attach(qb);
    let mut order: Vec<_> = (0..buffers).map(|_| worker.pool.alloc().unwrap()).collect();
    let mut seed = 0x9E37_79B9_7F4A_7C15u64;
    let mut rnd = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    if shuffled {
        for i in (1..order.len()).rev() {
            let j = rnd() as usize % (i + 1);
            order.swap(i, j);
        }
    }
    let targets: Vec<u32> = (0..dests.max(1)).map(|_| 0xc6130000 | (rnd() as u32 & 0xffff)).collect();
    let mut samples = vec![];
    for round in 0..std::env::var("R").map(|b| b.parse().unwrap()).unwrap_or(20) {
        let n = order.len();
        for mut f in order.drain(..) {
            assert!(f.set_len(60));
            let dst = if dests == 0 {
                let d = rnd() as u32;
                let t = d >> 24;
                if t == 0 || t == 127 || t >= 224 || d >> 16 == 0xa9fe { 0xc6130001 } else { d }
            } else {
                targets[rnd() as usize % targets.len()]
            };
            let h = f.header_mut();
            h[..60].fill(0);
            h[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            h[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
            h[12] = 8;
            h[14] = 0x45;
            h[17] = 46;
            h[22] = 64;
            h[23] = 17;
            h[26..30].copy_from_slice(&[198, 18, 10, 1]);
            h[30..34].copy_from_slice(&dst.to_be_bytes());
            h[34] = 7;
            h[36] = 9;
            h[39] = 26;
            let c = crate::packet::checksum::checksum(&h[14..34]);
            h[24..26].copy_from_slice(&c.to_ne_bytes());
            pa.to_port.push(TxFrame { frame: f, offload: Offload::NONE }).ok().unwrap();
        }
        let t = crate::clock::cycles();
        let mut got = 0;
        while got < n {
            let k = worker.turn();
            if k == 0 {
                break;
            }
            got += k;
        }
        let t = crate::clock::cycles() - t;
        if round > 1 {
            samples.push(t as f64 / n as f64);
        }
        while let Ok(f) = pb.from_port.pop() {
            order.push(f.frame);
        }
        assert_eq!(
            order.len(),
            n,
            "{:?}",
            counters
                .dropped
                .iter()
                .enumerate()
                .filter(|(_, c)| c.get() > 0)
                .map(|(i, c)| (crate::verdict::DropReason::ALL[i].label(), c.get()))
                .collect::<Vec<_>>()
        );
        if shuffled {
            for i in (1..order.len()).rev() {
                let j = rnd() as usize % (i + 1);
                order.swap(i, j);
            }
        }
    }
    samples.sort_by(f64::total_cmp);
    print!(
        "{buffers} x {stride} shuffled {shuffled} dests {dests}: median {:.1} p10 {:.1} pages {:?}  ",
        samples[samples.len() / 2],
        samples[samples.len() / 10],
        arena.pages()
    );
    for (i, n) in counters.nodes.iter().enumerate() {
        if n.packets.get() > 0 {
            print!(" {} {:.1}", crate::counters::NODES[i], n.cycles.get() as f64 / n.packets.get() as f64);
        }
    }
    println!();
}
