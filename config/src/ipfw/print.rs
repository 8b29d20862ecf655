#![forbid(unsafe_code)]
//! Rules as `ipfw list` of FreeBSD 14 and 15 prints them.
//!
//! As there, the first protocol, source, destination and single port test of a rule are printed in `PROTO from SRC PORT to DST PORT` wherever they
//! stood, and everything else after them in its order. The text can be read back and means the same, so where FreeBSD's own list cannot be
//! (`extension header: hop options`, `needfrag 1420`, protocol 41 as `ipv6`, or-blocks that mix addresses with other tests) the words of
//! the rule language are printed instead.

use super::actions::{print_action, print_argument, print_hex, print_modifiers};
use super::addresses::{inet_ntop, print as print_addresses, print_table};
use super::ast::{
    Action, Addresses, Argument, Block, InterfaceMatch, InterfaceRole, OwnerKind, Range, Rule, Side, TableValueTest,
    Term, Test,
};
use super::keywords::{self, ETHER_TYPES};
use super::lookup::print_key;
use super::mac::print_masked_mac;
use super::names::{Names, builtin};
use super::numbers::{print_bits, print_flags, print_list, print_numbers};
use super::states::print_state;

/// The number that `ip6` has among protocols.
const IPV6: u8 = 41;

/// How to print.
#[derive(Clone, Copy)]
pub struct PrintOptions<'a> {
    /// Names of protocols, and of services with `resolve`.
    pub names: &'a dyn Names,
    /// `-c`: `from any to any` is left out. Such a list cannot be read back.
    pub compact: bool,
    /// `-N`: ports by their service names, MAC types by their names.
    pub resolve: bool,
    /// `-S`: the set is shown.
    pub show_set: bool,
    /// `-b`: only the action and the comment.
    pub comment_only: bool,
    /// The rule's set is disabled; only lists with `-S` show such rules.
    pub disabled: bool,
}

impl Default for PrintOptions<'static> {
    fn default() -> Self {
        Self { names: builtin(), compact: false, resolve: false, show_set: false, comment_only: false, disabled: false }
    }
}

/// A rule as one line without its end.
pub fn print_rule(rule: &Rule, options: &PrintOptions<'_>) -> String {
    print_rule_with(rule, options, "")
}

/// As [`print_rule`], with columns between the number and the rest, each followed by a blank: [`counter_columns`], a time.
pub fn print_rule_with(rule: &Rule, options: &PrintOptions<'_>, columns: &str) -> String {
    let disabled = if options.disabled { "# DISABLED " } else { "" };
    let set = if options.show_set { format!("set {} ", rule.set) } else { String::new() };
    format!("{disabled}{:05} {columns}{set}{}", rule.number, print_body(rule, options))
}

/// The columns of `-a`: packets and bytes, right-aligned to the widest of the list.
pub fn counter_columns(packets: u64, bytes: u64, packets_width: usize, bytes_width: usize) -> String {
    format!("{packets:packets_width$} {bytes:bytes_width$} ")
}

/// A rule without its number and set.
pub fn print_body(rule: &Rule, options: &PrintOptions<'_>) -> String {
    let mut out = match rule.probability {
        Some(probability) => format!("prob {} ", print_probability(probability)),
        None => String::new(),
    };
    out.push_str(&print_action(&rule.action));
    out.push_str(&print_modifiers(rule.log, rule.tag));
    let tests = !matches!(rule.action, Action::CheckState(_)) && !options.comment_only;
    if tests {
        out.push_str(&print_tests(rule, options));
    }
    match &rule.comment {
        Some(comment) => out.push_str(&format!(" // {comment}")),
        None if options.comment_only => out.push_str(" // ..."),
        None => {}
    }
    out
}

/// Six decimals, as there; more where these would read back as no probability.
fn print_probability(probability: f64) -> String {
    let short = format!("{probability:.6}");
    if matches!(short.as_str(), "0.000000" | "1.000000") { probability.to_string() } else { short }
}

