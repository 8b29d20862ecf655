//! The rows of the ipfw stage: rule sets, and the gateways that have them in force.

#![forbid(unsafe_code)]

pub mod loaded;
pub mod mixed;
mod shape;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::table::{TableKey, TableValue};
use ferrule_dataplane::fib::Prefix;

use super::case::{Case, Traffic};
use super::flows::{Family, Flow};
use super::rig::{Random, Rig, RigPlan};
use super::table::grouped;
use crate::failure::Failure;
use loaded::Loaded;
use mixed::{Mixed, Profile};

/// The classic stateless set.
pub const STATELESS: [&str; 1] = ["add 3000 allow ip from any to any"];

/// Keys that a table is asked for in turn.
const KEYS: usize = 1 << 18;

/// The classic stateful set, with room for `flows` states that outlast the measurement.
pub fn stateful(flows: u32) -> Vec<String> {
    vec![
        format!("sysctl net.inet.ip.fw.dyn_max={}", (2 * flows).max(16_384)),
        "sysctl net.inet.ip.fw.dyn_udp_lifetime=86400".to_owned(),
        "add 3000 allow ip from any to any keep-state".to_owned(),
    ]
}

/// `rules` rules: all but the last deny one source network each, the last one lets everything pass.
pub fn one_shape(rules: usize, family: Family) -> Vec<String> {
    let network = |number: usize| {
        let (high, low) = (1 + number / 254, 1 + number % 254);
        match family {
            Family::Inet => format!("1.{high}.{low}.0/24"),
            Family::Inet6 => format!("2001:db8:{high}:{low}::/64"),
        }
    };
    let deny = |number: usize| format!("add {} deny ip from {} to any", number + 1, network(number));
    (0..rules.saturating_sub(1)).map(deny).chain([format!("add {rules} allow ip from any to any")]).collect()
}

/// So many random prefixes of 16 to 28 bits (IPv6: 32 to 56), and random addresses in them.
pub fn prefixes(count: usize, family: Family, random: &mut Random) -> (Vec<(TableKey, TableValue)>, Vec<IpAddr>) {
    let mut keys = std::collections::HashSet::with_capacity(count);
    while keys.len() < count {
        let (bits, more) = (random.draw(), random.below(13) as u8);
        keys.insert(match family {
            // 16.0.0.0 to 111.255.255.255: addresses that a router forwards.
            Family::Inet => {
                let address = (0x1000_0000 + (bits >> 33) % 0x6000_0000) as u32;
                let mask = !0u32 << (16 - more);
                TableKey::V4(Ipv4Addr::from_bits(address & mask), 16 + more)
            }
            Family::Inet6 => {
                let address = 0x24_u128 << 120 | u128::from(bits) << 56;
                let length = 32 + 2 * more;
                let mask = !0u128 << (128 - u32::from(length));
                TableKey::V6(Ipv6Addr::from_bits(address & mask), length)
            }
        });
    }
    let mut keys: Vec<TableKey> = keys.into_iter().collect();
    // The order of a hash set is another in each run; the sequence of numbers is not.
    keys.sort_unstable();
    random.shuffle(&mut keys);
    let address = |key: &TableKey, random: &mut Random| match key {
        TableKey::V4(net, length) => {
            let inside = (random.draw() >> 32) as u32 & u32::MAX.checked_shr(u32::from(*length)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(net.to_bits() | inside))
        }
        TableKey::V6(net, length) => {
            let inside = u128::from(random.draw()) & u128::MAX.checked_shr(u32::from(*length)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(net.to_bits() | inside))
        }
        _ => family.classic_flow(0).0,
    };
    let addresses = (0..KEYS.max(count.min(4 * KEYS))).map(|_| address(&keys[random.below(count)], random)).collect();
    (keys.into_iter().map(|key| (key, TableValue::default())).collect(), addresses)
}

/// Commands with a table `lookup` that alone lets packets pass: one that is not found there is lost, and noticed.
pub const TABLE: [&str; 2] = ["table lookup create type addr", "add 3000 allow ip from table(lookup) to any"];

/// A gateway with these rules in force, with routes for all traffic there is.
///
/// # Errors
/// When memory cannot be had.
pub fn rig(plan: &RigPlan, firewall: Option<&Loaded>) -> Result<Rig, Failure> {
    let mut stages = firewall.map(|firewall| vec![firewall.stage()]);
    let mut rig = Rig::with_stages(plan, move |_| stages.take().unwrap_or_default())?;
    for family in Family::ALL {
        rig.classic_route(family)?;
        rig.route(
            family,
            match family {
                Family::Inet => Prefix::V4 { address: 0xac10_0000, length: 12 },
                Family::Inet6 => Prefix::V6 { address: 0x2600_u128 << 112, length: 32 },
            },
        )?;
    }
    Ok(rig)
}

/// A case of this firewall.
///
/// # Errors
/// As [`rig`], or packets that are lost when each flow is sent once.
pub fn case(
    set: impl Into<String>,
    family: Family,
    firewall: &Loaded,
    traffic: Traffic,
    plain: usize,
) -> Result<Case, Failure> {
    let mut case = Case::new(set, family, rig(&RigPlan::default(), Some(firewall))?, traffic, plain);
    case.prime()?;
    Ok(case)
}

