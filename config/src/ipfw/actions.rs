#![forbid(unsafe_code)]
//! Actions of a rule and what modifies them (`log`, `tag`): text to meaning and back.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::addresses::{inet_aton, inet_ntop, is_object_name};
use super::ast::{Action, Argument, ForwardTo, Log, NatInstance, ReturnTo, Tag};
use super::keywords::{self, ACTIONS, ActionWord, DSCP, UNREACH, UNREACH_HOST, UNREACH_NEEDFRAG, UNREACH6};
use super::numbers::{self, ListKind, decimal, number, number32};
use super::reader::{Failed, Parser};
use super::states::print_state_name;
use crate::diagnostic::quoted;
use crate::span::Span;

/// The largest argument of skipto, pipe, tag and their kin (IPFW_ARG_MAX).
pub(super) const ARGUMENT_MOST: u64 = 65534;
/// The smallest and largest MTU of `unreach needfrag`.
const MTU: std::ops::Range<u64> = 68..65535;

impl Parser<'_, '_> {
    /// The action. None after a complaint.
    pub(super) fn action(&mut self) -> Option<Action> {
        let here = self.here();
        let Some((word, span)) = self.next() else {
            self.hinted(here, "missing action", "write allow, deny or another action");
            return None;
        };
        if word == "//" {
            // A rule that is a comment only counts.
            self.back();
            return Some(Action::Count);
        }
        let Some(action) = keywords::value(ACTIONS, word) else {
            self.unknown(span, format!("invalid action {}", quoted(word)), word, keywords::names(ACTIONS));
            return None;
        };
        self.action_arguments(action, word).ok()
    }

    fn action_arguments(&mut self, action: ActionWord, word: &str) -> Result<Action, Failed> {
        Ok(match action {
            ActionWord::Allow => Action::Allow,
            ActionWord::Deny => Action::Deny,
            ActionWord::Reject => Action::Unreach(UNREACH_HOST, None),
            ActionWord::Unreach => self.unreach()?,
            ActionWord::Unreach6 => Action::Unreach6(self.code(word, "ICMPv6", UNREACH6)?),
            ActionWord::Reset => Action::Reset,
            ActionWord::Reset6 => Action::Reset6,
            ActionWord::Abort => Action::Abort,
            ActionWord::Abort6 => Action::Abort6,
            ActionWord::Count => Action::Count,
            ActionWord::SkipTo => Action::SkipTo(self.number_or_table(word)?),
            ActionWord::Call => Action::Call(self.number_or_table(word)?),
            ActionWord::Return if self.eat(&["next-rule"]) => Action::Return(ReturnTo::NextRule),
            ActionWord::Return => {
                self.eat(&["next-rulenum"]);
                Action::Return(ReturnTo::NextNumber)
            }
            ActionWord::CheckState => Action::CheckState(self.check_state_name()?),
            ActionWord::Forward => self.forward(word)?,
            ActionWord::Nat if self.eat(&["global"]) => Action::Nat(NatInstance::Global),
            ActionWord::Nat => Action::Nat(NatInstance::One(self.number_or_table(word)?)),
            ActionWord::Pipe => Action::Pipe(self.number_or_table(word)?),
            ActionWord::Queue => Action::Queue(self.number_or_table(word)?),
            ActionWord::SetFib => Action::SetFib(self.bounded(word, "a fib number", 0..=32767)?),
            ActionWord::SetDscp => self.set_dscp(word)?,
            ActionWord::SetMark => self.set_mark(word)?,
            ActionWord::TcpSetMss => self.tcp_set_mss(word)?,
            ActionWord::Reassemble => Action::Reassemble,
            ActionWord::Netgraph => Action::Netgraph(self.number_or_table(word)?),
            ActionWord::NgTee => Action::NgTee(self.number_or_table(word)?),
            ActionWord::Divert => Action::Divert(self.divert_port(word)?),
            ActionWord::Tee => Action::Tee(self.divert_port(word)?),
            ActionWord::External => Action::External(self.object_name(word)?, self.object_name(word)?),
            ActionWord::NamedExternal => Action::External(word.to_owned(), self.object_name(word)?),
        })
    }

    fn unreach(&mut self) -> Result<Action, Failed> {
        let code = self.code("unreach", "ICMP", UNREACH)?;
        // A number before `from` is a protocol.
        let protocol = self.peek_at(1) == Some("from");
        let mtu = self.peek().filter(|word| !protocol && word.starts_with(|first: char| first.is_ascii_digit()));
        match mtu {
            Some(text) if code == UNREACH_NEEDFRAG => {
                let (_, span) = self.next().ok_or(Failed)?;
                match decimal(text).filter(|mtu| MTU.contains(mtu)) {
                    Some(mtu) => Ok(Action::Unreach(code, Some(mtu as u16))),
                    None => Err(self.hinted(span, format!("illegal MTU {}", quoted(text)), "68 to 65534")),
                }
            }
            _ => Ok(Action::Unreach(code, None)),
        }
    }

