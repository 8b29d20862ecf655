#![forbid(unsafe_code)]
//! What a rule that was understood is told: that it can never match, or that it asks for what is not there.

use super::ast::{Action, Addresses, Block, ForwardTo, OwnerKind, Range, Rule, Side, Test};
use crate::diagnostic::Diagnostic;
use crate::span::Span;

/// The name under which services of this protocol are known; None where the protocol has no ports.
pub(super) fn port_protocol(protocol: u8) -> Option<&'static str> {
    match protocol {
        6 => Some("tcp"),
        17 => Some("udp"),
        33 => Some("dccp"),
        132 => Some("sctp"),
        136 => Some("udplite"),
        _ => None,
    }
}

/// Why this rule cannot be put in force here; empty where it can. The rule is fine as text: it parses, prints and can be checked.
pub fn unsupported(rule: &Rule) -> Vec<Diagnostic> {
    let refuse = |what: &str, why: &str, hint: &str| {
        vec![Diagnostic::error(rule.span, format!("{what} is not supported: {why}")).hint(hint)]
    };
    let sockets = "packets are not handed to programs through divert sockets";
    let graph = "there is no netgraph";
    match &rule.action {
        Action::Forward(to) => {
            let sockets = "packets are not handed to sockets of this box";
            let (local, port) = match to {
                ForwardTo::V4(address, port) => (address.is_loopback(), *port),
                ForwardTo::V6(address, _, port) => (address.is_loopback(), *port),
                ForwardTo::Table(port) => (false, *port),
            };
            if local {
                refuse("fwd to a local address", sockets, "to reach a service of this box use nat with redirect_port")
            } else if port != 0 {
                refuse(
                    "fwd with a port",
                    sockets,
                    "a next hop is an address alone; to change a port use nat with redirect_port",
                )
            } else {
                Vec::new()
            }
        }
        Action::Divert(_) => refuse("divert", sockets, "for translation use nat instead of natd"),
        Action::Tee(_) => refuse("tee", sockets, "to see packets use log, which writes a pcap"),
        Action::Netgraph(_) => refuse("netgraph", graph, "remove the rule"),
        Action::NgTee(_) => refuse("ngtee", graph, "to see packets use log, which writes a pcap"),
        Action::External(name, _) => {
            refuse(name, "there is no such external action", "of the external actions tcp-setmss is supported")
        }
        _ => Vec::new(),
    }
}

/// Where a rule asks who owns the packet (`uid`, `gid`, `jail`): a forwarded one has no owner.
pub fn owner_tests(rule: &Rule) -> Vec<(OwnerKind, Span)> {
    let terms = rule.blocks.iter().flat_map(|block| &block.terms);
    let owners = terms.filter_map(|term| match &term.test {
        Test::Owner(kind, _) => Some((*kind, term.span)),
        _ => None,
    });
    owners.collect()
}

/// What is probably a mistake although ipfw(8) accepts it.
pub(super) fn warnings(rule: &Rule) -> Vec<Diagnostic> {
    let mut out = Vec::new();
    ports_without_protocol(rule, &mut out);
    mixed_families(rule, &mut out);
    for (test, span) in rule.blocks.iter().flat_map(|block| &block.terms).map(|term| (&term.test, term.span)) {
        let (Test::Ports(_, ranges) | Test::MacType(ranges)) = test else { continue };
        if let Some(Range { low, high }) = ranges.iter().find(|range| range.low > range.high) {
            out.push(
                Diagnostic::warning(span, format!("the range {low}-{high} is empty"))
                    .hint(format!("write {high}-{low}")),
            );
        }
    }
    out
}

/// The only test of a block, if it is not negated.
fn single(block: &Block) -> Option<&Test> {
    match block.terms.as_slice() {
        [term] if !term.not => Some(&term.test),
        _ => None,
    }
}

/// Ports with a protocol that has none.
fn ports_without_protocol(rule: &Rule, out: &mut Vec<Diagnostic>) {
    let protocol = rule.blocks.iter().find_map(|block| match single(block) {
        Some(Test::Protocol(number)) if port_protocol(*number).is_none() => Some(*number),
        _ => None,
    });
    let Some(protocol) = protocol else { return };
    let ports = rule.blocks.iter().find(|block| matches!(single(block), Some(Test::Ports(..))));
    if let Some(block) = ports {
        let name = super::names::Names::protocol_name(super::names::builtin(), protocol);
        let name = name.map_or_else(|| format!("protocol {protocol}"), str::to_owned);
        let message = format!("{name} has no ports: the rule never matches");
        out.push(
            Diagnostic::warning(block.terms[0].span, message).hint("ports are those of tcp, udp, udplite and sctp"),
        );
    }
}

/// Addresses of one family where the rule is for the other.
fn mixed_families(rule: &Rule, out: &mut Vec<Diagnostic>) {
    let mut seen: Option<(u8, Span, &str)> = None;
    for block in &rule.blocks {
        let (version, what) = match single(block) {
            Some(Test::Ipv4) => (4, "the rule is for IPv4"),
            Some(Test::Ipv6) => (6, "the rule is for IPv6"),
            Some(Test::Protocol(1)) => (4, "icmp is IPv4's"),
            Some(Test::Protocol(58)) => (6, "ipv6-icmp is IPv6's"),
            Some(Test::Address(side, Addresses::V4(_) | Addresses::Set4 { .. })) => (4, side_is(*side, 4)),
            Some(Test::Address(side, Addresses::V6(_) | Addresses::Me6)) => (6, side_is(*side, 6)),
            _ => continue,
        };
        let span = block.terms[0].span;
        match seen {
            Some((other, first, why)) if other != version => {
                let message = format!("{what}, but {why}: the rule never matches");
                out.push(Diagnostic::warning(span, message).label(first, why));
                return;
            }
            Some(_) => {}
            None => seen = Some((version, span, what)),
        }
    }
}

fn side_is(side: Side, version: u8) -> &'static str {
    match (side, version) {
        (Side::Source, 4) => "the source is an IPv4 address",
        (Side::Source, _) => "the source is an IPv6 address",
        (Side::Destination, 4) => "the destination is an IPv4 address",
        (Side::Destination, _) => "the destination is an IPv6 address",
    }
}
