#![forbid(unsafe_code)]
//! A judge that is wrong on purpose: the oracle, given rules that a faulty compiler would have made of the right ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrule_config::ipfw::ast::{
    Action, Addresses, Argument, Bits, Block, DEFAULT_RULE, FragmentBits, InterfaceMatch, InterfaceRole, Limit,
    LookupKey, Numbers, ReturnTo, Rule, StateName, Tag, Term, Test,
};
use ferrule_config::ipfw::table::TableKey;

use crate::ipfw::fault::Fault;
use crate::ipfw::oracle::{Annotations, Counter, LogEntry, Oracle, Outcome, Pass, Resume, Setup};

use super::judge::{Judge, StateRow};

/// The oracle behind a faulty compiler.
pub struct Faulty {
    fault: Fault,
    oracle: Oracle,
}

impl Faulty {
    /// A judge with this fault and no rules yet.
    pub fn new(fault: Fault) -> Self {
        Faulty { fault, oracle: Oracle::new(Setup::default()) }
    }
}

impl Judge for Faulty {
    fn load(&mut self, setup: &Setup) {
        let mut setup = setup.clone();
        spoil(self.fault, &mut setup);
        self.oracle = Oracle::new(setup);
    }

    fn judge(&mut self, frame: &mut Vec<u8>, pass: &Pass<'_>, annotations: &mut Annotations, now: Duration) -> Outcome {
        let outcome = self.oracle.judge(frame, pass, annotations, now);
        if self.fault == Fault::CallForgetsCaller {
            annotations.callers.clear();
        }
        outcome
    }

    fn resume(
        &mut self,
        frame: &mut Vec<u8>,
        pass: &Pass<'_>,
        annotations: &mut Annotations,
        now: Duration,
        from: Resume,
    ) -> Outcome {
        self.oracle.resume(frame, pass, annotations, now, from)
    }

    fn counters(&self) -> Vec<Counter> {
        self.oracle.counters().to_vec()
    }

    fn states(&self) -> Vec<StateRow> {
        self.oracle.states().iter().map(StateRow::of).collect()
    }

    fn log(&self) -> Vec<LogEntry> {
        self.oracle.log().to_vec()
    }
}

/// What the fault makes of rules, tables and sets.
fn spoil(fault: Fault, setup: &mut Setup) {
    let numbers: Vec<u16> = setup.rules.iter().map(|rule| rule.number).collect();
    match fault {
        Fault::DisabledSetStillMatches => setup.disabled_sets = 0,
        Fault::SameNumberReversed => setup.rules.reverse(),
        Fault::TableShortestPrefix => drop_nested(setup),
        _ => {}
    }
    for rule in &mut setup.rules {
        spoil_rule(fault, rule, &numbers);
    }
}

/// Leaves of nested prefixes only the outermost.
fn drop_nested(setup: &mut Setup) {
    for table in &mut setup.tables.0 {
        let all = table.entries.clone();
        let inside = |key: &TableKey| {
            all.iter().any(|(outer, _)| match (key, outer) {
                (TableKey::V4(key, length), TableKey::V4(outer, short)) => {
                    short < length && crate::ipfw::oracle::setup::covers(IpAddr::V4(*outer), *short, IpAddr::V4(*key))
                }
                (TableKey::V6(key, length), TableKey::V6(outer, short)) => {
                    short < length && crate::ipfw::oracle::setup::covers(IpAddr::V6(*outer), *short, IpAddr::V6(*key))
                }
                _ => false,
            })
        };
        table.entries.retain(|(key, _)| !inside(key));
    }
}

fn spoil_rule(fault: Fault, rule: &mut Rule, numbers: &[u16]) {
    match fault {
        Fault::OrTakenAsAnd => {
            let terms = rule.blocks.drain(..).flat_map(|block| block.terms);
            rule.blocks = terms.map(|term| Block { terms: vec![term] }).collect();
        }
        Fault::OrStopsAtFirst => rule.blocks.iter_mut().for_each(|block| block.terms.truncate(1)),
        Fault::LastBlockLost => drop(rule.blocks.pop()),
        Fault::ProbabilityInverted => rule.probability = rule.probability.map(|chance| 1.0 - chance),
        Fault::LogAmountIgnored => rule.log.iter_mut().for_each(|log| log.amount = Some(0)),
        Fault::UntagForgotten if matches!(rule.tag, Some(Tag::Clear(_))) => rule.tag = None,
        _ => {}
    }
    spoil_action(fault, rule, numbers);
    spoil_state(fault, rule);
    for block in &mut rule.blocks {
        for term in &mut block.terms {
            if fault == Fault::NotIgnored {
                term.not = false;
            }
            spoil_test(fault, &mut term.test);
        }
        if fault == Fault::LaterFragmentHasPorts {
            let zero = block
                .terms
                .iter()
                .any(|term| matches!(&term.test, Test::Ports(_, ranges) if ranges.iter().any(|range| range.low == 0)));
            let later = Test::Fragment(FragmentBits { set: FragmentBits::OFFSET, clear: 0 });
            block.terms.extend(zero.then(|| Term { not: false, test: later, span: Default::default() }));
        }
    }
}

