//! stub
use crate::{packet::*, ports::MacAddress, stage::Context};
use std::net::IpAddr;
pub fn answer(p: Packet, c: &mut Context<'_>, _l: &mut dyn FnMut(PortId, IpAddr, MacAddress)) {
    c.discard(p, crate::verdict::DropReason::HostNone)
}
pub fn solicit(_p: PortId, _a: IpAddr, _c: &mut Context<'_>) {}