    /// A code by name or number.
    fn code(&mut self, action: &str, protocol: &str, list: &'static [(&'static str, u8)]) -> Result<u8, Failed> {
        let (text, span) = self.argument(action, "a code")?;
        let code = number(text).and_then(|code| u8::try_from(code).ok());
        match code.or_else(|| keywords::value(list, text)) {
            Some(code) => Ok(code),
            None => {
                let message = format!("unknown {protocol} unreachable code {}", quoted(text));
                Err(self.unknown(span, message, text, keywords::names(list)))
            }
        }
    }

    /// A number from 1 to 65534, or `tablearg`.
    pub(super) fn number_or_table(&mut self, of: &str) -> Result<Argument, Failed> {
        self.bounded(of, "a number or tablearg", 1..=ARGUMENT_MOST)
    }

    /// A number within bounds, or `tablearg`.
    pub(super) fn bounded(
        &mut self,
        of: &str,
        what: &str,
        bounds: std::ops::RangeInclusive<u64>,
    ) -> Result<Argument, Failed> {
        let (text, span) = self.argument(of, what)?;
        if text == "tablearg" {
            return Ok(Argument::Table);
        }
        match decimal(text) {
            Some(value) if bounds.contains(&value) => Ok(Argument::Number(value as u32)),
            Some(_) => {
                let message = format!("{of}: argument is out of range ({}..{}): {text}", bounds.start(), bounds.end());
                Err(self.error(span, message))
            }
            None => {
                let message = format!("illegal argument {} for {of}", quoted(text));
                Err(self.unknown(span, message, text, ["tablearg"]))
            }
        }
    }

    fn divert_port(&mut self, of: &str) -> Result<Argument, Failed> {
        let named = self.peek().filter(|word| !word.starts_with(|first: char| first.is_ascii_digit()));
        match named.filter(|word| *word != "tablearg" && *word != "//") {
            None => self.number_or_table(of),
            Some(name) => {
                let (_, span) = self.next().ok_or(Failed)?;
                match self.names.service(name, Some("divert")) {
                    Some(port) => Ok(Argument::Number(port.into())),
                    None => {
                        let message = format!("illegal divert/tee port {}", quoted(name));
                        Err(self.hinted(span, message, "a number, a service such as natd, or tablearg"))
                    }
                }
            }
        }
    }

    fn object_name(&mut self, of: &str) -> Result<String, Failed> {
        let (text, span) = self.argument(of, "a name")?;
        if is_object_name(text) {
            return Ok(text.to_owned());
        }
        let message = format!("invalid eaction name {}", quoted(text));
        Err(self.hinted(span, message, "1 to 63 letters, digits, `_`, `-` and `.`"))
    }

    /// `ADDRESS[,PORT]`, `ADDRESS:PORT`, `[ADDRESS6]:PORT`, `tablearg[,PORT]`.
    fn forward(&mut self, of: &str) -> Result<Action, Failed> {
        let (text, span) = self.argument(of, "an address[,port]")?;
        let (host, port) = split_forward(text);
        let port = match port {
            None => 0,
            Some(port) => {
                let ports = numbers::list(port, ListKind::Ports(self.names, None));
                match ports.as_deref() {
                    Ok([range]) if range.low == range.high => range.low,
                    _ => return Err(self.error(span, format!("illegal forwarding port {}", quoted(port)))),
                }
            }
        };
        if host == "tablearg" {
            return Ok(Action::Forward(ForwardTo::Table(port)));
        }
        if let Some(address) = inet_aton(host) {
            // ipfw(8) writes tablearg as this address.
            let unspecified = address == Ipv4Addr::UNSPECIFIED;
            return Ok(Action::Forward(if unspecified {
                ForwardTo::Table(port)
            } else {
                ForwardTo::V4(address, port)
            }));
        }
        let (bare, scope) = host.split_once('%').map_or((host, None), |(bare, scope)| (bare, Some(scope)));
        match (bare.parse::<Ipv6Addr>(), scope) {
            (Ok(address), None) => Ok(Action::Forward(ForwardTo::V6(address, None, port))),
            (Ok(address), Some(scope)) if (1..16).contains(&scope.len()) => {
                let mut name = [0; 16];
                name[..scope.len()].copy_from_slice(scope.as_bytes());
                Ok(Action::Forward(ForwardTo::V6(address, Some(name), port)))
            }
            _ => {
                let message = format!("hostname {} unknown", quoted(host));
                Err(self.hinted(
                    span,
                    message,
                    "write an address: names are not looked up in the DNS when rules are read",
                ))
            }
        }
    }

    fn set_dscp(&mut self, of: &str) -> Result<Action, Failed> {
        if let Some(code) = self.peek().and_then(|word| keywords::value(DSCP, word)) {
            self.next();
            return Ok(Action::SetDscp(Argument::Number(code.into())));
        }
        match self.peek() {
            Some(word) if word.starts_with(|first: char| first.is_ascii_alphabetic()) && word != "tablearg" => {
                let span = self.here();
                self.next();
                Err(self.unknown(span, format!("unknown DSCP code {}", quoted(word)), word, keywords::names(DSCP)))
            }
            _ => Ok(Action::SetDscp(self.bounded(of, "a DSCP code", 0..=63)?)),
        }
    }

    fn tcp_set_mss(&mut self, of: &str) -> Result<Action, Failed> {
        let (text, span) = self.argument(of, "an MSS")?;
        match decimal(text).and_then(|mss| u16::try_from(mss).ok()).filter(|&mss| mss > 0) {
            Some(mss) => Ok(Action::TcpSetMss(mss)),
            None => Err(self.hinted(span, format!("invalid MSS value {}", quoted(text)), "1 to 65535")),
        }
    }

    fn set_mark(&mut self, of: &str) -> Result<Action, Failed> {
        let (text, span) = self.argument(of, "a mark")?;
        let (value, mask) = text.split_once('/').map_or((text, None), |(value, mask)| (value, Some(mask)));
        let mask = mask.map_or(Some(u32::MAX), number32);
        let value = if value == "tablearg" { Some(Argument::Table) } else { number32(value).map(Argument::Number) };
        match (value, mask) {
            (Some(value), Some(mask)) => Ok(Action::SetMark(value, mask)),
            _ => Err(self.hinted(span, format!("illegal mark {}", quoted(text)), "a 32-bit number, or tablearg")),
        }
    }

    /// `log [logamount N]`, `tag N`, `untag N`, in any order.
    pub(super) fn modifiers(&mut self) -> (Option<Log>, Option<Tag>) {
        let (mut log, mut tag) = (None, None);
        loop {
            let here = self.here();
            if self.eat(&["log"]) {
                let amount = self.log_amount();
                self.once(here, log.is_some(), "log cannot be specified more than once");
                log = Some(Log { amount });
            } else if let Some(name @ ("tag" | "untag")) = self.peek() {
                self.next();
                let clear = name == "untag";
                self.once(here, tag.is_some(), "tag and untag cannot be specified more than once");
                if let Ok(number) = self.number_or_table(name) {
                    tag = Some(if clear { Tag::Clear(number) } else { Tag::Set(number) });
                }
            } else if self.eat(&["altq"]) {
                self.next();
                self.hinted(
                    here,
                    "altq is not supported: there are no ALTQ queues here",
                    "use queue or pipe (dummynet)",
                );
            } else {
                return (log, tag);
            }
        }
    }

    fn log_amount(&mut self) -> Option<u32> {
        if !self.eat(&["logamount"]) {
            return None;
        }
        let (text, span) = self.argument("logamount", "a number").ok()?;
        let amount = decimal(text).and_then(|amount| u32::try_from(amount).ok());
        if amount.is_none() {
            self.hinted(span, format!("illegal logamount {}", quoted(text)), "a number; 0 is no limit");
        }
        amount
    }

    fn once(&mut self, span: Span, again: bool, message: &str) {
        if again {
            self.error(span, message);
        }
    }
}

