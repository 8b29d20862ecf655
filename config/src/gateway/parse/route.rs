#![forbid(unsafe_code)]
//! Reads `[[route]]` and `[[neighbor]]`.

use super::{Reader, complaint};
use crate::diagnostic::{Diagnostic, quoted};
use crate::document::Kind;
use crate::gateway::address::{masked, network, parse_prefix, unusable, width};
use crate::gateway::route::{NEXT_HOPS_MAX, Neighbor, Route, RouteKind};
use crate::gateway::section::{Section, string};
use crate::span::{Located, Place};
use ipnetwork::IpNetwork;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Reader<'_> {
    /// None when something of it was not understood (reported).
    pub(super) fn route(&mut self, section: &Section<'_>) -> Option<Route> {
        let via = self.via(section);
        let port = section.string("port", self.diagnostics);
        let metric = section.integer("metric", 0..=u32::MAX, "", self.diagnostics).map_or(0, |metric| metric.value);
        let to = match section.string("to", self.diagnostics) {
            Some(text) => self.destination(text, via.as_deref()),
            None => self.missing(section, "[[route]]", "to", "to = \"default\" or to = \"198.51.100.0/24\""),
        };
        let kinds = [
            ("unicast", RouteKind::Unicast { via: Vec::new(), port: None }),
            ("blackhole", RouteKind::Blackhole),
            ("unreachable", RouteKind::Unreachable),
            ("prohibit", RouteKind::Prohibit),
        ];
        let words: Vec<(&str, usize)> = kinds.iter().enumerate().map(|(at, (word, _))| (*word, at)).collect();
        let kind = match section.entry("type") {
            Some(_) => section.choice("type", &words, self.diagnostics)?,
            None => Located::new(0, section.span),
        };
        let (word, kind) =
            kinds.into_iter().nth(kind.value).map(|(word, made)| (word, Located::new(made, kind.span)))?;
        if let RouteKind::Unicast { .. } = kind.value {
            if section.entry("via").is_none() && section.entry("port").is_none() && !section.misspelt {
                let hint = "say via = \"192.0.2.254\", or port = \"em0\", or type = \"blackhole\"";
                self.diagnostics.push(Diagnostic::error(section.span, "this route leads to nothing").hint(hint));
                return None;
            }
            let kind = RouteKind::Unicast { via: via?, port };
            return Some(Route { place: Place(section.span), to: to?, kind, metric });
        }
        for key in ["via", "port"] {
            if let Some(entry) = section.entry(key) {
                let error =
                    Diagnostic::error(entry.key.span, format!("a {word} route takes no {key}: its packets go nowhere"))
                        .label(kind.span, "the type is set here");
                self.diagnostics.push(error);
            }
        }
        Some(Route { place: Place(section.span), to: to?, kind: kind.value, metric })
    }

    /// Next hops, none when there is no such key; None when one was not understood.
    fn via(&mut self, section: &Section<'_>) -> Option<Vec<Located<IpAddr>>> {
        let Some(entry) = section.entry("via") else { return Some(Vec::new()) };
        let Kind::Array(values) = &entry.value.kind else {
            let text = string("via", &entry.value, self.diagnostics)?;
            return Some(vec![self.host_address("via", text)?]);
        };
        if values.is_empty() || values.len() > NEXT_HOPS_MAX {
            let message = format!("via has {} next hops", values.len());
            self.diagnostics
                .push(Diagnostic::error(entry.value.span, message).hint(format!("from 1 to {NEXT_HOPS_MAX}")));
            return None;
        }
        let (texts, complete) = self.strings("via", values);
        let count = texts.len();
        let hops: Vec<_> = texts.into_iter().filter_map(|text| self.host_address("via", text)).collect();
        (complete && hops.len() == count).then_some(hops)
    }

    /// The address of another host.
    fn host_address(&mut self, key: &str, text: Located<String>) -> Option<Located<IpAddr>> {
        self.parsed(text, |text| {
            let Ok(address) = text.parse::<IpAddr>() else {
                let hint = text.split_once('/').map(|(address, _)| address).filter(|a| a.parse::<IpAddr>().is_ok());
                let hint = hint.map_or("write \"192.0.2.254\" or \"2001:db8::1\"".to_owned(), |a| {
                    format!("leave the length out: \"{a}\"")
                });
                return Err(complaint(format!("{key} {} is no address", quoted(text))).hint(hint));
            };
            match unusable(address) {
                Some(reason) => Err(complaint(format!("{address} cannot be a neighbour: {reason}"))),
                None => Ok(address),
            }
        })
    }

    /// `to`; `default` takes its family from `via`.
    fn destination(&mut self, text: Located<String>, via: Option<&[Located<IpAddr>]>) -> Option<Located<IpNetwork>> {
        if text.value == "default" {
            let default = match via?.first().map(|via| via.value) {
                Some(IpAddr::V4(_)) => network(Ipv4Addr::UNSPECIFIED.into(), 0),
                Some(IpAddr::V6(_)) => network(Ipv6Addr::UNSPECIFIED.into(), 0),
                None => {
                    let error =
                        Diagnostic::error(text.span, "\"default\" takes its family from via, and there is none");
                    self.diagnostics.push(error.hint("write \"0.0.0.0/0\" or \"::/0\""));
                    return None;
                }
            };
            return Some(Located::new(default, text.span));
        }
        self.parsed(text, |text| {
            let Some((address, length)) = parse_prefix(text) else {
                let message = format!("{} is no prefix", quoted(text));
                return Err(complaint(message).hint("write \"198.51.100.0/24\", \"2001:db8::/32\" or \"default\""));
            };
            let to = network(address, length.unwrap_or(width(address)));
            if masked(to).ip() != address {
                let message = format!("{to} has bits behind its prefix length");
                return Err(complaint(message).hint(format!("did you mean \"{}\"?", masked(to))));
            }
            if address.is_multicast() {
                return Err(complaint(format!("{to} is multicast, which is not routed")));
            }
            if address.is_loopback() {
                return Err(complaint(format!("{to} is loopback, which never leaves a host")));
            }
            Ok(to)
        })
    }

    /// None when something of it was not understood (reported).
    pub(super) fn neighbor(&mut self, section: &Section<'_>) -> Option<Neighbor> {
        let port = section.string("port", self.diagnostics);
        let address = section.string("address", self.diagnostics);
        let address = match address {
            Some(text) => self.host_address("address", text),
            None => self.missing(section, "[[neighbor]]", "address", "address = \"192.0.2.2\""),
        };
        let mac = self.mac(section);
        let mac = mac.or_else(|| self.missing(section, "[[neighbor]]", "mac", "mac = \"02:00:00:00:00:02\""));
        let port = port.or_else(|| self.missing(section, "[[neighbor]]", "port", "port = \"em0\""));
        Some(Neighbor { place: Place(section.span), port: port?, address: address?, mac: mac? })
    }
}
