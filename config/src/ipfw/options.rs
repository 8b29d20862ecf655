#![forbid(unsafe_code)]
//! Options of a rule: words to tests. How tests are printed is [`super::print`]'s.

use std::net::Ipv6Addr;

use super::addresses::{self, Family, Fault};
use super::ast::{
    Argument, Bits, FragmentBits, InterfaceMatch, InterfaceRole, MaskedMac, Numbers, OwnerKind, Range, Side,
    TableValueTest, Test,
};
use super::keywords::{self, DSCP, Flags, OptionWord};
use super::numbers::{self, ListError, ListKind, number, number32};
use super::reader::{Failed, Parsed, Parser};
use crate::diagnostic::quoted;
use crate::span::Span;

/// The longest name of an interface.
const INTERFACE_NAME_MOST: usize = 15;
/// The highest flow label (RFC 6437).
const FLOW_LABEL_MOST: u32 = 0xf_ffff;
/// The highest ICMP type that ipfw(8) can test.
const ICMP_TYPE_MOST: u64 = 31;
/// The highest ICMPv6 type that ipfw(8) can test.
const ICMP6_TYPE_MOST: u64 = 201;

impl Parser<'_, '_> {
    /// One option whose keyword has been read.
    pub(super) fn option(&mut self, option: OptionWord, word: &str, span: Span, not: bool) -> Result<Parsed, Failed> {
        use OptionWord as O;
        let test = match option {
            O::KeepState | O::RecordState | O::Limit | O::SetLimit | O::DeferAction => {
                if not {
                    return Err(self.error(span, format!("`not {word}` makes no sense")));
                }
                return if option == O::DeferAction { self.defer(span) } else { self.state_option(option, word, span) };
            }
            // `not in` is `out`.
            O::In | O::Out => {
                let test = if (option == O::In) != not { Test::In } else { Test::Out };
                return Ok(Parsed::Term(false, Some(test)));
            }
            O::Recv => return self.interface(word, InterfaceRole::Recv, not),
            O::Xmit => return self.interface(word, InterfaceRole::Xmit, not),
            O::Via => return self.interface(word, InterfaceRole::Via, not),
            O::SourceIp => return self.address_option(word, Side::Source, Family::V4, not),
            O::DestinationIp => return self.address_option(word, Side::Destination, Family::V4, not),
            O::SourceIp6 => return self.address_option(word, Side::Source, Family::V6, not),
            O::DestinationIp6 => return self.address_option(word, Side::Destination, Family::V6, not),
            O::SourcePort => return self.port_option(word, Side::Source, not),
            O::DestinationPort => return self.port_option(word, Side::Destination, not),
            O::Protocol => return self.protocol_option(word, not),
            O::Layer2 => Test::Layer2,
            O::Diverted => Test::Diverted { loopback: true, output: true },
            O::DivertedLoopback => Test::Diverted { loopback: true, output: false },
            O::DivertedOutput => Test::Diverted { loopback: false, output: true },
            O::Established => Test::Established,
            O::Setup => Test::TcpFlags(Bits { set: 2, clear: 16 }),
            O::SocketArgument => Test::SocketArgument,
            O::VerifyReversePath => Test::VerifyReversePath,
            O::VerifySourceReach => Test::VerifySourceReach,
            O::AntiSpoof => Test::AntiSpoof,
            O::Ipsec => Test::Ipsec,
            O::Ipv6 => Test::Ipv6,
            O::Ipv4 => Test::Ipv4,
            O::Uid => self.owner(word, OwnerKind::User)?,
            O::Gid => self.owner(word, OwnerKind::Group)?,
            O::Jail => self.owner(word, OwnerKind::Jail)?,
            O::Fragment => self.fragment()?,
            O::Fib => Test::Fib(self.bounded(word, "fib number", 0..=32767)?),
            O::Tagged => Test::Tagged(self.tagged(word)?),
            O::IpId => Test::IpId(self.numbers(word, "id")?),
            O::IpLength => Test::IpLength(self.numbers(word, "length")?),
            O::IpTtl => Test::IpTtl(self.numbers(word, "TTL")?),
            O::TcpDataLength => Test::TcpDataLength(self.numbers(word, "length")?),
            O::TcpMss => Test::TcpMss(self.numbers(word, "size")?),
            O::TcpWindow => Test::TcpWindow(self.numbers(word, "size")?),
            O::IpVersion => Test::IpVersion(self.small_number(word, "version", 255)?),
            O::IpPrecedence => Test::IpPrecedence(self.small_number(word, "value", 7)?),
            O::Dscp => self.dscp(word)?,
            O::IpOptions => Test::IpOptions(self.bits(word, keywords::IP_OPTIONS)?),
            O::IpTos => Test::IpTos(self.bits(word, keywords::IP_TOS)?),
            O::TcpFlags => Test::TcpFlags(self.bits(word, keywords::TCP_FLAGS)?),
            O::TcpOptions => Test::TcpOptions(self.bits(word, keywords::TCP_OPTIONS)?),
            O::TcpSequence => Test::TcpSequence(self.sequence(word)?),
            O::TcpAcknowledgement => Test::TcpAcknowledgement(self.sequence(word)?),
            O::IcmpTypes => Test::IcmpTypes(self.icmp_types(word, "ICMP", ICMP_TYPE_MOST)?[0] as u32),
            O::Icmp6Types => Test::Icmp6Types(self.icmp_types(word, "ICMP6", ICMP6_TYPE_MOST)?),
            O::ExtensionHeaders => self.extension_headers(word)?,
            O::FlowId => self.flow_id(word, span)?,
            O::Mark => self.mark(word)?,
            O::Mac => {
                let destination = self.masked_mac(word)?;
                let source = self.masked_mac(word)?;
                Test::Mac { destination, source }
            }
            O::MacType => Test::MacType(self.mac_type(word)?),
            O::SourceMac => self.mac_table(word, Side::Source)?,
            O::DestinationMac => self.mac_table(word, Side::Destination)?,
            O::Lookup => self.lookup(word)?,
            O::Flow => {
                let (name, value) = self.table_argument(word)?;
                Test::FlowTable(name, value)
            }
        };
        Ok(Parsed::Term(not, Some(test)))
    }

