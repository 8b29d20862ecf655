#![forbid(unsafe_code)]
//! `nat N config ...`: read and printed as ipfw(8) does.

use std::fmt::Write;
use std::net::Ipv4Addr;

use super::ast::Range;
use super::command::{Word, Words};
use super::entry::Lookup;
use super::failure::{Failure, exit, unrecognised};
use super::nat::{NatConfig, Redirect};
use crate::span::Span;

const OPTIONS: [&str; 15] = [
    "ip",
    "if",
    "log",
    "deny_in",
    "same_ports",
    "unreg_only",
    "unreg_cgn",
    "skip_global",
    "reset",
    "reverse",
    "proxy_only",
    "port_range",
    "redirect_addr",
    "redirect_port",
    "redirect_proto",
];

const SCTP: u8 = 132;

/// Reads the options of an instance.
///
/// # Errors
/// What is wrong, with the original's words and exit code.
pub fn parse(number: u32, words: &[Word], end: Span, lookup: Lookup<'_>) -> Result<NatConfig, Failure> {
    let mut config = NatConfig { number, ..NatConfig::default() };
    let mut words = Words::new(words, end);
    let mut range_at = Span::default();
    while let Some(word) = words.next() {
        let missing = |words: &Words<'_>| Failure::data(words.here(), "missing option");
        match word.text.as_str() {
            "ip" => {
                let value = words.next().ok_or_else(|| missing(&words))?;
                let wrong = || Failure::data(value.span, format!("bad ip address ``{}''", value.text.escape_debug()));
                config.address = Some(value.text.parse().map_err(|_| wrong())?);
            }
            "if" => config.interface = Some(words.next().ok_or_else(|| missing(&words))?.text.clone()),
            "log" => config.log = true,
            "deny_in" => config.deny_in = true,
            "same_ports" => config.same_ports = true,
            "unreg_only" => config.unregistered_only = true,
            "unreg_cgn" => config.unregistered_cgn = true,
            "skip_global" => config.skip_global = true,
            "reset" => config.reset = true,
            "reverse" => config.reverse = true,
            "proxy_only" => config.proxy_only = true,
            "port_range" => {
                let value = words.next().ok_or_else(|| missing(&words))?;
                range_at = value.span;
                config.port_range = Some(alias_ports(value)?);
            }
            "redirect_addr" => {
                let [locals, public] = take(&mut words, "redirect_addr")?;
                let locals = locals.text.split(',').map(|host| address(host, locals.span, lookup));
                let locals = locals.collect::<Result<_, _>>()?;
                let public = address(&public.text, public.span, lookup)?;
                config.redirects.push(Redirect::Address { locals, public });
            }
            "redirect_port" => config.redirects.push(redirect_port(&mut words, lookup)?),
            "redirect_proto" => config.redirects.push(redirect_protocol(&mut words, lookup)?),
            "udp_eim" => {
                return Err(Failure::data(word.span, "udp_eim is not supported")
                    .hint("leave it out: UDP is mapped by endpoint, as FreeBSD does without the option"));
            }
            other => return Err(unrecognised(other, word.span, OPTIONS)),
        }
    }
    if config.same_ports && config.port_range.is_some() {
        return Err(Failure::data(range_at, "same_ports and port_range cannot both be selected"));
    }
    Ok(config)
}

/// The next `N` words.
fn take<'a, const N: usize>(words: &mut Words<'a>, what: &str) -> Result<[&'a Word; N], Failure> {
    let rest = words.rest();
    if rest.len() < N {
        return Err(Failure::data(words.here(), format!("{what}: not enough arguments")));
    }
    words.by_ref().take(N).for_each(drop);
    Ok(std::array::from_fn(|at| &rest[at]))
}

/// `port_range LOW-HIGH`.
fn alias_ports(word: &Word) -> Result<Range<u16>, Failure> {
    let range = word.text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    let Some((low, high)) = range.filter(|&(low, high): &(u16, u16)| low >= 1024 && high >= 1024) else {
        return Err(Failure::data(word.span, "You need a range of port(s) from 1024 <= x < 65536"));
    };
    if low >= high {
        return Err(Failure::data(word.span, "Upper port has to be greater than lower port"));
    }
    Ok(Range { low, high })
}

