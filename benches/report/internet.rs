//! A full Internet table in a rig, and destinations that its routes lead to.

#![forbid(unsafe_code)]

#[path = "../../dataplane/tests/internet/mod.rs"]
mod made_up;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule::compare::flows::Family;
use ferrule::compare::rig::{Random, Rig};
use ferrule::failure::Failure;
use ferrule_dataplane::fib::{Prefix, RouteKind, RoutingTable};

use crate::bench::Bench;

/// Prefixes, and addresses within them.
pub struct Internet {
    /// IPv4 prefixes.
    pub v4: Vec<Prefix>,
    /// IPv6 prefixes.
    pub v6: Vec<Prefix>,
}

impl Internet {
    /// 1.1 million IPv4 and 250,000 IPv6 prefixes; in a quick run a hundredth of it.
    pub fn new(bench: &Bench) -> Internet {
        let share = bench.size(1, 100);
        let mut random = made_up::Random::new(1);
        Internet {
            v4: made_up::prefixes_v4(made_up::FULL_V4 / share, &mut random),
            v6: made_up::prefixes_v6(made_up::FULL_V6 / share, &mut random),
        }
    }

    /// The prefixes of one family.
    pub fn of(&self, family: Family) -> &[Prefix] {
        match family {
            Family::Inet => &self.v4,
            Family::Inet6 => &self.v6,
        }
    }

    /// Puts all of it into a rig's table, over all gateways.
    ///
    /// # Errors
    /// When a route is refused.
    pub fn load(&self, rig: &mut Rig) -> Result<(), Failure> {
        for family in Family::ALL {
            for (number, prefix) in self.of(family).iter().enumerate() {
                let via = Rig::via(family, number as u64);
                rig.table().route_replace(*prefix, 0, via).map_err(|e| Failure::runtime(format!("{prefix}: {e}")))?;
            }
        }
        Ok(())
    }

    /// Addresses in random prefixes that `table` forwards to.
    pub fn destinations(&self, family: Family, count: usize, table: &RoutingTable, random: &mut Random) -> Vec<IpAddr> {
        let prefixes = self.of(family);
        let mut inside = || match prefixes[random.below(prefixes.len())] {
            Prefix::V4 { address, length } => {
                let host = if length >= 32 { 0 } else { random.draw() as u32 >> length };
                IpAddr::V4(Ipv4Addr::from_bits(address | host))
            }
            Prefix::V6 { address, length } => {
                let wide = u128::from(random.draw()) << 64 | u128::from(random.draw());
                IpAddr::V6(Ipv6Addr::from_bits(if length >= 128 { address } else { address | wide >> length }))
            }
        };
        // A wide prefix may hold what is never forwarded, whatever the routes say.
        let forwarded = |address: &IpAddr| match address {
            IpAddr::V4(v4) if v4.is_link_local() => false,
            _ => table.route_to(*address).is_some_and(|route| matches!(route.kind, Some(RouteKind::Via(_)))),
        };
        std::iter::repeat_with(&mut inside).filter(forwarded).take(count).collect()
    }
}
