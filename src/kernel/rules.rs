//! Policy rules (`ip rule`) as the list of tables that a forwarded packet is looked up in.
//!
//! The packet path has one table for each family, so a rule counts when its answer does not depend on the packet:
//! `from all lookup T`, with `suppress_prefixlength`, and terminal rules. Rules that can never match a forwarded packet
//! (`iif lo`, `oif`, `uidrange`, `l3mdev` outside a VRF) are left out. A forwarded packet carries no fwmark, as it never
//! passes the kernel's filters: `not fwmark M` therefore always matches. All others are reported by name.
#![forbid(unsafe_code)]

use super::wire::{Attributes, Frame, u16_at, u32_at};
use std::fmt;

// linux/fib_rules.h
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TUN_ID: u16 = 12;
const FRA_SUPPRESS_IFGROUP: u16 = 13;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_OIFNAME: u16 = 17;
const FRA_L3MDEV: u16 = 19;
const FRA_UID_RANGE: u16 = 20;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DPORT_RANGE: u16 = 24;
const FRA_DSCP: u16 = 25;
const FRA_FLOWLABEL: u16 = 26;
const FIB_RULE_INVERT: u32 = 2;
const FR_ACT_TO_TBL: u8 = 1;
const FR_ACT_GOTO: u8 = 2;
const FR_ACT_NOP: u8 = 3;
const FR_ACT_BLACKHOLE: u8 = 6;
const FR_ACT_UNREACHABLE: u8 = 7;
const FR_ACT_PROHIBIT: u8 = 8;
/// Length of `struct fib_rule_hdr` in bytes.
pub(crate) const RULE_HEADER: usize = 12;

/// Something of the kernel's routing that the packet path does not honour.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unsupported {
    /// The rule or route, written as `ip` writes it.
    pub what: String,
    /// Why, and what happens instead.
    pub why: String,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.why)
    }
}

/// One step of the look-up of a forwarded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look in this table; matches of at most `suppress` bits do not count.
    Table { table: u32, suppress: Option<u8> },
    /// The look-up ends with this RTN_* type.
    End { kind: u8 },
}

/// What became of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reading {
    Step(Step),
    /// Can never match a forwarded packet, or does nothing.
    Irrelevant,
    Unsupported(Unsupported),
}

/// Reads one RTM_NEWRULE: priority and meaning.
pub(crate) fn read(frame: &Frame<'_>) -> Option<(u32, Reading)> {
    let (header, attributes) = frame.split(RULE_HEADER)?;
    let priority = attributes.u32(FRA_PRIORITY).unwrap_or(0);
    Some((priority, judge(header, attributes)?))
}

fn judge(header: &[u8], attributes: Attributes<'_>) -> Option<Reading> {
    let action = header[7];
    let inverted = u32_at(header, 8)? & FIB_RULE_INVERT != 0;
    let has = |kind| attributes.get(kind).is_some();
    let refuse = |why: &str| {
        Some(Reading::Unsupported(Unsupported {
            what: format!("rule {}", describe(header, attributes)),
            why: why.to_owned(),
        }))
    };
    if action == FR_ACT_NOP {
        return Some(Reading::Irrelevant);
    }
    if !inverted {
        let local_only = attributes.string(FRA_IIFNAME).as_deref() == Some("lo");
        if local_only || has(FRA_OIFNAME) || has(FRA_UID_RANGE) || has(FRA_L3MDEV) {
            return Some(Reading::Irrelevant);
        }
    }
    let depends_on_packet = header[1] != 0
        || header[2] != 0
        || header[3] != 0
        || [
            FRA_DST,
            FRA_SRC,
            FRA_IIFNAME,
            FRA_OIFNAME,
            FRA_TUN_ID,
            FRA_L3MDEV,
            FRA_UID_RANGE,
            FRA_IP_PROTO,
            FRA_SPORT_RANGE,
            FRA_DPORT_RANGE,
            FRA_DSCP,
            FRA_FLOWLABEL,
        ]
        .into_iter()
        .any(has);
    if depends_on_packet {
        return refuse("forwarded packets are looked up by destination alone; the rule is skipped");
    }
    if action == FR_ACT_GOTO {
        return refuse("goto is not followed; the rule is skipped");
    }
    if has(FRA_SUPPRESS_IFGROUP) && attributes.u32(FRA_SUPPRESS_IFGROUP) != Some(u32::MAX) {
        return refuse("suppress_ifgroup is not honoured; the rule is skipped");
    }
    let mark = attributes.u32(FRA_FWMARK).unwrap_or(0);
    let mask = attributes.u32(FRA_FWMASK).unwrap_or(if mark == 0 { 0 } else { u32::MAX });
    let matches = (mark & mask == 0) != inverted;
    if !matches {
        if mark == 0 {
            return Some(Reading::Irrelevant); // `not from all`
        }
        return refuse("forwarded packets never pass the kernel's filters, so they carry no mark; the rule is skipped");
    }
    let table = attributes.u32(FRA_TABLE).unwrap_or(u32::from(header[4]));
    let suppress = attributes.u32(FRA_SUPPRESS_PREFIXLEN).and_then(|length| u8::try_from(length).ok());
    Some(match action {
        FR_ACT_TO_TBL => Reading::Step(Step::Table { table, suppress }),
        FR_ACT_BLACKHOLE => Reading::Step(Step::End { kind: libc::RTN_BLACKHOLE }),
        FR_ACT_UNREACHABLE => Reading::Step(Step::End { kind: libc::RTN_UNREACHABLE }),
        FR_ACT_PROHIBIT => Reading::Step(Step::End { kind: libc::RTN_PROHIBIT }),
        _ => return refuse("unknown action; the rule is skipped"),
    })
}