fn address(text: &str, span: Span, lookup: Lookup<'_>) -> Result<Ipv4Addr, Failure> {
    let found = text.parse().ok().or_else(|| lookup.hosts.host4(text));
    found.ok_or_else(|| Failure::new(exit::FAILED, span, format!("unknown host {}", text.escape_debug())))
}

/// A port, a service or a range of ports.
fn ports(text: &str, protocol: &str, span: Span, lookup: Lookup<'_>) -> Result<Range<u16>, Failure> {
    if let Ok(port) = text.parse() {
        return Ok(Range { low: port, high: port });
    }
    if let Some(port) = lookup.names.service(text, Some(protocol)) {
        return Ok(Range { low: port, high: port });
    }
    let Some((low, high)) = text.split_once('-') else {
        let hint = crate::suggest::did_you_mean(text, lookup.names.services());
        return Err(
            Failure::data(span, format!("{}/{protocol}: unknown service", text.escape_debug())).maybe_hint(hint)
        );
    };
    match (low.parse(), high.parse()) {
        (Ok(low), Ok(high)) if low <= high => Ok(Range { low, high }),
        _ => Err(Failure::data(span, format!("invalid port range {}", text.escape_debug()))),
    }
}

fn address_and_ports(
    text: &str,
    protocol: &str,
    span: Span,
    lookup: Lookup<'_>,
) -> Result<(Ipv4Addr, Range<u16>), Failure> {
    let Some((host, port)) = text.split_once(':') else {
        return Err(Failure::data(span, format!("{} is missing port number", text.escape_debug())));
    };
    Ok((address(host, span, lookup)?, ports(port, protocol, span, lookup)?))
}

fn count(range: Range<u16>) -> u32 {
    u32::from(range.high) - u32::from(range.low) + 1
}

fn redirect_port(words: &mut Words<'_>, lookup: Lookup<'_>) -> Result<Redirect, Failure> {
    let [name, local, public] = take(words, "redirect_port")?;
    let protocol = match name.text.as_str() {
        "tcp" => 6,
        "udp" => 17,
        "sctp" => SCTP,
        other => {
            let message = format!("unknown protocol {}. Expected sctp, tcp or udp", other.escape_debug());
            return Err(Failure::data(name.span, message));
        }
    };
    let (outside, ports) = match public.text.contains(':') {
        true => {
            let (address, ports) = address_and_ports(&public.text, &name.text, public.span, lookup)?;
            (Some(address).filter(|address| !address.is_unspecified()), ports)
        }
        false => (None, ports(&public.text, &name.text, public.span, lookup)?),
    };
    let shared = local.text.contains(',');
    let mut locals = Vec::new();
    for host in local.text.split(',').filter(|host| !host.is_empty()) {
        if protocol == SCTP {
            if host.contains(':') {
                let message =
                    "redirect_port:port numbers do not change in sctp, so do not specify them as part of the target";
                return Err(Failure::data(local.span, message));
            }
            locals.push((address(host, local.span, lookup)?, ports));
            continue;
        }
        let target = address_and_ports(host, &name.text, local.span, lookup)?;
        if shared && count(target.1) != 1 {
            return Err(Failure::data(local.span, "redirect_port: local port must be single in this context"));
        }
        locals.push(target);
    }
    let Some(&(_, first)) = locals.first() else {
        return Err(Failure::data(local.span, "redirect_port: invalid local port range"));
    };
    if count(first) != count(ports) {
        return Err(Failure::data(public.span, "redirect_port: port ranges must be equal in size"));
    }
    let mut remote = None;
    if let Some(word) = words.peek().filter(|word| super::command::abbreviation::is_number(&word.text)) {
        words.next();
        let any = Range { low: 0, high: 0 };
        let (address, ports) = match word.text.contains(':') {
            true => address_and_ports(&word.text, &name.text, word.span, lookup)?,
            false => (address(&word.text, word.span, lookup)?, any),
        };
        if ports != any && count(ports) != count(first) {
            let message = "redirect_port: remote port must be 0 or equal to local port range in size";
            return Err(Failure::data(word.span, message));
        }
        remote = Some((address, ports)).filter(|(address, _)| !address.is_unspecified());
    }
    Ok(Redirect::Port { protocol, locals, public: outside, ports, remote })
}

