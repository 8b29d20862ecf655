#![forbid(unsafe_code)]
//! `mask FIELD MASK ...`: which bits of a flow tell queues apart.

use std::net::Ipv6Addr;

use crate::ipfw::command::abbreviation::any_base;
use crate::ipfw::command::{Word, Words};
use crate::ipfw::dummynet::FlowMask;
use crate::ipfw::failure::Failure;

/// Reads fields until a word that is none.
pub(super) fn parse(words: &mut Words<'_>) -> Result<FlowMask, Failure> {
    let mut mask = FlowMask::NONE;
    if words.peek().is_none() {
        return Err(Failure::usage(words.here(), "mask needs mask specifier"));
    }
    while let Some(field) = words.peek() {
        let name = field.text.as_str();
        match name {
            "all" => {
                words.next();
                // Everything but the number of the queue.
                return Ok(FlowMask {
                    protocol: u8::MAX,
                    source_port: u16::MAX,
                    destination_port: u16::MAX,
                    source4: u32::MAX,
                    destination4: u32::MAX,
                    source6: prefix(128),
                    destination6: prefix(128),
                    flow_id: u32::MAX,
                    extra: 0,
                });
            }
            "queue" => {
                words.next();
                mask.extra = u32::MAX;
                return Ok(mask);
            }
            "dst-ip" | "src-ip" | "dst-ip6" | "dst-ipv6" | "src-ip6" | "src-ipv6" | "flow-id" | "dst-port"
            | "src-port" | "proto" => {
                words.next();
                let value = words.next().ok_or_else(|| Failure::usage(words.here(), "mask: value missing"))?;
                set(&mut mask, name, value)?;
            }
            _ => break,
        }
    }
    Ok(mask)
}

fn set(mask: &mut FlowMask, name: &str, word: &Word) -> Result<(), Failure> {
    let wrong = || Failure::data(word.span, format!("invalid mask {}", word.text.escape_debug()));
    let length = word.text.strip_prefix('/');
    let (number, rest) = any_base(length.unwrap_or(&word.text)).ok_or_else(wrong)?;
    if !rest.is_empty() {
        return Err(wrong());
    }
    if name.contains("ip6") || name.contains("ipv6") {
        let length = u8::try_from(number).ok().filter(|&length| length <= 128);
        let bits = prefix(length.ok_or_else(|| Failure::data(word.span, "in6addr invalid mask len"))?);
        if name.starts_with("dst") {
            mask.destination6 = bits
        } else {
            mask.source6 = bits
        }
        return Ok(());
    }
    // A length counts bits from the right here, unlike in prefixes: so does the original.
    let bits = match length {
        None => u32::try_from(number).map_err(|_| wrong())?,
        Some(_) if number >= 32 => u32::MAX,
        Some(_) => (1_u32 << number) - 1,
    };
    let narrow = |message: &str| u16::try_from(bits).map_err(|_| Failure::data(word.span, message));
    match name {
        "dst-ip" => mask.destination4 = bits,
        "src-ip" => mask.source4 = bits,
        "dst-port" => mask.destination_port = narrow("port mask must be 16 bit")?,
        "src-port" => mask.source_port = narrow("port mask must be 16 bit")?,
        "flow-id" if bits > 0xfffff => return Err(Failure::data(word.span, "flow_id mask must be 20 bit")),
        "flow-id" => mask.flow_id = bits,
        _ => mask.protocol = u8::try_from(bits).map_err(|_| Failure::data(word.span, "proto mask must be 8 bit"))?,
    }
    Ok(())
}

fn prefix(length: u8) -> Ipv6Addr {
    Ipv6Addr::from(u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0))
}
