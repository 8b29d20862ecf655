//! Two workers on threads: packets reach the owner of their pipe and come home.

use super::*;
use crate::dummynet::owner::{Lane, Message, Owners, lanes};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// (home worker, pipe, number)
type Parcel = (usize, u32, u64);

#[derive(Default)]
struct Out(Vec<Parcel>);

impl Outlet<Parcel> for Out {
    fn deliver(&mut self, packet: Parcel, _tag: u64) {
        self.0.push(packet);
    }
    fn dropped(&mut self, packet: Parcel, _tag: u64, cause: DropCause) {
        panic!("{packet:?} dropped: {cause:?}");
    }
}

const PIPES: u32 = 5;
const EACH: u64 = 4000;

/// Sends EACH packets to the pipes in turn, shapes those of its own pipes, sends home what is through; what came home and losses.
fn work(mut lane: Lane<Parcel>, owners: &Owners, home_total: &AtomicU64, workers: usize) -> (Vec<Parcel>, u64) {
    let me = lane.id();
    let mut shaper: Shaper<Parcel> =
        Shaper::new(Limits::default(), Settings { slot_limit: 100_000, ..Settings::default() }, 1);
    let mut out = Out::default();
    for number in (1..=PIPES).filter(|&n| owners.of_scheduler(n) == me) {
        let config = link(pipe(number, 800_000_000, 1, slots(100_000)));
        shaper.configure(&config.into(), 0, &mut out).unwrap();
    }
    let (start, mut sent, mut lost) = (Instant::now(), 0, 0);
    let mut home = vec![];
    let mut waiting: Vec<Parcel> = vec![];
    while home_total.load(Ordering::Acquire) < EACH * workers as u64 {
        let now = start.elapsed().as_nanos() as u64;
        for _ in 0..16 {
            if sent == EACH {
                break;
            }
            let target = Target::Pipe((sent % u64::from(PIPES)) as u32 + 1);
            let Target::Pipe(number) = target else { continue };
            let packet = (me, number, sent);
            let owner = owners.of(target);
            if owner == me {
                shaper.enqueue(target, packet, 1000, &flow(1), 0, now, &mut out).unwrap();
            } else {
                let message = Message::Enqueue { target, packet, length: 1000, flow: flow(1), tag: 0 };
                if lane.send(owner, message).is_err() {
                    lost += 1;
                    home_total.fetch_add(1, Ordering::AcqRel);
                }
            }
            sent += 1;
        }
        lane.receive(64, |_, message| match message {
            Message::Enqueue { target, packet, length, flow, tag } => {
                shaper.enqueue(target, packet, length, &flow, tag, now, &mut out).unwrap();
            }
            Message::Deliver { packet, .. } => {
                home.push(packet);
                home_total.fetch_add(1, Ordering::AcqRel);
            }
        });
        shaper.poll(now, 64, &mut out);
        waiting.append(&mut out.0);
        // In order: whoever finds the ring full waits, and those behind it.
        while let Some(&packet) = waiting.first() {
            if packet.0 == me {
                home.push(packet);
                home_total.fetch_add(1, Ordering::AcqRel);
            } else if lane.send(packet.0, Message::Deliver { packet, tag: 0 }).is_err() {
                break;
            }
            waiting.remove(0);
        }
        std::thread::yield_now();
    }
    let t = shaper.totals();
    assert_eq!(t.offered, t.passed);
    (home, lost)
}

#[test]
fn every_packet_meets_its_pipe_at_the_owner_and_comes_home_in_order() {
    for (workers, capacity) in [(2, 1024), (3, 8)] {
        let owners = Owners::new(workers, []);
        let home_total = AtomicU64::new(0);
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = lanes(workers, capacity)
                .into_iter()
                .map(|lane| scope.spawn(|| work(lane, &owners, &home_total, workers)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for (me, (home, lost)) in results.into_iter().enumerate() {
            assert_eq!(home.len() as u64 + lost, EACH, "worker {me}");
            for number in 1..=PIPES {
                let mine: Vec<u64> = home.iter().filter(|p| p.1 == number).map(|p| p.2).collect();
                assert!(mine.is_sorted(), "pipe {number} of worker {me} keeps its order");
            }
            assert!(home.iter().all(|p| p.0 == me));
        }
    }
}