fn print_tests(rule: &Rule, options: &PrintOptions<'_>) -> String {
    let mut printer = Printer { options, protocol: None, printed: vec![false; rule.blocks.len()] };
    let mut out = String::new();
    if rule.options_only {
        if rule.blocks.is_empty() && rule.state.is_none() && rule.comment.is_none() {
            // Something must stand there.
            out.push_str(" proto ip");
        }
    } else {
        out.push_str(&printer.header(&rule.blocks));
    }
    for (at, block) in rule.blocks.iter().enumerate() {
        if !printer.printed[at] {
            out.push_str(&printer.block(block, true));
        }
    }
    if let Some(state) = &rule.state {
        out.push(' ');
        out.push_str(&print_state(state));
    }
    out
}

struct Printer<'a> {
    options: &'a PrintOptions<'a>,
    /// The protocol printed last, for the names of ports.
    protocol: Option<u8>,
    printed: Vec<bool>,
}

impl Printer<'_> {
    /// `PROTO from SRC PORT to DST PORT`.
    fn header(&mut self, blocks: &[Block]) -> String {
        let mut out = match protocol_block(blocks) {
            Some(at) => {
                self.printed[at] = true;
                self.block(&blocks[at], false)
            }
            None => " ip".to_owned(),
        };
        let ip6_rule = protocol_block(blocks)
            .is_some_and(|at| blocks[at].terms.last().is_some_and(|term| term.test == Test::Ipv6));
        let sides = [Side::Source, Side::Destination].map(|side| {
            let address = blocks.iter().position(|block| is_address(block, side) && fits(block, ip6_rule));
            (side, address, port_block(blocks, side))
        });
        if self.options.compact && sides.iter().all(|(_, address, ports)| address.is_none() && ports.is_none()) {
            return out;
        }
        for (side, address, ports) in sides {
            out.push_str(if side == Side::Source { " from" } else { " to" });
            match address {
                Some(at) => {
                    self.printed[at] = true;
                    out.push_str(&self.block(&blocks[at], false));
                }
                None => out.push_str(" any"),
            }
            if let Some(at) = ports {
                self.printed[at] = true;
                out.push_str(&self.block(&blocks[at], false));
            }
        }
        out
    }

    /// A block with a blank before it; `keywords` where its tests stand among the options.
    fn block(&mut self, block: &Block, keywords: bool) -> String {
        let many = block.terms.len() > 1;
        let mut out = String::new();
        if many {
            out.push_str(" {");
        }
        for (at, term) in block.terms.iter().enumerate() {
            if at > 0 {
                out.push_str(" or");
            }
            out.push_str(&self.term(term, keywords));
        }
        if many {
            out.push_str(" }");
        }
        out
    }

    fn term(&mut self, term: &Term, keywords: bool) -> String {
        let text = self.test(&term.test, keywords);
        if term.not { format!(" not {text}") } else { format!(" {text}") }
    }

    fn test(&mut self, test: &Test, keywords: bool) -> String {
        match test {
            Test::Ipv4 if keywords => "proto ip4".to_owned(),
            Test::Ipv4 => "ip4".to_owned(),
            Test::Ipv6 if keywords => "proto ip6".to_owned(),
            Test::Ipv6 => "ip6".to_owned(),
            Test::Protocol(number) => self.protocol(*number, keywords),
            Test::Address(side, addresses) => print_address(*side, addresses, keywords),
            Test::Ports(side, ranges) => {
                let keyword = match (keywords, side) {
                    (false, _) => "",
                    (true, Side::Source) => "src-port ",
                    (true, Side::Destination) => "dst-port ",
                };
                format!("{keyword}{}", print_list(ranges, |port| self.port(port)))
            }
            Test::MacType(types) => self.mac_type(types),
            _ => print_option(test),
        }
    }

    fn protocol(&mut self, number: u8, keywords: bool) -> String {
        self.protocol = Some(number);
        let name = self.options.names.protocol_name(number).filter(|_| keywords || number != IPV6);
        let name = name.map_or_else(|| number.to_string(), str::to_owned);
        if keywords { format!("proto {name}") } else { name }
    }

    fn port(&self, port: u16) -> String {
        let protocol = self.protocol.filter(|_| self.options.resolve).and_then(super::check::port_protocol);
        let name = protocol.and_then(|protocol| self.options.names.service_name(port, protocol));
        name.map_or_else(|| port.to_string(), str::to_owned)
    }

    fn mac_type(&self, types: &[Range<u16>]) -> String {
        let list = print_list(types, |value| {
            let name = keywords::name(ETHER_TYPES, value).filter(|_| self.options.resolve);
            name.map_or_else(|| format!("{value:#06x}"), str::to_owned)
        });
        format!("mac-type {list}")
    }
}

