//! Device features (checksum, segmentation and VLAN tag offload) over ethtool netlink, so that no ethtool program is needed.
//!
//! Message layout: Linux Documentation/networking/ethtool-netlink.rst (FEATURES_SET) and genetlink's CTRL family.
//! Works in the namespace of the calling thread.
#![forbid(unsafe_code)]

use super::topology::Offloads;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto, socket_with};
use std::io;
use std::os::fd::OwnedFd;

const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_HEADER_FLAGS: u16 = 3;
const ETHTOOL_FLAG_OMIT_REPLY: u32 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 0x8000;
const NLMSG_ERROR: u16 = 2;

/// What makes a host send unfinished checksums, segments longer than the MTU, or a VLAN tag beside its frame instead of in
/// it (names: net/ethtool/common.c).
const FEATURES: &[&str] = &[
    "tx-checksum-ip-generic",
    "tx-checksum-sctp",
    "tx-scatter-gather",
    "tx-generic-segmentation",
    "tx-tcp-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp6-segmentation",
    "tx-udp-segmentation",
    "tx-vlan-hw-insert",
    "tx-vlan-stag-hw-insert",
];

/// Switches the features of `device` that make frames unfinished or longer than the MTU.
///
/// # Errors
/// The kernel's: no such device, not permitted, a feature that it does not know.
pub fn set(device: &str, offloads: Offloads) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::GENERIC))?;
    let family = ethtool_family(&socket)?;
    let mut header = Vec::new();
    attribute(&mut header, ETHTOOL_A_HEADER_DEV_NAME, &zero_terminated(device));
    attribute(&mut header, ETHTOOL_A_HEADER_FLAGS, &ETHTOOL_FLAG_OMIT_REPLY.to_ne_bytes());
    let mut bits = Vec::new();
    for feature in FEATURES {
        let mut bit = Vec::new();
        attribute(&mut bit, ETHTOOL_A_BITSET_BIT_NAME, &zero_terminated(feature));
        if offloads == Offloads::On {
            attribute(&mut bit, ETHTOOL_A_BITSET_BIT_VALUE, &[]);
        }
        attribute(&mut bits, ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED, &bit);
    }
    let mut wanted = Vec::new();
    attribute(&mut wanted, ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &bits);
    let mut payload = Vec::new();
    attribute(&mut payload, ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED, &header);
    attribute(&mut payload, ETHTOOL_A_FEATURES_WANTED | NLA_F_NESTED, &wanted);
    exchange(&socket, family, ETHTOOL_MSG_FEATURES_SET, &payload).map(|_| ())
}

fn ethtool_family(socket: &OwnedFd) -> io::Result<u16> {
    let mut payload = Vec::new();
    attribute(&mut payload, CTRL_ATTR_FAMILY_NAME, &zero_terminated("ethtool"));
    let reply = exchange(socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &payload)?;
    let id = find_attribute(&reply, CTRL_ATTR_FAMILY_ID).and_then(|bytes| bytes.get(..2)?.try_into().ok());
    id.map(u16::from_ne_bytes).ok_or_else(|| io::Error::other("the kernel does not tell the ethtool netlink family"))
}

/// Sends one request and reads until its acknowledgement; gives the payload of the reply before it, if any.
fn exchange(socket: &OwnedFd, family: u16, command: u8, payload: &[u8]) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    message.extend((16 + 4 + payload.len() as u32).to_ne_bytes());
    message.extend(family.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(payload);
    sendto(socket, &message, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut reply = Vec::new();
    let mut buffer = vec![0_u8; 65536];
    loop {
        let (length, _) = recv(socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            if length < 16 || length > rest.len() {
                return Err(io::Error::other("the kernel sent a netlink message of a wrong length"));
            }
            let body = &rest[16..length];
            if u16::from_ne_bytes([rest[4], rest[5]]) == NLMSG_ERROR {
                let code = body.get(..4).map_or(0, |code| i32::from_ne_bytes([code[0], code[1], code[2], code[3]]));
                return if code == 0 { Ok(reply) } else { Err(io::Error::from_raw_os_error(-code)) };
            }
            reply = body.get(4..).unwrap_or_default().to_vec();
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

fn zero_terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend((4 + value.len() as u16).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn find_attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = u16::from_ne_bytes([attributes[0], attributes[1]]) as usize;
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([attributes[2], attributes[3]]) & !NLA_F_NESTED == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let mut bytes = Vec::new();
        attribute(&mut bytes, 7, b"abcde");
        attribute(&mut bytes, 9 | NLA_F_NESTED, &[1, 2]);
        assert_eq!(bytes.len(), 12 + 8);
        assert_eq!(find_attribute(&bytes, 7), Some(&b"abcde"[..]));
        assert_eq!(find_attribute(&bytes, 9), Some(&[1, 2][..]));
        assert_eq!(find_attribute(&bytes, 8), None);
        assert_eq!(find_attribute(&[200, 0, 7, 0], 7), None, "a length past the end");
    }

    #[test]
    fn a_missing_device_is_an_error_of_the_kernel() {
        assert!(set("no-such-dev0", Offloads::Off).is_err());
    }
}