    /// `recv em0`, `via table(1)`, `xmit 1.2.3.4`. `any` is no test, as in ipfw(8).
    fn interface(&mut self, word: &str, role: InterfaceRole, not: bool) -> Result<Parsed, Failed> {
        let (text, span) = self.argument(word, "interface name or address")?;
        let interface = if text == "any" {
            if !not {
                return Ok(Parsed::Term(false, None));
            }
            InterfaceMatch::Any
        } else if text.starts_with("table(") {
            let (name, value) = addresses::table(text).map_err(|fault| self.fault(span, fault))?;
            InterfaceMatch::Table(name, value)
        } else if let Ok(address) = text.parse::<Ipv6Addr>() {
            InterfaceMatch::Address6(address)
        } else if text.starts_with(|first: char| first.is_ascii_digit()) {
            match addresses::inet_aton(text) {
                Some(address) => InterfaceMatch::Address4(address),
                None => return Err(self.error(span, format!("bad ip address {}", quoted(text)))),
            }
        } else if text.len() > INTERFACE_NAME_MOST {
            let message = format!("interface name {} is too long", quoted(text));
            return Err(self.hinted(span, message, "interface names have at most 15 characters"));
        } else if text.contains(['*', '?', '[']) {
            InterfaceMatch::Pattern(text.to_owned())
        } else {
            InterfaceMatch::Name(text.to_owned())
        };
        Ok(Parsed::Term(not, Some(Test::Interface(role, interface))))
    }

    fn address_option(&mut self, word: &str, side: Side, family: Family, not: bool) -> Result<Parsed, Failed> {
        let (text, span) = self.argument(word, "an address")?;
        let test = self.address(text, span, side, family, not)?;
        Ok(Parsed::Term(not, test))
    }

    fn port_option(&mut self, word: &str, side: Side, not: bool) -> Result<Parsed, Failed> {
        let (text, span) = self.argument(word, "ports")?;
        if text == "any" && !not {
            return Ok(Parsed::Term(false, None));
        }
        match numbers::list(text, ListKind::Ports(self.names, self.port_protocol())) {
            Ok(ranges) => Ok(Parsed::Term(not, Some(Test::Ports(side, ranges)))),
            Err(error) => Err(self.bad_ports(text, span, &error, false)),
        }
    }

    fn protocol_option(&mut self, word: &str, not: bool) -> Result<Parsed, Failed> {
        let (text, span) = self.argument(word, "a protocol")?;
        // Unlike where a rule begins, `ipv6` is the protocol 41 here, as in ipfw(8).
        let plain = matches!(text, "ip" | "all" | "ip4" | "ip6");
        let test = if plain { self.protocol_word(text) } else { self.numbered_protocol(text) };
        let Some(test) = test else {
            let names = self.protocol_names();
            return Err(self.unknown(span, format!("invalid protocol {}", quoted(text)), text, names));
        };
        self.note_protocol(&test);
        if not && test.is_none() {
            return Err(self.error(span, format!("`not proto {text}` never matches")));
        }
        Ok(Parsed::Term(not, test))
    }

