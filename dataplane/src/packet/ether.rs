//! Ethernet: EtherTypes and VLAN tags.

#![forbid(unsafe_code)]

use crate::arena::Frame;
use crate::ports::VlanTag;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// TPID of 802.1Q.
pub const VLAN: u16 = 0x8100;
/// TPID of 802.1ad.
pub const QINQ: u16 = 0x88a8;

/// Takes the outer tag off by moving the addresses four bytes on; None where the frame is too short.
pub fn pop_tag(frame: &mut Frame) -> Option<()> {
    frame.header_mut().copy_within(0..12, 4);
    frame.trim_front(4).then_some(())
}

/// Puts a tag on; None where the headroom is used up.
pub fn push_tag(frame: &mut Frame, tag: VlanTag) -> Option<()> {
    if !frame.extend_front(4) {
        return None;
    }
    let h = frame.header_mut();
    h.copy_within(4..16, 0);
    h[12..14].copy_from_slice(&tag.tpid.to_be_bytes());
    h[14..16].copy_from_slice(&tag.tci.to_be_bytes());
    Some(())
}
