#![forbid(unsafe_code)]
//! MAC addresses with masks: text to meaning and back.

use super::addresses::{Fault, contiguous, prefix};
use super::ast::MaskedMac;
use super::numbers::decimal;

/// `any`, `ADDRESS`, `ADDRESS/LENGTH`, `ADDRESS&MASK`.
pub(super) fn masked_mac(text: &str) -> Result<MaskedMac, Fault> {
    if text == "any" {
        return Ok(MaskedMac { address: [0; 6], mask: [0; 6] });
    }
    let (address, mask) = match text.find(['/', '&']) {
        None => (text, Some([0xff; 6])),
        Some(at) if text.as_bytes()[at] == b'&' => (&text[..at], mac(&text[at + 1..])),
        Some(at) => {
            let length = decimal(&text[at + 1..]).filter(|&length| length <= 48);
            (&text[..at], length.map(|length| mac_bytes(prefix(length as u8, 48) as u64)))
        }
    };
    let quoted = crate::diagnostic::quoted(text);
    let address = mac(address).ok_or_else(|| Fault::new(format!("incorrect MAC address {quoted}")))?;
    let mask = mask.ok_or_else(|| Fault::new(format!("incorrect MAC mask in {quoted}")))?;
    Ok(MaskedMac { address: std::array::from_fn(|at| address[at] & mask[at]), mask })
}

/// Six bytes in hex with colons between them.
pub(super) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() <= 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

fn mac_bytes(value: u64) -> [u8; 6] {
    let bytes = value.to_be_bytes();
    std::array::from_fn(|at| bytes[at + 2])
}

/// A MAC address in the form of ether_ntoa(3) with two digits a byte.
pub(super) fn print_mac(address: &[u8; 6]) -> String {
    address.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// The form that [`masked_mac`] reads.
pub(super) fn print_masked_mac(mac: &MaskedMac) -> String {
    let mask = mac.mask.iter().fold(0u128, |mask, &byte| mask << 8 | u128::from(byte));
    match contiguous(mask, 48) {
        Some(0) => "any".to_owned(),
        Some(48) => print_mac(&mac.address),
        Some(length) => format!("{}/{length}", print_mac(&mac.address)),
        None => format!("{}&{}", print_mac(&mac.address), print_mac(&mac.mask)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses() {
        for (text, expected) in [
            ("any", Some("any")),
            ("0:1:2:a:B:ff", Some("00:01:02:0a:0b:ff")),
            ("00:01:02:03:04:05/24", Some("00:01:02:00:00:00/24")),
            ("00:01:02:03:04:05&00:ff:00:00:00:ff", Some("00:01:00:00:00:05&00:ff:00:00:00:ff")),
            ("00:01:02:03:04:05/49", None),
            ("00:01:02:03:04", None),
            ("00:01:02:03:04:05:06", None),
            ("00:01:02:03:04:+5", None),
        ] {
            assert_eq!(masked_mac(text).ok().map(|mac| print_masked_mac(&mac)).as_deref(), expected, "{text}");
        }
    }
}
