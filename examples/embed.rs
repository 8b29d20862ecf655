//! A stage of one's own in a gateway of one's own: drops DNS questions in either direction and counts them, in thirty lines.
//!
//! cargo run --example embed

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::fib::{MacAddress, PortId};
use ferrule_dataplane::stage::{Context, Hook, Stage};
use ferrule_dataplane::verdict::{DropReason, Verdict};
use ferrule_dataplane::world::{PortPlan, World};

struct NoDns;

impl Stage for NoDns {
    fn name(&self) -> &'static str {
        "no-dns"
    }

    fn process(&mut self, hook: Hook, batch: &mut Batch, _context: &mut Context<'_>) {
        for packet in batch.packets_mut().iter_mut().filter(|p| hook == Hook::In && p.goes_on()) {
            if packet.protocol == 17 && (packet.destination_port == 53 || packet.source_port == 53) {
                packet.judge(Verdict::Drop(DropReason::Filter));
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (lan, wan) = (PortId(0), PortId(1));
    let mut world = World::builder()
        .port(PortPlan::new("lan").address("10.0.0.1/24".parse()?))
        .port(PortPlan::new("wan").address("192.0.2.1/24".parse()?))
        .stages(|_worker| vec![Box::new(NoDns)])
        .build()?;
    world.table.neighbor_set(wan, "192.0.2.9".parse()?, Some(MacAddress([2, 0, 0, 0, 9, 9])))?;
    for port in [53, 123] {
        let frame = udp(world.mac(lan), [10, 0, 0, 7], [192, 0, 2, 9], port);
        assert!(world.inject(lan, &frame), "the ring is empty");
    }
    world.settle();
    println!("sent: {} frame(s)", world.collect(wan).len());
    println!("dropped: {:?}", world.totals().dropped);
    println!("every packet and buffer is accounted for: {}", world.close().is_exact());
    Ok(())
}

/// An Ethernet frame with an IPv4 and a UDP header and nothing in it (no UDP checksum).
fn udp(to: MacAddress, source: [u8; 4], destination: [u8; 4], port: u8) -> Vec<u8> {
    let mut frame = [&to.0[..], &[2, 0, 0, 0, 7, 7], &[8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0]].concat();
    frame.extend([source, destination].concat());
    frame.extend([0xc0, 0, 0, port, 0, 8, 0, 0]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let check = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame
}