/// Address and port of `fwd`.
fn split_forward(text: &str) -> (&str, Option<&str>) {
    let (host, port) = match text.split_once(',') {
        Some((host, port)) => (host, Some(port)),
        None => match text.split_once(']') {
            Some((host, after)) => (host, after.strip_prefix(':')),
            None if text.matches(':').count() == 1 => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
            None => (text, None),
        },
    };
    let host = host.strip_prefix('[').unwrap_or(host);
    (host.strip_suffix(']').unwrap_or(host), port)
}

/// A number or `tablearg`.
pub(super) fn print_argument(argument: Argument) -> String {
    match argument {
        Argument::Number(number) => number.to_string(),
        Argument::Table => "tablearg".to_owned(),
    }
}

/// A number in hex as printf(3)'s `%#x`, which leaves 0 bare.
pub(super) fn print_hex(value: u32) -> String {
    if value == 0 { "0".to_owned() } else { format!("{value:#x}") }
}

/// An action as ipfw(8) lists it. Where its list could not be read back (`needfrag 1420`) the words of the rule language are printed.
pub(super) fn print_action(action: &Action) -> String {
    let with = |word: &str, argument: &Argument| format!("{word} {}", print_argument(*argument));
    match action {
        Action::Allow => "allow".to_owned(),
        Action::Deny => "deny".to_owned(),
        Action::Unreach(UNREACH_HOST, None) => "reject".to_owned(),
        Action::Unreach(code, mtu) => {
            let code = keywords::name(UNREACH, *code).map_or_else(|| code.to_string(), str::to_owned);
            match mtu {
                Some(mtu) => format!("unreach {code} {mtu}"),
                None => format!("unreach {code}"),
            }
        }
        Action::Unreach6(code) => {
            let code = keywords::name(UNREACH6, *code).map_or_else(|| code.to_string(), str::to_owned);
            format!("unreach6 {code}")
        }
        Action::Reset => "reset".to_owned(),
        Action::Reset6 => "reset6".to_owned(),
        Action::Abort => "abort".to_owned(),
        Action::Abort6 => "abort6".to_owned(),
        Action::Count => "count".to_owned(),
        Action::SkipTo(argument) => with("skipto", argument),
        Action::Call(argument) => with("call", argument),
        Action::Return(ReturnTo::NextNumber) => "return next-rulenum".to_owned(),
        Action::Return(ReturnTo::NextRule) => "return next-rule".to_owned(),
        Action::CheckState(name) => format!("check-state {}", print_state_name(name)),
        Action::Forward(to) => print_forward(to),
        Action::Nat(NatInstance::Global) => "nat global".to_owned(),
        Action::Nat(NatInstance::One(argument)) => with("nat", argument),
        Action::Pipe(argument) => with("pipe", argument),
        Action::Queue(argument) => with("queue", argument),
        Action::SetFib(argument) => with("setfib", argument),
        Action::SetDscp(Argument::Number(code)) => {
            let name = u8::try_from(*code).ok().and_then(|code| keywords::name(DSCP, code));
            format!("setdscp {}", name.map_or_else(|| code.to_string(), str::to_owned))
        }
        Action::SetDscp(Argument::Table) => "setdscp tablearg".to_owned(),
        Action::SetMark(value, mask) => {
            let value = match value {
                Argument::Number(value) => print_hex(*value),
                Argument::Table => "tablearg".to_owned(),
            };
            if *mask == u32::MAX { format!("setmark {value}") } else { format!("setmark {value}/{}", print_hex(*mask)) }
        }
        Action::TcpSetMss(mss) => format!("tcp-setmss {mss}"),
        Action::Reassemble => "reass".to_owned(),
        Action::Netgraph(argument) => with("netgraph", argument),
        Action::NgTee(argument) => with("ngtee", argument),
        Action::Divert(argument) => with("divert", argument),
        Action::Tee(argument) => with("tee", argument),
        Action::External(name, instance) if keywords::value(ACTIONS, name) == Some(ActionWord::NamedExternal) => {
            format!("{name} {instance}")
        }
        Action::External(name, instance) => format!("eaction {name} {instance}"),
    }
}

