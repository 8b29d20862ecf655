#![forbid(unsafe_code)]
//! Ferrule's filter stages: which of them stand in the packet's way, and in what order.
//!
//! The In hook meets the stages in the order of the [`LineUp`], the Out hook backwards: with ipfw before pf, as FreeBSD's hooks run by
//! default, a forwarded packet passes ipfw, pf, the routes, pf, ipfw. The engines themselves come with later issues; until then
//! the one stage there is passes everything and shows what a line-up costs.

pub mod dummynet;
pub mod ipfw;
pub mod nat;

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::stage::{Context, Hook, Stage};

/// The stages of a gateway, in the order of the In hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineUp {
    /// How many [`PassThrough`] stages.
    pub pass_through: usize,
}

impl LineUp {
    /// New stages for one worker: each has its own.
    pub fn stages(&self) -> Vec<Box<dyn Stage>> {
        (0..self.pass_through).map(|_| Box::new(PassThrough) as Box<dyn Stage>).collect()
    }

    /// Names of the stages, as counters show them.
    pub fn names(&self) -> Vec<String> {
        self.stages().iter().map(|stage| stage.name().to_owned()).collect()
    }
}

/// A stage without an opinion: what the two hooks cost before any rule is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct PassThrough;

impl Stage for PassThrough {
    fn name(&self) -> &'static str {
        "pass-through"
    }

    fn process(&mut self, _hook: Hook, _batch: &mut Batch, _context: &mut Context<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_dataplane::fib::{MacAddress, Prefix, RouteKind};
    use ferrule_dataplane::packet::PortId;
    use ferrule_dataplane::world::{PortPlan, World};

    const FRAME: [u8; 60] = {
        let mut f = [0; 60];
        let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0xee, 0x95];
        let rest = [198, 18, 0, 2, 198, 19, 0, 2, 0, 7, 0, 9, 0, 26];
        let mut i = 0;
        while i < head.len() {
            f[i] = head[i];
            i += 1;
        }
        while i < head.len() + rest.len() {
            f[i] = rest[i - head.len()];
            i += 1;
        }
        f
    };

    #[test]
    fn a_line_up_of_pass_throughs_changes_nothing() {
        let forward = |stages: usize| {
            let mut world = World::builder()
                .port(PortPlan::new("a").mac(MacAddress([2, 0, 0, 0, 0, 1])))
                .port(PortPlan::new("b").mac(MacAddress([2, 0, 0, 0, 0, 2])))
                .stages(move |_| LineUp { pass_through: stages }.stages())
                .build()
                .unwrap();
            let to = Prefix::V4 { address: 0xc613_0000, length: 24 };
            world.table.route_replace(to, 0, RouteKind::Connected { port: PortId(1) }).unwrap();
            let gone = std::net::IpAddr::from([198, 19, 0, 2]);
            world.table.neighbor_set(PortId(1), gone, Some(MacAddress([2, 0, 0, 0, 0, 8]))).unwrap();
            assert!(world.inject(PortId(0), &FRAME));
            world.settle();
            assert_eq!(world.balance().difference(), 0);
            world.collect(PortId(1))
        };
        let plain = forward(0);
        assert_eq!(plain.len(), 1);
        assert_eq!(forward(1), plain);
        assert_eq!(forward(2), plain);
    }
}