/// A table of so many prefixes in force, and packets from all over them.
///
/// # Errors
/// When an entry is refused.
pub fn table(count: usize, family: Family, random: &mut Random) -> Result<(Loaded, Traffic), Failure> {
    let (entries, sources) = prefixes(count, family, random);
    let firewall = Loaded::with_entries(TABLE, "lookup", entries)?;
    let destination = |number: usize| family.classic_flow(number as u32).1;
    let flow = |(number, source)| Flow::udp(source, destination(number));
    Ok((firewall, Traffic::Flows(sources.into_iter().enumerate().map(flow).collect())))
}

/// What the comparison is asked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The large sets too.
    pub all: bool,
    /// Only sets whose name holds this text.
    pub only: Option<String>,
    /// Of the mixed sets.
    pub seed: u64,
}

impl Wanted {
    /// Whether a row is.
    pub fn has(&self, set: &str) -> bool {
        self.only.as_ref().is_none_or(|only| set.contains(only.as_str()))
    }
}

/// Makes the cases that are wanted, behind `cases`, which begin with plain forwarding of each family. What a reader must know of them
/// goes to `notes`.
///
/// # Errors
/// When a rule is refused, memory cannot be had or packets are lost.
pub fn cases(
    wanted: &Wanted,
    cases: &mut Vec<Case>,
    notes: &mut Vec<String>,
    progress: impl Fn(&str),
) -> Result<(), Failure> {
    let add = |set: String, family, cases: &mut Vec<Case>, make: &dyn Fn() -> Result<(Loaded, Traffic), Failure>| {
        if wanted.has(&set) {
            progress(&format!("making {set} {family}"));
            let (firewall, traffic) = make()?;
            cases.push(case(set, family, &firewall, traffic, family as usize)?);
        }
        Ok::<(), Failure>(())
    };
    for family in Family::ALL {
        add("ipfw stateless".to_owned(), family, cases, &|| Ok((Loaded::new(STATELESS)?, Traffic::Classic)))?;
    }
    for family in Family::ALL {
        add("ipfw stateful".to_owned(), family, cases, &|| Ok((Loaded::new(stateful(5000))?, Traffic::Classic)))?;
    }
    if wanted.all {
        for (family, flows) in
            Family::ALL.into_iter().flat_map(|family| [100_000, 1_000_000].map(|flows| (family, flows)))
        {
            let set = format!("ipfw stateful {}", grouped(flows.into()));
            add(set, family, cases, &|| Ok((Loaded::new(stateful(flows))?, Traffic::Wide(flows))))?;
        }
    }
    for rules in [10, 100, 1000, 10_000] {
        for family in if wanted.all { &Family::ALL[..] } else { &Family::ALL[..1] } {
            let set = format!("ipfw {} rules", grouped(rules as u64));
            add(set, *family, cases, &|| Ok((Loaded::new(one_shape(rules, *family))?, Traffic::Classic)))?;
        }
    }
    for prefixes in if wanted.all { &[1000, 1_000_000][..] } else { &[1000][..] } {
        for family in Family::ALL {
            let set = format!("ipfw table {}", grouped(*prefixes as u64));
            add(set, family, cases, &|| table(*prefixes, family, &mut Random::new(wanted.seed)))?;
        }
    }
    for rules in [1000, 10_000] {
        for family in if wanted.all { &Family::ALL[..] } else { &Family::ALL[..1] } {
            mixed_cases(wanted, (rules, *family, &Profile::ALL, ""), cases, notes, &progress)?;
        }
        if wanted.all {
            for (profile, name) in Profile::ALL.iter().zip([" acl", " fw", " ipc"]) {
                mixed_cases(
                    wanted,
                    (rules, Family::Inet, std::slice::from_ref(profile), name),
                    cases,
                    notes,
                    &progress,
                )?;
            }
        }
    }
    Ok(())
}

/// A mixed set with traffic that reaches its rules evenly and traffic that misses all, each beside plain forwarding of the same packets.
fn mixed_cases(
    wanted: &Wanted,
    (rules, family, profiles, name): (usize, Family, &[Profile], &str),
    cases: &mut Vec<Case>,
    notes: &mut Vec<String>,
    progress: &impl Fn(&str),
) -> Result<(), Failure> {
    let set = format!("ipfw mixed {}{name}", grouped(rules as u64));
    let missed = format!("{set}, missed");
    if !wanted.has(&set) && !wanted.has(&missed) {
        return Ok(());
    }
    progress(&format!("making {set} {family}"));
    let drawn = mixed::draw(rules, family, profiles, wanted.seed);
    for (set, flows) in [(set, even(&drawn, wanted.seed)), (missed, drawn.misses.clone())] {
        if !wanted.has(&set) {
            continue;
        }
        let traffic = Traffic::Flows(flows);
        let plain = cases.len();
        let forwarding = rig(&RigPlan::default(), None)?;
        cases.push(Case::new("forwarding", family, forwarding, traffic.clone(), plain).hidden());
        let firewall = Loaded::new(drawn.commands())?;
        cases.push(case(&set, family, &firewall, traffic, plain)?);
        let counts = firewall.packets()?;
        let reached = counts.iter().take(rules - 1).filter(|packets| **packets > 0).count();
        notes.push(format!("{set} {family}: {} of {} rules matched", grouped(reached as u64), grouped(rules as u64)));
    }
    Ok(())
}

/// Traffic that reaches every rule as often as any other, in random order.
pub fn even(drawn: &Mixed, seed: u64) -> Vec<Flow> {
    let mut flows: Vec<Flow> = drawn.hits.iter().map(|(_, flow)| *flow).collect();
    Random::new(seed ^ 1).shuffle(&mut flows);
    flows
}
