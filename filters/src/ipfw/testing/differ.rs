#![forbid(unsafe_code)]
//! Two judges, the same packets, and whether one could tell them apart.

use std::fmt;
use std::time::Duration;

use ferrule_config::ipfw::ast::StateName;

use crate::ipfw::oracle::{Annotations, LogEntry, Outcome, Pass, Setup, Verdict};

use super::judge::{Judge, StateRow};
use super::packets::{Packet, Traffic};

/// Most times that one pass is resumed: a pipe behind a pipe is ended by a rule that decides, but a differ must end as well.
const RESUMES: usize = 32;

/// Where two judges differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Index of the packet.
    pub packet: usize,
    /// Which pass of it.
    pub stage: String,
    /// What differs.
    pub what: &'static str,
    /// What the first judge says.
    pub first: String,
    /// What the second says.
    pub second: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { packet, stage, what, first, second } = self;
        write!(to, "packet {packet}, {stage}: {what} differs\n first: {first}\nsecond: {second}")
    }
}

impl std::error::Error for Difference {}

/// Sends traffic through both judges and compares after each pass the verdict, the deciding rule, the frame's bytes, what the packet
/// carries, every counter, the states and the log.
pub fn differ(
    first: &mut dyn Judge,
    second: &mut dyn Judge,
    setup: &Setup,
    traffic: &Traffic,
) -> Result<(), Difference> {
    first.load(setup);
    second.load(setup);
    let mut now = Duration::from_secs(1);
    for (index, packet) in traffic.packets.iter().enumerate() {
        now += Duration::from_secs(u64::from(packet.pause_s));
        let mut both = Both { first: &mut *first, second: &mut *second, index, now, logged: 0 };
        both.logged = both.first.log().len();
        both.packet(packet, setup)?;
    }
    Ok(())
}

/// One packet before both judges.
struct Both<'a> {
    first: &'a mut dyn Judge,
    second: &'a mut dyn Judge,
    index: usize,
    now: Duration,
    logged: usize,
}

/// A packet as one judge has left it.
#[derive(Clone, PartialEq)]
struct Copy {
    frame: Vec<u8>,
    annotations: Annotations,
}

impl Both<'_> {
    fn packet(&mut self, packet: &Packet, setup: &Setup) -> Result<(), Difference> {
        let mut copies = [(); 2].map(|()| Copy { frame: packet.frame.clone(), annotations: Annotations::default() });
        let incoming = Pass::incoming(&packet.recv);
        let outgoing = Pass::outgoing(&packet.recv, &packet.xmit);
        // As in FreeBSD the link layer's passes are around those of IP.
        let passes = [incoming.at_layer2(), incoming, outgoing, outgoing.at_layer2()];
        for pass in passes {
            if pass.layer2 && !setup.settings.layer2 || !pass.layer2 && !packet.is_ip() {
                continue;
            }
            if !self.pass(&mut copies, &pass)? {
                break;
            }
        }
        Ok(())
    }

    /// One pass with what follows from it; false where the packet goes no further.
    fn pass(&mut self, copies: &mut [Copy; 2], pass: &Pass<'_>) -> Result<bool, Difference> {
        let stage = format!("{:?}{}", pass.direction, if pass.layer2 { " layer2" } else { "" });
        let [a, b] = &mut *copies;
        let one = self.first.judge(&mut a.frame, pass, &mut a.annotations, self.now);
        let two = self.second.judge(&mut b.frame, pass, &mut b.annotations, self.now);
        let mut outcome = self.same(&stage, copies, one, two)?;
        for _ in 0..RESUMES {
            let Some(from) = outcome.resume else { break };
            let stage = format!("{stage} behind rule index {}", from.after);
            let [a, b] = &mut *copies;
            let one = self.first.resume(&mut a.frame, pass, &mut a.annotations, self.now, from);
            let two = self.second.resume(&mut b.frame, pass, &mut b.annotations, self.now, from);
            outcome = self.same(&stage, copies, one, two)?;
        }
        Ok(matches!(outcome.verdict, Verdict::Allow | Verdict::Forward(..)))
    }

    fn same(&mut self, stage: &str, copies: &[Copy; 2], one: Outcome, two: Outcome) -> Result<Outcome, Difference> {
        let packet = self.index;
        let differs = |what: &'static str, first: String, second: String| {
            Err(Difference { packet, stage: stage.to_owned(), what, first, second })
        };
        if one != two {
            return differs("the outcome", format!("{one:?}"), format!("{two:?}"));
        }
        let [a, b] = copies;
        if a.frame != b.frame {
            return differs("the frame", format!("{:02x?}", a.frame), format!("{:02x?}", b.frame));
        }
        if a.annotations != b.annotations {
            return differs("what the packet carries", format!("{:?}", a.annotations), format!("{:?}", b.annotations));
        }
        let (first, second) = (self.first.counters(), self.second.counters());
        if first != second {
            let rows = first.iter().zip(&second).enumerate().filter(|(_, (first, second))| first != second);
            let (ones, twos): (Vec<_>, Vec<_>) =
                rows.map(|(rule, (first, second))| ((rule, *first), (rule, *second))).unzip();
            let (first, second) = (first.len(), second.len());
            return differs("a counter", format!("{first} rules, {ones:?}"), format!("{second} rules, {twos:?}"));
        }
        let (first, second) = (sorted(self.first.states()), sorted(self.second.states()));
        if first != second {
            return differs("a state", format!("{first:?}"), format!("{second:?}"));
        }
        let (first, second) = (self.first.log(), self.second.log());
        if first != second {
            let tail = |log: Vec<LogEntry>| format!("{} entries, new {:?}", log.len(), log.get(self.logged..));
            return differs("the log", tail(first), tail(second));
        }
        Ok(one)
    }
}

fn sorted(mut states: Vec<StateRow>) -> Vec<StateRow> {
    states.sort_by_cached_key(|state| {
        let name = match &state.name {
            StateName::Named(name) => name.clone(),
            other => format!("{other:?}"),
        };
        let flow = &state.flow;
        (flow.source, flow.destination, flow.protocol, flow.scope.clone(), name, state.rule)
    });
    states
}