fn print_forward(to: &ForwardTo) -> String {
    let (host, port) = match to {
        ForwardTo::V4(address, port) => (address.to_string(), *port),
        ForwardTo::V6(address, None, port) => (inet_ntop(*address), *port),
        ForwardTo::V6(address, Some(scope), port) => {
            let length = scope.iter().position(|&byte| byte == 0).unwrap_or(scope.len());
            (format!("{}%{}", inet_ntop(*address), String::from_utf8_lossy(&scope[..length])), *port)
        }
        ForwardTo::Table(port) => ("tablearg".to_owned(), *port),
    };
    if port == 0 { format!("fwd {host}") } else { format!("fwd {host},{port}") }
}

/// `log ...` and `tag ...` with a blank before each. `logamount 0` is what `log` alone comes to while `verbose_limit` is 0.
pub(super) fn print_modifiers(log: Option<Log>, tag: Option<Tag>) -> String {
    let mut out = String::new();
    match log {
        None => {}
        Some(Log { amount: None | Some(0) }) => out.push_str(" log"),
        Some(Log { amount: Some(amount) }) => out.push_str(&format!(" log logamount {amount}")),
    }
    match tag {
        None => {}
        Some(Tag::Set(argument)) => out.push_str(&format!(" tag {}", print_argument(argument))),
        Some(Tag::Clear(argument)) => out.push_str(&format!(" untag {}", print_argument(argument))),
    }
    out
}
