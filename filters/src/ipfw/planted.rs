#![forbid(unsafe_code)]
//! What the compiler does wrong where a fault is planted ([`super::fault`]); without one, nothing here changes anything.

use std::net::{Ipv4Addr, Ipv6Addr};

use ferrule_config::ipfw::ast::{Addresses, Bits, Block, InterfaceMatch, InterfaceRole, Rule, StateName, Test};

use super::fault::{Fault, Planted};
use super::program::Program;

/// Spoils a rule before it is compiled.
pub(super) fn spoil(rule: &mut Rule, planted: Planted) {
    if planted == Planted::NONE {
        return;
    }
    if planted.has(Fault::LastBlockLost) {
        rule.blocks.pop();
    }
    if planted.has(Fault::OrTakenAsAnd) {
        let blocks = std::mem::take(&mut rule.blocks).into_iter();
        rule.blocks = blocks.flat_map(|b| b.terms.into_iter().map(|term| Block { terms: vec![term] })).collect();
    }
    if let Some(state) = &mut rule.state {
        if planted.has(Fault::StateNameIgnored) {
            state.name = StateName::Default;
        }
        if planted.has(Fault::DeferredActionAtOnce) {
            state.deferred = false;
        }
        if let Some(limit) = &mut state.limit
            && planted.has(Fault::LimitCountsOtherEnd)
        {
            std::mem::swap(&mut limit.source_address, &mut limit.destination_address);
            std::mem::swap(&mut limit.source_port, &mut limit.destination_port);
        }
    }
    for block in &mut rule.blocks {
        if planted.has(Fault::OrStopsAtFirst) {
            block.terms.truncate(1);
        }
        for term in &mut block.terms {
            if planted.has(Fault::NotIgnored) {
                term.not = false;
            }
            spoil_test(&mut term.test, planted);
        }
    }
}

fn spoil_test(test: &mut Test, planted: Planted) {
    let clear = |bits: &mut Bits, fault, set| {
        if planted.has(fault) {
            *if set { &mut bits.set } else { &mut bits.clear } = 0;
        }
    };
    match test {
        Test::Ports(_, ranges) => {
            for range in ranges {
                range.high = range.high.saturating_sub(u16::from(planted.has(Fault::PortRangeEndExclusive)));
                range.low = range.low.saturating_add(u16::from(planted.has(Fault::PortRangeStartExclusive)));
            }
        }
        Test::Address(_, Addresses::V4(list)) => {
            for masked in list {
                let mask = masked.mask.to_bits();
                let prefix = (!mask).wrapping_add(1) & !mask == 0;
                if planted.has(Fault::PrefixOneBitShort) && prefix {
                    masked.mask = Ipv4Addr::from_bits(mask << 1);
                }
                if planted.has(Fault::MaskHolesIgnored) && !prefix {
                    masked.mask = Ipv4Addr::from_bits((!0u32).checked_shl(32 - mask.leading_ones()).unwrap_or(0));
                }
                masked.address &= masked.mask;
            }
        }
        Test::Address(_, Addresses::V6(list)) if planted.has(Fault::Prefix6OneBitShort) => {
            for masked in list {
                masked.mask = Ipv6Addr::from_bits(masked.mask.to_bits() << 1);
                masked.address = Ipv6Addr::from_bits(masked.address.to_bits() & masked.mask.to_bits());
            }
        }
        Test::TcpFlags(bits) => {
            clear(bits, Fault::TcpFlagsClearIgnored, false);
            clear(bits, Fault::TcpFlagsSetIgnored, true);
        }
        Test::Established if planted.has(Fault::EstablishedNeedsAck) => {
            *test = Test::TcpFlags(Bits { set: 16, clear: 0 });
        }
        Test::IcmpTypes(_) if planted.has(Fault::IcmpTypeIgnored) => *test = Test::Protocol(1),
        Test::In if planted.has(Fault::DirectionExchanged) => *test = Test::Out,
        Test::Out if planted.has(Fault::DirectionExchanged) => *test = Test::In,
        Test::Interface(role @ InterfaceRole::Via, _) if planted.has(Fault::ViaMeansRecv) => {
            *role = InterfaceRole::Recv
        }
        Test::Interface(_, wanted) => {
            if let InterfaceMatch::Pattern(pattern) = wanted
                && planted.has(Fault::PatternTakenLiterally)
            {
                *wanted = InterfaceMatch::Name(std::mem::take(pattern));
            }
        }
        _ => {}
    }
}

/// Entry where `skipto` leads.
pub(super) fn skip_target(program: &Program, from: u32, to: u32) -> u32 {
    let number = program.rules.get(from as usize).map_or(0, |rule| u32::from(rule.number));
    if program.planted.has(Fault::SkipToBackwardsEndsSearch) && to <= number {
        return program.entries.len() as u32 - 1;
    }
    if program.planted.has(Fault::SkipToMissingFallsThrough)
        && to > number
        && program.rules.iter().all(|rule| u32::from(rule.number) != to)
    {
        return program.entry_from(from as usize + 1);
    }
    program.skip_target(from, to)
}