fn is_protocol(test: &Test) -> bool {
    matches!(test, Test::Ipv4 | Test::Ipv6 | Test::Protocol(_))
}

/// The block that is printed as the protocol: the first with `ip4` or `ip6`, or else the first of protocols.
fn protocol_block(blocks: &[Block]) -> Option<usize> {
    let candidates = || {
        let all = blocks.iter().enumerate();
        all.filter(|(_, block)| block.terms.iter().all(|term| is_protocol(&term.test)))
    };
    let version =
        candidates().find(|(_, block)| block.terms.iter().any(|term| matches!(term.test, Test::Ipv4 | Test::Ipv6)));
    version.or_else(|| candidates().next()).map(|(at, _)| at)
}

/// Whether every term is an address of this side.
fn is_address(block: &Block, side: Side) -> bool {
    block.terms.iter().all(|term| matches!(&term.test, Test::Address(of, _) if *of == side))
}

/// Whether the addresses of a block would be read back as what they are after the protocol of the rule.
fn fits(block: &Block, ip6_rule: bool) -> bool {
    !ip6_rule
        || block.terms.iter().all(|term| {
            !matches!(&term.test, Test::Address(_, Addresses::V4(_) | Addresses::Set4 { .. } | Addresses::Me))
        })
}

/// The block of this side's ports, if there is only one such test and it stands alone.
fn port_block(blocks: &[Block], side: Side) -> Option<usize> {
    let is_port = |term: &Term| matches!(&term.test, Test::Ports(of, _) if *of == side);
    let count = blocks.iter().flat_map(|block| &block.terms).filter(|term| is_port(term)).count();
    let alone = blocks.iter().position(|block| block.terms.len() == 1 && is_port(&block.terms[0]));
    alone.filter(|_| count == 1)
}

fn print_address(side: Side, addresses: &Addresses, keywords: bool) -> String {
    if !keywords {
        return print_addresses(addresses);
    }
    let keyword = match (side, addresses) {
        (Side::Source, Addresses::V6(_) | Addresses::Me6) => "src-ip6",
        (Side::Source, _) => "src-ip",
        (Side::Destination, Addresses::V6(_) | Addresses::Me6) => "dst-ip6",
        (Side::Destination, _) => "dst-ip",
    };
    match addresses {
        Addresses::None => format!("not {keyword} any"),
        _ => format!("{keyword} {}", print_addresses(addresses)),
    }
}

fn print_interface(role: InterfaceRole, interface: &InterfaceMatch) -> String {
    let role = match role {
        InterfaceRole::Recv => "recv",
        InterfaceRole::Xmit => "xmit",
        InterfaceRole::Via => "via",
    };
    match interface {
        InterfaceMatch::Any => format!("{role} any"),
        InterfaceMatch::Name(name) | InterfaceMatch::Pattern(name) => format!("{role} {name}"),
        InterfaceMatch::Address4(address) => format!("{role} {address}"),
        InterfaceMatch::Address6(address) => format!("{role} {}", inet_ntop(*address)),
        InterfaceMatch::Table(name, value) => format!("{role} table({})", print_table(name, *value)),
    }
}

fn in_table(keyword: &str, name: &str, value: Option<TableValueTest>) -> String {
    format!("{keyword} table({})", print_table(name, value))
}