fn redirect_protocol(words: &mut Words<'_>, lookup: Lookup<'_>) -> Result<Redirect, Failure> {
    let [name, local] = take(words, "redirect_proto")?;
    let protocol = lookup.names.protocol(&name.text).ok_or_else(|| {
        Failure::data(name.span, format!("redirect_proto: unknown protocol {}", name.text.escape_debug()))
            .maybe_hint(crate::suggest::did_you_mean(&name.text, lookup.names.protocols()))
    })?;
    let local = address(&local.text, local.span, lookup)?;
    let mut optional = || {
        let word = words.peek().filter(|word| super::command::abbreviation::is_number(&word.text))?;
        words.next();
        Some(address(&word.text, word.span, lookup))
    };
    let public = optional().transpose()?;
    let remote = if public.is_some() { optional().transpose()? } else { None };
    let set = |address: Option<Ipv4Addr>| address.filter(|address| !address.is_unspecified());
    Ok(Redirect::Protocol { protocol, local, public: set(public), remote: set(remote) })
}

/// The line of `nat N show config`, with its line end.
pub fn print(config: &NatConfig, lookup: Lookup<'_>) -> String {
    let mut out = format!("ipfw nat {} config", config.number);
    if let Some(interface) = &config.interface {
        let _ = write!(out, " if {interface}");
    } else if let Some(address) = config.address.filter(|address| !address.is_unspecified()) {
        let _ = write!(out, " ip {address}");
    }
    let flags = [
        (config.log, " log"),
        (config.deny_in, " deny_in"),
        (config.same_ports, " same_ports"),
        (config.skip_global, " skip_global"),
        (config.unregistered_only, " unreg_only"),
        (config.unregistered_cgn, " unreg_cgn"),
        (config.reset, " reset"),
        (config.reverse, " reverse"),
        (config.proxy_only, " proxy_only"),
    ];
    out.extend(flags.iter().filter(|(set, _)| *set).map(|&(_, word)| word));
    if let Some(range) = config.port_range {
        let _ = write!(out, " port_range {}-{}", range.low, range.high);
    }
    for redirect in &config.redirects {
        print_redirect(&mut out, redirect, lookup);
    }
    out.push('\n');
    out
}

fn range(ports: Range<u16>) -> String {
    if ports.low == ports.high { ports.low.to_string() } else { format!("{}-{}", ports.low, ports.high) }
}

