//! What a line-up costs: cycles per packet of a gateway in memory, without filters and with them, in one run.
//!
//! `cargo run --release -p ferrule-filters --example ipfw_cycles`

use ferrule_dataplane::arena::{DEFAULT_STRIDE, Frame, HugePages};
use ferrule_dataplane::clock;
use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind};
use ferrule_dataplane::packet::{Offload, PortId};
use ferrule_dataplane::port::TxFrame;
use ferrule_dataplane::stage::Stage;
use ferrule_dataplane::world::{Lane, PortPlan, World};
use ferrule_filters::LineUp;

const PIECE: usize = 2048;

struct Rig {
    world: World,
    frames: Vec<Frame>,
}

impl Rig {
    fn new(stages: Vec<Box<dyn Stage>>) -> Rig {
        let mut stages = Some(stages);
        let mut world = World::builder()
            .port(PortPlan::new("in"))
            .port(PortPlan::new("out"))
            .buffers(512, PIECE)
            .memory(DEFAULT_STRIDE, HugePages::Prefer)
            .ring(PIECE)
            .real_time()
            .stages(move |_| stages.take().unwrap_or_default())
            .build()
            .unwrap();
        let back = world.mac(PortId(0));
        let to = Prefix::V4 { address: 0, length: 0 };
        let net = Prefix::V4 { address: 0x0a00_0000, length: 16 };
        world.table.route_replace(net, 0, RouteKind::Connected { port: PortId(1) }).unwrap();
        let gateway = std::net::IpAddr::from([10, 0, 0, 9]);
        world.table.neighbor_set(PortId(1), gateway, Some(back)).unwrap();
        world.table.route_replace(to, 0, RouteKind::via(PortId(1), gateway)).unwrap();
        let frames = std::iter::from_fn(|| world.pool().alloc()).take(PIECE).collect();
        Rig { world, frames }
    }

    fn fill(&mut self, mut flow: impl FnMut(u32) -> (u32, u32, u16, u16)) {
        let mac = self.world.mac(PortId(0));
        for (i, frame) in self.frames.iter_mut().enumerate() {
            let (source, destination, source_port, destination_port) = flow(i as u32);
            write_udp(frame.header_mut(), mac, source, destination, source_port, destination_port);
            assert!(frame.set_len(60));
        }
    }

    /// Cycles per packet of one round.
    fn round(&mut self) -> f64 {
        let mut lanes = self.world.lanes();
        let Lane { worker, peers } = &mut lanes[0];
        let [Some(input), Some(output)] = &mut peers[..] else { panic!() };
        for frame in self.frames.drain(..) {
            input.to_port.push(TxFrame { frame, offload: Offload::NONE }).ok().unwrap();
        }
        let start = clock::cycles();
        let mut found = 0;
        while found < PIECE {
            match worker.turn() {
                0 => break,
                some => found += some,
            }
        }
        let cycles = clock::cycles() - start;
        while let Ok(done) = output.from_port.pop() {
            self.frames.push(done.frame);
        }
        assert_eq!(self.frames.len(), PIECE, "a packet was lost");
        cycles as f64 / PIECE as f64
    }

    fn measure(&mut self, flow: impl Fn(u32) -> (u32, u32, u16, u16)) -> f64 {
        let mut all = Vec::new();
        for _ in 0..40 {
            self.fill(&flow);
            (0..20).for_each(|_| all.push(self.round()));
        }
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }
}

fn write_udp(h: &mut [u8; 128], mac: MacAddress, source: u32, destination: u32, sp: u16, dp: u16) {
    h[..60].fill(0);
    h[..6].copy_from_slice(&mac.0);
    h[6..12].copy_from_slice(&[2, 0, 0, 0, 7, 7]);
    h[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    h[26..30].copy_from_slice(&source.to_be_bytes());
    h[30..34].copy_from_slice(&destination.to_be_bytes());
    h[34..36].copy_from_slice(&sp.to_be_bytes());
    h[36..38].copy_from_slice(&dp.to_be_bytes());
    h[38..40].copy_from_slice(&[0, 26]);
    let sum: u32 = h[14..34].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    h[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn classic(i: u32) -> (u32, u32, u16, u16) {
    (0xc612_0a01 + i / 70, 0xc613_0a01 + i % 70, 2000, 2000)
}

fn main() {
    let plain = Rig::new(vec![]).measure(classic);
    println!("plain {plain:.1}");
    let pass = Rig::new(LineUp { pass_through: 1 }.stages()).measure(classic);
    println!("pass-through {pass:.1} (+{:.1})", pass - plain);
}