    fn owner(&mut self, word: &str, kind: OwnerKind) -> Result<Test, Failed> {
        let (text, _) = self.argument(word, "argument")?;
        Ok(Test::Owner(kind, text.to_owned()))
    }

    /// `frag [SPEC]`: what follows is a specification when it begins with a word of one; alone it is `offset`.
    fn fragment(&mut self) -> Result<Test, Failed> {
        let first = self.peek().and_then(|text| text.split(',').next());
        let first = first.map(|flag| flag.strip_prefix('!').unwrap_or(flag));
        if first.is_none_or(|flag| keywords::value(keywords::FRAGMENT, flag).is_none()) {
            return Ok(Test::Fragment(FragmentBits { set: FragmentBits::OFFSET, clear: 0 }));
        }
        let bits = self.bits("frag", keywords::FRAGMENT)?;
        Ok(Test::Fragment(FragmentBits { set: bits.set, clear: bits.clear }))
    }

    fn bits(&mut self, word: &str, list: Flags) -> Result<Bits, Failed> {
        let (text, span) = self.argument(word, "flags")?;
        match numbers::flags(list, text) {
            Ok((set, clear)) => Ok(Bits { set, clear }),
            Err(flag) => Err(self.unknown(
                span,
                format!("invalid flag {} for {word}", quoted(flag)),
                flag,
                keywords::names(list),
            )),
        }
    }

    /// A list of numbers and ranges.
    fn numbers(&mut self, word: &str, what: &str) -> Result<Numbers, Failed> {
        let (text, span) = self.argument(word, what)?;
        self.number_list(word, text, span).map(Numbers::List)
    }

    fn number_list(&mut self, word: &str, text: &str, span: Span) -> Result<Vec<Range<u16>>, Failed> {
        numbers::list(text, ListKind::Plain).map_err(|error| match error {
            ListError::TooLarge(number) => self.error(span, format!("{word}: {number} is out of range (0..65535)")),
            _ => self.hinted(span, format!("invalid {word} {}", quoted(text)), "write numbers and ranges: 1,5-9"),
        })
    }

    fn tagged(&mut self, word: &str) -> Result<Numbers, Failed> {
        if self.eat(&["tablearg"]) {
            return Ok(Numbers::Table);
        }
        let (text, span) = self.argument(word, "a tag")?;
        let list = self.number_list(word, text, span)?;
        if list.iter().any(|range| range.low == 0 || range.high == u16::MAX) {
            return Err(self.error(span, format!("{word}: argument is out of range (1..65534): {text}")));
        }
        Ok(Numbers::List(list))
    }

    fn small_number(&mut self, word: &str, what: &str, most: u8) -> Result<u8, Failed> {
        let (text, span) = self.argument(word, what)?;
        match number(text).and_then(|value| u8::try_from(value).ok()).filter(|&value| value <= most) {
            Some(value) => Ok(value),
            None => Err(self.hinted(span, format!("invalid {word} {}", quoted(text)), format!("0 to {most}"))),
        }
    }

    /// `tcpseq`, `tcpack`: ipfw(8) lists numbers from 2^31 as negative ones, so it takes these too.
    fn sequence(&mut self, word: &str) -> Result<u32, Failed> {
        let (text, span) = self.argument(word, "a number")?;
        let negative = || text.starts_with('-').then(|| text.parse::<i32>().ok()).flatten().map(|value| value as u32);
        match number32(text).or_else(negative) {
            Some(value) => Ok(value),
            None => Err(self.hinted(span, format!("invalid {word} {}", quoted(text)), "a 32-bit number")),
        }
    }

    fn dscp(&mut self, word: &str) -> Result<Test, Failed> {
        let (text, span) = self.argument(word, "DSCP codes")?;
        if text == "tablearg" {
            return Ok(Test::DscpTable);
        }
        let mut map = 0u64;
        for code in text.split(',') {
            let value = keywords::value(DSCP, code)
                .or_else(|| numbers::decimal(code).filter(|&value| value <= 63).map(|value| value as u8));
            match value {
                Some(value) => map |= 1 << value,
                None => {
                    let message = format!("unknown DSCP code {}", quoted(code));
                    return Err(self.unknown(span, message, code, keywords::names(DSCP)));
                }
            }
        }
        Ok(Test::Dscp(map))
    }