fn spoil_action(fault: Fault, rule: &mut Rule, numbers: &[u16]) {
    let own = u32::from(rule.number);
    match (fault, &mut rule.action) {
        (Fault::SkipToMissingFallsThrough, Action::SkipTo(Argument::Number(target)))
            if !numbers.iter().any(|number| u32::from(*number) == *target) =>
        {
            *target = 0;
        }
        (Fault::SkipToBackwardsEndsSearch, Action::SkipTo(Argument::Number(target))) if *target <= own => {
            *target = u32::from(DEFAULT_RULE);
        }
        (Fault::ReturnToSameNumber, Action::Return(to)) => *to = ReturnTo::NextRule,
        (Fault::CountAccepts, action @ Action::Count) => *action = Action::Allow,
        (Fault::UnreachCodeOffByOne, Action::Unreach(code, _)) => *code += 1,
        (
            Fault::TableArgumentLost,
            Action::SkipTo(argument)
            | Action::Pipe(argument)
            | Action::Queue(argument)
            | Action::SetFib(argument)
            | Action::SetDscp(argument)
            | Action::SetMark(argument, _),
        ) if *argument == Argument::Table => *argument = Argument::Number(0),
        _ => {}
    }
}

fn spoil_state(fault: Fault, rule: &mut Rule) {
    if let (Fault::StateNameIgnored, Action::CheckState(name)) = (fault, &mut rule.action) {
        *name = StateName::Default;
    }
    let Some(state) = &mut rule.state else { return };
    match (fault, &mut state.limit) {
        (Fault::KeepStateDoesNotProbe, _) => state.probes = false,
        (Fault::StateNameIgnored, _) => state.name = StateName::Default,
        (Fault::DeferredActionAtOnce, _) => state.deferred = false,
        (Fault::LimitOneMore, Some(Limit { count: Argument::Number(count), .. })) => *count += 1,
        (Fault::LimitCountsOtherEnd, Some(limit)) => {
            let Limit { source_address, source_port, destination_address, destination_port, count } = *limit;
            *limit = Limit {
                source_address: destination_address,
                source_port: destination_port,
                destination_address: source_address,
                destination_port: source_port,
                count,
            };
        }
        _ => {}
    }
}

fn spoil_test(fault: Fault, test: &mut Test) {
    match (fault, &mut *test) {
        (Fault::PortRangeEndExclusive, Test::Ports(_, ranges)) => {
            ranges.iter_mut().filter(|range| range.low < range.high).for_each(|range| range.high -= 1);
        }
        (Fault::PortRangeStartExclusive, Test::Ports(_, ranges)) => {
            ranges.iter_mut().filter(|range| range.low < range.high).for_each(|range| range.low += 1);
        }
        (Fault::PrefixOneBitShort, Test::Address(_, Addresses::V4(list))) => {
            for entry in
                list.iter_mut().filter(|entry| entry.mask.to_bits().leading_ones() == entry.mask.to_bits().count_ones())
            {
                entry.mask = Ipv4Addr::from_bits(entry.mask.to_bits() << 1);
                entry.address &= entry.mask;
            }
        }
        (Fault::Prefix6OneBitShort, Test::Address(_, Addresses::V6(list))) => {
            for entry in list.iter_mut() {
                entry.mask = Ipv6Addr::from_bits(entry.mask.to_bits() << 1);
                entry.address &= entry.mask;
            }
        }
        (Fault::MaskHolesIgnored, Test::Address(_, Addresses::V4(list))) => {
            for entry in list.iter_mut() {
                let length = entry.mask.to_bits().leading_ones();
                entry.mask = Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - length).unwrap_or(0));
                entry.address &= entry.mask;
            }
        }
        (Fault::IcmpTypeIgnored, Test::IcmpTypes(_)) => *test = Test::Protocol(1),
        (Fault::FragmentClearIgnored, Test::Fragment(bits)) => bits.clear = 0,
        (Fault::TcpFlagsClearIgnored, Test::TcpFlags(bits)) => bits.clear = 0,
        (Fault::TcpFlagsSetIgnored, Test::TcpFlags(bits)) => bits.set = 0,
        (Fault::TosClearIgnored, Test::IpTos(bits)) => bits.clear = 0,
        (Fault::EstablishedNeedsAck, Test::Established) => *test = Test::TcpFlags(Bits { set: 16, clear: 0 }),
        (Fault::MeIgnoresV6, Test::Address(_, addresses @ Addresses::Me)) => {
            let own = super::pool::V4[..2].iter();
            let single = |address: &Ipv4Addr| ferrule_config::ipfw::ast::Masked4 {
                address: *address,
                mask: Ipv4Addr::BROADCAST,
            };
            *addresses = Addresses::V4(own.map(single).collect());
        }
        (
            Fault::TableValueIgnored,
            Test::Address(_, Addresses::Table(_, wanted))
            | Test::FlowTable(_, wanted)
            | Test::MacTable(_, _, wanted)
            | Test::Interface(_, InterfaceMatch::Table(_, wanted)),
        ) => *wanted = None,
        (Fault::DirectionExchanged, Test::In) => *test = Test::Out,
        (Fault::DirectionExchanged, Test::Out) => *test = Test::In,
        (Fault::ViaMeansRecv, Test::Interface(role @ InterfaceRole::Via, _)) => *role = InterfaceRole::Recv,
        (Fault::PatternTakenLiterally, Test::Interface(_, wanted)) => {
            if let InterfaceMatch::Pattern(shape) = wanted {
                *wanted = InterfaceMatch::Name(std::mem::take(shape));
            }
        }
        (Fault::DscpOffByOne, Test::Dscp(points)) => *points = points.rotate_left(1),
        (Fault::DscpOffByOne, Test::Lookup(LookupKey::Dscp(mask), _)) => *mask = mask.rotate_left(1),
        (Fault::TableArgumentLost, Test::Tagged(numbers @ Numbers::Table)) => {
            *numbers = Numbers::List(vec![ferrule_config::ipfw::ast::Range { low: 0, high: 0 }]);
        }
        _ => {}
    }
}