fn print_redirect(out: &mut String, redirect: &Redirect, lookup: Lookup<'_>) {
    let name = |protocol: u8| lookup.names.protocol_name(protocol).map_or_else(|| protocol.to_string(), str::to_owned);
    match redirect {
        Redirect::Address { locals, public } => {
            let locals: Vec<String> = locals.iter().map(ToString::to_string).collect();
            let _ = write!(out, " redirect_addr {} {public}", locals.join(","));
        }
        Redirect::Port { protocol, locals, public, ports, remote } => {
            // SCTP's targets have no port of their own; the original prints one that it would not read again.
            let local = |(address, ports): &(Ipv4Addr, Range<u16>)| match *protocol {
                SCTP => address.to_string(),
                _ => format!("{address}:{}", range(*ports)),
            };
            let locals: Vec<String> = locals.iter().map(local).collect();
            let _ = write!(out, " redirect_port {} {} ", name(*protocol), locals.join(","));
            if let Some(public) = public {
                let _ = write!(out, "{public}:");
            }
            out.push_str(&range(*ports));
            if let Some((address, ports)) = remote {
                let _ = write!(out, " {address}");
                if ports.low != 0 {
                    let _ = write!(out, ":{}", range(*ports));
                }
            }
        }
        Redirect::Protocol { protocol, local, public, remote } => {
            let _ = write!(out, " redirect_proto {} {local}", name(*protocol));
            if let Some(public) = public {
                let _ = write!(out, " {public}");
                if let Some(remote) = remote {
                    let _ = write!(out, " {remote}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipfw::command::CommandLine;
    use crate::ipfw::language::NoHosts;
    use crate::ipfw::names::builtin;

    fn read(text: &str) -> Result<NatConfig, Failure> {
        let line = CommandLine::from_line(text);
        parse(1, &line.words, line.end(), Lookup { names: builtin(), hosts: &NoHosts })
    }

    fn printed(text: &str) -> String {
        let lookup = Lookup { names: builtin(), hosts: &NoHosts };
        let config = read(text).unwrap();
        let out = print(&config, lookup);
        let again = out.trim_end().strip_prefix("ipfw nat 1 config").unwrap();
        assert_eq!(read(again).unwrap(), config, "{out}");
        again.trim_start().to_owned()
    }

    #[test]
    fn options_are_printed_in_the_originals_order() {
        assert_eq!(
            printed(
                "reset unreg_only same_ports if dc0 log redirect_port tcp 192.168.0.2:6667 6667 redirect_port tcp 192.168.0.3:www 80"
            ),
            "if dc0 log same_ports unreg_only reset redirect_port tcp 192.168.0.2:6667 6667 redirect_port tcp 192.168.0.3:80 80"
        );
        assert_eq!(
            printed("ip 192.0.2.1 deny_in port_range 2000-2999 unreg_cgn"),
            "ip 192.0.2.1 deny_in unreg_cgn port_range 2000-2999"
        );
    }

    #[test]
    fn redirects_are_read_in_full() {
        for text in [
            "redirect_addr 10.0.0.8 0.0.0.0",
            "redirect_addr 10.0.0.8,10.0.0.9 192.0.2.1",
            "redirect_port udp 10.0.0.1:500-509 192.0.2.9:700-709 198.51.100.1:1000-1009",
            "redirect_port tcp 10.0.0.1:80,10.0.0.2:80,10.0.0.3:8080 80",
            "redirect_port tcp 10.0.0.1:25 25 198.51.100.1",
            "redirect_port sctp 10.0.0.1 4000",
            "redirect_proto icmp 10.0.0.1",
            "redirect_proto gre 10.0.0.1 192.0.2.1 198.51.100.7",
        ] {
            assert_eq!(printed(text), text);
        }
    }

    #[test]
    fn errors_have_the_originals_words_and_codes() {
        let bad = |text: &str| read(text).map_err(|failure| (failure.exit, failure.message)).unwrap_err();
        assert_eq!(
            bad("redirect_port tcp 10.0.0.1:1-2 1"),
            (65, "redirect_port: port ranges must be equal in size".into())
        );
        assert_eq!(
            bad("redirect_port icmp 10.0.0.1:1 1"),
            (65, "unknown protocol icmp. Expected sctp, tcp or udp".into())
        );
        assert_eq!(bad("redirect_port tcp 10.0.0.1 1").1, "10.0.0.1 is missing port number");
        assert_eq!(bad("redirect_port tcp nowhere:1 1"), (1, "unknown host nowhere".into()));
        assert_eq!(bad("redirect_addr 1.1.1.1").1, "redirect_addr: not enough arguments");
        assert_eq!(bad("ip 1.2.3").1, "bad ip address ``1.2.3''");
        assert_eq!(bad("same_ports port_range 2000-3000").1, "same_ports and port_range cannot both be selected");
        assert_eq!(bad("port_range 80-90").1, "You need a range of port(s) from 1024 <= x < 65536");
        let failure = read("same_port").unwrap_err();
        assert_eq!((failure.exit, failure.hint.as_deref()), (65, Some("did you mean `same_ports`?")));
    }
}