    fn icmp_types(&mut self, word: &str, protocol: &str, most: u64) -> Result<[u64; 4], Failed> {
        let (text, span) = self.argument(word, "list of types")?;
        numbers::bit_list(text, most).map_err(|item| match number(item) {
            Some(_) => self.hinted(span, format!("{protocol} type out of range: {item}"), format!("0 to {most}")),
            None => self.hinted(span, format!("invalid {protocol} type {}", quoted(item)), "write numbers: 0,3,8"),
        })
    }

    fn extension_headers(&mut self, word: &str) -> Result<Test, Failed> {
        let (text, span) = self.argument(word, "extension headers")?;
        match numbers::flags(keywords::EXTENSION_HEADERS, text) {
            Ok((set, 0)) => Ok(Test::ExtensionHeaders(set)),
            Ok(_) => Err(self.hinted(span, format!("invalid extension header {}", quoted(text)), "write not ext6hdr")),
            Err(header) => {
                let message = format!("invalid extension header {}", quoted(header));
                Err(self.unknown(span, message, header, keywords::names(keywords::EXTENSION_HEADERS)))
            }
        }
    }

    fn flow_id(&mut self, word: &str, keyword: Span) -> Result<Test, Failed> {
        let (text, span) = self.argument(word, "flow labels")?;
        let mut labels = Vec::new();
        for label in text.split(',') {
            match number32(label) {
                Some(value) if value <= FLOW_LABEL_MOST => labels.push(value),
                Some(_) => return Err(self.error(span, format!("flow number out of range {label}"))),
                None => return Err(self.error(span, format!("invalid ipv6 flow number {}", quoted(label)))),
            }
        }
        if !self.ip6_named {
            return Err(self.hinted(
                keyword,
                "flow-id filter is active only for ipv6 protocol",
                "write ip6 from ... to ...",
            ));
        }
        Ok(Test::FlowId(labels))
    }

    fn mark(&mut self, word: &str) -> Result<Test, Failed> {
        let (text, span) = self.argument(word, "value[:mask]")?;
        let (value, mask) = text.split_once(':').map_or((text, None), |(value, mask)| (value, Some(mask)));
        let mask = mask.map_or(Some(u32::MAX), number32);
        match (value, number32(value), mask) {
            ("tablearg", _, Some(mask)) => Ok(Test::Mark(Argument::Table, mask)),
            (_, Some(value), Some(mask)) if value & mask != value => {
                let message = format!("some bits of the mark {value:#x} are masked out by {mask:#x}");
                Err(self.hinted(span, message, "such a rule never matches"))
            }
            (_, Some(value), Some(mask)) => Ok(Test::Mark(Argument::Number(value), mask)),
            _ => Err(self.hinted(span, format!("invalid mark {}", quoted(text)), "write VALUE or VALUE:MASK")),
        }
    }

    fn masked_mac(&mut self, word: &str) -> Result<MaskedMac, Failed> {
        let (text, span) = self.argument(word, "two addresses: destination and source")?;
        super::mac::masked_mac(text).map_err(|fault| self.fault(span, fault))
    }

    fn mac_type(&mut self, word: &str) -> Result<Vec<Range<u16>>, Failed> {
        let (text, span) = self.argument(word, "an Ethernet type")?;
        numbers::list(text, ListKind::EtherTypes).map_err(|_| {
            let message = format!("invalid mac type {}", quoted(text));
            self.unknown(span, message, text, keywords::names(keywords::ETHER_TYPES))
        })
    }

    fn mac_table(&mut self, word: &str, side: Side) -> Result<Test, Failed> {
        let (name, value) = self.table_argument(word)?;
        Ok(Test::MacTable(side, name, value))
    }

    /// `table(NAME[,VALUE])`.
    fn table_argument(&mut self, word: &str) -> Result<(String, Option<TableValueTest>), Failed> {
        let (text, span) = self.argument(word, "table(NAME)")?;
        if !text.starts_with("table(") {
            let fault = Fault { message: format!("bad argument {} for {word}", quoted(text)), hint: None };
            let hint = format!("enclose table name into table(): {word} table({text})");
            return Err(self.fault(span, Fault { hint: Some(hint), ..fault }));
        }
        addresses::table(text).map_err(|fault| self.fault(span, fault))
    }
}
