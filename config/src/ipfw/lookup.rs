#![forbid(unsafe_code)]
//! `lookup KEY[:MASK] TABLE`: text to meaning and back.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::actions::print_hex;
use super::addresses::{self, inet_aton, inet_ntop};
use super::ast::{LookupKey, OwnerKind, Side, Test};
use super::keywords;
use super::mac::{mac, print_mac};
use super::numbers::{number, number32};
use super::reader::{Failed, Parser};
use crate::diagnostic::quoted;

/// Keys without their masks; those of the address and owner kinds have none.
const KEYS: &[(&str, LookupKey)] = &[
    ("dst-ip", LookupKey::Address(Side::Destination)),
    ("src-ip", LookupKey::Address(Side::Source)),
    ("dst-port", LookupKey::Port(Side::Destination, u16::MAX)),
    ("src-port", LookupKey::Port(Side::Source, u16::MAX)),
    ("dst-mac", LookupKey::Mac(Side::Destination, [0xff; 6])),
    ("src-mac", LookupKey::Mac(Side::Source, [0xff; 6])),
    ("uid", LookupKey::Owner(OwnerKind::User)),
    ("jail", LookupKey::Owner(OwnerKind::Jail)),
    ("dscp", LookupKey::Dscp(u32::MAX)),
    ("mark", LookupKey::Mark(u32::MAX)),
    ("rulenum", LookupKey::RuleNumber(u32::MAX)),
    ("dst-ip4", LookupKey::Address4(Side::Destination, Ipv4Addr::BROADCAST)),
    ("src-ip4", LookupKey::Address4(Side::Source, Ipv4Addr::BROADCAST)),
    ("dst-ip6", LookupKey::Address6(Side::Destination, Ipv6Addr::from_bits(u128::MAX))),
    ("src-ip6", LookupKey::Address6(Side::Source, Ipv6Addr::from_bits(u128::MAX))),
];

/// The key with a mask. None where the text is no mask of its kind, or the key takes none.
fn masked(key: LookupKey, mask: &str) -> Option<LookupKey> {
    Some(match key {
        LookupKey::Address(_) | LookupKey::Owner(_) => return None,
        LookupKey::Address4(side, _) => {
            LookupKey::Address4(side, if mask.contains('.') { inet_aton(mask)? } else { number32(mask)?.into() })
        }
        LookupKey::Address6(side, _) => LookupKey::Address6(side, mask.parse().ok()?),
        LookupKey::Port(side, _) => LookupKey::Port(side, u16::try_from(number(mask)?).ok()?),
        LookupKey::Mac(side, _) => LookupKey::Mac(side, mac(mask)?),
        LookupKey::Dscp(_) => LookupKey::Dscp(number32(mask)?),
        LookupKey::RuleNumber(_) => LookupKey::RuleNumber(number32(mask)?),
        LookupKey::Mark(_) => LookupKey::Mark(number32(mask)?),
    })
}

/// The key without its mask.
fn unmasked(key: LookupKey) -> LookupKey {
    match key {
        LookupKey::Address4(side, _) => LookupKey::Address4(side, Ipv4Addr::BROADCAST),
        LookupKey::Address6(side, _) => LookupKey::Address6(side, Ipv6Addr::from_bits(u128::MAX)),
        LookupKey::Port(side, _) => LookupKey::Port(side, u16::MAX),
        LookupKey::Mac(side, _) => LookupKey::Mac(side, [0xff; 6]),
        LookupKey::Dscp(_) => LookupKey::Dscp(u32::MAX),
        LookupKey::RuleNumber(_) => LookupKey::RuleNumber(u32::MAX),
        LookupKey::Mark(_) => LookupKey::Mark(u32::MAX),
        other => other,
    }
}

impl Parser<'_, '_> {
    /// `KEY[:MASK] TABLE`.
    pub(super) fn lookup(&mut self, word: &str) -> Result<Test, Failed> {
        let (text, span) = self.argument(word, "a key and a table")?;
        let (name, mask) = text.split_once(':').map_or((text, None), |(name, mask)| (name, Some(mask)));
        let key = match keywords::value(KEYS, name) {
            Some(key) => match mask {
                None => Ok(key),
                Some(mask) => masked(key, mask).ok_or_else(|| {
                    let message = format!("bad mask {} for lookup {name}", quoted(mask));
                    let hint = match key {
                        LookupKey::Address(_) => format!("{name} takes no mask: use {name}4 or {name}6"),
                        LookupKey::Owner(_) => format!("{name} takes no mask"),
                        LookupKey::Address4(..) => "a dotted quad or a number".to_owned(),
                        LookupKey::Address6(..) => "an IPv6 address".to_owned(),
                        LookupKey::Mac(..) => "a MAC address".to_owned(),
                        LookupKey::Port(..) => "a 16-bit number".to_owned(),
                        _ => "a 32-bit number".to_owned(),
                    };
                    self.hinted(span, message, hint)
                }),
            },
            None => Err(self.unknown(span, format!("cannot lookup on {}", quoted(name)), name, keywords::names(KEYS))),
        };
        let (text, span) = self.argument(word, "a table after the key")?;
        let table = addresses::table_name(text).map_err(|fault| self.fault(span, fault))?;
        Ok(Test::Lookup(key?, table))
    }
}

/// `KEY[:MASK]`; a mask of all ones is not shown.
pub(super) fn print_key(key: LookupKey) -> String {
    let plain = unmasked(key);
    let name = keywords::name(KEYS, plain).unwrap_or("gid");
    if key == plain {
        return name.to_owned();
    }
    match key {
        LookupKey::Address4(_, mask) => format!("{name}:{mask}"),
        LookupKey::Address6(_, mask) => format!("{name}:{}", inet_ntop(mask)),
        LookupKey::Port(_, mask) => format!("{name}:{}", print_hex(mask.into())),
        LookupKey::Mac(_, mask) => format!("{name}:{}", print_mac(&mask)),
        LookupKey::Dscp(mask) | LookupKey::RuleNumber(mask) | LookupKey::Mark(mask) => {
            format!("{name}:{}", print_hex(mask))
        }
        LookupKey::Address(_) | LookupKey::Owner(_) => name.to_owned(),
    }
}