/// Tests that are printed the same wherever they stand.
fn print_option(test: &Test) -> String {
    let plain = |word: &str| word.to_owned();
    match test {
        // Printed with regard to where they stand.
        Test::Ipv4 | Test::Ipv6 | Test::Protocol(_) | Test::Address(..) | Test::Ports(..) | Test::MacType(_) => {
            String::new()
        }
        Test::Layer2 => plain("layer2"),
        Test::Mac { destination, source } => {
            format!("MAC {} {}", print_masked_mac(destination), print_masked_mac(source))
        }
        Test::MacTable(Side::Source, name, value) => in_table("src-mac", name, *value),
        Test::MacTable(Side::Destination, name, value) => in_table("dst-mac", name, *value),
        Test::Lookup(key, table) => format!("lookup {} {table}", print_key(*key)),
        Test::FlowTable(name, value) => in_table("flow", name, *value),
        Test::In => plain("in"),
        Test::Out => plain("out"),
        Test::Interface(role, interface) => print_interface(*role, interface),
        Test::Fragment(bits) => format!("frag {}", print_flags(keywords::FRAGMENT, bits.set, bits.clear)),
        Test::IpId(numbers) => format!("ipid {}", print_numbers(numbers)),
        Test::IpLength(numbers) => format!("iplen {}", print_numbers(numbers)),
        Test::IpTtl(numbers) => format!("ipttl {}", print_numbers(numbers)),
        Test::IpVersion(version) => format!("ipver {version}"),
        Test::IpOptions(bits) => format!("ipoptions {}", print_flags(keywords::IP_OPTIONS, bits.set, bits.clear)),
        Test::IpPrecedence(value) => format!("ipprecedence {value}"),
        Test::IpTos(bits) => format!("iptos {}", print_flags(keywords::IP_TOS, bits.set, bits.clear)),
        Test::Dscp(map) => format!("dscp {}", print_dscp(*map)),
        Test::DscpTable => plain("dscp tablearg"),
        Test::TcpFlags(bits) if (bits.set, bits.clear) == (2, 16) => plain("setup"),
        Test::TcpFlags(bits) => format!("tcpflags {}", print_flags(keywords::TCP_FLAGS, bits.set, bits.clear)),
        Test::Established => plain("established"),
        Test::TcpOptions(bits) => format!("tcpoptions {}", print_flags(keywords::TCP_OPTIONS, bits.set, bits.clear)),
        Test::TcpSequence(value) => format!("tcpseq {}", *value as i32),
        Test::TcpAcknowledgement(value) => format!("tcpack {}", *value as i32),
        Test::TcpWindow(numbers) => format!("tcpwin {}", print_numbers(numbers)),
        Test::TcpDataLength(numbers) => format!("tcpdatalen {}", print_numbers(numbers)),
        Test::TcpMss(numbers) => format!("tcpmss {}", print_numbers(numbers)),
        Test::IcmpTypes(map) => format!("icmptypes {}", print_bits(&[u64::from(*map)])),
        Test::Icmp6Types(map) => format!("icmp6types {}", print_bits(map)),
        Test::ExtensionHeaders(bits) => format!("ext6hdr {}", print_flags(keywords::EXTENSION_HEADERS, *bits, 0)),
        Test::FlowId(labels) => {
            let labels: Vec<String> = labels.iter().map(u32::to_string).collect();
            // With the blank that ipfw(8) leaves after them.
            format!("flow-id {} ", labels.join(","))
        }
        Test::VerifyReversePath => plain("verrevpath"),
        Test::VerifySourceReach => plain("versrcreach"),
        Test::AntiSpoof => plain("antispoof"),
        Test::Fib(argument) => format!("fib {}", print_argument(*argument)),
        Test::Tagged(numbers) => format!("tagged {}", print_numbers(numbers)),
        Test::Mark(value, mask) => print_mark(value, *mask),
        Test::Owner(OwnerKind::User, name) => format!("uid {name}"),
        Test::Owner(OwnerKind::Group, name) => format!("gid {name}"),
        Test::Owner(OwnerKind::Jail, name) => format!("jail {name}"),
        Test::Ipsec => plain("ipsec"),
        Test::Diverted { loopback: true, output: false } => plain("diverted-loopback"),
        Test::Diverted { loopback: false, output: true } => plain("diverted-output"),
        Test::Diverted { .. } => plain("diverted"),
        Test::SocketArgument => plain("sockarg"),
    }
}

fn print_dscp(map: u64) -> String {
    let codes = (0..64u8).filter(|code| map >> code & 1 != 0);
    let names = codes.map(|code| keywords::name(keywords::DSCP, code).map_or_else(|| code.to_string(), str::to_owned));
    names.collect::<Vec<_>>().join(",")
}

fn print_mark(value: &Argument, mask: u32) -> String {
    let value = match value {
        Argument::Number(value) => print_hex(*value),
        Argument::Table => "tablearg".to_owned(),
    };
    if mask == u32::MAX { format!("mark {value}") } else { format!("mark {value}:{}", print_hex(mask)) }
}