/// The rule as `ip rule` prints it, as far as it matters for recognising it.
fn describe(header: &[u8], attributes: Attributes<'_>) -> String {
    use super::message::address;
    use std::fmt::Write;
    let mut text = format!("{}:", attributes.u32(FRA_PRIORITY).unwrap_or(0));
    if u32_at(header, 8).unwrap_or(0) & FIB_RULE_INVERT != 0 {
        text.push_str(" not");
    }
    let prefix = |kind, length: u8| {
        attributes.get(kind).and_then(address).map_or("all".to_owned(), |found| format!("{found}/{length}"))
    };
    let _ = write!(text, " from {}", prefix(FRA_SRC, header[2]));
    if header[1] != 0 {
        let _ = write!(text, " to {}", prefix(FRA_DST, header[1]));
    }
    if header[3] != 0 {
        let _ = write!(text, " tos {:#x}", header[3]);
    }
    if let Some(mark) = attributes.u32(FRA_FWMARK) {
        let _ = write!(text, " fwmark {mark:#x}/{:#x}", attributes.u32(FRA_FWMASK).unwrap_or(u32::MAX));
    }
    for (word, kind) in [("iif", FRA_IIFNAME), ("oif", FRA_OIFNAME)] {
        if let Some(name) = attributes.string(kind) {
            let _ = write!(text, " {word} {name}");
        }
    }
    if let Some(protocol) = attributes.get(FRA_IP_PROTO).and_then(|data| data.first()) {
        let _ = write!(text, " ipproto {protocol}");
    }
    for (word, kind) in [("sport", FRA_SPORT_RANGE), ("dport", FRA_DPORT_RANGE)] {
        if let Some(range) = attributes.get(kind)
            && let (Some(first), Some(last)) = (u16_at(range, 0), u16_at(range, 2))
        {
            let _ = write!(text, " {word} {first}-{last}");
        }
    }
    if let Some(dscp) = attributes.get(FRA_DSCP).and_then(|data| data.first()) {
        let _ = write!(text, " dscp {dscp}");
    }
    let _ = match header[7] {
        FR_ACT_TO_TBL => write!(text, " lookup {}", attributes.u32(FRA_TABLE).unwrap_or(u32::from(header[4]))),
        FR_ACT_GOTO => write!(text, " goto"),
        FR_ACT_BLACKHOLE => write!(text, " blackhole"),
        FR_ACT_UNREACHABLE => write!(text, " unreachable"),
        FR_ACT_PROHIBIT => write!(text, " prohibit"),
        other => write!(text, " action {other}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::super::wire::{Frames, Message};
    use super::*;

    fn reading(header: [u8; 12], fill: impl FnOnce(&mut Message)) -> Reading {
        let mut message = Message::new(libc::RTM_NEWRULE, 0, &header);
        message.attribute_u32(FRA_PRIORITY, 100);
        fill(&mut message);
        let bytes = message.finish(0);
        read(&Frames(&bytes).next().unwrap()).unwrap().1
    }

    const TO_TABLE_7: [u8; 12] = [2, 0, 0, 0, 7, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
    const NOT_TO_TABLE_7: [u8; 12] = [2, 0, 0, 0, 7, 0, 0, FR_ACT_TO_TBL, 2, 0, 0, 0];

    #[test]
    fn a_plain_rule_is_a_step() {
        assert_eq!(reading(TO_TABLE_7, |_| {}), Reading::Step(Step::Table { table: 7, suppress: None }));
    }

    #[test]
    fn suppress_prefixlength_is_kept() {
        let found = reading(TO_TABLE_7, |message| {
            message.attribute_u32(FRA_SUPPRESS_PREFIXLEN, 0);
        });
        assert_eq!(found, Reading::Step(Step::Table { table: 7, suppress: Some(0) }));
    }

    #[test]
    fn rules_for_local_traffic_are_irrelevant() {
        let found = reading(TO_TABLE_7, |message| {
            message.attribute_str(FRA_IIFNAME, "lo");
        });
        assert_eq!(found, Reading::Irrelevant);
    }

    #[test]
    fn a_mark_never_matches_and_its_negation_always_does() {
        let mark = |message: &mut Message| {
            message.attribute_u32(FRA_FWMARK, 0x51820).attribute_u32(FRA_FWMASK, u32::MAX);
        };
        assert!(matches!(reading(TO_TABLE_7, mark), Reading::Unsupported(_)));
        assert_eq!(reading(NOT_TO_TABLE_7, mark), Reading::Step(Step::Table { table: 7, suppress: None }));
    }

    #[test]
    fn a_rule_by_interface_is_named() {
        let found = reading(TO_TABLE_7, |message| {
            message.attribute_str(FRA_IIFNAME, "em0");
        });
        let Reading::Unsupported(unsupported) = found else { panic!("{found:?}") };
        assert_eq!(unsupported.what, "rule 100: from all iif em0 lookup 7");
    }
}
